//! The policies of a marker: what it sets on a pod for a verdict.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use leadsman_api::limits;
use leadsman_api::marker as wire;
use leadsman_api::marker::ProbeMarkerPolicy;

use super::Occurrences;
use crate::cluster::{FieldErrors, names};
use crate::podprobe::exclusive::Exclusive;
use crate::podprobe::output::{ExpectedOutput, OutputValues, ValueText};

/// Labels and annotations of a pod for one verdict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The pairs that it sets whatever the output.
    pub pairs: PolicyPairs,
    /// The message of the condition in place of the probe's.
    pub message: Option<ValueText>,
    /// How long state and values have to hold until they count.
    pub hold: SignedDuration,
    /// Policies for certain values of the output, beside `pairs`: the first that fits counts.
    pub outputs: Vec<OutputPolicy>,
}

/// Labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyPairs {
    /// Labels.
    pub labels: BTreeMap<Arc<str>, ValueText>,
    /// Annotations.
    pub annotations: BTreeMap<Arc<str>, ValueText>,
}

/// The part of a policy for certain values of the output, in place of the policy's own pairs where the keys are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPolicy {
    /// The values, by name.
    pub when: OutputValues,
    /// The pairs that it sets.
    pub pairs: PolicyPairs,
    /// Replaces [`Policy::hold`].
    pub hold: Option<SignedDuration>,
}

impl Policy {
    /// All pairs that it sets, whatever the output.
    pub fn all_pairs(&self) -> impl Iterator<Item = &PolicyPairs> {
        let outputs = self.outputs.iter().map(|output| &output.pairs);
        std::iter::once(&self.pairs).chain(outputs)
    }
}

/// Whether a policy refers to values of the output. In an annotation `$(name)` always was a text like any other, and is one where
/// the probe has no `output`.
pub(super) fn uses_values(policy: &ProbeMarkerPolicy) -> bool {
    let mut texts = policy.labels.values().chain(&policy.message);
    let versions = |exclusive: &wire::ExclusiveLabel| exclusive.version.is_some();
    !policy.outputs.is_empty()
        || texts.any(|text| text.contains("$("))
        || policy.exclusive.as_ref().is_some_and(versions)
}

/// Reads the policies of one probe, by what it says that the output has to be.
pub(super) enum PolicyReader<'a> {
    /// Any output will do.
    Anything,
    /// The expected output is invalid, so no value of it is checked.
    Invalid,
    /// The expected output has these values.
    Expected(&'a ExpectedOutput),
}

