//! `kubectl leadsman explain`: why pods are marked as they are.

use std::collections::BTreeSet;

use clap_complete::engine::ArgValueCompleter;
use futures::future::try_join_all;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use leadsman_api::slim::{Node, Pod};
use leadsman_api::{Guarded, NodePodProbe, PodProbeMarker};
use leadsman_core::cluster::{ObjectName, nearest};
use leadsman_core::podprobe::explain::{
    Explanation, ObservedCluster, ObservedObjects, PodGroup, Unread, format_selector,
    group_by_causes,
};
use serde::{Deserialize, Serialize};

use crate::connection::Connection;
use crate::output::{self, Colors, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::recent_runs::{Agents, known_uids};
use crate::resources::{
    ApiResource, CRON_JOBS, JOBS, KINDS, MARKERS, NAMESPACES, NODE_POD_PROBES, NODES, PODS,
};
use crate::sidecars::{self, ExplainedSidecars, GroupedSidecars};
use crate::{VerbError, completion, text};

/// Up to so many nodes are read one by one, more of them as a list.
const FEW_NODES: usize = 8;

/// By which a Job's pods are known since Kubernetes 1.27 (`JobNameLabel`, `k8s.io/api/batch/v1`).
const JOB_NAME_LABEL: &str = "batch.kubernetes.io/job-name";

/// The flags of `explain`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman explain pod/game-0\n  kubectl leadsman explain deploy/game -n prod\n  kubectl leadsman explain -l app=game -A -o wide"
)]
pub struct Args {
    /// pod/NAME, deployment/NAME, statefulset/NAME, daemonset/NAME, replicaset/NAME, job/NAME, cronjob/NAME or cloneset/NAME; a
    /// NAME alone is a pod's
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
    connection: Connection,
}

/// Whose pods are explained.
pub(crate) enum PodsOf<'a> {
    Pod(&'a str),
    Workload(ApiResource, &'static str, &'a str),
    Selector(&'a str),
}

/// A workload, as far as its pods go.
#[derive(Deserialize)]
struct Workload {
    spec: WorkloadSpec,
}

#[derive(Deserialize)]
struct WorkloadSpec {
    #[serde(default)]
    selector: LabelSelector,
}

/// An object, as far as its owner goes.
#[derive(Deserialize)]
struct OwnedObject {
    metadata: ObjectMeta,
}

/// The answer for several pods.
#[derive(Serialize)]
struct Grouped {
    groups: Vec<PodGroup>,
    pods: Vec<Explanation>,
    #[serde(flatten)]
    sidecars: Option<GroupedSidecars>,
}

/// The pods of a workload or of a selector.
struct PodSelection<'a> {
    /// Whose, or by which selector.
    of: String,
    selection: ListSelection<'a>,
}

pub(crate) async fn run(args: &Args) -> Result<(), VerbError> {
    let words: Vec<_> = args.target.iter().map(String::as_str).collect();
    let target = parse_target(&words, args.selector.as_deref())?;
    let (reader, namespace) = args.connection.connect_reader().await?;
    let namespace = (!args.all_namespaces).then_some(namespace.as_str());
    let pods = read_pods(&reader, &target, namespace).await?;
    let now = reader.cluster_time().await;
    let uids = known_uids(&pods);
    let names: Vec<_> = pods
        .iter()
        .map(|pod| ObjectName::of(&pod.identity))
        .collect();
    let (mut explained, agents) = explain_pods(&reader, pods, now).await?;
    // For one pod alone, since each question is a command in the pod of an agent.
    if let ([one], false) = (explained.as_mut_slice(), args.no_runs) {
        reader.add_recent_runs(one, &agents, &uids).await;
    }
    let is_text = matches!(args.output, OutputFormat::Table | OutputFormat::Wide);
    let printed = match (names.as_slice(), explained.as_mut_slice()) {
        // For machines a workload is a list however many pods it has: a filter of jq must not fail after a scale-down to one.
        ([name], [one]) if is_text || matches!(target, PodsOf::Pod(_)) => {
            let sidecars = sidecars::read_sidecars(&reader, name, now).await;
            if let Some(sidecars) = &sidecars {
                sidecars.without_markers(one);
            }
            format_one_pod(args.output, one, sidecars.as_ref(), now)?
        }
        (_, pods) => {
            let selected = select_pods(&reader, &target, namespace).await?;
            let sidecars =
                sidecars::read_sidecars_of_group(&reader, &selected.selection, pods, now).await;
            format_many_pods(args.output, explained, sidecars, now)?
        }
    };
    output::print_text(&printed)
}

