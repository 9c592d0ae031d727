//! A watch against a scripted API server, in paused time.

mod scripted;

use futures::StreamExt;
use http::Response;
use http::request::Request as HttpRequest;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::client::Body;
use serde_json::json;

use self::scripted::{Answer, End, Events, changed, expired, line, node, page, scripted_watch};
use super::*;

/// An alert looks at the time of the last event: of two watches, one must not hide that the other has none.
#[tokio::test]
async fn watches_of_two_objects_of_a_resource_have_metrics_of_their_own() {
    let service = tower::service_fn(|_: HttpRequest<Body>| {
        std::future::ready(Ok::<_, std::io::Error>(Response::new(Body::empty())))
    });
    let server = ApiServer::new(Client::new(service, "default"));
    let metrics = crate::Metrics::default();
    server.metrics.register_client_metrics(&metrics);
    let _watches = ["a", "b"].map(|name| {
        watch_object::<Node>(
            server.clone(),
            ListTarget::all_of::<Node>(),
            name,
            fastrand::Rng::with_seed(7),
        )
    });
    let text = metrics.text().unwrap();
    for name in ["a", "b"] {
        let line = format!("leadsman_reflector_lists_total{{resource=\"nodes/{name}\"}} 0");
        assert!(text.contains(&line), "{line}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_in_pages_and_what_follows() {
    let piece = changed("a", "11");
    let (first, second) = piece.split_at(9);
    let (api, mut events) = scripted_watch(vec![
        page(&["a", "b"], "more", "10"),
        page(&["c"], "", "10"),
        Answer::Stream(
            vec![
                // In pieces, as they come.
                (1, first.to_owned()),
                (1, second.to_owned() + &line("DELETED", &node("b", "12"))),
                (
                    1,
                    line(
                        "BOOKMARK",
                        &json!({"kind": "Node", "apiVersion": "v1", "metadata": {"resourceVersion": "15"}}),
                    ),
                ),
            ],
            End::Ended,
        ),
        Answer::Stream(vec![], End::Silent),
    ]);
    let lines = api.until(&mut events, 60).await;
    let expected = [
        "0: list started",
        "0: page of 10",
        "0: item a",
        "0: item b",
        "0: page of 10",
        "0: item c",
        "0: list complete",
        "0: following",
        "2: changed a",
        "2: deleted b",
        "3: following",
    ];
    assert_eq!(lines, expected);
    let expected = [
        "0: list",
        "0: list from more",
        "0: watch from 10",
        "3: watch from 15",
    ];
    assert_eq!(
        api.asked(),
        expected,
        "an ended watch goes on from the bookmark"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_too_old_is_listed_again_at_once() {
    let ways = [
        vec![Answer::Reply(410, expired())],
        vec![Answer::Stream(
            vec![(0, line("ERROR", &expired()))],
            End::Ended,
        )],
        // A store that was restored.
        vec![Answer::Reply(
            504,
            json!({"code": 504, "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}),
        )],
    ];
    for way in ways {
        let mut script = vec![page(&[], "", "10")];
        script.extend(way);
        script.extend([page(&["a"], "", "20"), Answer::Stream(vec![], End::Silent)]);
        let (api, mut events) = scripted_watch(script);
        let lines = api.until(&mut events, 60).await;
        assert_eq!(lines.last().unwrap(), "0: following", "{lines:?}");
        assert!(
            lines.contains(&"0: failed Watching".to_owned()),
            "{lines:?}"
        );
        let expected = ["0: list", "0: watch from 10", "0: list", "0: watch from 20"];
        assert_eq!(api.asked(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_too_old_each_time_is_not_listed_at_full_speed() {
    let script = (0..200).map(|at| match at % 2 {
        0 => page(&[], "", "10"),
        _ => Answer::Reply(410, expired()),
    });
    let (api, mut events) = scripted_watch(script.collect());
    api.until(&mut events, 60).await;
    let lists = api
        .asked()
        .iter()
        .filter(|ask| ask.ends_with("list"))
        .count();
    assert!((10..=40).contains(&lists), "{lists} lists in a minute");
}

#[tokio::test(start_paused = true)]
async fn no_two_attempts_are_further_apart_than_five_seconds() {
    let (api, mut events) = scripted_watch(vec![
        page(&[], "", "10"),
        Answer::Stream(vec![(1, changed("a", "11"))], End::Broken),
    ]);
    // An outage of ten minutes.
    let lines = api.until(&mut events, 600).await;
    assert_eq!(lines[4..6], ["1: changed a", "1: failed Watching"]);
    let seconds: Vec<f64> = api
        .asked()
        .iter()
        .map(|ask| ask.split_once(':').unwrap().0.parse().unwrap())
        .collect();
    let apart = seconds.windows(2).map(|two| two[1] - two[0]);
    assert!(apart.clone().all(|apart| apart <= 5.0), "{seconds:?}");
    let calm = apart.skip(10).filter(|apart| *apart < 2.0).count();
    assert_eq!(calm, 0, "spread, and not at full speed: {seconds:?}");
    assert!(
        api.asked()
            .iter()
            .skip(2)
            .all(|ask| ask.ends_with("watch from 11"))
    );
}

#[tokio::test(start_paused = true)]
async fn the_success_of_another_request_wakes_it() {
    let (api, mut events) = scripted_watch(vec![
        page(&[], "", "10"),
        Answer::Stream(vec![], End::Broken),
    ]);
    api.until(&mut events, 100).await;
    let before = api.asked().len();
    let now = clock::monotonic();
    api.script
        .lock()
        .unwrap()
        .push_back(Answer::Stream(vec![], End::Silent));
    api.server
        .reachability
        .record_outcome(&Disposition::Done, now, now);
    let lines = tokio::time::timeout(Duration::from_millis(1), events.next()).await;
    assert!(
        matches!(lines, Ok(Some(WatchEvent::Following))),
        "{lines:?}"
    );
    assert_eq!(api.asked().len(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_is_given_up_and_sent_again() {
    let (api, mut events) = scripted_watch(vec![
        Answer::Hang,
        Answer::Hang,
        page(&["a"], "", "10"),
        Answer::Hang,
        Answer::Stream(vec![], End::Silent),
    ]);
    let lines = api.until(&mut events, 90).await;
    // 5 s and a wait, 15 s and a wait, 10 s and a wait.
    let expected = [
        "0: list started",
        "5: failed Listing",
        "21: failed Listing",
        "22: page of 10",
        "22: item a",
        "22: list complete",
        "32: failed Watching",
        "34: following",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_since_an_outage_is_sent_again_when_others_are_answered() {
    for (script, asked) in [
        // A page that came too late is asked for again with half of its objects.
        (vec![Answer::Hang, page(&[], "", "10")], "list of 1"),
        (vec![page(&[], "", "10"), Answer::Hang], "watch from 10"),
    ] {
        let (api, mut events) = scripted_watch(script);
        api.until(&mut events, 1).await;
        let lost = clock::monotonic();
        api.server
            .reachability
            .record_outcome(&timed_out(Duration::ZERO), lost, lost);
        api.until(&mut events, 8).await;
        let script = [page(&[], "", "10"), Answer::Stream(vec![], End::Silent)];
        *api.script.lock().unwrap() = script
            .into_iter()
            .skip(usize::from(asked != "list of 1"))
            .collect();
        let now = clock::monotonic();
        api.server
            .reachability
            .record_outcome(&Disposition::Done, now, now);
        api.until(&mut events, 10).await;
        let asks = api.asked();
        assert!(
            asks.len() > 1
                && asks
                    .iter()
                    .any(|ask| ask.ends_with(asked) && !ask.starts_with("0:")),
            "{asks:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_died_without_a_word_is_noticed() {
    // By silence.
    let silent = || Answer::Stream(vec![], End::Silent);
    let script = || {
        let same = page(&[], "", "10");
        vec![page(&[], "", "10"), silent(), same, silent()]
    };
    let (quiet, mut events) = scripted_watch(script());
    let lines = quiet.until(&mut events, 150).await;
    assert_eq!(
        lines,
        [
            "0: list started",
            "0: page of 10",
            "0: list complete",
            "0: following",
            "100: following"
        ]
    );
    // When others are answered again after an outage, and it has been silent since before.
    let (cut, mut events) = scripted_watch(vec![page(&[], "", "10"), silent(), silent()]);
    cut.until(&mut events, 20).await;
    cut.record(&timed_out(Duration::ZERO));
    cut.until(&mut events, 40).await;
    cut.record(&Disposition::Done);
    assert_eq!(cut.until(&mut events, 60).await, ["40: following"]);
    // This watch received lines during the outage of other requests.
    let receiving = Answer::Stream(vec![(30, changed("a", "11"))], End::Silent);
    let (fine, mut events) = scripted_watch(vec![page(&[], "", "10"), receiving]);
    fine.until(&mut events, 20).await;
    fine.record(&timed_out(Duration::ZERO));
    fine.until(&mut events, 40).await;
    fine.record(&Disposition::Done);
    assert!(fine.until(&mut events, 60).await.is_empty());
}

/// An API server delivers nothing to a watch from a version that it has not reached, and does not say so (`process` in
/// `k8s.io/apiserver/pkg/storage/cacher/cache_watcher.go`).
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_silent_since_etcd_was_restored_is_listed_again() {
    let silent = || Answer::Stream(vec![], End::Silent);
    let (api, mut events) = scripted_watch(vec![
        page(&["a", "b"], "", "10"),
        Answer::Stream(vec![(1, changed("a", "30"))], End::Broken),
        silent(),
        // What is stored now: an earlier version, of which one object is enough to say so.
        page(&["a"], "more", "12"),
        page(&["a"], "", "12"),
        silent(),
    ]);
    let lines = api.until(&mut events, 150).await;
    let expected = [
        "101: failed Watching",
        "101: list started",
        "101: page of 12",
        "101: item a",
        "101: list complete",
        "101: following",
    ];
    assert_eq!(lines[lines.len() - 6..], expected, "{lines:?}");
    let asked = api.asked();
    let expected = [
        "1: watch from 30",
        "101: list of 1",
        "101: list",
        "101: watch from 12",
    ];
    assert_eq!(asked[asked.len() - 4..], expected, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_goes_on_where_the_api_server_has_not_gone_back() {
    let silent = || Answer::Stream(vec![], End::Silent);
    let answers = [
        page(&["a"], "more", "10"),
        page(&["a"], "more", "4000"),
        // Versions that cannot be compared.
        page(&["a"], "more", "x"),
    ];
    for answer in answers {
        let (api, mut events) =
            scripted_watch(vec![page(&[], "", "10"), silent(), answer, silent()]);
        let lines = api.until(&mut events, 150).await;
        assert!(
            lines[4..].iter().all(|line| line.ends_with(": following")),
            "{lines:?}"
        );
        let asked = api.asked();
        assert_eq!(asked[2], "100: list of 1", "{asked:?}");
        assert!(asked[3].ends_with(": watch from 10"), "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn whether_the_api_server_has_gone_back_is_asked_again_soon_where_it_was_not_answered() {
    let silent = || Answer::Stream(vec![], End::Silent);
    let unanswered = [
        Answer::Reply(500, json!({"code": 500})),
        Answer::Refuse,
        Answer::Hang,
    ];
    for answer in unanswered {
        let (api, mut events) = scripted_watch(vec![
            page(&[], "", "30"),
            silent(),
            answer,
            silent(),
            page(&[], "", "12"),
            page(&[], "", "12"),
            silent(),
        ]);
        let lines = api.until(&mut events, 150).await;
        let asked = api.asked();
        // The watch goes on meanwhile, and has not failed.
        assert!(lines[4].ends_with(": following"), "{lines:?}");
        assert_eq!(asked[2], "100: list of 1", "{asked:?}");
        assert!(asked[3].ends_with(": watch from 30"), "{asked:?}");
        assert!(asked[6].ends_with(": watch from 12"), "{asked:?}");
    }
}

/// A proxy that ends watches often, or outages of others, would otherwise put off for ever that a restore is noticed.
#[tokio::test(start_paused = true)]
async fn a_watch_that_was_begun_again_is_silent_since_the_last_line() {
    let silent = || Answer::Stream(vec![], End::Silent);
    let ends = |end| Answer::Stream(vec![(60, String::new())], end);
    for first in [ends(End::Ended), ends(End::Broken), silent()] {
        let (api, mut events) = scripted_watch(vec![
            page(&[], "", "30"),
            first,
            silent(),
            page(&[], "", "12"),
            page(&[], "", "12"),
            Answer::Stream(vec![(30, changed("a", "13"))], End::Ended),
            silent(),
        ]);
        api.until(&mut events, 50).await;
        api.record(&timed_out(Duration::ZERO));
        api.until(&mut events, 59).await;
        api.record(&Disposition::Done);
        api.until(&mut events, 220).await;
        let asked = api.asked();
        assert!(asked[2].ends_with(": watch from 30"), "{asked:?}");
        let second = |ask: &String| ask.split_once(':').unwrap().0.parse::<u64>().unwrap();
        assert!((100..=102).contains(&second(&asked[3])), "{asked:?}");
        assert!(asked[3].ends_with(": list of 1"), "{asked:?}");
        // A line begins the silence anew.
        assert_eq!(asked.len(), 7, "{asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_goes_on_with_its_next_page() {
    let (api, mut events) = scripted_watch(vec![
        page(&["a", "b"], "more", "10"),
        Answer::Refuse,
        Answer::After(429, "9"),
        page(&["c"], "even", "10"),
        // Its rest was forgotten.
        Answer::Reply(410, expired()),
        page(&["a"], "", "20"),
        Answer::Stream(vec![], End::Silent),
    ]);
    let lines = api.until(&mut events, 60).await;
    let expected = [
        "0: list started",
        "0: page of 10",
        "0: item a",
        "0: item b",
        "0: failed Listing",
        "1: failed Listing",
        "10: page of 10",
        "10: item c",
        "10: failed Listing",
        "10: list started",
        "10: page of 20",
        "10: item a",
        "10: list complete",
        "10: following",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_listed_again_but_not_at_full_speed() {
    let bad = || Answer::Stream(vec![(0, "no JSON\n".to_owned())], End::Ended);
    let ended = || Answer::Stream(vec![], End::Ended);
    for broken in [bad as fn() -> Answer, ended] {
        let script = (0..200).map(|at| match at % 2 {
            0 => page(&[], "", "10"),
            _ => broken(),
        });
        let (api, mut events) = scripted_watch(script.collect());
        api.until(&mut events, 60).await;
        let asks = api.asked().len();
        assert!((10..=80).contains(&asks), "{asks} requests in a minute");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_within_a_watchs_first_second_is_no_failure_of_the_watch() {
    let silent = || Answer::Stream(vec![], End::Silent);
    let (api, mut events) = scripted_watch(vec![page(&[], "", "10"), silent(), silent()]);
    let follows = async |events: &mut Events| loop {
        if let Some(WatchEvent::Following) = events.next().await {
            break;
        }
    };
    follows(&mut events).await;
    api.record(&timed_out(Duration::ZERO));
    api.record(&Disposition::Done);
    let lines = api.until(&mut events, 60).await;
    assert_eq!(
        lines,
        ["0: following"],
        "begun again, and at no moment failed"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_connections_do_not_lengthen_a_lists_deadline() {
    let refusals = (0..4).map(|_| Answer::Refuse);
    let (api, mut events) = scripted_watch(refusals.chain([Answer::Hang]).collect());
    let lines = api.until(&mut events, 60).await;
    let second = |lines: &String| lines.split_once(':').unwrap().0.parse::<u64>().unwrap();
    // The fifth hangs: it begins within 5 s of the refusal before it, and ends 5 s after that.
    let apart = second(&lines[5]) - second(&lines[4]);
    assert!((5..=11).contains(&apart), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_recovery_soon_after_a_request_began_is_kept_in_mind() {
    let silent = || Answer::Stream(vec![], End::Silent);
    let script = vec![page(&[], "", "10"), Answer::Hang, silent()];
    let (api, mut events) = scripted_watch(script);
    api.until(&mut events, 0).await;
    let events = async {
        while !matches!(events.next().await, Some(WatchEvent::Following)) {}
        clock::monotonic()
    };
    let recovery = async {
        sleep(Duration::from_millis(300)).await;
        api.record(&timed_out(Duration::ZERO));
        api.record(&Disposition::Done);
    };
    let (follows, ()) = tokio::join!(events, recovery);
    // One second for the start, and a first wait.
    let took = follows - api.start;
    assert!(took < Duration::from_secs(3), "{took:?}");
}
