//! `bench tenants`: one hostile namespace at a time beside an ordinary one, and what the ordinary one notices of it.
//! What is played is here; attacks on the manager are in `cluster::tenants`, attacks on an agent in `agent::tenants`.

pub(crate) mod kubelet;
pub(crate) mod neighbour;

use std::fmt;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use tokio::time::sleep;

use crate::progress::Step;
use crate::report::{Kind, Report};
use crate::{agent, at_share, cluster, figures};
use kubelet::{Kept, READY_WITHIN, Seen, Tended};
use neighbour::{Flips, Neighbour, Source};

/// How long the neighbour flips alone, and beside an attack, at full size.
const ALONE: Duration = Duration::from_secs(15);
const BESIDE: Duration = Duration::from_secs(24);
const SHORTEST: Duration = Duration::from_secs(6);
/// Before the neighbour flips beside an attack, that lasts already.
const LASTING: Duration = Duration::from_secs(2);

/// What a hostile namespace does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attack {
    /// 400 markers of 14 × 256 values that select the labels that others of them set
    Markers,
    /// 60 Pending pods of 100,000 labels
    Labels,
    /// 80 Pending pods of 1.3 MB, whose text JSON escapes
    Pods,
    /// 5,000 pods of which every verdict turns all the time
    Flaps,
    /// 10 calls of the webhook that stall in the middle of a body
    Bodies,
    /// 256 probes that find 1 KiB of `<`
    Messages,
    /// 1,300 probes of a server that sends 63 KiB of header and no end of it
    Heads,
    /// 100 commands that hang
    Commands,
}

impl Attack {
    fn needs_node(self) -> bool {
        matches!(self, Self::Messages | Self::Heads | Self::Commands)
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// All attacks, or only these.
pub(crate) fn measure(scale: f64, only: &[Attack]) -> Result<Report> {
    let mut report = Report::new("tenants", scale, include_str!("../../pages/tenants.md"));
    let is_wanted = |attack: &Attack| only.is_empty() || only.contains(attack);
    let wanted = Attack::value_variants().iter().copied();
    let (nodes, planes): (Vec<_>, Vec<_>) = wanted
        .filter(is_wanted)
        .partition(|attack| attack.needs_node());
    for attack in planes {
        cluster::tenants::measure(attack, scale, &mut report)?;
    }
    if !nodes.is_empty() {
        agent::tenants::measure(&nodes, scale, &mut report)?;
    }
    Ok(report)
}

/// Who is attacked: a neighbour, where its verdicts come from, and the processes of leadsman.
pub(crate) struct Scene<'a, S, K> {
    pub(crate) neighbour: &'a mut Neighbour,
    pub(crate) source: &'a S,
    pub(crate) manager: &'a Tended<K>,
    pub(crate) agent: Option<&'a Tended<K>>,
}

impl<S: Source, K: Kept> Scene<'_, S, K> {
    /// The neighbour flips alone; then `begin` brings an attack, and it flips beside that, while `keep_up` goes on. Then
    /// the manager starts beside all of it.
    pub(crate) async fn play(
        self,
        (attack, scale): (Attack, f64),
        begin: impl Future<Output = Result<()>>,
        keep_up: impl Future<Output = Result<()>>,
    ) -> Result<Played> {
        let window = |full: Duration| full.mul_f64(scale).max(SHORTEST);
        let (source, manager) = (self.source, self.manager);
        let (alone, created_alone) = {
            let _step = Step::begin(format!("{attack}: the neighbour alone"));
            let flips = self.neighbour.flip(window(ALONE), source);
            tokio::try_join!(flips, source.create(window(ALONE)))?
        };
        alone.check_alone()?;
        let attacked = async {
            {
                let _step = Step::begin(format!("{attack}: beginning"));
                begin.await?;
            }
            let _step = Step::begin(format!("{attack}: the neighbour beside it"));
            let beside = async {
                sleep(LASTING).await;
                let flips = self.neighbour.flip(window(BESIDE), source);
                tokio::try_join!(flips, source.create(window(BESIDE)))
            };
            tokio::select! {
                beside = beside => beside,
                ended = keep_up => Err(ended.err().unwrap_or_else(|| anyhow!("the attack ended"))),
            }
        };
        let tend_agent = async {
            match self.agent {
                Some(agent) => agent.tend().await,
                None => std::future::pending().await,
            }
        };
        let (beside, created) = tokio::select! {
            attacked = attacked => attacked?,
            Err(error) = manager.tend() => return Err(error),
            Err(error) = tend_agent => return Err(error),
        };
        let seen_of_manager = manager.take();
        let _step = Step::begin(format!("{attack}: a manager's start beside it"));
        Ok(Played {
            alone,
            beside,
            created: created_alone.zip(created),
            manager: seen_of_manager,
            agent: self.agent.map(Tended::take),
            start: manager.start_anew().await?,
            at_start: manager.take(),
        })
    }
}

