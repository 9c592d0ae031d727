//! The consequences of the verdict on one probe: the policy with its values, and whether the verdict counts yet.
//!
//! A policy may say for how long its verdict has to hold. Until then the marks stay as they are, and one that only this policy
//! could have set goes: it is of an earlier verdict of the same kind, and another one that nobody has seen lies between. So
//! what a pod is marked with follows from the objects alone, and a manager that restarts begins no hold again.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use leadsman_api::limits;

use super::{Mark, ProbePosition, Want, condition_status};
use crate::cluster::{names, truncate};
use crate::podprobe::marker::{MarkerProbe, OutputPolicy, Policy, PolicyPairs};
use crate::podprobe::output::ValueText;
use crate::podprobe::pod::IndexedCondition;
use crate::podprobe::probe::State;
use crate::podprobe::verdict::{VERDICT_MESSAGE_BYTES, Verdict};

/// Labels or annotations of a policy.
pub(super) type PairsOf = fn(&PolicyPairs) -> &BTreeMap<Arc<str>, ValueText>;

/// A verdict that does not count yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldVerdict {
    /// The probe.
    pub probe: ProbePosition,
    /// The verdict's state.
    pub state: State,
    /// The time of the last change of state or values; None if whoever found the verdict did not say.
    pub since: Option<Timestamp>,
    /// The time from which it counts; None if `since` is not known.
    pub until: Option<Timestamp>,
}

/// A value in an output that is not valid where a policy uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedValue {
    /// The probe.
    pub probe: ProbePosition,
    /// The mark.
    pub mark: Mark,
    /// The reason why the value is not valid.
    pub why: String,
}

/// The verdict on a probe.
pub(super) struct ProbeFinding<'a> {
    probe: &'a MarkerProbe,
    verdict: &'a Verdict,
    policy: Option<&'a Policy>,
    output: Option<&'a OutputPolicy>,
    /// The verdict while it does not count.
    pub(super) held: Option<HeldVerdict>,
}

impl<'a> ProbeFinding<'a> {
    pub(super) fn new(
        place: ProbePosition,
        probe: &'a MarkerProbe,
        verdict: &'a Verdict,
        now: Timestamp,
    ) -> Self {
        let policy = probe.policy_of(verdict.state);
        let value = |name: &str| verdict.values.as_ref()?.get(name);
        let fits = |one: &&OutputPolicy| {
            let mut when = one.when.iter();
            when.all(|(name, wanted)| value(name) == Some(wanted))
        };
        let outputs = policy.map_or(&[][..], |policy| &policy.outputs);
        let mut finding = Self {
            probe,
            verdict,
            policy,
            output: outputs.iter().find(fits),
            held: None,
        };
        let until = finding.counts_from();
        finding.held = finding.is_held(until, now).then_some(HeldVerdict {
            probe: place,
            state: verdict.state,
            since: verdict.since,
            until,
        });
        finding
    }

    fn hold(&self) -> SignedDuration {
        let own = self.output.and_then(|output| output.hold);
        own.or(self.policy.map(|policy| policy.hold))
            .unwrap_or_default()
    }

    /// The time from which the verdict counts; None if nobody said since when it holds.
    fn counts_from(&self) -> Option<Timestamp> {
        let since = self.verdict.since?;
        Some(since.saturating_add(self.hold()).unwrap_or(Timestamp::MAX))
    }

    fn is_held(&self, until: Option<Timestamp>, now: Timestamp) -> bool {
        !self.hold().is_zero() && until.is_none_or(|until| until > now)
    }

    /// The verdict that a condition shows. While the verdict on the probe is held, the condition's status stays, unless this
    /// verdict alone could have set it.
    pub(super) fn condition(&self, seen: Option<&IndexedCondition>) -> Verdict {
        let filled = self
            .policy
            .and_then(|policy| policy.message.as_ref())
            .map(|text| text.fill(self.verdict.values.as_deref()));
        let message = filled.unwrap_or_else(|| self.verdict.message.clone());
        let Some(held) = &self.held else {
            let since = if self.hold().is_zero() {
                self.verdict.since
            } else {
                self.counts_from()
            };
            return Verdict {
                message: shorten(&message),
                since,
                ..self.verdict.clone()
            };
        };
        let kept = [State::Succeeded, State::Failed].into_iter().find(|state| {
            *state != held.state
                && seen.is_some_and(|seen| *seen.status == *condition_status(*state))
        });
        let text = match (held.since, held.until) {
            (Some(since), Some(until)) => {
                format!("{} since {since}, counts from {until}", held.state.as_str())
            }
            _ => format!(
                "{} since an unknown time, does not count",
                held.state.as_str()
            ),
        };
        Verdict {
            state: kept.unwrap_or(State::Unknown),
            message: shorten(&format!("{text}: {message}").into()),
            ..self.verdict.clone()
        }
    }

    /// The desired state of a key. `present` is its value if it is ours. Adds to `refused` if a value of the output is not
    /// valid there: then the key is absent, since what it was is not true any more.
    pub(super) fn want(
        &self,
        key: &Arc<str>,
        (mark, pairs): (fn(Arc<str>) -> Mark, PairsOf),
        present: Option<&Arc<str>>,
        refused: &mut Vec<(Mark, String)>,
    ) -> Want<Arc<str>> {
        let own = self.output.and_then(|output| pairs(&output.pairs).get(key));
        let text = own.or_else(|| pairs(&self.policy?.pairs).get(key));
        let value = match text {
            None => None,
            Some(ValueText::Fixed(value)) => Some(value.clone()),
            Some(text) => {
                let mark = mark(key.clone());
                let value = text.fill(self.verdict.values.as_deref());
                match check_value(&mark, &value) {
                    Ok(()) => Some(value),
                    Err(why) => {
                        refused.push((mark, why));
                        None
                    }
                }
            }
        };
        match (&self.held, value) {
            (None, value) => value.map_or(Want::Absent, Want::Value),
            (Some(_), Some(value))
                if present == Some(&value) && !self.others_set(key, pairs, &value) =>
            {
                Want::Absent
            }
            (Some(_), _) => Want::Hold,
        }
    }

    /// Whether the policy of the other state sets this value.
    fn others_set(&self, key: &str, pairs: PairsOf, value: &Arc<str>) -> bool {
        let states = [State::Succeeded, State::Failed].into_iter();
        let mut others = states
            .filter(|state| *state != self.verdict.state)
            .filter_map(|state| self.probe.policy_of(state));
        others.any(|policy| match pairs(&policy.pairs).get(key) {
            Some(ValueText::Fixed(other)) => other == value,
            _ => false,
        })
    }
}

/// Checks a value: what depends on the output could not be checked with the marker.
fn check_value(mark: &Mark, value: &str) -> Result<(), String> {
    match mark {
        Mark::Label(_) => names::label_value(value),
        _ if value.chars().count() > limits::ANNOTATION_VALUE => {
            Err(format!("more than {} characters", limits::ANNOTATION_VALUE))
        }
        _ => Ok(()),
    }
}

fn shorten(message: &Arc<str>) -> Arc<str> {
    if message.len() <= VERDICT_MESSAGE_BYTES {
        return message.clone();
    }
    truncate(message, VERDICT_MESSAGE_BYTES).into()
}
