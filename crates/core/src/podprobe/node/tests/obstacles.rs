//! What the status says of probes that cannot be run.

use super::*;

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

// PRB-28
#[test]
fn a_probe_of_a_kind_that_is_not_allowed_is_never_run_and_what_was_found_is_void() {
    let mut sim = sim_with_succeeding_probe();
    sim.plan_and_show(&[("m#p", tcp_probe()), ("m#exec", exec_probe())]);
    sim.pass_time_with_results(10 * SECOND, true, "ok");
    let states = |sim: &Sim| sim.shown_states().into_iter().collect::<Vec<_>>();
    let found = |probe: &str, state: &str| (probe.to_owned(), state.to_owned());
    let both = [found("m#exec", "Succeeded"), found("m#p", "Succeeded")];
    assert_eq!(states(&sim), both);
    (sim.dropped, sim.writes) = (0, 0);
    sim.restart_agent_allowing(&[HandlerKind::TcpSocket]);
    sim.pass_time_with_results(60 * SECOND, true, "ok");
    let one = [found("m#exec", "Unknown"), found("m#p", "Succeeded")];
    assert_eq!(states(&sim), one);
    let why = "the agent may not run exec probes: its flag --handlers does not list them";
    assert_eq!(sim.shown_obstacles(), [found("m#exec", why)]);
    assert_eq!((sim.dropped, sim.writes), (1, 1));
    sim.plan_and_show(&[("m#p", tcp_probe()), ("m#file", file_probe())]);
    sim.pass_time_with_results(60 * SECOND, true, "ok");
    assert!(
        sim.shown_obstacles()[0]
            .1
            .contains("it needs --file-probes")
    );
    sim.plan_and_show(&[("m#p", tcp_probe()), ("m#exec", exec_probe())]);
    // Allowed again: it has a verdict again.
    sim.restart_agent_allowing(&HandlerKind::ALL);
    sim.pass_time_with_results(10 * SECOND, true, "ok");
    assert_eq!(states(&sim), both);
    assert_eq!(sim.shown_obstacles(), []);
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
    sim.set_container(Some(("b", RuntimeState::Created)));
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
        let container = RuntimeContainer { id, state };
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
