//! How many pods of a set are created, deleted and updated: sums over its pods.

/// Pods of one group of revisions: those of the present template, or the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PodCounts {
    /// Neither terminating nor ended, and not held by a hook before their deletion.
    pub(super) active: usize,
    /// Active pods that are named to be deleted.
    pub(super) specified: usize,
    /// Named pods that are not available.
    pub(super) specified_unavailable: usize,
    /// Other active pods that are not available.
    pub(super) unavailable: usize,
    /// Held by a hook before their deletion.
    pub(super) held: usize,
}

/// The numbers that a set asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Targets {
    pub(super) replicas: usize,
    /// How many pods stay as they are.
    pub(super) partition: usize,
    /// How many may be unavailable.
    pub(super) unavailable: usize,
    /// How many there may be beyond the replicas.
    pub(super) surge: usize,
    /// How many may be unavailable while others are created.
    pub(super) unavailable_to_scale: Option<usize>,
    /// Whether others are created beside held ones.
    pub(super) excludes_held: bool,
    /// Pods that are there and about to go: what was asked for is not seen to be done. None is created in their place before.
    pub(super) leaving: usize,
}

/// How many pods are to be created, deleted and updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// How many there are to be beyond the replicas for now.
    pub(super) surge: usize,
    /// How many there are beyond that, those that go already among them.
    pub(super) beyond: usize,
    /// How many are missing.
    pub(super) missing: usize,
    /// How many of these may be created now.
    pub(super) create: usize,
    /// How many of these are of the current revision.
    pub(super) create_old: usize,
    /// How many are too many, beside those that go already.
    pub(super) delete: usize,
    /// How many of these are not of the update revision.
    pub(super) delete_old: usize,
    /// How many available ones may be deleted.
    pub(super) delete_available: usize,
    /// How many get the update revision.
    pub(super) update: usize,
    /// How many may be unavailable while others are updated.
    pub(super) update_unavailable: usize,
}

impl Difference {
    /// Compares what there is with what is asked for.
    pub(super) fn of(old: PodCounts, new: PodCounts, targets: &Targets) -> Self {
        let specified = old.specified + new.specified;
        let held = old.held + new.held;
        let active = old.active + new.active;
        let unavailable = old.unavailable + new.unavailable + held;
        // A partition that is raised takes nobody back.
        let too_old = old.active.saturating_sub(targets.partition);
        let missing_new = targets
            .replicas
            .saturating_sub(targets.partition)
            .saturating_sub(new.active);
        let update = too_old.min(missing_new);
        let (surge, surge_old) = Self::surge(old, new, unavailable, update, targets);
        let wanted = targets.replicas + surge;
        let wanted_old = targets.partition + surge_old;
        // Pods that are held count as there, unless others are to stand in for them.
        let counted = |held: usize| if targets.excludes_held { 0 } else { held };
        let there = active + counted(held) + targets.leaving;
        let missing = wanted.saturating_sub(there);
        let may_miss = targets
            .unavailable_to_scale
            .map_or(usize::MAX, |most| most.saturating_sub(unavailable));
        // Pods that are held are going: the others are too many only beyond them.
        let staying = active - specified;
        let may_be_unavailable =
            (targets.unavailable + active + held).saturating_sub(targets.replicas);
        Self {
            surge,
            beyond: there.saturating_sub(wanted),
            missing,
            create: missing.min(may_miss),
            create_old: wanted_old.saturating_sub(old.active + counted(old.held)),
            delete: staying.saturating_sub(wanted),
            delete_old: (old.active - old.specified).saturating_sub(wanted_old),
            delete_available: may_be_unavailable.saturating_sub(
                unavailable + old.specified_unavailable + new.specified_unavailable,
            ),
            update,
            update_unavailable: may_be_unavailable,
        }
    }

    /// How many pods there are to be beyond the replicas, and how many of them not of the update revision: in the place of those
    /// that are deleted by name where too many would be unavailable, or of those that are updated.
    fn surge(
        old: PodCounts,
        new: PodCounts,
        unavailable: usize,
        update: usize,
        targets: &Targets,
    ) -> (usize, usize) {
        let specified = old.specified + new.specified;
        let beyond = (unavailable + specified).saturating_sub(targets.unavailable);
        let for_deletion = beyond.min(specified);
        if for_deletion >= update {
            let of_old = for_deletion.saturating_sub(new.specified);
            let surge = for_deletion.min(targets.surge);
            (surge, surge.min(of_old))
        } else {
            (update.min(targets.surge), 0)
        }
    }
}
