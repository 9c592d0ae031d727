//! All sets, added up, as metrics show them.

use super::Index;
use super::reason::{READY, Reason};

/// The reasons of condition `Ready` by which sets are counted. The last one stands for all others, and for no condition.
pub const REASONS: [&str; Reason::ALL.len() + 1] = {
    let mut names = ["None"; Reason::ALL.len() + 1];
    let mut place = 0;
    while place < Reason::ALL.len() {
        names[place] = Reason::ALL[place].as_str();
        place += 1;
    }
    names
};

/// Sums over all sets. A pod counts once for each set that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetTotals {
    /// Sets by the reason of their condition `Ready` as the API server has it, in the order of [`REASONS`].
    pub sets: [usize; REASONS.len()],
    /// Pods that have a set.
    pub matched: usize,
    /// Those that have the containers of its spec.
    pub updated: usize,
    /// Those that are ready.
    pub ready: usize,
    /// Those that are both.
    pub updated_ready: usize,
    /// Those that differ in more than their images.
    pub not_upgradable: usize,
    /// Those whose upgrade was refused.
    pub refused: usize,
    /// Those that an earlier set of the name injected.
    pub former: usize,
    /// Pods that a set selects and that lack it.
    pub lacking: usize,
}

impl Index {
    /// The sums as they are now. They cost a step for each set.
    pub fn set_totals(&self) -> SetTotals {
        let mut totals = SetTotals::default();
        for (_, entry) in self.sets.iter() {
            let conditions = entry.status().into_iter();
            let mut conditions = conditions.flat_map(|status| &status.conditions);
            let ready = conditions.find(|condition| condition.type_ == READY);
            let place = ready.and_then(|ready| REASONS.iter().position(|one| *one == ready.reason));
            totals.sets[place.unwrap_or(REASONS.len() - 1)] += 1;
            let members = &entry.members;
            totals.matched += members.counts.matched;
            totals.updated += members.counts.updated;
            totals.ready += members.counts.ready;
            totals.updated_ready += members.counts.updated_ready;
            totals.not_upgradable += members.not_upgradable.len();
            totals.refused += members.refused.len();
            totals.former += members.former.len();
            totals.lacking += entry.lacking.len();
        }
        totals
    }
}
