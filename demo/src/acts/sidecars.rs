//! Sidecars: pods get a container that their Deployment does not name, and it is upgraded while the app runs on.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use leadsman_api::SidecarSet;
use serde_json::{Value, json};

use super::{NAMESPACE, condition, listed};
use crate::cluster::Demo;
use crate::see::{Look, labelled, named, see};
use crate::tell::Tell;

/// The set, and the container that it adds.
const PROXY: &str = "proxy";
const APP: &str = "shop";
/// An image that is not there.
const BROKEN: &str = "none";

/// What runs in the pods of the shop: pods by the release of their proxy.
type Releases = BTreeMap<String, usize>;

pub(super) async fn play(cluster: &Demo, tell: &Tell) -> Result<()> {
    Tell::title("A shop of four pods, and a SidecarSet that adds a proxy to each");
    is_injected(cluster, tell).await?;
    half_is_upgraded(cluster, tell).await?;
    a_new_pod_is_pinned(cluster, tell).await?;
    a_broken_image_stops(cluster, tell).await?;
    it_heals(cluster, tell).await
}

async fn is_injected(cluster: &Demo, tell: &Tell) -> Result<()> {
    let since = tell.step(
        "kubectl apply -f demo/manifests/proxy.yaml, a SidecarSet for pods with app=shop",
        "its status says that new pods get it",
    );
    cluster.apply(&["demo/manifests/proxy.yaml"]).await?;
    let sets = Api::<SidecarSet>::all(cluster.client.clone());
    see(&sets, named(PROXY), |sets| {
        let status = sets.get(PROXY).and_then(|set| set.status.as_ref());
        match status.and_then(|status| status.in_force.as_ref()) {
            Some(_) => Look::Seen(()),
            None => Look::NotYet(format!("{status:?}")),
        }
    })
    .await?;
    tell.seen(since, "status.inForce.generation is 1");
    let since = tell.step(
        "kubectl apply -f demo/manifests/shop.yaml, a Deployment whose pods have one container, shop",
        "four pods of two containers: a proxy of release 1 was put before the shop",
    );
    cluster.apply(&["demo/manifests/shop.yaml"]).await?;
    shop(cluster, tell, since, |all| *all == releases(&[("1", 4)])).await
}

async fn half_is_upgraded(cluster: &Demo, tell: &Tell) -> Result<()> {
    let since = tell.step(
        "kubectl patch sidecarset proxy: release 2, partition 50%, new pods pinned to version `first`",
        "two pods have release 2: the proxy has restarted in its place, the shop beside it has not",
    );
    let spec = json!({
        "customVersion": "second",
        "containers": [proxy("2")],
        "injectionStrategy": {"revision": {"customVersion": "first"}},
        "updateStrategy": {"partition": "50%"},
    });
    patch(cluster, &spec).await?;
    let half = releases(&[("1", 2), ("2", 2)]);
    shop(cluster, tell, since, |all| *all == half).await
}

async fn a_new_pod_is_pinned(cluster: &Demo, tell: &Tell) -> Result<()> {
    let since = tell.step(
        "kubectl -n ns scale deployment shop --replicas=5",
        "the new pod has release 1, to which new pods are pinned",
    );
    let scale = ["-n", NAMESPACE, "scale", "deployment", APP, "--replicas=5"];
    cluster.kubectl(&scale).await?;
    let one_more = releases(&[("1", 3), ("2", 2)]);
    shop(cluster, tell, since, |all| *all == one_more).await
}

async fn a_broken_image_stops(cluster: &Demo, tell: &Tell) -> Result<()> {
    let since = tell.step(
        "kubectl patch sidecarset proxy: an image that does not exist, partition 0, no pin",
        "one pod gets it, as many as may be unavailable, and the roll-out stops by itself",
    );
    let spec = json!({
        "containers": [proxy(BROKEN)],
        "injectionStrategy": null,
        "updateStrategy": {"partition": 0},
    });
    patch(cluster, &spec).await?;
    let sum = |all: &Releases| all.values().sum::<usize>();
    let one = |all: &Releases| sum(all) == 5 && all.get(BROKEN) == Some(&1);
    shop(cluster, tell, since, one).await
}

async fn it_heals(cluster: &Demo, tell: &Tell) -> Result<()> {
    let since = tell.step(
        "kubectl patch sidecarset proxy: release 2",
        "all five have it; no shop has restarted in all this",
    );
    patch(cluster, &json!({"containers": [proxy("2")]})).await?;
    shop(cluster, tell, since, |all| *all == releases(&[("2", 5)])).await
}

/// The container of the set.
fn proxy(release: &str) -> Value {
    let image = format!("docker.io/local/sidecar:{release}");
    json!({"name": PROXY, "image": image, "imagePullPolicy": "Never"})
}

async fn patch(cluster: &Demo, spec: &Value) -> Result<()> {
    let patch = json!({"spec": spec}).to_string();
    let words = ["patch", "sidecarset", PROXY, "--type=merge", "-p", &patch];
    cluster.kubectl(&words).await.map(drop)
}

fn releases(all: &[(&str, usize)]) -> Releases {
    let all = all.iter();
    all.map(|(release, pods)| ((*release).to_owned(), *pods))
        .collect()
}

/// Waits until the proxies that run, and those that cannot, are these. No shop may restart meanwhile.
async fn shop(
    cluster: &Demo,
    tell: &Tell,
    since: Instant,
    expected: impl Fn(&Releases) -> bool,
) -> Result<()> {
    let pods = Api::<Pod>::namespaced(cluster.client.clone(), NAMESPACE);
    let words = see(&pods, labelled("app=shop"), |pods| {
        let words = listed(pods.values(), say);
        let mut found = Releases::new();
        for pod in pods.values() {
            if status(pod, APP).is_some_and(|shop| shop.restart_count > 0) {
                return Look::Never(words);
            }
            if let Some(release) = settled_release(pod) {
                *found.entry(release.to_owned()).or_default() += 1;
            }
        }
        if expected(&found) {
            Look::Seen(words)
        } else {
            Look::NotYet(words)
        }
    });
    let words = words.await.context("the shop's pods")?;
    tell.seen(since, &words);
    Ok(())
}

fn status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    statuses.iter().find(|status| status.name == container)
}

/// The release that a pod's proxy is to have.
fn release(pod: &Pod) -> Option<&str> {
    let containers = &pod.spec.as_ref()?.containers;
    let proxy = containers.iter().find(|it| it.name == PROXY)?;
    Some(proxy.image.as_ref()?.rsplit_once(':')?.1)
}

fn is_waiting(proxy: &ContainerStatus) -> bool {
    let state = proxy.state.as_ref();
    state.is_some_and(|state| state.waiting.is_some())
}

/// The release of a pod's proxy once it runs, or once it waits for an image that does not exist.
fn settled_release(pod: &Pod) -> Option<&str> {
    let (release, proxy) = (release(pod)?, status(pod, PROXY)?);
    let runs = proxy.image.ends_with(&format!(":{release}")) && condition(pod, "Ready") == "True";
    let is_settled = if release == BROKEN {
        is_waiting(proxy)
    } else {
        runs
    };
    is_settled.then_some(release)
}

fn say(pod: &Pod) -> String {
    let restarts = |container| status(pod, container).map_or(0, |it| it.restart_count);
    let state = if status(pod, PROXY).is_some_and(is_waiting) {
        " (waits for its image)"
    } else {
        ""
    };
    format!(
        "proxy:{}{state}, restarts: proxy {} shop {}",
        release(pod).unwrap_or("-"),
        restarts(PROXY),
        restarts(APP)
    )
}
