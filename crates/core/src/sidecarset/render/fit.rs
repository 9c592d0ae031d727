//! Why the API server would refuse a pod with a set that is valid by itself, but for names, ports and devices (`choice`): what
//! a container has is not possible in every pod (`ValidatePodSpec` and what it calls,
//! `pkg/apis/core/validation/validation.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leadsman_api::limits;
use serde_json::Value;

use super::additions::json_bytes;
use super::{Additions, Injection, PodView};
use crate::sidecarset::container::SetContainer;
use crate::sidecarset::template::Template;
use crate::workload::JsonObject;
use crate::workload::object::{inner, items, text};
use crate::workload::quantity::Quantity;

/// Fields of a security context that a pod of Windows cannot have (`validateWindows`).
const NOT_OF_WINDOWS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];
/// The default of Kubernetes (`DefaultTerminationGracePeriodSeconds` in `k8s.io/api/core/v1`).
const GRACE_SECONDS: i64 = 30;

/// Why the API server would refuse a pod with a set, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// A field of a container of the set.
    #[error("{field} of container {container:?} is not possible in a pod {pod}; {remedy}")]
    Field {
        /// The container.
        container: Arc<str>,
        /// The field, such as `volumeDevices`.
        field: String,
        /// The property of the pod, such as `with hostUsers: false`.
        pod: String,
        /// The change to make in one of the two.
        remedy: &'static str,
    },
    /// An amount for all containers of the pod.
    #[error(
        "it would have more {0} in its containers than in spec.resources; lower the requests and limits of the set's \
         containers, or raise spec.resources of the pod"
    )]
    Resources(String),
    /// The annotations that record the injection.
    #[error("it would have annotations of more than 256 KiB together; shorten the pod's own")]
    Annotations,
    /// All of it.
    #[error(
        "it would have more than {} KiB, of the 1536 KiB that etcd takes; shorten the set's containers and volumes, or the \
         pod's own",
        limits::POD_BYTES / 1024
    )]
    Size,
}

/// The first field of a set's containers that is not possible in a pod.
pub(super) fn field_in_the_way(pod: &PodView<'_>, template: &Template) -> Option<Misfit> {
    template.all().find_map(|sidecar| {
        let container = sidecar.container();
        let clash = sleep(pod, &container)
            .or_else(|| resize(pod, &container))
            .or_else(|| security(pod, &container))
            .or_else(|| users(pod, sidecar, &container))
            .or_else(|| claim(pod, &container))?;
        Some(Misfit::Field {
            container: sidecar.name.clone(),
            field: clash.field,
            pod: clash.pod,
            remedy: clash.remedy,
        })
    })
}

/// A field of a container and a property of the pod that cannot be beside each other.
struct Clash {
    field: String,
    pod: String,
    remedy: &'static str,
}

fn sleep(pod: &PodView<'_>, container: &JsonObject) -> Option<Clash> {
    let grace = pod
        .field("terminationGracePeriodSeconds")
        .and_then(Value::as_i64)
        .unwrap_or(GRACE_SECONDS);
    let lifecycle = inner(container, "lifecycle")?;
    // `validateSleepAction`, which asks of either hook that it ends within the period.
    ["postStart", "preStop"].into_iter().find_map(|hook| {
        let seconds = inner(inner(lifecycle, hook)?, "sleep")?
            .get("seconds")?
            .as_i64()?;
        (seconds > grace).then(|| Clash {
            field: format!("lifecycle.{hook}.sleep of {seconds} s"),
            pod: format!("with terminationGracePeriodSeconds {grace}"),
            remedy: "shorten the sleep, or raise terminationGracePeriodSeconds",
        })
    })
}

fn resize(pod: &PodView<'_>, container: &JsonObject) -> Option<Clash> {
    // `validateResizePolicy`: what is never restarted cannot be so for a resize.
    let is_never = pod.field("restartPolicy").and_then(Value::as_str) == Some("Never");
    let mut policies = items(container, "resizePolicy");
    let restarts = policies.any(|policy| text(policy, "restartPolicy") == Some("RestartContainer"));
    (is_never && restarts).then(|| Clash {
        field: "resizePolicy with RestartContainer".to_owned(),
        pod: "with restartPolicy Never".to_owned(),
        remedy: "use NotRequired in the set, or another restartPolicy in the pod",
    })
}

fn security(pod: &PodView<'_>, container: &JsonObject) -> Option<Clash> {
    let os = pod
        .field("os")
        .and_then(|os| os.get("name"))
        .and_then(Value::as_str);
    let security = inner(container, "securityContext");
    let given = |field: &&&str| {
        let value = security.and_then(|security| security.get(**field));
        value.is_some_and(|value| !value.is_null())
    };
    let excluded: &[&str] = match os {
        Some("windows") => &NOT_OF_WINDOWS,
        Some("linux") => &["windowsOptions"],
        // The fields are checked only where a pod names its system.
        _ => &[],
    };
    let clash = excluded.iter().find(given).map(|field| {
        let os = os.unwrap_or_default();
        Clash {
            field: format!("securityContext.{field}"),
            pod: format!("of {os}"),
            remedy: "take the field out of the set",
        }
    });
    clash.or_else(|| host_process(pod, container))
}

