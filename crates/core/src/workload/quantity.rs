//! Amounts of resources, as Kubernetes parses and writes them (`k8s.io/apimachinery/pkg/api/resource/quantity.go`).
//!
//! A hash contains the text that Go writes, so this includes Go's whims: a text that is canonical at first sight is
//! kept as it was written, `1E0` for example.

use std::fmt;

use serde_json::Value;

/// An amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// The value in billionths, which is the finest that Kubernetes keeps.
    nanos: i128,
    format: QuantityFormat,
    /// The text as it was written, where Go keeps it; and the power of ten down to which it has digits.
    as_written: Option<(String, i32)>,
}

/// How an amount is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuantityFormat {
    /// `1500m`, `2k`
    DecimalSi,
    /// `1536Mi`
    BinarySi,
    /// `1e3`
    DecimalExponent,
}

const NANOS: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Digits that Go's fast path takes (`maxInt64Factors`).
const FAST_DIGITS: usize = 18;
/// Digits beyond which an amount is no amount of anything; they bound the arithmetic.
const MOST_DIGITS: usize = 64;

/// The parts of a text: sign, digits before and after the point, suffix.
struct Parts<'a> {
    is_negative: bool,
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

impl<'a> Parts<'a> {
    fn split(text: &'a str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = unsigned.split_at(digits(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() || whole.len() + fraction.len() > MOST_DIGITS {
            return None;
        }
        Some(Self {
            is_negative: text.starts_with('-'),
            whole: whole.trim_start_matches('0'),
            fraction,
            suffix,
        })
    }
}

impl Quantity {
    /// Parses an amount; None if it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let parts = Parts::split(text)?;
        if let Some(power) = BINARY.iter().position(|suffix| *suffix == parts.suffix) {
            return Self::binary(text, &parts, u32::try_from(power + 1).ok()?);
        }
        let known = DECIMAL.iter().find(|(suffix, _)| *suffix == parts.suffix);
        let (exponent, format) = if let Some((_, exponent)) = known {
            (*exponent, QuantityFormat::DecimalSi)
        } else {
            let exponent = parts.suffix.strip_prefix(['e', 'E'])?;
            (exponent.parse().ok()?, QuantityFormat::DecimalExponent)
        };
        Self::decimal(text, &parts, exponent, format)
    }

    /// Parses an amount as it stands in JSON, where a number is one too.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            // `UnmarshalJSON` trims the text, and takes null for 0.
            Value::String(text) => Self::parse(text.trim()),
            Value::Number(number) => Self::parse(&number.to_string()),
            Value::Null => Self::parse("0"),
            _ => None,
        }
    }

    fn decimal(
        text: &str,
        parts: &Parts<'_>,
        exponent: i32,
        format: QuantityFormat,
    ) -> Option<Self> {
        let digits = format!("{}{}", parts.whole, parts.fraction);
        let scale = exponent.checked_sub(i32::try_from(parts.fraction.len()).ok()?)?;
        let nanos = at_scale(number(&digits)?, scale.checked_add(9)?)?;
        // Go counts a single 0 as a digit where nothing stands before the point.
        let counted = parts.whole.len().max(1) + parts.fraction.len();
        let is_fast = counted <= FAST_DIGITS && scale >= -9;
        let is_canonical = scale % 3 == 0 && !digits.ends_with("000") && !parts.whole.is_empty();
        Some(Self {
            nanos: if parts.is_negative { -nanos } else { nanos },
            format,
            as_written: (text == "0" || is_fast && is_canonical).then(|| (text.to_owned(), scale)),
        })
    }

    fn binary(text: &str, parts: &Parts<'_>, power: u32) -> Option<Self> {
        let factor = 1024_i128.checked_pow(power)?;
        let value = number(&format!("{}{}", parts.whole, parts.fraction))?;
        let scale = i32::try_from(parts.fraction.len()).ok()?;
        let most = i128::from(i64::MAX) * NANOS;
        // Go caps an amount that it parses slowly (`maxAllowed`).
        let nanos = at_scale(value.checked_mul(factor)?, 9 - scale)?.min(most);
        // Tens of the exponent of two, as Go estimates how many digits are left.
        let digits = parts.whole.len().max(1) + usize::try_from(power * 3).ok()? + 1;
        let is_fast = parts.fraction.is_empty() && digits <= 15;
        // Binary suffixes for less than one do not exist, so Go writes it in decimal.
        let format = if nanos > 0 && nanos < NANOS {
            QuantityFormat::DecimalSi
        } else {
            QuantityFormat::BinarySi
        };
        Some(Self {
            nanos: if parts.is_negative { -nanos } else { nanos },
            format,
            as_written: (is_fast && value & 7 != 0).then(|| (text.to_owned(), 0)),
        })
    }

    /// Makes a quantity of thousandths, as `1500m`.
    pub fn from_milli(milli: i64) -> Self {
        Self {
            nanos: i128::from(milli) * MILLI,
            format: QuantityFormat::DecimalSi,
            as_written: None,
        }
    }

    /// Makes a quantity of bytes, as `64Mi`, or as `500k` if they are no multiple of 1024.
    pub fn from_bytes(bytes: i64) -> Self {
        Self {
            nanos: i128::from(bytes) * NANOS,
            format: if bytes % 1024 == 0 {
                QuantityFormat::BinarySi
            } else {
                QuantityFormat::DecimalSi
            },
            as_written: None,
        }
    }

    /// The amount, rounded up to thousandths: Kubernetes defaults the resources of a container so
    /// (`SetDefaults_ResourceList`, `pkg/apis/core/v1/defaults.go`).
    #[must_use]
    pub fn rounded_up_to_milli(mut self) -> Self {
        let rest = self.nanos.rem_euclid(MILLI);
        if rest != 0 {
            // Away from zero.
            self.nanos += if self.nanos > 0 { MILLI - rest } else { -rest };
        }
        if self
            .as_written
            .as_ref()
            .is_some_and(|(_, scale)| *scale < -3)
        {
            self.as_written = None;
        }
        self
    }

    /// The value in billionths.
    pub fn nanos(&self) -> i128 {
        self.nanos
    }
}

