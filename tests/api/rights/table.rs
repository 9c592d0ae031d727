//! The rights of leadsman's accounts: what each is for, when it is used, and where a process that lacks it says so.

use anyhow::{Context, Result, ensure};
use leadsman_testkit::leadsman;
use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;

use super::occasion::Occasion::{
    self, Broadcast, BroadcastOfRuns, ContestedLease, DeletedMarker, EndedBroadcast,
    FailedBroadcast, FreeLease, LeftCloneSet, Leftover, ManyRevisions, NewCloneSet, NewMarker,
    NewNode, NewPod, NewSet, NewVerdict, NewVersion, NoConfiguration, NoLease, NoMarkers, NoSecret,
    NoServer, ObjectInTheWay, OldNode, OldPod, OpenKruise, OtherConfiguration, Race,
    RepeatedVerdict, RevisionInTheWay, Schedule, SpoiltSecret, Start, Verdict, WrongSet,
};

/// The account of the manager.
pub(crate) const MANAGER: &str = "leadsman-manager";
/// The account of the agents.
pub(crate) const AGENT: &str = "leadsman-agent";
/// The namespace of the manager's Lease.
const KUBE_SYSTEM: &str = "kube-system";

const APPS: &str = "apps.kruise.io";
const CRDS: [&str; 2] = [
    "podprobemarkers.apps.kruise.io",
    "nodepodprobes.apps.kruise.io",
];

/// A verb of an account on a resource: a rule of RBAC, taken apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Grant {
    pub(crate) account: String,
    /// Empty: in all namespaces, and on what has none.
    pub(crate) namespace: String,
    pub(crate) group: String,
    pub(crate) resource: String,
    /// Empty: on all.
    pub(crate) name: String,
    pub(crate) verb: String,
}

/// A row: rights of an account on one resource, for one purpose.
pub(crate) struct Row {
    pub(crate) account: &'static str,
    pub(crate) namespace: &'static str,
    pub(crate) group: &'static str,
    pub(crate) resource: &'static str,
    /// None: on all.
    pub(crate) names: &'static [&'static str],
    pub(crate) verbs: &'static [(&'static str, Occasion)],
    pub(crate) given: Given,
    /// What it is needed for, as `docs/security.md` says it.
    pub(crate) needed_to: &'static str,
    pub(crate) named_in: NamedIn,
}

/// With which feature gates a right is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// By default.
    Always,
    /// With those whose features have webhooks: `EnablePodProbeMarkerOnServerless` or `SidecarSetGate`.
    WithWebhooks,
    /// With `SidecarSetGate`.
    WithSets,
    /// With `AdvancedCronJobGate`.
    WithCron,
    /// With `BroadcastJobGate`.
    WithBroadcast,
    /// With `CloneSetGate`.
    WithCloneSets,
}

impl Given {
    pub(crate) const ALL: [Self; 6] = [
        Self::Always,
        Self::WithWebhooks,
        Self::WithSets,
        Self::WithCron,
        Self::WithBroadcast,
        Self::WithCloneSets,
    ];

    /// Gates with which it is given.
    pub(crate) fn gates(self) -> &'static str {
        match self {
            Self::Always => "",
            Self::WithWebhooks => "EnablePodProbeMarkerOnServerless=true",
            Self::WithSets => "SidecarSetGate=true",
            Self::WithCron => "AdvancedCronJobGate=true",
            Self::WithBroadcast => "BroadcastJobGate=true",
            Self::WithCloneSets => "CloneSetGate=true",
        }
    }

    /// Whether these gates are of features that have webhooks.
    pub(crate) fn has_webhooks(self) -> bool {
        matches!(self, Self::WithWebhooks | Self::WithSets)
    }

    /// Whether these gates are enough.
    fn is_with(self, gates: Self) -> bool {
        let is_of_webhooks = self == Self::WithWebhooks && gates.has_webhooks();
        self == Self::Always || self == gates || is_of_webhooks
    }
}

