//! The Secret with the certificates of all replicas. It is watched, and written with its resourceVersion, so that
//! replicas that start together agree on one certificate.

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::core::Request;
use kube::core::request::Error as BuildError;
use kube::{Resource, ResourceExt};
use leadsman_lease::Leadership;
use leadsman_process::list::ListTarget;
use leadsman_process::reply::{Disposition, RetryCause, Verb};
use leadsman_process::watch;
use leadsman_process::watcher::{ObjectEvent, ObjectState, watch_object};
use leadsman_process::{ApiServer, clock};
use tokio::time::Instant;

use super::publish::CertificatePublisher;
use super::renewal::{
    Circumstances, Data, Decision, KEYS, Kept, Renewal, SPREAD, StoredCertificate, decide_renewal,
    renewed_data,
};
use super::{BundlesInForce, CaBundle, KeySource};
use crate::FIELD_MANAGER;
use crate::owner::read_role;
use crate::pace::{Pace, describe_failure};

/// The Secret's name.
pub const SECRET: &str = "leadsman-webhook";
/// How long a certificate is valid.
pub(crate) const LIFE: Duration = Duration::from_hours(365 * 24);
const DEADLINE: Duration = Duration::from_secs(10);
/// The longest wait before a certificate of another CA is served, even if API servers are not known to have that CA.
const LONGEST_WAIT: Duration = Duration::from_mins(2);
/// The interval of checks of the expiry, since the time of day may jump.
const LOOK: Duration = Duration::from_hours(1);

/// The loop that watches and writes the Secret.
pub(crate) struct SecretLoop {
    pub(crate) server: ApiServer,
    pub(crate) namespace: String,
    /// The names of the certificate.
    pub(crate) names: Vec<String>,
    pub(crate) life: Duration,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) in_force: BundlesInForce,
    pub(crate) publisher: CertificatePublisher,
    pub(crate) keys: KeySource,
    pub(crate) random: fastrand::Rng,
    pub(crate) state: SecretLoopState,
}

/// The state of the loop.
#[derive(Default)]
pub(crate) struct SecretLoopState {
    stored: Option<StoredCertificate>,
    /// The Secret from which `stored` was read. A write keeps the keys of others in it.
    secret: Option<Box<Secret>>,
    served: Option<Kept>,
    /// The time since which the stored certificate waits until API servers know its CA.
    waits_since: Option<Instant>,
    pace: Pace,
    /// Why the last request failed.
    trouble: Option<String>,
}

impl SecretLoop {
    /// Runs until the sender of leadership is dropped.
    pub(crate) async fn run(mut self) {
        // Watched by name, so that the right to it covers no other Secret of the namespace.
        let target = ListTarget::in_namespace::<Secret>(&self.namespace);
        let mut events =
            watch_object::<Secret>(self.server.clone(), target, SECRET, self.random.fork());
        loop {
            let wake = self.carry_out_decision().await;
            self.update_readiness();
            tokio::select! {
                // Each of them leads to a decision, which also sees what time it is. The events come after what this process
                // itself changes: others may write the Secret without a pause.
                biased;
                changed = self.leadership.changed() => if changed.is_err() {
                    return;
                },
                () = self.in_force.wait_for_change() => {}
                Some(event) = events.next() => self.observe_event(event),
                () = clock::sleep_until(wake) => {}
            }
        }
    }

    fn observe_event(&mut self, event: ObjectEvent<Secret>) {
        match event {
            ObjectEvent::Observed(ObjectState::Present(secret)) => {
                self.observe_secret(Some(secret));
            }
            ObjectEvent::Observed(ObjectState::Deleted(_) | ObjectState::Absent) => {
                self.observe_secret(None);
            }
            ObjectEvent::Following => self.state.trouble = None,
            ObjectEvent::Failed(disposition) => self.report_failure("list or watch", &disposition),
        }
    }

    fn observe_secret(&mut self, secret: Option<Box<Secret>>) {
        let stored = match &secret {
            None => StoredCertificate::Absent,
            Some(secret) => StoredCertificate::read_secret(&decoded_data(secret), &self.names),
        };
        match &stored {
            StoredCertificate::Usable(kept) => self.take_over_if_trusted(kept),
            StoredCertificate::Unusable(error) => {
                let secret = self.describe_object();
                tracing::warn!(%error, "the {secret} holds no certificate that can be served, writing another one");
            }
            StoredCertificate::Absent => {}
        }
        self.state.stored = Some(stored);
        self.state.secret = secret;
    }