/// Either all containers of a pod are processes of a Windows host or none (`validateWindowsHostProcessPod`).
fn host_process(pod: &PodView<'_>, container: &JsonObject) -> Option<Clash> {
    let of = |object: &JsonObject| {
        let options = inner(inner(object, "securityContext")?, "windowsOptions")?;
        options.get("hostProcess")?.as_bool()
    };
    let of_the_pod = pod.spec.and_then(of).unwrap_or_default();
    let is_one = |container: &JsonObject| of(container).unwrap_or(of_the_pod);
    let own = is_one(container);
    let differs = pod.own_containers().any(|other| is_one(other) != own);
    differs.then(|| Clash {
        field: format!("securityContext.windowsOptions.hostProcess: {own}"),
        pod: format!("with {}", !own),
        remedy: "set the field alike in both",
    })
}

fn users(pod: &PodView<'_>, sidecar: &SetContainer, container: &JsonObject) -> Option<Clash> {
    let has_own_users = pod.field("hostUsers").and_then(Value::as_bool) == Some(false);
    let mount = inner(container, "securityContext").and_then(|one| text(one, "procMount"));
    if has_own_users {
        let has_devices = sidecar.devices().next().is_some();
        has_devices.then(|| Clash {
            field: "volumeDevices".to_owned(),
            pod: "with hostUsers: false".to_owned(),
            remedy: "take the devices out of the set, or hostUsers out of the pod",
        })
    } else {
        let is_unmasked = mount == Some("Unmasked");
        is_unmasked.then(|| Clash {
            field: "securityContext.procMount Unmasked".to_owned(),
            pod: "without hostUsers: false".to_owned(),
            remedy: "take procMount out of the set, or add hostUsers: false to the pod",
        })
    }
}

fn claim(pod: &PodView<'_>, container: &JsonObject) -> Option<Clash> {
    let claims: BTreeSet<_> = pod
        .spec
        .into_iter()
        .flat_map(|spec| items(spec, "resourceClaims"))
        .filter_map(|claim| text(claim, "name"))
        .collect();
    let mut used = inner(container, "resources")
        .into_iter()
        .flat_map(|resources| items(resources, "claims"));
    let missing = used.find_map(|claim| text(claim, "name").filter(|name| !claims.contains(name)));
    missing.map(|name| Clash {
        field: format!("claim {name:?} of resources"),
        pod: "that has no such one in resourceClaims".to_owned(),
        remedy: "add it to the pod, or take it out of the set",
    })
}

/// Whether a pod would have too much with all that is added: why, and what a set adds to that.
pub(super) fn too_much(
    pod: &PodView<'_>,
    annotations: &BTreeMap<String, String>,
    additions: &Additions,
) -> Option<Misfit> {
    if super::bytes_of(annotations) > limits::ANNOTATIONS_BYTES {
        return Some(Misfit::Annotations);
    }
    let replaced = additions.containers.replaced_bytes(&pod.containers)
        + additions
            .init_containers
            .replaced_bytes(&pod.init_containers);
    let spec = pod.spec.map_or(0, json_bytes).saturating_sub(replaced);
    if super::bytes_of(annotations) + additions.bytes() + spec > limits::POD_BYTES {
        return Some(Misfit::Size);
    }
    let of_the_pod = pod.resources?;
    let containers = additions.containers.beside(&pod.containers);
    let init_containers = additions.init_containers.beside(&pod.init_containers);
    let amount = |list: &str, resource: &str| amount(of_the_pod, list, resource);
    let mut resources = ["limits", "requests"]
        .map(|list| inner(of_the_pod, list))
        .into_iter()
        .flatten()
        .flatten()
        .map(|(name, _)| name);
    let over = resources.find(|resource| {
        let limit = amount("limits", resource);
        let most = amount("requests", resource).or(limit);
        let is_above = |container: &&JsonObject| {
            let own = inner(container, "resources");
            let own = own.and_then(|own| self::amount(own, "limits", resource));
            limit.is_some_and(|limit| own.is_some_and(|own| own > limit))
        };
        let requested = requested(&containers, &init_containers, resource);
        most.is_some_and(|most| requested > most) || containers.iter().any(is_above)
    });
    over.map(|resource| Misfit::Resources(resource.clone()))
}

/// Whether a set has a part in what is too much.
pub(super) fn adds_to(misfit: &Misfit, injection: &Injection<'_>) -> bool {
    let Misfit::Resources(resource) = misfit else {
        // Each set has containers, and records of its injection in the annotations.
        return true;
    };
    injection.template.all().any(|sidecar| {
        let container = sidecar.container();
        let resources = inner(&container, "resources");
        let lists = ["limits", "requests"].map(|list| inner(resources?, list)?.get(resource));
        lists.iter().any(Option::is_some)
    })
}

fn amount(resources: &JsonObject, list: &str, resource: &str) -> Option<i128> {
    Some(Quantity::of(inner(resources, list)?.get(resource)?)?.nanos())
}

/// The amount that the containers of a pod request together (`AggregateContainerRequests`,
/// `k8s.io/component-helpers/resource/helpers.go`).
fn requested(containers: &[&JsonObject], init_containers: &[&JsonObject], resource: &str) -> i128 {
    let given = |container: &JsonObject| {
        let resources = inner(container, "resources")?;
        amount(resources, "requests", resource).or_else(|| amount(resources, "limits", resource))
    };
    let of = |container: &&JsonObject| given(container).unwrap_or_default();
    let (mut native, mut at_start) = (0, 0);
    for container in init_containers {
        let own = of(container);
        if text(container, "restartPolicy") == Some("Always") {
            native += own;
            at_start = at_start.max(native);
        } else {
            at_start = at_start.max(native + own);
        }
    }
    at_start.max(native + containers.iter().map(of).sum::<i128>())
}
