//! The loop that keeps a webhook configuration as desired while this replica leads.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, pending, select, select_all, unfold};
use futures::{FutureExt, StreamExt};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::Request;
use kube::core::request::Error as BuildError;
use leadsman_lease::Leadership;
use leadsman_process::list::ListTarget;
use leadsman_process::reply::{Disposition, Verb};
use leadsman_process::watch;
use leadsman_process::watcher::{ObjectEvent, ObjectState, watch_object};
use leadsman_process::{ApiServer, ReadinessCheck, clock};
use serde_json::Value;
use tokio::sync::RwLock;
use tokio::time::Instant;

use super::{
    Address, CONFIGURATION, ConfigurationStep, InForceWebhook, Observed, WebhookConfiguration,
    decide_step, desired_configuration,
};
use crate::FIELD_MANAGER;
use crate::barrier::progress::{NextBarrier, StateProgress};
use crate::barrier::{StateVersion, StoredBarrier};
use crate::certificate::{BundleInForce, CaBundle};
use crate::owner::{OwningRole, read_cluster_role};
use crate::pace::{Pace, describe_failure};
use crate::webhook::{Answers, WebhookCalls};

pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// A webhook, and the sources of its state.
pub(crate) struct WebhookSource {
    pub(crate) name: &'static str,
    pub(crate) calls: watch::Receiver<WebhookCalls>,
    pub(crate) answers: Arc<dyn Answers>,
    /// The barrier as it is stored.
    pub(crate) stored: watch::Sender<StoredBarrier>,
    /// The barrier of the desired calls, once the API server has stored them.
    pub(crate) in_force: watch::Sender<Option<StateVersion>>,
    /// Whether `in_force` has been published. The first `None` must be sent too: followers may
    /// still hold an earlier process's value.
    pub(crate) is_told: bool,
    pub(crate) progress: StateProgress,
    /// The leadership without which the API server is not told to call.
    pub(crate) led_by: Option<watch::Receiver<Leadership>>,
}

impl WebhookSource {
    /// The barrier of no calls, where none are wanted: no replica can answer by an earlier state. None while there are calls,
    /// or while nobody leads who would want them.
    fn barrier_without_calls(&self) -> Option<StateVersion> {
        let calls = self.calls.borrow();
        let barrier = calls.barrier.filter(|_| calls.specs.is_empty());
        barrier.filter(|_| self.is_led())
    }

    /// Waits until what the barrier was decided by has changed in this process's own state.
    fn wait_for_own_state(&self) -> BoxFuture<'static, ()> {
        match self.progress.compared() {
            Some((version, included)) => self.answers.wait_until_included(version, !included),
            None => std::future::pending().boxed(),
        }
    }

    fn is_led(&self) -> bool {
        let led_by = self.led_by.as_ref();
        led_by.is_none_or(|led_by| is_leading(*led_by.borrow()))
    }
}

/// The loop that watches and applies the configuration.
pub(crate) struct ConfigurationLoop<C> {
    pub(crate) server: ApiServer,
    pub(crate) address: Address,
    pub(crate) random: fastrand::Rng,
    pub(crate) webhooks: Vec<WebhookSource>,
    pub(crate) bundle: watch::Receiver<CaBundle>,
    /// Whether somebody else issues the certificates, who may also write the CA into the configuration.
    pub(crate) mounted: bool,
    pub(crate) leadership: watch::Receiver<Leadership>,
    /// Held shared while a write is under way; the end of the process waits for it.
    pub(crate) writes: Arc<RwLock<()>>,
    pub(crate) in_force: watch::Sender<Option<BundleInForce>>,
    /// The time at which the configuration was first seen absent. `None` while it exists or an
    /// apply is in flight, which may have succeeded.
    pub(crate) absent_since: watch::Sender<Option<Instant>>,
    /// The readiness check. `None` means that a replica is ready without the configuration: one
    /// that is not ready is not called for anything.
    pub(crate) check: Option<ReadinessCheck>,
    pub(crate) state: ConfigurationLoopState<C>,
}

