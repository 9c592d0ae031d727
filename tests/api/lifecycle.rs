//! The manager ends, starts, and finds a installation that went on without it.

use std::sync::Arc;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use leadsman_testkit::leadsman;
use leadsman_tests::scene::differs;
use leadsman_tests::{History, Scene, wait_for_answer, wait_for_deletion, wait_for_object};
use serde_json::{Value, json};

use crate::Installation;
use crate::marks::{idle, marked};

// PPM-9, DEF-4
pub(crate) async fn a_marker_deleted_while_the_manager_is_down_takes_its_marks_along(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "down").await?;
    scene.pod("one").await?;
    scene.pod("two").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    installation.stop_manager().await?;
    scene.delete_marker("m").await?;
    scene
        .edit(
            "two",
            "kubectl",
            json!({"metadata": {"labels": {"app": "other"}}}),
        )
        .await?;
    installation.start_manager().await?;
    scene.wait_for_entries(&[]).await?;
    scene.wait_for_marks("one", marked("")).await?;
    Ok(())
}

// PPM-2
pub(crate) async fn a_verdict_reported_while_the_manager_is_down_marks_at_its_start(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "missed").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    installation.stop_manager().await?;
    scene.report_verdict("one", "m#Idle", "Failed").await?;
    installation.start_manager().await?;
    scene.wait_for_marks("one", marked("Failed")).await?;
    Ok(())
}

pub(crate) async fn an_outage_of_the_api_server_changes_no_pod(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "outage").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    installation.restart_apiserver().await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    scene.report_verdict("one", "m#Idle", "Failed").await?;
    scene.wait_for_marks("one", marked("Failed")).await?;
    history
        .never("marks were away", |pod| {
            differs(pod, &marked("Succeeded")).is_err() && differs(pod, &marked("Failed")).is_err()
        })
        .await
}

// PPM-15, DEF-24
pub(crate) async fn pods_are_created_and_bad_markers_refused_while_the_manager_is_down(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "nobody").await?;
    installation.stop_manager().await?;
    let made = scene.pod("one").await;
    let mut bad = idle();
    bad[0]["name"] = json!("NO NAME");
    let refused = scene.marker("bad", bad).await;
    installation.start_manager().await?;
    made?;
    let error = refused.err().map(|error| error.to_string());
    let named = error.as_deref().unwrap_or_default();
    ensure!(
        named.contains("spec.probes[0].name"),
        "the answer was {error:?}"
    );
    Ok(())
}

// PPM-9
pub(crate) async fn leftovers_without_a_marker_are_removed(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "leftovers").await?;
    let pod = scene.pod("one").await?;
    // Entries that nobody claims, as another writer may have left them.
    let entry = json!({"name": "one", "namespace": scene.ns, "uid": pod.metadata.uid, "IP": "10.1.2.3",
        "probes": [{"name": "gone#p", "containerName": "main", "probe": {"exec": {"command": ["true"]}}}]});
    scene.wait_for_entries(&[]).await?;
    let patch = Patch::Merge(json!({"spec": {"podProbes": [entry]}}));
    scene
        .probes()
        .patch(&scene.node, &PatchParams::default(), &patch)
        .await?;
    scene.wait_for_entries(&[]).await?;
    Ok(())
}

const CRDS: [&str; 2] = [
    "podprobemarkers.apps.kruise.io",
    "nodepodprobes.apps.kruise.io",
];

/// As on a cluster that has OpenKruise's CRDs: what leadsman adds to them is dropped by the API server.
pub(crate) async fn crds_that_drop_our_fields_are_enough_to_mark(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "dropped").await?;
    let crds: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    installation.stop_manager().await?;
    let ours = install_openkruises_crds(&crds).await?;
    let told = probed_with_theirs(&installation, &scene).await;
    give_back_our_crds(&crds, ours).await?;
    installation.stop_manager().await?;
    installation.start_manager().await?;
    told
}

