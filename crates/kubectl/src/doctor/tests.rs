//! What each state of an installation leads to.

use leadsman_core::podprobe::Config;
use leadsman_core::podprobe::explain::{ManagerState, MarkerSummary, Unread};
use leadsman_core::sidecarset::reconcile as sidecarset;
use leadsman_manager::Gates;
use leadsman_manager::preflight::CheckResult;
use rstest::rstest;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::facts::{InstallHealth, NodeHealth, Reports, ServiceHealth};
use super::*;
use crate::install::Install;
use crate::report::plain_text;

fn decode<T: DeserializeOwned>(wire: Value) -> T {
    serde_json::from_value(wire).unwrap()
}

/// A pod that is Ready and runs this program's version.
fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": concat!("leadsman:", env!("CARGO_PKG_VERSION")) }] },
        "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [{ "name": "c", "ready": true, "restartCount": 0, "image": "i", "imageID": "" }] },
    })
}

fn node(name: &str) -> NodeHealth {
    NodeHealth {
        name: name.to_owned(),
        labels: vec![("kubernetes.io/os".to_owned(), "linux".to_owned())],
        is_ready: true,
    }
}

/// An installation in which all is well: two managers, two nodes, the webhook in use.
fn healthy() -> InstallHealth {
    let hook = json!({ "name": "w", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": { "service": { "namespace": "leadsman-system", "name": "leadsman-webhook" } } });
    InstallHealth {
        now: "2026-01-01T01:00:00Z".parse().unwrap(),
        install: Install {
            manager: Ok(ManagerState::Leads("leadsman-system/m1_0".to_owned())),
            managers: Ok(["m1", "m2"].map(|name| decode(pod(name, "n1"))).into()),
            config: Config {
                agent_namespace: "leadsman-system".to_owned(),
                serverless: true,
                ..Config::default()
            },
            gates: Gates {
                serverless: true,
                ..Gates::default()
            },
            sidecar_sets: sidecarset::Config::default(),
            default_time_zone: jiff::tz::TimeZone::UTC,
            assumed: None,
        },
        daemon_set: Ok(Some(decode(
            json!({ "metadata": {}, "spec": { "selector": {}, "template": {
            "spec": { "containers": [], "nodeSelector": { "kubernetes.io/os": "linux" } } } } }),
        ))),
        agents: Ok(vec![decode(pod("a1", "n1")), decode(pod("a2", "n2"))]),
        nodes: Ok(vec![node("n1"), node("n2")]),
        reports: Ok(Reports::default()),
        webhook: Ok(Some(decode(json!({ "metadata": {}, "webhooks": [hook] })))),
        set_webhook: None,
        services: vec![Ok(ServiceHealth {
            name: "leadsman-system/leadsman-webhook".to_owned(),
            exists: true,
            ready_endpoints: 2,
        })],
    }
}

/// A marker, about which nothing is wrong but for what its condition's reason says.
fn marker(reason: &str) -> MarkerSummary {
    MarkerSummary {
        namespace: "ns".to_owned(),
        name: "m".to_owned(),
        created: None,
        generation: 1,
        observed_generation: 1,
        matched_pods: Some(0),
        probes: Vec::new(),
        reason: reason.to_owned(),
        ready: true,
        message: String::new(),
        newest_result: None,
    }
}

/// A pod with another status.
fn with(mut pod: Value, change: &Value) -> k8s_openapi::api::core::v1::Pod {
    for (pointer, value) in change.as_object().unwrap() {
        *pod.pointer_mut(pointer).unwrap() = value.clone();
    }
    decode(pod)
}

fn crashing(name: &str) -> k8s_openapi::api::core::v1::Pod {
    let waiting =
        json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 5m0s" } });
    with(
        pod(name, "n1"),
        &json!({ "/status/conditions/0/status": "False",
            "/status/containerStatuses/0": { "name": "c", "ready": false, "restartCount": 3, "image": "i", "imageID": "", "state": waiting } }),
    )
}

fn killed() -> k8s_openapi::api::core::v1::Pod {
    let status = json!({ "name": "c", "ready": true, "restartCount": 2, "image": "i", "imageID": "",
        "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } });
    with(
        pod("a1", "n1"),
        &json!({ "/status/containerStatuses/0": status }),
    )
}

fn of_version(version: &str) -> k8s_openapi::api::core::v1::Pod {
    let image = format!("registry.example.com:5000/leadsman:{version}");
    with(
        pod("a1", "n1"),
        &json!({ "/spec/containers/0/image": image }),
    )
}

fn all(health: &InstallHealth) -> Vec<Finding> {
    let mut all = health.check_managers();
    all.extend(health.check_agents());
    // Certificates have tests of their own.
    let webhook = health.check_webhooks().into_iter();
    all.extend(webhook.filter(|finding| finding.check != "certificate"));
    all.extend(health.check_markers());
    all.extend(health.check_versions());
    all
}

fn denied() -> Unread {
    Unread("missing right: list x".to_owned())
}

#[test]
fn nothing_is_found_where_all_is_well() {
    for finding in all(&healthy()) {
        assert_eq!(finding.result, CheckResult::Ok, "{finding:?}");
    }
}

#[rstest]
#[case::nobody_leads("leader", "nobody holds the Lease", "logs deployment/leadsman-manager", |it: &mut InstallHealth| it.install.manager = Ok(ManagerState::Absent))]
#[case::the_leader_is_gone("leader", "last renewed the Lease kube-system/leadsman-manager 10m ago", "logs deployment", |it: &mut InstallHealth| {
    it.install.manager = Ok(ManagerState::Expired("leadsman-system/m1_0".into(), "2026-01-01T00:50:00Z".parse().unwrap()));
})]
#[case::somebody_else_leads("leader", "test holds the Lease kube-system/leadsman-manager and is no manager", "delete lease", |it: &mut InstallHealth| it.install.manager = Ok(ManagerState::Leads("test".into())))]
#[case::gate_off("gate", "PodProbeMarkerGate=false", "--feature-gates", |it: &mut InstallHealth| it.install.gates.pod_probe_marker = false)]
#[case::manager_crashes("manager-pods", "m1 on node n1 is not Ready: CrashLoopBackOff: back-off 5m0s", "describe pod m1", |it: &mut InstallHealth| {
    it.install.managers = Ok(vec![crashing("m1")]);
})]
#[case::no_manager("manager-pods", "has no manager's pod", "describe deployment", |it: &mut InstallHealth| {
    it.install.manager = Err(denied());
    it.install.managers = Ok(Vec::new());
})]
#[case::agent_killed("agent-pods", "a1 (2 times, last: OOMKilled)", "agent.resources.limits.memory", |it: &mut InstallHealth| {
    it.agents.as_mut().unwrap()[0] = killed();
})]
#[case::no_agents("agent-pods", "no DaemonSet leadsman-agent", "install leadsman's agents", |it: &mut InstallHealth| {
    it.agents = Ok(Vec::new());
    it.daemon_set = Ok(None);
    it.reports.as_mut().unwrap().silent_nodes.push("n1".into());
})]
#[case::node_without_agent("agent-nodes", "1 of 3 nodes have no agent, so no pod there is probed: n3 (NotReady)", "compare tolerations", |it: &mut InstallHealth| {
    it.nodes.as_mut().unwrap().push(NodeHealth { is_ready: false, ..node("n3") });
})]
#[case::silent("agent-reports", "the agents of these nodes do not report, so their verdicts are old: n2", "agent's pod and log", |it: &mut InstallHealth| {
    it.reports.as_mut().unwrap().silent_nodes.push("n2".into());
})]
#[case::late("marks", "these pods lack the marks of verdicts older than 30 s: ns/p, ns/p, ns/p, ns/p, ns/p and 1 more", "explain pod/NAME", |it: &mut InstallHealth| {
    it.reports.as_mut().unwrap().late_pods = vec!["ns/p".into(); 6];
})]
#[case::no_endpoint("webhook", "no ready endpoint serves it", "service-name=leadsman-webhook", |it: &mut InstallHealth| {
    it.services[0].as_mut().unwrap().ready_endpoints = 0;
})]
#[case::no_service("webhook", "leadsman-system/leadsman-webhook by which the API server calls it does not exist", "helm upgrade", |it: &mut InstallHealth| {
    it.services[0].as_mut().unwrap().exists = false;
})]
#[case::no_configuration("webhook", "there is no MutatingWebhookConfiguration leadsman", "its log says why", |it: &mut InstallHealth| {
    it.webhook = Ok(None);
    it.reports = Ok(Reports { markers: vec![marker("NotAsRequested")], ..Reports::default() });
})]
#[case::no_webhook_of_sets("webhook", "there is no ValidatingWebhookConfiguration leadsman", "its log says why", |it: &mut InstallHealth| it.set_webhook = Some(Ok(None)))]
#[case::two_versions("versions", "of the agents: 0.0.1 (1), ", "rollout status", |it: &mut InstallHealth| {
    it.agents.as_mut().unwrap()[0] = of_version("0.0.1");
})]
fn a_problem_is_named_with_what_to_do(
    #[case] check: &str,
    #[case] words: &str,
    #[case] command: &str,
    #[case] break_it: fn(&mut InstallHealth),
) {
    let mut health = healthy();
    break_it(&mut health);
    let found = all(&health);
    let problems: Vec<_> = found
        .iter()
        .filter(|it| it.result == CheckResult::Todo)
        .collect();
    let problem = problems.iter().find(|it| it.check == check);
    let problem = problem.unwrap_or_else(|| panic!("{found:#?}"));
    assert!(problem.message.contains(words), "{problem:?}");
    assert!(problem.commands[0].contains(command), "{problem:?}");
    // Of the agent's absence two checks tell.
    assert!(
        problems.len() <= 1 + usize::from(check == "agent-pods"),
        "{problems:#?}"
    );
}

