//! `kubectl leadsman top`: what probes cost and how they fail, over all nodes.
//!
//! What is known of a run is how long it took, and how long it waited for a permit. Its CPU time is not: a
//! command's is its container's, what the container runtime adds is the runtime's, and neither is counted by probe. The
//! time in which a probe runs, of each second, is the nearest that can be said honestly.

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use futures::{StreamExt, stream};
use leadsman_api::slim::Pod;
use leadsman_core::podprobe::explain::Unread;
use leadsman_core::podprobe::history::{HistoryQuery, ProbeHistory, RunResult};
use serde::Serialize;

use crate::VerbError;
use crate::connection::ConnectionFlags;
use crate::output::{Colors, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::recent_runs::{Agents, NodeHistory, known_uids};
use crate::report::{
    Report, Text, TextTable, bad, format_seconds, good, line, or_dash, print_report,
};
use crate::resources::PODS;

/// Agents that are asked at once: each is a command in a pod.
const CONCURRENCY: usize = 8;

/// The flags of `top`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman top -A\n  kubectl leadsman top -n prod -l app=game --by pod --sort-by failed\n  kubectl leadsman top -A --by node --max-nodes 200"
)]
pub struct TopArgs {
    /// Group the runs by this; each group is one line
    #[arg(long, value_name = "WHAT", default_value = "probe")]
    by: By,
    /// Column to sort by, with the largest value first
    #[arg(long, value_name = "COLUMN", default_value = "busy")]
    sort_by: SortBy,
    /// Show only the probes of the pods that this label selector matches
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Show probes of pods in all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// How many agents are asked at most; each is asked by a command in its pod
    #[arg(long, value_name = "COUNT", default_value = "50")]
    max_nodes: usize,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// A probe of a marker, over all its pods
    Probe,
    /// A probe of one pod
    Pod,
    /// A node
    Node,
}

/// The column that lines are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SortBy {
    /// Part of each second in which probes run
    Busy,
    /// Mean duration of a run
    Mean,
    /// Longest run
    Max,
    /// Longest wait of a command for a permit
    Waited,
    /// Share of runs that failed
    Failed,
    /// Runs that could not be made
    CannotProbe,
}

/// The known facts about some probes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pod: String,
    /// `MARKER#PROBE`
    #[serde(skip_serializing_if = "String::is_empty")]
    probe: String,
    nodes: BTreeSet<String>,
    /// How many probes of how many pods.
    probes: usize,
    #[serde(skip)]
    pod_names: BTreeSet<(String, String)>,
    pods: usize,
    /// The recent runs of all of them.
    runs: u32,
    failed: u32,
    cannot_probe: u32,
    mean_seconds: f64,
    max_seconds: f64,
    max_waited_seconds: f64,
    /// The seconds of each second in which they run.
    #[serde(rename = "busySecondsPerSecond")]
    busy: f64,
    #[serde(skip)]
    total_seconds: f64,
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FleetUsage {
    usage: Vec<Usage>,
    nodes: usize,
    /// How many runs of each probe the agents keep.
    runs_kept: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<String>,
    #[serde(skip)]
    by: By,
    #[serde(skip)]
    all_namespaces: bool,
}

/// The pods whose probes are meant, and their nodes. None: all.
struct SelectedPods {
    uids: Option<BTreeSet<String>>,
    nodes: Vec<String>,
}

pub(crate) async fn run(args: &TopArgs) -> Result<(), VerbError> {
    let (reader, namespace) = args.connection.connect_reader().await?;
    let namespace = (!args.all_namespaces).then_some(namespace.as_str());
    let now = reader.cluster_time().await;
    let install = reader.read_install(now).await;
    let agent_namespace = &install.config.agent_namespace;
    let found = reader.read_agents(agent_namespace, None).await;
    let agents = Agents::new(agent_namespace, &found);
    let scope = select_pods(args, &reader, &agents, namespace).await?;
    if scope.nodes.len() > args.max_nodes {
        return Err(VerbError::Usage(format!(
            "these pods are on {} nodes, and each one's agent is asked by a command in its pod: choose fewer pods (-n, -l), or allow more nodes (--max-nodes {})",
            scope.nodes.len(),
            scope.nodes.len()
        )));
    }
    let query = HistoryQuery {
        namespace: namespace.map(str::to_owned),
        pod: None,
        // Nothing is shown of it, and it is most of an answer.
        without_output: true,
    };
    let answers = ask_agents(&reader, &agents, &scope, &query).await;
    let fleet = sum_up_answers(answers, &scope, args)?;
    print_report(args.output, now, &fleet)
}

