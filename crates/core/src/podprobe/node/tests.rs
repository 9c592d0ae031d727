//! A node as a whole, case by case.

use std::collections::BTreeMap;
use std::time::Duration;

use leadsman_api::NodePodProbeStatus;
use serde_json::json;

use super::sim::{
    Sim, exec_probe, outcome_of, running_state, sim_with_succeeding_probe, tcp_probe,
};
use super::{
    ContainerName, ContainerState, NodeEvent, ObservedContainer, PodName, ProbeRun, StatusWriteEnd,
};
use crate::podprobe::probe::{CannotProbe, State};

const SECOND: Duration = Duration::from_secs(1);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

// PPM-11, PPM-14, PRB-9, DEF-11
#[test]
fn the_first_verdict_is_written_at_once_and_has_one_event() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", tcp_probe())]);
    sim.pass_time(SECOND);
    assert_eq!(sim.writes, 0, "no container was seen");
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(millis(100), true, "");
    assert_eq!(sim.writes, 1);
    sim.pass_time_with_results(30 * SECOND, true, "");
    assert_eq!(sim.writes, 1);
    assert_eq!(sim.take_verdict_changes(), [(None, State::Succeeded, true)]);
}

// PPM-11, PRB-11, DEF-8, DEF-10
#[test]
fn an_agents_restart_with_nothing_new_writes_nothing_and_sends_no_event() {
    for prunes in [false, true] {
        let mut sim = sim_with_succeeding_probe();
        if prunes {
            sim.prunes = true;
            sim.plan_and_show(&[("m#p", tcp_probe())]);
            sim.pass_time_with_results(SECOND, false, "no");
            sim.pass_time_with_results(SECOND, true, "ok");
        }
        sim.restart_agent();
        sim.pass_time(SECOND);
        sim.writes = 0;
        sim.changes.clear();
        sim.list_containers();
        sim.pass_time_with_results(60 * SECOND, true, "ok");
        assert_eq!(
            (sim.writes, sim.take_verdict_changes()),
            (0, vec![]),
            "{prunes}"
        );
    }
}

// PRB-10, PRB-11
#[test]
fn a_previous_verdict_is_kept_until_containers_were_listed() {
    let mut sim = sim_with_succeeding_probe();
    sim.restart_agent();
    let before = sim.object.status.clone();
    sim.pass_time(60 * SECOND);
    assert_eq!((sim.writes, &sim.object.status), (0, &before));
    // And then it does not fit.
    sim.set_container(Some(("b", ContainerState::Created)));
    sim.pass_time(millis(1));
    assert_eq!(sim.shown_states()["m#p"], "Unknown");
    assert_eq!(
        sim.take_verdict_changes(),
        [(Some(State::Succeeded), State::Unknown, false)]
    );
    sim.set_container(Some(("b", running_state())));
    sim.pass_time_with_results(SECOND, true, "ok");
    assert_eq!(sim.shown_states()["m#p"], "Succeeded");
    let back = [(Some(State::Unknown), State::Succeeded, false)];
    assert_eq!(sim.take_verdict_changes(), back, "users know already");
}

// PRB-10, PRB-11
#[test]
fn a_previous_verdict_of_another_handler_is_unknown_once_containers_were_listed() {
    let mut sim = sim_with_succeeding_probe();
    sim.object.spec.pod_probes[0].probes[0].revision = Some("other".to_owned());
    sim.restart_agent();
    sim.pass_time(60 * SECOND);
    assert_eq!(sim.writes, 0);
    sim.list_containers();
    sim.pass_time(millis(1));
    assert_eq!(sim.shown_states()["m#p"], "Unknown");
}

// PRB-10, DEF-12
#[test]
fn another_period_is_in_force_within_the_old_one_or_sooner() {
    let mut slow = tcp_probe();
    slow["periodSeconds"] = json!(60);
    let mut sim = Sim::new();
    let revision = |sim: &mut Sim, probe: &serde_json::Value| {
        sim.plan_unseen(&[("m#p", probe.clone())]);
        sim.object.spec.pod_probes[0].probes[0].revision = Some("same".to_owned());
        sim.show_object();
    };
    revision(&mut sim, &slow);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(5 * SECOND, true, "");
    revision(&mut sim, &tcp_probe());
    sim.pass_time_with_results(SECOND, false, "");
    assert_eq!(sim.shown_states()["m#p"], "Failed");
    // Slower again: what is due is due.
    revision(&mut sim, &slow);
    sim.pass_time_with_results(SECOND, true, "");
    assert_eq!(sim.shown_states()["m#p"], "Succeeded");
    sim.pass_time_with_results(30 * SECOND, false, "");
    assert_eq!(sim.shown_states()["m#p"], "Succeeded");
}

#[test]
fn a_wiped_status_heals() {
    let mut sim = sim_with_succeeding_probe();
    let before = sim.object.status.take();
    sim.show_object();
    sim.pass_time(SECOND);
    let states = |status: Option<NodePodProbeStatus>| {
        status.unwrap().pod_probe_statuses[0].probe_states[0]
            .last_transition_time
            .clone()
    };
    assert_eq!(sim.writes, 1);
    assert_eq!(states(sim.object.status), states(before));
}

