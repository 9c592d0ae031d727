//! `kubectl leadsman status`: markers at a glance.

use std::pin::pin;

use clap_complete::engine::ArgValueCompleter;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::{Guarded, PodProbeMarker, SidecarSet};
use leadsman_core::podprobe::Config;
use leadsman_core::podprobe::explain::{
    FleetSummary, ManagerState, MarkerSummary, ObservedObjects, ProbeCounts, Unread,
    summarize_marker, summarize_markers,
};
use leadsman_core::sidecarset::explain::{SetSummary, parse, summarize_set};
use leadsman_core::sidecarset::set::Namespaces;
use leadsman_process::RandomSource;
use leadsman_process::list::ListTarget;
use leadsman_process::watcher::{WatchEvent, list_and_watch};
use serde::Serialize;

use crate::connection::ConnectionFlags;
use crate::output::{self, Colors, NO_TABLE, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::report::{
    Report, Text, TextTable, bad, bold, good, line, or_dash, print_report, waiting,
};
use crate::resources::{MARKERS, NODE_POD_PROBES, SIDECAR_SETS};
use crate::targets::no_such_object;
use crate::{VerbError, completion};

/// The flags of `status`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman status\n  kubectl leadsman status game-server -n prod -o wide\n  kubectl leadsman status -A -w"
)]
pub struct StatusArgs {
    /// Show only this marker
    #[arg(value_name = "MARKER", add = ArgValueCompleter::new(completion::complete_markers))]
    marker: Option<String>,
    /// Show only the markers and SidecarSets that this label selector matches
    #[arg(short = 'l', long, value_name = "SELECTOR", conflicts_with = "marker")]
    selector: Option<String>,
    /// Show markers of all namespaces, and all SidecarSets
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
    connection: ConnectionFlags,
}

/// The objects of all features that are on.
#[derive(Serialize)]
struct Fleet<'a> {
    #[serde(flatten)]
    markers: FleetSummary,
    #[serde(rename = "sidecarSets", skip_serializing_if = "Vec::is_empty")]
    sets: Vec<SetSummary>,
    #[serde(skip)]
    args: &'a StatusArgs,
}

pub(crate) async fn run(args: &StatusArgs) -> Result<(), VerbError> {
    let (reader, namespace) = args.connection.connect_reader().await?;
    let namespace = (!args.all_namespaces).then_some(namespace.as_str());
    if args.watch {
        return watch_markers(args, reader, namespace).await;
    }
    let (fleet, now) = read_fleet(args, &reader, namespace).await?;
    print_report(args.output, now, &fleet)
}

async fn read_fleet<'a>(
    args: &'a StatusArgs,
    reader: &Reader,
    namespace: Option<&str>,
) -> Result<(Fleet<'a>, Timestamp), VerbError> {
    let markers = read_markers(args, reader, namespace).await?;
    let sets = read_sets(args, reader, namespace).await;
    let now = reader.cluster_time().await;
    let mut markers = summarize_markers(read_reports(reader, markers, now).await, now);
    let sets = sets.unwrap_or_else(|Unread(why)| {
        // Nobody knows whether there are sets without the right to read them: that is told only where the answer would be
        // that there is nothing.
        markers
            .unread
            .extend(markers.markers.is_empty().then_some(why));
        Vec::new()
    });
    let fleet = Fleet {
        markers,
        sets,
        args,
    };
    Ok((fleet, now))
}

async fn read_markers(
    args: &StatusArgs,
    reader: &Reader,
    namespace: Option<&str>,
) -> Result<Vec<Guarded<PodProbeMarker>>, VerbError> {
    let name = args.marker.as_deref();
    let selection = ListSelection {
        labels: args.selector.clone(),
        fields: name.map(|name| format!("metadata.name={name}")),
        ..ListSelection::of(namespace, 250)
    };
    let markers = reader.list_objects(MARKERS, &selection).await?;
    match name.filter(|_| markers.is_empty()) {
        Some(name) => Err(no_such_object(reader, MARKERS, "marker", name, namespace).await),
        None => Ok(markers),
    }
}

/// The sets that may be for pods of a namespace, unless one marker is asked for; none where the kind is not served.
async fn read_sets(
    args: &StatusArgs,
    reader: &Reader,
    namespace: Option<&str>,
) -> Result<Vec<SetSummary>, Unread> {
    if args.marker.is_some() {
        return Ok(Vec::new());
    }
    let selection = ListSelection {
        labels: args.selector.clone(),
        ..ListSelection::of(None, 100)
    };
    let sets = reader.list_if_served::<Guarded<SidecarSet>>(SIDECAR_SETS, &selection);
    let is_elsewhere = |set: &Guarded<SidecarSet>| match parse(set).map(|set| set.namespaces) {
        Ok(Namespaces::Named(own)) => namespace.is_some_and(|name| *name != *own),
        _ => false,
    };
    let mut sets: Vec<_> = sets
        .await?
        .into_iter()
        .flatten()
        .filter(|set| !is_elsewhere(set))
        .map(|set| summarize_set(&set))
        .collect();
    sets.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(sets)
}