/// Where a missing right is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedIn {
    /// In the log, and in `/readyz`, which fails.
    Readyz,
    /// In the log.
    Log,
}

const FOLLOW: &[(&str, Occasion)] = &[("list", Start), ("watch", Start)];

/// What most rows have in common.
const OF_MANAGER: Row = Row {
    account: MANAGER,
    namespace: "",
    group: "",
    resource: "",
    names: &[],
    verbs: FOLLOW,
    given: Given::Always,
    needed_to: "",
    named_in: NamedIn::Readyz,
};
const OF_AGENT: Row = Row {
    account: AGENT,
    named_in: NamedIn::Log,
    ..OF_MANAGER
};
const OF_SETS: Row = Row {
    given: Given::WithSets,
    ..OF_MANAGER
};
const OF_CRON: Row = Row {
    given: Given::WithCron,
    ..OF_MANAGER
};
const OF_BROADCAST: Row = Row {
    given: Given::WithBroadcast,
    ..OF_MANAGER
};

const OF_CLONE_SETS: Row = Row {
    given: Given::WithCloneSets,
    ..OF_MANAGER
};

/// All of them, in the order of `docs/security.md`.
pub(crate) const TABLE: &[Row] = &[
    Row {
        resource: "pods",
        needed_to: "see which pods a marker matches, their containers, addresses and marks; and the flags of an OpenKruise manager",
        ..OF_MANAGER
    },
    Row {
        resource: "pods/status",
        verbs: &[("patch", Verdict)],
        needed_to: "set and remove marks: by this subresource a pod's labels, annotations and conditions, and not its spec",
        ..OF_MANAGER
    },
    Row {
        resource: "nodes",
        needed_to: "see which nodes there are, and which of them are virtual",
        ..OF_MANAGER
    },
    Row {
        group: APPS,
        resource: "podprobemarkers",
        needed_to: "read the markers",
        ..OF_MANAGER
    },
    Row {
        group: APPS,
        resource: "podprobemarkers",
        verbs: &[("patch", DeletedMarker)],
        needed_to: "set and remove OpenKruise's finalizer",
        ..OF_MANAGER
    },
    Row {
        group: APPS,
        resource: "podprobemarkers/status",
        verbs: &[("patch", NewMarker)],
        needed_to: "write the marker's status",
        ..OF_MANAGER
    },
    Row {
        group: APPS,
        resource: "nodepodprobes",
        needed_to: "read the verdicts of the agents",
        ..OF_MANAGER
    },
    Row {
        group: APPS,
        resource: "nodepodprobes",
        verbs: &[("create", NewNode), ("update", NewPod), ("delete", OldNode)],
        needed_to: "tell the agents what to probe; and clean up after a node that has gone",
        ..OF_MANAGER
    },
    Row {
        group: APPS,
        resource: "nodepodprobes",
        verbs: &[("get", ObjectInTheWay)],
        needed_to: "read an object that another manager has just created, without waiting for the watch",
        named_in: NamedIn::Log,
        ..OF_MANAGER
    },
    Row {
        group: "apiextensions.k8s.io",
        resource: "customresourcedefinitions",
        names: &CRDS,
        needed_to: "see which fields the API server keeps: OpenKruise's CRDs drop some",
        ..OF_MANAGER
    },
    Row {
        namespace: KUBE_SYSTEM,
        group: "coordination.k8s.io",
        resource: "leases",
        names: &["leadsman-manager"],
        verbs: &[("list", Start), ("watch", Start), ("update", FreeLease)],
        needed_to: "agree on which of several managers writes",
        ..OF_MANAGER
    },
    Row {
        namespace: KUBE_SYSTEM,
        group: "coordination.k8s.io",
        resource: "leases",
        names: &["leadsman-manager"],
        verbs: &[("get", ContestedLease)],
        needed_to: "read that Lease after another manager wrote it first",
        named_in: NamedIn::Log,
        ..OF_MANAGER
    },
    Row {
        namespace: KUBE_SYSTEM,
        group: "coordination.k8s.io",
        resource: "leases",
        verbs: &[("create", NoLease)],
        needed_to: "make that Lease (RBAC cannot restrict `create` to a name)",
        ..OF_MANAGER
    },
    Row {
        group: "rbac.authorization.k8s.io",
        resource: "clusterroles",
        names: &["kruise-manager-role"],
        verbs: &[("get", FreeLease)],
        needed_to: "see whether OpenKruise is installed",
        ..OF_MANAGER
    },
    Row {
        group: "rbac.authorization.k8s.io",
        resource: "clusterrolebindings",
        names: &["kruise-manager-rolebinding"],
        verbs: &[("get", OpenKruise)],
        needed_to: "see in which namespace its manager runs",
        ..OF_MANAGER
    },
    Row {
        group: "coordination.k8s.io",
        resource: "leases",
        names: &["kruise-manager"],
        verbs: &[("get", OpenKruise)],
        needed_to: "see whether its manager runs, and begin no writes beside it",
        ..OF_MANAGER
    },
    Row {
        group: "admissionregistration.k8s.io",
        resource: "mutatingwebhookconfigurations",
        names: &["leadsman"],
        verbs: &[("get", Leftover), ("delete", Leftover)],
        needed_to: "delete the configuration that a manager with `EnablePodProbeMarkerOnServerless` has left",
        named_in: NamedIn::Log,
        ..OF_MANAGER
    },
    Row {
        group: "rbac.authorization.k8s.io",
        resource: "clusterroles",
        names: &["leadsman-manager-webhooks"],
        verbs: &[("get", NoConfiguration)],
        given: Given::WithWebhooks,
        needed_to: "name this role as the owner of the configuration below, which is deleted with it",
        named_in: NamedIn::Log,
        ..OF_MANAGER
    },
    Row {
        group: "admissionregistration.k8s.io",
        resource: "mutatingwebhookconfigurations",
        names: &["leadsman"],
        verbs: &[
            ("list", Start),
            ("watch", Start),
            ("create", NoConfiguration),
            ("patch", OtherConfiguration),
            ("delete", NoMarkers),
        ],
        given: Given::WithWebhooks,
        needed_to: "register the webhook for pods that are created, while a marker needs it",
        named_in: NamedIn::Log,
        ..OF_MANAGER
    },
    Row {
        namespace: leadsman::NAMESPACE,
        group: "rbac.authorization.k8s.io",
        resource: "roles",
        names: &["leadsman-manager-webhooks"],
        verbs: &[("get", NoSecret)],
        given: Given::WithWebhooks,
        needed_to: "name this role as the owner of the Secret below, which is deleted with it",
        named_in: NamedIn::Log,
        ..OF_MANAGER
    },
    Row {
        namespace: leadsman::NAMESPACE,
        resource: "secrets",
        names: &["leadsman-webhook"],
        verbs: &[("list", Start), ("watch", Start), ("update", SpoiltSecret)],
        given: Given::WithWebhooks,
        needed_to: "share one certificate of the webhook among the replicas, and renew it",
        named_in: NamedIn::Log,
        ..OF_MANAGER
    },
    Row {
        namespace: leadsman::NAMESPACE,
        resource: "secrets",
        verbs: &[("create", NoSecret)],
        given: Given::WithWebhooks,
        needed_to: "make that Secret (RBAC cannot restrict `create` to a name), and no other, by the policy `leadsman-manager-secrets`",
        named_in: NamedIn::Log,
        ..OF_MANAGER
    },
    Row {
        group: APPS,
        resource: "sidecarsets",
        needed_to: "read the sets",
        ..OF_SETS
    },
    Row {
        group: APPS,
        resource: "sidecarsets",
        verbs: &[("patch", NewSet)],
        needed_to: "write the two hashes of a set's containers into its annotations; nothing else of it, by the policy `leadsman-manager-sidecarsets`",
        ..OF_SETS
    },
    Row {
        group: APPS,
        resource: "sidecarsets/status",
        verbs: &[("patch", NewSet)],
        needed_to: "write the set's status",
        ..OF_SETS
    },
    Row {
        resource: "namespaces",
        needed_to: "see the labels by which sets select namespaces",
        ..OF_SETS
    },
    Row {
        resource: "pods",
        verbs: &[("patch", OldPod)],
        needed_to: "replace the image of an injected container; nothing else of a pod's spec, by the policy `leadsman-manager-pods`",
        ..OF_SETS
    },
    Row {
        group: "events.k8s.io",
        resource: "events",
        verbs: &[("create", WrongSet)],
        needed_to: "tell what is wrong with a set, and of containers that were reset after a hot upgrade",
        ..OF_SETS
    },
    Row {
        namespace: leadsman::NAMESPACE,
        group: "apps",
        resource: "controllerrevisions",
        needed_to: "read the revisions of the sets",
        ..OF_SETS
    },
    Row {
        namespace: leadsman::NAMESPACE,
        group: "apps",
        resource: "controllerrevisions",
        verbs: &[
            ("create", NewSet),
            ("patch", NewVersion),
            ("delete", ManyRevisions),
        ],
        needed_to: "record what a set was; those of sets alone, by the policy `leadsman-manager-revisions`",
        ..OF_SETS
    },
    Row {
        namespace: leadsman::NAMESPACE,
        group: "apps",
        resource: "controllerrevisions",
        verbs: &[("get", RevisionInTheWay)],
        needed_to: "read a revision that another manager has just created, without waiting for the watch",
        named_in: NamedIn::Log,
        ..OF_SETS
    },
    Row {
        namespace: leadsman::NAMESPACE,
        resource: "configmaps",
        names: &["kruise-configuration"],
        needed_to: "read which annotations sets may patch",
        ..OF_SETS
    },
    Row {
        group: "apiextensions.k8s.io",
        resource: "customresourcedefinitions",
        names: &["sidecarsets.apps.kruise.io"],
        needed_to: "see which fields the API server keeps of a set's status",
        ..OF_SETS
    },
    Row {
        group: "rbac.authorization.k8s.io",
        resource: "clusterroles",
        names: &["leadsman-manager-validating-webhooks"],
        verbs: &[("get", NoConfiguration)],
        needed_to: "name this role as the owner of the configuration below, which is deleted with it",
        named_in: NamedIn::Log,
        ..OF_SETS
    },
    Row {
        group: "admissionregistration.k8s.io",
        resource: "validatingwebhookconfigurations",
        names: &["leadsman"],
        verbs: &[
            ("list", Start),
            ("watch", Start),
            ("create", NoConfiguration),
            ("patch", OtherConfiguration),
            ("delete", NoServer),
        ],
        needed_to: "register the webhook that refuses invalid sets",
        named_in: NamedIn::Log,
        ..OF_SETS
    },
    Row {
        group: APPS,
        resource: "advancedcronjobs",
        needed_to: "read the cron jobs",
        ..OF_CRON
    },
    Row {
        group: APPS,
        resource: "advancedcronjobs/status",
        verbs: &[("patch", Schedule)],
        needed_to: "write their status, which remembers the latest time that was run",
        ..OF_CRON
    },
    Row {
        group: APPS,
        resource: "advancedcronjobs/finalizers",
        verbs: &[("update", Race)],
        needed_to: "create objects that block the deletion of their owner, where the API server asks for this right (`OwnerReferencesPermissionEnforcement`, as on OpenShift)",
        named_in: NamedIn::Log,
        ..OF_CRON
    },
    Row {
        group: "batch",
        resource: "jobs",
        needed_to: "see which runs there are, and which have ended",
        ..OF_CRON
    },
    Row {
        group: "batch",
        resource: "jobs",
        verbs: &[("create", Schedule), ("delete", Schedule)],
        needed_to: "begin runs and delete old ones; those of cron jobs alone, by the policy `leadsman-manager-advancedcronjob`",
        ..OF_CRON
    },
    Row {
        group: "batch",
        resource: "jobs",
        verbs: &[("get", Race)],
        needed_to: "read a run that another manager has just created, without waiting for the watch",
        named_in: NamedIn::Log,
        ..OF_CRON
    },
    Row {
        group: APPS,
        resource: "broadcastjobs",
        needed_to: "see which runs there are, and which have ended",
        ..OF_CRON
    },
    Row {
        group: APPS,
        resource: "broadcastjobs",
        verbs: &[("create", BroadcastOfRuns), ("delete", BroadcastOfRuns)],
        needed_to: "begin runs and delete old ones; those of cron jobs alone, by the policy `leadsman-manager-advancedcronjob`",
        ..OF_CRON
    },
    Row {
        group: APPS,
        resource: "broadcastjobs",
        verbs: &[("get", Race)],
        needed_to: "read a run that another manager has just created, without waiting for the watch",
        named_in: NamedIn::Log,
        ..OF_CRON
    },
    Row {
        group: "events.k8s.io",
        resource: "events",
        verbs: &[("create", Schedule)],
        needed_to: "tell which runs began and ended, were missed or refused",
        ..OF_CRON
    },
    Row {
        group: "apiextensions.k8s.io",
        resource: "customresourcedefinitions",
        names: &["advancedcronjobs.apps.kruise.io"],
        needed_to: "see which fields the API server keeps of a cron job's status",
        ..OF_CRON
    },
    Row {
        group: APPS,
        resource: "broadcastjobs",
        needed_to: "read the jobs",
        ..OF_BROADCAST
    },
    Row {
        group: APPS,
        resource: "broadcastjobs",
        verbs: &[("patch", FailedBroadcast)],
        needed_to: "record in two annotations on which nodes a job has succeeded, and which failures are acknowledged; nothing else of it, by the policy `leadsman-manager-broadcastjob`",
        ..OF_BROADCAST
    },
    Row {
        group: APPS,
        resource: "broadcastjobs",
        verbs: &[("delete", EndedBroadcast)],
        needed_to: "delete a job whose time to live is over; one that has ended alone, by the policy `leadsman-manager-broadcastjob`",
        ..OF_BROADCAST
    },
    Row {
        group: APPS,
        resource: "broadcastjobs/status",
        verbs: &[("patch", Broadcast)],
        needed_to: "write the job's status",
        ..OF_BROADCAST
    },
    Row {
        group: APPS,
        resource: "broadcastjobs/finalizers",
        verbs: &[("update", Race)],
        needed_to: "create objects that block the deletion of their owner, where the API server asks for this right (`OwnerReferencesPermissionEnforcement`, as on OpenShift)",
        named_in: NamedIn::Log,
        ..OF_BROADCAST
    },
    Row {
        resource: "pods",
        verbs: &[("create", Broadcast), ("delete", EndedBroadcast)],
        needed_to: "run a pod on each node, and delete those of a job that has failed; those of jobs alone, by the policy `leadsman-manager-broadcastjob`",
        ..OF_BROADCAST
    },
    Row {
        resource: "pods",
        verbs: &[("patch", FailedBroadcast)],
        needed_to: "end a pod that was restarted too often, by its deadline; what else of a pod may be changed says the policy `leadsman-manager-broadcastjob-pods`",
        ..OF_BROADCAST
    },
    Row {
        resource: "pods",
        verbs: &[("get", Race)],
        needed_to: "read a pod that another manager has just created, without waiting for the watch",
        named_in: NamedIn::Log,
        ..OF_BROADCAST
    },
    Row {
        group: "events.k8s.io",
        resource: "events",
        verbs: &[("create", Broadcast)],
        needed_to: "tell what becomes of a job and its pods",
        ..OF_BROADCAST
    },
    Row {
        group: APPS,
        resource: "clonesets",
        needed_to: "read the CloneSets",
        ..OF_CLONE_SETS
    },
    Row {
        group: APPS,
        resource: "clonesets/status",
        verbs: &[("patch", NewCloneSet)],
        needed_to: "write the status of a CloneSet",
        ..OF_CLONE_SETS
    },
    Row {
        group: APPS,
        resource: "clonesets/finalizers",
        verbs: &[("update", Race)],
        needed_to: "create objects that block the deletion of their owner, where the API server asks for this right (`OwnerReferencesPermissionEnforcement`, as on OpenShift)",
        named_in: NamedIn::Log,
        ..OF_CLONE_SETS
    },
    Row {
        resource: "pods",
        verbs: &[("create", NewCloneSet), ("delete", LeftCloneSet)],
        needed_to: "create and delete the pods of CloneSets; those alone, by the policy `leadsman-manager-cloneset`",
        ..OF_CLONE_SETS
    },
    Row {
        resource: "pods",
        verbs: &[("patch", LeftCloneSet)],
        needed_to: "update pods of CloneSets in place, and release those that leave a set; what else of a pod may be changed says the policy `leadsman-manager-cloneset-pods`",
        ..OF_CLONE_SETS
    },
    Row {
        resource: "pods",
        verbs: &[("get", Race)],
        needed_to: "read a pod that another manager has just created, without waiting for the watch",
        named_in: NamedIn::Log,
        ..OF_CLONE_SETS
    },
    Row {
        resource: "persistentvolumeclaims",
        needed_to: "see which claims the pods of CloneSets have. RBAC cannot say \"of CloneSets\": the names and labels of all are read, and of others nothing but the name is kept",
        ..OF_CLONE_SETS
    },
    Row {
        resource: "persistentvolumeclaims",
        verbs: &[("create", NewCloneSet), ("delete", LeftCloneSet)],
        needed_to: "create the claims of a CloneSet's pods, and delete those of pods that it has deleted; those alone, by the policy `leadsman-manager-cloneset`",
        ..OF_CLONE_SETS
    },
    Row {
        resource: "persistentvolumeclaims",
        verbs: &[("get", Race)],
        needed_to: "read a claim that another manager has just created, without waiting for the watch",
        named_in: NamedIn::Log,
        ..OF_CLONE_SETS
    },
    Row {
        group: "apps",
        resource: "controllerrevisions",
        needed_to: "read the revisions of CloneSets",
        ..OF_CLONE_SETS
    },
    Row {
        group: "apps",
        resource: "controllerrevisions",
        verbs: &[
            ("create", NewCloneSet),
            ("patch", LeftCloneSet),
            ("delete", LeftCloneSet),
        ],
        needed_to: "record what a CloneSet was; those of sets alone, by the policy `leadsman-manager-cloneset-revisions`",
        ..OF_CLONE_SETS
    },
    Row {
        group: "apps",
        resource: "controllerrevisions",
        verbs: &[("get", Race)],
        needed_to: "read a revision that another manager has just created, without waiting for the watch",
        named_in: NamedIn::Log,
        ..OF_CLONE_SETS
    },
    Row {
        group: "events.k8s.io",
        resource: "events",
        verbs: &[("create", NewCloneSet)],
        needed_to: "tell what becomes of a CloneSet and its pods",
        ..OF_CLONE_SETS
    },
    Row {
        group: APPS,
        resource: "nodepodprobes",
        needed_to: "read what to probe on its node. RBAC cannot say \"of its node\": an agent can read those of all nodes",
        ..OF_AGENT
    },
    Row {
        group: APPS,
        resource: "nodepodprobes/status",
        verbs: &[("patch", NewVerdict)],
        needed_to: "report verdicts; of its own node alone, by the policy `leadsman-agent-own-node`",
        ..OF_AGENT
    },
    Row {
        resource: "events",
        verbs: &[("create", NewVerdict), ("patch", RepeatedVerdict)],
        needed_to: "tell on the pod that a verdict has changed, and count how often",
        ..OF_AGENT
    },
];

