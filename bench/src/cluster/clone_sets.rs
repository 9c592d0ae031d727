//! `bench clonesets`: a `CloneSet` that grows and is updated, many sets when a manager starts, and small sets beside a large one.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use leadsman_core::cluster::whole_seconds;
use leadsman_process::clock;
use leadsman_testkit::FakeKubelet;
use leadsman_tests::ObjectWatch;
use serde_json::{Value, json};

use super::api::{ApiRequest, CREATE, MERGE, NameAndLabels, PAGE, STRATEGIC, make_all};
use super::restart::{leads, repaired_once_leading};
use super::roll_out::floor::{PodPatches, PodStep, PodSteps};
use super::roll_out::{KUBELETS, PERCENT_DOWN, start_kubelets};
use super::stage::{Contender, Run, Stage, Who, owner, play_with};
use super::world::{container_id, filled};
use super::{PATIENCE, QUIET, add_requests, most_statuses};
use crate::figures;
use crate::progress::wait;
use crate::report::{Amount as _, Report, Target};
use crate::requests::Since;
use crate::share_of;

const GATES: &str = "CloneSetGate=true,PodProbeMarkerGate=false,SidecarSetGate=false";
const NAMESPACE: &str = "clones";
const OTHERS: &str = "others";
/// The path of the pods of the first one.
const PODS_HERE: &str = "/api/v1/namespaces/clones/pods";
const CONTAINER: &str = "server";
/// The readiness gates of a pod.
const SERVICE_GATES: [&str; 2] = ["InPlaceUpdateReady", "KruisePodReady"];
/// The pods of a large set, and of a small and a huge one, between which the cost of an event is compared.
const MANY: usize = 5_000;
const FEW: usize = 500;
const MOST: usize = 20_000;
/// Changes of pods that change nothing that is wanted.
const EVENTS: usize = 5_000;
/// Sets, and the pods of each while a manager starts, and while its memory is measured.
const SETS: usize = 100;
const PODS_EACH: [usize; 2] = [50, 200];
/// The pods of a set beside a large one, and how much later it is created.
const BESIDE: usize = 10;
const LATER: Duration = Duration::from_secs(1);
/// The writes of a pod that is created, updated in place, and replaced.
const MOST_WRITES: [f64; 3] = [2.0, 3.0, 3.0];

names! {
    /// The path of the sets of a namespace.
    sets_of(namespace: &str) = "/apis/apps.kruise.io/v1alpha1/namespaces/{namespace}/clonesets";
    /// The path of a pod.
    pod_path(pod: &str) = "{PODS_HERE}/{pod}";
    /// The image of a version of the template.
    image(version: u32) = "registry.example.com/shop/server:1.{version}.0";
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let page = include_str!("../../pages/clonesets.md");
    let mut report = Report::new("clonesets", scale, page);
    let mut events = play_with(GATES, async |stage| {
        one_set(stage, scale, &mut report).await
    })?;
    events.push(play_with(GATES, async |stage| {
        huge_set(stage, scale).await
    })?);
    add_events(&mut report, &events);
    play_with(GATES, async |stage| {
        many_sets(stage, scale, &mut report).await
    })?;
    play_with(GATES, async |stage| beside(stage, scale, &mut report).await)?;
    Ok(report)
}

/// A set of pods that are as large as those of the other benches and are created bound.
struct Clones<'s> {
    stage: &'s Stage,
    namespace: &'static str,
    name: String,
    pods: usize,
}

