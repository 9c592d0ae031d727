//! etcd is restored from a backup while a manager runs: resourceVersions go back, and the API server says so to no watch.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use leadsman_tests::wait_longer_for_answer;
use serde_json::json;
use tokio::time::Instant;

use crate::Installation;
use crate::sidecarset_webhook::{Injecting, create, make_namespace, names, set};

/// So many versions that the API server does not come as far again in the course of the test.
const VERSIONS: usize = 1000;
/// A watch is silent for 100 s before it is suspected.
const PATIENCE: Duration = Duration::from_secs(150);

// SCS-5, SDF-6
pub(crate) async fn after_etcd_was_restored_pods_get_the_sets_that_are_stored(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    bed.set("kept", json!({})).await?;
    back_up(&bed.installation).await?;

    advance(&bed).await?;
    bed.set("lost", json!({})).await?;
    let found = create(&client, "shop", json!({}), true).await?;
    ensure!(
        names(&found) == ["kept", "lost", "main"],
        "{:?}",
        names(&found)
    );
    restore(&bed.installation).await?;

    let restored = Instant::now();
    bed.sets()
        .create(&PostParams::default(), &set("later", json!({}))?)
        .await?;
    wait_longer_for_answer("the sets that are stored", PATIENCE, || async {
        let found = create(&client, "shop", json!({}), true).await?;
        let later = bed.sets().get("later").await?;
        let in_force = later.status.and_then(|status| status.in_force);
        let is_right = names(&found) == ["kept", "later", "main"] && in_force.is_some();
        Ok(is_right.then_some(()))
    })
    .await?;
    eprintln!("right {:.0?} after the restore", restored.elapsed());
    bed.installation.end().await;
    Ok(())
}

/// Writes that the backup does not have.
async fn advance(bed: &Injecting) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(bed.client(), "shop");
    let map = serde_json::from_value(json!({"metadata": {"name": "count"}}))?;
    maps.create(&PostParams::default(), &map).await?;
    for number in 0..VERSIONS {
        let patch = json!({"data": {"number": number.to_string()}});
        let patch = Patch::Merge(patch);
        maps.patch("count", &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

/// A copy of what etcd has stored.
async fn back_up(installation: &Installation) -> Result<()> {
    let folder = installation.plane.folder();
    stop_store(installation).await?;
    copy_folder(&folder.join("etcd"), &folder.join("etcd-backup"))?;
    start_store(installation).await
}

/// etcd with what it had stored at the backup.
async fn restore(installation: &Installation) -> Result<()> {
    let folder = installation.plane.folder();
    stop_store(installation).await?;
    std::fs::remove_dir_all(folder.join("etcd"))?;
    std::fs::rename(folder.join("etcd-backup"), folder.join("etcd"))?;
    start_store(installation).await
}

/// In the order of "Restoring an etcd cluster" in "Operating etcd clusters for Kubernetes": no API server runs meanwhile.
async fn stop_store(installation: &Installation) -> Result<()> {
    installation.plane.stop_apiserver().await?;
    installation.plane.stop_etcd().await
}

async fn start_store(installation: &Installation) -> Result<()> {
    installation.plane.start_etcd().await?;
    installation.plane.start_apiserver().await
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
