//! Attacks on the manager: hostile objects on a control plane, beside a neighbour whose agent is played.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use leadsman_api::NodePodProbe;
use leadsman_api::node_pod_probe::PodProbeStatus;
use leadsman_core::cluster::whole_seconds;
use leadsman_process::clock;
use leadsman_tests::report::verdict;
use leadsman_tests::room::{is_main, role};
use leadsman_tests::{Crowd, stall_body, wait_longer_for_answer};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::api::{ApiRequest, CREATE, MERGE, NODE_POD_PROBES, make_all};
use super::injection::{self, INJECTED};
use super::roll_out::GATES;
use super::stage::{Contender, Stage, Who, play_with};
use crate::meter::Meter;
use crate::report::Report;
use crate::share_of;
use crate::tenants::kubelet::{ANSWER, Kept, MANAGER_MEMORY, Tended};
use crate::tenants::neighbour::{Flips, Neighbour, Source};
use crate::tenants::{self, Attack, Played, Scene};

const NEIGHBOUR: &str = "neighbour";
/// More than turn in one window.
const NEIGHBOURS: usize = 30;
const HOSTILE: &str = "hostile";
const HOSTILE_PODS: &str = "/api/v1/namespaces/hostile/pods";
const HOSTILE_MARKERS: &str = "/apis/apps.kruise.io/v1alpha1/namespaces/hostile/podprobemarkers";
/// At full size: markers; Pending pods, and labels of each; larger Pending pods; pods that flap, and their nodes.
const MARKERS: usize = 400;
const LABELLED: usize = 60;
const LARGE: usize = 80;
const FLAPPING: usize = 5_000;
const NODES: usize = 50;
/// Requests that bring a pod its labels, and how many each brings. What the API server takes for `managedFields` grows with the
/// square of that (`PathElementSet.Insert` in `sigs.k8s.io/structured-merge-diff`).
const LABELLINGS: usize = 8;
const LABELS: usize = 12_500;
/// Characters `<` in a pod's environment.
const CHARACTERS: usize = 1_300_000;
/// Calls of the webhook that stall, and how much of a body each sends, of the 7 MiB that are taken.
const BODIES: usize = 10;
const BODY: usize = 6_900 << 10;
/// How long the manager may take to plan the pods that are to flap.
const PLANNED_WITHIN: Duration = Duration::from_secs(90);
const BEAT: Duration = Duration::from_secs(1);
/// An agent's pace between two writes (`reporter` in `leadsman-core`): this many times what the first took, and no longer.
const PAUSE_PER_LENGTH: u32 = 10;
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Plays one attack. Must not be called within a Tokio runtime.
pub(crate) fn measure(attack: Attack, scale: f64, report: &mut Report) -> Result<()> {
    let gates = if attack == Attack::Bodies { GATES } else { "" };
    let played = play_with(gates, async |stage| {
        Ok(Box::pin(play(stage, attack, scale)).await)
    })?;
    tenants::add(attack, played, report);
    Ok(())
}

async fn play(stage: &Stage, attack: Attack, scale: f64) -> Result<Played> {
    let (client, creates) = (&stage.client, attack == Attack::Bodies);
    let manager = Tended::new(Manager::new(stage));
    manager.process.start().await?;
    let crowd = Crowd::new(client, NEIGHBOUR, 1, NEIGHBOURS).await?;
    let agent = PlayedAgent::begin(client, &crowd, creates).await?;
    let namespaces = [HOSTILE, INJECTED].map(namespace);
    make_all(client, "making namespaces", namespaces.into()).await?;
    if creates {
        injection::set(0).send(client).await?;
        injection::wait_until_in_force(client, 1).await?;
    }
    let mut neighbour = Neighbour::begin(client, NEIGHBOUR, crowd.pods).await?;
    let hostile = Hostile {
        client,
        scale,
        planned: RefCell::default(),
    };
    let scene = Scene {
        neighbour: &mut neighbour,
        source: &agent,
        manager: &manager,
        agent: None,
    };
    let (begin, keep_up) = (hostile.begin(attack), hostile.keep_up(attack));
    Box::pin(scene.play((attack, scale), begin, keep_up)).await
}

fn namespace(name: &str) -> ApiRequest {
    let body = json!({"metadata": {"name": name}});
    ApiRequest::new(CREATE, "/api/v1/namespaces", "bench", &body)
}

/// The manager of a stage.
struct Manager<'a> {
    stage: &'a Stage,
    running: RefCell<Option<Contender>>,
}

