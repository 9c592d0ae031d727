//! A pod read in one pass as both features read it, where one watch serves both.
//!
//! Reading the text is most of what an event of a pod costs, and it is the same text for both. What one feature alone is to
//! cost stays as it is, since [`Pod`] and [`WorkloadPod`] have no field more. A text is read here only as far as both types
//! take it for the same; any other is an error, after which each type reads it by itself.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use super::workload::{
    WorkloadContainer, WorkloadContainerStatus, WorkloadPod, WorkloadPodCondition, WorkloadPodSpec,
    WorkloadPodStatus,
};
use super::{
    Container, ContainerPort, ContainerState, ContainerStatus, OwnerReference, Pairs, Pod,
    PodCondition, PodMetadata, PodSpec, PodStatus, PodWire, Present,
};
use crate::Guarded;
use crate::managed::FieldOwner;
use crate::paired::{OneAfterTheOther, ReadPair};
use crate::wire::{null_as_default, pairs};

/// Reads a pod as both types in one pass.
#[derive(Clone, Copy, Debug)]
pub struct PodInOnePass;

impl ReadPair<Pod, WorkloadPod> for PodInOnePass {
    fn read(text: &str) -> serde_json::Result<(Guarded<Pod>, Guarded<WorkloadPod>)> {
        let Ok(both) = serde_json::from_str::<Both>(text) else {
            return OneAfterTheOther::read(text);
        };
        let (pod, workload) = both.split();
        Ok((
            Guarded::Decoded(Box::new(pod)),
            Guarded::Decoded(Box::new(workload)),
        ))
    }
}

#[derive(Deserialize)]
struct Both {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    #[serde(default, deserialize_with = "pairs")]
    labels: Pairs,
    #[serde(default, deserialize_with = "pairs")]
    annotations: Pairs,
    #[serde(default, deserialize_with = "null_as_default")]
    owner_references: Vec<OwnerReference>,
    #[serde(default, deserialize_with = "null_as_default")]
    managed_fields: Vec<FieldOwner>,
}

// The defaults stand at the fields: at the struct they would also let an empty list be read as one.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    termination_grace_period_seconds: Option<i64>,
    #[serde(default)]
    containers: Vec<BothContainer>,
    #[serde(default)]
    init_containers: Vec<BothContainer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BothContainer {
    name: String,
    #[serde(default)]
    image: String,
    image_pull_policy: Option<String>,
    #[serde(default)]
    ports: Vec<ContainerPort>,
    startup_probe: Option<Present>,
    restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    observed_generation: Option<i64>,
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(default)]
    conditions: Vec<PodCondition>,
    #[serde(default)]
    container_statuses: Vec<BothContainerStatus>,
    #[serde(default)]
    init_container_statuses: Vec<BothContainerStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BothContainerStatus {
    name: String,
    #[serde(default)]
    ready: bool,
    started: Option<bool>,
    #[serde(default)]
    restart_count: i32,
    #[serde(default)]
    image: String,
    #[serde(default, rename = "imageID")]
    image_id: String,
    #[serde(rename = "containerID")]
    container_id: Option<String>,
    #[serde(default)]
    state: ContainerState,
}

impl Both {
    fn split(self) -> (Pod, WorkloadPod) {
        let Self {
            metadata,
            spec,
            status,
        } = self;
        let mut workload = WorkloadPod {
            labels: metadata.labels.clone(),
            annotations: metadata.annotations.clone(),
            ..WorkloadPod::default()
        };
        let (generation, created) = (metadata.generation, metadata.creation_timestamp);
        let (spec, workload_spec) = spec.split();
        let (status, workload_status) = status.split();
        let pod = Pod::from(PodWire {
            metadata: PodMetadata {
                name: metadata.name,
                namespace: metadata.namespace,
                uid: metadata.uid,
                resource_version: metadata.resource_version,
                deletion_timestamp: metadata.deletion_timestamp,
                labels: metadata.labels,
                annotations: metadata.annotations,
                owner_references: metadata.owner_references,
                managed_fields: metadata.managed_fields,
            },
            spec,
            status,
        });
        workload.identity = pod.identity.clone();
        workload.identity.generation = generation;
        workload.identity.creation_timestamp = created;
        workload.spec = workload_spec;
        workload.status = workload_status;
        (pod, workload)
    }
}

impl Spec {
    fn split(self) -> (PodSpec, WorkloadPodSpec) {
        let (containers, workload_containers) = unzip(self.containers, BothContainer::split);
        let (init_containers, workload_init_containers) =
            unzip(self.init_containers, BothContainer::split);
        let workload = WorkloadPodSpec {
            node_name: self.node_name.clone(),
            termination_grace_period_seconds: self.termination_grace_period_seconds,
            containers: workload_containers,
            init_containers: workload_init_containers,
        };
        let pod = PodSpec {
            node_name: self.node_name,
            containers,
            init_containers,
        };
        (pod, workload)
    }
}

impl BothContainer {
    fn split(self) -> (Container, WorkloadContainer) {
        let workload = WorkloadContainer {
            name: self.name.clone(),
            image: self.image,
            image_pull_policy: self.image_pull_policy,
        };
        let container = Container {
            name: self.name,
            ports: self.ports,
            startup_probe: self.startup_probe,
            restart_policy: self.restart_policy,
        };
        (container, workload)
    }
}

