//! The loop of a feature against a scripted API server, in paused time.

mod bench;

use http::{HeaderMap, StatusCode};
use leadsman_process::reply::{Verb, judge_reply, not_leading, timed_out};
use serde_json::json;
use tokio::time::sleep;

use self::bench::{Answer, LONG, Script, after, bench, standby};
use super::*;

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_every_kind_is_listed_and_every_schema_read() {
    let all = write_prerequisites::<Script>();
    assert_eq!(all.len(), 4);
    for last in &all {
        let bench = bench();
        bench.due("a").await;
        for prerequisite in all.iter().filter(|one| *one != last) {
            bench.complete(*prerequisite).await;
        }
        after(60).await;
        assert!(bench.server.seconds("a").is_empty(), "{last:?}");
        bench.complete(*last).await;
        after(1).await;
        assert_eq!(bench.server.seconds("a").len(), 1, "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_failure_is_retried_or_given_up_as_it_should() {
    use Answer::{After, Code, Hang};
    const NO_RIGHT: &str = r#"{"message": "User \"me\" cannot patch resource \"pods/status\""}"#;
    const NOT_FOUND: &str = r#"{"reason": "NotFound", "message": "pods \"a\" not found"}"#;
    const UID: &str = r#"{"details": {"causes": [{"field": "metadata.uid"}]}}"#;
    // Answers, the requests there are in ten minutes, the earliest second of the last one, whether it was refused.
    let table: &[(&[Answer], usize, f64, bool)] = &[
        (&[], 1, 0.0, false),
        (&[Code(409, "{}")], 2, 0.02, false),
        (
            &[Code(409, "{}"), Code(409, "{}"), Code(409, "{}")],
            4,
            0.15,
            false,
        ),
        (&[After(429, "7")], 2, 7.0, false),
        (&[After(503, "2"), After(429, "3")], 3, 5.0, false),
        (&[Code(503, ""), Code(504, "")], 3, 0.3, false),
        (&[Hang], 2, 10.0, false),
        (&[Code(404, NOT_FOUND)], 1, 0.0, false),
        // Not the API server's own, so the object may be there.
        (
            &[const { Code(404, "404 page not found") }; 3],
            4,
            0.8,
            false,
        ),
        (&[Code(422, UID)], 1, 0.0, false),
        (&[Code(422, "{}")], 1, 0.0, true),
        (&[Code(400, "{}")], 1, 0.0, true),
        // A store that is away for half a minute, and one that will never take it.
        (&[const { Code(500, "") }; 8], 9, 20.0, false),
        (&[const { Code(500, "") }; 30], 10, 60.0, true),
        // It was carried out, but shows nothing: the watch will.
        (&[const { Code(200, "[]") }; 9], 1, 0.0, false),
        // An admission policy: another write may be allowed, this one is not.
        (&[Code(403, "no")], 1, 0.0, true),
        // API servers that have just started know no rights yet.
        (&[const { Code(403, NO_RIGHT) }; 3], 4, 0.8, false),
    ];
    for (answers, requests, earliest, refused) in table {
        let bench = bench();
        bench.server.script("a", answers);
        bench.list_all().await;
        bench.due("a").await;
        after(600).await;
        let seconds = bench.server.seconds("a");
        assert_eq!(seconds.len(), *requests, "{answers:?}: {seconds:?}");
        assert!(
            *seconds.last().unwrap() >= *earliest,
            "{answers:?}: {seconds:?}"
        );
        let refusals = bench.script.refused.lock().unwrap().len();
        assert_eq!(refusals, usize::from(*refused), "{answers:?}");
    }
}

// DEF-5
#[tokio::test(start_paused = true)]
async fn a_hanging_object_holds_up_no_other_and_room_is_bounded() {
    let bench = bench();
    bench.server.script("a", &[Answer::Hang]);
    bench.list_all().await;
    for pod in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        bench.due(pod).await;
    }
    after(1).await;
    let written = bench.server.seen.lock().unwrap().len();
    assert_eq!(written, 10);
    assert_eq!(bench.server.flying.lock().unwrap().1, 4);
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_write_is_one_more_write() {
    let bench = bench();
    bench.list_all().await;
    bench.due("a").await;
    sleep(Duration::from_millis(5)).await;
    for _ in 0..5 {
        bench.due("a").await;
    }
    sleep(Duration::from_millis(2)).await;
    assert_eq!(bench.server.seconds("a").len(), 1, "one at a time");
    after(60).await;
    // The first answer shows what was desired last; these rules then want nothing more.
    assert_eq!(bench.server.seconds("a").len(), 1);
    bench.due("a").await;
    after(60).await;
    assert_eq!(bench.server.seconds("a").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_write_that_a_policy_denies_goes_at_once() {
    let bench = bench();
    let denial = r#"{"message": "admission webhook \"policy\" denied the request: not red"}"#;
    bench.server.script("a", &[Answer::Code(403, denial)]);
    bench.list_all().await;
    bench.due("a").await;
    after(1).await;
    let refusals = bench.script.refused.lock().unwrap().clone();
    assert!(refusals[0].1.contains("not red"), "{refusals:?}");
    assert_eq!(bench.pending(), "0", "it is at rest");
    // What is wanted has changed.
    bench.due("a").await;
    after(1).await;
    assert_eq!(bench.server.seconds("a").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_named_until_it_is_granted() {
    const REFUSAL: &str = r#"{"message": "pods \"a\" is forbidden: User \"me\" cannot patch resource \"pods/status\""}"#;
    let bench = bench();
    let refusals = [const { Answer::Code(403, REFUSAL) }; 6];
    bench.server.script("a", &refusals);
    bench.list_all().await;
    bench.due("a").await;
    after(1).await;
    let text = bench.readiness.to_text();
    assert!(
        text.contains("leadsman manifests") && text.contains("cannot patch"),
        "{text}"
    );
    after(60).await;
    assert_eq!(bench.readiness.to_text(), "[+] rights to write\n");
    assert_eq!(bench.server.seconds("a").len(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_that_nothing_needs_any_more_is_forgotten() {
    const NO_RIGHT: &str = r#"{"message": "User \"me\" cannot patch resource \"pods/status\""}"#;
    let bench = bench();
    for pod in ["a", "b"] {
        let refusals = [const { Answer::Code(403, NO_RIGHT) }; 64];
        bench.server.script(pod, &refusals);
    }
    bench.list_all().await;
    for pod in ["a", "b"] {
        bench.due(pod).await;
    }
    after(1).await;
    bench.script.due.lock().unwrap().remove("a");
    after(600).await;
    let text = bench.readiness.to_text();
    assert!(text.contains("cannot patch"), "b needs it still: {text}");
    bench.script.due.lock().unwrap().remove("b");
    after(600).await;
    assert_eq!(bench.readiness.to_text(), "[+] rights to write\n");
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_for_requests_in_flight_but_not_for_ever() {
    for (answer, seconds) in [(None, 0), (Some(Answer::Hang), 10)] {
        let bench = bench();
        bench.server.script("a", answer.as_slice());
        bench.list_all().await;
        bench.due("a").await;
        sleep(Duration::from_millis(5)).await;
        assert_eq!(bench.server.seconds("a").len(), 1);
        bench.stop.cancel();
        bench.running.await.unwrap();
        assert_eq!(bench.start.elapsed().as_secs(), seconds);
        assert_eq!(bench.server.seconds("a").len(), 1, "nothing new is begun");
    }
}

#[tokio::test(start_paused = true)]
async fn a_standby_writes_nothing_and_keeps_nothing_and_takes_over_at_once() {
    let bench = standby();
    bench.list_all().await;
    for pod in ["a", "b", "c"] {
        bench.due(pod).await;
    }
    after(3600).await;
    assert!(bench.server.seen.lock().unwrap().is_empty());
    assert_eq!(bench.pending(), "0");
    bench.lead(1, LONG);
    after(1).await;
    let seen = bench.server.seen.lock().unwrap().clone();
    let seen: Vec<_> = seen.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["configmaps", "secrets", "a", "b", "c"];
    assert_eq!(seen, expected, "all is re-listed, then written");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_all_is_re_listed() {
    let bench = standby();
    bench
        .server
        .script("secrets", &[const { Answer::Code(503, "") }; 3]);
    bench.list_all().await;
    bench.due("a").await;
    after(1).await;
    bench.lead(1, LONG);
    after(60).await;
    let read = bench.server.seconds("secrets");
    assert_eq!(read.len(), 4);
    assert!(bench.server.seconds("a")[0] > read[3]);
    // Lost in the midst of it.
    let bench = standby();
    bench
        .server
        .script("configmaps", &[const { Answer::Hang }; 9]);
    bench.list_all().await;
    bench.due("a").await;
    after(1).await;
    bench.lead(1, LONG);
    after(60).await;
    bench.stand_by();
    after(60).await;
    assert!(bench.server.seconds("a").is_empty());
    bench.server.script("configmaps", &[]);
    bench.lead(2, LONG);
    after(1).await;
    assert_eq!(bench.server.seconds("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_leader_after_others_re_lists_after_its_first_lists() {
    let bench = standby();
    bench.lead(1, LONG);
    bench.due("a").await;
    after(1).await;
    assert!(bench.server.seconds("configmaps").is_empty());
    bench.list_all().await;
    after(1).await;
    let seen = bench.server.seen.lock().unwrap().clone();
    let seen: Vec<_> = seen.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(seen, ["configmaps", "secrets", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_re_list_that_the_end_of_a_term_cut_short_is_made_in_the_next() {
    let bench = standby();
    bench.server.script("secrets", &[Answer::Hang]);
    bench.list_all().await;
    bench.due("a").await;
    bench.lead(1, LONG);
    after(1).await;
    bench.stand_by();
    after(1).await;
    // The elector names others only once.
    bench.take_lease(2, false, LONG);
    after(1).await;
    assert_eq!(bench.server.seconds("secrets").len(), 2);
    assert_eq!(bench.server.seconds("a").len(), 1);
    // Complete: the next term needs none.
    bench.stand_by();
    after(1).await;
    bench.take_lease(3, false, LONG);
    bench.due("a").await;
    after(1).await;
    assert_eq!(bench.server.seconds("secrets").len(), 2);
    assert_eq!(bench.server.seconds("a").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_hung_list_delays_a_new_leader_by_its_deadline_and_no_longer() {
    let bench = standby();
    bench.server.script("secrets", &[Answer::Hang]);
    bench.list_all().await;
    bench.due("a").await;
    after(1).await;
    bench.lead(1, LONG);
    after(60).await;
    assert_eq!(bench.server.seconds("secrets").len(), 2);
    let written = bench.server.seconds("a");
    assert!(written.len() == 1 && written[0] < 8.0, "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_ends_stops_writing_without_being_notified() {
    let bench = standby();
    bench.lead_first(Duration::from_secs(10));
    bench.list_all().await;
    bench.due("a").await;
    after(9).await;
    bench.due("b").await;
    // Too little is left to begin anything.
    sleep(Duration::from_millis(600)).await;
    bench.due("c").await;
    after(600).await;
    let written = |pod| bench.server.seconds(pod).len();
    assert_eq!(["a", "b", "c"].map(written), [1, 1, 0]);
    bench.lead_first(LONG);
    after(1).await;
    assert_eq!(written("c"), 1, "renewed");
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_no_longer_than_the_lease_lasts() {
    let bench = standby();
    bench.server.script("a", &[Answer::Hang, Answer::Hang]);
    bench.lead_first(Duration::from_secs(4));
    bench.list_all().await;
    bench.due("a").await;
    after(5).await;
    let text = bench.metrics.text().unwrap();
    let ended = r#"leadsman_writes_total{write="lamp",result="no_answer"} 1"#;
    assert!(text.contains(ended), "{text}");
    bench.stand_by();
    after(600).await;
    assert_eq!(bench.server.seconds("a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_term_between_two_looks_at_the_lease_is_noticed() {
    const NO_RIGHT: &str = r#"{"message": "User \"me\" cannot patch resource \"pods/status\""}"#;
    let bench = bench();
    bench.list_all().await;
    let refusals = [const { Answer::Code(403, NO_RIGHT) }; 12];
    bench.server.script("a", &refusals);
    bench.due("a").await;
    after(60).await;
    let before = bench.server.seconds("a").len();
    // Lost and taken again in one go: what failed before is not waited for.
    bench.stand_by();
    bench.lead(2, LONG);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(bench.server.seconds("secrets").len(), 1);
    assert_eq!(bench.server.seconds("a").len(), before + 1);
}

// PPM-20
#[tokio::test(start_paused = true)]
async fn rules_that_go_on_after_an_event_leave_the_thread_to_others() {
    const TURNS: usize = 1000;
    let bench = bench();
    *bench.script.turns.lock().unwrap() = TURNS;
    bench.due("a").await;
    let mut others = 0;
    while *bench.script.turns.lock().unwrap() > 0 {
        tokio::task::yield_now().await;
        others += 1;
        assert!(others <= 2 * TURNS, "no turn was taken");
    }
    assert!(others >= TURNS / 2, "{others}");
}

#[test]
fn what_surely_was_not_stored_is_told_from_what_may_have_been() {
    use Unwritten::{Gone, NotDone, Unknown};
    use WriteVerb::{Create, Delete, MergePatch};
    const WEBHOOK: &str = "Internal error occurred: failed calling webhook \"a.b.c\": failed to call webhook: Post \
         \"https://a.b.svc:443/?timeout=10s\": dial tcp 10.0.0.1:443: connect: connection refused";
    const CONVERSION: &str =
        "conversion webhook for b.c/v1, Kind=A failed: Post \"https://a.b.svc:443/\"";
    let table = [
        (Create, 500, "InternalError", WEBHOOK, NotDone),
        (MergePatch, 500, "InternalError", WEBHOOK, NotDone),
        // A deletion asks webhooks before each of its steps, the first of which may have been stored.
        (Delete, 500, "InternalError", WEBHOOK, Unknown),
        // What was stored is converted for the answer.
        (Create, 500, "InternalError", CONVERSION, Unknown),
        (Create, 500, "", "etcdserver: request timed out", Unknown),
        (Create, 500, "", "etcdserver: leader changed", Unknown),
        (Create, 500, "ServerTimeout", "try again later", Unknown),
        (Create, 503, "ServiceUnavailable", WEBHOOK, Unknown),
        (Create, 504, "Timeout", "not within 34s", Unknown),
        (Create, 403, "Forbidden", "exceeded quota: pods", NotDone),
        (Create, 429, "TooManyRequests", "slow down", NotDone),
        (MergePatch, 404, "NotFound", "pods \"a\" not found", Gone),
    ];
    let judge = |verb, code, reason: &str, message: &str| {
        let body = json!({"status": "Failure", "reason": reason, "message": message}).to_string();
        let step = match verb {
            Create => Verb::Create,
            MergePatch => Verb::Update,
            _ => Verb::Delete,
        };
        let code = StatusCode::from_u16(code).unwrap();
        judge_reply(step, code, &HeaderMap::new(), body.as_bytes())
    };
    for (verb, code, reason, message, expected) in table {
        let disposition = judge(verb, code, reason, message);
        let found = why_unwritten(
            &WriteKind {
                verb,
                ..bench::PATCH
            },
            &disposition,
        );
        assert_eq!(found, Some(expected), "{verb:?} {code} {message}");
    }
    let unsent = why_unwritten(&bench::PATCH, &not_leading());
    assert_eq!(unsent, Some(NotDone));
    let late = why_unwritten(&bench::PATCH, &timed_out(Duration::from_secs(10)));
    assert_eq!(late, Some(Unknown));
}
