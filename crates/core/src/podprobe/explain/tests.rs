//! The ways in which a marker can fail to work, each with the cause that is named. The objects are those of an API
//! server; what the manager has written comes from its own index.

mod scene;
mod trial;

use jiff::SignedDuration;
use rstest::rstest;
use serde_json::{Value, json};

use self::scene::{NOW, Scene, marker, now};
use super::*;
use crate::cluster::words_of_tables;
use crate::podprobe::marker::MARKERS_PER_POD;
use crate::podprobe::status::Pending;

#[test]
fn nothing_is_in_the_way_of_a_pod_that_is_marked_as_it_should_be() {
    let explanation = Scene::new().explain();
    assert_eq!(explanation.causes, []);
    let MarkerFit::Matches { probes } = &explanation.markers[0].fit else {
        panic!("{:?}", explanation.markers);
    };
    let verdict = probes[0].verdict.as_ref().unwrap();
    assert_eq!(
        (verdict.state, verdict.source),
        ("Succeeded", VerdictSource::Report)
    );
    assert_eq!(probes[0].does, "exec /idle, every 10 s");
    assert_eq!(
        probes[0].next,
        "3 failures in a row turn it to Failed (one run every 10 s)"
    );
    let marks = explanation.marks.iter().map(|mark| {
        let owners: Vec<_> = mark
            .owners
            .iter()
            .map(|owner| owner.manager.as_str())
            .collect();
        (
            mark.key.as_str(),
            mark.value.as_deref(),
            mark.differs,
            mark.set_by.as_deref(),
            owners,
        )
    });
    let ours = vec!["leadsman-podprobe"];
    let expected = [
        ("idle", Some("true"), false, Some("m#Idle"), ours.clone()),
        ("game.io/idle", Some("True"), false, Some("m#Idle"), ours),
    ];
    assert!(marks.eq(expected), "{:?}", explanation.marks);
}

