//! The findings that follow from the facts: a line for each check, with what to do. Pure.

use std::collections::BTreeMap;

use leadsman_core::sidecarset::set::FailurePolicy;

use super::facts::{
    ClusterFacts, CrdFacts, Identity, InstallPart, Lookup, NoAnswer, PreflightScope, RequiredRight,
};
use super::marks::{MarkOwner, MarkerFacts, MarkerSurvey};
use super::openkruise::{BlockingWebhook, OpenKruiseFacts, SIDECAR_SETS};
use crate::gates::{Gates, openkruise_acts_on_markers};
use crate::leader::{LEASE as OWN_LEASE, LEASE_NAMESPACE, installation_of_holder};
use crate::openkruise::{GATES_FLAG, GateState, LEASE, OpenKruiseState, switch_off_command};

/// The oldest Kubernetes that leadsman supports: a token names its node by default since 1.31 (KEP-4193), admission
/// policies are stable since 1.30 (KEP-3488), validation rules in CRDs since 1.29 (KEP-2876).
const OLDEST: (u32, u32) = (1, 31);
/// The number of items of a long list that are named.
const NAMED: usize = 5;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckResult {
    /// Nothing has to be done.
    Ok,
    /// Information; nothing has to be done.
    Note,
    /// It could not be read.
    Unread,
    /// Something has to be done first.
    Todo,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which check, from a fixed list.
    pub check: &'static str,
    /// Its result.
    pub result: CheckResult,
    /// What was found.
    pub message: String,
    /// What to do, a command or a sentence each.
    pub commands: Vec<String>,
}

impl Finding {
    /// A finding with nothing to do.
    pub fn new(check: &'static str, result: CheckResult, message: impl Into<String>) -> Self {
        Self {
            check,
            result,
            message: message.into(),
            commands: Vec::new(),
        }
    }

