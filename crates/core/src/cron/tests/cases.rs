//! One case each for rules and for defects of the original, on a server that answers at once.

use std::sync::Arc;

use jiff::tz::TimeZone;
use leadsman_api::AdvancedCronJob;
use rstest::rstest;
use serde_json::{Value, json};

use super::play::{Answer, NAME, Play, Step, UID, cron_job, time_of};
use crate::cron::cron_job::{CronJob, RunKind};

const KINDS: [RunKind; 2] = RunKind::ALL;

fn play(kind: RunKind, spec: Value) -> Play {
    Play::prompt(cron_job(NAME, kind, spec))
}

/// A template whose runs clean themselves up so many seconds after their end.
fn cleaned_up(kind: RunKind, seconds: i64) -> Value {
    let field = json!({"ttlSecondsAfterFinished": seconds});
    match kind {
        RunKind::Job => json!({"jobTemplate": {"spec": field}}),
        RunKind::BroadcastJob => {
            json!({"broadcastJobTemplate": {"spec": {"completionPolicy": field}}})
        }
    }
}

fn end() -> Step {
    Step::End {
        run: 0,
        fails: false,
    }
}

fn edit(play: &mut Play, change: impl FnOnce(&mut AdvancedCronJob)) {
    play.change(change);
    play.wait(0);
}

fn ready(play: &Play) -> (String, String) {
    let condition = &play.cron_job.status.as_ref().unwrap().conditions[0];
    assert_eq!(condition.type_, "Ready");
    (condition.reason.clone(), condition.message.clone())
}

// ACJ-14, ACJ-20, ACJ-21, ACJ-25, ACD-14, ACD-15, ACD-17, ACD-19, ACD-21
#[rstest]
fn a_run_is_made_at_its_time_and_costs_three_writes(#[values(KINDS[0], KINDS[1])] kind: RunKind) {
    let mut play = play(
        kind,
        json!({"timeZone": "Asia/Shanghai", "concurrencyPolicy": "Allow"}),
    );
    let status = json!(play.cron_job.status);
    assert_eq!(
        (&status["type"], &status["active"]),
        (&json!(kind.name()), &Value::Null)
    );
    let before = play.written.clone();
    play.wait(29);
    assert!(play.runs.is_empty());
    play.wait(1);
    let (name, run) = play.runs.first_key_value().unwrap();
    assert_eq!(name, &(kind, "a-1800000000".to_owned()));
    assert_eq!(
        run.body["metadata"]["annotations"],
        json!({"apps.kruise.io/scheduled-at": "2027-01-15T08:00:00Z"})
    );
    assert_eq!(run.body["metadata"]["labels"], json!({"l": "x"}));
    assert_eq!(run.body["spec"], json!({"new": 1}));
    let owner = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob", "name": NAME, "uid": UID,
        "controller": true, "blockOwnerDeletion": true}]);
    assert_eq!(run.body["metadata"]["ownerReferences"], owner);
    let uid = &run.body["metadata"]["uid"];
    let reference = json!({"apiVersion": kind.api_version(), "kind": kind.name(), "namespace": "shop", "name": name.1, "uid": uid});
    assert_eq!(play.status_active(), [reference]);
    assert_eq!(play.last(), Some(1_800_000_000));
    play.step(&end());
    assert!(play.status_active().is_empty());
    // The rest of the minute changes nothing.
    play.step(&Step::Touch);
    play.wait(29);
    let count = |label| {
        play.written.get(label).copied().unwrap_or_default()
            - before.get(label).copied().unwrap_or_default()
    };
    assert_eq!(["create", "advancedcronjob_status"].map(count), [1, 2]);
    let created = format!("created the {} a-1800000000", kind.name());
    let ended = format!("the {} a-1800000000 is complete", kind.name());
    assert_eq!(
        play.told,
        [
            format!("SuccessfulCreate: {created}"),
            format!("SawCompletedJob: {ended}")
        ]
    );
    assert_eq!(ready(&play).0, "Scheduled");
}