/// The fifteen ways of the documentation, in its order, and some more.
#[rstest]
#[case::wrong_label("NoMarkerMatches", &["m comes nearest", "app=game-server", "the pod has app=gme-server"], |scene: &mut Scene| {
    scene.unmarked();
    scene.pod["metadata"]["labels"]["app"] = json!("gme-server");
})]
#[case::wrong_label_beside_others("NoMarkerMatches", &["m comes nearest", "app=game-server"], |scene: &mut Scene| {
    scene.unmarked();
    scene.pod["metadata"]["labels"]["app"] = json!("gme-server");
    let mut other = scene.markers[0].clone();
    other["metadata"]["name"] = json!("a");
    other["spec"]["selector"]["matchLabels"]["app"] = json!("cache");
    scene.markers.push(other);
})]
#[case::wrong_namespace("OtherNamespace", &["marker other/m selects", "create it in namespace ns"], |scene: &mut Scene| {
    scene.unmarked();
    scene.markers[0]["metadata"]["namespace"] = json!("other");
})]
#[case::wrong_container("ContainerNotFound", &["no container or native sidecar named gme-server", "did you mean game-server?"], |scene: &mut Scene| {
    scene.unmarked();
    scene.probe()["containerName"] = json!("gme-server");
})]
#[case::unknown_port("PortNotFound", &["no port named htp", "it has http"], |scene: &mut Scene| {
    scene.unmarked();
    scene.probe()["probe"] = json!({ "tcpSocket": { "port": "htp" } });
})]
#[case::not_initialized("NotInitialized", &["containers with incomplete status: [setup]", "look at the init containers"], |scene: &mut Scene| {
    scene.unmarked();
    scene.pod["status"]["conditions"][0] = json!({ "type": "Initialized", "status": "False",
        "message": "containers with incomplete status: [setup]" });
})]
#[case::node_without_agent("NoAgent", &["no leadsman agent responds", "DaemonSet", "p on n1"], |scene: &mut Scene| {
    scene.unmarked();
    scene.agent = None;
})]
#[case::broken_socket("CannotProbe", &["the container runtime is unreachable or busy", "probe Idle"], |scene: &mut Scene| {
    scene.unmarked();
    scene.obstacles = vec![json!({ "name": "m#Idle", "message": "the container runtime is unreachable or busy: x" })];
})]
#[case::agent_not_ready("AgentSilent", &["stopped reporting", "check that its pod is running and Ready"], |scene: &mut Scene| {
    scene.agent.as_mut().unwrap()["status"]["conditions"][1]["status"] = json!("False");
})]
#[case::agent_just_not_ready("AgentNotReady", &["pod agent on node n1 is not Ready (CrashLoopBackOff)", "describe pod agent"], |scene: &mut Scene| {
    let status = &mut scene.agent.as_mut().unwrap()["status"];
    status["conditions"][1] = json!({ "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:59:50Z" });
    status["containerStatuses"] = json!([{ "name": "agent", "state": { "waiting": { "reason": "CrashLoopBackOff" } } }]);
})]
#[case::agents_elsewhere_alone("NoAgent", &["no pod of leadsman's agent is on node n1", "tolerates"], |scene: &mut Scene| {
    scene.unmarked();
    scene.agent.as_mut().unwrap()["spec"]["nodeName"] = json!("n2");
})]
#[case::virtual_node("VirtualNode", &["EnablePodProbeMarkerOnServerless", "enable it or exclude the pods"], |scene: &mut Scene| {
    scene.unmarked();
    scene.node.as_mut().unwrap()["metadata"]["labels"] = json!({ "type": "virtual-kubelet" });
})]
#[case::conflict("Conflict", &["condition game.io/idle is set by older#Idle", "rename it in one of them"], |scene: &mut Scene| {
    let mut verdict = scene.states[0].clone();
    verdict["name"] = json!("older#Idle");
    scene.states.push(verdict);
    scene.markers.push(marker("older", "2026-01-01T00:10:00Z"));
})]
#[case::value_of_no_label("InvalidValue", &["label idle: \"pri mary\" is not a valid label value", "narrow output.matches"], |scene: &mut Scene| {
    scene.probe()["output"] = json!({ "matches": "^(?<role>.*)$" });
    scene.probe()["markerPolicy"][0]["labels"]["idle"] = json!("$(role)");
    scene.states[0]["message"] = json!("pri mary");
})]
#[case::not_held_for_long_enough("Held", &["Succeeded since 2026-01-01T00:50:00Z has to hold until 2026-01-02T00:50:00Z"], |scene: &mut Scene| {
    scene.probe()["markerPolicy"][0]["holdSeconds"] = json!(86_400);
})]
#[case::held_since_nobody_knows_when("Held", &["nobody said since when", "lastTransitionTime"], |scene: &mut Scene| {
    scene.probe()["markerPolicy"][0]["holdSeconds"] = json!(60);
    scene.states[0].as_object_mut().unwrap().remove("lastTransitionTime");
})]
#[case::another_pod_has_the_value("NotHolder", &["label idle=true is exclusive", "pod other has a better claim"], |scene: &mut Scene| {
    scene.probe()["markerPolicy"][0]["exclusive"] = json!({ "label": "idle", "value": "true" });
    scene.pod["metadata"]["labels"].as_object_mut().unwrap().remove("idle");
    let mut other = scene.pod.clone();
    other["metadata"]["name"] = json!("other");
    other["metadata"]["uid"] = json!("v");
    other["metadata"]["labels"]["idle"] = json!("true");
    let key = leadsman_api::limits::EXCLUSIVE_ANNOTATION;
    let record = format!(r#"{{"{}#Idle":{{"holds":true,"since":"2026-01-01T00:55:00Z"}}}}"#, scene.markers[0]["metadata"]["name"].as_str().unwrap());
    other["metadata"]["annotations"][key] = json!(record);
    other["metadata"]["managedFields"][1]["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{key}")] = json!({});
    scene.neighbours.push(other);
})]
#[case::contested("Contested", &["another client keeps removing", "label idle is written by operator"], |scene: &mut Scene| {
    scene.reports("Contested", "another client keeps removing or changing marks: p (label idle)");
    scene.pod["metadata"]["labels"]["idle"] = json!("no");
    scene.pod["metadata"]["managedFields"][1]["manager"] = json!("operator");
    scene.pod["metadata"]["managedFields"][1]["operation"] = json!("Update");
})]
#[case::startup_probe("StartupProbe", &["startup probe of container game-server has not passed"], |scene: &mut Scene| {
    scene.unmarked();
    scene.pod["spec"]["containers"][0]["startupProbe"] = json!({});
    scene.pod["status"]["containerStatuses"][0]["started"] = json!(false);
})]
#[case::startup_probe_that_has_passed("ThresholdNotReached", &["due within"], |scene: &mut Scene| {
    scene.unmarked();
    scene.markers[0]["metadata"]["creationTimestamp"] = json!("2026-01-01T00:59:50Z");
    scene.pod["spec"]["containers"][0]["startupProbe"] = json!({});
})]
#[case::startup_probe_after_a_restart("StartupProbe", &["startup probe of container game-server has not passed"], |scene: &mut Scene| {
    scene.unmarked();
    scene.pod["spec"]["containers"][0]["startupProbe"] = json!({});
    scene.planned = Some(scene.pod.clone());
    scene.pod["status"]["containerStatuses"][0]["started"] = json!(false);
})]
#[case::threshold("ThresholdNotReached", &["one success or 3 failures in a row", "one run every 10 s", "due within 45s"], |scene: &mut Scene| {
    scene.unmarked();
    scene.markers[0]["metadata"]["creationTimestamp"] = json!("2026-01-01T00:59:50Z");
})]
#[case::command_missing("CommandNotFound", &["/no/such", "correct exec.command"], |scene: &mut Scene| {
    scene.fails_with("OCI runtime exec failed: exec failed: unable to start container process: exec: \"/no/such\": \
        stat /no/such: no such file or directory: unknown");
})]
#[case::command_hangs("TimedOut", &["did not end within 1s", "raise timeoutSeconds"], |scene: &mut Scene| {
    scene.fails_with("command timed out: it did not end within 1s");
})]
#[case::manager_down("ManagerDown", &["no manager leads", "10m ago", "look at its pods"], |scene: &mut Scene| {
    let since = "2026-01-01T00:50:00Z".parse().unwrap();
    scene.manager = ManagerState::Expired("leadsman-system/manager_1".to_owned(), since);
})]
#[case::manager_gone("ManagerDown", &["nobody holds the Lease"], |scene: &mut Scene| scene.manager = ManagerState::Absent)]
#[case::gate_off("GateOff", &["PodProbeMarkerGate=false"], |scene: &mut Scene| scene.gate = false)]
#[case::no_marker("NoMarker", &["namespace ns has no marker"], |scene: &mut Scene| {
    scene.unmarked();
    scene.markers.clear();
})]
#[case::invalid("InvalidSpec", &["marker m breaks a rule", "spec.probes"], |scene: &mut Scene| {
    scene.probe()["probe"] = json!({});
})]
#[case::loop_of_markers("Cycle", &["without end"], |scene: &mut Scene| {
    let mut other = marker("n", "2026-01-01T00:40:00Z");
    other["spec"]["selector"]["matchExpressions"] = json!([{ "key": "idle", "operator": "NotIn", "values": ["x"] }]);
    other["spec"]["probes"][0]["podConditionType"] = json!("game.io/other");
    other["spec"]["probes"][0]["markerPolicy"] = json!([{ "state": "Succeeded", "labels": { "stage": "y" } }]);
    scene.markers[0]["spec"]["selector"]["matchExpressions"] = json!([{ "key": "stage", "operator": "NotIn", "values": ["x"] }]);
    scene.markers.push(other);
})]
#[case::namespace_full("TooManyProbes", &["not acted on: 1 older markers of this namespace are"], |scene: &mut Scene| {
    let mut older = marker("n", "2026-01-01T00:20:00Z");
    older["spec"]["selector"] = json!({ "matchLabels": { "app": "other" } });
    scene.markers.push(older);
    scene.config.markers_per_namespace = 1;
})]
#[case::undecodable("Undecodable", &["marker m cannot be decoded", "correct it or delete it"], |scene: &mut Scene| {
    scene.unmarked();
    scene.markers[0]["spec"]["probes"] = json!("none");
})]
#[case::no_node("NoNode", &["the pod's node does not exist"], |scene: &mut Scene| {
    scene.unmarked();
    scene.node = None;
})]
#[case::ended("Ended", &["phase Succeeded"], |scene: &mut Scene| scene.pod["status"]["phase"] = json!("Succeeded"))]
#[case::being_deleted("BeingDeleted", &["being deleted"], |scene: &mut Scene| {
    scene.pod["metadata"]["deletionTimestamp"] = json!(NOW);
})]
#[case::not_scheduled("NotScheduled", &["bound to no node", "0/3 nodes"], |scene: &mut Scene| {
    scene.unmarked();
    scene.pod["spec"]["nodeName"] = Value::Null;
    scene.pod["status"]["conditions"][0] = json!({ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" });
})]
#[case::container_waits("ContainerNotRunning", &["container game-server does not run (CrashLoopBackOff)"], |scene: &mut Scene| {
    scene.unmarked();
    scene.pod["status"]["containerStatuses"][0]["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
})]
#[case::initial_delay("InitialDelay", &["first run is due in 20m"], |scene: &mut Scene| {
    scene.unmarked();
    scene.probe()["probe"]["initialDelaySeconds"] = json!(4800);
})]
#[case::overdue("NoVerdict", &["no verdict, which was due", "alternate", "agent on node n1"], Scene::unmarked)]
#[case::port_closed("ConnectionRefused", &["connecting to 10.0.0.1:8080", "correct the port"], |scene: &mut Scene| {
    scene.probe()["probe"] = json!({ "tcpSocket": { "port": 8080 } });
    scene.fails_with("connecting to 10.0.0.1:8080: Connection refused");
})]
#[case::not_written("NotWrittenYet", &["label idle", "the manager writes that within seconds", "label idle is written by operator"], |scene: &mut Scene| {
    scene.pod["metadata"]["labels"]["idle"] = json!("false");
    scene.pod["metadata"]["managedFields"][1]["manager"] = json!("operator");
})]
fn the_cause_is_named_with_what_to_do(
    #[case] reason: &str,
    #[case] words: &[&str],
    #[case] break_it: fn(&mut Scene),
) {
    let mut scene = Scene::new();
    break_it(&mut scene);
    let causes = scene.explain().causes;
    let first = causes.first().map_or("none", |cause| cause.reason.as_str());
    assert_eq!(first, reason, "{causes:#?}");
    for words in words {
        assert!(
            causes[0].message.contains(words),
            "{words}: {}",
            causes[0].message
        );
    }
}