    /// Adds something to do.
    #[must_use]
    pub fn with_command(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    /// The only finding where no API server answers.
    pub fn no_answer_finding(error: &NoAnswer) -> Self {
        Self::new("api-server", CheckResult::Todo, error.to_string()).with_command(
            "name a cluster that can be reached from here, with --kubeconfig and --context",
        )
    }

    /// A finding that something cannot be read. Before an installation it is in the way: nobody knows what it would say.
    fn unreadable_finding(check: &'static str, what: &str, why: &str) -> Self {
        Self::new(
            check,
            CheckResult::Unread,
            format!("cannot read {what}: {why}"),
        )
        .with_command("run this with an account that may read it")
    }
}

/// All findings, in the order in which they are printed.
pub fn evaluate(facts: &ClusterFacts, scope: &PreflightScope) -> Vec<Finding> {
    let mut findings = vec![
        check_version(&facts.version),
        check_policies(&facts.policies),
    ];
    let install = facts.install.as_ref();
    let is_person = matches!(scope.part, InstallPart::Person);
    findings.push(check_identity(
        &facts.identity,
        install.is_some() && !is_person,
    ));
    let crds = install.into_iter().flat_map(|install| &install.crds);
    findings.extend(crds.map(|(name, seen)| check_crd(name, seen)));
    if !is_person {
        findings.push(check_leader(&facts.leader, scope));
    }
    findings.extend(check_openkruise(&facts.openkruise, scope.gates));
    if scope.gates.sidecar_set {
        findings.extend(check_sidecar_sets(&facts.openkruise));
        findings.extend(check_standing_rule(scope));
    }
    if let Some(install) = install {
        findings.extend(check_markers(&install.markers));
        if !is_person {
            findings.extend(check_rights(&install.rights, scope));
        }
    }
    findings
}

fn check_version(seen: &Lookup<(u32, u32, String)>) -> Finding {
    const CHECK: &str = "api-server";
    match seen {
        Err(why) => Finding::unreadable_finding(CHECK, "the version of the API server", why),
        Ok((major, minor, name)) if (*major, *minor) < OLDEST => {
            let (major, minor) = OLDEST;
            let message = format!("Kubernetes {name} is older than {major}.{minor}");
            Finding::new(CHECK, CheckResult::Todo, message).with_command("upgrade the cluster")
        }
        Ok((.., name)) => {
            let message = format!(
                "Kubernetes {name}: CRD validation rules (CEL), node-bound service account tokens"
            );
            Finding::new(CHECK, CheckResult::Ok, message)
        }
    }
}

fn check_policies(seen: &Lookup<bool>) -> Finding {
    const CHECK: &str = "admission-policies";
    match seen {
        Err(why) => Finding::unreadable_finding(CHECK, "admissionregistration.k8s.io/v1", why),
        Ok(true) => Finding::new(CHECK, CheckResult::Ok, "ValidatingAdmissionPolicy is served"),
        Ok(false) => Finding::new(
            CHECK,
            CheckResult::Todo,
            "ValidatingAdmissionPolicy is not served: an agent could report for nodes that are not its own",
        )
        .with_command("serve admissionregistration.k8s.io/v1 (kube-apiserver --runtime-config)"),
    }
}

fn check_identity(seen: &Lookup<Identity>, are_rights_checked: bool) -> Finding {
    const CHECK: &str = "identity";
    let identity = match seen {
        Ok(identity) => identity,
        Err(why) => {
            return Finding::unreadable_finding(CHECK, "the account that this runs as", why);
        }
    };
    let user = &identity.user;
    match &identity.node {
        Some(node) => Finding::new(CHECK, CheckResult::Ok, format!("{user}, on node {node}")),
        None if are_rights_checked => Finding::new(
            CHECK,
            CheckResult::Ok,
            format!("{user}, whose rights are checked below"),
        ),
        None => Finding::new(CHECK, CheckResult::Ok, user.clone()),
    }
}

fn check_crd(name: &str, seen: &Lookup<Option<CrdFacts>>) -> Finding {
    const CHECK: &str = "crds";
    let crd = match seen {
        Err(why) => return Finding::unreadable_finding(CHECK, name, why),
        Ok(None) => {
            let message = format!("{name} is not installed");
            return Finding::new(CHECK, CheckResult::Todo, message)
                .with_command(install_command(name));
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
    if let Some(why) = unreadable_objects(crd) {
        let message = format!("{name} is OpenKruise's or an older one: {why}{release}");
        return Finding::new(CHECK, CheckResult::Todo, message).with_command(install_command(name));
    }
    // A release that would delete the CRD is worth a note, also where nothing is wrong with it now.
    if crd.drops.is_empty() && crd.rules {
        return Finding::new(
            CHECK,
            if release.is_empty() {
                CheckResult::Ok
            } else {
                CheckResult::Note
            },
            format!("{name} is leadsman's{release}"),
        );
    }
    let drops = name_first_of(&crd.drops);
    let rules = if crd.rules {
        ""
    } else {
        ", and has no validation rules (CEL)"
    };
    Finding::new(
        CHECK,
        CheckResult::Note,
        format!("{name} is OpenKruise's or an older one: it drops {drops}{rules}{release}"),
    )
    .with_command(install_command(name))
}

/// How to install a CRD.
fn install_command(name: &str) -> String {
    let gate = if name.starts_with("sidecarsets.") {
        " --feature-gates=SidecarSetGate=true"
    } else {
        ""
    };
    format!(
        "leadsman manifests --only=crds{gate} | kubectl apply --server-side --force-conflicts -f -"
    )
}

/// Why objects of a CRD cannot be read in the versions that leadsman reads, or not always.
fn unreadable_objects(crd: &CrdFacts) -> Option<String> {
    if !crd.not_served.is_empty() {
        return Some(format!("it does not serve {}", crd.not_served.join(", ")));
    }
    let service = crd.converter.as_ref()?;
    Some(format!(
        "a webhook at the Service {service} converts its versions, and no object can be read while that does not answer"
    ))
}

/// A second install would take over the cluster-wide roles, bindings and policy of the first, which have fixed names.
/// Once it is there, it writes nothing while the first one leads.
fn check_leader(seen: &Lookup<Option<String>>, scope: &PreflightScope) -> Finding {
    const CHECK: &str = "leader";
    let lease = format!("{LEASE_NAMESPACE}/{OWN_LEASE}");
    let holder = match seen {
        Err(why) => return Finding::unreadable_finding(CHECK, &format!("the Lease {lease}"), why),
        Ok(None) => {
            let message = format!("no manager of leadsman holds the Lease {lease}");
            return Finding::new(CHECK, CheckResult::Ok, message);
        }
        Ok(Some(holder)) => holder,
    };
    let Some(namespace) = installation_of_holder(holder) else {
        let message = format!(
            "{holder} holds the Lease {lease} and is no manager of leadsman: managers write nothing until that Lease has \
             expired or is deleted"
        );
        return Finding::new(CHECK, CheckResult::Note, message);
    };
    let holds = format!("leadsman's manager {holder} holds the Lease {lease}");
    let here = &scope.namespace;
    if matches!(scope.part, InstallPart::BeforeInstall) && namespace != here {
        let message = format!(
            "{holds}: leadsman is installed in namespace {namespace} already, and a cluster has room for one installation. \
             Another one in namespace {here} would take over its roles, bindings and policy"
        );
        return Finding::new(CHECK, CheckResult::Todo, message)
            .with_command(format!(
                "to upgrade that install, name its namespace: --namespace {namespace}"
            ))
            .with_command(format!(
                "to replace it, remove it first (with Helm: helm uninstall RELEASE --namespace {namespace})"
            ));
    }
    let message = format!(
        "{holds}: an installation in another namespace than {namespace} writes nothing while it runs"
    );
    Finding::new(CHECK, CheckResult::Note, message)
}

fn check_openkruise(seen: &OpenKruiseFacts, gates: Gates) -> Vec<Finding> {
    const CHECK: &str = "openkruise";
    let mut findings = Vec::new();
    let (finding, serves) = match &seen.manager {
        Err(why) => {
            // It counts as running: otherwise its webhooks would be said to be left behind, and their deletion
            // recommended.
            let what = format!("the Lease {LEASE}");
            (Finding::unreadable_finding(CHECK, &what, why), true)
        }
        Ok(OpenKruiseState::Unknown | OpenKruiseState::Absent) => {
            let message = format!("no OpenKruise manager holds the Lease {LEASE}");
            (Finding::new(CHECK, CheckResult::Ok, message), false)
        }
        // Its other features go on, and with them its webhooks are served.
        Ok(OpenKruiseState::GateOff { holder }) => {
            let message =
                format!("OpenKruise's manager {holder} runs with PodProbeMarkerGate=false");
            (Finding::new(CHECK, CheckResult::Ok, message), true)
        }
        Ok(OpenKruiseState::Active { holder, gate }) => {
            (openkruise_active_finding(CHECK, holder, gate), true)
        }
    };
    findings.push(finding);
    findings.push(match &seen.daemon {
        Err(why) => Finding::unreadable_finding("openkruise-daemon", "OpenKruise's DaemonSet kruise-daemon", why),
        Ok(None) => Finding::new("openkruise-daemon", CheckResult::Ok, "there is no kruise-daemon"),
        Ok(Some(gates)) if openkruise_acts_on_markers(gates) => Finding::new(
            "openkruise-daemon",
            CheckResult::Todo,
            "kruise-daemon runs with PodProbeMarkerGate on: it would report the same probes as leadsman's agents",
        )
        .with_command(switch_off_command(gates)),
        Ok(Some(_)) => Finding::new(
            "openkruise-daemon",
            CheckResult::Ok,
            "kruise-daemon runs with PodProbeMarkerGate=false",
        ),
    });
    findings.extend(check_webhooks(&seen.webhooks, serves, gates));
    findings
}

fn openkruise_active_finding(check: &'static str, holder: &str, gate: &GateState) -> Finding {
    let both = "both managers would write the same objects, and leadsman's writes nothing while that one runs";
    match gate {
        GateState::On(gates) => Finding::new(
            check,
            CheckResult::Todo,
            format!("OpenKruise's manager {holder} runs with PodProbeMarkerGate on: {both}"),
        )
        .with_command(switch_off_command(gates)),
        GateState::Unread | GateState::Off | GateState::NoPod => Finding::new(
            check,
            CheckResult::Todo,
            format!(
                "OpenKruise's manager {holder} runs, and no pod in its namespace shows its {GATES_FLAG}: {both}"
            ),
        )
        .with_command("stop it, or run it in a pod with PodProbeMarkerGate=false"),
    }
}

/// An `OpenKruise` acts on `SidecarSet`s whatever its gates are. That its Lease cannot be read, [`check_openkruise`] says.
fn check_sidecar_sets(seen: &OpenKruiseFacts) -> Option<Finding> {
    let (OpenKruiseState::GateOff { holder } | OpenKruiseState::Active { holder, .. }) =
        seen.manager.as_ref().ok()?
    else {
        return None;
    };
    let message = format!(
        "OpenKruise's manager {holder} acts on SidecarSets, for which it has no feature gate: leadsman writes nothing for \
         them while that one runs"
    );
    let finding = Finding::new("openkruise-sidecarsets", CheckResult::Todo, message);
    Some(finding.with_command("stop it, or install leadsman with SidecarSetGate=false"))
}

/// A rule that refuses pods comes with `--compatibility=openkruise` too, which may have been set for the markers alone.
fn check_standing_rule(scope: &PreflightScope) -> Option<Finding> {
    scope
        .standing_rule
        .filter(|policy| *policy == FailurePolicy::Fail)?;
    let message = format!(
        "by the standing rule of SidecarSets, no pod can be created outside of kube-system and {} while no manager of leadsman \
         answers",
        scope.namespace
    );
    let finding = Finding::new("standing-rule", CheckResult::Note, message);
    let command = "to have such pods created without sidecars, set sidecarSets.standingRule=ignore, or none; to leave namespaces \
                   out, name them in sidecarSets.protectedNamespaces";
    Some(finding.with_command(command))
}

/// Webhooks with failurePolicy Fail are in the way when nobody serves them any more. Those for `SidecarSet`s matter with
/// their gate alone.
fn check_webhooks(seen: &Lookup<Vec<BlockingWebhook>>, serves: bool, gates: Gates) -> Vec<Finding> {
    const CHECK: &str = "openkruise-webhooks";
    let hooks = match seen {
        Err(why) => {
            return vec![Finding::unreadable_finding(
                CHECK,
                "webhook configurations",
                why,
            )];
        }
        Ok(hooks) => hooks.iter(),
    };
    let matters = |hook: &&BlockingWebhook| gates.sidecar_set || hook.about != SIDECAR_SETS;
    let hooks: Vec<_> = hooks.filter(matters).collect();
    if hooks.is_empty() {
        let whose = if gates.sidecar_set {
            "pods, markers or SidecarSets"
        } else {
            "pods or markers"
        };
        let message = format!("no webhook of OpenKruise for {whose} has failurePolicy Fail");
        return vec![Finding::new(CHECK, CheckResult::Ok, message)];
    }
    let names: Vec<_> = hooks
        .iter()
        .map(|hook| format!("{} ({})", hook.name, hook.about))
        .collect();
    let names = name_first_of(&names);
    if serves {
        let message = format!(
            "OpenKruise serves the webhooks {names} with failurePolicy Fail: while it does not answer, none of these can be written"
        );
        return vec![Finding::new(CHECK, CheckResult::Note, message)];
    }
    let mut configurations: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for hook in hooks {
        // A configuration is deleted as a whole, so each is named once.
        configurations
            .entry((hook.kind, hook.configuration))
            .or_default()
            .push(hook);
    }
    let message = format!(
        "nobody serves OpenKruise's webhooks {names} with failurePolicy Fail: none of these can be written"
    );
    let finding = Finding::new(CHECK, CheckResult::Todo, message);
    let remove = |finding: Finding, (kind, configuration): &(&str, &str)| {
        finding.with_command(format!("kubectl delete {kind} {configuration}"))
    };
    vec![configurations.keys().fold(finding, remove)]
}

fn check_markers(seen: &Lookup<MarkerSurvey>) -> Vec<Finding> {
    const CHECK: &str = "markers";
    let seen = match seen {
        Ok(seen) => seen,
        Err(why) => {
            return vec![Finding::unreadable_finding(
                CHECK,
                "markers and their pods",
                why,
            )];
        }
    };
    let mut findings = Vec::new();
    let which = |is: fn(&MarkerFacts) -> bool| -> Vec<String> {
        let markers = seen.markers.iter().filter(|marker| is(marker));
        markers.map(|marker| marker.name.clone()).collect()
    };
    let count = seen.markers.len();
    let held = which(|marker| marker.finalizer).len();
    let message = format!(
        "{count} markers, {held} of them with OpenKruise's finalizer, which leadsman removes when the marker is deleted"
    );
    findings.push(Finding::new(CHECK, CheckResult::Ok, message));
    for marker in seen
        .markers
        .iter()
        .filter(|marker| !marker.faults.is_empty())
    {
        let message = format!(
            "{} is invalid, so leadsman would not act on it: {}",
            marker.name,
            name_first_of(&marker.faults)
        );
        findings.push(
            Finding::new(CHECK, CheckResult::Todo, message)
                .with_command("correct it, or delete it"),
        );
    }
    if !seen.undecodable.is_empty() {
        let message = format!("cannot be decoded: {}", name_first_of(&seen.undecodable));
        findings.push(
            Finding::new(CHECK, CheckResult::Todo, message)
                .with_command("correct them, or delete them"),
        );
    }
    let timing = which(|marker| marker.timing_left_out);
    if !timing.is_empty() {
        let message = format!(
            "{} leave timing out, which means the defaults of a container's probes (period 10 s, failure threshold 3) \
             and not OpenKruise's (1 s, 1)",
            name_first_of(&timing)
        );
        let command = "leadsman manager --compatibility=openkruise, to keep OpenKruise's";
        findings.push(Finding::new(CHECK, CheckResult::Note, message).with_command(command));
    }
    findings.extend(
        seen.owners
            .iter()
            .map(|(owner, counts)| describe_owned_marks(owner, *counts)),
    );
    findings
}

/// What leadsman does with the marks of a field manager.
fn describe_owned_marks(owner: &MarkOwner, (marks, pods): (usize, usize)) -> Finding {
    let MarkOwner {
        manager,
        operation,
        subresource,
    } = owner;
    let ours = manager == "leadsman-podprobe";
    let fate = match (operation.as_str(), subresource.as_str()) {
        _ if ours => "its own",
        // OpenKruise writes marks like this, and users, templates and operators do not write a pod's status.
        ("Update", "status") => "taken over as they are, and removed with their marker",
        _ => "overwritten by a verdict; those that equal it stay when the marker is deleted",
    };
    let slash = if subresource.is_empty() { "" } else { "/" };
    let message = format!(
        "{manager} ({operation}{slash}{subresource}) owns {marks} marks on {pods} pods: {fate}"
    );
    Finding::new("field-managers", CheckResult::Ok, message)
}

fn check_rights(seen: &[(RequiredRight, Lookup<bool>)], scope: &PreflightScope) -> Vec<Finding> {
    const CHECK: &str = "rights";
    let mut findings = Vec::new();
    let mut lacking = Vec::new();
    for (right, allowed) in seen {
        match allowed {
            Ok(true) => {}
            Ok(false) => lacking.push(describe_right(right)),
            Err(why) => findings.push(Finding::unreadable_finding(
                CHECK,
                &describe_right(right),
                why,
            )),
        }
    }
    if lacking.is_empty() && findings.is_empty() {
        let message = format!("all {} rights are granted", seen.len());
        findings.push(Finding::new(CHECK, CheckResult::Ok, message));
    } else if !lacking.is_empty() {
        let message = format!("missing rights: {}", lacking.join(", "));
        let command = grant_command(scope);
        findings.push(Finding::new(CHECK, CheckResult::Todo, message).with_command(command));
    }
    findings
}

/// What grants the rights of this installation. Without its namespace it would bind them to the accounts of another one, and
/// without its gates it would leave out those of a feature.
fn grant_command(scope: &PreflightScope) -> String {
    let gates = match scope.gates.to_string() {
        gates if gates.is_empty() => gates,
        gates => format!(" --feature-gates={gates}"),
    };
    format!(
        "leadsman manifests --only=access --namespace={}{gates} | kubectl apply --server-side --force-conflicts -f -",
        scope.namespace
    )
}

fn describe_right(right: &RequiredRight) -> String {
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

/// The first of a list, and how many more there are.
fn name_first_of(all: &[String]) -> String {
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
mod tests;
