//! Values in outputs, and verdicts that have to hold before they count.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::proof::KINDS;
use super::scene::{exec, plain};
use super::world::World;

/// A role, and a further annotation of the primary.
fn role(policies: &Value) -> Value {
    json!({
        "name": "role", "containerName": "main", "probe": exec("role"), "podConditionType": "db/role",
        "output": { "matches": "^(?<role>[a-z ]+)(?: (?<version>[0-9]+))?$", "mismatch": "Unknown" },
        "markerPolicy": policies,
    })
}

fn roles() -> Value {
    json!([
        {
            "state": "Succeeded", "labels": { "role": "$(role)" }, "annotations": { "version": "v$(version)/$$(x)" },
            "message": "is $(role)",
            "outputs": [
                { "when": { "role": "primary" }, "annotations": { "cost": "100" } },
                { "when": { "role": "replica" }, "annotations": { "cost": "1" } },
            ],
        },
        { "state": "Failed", "labels": { "role": "none" } },
    ])
}

/// What the agent says: by the values that it read, or by the message alone.
#[derive(Clone, Copy, Debug)]
enum By {
    Values,
    Message,
}

impl World {
    fn output(&mut self, by: By, state: &str, values: [&str; 2]) {
        let [role, version] = values;
        let message = format!("{role} {version}");
        self.verdict_with("way#role", state, message.trim(), |verdict| {
            let read = [("role", role), ("version", version)];
            let read: BTreeMap<_, _> = read
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
            verdict.values = match by {
                By::Values if state == "Succeeded" => Some(read),
                _ => None,
            };
        });
    }

    fn condition(&self, kind: &str) -> (String, String) {
        let value = &self.pod().conditions[kind].value;
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("message"))
    }
}

// PPM-21
#[rstest]
fn values_of_the_output_are_marks(#[values(By::Values, By::Message)] by: By) {
    let mut world = World::probing(&[role(&roles())]);
    let marks = |world: &World| {
        let (labels, annotations) = (&world.pod().labels, &world.pod().annotations);
        (plain(labels), plain(annotations))
    };
    world.output(by, "Succeeded", ["primary", "7"]);
    let expected = (
        json!({ "app": "x", "role": "primary" }),
        json!({ "version": "v7/$(x)", "cost": "100" }),
    );
    assert_eq!(marks(&world), expected);
    assert_eq!(
        world.condition("db/role"),
        ("True".into(), "is primary".into())
    );
    world.output(by, "Succeeded", ["replica", ""]);
    let expected = (
        json!({ "app": "x", "role": "replica" }),
        json!({ "version": "v/$(x)", "cost": "1" }),
    );
    assert_eq!(marks(&world), expected);
    world.output(by, "Succeeded", ["learner", "9"]);
    let expected = (
        json!({ "app": "x", "role": "learner" }),
        json!({ "version": "v9/$(x)" }),
    );
    assert_eq!(marks(&world), expected);
    world.output(by, "Failed", ["primary", "7"]);
    assert_eq!(
        marks(&world),
        (json!({ "app": "x", "role": "none" }), json!({}))
    );
    world.output(by, "Unknown", ["", ""]);
    assert_eq!(marks(&world), (json!({ "app": "x" }), json!({})));
}

// PPM-21
#[test]
fn a_message_that_does_not_match_is_the_mismatch_of_the_marker() {
    let mut world = World::probing(&[role(&roles())]);
    world.output(By::Message, "Succeeded", ["primary", "7"]);
    world.output(By::Message, "Succeeded", ["PRIMARY", "7"]);
    assert_eq!(plain(&world.pod().labels), json!({ "app": "x" }));
    let (status, message) = world.condition("db/role");
    assert_eq!(status, "Unknown");
    assert_eq!(message, "the output does not match: PRIMARY 7");
    assert_eq!(world.status("way").probes[0].unknown, 1);
}

// PPM-21
#[test]
fn a_value_that_is_no_label_value_is_refused_and_said() {
    let mut world = World::probing(&[role(&roles())]);
    world.output(By::Values, "Succeeded", ["primary", "7"]);
    world.output(By::Values, "Succeeded", ["pri mary", "8"]);
    world.rest_for(Duration::from_secs(5));
    // What it was is not true any more; what is valid is set.
    assert_eq!(plain(&world.pod().labels), json!({ "app": "x" }));
    assert_eq!(
        plain(&world.pod().annotations),
        json!({ "version": "v8/$(x)" })
    );
    let (reason, message) = world.ready("way");
    assert_eq!(reason, "InvalidValue");
    assert!(
        message.contains("p0 (label role: \"pri mary\" is not a valid label value"),
        "{message}"
    );
    world.output(By::Values, "Succeeded", ["primary", "9"]);
    world.rest_for(Duration::from_secs(5));
    assert_eq!(world.ready("way").0, "Probing");
}

const IDLE_HOLD: i64 = 600;
const BUSY_HOLD: i64 = 30;

