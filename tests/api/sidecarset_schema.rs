//! What the API server makes of a `SidecarSet` by the CRD alone: the same as leadsman's parser, nothing lost, and a cluster can
//! come from OpenKruise and go back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::core::Status;
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Error};
use leadsman_core::sidecarset::samples::{
    fullest, is_found_by_the_parser_alone, mutations, samples, smallest,
};
use leadsman_core::sidecarset::set::SidecarSet;
use leadsman_tests::wait_for_answer;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Installation;
use crate::admission::{BESIDE, Refusal, seed};

const CRD: &str = "sidecarsets.apps.kruise.io";
/// How many generated sets are asked about.
const GENERATED: usize = 1000;

async fn wait_until_served(client: &Client) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let established = await_condition(crds, CRD, conditions::is_crd_established());
    tokio::time::timeout(Duration::from_secs(30), established)
        .await
        .context("the CRD was not established within 30 s")??;
    Ok(())
}

/// Sets in a version.
fn sets(client: &Client, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apps.kruise.io", version, "SidecarSet");
    Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
}

fn object(set: &Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(set.clone())?)
}

/// What the API server would store, or why it would not.
type Answer = Result<Value, Box<Status>>;

async fn ask(client: &Client, set: &Value) -> Result<Answer> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let sets = sets(client, "v1beta1");
    match sets.create(&dry_run, &object(set)?).await {
        Ok(stored) => Ok(Ok(serde_json::to_value(stored)?)),
        Err(Error::Api(status)) if status.code == 422 => Ok(Err(status)),
        Err(other) => Err(other.into()),
    }
}

/// What the parser says of a set: it itself, or path and message of each error; None if it cannot be read.
fn parse(set: &Value) -> Option<Result<SidecarSet, Vec<(String, String)>>> {
    let set = leadsman_api::SidecarSet::deserialize(set).ok()?;
    let errors = |errors: Vec<leadsman_core::cluster::Invalid>| {
        let errors = errors.into_iter();
        errors.map(|error| (error.path, error.message)).collect()
    };
    Some(SidecarSet::parse(&set).map_err(errors))
}

