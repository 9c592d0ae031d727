//! Events on pods, sent by a background task.
//!
//! A probe has at most two events, one for each state. When a state comes again, the count, time and message of its
//! event are updated, as long as the API server keeps it (`--event-ttl`, an hour by default).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request;
use kube::core::request::Error as BuildError;
use leadsman_api::limits;
use leadsman_core::cluster::truncate;
use leadsman_core::podprobe::State;
use leadsman_core::podprobe::node::{ProbeKey, VerdictChange};
use leadsman_process::reply::{Disposition, RetryCause};
use leadsman_process::{ApiServer, Backoff, clock};
use serde_json::json;
use tokio::sync::Notify;

use super::event_queue::{EventQueue, NextEvent, QUEUE, QueuedEvent};
use super::event_spam_filter::EventSpamFilter;
use super::metrics::{EventResult, ProbingMetrics};
use crate::request::{self, FIELD_MANAGER};

/// The source of the events, which is OpenKruise's: tools look for it.
const COMPONENT: &str = "kruise-daemon-podprobe";
/// Bytes of the pod's name in an event's name, which may have 253: a dot, the time and a random number follow.
const POD_NAME_BYTES: usize = 253 - 34;
/// The number of events whose counts are remembered.
const MAX_SERIES: usize = 1024;
/// Attempts at one event (`maxTriesPerEvent` in `k8s.io/client-go/tools/record/event.go`).
const MAX_ATTEMPTS: u32 = 12;
/// Between attempts, unless the API server asks for longer.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// Queues events, and sends them by a task of its own.
pub(crate) struct EventSender {
    node_name: Arc<str>,
    spam_filter: EventSpamFilter,
    queue: Arc<SharedQueue>,
    metrics: ProbingMetrics,
    random: fastrand::Rng,
}

/// The queue, as both tasks see it.
#[derive(Default)]
struct SharedQueue {
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Default)]
struct QueueState {
    events: EventQueue,
    /// Nobody adds any more.
    is_closed: bool,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No change is left half-made by a panic but a wrong count, which the next events even out.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next event that may be sent; none when the queue is empty and closed.
    async fn next(&self) -> Option<QueuedEvent> {
        loop {
            let next = {
                let mut state = self.lock();
                match state.events.take_next(clock::monotonic()) {
                    NextEvent::Due(queued) => return Some(*queued),
                    NextEvent::Empty if state.is_closed => return None,
                    NextEvent::Empty => None,
                    NextEvent::At(at) => Some(at),
                }
            };
            match next {
                None => self.changed.notified().await,
                Some(at) => {
                    // Another namespace may have an event meanwhile.
                    let _ = tokio::time::timeout_at(at, self.changed.notified()).await;
                }
            }
        }
    }
}

impl EventSender {
    /// Starts the task that sends; it ends when this is dropped and the queue is empty.
    pub(crate) fn start_sender(
        server: ApiServer,
        node_name: Arc<str>,
        metrics: &ProbingMetrics,
        mut random: fastrand::Rng,
    ) -> Self {
        let queue = Arc::<SharedQueue>::default();
        let sending = send_all(server, queue.clone(), metrics.clone(), random.fork());
        tokio::spawn(sending);
        Self {
            node_name,
            spam_filter: EventSpamFilter::default(),
            queue,
            metrics: metrics.clone(),
            random,
        }
    }

    /// Queues the event of a verdict, if its pod may have one more.
    pub(crate) fn enqueue_change(&mut self, change: VerdictChange, at: Timestamp) {
        // The filter comes before the queue: pods that flap have used up their events soon, and
        // none of them takes the room of another pod's.
        if !self
            .spam_filter
            .take_token(&change.key.pod, clock::monotonic())
        {
            self.metrics.count_event(EventResult::Suppressed);
            tracing::debug!(probe = %change.key, "event dropped: the pod has had 25 events, and gets one more every 5 minutes");
            return;
        }
        let event = build_event(&self.node_name, &change, at, self.random.u16(..));
        let dropped = self.queue.lock().events.push(QueuedEvent {
            change,
            event,
            failures: 0,
        });
        self.queue.changed.notify_one();
        if let Some(QueuedEvent { change, .. }) = dropped {
            self.metrics.count_event(EventResult::Overflowed);
            tracing::warn!(probe = %change.key, "event dropped: {QUEUE} events wait to be sent, and no namespace has more of them than this one");
        }
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_one();
    }
}

