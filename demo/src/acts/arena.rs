//! A CloneSet: its pods are no Deployment's, and the idle one goes first here too.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};

use super::game::COST;
use super::{NAMESPACE, listed, value};
use crate::cluster::Demo;
use crate::see::{Look, labelled, see};
use crate::tell::Tell;

/// Waits until the pods of the set are as many as these costs, and have them, in the order of their names.
async fn costs(cluster: &Demo, wanted: &[&str]) -> Result<(Vec<String>, String)> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), NAMESPACE);
    see(&pods, labelled("app=arena"), |pods| {
        let words = listed(pods.values(), |pod| {
            value(pod.annotations(), COST).to_owned()
        });
        let found = pods.values().map(|pod| value(pod.annotations(), COST));
        if found.eq(wanted.iter().copied()) {
            return Look::Seen((pods.keys().cloned().collect(), words));
        }
        Look::NotYet(words)
    })
    .await
}

pub(super) async fn play(cluster: &Demo, tell: &Tell) -> Result<()> {
    Tell::title("A CloneSet of three game servers: a probe chooses which of them goes");
    let since = tell.step(
        "kubectl apply -f demo/manifests/arena.yaml",
        &format!("three pods, in which no match is played: {COST}=-10"),
    );
    cluster.apply(&["demo/manifests/arena.yaml"]).await?;
    let (pods, words) = costs(cluster, &["-10"; 3]).await?;
    tell.seen(since, &words);
    let idle = pods.get(1).context("there are three")?;
    let since = tell.step(
        &format!("matches begin in all but {idle}; kubectl -n ns scale clone arena --replicas=2"),
        &format!("{COST}=10 on the two; leadsman deletes {idle}, no other"),
    );
    for pod in pods.iter().filter(|pod| *pod != idle) {
        let exec = ["-n", NAMESPACE, "exec", pod];
        let touch = [&exec[..], &["--", "touch", "/home/game/match"]].concat();
        cluster.kubectl(&touch).await?;
    }
    costs(cluster, &["10", "-10", "10"]).await?;
    let scale = ["-n", NAMESPACE, "scale", "clone", "arena", "--replicas=2"];
    cluster.kubectl(&scale).await?;
    let (_, words) = costs(cluster, &["10"; 2]).await?;
    tell.seen(since, &format!("{idle} is gone; left are {words}"));
    Ok(())
}
