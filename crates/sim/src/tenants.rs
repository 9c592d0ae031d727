//! Clients beside leadsman: the tenant who makes markers and sets, the controllers of its workloads, and clients that edit
//! what leadsman governs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

use crate::ground::Ground;
use crate::kubelet::{is_ended, node_name, text};
use crate::plan::{Meddling, ProbeShape, SetEdit};
use crate::resources::{LEASE, LEASE_NAMESPACE, MARKERS, NODE_POD_PROBES, SETS, SYSTEM, TENANT};
use crate::rest::{PatchKind, RestClient, pod_path};

/// The workloads: the label `app` of their pods, and their containers.
pub(crate) const WORKLOADS: [(&str, &[&str]); 2] = [("a", &["main", "extra"]), ("b", &["main"])];
/// The images of sidecars. The last one cannot be pulled.
pub(crate) const IMAGES: [&str; 4] = ["side:1", "side:2", "side:3", "side:broken"];
/// The sidecars of the sets.
pub(crate) const SIDECARS: [&str; 2] = ["log", "mesh"];
/// The value that only one pod has.
pub(crate) const PRIMARY: &str = "primary";
/// The holder of the Lease while somebody has taken it by hand.
pub(crate) const BY_HAND: &str = "somebody";
/// The time for which a client fights over a label.
const FIGHT: Duration = Duration::from_secs(20);
/// Each of two replicas begins with a second's distance, and doubles it; another value of the label begins without.
const MOST_FOUGHT: usize = 20;
/// The values of `app` that the markers select by.
const SELECTED: [&[&str]; 3] = [&["a"], &["a", "b"], &["b"]];
/// Likewise of sets.
pub(crate) const SELECTED_BY_SETS: [&[&str]; 2] = [&["a", "b"], &["a"]];

/// The name of a marker.
pub(crate) fn marker_name(marker: usize) -> String {
    format!("m{marker}")
}

/// The name of a set.
pub(crate) fn set_name(set: usize) -> String {
    format!("set-{}", SIDECARS[set])
}

/// A marker of these probes.
pub(crate) fn marker(number: usize, probes: &[ProbeShape]) -> Value {
    let probes: Vec<_> = probes
        .iter()
        .enumerate()
        .map(|(place, shape)| probe(number, place, shape))
        .collect();
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "PodProbeMarker",
        "metadata": {"name": marker_name(number), "namespace": TENANT},
        "spec": {
            "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": SELECTED[number]}]},
            "probes": probes,
        },
    })
}

fn probe(marker: usize, place: usize, shape: &ProbeShape) -> Value {
    let mut probe = json!({
        "name": format!("p{place}"),
        "containerName": shape.container,
        "probe": {
            "exec": {"command": ["probe", shape.key.to_string()]},
            "periodSeconds": shape.period,
            "failureThreshold": shape.failures,
        },
    });
    if let Some(condition) = shape.condition {
        probe["podConditionType"] = json!(condition_type(condition));
    }
    if let Some(label) = shape.label {
        let policy = |state: &str| {
            let mut value = format!("{}-p{place}-{state}", marker_name(marker));
            let key = label_key(label);
            let is_exclusive = shape.is_exclusive && state == "Succeeded";
            if is_exclusive {
                "$(role)".clone_into(&mut value);
            }
            let mut policy =
                json!({"state": state, "labels": {&key: value}, "annotations": {&key: "set"}});
            if is_exclusive {
                policy["exclusive"] =
                    json!({"label": key, "value": PRIMARY, "version": "$(version)"});
            }
            policy
        };
        let states: &[_] = if shape.marks_failure {
            &["Succeeded", "Failed"]
        } else {
            &["Succeeded"]
        };
        let policies: Vec<_> = states.iter().map(|state| policy(state)).collect();
        probe["markerPolicy"] = json!(policies);
        if shape.is_exclusive {
            probe["output"] = json!({"matches": "^(?<role>[a-z]+) (?<version>[0-9]+)"});
        }
    }
    probe
}

/// A label and an annotation that markers govern.
pub(crate) fn label_key(number: usize) -> String {
    format!("games.io/l{number}")
}