/// The CRDs as they are installed, by name.
pub(crate) type Crds = Vec<(&'static str, CustomResourceDefinition)>;

/// Puts CRDs like OpenKruise's in the place of ours: without the fields and rules that leadsman adds.
pub(crate) async fn install_openkruises_crds(crds: &Api<CustomResourceDefinition>) -> Result<Crds> {
    let mut ours = Vec::new();
    for name in CRDS {
        let crd = crds.get(name).await?;
        let mut theirs = serde_json::to_value(&crd)?;
        for field in [
            "revision",
            "startedContainerID",
            "containerID",
            "cannotProbe",
            "conditions",
        ] {
            without(&mut theirs, field);
        }
        let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        if let Some(Value::Object(fields)) = theirs.pointer_mut(status) {
            fields.remove("probes");
        }
        set_spec(crds, name, &theirs["spec"]).await?;
        ours.push((name, crd));
    }
    Ok(ours)
}

/// Ours again.
pub(crate) async fn give_back_our_crds(
    crds: &Api<CustomResourceDefinition>,
    ours: Crds,
) -> Result<()> {
    for (name, crd) in ours {
        set_spec(crds, name, &serde_json::to_value(crd.spec)?).await?;
    }
    Ok(())
}

/// Replaces the spec of a CRD, without a resourceVersion: the API server's own controllers write the status after each
/// change, some time later on a busy machine.
pub(crate) async fn set_spec(
    crds: &Api<CustomResourceDefinition>,
    name: &str,
    spec: &Value,
) -> Result<()> {
    let patch = json!([{"op": "replace", "path": "/spec", "value": spec}]);
    let patch: Patch<Value> = Patch::Json(serde_json::from_value(patch)?);
    crds.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn probed_with_theirs(installation: &Installation, scene: &Scene) -> Result<()> {
    scene.pod("dropped-pod").await?;
    scene.marker("dropped-marker", idle()).await?;
    // The API server takes a moment to serve a new schema.
    let condition = json!({"status": {"observedGeneration": 0, "conditions": [{"type": "t", "status": "True",
        "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let (markers, patch) = (scene.markers(), Patch::Merge(&condition));
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    wait_for_answer("a schema that drops conditions", || async {
        let marker = markers.patch_status("dropped-marker", &dry, &patch).await?;
        let conditions = marker.status.unwrap_or_default().conditions;
        Ok(conditions.is_empty().then_some(()))
    })
    .await?;
    installation.start_manager().await?;
    for state in ["Succeeded", "Failed", "Unknown", "Succeeded"] {
        scene
            .report_verdict("dropped-pod", "dropped-marker#Idle", state)
            .await?;
        scene.wait_for_marks("dropped-pod", marked(state)).await?;
    }
    let marker = wait_for_object(
        &scene.markers(),
        "dropped-marker",
        "two numbers",
        |marker| {
            let status = marker.status.clone().unwrap_or_default();
            let numbers = (status.observed_generation, status.matched_pods);
            ensure!(numbers == (1, Some(1)), "the status is {status:?}");
            Ok(status)
        },
    )
    .await?;
    ensure!(
        marker.conditions.is_empty(),
        "the CRD is still ours: {marker:?}"
    );
    let sent = installation.count_requests("patch", "pods", "dropped-pod")?;
    ensure!(sent == 4, "{sent} writes of a pod for four verdicts");
    let sent = installation.count_requests("update", "nodepodprobes", &scene.node)?;
    ensure!(sent <= 2, "{sent} writes of a spec that never changed");
    let sent = installation.count_requests("patch", "podprobemarkers", "dropped-marker")?;
    ensure!(sent <= 3, "{sent} writes of a status that never changed");
    Ok(())
}

/// With a feature gate, and the account of the preflight; fields that the API server does not know are refused.
pub(crate) async fn the_api_server_accepts_the_whole_install(
    installation: Arc<Installation>,
) -> Result<()> {
    let serverless = "--feature-gates=EnablePodProbeMarkerOnServerless=true";
    let parts = "--only=crds,access,workloads,preflight";
    let strictly = ["--dry-run=server", "--validate=strict"];
    installation
        .apply_manifests(&[serverless, parts], &strictly)
        .await
}

/// As when OpenKruise is installed or upgraded over leadsman, and leadsman's CRDs are applied again.
pub(crate) async fn a_crd_replaced_under_a_running_manager_changes_no_mark(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "replaced").await?;
    scene.pod("replaced-pod").await?;
    scene.marker("replaced-marker", idle()).await?;
    scene
        .report_verdict("replaced-pod", "replaced-marker#Idle", "Succeeded")
        .await?;
    scene
        .wait_for_marks("replaced-pod", marked("Succeeded"))
        .await?;
    wait_for_revisions(&scene, true).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    let since = installation.log_length();
    let crds: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    let ours = install_openkruises_crds(&crds).await?;
    let told = installation
        .wait_for_log(since, "the CRD drops leadsman's fields")
        .await;
    let seen = async {
        wait_for_revisions(&scene, false).await?;
        scene.pod("second-pod").await?;
        scene
            .report_verdict("second-pod", "replaced-marker#Idle", "Failed")
            .await?;
        scene.wait_for_marks("second-pod", marked("Failed")).await
    }
    .await;
    let since = installation.log_length();
    give_back_our_crds(&crds, ours).await?;
    told?;
    seen?;
    installation
        .wait_for_log(since, "the CRD keeps leadsman's fields again")
        .await?;
    wait_for_revisions(&scene, true).await?;
    scene.wait_for_reason("replaced-marker", "Probing").await?;
    scene
        .wait_for_marks("replaced-pod", marked("Succeeded"))
        .await?;
    let flapped = |pod: &Pod| {
        pod.metadata.name.as_deref() == Some("replaced-pod")
            && differs(pod, &marked("Succeeded")).is_err()
    };
    history
        .never("a CRD was replaced and marks changed", flapped)
        .await?;
    for (verb, resource, name, most) in [
        ("patch", "pods", "replaced-pod", 1),
        ("update", "nodepodprobes", scene.node.as_str(), 8),
        ("patch", "podprobemarkers", "replaced-marker", 12),
    ] {
        let sent = installation.count_requests(verb, resource, name)?;
        ensure!(
            sent <= most,
            "{sent} requests to {verb} {resource} {name}, {most} at most"
        );
    }
    Ok(())
}

/// Waits until every entry of the node has a revision, or none. It asks and does not watch: a watch that was opened just
/// before the CRD changed has been seen to show objects by the old schema for a minute.
async fn wait_for_revisions(scene: &Scene, expected: bool) -> Result<()> {
    let what = if expected { "revisions" } else { "no revision" };
    wait_for_answer(what, || async {
        let Ok(object) = scene.probes().get(&scene.node).await else {
            return Ok(None);
        };
        let pods = object.spec.pod_probes.iter();
        let mut probes = pods.flat_map(|pod| &pod.probes).peekable();
        let any = probes.peek().is_some();
        let all = probes.all(|probe| probe.revision.is_some() == expected);
        Ok((any && all).then_some(()))
    })
    .await
}

/// Takes a property out of a schema, wherever it is.
fn without(schema: &mut Value, field: &str) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = map.get_mut("properties") {
                properties.remove(field);
            }
            map.values_mut().for_each(|below| without(below, field));
        }
        Value::Array(list) => list.iter_mut().for_each(|below| without(below, field)),
        _ => {}
    }
}

/// Takes the bounds of all numbers out of a schema.
fn without_bounds(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.remove("maximum");
            // Held to from Kubernetes 1.36 on.
            map.remove("format");
            map.values_mut().for_each(without_bounds);
        }
        Value::Array(list) => list.iter_mut().for_each(without_bounds),
        _ => {}
    }
}

pub(crate) async fn a_manager_waits_for_crds_that_come_late(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "late-crds").await?;
    scene.pod("one").await?;
    let crds: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    installation.stop_manager().await?;
    for name in CRDS {
        crds.delete(name, &DeleteParams::default()).await?;
        wait_for_deletion(&crds, name).await?;
    }
    installation.start_manager().await?;
    leadsman::install(&installation.plane).await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    Ok(())
}

