//! How the target answers at the moment, and what it was asked so far.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;

/// What all three servers look at.
pub(crate) struct State {
    answers: Mutex<Answers>,
    counts: Mutex<Counts>,
    /// Whether the TCP port listens.
    pub(crate) tcp_open: watch::Sender<bool>,
}

/// The answers that can be switched.
#[derive(Clone)]
pub(crate) struct Answers {
    /// Status of `/healthz`.
    pub(crate) healthz: u16,
    /// Body of `/healthz`.
    pub(crate) body: String,
    /// Body of `/role`; its status is 200 for `main`, else 503.
    pub(crate) role: String,
    /// The health of each gRPC service by name.
    pub(crate) grpc: BTreeMap<String, Health>,
}

/// What a health check over gRPC is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    Unknown,
    Serving,
    NotServing,
    /// As if the service were not registered.
    ServiceUnknown,
    /// As if there were no health service.
    Unimplemented,
    /// No answer at all.
    Hang,
}

#[derive(Default)]
struct Counts {
    http: BTreeMap<String, u64>,
    grpc: BTreeMap<String, u64>,
    tcp: u64,
    answers: BTreeMap<String, u64>,
    failures: BTreeMap<String, u64>,
}

impl Default for State {
    fn default() -> Self {
        let answers = Answers {
            healthz: 200,
            body: "ok".into(),
            role: "secondary".into(),
            grpc: BTreeMap::from([
                (String::new(), Health::Serving),
                ("role".into(), Health::NotServing),
            ]),
        };
        Self {
            answers: Mutex::new(answers),
            counts: Mutex::default(),
            tcp_open: watch::Sender::new(true),
        }
    }
}

impl State {
    /// The answers of this moment.
    pub(crate) fn answers(&self) -> Answers {
        locked(&self.answers).clone()
    }

    /// Switches one answer. The error says what is wrong with key or value.
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<(), String> {
        let mut answers = locked(&self.answers);
        match key {
            "healthz" => {
                let status = value
                    .parse()
                    .ok()
                    .filter(|status| (100..1000).contains(status));
                answers.healthz = status.ok_or_else(|| format!("healthz={value}: not a status"))?;
            }
            "body" => answers.body = value.into(),
            "role" => answers.role = value.into(),
            "tcp" => {
                let open = match value {
                    "open" => true,
                    "closed" => false,
                    _ => return Err(format!("tcp={value}: neither open nor closed")),
                };
                self.tcp_open.send_replace(open);
            }
            _ => {
                let service = match key.strip_prefix("grpc") {
                    Some("") => "",
                    Some(rest) => rest
                        .strip_prefix('.')
                        .ok_or_else(|| format!("{key}: unknown"))?,
                    None => return Err(format!("{key}: unknown")),
                };
                answers.grpc.insert(service.into(), Health::parse(value)?);
            }
        }
        Ok(())
    }

    pub(crate) fn count_http(&self, path: &str) {
        *locked(&self.counts).http.entry(path.into()).or_default() += 1;
    }

    pub(crate) fn count_grpc(&self, service: &str) {
        *locked(&self.counts).grpc.entry(service.into()).or_default() += 1;
    }

    pub(crate) fn count_tcp(&self) {
        locked(&self.counts).tcp += 1;
    }

    /// Counts what came of a request of one's own: the body, or why there is none.
    pub(crate) fn count_answer(&self, answer: Result<String, String>) {
        let mut counts = locked(&self.counts);
        let count = match answer {
            Ok(body) => counts.answers.entry(body),
            Err(failure) => counts.failures.entry(failure),
        };
        *count.or_default() += 1;
    }

    /// Requests so far: `http` by path, `grpc` by service, `tcp` connections; of one's own `answers` by body, and `failures`.
    pub(crate) fn counts(&self) -> Value {
        let counts = locked(&self.counts);
        json!({ "http": counts.http, "grpc": counts.grpc, "tcp": counts.tcp,
            "answers": counts.answers, "failures": counts.failures })
    }
}

impl Health {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "UNKNOWN" => Ok(Self::Unknown),
            "SERVING" => Ok(Self::Serving),
            "NOT_SERVING" => Ok(Self::NotServing),
            "SERVICE_UNKNOWN" => Ok(Self::ServiceUnknown),
            "UNIMPLEMENTED" => Ok(Self::Unimplemented),
            "hang" => Ok(Self::Hang),
            _ => Err(format!("grpc={text}: not a health")),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
