use proptest::prelude::*;
use serde_json::json;

use super::super::NodeProbes;
use super::super::sim::{
    LIMITS, Sim, exec_probe, running_state, sim_with_succeeding_probe, tcp_probe,
};
use super::*;
use crate::podprobe::history::HistoryQuery;

/// A run of a test: its result, and its output repeated so many times.
#[derive(Clone, Debug)]
enum Step {
    Ends {
        result: RunResult,
        output: char,
        bytes: usize,
    },
    /// From now on there are so many probes.
    Probes(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let result = prop_oneof![
        Just(RunResult::Succeeded),
        Just(RunResult::Failed),
        Just(RunResult::CannotProbe)
    ];
    let ends = (
        result,
        prop_oneof![Just('a'), Just('b')],
        prop_oneof![Just(0), Just(7), 0_usize..3_000],
    );
    let step = prop_oneof![
        9 => ends.prop_map(|(result, output, bytes)| Step::Ends { result, output, bytes }),
        1 => (1_usize..40).prop_map(Step::Probes),
    ];
    prop::collection::vec(step, 0..60)
}

/// All runs ever, and of them those that must be kept: as many of the newest as fit.
#[derive(Default)]
struct Model(Vec<(RunResult, String)>);

impl Model {
    fn trim(&mut self, limits: ProbeHistoryLimits) {
        let fits = |newest: &[(RunResult, String)]| {
            // Equal outputs one after the other are there once.
            let mut outputs: Vec<_> = newest.iter().map(|(_, output)| output).collect();
            outputs.dedup();
            let outputs = outputs.into_iter().filter(|output| !output.is_empty());
            let outputs: usize = outputs.map(|output| 16 + output.len()).sum();
            newest.len() <= limits.runs && 40 * newest.len() + outputs <= limits.bytes
        };
        while !fits(&self.0) {
            self.0.remove(0);
        }
    }
}

fn result_of(result: RunResult, output: String) -> Result<Outcome, CannotProbe> {
    match result {
        RunResult::Succeeded => Ok(Outcome::Succeeded(output)),
        RunResult::Failed => Ok(Outcome::Failed(output)),
        RunResult::CannotProbe => Err(CannotProbe::Local(output)),
    }
}

fn text_of(result: &Result<Outcome, CannotProbe>) -> String {
    match result {
        Ok(Outcome::Succeeded(text) | Outcome::Failed(text)) => text.clone(),
        Err(error) => error.to_string(),
    }
}

fn end(runs: &mut RecentRuns, result: &Result<Outcome, CannotProbe>, limits: ProbeHistoryLimits) {
    let times = RunTimes {
        ended: "2026-01-02T03:04:05.5Z".parse().unwrap(),
        took: Duration::from_millis(500),
        waited: Duration::from_micros(7),
    };
    let run = runs.compact_run(result, times, limits);
    runs.push(run, limits);
}

proptest! {
    // PRB-26
    #[test]
    fn the_newest_runs_that_fit_are_kept(steps in steps(), runs in 1_usize..12, bytes in 4_000_usize..40_000) {
        let limits = HistoryLimits { runs_per_probe: runs, bytes };
        let mut of_one = limits.share_of_one(1);
        let (mut kept, mut model) = (RecentRuns::default(), Model::default());
        for step in steps {
            match step {
                Step::Ends { result, output, bytes } => {
                    let result_of = result_of(result, output.to_string().repeat(bytes));
                    end(&mut kept, &result_of, of_one);
                    let text = text_of(&result_of);
                    let most = 1_024.min(of_one.bytes - 56);
                    model.0.push((result, truncate(&text, most).to_owned()));
                }
                Step::Probes(probes) => {
                    of_one = limits.share_of_one(probes);
                    kept.trim_to_limits(of_one);
                }
            }
            model.trim(of_one);
            let recorded = kept.to_recorded_runs(false).into_iter();
            let recorded: Vec<_> = recorded
                .map(|run| (run.result, run.output.as_deref().unwrap_or_default().to_owned()))
                .collect();
            prop_assert_eq!(&recorded, &model.0);
            // Nothing is reserved: what is counted is what is taken.
            prop_assert_eq!(kept.0.capacity(), kept.0.len());
        }
    }
}

#[test]
fn a_run_is_told_as_it_was() {
    let mut runs = RecentRuns::default();
    let limits = HistoryLimits::with_runs_per_probe(3).share_of_one(1);
    end(&mut runs, &Ok(Outcome::Failed("no\n".to_owned())), limits);
    end(&mut runs, &Err(CannotProbe::NoAddress), limits);
    end(&mut runs, &Ok(Outcome::Succeeded(String::new())), limits);
    let recorded = runs.to_recorded_runs(false);
    let time: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    assert_eq!(recorded[0].time, MicroTime(time));
    assert_eq!(
        (recorded[0].duration_seconds, recorded[0].waited_seconds),
        (0.5, 0.000_007)
    );
    let told: Vec<_> = recorded
        .iter()
        .map(|run| (run.result.as_str(), run.output.as_deref()))
        .collect();
    let expected = [
        ("Failed", Some("no\n")),
        (
            "CannotProbe",
            Some("the container runtime reports no address of the pod that can be probed"),
        ),
        ("Succeeded", None),
    ];
    assert_eq!(told, expected);
    let without = runs.to_recorded_runs(true);
    assert!(without.iter().all(|run| run.output.is_none()));
    assert_eq!(without.len(), 3);
}

#[test]
fn equal_outputs_in_a_row_are_one() {
    let mut runs = RecentRuns::default();
    let limits = HistoryLimits::with_runs_per_probe(3).share_of_one(1);
    for _ in 0..2 {
        end(&mut runs, &Ok(Outcome::Failed("same".to_owned())), limits);
    }
    let [one, other] = &runs.0[..] else {
        panic!("{runs:?}");
    };
    let (one, other) = (one.output.as_ref(), other.output.as_ref());
    assert!(Arc::ptr_eq(one.unwrap(), other.unwrap()));
}

/// The results and outputs of the first probe of a node.
fn told(sim: &Sim, query: &HistoryQuery) -> Vec<(&'static str, String)> {
    let history = sim.node.answer_history_query(query);
    let runs = history.first().map(|probe| probe.runs.iter());
    runs.into_iter()
        .flatten()
        .map(|run| {
            let output = run.output.as_deref().unwrap_or_default();
            (run.result.as_str(), output.to_owned())
        })
        .collect()
}

fn everything() -> HistoryQuery {
    HistoryQuery::default()
}

// PRB-26
#[test]
fn a_node_tells_the_last_runs_of_each_probe_and_how_many_were_equal() {
    let mut sim = Sim::new();
    let probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 3});
    sim.plan_and_show(&[("m#p", probe)]);
    assert_eq!(
        sim.node.answer_history_query(&everything())[0].in_a_row,
        None
    );
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(Duration::from_millis(1_100), true, "good");
    sim.pass_time_with_results(Duration::from_secs(2), false, "bad");
    let history = sim.node.answer_history_query(&everything());
    let in_a_row = history[0].in_a_row.unwrap();
    assert_eq!(in_a_row.to_string(), "2 of 3 failures in a row");
    assert_eq!(
        (&*history[0].handler, history[0].period_seconds),
        ("tcpSocket", 1)
    );
    let bad = ("Failed", "bad".to_owned());
    let expected = [("Succeeded", "good".to_owned()), bad.clone(), bad.clone()];
    assert_eq!(told(&sim, &everything()), expected);
    sim.pass_time_with_results(Duration::from_secs(5), false, "bad");
    assert_eq!(told(&sim, &everything()), [bad.clone(), bad.clone(), bad]);
    for (namespace, pod, count) in [("ns", "p", 1), ("ns", "q", 0), ("other", "p", 0)] {
        let query = HistoryQuery {
            namespace: Some(namespace.to_owned()),
            pod: Some(pod.to_owned()),
            ..everything()
        };
        assert_eq!(
            sim.node.answer_history_query(&query).len(),
            count,
            "{namespace}/{pod}"
        );
    }
}

