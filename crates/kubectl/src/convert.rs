//! `kubectl leadsman convert`: a probe of a pod or a workload, or a marker as OpenKruise has it, as a marker ready to apply.
//!
//! The marker goes to standard output, what cannot be carried over to standard error. Nothing is written.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::ValueHint;
use clap_complete::engine::ArgValueCompleter;
use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use leadsman_api::PodProbeMarker;
use leadsman_core::cluster::nearest;
use leadsman_core::podprobe::{Compatibility, Marker};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::connection::Connection;
use crate::explain::{PodsOf, no_such_object, parse_target};
use crate::output::{self, ObjectFormat};
use crate::reader::Reader;
use crate::resources::PODS;
use crate::trial::documents;
use crate::{VerbError, completion};

/// The flags of `convert`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman convert pod/game-0 --container game --probe readiness\n  kubectl leadsman convert -f deployment.yaml --probe liveness\n  kubectl get podprobemarkers -o yaml | kubectl leadsman convert -f -"
)]
pub struct Args {
    /// pod/NAME, deployment/NAME, statefulset/NAME, daemonset/NAME, replicaset/NAME, job/NAME, cronjob/NAME or cloneset/NAME; a
    /// NAME alone is a pod's
    #[arg(value_name = "TYPE/NAME", num_args = 0..=2, required_unless_present = "file", add = ArgValueCompleter::new(completion::complete_targets))]
    target: Vec<String>,
    /// File with pods, workloads or OpenKruise's markers, - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", conflicts_with = "target", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// The container [default: the only one]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Which of its probes [default: the only one]
    #[arg(long, value_name = "PROBE")]
    probe: Option<ProbeKind>,
    /// Type of the pod's condition that shows the verdict [default: CONTAINER-PROBE]
    #[arg(long, value_name = "TYPE")]
    condition: Option<String>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    output: ObjectFormat,
    #[command(flatten)]
    connection: Connection,
}

/// A probe that the kubelet runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProbeKind {
    Liveness,
    Readiness,
    Startup,
}

impl ProbeKind {
    const ALL: [Self; 3] = [Self::Liveness, Self::Readiness, Self::Startup];

    fn name(self) -> &'static str {
        match self {
            Self::Liveness => "liveness",
            Self::Readiness => "readiness",
            Self::Startup => "startup",
        }
    }
}

/// Which probe is meant, and how its verdict is shown.
#[derive(Clone, Debug, Default)]
struct Choice<'a> {
    container: Option<&'a str>,
    probe: Option<ProbeKind>,
    condition: Option<&'a str>,
}

/// A marker, and what could not be carried over.
#[derive(Debug)]
struct Converted {
    marker: Value,
    remarks: Vec<String>,
}

pub(crate) async fn run(args: &Args) -> Result<(), VerbError> {
    let objects = match &args.file {
        Some(file) => documents::parse_objects(&documents::read_file(file)?)?,
        None => vec![read_object(args).await?],
    };
    let choice = Choice {
        container: args.container.as_deref(),
        probe: args.probe,
        condition: args.condition.as_deref(),
    };
    let mut markers = Vec::new();
    let mut errors = 0;
    for object in &objects {
        let converted = convert_object(object, &choice)?;
        let name = &converted.marker["metadata"]["name"];
        for remark in &converted.remarks {
            let name = name.as_str().unwrap_or_default();
            output::print_remark(&format!("{name}: {remark}"));
        }
        errors += converted.report_errors();
        markers.push(converted.marker);
    }
    if markers.is_empty() {
        let file = args.file.as_deref().unwrap_or(Path::new("-"));
        let message = format!("{} has no object", file.display());
        return Err(VerbError::Usage(message));
    }
    // All of them at the end: an object that cannot be converted leaves no half of an answer in a pipe.
    output::print_text(&output::objects(args.output, &markers)?)?;
    match errors {
        0 => Ok(()),
        count => Err(VerbError::Found(format!(
            "{count} fields have to be corrected before this can be applied"
        ))),
    }
}

