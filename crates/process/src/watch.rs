//! One watch that recovers: a kind's list and what follows it, for as long as somebody listens.
//!
//! kube's `watcher` does most of it, but hides what matters here: whether a watch stands (it is silent when it was
//! accepted), what the API server asks for in a header, and whether an error means a new list; its requests have no
//! deadline of their own, and a resumed watch that is too old waits like any failure. What this one guarantees:
//!
//! - Two attempts are at most [`LONGEST`] apart, unless the API server asks for longer (Retry-After, up to 5 minutes),
//!   and less when another request of the process succeeds after an outage.
//! - A new list begins at once where nothing else helps (410), and a list that broke off goes on with its next page.
//! - Every request has a deadline, and a connection that died without a word is noticed: by silence, or when the API
//!   server answers others again.
//! - [`Event::Follows`] and [`Event::Failed`] say at every moment whether changes are being received.
//!
//! The protocol: Kubernetes API concepts, "Efficient detection of changes"; client-go's `tools/cache/reflector.go`.

use std::time::Duration;

use futures::Stream;
use futures::stream::unfold;
use kube::Resource;
use kube::api::WatchParams;
use kube::core::{Request, WatchEvent};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use self::lines::Lines;
use crate::backoff::Backoff;
use crate::clock;
use crate::list::{Target, unreadable};
use crate::reach::Listener;
use crate::reply::{Cause, Disposition, judge_watch_error, late};
use crate::server::ApiServer;

mod lines;
mod object;

pub use object::{ObjectEvent, ObjectState, watch_object};

/// No two attempts are further apart, unless the API server asks for longer (Retry-After, up to 5 minutes).
pub const LONGEST: Duration = Duration::from_secs(5);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(800), LONGEST);
/// For the beginning of a watch's reply, which API servers send before the first event
/// (`apiserver/pkg/endpoints/handlers/watch.go` flushes the header).
const START_DEADLINE: Duration = Duration::from_secs(10);
/// The API server is asked to end a watch after a time in this range, in seconds, so that not all end together.
const LASTS: std::ops::Range<u32> = 200..290;
/// A watch that has been silent for so long is begun again from where it was. Its API server sends a bookmark each
/// minute (`defaultBookmarkFrequency` in `apiserver/pkg/storage/cacher/cacher.go`), unless the connection is dead.
const SILENCE: Duration = Duration::from_secs(100);
/// A request that is under way when others are answered again may hang on a dead connection, if it is older than this:
/// the start of a watch, and a page of a list.
const HANGS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// A watch that ends sooner and without any event counts as a failure (as in client-go: "very short watch").
const VERY_SHORT: Duration = Duration::from_secs(1);

/// What a watch says.
#[derive(Debug)]
pub enum Event<K> {
    /// A list begins: what was listed before without [`Event::Listed`] is void.
    Lists,
    /// An object of the list.
    Has(K),
    /// The list is complete; so it was at this version.
    Listed(String),
    /// Changes are being received from now on.
    Follows,
    /// An object as it was created or has become.
    Changed(K),
    /// An object was deleted; so it was last.
    Deleted(K),
    /// Changes are not being received, and something will be tried again by itself.
    Failed(Failure),
}

/// Why a watch receives nothing.
#[derive(Debug)]
pub struct Failure {
    /// What failed.
    pub step: Step,
    /// What the API server, or its absence, had to say.
    pub disposition: Disposition,
    /// Until the next attempt, at most.
    pub wait: Duration,
}

/// What a watch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It lists: until that is done, what exists is not known.
    List,
    /// It follows what was listed.
    Watch,
}

/// Follows the target, for ever. `random` spreads attempts and ends.
pub fn watch<K>(
    server: ApiServer,
    target: Target,
    random: fastrand::Rng,
) -> impl Stream<Item = Event<K>> + Send
where
    K: Resource + DeserializeOwned + Clone + Send + 'static,
{
    let watch = Watch {
        listener: server.reach.listen(),
        server,
        target,
        random,
        state: State::Begin,
        failures: 0,
        expired: 0,
        late: 0,
        rest: None,
    };
    unfold(watch, async |mut watch| Some((watch.next().await, watch)))
}

struct Watch<K> {
    server: ApiServer,
    listener: Listener,
    target: Target,
    random: fastrand::Rng,
    state: State<K>,
    /// Since a watch last stood.
    failures: u32,
    /// Those of them that asked for a new list.
    expired: u32,
    /// Pages in a row that came too late.
    late: usize,
    /// Before the next attempt.
    rest: Option<Duration>,
}

