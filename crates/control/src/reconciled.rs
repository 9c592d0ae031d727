//! A feature on the kernel (`leadsman-reconcile`), as the control loop runs it: observations into its reconciler, planned
//! writes out as requests.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::request::Request as HttpRequest;
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request as Builder;
use kube::core::request::Error as BuildError;
use leadsman_process::clock;
use leadsman_reconcile::{
    Class, Effects, Feature, Now, ObjectName, ReasonGauge, Reconciler, Refusal, Source, Watch,
    Write, WriteId, WriteKind, WriteVerb,
};
use tokio::time::Instant;

use crate::kind::Kind;
use crate::request::{DecodeReply, Request, RequestKind};
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
pub struct Reconciled<W: WatchedKinds>(Reconciler<W::Feature>);

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
        Self(Reconciler::new(feature, elapsed))
    }
}

/// The time since the first call, which measures what a run costs.
fn elapsed() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let now = clock::monotonic();
    now.saturating_duration_since(*START.get_or_init(|| now))
}

impl<W: WatchedKinds> Rules for Reconciled<W> {
    const NAME: &'static str = W::Feature::NAME;
    const KINDS: &'static [Kind<Self>] = W::KINDS;
    const CLASSES: &'static [Class] = W::Feature::CLASSES;
    const GAUGE: Option<ReasonGauge> = W::Feature::GAUGE;

    type Event = ReconcilerEvent<W::Feature>;
    type Target = WriteId;

    fn requests() -> Vec<RequestKind> {
        let writes = || W::Feature::WRITES.iter();
        let creations = writes().filter(|kind| decode_reply::<W>(kind).is_some());
        let creations = creations.filter(|kind| kind.verb == WriteVerb::Create);
        // A creation reads the object that is in its way.
        let reads = creations.map(|kind| RequestKind {
            verb: "get",
            ..request_kind(kind)
        });
        writes().map(request_kind).chain(reads).collect()
    }

    fn observe_event(&mut self, event: Self::Event, now: Now) -> Effects<WriteId> {
        match event {
            ReconcilerEvent::Observed(observe) => observe(&mut self.0, now),
            ReconcilerEvent::Done(id, has_reply) => self.0.note_done(&id, has_reply, now),
            ReconcilerEvent::Refused(id, refusal) => self.0.note_refused(&id, refusal, now),
        }
        self.0.publish();
        self.0.take_effects(now)
    }

    fn synced(&mut self, now: Now) -> Effects<WriteId> {
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
        match unwritten {
            Unwritten::Gone => self.0.note_gone(id, now),
            Unwritten::NotDone => self.0.note_failed(id, true),
            Unwritten::Unknown => self.0.note_failed(id, false),
        }
        Some(self.0.take_effects(now))
    }

    fn due_request(&mut self, id: &WriteId, now: Now) -> Option<Request<Self::Event>> {
        let write = self.0.take_due(id, now)?;
        let kind = write.kind();
        // Neither shows an object that exists.
        let shows_none = matches!(kind.verb, WriteVerb::Delete | WriteVerb::DryRun);
        let reply = decode_reply::<W>(kind).filter(|_| !shows_none);
        // A name that the API server makes meets nothing.
        let read_back = kind.verb == WriteVerb::Create && reply.is_some();
        let refused = id.clone();
        Some(Request {
            kind: request_kind(kind),
            steps: build_request(&write).map(|request| vec![request]),
            reply,
            read_back: read_back.then(|| read_request(&write)).flatten(),
            measured: None,
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
            Observation::Object(object, source) => reconciler.observe_object(&object, source),
            Observation::Undecodable(metadata, _) => {
                reconciler.observe_undecodable::<K>(&ObjectName::of(&metadata));
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

fn request_kind(kind: &WriteKind) -> RequestKind {
    RequestKind {
        label: kind.label,
        group: kind.group,
        resource: kind.resource,
        verb: kind.verb.right(),
        scope: kind.scope,
    }
}

/// How to read the object in the reply to a write: as an object of the watched kind of that resource, if there is one.
fn decode_reply<W: WatchedKinds>(
    written: &WriteKind,
) -> Option<DecodeReply<ReconcilerEvent<W::Feature>>> {
    let plural = written.resource.split('/').next();
    let kind = W::KINDS.iter().find(|kind| {
        let resource = kind.resource();
        resource.group == written.group && Some(&*resource.plural) == plural
    })?;
    Some(kind.decode_reply)
}

fn build_request<F: Feature>(write: &Write<F>) -> Result<HttpRequest<Vec<u8>>, BuildError> {
    let (kind, name) = (write.kind(), &write.name().name);
    let (plural, subresource) = split_resource(kind);
    let builder = Builder::new(collection_path(kind, plural, &write.name().namespace));
    let patch = |params: &PatchParams, patch: &Patch<_>| match subresource {
        Some(subresource) => builder.patch_subresource(subresource, name, params, patch),
        None => builder.patch(name, params, patch),
    };
    // Under which the manager's writes stand in managedFields.
    let manager = format!("leadsman-{}", F::NAME);
    let params = PatchParams {
        field_manager: Some(manager.clone()),
        ..PatchParams::default()
    };
    match kind.verb {
        WriteVerb::MergePatch => patch(&params, &Patch::Merge(write.body())),
        WriteVerb::StrategicPatch => patch(&params, &Patch::Strategic(write.body())),
        WriteVerb::Apply(manager) => patch(
            &PatchParams::apply(manager).force(),
            &Patch::Apply(write.body()),
        ),
        WriteVerb::Create | WriteVerb::DryRun => {
            let body = write.body().to_string().into_bytes();
            let params = PostParams {
                dry_run: kind.verb == WriteVerb::DryRun,
                field_manager: Some(manager),
            };
            builder.create(&params, body)
        }
        WriteVerb::Delete => {
            let body = write.body();
            let text = |place| Some(body.pointer(place)?.as_str()?.to_owned());
            let preconditions = Preconditions {
                uid: text("/preconditions/uid"),
                resource_version: text("/preconditions/resourceVersion"),
            };
            // The pods of a Job would be orphaned by a deletion that says nothing of them (`DefaultGarbageCollectionPolicy`,
            // `pkg/registry/batch/job/strategy.go`).
            builder.delete(
                name,
                &DeleteParams::background().preconditions(preconditions),
            )
        }
    }
}

/// Reads the object that a creation meets.
fn read_request<F: Feature>(write: &Write<F>) -> Option<HttpRequest<Vec<u8>>> {
    let kind = write.kind();
    let path = collection_path(kind, split_resource(kind).0, &write.name().namespace);
    Builder::new(path)
        .get(&write.name().name, &GetParams::default())
        .ok()
}

fn split_resource(kind: &WriteKind) -> (&'static str, Option<&'static str>) {
    kind.resource
        .split_once('/')
        .map_or((kind.resource, None), |(plural, subresource)| {
            (plural, Some(subresource))
        })
}

fn collection_path(kind: &WriteKind, plural: &str, namespace: &str) -> String {
    let group = match kind.group {
        "" => format!("/api/{}", kind.version),
        group => format!("/apis/{group}/{}", kind.version),
    };
    match namespace {
        "" => format!("{group}/{plural}"),
        namespace => format!("{group}/namespaces/{namespace}/{plural}"),
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