async fn read_object(args: &Args) -> Result<Value, VerbError> {
    let words: Vec<_> = args.target.iter().map(String::as_str).collect();
    let (resource, kind, name) = match parse_target(&words, None)? {
        PodsOf::Pod(name) => (PODS, "pod", name),
        PodsOf::Workload(resource, kind, name) => (resource, kind, name),
        PodsOf::Selector(_) => {
            let message = "convert takes one object, not a selector";
            return Err(VerbError::Usage(message.to_owned()));
        }
    };
    let connected = args.connection.connect_client().await;
    let connected = connected.map_err(|error| VerbError::Connection(Box::new(error)))?;
    let reader = Reader::new(connected.server);
    let namespace = Some(connected.namespace.as_str());
    let found = reader.get_object::<Value>(resource, namespace, name).await;
    let Some(mut object) = found.map_err(VerbError::Unread)? else {
        return Err(no_such_object(&reader, resource, kind, name, namespace).await);
    };
    if resource == PODS {
        object["kind"] = json!("Pod");
    }
    Ok(object)
}

impl Converted {
    /// Prints what the manager would refuse. Returns how many errors these are.
    fn report_errors(&self) -> usize {
        let errors = match decode_object::<PodProbeMarker>(&self.marker) {
            Ok(marker) => Marker::parse(&marker, Compatibility::default()).err(),
            Err(error) => {
                output::print_remark(&error.to_string());
                return 1;
            }
        };
        let errors = errors.unwrap_or_default();
        for error in &errors {
            output::print_remark(&error.to_string());
        }
        errors.len()
    }
}

fn decode_object<T: DeserializeOwned>(value: &Value) -> Result<T, VerbError> {
    let decoded = serde_json::from_value(value.clone());
    decoded.map_err(|error| VerbError::Usage(format!("the object cannot be decoded: {error}")))
}

fn convert_object(object: &Value, choice: &Choice<'_>) -> Result<Converted, VerbError> {
    if object["kind"] == "PodProbeMarker" {
        if choice.container.is_some() || choice.probe.is_some() || choice.condition.is_some() {
            return Err(VerbError::Usage(
                "--container, --probe and --condition choose a probe of a pod; the file has a PodProbeMarker, which is converted whole"
                    .to_owned(),
            ));
        }
        return Ok(convert_openkruise(object));
    }
    convert_pods(object, choice)
}

/// A marker as `OpenKruise` has it: what only its controllers write is left out, and defaults that differ are spelled out.
fn convert_openkruise(object: &Value) -> Converted {
    let mut remarks = Vec::new();
    let known = &object["metadata"];
    let mut metadata = Map::new();
    for field in ["name", "namespace", "labels"] {
        if !known[field].is_null() {
            metadata.insert(field.to_owned(), known[field].clone());
        }
    }
    let annotations = known["annotations"].as_object().cloned();
    let (of_kubectl, annotations): (Map<_, _>, Map<_, _>) = annotations
        .into_iter()
        .flatten()
        .partition(|(key, _)| key.starts_with("kubectl.kubernetes.io/"));
    for key in of_kubectl.keys() {
        remarks.push(format!("annotation {key} is left out: kubectl writes it"));
    }
    let owners = known["ownerReferences"].as_array().into_iter().flatten();
    for owner in owners {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        remarks.push(format!(
            "owner {} {} is left out: it would have the marker deleted with it, and may write it anew",
            text("kind"),
            text("name")
        ));
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    let finalizers = known["finalizers"].as_array().into_iter().flatten();
    for finalizer in finalizers.filter_map(Value::as_str) {
        remarks.push(format!(
            "finalizer {finalizer} is left out: a clean-up needs none"
        ));
    }
    let mut spec = object["spec"].clone();
    let probes = spec.get_mut("probes").and_then(Value::as_array_mut);
    for entry in probes.into_iter().flatten() {
        let name = entry["name"].as_str().unwrap_or_default().to_owned();
        let Some(probe) = entry.get_mut("probe").and_then(Value::as_object_mut) else {
            continue;
        };
        // `OpenKruise` takes 1 for what is left out (`pkg/daemon/podprobe/worker.go`), leadsman what Kubernetes takes.
        for field in ["initialDelaySeconds", "periodSeconds", "failureThreshold"] {
            let value = probe.get(field).and_then(Value::as_i64);
            if value.unwrap_or_default() == 0 {
                probe.insert(field.to_owned(), json!(1));
                remarks.push(format!(
                    "probe {name}: {field} is 1, which OpenKruise takes for what is left out"
                ));
            }
        }
        carry_probe(&name, probe, &mut remarks);
    }
    Converted {
        marker: build_marker(&metadata, &spec),
        remarks,
    }
}

fn build_marker(metadata: &Map<String, Value>, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{}/{}", leadsman_api::GROUP, leadsman_api::VERSION),
        "kind": "PodProbeMarker",
        "metadata": metadata,
        "spec": spec,
    })
}

