//! Starts and stops the certificate, configuration and server loops.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration as Validating,
};
use leadsman_lease::Leadership;
use leadsman_process::serve::BindAddress;
use leadsman_process::watch;
use leadsman_process::{ApiServer, Process, RandomSource, ReadinessCheck, clock};
use tokio::net::TcpListener;
use tokio::sync::{RwLock, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::args::AdmissionArgs;
use crate::barrier::progress::StateProgress;
use crate::certificate::directory::{Directory, DirectoryError};
use crate::certificate::publish::CertificatePublisher;
use crate::certificate::secret::{LIFE, SecretLoop, SecretLoopState};
use crate::certificate::{BundlesInForce, CaBundle, KeySource};
use crate::configuration::leftover::delete_leftover;
use crate::configuration::repair::{ConfigurationLoop, ConfigurationLoopState, WebhookSource};
use crate::configuration::{Address, WebhookConfiguration};
use crate::endpoint::Endpoints;
use crate::metrics::AdmissionMetrics;
use crate::review::sealed::ReviewKind;
use crate::server::{CONNECTIONS, Server};
use crate::webhook::Webhook;

/// How long the release of the Lease waits for the answer to a write under way. The features' last requests have ended before.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// The webhooks of a process.
pub struct Admission {
    /// Resolves when the server has ended. None if nothing is served.
    ended: Option<oneshot::Receiver<()>>,
    loops: JoinSet<()>,
    /// Held shared by each write of a leader while it is under way.
    writes: Arc<RwLock<()>>,
}

/// Why webhooks cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The address is in use, or not one of this machine.
    #[error("cannot listen on {address} (--webhook-bind-address): {source}")]
    Listen {
        /// The address.
        address: BindAddress,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The operating system refused a thread.
    #[error("cannot start the thread of the admission webhooks: {0}")]
    Thread(io::Error),
    /// The directory of the certificates cannot be watched.
    #[error("{0} (--webhook-cert-dir)")]
    Directory(String),
    /// A loop panicked.
    #[error("the loop that keeps the webhooks' certificates or configuration panicked: {0}")]
    Loop(JoinError),
    /// The server ended unexpectedly.
    #[error("the server of the admission webhooks ended unexpectedly; the log has its error")]
    Server,
}

/// How webhooks are served.
pub enum WebhookServing {
    /// The server listens on the address of the flags, on a thread of its own.
    Socket,
    /// Callers in the same process are served, by a task. The keys of certificates then follow from
    /// the random numbers of the process.
    #[cfg(feature = "sim")]
    InProcess(crate::in_process::InProcessServer),
}

enum Listener {
    Socket(TcpListener),
    #[cfg(feature = "sim")]
    InProcess(crate::in_process::InProcessServer),
}

impl WebhookServing {
    async fn listen(self, address: BindAddress) -> Result<Listener, AdmissionError> {
        match self {
            Self::Socket => {
                let listening = address.listen().await;
                let bound = listening
                    .and_then(|listener| listener.ok_or(io::ErrorKind::AddrNotAvailable.into()));
                let listener =
                    bound.map_err(|source| AdmissionError::Listen { address, source })?;
                Ok(Listener::Socket(listener))
            }
            #[cfg(feature = "sim")]
            Self::InProcess(door) => Ok(Listener::InProcess(door)),
        }
    }
}

impl Listener {
    fn spawn_server(self, server: Server) -> Result<oneshot::Receiver<()>, AdmissionError> {
        match self {
            Self::Socket(listener) => {
                spawn_server_thread(server, listener).map_err(AdmissionError::Thread)
            }
            #[cfg(feature = "sim")]
            Self::InProcess(door) => Ok(spawn_server_task(server, door)),
        }
    }
}

impl From<DirectoryError> for AdmissionError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(error.to_string())
    }
}

