//! What people may do with markers, by the roles that every cluster has for people.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leadsman_api::{NodePodProbe, NodePodProbeSpec, PodProbeMarker};
use leadsman_testkit::ControlPlane;
use leadsman_tests::{Process, Scene, wait_for_answer, wait_for_object};
use serde_json::{Value, json};
use tokio::process::Command;

use super::account::wait_until_granted;
use super::table::{Grant, manifests};
use crate::Installation;
use crate::marks::idle;

const RBAC: &str = "rbac.authorization.k8s.io";
const AGGREGATE_TO_EDIT: &str = "--aggregate-to-edit";

pub(crate) async fn people_have_rights_on_markers_by_their_roles(
    installation: Arc<Installation>,
) -> Result<()> {
    let plane = &installation.plane;
    let scene = Scene::new(&installation.client, "people").await?;
    scene.marker("m", idle()).await?;
    let _controllers = aggregate_roles(plane)?;
    for role in ["view", "edit", "admin"] {
        bind(&scene, role).await?;
        wait_for_rule(&scene.client, role, "list").await?;
    }
    wait_for_rule(&scene.client, "admin", "create").await?;
    let person = async |role: &str| plane.client_for(&name(role), &[]).await;
    for (role, reads, writes) in [
        ("view", true, false),
        ("edit", true, false),
        ("admin", true, true),
    ] {
        check_rights(&person(role).await?, &scene.ns, reads, writes)
            .await
            .context(role)?;
    }
    // Writing a marker is compared with this one in what is said of both.
    let exec = Grant {
        account: String::new(),
        namespace: scene.ns.clone(),
        group: String::new(),
        resource: "pods/exec".to_owned(),
        name: String::new(),
        verb: "create".to_owned(),
    };
    wait_until_granted(&scene.client, &name("edit"), &exec).await?;
    check_rights_of_an_admin_of_all_namespaces(plane, &scene).await?;
    apply_roles(plane, &[AGGREGATE_TO_EDIT]).await?;
    wait_for_rule(&scene.client, "edit", "create").await?;
    wait_for_answer("who edits to write markers", || async {
        let written = check_rights(&person("edit").await?, &scene.ns, true, true).await;
        Ok(written.ok())
    })
    .await?;
    check_rights(&person("view").await?, &scene.ns, true, false).await?;
    apply_roles(plane, &[]).await?;
    check_roles_on_jobs().await
}

/// The roles on cron jobs and jobs are aggregated whatever is said of markers.
async fn check_roles_on_jobs() -> Result<()> {
    let gates = "--feature-gates=AdvancedCronJobGate=true,BroadcastJobGate=true,CloneSetGate=true";
    let printed = manifests(&[gates]).await?;
    for system in ["advancedcronjob", "broadcastjob", "cloneset"] {
        for (people, to) in [("viewer", &["view"][..]), ("editor", &["admin", "edit"])] {
            let name = format!("leadsman-{system}-{people}");
            let role = printed.iter().find(|object| {
                object["kind"] == "ClusterRole" && object["metadata"]["name"] == *name
            });
            let labels = role.and_then(|role| role["metadata"]["labels"].as_object());
            let keys = labels.with_context(|| name.clone())?.keys();
            let found = keys.filter_map(|key| Some(key.split_once("/aggregate-to-")?.1));
            let found: Vec<_> = found.collect();
            ensure!(found == to, "{name}: {found:?}");
        }
    }
    Ok(())
}

/// Who has a role in the namespace.
fn name(role: &str) -> String {
    format!("somebody-with-{role}")
}

/// Starts the controller that puts roles together, of which a control plane alone has none.
fn aggregate_roles(plane: &ControlPlane) -> Result<Process> {
    let mut command = Command::new(plane.programs()?.join("kube-controller-manager"));
    command
        .args([
            "--controllers=clusterrole-aggregation-controller",
            "--leader-elect=false",
            "--secure-port=0",
            "--kubeconfig",
        ])
        .arg(plane.admin_kubeconfig());
    let log = plane.folder().join("logs/kube-controller-manager.log");
    Process::start(command, Path::new(&log))
}

async fn bind(scene: &Scene, role: &str) -> Result<()> {
    let bindings: Api<RoleBinding> = Api::namespaced(scene.client.clone(), &scene.ns);
    let binding = serde_json::from_value(binding(role, &name(role)))?;
    bindings.create(&PostParams::default(), &binding).await?;
    Ok(())
}