impl Clones<'_> {
    fn object(&self, update: &str, version: u32) -> Value {
        json!({
            "apiVersion": "apps.kruise.io/v1alpha1",
            "kind": "CloneSet",
            "metadata": {"name": self.name},
            "spec": {
                "replicas": self.pods,
                "selector": {"matchLabels": {"app": self.name}},
                "updateStrategy": {"type": update, "maxUnavailable": format!("{PERCENT_DOWN}%")},
                "template": self.template(version),
            },
        })
    }

    fn template(&self, version: u32) -> Value {
        let values = [("$app", &*self.name), ("$node", "node-000")];
        let mut pod = filled(include_str!("objects/pod.json"), &values);
        pod["spec"]["containers"][0]["image"] = json!(image(version));
        let metadata = &mut pod["metadata"];
        let labels = json!({"app": self.name, "team": "checkout"});
        let metadata = json!({"labels": labels, "annotations": metadata["annotations"].take()});
        json!({"metadata": metadata, "spec": pod["spec"]})
    }

    fn create(&self) -> ApiRequest {
        let body = self.object("ReCreate", 1);
        ApiRequest::new(CREATE, &sets_of(self.namespace), "kubectl", &body)
    }

    fn edit(&self, update: &str, version: u32) -> ApiRequest {
        let path = format!("{}/{}", sets_of(self.namespace), self.name);
        let body = json!({"spec": self.object(update, version)["spec"]});
        ApiRequest::new(MERGE, &path, "kubectl", &body)
    }

    /// Sends this, and waits until the set is as it says; with the time after which the last kubelet had reported.
    async fn carry_out(&self, manager: &Contender, edit: &ApiRequest, what: &str) -> Result<Run> {
        let since = Since::now(&self.stage.plane)?;
        let done = async {
            edit.send(&self.stage.client).await?;
            self.wait_until_complete().await
        };
        let what = format!("{} pods {what}", self.pods);
        let mut run = self.stage.during(manager, &what, done).await?;
        let kubelets = since.requests(&self.stage.plane, KUBELETS)?;
        run.ready = kubelets.last_write("pods");
        Ok(run)
    }

    async fn wait_until_complete(&self) -> Result<()> {
        let is_meant = |set: &DynamicObject| set.name_any() == self.name;
        wait_until_complete(self.stage, self.namespace, (1, self.pods), is_meant).await
    }

    async fn list_pods(&self) -> Result<Vec<NameAndLabels>> {
        let mut pods = ObjectWatch::begin(&self.stage.client, PODS_HERE, PAGE).await?;
        let mut pods: Vec<NameAndLabels> = pods.take_listed();
        let begin = format!("{}-", self.name);
        pods.retain(|pod| pod.name_any().starts_with(&begin));
        Ok(pods)
    }

    /// Makes the set and its pods, in service, while no manager runs but for the first of them: with one, and with kubelets, it
    /// takes four times as long.
    async fn make_at_rest(&self) -> Result<()> {
        let (stage, name) = (self.stage, self.name.clone());
        let first = Self {
            pods: 1,
            name,
            ..*self
        };
        let manager = stage.start(Who::Manager, None).await?;
        first.create().send(&stage.client).await?;
        let mut pods = ObjectWatch::<DynamicObject>::begin(&stage.client, PODS_HERE, PAGE).await?;
        // The others are made like it: with gates that are open, or the manager would open those of all.
        let is_in_service = |pod: &DynamicObject| {
            let conditions = pod.data["status"]["conditions"].as_array();
            let is_open = |gate: &str| {
                let mut conditions = conditions.into_iter().flatten();
                conditions.any(|one| one["type"] == gate && one["status"] == "True")
            };
            ensure!(
                SERVICE_GATES.into_iter().all(is_open),
                "it has {conditions:?}"
            );
            Ok(())
        };
        let made = pods
            .wait_until("the first pod", 1, PATIENCE, is_in_service)
            .await;
        made.with_context(|| manager.last_lines())?;
        manager.end().await?;
        let listed = self.list_pods().await?;
        let name = listed.first().context("there is a pod")?.name_any();
        let request = http::Request::get(pod_path(&name)).body(Vec::new())?;
        let pod: Value = stage.client.request(request).await?;
        let others = (1..self.pods).map(|number| self.like(&pod, &format!("{number:05}")));
        let (mut creations, mut statuses): (Vec<_>, Vec<_>) = others.unzip();
        statuses.push(report_in_service(&name, &pod));
        creations.push(self.edit("ReCreate", 1));
        let what = format!("making {} pods", self.pods);
        make_all(&stage.client, &what, creations).await?;
        make_all(&stage.client, "reporting them in service", statuses).await?;
        Ok(())
    }

    /// Another pod like the one that the manager has made, and its status.
    fn like(&self, pod: &Value, id: &str) -> (ApiRequest, ApiRequest) {
        let name = format!("{}-{id}", self.name);
        let mut labels = pod["metadata"]["labels"].clone();
        labels["apps.kruise.io/cloneset-instance-id"] = json!(id);
        let metadata = json!({"name": name, "labels": labels, "annotations": pod["metadata"]["annotations"],
            "ownerReferences": pod["metadata"]["ownerReferences"]});
        let body = json!({"metadata": metadata, "spec": pod["spec"]});
        let create = ApiRequest::new(CREATE, PODS_HERE, "leadsman-cloneset", &body);
        (create, report_in_service(&name, pod))
    }

    /// The manager's CPU for a change of a pod that changes nothing that is wanted.
    async fn cpu_an_event(&self, manager: &Contender, scale: f64) -> Result<Duration> {
        let pods = self.list_pods().await?;
        let events = share_of(EVENTS, scale);
        let edits = pods.iter().cycle().enumerate().take(events);
        let edits = edits.map(|(number, pod)| {
            let body = json!({"metadata": {"labels": {"number": number.to_string()}}});
            ApiRequest::new(MERGE, &pod_path(&pod.name_any()), "bench", &body)
        });
        let what = format!("events in a set of {} pods", self.pods);
        let edits = make_all(&self.stage.client, &what, edits.collect());
        let edited = async { edits.await.map(drop) };
        let run = self.stage.during(manager, &what, edited).await?;
        Ok(run.cpu.div_f64(events.amount()))
    }

    /// The creations of as many pods, and the patches that open their gates.
    fn floor_of_growth(&self) -> [Vec<ApiRequest>; 2] {
        let mut pod = self.template(1);
        pod["metadata"]["ownerReferences"] = owner("CloneSet");
        pod["spec"]["readinessGates"] = SERVICE_GATES
            .map(|gate| json!({"conditionType": gate}))
            .into();
        let conditions = SERVICE_GATES.map(|gate| condition(gate, "True"));
        let open = json!({"status": {"conditions": conditions}});
        let requests = (0..self.pods).map(|number| {
            let name = format!("floor-{number}");
            pod["metadata"]["name"] = json!(name);
            let path = format!("{}/status", pod_path(&name));
            let create = ApiRequest::new(CREATE, PODS_HERE, "bench", &pod);
            (create, ApiRequest::new(STRATEGIC, &path, "bench", &open))
        });
        let (creations, patches) = requests.unzip();
        [creations, patches]
    }

    /// The patches of an update in place: out of service, another image, and back.
    async fn floor_of_update(&self, version: u32) -> Result<PodPatches> {
        let pods = self.list_pods().await?.into_iter().map(|pod| {
            let uid = &pod.identity.uid;
            let in_state = |state: &str| json!({"lifecycle.apps.kruise.io/state": state});
            let gate = |status: &str| json!([condition("InPlaceUpdateReady", status)]);
            let record = json!({"apps.kruise.io/inplace-update-state": "x".repeat(400)});
            let patches = [
                json!({"metadata": {"uid": uid}, "status": {"conditions": gate("False")}}),
                json!({"metadata": {"uid": uid, "labels": in_state("Updating"), "annotations": record},
                    "spec": {"containers": [{"name": CONTAINER, "image": image(version)}]}}),
                json!({"metadata": {"uid": uid, "labels": in_state("Normal")},
                    "status": {"conditions": gate("True")}}),
            ];
            let path = pod_path(&pod.name_any());
            let step = |(number, patch): (usize, Value)| PodStep {
                path: if number == 1 { path.clone() } else { format!("{path}/status") },
                patch,
                image: (number > 0).then(|| image(version)),
                is_ready: number == 2,
            };
            PodSteps {
                pod: pod.name_any(),
                steps: patches.into_iter().enumerate().map(step).collect(),
            }
        });
        Ok(PodPatches {
            manager: "leadsman-cloneset".to_owned(),
            container: CONTAINER.to_owned(),
            most_down: (self.pods * PERCENT_DOWN).div_ceil(100),
            pods: pods.collect(),
        })
    }
}

