//! What a pod has to do with `SidecarSet`s, for `explain`: the part that stands below that of its markers. A cluster that has
//! no such sets adds nothing.

use jiff::Timestamp;
use leadsman_core::cluster::ObjectName;
use leadsman_core::podprobe::explain::{CauseReason, Explanation, Unread};
use leadsman_core::sidecarset::explain::{PodObject, SetCause, SetExplanation, SetReason, explain};
use leadsman_core::sidecarset::pod::PodVersion;
use leadsman_core::sidecarset::strategy::UpdateMode;
use serde::Serialize;
use serde_json::Value;

use crate::drift;
use crate::reader::Reader;
use crate::resources::PODS;
use crate::sidecar_sets::FoundSets;
use crate::table::{BAD, GOOD, WAITING};
use crate::text::{self, Lines};

/// Sets that do not select the pod are told with their selectors if they are so few.
const FEW_SETS: usize = 3;

/// What a pod has to do with sets.
#[derive(Debug, Serialize)]
pub(crate) struct ExplainedSidecars {
    #[serde(rename = "sidecarSets")]
    sets: Vec<SetExplanation>,
    /// Whether the manager acts on no set.
    #[serde(
        rename = "sidecarSetGateOff",
        skip_serializing_if = "std::ops::Not::not"
    )]
    is_gate_off: bool,
    #[serde(rename = "sidecarSetsUnread", skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

/// Reads and explains; None if the cluster has no sets that matter.
pub(crate) async fn read(
    reader: &Reader,
    name: &ObjectName,
    now: Timestamp,
) -> Option<ExplainedSidecars> {
    let found = match reader.sidecar_sets_for(&name.namespace, now).await {
        Ok(found) => Ok(found?),
        Err(unread) => Err(unread),
    };
    let pod = read_pod(reader, name).await;
    match (found, pod) {
        (Ok(found), Ok(pod)) => explain_pod(reader, found, pod, now).await,
        // The right is named to those whom it concerns.
        (Err(Unread(why)), Ok(pod)) if !pod.sets().is_empty() => {
            Some(ExplainedSidecars::unread(why))
        }
        (Err(_), _) => None,
        (Ok(_), Err(why)) => Some(ExplainedSidecars::unread(why)),
    }
}

async fn read_pod(reader: &Reader, name: &ObjectName) -> Result<PodObject, String> {
    let namespace = Some(name.namespace.as_str());
    let pod = reader.get::<Value>(PODS, namespace, &name.name).await;
    let pod = pod.map_err(|Unread(why)| why)?;
    let pod = pod.ok_or_else(|| format!("pod {name} was deleted"))?;
    PodObject::read(pod).map_err(|error| format!("pod {name} cannot be decoded: {error}"))
}

async fn explain_pod(
    reader: &Reader,
    found: FoundSets,
    pod: PodObject,
    now: Timestamp,
) -> Option<ExplainedSidecars> {
    let FoundSets {
        sets,
        objects,
        is_gate_off,
        mut unread,
    } = found;
    let mut pods = vec![pod.clone()];
    let mut knows_pods = true;
    let labels = sets.namespaces.get(&pod.observed.name.namespace);
    for known in &sets.valid {
        // Its turn follows from the other pods.
        let state = known.state(&pod, labels, now);
        let waits = state.is_some_and(|state| state.version == PodVersion::Upgradable);
        if !waits || known.set.update.mode != UpdateMode::Rolling {
            continue;
        }
        match reader.pods_of_set(known, None).await {
            Ok(others) => pods.extend(others),
            Err(error) => {
                knows_pods = false;
                unread.push(error.to_string());
            }
        }
    }
    pods.sort_by(|a, b| a.observed.name.cmp(&b.observed.name));
    pods.dedup_by(|a, b| a.observed.name == b.observed.name);
    let wires = pods.iter().map(|pod| pod.wire.clone()).collect();
    let index = objects.index(wires, now);
    let others = knows_pods.then_some(pods.as_slice());
    let explained = explain(&pod, &sets, &index, others, now);
    let is_nothing = explained.is_empty() && unread.is_empty();
    (!is_nothing).then_some(ExplainedSidecars {
        sets: explained,
        is_gate_off,
        unread,
    })
}

impl ExplainedSidecars {
    fn unread(why: String) -> Self {
        Self {
            sets: Vec::new(),
            is_gate_off: false,
            unread: vec![why],
        }
    }

    /// Takes out of the explanation of a pod that its namespace has no markers: who has sidecars need not have any.
    pub(crate) fn without_markers(&self, pod: &mut Explanation) {
        if self.sets.iter().any(concerns) {
            pod.causes
                .retain(|cause| cause.reason != CauseReason::NoMarker);
        }
    }

    pub(crate) fn text(&self, with_all: bool) -> String {
        let mut lines = Lines::default();
        let (told, others): (Vec<_>, Vec<_>) = self.sets.iter().partition(|set| concerns(set));
        lines.heading("SidecarSets");
        if self.is_gate_off {
            lines.add(format_args!(
                "  {WAITING}the manager acts on none of them{WAITING:#}: its gate SidecarSetGate is off"
            ));
        }
        for set in &told {
            explain_set(&mut lines, set);
        }
        if with_all || others.len() <= FEW_SETS {
            for set in &others {
                explain_set(&mut lines, set);
            }
        } else {
            let names: Vec<_> = others.iter().map(|set| set.set.clone()).collect();
            let names = text::names(&names, false);
            lines.add(format_args!("  not selected by {names}"));
        }
        for why in &self.unread {
            lines.add(format_args!("  not read: {why}"));
        }
        lines.0
    }
}

/// Whether a pod was injected by a set, or could be by its labels.
fn concerns(set: &SetExplanation) -> bool {
    let is_other = |cause: &SetCause| {
        matches!(
            cause.reason,
            SetReason::Labels | SetReason::Namespace | SetReason::InvalidSpec
        )
    };
    set.injected || !set.causes.iter().any(is_other)
}

fn explain_set(lines: &mut Lines, explained: &SetExplanation) {
    let set = &explained.set;
    let revision = explained.revision.as_deref();
    let revision = revision.map(|revision| format!(", revision {revision}"));
    let revision = revision.unwrap_or_default();
    let is_waiting = explained.causes.iter().all(|cause| cause.reason.resolves());
    match (explained.injected, explained.causes.is_empty()) {
        (true, true) => lines.add(format_args!(
            "  {set}  {GOOD}as the set says{GOOD:#}{revision}"
        )),
        (true, false) if is_waiting => {
            lines.add(format_args!(
                "  {set}  {WAITING}injected{WAITING:#}{revision}"
            ));
        }
        (true, false) => lines.add(format_args!("  {set}  {BAD}injected{BAD:#}{revision}")),
        (false, _) => lines.add(format_args!("  {set}  {BAD}not injected{BAD:#}")),
    }
    for cause in &explained.causes {
        lines.add(format_args!("    {}: {}", cause.reason, cause.message));
        let whose = match cause.reason {
            SetReason::Namespace => "its namespace",
            _ => "the pod",
        };
        text::terms(lines, whose, &cause.terms);
    }
    for difference in &explained.differs {
        drift::field(lines, difference);
    }
    if let Some(reported) = &explained.reported {
        lines.add(format_args!("    its status says {reported}"));
    }
}
