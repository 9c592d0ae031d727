//! Properties of generated expressions, which a second calculation evaluates.

use proptest::prelude::*;
use serde_json::json;

use super::super::expression::{ExpressionValue, Ratio};
use super::super::parser::NotAnExpression;
use super::*;

/// An expression as it is generated.
#[derive(Clone, Debug)]
enum Generated {
    Number(u16, u8),
    Percent(u16),
    Milli(u16),
    Variable,
    Negative(Box<Self>),
    Combined(char, Box<Self>, Box<Self>),
    Called(&'static str, Box<Self>, Box<Self>),
}

impl Generated {
    fn is_quantity(&self) -> bool {
        match self {
            Self::Number(..) | Self::Percent(_) => false,
            Self::Milli(_) | Self::Variable => true,
            Self::Negative(part) => part.is_quantity(),
            Self::Combined(_, one, other) | Self::Called(_, one, other) => {
                one.is_quantity() || other.is_quantity()
            }
        }
    }

    /// With parentheses around each part that is no single word.
    fn print(&self) -> String {
        match self {
            Self::Number(whole, tenths) => format!("{whole}.{tenths}"),
            Self::Percent(percent) => format!("{percent}%"),
            Self::Milli(milli) => format!("{milli}m"),
            Self::Variable => "cpu".to_owned(),
            Self::Negative(part) => format!("(-{})", part.print()),
            Self::Combined(operation, one, other) => {
                format!("({} {operation} {})", one.print(), other.print())
            }
            Self::Called(function, one, other) => {
                format!("{function}({},{})", one.print(), other.print())
            }
        }
    }

