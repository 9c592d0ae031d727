//! The findings that follow from the facts: a line for each check, with what to do. Pure.

use std::collections::BTreeSet;

use leadsman_core::sidecarset::set::FailurePolicy;

use super::clone_sets::{CRD as CLONE_SETS, CloneSetSurvey};
use super::facts::{
    ClusterFacts, CrdFacts, Identity, InstallPart, Lookup, NoAnswer, PreflightScope, RequiredRight,
};
use super::finding::{Finding, name_first_of};
use super::marks::{MarkOwner, MarkerFacts, MarkerSurvey};
use super::openkruise::{BlockingWebhook, OpenKruiseFacts, SIDECAR_SETS};
use crate::SYSTEMS;
use crate::finding;
use crate::gates::{Gates, openkruise_acts_on_markers};
use crate::leader::{LEASE as OWN_LEASE, LEASE_NAMESPACE, installation_of_holder};
use crate::openkruise::{GATES_FLAG, GateState, LEASE, OpenKruiseState, switch_off_command};

/// The oldest Kubernetes that leadsman supports: a token names its node by default since 1.31 (KEP-4193), admission
/// policies are stable since 1.30 (KEP-3488), validation rules in CRDs since 1.29 (KEP-2876).
const OLDEST: (u32, u32) = (1, 31);

impl Finding {
    /// The only finding where no API server answers.
    pub fn no_answer_finding(error: &NoAnswer) -> Self {
        finding!("api-server", Todo => "{error}"; "name a cluster that can be reached from here, with --kubeconfig and --context")
    }
}

/// The findings of a check in what it needs. A failed look-up is a finding too: before an installation it is in the way,
/// since nobody knows what it would say.
fn examine<T>(
    check: &'static str,
    what: &str,
    seen: &Lookup<T>,
    find: impl FnOnce(&T) -> Vec<Finding>,
) -> Vec<Finding> {
    match seen {
        Ok(seen) => find(seen),
        Err(why) => vec![
            finding!(check, Unread => "cannot read {what}: {why}"; "run this with an account that may read it"),
        ],
    }
}

/// All findings, in the order in which they are printed.
pub fn evaluate(facts: &ClusterFacts, scope: &PreflightScope) -> Vec<Finding> {
    let install = facts.install.as_ref();
    let is_person = matches!(scope.part, InstallPart::Person);
    let are_rights_checked = install.is_some() && !is_person;
    let mut all = check_version(&facts.version);
    all.extend(check_policies(&facts.policies));
    all.extend(check_identity(&facts.identity, are_rights_checked));
    for (name, seen) in install.into_iter().flat_map(|install| &install.crds) {
        all.extend(check_crd(name, seen));
    }
    if !is_person {
        all.extend(check_leader(&facts.leader, scope));
    }
    all.extend(check_openkruise(&facts.openkruise, scope.gates));
    all.extend(check_ungated(&facts.openkruise, scope.gates));
    if scope.gates.sidecar_set {
        all.extend(check_standing_rule(scope));
    }
    if let Some(install) = install {
        all.extend(check_clone_sets(&install.clone_sets));
        all.extend(check_markers(&install.markers));
        if !is_person {
            all.extend(check_rights(&install.rights, scope));
        }
    }
    all
}

fn check_version(seen: &Lookup<(u32, u32, String)>) -> Vec<Finding> {
    const CHECK: &str = "api-server";
    let (least, minor_least) = OLDEST;
    examine(
        CHECK,
        "the version of the API server",
        seen,
        |(major, minor, name)| {
            vec![if (*major, *minor) < OLDEST {
                finding!(CHECK, Todo => "Kubernetes {name} is older than {least}.{minor_least}"; "upgrade the cluster")
            } else {
                finding!(CHECK, Ok => "Kubernetes {name}: CRD validation rules (CEL), node-bound service account tokens")
            }]
        },
    )
}

fn check_policies(seen: &Lookup<bool>) -> Vec<Finding> {
    const CHECK: &str = "admission-policies";
    examine(
        CHECK,
        "admissionregistration.k8s.io/v1",
        seen,
        |is_served| {
            vec![if *is_served {
                finding!(CHECK, Ok => "ValidatingAdmissionPolicy is served")
            } else {
                finding!(CHECK, Todo => "ValidatingAdmissionPolicy is not served: an agent could report for nodes that are not its own";
                "serve admissionregistration.k8s.io/v1 (kube-apiserver --runtime-config)")
            }]
        },
    )
}

fn check_identity(seen: &Lookup<Identity>, are_rights_checked: bool) -> Vec<Finding> {
    const CHECK: &str = "identity";
    examine(CHECK, "the account that this runs as", seen, |identity| {
        let user = &identity.user;
        vec![match &identity.node {
            Some(node) => finding!(CHECK, Ok => "{user}, on node {node}"),
            None if are_rights_checked => {
                finding!(CHECK, Ok => "{user}, whose rights are checked below")
            }
            None => finding!(CHECK, Ok => "{user}"),
        }]
    })
}

