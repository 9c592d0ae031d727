//! The node's state machine: events in, actions out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::node_pod_probe::ContainerProbeState;
use leadsman_api::{NodePodProbe, NodePodProbeStatus};

use super::container::{ContainerName, Containers};
use super::entries::{self, Entry, Malformed, without_scheme};
use super::execs::Execs;
use super::report::{MESSAGE_BYTES, Report, Row, Unprobed, WriteEnd, read_pod};
use super::schedule::{Schedule, Slot, Weight};
use super::verdict::{Verdict, whole_seconds};
use super::worker::{Wish, Worker};
use super::{Now, PodName, ProbeKey, cut};
use crate::podprobe::probe::{CannotProbe, Outcome, Probe, State};

/// Bounds of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Commands that may run at once on the node; at least one.
    pub execs: usize,
    /// Commands that may run at once in one pod; at least one.
    pub execs_per_pod: usize,
    /// Commands that may start in one slot, at least one; more, where an even share of all is more.
    pub execs_per_slot: u32,
}

/// One run of a probe. No two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(pub(super) u64);

/// One thing that happened.
#[derive(Debug)]
pub enum Event<'a> {
    /// The node's object as the API server shows it; `None` when there is none.
    Plan(Option<&'a NodePodProbe>),
    /// The runtime was looked at, and answered.
    Looked {
        /// When the look began; since the agent's start.
        began: Duration,
        /// What it showed; `None` when all is as it was the last time.
        containers: Option<Containers>,
    },
    /// A run has ended. Each [`Action::Run`] is answered by exactly one of these.
    Finished {
        /// Which.
        run: RunId,
        /// What it came to.
        result: Result<Outcome, CannotProbe>,
    },
    /// The time of [`Node::next`] has come.
    Tick,
    /// The write that [`Node::write`] began has ended.
    Written(WriteEnd),
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Run a probe.
    Run(Run),
    /// A verdict has changed.
    Changed(Change),
    /// We could not probe, and do not try this run again.
    Dropped {
        /// The probe.
        key: Arc<ProbeKey>,
        /// Why.
        cause: CannotProbe,
        /// Whether the run before it was not dropped.
        first: bool,
    },
    /// These entries cannot be followed; all of them, each time they change.
    Malformed(Vec<Malformed>),
}

/// A run to carry out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which.
    pub id: RunId,
    /// Of which probe.
    pub key: Arc<ProbeKey>,
    /// What to do.
    pub probe: Arc<Probe>,
    /// In this container and no other, by the runtime's id.
    pub container: Arc<str>,
    /// How long after its slot had begun it was taken up; a command's wait for a place is not in it.
    pub lag: Duration,
    /// How long a command waited for a place.
    pub waited: Duration,
}

/// A verdict that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Of which probe.
    pub key: Arc<ProbeKey>,
    /// From; `None` when it is the first.
    pub from: Option<State>,
    /// To.
    pub to: State,
    /// The probe's words.
    pub message: Arc<str>,
    /// Whether users are to be told: it is Succeeded or Failed, and the last of these was the other or there was none.
    pub tell: bool,
}

/// A run that is on its way. It keeps its place also when nobody wants its result any more.
#[derive(Debug)]
struct Flight {
    key: Arc<ProbeKey>,
    probe: Arc<Probe>,
    weight: Weight,
    /// When it left; since the agent's start.
    began: Duration,
}

/// A command that waits for a place.
#[derive(Debug)]
struct Queued {
    run: Run,
    since: Duration,
}

