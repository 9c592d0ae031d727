//! What an elector does, case by case.

use leadsman_process::clock;
use serde_json::json;

use super::*;

/// An elector named `me` with a Lease of 9 s, and the time.
struct TestElector {
    elector: Elector,
    start: Instant,
    now: Instant,
}

fn idle_elector() -> TestElector {
    let start = clock::monotonic();
    let random = fastrand::Rng::with_seed(7);
    TestElector {
        elector: Elector::new("l".to_owned(), "me".to_owned(), 9, random),
        start,
        now: start,
    }
}

/// A record of `holder`'s with a Lease of 4 s; `renewed` is the second of its last renewal, by a clock of its own.
fn lease(holder: &str, version: u64, renewed: u8) -> Box<Lease> {
    let time = format!("1999-01-01T00:00:{renewed:02}Z");
    let lease = json!({"metadata": {"name": "l", "resourceVersion": version.to_string()}, "spec": {
        "holderIdentity": holder, "leaseDurationSeconds": 4, "leaseTransitions": 6, "renewTime": time}});
    Box::new(serde_json::from_value(lease).unwrap())
}

fn present(holder: &str, version: u64, renewed: u8) -> LeaseState {
    LeaseState::Present(lease(holder, version, renewed))
}

impl TestElector {
    fn advance(&mut self, seconds: f64) -> &mut Self {
        self.now += Duration::from_secs_f64(seconds);
        self
    }

    fn observe(&mut self, event: LeaseState) -> &mut Self {
        self.elector.observe_state(event, self.now);
        self
    }

    fn on_reply(&mut self, reply: LeaseReply) -> &mut Self {
        self.elector.on_reply(reply, self.now);
        self
    }

    /// The next action as text: a request with the record's holder and transitions, or the second to wait for.
    fn next_action(&mut self) -> String {
        let record = |lease: &Lease| {
            let spec = lease.spec.clone().unwrap();
            let version = lease.metadata.resource_version.clone();
            format!(
                "{} {} on {}",
                spec.holder_identity.unwrap(),
                spec.lease_transitions.unwrap(),
                version.unwrap_or_default()
            )
        };
        match self.elector.next_action(self.now, Timestamp::UNIX_EPOCH) {
            ElectorAction::Send(LeaseRequest::Get) => "get".to_owned(),
            ElectorAction::Send(LeaseRequest::Create(lease)) => {
                format!("create {}", record(&lease))
            }
            ElectorAction::Send(LeaseRequest::Replace(lease)) => {
                format!("replace {}", record(&lease))
            }
            ElectorAction::Wait(None) => "wait".to_owned(),
            ElectorAction::Wait(Some(until)) => {
                format!("wait {:.1}", (until - self.start).as_secs_f64())
            }
            ElectorAction::Finished => "finished".to_owned(),
        }
    }

    /// The term and the second it ends.
    fn leads(&self) -> Option<(u64, f64)> {
        match self.elector.leadership_at(self.now) {
            Leadership::Unknown | Leadership::Standby => None,
            Leadership::Leads { term, until, .. } => {
                Some((term, (until - self.start).as_secs_f64()))
            }
        }
    }

    /// Takes a free Lease at the start; the answer comes after half a second.
    fn leading() -> Self {
        let mut test = idle_elector();
        test.observe(present("", 1, 0));
        assert_eq!(test.next_action(), "replace me 7 on 1");
        test.advance(0.5)
            .on_reply(LeaseReply::Written(lease("me", 2, 1)));
        assert_eq!(test.leads(), Some((1, 9.0)), "counted from the sending");
        test
    }
}

#[test]
fn nothing_is_done_before_the_lease_was_looked_for() {
    let mut test = idle_elector();
    assert_eq!(test.next_action(), "wait");
    test.observe(LeaseState::Absent);
    assert_eq!(test.next_action(), "create me 0 on ");
    assert_eq!(test.next_action(), "wait", "one request at a time");
    assert_eq!(test.leads(), None);
}

