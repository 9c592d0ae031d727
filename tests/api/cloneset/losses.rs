//! A manager that loses replies to what it asks for, and hears late of what happens.

use std::ops::RangeInclusive;
use std::time::Duration;

use futures::future::try_join_all;
use kube::Client;
use leadsman_tests::{History, Losses, LossyLink, wait_for_object};

use super::{
    Api, Arc, CloneSet, GATE, Installation, PLACES, Patch, PatchParams, Pod, Pods, PostParams,
    Result, Scene, Value, ensure, json, raise_without_manager,
};

const SET: &str = "lossy";
const FEW: usize = 2;
const MANY: usize = 10;
const SURGE: usize = 2;
/// How late a watch is, at most: some of what was asked for is asked for again before it is seen.
const LAG: Duration = Duration::from_millis(600);

// CLD-1, CLD-2
pub(crate) async fn lost_replies_make_no_pod_too_many(_: Arc<Installation>) -> Result<()> {
    play(1, 2, 8).await
}

// CLD-1, CLD-2
pub(crate) async fn one_percent_of_lost_replies_makes_no_pod_too_many_in_twenty_rounds(
    _: Arc<Installation>,
) -> Result<()> {
    // A round is mostly waiting for late watches, batch after batch.
    play(5, 4, 100).await
}

/// Scales sets up, rolls them out and scales them down side by side, each so many times, while one of so many writes loses its
/// reply.
async fn play(sets: u64, rounds: u64, one_of: usize) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let mut installation = raise_without_manager().await?;
    let losses = Losses {
        one_of,
        lag: LAG,
        seed: sets * rounds,
    };
    let direct = installation.kubeconfig.clone();
    let link = LossyLink::of(&direct, losses).await?;
    installation.kubeconfig = installation
        .plane
        .kubeconfig_through(&direct, &link.url())?;
    installation.start_manager_with(&[GATE]).await?;
    let sets = (1..=sets).map(|number| {
        let client = &installation.client;
        async move { Stand::new(client, number).await?.play(rounds).await }
    });
    let most = try_join_all(sets).await?;
    let (total, lost) = (most.len() as u64 * rounds, link.count_lost());
    eprintln!("{total} rounds, {lost} replies were lost, the most pods at once: {most:?}");
    ensure!(lost > 0, "no reply was lost");
    installation.end().await;
    Ok(())
}

/// A set whose pods have a node, and those who look at them from outside.
struct Stand {
    scene: Scene,
    sets: Api<CloneSet>,
    pods: Pods,
}

impl Stand {
    async fn new(client: &Client, number: u64) -> Result<Self> {
        let scene = Scene::new(client, &format!("{SET}-{number}")).await?;
        let sets: Api<CloneSet> = Api::namespaced(scene.client.clone(), &scene.ns);
        let strategy = json!({"maxUnavailable": 1, "maxSurge": SURGE});
        let spec = json!({"replicas": FEW, "updateStrategy": strategy});
        let mut set = super::set_of("v1alpha1", SET, &spec);
        let pod = &mut set["spec"]["template"]["spec"];
        pod["nodeName"] = json!(scene.node);
        pod["automountServiceAccountToken"] = json!(false);
        pod["containers"][0]["image"] = json!("app:0");
        sets.create(&PostParams::default(), &serde_json::from_value(set)?)
            .await?;
        let pods = Pods(scene.pods());
        Ok(Self { scene, sets, pods })
    }

    /// Returns the most pods that were there at once.
    async fn play(&self, rounds: u64) -> Result<usize> {
        let mut most = self.check(json!({}), FEW, "app:0", 0..=FEW).await?;
        for round in 1..=rounds {
            let (old, new) = (format!("app:{}", round - 1), format!("app:{round}"));
            let type_ = ["ReCreate", "InPlaceIfPossible"][usize::from(round % 2 == 0)];
            let containers = json!([{"name": "main", "image": new}]);
            let roll_out = json!({"updateStrategy": {"type": type_},
                "template": {"spec": {"containers": containers}}});
            let (many, few) = (json!({"replicas": MANY}), json!({"replicas": FEW}));
            for (edit, count, image, allowed) in [
                (many, MANY, &old, FEW..=MANY),
                (roll_out, MANY, &new, MANY - 1..=MANY + SURGE),
                (few, FEW, &new, FEW..=MANY),
            ] {
                most = most.max(self.check(edit, count, image, allowed).await?);
            }
        }
        Ok(most)
    }

    /// Edits the set, and waits until it has so many pods of this image and says so. There are never more nor fewer pods
    /// meanwhile. Returns the most that there were.
    async fn check(
        &self,
        spec: Value,
        count: usize,
        image: &str,
        allowed: RangeInclusive<usize>,
    ) -> Result<usize> {
        let history = History::of(&self.scene.client, &self.scene.ns).await?;
        let patch = Patch::Merge(json!({"spec": spec}));
        self.sets
            .patch(SET, &PatchParams::default(), &patch)
            .await?;
        self.pods.ready(count, image).await?;
        wait_for_object(&self.sets, SET, "its end", |set| {
            let status = set.status.clone().unwrap_or_default();
            let counts = [
                status.replicas,
                status.updated_replicas,
                status.updated_available_replicas,
            ];
            let is_whole = counts.iter().all(|one| usize::try_from(*one) == Ok(count));
            let is_newest = Some(status.observed_generation) == set.metadata.generation;
            let is_rolled_out = status.current_revision == status.update_revision;
            ensure!(is_whole && is_newest && is_rolled_out, "{status:?}");
            Ok(())
        })
        .await?;
        let is_active = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
        let there = history.count_at_once(is_active).await?;
        ensure!(
            allowed.contains(there.start()) && allowed.contains(there.end()),
            "{spec}: {there:?} pods were there, not {allowed:?}"
        );
        Ok(*there.end())
    }
}
