//! The revisions of the sets as `ControllerRevision`s, as they are stored, and what the history of a set is.

use std::sync::Arc;

use leadsman_api::slim::revision::ControllerRevision;
use leadsman_reconcile::Stored;
use serde_json::Value;

use crate::cluster::{ObjectName, ResourceVersion};
use crate::sidecarset::revision::{RevisionOwner, SET_LABEL, SetRevision};
use crate::sidecarset::set::CUSTOM_VERSION_LABEL;
use crate::workload::go_json::{FieldOrder, Form, GoValue};
use crate::workload::revision::{Newest, Revision, RevisionChange};

/// A revision as it is stored: its template is read where a new pod gets it.
pub struct StoredRevision {
    pub(super) object: Arc<ControllerRevision>,
    pub(super) revision: Revision,
    /// The set that owns it.
    pub(super) owner: Option<Arc<str>>,
}

/// The history of a set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct History {
    /// The newest revision; None for a set that is not acted on.
    pub(super) newest: Option<Newest>,
    /// Whether a revision of an earlier set has the name, which goes with its owner.
    pub(super) is_name_in_use: bool,
    /// The revision that new pods are pinned to, if there is one.
    pub(super) pinned: Option<Arc<SetRevision>>,
}

impl StoredRevision {
    pub(super) fn new(object: &Arc<ControllerRevision>) -> Self {
        let meta = &object.identity;
        let owners = meta.owner_references.iter().flatten();
        let owner = owners
            .filter(|owner| owner.kind == "SidecarSet" && owner.controller == Some(true))
            .map(|owner| Arc::from(owner.uid.as_str()))
            .next();
        Self {
            revision: Revision {
                name: meta.name.as_deref().unwrap_or_default().into(),
                number: object.revision,
                data: GoValue::read(&object.data, Form::Plain)
                    .to_text(FieldOrder::Sorted)
                    .into(),
            },
            owner,
            object: object.clone(),
        }
    }

    pub(super) fn revision_owner(&self) -> RevisionOwner {
        RevisionOwner {
            uid: self.owner.clone(),
            set: self.label(SET_LABEL).map(Arc::from),
            custom_version: self.label(CUSTOM_VERSION_LABEL).map(Arc::from),
        }
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        let labels = self.object.identity.labels.as_ref()?;
        labels.get(key).map(String::as_str)
    }

    pub(super) fn revision_name(&self) -> &Arc<str> {
        &self.revision.name
    }

    pub(super) fn data(&self) -> &Value {
        &self.object.data
    }
}

impl Stored for StoredRevision {
    fn name(&self) -> ObjectName {
        ObjectName::of(&self.object.identity)
    }

    fn uid(&self) -> &str {
        self.object.identity.uid.as_deref().unwrap_or_default()
    }

    fn version(&self) -> ResourceVersion {
        ResourceVersion::parse(self.object.identity.resource_version.as_deref())
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        if let Some(owner) = &self.owner {
            found(owner);
        }
    }

    // One that is in the way of a creation, and whose label somebody has taken away.
    fn is_hidden(&self) -> bool {
        self.label(SET_LABEL).is_none()
    }

    // The version of a revision counts, since its patches are of a version.
    fn is_same(&self, other: &Self) -> bool {
        self.object == other.object
    }
}

impl History {
    /// Whether the revision of the set as it is now is there.
    pub(super) fn has_newest(&self) -> bool {
        let newest = self.newest.as_ref();
        newest.is_some_and(|newest| !matches!(newest.change, RevisionChange::Create { .. }))
    }

    pub(super) fn newest_name(&self) -> &str {
        self.newest
            .as_ref()
            .map(|newest| &*newest.name)
            .unwrap_or_default()
    }
}
