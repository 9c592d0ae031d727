//! The findings about managers, agents, what they report, and versions. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use leadsman_core::podprobe::explain::{ManagerState, Unread, format_age};
use leadsman_manager::finding;
use leadsman_manager::preflight::{Finding, name_first_of};

use super::facts::{DAEMON_SET, InstallHealth, NodeHealth, Reports};
use super::pods;
use crate::install::pod_of_holder;

/// A mark that lacks for longer is a problem: a manager writes one within seconds.
pub(super) const LATE_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// The most pods that are told one by one as not ready.
const FEW_PODS: usize = 5;

/// The findings of a check in what it needs, or the missing right where that cannot be read.
pub(super) fn examine<T>(
    check: &'static str,
    seen: &Result<T, Unread>,
    find: impl FnOnce(&T) -> Vec<Finding>,
) -> Vec<Finding> {
    match seen {
        Ok(seen) => find(seen),
        Err(Unread(why)) => vec![finding!(check, Unread => "{why}")],
    }
}

impl InstallHealth {
    /// Checks who leads, and whether all managers are well.
    pub(super) fn check_managers(&self) -> Vec<Finding> {
        const PODS: &str = "manager-pods";
        let mut all = self.check_leader();
        if !self.install.gates.pod_probe_marker {
            all.push(finding!("gate", Todo => "the manager runs with PodProbeMarkerGate=false: it acts on no marker";
                "remove it from --feature-gates (chart: featureGates)"));
        }
        let managers = &self.install.managers;
        // The lack of a manager's pod is a finding of its own.
        let has_pods = managers.as_ref().is_ok_and(|pods| !pods.is_empty());
        if let Some(Unread(why)) = self.install.assumed.as_ref().filter(|_| has_pods) {
            all.push(finding!("manager-flags", Unread => "{why}"));
        }
        all.extend(examine(PODS, managers, |pods| match pods.as_slice() {
            [] => vec![self.no_manager_finding(PODS)],
            pods => self.check_pods(PODS, "manager", pods),
        }));
        all
    }

    fn check_leader(&self) -> Vec<Finding> {
        const CHECK: &str = "leader";
        let look = format!(
            "look at the managers' pods and logs: kubectl -n {} logs deployment/leadsman-manager",
            self.namespace()
        );
        examine(CHECK, &self.install.manager, |manager| {
            vec![match manager {
                // The identity of a manager of leadsman begins with its namespace.
                ManagerState::Leads(holder) if !holder.contains('/') => {
                    finding!(CHECK, Todo => "{holder} holds the Lease kube-system/leadsman-manager and is no manager of leadsman: \
                        nothing is written";
                        "kubectl -n kube-system delete lease leadsman-manager")
                }
                ManagerState::Leads(holder) => finding!(CHECK, Ok => "{holder} leads"),
                ManagerState::Expired(holder, renewed) => {
                    let age = format_age(*renewed, self.now);
                    finding!(CHECK, Todo => "no manager leads: {holder} last renewed the Lease kube-system/leadsman-manager {age} ago";
                        "{look}")
                }
                ManagerState::Absent => {
                    finding!(CHECK, Todo => "no manager leads: nobody holds the Lease kube-system/leadsman-manager";
                        "{look}", "or install leadsman, if it is not there: docs/install.md")
                }
            }]
        })
    }

    fn no_manager_finding(&self, check: &'static str) -> Finding {
        let namespace = self.namespace();
        match &self.install.manager {
            Ok(ManagerState::Leads(holder)) => {
                finding!(check, Note => "namespace {namespace} has no manager's pod: {holder} runs elsewhere")
            }
            _ => finding!(check, Todo => "namespace {namespace} has no manager's pod";
                "kubectl -n {namespace} describe deployment leadsman-manager"),
        }
    }

    /// Whether the pods of a component are Ready, and why they restarted.
    fn check_pods(&self, check: &'static str, component: &str, pods: &[Pod]) -> Vec<Finding> {
        let namespace = self.namespace();
        let active: Vec<_> = pods.iter().filter(|pod| pods::is_active(pod)).collect();
        let not_ready = active.iter().filter_map(|pod| {
            let (name, why) = (pods::pod_name(pod), pods::unready_reason(pod)?);
            let place = pods::node_name(pod).map(|node| format!(" on node {node}"));
            let place = place.unwrap_or_default();
            Some(finding!(check, Todo => "{name}{place} is not Ready: {why}";
                "kubectl -n {namespace} describe pod {name}; kubectl -n {namespace} logs {name}"))
        });
        let mut all: Vec<_> = not_ready.collect();
        let (count, not) = (active.len(), all.len());
        if not == 0 {
            let leading = self.leading_phrase(component, &active);
            all.push(finding!(check, Ok => "{count} of {count} are Ready{leading}"));
        }
        // The fault is often the same in all of them, as in the pods of a DaemonSet.
        all.truncate(FEW_PODS);
        if not > FEW_PODS {
            all.push(finding!(check, Todo => "{not} of {count} are not Ready"));
        }
        all.extend(self.check_restarts(check, component, &active));
        all
    }

