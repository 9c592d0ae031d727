//! Pods that are not created without their sidecars: a standing rule for all pods, and a set that is invalid.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kube::api::{Patch, PatchParams, PostParams};
use leadsman_testkit::leadsman::NAMESPACE;
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};

use super::{Injecting, create, make_namespace, names, set};
use crate::Installation;

/// How many sets are made one after the other: more than the configuration follows at once.
const SETS: u64 = 12;

fn selects(app: &str) -> Value {
    json!({"spec": {"selector": {"matchLabels": {"app": app}}}})
}

fn labelled(app: &str) -> Value {
    json!({"metadata": {"name": app, "labels": {"app": app}}})
}

/// Without the rule a pod has to wait until the configuration names its set.
// SDF-61
pub(crate) async fn with_a_standing_rule_a_set_is_injected_once_the_manager_has_seen_it(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise_with(&["--sidecarset-standing-rule=fail"]).await?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    bed.set("first", selects("first")).await?;
    for number in 0..SETS {
        let name = format!("new-{number}");
        let set = set(&name, selects(&name))?;
        bed.sets().create(&PostParams::default(), &set).await?;
        wait_for_answer("the manager counts the set", || async {
            let known = bed.sum("leadsman_sidecarsets{").await?;
            Ok((known == number + 2).then_some(()))
        })
        .await?;
        // One that is refused, since the machine stood still, is tried again; none is created without it.
        let found = wait_for_answer("a pod is created", || async {
            Ok(create(&client, "shop", labelled(&name), true).await.ok())
        })
        .await?;
        ensure!(names(&found) == [&*name, "main"], "{:?}", names(&found));
    }

    bed.installation.stop_manager().await?;
    let refused = create(&client, "shop", labelled("other"), true).await;
    let refused = refused.err().context("not refused")?.to_string();
    ensure!(refused.contains("sidecarset-fail.leadsman.io"), "{refused}");
    for namespace in ["kube-system", NAMESPACE] {
        let found = create(&client, namespace, labelled("other"), true).await?;
        ensure!(names(&found) == ["main"], "{:?}", names(&found));
    }
    bed.start().await?;
    wait_for_answer("pods are created again", || async {
        Ok(create(&client, "shop", labelled("other"), true).await.ok())
    })
    .await?;
    bed.installation.end().await;
    Ok(())
}

// SDF-59
pub(crate) async fn an_invalid_set_that_asks_to_fail_refuses_its_pods(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    let mut strict = selects("strict");
    strict["metadata"] = json!({"annotations": {"sidecarset.leadsman.io/failure-policy": "Fail"}});
    bed.set("strict", strict).await?;
    let edit = async |over: Value| {
        let mut container = json!({"name": "strict", "image": "image:1"});
        leadsman_tests::scene::merge(&mut container, over);
        let patch = Patch::Merge(json!({"spec": {"containers": [container]}}));
        let params = PatchParams::default();
        bed.sets().patch("strict", &params, &patch).await?;
        Ok::<_, anyhow::Error>(())
    };
    // Nobody judges it.
    bed.installation.stop_manager().await?;
    edit(json!({"resources": {"limits": {"cpu": "much"}}})).await?;
    bed.start().await?;
    let refusal = wait_for_answer("the pod is refused for what is wrong", || async {
        let refused = create(&client, "shop", labelled("strict"), true).await;
        let text = refused.err().map(|error| error.to_string());
        Ok(text.filter(|text| text.contains("denied the request")))
    })
    .await?;
    let is_told = ["SidecarSet \"strict\"", "spec.containers[0].resources"]
        .iter()
        .all(|part| refusal.contains(part));
    ensure!(is_told, "{refusal}");
    for (namespace, app) in [("shop", "other"), ("kube-system", "strict")] {
        let found = create(&client, namespace, labelled(app), true).await?;
        ensure!(names(&found) == ["main"], "{:?}", names(&found));
    }
    edit(json!({})).await?;
    wait_for_answer("the pod is injected", || async {
        let found = create(&client, "shop", labelled("strict"), true).await.ok();
        Ok(found.filter(|found| names(found) == ["strict", "main"]))
    })
    .await?;
    bed.installation.end().await;
    Ok(())
}