/// The state of the loop.
pub(crate) struct ConfigurationLoopState<C> {
    observed: Observed<C>,
    /// The configuration last applied in this term of leadership.
    applied: Option<Value>,
    /// The owner that it is applied with. Read again in each term, after a failed apply, and when the configuration has
    /// gone: perhaps with it.
    owner: OwningRole,
    term: Option<u64>,
    pace: Pace,
    /// Why the last request failed.
    trouble: Option<String>,
}

impl<C> Default for ConfigurationLoopState<C> {
    fn default() -> Self {
        Self {
            observed: Observed::Unknown,
            applied: None,
            owner: OwningRole::Unknown,
            term: None,
            pace: Pace::default(),
            trouble: None,
        }
    }
}

impl<C: WebhookConfiguration> ConfigurationLoop<C> {
    /// Runs until the sender of leadership is dropped.
    pub(crate) async fn run(mut self) {
        let all = ListTarget::all_of::<C>();
        let mut events =
            watch_object::<C>(self.server.clone(), all, CONFIGURATION, self.random.fork());
        let mut calls = select_all(self.webhooks.iter().map(webhook_changes));
        loop {
            // The first step comes before the first event: leadership and calls may be known
            // already.
            let wake = self.take_step().await;
            let mut own_states: FuturesUnordered<_> = self
                .webhooks
                .iter()
                .map(WebhookSource::wait_for_own_state)
                .collect();
            tokio::select! {
                // Each of them leads to a step, which also sees what time it is. The events come after what this process
                // itself changes: others may write the configuration without a pause.
                biased;
                changed = self.leadership.changed() => if changed.is_err() {
                    return;
                },
                Ok(()) = self.bundle.changed() => self.state.pace.end_contest(clock::monotonic()),
                Some(()) = calls.next() => self.state.pace.end_contest(clock::monotonic()),
                Some(()) = own_states.next() => self.state.pace.end_contest(clock::monotonic()),
                Some(event) = events.next() => self.observe_event(event),
                () = clock::sleep_until(wake) => {}
            }
        }
    }

    fn observe_event(&mut self, event: ObjectEvent<C>) {
        match event {
            ObjectEvent::Observed(ObjectState::Present(object)) => {
                self.state.observed = Observed::Present(object);
            }
            ObjectEvent::Observed(ObjectState::Deleted(_) | ObjectState::Absent) => {
                self.state.observed = Observed::Absent;
                // The garbage collector may have deleted it because its owner has gone.
                self.state.owner = OwningRole::Unknown;
            }
            ObjectEvent::Following => self.state.trouble = None,
            ObjectEvent::Failed(disposition) => self.report_failure("list or watch", &disposition),
        }
    }