// ACD-1: the run is gone by its time to live, or by a user. It was run, whatever makes the cron job look again.
#[rstest]
fn a_time_whose_run_is_gone_is_not_run_again(
    #[values(KINDS[0], KINDS[1])] kind: RunKind,
    #[values(None, Some(2))] lives: Option<i64>,
) {
    let spec = lives.map_or(
        json!({}),
        |lives| json!({"template": cleaned_up(kind, lives)}),
    );
    let mut play = play(kind, spec);
    play.wait(30);
    play.step(&end());
    play.wait(2);
    play.step(&Step::Clean);
    play.step(&Step::Delete { run: 0 });
    assert!(play.runs.is_empty());
    play.steps(&[
        Step::Touch,
        Step::Crash { done: true },
        Step::Switch { done: true },
    ]);
    edit(&mut play, |job| {
        job.spec.starting_deadline_seconds = Some(100);
    });
    assert!(play.runs.is_empty() && play.last() == Some(1_800_000_000));
    play.wait(58);
    assert_eq!(play.started.len(), 2);
}

// ACD-1a, ACD-1b
#[rstest]
#[case(json!({"successfulJobsHistoryLimit": 0}), 60, 23)]
#[case(json!({"schedule": "@every 1s", "template": cleaned_up(KINDS[1], 0)}), 1, 102)]
fn a_history_of_none_is_one_run_a_time(
    #[case] spec: Value,
    #[case] every: i64,
    #[case] times: usize,
) {
    let mut play = play(KINDS[1], spec);
    let mut wait = if every == 1 { 1 } else { 30 };
    for time in 0..times {
        play.wait(wait);
        wait = every;
        assert_eq!(play.started.len(), time + 1);
        play.steps(&[end(), Step::Clean]);
        assert!(play.runs.is_empty());
    }
    assert_eq!(play.written["create"], times);
}

// ACD-2, ACJ-16, ACJ-18
#[rstest]
fn of_the_times_of_a_pause_the_latest_runs_and_the_others_are_told(
    #[values(101, 4_000)] times: i64,
) {
    let mut play = play(KINDS[0], json!({"schedule": "@every 1s", "paused": true}));
    play.wait(times);
    assert!(play.runs.is_empty());
    play.step(&Step::Pause { paused: false });
    assert_eq!(play.started.into_keys().collect::<Vec<_>>(), [play.time]);
    let told = play
        .told
        .iter()
        .find(|event| event.starts_with("MissedSchedule"))
        .unwrap();
    let count = if times > 1_000 {
        "more than 1000".to_owned()
    } else {
        times.to_string()
    };
    assert!(
        told.starts_with(&format!("MissedSchedule: {count} runs were due")),
        "{told}"
    );
}

// ACJ-17, ACD-3, ACD-18
#[rstest]
fn forbid_waits_for_the_end_of_a_run_and_no_longer(#[values(KINDS[0], KINDS[1])] kind: RunKind) {
    let mut play = play(kind, json!({"concurrencyPolicy": "Forbid"}));
    play.wait(30);
    play.wait(60);
    play.wait(60);
    assert_eq!(play.started.len(), 1);
    let told = play.told_of("JobAlreadyActive");
    assert_eq!(told.len(), 2);
    assert!(
        told[1].ends_with("waits for the Job a-1800000000 to end: concurrencyPolicy is Forbid")
            || kind == KINDS[1],
        "{told:?}"
    );
    play.wait(20);
    play.step(&end());
    // At once, and the latest of the two.
    assert_eq!(
        play.started.keys().copied().collect::<Vec<_>>(),
        [1_800_000_000, 1_800_000_120]
    );
    assert!(play.told_of("MissedSchedule")[0].starts_with("2 runs were due"));
}

// ACJ-17
#[rstest]
fn replace_deletes_a_run_before_it_makes_the_next_one(#[values(KINDS[0], KINDS[1])] kind: RunKind) {
    let mut play = play(kind, json!({"concurrencyPolicy": "Replace"}));
    play.wait(30);
    play.wait(60);
    let names: Vec<_> = play.runs.keys().map(|(_, name)| time_of(name)).collect();
    assert_eq!(names, [1_800_000_060]);
    assert_eq!(play.told_of("SuccessfulDelete").len(), 1);
}

// ACJ-1, ACJ-14
#[rstest]
#[case(0, 0, 0)]
#[case(20, 19, 1)]
#[case(20, 20, 0)]
fn a_run_begins_within_its_starting_deadline(
    #[case] deadline: i64,
    #[case] late: i64,
    #[case] runs: usize,
) {
    let mut play = play(KINDS[0], json!({"startingDeadlineSeconds": deadline}));
    play.wait(30 + late);
    assert_eq!(play.runs.len(), runs);
    assert_eq!(
        play.told_of("MissedSchedule").len(),
        usize::from(runs == 0 && deadline > 0)
    );
}

