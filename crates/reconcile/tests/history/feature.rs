//! A feature with a budget: the pods of a `ConfigMap` get its colour, and no pod is painted while another one dries.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leadsman_reconcile::{
    Change, Class, Feature, Key, ObjectName, Plan, ResourceVersion, RightScope, Store, Stored,
    Watch, WriteKind, WriteVerb,
};
use serde_json::json;

pub(crate) const PAINT: WriteKind = WriteKind {
    label: "paint",
    group: "",
    version: "v1",
    resource: "pods",
    verb: WriteVerb::MergePatch,
    scope: RightScope::Cluster,
    class: 0,
};

pub(crate) struct Painting;

/// A pod or a `ConfigMap`. A pod is dry when the label `dry` has its colour.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Painted {
    pub(crate) name: ObjectName,
    pub(crate) uid: String,
    pub(crate) version: ResourceVersion,
    pub(crate) colour: Option<String>,
    pub(crate) dry: Option<String>,
    pub(crate) from: Option<String>,
}

impl Painted {
    pub(crate) fn is_wet(&self) -> bool {
        self.colour != self.dry
    }

    fn of(metadata: &ObjectMeta) -> Self {
        let label = |key| {
            metadata
                .labels
                .as_ref()
                .and_then(|all| all.get(key).cloned())
        };
        Self {
            name: ObjectName::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            colour: label("colour"),
            dry: label("dry"),
            from: label("from"),
        }
    }
}

impl Stored for Painted {
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
            found(from);
        }
    }

    fn is_same(&self, earlier: &Self) -> bool {
        let Self {
            colour, dry, from, ..
        } = self;
        (colour, dry, from) == (&earlier.colour, &earlier.dry, &earlier.from)
    }
}

#[derive(Default)]
pub(crate) struct Shop {
    pub(crate) maps: Store<Painted>,
    pub(crate) pods: Store<Painted>,
}

/// A `ConfigMap`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Map(pub(crate) String);

impl Key for Map {
    fn namespace(&self) -> &'static str {
        "shop"
    }
}

impl Feature for Painting {
    const NAME: &'static str = "painting";
    const WRITES: &'static [WriteKind] = &[PAINT];
    const CLASSES: &'static [Class] = &[Class::new("paint")];
    type Key = Map;
    type World = Shop;
    type Memory = ();

    fn keys(&self, world: &Shop) -> Vec<Map> {
        let pods = world.pods.iter().filter_map(|(_, pod)| pod.from.clone());
        let mut keys: Vec<Map> = pods.map(Map).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    fn reconcile(&self, Map(map): &Map, world: &Shop, (): &mut (), plan: &mut Plan<'_, Self>) {
        let name = ObjectName {
            namespace: "shop".to_owned(),
            name: map.clone(),
        };
        let wanted = world
            .maps
            .observed(&name)
            .and_then(|map| map.colour.clone());
        let pods: Vec<_> = world.pods.find(map).collect();
        // One that was asked may be wet by now, whatever is known of it.
        let is_wet = |pod: &Painted| {
            let assumed = world.pods.assumed(&pod.name);
            world.pods.is_asked(&pod.name) || assumed.is_some_and(|pod| pod.is_wet())
        };
        for pod in pods.iter().filter(|pod| pod.colour != wanted) {
            let others = pods.iter().filter(|other| other.name != pod.name);
            // One that is wet or was asked already may be painted once more; another one has to wait for it.
            if others.into_iter().any(|other| is_wet(other)) {
                continue;
            }
            let patch = json!({"metadata": {"uid": pod.uid, "labels": {"colour": wanted}}});
            plan.patch(&PAINT, pod.name.clone(), &patch)
                .assuming_changed::<Pod>(move |pod| Painted {
                    colour: wanted.clone(),
                    ..pod.clone()
                });
            return;
        }
    }
}

impl Watch<Pod> for Painting {
    type Stored = Painted;

    fn store(world: &mut Shop) -> &mut Store<Painted> {
        &mut world.pods
    }

    fn read(&self, pod: &Arc<Pod>) -> Arc<Painted> {
        Arc::new(Painted::of(&pod.metadata))
    }

    fn find_affected(&self, change: &Change<Painted>, _: &Shop, affected: &mut dyn FnMut(Map)) {
        for pod in change.before.iter().chain(&change.now) {
            if let Some(from) = &pod.from {
                affected(Map(from.clone()));
            }
        }
    }
}

impl Watch<ConfigMap> for Painting {
    type Stored = Painted;

    fn store(world: &mut Shop) -> &mut Store<Painted> {
        &mut world.maps
    }

    fn read(&self, map: &Arc<ConfigMap>) -> Arc<Painted> {
        Arc::new(Painted::of(&map.metadata))
    }

    fn find_affected(&self, change: &Change<Painted>, _: &Shop, affected: &mut dyn FnMut(Map)) {
        affected(Map(change.name.name.clone()));
    }
}
