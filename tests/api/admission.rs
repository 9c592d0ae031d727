//! What the API server refuses, by the CRD alone: the same as leadsman's parser, at the same place.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::Status;
use kube::{Api, Error};
use leadsman_api::PodProbeMarker;
use leadsman_core::podprobe::samples::{Sample, Verdict, manual, samples};
use leadsman_tests::Scene;
use serde_json::{Value, json};

use crate::World;

/// Asks the API server about a marker without storing it.
async fn ask(scene: &Scene, mut marker: Value) -> Result<Result<(), Box<Status>>> {
    marker["metadata"]["namespace"] = json!(scene.ns);
    let marker: DynamicObject = serde_json::from_value(marker)?;
    let kind = ApiResource::erase::<PodProbeMarker>(&());
    let markers = Api::namespaced_with(scene.client.clone(), &scene.ns, &kind);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match markers.create(&dry_run, &marker).await {
        Ok(_) => Ok(Ok(())),
        Err(Error::Api(status)) if status.code == 422 => Ok(Err(status)),
        Err(other) => Err(other.into()),
    }
}

/// The places that a refusal names, as the parser writes them: errors of the schema have `labels.k` for `labels[k]`.
fn places(status: &Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes
        .map(|cause| cause.field.replace("abels.", "abels[") + "]")
        .collect()
}

/// A rule over a whole list cannot name the one item that breaks it, so its place may be above the parser's.
fn agree(place: &str, path: &str) -> bool {
    let place = place.trim_end_matches(']');
    let path = path.trim_end_matches(']');
    !place.is_empty() && (place.starts_with(path) || path.starts_with(place))
}

// PPM-15, PRB-2, PRB-3
pub(crate) async fn the_api_server_and_the_parser_agree(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "samples").await?;
    let mut apart = Vec::new();
    for Sample {
        name,
        marker,
        verdict,
    } in samples()
    {
        let answer = ask(&scene, marker).await.with_context(|| name.clone())?;
        let agreed = match (&verdict, &answer) {
            (Verdict::Accepted, Ok(())) | (Verdict::Unreadable, Err(_)) => true,
            (Verdict::Refused(path), Err(status)) => {
                places(status).iter().any(|place| agree(place, path))
            }
            _ => false,
        };
        if !agreed {
            apart.push(format!(
                "{name}: {verdict:?}, but the API server: {answer:?}"
            ));
        }
    }
    ensure!(apart.is_empty(), "{}", apart.join("\n"));
    Ok(())
}

// PPM-15
pub(crate) async fn all_errors_come_in_one_answer(world: Arc<World>) -> Result<()> {
    let scene = Scene::new(&world.client, "errors").await?;
    let mut marker = manual();
    let probe = &mut marker["spec"]["probes"][0];
    probe["containerName"] = json!("A");
    probe["podConditionType"] = json!("Ready");
    probe["probe"] = json!({"tcpSocket": {"port": 0, "host": "h"}, "exec": {}});
    probe["markerPolicy"][1]["labels"] = json!({"app": "x", "pod-template-hash": "y"});
    let Err(status) = ask(&scene, marker).await? else {
        bail!("it was accepted");
    };
    let found = places(&status);
    for path in [
        "spec.probes[0].containerName",
        "spec.probes[0].podConditionType",
        "spec.probes[0].probe",
        "spec.probes[0].probe.exec.command",
        "spec.probes[0].probe.tcpSocket.host",
        "spec.probes[0].probe.tcpSocket.port",
        "spec.probes[0].markerPolicy[1].labels",
        "spec.probes",
    ] {
        let named = found
            .iter()
            .any(|place| place.trim_end_matches(']') == path);
        ensure!(named, "{path} is not among {found:?}");
    }
    Ok(())
}
