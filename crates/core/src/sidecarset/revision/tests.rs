//! The recorded revisions, and the choice among them.

use serde_json::{Value, json};

use super::*;
use crate::sidecarset::tests::recorded;
use crate::workload::revision::{RevisionChange, newest, revision_hash, revision_name, surplus};

fn parse(set: &Value) -> SidecarSet {
    SidecarSet::parse(&serde_json::from_value(set.clone()).unwrap()).unwrap()
}

fn meta(object: &Value) -> ObjectMeta {
    serde_json::from_value(object["metadata"].clone()).unwrap()
}

fn read(object: &Value) -> SetRevision {
    let number = object["revision"].as_i64().unwrap();
    SetRevision::read(&meta(object), number, &object["data"]).unwrap()
}

// SCS-33, SCS-34, SDF-56
#[test]
fn the_first_revision_of_a_set_is_created_as_recorded() {
    let mut stored = recorded::documents("01-sidecarset-stored").remove(1);
    stored["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] =
        json!("{}");
    let set = parse(&stored);
    let newest = newest(&set.name, &set.template.revision_data(), &[], 0);
    let RevisionChange::Create { number, hash } = &newest.change else {
        panic!("{newest:?}")
    };
    let created = create(
        &set,
        &meta(&stored),
        "kruise-system",
        (&newest.name, hash, *number),
    );
    assert_eq!(
        created,
        recorded::documents("02-controllerrevision-first")[0]
    );
}

// SCS-35, SCS-36, SCS-38
#[test]
fn a_set_that_goes_back_renumbers_its_former_revision_as_recorded() {
    let revisions: Vec<_> = recorded::documents("05-revisions-after-rollback")
        .iter()
        .map(read)
        .collect();
    let mut known: Vec<_> = revisions
        .iter()
        .map(|revision| revision.revision.clone())
        .collect();
    let set = parse(&recorded::documents("01-sidecarset-stored")[1]);
    let data = set.template.revision_data();
    let change = |known: &[Revision]| newest(&set.name, &data, known, 0);
    assert_eq!(change(&known).change, RevisionChange::None);
    assert_eq!(&*change(&known).name, "log-agent-6bf48c598b");
    // Before it was renumbered it was the first.
    known[1].number = 1;
    assert_eq!(change(&known).change, RevisionChange::Renumber(3));
}

/// Revisions 1 to 4 of a set and one of another; the first and the third have version `v`.
fn history() -> (SidecarSet, Vec<SetRevision>) {
    let mut set = parse(&recorded::documents("01-sidecarset-stored")[1]);
    set.uid = "own".into();
    let first = read(&recorded::documents("02-controllerrevision-first")[0]);
    let known = (1..=5).map(|number| SetRevision {
        revision: Revision {
            name: format!("r-{number}").into(),
            number,
            data: "".into(),
        },
        owner: if number == 5 { "other" } else { "own" }.into(),
        custom_version: (number % 2 == 1).then(|| "v".into()),
        ..first.clone()
    });
    (set, known.collect())
}

fn pin(revision: PinnedRevision, policy: PinPolicy) -> Pin {
    Pin { revision, policy }
}

// SCS-36, SCS-39, SDF-26
#[test]
fn a_pin_names_a_revision_of_the_set_itself() {
    let (set, known) = history();
    let name = |revision| {
        let pin = pin(revision, PinPolicy::Always);
        let pinned = pinned(&set, &pin, &known);
        pinned.map(|revision| revision.revision.name.to_string())
    };
    assert_eq!(
        name(PinnedRevision::Name("r-2".into())).as_deref(),
        Some("r-2")
    );
    assert_eq!(
        name(PinnedRevision::CustomVersion("v".into())).as_deref(),
        Some("r-3")
    );
    assert_eq!(name(PinnedRevision::Name("r-5".into())), None);
    assert_eq!(name(PinnedRevision::CustomVersion("w".into())), None);
}

// SCS-37
#[test]
fn revisions_that_pods_have_or_that_are_pinned_stay() {
    let (mut set, known) = history();
    set.pin = Some(pin(PinnedRevision::Name("r-1".into()), PinPolicy::Always));
    let now = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut pod = HashEntries::default();
    pod.set(&set.name, "h", &BTreeSet::new(), Some("r-3"), now);
    let used = used(&set, &known, [&pod].into_iter());
    assert_eq!(used, BTreeSet::from(["r-1".into(), "r-3".into()]));
    let own: Vec<_> = known[..4]
        .iter()
        .map(|known| known.revision.clone())
        .collect();
    assert_eq!(surplus(&own, 1, &used), ["r-2".into()]);
}

// SCS-40, SDF-16
#[test]
fn a_partial_pin_is_for_as_many_pods_as_stay_old_and_the_same_for_all_of_one_owner() {
    let (mut set, _) = history();
    let partial = pin(PinnedRevision::Name("r-1".into()), PinPolicy::Partial);
    let always = pin(PinnedRevision::Name("r-1".into()), PinPolicy::Always);
    let count = |set: &SidecarSet, pin: &Pin, matched| {
        let owners = (0..1000).map(|number| format!("owner-{number}"));
        owners
            .filter(|owner| is_pinned(set, pin, owner, matched, |_| None))
            .count()
    };
    assert_eq!(count(&set, &partial, 10), 0);
    assert_eq!(count(&set, &always, 10), 1000);
    for (partition, matched) in [(Amount::Percent(30), 0), (Amount::Number(3), 10)] {
        set.update.partition = partition;
        let pinned = count(&set, &partial, matched);
        assert!((250..350).contains(&pinned), "{pinned}");
        assert_eq!(pinned, count(&set, &partial, matched));
    }
    // As long as there are fewer pods than stay old, each of them does, also the first.
    for (number, matched, pinned) in [(3, 0, 1000), (3, 2, 1000), (0, 0, 0)] {
        set.update.partition = Amount::Number(number);
        assert_eq!(count(&set, &partial, matched), pinned, "{number} {matched}");
    }
    set.update.mode = UpdateMode::Paused;
    assert_eq!(count(&set, &partial, 10), 1000);
    set.update.mode = UpdateMode::Rolling;
    let wire = serde_json::from_value(json!({"matchLabels": {"track": "canary"}})).unwrap();
    set.update.selector = Some(crate::cluster::Selector::parse(&wire).unwrap());
    assert!(is_pinned(&set, &partial, "o", 10, |_| None));
    assert!(!is_pinned(&set, &partial, "o", 10, |_| Some("canary")));
}

// SDF-7
#[test]
fn the_revision_of_a_pod_is_named_by_what_is_injected() {
    let mut stored = recorded::documents("01-sidecarset-stored").remove(1);
    stored["spec"]["containers"][0]["image"] = json!("registry.example/log-agent:1.1");
    let set = parse(&stored);
    // The status still says the revision before the edit.
    assert_eq!(stored["status"]["latestRevision"], "log-agent-6bf48c598b");
    let hash = revision_hash(&set.template.revision_data(), 0);
    assert_eq!(revision_name(&set.name, &hash), "log-agent-6cc95d769f");
}
