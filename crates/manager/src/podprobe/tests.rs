//! `PodProbeMarker` beside another feature, the small one of `leadsman-control`'s tests.

use std::time::Duration;

use leadsman_control::labels::{api_server, rules, run, wiring};
use leadsman_process::traces::Tracer;
use tokio::time::sleep;

use super::*;

#[tokio::test(start_paused = true)]
async fn without_its_crds_it_waits_and_the_other_feature_goes_on() {
    let cluster = api_server::Cluster::default();
    cluster.put("configmaps", "paint", &[(rules::COLOUR, "red")], None);
    cluster.put("pods", "a", &[], Some("paint"));
    cluster.forget("podprobemarkers");
    let running = run(&cluster, |control| {
        control.add(PodProbeRules::new(
            Config::default(),
            &Metrics::default(),
            Tracer::default(),
        ));
        control.add(wiring::CopyLabels::default());
    });
    sleep(Duration::from_mins(1)).await;
    let colour = cluster.label("pods", "a", rules::COLOUR);
    assert_eq!(colour.as_deref(), Some("red"));
    assert_eq!(cluster.count("LIST pods"), 1, "one watch for both");
    assert_eq!(cluster.count("PATCH"), 1);
    let text = running.process.readiness.text();
    for expected in [
        "[+] pods\n",
        "does not serve podprobemarkers.apps.kruise.io",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}
