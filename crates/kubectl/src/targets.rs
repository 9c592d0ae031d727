//! The target of a verb, and how its pods are found: a pod by its name, those of a workload, a marker or a
//! `SidecarSet` by its selector, or those of a selector. For what does not exist, the name that may have been meant.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use leadsman_api::broadcast_job;
use leadsman_api::slim::Pod;
use leadsman_core::cluster::nearest;
use leadsman_core::podprobe::explain::{Unread, format_selector};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::VerbError;
use crate::reader::{ListSelection, Reader};
use crate::resources::{
    ApiResource, BROADCAST_JOBS, CRON_JOBS, JOBS, KINDS, MARKERS, NAMESPACES, PODS, SCHEDULED,
    SIDECAR_SETS,
};

/// The label by which a Job's pods are known since Kubernetes 1.27 (`JobNameLabel`, `k8s.io/api/batch/v1`).
const JOB_NAME_LABEL: &str = "batch.kubernetes.io/job-name";

/// The target of a verb.
#[derive(Clone, Copy)]
pub(crate) enum PodsOf<'a> {
    Pod(&'a str),
    /// An object with a selector, and how messages call its kind.
    Workload(ApiResource, &'static str, &'a str),
    Selector(&'a str),
}

/// An object, as far as its selector goes.
#[derive(Deserialize)]
struct Workload {
    spec: WorkloadSpec,
    #[serde(default)]
    status: Value,
}

#[derive(Deserialize)]
struct WorkloadSpec {
    #[serde(default)]
    selector: LabelSelector,
    /// The namespace of a `SidecarSet`'s pods.
    namespace: Option<String>,
}

/// An object, as far as its owner goes.
#[derive(Deserialize)]
struct OwnedObject {
    metadata: ObjectMeta,
}

/// The pods of a target.
pub(crate) struct PodSelection<'a> {
    target: PodsOf<'a>,
    pub(crate) selection: ListSelection<'a>,
    /// The target's own status, of a marker or a set.
    pub(crate) state: Option<TargetState>,
}

/// A marker or a set by its condition `Ready`.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct TargetState {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    /// The label selector of its pods.
    pub(crate) selector: String,
    pub(crate) ready: bool,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl TargetState {
    fn new(kind: &'static str, name: &str, selector: &str, status: &Value) -> Self {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let ready = conditions.find(|one| one["type"] == "Ready");
        let text = |field: &str| ready.and_then(|it| it[field].as_str()).unwrap_or_default();
        let reason = ready.map_or("Unobserved", |_| text("reason"));
        Self {
            kind,
            name: name.to_owned(),
            selector: selector.to_owned(),
            ready: text("status") == "True",
            reason: reason.to_owned(),
            message: text("message").to_owned(),
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
        if SCHEDULED.contains(&kind) {
            return Err(VerbError::Usage(format!(
                "{kind} has no pods of its own: `kubectl leadsman next {name}` says when it runs, and why not"
            )));
        }
        let all: Vec<_> = KINDS.iter().map(|(_, names)| names[0]).collect();
        let names = KINDS.iter().flat_map(|(_, names)| names.iter().copied());
        let meant = nearest(kind, names).map(|near| format!("; did you mean {near}/{name}?"));
        return Err(VerbError::Usage(format!(
            "{kind} cannot be explained, only {} or a selector (-l){}",
            all.join(", "),
            meant.unwrap_or_default()
        )));
    };
    Ok(match *resource {
        PODS => PodsOf::Pod(name),
        resource => PodsOf::Workload(resource, names[0], name),
    })
}

impl<'a> PodsOf<'a> {
    /// How its pods are found. Reads a workload, and no pod.
    pub(crate) async fn select_pods(
        self,
        reader: &Reader,
        namespace: Option<&'a str>,
    ) -> Result<PodSelection<'a>, VerbError> {
        let mut selection = ListSelection::of(namespace, 500);
        let mut state = None;
        match self {
            PodsOf::Pod(name) => selection.fields = Some(format!("metadata.name={name}")),
            PodsOf::Workload(CRON_JOBS, kind, name) => {
                let jobs = read_job_names(reader, kind, name, namespace).await?;
                selection.labels = Some(format!("{JOB_NAME_LABEL} in ({})", jobs.join(",")));
            }
            PodsOf::Workload(BROADCAST_JOBS, _, name) => {
                selection.labels = Some(format!("{}={name}", broadcast_job::JOB_NAME_LABEL));
            }
            PodsOf::Workload(resource, kind, name) => {
                let own = namespace.filter(|_| resource.is_namespaced());
                let workload: Workload = reader.require(resource, kind, name, own).await?;
                let spec = workload.spec;
                // The selector is used, as by `kubectl logs` for the pods of a workload (`SelectorsForObject`,
                // `k8s.io/kubectl/pkg/polymorphichelpers/helpers.go`): owner references would cost a list of ReplicaSets too.
                let labels = format_selector(&spec.selector)
                    .map_err(|error| VerbError::Usage(error.to_string()))?;
                if matches!(resource, MARKERS | SIDECAR_SETS) {
                    state = Some(TargetState::new(kind, name, &labels, &workload.status));
                }
                selection.labels = Some(labels);
                if let Some(own) = spec.namespace {
                    selection.fields = Some(format!("metadata.namespace={own}"));
                }
            }
            PodsOf::Selector(selector) => selection.labels = Some(selector.to_owned()),
        }
        Ok(PodSelection {
            target: self,
            selection,
            state,
        })
    }
}