/// The answer for one pod.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OnePod<'a> {
    #[serde(flatten)]
    pod: &'a Explanation,
    #[serde(flatten)]
    sidecars: Option<&'a ExplainedSidecars>,
}

fn format_one_pod(
    format: OutputFormat,
    pod: &Explanation,
    sidecars: Option<&ExplainedSidecars>,
    now: Timestamp,
) -> Result<String, VerbError> {
    match output::format_structured(format, &OnePod { pod, sidecars }) {
        Some(text) => text,
        None if format == OutputFormat::Name => Ok(format!("pod/{}\n", pod.name)),
        None => {
            let sidecars = sidecars.map(|sidecars| sidecars.to_text(format == OutputFormat::Wide));
            Ok(text::pod_text(pod, now) + &sidecars.unwrap_or_default())
        }
    }
}

fn format_many_pods(
    format: OutputFormat,
    pods: Vec<Explanation>,
    sidecars: Option<GroupedSidecars>,
    now: Timestamp,
) -> Result<String, VerbError> {
    let groups = group_by_causes(&pods);
    let grouped = Grouped {
        groups,
        pods,
        sidecars,
    };
    match output::format_structured(format, &grouped) {
        Some(text) => text,
        None if format == OutputFormat::Name => {
            let names = grouped.pods.iter().map(|pod| format!("pod/{}\n", pod.name));
            Ok(names.collect())
        }
        None => {
            let is_wide = format == OutputFormat::Wide;
            let text = text::groups_text(&grouped.groups, &grouped.pods, is_wide, now);
            let sidecars = grouped.sidecars.map(|sidecars| sidecars.to_text(is_wide));
            Ok(text + &sidecars.unwrap_or_default())
        }
    }
}

/// `TYPE/NAME`, `TYPE NAME`, or the name of a pod.
pub(crate) fn parse_target<'a>(
    words: &[&'a str],
    selector: Option<&'a str>,
) -> Result<PodsOf<'a>, VerbError> {
    let (kind, name) = match (selector, words) {
        (Some(selector), _) => return Ok(PodsOf::Selector(selector)),
        (None, [both]) => match both.split_once('/') {
            Some(pair) => pair,
            None => return Ok(PodsOf::Pod(both)),
        },
        (None, [kind, name]) => (*kind, *name),
        (None, _) => return Err(VerbError::Usage("name a pod: pod/NAME".to_owned())),
    };
    let known = KINDS.iter().find(|(_, names)| names.contains(&kind));
    let Some((resource, names)) = known else {
        let names = KINDS.iter().flat_map(|(_, names)| names.iter().copied());
        let meant = nearest(kind, names).map(|near| format!("; did you mean {near}/{name}?"));
        let meant = meant.unwrap_or_default();
        let all: Vec<_> = KINDS.iter().map(|(_, names)| names[0]).collect();
        return Err(VerbError::Usage(format!(
            "{kind} cannot be explained, only {} or a selector (-l){meant}",
            all.join(", ")
        )));
    };
    Ok(match *resource {
        PODS => PodsOf::Pod(name),
        resource => PodsOf::Workload(resource, names[0], name),
    })
}

pub(crate) async fn read_pods(
    reader: &Reader,
    target: &PodsOf<'_>,
    namespace: Option<&str>,
) -> Result<Vec<Pod>, VerbError> {
    if let PodsOf::Pod(name) = target {
        let pod = reader.get_object::<Pod>(PODS, namespace, name).await;
        return match pod.map_err(VerbError::Unread)? {
            Some(pod) => Ok(vec![pod]),
            None => Err(no_such_object(reader, PODS, "pod", name, namespace).await),
        };
    }
    let PodSelection { of, selection } = select_pods(reader, target, namespace).await?;
    let pods = reader.list_objects::<Pod>(PODS, &selection).await;
    let pods = pods.map_err(VerbError::Unread)?;
    if pods.is_empty() {
        if let Some(namespace) = namespace
            && let Some(error) = no_such_namespace(reader, namespace).await
        {
            return Err(error);
        }
        let place = namespace.map_or("in any namespace".to_owned(), |name| {
            format!("in namespace {name}")
        });
        return Err(VerbError::NoPods { of, place });
    }
    Ok(pods)
}

