//! A parsed `PodProbeMarker`. Parsing is validation: the parser and the CRD refuse the same markers at the same fields, so
//! that a marker which was created under another CRD is not acted on, and its status says why.

mod policy;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

pub use self::policy::{OutputPolicy, Policy, PolicyPairs};
use self::policy::{PolicyReader, uses_values};
use super::compatibility::Compatibility;
use super::exclusive::Exclusive;
use super::output::ExpectedOutput;
use super::probe::State;
use super::resolved::ResolvedProbe;
use super::template::ProbeTemplate;
use super::verdict::{VERDICT_MESSAGE_BYTES, Verdict};
use crate::cluster::ObjectName;
use crate::cluster::{FieldErrors, Invalid, Selector, names, truncate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use leadsman_api::marker::PodContainerProbe;
use leadsman_api::{PodProbeMarker, limits};

/// Markers of which the probes are run for one pod, at most: of more that match it, the oldest. Anybody who may create
/// markers decides how many there are, and each event of the pod costs as much as all that are resolved for it.
pub const MARKERS_PER_POD: usize = 64;

/// Markers of a namespace that are acted on, at most: of more, the oldest. It bounds what one event of a pod costs, and what
/// is kept of a pod for the markers beyond those of which it has probes: a name in each direction, so no more than the
/// pod itself may have of metadata ([`limits::KEPT_POD_BYTES`]).
pub const MARKERS_PER_NAMESPACE: usize = 1024;

const _: () = assert!(MARKERS_PER_POD < MARKERS_PER_NAMESPACE);

/// A marker that can be acted on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Namespace and name.
    pub name: ObjectName,
    /// The marker's uid.
    pub uid: Arc<str>,
    /// The marker's generation.
    pub generation: i64,
    /// The creation time; of two markers that conflict the older wins.
    pub created: Timestamp,
    /// Selects pods of its namespace.
    pub selector: Selector,
    /// The marker's probes; their names and condition types are unique.
    pub probes: Vec<MarkerProbe>,
}

/// One probe of a marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkerProbe {
    /// Unique within the marker.
    pub name: Arc<str>,
    /// Name of the container or native sidecar.
    pub container: Arc<str>,
    /// The probe, its ports possibly names.
    pub template: ProbeTemplate,
    /// Name of its entries in `NodePodProbe`s: `<marker>#<probe>`.
    pub entry: Arc<str>,
    /// The probe as every pod has it; None if a port is a name, which each container resolves to a number of its own.
    pub resolved: Option<ResolvedProbe>,
    /// The expected output of a successful run.
    pub output: Option<Arc<ExpectedOutput>>,
    /// Type of the pod's condition that shows the verdict.
    pub condition_type: Option<Arc<str>>,
    /// The pod's labels and annotations while the verdict is Succeeded.
    pub succeeded: Option<Policy>,
    /// The pod's labels and annotations while the verdict is Failed.
    pub failed: Option<Policy>,
    /// The value of a label that only one pod has, of those that `succeeded` sets.
    pub exclusive: Option<Arc<Exclusive>>,
}

impl MarkerProbe {
    /// All pairs that its policies set, whatever verdict and output.
    pub fn all_pairs(&self) -> impl Iterator<Item = &PolicyPairs> {
        let policies = self.succeeded.iter().chain(&self.failed);
        policies.flat_map(Policy::all_pairs)
    }

    /// The policy of a state. Unknown says that what was known is void, so neither policy holds.
    pub fn policy_of(&self, state: State) -> Option<&Policy> {
        match state {
            State::Succeeded => self.succeeded.as_ref(),
            State::Failed => self.failed.as_ref(),
            State::Unknown => None,
        }
    }

    /// A verdict as it stands for this probe: its values, or a mismatch, are read from its message where whoever made it did not
    /// judge the output.
    pub fn judge_verdict<'v>(&self, verdict: &'v Verdict) -> Cow<'v, Verdict> {
        let Some(output) = &self.output else {
            return Cow::Borrowed(verdict);
        };
        if verdict.values.is_some() || verdict.state != State::Succeeded {
            return Cow::Borrowed(verdict);
        }
        Cow::Owned(match output.judge(&verdict.message) {
            Ok(values) => Verdict {
                values: Some(Arc::new(values)),
                ..verdict.clone()
            },
            Err(mismatch) => Verdict {
                state: mismatch.state,
                message: truncate(&mismatch.message, VERDICT_MESSAGE_BYTES).into(),
                ..verdict.clone()
            },
        })
    }
}

