use super::super::tests::{YEAR, names, time};
use super::*;

const NAMES: [&str; 1] = ["leadsman-webhook.leadsman-system.svc"];
/// When all certificates here are made. They last for a year.
const MADE: &str = "2026-01-01T00:00:00Z";

fn after(kept: Option<&Kept>, renewal: Renewal) -> Data {
    changed(kept, renewal, &names(&NAMES), time(MADE), YEAR).unwrap()
}

fn read(data: &Data) -> Stored {
    Stored::read(data, &names(&NAMES))
}

fn kept(data: &Data) -> Kept {
    match read(data) {
        Stored::Usable(kept) => *kept,
        other => panic!("{other:?}"),
    }
}

fn fresh() -> Kept {
    kept(&after(None, Renewal::Create))
}

fn prepared() -> Kept {
    kept(&after(Some(&fresh()), Renewal::Prepare))
}

fn spoilt() -> Stored {
    let mut data = after(None, Renewal::Create);
    data.insert("tls.key".to_owned(), b"gone".to_vec());
    read(&data)
}

/// A certificate that is good, and one that has a successor.
fn usable() -> Stored {
    Stored::Usable(Box::new(fresh()))
}

fn two_cas() -> Stored {
    Stored::Usable(Box::new(prepared()))
}

#[test]
fn what_is_to_be_done() {
    use Renewal::{Create, Prepare, Restore, TakeOver};
    let write = Decision::Write;
    let wait = |until| Decision::Wait(time(until));
    let end = "2027-01-01T00:00:00Z";
    // Two thirds of a year and the hour before it.
    let (before_due, due) = ("2026-09-01T07:39:59Z", "2026-09-01T07:40:00Z");
    let early = "2025-12-31T00:00:00Z";
    let soon = "2026-09-01T07:40:30Z";
    let (leads, serves) = (true, true);
    let (none, absent) = (None, || Stored::Absent);
    // Stored, whether a fresh one is served, whether it leads, since when the bundle is in force, the time.
    let table = [
        (
            "nobody has made one",
            absent(),
            !serves,
            !leads,
            none,
            MADE,
            write(Create),
        ),
        (
            "deleted while served",
            absent(),
            serves,
            !leads,
            none,
            MADE,
            write(Restore),
        ),
        (
            "deleted after its end",
            absent(),
            serves,
            !leads,
            none,
            end,
            write(Create),
        ),
        (
            "broken at the start",
            spoilt(),
            !serves,
            !leads,
            none,
            MADE,
            write(Create),
        ),
        (
            "broken while served",
            spoilt(),
            serves,
            leads,
            none,
            MADE,
            write(Restore),
        ),
        ("fresh", usable(), serves, leads, none, MADE, wait(due)),
        (
            "fresh, for a standby",
            usable(),
            serves,
            !leads,
            none,
            MADE,
            wait(end),
        ),
        (
            "a clock a day behind",
            usable(),
            serves,
            leads,
            none,
            early,
            wait(due),
        ),
        (
            "just before two thirds",
            usable(),
            serves,
            leads,
            none,
            before_due,
            wait(due),
        ),
        (
            "at two thirds",
            usable(),
            serves,
            leads,
            none,
            due,
            write(Prepare),
        ),
        (
            "at two thirds, for a standby",
            usable(),
            serves,
            !leads,
            none,
            due,
            wait(end),
        ),
        (
            "expired",
            usable(),
            serves,
            !leads,
            none,
            end,
            write(Create),
        ),
        (
            "two CAs, not in force",
            two_cas(),
            serves,
            leads,
            none,
            due,
            wait(end),
        ),
        (
            "two CAs, just in force",
            two_cas(),
            serves,
            leads,
            Some(due),
            due,
            wait(soon),
        ),
        (
            "two CAs, in force",
            two_cas(),
            serves,
            leads,
            Some(due),
            soon,
            write(TakeOver),
        ),
        (
            "two CAs, for a standby",
            two_cas(),
            serves,
            !leads,
            Some(due),
            soon,
            wait(end),
        ),
    ];
    for (case, stored, serves, leads, in_force, now, expected) in table {
        let served = serves.then(fresh);
        let at = Circumstances {
            leads,
            bundle_in_force: in_force.map(time),
            now: time(now),
        };
        assert_eq!(decide(&stored, served.as_ref(), at), expected, "{case}");
    }
}

#[test]
fn a_successor_takes_over_from_what_has_expired_before_it() {
    let old = fresh();
    let made = old.renewed_at();
    let data = changed(Some(&old), Renewal::Prepare, &names(&NAMES), made, YEAR).unwrap();
    let at = Circumstances {
        leads: false,
        bundle_in_force: None,
        now: old.current.not_after,
    };
    let decision = decide(&read(&data), None, at);
    assert_eq!(decision, Decision::Write(Renewal::TakeOver));
}

#[test]
fn every_certificate_of_a_renewal_is_trusted_by_the_bundles_before_and_after() {
    let first = fresh();
    let second = kept(&after(Some(&first), Renewal::Prepare));
    // What replicas serve that have not read of it.
    first.current.trusted_by(&second.bundle).unwrap();
    let third = kept(&after(Some(&second), Renewal::TakeOver));
    third.current.trusted_by(&second.bundle).unwrap();
    second.current.trusted_by(&third.bundle).unwrap();
    assert_eq!(third.bundle, second.bundle, "API servers learn of nothing");
    assert!(third.next.is_none());
    // The oldest CA goes with the next renewal, so the bundle does not grow.
    let fourth = kept(&after(Some(&third), Renewal::Prepare));
    third.current.trusted_by(&fourth.bundle).unwrap();
    assert!(second.current.trusted_by(&fourth.bundle).is_err());
}

#[test]
fn a_restored_secret_goes_on_with_what_is_served() {
    let served = fresh();
    let restored = kept(&after(Some(&served), Renewal::Restore));
    assert_eq!(restored.pem, served.pem);
    assert!(restored.next.is_some());
}

#[test]
fn what_is_for_another_name_is_unusable() {
    let data = after(None, Renewal::Create);
    let stored = Stored::read(&data, &names(&["another.leadsman-system.svc"]));
    assert!(
        matches!(stored, Stored::Unusable(CertificateError::Name { .. })),
        "{stored:?}"
    );
}

#[test]
fn a_successor_that_is_broken_is_made_again() {
    let mut data = after(Some(&fresh()), Renewal::Prepare);
    data.insert("next.key".to_owned(), Vec::new());
    assert!(kept(&data).next.is_none());
}
