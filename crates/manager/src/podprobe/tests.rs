//! `PodProbeMarker` beside another feature, the small one of `leadsman-control`'s tests.

use std::time::Duration;

use leadsman_control::labels::{api_server, rules, run_features, wiring};
use leadsman_process::traces::Tracer;
use tokio::time::sleep;

use super::*;

#[tokio::test(start_paused = true)]
async fn without_its_crds_it_waits_and_the_other_feature_goes_on() {
    let cluster = api_server::Cluster::default();
    cluster.put_object("configmaps", "paint", &[(rules::COLOUR, "red")], None);
    cluster.put_object("pods", "a", &[], Some("paint"));
    cluster.forget_resource("podprobemarkers");
    let running = run_features(&cluster, |control| {
        control.add_feature(PodProbeRules::new(
            Config::default(),
            &Metrics::default(),
            Tracer::default(),
        ));
        control.add_feature(wiring::CopyLabels::default());
    });
    sleep(Duration::from_mins(1)).await;
    let colour = cluster.label_value("pods", "a", rules::COLOUR);
    assert_eq!(colour.as_deref(), Some("red"));
    assert_eq!(cluster.count_requests("LIST pods"), 1, "one watch for both");
    assert_eq!(cluster.count_requests("PATCH"), 1);
    let text = running.process.readiness.to_text();
    for expected in [
        "[+] pods\n",
        "does not serve podprobemarkers.apps.kruise.io",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}
