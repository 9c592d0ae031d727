//! `PodProbeMarker` beside another feature, the small one of `leadsman-control`'s tests.

#[path = "../../../control/tests/labels/api_server.rs"]
#[allow(dead_code, reason = "it serves more tests than these")]
mod api_server;
#[path = "../../../control/tests/labels/rules.rs"]
#[allow(dead_code, reason = "it serves more tests than these")]
mod rules;
#[path = "../../../control/tests/labels/wiring.rs"]
mod wiring;

use std::time::Duration;

use leadsman_control::Control;
use leadsman_lease::Leadership;
use leadsman_process::{ApiServer, Metrics, Process, Readiness, clock};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::*;

#[tokio::test(start_paused = true)]
async fn without_its_crds_it_waits_and_the_other_feature_goes_on() {
    let cluster = api_server::Cluster::default();
    cluster.put("configmaps", "paint", &[(rules::COLOUR, "red")], None);
    cluster.put("pods", "a", &[], Some("paint"));
    let process = Process {
        server: ApiServer::new(cluster.client()),
        shutdown: CancellationToken::new(),
        readiness: Readiness::default(),
        metrics: Metrics::default(),
    };
    let leadership = watch::Sender::new(Leadership::Leads {
        term: 1,
        after_others: false,
        until: clock::monotonic() + Duration::from_hours(1),
    });
    let mut control = Control::new(&process, leadership.subscribe());
    control.add(PodProbeRules::new(Config::default()));
    control.add(wiring::CopyLabels::default());
    tokio::spawn(control.run());
    sleep(Duration::from_mins(1)).await;
    let colour = cluster.label("pods", "a", rules::COLOUR);
    assert_eq!(colour.as_deref(), Some("red"));
    assert_eq!(cluster.count("LIST pods"), 1, "one watch for both");
    assert_eq!(cluster.count("PATCH"), 1);
    let text = process.readiness.text();
    for expected in [
        "[+] pods\n",
        "does not serve podprobemarkers.apps.kruise.io",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}