impl Marker {
    /// Whether a probe has a value that only one pod of a group has.
    pub fn has_exclusive(&self) -> bool {
        let mut probes = self.probes.iter();
        probes.any(|probe| probe.exclusive.is_some())
    }

    /// Parses a marker.
    ///
    /// # Errors
    ///
    /// All fields that are invalid. Fields that the API server sets (uid, generation, creation time) may be missing, so that
    /// a marker can be checked before it is created.
    pub fn parse(
        marker: &PodProbeMarker,
        compatibility: Compatibility,
    ) -> Result<Self, Vec<Invalid>> {
        let mut errors = Vec::new();
        let mut report = FieldErrors::new(&mut errors, "spec");
        let selector = Selector::read(&marker.spec.selector, &mut report.field("selector"));
        // An empty selector would select every pod of the namespace (`LabelSelector`,
        // `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`).
        if selector_is_empty(&marker.spec.selector) {
            let message =
                "must not be empty: name a label of the pods in matchLabels or matchExpressions";
            report.field("selector").add(message);
        }
        let mut at = report.field("probes");
        if marker.spec.probes.is_empty() {
            at.add("must not be empty: a marker without a probe does nothing");
        }
        at.at_most(marker.spec.probes.len(), limits::PROBES, "probes");
        let mut unique = UniqueFields::default();
        // An error of two fields is reported at their common parent, as the CRD's rule is evaluated there
        // (a rule of `x-kubernetes-validations` sees only the field on which it is set).
        for (index, probe) in marker.spec.probes.iter().enumerate() {
            unique.check_unique(index, probe, &mut at);
            refuse_selector_labels(&marker.spec.selector, probe, &mut at);
        }
        let mut probes = Vec::new();
        for (index, probe) in marker.spec.probes.iter().enumerate() {
            probes.extend(MarkerProbe::parse_probe(
                probe,
                marker,
                compatibility,
                &mut at.index(index),
            ));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let meta = &marker.metadata;
        let created = meta.creation_timestamp.as_ref();
        Ok(Self {
            name: ObjectName {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            },
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            generation: meta.generation.unwrap_or_default(),
            created: created.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            selector,
            probes,
        })
    }
}

/// Names and condition types of the probes so far.
#[derive(Default)]
struct UniqueFields<'a> {
    names: Occurrences<'a>,
    condition_types: BTreeSet<&'a str>,
}

impl<'a> UniqueFields<'a> {
    fn check_unique(
        &mut self,
        index: usize,
        probe: &'a PodContainerProbe,
        report: &mut FieldErrors<'_>,
    ) {
        if self.names.is_second(&probe.name) {
            let message = format!("another probe of this marker is named {:?}", probe.name);
            report.index(index).add(message);
        }
        if let Some(condition_type) = condition_type(probe)
            && !self.condition_types.insert(condition_type)
        {
            report.add(format!(
                "probe {:?} has the podConditionType {condition_type:?}, which another probe of this marker has too",
                probe.name
            ));
        }
    }
}

/// Counts texts. Of three equal keys of a list the API server reports only the second
/// (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype`).
#[derive(Default)]
struct Occurrences<'a>(BTreeMap<&'a str, usize>);

impl<'a> Occurrences<'a> {
    /// Counts a text; true if this is its second occurrence.
    fn is_second(&mut self, text: &'a str) -> bool {
        let count = self.0.entry(text).or_default();
        *count += 1;
        *count == 2
    }
}

fn selector_is_empty(selector: &LabelSelector) -> bool {
    let labels = selector.match_labels.as_ref();
    let expressions = selector.match_expressions.as_ref();
    labels.is_none_or(BTreeMap::is_empty) && expressions.is_none_or(Vec::is_empty)
}