impl Row {
    /// Its rights, one by one, with when each is used.
    pub(crate) fn grants(&self) -> Vec<(Grant, Occasion)> {
        let all = [""];
        let names = if self.names.is_empty() {
            &all
        } else {
            self.names
        };
        let of_name = |name: &&str| {
            let name = (*name).to_owned();
            self.verbs.iter().map(move |(verb, occasion)| {
                let grant = Grant {
                    account: self.account.to_owned(),
                    namespace: self.namespace.to_owned(),
                    group: self.group.to_owned(),
                    resource: self.resource.to_owned(),
                    name: name.clone(),
                    verb: (*verb).to_owned(),
                };
                (grant, *occasion)
            })
        };
        names.iter().flat_map(of_name).collect()
    }
}

/// All rights of the table that `leadsman manifests` has to print.
pub(crate) fn table(gates: Given) -> Vec<Grant> {
    let rows = TABLE.iter().filter(|row| row.given.is_with(gates));
    let grants = rows.flat_map(Row::grants).map(|(grant, _)| grant);
    let mut grants: Vec<_> = grants.collect();
    grants.sort();
    grants.dedup();
    grants
}

/// The rights that `leadsman manifests` gives to the accounts of leadsman.
pub(crate) async fn printed(gates: Given) -> Result<Vec<Grant>> {
    let gate = format!("--feature-gates={}", gates.gates());
    let objects = manifests(&[&gate]).await?;
    let mut grants = Vec::new();
    for binding in &objects {
        let kind = text(&binding["kind"]);
        let Some(role_kind) = kind
            .strip_suffix("Binding")
            .filter(|kind| kind.ends_with("Role"))
        else {
            continue;
        };
        ensure!(binding["roleRef"]["kind"] == role_kind, "{binding}");
        let namespace = text(&binding["metadata"]["namespace"]);
        let role = objects.iter().find(|object| {
            object["kind"] == role_kind
                && object["metadata"]["name"] == binding["roleRef"]["name"]
                && text(&object["metadata"]["namespace"]) == namespace
        });
        let rules = &role.with_context(|| format!("no role for {binding}"))?["rules"];
        for subject in binding["subjects"].as_array().into_iter().flatten() {
            ensure!(subject["kind"] == "ServiceAccount", "{binding}");
            for rule in rules.as_array().into_iter().flatten() {
                grants.extend(taken_apart(text(&subject["name"]), namespace, rule)?);
            }
        }
    }
    grants.sort();
    grants.dedup();
    Ok(grants)
}

