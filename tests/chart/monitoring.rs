//! Alerts and dashboards ask for metrics and labels that exist, and each alert has its part of the runbook. Whether the queries
//! have data, a Prometheus tells in `tests/install`.

use std::collections::{BTreeMap, BTreeSet};

use leadsman_tests::document;
use serde_json::Value;

use crate::render::{Objects, root, template};

/// Labels of targets, which the `PodMonitor` sets, and of a histogram's buckets.
const LABELS_OF_ALL: [&str; 4] = ["instance", "job", "node", "le"];
/// What the names of metrics begin with.
const PREFIXES: [&str; 2] = ["leadsman_", "process_"];

fn rendered() -> Objects {
    let values = "--set=metrics.prometheusRule.enabled=true,metrics.dashboards.enabled=true,metrics.podMonitor.enabled=true";
    template("leadsman-system", &[values]).unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The metrics of docs/reference.md with their labels; of a histogram, its three series.
fn metrics() -> BTreeMap<String, BTreeSet<String>> {
    let section = document::section("docs/reference.md", "## Metrics").unwrap();
    let mut metrics = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let name = columns[1].trim_matches('`');
        let labels = columns[3]
            .split(", ")
            .map(|label| label.trim_matches('`').to_owned());
        let labels: BTreeSet<_> = labels.filter(|label| !label.is_empty()).collect();
        let suffixes: &[&str] = match columns[2] {
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        for suffix in suffixes {
            metrics.insert(format!("{name}{suffix}"), labels.clone());
        }
    }
    assert!(metrics.len() > 30, "the table of metrics: {metrics:?}");
    metrics
}

/// The names of leadsman's metrics in a query, each with the names of the labels that it is selected by.
fn selectors(query: &str) -> Vec<(String, Vec<String>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = PREFIXES.iter().filter_map(|prefix| rest.find(prefix)).min() {
        let end = rest[at..]
            .find(|c| !is_part(c))
            .map_or(rest.len(), |length| at + length);
        let name = rest[at..end].to_owned();
        rest = &rest[end..];
        let selector = rest
            .strip_prefix('{')
            .and_then(|selector| selector.split_once('}'));
        let labels = selector.map_or("", |(labels, _)| labels).split(',');
        let labels = labels.filter_map(|label| label.split_once(['=', '!']));
        let labels = labels.map(|(label, _)| label.trim().to_owned()).collect();
        found.push((name, labels));
    }
    found
}

/// The labels by which a query groups.
fn groupings(query: &str) -> Vec<String> {
    let groups = query.split("by (").skip(1);
    let groups = groups.filter_map(|rest| rest.split_once(')'));
    groups
        .flat_map(|(labels, _)| labels.split(',').map(|label| label.trim().to_owned()))
        .collect()
}

#[track_caller]
fn assert_known(query: &str, metrics: &BTreeMap<String, BTreeSet<String>>) {
    let mut of_query: BTreeSet<_> = LABELS_OF_ALL.map(str::to_owned).into();
    let selectors = selectors(query);
    assert!(
        !selectors.is_empty(),
        "{query} asks for nothing of leadsman's"
    );
    for (name, labels) in selectors {
        let known = metrics
            .get(&name)
            .unwrap_or_else(|| panic!("{query}: there is no {name}"));
        for label in labels {
            let is_known = known.contains(&label) || LABELS_OF_ALL.contains(&&*label);
            assert!(
                is_known,
                "{query}: {name} has no label {label}, but {known:?}"
            );
        }
        of_query.extend(known.iter().cloned());
    }
    for label in groupings(query) {
        assert!(
            of_query.contains(&label),
            "{query} groups by {label}, which nothing in it has"
        );
    }
}

fn rules(objects: &Objects) -> Vec<Value> {
    let groups = objects["PrometheusRule/leadsman"]["spec"]["groups"]
        .as_array()
        .unwrap();
    groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

#[test]
fn each_alert_asks_for_metrics_that_exist_and_has_a_section_of_the_runbook() {
    let (objects, metrics) = (rendered(), metrics());
    let runbook = document::section("docs/alerts.md", "## Runbook").unwrap();
    let mut sections: BTreeSet<_> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .collect();
    let rules = rules(&objects);
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        assert_known(rule["expr"].as_str().unwrap(), &metrics);
        assert!(
            sections.remove(name),
            "docs/alerts.md has no section {name}"
        );
        let expected = format!("docs/alerts.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"], expected);
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}: {severity}"
        );
    }
    assert!(
        sections.is_empty(),
        "docs/alerts.md has sections without an alert: {sections:?}"
    );
    let tests = read("tests/install/alerts.test.yaml");
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        let fires = format!("'ALERTS{{alertname=\"{name}\"");
        assert!(tests.contains(&fires), "no unit test has {name} fire");
    }
}

