//! The manager against a real API server and etcd: no kubelet, no root. Nodes and pods are objects that nobody runs;
//! the suite plays kubelet and agent, and reads what the manager makes of it.
//!
//! Cases run side by side, each in a namespace and on a node of its own; one manager serves them all. Those that
//! stop it run alone; those that count every request have a control plane and a manager of their own.

mod admission;
mod budgets;
mod deletion;
mod entries;
mod flows;
mod leadership;
mod lifecycle;
mod marks;
mod migration;
mod openkruise;
mod outages;
mod ownership;
mod serverless;
mod stage;
mod status;
mod webhook;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use leadsman_testkit::leadsman;
use leadsman_testkit::leadsman::MANAGER as USER;
use leadsman_testkit::{ControlPlane, Options};
use leadsman_tests::{Case, Process, case, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::Mutex;

/// How long a manager may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);

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
        let plane =
            ControlPlane::start(Options::default(), leadsman_testkit::progress::to_stderr())
                .await?;
        let start = plane.audit_mark()?;
        let client = plane.client().await?;
        leadsman::install(&plane).await?;
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
        let manifests = Command::new(leadsman::program()?)
            .args(["manifests", gate])
            .output()
            .await?;
        anyhow::ensure!(manifests.status.success(), "leadsman manifests {gate}");
        let apply = ["apply", "--server-side", "-f", "-"];
        self.plane.kubectl_with(&apply, &manifests.stdout).await?;
        Ok(())
    }

    async fn start_manager(&self) -> Result<()> {
        self.start_manager_with(&[]).await
    }

    /// With these flags beside the usual ones.
    async fn start_manager_with(&self, flags: &[&str]) -> Result<()> {
        let mut command = Command::new(leadsman::program()?);
        command
            .args([
                "manager",
                "--metrics-bind-address",
                "127.0.0.1:0",
                "--former-field-managers",
                ownership::FORMER,
                "--kubeconfig",
            ])
            .arg(&self.kubeconfig)
            .args(flags)
            .env("LEADSMAN_LOG", "info,leadsman=debug");
        let log = self.log_file();
        let mut manager = self.manager.lock().await;
        anyhow::ensure!(manager.is_none(), "a manager runs already");
        let since = self.log_length();
        *manager = Some(Process::start(command, &log)?);
        // Before that line a SIGTERM ends it as it would any program.
        self.logs(since, "serving /metrics").await
    }

    fn log_file(&self) -> PathBuf {
        self.plane.folder().join("logs/leadsman-manager.log")
    }

    /// The managers' log as it is now, for [`Installation::logs`].
    fn log_length(&self) -> usize {
        std::fs::read(self.log_file()).map_or(0, |log| log.len())
    }

    /// What the managers have logged since then.
    fn log_since(&self, since: usize) -> Result<String> {
        let log = std::fs::read(self.log_file())?;
        Ok(String::from_utf8_lossy(log.get(since..).unwrap_or_default()).into_owned())
    }

    /// Waits until the managers have logged this, since then.
    async fn logs(&self, since: usize, text: &str) -> Result<()> {
        until(text, || async {
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
        manager.terminate(GRACE).await
    }

    /// What the manager that was started last answers at this path.
    async fn ask(&self, path: &str) -> Result<String> {
        let log = std::fs::read_to_string(self.log_file())?;
        let line = log.lines().rfind(|line| line.contains("serving /metrics"));
        let address = line
            .and_then(|line| line.split_once("address="))
            .context("no address yet")?
            .1
            .split([',', ' '])
            .next()
            .context("no address")?;
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: manager\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    async fn restart_apiserver(&self) -> Result<()> {
        self.plane.stop_apiserver().await?;
        self.plane.start_apiserver().await
    }

    /// How often the manager has sent this request, answered well or not.
    fn sent(&self, verb: &str, resource: &str, name: &str) -> Result<usize> {
        let requests = self.plane.audit(self.start)?.into_iter();
        let alike = requests.filter(|r| {
            r.user == USER && r.verb == verb && r.resource == resource && r.name == name
        });
        Ok(alike.count())
    }

    async fn end(self) {
        if let Some(manager) = self.manager.lock().await.take()
            && let Err(error) = manager.terminate(GRACE).await
        {
            eprintln!("the manager did not end well: {error:#}");
        }
        if let Err(error) = self.plane.end().await {
            eprintln!("the control plane did not end well: {error:#}");
        }
    }
}

fn cases() -> Vec<Case<Installation>> {
    vec![
        // The longest first.
        case!(apart flows::generated_flows_end_as_the_model_says),
        case!(apart outages::of_64_seconds),
        case!(apart outages::of_25_seconds),
        case!(apart webhook::certificates_rotate_while_pods_are_created),
        case!(apart webhook::an_edited_or_deleted_configuration_is_repaired),
        case!(apart webhook::without_a_server_pods_are_created_at_once),
        case!(apart serverless::a_creation_waits_little_for_the_webhook),
        case!(apart serverless::a_pod_is_created_with_its_probes),
        case!(apart serverless::without_a_manager_pods_are_created_at_once),
        case!(apart serverless::starts),
        case!(apart budgets::starts),
        case!(apart budgets::verdicts),
        case!(apart budgets::edits),
        case!(apart leadership::the_leader_is_killed),
        case!(apart leadership::the_leader_is_stopped_past_its_lease),
        case!(apart leadership::the_leader_is_cut_off),
        case!(apart leadership::nobody_reaches_the_api_server),
        case!(apart leadership::the_leader_ends),
        case!(apart deletion::clients_of_openkruise_find_the_finalizer),
        case!(budgets::what_no_row_lists_is_too_many),
        case!(admission::the_api_server_and_the_parser_agree),
        case!(admission::generated_markers_get_one_verdict_from_both),
        case!(admission::all_errors_come_in_one_answer),
        case!(admission::what_openkruise_accepts_is_accepted),
        case!(admission::an_absent_list_of_the_selector_is_an_empty_one),
        case!(entries::port_resolved_and_defaults_filled),
        case!(entries::a_node_has_its_object_also_without_entries),
        case!(entries::a_virtual_node_has_none),
        case!(entries::a_node_that_comes_late),
        case!(entries::names_that_contain_one_another),
        case!(entries::a_pod_relabelled_in_and_out),
        case!(entries::match_expressions),
        case!(entries::a_changed_address),
        case!(entries::an_edited_marker),
        case!(entries::sidecars_are_targets_and_init_containers_are_not),
        case!(entries::startup_gate),
        case!(entries::ended_pods_are_left_alone),
        case!(entries::recreated_under_its_name),
        case!(marks::verdicts_mark_and_unknown_takes_away),
        case!(marks::a_message_alone_keeps_the_transition_time),
        case!(marks::one_policy_alone),
        case!(marks::absent_verdicts_hold),
        case!(marks::a_verdict_about_something_else),
        case!(marks::two_probes_of_one_container),
        case!(marks::an_edited_policy),
        case!(marks::a_deleted_marker_takes_everything_along),
        case!(marks::older_marker_wins),
        case!(marks::a_mark_taken_away_comes_back),
        case!(marks::others_are_left_alone),
        case!(ownership::a_template_with_the_same_value),
        case!(ownership::a_template_with_another_value),
        case!(ownership::a_co_owned_label_outlives_the_marker),
        case!(ownership::kubectl_label),
        case!(ownership::a_put_of_the_status),
        case!(ownership::edited_by_hand),
        case!(ownership::managed_fields_cleared),
        case!(ownership::a_renamed_field_manager),
        case!(deletion::a_marker_goes_after_its_entries_and_marks),
        case!(deletion::finalizers_of_others_stay),
        case!(deletion::a_namespace_goes),
        case!(status::counts_follow_the_verdicts),
        case!(status::observed_generation_moves),
        case!(status::pending_is_never_silent),
        case!(status::an_agent_is_silent_when_it_has_not_been_ready_for_long),
        case!(status::markers_that_feed_each_other),
        case!(status::an_unknown_container),
        case!(status::an_unresolvable_port),
        case!(status::bad_markers_are_refused),
        case!(status::the_selector_is_immutable),
        case!(alone status::a_marker_that_slipped_in),
        case!(alone lifecycle::a_marker_deleted_while_it_is_down),
        case!(alone lifecycle::a_verdict_reported_while_it_is_down),
        case!(alone lifecycle::pods_are_made_and_bad_markers_refused_while_it_is_down),
        case!(alone lifecycle::crds_that_drop_our_fields),
        case!(alone lifecycle::a_crd_replaced_under_a_running_manager),
        case!(alone lifecycle::crds_that_come_late),
        case!(alone lifecycle::a_right_that_is_away_for_a_while),
        case!(alone lifecycle::an_outage_of_the_api_server_changes_no_pod),
        case!(alone openkruise::nothing_is_written_while_it_acts),
        case!(alone openkruise::preflight_says_what_is_in_the_way),
        case!(alone migration::openkruise_goes_on_with_what_is_there),
        case!(alone migration::what_it_left_is_taken_over),
        case!(alone openkruise::a_gate_that_is_off_leaves_everything_alone),
        case!(lifecycle::leftovers_without_a_marker),
        case!(lifecycle::an_object_that_does_not_decode),
        case!(alone lifecycle::a_marker_that_does_not_decode_when_it_starts),
    ]
}

fn main() -> ExitCode {
    leadsman_tests::run(
        cases(),
        None,
        async |_| Installation::raise().await,
        async |installation| installation.end().await,
    )
}