    /// Whether the leader is one of them.
    fn leading_phrase(&self, component: &str, pods: &[&Pod]) -> &'static str {
        let mut names = pods.iter().map(|pod| pods::pod_name(pod));
        match &self.install.manager {
            Ok(ManagerState::Leads(holder))
                if component == "manager" && !names.any(|name| name == pod_of_holder(holder)) =>
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
        let restarted = pods.iter().filter(|pod| pods::count_restarts(pod) > 0);
        let mut is_killed = false;
        let all: Vec<_> = restarted
            .map(|pod| {
                let (name, count) = (pods::pod_name(pod), pods::count_restarts(pod));
                let end = pods::last_termination_reason(pod);
                is_killed |= end == Some("OOMKilled");
                let end = end.map(|end| format!(", last: {end}"));
                format!("{name} ({count} times{})", end.unwrap_or_default())
            })
            .collect();
        let (names, namespace) = (name_first_of(&all), self.namespace());
        // Running out of memory is the only end with a remedy in the chart.
        (!all.is_empty()).then(|| if is_killed {
            finding!(check, Todo => "restarted: {names}"; "give it more memory (chart: {component}.resources.limits.memory)")
        } else {
            finding!(check, Note => "restarted: {names}"; "kubectl -n {namespace} logs POD --previous says why")
        })
    }

    /// Whether each node has an agent that is well and reports.
    pub(super) fn check_agents(&self) -> Vec<Finding> {
        const PODS: &str = "agent-pods";
        const NODES: &str = "agent-nodes";
        let mut all = examine(PODS, &self.agents, |agents| match agents.as_slice() {
            [] => vec![self.no_agent_finding(PODS)],
            agents => {
                let mut all = self.check_pods(PODS, "agent", agents);
                all.extend(examine(NODES, &self.nodes, |nodes| {
                    vec![self.check_nodes_without_agent(NODES, nodes, agents)]
                }));
                all
            }
        });
        all.extend(self.check_silent_agents());
        all
    }

    fn no_agent_finding(&self, check: &'static str) -> Finding {
        let namespace = self.namespace();
        // Reports that could not be read do not say that all is well.
        let has_silent = |reports: &Reports| !reports.silent_nodes.is_empty();
        let is_silent = self.reports.as_ref().map_or(true, has_silent);
        match &self.daemon_set {
            Err(Unread(why)) => finding!(check, Unread => "{why}"),
            Ok(None) if !is_silent => {
                finding!(check, Note => "namespace {namespace} has no agent's pod: agents, if there are any, run as something else")
            }
            Ok(None) => {
                finding!(check, Todo => "namespace {namespace} has no agent's pod and no DaemonSet {DAEMON_SET}";
                "install leadsman's agents: docs/install.md")
            }
            Ok(Some(_)) => {
                finding!(check, Todo => "namespace {namespace} has no agent's pod, though it has the DaemonSet {DAEMON_SET}";
                "kubectl -n {namespace} describe daemonset {DAEMON_SET}")
            }
        }
    }

    /// Nodes on which no agent runs: pods there are not probed.
    fn check_nodes_without_agent(
        &self,
        check: &'static str,
        nodes: &[NodeHealth],
        agents: &[Pod],
    ) -> Finding {
        let active = agents.iter().filter(|pod| pods::is_active(pod));
        let with: BTreeSet<_> = active.filter_map(pods::node_name).collect();
        // A virtual node's probes are run by its provider, and by no DaemonSet.
        let real = nodes.iter().filter(|node| !node.is_virtual());
        let (kept, left_out): (Vec<_>, Vec<_>) = real.partition(|node| self.selects_node(node));
        let left_out: Vec<_> = left_out.iter().map(|node| node.name.as_str()).collect();
        let out = match name_first_of(&left_out) {
            names if names.is_empty() => names,
            names => format!("; its nodeSelector leaves out {names}"),
        };
        let lacking: Vec<_> = kept
            .iter()
            .filter(|node| !with.contains(&*node.name))
            .map(|node| {
                let state = if node.is_ready { "" } else { " (NotReady)" };
                format!("{}{state}", node.name)
            })
            .collect();
        let (all, not) = (kept.len(), lacking.len());
        if not == 0 {
            return finding!(check, Ok => "each of {all} nodes has an agent{out}");
        }
        let (names, namespace) = (name_first_of(&lacking), self.namespace());
        finding!(check, Todo => "{not} of {all} nodes have no agent, so no pod there is probed: {names}{out}";
            "compare tolerations and affinity with these nodes: kubectl -n {namespace} describe daemonset {DAEMON_SET}")
    }

