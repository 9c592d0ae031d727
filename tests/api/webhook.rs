//! The webhook server against a real API server, with a reviewer that annotates every pod: its configuration is repaired,
//! its certificates rotate while pods are created, replicas agree on one Secret, and without it pods are created at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leadsman_admission::{
    Admission, AdmissionArgs, AdmissionRequest, CONFIGURATION, Mutation, OWNER, PatchOperation,
    RefusalCause, Reviewer, SECRET, VALIDATING_OWNER, Validation, Webhook, WebhookCalls,
    WebhookServing, WebhookSpec,
};
use leadsman_api::{GROUP, SidecarSet};
use leadsman_lease::Leadership;
use leadsman_process::watch;
use leadsman_process::{ApiServer, Component, Process, RandomSource, client, clock};
use leadsman_testkit::ports::free_addresses;
use leadsman_tests::{wait_for_answer, wait_for_object};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Installation;
use crate::stage::PLACES;

const NAMESPACE: &str = "leadsman-system";
/// Two webhooks, each of which adds its name.
const FIRST: &str = "first.leadsman.test";
const SECOND: &str = "second.leadsman.test";
/// A webhook that refuses each set.
const JUDGE: &str = "judge.leadsman.test";

/// Adds the annotation that the snapshot names.
struct Annotate;

#[derive(Deserialize)]
struct Annotated {
    metadata: Annotations,
}

#[derive(Deserialize)]
struct Annotations {
    annotations: Option<Value>,
}

impl Reviewer for Annotate {
    type Object = Annotated;
    type Snapshot = &'static str;
    type Response = Mutation;

    fn review_request(name: &&'static str, request: &AdmissionRequest<Annotated>) -> Mutation {
        let addition = match request.object.metadata.annotations {
            Some(_) => PatchOperation::add_at(["metadata", "annotations", name], "seen"),
            None => PatchOperation::add_at(["metadata", "annotations"], json!({*name: "seen"})),
        };
        Mutation {
            patch: vec![addition],
            ..Mutation::default()
        }
    }
}

/// Refuses everything.
struct Refuse;

impl Reviewer for Refuse {
    type Object = Value;
    type Snapshot = &'static str;
    type Response = Validation;

    fn review_request(name: &&'static str, _: &AdmissionRequest<Value>) -> Validation {
        Validation {
            causes: vec![RefusalCause {
                field: "metadata.name".to_owned(),
                message: format!("is refused by {name}"),
            }],
            warnings: Vec::new(),
        }
    }
}

/// One replica, in this process.
struct Replica {
    admission: Admission,
    process: Process,
    second: watch::Sender<WebhookCalls>,
    _first: watch::Sender<WebhookCalls>,
    _judge: watch::Sender<WebhookCalls>,
    leadership: watch::Sender<Leadership>,
}

impl Replica {
    async fn start(installation: &Installation, leads: bool) -> Result<Self> {
        let connection = client::ClientArgs {
            kubeconfig: Some(installation.kubeconfig.clone()),
            context: None,
        };
        let server = ApiServer::new(connection.build_client(Component::Manager).await?);
        let process = Process::new(server, RandomSource::from_entropy(), "host");
        // A year is longer than any test: whether it leads is given here.
        let leadership = watch::Sender::new(if leads {
            Leadership::Leads {
                term: 1,
                after_others: false,
                until: clock::monotonic() + Duration::from_hours(365 * 24),
            }
        } else {
            Leadership::Standby
        });
        let (first, second) = (watch::Sender::new(spec()), watch::Sender::default());
        let judge = watch::Sender::new(of_sets());
        let webhooks = vec![
            webhook::<Annotate>(FIRST, &first),
            webhook::<Annotate>(SECOND, &second),
            webhook::<Refuse>(JUDGE, &judge),
        ];
        let args = args()?;
        let serving = (&process, WebhookServing::Socket);
        let started = Admission::start(&args, NAMESPACE, webhooks, serving, leadership.subscribe());
        Ok(Self {
            admission: started.await?,
            process,
            second,
            _first: first,
            _judge: judge,
            leadership,
        })
    }

    async fn is_ready(&self) -> Result<()> {
        wait_for_answer("webhooks that are ready", || async {
            Ok(self.process.readiness.is_ready().then_some(()))
        })
        .await
        .with_context(|| self.process.readiness.to_text())
    }

