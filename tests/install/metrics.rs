//! What a Prometheus makes of leadsman's metrics: each alert and each panel of a dashboard has data, and promtool finds nothing
//! wrong with metrics and rules. What a collector makes of its logs: JSON with the fields that are documented.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, LogParams};
use leadsman_testkit::leadsman::NAMESPACE;
use leadsman_testkit::release::Component;
use leadsman_testkit::{Release, packages, progress};
use leadsman_tests::{Process, document, now, wait_for_answer};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::pictures::{self, Curve, Panel};
use crate::room::flip;
use crate::{Room, install, marked_pods};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/leadsman");
const ALERTS: &str = "files/monitoring/alerts.yaml";
const TEST_OF_ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/install/alerts.test.yaml");
/// All that the chart has for Prometheus and Grafana.
const MONITORING: &str = "--set=metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true,metrics.dashboards.enabled=true";

/// A Prometheus beside the bed, which scrapes what the chart's `PodMonitor` selects. Killed when dropped; its folder goes with
/// the bed's.
struct Prometheus {
    url: String,
    _process: Process,
}

impl Prometheus {
    async fn start(release: &Release, objects: &[Value]) -> Result<Self> {
        let folder = release.bed.admin_kubeconfig().parent();
        let folder = folder.context("a bed has a folder")?.join("prometheus");
        std::fs::create_dir_all(&folder)?;
        let monitor = of_kind(objects, "PodMonitor").next();
        let pods = release.pods_api().list(&ListParams::default()).await?.items;
        let config = config(monitor.context("no PodMonitor")?, &pods)?;
        let file = folder.join("prometheus.yml");
        // JSON is YAML.
        std::fs::write(&file, config.to_string())?;
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            // It takes a port that is free, and logs which.
            .arg("--web.listen-address=127.0.0.1:0");
        let process = Process::start(command, &folder.join("log"))?;
        let address = wait_for_answer("the address of Prometheus in its log", || async {
            let log = process.log()?;
            let line = log.lines().find(|line| line.contains("\"Listening on\""));
            let address = line.and_then(|line| line.split_once("address="));
            Ok(address.map(|(_, address)| address.trim().to_owned()))
        })
        .await?;
        Ok(Self {
            url: format!("http://{address}"),
            _process: process,
        })
    }

    /// The samples that a query returns now; none while Prometheus does not answer.
    async fn query(&self, query: &str) -> Result<Vec<Value>> {
        let mut promtool = Command::new("promtool");
        promtool.args(["query", "instant", "--format=json", &self.url, query]);
        let output = promtool.output().await?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(!error.contains("parse error"), "{query}: {error}");
        Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
    }

    /// What a query returned every two seconds from `begin` on, as the curves of a panel.
    async fn curves(&self, query: &str, pattern: &str, begin: Timestamp) -> Result<Vec<Curve>> {
        let (start, end) = (begin.as_second(), now().as_second());
        let mut promtool = Command::new("promtool");
        promtool.args(["query", "range", "--format=json", "--step=2s"]);
        promtool
            .arg(format!("--start={start}"))
            .arg(format!("--end={end}"));
        let output = promtool.args([&self.url, query]).output().await?;
        let series: Vec<Value> = serde_json::from_slice(&output.stdout)?;
        let curves = series.iter().map(|series| {
            let values = series["values"].as_array().into_iter().flatten();
            let points = values.filter_map(|point| {
                let value: f64 = point[1].as_str()?.parse().ok()?;
                let seconds = point[0].as_f64()? - begin.as_duration().as_secs_f64();
                value.is_finite().then_some((seconds.max(0.0), value))
            });
            (
                pictures::legend(pattern, &series["metric"]),
                points.collect(),
            )
        });
        Ok(curves.collect())
    }

    async fn wait_for_data(&self, query: &str) -> Result<Vec<Value>> {
        wait_for_answer(&format!("data of {query}"), || async {
            let samples = self.query(query).await?;
            Ok((!samples.is_empty()).then_some(samples))
        })
        .await
    }
}

