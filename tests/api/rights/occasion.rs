//! What a manager meets when it starts, so that it uses a right: made while none runs.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leadsman_admission::{CONFIGURATION, SECRET};
use leadsman_api::{NodePodProbe, NodePodProbeSpec};
use leadsman_testkit::leadsman;
use leadsman_tests::Scene;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::clone_set_occasion::CloneSetOccasions;
use super::job_occasion::JobOccasions;
use super::set_occasion::SetOccasions;
use crate::marks::idle;

/// What has to be the case for a right to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Nothing: every start uses it.
    Start,
    /// A verdict that no mark shows yet.
    Verdict,
    /// A marker whose status says nothing yet.
    NewMarker,
    /// A deleted marker with OpenKruise's finalizer.
    DeletedMarker,
    /// A node without a `NodePodProbe`.
    NewNode,
    /// A `NodePodProbe` that the watch does not show, in the way of one that is to be created.
    ObjectInTheWay,
    /// A pod without entries.
    NewPod,
    /// A `NodePodProbe` of a node that has gone.
    OldNode,
    /// There is no Lease.
    NoLease,
    /// Nobody holds the Lease.
    FreeLease,
    /// Somebody else keeps writing the Lease.
    ContestedLease,
    /// OpenKruise is installed.
    OpenKruise,
    /// A webhook configuration from when a feature needed one.
    Leftover,
    /// There is no webhook configuration, and one is needed.
    NoConfiguration,
    /// The webhook configuration says something else.
    OtherConfiguration,
    /// There is a webhook configuration, and no marker needs one.
    NoMarkers,
    /// There is no Secret with certificates.
    NoSecret,
    /// The Secret holds no certificate.
    SpoiltSecret,
    /// A webhook configuration from when the webhooks were served.
    NoServer,
    /// A set whose status says nothing yet.
    NewSet,
    /// A set that breaks a rule.
    WrongSet,
    /// A pod that has an older image of a set's container.
    OldPod,
    /// A set whose revision has another custom version as a label.
    NewVersion,
    /// A set with more revisions than it keeps.
    ManyRevisions,
    /// A `ControllerRevision` that the watch does not show, in the way of one that is to be created.
    RevisionInTheWay,
    /// A schedule of Jobs, of which each run replaces the one before.
    Schedule,
    /// The same of `BroadcastJob`s.
    BroadcastOfRuns,
    /// A `BroadcastJob` without pods.
    Broadcast,
    /// A `BroadcastJob` that pauses at failures, with one to acknowledge and a pod that is restarted again and again.
    FailedBroadcast,
    /// A `BroadcastJob` that has failed and whose time to live is over, with a pod.
    EndedBroadcast,
    /// A `CloneSet` without pods.
    NewCloneSet,
    /// A `CloneSet` of none, with a pod of its own, one that has left it, a revision that it does not need, and its present one,
    /// which has no owner.
    LeftCloneSet,
    /// An object that another manager has created in this moment, or a plugin of the API server that the test bed has not: no test
    /// arranges it, and what is said of the right is compared with the manifests and with the page alone.
    Race,
    /// A verdict that an agent has not reported.
    NewVerdict,
    /// A state that a probe comes back to.
    RepeatedVerdict,
}

/// The Lease of the managers.
const LEASE: (&str, &str) = ("kube-system", "leadsman-manager");
/// By which the manager knows a configuration for its own.
const FIELD_MANAGER: &str = "leadsman-admission";
const FINALIZER: &str = "kruise.io/node-pod-probe-cleanup";
/// The pod whose verdict changes.
pub(super) const POD: &str = "one";
/// How many write a contested Lease at once.
const RIVALS: usize = 4;

/// A namespace with a node, a marker and a pod.
pub(super) struct Occasions {
    pub(super) scene: Scene,
    sets: SetOccasions,
    jobs: JobOccasions,
    clones: CloneSetOccasions,
    made: AtomicUsize,
}

