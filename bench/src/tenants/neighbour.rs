//! The neighbour: pods of an ordinary namespace, one of which turns each second, and what a watch sees of their marks.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt as _};
use leadsman_process::clock;
use leadsman_tests::ObjectWatch;
use leadsman_tests::room::is_main;
use leadsman_tests::scene::differs;
use tokio::time::{Instant, sleep, sleep_until};

use crate::at_share;

/// A pod turns so often.
const BEAT: Duration = Duration::from_secs(1);
/// Each turn comes by this share of a beat later in its beat than the one before: all phases of a probe's period are met
/// alike (the golden section).
const PHASE: f64 = 0.618_034;
/// How long the last turns of a window may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks at whether they are over.
const PAUSE: Duration = Duration::from_millis(50);
const PAGE: u32 = 500;

/// Where verdicts come from: real pods, or an agent that is played.
pub(crate) trait Source {
    /// Turns what the probe of this pod finds.
    async fn turn(&self, pod: &str, on: bool) -> Result<()>;

    /// When the verdict of this pod was reported last, if that is known.
    fn reported(&self, _pod: &str) -> Option<Instant> {
        None
    }

    /// Creates a pod each second for so long, where that is of interest: how long each took, and which are wrong.
    async fn create(&self, _window: Duration) -> Result<Option<Flips>> {
        Ok(None)
    }

    /// What has to be done for it meanwhile.
    async fn serve(&self) -> Result<()> {
        std::future::pending().await
    }
}

/// The pods and a watch on them.
pub(crate) struct Neighbour {
    watch: ObjectWatch<Pod>,
    turns: RefCell<Turns>,
}

/// What came of the turns of a window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flips {
    /// From the turn at the source to the mark, in order; what was lost is as late as it was when that was found.
    pub(crate) times: Vec<Duration>,
    /// From the agent's report on, in order, where that is known.
    pub(crate) from_report: Vec<Duration>,
    /// Turns without a mark [`PATIENCE`] after the window, or when their pod was to turn again.
    pub(crate) lost: usize,
    /// Marks that say what no source has said.
    pub(crate) wrong: Vec<String>,
}

impl Neighbour {
    /// Begins with pods that are all marked as secondary.
    pub(crate) async fn begin(client: &Client, ns: &str, pods: Vec<String>) -> Result<Self> {
        let path = format!("/api/v1/namespaces/{ns}/pods");
        let pods = pods.into_iter().map(TurningPod::new).collect();
        Ok(Self {
            watch: ObjectWatch::begin(client, &path, PAGE).await?,
            turns: RefCell::new(Turns {
                pods,
                ..Turns::default()
            }),
        })
    }

    /// Turns one pod after the other for so long, and says what came of it.
    pub(crate) async fn flip(&mut self, window: Duration, source: &impl Source) -> Result<Flips> {
        let Self { watch, turns } = self;
        let flipping = async {
            let began = clock::monotonic();
            for beat in 0..u32::try_from(window.as_secs())? {
                let phase = BEAT.mul_f64((f64::from(beat) * PHASE).fract());
                sleep_until(began + BEAT * beat + phase).await;
                let turned = turns.borrow_mut().turn_next(clock::monotonic());
                if let Some((pod, on)) = turned {
                    source.turn(&pod, on).await?;
                }
            }
            let deadline = clock::monotonic() + PATIENCE;
            while turns.borrow().is_any_pending() && clock::monotonic() < deadline {
                sleep(PAUSE).await;
            }
            Ok(())
        };
        beside_watch(watch, turns, source, flipping).await?;
        Ok(turns.borrow_mut().take(clock::monotonic()))
    }
}

/// Does `work` while marks are watched and the source is served.
async fn beside_watch(
    watch: &mut ObjectWatch<Pod>,
    turns: &RefCell<Turns>,
    source: &impl Source,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    let watching = async {
        loop {
            let pod = watch.next().await;
            let (name, now) = (pod.name_any(), clock::monotonic());
            let reported = source.reported(&name);
            turns.borrow_mut().see(&name, mark(&pod), reported, now);
        }
    };
    tokio::select! {
        done = work => done,
        served = source.serve() => served,
        () = watching => Ok(()),
    }
}

/// What a pod's marks say; `None` where they say neither.
fn mark(pod: &Pod) -> Option<bool> {
    [true, false]
        .into_iter()
        .find(|main| differs(pod, &is_main(*main)).is_ok())
}

/// All pods, in the order in which they turn.
#[derive(Debug, Default)]
struct Turns {
    pods: Vec<TurningPod>,
    next: usize,
    flips: Flips,
}

