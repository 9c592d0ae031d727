//! What would become of a pod if a marker were applied.

use rstest::rstest;
use serde_json::{Value, json};

use super::scene::{NOW, Scene, decode, marker, now};
use crate::cluster::ObjectName;
use crate::podprobe::Outcome;
use crate::podprobe::explain::{
    MarkChange, ObservedCluster, ObservedObjects, TrialPods, TrialReport,
};
use crate::podprobe::probe::Handler;

fn name(name: &str) -> ObjectName {
    ObjectName {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
    }
}

/// A cluster without a marker, to which one is proposed.
struct Proposal {
    scene: Scene,
    marker: Value,
}

impl Proposal {
    fn new() -> Self {
        let mut scene = Scene::new();
        scene.unmarked();
        scene.markers.clear();
        Self {
            scene,
            marker: marker("new", NOW),
        }
    }

    fn proposed(&self) -> ObservedObjects {
        let mut observed = self.scene.observed();
        observed.propose_marker(decode(&self.marker), now());
        observed
    }

    fn trial(&self) -> TrialPods {
        ObservedCluster::new(self.proposed(), now()).try_marker(&name("new"))
    }

    /// The marks that change if the only probe ends so, and the causes then.
    fn after(&self, outcome: Outcome) -> (Vec<MarkChange>, Vec<&'static str>) {
        let mut observed = self.proposed();
        let target = ObservedCluster::new(observed.clone(), now())
            .trial_target(&name("p"), &name("new"))
            .unwrap();
        let report = TrialReport {
            pod: &name("p"),
            uid: &target.uid,
            node: &target.node,
            marker: "new",
            outcomes: vec![(target.runs[0].probe.clone(), outcome)],
        };
        observed.record_outcomes(&report, now());
        let cluster = ObservedCluster::new(observed, now());
        let pods = cluster.try_marker(&name("new"));
        let causes = pods.selected[0]
            .causes
            .iter()
            .map(|cause| cause.reason.as_str());
        (
            cluster.mark_changes(&name("p"), &name("new")),
            causes.collect(),
        )
    }
}

fn change(kind: &'static str, key: &str, before: Option<&str>, after: Option<&str>) -> MarkChange {
    MarkChange {
        kind,
        key: key.to_owned(),
        before: before.map(str::to_owned),
        after: after.map(str::to_owned),
        message: String::new(),
        set_by: Some("new#Idle".to_owned()),
    }
}

#[test]
fn a_new_marker_finds_its_pod_and_what_to_run() {
    let proposal = Proposal::new();
    let pods = proposal.trial();
    assert_eq!(pods.selected.len(), 1);
    assert!(pods.selected[0].matches);
    assert_eq!(pods.selected[0].causes, []);
    let cluster = ObservedCluster::new(proposal.proposed(), now());
    let target = cluster.trial_target(&name("p"), &name("new")).unwrap();
    let command = vec!["/idle".to_owned()];
    assert_eq!(target.runs[0].handler, Handler::Exec { command });
    assert_eq!(target.runs[0].failure_threshold, 3);
    assert_eq!(cluster.mark_changes(&name("p"), &name("new")), []);
}

#[rstest]
#[case(Outcome::Succeeded("idle".into()), "true", "True", "idle", &[])]
#[case(Outcome::Failed("busy".into()), "false", "False", "busy", &[])]
#[case(Outcome::Failed("command timed out: it did not end within 1s".into()), "false", "False",
    "command timed out: it did not end within 1s", &["TimedOut"])]
fn an_outcome_shows_the_marks_that_its_verdict_sets(
    #[case] outcome: Outcome,
    #[case] label: &str,
    #[case] status: &str,
    #[case] message: &str,
    #[case] causes: &[&str],
) {
    let (changes, found) = Proposal::new().after(outcome);
    let condition = MarkChange {
        message: message.to_owned(),
        ..change("condition", "game.io/idle", None, Some(status))
    };
    assert_eq!(
        changes,
        [change("label", "idle", None, Some(label)), condition]
    );
    assert_eq!(found, causes);
}

#[test]
fn a_key_of_the_policies_that_the_verdict_does_not_set_goes() {
    let mut proposal = Proposal::new();
    proposal.scene.pod["metadata"]["labels"]["idle"] = json!("by hand");
    let probe = &mut proposal.marker["spec"]["probes"][0];
    probe["markerPolicy"].as_array_mut().unwrap().pop();
    probe.as_object_mut().unwrap().remove("podConditionType");
    let (changes, _) = proposal.after(Outcome::Failed(String::new()));
    assert_eq!(changes, [change("label", "idle", Some("by hand"), None)]);
}

