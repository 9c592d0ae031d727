//! `kubectl leadsman history`: when the verdicts of a pod changed, and the recent runs of its probes.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use clap_complete::engine::ArgValueCompleter;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_core::podprobe::explain::{Explanation, MarkerFit, ProbeExplanation, VerdictSource};
use leadsman_core::podprobe::history::{RecordedRun, ResultsInARow};
use leadsman_process::RandomSource;
use leadsman_process::list::ListTarget;
use leadsman_process::watcher::{WatchEvent, list_and_watch};
use serde::Serialize;

use crate::connection::ConnectionFlags;
use crate::explain::explain_pods;
use crate::output::{self, Colors, NO_TABLE, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::recent_runs::known_uids;
use crate::report::{Report, Text, TextTable, bold, line, or_dash, print_report, row, verdict};
use crate::resources::EVENTS;
use crate::targets::{PodsOf, parse_target};
use crate::{VerbError, completion};

/// The flags of `history`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman history pod/game-0\n  kubectl leadsman history game-0 -n prod -o wide\n  kubectl leadsman history game-0 -w"
)]
pub struct HistoryArgs {
    /// pod/NAME, or NAME
    #[arg(value_name = "pod/NAME", num_args = 1..=2, required = true, add = ArgValueCompleter::new(completion::complete_pods))]
    pod: Vec<String>,
    /// Keep running, and show each change of a verdict that has an event
    #[arg(short, long)]
    watch: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The known past of a pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodHistory {
    namespace: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// The oldest first.
    transitions: Vec<Transition>,
    probes: Vec<ProbeRuns>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
}

impl PodHistory {
    /// Whether it has the event of a transition. Another change may have happened in the same second.
    fn has_event_of(&self, transition: &Transition) -> bool {
        let of_probe =
            |one: &&Transition| one.probe == transition.probe && one.state == transition.state;
        let mut known = self.transitions.iter().filter(of_probe);
        known.any(|one| one.seen_in == SeenIn::Event && one.time == transition.time)
    }
}

/// A change of a verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Transition {
    /// The time when it happened, or happened last.
    time: Time,
    /// `MARKER#PROBE`
    probe: String,
    /// The new verdict: `Succeeded`, `Failed` or `Unknown`.
    state: String,
    /// How often the verdict became so, as far as the same event counted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<i32>,
    seen_in: SeenIn,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum SeenIn {
    /// An event of the pod.
    Event,
    /// The agent's report.
    Report,
    /// A condition of the pod.
    Condition,
}

impl SeenIn {
    fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Report => "report",
            Self::Condition => "condition",
        }
    }
}

/// The recent runs of a probe.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ProbeRuns {
    /// `MARKER#PROBE`
    probe: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_a_row: Option<ResultsInARow>,
    /// The newest one last.
    runs: Vec<RecordedRun>,
}

pub(crate) async fn run(args: &HistoryArgs) -> Result<(), VerbError> {
    let words: Vec<_> = args.pod.iter().map(String::as_str).collect();
    let target = parse_target(&words, None)?;
    if !matches!(target, PodsOf::Pod(_)) {
        let usage = "a history is of one pod: pod/NAME; for several, kubectl leadsman top";
        return Err(VerbError::Usage(usage.to_owned()));
    }
    let is_wide = args.output == OutputFormat::Wide;
    if args.watch && !is_wide && args.output != OutputFormat::Table {
        return Err(VerbError::Usage(NO_TABLE.to_owned()));
    }
    let (reader, namespace) = args.connection.connect_reader().await?;
    let selected = target.select_pods(&reader, Some(&namespace)).await?;
    let pods = selected.read_pods(&reader).await?;
    let uids = known_uids(&pods);
    let now = reader.cluster_time().await;
    let (explained, agents) = explain_pods(&reader, pods, now).await?;
    for mut pod in explained {
        reader.add_recent_runs(&mut pod, &agents, &uids).await;
        let history = read_events(&reader, pod, &uids).await;
        print_report(args.output, now, &history)?;
        if args.watch {
            let changes = ChangeWatch::changes_after(&history, &uids, is_wide);
            return changes.watch_events(reader).await;
        }
    }
    Ok(())
}

/// The changes of verdicts of a pod that are yet to come.
struct ChangeWatch<'a> {
    history: &'a PodHistory,
    uids: &'a BTreeSet<String>,
    is_wide: bool,
    /// The time of the last change that each existing event told of, by the event's name. The API server keeps events
    /// for an hour (`--event-ttl`).
    told: BTreeMap<String, Timestamp>,
}

