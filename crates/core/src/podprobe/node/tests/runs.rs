//! When probes run, how many at a time, and which results count.

use super::*;

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

// PRB-32
#[test]
fn a_change_of_a_file_runs_its_probe_at_once_and_once_in_a_slot() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#file", file_probe()), ("m#exec", exec_probe())]);
    sim.set_container(Some(("a", running_state())));
    let keys: Vec<_> = sim.runs.values().map(|run| run.key.clone()).collect();
    sim.pass_time_with_results(SECOND / 20 * 31, true, "ok");
    let change = |sim: &mut Sim, name: &str| {
        let mut keys = keys.iter();
        let key = keys.find(|key| &*key.id.probe == name).unwrap().clone();
        sim.apply_event(NodeEvent::FileChanged(key));
    };
    // Only what reads files, and not what the plan has no more.
    change(&mut sim, "exec");
    assert!(sim.runs.is_empty());
    change(&mut sim, "file");
    assert_eq!(sim.runs.len(), 1);
    // Not at once again: neither after nor during the run.
    change(&mut sim, "file");
    sim.finish_all_runs(true, "ok");
    change(&mut sim, "file");
    assert!(sim.runs.is_empty());
    let mut begun = Vec::new();
    let count = |sim: &mut Sim, begun: &mut Vec<u128>, time| {
        sim.pass_time_doing(time, |sim| {
            let is_file = |run: &&ProbeRun| &*run.key.id.probe == "file";
            begun.extend(
                sim.runs
                    .values()
                    .filter(is_file)
                    .map(|_| sim.world_millis()),
            );
            sim.finish_all_runs(true, "ok");
        });
    };
    count(&mut sim, &mut begun, 9 * SECOND);
    assert_eq!(begun, [1_600]);
    // A period after the last run, and not after the last period.
    count(&mut sim, &mut begun, 10 * SECOND);
    assert_eq!(begun, [1_600, 11_600]);
    // Without end: ten times a second.
    begun.clear();
    for _ in 0..100 {
        change(&mut sim, "file");
        count(&mut sim, &mut begun, SECOND / 100);
    }
    assert!((9..=11).contains(&begun.len()), "{begun:?}");
    sim.plan_and_show(&[("m#exec", exec_probe())]);
    change(&mut sim, "file");
    assert!(sim.runs.is_empty());
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
        let open = sim
            .runs
            .keys()
            .filter(|run| !sim.cancelled.contains_key(run));
        open.count()
    };
    let execs = super::super::sim::LIMITS.per_pod;
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
    sim.set_container(Some(("b", RuntimeState::Created)));
    assert_eq!(sim.node.count_execs().1, 0);
    assert_eq!(sim.node.count_execs().0, sim.runs.len());
    sim.finish_all_runs(true, "");
    assert_eq!(sim.node.count_execs(), (0, 0));
}

// PRB-5
#[test]
fn more_commands_than_usual_begin_at_once_where_each_keeps_its_period_only_so() {
    let mut sim = Sim::new();
    // Three in each tenth of a second, where two are usual.
    let names: Vec<String> = (0..25).map(|n| format!("m#p{n}")).collect();
    let probes = names.iter().map(|name| (name.as_str(), exec_probe()));
    sim.plan_and_show(&probes.collect::<Vec<_>>());
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(5 * SECOND, true, "");
    let mut begun: BTreeMap<String, u32> = BTreeMap::new();
    sim.pass_time_doing(10 * SECOND, |sim| {
        while let Some((id, run)) = sim.runs.pop_first() {
            *begun.entry(run.key.id.to_string()).or_default() += 1;
            sim.runs.insert(id, run);
            sim.finish_run(id, Ok(outcome_of(true, "")));
        }
    });
    assert_eq!(begun.len(), names.len());
    assert!(begun.values().all(|runs| *runs >= 9), "{begun:?}");
}

