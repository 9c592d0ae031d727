//! The states of a pod's lifecycle.

/// The annotation of a pod with the time since which it is in its state.
pub(super) const TIMESTAMP: &str = "lifecycle.apps.kruise.io/timestamp";

/// How far a pod's lifecycle is, by its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifecycleState {
    /// Nothing is said, or a word that is not known: it counts as normal.
    Unsaid,
    PreparingNormal,
    Normal,
    PreparingUpdate,
    Updating,
    Updated,
    PreparingDelete,
}

impl LifecycleState {
    const NAMED: [(&'static str, Self); 6] = [
        ("PreparingNormal", Self::PreparingNormal),
        ("Normal", Self::Normal),
        ("PreparingUpdate", Self::PreparingUpdate),
        ("Updating", Self::Updating),
        ("Updated", Self::Updated),
        ("PreparingDelete", Self::PreparingDelete),
    ];

    pub(super) fn read(label: Option<&str>) -> Self {
        let mut named = Self::NAMED.iter();
        let found = named.find(|(name, _)| label == Some(name));
        found.map_or(Self::Unsaid, |(_, state)| *state)
    }

    pub(super) fn word(self) -> &'static str {
        let mut named = Self::NAMED.iter();
        named
            .find(|(_, state)| *state == self)
            .map_or("", |(name, _)| name)
    }

    /// Whether a pod in it may count as available.
    pub(super) fn is_normal(self) -> bool {
        matches!(self, Self::Unsaid | Self::Normal)
    }
}
