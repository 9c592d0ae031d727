//! A feature on the kernel (`leadsman-reconcile`), as the control loop runs it: observations into its reconciler, planned
//! writes out as requests.

use std::sync::Arc;

use leadsman_process::clock;
use leadsman_process::metrics::LatencyHistogram;
use leadsman_reconcile::{
    Class, Effects, Feature, Now, ReasonGauge, Reconciler, Refusal, Source, Watch, WriteId,
    WriteKind,
};

use crate::encode;
use crate::kind::Kind;
use crate::request::{Measured, Request};
use crate::resource::Watchable;
use crate::rules::{Observation, Observe, Rules, Unwritten};

/// The kinds of a feature: what it watches, and how the replies to its writes are read. Whoever adds a feature says this by a
/// type of its own, as the feature may be of a crate that knows no API server.
pub trait WatchedKinds: Sized + Send + 'static {
    /// The feature.
    type Feature: Feature;

    /// The kinds, each of which it [`Watch`]es.
    const KINDS: &'static [Kind<Reconciled<Self>>];
}

/// A feature with its reconciler.
pub struct Reconciled<W: WatchedKinds>(Reconciler<W::Feature>, Option<LatencyHistogram>);

/// An event for a reconciler.
pub enum ReconcilerEvent<F: Feature> {
    /// Something was seen of the cluster.
    Observed(ObserveInto<F>),
    /// A write was carried out; and whether its reply showed an object.
    Done(WriteId, bool),
    /// The API server refuses a write.
    Refused(WriteId, Refusal),
}

type ObserveInto<F> = Box<dyn FnOnce(&mut Reconciler<F>, Now) + Send>;

impl<F: Feature> ReconcilerEvent<F> {
    /// Something that this process itself knows has changed, and the keys whose function reads it are passed on.
    pub fn of_world(
        update: impl FnOnce(&mut F::World, &mut dyn FnMut(F::Key)) + Send + 'static,
    ) -> Self {
        Self::Observed(Box::new(|reconciler, _| reconciler.update_world(update)))
    }
}

impl<W: WatchedKinds> Reconciled<W> {
    /// A feature that has observed nothing yet.
    pub fn new(feature: W::Feature) -> Self {
        Self(Reconciler::new(feature, clock::cpu_time), None)
    }

    /// The same with a memory that is not empty to begin with, and with the histogram of how late its writes are.
    pub fn with_memory(
        feature: W::Feature,
        memory: <W::Feature as Feature>::Memory,
        latency: LatencyHistogram,
    ) -> Self {
        Self(
            Reconciler::with_memory(feature, memory, clock::cpu_time),
            Some(latency),
        )
    }
}

impl<W: WatchedKinds> Rules for Reconciled<W> {
    const NAME: &'static str = W::Feature::NAME;
    const KINDS: &'static [Kind<Self>] = W::KINDS;
    const WRITES: &'static [WriteKind] = W::Feature::WRITES;
    const CLASSES: &'static [Class] = W::Feature::CLASSES;
    const GAUGE: Option<ReasonGauge> = W::Feature::GAUGE;

    type Event = ReconcilerEvent<W::Feature>;
    type Target = WriteId;

    fn observe_event(&mut self, event: Self::Event, now: Now) -> Effects<WriteId> {
        self.0.set_now(now);
        match event {
            ReconcilerEvent::Observed(observe) => observe(&mut self.0, now),
            ReconcilerEvent::Done(id, has_reply) => self.0.note_done(&id, has_reply, now),
            ReconcilerEvent::Refused(id, refusal) => self.0.note_refused(&id, refusal, now),
        }
        self.0.publish();
        self.0.take_effects(now)
    }

    fn synced(&mut self, now: Now) -> Effects<WriteId> {
        self.0.set_now(now);
        self.0.begin_term();
        self.0.take_effects(now)
    }

    fn deadline_passed(&mut self, now: Now) -> Effects<WriteId> {
        self.0.run_keys(now);
        self.0.take_effects(now)
    }

    fn observe_unwritten(
        &mut self,
        id: &WriteId,
        unwritten: Unwritten,
        now: Now,
    ) -> Option<Effects<WriteId>> {
        self.0.set_now(now);
        match unwritten {
            Unwritten::Gone => self.0.note_gone(id, now),
            Unwritten::NotDone => self.0.note_failed(id, true),
            Unwritten::Unknown => self.0.note_failed(id, false),
        }
        Some(self.0.take_effects(now))
    }

    fn due_request(&mut self, id: &WriteId, now: Now) -> Option<Request<Self::Event>> {
        let write = self.0.take_due(id, now)?;
        let (kind, name) = (write.kind(), write.name());
        let reply = encode::find_decoder::<Self>(kind).filter(|_| !write.may_end_object());
        let manager = format!("leadsman-{}", Self::NAME);
        let is_read_back = encode::is_read_back::<Self>(kind);
        let measured = write.since().zip(self.1.clone());
        let refused = id.clone();
        Some(Request {
            kind,
            http: encode::encode_write(&manager, kind, name, &write.text()),
            reply,
            read_back: is_read_back
                .then(|| encode::encode_read(kind, name))
                .flatten(),
            measured: measured.map(|(since, latency)| Measured { since, latency }),
            written: ReconcilerEvent::Done(id.clone(), reply.is_some()),
            refused: Box::new(|refusal| ReconcilerEvent::Refused(refused, refusal)),
        })
    }

    fn class_index(id: &WriteId) -> usize {
        W::Feature::WRITES[id.kind].class
    }

    fn count_reasons(&self) -> &[usize] {
        W::Feature::count_reasons(self.0.world())
    }

    fn namespace(id: &WriteId) -> Option<&str> {
        Some(&*id.name.namespace).filter(|namespace| !namespace.is_empty())
    }
}

impl<K: Watchable, W: WatchedKinds> Observe<K> for Reconciled<W>
where
    W::Feature: Watch<K>,
{
    fn event_from_observation(observation: Observation<K>) -> ReconcilerEvent<W::Feature> {
        ReconcilerEvent::Observed(Box::new(move |reconciler, now| match observation {
            Observation::Object(object, source) => reconciler.observe_object(object, source),
            Observation::Undecodable(metadata, source) => {
                reconciler.observe_metadata::<K>(&metadata, source);
            }
            Observation::Deleted(name, version) => {
                reconciler.observe_deletion::<K>(&name, version, now);
            }
            Observation::Listed(names, version) => {
                reconciler.observe_list::<K>(&names, version, false, now);
            }
            Observation::Relisted(names, version) => {
                reconciler.observe_list::<K>(&names, version, true, now);
            }
            Observation::FieldsKept(kept) => reconciler.note_fields_kept::<K>(kept),
        }))
    }
}

/// Reads the object in a reply as the watch of its kind would show it.
pub(crate) fn decode_object<K: Watchable, R: Observe<K>>(
    body: &[u8],
) -> serde_json::Result<R::Event> {
    let object = Arc::new(serde_json::from_slice::<K>(body)?);
    Ok(R::event_from_observation(Observation::Object(
        object,
        Source::Reply,
    )))
}
