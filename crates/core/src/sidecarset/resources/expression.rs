//! An expression, and what it is for an amount.
//!
//! Values are exact: a third of something is a third, and nothing is rounded before the end. Multiplying a quantity by a
//! quantity, or dividing by one, is refused where an expression is parsed; so is dividing by zero, since what something is
//! divided by is made of numbers alone. So an expression has a value for every amount, but for one that is too large.

use num_rational::Ratio as ExactRatio;
use num_traits::{CheckedAdd, CheckedDiv, CheckedMul, CheckedSub};

use crate::workload::quantity::Quantity;

/// A number, exactly.
pub(super) type Ratio = ExactRatio<i128>;

/// Numerators and denominators are not above this, so that the negative of a number is one too.
const MOST: u128 = 10_u128.pow(36);

/// An expression that was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expression {
    /// The expression as it was written.
    pub(super) text: String,
    pub(super) term: Term,
}

/// A part of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    /// A number or a quantity.
    Constant(Ratio),
    /// The amount that the pod's containers have.
    Variable,
    /// The negative of a part.
    Negative(Box<Term>),
    /// Two parts.
    Combined(Operation, Box<Term>, Box<Term>),
}

/// An operation on two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Max,
    Min,
}

/// The value of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpressionValue {
    /// A finite value, exactly.
    Exactly(Ratio),
    /// A value above any amount: a limit that there is not.
    Unlimited,
    /// Nothing that can be told, as the difference of two limits that there are not.
    Undefined,
}

impl Expression {
    /// Evaluates it for this value of its variable; None if that, or something on the way, is too large.
    pub(super) fn evaluate(&self, variable: ExpressionValue) -> Option<ExpressionValue> {
        self.term.evaluate(variable)
    }
}

impl Term {
    pub(super) fn evaluate(&self, variable: ExpressionValue) -> Option<ExpressionValue> {
        Some(match self {
            Self::Constant(value) => ExpressionValue::Exactly(*value),
            Self::Variable => variable,
            Self::Negative(part) => match part.evaluate(variable)? {
                ExpressionValue::Exactly(value) => ExpressionValue::Exactly(-value),
                ExpressionValue::Unlimited | ExpressionValue::Undefined => {
                    ExpressionValue::Undefined
                }
            },
            Self::Combined(operation, left, right) => {
                let left = left.evaluate(variable)?;
                operation.apply(left, right.evaluate(variable)?)?
            }
        })
    }

    /// Whether it depends on the pod's containers.
    pub(super) fn has_variable(&self) -> bool {
        match self {
            Self::Constant(_) => false,
            Self::Variable => true,
            Self::Negative(part) => part.has_variable(),
            Self::Combined(_, left, right) => left.has_variable() || right.has_variable(),
        }
    }
}

impl Operation {
    fn apply(self, left: ExpressionValue, right: ExpressionValue) -> Option<ExpressionValue> {
        use ExpressionValue::{Exactly, Undefined, Unlimited};
        let zero = Ratio::from_integer(0);
        Some(match (self, left, right) {
            (_, Exactly(left), Exactly(right)) => Exactly(self.of_numbers(left, right)?),
            (Self::Min, Unlimited, other) | (Self::Min, other, Unlimited) => other,
            (Self::Add | Self::Max, Unlimited, Exactly(_) | Unlimited)
            | (Self::Add | Self::Max, Exactly(_), Unlimited)
            | (Self::Subtract, Unlimited, Exactly(_)) => Unlimited,
            (Self::Multiply | Self::Divide, Unlimited, Exactly(factor))
            | (Self::Multiply, Exactly(factor), Unlimited)
                // Zero times what has no bound is nothing that can be told.
                if factor > zero =>
            {
                Unlimited
            }
            _ => Undefined,
        })
    }

    /// Applies the operation to two numbers; None if the result is too large.
    pub(super) fn of_numbers(self, left: Ratio, right: Ratio) -> Option<Ratio> {
        let value = match self {
            Self::Add => left.checked_add(&right),
            Self::Subtract => left.checked_sub(&right),
            Self::Multiply => left.checked_mul(&right),
            Self::Divide => left.checked_div(&right),
            Self::Max => Some(left.max(right)),
            Self::Min => Some(left.min(right)),
        }?;
        is_small(&value).then_some(value)
    }
}

/// A quantity, exactly.
pub(super) fn exactly(quantity: &Quantity) -> Ratio {
    Ratio::new(quantity.nanos(), 1_000_000_000)
}

/// Whether a number can be calculated with.
pub(super) fn is_small(value: &Ratio) -> bool {
    [value.numer(), value.denom()]
        .iter()
        .all(|part| part.unsigned_abs() <= MOST)
}