#[test]
fn anothers_lease_is_over_when_its_record_stands_still() {
    let mut test = idle_elector();
    test.observe(present("other", 1, 0));
    assert_eq!(test.next_action(), "wait 4.0");
    test.advance(3.0).observe(present("other", 2, 1));
    assert_eq!(test.next_action(), "wait 7.0");
    // Labelled, which is no sign of life.
    test.advance(1.0).observe(present("other", 3, 1));
    assert_eq!(test.next_action(), "wait 7.0");
    test.advance(2.9);
    assert_eq!(test.next_action(), "wait 7.0");
    test.advance(0.1);
    assert_eq!(test.next_action(), "replace me 7 on 3");
    // The other one was quicker.
    test.on_reply(LeaseReply::Conflict);
    assert_eq!(test.next_action(), "get");
    test.on_reply(LeaseReply::Read(Some(lease("other", 4, 7))));
    assert_eq!(test.next_action(), "wait 11.0");
    assert_eq!(test.leads(), None);
}

#[test]
fn a_released_lease_is_free_at_once() {
    let mut test = idle_elector();
    test.observe(present("other", 1, 0));
    test.advance(1.0).observe(present("", 2, 1));
    assert_eq!(test.next_action(), "replace me 7 on 2");
}

#[test]
fn a_deleted_lease_is_free_when_it_would_have_ended() {
    let mut test = idle_elector();
    test.observe(present("other", 1, 0));
    test.advance(1.0)
        .observe(LeaseState::Deleted(lease("other", 2, 0)));
    assert_eq!(test.next_action(), "wait 4.0");
    test.advance(3.0);
    assert_eq!(test.next_action(), "create me 0 on ");
    // The holder does not wait.
    let mut test = TestElector::leading();
    test.observe(LeaseState::Deleted(lease("me", 3, 1)));
    assert_eq!(test.next_action(), "create me 0 on ");
    assert_eq!(test.leads(), Some((1, 9.0)));
}

#[test]
fn it_is_renewed_every_third_of_the_duration() {
    let mut test = TestElector::leading();
    assert_eq!(test.next_action(), "wait 3.0");
    test.advance(2.5);
    assert_eq!(test.next_action(), "replace me 6 on 2");
    test.advance(0.2)
        .on_reply(LeaseReply::Written(lease("me", 3, 4)));
    assert_eq!(test.leads(), Some((1, 12.0)));
    assert_eq!(test.next_action(), "wait 6.0");
}

#[test]
fn a_failed_renewal_is_repeated_each_second_until_the_lease_is_over() {
    let mut test = TestElector::leading();
    test.advance(2.5);
    let mut sent = 0;
    while test.leads().is_some() {
        if test.next_action().starts_with("replace") {
            sent += 1;
            test.advance(0.1)
                .on_reply(LeaseReply::Failed { retry_after: None });
        }
        test.advance(0.1);
    }
    assert!((4..=8).contains(&sent), "{sent} attempts in six seconds");
    // Nobody took it meanwhile: it is ours again, for another term.
    test.advance(60.0);
    assert_eq!(test.next_action(), "replace me 6 on 2");
    test.on_reply(LeaseReply::Written(lease("me", 3, 50)));
    assert_eq!(test.leads().map(|(term, _)| term), Some(2));
}

#[test]
fn what_was_carried_out_without_an_answer_is_looked_at() {
    let mut test = TestElector::leading();
    test.advance(2.5);
    test.next_action();
    test.advance(1.0)
        .on_reply(LeaseReply::Failed { retry_after: None });
    test.advance(2.0);
    assert_eq!(test.next_action(), "replace me 6 on 2");
    test.on_reply(LeaseReply::Conflict);
    assert_eq!(test.next_action(), "get");
    test.on_reply(LeaseReply::Read(Some(lease("me", 3, 4))));
    assert_eq!(test.leads(), Some((1, 9.0)), "a read extends no term");
    assert_eq!(test.next_action(), "replace me 6 on 3");
}

