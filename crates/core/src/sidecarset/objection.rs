//! The objections that keep a valid set from doing all that it says: other sets, its revisions, and what the administrator
//! allows. The index tells them in the set's status, and the review of a set that is written refuses the set.

use std::fmt;
use std::sync::Arc;

use leadsman_api::SidecarSetSpec;
use leadsman_api::sidecar_set::PassedOn;

use super::container::hot_names;
use super::host_ports::host_ports;
use super::metadata::{AllowedKeys, CONFIGURATION, MetadataPatch};
use super::overlap::{self, Overlap};
use super::revision::RevisionOwner;
use super::set::{PinnedRevision, SidecarSet};
use crate::cluster::Invalid;
use crate::workload::object::text;

/// A reason why a valid set cannot do all that it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Objection {
    /// Another set may be on the same pods, and both cannot be.
    Conflict {
        /// The other set.
        other: Arc<str>,
        /// Whether the other one is older, and so wins.
        is_older: bool,
        /// The thing that both claim.
        overlap: Overlap,
    },
    /// The pinned revision does not exist.
    RevisionMissing(PinnedRevision),
    /// The pinned revision is another set's.
    RevisionOfAnother {
        /// The revision.
        revision: Arc<str>,
        /// The set, if its revision names one.
        set: Option<Arc<str>>,
    },
    /// The administrator does not allow an annotation.
    KeyNotAllowed {
        /// The annotation's key.
        key: String,
        /// The namespace of the list.
        namespace: Arc<str>,
        /// The error in the list, if it has one.
        list_error: Option<String>,
    },
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SEPARATE: &str =
            "rename what both have, or change a selector so that no pod has both";
        match self {
            Self::Conflict {
                other,
                is_older: true,
                overlap,
            } => write!(
                f,
                "SidecarSet {other} is older and has {overlap} too: pods that both select get {other} and not this one; \
                 {SEPARATE}"
            ),
            Self::Conflict { other, overlap, .. } => write!(
                f,
                "SidecarSet {other} has {overlap} too: pods that both select get this one, which is older, and no longer \
                 {other}; {SEPARATE}"
            ),
            Self::RevisionMissing(revision) => {
                let which = match revision {
                    PinnedRevision::Name(name) => format!("revision {name:?}"),
                    PinnedRevision::CustomVersion(version) => format!("custom version {version:?}"),
                };
                write!(
                    f,
                    "injectionStrategy.revision pins new pods to {which}, which this set does not have: they get the present \
                     revision; correct the pin or remove it"
                )
            }
            Self::RevisionOfAnother { revision, set } => {
                let named = set.as_ref().map(|set| format!(" SidecarSet {set}"));
                let owner = named.as_deref().unwrap_or(" something else");
                write!(
                    f,
                    "injectionStrategy.revision pins new pods to revision {revision:?}, which belongs to{owner}: they get the \
                     present revision; correct the pin or remove it"
                )
            }
            Self::KeyNotAllowed {
                key,
                namespace,
                list_error,
            } => {
                write!(
                    f,
                    "annotation {key:?} of patchPodMetadata is left out: ConfigMap {namespace}/{CONFIGURATION} does not allow \
                     it; add a rule there, or take the annotation out of the set"
                )?;
                match list_error {
                    Some(error) => write!(f, "; a rule in there is wrong: {error}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl Objection {
    /// The objection with the field of the set that it is about.
    pub fn in_field(&self, spec: &SidecarSetSpec) -> Invalid {
        Invalid {
            path: format!("spec.{}", self.field(spec)),
            message: self.to_string(),
        }
    }

    fn field(&self, spec: &SidecarSetSpec) -> String {
        match self {
            Self::Conflict { overlap, .. } => match overlap {
                Overlap::Container(name) => container(spec, name),
                Overlap::Volume(name) => match place(&spec.volumes, |own| own == name) {
                    Some(index) => format!("volumes[{index}]"),
                    None => "volumes".to_owned(),
                },
                Overlap::Annotation(key) => annotation(spec, key),
                Overlap::HostPort(port) => {
                    let takes = |container| host_ports(container, false).any(|own| own == *port);
                    match spec.containers.iter().position(takes) {
                        Some(index) => format!("containers[{index}].ports"),
                        None => "containers".to_owned(),
                    }
                }
            },
            Self::RevisionMissing(PinnedRevision::CustomVersion(_)) => {
                "injectionStrategy.revision.customVersion".to_owned()
            }
            Self::RevisionMissing(PinnedRevision::Name(_)) | Self::RevisionOfAnother { .. } => {
                "injectionStrategy.revision.revisionName".to_owned()
            }
            Self::KeyNotAllowed { key, .. } => annotation(spec, key),
        }
    }
}

fn place(list: &[PassedOn], is_it: impl Fn(&str) -> bool) -> Option<usize> {
    let mut names = list.iter().map(|item| text(item, "name"));
    names.position(|name| name.is_some_and(&is_it))
}

/// The name of a container in a pod is that of the set's container, or one of the two of a hot upgrade.
fn container(spec: &SidecarSetSpec, name: &str) -> String {
    let lists = [
        ("containers", &spec.containers),
        ("initContainers", &spec.init_containers),
    ];
    let find = |is_it: &dyn Fn(&str) -> bool| {
        let mut lists = lists.iter();
        lists.find_map(|(field, list)| {
            let index = place(list, is_it)?;
            Some(format!("{field}[{index}].name"))
        })
    };
    let is_one_of_two = |own: &str| hot_names(own).iter().any(|hot| **hot == *name);
    let found = find(&|own| own == name).or_else(|| find(&is_one_of_two));
    found.unwrap_or_else(|| "containers".to_owned())
}

fn annotation(spec: &SidecarSetSpec, key: &str) -> String {
    let mut patches = spec.patch_pod_metadata.iter();
    match patches.position(|patch| patch.annotations.contains_key(key)) {
        Some(index) => format!("patchPodMetadata[{index}].annotations[{key}]"),
        None => "patchPodMetadata".to_owned(),
    }
}

/// All conflicts of a set with another one. None if no pod can be selected by both.
pub fn conflicts<'a>(
    set: &'a SidecarSet,
    other: &'a SidecarSet,
) -> impl Iterator<Item = Objection> + 'a {
    let overlaps = (!set.is_disjoint(other)).then(|| overlap::all(&set.template, &other.template));
    overlaps
        .into_iter()
        .flatten()
        .map(|overlap| conflict(set, other, overlap))
}

/// The conflict of a set with another one about this.
pub fn conflict(set: &SidecarSet, other: &SidecarSet, overlap: Overlap) -> Objection {
    Objection::Conflict {
        other: other.name.clone(),
        is_older: other.precedence() < set.precedence(),
        overlap,
    }
}

/// The objection to a pin to a revision that a set does not have. `owner` gives the owner of a revision by its name.
pub fn unknown_pin(
    pinned: &PinnedRevision,
    owner: impl FnOnce(&str) -> Option<RevisionOwner>,
) -> Objection {
    match pinned {
        PinnedRevision::Name(name) => match owner(name) {
            Some(RevisionOwner { set, .. }) => Objection::RevisionOfAnother {
                revision: name.clone(),
                set,
            },
            None => Objection::RevisionMissing(pinned.clone()),
        },
        PinnedRevision::CustomVersion(_) => Objection::RevisionMissing(pinned.clone()),
    }
}

/// The annotations of a set that the administrator does not allow. `list` is where the list is, and what is wrong with it.
pub fn forbidden_keys<'a>(
    set: &'a SidecarSet,
    allowed: AllowedKeys<'a>,
    (namespace, list_error): (&'a str, Option<&'a Invalid>),
) -> impl Iterator<Item = Objection> + 'a {
    let keys = set.template.patches.iter().flat_map(MetadataPatch::keys);
    let forbidden = keys.filter(move |key| !allowed.contains(key));
    forbidden.map(move |key| Objection::KeyNotAllowed {
        key: key.to_owned(),
        namespace: namespace.into(),
        list_error: list_error.map(Invalid::to_string),
    })
}
