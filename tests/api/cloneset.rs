//! `CloneSet` on a real API server: what its CRD takes and refuses, and a set that is made, scaled, updated and taken over. Nobody
//! runs its pods: the test reports what a kubelet would.

mod admission;
mod going_back;
mod losses;
mod takeover;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Error, ResourceExt};
use leadsman_api::CloneSet;
use leadsman_process::clock;
use leadsman_tests::{Scene, document, wait_for_answer};
use serde_json::{Value, json};

use crate::Installation;
use crate::broadcast::serve_jobs;
use crate::inject::{expect, run};
use crate::rights::client_of;
use crate::stage::PLACES;

pub(crate) use admission::*;
pub(crate) use going_back::*;
pub(crate) use losses::*;
pub(crate) use takeover::*;

const GATE: &str = "--feature-gates=CloneSetGate=true";

/// The policy `leadsman-manager-cloneset` restricts the manager's account to claims of sets.
async fn only_claims_of_sets_are_written(
    installation: &Installation,
    scene: &Scene,
    pod: &str,
) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(scene.client.clone(), &scene.ns);
    let of_set = claims.get(&format!("data-{pod}")).await?;
    let mut theirs = of_set.clone();
    theirs.metadata = serde_json::from_value(json!({"name": "theirs"}))?;
    claims.create(&PostParams::default(), &theirs).await?;
    let of_manager = client_of(&installation.kubeconfig).await?;
    let of_manager: Api<PersistentVolumeClaim> = Api::namespaced(of_manager, &scene.ns);
    let (dry_post, dry_delete) = (
        PostParams {
            dry_run: true,
            ..PostParams::default()
        },
        kube::api::DeleteParams {
            dry_run: true,
            ..Default::default()
        },
    );
    theirs.metadata.name = Some("another".to_owned());
    let mut ours = theirs.clone();
    ours.metadata.owner_references = of_set.metadata.owner_references;
    let is_refused = |answer: Result<(), Error>, part: &str| match answer {
        Err(Error::Api(status)) => !part.is_empty() && status.message.contains(part),
        answer => part.is_empty() && answer.is_ok(),
    };
    let foreign = "this one is of something else";
    for (claim, part) in [(&theirs, foreign), (&ours, "")] {
        let answer = of_manager.create(&dry_post, claim).await;
        ensure!(is_refused(answer.map(drop), part), "creating {claim:?}");
    }
    let set = of_set.metadata.name.unwrap_or_default();
    for (name, part) in [("theirs", foreign), (&*set, "")] {
        let answer = of_manager.delete(name, &dry_delete).await;
        ensure!(is_refused(answer.map(drop), part), "deleting {name}");
        let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        let answer = of_manager
            .patch(name, &PatchParams::default(), &patch)
            .await;
        ensure!(
            is_refused(answer.map(drop), "cannot patch"),
            "patching {name}"
        );
    }
    claims
        .delete("theirs", &kube::api::DeleteParams::default())
        .await?;
    Ok(())
}

/// The pods of a set, and the reports of their kubelets.
struct Pods(Api<Pod>);

impl Pods {
    async fn active(&self) -> Result<Vec<Pod>> {
        let pods = self.0.list(&ListParams::default()).await?.items;
        Ok(pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect())
    }

    /// Reports of each pod that its container runs with the image of its spec, and whether it is ready: as its gate says.
    async fn report(&self) -> Result<()> {
        for pod in self.0.list(&ListParams::default()).await? {
            let name = pod.name_any();
            if pod.metadata.deletion_timestamp.is_some() {
                let now = kube::api::DeleteParams::default().grace_period(0);
                unless_gone(self.0.delete(&name, &now).await)?;
                continue;
            }
            let image = image(&pod);
            let is_open = is_true(&pod, "InPlaceUpdateReady") && is_true(&pod, "KruisePodReady");
            let was_ready = is_true(&pod, "Ready");
            let statuses = pod
                .status
                .iter()
                .flat_map(|status| status.container_statuses.iter().flatten());
            let runs = statuses.clone().any(|one| one.image == image);
            if runs && was_ready == is_open {
                continue;
            }
            let now = Time(clock::now());
            let ready = if is_open { "True" } else { "False" };
            let status = json!({"status": {"phase": "Running",
                "conditions": [{"type": "Initialized", "status": "True"},
                    {"type": "Ready", "status": ready, "lastTransitionTime": now}],
                "containerStatuses": [{"name": "main", "image": image, "imageID": format!("sha256:{image}"),
                    "containerID": format!("containerd://{image}"), "ready": true, "restartCount": 0,
                    "state": {"running": {"startedAt": now}}}]}});
            let (patch, params) = (Patch::Strategic(status), PatchParams::default());
            unless_gone(self.0.patch_status(&name, &params, &patch).await)?;
        }
        Ok(())
    }