#[rstest]
#[case::nodes("agent-nodes", |it: &mut InstallHealth| it.nodes = Err(denied()))]
#[case::agents("agent-pods", |it: &mut InstallHealth| it.agents = Err(denied()))]
#[case::managers("manager-pods", |it: &mut InstallHealth| it.install.managers = Err(denied()))]
#[case::lease("leader", |it: &mut InstallHealth| it.install.manager = Err(denied()))]
#[case::reports("agent-reports", |it: &mut InstallHealth| it.reports = Err(denied()))]
#[case::webhook_of_sets("webhook", |it: &mut InstallHealth| it.set_webhook = Some(Err(denied())))]
#[case::webhook("webhook", |it: &mut InstallHealth| it.webhook = Err(denied()))]
#[case::webhook_and_gate("webhook", |it: &mut InstallHealth| {
    it.webhook = Err(denied());
    it.install.config.serverless = false;
    it.install.assumed = Some(denied());
})]
fn what_cannot_be_read_is_no_problem_and_names_the_right(
    #[case] check: &str,
    #[case] deny: fn(&mut InstallHealth),
) {
    let mut health = healthy();
    deny(&mut health);
    let found = all(&health);
    let unread: Vec<_> = found
        .iter()
        .filter(|it| it.result == CheckResult::Unread)
        .collect();
    assert!(unread.iter().any(|it| it.check == check), "{found:#?}");
    assert!(
        unread.iter().all(|it| it.message == denied().0),
        "{unread:#?}"
    );
    assert!(
        found.iter().all(|it| it.result != CheckResult::Todo),
        "{found:#?}"
    );
}

