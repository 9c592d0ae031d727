//! What the world consists of: nodes, pods as a ReplicaSet controller and a kubelet leave them, markers.

use serde_json::{Value, json};

/// Applications, each with a marker of its own and one pod on every node.
pub(super) const APPS: usize = 20;
/// Namespaces, with the same number of applications in each.
const NAMESPACES: usize = 4;
/// The probes of each marker.
pub(super) const PROBES: [&str; 2] = ["idle", "main"];
/// The container that is probed.
pub(super) const CONTAINER: &str = "server";

/// An application's name, which is its marker's too.
pub(super) fn app(app: usize) -> String {
    format!("app-{app:02}")
}

/// An application's namespace.
pub(super) fn namespace(app: usize) -> String {
    format!("shop-{}", app % NAMESPACES)
}

pub(super) fn namespaces() -> impl Iterator<Item = String> {
    (0..NAMESPACES).map(namespace)
}

/// The name of an entry of a node's `NodePodProbe`.
pub(super) fn entry(app: usize, probe: &str) -> String {
    format!("{}#{probe}", self::app(app))
}

/// The label and the condition by which a probe's verdict shows on a pod.
pub(super) fn mark(probe: &str) -> String {
    format!("game.example.com/{probe}")
}

/// The annotation by which it shows: key, and value for a verdict.
pub(super) fn annotation(probe: &str, succeeded: bool) -> (String, String) {
    let value = if succeeded { "-10" } else { "10" };
    let key = if probe == PROBES[0] {
        "controller.kubernetes.io/pod-deletion-cost".to_owned()
    } else {
        format!("game.example.com/{probe}-cost")
    };
    (key, value.to_owned())
}

/// A node with the labels, addresses and images that real ones report.
pub(super) fn node(name: &str) -> Value {
    let mut node = filled(include_str!("objects/node.json"), &[("$node", name)]);
    let images = (0..20).map(|n| {
        let image = format!("registry.example.com/team/image-{n:02}");
        let names = [
            format!("{image}@sha256:{:064x}", n + 1),
            format!("{image}:v1.{n}.0"),
        ];
        json!({"names": names, "sizeBytes": 12_345_678 + n})
    });
    node["status"]["images"] = images.collect();
    node
}

/// A pod as its `ReplicaSet`'s controller makes it, bound already.
pub(super) fn pod(name: &str, app: usize, node: &str) -> Value {
    let (app, namespace) = (self::app(app), namespace(app));
    let values = [
        ("$pod", name),
        ("$app", &app),
        ("$namespace", &namespace),
        ("$node", node),
    ];
    filled(include_str!("objects/pod.json"), &values)
}

/// A pod's status as its kubelet reports it.
pub(super) fn running(pod: &str, ip: &str) -> Value {
    let container = container_id(pod, CONTAINER);
    filled(
        include_str!("objects/running.json"),
        &[("$ip", ip), ("$container", &container)],
    )
}

/// A container's id, without the runtime's name before it.
pub(super) fn container_id(pod: &str, container: &str) -> String {
    format!("{pod}-{container}-0123456789abcdef0123456789abcdef0123456789abcdef")
}

/// An application's marker: two probes, each with a label, an annotation and a condition for its verdict.
pub(super) fn marker(app: usize) -> Value {
    let (app, namespace) = (self::app(app), namespace(app));
    filled(
        include_str!("objects/marker.json"),
        &[("$app", &app), ("$namespace", &namespace)],
    )
}

/// An object from its text, in which these words stand for values.
///
/// # Panics
/// When it is no JSON, which is this program's fault.
pub(crate) fn filled(text: &str, values: &[(&str, &str)]) -> Value {
    let mut text = text.to_owned();
    for (word, value) in values {
        text = text.replace(word, value);
    }
    serde_json::from_str(&text).expect("an object of ours is JSON")
}