/// Adds what the agents report. Their pods are read only if one may be silent.
async fn read_reports(
    reader: &Reader,
    markers: Vec<Guarded<PodProbeMarker>>,
    now: Timestamp,
) -> ObservedObjects {
    let objects = ListSelection::of(None, 50);
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
        neighbours: Vec::new(),
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

fn new_table(args: &StatusArgs) -> TextTable {
    let first = usize::from(!args.all_namespaces);
    let end = last_column(args.output == OutputFormat::Wide, HEADINGS.len());
    TextTable::new(&HEADINGS[first..end])
}

/// Adds a line for each probe of a marker.
fn add_rows(table: &mut TextTable, marker: &MarkerSummary, args: &StatusArgs, text: &Text) {
    let none = [ProbeCounts::default()];
    let probes = match marker.probes.as_slice() {
        [] => none.as_slice(),
        probes => probes,
    };
    for probe in probes {
        let cells = probe_cells(marker, probe, text);
        let first = usize::from(!args.all_namespaces);
        let end = last_column(text.is_wide, cells.len());
        let cells: Vec<_> = cells[first..end].iter().map(|it| it as _).collect();
        table.add_row(&cells);
    }
}

fn probe_cells(marker: &MarkerSummary, probe: &ProbeCounts, text: &Text) -> Vec<String> {
    let style = match () {
        () if !marker.ready => bad,
        () if probe.pending > 0 => waiting,
        () => good,
    };
    let age = |time: &Option<Time>| or_dash(time.as_ref().map(|time| text.format_age(time.0)));
    // Unknown until a manager has written the status, which is not 0.
    let matched = marker.matched_pods.map(|pods| pods.to_string());
    let counts = [probe.succeeded, probe.failed, probe.unknown, probe.pending];
    let mut cells = vec![
        marker.namespace.clone(),
        marker.name.clone(),
        probe.name.clone(),
        matched.unwrap_or_else(|| "?".to_owned()),
    ];
    cells.extend(counts.map(|count| count.to_string()));
    cells.extend([
        age(&marker.newest_result),
        style(&marker.reason),
        probe.silent.to_string(),
        observed_generation(marker.observed_generation, marker.generation),
        age(&marker.created),
    ]);
    cells
}

fn last_column(is_wide: bool, all: usize) -> usize {
    if is_wide { all } else { all - OF_WIDE }
}

fn observed_generation(observed: i64, generation: i64) -> String {
    if observed == generation {
        generation.to_string()
    } else {
        format!("{observed} of {generation}")
    }
}

impl Report for Fleet<'_> {
    fn add_text(&self, text: &mut Text) {
        let FleetSummary {
            markers,
            silent_nodes,
            unread,
        } = &self.markers;
        if !markers.is_empty() {
            self.add_markers(text, markers);
        } else if self.sets.is_empty() {
            text.add_line(0, "No markers found");
        }
        if !silent_nodes.is_empty() {
            line!(text, 0 => "\n{}: {}", bold("Silent nodes"), silent_nodes.join(", "));
        }
        self.add_sets(text);
        for why in unread {
            line!(text, 0 => "\n{}: {why}", waiting("Not shown"));
        }
    }

    fn names(&self) -> Vec<String> {
        let markers = self
            .markers
            .markers
            .iter()
            .map(|marker| ("podprobemarker", &marker.name));
        let sets = self.sets.iter().map(|set| ("sidecarset", &set.name));
        let names = markers.chain(sets);
        names
            .map(|(kind, name)| format!("{kind}.apps.kruise.io/{name}"))
            .collect()
    }
}