/// A condition that markers govern.
pub(crate) fn condition_type(number: usize) -> String {
    format!("games.io/c{number}")
}

/// A set of sidecars.
pub(crate) fn sidecar_set(number: usize) -> Value {
    json!({
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "SidecarSet",
        "metadata": {"name": set_name(number)},
        "spec": {
            "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": SELECTED_BY_SETS[number]}]},
            "namespace": TENANT,
            "containers": [{
                "name": SIDECARS[number],
                "image": IMAGES[0],
                "env": [{"name": "LEVEL", "value": "0"}],
            }],
            "updateStrategy": {"maxUnavailable": max_unavailable(number)},
        },
    })
}

/// How many of its pods a set may take down at a time.
pub(crate) fn max_unavailable(set: usize) -> usize {
    set + 1
}

/// Users, controllers and other clients.
pub(crate) struct Tenants {
    /// The client of users and controllers.
    pub(crate) rest: RestClient,
    /// The client that edits what leadsman governs.
    pub(crate) meddler: RestClient,
    ground: Ground,
    rng: Rng,
    replicas: [usize; 2],
    made: usize,
    /// Things that were asked for, by name: the time at which each is done, and the tick in which it was asked for last.
    due: BTreeMap<String, (Duration, u64)>,
    tick: u64,
    /// Whether there was anything to do in the last tick.
    is_busy: bool,
    /// Whether the templates of pods have no annotation.
    has_bare_pods: bool,
    /// The label of a pod that a client keeps removing, until when, and how often it has.
    fight: Option<(String, String, Duration)>,
    fought: usize,
}

impl Tenants {
    /// Two workloads of two pods each.
    pub(crate) fn new(
        rest: RestClient,
        meddler: RestClient,
        ground: Ground,
        (rng, has_bare_pods): (Rng, bool),
    ) -> Self {
        let replicas = [2, 2];
        Self {
            rest,
            meddler,
            ground,
            rng,
            replicas,
            made: 0,
            due: BTreeMap::new(),
            tick: 0,
            is_busy: true,
            has_bare_pods,
            fight: None,
            fought: 0,
        }
    }

    /// Begins to remove a label of a pod whenever it is there.
    pub(crate) fn fight(&mut self, pod: &Value, key: usize) {
        let until = self.ground.elapsed() + FIGHT;
        self.fight = Some((text(pod, "name").to_owned(), label_key(key), until));
        self.fought = 0;
    }

    /// Ends the fight.
    pub(crate) fn heal(&mut self) {
        self.fight = None;
    }

    /// Removes what is fought over; returns whether that was more often than leadsman may have put it back.
    pub(crate) async fn go_on_fighting(&mut self, pods: &[Arc<Value>]) -> bool {
        let now = self.ground.elapsed();
        self.fight = self.fight.take().filter(|(_, _, until)| now < *until);
        let Some((name, key, _)) = &self.fight else {
            return false;
        };
        let mut pods = pods.iter().filter(|pod| text(pod, "name") == name);
        let Some(pod) = pods.find(|pod| !pod["metadata"]["labels"][key].is_null()) else {
            return false;
        };
        let body = json!({"metadata": {"labels": {key: null}}});
        let _gone = self
            .meddler
            .patch(&pod_path(pod), PatchKind::Merge, &body)
            .await;
        self.fought += 1;
        self.fought == MOST_FOUGHT
    }

    /// Sets the number of a workload's pods.
    pub(crate) fn scale(&mut self, workload: usize, replicas: usize) {
        self.replicas[workload] = replicas;
    }