/// Refuses labels that the marker's own selector reads: a verdict could make the pod match no more, whereupon its marks would
/// be removed and it would match again, without end.
fn refuse_selector_labels(
    selector: &LabelSelector,
    probe: &PodContainerProbe,
    report: &mut FieldErrors<'_>,
) {
    let reads = |key: &str| {
        let labels = selector.match_labels.as_ref();
        let mut expressions = selector.match_expressions.iter().flatten();
        labels.is_some_and(|labels| labels.contains_key(key))
            || expressions.any(|expression| expression.key == key)
    };
    let policies = probe.marker_policy.iter();
    let keys = policies.flat_map(|policy| {
        let outputs = policy.outputs.iter().flat_map(|one| one.labels.keys());
        policy.labels.keys().chain(outputs)
    });
    // A set, since both policies of a probe may name the same label.
    let read: BTreeSet<_> = keys.filter(|key| reads(key)).collect();
    for key in read {
        report.add(format!(
            "probe {:?} sets label {key:?}, which the marker's own selector reads: a verdict would take the pod out of it",
            probe.name
        ));
    }
}

fn condition_type(probe: &PodContainerProbe) -> Option<&str> {
    let given = probe.pod_condition_type.as_deref();
    given.filter(|given| !given.is_empty())
}

impl MarkerProbe {
    fn parse_probe(
        probe: &PodContainerProbe,
        marker: &PodProbeMarker,
        compatibility: Compatibility,
        report: &mut FieldErrors<'_>,
    ) -> Option<Self> {
        report.field("name").check(check_probe_name(&probe.name));
        report
            .field("containerName")
            .check(names::container_name(&probe.container_name));
        let condition_type = condition_type(probe);
        if let Some(given) = condition_type {
            let checked = names::qualified_name(given).and_then(|()| check_condition_type(given));
            report.field("podConditionType").check(checked);
        } else if probe.marker_policy.is_empty() {
            report.add("has no effect: set podConditionType, markerPolicy or both");
        }
        if probe.output.is_none() && probe.marker_policy.iter().any(uses_values) {
            report.add("refers to values of the output: set output.matches");
        }
        Exclusive::check_policies(&probe.marker_policy, report);
        let wire = probe.output.as_ref();
        let output =
            wire.and_then(|output| ExpectedOutput::read(output, &mut report.field("output")));
        let output = output.map(Arc::new);
        let reader = match &output {
            Some(output) => PolicyReader::Expected(output),
            None if wire.is_some() => PolicyReader::Invalid,
            None => PolicyReader::Anything,
        };
        let ([succeeded, failed], exclusive) =
            reader.read_policies(&probe.marker_policy, &mut report.field("markerPolicy"));
        let file = probe.file.as_ref();
        let template = ProbeTemplate::parse_template(&probe.probe, file, compatibility, report)?;
        // A probe without a named port is the same in every pod: resolved once, all entries share it.
        let resolved = template.resolve_ports(|_| None).ok();
        let marker = marker.metadata.name.as_deref().unwrap_or_default();
        Some(Self {
            name: probe.name.as_str().into(),
            container: probe.container_name.as_str().into(),
            entry: format!("{marker}#{}", probe.name).into(),
            resolved: resolved.map(|resolved| {
                ResolvedProbe::new(resolved, &probe.container_name, output.as_deref())
            }),
            template,
            output,
            condition_type: condition_type.map(Into::into),
            succeeded,
            failed,
            exclusive: exclusive.map(Arc::new),
        })
    }
}

/// Checks that a condition is none that Kubernetes or `OpenKruise` use themselves ([`limits`]).
fn check_condition_type(condition_type: &str) -> Result<(), String> {
    if limits::RESERVED_CONDITION_TYPES.contains(&condition_type) {
        return Err(format!(
            "{condition_type:?} is a condition of Kubernetes or OpenKruise itself"
        ));
    }
    Ok(())
}