impl Fleet<'_> {
    fn add_markers(&self, text: &mut Text, markers: &[MarkerSummary]) {
        let mut table = new_table(self.args);
        for marker in markers {
            add_rows(&mut table, marker, self.args, text);
        }
        text.add_table(0, &table);
        // A marker that is well is passed over, unless it was asked for by its name.
        let is_told = |marker: &&MarkerSummary| {
            let waits = marker.probes.iter().any(|probe| probe.pending > 0);
            !marker.ready || waits || self.args.marker.is_some()
        };
        for marker in markers.iter().filter(is_told) {
            let name = if self.args.all_namespaces {
                bold(format_args!("{}/{}", marker.namespace, marker.name))
            } else {
                bold(&marker.name)
            };
            line!(text, 0 => "\n{name}: {}", marker.message);
        }
    }

    fn add_sets(&self, text: &mut Text) {
        if self.sets.is_empty() {
            return;
        }
        text.add_gap();
        let headings = [
            "SIDECARSET",
            "PODS",
            "UPDATED",
            "READY",
            "STATE",
            "UPDATED READY",
            "GENERATION",
            "AGE",
        ];
        let mut table = TextTable::new(&headings[..last_column(text.is_wide, headings.len())]);
        for set in &self.sets {
            let style = if set.ready { good } else { bad };
            let all = [
                set.name.clone(),
                set.matched_pods.to_string(),
                set.updated_pods.to_string(),
                set.ready_pods.to_string(),
                style(&set.reason),
                set.updated_ready_pods.to_string(),
                observed_generation(set.observed_generation, set.generation),
                or_dash(set.created.as_ref().map(|time| text.format_age(time.0))),
            ];
            let cells = all.iter().take(last_column(text.is_wide, all.len()));
            table.add_row(&cells.map(|it| it as _).collect::<Vec<_>>());
        }
        text.add_table(0, &table);
        for set in self.sets.iter().filter(|set| !set.ready) {
            line!(text, 0 => "\n{}: {}", bold(format_args!("SidecarSet {}", set.name)), set.message);
        }
    }
}

/// Prints all markers, then each one that changes.
async fn watch_markers(
    args: &StatusArgs,
    reader: Reader,
    namespace: Option<&str>,
) -> Result<(), VerbError> {
    let is_wide = args.output == OutputFormat::Wide;
    if !is_wide && args.output != OutputFormat::Table {
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
                let text = Text::new(is_wide, reader.cluster_time().await);
                add_rows(&mut table, &marker, args, &text);
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
            output::print_text(&table.to_text(0, std::mem::take(&mut with_headings)))?;
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
    use crate::reader::FakeServer;
    use crate::report::plain_text;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn args(words: &[&str]) -> StatusArgs {
        let words = std::iter::once("status").chain(words.iter().copied());
        CommandLine::try_parse_from(words).unwrap().args
    }

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

    fn shown(words: &[&str], markers: &FleetSummary) -> String {
        let args = args(words);
        let fleet = Fleet {
            markers: markers.clone(),
            sets: Vec::new(),
            args: &args,
        };
        plain_text(&fleet, args.output == OutputFormat::Wide, NOW)
    }

    fn set(name: &str, more: &serde_json::Value) -> serde_json::Value {
        let mut set = json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet",
            "metadata": {"name": name, "uid": name, "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "containers": [{"name": "c", "image": "i:1"}]}});
        set["spec"]
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        set
    }

    /// Of a cluster with sets and without a marker.
    async fn shown_of_sets(words: &[&str]) -> String {
        let mut stuck = set("stuck", &json!({}));
        stuck["status"] = json!({"observedGeneration": 1, "matchedPods": 3, "updatedPods": 2, "readyPods": 2, "updatedReadyPods": 1,
            "conditions": [{"type": "Ready", "status": "False", "reason": "NotInjected", "message": "1 pod is not injected",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let sets = [stuck, set("other", &json!({"namespace": "elsewhere"}))];
        let server = FakeServer::new([
            (
                "/apis/apps.kruise.io/v1alpha1/sidecarsets",
                json!({"metadata": {}, "items": sets}),
            ),
            (
                "/apis/apps.kruise.io/v1alpha1/podprobemarkers",
                json!({"metadata": {}, "items": []}),
            ),
            (
                "/apis/apps.kruise.io/v1alpha1/namespaces/ns/podprobemarkers",
                json!({"metadata": {}, "items": []}),
            ),
        ]);
        let args = args(words);
        let namespace = (!args.all_namespaces).then_some("ns");
        let read = read_fleet(&args, &server.reader(), namespace).await;
        plain_text(&read.unwrap().0, args.output == OutputFormat::Wide, NOW)
    }

    #[tokio::test]
    async fn sets_are_shown_also_where_there_is_no_marker() {
        let expected = "\
SIDECARSET   PODS   UPDATED   READY   STATE
stuck        3      2         2       NotInjected

SidecarSet stuck: 1 pod is not injected
";
        assert_eq!(shown_of_sets(&[]).await, expected);
        let all = shown_of_sets(&["-A", "-o", "wide"]).await;
        assert!(
            all.contains("NotInjected   1               1 of 2       60m\n"),
            "{all}"
        );
        assert!(
            all.contains("\nother        0      0         0       Unobserved"),
            "{all}"
        );
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