/// Runs of four pods of one namespace hang for a minute, each with so many probes, beside a pod of another namespace
/// with one, and one of a third that comes later: when the runs of these two began.
fn runs_beside_a_hostile_namespace(
    sim: &mut Sim,
    probe: &serde_json::Value,
    probes: usize,
) -> BTreeMap<String, Vec<u128>> {
    let entry =
        |n: usize| json!({"name": format!("m#p{n}"), "containerName": "main", "probe": probe});
    let pod = |namespace: &str, name: &str, probes: usize| {
        let probes: Vec<_> = (0..probes).map(entry).collect();
        json!({"name": name, "namespace": namespace, "uid": name, "IP": "", "probes": probes})
    };
    let hostile = ["h0", "h1", "h2", "h3"];
    let mut pods = hostile.map(|name| pod("hostile", name, probes)).to_vec();
    // There from the beginning, and to come.
    let (fine, late) = (pod("fine", "f", 1), pod("late", "l", 1));
    pods.push(fine);
    let hostile = hostile.map(|name| ("hostile", name));
    for (namespace, name) in hostile.into_iter().chain([("fine", "f"), ("late", "l")]) {
        let pod = PodIdentity {
            namespace: namespace.into(),
            name: name.into(),
            uid: name.into(),
        };
        let name = ContainerName {
            pod,
            name: "main".into(),
        };
        let (id, state) = ("c".into(), running_state());
        sim.containers.insert(name, RuntimeContainer { id, state });
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
    begun
}

fn assert_on_time(begun: &BTreeMap<String, Vec<u128>>) {
    assert_eq!(begun.keys().collect::<Vec<_>>(), ["f", "l"]);
    for (name, begun) in begun {
        let apart = begun.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(apart <= Some(1_200), "{name}: {apart:?}");
        assert!(begun.len() >= 27, "{name}: {}", begun.len());
    }
}

// PRB-14
#[test]
fn commands_that_hang_in_one_namespace_delay_no_others() {
    let mut sim = Sim::new();
    assert_on_time(&runs_beside_a_hostile_namespace(&mut sim, &exec_probe(), 6));
}

// PRB-27
#[test]
fn connections_that_hang_in_one_namespace_are_bounded_and_delay_no_others() {
    let mut sim = Sim::new();
    assert_on_time(&runs_beside_a_hostile_namespace(
        &mut sim,
        &tcp_probe(),
        100,
    ));
    assert_eq!(sim.node.count_connections(), (128, 272));
    assert_eq!(sim.runs.len(), 128);
    let of_one = sim.runs.values().filter(|run| &*run.key.pod.name == "h0");
    assert_eq!(of_one.count(), 32);
    // Whoever has waited says so.
    let id = *sim.runs.keys().next().unwrap();
    sim.finish_run(id, Ok(outcome_of(true, "")));
    let waited = sim.runs.values().map(|run| run.waited).max();
    assert!(waited > Some(50 * SECOND), "{waited:?}");
}

// PRB-27
#[test]
fn a_cancelled_connection_has_its_permit_until_it_is_closed() {
    let mut sim = Sim::new();
    sim.set_container(Some(("a", running_state())));
    for edit in 0..100 {
        let path = |n: usize| json!({"httpGet": {"port": 80, "path": format!("/{edit}/{n}")}});
        let probes: Vec<_> = (0..32).map(|n| (format!("m#p{n}"), path(n))).collect();
        let probes: Vec<_> = probes
            .iter()
            .map(|(name, p)| (&**name, p.clone()))
            .collect();
        sim.plan_and_show(&probes);
        assert!(sim.runs.len() <= 32, "{}", sim.runs.len());
    }
    sim.pass_time(2 * SECOND);
    assert_eq!(sim.node.count_connections(), (32, 0));
    assert_eq!((sim.runs.len(), sim.cancelled.len()), (32, 0));
}

/// The executor has extended its limit already. On a node without CPU to spare, a mark would otherwise stay for ever.
// PRB-13
#[test]
fn a_run_that_timed_out_has_failed_however_late_the_agent_is() {
    for (probe, result) in [
        (tcp_probe(), Ok(outcome_of(false, "no answer within 1s"))),
        (exec_probe(), Err(CannotProbe::Deadline)),
    ] {
        for late in [0, 500, 2_000] {
            let mut sim = Sim::new();
            sim.plan_and_show(&[("m#p", probe.clone())]);
            sim.set_container(Some(("a", running_state())));
            sim.pass_time_with_results(2 * SECOND, true, "");
            sim.pass_time(SECOND);
            let run = *sim.runs.keys().next().unwrap();
            let lag_before = sim.node.loop_lag().total_at(sim.current_moment().monotonic);
            sim.pass_time(SECOND);
            // The loop comes no further for a time.
            sim.stall(millis(100 + late));
            let lag = sim.node.loop_lag().total_at(sim.current_moment().monotonic);
            assert_eq!(lag, lag_before + millis(late));
            sim.list_containers();
            sim.finish_run(run, result.clone());
            assert!(!sim.runs.contains_key(&run), "a retry would add load");
            sim.pass_time(millis(100));
            assert_eq!(sim.shown_states()["m#p"], "Failed", "{late} {result:?}");
        }
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
    let run = super::super::RunId(u64::MAX);
    sim.apply_event(NodeEvent::RunFinished {
        run,
        result: Ok(outcome_of(false, "")),
        took: SECOND,
    });
    sim.pass_time(millis(1));
    assert_eq!((sim.writes, sim.take_verdict_changes()), (0, vec![]));
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
