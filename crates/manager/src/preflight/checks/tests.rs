//! What each fact of a cluster leads to, and what the report says to do.

use rstest::rstest;

use super::super::facts::InstallFacts;
use super::super::finding::CheckResult;
use super::*;
use crate::Gates;

/// A cluster where all is well.
fn facts() -> ClusterFacts {
    ClusterFacts {
        version: Ok((1, 34, "v1.34.4".into())),
        policies: Ok(true),
        identity: Ok(Identity {
            user: "admin".into(),
            node: None,
        }),
        openkruise: OpenKruiseFacts {
            manager: Ok(OpenKruiseState::Absent),
            daemon: Ok(None),
            webhooks: Ok(Vec::new()),
        },
        leader: Ok(None),
        install: Some(InstallFacts {
            crds: vec![("podprobemarkers.apps.kruise.io".into(), Ok(Some(ours())))],
            markers: Ok(MarkerSurvey::default()),
            clone_sets: Ok(None),
            rights: vec![(right(), Ok(true))],
        }),
    }
}

fn scope(part: InstallPart) -> PreflightScope {
    PreflightScope {
        namespace: "leadsman-system".into(),
        gates: Gates::default(),
        standing_rule: None,
        part,
    }
}

fn install(facts: &mut ClusterFacts) -> &mut InstallFacts {
    facts.install.as_mut().unwrap()
}

fn ours() -> CrdFacts {
    CrdFacts {
        rules: true,
        ..CrdFacts::default()
    }
}

fn right() -> RequiredRight {
    RequiredRight {
        verb: "patch",
        resource: "pods/status".into(),
        ..RequiredRight::default()
    }
}

fn holder() -> String {
    "kruise-controller-manager-x_1".into()
}

fn hook() -> BlockingWebhook {
    BlockingWebhook {
        kind: "validatingwebhookconfiguration",
        configuration: "kruise-validating-webhook-configuration",
        name: "vpod.kb.io".into(),
        about: "pods",
    }
}

fn changed(change: fn(&mut ClusterFacts)) -> ClusterFacts {
    let mut facts = facts();
    change(&mut facts);
    facts
}

// PPM-19
#[rstest]
#[case::all_well(|_: &mut ClusterFacts| (), "", "")]
#[case::no_version(|f: &mut ClusterFacts| f.version = Err("no".into()), "api-server", "account that may read it")]
#[case::an_old_one(|f: &mut ClusterFacts| f.version = Ok((1, 30, "v1.30.1".into())), "api-server", "upgrade the cluster")]
#[case::no_policies(|f: &mut ClusterFacts| f.policies = Ok(false), "admission-policies", "--runtime-config")]
#[case::no_crd(|f: &mut ClusterFacts| install(f).crds[0].1 = Ok(None), "crds", "leadsman manifests --only=")]
#[case::no_crd_of_sets(|f: &mut ClusterFacts| install(f).crds[0] = ("sidecarsets.apps.kruise.io".into(), Ok(None)), "crds", "--only=crds --feature-gates=SidecarSetGate=true")]
#[case::a_version_that_is_not_served(|f: &mut ClusterFacts| install(f).crds[0].1 = Ok(Some(CrdFacts { not_served: vec!["v1beta1".into()], ..ours() })), "crds", "leadsman manifests --only=")]
#[case::a_conversion(|f: &mut ClusterFacts| install(f).crds[0].1 = Ok(Some(CrdFacts { converter: Some("kruise-system/w".into()), ..ours() })), "crds", "leadsman manifests --only=")]
#[case::a_crd_that_cannot_be_seen(|f: &mut ClusterFacts| install(f).crds[0].1 = Err("no".into()), "crds", "account that may read it")]
#[case::openkruise_acts(|f: &mut ClusterFacts| f.openkruise.manager = Ok(OpenKruiseState::Active { holder: holder(), gate: GateState::On("A=true".into()) }),
    "openkruise", "featureGates='A=true,PodProbeMarkerGate=false'")]
#[case::openkruise_without_a_pod(|f: &mut ClusterFacts| f.openkruise.manager = Ok(OpenKruiseState::Active { holder: holder(), gate: GateState::NoPod }),
    "openkruise", "stop it")]