/// Selects the pods that are meant, and the nodes with an agent on which they are.
async fn select_pods(
    args: &TopArgs,
    reader: &Reader,
    agents: &Agents,
    namespace: Option<&str>,
) -> Result<SelectedPods, VerbError> {
    let nodes = agents.nodes_with_agent()?;
    if args.all_namespaces && args.selector.is_none() {
        // All probes are meant, so no pod has to be read.
        return Ok(SelectedPods { uids: None, nodes });
    }
    let selection = ListSelection {
        labels: args.selector.clone(),
        ..ListSelection::of(namespace, 500)
    };
    let pods = reader.list_objects::<Pod>(PODS, &selection).await?;
    let used: BTreeSet<_> = pods
        .iter()
        .filter_map(|pod| pod.spec.node_name.as_ref())
        .collect();
    Ok(SelectedPods {
        uids: Some(known_uids(&pods)),
        nodes: nodes
            .into_iter()
            .filter(|node| used.contains(node))
            .collect(),
    })
}

/// Asks the agent of each node.
async fn ask_agents(
    reader: &Reader,
    agents: &Agents,
    scope: &SelectedPods,
    query: &HistoryQuery,
) -> Vec<(String, Result<NodeHistory, Unread>)> {
    let questions = scope.nodes.iter().map(|node| async move {
        let answer = reader.read_recent_runs(agents, node, query).await;
        (node.clone(), answer)
    });
    stream::iter(questions)
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await
}

/// Adds up what the agents answered. An error if none of them did.
fn sum_up_answers(
    answers: Vec<(String, Result<NodeHistory, Unread>)>,
    scope: &SelectedPods,
    args: &TopArgs,
) -> Result<FleetUsage, VerbError> {
    let mut lines: BTreeMap<[String; 3], Usage> = BTreeMap::new();
    let (mut unread, mut nodes, mut runs_kept) = (BTreeSet::new(), 0, 0);
    for (node, answer) in answers {
        match answer {
            Ok(history) => {
                nodes += 1;
                runs_kept = runs_kept.max(history.head.runs_kept);
                let meant = history
                    .probes
                    .iter()
                    .filter(|probe| scope.includes_probe(probe));
                for probe in meant {
                    let line = lines.entry(args.by.group_key(&node, probe)).or_default();
                    line.add_probe(&node, probe, args.by);
                }
            }
            Err(why) => {
                unread.insert(why.0);
            }
        }
    }
    if let (0, Some(why)) = (nodes, unread.first()) {
        return Err(VerbError::Unread(Unread(why.clone())));
    }
    let mut usage: Vec<_> = lines.into_values().map(Usage::with_ratios).collect();
    // The sort is stable: equal lines stay in the order of their names.
    usage.sort_by(|one, other| {
        let (one, other) = (args.sort_by.sort_value(one), args.sort_by.sort_value(other));
        other.total_cmp(&one)
    });
    Ok(FleetUsage {
        usage,
        nodes,
        runs_kept,
        unread: unread.into_iter().collect(),
        by: args.by,
        all_namespaces: args.all_namespaces,
    })
}

impl SelectedPods {
    fn includes_probe(&self, probe: &ProbeHistory) -> bool {
        let uids = self.uids.as_ref();
        uids.is_none_or(|uids| uids.contains(&*probe.uid))
    }
}

impl By {
    /// The key that tells a line from others.
    fn group_key(self, node: &str, probe: &ProbeHistory) -> [String; 3] {
        let id = format!("{}#{}", probe.marker, probe.probe);
        match self {
            Self::Probe => [probe.namespace.to_string(), id, String::new()],
            Self::Pod => [probe.namespace.to_string(), probe.pod.to_string(), id],
            Self::Node => [node.to_owned(), String::new(), String::new()],
        }
    }
}

impl SortBy {
    fn sort_value(self, usage: &Usage) -> f64 {
        match self {
            Self::Busy => usage.busy,
            Self::Mean => usage.mean_seconds,
            Self::Max => usage.max_seconds,
            Self::Waited => usage.max_waited_seconds,
            Self::Failed => mean_or_zero(f64::from(usage.failed), usage.runs),
            Self::CannotProbe => f64::from(usage.cannot_probe),
        }
    }
}

