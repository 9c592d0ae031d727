//! Mounts and devices that a sidecar gets from the pod's own containers, and the variables in the paths of these mounts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::environment::variable;
use super::pod::PodView;
use crate::sidecarset::container::SetContainer;
use crate::workload::JsonObject;
use crate::workload::object::{inner, items, list_mut, text};

/// Mounts, devices and variables that a sidecar gets from the pod's own containers.
#[derive(Default)]
pub(super) struct SharedMounts {
    pub(super) mounts: Vec<JsonObject>,
    pub(super) devices: Vec<JsonObject>,
    pub(super) variables: Vec<JsonObject>,
}

/// Finds what a sidecar gets beside what `container`, which is to be injected for it, has already.
pub(super) fn find(
    sidecar: &SetContainer,
    container: &JsonObject,
    pod: &PodView<'_>,
) -> SharedMounts {
    let of = |list, field| items(container, list).filter_map(move |one| text(one, field));
    let mut paths: BTreeSet<_> = of("volumeMounts", "mountPath")
        .chain(of("volumeDevices", "devicePath"))
        .collect();
    // A volume is either mounted in a container or a device of it, and a device only once (`ValidateVolumeMounts`,
    // `ValidateVolumeDevices`, `pkg/apis/core/validation/validation.go`).
    let mut mounted: BTreeSet<_> = of("volumeMounts", "name").collect();
    let mut attached: BTreeSet<_> = of("volumeDevices", "name").collect();
    let security = inner(container, "securityContext");
    let is_privileged = security
        .and_then(|security| security.get("privileged")?.as_bool())
        .unwrap_or_default();
    let mut shared = SharedMounts::default();
    for own in pod.own_containers() {
        if sidecar.shares_volumes {
            for mount in items(own, "volumeMounts") {
                let (path, name) = (text(mount, "mountPath"), text(mount, "name"));
                let (Some(path), Some(name)) = (path, name) else {
                    continue;
                };
                // A volume may be mounted at several paths, so it does not matter that it is
                // mounted already.
                if !attached.contains(name) && paths.insert(path) {
                    mounted.insert(name);
                    shared.mounts.push(for_sidecar(mount, is_privileged));
                    // The kubelet expands it by the variables of the container that mounts
                    // (`makeMounts`, `pkg/kubelet/kubelet_pods.go`), and does not start one that
                    // lacks any of them.
                    let expression = text(mount, "subPathExpr").unwrap_or_default();
                    let variables =
                        variable_names(expression).filter_map(|name| variable(own, name));
                    shared.variables.extend(variables.cloned());
                }
            }
        }
        if sidecar.shares_devices {
            for device in items(own, "volumeDevices") {
                let (path, name) = (text(device, "devicePath"), text(device, "name"));
                let (Some(path), Some(name)) = (path, name) else {
                    continue;
                };
                let is_free = !mounted.contains(name) && !attached.contains(name);
                if is_free && paths.insert(path) {
                    attached.insert(name);
                    shared.devices.push(device.clone());
                }
            }
        }
    }
    shared
}

/// A mount as a sidecar can have it: only a privileged container may pass its own mounts on to the host
/// (`validateMountPropagation`, `pkg/apis/core/validation/validation.go`).
fn for_sidecar(mount: &JsonObject, is_privileged: bool) -> JsonObject {
    let mut mount = mount.clone();
    if !is_privileged && text(&mount, "mountPropagation") == Some("Bidirectional") {
        mount.insert("mountPropagation".to_owned(), "HostToContainer".into());
    }
    mount
}

/// Appends to a list of a container.
pub(super) fn add(container: &mut JsonObject, list: &str, added: Vec<JsonObject>) {
    if !added.is_empty() {
        let list = list_mut(container, list);
        list.extend(added.into_iter().map(Value::Object));
    }
}

/// The names in `$(…)` of an expression.
fn variable_names(expression: &str) -> impl Iterator<Item = &str> {
    let parts = expression.split("$(").skip(1);
    let names = parts.filter_map(|part| part.split_once(')').map(|(name, _)| name));
    names.filter(|name| is_variable_name(name))
}

fn is_variable_name(name: &str) -> bool {
    // `SubPathExprEnvReg` allows the same (`pkg/control/sidecarcontrol/util.go` of `OpenKruise`).
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    name.bytes().all(is_allowed) && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    // SCS-14
    #[rstest]
    #[case("", &[])]
    #[case("a/b", &[])]
    #[case("$(POD)/x", &["POD"])]
    #[case("a/$(A_1)/$(b.c-d)", &["A_1", "b.c-d"])]
    #[case("$(1A)$()$( A)$(A", &[])]
    #[case("$($(A)", &["A"])]
    fn variables_of_a_path_are_found(#[case] expression: &str, #[case] names: &[&str]) {
        assert_eq!(variable_names(expression).collect::<Vec<_>>(), names);
    }
}