/// What goes on while a manager runs; ends when dropped.
#[derive(Default)]
pub(super) struct Meanwhile(JoinSet<()>);

impl Occasions {
    pub(super) async fn new(client: &Client) -> Result<Self> {
        let scene = Scene::new(client, "rights").await?;
        scene.pod(POD).await?;
        scene.marker("m", idle()).await?;
        Ok(Self {
            sets: SetOccasions::new(client).await?,
            jobs: JobOccasions::new(client, &scene.ns),
            clones: CloneSetOccasions::new(client, &scene.ns),
            scene,
            made: AtomicUsize::new(0),
        })
    }

    fn client(&self) -> Client {
        self.scene.client.clone()
    }

    /// Makes what has to be there before a manager starts.
    pub(super) async fn arrange(&self, occasion: Occasion) -> Result<Meanwhile> {
        let mut meanwhile = Meanwhile::default();
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        match occasion {
            Occasion::Start
            | Occasion::ObjectInTheWay
            | Occasion::RevisionInTheWay
            | Occasion::Race
            | Occasion::NewVerdict
            | Occasion::RepeatedVerdict => {}
            Occasion::Verdict => {
                let state = ["Succeeded", "Failed"][number % 2];
                self.scene
                    .report_verdict_with(POD, "m#Idle", state, &number.to_string())
                    .await?;
            }
            Occasion::NewMarker => self.marker(&format!("new-{number}")).await?,
            Occasion::DeletedMarker => self.deleted_marker(&format!("deleted-{number}")).await?,
            Occasion::NewNode => {
                self.scene
                    .add_node(&format!("new-{number}"), json!({}))
                    .await?;
            }
            Occasion::NewPod => drop(self.scene.pod(&format!("new-{number}")).await?),
            Occasion::OldNode => self.object_of(&format!("old-{number}")).await?,
            Occasion::NoLease => delete(&self.leases(), LEASE.1).await?,
            Occasion::FreeLease => self.free_lease().await?,
            Occasion::ContestedLease => {
                self.free_lease().await?;
                for _ in 0..RIVALS {
                    meanwhile.0.spawn(write_again_and_again(self.leases()));
                }
            }
            Occasion::OpenKruise => leadsman_tests::neighbour::install(&self.client()).await?,
            Occasion::Leftover => self.configuration(FIELD_MANAGER).await?,
            Occasion::OtherConfiguration => {
                self.delete_configurations().await?;
                self.configuration("somebody").await?;
                self.validating("somebody").await?;
            }
            Occasion::NoConfiguration => self.delete_configurations().await?,
            Occasion::NoMarkers => {
                self.configuration(FIELD_MANAGER).await?;
                let markers = self.scene.markers();
                markers
                    .delete_collection(&DeleteParams::default(), &ListParams::default())
                    .await?;
            }
            Occasion::NoSecret => delete(&self.secrets(), SECRET).await?,
            Occasion::SpoiltSecret => self.spoilt_secret().await?,
            Occasion::NoServer => self.validating(FIELD_MANAGER).await?,
            Occasion::NewSet => self.sets.make(&format!("new-{number}"), json!({})).await?,
            Occasion::WrongSet => self.sets.make_wrong(&format!("wrong-{number}")).await?,
            Occasion::OldPod => self.sets.make_old_pod(&self.scene, number).await?,
            Occasion::NewVersion => self.sets.rename_version(number).await?,
            Occasion::ManyRevisions => self.sets.make_old_revision(number).await?,
            Occasion::Schedule => self.jobs.make_schedule(number, "jobTemplate").await?,
            Occasion::BroadcastOfRuns => {
                let template = "broadcastJobTemplate";
                self.jobs.make_schedule(number, template).await?;
            }
            Occasion::Broadcast => self.jobs.make_broadcast(&self.scene.node, number).await?,
            Occasion::FailedBroadcast => self.jobs.make_failed_broadcast(number).await?,
            Occasion::EndedBroadcast => self.jobs.make_ended_broadcast(number).await?,
            Occasion::NewCloneSet => self.clones.make_new(number).await?,
            Occasion::LeftCloneSet => self.clones.make_left(number).await?,
        }
        Ok(meanwhile)
    }

