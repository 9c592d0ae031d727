//! What somebody can do who has stolen the token of an agent: with tokens as the kubelet has them made, bound to pods.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authorization::v1::SelfSubjectRulesReview;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leadsman_api::{NodePodProbe, NodePodProbeSpec, PodProbeMarker};
use leadsman_testkit::{client, leadsman};
use leadsman_tests::{Scene, wait_for_answer, wait_for_deletion, wait_for_object};
use serde_json::{Value, json};

use super::agent_pod;
use super::own_objects::impersonate_with_all_rights;
use super::table::AGENT;
use crate::Installation;

/// The node of the stolen token, and another one.
const OWN: &str = "token-own";
const OTHER: &str = "token-other";

/// What the case of the rule holds to be so.
pub(super) async fn check_stolen_token(installation: &Installation) -> Result<()> {
    let scene = Scene::new(&installation.client, OWN).await?;
    scene.add_node(OTHER, json!({})).await?;
    for node in [OWN, OTHER] {
        agent_pod(&scene.client, node, node).await?;
        wait_for_object(&scene.probes(), node, "its object", |_| Ok(())).await?;
    }
    let token = |pod| {
        let plane = &installation.plane;
        plane.service_account_kubeconfig(leadsman::NAMESPACE, AGENT, pod)
    };
    let stolen = client(&token(Some(OWN)).await?).await?;
    writes_its_own_node_only(&stolen).await?;
    has_no_other_right(&stolen).await?;
    reads_nothing_else(&stolen, &scene).await?;
    // A token that no pod is bound to names no node.
    let unbound = client(&token(None).await?).await?;
    for node in [OWN, OTHER] {
        let written = report(&unbound, node).await;
        is_refused(written, "its token is bound to node \"\"")?;
    }
    names_an_object_that_has_no_name(installation).await?;
    ends_with_its_pod(&scene.client, &stolen).await?;
    let nodes: Api<Node> = Api::all(scene.client.clone());
    nodes.delete(OTHER, &DeleteParams::default()).await?;
    let pods: Api<Pod> = Api::namespaced(scene.client.clone(), leadsman::NAMESPACE);
    pods.delete(OTHER, &DeleteParams::default().grace_period(0))
        .await?;
    Ok(())
}

/// A status without verdicts, as a dry run, which is authorized and admitted like any other write.
async fn report(agent: &Client, node: &str) -> kube::Result<NodePodProbe> {
    let objects: Api<NodePodProbe> = Api::all(agent.clone());
    let status = Patch::Merge(json!({"status": {"podProbeStatuses": []}}));
    objects.patch_status(node, &dry_run(), &status).await
}

/// A request with a name that is yet to be generated has none, like the node of a token that is bound to no pod. No role lets
/// an agent create; the policy alone refuses here.
async fn names_an_object_that_has_no_name(installation: &Installation) -> Result<()> {
    let agent = impersonate_with_all_rights(installation, leadsman::AGENT).await?;
    let objects: Api<NodePodProbe> = Api::all(agent);
    let mut object = NodePodProbe::new("", NodePodProbeSpec::default());
    object.metadata.name = None;
    object.metadata.generate_name = Some("any-".to_owned());
    let create = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let answer = objects.create(&create, &object).await;
    is_refused(answer, "its token is bound to node \"\"")
}

fn dry_run() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}

fn is_refused<T>(outcome: kube::Result<T>, because: &str) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) => {
            let refused = status.code == 403 && status.message.contains(because);
            ensure!(refused, "{status:?}");
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => bail!("an agent may do more than it should, without {because:?}"),
    }
}

async fn writes_its_own_node_only(stolen: &Client) -> Result<()> {
    report(stolen, OWN).await.context("its own node's")?;
    let policy = format!("its token is bound to node \"{OWN}\"");
    is_refused(report(stolen, OTHER).await, &policy)?;
    let objects: Api<NodePodProbe> = Api::all(stolen.clone());
    let create = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let delete = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    let spec = Patch::Merge(json!({"spec": {"podProbes": []}}));
    // Not even what is to be probed on its own node.
    for node in [OWN, OTHER] {
        is_refused(objects.patch(node, &dry_run(), &spec).await, "cannot patch")?;
        is_refused(objects.delete(node, &delete).await, "cannot delete")?;
        let object = NodePodProbe::new(node, NodePodProbeSpec::default());
        is_refused(objects.create(&create, &object).await, "cannot create")?;
        is_refused(
            objects.replace(node, &create, &object).await,
            "cannot update",
        )?;
        let applied = Patch::Apply(json!({"apiVersion": "apps.kruise.io/v1alpha1",
            "kind": "NodePodProbe", "metadata": {"name": node}, "spec": {}}));
        let apply = PatchParams {
            dry_run: true,
            ..PatchParams::apply("thief")
        };
        is_refused(objects.patch(node, &apply, &applied).await, "cannot patch")?;
    }
    Ok(())
}

