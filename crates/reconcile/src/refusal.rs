//! Why a write is refused.

/// Why the API server refuses a write for good, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The object would be too large for it or for its store. It may take a smaller one.
    TooLarge(String),
    /// A rule, a policy, a webhook or a quota forbids it.
    Forbidden(String),
}

impl Refusal {
    /// The API server's message.
    pub fn into_reason(self) -> String {
        match self {
            Self::TooLarge(reason) | Self::Forbidden(reason) => reason,
        }
    }
}
