//! The `--feature-gates` that an `OpenKruise` manager runs with, as its pod shows them.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::Client;
use leadsman_process::ApiServer;
use leadsman_process::list::{ListTarget, Paging};

use super::manager::GateState;
use crate::gates::openkruise_acts_on_markers;

/// The flag.
pub const GATES_FLAG: &str = "--feature-gates";

/// Reads the gates of the pod that holds the Lease. A holder is named after its pod, with a uuid appended
/// (`NewResourceLock` of controller-runtime's `pkg/leaderelection`); in the node's own network, after the node: then
/// all managers are read.
pub(super) async fn read_gates(
    client: &Client,
    namespace: &str,
    holder: &str,
) -> kube::Result<GateState> {
    let pods = || ListTarget::in_namespace::<Pod>(namespace);
    let name = holder.rsplit_once('_').map_or(holder, |(name, _)| name);
    // Anybody may write to a Lease: a holder that is no valid name of a pod is not put into a selector.
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if !name.is_empty() && name.chars().all(is_name) {
        // A list of one: the manager has no right to get pods, and needs none.
        let holder = read_first_page(client, pods().only_named(name)).await?;
        if !holder.is_empty() {
            return Ok(gate_state_of_pods(&holder));
        }
    }
    let target = pods().with_label_selector(super::PODS.to_owned());
    let managers = read_first_page(client, target.with_page_size(100)).await?;
    Ok(gate_state_of_pods(&managers))
}

/// The first of these pods: as many as a page has, and fewer where they are large.
async fn read_first_page(client: &Client, target: ListTarget) -> kube::Result<Vec<Pod>> {
    let server = ApiServer::new(client.clone());
    let mut paging = Paging::default();
    let page = target
        .read_page(&server, None, &mut paging)
        .await
        .map_err(|failure| kube::Error::Service(failure.explain_reason().into()))?;
    Ok(page.objects)
}

/// Off if it is off in all pods.
fn gate_state_of_pods(pods: &[Pod]) -> GateState {
    let specs: Vec<_> = pods.iter().filter_map(|pod| pod.spec.as_ref()).collect();
    if specs.is_empty() {
        return GateState::NoPod;
    }
    let mut gates = specs
        .iter()
        .map(|spec| feature_gates_flag(spec).unwrap_or_default());
    // During a roll-out one pod may still run with the gate on, and may be the holder.
    let on = gates.find(|gates| openkruise_acts_on_markers(gates));
    on.map_or(GateState::Off, GateState::On)
}

/// The values of the flag in the commands and arguments of a pod's containers, in order: each is added to those before
/// (`Set` in `k8s.io/component-base/featuregate/feature_gate.go`).
pub fn feature_gates_flag(pod: &PodSpec) -> Option<String> {
    let arguments = pod.containers.iter().flat_map(|container| {
        let command = container.command.iter().flatten();
        command.chain(container.args.iter().flatten())
    });
    let (mut values, mut is_value) = (Vec::new(), false);
    for argument in arguments {
        // `pflag` takes the value after `=`, or as the next argument.
        if is_value {
            values.push(argument.as_str());
        } else if let Some(rest) = argument.strip_prefix(GATES_FLAG)
            && let Some(rest) = rest.strip_prefix('=')
        {
            values.push(rest);
        }
        is_value = argument == GATES_FLAG;
    }
    (!values.is_empty()).then(|| values.join(","))
}

/// The command that switches the gate off in a release of `OpenKruise`'s chart, and keeps all other gates. With `--set`
/// Helm would end the value at a comma.
pub fn switch_off_command(gates: &str) -> String {
    let others = gates
        .split(',')
        .map(str::trim)
        .filter(|gate| !gate.is_empty() && !gate.starts_with("PodProbeMarkerGate="));
    let gates: Vec<_> = others.chain(["PodProbeMarkerGate=false"]).collect();
    format!(
        "helm upgrade kruise openkruise/kruise --reuse-values --set-literal featureGates='{}'",
        gates.join(",")
    )
}

#[cfg(test)]
mod tests {
    use std::slice;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(containers: &Value) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    }

    // PPM-19
    #[rstest]
    #[case::none(json!([{"name": "m", "args": ["--v=4"]}]), None)]
    #[case::joined(json!([{"name": "m", "args": ["--v=4", "--feature-gates=A=true,B=false"]}]), Some("A=true,B=false"))]
    #[case::apart(json!([{"name": "m", "args": ["--feature-gates", "A=true", "--v=4"]}]), Some("A=true"))]
    #[case::empty(json!([{"name": "m", "args": ["--feature-gates="]}]), Some(""))]
    #[case::in_the_command(json!([{"name": "m", "command": ["/manager", "--feature-gates=A=true"]}]), Some("A=true"))]
    #[case::beside_another_container(json!([{"name": "proxy"}, {"name": "m", "args": ["--feature-gates=A=true"]}]), Some("A=true"))]
    #[case::twice(json!([{"name": "m", "args": ["--feature-gates=A=true", "--feature-gates=B=false"]}]), Some("A=true,B=false"))]
    #[case::another_flag(json!([{"name": "m", "args": ["--feature-gates-file=A"]}]), None)]
    fn the_flag_is_found(#[case] containers: Value, #[case] expected: Option<&str>) {
        let found = feature_gates_flag(&pod(&containers).spec.unwrap());
        assert_eq!(found.as_deref(), expected);
    }

    // PPM-19
    #[test]
    fn the_gate_is_off_only_if_it_is_off_in_every_pod() {
        let off =
            pod(&json!([{"name": "m", "args": ["--feature-gates=PodProbeMarkerGate=false"]}]));
        let silent = pod(&json!([{"name": "m"}]));
        let on = GateState::On(String::new());
        assert_eq!(gate_state_of_pods(&[]), GateState::NoPod);
        assert_eq!(gate_state_of_pods(slice::from_ref(&off)), GateState::Off);
        assert_eq!(gate_state_of_pods(slice::from_ref(&silent)), on);
        assert_eq!(gate_state_of_pods(&[off, silent]), on);
    }

    #[test]
    fn the_command_keeps_the_other_gates() {
        let line = switch_off_command("CloneSetShortHash=true, PodProbeMarkerGate=true");
        assert!(
            line.ends_with("'CloneSetShortHash=true,PodProbeMarkerGate=false'"),
            "{line}"
        );
        assert!(switch_off_command("").ends_with("'PodProbeMarkerGate=false'"));
    }
}
