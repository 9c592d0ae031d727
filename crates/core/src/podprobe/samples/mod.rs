//! Valid and slightly invalid markers, each with its expected verdict.
//!
//! Tests run the parser and an API server with the CRD over the same table, so that neither accepts what the other refuses.
//! Each sample is the manual's marker with one change. Feature `samples`, for tests alone.

mod handlers;
mod marker;
mod names;

use leadsman_api::limits;
use serde_json::{Map, Value, json};

use crate::samples::Mutations;

/// A marker and its expected verdict.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The change.
    pub name: String,
    /// The object.
    pub marker: Value,
    /// The expected verdict.
    pub verdict: SampleVerdict,
}

/// Whether a marker is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleVerdict {
    /// The marker is accepted.
    Accepted,
    /// The marker is refused with an error at this path.
    Refused(String),
    /// The marker does not decode: a value is of another type or out of its type's range.
    Unreadable,
}

const SELECTOR: &str = "/spec/selector";
const PROBES: &str = "/spec/probes";
const NAME: &str = "/spec/probes/0/name";
const CONTAINER: &str = "/spec/probes/0/containerName";
const PROBE: &str = "/spec/probes/0/probe";
const FILE: &str = "/spec/probes/0/file";
const OUTPUT: &str = "/spec/probes/0/output";
const CONDITION: &str = "/spec/probes/0/podConditionType";
const POLICIES: &str = "/spec/probes/0/markerPolicy";
const STATE: &str = "/spec/probes/0/markerPolicy/0/state";
const LABELS: &str = "/spec/probes/0/markerPolicy/0/labels";
const ANNOTATIONS: &str = "/spec/probes/0/markerPolicy/0/annotations";

/// The example of OpenKruise's manual (<https://openkruise.io/docs/user-manuals/podprobemarker>).
pub fn manual_marker() -> Value {
    json!({
        "apiVersion": "apps.kruise.io/v1alpha1",
        "kind": "PodProbeMarker",
        "metadata": {"name": "game-server-probe", "namespace": "ns"},
        "spec": {
            "selector": {"matchLabels": {"app": "game-server"}},
            "probes": [{
                "name": "Idle",
                "containerName": "game-server",
                "probe": {
                    "exec": {"command": ["/home/game/idle.sh"]},
                    "initialDelaySeconds": 10,
                    "timeoutSeconds": 3,
                    "periodSeconds": 10,
                    "successThreshold": 1,
                    "failureThreshold": 3,
                },
                "markerPolicy": [
                    {
                        "state": "Succeeded",
                        "labels": {"gameserver-idle": "true"},
                        "annotations": {"controller.kubernetes.io/pod-deletion-cost": "-10"},
                    },
                    {
                        "state": "Failed",
                        "labels": {"gameserver-idle": "false"},
                        "annotations": {"controller.kubernetes.io/pod-deletion-cost": "10"},
                    },
                ],
                "podConditionType": "game.io/idle",
            }],
        },
    })
}

/// The whole table.
pub fn all_samples() -> Vec<Sample> {
    let mut table = Table(Vec::new());
    table.add_accepted("manual", &[]);
    names::qualified_names(&mut table);
    names::add_values(&mut table);
    handlers::add_ports(&mut table);
    handlers::add_handlers(&mut table);
    handlers::add_files(&mut table);
    handlers::add_commands(&mut table);
    handlers::add_http(&mut table);
    handlers::add_timings(&mut table);
    marker::add_effects(&mut table);
    marker::add_outputs(&mut table);
    marker::add_exclusive(&mut table);
    names::add_reserved(&mut table);
    marker::add_selectors(&mut table);
    marker::add_probes(&mut table);
    table.add_accepted("everything at its maximum", &largest_marker());
    table.0
}

/// Random markers, determined by their seed.
pub fn marker_mutations(seed: u64) -> Mutations {
    // A schema cannot tell whether a text is a regular expression, and which values it gives.
    let samples = all_samples().into_iter();
    let samples = samples.filter(|sample| sample.marker.pointer(OUTPUT).is_none());
    let markers = samples.map(|sample| sample.marker);
    let keys = names::reserved_keys().into_iter();
    let keys = keys.chain(names::OPEN_KEYS.iter().map(|&key| key.to_owned()));
    let words = [
        "Succeeded",
        "Failed",
        "Ready",
        "game.io/idle",
        "KruisePodReady",
    ];
    Mutations::new(seed, markers, keys.chain(words.map(str::to_owned)))
}