// PPM-9, DEF-3, DEF-4
#[test]
fn entries_gone_from_the_plan_leave_the_status() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", tcp_probe()), ("m#q", tcp_probe())]);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(SECOND, true, "");
    assert_eq!(sim.shown_states().len(), 2);
    sim.plan_and_show(&[("m#q", tcp_probe())]);
    sim.pass_time_with_results(SECOND, true, "");
    assert_eq!(sim.shown_states().into_keys().collect::<Vec<_>>(), ["m#q"]);
    sim.plan_and_show(&[]);
    sim.pass_time_with_results(SECOND, true, "");
    assert!(sim.shown_states().is_empty());
    sim.runs.clear();
    sim.pass_time(60 * SECOND);
    assert!(sim.runs.is_empty());
}

// PPM-12
#[test]
fn the_same_probe_of_another_container_takes_its_verdict_back() {
    let mut sim = sim_with_succeeding_probe();
    sim.object.spec.pod_probes[0].probes[0].container_name = "other".to_owned();
    sim.object.spec.pod_probes[0].probes[0].revision = Some("other".to_owned());
    sim.show_object();
    sim.pass_time(SECOND);
    assert_eq!(sim.shown_states()["m#p"], "Unknown");
}

#[test]
fn a_malformed_entry_disturbs_no_other() {
    let mut sim = sim_with_succeeding_probe();
    sim.plan_and_show(&[
        ("m#p", tcp_probe()),
        ("m#bad", json!({})),
        ("nameless", tcp_probe()),
    ]);
    assert_eq!(sim.malformed, 2);
    sim.pass_time_with_results(60 * SECOND, true, "ok");
    assert_eq!(
        (sim.writes, sim.shown_states().len()),
        (1, 1),
        "both are reported, once"
    );
    assert_eq!(
        (sim.take_verdict_changes(), sim.shown_obstacles().len()),
        (vec![], 2)
    );
}

// PPM-6
#[test]
fn a_changed_message_alone_is_sent_once_in_ten_seconds_the_newest() {
    let mut sim = sim_with_succeeding_probe();
    sim.pass_time_with_results(20 * SECOND, true, "ok");
    for second in 0..30 {
        sim.pass_time_with_results(SECOND, true, &format!("players: {second}"));
    }
    assert!((3..=4).contains(&sim.writes), "{} writes", sim.writes);
    sim.pass_time_with_results(11 * SECOND, true, "players: 29");
    assert_eq!(sim.first_shown_message(), "players: 29");
    // With a verdict, it goes at once.
    sim.pass_time_with_results(SECOND, true, "just now");
    sim.pass_time_with_results(SECOND, false, "down");
    assert_eq!(sim.first_shown_message(), "down");
}

#[test]
fn a_changed_message_alone_is_not_even_compared_before_it_may_be_sent() {
    let mut sim = sim_with_succeeding_probe();
    sim.pass_time_with_results(20 * SECOND, true, "ok");
    sim.pass_time_with_results(SECOND, true, "players: 0");
    let sent = sim.current_moment().monotonic;
    for second in 1..8 {
        sim.pass_time(SECOND);
        sim.finish_all_runs(true, &format!("players: {second}"));
        let look_at = sim.node.write_at().unwrap();
        assert!(look_at >= sent + 8 * SECOND, "{look_at:?}");
    }
}

#[test]
fn a_flood_of_changes_is_written_five_times_a_second_at_most() {
    let mut sim = sim_with_succeeding_probe();
    for step in 0..10 {
        sim.set_container(Some((&step.to_string(), ContainerState::Created)));
        sim.pass_time(millis(50));
    }
    assert!((2..=4).contains(&sim.writes), "{} writes", sim.writes);
    sim.pass_time(SECOND);
    let status = sim.object.status.unwrap();
    let state = &status.pod_probe_statuses[0].probe_states[0];
    assert_eq!(state.container_id.as_deref(), Some("9"));
}

#[test]
fn a_failed_write_is_repeated_after_its_backoff() {
    let mut sim = sim_with_succeeding_probe();
    sim.failures = 8;
    sim.pass_time_with_results(60 * SECOND, false, "down");
    assert_eq!(sim.node.write_overdue_since(), None);
    assert_eq!((sim.failures, sim.writes), (0, 9));
    assert_eq!(sim.shown_states()["m#p"], "Failed");
    sim.failures = usize::MAX;
    sim.writes = 0;
    sim.pass_time_with_results(600 * SECOND, true, "up");
    // Every five seconds, less a part at random.
    assert!(sim.writes < 180, "{} writes", sim.writes);
    let overdue = sim.node.write_overdue_since().expect("a write is overdue");
    assert!(sim.current_moment().monotonic > overdue + 500 * SECOND);
}

// PPM-11, DEF-10
#[test]
fn time_alone_costs_a_write_in_ten_minutes() {
    let mut sim = sim_with_succeeding_probe();
    sim.pass_time_with_results(590 * SECOND, true, "ok");
    assert_eq!(sim.writes, 0);
    sim.pass_time_with_results(3_600 * SECOND, true, "ok");
    assert_eq!(sim.writes, 6);
    assert_eq!(sim.take_verdict_changes(), []);
    // Also where nothing can be probed; containers are listed all the same.
    sim.set_container(Some(("a", ContainerState::Exited { exit_code: 1 })));
    sim.pass_time(SECOND);
    sim.writes = 0;
    for _ in 0..3_600 {
        sim.list_containers();
        sim.pass_time(SECOND);
    }
    assert!((5..=6).contains(&sim.writes), "{} writes", sim.writes);
}

// PPM-11
#[test]
fn a_clock_that_is_set_back_does_not_end_the_refreshes() {
    let mut sim = sim_with_succeeding_probe();
    sim.clock_behind = 86_400 * SECOND;
    sim.pass_time_with_results(3_600 * SECOND, true, "ok");
    assert!((5..=6).contains(&sim.writes), "{} writes", sim.writes);
    assert_eq!(sim.take_verdict_changes(), []);
}

