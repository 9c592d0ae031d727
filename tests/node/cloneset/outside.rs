//! What Kubernetes has to say of a set's pods: volumes, quotas, and the end of a namespace.

use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Namespace, PersistentVolume, PersistentVolumeClaim, ResourceQuota,
};
use leadsman_testkit::leadsman::MANAGER as USER;
use leadsman_tests::wait_longer_for_answer;

use super::{
    Api, Arc, Cluster, Context as _, DeleteParams, MAIN, Patch, PatchParams, Pod, PostParams,
    ResourceExt as _, Result, Room, Set, ensure, has_counts, json, target, wait_for_deletion,
    wait_for_object,
};

/// Makes volumes of a room, in the folder of the bed, with which they go.
async fn add_volumes(room: &Room, count: usize) -> Result<()> {
    let (volumes, class) = (
        Api::<PersistentVolume>::all(room.scene.client.clone()),
        &room.scene.ns,
    );
    for number in 0..count {
        let name = format!("{class}-{number}");
        let folder = room.cluster.bed.folder().join("volumes").join(&name);
        let volume = json!({"metadata": {"name": name}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": class, "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}});
        let volume = serde_json::from_value(volume)?;
        volumes.create(&PostParams::default(), &volume).await?;
    }
    Ok(())
}

// CLS-12, CLS-14, CLS-15
pub(crate) async fn a_volume_is_the_next_pods_and_goes_with_a_scale_down(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-claims").await?;
    add_volumes(&room, 2).await?;
    let mut main = target(MAIN);
    main["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": room.scene.ns, "resources": {"requests": {"storage": "1Gi"}}}});
    let spec = json!({"replicas": 2, "volumeClaimTemplates": [claim],
        "template": {"spec": {"containers": [main]}}});
    let set = Set::create(&room, spec).await?;
    set.wait_until_done(2).await?;
    let pods = set.pods().await?;
    let [name, other] = [0, 1].map(|number: usize| pods[number].name_any());
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(cluster.client.clone(), &room.scene.ns);
    let before = claims.get(&format!("data-{name}")).await?.uid();
    room.exec(&name, MAIN, &["sh", "-c", "echo kept > /data/file"])
        .await?;
    // Others delete the pod.
    let deletion = DeleteParams::default();
    room.scene.pods().delete(&name, &deletion).await?;
    wait_for_object(&room.scene.pods(), &name, "the next pod", |pod: &Pod| {
        let is_new = pod.uid() != pods[0].uid() && super::serves(pod);
        ensure!(is_new, "{:?}", pod.status);
        Ok(())
    })
    .await?;
    let kept = room.exec(&name, MAIN, &["cat", "/data/file"]).await?;
    let after = claims.get(&format!("data-{name}")).await?.uid();
    ensure!(kept.trim() == "kept" && after == before, "{kept:?}");
    set.wait_until_done(2).await?;
    set.edit(json!({"replicas": 1, "scaleStrategy": {"podsToDelete": [name]}}))
        .await?;
    wait_for_deletion(&claims, &format!("data-{name}")).await?;
    set.wait_until_done(1).await?;
    let left = claims.get(&format!("data-{other}")).await?;
    ensure!(left.metadata.deletion_timestamp.is_none(), "{left:?}");
    Ok(())
}

// CLD-4, CLD-8, CLD-24
pub(crate) async fn pods_that_a_quota_refuses_come_once_it_is_raised(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-quota").await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), &room.scene.ns);
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}});
    let quota = serde_json::from_value(quota)?;
    quotas.create(&PostParams::default(), &quota).await?;
    wait_for_object(&quotas, "few", "it in force", |quota| {
        let hard = quota.status.as_ref().and_then(|it| it.hard.as_ref());
        ensure!(hard.is_some(), "{:?}", quota.status);
        Ok(())
    })
    .await?;
    let set = Set::create(&room, json!({"replicas": 4})).await?;
    set.wait_for_counts([2; 4]).await?;
    wait_for_object(&set.sets, &room.scene.ns, "the refusal", |set| {
        let status = set.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.iter();
        let refusal = conditions.find(|one| one.reason.as_deref() == Some("Refused"));
        let message = refusal.and_then(|one| one.message.as_deref());
        let message = message.context("no refusal")?;
        ensure!(message.contains("exceeded quota: few"), "{message}");
        Ok(())
    })
    .await?;
    let raised = Patch::Merge(json!({"spec": {"hard": {"pods": "9"}}}));
    quotas
        .patch("few", &PatchParams::default(), &raised)
        .await?;
    // What is refused is tried again within a minute.
    wait_longer_for_answer("all pods", Duration::from_mins(2), || async {
        let set = set.sets.get(&room.scene.ns).await?;
        let is_over = set.status.iter().all(|it| it.conditions.is_empty());
        Ok((has_counts(&set, [4; 4]).is_ok() && is_over).then_some(()))
    })
    .await
}

// CLS-63
pub(crate) async fn a_deleted_namespace_takes_a_set_and_its_pods_along(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-gone").await?;
    let set = Set::create(&room, json!({"replicas": 3})).await?;
    set.wait_until_done(3).await?;
    let since = cluster.bed.audit_mark()?;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let name = &room.scene.ns;
    namespaces.delete(name, &DeleteParams::default()).await?;
    wait_for_deletion(&namespaces, name).await?;
    let requests = cluster.bed.audit(since)?.into_iter();
    let created = requests.filter(|it| {
        it.user == USER && it.namespace == *name && it.verb == "create" && it.resource == "pods"
    });
    let codes: Vec<_> = created.map(|it| it.code).collect();
    // Namespaces take nothing new while they go. Where ten names are refused, no further one is tried; a few are under way then.
    let are_refused = codes.iter().all(|code| *code == 403);
    ensure!(are_refused && codes.len() <= 16, "{codes:?}");
    Ok(())
}
