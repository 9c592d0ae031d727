//! Resources of a sidecar that are computed from those of a pod's own containers, as the pod is created: by an expression
//! for each limit and each request, whose variable is what these containers have together (`resourcesPolicy`).
//!
//! Whatever a pod has, something follows for it: a limit or a request that an expression does not give is left out or is
//! the nearest one that Kubernetes accepts, and a [`ResourceRemark`] says so.

mod expression;
mod parser;
#[cfg(test)]
mod tests;

use std::fmt;

use leadsman_api::limits;
use regex::{Regex, RegexBuilder};
use serde_json::Value as Json;

use self::expression::{Expression, Operation, Ratio, Value, is_small};
use super::container::ContainerKind;
use crate::cluster::FieldErrors;
use crate::workload::JsonObject;
use crate::workload::object::{inner, text};
use crate::workload::quantity::Quantity;

/// Bytes that a regular expression may take once it is compiled.
const COMPILED_REGEX: usize = 1 << 20;
const NANOS: i128 = 1_000_000_000;

/// How the resources of a sidecar are computed.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourcesPolicy {
    targets: TargetNames,
    mode: TargetsMode,
    limits: Expressions,
    requests: Expressions,
}

/// The containers of a pod that resources are computed from, by an expression that need not match a name as a whole.
#[derive(Clone, Debug)]
struct TargetNames(Regex);

impl PartialEq for TargetNames {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// What several containers have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetsMode {
    /// The sum.
    Sum,
    /// The most that one of them has.
    Max,
}

/// An expression for each resource.
#[derive(Clone, Debug, Default, PartialEq)]
struct Expressions {
    cpu: Option<Expression>,
    memory: Option<Expression>,
}

/// A resource that is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Processors, in thousandths.
    Cpu,
    /// Memory, in bytes.
    Memory,
}

/// Resources for a sidecar in a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComputedResources {
    limits: JsonObject,
    requests: JsonObject,
    /// Where they are not what the set says.
    pub remarks: Vec<ResourceRemark>,
}

/// What a sidecar gets instead of what an expression says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceRemark {
    /// There is nothing to compute from.
    #[error("resources as if the pod had no containers: the name of none matches {0:?}")]
    NoTarget(String),
    /// A limit that would be larger than any.
    #[error("no limit of {resource}: container {target:?} of the pod has none")]
    Unlimited {
        /// Of this resource.
        resource: Resource,
        /// A container without a limit.
        target: String,
    },
    /// A limit that is none: the kubelet takes 0 for that.
    #[error("no limit of {resource}: {expression:?} is {value} for this pod")]
    NoLimit {
        /// Of this resource.
        resource: Resource,
        /// By this expression.
        expression: String,
        /// The amount.
        value: String,
    },
    /// Less than nothing.
    #[error("a request of 0 {resource}: {expression:?} is {value} for this pod")]
    NegativeRequest {
        /// Of this resource.
        resource: Resource,
        /// By this expression.
        expression: String,
        /// The amount.
        value: String,
    },
    /// Above the limit, which Kubernetes refuses.
    #[error(
        "a request of {limit} {resource}, which is its limit: {expression:?} is {value} for this pod"
    )]
    RequestAboveLimit {
        /// Of this resource.
        resource: Resource,
        /// By this expression.
        expression: String,
        /// The amount.
        value: String,
        /// What is requested.
        limit: String,
    },
    /// More than Kubernetes can count.
    #[error("no {what} of {resource}: {expression:?} is too large for this pod")]
    TooLarge {
        /// Limit or request.
        what: &'static str,
        /// Of this resource.
        resource: Resource,
        /// By this expression.
        expression: String,
    },
}

impl Resource {
    const ALL: [Self; 2] = [Self::Cpu, Self::Memory];

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    /// An amount in whole thousandths of a processor, or in whole bytes, rounded up: as Kubernetes rounds the resources of a
    /// container (`SetDefaults_ResourceList`, `pkg/apis/core/v1/defaults.go`), and so that a little does not become nothing.
    /// None if there are more than Kubernetes counts.
    fn units(self, amount: Ratio) -> Option<i64> {
        let numerator = match self {
            Self::Cpu => amount.numer().checked_mul(1000)?,
            Self::Memory => *amount.numer(),
        };
        let whole = numerator.div_euclid(*amount.denom());
        let rest = numerator.rem_euclid(*amount.denom());
        i64::try_from(whole + i128::from(rest != 0)).ok()
    }

    fn quantity(self, units: i64) -> Quantity {
        match self {
            Self::Cpu => Quantity::from_milli(units),
            Self::Memory => Quantity::from_bytes(units),
        }
    }

    /// The amount in a list of limits or requests.
    fn amount(self, list: Option<&JsonObject>) -> Option<Ratio> {
        let amount = list?.get(self.name()).filter(|amount| !amount.is_null())?;
        Some(Ratio::new(Quantity::of(amount)?.nanos(), NANOS))
    }