// PRB-17, DEF-23
#[test]
fn messages_are_cut_together_while_the_status_is_too_large() {
    let mut sim = Sim::new();
    let names: Vec<String> = (0..1_000).map(|n| format!("m#p{n}")).collect();
    let probes: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), tcp_probe()))
        .collect();
    sim.plan_and_show(&probes);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(SECOND, false, &"é".repeat(5_000));
    let size = serde_json::to_vec(&sim.object.status).unwrap().len();
    assert!(size <= 512 * 1024, "{size} bytes");
    assert_eq!(sim.shown_states().len(), 1_000);
    assert_eq!(sim.first_shown_message().len(), 256);
    sim.plan_and_show(&probes[..10]);
    sim.pass_time_with_results(11 * SECOND, false, &"é".repeat(5_000));
    assert_eq!(sim.first_shown_message().len(), 1_024);
}

// PRB-6
#[test]
fn a_run_that_hangs_is_made_up_for_once_and_delays_no_other() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#hangs", tcp_probe()), ("m#fine", tcp_probe())]);
    sim.set_container(Some(("a", running_state())));
    let mut begun: Vec<(bool, u128)> = Vec::new();
    sim.pass_time_doing(6 * SECOND, |sim| {
        let ready: Vec<_> = sim.runs.values().cloned().collect();
        for run in ready {
            let hangs = &*run.key.id.probe == "hangs";
            if begun.last() != Some(&(hangs, sim.world_millis())) {
                begun.push((hangs, sim.world_millis()));
            }
            if !hangs {
                sim.finish_run(run.id, Ok(outcome_of(true, "")));
            }
        }
        // From 0 to 3.55 s.
        if sim.world_millis() >= 3_600 {
            sim.finish_all_runs(true, "");
        }
    });
    let of = |which: bool| -> Vec<u128> {
        let mut times: Vec<u128> = begun.iter().filter(|b| b.0 == which).map(|b| b.1).collect();
        times.dedup();
        times
    };
    assert_eq!(of(false)[..4], [0, 1_000, 2_000, 3_000]);
    let hangs = of(true);
    assert_eq!(hangs[0], 0);
    assert_eq!(hangs[hangs.len() - 2..], [5_000, 6_000]);
}

// PRB-6, PRB-14
#[test]
fn a_connection_that_nobody_waits_for_is_cancelled_and_a_command_keeps_its_permit() {
    let http = |path: &str| json!({"httpGet": {"port": 80, "path": path}, "timeoutSeconds": 3_600});
    let exec = |word: &str| json!({"exec": {"command": [word]}, "timeoutSeconds": 3_600});
    let mut sim = Sim::new();
    sim.set_container(Some(("a", running_state())));
    for edit in 0..10 {
        let word = edit.to_string();
        sim.plan_and_show(&[("m#http", http(&word)), ("m#exec", exec(&word))]);
        sim.pass_time(SECOND);
    }
    let open = |sim: &Sim| {
        let open = sim.runs.keys().filter(|run| !sim.cancelled.contains(run));
        open.count()
    };
    let execs = super::sim::LIMITS.per_pod;
    assert_eq!(open(&sim), 1 + execs);
    sim.set_container(Some(("b", running_state())));
    sim.pass_time(SECOND);
    assert_eq!(open(&sim), 1 + execs);
    sim.plan_and_show(&[]);
    assert_eq!(open(&sim), execs);
    sim.finish_all_runs(true, "late");
    assert_eq!(sim.take_verdict_changes(), []);
}

// PRB-14
#[test]
fn execs_are_bounded_and_none_is_forgotten() {
    let mut sim = Sim::new();
    let names: Vec<String> = (0..6).map(|n| format!("m#p{n}")).collect();
    let probes: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), exec_probe()))
        .collect();
    sim.plan_and_show(&probes);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time(SECOND);
    assert_eq!((sim.runs.len(), sim.node.count_execs()), (2, (2, 4)));
    let mut ran = Vec::new();
    while ran.len() < 6 {
        let (id, run) = sim
            .runs
            .first_key_value()
            .map(|(i, r)| (*i, r.clone()))
            .unwrap();
        ran.push(run.key.id.to_string());
        sim.finish_run(id, Ok(outcome_of(true, "")));
        assert!(sim.runs.len() <= 2);
    }
    ran.sort();
    assert_eq!(ran, names);
    // A container that goes takes those that wait with it, and those under way keep their permits.
    sim.pass_time(SECOND);
    sim.set_container(Some(("b", ContainerState::Created)));
    assert_eq!(sim.node.count_execs().1, 0);
    assert_eq!(sim.node.count_execs().0, sim.runs.len());
    sim.finish_all_runs(true, "");
    assert_eq!(sim.node.count_execs(), (0, 0));
}

