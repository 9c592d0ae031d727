//! The annotations of a pod that record the sets that it was injected by, as Go writes them: map keys sorted, fields in the
//! order of their declaration. Fields that are not known stay.

mod entry;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use self::entry::{field, fields, text_of};
use crate::cluster::whole_seconds;
use crate::workload::JsonObject;
use crate::workload::go_json::{Field, FieldOrder, Form, GoValue, always, optional};
use crate::workload::object::text;
use crate::workload::pod::short_container_id;

/// The hashes of the containers that a pod has, by set.
pub const HASH: &str = "kruise.io/sidecarset-hash";
/// The same without images.
pub const HASH_WITHOUT_IMAGE: &str = "kruise.io/sidecarset-hash-without-image";
/// The sets that a pod was injected by.
pub const INJECTED_LIST: &str = "kruise.io/sidecarset-injected-list";
/// The state of the containers before their images were replaced, by set.
pub const IN_PLACE_STATE: &str = "kruise.io/sidecarset-inplace-update-state";
/// The container that works, of two that take turns.
pub const WORKING_CONTAINER: &str = "kruise.io/sidecarset-working-hotupgrade-container";

/// Annotation of ours: the variables that sets transfer and that no container of the pod had, by set.
pub const MISSING_VARIABLES: &str = "sidecarset.leadsman.io/missing-variables";

/// The prefix of the annotation with the version of a container that takes turns.
const VERSION: &str = "version.sidecarset.kruise.io/";
/// The prefix of the annotation with the version of the other.
const OTHER_VERSION: &str = "versionalt.sidecarset.kruise.io/";

/// The annotation with the version of a container that takes turns with another.
pub fn version_key(container: &str) -> String {
    format!("{VERSION}{container}")
}

/// The annotation with the version of the container that it takes turns with.
pub fn other_version_key(container: &str) -> String {
    format!("{OTHER_VERSION}{container}")
}

/// Whether an annotation is one of those that the rules write.
pub fn is_ours(key: &str) -> bool {
    [
        HASH,
        HASH_WITHOUT_IMAGE,
        INJECTED_LIST,
        IN_PLACE_STATE,
        WORKING_CONTAINER,
        MISSING_VARIABLES,
    ]
    .contains(&key)
        || key.starts_with(VERSION)
        || key.starts_with(OTHER_VERSION)
}

/// A field of ours in a set's entry of hashes, gone with the first upgrade: the revision that was the newest at the injection.
/// Where no pin gave the pod another one it is there too, to tell the pod from one that a former version injected.
/// `OpenKruise` skips it (`SidecarSetUpgradeSpec`, `pkg/control/sidecarcontrol/util.go`).
const NEWEST_REVISION: &str = "newestRevision";

const HASH_ENTRY: &[Field] = &[
    always("updateTimestamp", "null"),
    always("hash", "\"\""),
    always("sidecarSetName", "\"\""),
    always("sidecarList", "null"),
    optional("controllerRevision"),
];
const CONTAINER_STATE: &[Field] = &[optional("imageID")];
const STATE_ENTRY: &[Field] = &[
    always("revision", "\"\""),
    always("updateTimestamp", "null"),
    always("lastContainerStatuses", "null").of(Form::Map(&Form::Struct(CONTAINER_STATE))),
];

/// A time as Go writes one of an object.
fn go_time(time: Timestamp) -> String {
    whole_seconds(time).to_string()
}

/// The objects of a JSON object in an annotation; what is none is left out.
fn read_objects(annotation: &str) -> BTreeMap<String, Value> {
    // A text that is no JSON has no entry. `OpenKruise` refuses the pod for it (`buildSidecars`,
    // `pkg/webhook/pod/mutating/sidecarset.go`).
    serde_json::from_str(annotation).unwrap_or_default()
}

fn write_objects(objects: &BTreeMap<String, JsonObject>, fields: &'static [Field]) -> String {
    let entries = objects.iter().map(|(name, object)| {
        let value = GoValue::structure(object, &[fields]);
        (name.clone(), value)
    });
    GoValue::Object(entries.collect()).to_text(FieldOrder::Declared)
}

/// One of the two hash annotations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HashEntries(BTreeMap<String, JsonObject>);

