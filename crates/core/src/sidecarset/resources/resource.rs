//! Processors and memory: the units in which Kubernetes counts them, and what a container has of them.

use std::fmt;

use super::expression::{Ratio, exactly};
use crate::workload::JsonObject;
use crate::workload::object::inner;
use crate::workload::quantity::Quantity;

/// A resource that is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceKind {
    /// Processors, in thousandths.
    Cpu,
    /// Memory, in bytes.
    Memory,
}

impl ResourceKind {
    pub(super) const ALL: [Self; 2] = [Self::Cpu, Self::Memory];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    /// An amount in whole thousandths of a processor, or in whole bytes, rounded up: as Kubernetes rounds the resources of a
    /// container (`SetDefaults_ResourceList`, `pkg/apis/core/v1/defaults.go`), and so that a little does not become nothing.
    /// None if there are more than Kubernetes counts.
    pub(super) fn units(self, amount: Ratio) -> Option<i64> {
        let numerator = match self {
            Self::Cpu => amount.numer().checked_mul(1000)?,
            Self::Memory => *amount.numer(),
        };
        // The rest is never negative then, so what is below zero is rounded up too.
        let whole = numerator.div_euclid(*amount.denom());
        let rest = numerator.rem_euclid(*amount.denom());
        i64::try_from(whole + i128::from(rest != 0)).ok()
    }

    pub(super) fn quantity(self, units: i64) -> Quantity {
        match self {
            Self::Cpu => Quantity::from_milli(units),
            Self::Memory => Quantity::from_bytes(units),
        }
    }

    /// The amount in a list of limits or requests.
    pub(super) fn amount(self, list: Option<&JsonObject>) -> Option<Ratio> {
        let amount = list?.get(self.name()).filter(|amount| !amount.is_null())?;
        Some(exactly(&Quantity::of(amount)?))
    }

    pub(super) fn limit_of(self, container: &JsonObject) -> Option<Ratio> {
        self.amount(inner(inner(container, "resources")?, "limits"))
    }

    /// The request of a container: its limit if it has one and says nothing else, as the API server fills it in
    /// (`SetDefaults_Pod`, in the same file).
    pub(super) fn request_of(self, container: &JsonObject) -> Ratio {
        let resources = inner(container, "resources");
        let request = self
            .amount(resources.and_then(|resources| inner(resources, "requests")))
            .or_else(|| self.limit_of(container));
        request.unwrap_or(Ratio::from_integer(0))
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
