//! The manager against a real API server and etcd: no kubelet, no root. Nodes and pods are objects that nobody runs;
//! the suite plays kubelet and agent, and reads what the manager makes of it.
//!
//! Cases run side by side, each in a namespace and on a node of its own; one manager serves them all. Those that
//! stop it run alone; those that count every request have a control plane and a manager of their own.

mod admission;
mod api_model;
mod broadcast;
mod budgets;
mod cloneset;
mod completion;
mod deletion;
mod doctor;
mod documents;
mod entries;
mod explain;
mod fake_runtime;
mod flows;
mod inject;
mod jobs;
mod leadership;
mod lifecycle;
mod marks;
mod migration;
mod openkruise;
mod outages;
mod outputs;
mod ownership;
mod recorded;
mod restore;
mod rights;
mod serverless;
mod sidecarset;
mod sidecarset_flows;
mod sidecarset_review;
mod sidecarset_schema;
mod sidecarset_scope;
mod sidecarset_webhook;
mod sizes;
mod stage;
mod status;
mod stored_bytes;
mod trial;
mod watch;
mod webhook;
mod webhook_readiness;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use kube::api::ListParams;
use kube::{Api, Client};
use leadsman_api::{SIDECAR_SET_CRD, SidecarSet};
use leadsman_testkit::ControlPlane;
use leadsman_testkit::leadsman;
use leadsman_testkit::leadsman::MANAGER as USER;
use leadsman_tests::{Case, Process, case, wait_for_answer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::Mutex;

/// The flag that switches `SidecarSet` on.
const SIDECAR_SET_GATE: &str = "--feature-gates=SidecarSetGate=true";

/// A control plane with leadsman's manifests and one manager.
struct Installation {
    plane: ControlPlane,
    client: Client,
    kubeconfig: PathBuf,
    manager: Mutex<Option<Process>>,
    start: leadsman_testkit::audit::Mark,
}

impl Installation {
    async fn raise() -> Result<Self> {
        let installation = Self::raise_idle().await?;
        installation.start_manager().await?;
        Ok(installation)
    }

    /// Without a manager.
    async fn raise_idle() -> Result<Self> {
        let plane = leadsman::control_plane().await?;
        let start = plane.audit_mark()?;
        let client = plane.client().await?;
        let kubeconfig = plane.kubeconfig_for(USER, &["system:serviceaccounts"])?;
        Ok(Self {
            plane,
            client,
            kubeconfig,
            manager: Mutex::new(None),
            start,
        })
    }

    /// Gives the manager the rights on webhooks, which only a feature that has one asks for.
    async fn grant_webhooks(&self) -> Result<()> {
        let gate = "--feature-gates=EnablePodProbeMarkerOnServerless=true";
        self.apply_manifests(&[gate, "--only=access"], &[]).await
    }

    /// Installs the CRD of `SidecarSet`, which the manifests leave out without its gate, and waits until it is served.
    async fn install_sidecar_set_crd(&self) -> Result<()> {
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        let crd = SIDECAR_SET_CRD.as_bytes();
        self.plane.kubectl_with(&apply, crd).await?;
        let sets: Api<SidecarSet> = Api::all(self.client.clone());
        wait_for_answer("SidecarSets are served", || async {
            let list = sets.list(&ListParams::default().limit(1)).await;
            Ok(list.ok().map(drop))
        })
        .await
    }

    /// The same, and gives the manager the rights that come with the gate.
    async fn allow_sidecar_sets(&self) -> Result<()> {
        self.install_sidecar_set_crd().await?;
        let access = [SIDECAR_SET_GATE, "--only=access"];
        self.apply_manifests(&access, &["--force-conflicts"]).await
    }

    /// A kubeconfig of the account that the chart's hook runs `leadsman preflight` as, with its rights.
    async fn preflight_account(&self) -> Result<String> {
        const ACCOUNT: &str = "system:serviceaccount:leadsman-system:leadsman-preflight";
        self.apply_manifests(&["--only=preflight"], &[]).await?;
        let kubeconfig = self
            .plane
            .kubeconfig_for(ACCOUNT, &["system:serviceaccounts"])?;
        Ok(kubeconfig.display().to_string())
    }

    /// `leadsman manifests … | kubectl apply --server-side …`
    async fn apply_manifests(&self, arguments: &[&str], flags: &[&str]) -> Result<()> {
        let manifests = Command::new(leadsman::program()?)
            .arg("manifests")
            .args(arguments)
            .output()
            .await?;
        anyhow::ensure!(
            manifests.status.success(),
            "leadsman manifests {arguments:?}"
        );
        let apply = [&["apply", "--server-side", "-f", "-"], flags].concat();
        self.plane.kubectl_with(&apply, &manifests.stdout).await?;
        Ok(())
    }

    async fn start_manager(&self) -> Result<()> {
        self.start_manager_with(&[]).await
    }

    /// With these flags beside the usual ones.
    async fn start_manager_with(&self, flags: &[&str]) -> Result<()> {
        let mut command = leadsman::manager(&self.kubeconfig, "127.0.0.1:0")?;
        command
            .args(flags)
            .env("LEADSMAN_LOG", "info,leadsman=debug");
        let log = self.log_file();
        let mut manager = self.manager.lock().await;
        anyhow::ensure!(manager.is_none(), "a manager runs already");
        let since = self.log_length();
        *manager = Some(Process::start(command, &log)?);
        // Before that line a SIGTERM ends it as it would any program.
        self.wait_for_log(since, "serving /metrics").await
    }

    fn log_file(&self) -> PathBuf {
        self.plane.folder().join("logs/leadsman-manager.log")
    }

    /// The managers' log as it is now, for [`Installation::wait_for_log`].
    fn log_length(&self) -> usize {
        std::fs::read(self.log_file()).map_or(0, |log| log.len())
    }

    /// What the managers have logged since then.
    fn log_since(&self, since: usize) -> Result<String> {
        let log = std::fs::read(self.log_file())?;
        Ok(String::from_utf8_lossy(log.get(since..).unwrap_or_default()).into_owned())
    }

    /// Waits until the managers have logged this, since then.
    async fn wait_for_log(&self, since: usize, text: &str) -> Result<()> {
        wait_for_answer(text, || async {
            Ok(self.log_since(since)?.contains(text).then_some(()))
        })
        .await
    }

    async fn stop_manager(&self) -> Result<()> {
        let manager = self
            .manager
            .lock()
            .await
            .take()
            .context("no manager runs")?;
        manager.terminate().await
    }

    /// What the manager that was started last answers at this path.
    async fn get(&self, path: &str) -> Result<String> {
        get(&self.log_file(), path).await
    }

    async fn restart_apiserver(&self) -> Result<()> {
        self.plane.stop_apiserver().await?;
        self.plane.start_apiserver().await
    }

    /// How often the manager has sent this request, answered well or not.
    fn count_requests(&self, verb: &str, resource: &str, name: &str) -> Result<usize> {
        let requests = self.plane.audit(self.start)?.into_iter();
        let alike = requests.filter(|r| {
            r.user == USER && r.verb == verb && r.resource == resource && r.name == name
        });
        Ok(alike.count())
    }

    async fn end(self) {
        if let Some(manager) = self.manager.lock().await.take()
            && let Err(error) = manager.terminate().await
        {
            eprintln!("the manager did not end well: {error:#}");
        }
        if let Err(error) = self.plane.end().await {
            eprintln!("the control plane did not end well: {error:#}");
        }
    }
}

/// The address of `/metrics`, `/healthz` and `/readyz` in a log: of the process that was started last, if it serves them yet.
fn serving_address(log: &Path) -> Result<Option<String>> {
    let log = std::fs::read_to_string(log)?;
    let mut lines = log.lines();
    let Some(line) = lines.rfind(|line| line.contains("serving /metrics")) else {
        return Ok(None);
    };
    let address = line.split_once("address=").context("no address")?.1;
    let end = address.find([',', ' ']).unwrap_or(address.len());
    Ok(Some(address[..end].to_owned()))
}

/// What the process with this log answers at this path.
async fn get(log: &Path, path: &str) -> Result<String> {
    let address = serving_address(log)?.context("no address yet")?;
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: leadsman\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Cases with a control plane of their own, the longest first.
fn apart() -> Vec<Case<Installation>> {
    vec![
        case!(apart rights::all_suffice_and_each_is_needed),
        case!(apart cloneset::one_percent_of_lost_replies_makes_no_pod_too_many_in_twenty_rounds),
        case!(apart flows::generated_flows_end_as_the_model_says),
        case!(apart api_model::generated_requests_get_the_answers_of_the_real_api_server),
        case!(apart sidecarset_flows::generated_flows_end_as_the_model_says),
        case!(apart outages::after_64_seconds_without_an_api_server_marks_are_right_at_once),
        case!(apart restore::after_etcd_was_restored_pods_get_the_sets_that_are_stored),
        case!(apart sizes::large_objects_of_one_namespace_keep_no_manager_from_marking),
        case!(apart outages::after_25_seconds_without_an_api_server_marks_are_right_at_once),
        case!(apart webhook::certificates_rotate_while_pods_are_created),
        case!(apart sidecarset_webhook::certificates_rotate_while_pods_of_sets_are_created),
        case!(apart webhook_readiness::trouble_of_another_feature_takes_no_replica_from_the_webhook),
        case!(apart webhook::an_edited_or_deleted_configuration_is_repaired),
        case!(apart webhook::without_a_server_pods_are_created_at_once),
        case!(apart sidecarset_webhook::a_new_pod_is_what_openkruise_made_of_it),
        case!(apart sidecarset_webhook::sets_of_a_pod_stand_in_order_and_other_pods_cost_no_call),
        case!(apart sidecarset_webhook::resources_of_a_sidecar_follow_from_those_of_the_pod),
        case!(apart sidecarset_webhook::a_set_with_which_a_pod_would_be_invalid_is_left_out),
        case!(apart sidecarset_webhook::a_pod_right_after_its_namespace_gets_its_sidecars),
        case!(apart sidecarset_webhook::once_in_force_a_set_is_injected_by_a_replica_that_does_not_lead),
        case!(apart sidecarset_webhook::without_a_manager_pods_are_refused_by_sets_that_ask_and_else_found_later),
        case!(apart sidecarset_webhook::with_a_standing_rule_a_set_is_injected_once_the_manager_has_seen_it),
        case!(apart sidecarset_webhook::an_invalid_set_that_asks_to_fail_refuses_its_pods),
        case!(apart sidecarset_scope::the_longest_conditions_are_accepted_and_cost_no_call),
        case!(apart sidecarset_review::what_no_schema_can_say_is_refused_with_its_field),
        case!(apart sidecarset_review::what_was_wrong_before_keeps_nobody_from_another_edit),
        case!(apart serverless::a_creation_waits_little_for_the_webhook),
        case!(apart serverless::a_pod_is_created_with_its_probes),
        case!(apart serverless::without_a_manager_pods_are_created_at_once),
        case!(apart serverless::marks_follow_the_provider_and_the_markers),
        case!(apart serverless::a_deleted_marker_takes_its_annotations_along),
        case!(apart serverless::a_start_with_the_webhook_reads_each_kind_once),
        case!(apart serverless::a_sandbox_is_paused_when_it_says_that_it_is_idle),
        case!(apart budgets::a_start_reads_each_kind_once),
        case!(apart budgets::a_verdict_costs_one_write_of_its_pod),
        case!(apart budgets::an_edit_writes_only_what_it_changes),
        case!(apart sidecarset::a_manager_killed_in_mid_roll_out_restarts_no_container_twice),
        case!(apart sidecarset::pods_that_openkruise_injected_are_counted_and_upgraded),
        case!(apart sidecarset::a_roll_out_keeps_to_its_budget_and_leaves_its_partition),
        case!(apart sidecarset::an_upgrade_is_recorded_on_the_pod),
        case!(apart sidecarset::a_paused_roll_out_goes_no_further),
        case!(apart sidecarset::a_broken_image_stops_by_itself_and_another_one_heals),
        case!(apart sidecarset::a_selector_restricts_the_roll_out),
        case!(apart sidecarset::a_pod_that_goes_in_mid_upgrade_frees_its_place),
        case!(apart sidecarset::a_native_sidecar_is_upgraded_in_place),
        case!(apart sidecarset::a_pod_that_a_policy_protects_stops_no_other),
        case!(apart sidecarset::a_pod_whose_annotations_are_full_stops_no_other),
        case!(apart sidecarset::counts_follow_pods_and_namespaces),
        case!(apart sidecarset::a_pod_that_cannot_be_upgraded_says_so_until_it_can),
        case!(apart sidecarset::an_event_of_the_set_names_pod_and_field),
        case!(apart sidecarset::a_pod_without_a_variable_that_is_transferred_is_counted_and_named),
        case!(apart sidecarset::a_deleted_set_leaves_containers_and_takes_its_key_along),
        case!(apart sidecarset::a_set_that_is_wrong_says_why),
        case!(apart sidecarset::revisions_are_those_that_openkruise_recorded),
        case!(apart sidecarset::the_label_of_a_custom_version_follows_the_set),
        case!(apart sidecarset::the_oldest_revisions_go_but_for_those_in_use),
        case!(apart explain::causes_are_named_on_a_live_cluster),
        case!(apart inject::a_pod_is_what_inject_said_and_drift_says_what_it_lacks),
        case!(apart inject::causes_about_sidecars_are_named_on_a_live_cluster),
        case!(apart inject::sets_of_files_take_no_rights),
        case!(apart documents::commands_of_the_pages_print_what_they_show),
        case!(apart doctor::what_is_broken_is_found),
        case!(apart explain::many_pods_cost_few_requests),
        case!(apart leadership::a_killed_leader_is_succeeded_within_the_lease),
        case!(apart leadership::a_leader_that_wakes_after_its_lease_writes_nothing),
        case!(apart leadership::a_leader_that_is_cut_off_writes_nothing_afterwards),
        case!(apart leadership::after_an_outage_one_manager_writes_all),
        case!(apart leadership::a_leader_that_ends_hands_over_at_once),
        case!(apart broadcast::a_job_over_all_nodes_runs_to_its_end),
        case!(apart cloneset::a_set_is_made_scaled_and_updated),
        case!(apart cloneset::lost_replies_make_no_pod_too_many),
        case!(apart cloneset::what_openkruise_left_is_taken_over),
        case!(apart cloneset::what_is_left_reads_as_what_openkruise_left),
        case!(apart cloneset::idle_pods_go_first_and_a_roll_out_is_steered),
        case!(apart deletion::clients_of_openkruise_find_the_finalizer),
        case!(apart jobs::a_schedule_runs_its_jobs_once_across_a_restart),
        case!(apart jobs::the_manager_creates_and_deletes_what_its_jobs_control),
        case!(apart stored_bytes::what_a_pod_prints_keeps_no_status_from_being_written),
    ]
}

/// Cases that share one control plane and its manager, at the same time.
fn together() -> Vec<Case<Installation>> {
    vec![
        case!(rights::the_table_is_complete_and_documented),
        case!(rights::an_agents_token_reaches_one_node),
        case!(rights::the_manager_changes_of_pods_what_sets_ask_for),
        case!(rights::the_manager_writes_of_its_own_objects_what_is_its_own),
        case!(rights::people_have_rights_on_markers_by_their_roles),
        case!(apart openkruise::preflight_prints_what_the_page_on_migration_shows),
        case!(documents::the_api_server_takes_every_manifest_of_the_pages),
        case!(documents::every_other_block_is_named),
        case!(documents::another_output_is_noticed),
        case!(budgets::what_no_row_lists_is_too_many),
        case!(budgets::a_watch_that_goes_on_costs_nothing),
        case!(leadership::a_link_counts_what_it_passes_on),
        case!(admission::the_api_server_and_the_parser_agree),
        case!(admission::generated_markers_get_one_verdict_from_both),
        case!(admission::all_errors_come_in_one_answer),
        case!(admission::what_openkruise_accepts_is_accepted),
        case!(admission::an_absent_list_of_the_selector_is_an_empty_one),
        case!(sidecarset_schema::generated_sets_get_one_verdict_from_both),
        case!(sidecarset_schema::what_the_api_server_fills_in_changes_no_hash),
        case!(sidecarset_schema::either_version_keeps_what_the_other_has),
        case!(sidecarset_schema::what_a_set_must_keep_is_kept),
        case!(sidecarset_schema::all_errors_of_a_set_come_in_one_answer),
        case!(broadcast::the_api_server_takes_and_refuses_what_was_recorded),
        case!(cloneset::the_api_server_takes_and_refuses_what_was_recorded),
        case!(cloneset::either_version_keeps_what_the_other_one_has_written),
        case!(entries::an_entry_has_a_resolved_port_and_defaults),
        case!(entries::a_node_without_entries_has_its_object),
        case!(entries::a_virtual_node_has_no_object),
        case!(entries::a_node_that_comes_late_gets_its_entries),
        case!(entries::names_that_contain_one_another_are_told_apart),
        case!(entries::a_pod_relabelled_in_and_out_gains_and_loses_its_entries),
        case!(entries::match_expressions_select_pods),
        case!(entries::a_changed_address_is_written),
        case!(entries::an_edited_marker_changes_its_entries),
        case!(entries::sidecars_are_targets_and_init_containers_are_not),
        case!(entries::an_entry_waits_for_the_startup_probe),
        case!(entries::ended_pods_are_left_alone),
        case!(entries::a_pod_recreated_under_its_name_gets_no_old_marks),
        case!(stored_bytes::what_a_command_takes_when_it_is_stored_keeps_no_neighbour_from_being_probed),
        case!(outputs::a_service_follows_the_role_in_the_output),
        case!(outputs::a_file_reaches_the_agent_with_the_timing_of_its_probe),
        case!(marks::verdicts_mark_and_unknown_takes_away),
        case!(marks::a_message_alone_keeps_the_transition_time),
        case!(marks::one_policy_alone_marks_one_state),
        case!(marks::without_a_verdict_marks_stay),
        case!(marks::a_verdict_about_something_else_marks_nothing),
        case!(marks::two_probes_of_one_container_mark_each_for_itself),
        case!(marks::an_edited_policy_changes_its_marks),
        case!(marks::a_deleted_marker_takes_everything_along),
        case!(marks::the_older_of_two_markers_wins),
        case!(marks::a_mark_taken_away_comes_back),
        case!(marks::marks_of_others_stay),
        case!(ownership::a_template_with_the_same_value_is_overruled),
        case!(ownership::a_template_with_another_value_is_overruled),
        case!(ownership::a_co_owned_label_outlives_the_marker),
        case!(ownership::a_label_by_kubectl_follows_the_verdict),
        case!(ownership::a_label_by_a_put_of_the_status_follows_the_verdict),
        case!(ownership::a_mark_edited_by_hand_is_restored),
        case!(ownership::ownership_is_restored_after_managed_fields_are_cleared),
        case!(ownership::what_nobody_owns_stays_when_our_last_key_goes),
        case!(deletion::a_marker_goes_after_its_entries_and_marks),
        case!(deletion::finalizers_of_others_stay),
        case!(deletion::a_namespace_with_a_marker_can_be_deleted),
        case!(status::counts_follow_the_verdicts),
        case!(status::observed_generation_moves_when_the_entries_are_written),
        case!(status::pending_is_never_silent),
        case!(status::an_agent_is_silent_when_it_has_not_been_ready_for_long),
        case!(status::of_markers_that_feed_each_other_the_younger_is_stopped),
        case!(status::an_unknown_container_is_named),
        case!(status::an_unresolvable_port_is_named),
        case!(status::bad_markers_are_refused),
        case!(status::the_selector_is_immutable),
        case!(explain::answers_come_in_the_forms_of_kubectl),
        case!(explain::who_may_read_pods_and_markers_alone_gets_an_answer),
        case!(watch::a_history_goes_on_with_each_change_of_its_pod),
        case!(watch::a_status_goes_on_with_each_marker_that_changes),
        case!(completion::bash_completes_what_the_page_says),
        case!(completion::zsh_completes_what_the_page_says),
        case!(completion::fish_completes_what_the_page_says),
        case!(trial::a_marker_is_checked_before_it_is_applied),
        case!(trial::a_marker_finds_its_pods_before_it_is_applied),
        case!(trial::who_may_not_run_probes_is_told_the_right),
        case!(lifecycle::the_api_server_accepts_the_whole_install),
        case!(lifecycle::leftovers_without_a_marker_are_removed),
        case!(lifecycle::an_object_that_does_not_decode_disturbs_no_other),
    ]
}

/// Cases that have the shared control plane for themselves, one after the other.
fn alone() -> Vec<Case<Installation>> {
    vec![
        case!(alone explain::a_manager_that_is_down_is_named),
        case!(alone status::a_stored_invalid_marker_is_not_acted_on),
        case!(alone lifecycle::a_marker_deleted_while_the_manager_is_down_takes_its_marks_along),
        case!(alone lifecycle::a_verdict_reported_while_the_manager_is_down_marks_at_its_start),
        case!(alone lifecycle::pods_are_created_and_bad_markers_refused_while_the_manager_is_down),
        case!(alone lifecycle::crds_that_drop_our_fields_are_enough_to_mark),
        case!(alone lifecycle::a_crd_replaced_under_a_running_manager_changes_no_mark),
        case!(alone lifecycle::a_manager_waits_for_crds_that_come_late),
        case!(alone lifecycle::a_missing_right_is_named_and_waited_for),
        case!(alone outputs::one_pod_at_a_time_is_the_primary),
        case!(alone outputs::an_idle_server_may_go_when_it_has_been_idle_across_a_restart),
        case!(alone lifecycle::an_outage_of_the_api_server_changes_no_pod),
        case!(alone openkruise::nothing_is_written_before_openkruise_has_stopped),
        case!(alone openkruise::a_lease_that_a_tenant_makes_stops_nobody),
        case!(alone openkruise::preflight_says_what_is_in_the_way),
        case!(alone migration::openkruise_goes_on_with_what_is_there),
        case!(alone migration::what_openkruise_left_is_taken_over),
        case!(alone sidecarset_schema::the_crd_goes_over_that_of_openkruise_and_back),
        case!(alone openkruise::a_gate_that_is_off_leaves_everything_alone),
        case!(alone lifecycle::a_marker_that_does_not_decode_at_the_start_keeps_its_marks),
    ]
}

fn main() -> ExitCode {
    let cases = [apart(), together(), alone()]
        .into_iter()
        .flatten()
        .collect();
    leadsman_tests::run(cases, None, Installation::raise, async |installation| {
        installation.end().await;
        Ok(())
    })
}