#[test]
fn a_process_that_was_stopped_knows_that_its_lease_is_over() {
    let mut test = TestElector::leading();
    test.advance(8.4);
    assert!(test.leads().is_some());
    test.advance(0.1);
    assert_eq!(test.leads(), None);
    // The answer to what was sent before comes too late to count.
    let mut test = TestElector::leading();
    test.advance(2.5);
    test.next_action();
    test.advance(9.0)
        .on_reply(LeaseReply::Written(lease("me", 3, 4)));
    assert_eq!(test.leads(), None);
    assert_eq!(test.next_action(), "replace me 6 on 3");
}

#[test]
fn a_watch_that_lags_takes_nothing_away() {
    let mut test = TestElector::leading();
    test.observe(present("other", 1, 9))
        .observe(present("me", 2, 1));
    assert!(test.leads().is_some());
    test.observe(present("other", 3, 9));
    assert_eq!(test.leads(), None, "taken by force");
}

#[test]
fn what_is_refused_is_repeated_ever_later_and_at_once_when_something_changes() {
    let mut test = idle_elector();
    test.observe(LeaseState::Absent);
    let mut waits = Vec::new();
    for _ in 0..6 {
        assert_eq!(test.next_action(), "create me 0 on ");
        test.on_reply(LeaseReply::Refused);
        let ElectorAction::Wait(Some(until)) =
            test.elector.next_action(test.now, Timestamp::UNIX_EPOCH)
        else {
            panic!("it does not rest");
        };
        waits.push((until - test.now).as_secs_f64());
        test.now = until;
    }
    for (wait, longest) in waits.iter().zip([2.0, 4.0, 8.0, 16.0, 30.0, 30.0]) {
        assert!((longest / 2.0..=longest).contains(wait), "{waits:?}");
    }
    test.next_action();
    test.on_reply(LeaseReply::Refused)
        .observe(present("", 1, 0));
    assert_eq!(test.next_action(), "replace me 7 on 1");
}

#[test]
fn at_the_end_it_is_kept_and_then_given_back() {
    let mut test = TestElector::leading();
    test.elector.stop_taking();
    assert_eq!(test.next_action(), "wait 3.0");
    test.advance(2.5);
    assert_eq!(test.next_action(), "replace me 6 on 2");
    // Its answer comes after the release was asked for.
    test.elector.begin_release();
    test.on_reply(LeaseReply::Written(lease("me", 3, 4)));
    assert_eq!(test.leads(), None);
    assert_eq!(test.next_action(), "replace  6 on 3");
    test.on_reply(LeaseReply::Failed { retry_after: None })
        .advance(2.0);
    assert_eq!(test.next_action(), "replace  6 on 3");
    test.on_reply(LeaseReply::Written(lease("", 4, 5)));
    assert_eq!(test.next_action(), "finished");
    // Who does not have it has nothing to do.
    for event in [
        LeaseState::Absent,
        present("", 1, 0),
        present("other", 1, 0),
    ] {
        let mut test = idle_elector();
        test.observe(event);
        test.elector.stop_taking();
        assert_eq!(test.next_action(), "finished");
        test.elector.begin_release();
        assert_eq!(test.next_action(), "finished");
    }
}

#[test]
fn who_leads_is_not_known_before_the_lease_was_read() {
    let leadership = |test: &TestElector| test.elector.leadership_at(test.now);
    for first in [
        LeaseState::Absent,
        present("", 1, 0),
        present("other", 1, 0),
    ] {
        let mut test = idle_elector();
        assert_eq!(leadership(&test), Leadership::Unknown);
        test.observe(first);
        assert_eq!(leadership(&test), Leadership::Standby);
    }
}

