//! Probes of files in the volumes of real pods.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use leadsman_testkit::Cluster;
use leadsman_tests::History;
use leadsman_tests::room::{probe, target};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Room;

/// From a change of a file to the mark, at most: no period, which is a minute here.
const BOUND: Duration = Duration::from_millis(150);

/// A probe of file `state` in a volume, whose content is the label of the volume's name.
fn state_in(volume: &str) -> Value {
    let mut probe = probe(volume, json!({"periodSeconds": 60}));
    probe["file"] = json!({"volume": volume, "path": "state"});
    probe["output"] = json!({"matches": "^(?<state>[a-z]+)$"});
    probe["markerPolicy"] = json!([{"state": "Succeeded", "labels": {volume: "$(state)"}}]);
    probe
}

fn message_of(pod: &Pod, kind: &str) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let condition = conditions.iter().find(|one| one.type_ == kind)?;
    condition.message.clone()
}

// PRB-30, PRB-31, PRB-32
pub(crate) async fn a_file_marks_its_pod_at_once_and_no_link_leads_out_of_its_volume(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "files").await?;
    room.wait_until_alone().await?;
    let mut main = target("main");
    main["volumeMounts"] =
        json!([{"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"}]);
    let volumes = json!([{"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    let over = json!({"spec": {"containers": [main], "volumes": volumes}});
    let pod = room.pod("one", over.clone()).await?;
    // Another pod, whose file is none of the first one's business.
    let victim = room.pod("victim", over).await?;
    let run = async |pod: &str, script: &str| room.exec(pod, "main", &["sh", "-c", script]).await;
    run("victim", "echo stolen > /disk/secret").await?;
    let history = History::of(&cluster.client, "files").await?;
    let probes = json!([state_in("disk"), state_in("memory")]);
    room.scene.marker("m", probes).await?;
    let marks = |disk: Option<&str>, memory: Option<&str>| {
        let status = |one: Option<&str>| if one.is_some() { "True" } else { "False" };
        json!({"labels": {"disk": disk, "memory": memory},
            "conditions": {"t.io/disk": status(disk), "t.io/memory": status(memory)}})
    };
    room.scene.wait_for_marks("one", marks(None, None)).await?;
    run("one", "echo busy > /disk/state; echo idle > /memory/state").await?;
    let both = marks(Some("busy"), Some("idle"));
    room.scene.wait_for_marks("one", both).await?;

    let folder = |pod: &Pod| {
        let uid = pod.metadata.uid.as_deref().context("no uid")?;
        let folder = room.cluster.bed.pod_folders().join(uid);
        anyhow::Ok(folder.join("volumes/kubernetes.io~empty-dir/disk"))
    };
    let own = folder(&pod)?;
    let mut took = Vec::new();
    for turn in 0..9 {
        let word = if turn % 2 == 0 { "idle" } else { "busy" };
        let seen = room
            .scene
            .wait_for_marks("one", marks(Some(word), Some("idle")));
        // As a program in the pod would, without the time that it takes to start one there.
        let flip = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            fs::write(own.join("new"), word)?;
            let flipped = Instant::now();
            fs::rename(own.join("new"), own.join("state"))?;
            anyhow::Ok(flipped)
        };
        let (flipped, seen) = tokio::join!(flip, async { seen.await.map(|_| Instant::now()) });
        took.push(seen?.saturating_duration_since(flipped?));
    }
    took.sort();
    ensure!(
        took[took.len() / 2] <= BOUND,
        "flips took {took:?}, more than {BOUND:?}"
    );

    let uid = victim.metadata.uid.as_deref().unwrap_or_default();
    let link = format!("../../../../{uid}/volumes/kubernetes.io~empty-dir/disk/secret");
    run(
        "one",
        &format!("ln -s {link} /disk/new && mv /disk/new /disk/state"),
    )
    .await?;
    ensure!(
        fs::read_to_string(own.join("state"))? == "stolen\n",
        "the link leads there"
    );
    let failed = marks(None, Some("idle"));
    for (script, what) in [
        ("true", "symbolic link"),
        ("mkfifo /disk/new && mv /disk/new /disk/state", "FIFO"),
        (
            "mkdir /disk/new && rm /disk/state && mv /disk/new /disk/state",
            "folder",
        ),
    ] {
        run("one", script).await?;
        let what_it_says = |pod: &Pod| {
            let message = message_of(pod, "t.io/disk").unwrap_or_default();
            ensure!(message.contains(what), "it says {message:?}");
            Ok(())
        };
        room.scene.wait_for_marks("one", failed.clone()).await?;
        leadsman_tests::wait_for_object(&room.scene.pods(), "one", what, what_it_says).await?;
    }
    run("one", "rmdir /disk/state && echo busy > /disk/state").await?;
    let again = marks(Some("busy"), Some("idle"));
    room.scene.wait_for_marks("one", again).await?;
    history
        .never("a byte came out of another pod", |pod| {
            let labels = pod.metadata.labels.iter().flatten();
            let said = message_of(pod, "t.io/disk").into_iter();
            let mut texts = labels.map(|(_, value)| value.clone()).chain(said);
            texts.any(|text| text.contains("stolen"))
        })
        .await
}