impl Admission {
    /// Serves these webhooks until the process is to end, keeps their certificates, and registers them with the API
    /// server while leading; without a webhook, a registration left by an earlier process is deleted.
    pub async fn start(
        args: &AdmissionArgs,
        namespace: &str,
        webhooks: Vec<Webhook>,
        (process, serving): (&Process, WebhookServing),
        leadership: watch::Receiver<Leadership>,
    ) -> Result<Self, AdmissionError> {
        let address = args.webhook_bind_address;
        if webhooks.is_empty() || address == BindAddress::Nowhere {
            return Ok(Self::without_server(
                args, namespace, &webhooks, process, leadership,
            ));
        }
        // First: a port that is taken ends the process before anything is registered.
        let keys = match &serving {
            WebhookServing::Socket => KeySource::System,
            #[cfg(feature = "sim")]
            WebhookServing::InProcess(_) => KeySource::Seeded(process.random.fork_rng()),
        };
        let listener = serving.listen(address).await?;
        let metrics = AdmissionMetrics::new(&process.metrics);
        let check = |name| process.readiness.add_check(name, "not read yet");
        let publisher = CertificatePublisher::new(metrics.clone(), check("webhook certificates"));
        let certificate = publisher.subscribe_to_certificate();
        let address = Address::from_args(args, namespace);
        let names = address.certificate_names();
        let parts = LoopParts {
            server: process.server.clone(),
            address,
            random: process.random.clone(),
            bundle: publisher.subscribe_to_bundle(),
            mounted: args.webhook_cert_dir.is_some(),
            leadership: leadership.clone(),
            writes: Arc::default(),
        };
        let of_kind = |kind| webhooks.iter().filter(move |webhook| webhook.kind == kind);
        let mutating_sources = of_kind(ReviewKind::Mutating).map(source).collect();
        let mutating = parts.build_configuration_loop::<MutatingWebhookConfiguration>(
            mutating_sources,
            Some(check("webhook configuration")),
        );
        let absent_since = mutating.absent_since.subscribe();
        let mut in_force = vec![mutating.in_force.subscribe()];
        let mut loops = JoinSet::new();
        loops.spawn(mutating.run());
        let validating: Vec<_> = of_kind(ReviewKind::Validating).map(source).collect();
        // A process that judges nothing may not even read such a configuration.
        if !validating.is_empty() {
            let validating = parts.build_configuration_loop::<Validating>(validating, None);
            in_force.push(validating.in_force.subscribe());
            loops.spawn(validating.run());
        }
        if let Some(path) = args.webhook_cert_dir.clone() {
            loops.spawn(Directory::watch_directory(path, names, publisher)?.run());
        } else {
            let secret = SecretLoop {
                server: process.server.clone(),
                namespace: namespace.to_owned(),
                names,
                life: LIFE,
                leadership,
                in_force: BundlesInForce(in_force),
                publisher,
                keys,
                random: process.random.fork_rng(),
                state: SecretLoopState::default(),
            };
            loops.spawn(secret.run());
        }
        let draining = CancellationToken::new();
        let server = Server {
            endpoints: Arc::new(Endpoints::new(webhooks, metrics, draining.clone())),
            certificate,
            shutdown: process.shutdown.clone(),
            draining,
            absent_since,
            connections: CONNECTIONS,
        };
        let ended = Some(listener.spawn_server(server)?);
        let writes = parts.writes;
        Ok(Self {
            ended,
            loops,
            writes,
        })
    }

    fn without_server(
        args: &AdmissionArgs,
        namespace: &str,
        webhooks: &[Webhook],
        process: &Process,
        leadership: watch::Receiver<Leadership>,
    ) -> Self {
        if !webhooks.is_empty() {
            tracing::warn!("--webhook-bind-address=0: no admission webhook is served");
        }
        let (mut loops, writes) = (JoinSet::new(), Arc::<RwLock<()>>::default());
        if webhooks
            .iter()
            .any(|webhook| webhook.kind == ReviewKind::Validating)
        {
            let parts = LoopParts {
                server: process.server.clone(),
                address: Address::from_args(args, namespace),
                random: process.random.clone(),
                // Nobody publishes one, since a configuration without webhooks needs none.
                bundle: watch::Sender::new(CaBundle::Unknown).subscribe(),
                mounted: false,
                leadership: leadership.clone(),
                writes: writes.clone(),
            };
            // A configuration that is to have no webhook is deleted.
            loops.spawn(
                parts
                    .build_configuration_loop::<Validating>(Vec::new(), None)
                    .run(),
            );
        }
        let server = process.server.clone();
        loops.spawn(delete_leftover::<MutatingWebhookConfiguration>(
            server,
            (leadership, writes.clone()),
            process.random.fork_rng(),
        ));
        Self {
            ended: None,
            loops,
            writes,
        }
    }

    /// Resolves when the server or a loop ends unexpectedly, and never otherwise.
    pub async fn wait_for_failure(&mut self) -> AdmissionError {
        tokio::select! {
            // Either ends the process.
            biased;
            error = wait_for_server_failure(&mut self.ended) => error,
            error = wait_for_loop_failure(&mut self.loops) => AdmissionError::Loop(error),
        }
    }

    /// Stops all writes; calls are still answered. A write of a configuration that is under way has a moment to be answered, since
    /// one that is given up may be carried out later; the next leader repairs that. A late write of the Secret carries a
    /// resourceVersion.
    pub async fn stop_writing(&mut self) {
        let until = clock::monotonic() + LAST_ANSWER;
        tokio::select! {
            // An answer that has come counts.
            biased;
            _no_write_begins = self.writes.write() => self.loops.shutdown().await,
            () = clock::sleep_until(Some(until)) => self.loops.shutdown().await,
        }
    }

    /// Waits until the server has finished its last requests, after the process has begun to stop.
    pub async fn join_server(self) -> Result<(), AdmissionError> {
        match self.ended {
            Some(ended) => ended.await.map_err(|_| AdmissionError::Server),
            // Nothing was served, or the server has ended.
            None => Ok(()),
        }
    }
}

