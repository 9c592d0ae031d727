//! Whatever the order of events, replies, failures and crashes, and whatever users and kubelets do: there are never more pods than
//! replicas and surge, none is taken out of service beyond the budget, no pod is without its claims, no claim of an active pod is
//! deleted, and in the end all is as it is to be.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::cluster::{Answer, Cluster, KINDS, Kind, SET};

#[derive(Clone, Debug)]
enum Step {
    Replicas(usize),
    Image(&'static str),
    Partition(Value),
    Pause(bool),
    Type(&'static str),
    DeletePod(usize),
    FailPod(usize),
    NamePod(usize),
    /// So many templates of claims.
    Claims(usize),
    ReuseClaims(bool),
    Kubelet(usize),
    Kubelets,
    Watch(Kind, usize),
    /// The watch shows some events, and what was queued is sent before the set has run.
    WatchAndSend(Kind, usize),
    List(Kind),
    Answer(Answer),
    /// A creation whose answer was lost is carried out.
    Arrive(usize),
    /// The process ends, and the next one begins; whether the writes that were under way are carried out.
    Crash(bool),
    Wait(u64),
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        8 => Just(Answer::Done),
        2 => Just(Answer::DoneAndLost),
        2 => Just(Answer::Lost),
        2 => Just(Answer::Late),
        1 => Just(Answer::NotDone),
        1 => Just(Answer::Refused),
    ]
}

/// What neither users nor broken pods have a part in.
fn course() -> impl Strategy<Value = Step> {
    let kind = || select(&KINDS[..]);
    prop_oneof![
        6 => (0..8_usize).prop_map(Step::Kubelet),
        3 => Just(Step::Kubelets),
        6 => (kind(), 1..4_usize).prop_map(|(kind, events)| Step::Watch(kind, events)),
        3 => (kind(), 1..4_usize).prop_map(|(kind, events)| Step::WatchAndSend(kind, events)),
        1 => kind().prop_map(Step::List),
        14 => answer().prop_map(Step::Answer),
        3 => (0..4_usize).prop_map(Step::Arrive),
        1 => any::<bool>().prop_map(Step::Crash),
        5 => (0..4_000_u64).prop_map(Step::Wait),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let partition = select(vec![
        json!(0),
        json!(1),
        json!(3),
        json!("50%"),
        json!("99%"),
    ]);
    let types = select(vec!["ReCreate", "InPlaceIfPossible", "InPlaceOnly"]);
    prop_oneof![
        2 => (0..6_usize).prop_map(Step::Replicas),
        2 => select(vec!["app:1", "app:2", "app:3", "bad:1"]).prop_map(Step::Image),
        1 => partition.prop_map(Step::Partition),
        1 => any::<bool>().prop_map(Step::Pause),
        1 => types.prop_map(Step::Type),
        1 => (0..8_usize).prop_map(Step::DeletePod),
        1 => (0..8_usize).prop_map(Step::FailPod),
        1 => (0..8_usize).prop_map(Step::NamePod),
        1 => (0..3_usize).prop_map(Step::Claims),
        1 => any::<bool>().prop_map(Step::ReuseClaims),
        30 => course(),
    ]
}

fn strategy(surges: Vec<usize>) -> impl Strategy<Value = Value> {
    let types = select(vec!["ReCreate", "InPlaceIfPossible"]);
    (types, 0..3_usize, select(surges)).prop_map(|(kind, unavailable, surge)| {
        let unavailable = if surge == 0 {
            unavailable.max(1)
        } else {
            unavailable
        };
        json!({"type": kind, "maxUnavailable": unavailable, "maxSurge": surge})
    })
}

/// So many templates of claims.
fn claims(count: usize) -> Value {
    let claim = |name: &&str| {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        json!({"metadata": {"name": name}, "spec": spec})
    };
    ["data", "logs"].iter().take(count).map(claim).collect()
}

fn play(cluster: &mut Cluster, step: &Step) {
    let pods = cluster.pods();
    let pod = |place: &usize| pods.get(place % pods.len().max(1));
    match step {
        Step::Replicas(count) => cluster.edit(&json!({"replicas": count})),
        Step::Image(image) => cluster.set_image(image),
        Step::Partition(partition) => {
            cluster.edit(&json!({"updateStrategy": {"partition": partition}}));
        }
        Step::Pause(on) => cluster.edit(&json!({"updateStrategy": {"paused": on}})),
        Step::Type(kind) => cluster
            .edit(&json!({"updateStrategy": {"type": kind, "maxSurge": 0, "maxUnavailable": 1}})),
        Step::DeletePod(place) => pod(place)
            .into_iter()
            .for_each(|pod| cluster.delete_pod(pod)),
        Step::FailPod(place) => {
            let failed = json!({"status": {"phase": "Failed"}});
            if let Some(pod) = pod(place) {
                cluster.patch(Kind::Pod, pod, &failed);
            }
        }
        Step::NamePod(place) => {
            let labels = json!({"metadata": {"labels": {"apps.kruise.io/specified-delete": "x"}}});
            if let Some(pod) = pod(place) {
                cluster.patch(Kind::Pod, pod, &labels);
            }
        }
        Step::Claims(count) => cluster.edit(&json!({"volumeClaimTemplates": claims(*count)})),
        Step::ReuseClaims(on) => {
            cluster.edit(&json!({"scaleStrategy": {"disablePVCReuse": !on}}));
        }
        Step::Kubelet(place) => pod(place)
            .into_iter()
            .for_each(|pod| cluster.run_kubelet(pod)),
        Step::Kubelets => cluster.run_kubelets(),
        Step::Watch(kind, events) => cluster.watch(*kind, *events),
        Step::WatchAndSend(kind, events) => {
            cluster.watch(*kind, *events);
            cluster.send();
        }
        Step::List(kind) => cluster.list(*kind),
        Step::Answer(answer) => cluster.answer(*answer),
        Step::Arrive(place) => cluster.arrive(*place),
        Step::Crash(carried_out) => cluster.crash(*carried_out),
        Step::Wait(millis) => cluster.wait(Duration::from_millis(*millis)),
    }
    cluster.turn();
}

/// Ends all faults, and asks for something that can be reached.
fn heal(cluster: &mut Cluster) {
    cluster.set_image("app:9");
    cluster.edit(&json!({"replicas": 4, "updateStrategy":
        {"paused": false, "partition": 0, "type": "InPlaceIfPossible", "maxUnavailable": 1, "maxSurge": 0}}));
    cluster.settle();
    // What was refused rests for five minutes, and so long is what was lost waited for.
    for _ in 0..3 {
        cluster.wait(Duration::from_mins(6));
        cluster.settle();
        cluster.settle();
    }
}

fn check_end(cluster: &mut Cluster) {
    let pods = cluster.active();
    assert_eq!(cluster.with_image("app:9"), pods, "{pods:?}");
    assert_eq!((pods.len(), cluster.count_ready()), (4, 4));
    for pod in &pods {
        assert_eq!(cluster.state_of(pod), "Normal");
        assert!(
            cluster.pod(pod)["metadata"]["labels"]["apps.kruise.io/specified-delete"].is_null()
        );
    }
    check_claims(cluster);
    let status = cluster.status();
    for field in [
        "replicas",
        "readyReplicas",
        "availableReplicas",
        "updatedReplicas",
        "updatedAvailableReplicas",
    ] {
        assert_eq!(status[field], 4, "{field}: {status}");
    }
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    assert!(cluster.reasons().is_empty(), "{status}");
    let writes = cluster.writes.clone();
    cluster.wait(Duration::from_mins(10));
    cluster.settle();
    assert_eq!(cluster.writes, writes, "written without need");
}

/// Each claim is that of a pod, or is left for the next one by a pod that others have ended.
fn check_claims(cluster: &Cluster) {
    let spec = &cluster.get(Kind::Set, SET).unwrap()["spec"];
    let is_kept = spec["scaleStrategy"]["disablePVCReuse"] != true;
    let pods = cluster.pods();
    for claim in cluster.names(Kind::Claim) {
        let there = cluster.get(Kind::Claim, &claim).unwrap();
        assert!(
            there["metadata"].get("deletionTimestamp").is_none(),
            "{claim} goes for ever"
        );
        let is_used = pods.iter().any(|pod| claim.ends_with(&**pod));
        assert!(is_kept || is_used, "{claim} is left");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_end_does_not_depend_on_the_way(
        strategy in strategy(vec![0, 0, 1, 2]),
        replicas in 0..6_usize,
        templates in select(vec![0, 0, 1, 2]),
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let mut cluster = Cluster::new();
        cluster.create_set(SET, json!({"replicas": replicas, "updateStrategy": strategy,
            "volumeClaimTemplates": claims(templates)}));
        cluster.turn();
        for step in &steps {
            play(&mut cluster, step);
        }
        heal(&mut cluster);
        check_end(&mut cluster);
    }

    /// However late and lossy everything is, a roll-out of a good template takes no more pods out of service than it may.
    #[test]
    fn a_roll_out_keeps_its_budget(
        strategy in strategy(vec![0, 0, 1, 2]),
        templates in select(vec![0, 0, 1, 2]),
        steps in prop::collection::vec(course(), 1..150),
    ) {
        let unavailable = usize::try_from(strategy["maxUnavailable"].as_u64().unwrap()).unwrap();
        let surge = usize::try_from(strategy["maxSurge"].as_u64().unwrap()).unwrap();
        let mut cluster = Cluster::with_set(json!({"replicas": 5, "updateStrategy": strategy,
            "volumeClaimTemplates": claims(templates)}));
        assert_eq!(cluster.count_ready(), 5);
        cluster.set_image("app:2");
        for step in &steps {
            play(&mut cluster, step);
            let (ready, there) = (cluster.count_ready(), cluster.active().len());
            prop_assert!(ready >= 5 - unavailable, "{} of 5 are ready", ready);
            prop_assert!(there <= 5 + surge, "{} pods", there);
        }
        // A watch that is silent for five minutes is not of this case.
        cluster.settle();
        for _ in 0..3 {
            cluster.wait(Duration::from_mins(6));
            cluster.settle();
            cluster.settle();
        }
        let status = cluster.status().clone();
        prop_assert_eq!(cluster.with_image("app:2").len(), 5, "{} {:?} {:?}", status, cluster.created, cluster.deleted);
        prop_assert_eq!(cluster.count_ready(), 5);
        // Nobody but the set has deleted pods, so each claim is that of a pod: unless a process has ended after it had deleted a pod,
        // and the pod was gone before the next one looked; or a surge was over before its pods came; or a pod was refused, and
        // another one has come in its place. They are for the next one then.
        let left = cluster.names(Kind::Claim).len() - 5 * templates;
        let may_leave = |step: &Step| matches!(step, Step::Crash(_) | Step::Answer(Answer::Refused));
        let may_leave = surge > 0 || steps.iter().any(may_leave);
        prop_assert!(left == 0 || may_leave, "{} claims are left", left);
    }
}