// PRB-26
#[test]
fn a_run_that_is_tried_again_is_kept_once_and_one_that_nobody_wants_never() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", exec_probe())]);
    sim.set_container(Some(("a", running_state())));
    for _ in 0..3 {
        let run = *sim.runs.keys().next().unwrap();
        sim.finish_run(run, Err(CannotProbe::Runtime("busy".to_owned())));
    }
    let busy = "the container runtime is unreachable or busy: busy".to_owned();
    assert_eq!(told(&sim, &everything()), [("CannotProbe", busy.clone())]);
    sim.pass_time(Duration::from_mins(1));
    let run = *sim.runs.keys().next().unwrap();
    sim.set_container(Some(("b", running_state())));
    sim.finish_run(run, Ok(Outcome::Failed("of another container".to_owned())));
    assert_eq!(told(&sim, &everything()), [("CannotProbe", busy)]);
}

// PRB-26
#[test]
fn runs_go_with_their_probe_and_when_it_becomes_another_one() {
    let mut sim = sim_with_succeeding_probe();
    assert!(!told(&sim, &everything()).is_empty());
    let other = json!({"tcpSocket": {"port": 81}, "periodSeconds": 1});
    sim.plan_and_show(&[("m#p", other)]);
    assert!(told(&sim, &everything()).is_empty());
    sim.pass_time_with_results(Duration::from_secs(2), true, "");
    assert!(!told(&sim, &everything()).is_empty());
    sim.plan_and_show(&[]);
    assert!(sim.node.answer_history_query(&everything()).is_empty());
    sim.plan_and_show(&[("m#p", tcp_probe())]);
    assert!(told(&sim, &everything()).is_empty());
}

// PRB-26
#[test]
fn without_a_history_nothing_is_kept() {
    let mut sim = Sim::new();
    sim.node = NodeProbes::new(LIMITS, HistoryLimits::NONE, sim.current_moment());
    sim.plan_and_show(&[("m#p", tcp_probe())]);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(Duration::from_secs(3), true, "output");
    assert!(told(&sim, &everything()).is_empty());
}