impl<'a> Manager<'a> {
    fn new(stage: &'a Stage) -> Self {
        let running = RefCell::default();
        Self { stage, running }
    }
}

impl Kept for Manager<'_> {
    fn limit(&self) -> u64 {
        MANAGER_MEMORY
    }

    fn meter(&self) -> Result<Meter> {
        let running = self.running.borrow();
        Ok(running.as_ref().context("no manager runs")?.meter)
    }

    async fn answers(&self, path: &str) -> bool {
        let health = self.running.borrow().as_ref().and_then(Contender::health);
        let (Some(health), Ok(request)) = (health, http::Request::get(path).body(Vec::new()))
        else {
            return false;
        };
        matches!(
            timeout(ANSWER, health.request_text(request)).await,
            Ok(Ok(_))
        )
    }

    async fn stop(&self) {
        let running = self.running.take();
        if let Some(running) = running
            && let Err(error) = running.end().await
        {
            eprintln!("bench: the manager is killed: {}", error.root_cause());
        }
    }

    async fn kill(&self) {
        drop(self.running.take());
    }

    async fn start(&self) -> Result<()> {
        let started = self.stage.start(Who::Manager, None).await?;
        self.running.replace(Some(started));
        Ok(())
    }
}

/// The agent of the neighbour's node: it probes each second, and reports what has turned.
struct PlayedAgent<'a> {
    client: &'a Client,
    object: NodePodProbe,
    /// Whether the neighbour creates pods of a set too.
    creates: bool,
    succeeds: RefCell<HashMap<String, bool>>,
    /// Since the last report.
    turned: RefCell<Vec<String>>,
    reported: RefCell<HashMap<String, Instant>>,
}

impl<'a> PlayedAgent<'a> {
    /// Brings a marker to the pods, and waits until all of them are marked as secondary.
    async fn begin(client: &'a Client, crowd: &Crowd, creates: bool) -> Result<Self> {
        let object = plan(client, crowd).await?.pop().context("it has a node")?;
        let agent = Self {
            client,
            object,
            creates,
            succeeds: RefCell::default(),
            turned: RefCell::default(),
            reported: RefCell::default(),
        };
        agent.report().await?;
        crowd.wait_for_marks(&crowd.pods, &is_main(false)).await?;
        Ok(agent)
    }

    async fn report(&self) -> Result<()> {
        let succeeds = self.succeeds.borrow().clone();
        let succeeds = |pod: &str| succeeds.get(pod).copied().unwrap_or(false);
        let report = report(&self.object, succeeds, whole_seconds(clock::now()));
        report.send(self.client).await.map(drop)
    }
}

impl Source for PlayedAgent<'_> {
    async fn turn(&self, pod: &str, on: bool) -> Result<()> {
        self.succeeds.borrow_mut().insert(pod.to_owned(), on);
        self.turned.borrow_mut().push(pod.to_owned());
        Ok(())
    }

    fn reported(&self, pod: &str) -> Option<Instant> {
        self.reported.borrow().get(pod).copied()
    }

    async fn create(&self, window: Duration) -> Result<Option<Flips>> {
        if !self.creates {
            return Ok(None);
        }
        let request = injection::pod(INJECTED, &injection::app(0));
        let mut created = Flips::default();
        let mut ticks = interval(BEAT);
        let end = clock::monotonic() + window;
        while clock::monotonic() < end {
            ticks.tick().await;
            let began = clock::monotonic();
            match request.send(self.client).await {
                Ok(pod) if injection::is_injected(&pod) => {}
                Ok(_) => created.wrong.push("it has no sidecar".to_owned()),
                Err(error) => created.wrong.push(format!("{error:#}")),
            }
            created.times.push(began.elapsed());
        }
        created.times.sort_unstable();
        Ok(Some(created))
    }

    async fn serve(&self) -> Result<()> {
        let mut ticks = interval(BEAT);
        loop {
            ticks.tick().await;
            let turned = self.turned.take();
            if turned.is_empty() {
                continue;
            }
            let now = clock::monotonic();
            let at = turned.iter().map(|pod| (pod.clone(), now));
            self.reported.borrow_mut().extend(at);
            // Like an agent, it reports again what could not be reported.
            if self.report().await.is_err() {
                self.turned.borrow_mut().extend(turned);
            }
        }
    }
}