/// What came of an attack.
pub(crate) struct Played {
    alone: Flips,
    beside: Flips,
    /// What the neighbour created alone and beside the attack.
    created: Option<(Flips, Flips)>,
    manager: Seen,
    agent: Option<Seen>,
    /// How long the manager's start took, and what was seen of it meanwhile.
    start: Option<Duration>,
    at_start: Seen,
}

impl Played {
    fn add_figures(&self, add: &mut Report) {
        let Self { alone, beside, .. } = self;
        add.compare(&figures::FLIP_MEDIAN, beside.median(), alone.median());
        add.compare(&figures::FLIP_LARGEST, beside.largest(), alone.largest());
        if !beside.from_report.is_empty() {
            let from_report = |flips: &Flips| at_share(&flips.from_report, 0.5);
            let [beside, alone] = [beside, alone].map(from_report);
            add.compare(&figures::FLIP_FROM_REPORT, beside, alone);
        }
        let lost = add.add(&figures::LOST_FLIPS, beside.lost);
        lost.note(format!("of {}", beside.times.len()));
        add_wrong(&figures::WRONG_VERDICTS, beside, add);
        if let Some((alone, beside)) = &self.created {
            add.compare(&figures::CREATED_MEDIAN, beside.median(), alone.median());
            add.compare(&figures::CREATED_LARGEST, beside.largest(), alone.largest());
            add_wrong(&figures::NOT_CREATED, beside, add);
        }
        add.add(&figures::MANAGER_PEAK, self.manager.peak);
        if let Some(agent) = &self.agent {
            add.add(&figures::AGENT_PEAK, agent.peak);
        }
        let of_agent = self.agent.iter().flat_map(|agent| &agent.restarts);
        let restarts: Vec<_> = self
            .manager
            .restarts
            .iter()
            .chain(of_agent)
            .copied()
            .collect();
        let figure = add.add(&figures::RESTARTS, restarts.len());
        figure.note(restarts.first().copied().unwrap_or_default());
        let started = add.add(&figures::MANAGER_START, self.start.unwrap_or(READY_WITHIN));
        if self.start.is_none() {
            let restarts = &self.at_start.restarts;
            let first = restarts.first().copied().unwrap_or("none");
            started.note(format!(
                "not ready by then; {} restarts, the first: {first}",
                restarts.len()
            ));
        }
        add.add(&figures::MANAGER_START_PEAK, self.at_start.peak);
    }
}

fn add_wrong(kind: &Kind, flips: &Flips, add: &mut Report) {
    let first = flips.wrong.first().cloned();
    let figure = add.add(kind, flips.wrong.len());
    figure.note(first.unwrap_or_default());
}

/// Adds what came of an attack. One that did not come to its end is written down as such: others are played yet.
pub(crate) fn add(attack: Attack, played: Result<Played>, report: &mut Report) {
    let add = report.section(attack);
    match played {
        Ok(played) => played.add_figures(add),
        Err(error) => {
            eprintln!("bench: {attack} broke off: {error:#}");
            add.add(&figures::BROKE_OFF, 1.0).note(format!("{error:#}"));
        }
    }
}
