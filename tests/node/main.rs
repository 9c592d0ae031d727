//! Agent and manager against a real kubelet and containerd: real pods, real probes, real marks. Needs root.
//!
//! One cluster of one node serves all cases; each has a namespace of its own. Agent and manager run inside the bed as
//! ordinary processes with the rights that `leadsman manifests` gives them, and nothing more. Cases that stop one of
//! them run alone.

mod bad;
mod budgets;
mod handlers;
mod lifecycle;
mod openkruise;
mod room;
mod unusual_pods;

use std::process::ExitCode;

use anyhow::Result;
use leadsman_testkit::{Cluster, NodeBed, Options, progress};
use leadsman_tests::{Case, case};

use room::Room;

fn cases() -> Vec<Case<Cluster>> {
    vec![
        case!(handlers::all_four),
        case!(alone handlers::flip_to_mark_within_a_period),
        case!(handlers::two_containers_with_a_probe_each),
        case!(handlers::two_probes_on_one_container),
        case!(handlers::a_native_sidecar),
        case!(handlers::a_startup_probe_gates),
        case!(handlers::events_on_transitions),
        case!(handlers::a_readiness_gate),
        case!(bad::none_disturbs_another),
        case!(alone bad::a_hung_child_fails_and_delays_nobody),
        case!(bad::an_agent_writes_for_its_own_node_only),
        case!(unusual_pods::a_static_pod),
        case!(unusual_pods::a_pod_in_the_nodes_network),
        case!(unusual_pods::a_workload_that_selects_by_what_a_marker_sets),
        case!(lifecycle::a_restarted_container),
        case!(lifecycle::an_ended_container),
        case!(lifecycle::a_deleted_marker),
        case!(lifecycle::an_edited_marker),
        case!(lifecycle::a_pod_relabelled_out_and_in),
        case!(lifecycle::a_stateful_pod_recreated_under_its_name),
        case!(alone lifecycle::a_marker_deleted_while_the_manager_is_down),
        case!(alone budgets::changes),
        case!(alone budgets::restarts),
        case!(alone budgets::a_rolling_update_of_the_agent),
        case!(alone lifecycle::nothing_stale_after_an_agent_was_down),
        case!(alone lifecycle::a_status_of_an_agent_without_a_field_manager_is_taken_over),
        case!(alone openkruise::a_first_start_over_its_statuses),
        case!(alone lifecycle::a_restarted_kubelet_changes_no_mark),
        case!(alone lifecycle::an_unreachable_runtime_changes_no_mark),
        case!(alone lifecycle::a_stopped_api_server_silences_no_node),
    ]
}

/// A node with leadsman on it, manager and agent running.
async fn raise() -> Result<Cluster> {
    let bed = NodeBed::start(Options::default(), progress::to_stderr()).await?;
    let logs = bed.folder().join("logs");
    let cluster = Cluster::install(bed, logs, "info,leadsman=debug").await?;
    cluster.start_manager().await?;
    cluster.start_agent().await?;
    Ok(cluster)
}

fn main() -> ExitCode {
    let skip = NodeBed::why_not().map(ToOwned::to_owned);
    leadsman_tests::run(
        cases(),
        skip,
        async |_| raise().await,
        async |cluster| {
            if let Err(error) = cluster.end().await {
                eprintln!("{error:#}");
            }
        },
    )
}
