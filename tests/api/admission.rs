//! What the API server refuses, by the CRD alone: the same as leadsman's parser, at the same places.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::core::response::StatusCause;
use kube::{Api, Client, Error};
use leadsman_api::PodProbeMarker;
use leadsman_core::podprobe::samples::{
    Sample, SampleVerdict, all_samples, manual_marker, marker_mutations,
};
use leadsman_core::podprobe::{Compatibility, Marker};
use leadsman_tests::Scene;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Installation;

/// Questions on their way to the API server at once.
pub(crate) const BESIDE: usize = 16;
/// How many generated markers are asked about.
const GENERATED: usize = 2000;

/// Who asks, and where.
#[derive(Clone)]
struct Asker {
    client: Client,
    ns: String,
}

impl Asker {
    fn of(scene: &Scene) -> Self {
        Self {
            client: scene.client.clone(),
            ns: scene.ns.clone(),
        }
    }

    /// Asks the API server about a marker without storing it: what it would store, or why it would not.
    async fn ask(&self, mut marker: Value) -> Result<Result<Value, Box<Status>>> {
        marker["metadata"]["namespace"] = json!(self.ns);
        let marker: DynamicObject = serde_json::from_value(marker)?;
        let kind = ApiResource::erase::<PodProbeMarker>(&());
        let markers = Api::namespaced_with(self.client.clone(), &self.ns, &kind);
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match markers.create(&dry_run, &marker).await {
            Ok(stored) => Ok(Ok(serde_json::to_value(stored)?)),
            Err(Error::Api(status)) if status.code == 422 => Ok(Err(status)),
            Err(other) => Err(other.into()),
        }
    }
}

/// What the parser says of a marker.
#[derive(Debug)]
enum Parsed {
    Accepted,
    Refused(BTreeSet<String>),
    Unreadable,
}

fn parse(marker: &Value) -> Parsed {
    let Ok(marker) = PodProbeMarker::deserialize(marker) else {
        return Parsed::Unreadable;
    };
    match Marker::parse(&marker, Compatibility::Kubernetes) {
        Ok(_) => Parsed::Accepted,
        Err(errors) => Parsed::Refused(errors.into_iter().map(|error| error.path).collect()),
    }
}

/// What a refusal says.
pub(crate) struct Refusal {
    /// As the parser writes them.
    pub(crate) places: BTreeSet<String>,
    /// An error of the schema kept the rules from being asked.
    pub(crate) is_partial: bool,
}

impl Refusal {
    pub(crate) fn of(status: &Status) -> Self {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let skipped = "some validation rules were not checked";
        let (skipped, causes): (Vec<_>, Vec<_>) =
            causes.partition(|cause| cause.message.contains(skipped));
        Self {
            places: causes.into_iter().map(named_place).collect(),
            is_partial: !skipped.is_empty(),
        }
    }
}

/// Of a number that is too large for its format Kubernetes 1.36 names the place in the message alone.
fn named_place(cause: &StatusCause) -> String {
    let in_message = cause.message.rsplit_once(" in ");
    match in_message.filter(|_| cause.field == "<nil>") {
        Some((_, field)) => place(field),
        None => place(&cause.field),
    }
}

/// Errors of the schema have `labels.k` for `labels[k]`.
fn place(field: &str) -> String {
    let map = ["].labels.", "].annotations.", ".matchLabels."]
        .into_iter()
        .filter_map(|map| field.find(map).map(|at| at + map.len()))
        .min();
    match map {
        Some(at) => format!("{}[{}]", &field[..at - 1], &field[at..]),
        None => field.to_owned(),
    }
}

/// What the two disagree about, if they do.
fn disagreement(marker: &Value, answer: &Result<Value, Box<Status>>) -> Option<String> {
    let status = match answer {
        // What is read is what was stored, and that is without what the API server dropped.
        Ok(stored) => match parse(stored) {
            Parsed::Accepted => return None,
            other => return Some(format!("the API server takes it, but {other:?}")),
        },
        Err(status) => status,
    };
    let refusal = Refusal::of(status);
    let agreed = match parse(marker) {
        Parsed::Unreadable => true,
        Parsed::Accepted => false,
        Parsed::Refused(places) if refusal.is_partial => places.is_superset(&refusal.places),
        Parsed::Refused(places) => places == refusal.places,
    };
    let parsed = parse(marker);
    (!agreed).then(|| {
        format!(
            "{parsed:?}, but the API server: {:?}: {}",
            refusal.places, status.message
        )
    })
}