#[test]
fn a_marker_beyond_those_of_the_pod_is_told_with_and_without_the_nodes() {
    for reads_nodes in [true, false] {
        let mut scene = Scene::new();
        scene.reads_nodes = reads_nodes;
        for own in 0..MARKERS_PER_POD {
            let older = marker(&format!("n{own}"), "2026-01-01T00:20:00Z");
            scene.markers.push(older);
        }
        scene.reports("TooManyProbes", "pods that 64 older markers match");
        let causes = scene.explain().causes;
        let mut causes = causes.iter();
        let own = causes.find(|cause| cause.marker.as_deref() == Some("m"));
        let own = own.unwrap();
        assert_eq!(own.reason, CauseReason::TooManyProbes);
        let text = "p (matched by 64 older markers)";
        assert!(own.message.ends_with(text), "{}", own.message);
    }
}

#[test]
fn pods_are_grouped_by_what_is_in_the_way() {
    let named = |name: &str, break_it: fn(&mut Scene)| {
        let mut scene = Scene::new();
        break_it(&mut scene);
        Explanation {
            name: name.to_owned(),
            ..scene.explain()
        }
    };
    let renamed: fn(&mut Scene) = |scene: &mut Scene| {
        scene.unmarked();
        scene.probe()["containerName"] = json!("x");
    };
    let pods = [
        named("a", |_| ()),
        named("b", renamed),
        named("c", renamed),
        named("d", |_| ()),
    ];
    let groups = group_by_causes(&pods);
    let groups: Vec<_> = groups
        .iter()
        .map(|group| {
            (
                group.causes.first().map(|cause| cause.reason.as_str()),
                group.pods.join(" "),
            )
        })
        .collect();
    let expected = [
        (Some("ContainerNotFound"), "ns/b ns/c".to_owned()),
        (None, "ns/a ns/d".to_owned()),
    ];
    assert_eq!(groups, expected);
}

