//! Hot upgrades: a sidecar hands its listening socket over to its successor, and nobody who calls it notices.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use leadsman_tests::{wait_for_answer, wait_for_object};

use super::{
    Api, Cluster, History, MAIN, Pod, Room, Set, Value, condition, containers, image, json,
    pods_with, release_that_answers, restarts, sidecar, status_of, target,
};

/// The two containers of the sidecar.
const PAIR: [&str; 2] = ["side-1", "side-2"];
/// So many requests of each client are enough to be caught by an upgrade.
pub(crate) const MANY: u64 = 200;

/// A sidecar that hands its socket over. The hook ends when the new container serves, and does nothing in an idle one.
fn hot(release: &str) -> Value {
    let mut side = sidecar(release);
    side["upgradeStrategy"] =
        json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": image("empty")});
    side["lifecycle"] = json!({"postStart": {"exec": {"command": ["/target", "handed-over"]}}});
    side["volumeMounts"] = json!([{"name": "handover", "mountPath": "/handover"}]);
    side
}

/// An application that calls its sidecar all the time: three clients, one of them with requests that take a while.
async fn create_pods(room: &Room, names: &[&str]) -> Result<()> {
    let mut main = target(MAIN);
    let (quick, slow) = (
        "http://127.0.0.1:7000/healthz",
        "http://127.0.0.1:7000/slow?ms=200",
    );
    main["args"] = json!(["load", quick, quick, slow]);
    // The application is asked for its counts once the pod is ready; without a probe, that is before it listens.
    main["readinessProbe"] = json!({
        "tcpSocket": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 10,
    });
    let changes = json!({"spec": {"containers": [main]}});
    pods_with(room, names, &changes).await
}

/// How often the application of a pod got which answer. Fails if a request did.
async fn answers(room: &Room, pod: &str) -> Result<BTreeMap<String, u64>> {
    let counts: Value = serde_json::from_str(&room.get(pod, "/counts").await?)?;
    ensure!(
        counts["failures"] == json!({}),
        "{pod}: requests failed: {counts}"
    );
    Ok(serde_json::from_value(counts["answers"].clone())?)
}

/// Waits until the application of a pod got so many answers from a release. Returns how many it got from all.
pub(crate) async fn wait_for_answers(
    room: &Room,
    pod: &str,
    release: &str,
    count: u64,
) -> Result<u64> {
    wait_for_answer("answers of the release", || async {
        let answers = answers(room, pod).await?;
        let enough = answers.get(release).is_some_and(|found| *found >= count);
        Ok(enough.then(|| answers.values().sum()))
    })
    .await
}

/// The image of a container of a pod, by its spec.
pub(crate) fn image_in<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let found = containers(pod).find(|it| it.name == container);
    found.and_then(|it| it.image.as_deref())
}

/// Fails unless a pod is at rest: one container of the pair works in this release, the other has the empty image, and the
/// annotations say so.
fn expect_at_rest(pod: &Pod, [working, idle]: [&str; 2], release: &str) -> Result<()> {
    let found = [working, idle].map(|name| image_in(pod, name));
    let (real, empty) = (image(release), image("empty"));
    ensure!(
        found == [Some(real.as_str()), Some(empty.as_str())],
        "{found:?}"
    );
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let text = |key: String| annotations.get(&key).map_or("", String::as_str);
    let named: Value = serde_json::from_str(text(
        "kruise.io/sidecarset-working-hotupgrade-container".to_owned(),
    ))?;
    ensure!(named == json!({"side": working}), "{annotations:?}");
    let version = |name: &str| text(format!("version.sidecarset.kruise.io/{name}"));
    let other = |name: &str| text(format!("versionalt.sidecarset.kruise.io/{name}"));
    ensure!(
        version(working) != "0"
            && version(idle) == "0"
            && other(working) == "0"
            && other(idle) == version(working),
        "{annotations:?}"
    );
    Ok(())
}