/// The pods of a target, by their labels; one pod by its name.
async fn select_pods<'a>(
    reader: &Reader,
    target: &PodsOf<'_>,
    namespace: Option<&'a str>,
) -> Result<PodSelection<'a>, VerbError> {
    let (of, labels, fields) = match target {
        PodsOf::Pod(name) => (
            format!("named {name}"),
            None,
            Some(format!("metadata.name={name}")),
        ),
        PodsOf::Workload(CRON_JOBS, kind, name) => {
            let jobs = read_job_names(reader, kind, name, namespace).await?;
            let labels = format!("{JOB_NAME_LABEL} in ({})", jobs.join(","));
            (format!("of {kind} {name}"), Some(labels), None)
        }
        PodsOf::Workload(resource, kind, name) => {
            let workload = reader
                .get_object::<Workload>(*resource, namespace, name)
                .await;
            let Some(workload) = workload.map_err(VerbError::Unread)? else {
                return Err(no_such_object(reader, *resource, kind, name, namespace).await);
            };
            // By the selector, as `kubectl logs` finds the pods of a workload (`SelectorsForObject`,
            // `k8s.io/kubectl/pkg/polymorphichelpers/helpers.go`): owner references would cost a list of ReplicaSets too.
            let labels = format_selector(&workload.spec.selector);
            let labels = labels.map_err(|error| VerbError::Usage(error.to_string()))?;
            (format!("of {kind} {name}"), Some(labels), None)
        }
        PodsOf::Selector(selector) => {
            let labels = Some((*selector).to_owned());
            (format!("with labels {selector}"), labels, None)
        }
    };
    let selection = ListSelection {
        namespace,
        labels,
        fields,
        page: 500,
    };
    Ok(PodSelection { of, selection })
}

/// The names of the Jobs that a `CronJob` made and that are still there.
async fn read_job_names(
    reader: &Reader,
    kind: &'static str,
    name: &str,
    namespace: Option<&str>,
) -> Result<Vec<String>, VerbError> {
    let found = reader
        .get_object::<OwnedObject>(CRON_JOBS, namespace, name)
        .await;
    let Some(owner) = found.map_err(VerbError::Unread)? else {
        return Err(no_such_object(reader, CRON_JOBS, kind, name, namespace).await);
    };
    let selection = ListSelection {
        namespace,
        page: 500,
        ..ListSelection::default()
    };
    let jobs = reader.list_objects::<OwnedObject>(JOBS, &selection).await;
    let jobs = jobs.map_err(VerbError::Unread)?.into_iter();
    let is_own = |job: &OwnedObject| {
        let mut owners = job.metadata.owner_references.iter().flatten();
        // By the uid, since Jobs of an earlier CronJob of that name may still be there.
        owners.any(|it| it.controller == Some(true) && Some(&it.uid) == owner.metadata.uid.as_ref())
    };
    let names: Vec<_> = jobs
        .filter(is_own)
        .filter_map(|job| job.metadata.name)
        .collect();
    if names.is_empty() {
        return Err(VerbError::NoPods {
            of: format!("of {kind} {name}"),
            place: format!(
                "in namespace {}: it has no Job now (kubectl create job --from=cronjob/{name} NAME makes one)",
                namespace.unwrap_or_default()
            ),
        });
    }
    Ok(names)
}

