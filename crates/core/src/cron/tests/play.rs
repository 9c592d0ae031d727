//! A small API server with one cron job, watches that lag and replies that get lost; two processes that lead in turn and may
//! end at any time; a cleaner, a user and a clock that is set.

mod server;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leadsman_api::AdvancedCronJob;
use leadsman_api::slim::run::{self, BroadcastJobRun, Job};
use leadsman_reconcile::{
    Now, ObjectName, Reconciler, Refusal, ResourceVersion, Source, Write, WriteId,
};
use serde_json::{Value, json};

use crate::cron::cron_job::RunKind;
use crate::cron::world::Cron;

pub(super) const NAME: &str = "a";
pub(super) const UID: &str = "cron-job";
/// The cron job is created half a minute before the first time of `* * * * *`.
const BEGIN: i64 = 1_800_000_000 - 30;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Wait {
        seconds: i64,
    },
    /// The leader's watches show some events: of the cron job, or of its runs.
    Watch {
        runs: bool,
        events: usize,
    },
    /// The same, and what was queued is sent before any key has run.
    WatchAndSend {
        runs: bool,
        events: usize,
    },
    Answer(Answer),
    /// The leader's process ends, and begins again.
    Crash {
        done: bool,
    },
    /// The other process leads.
    Switch {
        done: bool,
    },
    /// A run ends.
    End {
        run: usize,
        fails: bool,
    },
    /// The cleaner deletes what has ended for its time to live.
    Clean,
    /// A user deletes a run, changes an annotation or pauses.
    Delete {
        run: usize,
    },
    Touch,
    Pause {
        paused: bool,
    },
    SetClock {
        by: i64,
    },
}

/// What becomes of the first write that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Done,
    DoneAndLost,
    Lost,
    Conflict,
    Refused,
}

/// A run on the server.
#[derive(Clone, Debug)]
pub(super) struct ServerRun {
    pub(super) body: Value,
    version: u64,
    /// The true time of its end.
    ended: Option<i64>,
}

type RunName = (RunKind, String);

enum Event {
    CronJob(Box<AdvancedCronJob>),
    Run(RunKind, Value),
    RunGone(RunKind, String, u64),
}

struct Process {
    reconciler: Reconciler<Cron>,
    cron_job: VecDeque<Event>,
    runs: VecDeque<Event>,
    /// What waits to be sent.
    dirty: BTreeSet<WriteId>,
}

pub(super) struct Play {
    pub(super) cron_job: AdvancedCronJob,
    pub(super) runs: BTreeMap<RunName, ServerRun>,
    version: u64,
    processes: [Process; 2],
    leader: usize,
    /// With the times at which they were sent.
    under_way: BTreeMap<WriteId, (Arc<Write<Cron>>, i64)>,
    retried: BTreeSet<WriteId>,
    /// True time, and how far the processes' clocks are ahead of it.
    pub(super) time: i64,
    skew: i64,
    /// The times that were run, and those of which nothing could remember it.
    pub(super) started: BTreeMap<i64, usize>,
    forgotten: BTreeSet<i64>,
    /// Those that only the leader's process remembers.
    remembered: BTreeSet<i64>,
    /// The events, as `reason: note`.
    pub(super) told: Vec<String>,
    /// The writes by their labels.
    pub(super) written: BTreeMap<&'static str, usize>,
    /// Answers all writes at once.
    pub(super) is_prompt: bool,
}

