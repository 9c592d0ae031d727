//! `kubectl leadsman status`: markers at a glance.

use std::pin::pin;

use clap_complete::engine::ArgValueCompleter;
use futures::StreamExt;
use jiff::Timestamp;
use leadsman_api::{Guarded, PodProbeMarker};
use leadsman_core::cluster::nearest;
use leadsman_core::podprobe::Config;
use leadsman_core::podprobe::explain::{
    FleetSummary, ManagerState, MarkerSummary, ObservedObjects, ProbeCounts, format_age,
    summarize_marker, summarize_markers,
};
use leadsman_process::RandomSource;
use leadsman_process::list::ListTarget;
use leadsman_process::watcher::{WatchEvent, list_and_watch};

use crate::connection::Connection;
use crate::output::{self, Colors, NO_TABLE, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::resources::{MARKERS, NODE_POD_PROBES};
use crate::table::{BAD, Cell, GOOD, HEADING, TextTable, WAITING};
use crate::text::TextLines;
use crate::{VerbError, completion};

/// The flags of `status`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman status\n  kubectl leadsman status game-server -n prod -o wide\n  kubectl leadsman status -A -w"
)]
pub struct Args {
    /// Only this marker
    #[arg(value_name = "MARKER", add = ArgValueCompleter::new(completion::complete_markers))]
    marker: Option<String>,
    /// Only the markers that this label selector matches
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "marker")]
    selector: Option<String>,
    /// Show markers of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["marker", "namespace"])]
    all_namespaces: bool,
    /// Keep running, and show markers as they change
    #[arg(short, long)]
    watch: bool,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(args: &Args) -> Result<(), VerbError> {
    let (reader, namespace) = args.connection.connect_reader().await?;
    let namespace = (!args.all_namespaces).then_some(namespace.as_str());
    if args.watch {
        return watch_markers(args, reader, namespace).await;
    }
    let markers = read_markers(args, &reader, namespace).await?;
    let now = reader.cluster_time().await;
    let fleet = summarize_markers(read_reports(&reader, markers, now).await, now);
    let printed = match output::format_structured(args.output, &fleet) {
        Some(text) => text?,
        None if args.output == OutputFormat::Name => {
            let mut names = TextLines::default();
            for marker in &fleet.markers {
                names.add_line(format_args!(
                    "podprobemarker.apps.kruise.io/{}",
                    marker.name
                ));
            }
            names.0
        }
        None => fleet_text(&fleet, args, now),
    };
    output::print_text(&printed)
}

async fn read_markers(
    args: &Args,
    reader: &Reader,
    namespace: Option<&str>,
) -> Result<Vec<Guarded<PodProbeMarker>>, VerbError> {
    let selection = ListSelection {
        namespace,
        labels: args.selector.clone(),
        fields: args
            .marker
            .as_ref()
            .map(|name| format!("metadata.name={name}")),
        page: 250,
    };
    let markers = reader
        .list_objects(MARKERS, &selection)
        .await
        .map_err(VerbError::Unread)?;
    let Some(name) = args.marker.as_ref().filter(|_| markers.is_empty()) else {
        return Ok(markers);
    };
    let all = ListSelection {
        fields: None,
        ..selection
    };
    let known = reader
        .list_objects::<completion::NamedObject>(MARKERS, &all)
        .await
        .unwrap_or_default();
    let near = nearest(name, known.iter().map(completion::NamedObject::name));
    Err(VerbError::NoSuchObject {
        kind: "marker",
        name: name.clone(),
        place: format!(" in namespace {}", namespace.unwrap_or_default().to_owned()),
        suggestion: near
            .map(|near| format!("; did you mean {near}?"))
            .unwrap_or_default(),
    })
}

/// Adds what the agents report. Their pods are read only if one may be silent.
async fn read_reports(
    reader: &Reader,
    markers: Vec<Guarded<PodProbeMarker>>,
    now: Timestamp,
) -> ObservedObjects {
    let objects = ListSelection {
        page: 50,
        ..ListSelection::default()
    };
    let has_markers = !markers.is_empty();
    let node_pod_probes = if has_markers {
        reader.list_objects(NODE_POD_PROBES, &objects).await
    } else {
        Ok(Vec::new())
    };
    let is_silent = markers.iter().any(|marker| {
        let (_, marker) = summarize_marker(marker);
        marker.probes.iter().any(|probe| probe.silent > 0) || marker.reason == "NoAgent"
    });
    let (config, agents) = if is_silent && node_pod_probes.is_ok() {
        let install = reader.read_install(now).await;
        let agents = reader
            .read_agents(&install.config.agent_namespace, None)
            .await;
        (install.config, agents)
    } else {
        (Config::default(), Ok(Vec::new()))
    };
    ObservedObjects {
        config,
        gate: true,
        markers,
        pods: Vec::new(),
        // Whether an agent is silent follows from its node's object.
        nodes: Ok(Vec::new()),
        node_pod_probes,
        agents,
        manager: Ok(ManagerState::Absent),
    }
}