    /// The active pods, once so many of them are ready and have this image.
    async fn ready(&self, count: usize, image_wanted: &str) -> Result<Vec<Pod>> {
        wait_for_answer("the pods of the set", || async {
            self.report().await?;
            let pods = self.active().await?;
            let is_done = |pod: &Pod| image(pod) == image_wanted && is_true(pod, "Ready");
            let is_whole = pods.len() == count && pods.iter().all(is_done);
            Ok(is_whole.then_some(pods))
        })
        .await
    }
}

/// A pod may be deleted between two requests.
fn unless_gone<T>(answer: Result<T, Error>) -> Result<(), Error> {
    match answer {
        Err(Error::Api(status)) if status.code == 404 => Ok(()),
        answer => answer.map(drop),
    }
}

fn is_true(pod: &Pod, condition: &str) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut conditions = conditions.filter(|one| one.type_ == condition);
    conditions.any(|one| one.status == "True")
}

fn image(pod: &Pod) -> String {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .map(|one| one.image.clone().unwrap_or_default())
        .next()
        .unwrap_or_default()
}

fn uids(pods: &[Pod]) -> Vec<String> {
    let mut uids: Vec<_> = pods
        .iter()
        .filter_map(|pod| pod.metadata.uid.clone())
        .collect();
    uids.sort();
    uids
}

/// A control plane where a manager with the gate may start.
async fn raise_without_manager() -> Result<Installation> {
    let installation = Installation::raise_idle().await?;
    serve_jobs(&installation.client).await?;
    installation
        .apply_manifests(&[GATE, "--only=access"], &["--force-conflicts"])
        .await?;
    Ok(installation)
}

/// The same with that manager.
async fn raise() -> Result<Installation> {
    let installation = raise_without_manager().await?;
    installation.start_manager_with(&[GATE]).await?;
    Ok(installation)
}

// CLS-12, CLS-13, CLS-14, CLS-15, CLS-22, CLS-27, CLS-40, CLS-42, CLD-23
pub(crate) async fn a_set_is_made_scaled_and_updated(_shared: Arc<Installation>) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    let scene = Scene::new(&installation.client, "n1").await?;
    let sets: Api<CloneSet> = Api::namespaced(scene.client.clone(), &scene.ns);
    let set: CloneSet = serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "updateStrategy": {"maxUnavailable": 1},
            "template": {"metadata": {"labels": {"app": "web"}},
                "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "app:1"}]}},
        },
    }))?;
    sets.create(&PostParams::default(), &set).await?;
    let pods = Pods(Api::namespaced(scene.client.clone(), &scene.ns));
    pods.ready(3, "app:1").await?;
    // By the subresource, as an autoscaler does it.
    let scale = Patch::Merge(json!({"spec": {"replicas": 4}}));
    sets.patch_scale("web", &PatchParams::default(), &scale)
        .await?;
    let four = pods.ready(4, "app:1").await?;
    edit(&sets, json!({"replicas": 2})).await?;
    let two = pods.ready(2, "app:1").await?;
    ensure!(
        uids(&two).iter().all(|uid| uids(&four).contains(uid)),
        "the rest stays"
    );
    a_set_is_updated(&sets, &pods, &uids(&two)).await?;
    claims_come_and_go_with_their_pods(&installation).await
}