/// The status of a pod of which all gates are open, as a kubelet reports it.
fn report_in_service(name: &str, pod: &Value) -> ApiRequest {
    let values = [("$ip", "10.0.0.1"), ("$container", &*container_id(name))];
    let mut body = filled(include_str!("objects/running.json"), &values);
    let gates = pod["status"]["conditions"].as_array();
    let conditions = body["status"]["conditions"].as_array_mut();
    let all = conditions.into_iter().flatten();
    let all: Vec<_> = all
        .map(Value::take)
        .chain(gates.into_iter().flatten().cloned())
        .collect();
    body["status"]["conditions"] = all.into();
    let path = format!("{}/status", pod_path(name));
    ApiRequest::new(STRATEGIC, &path, "kubelet", &body)
}

fn condition(type_: &str, status: &str) -> Value {
    let at = whole_seconds(clock::now()).to_string();
    json!({"type": type_, "status": status, "lastTransitionTime": at})
}

/// Waits until so many of these sets say that they have so many pods each, all of the present template and ready.
async fn wait_until_complete(
    stage: &Stage,
    namespace: &str,
    (count, pods): (usize, usize),
    is_meant: impl Fn(&DynamicObject) -> bool,
) -> Result<()> {
    let path = sets_of(namespace);
    let mut sets = ObjectWatch::<DynamicObject>::begin(&stage.client, &path, PAGE).await?;
    let is_complete = |set: &DynamicObject| {
        let status = &set.data["status"];
        let counts = ["replicas", "readyReplicas", "updatedReadyReplicas"];
        let is_complete = is_meant(set)
            && status["observedGeneration"] == json!(set.metadata.generation)
            && counts.iter().all(|count| status[count] == pods);
        ensure!(is_complete, "its status is {status}");
        Ok(())
    };
    let what = format!("sets of {pods} pods");
    sets.wait_until(&what, count, PATIENCE, is_complete).await
}

