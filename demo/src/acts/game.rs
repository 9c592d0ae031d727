//! Game servers: a pod that is idle is the one that goes when there are too many.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};

use super::{NAMESPACE, condition, listed, value};
use crate::cluster::Demo;
use crate::see::{Look, labelled, see};
use crate::tell::Tell;

const LABEL: &str = "gameserver-idle";
pub(super) const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const IDLE: &str = "game.io/idle";

/// What the manual's marker writes while a match runs, and when none does.
const IN_A_MATCH: (&str, &str, &str) = ("false", "10", "False");
const IS_IDLE: (&str, &str, &str) = ("true", "-10", "True");

fn marks(pod: &Pod) -> (&str, &str, &str) {
    (
        value(pod.labels(), LABEL),
        value(pod.annotations(), COST),
        condition(pod, IDLE),
    )
}

fn say(pod: &Pod) -> String {
    let (label, cost, idle) = marks(pod);
    format!("({LABEL}={label}, deletion cost {cost}, {IDLE} {idle})")
}

pub(super) async fn play(cluster: &Demo, tell: &Tell) -> Result<()> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), NAMESPACE);
    Tell::title("Game servers: the marker of the manual, word for word");
    let all_in_a_match = all_marked(&pods, tell).await?;
    let chosen = all_in_a_match.last().context("there are three")?.clone();
    one_turns_idle(cluster, &pods, tell, &chosen).await?;
    the_idle_one_goes(cluster, &pods, tell, &chosen).await
}

async fn all_marked(pods: &Api<Pod>, tell: &Tell) -> Result<Vec<String>> {
    let since = tell.step(
        "nothing more: the three were applied above, each begins in a match, three failures 10 s apart make a verdict",
        &format!("all three: label {LABEL}=false, annotation {COST}=10, condition {IDLE} False"),
    );
    let (names, words) = see(pods, labelled("app=game-server"), |pods| {
        let words = listed(pods.values(), say);
        if pods.len() == 3 && pods.values().all(|pod| marks(pod) == IN_A_MATCH) {
            return Look::Seen((pods.keys().cloned().collect(), words));
        }
        Look::NotYet(words)
    })
    .await?;
    tell.seen(since, &words);
    Ok(names)
}

async fn one_turns_idle(cluster: &Demo, pods: &Api<Pod>, tell: &Tell, chosen: &str) -> Result<()> {
    let since = tell.step(
        &format!("kubectl -n ns exec {chosen} -c game-server -- rm /home/game/match"),
        &format!("{chosen} alone: {LABEL}=true, {COST}=-10, {IDLE} True"),
    );
    cluster
        .kubectl(&[
            "-n",
            NAMESPACE,
            "exec",
            chosen,
            "-c",
            "game-server",
            "--",
            "rm",
            "/home/game/match",
        ])
        .await?;
    let words = see(pods, labelled("app=game-server"), |pods| {
        let words = listed(pods.values(), say);
        let expected = |pod: &Pod| {
            if pod.name_any() == chosen {
                IS_IDLE
            } else {
                IN_A_MATCH
            }
        };
        if pods.len() == 3 && pods.values().all(|pod| marks(pod) == expected(pod)) {
            return Look::Seen(words);
        }
        Look::NotYet(words)
    })
    .await?;
    tell.seen(since, &words);
    Ok(())
}

async fn the_idle_one_goes(
    cluster: &Demo,
    pods: &Api<Pod>,
    tell: &Tell,
    chosen: &str,
) -> Result<()> {
    let since = tell.step(
        "kubectl -n ns scale deployment game-server --replicas=2",
        &format!("Kubernetes' ReplicaSet controller reads the cost and removes {chosen}, no other"),
    );
    cluster
        .kubectl(&[
            "-n",
            NAMESPACE,
            "scale",
            "deployment",
            "game-server",
            "--replicas=2",
        ])
        .await?;
    let words = see(pods, labelled("app=game-server"), |pods| {
        let leaving = |pod: &&Pod| pod.metadata.deletion_timestamp.is_some();
        let words = listed(pods.values(), say);
        if let Some(other) = pods
            .values()
            .filter(leaving)
            .find(|pod| pod.name_any() != chosen)
        {
            return Look::Never(format!("{} is being removed", other.name_any()));
        }
        match (pods.len(), pods.contains_key(chosen)) {
            (2, false) => Look::Seen(words),
            (2, true) => Look::Never(format!("another one was removed; left are {words}")),
            _ => Look::NotYet(words),
        }
    })
    .await?;
    tell.seen(since, &format!("{chosen} is gone; left are {words}"));
    Ok(())
}