/// The labels and addresses that Prometheus' discovery by `role: pod` gives the ports of a pod, as far as a `PodMonitor` asks
/// for them. Debian's Prometheus is built without that discovery.
fn targets(pod: &Pod) -> Vec<Value> {
    let (metadata, spec) = (&pod.metadata, pod.spec.clone().unwrap_or_default());
    let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    let Some(address) = address.filter(|_| metadata.deletion_timestamp.is_none()) else {
        return Vec::new();
    };
    let mut of_pod = serde_json::Map::new();
    for (name, value) in metadata.labels.iter().flatten() {
        of_pod.insert(meta(&format!("label_{name}")), json!(value));
    }
    of_pod.insert(meta("node_name"), json!(spec.node_name));
    let ports = spec
        .containers
        .into_iter()
        .filter_map(|container| container.ports);
    let targets = ports.flatten().map(|port| {
        let mut labels = of_pod.clone();
        labels.insert(meta("container_port_name"), json!(port.name));
        json!({"targets": [format!("{address}:{}", port.container_port)], "labels": labels})
    });
    targets.collect()
}

fn meta(name: &str) -> String {
    let name = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("__meta_kubernetes_pod_{name}")
}

/// The scrape configuration that the Prometheus operator makes of a `PodMonitor` (`generatePodMonitorConfig` in its
/// `pkg/prometheus/promcfg.go`), as far as the chart's needs it.
fn config(monitor: &Value, pods: &[Pod]) -> Result<Value> {
    let keep = |meta: String, value: &Value| json!({"source_labels": [meta], "regex": value, "action": "keep"});
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let labels = monitor["spec"]["selector"]["matchLabels"].as_object();
    let labels = labels.context("a PodMonitor selects by labels")?.iter();
    let mut relabel: Vec<_> = labels
        .map(|(name, value)| keep(meta(&format!("label_{name}")), value))
        .collect();
    relabel.push(keep(meta("container_port_name"), &endpoint["port"]));
    for relabeling in endpoint["relabelings"].as_array().into_iter().flatten() {
        relabel.push(json!({"source_labels": relabeling["sourceLabels"], "target_label": relabeling["targetLabel"]}));
    }
    Ok(json!({
        "global": {"scrape_interval": "1s"},
        "rule_files": [Path::new(CHART).join(ALERTS)],
        "scrape_configs": [{
            "job_name": format!("{NAMESPACE}/leadsman"),
            "static_configs": pods.iter().flat_map(targets).collect::<Vec<_>>(),
            "relabel_configs": relabel,
        }],
    }))
}

/// The chart's objects with all that it has for Prometheus and Grafana.
async fn monitoring(release: &Release) -> Result<Vec<Value>> {
    let files = [
        "--show-only=templates/metrics.yaml",
        "--show-only=templates/dashboards.yaml",
    ];
    let template = [
        "template", "leadsman", CHART, MONITORING, files[0], files[1],
    ];
    let rendered = release.helm(&template).await?;
    let documents = serde_norway::Deserializer::from_str(&rendered);
    let objects = documents.map(Value::deserialize);
    Ok(objects.collect::<Result<_, _>>()?)
}

fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// The expressions of all alerts, such that they return a sample whether or not they fire: each comparison returns 0 or 1.
fn queries_of_alerts(objects: &[Value]) -> Vec<String> {
    let groups =
        of_kind(objects, "PrometheusRule").filter_map(|rule| rule["spec"]["groups"].as_array());
    let rules = groups
        .flatten()
        .filter_map(|group| group["rules"].as_array());
    let expressions = rules.flatten().filter_map(|rule| rule["expr"].as_str());
    expressions
        .map(|query| {
            [" < ", " > ", " == "]
                .iter()
                .fold(query.to_owned(), |query, comparison| {
                    query.replace(comparison, &format!("{comparison}bool "))
                })
        })
        .collect()
}

/// The panels of each dashboard, by its name.
fn dashboards(objects: &[Value]) -> Result<Vec<(String, Vec<Value>)>> {
    let maps = of_kind(objects, "ConfigMap").filter_map(|map| map["data"].as_object());
    let dashboards = maps.flatten().map(|(file, text)| {
        let mut dashboard: Value = serde_json::from_str(text.as_str().unwrap_or_default())?;
        let panels = serde_json::from_value(dashboard["panels"].take())?;
        Ok((file.trim_end_matches(".json").to_owned(), panels))
    });
    dashboards.collect()
}