pub(crate) async fn a_missing_right_is_named_and_waited_for(
    installation: Arc<Installation>,
) -> Result<()> {
    const ROLE: &str = "leadsman-manager-podprobe";
    let scene = Scene::new(&installation.client, "no-right").await?;
    scene.pod("no-right-pod").await?;
    scene.marker("m", idle()).await?;
    scene
        .report_verdict("no-right-pod", "m#Idle", "Succeeded")
        .await?;
    scene
        .wait_for_marks("no-right-pod", marked("Succeeded"))
        .await?;
    let roles: Api<ClusterRole> = Api::all(scene.client.clone());
    let mut role = roles.get(ROLE).await?;
    let whole = role.rules.clone();
    for rule in role.rules.iter_mut().flatten() {
        rule.verbs.retain(|verb| verb != "patch");
        if rule.verbs.is_empty() {
            rule.verbs.push("get".to_owned());
        }
    }
    let params = PostParams::default();
    let mut role = roles.replace(ROLE, &params, &role).await?;
    scene
        .report_verdict("no-right-pod", "m#Idle", "Failed")
        .await?;
    let before = installation.count_requests("patch", "pods", "no-right-pod")?;
    wait_for_answer("a request without the right", || async {
        let sent = installation.count_requests("patch", "pods", "no-right-pod")?;
        Ok((sent >= 2 || sent > before).then_some(()))
    })
    .await?;
    role.rules = whole;
    roles.replace(ROLE, &params, &role).await?;
    scene
        .wait_for_marks("no-right-pod", marked("Failed"))
        .await?;
    let sent = installation.count_requests("patch", "pods", "no-right-pod")?;
    ensure!(sent <= 5, "{sent} requests without a right");
    Ok(())
}