/// Kubelets, the namespaces, and a manager that is ready.
async fn set_up(stage: &Stage) -> Result<(FakeKubelet, Contender)> {
    let kubelets = start_kubelets(stage).await?;
    for namespace in [NAMESPACE, OTHERS] {
        stage.make_namespace(namespace).await?;
    }
    let manager = stage.start(Who::Manager, None).await?;
    manager.ready().await?;
    wait("the manager's first look", QUIET).await;
    Ok((kubelets, manager))
}

/// Returns the manager's CPU for an event of a pod, with the pods of the set.
async fn one_set(stage: &Stage, scale: f64, report: &mut Report) -> Result<Vec<(usize, Duration)>> {
    let (_kubelets, manager) = set_up(stage).await?;
    let [few, many] = [("few", FEW), ("many", MANY)].map(|(name, pods)| Clones {
        stage,
        namespace: NAMESPACE,
        name: name.to_owned(),
        pods: share_of(pods, scale).max(BESIDE),
    });
    few.carry_out(&manager, &few.create(), "created").await?;
    let event_of_few = few.cpu_an_event(&manager, scale).await?;
    let grown = many.carry_out(&manager, &many.create(), "created").await?;
    let event = many.cpu_an_event(&manager, scale).await?;
    let edit = many.edit("InPlaceOnly", 2);
    let updated = many.carry_out(&manager, &edit, "updated in place").await?;
    let edit = many.edit("ReCreate", 3);
    let replaced = many.carry_out(&manager, &edit, "replaced").await?;
    manager.end().await?;
    let floor = update_bare(&many).await?;
    let [creations, patches] = many.floor_of_growth();
    let created = stage.send_bare(creations).await?.last_write("pods");
    let opened = created + stage.send_bare(patches).await?.last_write("pods");
    let pods = many.pods;
    let [most_created, most_updated, most_replaced] = MOST_WRITES;
    let add = report.section(format!("{pods} pods created"));
    add_change(add, &grown, (pods, most_created));
    let times = grown.requests.creation_times("many-");
    let last = times.last().copied().context("pods were created")?;
    add.compare(&figures::CLONES_CREATED, last, created);
    let open = grown.requests.last_write("pods");
    add.compare(&figures::CLONES_OPEN, open, opened);
    let add = report.section(format!("{pods} pods updated in place"));
    add_change(add, &updated, (pods, most_updated));
    add.compare(&figures::ROLLED_OUT, updated.ready, floor);
    let add = report.section(format!("{pods} pods replaced"));
    add_change(add, &replaced, (pods, most_replaced));
    add.add(&figures::CLONES_REPLACED, replaced.ready);
    Ok(vec![(few.pods, event_of_few), (pods, event)])
}

