//! The systems on the kernel: each is one row, from which its gate, its rights, its policies, its CRDs and its part of the
//! manager follow.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use leadsman_api::GROUP;
use leadsman_control::{
    Control, FeatureRights, Reconciled, Right, WatchedKinds, rights_of_feature,
};
use leadsman_lease::Leadership;
use leadsman_process::watch;

use crate::args::ManagerArgs;

mod broadcast;
mod cloneset;
mod cron;

/// All systems, in the order in which they are added.
pub static SYSTEMS: &[System] = &[cron::SYSTEM, broadcast::SYSTEM, cloneset::SYSTEM];

/// A system that its gate switches on: a feature on the kernel, which has no webhook.
pub struct System {
    /// The name, which stands in the names of roles and policies and in logs.
    pub name: &'static str,
    /// The gate, which is off unless it is switched on.
    pub gate: &'static str,
    /// The description, for the help of the gates.
    pub about: &'static str,
    /// The CRDs.
    pub crds: fn() -> Vec<CustomResourceDefinition>,
    /// The same as text, as they are committed.
    pub crd_texts: &'static [&'static str],
    /// The kind of its own objects.
    pub kind: &'static str,
    /// The resource of its own objects, which people may read and write.
    pub resource: &'static str,
    /// The resources of which it creates objects, each one controlled by an object of its own: group and plural.
    pub children: &'static [(&'static str, &'static str)],
    /// Whether it changes pods.
    pub patches_pods: bool,
    /// The state in which the manager deletes objects of the system's own, as a condition in CEL on `oldObject`. None if it never does.
    pub own_deletion: Option<&'static str>,
    /// The annotations of objects of its own kind that the manager writes.
    pub own_annotations: &'static [&'static str],
    /// The rights that its feature needs.
    feature_rights: fn() -> FeatureRights,
    /// Adds its feature.
    pub(crate) add: fn(&mut Control, &ManagerArgs, watch::Receiver<Leadership>),
}

impl System {
    /// Adds a feature on the kernel that has no flags.
    fn add_feature<W: WatchedKinds<Feature: Default>>(
        control: &mut Control,
        _: &ManagerArgs,
        leadership: watch::Receiver<Leadership>,
    ) {
        control.add_feature_led_by(Reconciled::<W>::new(W::Feature::default()), leadership);
    }

    /// The rights of a feature on the kernel.
    fn rights_of_kinds<W: WatchedKinds>() -> FeatureRights {
        rights_of_feature::<Reconciled<W>>()
    }

    /// The rights that it needs.
    pub fn rights(&self) -> FeatureRights {
        let mut rights = (self.feature_rights)();
        // A created object blocks the deletion of its owner, which whoever may finalize the owner may say
        // (`OwnerReferencesPermissionEnforcement`, an admission plugin that OpenShift switches on).
        let finalizers = format!("{}/finalizers", self.resource);
        rights.cluster.push(Right {
            resource: finalizers.into(),
            ..Right::new(GROUP, "", "", "update")
        });
        rights
    }

    /// The resources of which it creates or deletes objects: group and plural.
    pub fn children_and_own(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let own = self.own_deletion.map(|_| (GROUP, self.resource));
        self.children.iter().copied().chain(own)
    }
}

/// The systems whose gates are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ActiveSystems(u32);

const _: () = assert!(SYSTEMS.len() <= 32);

impl ActiveSystems {
    /// The systems that are on, in the order of [`SYSTEMS`].
    pub fn iter(self) -> impl Iterator<Item = &'static System> {
        let numbered = SYSTEMS.iter().enumerate();
        let on = numbered.filter(move |(number, _)| self.0 & 1 << number != 0);
        on.map(|(_, system)| system)
    }

    /// Whether none is on.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Switches the system of a gate on or off, if there is one.
    pub(crate) fn set(&mut self, gate: &str, is_on: bool) {
        if let Some(number) = SYSTEMS.iter().position(|system| system.gate == gate) {
            self.0 = self.0 & !(1 << number) | u32::from(is_on) << number;
        }
    }
}
