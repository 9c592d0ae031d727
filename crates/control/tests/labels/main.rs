//! A feature on the kernel takes a file of rules and a list of its kinds, and nothing of this crate. Here it runs beside
//! others against a small API server: the kinds that two of them observe are listed once, and a kind that one of them lacks
//! stops that one alone.

#![allow(
    clippy::unwrap_used,
    reason = "clippy takes only functions with #[test] for tests"
)]

mod api_server;
#[expect(
    unreachable_pub,
    reason = "the example of a feature is written as one that is published"
)]
#[path = "../../../reconcile/tests/copy_labels/mod.rs"]
mod copy_labels;

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use leadsman_api::slim::Pod as SlimPod;
use leadsman_control::{
    Class, Control, ControlError, Effects, Kind, Observation, Observe, Reconciled, Request, Rules,
    WatchedKinds, rights_of_feature,
};
use leadsman_lease::Leadership;
use leadsman_process::watch;
use leadsman_process::{ApiServer, Process, RandomSource, clock};
use leadsman_reconcile::{Now, RightScope, WriteKind, WriteVerb};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::api_server::Cluster;
use self::copy_labels::{COLOUR, CopyLabels};

/// The namespace that features run in.
const NAMESPACE: &str = "leadsman-system";

struct LabelKinds;

impl WatchedKinds for LabelKinds {
    type Feature = CopyLabels;

    const KINDS: &'static [Kind<Reconciled<Self>>] = &[
        Kind::new::<ConfigMap>(500).relisted_on_takeover(),
        Kind::new::<Pod>(500),
    ];
}

/// Features that run.
struct Running {
    process: Process,
    leadership: watch::Sender<Leadership>,
    control: JoinHandle<Result<(), ControlError>>,
}

/// Runs features that nobody led before.
fn run_features(cluster: &Cluster, add: impl FnOnce(&mut Control)) -> Running {
    let until = clock::monotonic() + Duration::from_hours(1);
    let leads = Leadership::Leads {
        term: 1,
        after_others: false,
        until,
    };
    run_features_as(leads, cluster, add)
}

fn run_features_as(
    leadership: Leadership,
    cluster: &Cluster,
    add: impl FnOnce(&mut Control),
) -> Running {
    let server = ApiServer::new(cluster.client());
    let process = Process::new(server, RandomSource::from_seed(7), "host");
    let leadership = watch::Sender::new(leadership);
    let mut control = Control::new(&process, leadership.subscribe(), NAMESPACE);
    add(&mut control);
    Running {
        process,
        leadership,
        control: tokio::spawn(control.run()),
    }
}

/// A feature that observes pods and secrets, and has a request for each pod once it is in sync.
struct Greedy;

const CREATE: WriteKind = WriteKind {
    label: "create_secret",
    group: "",
    version: "v1",
    resource: "secrets",
    verb: WriteVerb::Create,
    scope: RightScope::Cluster,
    class: 0,
};

impl<K> Observe<K> for Greedy {
    fn event_from_observation(_: Observation<K>) {}
}

impl Rules for Greedy {
    const NAME: &'static str = "greedy";
    const KINDS: &'static [Kind<Self>] = &[Kind::new::<Pod>(500), Kind::new::<Secret>(500)];
    const WRITES: &'static [WriteKind] = &[CREATE];
    const CLASSES: &'static [Class] = &[Class::new("labels")];

    type Event = ();
    type Target = usize;

    fn observe_event(&mut self, (): (), _now: Now) -> Effects<usize> {
        Effects::default()
    }

    fn synced(&mut self, _now: Now) -> Effects<usize> {
        Effects {
            dirty: (0..10_000).collect(),
            deadline: None,
        }
    }

    fn deadline_passed(&mut self, _now: Now) -> Effects<usize> {
        Effects::default()
    }

    fn due_request(&mut self, _: &usize, _now: Now) -> Option<Request<()>> {
        let post = http::Request::post("/api/v1/namespaces/shop/secrets");
        Some(Request {
            kind: &CREATE,
            http: Ok(post.body(Vec::new()).ok()?),
            reply: None,
            read_back: None,
            measured: None,
            written: (),
            refused: Box::new(|_| ()),
        })
    }

    fn class_index(_: &usize) -> usize {
        0
    }