/// What the two disagree about, if they do.
fn disagreement(set: &Value, answer: &Answer) -> Option<String> {
    match (parse(set), answer) {
        (_, Ok(stored)) => match parse(stored) {
            Some(Ok(_)) => None,
            Some(Err(errors)) => {
                let rest = errors.into_iter();
                let rest: Vec<_> = rest
                    .filter(|(_, message)| !is_found_by_the_parser_alone(message))
                    .collect();
                (!rest.is_empty()).then(|| format!("the API server takes it, but {rest:?}"))
            }
            None => Some("the API server takes it, but it cannot be read".to_owned()),
        },
        (None, Err(_)) => None,
        // serde reads a list as the fields of a structure, one after another.
        (_, Err(status))
            if status
                .message
                .contains(r#"must be of type object: "array""#) =>
        {
            None
        }
        (Some(Ok(_)), Err(status)) => Some(format!("the parser takes it, but: {}", status.message)),
        (Some(Err(errors)), Err(status)) => places_differ(&errors, status),
    }
}

/// Each place that one of the two names is one that the other names, or contains it, or is contained in it: CEL names a list
/// where the parser names its item.
fn places_differ(errors: &[(String, String)], status: &Status) -> Option<String> {
    let refusal = Refusal::of(status);
    let all: BTreeSet<_> = errors.iter().map(|(path, _)| path.as_str()).collect();
    let must: BTreeSet<_> = errors
        .iter()
        .filter(|(_, message)| !is_found_by_the_parser_alone(message))
        .map(|(path, _)| path.as_str())
        .collect();
    // Of several duplicates in a list the API server names one.
    let lists = refusal.places.iter().filter(|place| place.ends_with(']'));
    let lists = lists.filter_map(|item| Some(item.rsplit_once('[')?.0));
    let named: BTreeSet<_> = refusal
        .places
        .iter()
        .map(String::as_str)
        .chain(lists)
        .collect();
    let is_unmatched = |place: &&str, others: &BTreeSet<&str>| {
        !others.iter().any(|other| is_related(place, other))
    };
    let mut unmatched: Vec<_> = named
        .iter()
        .filter(|place| is_unmatched(place, &all))
        .collect();
    if !refusal.is_partial {
        unmatched.extend(must.iter().filter(|place| is_unmatched(place, &named)));
    }
    (!unmatched.is_empty()).then(|| {
        format!(
            "{unmatched:?} of {errors:?} and of the API server: {}",
            status.message
        )
    })
}

fn is_related(one: &str, other: &str) -> bool {
    let (outer, inner) = if one.len() < other.len() {
        (one, other)
    } else {
        (other, one)
    };
    inner
        .strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

// SCS-69, SCS-70, SCS-71, SCS-72, SCS-73, SCS-74, SCS-76, SDF-9, SDF-20, SDF-21, SDF-25, SDF-54
pub(crate) async fn generated_sets_get_one_verdict_from_both(
    installation: Arc<Installation>,
) -> Result<()> {
    installation.install_sidecar_set_crd().await?;
    let seed = seed()?;
    let all = samples().into_iter().chain(mutations(seed).take(GENERATED));
    let answers = futures::stream::iter(all)
        .map(|set| {
            let client = installation.client.clone();
            async move {
                let answer = ask(&client, &set).await;
                let answer = answer.with_context(|| format!("seed {seed}: {set}"))?;
                let apart = disagreement(&set, &answer);
                let apart =
                    apart.map(|apart| format!("{apart:.1500}\n  {:.1500}", set.to_string()));
                anyhow::Ok((answer.is_ok(), apart))
            }
        })
        .buffer_unordered(BESIDE);
    let answers: Vec<_> = answers.try_collect().await?;
    let accepted = answers.iter().filter(|(accepted, _)| *accepted).count();
    eprintln!(
        "seed {seed}: {accepted} of {} sets were accepted",
        answers.len()
    );
    ensure!(
        (GENERATED / 10..GENERATED / 10 * 9).contains(&accepted),
        "seed {seed}: {accepted} accepted tell little"
    );
    let apart: Vec<_> = answers.into_iter().filter_map(|(_, apart)| apart).collect();
    ensure!(
        apart.is_empty(),
        "seed {seed}, {} apart:\n{}",
        apart.len(),
        apart.into_iter().take(10).collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

/// Fields that the API server fills in are those that the parser fills in.
// SCS-3, SCS-4
pub(crate) async fn what_the_api_server_fills_in_changes_no_hash(
    installation: Arc<Installation>,
) -> Result<()> {
    installation.install_sidecar_set_crd().await?;
    let mut compared = 0;
    for set in samples() {
        let (Some(Ok(sent)), Ok(stored)) = (parse(&set), ask(&installation.client, &set).await?)
        else {
            continue;
        };
        let spec = &stored["spec"];
        ensure!(
            spec["updateStrategy"]["partition"].is_number()
                || set["spec"]["updateStrategy"]["partition"].is_string(),
            "{spec}"
        );
        let Some(Ok(stored)) = parse(&stored) else {
            bail!("{stored} is not accepted");
        };
        ensure!(sent.hashes == stored.hashes, "{set}");
        ensure!(sent.update == stored.update, "{set}");
        compared += 1;
    }
    ensure!(compared >= 10, "{compared} sets were compared");
    Ok(())
}

// SCS-1, SCS-2, SDF-29, SDF-31
pub(crate) async fn either_version_keeps_what_the_other_has(
    installation: Arc<Installation>,
) -> Result<()> {
    installation.install_sidecar_set_crd().await?;
    let mut set = fullest();
    set["metadata"]["name"] = json!("either-version");
    set["spec"]["namespace"] = json!("shop");
    set["spec"]["namespaceSelector"].take();
    let [newer, older] = ["v1beta1", "v1alpha1"].map(|version| sets(&installation.client, version));
    let created = newer.create(&PostParams::default(), &object(&set)?).await?;
    // As `kubectl edit` of the other version does.
    let read = older.get("either-version").await?;
    ensure!(read.data["spec"] == created.data["spec"], "{read:?}");
    older
        .replace("either-version", &PostParams::default(), &read)
        .await?;
    let spec = newer.get("either-version").await?.data["spec"].clone();
    for (pointer, value) in [
        ("/namespace", json!("shop")),
        ("/customVersion", json!("v2")),
        ("/containers/1/fieldOfALaterVersion", json!({"a": [1]})),
        ("/containers/0/resources/requests/cpu", json!(0.1)),
    ] {
        ensure!(spec.pointer(pointer) == Some(&value), "{pointer} of {spec}");
    }
    let columns = ["get", "sidecarsets", "either-version"];
    let columns = installation.plane.kubectl(&columns).await?;
    let header: Vec<_> = columns
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    ensure!(
        header == ["NAME", "MATCHED", "UPDATED", "READY", "AGE"],
        "{header:?}"
    );
    older
        .delete("either-version", &DeleteParams::default())
        .await?;
    Ok(())
}

/// No manager acts on sets here, so a set is written and paused without one.
// SCS-61, SCS-75, SDF-23, SDF-54
pub(crate) async fn what_a_set_must_keep_is_kept(installation: Arc<Installation>) -> Result<()> {
    installation.install_sidecar_set_crd().await?;
    let sets = sets(&installation.client, "v1beta1");
    let mut set = fullest();
    set["metadata"]["name"] = json!("must-keep");
    sets.create(&PostParams::default(), &object(&set)?).await?;
    let edit = async |patch: Value| {
        let patch: Patch<Value> = Patch::Json(serde_json::from_value(patch)?);
        anyhow::Ok(
            sets.patch("must-keep", &PatchParams::default(), &patch)
                .await,
        )
    };
    let upgrade = "/spec/containers/0/upgradeStrategy/upgradeType";
    let refused = edit(json!([{"op": "replace", "path": upgrade, "value": "ColdUpgrade"}])).await?;
    let told = refused
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(
        told.contains("spec.containers[0].upgradeStrategy.upgradeType")
            && told.contains("cannot be changed"),
        "{told}"
    );
    for allowed in [
        json!([{"op": "add", "path": "/spec/updateStrategy/paused", "value": true}]),
        json!([{"op": "add", "path": "/spec/containers/-", "value": {"name": "new", "image": "b"}}]),
        json!([{"op": "remove", "path": "/spec/containers/0"}]),
    ] {
        edit(allowed.clone())
            .await?
            .with_context(|| allowed.to_string())?;
    }
    sets.delete("must-keep", &DeleteParams::default()).await?;
    Ok(())
}

// SCS-76, SDF-28
pub(crate) async fn all_errors_of_a_set_come_in_one_answer(
    installation: Arc<Installation>,
) -> Result<()> {
    installation.install_sidecar_set_crd().await?;
    let mut set = smallest();
    set["spec"]["selector"] = json!({});
    set["spec"]["customVersion"] = json!("a/b");
    set["spec"]["updateStrategy"] =
        json!({"type": "OnDelete", "maxUnavailable": 0, "partition": -1});
    set["spec"]["containers"] = json!([
        {"name": "A", "image": " x", "podInjectPolicy": "Within", "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        {"name": "b", "image": "x", "upgradeStrategy": {"upgradeType": "HotUpgrade"}},
        {"name": "c", "image": "x", "resourcesPolicy": {
            "targetContainersMode": "min", "targetContainersNameRegex": "[a", "resourcesExpr": {},
        }},
    ]);
    set["spec"]["initContainers"] = json!([{"name": "d", "image": "x", "resourcesPolicy": {
        "targetContainersMode": "max", "resourcesExpr": {"limits": {"cpu": "cpu"}},
    }}]);
    let Err(status) = ask(&installation.client, &set).await? else {
        bail!("it was accepted");
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let told: Vec<_> = causes
        .map(|cause| (cause.field.as_str(), cause.message.as_str()))
        .collect();
    // Where, and the value that was wrong.
    let expected = [
        ("spec.selector", "empty"),
        ("spec.customVersion", "'a/b'"),
        ("spec.updateStrategy.type", "'OnDelete'"),
        ("spec.updateStrategy.maxUnavailable", "must not be 0"),
        ("spec.updateStrategy.partition", "-1 must"),
        ("spec.containers[0].name", "'A'"),
        ("spec.containers[0].image", "' x'"),
        ("spec.containers[0].podInjectPolicy", "'Within'"),
        ("spec.containers", "[\"A\"] has volumeMounts"),
        (
            "spec.containers[1].upgradeStrategy.hotUpgradeEmptyImage",
            "empty",
        ),
        (
            "spec.containers[2].resourcesPolicy.targetContainersMode",
            "'min'",
        ),
        (
            "spec.containers[2].resourcesPolicy.targetContainersNameRegex",
            "missing closing ]: `[a`",
        ),
        (
            "spec.containers[2].resourcesPolicy.resourcesExpr",
            "neither limits nor requests",
        ),
        (
            "spec.initContainers[0].resourcesPolicy",
            "restartPolicy: Always",
        ),
    ];
    for (path, value) in expected {
        let mut told_of = told.iter();
        ensure!(
            told_of.any(|(field, message)| *field == path && message.contains(value)),
            "{path} with {value} is not among {told:#?}"
        );
    }
    ensure!(told.len() == expected.len(), "{told:#?}");
    Ok(())
}

/// CRDs like OpenKruise's: before 1.9 one version, from 1.9 on two with a conversion that nobody answers any more.
fn theirs(versions: &[&str], conversion: Option<Value>) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let versions = versions.iter().rev().enumerate().map(|(index, name)| {
        json!({
            "name": name, "served": true, "storage": index == 0, "schema": schema, "subresources": {"status": {}},
        })
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD},
        "spec": {
            "group": "apps.kruise.io",
            "scope": "Cluster",
            "names": {"kind": "SidecarSet", "listKind": "SidecarSetList", "plural": "sidecarsets", "singular": "sidecarset"},
            "versions": versions.collect::<Vec<_>>(),
            "conversion": conversion.unwrap_or(json!({"strategy": "None"})),
        },
    })
}

/// The page on migration has the patch.
// SCS-2, SDF-29
pub(crate) async fn the_crd_goes_over_that_of_openkruise_and_back(
    installation: Arc<Installation>,
) -> Result<()> {
    let crds: Api<CustomResourceDefinition> = Api::all(installation.client.clone());
    let told = before_1_9(&installation, &crds).await;
    remove(&crds).await?;
    told.context("before 1.9")?;
    let told = from_1_9(&installation, &crds).await;
    remove(&crds).await?;
    told.context("from 1.9 on")?;
    installation.install_sidecar_set_crd().await
}

async fn remove(crds: &Api<CustomResourceDefinition>) -> Result<()> {
    let deleted = crds.delete(CRD, &DeleteParams::default()).await;
    if !matches!(&deleted, Err(Error::Api(status)) if status.code == 404) {
        deleted?;
    }
    wait_for_answer("no CRD", || async {
        Ok(crds.get_opt(CRD).await?.is_none().then_some(()))
    })
    .await
}

async fn begin_with(
    installation: &Installation,
    crds: &Api<CustomResourceDefinition>,
    theirs: &Value,
    version: &str,
) -> Result<()> {
    remove(crds).await?;
    crds.create(
        &PostParams::default(),
        &serde_json::from_value(theirs.clone())?,
    )
    .await?;
    wait_until_served(&installation.client).await?;
    let mut set = smallest();
    set["apiVersion"] = json!(format!("apps.kruise.io/{version}"));
    let set = object(&set)?;
    let sets = sets(&installation.client, version);
    // The API server answers 404 for a moment after the CRD is established.
    wait_for_answer("a set is stored", || async {
        let created = sets.create(&PostParams::default(), &set).await;
        Ok(created.is_ok().then_some(()))
    })
    .await
}

async fn before_1_9(
    installation: &Installation,
    crds: &Api<CustomResourceDefinition>,
) -> Result<()> {
    let theirs = theirs(&["v1alpha1"], None);
    begin_with(installation, crds, &theirs, "v1alpha1").await?;
    installation.install_sidecar_set_crd().await?;
    let edit = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    let newer = sets(&installation.client, "v1beta1");
    wait_for_answer("the set in the other version", || async {
        let edited = newer
            .patch("log-agent", &PatchParams::default(), &edit)
            .await;
        Ok(edited.is_ok().then_some(()))
    })
    .await?;
    // Stored in the version that the older CRD has, so that one is accepted.
    crate::lifecycle::set_spec(crds, CRD, &theirs["spec"]).await
}

async fn from_1_9(installation: &Installation, crds: &Api<CustomResourceDefinition>) -> Result<()> {
    let service =
        json!({"namespace": "kruise-system", "name": "kruise-webhook-service", "path": "/convert"});
    let webhook = json!({"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]});
    let conversion = json!({"strategy": "Webhook", "webhook": webhook});
    let theirs = theirs(&["v1alpha1", "v1beta1"], Some(conversion));
    begin_with(installation, crds, &theirs, "v1beta1").await?;
    let refused = installation
        .install_sidecar_set_crd()
        .await
        .err()
        .context("it was applied")?;
    ensure!(
        format!("{refused:#}").contains("should not be set when strategy"),
        "{refused:#}"
    );
    let patch = r#"--patch={"spec":{"conversion":{"strategy":"None","webhook":null}}}"#;
    let patch = ["patch", "crd", CRD, "--type=merge", patch];
    installation.plane.kubectl(&patch).await?;
    installation.install_sidecar_set_crd().await?;
    let older = sets(&installation.client, "v1alpha1");
    wait_for_answer("the set without a conversion", || async {
        Ok(older.get("log-agent").await.ok())
    })
    .await?;
    crate::lifecycle::set_spec(crds, CRD, &theirs["spec"]).await
}