impl PodSelection<'_> {
    /// The pods; an error if there is none, unless the target has more to say.
    pub(crate) async fn read_pods(&self, reader: &Reader) -> Result<Vec<Pod>, VerbError> {
        let namespace = self.selection.namespace;
        let of = match self.target {
            PodsOf::Pod(name) => {
                return Ok(vec![reader.require(PODS, "pod", name, namespace).await?]);
            }
            PodsOf::Workload(_, kind, name) => format!("of {kind} {name}"),
            PodsOf::Selector(selector) => format!("with labels {selector}"),
        };
        let pods = reader.list_objects::<Pod>(PODS, &self.selection).await?;
        if !pods.is_empty() || self.state.is_some() {
            return Ok(pods);
        }
        if let Some(namespace) = namespace
            && let Some(error) = no_such_namespace(reader, namespace).await
        {
            return Err(error);
        }
        let place = namespace.map_or_else(
            || "in any namespace".to_owned(),
            |name| format!("in namespace {name}"),
        );
        Err(VerbError::NoPods { of, place })
    }
}

/// The names of the Jobs that a `CronJob` made and that are still there.
async fn read_job_names(
    reader: &Reader,
    kind: &'static str,
    name: &str,
    namespace: Option<&str>,
) -> Result<Vec<String>, VerbError> {
    let owner: OwnedObject = reader.require(CRON_JOBS, kind, name, namespace).await?;
    let selection = ListSelection::of(namespace, 500);
    let jobs = reader.list_objects::<OwnedObject>(JOBS, &selection).await?;
    let is_own = |job: &OwnedObject| {
        let mut owners = job.metadata.owner_references.iter().flatten();
        // The uid is compared, since Jobs of an earlier CronJob of that name may still be there.
        owners.any(|it| it.controller == Some(true) && Some(&it.uid) == owner.metadata.uid.as_ref())
    };
    let jobs = jobs.into_iter().filter(is_own);
    let names: Vec<_> = jobs.filter_map(|job| job.metadata.name).collect();
    if !names.is_empty() {
        return Ok(names);
    }
    Err(VerbError::NoPods {
        of: format!("of {kind} {name}"),
        place: format!(
            "in namespace {}: it has no Job now (kubectl create job --from=cronjob/{name} NAME makes one)",
            namespace.unwrap_or_default()
        ),
    })
}

impl Reader {
    /// An object that somebody has named; an error that says what may have been meant if there is none.
    pub(crate) async fn require<T: serde::de::DeserializeOwned>(
        &self,
        resource: ApiResource,
        kind: &'static str,
        name: &str,
        namespace: Option<&str>,
    ) -> Result<T, VerbError> {
        match self.get_object(resource, namespace, name).await? {
            Some(object) => Ok(object),
            None => Err(no_such_object(self, resource, kind, name, namespace).await),
        }
    }
}

/// The error that there is no object of this name, and which one is near.
pub(crate) async fn no_such_object(
    reader: &Reader,
    resource: ApiResource,
    kind: &'static str,
    name: &str,
    namespace: Option<&str>,
) -> VerbError {
    let known = reader.list_names(resource, namespace).await;
    // Nothing of the kind is there: perhaps the namespace itself is mistyped.
    if let (Ok([]), Some(namespace)) = (known.as_deref(), namespace)
        && let Some(error) = no_such_namespace(reader, namespace).await
    {
        return error;
    }
    VerbError::NoSuchObject {
        kind,
        name: name.to_owned(),
        place: namespace.map_or_else(String::new, |it| format!(" in namespace {it}")),
        suggestion: did_you_mean(name, &known.unwrap_or_default()),
    }
}

