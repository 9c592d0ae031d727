//! Whatever the order of events, replies, crashes and changes of leader: no time is run twice, the status never goes back, and
//! what is not run is told.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::play::{Answer, NAME, Play, Step, cron_job};
use crate::cron::cron_job::RunKind;

fn step() -> impl Strategy<Value = Step> {
    let run = 0..3_usize;
    prop_oneof![
        8 => (1..100_i64).prop_map(|seconds| Step::Wait { seconds }),
        8 => (any::<bool>(), 1..4_usize).prop_map(|(runs, events)| Step::Watch { runs, events }),
        4 => (any::<bool>(), 1..4_usize).prop_map(|(runs, events)| Step::WatchAndSend { runs, events }),
        12 => answer().prop_map(Step::Answer),
        2 => any::<bool>().prop_map(|done| Step::Crash { done }),
        2 => any::<bool>().prop_map(|done| Step::Switch { done }),
        4 => (run.clone(), any::<bool>()).prop_map(|(run, fails)| Step::End { run, fails }),
        4 => Just(Step::Clean),
        2 => run.prop_map(|run| Step::Delete { run }),
        1 => Just(Step::Touch),
        1 => any::<bool>().prop_map(|paused| Step::Pause { paused }),
        1 => (-90..200_i64).prop_map(|by| Step::SetClock { by }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        8 => Just(Answer::Done),
        2 => Just(Answer::DoneAndLost),
        2 => Just(Answer::Lost),
        1 => Just(Answer::Conflict),
        1 => Just(Answer::Refused),
    ]
}

/// A kind of runs, and what a spec says beside its schedule.
fn setup() -> impl Strategy<Value = (RunKind, Value)> {
    let kind = prop::sample::select(&RunKind::ALL[..]);
    let policy = prop::sample::select(&["Allow", "Forbid", "Replace"][..]);
    let time_to_live = prop::sample::select(&[None, Some(0), Some(5), Some(100)][..]);
    let deadline = prop::sample::select(&[None, None, Some(20)][..]);
    (kind, policy, time_to_live, deadline, 0..3_i32).prop_map(|(kind, policy, lives, deadline, limit)| {
        let spec = match kind {
            RunKind::Job => json!({"ttlSecondsAfterFinished": lives}),
            RunKind::BroadcastJob => json!({"completionPolicy": {"ttlSecondsAfterFinished": lives}}),
        };
        let template = match kind {
            RunKind::Job => json!({"jobTemplate": {"spec": spec}}),
            RunKind::BroadcastJob => json!({"broadcastJobTemplate": {"spec": spec}}),
        };
        let spec = json!({
            "concurrencyPolicy": policy, "startingDeadlineSeconds": deadline, "template": template,
            "successfulJobsHistoryLimit": limit, "failedJobsHistoryLimit": 1,
        });
        (kind, spec)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    // ACD-1, ACD-1a, ACD-2, ACD-4
    #[test]
    fn no_time_is_run_twice_and_the_status_never_goes_back(
        (kind, spec) in setup(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut play = Play::new(cron_job(NAME, kind, spec));
        play.steps(&steps);
        play.heal();
    }

    // ACJ-16, ACD-14
    #[test]
    fn what_is_not_run_is_told(
        (kind, spec) in setup(),
        steps in prop::collection::vec(step(), 1..12),
    ) {
        let mut play = Play::new(cron_job(NAME, kind, spec));
        let first = play.time;
        // Events are lost with a process, and with a clock that is put back their times are those of other runs.
        let steps = steps.into_iter().filter(|step| match step {
            Step::Crash { .. } | Step::Switch { .. } => false,
            Step::SetClock { by } => *by > 0,
            _ => true,
        });
        play.steps(&steps.collect::<Vec<_>>());
        play.heal();
        for time in (first + 30..=play.last().unwrap()).step_by(60) {
            let is_told = play.told.iter().any(|event| tells_of(event, time));
            prop_assert!(is_told || play.started.contains_key(&time), "{time} is lost: {:#?}", play.told);
        }
    }
}

/// Whether an event says that the run of a time was left out: it names the run, its time, or the times around it.
fn tells_of(event: &str, time: i64) -> bool {
    if !event.starts_with("MissedSchedule") {
        return false;
    }
    if event.contains(&format!("{NAME}-{time}")) {
        return true;
    }
    let times = event.split(' ').filter_map(|word| {
        word.trim_end_matches([':', ','])
            .parse::<jiff::Timestamp>()
            .ok()
    });
    let times: Vec<_> = times.map(jiff::Timestamp::as_second).collect();
    match times[..] {
        [only] => only == time,
        [after, until] => after < time && time <= until,
        _ => false,
    }
}
