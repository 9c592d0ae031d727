//! `kubectl leadsman explain`: why pods are marked as they are.

use std::collections::{BTreeMap, BTreeSet};

use clap_complete::engine::ArgValueCompleter;
use futures::future::try_join_all;
use jiff::Timestamp;
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{Guarded, NodePodProbe, PodProbeMarker};
use leadsman_core::cloneset::CloneSetExplanation;
use leadsman_core::cluster::ObjectName;
use leadsman_core::podprobe::explain::{
    Explanation, ObservedCluster, ObservedObjects, PodGroup, Unread, format_selector,
    group_by_causes,
};
use serde::Serialize;

use crate::connection::ConnectionFlags;
use crate::output::{self, Colors, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::recent_runs::{Agents, known_uids};
use crate::report::{Report, Text, bad, bold, good, line, print_report};
use crate::resources::{
    ApiResource, BROADCAST_JOBS, CLONE_SETS, MARKERS, NODE_POD_PROBES, NODES, PODS, SIDECAR_SETS,
};
use crate::sidecars::{self, ExplainedSidecars, GroupedSidecars};
use crate::targets::{PodSelection, PodsOf, TargetState, parse_target};
use crate::text::after_colon;
use crate::{VerbError, broadcast_jobs, clone_sets, completion};

/// The most nodes that are read one by one; more of them are read as a list.
const FEW_NODES: usize = 8;

/// The flags of `explain`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman explain pod/game-0\n  kubectl leadsman explain deploy/game -n prod\n  kubectl leadsman explain sidecarset/log-agent\n  kubectl leadsman explain -l app=game -A -o wide"
)]
pub struct ExplainArgs {
    /// pod/NAME, deployment/NAME, statefulset/NAME, daemonset/NAME, replicaset/NAME, job/NAME, cronjob/NAME, cloneset/NAME,
    /// podprobemarker/NAME, sidecarset/NAME or broadcastjob/NAME; a NAME alone is a pod's
    #[arg(value_name = "TYPE/NAME", num_args = 0..=2, required_unless_present = "selector", add = ArgValueCompleter::new(completion::complete_targets))]
    target: Vec<String>,
    /// Explain the pods that this label selector matches
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "target")]
    selector: Option<String>,
    /// Explain pods of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["target", "namespace"])]
    all_namespaces: bool,
    /// Do not ask the node's agent for recent runs of the probes, which is a command in its pod (pods/exec)
    #[arg(long)]
    no_runs: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The answer for one pod.
#[derive(Serialize)]
struct OnePod {
    #[serde(flatten)]
    pod: Explanation,
    #[serde(flatten)]
    sidecars: Option<ExplainedSidecars>,
}

/// The answer for several pods.
#[derive(Serialize)]
struct ManyPods {
    /// The status of a marker or a set.
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<TargetState>,
    /// The explanation of a `CloneSet`: what its pods wait for.
    #[serde(rename = "cloneSet", skip_serializing_if = "Option::is_none")]
    clone_set: Option<CloneSetExplanation>,
    groups: Vec<PodGroup>,
    /// The explanation of each pod by its markers; empty where a set is asked about.
    pods: Vec<Explanation>,
    #[serde(flatten)]
    sidecars: Option<GroupedSidecars>,
    #[serde(skip)]
    names: Vec<ObjectName>,
}