// PRB-14
#[test]
fn commands_that_hang_in_one_namespace_delay_no_others() {
    let mut sim = Sim::new();
    let probe = |n: usize| json!({"name": format!("m#p{n}"), "containerName": "main", "probe": exec_probe()});
    let pod = |namespace: &str, name: &str, probes: usize| {
        let probes: Vec<_> = (0..probes).map(probe).collect();
        json!({"name": name, "namespace": namespace, "uid": name, "IP": "", "probes": probes})
    };
    let hung = ["h0", "h1", "h2", "h3"].map(|name| pod("hostile", name, 6));
    let mut pods = hung.to_vec();
    // There from the beginning, and to come.
    let (fine, late) = (pod("fine", "f", 1), pod("late", "l", 1));
    pods.push(fine);
    let hostile = ["h0", "h1", "h2", "h3"].map(|name| ("hostile", name));
    for (namespace, name) in hostile.into_iter().chain([("fine", "f"), ("late", "l")]) {
        let pod = PodName {
            namespace: namespace.into(),
            name: name.into(),
            uid: name.into(),
        };
        let name = ContainerName {
            pod,
            name: "main".into(),
        };
        let (id, state) = ("c".into(), running_state());
        sim.containers.insert(name, ObservedContainer { id, state });
    }
    let mut begun: BTreeMap<String, Vec<u128>> = BTreeMap::new();
    for second in 0..60 {
        if second == 30 {
            pods.push(late.clone());
        }
        if second % 30 == 0 {
            sim.object.spec = serde_json::from_value(json!({"podProbes": pods})).unwrap();
            sim.show_object();
            sim.list_containers();
        }
        sim.pass_time_doing(SECOND, |sim| {
            for (id, run) in sim.runs.clone() {
                if &*run.key.pod.namespace != "hostile" {
                    let begun = begun.entry(run.key.pod.name.to_string()).or_default();
                    begun.push(sim.world_millis());
                    sim.finish_run(id, Ok(outcome_of(true, "")));
                }
            }
        });
    }
    assert_eq!(begun.keys().collect::<Vec<_>>(), ["f", "l"]);
    for (name, begun) in begun {
        let apart = begun.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(apart <= Some(1_200), "{name}: {apart:?}");
        assert!(begun.len() >= 27, "{name}: {}", begun.len());
    }
}

// PRB-13, PRB-14
#[test]
fn what_cannot_be_probed_is_tried_three_times_with_its_permit() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", exec_probe())]);
    sim.set_container(Some(("a", running_state())));
    for _ in 0..3 {
        assert_eq!(sim.node.count_execs(), (1, 0));
        let run = *sim.runs.keys().next().unwrap();
        sim.finish_run(run, Err(CannotProbe::Runtime("busy".to_owned())));
    }
    assert_eq!(
        (sim.runs.len(), sim.dropped, sim.node.count_execs()),
        (0, 1, (0, 0))
    );
    assert_eq!(sim.shown_states().len(), 0);
    sim.pass_time_with_results(SECOND, true, "");
    assert_eq!(sim.shown_states()["m#p"], "Succeeded");
}

#[test]
fn without_an_object_no_write_is_overdue() {
    let mut sim = sim_with_succeeding_probe();
    sim.failures = usize::MAX;
    sim.pass_time_with_results(SECOND, false, "down");
    assert!(sim.node.write_overdue_since().is_some());
    // It could not be written because the object was gone already.
    sim.apply_event(NodeEvent::Plan(None));
    assert_eq!(sim.node.write_overdue_since(), None);
}

#[test]
fn the_first_dropped_run_of_a_row_is_marked() {
    let mut sim = sim_with_succeeding_probe();
    let mut seen = Vec::new();
    for succeed in [false, false, true, false] {
        sim.pass_time(SECOND);
        let run = *sim.runs.keys().next().unwrap();
        let result = if succeed {
            Ok(outcome_of(true, "ok"))
        } else {
            Err(CannotProbe::NoAddress)
        };
        sim.finish_run(run, result);
        seen.push((sim.dropped, sim.first_drops));
    }
    assert_eq!(seen, [(1, 1), (2, 1), (2, 1), (3, 2)]);
}

#[test]
fn the_end_of_an_unknown_run_is_nothing() {
    let mut sim = sim_with_succeeding_probe();
    let run = super::RunId(u64::MAX);
    sim.apply_event(NodeEvent::RunFinished {
        run,
        result: Ok(outcome_of(false, "")),
        took: SECOND,
    });
    sim.pass_time(millis(1));
    assert_eq!((sim.writes, sim.take_verdict_changes()), (0, vec![]));
}

#[test]
fn without_an_object_nothing_is_written_or_probed() {
    let mut sim = sim_with_succeeding_probe();
    sim.pass_time(SECOND);
    sim.apply_event(NodeEvent::Plan(None));
    sim.runs.clear();
    sim.writes = 0;
    sim.pass_time(60 * SECOND);
    assert_eq!((sim.writes, sim.runs.len()), (0, 0));
    assert_eq!(sim.node.next_tick_at(), None);
}

#[test]
fn a_slow_write_puts_the_next_off_by_five_seconds_at_most() {
    for took in [SECOND, 8 * SECOND, 60 * SECOND] {
        let mut sim = sim_with_succeeding_probe();
        sim.write_takes = took;
        sim.pass_time_with_results(SECOND, false, "down");
        sim.write_takes = millis(5);
        let written = sim.current_moment().monotonic;
        sim.pass_time_with_results(5 * SECOND, true, "up");
        assert_eq!(sim.shown_states()["m#p"], "Succeeded", "{took:?}");
        let next = sim.node.write_at().unwrap();
        assert!(next < written + 3_600 * SECOND);
    }
}

#[test]
fn a_failed_write_is_made_again_within_five_seconds() {
    let mut sim = sim_with_succeeding_probe();
    sim.failures = usize::MAX;
    sim.pass_time_with_results(300 * SECOND, false, "down");
    // The API server is back.
    sim.failures = 0;
    sim.pass_time_with_results(5 * SECOND, false, "down");
    assert_eq!(sim.shown_states()["m#p"], "Failed");
}

