//! A marker's status: counts of its pods by verdict, and one condition that says whether it works.
//!
//! The counts are kept up by differences: each pod has a share in the tally of each marker that matches it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use leadsman_api::PodProbeMarkerStatus;
use leadsman_api::marker::ProbeSummary;

use super::probe::State;

/// Why a marker does not work, the weightiest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trouble {
    /// It, or what it would write, breaks a rule.
    InvalidSpec,
    /// Its verdicts would change what it matches.
    Cycle,
    /// An older marker, or an earlier probe, has one of its marks.
    Conflict,
    /// A matching pod has no such container.
    ContainerNotFound {
        /// The probe.
        probe: Arc<str>,
        /// The container that it names.
        container: Arc<str>,
    },
    /// A container has no port of that name.
    PortNotFound {
        /// The probe.
        probe: Arc<str>,
        /// The container.
        container: Arc<str>,
        /// The port that the probe names.
        port: Arc<str>,
    },
    /// A node's object is full.
    TooManyProbes,
    /// The agent of a matching pod's node does not report.
    AgentSilent,
    /// Somebody keeps taking its marks away.
    Contested,
}

impl Trouble {
    /// The condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidSpec => "InvalidSpec",
            Self::Cycle => "Cycle",
            Self::Conflict => "Conflict",
            Self::ContainerNotFound { .. } => "ContainerNotFound",
            Self::PortNotFound { .. } => "PortNotFound",
            Self::TooManyProbes => "TooManyProbes",
            Self::AgentSilent => "AgentSilent",
            Self::Contested => "Contested",
        }
    }

    /// What is wrong with `subjects`, and what to do about it.
    fn message(&self, subjects: &str) -> String {
        match self {
            Self::InvalidSpec => {
                format!("the API server refuses what this marker writes; correct it: {subjects}")
            }
            Self::Cycle => format!("its verdicts would change what it matches: {subjects}"),
            Self::Conflict => format!(
                "a mark of it belongs to another probe that goes first; rename the condition type or the key, or delete one: {subjects}"
            ),
            Self::ContainerNotFound { probe, container } => format!(
                "probe {probe}: no container {container} that stays running; correct containerName or the selector (pods {subjects})"
            ),
            Self::PortNotFound {
                probe,
                container,
                port,
            } => format!(
                "probe {probe}: container {container} has no port {port}; name it in the pod's ports or use its number (pods {subjects})"
            ),
            Self::TooManyProbes => format!(
                "the node has no room for more probes; probe fewer pods or spread them over more nodes: {subjects}"
            ),
            Self::AgentSilent => format!(
                "the agent on the pod's node does not report; see that it runs and is Ready: {subjects}"
            ),
            Self::Contested => format!(
                "somebody keeps changing the marks back; find out who writes them: {subjects}"
            ),
        }
    }
}

/// One pod's part in a marker's tally.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// For each probe of the marker.
    pub probes: Vec<ProbeShare>,
    /// What is wrong, and with what: a pod, or the marker that goes first. Without repetitions.
    pub troubles: Vec<(Trouble, Arc<str>)>,
}

/// One pod's part in the tally of a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeShare {
    /// None while there is no verdict.
    pub state: Option<State>,
    /// Whether the node's agent does not report.
    pub silent: bool,
}

/// The sum of all shares in a marker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    matched: i64,
    probes: Vec<ProbeSummary>,
    troubles: BTreeMap<Trouble, BTreeMap<Arc<str>, usize>>,
}

