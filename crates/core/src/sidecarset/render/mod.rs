//! The injection of sets into a pod as it is created: a function of the pod and of the sets that select it, and nothing else.
//! The pod is not changed here, nor read into a type: what is added is returned, so that fields of later versions pass through.
//!
//! A pod is never refused. A set that cannot be injected is left out as a whole, and the reason is returned; so is
//! whatever else a set says that does not take effect in this pod.

mod additions;
mod choice;
mod environment;
mod fit;
mod hot_pair;
mod pod;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use leadsman_api::limits;

pub use self::additions::{Additions, ListAdditions};
use self::choice::choose;
pub use self::fit::Misfit;
use self::fit::{adds_to, too_much};
pub use self::pod::{PodView, is_injected};
use super::annotations::{
    HASH, HASH_WITHOUT_IMAGE, HashEntries, INJECTED_LIST, MISSING_VARIABLES, WORKING_CONTAINER,
    is_ours, write_injected_sets, write_missing_variables, write_working_containers,
};
use super::container::{Position, SetContainer, Upgrade};
use super::host_ports::HostPort;
use super::metadata::{AllowedKeys, MetadataPatch, NotMerged, bytes_of};
use super::overlap::Overlap;
use super::resources::ResourceRemark;
use super::set::{PinnedRevision, SidecarSet};
use super::template::{Hashes, Template};
use crate::workload::JsonObject;
use crate::workload::core_types::VOLUME;
use crate::workload::go_json::GoValue;
use crate::workload::object::text;

/// A set that selects a pod, in the revision that the pod is to get.
#[derive(Clone, Debug)]
pub struct Injection<'a> {
    /// The set.
    pub set: &'a SidecarSet,
    /// The template that the pod gets: that of the set as it is now, or of the revision that new pods are pinned to.
    pub template: &'a Template,
    /// The template's hashes.
    pub hashes: &'a Hashes,
    /// The name of its revision.
    pub revision: &'a str,
    /// The newest revision, to be recorded: a pin may give the pod another one.
    pub newest: Option<&'a str>,
    /// The annotations that the administrator lets the set patch.
    pub allowed_keys: AllowedKeys<'a>,
    /// The revision that new pods are pinned to, if the set has none such: the pod gets the present one.
    pub missing_pin: Option<&'a PinnedRevision>,
}

/// The order in which containers of several sets stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerOrder {
    /// Sorted by the name of the set, then as declared.
    #[default]
    BySet,
    /// Sorted by the name of the container.
    ByName,
}

/// How sets are injected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenderOptions {
    /// The order of containers; `OpenKruise` has a gate for it.
    pub containers: ContainerOrder,
    /// The order of init containers; `OpenKruise` sorts them by name.
    pub init_containers: ContainerOrder,
}

/// The result for a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Injected {
    /// The sets that it gets, by name.
    pub sets: Vec<Arc<str>>,
    /// The additions to the pod.
    pub additions: Additions,
    /// Remarks on what does not take effect, each with its set.
    pub remarks: Vec<(Arc<str>, Remark)>,
}

/// A part of a set that does not take effect in a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Remark {
    /// The whole set.
    #[error("is not injected: the pod has a container {0:?} of its own")]
    OwnContainer(Arc<str>),
    /// The whole set.
    #[error("is not injected: SidecarSet {older:?}, which is older, has {overlap} too")]
    Overlap {
        /// The set that is injected.
        older: Arc<str>,
        /// The thing that both claim.
        overlap: Overlap,
    },
    /// The whole set.
    #[error("is not injected: host port {0} is taken by another container of the pod")]
    HostPort(HostPort),
    /// The whole set.
    #[error(
        "is not injected: the pod is on the host's network, where host port {0} cannot be another than the container's"
    )]
    HostNetwork(HostPort),
    /// The whole set.
    #[error(
        "is not injected: it uses volume {0:?} as a device, and the pod has another one of that name"
    )]
    OwnDevice(String),
    /// The whole set.
    #[error("is not injected: the API server would refuse the pod with it, as {0}")]
    Misfit(Misfit),
    /// A volume.
    #[error("mounts the pod's own volume {0:?}, which differs from that of the set")]
    OwnVolume(String),
    /// A variable that is transferred.
    #[error("has no variable {variable:?} from container {container:?}: there is none")]
    NoVariable {
        /// The source; empty if the pod does not name it.
        container: String,
        /// The variable.
        variable: String,
    },
    /// An annotation.
    #[error(
        "does not patch annotation {0:?}: the whitelist SidecarSet_PatchPodMetadata_WhiteList does not allow it"
    )]
    KeyNotAllowed(String),
    /// An annotation.
    #[error("{0}")]
    NotMerged(NotMerged),
    /// Resources that are computed from those of the pod.
    #[error("gives container {container:?} {remark}")]
    Resources {
        /// The sidecar.
        container: Arc<str>,
        /// The remark on what it gets instead.
        remark: ResourceRemark,
    },
    /// The pin.
    #[error("is injected as it is now: it has no revision with {0}, which new pods are pinned to")]
    NoPinnedRevision(PinnedRevision),
}