    fn limit_of(self, container: &JsonObject) -> Option<Ratio> {
        self.amount(inner(inner(container, "resources")?, "limits"))
    }

    /// What a container requests: its limit if it has one and says nothing else, as the API server fills it in
    /// (`SetDefaults_Pod`, in the same file).
    fn request_of(self, container: &JsonObject) -> Ratio {
        let resources = inner(container, "resources");
        let request = self.amount(resources.and_then(|resources| inner(resources, "requests")));
        let request = request.or_else(|| self.limit_of(container));
        request.unwrap_or(Ratio::from_integer(0))
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ResourcesPolicy {
    /// Reads the policy of a sidecar, as it was written; None if it has none that could be used.
    pub(super) fn read(
        sidecar: &JsonObject,
        kind: ContainerKind,
        report: &mut FieldErrors<'_>,
    ) -> Option<Self> {
        let policy = inner(sidecar, "resourcesPolicy")?;
        let mut report = report.field("resourcesPolicy");
        if kind == ContainerKind::Init {
            report.add(
                "is for sidecars alone, not for an init container that ends before the pod's containers start: set \
                 restartPolicy: Always, or resources",
            );
        }
        if has_amounts(sidecar) {
            report
                .add("cannot be set beside limits or requests in resources: remove one of the two");
        }
        let mode = match text(policy, "targetContainersMode") {
            Some("sum") => Some(TargetsMode::Sum),
            Some("max") => Some(TargetsMode::Max),
            other => {
                let other = other.unwrap_or_default();
                let message = format!("{other:?} is not one of sum, max");
                report.field("targetContainersMode").add(message);
                None
            }
        };
        let targets = TargetNames::read(policy, &mut report.field("targetContainersNameRegex"));
        let mut report = report.field("resourcesExpr");
        let expressions = inner(policy, "resourcesExpr");
        let mut read = |field| {
            let list = expressions.and_then(|expressions| inner(expressions, field));
            list.map(|list| Expressions::read(list, &mut report.field(field)))
        };
        let (limits, requests) = (read("limits"), read("requests"));
        if limits.is_none() && requests.is_none() {
            report.add("has neither limits nor requests: set one of them");
        }
        Some(Self {
            targets: targets?,
            mode: mode?,
            limits: limits.unwrap_or_default(),
            requests: requests.unwrap_or_default(),
        })
    }

    /// Resources for a sidecar in a pod with these containers, of which those count whose names match.
    ///
    /// A limit that one of them lacks is more than any: the sidecar then has none either, unless the expression bounds it
    /// or does not depend on the pod. A request that one lacks is 0. A pod without such a container is one whose containers
    /// request nothing and have no limits.
    pub fn compute<'a>(
        &self,
        containers: impl IntoIterator<Item = &'a JsonObject>,
    ) -> ComputedResources {
        let containers = containers.into_iter();
        let targets = containers.filter(|container| {
            let name = text(container, "name").unwrap_or_default();
            self.targets.0.is_match(name)
        });
        let targets: Vec<_> = targets.collect();
        let mut computed = ComputedResources::default();
        if targets.is_empty() {
            let expression = self.targets.0.as_str().to_owned();
            computed.remarks.push(ResourceRemark::NoTarget(expression));
        }
        for resource in Resource::ALL {
            let limit = self.limits.of(resource).and_then(|expression| {
                let limit = self.limit(resource, expression, &targets);
                limit.map_err(|remark| computed.remarks.extend(remark)).ok()
            });
            if let Some(limit) = limit {
                computed
                    .limits
                    .insert(resource.name().to_owned(), amount(resource, limit));
            }
            let Some(expression) = self.requests.of(resource) else {
                continue;
            };
            let (request, remark) = self.request(resource, expression, &targets, limit);
            computed.remarks.extend(remark);
            if let Some(request) = request {
                computed
                    .requests
                    .insert(resource.name().to_owned(), amount(resource, request));
            }
        }
        computed
    }

    /// A limit, or why there is none: without a remark if there is no target, which another remark says.
    fn limit(
        &self,
        resource: Resource,
        expression: &Expression,
        targets: &[&JsonObject],
    ) -> Result<i64, Option<ResourceRemark>> {
        let limits: Option<Vec<_>> = targets
            .iter()
            .map(|target| resource.limit_of(target))
            .collect();
        let variable = match limits.filter(|limits| !limits.is_empty()) {
            Some(limits) => self.mode.of(&limits).map(Value::Exactly),
            None => Some(Value::Unlimited),
        };
        let too_large = || Some(ResourceRemark::too_large("limit", resource, expression));
        let value = variable.and_then(|variable| expression.evaluate(variable));
        let Value::Exactly(value) = value.ok_or_else(too_large)? else {
            let mut targets = targets.iter();
            let target = targets.find(|target| resource.limit_of(target).is_none());
            return Err(target.map(|target| ResourceRemark::Unlimited {
                resource,
                target: text(target, "name").unwrap_or_default().to_owned(),
            }));
        };
        let units = resource.units(value).ok_or_else(too_large)?;
        if units <= 0 {
            return Err(Some(ResourceRemark::NoLimit {
                resource,
                expression: expression.text.clone(),
                value: resource.quantity(units).to_string(),
            }));
        }
        Ok(units)
    }

    /// A request that is not above the limit.
    fn request(
        &self,
        resource: Resource,
        expression: &Expression,
        targets: &[&JsonObject],
        limit: Option<i64>,
    ) -> (Option<i64>, Option<ResourceRemark>) {
        let requests: Vec<_> = targets
            .iter()
            .map(|target| resource.request_of(target))
            .collect();
        let value = self.mode.of(&requests).map(Value::Exactly);
        let value = value.and_then(|variable| expression.evaluate(variable));
        let units = match value {
            Some(Value::Exactly(value)) => resource.units(value),
            _ => None,
        };
        let Some(units) = units else {
            let remark = ResourceRemark::too_large("request", resource, expression);
            return (None, Some(remark));
        };
        let value = || resource.quantity(units).to_string();
        let expression = || expression.text.clone();
        match limit {
            _ if units < 0 => {
                let (expression, value) = (expression(), value());
                let remark = ResourceRemark::NegativeRequest {
                    resource,
                    expression,
                    value,
                };
                (Some(0), Some(remark))
            }
            Some(limit) if units > limit => {
                let remark = ResourceRemark::RequestAboveLimit {
                    resource,
                    expression: expression(),
                    value: value(),
                    limit: resource.quantity(limit).to_string(),
                };
                (Some(limit), Some(remark))
            }
            _ => (Some(units), None),
        }
    }
}

impl ResourceRemark {
    fn too_large(what: &'static str, resource: Resource, expression: &Expression) -> Self {
        Self::TooLarge {
            what,
            resource,
            expression: expression.text.clone(),
        }
    }
}

impl ComputedResources {
    /// Gives them to a container.
    pub fn write(self, container: &mut JsonObject) {
        for (list, amounts) in [("limits", self.limits), ("requests", self.requests)] {
            if amounts.is_empty() {
                continue;
            }
            let resources = container
                .entry("resources")
                .or_insert_with(|| JsonObject::new().into());
            if let Some(resources) = resources.as_object_mut() {
                resources.insert(list.to_owned(), amounts.into());
            }
        }
    }
}

impl TargetNames {
    fn read(policy: &JsonObject, report: &mut FieldErrors<'_>) -> Option<Self> {
        let expression = policy.get("targetContainersNameRegex");
        let expression = expression.and_then(Json::as_str).unwrap_or(".*");
        report.at_most_chars(expression, limits::TARGETS_REGEX);
        if expression.is_empty() {
            report.add("must not be empty: .* matches every name");
            return None;
        }
        let mut builder = RegexBuilder::new(expression);
        let compiled = builder.size_limit(COMPILED_REGEX).build();
        let compiled = compiled.map_err(|error| {
            let error = error.to_string();
            let error = error.lines().last().unwrap_or_default();
            format!("{expression:?} is not a regular expression: {error}")
        });
        report.check(compiled).map(Self)
    }
}

impl TargetsMode {
    /// None if it is too large to be calculated with.
    fn of(self, amounts: &[Ratio]) -> Option<Ratio> {
        let none = Ratio::from_integer(0);
        let mut amounts = amounts.iter().copied();
        let together = match self {
            Self::Sum => {
                amounts.try_fold(none, |sum, amount| Operation::Add.of_numbers(sum, amount))
            }
            Self::Max => Some(amounts.max().unwrap_or(none)),
        };
        together.filter(is_small)
    }
}

impl Expressions {
    fn read(list: &JsonObject, report: &mut FieldErrors<'_>) -> Self {
        let mut read = |resource: Resource| {
            // An empty one is none.
            let expression = text(list, resource.name())?;
            let mut report = report.field(resource.name());
            report.at_most_chars(expression, limits::EXPRESSION);
            let parsed = Expression::parse(expression, resource.name());
            report.check(parsed.map_err(|error| {
                format!("{expression:?} is not an expression of {resource}: {error}")
            }))
        };
        Self {
            cpu: read(Resource::Cpu),
            memory: read(Resource::Memory),
        }
    }

    fn of(&self, resource: Resource) -> Option<&Expression> {
        match resource {
            Resource::Cpu => self.cpu.as_ref(),
            Resource::Memory => self.memory.as_ref(),
        }
    }
}

/// Whether a container has limits or requests.
fn has_amounts(container: &JsonObject) -> bool {
    let resources = inner(container, "resources").into_iter();
    let mut lists =
        resources.flat_map(|resources| ["limits", "requests"].map(|list| inner(resources, list)));
    lists.any(|list| list.is_some_and(|list| !list.is_empty()))
}

fn amount(resource: Resource, units: i64) -> Json {
    resource.quantity(units).to_string().into()
}