impl Usage {
    fn add_probe(&mut self, node: &str, probe: &ProbeHistory, by: By) {
        if by != By::Node {
            self.namespace = probe.namespace.to_string();
            self.probe = format!("{}#{}", probe.marker, probe.probe);
        }
        if by == By::Pod {
            self.pod = probe.pod.to_string();
        }
        self.nodes.insert(node.to_owned());
        self.pod_names
            .insert((probe.namespace.to_string(), probe.pod.to_string()));
        self.probes += 1;
        let durations = probe.runs.iter().map(|run| run.duration_seconds);
        let seconds: f64 = durations.clone().sum();
        let runs = run_count(probe.runs.len());
        self.runs += runs;
        self.total_seconds += seconds;
        self.max_seconds = durations.fold(self.max_seconds, f64::max);
        let waits = probe.runs.iter().map(|run| run.waited_seconds);
        self.max_waited_seconds = waits.fold(self.max_waited_seconds, f64::max);
        let count = |result| {
            let runs = probe.runs.iter().filter(|run| run.result == result);
            run_count(runs.count())
        };
        self.failed += count(RunResult::Failed);
        self.cannot_probe += count(RunResult::CannotProbe);
        // A run begins each period, or later if the one before took longer.
        let mean = mean_or_zero(seconds, runs);
        let period = f64::from(probe.period_seconds.max(1)).max(mean);
        self.busy += mean / period;
    }

    fn with_ratios(self) -> Self {
        Self {
            mean_seconds: mean_or_zero(self.total_seconds, self.runs),
            pods: self.pod_names.len(),
            ..self
        }
    }
}

fn mean_or_zero(sum: f64, count: u32) -> f64 {
    if count == 0 {
        0.0
    } else {
        sum / f64::from(count)
    }
}

/// An agent keeps 100 runs of a probe at most.
fn run_count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const MEASURED: [&str; 7] = [
    "RUNS",
    "FAILED",
    "CANNOT PROBE",
    "MEAN",
    "MAX",
    "WAITED",
    "BUSY",
];

impl FleetUsage {
    /// How many of the first columns are left out: a namespace that all lines share.
    fn left_out(&self) -> usize {
        usize::from(self.by != By::Node && !self.all_namespaces)
    }

    fn table(&self) -> TextTable {
        let of = match self.by {
            By::Probe => ["NAMESPACE", "PROBE", "PODS", "NODES"].as_slice(),
            By::Pod => &["NAMESPACE", "POD", "PROBE", "NODE"],
            By::Node => &["NODE", "PODS", "PROBES"],
        };
        let mut table = TextTable::new(&[&of[self.left_out()..], &MEASURED].concat());
        for usage in &self.usage {
            let all = self.cells(usage);
            let cells: Vec<_> = all[self.left_out()..].iter().map(|it| it as _).collect();
            table.add_row(&cells);
        }
        table
    }

    fn cells(&self, usage: &Usage) -> Vec<String> {
        let (namespace, pod, probe) = (&usage.namespace, &usage.pod, &usage.probe);
        let node = or_dash(usage.nodes.first());
        let (pods, nodes) = (usage.pods.to_string(), usage.nodes.len().to_string());
        let mut cells = match self.by {
            By::Probe => vec![namespace.clone(), probe.clone(), pods, nodes],
            By::Pod => vec![namespace.clone(), pod.clone(), probe.clone(), node],
            By::Node => vec![node, pods, usage.probes.to_string()],
        };
        let count = |number: u32| if number == 0 { good(0) } else { bad(number) };
        cells.extend([
            usage.runs.to_string(),
            count(usage.failed),
            count(usage.cannot_probe),
            format_seconds(usage.mean_seconds),
            format_seconds(usage.max_seconds),
            format_seconds(usage.max_waited_seconds),
            format!("{:.1}ms/s", usage.busy * 1e3),
        ]);
        cells
    }
}

impl Report for FleetUsage {
    fn add_text(&self, text: &mut Text) {
        if self.usage.is_empty() {
            text.add_line(0, "No probes found");
        } else {
            text.add_table(0, &self.table());
            let (runs, nodes) = (self.runs_kept, self.nodes);
            let nodes = format!("{nodes} node{}", if nodes == 1 { "" } else { "s" });
            line!(text, 0 => "\nThe last {runs} runs of each probe on {nodes}; BUSY is how many milliseconds of each second they run");
        }
        text.add_unread(&self.unread);
    }

