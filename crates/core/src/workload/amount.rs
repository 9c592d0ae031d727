//! A number of pods, or a share of them (`intstr` of `k8s.io/apimachinery`).

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A number of pods, or a share of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// An absolute number of pods.
    Number(u32),
    /// A percentage of the pods.
    Percent(u32),
}

impl Amount {
    /// Reads an amount.
    ///
    /// # Errors
    ///
    /// It is negative, or a text that is no percentage.
    pub fn read(wire: &IntOrString) -> Result<Self, String> {
        match wire {
            IntOrString::Int(number) => {
                let number = u32::try_from(*number);
                number
                    .map(Self::Number)
                    .map_err(|_| "must not be negative".to_owned())
            }
            IntOrString::String(text) => {
                let share = text.strip_suffix('%');
                // `parse` alone would take a sign, which Kubernetes does not (`IsValidPercent`,
                // `k8s.io/apimachinery/pkg/util/validation/validation.go`).
                let digits = share.filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
                let percent = digits.and_then(|digits| digits.parse().ok());
                percent.map(Self::Percent).ok_or_else(|| {
                    format!("{text:?} is neither a number nor a percentage such as \"10%\"")
                })
            }
        }
    }

    /// Whether it is none, of however many.
    pub fn is_zero(self) -> bool {
        matches!(self, Self::Number(0) | Self::Percent(0))
    }

    /// How many it is of `total`; a share is rounded up.
    pub fn of(self, total: usize) -> usize {
        match self {
            Self::Number(number) => number as usize,
            Self::Percent(percent) => (total * percent as usize).div_ceil(100),
        }
    }

    /// How many stay of `total` while at least one of two or more moves on, unless all are to stay.
    pub fn staying(self, total: usize) -> usize {
        match self {
            Self::Percent(percent) if percent < 100 && total >= 2 => self.of(total).min(total - 1),
            _ => self.of(total).min(total),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn read(text: &str) -> Result<Amount, String> {
        Amount::read(&match text.parse() {
            Ok(number) => IntOrString::Int(number),
            Err(_) => IntOrString::String(text.to_owned()),
        })
    }

    // SCS-49, SCS-50
    #[rstest]
    #[case("0", 10, 0, 0)]
    #[case("3", 10, 3, 3)]
    #[case("30", 10, 30, 10)]
    #[case("0%", 10, 0, 0)]
    #[case("25%", 10, 3, 3)]
    #[case("1%", 10, 1, 1)]
    #[case("99%", 10, 10, 9)]
    #[case("99%", 2, 2, 1)]
    #[case("99%", 1, 1, 1)]
    #[case("100%", 10, 10, 10)]
    #[case("50%", 0, 0, 0)]
    fn a_share_is_rounded_up_and_below_all_one_moves_on(
        #[case] text: &str,
        #[case] total: usize,
        #[case] of: usize,
        #[case] staying: usize,
    ) {
        let amount = read(text).unwrap();
        assert_eq!((amount.of(total), amount.staying(total)), (of, staying));
    }

    // SCS-72
    #[rstest]
    #[case("-1")]
    #[case("-1%")]
    #[case("%")]
    #[case("ten")]
    #[case("1.5%")]
    #[case("99999999999%")]
    fn what_is_no_amount_is_refused(#[case] text: &str) {
        assert!(read(text).is_err());
    }
}
