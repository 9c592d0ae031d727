//! Events on pods, sent by a background task.
//!
//! A probe has at most two events, one for each state. When a state comes again, the count, time and message of its
//! event are updated, as long as the API server keeps it (`--event-ttl`, an hour by default).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
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
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use super::event_spam_filter::EventSpamFilter;
use super::metrics::{EventResult, ProbingMetrics};
use crate::request::{self, FIELD_MANAGER};

/// The source of the events, which is OpenKruise's: tools look for it.
const COMPONENT: &str = "kruise-daemon-podprobe";
/// Bytes of the pod's name in an event's name, which may have 253: a dot, the time and a random number follow.
const POD_NAME_BYTES: usize = 253 - 34;
/// Events in the queue.
const QUEUE: usize = 256;
/// The number of events whose counts are remembered.
const MAX_SERIES: usize = 1024;
/// Attempts at one event (`maxTriesPerEvent` in `k8s.io/client-go/tools/record/event.go`).
const MAX_ATTEMPTS: u32 = 12;
/// Between attempts, unless the API server asks for longer. All events wait, since it would refuse each.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// The verdict that an event is about, and when it changed.
type QueuedChange = (VerdictChange, Timestamp);

/// The queue of events.
pub(crate) struct EventSender {
    queue: Sender<QueuedChange>,
    metrics: ProbingMetrics,
}

impl EventSender {
    /// Starts the task that sends; it ends when this is dropped and the queue is empty.
    pub(crate) fn start_sender(
        server: ApiServer,
        node_name: &str,
        metrics: &ProbingMetrics,
    ) -> Self {
        let (queue, queued) = channel(QUEUE);
        tokio::spawn(send_all(
            server,
            node_name.to_owned(),
            queued,
            metrics.clone(),
        ));
        Self {
            queue,
            metrics: metrics.clone(),
        }
    }

    /// Queues the event of a verdict; drops it if the queue is full.
    pub(crate) fn enqueue_change(&self, change: VerdictChange, at: Timestamp) {
        if let Err(TrySendError::Full((change, _))) = self.queue.try_send((change, at)) {
            self.metrics.count_event(EventResult::Overflowed);
            tracing::warn!(probe = %change.key, "event dropped: {QUEUE} events are waiting to be sent already");
        }
    }
}

async fn send_all(
    server: ApiServer,
    node_name: String,
    mut queued: Receiver<QueuedChange>,
    metrics: ProbingMetrics,
) {
    let mut series = EventSeries::default();
    let mut spam_filter = EventSpamFilter::default();
    while let Some((change, at)) = queued.recv().await {
        // Before it is sent, as client-go's correlator does: an event that is refused costs the API server a request
        // too.
        if !spam_filter.take_token(&change.key.pod, clock::monotonic()) {
            metrics.count_event(EventResult::Suppressed);
            tracing::debug!(probe = %change.key, "event dropped: the pod has had 25 events, and gets one more every 5 minutes");
            continue;
        }
        let disposition = send_with_retries(&server, &node_name, &mut series, &change, at).await;
        metrics.count_event(match disposition {
            Disposition::Done => EventResult::Sent,
            _ => EventResult::Failed,
        });
        if disposition != Disposition::Done {
            let error = disposition.explain_reason();
            tracing::warn!(probe = %change.key, error, "sending the event of a changed verdict failed, dropping the event");
        }
    }
}

/// Sends an event until it is accepted or refused, or the attempts are used up.
async fn send_with_retries(
    server: &ApiServer,
    node_name: &str,
    series: &mut EventSeries,
    change: &VerdictChange,
    at: Timestamp,
) -> Disposition {
    // Built once, with its name: after an attempt whose reply was lost, the next one must not create a second event.
    let event = build_event(node_name, change, at);
    let mut failures = 0;
    loop {
        let disposition = send_event(server, series, change, &event).await;
        failures += 1;
        if failures >= MAX_ATTEMPTS || !may_pass_by_retry(&disposition) {
            return disposition;
        }
        let asked = disposition.retry_after().unwrap_or_default();
        tokio::time::sleep(asked.max(BACKOFF.delay(failures, fastrand::f64()))).await;
    }
}

/// Whether another attempt may succeed by itself. A missing right or namespace must not hold up the other events.
fn may_pass_by_retry(disposition: &Disposition) -> bool {
    let Disposition::Retry { cause, .. } = disposition else {
        return false;
    };
    matches!(
        cause,
        RetryCause::Throttled
            | RetryCause::Unavailable
            | RetryCause::NoAnswer
            | RetryCause::InternalError
    )
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
            // It has expired: a new one begins.
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

fn build_event(node_name: &str, change: &VerdictChange, at: Timestamp) -> Event {
    let pod = &change.key.pod;
    // OpenKruise's reasons, like the source: tools look for them.
    let (reason, kind) = match change.to {
        State::Succeeded => ("KruiseProbeSucceeded", "Normal"),
        State::Failed | State::Unknown => ("KruiseProbeFailed", "Warning"),
    };
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(&pod.name, at)),
            namespace: Some(pod.namespace.to_string()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.to_string()),
            name: Some(pod.name.to_string()),
            uid: Some(pod.uid.to_string()),
            // As the kubelet names a container in its events (`fieldPath`, `pkg/kubelet/container/ref.go`).
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
fn event_name(pod: &str, at: Timestamp) -> String {
    let pod = truncate(pod, POD_NAME_BYTES).trim_end_matches(['-', '.']);
    format!("{pod}.{:x}{:04x}", at.as_nanosecond(), fastrand::u16(..))
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
        let name = event_name(&"a.".repeat(126), Timestamp::MAX);
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

    // PPM-14
    #[tokio::test(start_paused = true)]
    async fn an_event_whose_reply_is_lost_is_sent_again_under_its_name() {
        let names: Arc<std::sync::Mutex<Vec<String>>> = Arc::default();
        let posted = Arc::clone(&names);
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let posted = Arc::clone(&posted);
            async move {
                let body = request.into_body().collect_bytes().await?;
                let event: Event = serde_json::from_slice(&body)?;
                let name = event.metadata.name.unwrap();
                let there = posted.lock().unwrap().contains(&name);
                posted.lock().unwrap().push(name);
                let reply = http::Response::builder();
                match posted.lock().unwrap().len() {
                    1 => Err(Box::<dyn std::error::Error + Send + Sync>::from("reset")),
                    _ if there => Ok(reply.status(409).body(kube::client::Body::empty())?),
                    _ => Ok(reply.status(201).body(kube::client::Body::empty())?),
                }
            }
        });
        let server = ApiServer::new(kube::Client::new(service, "default"));
        let mut series = EventSeries::default();
        let change = change("p", State::Failed, "no");
        let at = Timestamp::UNIX_EPOCH;
        let sent = send_with_retries(&server, "node", &mut series, &change, at).await;
        assert_eq!(sent, Disposition::Done);
        let names = names.lock().unwrap().clone();
        assert_eq!(names, vec![names[0].clone(); 2]);
        assert_eq!(series.next_occurrence(&change), Some((names[0].clone(), 2)));
    }
}
