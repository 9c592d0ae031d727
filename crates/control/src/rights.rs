//! The rights that a feature needs: they follow from the kinds that it observes and the writes that it sends.

use std::borrow::Cow;

use crate::encode;
use crate::kind::Kind;
use crate::rules::Rules;
use leadsman_reconcile::{RightScope, WriteKind};

/// The verbs for observing a kind, and for following the schema of a CRD. Single objects are not
/// read by `get`.
const OBSERVE: [&str; 2] = ["list", "watch"];

/// A right on a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Right {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// `pods` or `pods/status`.
    pub resource: Cow<'static, str>,
    /// The name of the only object that it is about; all objects, if empty.
    pub name: Cow<'static, str>,
    /// `get`, `list`, …
    pub verb: &'static str,
}

impl Right {
    /// A right on the object of this name, or on all if the name is empty.
    pub fn new(
        group: &'static str,
        resource: &'static str,
        name: &'static str,
        verb: &'static str,
    ) -> Self {
        Self {
            group: group.into(),
            resource: resource.into(),
            name: name.into(),
            verb,
        }
    }
}

/// All rights that a feature needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureRights {
    /// The rights in all namespaces.
    pub cluster: Vec<Right>,
    /// The rights in the namespace that the manager runs in alone.
    pub own_namespace: Vec<Right>,
}

/// All rights that a feature needs.
pub fn rights_of_feature<R: Rules>() -> FeatureRights {
    let kinds = R::KINDS.iter().flat_map(rights_of_kind);
    let right =
        |kind: &WriteKind, verb| (kind.scope, Right::new(kind.group, kind.resource, "", verb));
    let writes = R::WRITES.iter().map(|kind| right(kind, kind.verb.right()));
    let reads = R::WRITES
        .iter()
        .filter(|kind| encode::is_read_back::<R>(kind))
        .map(|kind| right(kind, "get"));
    let mut rights = FeatureRights::default();
    for (scope, right) in kinds.chain(writes).chain(reads) {
        let known = match scope {
            RightScope::Cluster => &mut rights.cluster,
            RightScope::OwnNamespace => &mut rights.own_namespace,
        };
        // Several kinds of writes may need the same right.
        if !known.contains(&right) {
            known.push(right);
        }
    }
    rights
}

fn rights_of_kind<R: Rules>(kind: &Kind<R>) -> impl Iterator<Item = (RightScope, Right)> {
    let (resource, selection) = (kind.resource(), kind.selection);
    let objects = OBSERVE.map(|verb| {
        let right = Right {
            group: resource.group.clone(),
            resource: resource.plural.clone(),
            name: selection.only_name().unwrap_or_default().into(),
            verb,
        };
        (selection.right_scope(), right)
    });
    let crd = kind.crd_name().into_iter().flat_map(|crd| {
        OBSERVE.map(|verb| {
            let right = Right {
                group: "apiextensions.k8s.io".into(),
                resource: "customresourcedefinitions".into(),
                name: crd.clone().into(),
                verb,
            };
            (RightScope::Cluster, right)
        })
    });
    objects.into_iter().chain(crd)
}