// ACD-4: refused, it is tried again after the cause is over.
#[test]
fn a_status_that_could_not_be_written_is_written_later() {
    let mut play = Play::new(cron_job(NAME, KINDS[0], json!({})));
    for answer in [
        Answer::Lost,
        Answer::Conflict,
        Answer::Lost,
        Answer::Refused,
    ] {
        play.step(&Step::Answer(answer));
    }
    assert!(play.cron_job.status.is_none());
    play.is_prompt = true;
    play.wait(301);
    assert!(play.last().is_some());
}

// ACD-5, ACD-6, ACJ-22
#[test]
fn runs_are_those_of_the_uid_whatever_the_version_and_the_name() {
    let mut play = play(KINDS[0], json!({"concurrencyPolicy": "Forbid"}));
    play.put_other(KINDS[1], "old", Some(UID));
    play.put_other(KINDS[0], "foreign", Some("an earlier cron job"));
    let active: Vec<_> = play
        .status_active()
        .iter()
        .map(|run| run["name"].clone())
        .collect();
    assert_eq!(active, ["old"]);
    play.wait(30);
    assert!(play.started.is_empty());
    assert_eq!(play.told_of("JobAlreadyActive").len(), 1);
}

// ACD-7
#[test]
fn a_name_that_leaves_no_room_for_the_time_is_cut() {
    let name = |length: usize| {
        let job = cron_job(&"x".repeat(length), KINDS[0], json!({}));
        let job = CronJob::read(&Arc::new(job), &TimeZone::UTC);
        job.run_name(jiff::Timestamp::from_second(1_800_000_000).unwrap())
            .name
    };
    assert_eq!(name(52).len(), 63);
    assert_eq!(name(53).len(), 63);
    assert_ne!(name(53)[..52], name(54)[..52], "they have hashes");
    let mut play = Play::prompt(cron_job(&"x".repeat(63), KINDS[0], json!({})));
    play.wait(30);
    assert_eq!(play.started.len(), 1);
    assert_eq!(play.told_of("LongName").len(), 1);
}

// ACD-8, ACD-10, ACD-11, ACJ-11, ACJ-15, ACJ-28
#[rstest]
#[case(json!({"timeZone": "Asia/Nowhere"}), "UnknownTimeZone")]
#[case(json!({"schedule": "TZ=0"}), "InvalidSchedule")]
#[case(json!({"schedule": "0 0 30 2 *"}), "InvalidSchedule")]
#[case(json!({"template": {}}), "InvalidTemplate")]
#[case(json!({"template": {"jobTemplate": {}, "broadcastJobTemplate": {}}}), "InvalidTemplate")]
#[case(json!({"template": {"imageListPullJobTemplate": {}}}), "InvalidTemplate")]
fn what_cannot_run_says_why_and_runs_when_it_is_corrected(
    #[case] spec: Value,
    #[case] reason: &str,
) {
    let mut play = play(KINDS[0], spec);
    play.wait(200);
    assert!(play.runs.is_empty());
    assert_eq!(ready(&play).0, reason);
    assert_eq!(play.told_of(reason), [ready(&play).1]);
    let good = cron_job(NAME, KINDS[0], json!({}));
    edit(&mut play, |job| job.spec = good.spec);
    assert_eq!((play.runs.len(), &*ready(&play).0), (1, "Scheduled"));
}

// ACD-12
#[test]
fn a_changed_template_is_that_of_the_next_run() {
    let mut play = play(KINDS[0], json!({}));
    play.wait(30);
    edit(&mut play, |job| {
        let template = job.spec.template.job_template.as_mut().unwrap();
        template.spec = serde_json::from_value(json!({"new": 2})).unwrap();
    });
    play.wait(60);
    let specs: Vec<_> = play
        .runs
        .values()
        .map(|run| run.body["spec"]["new"].clone())
        .collect();
    assert_eq!(specs, [1, 2]);
}