/// The hash of a set's containers in a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashEntry<'a> {
    /// The hash.
    pub hash: Cow<'a, str>,
    /// Name of the revision; absent in the annotation without images, and where it was not known.
    pub revision: Option<Cow<'a, str>>,
    /// The time at which the containers were last changed.
    pub since: Option<Timestamp>,
    /// The revision that was the newest at the injection; absent after an upgrade, and where another than this version
    /// injected the pod.
    pub newest: Option<Cow<'a, str>>,
}

impl<'a> HashEntry<'a> {
    /// The entry of a set in a hash annotation, which is not read otherwise. One of the form before `OpenKruise` 0.8 is as
    /// old as can be.
    pub fn of_set(annotation: &'a str, set: &str) -> Option<Self> {
        let entry = field(annotation, set)?;
        if let Some(hash) = text_of(entry) {
            return Some(Self {
                hash,
                revision: None,
                since: Some(Timestamp::UNIX_EPOCH),
                newest: None,
            });
        }
        let names = [
            "hash",
            "controllerRevision",
            "updateTimestamp",
            NEWEST_REVISION,
        ];
        let found = fields(entry.get(), names)?.map(|value| text_of(value?));
        let [hash, revision, since, newest] = found;
        Some(Self {
            hash: hash.unwrap_or_default(),
            revision: revision.filter(|revision| !revision.is_empty()),
            since: since.and_then(|since| since.parse().ok()),
            newest,
        })
    }
}

impl HashEntries {
    /// Reads an annotation. Before `OpenKruise` 0.8 a hash stood where there is an object now; `now` is the time that such
    /// an entry gets when it is written again. An annotation that is no JSON has no entry.
    pub fn from_annotation(annotation: &str, now: Timestamp) -> Self {
        let entries = read_objects(annotation)
            .into_iter()
            .filter_map(|(set, value)| match value {
                Value::Object(object) => Some((set, object)),
                Value::String(hash) => {
                    let mut object = JsonObject::new();
                    object.insert("updateTimestamp".to_owned(), go_time(now).into());
                    object.insert("hash".to_owned(), hash.into());
                    object.insert("sidecarSetName".to_owned(), set.as_str().into());
                    Some((set, object))
                }
                _ => None,
            });
        Self(entries.collect())
    }

    /// The entry of a set.
    pub fn entry_of(&self, set: &str) -> Option<HashEntry<'_>> {
        let object = self.0.get(set)?;
        let since = text(object, "updateTimestamp");
        Some(HashEntry {
            hash: text(object, "hash").unwrap_or_default().into(),
            revision: text(object, "controllerRevision").map(Into::into),
            since: since.and_then(|since| since.parse().ok()),
            newest: text(object, NEWEST_REVISION).map(Into::into),
        })
    }

    /// The sets that have an entry.
    pub fn sets(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The names of the sidecars that the pod got from a set; of two that take turns it is one name.
    pub fn sidecars(&self, set: &str) -> impl Iterator<Item = &str> {
        let list = self.0.get(set).and_then(|entry| entry.get("sidecarList"));
        let names = list.and_then(Value::as_array).into_iter().flatten();
        names.filter_map(Value::as_str)
    }

    /// The names of the revisions that the pod has.
    pub fn revisions(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.0.iter();
        entries
            .filter_map(|(set, object)| Some((set.as_str(), text(object, "controllerRevision")?)))
    }

    /// Sets the entry of a set: its containers, or their images, have just been written.
    pub fn set(
        &mut self,
        set: &str,
        hash: &str,
        sidecars: &BTreeSet<Arc<str>>,
        revision: Option<&str>,
        now: Timestamp,
    ) {
        let mut object = self.0.remove(set).unwrap_or_default();
        object.insert("updateTimestamp".to_owned(), go_time(now).into());
        object.insert("hash".to_owned(), hash.into());
        object.insert("sidecarSetName".to_owned(), set.into());
        let sidecars = sidecars.iter().map(|name| Value::from(&**name)).collect();
        object.insert("sidecarList".to_owned(), Value::Array(sidecars));
        object.insert(
            "controllerRevision".to_owned(),
            revision.unwrap_or_default().into(),
        );
        object.remove(NEWEST_REVISION);
        self.0.insert(set.to_owned(), object);
    }

    /// Records which revision of a set was the newest when its containers, which have just been written, were injected.
    pub fn set_newest(&mut self, set: &str, newest: &str) {
        let object = self.0.entry(set.to_owned()).or_default();
        object.insert(NEWEST_REVISION.to_owned(), newest.into());
    }

    /// The annotation.
    pub fn write(&self) -> String {
        write_objects(&self.0, HASH_ENTRY)
    }
}