#[test]
fn each_panel_asks_for_metrics_that_exist_and_has_its_place() {
    let (objects, metrics) = (rendered(), metrics());
    for name in ["fleet", "node", "markers"] {
        let map = &objects[&format!("ConfigMap/leadsman-dashboard-{name}")];
        let text = map["data"][format!("leadsman-{name}.json")]
            .as_str()
            .unwrap();
        let dashboard: Value = serde_json::from_str(text).unwrap();
        assert_eq!(dashboard["uid"], format!("leadsman-{name}"));
        let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
            let [x, y, w] = ["x", "y", "w"].map(|field| panel["gridPos"][field].as_u64().unwrap());
            assert!(places.insert((x, y)) && w > 0 && x + w <= 24, "{panel}");
            let targets = panel["targets"].as_array().into_iter().flatten();
            let queries: Vec<_> = targets
                .map(|target| target["expr"].as_str().unwrap())
                .collect();
            assert_eq!(queries.is_empty(), panel["type"] == "row", "{panel}");
            for query in queries {
                assert_known(query, &metrics);
            }
        }
        assert!(ids.len() > 15, "{name} has {} panels", ids.len());
    }
}

#[test]
fn the_pod_monitor_tells_targets_by_their_node() {
    let monitor = &rendered()["PodMonitor/leadsman"];
    let relabelings = &monitor["spec"]["podMetricsEndpoints"][0]["relabelings"];
    assert_eq!(relabelings[0]["targetLabel"], "node");
}

#[test]
fn what_is_unknown_is_found() {
    let metrics = metrics();
    assert_known(
        r#"sum by (result) (rate(leadsman_writes_total{write="x"}[5m]))"#,
        &metrics,
    );
    for query in [
        "leadsman_colours",
        "leadsman_mark_latency_seconds",
        r#"leadsman_writes_total{colour="red"}"#,
        "sum by (colour) (leadsman_writes_total)",
        "up",
    ] {
        let known = std::panic::catch_unwind(|| assert_known(query, &metrics));
        assert!(known.is_err(), "{query}");
    }
}

/// The tables above are read by their section: a row of the next one must not stand in for a missing one.
#[test]
fn a_section_of_a_page_ends_with_the_next_of_its_level() {
    let page = "# Page\n## Metrics\n| `a` |\n### Of agents\n| `b` |\n#no heading\n## Logs\n| `c` |\n# End\n| `d` |\n";
    let section = |heading| document::section_of(page, heading);
    assert_eq!(
        section("## Metrics").as_deref(),
        Some("| `a` |\n### Of agents\n| `b` |\n#no heading\n")
    );
    assert_eq!(
        section("### Of agents").as_deref(),
        Some("| `b` |\n#no heading\n")
    );
    assert_eq!(section("## Logs").as_deref(), Some("| `c` |\n"));
    assert_eq!(section("# End").as_deref(), Some("| `d` |\n"));
    assert_eq!(section("## Metric"), None);
}
