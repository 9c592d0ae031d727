//! The nodes that a pod fits, as a controller with one pod a node decides it before the scheduler does
//! (`NodeShouldRunDaemonPod`, `pkg/controller/daemon/daemon_controller.go`): labels, taints, and whether an empty node has what
//! the pod requests.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Affinity, NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use leadsman_api::limits::NODE_REQUIREMENTS;
use leadsman_api::slim::{Node, Pairs, Taint};
use serde::Deserialize;
use serde_json::Value;

use super::JsonObject;
use super::object;
use super::quantity::Quantity;
use crate::cluster::Operator;

/// Amounts of resources by name, in billionths.
type Resources = BTreeMap<String, i128>;

/// The facts that decide which pods a node takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    name: String,
    labels: Pairs,
    taints: Vec<Taint>,
    is_cordoned: bool,
    allocatable: Resources,
}

impl NodeFacts {
    /// Reads a node. An amount that is none counts as none.
    pub fn read(node: &Node) -> Self {
        let amounts = node.allocatable.iter().filter_map(|(name, amount)| {
            let amount = Quantity::parse(amount)?;
            Some((name.clone(), amount.nanos()))
        });
        Self {
            name: node.identity.name.clone().unwrap_or_default(),
            labels: node.labels.clone(),
            taints: node.taints.clone(),
            is_cordoned: node.unschedulable,
            allocatable: amounts.collect(),
        }
    }

    fn label(&self, key: &str) -> Option<&str> {
        let label = self.labels.iter().find(|(known, _)| known == key);
        label.map(|(_, value)| value.as_str())
    }
}

/// The requirements that a pod has of its node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeRequirements {
    selector: BTreeMap<String, String>,
    /// The terms of the required affinity, of which one has to match; None without one.
    terms: Option<Vec<Vec<NodeRequirement>>>,
    tolerations: Vec<Toleration>,
    requests: Resources,
}

#[derive(Clone, Debug, PartialEq)]
struct NodeRequirement {
    /// The key; none for the node's name.
    label: Option<String>,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Value(Operator),
    Greater(i64),
    Less(i64),
    /// A requirement that is malformed matches no node.
    Nothing,
}

/// Why a pod does not fit a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeMisfit<'a> {
    /// The node lacks a label of the pod's `nodeSelector`.
    Selector(&'a str, &'a str),
    /// No term of the required node affinity matches the node.
    Affinity,
    /// The node has a taint that the pod does not tolerate.
    Taint(&'a Taint),
    /// The node is cordoned.
    Cordoned,
    /// The node would not have what the pod requests of a resource if it were empty.
    Resource(&'a str),
}

impl fmt::Display for NodeMisfit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Selector(key, value) => write!(f, "nodeSelector asks for label {key}={value}"),
            Self::Affinity => f.write_str("no term of the required node affinity matches it"),
            Self::Taint(Taint { key, value, effect }) if value.is_empty() => {
                write!(f, "taint {key}:{effect} is not tolerated")
            }
            Self::Taint(Taint { key, value, effect }) => {
                write!(f, "taint {key}={value}:{effect} is not tolerated")
            }
            Self::Cordoned => f.write_str("it is cordoned"),
            Self::Resource(name) => {
                write!(f, "the pod requests more {name} than is allocatable on it")
            }
        }
    }
}

/// Why nothing can be made of the requirements.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableRequirements {
    /// A field has another type.
    #[error(transparent)]
    Field(#[from] serde_json::Error),
    /// Each is looked at for each node.
    #[error(
        "it has {0} labels in nodeSelector, expressions in nodeAffinity and tolerations, more than {NODE_REQUIREMENTS}"
    )]
    TooMany(usize),
}

/// The taint that a cordoned node has, or gets soon (`pkg/controller/nodelifecycle`).
const CORDONED: &str = "node.kubernetes.io/unschedulable";