pub(crate) async fn run(args: &ExplainArgs) -> Result<(), VerbError> {
    let words: Vec<_> = args.target.iter().map(String::as_str).collect();
    let target = parse_target(&words, args.selector.as_deref())?;
    let (reader, namespace) = args.connection.connect_reader().await?;
    let set = match target {
        PodsOf::Workload(BROADCAST_JOBS, _, name) => {
            let job = broadcast_jobs::explain(&reader, &namespace, name).await?;
            return print_report(args.output, reader.cluster_time().await, &job);
        }
        PodsOf::Workload(SIDECAR_SETS, _, name) => Some(name),
        _ => None,
    };
    // A set has no namespace: unless one is named, its pods in all of them are meant.
    let is_everywhere = args.all_namespaces || set.is_some() && args.connection.namespace.is_none();
    let namespace = (!is_everywhere).then_some(namespace.as_str());
    let selected = target.select_pods(&reader, namespace).await?;
    // Any answer has the time.
    let pods = selected.read_pods(&reader).await;
    let now = reader.cluster_time().await;
    let clone_set = match (target, namespace) {
        (PodsOf::Workload(CLONE_SETS, _, name), Some(namespace)) => {
            // A user who may not read revisions hears of the pods alone.
            let of_set = (namespace, name);
            clone_sets::explain(&reader, of_set, &selected.selection, now)
                .await
                .ok()
        }
        _ => None,
    };
    let pods = match pods {
        // No pod is there, and the set says why.
        Err(VerbError::NoPods { .. }) if clone_set.is_some() => Vec::new(),
        read => read?,
    };
    let is_one_pod = matches!(target, PodsOf::Pod(_));
    // A workload is a list for machines, however many pods it has: a filter of jq must not fail after a scale-down to one.
    let is_text = matches!(args.output, OutputFormat::Table | OutputFormat::Wide);
    if is_one_pod || is_text && pods.len() == 1 && selected.state.is_none() && clone_set.is_none() {
        let pod = explain_one_pod(&reader, pods, !args.no_runs, now).await?;
        return print_report(args.output, now, &pod);
    }
    let mut several = explain_many_pods(&reader, selected, pods, set, now).await?;
    several.clone_set = clone_set;
    print_report(args.output, now, &several)
}

async fn explain_one_pod(
    reader: &Reader,
    pods: Vec<Pod>,
    with_runs: bool,
    now: Timestamp,
) -> Result<OnePod, VerbError> {
    let uids = known_uids(&pods);
    let name = pods.first().map(|pod| ObjectName::of(&pod.identity));
    let (explained, agents) = explain_pods(reader, pods, now).await?;
    let (Some(mut pod), Some(name)) = (explained.into_iter().next(), name) else {
        return Err(VerbError::Found("the pod is gone".to_owned()));
    };
    // Recent runs are read for one pod alone, since each question is a command in the pod of an agent.
    if with_runs {
        reader.add_recent_runs(&mut pod, &agents, &uids).await;
    }
    let sidecars = sidecars::read_sidecars(reader, &name, now).await;
    if let Some(sidecars) = &sidecars {
        sidecars.without_markers(&mut pod);
    }
    Ok(OnePod { pod, sidecars })
}

/// Explains the pods of a selection: by markers and by sets, or by one set alone.
async fn explain_many_pods(
    reader: &Reader,
    selected: PodSelection<'_>,
    pods: Vec<Pod>,
    set: Option<&str>,
    now: Timestamp,
) -> Result<ManyPods, VerbError> {
    let names: Vec<_> = pods
        .iter()
        .map(|pod| ObjectName::of(&pod.identity))
        .collect();
    let mut explained = Vec::new();
    if set.is_none() && !pods.is_empty() {
        (explained, _) = explain_pods(reader, pods, now).await?;
    }
    let mut sidecars = None;
    if !names.is_empty() {
        let pods = reader.read_pod_objects(&selected.selection);
        sidecars = sidecars::explain_sidecars(reader, &names, pods, now).await;
    }
    if let Some(sidecars) = &sidecars {
        sidecars.clear_markers(&mut explained);
    }
    Ok(ManyPods {
        object: selected.state,
        clone_set: None,
        groups: group_by_causes(&explained),
        pods: explained,
        sidecars: sidecars.and_then(|sidecars| sidecars.into_groups(set)),
        names,
    })
}

impl Report for OnePod {
    fn add_text(&self, text: &mut Text) {
        text.add_pod(&self.pod);
        if let Some(sidecars) = &self.sidecars {
            sidecars.add_text(text);
        }
    }

    fn names(&self) -> Vec<String> {
        vec![format!("pod/{}", self.pod.name)]
    }
}

impl Report for ManyPods {
    fn add_text(&self, text: &mut Text) {
        if let Some(object) = &self.object {
            let name = bold(format_args!("{} {}", object.kind, object.name));
            let style = if object.ready { good } else { bad };
            let message = after_colon(&object.message);
            line!(text, 0 => "{name}: {}{message}", style(&object.reason));
            if self.names.is_empty() {
                line!(text, 2 => "no pod is selected: none has labels {}", object.selector);
            } else {
                text.add_gap();
            }
        }
        if let Some(set) = &self.clone_set {
            clone_sets::add_text(set, text);
        }
        if !self.pods.is_empty() {
            text.add_groups(&self.groups, &self.pods);
        }
        if let Some(sidecars) = &self.sidecars {
            sidecars.add_text(text);
        }
    }

