//! Why a pod is not injected or not upgraded.

use super::*;

/// Fails unless the first cause is this, with these words.
fn expect(cluster: &Cluster, reason: SetReason, words: &str) {
    let explained = cluster.explain();
    let first = explained.causes.first();
    let first = first.unwrap_or_else(|| panic!("no cause: {explained:#?}"));
    assert_eq!(first.reason, reason, "{explained:#?}");
    assert!(first.message.contains(words), "{}", first.message);
}

fn image_2() -> Value {
    serde_json::from_str(IMAGE_2).unwrap()
}

#[test]
fn a_pod_that_is_as_its_set_says_has_no_cause() {
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let explained = cluster.explain();
    assert!(
        explained.injected && explained.causes.is_empty(),
        "{explained:#?}"
    );
    assert!(explained.revision.unwrap().starts_with("log-"));
}

// SCS-13, SCS-19, SDF-10, SDF-11
#[test]
fn what_a_pod_lacks_of_what_its_set_says_is_told() {
    let policy =
        json!({"targetContainersMode": "sum", "resourcesExpr": {"limits": {"cpu": "cpu/2"}}});
    let transfer = json!([{"sourceContainerName": "main", "envName": "ROLE"}]);
    let container =
        json!({"name": "log", "image": "i:1", "transferEnv": transfer, "resourcesPolicy": policy});
    let cluster = Cluster::default()
        .set("log", &json!({"containers": [container]}))
        .pod("a", &json!({}));
    let explained = cluster.explain();
    assert!(explained.causes.is_empty(), "{explained:#?}");
    assert_eq!(
        explained.remarks,
        [
            "gives container \"log\" no limit of cpu: container \"main\" of the pod has none",
            "has no variable \"ROLE\" from container \"main\": there is none",
        ]
    );
    // What a pod that was not injected would get is not told of it.
    let cluster = Cluster::default().set("log", &json!({})).pod(
        "a",
        &json!({"/metadata/labels": {"app": "other"}, "/metadata/annotations": {}}),
    );
    assert_eq!(cluster.explain().remarks, [""; 0]);
}

// SCS-5, SDF-2, SDF-4, SDF-6, SDF-19
#[rstest]
#[case(json!({}), json!({"/metadata/labels": {"app": "wbe"}}), SetReason::Labels, "does not match the pod's labels")]
#[case(json!({"namespace": "other"}), json!({}), SetReason::Namespace, "pods of namespace other")]
#[case(json!({"namespaceSelector": {"matchLabels": {"a": "b"}}}), json!({}), SetReason::NamespaceUnknown, "are not known")]
#[case(json!({"injectionStrategy": {"paused": true}}), json!({}), SetReason::InjectionPaused, "paused")]
#[case(json!({"containers": [{"name": "log", "image": ""}]}), json!({}), SetReason::InvalidSpec, "spec.containers[0].image")]
#[case(json!({}), json!({"/metadata/creationTimestamp": "2025-01-01T00:00:00Z"}), SetReason::CreatedBefore, "older than the set")]
#[case(json!({}), json!({"/metadata/creationTimestamp": TIMES[0]}), SetReason::NotInForce, "before every replica of the webhook knew the set")]
#[case(json!({}), json!({"/metadata/creationTimestamp": "2026-01-01T00:00:30Z"}), SetReason::NotInForce, "before every replica of the webhook knew the set")]
#[case(json!({}), json!({}), SetReason::Missed, "no webhook answered; create the pod again")]
#[case(json!({"containers": [{"name": "main", "image": "i"}]}), json!({}), SetReason::OwnContainer, "rename one of the two")]
#[case(json!({"containers": [{"name": "log", "image": "i", "ports": [{"containerPort": 1, "hostPort": 80}]}]}),
    json!({"/spec/containers/0/ports": [{"containerPort": 2, "hostPort": 80}]}), SetReason::HostPort, "change the port in one of them")]
