//! The findings about managers, agents, what they report, and versions. Pure.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use leadsman_core::podprobe::explain::{ManagerState, Unread, format_age};
use leadsman_manager::preflight::{CheckResult, Finding};

use super::facts::{DAEMON_SET, InstallHealth, NodeHealth};
use super::pods;
use crate::install::pod_of_holder;

/// A mark that lacks for longer is a problem: a manager writes one within seconds.
pub(super) const LATE_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// How many of a long list are named.
const NAMED: usize = 5;

pub(super) fn ok_finding(check: &'static str, message: impl Into<String>) -> Finding {
    Finding::new(check, CheckResult::Ok, message)
}

pub(super) fn note_finding(check: &'static str, message: impl Into<String>) -> Finding {
    Finding::new(check, CheckResult::Note, message)
}

pub(super) fn problem_finding(check: &'static str, message: impl Into<String>) -> Finding {
    Finding::new(check, CheckResult::Todo, message)
}

pub(super) fn unread_finding(check: &'static str, why: &Unread) -> Finding {
    Finding::new(check, CheckResult::Unread, why.0.clone())
}

/// The first of a list, and how many more there are.
fn name_first_of<'a>(all: impl IntoIterator<Item = &'a str>) -> String {
    let all: Vec<_> = all.into_iter().collect();
    let first = all
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

impl InstallHealth {
    /// Who leads, and whether all managers are well.
    pub(super) fn check_managers(&self) -> Vec<Finding> {
        let mut findings = vec![self.check_leader()];
        if !self.install.gate {
            let message = "the manager runs with PodProbeMarkerGate=false: it acts on no marker";
            findings.push(
                problem_finding("gate", message)
                    .with_command("remove it from --feature-gates (chart: featureGates)"),
            );
        }
        // That there is no pod of a manager is a finding of its own.
        let found_pods = self
            .install
            .managers
            .as_ref()
            .is_ok_and(|pods| !pods.is_empty());
        if let Some(why) = self.install.assumed.as_ref().filter(|_| found_pods) {
            findings.push(unread_finding("manager-flags", why));
        }
        match &self.install.managers {
            Err(why) => findings.push(unread_finding("manager-pods", why)),
            Ok(pods) if pods.is_empty() => findings.push(self.no_manager_finding()),
            Ok(pods) => findings.extend(self.check_pods("manager-pods", "manager", pods)),
        }
        findings
    }

    fn check_leader(&self) -> Finding {
        const CHECK: &str = "leader";
        let namespace = self.namespace();
        let look = format!(
            "look at the managers' pods and logs: kubectl -n {namespace} logs deployment/leadsman-manager"
        );
        match &self.install.manager {
            Err(why) => unread_finding(CHECK, why),
            // The identity of a manager of leadsman begins with its namespace.
            Ok(ManagerState::Leads(holder)) if !holder.contains('/') => problem_finding(
                CHECK,
                format!("{holder} holds the Lease kube-system/leadsman-manager and is no manager of leadsman: nothing is written"),
            )
            .with_command("kubectl -n kube-system delete lease leadsman-manager"),
            Ok(ManagerState::Leads(holder)) => ok_finding(CHECK, format!("{holder} leads")),
            Ok(ManagerState::Expired(holder, renewed)) => {
                let age = format_age(*renewed, self.now);
                problem_finding(CHECK, format!("no manager leads: {holder} last renewed the Lease kube-system/leadsman-manager {age} ago")).with_command(look)
            }
            Ok(ManagerState::Absent) => problem_finding(
                CHECK,
                "no manager leads: nobody holds the Lease kube-system/leadsman-manager",
            )
            .with_command(look)
            .with_command("or install leadsman, if it is not there: docs/install.md"),
        }
    }

    fn no_manager_finding(&self) -> Finding {
        const CHECK: &str = "manager-pods";
        let message = format!("namespace {} has no manager's pod", self.namespace());
        match &self.install.manager {
            Ok(ManagerState::Leads(holder)) => {
                note_finding(CHECK, format!("{message}: {holder} runs elsewhere"))
            }
            _ => problem_finding(CHECK, message).with_command(format!(
                "kubectl -n {} describe deployment leadsman-manager",
                self.namespace()
            )),
        }
    }

    /// Whether the pods of a component are Ready, and why they restarted.
    fn check_pods(&self, check: &'static str, component: &str, pods: &[Pod]) -> Vec<Finding> {
        let namespace = self.namespace();
        let active: Vec<_> = pods.iter().filter(|pod| pods::is_active(pod)).collect();
        let mut findings = Vec::new();
        for pod in &active {
            let name = pods::pod_name(pod);
            let Some(why) = pods::unready_reason(pod) else {
                continue;
            };
            let place = pods::node_name(pod).map(|node| format!(" on node {node}"));
            let message = format!("{name}{} is not Ready: {why}", place.unwrap_or_default());
            findings.push(problem_finding(check, message).with_command(format!(
                "kubectl -n {namespace} describe pod {name}; kubectl -n {namespace} logs {name}"
            )));
        }
        let (count, not) = (active.len(), findings.len());
        if not == 0 {
            findings.push(ok_finding(
                check,
                format!(
                    "{count} of {count} are Ready{}",
                    self.leading_phrase(component, &active)
                ),
            ));
        }
        // What is broken is often broken in all of them, as in the pods of a DaemonSet.
        findings.truncate(NAMED);
        if not > NAMED {
            findings.push(problem_finding(
                check,
                format!("{not} of {count} are not Ready"),
            ));
        }
        findings.extend(self.check_restarts(check, component, &active));
        findings
    }

    /// Whether the leader is one of them.
    fn leading_phrase(&self, component: &str, pods: &[&Pod]) -> &'static str {
        match &self.install.manager {
            Ok(ManagerState::Leads(holder))
                if component == "manager"
                    && !pods
                        .iter()
                        .any(|pod| pods::pod_name(pod) == pod_of_holder(holder)) =>
            {
                ", and none of them leads"
            }
            _ => "",
        }
    }

    fn check_restarts(
        &self,
        check: &'static str,
        component: &str,
        pods: &[&Pod],
    ) -> Option<Finding> {
        let restarted: Vec<_> = pods
            .iter()
            .filter(|pod| pods::count_restarts(pod) > 0)
            .collect();
        let all: Vec<_> = restarted
            .iter()
            .map(|pod| {
                let end = pods::last_termination_reason(pod).map(|end| format!(", last: {end}"));
                format!(
                    "{} ({} times{})",
                    pods::pod_name(pod),
                    pods::count_restarts(pod),
                    end.unwrap_or_default()
                )
            })
            .collect();
        if all.is_empty() {
            return None;
        }
        let message = format!(
            "restarted: {}",
            name_first_of(all.iter().map(String::as_str))
        );
        let killed = restarted
            .iter()
            .any(|pod| pods::last_termination_reason(pod) == Some("OOMKilled"));
        // Of all ends this one has its remedy in the chart.
        Some(if killed {
            problem_finding(check, message).with_command(format!(
                "give it more memory (chart: {component}.resources.limits.memory)"
            ))
        } else {
            note_finding(check, message).with_command(format!(
                "kubectl -n {} logs POD --previous says why",
                self.namespace()
            ))
        })
    }

    /// Whether each node has an agent that is well and reports.
    pub(super) fn check_agents(&self) -> Vec<Finding> {
        let mut findings = match &self.agents {
            Err(why) => vec![unread_finding("agent-pods", why)],
            Ok(agents) if agents.is_empty() => vec![self.no_agent_finding()],
            Ok(agents) => {
                let mut findings = self.check_pods("agent-pods", "agent", agents);
                findings.push(match &self.nodes {
                    Err(why) => unread_finding("agent-nodes", why),
                    Ok(nodes) => self.check_nodes_without_agent(nodes, agents),
                });
                findings
            }
        };
        findings.push(self.check_silent_agents());
        findings
    }

    fn no_agent_finding(&self) -> Finding {
        const CHECK: &str = "agent-pods";
        let namespace = self.namespace();
        let message = format!("namespace {namespace} has no agent's pod");
        let report = self.reports.as_ref();
        // Reports that could not be read do not say that all is well.
        let is_silent = report.map_or(true, |reports| !reports.silent_nodes.is_empty());
        match &self.daemon_set {
            Err(why) => unread_finding(CHECK, why),
            Ok(None) if !is_silent => note_finding(
                CHECK,
                format!("{message}: agents, if there are any, run as something else"),
            ),
            Ok(None) => problem_finding(CHECK, format!("{message} and no DaemonSet {DAEMON_SET}"))
                .with_command("install leadsman's agents: docs/install.md"),
            Ok(Some(_)) => problem_finding(
                CHECK,
                format!("{message}, though it has the DaemonSet {DAEMON_SET}"),
            )
            .with_command(format!(
                "kubectl -n {namespace} describe daemonset {DAEMON_SET}"
            )),
        }
    }

    /// Nodes on which no agent runs: pods there are not probed.
    fn check_nodes_without_agent(&self, nodes: &[NodeHealth], agents: &[Pod]) -> Finding {
        const CHECK: &str = "agent-nodes";
        let active = agents.iter().filter(|pod| pods::is_active(pod));
        let with: BTreeSet<_> = active.filter_map(pods::node_name).collect();
        // On a virtual node its provider runs the probes, and no DaemonSet.
        let real = nodes.iter().filter(|node| !node.is_virtual());
        let (kept, left_out): (Vec<_>, Vec<_>) = real.partition(|node| self.selects_node(node));
        let lacking: Vec<_> = kept
            .iter()
            .filter(|node| !with.contains(&*node.name))
            .collect();
        let out = if left_out.is_empty() {
            String::new()
        } else {
            let names = name_first_of(left_out.iter().map(|node| node.name.as_str()));
            format!("; its nodeSelector leaves out {names}")
        };
        if lacking.is_empty() {
            return ok_finding(
                CHECK,
                format!("each of {} nodes has an agent{out}", kept.len()),
            );
        }
        let names: Vec<_> = lacking
            .iter()
            .map(|node| {
                let state = if node.is_ready { "" } else { " (NotReady)" };
                format!("{}{state}", node.name)
            })
            .collect();
        let names = name_first_of(names.iter().map(String::as_str));
        let message = format!(
            "{} of {} nodes have no agent, so no pod there is probed: {names}{out}",
            lacking.len(),
            kept.len()
        );
        problem_finding(CHECK, message).with_command(format!(
            "compare tolerations and affinity with these nodes: kubectl -n {} describe daemonset {DAEMON_SET}",
            self.namespace()
        ))
    }

    /// Whether the DaemonSet's nodeSelector lets an agent run on a node.
    fn selects_node(&self, node: &NodeHealth) -> bool {
        let daemon = self.daemon_set.as_ref().ok().and_then(Option::as_ref);
        let spec = daemon.and_then(|it| it.spec.as_ref()?.template.spec.as_ref());
        let selector = spec.and_then(|spec| spec.node_selector.as_ref());
        let mut terms = selector.into_iter().flatten();
        terms.all(|(key, value)| {
            node.labels
                .iter()
                .any(|(own, has)| own == key && has == value)
        })
    }

    fn check_silent_agents(&self) -> Finding {
        const CHECK: &str = "agent-reports";
        match &self.reports {
            Err(why) => unread_finding(CHECK, why),
            Ok(reports) if reports.silent_nodes.is_empty() => {
                ok_finding(CHECK, "every agent with something to probe reports")
            }
            Ok(reports) => {
                let nodes = &reports.silent_nodes;
                let message = format!(
                    "the agents of these nodes do not report, so their verdicts are old: {}",
                    name_first_of(nodes.iter().map(String::as_str))
                );
                problem_finding(CHECK, message).with_command(format!(
                    "look at the agent's pod and log there: kubectl -n {} get pods -o wide -l app.kubernetes.io/component=agent",
                    self.namespace()
                ))
            }
        }
    }

    /// Whether verdicts reach the pods, and markers that say that something is wrong.
    pub(super) fn check_markers(&self) -> Vec<Finding> {
        // That markers cannot be read is said by the reports.
        let Ok(reports) = &self.reports else {
            return Vec::new();
        };
        let late = &reports.late_pods;
        let lag = if late.is_empty() {
            ok_finding(
                "marks",
                format!(
                    "no pod lacks the mark of a verdict older than {} s",
                    LATE_AFTER.as_secs()
                ),
            )
        } else {
            let names = name_first_of(late.iter().map(String::as_str));
            let message = format!(
                "these pods lack the marks of verdicts older than {} s: {names}",
                LATE_AFTER.as_secs()
            );
            problem_finding("marks", message)
                .with_command("kubectl leadsman explain pod/NAME -n NAMESPACE says why")
        };
        let wrong = reports.markers.iter().filter(|marker| !marker.ready);
        let wrong: Vec<_> = wrong
            .map(|marker| format!("{}/{} ({})", marker.namespace, marker.name, marker.reason))
            .collect();
        let mut findings = vec![lag];
        if !wrong.is_empty() {
            let names = name_first_of(wrong.iter().map(String::as_str));
            let message = format!(
                "of {} markers {} say that something is wrong: {names}",
                reports.markers.len(),
                wrong.len()
            );
            findings.push(
                note_finding("marker-status", message)
                    .with_command("kubectl leadsman status -A says what"),
            );
        }
        findings
    }

    /// Whether all parts have one version.
    pub(super) fn check_versions(&self) -> Finding {
        const CHECK: &str = "versions";
        const OWN: &str = env!("CARGO_PKG_VERSION");
        let (managers, agents) = match (&self.install.managers, &self.agents) {
            (Err(why), _) | (_, Err(why)) => return unread_finding(CHECK, why),
            (Ok(managers), Ok(agents)) => {
                (pods::count_versions(managers), pods::count_versions(agents))
            }
        };
        let listed = |versions: &std::collections::BTreeMap<String, usize>| match versions.len() {
            0 => "none".to_owned(),
            1 => versions.keys().cloned().collect(),
            _ => {
                let counts = versions
                    .iter()
                    .map(|(tag, count)| format!("{tag} ({count})"));
                counts.collect::<Vec<_>>().join(", ")
            }
        };
        let message = format!(
            "image of the managers: {}; of the agents: {}; this program: {OWN}",
            listed(&managers),
            listed(&agents)
        );
        let all: BTreeSet<_> = managers.keys().chain(agents.keys()).collect();
        // A tag need not be a version.
        let is_version = |tag: &str| tag.starts_with(|c: char| c.is_ascii_digit());
        if all.len() > 1 {
            let namespace = self.namespace();
            problem_finding(CHECK, format!("{message}: a roll-out goes on or is stuck"))
                .with_command(format!("kubectl -n {namespace} rollout status deployment/leadsman-manager daemonset/{DAEMON_SET}"))
        } else if all.iter().any(|tag| is_version(tag) && **tag != OWN) {
            note_finding(
                CHECK,
                format!("{message}: this program explains by its own rules, which may differ"),
            )
            .with_command("use the program of the cluster's version")
        } else {
            ok_finding(CHECK, message)
        }
    }
}

impl NodeHealth {
    fn is_virtual(&self) -> bool {
        let mut labels = self.labels.iter();
        labels.any(|(key, value)| key == "type" && value == "virtual-kubelet")
    }
}