fn binding(role: &str, user: &str) -> Value {
    json!({"metadata": {"name": user}, "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}]})
}

/// Waits until a role has this verb on markers.
async fn wait_for_rule(client: &Client, role: &str, verb: &str) -> Result<()> {
    let api: Api<ClusterRole> = Api::all(client.clone());
    wait_for_object(&api, role, &format!("{verb} podprobemarkers"), |role| {
        let mut rules = role.rules.iter().flatten();
        let has = |list: Option<&Vec<String>>, word: &str| {
            list.is_some_and(|list| list.iter().any(|one| one == word))
        };
        let granted = rules.any(|rule| {
            has(rule.resources.as_ref(), "podprobemarkers") && has(Some(&rule.verbs), verb)
        });
        ensure!(granted, "it has not");
        Ok(())
    })
    .await
}

/// Fails unless somebody may do so with markers of a namespace, and nothing with `NodePodProbe`s.
async fn check_rights(person: &Client, namespace: &str, reads: bool, writes: bool) -> Result<()> {
    let markers: Api<PodProbeMarker> = Api::namespaced(person.clone(), namespace);
    let all = ListParams::default();
    is_allowed("list", reads, markers.list(&all).await)?;
    is_allowed("get", reads, markers.get("m").await)?;
    let manifest = json!({"metadata": {"name": "new"},
        "spec": {"selector": {"matchLabels": {"app": "any"}}, "probes": idle()}});
    let create = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let new = serde_json::from_value(manifest)?;
    is_allowed("create", writes, markers.create(&create, &new).await)?;
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    is_allowed("patch", writes, markers.patch("m", &dry_run, &label).await)?;
    let delete = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    is_allowed("delete", writes, markers.delete("m", &delete).await)?;
    // What the manager says of a marker is not theirs.
    let status = Patch::Merge(json!({"status": {"matchedPods": 7}}));
    let written = markers.patch_status("m", &dry_run, &status).await;
    is_allowed("patch the status", false, written)?;
    check_no_right_on_node_pod_probes(person).await
}

async fn check_no_right_on_node_pod_probes(person: &Client) -> Result<()> {
    let objects: Api<NodePodProbe> = Api::all(person.clone());
    let all = ListParams::default();
    is_allowed("list NodePodProbes", false, objects.list(&all).await)?;
    let create = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let object = NodePodProbe::new("people", NodePodProbeSpec::default());
    let created = objects.create(&create, &object).await;
    is_allowed("create a NodePodProbe", false, created)
}

fn is_allowed<T>(what: &str, expected: bool, outcome: kube::Result<T>) -> Result<()> {
    let allowed = match outcome {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if status.code == 403 => false,
        Err(error) => return Err(error.into()),
    };
    ensure!(allowed == expected, "{what}: {allowed}, not {expected}");
    Ok(())
}

/// Even who has `admin` in all namespaces has no right on what the agents follow.
async fn check_rights_of_an_admin_of_all_namespaces(
    plane: &ControlPlane,
    scene: &Scene,
) -> Result<()> {
    let user = "somebody-with-admin-everywhere";
    let bindings: Api<ClusterRoleBinding> = Api::all(scene.client.clone());
    let binding = serde_json::from_value(binding("admin", user))?;
    bindings.create(&PostParams::default(), &binding).await?;
    let client = plane.client_for(user, &[]).await?;
    wait_for_answer("the right of who administers all", || async {
        Ok(check_rights(&client, &scene.ns, true, true).await.ok())
    })
    .await
}

/// Applies the roles of people as they are printed with these flags.
async fn apply_roles(plane: &ControlPlane, flags: &[&str]) -> Result<()> {
    let printed = manifests(flags).await?;
    let roles = printed.iter().filter(|object| {
        let labels = object["metadata"]["labels"].as_object();
        let mut keys = labels.into_iter().flat_map(|labels| labels.keys());
        object["kind"] == "ClusterRole" && keys.any(|key| key.contains("/aggregate-to-"))
    });
    let roles: Vec<_> = roles.collect();
    ensure!(roles.len() == 2, "{roles:?}");
    // A list, since kubectl 1.31 does not read documents of JSON that are separated as those of YAML are.
    let list = json!({"apiVersion": "v1", "kind": "List", "items": roles});
    let apply = ["apply", "--server-side", "-f", "-"];
    plane
        .kubectl_with(&apply, list.to_string().as_bytes())
        .await?;
    Ok(())
}
