//! A feature that runs against a scripted API server, and the server.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request as HttpRequest, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::client::Body;
use leadsman_api::slim::Pod;
use leadsman_process::Readiness;
use serde_json::json;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::sleep;

use super::*;
use crate::kind::{Kind, OptionalFields};
use crate::places::Places;
use crate::rules::{Observation, Observe};
use leadsman_reconcile::{Class, RightScope, WriteVerb};

/// What the server does with a request.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Code(u16, &'static str),
    After(u16, &'static str),
    Hang,
}

/// Answers by pod name, then 200; and the requests with the second of their arrival.
#[derive(Clone, Default)]
pub(super) struct Server {
    pub(super) script: Arc<Mutex<HashMap<String, VecDeque<Answer>>>>,
    pub(super) seen: Arc<Mutex<Vec<(String, f64)>>>,
    pub(super) flying: Arc<Mutex<(usize, usize)>>,
}

impl Server {
    fn asked(&self, start: Instant) -> ApiServer {
        let server = self.clone();
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let server = server.clone();
            let path = request.uri().path().to_owned();
            async move { server.answer(path, start).await }
        });
        ApiServer::new(kube::Client::new(service, "default"))
    }

    async fn answer(&self, path: String, start: Instant) -> Result<Response<Body>, Infallible> {
        // A page of what a new leader re-lists.
        let name = path.split('/').next_back().unwrap();
        let pod = path.split('/').nth(6).unwrap_or(name).to_owned();
        let second = start.elapsed().as_secs_f64();
        self.seen.lock().unwrap().push((pod.clone(), second));
        let answer = self
            .script
            .lock()
            .unwrap()
            .get_mut(&pod)
            .and_then(VecDeque::pop_front);
        {
            let mut flying = self.flying.lock().unwrap();
            flying.0 += 1;
            flying.1 = flying.1.max(flying.0);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        let (code, after, body) = match answer {
            None => (
                200,
                None,
                json!({"metadata": {"name": pod, "namespace": "shop", "resourceVersion": "9"}, "items": []}).to_string(),
            ),
            Some(Answer::Code(code, body)) => (code, None, body.to_owned()),
            Some(Answer::After(code, after)) => (code, Some(after), String::new()),
            Some(Answer::Hang) => std::future::pending().await,
        };
        self.flying.lock().unwrap().0 -= 1;
        let mut response = Response::builder().status(code);
        if let Some(after) = after {
            response = response.header("retry-after", after);
        }
        Ok(response.body(Body::from(body.into_bytes())).unwrap())
    }

    pub(super) fn script(&self, pod: &str, answers: &[Answer]) {
        self.script
            .lock()
            .unwrap()
            .insert(pod.to_owned(), answers.iter().cloned().collect());
    }

    /// The seconds, to a tenth, at which requests for a pod came.
    pub(super) fn seconds(&self, pod: &str) -> Vec<f64> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .filter(|(name, _)| name == pod)
            .map(|(_, second)| *second)
            .collect()
    }
}

/// Rules that observe two kinds, each with optional fields, by which every pod that is wanted is due one request, until
/// it is observed or refused.
#[derive(Clone, Default)]
pub(super) struct Script {
    pub(super) due: Arc<Mutex<BTreeSet<String>>>,
    pub(super) refused: Arc<Mutex<Vec<(String, String)>>>,
    pub(super) synced: bool,
    /// How often it goes on after an event.
    pub(super) turns: Arc<Mutex<usize>>,
}

impl Script {
    fn next_turn(&self, now: Now) -> Option<Duration> {
        (*self.turns.lock().unwrap() > 0).then_some(now.monotonic)
    }
}

#[derive(Debug)]
pub(super) enum Event {
    Wanted(String),
    Shown(String),
    Refused(String, String),
    Other,
}

const FIELDS: OptionalFields = OptionalFields {
    paths: &[],
    content: "",
    later: &[],
};

pub(super) static PATCH: WriteKind = WriteKind {
    label: "lamp",
    group: "",
    version: "v1",
    resource: "pods/status",
    verb: WriteVerb::MergePatch,
    scope: RightScope::Cluster,
    class: 0,
};

impl<K> Observe<K> for Script {
    fn event_from_observation(_: Observation<K>) -> Event {
        Event::Other
    }
}

