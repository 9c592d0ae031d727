//! What an elector does, case by case.

use leadsman_process::clock;
use serde_json::json;

use super::*;

/// An elector named `me` with a Lease of 9 s, and the time.
struct Bench {
    elector: Elector,
    start: Instant,
    now: Instant,
}

fn bench() -> Bench {
    let start = clock::monotonic();
    let random = fastrand::Rng::with_seed(7);
    Bench {
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

fn there(holder: &str, version: u64, renewed: u8) -> LeaseState {
    LeaseState::Present(lease(holder, version, renewed))
}

impl Bench {
    fn pass(&mut self, seconds: f64) -> &mut Self {
        self.now += Duration::from_secs_f64(seconds);
        self
    }

    fn saw(&mut self, sight: LeaseState) -> &mut Self {
        self.elector.observe(sight, self.now);
        self
    }

    fn answered(&mut self, answer: LeaseReply) -> &mut Self {
        self.elector.on_reply(answer, self.now);
        self
    }

    /// The next step in words: a request with the record's holder and transitions, or the second to wait for.
    fn step(&mut self) -> String {
        let told = |lease: &Lease| {
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
            ElectorAction::Send(LeaseRequest::Get) => "look".to_owned(),
            ElectorAction::Send(LeaseRequest::Create(lease)) => format!("create {}", told(&lease)),
            ElectorAction::Send(LeaseRequest::Replace(lease)) => {
                format!("replace {}", told(&lease))
            }
            ElectorAction::Wait(None) => "wait".to_owned(),
            ElectorAction::Wait(Some(until)) => {
                format!("wait {:.1}", (until - self.start).as_secs_f64())
            }
            ElectorAction::Finished => "over".to_owned(),
        }
    }

    /// The term and the second it ends.
    fn leads(&self) -> Option<(u64, f64)> {
        match self.elector.leadership(self.now) {
            Leadership::Standby => None,
            Leadership::Leads { term, until, .. } => {
                Some((term, (until - self.start).as_secs_f64()))
            }
        }
    }

    /// Takes a free Lease at the start; the answer comes after half a second.
    fn leading() -> Self {
        let mut bench = bench();
        bench.saw(there("", 1, 0));
        assert_eq!(bench.step(), "replace me 7 on 1");
        bench
            .pass(0.5)
            .answered(LeaseReply::Written(lease("me", 2, 1)));
        assert_eq!(bench.leads(), Some((1, 9.0)), "counted from the sending");
        bench
    }
}

#[test]
fn nothing_is_done_before_the_lease_was_looked_for() {
    let mut bench = bench();
    assert_eq!(bench.step(), "wait");
    bench.saw(LeaseState::Absent);
    assert_eq!(bench.step(), "create me 0 on ");
    assert_eq!(bench.step(), "wait", "one request at a time");
    assert_eq!(bench.leads(), None);
}

#[test]
fn anothers_lease_is_over_when_its_record_stands_still() {
    let mut bench = bench();
    bench.saw(there("other", 1, 0));
    assert_eq!(bench.step(), "wait 4.0");
    bench.pass(3.0).saw(there("other", 2, 1));
    assert_eq!(bench.step(), "wait 7.0");
    // Labelled, which is no sign of life.
    bench.pass(1.0).saw(there("other", 3, 1));
    assert_eq!(bench.step(), "wait 7.0");
    bench.pass(2.9);
    assert_eq!(bench.step(), "wait 7.0");
    bench.pass(0.1);
    assert_eq!(bench.step(), "replace me 7 on 3");
    // The other one was quicker.
    bench.answered(LeaseReply::Conflict);
    assert_eq!(bench.step(), "look");
    bench.answered(LeaseReply::Read(Some(lease("other", 4, 7))));
    assert_eq!(bench.step(), "wait 11.0");
    assert_eq!(bench.leads(), None);
}

#[test]
fn a_released_lease_is_free_at_once() {
    let mut bench = bench();
    bench.saw(there("other", 1, 0));
    bench.pass(1.0).saw(there("", 2, 1));
    assert_eq!(bench.step(), "replace me 7 on 2");
}

#[test]
fn a_deleted_lease_is_free_when_it_would_have_ended() {
    let mut bench = bench();
    bench.saw(there("other", 1, 0));
    bench
        .pass(1.0)
        .saw(LeaseState::Deleted(lease("other", 2, 0)));
    assert_eq!(bench.step(), "wait 4.0");
    bench.pass(3.0);
    assert_eq!(bench.step(), "create me 0 on ");
    // The holder does not wait.
    let mut bench = Bench::leading();
    bench.saw(LeaseState::Deleted(lease("me", 3, 1)));
    assert_eq!(bench.step(), "create me 0 on ");
    assert_eq!(bench.leads(), Some((1, 9.0)));
}

#[test]
fn it_is_renewed_every_third_of_the_duration() {
    let mut bench = Bench::leading();
    assert_eq!(bench.step(), "wait 3.0");
    bench.pass(2.5);
    assert_eq!(bench.step(), "replace me 6 on 2");
    bench
        .pass(0.2)
        .answered(LeaseReply::Written(lease("me", 3, 4)));
    assert_eq!(bench.leads(), Some((1, 12.0)));
    assert_eq!(bench.step(), "wait 6.0");
}

#[test]
fn a_failed_renewal_is_repeated_each_second_until_the_lease_is_over() {
    let mut bench = Bench::leading();
    bench.pass(2.5);
    let mut sent = 0;
    while bench.leads().is_some() {
        if bench.step().starts_with("replace") {
            sent += 1;
            bench
                .pass(0.1)
                .answered(LeaseReply::Failed { retry_after: None });
        }
        bench.pass(0.1);
    }
    assert!((4..=8).contains(&sent), "{sent} attempts in six seconds");
    // Nobody took it meanwhile: it is ours again, for another term.
    bench.pass(60.0);
    assert_eq!(bench.step(), "replace me 6 on 2");
    bench.answered(LeaseReply::Written(lease("me", 3, 50)));
    assert_eq!(bench.leads().map(|(term, _)| term), Some(2));
}

#[test]
fn what_was_carried_out_without_an_answer_is_looked_at() {
    let mut bench = Bench::leading();
    bench.pass(2.5);
    bench.step();
    bench
        .pass(1.0)
        .answered(LeaseReply::Failed { retry_after: None });
    bench.pass(2.0);
    assert_eq!(bench.step(), "replace me 6 on 2");
    bench.answered(LeaseReply::Conflict);
    assert_eq!(bench.step(), "look");
    bench.answered(LeaseReply::Read(Some(lease("me", 3, 4))));
    assert_eq!(bench.leads(), Some((1, 9.0)), "a sight proves no time");
    assert_eq!(bench.step(), "replace me 6 on 3");
}

#[test]
fn a_process_that_was_stopped_knows_that_its_lease_is_over() {
    let mut bench = Bench::leading();
    bench.pass(8.4);
    assert!(bench.leads().is_some());
    bench.pass(0.1);
    assert_eq!(bench.leads(), None);
    // The answer to what was sent before comes too late to count.
    let mut bench = Bench::leading();
    bench.pass(2.5);
    bench.step();
    bench
        .pass(9.0)
        .answered(LeaseReply::Written(lease("me", 3, 4)));
    assert_eq!(bench.leads(), None);
    assert_eq!(bench.step(), "replace me 6 on 3");
}

#[test]
fn a_watch_that_lags_takes_nothing_away() {
    let mut bench = Bench::leading();
    bench.saw(there("other", 1, 9)).saw(there("me", 2, 1));
    assert!(bench.leads().is_some());
    bench.saw(there("other", 3, 9));
    assert_eq!(bench.leads(), None, "taken by force");
}

#[test]
fn what_is_refused_is_repeated_ever_later_and_at_once_when_something_changes() {
    let mut bench = bench();
    bench.saw(LeaseState::Absent);
    let mut waits = Vec::new();
    for _ in 0..6 {
        assert_eq!(bench.step(), "create me 0 on ");
        bench.answered(LeaseReply::Refused);
        let ElectorAction::Wait(Some(until)) =
            bench.elector.next_action(bench.now, Timestamp::UNIX_EPOCH)
        else {
            panic!("it does not rest");
        };
        waits.push((until - bench.now).as_secs_f64());
        bench.now = until;
    }
    for (wait, longest) in waits.iter().zip([2.0, 4.0, 8.0, 16.0, 30.0, 30.0]) {
        assert!((longest / 2.0..=longest).contains(wait), "{waits:?}");
    }
    bench.step();
    bench.answered(LeaseReply::Refused).saw(there("", 1, 0));
    assert_eq!(bench.step(), "replace me 7 on 1");
}

#[test]
fn at_the_end_it_is_kept_and_then_given_back() {
    let mut bench = Bench::leading();
    bench.elector.stop_taking();
    assert_eq!(bench.step(), "wait 3.0");
    bench.pass(2.5);
    assert_eq!(bench.step(), "replace me 6 on 2");
    // Its answer comes after the release was asked for.
    bench.elector.release();
    bench.answered(LeaseReply::Written(lease("me", 3, 4)));
    assert_eq!(bench.leads(), None);
    assert_eq!(bench.step(), "replace  6 on 3");
    bench
        .answered(LeaseReply::Failed { retry_after: None })
        .pass(2.0);
    assert_eq!(bench.step(), "replace  6 on 3");
    bench.answered(LeaseReply::Written(lease("", 4, 5)));
    assert_eq!(bench.step(), "over");
    // Who does not have it has nothing to do.
    for sight in [LeaseState::Absent, there("", 1, 0), there("other", 1, 0)] {
        let mut bench = self::bench();
        bench.saw(sight);
        bench.elector.stop_taking();
        assert_eq!(bench.step(), "over");
        bench.elector.release();
        assert_eq!(bench.step(), "over");
    }
}

#[test]
fn a_term_tells_whether_another_wrote_before_it() {
    let after_others = |bench: &Bench| match bench.elector.leadership(bench.now) {
        Leadership::Leads { after_others, .. } => after_others,
        Leadership::Standby => panic!("it does not lead"),
    };
    let mut bench = Bench::leading();
    assert!(!after_others(&bench), "it was free when first seen");
    bench.pass(60.0);
    bench.step();
    bench.answered(LeaseReply::Written(lease("me", 3, 2)));
    assert!(!after_others(&bench), "nobody took it meanwhile");
    // Taken and given back before it was looked at again.
    bench.pass(60.0).saw(there("", 9, 3));
    bench.step();
    bench.answered(LeaseReply::Written(lease("me", 10, 4)));
    assert!(after_others(&bench));
    let mut bench = self::bench();
    bench.saw(there("other", 1, 0)).saw(there("", 2, 0));
    bench.step();
    bench.answered(LeaseReply::Written(lease("me", 3, 4)));
    assert!(after_others(&bench));
}
