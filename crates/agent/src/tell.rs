//! Events on pods, by one task that nobody waits for.
//!
//! A probe has at most two events, one for each verdict; what happens again is counted on it, with the newest words, as
//! long as the API server keeps it (an hour, mostly).

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
use leadsman_core::podprobe::State;
use leadsman_core::podprobe::node::{ProbeKey, VerdictChange, cut};
use leadsman_process::reply::{Cause, Disposition};
use leadsman_process::{ApiServer, Backoff, clock};
use serde_json::json;
use tokio::sync::mpsc::{Receiver, Sender, channel, error::TrySendError};

use crate::metrics::{Metrics, Telling};
use crate::request;
use crate::spam::SpamFilter;

/// Whose events these are: what tools that know OpenKruise's look for.
const COMPONENT: &str = "kruise-daemon-podprobe";
/// Bytes of a message that the API server takes.
const MESSAGE: usize = 1024;
/// Characters of an event's name, less those behind the pod's.
const NAME: usize = 253 - 34;
/// Events that wait to be sent.
const WAITING: usize = 256;
/// Events that are remembered to count on.
const REMEMBERED: usize = 1024;
/// Attempts at one event (`maxTriesPerEvent` of `k8s.io/client-go/tools/record/event.go`).
const ATTEMPTS: u32 = 12;
/// Between them, if the API server asks for no longer one; all events wait, since it would say the same to each.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// A verdict to tell of, and when it came.
type Told = (VerdictChange, Timestamp);

/// Where events are handed in.
pub(crate) struct Teller {
    waiting: Sender<Told>,
    metrics: Metrics,
}

impl Teller {
    /// Starts the task; it ends when this is dropped and what waits is sent.
    pub(crate) fn start(server: ApiServer, node: &str, metrics: &Metrics) -> Self {
        let (waiting, told) = channel(WAITING);
        tokio::spawn(send_all(server, node.to_owned(), told, metrics.clone()));
        Self {
            waiting,
            metrics: metrics.clone(),
        }
    }

    /// Tells of a verdict, later; never waits.
    pub(crate) fn tell(&self, change: VerdictChange, at: Timestamp) {
        if let Err(TrySendError::Full((change, _))) = self.waiting.try_send((change, at)) {
            self.metrics.told(Telling::Overflowed);
            tracing::warn!(probe = %change.key, "event dropped, queue full");
        }
    }
}

async fn send_all(server: ApiServer, node: String, mut told: Receiver<Told>, metrics: Metrics) {
    let mut series = Series::default();
    let mut spam = SpamFilter::default();
    while let Some((change, at)) = told.recv().await {
        if !spam.take(&change.key.pod.uid, clock::monotonic()) {
            metrics.told(Telling::Suppressed);
            tracing::debug!(probe = %change.key, "event dropped, pod over the rate limit (25, then one per 5 minutes)");
            continue;
        }
        let disposition = send_patiently(&server, &node, &mut series, &change, at).await;
        metrics.told(match disposition {
            Disposition::Done => Telling::Sent,
            _ => Telling::Failed,
        });
        if let Some(error) = disposition.reason() {
            tracing::warn!(probe = %change.key, error, "an event was not sent");
        }
    }
}

/// Until it is sent, or refused, or was tried often enough.
async fn send_patiently(
    server: &ApiServer,
    node: &str,
    series: &mut Series,
    change: &VerdictChange,
    at: Timestamp,
) -> Disposition {
    // Once, with its name: of an attempt whose reply is lost the next one must not make a second event.
    let event = event(node, change, at);
    let mut failures = 0;
    loop {
        let disposition = send(server, series, change, &event).await;
        failures += 1;
        if failures >= ATTEMPTS || !may_pass(&disposition) {
            return disposition;
        }
        let asked = disposition.slow_down().unwrap_or_default();
        tokio::time::sleep(asked.max(BACKOFF.delay(failures, fastrand::f64()))).await;
    }
}

/// Whether another attempt may succeed by itself. That a right or a namespace is missing holds up no other event.
fn may_pass(disposition: &Disposition) -> bool {
    let Disposition::Retry { cause, .. } = disposition else {
        return false;
    };
    matches!(
        cause,
        Cause::Throttled | Cause::Unavailable | Cause::NoAnswer | Cause::InternalError
    )
}

async fn send(
    server: &ApiServer,
    series: &mut Series,
    change: &VerdictChange,
    event: &Event,
) -> Disposition {
    let events = Request::new(Event::url_path(&(), Some(&change.key.pod.namespace)));
    if let Some((name, count)) = series.next(change) {
        let Event {
            last_timestamp,
            message,
            ..
        } = event;
        let again = json!({"count": count, "lastTimestamp": last_timestamp, "message": message});
        let again = events.patch(&name, &PatchParams::default(), &Patch::Merge(&again));
        match request::send(server, again).await.0 {
            Disposition::Done => {
                series.counted(change, count);
                return Disposition::Done;
            }
            // It has expired: another one begins.
            Disposition::Gone { .. } => {}
            failed => return failed,
        }
    }
    let body = serde_json::to_vec(event).map_err(BuildError::SerializeBody);
    let create = body.and_then(|body| events.create(&PostParams::default(), body));
    match request::send(server, create).await.0 {
        // An earlier attempt made it.
        Disposition::Done | Disposition::AlreadyExists { .. } => {
            series.begin(change, event.metadata.name.clone().unwrap_or_default());
            Disposition::Done
        }
        failed => failed,
    }
}