/// Checks the name of a probe, which follows a `#` in the name of its entries and appears in messages.
fn check_probe_name(name: &str) -> Result<(), String> {
    if (1..=limits::PROBE_NAME).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_graphic() && b != b'#')
    {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not a valid probe name: 1 to 253 printable ASCII characters without blanks and '#'"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::podprobe::output::ValueText;
    use crate::podprobe::samples::manual_marker;

    fn parse(marker: Value) -> Result<Marker, Vec<Invalid>> {
        let marker = serde_json::from_value(marker).unwrap();
        Marker::parse(&marker, Compatibility::Kubernetes)
    }

    #[test]
    fn the_marker_of_the_manual_is_parsed() {
        let mut wire = manual_marker();
        wire["metadata"]["uid"] = json!("u-1");
        wire["metadata"]["generation"] = json!(7);
        wire["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
        let marker = parse(wire).unwrap();
        assert_eq!(marker.name.to_string(), "ns/game-server-probe");
        assert_eq!((&*marker.uid, marker.generation), ("u-1", 7));
        assert_eq!(marker.created, "2026-01-02T03:04:05Z".parse().unwrap());
        let [probe] = marker.probes.as_slice() else {
            panic!("one probe: {:?}", marker.probes);
        };
        assert_eq!((&*probe.name, &*probe.container), ("Idle", "game-server"));
        assert_eq!(probe.condition_type.as_deref(), Some("game.io/idle"));
        let policy = |idle: &str, cost: &str| {
            let pair =
                |key: &str, value: &str| [(key.into(), ValueText::Fixed(value.into()))].into();
            Some(Policy {
                pairs: PolicyPairs {
                    labels: pair("gameserver-idle", idle),
                    annotations: pair("controller.kubernetes.io/pod-deletion-cost", cost),
                },
                ..Policy::default()
            })
        };
        assert_eq!(probe.succeeded, policy("true", "-10"));
        assert_eq!(probe.failed, policy("false", "10"));
    }

    #[test]
    fn a_marker_without_the_api_servers_fields_is_parsed() {
        let mut wire = manual_marker();
        wire["metadata"] = json!({"name": "m", "creationTimestamp": null});
        let marker = parse(wire).unwrap();
        assert_eq!(marker.name.to_string(), "m");
        assert_eq!((&*marker.uid, marker.generation), ("", 0));
    }

    // PPM-15
    #[test]
    fn all_errors_are_reported_at_once() {
        let mut wire = manual_marker();
        wire["spec"]["selector"]["matchLabels"]["-"] = json!("");
        let probe = &mut wire["spec"]["probes"][0];
        probe["name"] = json!("");
        probe["containerName"] = json!("");
        probe["podConditionType"] = json!("Ready");
        probe["probe"] =
            json!({"periodSeconds": -1, "exec": {}, "tcpSocket": {"port": 0, "host": "h"}});
        probe["markerPolicy"][1]["state"] = json!("Succeeded");
        probe["markerPolicy"][1]["labels"] = json!({"app": "x", "pod-template-hash": "-"});
        let paths: Vec<_> = parse(wire)
            .unwrap_err()
            .into_iter()
            .map(|error| error.path)
            .collect();
        assert_eq!(
            paths,
            [
                "spec.selector.matchLabels",
                "spec.probes",
                "spec.probes[0].name",
                "spec.probes[0].containerName",
                "spec.probes[0].podConditionType",
                "spec.probes[0].markerPolicy[1]",
                "spec.probes[0].markerPolicy[1].labels",
                "spec.probes[0].markerPolicy[1].labels[pod-template-hash]",
                "spec.probes[0].probe.exec.command",
                "spec.probes[0].probe.tcpSocket.host",
                "spec.probes[0].probe.tcpSocket.port",
                "spec.probes[0].probe",
                "spec.probes[0].probe.periodSeconds",
            ]
        );
    }

    // PPM-15, PPM-21
    #[test]
    fn values_that_an_output_does_not_have_are_refused_where_they_are_used() {
        let mut wire = manual_marker();
        let probe = &mut wire["spec"]["probes"][0];
        probe["output"] = json!({"matches": "(?<role>[a-z]+)"});
        let policy = &mut probe["markerPolicy"][0];
        policy["labels"] = json!({"good": "$(role)", "bad": "$(rule)", "worse": "-$(role)"});
        policy["message"] = json!("$(none)");
        policy["outputs"] = json!([{"when": {"rule": "x"}, "annotations": {"a": "$(b)"}}]);
        let errors = parse(wire).unwrap_err();
        let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
        let at = |field: &str| format!("spec.probes[0].markerPolicy[0].{field}");
        assert_eq!(
            paths,
            [
                at("labels[bad]"),
                at("labels[worse]"),
                at("message"),
                at("outputs[0].when"),
                at("outputs[0].annotations[a]"),
            ]
        );
        assert!(
            errors[0]
                .to_string()
                .ends_with("output.matches has no part (?<rule>...)")
        );
    }

    #[test]
    fn an_error_names_its_field_and_the_rule() {
        let mut wire = manual_marker();
        wire["spec"]["probes"][0]["probe"]["terminationGracePeriodSeconds"] = json!(1);
        let errors = parse(wire).unwrap_err();
        assert_eq!(
            errors[0].to_string(),
            "spec.probes[0].probe.terminationGracePeriodSeconds: must not be set: this probe never terminates a pod"
        );
    }
}
