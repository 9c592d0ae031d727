//! Sets of one container with a variable `LEVEL`, that select by values of the label `app`: what their pods are to them, what
//! their statuses count, and whether anything is left to do. The rules are those of `docs/reference/sidecarset.md`.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use leadsman_api::SidecarSet;
use serde_json::Value;

const INJECTED_LIST: &str = "kruise.io/sidecarset-injected-list";
const HASH: &str = "kruise.io/sidecarset-hash";
const IN_PLACE_STATE: &str = "kruise.io/sidecarset-inplace-update-state";

/// A pod of a set.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one observation of the pod"
)]
struct SetPod {
    is_updated: bool,
    /// It differs in its image alone.
    is_upgradable: bool,
    is_ready: bool,
    /// The kubelet runs the image of the spec.
    is_consistent: bool,
    is_sidecar_ready: bool,
    /// The set has replaced an image in it, and it was ready before, or an upgrade before that was why it was not.
    was_taken_down: bool,
    /// An earlier set of this name has injected it.
    is_former: bool,
}

/// The values of the label `app` that a set selects.
fn selected_apps(set: &SidecarSet) -> Vec<&String> {
    let expressions = set.spec.selector.iter();
    let expressions = expressions.flat_map(|selector| selector.match_expressions.iter().flatten());
    expressions
        .flat_map(|one| one.values.iter().flatten())
        .collect()
}

/// Whether a pod has a set, as its annotation says.
pub fn is_injected(pod: &Pod, set: &str) -> bool {
    let list = pod.annotations().get(INJECTED_LIST);
    list.is_some_and(|list| list.split(',').any(|name| name == set))
}

/// The container of this name.
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.find(|container| container.name == name)
}

/// Image and variable.
fn content(container: &Container) -> (Option<&str>, Option<&str>) {
    let variables = container.env.as_deref().unwrap_or_default();
    let variable = variables.iter().find(|variable| variable.name == "LEVEL");
    let value = variable.and_then(|variable| variable.value.as_deref());
    (container.image.as_deref(), value)
}

/// The set's container, as the spec has it.
///
/// # Errors
/// If it has none.
pub fn declared_container(set: &SidecarSet) -> Result<Container> {
    let first = set.spec.containers.first();
    Ok(serde_json::from_value(serde_json::to_value(first)?)?)
}

/// What is wrong with a set and its pods at rest; empty if they are as they should be.
///
/// # Errors
/// If the set has no container.
pub fn set_faults(set: &SidecarSet, pods: &[Pod]) -> Result<Vec<String>> {
    let (name, wanted) = (set.name_any(), declared_container(set)?);
    let members = pods.iter();
    let members: Vec<_> = members
        .filter_map(|pod| member(set, &wanted, pod))
        .collect();
    let count = |is: &dyn Fn(&SetPod) -> bool| {
        let count = members.iter().filter(|member| is(member)).count();
        i64::try_from(count).unwrap_or(i64::MAX)
    };
    let is_serving = |member: &SetPod| member.is_ready && member.is_consistent;
    let expected = [
        count(&|_| true),
        count(&|member| member.is_updated),
        count(&is_serving),
        count(&|member| member.is_updated && is_serving(member)),
    ];
    let status = set.status.clone().unwrap_or_default();
    let found = [
        status.matched_pods,
        status.updated_pods,
        status.ready_pods,
        status.updated_ready_pods,
    ];
    let mut faults = Vec::new();
    if found != expected {
        faults.push(format!(
            "{name}: its status counts {found:?}, not {expected:?}"
        ));
    }
    let generation = set.metadata.generation;
    if Some(status.observed_generation) != generation {
        faults.push(format!("{name}: its status is of an earlier generation"));
    }
    if status.in_force.map(|in_force| in_force.generation) != generation {
        faults.push(format!("{name}: it is not in force"));
    }
    if let Some(left) = left_to_do(set, &members) {
        faults.push(format!("{name}: {left}: {members:?}"));
    }
    Ok(faults)
}

fn member(set: &SidecarSet, wanted: &Container, pod: &Pod) -> Option<SetPod> {
    let status = pod.status.clone().unwrap_or_default();
    let own = container(pod, &wanted.name)?;
    let is_selected = pod
        .labels()
        .get("app")
        .is_some_and(|app| selected_apps(set).contains(&app));
    if !is_selected
        || pod.metadata.deletion_timestamp.is_some()
        || !is_injected(pod, &set.name_any())
    {
        return None;
    }
    let statuses = status.container_statuses.unwrap_or_default();
    let running = statuses.iter().find(|status| status.name == wanted.name);
    let mut conditions = status.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let ((image, variable), (wanted_image, wanted_variable)) = (content(own), content(wanted));
    let entry = |key: &str| {
        let text = pod.annotations().get(key)?;
        let entries: Value = serde_json::from_str(text).ok()?;
        entries.get(set.name_any()).cloned()
    };
    let since = entry(HASH).and_then(|entry| {
        let since = entry["updateTimestamp"].as_str()?;
        since.parse::<jiff::Timestamp>().ok()
    });
    let created = set.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let pod_created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let is_former = pod_created < created && since < created;
    let upgrade = entry(IN_PLACE_STATE).filter(|_| !is_former);
    Some(SetPod {
        is_updated: (image, variable) == (wanted_image, wanted_variable),
        is_upgradable: image != wanted_image && variable == wanted_variable,
        is_ready: ready.is_some_and(|ready| ready.status == "True"),
        is_consistent: running.is_some_and(|running| Some(running.image.as_str()) == image),
        is_sidecar_ready: running.is_some_and(|running| running.ready),
        was_taken_down: upgrade.is_some_and(|upgrade| upgrade["wasReady"] != false),
        is_former,
    })
}

/// What a roll-out would still do. At rest nothing has begun and not ended, but for an image that never starts.
fn left_to_do(set: &SidecarSet, members: &[SetPod]) -> Option<String> {
    let strategy = &set.spec.update_strategy;
    if strategy.paused {
        return None;
    }
    let number = |amount: Option<&IntOrString>, default: usize| match amount {
        Some(IntOrString::Int(number)) => usize::try_from(*number).unwrap_or(0),
        _ => default,
    };
    let most = number(strategy.max_unavailable.as_ref(), 1);
    let staying = number(strategy.partition.as_ref(), 0);
    let count = |is: &dyn Fn(&SetPod) -> bool| members.iter().filter(|one| is(one)).count();
    let is_serving = |one: &SetPod| one.is_ready && one.is_consistent;
    let has_failed = |one: &SetPod| one.is_updated && !(one.is_consistent && one.is_sidecar_ready);
    let has_lost = |one: &SetPod| one.was_taken_down && !is_serving(one);
    let down = count(&|one| has_lost(one) || (has_failed(one) && !is_serving(one)));
    let pending = count(&|one| has_failed(one) || (has_lost(one) && one.is_updated));
    let is_candidate = |one: &SetPod| {
        one.is_upgradable && !one.is_former && (one.is_consistent || !one.is_sidecar_ready)
    };
    let moving = count(&|one| !one.is_updated).saturating_sub(staying);
    // Pods that are not ready come first.
    let of_unready = moving.min(count(&|one| is_candidate(one) && !one.is_ready));
    let of_ready = (moving - of_unready).min(count(&|one| is_candidate(one) && one.is_ready));
    if of_unready > 0 && pending < most {
        Some(format!(
            "{of_unready} pods that are not ready can be upgraded"
        ))
    } else if of_ready > 0 && down < most {
        Some(format!("{of_ready} pods that are ready can be upgraded"))
    } else {
        None
    }
}