/// Whether a hash annotation has an entry of the form before `OpenKruise` 0.8.
pub fn is_old_form(annotation: &str) -> bool {
    read_objects(annotation).values().any(Value::is_string)
}

/// A field of ours in a set's entry: what was injected besides images stays as it was.
const INJECTED_REVISION: &str = "injectedRevision";
/// A field of ours for each container in a set's entry.
pub const CONTAINER_ID: &str = "containerID";
/// A field of ours in a set's entry, `false` or absent, so that most entries are no longer for it.
const WAS_READY: &str = "wasReady";

/// The annotation with what containers were before their images were replaced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InPlaceStates(BTreeMap<String, JsonObject>);

/// The state of a container before its image was replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormerContainer {
    /// The image that its status showed.
    pub image_id: String,
    /// The container's id, as [`ObservedStatus`] has it; empty if there was no container. `OpenKruise` records none.
    ///
    /// [`ObservedStatus`]: crate::workload::pod::ObservedStatus
    pub container_id: Option<String>,
}

impl FormerContainer {
    /// Whether a container of this id is it, where its id was recorded. Leadsman wrote whole ids once.
    pub fn is_container(&self, id: Option<&str>) -> bool {
        let former = self.container_id.as_deref().filter(|id| !id.is_empty());
        former.is_some_and(|former| id == Some(short_container_id(former)))
    }
}

/// The entry of a set in the annotation with what its containers were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlaceState<'a> {
    /// The set has not upgraded the pod.
    Absent,
    /// The annotation is not what it should be.
    Malformed,
    /// The set has upgraded it; the entry as JSON.
    Of(&'a str),
}

impl<'a> InPlaceState<'a> {
    /// The entry of a set in an annotation, which is not read otherwise.
    pub fn of_set(annotation: Option<&'a str>, set: &str) -> Self {
        let Some(annotation) = annotation else {
            return Self::Absent;
        };
        match fields(annotation, [set]) {
            Some([None]) => Self::Absent,
            Some([Some(entry)]) if fields(entry.get(), []).is_some() => Self::Of(entry.get()),
            _ => Self::Malformed,
        }
    }

    /// The revision that the pod was injected with, if the set has upgraded it since.
    pub fn injected(self) -> Option<Cow<'a, str>> {
        let Self::Of(entry) = self else {
            return None;
        };
        text_of(field(entry, INJECTED_REVISION)?)
    }

    /// Whether the set's last upgrade of the pod found it not ready, for a reason that was not an upgrade.
    pub fn was_unready(self) -> bool {
        // Most entries do not have the field, and each pod of a set is read at each of its events.
        let entry = match self {
            Self::Of(entry) if entry.contains(WAS_READY) => entry,
            _ => return false,
        };
        field(entry, WAS_READY).is_some_and(|value| value.get() == "false")
    }

    /// The state of a container of the set before its image was replaced.
    pub fn former(self, container: &str) -> Option<FormerContainer> {
        let Self::Of(entry) = self else {
            return None;
        };
        let containers = field(entry, "lastContainerStatuses")?;
        let former = field(containers.get(), container)?;
        let ids = fields(former.get(), ["imageID", CONTAINER_ID])?;
        let [image_id, container_id] = ids.map(|value| text_of(value?).map(Cow::into_owned));
        Some(FormerContainer {
            image_id: image_id.unwrap_or_default(),
            container_id,
        })
    }
}

impl InPlaceStates {
    /// Reads an annotation; None if it is no JSON.
    pub fn read(annotation: &str) -> Option<Self> {
        serde_json::from_str(annotation).ok().map(Self)
    }

    /// Records the revision that a pod was injected with, unless the set has upgraded it before.
    pub fn set_injected(&mut self, set: &str, revision: &str) {
        self.0.entry(set.to_owned()).or_insert_with(|| {
            let mut entry = JsonObject::new();
            entry.insert(INJECTED_REVISION.to_owned(), revision.into());
            entry
        });
    }