fn check_crd(name: &str, seen: &Lookup<Option<CrdFacts>>) -> Vec<Finding> {
    const CHECK: &str = "crds";
    examine(CHECK, name, seen, |crd| {
        let Some(crd) = crd else {
            let missing = finding!(CHECK, Todo => "{name} is not installed");
            return vec![missing.with_command(install_command(name))];
        };
        let release = crd.release.as_ref().map(|release| {
            format!(
                "; it belongs to the Helm release {release}, which restores its own with each upgrade and deletes it, and \
                 every object of it, when it is uninstalled"
            )
        }).unwrap_or_default();
        let found = if let Some(why) = unreadable_objects(crd) {
            finding!(CHECK, Todo => "{name} is OpenKruise's or an older one: {why}{release}")
        } else if !crd.drops.is_empty() || !crd.rules {
            let drops = name_first_of(&crd.drops);
            let no_rules = ", and has no validation rules (CEL)";
            let rules = if crd.rules { "" } else { no_rules };
            finding!(CHECK, Note => "{name} is OpenKruise's or an older one: it drops {drops}{rules}{release}")
        } else if release.is_empty() {
            return vec![finding!(CHECK, Ok => "{name} is leadsman's")];
        } else {
            // A release that would delete the CRD is worth a note, also where nothing is wrong with it now.
            return vec![finding!(CHECK, Note => "{name} is leadsman's{release}")];
        };
        vec![found.with_command(install_command(name))]
    })
}