/// What one node probes, and what it holds of it.
#[derive(Debug)]
pub struct Node {
    workers: HashMap<Arc<ProbeKey>, Worker>,
    /// The keys of the workers, as the spec has them.
    order: Vec<Arc<ProbeKey>>,
    malformed: Vec<Malformed>,
    /// `None` until the runtime was looked at once since there is something to probe.
    containers: Option<Containers>,
    /// When the last look ended.
    looked: Timestamp,
    /// When the newest look began; since the agent's start.
    look_began: Option<Duration>,
    /// Since when there is something to probe; looks that began before it are of no use.
    probing_since: Duration,
    /// Whether there are workers that no look has judged.
    unjudged: bool,
    schedule: Schedule<Arc<ProbeKey>>,
    execs: Execs<RunId>,
    /// Commands that wait for a place.
    queued: HashMap<RunId, Queued>,
    flights: HashMap<RunId, Flight>,
    runs: u64,
    /// Workers that were ever made.
    hired: u64,
    /// Whether a plan was there: verdicts of an earlier agent are taken from the first alone.
    planned: bool,
    /// What users know of probes that went with the whole object: it may be made again.
    told: HashMap<Arc<ProbeKey>, State>,
    report: Report,
}

impl Node {
    /// A node without a plan.
    pub fn new(settings: Settings, now: Now) -> Self {
        Self {
            workers: HashMap::new(),
            order: Vec::new(),
            malformed: Vec::new(),
            containers: None,
            looked: now.wall,
            look_began: None,
            probing_since: Duration::ZERO,
            unjudged: false,
            schedule: Schedule::new(
                settings.execs_per_slot,
                u32::try_from(settings.execs).unwrap_or(u32::MAX),
            ),
            execs: Execs::new(settings.execs_per_pod, settings.execs),
            queued: HashMap::new(),
            flights: HashMap::new(),
            runs: 0,
            hired: 0,
            planned: false,
            told: HashMap::new(),
            report: Report::new(),
        }
    }