    /// Records whether an upgrade found the pod not ready.
    pub fn set_was_unready(&mut self, set: &str, was_unready: bool) {
        let object = self.0.entry(set.to_owned()).or_default();
        if was_unready {
            object.insert(WAS_READY.to_owned(), false.into());
        } else {
            object.remove(WAS_READY);
        }
    }

    /// Records what containers of a set are, as their images are replaced.
    pub fn set<'a>(
        &mut self,
        set: &str,
        hash: &str,
        containers: impl Iterator<Item = (&'a str, FormerContainer)>,
        now: Timestamp,
    ) {
        let object = self.0.entry(set.to_owned()).or_default();
        // The hash and the time are those of this upgrade; `OpenKruise` leaves the ones of the first
        // (`UpdatePodAnnotationsInUpgrade`, `pkg/control/sidecarcontrol/sidecarset_control.go`).
        object.insert("revision".to_owned(), hash.into());
        object.insert("updateTimestamp".to_owned(), go_time(now).into());
        // The states of other containers stay: their upgrade may not have ended yet.
        let stored = object.remove("lastContainerStatuses");
        let mut known = match stored {
            Some(Value::Object(known)) => known,
            _ => JsonObject::new(),
        };
        for (container, former) in containers {
            let mut object = JsonObject::new();
            object.insert("imageID".to_owned(), former.image_id.into());
            if let Some(id) = former.container_id {
                object.insert(CONTAINER_ID.to_owned(), id.into());
            }
            known.insert(container.to_owned(), object.into());
        }
        object.insert("lastContainerStatuses".to_owned(), known.into());
    }

    /// The annotation.
    pub fn write(&self) -> String {
        write_objects(&self.0, STATE_ENTRY)
    }
}

/// The names in the annotation that lists the sets of a pod.
pub fn injected_sets(annotation: &str) -> impl Iterator<Item = &str> {
    annotation.split(',').filter(|name| !name.is_empty())
}

/// The annotation that lists the sets of a pod.
pub fn write_injected_sets<'a>(sets: impl IntoIterator<Item = &'a str>) -> String {
    let sets: BTreeSet<_> = sets.into_iter().collect();
    sets.into_iter().collect::<Vec<_>>().join(",")
}

/// The annotation with the variables that a pod lacks: by set, each as `container/VARIABLE`.
pub fn write_missing_variables(variables: &BTreeMap<&str, BTreeSet<String>>) -> String {
    serde_json::to_string(variables).unwrap_or_default()
}

/// The variables of a set that a pod lacks, as the annotation says: each with its container, which is empty if the pod names
/// none.
pub fn missing_variables(annotation: &str, set: &str) -> Vec<(String, String)> {
    let list: Vec<String> = field(annotation, set)
        .and_then(|list| serde_json::from_str(list.get()).ok())
        .unwrap_or_default();
    let pairs = list.iter().filter_map(|one| one.split_once('/'));
    pairs
        .map(|(container, variable)| (container.to_owned(), variable.to_owned()))
        .collect()
}

/// The containers that work, by the name that the set has for both.
pub fn working_containers(annotation: &str) -> BTreeMap<String, String> {
    serde_json::from_str(annotation).unwrap_or_default()
}

