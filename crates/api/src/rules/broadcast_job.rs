//! The CEL rules of `BroadcastJob`. The rest of its pod template is judged by the API server when a pod is created.

use super::{CelRule, enumeration, rule};
use crate::broadcast_job::{JOB_NAME_LABEL, JOB_UID_LABEL};

/// All rules of `BroadcastJob`.
pub(crate) fn broadcast_job() -> Vec<CelRule> {
    let policy = "spec.completionPolicy";
    let (labels, pod) = ("spec.template.metadata.labels", "spec.template.spec");
    let is_preset = |label: &str| format!("'{label}' in self && self['{label}'] != ''");
    let only_always = |field: &'static str, name: &str| {
        rule(
            policy,
            format!("!has(self.{name}) || !has(self.type) || self.type != 'Never'"),
            "can only be set with type Always: a job of type Never does not end",
        )
        .at_field(field)
    };
    vec![
        rule(
            "spec.parallelism",
            // Each digit of a number that is no percentage would be read as one in OpenKruise.
            format!(
                "type(self) in [int] ? 1 <= self && self <= {} : self.matches(r'^0*[1-9][0-9]{{0,8}}%$')",
                i32::MAX
            ),
            "must be a number from 1, or a percentage from 1%: with anything else no pod would run",
        )
        .naming("self"),
        enumeration(format!("{policy}.type"), &["", "Always", "Never"]),
        enumeration(
            "spec.failurePolicy.type".to_owned(),
            &["", "FailFast", "Continue", "Pause"],
        ),
        only_always(".activeDeadlineSeconds", "activeDeadlineSeconds"),
        only_always(".ttlSecondsAfterFinished", "ttlSecondsAfterFinished"),
        rule(
            labels,
            format!("!({} || {})", is_preset(JOB_NAME_LABEL), is_preset(JOB_UID_LABEL)),
            format!("must not set {JOB_NAME_LABEL} and {JOB_UID_LABEL}: the job's pods are found by them"),
        ),
        rule(
            pod,
            "has(self.restartPolicy) && self.restartPolicy in ['Never', 'OnFailure']",
            "must be Never or OnFailure; without it a pod has Always, and does not end",
        )
        .at_field(".restartPolicy"),
        rule(
            pod,
            "!has(self.nodeName) || self.nodeName == ''",
            "must not be set, since it would take each node's pod to that one: use nodeSelector or affinity to choose nodes",
        )
        .at_field(".nodeName"),
        rule(
            pod,
            "has(self.containers) && self.containers.size() > 0",
            "must not be empty",
        )
        .at_field(".containers"),
    ]
}