/// Waits until all pods are at rest, and their containers run as the spec says.
async fn wait_until_at_rest(
    room: &Room,
    pods: &[&str],
    pair: [&str; 2],
    release: &str,
) -> Result<()> {
    for name in pods {
        wait_for_object(&room.scene.pods(), name, "it at rest", |pod| {
            expect_at_rest(pod, pair, release)?;
            ensure!(condition(pod, "Ready").0 == "True", "{:?}", pod.status);
            // Of the empty image the runtime may tell another name: its content has several.
            let runs = status_of(pod, pair[0]).map(|it| it.image.as_str());
            ensure!(runs == image_in(pod, pair[0]), "{:?}", pod.status);
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// The events of a pod with a reason.
async fn events(room: &Room, pod: &str, reason: &str) -> Result<usize> {
    let events: Api<Event> = Api::namespaced(room.scene.client.clone(), &room.scene.ns);
    let fields = format!("involvedObject.name={pod},reason={reason}");
    let events = events.list(&ListParams::default().fields(&fields)).await?;
    let counts = events.items.iter().map(|event| event.count.unwrap_or(1));
    Ok(usize::try_from(counts.sum::<i32>())?)
}

// SCS-58, SCS-59, SCS-60, SCS-67, SDF-46
pub(crate) async fn a_hot_upgrade_hands_a_listening_socket_over_and_no_request_fails(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "hot-upgrade").await?;
    let volumes = json!([{"name": "handover", "emptyDir": {}}]);
    let spec = json!({"containers": [hot("1")], "volumes": volumes});
    let set = Set::create(&room, spec).await?;
    let names = ["a", "b"];
    create_pods(&room, &names).await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    let [first, second] = PAIR;
    wait_until_at_rest(&room, &names, [first, second], "1").await?;
    let mut before = Vec::new();
    for name in names {
        before.push(wait_for_answers(&room, name, "1", MANY).await?);
    }

    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.edit(json!({"containers": [hot("2")]})).await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    wait_until_at_rest(&room, &names, [second, first], "2").await?;
    for (name, before) in names.iter().zip(before) {
        let during = wait_for_answers(&room, name, "2", 1).await? - before;
        ensure!(during >= MANY, "{name}: {during} requests meanwhile");
        wait_for_answers(&room, name, "2", MANY).await?;
        wait_for_answer("the event of the reset", || async {
            let told = events(&room, name, "ResetContainerSucceed").await?;
            Ok((told == 1).then_some(()))
        })
        .await?;
    }
    // The first one was kept until the second one had taken over, in one pod at a time.
    let is_real = |pod: &Pod, name: &str| image_in(pod, name) != Some(image("empty").as_str());
    let has_taken_over =
        |pod: &Pod| status_of(pod, second).is_some_and(|it| it.ready && it.image == image("2"));
    let wrong = |pod: &Pod| !is_real(pod, first) && !has_taken_over(pod);
    history.never("a pod without a server", wrong).await?;
    let both = |pod: &Pod| is_real(pod, first) && is_real(pod, second);
    let most = history.most_at_once(both).await?;
    ensure!(most == 1, "{most} pods were upgraded at the same time");

    // Paused as soon as the first pod has begun: that one is finished, the other one stays. What the upgrade before it looked
    // like is no beginning of this one.
    let history = History::of(&cluster.client, &room.scene.ns).await?;
    set.edit(json!({"containers": [hot("1")]})).await?;
    let begun = |pod: &Pod| image_in(pod, first) == Some(image("1").as_str()) && both(pod);
    history.wait_for_version("an upgrade", begun).await?;
    set.edit(json!({"updateStrategy": {"paused": true}}))
        .await?;
    set.wait_for_counts([2, 1, 2, 1]).await?;
    set.edit(json!({"updateStrategy": {"paused": false}}))
        .await?;
    set.wait_for_counts([2, 2, 2, 2]).await?;
    wait_until_at_rest(&room, &names, [first, second], "1").await?;
    for name in names {
        let pod = room.scene.pods().get(name).await?;
        let found = [first, second, MAIN].map(|it| restarts(&pod, it));
        ensure!(found == [2, 2, 0], "{name}: {found:?} restarts");
        let so_far = answers(&room, name).await?;
        let of_first = so_far.get("1").copied().unwrap_or_default();
        wait_for_answers(&room, name, "1", of_first + MANY).await?;
        ensure!(release_that_answers(&room, name).await? == "1", "{name}");
    }
    Ok(())
}