async fn send_all(
    server: ApiServer,
    queue: Arc<SharedQueue>,
    metrics: ProbingMetrics,
    mut random: fastrand::Rng,
) {
    let mut series = EventSeries::default();
    while let Some(mut queued) = queue.next().await {
        let QueuedEvent { change, event, .. } = &queued;
        let disposition = send_event(&server, &mut series, change, event).await;
        queued.failures += 1;
        if let Some(cause) = retry_cause(&disposition)
            && queued.failures < MAX_ATTEMPTS
        {
            let asked = disposition.retry_after().unwrap_or_default();
            let delay = asked.max(BACKOFF.delay(queued.failures, random.f64()));
            // Behind those of other namespaces: a limit may be of one namespace (the admission plugin EventRateLimit has
            // such, `plugin/pkg/admission/eventratelimit`).
            let again = clock::monotonic() + delay;
            queue.lock().events.put_back(queued, again);
            if cause != RetryCause::Throttled {
                // The API server would refuse each.
                tokio::time::sleep(delay).await;
            }
            continue;
        }
        metrics.count_event(match disposition {
            Disposition::Done => EventResult::Sent,
            _ => EventResult::Failed,
        });
        if disposition != Disposition::Done {
            let error = disposition.explain_reason();
            tracing::warn!(probe = %queued.change.key, error, "sending the event of a changed verdict failed, dropping the event");
        }
    }
}

/// Why another attempt may succeed by itself. A missing right or namespace must not hold up the other events.
fn retry_cause(disposition: &Disposition) -> Option<RetryCause> {
    let Disposition::Retry { cause, .. } = disposition else {
        return None;
    };
    let may_pass = matches!(
        cause,
        RetryCause::Throttled
            | RetryCause::Unavailable
            | RetryCause::NoAnswer
            | RetryCause::NotSent
            | RetryCause::InternalError
    );
    may_pass.then_some(*cause)
}

async fn send_event(
    server: &ApiServer,
    series: &mut EventSeries,
    change: &VerdictChange,
    event: &Event,
) -> Disposition {
    let events = Request::new(Event::url_path(&(), Some(&change.key.pod.namespace)));
    if let Some((name, count)) = series.next_occurrence(change) {
        let Event {
            last_timestamp,
            message,
            ..
        } = event;
        let patch = json!({"count": count, "lastTimestamp": last_timestamp, "message": message});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = events.patch(&name, &params, &Patch::Merge(&patch));
        match request::send_request(server, patch).await.0 {
            Disposition::Done => {
                series.set_count(change, count);
                return Disposition::Done;
            }
            // The event has expired: a new one begins.
            Disposition::Gone { .. } => {}
            failed => return failed,
        }
    }
    let body = serde_json::to_vec(event).map_err(BuildError::SerializeBody);
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let create = body.and_then(|body| events.create(&params, body));
    match request::send_request(server, create).await.0 {
        // An earlier attempt, whose reply was lost, has created it.
        Disposition::Done | Disposition::AlreadyExists { .. } => {
            series.begin_series(change, event.metadata.name.clone().unwrap_or_default());
            Disposition::Done
        }
        failed => failed,
    }
}

fn build_event(node_name: &str, change: &VerdictChange, at: Timestamp, random: u16) -> Event {
    let pod = &change.key.pod;
    // OpenKruise's reasons, like the source: tools look for them.
    let (reason, kind) = match change.to {
        State::Succeeded => ("KruiseProbeSucceeded", "Normal"),
        State::Failed | State::Unknown => ("KruiseProbeFailed", "Warning"),
    };
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(&pod.name, at, random)),
            namespace: Some(pod.namespace.to_string()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.to_string()),
            name: Some(pod.name.to_string()),
            uid: Some(pod.uid.to_string()),
            // The kubelet names a container so in its events (`fieldPath`,
            // `pkg/kubelet/container/ref.go`).
            field_path: Some(format!("spec.containers{{{}}}", change.key.container)),
            ..ObjectReference::default()
        },
        type_: Some(kind.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(event_message(change)),
        count: Some(1),
        first_timestamp: Some(Time(at)),
        last_timestamp: Some(Time(at)),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node_name.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..Event::default()
    }
}