    fn names(&self) -> Vec<String> {
        let names = self.names.iter();
        names.map(|pod| format!("pod/{}", pod.name)).collect()
    }
}

/// Explains all pods. Their agents can be asked for more.
pub(crate) async fn explain_pods(
    reader: &Reader,
    pods: Vec<Pod>,
    now: Timestamp,
) -> Result<(Vec<Explanation>, Agents), VerbError> {
    let namespaces: BTreeSet<_> = pods
        .iter()
        .filter_map(|pod| pod.identity.namespace.clone())
        .collect();
    let one_namespace = namespaces
        .first()
        .filter(|_| namespaces.len() == 1)
        .map(String::as_str);
    let mut observed = observe_pods(reader, pods, one_namespace, now).await?;
    observed.neighbours = read_neighbours(reader, &observed, &namespaces).await;
    let agents = Agents::new(&observed.config.agent_namespace, &observed.agents);
    let mut cluster = ObservedCluster::new(observed, now);
    if one_namespace.is_some() && cluster.lacks_marker() {
        // Perhaps it is in another namespace. Who may not look there gets an answer without.
        if let Ok(markers) = read_markers(reader, None).await {
            cluster.observe_all_markers(markers);
        }
    }
    let names: Vec<ObjectName> = cluster.pod_names().cloned().collect();
    let explained = names.iter().filter_map(|name| cluster.explain_pod(name));
    Ok((explained.collect(), agents))
}

/// Reads what becomes of pods follows from: the markers of their namespace (or all), their nodes, and the installation.
pub(crate) async fn observe_pods(
    reader: &Reader,
    pods: Vec<Pod>,
    namespace: Option<&str>,
    now: Timestamp,
) -> Result<ObservedObjects, VerbError> {
    let nodes: BTreeSet<_> = pods
        .iter()
        .filter_map(|pod| pod.spec.node_name.as_deref())
        .collect();
    let one_node = nodes.first().copied().filter(|_| nodes.len() == 1);
    let known_nodes = async {
        futures::join!(
            read_nodes::<Node>(reader, NODES, &nodes, 500),
            read_nodes::<NodePodProbe>(reader, NODE_POD_PROBES, &nodes, 50),
        )
    };
    let install = async {
        let install = reader.read_install(now).await;
        let is_there = install.managers.as_ref().is_ok_and(|pods| !pods.is_empty());
        if let Some(why) = install.assumed.as_ref().filter(|_| is_there) {
            eprintln!("warning: {}", output::escape_harmful(&why.0));
        }
        let namespace = install.config.agent_namespace.as_str();
        let mut agents = reader.read_agents::<Pod>(namespace, one_node).await;
        if one_node.is_some() && agents.as_ref().is_ok_and(Vec::is_empty) {
            // Whether this node lacks one, or agents are no pods at all.
            agents = reader.read_agents(namespace, None).await;
        }
        (install, agents)
    };
    // Side by side: a person waits for the slowest, and not for the sum.
    let (markers, (nodes, node_pod_probes), (install, agents)) =
        futures::join!(read_markers(reader, namespace), known_nodes, install);
    Ok(ObservedObjects {
        config: install.config,
        gate: install.gates.pod_probe_marker,
        markers: markers?,
        pods,
        neighbours: Vec::new(),
        nodes,
        node_pod_probes,
        agents,
        manager: install.manager,
    })
}

/// The other pods of these namespaces that markers with exclusive values select. Who may not read them gets an answer without.
async fn read_neighbours(
    reader: &Reader,
    observed: &ObservedObjects,
    namespaces: &BTreeSet<String>,
) -> Vec<Pod> {
    let known: BTreeSet<_> = observed
        .pods
        .iter()
        .map(|pod| ObjectName::of(&pod.identity))
        .collect();
    let mut neighbours = BTreeMap::new();
    for marker in &observed.markers {
        let Guarded::Decoded(marker) = marker else {
            continue;
        };
        let mut policies = marker.spec.probes.iter().flat_map(|one| &one.marker_policy);
        let own = marker.metadata.namespace.as_ref();
        let namespace = own.filter(|namespace| namespaces.contains(*namespace));
        let Some(namespace) = namespace.filter(|_| policies.any(|one| one.exclusive.is_some()))
        else {
            continue;
        };
        let Ok(labels) = format_selector(&marker.spec.selector) else {
            continue;
        };
        let selection = ListSelection {
            labels: Some(labels),
            ..ListSelection::of(Some(namespace), 150)
        };
        let pods = reader.list_objects::<Pod>(PODS, &selection).await;
        let named = pods
            .unwrap_or_default()
            .into_iter()
            .map(|pod| (ObjectName::of(&pod.identity), pod));
        neighbours.extend(named.filter(|(name, _)| !known.contains(name)));
    }
    neighbours.into_values().collect()
}