/// The queries of a panel with their legends, Grafana's variables filled in.
fn queries_of(panel: &Value) -> Vec<(String, &str)> {
    let targets = panel["targets"].as_array().into_iter().flatten();
    let queries = targets.filter_map(|target| {
        let query = target["expr"].as_str()?.replace("$__rate_interval", "10s");
        Some((
            query.replace("$node", ".*"),
            target["legendFormat"].as_str()?,
        ))
    });
    queries.collect()
}

/// Draws each dashboard into a folder, after changes of verdicts for two minutes.
async fn draw_dashboards(
    prometheus: &Prometheus,
    objects: &[Value],
    room: &Room,
    folder: &Path,
) -> Result<()> {
    let begin = now();
    let two_minutes = tokio::time::sleep(Duration::from_mins(2));
    tokio::select! {
        () = two_minutes => {}
        failed = flip_for_ever(room) => failed?,
    }
    for (name, panels) in dashboards(objects)? {
        let mut drawn = Vec::new();
        for json in panels {
            let mut curves = Vec::new();
            for (query, pattern) in queries_of(&json) {
                curves.extend(prometheus.curves(&query, pattern, begin).await?);
            }
            drawn.push(Panel { json, curves });
        }
        pictures::draw(&drawn, &folder.join(format!("{name}.svg")))?;
    }
    Ok(())
}

async fn flip_for_ever(room: &Room) -> Result<()> {
    loop {
        for (pod, main) in [
            ("first", true),
            ("second", true),
            ("first", false),
            ("second", false),
        ] {
            flip(room, pod, main).await?;
        }
    }
}

pub(crate) async fn every_query_of_alerts_and_dashboards_has_data(
    release: Arc<Release>,
) -> Result<()> {
    packages::ensure_prometheus(&mut progress::to_stderr())?;
    let gates = "PodProbeMarkerGate=true,EnablePodProbeMarkerOnServerless=true,SidecarSetGate=true,CloneSetGate=true";
    install(&release, json!({"featureGates": gates})).await?;
    let (room, _history) = marked_pods(&release, "metrics").await?;
    let objects = monitoring(&release).await?;
    let prometheus = Prometheus::start(&release, &objects).await?;
    wait_for_answer("two managers and two agents that are scraped", || async {
        let up = prometheus.query("sum(up == 1)").await?;
        let all = up.first().map(|sample| sample["value"][1].clone());
        Ok((all == Some(json!("4"))).then_some(()))
    })
    .await?;
    let nodes = prometheus
        .query("count by (node) (up{node!=\"\"} == 1)")
        .await?;
    ensure!(
        nodes.len() == 2,
        "targets are not told apart by node: {nodes:?}"
    );
    flip(&room, "first", false).await?;
    flip(&room, "second", false).await?;
    let four_marks = "sum(leadsman_mark_latency_seconds_count) >= 4";
    prometheus.wait_for_data(four_marks).await?;
    let mut queries = queries_of_alerts(&objects);
    ensure!(queries.len() >= 10, "few alerts: {queries:?}");
    for (_, panels) in dashboards(&objects)? {
        let of_panels = panels.iter().flat_map(queries_of);
        queries.extend(of_panels.map(|(query, _)| query));
    }
    ensure!(queries.len() >= 60, "few panels: {queries:?}");
    for query in &queries {
        prometheus.wait_for_data(query).await?;
    }
    eprintln!("{} queries have data", queries.len());
    match std::env::var_os("LEADSMAN_PICTURES") {
        Some(folder) => draw_dashboards(&prometheus, &objects, &room, Path::new(&folder)).await,
        None => Ok(()),
    }
}

/// The keys of each JSON line beside fields.
const KEYS: [&str; 4] = ["timestamp", "level", "target", "message"];

/// A JSON object with the keys that stand in it, each as often as it does; `Value` would keep one of two that are equal.
#[derive(Debug)]
struct Line(Vec<(String, Value)>);