    /// Serves a certificate at once, or, if API servers do not know its CA yet, publishes the CA first.
    fn take_over_if_trusted(&mut self, kept: &Kept) {
        if let Some(error) = &kept.misnamed {
            let secret = self.describe_object();
            tracing::warn!(%error, "the certificate in the {secret} is for another name; the leader will replace it");
        }
        let served = self.state.served.as_ref();
        let both =
            served.and_then(|served| Some((served, served.bundle_with(kept, clock::now())?)));
        if let Some((served, bundle)) = both {
            self.publisher
                .publish_certificate(&served.current, CaBundle::Pem(bundle));
            self.state.waits_since.get_or_insert(clock::monotonic());
        } else {
            let bundle = CaBundle::Pem(kept.bundle.clone());
            self.serve_kept(kept.clone(), bundle);
        }
    }

    fn serve_kept(&mut self, kept: Kept, bundle: CaBundle) {
        self.publisher.publish_certificate(&kept.current, bundle);
        self.state.served = Some(kept);
        self.state.waits_since = None;
    }

    /// Serves the certificate that waited for its CA to spread, or returns when to check again.
    fn end_wait(&mut self, in_force: Option<Duration>) -> Option<Instant> {
        let since = self.state.waits_since?;
        let Some(StoredCertificate::Usable(kept)) = &self.state.stored else {
            self.state.waits_since = None;
            return None;
        };
        // Both limits run on the monotonic clock: a wall clock that is set must not shorten the spread.
        let now = clock::monotonic();
        let left = in_force
            .map_or(Duration::MAX, |spread| SPREAD.saturating_sub(spread))
            // A configuration that has the bundle may never exist, and then nobody confirms it.
            .min(LONGEST_WAIT.saturating_sub(now - since));
        if !left.is_zero() {
            return Some(now + left);
        }
        let kept = Kept::clone(kept);
        // The bundle of both: other replicas may still serve the certificate before.
        let bundle = self.publisher.subscribe_to_bundle().borrow().clone();
        self.serve_kept(kept, bundle);
        None
    }

    /// Carries out the decision of this moment. Returns when to decide again at the latest.
    async fn carry_out_decision(&mut self) -> Option<Instant> {
        let now = clock::monotonic();
        let at = self.current_circumstances();
        // The wait ends before the decision, which is about the certificate that is served from
        // here on.
        let waits = self.end_wait(at.bundle_in_force);
        let stored = self.state.stored.as_ref()?;
        match decide_renewal(stored, self.state.served.as_ref(), at) {
            Decision::Wait(until) => {
                let wait = Duration::try_from(until.duration_since(at.now)).unwrap_or_default();
                let wake = now + wait.min(LOOK);
                Some(waits.map_or(wake, |waits| waits.min(wake)))
            }
            Decision::Write(renewal) => {
                if let Some(held_until) = self.state.pace.held_until(now) {
                    return Some(held_until);
                }
                self.write_renewal(renewal, at.now).await;
                // The next step follows at once: the written Secret has not come as an event of the
                // watch by then, and may call for it.
                Some(clock::monotonic())
            }
        }
    }

    fn current_circumstances(&mut self) -> Circumstances {
        let bundle = self.publisher.subscribe_to_bundle();
        let in_force = self.in_force.in_all_since(&bundle.borrow());
        let leadership = *self.leadership.borrow_and_update();
        Circumstances {
            leads: leadership.time_left(clock::monotonic()).is_some(),
            bundle_in_force: in_force.map(|since| clock::monotonic() - since),
            now: clock::now(),
        }
    }

    async fn write_renewal(&mut self, renewal: Renewal, now: Timestamp) {
        let kept = match &self.state.stored {
            Some(StoredCertificate::Usable(kept)) => Some(&**kept),
            _ => self.state.served.as_ref(),
        };
        let data = match renewed_data(kept, renewal, &self.names, (now, self.life), &mut self.keys)
        {
            Ok(data) => data,
            Err(error) => {
                let reason = format!("cannot make a certificate for {:?}: {error}", self.names);
                self.state.trouble = Some(reason.clone());
                let refused = Disposition::Refused { reason };
                let random = self.random.f64();
                self.state
                    .pace
                    .record_write(&refused, clock::monotonic(), random);
                return;
            }
        };
        let mut secret = secret_with_data(self.state.secret.as_deref(), &self.namespace, data);
        tracing::info!(?renewal, "writing the {}", self.describe_object());
        let disposition = self.send_secret(&mut secret).await;
        let random = self.random.f64();
        self.state
            .pace
            .record_write(&disposition, clock::monotonic(), random);
        match disposition {
            Disposition::Done => self.state.trouble = None,
            // Another replica wrote first, as the watch will show.
            Disposition::AlreadyExists { .. }
            | Disposition::Gone { .. }
            | Disposition::Retry {
                cause: RetryCause::Conflict,
                ..
            } => {}
            failed => self.report_failure("write", &failed),
        }
    }