impl<'a> ChangeWatch<'a> {
    fn changes_after(history: &'a PodHistory, uids: &'a BTreeSet<String>, is_wide: bool) -> Self {
        Self {
            told: BTreeMap::new(),
            history,
            uids,
            is_wide,
        }
    }

    /// Prints each change until whoever asked has seen enough.
    async fn watch_events(mut self, reader: Reader) -> Result<(), VerbError> {
        let target = ListTarget::in_namespace::<Event>(&self.history.namespace)
            .with_field_selector(events_field_selector(&self.history.name));
        let events = list_and_watch::<Event>(
            reader.server.clone(),
            target,
            |text| serde_json::from_str(text),
            RandomSource::from_entropy().fork_rng(),
        );
        let mut events = pin!(events);
        while let Some(event) = events.next().await {
            match event {
                WatchEvent::ListItem(event) | WatchEvent::Changed(event) => {
                    if let Some(transition) = self.observe_event(&event) {
                        let text = Text::new(self.is_wide, reader.cluster_time().await);
                        let table = transitions_table(&text, &[transition]);
                        output::print_text(&table.to_text(2, false))?;
                    }
                }
                WatchEvent::Deleted(event) => {
                    self.told.remove(&event.metadata.name.unwrap_or_default());
                }
                WatchEvent::Failed(failure) => {
                    let why = failure.disposition.explain_reason();
                    output::print_remark(&format!("{why}; trying again"));
                }
                WatchEvent::ListStarted
                | WatchEvent::ListComplete(_)
                | WatchEvent::ListPage(_)
                | WatchEvent::Following => {}
            }
        }
        Ok(())
    }

    /// A change that was not told yet. An event is written again when its change happens again.
    fn observe_event(&mut self, event: &Event) -> Option<Transition> {
        let transition = transition_of_event(event, self.uids)?;
        let time = transition.time.0;
        let name = event.metadata.name.clone().unwrap_or_default();
        // A list that is read again has events that were told, and an event may be written again for another reason:
        // neither has a later time.
        let before = self.told.insert(name, time);
        let is_later = before.is_none_or(|before| before < time);
        (is_later && !self.history.has_event_of(&transition)).then_some(transition)
    }
}

/// The field selector of the events of a pod.
fn events_field_selector(pod: &str) -> String {
    format!("involvedObject.kind=Pod,involvedObject.name={pod}")
}

async fn read_events(
    reader: &Reader,
    mut explained: Explanation,
    uids: &BTreeSet<String>,
) -> PodHistory {
    let selection = ListSelection {
        fields: Some(events_field_selector(&explained.name)),
        ..ListSelection::of(Some(&explained.namespace), 500)
    };
    let events = reader
        .list_objects::<Event>(EVENTS, &selection)
        .await
        .unwrap_or_else(|why| {
            explained.unread.push(why.0);
            Vec::new()
        });
    let mut transitions: Vec<_> = events
        .iter()
        .filter_map(|event| transition_of_event(event, uids))
        .collect();
    // An event lives for an hour (`--event-ttl`); the last transition of a verdict stays in the status.
    let known = matching_probes(&explained)
        .filter_map(|(marker, probe)| transition_of_verdict(marker, probe));
    for verdict in known {
        if !transitions.iter().any(|event| is_same(event, &verdict)) {
            transitions.push(verdict);
        }
    }
    transitions.sort_by_key(|transition| transition.time.0);
    let probes = matching_probes(&explained).map(|(marker, probe)| ProbeRuns {
        probe: format!("{marker}#{}", probe.name),
        in_a_row: probe.in_a_row,
        runs: probe.runs.clone(),
    });
    PodHistory {
        probes: probes.collect(),
        transitions,
        namespace: explained.namespace,
        name: explained.name,
        node: explained.node,
        unread: explained.unread,
    }
}

/// The probes of the markers that match, with their markers.
fn matching_probes(explained: &Explanation) -> impl Iterator<Item = (&str, &ProbeExplanation)> {
    explained.markers.iter().flat_map(|marker| {
        let probes = match &marker.fit {
            MarkerFit::Matches { probes } => probes.as_slice(),
            _ => &[],
        };
        probes.iter().map(|probe| (marker.name.as_str(), probe))
    })
}