/// The annotation with the containers that work.
pub fn write_working_containers(containers: &BTreeMap<String, String>) -> String {
    let entries = containers.iter().map(|(name, container)| {
        let container = GoValue::Scalar(container.as_str().into());
        (name.clone(), container)
    });
    GoValue::Object(entries.collect()).to_text(FieldOrder::Declared)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::sidecarset::tests::recorded;

    const SHORT: &str = "0123456789abc";

    fn now() -> Timestamp {
        "2026-11-22T02:00:23.9Z".parse().unwrap()
    }

    fn annotation(pod: &Value, key: &str) -> String {
        let value = pod["metadata"]["annotations"][key].as_str();
        value.unwrap().to_owned()
    }

    // SCS-23, SCS-25
    #[test]
    fn annotations_are_written_as_they_were_read() {
        let mut compared = 0;
        for pod in recorded::all().filter(|object| object["kind"] == "Pod") {
            for key in [HASH, HASH_WITHOUT_IMAGE] {
                let text = annotation(&pod, key);
                let entries = HashEntries::from_annotation(&text, Timestamp::UNIX_EPOCH);
                for set in entries.sets() {
                    assert_eq!(HashEntry::of_set(&text, set), entries.entry_of(set));
                }
                if !is_old_form(&text) {
                    assert_eq!(entries.write(), text);
                    compared += 1;
                }
            }
            if let Some(text) = pod["metadata"]["annotations"][IN_PLACE_STATE].as_str() {
                assert_eq!(InPlaceStates::read(text).unwrap().write(), text);
                compared += 1;
            }
        }
        assert!(compared > 30, "{compared}");
    }

    // SCS-23
    #[test]
    fn the_form_before_0_8_is_read_and_written_anew() {
        let [before, after] = recorded::documents("11-old-annotation-form")
            .try_into()
            .unwrap();
        let text = annotation(&before, HASH_WITHOUT_IMAGE);
        assert!(is_old_form(&text));
        let entries = HashEntries::from_annotation(&text, now());
        assert_eq!(entries.write(), annotation(&after, HASH_WITHOUT_IMAGE));
        let hash = "85z9xfvdb56vc459b4v6w2c5v9d7d47c8xdwxzb47x2cxz699z4fwff899bcwzv4";
        assert_eq!(entries.entry_of("log-agent").unwrap().hash, hash);
    }

    // SCS-24
    #[test]
    fn the_list_of_sets_is_sorted_and_has_each_once() {
        assert_eq!(write_injected_sets(["b", "a", "b"]), "a,b");
        assert_eq!(injected_sets("a,b").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(injected_sets("").count(), 0);
    }

    // SDF-1
    #[test]
    fn what_is_no_json_records_nothing() {
        for text in ["", "no json", "[]", "null", "{\"a\":5}"] {
            assert_eq!(
                HashEntries::from_annotation(text, now()).entry_of("a"),
                None,
                "{text}"
            );
            assert_eq!(HashEntry::of_set(text, "a"), None, "{text}");
        }
        for text in ["no json", "[]", r#"{"a":5}"#] {
            let state = InPlaceState::of_set(Some(text), "a");
            assert_eq!(state, InPlaceState::Malformed, "{text}");
        }
        let others = InPlaceState::of_set(Some(r#"{"a":5}"#), "b");
        assert_eq!(others, InPlaceState::Absent);
        assert_eq!(InPlaceStates::read("no json"), None);
    }

    // SCS-25, SDF-38
    #[test]
    fn the_state_is_that_of_the_last_upgrade_and_other_entries_stay() {
        let text = r#"{"other":{"revision":"r","updateTimestamp":null,"lastContainerStatuses":{},"newer":1},"set":{"revision":"old","updateTimestamp":"2026-01-01T00:00:00Z","lastContainerStatuses":{"x":{"imageID":"i"},"y":{}}}}"#;
        let mut states = InPlaceStates::read(text).unwrap();
        let former = FormerContainer {
            image_id: "j".to_owned(),
            container_id: Some("runtime://1".to_owned()),
        };
        states.set("set", "new", [("y", former.clone())].into_iter(), now());
        let expected = r#"{"other":{"revision":"r","updateTimestamp":null,"lastContainerStatuses":{},"newer":1},"set":{"revision":"new","updateTimestamp":"2026-11-22T02:00:23Z","lastContainerStatuses":{"x":{"imageID":"i"},"y":{"imageID":"j","containerID":"runtime://1"}}}}"#;
        assert_eq!(states.write(), expected);
        let text = states.write();
        let state = InPlaceState::of_set(Some(&text), "set");
        assert_eq!(state.former("y"), Some(former));
        assert_eq!(state.former("z"), None);
    }

    #[rstest]
    // As recorded now, and as it was recorded once.
    #[case("0123456789abc", SHORT, true)]
    #[case("containerd://0123456789abcdef0123456789abcdef", SHORT, true)]
    #[case("0123456789abd", SHORT, false)]
    #[case("runtime://1", "runtime://10", false)]
    #[case("runtime://1", "runtime://1", true)]
    // There was none.
    #[case("", SHORT, false)]
    fn a_container_is_recognised_by_what_was_recorded_of_its_id(
        #[case] recorded: &str,
        #[case] id: &str,
        #[case] expected: bool,
    ) {
        let former = FormerContainer {
            container_id: Some(recorded.to_owned()),
            ..FormerContainer::default()
        };
        assert_eq!(former.is_container(Some(id)), expected);
        assert!(!former.is_container(None));
    }
}
