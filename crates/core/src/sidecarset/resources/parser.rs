//! The grammar of expressions, as `OpenKruise` has it (`pkg/util/calculator/calculator.y`):
//!
//! ```text
//! expression := term (("+" | "-") term)*
//! term       := factor (("*" | "/") factor)*
//! factor     := constant | variable | "(" expression ")" | "-" factor
//!             | ("max" | "min") "(" expression "," expression ")"
//! constant   := a number (2, 0.5, 1e3), a percentage (50%), a quantity (50m, 100Mi)
//! ```
//!
//! The case of names does not matter, nor do blanks. What is refused here and not there: a text behind a number that is no
//! unit (`10x` is 0 there), and whatever would be an error for each pod. A number beside a quantity is one in the unit of
//! the resource, as in a pod: `cpu - 4` is about four processors.

use super::expression::{Expression, ExpressionValue, Operation, Ratio, Term, exactly, is_small};
use crate::workload::quantity::Quantity;

/// How deep an expression may nest. A parser that calls itself needs a bound.
const DEPTH: usize = 32;
/// Units of quantities. There is no `E`, which a number has in front of its exponent.
const UNITS: [&str; 11] = ["m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi"];

/// Why a text is not an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotAnExpression {
    #[error("{0:?} is neither a number, a percentage, nor a quantity with a unit up to P or Pi")]
    Constant(String),
    #[error("{name:?} is none of {variable}, max and min")]
    Name { name: String, variable: String },
    #[error("{found} stands at character {at} instead of {expected}")]
    Unexpected {
        found: String,
        at: usize,
        expected: &'static str,
    },
    #[error("it multiplies a quantity by a quantity: one of two factors must be a number")]
    ProductOfQuantities,
    #[error("it divides by a quantity: what something is divided by must be a number")]
    DivisionByQuantity,
    #[error("it divides by zero")]
    DivisionByZero,
    #[error("it nests more than {DEPTH} deep")]
    TooDeep,
    #[error("it is less than zero, whatever the pod has")]
    Negative,
    #[error("its numbers are too large")]
    TooLarge,
}

/// Whether a part is a number, or an amount of the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dimension {
    Number,
    Quantity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Constant(Ratio, Dimension),
    Name(&'a str),
    Symbol(char),
    End,
}

/// A part that was parsed, and what it is.
type TypedTerm = (Term, Dimension);

/// Parses an expression of a variable of this name.
pub(super) fn parse(text: &str, variable: &str) -> Result<Expression, NotAnExpression> {
    let mut parser = Parser {
        rest: text,
        text,
        variable,
        depth: 0,
        next: Token::End,
        at: 0,
    };
    parser.advance()?;
    let (term, _) = parser.expression()?;
    parser.expect(Token::End, "an operator")?;
    // A value that depends on no pod is known now, and the expression's author is told instead of each pod's.
    if !term.has_variable() {
        match term.evaluate(ExpressionValue::Undefined) {
            Some(ExpressionValue::Exactly(value)) if *value.numer() >= 0 => {}
            Some(_) => return Err(NotAnExpression::Negative),
            None => return Err(NotAnExpression::TooLarge),
        }
    }
    Ok(Expression {
        text: text.to_owned(),
        term,
    })
}

struct Parser<'a> {
    text: &'a str,
    /// The text behind the next token.
    rest: &'a str,
    variable: &'a str,
    depth: usize,
    next: Token<'a>,
    /// The place in the text at which the next token begins, in bytes.
    at: usize,
}