async fn edit(sets: &Api<CloneSet>, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": spec}));
    sets.patch("web", &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn a_set_is_updated(sets: &Api<CloneSet>, pods: &Pods, before: &[String]) -> Result<()> {
    let template = |image: &str| {
        let containers = json!([{"name": "main", "image": image}]);
        json!({"template": {"spec": {"containers": containers}}})
    };
    edit(sets, template("app:2")).await?;
    let re_created = pods.ready(2, "app:2").await?;
    ensure!(
        uids(&re_created).iter().all(|uid| !before.contains(uid)),
        "others came"
    );
    edit(
        sets,
        json!({"updateStrategy": {"type": "InPlaceIfPossible"}}),
    )
    .await?;
    edit(sets, template("app:3")).await?;
    let in_place = pods.ready(2, "app:3").await?;
    ensure!(
        uids(&in_place) == uids(&re_created),
        "they were updated in place"
    );
    // Metadata alone, which the policy on pods lets the manager change.
    let labels = json!({"tier": "front"});
    edit(sets, json!({"template": {"metadata": {"labels": labels}}})).await?;
    wait_for_answer("the label", || async {
        let pods = pods.active().await?;
        Ok(pods
            .iter()
            .all(|pod| pod.labels().contains_key("tier"))
            .then_some(()))
    })
    .await?;
    wait_for_answer("the status", || async {
        let set = sets.get("web").await?;
        let status = set.status.context("a status")?;
        let is_whole = status.updated_available_replicas == 2 && status.replicas == 2;
        Ok((is_whole && status.current_revision == status.update_revision).then_some(()))
    })
    .await
}

/// The claims that do not go, with their uids: nobody takes the finalizer of the protection away that the API server adds.
async fn staying(claims: &Api<PersistentVolumeClaim>) -> Result<BTreeMap<String, String>> {
    let all = claims.list(&ListParams::default()).await?.items;
    let staying = all
        .into_iter()
        .filter(|claim| claim.metadata.deletion_timestamp.is_none());
    Ok(staying
        .map(|claim| (claim.name_any(), claim.uid().unwrap_or_default()))
        .collect())
}

async fn claims_come_and_go_with_their_pods(installation: &Installation) -> Result<()> {
    let scene = Scene::new(&installation.client, "n2").await?;
    let sets: Api<CloneSet> = Api::namespaced(scene.client.clone(), &scene.ns);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(scene.client.clone(), &scene.ns);
    let pods = Pods(Api::namespaced(scene.client.clone(), &scene.ns));
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    let containers = json!([{"name": "main", "image": "app:1", "volumeMounts": mount}]);
    let claim = json!({"metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let set: CloneSet = serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet", "metadata": {"name": "db"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "db"}},
            "volumeClaimTemplates": [claim],
            "template": {"metadata": {"labels": {"app": "db"}},
                "spec": {"automountServiceAccountToken": false, "containers": containers}},
        },
    }))?;
    sets.create(&PostParams::default(), &set).await?;
    let scale = |replicas: i32| {
        let (sets, patch) = (sets.clone(), json!({"spec": {"replicas": replicas}}));
        async move {
            sets.patch("db", &PatchParams::default(), &Patch::Merge(patch))
                .await
        }
    };
    let two = pods.ready(2, "app:1").await?;
    for pod in &two {
        let claim = claims.get(&format!("data-{}", pod.name_any())).await?;
        let owner = claim.owner_references().first().context("an owner")?;
        ensure!(owner.kind == "CloneSet" && owner.controller == Some(true));
        let (of_pod, of_claim) = (pod.labels(), claim.labels());
        let id = "apps.kruise.io/cloneset-instance-id";
        ensure!(of_claim.get("app").is_some_and(|app| app == "db"));
        ensure!(of_claim.contains_key(id) && of_claim.get(id) == of_pod.get(id));
    }
    let before = staying(&claims).await?;
    ensure!(before.len() == 2, "{before:?}");
    only_claims_of_sets_are_written(installation, &scene, &two[0].name_any()).await?;
    // Others delete a pod: the next one has its name and its claim.
    pods.0
        .delete(&two[0].name_any(), &kube::api::DeleteParams::default())
        .await?;
    wait_for_answer("another pod of the same name", || async {
        pods.report().await?;
        let pod = pods.0.get_opt(&two[0].name_any()).await?;
        Ok(pod.filter(|pod| pod.uid() != two[0].uid()).map(drop))
    })
    .await?;
    pods.ready(2, "app:1").await?;
    ensure!(staying(&claims).await? == before, "the claims stay");
    scale(3).await?;
    pods.ready(3, "app:1").await?;
    ensure!(staying(&claims).await?.len() == 3);
    scale(1).await?;
    let one = pods.ready(1, "app:1").await?;
    wait_for_answer("the claims of the pods that are left", || async {
        let left = staying(&claims).await?;
        let wanted = format!("data-{}", one[0].name_any());
        Ok((left.len() == 1 && left.contains_key(&wanted)).then_some(()))
    })
    .await?;
    Ok(())
}

