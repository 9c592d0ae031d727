//! Pods from files, and those that workloads of files would make: their templates.

use serde_json::{Map, Value, json};

use crate::VerbError;

/// A pod as it would be sent to the API server.
#[derive(Debug)]
pub(super) struct FilePod {
    /// The kind of the object in the file.
    pub(super) kind: String,
    /// The name of that object, or its `generateName`.
    pub(super) name: String,
    /// The namespace of the pod.
    pub(super) namespace: String,
    /// The pod.
    pub(super) object: Map<String, Value>,
}

/// The pods of files, and those of the workloads in them. `namespace` is that of the command line or of the context; given
/// on the command line it must be that of each object.
pub(super) fn find_pods(
    objects: Vec<Value>,
    namespace: &str,
    is_given: bool,
) -> Result<Vec<FilePod>, VerbError> {
    let mut pods = Vec::new();
    let mut others = Vec::new();
    for object in objects {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        match FilePod::from_object(&object, namespace, is_given)? {
            Some(pod) => pods.push(pod),
            None => others.push(kind),
        }
    }
    if !pods.is_empty() {
        return Ok(pods);
    }
    Err(VerbError::Usage(match others.as_slice() {
        [] => "the file has no object".to_owned(),
        others if others.iter().any(|kind| kind == "SidecarSet") => {
            "-f takes pods and workloads; give SidecarSets by --set".to_owned()
        }
        others => format!("no pod to inject into: the file has {}", others.join(", ")),
    }))
}

impl FilePod {
    /// Makes the pod of an object. None if the object is neither a pod nor has a template of pods.
    fn from_object(
        object: &Value,
        namespace: &str,
        is_given: bool,
    ) -> Result<Option<Self>, VerbError> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let metadata = &object["metadata"];
        let name = metadata["name"]
            .as_str()
            .or(metadata["generateName"].as_str())
            .unwrap_or_default();
        // The template of a CronJob, then of everything else that has one.
        let template = ["/spec/jobTemplate/spec/template", "/spec/template"]
            .iter()
            .find_map(|path| object.pointer(path));
        let pod = match template {
            Some(template) if template["spec"]["containers"].is_array() => {
                pod_from_template(object, template, name)
            }
            None if kind == "Pod" => object.as_object().cloned().unwrap_or_default(),
            _ => return Ok(None),
        };
        let namespace = match metadata["namespace"].as_str() {
            Some(own) if is_given && own != namespace => {
                return Err(VerbError::Usage(format!(
                    "{kind} {name} is of namespace {own}, and -n says {namespace}"
                )));
            }
            Some(own) => own,
            None => namespace,
        };
        Ok(Some(Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            object: complete_pod(pod, namespace),
        }))
    }
}

/// A pod of a workload (`GetPodFromTemplate`, `k8s.io/kubernetes/pkg/controller/controller_utils.go`), without the labels
/// that its controller adds.
fn pod_from_template(workload: &Value, template: &Value, name: &str) -> Map<String, Value> {
    let mut pod = Map::new();
    let mut metadata = json!({"generateName": format!("{name}-")});
    for field in ["labels", "annotations"] {
        if !template["metadata"][field].is_null() {
            metadata[field] = template["metadata"][field].clone();
        }
    }
    pod.insert("metadata".to_owned(), metadata);
    pod.insert("spec".to_owned(), template["spec"].clone());
    let claims = workload["spec"]["volumeClaimTemplates"].as_array();
    for claim in claims.into_iter().flatten() {
        add_claim(&mut pod, &claim["metadata"]["name"], name);
    }
    pod
}

/// A claim of a `StatefulSet` is a volume of its pods, instead of one of the same name in the template (`updateStorage`,
/// `k8s.io/kubernetes/pkg/controller/statefulset/stateful_set_utils.go`).
fn add_claim(pod: &mut Map<String, Value>, claim: &Value, name: &str) {
    let volume_name = claim.as_str().unwrap_or_default();
    let volume = json!({
        "name": claim,
        // The first replica stands for all, which differ in this name only.
        "persistentVolumeClaim": {"claimName": format!("{volume_name}-{name}-0")},
    });
    let volumes = &mut pod["spec"]["volumes"];
    match volumes.as_array_mut() {
        Some(volumes) => {
            volumes.retain(|own| own["name"] != *claim);
            volumes.push(volume);
        }
        None => *volumes = json!([volume]),
    }
}

/// A pod as it is sent: with its kind and its namespace, and without what was observed of it.
fn complete_pod(mut pod: Map<String, Value>, namespace: &str) -> Map<String, Value> {
    pod.remove("status");
    pod.insert("apiVersion".to_owned(), json!("v1"));
    pod.insert("kind".to_owned(), json!("Pod"));
    let metadata = pod.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("namespace".to_owned(), json!(namespace));
        metadata.remove("managedFields");
    }
    pod
}