/// The API server takes any number where a port may be a name too.
pub(crate) async fn an_object_that_does_not_decode_disturbs_no_other(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "undecodable").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.wait_for_entries(&["one/m#Idle"]).await?;
    let spec = json!({"podProbes": [{"name": "a", "namespace": "b", "uid": "c", "IP": "", "probes": [{"name": "x#y",
        "containerName": "z", "probe": {"tcpSocket": {"port": 9_000_000_000_u64}}}]}]});
    let patch = Patch::Merge(json!({"spec": spec}));
    let raw: Api<kube::api::DynamicObject> = Api::all_with(
        scene.client.clone(),
        &kube::api::ApiResource::erase::<leadsman_api::NodePodProbe>(&()),
    );
    raw.patch(&scene.node, &PatchParams::default(), &patch)
        .await?;
    scene.wait_for_entries(&["one/m#Idle"]).await?;
    scene.pod("two").await?;
    scene
        .wait_for_entries(&["one/m#Idle", "two/m#Idle"])
        .await?;
    scene.report_verdict("two", "m#Idle", "Failed").await?;
    scene.wait_for_marks("two", marked("Failed")).await?;
    Ok(())
}

/// A manager that has just started knows nothing of a marker that it cannot read. The API server takes such a one while
/// the schema does not bound its numbers.
// PPM-2, PPM-9
pub(crate) async fn a_marker_that_does_not_decode_at_the_start_keeps_its_marks(
    installation: Arc<Installation>,
) -> Result<()> {
    let scene = Scene::new(&installation.client, "unread").await?;
    scene.pod("one").await?;
    scene.marker("m", idle()).await?;
    scene.report_verdict("one", "m#Idle", "Succeeded").await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    installation.stop_manager().await?;
    let crds: Api<CustomResourceDefinition> = Api::all(scene.client.clone());
    let ours = crds.get(CRDS[0]).await?;
    let mut unbounded = serde_json::to_value(&ours)?;
    without_bounds(&mut unbounded);
    set_spec(&crds, CRDS[0], &unbounded["spec"]).await?;
    let held = held_and_mended(&installation, &scene).await;
    give_back_our_crds(&crds, vec![(CRDS[0], ours)]).await?;
    held
}

async fn held_and_mended(installation: &Installation, scene: &Scene) -> Result<()> {
    let with_period = async |seconds: u64| {
        let edit =
            json!([{"op": "add", "path": "/spec/probes/0/probe/periodSeconds", "value": seconds}]);
        let edit: Patch<Value> = Patch::Json(serde_json::from_value(edit)?);
        let untyped: Api<kube::api::DynamicObject> = Api::namespaced_with(
            scene.client.clone(),
            &scene.ns,
            &kube::api::ApiResource::erase::<leadsman_api::PodProbeMarker>(&()),
        );
        wait_for_answer("the marker is edited", async || {
            let edited = untyped.patch("m", &PatchParams::default(), &edit).await;
            Ok(edited.is_ok().then_some(()))
        })
        .await
    };
    with_period(9_000_000_000).await?;
    let history = History::of(&scene.client, &scene.ns).await?;
    installation.start_manager().await?;
    // The node's object is written for another marker.
    let mut other = idle();
    other[0]["podConditionType"] = json!("game.io/other");
    other[0]["markerPolicy"] = json!([]);
    scene.marker("other", other).await?;
    scene
        .wait_for_entries(&["one/m#Idle", "one/other#Idle"])
        .await?;
    scene.wait_for_marks("one", marked("Succeeded")).await?;
    history
        .never("marks were away", |pod| {
            leadsman_tests::scene::differs(pod, &marked("Succeeded")).is_err()
        })
        .await?;
    with_period(5).await?;
    scene.report_verdict("one", "m#Idle", "Failed").await?;
    scene.wait_for_marks("one", marked("Failed")).await?;
    Ok(())
}