enum State<K> {
    /// A list is to begin.
    Begin,
    /// A list is under way: what has come and was not handed on, and where it goes on.
    Page {
        objects: std::vec::IntoIter<K>,
        next: Next,
    },
    /// A watch is to begin at this version.
    Resume { version: String },
    /// A watch stands.
    Follow { version: String, stream: Following },
}

/// What comes after a page.
enum Next {
    /// Another one; none for the first.
    Page { token: Option<String> },
    /// The watch, from this version.
    Watch { version: String },
}

struct Following {
    lines: Lines,
    began: Instant,
    heard: Option<Instant>,
}

/// What a watch that stands meets next.
enum Heard {
    Line(Vec<u8>),
    Ended,
    Broken(Disposition),
    /// It has been silent for too long, or since before an outage.
    Silent,
}

impl<K> Watch<K>
where
    K: Resource + DeserializeOwned + Clone,
{
    async fn next(&mut self) -> Event<K> {
        loop {
            self.rest().await;
            let event = match std::mem::replace(&mut self.state, State::Begin) {
                State::Begin => {
                    let (objects, next) = (Vec::new().into_iter(), Next::Page { token: None });
                    self.state = State::Page { objects, next };
                    Some(Event::Lists)
                }
                State::Page { objects, next } => self.page(objects, next).await,
                State::Resume { version } => Some(self.begin(version).await),
                State::Follow { version, stream } => self.follow(version, stream).await,
            };
            if let Some(event) = event {
                return event;
            }
        }
    }

    /// Rests before the next attempt, but not longer than until the API server answers others again.
    async fn rest(&mut self) {
        if let Some(rest) = self.rest {
            tokio::select! {
                () = sleep(rest) => {}
                _ = self.listener.recovered() => {}
            }
            self.rest = None;
        }
    }

    async fn page(&mut self, mut objects: std::vec::IntoIter<K>, next: Next) -> Option<Event<K>> {
        if let Some(object) = objects.next() {
            self.state = State::Page { objects, next };
            return Some(Event::Has(object));
        }
        let token = match next {
            Next::Watch { version } => {
                self.state = State::Resume {
                    version: version.clone(),
                };
                return Some(Event::Listed(version));
            }
            Next::Page { token } => token,
        };
        let read = self
            .target
            .read(&self.server, token.clone(), &mut self.late);
        let page = unless_hanging(read, &mut self.listener, HANGS.1).await;
        match page.and_then(|page| page) {
            Ok(page) => {
                let next = match page.token {
                    Some(token) => Next::Page { token: Some(token) },
                    None => Next::Watch {
                        version: page.version,
                    },
                };
                let objects = page.objects.into_iter();
                self.state = State::Page { objects, next };
                None
            }
            Err(disposition) => {
                // The rest of a list can be had for minutes: what came before need not be sent again.
                let again = State::Page {
                    objects: Vec::new().into_iter(),
                    next: Next::Page { token },
                };
                Some(self.failed(Step::List, disposition, again))
            }
        }
    }

    /// Begins a watch.
    async fn begin(&mut self, version: String) -> Event<K> {
        match self.start(&version).await {
            Ok(lines) => {
                let (began, heard) = (clock::monotonic(), None);
                let stream = Following {
                    lines,
                    began,
                    heard,
                };
                self.state = State::Follow { version, stream };
                Event::Follows
            }
            Err(disposition) => self.failed(Step::Watch, disposition, State::Resume { version }),
        }
    }

    async fn start(&mut self, version: &str) -> Result<Lines, Disposition> {
        let began = clock::monotonic();
        let params = WatchParams {
            field_selector: self.target.fields.clone(),
            timeout: Some(self.random.u32(LASTS)),
            ..WatchParams::default()
        };
        let request = Request::new(&self.target.path).watch(&params, version);
        let request = request.map_err(|error| unreadable(&error))?;
        let started = async {
            let started = Lines::start(&self.server.client, request);
            let started = tokio::time::timeout(START_DEADLINE, started).await;
            started.unwrap_or_else(|_| Err(late(START_DEADLINE)))
        };
        let lines = unless_hanging(started, &mut self.listener, HANGS.0).await?;
        let met = lines.as_ref().err().unwrap_or(&Disposition::Done);
        self.server.reach.note(met, began, clock::monotonic());
        self.listener.forget();
        lines
    }

    /// What a watch that stands has to say.
    async fn follow(&mut self, version: String, mut stream: Following) -> Option<Event<K>> {
        match self.hear(&mut stream).await {
            Heard::Line(line) => self.decode(version, stream, &line),
            // It is asked to end it now and then.
            Heard::Ended if stands(&stream) => {
                self.stood();
                self.state = State::Resume { version };
                None
            }
            // It did not fail: nobody knows whether its connection lives.
            Heard::Silent => {
                if stands(&stream) {
                    self.stood();
                }
                self.state = State::Resume { version };
                None
            }
            Heard::Broken(disposition) => {
                if stands(&stream) {
                    self.stood();
                }
                let heard = stream.heard.unwrap_or(stream.began);
                let now = clock::monotonic();
                self.server.reach.note(&disposition, heard, now);
                Some(self.failed(Step::Watch, disposition, State::Resume { version }))
            }
            Heard::Ended => {
                let disposition = unavailable("the API server ended the watch at once");
                Some(self.failed(Step::Watch, disposition, State::Resume { version }))
            }
        }
    }

    fn stood(&mut self) {
        (self.failures, self.expired) = (0, 0);
    }

    async fn hear(&mut self, stream: &mut Following) -> Heard {
        let heard = stream.heard.unwrap_or(stream.began);
        loop {
            tokio::select! {
                biased;
                line = stream.lines.next() => return match line {
                    Ok(Some(line)) => Heard::Line(line),
                    Ok(None) => Heard::Ended,
                    Err(disposition) => Heard::Broken(disposition),
                },
                lost = self.listener.recovered() => if heard <= lost {
                    return Heard::Silent;
                },
                () = tokio::time::sleep_until(heard + SILENCE) => return Heard::Silent,
            }
        }
    }

    fn decode(&mut self, version: String, stream: Following, line: &[u8]) -> Option<Event<K>> {
        let event = match serde_json::from_slice::<WatchEvent<K>>(line) {
            Ok(event) => event,
            Err(error) => {
                return Some(self.failed(Step::Watch, unreadable(&error), State::Begin));
            }
        };
        let (version, event) = match event {
            WatchEvent::Error(status) => {
                let disposition = judge_watch_error(&status);
                return Some(self.failed(Step::Watch, disposition, State::Resume { version }));
            }
            WatchEvent::Bookmark(bookmark) => (bookmark.metadata.resource_version, None),
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                (version_of(&object), Some(Event::Changed(object)))
            }
            WatchEvent::Deleted(object) => (version_of(&object), Some(Event::Deleted(object))),
        };
        if version.is_empty() {
            let disposition = unreadable(&"an event without a resourceVersion");
            return Some(self.failed(Step::Watch, disposition, State::Begin));
        }
        self.stood();
        let heard = Some(clock::monotonic());
        let stream = Following { heard, ..stream };
        self.state = State::Follow { version, stream };
        event
    }

    /// Decides what is tried next, and when. `again` is what failed.
    fn failed(&mut self, step: Step, disposition: Disposition, again: State<K>) -> Event<K> {
        self.failures = self.failures.saturating_add(1);
        let distance = BACKOFF.distance(self.failures, self.random.f64());
        let wait = match &disposition {
            Disposition::Expired { .. } => {
                self.expired = self.expired.saturating_add(1);
                // A second one in a row is not cured by haste.
                if self.expired == 1 {
                    Duration::ZERO
                } else {
                    distance
                }
            }
            Disposition::Retry { after, .. } => distance.max(after.unwrap_or_default()),
            _ => distance,
        };
        self.state = match &disposition {
            Disposition::Retry { cause, .. } => match cause {
                Cause::InternalError | Cause::Conflict => State::Begin,
                _ => again,
            },
            _ => State::Begin,
        };
        self.rest = Some(wait).filter(|wait| !wait.is_zero());
        self.listener.forget();
        Event::Failed(Failure {
            step,
            disposition,
            wait,
        })
    }
}

/// Waits for a request, but not longer than `hangs` once the API server has answered others again after an outage.
async fn unless_hanging<T>(
    request: impl Future<Output = T>,
    listener: &mut Listener,
    hangs: Duration,
) -> Result<T, Disposition> {
    let began = clock::monotonic();
    listener.forget();
    let given_up = async {
        listener.recovered().await;
        tokio::time::sleep_until(began + hangs).await;
    };
    tokio::select! {
        biased;
        replied = request => Ok(replied),
        () = given_up => Err(unavailable("no answer since before an outage")),
    }
}

/// Whether it has delivered something, or lasted.
fn stands(stream: &Following) -> bool {
    stream.heard.is_some() || clock::monotonic() >= stream.began + VERY_SHORT
}

fn version_of(object: &impl Resource) -> String {
    object.meta().resource_version.clone().unwrap_or_default()
}

fn unavailable(reason: &str) -> Disposition {
    Disposition::Retry {
        cause: Cause::Unavailable,
        after: None,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests;
