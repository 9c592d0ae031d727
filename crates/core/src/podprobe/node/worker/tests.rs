//! One worker, step by step.

use std::num::NonZeroU32;

use serde_json::json;

use super::*;
use crate::podprobe::node::judged_output::CompiledOutputs;
use crate::podprobe::probe::Probe;

/// Every second, thresholds of one.
pub(in super::super) fn probe() -> Probe {
    let one = NonZeroU32::MIN;
    Probe {
        handler: Handler::TcpSocket {
            port: std::num::NonZeroU16::MIN,
        },
        initial_delay_seconds: 0,
        period_seconds: one,
        timeout_seconds: one,
        success_threshold: one,
        failure_threshold: one,
    }
}

fn entry() -> PlannedProbe {
    PlannedProbe {
        container: "main".into(),
        probe: Arc::new(probe()),
        revision: Some("1".into()),
        output: None,
        is_forbidden: false,
        started_container: None,
    }
}

/// So many milliseconds after the start, which was at second 1,000.
fn at(millis: u64) -> Now {
    let monotonic = Duration::from_millis(millis);
    Now {
        monotonic,
        wall: Timestamp::from_second(1_000).unwrap() + monotonic,
    }
}

fn running(id: &str) -> RuntimeContainer {
    RuntimeContainer {
        id: id.into(),
        state: RuntimeState::Running {
            started_at: Timestamp::from_second(1_000).unwrap(),
        },
    }
}

fn exited(id: &str, exit_code: i32) -> RuntimeContainer {
    RuntimeContainer {
        id: id.into(),
        state: RuntimeState::Exited { exit_code },
    }
}

fn created(id: &str) -> RuntimeContainer {
    RuntimeContainer {
        id: id.into(),
        state: RuntimeState::Created,
    }
}

fn succeeded() -> Outcome {
    Outcome::Succeeded("ok".into())
}

/// A worker that probes container `a`, its first run succeeded.
fn succeeding() -> Worker {
    let mut worker = Worker::new(entry(), None, Duration::ZERO);
    assert_eq!(
        worker.observe_container(Some(&running("a")), at(0)),
        Reschedule::First(TimeSlot::not_before(Duration::ZERO))
    );
    run(&mut worker, 1, at(10), Ok(succeeded()));
    assert_eq!(worker.state(), Some(State::Succeeded));
    worker
}

fn run(worker: &mut Worker, id: u64, now: Now, result: Result<Outcome, CannotProbe>) -> Reschedule {
    let begun = worker.begin_run(RunId(id), TimeSlot::containing(now.monotonic));
    assert!(begun.is_some(), "{worker:?}");
    worker.finish_run(RunId(id), result, now)
}

// PRB-9, DEF-9
#[test]
fn a_container_that_ended_is_failed_at_once_and_not_probed() {
    let mut patient = entry();
    let mut probe = probe();
    probe.failure_threshold = NonZeroU32::new(5).unwrap();
    patient.probe = Arc::new(probe);
    let mut worker = Worker::new(patient, None, Duration::ZERO);
    assert_eq!(
        worker.observe_container(Some(&exited("a", 137)), at(0)),
        Reschedule::Cancel
    );
    let verdict = worker.verdict().unwrap();
    assert_eq!(verdict.state, State::Failed);
    assert_eq!(
        &*verdict.message,
        "container main is not running (exit code 137)"
    );
    assert_eq!(
        worker.begin_run(RunId(1), TimeSlot::not_before(Duration::ZERO)),
        None
    );
}

// PPM-6, PRB-10
#[test]
fn a_restart_makes_a_verdict_unknown_and_never_an_absent_one() {
    for next in [running("b"), created("b")] {
        let mut worker = succeeding();
        worker.observe_container(Some(&next), at(2_500));
        let verdict = worker.verdict().unwrap();
        assert_eq!(verdict.state, State::Unknown);
        assert_eq!(verdict.container.as_deref(), Some("b"));
        assert_eq!(verdict.since, Some(at(2_000).wall));
    }
    let mut new = Worker::new(entry(), None, Duration::ZERO);
    new.observe_container(Some(&running("a")), at(0));
    new.observe_container(Some(&running("b")), at(0));
    assert_eq!(new.verdict(), None);
}

// PRB-9
#[test]
fn a_container_not_found_any_more_keeps_its_verdict() {
    let mut worker = succeeding();
    assert_eq!(
        worker.observe_container(None, at(1_000)),
        Reschedule::Cancel
    );
    assert_eq!(worker.state(), Some(State::Succeeded));
    assert!(matches!(
        worker.observe_container(Some(&running("a")), at(2_000)),
        Reschedule::First(_)
    ));
    assert_eq!(worker.state(), Some(State::Succeeded));
}