// PPM-15, PRB-2, PRB-3
pub(crate) async fn the_api_server_and_the_parser_agree(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "samples").await?;
    let asker = Asker::of(&scene);
    let mut apart = Vec::new();
    for Sample {
        name,
        marker,
        verdict,
    } in all_samples()
    {
        let answer = asker.ask(marker.clone()).await.context(name.clone())?;
        let as_told = match (&verdict, &answer) {
            (SampleVerdict::Accepted, Ok(_)) | (SampleVerdict::Unreadable, Err(_)) => true,
            (SampleVerdict::Refused(path), Err(status)) => {
                Refusal::of(status).places.contains(path)
            }
            _ => false,
        };
        let told = (!as_told).then(|| format!("{verdict:?}, but the API server: {answer:?}"));
        for told in told.into_iter().chain(disagreement(&marker, &answer)) {
            apart.push(format!("{name:.80}: {told:.800}"));
        }
    }
    ensure!(apart.is_empty(), "{}", apart.join("\n"));
    Ok(())
}

/// Another seed each time; `LEADSMAN_TEST_SEED` repeats one.
pub(crate) fn seed() -> Result<u64> {
    match std::env::var("LEADSMAN_TEST_SEED") {
        Ok(seed) => seed.parse().context("LEADSMAN_TEST_SEED"),
        Err(_) => Ok(leadsman_process::RandomSource::from_entropy()
            .fork_rng()
            .u64(..)),
    }
}

