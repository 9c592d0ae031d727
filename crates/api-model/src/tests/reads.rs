use super::*;

#[tokio::test]
async fn pages_show_one_version_until_it_is_compacted() {
    let bed = Bed::raise().await;
    for name in ["a", "b", "c"] {
        bed.make_map(name, json!({})).await;
    }
    let (_, first) = bed.get(&format!("{MAPS}?limit=1")).await;
    assert_eq!(
        (
            &first["metadata"]["remainingItemCount"],
            first["items"].as_array().map(Vec::len)
        ),
        (&json!(2), Some(1))
    );
    bed.delete(&format!("{MAPS}/b"), &json!({})).await;
    let token = first["metadata"]["continue"]
        .as_str()
        .unwrap()
        .replace('|', "%7C");
    let (_, second) = bed.get(&format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!(second["items"][0]["metadata"]["name"], "b");
    assert_eq!(version(&second), version(&first));
    bed.server.compact(u64::MAX);
    let (code, expired) = bed.get(&format!("{MAPS}?limit=1&continue={token}")).await;
    assert_eq!((code, expired["reason"].as_str()), (410, Some("Expired")));
    let (code, later) = bed.get(&format!("{MAPS}?resourceVersion=999")).await;
    assert_eq!(
        (code, &later["details"]["causes"][0]["reason"]),
        (504, &json!("ResourceVersionTooLarge"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_shows_what_enters_and_leaves_its_selector() {
    let bed = Bed::raise().await;
    let made = bed.make_map("a", json!({})).await;
    let path = format!("{MAPS}/a");
    for role in ["main", "main2", "main", "other"] {
        bed.patch(
            &path,
            MERGE,
            &json!({"metadata": {"labels": {"role": role}}}),
        )
        .await;
    }
    bed.patch(
        &path,
        MERGE,
        &json!({"metadata": {"labels": {"role": "main"}}}),
    )
    .await;
    bed.delete(&path, &json!({})).await;
    let from = version(&made);
    let query =
        "watch=true&timeoutSeconds=5&allowWatchBookmarks=true&labelSelector=role+in+(main,main2)";
    let events = bed
        .watch(&format!("{MAPS}?{query}&resourceVersion={from}"))
        .await;
    let kinds: Vec<_> = events
        .iter()
        .map(|(kind, object)| (kind.as_str(), version(object) - from))
        .collect();
    let expected = [
        ("ADDED", 1),
        ("MODIFIED", 2),
        ("MODIFIED", 3),
        ("DELETED", 4),
        ("ADDED", 5),
        ("DELETED", 6),
        ("BOOKMARK", 6),
    ];
    assert_eq!(kinds, expected);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_compacted_version_is_told_so() {
    let bed = Bed::raise().await;
    let made = bed.make_map("a", json!({})).await;
    bed.make_map("b", json!({})).await;
    bed.server.compact(u64::MAX);
    let from = version(&made);
    let events = bed
        .watch(&format!(
            "{MAPS}?watch=true&timeoutSeconds=1&resourceVersion={from}"
        ))
        .await;
    assert_eq!(
        (events[0].0.as_str(), &events[0].1["code"]),
        ("ERROR", &json!(410))
    );
}

#[tokio::test]
async fn metadata_alone_is_sent_to_whom_it_is_enough() {
    let bed = Bed::raise().await;
    bed.make_map("a", json!({"x": "1"})).await;
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json";
    let request = Request::get(format!("{MAPS}/a")).header("accept", accept);
    let text = bed
        .client
        .request_text(request.body(Vec::new()).unwrap())
        .await
        .unwrap();
    let object: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&object["kind"], object.get("data")),
        (&json!("PartialObjectMetadata"), None)
    );
}

#[tokio::test]
async fn a_restore_goes_back_and_hands_versions_out_anew() {
    let bed = Bed::raise().await;
    let kept = bed.make_map("kept", json!({})).await;
    let lost = bed.make_map("lost", json!({})).await;
    bed.delete(&format!("{MAPS}/kept"), &json!({})).await;
    bed.server.restore(version(&kept));
    assert_eq!(bed.server.objects("configmaps").len(), 1);
    let (_, later) = bed
        .post(MAPS, &json!({"metadata": {"name": "later"}}))
        .await;
    assert_eq!(version(&later), version(&lost));
    assert_eq!(
        bed.server
            .changes(0)
            .iter()
            .filter(|change| change.name == "lost")
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_before_a_restore_hears_of_nothing() {
    let bed = Bed::raise().await;
    let kept = bed.make_map("kept", json!({})).await;
    bed.make_map("lost", json!({})).await;
    let lost = bed.make_map("lost-too", json!({})).await;
    bed.server.restore(version(&kept));
    bed.make_map("later", json!({})).await;
    let path = |from: u64| {
        format!(
            "{MAPS}?watch=true&allowWatchBookmarks=true&timeoutSeconds=70&resourceVersion={from}"
        )
    };
    assert_eq!(bed.watch(&path(version(&lost))).await.len(), 0);
    // The object, and bookmarks after a minute and shortly before the end.
    assert_eq!(bed.watch(&path(version(&kept))).await.len(), 3);
}