    /// Creates and deletes pods of workloads as there are too few or too many, and deletes those of nodes that have gone. A
    /// creation may take long, since webhooks are called, and is a task of its own.
    pub(crate) async fn control(&mut self, pods: &[Arc<Value>], nodes: &[bool]) {
        self.tick += 1;
        self.is_busy = false;
        let own: Vec<_> = pods
            .iter()
            .filter(|pod| text(pod, "namespace") == TENANT)
            .collect();
        for pod in pods {
            let has_node = nodes
                .iter()
                .enumerate()
                .any(|(node, is_there)| *is_there && pod["spec"]["nodeName"] == *node_name(node));
            let is_replaced = !has_node || (is_ended(pod) && text(pod, "namespace") == TENANT);
            if is_replaced && self.is_due(text(pod, "uid")) {
                let _gone = self.rest.delete(&pod_path(pod), true).await;
            }
        }
        for (workload, (app, _)) in WORKLOADS.iter().enumerate() {
            let mut active: Vec<_> = own
                .iter()
                .filter(|pod| is_of(pod, app) && is_active(pod))
                .collect();
            active.sort_by_key(|pod| text(pod, "name"));
            let wanted = self.replicas[workload];
            if active.len() > wanted && self.is_due(app) {
                if let Some(last) = active.last() {
                    let _gone = self.rest.delete(&pod_path(last), false).await;
                }
            } else if active.len() < wanted && nodes.contains(&true) && self.is_due(app) {
                self.create_pod(workload, nodes, &own);
            }
        }
        self.control_agents(pods, nodes).await;
        let tick = self.tick;
        self.due.retain(|_, (_, asked)| *asked == tick);
    }