impl PolicyReader<'_> {
    /// Reads the policies of Succeeded and of Failed, and the value that only one pod has.
    pub(super) fn read_policies(
        &self,
        policies: &[ProbeMarkerPolicy],
        report: &mut FieldErrors<'_>,
    ) -> ([Option<Policy>; 2], Option<Exclusive>) {
        report.at_most(policies.len(), 2, "policies");
        let [mut succeeded, mut failed] = [None, None];
        let mut exclusive = None;
        let mut states = Occurrences::default();
        for (index, policy) in policies.iter().enumerate() {
            let mut at = report.index(index);
            if states.is_second(&policy.state) {
                at.add(format!("there is another policy for {:?}", policy.state));
            }
            let read = self.read_policy(policy, &mut at);
            let check = |name: &str, at: &mut FieldErrors<'_>| self.check_value_name(name, at);
            exclusive = Exclusive::read(policy, check, &mut at).or(exclusive);
            match policy.state.as_str() {
                "Succeeded" => succeeded = Some(read),
                "Failed" => {
                    if uses_values(policy) {
                        at.add("has no values: only a run that succeeds has output that matches");
                    }
                    failed = Some(read);
                }
                other => {
                    let message = format!("{other:?} is not one of Succeeded, Failed");
                    at.field("state").add(message);
                }
            }
        }
        ([succeeded, failed], exclusive)
    }

    fn read_policy(&self, policy: &ProbeMarkerPolicy, report: &mut FieldErrors<'_>) -> Policy {
        let hold = read_hold(policy.hold_seconds, report);
        let message = policy.message.as_deref().filter(|text| !text.is_empty());
        let sets_pairs = !policy.labels.is_empty() || !policy.annotations.is_empty();
        let sets_more = message.is_some() || hold.is_positive() || !policy.outputs.is_empty();
        if !sets_pairs && !sets_more {
            report.add("sets nothing: give it labels, annotations, a message or a time to hold");
        }
        let maps = [&policy.labels, &policy.annotations];
        let pairs = self.read_pairs(maps, limits::POLICY_KEYS, report);
        let message = message.map(|text| {
            let mut report = report.field("message");
            report.at_most_chars(text, limits::POLICY_MESSAGE);
            self.read_text(text, &mut report)
        });
        let mut at = report.field("outputs");
        at.at_most(policy.outputs.len(), limits::OUTPUT_POLICIES, "outputs");
        let outputs = policy.outputs.iter().enumerate();
        Policy {
            pairs,
            message,
            hold,
            outputs: outputs
                .map(|(index, output)| self.read_output_policy(output, &mut at.index(index)))
                .collect(),
        }
    }

    fn read_output_policy(
        &self,
        policy: &wire::OutputPolicy,
        report: &mut FieldErrors<'_>,
    ) -> OutputPolicy {
        let mut at = report.field("when");
        if policy.when.is_empty() {
            at.add("must not be empty: name a value of the output");
        }
        at.at_most(policy.when.len(), limits::OUTPUT_VALUES, "values");
        for (name, value) in &policy.when {
            self.check_value_name(name, &mut at);
            at.key(name)
                .at_most_chars(value, limits::OUTPUT_VALUES_BYTES);
        }
        if policy.labels.is_empty()
            && policy.annotations.is_empty()
            && policy.hold_seconds.is_none()
        {
            report.add("sets nothing: give it labels, annotations or a time to hold");
        }
        let when = policy.when.iter();
        let maps = [&policy.labels, &policy.annotations];
        OutputPolicy {
            when: when
                .map(|(name, value)| (name.as_str().into(), value.as_str().into()))
                .collect(),
            pairs: self.read_pairs(maps, limits::OUTPUT_POLICY_KEYS, report),
            hold: policy
                .hold_seconds
                .map(|seconds| read_hold(Some(seconds), report)),
        }
    }

    fn read_pairs(
        &self,
        [labels, annotations]: [&BTreeMap<String, String>; 2],
        most: usize,
        report: &mut FieldErrors<'_>,
    ) -> PolicyPairs {
        let mut pairs = PolicyPairs::default();
        let mut at = report.field("labels");
        at.at_most(labels.len(), most, "labels");
        for (key, value) in labels {
            at.check(names::qualified_name(key));
            at.check(names::unreserved_key(key));
            let mut at = at.key(key);
            let text = ValueText::parse(value);
            // Each reference is checked as an `x`: whether its value fits, an output decides.
            at.check(names::label_value(&text.fill_with("x")));
            if text.names().next().is_some() {
                at.at_most_chars(value, limits::LABEL);
            }
            pairs
                .labels
                .insert(key.as_str().into(), self.read_text(value, &mut at));
        }
        let mut at = report.field("annotations");
        at.at_most(annotations.len(), most, "annotations");
        for (key, value) in annotations {
            // Upper case is allowed in the domain of an annotation (`ValidateAnnotations` in
            // k8s.io/apimachinery/pkg/api/validation/objectmeta.go).
            at.check(names::qualified_name(&key.to_ascii_lowercase()));
            at.check(names::unreserved_key(key));
            let mut at = at.key(key);
            at.at_most_chars(value, limits::ANNOTATION_VALUE);
            let text = self.read_text(value, &mut at);
            pairs.annotations.insert(key.as_str().into(), text);
        }
        let bytes = annotations
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        at.at_most(bytes, limits::ANNOTATIONS_BYTES, "bytes of annotations");
        pairs
    }

    /// Reads a text, in which references to values count where the probe has an `output`.
    fn read_text(&self, text: &str, report: &mut FieldErrors<'_>) -> ValueText {
        if let Self::Anything = self {
            return ValueText::Fixed(text.into());
        }
        let text = ValueText::parse(text);
        for name in text.names() {
            self.check_value_name(name, report);
        }
        text
    }

    fn check_value_name(&self, name: &str, report: &mut FieldErrors<'_>) {
        if let Self::Expected(output) = self
            && !output.has_value(name)
        {
            report.add(format!("output.matches has no part (?<{name}>...)"));
        }
    }
}

/// Reads how long a verdict has to hold.
fn read_hold(seconds: Option<i32>, report: &mut FieldErrors<'_>) -> SignedDuration {
    let seconds = seconds.unwrap_or_default();
    if !(0..=limits::HOLD_SECONDS).contains(&seconds) {
        let most = limits::HOLD_SECONDS;
        let message = format!("{seconds} is not within 0 and {most}");
        report.field("holdSeconds").add(message);
    }
    SignedDuration::from_secs(seconds.into())
}
