//! The folders of `examples`, as their pages tell people to use them.

use std::sync::Arc;

use anyhow::Result;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use leadsman_testkit::Cluster;
use leadsman_tests::console::type_page;
use leadsman_tests::document;

use crate::Room;

/// The namespace of the demo.
const DEMO: &str = "ns";

pub(crate) async fn the_tutorial_shows_what_it_says(cluster: Arc<Cluster>) -> Result<()> {
    type_page(&cluster.bed, "docs/tutorial.md").await
}

pub(crate) async fn the_tutorial_of_sidecars_shows_what_it_says(
    cluster: Arc<Cluster>,
) -> Result<()> {
    type_page(&cluster.bed, "docs/tutorial-sidecars.md").await
}

pub(crate) async fn a_first_marker_marks(cluster: Arc<Cluster>) -> Result<()> {
    type_page(&cluster.bed, "examples/README.md").await
}

/// On what of the demo's cluster it is about.
pub(crate) async fn the_tour_of_the_demo_shows_what_it_says(cluster: Arc<Cluster>) -> Result<()> {
    let room = Room::new(&cluster, DEMO).await?;
    for manifest in [
        "examples/game-server/game-server.yaml",
        "examples/game-server/marker.yaml",
        "examples/database-role/database.yaml",
        "examples/database-role/marker.yaml",
        "demo/manifests/readiness-gate.yaml",
    ] {
        let manifest = document::root().join(manifest).display().to_string();
        let apply = ["-n", DEMO, "apply", "-f", &manifest];
        cluster.bed.kubectl(&apply).await?;
    }
    let scale = [
        "-n",
        DEMO,
        "scale",
        "deployment/game-server",
        "--replicas=2",
    ];
    cluster.bed.kubectl(&scale).await?;
    let outcome = type_page(&cluster.bed, "demo/tour.md").await;
    drop(room);
    outcome
}

pub(crate) async fn an_idle_game_server_goes_first(cluster: Arc<Cluster>) -> Result<()> {
    type_page(&cluster.bed, "examples/game-server/README.md").await
}

pub(crate) async fn clients_follow_the_main_instance(cluster: Arc<Cluster>) -> Result<()> {
    type_page(&cluster.bed, "examples/database-role/README.md").await
}

pub(crate) async fn a_worker_with_work_in_flight_is_not_removed(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let outcome = type_page(&cluster.bed, "examples/worker-drain/README.md").await;
    // Whatever came in between, other cases need a node that takes pods.
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    nodes.uncordon(cluster.bed.node_name()).await?;
    outcome
}

// PPM-21, PPM-22
pub(crate) async fn the_node_of_a_busy_worker_is_kept(cluster: Arc<Cluster>) -> Result<()> {
    type_page(&cluster.bed, "examples/busy-worker/README.md").await
}