#[case(json!({"containers": [{"name": "log", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/v"}]}], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}),
    json!({"/spec/volumes": [{"name": "v", "emptyDir": {}}]}), SetReason::OwnVolume, "rename one of the two")]
#[case(json!({"containers": [{"name": "log", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 60}}}}]}), json!({}), SetReason::WouldBeInvalid, "terminationGracePeriodSeconds 30; shorten the sleep, or raise terminationGracePeriodSeconds, or select other pods")]
#[case(json!({}), json!({"/metadata/annotations": {"kubernetes.io/config.mirror": "x"}}), SetReason::MirrorPod, "static")]
fn why_a_pod_was_not_injected_is_told(
    #[case] spec: Value,
    #[case] change: Value,
    #[case] reason: SetReason,
    #[case] words: &str,
) {
    let mut cluster = Cluster::default().pod("a", &change).set("log", &spec);
    expect(&cluster, reason, words);
    if reason == SetReason::Missed {
        cluster.sets[0]["status"] = json!({});
        expect(&cluster, SetReason::NotInForce, "not in force yet");
    }
}

// SDF-19
#[test]
fn the_younger_of_two_sets_says_which_one_is_older() {
    let mut cluster = Cluster::default()
        .set(
            "younger",
            &json!({"containers": [{"name": "same", "image": "i"}]}),
        )
        .set(
            "older",
            &json!({"containers": [{"name": "same", "image": "i"}]}),
        );
    cluster.sets[0]["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:01Z");
    let cluster = cluster.pod("a", &json!({}));
    expect(
        &cluster,
        SetReason::Conflict,
        "SidecarSet \"older\", which is older",
    );
}

// SCS-47, SCS-49, SCS-51, SCS-52, SDF-23, SDF-41
#[rstest]
#[case(json!({"updateStrategy": {"type": "NotUpdate"}}), SetReason::NotUpdate, "updateStrategy.type NotUpdate")]
#[case(json!({"updateStrategy": {"paused": true}}), SetReason::Paused, "the roll-out is paused")]
#[case(json!({"updateStrategy": {"selector": {"matchLabels": {"canary": "yes"}}}}), SetReason::UpdateSelector, "selects other pods")]
#[case(json!({"updateStrategy": {"partition": 1}}), SetReason::Partition, "partition keeps it")]
#[case(json!({}), SetReason::Due, "upgraded next")]
#[case(json!({"containers": [{"name": "log", "image": "i:1", "env": [{"name": "A"}]}]}), SetReason::NotUpgradable, "containers[log].env[A]; create the pod again")]
#[case(json!({"containers": [{"name": "log", "image": "i:1"}, {"name": "new", "image": "n"}]}), SetReason::NotUpgradable, "containers[new]")]
#[case(json!({"containers": [{"name": "log", "image": "i:1"}], "imagePullSecrets": [{"name": "s"}]}), SetReason::OutsideOfHash, "imagePullSecrets[s], which no upgrade changes")]
#[case(json!({"selector": {"matchLabels": {"app": "other"}}}), SetReason::NoLongerSelected, "neither counted nor upgraded")]
fn why_a_pod_is_not_upgraded_is_told(
    #[case] edit: Value,
    #[case] reason: SetReason,
    #[case] words: &str,
) {
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let mut spec = image_2();
    for (field, value) in edit.as_object().unwrap() {
        spec[field] = value.clone();
    }
    expect(&cluster.edit(&spec), reason, words);
}

