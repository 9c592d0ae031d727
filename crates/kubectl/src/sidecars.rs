//! What pods have to do with `SidecarSet`s, for `explain`: the part that stands below that of their markers. A cluster that
//! has no such sets adds nothing.

use std::slice;

use futures::TryFutureExt;
use jiff::Timestamp;
use leadsman_core::cluster::{ObjectName, nearest};
use leadsman_core::podprobe::explain::{
    CauseReason, Explanation, MarkerExplanation, MarkerFit, Unread,
};
use leadsman_core::sidecarset::explain::{
    PodObject, PodsBySet, SetCause, SetExplanation, SetPodGroup, SetReason, explain, group_by_set,
};
use leadsman_core::sidecarset::pod::PodVersion;
use leadsman_core::sidecarset::strategy::UpdateMode;
use serde::Serialize;

use crate::drift;
use crate::reader::{ListSelection, Reader};
use crate::sidecar_sets::FoundSets;
use crate::table::{BAD, GOOD, HEADING, WAITING};
use crate::text::{self, TextLines};

/// Sets that do not select the pod are told with their selectors if they are so few.
const FEW_SETS: usize = 3;

/// What a pod has to do with sets.
pub(crate) type ExplainedSidecars = Sidecars<SetExplanation>;

/// What the pods of a workload or a selector have to do with sets.
pub(crate) type GroupedSidecars = Sidecars<PodsBySet>;

/// What each set does to a pod, or to several.
#[derive(Debug, Serialize)]
pub(crate) struct Sidecars<T> {
    #[serde(rename = "sidecarSets")]
    sets: Vec<T>,
    /// Whether the manager acts on no set.
    #[serde(
        rename = "sidecarSetGateOff",
        skip_serializing_if = "std::ops::Not::not"
    )]
    is_gate_off: bool,
    #[serde(rename = "sidecarSetsUnread", skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

/// The pods that are asked about, and what each set does to each.
struct ExplainedPods {
    pods: Vec<(ObjectName, Vec<SetExplanation>)>,
    is_gate_off: bool,
    unread: Vec<String>,
}

/// Reads and explains; None if the cluster has no sets that matter.
pub(crate) async fn read_sidecars(
    reader: &Reader,
    name: &ObjectName,
    now: Timestamp,
) -> Option<ExplainedSidecars> {
    let pod = reader.read_pod_object(name).map_ok(|pod| vec![pod]);
    let explained = read_pods(reader, slice::from_ref(name), pod, now).await?;
    let sets = explained.pods.into_iter().next();
    let sets = sets.map_or_else(Vec::new, |(_, sets)| sets);
    Sidecars::new(sets, explained.is_gate_off, explained.unread)
}

/// The same of the pods of a selection; takes out of the explanations of those that a set concerns that no marker is for
/// them.
pub(crate) async fn read_sidecars_of_group(
    reader: &Reader,
    selection: &ListSelection<'_>,
    pods: &mut [Explanation],
    now: Timestamp,
) -> Option<GroupedSidecars> {
    let names = pods.iter().map(object_name).collect::<Vec<_>>();
    let explained = read_pods(reader, &names, reader.read_pod_objects(selection), now).await?;
    for (name, sets) in &explained.pods {
        let pod = pods.iter_mut().find(|pod| object_name(pod) == *name);
        if let Some(pod) = pod.filter(|_| sets.iter().any(SetExplanation::concerns_the_pod)) {
            clear_markers(pod);
        }
    }
    let explained_pods = explained.pods.iter();
    let sets = group_by_set(explained_pods.map(|(name, sets)| (name, sets.as_slice())));
    Sidecars::new(sets, explained.is_gate_off, explained.unread)
}

fn object_name(pod: &Explanation) -> ObjectName {
    ObjectName {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
    }
}

/// Who has sidecars need not have markers; but one that misses the pod by a slip of the pen is still told of.
fn clear_markers(pod: &mut Explanation) {
    let is_slip = pod.markers.iter().any(misses_by_a_slip);
    pod.causes.retain(|cause| match cause.reason {
        CauseReason::NoMarker => false,
        CauseReason::NoMarkerMatches => is_slip,
        _ => true,
    });
}

fn misses_by_a_slip(marker: &MarkerExplanation) -> bool {
    let terms = match &marker.fit {
        MarkerFit::DoesNotMatch { terms } => terms.as_slice(),
        _ => &[],
    };
    let mut missing = terms.iter().filter(|term| !term.holds);
    missing.any(|term| nearest(&term.found, [term.term.as_str()]).is_some())
}

