//! leadsman as its users have it: chart and image on a cluster of two real nodes, managers and agents as pods. Needs root.
//!
//! One cluster serves all cases, and a release is the whole cluster's, so they run one after another. Each begins with
//! the values that it names, whatever the one before left, and has a namespace of its own with pods that are marked.

mod agents;
mod clocks;
mod failures;
mod managers;
mod metrics;
mod nodes;
mod openkruise;
mod outages;
mod pictures;
mod recent_runs;
mod release;
mod room;
mod shown;
mod sidecarset;
mod skew;
mod upgrade;

use std::process::ExitCode;

use anyhow::Result;
use leadsman_testkit::{NodeBed, Options, Release, cache, leadsman, progress};
use leadsman_tests::{Case, case};

use room::{Room, install, marked_pods};

fn cases() -> Vec<Case<Release>> {
    vec![
        case!(alone release::the_manuals_marker_marks_pods_of_both_nodes),
        case!(alone release::changed_values_and_a_rollback_move_no_mark),
        case!(alone release::a_gate_that_is_off_stops_marks_until_it_is_on),
        case!(alone release::an_uninstall_keeps_marks_and_the_next_install_goes_on),
        case!(alone agents::a_roll_out_moves_no_mark_and_writes_no_status),
        case!(alone recent_runs::recent_runs_of_an_agent_in_its_pod_are_told),
        case!(alone recent_runs::who_may_not_run_commands_in_agents_pods_is_told_which_right_is_missing),
        case!(alone managers::a_killed_leader_is_succeeded_when_its_lease_ends),
        case!(alone managers::a_deleted_leader_is_succeeded_at_once),
        case!(alone managers::a_leader_that_is_cut_off_is_succeeded_and_writes_no_more),
        case!(alone managers::a_rolling_update_under_flips_loses_and_repeats_none),
        case!(alone metrics::promtool_finds_nothing_wrong_with_metrics_and_rules),
        case!(alone metrics::every_line_of_a_json_log_has_fields_of_the_reference),
        case!(alone metrics::every_query_of_alerts_and_dashboards_has_data),
        // After the case of an uninstall: the CRD of SidecarSets stays.
        case!(alone sidecarset::a_gate_of_sets_switched_off_in_a_roll_out_leaves_pods_alone_until_it_is_on),
        case!(alone nodes::a_pod_moves_from_a_node_that_dies_and_is_marked_there),
        case!(alone nodes::a_set_replaces_the_pods_of_a_node_that_dies_once_and_rests_when_it_is_back),
        case!(alone agents::mounts_of_other_pods_do_not_pile_up_in_an_agent),
        case!(alone clocks::clocks_a_minute_apart_move_no_mark_and_no_lease),
        case!(alone failures::a_missing_runtime_socket_stops_the_roll_out_until_it_is_there),
        case!(alone failures::without_crds_all_wait_for_them),
        case!(alone failures::a_missing_right_is_named_until_it_is_granted),
        case!(alone failures::a_roll_out_of_what_cannot_run_stops_at_its_first_pods),
        case!(alone outages::without_a_webhook_pods_are_created_at_once_and_probed_later),
        case!(alone outages::a_restarted_api_server_loses_and_repeats_no_write),
        case!(alone outages::a_restarted_etcd_loses_and_repeats_no_write),
        case!(alone upgrade::older_crds_are_upgraded_with_objects_in_place),
        case!(alone openkruise::an_install_is_refused_until_openkruises_gate_is_off),
    ]
}

/// Those that need an earlier commit.
fn skewed() -> Vec<Case<Release>> {
    vec![
        case!(alone skew::upgrades_and_rollbacks_under_flips_lose_and_repeat_none),
        case!(alone skew::without_a_flip_an_upgrade_and_a_rollback_write_nothing),
        case!(alone skew::new_managers_work_with_earlier_agents),
        case!(alone skew::earlier_managers_work_with_new_agents),
    ]
}

/// Two nodes with leadsman's image and nothing of it installed. A node that is silent is noticed in 20 s, and its pods
/// are replaced 5 s later; by default that takes six minutes.
async fn raise() -> Result<Release> {
    let options = Options::default()
        .nodes(2)
        .argument("kube-controller-manager", "--node-monitor-grace-period=20s")
        .argument("kube-apiserver", "--default-not-ready-toleration-seconds=5")
        .argument(
            "kube-apiserver",
            "--default-unreachable-toleration-seconds=5",
        );
    Release::prepare(NodeBed::start(options, progress::to_stderr()).await?).await
}

async fn end(release: Release) -> Result<()> {
    release
        .save_logs(&cache::folder()?.join("install-logs"))
        .await?;
    release.end().await
}

fn main() -> ExitCode {
    let mut cases = cases();
    // An earlier commit that cannot be read is an error of the bed's.
    if !matches!(leadsman::earlier(), Ok(None)) {
        cases.extend(skewed());
    }
    leadsman_tests::run(cases, NodeBed::why_not(), raise, end)
}
