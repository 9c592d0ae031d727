//! The schemas of our CRDs, followed: what the API server keeps of our optional fields, before anything is written and
//! whenever a CRD is replaced.

use std::pin::pin;

use futures::{Stream, StreamExt};
use leadsman_api::slim::crd::CustomResourceDefinition;
use leadsman_core::podprobe::event::{Event, Kind};
use leadsman_core::podprobe::schemas::keeps_fields;
use leadsman_process::list::ListTarget;
use leadsman_process::reply::{Cause, Disposition, describe_missing_rights};
use leadsman_process::watch::{WatchEvent, WatchFailure, WatchPhase, watch};
use leadsman_process::{ApiServer, Condition, clock};
use tokio::sync::mpsc::Sender;

use crate::kinds::resource;
use crate::watch::Arrival;

/// The kinds that have optional fields, each with the readiness condition of its schema.
pub(crate) const KINDS: [(Kind, &str); 2] = [
    (Kind::Marker, "schema of podprobemarkers.apps.kruise.io"),
    (Kind::NodePodProbe, "schema of nodepodprobes.apps.kruise.io"),
];
/// The CRDs that are read.
pub const CRDS: [&str; 2] = [resource(Kind::Marker), resource(Kind::NodePodProbe)];
/// The rights on these CRDs, on no others.
pub const RIGHTS: [&str; 3] = ["get", "list", "watch"];

/// Follows the CRD of a kind until nobody listens any more. A CRD is forgotten as soon as it is read.
pub(crate) async fn follow(
    kind: Kind,
    server: ApiServer,
    events: Sender<Arrival>,
    condition: Condition,
) {
    let name = resource(kind);
    let only =
        ListTarget::all::<CustomResourceDefinition>().fields(format!("metadata.name={name}"));
    let crds = watch(server, only, fastrand::Rng::new());
    Schema::new(kind, condition).follow(crds, events).await;
}

/// What is known of a kind's schema. The condition holds while the CRD is there and changes of it are being received.
struct Schema {
    kind: Kind,
    condition: Condition,
    exists: bool,
    follows: bool,
    /// Whether it keeps our fields, as it was last read.
    keeps: Option<bool>,
}

impl Schema {
    fn new(kind: Kind, condition: Condition) -> Self {
        Self {
            kind,
            condition,
            exists: false,
            follows: false,
            keeps: None,
        }
    }

    async fn follow(
        mut self,
        crds: impl Stream<Item = WatchEvent<CustomResourceDefinition>>,
        events: Sender<Arrival>,
    ) {
        let mut crds = pin!(crds);
        while let Some(event) = crds.next().await {
            if let Some(event) = self.take(event)
                && events.send((clock::monotonic(), event)).await.is_err()
            {
                return;
            }
        }
    }

    fn take(&mut self, event: WatchEvent<CustomResourceDefinition>) -> Option<Event> {
        match event {
            WatchEvent::ListStarted => self.exists = false,
            WatchEvent::ListItem(crd) | WatchEvent::Changed(crd) => {
                self.exists = true;
                let read = self.read(&crd);
                self.show();
                return read;
            }
            WatchEvent::ListComplete(_) => self.show(),
            WatchEvent::Deleted(_) => {
                self.exists = false;
                self.show();
            }
            WatchEvent::Following => {
                self.follows = true;
                self.show();
            }
            WatchEvent::Failed(failure) => {
                self.follows = false;
                self.condition
                    .not_ready(reason(resource(self.kind), &failure));
            }
        }
        None
    }

    /// What it says now, if that is another thing than before.
    fn read(&mut self, crd: &CustomResourceDefinition) -> Option<Event> {
        let keeps = keeps_fields(self.kind, crd);
        let before = self.keeps.replace(keeps);
        if before == Some(keeps) {
            return None;
        }
        let crd = resource(self.kind);
        if !keeps {
            tracing::warn!(
                crd,
                without = what_is_lost(self.kind),
                "the CRD drops leadsman's fields: it is another product's or an older one. Apply the output of \
                 `leadsman manifests`"
            );
        } else if before.is_some() {
            tracing::info!(crd, "the CRD keeps leadsman's fields again");
        }
        Some(Event::FieldsKept(self.kind, keeps))
    }

    fn show(&self) {
        if !self.exists {
            let name = resource(self.kind);
            self.condition.not_ready(format!(
                "there is no CRD {name}: apply the output of `leadsman manifests`"
            ));
        } else if self.follows {
            self.condition.ready();
        }
    }
}

/// What users miss where our fields are dropped.
fn what_is_lost(kind: Kind) -> &'static str {
    match kind {
        Kind::NodePodProbe => {
            "by which a verdict says what it is about (revision, containerID, startedContainerID)"
        }
        _ => "by which a marker says how it fares (status.conditions, status.probes)",
    }
}

/// What an operator can do about it comes first.
fn reason(name: &str, failure: &WatchFailure) -> String {
    let words = failure.disposition.reason().unwrap_or_default();
    let verb = match failure.phase {
        WatchPhase::Listing => "list",
        WatchPhase::Watching => "watch",
    };
    if let Disposition::Retry {
        cause: Cause::NoRight,
        ..
    } = failure.disposition
    {
        return format!(
            "cannot {verb} the CRD {name}: {}",
            describe_missing_rights([words])
        );
    }
    format!("cannot {verb} the CRD {name}: {words}")
}

#[cfg(test)]
mod tests;