impl<'de> serde::Deserialize<'de> for Line {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> serde::de::Visitor<'de> for Keys {
            type Value = Line;

            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("an object")
            }

            fn visit_map<M: serde::de::MapAccess<'de>>(self, mut map: M) -> Result<Line, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Line(entries))
            }
        }
        from.deserialize_map(Keys)
    }
}

impl Line {
    fn text(&self, key: &str) -> &str {
        let entry = self.0.iter().find(|(found, _)| found == key);
        entry
            .and_then(|(_, value)| value.as_str())
            .unwrap_or_default()
    }
}

/// The fields that docs/reference.md lists.
fn fields_of_the_reference() -> Result<BTreeSet<String>> {
    let section = document::section("docs/reference.md", "## Logs")?;
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let names = names.flat_map(|names| {
        names
            .split(',')
            .map(|name| name.trim().trim_matches('`').to_owned())
    });
    Ok(names.collect())
}

/// What managers and agents have logged so far.
async fn log_lines(release: &Release) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for component in [Component::Manager, Component::Agent] {
        for pod in release.pods(component).await? {
            let name = pod.metadata.name.unwrap_or_default();
            let log = release
                .pods_api()
                .logs(&name, &LogParams::default())
                .await?;
            for line in log.lines() {
                lines.push(serde_json::from_str(line).with_context(|| format!("{name}: {line}"))?);
            }
        }
    }
    Ok(lines)
}

pub(crate) async fn every_line_of_a_json_log_has_fields_of_the_reference(
    release: Arc<Release>,
) -> Result<()> {
    let log =
        json!({"format": "json", "filter": "info,leadsman_control=debug,leadsman_agent=debug"});
    install(&release, json!({"log": log})).await?;
    let (_room, _history) = marked_pods(&release, "logs").await?;
    let change = |line: &Line| {
        line.text("message") == "verdict changed" && line.text("probe").starts_with("logs/first/")
    };
    let write = |line: &Line| {
        line.text("write") == "pod_marks" && line.text("object").contains("logs/first")
    };
    let lines = wait_for_answer("a verdict and its write in the logs", || async {
        let lines = log_lines(&release).await?;
        let both = lines.iter().any(change) && lines.iter().any(write);
        Ok(both.then_some(lines))
    })
    .await?;
    let known = fields_of_the_reference()?;
    for line in &lines {
        let mut keys = BTreeSet::new();
        for (key, _) in &line.0 {
            ensure!(keys.insert(key), "two fields {key}: {line:?}");
            ensure!(
                known.contains(key) || KEYS.contains(&&**key),
                "docs/reference.md has no field {key}: {line:?}"
            );
        }
        ensure!(
            KEYS.iter().all(|key| !line.text(key).is_empty()),
            "{line:?}"
        );
    }
    Ok(())
}

async fn promtool(arguments: &[&str], input: &str) -> Result<()> {
    let mut promtool = Command::new("promtool");
    promtool
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut promtool = promtool.spawn()?;
    let mut stdin = promtool.stdin.take().context("it is a pipe")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    let output = promtool.wait_with_output().await?;
    let text = [&*output.stdout, &*output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    ensure!(output.status.success(), "promtool {arguments:?}: {text}");
    Ok(())
}

pub(crate) async fn promtool_finds_nothing_wrong_with_metrics_and_rules(
    release: Arc<Release>,
) -> Result<()> {
    packages::ensure_prometheus(&mut progress::to_stderr())?;
    let rules: PathBuf = Path::new(CHART).join(ALERTS);
    promtool(&["check", "rules", &rules.display().to_string()], "").await?;
    promtool(&["test", "rules", TEST_OF_ALERTS], "").await?;
    install(&release, json!({})).await?;
    for (component, port) in [(Component::Manager, 8080), (Component::Agent, 10271)] {
        for pod in release.pods(component).await? {
            let address = pod.status.and_then(|status| status.pod_ip);
            let address = address.context("a pod that is rolled out has an address")?;
            let url = format!("http://{address}:{port}/metrics");
            let metrics = release.bed.get_from_inside(&url).await?;
            promtool(&["check", "metrics"], &metrics).await?;
        }
    }
    Ok(())
}