// ACD-13, ACD-14
#[test]
fn a_run_that_is_refused_is_told_and_tried_again_when_it_is_corrected() {
    let mut play = play(KINDS[0], json!({}));
    play.is_prompt = false;
    play.steps(&[Step::Wait { seconds: 30 }, Step::Answer(Answer::Refused)]);
    play.is_prompt = true;
    play.wait(10);
    assert_eq!(
        play.told_of("FailedCreate"),
        ["cannot create the Job a-1800000000: exceeded quota"]
    );
    assert!(play.runs.is_empty());
    edit(&mut play, |job| {
        let template = job.spec.template.job_template.as_mut().unwrap();
        template.spec = leadsman_api::Verbatim::default();
    });
    assert_eq!(play.runs.len(), 1);
}

// ACJ-20: whoever may read the uid may write it elsewhere.
#[rstest]
fn an_object_of_another_namespace_is_no_run(#[values(KINDS[0], KINDS[1])] kind: RunKind) {
    let mut play = play(kind, json!({"concurrencyPolicy": "Forbid"}));
    play.wait(29);
    play.show_run_elsewhere(kind, "z-1800000000");
    play.wait(1);
    assert_eq!(play.started.len(), 1);
}

// ACJ-14
#[test]
fn a_cron_job_that_is_made_again_begins_anew() {
    let mut play = play(KINDS[0], json!({}));
    play.wait(30);
    play.step(&end());
    play.wait(10);
    play.replace();
    edit(&mut play, |job| {
        // Its only time since the run of before is earlier than itself.
        job.spec.schedule = "0 8 15 1 *".to_owned();
        job.spec.time_zone = Some("UTC".to_owned());
    });
    play.wait(5);
    assert_eq!(play.started.len(), 1);
    assert_eq!(play.last(), None);
}

// ACJ-28
#[test]
fn runs_of_a_kind_that_is_not_served_are_not_tried() {
    let mut play = play(KINDS[1], json!({}));
    play.unserve();
    play.wait(30);
    assert!(play.started.is_empty());
    let (reason, message) = ready(&play);
    assert_eq!(reason, "NotServed");
    assert!(message.contains("BroadcastJobGate"), "{message}");
    assert!(play.told_of("FailedCreate").is_empty());
}

#[rstest]
#[case(json!({"paused": true}), "Paused")]
#[case(json!({"startingDeadlineSeconds": 0}), "NeverInTime")]
#[case(json!({"template": {"jobTemplate": {"spec": {"x": "y".repeat(64 * 1024)}}}}), "InvalidTemplate")]
fn the_condition_says_why_nothing_runs(#[case] spec: Value, #[case] reason: &str) {
    let mut play = play(KINDS[0], spec);
    assert_eq!(ready(&play).0, reason);
    play.wait(61);
    assert!(play.started.is_empty());
}

// ACD-19
#[test]
fn a_clock_that_was_ahead_is_said() {
    let mut play = play(KINDS[0], json!({}));
    play.step(&Step::SetClock { by: 3600 });
    play.wait(60);
    let started = play.started.len();
    play.step(&Step::SetClock { by: -3600 });
    play.wait(60);
    assert_eq!(play.started.len(), started);
    play.step(&Step::Crash { done: true });
    assert_eq!(ready(&play).0, "LastScheduleAhead");
    play.wait(3700);
    assert_eq!(ready(&play).0, "Scheduled");
}

// ACD-13
#[rstest]
fn a_template_that_is_refused_is_told_before_its_time(#[values(KINDS[0], KINDS[1])] kind: RunKind) {
    let template = |is_refused| match kind {
        RunKind::Job => json!({"jobTemplate": {"spec": {"refused": is_refused}}}),
        RunKind::BroadcastJob => json!({"broadcastJobTemplate": {"spec": {"refused": is_refused}}}),
    };
    let mut play = play(kind, json!({"template": template(true)}));
    let why = "the API server refuses the runs of spec.template: exceeded quota";
    assert_eq!(ready(&play), ("TemplateRefused".to_owned(), why.to_owned()));
    assert_eq!(play.told_of("TemplateRefused"), [why]);
    // It is tried all the same.
    play.wait(30);
    assert_eq!(play.told_of("FailedCreate").len(), 1);
    edit(&mut play, |job| {
        job.spec.template = serde_json::from_value(template(false)).unwrap();
    });
    assert_eq!(ready(&play).0, "Scheduled");
    assert_eq!(play.runs.len(), 1);
    let judged = || {
        play.written
            .iter()
            .filter(|(label, _)| label.contains("judge"))
    };
    assert_eq!(judged().map(|(_, count)| count).sum::<usize>(), 1);
    let before = play.written.clone();
    play.steps(&[Step::Crash { done: true }, Step::Touch]);
    assert_eq!(play.written, before);
}