/// A JSON pointer (RFC 6901) and the value to put there.
type Change = (&'static str, Value);

struct Table(Vec<Sample>);

impl Table {
    fn add_sample(&mut self, name: impl Into<String>, changes: &[Change], verdict: SampleVerdict) {
        let mut marker = manual_marker();
        for (pointer, value) in changes {
            set_at_pointer(&mut marker, pointer, value.clone());
        }
        self.0.push(Sample {
            name: name.into(),
            marker,
            verdict,
        });
    }

    fn add_accepted(&mut self, name: impl Into<String>, changes: &[Change]) {
        self.add_sample(name, changes, SampleVerdict::Accepted);
    }

    fn add_refused(
        &mut self,
        name: impl Into<String>,
        changes: &[Change],
        path: impl Into<String>,
    ) {
        self.add_sample(name, changes, SampleVerdict::Refused(path.into()));
    }
}

/// Sets the value at a JSON pointer, whose last key may be new.
fn set_at_pointer(marker: &mut Value, pointer: &str, value: Value) {
    let (parent, last) = pointer.rsplit_once('/').expect("a pointer has a '/'");
    let parent = marker.pointer_mut(parent).expect("the parent is there");
    match parent {
        Value::Array(items) => items[last.parse::<usize>().expect("an index")] = value,
        _ => parent[last] = value,
    }
}

/// `/spec/probes/0/name` as `spec.probes[0].name`.
fn pointer_to_path(pointer: &str) -> String {
    pointer
        .split('/')
        .skip(1)
        .fold(String::new(), |path, step| {
            match (step.parse::<usize>(), path.is_empty()) {
                (Ok(index), _) => format!("{path}[{index}]"),
                (Err(_), true) => step.to_owned(),
                (Err(_), false) => format!("{path}.{step}"),
            }
        })
}

/// A map with one key.
fn map_of_one(key: &str, value: &str) -> Value {
    json!({key: value})
}

/// A map of `count` keys.
fn map_of_many(count: usize, key: impl Fn(usize) -> String, value: &str) -> Value {
    (0..count)
        .map(|n| (key(n), value.into()))
        .collect::<Map<_, _>>()
        .into()
}

fn long_domain(length: usize) -> String {
    let mut domain = "abcdefg.".repeat(length / 8 + 1);
    domain.truncate(length - 1);
    domain + "z"
}

/// A marker with every list and string at its maximum: evaluating the CRD's rules must stay within the API server's runtime
/// budget (`RuntimeCELCostBudget`, `k8s.io/apiserver/pkg/apis/cel/config.go`).
fn largest_marker() -> [Change; 2] {
    let domain = long_domain(limits::SUBDOMAIN);
    let name = |kind: &str, n: usize| format!("{domain}/{kind}{n:060}");
    let value = "v".repeat(limits::LABEL);
    let keys = |kind: &str| map_of_many(limits::POLICY_KEYS, |n| name(kind, n), &value);
    let policy =
        |state: &str| json!({"state": state, "labels": keys("l"), "annotations": keys("a")});
    let header =
        json!({"name": "h".repeat(limits::HEADERS_BYTES / limits::HEADERS - 1), "value": "x"});
    let probe = |n: usize| {
        json!({
            "name": format!("probe-{n}"),
            "containerName": "c".repeat(limits::LABEL),
            "probe": {"httpGet": {"port": "abcdefghijklmno", "httpHeaders": vec![&header; limits::HEADERS]}},
            "podConditionType": name("c", n),
            "markerPolicy": [policy("Succeeded"), policy("Failed")],
        })
    };
    let expression = |n: usize| {
        let values = vec![value.as_str(); limits::SELECTOR_VALUES];
        json!({"key": name("e", n), "operator": "In", "values": values})
    };
    let labels = map_of_many(limits::SELECTOR_EXPRESSIONS, |n| name("m", n), &value);
    let expressions: Vec<_> = (0..limits::SELECTOR_EXPRESSIONS).map(expression).collect();
    [
        (
            SELECTOR,
            json!({"matchLabels": labels, "matchExpressions": expressions}),
        ),
        (
            PROBES,
            (0..limits::PROBES).map(probe).collect::<Vec<_>>().into(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::podprobe::{Compatibility, Marker};

    // PPM-15
    #[test]
    fn the_parser_gives_each_sample_its_expected_verdict() {
        let mut wrong = Vec::new();
        for Sample {
            name,
            marker,
            verdict,
        } in all_samples()
        {
            let read = serde_json::from_value(marker);
            let parsed = read.map(|marker| Marker::parse(&marker, Compatibility::Kubernetes));
            match (verdict, parsed) {
                (SampleVerdict::Accepted, Ok(Ok(_))) | (SampleVerdict::Unreadable, Err(_)) => {}
                (SampleVerdict::Refused(path), Ok(Err(errors)))
                    if errors.iter().any(|error| error.path == path) => {}
                (verdict, parsed) => {
                    let parsed = parsed.map(|parsed| parsed.map(|_| "accepted"));
                    wrong.push(format!("{name:.60}: {verdict:?}, but {parsed:.200?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn each_sample_has_a_name_of_its_own() {
        let samples = all_samples();
        let names: BTreeSet<_> = samples.iter().map(|sample| &sample.name).collect();
        assert_eq!(names.len(), samples.len());
        assert!(samples.len() > 150);
    }

    /// Of a thousand markers, the numbers that are accepted, are refused, and do not decode.
    fn verdicts(seed: u64) -> [usize; 3] {
        let mut counts = [0; 3];
        for marker in marker_mutations(seed).take(1000) {
            let read = serde_json::from_value(marker);
            let parsed = read.map(|marker| Marker::parse(&marker, Compatibility::Kubernetes));
            counts[match parsed {
                Ok(Ok(_)) => 0,
                Ok(Err(_)) => 1,
                Err(_) => 2,
            }] += 1;
        }
        counts
    }

    #[test]
    fn mutations_are_valid_and_nearly_valid_and_unreadable() {
        let counts = verdicts(1);
        assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
        assert_eq!(counts, verdicts(1));
        assert_ne!(counts, verdicts(2));
    }
}