#[case::its_lease_cannot_be_seen(|f: &mut ClusterFacts| f.openkruise.manager = Err("no".into()), "openkruise", "account that may read it")]
#[case::its_daemon_probes(|f: &mut ClusterFacts| f.openkruise.daemon = Ok(Some(String::new())), "openkruise-daemon", "PodProbeMarkerGate=false")]
#[case::webhooks_that_nobody_serves(|f: &mut ClusterFacts| f.openkruise.webhooks = Ok(vec![hook()]),
    "openkruise-webhooks", "kubectl delete validatingwebhookconfiguration kruise-validating-webhook-configuration")]
#[case::a_marker_that_breaks_rules(|f: &mut ClusterFacts| install(f).markers = Ok(MarkerSurvey { markers: vec![MarkerFacts {
    name: "ns/m".into(), faults: vec!["spec.probes: none".into()], ..MarkerFacts::default() }], ..MarkerSurvey::default() }),
    "markers", "correct it")]
#[case::a_right_that_lacks(|f: &mut ClusterFacts| install(f).rights[0].1 = Ok(false), "rights", "leadsman manifests --only=")]
fn a_finding_that_is_in_the_way_has_a_remedy(
    #[case] change: fn(&mut ClusterFacts),
    #[case] check: &str,
    #[case] command: &str,
) {
    let findings = evaluate(&changed(change), &scope(InstallPart::Manager));
    let todo: Vec<_> = findings
        .iter()
        .filter(|finding| finding.result >= CheckResult::Unread)
        .collect();
    if check.is_empty() {
        assert!(todo.is_empty(), "{todo:?}");
        return;
    }
    assert_eq!(todo.len(), 1, "{findings:?}");
    assert_eq!(todo[0].check, check);
    assert!(todo[0].commands[0].contains(command), "{todo:?}");
}

// PPM-19
#[test]
fn before_an_install_only_what_it_does_not_bring_is_checked() {
    let mut facts = facts();
    facts.install = None;
    let checks = |facts: &ClusterFacts| -> Vec<_> {
        let findings = evaluate(facts, &scope(InstallPart::BeforeInstall));
        let findings = findings
            .iter()
            .map(|finding| (finding.check, finding.result));
        findings.collect()
    };
    let clean = checks(&facts);
    let absent = ["crds", "markers", "rights"];
    assert!(
        clean
            .iter()
            .all(|(check, result)| !absent.contains(check) && *result == CheckResult::Ok),
        "{clean:?}"
    );
    let gate = GateState::On(String::new());
    let holder = holder();
    facts.openkruise.manager = Ok(OpenKruiseState::Active { holder, gate });
    assert!(checks(&facts).contains(&("openkruise", CheckResult::Todo)));
}

// CLD-47
#[test]
fn sets_that_would_go_with_a_release_are_told_with_their_pods() {
    let noted = |sets, pods| {
        let release = "kruise".to_owned();
        let seen = Ok(Some(CloneSetSurvey {
            release,
            sets,
            pods,
        }));
        check_clone_sets(&seen)
    };
    assert_eq!(noted(0, 0), []);
    assert_eq!(check_clone_sets(&Ok(None)), []);
    let found = noted(2, 340).remove(0);
    assert_eq!(found.result, CheckResult::Note);
    for part in ["release kruise", "2 CloneSets", "340 pods"] {
        assert!(found.message.contains(part), "{found:?}");
    }
    assert!(
        found.commands[1].contains("resource-policy=keep"),
        "{found:?}"
    );
    assert!(
        found.commands[2].ends_with("crds.managed=false"),
        "{found:?}"
    );
    let unread = check_clone_sets(&Err("no".into())).remove(0);
    assert_eq!(unread.result, CheckResult::Unread);
}

