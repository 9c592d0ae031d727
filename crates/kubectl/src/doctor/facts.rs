//! Reading what runs, with the rights of whoever asks.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_admission::CONFIGURATION;
use leadsman_api::{Guarded, NodePodProbe, PodProbeMarker, slim};
use leadsman_core::podprobe::explain::{
    MarkerSummary, ObservedCluster, ObservedObjects, Unread, summarize_marker,
};
use leadsman_manager::preflight::MarkerSurvey;
use serde::Deserialize;
use serde_json::Value;

use super::running::LATE_AFTER;
use crate::install::Install;
use crate::reader::{ListSelection, Reader};
use crate::resources::{
    DAEMON_SETS, ENDPOINT_SLICES, MARKERS, NODE_POD_PROBES, NODES, PODS, SERVICES,
    VALIDATING_WEBHOOKS, WEBHOOKS,
};

/// The DaemonSet of the agents.
pub(super) const DAEMON_SET: &str = "leadsman-agent";
/// The most namespaces that are listed at once.
const AT_ONCE: usize = 4;

/// The running parts of an installation, as they were read.
#[derive(Debug)]
pub(super) struct InstallHealth {
    pub(super) now: Timestamp,
    pub(super) install: Install,
    pub(super) daemon_set: Result<Option<DaemonSet>, Unread>,
    pub(super) agents: Result<Vec<Pod>, Unread>,
    pub(super) nodes: Result<Vec<NodeHealth>, Unread>,
    pub(super) reports: Result<Reports, Unread>,
    pub(super) webhook: Result<Option<MutatingWebhookConfiguration>, Unread>,
    /// The configuration of the webhook that refuses invalid sets, where the manager acts on sets.
    pub(super) set_webhook: Option<Result<Option<ValidatingWebhookConfiguration>, Unread>>,
    pub(super) services: Vec<Result<ServiceHealth, Unread>>,
}

/// The facts about a node.
#[derive(Clone, Debug)]
pub(super) struct NodeHealth {
    pub(super) name: String,
    pub(super) labels: slim::Pairs,
    pub(super) is_ready: bool,
}

/// Markers, and what agents and manager made of them.
#[derive(Debug, Default)]
pub(super) struct Reports {
    pub(super) markers: Vec<MarkerSummary>,
    pub(super) silent_nodes: Vec<String>,
    pub(super) late_pods: Vec<String>,
    /// The survey of the markers, for the checks of preflight.
    pub(super) survey: MarkerSurvey,
}

/// A Service by which the API server calls the webhook.
#[derive(Debug)]
pub(super) struct ServiceHealth {
    /// `NAMESPACE/NAME`.
    pub(super) name: String,
    pub(super) exists: bool,
    pub(super) ready_endpoints: usize,
}

#[derive(Deserialize)]
struct ReadNode {
    metadata: ObjectMeta,
    #[serde(default)]
    status: ReadNodeStatus,
}

#[derive(Default, Deserialize)]
struct ReadNodeStatus {
    #[serde(default)]
    conditions: Vec<NodeCondition>,
}

#[derive(Deserialize)]
struct NodeCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// Reads all of it.
pub(super) async fn read_health(reader: &Reader, install: Install) -> InstallHealth {
    let namespace = install.config.agent_namespace.clone();
    let all_nodes = ListSelection::of(None, 500);
    let (daemon_set, agents, nodes, webhook) = futures::join!(
        reader.get_object::<DaemonSet>(DAEMON_SETS, Some(&namespace), DAEMON_SET),
        // Pods are read as JSON, since the checks read an agent's pod as Kubernetes' type, and the rules as one of ours.
        reader.read_agents::<Value>(&namespace, None),
        reader.list_objects::<ReadNode>(NODES, &all_nodes),
        reader.get_object::<MutatingWebhookConfiguration>(WEBHOOKS, None, CONFIGURATION),
    );
    let nodes = nodes.map(|nodes| nodes.into_iter().map(to_node_health).collect::<Vec<_>>());
    let set_webhook = if install.gates.sidecar_set {
        let read = reader.get_object(VALIDATING_WEBHOOKS, None, CONFIGURATION);
        Some(read.await)
    } else {
        None
    };
    let services = read_services(reader, webhook.as_ref().ok().and_then(Option::as_ref)).await;
    let reports = read_reports(reader, &install, agents.as_deref(), nodes.as_deref()).await;
    InstallHealth {
        now: reader.cluster_time().await,
        install,
        daemon_set,
        agents: agents.map(|agents| decode_each(&agents)),
        nodes,
        reports,
        webhook,
        set_webhook,
        services,
    }
}

