//! The part of `explain` about pods and `SidecarSet`s, which stands below the part about their markers. A cluster that has no
//! such sets adds nothing.

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
use crate::reader::Reader;
use crate::report::{Text, bad, bold, count_pods, good, line, waiting};
use crate::sidecar_sets::FoundSets;

/// Sets that do not select the pod are told with their selectors if they are so few.
const FEW_SETS: usize = 3;

/// The effect of each set on one pod.
pub(crate) type ExplainedSidecars = Sidecars<SetExplanation>;

/// The effect of each set on the pods of a workload or a selector.
pub(crate) type GroupedSidecars = Sidecars<PodsBySet>;

/// The effect of each set on a pod, or on several.
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
pub(crate) struct ExplainedPods {
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
    let explained = explain_sidecars(reader, slice::from_ref(name), pod, now).await?;
    let first = explained.pods.into_iter().next();
    let sets = first.map_or_else(Vec::new, |(_, sets)| sets);
    Sidecars::new(sets, explained.is_gate_off, explained.unread)
}

fn object_name(pod: &Explanation) -> ObjectName {
    ObjectName {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
    }
}

/// Removes the causes that say that a marker is missing: a pod with sidecars need not have one. But a marker that misses the
/// pod by a slip of the pen is still told of.
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

/// Explains what sets do to pods, which are read after the sets. None if the cluster has no sets, or whoever asks may not
/// know and no pod was injected.
pub(crate) async fn explain_sidecars(
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
        // A pod's turn follows from the other pods.
        let waits = |pod: &PodObject| {
            let labels = sets.namespaces.get(&pod.observed.name.namespace);
            let state = known.state(pod, labels, now);
            state.is_some_and(|state| state.version == PodVersion::Upgradable)
        };
        // The other pods are read only if one waits for its turn: a set may have tens of thousands.
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
    let observed = objects.observe(wires, now);
    let inspection = observed.inspect();
    let others = knows_pods.then_some(all.as_slice());
    let explained = pods.iter().map(|pod| {
        let explained = explain(pod, &sets, &inspection, others, now);
        ((*pod.observed.name).clone(), explained)
    });
    ExplainedPods {
        pods: explained.collect(),
        is_gate_off,
        unread,
    }
}

impl<T> Sidecars<T> {
    /// Makes the answer. None if there is nothing to tell.
    fn new(sets: Vec<T>, is_gate_off: bool, unread: Vec<String>) -> Option<Self> {
        let is_nothing = sets.is_empty() && unread.is_empty();
        (!is_nothing).then_some(Self {
            sets,
            is_gate_off,
            unread,
        })
    }

    /// The lines that `add` makes of the sets, between those that are the same for every question.
    fn add_sets(&self, text: &mut Text, add: impl FnOnce(&mut Text)) {
        text.add_heading("SidecarSets");
        if self.is_gate_off {
            let none = waiting("the manager acts on none of them");
            line!(text, 2 => "{none}: its gate SidecarSetGate is off");
        }
        add(text);
        for why in &self.unread {
            line!(text, 2 => "not read: {why}");
        }
    }
}

impl ExplainedPods {
    /// Takes out of the explanations of pods that a set concerns that no marker is for them.
    pub(crate) fn clear_markers(&self, pods: &mut [Explanation]) {
        for (name, sets) in &self.pods {
            let pod = pods.iter_mut().find(|pod| object_name(pod) == *name);
            if let Some(pod) = pod.filter(|_| sets.iter().any(SetExplanation::concerns_the_pod)) {
                clear_markers(pod);
            }
        }
    }

    /// The pods of each set, or of one.
    pub(crate) fn into_groups(self, only: Option<&str>) -> Option<GroupedSidecars> {
        let pods = self.pods.iter().map(|(name, sets)| (name, sets.as_slice()));
        let mut sets = group_by_set(pods);
        sets.retain(|set| only.is_none_or(|only| only == set.set));
        Sidecars::new(sets, self.is_gate_off, self.unread)
    }
}

impl ExplainedSidecars {
    /// Takes out of the explanation of a pod that a set concerns that no marker is for it.
    pub(crate) fn without_markers(&self, pod: &mut Explanation) {
        if self.sets.iter().any(SetExplanation::concerns_the_pod) {
            clear_markers(pod);
        }
    }

    pub(crate) fn add_text(&self, text: &mut Text) {
        let sets = self.sets.iter();
        let (told, others): (Vec<_>, Vec<_>) = sets.partition(|set| set.concerns_the_pod());
        self.add_sets(text, |text| {
            let are_few = text.is_wide || others.len() <= FEW_SETS;
            for set in told.iter().chain(others.iter().filter(|_| are_few)) {
                explain_set(text, set);
            }
            if !are_few {
                let names: Vec<_> = others.iter().map(|set| set.set.clone()).collect();
                line!(text, 2 => "not selected by {}", text.format_names(&names));
            }
        });
    }
}

impl GroupedSidecars {
    pub(crate) fn add_text(&self, text: &mut Text) {
        self.add_sets(text, |text| {
            for set in &self.sets {
                add_set(text, set);
            }
        });
    }
}

/// A set, and its pods by what keeps them from being as it says.
fn add_set(text: &mut Text, PodsBySet { set, groups }: &PodsBySet) {
    let (well, others): (Vec<_>, Vec<_>) = groups.iter().partition(|group| group.causes.is_empty());
    let well: usize = well.iter().map(|group| group.pods.len()).sum();
    let all = groups.iter().map(|group| group.pods.len()).sum::<usize>();
    let style = if well == all { good } else { bad };
    let count = style(format!("{well} of {all} pods"));
    line!(text, 2 => "{}: {count} are as the set says", bold(set));
    for group in others {
        add_group(text, group);
    }
}

fn add_group(text: &mut Text, group: &SetPodGroup) {
    let reasons: Vec<_> = group.causes.iter().map(|it| it.reason.as_str()).collect();
    let style = if resolve(&group.causes) { waiting } else { bad };
    text.add_gap();
    line!(text, 2 => "{}: {}", count_pods(group.pods.len()), style(reasons.join(", ")));
    text.add_line(4, text.format_names(&group.pods));
    for cause in &group.causes {
        add_cause(text, &cause.message, cause);
    }
}

/// Whether all of these resolve by themselves.
fn resolve(causes: &[SetCause]) -> bool {
    causes.iter().all(|cause| cause.reason.resolves())
}

/// A cause in these words, with the requirements of the selector that is in the way.
fn add_cause(text: &mut Text, words: &str, cause: &SetCause) {
    text.add_line(4, words);
    let whose = match cause.reason {
        SetReason::Namespace => "its namespace",
        _ => "the pod",
    };
    text.add_terms(whose, &cause.terms);
}

fn explain_set(text: &mut Text, explained: &SetExplanation) {
    let causes = explained.causes.as_slice();
    let state = match causes {
        _ if !explained.injected => bad("not injected"),
        [] => good("as the set says"),
        causes if resolve(causes) => waiting("injected"),
        _ => bad("injected"),
    };
    let revision = explained
        .revision
        .as_deref()
        .filter(|_| explained.injected)
        .map_or_else(String::new, |it| format!(", revision {it}"));
    line!(text, 2 => "{}  {state}{revision}", explained.set);
    for cause in causes {
        add_cause(text, &format!("{}: {}", cause.reason, cause.message), cause);
    }
    for remark in &explained.remarks {
        text.add_line(4, remark);
    }
    for difference in &explained.differs {
        drift::add_field(text, difference);
    }
    if let Some(reported) = &explained.reported {
        line!(text, 4 => "its status says {reported}");
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