    /// Whether the DaemonSet's nodeSelector lets an agent run on a node.
    fn selects_node(&self, node: &NodeHealth) -> bool {
        let daemon = self.daemon_set.as_ref().ok().and_then(Option::as_ref);
        let spec = daemon.and_then(|it| it.spec.template.spec.as_ref());
        let selector = spec.and_then(|spec| spec.node_selector.as_ref());
        let mut terms = selector.into_iter().flatten();
        terms.all(|(key, value)| node.has_label(key, value))
    }

    fn check_silent_agents(&self) -> Vec<Finding> {
        const CHECK: &str = "agent-reports";
        examine(CHECK, &self.reports, |reports| {
            let (nodes, namespace) = (name_first_of(&reports.silent_nodes), self.namespace());
            vec![if nodes.is_empty() {
                finding!(CHECK, Ok => "every agent with something to probe reports")
            } else {
                finding!(CHECK, Todo => "the agents of these nodes do not report, so their verdicts are old: {nodes}";
                    "look at the agent's pod and log there: kubectl -n {namespace} get pods -o wide -l app.kubernetes.io/component=agent")
            }]
        })
    }

    /// Whether verdicts reach the pods, and markers that say that something is wrong.
    pub(super) fn check_markers(&self) -> Vec<Finding> {
        const CHECK: &str = "marks";
        // The check of the agents' reports says that markers cannot be read.
        let Ok(reports) = &self.reports else {
            return Vec::new();
        };
        let (late, seconds) = (name_first_of(&reports.late_pods), LATE_AFTER.as_secs());
        let mut all = vec![if late.is_empty() {
            finding!(CHECK, Ok => "no pod lacks the mark of a verdict older than {seconds} s")
        } else {
            finding!(CHECK, Todo => "these pods lack the marks of verdicts older than {seconds} s: {late}";
                "kubectl leadsman explain pod/NAME -n NAMESPACE says why")
        }];
        let wrong: Vec<_> = reports
            .markers
            .iter()
            .filter(|marker| !marker.ready)
            .map(|it| format!("{}/{} ({})", it.namespace, it.name, it.reason))
            .collect();
        if !wrong.is_empty() {
            let (all_of, not, names) = (reports.markers.len(), wrong.len(), name_first_of(&wrong));
            all.push(finding!("marker-status", Note => "of {all_of} markers {not} say that something is wrong: {names}";
                "kubectl leadsman status -A says what"));
        }
        all
    }

    /// Whether all parts have one version.
    pub(super) fn check_versions(&self) -> Vec<Finding> {
        const CHECK: &str = "versions";
        const OWN: &str = env!("CARGO_PKG_VERSION");
        let pods = self.install.managers.as_ref().and_then(|managers| {
            let agents = self.agents.as_ref()?;
            Ok((managers, agents))
        });
        examine(CHECK, &pods.map_err(Clone::clone), |(managers, agents)| {
            let (managers, agents) = (pods::count_versions(managers), pods::count_versions(agents));
            let (of_managers, of_agents) = (list_versions(&managers), list_versions(&agents));
            let images = format!(
                "image of the managers: {of_managers}; of the agents: {of_agents}; this program: {OWN}"
            );
            let all: BTreeSet<_> = managers.keys().chain(agents.keys()).collect();
            // A tag need not be a version.
            let is_version = |tag: &str| tag.starts_with(|c: char| c.is_ascii_digit());
            let namespace = self.namespace();
            vec![if all.len() > 1 {
                finding!(CHECK, Todo => "{images}: a roll-out goes on or is stuck";
                    "kubectl -n {namespace} rollout status deployment/leadsman-manager daemonset/{DAEMON_SET}")
            } else if all.iter().any(|tag| is_version(tag) && **tag != OWN) {
                finding!(CHECK, Note => "{images}: this program explains by its own rules, which may differ";
                    "use the program of the cluster's version")
            } else {
                finding!(CHECK, Ok => "{images}")
            }]
        })
    }
}

fn list_versions(versions: &BTreeMap<String, usize>) -> String {
    let counts = versions.iter().map(|(tag, count)| match versions.len() {
        1 => tag.clone(),
        _ => format!("{tag} ({count})"),
    });
    match counts.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => "none".to_owned(),
        all => all,
    }
}

impl NodeHealth {
    fn has_label(&self, key: &str, value: &str) -> bool {
        let mut labels = self.labels.iter();
        labels.any(|(own, has)| own == key && has == value)
    }

    fn is_virtual(&self) -> bool {
        self.has_label("type", "virtual-kubelet")
    }
}
