use super::*;

#[tokio::test]
async fn a_creation_names_and_dates_an_object() {
    let bed = Bed::raise().await;
    let made = bed.make_map("a", json!({"x": "1"})).await;
    assert_eq!(
        made["metadata"]["creationTimestamp"],
        "1970-01-01T00:00:00Z"
    );
    assert!(made["metadata"]["uid"].is_string());
    let (code, again) = bed.post(MAPS, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(
        (code, again["reason"].as_str()),
        (409, Some("AlreadyExists"))
    );
    assert_eq!(again["message"], "configmaps \"a\" already exists");
    let (code, made) = bed
        .post(MAPS, &json!({"metadata": {"generateName": "a-"}}))
        .await;
    assert_eq!(
        (code, made["metadata"]["name"].as_str().unwrap().len()),
        (201, 7)
    );
    let (code, lost) = bed
        .post(
            "/api/v1/namespaces/none/configmaps",
            &json!({"metadata": {"name": "a"}}),
        )
        .await;
    assert_eq!(
        (code, lost["message"].as_str()),
        (404, Some("namespaces \"none\" not found"))
    );
}

#[tokio::test]
async fn a_stale_version_conflicts_and_an_equal_object_keeps_its_version() {
    let bed = Bed::raise().await;
    let made = bed.make_map("a", json!({"x": "1"})).await;
    let path = format!("{MAPS}/a?fieldManager=m");
    let (code, first) = bed.patch(&path, MERGE, &json!({"data": {"x": "2"}})).await;
    assert_eq!((code, version(&first)), (200, version(&made) + 1));
    let (code, same) = bed.patch(&path, MERGE, &json!({"data": {"x": "2"}})).await;
    assert_eq!((code, version(&same)), (200, version(&first)));
    let (code, stale) = bed.put(&path, &made).await;
    assert_eq!((code, stale["reason"].as_str()), (409, Some("Conflict")));
    let mut free = made.clone();
    free["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    assert_eq!(bed.put(&path, &free).await.0, 200);
    free["metadata"]["uid"] = json!("other");
    assert_eq!(bed.put(&path, &free).await.0, 409);
    assert_eq!(
        bed.put(
            &format!("{MAPS}/none"),
            &json!({"metadata": {"name": "none"}})
        )
        .await
        .0,
        404
    );
}

#[tokio::test]
async fn a_custom_resource_is_pruned_and_filled_in() {
    let bed = Bed::raise().await;
    let mut sent = thing(&json!({"items": [{"name": "one", "lost": 1}], "lost": 1}));
    sent["status"] = json!({"seen": 1});
    let (code, made) = bed.post(THINGS, &sent).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(
        made["spec"],
        json!({"items": [{"name": "one", "size": 3}], "mode": "fast"})
    );
    assert_eq!(
        (made.get("status"), &made["metadata"]["generation"]),
        (None, &json!(1))
    );
    let path = format!("{THINGS}/a");
    let (_, labelled) = bed
        .patch(&path, MERGE, &json!({"metadata": {"labels": {"l": "1"}}}))
        .await;
    assert_eq!(labelled["metadata"]["generation"], 1);
    let (_, changed) = bed
        .patch(
            &path,
            MERGE,
            &json!({"spec": {"mode": "slow"}, "status": {"seen": 5}}),
        )
        .await;
    assert_eq!(
        (&changed["metadata"]["generation"], changed.get("status")),
        (&json!(2), None)
    );
    let status = format!("{path}/status");
    let (_, seen) = bed
        .patch(
            &status,
            MERGE,
            &json!({"spec": {"mode": "x"}, "status": {"seen": 5, "lost": 1}}),
        )
        .await;
    assert_eq!(
        (&seen["spec"]["mode"], &seen["status"]),
        (&json!("slow"), &json!({"seen": 5}))
    );
    assert_eq!(seen["metadata"]["generation"], 2);
    let mut free = seen.clone();
    free["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    assert_eq!(bed.put(&path, &free).await.0, 422);
}

#[tokio::test]
async fn of_a_pods_spec_images_alone_may_change() {
    let bed = Bed::raise().await;
    let made = bed.make_pod("a").await;
    assert_eq!(made["status"]["phase"], "Pending");
    let path = format!("{PODS}/a");
    let image = json!({"spec": {"containers": [{"name": "main", "image": "b:1"}]}});
    let (code, changed) = bed.patch(&path, STRATEGIC, &image).await;
    assert_eq!((code, &changed["metadata"]["generation"]), (200, &json!(2)));
    let (code, refused) = bed
        .patch(&path, MERGE, &json!({"spec": {"hostNetwork": true}}))
        .await;
    assert_eq!(
        (code, &refused["details"]["causes"][0]["field"]),
        (422, &json!("spec"))
    );
    let marks = json!({"metadata": {"labels": {"l": "1"}}, "spec": {"hostNetwork": true}, "status": {"phase": "Running"}});
    let (code, marked) = bed.patch(&format!("{path}/status"), MERGE, &marks).await;
    assert_eq!((code, marked["spec"].get("hostNetwork")), (200, None));
    assert_eq!(
        (
            &marked["metadata"]["labels"]["l"],
            &marked["status"]["phase"]
        ),
        (&json!("1"), &json!("Running"))
    );
}

#[tokio::test]
async fn what_nobody_serves_or_understands_is_refused() {
    let bed = Bed::raise().await;
    bed.make_map("a", json!({})).await;
    let path = format!("{MAPS}/a");
    assert_eq!(
        bed.get("/apis/none.example.com/v1/things").await,
        (404, json!("404 page not found\n"))
    );
    assert_eq!(bed.get(&format!("{path}/status")).await.0, 404);
    assert_eq!(bed.patch(&path, "text/plain", &json!({})).await.0, 415);
    assert_eq!(
        bed.patch(&format!("{THINGS}/a"), STRATEGIC, &json!({}))
            .await
            .0,
        415
    );
    assert_eq!(
        bed.post("/api/v1/configmaps", &json!({"metadata": {"name": "a"}}))
            .await
            .0,
        405
    );
    let large = json!({"metadata": {"name": "b"}, "data": {"x": "x".repeat(2 << 20)}});
    let (code, refused) = bed.post(MAPS, &large).await;
    assert_eq!(
        (code, refused["message"].as_str()),
        (500, Some("etcdserver: request is too large"))
    );
}