// SCS-50, SCS-55
#[test]
fn who_waits_for_others_is_told_for_whom_and_why() {
    let pull = json!({"/status/containerStatuses/0/state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
        "/status/containerStatuses/0/ready": false, "/status/conditions/0/status": "False"});
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let mut cluster = cluster.edit(&image_2()).pod("broken", &pull);
    // As an upgrade leaves it: the new image is written, and the former container is recorded.
    let state = r#"{"log":{"revision":"h","updateTimestamp":null,"lastContainerStatuses":{"log":{"imageID":"x@sha256:1","containerID":"containerd://broken"}}}}"#;
    cluster.pods[1]["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] =
        json!(state);
    expect(
        &cluster,
        SetReason::MaxUnavailable,
        "shop/broken (log: ImagePullBackOff: no such image)",
    );
    cluster.pods.swap(0, 1);
    expect(
        &cluster,
        SetReason::InProgress,
        "log: ImagePullBackOff: no such image; correct the image",
    );
}

/// A pod as its upgrade leaves it, recorded as that of one that was or was not ready; `former` is the container before.
fn record_upgrade(pod: &mut Value, former: &str, was_unready: bool) {
    let former =
        json!({"log": {"imageID": "x@sha256:1", "containerID": format!("containerd://{former}")}});
    let mut state =
        json!({"revision": "h", "updateTimestamp": null, "lastContainerStatuses": former});
    if was_unready {
        state["wasReady"] = json!(false);
    }
    let state = json!({"log": state}).to_string();
    pod["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] = json!(state);
}

// SCS-50
#[test]
fn a_pod_waits_for_those_that_hold_a_place_of_its_own_kind() {
    let unready = json!({"/status/conditions/0/status": "False"});
    let unselected = json!({"/status/conditions/0/status": "False", "/metadata/labels": {"app": "web", "wave": "2"}});
    let mut edit = image_2();
    edit["updateStrategy"] =
        json!({"selector": {"matchExpressions": [{"key": "wave", "operator": "DoesNotExist"}]}});
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("ready", &json!({}))
        .pod("unready", &unready)
        .pod("down", &unselected);
    let mut cluster = cluster.edit(&edit).pod("pending", &unready);
    // Upgraded to the former image, and not ready since; nothing else is due for it.
    record_upgrade(&mut cluster.pods[2], "gone", false);
    // Its application was not ready before, and its container is not restarted yet.
    record_upgrade(&mut cluster.pods[3], "pending", true);
    expect(
        &cluster,
        SetReason::MaxUnavailable,
        "maxUnavailable allows: shop/down; it is upgraded when they are available",
    );
    cluster.pods.swap(0, 1);
    expect(
        &cluster,
        SetReason::MaxUnavailable,
        "without having shown that it is good: shop/pending; it is upgraded when one of them has",
    );
}

// SCS-50
#[test]
fn a_pod_that_is_upgraded_next_holds_its_place_already() {
    let cluster = Cluster::default().set("log", &json!({}));
    let cluster = cluster.pod("b", &json!({})).pod("a", &json!({}));
    expect(
        &cluster.edit(&image_2()),
        SetReason::MaxUnavailable,
        "maxUnavailable allows: shop/a (is upgraded next); it is upgraded when they are available",
    );
}

// SCS-50
#[test]
fn of_many_that_hold_places_a_few_are_named() {
    for (places, words) in [
        (3, "shop/c (is upgraded next); it is upgraded when"),
        (
            5,
            "shop/c (is upgraded next) and 2 more; it is upgraded when",
        ),
    ] {
        let mut cluster = Cluster::default().set("log", &json!({}));
        for pod in ["f", "a", "b", "c", "d", "e"] {
            cluster = cluster.pod(pod, &json!({}));
        }
        let mut edit = image_2();
        edit["updateStrategy"] = json!({"maxUnavailable": places});
        expect(&cluster.edit(&edit), SetReason::MaxUnavailable, words);
    }
}

// SCS-48, SCS-49, SCS-50
#[test]
fn a_pod_of_a_set_that_spreads_its_pods_waits_for_those_of_its_order() {
    let group = json!({"/metadata/labels": {"app": "web", "group": "x"}});
    let cluster = Cluster::default().set("log", &json!({}));
    let cluster = cluster.pod("b", &group).pod("a", &group);
    let cluster = cluster.pod("c", &json!({})).pod("d", &json!({}));
    let cluster = cluster.edit(&image_2());
    let edited = |cluster: Cluster, partition: u32| {
        let scatter = json!([{"key": "group", "value": "x"}]);
        let strategy =
            json!({"maxUnavailable": 3, "scatterStrategy": scatter, "partition": partition});
        cluster.edit(&json!({"updateStrategy": strategy}))
    };
    // By the names alone, `b` would be before `c` and `d`.
    let cluster = edited(cluster, 0);
    let words = "shop/a (is upgraded next), shop/c (is upgraded next), shop/d (is upgraded next); it is upgraded";
    expect(&cluster, SetReason::MaxUnavailable, words);
    expect(
        &edited(cluster, 1),
        SetReason::Partition,
        "partition keeps it",
    );
}

// SDF-58
#[test]
fn until_when_a_pod_has_to_be_ready_is_told() {
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let mut cluster = cluster.edit(&image_2()).pod("new", &json!({}));
    let state = r#"{"log":{"revision":"h","updateTimestamp":null,"lastContainerStatuses":{"log":{"imageID":"x@sha256:0","containerID":"containerd://former"}}}}"#;
    cluster.pods[1]["metadata"]["annotations"]["kruise.io/sidecarset-inplace-update-state"] =
        json!(state);
    let annotations = json!({MIN_READY_SECONDS_ANNOTATION: "86400"});
    cluster.sets[0]["metadata"]["annotations"] = annotations;
    expect(
        &cluster,
        SetReason::MaxUnavailable,
        "shop/new (has to be ready until 2026-11-23T01:58:33Z, as sidecarset.leadsman.io/min-ready-seconds of the set says)",
    );
}

// SCS-79, SDF-48, SDF-49
#[test]
fn a_set_that_is_gone_or_was_made_again_is_told() {
    let cluster = Cluster::default()
        .set("log", &json!({}))
        .pod("a", &json!({}));
    let mut again = Cluster {
        pods: cluster.pods.clone(),
        ..Cluster::default()
    };
    again = again.set("log", &image_2());
    again.sets[0]["metadata"]["creationTimestamp"] = json!("2026-11-23T00:00:00Z");
    expect(
        &again,
        SetReason::FormerSet,
        "sidecarset.leadsman.io/adopt-pods",
    );
    let gone = Cluster {
        pods: cluster.pods,
        ..Cluster::default()
    };
    let now = "2026-11-22T01:58:33Z".parse().unwrap();
    let pods = [PodObject::read(gone.pods[0].clone()).unwrap()];
    let observed = gone.objects().observe(vec![pods[0].wire.clone()], now);
    let inspection = observed.inspect();
    let explained = explain(
        &pods[0],
        &KnownSets::default(),
        &inspection,
        Some(&pods),
        now,
    );
    assert_eq!(explained[0].causes[0].reason, SetReason::SetDeleted);
}

// SDF-51
#[rstest]
#[case("leadsman-system")]
#[case("kruise-system")]
fn a_pod_of_the_pinned_revision_is_as_it_is_meant(#[case] namespace: &str) {
    let mut cluster = Cluster::default().set("log", &json!({}));
    cluster.config.namespace = namespace.to_owned();
    let (sets, _) = cluster.objects().parse();
    let former = &sets.valid[0];
    let meta = serde_json::from_value(json!({"name": "log"})).unwrap();
    let mut revisions = Vec::new();
    let of = |known: &KnownSet, number: i64| {
        let name = known.history.newest.to_string();
        let mut revision = create(&known.set, &meta, namespace, (&name, "h", number));
        revision["metadata"]["creationTimestamp"] = json!(TIMES[1]);
        revision["metadata"]["resourceVersion"] = json!("1");
        revision
    };
    revisions.push(of(former, 1));
    let pin = json!({"revision": {"revisionName": former.history.newest.to_string()}});
    let mut cluster = cluster
        .edit(&image_2())
        .edit(&json!({"injectionStrategy": pin}));
    let (sets, _) = cluster.objects().parse();
    revisions.push(of(&sets.valid[0], 2));
    cluster.revisions = revisions;
    let cluster = cluster.pod("a", &json!({}));
    expect(&cluster, SetReason::Pinned, "new pods are pinned to");
    assert!(cluster.explain().differs.is_empty());
}

#[test]
fn a_pod_that_one_set_injected_is_explained_for_both() {
    let cluster = Cluster::default().set("log", &json!({}));
    let cluster = cluster.pod("a", &json!({})).set("mesh", &json!({}));
    let now = "2026-11-22T01:58:33Z".parse().unwrap();
    let objects = cluster.objects();
    let (sets, _) = objects.parse();
    let pods = [PodObject::read(cluster.pods[0].clone()).unwrap()];
    let observed = objects.observe(vec![pods[0].wire.clone()], now);
    let explained = explain(&pods[0], &sets, &observed.inspect(), Some(&pods), now);
    let told = explained.iter().map(|one| (&*one.set, one.injected));
    assert_eq!(told.collect::<Vec<_>>(), [("log", true), ("mesh", false)]);
}

#[test]
fn the_page_of_kubectl_explains_every_cause() {
    let page = include_str!("../../../../../../docs/kubectl.md");
    let not_injected = words_of_tables(page, "| reason | seen when the pod has no sidecars");
    let injected = words_of_tables(page, "| reason | seen when it was injected");
    let explained: BTreeSet<_> = not_injected.into_iter().chain(injected).collect();
    let all = SetReason::ALL.iter().map(ToString::to_string);
    assert_eq!(explained, all.collect());
}

#[test]
fn pods_are_grouped_by_what_each_set_does_to_them() {
    let explained = |set: &str, reasons: &[SetReason]| SetExplanation {
        set: set.to_owned(),
        injected: reasons != [SetReason::Labels] && reasons != [SetReason::CreatedBefore],
        revision: None,
        causes: reasons
            .iter()
            .map(|reason| SetCause {
                reason: *reason,
                message: reason.to_string(),
                terms: Vec::new(),
            })
            .collect(),
        differs: Vec::new(),
        remarks: Vec::new(),
        reported: None,
    };
    let pods = [
        (
            "a",
            vec![
                explained("log", &[]),
                explained("other", &[SetReason::Labels]),
            ],
        ),
        ("b", vec![explained("log", &[SetReason::CreatedBefore])]),
        (
            "c",
            vec![
                explained("log", &[SetReason::Partition]),
                explained("mesh", &[]),
            ],
        ),
        ("d", vec![explained("log", &[SetReason::Partition])]),
    ];
    let pods = pods.map(|(name, sets)| {
        let name = crate::cluster::ObjectName {
            namespace: "ns".to_owned(),
            name: name.to_owned(),
        };
        (name, sets)
    });
    let grouped = group_by_set(pods.iter().map(|(name, sets)| (name, sets.as_slice())));
    let told = grouped.iter().map(|set| {
        let groups = set.groups.iter().map(|group| {
            let reasons: Vec<_> = group.causes.iter().map(|it| it.reason.as_str()).collect();
            format!("{}: {}", reasons.concat(), group.pods.join(" "))
        });
        (set.set.as_str(), groups.collect::<Vec<_>>())
    });
    let of_log = ["Partition: ns/c ns/d", "CreatedBefore: ns/b", ": ns/a"];
    let expected = [
        ("log", of_log.map(str::to_owned).to_vec()),
        ("mesh", vec![": ns/c".to_owned()]),
    ];
    assert_eq!(
        told.collect::<Vec<_>>(),
        expected,
        "no pod is concerned by `other`"
    );
}
