//! CRDs that are older than the chart's, with objects of them in place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client};
use leadsman_testkit::Release;
use leadsman_testkit::release::CHART;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::room::{flip, roles_were, values};
use crate::{Room, install, marked_pods};

/// The CRDs, and the fields that the older ones do not have: those that leadsman adds to OpenKruise's.
const CRDS: [(&str, &[&str]); 2] = [
    ("podprobemarkers", &["conditions"]),
    (
        "nodepodprobes",
        &["revision", "startedContainerID", "containerID"],
    ),
];
/// Nor do they have this column.
const COLUMN: &str = "Ready";

fn file_of(chart: &Path, crd: &str) -> PathBuf {
    chart.join(format!("files/crds/apps.kruise.io_{crd}.yaml"))
}

fn read(chart: &Path, crd: &str) -> Result<CustomResourceDefinition> {
    Ok(serde_norway::from_str(&std::fs::read_to_string(file_of(
        chart, crd,
    ))?)?)
}

/// Our chart with older CRDs, in the bed's folder.
async fn older_chart(release: &Release) -> Result<PathBuf> {
    let chart = release.bed.folder().join("older-chart");
    let copied = Command::new("cp").args(["-r", CHART]).arg(&chart).status();
    ensure!(copied.await?.success(), "the chart cannot be copied");
    for (crd, fields) in CRDS {
        let mut older = serde_json::to_value(read(&chart, crd)?)?;
        take_away(&mut older, fields);
        std::fs::write(file_of(&chart, crd), serde_norway::to_string(&older)?)?;
    }
    Ok(chart)
}

/// Removes the fields wherever a schema has them, and the column.
fn take_away(value: &mut Value, fields: &[&str]) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                match (key.as_str(), &mut *value) {
                    ("properties", Value::Object(properties)) => {
                        properties.retain(|name, _| !fields.contains(&name.as_str()));
                    }
                    ("additionalPrinterColumns", Value::Array(columns)) => {
                        columns.retain(|column| column["name"] != COLUMN);
                    }
                    _ => {}
                }
                take_away(value, fields);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| take_away(item, fields)),
        _ => {}
    }
}

async fn installed(client: &Client, crd: &str) -> Result<CustomResourceDefinition> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    Ok(crds.get(&format!("{crd}.apps.kruise.io")).await?)
}

/// Holds the installed CRDs to those of this chart.
async fn crds_are_of(release: &Release, chart: &Path) -> Result<()> {
    for (name, _) in CRDS {
        let (file, found) = (read(chart, name)?, installed(&release.client, name).await?);
        ensure!(found.spec.versions == file.spec.versions, "{name} differs");
        let status = found.status.unwrap_or_default();
        let stored = status.stored_versions.unwrap_or_default();
        ensure!(stored == ["v1alpha1"], "{name} is stored as {stored:?}");
    }
    Ok(())
}

/// The marker, with its generation, and the nodes' objects: by uid, each is the one that it was.
async fn objects(room: &Room) -> Result<Value> {
    let marker = room.scene.markers().get("m").await?;
    let (uid, generation) = (&marker.metadata.uid, marker.metadata.generation);
    let nodes = room.scene.probes().list(&ListParams::default()).await?;
    let nodes = nodes.items.into_iter().map(|it| it.metadata.uid);
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort();
    Ok(json!([uid, generation, marker.spec, nodes]))
}

pub(crate) async fn older_crds_are_upgraded_with_objects_in_place(
    release: Arc<Release>,
) -> Result<()> {
    let older = older_chart(&release).await?;
    release
        .install_from(&older, &values(json!({})), &[])
        .await?;
    release.wait_for_rollout().await?;
    crds_are_of(&release, &older).await?;
    let (room, history) = marked_pods(&release, "older-crds").await?;
    let marker = room.scene.markers().get("m").await?;
    let conditions = marker.status.unwrap_or_default().conditions;
    ensure!(conditions.is_empty(), "not dropped: {conditions:?}");
    let before = objects(&room).await?;
    install(&release, json!({})).await?;
    crds_are_of(&release, Path::new(CHART)).await?;
    room.scene.wait_for_reason("m", "Probing").await?;
    let after = objects(&room).await?;
    ensure!(after == before, "{after}, before {before}");
    flip(&room, "first", false).await?;
    // And back: a rollback takes the fields away, and no mark with them.
    release.helm(&["rollback", "leadsman"]).await?;
    release.wait_for_rollout().await?;
    crds_are_of(&release, &older).await.context("rolled back")?;
    let after = objects(&room).await?;
    ensure!(after == before, "{after}, before {before}");
    flip(&room, "second", false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}