    fn names(&self) -> Vec<String> {
        let names = self
            .usage
            .iter()
            .map(|usage| match usage.probe.split_once('#') {
                _ if !usage.pod.is_empty() => format!("pod/{}", usage.pod),
                Some((marker, _)) => format!("podprobemarker.apps.kruise.io/{marker}"),
                None => format!("node/{}", or_dash(usage.nodes.first())),
            });
        names.collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::CommandLine;
    use crate::report::plain_text;

    fn args(words: &[&str]) -> TopArgs {
        let words = std::iter::once("top").chain(words.iter().copied());
        CommandLine::<TopArgs>::try_parse_from(words).unwrap().args
    }

    fn probe(pod: &str, name: &str, period: u32, runs: &[(&str, f64, f64)]) -> ProbeHistory {
        let runs = runs.iter().map(|(result, seconds, waited)| {
            json!({"time": "2026-01-01T00:00:00.000000Z", "result": result, "durationSeconds": seconds, "waitedSeconds": waited})
        });
        let runs: Vec<_> = runs.collect();
        let probe = json!({"namespace": "ns", "pod": pod, "uid": pod, "container": "c", "marker": "m", "probe": name,
            "periodSeconds": period, "runs": runs});
        serde_json::from_value(probe).unwrap()
    }

    fn answers() -> Vec<(String, Result<NodeHistory, Unread>)> {
        let head = leadsman_core::podprobe::history::HistoryHead {
            runs_kept: 10,
            probes: 2,
        };
        let slow = [("Succeeded", 0.5, 0.0), ("Failed", 1.5, 0.25)];
        let one = vec![
            probe("p", "slow", 10, &slow),
            probe("p", "fast", 1, &[("Succeeded", 0.004, 0.0)]),
        ];
        let other = vec![
            probe("q", "slow", 10, &[("CannotProbe", 1.0, 0.0)]),
            probe("r", "slow", 10, &[]),
        ];
        vec![
            (
                "n1".to_owned(),
                Ok(NodeHistory {
                    head: head.clone(),
                    probes: one,
                }),
            ),
            (
                "n2".to_owned(),
                Ok(NodeHistory {
                    head,
                    probes: other,
                }),
            ),
            ("n3".to_owned(), Err(Unread("n3 is away".to_owned()))),
        ]
    }

    fn shown(words: &[&str], pods: Option<&[&str]>) -> String {
        let args = args(words);
        let uids = pods.map(|pods| pods.iter().map(|pod| (*pod).to_owned()).collect());
        let scope = SelectedPods {
            uids,
            nodes: Vec::new(),
        };
        let fleet = sum_up_answers(answers(), &scope, &args).unwrap();
        plain_text(&fleet, false, "2026-01-01T01:00:00Z")
    }

    #[test]
    fn runs_are_added_up_by_probe_pod_or_node() {
        let expected = "\
PROBE    PODS   NODES   RUNS   FAILED   CANNOT PROBE   MEAN     MAX      WAITED   BUSY
m#slow   3      2       3      1        1              1.000s   1.500s   0.250s   200.0ms/s
m#fast   1      1       1      0        0              0.004s   0.004s   -        4.0ms/s

The last 10 runs of each probe on 2 nodes; BUSY is how many milliseconds of each second they run

Not read
  n3 is away
";
        assert_eq!(shown(&[], None), expected);
        let by_pod = shown(&["-A", "--by", "pod", "--sort-by", "failed"], None);
        let mut lines = by_pod.lines();
        let heading = "NAMESPACE   POD   PROBE    NODE   RUNS";
        assert!(lines.next().unwrap().starts_with(heading), "{by_pod}");
        let first = lines.next().unwrap();
        assert!(
            first.starts_with("ns          p     m#slow   n1"),
            "{by_pod}"
        );
        let by_node = shown(&["--by", "node", "--sort-by", "cannot-probe"], None);
        assert!(
            by_node.starts_with("NODE   PODS   PROBES   RUNS"),
            "{by_node}"
        );
        assert!(
            by_node.contains("\nn2     2      2        1      0        1"),
            "{by_node}"
        );
    }

    #[test]
    fn other_pods_are_left_out() {
        let of_q = shown(&["-l", "app=q"], Some(&["q"]));
        assert!(
            of_q.contains("m#slow   1      1       1") && !of_q.contains("m#fast"),
            "{of_q}"
        );
        assert!(shown(&[], Some(&[])).starts_with("No probes found\n"));
    }

    #[test]
    fn without_any_answer_the_reason_is_the_error() {
        let scope = SelectedPods {
            uids: None,
            nodes: Vec::new(),
        };
        let away = vec![(
            "n".to_owned(),
            Err(Unread("missing right: get pods/exec".to_owned())),
        )];
        let error = sum_up_answers(away, &scope, &args(&[])).unwrap_err();
        assert_eq!(error.to_string(), "missing right: get pods/exec");
    }

    #[test]
    fn a_sort_key_that_does_not_exist_is_refused_with_what_was_meant() {
        let refused =
            CommandLine::<TopArgs>::try_parse_from(["top", "--sort-by", "bussy"]).unwrap_err();
        assert!(refused.to_string().contains("busy"), "{refused}");
    }
}
