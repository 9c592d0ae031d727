//! A whole agent in paused time, with a runtime in memory: as a simulation runs it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use http::{Method, Request, Response};
use kube::client::Body;
use leadsman_cri::fake::{FakePod, InMemoryRuntime, ScriptedAnswer, exec_response};
use leadsman_cri::wire::{ContainerState, NamespaceMode};
use leadsman_process::{ApiServer, RandomSource};
use serde_json::{Value, json};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: AgentArgs,
}

/// An API server with the object of one node, and the requests that it got: their methods, addresses and bodies.
fn api_server(requests: Arc<Mutex<Vec<String>>>) -> ApiServer {
    let probe = json!({"exec": {"command": ["check"]}, "periodSeconds": 1});
    let entry = json!({"name": "marker#probe", "containerName": "main", "probe": probe});
    let pod = json!({"name": "cart", "namespace": "shop", "uid": "u", "IP": "", "probes": [entry]});
    let metadata = json!({"name": "node", "uid": "n", "resourceVersion": "7"});
    let object = json!({"metadata": metadata, "spec": {"podProbes": [pod]}});
    let service = tower::service_fn(move |request: Request<Body>| {
        let (requests, mut object) = (Arc::clone(&requests), object.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = String::from_utf8(body.collect_bytes().await?.to_vec())?;
            let line = format!("{} {} {body}", head.method, head.uri);
            requests.lock().unwrap().push(line);
            if head
                .uri
                .query()
                .is_some_and(|query| query.contains("watch="))
            {
                tokio::time::sleep(Duration::from_secs(5)).await;
                return Ok(Response::new(Body::empty()));
            }
            let reply = match head.method {
                Method::PATCH => {
                    let patch: Value = serde_json::from_str(&body)?;
                    object["status"] = patch["status"].clone();
                    object["metadata"]["resourceVersion"] = json!("8");
                    object
                }
                Method::POST => json!({}),
                _ => json!({"metadata": {"resourceVersion": "7"}, "items": [object]}),
            };
            let reply = Body::from(reply.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::new(reply))
        }
    });
    ApiServer::new(kube::Client::new(service, "default"))
}

/// The requests of an agent whose probe succeeds, and hangs later.
async fn requests_of_seed(seed: u64) -> Vec<String> {
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let runtime = InMemoryRuntime::default();
    let pod = FakePod {
        namespace: "shop",
        name: "cart",
        uid: "u",
    };
    let times = (ContainerState::ContainerRunning, 1, 2);
    let mut runs = 0;
    {
        let mut world = runtime.lock_world();
        let id = world.set_container_of(pod, "main", 0, times);
        world.set_network("u", &["192.0.2.7"], NamespaceMode::Pod);
        world.answer_exec = Some(Box::new(move |request| {
            assert_eq!(request.container_id, id);
            runs += 1;
            if runs < 10 {
                ScriptedAnswer::Ok(exec_response(0, "fine"))
            } else {
                ScriptedAnswer::Never
            }
        }));
    }
    let server = api_server(Arc::clone(&requests));
    let process = Process::new(server, RandomSource::from_seed(seed), "host");
    let (readiness, stop) = (process.readiness.clone(), process.shutdown.clone());
    let args = Line::parse_from(["agent", "--node-name", "node"]).args;
    let client = runtime.new_client();
    let running = tokio::spawn(async move { run_tasks(&args, process, client).await });
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(readiness.is_ready(), "{}", readiness.to_text());
    stop.cancel();
    running.await.unwrap().unwrap();
    requests.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_sockets_probes_and_does_the_same_each_time() {
    let start = "2026-01-01T00:00:00Z".parse().unwrap();
    let time = clock::simulate_time_of_day(start);
    let first = requests_of_seed(7).await;
    drop(time);
    let writes: Vec<_> = first
        .iter()
        .filter(|request| request.starts_with("PATCH") && request.contains("/status"))
        .collect();
    assert!(writes[0].contains("\"state\":\"Succeeded\""), "{writes:?}");
    let last = writes.last().unwrap();
    assert!(last.contains("\"state\":\"Failed\""), "{writes:?}");

    let _time = clock::simulate_time_of_day(start);
    let again = requests_of_seed(7).await;
    assert_eq!(again, first);
}
