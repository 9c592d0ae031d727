use super::super::tests::{YEAR, names, time};
use super::*;

const NAMES: [&str; 1] = ["leadsman-webhook.leadsman-system.svc"];
/// When all certificates here are made. They last for a year.
const MADE: &str = "2026-01-01T00:00:00Z";

fn after(kept: Option<&Kept>, renewal: Renewal) -> Data {
    renewed_data(
        kept,
        renewal,
        &names(&NAMES),
        (time(MADE), YEAR),
        &mut KeySource::System,
    )
    .unwrap()
}

fn read(data: &Data) -> StoredCertificate {
    StoredCertificate::read_secret(data, &names(&NAMES))
}

fn kept(data: &Data) -> Kept {
    match read(data) {
        StoredCertificate::Usable(kept) => *kept,
        other => panic!("{other:?}"),
    }
}

fn fresh() -> Kept {
    kept(&after(None, Renewal::Create))
}

fn prepared() -> Kept {
    kept(&after(Some(&fresh()), Renewal::Prepare))
}

fn spoilt() -> StoredCertificate {
    let mut data = after(None, Renewal::Create);
    data.insert("tls.key".to_owned(), b"gone".to_vec());
    read(&data)
}

/// A certificate that is good, and one that has a successor.
fn usable() -> StoredCertificate {
    StoredCertificate::Usable(Box::new(fresh()))
}

fn misnamed() -> StoredCertificate {
    let data = after(None, Renewal::Create);
    StoredCertificate::read_secret(&data, &names(&["another.leadsman-system.svc"]))
}

fn two_cas() -> StoredCertificate {
    StoredCertificate::Usable(Box::new(prepared()))
}

const END: &str = "2027-01-01T00:00:00Z";
/// Two thirds of a year and the hour before it.
const DUE: &str = "2026-09-01T07:40:00Z";
const BEFORE_DUE: &str = "2026-09-01T07:39:59Z";
const AFTER_SPREAD: &str = "2026-09-01T07:40:30Z";
const EARLY: &str = "2025-12-31T00:00:00Z";

#[test]
fn what_is_to_be_done() {
    use Renewal::{Create, Prepare, Restore, TakeOver};
    let write = Decision::Write;
    let wait = |until| Decision::Wait(time(until));
    let absent = || StoredCertificate::Absent;
    // Of a replica: whether it serves a fresh certificate, leads, and knows the bundle to be in force since `DUE`.
    let table = [
        ("nobody has made one", absent(), "", MADE, write(Create)),
        ("deleted", absent(), "serves", MADE, write(Restore)),
        (
            "deleted after its end",
            absent(),
            "serves",
            END,
            write(Create),
        ),
        ("broken at the start", spoilt(), "", MADE, write(Create)),
        ("broken", spoilt(), "serves leads", MADE, write(Restore)),
        ("fresh", usable(), "serves leads", MADE, wait(DUE)),
        ("fresh, standby", usable(), "serves", MADE, wait(END)),
        ("clock behind", usable(), "serves", EARLY, wait(END)),
        (
            "not valid yet",
            usable(),
            "serves leads",
            EARLY,
            write(Create),
        ),
        ("misnamed", misnamed(), "serves leads", MADE, write(Prepare)),
        ("misnamed, standby", misnamed(), "serves", MADE, wait(END)),
        ("not due", usable(), "serves leads", BEFORE_DUE, wait(DUE)),
        ("due", usable(), "serves leads", DUE, write(Prepare)),
        ("due, standby", usable(), "serves", DUE, wait(END)),
        ("expired", usable(), "serves", END, write(Create)),
        ("two CAs", two_cas(), "serves leads", DUE, wait(END)),
        (
            "spreading",
            two_cas(),
            "leads spread",
            DUE,
            wait(AFTER_SPREAD),
        ),
        (
            "spread",
            two_cas(),
            "leads spread",
            AFTER_SPREAD,
            write(TakeOver),
        ),
        (
            "spread, standby",
            two_cas(),
            "spread",
            AFTER_SPREAD,
            wait(END),
        ),
    ];
    for (case, stored, replica, now, expected) in table {
        let is = |word| replica.split(' ').any(|other| other == word);
        let current = is("serves").then(fresh);
        let at = Circumstances {
            leads: is("leads"),
            bundle_in_force: is("spread").then(|| {
                let since = time(now).duration_since(time(DUE));
                Duration::try_from(since).unwrap()
            }),
            now: time(now),
        };
        assert_eq!(
            decide_renewal(&stored, current.as_ref(), at),
            expected,
            "{case}"
        );
    }
}