// PPM-12
#[test]
fn the_result_of_a_run_for_another_container_is_dropped() {
    let mut worker = succeeding();
    assert!(
        worker
            .begin_run(RunId(2), TimeSlot::containing(Duration::from_secs(1)))
            .is_some()
    );
    worker.observe_container(Some(&running("b")), at(1_100));
    let failed = Ok(Outcome::Failed("no".into()));
    assert_eq!(
        worker.finish_run(RunId(2), failed, at(1_200)),
        Reschedule::Keep
    );
    assert_eq!(worker.state(), Some(State::Unknown));
}

// PRB-8, DEF-26
#[test]
fn the_gate_lets_one_container_through() {
    let mut gated = entry();
    gated.started_container = Some("a".into());
    let mut worker = Worker::new(gated.clone(), None, Duration::ZERO);
    assert_eq!(
        worker.observe_container(Some(&running("b")), at(0)),
        Reschedule::Cancel
    );
    assert_eq!(worker.verdict(), None);
    assert!(matches!(
        worker.observe_container(Some(&running("a")), at(0)),
        Reschedule::First(_)
    ));
    run(&mut worker, 1, at(0), Ok(succeeded()));
    // Restarted, and not started yet, alive or not.
    for container in [running("b"), exited("b", 1)] {
        let mut worker = worker.clone();
        assert_eq!(
            worker.observe_container(Some(&container), at(500)),
            Reschedule::Cancel
        );
        assert_eq!(worker.state(), Some(State::Unknown));
    }
    worker.observe_container(Some(&running("b")), at(500));
    gated.started_container = Some("b".into());
    worker.update_entry(gated, at(900));
    assert!(matches!(
        worker.observe_container(Some(&running("b")), at(900)),
        Reschedule::First(_)
    ));
}

// PRB-7
#[test]
fn the_initial_delay_counts_from_the_containers_start() {
    let mut slow = entry();
    let mut probe = probe();
    probe.initial_delay_seconds = 5;
    slow.probe = Arc::new(probe);
    // The container started at 0.
    for (now, first) in [
        (0, 50),
        (1_950, 50),
        (4_999, 50),
        (5_001, 51),
        (90_000, 900),
    ] {
        let mut worker = Worker::new(slow.clone(), None, Duration::ZERO);
        let change = worker.observe_container(Some(&running("a")), at(now));
        assert_eq!(
            change,
            Reschedule::First(TimeSlot::not_before(Duration::from_millis(first * 100))),
            "{now}"
        );
    }
}

// PRB-7
#[test]
fn a_clock_that_was_set_back_makes_no_initial_delay_longer() {
    let mut slow = entry();
    let mut probe = probe();
    probe.initial_delay_seconds = 5;
    slow.probe = Arc::new(probe);
    let mut worker = Worker::new(slow, None, Duration::ZERO);
    let mut now = at(1_000);
    now.wall -= SignedDuration::from_hours(2);
    let change = worker.observe_container(Some(&running("a")), now);
    assert_eq!(
        change,
        Reschedule::First(TimeSlot::containing(Duration::from_secs(6)))
    );
}

// PRB-10, DEF-12
#[test]
fn another_handler_makes_unknown_and_other_timing_keeps() {
    let mut other = entry();
    other.revision = Some("2".into());
    let mut worker = succeeding();
    assert_eq!(worker.update_entry(other, at(500)), Reschedule::Cancel);
    assert_eq!(worker.state(), Some(State::Unknown));
    assert!(matches!(
        worker.observe_container(Some(&running("a")), at(500)),
        Reschedule::First(_)
    ));

    let mut slower = entry();
    let mut probe = probe();
    probe.period_seconds = NonZeroU32::new(60).unwrap();
    slower.probe = Arc::new(probe);
    let mut worker = succeeding();
    assert_eq!(
        worker.update_entry(slower.clone(), at(500)),
        Reschedule::Keep
    );
    assert_eq!(worker.state(), Some(State::Succeeded));
    let next = Reschedule::Next(TimeSlot::containing(Duration::from_secs(61)));
    assert_eq!(run(&mut worker, 2, at(1_010), Ok(succeeded())), next);
    // And back: it does not wait the minute out.
    let next = Reschedule::Next(TimeSlot::containing(Duration::from_secs(3)));
    assert_eq!(worker.update_entry(entry(), at(1_950)), next);
}

#[test]
fn a_revision_that_the_api_server_begins_to_keep_is_no_other_probe() {
    let mut without = entry();
    without.revision = None;
    let mut worker = succeeding();
    for same in [without.clone(), entry()] {
        assert_eq!(worker.update_entry(same, at(500)), Reschedule::Keep);
        assert_eq!(worker.state(), Some(State::Succeeded));
    }
    let mut probe = probe();
    probe.handler = Handler::TcpSocket {
        port: std::num::NonZeroU16::MAX,
    };
    without.probe = Arc::new(probe);
    assert_eq!(worker.update_entry(without, at(500)), Reschedule::Cancel);
    assert_eq!(worker.state(), Some(State::Unknown));
}