/// The number that digits are; None if it is too large.
fn number(digits: &str) -> Option<i128> {
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Some(0);
    }
    digits.parse().ok()
}

/// A value times a power of ten, rounded away from zero where digits are lost; None if it is too large to be rounded up
/// after that.
fn at_scale(value: i128, power: i32) -> Option<i128> {
    scaled(value, power).filter(|scaled| *scaled <= i128::MAX - MILLI)
}

fn scaled(value: i128, power: i32) -> Option<i128> {
    let magnitude = power.unsigned_abs();
    if power >= 0 {
        return if value == 0 {
            Some(0)
        } else {
            value.checked_mul(10_i128.checked_pow(magnitude)?)
        };
    }
    let divisor = 10_i128.checked_pow(magnitude);
    Some(match divisor {
        Some(divisor) => value / divisor + i128::from(value % divisor != 0),
        None => i128::from(value != 0),
    })
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((text, _)) = &self.as_written {
            return f.write_str(text);
        }
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let whole = self.nanos / NANOS;
        if self.format == QuantityFormat::BinarySi && self.nanos % NANOS == 0 && whole.abs() >= 1024
        {
            let mut mantissa = whole;
            let mut power = 0;
            while power < BINARY.len() && mantissa % 1024 == 0 {
                mantissa /= 1024;
                power += 1;
            }
            let suffix = power.checked_sub(1).map_or("", |place| BINARY[place]);
            return write!(f, "{mantissa}{suffix}");
        }
        let mut mantissa = self.nanos;
        let mut exponent = -9;
        while mantissa % 1000 == 0 {
            mantissa /= 1000;
            exponent += 3;
        }
        if self.format == QuantityFormat::DecimalExponent {
            return match exponent {
                0 => write!(f, "{mantissa}"),
                _ => write!(f, "{mantissa}e{exponent}"),
            };
        }
        let known = DECIMAL.iter().find(|(_, power)| *power == exponent);
        write!(f, "{mantissa}{}", known.map_or("", |(suffix, _)| suffix))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    // SCS-28
    #[rstest]
    #[case("1000m", "1")]
    #[case("1.5Gi", "1536Mi")]
    #[case("1000", "1k")]
    #[case("1500m", "1500m")]
    #[case("0.1Gi", "107374182400m")]
    #[case("0.5Ki", "512")]
    #[case("1e3", "1e3")]
    #[case("1E0", "1E0")]
    #[case("1e-3", "1e-3")]
    #[case("2.5E6", "2500e3")]
    #[case("1024k", "1024k")]
    #[case("1000Ki", "1000Ki")]
    #[case("4096Ki", "4Mi")]
    #[case("+1.0", "1")]
    #[case(".5", "500m")]
    #[case("0", "0")]
    #[case("0.0", "0")]
    #[case("1Ei", "1Ei")]
    #[case("16Ei", "9223372036854775807")]
    #[case("1E", "1E")]
    #[case("-1.5Gi", "-1536Mi")]
    #[case("1.0000000001", "1000000001n")]
    fn a_quantity_is_written_as_go_writes_it(#[case] text: &str, #[case] written: &str) {
        assert_eq!(Quantity::parse(text).unwrap().to_string(), written);
    }

    // SCS-4
    #[rstest]
    #[case("99.5m", "100m")]
    #[case("1u", "1m")]
    #[case("1001u", "2m")]
    #[case("100000m", "100")]
    #[case("1E0", "1E0")]
    #[case("0", "0")]
    #[case("-1u", "-1m")]
    fn resources_are_rounded_up_to_milli(#[case] text: &str, #[case] written: &str) {
        let quantity = Quantity::parse(text).unwrap().rounded_up_to_milli();
        assert_eq!(quantity.to_string(), written);
    }

    // SCS-70
    #[rstest]
    #[case("170141183460469231731687303715.884105727")]
    #[case("-170141183460469231731687303715.884105727")]
    #[case("9999999999999999999999999999999999999999")]
    #[case("9999999999999999999999999999999999999999Ki")]
    fn an_amount_beyond_all_counting_is_none(#[case] text: &str) {
        let rounded = Quantity::parse(text).map(Quantity::rounded_up_to_milli);
        assert_eq!(rounded, None);
    }

    // SCS-19
    #[test]
    fn a_number_is_written_in_the_largest_unit_that_has_no_fraction() {
        for (milli, written) in [
            (0, "0"),
            (1, "1m"),
            (1500, "1500m"),
            (-50, "-50m"),
            (2000, "2"),
        ] {
            assert_eq!(Quantity::from_milli(milli).to_string(), written);
        }
        let mebi = 1 << 20;
        for (bytes, written) in [
            (0, "0"),
            (354_334_802, "354334802"),
            (500_000, "500k"),
            (64 * mebi, "64Mi"),
            (-mebi, "-1Mi"),
            (1536 * mebi, "1536Mi"),
        ] {
            assert_eq!(Quantity::from_bytes(bytes).to_string(), written);
        }
        let most = Quantity::from_bytes(i64::MAX).to_string();
        assert_eq!(most, "9223372036854775807");
    }

    #[rstest]
    #[case("")]
    #[case("Gi")]
    #[case("1 Gi")]
    #[case("1gi")]
    #[case("1e")]
    #[case("1.2.3")]
    #[case("--1")]
    #[case("1e99999999999")]
    fn what_is_no_quantity_is_not_parsed(#[case] text: &str) {
        assert_eq!(Quantity::parse(text), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn writing_keeps_the_amount(text in "[+-]?[0-9]{0,9}(\\.[0-9]{0,4})?(|n|u|m|k|M|G|T|Ki|Mi|Gi|e3|E-2|e0)") {
            if let Some(quantity) = Quantity::parse(&text) {
                let again = Quantity::parse(&quantity.to_string()).unwrap();
                prop_assert_eq!(again.nanos, quantity.nanos, "{} as {}", text, quantity);
                prop_assert_eq!(again.to_string(), quantity.to_string());
            }
        }
    }
}
