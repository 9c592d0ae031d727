//! Whether the API server keeps a kind's optional fields, by the schema of its CRD. It is read before the first write,
//! and again whenever the CRD is replaced.

use std::borrow::Cow;
use std::pin::pin;

use futures::{Stream, StreamExt};
use leadsman_api::slim::crd::CustomResourceDefinition;
use leadsman_process::list::ListTarget;
use leadsman_process::watcher::{WatchEvent, WatchFailure, WatchPhase, list_and_watch};
use leadsman_process::{ReadinessCheck, clock};
use tokio::sync::mpsc::Sender;

use crate::kind::OptionalFields;
use crate::watch::{Arrival, Prerequisite, WatchContext};

/// Watches the CRD of a kind until the feature has ended. The CRD itself is not kept.
pub(crate) async fn follow_schema<E>(
    schema: Schema,
    context: WatchContext,
    to_event: fn(bool) -> E,
    kind: usize,
    events: Sender<Arrival<E>>,
) {
    let name = format!("metadata.name={}", schema.crd);
    let only = ListTarget::all_of::<CustomResourceDefinition>().with_field_selector(name);
    let crds = list_and_watch(
        context.server,
        only,
        |text| serde_json::from_str(text),
        context.random.fork_rng(),
    );
    let changes = schema.changes_of_kept(crds);
    let mut changes = pin!(changes);
    while let Some(kept) = changes.next().await {
        let arrival = Arrival {
            at: clock::monotonic(),
            completes: Some(Prerequisite::SchemaRead(kind)),
            event: to_event(kept),
        };
        if events.send(arrival).await.is_err() {
            return;
        }
    }
}

/// The known schema of a kind. The check passes while the CRD is there and changes of it are being
/// received.
pub(crate) struct Schema {
    /// The name of the CRD.
    crd: String,
    /// The version of the API whose schema counts.
    version: Cow<'static, str>,
    fields: OptionalFields,
    check: ReadinessCheck,
    exists: bool,
    is_receiving: bool,
    /// Whether it keeps the fields, as it was last read.
    keeps: Option<bool>,
    /// The first of the later fields that it lacked then.
    lacks_later: Option<&'static str>,
}

impl Schema {
    /// Not read yet.
    pub(crate) fn new(
        crd: String,
        version: Cow<'static, str>,
        fields: OptionalFields,
        check: ReadinessCheck,
    ) -> Self {
        Self {
            crd,
            version,
            fields,
            check,
            exists: false,
            is_receiving: false,
            keeps: None,
            lacks_later: None,
        }
    }

    /// Whether the fields are kept, each time that it changes.
    fn changes_of_kept(
        mut self,
        crds: impl Stream<Item = WatchEvent<CustomResourceDefinition>>,
    ) -> impl Stream<Item = bool> {
        crds.filter_map(move |event| std::future::ready(self.observe_crd(event)))
    }

    fn observe_crd(&mut self, event: WatchEvent<CustomResourceDefinition>) -> Option<bool> {
        match event {
            // A CRD that was deleted while the watch was broken is missing from the list, and no event tells of it.
            WatchEvent::ListStarted => self.exists = false,
            WatchEvent::ListPage(_) => {}
            WatchEvent::ListItem(crd) | WatchEvent::Changed(crd) => {
                self.exists = true;
                let change = self.read_crd(&crd);
                self.update_check();
                return change;
            }
            WatchEvent::ListComplete(_) => self.update_check(),
            WatchEvent::Deleted(_) => {
                // The fields stay known: without a CRD there is no object to write, and a new CRD
                // is compared with the last.
                self.exists = false;
                self.update_check();
            }
            WatchEvent::Following => {
                self.is_receiving = true;
                self.update_check();
            }
            WatchEvent::Failed(failure) => {
                self.is_receiving = false;
                self.check
                    .set_not_ready(explain_failure(&self.crd, &failure));
            }
        }
        None
    }

    /// Whether the fields are kept, if that has changed.
    fn read_crd(&mut self, crd: &CustomResourceDefinition) -> Option<bool> {
        let keeps = self.fields.are_kept(crd, &self.version);
        let lacks = self.fields.lacks_later(crd, &self.version);
        let lacks_before = std::mem::replace(&mut self.lacks_later, lacks.map(|(path, _)| path));
        if keeps
            && let Some((field, consequence)) = lacks
            && lacks_before != Some(field)
        {
            tracing::warn!(
                crd = self.crd,
                field,
                consequence,
                "the CRD is an older one and drops a field: install this version's CRDs"
            );
        }
        let before = self.keeps.replace(keeps);
        if before == Some(keeps) {
            return None;
        }
        let crd = &self.crd;
        if !keeps {
            // Logged when it is read for the first time too, and then once: the fields stay missing
            // until somebody acts.
            tracing::warn!(
                crd,
                missing = self.fields.content,
                "the CRD drops leadsman's fields: it is another product's or an older one. Install leadsman's CRDs, by its \
                 Helm chart or `leadsman manifests`"
            );
        } else if before.is_some() {
            tracing::info!(crd, "the CRD keeps leadsman's fields again");
        }
        Some(keeps)
    }

    fn update_check(&self) {
        if !self.exists {
            let crd = &self.crd;
            self.check.set_not_ready(format!(
                "there is no CRD {crd}: install leadsman's CRDs, by its Helm chart or `leadsman manifests`"
            ));
        } else if self.is_receiving {
            // While nothing is received, the reason of the failure stays.
            self.check.set_ready();
        }
    }
}

impl OptionalFields {
    /// Whether the schema of a version keeps all of them.
    pub fn are_kept(&self, crd: &CustomResourceDefinition, version: &str) -> bool {
        self.paths
            .iter()
            .all(|path| keeps_field(crd, version, path))
    }

    /// The first of the later fields that the schema of a version lacks, and what does without it.
    pub fn lacks_later(
        &self,
        crd: &CustomResourceDefinition,
        version: &str,
    ) -> Option<(&'static str, &'static str)> {
        let mut later = self.later.iter().copied();
        later.find(|(path, _)| !keeps_field(crd, version, path))
    }
}

/// Whether a version of a kind has a field. `[]` leads to the items of a list.
fn keeps_field(crd: &CustomResourceDefinition, version: &str, path: &str) -> bool {
    let version = crd.versions.iter().find(|one| one.name == version);
    let mut schema = version.map(|version| &version.schema.object);
    let path = path.replace("[]", ".[]");
    for step in path.split('.') {
        let Some(at) = schema else {
            return false;
        };
        // `x-kubernetes-preserve-unknown-fields` keeps whatever is below it (`pkg/apiserver/schema/pruning` of
        // k8s.io/apiextensions-apiserver).
        if at.preserves_unknown {
            return true;
        }
        schema = if step == "[]" {
            at.items.as_deref()
        } else {
            at.properties.get(step)
        };
    }
    schema.is_some()
}

/// The reason of a failure, beginning with what an operator can do about it.
fn explain_failure(name: &str, failure: &WatchFailure) -> String {
    let verb = match failure.phase {
        WatchPhase::Listing => "list",
        WatchPhase::Watching => "watch",
    };
    format!(
        "cannot {verb} the CRD {name}: {}",
        failure.disposition.explain_reason()
    )
}

#[cfg(test)]
mod tests;
