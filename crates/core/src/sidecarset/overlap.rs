//! Overlaps: things that two sets cannot both do to one pod.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::container::SetContainer;
use super::host_ports::HostPort;
use super::metadata::{MetadataPatch, PatchPolicy};
use super::template::Template;
use crate::workload::core_types::VOLUME;
use crate::workload::go_json::GoValue;
use crate::workload::object::text;

/// A thing that two sets cannot both do to one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Overlap {
    /// Both have a container or an init container of a name; two that take turns have two names.
    Container(Arc<str>),
    /// Both have a volume of a name, and it is not the same.
    Volume(String),
    /// Both patch an annotation, and one overwrites it.
    Annotation(String),
    /// Both take a port of the host.
    HostPort(HostPort),
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(name) => write!(f, "container {name:?}"),
            Self::Volume(name) => write!(f, "another volume {name:?}"),
            Self::Annotation(key) => {
                write!(f, "annotation {key:?}, which one of the two overwrites")
            }
            Self::HostPort(port) => write!(f, "host port {port}"),
        }
    }
}

/// The first thing that two templates cannot both do to one pod.
pub fn find(one: &Template, other: &Template) -> Option<Overlap> {
    all(one, other).next()
}

/// Ports of the host that two templates both take.
pub fn host_ports<'a>(
    one: &'a Template,
    other: &Template,
    is_on_host_network: bool,
) -> impl Iterator<Item = Overlap> + use<'a> {
    let taken: BTreeSet<_> = other.host_ports(is_on_host_network).collect();
    let both = one.host_ports(is_on_host_network);
    both.filter(move |port| taken.contains(port))
        .map(Overlap::HostPort)
}

/// All that two templates cannot both do to one pod.
pub fn all<'a>(one: &'a Template, other: &'a Template) -> impl Iterator<Item = Overlap> + 'a {
    containers(one, other)
        .chain(volumes(one, other))
        .chain(annotations(one, other))
        // Two sets share more ports on the host's network; those are found when the pod is at hand.
        .chain(host_ports(one, other, false))
}

/// The names and ports in which a template may collide with another one.
pub fn claims(template: &Template) -> impl Iterator<Item = Overlap> {
    let containers = template.all().flat_map(SetContainer::names_in_pod);
    let volumes = template
        .volumes()
        .iter()
        .filter_map(|volume| text(volume, "name"));
    let keys = template.patches.iter().flat_map(MetadataPatch::keys);
    containers
        .map(Overlap::Container)
        .chain(volumes.map(|name| Overlap::Volume(name.to_owned())))
        .chain(keys.map(|key| Overlap::Annotation(key.to_owned())))
        .chain(template.host_ports(false).map(Overlap::HostPort))
}

/// Whether two templates collide with all others about the same.
pub fn claim_the_same(one: &Template, other: &Template) -> bool {
    claims(one).eq(claims(other))
        && one.volumes() == other.volumes()
        && one.patches == other.patches
}

fn containers<'a>(
    one: &'a Template,
    other: &'a Template,
) -> impl Iterator<Item = Overlap> + use<'a> {
    let names = |template: &'a Template| template.all().flat_map(SetContainer::names_in_pod);
    let others: Vec<_> = names(other).collect();
    names(one)
        .filter(move |name| others.contains(name))
        .map(Overlap::Container)
}

fn volumes<'a>(one: &'a Template, other: &'a Template) -> impl Iterator<Item = Overlap> + use<'a> {
    one.volumes().iter().filter_map(|volume| {
        let name = text(volume, "name")?;
        // Values are compared as Go holds them: `1Gi` and `1024Mi` are one size.
        let value = |volume| GoValue::structure(volume, &[VOLUME]);
        let differs = value(other.volume(name)?) != value(volume);
        differs.then(|| Overlap::Volume(name.to_owned()))
    })
}