/// Brings a marker to a crowd, and waits until all its pods have their entries.
async fn plan(client: &Client, crowd: &Crowd) -> Result<Vec<NodePodProbe>> {
    crowd.scene(0).marker("role", json!([role()])).await?;
    let objects: Api<NodePodProbe> = Api::all(client.clone());
    let what = format!("the entries of {} pods", crowd.pods.len());
    wait_longer_for_answer(&what, PLANNED_WITHIN, || async {
        sleep(BEAT / 4).await;
        let mut objects = objects.list(&ListParams::default()).await?.items;
        objects.retain(|object| crowd.nodes.contains(&object.name_any()));
        let planned = objects.iter().map(|object| object.spec.pod_probes.len());
        Ok((planned.sum::<usize>() == crowd.pods.len()).then_some(objects))
    })
    .await
}

/// The status patch by which a node's agent reports this of its pods.
fn report(object: &NodePodProbe, succeeds: impl Fn(&str) -> bool, at: Timestamp) -> ApiRequest {
    let pods = object.spec.pod_probes.iter().map(|pod| {
        let state = if succeeds(&pod.name) {
            "Succeeded"
        } else {
            "Failed"
        };
        let states = pod.probes.iter();
        let states = states.map(|entry| verdict(entry, &pod.name, state, "", at));
        PodProbeStatus {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            uid: pod.uid.clone(),
            probe_states: states.collect(),
            ..PodProbeStatus::default()
        }
    });
    let body = json!({"status": {"podProbeStatuses": pods.collect::<Vec<_>>()}});
    let path = format!("{NODE_POD_PROBES}/{}/status", object.name_any());
    ApiRequest::new(MERGE, &path, "agent", &body)
}

/// Whoever attacks.
struct Hostile<'a> {
    client: &'a Client,
    scale: f64,
    /// The nodes of the pods that flap.
    planned: RefCell<Vec<NodePodProbe>>,
}

