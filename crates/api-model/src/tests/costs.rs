use super::*;

/// `cargo test -p leadsman-api-model costs -- --ignored --nocapture`
#[tokio::test]
#[ignore = "it measures, and asserts nothing"]
async fn a_request_costs_little() {
    const COUNT: u32 = 2000;
    let bed = Bed::raise().await;
    bed.make_map("a", json!({"x": "1"})).await;
    bed.make_pod("p").await;
    let map = format!("{MAPS}/a");
    let status = format!("{PODS}/p/status?fieldManager=one&force=true");
    let began = tokio::time::Instant::now();
    for _ in 0..COUNT {
        bed.get(&map).await;
    }
    let read = tokio::time::Instant::now();
    for number in 0..COUNT {
        bed.patch(&map, MERGE, &json!({"data": {"x": number.to_string()}}))
            .await;
    }
    let patched = tokio::time::Instant::now();
    for number in 0..COUNT {
        let condition = json!({"type": "t", "status": "True", "message": number.to_string()});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"conditions": [condition]}});
        bed.patch(&status, APPLY, &pod).await;
    }
    let applied = tokio::time::Instant::now();
    println!(
        "get {:?}, merge patch {:?}, apply to a pod {:?}",
        (read - began) / COUNT,
        (patched - read) / COUNT,
        (applied - patched) / COUNT
    );
}
