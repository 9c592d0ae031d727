use super::*;

#[tokio::test]
async fn preconditions_keep_another_object() {
    let bed = Bed::raise().await;
    let made = bed.make_map("a", json!({})).await;
    let path = format!("{MAPS}/a");
    for wrong in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let (code, refused) = bed.delete(&path, &json!({"preconditions": wrong})).await;
        assert_eq!((code, refused["reason"].as_str()), (409, Some("Conflict")));
    }
    let uid = &made["metadata"]["uid"];
    let (code, done) = bed
        .delete(&path, &json!({"preconditions": {"uid": uid}}))
        .await;
    assert_eq!((code, &done["status"]), (200, &json!("Success")));
    assert_eq!(bed.delete(&path, &json!({})).await.0, 404);
}

#[tokio::test]
async fn a_pod_goes_when_its_kubelet_says_so() {
    let bed = Bed::raise().await;
    bed.make_pod("a").await;
    let path = format!("{PODS}/a");
    let (_, going) = bed.delete(&path, &json!({})).await;
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(
        going["metadata"]["deletionTimestamp"],
        "1970-01-01T00:00:30Z"
    );
    let (_, again) = bed.delete(&path, &json!({})).await;
    assert_eq!(version(&again), version(&going));
    let (code, _) = bed.delete(&path, &json!({"gracePeriodSeconds": 0})).await;
    assert_eq!((code, bed.get(&path).await.0), (200, 404));
}

#[tokio::test]
async fn the_last_finalizer_takes_the_object_along() {
    let bed = Bed::raise().await;
    let held = json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}});
    let (_, made) = bed.post(MAPS, &held).await;
    let path = format!("{MAPS}/a");
    let (_, marked) = bed.delete(&path, &json!({})).await;
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    assert_eq!(bed.patch(&path, MERGE, &more).await.0, 422);
    let (code, last) = bed
        .patch(&path, MERGE, &json!({"metadata": {"finalizers": null}}))
        .await;
    assert_eq!((code, version(&last)), (200, version(&marked)));
    assert_eq!(bed.get(&path).await.0, 404);
    let from = version(&made);
    let events = bed
        .watch(&format!(
            "{MAPS}?watch=true&timeoutSeconds=1&resourceVersion={from}"
        ))
        .await;
    let kinds: Vec<_> = events
        .iter()
        .map(|(kind, object)| (kind.as_str(), version(object) - from))
        .collect();
    assert_eq!(kinds, [("MODIFIED", 1), ("DELETED", 2)]);
}

#[tokio::test]
async fn dependents_go_with_their_owner() {
    let bed = Bed::raise().await;
    let owner = bed.make_map("owner", json!({})).await;
    let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]});
    for name in ["a", "b"] {
        bed.post(
            MAPS,
            &json!({"metadata": {"name": name, "ownerReferences": [reference]}}),
        )
        .await;
    }
    assert_eq!(bed.server.collect_garbage(), 0);
    let path = format!("{MAPS}/owner");
    bed.delete(&path, &json!({"propagationPolicy": "Foreground"}))
        .await;
    assert_eq!(
        (bed.get(&path).await.0, bed.server.collect_garbage()),
        (200, 3)
    );
    assert_eq!(
        (bed.server.collect_garbage(), bed.get(&path).await.0),
        (0, 404)
    );
    bed.make_map("rest", json!({})).await;
    bed.delete("/api/v1/namespaces/n", &json!({})).await;
    assert_eq!(
        bed.post(MAPS, &json!({"metadata": {"name": "late"}}))
            .await
            .0,
        403
    );
    while bed.server.collect_garbage() > 0 {}
    assert_eq!(bed.get("/api/v1/namespaces/n").await.0, 404);
    assert_eq!(bed.server.objects("configmaps").len(), 0);
}