/// The probe's name and its message.
fn event_message(change: &VerdictChange) -> String {
    let id = &change.key.id;
    let message = match (change.to, &*change.message) {
        (State::Succeeded, "") => format!("{id} succeeded"),
        (_, "") => format!("{id} failed"),
        (_, message) => format!("{id}: {message}"),
    };
    truncate(&message, limits::EVENT_NOTE_BYTES).to_owned()
}

/// The pod's name and the time, as Kubernetes' own components name events (`GenerateEventName` in
/// `k8s.io/client-go/tools/record/util/util.go`), with a random number for two at once.
fn event_name(pod: &str, at: Timestamp, random: u16) -> String {
    let pod = truncate(pod, POD_NAME_BYTES).trim_end_matches(['-', '.']);
    format!("{pod}.{:x}{random:04x}", at.as_nanosecond())
}

/// The events that were sent: a name and a count for each probe and state. Beyond [`MAX_SERIES`] the oldest is
/// forgotten.
#[derive(Default)]
struct EventSeries {
    sent: HashMap<(Arc<ProbeKey>, State), (String, i32)>,
    order: VecDeque<(Arc<ProbeKey>, State)>,
}

impl EventSeries {
    /// The name of a verdict's event, and its count with this time.
    fn next_occurrence(&self, change: &VerdictChange) -> Option<(String, i32)> {
        let (name, count) = self.sent.get(&(change.key.clone(), change.to))?;
        Some((name.clone(), count.saturating_add(1)))
    }

    /// Sets the count that the API server has accepted.
    fn set_count(&mut self, change: &VerdictChange, count: i32) {
        if let Some(sent) = self.sent.get_mut(&(change.key.clone(), change.to)) {
            sent.1 = count;
        }
    }

    fn begin_series(&mut self, change: &VerdictChange, name: String) {
        let key = (change.key.clone(), change.to);
        if self.sent.insert(key.clone(), (name, 1)).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MAX_SERIES
            && let Some(oldest) = self.order.pop_front()
        {
            self.sent.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use leadsman_core::podprobe::node::PodIdentity;

    use super::*;

    fn change(probe: &str, to: State, message: &str) -> VerdictChange {
        let pod = PodIdentity {
            namespace: "ns".into(),
            name: "pod".into(),
            uid: "uid".into(),
        };
        VerdictChange {
            key: Arc::new(ProbeKey {
                pod,
                container: "main".into(),
                id: format!("m#{probe}").parse().unwrap(),
            }),
            from: None,
            to,
            since: None,
            message: message.into(),
            send_event: true,
        }
    }

    // PPM-14, DEF-23
    #[test]
    fn a_message_names_the_probe_and_is_cut_on_a_character() {
        let table = [
            (change("p", State::Succeeded, ""), "m#p succeeded"),
            (change("p", State::Failed, ""), "m#p failed"),
            (change("p", State::Failed, "busy"), "m#p: busy"),
        ];
        for (change, expected) in table {
            assert_eq!(event_message(&change), expected);
        }
        let long = event_message(&change("p", State::Failed, &"é".repeat(2_000)));
        assert_eq!(long.len(), 1023);
    }

    #[test]
    fn a_name_is_one_that_the_api_server_takes() {
        let name = event_name(&"a.".repeat(126), Timestamp::MAX, u16::MAX);
        assert!(name.len() <= 253, "{name}");
        assert!(!name.contains(".."), "{name}");
    }

    // PPM-14
    #[test]
    fn what_comes_again_is_counted_and_the_oldest_forgotten() {
        let mut series = EventSeries::default();
        let first = change("first", State::Failed, "");
        assert_eq!(series.next_occurrence(&first), None);
        series.begin_series(&first, "e".to_owned());
        // An attempt that failed counts nothing.
        assert_eq!(series.next_occurrence(&first), Some(("e".to_owned(), 2)));
        assert_eq!(series.next_occurrence(&first), Some(("e".to_owned(), 2)));
        series.set_count(&first, 2);
        assert_eq!(series.next_occurrence(&first), Some(("e".to_owned(), 3)));
        assert_eq!(
            series.next_occurrence(&change("first", State::Succeeded, "")),
            None
        );
        for other in 0..MAX_SERIES {
            let other = change(&other.to_string(), State::Failed, "");
            series.begin_series(&other, "e".to_owned());
        }
        assert_eq!(series.next_occurrence(&first), None);
        assert_eq!(series.sent.len(), MAX_SERIES);
    }

    type Reply =
        Result<http::Response<kube::client::Body>, Box<dyn std::error::Error + Send + Sync>>;

    fn reply(status: u16) -> Reply {
        let reply = http::Response::builder().status(status);
        Ok(reply.body(kube::client::Body::empty())?)
    }

    /// An API server that answers by the namespace and the name of an event, and the queue for it.
    fn sender(
        answer: impl Fn(&http::Method, &str, &str) -> Reply + Send + Sync + 'static,
    ) -> EventSender {
        let answer = Arc::new(answer);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let answer = Arc::clone(&answer);
            async move {
                let (head, body) = request.into_parts();
                let namespace = head.uri.path().split('/').nth(4).unwrap().to_owned();
                let body = body.collect_bytes().await?;
                let body: serde_json::Value = serde_json::from_slice(&body)?;
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                answer(&head.method, &namespace, name)
            }
        });
        let server = ApiServer::new(kube::Client::new(service, "default"));
        let metrics = ProbingMetrics::new(&leadsman_process::Metrics::default());
        EventSender::start_sender(server, "node".into(), &metrics, fastrand::Rng::with_seed(7))
    }