/// How to install a CRD.
fn install_command(name: &str) -> String {
    let resource = name.split('.').next().unwrap_or_default();
    let system = SYSTEMS.iter().find(|system| system.resource == resource);
    let gate_name = system
        .map(|system| system.gate)
        .or((resource == SIDECAR_SETS).then_some("SidecarSetGate"));
    let gate = gate_name
        .map(|gate| format!(" --feature-gates={gate}=true"))
        .unwrap_or_default();
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
fn check_leader(seen: &Lookup<Option<String>>, scope: &PreflightScope) -> Vec<Finding> {
    const CHECK: &str = "leader";
    let lease = format!("{LEASE_NAMESPACE}/{OWN_LEASE}");
    let here = &scope.namespace;
    examine(CHECK, &format!("the Lease {lease}"), seen, |holder| {
        let Some(holder) = holder else {
            return vec![finding!(CHECK, Ok => "no manager of leadsman holds the Lease {lease}")];
        };
        let Some(namespace) = installation_of_holder(holder) else {
            return vec![
                finding!(CHECK, Note => "{holder} holds the Lease {lease} and is no manager of leadsman: managers write \
                    nothing until that Lease has expired or is deleted"),
            ];
        };
        let holds = format!("leadsman's manager {holder} holds the Lease {lease}");
        vec![
            if matches!(scope.part, InstallPart::BeforeInstall) && namespace != here {
                finding!(CHECK, Todo => "{holds}: leadsman is installed in namespace {namespace} already, and a cluster has room for \
                one installation. Another one in namespace {here} would take over its roles, bindings and policy";
                "to upgrade that install, name its namespace: --namespace {namespace}",
                "to replace it, remove it first (with Helm: helm uninstall RELEASE --namespace {namespace})")
            } else {
                finding!(CHECK, Note => "{holds}: an installation in another namespace than {namespace} writes nothing while it runs")
            },
        ]
    })
}

fn check_openkruise(seen: &OpenKruiseFacts, gates: Gates) -> Vec<Finding> {
    const CHECK: &str = "openkruise";
    const DAEMON: &str = "openkruise-daemon";
    let mut all = examine(
        CHECK,
        &format!("the Lease {LEASE}"),
        &seen.manager,
        |state| {
            vec![match state {
                OpenKruiseState::Unknown | OpenKruiseState::Absent => {
                    finding!(CHECK, Ok => "no OpenKruise manager holds the Lease {LEASE}")
                }
                OpenKruiseState::GateOff { holder } => {
                    finding!(CHECK, Ok => "OpenKruise's manager {holder} runs with PodProbeMarkerGate=false")
                }
                OpenKruiseState::Active { holder, gate } => {
                    openkruise_active_finding(CHECK, holder, gate)
                }
            }]
        },
    );
    let what = "OpenKruise's DaemonSet kruise-daemon";
    all.extend(examine(DAEMON, what, &seen.daemon, |daemon| {
        vec![match daemon {
            None => finding!(DAEMON, Ok => "there is no kruise-daemon"),
            Some(gates) if openkruise_acts_on_markers(gates) => {
                finding!(DAEMON, Todo => "kruise-daemon runs with PodProbeMarkerGate on: it would report the same probes as leadsman's agents")
                    .with_command(switch_off_command(gates))
            }
            Some(_) => finding!(DAEMON, Ok => "kruise-daemon runs with PodProbeMarkerGate=false"),
        }]
    }));
    // One that cannot be read counts as running: otherwise its webhooks would be said to be left behind, and their deletion
    // recommended. With its gate off its other features go on, and with them its webhooks are served.
    let is_absent = |state: &OpenKruiseState| {
        matches!(state, OpenKruiseState::Unknown | OpenKruiseState::Absent)
    };
    let serves = !seen.manager.as_ref().is_ok_and(is_absent);
    all.extend(check_webhooks(&seen.webhooks, serves, gates));
    all
}

fn openkruise_active_finding(check: &'static str, holder: &str, gate: &GateState) -> Finding {
    let both = "both managers would write the same objects, and leadsman's writes nothing while that one runs";
    match gate {
        GateState::On(gates) => {
            finding!(check, Todo => "OpenKruise's manager {holder} runs with PodProbeMarkerGate on: {both}")
                .with_command(switch_off_command(gates))
        }
        GateState::Unread | GateState::Off | GateState::NoPod => {
            finding!(check, Todo => "OpenKruise's manager {holder} runs, and no pod in its namespace shows its {GATES_FLAG}: {both}";
                "stop it, or run it in a pod with PodProbeMarkerGate=false")
        }
    }
}

/// An `OpenKruise` acts on some kinds whatever its gates are. That its Lease cannot be read, [`check_openkruise`] says.
fn check_ungated(seen: &OpenKruiseFacts, gates: Gates) -> Option<Finding> {
    let ours = gates.ungated();
    if ours.is_empty() {
        return None;
    }
    let (OpenKruiseState::GateOff { holder } | OpenKruiseState::Active { holder, .. }) =
        seen.manager.as_ref().ok()?
    else {
        return None;
    };
    let (kinds, gates_off) = (ours.kinds(), ours.gates_off());
    Some(
        finding!("openkruise-ungated", Todo => "OpenKruise's manager {holder} acts on {kinds}, for which it has no feature \
            gate: leadsman writes nothing for them while that one runs";
            "stop it, or install leadsman with {gates_off}"),
    )
}

/// A rule that refuses pods comes with `--compatibility=openkruise` too, which may have been set for the markers alone.
fn check_standing_rule(scope: &PreflightScope) -> Option<Finding> {
    let namespace = &scope.namespace;
    (scope.standing_rule == Some(FailurePolicy::Fail)).then(|| {
        finding!("standing-rule", Note => "by the standing rule of SidecarSets, no pod can be created outside of kube-system and \
            {namespace} while no manager of leadsman answers";
            "to have such pods created without sidecars, set sidecarSets.standingRule=ignore, or none; to leave namespaces \
            out, name them in sidecarSets.protectedNamespaces")
    })
}

/// Webhooks with failurePolicy Fail are in the way when nobody serves them any more. Those for `SidecarSet`s matter with
/// their gate alone.
fn check_webhooks(seen: &Lookup<Vec<BlockingWebhook>>, serves: bool, gates: Gates) -> Vec<Finding> {
    const CHECK: &str = "openkruise-webhooks";
    examine(CHECK, "webhook configurations", seen, |hooks| {
        let matters = |hook: &&BlockingWebhook| gates.sidecar_set || hook.about != SIDECAR_SETS;
        let hooks: Vec<_> = hooks.iter().filter(matters).collect();
        let listed = hooks
            .iter()
            .map(|hook| format!("{} ({})", hook.name, hook.about));
        let names = name_first_of(&listed.collect::<Vec<_>>());
        if hooks.is_empty() {
            let sets = "pods, markers or SidecarSets";
            let whose = if gates.sidecar_set {
                sets
            } else {
                "pods or markers"
            };
            return vec![
                finding!(CHECK, Ok => "no webhook of OpenKruise for {whose} has failurePolicy Fail"),
            ];
        }
        if serves {
            return vec![
                finding!(CHECK, Note => "OpenKruise serves the webhooks {names} with failurePolicy Fail: while it does \
                not answer, none of these can be written"),
            ];
        }
        // A configuration is deleted as a whole, so each is named once.
        let configurations: BTreeSet<_> = hooks
            .iter()
            .map(|hook| (hook.kind, hook.configuration))
            .collect();
        let found = finding!(CHECK, Todo => "nobody serves OpenKruise's webhooks {names} with failurePolicy Fail: none of these \
            can be written");
        vec![configurations.iter().fold(found, |found, (kind, name)| {
            found.with_command(format!("kubectl delete {kind} {name}"))
        })]
    })
}

/// Pods go with their set, and a set with its CRD: whoever uninstalls `OpenKruise` is to know it before.
fn check_clone_sets(seen: &Lookup<Option<CloneSetSurvey>>) -> Vec<Finding> {
    const CHECK: &str = "clonesets";
    examine(CHECK, "CloneSets and their CRD", seen, |survey| {
        let survey = survey.iter().filter(|survey| survey.sets > 0);
        let notes = survey.map(|CloneSetSurvey { release, sets, pods }| {
            finding!(CHECK, Note => "the CRD {CLONE_SETS} belongs to the Helm release {release}, which deletes it when it is \
                uninstalled, with it {sets} CloneSets, and with them {pods} pods";
                "before you uninstall it, have Helm keep all CRDs of OpenKruise:",
                "kubectl annotate $(kubectl get crd -o name | grep '[.]kruise[.]io$') helm.sh/resource-policy=keep",
                "helm upgrade {release} openkruise/kruise --reuse-values --set crds.managed=false")
        });
        notes.collect()
    })
}

fn check_markers(seen: &Lookup<MarkerSurvey>) -> Vec<Finding> {
    const CHECK: &str = "markers";
    examine(CHECK, "markers and their pods", seen, |seen| {
        let which = |is: fn(&MarkerFacts) -> bool| -> Vec<String> {
            let markers = seen.markers.iter().filter(|marker| is(marker));
            markers.map(|marker| marker.name.clone()).collect()
        };
        let (count, held) = (seen.markers.len(), which(|marker| marker.finalizer).len());
        let mut all = vec![
            finding!(CHECK, Ok => "{count} markers, {held} of them with OpenKruise's finalizer, which leadsman \
            removes when the marker is deleted"),
        ];
        for marker in seen
            .markers
            .iter()
            .filter(|marker| !marker.faults.is_empty())
        {
            let (name, faults) = (&marker.name, name_first_of(&marker.faults));
            all.push(finding!(CHECK, Todo => "{name} is invalid, so leadsman would not act on it: {faults}"; "correct it, or delete it"));
        }
        if !seen.undecodable.is_empty() {
            let names = name_first_of(&seen.undecodable);
            all.push(finding!(CHECK, Todo => "cannot be decoded: {names}"; "correct them, or delete them"));
        }
        let timing = which(|marker| marker.timing_left_out);
        if !timing.is_empty() {
            let names = name_first_of(&timing);
            all.push(finding!(CHECK, Note => "{names} leave timing out, which means the defaults of a container's probes (period \
                10 s, failure threshold 3) and not OpenKruise's (1 s, 1)";
                "leadsman manager --compatibility=openkruise, to keep OpenKruise's"));
        }
        let owners = seen.owners.iter();
        all.extend(owners.map(|(owner, counts)| describe_owned_marks(owner, *counts)));
        all
    })
}

/// Describes what leadsman does with the marks of a field manager.
fn describe_owned_marks(owner: &MarkOwner, (marks, pods): (usize, usize)) -> Finding {
    let (manager, operation, below) = (&owner.manager, &owner.operation, &owner.subresource);
    let fate = match (operation.as_str(), below.as_str()) {
        _ if manager == "leadsman-podprobe" => "its own",
        // OpenKruise writes marks like this, and users, templates and operators do not write a pod's status.
        ("Update", "status") => "taken over as they are, and removed with their marker",
        _ => "overwritten by a verdict; those that equal it stay when the marker is deleted",
    };
    let slash = if below.is_empty() { "" } else { "/" };
    finding!("field-managers", Ok => "{manager} ({operation}{slash}{below}) owns {marks} marks on {pods} pods: {fate}")
}

fn check_rights(seen: &[(RequiredRight, Lookup<bool>)], scope: &PreflightScope) -> Vec<Finding> {
    const CHECK: &str = "rights";
    let (mut all, mut lacking) = (Vec::new(), Vec::new());
    for (right, allowed) in seen {
        let right = describe_right(right);
        all.extend(examine(CHECK, &right, allowed, |_| Vec::new()));
        if *allowed == Ok(false) {
            lacking.push(right);
        }
    }
    if !lacking.is_empty() {
        let missing = finding!(CHECK, Todo => "missing rights: {}", lacking.join(", "));
        all.push(missing.with_command(grant_command(scope)));
    } else if all.is_empty() {
        all.push(finding!(CHECK, Ok => "all {} rights are granted", seen.len()));
    }
    all
}

/// The command that grants the rights of this installation. Without its namespace it would bind them to the accounts of
/// another one, and without its gates it would leave out those of a feature.
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

#[cfg(test)]
mod tests;