/// A transition, if an agent sent the event about this pod, and not about an earlier one of its name.
fn transition_of_event(event: &Event, uids: &BTreeSet<String>) -> Option<Transition> {
    let uid = event.involved_object.uid.as_ref()?;
    let state = match event.reason.as_deref()? {
        "KruiseProbeSucceeded" => "Succeeded",
        "KruiseProbeFailed" => "Failed",
        _ => return None,
    };
    let text = event.message.as_deref().unwrap_or_default();
    // The agent writes the probe first, and then what it said (`event_message`).
    let (probe, message) = match text.split_once(": ") {
        Some(parts) => parts,
        None => (text.split(' ').next().unwrap_or_default(), ""),
    };
    let time = event
        .last_timestamp
        .clone()
        .or(event.first_timestamp.clone())?;
    (uids.contains(uid) && probe.contains('#')).then(|| Transition {
        time,
        probe: probe.to_owned(),
        state: state.to_owned(),
        times: event.count,
        seen_in: SeenIn::Event,
        message: message.to_owned(),
    })
}

/// The last transition of a verdict.
fn transition_of_verdict(marker: &str, probe: &ProbeExplanation) -> Option<Transition> {
    let verdict = probe.verdict.as_ref()?;
    Some(Transition {
        time: verdict.since.clone()?,
        probe: format!("{marker}#{}", probe.name),
        state: verdict.state.to_owned(),
        times: None,
        seen_in: match verdict.source {
            VerdictSource::Report => SeenIn::Report,
            VerdictSource::Condition => SeenIn::Condition,
        },
        message: verdict.message.clone(),
    })
}

/// Whether an event tells of the transition that a verdict shows. The event has the same time, in microseconds.
fn is_same(event: &Transition, verdict: &Transition) -> bool {
    event.probe == verdict.probe
        && event.state == verdict.state
        && event.time.0.as_second() >= verdict.time.0.as_second()
}

impl Report for PodHistory {
    fn add_text(&self, text: &mut Text) {
        let node = self.node.as_deref().map(|node| format!(" on node {node}"));
        let name = bold(format_args!("Pod {}/{}", self.namespace, self.name));
        line!(text, 0 => "{name}{}", node.unwrap_or_default());
        text.add_heading("Verdicts");
        if self.transitions.is_empty() {
            text.add_line(
                2,
                "no change is known; API servers keep events for an hour (--event-ttl)",
            );
        } else {
            text.add_table(2, &transitions_table(text, &self.transitions));
        }
        for probe in self.probes.iter().filter(|probe| !probe.runs.is_empty()) {
            let in_a_row = probe
                .in_a_row
                .map(|in_a_row| format!(": {in_a_row}"))
                .unwrap_or_default();
            text.add_heading(format_args!("Runs of {}{in_a_row}", probe.probe));
            text.add_table(2, &text.runs_table(&probe.runs, text.is_wide));
        }
        text.add_unread(&self.unread);
    }

    fn names(&self) -> Vec<String> {
        vec![format!("pod/{}", self.name)]
    }
}

