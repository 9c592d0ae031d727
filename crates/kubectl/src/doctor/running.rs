//! The findings about managers, agents, what they report, and versions. Pure.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use leadsman_core::podprobe::explain::{ManagerState, Unread, format_age};
use leadsman_manager::preflight::{CheckResult, Finding};

use super::facts::{DAEMON_SET, InstallHealth, NodeHealth};
use super::pods;
use crate::install::pod_of;

/// A mark that lacks for longer is a problem: a manager writes one within seconds.
pub(super) const LATE_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// How many of a long list are named.
const NAMED: usize = 5;

pub(super) fn ok(check: &'static str, message: impl Into<String>) -> Finding {
    Finding::new(check, CheckResult::Ok, message)
}

pub(super) fn note(check: &'static str, message: impl Into<String>) -> Finding {
    Finding::new(check, CheckResult::Note, message)
}

pub(super) fn problem(check: &'static str, message: impl Into<String>) -> Finding {
    Finding::new(check, CheckResult::Todo, message)
}

pub(super) fn unread(check: &'static str, why: &Unread) -> Finding {
    Finding::new(check, CheckResult::Unread, why.0.clone())
}

/// The first of a list, and how many more there are.
fn named<'a>(all: impl IntoIterator<Item = &'a str>) -> String {
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
    pub(super) fn managers(&self) -> Vec<Finding> {
        let mut findings = vec![self.leader()];
        if !self.install.gate {
            let message = "the manager runs with PodProbeMarkerGate=false: it acts on no marker";
            findings.push(
                problem("gate", message)
                    .with_command("remove it from --feature-gates (chart: featureGates)"),
            );
        }
        let found_pods = self
            .install
            .managers
            .as_ref()
            .is_ok_and(|pods| !pods.is_empty());
        if let Some(why) = self.install.assumed.as_ref().filter(|_| found_pods) {
            findings.push(unread("manager-flags", why));
        }
        match &self.install.managers {
            Err(why) => findings.push(unread("manager-pods", why)),
            Ok(pods) if pods.is_empty() => findings.push(self.no_manager_pod()),
            Ok(pods) => findings.extend(self.pods("manager-pods", "manager", pods)),
        }
        findings
    }

    fn leader(&self) -> Finding {
        const CHECK: &str = "leader";
        let namespace = self.namespace();
        let look = format!(
            "look at the managers' pods and logs: kubectl -n {namespace} logs deployment/leadsman-manager"
        );
        match &self.install.manager {
            Err(why) => unread(CHECK, why),
            Ok(ManagerState::Leads(holder)) if !holder.contains('/') => problem(
                CHECK,
                format!("{holder} holds the Lease kube-system/leadsman-manager and is no manager of leadsman: nothing is written"),
            )
            .with_command("kubectl -n kube-system delete lease leadsman-manager"),
            Ok(ManagerState::Leads(holder)) => ok(CHECK, format!("{holder} leads")),
            Ok(ManagerState::Expired(holder, renewed)) => {
                let age = format_age(*renewed, self.now);
                problem(CHECK, format!("no manager leads: {holder} last renewed the Lease kube-system/leadsman-manager {age} ago")).with_command(look)
            }
            Ok(ManagerState::Absent) => problem(
                CHECK,
                "no manager leads: nobody holds the Lease kube-system/leadsman-manager",
            )
            .with_command(look)
            .with_command("or install leadsman, if it is not there: docs/install.md"),
        }
    }

    fn no_manager_pod(&self) -> Finding {
        const CHECK: &str = "manager-pods";
        let message = format!("namespace {} has no manager's pod", self.namespace());
        match &self.install.manager {
            Ok(ManagerState::Leads(holder)) => {
                note(CHECK, format!("{message}: {holder} runs elsewhere"))
            }
            _ => problem(CHECK, message).with_command(format!(
                "kubectl -n {} describe deployment leadsman-manager",
                self.namespace()
            )),
        }
    }

    /// Whether the pods of a component are Ready, and why they restarted.
    fn pods(&self, check: &'static str, component: &str, pods: &[Pod]) -> Vec<Finding> {
        let namespace = self.namespace();
        let active: Vec<_> = pods.iter().filter(|pod| pods::is_active(pod)).collect();
        let mut findings = Vec::new();
        for pod in &active {
            let name = pods::name(pod);
            let Some(why) = pods::trouble(pod) else {
                continue;
            };
            let place = pods::node(pod).map(|node| format!(" on node {node}"));
            let message = format!("{name}{} is not Ready: {why}", place.unwrap_or_default());
            findings.push(problem(check, message).with_command(format!(
                "kubectl -n {namespace} describe pod {name}; kubectl -n {namespace} logs {name}"
            )));
        }
        let (count, not) = (active.len(), findings.len());
        if not == 0 {
            findings.push(ok(
                check,
                format!(
                    "{count} of {count} are Ready{}",
                    self.leading(component, &active)
                ),
            ));
        }
        findings.truncate(NAMED);
        if not > NAMED {
            findings.push(problem(check, format!("{not} of {count} are not Ready")));
        }
        findings.extend(self.restarts(check, component, &active));
        findings
    }

    /// Whether the leader is one of them.
    fn leading(&self, component: &str, pods: &[&Pod]) -> &'static str {
        match &self.install.manager {
            Ok(ManagerState::Leads(holder))
                if component == "manager"
                    && !pods.iter().any(|pod| pods::name(pod) == pod_of(holder)) =>
            {
                ", and none of them leads"
            }
            _ => "",
        }
    }

    fn restarts(&self, check: &'static str, component: &str, pods: &[&Pod]) -> Option<Finding> {
        let restarted: Vec<_> = pods.iter().filter(|pod| pods::restarts(pod) > 0).collect();
        let all: Vec<_> = restarted
            .iter()
            .map(|pod| {
                let end = pods::last_end(pod).map(|end| format!(", last: {end}"));
                format!(
                    "{} ({} times{})",
                    pods::name(pod),
                    pods::restarts(pod),
                    end.unwrap_or_default()
                )
            })
            .collect();
        if all.is_empty() {
            return None;
        }
        let message = format!("restarted: {}", named(all.iter().map(String::as_str)));
        let killed = restarted
            .iter()
            .any(|pod| pods::last_end(pod) == Some("OOMKilled"));
        Some(if killed {
            problem(check, message).with_command(format!(
                "give it more memory (chart: {component}.resources.limits.memory)"
            ))
        } else {
            note(check, message).with_command(format!(
                "kubectl -n {} logs POD --previous says why",
                self.namespace()
            ))
        })
    }

    /// Whether each node has an agent that is well and reports.
    pub(super) fn agents(&self) -> Vec<Finding> {
        let mut findings = match &self.agents {
            Err(why) => vec![unread("agent-pods", why)],
            Ok(agents) if agents.is_empty() => vec![self.no_agent_pod()],
            Ok(agents) => {
                let mut findings = self.pods("agent-pods", "agent", agents);
                findings.push(match &self.nodes {
                    Err(why) => unread("agent-nodes", why),
                    Ok(nodes) => self.nodes_without(nodes, agents),
                });
                findings
            }
        };
        findings.push(self.silent());
        findings
    }

    fn no_agent_pod(&self) -> Finding {
        const CHECK: &str = "agent-pods";
        let namespace = self.namespace();
        let message = format!("namespace {namespace} has no agent's pod");
        let report = self.reports.as_ref();
        let is_silent = report.map_or(true, |reports| !reports.silent_nodes.is_empty());
        match &self.daemon_set {
            Err(why) => unread(CHECK, why),
            Ok(None) if !is_silent => note(
                CHECK,
                format!("{message}: agents, if there are any, run as something else"),
            ),
            Ok(None) => problem(CHECK, format!("{message} and no DaemonSet {DAEMON_SET}"))
                .with_command("install leadsman's agents: docs/install.md"),
            Ok(Some(_)) => problem(
                CHECK,
                format!("{message}, though it has the DaemonSet {DAEMON_SET}"),
            )
            .with_command(format!(
                "kubectl -n {namespace} describe daemonset {DAEMON_SET}"
            )),
        }
    }

    /// Nodes on which no agent runs: pods there are not probed.
    fn nodes_without(&self, nodes: &[NodeHealth], agents: &[Pod]) -> Finding {
        const CHECK: &str = "agent-nodes";
        let active = agents.iter().filter(|pod| pods::is_active(pod));
        let with: BTreeSet<_> = active.filter_map(pods::node).collect();
        let real = nodes.iter().filter(|node| !node.is_virtual());
        let (kept, left_out): (Vec<_>, Vec<_>) = real.partition(|node| self.selects(node));
        let lacking: Vec<_> = kept
            .iter()
            .filter(|node| !with.contains(&*node.name))
            .collect();
        let out = if left_out.is_empty() {
            String::new()
        } else {
            let names = named(left_out.iter().map(|node| node.name.as_str()));
            format!("; its nodeSelector leaves out {names}")
        };
        if lacking.is_empty() {
            return ok(
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
        let names = named(names.iter().map(String::as_str));
        let message = format!(
            "{} of {} nodes have no agent, so no pod there is probed: {names}{out}",
            lacking.len(),
            kept.len()
        );
        problem(CHECK, message).with_command(format!(
            "compare tolerations and affinity with these nodes: kubectl -n {} describe daemonset {DAEMON_SET}",
            self.namespace()
        ))
    }

    /// Whether the DaemonSet's nodeSelector lets an agent run on a node.
    fn selects(&self, node: &NodeHealth) -> bool {
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

    fn silent(&self) -> Finding {
        const CHECK: &str = "agent-reports";
        match &self.reports {
            Err(why) => unread(CHECK, why),
            Ok(reports) if reports.silent_nodes.is_empty() => {
                ok(CHECK, "every agent with something to probe reports")
            }
            Ok(reports) => {
                let nodes = &reports.silent_nodes;
                let message = format!(
                    "the agents of these nodes do not report, so their verdicts are old: {}",
                    named(nodes.iter().map(String::as_str))
                );
                problem(CHECK, message).with_command(format!(
                    "look at the agent's pod and log there: kubectl -n {} get pods -o wide -l app.kubernetes.io/component=agent",
                    self.namespace()
                ))
            }
        }
    }

    /// Whether verdicts reach the pods, and markers that say that something is wrong.
    pub(super) fn markers(&self) -> Vec<Finding> {
        // That markers cannot be read is said by the reports.
        let Ok(reports) = &self.reports else {
            return Vec::new();
        };
        let late = &reports.late_pods;
        let lag = if late.is_empty() {
            ok(
                "marks",
                format!(
                    "no pod lacks the mark of a verdict older than {} s",
                    LATE_AFTER.as_secs()
                ),
            )
        } else {
            let names = named(late.iter().map(String::as_str));
            let message = format!(
                "these pods lack the marks of verdicts older than {} s: {names}",
                LATE_AFTER.as_secs()
            );
            problem("marks", message)
                .with_command("kubectl leadsman explain pod/NAME -n NAMESPACE says why")
        };
        let wrong = reports.markers.iter().filter(|marker| !marker.ready);
        let wrong: Vec<_> = wrong
            .map(|marker| format!("{}/{} ({})", marker.namespace, marker.name, marker.reason))
            .collect();
        let mut findings = vec![lag];
        if !wrong.is_empty() {
            let names = named(wrong.iter().map(String::as_str));
            let message = format!(
                "of {} markers {} say that something is wrong: {names}",
                reports.markers.len(),
                wrong.len()
            );
            findings.push(
                note("marker-status", message).with_command("kubectl leadsman status -A says what"),
            );
        }
        findings
    }

    /// Whether all parts have one version.
    pub(super) fn versions(&self) -> Finding {
        const CHECK: &str = "versions";
        const OWN: &str = env!("CARGO_PKG_VERSION");
        let (managers, agents) = match (&self.install.managers, &self.agents) {
            (Err(why), _) | (_, Err(why)) => return unread(CHECK, why),
            (Ok(managers), Ok(agents)) => (pods::versions(managers), pods::versions(agents)),
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
            problem(CHECK, format!("{message}: a roll-out goes on or is stuck"))
                .with_command(format!("kubectl -n {namespace} rollout status deployment/leadsman-manager daemonset/{DAEMON_SET}"))
        } else if all.iter().any(|tag| is_version(tag) && **tag != OWN) {
            note(
                CHECK,
                format!("{message}: this program explains by its own rules, which may differ"),
            )
            .with_command("use the program of the cluster's version")
        } else {
            ok(CHECK, message)
        }
    }
}

impl NodeHealth {
    fn is_virtual(&self) -> bool {
        let mut labels = self.labels.iter();
        labels.any(|(key, value)| key == "type" && value == "virtual-kubelet")
    }
}
