//! What a case begins with: leadsman installed, and marked pods on both nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use leadsman_process::watch;
use leadsman_testkit::Release;
use leadsman_tests::History;
use leadsman_tests::room::{is_main, role};
use leadsman_tests::scene::merge;
use serde_json::{Value, json};

/// A case's own namespace on the suite's cluster.
pub(crate) type Room = leadsman_tests::Room<Release>;

/// The pods of a case, one on each node.
pub(crate) const PODS: [&str; 2] = ["first", "second"];

/// How many flips a change that is made under them sees at least.
const FLIPS: usize = 8;

/// These values, without the Job that `helm` runs before, which takes seconds and has its own cases.
pub(crate) fn values(over: Value) -> Value {
    let mut all = json!({"preflight": {"enabled": false}});
    merge(&mut all, over);
    all
}

/// leadsman with these [`values`] beside the chart's own, as chart and image are now, and rolled out.
pub(crate) async fn install(release: &Release, over: Value) -> Result<()> {
    release.install(&values(over)).await?;
    release.wait_for_rollout().await
}

/// Makes [`PODS`], each on a node of its own, where they stay when that is not Ready.
pub(crate) async fn place_pods(room: &Room, over: Value) -> Result<()> {
    let bed = &room.cluster.bed;
    let places = PODS.iter().zip(bed.nodes());
    try_join_all(places.map(|(pod, node)| {
        let mut manifest = over.clone();
        merge(
            &mut manifest,
            json!({"spec": {"nodeName": node.name(), "tolerations": [{"operator": "Exists"}]}}),
        );
        room.pod(pod, manifest)
    }))
    .await?;
    Ok(())
}

/// A namespace with [`PODS`], both labelled `role: main` by a marker that asks each second, and what has been seen of them
/// since.
pub(crate) async fn marked_pods(release: &Arc<Release>, name: &str) -> Result<(Room, History)> {
    let room = Room::new(release, name).await?;
    mark_pods(&room).await?;
    let history = History::of(&release.client, name).await?;
    Ok((room, history))
}

/// Makes these pods in a namespace that is there already.
pub(crate) async fn mark_pods(room: &Room) -> Result<()> {
    place_pods(room, json!({})).await?;
    for pod in PODS {
        room.set(pod, "role=main").await?;
    }
    room.scene.marker("m", json!([role()])).await?;
    for pod in PODS {
        room.scene.wait_for_marks(pod, is_main(true)).await?;
    }
    Ok(())
}

/// Switches a pod's role, and waits for the mark.
pub(crate) async fn flip(room: &Room, pod: &str, main: bool) -> Result<()> {
    let role = if main { "role=main" } else { "role=secondary" };
    room.set(pod, role).await?;
    room.scene.wait_for_marks(pod, is_main(main)).await?;
    Ok(())
}

/// Flips the first pod to and fro while `change` is made, again and again until there were [`FLIPS`]: how long a change
/// takes, and a flip meanwhile, is the machine's matter. Returns the pod's roles, from `main` on.
pub(crate) async fn flip_during<F>(
    room: &Room,
    mut change: impl FnMut() -> F,
) -> Result<Vec<&'static str>>
where
    F: Future<Output = Result<()>>,
{
    let (flipped, enough) = watch::channel(0);
    let changes = async {
        while *enough.borrow() < FLIPS {
            change().await?;
        }
        drop(enough);
        anyhow::Ok(())
    };
    let flips = async {
        let mut roles = vec!["main"];
        while !flipped.is_closed() {
            let next = if roles.len() % 2 == 0 {
                "main"
            } else {
                "secondary"
            };
            flip(room, PODS[0], next == "main").await?;
            roles.push(next);
            flipped.send_replace(roles.len() - 1);
        }
        anyhow::Ok(roles)
    };
    let ((), roles) = tokio::try_join!(changes, flips)?;
    Ok(roles)
}

/// Holds the label `role` of each pod to exactly these values, one after the other: none was lost, none came back.
pub(crate) async fn roles_were(history: &History, expected: [&[&str]; 2]) -> Result<()> {
    let seen: BTreeMap<_, Vec<String>> = history
        .versions()
        .await?
        .into_iter()
        .map(|(pod, versions)| {
            let role = |labels: BTreeMap<String, String>| labels.get("role").cloned();
            let labels = versions.into_iter().map(|pod| pod.metadata.labels);
            let mut roles: Vec<_> = labels
                .map(|labels| labels.and_then(role).unwrap_or_else(|| "none".to_owned()))
                .collect();
            roles.dedup();
            (pod, roles)
        })
        .collect();
    let expected: BTreeMap<_, Vec<String>> = PODS
        .iter()
        .zip(expected)
        .map(|(pod, roles)| {
            let roles = roles.iter().map(ToString::to_string).collect();
            ((*pod).to_owned(), roles)
        })
        .collect();
    ensure!(seen == expected, "the roles were {seen:?}");
    Ok(())
}