#[test]
fn a_term_tells_whether_another_wrote_before_it() {
    let after_others = |test: &TestElector| match test.elector.leadership_at(test.now) {
        Leadership::Leads { after_others, .. } => after_others,
        other => panic!("it does not lead: {other:?}"),
    };
    let take = |first: LeaseState| {
        let mut test = idle_elector();
        test.observe(first);
        test.next_action();
        test.on_reply(LeaseReply::Written(lease("me", 2, 1)));
        test
    };
    let mut unused = lease("", 1, 0);
    unused.spec = None;
    for (first, was_held) in [
        (LeaseState::Absent, true),
        (LeaseState::Present(unused), false),
    ] {
        let mut test = take(first);
        assert_eq!(after_others(&test), was_held, "deleted under a leader?");
        test.advance(60.0);
        test.next_action();
        test.on_reply(LeaseReply::Written(lease("me", 3, 2)));
        assert!(!after_others(&test), "nobody took it meanwhile");
        // Taken and given back before it was looked at again.
        test.advance(60.0).observe(present("", 9, 3));
        test.next_action();
        test.on_reply(LeaseReply::Written(lease("me", 10, 4)));
        assert!(after_others(&test));
    }
    assert!(
        !after_others(&take(present("", 1, 0))),
        "it was free when first seen"
    );
    // Free when it was first seen, and free again after somebody held it.
    let mut test = idle_elector();
    test.observe(present("", 1, 0));
    test.next_action();
    test.on_reply(LeaseReply::Conflict);
    assert_eq!(test.next_action(), "get");
    test.on_reply(LeaseReply::Read(Some(lease("", 3, 4))));
    test.next_action();
    test.on_reply(LeaseReply::Written(lease("me", 4, 5)));
    assert!(after_others(&test));
    // Deleted between two terms; another may have created it meanwhile, and somebody deleted that too.
    let mut test = take(LeaseState::Absent);
    test.advance(60.0)
        .observe(LeaseState::Deleted(lease("me", 3, 1)));
    test.next_action();
    test.on_reply(LeaseReply::Written(lease("me", 9, 2)));
    assert!(after_others(&test));
    let mut test = idle_elector();
    test.observe(present("other", 1, 0))
        .observe(present("", 2, 0));
    test.next_action();
    test.on_reply(LeaseReply::Written(lease("me", 3, 4)));
    assert!(after_others(&test));
}

#[test]
fn a_reply_that_the_watch_has_overtaken_gives_no_term() {
    let mut test = idle_elector();
    test.observe(present("", 1, 0));
    assert_eq!(test.next_action(), "replace me 7 on 1");
    // It was carried out, and then somebody took it by hand.
    test.observe(present("me", 10, 1))
        .observe(present("other", 11, 2));
    test.on_reply(LeaseReply::Written(lease("me", 10, 1)));
    assert_eq!(test.leads(), None);
    assert_eq!(test.elector.last_seen_holder(), Some("other"));

    // Its own write alone, shown before the reply.
    let mut test = idle_elector();
    test.observe(present("", 1, 0));
    test.next_action();
    test.observe(present("me", 2, 1))
        .on_reply(LeaseReply::Written(lease("me", 2, 1)));
    assert!(test.leads().is_some());
    // What was read.
    test.advance(3.0);
    test.next_action();
    test.on_reply(LeaseReply::Conflict);
    assert_eq!(test.next_action(), "get");
    test.observe(present("other", 4, 9))
        .on_reply(LeaseReply::Read(Some(lease("me", 3, 4))));
    assert_eq!(test.elector.last_seen_holder(), Some("other"));
}

#[test]
fn what_is_read_after_a_conflict_counts_although_its_version_is_lower() {
    let mut test = TestElector::leading();
    test.advance(2.5);
    test.next_action();
    test.on_reply(LeaseReply::Conflict);
    assert_eq!(test.next_action(), "get");
    // The API server was restored to an earlier state.
    test.on_reply(LeaseReply::Read(Some(lease("me", 1, 0))));
    assert_eq!(test.next_action(), "replace me 6 on 1");
}