impl NodeRequirements {
    /// Reads the spec of a pod.
    ///
    /// # Errors
    ///
    /// A field has another type than that of a pod, so that the API server would refuse the pod, or it requires too much.
    pub fn read(pod: &JsonObject) -> Result<Self, UnreadableRequirements> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            node_selector: Option<BTreeMap<String, String>>,
            affinity: Option<Affinity>,
            tolerations: Option<Vec<Toleration>>,
        }
        let parts = ["nodeSelector", "affinity", "tolerations"]
            .map(|name| (name.to_owned(), pod.get(name).cloned()))
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let wire: Wire = serde_json::from_value(Value::Object(parts.collect()))?;
        let required = wire.affinity.and_then(|affinity| {
            let affinity = affinity.node_affinity?;
            affinity.required_during_scheduling_ignored_during_execution
        });
        let read = |terms: Vec<NodeSelectorTerm>| terms.iter().map(read_term).collect();
        let requirements = Self {
            selector: wire.node_selector.unwrap_or_default(),
            terms: required.map(|required| read(required.node_selector_terms)),
            tolerations: wire.tolerations.unwrap_or_default(),
            requests: pod_requests(pod),
        };
        match requirements.count() {
            count if count > NODE_REQUIREMENTS => Err(UnreadableRequirements::TooMany(count)),
            _ => Ok(requirements),
        }
    }

    fn count(&self) -> usize {
        // A term that requires nothing matches no node, and is looked at all the same.
        let of_terms = self.terms.iter().flatten().map(|term| term.len().max(1));
        self.selector.len() + of_terms.sum::<usize>() + self.tolerations.len()
    }

    /// Why a pod does not fit a node; None if it does.
    pub fn misfit<'a>(&'a self, node: &'a NodeFacts) -> Option<NodeMisfit<'a>> {
        let mut selector = self.selector.iter();
        if let Some((key, value)) = selector.find(|(key, value)| node.label(key) != Some(value)) {
            return Some(NodeMisfit::Selector(key, value));
        }
        let is_met = |term: &Vec<NodeRequirement>| {
            !term.is_empty() && term.iter().all(|requirement| requirement.is_met(node))
        };
        if self
            .terms
            .as_ref()
            .is_some_and(|terms| !terms.iter().any(is_met))
        {
            return Some(NodeMisfit::Affinity);
        }
        let mut taints = node.taints.iter();
        let repels = |taint: &&Taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute");
        if let Some(taint) = taints.find(|taint| repels(taint) && !self.tolerates(taint)) {
            return Some(NodeMisfit::Taint(taint));
        }
        if node.is_cordoned && !self.tolerates_cordon() {
            return Some(NodeMisfit::Cordoned);
        }
        let mut requests = self.requests.iter();
        let exceeds = |name: &str, amount: i128| {
            amount > node.allocatable.get(name).copied().unwrap_or_default()
        };
        let lacking = requests.find(|(name, amount)| exceeds(name, **amount));
        lacking.map(|(name, _)| NodeMisfit::Resource(name))
    }

    /// The same as `Toleration.ToleratesTaint` (`k8s.io/api/core/v1/toleration.go`).
    fn tolerates(&self, taint: &Taint) -> bool {
        let is_any = |wanted: Option<&str>, actual: &str| {
            wanted.is_none_or(|wanted| wanted.is_empty() || wanted == actual)
        };
        self.tolerations.iter().any(|toleration| {
            is_any(toleration.effect.as_deref(), &taint.effect)
                && is_any(toleration.key.as_deref(), &taint.key)
                && match toleration.operator.as_deref() {
                    Some("Exists") => true,
                    None | Some("" | "Equal") => {
                        toleration.value.as_deref().unwrap_or_default() == taint.value
                    }
                    Some(_) => false,
                }
        })
    }

    fn tolerates_cordon(&self) -> bool {
        self.tolerates(&Taint {
            key: CORDONED.to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        })
    }
}

impl NodeRequirement {
    fn read(requirement: &NodeSelectorRequirement, is_field: bool) -> Self {
        let mut values: Vec<_> = requirement
            .values
            .iter()
            .flatten()
            .map(|it| (&**it).into())
            .collect();
        let number = || match requirement.values.as_deref() {
            Some([number]) => number.parse().ok(),
            _ => None,
        };
        values.sort();
        // A field is the node's name alone, by these two operators (`nodeFieldSelectorRequirementsAsSelector`,
        // `k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go`).
        let test = match &*requirement.operator {
            "In" => Some(Test::Value(Operator::In(values))),
            "NotIn" => Some(Test::Value(Operator::NotIn(values))),
            _ if is_field => None,
            "Exists" => Some(Test::Value(Operator::Exists)),
            "DoesNotExist" => Some(Test::Value(Operator::DoesNotExist)),
            "Gt" => number().map(Test::Greater),
            "Lt" => number().map(Test::Less),
            _ => None,
        };
        let is_known = !is_field || requirement.key == "metadata.name";
        Self {
            label: (!is_field).then(|| requirement.key.clone()),
            test: test.filter(|_| is_known).unwrap_or(Test::Nothing),
        }
    }

    fn is_met(&self, node: &NodeFacts) -> bool {
        let value = match &self.label {
            Some(key) => node.label(key),
            None => Some(&*node.name),
        };
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.test {
            Test::Value(operator) => operator.matches(value),
            Test::Greater(least) => number().is_some_and(|number| number > *least),
            Test::Less(most) => number().is_some_and(|number| number < *most),
            Test::Nothing => false,
        }
    }
}

