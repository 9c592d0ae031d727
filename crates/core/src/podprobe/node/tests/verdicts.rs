//! Which verdicts hold after a restart of the agent, of a container, or of an API server with another definition.

use super::*;

// PRB-17, DEF-23
#[test]
fn a_verdict_keeps_no_more_of_its_message_than_is_ever_sent() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", tcp_probe())]);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(SECOND, false, &"é".repeat(5_000));
    let lengths: Vec<_> = sim.changes.iter().map(|one| one.message.len()).collect();
    assert_eq!(lengths, [1024]);
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
    sim.set_container(Some(("b", RuntimeState::Created)));
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
    let started_at = super::super::sim::world_epoch() + 10 * SECOND;
    sim.set_container(Some(("b", RuntimeState::Running { started_at })));
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

// PRB-9, DEF-9
#[test]
fn containers_are_forgotten_with_the_last_probed_pod() {
    for gone in [false, true] {
        let mut sim = sim_with_succeeding_probe();
        sim.set_container(Some(("a", RuntimeState::Exited { exit_code: 1 })));
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

// PRB-9
#[test]
fn a_list_that_began_before_an_entry_came_does_not_concern_it() {
    let mut sim = Sim::new();
    sim.plan_and_show(&[("m#p", tcp_probe())]);
    sim.set_container(Some(("a", RuntimeState::Exited { exit_code: 1 })));
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
        let container = RuntimeContainer { id, state };
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