/// The example of `docs/howto/idle-clones.md`, and then its roll-outs by `kubectl leadsman rollout`.
// CLS-27, CLS-29
pub(crate) async fn idle_pods_go_first_and_a_roll_out_is_steered(
    _shared: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    let scene = Scene::new(&installation.client, "idle").await?;
    let example = document::root().join("examples/idle-clones.yaml");
    for object in std::fs::read_to_string(example)?.split("---\n") {
        let mut object: Value = serde_norway::from_str(object)?;
        if object["kind"] == "CloneSet" {
            object["spec"]["template"]["spec"]["nodeName"] = json!(scene.node);
        }
        let create = ["create", "-n", &scene.ns, "-f", "-"];
        let object = object.to_string();
        installation
            .plane
            .kubectl_with(&create, object.as_bytes())
            .await?;
    }
    let pods = Pods(Api::namespaced(scene.client.clone(), &scene.ns));
    let scale = async |count: i32| {
        let sets: Api<CloneSet> = Api::namespaced(scene.client.clone(), &scene.ns);
        let scale = Patch::Merge(json!({"spec": {"replicas": count}}));
        let params = PatchParams::default();
        sets.patch_scale("arena", &params, &scale).await
    };
    let three = pods.ready(3, OLD).await?;
    for (index, pod) in three.iter().enumerate() {
        let (state, idle, cost) = match index {
            1 => ("Failed", "false", "10"),
            _ => ("Succeeded", "true", "-10"),
        };
        let name = pod.name_any();
        scene.report_verdict(&name, "arena#idle", state).await?;
        let marks = json!({"labels": {"idle": idle},
            "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost}});
        scene.wait_for_marks(&name, marks).await?;
    }
    scale(1).await?;
    let busy = three[1].name_any();
    let left = pods.ready(1, OLD).await?;
    ensure!(left[0].name_any() == busy, "an idle one stays");
    scale(0).await?;
    let held = json!({"labels": {"lifecycle.apps.kruise.io/state": "PreparingDelete"}});
    scene.wait_for_marks(&busy, held).await?;
    scene
        .report_verdict(&busy, "arena#idle", "Succeeded")
        .await?;
    pods.ready(0, OLD).await?;
    scale(2).await?;
    pods.ready(2, OLD).await?;
    steer(&installation, &scene, &pods).await?;
    installation.end().await;
    Ok(())
}

/// The image of the example, and the next one.
const OLD: &str = "busybox:1.37";
const NEW: &str = "busybox:1.38";

async fn steer(installation: &Installation, scene: &Scene, pods: &Pods) -> Result<()> {
    let rollout = async |words: &[&str], success: bool, expected: &[&str]| {
        let words = [&["rollout"], words, &["cloneset/arena", "-n", &scene.ns]].concat();
        expect(&run(installation, &words, "").await?, success, expected)
    };
    let done = "cloneset \"arena\" successfully rolled out";
    rollout(&["status"], true, &[done]).await?;
    rollout(&["pause"], true, &["cloneset.apps.kruise.io/arena paused"]).await?;
    rollout(&["pause"], false, &["is already paused"]).await?;
    let sets: Api<CloneSet> = Api::namespaced(scene.client.clone(), &scene.ns);
    let containers = json!([{"name": "main", "image": NEW, "command": ["sleep", "infinity"]}]);
    let edit = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    sets.patch("arena", &PatchParams::default(), &Patch::Merge(edit))
        .await?;
    let waits = [
        "0 out of 2 new pods have been updated... (it is paused)",
        "error: timed out waiting for the condition",
    ];
    rollout(&["status", "--timeout=5s"], false, &waits).await?;
    rollout(
        &["resume"],
        true,
        &["cloneset.apps.kruise.io/arena resumed"],
    )
    .await?;
    pods.ready(2, NEW).await?;
    rollout(&["status"], true, &[done]).await?;
    let both = ["1          arena-", OLD, "2          arena-", NEW];
    rollout(&["history"], true, &both).await?;
    let dry = "cloneset.apps.kruise.io/arena rolled back (server dry run)";
    rollout(&["undo", "--dry-run=server"], true, &[dry]).await?;
    let shown = ["image: busybox:1.37", "(dry run)"];
    rollout(&["undo", "--dry-run=client"], true, &shown).await?;
    rollout(
        &["undo"],
        true,
        &["cloneset.apps.kruise.io/arena rolled back\n"],
    )
    .await?;
    let back = pods.ready(2, OLD).await?;
    // The earlier revision is numbered anew, and none is made.
    rollout(&["undo", "--to-revision=1"], false, &["it has 2, 3"]).await?;
    rollout(
        &["restart"],
        true,
        &["cloneset.apps.kruise.io/arena restarted"],
    )
    .await?;
    wait_for_answer("other pods of the same image", || async {
        let pods = pods.ready(2, OLD).await?;
        let others = uids(&pods);
        Ok(uids(&back)
            .iter()
            .all(|uid| !others.contains(uid))
            .then_some(()))
    })
    .await
}