/// The error that there is no namespace of this name, and which one is near. None if there is one, or if that may not be
/// known.
async fn no_such_namespace(reader: &Reader, name: &str) -> Option<VerbError> {
    let found = reader.get_object::<Value>(NAMESPACES, None, name);
    if found.await.ok()?.is_some() {
        return None;
    }
    let suggestion = match reader.list_names(NAMESPACES, None).await {
        Ok(known) => did_you_mean(name, &known),
        Err(Unread(why)) => format!("; what was meant is not known: {why}"),
    };
    Some(VerbError::NoSuchObject {
        kind: "namespace",
        name: name.to_owned(),
        place: String::new(),
        suggestion,
    })
}

/// The name that may have been meant, as the end of a sentence.
fn did_you_mean(name: &str, known: &[String]) -> String {
    let near = nearest(name, known.iter().map(String::as_str));
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::reader::FakeServer;

    #[rstest]
    #[case(&["p"], None, "pod p")]
    #[case(&["po/p"], None, "pod p")]
    #[case(&["pods", "p"], None, "pod p")]
    #[case(&["deploy/web"], None, "deployments web")]
    #[case(&["job/once"], None, "jobs once")]
    #[case(&["cj/nightly"], None, "cronjobs nightly")]
    #[case(&["clone", "web"], None, "clonesets web")]
    #[case(&["sts", "db"], None, "statefulsets db")]
    #[case(&["sidecarset/log-agent"], None, "sidecarsets log-agent")]
    #[case(&["podprobemarker", "m"], None, "podprobemarkers m")]
    #[case(&[], Some("app=x"), "app=x")]
    #[case(&["dployment/web"], None, "dployment cannot be explained, only pod, deployment, statefulset, daemonset, replicaset, job, cronjob, cloneset, podprobemarker, sidecarset, broadcastjob or a selector (-l); did you mean deployment/web?")]
    #[case(&["acj/report"], None, "acj has no pods of its own: `kubectl leadsman next report` says when it runs, and why not")]
    fn a_target_is_written_as_for_kubectl(
        #[case] words: &[&str],
        #[case] selector: Option<&str>,
        #[case] expected: &str,
    ) {
        let found = match parse_target(words, selector) {
            Ok(PodsOf::Pod(name)) => format!("pod {name}"),
            Ok(PodsOf::Workload(resource, _, name)) => format!("{} {name}", resource.plural),
            Ok(PodsOf::Selector(selector)) => selector.to_owned(),
            Err(error) => error.to_string(),
        };
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn what_may_have_been_meant_is_found_by_names_alone() {
        let pods = json!({"metadata": {}, "items": [{"metadata": {"name": "game-0"}}]});
        let server = FakeServer::new([("/api/v1/namespaces/ns/pods", pods)]);
        let reader = server.reader();
        let target = PodsOf::Pod("gmae-0");
        let selected = target.select_pods(&reader, Some("ns")).await.unwrap();
        let error = selected.read_pods(&reader).await.unwrap_err().to_string();
        assert_eq!(error, "no pod gmae-0 in namespace ns; did you mean game-0?");
        let requests = server.requests();
        let accepts: Vec<_> = requests.iter().map(|(_, accept)| accept.as_str()).collect();
        assert_eq!(requests.len(), 2, "{requests:?}");
        assert!(
            accepts[1].contains("as=PartialObjectMetadataList"),
            "{accepts:?}"
        );
    }

    #[tokio::test]
    async fn a_workload_is_read_once_however_often_its_pods_are() {
        let deployment = json!({"spec": {"selector": {"matchLabels": {"app": "web"}}}});
        let pods = json!({"metadata": {}, "items": [{"metadata": {"name": "web-0"}}]});
        let path = "/apis/apps/v1/namespaces/ns/deployments/web";
        let server = FakeServer::new([(path, deployment), ("/api/v1/namespaces/ns/pods", pods)]);
        let reader = server.reader();
        let target = parse_target(&["deploy/web"], None).unwrap();
        let selected = target.select_pods(&reader, Some("ns")).await.unwrap();
        for _ in 0..2 {
            assert_eq!(selected.read_pods(&reader).await.unwrap().len(), 1);
        }
        assert_eq!(selected.selection.labels.as_deref(), Some("app=web"));
        let requests = server.requests();
        let of_workload = requests.iter().filter(|(request, _)| request == path);
        assert_eq!(of_workload.count(), 1, "{requests:?}");
    }
}