    fn change_in(namespace: &str, pod: &str) -> VerdictChange {
        let mut change = change("p", State::Failed, "no");
        let pod = PodIdentity {
            namespace: namespace.into(),
            name: pod.into(),
            uid: "uid".into(),
        };
        change.key = Arc::new(ProbeKey {
            pod,
            ..ProbeKey::clone(&change.key)
        });
        change
    }

    /// Waits, by the clock of the test, which stands still while anything is to be done.
    async fn wait_until(is_done: impl Fn() -> bool) {
        let wait = async {
            while !is_done() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_mins(10), wait).await;
        waited.expect("it is done in time");
    }

    // PPM-14
    #[tokio::test(start_paused = true)]
    async fn an_event_whose_reply_is_lost_is_sent_again_under_its_name() {
        let posted: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let requests = Arc::clone(&posted);
        let mut sender = sender(move |method, _, name| {
            let mut requests = requests.lock().unwrap();
            let there = requests.iter().any(|(_, known)| known == name);
            requests.push((method.to_string(), name.to_owned()));
            match requests.len() {
                1 => Err("reset".into()),
                _ if there => reply(409),
                _ => reply(201),
            }
        });
        let at = Timestamp::UNIX_EPOCH;
        sender.enqueue_change(change_in("ns", "a"), at);
        wait_until(|| posted.lock().unwrap().len() == 2).await;
        // It counts as sent: the next one is another of its series.
        sender.enqueue_change(change_in("ns", "a"), at);
        wait_until(|| posted.lock().unwrap().len() == 3).await;
        let posted = posted.lock().unwrap().clone();
        assert_eq!(posted[0].0, "POST");
        assert_eq!(posted[0], posted[1]);
        assert_eq!(posted[2].0, "PATCH");
    }

    // PPM-14
    #[tokio::test(start_paused = true)]
    async fn a_namespace_whose_events_are_throttled_holds_up_no_other() {
        let posted: Arc<Mutex<Vec<String>>> = Arc::default();
        let requests = Arc::clone(&posted);
        let mut sender = sender(move |_, namespace, _| {
            requests.lock().unwrap().push(namespace.to_owned());
            reply(if namespace == "throttled" { 429 } else { 201 })
        });
        let at = Timestamp::UNIX_EPOCH;
        for pod in 0..100 {
            sender.enqueue_change(change_in("throttled", &pod.to_string()), at);
        }
        let began = clock::monotonic();
        for pod in ["a", "b", "c"] {
            sender.enqueue_change(change_in("fine", pod), at);
        }
        let sent = || {
            posted
                .lock()
                .unwrap()
                .iter()
                .filter(|of| *of == "fine")
                .count()
        };
        wait_until(|| sent() == 3).await;
        assert!(clock::monotonic() - began < Duration::from_millis(200));
    }
}