    /// Takes the next step. Returns when to decide again at the latest.
    async fn take_step(&mut self) -> Option<Instant> {
        self.note_absence();
        self.note_barriers();
        let bundle = self.current_bundle();
        let known = self
            .webhooks
            .iter()
            .all(|webhook| webhook.answers.has_snapshot());
        let webhooks = match self.in_force_webhooks() {
            Ok(webhooks) => webhooks,
            Err(until) => {
                self.update_readiness(ConfigurationStep::Rest);
                return Some(until);
            }
        };
        // No call would succeed without a CA; and until a feature is ready its webhook must not be
        // removed.
        if !known || (bundle == CaBundle::Unknown && !webhooks.is_empty()) {
            return self.update_readiness(ConfigurationStep::Rest);
        }
        let leadership = *self.leadership.borrow_and_update();
        if self.state.term != leadership.term_number() {
            // Between two terms another process may have applied something else.
            self.state.term = leadership.term_number();
            (self.state.applied, self.state.owner) = (None, OwningRole::Unknown);
        }
        let unowned = desired_configuration::<C>(&webhooks, &self.address, &bundle);
        let desired = unowned.map(|desired| self.state.owner.add_to_object(desired));
        self.note_in_force(desired.as_ref(), &bundle);
        let step = match decide_step(
            desired.as_ref(),
            &self.state.observed,
            self.state.applied.as_ref(),
        ) {
            // Whether another owner is to be applied is not known before that is read.
            ConfigurationStep::Rest if desired.is_some() && self.awaits_owner() => {
                ConfigurationStep::Apply
            }
            step => step,
        };
        let now = clock::monotonic();
        let Some(left) = leadership
            .time_left(now)
            // Every write is within the time that is left of the Lease, so that no two leaders write at once.
            .filter(|_| step != ConfigurationStep::Rest)
        else {
            return self.update_readiness(step);
        };
        if let Some(held_until) = self.state.pace.held_until(now) {
            self.update_readiness(step);
            return Some(held_until);
        }
        if step == ConfigurationStep::Apply {
            // Published before the request: API servers may call as soon as it is stored, whenever
            // its reply comes.
            self.absent_since.send_replace(None);
        }
        match (step, desired) {
            // The owner is part of what is applied, so it is read first; the next step applies.
            (ConfigurationStep::Apply, _) if self.state.owner == OwningRole::Unknown => {
                let left = left.min(DEADLINE);
                self.state.owner = read_cluster_role(&self.server, C::OWNER, left).await;
            }
            (ConfigurationStep::Apply, Some(desired)) => {
                self.apply_configuration(desired, left.min(DEADLINE)).await;
            }
            (ConfigurationStep::RemoveConditions, Some(desired)) => {
                self.remove_others_conditions(&desired, left.min(DEADLINE))
                    .await;
            }
            _ => self.delete_configuration(left.min(DEADLINE)).await,
        }
        // The next step follows at once: the reply was observed above, and need not be followed by
        // an event.
        Some(clock::monotonic())
    }

    fn awaits_owner(&self) -> bool {
        let is_present = matches!(self.state.observed, Observed::Present(_));
        is_present && self.state.owner == OwningRole::Unknown
    }

    fn current_bundle(&mut self) -> CaBundle {
        let bundle = self.bundle.borrow_and_update().clone();
        // The cainjector writes the CA into the configuration, and each of the two would undo what the other has
        // written.
        if self.mounted && bundle != CaBundle::Unknown && self.state.observed.is_injected() {
            CaBundle::Elsewhere
        } else {
            bundle
        }
    }

    /// The webhooks that API servers are to be told of; or until when this process has to wait for its own state before it
    /// may say.
    fn in_force_webhooks(&mut self) -> Result<Vec<InForceWebhook>, Instant> {
        let now = clock::monotonic();
        let observed = &self.state.observed;
        let mut all = Vec::new();
        for webhook in &mut self.webhooks {
            let WebhookCalls { specs, barrier } = webhook.calls.borrow().clone();
            let stored = observed.barrier_of(webhook.name);
            let own = webhook.answers.snapshot_version();
            match webhook.progress.next_barrier(stored, barrier, own, now) {
                _ if !webhook.is_led() => {}
                NextBarrier::AwaitOwn { until } => return Err(until),
                NextBarrier::Store(_) if specs.is_empty() => {}
                NextBarrier::Store(barrier) => all.push(InForceWebhook {
                    name: webhook.name,
                    specs,
                    barrier,
                }),
            }
        }
        Ok(all)
    }

    /// Publishes which calls API servers are told to make, and since when with the bundle.
    fn note_in_force(&mut self, desired: Option<&Value>, bundle: &CaBundle) {
        let observed = &self.state.observed;
        let is_desired = desired.map_or(*observed == Observed::Absent, |desired| {
            observed.has_desired(desired)
        });
        // Calls that were applied hold until other calls are: one more webhook must not make all
        // that is injected look lost.
        let applied = self.state.applied.as_ref();
        let holds = is_desired || applied.is_some_and(|applied| observed.has_desired(applied));
        let is_held = self.state.pace.held_until(clock::monotonic()).is_some();
        // A stored configuration that differs, or is missing, is put right at once, unless that has
        // failed or is undone again and again.
        let is_mended_next = !holds && !is_held && self.state.trouble.is_none();
        let is_known = *observed != Observed::Unknown;
        for webhook in self.webhooks.iter_mut().filter(|_| !is_mended_next) {
            let barrier = match observed.barrier_of(webhook.name) {
                StoredBarrier::At(stored) if holds => Some(stored.version),
                StoredBarrier::Absent | StoredBarrier::None if is_desired => {
                    webhook.barrier_without_calls()
                }
                _ => None,
            };
            // Another process that leads publishes it itself.
            let is_first = is_known && webhook.is_led() && !webhook.is_told;
            webhook.is_told |= is_first;
            webhook.in_force.send_if_modified(|known| {
                let is_new = *known != barrier || is_first;
                *known = barrier;
                is_new
            });
        }
        self.in_force.send_if_modified(|known| {
            let known_bundle = known.as_ref().map(|known| &known.bundle);
            // The time is that of the first sight, which the spread to the API servers is counted from.
            if is_desired == (known_bundle == Some(bundle)) || (holds && !is_desired) {
                return false;
            }
            *known = is_desired.then(|| BundleInForce {
                bundle: bundle.clone(),
                since: clock::monotonic(),
            });
            true
        });
    }