#[test]
fn a_write_that_timed_out_is_made_again_at_once() {
    let mut sim = sim_with_succeeding_probe();
    sim.failures = 8;
    sim.write_takes = 10 * SECOND;
    sim.pass_time_with_results(80 * SECOND, false, "down");
    sim.write_takes = millis(5);
    sim.pass_time_with_results(SECOND, false, "down");
    assert_eq!(sim.shown_states()["m#p"], "Failed");
}

/// A status as OpenKruise's agent leaves it: no revision, no container id, messages of its own.
fn as_openkruise(sim: &mut Sim) {
    let status = sim.object.status.as_mut().unwrap();
    for state in &mut status.pod_probe_statuses[0].probe_states {
        state.revision = None;
        state.container_id = None;
        state.last_probe_time = state.last_transition_time.clone();
    }
}

// PRB-11, DEF-8
#[test]
fn verdicts_of_openkruises_agent_hold_where_the_container_does() {
    let mut sim = Sim::new();
    let probes = [
        ("idle#idle", exec_probe()),
        ("web#port", tcp_probe()),
        ("web#page", tcp_probe()),
    ];
    sim.plan_and_show(&probes);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time(SECOND);
    for run in sim.runs.keys().copied().collect::<Vec<_>>() {
        let succeeds = &*sim.runs[&run].key.id.probe != "page";
        sim.finish_run(run, Ok(outcome_of(succeeds, "message")));
    }
    sim.pass_time(SECOND);
    as_openkruise(&mut sim);
    let before = sim.shown_states();
    assert_eq!(before["web#page"], "Failed");
    // The manager has written revisions by now, the agent starts after it.
    sim.restart_agent();
    sim.list_containers();
    sim.pass_time_doing(30 * SECOND, |sim| {
        for run in sim.runs.keys().copied().collect::<Vec<_>>() {
            let succeeds = &*sim.runs[&run].key.id.probe != "page";
            sim.finish_run(run, Ok(outcome_of(succeeds, "message")));
        }
        assert_eq!(sim.shown_states(), before);
    });
    assert_eq!(sim.take_verdict_changes(), []);
}

// PRB-10, PRB-11
#[test]
fn a_verdict_of_openkruises_agent_from_before_the_containers_start_is_unknown() {
    let mut sim = sim_with_succeeding_probe();
    as_openkruise(&mut sim);
    sim.restart_agent();
    let started_at = super::sim::world_epoch() + 10 * SECOND;
    sim.set_container(Some(("b", ContainerState::Running { started_at })));
    sim.pass_time(millis(1));
    assert_eq!(sim.shown_states()["m#p"], "Unknown");
}

// PRB-11
#[test]
fn fields_that_the_api_server_begins_or_ceases_to_keep_change_no_verdict() {
    for (spec_prunes, status_prunes) in [(false, true), (true, false), (true, true)] {
        let mut sim = sim_with_succeeding_probe();
        if status_prunes {
            as_openkruise(&mut sim);
        }
        if spec_prunes {
            sim.object.spec.pod_probes[0].probes[0].revision = None;
        }
        sim.restart_agent();
        sim.list_containers();
        sim.pass_time_with_results(5 * SECOND, true, "ok");
        assert_eq!(
            sim.take_verdict_changes(),
            [],
            "{spec_prunes} {status_prunes}"
        );
    }
}

// PRB-17, DEF-23
#[test]
fn a_message_of_another_agent_is_cut_on_a_character_when_it_is_read() {
    let mut sim = sim_with_succeeding_probe();
    let state = &mut sim.object.status.as_mut().unwrap().pod_probe_statuses[0].probe_states[0];
    state.message = Some("é".repeat(100_000) + "é");
    sim.restart_agent();
    sim.list_containers();
    sim.pass_time(SECOND);
    assert_eq!(sim.node.verdict_messages().map(str::len).max(), Some(1_024));
    assert_eq!(sim.first_shown_message().len(), 1_024);
}

// PRB-13, PRB-14, PRB-16
#[test]
fn a_command_that_the_runtime_never_answers_fails_when_the_runtime_lives() {
    let mut sim = Sim::new();
    let mut probe = exec_probe();
    probe["failureThreshold"] = json!(3);
    sim.plan_and_show(&[("m#p", probe)]);
    sim.set_container(Some(("a", running_state())));
    let mut ends = Vec::new();
    for _ in 0..100 {
        sim.pass_time(millis(100));
        sim.list_containers();
        let now = sim.current_moment().monotonic;
        for (run, _) in sim.runs.clone() {
            if !ends.iter().any(|(known, _)| *known == run) {
                ends.push((run, now + 3 * SECOND));
            }
            if ends.contains(&(run, now)) {
                sim.finish_run(run, Err(CannotProbe::Deadline));
            }
        }
    }
    assert_eq!(sim.shown_states()["m#p"], "Failed");
    assert_eq!(
        sim.first_shown_message(),
        "command timed out: it did not end within 1s"
    );
    assert_eq!((sim.dropped, sim.runs.len() <= 1), (0, true));
}

// PRB-9, DEF-9
#[test]
fn containers_are_forgotten_with_the_last_probed_pod() {
    for gone in [false, true] {
        let mut sim = sim_with_succeeding_probe();
        sim.set_container(Some(("a", ContainerState::Exited { exit_code: 1 })));
        sim.pass_time(SECOND);
        let spec = sim.object.spec.clone();
        if gone {
            sim.apply_event(NodeEvent::Plan(None));
        } else {
            sim.plan_and_show(&[]);
        }
        sim.pass_time(60 * SECOND);
        sim.changes.clear();
        sim.writes = 0;
        sim.object.spec = spec;
        sim.show_object();
        sim.pass_time(SECOND);
        assert_eq!(
            (sim.take_verdict_changes(), sim.writes),
            (vec![], 0),
            "{gone}"
        );
        sim.set_container(Some(("b", running_state())));
        sim.pass_time_with_results(SECOND, true, "ok");
        assert_eq!(sim.shown_states()["m#p"], "Succeeded");
    }
}