    /// Gives a new Secret its owner, and sends it. An old one keeps what it has: to change an owner may take the right to
    /// delete the object (`OwnerReferencesPermissionEnforcement`,
    /// `plugin/pkg/admission/gc/gc_admission.go`).
    async fn send_secret(&mut self, secret: &mut Secret) -> Disposition {
        // A Secret without a version was not observed.
        if secret.metadata.resource_version.is_none() {
            match read_role(&self.server, &self.namespace, DEADLINE).await {
                Ok(owner) => {
                    secret.metadata.owner_references =
                        owner.into_reference().map(|owner| vec![owner]);
                }
                Err(failed) => return failed,
            }
        }
        let (verb, request) = match secret_request(&self.namespace, secret) {
            Ok(request) => request,
            Err(error) => {
                let reason = error.to_string();
                return Disposition::Refused { reason };
            }
        };
        let reply = self.server.send_request(verb, request, DEADLINE).await;
        if reply.disposition == Disposition::Done
            && let Ok(written) = serde_json::from_slice(&reply.body)
        {
            self.observe_secret(Some(written));
        }
        reply.disposition
    }

    fn report_failure(&mut self, action: &str, disposition: &Disposition) {
        let reason = describe_failure(action, &self.describe_object(), disposition);
        tracing::warn!(
            reason,
            "reading or writing the Secret of the webhooks' certificates failed, retrying"
        );
        self.state.trouble = Some(reason);
    }

    fn update_readiness(&self) {
        let served = self.state.served.as_ref();
        let now = clock::now();
        let lives = served
            .is_some_and(|served| now < served.current.not_after && !served.is_premature(now));
        match (&self.state.trouble, served) {
            // While a certificate can be served, a failing write is no reason to take the replica from its Service.
            _ if lives => self.publisher.set_ready(),
            (Some(trouble), _) => self.publisher.set_not_ready(trouble.clone()),
            (None, Some(served)) if served.is_premature(now) => {
                let not_before = served.current.not_before;
                self.publisher.set_not_ready(format!(
                    "the certificate is not valid before {not_before}: check the clocks of the nodes"
                ));
            }
            (None, Some(served)) => {
                let not_after = served.current.not_after;
                self.publisher
                    .set_not_ready(format!("the certificate expired at {not_after}"));
            }
            (None, None) => self
                .publisher
                .set_not_ready("no certificate has been read or made yet".to_owned()),
        }
    }

    fn describe_object(&self) -> String {
        format!("Secret {}/{SECRET}", self.namespace)
    }
}

fn decoded_data(secret: &Secret) -> Data {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone()))
        .collect()
}

/// The Secret with other data. Keys, labels and annotations of others stay.
fn secret_with_data(observed: Option<&Secret>, namespace: &str, data: Data) -> Secret {
    let mut secret = observed.cloned().unwrap_or_else(|| {
        let mut secret = Secret {
            type_: Some("kubernetes.io/tls".to_owned()),
            ..Secret::default()
        };
        secret.metadata.name = Some(SECRET.to_owned());
        secret.metadata.namespace = Some(namespace.to_owned());
        let label = ("app.kubernetes.io/name".to_owned(), "leadsman".to_owned());
        secret.labels_mut().extend([label]);
        secret
    });
    // A PUT without them keeps those that are stored (`decodeLiveOrNew`,
    // `k8s.io/apimachinery/pkg/util/managedfields/internal/fieldmanager.go`).
    secret.metadata.managed_fields = None;
    let all = secret.data.get_or_insert_default();
    // A successor that took over must not stay beside what is served.
    all.retain(|key, _| !KEYS.contains(&key.as_str()));
    all.extend(
        data.into_iter()
            .map(|(key, value)| (key, ByteString(value))),
    );
    secret
}

fn secret_request(
    namespace: &str,
    secret: &Secret,
) -> Result<(Verb, http::Request<Vec<u8>>), BuildError> {
    let secrets = Request::new(Secret::url_path(&(), Some(namespace)));
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    let body = serde_json::to_vec(secret).map_err(BuildError::SerializeBody)?;
    Ok(match secret.metadata.resource_version {
        None => (Verb::Create, secrets.create(&params, body)?),
        Some(_) => (Verb::Update, secrets.replace(SECRET, &params, body)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_replaces_its_own_keys_and_leaves_those_of_others() {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let before =
            ["tls.crt", "next.crt", "keystore.p12"].map(|key| (key.to_owned(), bytes("old")));
        let observed = Secret {
            data: Some(before.into()),
            ..Secret::default()
        };
        let ours = Data::from([("tls.crt".to_owned(), b"new".to_vec())]);
        let written = secret_with_data(Some(&observed), "a", ours).data.unwrap();
        let expected = [("keystore.p12", "old"), ("tls.crt", "new")];
        let expected = expected.map(|(key, value)| (key.to_owned(), bytes(value)));
        assert_eq!(written, expected.into());
    }
}