impl Tally {
    /// Nothing counted yet for probes of these names.
    pub fn new<'a>(probes: impl IntoIterator<Item = &'a str>) -> Self {
        let probes = probes.into_iter().map(|name| ProbeSummary {
            name: name.to_owned(),
            ..ProbeSummary::default()
        });
        Self {
            probes: probes.collect(),
            ..Self::default()
        }
    }

    /// Counts a pod in.
    pub fn add(&mut self, share: &Share) {
        self.count(share, 1);
        for (trouble, subject) in &share.troubles {
            let subjects = self.troubles.entry(trouble.clone()).or_default();
            *subjects.entry(subject.clone()).or_default() += 1;
        }
    }

    /// Counts out a pod that was counted in with this share.
    pub fn remove(&mut self, share: &Share) {
        self.count(share, -1);
        for (trouble, subject) in &share.troubles {
            let Some(subjects) = self.troubles.get_mut(trouble) else {
                continue;
            };
            if let Some(count) = subjects.get_mut(subject) {
                *count -= 1;
                if *count == 0 {
                    subjects.remove(subject);
                }
            }
            if subjects.is_empty() {
                self.troubles.remove(trouble);
            }
        }
    }

    fn count(&mut self, share: &Share, by: i64) {
        self.matched += by;
        for (summary, probe) in self.probes.iter_mut().zip(&share.probes) {
            match probe.state {
                Some(State::Succeeded) => summary.succeeded += by,
                Some(State::Failed) => summary.failed += by,
                Some(State::Unknown) => summary.unknown += by,
                None => summary.pending += by,
            }
            summary.silent += i64::from(probe.silent) * by;
        }
    }

    /// The status and message of the condition, by the weightiest trouble.
    fn verdict(&self) -> (Option<&Trouble>, String) {
        let Some(first) = self.troubles.keys().next() else {
            let message = match self.matched {
                0 => "no pod matches",
                _ => "all matching pods are probed",
            };
            return (None, message.to_owned());
        };
        // One for each probe that lacks something.
        let alike = self.troubles.iter();
        let alike = alike.take_while(|(trouble, _)| trouble.reason() == first.reason());
        let messages: Vec<_> = alike
            .take(3)
            .map(|(trouble, subjects)| trouble.message(&first_three(subjects)))
            .collect();
        (Some(first), messages.join("; "))
    }
}

fn first_three(subjects: &BTreeMap<Arc<str>, usize>) -> String {
    let mut text = String::new();
    for (place, subject) in subjects.keys().take(3).enumerate() {
        text.push_str(if place > 0 { ", " } else { "" });
        text.push_str(subject);
    }
    if subjects.len() > 3 {
        // Writing to a String cannot fail.
        let _ = write!(text, " and {} more", subjects.len() - 3);
    }
    text
}

/// A marker that slipped in, or the API server's words about a refused write, may take any number of bytes.
fn cut(mut message: String) -> String {
    const MOST: usize = 4096;
    message.truncate(message.floor_char_boundary(MOST));
    message
}

/// What is observed of a marker that its status depends on.
pub struct Circumstances<'a> {
    /// Its generation.
    pub generation: i64,
    /// Whether every `NodePodProbe` says what this generation wants.
    pub acknowledged: bool,
    /// Why it is not acted on at all, if so.
    pub refused: Option<(&'a Trouble, &'a str)>,
    /// Its status.
    pub status: &'a PodProbeMarkerStatus,
    /// False where the API server drops probes and conditions from it.
    pub summaries: bool,
}

/// The status due, none if the observed one says the same.
pub fn difference(
    tally: &Tally,
    circumstances: &Circumstances<'_>,
    now: Timestamp,
) -> Option<PodProbeMarkerStatus> {
    let observed = circumstances.status;
    let (trouble, message) = match circumstances.refused {
        Some((trouble, message)) => (Some(trouble), message.to_owned()),
        None => tally.verdict(),
    };
    let status = if trouble.is_none() { "True" } else { "False" };
    let reason = trouble.map_or("Probing", Trouble::reason);
    let generation = if circumstances.acknowledged {
        circumstances.generation
    } else {
        observed.observed_generation
    };
    let mut conditions = observed.conditions.clone();
    let place = conditions.iter().position(|one| one.type_ == "Ready");
    let before = place.map(|place| conditions.remove(place));
    let unchanged = before.filter(|before| before.status == status);
    let ready = Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: cut(message),
        observed_generation: Some(generation),
        last_transition_time: unchanged.map_or_else(
            || Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
            |before| before.last_transition_time,
        ),
    };
    // The patch replaces the list: conditions of others stay in it.
    conditions.insert(place.unwrap_or(conditions.len()), ready);
    let mut desired = PodProbeMarkerStatus {
        observed_generation: generation,
        matched_pods: Some(tally.matched),
        probes: tally.probes.clone(),
        conditions,
    };
    if desired.probes.is_empty() || !circumstances.summaries {
        // An empty list is not written, so what is there cannot be emptied.
        desired.probes.clone_from(&observed.probes);
    }
    if !circumstances.summaries {
        desired.conditions.clone_from(&observed.conditions);
    }
    (desired != *observed).then_some(desired)
}