/// None if the cluster has no sets, or whoever asks may not know and no pod was injected. The pods are read after the sets.
async fn read_pods(
    reader: &Reader,
    names: &[ObjectName],
    pods: impl Future<Output = Result<Vec<PodObject>, Unread>>,
    now: Timestamp,
) -> Option<ExplainedPods> {
    let unread = |why| ExplainedPods {
        pods: Vec::new(),
        is_gate_off: false,
        unread: vec![why],
    };
    let namespaces = names.iter().map(|name| name.namespace.as_str());
    let found = match reader
        .read_sidecar_sets_for(namespaces.collect(), now)
        .await
    {
        Ok(found) => Ok(found?),
        Err(unread) => Err(unread),
    };
    match (found, pods.await) {
        (Ok(found), Ok(pods)) => Some(explain_pods(reader, found, pods, now).await),
        (Ok(_), Err(Unread(why))) => Some(unread(why)),
        // The right is named to those whom it concerns.
        (Err(Unread(why)), Ok(pods)) => {
            let is_injected = pods.iter().any(|pod| !pod.sets().is_empty());
            is_injected.then(|| unread(why))
        }
        (Err(_), Err(_)) => None,
    }
}

async fn explain_pods(
    reader: &Reader,
    found: FoundSets,
    pods: Vec<PodObject>,
    now: Timestamp,
) -> ExplainedPods {
    let FoundSets {
        sets,
        objects,
        is_gate_off,
        mut unread,
    } = found;
    let mut all = pods.clone();
    let mut knows_pods = true;
    for known in &sets.valid {
        // Whose turn it is follows from the other pods.
        let waits = |pod: &PodObject| {
            let labels = sets.namespaces.get(&pod.observed.name.namespace);
            let state = known.state(pod, labels, now);
            state.is_some_and(|state| state.version == PodVersion::Upgradable)
        };
        // Only then are the other pods read, of which a set may have tens of thousands.
        if known.set.update.mode != UpdateMode::Rolling || !pods.iter().any(waits) {
            continue;
        }
        match reader.read_pods_of_set(known, None).await {
            Ok(others) => all.extend(others),
            Err(Unread(why)) => {
                knows_pods = false;
                unread.push(why);
            }
        }
    }
    // The sort is stable: of a pod that was read twice the one stays that is asked about.
    all.sort_by(|a, b| a.observed.name.cmp(&b.observed.name));
    all.dedup_by(|a, b| a.observed.name == b.observed.name);
    let wires = all.iter().map(|pod| pod.wire.clone()).collect();
    let index = objects.index(wires, now);
    let others = knows_pods.then_some(all.as_slice());
    let explained = pods.iter().map(|pod| {
        let explained = explain(pod, &sets, &index, others, now);
        ((*pod.observed.name).clone(), explained)
    });
    ExplainedPods {
        pods: explained.collect(),
        is_gate_off,
        unread,
    }
}

impl<T> Sidecars<T> {
    /// None if there is nothing to tell.
    fn new(sets: Vec<T>, is_gate_off: bool, unread: Vec<String>) -> Option<Self> {
        let is_nothing = sets.is_empty() && unread.is_empty();
        (!is_nothing).then_some(Self {
            sets,
            is_gate_off,
            unread,
        })
    }

    /// The lines that `add` makes of the sets, between those that are the same for every question.
    fn sets_text(&self, add: impl FnOnce(&mut TextLines)) -> String {
        let mut lines = TextLines::default();
        lines.add_heading("SidecarSets");
        if self.is_gate_off {
            lines.add_line(format_args!(
                "  {WAITING}the manager acts on none of them{WAITING:#}: its gate SidecarSetGate is off"
            ));
        }
        add(&mut lines);
        for why in &self.unread {
            lines.add_line(format_args!("  not read: {why}"));
        }
        lines.0
    }
}

impl ExplainedSidecars {
    /// Takes out of the explanation of a pod that a set concerns that no marker is for it.
    pub(crate) fn without_markers(&self, pod: &mut Explanation) {
        if self.sets.iter().any(SetExplanation::concerns_the_pod) {
            clear_markers(pod);
        }
    }

    pub(crate) fn to_text(&self, with_all: bool) -> String {
        let (told, others): (Vec<_>, Vec<_>) =
            self.sets.iter().partition(|set| set.concerns_the_pod());
        self.sets_text(|lines| {
            for set in &told {
                explain_set(lines, set);
            }
            if with_all || others.len() <= FEW_SETS {
                for set in &others {
                    explain_set(lines, set);
                }
            } else {
                let names: Vec<_> = others.iter().map(|set| set.set.clone()).collect();
                let names = text::format_names(&names, false);
                lines.add_line(format_args!("  not selected by {names}"));
            }
        })
    }
}

