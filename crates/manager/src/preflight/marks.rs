//! Reading the markers and the pods that they match: which markers are valid, and who owns the marks that they name.

use std::collections::{BTreeMap, BTreeSet};

use kube::{Client, Resource, ResourceExt};
use leadsman_api::slim::{FieldOwner, Pod};
use leadsman_api::{Guarded, PodProbeMarker};
use leadsman_core::podprobe::{Compatibility, Marker, index::FINALIZER};
use leadsman_process::ApiServer;
use leadsman_process::list::{ListTarget, Paging};
use leadsman_process::reply::{Disposition, RetryCause};
use serde::de::DeserializeOwned;

/// Objects of one page.
const PAGE: u32 = 150;

/// The markers of the cluster, and the marks on their pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkerSurvey {
    /// Each marker.
    pub markers: Vec<MarkerFacts>,
    /// The owners of marks that these markers name, leadsman included: how many marks, on how many pods.
    pub owners: BTreeMap<MarkOwner, (usize, usize)>,
    /// Objects that do not decode.
    pub undecodable: Vec<String>,
}

/// A marker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkerFacts {
    /// `namespace/name`.
    pub name: String,
    /// Whether it has `OpenKruise`'s finalizer.
    pub finalizer: bool,
    /// Why leadsman refuses it; empty if it does not.
    pub faults: Vec<String>,
    /// Whether its probes mean something else with `--compatibility=openkruise`.
    pub timing_left_out: bool,
}

/// A field manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MarkOwner {
    /// The name of the field manager.
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
    /// `status`, or nothing.
    pub subresource: String,
}

/// The valid markers by their namespaces.
type ParsedMarkers = BTreeMap<String, Vec<Marker>>;

impl MarkerSurvey {
    /// Surveys markers and pods that were read already.
    pub fn of(markers: &[Guarded<PodProbeMarker>], pods: &[Pod]) -> Self {
        let (mut all, mut parsed) = (Self::default(), ParsedMarkers::new());
        for marker in markers {
            all.add_marker(marker, &mut parsed);
        }
        for pod in pods {
            let namespace = pod.identity.namespace.as_deref().unwrap_or_default();
            let markers = parsed.get(namespace).map_or(&[][..], Vec::as_slice);
            count_marks(pod, markers, &mut all.owners);
        }
        all
    }

    fn add_marker(&mut self, marker: &Guarded<PodProbeMarker>, parsed: &mut ParsedMarkers) {
        let name = namespaced_name(marker);
        let Guarded::Decoded(marker) = marker else {
            self.undecodable.push(name);
            return;
        };
        let (fact, marker) = examine_marker(name, marker);
        self.markers.push(fact);
        if let Some(marker) = marker {
            let namespace = marker.name.namespace.clone();
            parsed.entry(namespace).or_default().push(marker);
        }
    }
}

/// Reads them all, or says what the API server replied instead.
pub(super) async fn read_markers(client: &Client) -> Result<MarkerSurvey, Disposition> {
    let server = ApiServer::new(client.clone());
    let mut all = MarkerSurvey::default();
    let mut parsed = ParsedMarkers::new();
    let target = ListTarget::all_of::<PodProbeMarker>();
    let read = read_pages(&server, target, |marker: Guarded<PodProbeMarker>| {
        all.add_marker(&marker, &mut parsed);
    })
    .await;
    match read {
        // A cluster without the CRD has no markers.
        Err(Disposition::Retry {
            cause: RetryCause::NoSuchKind,
            ..
        }) => return Ok(all),
        read => read?,
    }
    for (namespace, markers) in parsed {
        let target = ListTarget::in_namespace::<Pod>(&namespace);
        read_pages(&server, target, |pod: Guarded<Pod>| match pod {
            Guarded::Decoded(pod) => count_marks(&pod, &markers, &mut all.owners),
            Guarded::Undecodable { .. } => all.undecodable.push(namespaced_name(&pod)),
        })
        .await?;
    }
    Ok(all)
}

/// Reads all objects of a list, page by page.
pub(super) async fn read_pages<K: Resource + DeserializeOwned + Clone>(
    server: &ApiServer,
    target: ListTarget,
    mut observe: impl FnMut(K),
) -> Result<(), Disposition> {
    let target = target.with_page_size(PAGE);
    let (mut token, mut paging) = (None, Paging::default());
    loop {
        // The second of a page's deadlines holds: nothing is asked again here, and the whole has about as long.
        paging.timeouts = 1;
        let page = target.read_page(server, token, &mut paging).await?;
        page.objects.into_iter().for_each(&mut observe);
        token = page.token;
        if token.is_none() {
            return Ok(());
        }
    }
}