#[derive(Debug)]
struct TurningPod {
    name: String,
    /// What its source says.
    on: bool,
    /// Since when, as long as the mark does not say so.
    pending: Option<Instant>,
    mark: Option<bool>,
}

impl TurningPod {
    fn new(name: String) -> Self {
        Self {
            name,
            on: false,
            pending: None,
            mark: Some(false),
        }
    }
}

impl Turns {
    /// The next pod, with what its source is to say from now on. One whose last turn is not marked yet does not turn again,
    /// and what it should have been is lost.
    fn turn_next(&mut self, now: Instant) -> Option<(String, bool)> {
        let place = self.next;
        self.next = (place + 1) % self.pods.len();
        let pod = &mut self.pods[place];
        if let Some(since) = pod.pending {
            self.flips.lost += 1;
            self.flips.times.push(now - since);
            return None;
        }
        pod.on = !pod.on;
        pod.pending = Some(now);
        Some((pod.name.clone(), pod.on))
    }

    fn see(&mut self, name: &str, mark: Option<bool>, reported: Option<Instant>, now: Instant) {
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.name == name) else {
            return;
        };
        let has_changed = std::mem::replace(&mut pod.mark, mark) != mark;
        if mark == Some(pod.on) {
            if let Some(since) = pod.pending.take() {
                self.flips.times.push(now - since);
                let report = reported.filter(|at| *at >= since);
                self.flips.from_report.extend(report.map(|at| now - at));
            }
        } else if has_changed {
            let wrong = format!("{name} is {mark:?} and should be {}", pod.on);
            self.flips.wrong.push(wrong);
        }
    }

    fn is_any_pending(&self) -> bool {
        self.pods.iter().any(|pod| pod.pending.is_some())
    }

    /// What came of all turns, those that are pending among them.
    fn take(&mut self, now: Instant) -> Flips {
        let mut flips = std::mem::take(&mut self.flips);
        let pending = self.pods.iter().filter_map(|pod| pod.pending);
        let late: Vec<_> = pending.map(|since| now - since).collect();
        flips.lost += late.len();
        flips.times.extend(late);
        flips.times.sort_unstable();
        flips.from_report.sort_unstable();
        flips
    }
}

impl Flips {
    pub(crate) fn median(&self) -> Duration {
        at_share(&self.times, 0.5)
    }

    pub(crate) fn largest(&self) -> Duration {
        at_share(&self.times, 1.0)
    }

    /// Fails where an undisturbed neighbour does not have what others are measured against.
    pub(crate) fn check_alone(&self) -> Result<()> {
        let (lost, wrong) = (self.lost, &self.wrong);
        ensure!(lost == 0, "{lost} flips were lost with nobody beside");
        ensure!(wrong.is_empty(), "wrong with nobody beside: {wrong:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(now: Instant) -> Turns {
        let names = ["a", "b"].map(str::to_owned);
        let mut turns = Turns {
            pods: names.map(TurningPod::new).into(),
            ..Turns::default()
        };
        assert_eq!(turns.turn_next(now), Some(("a".to_owned(), true)));
        turns
    }

    #[test]
    fn a_flip_ends_with_the_mark_that_its_source_says() {
        let now = clock::monotonic();
        let mut turns = turns(now);
        let after = |millis| now + Duration::from_millis(millis);
        turns.see("a", Some(false), None, after(10));
        assert!(turns.is_any_pending());
        turns.see("a", Some(true), Some(after(20)), after(30));
        turns.see("a", Some(true), None, after(40));
        let flips = turns.take(after(50));
        assert_eq!(flips.times, [Duration::from_millis(30)]);
        assert_eq!(flips.from_report, [Duration::from_millis(10)]);
        assert_eq!((flips.lost, flips.wrong.len()), (0, 0));
    }

    #[test]
    fn a_mark_that_no_source_has_said_is_wrong_once() {
        let now = clock::monotonic();
        let mut turns = turns(now);
        for mark in [Some(true), Some(false), Some(false), Some(true), None] {
            turns.see("a", mark, None, now);
        }
        turns.see("b", Some(true), None, now);
        turns.see("stranger", Some(true), None, now);
        assert_eq!(turns.take(now).wrong.len(), 3);
    }

    #[test]
    fn a_pod_that_is_to_turn_again_before_it_is_marked_loses_a_flip() {
        let now = clock::monotonic();
        let mut turns = turns(now);
        let later = now + BEAT;
        assert_eq!(turns.turn_next(later), Some(("b".to_owned(), true)));
        assert_eq!(turns.turn_next(later), None);
        turns.see("b", Some(true), None, later);
        let flips = turns.take(later);
        assert_eq!((flips.lost, flips.times.len()), (2, 3));
        assert!(flips.check_alone().is_err());
    }
}