// PRB-13
#[test]
fn what_could_not_be_probed_is_retried_and_then_dropped() {
    let busy = || Err(CannotProbe::Runtime("busy".into()));
    let mut worker = succeeding();
    assert!(
        worker
            .begin_run(RunId(2), TimeSlot::containing(Duration::from_secs(1)))
            .is_some()
    );
    assert_eq!(
        worker.finish_run(RunId(2), busy(), at(1_010)),
        Reschedule::Retry
    );
    assert_eq!(
        worker.finish_run(RunId(2), busy(), at(1_020)),
        Reschedule::Retry
    );
    let next = Reschedule::Next(TimeSlot::containing(Duration::from_secs(2)));
    assert_eq!(worker.finish_run(RunId(2), busy(), at(1_030)), next);
    assert_eq!(worker.state(), Some(State::Succeeded));
    assert!(worker.has_dropped_runs());
    assert_eq!(
        run(&mut worker, 3, at(2_010), Err(CannotProbe::Deadline)),
        Reschedule::Next(TimeSlot::containing(Duration::from_secs(3)))
    );
}

#[test]
fn a_runtime_that_does_not_know_disproves_no_previous_verdict() {
    for (about, state) in [
        (None, State::Succeeded),
        (Some("a"), State::Succeeded),
        (Some("b"), State::Unknown),
    ] {
        let left = Verdict {
            since: Timestamp::from_second(2_000).ok(),
            container: about.map(Arc::from),
            ..Verdict::new(State::Succeeded, "ok")
        };
        let mut worker = Worker::new(entry(), Some(left), Duration::ZERO);
        let mut silent = running("a");
        silent.state = RuntimeState::Unknown;
        assert_eq!(
            worker.observe_container(Some(&silent), at(5_000)),
            Reschedule::Cancel
        );
        assert_eq!(worker.state(), Some(state), "{about:?}");
    }
}

// PPM-12, PRB-11
#[test]
fn a_previous_verdict_is_taken_if_it_fits_the_container() {
    let left = |container: Option<&str>, since| Verdict {
        since: Timestamp::from_second(since).ok(),
        container: container.map(Arc::from),
        ..Verdict::new(State::Succeeded, "ok")
    };
    // The container started at second 1,000.
    let table = [
        (left(Some("a"), 0), State::Succeeded),
        (left(Some("b"), 2_000), State::Unknown),
        (left(None, 1_000), State::Succeeded),
        (left(None, 999), State::Unknown),
    ];
    for (left, expected) in table {
        let mut worker = Worker::new(entry(), Some(left.clone()), Duration::ZERO);
        worker.observe_container(Some(&running("a")), at(5_000));
        assert_eq!(worker.state(), Some(expected), "{left:?}");
        assert_eq!(
            worker.last_known_state(),
            Some(State::Succeeded),
            "{left:?}"
        );
    }
}

// PRB-12, PPM-21, PPM-22
#[test]
fn output_that_does_not_match_counts_towards_the_threshold_and_other_values_are_a_change() {
    let expected = |mismatch: &str| {
        let wire = json!({ "matches": "^(?<role>primary|replica)", "mismatch": mismatch });
        Arc::new(serde_json::from_value(wire).unwrap())
    };
    for (mismatch, state) in [("Failed", State::Failed), ("Unknown", State::Unknown)] {
        let expected = expected(mismatch);
        let mut outputs = CompiledOutputs::default();
        let mut patient = entry();
        let mut probe = probe();
        probe.failure_threshold = NonZeroU32::new(2).unwrap();
        patient.probe = Arc::new(probe);
        let mut worker = Worker::new(patient, None, Duration::ZERO);
        worker.observe_container(Some(&running("a")), at(0));
        let mut seen = Vec::new();
        for (second, output) in
            (1_u64..).zip(["primary 1", "primary 2", "replica", "", "x", "primary"])
        {
            let now = at(second * 1_000);
            let result = Ok(Outcome::Succeeded(output.to_owned()));
            let judged = outputs.judge_run(Some(&expected), result);
            worker
                .begin_run(RunId(second), TimeSlot::containing(now.monotonic))
                .unwrap();
            worker.finish_run(RunId(second), judged, now);
            let verdict = worker.verdict().unwrap();
            let role = verdict
                .values
                .as_ref()
                .map(|values| values["role"].to_string());
            let since = verdict.since.unwrap().as_second() - 1_000;
            seen.push((verdict.state, role.unwrap_or_default(), since));
        }
        let found = |state, role: &str, since| (state, role.to_owned(), since);
        assert_eq!(
            seen,
            [
                found(State::Succeeded, "primary", 1),
                found(State::Succeeded, "primary", 1),
                found(State::Succeeded, "replica", 3),
                found(State::Succeeded, "replica", 3),
                found(state, "", 5),
                found(State::Succeeded, "primary", 6),
            ]
        );
    }
}
