//! Shrinking of a plan that fails: steps are left out as long as it still fails by the same rule.

use crate::plan::Plan;

/// The plan without steps that are not needed, by at most `runs` runs. `still_fails` runs a plan.
pub fn shrink(plan: &Plan, runs: usize, mut still_fails: impl FnMut(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    let mut left = runs;
    // Halves, quarters, and so on, as in delta debugging ("Simplifying and Isolating Failure-Inducing Input", Zeller 2002).
    let mut chunk = best.steps.len().div_ceil(2);
    while chunk > 0 && left > 0 {
        let mut from = 0;
        let before = best.steps.len();
        while from < best.steps.len() && left > 0 {
            let to = (from + chunk).min(best.steps.len());
            let mut fewer = best.clone();
            fewer.steps.drain(from..to);
            left -= 1;
            if still_fails(&fewer) {
                best = fewer;
            } else {
                from = to;
            }
        }
        if chunk > 1 {
            chunk = chunk.div_ceil(2);
        } else if best.steps.len() == before {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlannedAction, Step};

    #[test]
    fn only_the_steps_that_are_needed_are_left() {
        let step = |at_ms| Step {
            at_ms,
            action: PlannedAction::Compact,
        };
        let plan = Plan {
            seed: 1,
            has_sets: false,
            has_bare_pods: false,
            latency_ms: 0,
            page: 500,
            steps: (0..40).map(step).collect(),
        };
        let mut runs = 0;
        let shrunk = shrink(&plan, 200, |plan| {
            runs += 1;
            let has = |at| plan.steps.iter().any(|step| step.at_ms == at);
            has(7) && has(31)
        });
        let left: Vec<_> = shrunk.steps.iter().map(|step| step.at_ms).collect();
        assert_eq!(left, [7, 31]);
        assert!(runs < 60, "{runs}");
    }
}