    /// Takes in what happened. The actions are to be carried out in their order.
    pub fn apply(&mut self, event: Event<'_>, now: Now) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Plan(object) => self.plan(object, now, &mut actions),
            Event::Looked { began, containers } => self.look(began, containers, now, &mut actions),
            Event::Finished { run, result } => self.finish(run, result, now, &mut actions),
            Event::Tick => {}
            Event::Written(end) => self.report.end(end, now),
        }
        self.take_turns(now, &mut actions);
        actions
    }

    /// When to call again with [`Event::Tick`] and to ask for a write, if nothing else happens before; since the
    /// agent's start, and perhaps past.
    pub fn next(&self) -> Option<Duration> {
        let turn = self.schedule.next().map(Slot::start);
        turn.into_iter().chain(self.write_at()).min()
    }

    /// When to ask for a write again; since the agent's start, and perhaps past.
    pub fn write_at(&self) -> Option<Duration> {
        self.report.next().filter(|_| !self.is_held())
    }

    /// The whole status to write, if a write is due; it is one's own duty then to answer with [`Event::Written`].
    ///
    /// Nothing is due before the runtime was looked at once: until then verdicts of an earlier agent are neither
    /// confirmed nor refuted.
    pub fn write(&mut self, now: Now) -> Option<NodePodProbeStatus> {
        if self.write_at()? > now.since_start {
            return None;
        }
        let rows: Vec<Row<'_>> = self
            .order
            .iter()
            .filter_map(|key| row(key, self.workers.get(key)?, self.looked))
            .collect();
        let unprobed: Vec<Unprobed> = self.unprobed().collect();
        self.report.begin(&rows, &unprobed, now)
    }

    fn unprobed(&self) -> impl Iterator<Item = Unprobed> + '_ {
        let workers = self.order.iter().filter_map(|key| {
            let cause = self.workers.get(key)?.cannot_probe()?;
            Some(Unprobed {
                pod: key.pod.clone(),
                probe: key.id.to_string(),
                why: cause.to_string(),
            })
        });
        // Without a uid there is nobody to be told.
        let malformed = self.malformed.iter().filter(|entry| !entry.uid.is_empty());
        workers.chain(malformed.map(|entry| Unprobed {
            pod: PodName {
                namespace: entry.namespace.as_str().into(),
                name: entry.pod.as_str().into(),
                uid: entry.uid.as_str().into(),
            },
            probe: entry.probe.clone(),
            why: format!("the entry cannot be followed: {}", entry.reason),
        }))
    }

    /// Since when a write has been due that was not made; since the agent's start.
    pub fn overdue(&self) -> Option<Duration> {
        self.report.overdue()
    }

    /// The containers that are probed, some more than once.
    pub fn containers(&self) -> impl Iterator<Item = ContainerName> + '_ {
        self.order.iter().map(|key| container_name(key))
    }

    /// Probes that were ever new in the plan. Nothing is judged about one before a look that began after it came.
    pub fn hired(&self) -> u64 {
        self.hired
    }

    /// What a result means. A command that the runtime does not answer by our own deadline has failed by its timeout, if
    /// a look that began after that timeout has succeeded: then the runtime lived when it was to end the command, and
    /// what hangs is the command. An earlier look does not tell: the runtime may hang since.
    pub fn judge(
        &self,
        run: RunId,
        result: Result<Outcome, CannotProbe>,
    ) -> Result<Outcome, CannotProbe> {
        match self.flights.get(&run) {
            Some(flight)
                if result == Err(CannotProbe::Deadline)
                    && flight.weight.is_exec()
                    && self.look_began > Some(flight.began + flight.probe.timeout()) =>
            {
                Ok(Outcome::timed_out(flight.probe.timeout()))
            }
            _ => result,
        }
    }

    /// How many commands run, and how many wait for a place.
    pub fn execs(&self) -> (usize, usize) {
        (self.execs.taken(), self.execs.waiting())
    }

    /// Verdicts, each with its state and the container that it is about.
    #[cfg(test)]
    pub(super) fn verdicts(&self) -> impl Iterator<Item = (&ProbeKey, &'static str, Option<&str>)> {
        self.order.iter().filter_map(|key| {
            let verdict = self.workers[key].verdict()?;
            Some((&**key, verdict.state.as_str(), verdict.container.as_deref()))
        })
    }

    /// The messages that are held.
    #[cfg(test)]
    pub(super) fn messages(&self) -> impl Iterator<Item = &str> {
        let verdicts = self.workers.values().filter_map(Worker::verdict);
        verdicts.map(|verdict| &*verdict.message)
    }

    fn is_held(&self) -> bool {
        self.containers.is_none() && !self.workers.is_empty()
    }

    fn plan(&mut self, object: Option<&NodePodProbe>, now: Now, actions: &mut Vec<Action>) {
        let (entries, malformed) = object.map(|o| entries::read(&o.spec)).unwrap_or_default();
        let status = object.map(|o| o.status.clone().unwrap_or_default());
        let left = if self.planned {
            HashMap::new()
        } else {
            status
                .as_ref()
                .map(|s| left_behind(s, now))
                .unwrap_or_default()
        };
        self.planned |= object.is_some();
        if self.malformed != malformed {
            self.malformed.clone_from(&malformed);
            actions.push(Action::Malformed(malformed));
        }
        if object.is_none() {
            self.remember_told();
        }
        if self.order.is_empty() || entries.is_empty() {
            // What was known of the containers may be long past by the time that there is something to probe again.
            self.containers = None;
            self.probing_since = now.since_start;
        }
        let orphans = self.retire(&entries);
        self.order = entries.iter().map(|(key, _)| key.clone()).collect();
        for (key, entry) in entries {
            if self.workers.contains_key(&key) {
                self.update(&key, entry, now, actions);
            } else {
                let name = (key.pod.clone(), key.id.to_string());
                let mut worker = hire(entry, left.get(&name), orphans.get(&name), now);
                if let Some(told) = self.told.remove(&key) {
                    worker.remember_told(told);
                }
                self.workers.insert(key, worker);
                self.hired += 1;
                self.unjudged = true;
            }
        }
        self.schedule.set_even(self.execs_a_slot());
        self.share_places(now, actions);
        self.report.observe(status);
    }

    /// Bounded by the last plan that had entries.
    fn remember_told(&mut self) {
        if !self.workers.is_empty() {
            let told = self.workers.iter();
            let told = told.filter_map(|(key, worker)| Some((key.clone(), worker.told()?)));
            self.told = told.collect();
        }
    }

    /// Lets workers go whose entries are gone. Returns their verdicts by pod and probe: the same probe may be about
    /// another container now.
    fn retire(
        &mut self,
        entries: &[(Arc<ProbeKey>, Entry)],
    ) -> HashMap<(PodName, String), Verdict> {
        let wanted: HashSet<&Arc<ProbeKey>> = entries.iter().map(|(key, _)| key).collect();
        let gone: Vec<Arc<ProbeKey>> = self
            .order
            .iter()
            .filter(|key| !wanted.contains(key))
            .cloned()
            .collect();
        let mut verdicts = HashMap::new();
        for key in gone {
            self.schedule.cancel(&key);
            self.report.forget(&key);
            let Some(worker) = self.workers.remove(&key) else {
                continue;
            };
            self.give_up(worker.running());
            if let Some(verdict) = worker.verdict() {
                verdicts.insert((key.pod.clone(), key.id.to_string()), verdict.clone());
            }
        }
        verdicts
    }

    fn update(&mut self, key: &Arc<ProbeKey>, entry: Entry, now: Now, actions: &mut Vec<Action>) {
        if self.workers.get(key).is_none_or(|w| *w.entry() == entry) {
            return;
        }
        self.with(key, actions, |worker, _| worker.update(entry, now));
        self.observe(key, now, actions);
    }

    fn look(
        &mut self,
        began: Duration,
        containers: Option<Containers>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        self.look_began = self.look_began.max(Some(began));
        if began < self.probing_since || self.order.is_empty() {
            return;
        }
        self.looked = now.wall;
        let first = self.containers.is_none();
        if containers.is_none() && !first && !self.unjudged {
            return;
        }
        if containers.is_some() || first {
            self.containers = Some(containers.unwrap_or_default());
        }
        if first {
            self.report.touch();
        }
        self.unjudged = false;
        for key in self.order.clone() {
            self.unjudged |= self.workers[&key].hired() > began;
            self.observe(&key, now, actions);
        }
    }

    fn observe(&mut self, key: &Arc<ProbeKey>, now: Now, actions: &mut Vec<Action>) {
        let began = self.look_began;
        self.with(key, actions, |worker, containers| match containers {
            Some(_) if began < Some(worker.hired()) => Wish::Keep,
            Some(containers) => worker.observe(containers.get(&container_name(key)), now),
            None => Wish::Keep,
        });
    }

    fn finish(
        &mut self,
        run: RunId,
        result: Result<Outcome, CannotProbe>,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let result = self.judge(run, result);
        let Some(Flight { key, weight, .. }) = self.flights.remove(&run) else {
            return;
        };
        let cause = result.as_ref().err().cloned();
        let worker = self.workers.get(&key);
        let first = worker.is_some_and(|worker| !worker.is_in_trouble());
        let wish = self.with(&key, actions, |worker, _| worker.finish(run, result, now));
        if wish == Wish::Again {
            self.again(&key, run, weight, now, actions);
            return;
        }
        if wish != Wish::Keep
            && let Some(cause) = cause
        {
            let key = key.clone();
            actions.push(Action::Dropped { key, cause, first });
        }
        if weight.is_exec() {
            self.execs.leave(&key.pod);
            self.admit(now, actions);
        }
    }

    /// The same run once more; a command keeps its place.
    fn again(
        &mut self,
        key: &Arc<ProbeKey>,
        id: RunId,
        weight: Weight,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(worker) = self.workers.get(key) else {
            return;
        };
        let Some(container) = worker.container() else {
            return;
        };
        let run = Run {
            id,
            key: key.clone(),
            probe: worker.entry().probe.clone(),
            container: container.clone(),
            lag: Duration::ZERO,
            waited: Duration::ZERO,
        };
        self.take_off(run, weight, now, actions);
    }

    /// Lets a worker decide, gives it the turn that it wants, and tells of its verdict.
    fn with(
        &mut self,
        key: &Arc<ProbeKey>,
        actions: &mut Vec<Action>,
        decide: impl FnOnce(&mut Worker, Option<&Containers>) -> Wish,
    ) -> Wish {
        let Some(worker) = self.workers.get_mut(key) else {
            return Wish::Keep;
        };
        let (before, told) = (worker.verdict().cloned(), worker.told());
        let running = worker.running();
        let trouble = worker.cannot_probe().cloned();
        let wish = decide(worker, self.containers.as_ref());
        if trouble.as_ref() != worker.cannot_probe() {
            self.report.touch();
        }
        // Looked up once: hashing keys is a good part of what a turn costs.
        let (weight, still, after) = (worker.weight(), worker.running(), worker.verdict().cloned());
        match wish {
            Wish::Keep | Wish::Again => {}
            Wish::Rest => self.schedule.cancel(key),
            Wish::First(earliest) => self.schedule.first(key.clone(), weight, earliest),
            Wish::Further(due) => self.further(key, weight, due),
            Wish::MakeUp(slot) => self.schedule.exactly(key.clone(), weight, slot),
        }
        if running != still {
            self.give_up(running);
        }
        if let Some(after) = after {
            self.tell(key, before.as_ref(), &after, told, actions);
        }
        wish
    }

    fn further(&mut self, key: &Arc<ProbeKey>, weight: Weight, due: Slot) {
        // A new period never puts a run off.
        let due = match self.schedule.slot_of(key) {
            Some(slot) if slot <= due => return,
            _ => due,
        };
        self.schedule.further(key.clone(), weight, due);
    }

    /// Nobody wants the result of this run any more: if it still waits for a place, it need not begin.
    fn give_up(&mut self, run: Option<RunId>) {
        if let Some(run) = run
            && self.queued.remove(&run).is_some()
        {
            self.execs.forget(&run);
        }
    }

    fn tell(
        &mut self,
        key: &Arc<ProbeKey>,
        before: Option<&Verdict>,
        verdict: &Verdict,
        told: Option<State>,
        actions: &mut Vec<Action>,
    ) {
        let before_state = before.map(|before| before.state);
        let same = before.filter(|before| {
            before.state == verdict.state
                && before.since == verdict.since
                && before.container == verdict.container
        });
        match same {
            None => self.report.touch(),
            Some(before) if before.message != verdict.message => self.report.reword(key),
            Some(_) => {}
        }
        if before_state != Some(verdict.state) {
            actions.push(Action::Changed(Change {
                key: key.clone(),
                from: before_state,
                to: verdict.state,
                message: verdict.message.clone(),
                tell: verdict.state != State::Unknown && told != Some(verdict.state),
            }));
        }
    }

    fn take_turns(&mut self, now: Now, actions: &mut Vec<Action>) {
        for (key, slot) in self.schedule.due(Slot::of(now.since_start)) {
            let Some(worker) = self.workers.get_mut(&key) else {
                continue;
            };
            let id = RunId(self.runs);
            let Some(container) = worker.begin(id, slot) else {
                continue;
            };
            self.runs += 1;
            let run = Run {
                id,
                key: key.clone(),
                probe: worker.entry().probe.clone(),
                container,
                lag: now.since_start.saturating_sub(slot.start()),
                waited: Duration::ZERO,
            };
            let weight = worker.weight();
            if !weight.is_exec() || self.execs.enter(&key.pod, id) {
                self.take_off(run, weight, now, actions);
            } else {
                let since = now.since_start;
                self.queued.insert(id, Queued { run, since });
            }
        }
    }

    fn admit(&mut self, now: Now, actions: &mut Vec<Action>) {
        while let Some(id) = self.execs.admit() {
            let Queued { mut run, since } = self
                .queued
                .remove(&id)
                .expect("who waits in line is in the queue, and leaves both together");
            run.waited = now.since_start.saturating_sub(since);
            let weight = Weight::exec(Duration::from_secs(run.probe.period_seconds.get().into()));
            self.take_off(run, weight, now, actions);
        }
    }

    /// Who is on the node says who may have how many places.
    fn share_places(&mut self, now: Now, actions: &mut Vec<Action>) {
        let mut pods: HashMap<Arc<str>, HashSet<&PodName>> = HashMap::new();
        for (key, worker) in &self.workers {
            if worker.weight().is_exec() {
                let pods = pods.entry(key.pod.namespace.clone()).or_default();
                pods.insert(&key.pod);
            }
        }
        let counts = pods.into_iter().map(|(name, pods)| (name, pods.len()));
        self.execs.plan(counts.collect());
        self.admit(now, actions);
    }

    fn take_off(&mut self, run: Run, weight: Weight, now: Now, actions: &mut Vec<Action>) {
        let flight = Flight {
            key: run.key.clone(),
            probe: run.probe.clone(),
            weight,
            began: now.since_start,
        };
        self.flights.insert(run.id, flight);
        actions.push(Action::Run(run));
    }

    /// Execs in a slot when all are spread evenly, rounded up.
    fn execs_a_slot(&self) -> u32 {
        let slots_a_second = 1.0 / super::SLOT.as_secs_f64();
        let execs = self.workers.values().filter(|w| w.weight().is_exec());
        let rate: f64 = execs
            .map(|w| 1.0 / f64::from(w.entry().probe.period_seconds.get()))
            .sum();
        // A sum of tenths may lie a little above what it should be.
        let rate = rate - 1e-6;
        let mut even = 1;
        while f64::from(even) * slots_a_second < rate {
            even += 1;
        }
        even
    }
}