// PPM-14, DEF-11
#[test]
fn an_object_created_again_sends_no_event_twice() {
    let mut sim = sim_with_succeeding_probe();
    sim.apply_event(NodeEvent::Plan(None));
    sim.pass_time(SECOND);
    sim.object.status = None;
    sim.show_object();
    sim.list_containers();
    sim.pass_time_with_results(SECOND, true, "ok");
    assert_eq!(
        sim.take_verdict_changes(),
        [(None, State::Succeeded, false)]
    );
    sim.pass_time_with_results(SECOND, false, "no");
    let reported = [(Some(State::Succeeded), State::Failed, true)];
    assert_eq!(sim.take_verdict_changes(), reported);
    // An entry that went by itself is reported again.
    sim.plan_and_show(&[]);
    sim.pass_time(SECOND);
    sim.plan_and_show(&[("m#p", tcp_probe())]);
    sim.list_containers();
    sim.pass_time_with_results(SECOND, false, "no");
    assert_eq!(sim.take_verdict_changes(), [(None, State::Failed, true)]);
}

// PRB-13, PRB-16
#[test]
fn a_command_without_an_answer_does_not_count_while_no_later_list_succeeds() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", exec_probe()), ("m#q", tcp_probe())]);
    sim.set_container(Some(("a", running_state())));
    let began = sim.current_moment().monotonic;
    for _ in 0..5 {
        sim.pass_time(3 * SECOND);
        // One that was under way when the command began has come back only now.
        sim.list_containers_from(began);
        for run in sim.runs.keys().copied().collect::<Vec<_>>() {
            sim.finish_run(run, Err(CannotProbe::Deadline));
        }
    }
    assert!(sim.shown_states().is_empty() && sim.dropped >= 8);
    // The runtime lives, but of a connection our own deadline proves nothing.
    sim.pass_time(3 * SECOND);
    sim.list_containers();
    for run in sim.runs.keys().copied().collect::<Vec<_>>() {
        sim.finish_run(run, Err(CannotProbe::Deadline));
    }
    sim.pass_time(SECOND);
    assert_eq!(sim.shown_states().into_keys().collect::<Vec<_>>(), ["m#p"]);
}

// PRB-9
#[test]
fn a_list_that_began_before_an_entry_came_does_not_concern_it() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", tcp_probe())]);
    sim.set_container(Some(("a", ContainerState::Exited { exit_code: 1 })));
    sim.pass_time(SECOND);
    let spec = sim.object.spec.clone();
    let began = sim.current_moment().monotonic;
    sim.pass_time(millis(10));
    sim.plan_and_show(&[]);
    sim.pass_time(SECOND);
    sim.object.spec = spec;
    sim.show_object();
    sim.changes.clear();
    sim.list_containers_from(began);
    sim.pass_time(SECOND);
    assert_eq!((sim.take_verdict_changes(), sim.runs.len()), (vec![], 0));
    sim.set_container(Some(("b", running_state())));
    sim.pass_time_with_results(SECOND, true, "");
    assert_eq!(sim.shown_states()["m#p"], "Succeeded");
}

// PRB-13
#[test]
fn what_cannot_be_probed_is_reported_once_and_taken_back() {
    let mut sim = sim_with_succeeding_probe();
    sim.plan_and_show(&[("m#p", tcp_probe()), ("m#new", tcp_probe())]);
    sim.pass_time(SECOND);
    let fail = |sim: &mut Sim, cause: &CannotProbe| {
        for run in sim.runs.keys().copied().collect::<Vec<_>>() {
            sim.finish_run(run, Err(cause.clone()));
        }
    };
    for _ in 0..100 {
        sim.pass_time(SECOND);
        fail(&mut sim, &CannotProbe::NoAddress);
    }
    let why = CannotProbe::NoAddress.to_string();
    let both = [("m#p".to_owned(), why.clone()), ("m#new".to_owned(), why)];
    assert_eq!(sim.shown_obstacles(), both);
    assert_eq!(sim.shown_states().into_keys().collect::<Vec<_>>(), ["m#p"]);
    assert!((1..=2).contains(&sim.writes), "{} writes", sim.writes);
    // Another kind, then another text of the same.
    sim.writes = 0;
    for attempt in 0..100 {
        sim.pass_time(SECOND);
        fail(
            &mut sim,
            &CannotProbe::Local(format!("{attempt} {}", "é".repeat(500))),
        );
    }
    assert!(
        sim.shown_obstacles()[1]
            .1
            .starts_with("the agent itself failed: 2 é")
    );
    assert!(
        sim.shown_obstacles()
            .iter()
            .all(|(_, why)| why.len() <= 256)
    );
    assert!((1..=2).contains(&sim.writes), "{} writes", sim.writes);
    sim.pass_time_with_results(12 * SECOND, true, "ok");
    assert_eq!(sim.shown_obstacles(), []);
    assert_eq!(sim.shown_states().len(), 2);
}

