//! Churn: round after round of steps in one world, for days. After each, all must be as it should be, and nothing may be written;
//! then all but leadsman forgets what was, so that what grows is leadsman's. What remains is bounded: answers of commands for the
//! pods that are there, and what markers and sets have ever said, of which there are few.

use std::time::Duration;

use super::{Simulation, simulate};
use crate::kubelet::text;
use crate::plan::{FaultClass, Plan};
use crate::story::Violation;

/// How long all remember what was. Events live for so long after their last write (`--event-ttl` of the API server).
const MEMORY: Duration = Duration::from_hours(1);
const HOUR: Duration = Duration::from_hours(1);

/// An hour of churn.
#[derive(Clone, Copy, Debug)]
pub struct ChurnHour {
    /// Hours since the start.
    pub hour: u64,
    /// Rounds since the start.
    pub rounds: u64,
    /// Changes that were stored, since the start.
    pub changes: u64,
}

/// The outcome of churn.
#[derive(Debug)]
pub struct ChurnOutcome {
    /// The rounds, the last of which may have failed.
    pub rounds: u64,
    /// The violations; with the first one churn ends.
    pub violations: Vec<Violation>,
    /// The story of the last round.
    pub story: Vec<String>,
}

/// Carries out rounds for so many hours, with faults of these classes, but for restores of etcd: what is forgotten cannot be
/// restored. A round's steps follow from `first` and its number, and are no seed's plan. Says how far it has come with each hour.
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
        let (mut rounds, mut hour) = (0, 0);
        while hour < hours && !simulation.story.is_violated() {
            simulation.story.forget_lines();
            // Jumps do not add up: leadsman counts on clocks that differ by less than ten minutes.
            simulation.story.tell("step", "clocks are set right");
            simulation.jump_clock(-simulation.clock_ahead);
            let steps = Plan::steps_of_round(first.wrapping_add(rounds), &classes);
            rounds += 1;
            if simulation.play_steps(&steps, &webhooks).await.is_some() {
                simulation.keep_silent(&webhooks).await;
            }
            simulation.forget();
            let elapsed = simulation.story.elapsed().as_secs() / HOUR.as_secs();
            if elapsed > hour {
                hour = elapsed;
                report(ChurnHour {
                    hour,
                    rounds,
                    changes: simulation.server.version(),
                });
            }
        }
        let (story, violations) = simulation.story.end();
        ChurnOutcome {
            rounds,
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
        let names = pods.iter().map(|pod| (text(pod, "uid"), text(pod, "name")));
        self.ground.forget_before(since, &names.collect());
        self.invariants.forget_before(since);
    }
}