    /// Each node has the pod of its agent, as by a DaemonSet.
    async fn control_agents(&mut self, pods: &[Arc<Value>], nodes: &[bool]) {
        for node in (0..nodes.len()).filter(|node| nodes[*node]) {
            let name = node_name(node);
            let mut own = pods.iter().filter(|pod| text(pod, "namespace") == SYSTEM);
            if own.any(|pod| pod["spec"]["nodeName"] == *name) || !self.is_due(&name) {
                continue;
            }
            self.made += 1;
            let pod = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": format!("leadsman-agent-{}", self.made),
                    "namespace": SYSTEM,
                    "labels": {"app.kubernetes.io/name": "leadsman", "app.kubernetes.io/component": "agent"},
                },
                "spec": {"nodeName": name, "containers": [{"name": "agent", "image": "leadsman:1"}]},
            });
            let _there = self
                .rest
                .create(&format!("/api/v1/namespaces/{SYSTEM}/pods"), &pod)
                .await;
        }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_done(&self) -> bool {
        !self.is_busy
    }

    /// Whether what was first asked for a while ago is to be done now.
    fn is_due(&mut self, what: &str) -> bool {
        self.is_busy = true;
        let now = self.ground.elapsed();
        let late = Duration::from_millis(self.rng.u64(100..1200));
        let entry = self.due.entry(what.to_owned()).or_insert((now + late, 0));
        entry.1 = self.tick;
        let is_due = entry.0 <= now;
        if is_due {
            self.due.remove(what);
        }
        is_due
    }

    /// The pods of the second workload have the names of those before them, as a StatefulSet's.
    fn create_pod(&mut self, workload: usize, nodes: &[bool], pods: &[&Arc<Value>]) {
        let there: Vec<_> = (0..nodes.len()).filter(|node| nodes[*node]).collect();
        let Some(node) = there.get(self.made % there.len().max(1)) else {
            return;
        };
        self.made += 1;
        let (app, containers) = WORKLOADS[workload];
        let name = |number: usize| format!("{app}-{number:02}");
        let is_free = |number: &usize| pods.iter().all(|pod| text(pod, "name") != name(*number));
        let number = if workload == 1 {
            (0..=self.made).find(is_free).unwrap_or_default()
        } else {
            self.made
        };
        let containers: Vec<_> = containers
            .iter()
            .map(|name| json!({"name": name, "image": "app:1"}))
            .collect();
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name(number),
                "namespace": TENANT,
                "labels": {"app": app, "workload": app},
            },
            "spec": {"nodeName": node_name(*node), "containers": containers},
        });
        if !self.has_bare_pods {
            pod["metadata"]["annotations"] = json!({"games.io/template": "1"});
        }
        let rest = self.rest.clone();
        tokio::spawn(async move {
            // A webhook may refuse it; its workload tries again.
            let _made = rest
                .create(&format!("/api/v1/namespaces/{TENANT}/pods"), &pod)
                .await;
        });
    }

    /// Creates a marker, or gives it these probes.
    pub(crate) async fn put_marker(&self, number: usize, probes: &[ProbeShape]) {
        let marker = marker(number, probes);
        let path = format!("{MARKERS}/{}", marker_name(number));
        let body = json!({"spec": {"probes": marker["spec"]["probes"]}});
        if self
            .rest
            .patch(&path, PatchKind::Merge, &body)
            .await
            .is_err()
        {
            // A marker of that name may be in deletion, and then nothing comes of this.
            let _made = self.rest.create(MARKERS, &marker).await;
        }
    }

    /// Adds the finalizer of somebody else, or removes it.
    pub(crate) async fn hold_marker(&self, marker: &Value, held: bool) {
        let finalizers = if held {
            json!(["games.io/held"])
        } else {
            json!([])
        };
        let body = json!({"metadata": {"finalizers": finalizers}});
        let path = format!("{MARKERS}/{}", text(marker, "name"));
        let _gone = self.rest.patch(&path, PatchKind::Merge, &body).await;
    }

    /// Edits a set.
    pub(crate) async fn edit_set(&self, number: usize, edit: SetEdit, stored: Option<&Value>) {
        let Some(stored) = stored else { return };
        let mut container = stored["spec"]["containers"][0].clone();
        let strategy = |field: &str, value: Value| json!({"updateStrategy": {field: value}});
        let spec = match edit {
            SetEdit::Image(image) => {
                container["image"] = json!(IMAGES[image]);
                json!({"containers": [container]})
            }
            SetEdit::Variable(value) => {
                container["env"] = json!([{"name": "LEVEL", "value": value.to_string()}]);
                json!({"containers": [container]})
            }
            SetEdit::Pause(is_paused) => strategy("paused", json!(is_paused)),
            SetEdit::Partition(pods) => strategy("partition", json!(pods)),
        };
        let path = format!("{SETS}/{}", set_name(number));
        let _gone = self
            .rest
            .patch(&path, PatchKind::Merge, &json!({"spec": spec}))
            .await;
    }

    /// Edits a pod as a client does that knows nothing of markers.
    pub(crate) async fn meddle(&self, pod: &Value, with: Meddling) {
        let labels = |key: String, value: Value| json!({"metadata": {"labels": {key: value}}});
        let own = pod["metadata"]["labels"]["workload"].clone();
        let body = match with {
            Meddling::SetLabel(key) => labels(label_key(key), json!("meddled")),
            Meddling::RemoveLabel(key) => labels(label_key(key), Value::Null),
            Meddling::SetAnnotation(key) => {
                json!({"metadata": {"annotations": {label_key(key): "meddled"}}})
            }
            Meddling::SetCondition(key) => {
                let condition =
                    json!({"type": condition_type(key), "status": "False", "reason": "Meddled"});
                json!({"status": {"conditions": [condition]}})
            }
            Meddling::SetOther => labels("team".to_owned(), json!("red")),
            Meddling::Relabel => {
                labels("app".to_owned(), json!(if own == "a" { "b" } else { "z" }))
            }
            Meddling::RelabelBack => labels("app".to_owned(), own),
            Meddling::Fight(_) => return,
        };
        let is_status = matches!(with, Meddling::SetCondition(_));
        let path = pod_path(pod) + if is_status { "/status" } else { "" };
        let _gone = self.meddler.patch(&path, PatchKind::Strategic, &body).await;
    }

    /// Takes the Lease, as with an editor.
    pub(crate) async fn take_lease(&self) {
        let path =
            format!("/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE}");
        let body = json!({"spec": {"holderIdentity": BY_HAND}});
        let _gone = self.meddler.patch(&path, PatchKind::Merge, &body).await;
    }

    /// Empties or deletes what a node is asked for.
    pub(crate) async fn meddle_with_node(&self, node: usize, is_deleted: bool) {
        let path = format!("{NODE_POD_PROBES}/{}", node_name(node));
        let _gone = if is_deleted {
            self.meddler.delete(&path, true).await
        } else {
            let body = json!({"spec": {"podProbes": null}});
            self.meddler.patch(&path, PatchKind::Merge, &body).await
        };
    }
}

/// Whether a pod is of a workload, whatever its labels say now.
fn is_of(pod: &Value, app: &str) -> bool {
    pod["metadata"]["labels"]["workload"] == app
}

/// Neither ended nor being deleted.
pub(crate) fn is_active(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null() && !is_ended(pod)
}
