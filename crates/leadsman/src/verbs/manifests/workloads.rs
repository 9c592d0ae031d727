//! Manager and agents: the chart's templates as Helm renders them with the default values, for another namespace, image or
//! other gates.

use std::io;

use leadsman_admission::{SERVICE, WEBHOOK_PORT};
use leadsman_manager::Gates;
use serde_json::{Value, json};

use super::object_labels;

/// Written by `cargo xtask manifests`; also a part of the kustomize base.
const RENDERED: &str = include_str!("../../../../../kustomize/workloads.yaml");

/// The name of the webhooks' port, of the Service and of the managers' container.
const WEBHOOKS: &str = "webhooks";

/// Deployment, DaemonSet and disruption budget, and the webhook's Service where a gate needs it.
pub(super) fn workloads(
    namespace: &str,
    gates: Gates,
    image: Option<&str>,
) -> io::Result<Vec<Value>> {
    let service = gates.serve_webhooks().then(|| webhook_service(namespace));
    let mut objects: Vec<_> = service.into_iter().collect();
    let documents = RENDERED.split("---\n");
    // The text begins with a separator.
    for document in documents.filter(|document| !document.is_empty()) {
        let mut object: Value = serde_norway::from_str(document).map_err(io::Error::other)?;
        object["metadata"]["namespace"] = json!(namespace);
        if let Some(container) = object.pointer_mut("/spec/template/spec/containers/0") {
            set_up(container, gates, image);
        }
        objects.push(object);
    }
    Ok(objects)
}

/// Gives a container its image, and the manager's its gates and the port of what they serve.
fn set_up(container: &mut Value, gates: Gates, image: Option<&str>) {
    if let Some(image) = image {
        container["image"] = json!(image);
    }
    let is_manager = container["name"] == "manager";
    let serves_webhooks = gates.serve_webhooks();
    let gates = gates.to_string();
    if is_manager
        && !gates.is_empty()
        && let Some(args) = container["args"].as_array_mut()
    {
        args.push(json!(format!("--feature-gates={gates}")));
    }
    if is_manager
        && serves_webhooks
        && let Some(ports) = container["ports"].as_array_mut()
    {
        ports.push(json!({"name": WEBHOOKS, "containerPort": WEBHOOK_PORT}));
    }
}

/// The Service by which the API server calls the webhooks. It goes by the port's name: while an upgrade that switches the
/// first gate with webhooks on is rolled out, the managers that it replaces are ready, and have no such port.
fn webhook_service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": namespace, "labels": object_labels(Some("manager"))},
        "spec": {
            "selector": object_labels(Some("manager")),
            "ports": [{"name": WEBHOOKS, "port": 443, "targetPort": WEBHOOKS}],
        },
    })
}
