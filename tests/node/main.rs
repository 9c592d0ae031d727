//! Agent and manager against a real kubelet and containerd: real pods, real probes, real marks. Needs root.
//!
//! One cluster of one node serves all cases; each has a namespace of its own. Agent and manager run inside the bed as
//! ordinary processes with the rights that `leadsman manifests` gives them, and nothing more. Cases that stop one of
//! them run alone.
//!
//! With `LEADSMAN_VM` the node is a virtual machine, and only cases run that are marked `in_vm`: its cgroups are of version 2.

mod bad;
mod budgets;
mod cloneset;
mod examples;
mod explain;
mod files;
mod handlers;
mod jobs;
mod lifecycle;
mod openkruise;
mod sidecarset;
mod trial;
mod unusual_pods;

use std::process::ExitCode;

use anyhow::Result;
use leadsman_testkit::node::is_in_vm;
use leadsman_testkit::{Cluster, NodeBed, Options, progress};
use leadsman_tests::{Case, case};

/// A case's own namespace on the suite's cluster.
type Room = leadsman_tests::Room<Cluster>;

fn cases() -> Vec<Case<Cluster>> {
    vec![
        case!(handlers::all_four_handlers_mark).in_vm(),
        case!(alone handlers::a_flip_is_marked_within_a_period),
        case!(handlers::two_containers_resolve_a_port_name_each_for_itself).in_vm(),
        case!(handlers::two_probes_on_one_container_report_each_for_itself).in_vm(),
        case!(handlers::a_native_sidecar_is_probed).in_vm(),
        case!(handlers::the_output_of_a_command_is_a_label).in_vm(),
        case!(handlers::a_probe_waits_for_the_startup_probe).in_vm(),
        case!(alone files::a_file_marks_its_pod_at_once_and_no_link_leads_out_of_its_volume),
        case!(handlers::transitions_send_events).in_vm(),
        case!(handlers::a_readiness_gate_follows_the_verdict).in_vm(),
        case!(bad::bad_probes_disturb_no_other).in_vm(),
        case!(examples::the_tutorial_shows_what_it_says),
        case!(examples::the_tutorial_of_sidecars_shows_what_it_says),
        case!(examples::a_first_marker_marks),
        case!(examples::the_tour_of_the_demo_shows_what_it_says),
        case!(examples::an_idle_game_server_goes_first),
        case!(examples::clients_follow_the_main_instance),
        case!(examples::the_node_of_a_busy_worker_is_kept),
        case!(alone examples::a_worker_with_work_in_flight_is_not_removed),
        case!(alone bad::a_hung_child_fails_and_delays_nobody),
        case!(alone bad::servers_that_hang_in_one_namespace_delay_nobody),
        case!(bad::an_agent_writes_for_its_own_node_only).in_vm(),
        case!(explain::probes_that_cannot_succeed_are_explained),
        case!(explain::recent_runs_say_how_long_each_took_and_why_it_failed),
        case!(trial::a_marker_runs_its_probes_before_it_is_applied),
        case!(trial::the_page_shows_what_a_trial_prints),
        case!(trial::a_run_that_fails_is_told_as_the_agent_tells_it),
        case!(unusual_pods::a_static_pod_is_probed_and_its_mirror_marked),
        case!(unusual_pods::a_host_network_pod_is_probed_at_the_nodes_address).in_vm(),
        case!(unusual_pods::a_marker_that_sets_a_workloads_label_is_stopped).in_vm(),
        case!(lifecycle::a_restarted_container_is_unmarked_until_its_verdict).in_vm(),
        case!(lifecycle::an_ended_container_fails_with_its_exit_code).in_vm(),
        case!(lifecycle::a_deleted_marker_takes_its_marks_along).in_vm(),
        case!(lifecycle::an_edited_marker_keeps_what_it_may).in_vm(),
        case!(lifecycle::a_pod_relabelled_out_and_in_loses_and_regains_its_marks).in_vm(),
        case!(lifecycle::a_stateful_pod_recreated_under_its_name_gets_no_old_marks).in_vm(),
        case!(alone lifecycle::a_marker_deleted_while_the_manager_is_down_takes_its_marks_along),
        case!(sidecarset::containers_are_injected_and_start_in_the_order_declared).in_vm(),
        case!(sidecarset::a_cold_upgrade_restarts_the_sidecar_once_and_the_app_never).in_vm(),
        case!(sidecarset::a_broken_image_stops_after_max_unavailable_and_heals).in_vm(),
        case!(sidecarset::a_partition_keeps_pods_and_a_pin_holds_new_ones).in_vm(),
        case!(sidecarset::a_probe_of_the_sidecar_stops_a_roll_out_until_the_image_is_good).in_vm(),
        case!(sidecarset::a_native_sidecar_is_upgraded_in_place).in_vm(),
        case!(sidecarset::a_hot_upgrade_hands_a_listening_socket_over_and_no_request_fails).in_vm(),
        case!(alone sidecarset::a_manager_killed_in_mid_roll_out_upgrades_each_pod_once),
        case!(cloneset::an_update_in_place_keeps_each_pod_and_fails_no_request),
        case!(cloneset::with_a_surge_another_pod_comes_before_one_goes).in_vm(),
        case!(cloneset::a_partition_keeps_pods_and_going_back_heals_a_broken_image).in_vm(),
        case!(cloneset::a_named_pod_goes_first_and_then_an_idle_one).in_vm(),
        case!(cloneset::a_hook_holds_a_pod_until_it_may_go).in_vm(),
        case!(cloneset::a_volume_is_the_next_pods_and_goes_with_a_scale_down),
        case!(cloneset::pods_that_a_quota_refuses_come_once_it_is_raised),
        case!(cloneset::a_deleted_namespace_takes_a_set_and_its_pods_along),
        case!(alone cloneset::a_manager_killed_while_it_scales_makes_no_pod_too_many),
        case!(alone cloneset::a_manager_killed_amid_an_update_updates_each_pod_once),
        case!(alone jobs::a_broadcast_runs_once_on_each_node_that_takes_pods),
        case!(alone jobs::a_schedule_whose_jobs_are_removed_runs_each_time_once),
        case!(alone budgets::a_flip_costs_one_write_each),
        case!(alone budgets::restarts_of_agent_and_manager_write_nothing),
        case!(alone budgets::a_rolling_update_of_the_agent_writes_nothing),
        case!(alone lifecycle::after_an_agents_absence_no_stale_verdict_is_marked),
        case!(alone lifecycle::a_status_of_an_agent_without_a_field_manager_is_taken_over),
        case!(alone openkruise::a_first_start_over_openkruises_statuses_changes_no_mark),
        case!(alone lifecycle::a_restarted_kubelet_changes_no_mark),
        case!(alone lifecycle::an_unreachable_runtime_changes_no_mark),
        case!(alone lifecycle::a_stopped_api_server_silences_no_node),
    ]
}

/// All systems run beside each other.
const GATES: &str =
    "SidecarSetGate=true,AdvancedCronJobGate=true,BroadcastJobGate=true,CloneSetGate=true";

/// A node with leadsman on it, manager and agent running.
async fn raise() -> Result<Cluster> {
    let options = Options::default();
    let options = if is_in_vm() { options.in_vm() } else { options };
    let bed = NodeBed::start(options, progress::to_stderr()).await?;
    let logs = bed.folder().join("logs");
    let cluster = Cluster::install(bed, GATES, logs, "info,leadsman=debug").await?;
    cluster.start_manager().await?;
    cluster.start_agent().await?;
    Ok(cluster)
}

fn main() -> ExitCode {
    leadsman_tests::run(cases(), NodeBed::why_not(), raise, Cluster::end)
}