fn to_node_health(wire: ReadNode) -> NodeHealth {
    let mut conditions = wire.status.conditions.iter();
    let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    NodeHealth {
        name: wire.metadata.name.unwrap_or_default(),
        labels: wire
            .metadata
            .labels
            .unwrap_or_default()
            .into_iter()
            .collect(),
        is_ready,
    }
}

/// Decodes objects, and leaves out those that cannot be decoded.
fn decode_each<T: serde::de::DeserializeOwned>(objects: &[Value]) -> Vec<T> {
    let all = objects
        .iter()
        .filter_map(|object| serde_json::from_value(object.clone()).ok());
    all.collect()
}

/// Markers, their pods, and the reports of all agents.
async fn read_reports(
    reader: &Reader,
    install: &Install,
    agents: Result<&[Value], &Unread>,
    nodes: Result<&[NodeHealth], &Unread>,
) -> Result<Reports, Unread> {
    let page = |page| ListSelection::of(None, page);
    let markers: Vec<Guarded<PodProbeMarker>> = reader.list_objects(MARKERS, &page(250)).await?;
    let summaries: Vec<_> = markers
        .iter()
        .map(|marker| summarize_marker(marker).1)
        .collect();
    let namespaces: BTreeSet<_> = summaries.iter().map(|it| it.namespace.clone()).collect();
    let pods = stream::iter(&namespaces).map(|namespace| {
        let selection = ListSelection::of(Some(namespace), 500);
        async move { reader.list_objects::<slim::Pod>(PODS, &selection).await }
    });
    let pods: Vec<Vec<_>> = pods.buffered(AT_ONCE).try_collect().await?;
    // The reports are read after the pods: what is reported by now was on its way when those were read.
    let node_pod_probes = reader
        .list_objects::<NodePodProbe>(NODE_POD_PROBES, &page(50))
        .await?;
    let nodes = nodes.map(|nodes| nodes.iter().map(to_slim_node).collect());
    let pods = pods.concat();
    let survey = MarkerSurvey::of(&markers, &pods);
    let observed = ObservedObjects {
        config: install.config.clone(),
        gate: install.gates.pod_probe_marker,
        markers,
        pods,
        neighbours: Vec::new(),
        nodes: nodes.map_err(Clone::clone),
        node_pod_probes: Ok(node_pod_probes),
        agents: agents.map(decode_each).map_err(Clone::clone),
        manager: install.manager.clone(),
    };
    let cluster = ObservedCluster::new(observed, reader.cluster_time().await);
    let late = cluster.late_pods(LATE_AFTER).into_iter();
    Ok(Reports {
        markers: summaries,
        silent_nodes: cluster.silent_nodes(),
        late_pods: late.map(ToString::to_string).collect(),
        survey,
    })
}

fn to_slim_node(node: &NodeHealth) -> slim::Node {
    slim::Node {
        identity: ObjectMeta {
            name: Some(node.name.clone()),
            ..ObjectMeta::default()
        },
        labels: node.labels.clone(),
        ..slim::Node::default()
    }
}

/// The Services that a webhook configuration names.
async fn read_services(
    reader: &Reader,
    configuration: Option<&MutatingWebhookConfiguration>,
) -> Vec<Result<ServiceHealth, Unread>> {
    let hooks = configuration
        .iter()
        .flat_map(|it| it.webhooks.iter().flatten());
    let services = hooks.filter_map(|hook| {
        let service = hook.client_config.service.as_ref()?;
        Some((service.namespace.as_str(), service.name.as_str()))
    });
    let mut all = Vec::new();
    for (namespace, name) in services.collect::<BTreeSet<_>>() {
        all.push(read_service(reader, namespace, name).await);
    }
    all
}

async fn read_service(
    reader: &Reader,
    namespace: &str,
    name: &str,
) -> Result<ServiceHealth, Unread> {
    let service = reader
        .get_object::<Service>(SERVICES, Some(namespace), name)
        .await?;
    let of_service = ListSelection {
        labels: Some(format!("kubernetes.io/service-name={name}")),
        ..ListSelection::of(Some(namespace), 100)
    };
    let slices = reader
        .list_objects::<EndpointSlice>(ENDPOINT_SLICES, &of_service)
        .await?;
    // `ready` absent means yes (EndpointConditions, k8s.io/api/discovery/v1/types.go).
    let endpoints = slices
        .iter()
        .flat_map(|slice| slice.endpoints.iter().flatten());
    let ready = endpoints.filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|it| it.ready).unwrap_or(true)
    });
    Ok(ServiceHealth {
        name: format!("{namespace}/{name}"),
        exists: service.is_some(),
        ready_endpoints: ready.count(),
    })
}