    async fn end(self) -> Result<()> {
        self.process.shutdown.cancel();
        Ok(self.admission.join_server().await?)
    }
}

/// On a free port.
fn args() -> Result<AdmissionArgs> {
    let [free] = free_addresses()?;
    Ok(AdmissionArgs {
        webhook_bind_address: free.to_string().parse()?,
        webhook_cert_dir: None,
        webhook_service: None,
        webhook_url: Some(format!("https://{free}").parse()?),
    })
}

fn webhook<R: Reviewer<Snapshot = &'static str>>(
    name: &'static str,
    spec: &watch::Sender<WebhookCalls>,
) -> Webhook {
    let (_, snapshot) = watch::channel(Some(Arc::new(name)));
    Webhook::new::<R>(name, snapshot, spec.subscribe())
}

/// The creation of every pod.
fn spec() -> WebhookCalls {
    creation_of("", "v1", "pods")
}

/// The creation of every set.
fn of_sets() -> WebhookCalls {
    creation_of(GROUP, "v1beta1", "sidecarsets")
}

fn creation_of(group: &str, version: &str, resource: &str) -> WebhookCalls {
    let only = |text: &str| Some(vec![text.to_owned()]);
    let spec = WebhookSpec {
        rules: vec![RuleWithOperations {
            operations: only("CREATE"),
            api_groups: only(group),
            api_versions: only(version),
            resources: only(resource),
            ..RuleWithOperations::default()
        }],
        timeout_seconds: 5,
        ..WebhookSpec::default()
    };
    Some(spec).into()
}

/// With the rights on webhooks, and a namespace for pods.
async fn raise() -> Result<Installation> {
    let installation = Installation::raise_idle().await?;
    installation.grant_webhooks().await?;
    installation.allow_sidecar_sets().await?;
    let namespace = serde_json::from_value(json!({"metadata": {"name": "pods"}}))?;
    let namespaces: Api<Namespace> = Api::all(installation.client.clone());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await?;
    Ok(installation)
}

/// Creates a pod, which the API server then forgets; webhooks without side effects are called all the same
/// (KEP-576). Says which of ours were.
async fn create(client: &Client) -> Result<Vec<&'static str>> {
    let pod = serde_json::from_value(json!({
        "metadata": {"generateName": "p-"},
        "spec": {"containers": [{"name": "main", "image": "none"}], "automountServiceAccountToken": false},
    }))?;
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), "pods");
    let created = pods.create(&params, &pod).await?;
    let annotations = created.metadata.annotations.unwrap_or_default();
    let called = [FIRST, SECOND].into_iter();
    Ok(called
        .filter(|name| annotations.contains_key(*name))
        .collect())
}

/// Creates a set, which the API server then forgets. Returns why it was refused; empty if it was not.
async fn refusal_of_a_set(client: &Client) -> Result<String> {
    let set = serde_json::from_value(json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": {"name": "any"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "containers": [{"name": "c", "image": "i"}]},
    }))?;
    let params = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match Api::<SidecarSet>::all(client.clone())
        .create(&params, &set)
        .await
    {
        Ok(_) => Ok(String::new()),
        Err(kube::Error::Api(status)) => Ok(status.message),
        Err(other) => Err(other.into()),
    }
}

/// Waits until the API server has sets judged.
async fn wait_for_judgement(client: &Client) -> Result<()> {
    wait_for_answer("a set that is refused", || async {
        Ok(refusal_of_a_set(client)
            .await?
            .contains(JUDGE)
            .then_some(()))
    })
    .await
}

/// Waits until the API server calls these.
async fn wait_for_calls(client: &Client, expected: &[&str]) -> Result<()> {
    wait_for_answer(&format!("calls of {expected:?}"), || async {
        Ok((create(client).await? == expected).then_some(()))
    })
    .await
}

/// The configuration as the API server has it, without what tells one write of it from another.
fn without_version(configuration: &MutatingWebhookConfiguration) -> Value {
    let metadata = &configuration.metadata;
    json!([
        metadata.labels,
        metadata.owner_references,
        configuration.webhooks
    ])
}