    /// The value as a fraction that is not reduced, or nothing where something like it is refused.
    fn naive(&self, own: i128) -> Option<(i128, i128)> {
        Some(match self {
            Self::Number(whole, tenths) => (i128::from(*whole) * 10 + i128::from(*tenths), 10),
            Self::Percent(percent) => (i128::from(*percent), 100),
            Self::Milli(milli) => (i128::from(*milli), 1000),
            Self::Variable => (own, 1000),
            Self::Negative(part) => {
                let (n, d) = part.naive(own)?;
                (-n, d)
            }
            Self::Combined(operation, one, other) => {
                let ((a, b), (c, d)) = (one.naive(own)?, other.naive(own)?);
                match operation {
                    '+' => (a * d + c * b, b * d),
                    '-' => (a * d - c * b, b * d),
                    '*' if one.is_quantity() && other.is_quantity() => return None,
                    '*' => (a * c, b * d),
                    _ if other.is_quantity() || c == 0 => return None,
                    _ => (a * d * c.signum(), b * c.abs()),
                }
            }
            Self::Called(function, one, other) => {
                let ((a, b), (c, d)) = (one.naive(own)?, other.naive(own)?);
                if (a * d >= c * b) == (*function == "max") {
                    (a, b)
                } else {
                    (c, d)
                }
            }
        })
    }
}

fn generated() -> impl Strategy<Value = Generated> {
    let leaf = prop_oneof![
        (0..30_u16, 0..10_u8).prop_map(|(whole, tenths)| Generated::Number(whole, tenths)),
        (0..300_u16).prop_map(Generated::Percent),
        (0..5000_u16).prop_map(Generated::Milli),
        Just(Generated::Variable),
    ];
    leaf.prop_recursive(3, 8, 2, |inner| {
        let part = inner.prop_map(Box::new).boxed();
        let operation = proptest::sample::select(vec!['+', '-', '*', '/']);
        let function = proptest::sample::select(vec!["max", "min"]);
        prop_oneof![
            part.clone().prop_map(Generated::Negative),
            (operation, part.clone(), part.clone())
                .prop_map(|(operation, one, other)| Generated::Combined(operation, one, other)),
            (function, part.clone(), part)
                .prop_map(|(function, one, other)| Generated::Called(function, one, other)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    // SCS-19, SDF-10
    #[test]
    fn an_expression_is_what_a_second_calculation_makes_of_it(
        expression in generated(),
        own in 0..100_000_i128,
    ) {
        let text = expression.print();
        let variable = ExpressionValue::Exactly(Ratio::new(own, 1000));
        match (parser::parse(&text, "cpu"), expression.naive(own)) {
            (Ok(parsed), Some((numerator, denominator))) => {
                let expected = ExpressionValue::Exactly(Ratio::new(numerator, denominator));
                prop_assert_eq!(parsed.evaluate(variable), Some(expected), "{}", text);
            }
            (Err(NotAnExpression::Negative), Some((numerator, _))) => {
                prop_assert!(numerator < 0, "{}", text);
                prop_assert!(!text.contains("cpu"), "{}", text);
            }
            (
                Err(
                    NotAnExpression::ProductOfQuantities
                    | NotAnExpression::DivisionByQuantity
                    | NotAnExpression::DivisionByZero,
                ),
                None,
            ) => {}
            (parsed, naive) => prop_assert!(false, "{}: {:?}, {:?}", text, parsed, naive),
        }
    }

    /// What an expression is without a limit, it is with any limit that is large enough.
    // SDF-10
    #[test]
    fn no_limit_is_larger_than_any(expression in generated()) {
        let Ok(parsed) = parser::parse(&expression.print(), "cpu") else {
            return Ok(());
        };
        let large = |own: i128| parsed.evaluate(ExpressionValue::Exactly(Ratio::from_integer(own)));
        let [Some(ExpressionValue::Exactly(one)), Some(ExpressionValue::Exactly(other))] =
            [large(10_i128.pow(12)), large(10_i128.pow(13))]
        else {
            return Ok(());
        };
        match parsed.evaluate(ExpressionValue::Unlimited) {
            Some(ExpressionValue::Exactly(value)) => {
                prop_assert_eq!((one, other), (value, value), "{}", parsed.text);
            }
            Some(ExpressionValue::Unlimited) => prop_assert!(one < other, "{}", parsed.text),
            _ => {}
        }
    }

    #[test]
    fn any_text_is_an_expression_or_refused(text in "[-+*/(),.%0-9eEmkKMGi cpumaxin@ü]{0,24}") {
        if let Ok(parsed) = parser::parse(&text, "cpu") {
            for variable in [ExpressionValue::Unlimited, ExpressionValue::Exactly(quantity("1P"))] {
                if let Some(ExpressionValue::Exactly(value)) = parsed.evaluate(variable) {
                    let _ = (ResourceKind::Cpu.units(value), ResourceKind::Memory.units(value));
                }
            }
        }
    }

    /// Whatever the pod and the set say, Kubernetes accepts what the sidecar gets.
    // SCS-19, SDF-1, SDF-10
    #[test]
    fn what_a_sidecar_gets_is_valid(
        limits in proptest::array::uniform2(generated()),
        requests in proptest::array::uniform2(generated()),
        own in proptest::collection::vec((proptest::option::of(0..9000_u32), proptest::option::of(0..9000_u32)), 0..4),
        mode in proptest::sample::select(vec!["sum", "max"]),
    ) {
        let list = |[cpu, memory]: [Generated; 2]| {
            json!({"cpu": cpu.print(), "memory": memory.print().replace("cpu", "memory")})
        };
        let policy = policy(mode, ".*", &list(limits), &list(requests));
        let (Some(policy), _) = read(&json!({"resourcesPolicy": policy})) else {
            return Ok(());
        };
        let milli = |amount: Option<u32>| amount.map(|amount| format!("{amount}m"));
        let containers: Vec<_> = own.iter().map(|(limit, request)| {
            let limits = json!({"cpu": milli(*limit), "memory": limit});
            let requests = json!({"cpu": milli(*request), "memory": request});
            let container = json!({"name": "a", "resources": {"limits": limits, "requests": requests}});
            container.as_object().unwrap().clone()
        }).collect();
        let computed = policy.compute(&containers, None);
        for resource in ResourceKind::ALL {
            let amount = |list| resource.amount(Some(list));
            let (limit, request) = (amount(&computed.limits), amount(&computed.requests));
            prop_assert!(limit.is_none_or(|limit| limit > Ratio::from_integer(0)));
            prop_assert!(request.is_none_or(|request| request >= Ratio::from_integer(0)));
            if let (Some(limit), Some(request)) = (limit, request) {
                prop_assert!(request <= limit);
            }
            let whole = |amount: Option<Ratio>| {
                amount.is_none_or(|amount| match resource {
                    ResourceKind::Cpu => (amount * 1000).is_integer(),
                    ResourceKind::Memory => amount.is_integer(),
                })
            };
            prop_assert!(whole(limit) && whole(request));
        }
    }
}