impl Rules for Script {
    const NAME: &'static str = "lamps";
    const KINDS: &'static [Kind<Self>] = &[
        Kind::new::<ConfigMap>(100)
            .relisted_on_takeover()
            .with_optional_fields(FIELDS),
        Kind::new::<Secret>(100)
            .relisted_on_takeover()
            .with_optional_fields(FIELDS),
    ];
    const WRITES: &'static [WriteKind] = &[];
    const CLASSES: &'static [Class] = &[Class::new("lamps")];

    type Event = Event;
    type Target = String;

    fn observe_event(&mut self, event: Event, now: Now) -> Effects<String> {
        let mut due = self.due.lock().unwrap();
        let mut effects = Effects {
            dirty: Vec::new(),
            deadline: self.next_turn(now),
        };
        match event {
            Event::Wanted(name) => {
                due.insert(name.clone());
                effects.dirty.push(name);
            }
            Event::Shown(name) => {
                due.remove(&name);
            }
            Event::Refused(name, reason) => {
                due.remove(&name);
                self.refused.lock().unwrap().push((name, reason));
            }
            Event::Other => {}
        }
        effects
    }

    fn synced(&mut self, _now: Now) -> Effects<String> {
        self.synced = true;
        Effects {
            dirty: self.due.lock().unwrap().iter().cloned().collect(),
            deadline: None,
        }
    }

    fn deadline_passed(&mut self, now: Now) -> Effects<String> {
        *self.turns.lock().unwrap() -= 1;
        Effects {
            dirty: Vec::new(),
            deadline: self.next_turn(now),
        }
    }

    fn due_request(&mut self, name: &String, _now: Now) -> Option<Request<Event>> {
        assert!(self.synced, "asked for requests before all is listed");
        let due = self.due.lock().unwrap().contains(name);
        let path = format!("/api/v1/namespaces/shop/pods/{name}/status");
        let name = name.clone();
        due.then(|| Request {
            kind: &PATCH,
            http: Ok(HttpRequest::patch(path).body(Vec::new()).unwrap()),
            reply: Some(|body| {
                let pod: Pod = serde_json::from_slice(body)?;
                Ok(Event::Shown(pod.identity.name.unwrap_or_default()))
            }),
            read_back: None,
            measured: None,
            written: Event::Other,
            refused: Box::new(|refusal| Event::Refused(name, refusal.into_reason())),
        })
    }

    fn class_index(_: &String) -> usize {
        0
    }

    fn namespace(_: &String) -> Option<&str> {
        None
    }
}

/// The Lease, long enough for any of these tests.
pub(super) const LONG: Duration = Duration::from_hours(1);

pub(super) struct Bench {
    pub(super) server: Server,
    pub(super) script: Script,
    pub(super) readiness: Readiness,
    pub(super) events: Sender<Arrival<Event>>,
    pub(super) stop: CancellationToken,
    pub(super) leadership: watch::Sender<Leadership>,
    pub(super) metrics: leadsman_process::Metrics,
    pub(super) running: tokio::task::JoinHandle<()>,
    pub(super) start: Instant,
}

/// The first leader.
pub(super) fn bench() -> Bench {
    let bench = standby();
    bench.lead_first(LONG);
    bench
}

pub(super) fn standby() -> Bench {
    let server = Server::default();
    let script = Script::default();
    let readiness = Readiness::default();
    let stop = CancellationToken::new();
    let start = clock::monotonic();
    let metrics = leadsman_process::Metrics::default();
    let leadership = watch::Sender::new(Leadership::Standby);
    let shared = FeatureContext {
        own_namespace: "leadsman-system".into(),
        server: server.asked(start),
        leadership: leadership.subscribe(),
        places: SharedPlaces::new(Places::new(4)),
        permissions: Permissions::new(readiness.add_check("rights to write", "")),
        metrics: ControlMetrics::new(&metrics),
        random: RandomSource::from_seed(7),
    };
    let feature = FeatureLoop::new(script.clone(), shared);
    let (events, arrivals) = channel(64);
    let running = tokio::spawn(feature.run(arrivals, stop.clone()));
    Bench {
        server,
        script,
        readiness,
        events,
        stop,
        leadership,
        metrics,
        running,
        start,
    }
}

impl Bench {
    async fn arrive(&self, event: Event, completes: Option<Prerequisite>) {
        let arrival = Arrival {
            at: clock::monotonic(),
            completes,
            event,
        };
        self.events.send(arrival).await.ok().unwrap();
    }

    pub(super) async fn complete(&self, prerequisite: Prerequisite) {
        self.arrive(Event::Other, Some(prerequisite)).await;
    }

    pub(super) async fn list_all(&self) {
        for prerequisite in write_prerequisites::<Script>() {
            self.complete(prerequisite).await;
        }
    }

    /// The Lease is ours for so long from now, and was another's before.
    pub(super) fn lead(&self, term: u64, lasts: Duration) {
        self.take_lease(term, true, lasts);
    }

    /// The Lease is ours for so long from now, and was nobody's before.
    pub(super) fn lead_first(&self, lasts: Duration) {
        self.take_lease(1, false, lasts);
    }

    pub(super) fn take_lease(&self, term: u64, after_others: bool, lasts: Duration) {
        let until = clock::monotonic() + lasts;
        self.leadership.send_replace(Leadership::Leads {
            term,
            after_others,
            until,
        });
    }

    pub(super) fn stand_by(&self) {
        self.leadership.send_replace(Leadership::Standby);
    }

    /// How many targets are to be written.
    pub(super) fn pending(&self) -> String {
        let text = self.metrics.text().unwrap();
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("leadsman_workqueue_depth{"));
        line.unwrap().split(' ').next_back().unwrap().to_owned()
    }

    pub(super) async fn due(&self, pod: &str) {
        self.arrive(Event::Wanted(pod.to_owned()), None).await;
    }
}

/// Time is paused: this lasts no longer than what happens in it.
pub(super) async fn after(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}