fn event(node: &str, change: &VerdictChange, at: Timestamp) -> Event {
    let pod = &change.key.pod;
    let (reason, kind) = match change.to {
        State::Succeeded => ("KruiseProbeSucceeded", "Normal"),
        State::Failed | State::Unknown => ("KruiseProbeFailed", "Warning"),
    };
    Event {
        metadata: ObjectMeta {
            name: Some(name(&pod.name, at)),
            namespace: Some(pod.namespace.to_string()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.to_string()),
            name: Some(pod.name.to_string()),
            uid: Some(pod.uid.to_string()),
            field_path: Some(format!("spec.containers{{{}}}", change.key.container)),
            ..ObjectReference::default()
        },
        type_: Some(kind.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message(change)),
        count: Some(1),
        first_timestamp: Some(Time(at)),
        last_timestamp: Some(Time(at)),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_owned()),
        ..Event::default()
    }
}

/// Which probe it is, then its words.
fn message(change: &VerdictChange) -> String {
    let id = &change.key.id;
    let told = match (change.to, &*change.message) {
        (State::Succeeded, "") => format!("{id} succeeded"),
        (_, "") => format!("{id} failed"),
        (_, words) => format!("{id}: {words}"),
    };
    cut(&told, MESSAGE).to_owned()
}

/// Like those of Kubernetes' own components: the pod's name and the time, here with some chance against two at once.
fn name(pod: &str, at: Timestamp) -> String {
    let pod = cut(pod, NAME).trim_end_matches(['-', '.']);
    format!("{pod}.{:x}{:04x}", at.as_nanosecond(), fastrand::u16(..))
}

/// The events that were sent, to count on. The oldest is forgotten when there are too many.
#[derive(Default)]
struct Series {
    sent: HashMap<(Arc<ProbeKey>, State), (String, i32)>,
    order: VecDeque<(Arc<ProbeKey>, State)>,
}

impl Series {
    /// The event of this verdict, and how often it has come with this time.
    fn next(&self, change: &VerdictChange) -> Option<(String, i32)> {
        let (name, count) = self.sent.get(&(change.key.clone(), change.to))?;
        Some((name.clone(), count.saturating_add(1)))
    }

    /// The event says so by now.
    fn counted(&mut self, change: &VerdictChange, count: i32) {
        if let Some(sent) = self.sent.get_mut(&(change.key.clone(), change.to)) {
            sent.1 = count;
        }
    }

    fn begin(&mut self, change: &VerdictChange, name: String) {
        let key = (change.key.clone(), change.to);
        if self.sent.insert(key.clone(), (name, 1)).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.sent.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use leadsman_core::podprobe::node::PodName;

    use super::*;

    fn change(probe: &str, to: State, message: &str) -> VerdictChange {
        let pod = PodName {
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
            assert_eq!(message(&change), expected);
        }
        let long = message(&change("p", State::Failed, &"é".repeat(2_000)));
        assert_eq!(long.len(), 1023);
    }

    #[test]
    fn a_name_is_one_that_the_api_server_takes() {
        let name = name(&"a.".repeat(126), Timestamp::MAX);
        assert!(name.len() <= 253, "{name}");
        assert!(!name.contains(".."), "{name}");
    }

    // PPM-14
    #[test]
    fn what_comes_again_is_counted_and_the_oldest_forgotten() {
        let mut series = Series::default();
        let first = change("first", State::Failed, "");
        assert_eq!(series.next(&first), None);
        series.begin(&first, "e".to_owned());
        // An attempt that failed counts nothing.
        assert_eq!(series.next(&first), Some(("e".to_owned(), 2)));
        assert_eq!(series.next(&first), Some(("e".to_owned(), 2)));
        series.counted(&first, 2);
        assert_eq!(series.next(&first), Some(("e".to_owned(), 3)));
        assert_eq!(series.next(&change("first", State::Succeeded, "")), None);
        for other in 0..REMEMBERED {
            let other = change(&other.to_string(), State::Failed, "");
            series.begin(&other, "e".to_owned());
        }
        assert_eq!(series.next(&first), None);
        assert_eq!(series.sent.len(), REMEMBERED);
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
        let mut series = Series::default();
        let change = change("p", State::Failed, "no");
        let at = Timestamp::UNIX_EPOCH;
        let sent = send_patiently(&server, "node", &mut series, &change, at).await;
        assert_eq!(sent, Disposition::Done);
        let names = names.lock().unwrap().clone();
        assert_eq!(names, vec![names[0].clone(); 2]);
        assert_eq!(series.next(&change), Some((names[0].clone(), 2)));
    }
}
