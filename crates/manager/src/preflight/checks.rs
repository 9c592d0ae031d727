//! What follows from the facts: a line for each check, with what to do. Pure.

use std::collections::BTreeMap;

use super::facts::{Crd, Facts, Identity, Lookup, Right};
use super::marks::{MarkerFact, Markers, Owner};
use super::neighbour::{OpenKruise, Webhook};
use crate::gates::openkruise_probes;
use crate::openkruise::{GATES_FLAG, Gate, LEASE, NAMESPACE, Standing, switch_off};

/// The oldest Kubernetes that leadsman is for: since 1.31 a token tells its node without a feature gate to be switched on,
/// since 1.30 admission policies are stable, since 1.29 rules in CRDs are.
const OLDEST: (u32, u32) = (1, 31);
const INSTALL: &str = "leadsman manifests | kubectl apply --server-side --force-conflicts -f -";
/// Of a long list, so many are named.
const NAMED: usize = 5;

/// What a check came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Nothing has to be known.
    Ok,
    /// Good to know; nothing has to be done.
    Note,
    /// Something has to be done first.
    Todo,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check, from a fixed list.
    pub check: &'static str,
    /// What it came to.
    pub outcome: Outcome,
    /// What was seen.
    pub message: String,
    /// What to do, a command or a sentence each.
    pub commands: Vec<String>,
}

impl Finding {
    /// A line.
    pub fn new(check: &'static str, outcome: Outcome, message: impl Into<String>) -> Self {
        Self {
            check,
            outcome,
            message: message.into(),
            commands: Vec::new(),
        }
    }