impl Hostile<'_> {
    fn scaled(&self, count: usize) -> usize {
        share_of(count, self.scale).max(2)
    }

    /// Brings the attack to the cluster.
    async fn begin(&self, attack: Attack) -> Result<()> {
        match attack {
            Attack::Markers => {
                let markers = (0..self.scaled(MARKERS)).map(|number| {
                    ApiRequest::new(CREATE, HOSTILE_MARKERS, "kubectl", &marker(number, 5))
                });
                make_all(self.client, "hostile markers", markers.collect()).await?;
            }
            Attack::Labels => self.pods(LABELLED, labelled_pod).await?,
            Attack::Pods => self.pods(LARGE, |number| vec![large_pod(number)]).await?,
            Attack::Flaps => {
                let (nodes, pods) = (self.scaled(NODES), self.scaled(FLAPPING));
                let crowd = Crowd::new(self.client, "flaps", nodes, pods).await?;
                self.planned.replace(plan(self.client, &crowd).await?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes pods, each by some requests one after the other. They are large: only a few at once.
    async fn pods(&self, count: usize, pod: impl Fn(usize) -> Vec<ApiRequest>) -> Result<()> {
        let made = (0..self.scaled(count)).map(|number| {
            let requests = pod(number);
            async move {
                for request in requests {
                    request.send(self.client).await?;
                }
                anyhow::Ok(())
            }
        });
        let made = futures::stream::iter(made).buffer_unordered(4);
        made.try_collect().await
    }

    /// Goes on attacking, for ever.
    async fn keep_up(&self, attack: Attack) -> Result<()> {
        let client = self.client.clone();
        let attacking = match attack {
            Attack::Flaps => tokio::spawn(flap(client, self.planned.take())),
            Attack::Bodies => tokio::spawn(stall_bodies(client)),
            _ => tokio::spawn(edit(client, attack)),
        };
        AbortOnDropHandle::new(attacking).await?
    }
}

/// A marker that selects the label `a` and sets `b`, or the other way round, as those of the other kind may select the same
/// pods: of the values of all other labels they have only the last in common.
fn marker(number: usize, period: u32) -> Value {
    let [own, others] = if number.is_multiple_of(2) {
        ["a", "b"]
    } else {
        ["b", "a"]
    };
    let mut selected = vec![json!({"key": own, "operator": "In", "values": ["x"]})];
    selected.extend((0..14).map(|key| {
        let values = (0..255).map(|value| format!("{own}-{value:03}"));
        let values: Vec<_> = values.chain(["common".to_owned()]).collect();
        json!({"key": format!("k{key:02}"), "operator": "In", "values": values})
    }));
    let probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": period});
    let policy = json!([{"state": "Succeeded", "labels": {others: "x"}}]);
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "PodProbeMarker",
        "metadata": {"name": format!("marker-{number:03}")},
        "spec": {"selector": {"matchExpressions": selected}, "probes": [{"name": "probe",
            "containerName": "main", "probe": probe, "markerPolicy": policy}]}
    })
}

/// A Pending pod with labels that no other pod has.
fn labelled_pod(number: usize) -> Vec<ApiRequest> {
    let mut requests = vec![pending_pod(number, &json!([]))];
    requests.extend((0..LABELLINGS).map(|labelling| {
        let names = (labelling * LABELS..(labelling + 1) * LABELS)
            .map(|label| format!("{number:02}{label:05}"));
        let labels: serde_json::Map<_, _> = names.map(|name| (name, json!(""))).collect();
        // With an empty entry the API server forgets the others, which name each label once more: there is no room for that.
        let body = json!({"metadata": {"managedFields": [{}], "labels": labels}});
        ApiRequest::new(MERGE, &path(number), "kubectl", &body)
    }));
    requests
}

fn large_pod(number: usize) -> ApiRequest {
    let env = json!([{"name": "TEXT", "value": "<".repeat(CHARACTERS)}]);
    pending_pod(number, &env)
}

fn pending_pod(number: usize, env: &Value) -> ApiRequest {
    let metadata = json!({"name": format!("pod-{number:02}")});
    let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": [{"name": "main", "image": "none", "env": env}]}});
    ApiRequest::new(CREATE, HOSTILE_PODS, "kubectl", &body)
}

fn path(number: usize) -> String {
    format!("{HOSTILE_PODS}/pod-{number:02}")
}

/// Edits one object each second.
async fn edit(client: Client, attack: Attack) -> Result<()> {
    for beat in 0.. {
        sleep(BEAT).await;
        // One of the first two, which there are at any scale.
        let number = beat % 2;
        let request = if attack == Attack::Markers {
            let period = 5 + u32::try_from(beat)? % 50;
            let marker = marker(number, period);
            let body = json!({"spec": {"probes": marker["spec"]["probes"]}});
            let path = format!("{HOSTILE_MARKERS}/marker-{number:03}");
            ApiRequest::new(MERGE, &path, "kubectl", &body)
        } else {
            let body = json!({"metadata": {"annotations": {"beat": beat.to_string()}}});
            ApiRequest::new(MERGE, &path(number), "kubectl", &body)
        };
        request.send(&client).await?;
    }
    Ok(())
}

/// Turns the verdicts of all pods, node by node, each as often as its agent may write.
async fn flap(client: Client, objects: Vec<NodePodProbe>) -> Result<()> {
    let mut nodes = JoinSet::new();
    for object in objects {
        nodes.spawn(flap_node(client.clone(), object));
    }
    match nodes.join_next().await {
        Some(ended) => ended?,
        None => Ok(()),
    }
}

async fn flap_node(client: Client, object: NodePodProbe) -> Result<()> {
    for round in 0_u32.. {
        let began = clock::monotonic();
        let at = whole_seconds(clock::now());
        let report = report(&object, |_| round.is_multiple_of(2), at);
        // Where the API server has enough for now, the next report follows all the same.
        if let Err(error) = report.send(&client).await {
            eprintln!("bench: a report was not taken: {error:#}");
        }
        // A probe runs once a second at most, and the more a write takes, the later an agent begins the next.
        let pause = (began.elapsed() * PAUSE_PER_LENGTH).clamp(BEAT, LONGEST_PAUSE);
        tokio::time::sleep_until(began + pause).await;
    }
    Ok(())
}

/// Has so many calls of the webhook under way at any time; each is made again when it is given up.
async fn stall_bodies(client: Client) -> Result<()> {
    let webhook = injection::webhook(&client).await?;
    let call = &webhook["clientConfig"];
    let url: http::Uri = call["url"].as_str().context("no url")?.parse()?;
    let authority: k8s_openapi::ByteString = serde_json::from_value(call["caBundle"].clone())?;
    let mut calls = JoinSet::new();
    for _ in 0..BODIES {
        let (url, authority) = (url.clone(), authority.0.clone());
        calls.spawn(async move {
            loop {
                // However the webhook ends it.
                let _ended = stall_body(&url, &authority, BODY).await;
                sleep(BEAT / 10).await;
            }
        });
    }
    match calls.join_next().await {
        Some(Err(error)) => Err(error.into()),
        _ => Ok(()),
    }
}