// PRB-13
#[test]
fn an_entry_that_cannot_be_followed_is_reported_with_its_pod() {
    let mut sim = sim_with_succeeding_probe();
    let long = format!("m#{}", "é".repeat(600));
    sim.plan_and_show(&[
        ("m#p", tcp_probe()),
        ("m#bad", json!({})),
        (&long, json!({})),
    ]);
    sim.pass_time_with_results(SECOND, true, "ok");
    let reported = sim.shown_obstacles();
    assert_eq!(reported.len(), 2);
    assert_eq!(reported[0].0, "m#bad");
    assert!(
        reported[0].1.starts_with("the entry cannot be followed: "),
        "{reported:?}"
    );
    assert!(reported[1].0.chars().count() <= 512);
    assert_eq!(sim.writes, 1);
    sim.restart_agent();
    sim.list_containers();
    sim.pass_time_with_results(60 * SECOND, true, "ok");
    assert_eq!((sim.writes, sim.shown_obstacles().len()), (1, 2));
    // The last entry of its pod that can be followed goes.
    sim.plan_and_show(&[("m#bad", json!({}))]);
    sim.pass_time_with_results(12 * SECOND, true, "ok");
    assert_eq!(
        (sim.shown_states().len(), sim.shown_obstacles().len()),
        (0, 1)
    );
    sim.plan_and_show(&[]);
    sim.pass_time_with_results(12 * SECOND, true, "ok");
    assert_eq!(sim.shown_obstacles(), []);
}

// PRB-10, PRB-13
#[test]
fn that_a_container_is_gone_is_reported_only_when_it_lasts() {
    let mut sim = sim_with_succeeding_probe();
    for (times, reported) in [(1, 0), (2, 1)] {
        for _ in 0..times {
            sim.pass_time(SECOND);
            let run = *sim.runs.keys().next().unwrap();
            sim.finish_run(run, Err(CannotProbe::ContainerGone));
        }
        sim.pass_time(millis(300));
        assert_eq!(sim.shown_obstacles().len(), reported, "{times}");
        sim.finish_all_runs(true, "ok");
        sim.pass_time_with_results(12 * SECOND, true, "ok");
    }
    // What was reported of a container ends with it.
    sim.pass_time_with_results(12 * SECOND, true, "ok");
    sim.pass_time(SECOND);
    let run = *sim.runs.keys().next().unwrap();
    sim.finish_run(run, Err(CannotProbe::NoAddress));
    sim.pass_time(SECOND);
    assert_eq!(sim.shown_obstacles().len(), 1);
    sim.set_container(Some(("b", ContainerState::Created)));
    sim.pass_time(12 * SECOND);
    assert_eq!(sim.shown_obstacles(), []);
}

// PRB-13
#[test]
fn an_api_server_that_drops_what_cannot_be_probed_is_not_written_to_again_and_again() {
    let mut sim = sim_with_succeeding_probe();
    sim.prunes = true;
    sim.plan_and_show(&[("m#p", tcp_probe()), ("m#bad", json!({}))]);
    sim.writes = 0;
    sim.pass_time_with_results(300 * SECOND, true, "ok");
    assert_eq!((sim.writes, sim.shown_obstacles().len()), (1, 0));
    // Another verdict brings it along; the API server may keep it by now.
    sim.prunes = false;
    sim.pass_time_with_results(SECOND, false, "no");
    assert_eq!(sim.shown_obstacles().len(), 1);
}

// PRB-13
#[test]
fn an_api_server_that_drops_a_pod_of_nothing_else_is_not_written_to_for_ever() {
    let mut sim = Sim::new();
    sim.prunes = true;
    sim.plan_and_show(&[("m#bad", json!({}))]);
    sim.pass_time(600 * SECOND);
    // What is dropped, and what is left of it.
    assert!((1..=2).contains(&sim.writes), "{} writes", sim.writes);
    // Likewise where it cannot be run, and one beside it can.
    let mut sim = sim_with_succeeding_probe();
    sim.prunes = true;
    let pod = |name: &str| {
        let probes = json!([{"name": "m#p", "containerName": "main", "probe": tcp_probe()}]);
        json!({"name": name, "namespace": "ns", "uid": name, "IP": "", "probes": probes})
    };
    let pods = json!({"podProbes": [pod("fine"), pod("bad")]});
    sim.object.spec = serde_json::from_value(pods).unwrap();
    for name in ["fine", "bad"] {
        let pod = pod_name("ns", name, name);
        let name = "main".into();
        let (id, state) = ("c".into(), running_state());
        let container = ObservedContainer { id, state };
        sim.containers
            .insert(ContainerName { pod, name }, container);
    }
    sim.show_object();
    sim.list_containers();
    sim.writes = 0;
    sim.pass_time_doing(600 * SECOND, |sim| {
        for (id, run) in sim.runs.clone() {
            let result = match &*run.key.pod.name {
                "fine" => Ok(outcome_of(true, "ok")),
                _ => Err(CannotProbe::NoAddress),
            };
            sim.finish_run(id, result);
        }
    });
    assert!((1..=5).contains(&sim.writes), "{} writes", sim.writes);
    assert_eq!(sim.object.status.unwrap().pod_probe_statuses.len(), 1);
}

// PRB-13, PRB-16
#[test]
fn a_runtime_that_hangs_during_a_long_command_is_no_failure_of_the_command() {
    for (lists, expected) in [(9, None), (29, None), (31, Some("Failed"))] {
        let mut sim = Sim::new();
        let mut probe = exec_probe();
        probe["timeoutSeconds"] = json!(30);
        sim.plan_and_show(&[("m#p", probe)]);
        sim.set_container(Some(("a", running_state())));
        for second in 1..=32 {
            sim.pass_time(SECOND);
            if second <= lists {
                sim.list_containers();
            }
        }
        let run = *sim.runs.keys().next().unwrap();
        sim.finish_run(run, Err(CannotProbe::Deadline));
        sim.pass_time(millis(10));
        assert_eq!(
            sim.shown_states().get("m#p").map(|s| &**s),
            expected,
            "{lists}"
        );
    }
}

