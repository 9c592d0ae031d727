//! Two containers of a pod that take turns, as they are observed: which of them works, and whether the other waits.

use std::sync::Arc;

use super::annotations::{WORKING_CONTAINER, version_key, working_containers};
use super::container::{SetContainer, Upgrade, hot_names};
use crate::workload::pod::{ObservedContainer, ObservedPod};

/// The version of a container that waits.
pub const NO_VERSION: &str = "0";

/// Two containers of a pod that take turns.
#[derive(Clone, Debug)]
pub struct ObservedPair<'a> {
    /// The one that works, by the pod's annotation: it has the last image that was written, whether it runs or not.
    pub working: &'a ObservedContainer,
    /// The one that worked before.
    pub idle: &'a ObservedContainer,
    /// The image that does nothing.
    pub empty_image: &'a str,
    /// Whether the one that worked before was given the empty image, which ends a hot upgrade. Its version says so too,
    /// since the empty image of the set may have been edited.
    pub is_at_rest: bool,
}

impl<'a> ObservedPair<'a> {
    /// The containers of a sidecar in a pod; None if it has no two, or the pod lacks one of them.
    pub fn find(pod: &'a ObservedPod, sidecar: &'a SetContainer) -> Option<Self> {
        let Upgrade::Hot { empty_image } = &sidecar.upgrade else {
            return None;
        };
        let [working, idle] = names_by_turn(pod, &sidecar.name);
        let idle = pod.container(&idle)?;
        let has_version = pod.annotation(&version_key(&idle.name)) != NO_VERSION;
        Some(Self {
            working: pod.container(&working)?,
            idle,
            empty_image,
            is_at_rest: idle.image == *empty_image || !has_version,
        })
    }

    /// Whether the one that works has taken over by what the runtime reports, so that the other is still to be given the
    /// empty image. Until then no other upgrade of the pair begins: it would stop the one that serves.
    pub fn awaits_reset(&self, is_consistent: impl FnOnce(&ObservedContainer) -> bool) -> bool {
        !self.is_at_rest
            && *self.working.image != *self.empty_image
            && self.working.is_ready()
            && is_consistent(self.working)
    }

    /// The container that gets a new image, and the other one: the one that waits; or, while a hot upgrade has not ended,
    /// the one whose image has failed.
    pub fn by_turn(&self) -> [&'a ObservedContainer; 2] {
        if self.is_at_rest && *self.working.image != *self.empty_image {
            [self.idle, self.working]
        } else {
            [self.working, self.idle]
        }
    }
}

/// The one that works, and the other.
fn names_by_turn(pod: &ObservedPod, name: &str) -> [Arc<str>; 2] {
    let working = working_containers(pod.annotation(WORKING_CONTAINER));
    let [first, second] = hot_names(name);
    // A pod is injected with the first one working; only an upgrade writes the name of the other.
    if working
        .get(name)
        .is_some_and(|working| **working == *second)
    {
        [second, first]
    } else {
        [first, second]
    }
}
