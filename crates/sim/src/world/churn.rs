//! Churn: the steps of one plan after another in one world, for days. After each, all must be as it should be, and nothing may be
//! written; then all but leadsman forgets what was, so that what grows is leadsman's.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Simulation, simulate};
use crate::kubelet::text;
use crate::plan::{FaultClass, Plan};
use crate::story::Violation;

/// How long all remember what was: Events live for an hour, and leadsman may add to those of that time.
const MEMORY: Duration = Duration::from_hours(1);
const HOUR: Duration = Duration::from_hours(1);

/// An hour of churn.
#[derive(Clone, Copy, Debug)]
pub struct ChurnHour {
    /// Hours since the start.
    pub hour: u64,
    /// Plans of which all steps were carried out, since the start.
    pub rounds: u64,
    /// Changes that were stored, since the start.
    pub changes: u64,
}

/// The outcome of churn.
#[derive(Debug)]
pub struct ChurnOutcome {
    /// The seeds whose plans were carried out.
    pub seeds: std::ops::Range<u64>,
    /// The violations; with the first one churn ends.
    pub violations: Vec<Violation>,
    /// The story of the last plan.
    pub story: Vec<String>,
}

/// Carries out the plans of one seed after another for so many hours, with faults of these classes, but for restores of etcd: what
/// is forgotten cannot be restored. Says how far it has come with each hour.
pub fn churn(
    first: u64,
    hours: u64,
    classes: &[FaultClass],
    report: impl Fn(ChurnHour),
) -> ChurnOutcome {
    let mut classes = classes.to_vec();
    classes.retain(|class| *class != FaultClass::Restores);
    let plan = Plan::of_world(first, &classes);
    simulate(&plan, async |mut simulation| {
        let webhooks = simulation.set_webhooks();
        simulation.invariants.has_meddlers = classes.contains(&FaultClass::Meddlers);
        let (mut seed, mut hour) = (first, 0);
        while hour < hours && !simulation.story.is_violated() {
            simulation.story.forget_lines();
            let steps = Plan::steps_of_round(seed, &classes);
            seed += 1;
            if simulation.play_steps(&steps, &webhooks).await.is_some() {
                simulation.keep_silent(&webhooks).await;
            }
            simulation.forget();
            // Jumps do not add up: leadsman counts on clocks that differ by less than ten minutes.
            simulation.jump_clock(-simulation.clock_ahead);
            let elapsed = simulation.story.elapsed().as_secs() / HOUR.as_secs();
            if elapsed > hour {
                hour = elapsed;
                report(ChurnHour {
                    hour,
                    rounds: seed - first,
                    changes: simulation.server.version(),
                });
            }
        }
        let (story, violations) = simulation.story.end();
        ChurnOutcome {
            seeds: first..seed,
            violations,
            story,
        }
    })
}

impl Simulation<'_> {
    fn forget(&mut self) {
        let since = self.story.elapsed().saturating_sub(MEMORY);
        let time = self.ground.now() - MEMORY;
        self.judged -= self.server.forget_before(time);
        let pods = self.server.objects("pods");
        let uids: BTreeSet<_> = pods.iter().map(|pod| text(pod, "uid")).collect();
        self.ground.forget_before(since, &uids);
        self.invariants.forget_before(since);
    }
}