impl GroupedSidecars {
    pub(crate) fn to_text(&self, with_all_names: bool) -> String {
        self.sets_text(|lines| {
            for set in &self.sets {
                add_set(lines, set, with_all_names);
            }
        })
    }
}

/// A set, and its pods by what keeps them from being as it says.
fn add_set(lines: &mut TextLines, set: &PodsBySet, with_all_names: bool) {
    let count = |groups: &mut dyn Iterator<Item = &SetPodGroup>| -> usize {
        groups.map(|group| group.pods.len()).sum()
    };
    let all = count(&mut set.groups.iter());
    let is_well = |group: &&SetPodGroup| group.causes.is_empty();
    let well = count(&mut set.groups.iter().filter(is_well));
    let style = if well == all { GOOD } else { BAD };
    lines.add_line(format_args!(
        "  {HEADING}{}{HEADING:#}: {style}{well} of {all} pods{style:#} are as the set says",
        set.set
    ));
    for group in set.groups.iter().filter(|group| !is_well(group)) {
        add_group(lines, group, with_all_names);
    }
}

fn add_group(lines: &mut TextLines, group: &SetPodGroup, with_all_names: bool) {
    let reasons: Vec<_> = group.causes.iter().map(|it| it.reason.as_str()).collect();
    let is_waiting = group.causes.iter().all(|cause| cause.reason.resolves());
    let style = if is_waiting { WAITING } else { BAD };
    lines.add_line(format_args!(
        "\n  {}: {style}{}{style:#}",
        text::format_pod_count(group.pods.len()),
        reasons.join(", ")
    ));
    let names = text::format_names(&group.pods, with_all_names);
    lines.add_line(format_args!("    {names}"));
    for cause in &group.causes {
        add_cause(lines, &cause.message, cause);
    }
}

/// A cause in these words, with the requirements of the selector that is in the way.
fn add_cause(lines: &mut TextLines, words: &str, cause: &SetCause) {
    lines.add_line(format_args!("    {words}"));
    let whose = match cause.reason {
        SetReason::Namespace => "its namespace",
        _ => "the pod",
    };
    text::add_selector_terms(lines, whose, &cause.terms);
}

fn explain_set(lines: &mut TextLines, explained: &SetExplanation) {
    let set = &explained.set;
    let revision = explained.revision.as_deref();
    let revision = revision.map(|revision| format!(", revision {revision}"));
    let revision = revision.unwrap_or_default();
    let is_waiting = explained.causes.iter().all(|cause| cause.reason.resolves());
    match (explained.injected, explained.causes.is_empty()) {
        (true, true) => lines.add_line(format_args!(
            "  {set}  {GOOD}as the set says{GOOD:#}{revision}"
        )),
        (true, false) if is_waiting => {
            lines.add_line(format_args!(
                "  {set}  {WAITING}injected{WAITING:#}{revision}"
            ));
        }
        (true, false) => lines.add_line(format_args!("  {set}  {BAD}injected{BAD:#}{revision}")),
        (false, _) => lines.add_line(format_args!("  {set}  {BAD}not injected{BAD:#}")),
    }
    for cause in &explained.causes {
        let words = format!("{}: {}", cause.reason, cause.message);
        add_cause(lines, &words, cause);
    }
    for remark in &explained.remarks {
        lines.add_line(format_args!("    {remark}"));
    }
    for difference in &explained.differs {
        drift::add_field(lines, difference);
    }
    if let Some(reported) = &explained.reported {
        lines.add_line(format_args!("    its status says {reported}"));
    }
}

#[cfg(test)]
mod tests {
    use leadsman_core::cluster::SelectorTerm;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("app=game-server", "app=game-servr", true)]
    #[case("app=cache", "app=shop", false)]
    #[case("app=cache", "", false)]
    fn only_a_slip_of_the_pen_is_told_of_a_pod_with_sidecars(
        #[case] term: &str,
        #[case] found: &str,
        #[case] is_slip: bool,
    ) {
        let term = SelectorTerm {
            term: term.to_owned(),
            holds: false,
            found: found.to_owned(),
        };
        let marker = MarkerExplanation {
            name: "m".to_owned(),
            fit: MarkerFit::DoesNotMatch { terms: vec![term] },
            reported: None,
        };
        assert_eq!(misses_by_a_slip(&marker), is_slip);
    }
}
