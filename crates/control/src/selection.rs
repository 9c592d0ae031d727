//! The objects of a kind that a feature observes, and so the namespaces in which it needs rights.

use std::fmt::Display;

use leadsman_process::list::ListTarget;
use leadsman_reconcile::RightScope;

use crate::resource::Watchable;

/// The objects of a kind that are observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Selection {
    /// All of the cluster.
    All,
    /// Objects of the manager's namespace that have a label of this key.
    Labelled(&'static str),
    /// The one of the manager's namespace that has this name.
    Named(&'static str),
}

impl Selection {
    pub(crate) fn right_scope(self) -> RightScope {
        match self {
            Self::All => RightScope::Cluster,
            Self::Labelled(_) | Self::Named(_) => RightScope::OwnNamespace,
        }
    }

    /// The only object, if only one is observed.
    pub(crate) fn only_name(self) -> Option<&'static str> {
        match self {
            Self::Named(name) => Some(name),
            Self::All | Self::Labelled(_) => None,
        }
    }

    /// The list and watch of the selected objects.
    pub(crate) fn list_target<K: Watchable>(self, own_namespace: &str) -> ListTarget {
        let own = || ListTarget::in_namespace::<K>(own_namespace);
        match self {
            Self::All => ListTarget::all_of::<K>(),
            Self::Labelled(key) => own().with_label_selector(key.to_owned()),
            Self::Named(name) => own().only_named(name),
        }
    }

    /// The resource in messages: "cannot list configmaps/colours in namespace leadsman-system".
    pub(crate) fn describe_resource(self, resource: impl Display, own_namespace: &str) -> String {
        match self {
            Self::All => resource.to_string(),
            Self::Labelled(_) => format!("{resource} in namespace {own_namespace}"),
            Self::Named(name) => format!("{resource}/{name} in namespace {own_namespace}"),
        }
    }
}