// SCS-80, CLD-47
#[test]
fn an_openkruise_is_in_the_way_of_ungated_kinds_whatever_its_gates() {
    let results = |gates: &str, state: OpenKruiseState| {
        let facts = changed(|_| {});
        let facts = ClusterFacts {
            openkruise: OpenKruiseFacts {
                manager: Ok(state),
                ..facts.openkruise
            },
            ..facts
        };
        let scope = PreflightScope {
            gates: gates.parse().unwrap(),
            ..scope(InstallPart::Manager)
        };
        let findings = evaluate(&facts, &scope).into_iter();
        let of_sets = findings.filter(|finding| finding.check == "openkruise-ungated");
        of_sets.map(|finding| finding.result).collect::<Vec<_>>()
    };
    let off = || OpenKruiseState::GateOff { holder: holder() };
    for on in ["SidecarSetGate=true", "CloneSetGate=true"] {
        assert_eq!(results(on, off()), [CheckResult::Todo]);
        assert!(results(on, OpenKruiseState::Absent).is_empty());
    }
    assert!(results("", off()).is_empty());
}

// SCS-80
#[rstest]
#[case::with_the_gate("SidecarSetGate=true", CheckResult::Todo)]
#[case::without_it("", CheckResult::Ok)]
fn a_webhook_for_sets_that_nobody_serves_is_in_the_way_with_the_gate(
    #[case] gates: &str,
    #[case] result: CheckResult,
) {
    let facts = changed(|facts| {
        let about = "sidecarsets";
        facts.openkruise.webhooks = Ok(vec![BlockingWebhook { about, ..hook() }]);
    });
    let scope = PreflightScope {
        gates: gates.parse().unwrap(),
        ..scope(InstallPart::Manager)
    };
    let findings = evaluate(&facts, &scope);
    let mut findings = findings.iter();
    let found = findings.find(|finding| finding.check == "openkruise-webhooks");
    assert_eq!(found.unwrap().result, result, "{found:?}");
}

// SDF-61
#[rstest]
#[case::refuses("SidecarSetGate=true", Some(FailurePolicy::Fail), 1)]
#[case::lets_through("SidecarSetGate=true", Some(FailurePolicy::Ignore), 0)]
#[case::is_not_there("SidecarSetGate=true", None, 0)]
#[case::without_the_gate("", Some(FailurePolicy::Fail), 0)]
fn a_standing_rule_that_refuses_pods_is_told(
    #[case] gates: &str,
    #[case] standing_rule: Option<FailurePolicy>,
    #[case] expected: usize,
) {
    let scope = PreflightScope {
        gates: gates.parse().unwrap(),
        standing_rule,
        ..scope(InstallPart::BeforeInstall)
    };
    let findings = evaluate(&facts(), &scope);
    let told = findings
        .iter()
        .filter(|finding| finding.check == "standing-rule");
    let told: Vec<_> = told.map(|finding| finding.result).collect();
    assert_eq!(told, vec![CheckResult::Note; expected]);
}

// PPM-19
#[test]
fn of_an_openkruise_that_cannot_be_read_no_webhook_is_called_left_behind() {
    let facts = changed(|facts| {
        facts.openkruise.manager = Err("forbidden".into());
        facts.openkruise.webhooks = Ok(vec![hook()]);
    });
    let findings = evaluate(&facts, &scope(InstallPart::Manager));
    let result_of = |check: &str| {
        let found = findings.iter().find(|finding| finding.check == check);
        found.map(|finding| finding.result)
    };
    assert_eq!(result_of("openkruise"), Some(CheckResult::Unread));
    assert_eq!(result_of("openkruise-webhooks"), Some(CheckResult::Note));
}

// PPM-19
#[rstest]
#[case::openkruise_aside(|f: &mut ClusterFacts| f.openkruise.manager = Ok(OpenKruiseState::GateOff { holder: holder() }), "openkruise", CheckResult::Ok)]
#[case::its_daemon_aside(|f: &mut ClusterFacts| f.openkruise.daemon = Ok(Some("PodProbeMarkerGate=false".into())), "openkruise-daemon", CheckResult::Ok)]
#[case::webhooks_that_are_served(|f: &mut ClusterFacts| {
    f.openkruise.manager = Ok(OpenKruiseState::GateOff { holder: holder() });
    f.openkruise.webhooks = Ok(vec![hook()]);
}, "openkruise-webhooks", CheckResult::Note)]
#[case::openkruises_crd(|f: &mut ClusterFacts| install(f).crds[0].1 = Ok(Some(CrdFacts { drops: vec!["status.probes".into()], ..CrdFacts::default() })), "crds", CheckResult::Note)]
#[case::an_install_that_leads(|f: &mut ClusterFacts| f.leader = Ok(Some("games/host_1".into())), "leader", CheckResult::Note)]
#[case::a_crd_of_a_release(|f: &mut ClusterFacts| install(f).crds[0].1 = Ok(Some(CrdFacts { release: Some("kruise".into()), ..ours() })), "crds", CheckResult::Note)]
fn a_note_does_not_stop_an_install(
    #[case] change: fn(&mut ClusterFacts),
    #[case] check: &str,
    #[case] result: CheckResult,
) {
    let findings = evaluate(&changed(change), &scope(InstallPart::Manager));
    assert!(
        findings
            .iter()
            .all(|finding| finding.result != CheckResult::Todo),
        "{findings:?}"
    );
    let found = findings
        .iter()
        .find(|finding| finding.check == check)
        .unwrap();
    assert_eq!(found.result, result, "{found:?}");
}