#[rstest]
#[case::manager_outside("manager-pods", "m1_0 runs elsewhere", |it: &mut InstallHealth| it.install.managers = Ok(Vec::new()))]
#[case::serverless_without_markers("webhook", "without a valid PodProbeMarker none is needed", |it: &mut InstallHealth| {
    it.webhook = Ok(None);
    it.reports = Ok(Reports { markers: vec![marker("InvalidSpec")], ..Reports::default() });
})]
#[case::neither_markers_nor_sets("webhook", "without a valid PodProbeMarker or SidecarSet none is needed", |it: &mut InstallHealth| {
    it.webhook = Ok(None);
    it.install.gates.sidecar_set = true;
})]
#[case::another_program("versions", "which may differ", |it: &mut InstallHealth| {
    it.install.managers = Ok(Vec::new());
    it.agents = Ok(vec![of_version("9.9.9")]);
    it.nodes.as_mut().unwrap().pop();
})]
fn what_is_worth_knowing_is_no_problem(
    #[case] check: &str,
    #[case] words: &str,
    #[case] change: fn(&mut InstallHealth),
) {
    let mut health = healthy();
    change(&mut health);
    let found = all(&health);
    let note = found
        .iter()
        .find(|it| it.check == check && it.result == CheckResult::Note);
    assert!(
        note.is_some_and(|it| it.message.contains(words)),
        "{found:#?}"
    );
    assert!(
        found.iter().all(|it| it.result != CheckResult::Todo),
        "{found:#?}"
    );
}