/// A cron job with this spec, whose runs are those of a kind.
#[expect(
    clippy::needless_pass_by_value,
    reason = "a spec is written where it is given"
)]
pub(super) fn cron_job(name: &str, kind: RunKind, spec: Value) -> AdvancedCronJob {
    let template = match kind {
        RunKind::Job => {
            json!({"jobTemplate": {"metadata": {"labels": {"l": "x"}}, "spec": {"new": 1}}})
        }
        RunKind::BroadcastJob => {
            json!({"broadcastJobTemplate": {"metadata": {"labels": {"l": "x"}}, "spec": {"new": 1}}})
        }
    };
    let created = Timestamp::from_second(BEGIN).unwrap();
    let mut object = json!({
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "AdvancedCronJob",
        "metadata": {
            "name": name, "namespace": "shop", "uid": UID, "resourceVersion": "1", "generation": 1,
            "creationTimestamp": created.to_string(),
        },
        "spec": {"schedule": "* * * * *", "template": template},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

impl Play {
    pub(super) fn new(cron_job: AdvancedCronJob) -> Self {
        let mut play = Self {
            cron_job,
            runs: BTreeMap::new(),
            version: 1,
            processes: [(); 2].map(|()| Process::new()),
            leader: 0,
            under_way: BTreeMap::new(),
            retried: BTreeSet::new(),
            time: BEGIN,
            skew: 0,
            started: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            remembered: BTreeSet::new(),
            told: Vec::new(),
            written: BTreeMap::new(),
            is_prompt: false,
        };
        for process in 0..2 {
            play.list(process, false);
        }
        play.leader().reconciler.begin_term();
        play.turn();
        play
    }

    /// One that answers and shows everything at once.
    pub(super) fn prompt(cron_job: AdvancedCronJob) -> Self {
        let mut play = Self::new(cron_job);
        play.is_prompt = true;
        play.turn();
        play
    }

    fn leader(&mut self) -> &mut Process {
        &mut self.processes[self.leader]
    }

    pub(super) fn step(&mut self, step: &Step) {
        match step {
            Step::Wait { seconds } => {
                self.time += seconds;
                self.end_late();
            }
            Step::Watch { runs, events } => self.watch(*runs, *events),
            Step::WatchAndSend { runs, events } => {
                self.watch(*runs, *events);
                self.send();
            }
            Step::Answer(answer) => self.answer(*answer),
            Step::Crash { done } => {
                self.end_under_way(*done);
                let leader = self.leader;
                self.processes[leader] = Process::new();
                self.list(leader, false);
                self.leader().reconciler.begin_term();
            }
            Step::Switch { done } => {
                self.end_under_way(*done);
                self.leader().dirty.clear();
                self.leader = 1 - self.leader;
                // What a new leader's watches have not shown is listed beside them.
                self.list(self.leader, true);
                self.leader().reconciler.begin_term();
            }
            Step::End { run, fails } => self.end_run(*run, *fails),
            Step::Clean => self.clean(),
            Step::Delete { run } => {
                if let Some(name) = self.runs.keys().nth(*run).cloned() {
                    self.forget(&name);
                    self.remove(&name);
                }
            }
            Step::Touch => self.change(|_| ()),
            Step::Pause { paused } => self.change(|job| job.spec.paused = *paused),
            Step::SetClock { by } => {
                self.skew += by;
                let unconfirmed = self
                    .status_active()
                    .into_iter()
                    .find(|run| run["uid"].is_null());
                if let Some(run) = unconfirmed.filter(|_| *by < 0) {
                    // How long a run was there is not known by a clock that was put back.
                    self.forgotten
                        .insert(time_of(run["name"].as_str().unwrap()));
                }
            }
        }
        self.turn();
    }

    pub(super) fn steps(&mut self, steps: &[Step]) {
        for step in steps {
            self.step(step);
        }
    }

    pub(super) fn wait(&mut self, seconds: i64) {
        self.step(&Step::Wait { seconds });
    }

    fn watch(&mut self, runs: bool, count: usize) {
        let now = self.now();
        let process = self.leader();
        for _ in 0..count {
            let events = if runs {
                &mut process.runs
            } else {
                &mut process.cron_job
            };
            let Some(event) = events.pop_front() else {
                return;
            };
            match event {
                Event::CronJob(job) => process
                    .reconciler
                    .observe_object(Arc::new(*job), Source::Watch),
                Event::Run(kind, body) => process.show_run(kind, body, Source::Watch),
                Event::RunGone(kind, name, version) => {
                    let (name, version) = (object_name(&name), ResourceVersion::from(version));
                    match kind {
                        RunKind::Job => process
                            .reconciler
                            .observe_deletion::<Job>(&name, version, now),
                        RunKind::BroadcastJob => {
                            process
                                .reconciler
                                .observe_deletion::<BroadcastJobRun>(&name, version, now);
                        }
                    }
                }
            }
        }
    }

    pub(super) fn show_all(&mut self) {
        self.watch(false, usize::MAX);
        self.watch(true, usize::MAX);
    }

    /// Lists everything for a process: a list with which its watch begins, or one beside it.
    fn list(&mut self, process: usize, is_beside: bool) {
        let (now, version) = (self.now(), ResourceVersion::from(self.version));
        let source = if is_beside {
            Source::Reply
        } else {
            Source::List(version)
        };
        let process = &mut self.processes[process];
        if !is_beside {
            process.cron_job.clear();
            process.runs.clear();
        }
        process
            .reconciler
            .observe_object(Arc::new(self.cron_job.clone()), source);
        let names = [object_name(self.cron_job.metadata.name.as_deref().unwrap())].into();
        process
            .reconciler
            .observe_list::<AdvancedCronJob>(&names, version, is_beside, now);
        for kind in RunKind::ALL {
            let mut names = BTreeSet::new();
            for ((_, name), run) in self.runs.iter().filter(|((of, _), _)| *of == kind) {
                process.show_run(kind, run.body.clone(), source);
                names.insert(object_name(name));
            }
            match kind {
                RunKind::Job => process
                    .reconciler
                    .observe_list::<Job>(&names, version, is_beside, now),
                RunKind::BroadcastJob => {
                    process
                        .reconciler
                        .observe_list::<BroadcastJobRun>(&names, version, is_beside, now);
                }
            }
        }
        process.reconciler.note_fields_kept::<AdvancedCronJob>(true);
    }

    /// No request is under way for longer than a minute.
    fn end_late(&mut self) {
        let is_late = |sent: i64| sent + 60 < self.time;
        let late = self.under_way.extract_if(.., |_, (_, sent)| is_late(*sent));
        for (id, _) in late.collect::<Vec<_>>() {
            self.leader().reconciler.note_failed(&id, false);
            self.retried.insert(id);
        }
    }

    /// What is under way when a process ends was carried out, or not.
    fn end_under_way(&mut self, done: bool) {
        while !self.under_way.is_empty() {
            self.answer(if done {
                Answer::DoneAndLost
            } else {
                Answer::Lost
            });
        }
        self.forgotten.append(&mut self.remembered);
    }

    fn answer(&mut self, answer: Answer) {
        let Some((id, (write, _))) = self.under_way.pop_first() else {
            return;
        };
        let now = self.now();
        let outcome = match answer {
            Answer::Done | Answer::DoneAndLost => self.carry_out(&write),
            Answer::Lost => Outcome::Done,
            Answer::Conflict => Outcome::NotDone,
            Answer::Refused => Outcome::Refused,
        };
        let is_lost = matches!(answer, Answer::Lost | Answer::DoneAndLost);
        let shown = write.kind().resource;
        if !is_lost {
            self.show_reply(shown, &id.name.name);
        }
        let reconciler = &mut self.leader().reconciler;
        match outcome {
            _ if is_lost => reconciler.note_failed(&id, false),
            Outcome::Done => {
                let shows_none = ["delete", "judge"].map(|verb| write.kind().label.contains(verb));
                reconciler.note_done(&id, shows_none == [false, false], now);
            }
            Outcome::Gone => reconciler.note_gone(&id, now),
            Outcome::NotDone => reconciler.note_failed(&id, true),
            Outcome::Refused => {
                let refusal = Refusal::Forbidden("exceeded quota".to_owned());
                reconciler.note_refused(&id, refusal, now);
            }
        }
        if is_lost || matches!(outcome, Outcome::NotDone) {
            self.retried.insert(id);
        }
    }

    /// The object that a reply shows, or that a creation has met.
    fn show_reply(&mut self, resource: &str, name: &str) {
        let kind = match resource {
            "jobs" => RunKind::Job,
            "broadcastjobs" => RunKind::BroadcastJob,
            _ => {
                let job = Arc::new(self.cron_job.clone());
                self.leader().reconciler.observe_object(&job, Source::Reply);
                return;
            }
        };
        if let Some(run) = self.runs.get(&(kind, name.to_owned())) {
            let body = run.body.clone();
            self.leader().show_run(kind, body, Source::Reply);
        }
    }

    /// The leader's API server serves a kind of runs no longer.
    pub(super) fn unserve(&mut self) {
        let (now, unknown) = (self.now(), ResourceVersion::UNKNOWN);
        let reconciler = &mut self.leader().reconciler;
        reconciler.observe_list::<BroadcastJobRun>(&BTreeSet::new(), unknown, false, now);
        self.turn();
    }

    /// Shows the leader a run of another namespace.
    pub(super) fn show_run_elsewhere(&mut self, kind: RunKind, name: &str) {
        self.version += 1;
        let owners = json!([{"apiVersion": "apps.kruise.io/v1beta1", "kind": "AdvancedCronJob", "name": NAME, "uid": UID, "controller": true}]);
        let body = json!({"metadata": {"name": name, "namespace": "elsewhere", "uid": "e", "resourceVersion": self.version.to_string(), "ownerReferences": owners}});
        self.leader().show_run(kind, body, Source::Watch);
        self.turn();
    }

    /// Runs the leader's reconciler and sends what is due.
    fn turn(&mut self) {
        let now = self.now();
        loop {
            let reconciler = &mut self.leader().reconciler;
            reconciler.run_keys(now);
            let effects = reconciler.take_effects(now);
            self.leader().dirty.extend(effects.dirty);
            self.send();
            if self.is_prompt {
                let is_quiet = self.under_way.is_empty();
                while !self.under_way.is_empty() {
                    self.answer(Answer::Done);
                }
                self.show_all();
                let retried = std::mem::take(&mut self.retried);
                self.leader().dirty.extend(retried);
                if !is_quiet {
                    continue;
                }
            }
            let effects = self.leader().reconciler.take_effects(now);
            self.leader().dirty.extend(effects.dirty);
            if effects
                .deadline
                .is_none_or(|deadline| deadline > now.monotonic)
            {
                break;
            }
        }
        // Sent again with the next step.
        let retried = std::mem::take(&mut self.retried);
        self.leader().dirty.extend(retried);
    }

    fn send(&mut self) {
        let now = self.now();
        for id in std::mem::take(&mut self.leader().dirty) {
            if self.under_way.contains_key(&id) {
                self.leader().dirty.insert(id);
                continue;
            }
            while let Some(write) = self.leader().reconciler.take_due(&id, now) {
                if write.kind().resource != "events" {
                    self.under_way.insert(id, (write, self.time));
                    break;
                }
                // Told once, whatever the answer is.
                let body = write.body();
                let text = |field: &str| body[field].as_str().unwrap_or_default();
                self.told
                    .push(format!("{}: {}", text("reason"), text("note")));
                self.leader().reconciler.note_done(&id, false, now);
            }
        }
    }

    /// Ends all faults: what is due runs, what has ended goes, and then nothing is written any more.
    pub(super) fn heal(&mut self) {
        self.is_prompt = true;
        self.step(&Step::Pause { paused: false });
        let to_minute = 61 - (self.time + self.skew).rem_euclid(60);
        self.wait(to_minute);
        // Longer than anything rests, and than the clock was put back.
        for _ in 0..20 {
            self.wait(60);
            while self.runs.values().any(|run| run.ended.is_none()) {
                self.step(&Step::End {
                    run: 0,
                    fails: false,
                });
            }
            self.step(&Step::Clean);
        }
        self.wait(60);
        let due = (self.time + self.skew).div_euclid(60) * 60;
        assert!(
            self.started.contains_key(&due),
            "{due} is due and not started: {:?}",
            self.started
        );
        assert_eq!(self.last(), Some(due));
        while self.runs.values().any(|run| run.ended.is_none()) {
            self.step(&Step::End {
                run: 0,
                fails: false,
            });
        }
        assert!(
            self.status_active().is_empty(),
            "{:?}",
            self.cron_job.status
        );
        assert!(self.runs.len() <= 4, "{:?}", self.runs.keys());
        self.step(&Step::Pause { paused: true });
        let written = self.written.clone();
        for _ in 0..20 {
            self.wait(60);
        }
        assert_eq!(self.written, written, "written without need");
    }

    fn now(&self) -> Now {
        let since = u64::try_from(self.time - BEGIN).unwrap();
        Now {
            monotonic: Duration::from_secs(since),
            wall: Timestamp::from_second(self.time + self.skew).unwrap(),
        }
    }

    /// The events with this reason.
    pub(super) fn told_of(&self, reason: &str) -> Vec<&str> {
        let told = self.told.iter().filter_map(|event| event.split_once(": "));
        told.filter(|(told, _)| *told == reason)
            .map(|(_, note)| note)
            .collect()
    }
}

impl Process {
    fn new() -> Self {
        let feature = Cron {
            default_zone: TimeZone::UTC,
        };
        Self {
            reconciler: Reconciler::new(feature, || Duration::ZERO),
            cron_job: VecDeque::new(),
            runs: VecDeque::new(),
            dirty: BTreeSet::new(),
        }
    }

    fn show_run(&mut self, kind: RunKind, body: Value, source: Source) {
        let run: run::Run = serde_json::from_value(body).unwrap();
        match kind {
            RunKind::Job => self.reconciler.observe_object(Arc::new(Job(run)), source),
            RunKind::BroadcastJob => {
                let run = Arc::new(BroadcastJobRun(run));
                self.reconciler.observe_object(&run, source);
            }
        }
    }
}

enum Outcome {
    Done,
    NotDone,
    Gone,
    Refused,
}

fn object_name(name: &str) -> ObjectName {
    ObjectName {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    }
}

/// The time in the name of a run.
pub(super) fn time_of(name: &str) -> i64 {
    name.rsplit('-').next().unwrap().parse().unwrap_or_default()
}
