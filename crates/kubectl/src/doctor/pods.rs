//! The problems of a pod of leadsman's, by its own status, and the version that it runs.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

/// The name of a pod.
pub(super) fn pod_name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// The node of a pod.
pub(super) fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// Whether a pod counts: one that has ended or is being deleted has a successor.
pub(super) fn is_active(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|it| it.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn container_statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let statuses = pod.status.iter();
    statuses.flat_map(|status| status.container_statuses.iter().flatten())
}

/// Why a pod is not Ready, in Kubernetes' words. None if it is.
pub(super) fn unready_reason(pod: &Pod) -> Option<String> {
    let conditions = pod.status.iter().flat_map(|it| &it.conditions).flatten();
    let mut not = Vec::new();
    for condition in conditions {
        match (condition.type_.as_str(), condition.status.as_str()) {
            ("Ready", "True") => return None,
            ("Ready" | "PodScheduled", _) => not.extend(condition.message.clone()),
            _ => {}
        }
    }
    let waiting = container_statuses(pod)
        .filter_map(|it| it.state.as_ref()?.waiting.as_ref())
        .filter_map(|it| {
            let (reason, message) = (it.reason.as_deref()?, it.message.as_deref());
            Some(match message {
                Some(message) => format!("{reason}: {message}"),
                None => reason.to_owned(),
            })
        });
    // The kubelet's word on a container comes first: the condition only names the containers that are not ready.
    let mut why: Vec<_> = waiting.collect();
    if why.is_empty() {
        why = not;
    }
    Some(if why.is_empty() {
        "its status does not say why".to_owned()
    } else {
        why.join("; ")
    })
}

/// How often the containers of a pod were restarted.
pub(super) fn count_restarts(pod: &Pod) -> i32 {
    container_statuses(pod).map(|it| it.restart_count).sum()
}

/// Why a container of a pod ended last, as the kubelet calls it: `Error`, `OOMKilled`, `Completed`.
pub(super) fn last_termination_reason(pod: &Pod) -> Option<&str> {
    let mut ends = container_statuses(pod).filter_map(|it| {
        it.last_state
            .as_ref()?
            .terminated
            .as_ref()?
            .reason
            .as_deref()
    });
    ends.next()
}

/// How many of these pods run each version, which is the tag of their image.
pub(super) fn count_versions(pods: &[Pod]) -> BTreeMap<String, usize> {
    let mut versions = BTreeMap::new();
    for pod in pods.iter().filter(|pod| is_active(pod)) {
        let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let image = containers.find_map(|one| one.image.as_deref());
        *versions
            .entry(image_tag(image.unwrap_or_default()))
            .or_default() += 1;
    }
    versions
}

/// The tag of an image; `latest` where it has none, a digest where it has only that.
fn image_tag(image: &str) -> String {
    let (name, digest) = image.split_once('@').unwrap_or((image, ""));
    // The address of a registry may have a colon too, before its port.
    let last = name.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        Some((_, tag)) => tag.to_owned(),
        None if digest.is_empty() => "latest".to_owned(),
        None => digest.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::image_tag;

    #[test]
    fn a_tag_is_told_from_a_port_and_a_digest() {
        let tags = [
            ("leadsman:0.1.0", "0.1.0"),
            ("registry:5000/leadsman", "latest"),
            ("registry:5000/a/leadsman:0.1.0@sha256:ab", "0.1.0"),
            ("leadsman@sha256:ab", "sha256:ab"),
        ];
        for (image, expected) in tags {
            assert_eq!(image_tag(image), expected, "{image}");
        }
    }
}
