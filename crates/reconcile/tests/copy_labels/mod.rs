use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_reconcile::{
    Change, Class, Feature, Key, ObjectName, Plan, ResourceVersion, RightScope, Store, Stored,
    Watch, WriteKind, WriteVerb,
};
use serde_json::json;

/// The label that is copied.
pub const COLOUR: &str = "example.com/colour";
/// The annotation of a pod that names the `ConfigMap`.
pub const COLOUR_FROM: &str = "example.com/colour-from";

pub const POD_LABEL: WriteKind = WriteKind {
    label: "pod_label",
    group: "",
    version: "v1",
    resource: "pods",
    verb: WriteVerb::MergePatch,
    scope: RightScope::Cluster,
    class: 0,
};

pub struct CopyLabels;

/// What is kept of a pod or a `ConfigMap`.
#[derive(Debug, PartialEq)]
pub struct Coloured {
    name: ObjectName,
    uid: String,
    version: ResourceVersion,
    pub colour: Option<String>,
    pub from: Option<ObjectName>,
}

#[derive(Default)]
pub struct Colours {
    pub config_maps: Store<Coloured>,
    pub pods: Store<Coloured>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey(pub ObjectName);

impl Key for PodKey {
    fn namespace(&self) -> &str {
        &self.0.namespace
    }
}

impl Feature for CopyLabels {
    const NAME: &'static str = "copylabels";
    const WRITES: &'static [WriteKind] = &[POD_LABEL];
    const CLASSES: &'static [Class] = &[Class::new("labels")];
    type Key = PodKey;
    type World = Colours;
    type Memory = ();

    fn keys(&self, world: &Colours) -> Vec<PodKey> {
        world
            .pods
            .iter()
            .map(|(name, _)| PodKey((**name).clone()))
            .collect()
    }

    fn reconcile(
        &self,
        PodKey(name): &PodKey,
        world: &Colours,
        (): &mut (),
        plan: &mut Plan<'_, Self>,
    ) {
        let Some(pod) = world.pods.observed(name) else {
            return;
        };
        let Some(from) = &pod.from else {
            return;
        };
        let wanted = world
            .config_maps
            .observed(from)
            .and_then(|map| map.colour.as_ref());
        if pod.colour.as_ref() != wanted {
            let patch = json!({"metadata": {"labels": {COLOUR: wanted}}});
            plan.patch(&POD_LABEL, name.clone(), &patch);
        }
    }
}

impl Watch<Pod> for CopyLabels {
    type Stored = Coloured;

    fn store(world: &mut Colours) -> &mut Store<Coloured> {
        &mut world.pods
    }

    fn read(&self, pod: &Arc<Pod>) -> Arc<Coloured> {
        Arc::new(Coloured::of(&pod.metadata))
    }

    fn find_affected(
        &self,
        change: &Change<Coloured>,
        _: &Colours,
        affected: &mut dyn FnMut(PodKey),
    ) {
        affected(PodKey((*change.name).clone()));
    }
}

impl Watch<ConfigMap> for CopyLabels {
    type Stored = Coloured;

    fn store(world: &mut Colours) -> &mut Store<Coloured> {
        &mut world.config_maps
    }

    fn read(&self, map: &Arc<ConfigMap>) -> Arc<Coloured> {
        Arc::new(Coloured::of(&map.metadata))
    }

    fn find_affected(
        &self,
        change: &Change<Coloured>,
        world: &Colours,
        affected: &mut dyn FnMut(PodKey),
    ) {
        for pod in world.pods.find(&change.name.to_string()) {
            affected(PodKey(pod.name.clone()));
        }
    }
}

impl Coloured {
    fn of(metadata: &ObjectMeta) -> Self {
        let name = ObjectName::of(metadata);
        let from = metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(COLOUR_FROM));
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            colour: metadata
                .labels
                .as_ref()
                .and_then(|all| all.get(COLOUR).cloned()),
            from: from.map(|from| ObjectName {
                namespace: name.namespace.clone(),
                name: from.clone(),
            }),
            name,
        }
    }
}

impl Stored for Coloured {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        if let Some(from) = &self.from {
            found(&from.to_string());
        }
    }

    fn is_same(&self, earlier: &Self) -> bool {
        (&self.colour, &self.from) == (&earlier.colour, &earlier.from)
    }
}
