use super::*;

/// Who owns which fields, without times.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter();
    let mut owners: Vec<_> = entries
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default();
            (
                format!("{} {}", text("manager"), text("operation")),
                entry["fieldsV1"].clone(),
            )
        })
        .collect();
    owners.sort_by(|one, other| one.0.cmp(&other.0));
    owners
}

fn map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn by(manager: &str, force: bool) -> String {
    format!("{MAPS}/a?fieldManager={manager}&force={force}")
}

#[tokio::test]
async fn an_apply_removes_what_it_leaves_out_and_nobody_else_owns() {
    let bed = Bed::raise().await;
    let (code, _) = bed
        .patch(&by("one", false), APPLY, &map(&json!({"x": "1", "y": "2"})))
        .await;
    assert_eq!(code, 201);
    bed.patch(&by("two", false), APPLY, &map(&json!({"y": "2"})))
        .await;
    let (code, left) = bed.patch(&by("one", false), APPLY, &map(&json!({}))).await;
    assert_eq!((code, &left["data"]), (200, &json!({"y": "2"})));
    assert_eq!(
        owners(&left)[1],
        ("two Apply".to_owned(), json!({"f:data": {"f:y": {}}}))
    );
}

#[tokio::test]
async fn another_value_of_an_owned_field_is_a_conflict_unless_forced() {
    let bed = Bed::raise().await;
    bed.patch(&by("one", false), APPLY, &map(&json!({"x": "1"})))
        .await;
    let other = map(&json!({"x": "2"}));
    let (code, refused) = bed.patch(&by("two", false), APPLY, &other).await;
    assert_eq!((code, refused["reason"].as_str()), (409, Some("Conflict")));
    assert_eq!(
        refused["message"],
        "Apply failed with 1 conflict: conflict with \"one\": .data.x"
    );
    assert_eq!(
        refused["details"]["causes"][0]["reason"],
        "FieldManagerConflict"
    );
    let (code, forced) = bed.patch(&by("two", true), APPLY, &other).await;
    assert_eq!((code, owners(&forced).len()), (200, 1));
    let (_, same) = bed.patch(&by("two", true), APPLY, &other).await;
    assert_eq!(version(&same), version(&forced));
}

#[tokio::test]
async fn an_update_owns_what_it_changes() {
    let bed = Bed::raise().await;
    bed.make_map("a", json!({"x": "1"})).await;
    let (_, changed) = bed
        .patch(
            &by("m", false).replace("&force=false", ""),
            MERGE,
            &json!({"data": {"x": "2"}, "metadata": {"labels": {"l": "1"}}}),
        )
        .await;
    let fields = json!({"f:data": {"f:x": {}}, "f:metadata": {"f:labels": {".": {}, "f:l": {}}}});
    assert_eq!(
        owners(&changed).last(),
        Some(&("m Update".to_owned(), fields))
    );
}

#[tokio::test]
async fn conditions_of_a_pod_are_merged_by_type() {
    let bed = Bed::raise().await;
    bed.make_pod("a").await;
    let path = format!("{PODS}/a/status?fieldManager=m");
    let set = |conditions: Value| json!({"status": {"conditions": conditions}});
    let two = set(json!([{"type": "t", "status": "True"}, {"type": "u", "status": "True"}]));
    bed.patch(&path, STRATEGIC, &two).await;
    let one = set(json!([{"type": "t", "$patch": "delete"}, {"type": "u", "message": "m"}]));
    let (_, pod) = bed.patch(&path, STRATEGIC, &one).await;
    let conditions = &pod["status"]["conditions"];
    assert_eq!(conditions.as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&conditions[0]["status"], &conditions[0]["message"]),
        (&json!("True"), &json!("m"))
    );
    let applied = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"l": "1"}},
        "status": {"conditions": [{"type": "t", "status": "False"}]},
    });
    let path = format!("{PODS}/a/status?fieldManager=one&force=true");
    let (code, pod) = bed.patch(&path, APPLY, &applied).await;
    assert_eq!(
        (code, pod["status"]["conditions"].as_array().map(Vec::len)),
        (200, Some(2))
    );
    let fields = json!({
        "f:metadata": {"f:labels": {"f:l": {}}},
        "f:status": {"f:conditions": {"k:{\"type\":\"t\"}": {".": {}, "f:status": {}, "f:type": {}}}},
    });
    assert_eq!(owners(&pod).last(), Some(&("one Apply".to_owned(), fields)));
    let empty = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}});
    let (_, pod) = bed.patch(&path, APPLY, &empty).await;
    assert_eq!(
        pod["status"]["conditions"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(pod["metadata"].get("labels"), None);
}

#[tokio::test]
async fn an_apply_of_a_field_that_the_schema_lacks_fails() {
    let bed = Bed::raise().await;
    let path = format!("{THINGS}/a?fieldManager=one");
    let (code, refused) = bed.patch(&path, APPLY, &thing(&json!({"lost": 1}))).await;
    assert_eq!(code, 500);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains(".spec.lost: field not declared in schema")
    );
}

#[tokio::test]
async fn a_json_patch_carries_out_every_operation_or_none() {
    let bed = Bed::raise().await;
    bed.make_map("a", json!({"x": "1"})).await;
    let path = format!("{MAPS}/a");
    let form = "application/json-patch+json";
    let good = json!([
        {"op": "test", "path": "/data/x", "value": "1"}, {"op": "move", "from": "/data/x", "path": "/data/y"},
        {"op": "copy", "from": "/data/y", "path": "/data/z"}, {"op": "replace", "path": "/data/z", "value": "2"},
    ]);
    let (code, changed) = bed.patch(&path, form, &good).await;
    assert_eq!(
        (code, &changed["data"]),
        (200, &json!({"y": "1", "z": "2"}))
    );
    let bad = json!([{"op": "remove", "path": "/data/y"}, {"op": "test", "path": "/data/z", "value": "9"}]);
    assert_eq!(bed.patch(&path, form, &bad).await.0, 422);
    assert_eq!(bed.get(&path).await.1["data"], json!({"y": "1", "z": "2"}));
}