impl<'a> Parser<'a> {
    /// Reads one token more.
    fn advance(&mut self) -> Result<(), NotAnExpression> {
        self.rest = self.rest.trim_start();
        self.at = self.text.len() - self.rest.len();
        let Some(first) = self.rest.chars().next() else {
            self.next = Token::End;
            return Ok(());
        };
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let end = if first.is_ascii_digit() || first == '.' {
            end_of_number(self.rest)
        } else if first.is_alphabetic() {
            self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len())
        } else {
            first.len_utf8()
        };
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        self.next = if first.is_ascii_digit() || first == '.' {
            let constant = constant(word);
            let (value, dimension) =
                constant.ok_or_else(|| NotAnExpression::Constant(word.to_owned()))?;
            Token::Constant(value, dimension)
        } else if first.is_alphabetic() {
            Token::Name(word)
        } else {
            Token::Symbol(first)
        };
        Ok(())
    }

    fn expect(&mut self, token: Token<'_>, expected: &'static str) -> Result<(), NotAnExpression> {
        if self.next == token {
            return self.advance();
        }
        Err(self.unexpected(expected))
    }

    fn unexpected(&self, expected: &'static str) -> NotAnExpression {
        let end = self.text.len() - self.rest.len();
        let found = match self.next {
            Token::End => "the end".to_owned(),
            _ => format!("{:?}", &self.text[self.at..end]),
        };
        NotAnExpression::Unexpected {
            found,
            at: self.text[..self.at].chars().count() + 1,
            expected,
        }
    }

    fn expression(&mut self) -> Result<TypedTerm, NotAnExpression> {
        let mut left = self.term()?;
        loop {
            let operation = match self.next {
                Token::Symbol('+') => Operation::Add,
                Token::Symbol('-') => Operation::Subtract,
                _ => return Ok(left),
            };
            self.advance()?;
            left = combine(operation, left, self.term()?)?;
        }
    }

    fn term(&mut self) -> Result<TypedTerm, NotAnExpression> {
        let mut left = self.factor()?;
        loop {
            let operation = match self.next {
                Token::Symbol('*') => Operation::Multiply,
                Token::Symbol('/') => Operation::Divide,
                _ => return Ok(left),
            };
            self.advance()?;
            left = combine(operation, left, self.factor()?)?;
        }
    }

    fn factor(&mut self) -> Result<TypedTerm, NotAnExpression> {
        if self.depth == DEPTH {
            return Err(NotAnExpression::TooDeep);
        }
        self.depth += 1;
        let part = match self.next {
            Token::Constant(value, dimension) => {
                self.advance()?;
                (Term::Constant(value), dimension)
            }
            Token::Name(name) => self.named(name)?,
            Token::Symbol('(') => {
                self.advance()?;
                let part = self.expression()?;
                self.expect(Token::Symbol(')'), "an operator or ')'")?;
                part
            }
            Token::Symbol('-') => {
                self.advance()?;
                let (term, dimension) = self.factor()?;
                (Term::Negative(Box::new(term)), dimension)
            }
            _ => return Err(self.unexpected("a number, a quantity, a name or '('")),
        };
        // Not where an error returned, which ends the parsing as a whole.
        self.depth -= 1;
        Ok(part)
    }

    /// The variable, or a function with its arguments.
    fn named(&mut self, name: &'a str) -> Result<TypedTerm, NotAnExpression> {
        let operation = match name.to_ascii_lowercase().as_str() {
            "max" => Operation::Max,
            "min" => Operation::Min,
            variable if variable == self.variable => {
                self.advance()?;
                return Ok((Term::Variable, Dimension::Quantity));
            }
            _ => {
                return Err(NotAnExpression::Name {
                    name: name.to_owned(),
                    variable: self.variable.to_owned(),
                });
            }
        };
        self.advance()?;
        self.expect(Token::Symbol('('), "'('")?;
        let left = self.expression()?;
        self.expect(Token::Symbol(','), "an operator or ','")?;
        let right = self.expression()?;
        self.expect(Token::Symbol(')'), "an operator or ')'")?;
        combine(operation, left, right)
    }
}

fn combine(
    operation: Operation,
    left: TypedTerm,
    right: TypedTerm,
) -> Result<TypedTerm, NotAnExpression> {
    let ((left, one), (right, other)) = (left, right);
    let quantities = [one, other].map(|dimension| dimension == Dimension::Quantity);
    match (operation, quantities) {
        (Operation::Multiply, [true, true]) => return Err(NotAnExpression::ProductOfQuantities),
        (Operation::Divide, [_, true]) => return Err(NotAnExpression::DivisionByQuantity),
        // A divisor with the variable would be a quantity, so the value of this one does not depend on it.
        (Operation::Divide, [_, false]) => match right.evaluate(ExpressionValue::Undefined) {
            Some(ExpressionValue::Exactly(value)) if *value.numer() == 0 => {
                return Err(NotAnExpression::DivisionByZero);
            }
            Some(_) => {}
            None => return Err(NotAnExpression::TooLarge),
        },
        _ => {}
    }
    let dimension = if quantities.contains(&true) {
        Dimension::Quantity
    } else {
        Dimension::Number
    };
    let term = Term::Combined(operation, Box::new(left), Box::new(right));
    Ok((term, dimension))
}

/// The end of the number at the beginning of a text, with its exponent and whatever stands right behind it.
fn end_of_number(text: &str) -> usize {
    let is_digit = |c: char| c.is_ascii_digit();
    let digits = |text: &str| text.find(|c| !is_digit(c)).unwrap_or(text.len());
    let mut end = text
        .find(|c| !is_digit(c) && c != '.')
        .unwrap_or(text.len());
    if let Some(exponent) = text[end..].strip_prefix(['e', 'E']) {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        // An `e` without a digit begins no exponent, but a unit that there is not.
        if digits(unsigned) > 0 {
            end = text.len() - unsigned.len() + digits(unsigned);
        }
    }
    let is_unit = |c: char| c.is_alphanumeric() || c == '%' || c == '_';
    let rest = &text[end..];
    end + rest.find(|c| !is_unit(c)).unwrap_or(rest.len())
}

/// A number, a percentage or a quantity. Digits beyond a billionth are rounded up, as in a quantity.
fn constant(word: &str) -> Option<(Ratio, Dimension)> {
    let suffix = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let (number, divisor, dimension) = match word.strip_suffix('%') {
        Some(number) => (number, 100, Dimension::Number),
        None if UNITS.contains(&suffix) => (word, 1, Dimension::Quantity),
        None => (word, 1, Dimension::Number),
    };
    let is_number = number.ends_with(|c: char| c.is_ascii_digit() || c == '.');
    if dimension == Dimension::Number && !is_number {
        return None;
    }
    let value = exactly(&Quantity::parse(number)?) / divisor;
    is_small(&value).then_some((value, dimension))
}