/// A verdict of a moment ago is on its way.
#[test]
fn a_pod_is_late_that_lacks_the_mark_of_an_old_verdict() {
    let patience = SignedDuration::from_secs(30);
    let late = |scene: &Scene| {
        let cluster = ObservedCluster::new(scene.observed(), now());
        cluster.late_pods(patience).len()
    };
    let mut scene = Scene::new();
    assert_eq!(late(&scene), 0);
    scene.pod["metadata"]["labels"]["idle"] = json!("false");
    assert_eq!(late(&scene), 1);
    scene.states[0]["lastTransitionTime"] = json!("2026-01-01T00:59:50Z");
    assert_eq!(late(&scene), 0);
}

#[test]
fn what_a_probe_prints_is_not_taken_for_an_error_of_the_runtime() {
    let mut scene = Scene::new();
    for printed in [
        "cat: /tmp/ready: no such file or directory",
        "connecting to db: connection refused",
    ] {
        scene.fails_with(printed);
        assert_eq!(scene.explain().causes, [], "{printed}");
    }
}

#[test]
fn without_rights_on_nodes_pod_and_marker_say_what_they_can() {
    let mut scene = Scene::new();
    scene.reads_nodes = false;
    let explanation = scene.explain();
    assert_eq!(explanation.causes, []);
    assert_eq!(
        explanation.unread,
        ["list nodepodprobes.apps.kruise.io is not allowed"]
    );
    let MarkerFit::Matches { probes } = &explanation.markers[0].fit else {
        panic!("{:?}", explanation.markers);
    };
    let verdict = probes[0].verdict.as_ref().unwrap();
    assert_eq!(
        (verdict.state, verdict.source),
        ("Succeeded", VerdictSource::Condition)
    );
    scene.probe()["containerName"] = json!("gme-server");
    assert_eq!(
        scene.explain().causes[0].reason,
        CauseReason::ContainerNotFound
    );
}