impl Remark {
    /// Whether the whole set is left out.
    pub fn leaves_out_the_set(&self) -> bool {
        match self {
            Self::OwnContainer(_)
            | Self::Overlap { .. }
            | Self::HostPort(_)
            | Self::HostNetwork(_)
            | Self::OwnDevice(_)
            | Self::Misfit(_) => true,
            Self::OwnVolume(_)
            | Self::NoVariable { .. }
            | Self::KeyNotAllowed(_)
            | Self::NotMerged(_)
            | Self::Resources { .. }
            | Self::NoPinnedRevision(_) => false,
        }
    }
}

/// Injects sets into a pod that is being created. `now` becomes the time of the injection.
pub fn inject_sets(
    pod: &JsonObject,
    injections: &[Injection<'_>],
    options: RenderOptions,
    now: Timestamp,
) -> Injected {
    let pod = PodView::new(pod);
    let mut remarks = Vec::new();
    let mut chosen = choose(&pod, injections, &mut remarks);
    loop {
        let (injected, annotations) = render(&pod, &chosen, options, now);
        let too_much = too_much(&pod, &annotations, &injected.additions);
        // The youngest of those goes that have a part in it.
        let youngest = too_much.and_then(|misfit| {
            let sets = chosen
                .iter()
                .filter(|injection| adds_to(&misfit, injection));
            let youngest = sets.max_by_key(|injection| injection.set.precedence())?;
            Some((youngest.set.name.clone(), misfit))
        });
        let Some((name, misfit)) = youngest else {
            remarks.extend(injected.remarks);
            return Injected {
                remarks,
                ..injected
            };
        };
        // Each round has one set less, so the loop ends.
        chosen.retain(|injection| injection.set.name != name);
        remarks.push((name, Remark::Misfit(misfit)));
    }
}

/// Renders the sets that a pod gets. Returns its annotations beside.
fn render(
    pod: &PodView<'_>,
    injections: &[&Injection<'_>],
    options: RenderOptions,
    now: Timestamp,
) -> (Injected, BTreeMap<String, String>) {
    let sets = injections.iter();
    let mut injected = Injected {
        sets: sets.map(|injection| injection.set.name.clone()).collect(),
        ..Injected::default()
    };
    let mut containers = Vec::new();
    let mut init_containers = Vec::new();
    let mut working = BTreeMap::new();
    let mut hot_annotations = BTreeMap::new();
    for injection in injections {
        let template = injection.template;
        let missing_pin = injection.missing_pin.cloned();
        let mut remarks = Vec::from_iter(missing_pin.map(Remark::NoPinnedRevision));
        for sidecar in &template.init_containers {
            let container = render_container(sidecar, pod, &mut remarks);
            init_containers.push((sidecar.position, container));
        }
        for sidecar in &template.containers {
            let container = render_container(sidecar, pod, &mut remarks);
            match &sidecar.upgrade {
                Upgrade::Cold => containers.push((sidecar.position, container)),
                Upgrade::Hot { empty_image } => {
                    let pair = hot_pair::render(&sidecar.name, &container, empty_image);
                    working.insert(sidecar.name.to_string(), pair.working.to_string());
                    hot_annotations.extend(pair.annotations);
                    let pair = pair.containers.into_iter();
                    containers.extend(pair.map(|container| (sidecar.position, container)));
                }
            }
        }
        add_volumes(template, pod, &mut injected.additions, &mut remarks);
        add_secrets(template, pod, &mut injected.additions);
        let name = &injection.set.name;
        injected
            .remarks
            .extend(remarks.into_iter().map(|remark| (name.clone(), remark)));
    }
    injected.additions.containers =
        place_containers(containers, &pod.containers, options.containers);
    injected.additions.init_containers = place_containers(
        init_containers,
        &pod.init_containers,
        options.init_containers,
    );
    let mut ours = injection_records(injections, now);
    ours.extend(hot_annotations);
    if !working.is_empty() {
        ours.insert(
            WORKING_CONTAINER.to_owned(),
            write_working_containers(&working),
        );
    }
    ours.extend(record_missing(pod, &ours, &injected.remarks));
    let annotations = changed_annotations(pod, injections, ours, &mut injected.remarks);
    injected.additions.annotations = changes(&pod.annotations, &annotations);
    (injected, annotations)
}

/// Whether two volumes of one name differ.
fn is_another_volume(one: &JsonObject, other: &JsonObject) -> bool {
    let value = |volume| GoValue::structure(volume, &[VOLUME]);
    value(one) != value(other)
}

/// A container with what it gets from the pod.
fn render_container(
    sidecar: &SetContainer,
    pod: &PodView<'_>,
    remarks: &mut Vec<Remark>,
) -> JsonObject {
    let mut container = sidecar.container();
    if let Some(policy) = &sidecar.resources {
        let mut computed = policy.compute(pod.own_running_containers(), pod.resources);
        let found = std::mem::take(&mut computed.remarks).into_iter();
        remarks.extend(found.map(|remark| Remark::Resources {
            container: sidecar.name.clone(),
            remark,
        }));
        computed.write(&mut container);
    }
    let mut variables = environment::transferred(sidecar, pod, remarks);
    let shared = shared::find(sidecar, &container, pod);
    variables.extend(shared.variables);
    shared::add(&mut container, "volumeMounts", shared.mounts);
    shared::add(&mut container, "volumeDevices", shared.devices);
    environment::complete(&mut container, variables);
    container
}

/// Adds the volumes that the containers of a set use. One that the pod has stays.
fn add_volumes(
    template: &Template,
    pod: &PodView<'_>,
    additions: &mut Additions,
    remarks: &mut Vec<Remark>,
) {
    let mut seen = BTreeSet::new();
    for name in template.all().flat_map(SetContainer::volumes) {
        let Some(volume) = template.volume(name).filter(|_| seen.insert(name)) else {
            continue;
        };
        match pod.volume(name) {
            Some(own) if is_another_volume(own, volume) => {
                remarks.push(Remark::OwnVolume(name.to_owned()));
            }
            Some(_) => {}
            // The first of two sets that have the same volume adds it.
            None if additions
                .volumes
                .iter()
                .any(|added| text(added, "name") == Some(name)) => {}
            None => additions.volumes.push(volume.clone()),
        }
    }
}

fn add_secrets(template: &Template, pod: &PodView<'_>, additions: &mut Additions) {
    for secret in &template.secrets {
        let name = text(secret, "name");
        let known = pod.secrets.iter().copied().chain(&additions.secrets);
        let is_known = known.into_iter().any(|known| text(known, "name") == name);
        if name.is_some() && !is_known {
            additions.secrets.push(secret.clone());
        }
    }
}

/// Places containers among those of the pod. One that the pod has is replaced where it stands: the pod was made of one
/// that had been injected.
fn place_containers(
    mut containers: Vec<(Position, JsonObject)>,
    present: &[&JsonObject],
    order: ContainerOrder,
) -> ListAdditions {
    if order == ContainerOrder::ByName {
        containers.sort_by(|(_, a), (_, b)| text(a, "name").cmp(&text(b, "name")));
    }
    let mut additions = ListAdditions::default();
    for (position, container) in containers {
        let name = text(&container, "name");
        let place = present
            .iter()
            .position(|present| text(present, "name") == name);
        match (place, position) {
            // The order of the pod's containers stays, as with `mergeSidecarContainers` of
            // `OpenKruise`.
            (Some(place), _) => additions.replaced.push((place, container)),
            (None, Position::Before) => additions.before.push(container),
            (None, Position::After) => additions.after.push(container),
        }
    }
    additions
}

/// The annotations that record the injection. Entries of other sets are not kept: the pod was made of one that they had
/// been injected into.
fn injection_records(injections: &[&Injection<'_>], now: Timestamp) -> BTreeMap<String, String> {
    let mut hashes = HashEntries::default();
    let mut without_image = HashEntries::default();
    for injection in injections {
        let name = &injection.set.name;
        let sidecars = injection.template.sidecar_names();
        let Hashes {
            hash,
            without_image: other,
        } = injection.hashes;
        hashes.set(name, hash, &sidecars, Some(injection.revision), now);
        if let Some(newest) = injection.newest {
            hashes.set_newest(name, newest);
        }
        without_image.set(name, other, &sidecars, None, now);
    }
    if injections.is_empty() {
        return BTreeMap::new();
    }
    let sets = injections.iter().map(|injection| &*injection.set.name);
    BTreeMap::from([
        (HASH.to_owned(), hashes.write()),
        (HASH_WITHOUT_IMAGE.to_owned(), without_image.write()),
        (INJECTED_LIST.to_owned(), write_injected_sets(sets)),
    ])
}

/// The annotation with the variables that sets transfer and that are not there: nobody but the webhook sees the pod without
/// its sidecars. It is left out where the pod would have more annotations with it than it can: no set is left out for it.
fn record_missing(
    pod: &PodView<'_>,
    ours: &BTreeMap<String, String>,
    remarks: &[(Arc<str>, Remark)],
) -> Option<(String, String)> {
    let mut missing: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (set, remark) in remarks {
        if let Remark::NoVariable {
            container,
            variable,
        } = remark
        {
            let of_set = missing.entry(set).or_default();
            of_set.insert(format!("{container}/{variable}"));
        }
    }
    let text = write_missing_variables(&missing);
    let bytes = bytes_of(&pod.annotations) + bytes_of(ours) + MISSING_VARIABLES.len() + text.len();
    let has_room = bytes <= limits::ANNOTATIONS_BYTES;
    (!missing.is_empty() && has_room).then(|| (MISSING_VARIABLES.to_owned(), text))
}

/// The annotations of the pod: its own, those that the sets patch, then ours.
fn changed_annotations(
    pod: &PodView<'_>,
    injections: &[&Injection<'_>],
    ours: BTreeMap<String, String>,
    remarks: &mut Vec<(Arc<str>, Remark)>,
) -> BTreeMap<String, String> {
    let mut annotations = pod.annotations.clone();
    // The pod may have been copied from an injected one, whose records are not about it.
    annotations.retain(|key, _| !is_ours(key));
    // Ours count too: the API server refuses a pod whose annotations take more in all (`ValidateAnnotationsSize`,
    // k8s.io/apimachinery/pkg/api/validation/objectmeta.go).
    let most_bytes = limits::ANNOTATIONS_BYTES.saturating_sub(bytes_of(&ours));
    for injection in injections {
        for patch in &injection.template.patches {
            let (patch, refused) = restrict_to_allowed(patch, &injection.allowed_keys);
            let failures = patch.apply(&mut annotations, most_bytes).into_iter();
            let refused = refused.into_iter().map(Remark::KeyNotAllowed);
            let found = refused.chain(failures.map(Remark::NotMerged));
            let name = &injection.set.name;
            remarks.extend(found.map(|remark| (name.clone(), remark)));
        }
    }
    annotations.extend(ours);
    annotations
}

/// The annotations that change; None for those that go.
fn changes(
    present: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let removed = present.keys().filter(|key| !wanted.contains_key(*key));
    let mut changes: BTreeMap<_, _> = removed.map(|key| (key.clone(), None)).collect();
    for (key, value) in wanted {
        if present.get(key) != Some(value) {
            changes.insert(key.clone(), Some(value.clone()));
        }
    }
    changes
}

/// A patch without the keys that the administrator does not allow, and these keys.
fn restrict_to_allowed(
    patch: &MetadataPatch,
    allowed: &AllowedKeys<'_>,
) -> (MetadataPatch, Vec<String>) {
    let mut patch = patch.clone();
    let keys = patch.annotations.keys();
    let refused: Vec<_> = keys
        .filter(|key| is_ours(key) || !allowed.contains(key))
        .cloned()
        .collect();
    patch.annotations.retain(|key, _| !refused.contains(key));
    (patch, refused)
}