async fn wait_for_server_failure(ended: &mut Option<oneshot::Receiver<()>>) -> AdmissionError {
    if let Some(receiver) = ended {
        // A panic of the thread drops the sender; the clean end is awaited by `join_server`.
        let clean = receiver.await.is_ok();
        *ended = None;
        if !clean {
            return AdmissionError::Server;
        }
    }
    pending().await
}

async fn wait_for_loop_failure(loops: &mut JoinSet<()>) -> JoinError {
    // A loop that returns has logged why, or the process is ending; only a panic is a failure.
    while let Some(ended) = loops.join_next().await {
        if let Err(error) = ended {
            return error;
        }
    }
    pending().await
}

pub(crate) fn source(webhook: &Webhook) -> WebhookSource {
    WebhookSource {
        name: webhook.name,
        calls: webhook.calls.clone(),
        stored: webhook.stored.clone(),
        in_force: webhook.in_force.clone(),
        is_told: false,
        progress: StateProgress::default(),
        led_by: webhook.led_by.clone(),
        answers: Arc::clone(&webhook.answers),
    }
}

/// The parts that the loops of both configurations share.
struct LoopParts {
    server: ApiServer,
    address: Address,
    random: RandomSource,
    bundle: watch::Receiver<CaBundle>,
    mounted: bool,
    leadership: watch::Receiver<Leadership>,
    writes: Arc<RwLock<()>>,
}

impl LoopParts {
    fn build_configuration_loop<C: WebhookConfiguration>(
        &self,
        webhooks: Vec<WebhookSource>,
        check: Option<ReadinessCheck>,
    ) -> ConfigurationLoop<C> {
        ConfigurationLoop {
            server: self.server.clone(),
            address: self.address.clone(),
            random: self.random.fork_rng(),
            webhooks,
            bundle: self.bundle.clone(),
            mounted: self.mounted,
            leadership: self.leadership.clone(),
            writes: self.writes.clone(),
            in_force: watch::Sender::new(None),
            absent_since: watch::Sender::new(None),
            check,
            state: ConfigurationLoopState::default(),
        }
    }
}

/// Starts a thread with a runtime of its own, so that a busy control loop delays no answer.
fn spawn_server_thread(server: Server, listener: TcpListener) -> io::Result<oneshot::Receiver<()>> {
    // A listener of tokio belongs to the runtime that it was made in.
    let listener = listener.into_std()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (ending, ended) = oneshot::channel();
    let address = listener.local_addr()?;
    thread::Builder::new()
        .name("webhooks".to_owned())
        .spawn(move || {
            runtime.block_on(async {
                match TcpListener::from_std(listener) {
                    Ok(listener) => {
                        tracing::info!(%address, "serving admission webhooks");
                        server.serve_until_stopped(listener).await;
                        // The receiver is gone if the process ends for another reason.
                        let _unheard = ending.send(());
                    }
                    Err(error) => tracing::error!(%address, %error, "cannot listen for admission webhooks (--webhook-bind-address)"),
                }
            });
        })?;
    Ok(ended)
}

/// Starts a task that serves until the process stops, or until nobody waits for its end any more: then the process has
/// ended without a stop.
#[cfg(feature = "sim")]
fn spawn_server_task(
    server: Server,
    door: crate::in_process::InProcessServer,
) -> oneshot::Receiver<()> {
    let (mut ending, ended) = oneshot::channel();
    tokio::spawn(async move {
        let is_finished = tokio::select! {
            // First: a process that has ended answers nothing. It is never ready before that.
            biased;
            () = ending.closed() => false,
            () = server.serve_callers(door) => true,
        };
        if is_finished {
            // The receiver is gone if the process ends for another reason.
            let _unheard = ending.send(());
        }
    });
    ended
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_server_or_a_loop_that_panics_is_noticed_and_a_clean_end_is_none() {
        let (ending, ended) = oneshot::channel();
        let mut admission = Admission {
            ended: Some(ended),
            loops: JoinSet::new(),
            writes: Arc::default(),
        };
        assert!(admission.wait_for_failure().now_or_never().is_none());
        ending.send(()).unwrap();
        assert!(admission.wait_for_failure().now_or_never().is_none());
        assert!(admission.join_server().await.is_ok());

        let (ending, ended) = oneshot::channel();
        let (ended, mut loops) = (Some(ended), JoinSet::new());
        drop(ending);
        loops.spawn(async {});
        let mut admission = Admission {
            ended,
            loops,
            writes: Arc::default(),
        };
        assert!(matches!(
            admission.wait_for_failure().await,
            AdmissionError::Server
        ));
        admission.loops.spawn(async { panic!("as no loop should") });
        assert!(matches!(
            admission.wait_for_failure().await,
            AdmissionError::Loop(_)
        ));
    }
}