/// Somebody who may read pods and markers alone.
#[rstest]
#[case::never_marked("NoVerdict", &["no verdict, which was due"], Scene::unmarked)]
#[case::not_due("ThresholdNotReached", &["due within 45s"], |scene: &mut Scene| {
    scene.unmarked();
    scene.markers[0]["metadata"]["creationTimestamp"] = json!("2026-01-01T00:59:50Z");
})]
#[case::a_hint("TimedOut", &["raise timeoutSeconds"], |scene: &mut Scene| scene.fails_with("command timed out: x"))]
#[case::the_status_knows("NoAgent", &["no agent: p on n1"], |scene: &mut Scene| {
    scene.unmarked();
    scene.reports("NoAgent", "no agent: p on n1");
})]
fn without_rights_on_nodes_something_is_told_of_a_pod_that_lacks_marks(
    #[case] reason: &str,
    #[case] words: &[&str],
    #[case] break_it: fn(&mut Scene),
) {
    let mut scene = Scene::new();
    scene.reads_nodes = false;
    break_it(&mut scene);
    let explained = scene.explain();
    let causes = explained.causes;
    assert!(!explained.complete);
    assert_eq!(
        causes.first().map(|cause| cause.reason.as_str()),
        Some(reason),
        "{causes:#?}"
    );
    for words in words {
        assert!(causes[0].message.contains(words), "{causes:#?}");
    }
}

/// A label is enough to know, where a probe sets no condition.
#[test]
fn without_rights_on_nodes_a_label_shows_that_there_is_a_verdict() {
    let mut scene = Scene::new();
    scene.reads_nodes = false;
    scene.probe()["podConditionType"] = Value::Null;
    scene.pod["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .pop();
    scene.pod["metadata"]["managedFields"][1]["fieldsV1"]["f:status"] = json!({});
    assert_eq!(scene.explain().causes, []);
}

#[test]
fn a_selector_is_compared_requirement_by_requirement() {
    let mut scene = Scene::new();
    scene.markers[0]["spec"]["selector"]["matchExpressions"] = json!([
        { "key": "ap", "operator": "Exists" },
        { "key": "tier", "operator": "In", "values": ["a", "b"] },
        { "key": "app", "operator": "NotIn", "values": ["x"] },
        { "key": "old", "operator": "DoesNotExist" },
    ]);
    scene.pod["metadata"]["labels"]["old"] = json!("1");
    let explanation = scene.explain();
    let MarkerFit::DoesNotMatch { terms } = &explanation.markers[0].fit else {
        panic!("{:?}", explanation.markers);
    };
    let terms: Vec<_> = terms
        .iter()
        .map(|term| (term.term.as_str(), term.holds, term.found.as_str()))
        .collect();
    let expected = [
        ("app=game-server", true, ""),
        ("ap", false, "no label ap, but app"),
        ("tier in (a, b)", false, "no label tier"),
        ("app!=x", true, ""),
        ("!old", false, "old=1"),
    ];
    assert_eq!(terms, expected);
}

#[test]
fn the_page_of_kubectl_explains_every_cause() {
    let page = include_str!("../../../../../docs/kubectl.md");
    let explained = words_of_tables(page, "| reason | seen when |");
    let all: Vec<_> = CauseReason::ALL
        .iter()
        .map(|reason| reason.as_str())
        .collect();
    assert_eq!(sorted(explained), sorted(all));
}

/// Those that are a trouble of the marker too have rows of the table above it.
#[test]
fn the_page_on_markers_explains_what_resolves_by_itself() {
    let page = include_str!("../../../../../docs/markers.md");
    let (_, section) = page.split_once("\n### Pending pods\n").unwrap();
    let (section, _) = section.split_once("\n### ").unwrap();
    let explained = words_of_tables(section, "| reason | what it means |");
    let of_waiting = [
        Pending::StartupProbe,
        Pending::Starting,
        Pending::AwaitingProvider,
    ];
    assert_eq!(explained, of_waiting.map(Pending::as_str));
}

fn sorted<T: Into<String>>(words: Vec<T>) -> Vec<String> {
    let mut words: Vec<_> = words.into_iter().map(Into::into).collect();
    words.sort();
    words
}