    /// Does what has to happen while a manager leads.
    pub(super) async fn act(&self, occasion: Occasion) -> Result<()> {
        if occasion == Occasion::RevisionInTheWay {
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            self.sets.make_with_revision_in_the_way(number).await?;
        }
        if occasion == Occasion::ObjectInTheWay {
            let name = format!("late-{}", self.made.fetch_add(1, Ordering::Relaxed));
            self.object_of(&name).await?;
            self.scene.add_node(&name, json!({})).await?;
        }
        Ok(())
    }

    /// A marker that matches no pod.
    async fn marker(&self, name: &str) -> Result<()> {
        let nothing = json!({"matchLabels": {"no": "pod"}});
        self.scene.marker_of(name, nothing, idle()).await?;
        Ok(())
    }

    async fn deleted_marker(&self, name: &str) -> Result<()> {
        self.marker(name).await?;
        let finalizers = json!({"metadata": {"finalizers": [FINALIZER]}});
        self.scene.edit_marker(name, finalizers).await?;
        delete(&self.scene.markers(), name).await
    }

    async fn object_of(&self, node: &str) -> Result<()> {
        let object = NodePodProbe::new(node, NodePodProbeSpec::default());
        let objects = self.scene.probes();
        objects.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client(), LEASE.0)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client(), leadsman::NAMESPACE)
    }

    pub(super) fn configurations(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client())
    }

    /// A Lease that nobody holds.
    async fn free_lease(&self) -> Result<()> {
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": LEASE.1}, "spec": {"holderIdentity": ""}});
        apply(&self.leases(), LEASE.1, "somebody", lease).await
    }

    fn validating_configurations(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.client())
    }

    /// A configuration of the other kind without webhooks.
    async fn delete_configurations(&self) -> Result<()> {
        delete(&self.configurations(), CONFIGURATION).await?;
        delete(&self.validating_configurations(), CONFIGURATION).await
    }

    async fn validating(&self, field_manager: &str) -> Result<()> {
        let empty = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": CONFIGURATION, "labels": {"made-by": field_manager}}});
        let configurations = self.validating_configurations();
        apply(&configurations, CONFIGURATION, field_manager, empty).await
    }

    /// A webhook configuration without webhooks.
    async fn configuration(&self, field_manager: &str) -> Result<()> {
        let empty = json!({"apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": CONFIGURATION, "labels": {"made-by": field_manager}}});
        apply(&self.configurations(), CONFIGURATION, field_manager, empty).await
    }

    pub(super) async fn spoilt_secret(&self) -> Result<()> {
        let spoilt = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET},
            "type": "kubernetes.io/tls", "stringData": {"tls.crt": "spoilt", "tls.key": "spoilt"}});
        apply(&self.secrets(), SECRET, "somebody", spoilt).await
    }
}

async fn write_again_and_again(leases: Api<Lease>) {
    loop {
        let now = leadsman_tests::now().to_string();
        let patch = json!({"metadata": {"annotations": {"written": now}}});
        // What fails once, the next one makes up for.
        let _written = leases
            .patch(LEASE.1, &PatchParams::default(), &Patch::Merge(patch))
            .await;
    }
}

async fn apply<K>(api: &Api<K>, name: &str, field_manager: &str, object: Value) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let params = PatchParams::apply(field_manager).force();
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .with_context(|| name.to_owned())?;
    Ok(())
}

/// Deletes it if it is there.
async fn delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => {
            other.with_context(|| name.to_owned())?;
            Ok(())
        }
    }
}