/// How many of the last columns are for `-o wide` alone.
const OF_WIDE: usize = 3;
const HEADINGS: [&str; 13] = [
    "NAMESPACE",
    "MARKER",
    "PROBE",
    "PODS",
    "SUCCEEDED",
    "FAILED",
    "UNKNOWN",
    "PENDING",
    "NEWEST",
    "STATE",
    "SILENT",
    "GENERATION",
    "AGE",
];

fn new_table(args: &Args) -> TextTable {
    let first = usize::from(!args.all_namespaces);
    let end = if args.output == OutputFormat::Wide {
        HEADINGS.len()
    } else {
        HEADINGS.len() - OF_WIDE
    };
    TextTable::new(&HEADINGS[first..end])
}

/// A line for each probe of a marker.
fn marker_rows(marker: &MarkerSummary, args: &Args, now: Timestamp) -> Vec<Vec<Cell>> {
    let none = [ProbeCounts::default()];
    let probes = if marker.probes.is_empty() {
        none.as_slice()
    } else {
        marker.probes.as_slice()
    };
    let rows = probes
        .iter()
        .map(|probe| probe_row(marker, probe, args, now));
    rows.collect()
}

fn probe_row(
    marker: &MarkerSummary,
    probe: &ProbeCounts,
    args: &Args,
    now: Timestamp,
) -> Vec<Cell> {
    let state = match marker.reason.as_str() {
        _ if !marker.ready => BAD,
        _ if probe.pending > 0 => WAITING,
        _ => GOOD,
    };
    // Unknown until a manager has written the status, which is not 0.
    let matched = marker
        .matched_pods
        .map_or("?".to_owned(), |pods| pods.to_string());
    let newest = marker
        .newest_result
        .as_ref()
        .map(|time| format_age(time.0, now));
    let mut row: Vec<Cell> = Vec::new();
    if args.all_namespaces {
        row.push(marker.namespace.clone().into());
    }
    row.extend([
        marker.name.clone().into(),
        probe.name.clone().into(),
        matched.into(),
    ]);
    let counts = [probe.succeeded, probe.failed, probe.unknown, probe.pending];
    row.extend(counts.map(|count| Cell::from(count.to_string())));
    row.extend([
        newest.unwrap_or_else(|| "-".to_owned()).into(),
        Cell::with_style(marker.reason.clone(), state),
    ]);
    if args.output == OutputFormat::Wide {
        let created = marker.created.as_ref().map(|time| format_age(time.0, now));
        let generation = if marker.observed_generation == marker.generation {
            marker.generation.to_string()
        } else {
            format!("{} of {}", marker.observed_generation, marker.generation)
        };
        row.extend([
            probe.silent.to_string().into(),
            generation.into(),
            created.unwrap_or_else(|| "-".to_owned()).into(),
        ]);
    }
    row
}

fn fleet_text(fleet: &FleetSummary, args: &Args, now: Timestamp) -> String {
    if fleet.markers.is_empty() {
        return "No markers found\n".to_owned();
    }
    let mut table = new_table(args);
    for marker in &fleet.markers {
        for row in marker_rows(marker, args, now) {
            table.add_row(row);
        }
    }
    let mut text = TextLines(table.to_text("", true));
    // Of what is well nothing is said, unless it was asked for by its name.
    let is_told = |marker: &&MarkerSummary| {
        let waits = marker.probes.iter().any(|probe| probe.pending > 0);
        !marker.ready || waits || args.marker.is_some()
    };
    for marker in fleet.markers.iter().filter(is_told) {
        let namespace = if args.all_namespaces {
            format!("{}/", marker.namespace)
        } else {
            String::new()
        };
        let name = format!("{namespace}{}", marker.name);
        text.add_line(format_args!(
            "\n{HEADING}{name}{HEADING:#}: {}",
            marker.message
        ));
    }
    if !fleet.silent_nodes.is_empty() {
        let nodes = fleet.silent_nodes.join(", ");
        text.add_line(format_args!("\n{HEADING}Silent nodes{HEADING:#}: {nodes}"));
    }
    for unread in &fleet.unread {
        text.add_line(format_args!("\n{WAITING}Not shown{WAITING:#}: {unread}"));
    }
    text.0
}

