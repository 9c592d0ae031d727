//! The webhooks that review a request.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::admission::{Admission, ConfigurationsInForce, Review};
use crate::change::decode;
use crate::request::Call;
use crate::resource::Resource;
use crate::server::Connection;
use crate::status::Failure;
use crate::store::ObjectKey;

const MUTATING: &str = "mutatingwebhookconfigurations";
const VALIDATING: &str = "validatingwebhookconfigurations";

impl Connection {
    pub(crate) async fn mutate(
        &self,
        resource: &Resource,
        call: &Call,
        operation: &'static str,
        name: &str,
        object: Value,
        old: Option<&Value>,
    ) -> Result<Value, Failure> {
        let Some((admission, in_force)) = self.webhooks(resource, MUTATING, call) else {
            return Ok(object);
        };
        let review = self.review(resource, call, operation, name, old);
        let mut object = review.mutate(&admission, &in_force, object).await?;
        decode(resource, &mut object);
        Ok(object)
    }

    pub(crate) async fn validate(
        &self,
        resource: &Resource,
        call: &Call,
        operation: &'static str,
        name: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Failure> {
        let Some((admission, in_force)) = self.webhooks(resource, VALIDATING, call) else {
            return Ok(());
        };
        let review = self.review(resource, call, operation, name, old);
        review.validate(&admission, &in_force, object).await
    }

    fn webhooks(
        &self,
        resource: &Resource,
        configurations: &'static str,
        call: &Call,
    ) -> Option<(Arc<dyn Admission>, ConfigurationsInForce)> {
        // Webhooks that judge webhooks could lock everybody out (`plugin/webhook/predicates/rules`).
        if resource.group == "admissionregistration.k8s.io" {
            return None;
        }
        let admission = self.server.admission()?;
        let in_force = self.in_force(configurations, &call.namespace);
        (!in_force.webhooks.is_empty()).then_some((admission, in_force))
    }

    fn review<'a>(
        &self,
        resource: &'a Resource,
        call: &'a Call,
        operation: &'static str,
        name: &'a str,
        old: Option<&'a Value>,
    ) -> Review<'a> {
        Review {
            resource,
            subresource: call.subresource.as_deref(),
            operation,
            namespace: &call.namespace,
            name,
            user: &call.user,
            is_dry_run: call.is_dry_run(),
            uid: self.server.store().next_uid(),
            old,
        }
    }

    /// The webhooks that this client's API server calls, and the labels of a namespace.
    fn in_force(&self, plural: &'static str, namespace: &str) -> ConfigurationsInForce {
        let store = self.server.store();
        let version = self.cached_version(&store, plural);
        let Some(kind) = store.find_kind("admissionregistration.k8s.io", "v1", plural) else {
            return ConfigurationsInForce::default();
        };
        let configurations = store.objects_at(kind, version);
        let webhooks = configurations.values().flat_map(|configuration| {
            let webhooks = configuration.value["webhooks"].as_array();
            webhooks.into_iter().flatten().cloned().collect::<Vec<_>>()
        });
        let key = store
            .find_kind("", "v1", "namespaces")
            .map(|kind| ObjectKey {
                kind,
                namespace: String::new(),
                name: namespace.to_owned(),
            });
        let found = key.and_then(|key| store.objects.get(&key));
        let mut labels = found
            .and_then(|found| found.value.pointer("/metadata/labels"))
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        labels.insert("kubernetes.io/metadata.name".to_owned(), json!(namespace));
        ConfigurationsInForce {
            webhooks: webhooks.collect(),
            namespace_labels: labels,
        }
    }
}
