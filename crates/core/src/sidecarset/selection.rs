//! The choice of the sets that a pod gets as it is created, and of their revisions: asked by the webhook and by whoever wants
//! to know before. What the pod then looks like is decided in `render`.

use std::sync::Arc;

use leadsman_api::SidecarSetStatus;
use serde_json::Value;

use super::metadata::AllowedKeys;
use super::render::Injection;
use super::revision::{SetRevision, is_pinned, pinned};
use super::set::{Namespaces, SidecarSet};
use crate::workload::JsonObject;
use crate::workload::object::{inner, items, text};
use crate::workload::revision::{Revision, newest};

/// A pod that is being created: what it is selected by.
#[derive(Clone, Copy, Debug)]
pub struct NewPod<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The text that its pin is drawn from: the uid of its controller, so that the pods of one are alike; else its name.
    pub owner: &'a str,
    /// Whether the kubelet shows a static pod by it (`k8s.io/kubernetes/pkg/kubelet/types`, `ConfigMirrorAnnotationKey`).
    /// What runs is as a file of the node says, and the kubelet replaces a mirror that differs.
    pub is_mirror: bool,
    labels: Option<&'a JsonObject>,
}

/// Annotation of a mirror pod.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Why a set gives nothing to a pod that is being created: the first of these that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOffered {
    /// The pod is the mirror of a static pod.
    MirrorPod,
    /// The injection of the set is paused.
    Paused,
    /// The pod's labels are others.
    Labels,
    /// The set selects namespaces by labels, and those of the pod's namespace are not known.
    NamespaceUnknown,
    /// The pod's namespace is another.
    Namespace,
}

impl<'a> NewPod<'a> {
    /// A pod as it is sent to the API server. It need not name its namespace, since its request does.
    pub fn new(pod: &'a JsonObject, namespace: &'a str) -> Self {
        let metadata = inner(pod, "metadata");
        let mut owners = metadata
            .into_iter()
            .flat_map(|metadata| items(metadata, "ownerReferences"));
        let controller =
            owners.find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true));
        let name = |metadata| text(metadata, "name").or_else(|| text(metadata, "generateName"));
        let owner = controller.and_then(|owner| text(owner, "uid"));
        Self {
            namespace,
            owner: owner.or_else(|| name(metadata?)).unwrap_or_default(),
            is_mirror: metadata
                .and_then(|metadata| inner(metadata, "annotations"))
                .is_some_and(|annotations| annotations.contains_key(MIRROR)),
            labels: metadata.and_then(|metadata| inner(metadata, "labels")),
        }
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&'a str> {
        self.labels?.get(key).and_then(Value::as_str)
    }

    /// The pod's labels.
    pub fn labels(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let labels = self.labels.into_iter().flatten();
        labels.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }
}

/// The revisions of a set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SetHistory {
    /// The revisions that are known.
    pub revisions: Vec<SetRevision>,
    /// The name of the revision of the set as it is now. It may not have been created yet.
    pub newest: Arc<str>,
    /// How many pods the set has, by its status.
    pub matched: usize,
}

impl SetHistory {
    /// The history of a set, by its revisions and its status as far as they are known. Revisions of others are left out.
    pub fn new(
        set: &SidecarSet,
        mut revisions: Vec<SetRevision>,
        status: Option<&SidecarSetStatus>,
    ) -> Self {
        revisions.retain(|revision| revision.owner == set.uid);
        let known: Vec<Revision> = revisions
            .iter()
            .map(|known| known.revision.clone())
            .collect();
        let collisions = status.and_then(|status| status.collision_count);
        // The spec decides and not `status.latestRevision`, which trails an edit: pods that are created meanwhile would name
        // the revision before.
        let newest = newest(
            &set.name,
            &set.template.revision_data(),
            &known,
            collisions.unwrap_or_default(),
        );
        let matched = status.map_or(0, |status| status.matched_pods);
        Self {
            revisions,
            newest: newest.name,
            matched: usize::try_from(matched).unwrap_or_default(),
        }
    }
}