/// The same of one more set, whose pods are there and in service when the manager starts.
async fn huge_set(stage: &Stage, scale: f64) -> Result<(usize, Duration)> {
    stage.make_namespace(NAMESPACE).await?;
    let set = Clones {
        stage,
        namespace: NAMESPACE,
        name: "most".to_owned(),
        pods: share_of(MOST, scale).max(BESIDE),
    };
    set.make_at_rest().await?;
    let manager = stage.start(Who::Manager, None).await?;
    let complete = set.wait_until_complete().await;
    complete.with_context(|| manager.last_lines())?;
    wait("the manager's first look", QUIET).await;
    let event = set.cpu_an_event(&manager, scale).await?;
    manager.end().await?;
    Ok((set.pods, event))
}

/// Adds what an event of a pod costs in sets of these sizes, and each against the one before.
fn add_events(report: &mut Report, events: &[(usize, Duration)]) {
    for (pods, cpu) in events {
        let add = report.section(format!("a set of {pods} pods"));
        add.add(&figures::CPU_A_POD_EVENT, *cpu);
    }
    for pair in events.windows(2) {
        let [(fewer, before), (pods, cpu)] = pair else {
            continue;
        };
        let growth = cpu.as_secs_f64() / before.as_secs_f64();
        let add = report.section(format!("{pods} pods against {fewer}"));
        add.add(&figures::POD_EVENT_GROWTH, growth);
    }
}

/// An update in place by a floor: after how long the last kubelet had reported.
async fn update_bare(set: &Clones<'_>) -> Result<Duration> {
    let patches = set.floor_of_update(4).await?;
    let mut floor = set.stage.start(Who::RollOut(patches), None).await?;
    let since = Since::now(&set.stage.plane)?;
    floor.send().await?;
    wait("the last kubelets", QUIET).await;
    let kubelets = since.requests(&set.stage.plane, KUBELETS)?;
    floor.end().await?;
    Ok(kubelets.last_write("pods"))
}

/// Adds what a change of a set costs with so many pods, of which each may take so many writes.
fn add_change(add: &mut Report, run: &Run, (pods, most): (usize, f64)) {
    let kinds = [
        (&figures::UPGRADE_WRITES, "pods", None),
        (&figures::SET_WRITES, "clonesets", None),
        (&figures::REVISION_WRITES, "controllerrevisions", None),
        (&figures::CHILD_EVENTS, "events", None),
    ];
    add_requests(add, &run.requests, &kinds);
    let a_pod = run.requests.writes_of("pods").amount() / pods.amount();
    add.add(&figures::WRITES_A_POD, a_pod).targets = vec![Target::AtMost(most)];
    let statuses = run.requests.count("patch clonesets/status");
    let most = most_statuses(run.requests.last_write("clonesets"));
    add.add(&figures::SET_STATUS_WRITES, statuses).targets = vec![Target::AtMost(most)];
    add.add(&figures::CPU_A_CLONE, run.cpu.div_f64(pods.amount()));
    add.add(&figures::RSS_PEAK, run.held.peak);
}

