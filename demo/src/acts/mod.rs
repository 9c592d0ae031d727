//! The story, act by act.
//!
//! All workloads are applied at the beginning and the acts looked at in the order in which their marks are due: the
//! manual's marker gives a game server 10 s before its first probe and wants three failures 10 s apart.

mod arena;
mod database;
mod game;
mod gate;
mod jobs;
mod sidecars;

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{Api, ResourceExt as _};

use crate::cluster::Demo;
use crate::see::{Look, named, see};
use crate::tell::Tell;

/// The namespace of the manual.
pub(crate) const NAMESPACE: &str = "ns";

/// Plays all acts. An error says what was seen instead of the expected.
pub(crate) async fn play(cluster: &Demo, tell: &Tell) -> Result<()> {
    Tell::title("The manual's three game servers, two databases of two pods each, a cache");
    cluster.apply(&["demo/manifests/namespace.yaml"]).await?;
    // A bare pod is refused until the controller manager has made its namespace an account.
    let accounts = Api::<ServiceAccount>::namespaced(cluster.client.clone(), NAMESPACE);
    let there = see(&accounts, named("default"), |all| {
        if all.is_empty() {
            Look::NotYet("no account".into())
        } else {
            Look::Seen(())
        }
    });
    there
        .await
        .context("service account `default` of namespace ns")?;
    cluster
        .apply(&[
            "examples/game-server/game-server.yaml",
            "examples/game-server/marker.yaml",
            "examples/database-role/database.yaml",
            "examples/database-role/marker.yaml",
            "demo/manifests/ledger.yaml",
            "demo/manifests/readiness-gate.yaml",
        ])
        .await?;
    Tell::note(
        "kubectl -n ns apply -f …, from examples/game-server, examples/database-role and demo/manifests",
    );
    tokio::try_join!(first_mark(cluster, tell), story(cluster, tell))?;
    Ok(())
}

async fn story(cluster: &Demo, tell: &Tell) -> Result<()> {
    database::HTTP
        .play(cluster, tell)
        .await
        .context("the database")?;
    database::GRPC
        .play(cluster, tell)
        .await
        .context("the ledger")?;
    gate::play(cluster, tell)
        .await
        .context("the readiness gate")?;
    game::play(cluster, tell)
        .await
        .context("the game servers")?;
    sidecars::play(cluster, tell)
        .await
        .context("the sidecars")?;
    jobs::play(cluster, tell).await.context("the jobs")?;
    arena::play(cluster, tell).await.context("the CloneSet")
}

/// Reports when the first pod has a mark.
async fn first_mark(cluster: &Demo, tell: &Tell) -> Result<()> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), NAMESPACE);
    let pod = see(&pods, kube::runtime::watcher::Config::default(), |pods| {
        let ours = |pod: &Pod| {
            pod.managed_fields()
                .iter()
                .any(|entry| entry.manager.as_deref() == Some("leadsman-podprobe"))
        };
        match pods.values().find(|pod| ours(pod)) {
            Some(pod) => Look::Seen(pod.name_any()),
            None => Look::NotYet("no pod with a field of manager leadsman-podprobe".into()),
        }
    });
    let pod = pod.await.context("the first mark")?;
    Tell::note(&format!(
        "-- the first mark: on {pod}, {:.1} s after Enter",
        tell.since_enter().as_secs_f64()
    ));
    Ok(())
}

/// The status of a pod's condition, `-` if it has none of that type.
fn condition<'a>(pod: &'a Pod, kind: &str) -> &'a str {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .find(|it| it.type_ == kind)
        .map_or("-", |it| it.status.as_str())
}

/// A label or an annotation, `-` if there is none.
fn value<'a>(of: &'a std::collections::BTreeMap<String, String>, key: &str) -> &'a str {
    of.get(key).map_or("-", String::as_str)
}

/// One word per pod, in order.
fn listed<'a>(pods: impl IntoIterator<Item = &'a Pod>, say: impl Fn(&Pod) -> String) -> String {
    let mut all = String::new();
    for pod in pods {
        let separator = if all.is_empty() { "" } else { ", " };
        let _ = write!(all, "{separator}{} {}", pod.name_any(), say(pod));
    }
    if all.is_empty() {
        "no pod".to_owned()
    } else {
        all
    }
}