    /// Publishes the barriers that replicas have to reach before they answer.
    fn note_barriers(&self) {
        for webhook in &self.webhooks {
            let stored = self.state.observed.barrier_of(webhook.name);
            webhook.stored.send_if_modified(|known| {
                let is_new = *known != stored;
                if is_new {
                    log_barrier_change(webhook, *known, stored);
                }
                *known = stored;
                is_new
            });
        }
    }

    fn note_absence(&self) {
        let is_absent = self.state.observed == Observed::Absent && self.state.trouble.is_none();
        self.absent_since.send_if_modified(|since| {
            let is_changed = since.is_some() != is_absent;
            if is_changed {
                *since = is_absent.then(clock::monotonic);
            }
            is_changed
        });
    }

    async fn apply_configuration(&mut self, desired: Value, deadline: Duration) {
        let path = Request::new(C::url_path(&(), None));
        // The apply is forced: the fields that it names make the webhook work, whoever has changed
        // them.
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let request = path.patch(CONFIGURATION, &params, &Patch::Apply(&desired));
        let (disposition, body) = self.send_write(Verb::Update, request, deadline).await;
        if disposition != Disposition::Done {
            // The cause that kept this from being written may have kept the owner from being read.
            self.state.owner = OwningRole::Unknown;
            return self.report_failure("apply", &disposition);
        }
        tracing::info!("applied the {}", C::describe_object());
        (self.state.applied, self.state.trouble) = (Some(desired), None);
        if let Ok(object) = serde_json::from_slice(&body) {
            self.state.observed = Observed::Present(object);
        }
    }

    async fn remove_others_conditions(&mut self, desired: &Value, deadline: Duration) {
        let patch = self.state.observed.without_others_conditions(desired);
        let Some(patch) = patch else {
            return;
        };
        let requests = Request::new(C::url_path(&(), None));
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let request = requests.patch(CONFIGURATION, &params, &Patch::Merge(&patch));
        let (disposition, body) = self.send_write(Verb::Update, request, deadline).await;
        if disposition != Disposition::Done {
            return self.report_failure("remove foreign matchConditions from", &disposition);
        }
        tracing::warn!(
            "removed matchConditions that somebody else had added to our webhooks in the {}",
            C::describe_object()
        );
        self.state.trouble = None;
        if let Ok(object) = serde_json::from_slice(&body) {
            self.state.observed = Observed::Present(object);
        }
    }

    async fn delete_configuration(&mut self, deadline: Duration) {
        let Observed::Present(observed) = &self.state.observed else {
            return;
        };
        let request = delete_request::<C>(observed);
        let (disposition, _) = self.send_write(Verb::Delete, request, deadline).await;
        if !matches!(disposition, Disposition::Done | Disposition::Gone { .. }) {
            return self.report_failure("delete", &disposition);
        }
        tracing::info!(
            "no admission webhook is in force: deleted the {}",
            C::describe_object()
        );
        // Not left to the watch, until whose event the deletion would be sent again.
        (self.state.observed, self.state.owner) = (Observed::Absent, OwningRole::Unknown);
        (self.state.applied, self.state.trouble) = (None, None);
    }