impl Status {
    fn split(self) -> (PodStatus, WorkloadPodStatus) {
        let conditions = self.conditions.iter();
        let workload_conditions = conditions.map(|condition| WorkloadPodCondition {
            type_: condition.type_.clone(),
            status: condition.status.clone(),
            message: condition.message.clone(),
            last_transition_time: condition.last_transition_time.clone(),
        });
        let workload_conditions = workload_conditions.collect();
        let (statuses, workload_statuses) =
            unzip(self.container_statuses, BothContainerStatus::split);
        let (init_statuses, workload_init_statuses) =
            unzip(self.init_container_statuses, BothContainerStatus::split);
        let workload = WorkloadPodStatus {
            observed_generation: self.observed_generation,
            phase: self.phase.clone(),
            conditions: workload_conditions,
            container_statuses: workload_statuses,
            init_container_statuses: workload_init_statuses,
        };
        let pod = PodStatus {
            phase: self.phase,
            pod_ip: self.pod_ip,
            conditions: self.conditions,
            container_statuses: statuses,
            init_container_statuses: init_statuses,
        };
        (pod, workload)
    }
}

impl BothContainerStatus {
    fn split(self) -> (ContainerStatus, WorkloadContainerStatus) {
        let workload = WorkloadContainerStatus {
            name: self.name.clone(),
            ready: self.ready,
            restart_count: self.restart_count,
            image: self.image,
            image_id: self.image_id,
            container_id: self.container_id.clone(),
            state: self.state.clone(),
        };
        let status = ContainerStatus {
            name: self.name,
            container_id: self.container_id,
            started: self.started,
            state: self.state,
        };
        (status, workload)
    }
}

/// Both halves of each, in two lists of exactly as many.
fn unzip<T, A, B>(list: Vec<T>, split: fn(T) -> (A, B)) -> (Vec<A>, Vec<B>) {
    list.into_iter().map(split).unzip()
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::slim::tests::sample;

    /// With what an upgrade reads too.
    fn pod() -> Value {
        let mut pod = sample();
        pod["metadata"]["generation"] = json!(3);
        pod["spec"]["terminationGracePeriodSeconds"] = json!(30);
        pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
        pod["status"]["observedGeneration"] = json!(2);
        pod
    }

    fn alone<K: DeserializeOwned>(text: &str) -> Result<K, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    fn guarded<K>(read: Guarded<K>) -> Result<K, String> {
        match read {
            Guarded::Decoded(object) => Ok(*object),
            Guarded::Undecodable { error, .. } => Err(error),
        }
    }

    fn assert_is_read_as_by_each_itself(text: &str, case: &str) {
        let Ok((pod, workload)) = PodInOnePass::read(text) else {
            // It has no name that can be read.
            let is_nothing = Guarded::<Pod>::parse(text).is_err();
            assert!(
                is_nothing || Guarded::<WorkloadPod>::parse(text).is_err(),
                "{case}"
            );
            return;
        };
        assert_eq!(guarded(pod), alone(text), "{case}");
        assert_eq!(guarded(workload), alone(text), "{case}");
    }

    /// Every value of a tree, as the path to it.
    fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
        found.push(path.to_owned());
        let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    paths(value, &format!("{path}/{}", escaped(key)), found);
                }
            }
            Value::Array(list) => {
                for (index, value) in list.iter().enumerate() {
                    paths(value, &format!("{path}/{index}"), found);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn what_is_read_in_one_pass_is_what_each_type_reads_by_itself() {
        let text = pod().to_string();
        let (pod, workload) = serde_json::from_str::<Both>(&text).unwrap().split();
        assert_eq!(Ok(pod), alone(&text));
        assert_eq!(Ok(workload), alone(&text));
    }

    #[test]
    fn whatever_stands_in_a_field_is_read_as_by_each_type_itself() {
        let pod = pod();
        let mut fields = Vec::new();
        paths(&pod, "", &mut fields);
        assert!(fields.len() > 140, "{fields:?}");
        let mut read_together = 0;
        for field in &fields[1..] {
            for value in ["null", "7", "[]", "{}", "[7]", "\"7\"", "true"] {
                let mut pod = pod.clone();
                *pod.pointer_mut(field).unwrap() = serde_json::from_str(value).unwrap();
                let text = pod.to_string();
                assert_is_read_as_by_each_itself(&text, &format!("{field} = {value}"));
                read_together += usize::from(serde_json::from_str::<Both>(&text).is_ok());
            }
        }
        assert!(read_together > 500, "{read_together}");
    }

    #[test]
    fn a_field_that_is_absent_is_read_as_by_each_type_itself() {
        let pod = pod();
        let mut fields = Vec::new();
        paths(&pod, "", &mut fields);
        for field in &fields[1..] {
            let mut pod = pod.clone();
            let (parent, _) = field.rsplit_once('/').unwrap();
            let key = field[parent.len() + 1..]
                .replace("~1", "/")
                .replace("~0", "~");
            let Some(parent) = pod.pointer_mut(parent).and_then(Value::as_object_mut) else {
                continue;
            };
            parent.remove(&key);
            assert_is_read_as_by_each_itself(&pod.to_string(), &format!("without {field}"));
        }
    }
}
