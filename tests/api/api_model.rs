//! The model of the API server (`leadsman-api-model`) against the real one: generated requests are sent to both, and their
//! answers and the events of watches are compared.
//!
//! `LEADSMAN_FLOWS=100` plays so many flows, `LEADSMAN_FLOW_SEED=7` begins with a seed of one's own. A difference prints the
//! steps that are left when those without which it stays are taken out.

mod bodies;
mod side;
mod step;
mod versions;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{self, StreamExt};
use http::Request;
use jiff::Timestamp;
use kube::Client;
use leadsman_api::PODPROBE_CRDS;
use leadsman_api_model::{ApiServer, kubernetes};
use leadsman_testkit::leadsman;
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};

use self::bodies::Kind;
use self::side::{Side, watch_all};
use self::step::{Step, steps};
use self::versions::Versions;
use crate::Installation;
use crate::flows::seed::{chosen_flows, describe_flow};

/// Flows of a run that is not told how many.
const FLOWS: usize = 60;
/// Flows side by side.
const AT_ONCE: usize = 8;
/// Flows that are played to shrink one.
const SHRINKS: usize = 80;

pub(crate) async fn generated_requests_get_the_answers_of_the_real_api_server(
    _: Arc<Installation>,
) -> Result<()> {
    let (count, first) = chosen_flows(FLOWS)?;
    eprintln!("flows: {count}, the first by LEADSMAN_FLOW_SEED={first}");
    let plane = leadsman::control_plane().await?;
    let client = plane.client().await?;
    warm_up(&client).await?;
    let flows =
        stream::iter(0..count as u64).map(|number| find_difference(&client, first + number));
    let found: Vec<Option<String>> = flows.buffer_unordered(AT_ONCE).collect().await;
    let found: Vec<_> = found.into_iter().flatten().collect();
    plane.end().await?;
    ensure!(
        found.is_empty(),
        "{} of {count} flows differ:\n{}",
        found.len(),
        found.join("\n\n")
    );
    Ok(())
}

/// The API server watches a kind from its first request on, and has no earlier versions of it.
async fn warm_up(client: &Client) -> Result<()> {
    for kind in Kind::ALL {
        let path = format!("{}?resourceVersion=0", kind.path("default"));
        wait_for_answer(&path, || async {
            let request = Request::get(&path).body(Vec::new())?;
            Ok(client.request_text(request).await.ok())
        })
        .await?;
    }
    Ok(())
}

/// Plays the flow of a seed. A difference is shrunk before it is told.
async fn find_difference(client: &Client, seed: u64) -> Option<String> {
    let mut steps = steps(seed);
    let mut difference = play(client, &steps, true).await.err()?;
    // What a step shows needs no watch, which takes a second.
    let in_watch = play(client, &steps, false).await.is_ok();
    let mut place = steps.len();
    for _ in 0..SHRINKS {
        let Some(last) = place.checked_sub(1) else {
            break;
        };
        place = last;
        let mut fewer = steps.clone();
        fewer.remove(place);
        if let Err(smaller) = play(client, &fewer, in_watch).await {
            (steps, difference) = (fewer, smaller);
        }
    }
    Some(format!("{}\n{difference:#}", describe_flow(seed, &steps)))
}

async fn play(client: &Client, steps: &[Step], with_watches: bool) -> Result<()> {
    static FLOWS: AtomicUsize = AtomicUsize::new(0);
    let number = FLOWS.fetch_add(1, Ordering::Relaxed);
    let namespace = format!("model-{}-{number}", std::process::id());
    let model = model_server();
    let modelled = model.client("model");
    let mut sides = [
        Side::new("the model", modelled, &namespace),
        Side::new("the API server", client.clone(), &namespace),
    ];
    let mut versions = Versions::default();
    for side in &mut sides {
        side.begin(&namespace).await?;
    }
    for (place, step) in steps.iter().enumerate() {
        let at = || format!("at step {place}, {step:?}");
        let [model, real] = &mut sides;
        let (model, real) = tokio::try_join!(model.play(step), real.play(step)).with_context(at)?;
        compare_answers(&model, &real, &mut versions).with_context(at)?;
    }
    if !with_watches {
        return Ok(());
    }
    let [model, real] = &sides;
    let (model, real) = tokio::try_join!(watch_all(model), watch_all(real))?;
    for ((watch, model), (_, real)) in model.into_iter().zip(real) {
        compare_answers(&model, &real, &mut versions)
            .with_context(|| format!("in the watch {watch}"))?;
    }
    Ok(())
}

/// With the CRDs of probes.
fn model_server() -> ApiServer {
    let mut resources = kubernetes();
    let crds = PODPROBE_CRDS
        .iter()
        .filter_map(|crd| serde_norway::from_str::<Value>(crd).ok());
    resources.extend(crds.filter_map(|crd| leadsman_api_model::Resource::from_crd(&crd)));
    #[expect(
        clippy::disallowed_methods,
        reason = "the model has no clock of its own"
    )]
    ApiServer::new(resources, 1, Timestamp::now)
}

fn compare_answers(model: &[Value], real: &[Value], versions: &mut Versions) -> Result<()> {
    if model.len() != real.len() {
        bail!(
            "the model: {:#}\nthe API server: {:#}",
            json!(model),
            json!(real)
        );
    }
    for (model, real) in model.iter().zip(real) {
        let (mut of_model, mut of_real) = (model.clone(), real.clone());
        versions
            .compare_and_blank(&mut of_model, &mut of_real)
            .with_context(|| format!("the model: {model:#}\nthe API server: {real:#}"))?;
        if of_model != of_real {
            bail!("{}", describe_difference("", &of_model, &of_real));
        }
    }
    Ok(())
}

/// The fields that differ, a line each.
fn describe_difference(path: &str, model: &Value, real: &Value) -> String {
    match (model, real) {
        (Value::Object(one), Value::Object(other)) => {
            let keys = one
                .keys()
                .chain(other.keys().filter(|key| !one.contains_key(*key)));
            let lines = keys
                .filter(|key| one.get(*key) != other.get(*key))
                .map(|key| {
                    let (one, other) = (&model[key], &real[key]);
                    describe_difference(&format!("{path}/{key}"), one, other)
                });
            lines.collect::<Vec<_>>().join("\n")
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            let lines =
                pairs
                    .filter(|(_, (one, other))| one != other)
                    .map(|(place, (one, other))| {
                        describe_difference(&format!("{path}/{place}"), one, other)
                    });
            lines.collect::<Vec<_>>().join("\n")
        }
        _ => format!("{path}: the model has {model}, the API server {real}"),
    }
}
