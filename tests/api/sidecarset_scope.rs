//! For how many pods the API server calls the webhook of `SidecarSet`, and what that costs it.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::Api;
use kube::api::PostParams;
use leadsman_admission::CONFIGURATION;
use leadsman_api::SidecarSet;
use leadsman_core::sidecarset::scope::SetScope;
use leadsman_tests::{sum_of_counters, wait_for_answer};
use serde_json::json;

use crate::Installation;
use crate::sidecarset_webhook::{Injecting, create, make_namespace, names, set};

/// Sets with selectors so long that eight calls, which are as many as there may be, have each a condition almost as long as
/// may be.
fn long_sets() -> Result<Vec<SidecarSet>> {
    const VALUES: usize = 60;
    // Each value is written with two quotes, a comma and a blank.
    let of_one_call = SetScope::EXPRESSION_BYTES / (VALUES * 67) - 1;
    let mut sets = Vec::new();
    for group in 0..SetScope::CALLS {
        for number in 0..of_one_call {
            let name = format!("long-{group}-{number}");
            let values = (0..VALUES).map(|value| format!("{name:->60}-{value:02}"));
            let values: Vec<_> = values.map(|value| value.replace("--", "aa")).collect();
            let spec = json!({
                "selector": {"matchLabels": null, "matchExpressions": [
                    {"key": name, "operator": "In", "values": values},
                    {"key": "other", "operator": "DoesNotExist"},
                ]},
                "namespaceSelector": {"matchLabels": {"group": format!("g{group}")}},
            });
            sets.push(set(&name, json!({"spec": spec}))?);
        }
    }
    Ok(sets)
}

// SCS-81
pub(crate) async fn the_longest_conditions_are_accepted_and_cost_no_call(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    let sets = long_sets()?;
    for set in &sets {
        bed.sets().create(&PostParams::default(), set).await?;
    }
    let last = sets.last().context("no set")?;
    let name = last.metadata.name.clone().context("no name")?;
    for set in &sets {
        let name = set.metadata.name.as_deref().context("no name")?;
        bed.is_in_force(name).await?;
    }
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let configuration = configurations.get(CONFIGURATION).await?;
    let webhooks = configuration.webhooks.unwrap_or_default();
    ensure!(
        webhooks.len() == SetScope::CALLS,
        "{} calls",
        webhooks.len()
    );
    let conditions = webhooks
        .iter()
        .flat_map(|one| one.match_conditions.iter().flatten());
    let longest = conditions.map(|one| one.expression.len()).max();
    let longest = longest.unwrap_or_default();
    let is_long = longest > SetScope::EXPRESSION_BYTES / 4 * 3;
    ensure!(
        is_long && longest <= SetScope::EXPRESSION_BYTES,
        "{longest} bytes"
    );

    let group = format!("g{}", SetScope::CALLS - 1);
    make_namespace(&client, "long", json!({"group": group})).await?;
    let requirement = last.spec.selector.as_ref().and_then(|selector| {
        let mut requirements = selector.match_expressions.iter().flatten();
        requirements.find_map(|one| one.values.as_ref()?.last().cloned())
    });
    let labels = json!({"app": null, &*name: requirement});
    let selected = json!({"metadata": {"labels": labels}});
    wait_for_answer("a pod that the last of the sets selects", || async {
        let found = create(&client, "long", selected.clone(), true).await?;
        Ok((names(&found) == [&*name, "main"]).then_some(()))
    })
    .await?;
    let before = bed.calls().await?;
    let found = create(&client, "long", json!({}), true).await?;
    ensure!(names(&found) == ["main"], "{:?}", names(&found));
    ensure!(bed.calls().await? == before, "called for a pod of no set");
    let server = ["get", "--raw", "/metrics"];
    let server = bed.installation.plane.kubectl(&server).await?;
    let failed = "apiserver_admission_match_condition_evaluation_errors_total{";
    let failed = sum_of_counters(&server, &[failed])?;
    ensure!(failed == 0, "{failed} conditions could not be evaluated");
    eprintln!(
        "{} sets in {} conditions, the longest of {longest} bytes",
        sets.len(),
        webhooks.len()
    );
    bed.installation.end().await;
    Ok(())
}