/// All that the API server lets it do in a namespace and beyond, but ask about itself.
async fn has_no_other_right(stolen: &Client) -> Result<()> {
    let reviews: Api<SelfSubjectRulesReview> = Api::all(stolen.clone());
    let review = serde_json::from_value(json!({"metadata": {}, "spec": {"namespace": "default"}}))?;
    let review = reviews.create(&PostParams::default(), &review).await?;
    let status = review.status.context("no status")?;
    ensure!(!status.incomplete, "{status:?}");
    let of_everybody = ["authentication.k8s.io", "authorization.k8s.io"];
    let mut rights = BTreeSet::new();
    for rule in status.resource_rules {
        let groups = rule.api_groups.unwrap_or_default();
        for group in groups
            .iter()
            .filter(|group| !of_everybody.contains(&group.as_str()))
        {
            for resource in rule.resources.iter().flatten() {
                ensure!(rule.resource_names.is_none(), "{resource} by name");
                rights.extend(
                    rule.verbs
                        .iter()
                        .map(|verb| format!("{verb} {resource} {group}")),
                );
            }
        }
    }
    let expected = [
        "create events ",
        "list nodepodprobes apps.kruise.io",
        "patch events ",
        "patch nodepodprobes/status apps.kruise.io",
        "watch nodepodprobes apps.kruise.io",
    ];
    ensure!(rights.iter().eq(expected), "{rights:?}");
    let writes = status
        .non_resource_rules
        .iter()
        .flat_map(|rule| &rule.verbs)
        .find(|verb| *verb != "get");
    ensure!(writes.is_none(), "{:?}", status.non_resource_rules);
    Ok(())
}

async fn reads_nothing_else(stolen: &Client, scene: &Scene) -> Result<()> {
    let all = ListParams::default();
    let secrets: Api<Secret> = Api::all(stolen.clone());
    is_refused(secrets.list(&all).await, "cannot list")?;
    let settings: Api<ConfigMap> = Api::all(stolen.clone());
    is_refused(settings.list(&all).await, "cannot list")?;
    let pods: Api<Pod> = Api::namespaced(stolen.clone(), leadsman::NAMESPACE);
    is_refused(pods.list(&all).await, "cannot list")?;
    // Its own pod neither.
    is_refused(pods.get(OWN).await, "cannot get")?;
    let markers: Api<PodProbeMarker> = Api::all(stolen.clone());
    is_refused(markers.list(&all).await, "cannot list")?;
    let events: Api<Event> = Api::namespaced(stolen.clone(), &scene.ns);
    is_refused(events.list(&all).await, "cannot list")?;
    // That of all nodes is what it can read.
    let objects: Api<NodePodProbe> = Api::all(stolen.clone());
    let seen = objects.list(&all).await?;
    let names: Vec<_> = seen
        .iter()
        .filter_map(|object| object.metadata.name.as_deref())
        .collect();
    ensure!(names.contains(&OWN) && names.contains(&OTHER), "{names:?}");
    // And what it can write beside: an event, about whatever it likes.
    let event: Event = serde_json::from_value(lie(&scene.ns))?;
    let create = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    events.create(&create, &event).await.context("an event")?;
    Ok(())
}

fn lie(namespace: &str) -> Value {
    json!({"metadata": {"name": "lie", "namespace": namespace}, "reason": "Lie", "type": "Warning",
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "any"}})
}

async fn ends_with_its_pod(admin: &Client, stolen: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), leadsman::NAMESPACE);
    pods.delete(OWN, &DeleteParams::default().grace_period(0))
        .await?;
    wait_for_deletion(&pods, OWN).await?;
    // API servers remember a token that was good for some seconds.
    wait_for_answer("the token of a deleted pod to be refused", || async {
        match report(stolen, OWN).await {
            Err(kube::Error::Api(status)) if status.code == 401 => Ok(Some(())),
            Ok(_) => Ok(None),
            Err(error) => Err(error.into()),
        }
    })
    .await
}