/// That there is no object of this name, and which one is near.
pub(crate) async fn no_such_object(
    reader: &Reader,
    resource: ApiResource,
    kind: &'static str,
    name: &str,
    namespace: Option<&str>,
) -> VerbError {
    let selection = ListSelection {
        namespace,
        page: 500,
        ..ListSelection::default()
    };
    let known = reader
        .list_objects::<completion::NamedObject>(resource, &selection)
        .await;
    // There is nothing of the kind: perhaps the namespace itself is mistyped.
    if let (Ok([]), Some(namespace)) = (known.as_deref(), namespace)
        && let Some(error) = no_such_namespace(reader, namespace).await
    {
        return error;
    }
    let known = known.unwrap_or_default();
    let names = known.iter().map(completion::NamedObject::name);
    let near = nearest(name, names);
    VerbError::NoSuchObject {
        kind,
        name: name.to_owned(),
        place: namespace
            .map(|namespace| format!(" in namespace {namespace}"))
            .unwrap_or_default(),
        suggestion: near
            .map(|near| format!("; did you mean {near}?"))
            .unwrap_or_default(),
    }
}

/// That there is no namespace of this name, and which one is near. None if there is one, or if that may not be known.
async fn no_such_namespace(reader: &Reader, name: &str) -> Option<VerbError> {
    let found = reader.get_object::<completion::NamedObject>(NAMESPACES, None, name);
    if found.await.ok()?.is_some() {
        return None;
    }
    let all = ListSelection {
        page: 500,
        ..ListSelection::default()
    };
    let known = reader.list_objects::<completion::NamedObject>(NAMESPACES, &all);
    let suggestion = match known.await {
        Ok(known) => {
            let near = nearest(name, known.iter().map(completion::NamedObject::name));
            near.map(|near| format!("; did you mean {near}?"))
        }
        Err(Unread(why)) => Some(format!("; what was meant is not known: {why}")),
    };
    Some(VerbError::NoSuchObject {
        kind: "namespace",
        name: name.to_owned(),
        place: String::new(),
        suggestion: suggestion.unwrap_or_default(),
    })
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
    let one_namespace = namespaces.first().filter(|_| namespaces.len() == 1);
    let one_namespace = one_namespace.map(String::as_str);
    let observed = observe_pods(reader, pods, one_namespace, now).await?;
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
    let markers = markers.map_err(VerbError::Unread)?;
    Ok(ObservedObjects {
        config: install.config,
        gate: install.gate,
        markers,
        pods,
        nodes,
        node_pod_probes,
        agents,
        manager: install.manager,
    })
}

async fn read_markers(
    reader: &Reader,
    namespace: Option<&str>,
) -> Result<Vec<Guarded<PodProbeMarker>>, Unread> {
    let selection = ListSelection {
        namespace,
        page: 250,
        ..ListSelection::default()
    };
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
        let selection = ListSelection {
            page,
            ..ListSelection::default()
        };
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
    use rstest::rstest;

    use super::*;
    use crate::CommandLine;

    #[rstest]
    #[case(&["p"], "pod p")]
    #[case(&["po/p"], "pod p")]
    #[case(&["pods", "p"], "pod p")]
    #[case(&["deploy/web"], "deployments web")]
    #[case(&["job/once"], "jobs once")]
    #[case(&["cj/nightly"], "cronjobs nightly")]
    #[case(&["clone", "web"], "clonesets web")]
    #[case(&["sts", "db"], "statefulsets db")]
    #[case(&["-l", "app=x"], "app=x")]
    #[case(&["dployment/web"], "dployment cannot be explained, only pod, deployment, statefulset, daemonset, replicaset, job, cronjob, cloneset or a selector (-l); did you mean deployment/web?")]
    fn a_target_is_written_as_for_kubectl(#[case] words: &[&str], #[case] expected: &str) {
        let words = std::iter::once("explain").chain(words.iter().copied());
        let line = CommandLine::<Args>::try_parse_from(words).unwrap();
        let words: Vec<_> = line.args.target.iter().map(String::as_str).collect();
        let found = match parse_target(&words, line.args.selector.as_deref()) {
            Ok(PodsOf::Pod(name)) => format!("pod {name}"),
            Ok(PodsOf::Workload(resource, _, name)) => format!("{} {name}", resource.plural),
            Ok(PodsOf::Selector(selector)) => selector.to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_target_or_a_selector_is_required() {
        assert!(CommandLine::<Args>::try_parse_from(["explain"]).is_err());
        assert!(CommandLine::<Args>::try_parse_from(["explain", "p", "-l", "a=b"]).is_err());
        assert!(CommandLine::<Args>::try_parse_from(["explain", "p", "-A"]).is_err());
    }
}