fn read_term(term: &NodeSelectorTerm) -> Vec<NodeRequirement> {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    labels
        .map(|requirement| NodeRequirement::read(requirement, false))
        .chain(fields.map(|requirement| NodeRequirement::read(requirement, true)))
        .collect()
}

/// The requests of a pod, as the scheduler counts it (`PodRequests`, `k8s.io/component-helpers/resource/helpers.go`), and one of
/// the pods that a node may have.
fn pod_requests(pod: &JsonObject) -> Resources {
    let mut running = Resources::new();
    for container in object::items(pod, "containers") {
        add(&mut running, &container_requests(container));
    }
    let (mut sidecars, mut starting) = (Resources::new(), Resources::new());
    for container in object::items(pod, "initContainers") {
        let mut own = container_requests(container);
        if object::text(container, "restartPolicy") == Some("Always") {
            add(&mut running, &own);
            add(&mut sidecars, &own);
            own = sidecars.clone();
        } else {
            add(&mut own, &sidecars);
        }
        raise(&mut starting, &own);
    }
    raise(&mut running, &starting);
    // The requests of the pod as a whole replace those of its containers.
    running.extend(container_requests(pod));
    if let Some(overhead) = object::inner(pod, "overhead") {
        add(&mut running, &amounts(overhead));
    }
    running.insert("pods".to_owned(), Quantity::from_milli(1000).nanos());
    running
}

/// Requests, and limits where a resource has no request.
fn container_requests(container: &JsonObject) -> Resources {
    let resources = object::inner(container, "resources");
    let part = |name: &str| {
        let part = resources.and_then(|resources| object::inner(resources, name));
        part.map(amounts).unwrap_or_default()
    };
    let mut requests = part("limits");
    requests.extend(part("requests"));
    requests
}

fn amounts(list: &JsonObject) -> Resources {
    let amounts = list.iter();
    let amounts =
        amounts.filter_map(|(name, value)| Some((name.clone(), Quantity::of(value)?.nanos())));
    amounts.collect()
}