/// It goes with the role that grants the rights on it, and with no other.
fn is_owned(object: &ObjectMeta, role: &ObjectMeta) -> Result<()> {
    let owners = object.owner_references.iter().flatten();
    let owners: Vec<_> = owners.map(|owner| Some(&owner.uid)).collect();
    ensure!(
        owners == [role.uid.as_ref()],
        "{:?}",
        object.owner_references
    );
    Ok(())
}

pub(crate) async fn an_edited_or_deleted_configuration_is_repaired(
    _: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    let replica = Replica::start(&installation, true).await?;
    replica.is_ready().await?;
    wait_for_calls(&installation.client, &[FIRST]).await?;
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(installation.client.clone());
    let applied = configurations.get(CONFIGURATION).await?;
    let cluster_roles: Api<ClusterRole> = Api::all(installation.client.clone());
    is_owned(&applied.metadata, &cluster_roles.get(OWNER).await?.metadata)?;
    let secrets: Api<Secret> = Api::namespaced(installation.client.clone(), NAMESPACE);
    let roles: Api<Role> = Api::namespaced(installation.client.clone(), NAMESPACE);
    let secret = secrets.get(SECRET).await?.metadata;
    is_owned(&secret, &roles.get(OWNER).await?.metadata)?;
    let applied = without_version(&applied);

    // Each waits twice as long for its repair as the one before.
    let edits = [
        json!({"failurePolicy": "Fail", "clientConfig": {"url": "https://127.0.0.1:1/x"}}),
        json!({"clientConfig": {"caBundle": null}, "objectSelector": {"matchLabels": {"a": "b"}}}),
        json!({"$patch": "delete"}),
        json!({"matchConditions": [{"name": "theirs", "expression": "false"}]}),
    ];
    for mut edit in edits {
        edit["name"] = json!(FIRST);
        let patch = Patch::Strategic(json!({"webhooks": [edit]}));
        configurations
            .patch(CONFIGURATION, &PatchParams::default(), &patch)
            .await?;
        wait_for_object(&configurations, CONFIGURATION, &edit.to_string(), |seen| {
            ensure!(
                without_version(seen) == applied,
                "it says {}",
                without_version(seen)
            );
            Ok(())
        })
        .await?;
    }
    configurations
        .delete(CONFIGURATION, &DeleteParams::default())
        .await?;
    wait_for_object(&configurations, CONFIGURATION, "its return", |seen| {
        ensure!(
            without_version(seen) == applied,
            "it says {}",
            without_version(seen)
        );
        Ok(())
    })
    .await?;
    wait_for_calls(&installation.client, &[FIRST]).await?;

    the_other_kind_is_repaired_too(&installation.client).await?;

    // What others add is theirs.
    let label = json!({"metadata": {"labels": {"theirs": "stays"}}});
    configurations
        .patch(CONFIGURATION, &PatchParams::default(), &Patch::Merge(label))
        .await?;
    replica.second.send_replace(spec());
    wait_for_calls(&installation.client, &[FIRST, SECOND]).await?;
    let labels = configurations.get(CONFIGURATION).await?.metadata.labels;
    ensure!(labels.is_some_and(|labels| labels.contains_key("theirs")));
    replica.end().await?;
    installation.end().await;
    Ok(())
}

/// Has the webhook's certificate and its CA replaced, and waits until that is done. The successor comes beside what is
/// served, and takes over when the API server had time to learn of its CA.
pub(crate) async fn rotate_certificate(client: &Client) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let first = secrets.get(SECRET).await?.data.context("no data")?;
    secrets.delete(SECRET, &DeleteParams::default()).await?;
    let successor = wait_for_object(&secrets, SECRET, "a successor", |secret| {
        let data = secret.data.clone().unwrap_or_default();
        ensure!(
            data.get("tls.crt") == first.get("tls.crt"),
            "another one is served"
        );
        data.get("next.crt").cloned().context("no successor")
    })
    .await?;
    wait_for_object(&secrets, SECRET, "the hand-over", |secret| {
        let data = secret.data.clone().unwrap_or_default();
        ensure!(
            data.get("tls.crt") == Some(&successor),
            "the old one is served"
        );
        Ok(())
    })
    .await
}