    async fn send_write(
        &mut self,
        verb: Verb,
        request: Result<http::Request<Vec<u8>>, BuildError>,
        deadline: Duration,
    ) -> (Disposition, Vec<u8>) {
        let (disposition, body) = match request {
            Ok(request) => {
                let _under_way = self.writes.read().await;
                let reply = self.server.send_request(verb, request, deadline).await;
                (reply.disposition, reply.body)
            }
            Err(error) => {
                let reason = error.to_string();
                (Disposition::Refused { reason }, Vec::new())
            }
        };
        let now = clock::monotonic();
        let random = self.random.f64();
        self.state.pace.record_write(&disposition, now, random);
        (disposition, body)
    }

    fn report_failure(&mut self, action: &str, disposition: &Disposition) {
        let reason = describe_failure(action, &C::describe_object(), disposition);
        tracing::warn!(
            reason,
            "reading or writing the webhook configuration failed, webhooks might not be called; retrying"
        );
        self.state.trouble = Some(reason);
    }

    fn update_readiness(&self, step: ConfigurationStep) -> Option<Instant> {
        let check = self.check.as_ref()?;
        let leads = self.state.term.is_some();
        match (&self.state.trouble, &self.state.observed) {
            (Some(trouble), _) if leads || self.state.observed == Observed::Unknown => {
                check.set_not_ready(trouble.clone());
            }
            (None, Observed::Unknown) => {
                check.set_not_ready(format!(
                    "the {} has not been read yet",
                    C::describe_object()
                ));
            }
            _ if leads && step != ConfigurationStep::Rest => {
                check.set_not_ready(format!(
                    "the {} has not been applied yet",
                    C::describe_object()
                ));
            }
            // A standby leaves it to the leader.
            _ => check.set_ready(),
        }
        None
    }
}

/// The uid is a precondition: another object of that name is not ours.
pub(super) fn delete_request<C: WebhookConfiguration>(
    observed: &C,
) -> Result<http::Request<Vec<u8>>, BuildError> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: observed.meta().uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    Request::new(C::url_path(&(), None)).delete(CONFIGURATION, &params)
}

/// Logs what an operator cannot see from the configuration as it is.
fn log_barrier_change(webhook: &WebhookSource, before: StoredBarrier, now: StoredBarrier) {
    let StoredBarrier::At(now) = now else {
        return;
    };
    if let StoredBarrier::At(before) = before
        && !now.version.includes(before.version)
    {
        tracing::warn!(
            webhook = webhook.name,
            before = before.to_text(),
            now = now.to_text(),
            "the stored barrier was lowered: etcd was restored from a backup, or an earlier version of leadsman was installed"
        );
    }
    let own = webhook.answers.snapshot_version();
    if own.is_some_and(|own| own.lacks_kind_of(now.version)) {
        tracing::warn!(
            webhook = webhook.name,
            stored = now.to_text(),
            "the stored barrier has a kind that this version of leadsman does not know: with failurePolicy Fail this replica's \
             answers are errors until it is upgraded"
        );
    }
}

fn is_leading(leadership: Leadership) -> bool {
    leadership.term_number().is_some()
}

/// The changes of a webhook's desired state.
fn webhook_changes(webhook: &WebhookSource) -> BoxStream<'static, ()> {
    let led_by = webhook.led_by.clone().map(|led_by| {
        let was_led = is_leading(*led_by.borrow());
        unfold((led_by, was_led), async |(mut led_by, was_led)| {
            let changed = led_by.wait_for(|now| is_leading(*now) != was_led);
            changed.await.ok().map(drop)?;
            Some(((), (led_by, !was_led)))
        })
    });
    let led_by = led_by.map_or_else(|| pending().boxed(), StreamExt::boxed);
    let calls = unfold(webhook.calls.clone(), async |mut calls| {
        calls.changed().await.ok()?;
        Some(((), calls))
    });
    let ready = webhook.answers.wait_for_snapshot().into_stream();
    select(led_by, select(calls, ready)).boxed()
}

#[cfg(test)]
mod tests;