fn transitions_table(text: &Text, transitions: &[Transition]) -> TextTable {
    let mut table = TextTable::new(&["CHANGED", "PROBE", "BECAME", "TIMES", "SEEN IN", "MESSAGE"]);
    for one in transitions {
        let changed = if text.is_wide {
            one.time.0.to_string()
        } else {
            format!("{} ago", text.format_age(one.time.0))
        };
        let (became, times) = (verdict(&one.state), or_dash(one.times));
        let (seen_in, message) = (one.seen_in.as_str(), text.one_line(&one.message));
        row!(table => changed, one.probe, became, times, seen_in, message);
    }
    table
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::CommandLine;
    use crate::report::plain_text;

    fn event(reason: &str, uid: &str, message: &str) -> Event {
        let event = json!({"metadata": {}, "involvedObject": {"uid": uid}, "reason": reason, "message": message,
            "count": 2, "lastTimestamp": "2026-01-01T00:00:00Z"});
        serde_json::from_value(event).unwrap()
    }

    #[rstest]
    #[case("KruiseProbeFailed", "u", "m#p: it: fails", json!(["Failed", "m#p", "it: fails"]))]
    #[case("KruiseProbeSucceeded", "u", "m#p succeeded", json!(["Succeeded", "m#p", ""]))]
    #[case("KruiseProbeFailed", "earlier", "m#p: it fails", json!(null))]
    #[case("Unhealthy", "u", "m#p: it fails", json!(null))]
    #[case("KruiseProbeFailed", "u", "no probe: at all", json!(null))]
    fn an_agents_event_about_this_pod_is_a_transition(
        #[case] reason: &str,
        #[case] uid: &str,
        #[case] message: &str,
        #[case] expected: Value,
    ) {
        let uids = BTreeSet::from(["u".to_owned()]);
        let transition = transition_of_event(&event(reason, uid, message), &uids);
        let told = transition.map(|one| json!([one.state, one.probe, one.message]));
        assert_eq!(told.unwrap_or_default(), expected);
    }

    fn transition(state: &str, time: &str, seen_in: SeenIn) -> Transition {
        Transition {
            time: Time(time.parse().unwrap()),
            probe: "m#p".to_owned(),
            state: state.to_owned(),
            times: Some(2),
            seen_in,
            message: "no\nidea".to_owned(),
        }
    }

    #[test]
    fn a_verdict_that_an_event_tells_of_is_not_told_twice() {
        let event = |time| transition("Failed", time, SeenIn::Event);
        let verdict = |state| transition(state, "2026-01-01T00:00:05Z", SeenIn::Report);
        assert!(is_same(
            &event("2026-01-01T00:00:05.7Z"),
            &verdict("Failed")
        ));
        assert!(!is_same(&event("2026-01-01T00:00:04Z"), &verdict("Failed")));
        assert!(!is_same(
            &event("2026-01-01T00:00:05Z"),
            &verdict("Unknown")
        ));
    }

    #[test]
    fn a_history_has_verdicts_then_runs_each_on_one_line() {
        let runs = json!([{"time": "2026-01-01T00:59:30.250000Z", "durationSeconds": 0.0412, "waitedSeconds": 1.5,
            "result": "Failed", "output": "no\n"}]);
        let in_a_row = json!({"result": "Failed", "count": 2, "threshold": 3});
        let history = PodHistory {
            namespace: "ns".to_owned(),
            name: "p".to_owned(),
            node: Some("n".to_owned()),
            transitions: vec![transition("Failed", "2026-01-01T00:50:00Z", SeenIn::Event)],
            probes: vec![ProbeRuns {
                probe: "m#p".to_owned(),
                in_a_row: serde_json::from_value(in_a_row).unwrap(),
                runs: serde_json::from_value(runs).unwrap(),
            }],
            unread: vec!["missing right: x".to_owned()],
        };
        let shown = |is_wide| plain_text(&history, is_wide, "2026-01-01T01:00:00Z");
        let expected = "\
Pod ns/p on node n

Verdicts
  CHANGED   PROBE   BECAME   TIMES   SEEN IN   MESSAGE
  10m ago   m#p     Failed   2       event     no\\nidea

Runs of m#p: 2 of 3 failures in a row
  BEGAN     TOOK     WAITED   RESULT   OUTPUT
  29s ago   0.041s   1.500s   Failed   no

Not read
  missing right: x
";
        assert_eq!(shown(false), expected);
        assert!(
            shown(true).contains("2026-01-01T00:59:30.250Z   0.041s"),
            "{}",
            shown(true)
        );
    }

    #[test]
    fn a_watch_tells_each_change_once() {
        let uids = BTreeSet::from(["u".to_owned()]);
        let history = PodHistory {
            namespace: "ns".to_owned(),
            name: "p".to_owned(),
            node: None,
            transitions: vec![
                transition("Failed", "2026-01-01T00:00:00Z", SeenIn::Event),
                transition("Failed", "2026-01-01T00:30:00Z", SeenIn::Report),
            ],
            probes: Vec::new(),
            unread: Vec::new(),
        };
        let mut changes = ChangeWatch::changes_after(&history, &uids, false);
        let mut observe_of = |probe: &str, name: &str, time: &str| {
            let mut event = event("KruiseProbeFailed", "u", &format!("m#{probe}: it fails"));
            event.metadata.name = Some(name.to_owned());
            event.last_timestamp = Some(Time(time.parse().unwrap()));
            changes.observe_event(&event).is_some()
        };
        let of_the_same_second = observe_of("q", "d", "2026-01-01T00:00:00Z");
        assert!(of_the_same_second, "another probe changed then");
        let mut observe = |name: &str, time: &str| observe_of("p", name, time);
        assert!(!observe("a", "2026-01-01T00:00:00Z"), "the history has it");
        assert!(observe("b", "2026-01-01T00:00:05Z"));
        assert!(!observe("b", "2026-01-01T00:00:05Z"), "a list again");
        assert!(observe("a", "2026-01-01T00:00:07Z"), "it happened again");
        assert!(observe("c", "2026-01-01T00:00:06Z"));
    }

    #[test]
    fn a_pod_is_required() {
        assert!(CommandLine::<HistoryArgs>::try_parse_from(["history"]).is_err());
        assert!(CommandLine::<HistoryArgs>::try_parse_from(["history", "pod/p"]).is_ok());
    }
}