// PPM-19
#[rstest]
#[case::of_a_second_install("games/host_1", InstallPart::BeforeInstall, CheckResult::Todo)]
#[case::of_the_same_install(
    "leadsman-system/host_1",
    InstallPart::BeforeInstall,
    CheckResult::Note
)]
#[case::of_a_second_install_that_stands_by("games/host_1", InstallPart::Manager, CheckResult::Note)]
fn a_leader_elsewhere_stops_an_install(
    #[case] holder: &str,
    #[case] part: InstallPart,
    #[case] result: CheckResult,
) {
    let found = check_leader(&Ok(Some(holder.into())), &scope(part)).remove(0);
    assert_eq!(found.result, result, "{found:?}");
    if result == CheckResult::Todo {
        let namespaces = ["namespace games", "namespace leadsman-system"];
        let named = namespaces.map(|name| found.message.contains(name));
        assert_eq!(named, [true, true], "{found:?}");
        assert!(
            found.commands[0].ends_with("--namespace games"),
            "{found:?}"
        );
        assert!(found.commands[1].contains("helm uninstall"), "{found:?}");
    }
}

// PPM-19
#[test]
fn a_holder_that_is_no_manager_names_no_namespace() {
    for part in [InstallPart::BeforeInstall, InstallPart::Manager] {
        let found = check_leader(&Ok(Some("by-hand".into())), &scope(part)).remove(0);
        assert_eq!(found.result, CheckResult::Note, "{found:?}");
        assert!(found.message.starts_with("by-hand holds the Lease"));
        assert!(!found.message.contains("namespace"), "{found:?}");
        assert_eq!(found.commands, Vec::<String>::new());
    }
}

// PPM-19
#[rstest]
#[case::a_manager_with_defaults(InstallPart::Manager, "", "--namespace=games | kubectl")]
#[case::a_manager_with_a_gate(
    InstallPart::Manager,
    "EnablePodProbeMarkerOnServerless=true",
    "--namespace=games --feature-gates=EnablePodProbeMarkerOnServerless=true | kubectl"
)]
#[case::an_agent(
    InstallPart::Agent(Vec::new()),
    "PodProbeMarkerGate=false",
    "--namespace=games --feature-gates=PodProbeMarkerGate=false | kubectl"
)]
fn rights_are_granted_to_the_install_that_lacks_them(
    #[case] part: InstallPart,
    #[case] gates: &str,
    #[case] flags: &str,
) {
    let scope = PreflightScope {
        gates: gates.parse().unwrap(),
        namespace: "games".into(),
        ..scope(part)
    };
    let found = check_rights(&[(right(), Ok(false))], &scope);
    assert!(found[0].commands[0].contains(flags), "{found:?}");
}

#[test]
fn the_fate_of_marks_depends_on_how_they_were_written() {
    let fate = |manager: &str, operation: &str, subresource: &str| {
        let owner = MarkOwner {
            manager: manager.into(),
            operation: operation.into(),
            subresource: subresource.into(),
        };
        describe_owned_marks(&owner, (3, 2)).message
    };
    assert!(fate("kruise-manager", "Update", "status").ends_with("removed with their marker"));
    assert!(fate("manager", "Update", "").ends_with("stay when the marker is deleted"));
    assert!(fate("leadsman-podprobe", "Apply", "status").ends_with("its own"));
}
