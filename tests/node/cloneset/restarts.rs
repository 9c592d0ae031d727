//! Managers that are killed amid what they do.

use std::collections::BTreeSet;

use super::{
    Arc, Cluster, History, Pod, ResourceExt as _, Result, Room, Set, ensure, has_release,
    is_active, json, restarts_of, serves, wait_for_deletion,
};

async fn restart_manager(cluster: &Cluster) -> Result<()> {
    cluster.kill_manager().await?;
    cluster.start_manager().await
}

/// How many pods have been there, up to now.
async fn count_pods(history: &History) -> Result<usize> {
    let versions = history.versions().await?;
    let uids: BTreeSet<_> = versions.values().flatten().filter_map(Pod::uid).collect();
    Ok(uids.len())
}

/// Cases after this one count the manager's writes.
async fn end(room: &Room, set: Set<'_>) -> Result<()> {
    let (sets, name) = (set.sets.clone(), room.scene.ns.clone());
    drop(set);
    wait_for_deletion(&sets, &name).await
}

// CLD-1, CLD-2, CLD-63
pub(crate) async fn a_manager_killed_while_it_scales_makes_no_pod_too_many(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-killed-scaling").await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    let set = Set::create(&room, json!({"replicas": 12})).await?;
    let begun = history.wait_for_version("a pod", |_| true);
    begun.await?;
    restart_manager(&cluster).await?;
    set.wait_until_done(12).await?;
    ensure!(count_pods(&history).await? == 12, "others came");
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.edit(json!({"replicas": 3})).await?;
    let begun = history.wait_for_version("a deletion", |pod| !is_active(pod));
    begun.await?;
    restart_manager(&cluster).await?;
    set.wait_until_done(3).await?;
    let there = history.count_at_once(is_active).await?;
    ensure!(there == (3..=12), "{there:?} pods were there");
    ensure!(count_pods(&history).await? == 12, "others came");
    end(&room, set).await
}

// CLS-38, CLD-1, CLD-2, CLD-35
pub(crate) async fn a_manager_killed_amid_an_update_updates_each_pod_once(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "clones-killed-updating").await?;
    let strategy = json!({"type": "InPlaceIfPossible", "maxUnavailable": 1});
    let set = Set::create(&room, json!({"replicas": 4, "updateStrategy": strategy})).await?;
    set.wait_until_done(4).await?;
    let before = set.identities().await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.release("2").await?;
    let begun = history.wait_for_version("an update", |pod| has_release(pod, "2"));
    begun.await?;
    restart_manager(&cluster).await?;
    set.wait_until_done(4).await?;
    let restarts = restarts_of(&set.pods().await?);
    ensure!(restarts.values().all(|count| *count == 1), "{restarts:?}");
    ensure!(set.identities().await? == before, "others came");
    let served = history.count_at_once(serves).await?;
    ensure!(served == (3..=4), "{served:?} pods served");

    let surge = json!({"type": "ReCreate", "maxUnavailable": 0, "maxSurge": 1});
    set.edit(json!({"updateStrategy": surge})).await?;
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.release("1").await?;
    let begun = history.wait_for_version("another pod", |pod| has_release(pod, "1"));
    begun.await?;
    restart_manager(&cluster).await?;
    set.wait_until_done(4).await?;
    let (there, served) = (
        history.count_at_once(is_active).await?,
        history.count_at_once(serves).await?,
    );
    ensure!(there == (4..=5), "{there:?} pods were there");
    ensure!(*served.start() == 4, "{served:?} pods served");
    ensure!(
        count_pods(&history).await? == 8,
        "more came than are needed"
    );
    end(&room, set).await
}