/// The fields of a marker's probe.
const PROBE_FIELDS: &[&str] = &[
    "exec",
    "httpGet",
    "tcpSocket",
    "grpc",
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
];

/// Takes out of a probe what a marker's cannot have.
fn carry_probe(name: &str, probe: &mut Map<String, Value>, remarks: &mut Vec<String>) {
    for handler in ["httpGet", "tcpSocket"] {
        let fields = probe.get_mut(handler).and_then(Value::as_object_mut);
        let host = fields.and_then(|fields| fields.remove("host"));
        if let Some(host) = host.as_ref().and_then(Value::as_str)
            && !host.is_empty()
        {
            remarks.push(format!(
                "probe {name}: {handler}.host {host} is left out: a probe goes to its own pod"
            ));
        }
    }
    if probe.remove("terminationGracePeriodSeconds").is_some() {
        remarks.push(format!(
            "probe {name}: terminationGracePeriodSeconds is left out: a marker's probe ends no pod"
        ));
    }
    let unknown: Vec<_> = probe
        .keys()
        .filter(|field| !PROBE_FIELDS.contains(&field.as_str()))
        .cloned()
        .collect();
    for field in unknown {
        probe.remove(&field);
        remarks.push(format!(
            "probe {name}: {field} is left out: no probe has such a field"
        ));
    }
    let exec = probe.get("exec");
    let command = exec.and_then(|exec| exec["command"].as_array());
    let command = command.into_iter().flatten();
    if command
        .filter_map(Value::as_str)
        .any(|word| word.contains("$("))
    {
        remarks.push(format!(
            "probe {name}: the command has $(…), which the kubelet replaces and leadsman does not; use a shell and ${{…}}"
        ));
    }
}

/// A probe of the pods of a workload, or of one pod.
fn convert_pods(object: &Value, choice: &Choice<'_>) -> Result<Converted, VerbError> {
    let kind = object["kind"].as_str().unwrap_or("object");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut remarks = Vec::new();
    let (spec, selector) = pod_spec_and_selector(object, &mut remarks).ok_or_else(|| {
        VerbError::Usage(format!(
            "{kind} {name} has no containers with labels: convert takes pods, workloads and PodProbeMarkers"
        ))
    })?;
    let container = find_container(spec, choice.container)?;
    let container_name = container["name"].as_str().unwrap_or_default();
    let (probe_kind, probe) = find_probe(container, choice.probe)?;
    let mut probe = probe.as_object().cloned().unwrap_or_default();
    let probe_name = probe_kind.name();
    carry_probe(probe_name, &mut probe, &mut remarks);
    if probe_kind == ProbeKind::Startup {
        remarks.push(
            "the startup probe ends with its first success; a marker's probe begins then, and goes on"
                .to_owned(),
        );
    }
    let condition = choice.condition.map_or_else(
        || format!("{container_name}-{probe_name}"),
        ToOwned::to_owned,
    );
    remarks.push(format!(
        "its verdict is the pod's condition {condition}; for labels and annotations add a markerPolicy"
    ));
    let mut metadata = Map::new();
    metadata.insert("name".to_owned(), json!(format!("{name}-{probe_name}")));
    if let Some(namespace) = object["metadata"]["namespace"].as_str() {
        metadata.insert("namespace".to_owned(), json!(namespace));
    }
    // Whatever else a probe's object has is not of Kubernetes.
    let probe = decode_object::<Probe>(&Value::Object(probe))?;
    let spec = json!({
        "selector": selector,
        "probes": [{
            "name": probe_name,
            "containerName": container_name,
            "podConditionType": condition,
            "probe": probe,
        }],
    });
    Ok(Converted {
        marker: build_marker(&metadata, &spec),
        remarks,
    })
}

/// Labels that a controller gives each pod, or each revision: a selector with them would match one pod, or none after the
/// next update (`k8s.io/api/apps/v1/types.go`, `k8s.io/api/batch/v1/types.go`).
const OF_CONTROLLERS: &[&str] = &[
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/job-completion-index",
];

