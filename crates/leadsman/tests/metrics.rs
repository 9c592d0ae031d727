//! The metrics that manager and agent serve are those of docs/reference.md, name by name, and the reasons of markers those of
//! docs/markers.md. Needs no cluster: both show all their metrics while they wait for one.
#![allow(clippy::unwrap_used, reason = "a failure is what a test reports")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
const MARKERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/markers.md");
/// Nobody listens on this port, so a request fails at once, and is counted.
const KUBECONFIG: &str = "
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
users: [{name: none, user: {}}]
current-context: none
";
/// Metrics are served from the first moment on, and registered a little later: they are read so often, in pauses of
/// [`PAUSE`].
const ATTEMPTS: u32 = 300;
const PAUSE: Duration = Duration::from_millis(100);

/// The programs.
const LEADSMAN: &str = env!("CARGO_BIN_EXE_leadsman");
const AGENT: &str = env!("CARGO_BIN_EXE_leadsman-agent");

/// A process of leadsman that is killed in the end.
struct Running {
    process: Child,
    address: SocketAddr,
}

impl Running {
    fn start(folder: &Path, program: &str, arguments: &[&str]) -> Self {
        let kubeconfig = folder.join("kubeconfig");
        fs::write(&kubeconfig, KUBECONFIG).unwrap();
        let mut process = Command::new(program)
            .args(arguments)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--metrics-bind-address=127.0.0.1:0")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let address = log.find_map(|line| {
            let line = line.unwrap();
            let (_, address) = line.split_once("address=")?;
            address.split_whitespace().next()?.parse().ok()
        });
        // A process whose log nobody reads stops when the pipe is full.
        std::thread::spawn(move || log.for_each(drop));
        let address = address.expect("the log says where metrics are served");
        Self { process, address }
    }

    fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        body.to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A metric as it is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeSet<String>,
    help: String,
    components: BTreeSet<&'static str>,
}

/// The metrics of a scrape, by name, added to those of other components.
fn read(text: &str, component: &'static str, metrics: &mut BTreeMap<String, Metric>) {
    let mut help = "";
    let mut name = String::new();
    for line in text.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ').unwrap().1;
        } else if let Some(described) = line.strip_prefix("# TYPE ") {
            let (described, kind) = described.split_once(' ').unwrap();
            described.clone_into(&mut name);
            let metric = metrics.entry(name.clone()).or_default();
            kind.clone_into(&mut metric.kind);
            help.trim_end_matches('.').clone_into(&mut metric.help);
            metric.components.insert(component);
        } else {
            assert!(line.starts_with(&name), "{line} is not of {name}");
            let labels = line.split_once('{').map_or("", |(_, labels)| labels);
            let names = labels
                .split(',')
                .filter_map(|label| label.split_once('='))
                .map(|(name, _)| name);
            let names = names.filter(|name| *name != "le").map(str::to_owned);
            metrics.get_mut(&name).unwrap().labels.extend(names);
        }
    }
}

/// The rows of the documentation.
fn table(metrics: &BTreeMap<String, Metric>) -> String {
    let mut table = String::new();
    for (name, metric) in metrics {
        let Metric {
            kind,
            labels,
            help,
            components,
        } = metric;
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let components: Vec<_> = components.iter().copied().collect();
        let (labels, components) = (labels.join(", "), components.join(", "));
        let help = help.replace('<', "&lt;");
        writeln!(
            table,
            "| `{name}` | {kind} | {labels} | {components} | {help} |"
        )
        .unwrap();
    }
    table
}

fn documented() -> String {
    let reference = fs::read_to_string(REFERENCE).unwrap();
    let (_, section) = reference
        .split_once("\n## Metrics\n")
        .expect("a section on metrics");
    let section = section
        .split_once("\n## ")
        .map_or(section, |(section, _)| section);
    let lines = section.split_inclusive('\n');
    lines.filter(|line| line.starts_with("| `")).collect()
}

/// A folder of a test's own.
fn folder(test: &str) -> PathBuf {
    let name = format!("{test}-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn the_table_of_metrics_is_what_manager_and_agent_serve() {
    let folder = folder("metrics");
    let manager = Running::start(
        &folder,
        LEADSMAN,
        &[
            "manager",
            "--namespace=leadsman-system",
            "--feature-gates=EnablePodProbeMarkerOnServerless=true,SidecarSetGate=true,CloneSetGate=true",
            "--webhook-bind-address=127.0.0.1:0",
        ],
    );
    let agent = Running::start(
        &folder,
        AGENT,
        &[
            "--node-name=none",
            "--runtime-endpoint=unix:///nowhere.sock",
        ],
    );
    let documented = documented();
    let mut served = String::new();
    for _ in 0..ATTEMPTS {
        let mut metrics = BTreeMap::new();
        read(&manager.scrape(), "manager", &mut metrics);
        read(&agent.scrape(), "agent", &mut metrics);
        served = table(&metrics);
        if served == documented {
            break;
        }
        sleep(PAUSE);
    }
    fs::remove_dir_all(folder).unwrap();
    assert!(
        served == documented,
        "the table in docs/reference.md, \"Metrics\", is not what is served, which is:\n{served}"
    );
}

/// The closed list of reasons is what `leadsman_markers` has a series for each of, from the start on.
// PPM-13
#[test]
fn the_table_of_reasons_has_each_that_a_marker_can_have() {
    let folder = folder("reasons");
    let manager = Running::start(
        &folder,
        LEADSMAN,
        &["manager", "--namespace=leadsman-system"],
    );
    let text = fs::read_to_string(MARKERS).unwrap();
    let (_, table) = text
        .split_once("| reason | what it means | what to do |\n|---|---|---|\n")
        .unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let documented: BTreeSet<_> = rows.map(|row| row.split('`').nth(1).unwrap()).collect();
    let mut served = BTreeSet::new();
    for _ in 0..ATTEMPTS {
        let metrics = manager.scrape();
        let reasons = metrics.lines().filter_map(|line| {
            let (_, reason) = line.split_once("leadsman_markers{reason=\"")?;
            Some(reason.split_once('"')?.0.to_owned())
        });
        // Of a marker whose status has not been written yet.
        served = reasons.filter(|reason| reason != "None").collect();
        if !served.is_empty() {
            break;
        }
        sleep(PAUSE);
    }
    fs::remove_dir_all(folder).unwrap();
    let served: BTreeSet<_> = served.iter().map(String::as_str).collect();
    assert_eq!(
        documented, served,
        "left: docs/markers.md, \"Why is my pod not marked?\""
    );
}
