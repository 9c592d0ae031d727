//! Plain requests of everybody who is not leadsman: kubelets, controllers, users.

use http::{Method, Request, StatusCode};
use kube::Client;
use serde_json::{Value, json};

/// How a patch is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PatchKind {
    /// RFC 7386.
    Merge,
    /// Kubernetes' own, by the merge keys of lists.
    Strategic,
}

/// A client of one user.
#[derive(Clone)]
pub(crate) struct RestClient(pub Client);

impl RestClient {
    async fn send(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<Value, StatusCode> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", kind);
        let body = serde_json::to_vec(body).expect("a value is JSON");
        let request = request
            .body(body)
            .expect("paths of the simulation are paths");
        self.0.request(request).await.map_err(|error| match error {
            kube::Error::Api(status) => StatusCode::from_u16(status.code).unwrap_or_default(),
            _ => StatusCode::BAD_GATEWAY,
        })
    }

    /// Creates an object in a collection.
    ///
    /// # Errors
    /// The status of a refusal.
    pub(crate) async fn create(
        &self,
        collection: &str,
        object: &Value,
    ) -> Result<Value, StatusCode> {
        self.send(Method::POST, collection, "application/json", object)
            .await
    }

    /// Patches an object or its subresource.
    ///
    /// # Errors
    /// The status of a refusal.
    pub(crate) async fn patch(
        &self,
        path: &str,
        kind: PatchKind,
        body: &Value,
    ) -> Result<Value, StatusCode> {
        let kind = match kind {
            PatchKind::Merge => "application/merge-patch+json",
            PatchKind::Strategic => "application/strategic-merge-patch+json",
        };
        self.send(Method::PATCH, path, kind, body).await
    }

    /// Deletes an object at once, or lets its kubelet end it first.
    ///
    /// # Errors
    /// The status of a refusal.
    pub(crate) async fn delete(&self, path: &str, at_once: bool) -> Result<Value, StatusCode> {
        let options = if at_once {
            json!({"gracePeriodSeconds": 0})
        } else {
            json!({})
        };
        self.send(Method::DELETE, path, "application/json", &options)
            .await
    }
}

/// The path of a pod in the namespace of the simulation's tenant.
pub(crate) fn pod_path(pod: &Value) -> String {
    let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
    format!(
        "/api/v1/namespaces/{}/pods/{}",
        text("namespace"),
        text("name")
    )
}
