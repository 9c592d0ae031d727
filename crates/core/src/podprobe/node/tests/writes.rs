//! When the status is written, and when an event is sent.

use super::*;

// PPM-21, PRB-32
#[test]
fn values_that_change_twice_in_a_second_are_written_at_once() {
    let mut sim = Sim::new();
    let mut probe = file_probe();
    probe["output"] = json!({"matches": "^(?<state>[a-z]+)$"});
    sim.plan_and_show(&[("m#file", probe)]);
    sim.set_container(Some(("a", running_state())));
    let key = sim.runs.values().next().unwrap().key.clone();
    sim.pass_time_with_results(5 * SECOND, true, "idle");
    for word in ["busy", "idle", "busy"] {
        sim.apply_event(NodeEvent::FileChanged(key.clone()));
        sim.pass_time_with_results(SECOND / 5, true, word);
        let status = sim.object.status.clone().unwrap();
        let values = status.pod_probe_statuses[0].probe_states[0].values.clone();
        assert_eq!(values.unwrap()["state"], word);
    }
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
        sim.set_container(Some((&step.to_string(), RuntimeState::Created)));
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
    sim.set_container(Some(("a", RuntimeState::Exited { exit_code: 1 })));
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
    let names: Vec<String> = (0..500).map(|n| format!("m#p{n}")).collect();
    let probes: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), tcp_probe()))
        .collect();
    sim.plan_and_show(&probes);
    sim.set_container(Some(("a", running_state())));
    sim.pass_time_with_results(SECOND, false, &"é".repeat(5_000));
    let size = serde_json::to_vec(&sim.object.status).unwrap().len();
    assert!(size <= 256 * 1024, "{size} bytes");
    assert_eq!(sim.shown_states().len(), 500);
    assert_eq!(sim.first_shown_message().len(), 256);
    sim.plan_and_show(&probes[..10]);
    sim.pass_time_with_results(11 * SECOND, false, &"é".repeat(5_000));
    assert_eq!(sim.first_shown_message().len(), 1_024);
}

// PRB-17, DEF-23
#[test]
fn a_status_that_is_refused_for_its_size_is_written_with_less_of_its_messages() {
    let mut sim = Sim::new();
    let names: Vec<String> = (0..20).map(|n| format!("m#p{n}")).collect();
    let probes: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), tcp_probe()))
        .collect();
    sim.plan_and_show(&probes);
    sim.set_container(Some(("a", running_state())));
    sim.most_bytes = 16 * 1024;
    sim.pass_time_with_results(5 * SECOND, false, &"<".repeat(1024));
    assert_eq!(sim.shown_states().len(), 20);
    assert_eq!(sim.first_shown_message().len(), 64);
    assert!(
        sim.too_large.is_sorted_by(|one, next| one > next),
        "{:?}",
        sim.too_large
    );
    // What is accepted now is what is written from now on.
    let refused = sim.too_large.len();
    sim.pass_time_with_results(5 * SECOND, true, &"<".repeat(1024));
    assert_eq!(sim.shown_states()["m#p7"], "Succeeded");
    assert_eq!(sim.too_large.len(), refused);
    // The object has become smaller.
    sim.most_bytes = usize::MAX;
    sim.pass_time_with_results(20 * 60 * SECOND, true, &"<".repeat(1024));
    assert_eq!(sim.first_shown_message().len(), 1024);
}

#[test]
fn a_status_that_is_too_large_without_messages_is_sent_once_in_a_minute() {
    let mut sim = sim_with_succeeding_probe();
    sim.most_bytes = 10;
    sim.pass_time_with_results(600 * SECOND, false, "down");
    assert!(
        (10..15).contains(&sim.too_large.len()),
        "{:?}",
        sim.too_large
    );
    sim.most_bytes = usize::MAX;
    sim.pass_time_with_results(60 * SECOND, false, "down");
    assert_eq!(sim.shown_states()["m#p"], "Failed");
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
fn without_an_object_nothing_is_written_or_probed() {
    let mut sim = sim_with_succeeding_probe();
    sim.pass_time(SECOND);
    sim.apply_event(NodeEvent::Plan(None));
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