#[test]
fn a_marker_that_is_there_is_replaced() {
    let mut proposal = Proposal::new();
    let mut known = marker("new", "2026-01-01T00:30:00Z");
    known["spec"]["probes"][0]["probe"]["exec"]["command"] = json!(["/old"]);
    proposal.scene.markers.push(known);
    let mut observed = proposal.scene.observed();
    assert!(observed.propose_marker(decode(&proposal.marker), now()));
    assert_eq!(observed.markers.len(), 1);
    let cluster = ObservedCluster::new(observed, now());
    let target = cluster.trial_target(&name("p"), &name("new")).unwrap();
    let command = vec!["/idle".to_owned()];
    assert_eq!(target.runs[0].handler, Handler::Exec { command });
}

#[rstest]
#[case::container("ContainerNotFound", 0, |it: &mut Proposal| it.marker["spec"]["probes"][0]["containerName"] = json!("x"))]
#[case::port("PortNotFound", 0, |it: &mut Proposal| it.marker["spec"]["probes"][0]["probe"] = json!({ "tcpSocket": { "port": "x" } }))]
#[case::conflict("Conflict", 1, |it: &mut Proposal| it.scene.markers.push(marker("older", "2026-01-01T00:10:00Z")))]
#[case::not_initialized("NotInitialized", 0, |it: &mut Proposal| it.scene.pod["status"]["conditions"][0]["status"] = json!("False"))]
#[case::container_waits("ContainerNotRunning", 0, |it: &mut Proposal| {
    it.scene.pod["status"]["containerStatuses"][0]["state"] = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
})]
#[case::virtual_node("VirtualNode", 0, |it: &mut Proposal| it.scene.node.as_mut().unwrap()["metadata"]["labels"] = json!({ "type": "virtual-kubelet" }))]
#[case::cycle("Cycle", 0, |it: &mut Proposal| {
    let mut other = marker("n", "2026-01-01T00:40:00Z");
    other["spec"]["selector"]["matchExpressions"] = json!([{ "key": "idle", "operator": "NotIn", "values": ["x"] }]);
    other["spec"]["probes"][0]["podConditionType"] = json!("game.io/other");
    other["spec"]["probes"][0]["markerPolicy"] = json!([{ "state": "Succeeded", "labels": { "stage": "y" } }]);
    it.marker["spec"]["selector"]["matchExpressions"] = json!([{ "key": "stage", "operator": "NotIn", "values": ["x"] }]);
    it.scene.markers.push(other);
})]
fn what_would_be_in_the_way_is_named(
    #[case] reason: &str,
    #[case] runs: usize,
    #[case] break_it: fn(&mut Proposal),
) {
    let mut proposal = Proposal::new();
    break_it(&mut proposal);
    let pods = proposal.trial();
    let causes: Vec<_> = pods.selected[0]
        .causes
        .iter()
        .map(|it| it.reason.as_str())
        .collect();
    assert_eq!(causes.first(), Some(&reason), "{pods:#?}");
    let cluster = ObservedCluster::new(proposal.proposed(), now());
    let target = cluster.trial_target(&name("p"), &name("new"));
    assert_eq!(target.map_or(0, |target| target.runs.len()), runs);
}

#[test]
fn an_older_marker_takes_a_mark_from_a_younger_one() {
    let mut proposal = Proposal::new();
    proposal
        .scene
        .markers
        .push(marker("new", "2026-01-01T00:10:00Z"));
    proposal
        .scene
        .markers
        .push(marker("younger", "2026-01-01T00:20:00Z"));
    let pods = proposal.trial();
    let of: Vec<_> = pods.selected[0]
        .causes
        .iter()
        .map(|cause| (cause.reason.as_str(), cause.marker.as_deref()))
        .collect();
    let lost = ("Conflict", Some("younger"));
    assert_eq!(of, [lost, lost]);
}

#[test]
fn a_selector_without_a_pod_shows_the_nearest() {
    let mut proposal = Proposal::new();
    proposal.marker["spec"]["selector"]["matchLabels"] = json!({ "app": "gme-server" });
    let pods = proposal.trial();
    assert_eq!((pods.selected.len(), pods.not_selected), (0, 1));
    let nearest = pods.nearest.unwrap();
    assert_eq!(nearest.name, "p");
    assert_eq!(nearest.terms[0].found, "app=game-server");
}