/// A pod that has ended or is being deleted has a successor.
#[rstest]
#[case::ended(&json!({"/status/phase": "Failed"}))]
#[case::succeeded(&json!({"/status/phase": "Succeeded"}))]
#[case::deleted(&json!({"/metadata": {"name": "m3", "deletionTimestamp": "2026-01-01T00:59:00Z"}}))]
fn a_former_pod_is_no_problem(#[case] change: &Value) {
    let mut former = pod("m3", "n1");
    former["status"]["conditions"][0]["status"] = json!("False");
    let mut health = healthy();
    let managers = health.install.managers.as_mut().unwrap();
    managers.push(with(former, change));
    let found = health.check_managers();
    let pods = found.iter().find(|it| it.check == "manager-pods").unwrap();
    assert_eq!(
        (pods.result, pods.message.as_str()),
        (CheckResult::Ok, "2 of 2 are Ready")
    );
}

/// Notes of preflight about markers are for who comes from another manager.
#[test]
fn notes_about_a_migration_are_left_out() {
    let finding = |check, result| Finding::new(check, result, "…");
    let all = [
        finding("markers", CheckResult::Note),
        finding("markers", CheckResult::Todo),
        finding("markers", CheckResult::Unread),
        finding("crds", CheckResult::Note),
        finding("openkruise", CheckResult::Ok),
    ];
    let of = |group| of_group(&all, group);
    assert_eq!(of(FindingGroup::Markers), [all[1].clone()]);
    assert_eq!(of(FindingGroup::Cluster), [all[3].clone()]);
    assert_eq!(of(FindingGroup::OpenKruise), [all[4].clone()]);
}

/// Virtual nodes and those that the nodeSelector leaves out.
#[test]
fn a_node_that_should_have_no_agent_lacks_none() {
    let mut health = healthy();
    let nodes = health.nodes.as_mut().unwrap();
    let labelled = |name: &str, key: &str, value: &str| NodeHealth {
        labels: vec![(key.to_owned(), value.to_owned())],
        ..node(name)
    };
    nodes.push(labelled("w1", "kubernetes.io/os", "windows"));
    nodes.push(labelled("v1", "type", "virtual-kubelet"));
    let found = health.check_agents();
    let nodes = found.iter().find(|it| it.check == "agent-nodes").unwrap();
    let expected = "each of 2 nodes has an agent; its nodeSelector leaves out w1";
    assert_eq!(
        (nodes.result, nodes.message.as_str()),
        (CheckResult::Ok, expected)
    );
}

#[test]
fn text_and_json_say_the_same() {
    let findings = vec![
        Finding::new("leader", CheckResult::Ok, "m1 leads"),
        Finding::new(
            "manager-pods",
            CheckResult::Unread,
            "missing right: list pods",
        ),
        Finding::new("gate", CheckResult::Todo, "off").with_command("switch it on"),
    ];
    let report = DoctorReport::from_groups(vec![
        (FindingGroup::Cluster, Vec::new()),
        (FindingGroup::Manager, findings),
    ]);
    let expected = "\
Manager
  ok       leader              m1 leads
  unread   manager-pods        missing right: list pods
  problem  gate                off
                               -> switch it on

1 problem found; 1 check could not be made
";
    assert_eq!(plain_text(&report, false, "2026-01-01T01:00:00Z"), expected);
    assert_eq!(crate::report::Report::names(&report), ["gate"]);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["healthy"], false);
    assert_eq!(
        json["checks"][2],
        json!({ "group": "Manager", "check": "gate", "result": "problem", "message": "off",
        "do": ["switch it on"] })
    );
}
