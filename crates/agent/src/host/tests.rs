//! A second task beside probing, as image pulls would be one: its own watch, health check and drain, and no change in
//! the host.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use http::{Method, Request, Response};
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use leadsman_cri::Runtime;
use leadsman_process::list::ListTarget;
use leadsman_process::watcher::{ObjectEvent, ObjectState, watch_object};
use leadsman_process::{ApiServer, Metrics, RandomSource, Readiness, clock};
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::request;

/// The images that a node is to pull, as far as the task here reads them.
#[derive(Clone, Debug, Deserialize)]
struct NodeImage {
    metadata: ObjectMeta,
    images: Vec<String>,
}

impl Resource for NodeImage {
    type DynamicType = ();
    type Scope = ClusterResourceScope;
    fn kind((): &()) -> Cow<'_, str> {
        "NodeImage".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "apps.kruise.io".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "nodeimages".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// A pull takes as long as this.
const PULL: Duration = Duration::from_secs(2);

/// Pulls the images of the node's `NodeImage`, and writes into its status which are there.
async fn pull_images(context: TaskContext) -> Result<(), Infallible> {
    let health = context.health.register_check("nodeimage", "not read yet");
    let target = ListTarget::all_of::<NodeImage>();
    let server = context.server.clone();
    let mut events = watch_object::<NodeImage>(
        server,
        target,
        &context.node_name,
        context.random.fork_rng(),
    );
    let mut pulls = JoinSet::new();
    loop {
        tokio::select! {
            // The stop first, which ends the loop.
            biased;
            () = context.stop.cancelled() => break,
            Some(event) = events.next() => match event {
                ObjectEvent::Observed(ObjectState::Present(object)) => {
                    health.record_success();
                    for image in object.images {
                        pulls.spawn(pull(context.runtime.clone(), image));
                    }
                }
                ObjectEvent::Observed(_) | ObjectEvent::Following => health.record_success(),
                ObjectEvent::Failed(failed) => {
                    let now = clock::monotonic().saturating_duration_since(context.start);
                    health.record_failure(failed.reason().unwrap_or_default(), now);
                }
            },
            Some(Ok(image)) = pulls.join_next() => write_pulled(&context, image).await,
        }
    }
    while let Some(Ok(image)) = pulls.join_next().await {
        write_pulled(&context, image).await;
    }
    Ok(())
}

async fn pull(_runtime: Runtime, image: String) -> String {
    tokio::time::sleep(PULL).await;
    image
}

async fn write_pulled(context: &TaskContext, image: String) {
    let status = json!({"status": {"pulled": [image]}});
    let patch = kube::core::Request::new(NodeImage::url_path(&(), None)).patch_subresource(
        "status",
        &context.node_name,
        &PatchParams::default(),
        &Patch::Merge(&status),
    );
    request::send_request(&context.server, patch).await;
}

/// An API server with one `NodeImage`, and the bodies of all patches that it got.
fn api_server(patches: Arc<Mutex<Vec<String>>>) -> ApiServer {
    let service = tower::service_fn(move |request: Request<Body>| {
        let patches = patches.clone();
        async move {
            let is_watch = request.uri().query().is_some_and(|q| q.contains("watch="));
            if is_watch {
                std::future::pending::<()>().await;
            }
            let reply = if request.method() == Method::PATCH {
                let body = request.into_body().collect_bytes().await?;
                let body = String::from_utf8(body.to_vec())?;
                patches.lock().unwrap().push(body);
                json!({})
            } else {
                let object = json!({"metadata": {"name": "node"}, "images": ["nginx"]});
                json!({"metadata": {"resourceVersion": "1"}, "items": [object]})
            };
            let body = Body::from(reply.to_string().into_bytes());
            Ok::<_, Box<dyn Error + Send + Sync>>(Response::new(body))
        }
    });
    ApiServer::new(kube::Client::new(service, "default"))
}

fn context(server: ApiServer, readiness: &Readiness) -> TaskContext {
    TaskContext {
        node_name: "node".into(),
        start: clock::monotonic(),
        server,
        runtime: Runtime::connect_lazily("/nowhere/runtime.sock").unwrap(),
        health: HealthChecks::new(readiness.clone()),
        metrics: Metrics::default(),
        random: RandomSource::from_seed(7),
        stop: CancellationToken::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_task_is_started_checked_and_drained() {
    let patches = Arc::<Mutex<Vec<String>>>::default();
    let readiness = Readiness::default();
    let context = context(api_server(patches.clone()), &readiness);
    let mut tasks = Tasks::new(&context);
    tasks.start("image pulls", pull_images(context.clone()));
    let stop = async {
        tokio::time::sleep(PULL / 2).await;
        assert!(readiness.is_ready(), "{}", readiness.to_text());
        assert!(patches.lock().unwrap().is_empty());
        context.stop.cancel();
    };
    let (ended, ()) = tokio::join!(tasks.run(), stop);
    ended.unwrap();
    assert_eq!(
        *patches.lock().unwrap(),
        [r#"{"status":{"pulled":["nginx"]}}"#]
    );
}

#[tokio::test(start_paused = true)]
async fn a_check_that_fails_for_half_a_minute_makes_the_agent_unready() {
    let readiness = Readiness::default();
    let context = context(api_server(Arc::default()), &readiness);
    let health = context.health.register_check("thing", "");
    health.record_success();
    health.record_failure("away", Duration::ZERO);
    let tasks = Tasks::new(&context);
    let stop = async {
        for (seconds, is_ready) in [(29, true), (31, false)] {
            tokio::time::sleep_until(context.start + Duration::from_secs(seconds)).await;
            assert_eq!(readiness.is_ready(), is_ready, "{seconds}");
        }
        context.stop.cancel();
    };
    let (ended, ()) = tokio::join!(tasks.run(), stop);
    ended.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_fails_or_ends_by_itself_ends_the_agent_and_the_others_are_drained() {
    let fails = async || Err("away".to_owned());
    let panics = async || -> Result<(), String> { panic!("a bug") };
    let ends = async || Ok::<(), String>(());
    for (case, expected) in [
        (0, "the task \"first\" failed: away"),
        (1, "the task \"first\" failed: task"),
        (
            2,
            "the task \"first\" ended before the agent was asked to stop",
        ),
    ] {
        let context = context(api_server(Arc::default()), &Readiness::default());
        let mut tasks = Tasks::new(&context);
        match case {
            0 => tasks.start("first", fails()),
            1 => tasks.start("first", panics()),
            _ => tasks.start("first", ends()),
        }
        let drained = Arc::new(Mutex::new(false));
        let (stop, is_drained) = (context.stop.clone(), drained.clone());
        tasks.start("second", async move {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN / 2).await;
            *is_drained.lock().unwrap() = true;
            Ok::<(), Infallible>(())
        });
        let error = tasks.run().await.unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(*drained.lock().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_stop_is_given_up() {
    let context = context(api_server(Arc::default()), &Readiness::default());
    let mut tasks = Tasks::new(&context);
    tasks.start("stuck", std::future::pending::<Result<(), Infallible>>());
    context.stop.cancel();
    tasks.run().await.unwrap();
    assert_eq!(clock::monotonic(), context.start + DRAIN);
}
