//! How each step of a plan is carried out.

use std::time::Duration;

use serde_json::json;

use super::{SUSPICION, Simulation};
use crate::faults::{Crash, Lasting};
use crate::kubelet::{node_name, text};
use crate::plan::{KINDS, Meddling, PlannedAction, ProcessId};
use crate::resources::{MARKERS, NODE_PATH, SETS, add_node};
use crate::rest::{PatchKind, pod_path};
use crate::tenants::{WORKLOADS, marker_name, set_name, sidecar_set};

impl Simulation<'_> {
    pub(super) async fn carry_out(&mut self, action: &PlannedAction) {
        match action {
            PlannedAction::Lag { .. }
            | PlannedAction::DelayEvents { .. }
            | PlannedAction::EndWatches { .. }
            | PlannedAction::LoseReplies { .. }
            | PlannedAction::LoseRequests { .. }
            | PlannedAction::Refuse { .. }
            | PlannedAction::Delay { .. }
            | PlannedAction::Silence { .. }
            | PlannedAction::Crash { .. }
            | PlannedAction::Stop { .. } => self.begin_fault(action),
            PlannedAction::Compact => self.server.compact(self.server.version()),
            PlannedAction::JumpClock { seconds } => self.jump_clock(*seconds),
            PlannedAction::Restore { versions } => {
                let version = self.server.version().saturating_sub(*versions);
                self.hosts.restart_all();
                self.restore(version).await;
            }
            PlannedAction::SkipVersions => {
                self.skipped = Some(self.server.version());
                self.server.skip_versions(1_000_000);
            }
            PlannedAction::RestoreSkipped => {
                // A backup is minutes old when it is restored. A watch that has not come as far as the backup would not notice: what
                // it shows goes on, and what the process knows from replies is newer.
                if let Some(version) = self.skipped
                    && !self.hosts.is_any_late()
                {
                    self.held_until = self.story.elapsed() + SUSPICION;
                    self.restore(version).await;
                }
            }
            _ => self.edit(action).await,
        }
    }

    /// Carries out an edit of users, controllers or other clients.
    async fn edit(&mut self, action: &PlannedAction) {
        match *action {
            PlannedAction::PutMarker { marker, ref probes } => {
                self.tenants.put_marker(marker, probes).await;
            }
            PlannedAction::DeleteMarker { marker } => {
                let path = format!("{MARKERS}/{}", marker_name(marker));
                let _gone = self.rest.delete(&path, false).await;
            }
            PlannedAction::HoldMarker { marker, held } => {
                if let Some(object) = self.object("podprobemarkers", &marker_name(marker)) {
                    self.tenants.hold_marker(&object, held).await;
                }
            }
            PlannedAction::Scale { workload, replicas } => self.tenants.scale(workload, replicas),
            PlannedAction::RemoveNode { node } => self.remove_node(node).await,
            PlannedAction::AddNode { node } => self.add_node(node).await,
            PlannedAction::EmptyNodePodProbe { node } => {
                self.tenants.meddle_with_node(node, false).await;
            }
            PlannedAction::TakeLease => self.tenants.take_lease().await,
            PlannedAction::DeleteNodePodProbe { node } => {
                self.tenants.meddle_with_node(node, true).await;
            }
            PlannedAction::MakeSet { set } => {
                let _there = self.rest.create(SETS, &sidecar_set(set)).await;
            }
            PlannedAction::EditSet { set, edit } => {
                let stored = self.object("sidecarsets", &set_name(set));
                self.tenants.edit_set(set, edit, stored.as_deref()).await;
            }
            PlannedAction::DeleteSet { set } => {
                let _gone = self
                    .rest
                    .delete(&format!("{SETS}/{}", set_name(set)), false)
                    .await;
            }
            _ => self.edit_pod(action).await,
        }
    }

    async fn edit_pod(&mut self, action: &PlannedAction) {
        match *action {
            PlannedAction::DeletePod { pod } => {
                if let Some(pod) = self.pod(pod) {
                    let _gone = self.rest.delete(&pod_path(&pod), false).await;
                }
            }
            PlannedAction::EndPod { pod, succeeded } => {
                if let Some(pod) = self.pod(pod) {
                    let uid = text(&pod, "uid");
                    self.ground.end_containers(true, |one| one.pod[0] == uid);
                    let phase = if succeeded { "Succeeded" } else { "Failed" };
                    let body = json!({"status": {"phase": phase}});
                    let path = pod_path(&pod) + "/status";
                    let _gone = self.rest.patch(&path, PatchKind::Merge, &body).await;
                }
            }
            PlannedAction::RestartContainer { pod, container } => {
                if let Some(pod) = self.pod(pod) {
                    let containers = pod["metadata"]["labels"]["workload"].as_str();
                    let workload = WORKLOADS.iter().find(|(app, _)| Some(*app) == containers);
                    let (_, names) = workload.unwrap_or(&WORKLOADS[0]);
                    let name = names[container % names.len()];
                    let uid = text(&pod, "uid");
                    self.ground
                        .end_containers(true, |one| one.pod[0] == uid && one.name == name);
                }
            }
            PlannedAction::SetAnswer { pod, key, answer } => {
                if let Some(pod) = self.pod(pod) {
                    let name = text(&pod, "name").to_owned();
                    self.ground.lock().answers.insert((name, key), answer);
                }
            }
            PlannedAction::Meddle { pod, with } => {
                if let Some(pod) = self.pod(pod) {
                    self.tenants.meddle(&pod, with).await;
                    if let Meddling::Fight(key) = with {
                        self.tenants.fight(&pod, key);
                    }
                }
            }
            _ => {}
        }
    }

    fn begin_fault(&mut self, action: &PlannedAction) {
        let (PlannedAction::Lag { process, .. }
        | PlannedAction::DelayEvents { process, .. }
        | PlannedAction::EndWatches { process, .. }
        | PlannedAction::LoseReplies { process, .. }
        | PlannedAction::LoseRequests { process, .. }
        | PlannedAction::Refuse { process, .. }
        | PlannedAction::Delay { process, .. }
        | PlannedAction::Silence { process, .. }
        | PlannedAction::Crash { process, .. }
        | PlannedAction::Stop { process, .. }) = action
        else {
            return;
        };
        if let ProcessId::Agent(node) = process
            && !self.nodes[*node]
        {
            return;
        }
        let now = self.story.elapsed();
        let milliseconds = Duration::from_millis;
        let host = self.hosts.host(*process);
        match *action {
            PlannedAction::Stop { down_ms, .. } => return host.stop(milliseconds(down_ms)),
            PlannedAction::Crash {
                writes,
                is_done,
                down_ms,
                ..
            } => {
                return host.crash(Crash { writes, is_done }, milliseconds(down_ms));
            }
            _ => {}
        }
        let mut faults = host.faults.lock();
        let ends = |for_ms| now.saturating_add(milliseconds(for_ms));
        match *action {
            PlannedAction::Lag {
                versions, for_ms, ..
            } => faults.lag = (versions, now + milliseconds(for_ms)),
            PlannedAction::DelayEvents {
                ref resource,
                by_ms,
                for_ms,
                ..
            } => {
                let late = (milliseconds(by_ms), now + milliseconds(for_ms));
                faults.late_events.insert(resource.clone(), late);
            }
            PlannedAction::EndWatches { ref only, end, .. } => {
                let all = KINDS.iter().map(|kind| (*kind).to_owned());
                let meant = all.filter(|kind| only.as_ref().is_none_or(|only| only == kind));
                faults.watch_ends.extend(meant.map(|kind| (kind, end)));
            }
            PlannedAction::LoseReplies {
                ref only, count, ..
            } => faults.lost_replies = lasting(only.clone(), count, Duration::MAX),
            PlannedAction::LoseRequests {
                ref only, count, ..
            } => faults.lost_requests = lasting(only.clone(), count, Duration::MAX),
            PlannedAction::Refuse {
                ref only,
                status,
                retry_after,
                for_ms,
                ..
            } => faults.refusal = lasting(only.clone(), (status, retry_after), ends(for_ms)),
            PlannedAction::Delay {
                ref only,
                by_ms,
                for_ms,
                ..
            } => faults.slow = lasting(only.clone(), milliseconds(by_ms), ends(for_ms)),
            PlannedAction::Silence {
                ref only, for_ms, ..
            } => faults.silence = lasting(only.clone(), (), ends(for_ms)),
            _ => {}
        }
    }

    async fn restore(&mut self, version: u64) {
        self.judge_changes();
        self.server.restore(version.max(self.installed));
        self.skipped = None;
        self.invariants.note_restore(&self.server, self.held_until);
        // Kubelets register again, and nobody else creates or deletes nodes here.
        for node in 0..self.nodes.len() {
            if self.nodes[node] {
                add_node(&self.rest, node).await;
            } else {
                let path = format!("{NODE_PATH}/{}", node_name(node));
                let _gone = self.rest.delete(&path, true).await;
            }
        }
    }
}

fn lasting<T>(only: Option<String>, what: T, until: Duration) -> Lasting<T> {
    Lasting { what, only, until }
}