/// Decides what a set gives to a pod that is being created. `namespace_label` gives the labels of the pod's namespace, if they
/// are known.
///
/// # Errors
///
/// Why it gives nothing.
pub fn offer<'a, 'b>(
    set: &'a SidecarSet,
    history: &'a SetHistory,
    allowed_keys: AllowedKeys<'a>,
    pod: &NewPod<'_>,
    namespace_label: Option<impl Fn(&str) -> Option<&'b str>>,
) -> Result<Injection<'a>, NotOffered> {
    let label = |key: &str| pod.label(key);
    check_selected(set, pod, namespace_label)?;
    let given = set.pin.as_ref();
    let pin = given.filter(|pin| is_pinned(set, pin, pod.owner, history.matched, label));
    let revision = pin.and_then(|pin| pinned(set, pin, &history.revisions));
    Ok(match revision {
        Some(revision) => Injection {
            set,
            template: &revision.template,
            hashes: &revision.hashes,
            revision: &revision.revision.name,
            newest: Some(&history.newest),
            allowed_keys,
            missing_pin: None,
        },
        None => Injection {
            set,
            template: &set.template,
            hashes: &set.hashes,
            revision: &history.newest,
            newest: Some(&history.newest),
            allowed_keys,
            missing_pin: pin.map(|pin| &pin.revision),
        },
    })
}