async fn many_sets(stage: &Stage, scale: f64, report: &mut Report) -> Result<()> {
    let (_kubelets, manager) = set_up(stage).await?;
    let [some, more] = PODS_EACH.map(|pods| share_of(pods, scale).max(2));
    let set = |number: usize, pods: usize| Clones {
        stage,
        namespace: NAMESPACE,
        name: format!("set-{number:02}"),
        pods,
    };
    let create = (0..SETS).map(|number| set(number, some).create());
    make_all(&stage.client, "making sets", create.collect()).await?;
    wait_until_complete(stage, NAMESPACE, (SETS, some), |_| true).await?;
    wait("what else is written", QUIET).await;
    manager.end().await?;
    let restart = || (Who::Manager, None);
    let run = stage.run("nothing to do", restart(), Contender::ready, 3 * QUIET);
    let nothing = run.await?;
    let larger = set(SETS / 2, some + 1);
    larger.edit("ReCreate", 1).send(&stage.client).await?;
    let acts = async |manager: &Contender| {
        let ready = manager.ready().await?;
        larger.wait_until_complete().await?;
        Ok(ready)
    };
    let acted = stage
        .run("one edit to act on", restart(), acts, QUIET)
        .await?;
    let manager = stage.start(Who::Manager, None).await?;
    let grow = (0..SETS).map(|number| set(number, more).edit("ReCreate", 1));
    make_all(&stage.client, "making the sets larger", grow.collect()).await?;
    wait_until_complete(stage, NAMESPACE, (SETS, more), |_| true).await?;
    wait("what else is written", QUIET).await;
    let held = manager.meter.held()?;
    manager.end().await?;
    let run = stage.run("nothing to do", restart(), Contender::ready, QUIET);
    let after = run.await?.held;
    let add = report.section(format!(
        "a manager that starts beside {} pods in {SETS} sets",
        some * SETS
    ));
    add.add(&figures::NO_WRITES, nothing.requests.writes())
        .note(nothing.requests.listed());
    add.add(&figures::READY, nothing.ready);
    add.add(&figures::CPU_UNTIL_READY, nothing.cpu);
    add.add(&figures::LEADS, leads(&acted));
    add.add(&figures::ACTED_ONCE_LEADING, repaired_once_leading(&acted));
    let add = report.section(format!("{} pods in {SETS} sets", more * SETS));
    add.add(&figures::CLONES_RSS, held.rss);
    add.add(&figures::RSS_PEAK, held.peak);
    add.add(&figures::RSS_AFTER_RESTART, after.rss);
    Ok(())
}

/// Small sets that are created while a large one grows: one in its namespace, one in another.
async fn beside(stage: &Stage, scale: f64, report: &mut Report) -> Result<()> {
    let (_kubelets, manager) = set_up(stage).await?;
    let set = |name: &str, namespace, pods| Clones {
        stage,
        namespace,
        name: name.to_owned(),
        pods,
    };
    let large = set("large", NAMESPACE, share_of(MANY, scale).max(BESIDE));
    large.create().send(&stage.client).await?;
    wait("a large set grows", LATER).await;
    let since = Since::now(&stage.plane)?;
    let small = [("small", NAMESPACE), ("other", OTHERS)];
    let small = small.map(|(name, namespace)| set(name, namespace, BESIDE));
    for set in &small {
        set.create().send(&stage.client).await?;
    }
    for set in small.iter().chain([&large]) {
        let complete = set.wait_until_complete().await;
        complete.with_context(|| manager.last_lines())?;
    }
    let requests = stage.requests(since)?;
    manager.end().await?;
    for set in &small {
        let times = requests.creation_times(&format!("{}-", set.name));
        let last = times
            .get(BESIDE - 1)
            .copied()
            .context("ten pods were created")?;
        let later = requests.creation_times("large-");
        let later = later.iter().filter(|time| **time > last).count();
        let add = report.section(format!(
            "a set of {BESIDE} in namespace {} beside one of {} in {NAMESPACE}",
            set.namespace, large.pods
        ));
        add.add(&figures::TENTH_POD, last)
            .note(format!("{later} pods of the large set were created later"));
    }
    Ok(())
}