// PPM-15
pub(crate) async fn generated_markers_get_one_verdict_from_both(
    installation: Arc<Installation>,
) -> Result<()> {
    let seed = seed()?;
    let scene = Scene::new(&installation.client, "generated").await?;
    let asker = Asker::of(&scene);
    let answers = futures::stream::iter(marker_mutations(seed).take(GENERATED))
        .map(|marker| {
            let asker = asker.clone();
            async move {
                let answer = asker.ask(marker.clone()).await;
                let answer = answer.with_context(|| format!("seed {seed}: {marker}"))?;
                let apart = disagreement(&marker, &answer);
                anyhow::Ok((
                    answer.is_ok(),
                    apart.map(|apart| {
                        format!("{apart:.1500}\n  {:.1500}", marker["spec"].to_string())
                    }),
                ))
            }
        })
        .buffer_unordered(BESIDE);
    let answers: Vec<_> = answers.try_collect().await?;
    let accepted = answers.iter().filter(|(accepted, _)| *accepted).count();
    eprintln!("seed {seed}: {accepted} of {GENERATED} generated markers were accepted");
    ensure!(
        (GENERATED / 10..GENERATED / 10 * 9).contains(&accepted),
        "seed {seed}: {accepted} of {GENERATED} accepted tell little"
    );
    let apart: Vec<_> = answers.into_iter().filter_map(|(_, apart)| apart).collect();
    ensure!(
        apart.is_empty(),
        "seed {seed}, {} of {GENERATED} apart:\n{}",
        apart.len(),
        apart
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
    Ok(())
}

// PPM-15
pub(crate) async fn all_errors_come_in_one_answer(installation: Arc<Installation>) -> Result<()> {
    let scene = Scene::new(&installation.client, "errors").await?;
    let mut marker = manual_marker();
    let probe = &mut marker["spec"]["probes"][0];
    probe["name"] = json!("a#b");
    probe["containerName"] = json!("");
    probe["podConditionType"] = json!("KruisePodReady");
    probe["probe"] = json!({"tcpSocket": {"port": 0, "host": "h"}, "exec": {}});
    probe["markerPolicy"][1]["labels"] = json!({"app": "x", "pod-template-hash": "y"});
    let Err(status) = Asker::of(&scene).ask(marker).await? else {
        bail!("it was accepted");
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let told: Vec<_> = causes
        .map(|cause| (cause.field.as_str(), cause.message.as_str()))
        .collect();
    // Where, and the value that was wrong.
    for (path, value) in [
        ("spec.probes", "app"),
        ("spec.probes[0].name", "a#b"),
        ("spec.probes[0].containerName", "empty"),
        ("spec.probes[0].podConditionType", "KruisePodReady"),
        ("spec.probes[0].probe", "exactly one"),
        ("spec.probes[0].probe.exec.command", "program"),
        ("spec.probes[0].probe.tcpSocket.host", "'h'"),
        ("spec.probes[0].probe.tcpSocket.port", "0 must"),
        ("spec.probes[0].markerPolicy[1].labels", "pod-template-hash"),
    ] {
        let named = told
            .iter()
            .any(|(field, message)| *field == path && message.contains(value));
        ensure!(named, "{path} with {value} is not among {told:#?}");
    }
    ensure!(told.len() == 9, "{told:#?}");
    Ok(())
}

/// Markers as OpenKruise's users have them, which its webhook takes.
// PPM-15
pub(crate) async fn what_openkruise_accepts_is_accepted(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "accepted").await?;
    let asker = Asker::of(&scene);
    for (pointer, value) in [
        ("/spec/probes/0/name", json!("Ready")),
        ("/spec/probes/0/name", json!("idle/v1.2:blue")),
        ("/spec/probes/0/containerName", json!("Main_1")),
        (
            "/spec/probes/0/markerPolicy/0/annotations",
            json!({"controller.kubernetes.io/ingress": "x", "k8s.io/a": "y", "kubernetes.io/b": "z"}),
        ),
        (
            "/spec/probes/0/markerPolicy/0/labels",
            json!({"apps.kruise.io/specified-delete": "true", "node.kubernetes.io/x": ""}),
        ),
        (
            "/spec/probes/0/probe",
            json!({"httpGet": {"port": "web", "path": "/ok?a=%zz", "scheme": "HTTP"}, "periodSeconds": 86400}),
        ),
    ] {
        let mut marker = manual_marker();
        let place = marker.pointer_mut(pointer).context(pointer)?;
        *place = value.clone();
        let answer = asker.ask(marker).await?;
        ensure!(answer.is_ok(), "{pointer} {value}: {answer:?}");
    }
    Ok(())
}

// PPM-15
pub(crate) async fn an_absent_list_of_the_selector_is_an_empty_one(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "same-selector").await?;
    let expressions =
        |values: Value| json!([{"key": "app", "operator": "Exists", "values": values}]);
    let first = json!({"matchExpressions": expressions(Value::Null)});
    let mut marker = manual_marker();
    marker["metadata"] = json!({"name": "m", "namespace": scene.ns});
    marker["spec"]["selector"] = first.clone();
    let markers = scene.markers();
    let marker = serde_json::from_value(marker)?;
    markers.create(&PostParams::default(), &marker).await?;
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let edit = async |selector: Value| {
        let patch = json!([{"op": "replace", "path": "/spec/selector", "value": selector}]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch)?);
        anyhow::Ok(markers.patch("m", &dry_run, &patch).await)
    };
    for same in [
        first,
        json!({"matchLabels": {}, "matchExpressions": expressions(json!([]))}),
    ] {
        let answer = edit(same.clone()).await?;
        ensure!(answer.is_ok(), "{same} is another selector: {answer:?}");
    }
    for other in [
        json!({"matchExpressions": expressions(Value::Null), "matchLabels": {"a": "b"}}),
        json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}),
        json!({"matchLabels": {"app": "game-server"}}),
    ] {
        let answer = edit(other.clone()).await?;
        let told = answer.err().map(|error| error.to_string());
        ensure!(
            told.as_ref()
                .is_some_and(|told| told.contains("spec.selector: ") && told.contains("immutable")),
            "{other}: {told:?}"
        );
    }
    Ok(())
}