    fn namespace(_: &usize) -> Option<&str> {
        None
    }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

/// A shop with a `ConfigMap` and two pods that name it, and one that does not.
fn shop() -> Cluster {
    let cluster = Cluster::default();
    cluster.put_object(
        "configmaps",
        "paint",
        &[("example.com/colour", "red")],
        None,
    );
    cluster.put_object("pods", "a", &[], Some("paint"));
    cluster.put_object(
        "pods",
        "b",
        &[("example.com/colour", "blue")],
        Some("paint"),
    );
    cluster.put_object("pods", "c", &[], None);
    cluster
}

/// The colours of the three pods; empty for none.
fn colours(cluster: &Cluster) -> [String; 3] {
    ["a", "b", "c"].map(|pod| cluster.label_value("pods", pod, COLOUR).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn labels_are_copied_and_follow_their_config_map() {
    let cluster = shop();
    let running = run_features(&cluster, |control| {
        control.add_feature(Reconciled::<LabelKinds>::new(CopyLabels));
    });
    seconds(5).await;
    assert_eq!(colours(&cluster), ["red", "red", ""]);
    assert_eq!(
        cluster.count_requests("PATCH"),
        2,
        "one request a pod, and no more"
    );
    cluster.put_object(
        "configmaps",
        "paint",
        &[("example.com/colour", "green")],
        None,
    );
    cluster.put_object("pods", "c", &[], Some("paint"));
    seconds(5).await;
    assert_eq!(colours(&cluster), ["green"; 3]);
    assert_eq!(cluster.count_requests("PATCH"), 5);
    running.process.shutdown.cancel();
    running.control.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_listed_before_it_is_known_who_leads() {
    let cluster = shop();
    let running = run_features_as(Leadership::Unknown, &cluster, |control| {
        control.add_feature(Reconciled::<LabelKinds>::new(CopyLabels));
    });
    seconds(60).await;
    assert_eq!(cluster.count_requests("LIST"), 0);
    running.leadership.send_replace(Leadership::Standby);
    seconds(5).await;
    assert_eq!(cluster.count_requests("LIST"), 2, "a standby keeps up");
    assert_eq!(cluster.count_requests("PATCH"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_missing_stops_the_features_that_need_it_and_no_other() {
    let cluster = shop();
    cluster.forget_resource("secrets");
    let running = run_features(&cluster, |control| {
        control.add_feature(Reconciled::<LabelKinds>::new(CopyLabels));
        control.add_feature(Greedy);
    });
    seconds(30).await;
    assert_eq!(colours(&cluster), ["red", "red", ""]);
    assert_eq!(cluster.count_requests("POST"), 0);
    let text = running.process.readiness.to_text();
    assert!(text.contains("[+] pods\n"), "{text}");
    assert!(text.contains("does not serve secrets"), "{text}");
    cluster.serve_resource("secrets");
    seconds(60).await;
    assert!(cluster.count_requests("POST") > 0);
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_two_features_is_listed_and_watched_once() {
    let cluster = shop();
    let _running = run_features(&cluster, |control| {
        control.add_feature(Reconciled::<LabelKinds>::new(CopyLabels));
        control.add_feature(Reconciled::<LabelKinds>::new(CopyLabels));
    });
    seconds(5).await;
    assert_eq!(cluster.count_requests("LIST pods"), 1);
    assert_eq!(cluster.count_requests("WATCH pods"), 1);
    assert_eq!(cluster.count_requests("LIST configmaps"), 1);
    assert_eq!(colours(&cluster), ["red", "red", ""]);
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_requests_of_one_feature_do_not_hold_up_another() {
    let cluster = shop();
    cluster.put_object("pods", "b", &[], None);
    let _running = run_features(&cluster, |control| {
        control.add_feature(Greedy);
        control.add_feature(Reconciled::<LabelKinds>::new(CopyLabels));
    });
    // Each request takes a tenth of a second: thirty-two at a time, ten thousand take half a minute.
    sleep(Duration::from_secs(2)).await;
    assert!(cluster.count_requests("POST") > 300 && cluster.count_requests("POST") < 1000);
    let asked = clock::monotonic();
    cluster.put_object("pods", "b", &[], Some("paint"));
    while cluster.label_value("pods", "b", COLOUR).is_none() {
        sleep(Duration::from_millis(10)).await;
    }
    assert!(
        asked.elapsed() < Duration::from_millis(150),
        "{:?}",
        asked.elapsed()
    );
    assert!(cluster.most_in_flight() <= 32);
}

#[tokio::test(start_paused = true)]
async fn requests_that_hang_hold_up_no_other_feature() {
    let cluster = shop();
    cluster.hang_on_method("POST");
    let _running = run_features(&cluster, |control| {
        control.add_feature(Greedy);
        control.add_feature(Reconciled::<LabelKinds>::new(CopyLabels));
    });
    seconds(2).await;
    assert_eq!(colours(&cluster), ["red", "red", ""]);
}

/// A feature that reads all of a pod, and beside it objects of the manager's own namespace alone.
struct Own;

impl<K> Observe<K> for Own {
    fn event_from_observation(_: Observation<K>) {}
}

impl Rules for Own {
    const NAME: &'static str = "own";
    const KINDS: &'static [Kind<Self>] = &[
        Kind::new::<SlimPod>(500),
        Kind::new::<ConfigMap>(1).only_named("colours"),
        Kind::new::<Secret>(5)
            .only_labelled("example.com/colour")
            .relisted_on_takeover(),
    ];
    const WRITES: &'static [WriteKind] = &[WriteKind {
        scope: RightScope::OwnNamespace,
        ..CREATE
    }];
    const CLASSES: &'static [Class] = &[Class::new("own")];

    type Event = ();
    type Target = usize;

    fn observe_event(&mut self, (): (), _now: Now) -> Effects<usize> {
        Effects::default()
    }

    fn synced(&mut self, _now: Now) -> Effects<usize> {
        Effects::default()
    }

    fn deadline_passed(&mut self, _now: Now) -> Effects<usize> {
        Effects::default()
    }

    fn due_request(&mut self, _: &usize, _now: Now) -> Option<Request<()>> {
        None
    }

    fn class_index(_: &usize) -> usize {
        0
    }

    fn namespace(_: &usize) -> Option<&str> {
        None
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_may_be_observed_in_part_in_the_own_namespace() {
    let cluster = shop();
    let after_others = Leadership::Leads {
        term: 1,
        after_others: true,
        until: clock::monotonic() + Duration::from_hours(1),
    };
    let running = run_features_as(after_others, &cluster, |control| control.add_feature(Own));
    seconds(2).await;
    let own = "/api/v1/namespaces/leadsman-system/";
    for (request, path, selector, times) in [
        (
            "LIST configmaps",
            "configmaps",
            "&fieldSelector=metadata.name%3Dcolours",
            1,
        ),
        (
            "WATCH configmaps",
            "configmaps",
            "&fieldSelector=metadata.name%3Dcolours",
            1,
        ),
        // And once more, as the leader after others.
        (
            "LIST secrets",
            "secrets",
            "&labelSelector=example.com%2Fcolour",
            2,
        ),
        (
            "WATCH secrets",
            "secrets",
            "&labelSelector=example.com%2Fcolour",
            1,
        ),
    ] {
        let asked = cluster.request_addresses(request);
        assert_eq!(asked.len(), times, "{request}: {asked:?}");
        for address in asked {
            assert!(address.starts_with(&format!("{own}{path}?")), "{address}");
            assert!(address.contains(selector), "{address}");
        }
    }
    let text = running.process.readiness.to_text();
    for check in [
        "[+] configmaps/colours in namespace leadsman-system",
        "[+] secrets in namespace leadsman-system",
    ] {
        assert!(text.contains(check), "{text}");
    }
    let rights = rights_of_feature::<Own>();
    let [cluster, own] = [rights.cluster, rights.own_namespace].map(|rights| {
        let rights = rights
            .iter()
            .map(|right| format!("{} {} {}", right.verb, right.resource, right.name));
        rights.collect::<Vec<_>>()
    });
    assert_eq!(cluster, ["list pods ", "watch pods "]);
    let expected = [
        "list configmaps colours",
        "watch configmaps colours",
        "list secrets ",
        "watch secrets ",
        "create secrets ",
        "get secrets ",
    ];
    assert_eq!(own, expected);
}

#[test]
fn rights_follow_from_kinds_and_requests() {
    let rights = rights_of_feature::<Reconciled<LabelKinds>>();
    assert!(rights.own_namespace.is_empty());
    let rights = rights.cluster.iter().map(|right| {
        assert!(right.group.is_empty() && right.name.is_empty());
        format!("{} {}", right.verb, right.resource)
    });
    let expected = [
        "list configmaps",
        "watch configmaps",
        "list pods",
        "watch pods",
        "patch pods",
    ];
    assert_eq!(rights.collect::<Vec<_>>(), expected);
}
