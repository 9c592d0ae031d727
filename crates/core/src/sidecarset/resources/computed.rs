//! The resources that follow from a policy for a pod, and where they are not what the set says.

use serde_json::{Value as Json, json};

use super::expression::{Expression, ExpressionValue, Operation, Ratio, is_small};
use super::{ResourceKind, ResourcesFormula, TargetsMode};
use crate::workload::JsonObject;
use crate::workload::object::{inner, text};

/// Resources for a sidecar in a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComputedResources {
    pub(super) limits: JsonObject,
    pub(super) requests: JsonObject,
    /// Remarks on amounts that are not what the set says.
    pub remarks: Vec<ResourceRemark>,
}

/// A difference between what a sidecar gets and what an expression says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceRemark {
    /// No container of the pod matches, so there is nothing to compute from.
    #[error("resources as if the pod had no containers: the name of none matches {0:?}")]
    NoTarget(String),
    /// The pod bounds its containers together.
    #[error(
        "no limit and no request of {0}: the pod has resources of its own, for all its containers"
    )]
    OfThePod(ResourceKind),
    /// A limit that would be larger than any.
    #[error("no limit of {resource}: container {target:?} of the pod has none")]
    Unlimited {
        /// The resource.
        resource: ResourceKind,
        /// A container without a limit.
        target: String,
    },
    /// The kubelet treats a limit of 0 as unlimited.
    #[error("no limit of {resource}: {expression:?} is {value} for this pod")]
    NoLimit {
        /// The resource.
        resource: ResourceKind,
        /// The expression.
        expression: String,
        /// The amount.
        value: String,
    },
    /// A request of less than nothing.
    #[error("a request of 0 {resource}: {expression:?} is {value} for this pod")]
    NegativeRequest {
        /// The resource.
        resource: ResourceKind,
        /// The expression.
        expression: String,
        /// The amount.
        value: String,
    },
    /// A request above the limit, which Kubernetes refuses.
    #[error(
        "a request of {limit} {resource}, which is its limit: {expression:?} is {value} for this pod"
    )]
    RequestAboveLimit {
        /// The resource.
        resource: ResourceKind,
        /// The expression.
        expression: String,
        /// The amount.
        value: String,
        /// The limit, which is requested instead.
        limit: String,
    },
    /// An amount above what Kubernetes can count.
    #[error("no {what} of {resource}: {expression:?} is too large for this pod")]
    TooLarge {
        /// Limit or request.
        what: &'static str,
        /// The resource.
        resource: ResourceKind,
        /// The expression.
        expression: String,
    },
}

impl ResourcesFormula {
    /// Resources for a sidecar in a pod with these containers, of which those count whose names match.
    ///
    /// A limit that one of them lacks is more than any: the sidecar then has none either, unless the expression bounds it
    /// or does not depend on the pod. A request that one lacks is 0. A pod without such a container is one whose containers
    /// request nothing and have no limits.
    ///
    /// Where the pod itself has limits or requests of a resource (`spec.resources`), which its containers share, nothing
    /// follows for that resource: Kubernetes refuses containers that request more than the pod, or have a higher limit.
    pub fn compute<'a>(
        &self,
        containers: impl IntoIterator<Item = &'a JsonObject>,
        of_the_pod: Option<&JsonObject>,
    ) -> ComputedResources {
        let containers = containers.into_iter();
        let targets: Vec<_> = containers
            .filter(|container| {
                let name = text(container, "name").unwrap_or_default();
                self.targets.0.is_match(name)
            })
            .collect();
        let mut computed = ComputedResources::default();
        if targets.is_empty() {
            let expression = self.targets.0.as_str().to_owned();
            computed.remarks.push(ResourceRemark::NoTarget(expression));
        }
        for resource in ResourceKind::ALL {
            if !self.is_computed(resource) {
                continue;
            }
            // Resources of the pod as a whole (KEP-2837).
            if is_listed(resource, of_the_pod) {
                computed.remarks.push(ResourceRemark::OfThePod(resource));
                continue;
            }
            // The limit comes before the request, which must not exceed it.
            let limit = self.limits.expression_for(resource).and_then(|expression| {
                let limit = self.limit(resource, expression, &targets);
                limit.map_err(|remark| computed.remarks.extend(remark)).ok()
            });
            if let Some(limit) = limit {
                computed
                    .limits
                    .insert(resource.name().to_owned(), amount(resource, limit));
            }
            let Some(expression) = self.requests.expression_for(resource) else {
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

    fn is_computed(&self, resource: ResourceKind) -> bool {
        let lists = [&self.limits, &self.requests];
        lists
            .iter()
            .any(|list| list.expression_for(resource).is_some())
    }

    /// A limit, or why there is none: without a remark if there is no target, which another remark says.
    fn limit(
        &self,
        resource: ResourceKind,
        expression: &Expression,
        targets: &[&JsonObject],
    ) -> Result<i64, Option<ResourceRemark>> {
        let limits: Option<Vec<_>> = targets
            .iter()
            .map(|target| resource.limit_of(target))
            .collect();
        let variable = match limits.filter(|limits| !limits.is_empty()) {
            Some(limits) => self.mode.of(&limits).map(ExpressionValue::Exactly),
            None => Some(ExpressionValue::Unlimited),
        };
        let too_large = || Some(ResourceRemark::too_large("limit", resource, expression));
        let value = variable.and_then(|variable| expression.evaluate(variable));
        let ExpressionValue::Exactly(value) = value.ok_or_else(too_large)? else {
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
        resource: ResourceKind,
        expression: &Expression,
        targets: &[&JsonObject],
        limit: Option<i64>,
    ) -> (Option<i64>, Option<ResourceRemark>) {
        let requests: Vec<_> = targets
            .iter()
            .map(|target| resource.request_of(target))
            .collect();
        let value = self
            .mode
            .of(&requests)
            .map(ExpressionValue::Exactly)
            .and_then(|variable| expression.evaluate(variable));
        let units = match value {
            Some(ExpressionValue::Exactly(value)) => resource.units(value),
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
            // The API server refuses a request above its limit
            // (`ValidateContainerResourceRequirements`, `pkg/apis/core/validation/validation.go`).
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

impl TargetsMode {
    /// The amount of several containers together; None if it is too large to be calculated with.
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

impl ResourceRemark {
    fn too_large(what: &'static str, resource: ResourceKind, expression: &Expression) -> Self {
        Self::TooLarge {
            what,
            resource,
            expression: expression.text.clone(),
        }
    }
}

impl ComputedResources {
    /// Writes the computed resources into a container.
    pub fn write(self, container: &mut JsonObject) {
        for (list, amounts) in [("limits", self.limits), ("requests", self.requests)] {
            if amounts.is_empty() {
                continue;
            }
            let resources = container.entry("resources").or_insert(Json::Null);
            match resources.as_object_mut() {
                Some(resources) => drop(resources.insert(list.to_owned(), amounts.into())),
                None => *resources = json!({list: amounts}),
            }
        }
    }
}

/// Whether the resources of a pod have a limit or a request of this one.
fn is_listed(resource: ResourceKind, of_the_pod: Option<&JsonObject>) -> bool {
    of_the_pod.is_some_and(|resources| {
        let mut lists = ["limits", "requests"]
            .map(|list| inner(resources, list))
            .into_iter();
        lists.any(|list| list.is_some_and(|list| list.contains_key(resource.name())))
    })
}

fn amount(resource: ResourceKind, units: i64) -> Json {
    resource.quantity(units).to_string().into()
}
