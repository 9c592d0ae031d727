//! Which of our optional fields an API server keeps, read from the schema of its CRDs. One that has `OpenKruise`'s CRDs
//! drops them without a word (structural schemas are pruned:
//! k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning).

use leadsman_api::VERSION;
use leadsman_api::slim::crd::CustomResourceDefinition;

use super::event::Kind;

/// Fields of a marker's status that are kept together or not used at all.
const SUMMARIES: &[&str] = &["status.probes[].name", "status.conditions[].type"];

/// Fields of an entry in a node's object, and of a verdict about it: kept together or not used at all.
const ENTRIES: &[&str] = &[
    "spec.podProbes[].probes[].revision",
    "spec.podProbes[].probes[].startedContainerID",
    "status.podProbeStatuses[].probeStates[].revision",
    "status.podProbeStatuses[].probeStates[].containerID",
];

/// Whether objects of a kind keep our optional fields, as its CRD says: a marker those of its status, a `NodePodProbe`
/// those by which a verdict says what it is about. Other kinds have none.
pub fn keeps_fields(kind: Kind, crd: &CustomResourceDefinition) -> bool {
    let fields = match kind {
        Kind::Marker => SUMMARIES,
        Kind::NodePodProbe => ENTRIES,
        Kind::Pod | Kind::Node => &[],
    };
    fields.iter().all(|path| keeps(crd, path))
}

/// Whether our version of a kind has a field. `[]` leads to the items of a list.
fn keeps(crd: &CustomResourceDefinition, path: &str) -> bool {
    let version = crd.versions.iter().find(|one| one.name == VERSION);
    let mut schema = version.map(|version| &version.schema.object);
    let path = path.replace("[]", ".[]");
    for step in path.split('.') {
        let Some(at) = schema else {
            return false;
        };
        if at.preserves_unknown {
            return true;
        }
        schema = if step == "[]" {
            at.items.as_deref()
        } else {
            at.properties.get(step)
        };
    }
    schema.is_some()
}

#[cfg(test)]
mod tests {
    use leadsman_api::crd::crds;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const KINDS: [(&str, Kind); 2] = [
        ("podprobemarkers", Kind::Marker),
        ("nodepodprobes", Kind::NodePodProbe),
    ];
    const SCHEMA: &str = "/spec/versions/0/schema/openAPIV3Schema";

    /// Our CRDs, changed at a place of the schema; `None` takes the place out.
    fn changed(plural: &str, place: &str, change: Option<Value>) -> CustomResourceDefinition {
        let mut ours = crds().into_iter();
        let ours = ours.find(|crd| crd.spec.names.plural == plural).unwrap();
        let mut crd = serde_json::to_value(ours).unwrap();
        let (parent, last) = place.rsplit_once('/').unwrap();
        let parent = crd.pointer_mut(&format!("{SCHEMA}{parent}")).unwrap();
        let parent = parent.as_object_mut().unwrap();
        match change {
            Some(value) => {
                parent.insert(last.to_owned(), value);
            }
            None => {
                parent.remove(last).unwrap();
            }
        }
        serde_json::from_value(crd).unwrap()
    }

    #[test]
    fn our_own_crds_keep_all() {
        for (plural, kind) in KINDS {
            let crd = changed(plural, "/description", Some(json!("ours")));
            assert!(keeps_fields(kind, &crd));
        }
    }

    const ENTRY: &str =
        "/properties/spec/properties/podProbes/items/properties/probes/items/properties";

    #[rstest]
    #[case::no_probes("podprobemarkers", "/properties/status/properties/probes".to_owned())]
    #[case::no_conditions("podprobemarkers", "/properties/status/properties/conditions".to_owned())]
    #[case::no_revision("nodepodprobes", format!("{ENTRY}/revision"))]
    #[case::no_started("nodepodprobes", format!("{ENTRY}/startedContainerID"))]
    fn a_schema_without_one_of_the_fields_drops_them(#[case] plural: &str, #[case] place: String) {
        let crd = changed(plural, &place, None);
        for (named, kind) in KINDS {
            assert!(named != plural || !keeps_fields(kind, &crd));
        }
    }

    #[test]
    fn a_schema_that_preserves_what_it_does_not_know_keeps_them() {
        let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let crd = changed("nodepodprobes", "/properties/spec", Some(open));
        assert!(keeps_fields(Kind::NodePodProbe, &crd));
    }
}