/// What is proved for one kind of configuration holds for the other, which the same loop keeps.
async fn the_other_kind_is_repaired_too(client: &Client) -> Result<()> {
    wait_for_judgement(client).await?;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let applied = configurations.get(CONFIGURATION).await?;
    let cluster_roles: Api<ClusterRole> = Api::all(client.clone());
    let role = cluster_roles.get(VALIDATING_OWNER).await?.metadata;
    is_owned(&applied.metadata, &role)?;
    let edit = json!({"webhooks": [{"name": JUDGE, "failurePolicy": "Fail"}]});
    configurations
        .patch(
            CONFIGURATION,
            &PatchParams::default(),
            &Patch::Strategic(edit),
        )
        .await?;
    let is_repaired = |seen: &ValidatingWebhookConfiguration| {
        ensure!(
            seen.webhooks == applied.webhooks,
            "it says {:?}",
            seen.webhooks
        );
        Ok(())
    };
    wait_for_object(&configurations, CONFIGURATION, "its repair", is_repaired).await?;
    configurations
        .delete(CONFIGURATION, &DeleteParams::default())
        .await?;
    wait_for_object(&configurations, CONFIGURATION, "its return", is_repaired).await?;
    Ok(())
}

pub(crate) async fn certificates_rotate_while_pods_are_created(_: Arc<Installation>) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    // Two that start together.
    let (replica, other) = tokio::try_join!(
        Replica::start(&installation, true),
        Replica::start(&installation, false)
    )?;
    tokio::try_join!(replica.is_ready(), other.is_ready())?;
    wait_for_calls(&installation.client, &[FIRST]).await?;
    wait_for_judgement(&installation.client).await?;

    let (created, stop) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let mut creators = JoinSet::new();
    for _ in 0..4 {
        let (client, created, stop) = (
            installation.client.clone(),
            Arc::clone(&created),
            stop.clone(),
        );
        creators.spawn(async move {
            while !stop.is_cancelled() {
                let called = create(&client).await?;
                ensure!(
                    called.contains(&FIRST),
                    "a pod was created without a call: {called:?}"
                );
                let told = refusal_of_a_set(&client).await?;
                ensure!(told.contains(JUDGE), "a set was not judged: {told:?}");
                created.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    rotate_certificate(&installation.client).await?;
    // Another URL is another client of the API server's: it shakes hands anew.
    replica.second.send_replace(spec());
    wait_for_calls(&installation.client, &[FIRST, SECOND]).await?;
    stop.cancel();
    while let Some(creator) = creators.join_next().await {
        creator??;
    }
    let created = created.load(Ordering::Relaxed);
    eprintln!(
        "{created} pods were created while the certificate was replaced, none without a call"
    );
    ensure!(created > 100, "{created} pods are no load");
    tokio::try_join!(replica.end(), other.end())?;
    installation.end().await;
    Ok(())
}

/// What a pod may take to be created while nobody answers: the connection is refused.
const AT_ONCE: Duration = Duration::from_secs(1);

pub(crate) async fn without_a_server_pods_are_created_at_once(_: Arc<Installation>) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = raise().await?;
    let replica = Replica::start(&installation, true).await?;
    replica.is_ready().await?;
    wait_for_calls(&installation.client, &[FIRST]).await?;

    let ending = tokio::spawn(replica.end());
    while !ending.is_finished() {
        // With a call or without one, but never refused.
        create(&installation.client).await?;
    }
    ending.await??;
    let began = Instant::now();
    let called = create(&installation.client).await?;
    let took = began.elapsed();
    if !called.is_empty() {
        bail!("{called:?} were called though nobody serves");
    }
    ensure!(took < AT_ONCE, "a pod took {took:?}");

    // A process without webhooks takes the configuration back.
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(installation.client.clone());
    let next = Replica::start(&installation, true).await?;
    next.is_ready().await?;
    let args = args()?;
    let none = Admission::start(
        &args,
        NAMESPACE,
        Vec::new(),
        (&next.process, WebhookServing::Socket),
        next.leadership.subscribe(),
    );
    drop(next.admission);
    let none = none.await?;
    wait_for_answer("no configuration", || async {
        let found = configurations.get_opt(CONFIGURATION).await?;
        Ok(found.is_none().then_some(()))
    })
    .await?;
    none.join_server().await?;
    installation.end().await;
    Ok(())
}