// PRB-11, PRB-13
#[test]
fn an_agents_restart_with_the_same_cause_writes_nothing() {
    let mut sim = sim_with_succeeding_probe();
    let fail = |sim: &mut Sim, time: Duration| {
        sim.pass_time_doing(time, |sim| {
            for run in sim.runs.keys().copied().collect::<Vec<_>>() {
                sim.finish_run(run, Err(CannotProbe::NoAddress));
            }
        });
    };
    fail(&mut sim, 12 * SECOND);
    assert_eq!(sim.shown_obstacles().len(), 1);
    sim.restart_agent();
    sim.writes = 0;
    // The runtime answers late.
    sim.pass_time(20 * SECOND);
    sim.list_containers();
    sim.pass_time(millis(100));
    fail(&mut sim, 60 * SECOND);
    assert_eq!((sim.writes, sim.shown_obstacles().len()), (0, 1));
    // DroppedRuns that ended meanwhile is taken back.
    sim.restart_agent();
    sim.list_containers();
    sim.pass_time_with_results(15 * SECOND, true, "ok");
    assert_eq!((sim.writes, sim.shown_obstacles().len()), (1, 0));
}

// PRB-13
#[test]
fn only_the_reply_to_a_write_says_that_the_api_server_drops_what_cannot_be_probed() {
    let mut sim = sim_with_succeeding_probe();
    sim.holds_writes = true;
    sim.plan_and_show(&[("m#p", tcp_probe()), ("m#bad", json!({}))]);
    sim.pass_time_with_results(SECOND, true, "ok");
    let status = sim.in_flight.take().expect("a write is under way");
    // It was kept, and somebody has taken it away since.
    sim.store_status(status);
    sim.object.status.as_mut().unwrap().pod_probe_statuses[0]
        .cannot_probe
        .clear();
    sim.show_object();
    sim.apply_event(NodeEvent::StatusWritten(StatusWriteEnd::Written {
        shows_unprobed: true,
    }));
    sim.holds_writes = false;
    sim.pass_time_with_results(12 * SECOND, true, "ok");
    assert_eq!(sim.shown_obstacles().len(), 1);
    // What one object did not keep another may.
    sim.prunes = true;
    sim.object.status = None;
    sim.show_object();
    sim.pass_time_with_results(12 * SECOND, true, "ok");
    assert_eq!(sim.shown_obstacles(), []);
    sim.prunes = false;
    sim.apply_event(NodeEvent::Plan(None));
    sim.show_object();
    sim.list_containers();
    sim.pass_time_with_results(12 * SECOND, true, "ok");
    assert_eq!(sim.shown_obstacles().len(), 1);
}

// PRB-11, PRB-20
#[test]
fn pods_that_share_a_uid_share_no_verdict() {
    let mut sim = Sim::new();
    // The uid of a static pod is what its author says.
    let pods = [("ns", "mine"), ("ns", "its"), ("other", "mine")];
    let asked = pods.map(|(namespace, name)| {
        let probes = json!([
            {"name": "m#p", "containerName": "main", "probe": tcp_probe()},
            {"name": "m#bad", "containerName": "main", "probe": {}},
        ]);
        json!({"name": name, "namespace": namespace, "uid": "u", "IP": "", "probes": probes})
    });
    sim.object.spec = serde_json::from_value(json!({"podProbes": asked})).unwrap();
    for (namespace, pod) in pods {
        let pod = pod_name(namespace, pod, "u");
        let name = "main".into();
        let (id, state) = ("c".into(), running_state());
        let container = ObservedContainer { id, state };
        sim.containers
            .insert(ContainerName { pod, name }, container);
    }
    let succeeds = |run: &ProbeRun| &*run.key.pod.name == "mine" && &*run.key.pod.namespace == "ns";
    let answer = |sim: &mut Sim, time| {
        sim.pass_time_doing(time, |sim| {
            for (id, run) in sim.runs.clone() {
                sim.finish_run(id, Ok(outcome_of(succeeds(&run), "")));
            }
        });
    };
    sim.show_object();
    sim.list_containers();
    answer(&mut sim, 15 * SECOND);
    let shown = |sim: &Sim| -> Vec<_> {
        let status = sim.object.status.clone().unwrap();
        let pods = status.pod_probe_statuses.into_iter();
        pods.map(|pod| {
            let verdicts: Vec<_> = pod.probe_states.into_iter().map(|s| s.state).collect();
            (pod.namespace, pod.name, verdicts, pod.cannot_probe.len())
        })
        .collect()
    };
    let expected = pods.map(|(namespace, name)| {
        let state = match (namespace, name) {
            ("ns", "mine") => "Succeeded",
            _ => "Failed",
        };
        let states = vec![state.to_owned()];
        (namespace.to_owned(), name.to_owned(), states, 1)
    });
    assert_eq!(shown(&sim), expected);
    sim.writes = 0;
    answer(&mut sim, 60 * SECOND);
    assert_eq!(sim.writes, 0);
    sim.restart_agent();
    sim.list_containers();
    answer(&mut sim, 60 * SECOND);
    assert_eq!((sim.writes, sim.take_verdict_changes()), (0, vec![]));
    assert_eq!(shown(&sim), expected);
}

fn pod_name(namespace: &str, name: &str, uid: &str) -> PodName {
    PodName {
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
    }
}
