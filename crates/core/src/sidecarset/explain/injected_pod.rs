//! A pod as it is: what was injected into it, and what its containers do.

use std::borrow::Cow;
use std::collections::BTreeSet;

use jiff::Timestamp;
use leadsman_api::slim::Pod;
use serde::Deserialize;
use serde_json::Value;

use super::Labels;
use super::difference::{self, FieldDifference};
use super::{KnownSet, KnownSets};
use crate::sidecarset::annotations::{HASH, HashEntry, INJECTED_LIST, injected_sets};
use crate::sidecarset::metadata::{AllowedKeys, Whitelist};
use crate::sidecarset::pod::PodState;
use crate::sidecarset::render::{Injection, inject_sets};
use crate::sidecarset::selection::{NewPod, offer};
use crate::sidecarset::set::SidecarSet;
use crate::workload::JsonObject;
use crate::workload::object::{inner, items, text};
use crate::workload::pod::ObservedPod;

/// A pod.
#[derive(Clone, Debug)]
pub struct PodObject {
    /// The pod as it is stored, but for its managedFields, which are half of it and explain nothing here.
    pub object: JsonObject,
    /// The parts of the pod that an index reads.
    pub wire: Pod,
    /// The parts of the pod that the rules read.
    pub observed: ObservedPod,
}

impl PodObject {
    /// Reads a pod.
    ///
    /// # Errors
    ///
    /// What cannot be decoded.
    pub fn read(value: Value) -> Result<Self, serde_json::Error> {
        let wire = Pod::deserialize(&value)?;
        let mut object = match value {
            Value::Object(object) => object,
            _ => JsonObject::new(),
        };
        let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
        metadata.map(|metadata| metadata.remove("managedFields"));
        Ok(Self {
            object,
            observed: ObservedPod::new(&wire),
            wire,
        })
    }

    /// The pod as one that is created now.
    pub(super) fn as_new(&self) -> NewPod<'_> {
        NewPod::new(&self.object, &self.observed.name.namespace)
    }

    /// The names of the sets that it was injected by.
    pub fn sets(&self) -> BTreeSet<String> {
        let annotation = self.observed.annotations.get(INJECTED_LIST);
        let names = annotation.into_iter().flat_map(|list| injected_sets(list));
        names.map(str::to_owned).collect()
    }

    /// Whether it was injected by a set.
    pub(super) fn is_injected_by(&self, set: &SidecarSet) -> bool {
        self.sets().contains(&*set.name)
    }

    /// The name of the revision that it has of a set, by its annotation.
    pub fn revision(&self, set: &str) -> Option<String> {
        let annotation = self.observed.annotations.get(HASH)?;
        let revision = HashEntry::of_set(annotation, set)?.revision;
        revision.map(Cow::into_owned)
    }

    /// Why a container does not run, in the kubelet's words.
    pub(super) fn waiting_reason(&self, container: &str) -> Option<String> {
        let status = inner(&self.object, "status")?;
        let lists = ["containerStatuses", "initContainerStatuses"];
        let mut statuses = lists.iter().flat_map(|list| items(status, list));
        let status = statuses.find(|status| text(status, "name") == Some(container))?;
        let waiting = inner(inner(status, "state")?, "waiting")?;
        let reason = text(waiting, "reason")?;
        Some(match text(waiting, "message") {
            Some(message) => format!("{reason}: {message}"),
            None => reason.to_owned(),
        })
    }
}

impl KnownSet {
    /// Reads the state of a pod of the set; None if the pod does not belong to it.
    pub fn state(
        &self,
        pod: &PodObject,
        namespaces: Option<&Labels>,
        now: Timestamp,
    ) -> Option<PodState> {
        let label = namespaces.map(|labels| |key: &str| labels.get(key).map(String::as_str));
        PodState::read(&self.set, &pod.observed, label, now)
    }

    /// The fields in which a pod differs from what it would get if it were created again.
    pub fn differences(
        &self,
        pod: &PodObject,
        sets: &KnownSets,
        now: Timestamp,
    ) -> Vec<FieldDifference> {
        let none = Whitelist::default();
        let allowed = || sets.allowed_keys(&self.set, &none);
        let labels = sets.namespaces.get(&pod.observed.name.namespace);
        let label = labels.map(|labels| |key: &str| labels.get(key).map(String::as_str));
        let offered = offer(&self.set, &self.history, allowed(), &pod.as_new(), label);
        let former = self.former(pod, allowed());
        // A pod that the set does not select any more is compared all the same.
        let injection = offered.unwrap_or_else(|_| self.present(allowed()));
        difference::find(&pod.object, injection, former, sets.render, now)
    }

    /// Lists what does not take effect in a pod, of the revision that it was injected by, in the words of an injection.
    pub(super) fn remarks(&self, pod: &PodObject, sets: &KnownSets, now: Timestamp) -> Vec<String> {
        let none = Whitelist::default();
        let allowed = || sets.allowed_keys(&self.set, &none);
        let former = self.former(pod, allowed());
        let injection = former.unwrap_or_else(|| self.present(allowed()));
        let injected = inject_sets(&pod.object, &[injection], sets.render, now);
        let all = injected.remarks.iter().map(|(_, remark)| remark);
        // The pod was injected, so nothing has left the set out; what is in the way now came later.
        let remarks = all.filter(|remark| !remark.leaves_out_the_set());
        remarks.map(ToString::to_string).collect()
    }

    /// The injection of the set as it is now.
    fn present<'a>(&'a self, allowed_keys: AllowedKeys<'a>) -> Injection<'a> {
        Injection {
            set: &self.set,
            template: &self.set.template,
            hashes: &self.set.hashes,
            revision: &self.history.newest,
            newest: None,
            allowed_keys,
            missing_pin: None,
        }
    }

    /// The injection of the revision that a pod was injected by, if that is known.
    fn former<'a>(
        &'a self,
        pod: &PodObject,
        allowed_keys: AllowedKeys<'a>,
    ) -> Option<Injection<'a>> {
        let name = pod.revision(&self.set.name)?;
        let mut revisions = self.history.revisions.iter();
        let former = revisions.find(|known| *known.revision.name == *name)?;
        Some(Injection {
            template: &former.template,
            hashes: &former.hashes,
            revision: &former.revision.name,
            ..self.present(allowed_keys)
        })
    }
}