fn add(sum: &mut Resources, amounts: &Resources) {
    for (name, amount) in amounts {
        let sum = sum.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
}

fn raise(most: &mut Resources, amounts: &Resources) {
    for (name, amount) in amounts {
        let most = most.entry(name.clone()).or_default();
        *most = (*most).max(*amount);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn node(wire: Value) -> NodeFacts {
        let mut node = json!({
            "metadata": {"name": "n1", "labels": {"zone": "a", "cpus": "8", "text": "x"}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        });
        node["spec"] = wire;
        NodeFacts::read(&serde_json::from_value(node).unwrap())
    }

    fn misfit(pod: &Value, wire: Value) -> Option<String> {
        let requirements = NodeRequirements::read(pod.as_object().unwrap()).unwrap();
        requirements
            .misfit(&node(wire))
            .map(|misfit| misfit.to_string())
    }

    fn affinity(term: Value) -> Value {
        let other = json!({"matchExpressions": [{"key": "none", "operator": "Exists"}]});
        let required = json!({"nodeSelectorTerms": Value::Array(vec![other, term])});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    }

    fn of_label(key: &str, operator: &str, values: &[&str]) -> Value {
        affinity(
            json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}),
        )
    }

    fn of_field(key: &str, operator: &str, values: &[&str]) -> Value {
        affinity(json!({"matchFields": [{"key": key, "operator": operator, "values": values}]}))
    }

    // BCJ-3
    #[rstest]
    #[case(json!({}), true)]
    #[case(json!({"nodeSelector": {"zone": "a"}}), true)]
    #[case(json!({"nodeSelector": {"zone": "b"}}), false)]
    #[case(json!({"nodeSelector": {"none": ""}}), false)]
    #[case(of_label("zone", "In", &["b", "a"]), true)]
    #[case(of_label("zone", "In", &["b"]), false)]
    #[case(of_label("zone", "NotIn", &["b"]), true)]
    #[case(of_label("zone", "NotIn", &["a"]), false)]
    #[case(of_label("none", "NotIn", &["a"]), true)]
    #[case(of_label("zone", "Exists", &[]), true)]
    #[case(of_label("none", "Exists", &[]), false)]
    #[case(of_label("zone", "DoesNotExist", &[]), false)]
    #[case(of_label("none", "DoesNotExist", &[]), true)]
    #[case(of_label("cpus", "Gt", &["7"]), true)]
    #[case(of_label("cpus", "Gt", &["8"]), false)]
    #[case(of_label("cpus", "Lt", &["9"]), true)]
    #[case(of_label("cpus", "Lt", &["8"]), false)]
    #[case(of_label("text", "Gt", &["1"]), false)]
    #[case(of_label("cpus", "Gt", &["1", "2"]), false)]
    #[case(of_label("cpus", "Near", &["8"]), false)]
    #[case(of_field("metadata.name", "In", &["n2", "n1"]), true)]
    #[case(of_field("metadata.name", "NotIn", &["n1"]), false)]
    #[case(of_field("metadata.name", "Exists", &[]), false)]
    #[case(of_field("metadata.uid", "In", &["n1"]), false)]
    #[case(affinity(json!({})), false)]
    #[case(affinity(json!({
        "matchExpressions": [{"key": "zone", "operator": "Exists"}],
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}],
    })), false)]
    #[case(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}), false)]
    #[case(json!({"affinity": {"nodeAffinity": {}}, "nodeSelector": null}), true)]
    fn labels_decide_as_for_the_scheduler(#[case] pod: Value, #[case] fits: bool) {
        assert_eq!(misfit(&pod, json!({})).is_none(), fits, "{pod}");
    }

    // BCJ-3, BCD-14
    #[rstest]
    #[case(json!([]), "NoSchedule", false)]
    #[case(json!([]), "NoExecute", false)]
    #[case(json!([]), "PreferNoSchedule", true)]
    #[case(json!([{"operator": "Exists"}]), "NoSchedule", true)]
    #[case(json!([{"key": "a", "operator": "Exists"}]), "NoExecute", true)]
    #[case(json!([{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]), "NoExecute", false)]
    #[case(json!([{"key": "a", "value": "1"}]), "NoSchedule", true)]
    #[case(json!([{"key": "a", "operator": "Equal", "value": "2"}]), "NoSchedule", false)]
    #[case(json!([{"key": "b", "operator": "Exists"}]), "NoSchedule", false)]
    fn taints_keep_pods_away_that_do_not_tolerate_them(
        #[case] tolerations: Value,
        #[case] effect: &str,
        #[case] fits: bool,
    ) {
        let pod = json!({"tolerations": tolerations});
        let taint = json!({"taints": [{"key": "a", "value": "1", "effect": effect}]});
        assert_eq!(
            misfit(&pod, taint).is_none(),
            fits,
            "{tolerations} {effect}"
        );
    }

    // BCJ-3
    #[test]
    fn a_cordoned_node_takes_what_tolerates_its_taint() {
        let cordoned = json!({"unschedulable": true});
        let because = misfit(&json!({}), cordoned.clone());
        assert_eq!(because.as_deref(), Some("it is cordoned"));
        let toleration = json!({"key": CORDONED, "operator": "Exists", "effect": "NoSchedule"});
        assert_eq!(
            misfit(&json!({"tolerations": [toleration]}), cordoned),
            None
        );
    }

    // BCJ-3
    #[rstest]
    #[case(json!({"containers": [{"resources": {"requests": {"cpu": "4", "memory": "8Gi"}}}]}), None)]
    #[case(json!({"containers": [{"resources": {"requests": {"cpu": "3"}}}, {"resources": {"requests": {"cpu": 1.001}}}]}), Some("cpu"))]
    #[case(json!({"containers": [{"resources": {"limits": {"cpu": "5"}}}]}), Some("cpu"))]
    #[case(json!({"containers": [{"resources": {"limits": {"cpu": "5"}, "requests": {"cpu": "1"}}}]}), None)]
    #[case(json!({"initContainers": [{"resources": {"requests": {"cpu": "4"}}}], "containers": [{"resources": {"requests": {"cpu": "1"}}}]}), None)]
    #[case(json!({"initContainers": [{"resources": {"requests": {"cpu": "5"}}}]}), Some("cpu"))]
    #[case(json!({"initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}],
        "containers": [{"resources": {"requests": {"cpu": "4"}}}]}), Some("cpu"))]
    #[case(json!({"initContainers": [{"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
        {"resources": {"requests": {"cpu": "4"}}}]}), Some("cpu"))]
    #[case(json!({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}), Some("nvidia.com/gpu"))]
    #[case(json!({"containers": [{"resources": {"requests": {"memory": "7Gi"}}}], "overhead": {"memory": "2Gi"}}), Some("memory"))]
    #[case(json!({"containers": [{"resources": {"requests": {"cpu": "5"}}}], "resources": {"requests": {"cpu": "2"}}}), None)]
    fn requests_fit_an_empty_node(#[case] pod: Value, #[case] lacking: Option<&str>) {
        let expected =
            lacking.map(|name| format!("the pod requests more {name} than is allocatable on it"));
        assert_eq!(misfit(&pod, json!({})), expected, "{pod}");
    }

    #[test]
    fn a_spec_of_another_type_is_an_error() {
        let pod = json!({"tolerations": "all"});
        assert!(NodeRequirements::read(pod.as_object().unwrap()).is_err());
    }
}