/// Prints all markers, then each one that changes.
async fn watch_markers(
    args: &Args,
    reader: Reader,
    namespace: Option<&str>,
) -> Result<(), VerbError> {
    if !matches!(args.output, OutputFormat::Table | OutputFormat::Wide) {
        return Err(VerbError::Usage(NO_TABLE.to_owned()));
    }
    // One request that fails at once where a right is missing: the watch would go on trying.
    let _known = read_markers(args, &reader, namespace).await?;
    let mut target = match namespace {
        Some(namespace) => ListTarget::in_namespace::<PodProbeMarker>(namespace),
        None => ListTarget::all_of::<PodProbeMarker>(),
    };
    if let Some(name) = &args.marker {
        target = target.with_field_selector(format!("metadata.name={name}"));
    }
    if let Some(selector) = &args.selector {
        target = target.with_label_selector(selector.clone());
    }
    let events = list_and_watch(
        reader.server.clone(),
        target,
        Guarded::<PodProbeMarker>::parse,
        RandomSource::from_entropy().fork_rng(),
    );
    let mut events = pin!(events);
    let mut table = new_table(args);
    // The columns of a list are as wide as they have to be; a line that follows is printed by itself.
    let (mut with_headings, mut is_listing) = (true, true);
    while let Some(event) = events.next().await {
        match event {
            WatchEvent::ListItem(marker) | WatchEvent::Changed(marker) => {
                let (_, marker) = summarize_marker(&marker);
                for row in marker_rows(&marker, args, reader.cluster_time().await) {
                    table.add_row(row);
                }
            }
            WatchEvent::Deleted(marker) => {
                let (name, _) = summarize_marker(&marker);
                output::print_text(&format!("{name} was deleted\n"))?;
            }
            WatchEvent::Failed(failure) => {
                let why = failure.disposition.explain_reason();
                output::print_remark(&format!("{why}; trying again"));
            }
            WatchEvent::ListStarted => is_listing = true,
            WatchEvent::ListComplete(_) => is_listing = false,
            WatchEvent::ListPage(_) | WatchEvent::Following => {}
        }
        // A list is printed as a whole, so that its columns are aligned.
        if !is_listing {
            output::print_text(&table.to_text("", std::mem::take(&mut with_headings)))?;
            table.clear_rows();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::CommandLine;

    fn marker() -> MarkerSummary {
        let marker = json!({
            "metadata": { "name": "m", "namespace": "ns", "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "selector": {}, "probes": [
                { "name": "a", "containerName": "main", "probe": { "exec": {} } },
                { "name": "b", "containerName": "main", "probe": { "exec": {} } }] },
            "status": { "observedGeneration": 1, "matchedPods": 3,
                "probes": [{ "name": "a", "succeeded": 2, "failed": 1 }, { "name": "b", "succeeded": 1, "pending": 2, "silent": 1 }],
                "conditions": [{ "type": "Ready", "status": "False", "reason": "NoAgent", "message": "no agent",
                    "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        });
        let marker: Guarded<PodProbeMarker> = serde_json::from_str(&marker.to_string()).unwrap();
        summarize_marker(&marker).1
    }

    fn shown(words: &[&str], fleet: &FleetSummary) -> String {
        let words = std::iter::once("status").chain(words.iter().copied());
        let line = CommandLine::<Args>::try_parse_from(words).unwrap();
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let text = fleet_text(fleet, &line.args, now);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_marker_has_a_line_for_each_probe_and_a_sentence_if_something_is_wrong() {
        let fleet = FleetSummary {
            markers: vec![marker()],
            silent_nodes: vec!["n1".to_owned()],
            unread: vec!["missing right: list nodepodprobes".to_owned()],
        };
        let expected = "\
MARKER   PROBE   PODS   SUCCEEDED   FAILED   UNKNOWN   PENDING   NEWEST   STATE
m        a       3      2           1        0         0         -        NoAgent
m        b       3      1           0        0         2         -        NoAgent

m: no agent

Silent nodes: n1

Not shown: missing right: list nodepodprobes
";
        assert_eq!(shown(&[], &fleet), expected);
        let wide = shown(&["-A", "-o", "wide"], &fleet);
        let heading = "NAMESPACE   MARKER   PROBE   PODS   SUCCEEDED   FAILED   UNKNOWN   PENDING   NEWEST   STATE     \
                       SILENT   GENERATION   AGE\n";
        assert!(wide.starts_with(heading), "{wide}");
        assert!(
            wide.contains("1        1 of 2       60m\n") && wide.contains("\nns/m: no agent\n"),
            "{wide}"
        );
    }

    #[test]
    fn without_a_marker_that_is_said() {
        assert_eq!(shown(&[], &FleetSummary::default()), "No markers found\n");
    }
}