/// The spec of the pods of an object, and a selector of them.
fn pod_spec_and_selector<'a>(
    object: &'a Value,
    remarks: &mut Vec<String>,
) -> Option<(&'a Value, LabelSelector)> {
    let template = ["/spec/template", "/spec/jobTemplate/spec/template"];
    let template = template.iter().find_map(|path| object.pointer(path));
    let pods = template.unwrap_or(object);
    let spec = pods
        .get("spec")
        .filter(|spec| spec["containers"].is_array())?;
    // A pod has none, and neither has a CronJob, nor a Job before it is created.
    let own = template.and_then(|_| object.pointer("/spec/selector"));
    let own = own.and_then(|own| serde_json::from_value::<LabelSelector>(own.clone()).ok());
    if let Some(mut selector) = own {
        let labels = selector.match_labels.as_mut();
        let is_users = |key: &String| !OF_CONTROLLERS.contains(&key.as_str());
        // Labels of controllers stay where there are no others: an empty selector would match every pod of the namespace.
        if let Some(labels) = labels.filter(|labels| labels.keys().any(is_users)) {
            labels.retain(|key, _| {
                let is_users = is_users(key);
                if !is_users {
                    remarks.push(format!(
                        "label {key} is left out of the selector: a controller gives each revision another"
                    ));
                }
                is_users
            });
        }
        return Some((spec, selector));
    }
    let labels = pods["metadata"]["labels"].as_object();
    let labels = labels.filter(|labels| !labels.is_empty())?;
    let is_users = |key: &String| !OF_CONTROLLERS.contains(&key.as_str());
    let has_users = labels.keys().any(is_users);
    let labels = labels.iter();
    let labels = labels.filter(|(key, _)| is_users(key) || !has_users);
    let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    remarks.push(
        "the selector has all labels of the pod: leave out those that the others lack".to_owned(),
    );
    let selector = LabelSelector {
        match_labels: Some(labels.collect()),
        ..LabelSelector::default()
    };
    Some((spec, selector))
}

fn find_container<'a>(spec: &'a Value, name: Option<&str>) -> Result<&'a Value, VerbError> {
    let sidecars = spec["initContainers"].as_array().into_iter().flatten();
    // Of init containers these alone go on and may have probes (KEP-753).
    let sidecars = sidecars.filter(|container| container["restartPolicy"] == "Always");
    let containers = spec["containers"].as_array().into_iter().flatten();
    let all: Vec<_> = containers.chain(sidecars).collect();
    let name_of = |container: &'a Value| container["name"].as_str().unwrap_or_default();
    let names = || all.iter().map(|container| name_of(container));
    let listed = || names().collect::<Vec<_>>().join(", ");
    match (name, all.as_slice()) {
        (None, [only]) => Ok(only),
        (None, _) => Err(VerbError::Usage(format!(
            "which container? --container {}",
            names().collect::<Vec<_>>().join(" or ")
        ))),
        (Some(name), _) => {
            let found = all.iter().find(|container| name_of(container) == name);
            found.copied().ok_or_else(|| {
                let meant = match nearest(name, names()) {
                    Some(near) => format!("did you mean {near}?"),
                    None => format!("there is {}", listed()),
                };
                VerbError::Usage(format!("no container {name}; {meant}"))
            })
        }
    }
}

fn find_probe(
    container: &Value,
    kind: Option<ProbeKind>,
) -> Result<(ProbeKind, &Value), VerbError> {
    let name = container["name"].as_str().unwrap_or_default();
    let own = ProbeKind::ALL.into_iter().filter_map(|kind| {
        let probe = container.get(format!("{}Probe", kind.name()))?;
        Some((kind, probe))
    });
    let own: Vec<_> = own.collect();
    let listed = |between: &str| {
        let names: Vec<_> = own.iter().map(|(kind, _)| kind.name()).collect();
        names.join(between)
    };
    match (kind, own.as_slice()) {
        (_, []) => Err(VerbError::Usage(format!("container {name} has no probe"))),
        (None, [only]) => Ok(*only),
        (None, _) => Err(VerbError::Usage(format!(
            "which probe of container {name}? --probe {}",
            listed(" or ")
        ))),
        (Some(kind), own) => {
            let found = own.iter().find(|(one, _)| *one == kind);
            found.copied().ok_or_else(|| {
                VerbError::Usage(format!(
                    "container {name} has no {} probe, only {}",
                    kind.name(),
                    listed(", ")
                ))
            })
        }
    }
}

#[cfg(test)]
mod tests;