fn namespaced_name(object: &impl ResourceExt) -> String {
    format!(
        "{}/{}",
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

fn examine_marker(name: String, marker: &PodProbeMarker) -> (MarkerFacts, Option<Marker>) {
    let parse = |compatibility| Marker::parse(marker, compatibility);
    let (ours, theirs) = (
        parse(Compatibility::Kubernetes),
        parse(Compatibility::OpenKruise),
    );
    let faults = ours.as_ref().err().into_iter().flatten();
    let fact = MarkerFacts {
        name,
        finalizer: marker.finalizers().iter().any(|name| name == FINALIZER),
        faults: faults.map(ToString::to_string).collect(),
        // The same marker by other defaults: what differs is what was left out.
        timing_left_out: ours != theirs,
    };
    (fact, ours.ok())
}

/// Counts the marks of a pod that its markers name, by their owners.
fn count_marks(pod: &Pod, markers: &[Marker], owners: &mut BTreeMap<MarkOwner, (usize, usize)>) {
    let label = |key: &str| {
        let mut labels = pod.labels.iter();
        labels
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.as_str())
    };
    let mut named = [const { BTreeSet::<&str>::new() }; 3];
    for marker in markers
        .iter()
        .filter(|marker| marker.selector.matches(label))
    {
        for probe in &marker.probes {
            named[2].extend(probe.condition_type.as_deref());
            for pairs in probe.all_pairs() {
                named[0].extend(pairs.labels.keys().map(|key| &**key));
                named[1].extend(pairs.annotations.keys().map(|key| &**key));
            }
        }
    }
    for owner in &pod.owners {
        let marks = count_owned_marks(owner, &named);
        if marks > 0 {
            let owner = MarkOwner {
                manager: owner.manager.clone(),
                operation: owner.operation.clone(),
                subresource: owner.subresource.clone(),
            };
            let known = owners.entry(owner).or_default();
            *known = (known.0 + marks, known.1 + 1);
        }
    }
}

/// How many of the named labels, annotations and conditions this owner has.
fn count_owned_marks(owner: &FieldOwner, named: &[BTreeSet<&str>; 3]) -> usize {
    let all = [
        &owner.owned.labels,
        &owner.owned.annotations,
        &owner.owned.conditions,
    ];
    let both = all
        .iter()
        .zip(named)
        .flat_map(|(owned, named)| owned.iter().filter(|key| named.contains(key.as_str())));
    both.count()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn marker(timing: &serde_json::Value) -> PodProbeMarker {
        let mut probe = json!({"exec": {"command": ["true"]}});
        probe
            .as_object_mut()
            .unwrap()
            .extend(timing.as_object().unwrap().clone());
        let marker = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
            "metadata": {"namespace": "ns", "name": "m", "finalizers": ["kruise.io/node-pod-probe-cleanup"]},
            "spec": {"selector": {"matchLabels": {"app": "x"}}, "probes": [{"name": "p", "containerName": "main",
                "podConditionType": "t.io/p", "probe": probe,
                "markerPolicy": [{"state": "Succeeded", "labels": {"l": "1"}, "annotations": {"a": "1"}}]}]}});
        serde_json::from_value(marker).unwrap()
    }

    /// The markers of a cluster whose API server, or whatever stands before it, answers each request with this 404.
    async fn markers_behind(body: &'static str) -> Result<MarkerSurvey, Disposition> {
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let reply = http::Response::builder().status(404);
            let reply = reply.body(Body::from(body.as_bytes().to_vec()));
            std::future::ready(Ok::<_, Infallible>(reply.unwrap()))
        });
        read_markers(&Client::new(service, "default")).await
    }

    #[tokio::test]
    async fn a_404_of_a_proxy_does_not_mean_that_there_are_no_markers() {
        let none = markers_behind("404 page not found\n").await;
        assert_eq!(none, Ok(MarkerSurvey::default()));
        let error = markers_behind("<html>no backend</html>").await.unwrap_err();
        assert!(error.explain_reason().contains("proxy"), "{error:?}");
    }

    #[test]
    fn a_marker_that_leaves_timing_out_is_recognised() {
        let all = json!({"initialDelaySeconds": 1, "periodSeconds": 5, "failureThreshold": 2,
            "timeoutSeconds": 1, "successThreshold": 1});
        let (whole, parsed) = examine_marker("ns/m".into(), &marker(&all));
        assert!(
            parsed.is_some() && whole.finalizer && !whole.timing_left_out,
            "{whole:?}"
        );
        let (part, _) = examine_marker("ns/m".into(), &marker(&json!({"periodSeconds": 5})));
        assert!(part.timing_left_out, "{part:?}");
        let mut bad = marker(&all);
        bad.spec.probes[0].name = String::new();
        let (bad, parsed) = examine_marker("ns/m".into(), &bad);
        assert!(parsed.is_none() && !bad.faults.is_empty(), "{bad:?}");
    }

    #[test]
    fn marks_are_counted_by_their_owners_on_matching_pods() {
        let markers = [Guarded::Decoded(Box::new(marker(&json!({}))))];
        let entry = |manager: &str, subresource: &str, labels: serde_json::Value| {
            json!({"manager": manager, "operation": "Update", "subresource": subresource, "fieldsV1": {
                "f:metadata": {"f:labels": labels, "f:annotations": {"f:a": {}}},
                "f:status": {"f:conditions": {"k:{\"type\":\"t.io/p\"}": {}}}}})
        };
        let pod = |app: &str| -> Pod {
            let pod = json!({"metadata": {"namespace": "ns", "name": "one", "labels": {"app": app, "l": "1"},
                "managedFields": [entry("kruise-manager", "status", json!({"f:l": {}})),
                    entry("kubectl", "", json!({"f:app": {}}))]},
                "spec": {"containers": []}, "status": {}});
            serde_json::from_value(pod).unwrap()
        };
        let survey = MarkerSurvey::of(&markers, &["x", "x", "y"].map(pod));
        assert_eq!(survey.markers.len(), 1);
        let owners = survey.owners.iter();
        let counts: Vec<_> = owners
            .map(|(owner, counts)| (owner.manager.as_str(), *counts))
            .collect();
        assert_eq!(counts, [("kruise-manager", (6, 2)), ("kubectl", (4, 2))]);
    }
}