fn container_name(key: &ProbeKey) -> ContainerName {
    ContainerName {
        pod: key.pod.clone(),
        name: key.container.clone(),
    }
}

fn row<'a>(key: &'a Arc<ProbeKey>, worker: &'a Worker, looked: Timestamp) -> Option<Row<'a>> {
    let verdict = worker.verdict()?;
    let probed = verdict.probed.filter(|_| worker.is_probing());
    Some(Row {
        key,
        revision: worker.entry().revision.as_ref(),
        verdict,
        probed: probed.unwrap_or(looked),
    })
}

/// A verdict of an earlier agent, and the revision that it was about.
struct Left {
    verdict: Verdict,
    revision: Option<String>,
}

/// A new worker, with the verdict that an earlier agent or an earlier entry of its name left.
///
/// OpenKruise's agent writes no revision, and an API server with OpenKruise's CRD keeps none; then only the container
/// can tell that a verdict is about something else.
fn hire(entry: Entry, left: Option<&Left>, orphan: Option<&Verdict>, now: Now) -> Worker {
    let fits = left.is_some_and(|left| {
        let both = left.revision.as_deref().zip(entry.revision.as_deref());
        both.is_none_or(|(left, entry)| left == entry)
    });
    let verdict = left.map(|left| &left.verdict).or(orphan).cloned();
    let mut worker = Worker::new(entry, verdict, now.since_start);
    if !fits {
        worker.doubt("the probe has changed", None, now);
    }
    worker
}

/// The verdicts in a status, by pod and probe. States that are none of ours are left out.
fn left_behind(status: &NodePodProbeStatus, now: Now) -> HashMap<(PodName, String), Left> {
    let mut left = HashMap::new();
    for pod in &status.pod_probe_statuses {
        let of = read_pod(pod);
        for state in &pod.probe_states {
            if let Some(verdict) = read_back(state, now) {
                let revision = state.revision.clone();
                let name = (of.clone(), state.name.clone());
                left.insert(name, Left { verdict, revision });
            }
        }
    }
    left
}

fn read_back(state: &ContainerProbeState, now: Now) -> Option<Verdict> {
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    Some(Verdict {
        state: state.state.parse().ok()?,
        // Another agent may have written more than ours would.
        message: cut(state.message.as_deref().unwrap_or_default(), MESSAGE_BYTES).into(),
        since: time(&state.last_transition_time).unwrap_or(whole_seconds(now.wall)),
        probed: time(&state.last_probe_time),
        container: state.container_id.as_deref().map(without_scheme),
    })
}