fn held() -> Value {
    json!({
        "name": "role", "containerName": "main", "probe": exec("idle"), "podConditionType": "db/role",
        "markerPolicy": [
            { "state": "Succeeded", "holdSeconds": IDLE_HOLD, "labels": { "idle": "true" } },
            { "state": "Failed", "holdSeconds": BUSY_HOLD, "labels": { "idle": "false" } },
        ],
    })
}

/// Lets so many seconds pass, and all that is due in them.
fn live(world: &mut World, seconds: i64) {
    let time = SignedDuration::from_secs(seconds);
    let end = world.cluster.now + time;
    world.rest_for(time.unsigned_abs());
    let left = end.duration_since(world.cluster.now);
    world.pass(left);
    world.drain();
}

fn label(world: &World) -> Option<String> {
    let mark = world.pod().labels.get("idle")?;
    mark.value.as_str().map(str::to_owned)
}

// PPM-22
#[test]
fn a_verdict_counts_when_it_has_held_and_the_condition_says_when() {
    let mut world = World::probing(&[held()]);
    let start = world.cluster.now;
    world.verdict("way#role", "Succeeded", "quiet");
    assert_eq!(label(&world), None);
    let until = start + SignedDuration::from_secs(IDLE_HOLD);
    let text = format!("Succeeded since {start}, counts from {until}: quiet");
    assert_eq!(world.condition("db/role"), ("Unknown".into(), text));
    let writes = world.writes.len();
    live(&mut world, IDLE_HOLD - 1);
    assert_eq!((label(&world), world.pod_writes().len()), (None, 1));
    assert!(world.writes.len() <= writes + 1, "its status alone");
    live(&mut world, 1);
    assert_eq!(label(&world).as_deref(), Some("true"));
    assert_eq!(world.condition("db/role"), ("True".into(), "quiet".into()));
    assert_eq!(world.cluster.now, until);
    // A short failure changes nothing but the message.
    world.verdict("way#role", "Failed", "busy");
    assert_eq!(label(&world).as_deref(), Some("true"));
    let (status, message) = world.condition("db/role");
    assert_eq!(status, "True");
    assert!(message.starts_with("Failed since "), "{message}");
    live(&mut world, BUSY_HOLD);
    assert_eq!(label(&world).as_deref(), Some("false"));
}

/// What happens to a pod whose verdicts have to hold.
#[derive(Clone, Copy, Debug)]
enum HoldStep {
    /// The agent reports, and the manager sees it.
    Verdict(&'static str),
    /// The agent reports, and the manager sees only what comes later.
    Missed(&'static str),
    Pass(i64),
    /// Another manager takes over.
    Restart,
}

fn step() -> impl Strategy<Value = HoldStep> {
    let state = || prop::sample::select(vec!["Succeeded", "Failed", "Unknown"]);
    let times = vec![1, 29, 30, 31, 299, 300, 599, 600, 601];
    prop_oneof![
        3 => state().prop_map(HoldStep::Verdict),
        1 => state().prop_map(HoldStep::Missed),
        4 => prop::sample::select(times).prop_map(HoldStep::Pass),
        2 => Just(HoldStep::Restart),
    ]
}

/// The mark by the shortest rules: a verdict that has held decides; before that, what it would set is not there, and all
/// else stays.
#[derive(Default)]
struct Oracle {
    verdict: Option<(&'static str, Timestamp)>,
    label: Option<&'static str>,
}

impl Oracle {
    fn look(&mut self, now: Timestamp) {
        let (value, hold) = match self.verdict {
            None => return,
            Some(("Succeeded", _)) => (Some("true"), IDLE_HOLD),
            Some(("Failed", _)) => (Some("false"), BUSY_HOLD),
            Some(_) => (None, 0),
        };
        let since = self.verdict.map_or(now, |(_, since)| since);
        if now.duration_since(since).as_secs() >= hold {
            self.label = value;
        } else if self.label == value {
            self.label = None;
        }
    }
}

proptest! {
    // PPM-22
    #[test]
    fn any_history_of_verdicts_and_restarts_marks_by_what_has_held(
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let mut world = World::probing(&[held()]);
        let mut oracle = Oracle::default();
        for step in steps {
            match step {
                HoldStep::Verdict(state) | HoldStep::Missed(state) => {
                    if oracle.verdict.is_none_or(|(before, _)| before != state) {
                        oracle.verdict = Some((state, world.cluster.now));
                    }
                    let since = oracle.verdict.map(|(_, since)| since);
                    world.report("way#role", state, "", |verdict| {
                        verdict.last_transition_time = since.map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time);
                    });
                    if matches!(step, HoldStep::Missed(_)) {
                        continue;
                    }
                }
                HoldStep::Pass(seconds) => {
                    world.drain();
                    oracle.look(world.cluster.now);
                    live(&mut world, seconds);
                }
                HoldStep::Restart => world.restart(KINDS),
            }
            world.drain();
            oracle.look(world.cluster.now);
            let found = label(&world);
            prop_assert_eq!(found.as_deref(), oracle.label, "{:?}", step);
        }
    }
}
