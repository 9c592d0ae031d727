//! Generated flows: markers, pods, nodes and agents come, change and go, several flows side by side, while watches are cut
//! and the leader is killed; each ends as a model says that knows nothing but the objects.
//!
//! `LEADSMAN_FLOWS=100` plays so many, `LEADSMAN_FLOW_SEED=7` begins with a seed of one's own; the seeds of a run follow one
//! another. A failure prints the seed and the steps of its flow.

mod agent;
mod flow;
mod model;
mod objects;
pub(crate) mod seed;
mod step;
mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use leadsman_process::watch;
use leadsman_testkit::audit::Request;
use leadsman_tests::Link;

use self::flow::Flow;
use self::seed::{chosen_flows, describe_flow};
use self::step::{Step, steps};
use crate::Installation;
use crate::leadership::duo::Duo;

/// Flows of a run that is not told how many.
const FLOWS: usize = 40;
/// Flows side by side.
const AT_ONCE: usize = 10;

// PPM-1, PPM-2, PPM-3, PPM-5, PPM-6, PPM-7, PPM-8, PPM-9, PPM-10, PPM-12, PPM-13
pub(crate) async fn generated_flows_end_as_the_model_says(_: Arc<Installation>) -> Result<()> {
    let (count, first) = chosen_flows(FLOWS)?;
    eprintln!("flows: {count}, the first by LEADSMAN_FLOW_SEED={first}");
    let mut duo = Duo::raise(3).await?;
    let client = duo.client.clone();
    let ended = watch::Sender::new(0);
    let settled = Arc::new(AtomicUsize::new(0));
    let flows = stream::iter(0..count).map(|number| {
        let (client, ended, settled) = (client.clone(), ended.clone(), Arc::clone(&settled));
        async move {
            let seed = first + number as u64;
            let flow = play(&client, number, seed, &settled).await?;
            ended.send_modify(|ended| *ended += 1);
            anyhow::Ok((seed, flow))
        }
    });
    let flows = flows.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>();
    let (mut flows, links) = tokio::try_join!(flows, disturb(&mut duo, ended.subscribe(), count))?;
    // Whoever leads has seen everything that was before this, and has nothing left to write.
    pass_on(&duo, "Failed").await?;
    let mark = duo.mark()?;
    pass_on(&duo, "Succeeded").await?;
    let mut writes = duo.plane.audit(mark)?;
    writes.retain(is_late_write);
    ensure!(writes.is_empty(), "after the end of all flows: {writes:#?}");
    for (seed, flow) in &mut flows {
        // What a marker's status tells of a contest, a new leader may still take back.
        let settled = flow.play(&Step::Settle).await;
        settled
            .with_context(|| format!("{}\nafter its end", describe_flow(*seed, &steps(*seed))))?;
    }
    eprintln!("flows: settled {} times", settled.load(Ordering::Relaxed));
    drop(links);
    duo.end().await
}

/// Turns the verdicts of pods that are in no flow, and waits for their marks.
async fn pass_on(duo: &Duo, state: &str) -> Result<()> {
    duo.report_verdicts(&duo.pods(), state).await?;
    duo.wait_for_marks(state).await
}

/// A write to a flow's pods or nodes. A marker's status may still tell that a contest is over.
fn is_late_write(request: &Request) -> bool {
    request.is_write()
        && ["pods", "nodepodprobes"].contains(&request.resource.as_str())
        && (request.namespace.starts_with("flow-") || request.name.starts_with("flow-"))
}

async fn play(
    client: &kube::Client,
    number: usize,
    seed: u64,
    settled: &AtomicUsize,
) -> Result<Flow> {
    let mut flow = Flow::begin(client, &format!("flow-{number}")).await?;
    let ends = [Step::Settle];
    for (place, step) in steps(seed).iter().chain(&ends).enumerate() {
        if place == steps(seed).len() {
            flow.wake_agents().await?;
        }
        let played = flow.play(step).await;
        played
            .with_context(|| format!("step {place} of {}\n", describe_flow(seed, &steps(seed))))?;
        settled.fetch_add(usize::from(matches!(step, Step::Settle)), Ordering::Relaxed);
    }
    Ok(flow)
}

/// Cuts watches and kills leaders while the flows go on. The links that the managers go through live as long as what is
/// returned.
async fn disturb(duo: &mut Duo, mut ended: watch::Receiver<usize>, count: usize) -> Result<Link> {
    let mut after = async |fifths: usize| {
        let enough = count * fifths / 5;
        ended.wait_for(|ended| *ended >= enough).await?;
        anyhow::Ok(())
    };
    after(1).await?;
    duo.link.cut().await?;
    after(2).await?;
    let link = Link::to(duo.plane.server()).await?;
    let through = link.url();
    duo.kill(0).await?;
    // Of two that stand by, either may lead next: the one whose watch was cut may be late.
    duo.wait_until_led_by(1).await?;
    duo.start("third", Some(&through), 3).await?;
    after(3).await?;
    duo.kill(1).await?;
    duo.wait_until_led_by(2).await?;
    duo.start("fourth", None, 3).await?;
    after(4).await?;
    link.close();
    duo.wait_until_led_by(3).await?;
    link.open();
    Ok(link)
}