/// Whether a set that can be injected gives something to a pod that is being created.
///
/// # Errors
///
/// Why it gives nothing.
pub(super) fn check_selected<'b>(
    set: &SidecarSet,
    pod: &NewPod<'_>,
    namespace_label: Option<impl Fn(&str) -> Option<&'b str>>,
) -> Result<(), NotOffered> {
    if pod.is_mirror {
        return Err(NotOffered::MirrorPod);
    }
    if set.is_injection_paused {
        return Err(NotOffered::Paused);
    }
    // The labels come before the namespace: only a pod with such labels has to wait until its namespace is known.
    if !set.selector.matches(|key| pod.label(key)) {
        return Err(NotOffered::Labels);
    }
    let is_known = namespace_label.is_some();
    if set.namespaces.contain(pod.namespace, namespace_label) {
        Ok(())
    } else if matches!(set.namespaces, Namespaces::Selected(_)) && !is_known {
        Err(NotOffered::NamespaceUnknown)
    } else {
        Err(NotOffered::Namespace)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::sidecarset::metadata::Whitelist;
    use crate::sidecarset::render::{Remark, RenderOptions, inject_sets};
    use crate::sidecarset::tests::recorded;

    fn parse(set: &Value) -> SidecarSet {
        SidecarSet::parse(&serde_json::from_value(set.clone()).unwrap()).unwrap()
    }

    fn stored() -> Value {
        recorded::documents("01-sidecarset-stored").remove(1)
    }

    fn history(set: &SidecarSet) -> SetHistory {
        let revisions = recorded::documents("05-revisions-after-rollback");
        let revisions = revisions.iter().map(|object| {
            let meta = serde_json::from_value(object["metadata"].clone()).unwrap();
            let number = object["revision"].as_i64().unwrap();
            let mut revision = SetRevision::read(&meta, number, &object["data"]).unwrap();
            revision.owner = set.uid.clone();
            revision
        });
        SetHistory::new(set, revisions.collect(), None)
    }

    fn pod(metadata: &Value) -> JsonObject {
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}});
        pod.as_object().unwrap().clone()
    }

    /// The name of the revision that a pod gets.
    fn offered(
        set: &Value,
        metadata: &Value,
        namespace_labels: Option<&[(&'static str, &'static str)]>,
    ) -> Result<String, NotOffered> {
        let set = parse(set);
        let history = history(&set);
        let pod = pod(metadata);
        let label = namespace_labels.map(|labels| {
            |key: &str| {
                let found = labels.iter().find(|(own, _)| *own == key);
                found.map(|(_, value)| *value)
            }
        });
        let allowed = Whitelist::default();
        let allowed = allowed.allowed_keys(|_| None, true);
        let offered = offer(&set, &history, allowed, &NewPod::new(&pod, "shop"), label);
        offered.map(|injection| injection.revision.to_owned())
    }

    const GOLD: Option<&[(&str, &str)]> = Some(&[("tier", "gold")]);

    // SCS-5
    #[rstest]
    #[case(json!({}), GOLD, None)]
    #[case(json!({"selector": {"matchLabels": {"app": "other"}}}), GOLD, Some(NotOffered::Labels))]
    #[case(json!({"namespace": "shop"}), GOLD, None)]
    #[case(json!({"namespace": "other"}), None, Some(NotOffered::Namespace))]
    #[case(json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}), GOLD, None)]
    #[case(json!({"namespaceSelector": {"matchLabels": {"tier": "tin"}}}), GOLD, Some(NotOffered::Namespace))]
    #[case(json!({"namespaceSelector": {"matchLabels": {"tier": "gold"}}}), None, Some(NotOffered::NamespaceUnknown))]
    #[case(json!({"injectionStrategy": {"paused": true}}), GOLD, Some(NotOffered::Paused))]
    fn a_new_pod_gets_a_set_that_selects_it_and_is_not_paused(
        #[case] spec: Value,
        #[case] namespace_labels: Option<&[(&'static str, &'static str)]>,
        #[case] expected: Option<NotOffered>,
    ) {
        let mut set = stored();
        set["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
        for (field, value) in spec.as_object().unwrap() {
            set["spec"][field] = value.clone();
        }
        let metadata = json!({"labels": {"app": "web"}});
        let offered = offered(&set, &metadata, namespace_labels);
        assert_eq!(offered.err(), expected);
    }

    // SCS-5
    #[test]
    fn a_static_pod_gets_nothing() {
        let set = stored();
        let labels = set["spec"]["selector"]["matchLabels"].clone();
        let metadata = json!({"labels": labels, "annotations": {MIRROR: "x"}});
        assert_eq!(offered(&set, &metadata, GOLD), Err(NotOffered::MirrorPod));
    }

    // SCS-39, SDF-1, SDF-7
    #[test]
    fn a_pod_gets_the_pinned_revision_and_else_the_present_one() {
        let mut set = stored();
        let labels = set["spec"]["selector"]["matchLabels"].clone();
        let metadata = json!({"labels": labels});
        let newest = "log-agent-6bf48c598b";
        assert_eq!(offered(&set, &metadata, None).as_deref(), Ok(newest));
        let known = recorded::documents("05-revisions-after-rollback");
        let names = known
            .iter()
            .filter_map(|known| known["metadata"]["name"].as_str());
        let former = names.clone().find(|name| *name != newest).unwrap();
        for (pin, expected) in [(former, former), ("log-agent-none", newest)] {
            set["spec"]["injectionStrategy"] = json!({"revision": {"revisionName": pin}});
            assert_eq!(offered(&set, &metadata, None).as_deref(), Ok(expected));
        }
    }

    // SDF-1
    #[test]
    fn a_pin_without_its_revision_is_reported() {
        let mut set = stored();
        set["spec"]["injectionStrategy"] = json!({"revision": {"customVersion": "v9"}});
        let labels = set["spec"]["selector"]["matchLabels"].clone();
        let (set, pod) = (parse(&set), pod(&json!({"labels": labels})));
        let (history, whitelist) = (SetHistory::default(), Whitelist::default());
        let allowed = whitelist.allowed_keys(|_| None, true);
        let none = None::<fn(&str) -> Option<&'static str>>;
        let injection = offer(&set, &history, allowed, &NewPod::new(&pod, "d"), none).unwrap();
        let now = "2026-11-22T01:58:33Z".parse().unwrap();
        let injected = inject_sets(&pod, &[injection], RenderOptions::default(), now);
        assert_eq!(injected.sets.len(), 1);
        let [(_, remark @ Remark::NoPinnedRevision(_))] = &injected.remarks[..] else {
            panic!("{:?}", injected.remarks)
        };
        let words = "no revision with custom version \"v9\"";
        assert!(remark.to_string().contains(words), "{remark}");
    }

    #[test]
    fn the_pods_of_one_controller_draw_alike() {
        let owned = json!({"name": "a-1", "ownerReferences": [{"uid": "u", "controller": true}]});
        let other = json!({"name": "b", "ownerReferences": [{"uid": "u"}]});
        for (metadata, owner) in [
            (owned, "u"),
            (other, "b"),
            (json!({"generateName": "c-"}), "c-"),
            (json!({}), ""),
        ] {
            assert_eq!(NewPod::new(&pod(&metadata), "d").owner, owner);
        }
    }
}
