//! Resources of a sidecar that are computed from those of a pod's own containers, as the pod is created: by an expression
//! for each limit and each request, whose variable is what these containers have together (`resourcesPolicy`).
//!
//! Whatever a pod has, something follows for it: a limit or a request that an expression does not give is left out or is
//! the nearest one that Kubernetes accepts, and a [`ResourceRemark`] says so.
//!
//! | module | holds |
//! |---|---|
//! | here | a policy, parsed |
//! | `parser`, `expression` | an expression, and its value |
//! | `resource` | processors and memory: their units, and what a container has of them |
//! | `computed` | what follows for a pod |
//!
//! One more function would be a name in `Parser::named` and an `Operation`; rule SCS-76, `docs/sidecarset.md` and the fields of
//! `ResourceExpressions` (`leadsman-api`) name them all.

mod computed;
mod expression;
mod parser;
mod resource;
#[cfg(test)]
mod tests;

use leadsman_api::limits;
use regex::{Regex, RegexBuilder};
use serde_json::Value as Json;

pub use self::computed::{ComputedResources, ResourceRemark};
use self::expression::Expression;
pub use self::resource::ResourceKind;
use crate::cluster::FieldErrors;
use crate::workload::JsonObject;
use crate::workload::object::{inner, text};

/// Bytes that a regular expression may take once it is compiled.
const COMPILED_REGEX: usize = 1 << 20;

/// How the resources of a sidecar are computed.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourcesFormula {
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

/// The amount that several containers have together.
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

impl ResourcesFormula {
    /// Reads the policy of a sidecar, as it was written; None if it has none that could be used.
    pub(super) fn from_wire(sidecar: &JsonObject, report: &mut FieldErrors<'_>) -> Option<Self> {
        let policy = inner(sidecar, "resourcesPolicy")?;
        let mut report = report.field("resourcesPolicy");
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
        let targets =
            TargetNames::from_wire(policy, &mut report.field("targetContainersNameRegex"));
        let mut report = report.field("resourcesExpr");
        let expressions = inner(policy, "resourcesExpr");
        let mut read = |field| {
            let list = expressions.and_then(|expressions| inner(expressions, field));
            list.map(|list| Expressions::from_wire(list, &mut report.field(field)))
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
}

impl TargetNames {
    fn from_wire(policy: &JsonObject, report: &mut FieldErrors<'_>) -> Option<Self> {
        let expression = policy
            .get("targetContainersNameRegex")
            .and_then(Json::as_str)
            .unwrap_or(".*");
        if expression.is_empty() {
            report.add("must not be empty: .* matches every name");
            return None;
        }
        if !report.at_most_chars(expression, limits::TARGETS_REGEX) {
            return None;
        }
        let mut builder = RegexBuilder::new(expression);
        let compiled = builder.size_limit(COMPILED_REGEX).build().map_err(|error| {
            let whole = error.to_string();
            let error = whole.lines().last().unwrap_or_default();
            format!("{expression:?} is not a regular expression: {error}")
        });
        report.check(compiled).map(Self)
    }
}

impl Expressions {
    fn from_wire(list: &JsonObject, report: &mut FieldErrors<'_>) -> Self {
        let mut read = |resource: ResourceKind| {
            // An empty one is none.
            let expression = text(list, resource.name())?;
            let mut report = report.field(resource.name());
            // Not read: the tree of an expression is as deep as the expression is long, and what a CRD of OpenKruise lets in,
            // or a revision has, could be as long as an object.
            if !report.at_most_chars(expression, limits::EXPRESSION) {
                return None;
            }
            let parsed = parser::parse(expression, resource.name());
            report.check(parsed.map_err(|error| {
                format!("{expression:?} is not an expression of {resource}: {error}")
            }))
        };
        Self {
            cpu: read(ResourceKind::Cpu),
            memory: read(ResourceKind::Memory),
        }
    }

    fn expression_for(&self, resource: ResourceKind) -> Option<&Expression> {
        match resource {
            ResourceKind::Cpu => self.cpu.as_ref(),
            ResourceKind::Memory => self.memory.as_ref(),
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