#[test]
fn a_successor_takes_over_from_what_has_expired_before_it() {
    let old = fresh();
    let made = old.renewal_time();
    let data = renewed_data(
        Some(&old),
        Renewal::Prepare,
        &names(&NAMES),
        (made, YEAR),
        &mut KeySource::System,
    )
    .unwrap();
    let at = Circumstances {
        leads: false,
        bundle_in_force: None,
        now: old.current.not_after,
    };
    let decision = decide_renewal(&read(&data), None, at);
    assert_eq!(decision, Decision::Write(Renewal::TakeOver));
}

#[test]
fn every_certificate_of_a_renewal_is_trusted_by_the_bundles_before_and_after() {
    let first = fresh();
    let second = kept(&after(Some(&first), Renewal::Prepare));
    // What replicas serve that have not read of it.
    first.current.check_trusted_by(&second.bundle).unwrap();
    let third = kept(&after(Some(&second), Renewal::TakeOver));
    third.current.check_trusted_by(&second.bundle).unwrap();
    second.current.check_trusted_by(&third.bundle).unwrap();
    assert_eq!(third.bundle, second.bundle, "API servers learn of nothing");
    assert!(third.next.is_none());
    // The oldest CA goes with the next renewal, so the bundle does not grow.
    let fourth = kept(&after(Some(&third), Renewal::Prepare));
    third.current.check_trusted_by(&fourth.bundle).unwrap();
    assert!(second.current.check_trusted_by(&fourth.bundle).is_err());
}

#[test]
fn a_restored_secret_goes_on_with_what_is_served() {
    let served = fresh();
    let restored = kept(&after(Some(&served), Renewal::Restore));
    assert_eq!(restored.pem, served.pem);
    assert!(restored.next.is_some());
}

#[test]
fn other_names_come_with_a_successor_that_is_trusted_before_it_serves() {
    let others = names(&["another.leadsman-system.svc"]);
    let StoredCertificate::Usable(before) = misnamed() else {
        panic!("a follower serves it");
    };
    let change = |kept: &Kept, renewal| {
        let data = renewed_data(
            Some(kept),
            renewal,
            &others,
            (time(MADE), YEAR),
            &mut KeySource::System,
        )
        .unwrap();
        match StoredCertificate::read_secret(&data, &others) {
            StoredCertificate::Usable(kept) => *kept,
            other => panic!("{other:?}"),
        }
    };
    let prepared = change(&before, Renewal::Prepare);
    assert_eq!(prepared.pem, before.pem);
    let after = change(&prepared, Renewal::TakeOver);
    assert!(after.misnamed.is_none());
    after.current.check_trusted_by(&prepared.bundle).unwrap();
}

/// What cert-manager and others write: the root is in `ca.crt` alone.
#[test]
fn a_chain_without_its_root_is_renewed_by_what_the_bundle_holds() {
    let mut data = after(None, Renewal::Create);
    let leaf = split_certificates(&data["tls.crt"])[0].to_vec();
    data.insert("tls.crt".to_owned(), leaf);
    let trimmed = data["ca.crt"].trim_ascii_end().to_vec();
    data.insert("ca.crt".to_owned(), trimmed);
    let prepared = kept(&after(Some(&kept(&data)), Renewal::Prepare));
    assert!(prepared.next.is_some());
    let after = kept(&after(Some(&prepared), Renewal::TakeOver));
    after.current.check_trusted_by(&prepared.bundle).unwrap();
}

#[test]
fn what_is_served_goes_on_until_another_ca_is_known() {
    let (served, other) = (fresh(), fresh());
    let both = served.bundle_with(&other, time(MADE)).unwrap();
    served.current.check_trusted_by(&both).unwrap();
    other.current.check_trusted_by(&both).unwrap();
    assert!(served.bundle_with(&other, time(END)).is_none(), "expired");
    assert!(
        served.bundle_with(&other, time(EARLY)).is_none(),
        "not valid yet"
    );
    let prepared = prepared();
    let next = kept(&after(Some(&prepared), Renewal::TakeOver));
    assert!(prepared.bundle_with(&next, time(MADE)).is_none(), "known");
}

#[test]
fn no_key_is_printed() {
    let printed = format!("{:?}", two_cas());
    assert!(printed.contains("BEGIN CERTIFICATE"), "{printed}");
    let begin = format!("{:?}", b"-----BEGIN PRIVATE".as_slice());
    let begin = begin.trim_matches(['[', ']']);
    assert!(
        !printed.contains("PRIVATE") && !printed.contains(begin),
        "{printed}"
    );
}

#[test]
fn a_successor_that_is_broken_is_made_again() {
    let mut data = after(Some(&fresh()), Renewal::Prepare);
    data.insert("next.key".to_owned(), Vec::new());
    assert!(kept(&data).next.is_none());
}