fn annotations<'a>(
    one: &'a Template,
    other: &'a Template,
) -> impl Iterator<Item = Overlap> + use<'a> {
    let pairs = one
        .patches
        .iter()
        .flat_map(|own| other.patches.iter().map(move |foreign| (own, foreign)));
    let colliding = pairs.filter(|(own, foreign)| {
        let policies = [own.policy, foreign.policy];
        // Overwriting has an effect unless the other would retain whatever is there.
        policies.contains(&PatchPolicy::Overwrite) && !policies.contains(&PatchPolicy::Retain)
    });
    colliding.flat_map(|(own, foreign)| {
        let keys = own.keys();
        keys.filter(|key| foreign.annotations.contains_key(*key))
            .map(|key| Overlap::Annotation(key.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::FieldErrors;

    fn template(spec: &Value) -> Template {
        let spec = serde_json::from_value(spec.clone()).unwrap();
        let mut errors = Vec::new();
        Template::read(&spec, &mut FieldErrors::new(&mut errors, "spec"))
    }

    fn patch(policy: &str) -> Value {
        json!({"patchPodMetadata": [{"patchPolicy": policy, "annotations": {"k": "{}"}}]})
    }

    fn with_port(name: &str, port: u16) -> Value {
        json!({"name": name, "ports": [{"containerPort": 80, "hostPort": port}]})
    }

    // SCS-78, SDF-1
    #[test]
    fn two_sets_that_take_one_port_of_the_host_are_found() {
        let [one, other] =
            ["a", "b"].map(|name| template(&json!({"containers": [with_port(name, 80)]})));
        let overlap = find(&one, &other).unwrap();
        assert_eq!(overlap.to_string(), "host port 80/TCP");
    }

    // SCS-78, SDF-19
    #[rstest]
    #[case(json!({"containers": [{"name": "a"}]}), json!({"containers": [{"name": "b"}]}), None)]
    #[case(json!({"containers": [{"name": "a"}]}), json!({"containers": [{"name": "a"}]}), Some(Overlap::Container("a".into())))]
    #[case(json!({"containers": [{"name": "a"}]}), json!({"initContainers": [{"name": "a"}]}), Some(Overlap::Container("a".into())))]
    #[case(json!({"initContainers": [{"name": "a"}]}), json!({"initContainers": [{"name": "a"}]}), Some(Overlap::Container("a".into())))]
    #[case(json!({"containers": [{"name": "a", "upgradeStrategy": {"upgradeType": "HotUpgrade"}}]}), json!({"containers": [{"name": "a-1"}]}), Some(Overlap::Container("a-1".into())))]
    #[case(json!({"containers": [with_port("a", 80)]}), json!({"containers": [with_port("b", 81)]}), None)]
    #[case(json!({"containers": [with_port("a", 80)]}), json!({"initContainers": [with_port("b", 80)]}), None)]
    #[case(json!({"volumes": [{"name": "v"}]}), json!({"volumes": [{"name": "v", "emptyDir": {}}]}), None)]
    #[case(json!({"volumes": [{"name": "v"}]}), json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), Some(Overlap::Volume("v".into())))]
    #[case(patch("Retain"), patch("Overwrite"), None)]
    #[case(patch("Retain"), patch("Retain"), None)]
    #[case(patch("MergePatchJson"), patch("MergePatchJson"), None)]
    #[case(patch("Overwrite"), patch("Overwrite"), Some(Overlap::Annotation("k".into())))]
    #[case(patch("Overwrite"), patch("MergePatchJson"), Some(Overlap::Annotation("k".into())))]
    fn two_sets_that_cannot_be_on_one_pod_are_found_either_way(
        #[case] one: Value,
        #[case] other: Value,
        #[case] expected: Option<Overlap>,
    ) {
        let [one, other] = [template(&one), template(&other)];
        assert_eq!(find(&one, &other), expected);
        assert_eq!(find(&other, &one), expected);
    }

    // SCS-78, SDF-28
    #[test]
    fn all_that_two_sets_cannot_both_do_is_found() {
        let spec = |path: &str| {
            json!({
                "containers": [{"name": "a"}, {"name": "b"}],
                "volumes": [{"name": "v", "hostPath": {"path": path}}],
                "patchPodMetadata": [{"patchPolicy": "Overwrite", "annotations": {"k": "1", "l": "1"}}],
            })
        };
        let [one, other] = [template(&spec("/a")), template(&spec("/b"))];
        let all: Vec<_> = all(&one, &other).collect();
        let container = |name: &str| Overlap::Container(name.into());
        let annotation = |key: &str| Overlap::Annotation(key.to_owned());
        let expected = [
            container("a"),
            container("b"),
            Overlap::Volume("v".to_owned()),
            annotation("k"),
            annotation("l"),
        ];
        assert_eq!(all, expected);
    }
}
