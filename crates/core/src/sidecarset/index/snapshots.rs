//! What the webhooks answer by, from what is observed: also while this process does not write.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Index;
use super::sets::SetEntry;
use crate::cluster::ResourceVersion;
use crate::sidecarset::event::WatchedKind;
use crate::sidecarset::revision::RevisionOwners;
use crate::sidecarset::selection::SetHistory;
use crate::sidecarset::set::{PinPolicy, SidecarSet};
use crate::sidecarset::snapshot::{RefusingSet, Snapshot, SnapshotSet, SnapshotVersion};
use crate::workload::amount::Amount;

/// The kinds that an injection depends on.
const KINDS: [WatchedKind; 4] = [
    WatchedKind::Set,
    WatchedKind::Namespace,
    WatchedKind::Revision,
    WatchedKind::Configuration,
];

/// What has changed of a snapshot since one was taken.
#[derive(Debug, Default)]
pub(super) struct SnapshotChanges {
    /// The kinds that have been listed.
    pub(super) listed: BTreeSet<WatchedKind>,
    /// Whether anything has.
    pub(super) any: bool,
    /// Whether a set has, or its revisions.
    pub(super) sets: bool,
    /// Whether a revision has.
    pub(super) revisions: bool,
    /// The sets of the last one.
    last: Arc<Vec<SnapshotSet>>,
    /// Those of the last one that are invalid and refuse their pods.
    last_refusing: Arc<Vec<RefusingSet>>,
    /// Whose the revisions were in the last one.
    last_owners: Arc<RevisionOwners>,
}

impl Index {
    /// What new pods are injected by, if it has changed since it was last taken. None before all of it is known.
    pub fn take_changed_snapshot(&mut self) -> Option<Arc<Snapshot>> {
        let version = self.snapshot_version();
        let changes = &mut self.changes;
        // By a part of the sets, or of what they depend on, pods would get less than they should.
        if !changes.any || !KINDS.iter().all(|kind| changes.listed.contains(kind)) {
            return None;
        }
        changes.any = false;
        // Most changes are of namespaces, or of versions alone, and share the sets of the snapshot
        // before.
        if std::mem::take(&mut changes.sets) {
            let whitelist = self.whitelist_since;
            let sets = self
                .sets
                .iter()
                .filter_map(|(_, entry)| snapshot_set(entry, whitelist));
            changes.last = Arc::new(sets.collect());
            let refusing = self
                .sets
                .iter()
                .filter_map(|(_, entry)| refusing_set(entry, whitelist));
            changes.last_refusing = Arc::new(refusing.collect());
        }
        if std::mem::take(&mut changes.revisions) {
            changes.last_owners = Arc::new(self.revisions.revision_owners());
        }
        Some(Arc::new(Snapshot {
            version,
            sets: changes.last.clone(),
            refusing: changes.last_refusing.clone(),
            namespaces: self.namespaces.clone(),
            whitelist: self.whitelist.clone(),
            whitelist_errors: self.whitelist_errors.clone(),
            allows_unlisted_metadata: self.config.allows_unlisted_metadata,
            revisions: changes.last_owners.clone(),
            own_namespace: self.config.namespace.as_str().into(),
            options: self.config.render,
            standing_rule: self.config.standing_rule,
        }))
    }
}

impl Index {
    fn snapshot_version(&self) -> SnapshotVersion {
        SnapshotVersion {
            sets: self.watches.known_until(WatchedKind::Set),
            revisions: self.watches.known_until(WatchedKind::Revision),
            whitelist: self.watches.known_until(WatchedKind::Configuration),
        }
    }
}

/// Whether the version of a snapshot depends on a kind.
pub(super) fn has_version_of(kind: WatchedKind) -> bool {
    matches!(
        kind,
        WatchedKind::Set | WatchedKind::Revision | WatchedKind::Configuration
    )
}

fn snapshot_set(entry: &SetEntry, whitelist: ResourceVersion) -> Option<SnapshotSet> {
    let set = entry.active_set()?;
    // A new pod gets the present revision or the pinned one; the others are of no use to an
    // injection.
    let history = SetHistory {
        revisions: entry
            .history
            .pinned
            .as_deref()
            .cloned()
            .into_iter()
            .collect(),
        newest: entry.history.newest_name().into(),
        matched: matched_pods(entry),
    };
    Some(SnapshotSet {
        set: set.clone(),
        history: history.into(),
        needs: entry.required_snapshot(whitelist),
    })
}

fn refusing_set(entry: &SetEntry, whitelist: ResourceVersion) -> Option<RefusingSet> {
    let errors = entry.parsed.as_ref().err()?;
    let is_deleted = entry.wire.metadata.deletion_timestamp.is_some();
    let set = SidecarSet::read_refusing(&entry.wire).filter(|_| !is_deleted)?;
    Some(RefusingSet {
        set: set.into(),
        errors: errors.clone(),
        needs: entry.required_snapshot(whitelist),
    })
}

/// How many pods a set has, by its status.
pub(super) fn matched_pods(entry: &SetEntry) -> usize {
    let matched = entry.status().map(|status| status.matched_pods);
    usize::try_from(matched.unwrap_or_default()).unwrap_or_default()
}

/// Whether new pods depend on how many pods a set has.
pub(super) fn depends_on_count(set: &SidecarSet) -> bool {
    let is_partial = set
        .pin
        .as_ref()
        .is_some_and(|pin| pin.policy == PinPolicy::Partial);
    is_partial && matches!(set.update.partition, Amount::Number(1..))
}