// ACD-20
#[test]
fn an_object_that_has_the_name_of_a_run_is_told_and_the_next_time_runs() {
    let mut play = play(KINDS[0], json!({}));
    play.put_other(KINDS[0], "a-1800000000", None);
    play.wait(30);
    assert!(play.started.is_empty());
    assert_eq!(play.told_of("FailedCreate").len(), 1);
    play.wait(60);
    assert_eq!(play.started.len(), 1);
    assert_eq!(play.told_of("FailedCreate").len(), 1);
}

// ACJ-23
#[test]
fn the_runs_that_began_first_go_first() {
    let mut play = play(
        KINDS[0],
        json!({"successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 1}),
    );
    play.wait(30);
    for number in 0..6 {
        play.step(&Step::End {
            run: 0,
            fails: number % 2 == 1,
        });
        play.wait(60);
    }
    let times: Vec<_> = play
        .runs
        .keys()
        .map(|(_, name)| (time_of(name) - 1_800_000_000) / 60)
        .collect();
    assert_eq!(times, [2, 4, 5, 6]);
}

/// A run that cleans itself up is announced in the status before it is made.
fn announced(lives: i64) -> Play {
    let mut play = play(KINDS[0], json!({"template": cleaned_up(KINDS[0], lives)}));
    play.is_prompt = false;
    play.steps(&[Step::Wait { seconds: 30 }, Step::Answer(Answer::Done)]);
    assert_eq!(play.last(), Some(1_800_000_000));
    assert_eq!(play.status_active()[0]["uid"], Value::Null);
    assert!(play.runs.is_empty());
    play
}

// ACD-1
#[rstest]
#[case(100, 90, true)]
#[case(100, 100, false)]
fn an_announced_run_is_made_after_a_crash_unless_it_may_have_been_cleaned_up(
    #[case] lives: i64,
    #[case] later: i64,
    #[case] is_made: bool,
) {
    let mut play = announced(lives);
    play.change(|job| job.spec.schedule = "0 * * * *".to_owned());
    play.time += later;
    play.is_prompt = true;
    play.step(&Step::Crash { done: false });
    assert_eq!(play.runs.len(), usize::from(is_made));
    let uid = play
        .status_active()
        .first()
        .map(|run| run["uid"].is_string());
    assert_eq!(uid, is_made.then_some(true));
    assert_eq!(play.told_of("MissedSchedule").len(), usize::from(!is_made));
    assert_eq!(play.last(), Some(1_800_000_000));
}

// ACD-1
#[test]
fn an_announced_run_is_made_however_late_by_the_process_that_announced_it() {
    let mut play = announced(0);
    for answer in [Answer::Conflict, Answer::Conflict] {
        play.steps(&[Step::Wait { seconds: 10 }, Step::Answer(answer)]);
    }
    play.is_prompt = true;
    play.wait(1);
    assert_eq!(play.started.len(), 1);
}

// ACD-1
#[test]
fn an_announced_run_of_which_the_answer_was_lost_is_not_made_again() {
    let mut play = announced(0);
    // Made, ended and cleaned up before the process hears of it.
    play.steps(&[Step::Answer(Answer::DoneAndLost), end(), Step::Clean]);
    assert!(play.runs.is_empty());
    play.is_prompt = true;
    play.wait(1);
    assert_eq!(play.started.len(), 1);
    assert!(play.status_active().is_empty());
}

#[test]
fn a_clock_that_is_set_runs_nothing_twice_and_tells_what_it_skips() {
    let mut play = play(KINDS[0], json!({}));
    play.wait(30);
    play.step(&Step::SetClock { by: -90 });
    play.wait(89);
    assert_eq!(play.started.len(), 1);
    play.step(&Step::SetClock { by: 600 });
    assert_eq!(play.started.len(), 2);
    assert!(
        play.told_of("MissedSchedule")[0].starts_with("9 runs were due"),
        "{:?}",
        play.told
    );
}

// ACJ-24
#[test]
fn a_cron_job_that_is_being_deleted_runs_nothing() {
    let mut play = play(KINDS[0], json!({}));
    edit(&mut play, |job| {
        job.metadata.deletion_timestamp = job.metadata.creation_timestamp.clone();
    });
    play.wait(100);
    assert!(play.runs.is_empty());
}