async fn read_markers(
    reader: &Reader,
    namespace: Option<&str>,
) -> Result<Vec<Guarded<PodProbeMarker>>, Unread> {
    let selection = ListSelection::of(namespace, 250);
    reader.list_objects(MARKERS, &selection).await
}

/// The nodes of these names, or their objects: one by one if they are few, else all.
async fn read_nodes<T: serde::de::DeserializeOwned>(
    reader: &Reader,
    resource: ApiResource,
    names: &BTreeSet<&str>,
    page: u32,
) -> Result<Vec<T>, Unread> {
    if names.len() > FEW_NODES {
        let selection = ListSelection::of(None, page);
        return reader.list_objects(resource, &selection).await;
    }
    let gets = names
        .iter()
        .map(|name| reader.get_object(resource, None, name));
    let found = try_join_all(gets).await?;
    Ok(found.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::CommandLine;
    use crate::reader::FakeServer;
    use crate::report::plain_text;

    #[test]
    fn a_target_or_a_selector_is_required() {
        assert!(CommandLine::<ExplainArgs>::try_parse_from(["explain"]).is_err());
        assert!(CommandLine::<ExplainArgs>::try_parse_from(["explain", "p", "-l", "a=b"]).is_err());
        assert!(CommandLine::<ExplainArgs>::try_parse_from(["explain", "p", "-A"]).is_err());
    }

    /// What is said of a target, and by which requests.
    async fn explained(server: &FakeServer, target: &str) -> String {
        let reader = server.reader();
        let target = parse_target(&[target], None).unwrap();
        let set = match target {
            PodsOf::Workload(SIDECAR_SETS, _, name) => Some(name),
            _ => None,
        };
        let namespace = Some("ns").filter(|_| set.is_none());
        let selected = target.select_pods(&reader, namespace).await.unwrap();
        let pods = selected.read_pods(&reader).await.unwrap();
        let now = "2026-01-01T01:00:00Z";
        let report = explain_many_pods(&reader, selected, pods, set, now.parse().unwrap());
        plain_text(&report.await.unwrap(), false, now)
    }

    #[tokio::test]
    async fn a_marker_is_explained_by_the_pods_that_it_selects() {
        let probe = json!({"name": "p", "containerName": "main", "probe": {"exec": {"command": ["true"]}},
            "podConditionType": "t.io/p"});
        let marker = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
            "metadata": {"name": "m", "namespace": "ns", "uid": "u", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "probes": [probe]},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NoAgent", "message": "no agent",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let pod = json!({"metadata": {"name": "web-0", "namespace": "ns", "uid": "w", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Pending"}});
        let list = |item: &serde_json::Value| json!({"metadata": {}, "items": [item]});
        let markers = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/podprobemarkers";
        let one = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/podprobemarkers/m";
        let server = FakeServer::new([
            (one, marker.clone()),
            (markers, list(&marker)),
            ("/api/v1/namespaces/ns/pods", list(&pod)),
        ]);
        let text = explained(&server, "podprobemarker/m").await;
        let head =
            "podprobemarker m: NoAgent: no agent\n\n1 pod, 0 of them marked as they should be\n";
        assert!(text.starts_with(head), "{text}");
        assert!(
            text.contains("\n1 pod: ManagerDown, NotScheduled\n  ns/web-0\n"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn of_a_target_without_pods_the_selector_is_told() {
        let set = json!({"metadata": {"name": "s"}, "spec": {"selector": {"matchLabels": {"app": "wbe"}}}});
        let none = json!({"metadata": {}, "items": []});
        let server = FakeServer::new([
            ("/apis/apps.kruise.io/v1alpha1/sidecarsets/s", set),
            ("/api/v1/pods", none),
        ]);
        let expected = "sidecarset s: Unobserved\n  no pod is selected: none has labels app=wbe\n";
        assert_eq!(explained(&server, "sidecarset/s").await, expected);
    }
}