    /// With something to do.
    #[must_use]
    pub fn then(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    /// What cannot be seen may be anything: it has to be looked at.
    fn unseen(check: &'static str, what: &str, why: &str) -> Self {
        Self::new(
            check,
            Outcome::Todo,
            format!("cannot look at {what}: {why}"),
        )
        .then("run this as somebody who may read it")
    }
}

/// What follows from what was seen.
pub fn checks(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![version(&facts.version), policies(&facts.policies)];
    findings.push(identity(&facts.identity));
    findings.extend(facts.crds.iter().map(|(name, seen)| crd(name, seen)));
    findings.extend(openkruise(&facts.openkruise));
    findings.extend(markers(&facts.markers));
    findings.extend(rights(&facts.rights));
    findings
}

fn version(seen: &Lookup<(u32, u32, String)>) -> Finding {
    const CHECK: &str = "api-server";
    match seen {
        Err(why) => Finding::new(
            CHECK,
            Outcome::Todo,
            format!("no API server answers: {why}"),
        )
        .then("name a cluster with --kubeconfig"),
        Ok((major, minor, name)) if (*major, *minor) < OLDEST => {
            let (major, minor) = OLDEST;
            let message = format!("Kubernetes {name} is older than {major}.{minor}");
            Finding::new(CHECK, Outcome::Todo, message).then("upgrade the cluster")
        }
        Ok((.., name)) => {
            let message = format!(
                "Kubernetes {name}: CRD validation rules (CEL), node-bound service account tokens"
            );
            Finding::new(CHECK, Outcome::Ok, message)
        }
    }
}

fn policies(seen: &Lookup<bool>) -> Finding {
    const CHECK: &str = "admission-policies";
    match seen {
        Err(why) => Finding::unseen(CHECK, "admissionregistration.k8s.io/v1", why),
        Ok(true) => Finding::new(CHECK, Outcome::Ok, "ValidatingAdmissionPolicy is served"),
        Ok(false) => Finding::new(
            CHECK,
            Outcome::Todo,
            "ValidatingAdmissionPolicy is not served: an agent could report for nodes that are not its own",
        )
        .then("serve admissionregistration.k8s.io/v1 (kube-apiserver --runtime-config)"),
    }
}

fn identity(seen: &Lookup<Identity>) -> Finding {
    const CHECK: &str = "identity";
    let identity = match seen {
        Ok(identity) => identity,
        Err(why) => return Finding::unseen(CHECK, "who we are", why),
    };
    let user = &identity.user;
    match &identity.node {
        Some(node) => Finding::new(CHECK, Outcome::Ok, format!("{user}, on node {node}")),
        None => Finding::new(
            CHECK,
            Outcome::Ok,
            format!("{user}; rights below are this user's"),
        ),
    }
}

fn crd(name: &str, seen: &Lookup<Option<Crd>>) -> Finding {
    const CHECK: &str = "crds";
    let crd = match seen {
        Err(why) => return Finding::unseen(CHECK, name, why),
        Ok(None) => {
            let message = format!("{name} is not installed");
            return Finding::new(CHECK, Outcome::Todo, message).then(INSTALL);
        }
        Ok(Some(crd)) => crd,
    };
    let release = crd.release.as_ref().map(|release| {
        format!(
            "; it belongs to the Helm release {release}, which restores its own with each upgrade and deletes it, and \
             every object of it, when it is uninstalled"
        )
    });
    let release = release.unwrap_or_default();
    if crd.drops.is_empty() && crd.rules {
        return Finding::new(
            CHECK,
            if release.is_empty() {
                Outcome::Ok
            } else {
                Outcome::Note
            },
            format!("{name} is leadsman's{release}"),
        );
    }
    let drops = named(&crd.drops);
    let rules = if crd.rules {
        ""
    } else {
        ", and has no validation rules (CEL)"
    };
    Finding::new(
        CHECK,
        Outcome::Note,
        format!("{name} is OpenKruise's or an older one: it drops {drops}{rules}{release}"),
    )
    .then(INSTALL)
}

fn openkruise(seen: &OpenKruise) -> Vec<Finding> {
    const CHECK: &str = "openkruise";
    let mut findings = Vec::new();
    let (finding, serves) = match &seen.manager {
        Err(why) => {
            let what = format!("the Lease {NAMESPACE}/{LEASE}");
            (Finding::unseen(CHECK, &what, why), true)
        }
        Ok(Standing::Unknown | Standing::Away) => {
            let message = format!("no OpenKruise manager holds the Lease {NAMESPACE}/{LEASE}");
            (Finding::new(CHECK, Outcome::Ok, message), false)
        }
        Ok(Standing::Aside { holder }) => {
            let message =
                format!("OpenKruise's manager {holder} runs with PodProbeMarkerGate=false");
            (Finding::new(CHECK, Outcome::Ok, message), true)
        }
        Ok(Standing::Acts { holder, gate }) => (acts(CHECK, holder, gate), true),
    };
    findings.push(finding);
    findings.push(match &seen.daemon {
        Err(why) => Finding::unseen("openkruise-daemon", "OpenKruise's DaemonSet kruise-daemon", why),
        Ok(None) => Finding::new("openkruise-daemon", Outcome::Ok, "there is no kruise-daemon"),
        Ok(Some(gates)) if openkruise_probes(gates) => Finding::new(
            "openkruise-daemon",
            Outcome::Todo,
            "kruise-daemon runs with PodProbeMarkerGate on: it would report the same probes as leadsman's agents",
        )
        .then(switch_off(gates)),
        Ok(Some(_)) => Finding::new(
            "openkruise-daemon",
            Outcome::Ok,
            "kruise-daemon runs with PodProbeMarkerGate=false",
        ),
    });
    findings.extend(webhooks(&seen.webhooks, serves));
    findings
}

fn acts(check: &'static str, holder: &str, gate: &Gate) -> Finding {
    let both =
        "both managers would write the same objects, and leadsman's writes nothing while it lives";
    match gate {
        Gate::On(gates) => Finding::new(
            check,
            Outcome::Todo,
            format!("OpenKruise's manager {holder} runs with PodProbeMarkerGate on: {both}"),
        )
        .then(switch_off(gates)),
        Gate::Unread | Gate::Off | Gate::NoPod => Finding::new(
            check,
            Outcome::Todo,
            format!(
                "OpenKruise's manager {holder} lives, and no pod in {NAMESPACE} tells its {GATES_FLAG}: {both}"
            ),
        )
        .then("stop it, or run it in a pod with PodProbeMarkerGate=false"),
    }
}

/// Webhooks that must answer are in the way when nobody serves them any more.
fn webhooks(seen: &Lookup<Vec<Webhook>>, serves: bool) -> Vec<Finding> {
    const CHECK: &str = "openkruise-webhooks";
    let hooks = match seen {
        Err(why) => return vec![Finding::unseen(CHECK, "webhook configurations", why)],
        Ok(hooks) if hooks.is_empty() => {
            let message = "no webhook of OpenKruise has to answer for pods or markers";
            return vec![Finding::new(CHECK, Outcome::Ok, message)];
        }
        Ok(hooks) => hooks,
    };
    let names: Vec<_> = hooks
        .iter()
        .map(|hook| format!("{} ({})", hook.name, hook.about))
        .collect();
    let names = named(&names);
    if serves {
        let message = format!(
            "OpenKruise answers for {names} with failurePolicy Fail: while it does not, none of these can be written"
        );
        return vec![Finding::new(CHECK, Outcome::Note, message)];
    }
    let mut configurations: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for hook in hooks {
        configurations
            .entry((hook.kind, hook.configuration))
            .or_default()
            .push(hook);
    }
    let message = format!(
        "nobody answers for OpenKruise's webhooks {names} with failurePolicy Fail: none of these can be written"
    );
    let finding = Finding::new(CHECK, Outcome::Todo, message);
    let remove = |finding: Finding, (kind, configuration): &(&str, &str)| {
        finding.then(format!("kubectl delete {kind} {configuration}"))
    };
    vec![configurations.keys().fold(finding, remove)]
}

fn markers(seen: &Lookup<Markers>) -> Vec<Finding> {
    const CHECK: &str = "markers";
    let seen = match seen {
        Ok(seen) => seen,
        Err(why) => return vec![Finding::unseen(CHECK, "markers and their pods", why)],
    };
    let mut findings = Vec::new();
    let which = |is: fn(&MarkerFact) -> bool| -> Vec<String> {
        let markers = seen.markers.iter().filter(|marker| is(marker));
        markers.map(|marker| marker.name.clone()).collect()
    };
    let count = seen.markers.len();
    let held = which(|marker| marker.finalizer).len();
    let message = format!(
        "{count} markers, {held} of them with OpenKruise's finalizer, which is let go with the marker"
    );
    findings.push(Finding::new(CHECK, Outcome::Ok, message));
    for marker in seen
        .markers
        .iter()
        .filter(|marker| !marker.faults.is_empty())
    {
        let message = format!(
            "{} breaks rules, so it would not be acted on: {}",
            marker.name,
            named(&marker.faults)
        );
        findings.push(Finding::new(CHECK, Outcome::Todo, message).then("correct it, or delete it"));
    }
    if !seen.undecodable.is_empty() {
        let message = format!("cannot be read: {}", named(&seen.undecodable));
        findings
            .push(Finding::new(CHECK, Outcome::Todo, message).then("correct them, or delete them"));
    }
    let timing = which(|marker| marker.timing_left_out);
    if !timing.is_empty() {
        let message = format!(
            "{} leave timing out, which means the defaults of a container's probes (period 10 s, failure threshold 3) \
             and not OpenKruise's (1 s, 1)",
            named(&timing)
        );
        let command = "leadsman manager --compatibility=openkruise, to keep OpenKruise's";
        findings.push(Finding::new(CHECK, Outcome::Note, message).then(command));
    }
    findings.extend(
        seen.owners
            .iter()
            .map(|(owner, counts)| owned(owner, *counts)),
    );
    findings
}

/// What becomes of marks that somebody else has written.
fn owned(owner: &Owner, (marks, pods): (usize, usize)) -> Finding {
    let Owner {
        manager,
        operation,
        subresource,
    } = owner;
    let ours = manager == "leadsman-podprobe";
    let fate = match (operation.as_str(), subresource.as_str()) {
        _ if ours => "its own",
        ("Update", "status") => "taken over as they are; they go with their marker",
        _ => "a verdict overrules them; those that agree with it stay when the marker goes",
    };
    let slash = if subresource.is_empty() { "" } else { "/" };
    let message = format!(
        "{manager} ({operation}{slash}{subresource}) owns {marks} marks on {pods} pods: {fate}"
    );
    Finding::new("field-managers", Outcome::Ok, message)
}

fn rights(seen: &[(Right, Lookup<bool>)]) -> Vec<Finding> {
    const CHECK: &str = "rights";
    let mut findings = Vec::new();
    let mut lacking = Vec::new();
    for (right, allowed) in seen {
        match allowed {
            Ok(true) => {}
            Ok(false) => lacking.push(shown(right)),
            Err(why) => findings.push(Finding::unseen(CHECK, &shown(right), why)),
        }
    }
    if lacking.is_empty() && findings.is_empty() {
        let message = format!("all {} rights are there", seen.len());
        findings.push(Finding::new(CHECK, Outcome::Ok, message));
    } else if !lacking.is_empty() {
        let message = format!("RBAC does not allow: {}", lacking.join(", "));
        findings.push(Finding::new(CHECK, Outcome::Todo, message).then(INSTALL));
    }
    findings
}

fn shown(right: &Right) -> String {
    let dot = if right.group.is_empty() { "" } else { "." };
    let mut text = format!("{} {}{dot}{}", right.verb, right.resource, right.group);
    if !right.name.is_empty() {
        text = format!("{text} {}", right.name);
    }
    if !right.namespace.is_empty() {
        text = format!("{text} in {}", right.namespace);
    }
    text
}

fn named(all: &[String]) -> String {
    let first = all
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    match all.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A cluster where all is well.
    fn facts() -> Facts {
        Facts {
            version: Ok((1, 34, "v1.34.4".into())),
            policies: Ok(true),
            identity: Ok(Identity {
                user: "admin".into(),
                node: None,
            }),
            crds: vec![("podprobemarkers.apps.kruise.io".into(), Ok(Some(ours())))],
            openkruise: OpenKruise {
                manager: Ok(Standing::Away),
                daemon: Ok(None),
                webhooks: Ok(Vec::new()),
            },
            markers: Ok(Markers::default()),
            rights: vec![(right(), Ok(true))],
        }
    }

    fn ours() -> Crd {
        Crd {
            rules: true,
            ..Crd::default()
        }
    }

    fn right() -> Right {
        Right {
            verb: "patch",
            resource: "pods/status".into(),
            ..Right::default()
        }
    }

    fn holder() -> String {
        "kruise-controller-manager-x_1".into()
    }

    fn hook() -> Webhook {
        Webhook {
            kind: "validatingwebhookconfiguration",
            configuration: "kruise-validating-webhook-configuration",
            name: "vpod.kb.io".into(),
            about: "pods",
        }
    }

    fn changed(change: fn(&mut Facts)) -> Facts {
        let mut facts = facts();
        change(&mut facts);
        facts
    }

    // PPM-19
    #[rstest]
    #[case::all_well(|_: &mut Facts| (), "", "")]
    #[case::no_api_server(|f: &mut Facts| f.version = Err("refused".into()), "api-server", "name a cluster")]
    #[case::an_old_one(|f: &mut Facts| f.version = Ok((1, 30, "v1.30.1".into())), "api-server", "upgrade the cluster")]
    #[case::no_policies(|f: &mut Facts| f.policies = Ok(false), "admission-policies", "--runtime-config")]
    #[case::no_crd(|f: &mut Facts| f.crds[0].1 = Ok(None), "crds", "leadsman manifests |")]
    #[case::a_crd_that_cannot_be_seen(|f: &mut Facts| f.crds[0].1 = Err("no".into()), "crds", "who may read it")]
    #[case::openkruise_acts(|f: &mut Facts| f.openkruise.manager = Ok(Standing::Acts { holder: holder(), gate: Gate::On("A=true".into()) }),
        "openkruise", "featureGates='A=true,PodProbeMarkerGate=false'")]
    #[case::openkruise_without_a_pod(|f: &mut Facts| f.openkruise.manager = Ok(Standing::Acts { holder: holder(), gate: Gate::NoPod }),
        "openkruise", "stop it")]
    #[case::its_lease_cannot_be_seen(|f: &mut Facts| f.openkruise.manager = Err("no".into()), "openkruise", "who may read it")]
    #[case::its_daemon_probes(|f: &mut Facts| f.openkruise.daemon = Ok(Some(String::new())), "openkruise-daemon", "PodProbeMarkerGate=false")]
    #[case::webhooks_that_nobody_serves(|f: &mut Facts| f.openkruise.webhooks = Ok(vec![hook()]),
        "openkruise-webhooks", "kubectl delete validatingwebhookconfiguration kruise-validating-webhook-configuration")]
    #[case::a_marker_that_breaks_rules(|f: &mut Facts| f.markers = Ok(Markers { markers: vec![MarkerFact {
        name: "ns/m".into(), faults: vec!["spec.probes: none".into()], ..MarkerFact::default() }], ..Markers::default() }),
        "markers", "correct it")]
    #[case::a_right_that_lacks(|f: &mut Facts| f.rights[0].1 = Ok(false), "rights", "leadsman manifests |")]
    fn what_must_be_done_is_said_with_how(
        #[case] change: fn(&mut Facts),
        #[case] check: &str,
        #[case] command: &str,
    ) {
        let findings = checks(&changed(change));
        let todo: Vec<_> = findings
            .iter()
            .filter(|finding| finding.outcome == Outcome::Todo)
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
    #[rstest]
    #[case::openkruise_aside(|f: &mut Facts| f.openkruise.manager = Ok(Standing::Aside { holder: holder() }), "openkruise", Outcome::Ok)]
    #[case::its_daemon_aside(|f: &mut Facts| f.openkruise.daemon = Ok(Some("PodProbeMarkerGate=false".into())), "openkruise-daemon", Outcome::Ok)]
    #[case::webhooks_that_are_served(|f: &mut Facts| {
        f.openkruise.manager = Ok(Standing::Aside { holder: holder() });
        f.openkruise.webhooks = Ok(vec![hook()]);
    }, "openkruise-webhooks", Outcome::Note)]
    #[case::openkruises_crd(|f: &mut Facts| f.crds[0].1 = Ok(Some(Crd { drops: vec!["status.probes".into()], ..Crd::default() })), "crds", Outcome::Note)]
    #[case::a_crd_of_a_release(|f: &mut Facts| f.crds[0].1 = Ok(Some(Crd { release: Some("kruise".into()), ..ours() })), "crds", Outcome::Note)]
    fn what_is_good_to_know_is_no_reason_to_stop(
        #[case] change: fn(&mut Facts),
        #[case] check: &str,
        #[case] outcome: Outcome,
    ) {
        let findings = checks(&changed(change));
        assert!(
            findings
                .iter()
                .all(|finding| finding.outcome != Outcome::Todo),
            "{findings:?}"
        );
        let found = findings
            .iter()
            .find(|finding| finding.check == check)
            .unwrap();
        assert_eq!(found.outcome, outcome, "{found:?}");
    }

    #[test]
    fn the_fate_of_others_marks_follows_from_how_they_were_written() {
        let fate = |manager: &str, operation: &str, subresource: &str| {
            let owner = Owner {
                manager: manager.into(),
                operation: operation.into(),
                subresource: subresource.into(),
            };
            owned(&owner, (3, 2)).message
        };
        assert!(fate("kruise-manager", "Update", "status").ends_with("go with their marker"));
        assert!(fate("manager", "Update", "").ends_with("stay when the marker goes"));
        assert!(fate("leadsman-podprobe", "Apply", "status").ends_with("its own"));
    }
}
