//! Explains what the pods of a `CloneSet` wait for.

use jiff::Timestamp;
use leadsman_api::CloneSet;
use leadsman_api::clone_set::INSTANCE_LABEL;
use leadsman_api::slim::Pod;
use leadsman_api::slim::claim::PersistentVolumeClaim;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_core::cloneset::{CloneSetExplanation, explain_set};

use crate::VerbError;
use crate::reader::{ListSelection, Reader};
use crate::report::{Text, bold, line};
use crate::resources::{CLAIMS, CLONE_SETS, CONTROLLER_REVISIONS, PODS};

/// The most pods that are named for a reason, unless all are asked for.
const FEW_PODS: usize = 5;

/// Reads a set, the pods that its selector finds, its revisions and, if its pods have any, the claims; and explains it.
pub(crate) async fn explain(
    reader: &Reader,
    (namespace, name): (&str, &str),
    pods: &ListSelection<'_>,
    now: Timestamp,
) -> Result<CloneSetExplanation, VerbError> {
    let revisions = ListSelection {
        labels: pods.labels.clone(),
        ..ListSelection::of(Some(namespace), 100)
    };
    let set = reader.require::<CloneSet>(CLONE_SETS, "cloneset", name, Some(namespace));
    let (set, pods, revisions) = futures::join!(
        set,
        reader.list_objects::<Pod>(PODS, pods),
        reader.list_objects::<ControllerRevision>(CONTROLLER_REVISIONS, &revisions),
    );
    let set = set?;
    let claims = if set.spec.volume_claim_templates.is_empty() {
        Ok(Vec::new())
    } else {
        let of_sets = ListSelection {
            labels: Some(INSTANCE_LABEL.to_owned()),
            ..ListSelection::of(Some(namespace), 500)
        };
        let claims = reader.list_objects::<PersistentVolumeClaim>(CLAIMS, &of_sets);
        claims.await
    };
    let (claims, unread) = match claims {
        Ok(claims) => (Some(claims), None),
        Err(unread) => (None, Some(unread.0)),
    };
    let mut explained = explain_set(set, (pods?, revisions?), claims, now);
    explained.set.extend(unread);
    Ok(explained)
}

pub(crate) fn add_text(set: &CloneSetExplanation, text: &mut Text) {
    let [wanted, there, available, updated] = set.counts;
    let name = bold(format_args!("cloneset {}", set.name));
    line!(text, 0 => "{name}: of {wanted} pods {there} are there, {available} available, {updated} of the present template");
    for reason in &set.set {
        line!(text, 2 => "{reason}");
    }
    for (reason, pods) in &set.pods {
        let named = if text.is_wide {
            pods.len()
        } else {
            FEW_PODS.min(pods.len())
        };
        let more = match pods.len() - named {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let plural = if pods.len() == 1 { "" } else { "s" };
        line!(text, 2 => "{} pod{plural}: {reason}", pods.len());
        line!(text, 4 => "{}{more}", pods[..named].join(", "));
    }
    text.add_gap();
}