/// A rule as RBAC has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    verbs: Vec<String>,
}

fn taken_apart(account: &str, namespace: &str, rule: &Value) -> Result<Vec<Grant>> {
    let mut rule: Rule = serde_json::from_value(rule.clone()).context("a rule")?;
    if rule.resource_names.is_empty() {
        rule.resource_names.push(String::new());
    }
    let mut grants = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for name in &rule.resource_names {
                grants.extend(rule.verbs.iter().map(|verb| Grant {
                    account: account.to_owned(),
                    namespace: namespace.to_owned(),
                    group: group.clone(),
                    resource: resource.clone(),
                    name: name.clone(),
                    verb: verb.clone(),
                }));
            }
        }
    }
    Ok(grants)
}

/// The objects that `leadsman manifests` prints with these flags.
pub(crate) async fn manifests(flags: &[&str]) -> Result<Vec<Value>> {
    let mut command = Command::new(leadsman::program()?);
    let output = command.arg("manifests").args(flags).output().await?;
    ensure!(output.status.success(), "leadsman manifests {flags:?}");
    let printed = String::from_utf8(output.stdout)?;
    let documents = printed
        .split("---\n")
        .filter(|text| !text.trim().is_empty());
    documents
        .map(|document| Ok(serde_norway::from_str(document)?))
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
