//! A time of which a manager keeps hundreds of thousands.

use std::num::NonZeroI64;

use jiff::Timestamp;

/// A time that takes a third of the memory of an optional [`Timestamp`]: in nanoseconds, of the years 1678 to 2261. One beyond
/// them becomes the end of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompactTime(NonZeroI64);

impl From<Timestamp> for CompactTime {
    fn from(time: Timestamp) -> Self {
        let clamped = time
            .as_nanosecond()
            .clamp((-i64::MAX).into(), i64::MAX.into());
        let nanos = i64::try_from(clamped).ok().and_then(NonZeroI64::new);
        // The beginning of 1970 has the number that no other time has.
        Self(nanos.unwrap_or(NonZeroI64::MIN))
    }
}

impl From<CompactTime> for Timestamp {
    fn from(time: CompactTime) -> Self {
        let nanos = Some(time.0).filter(|nanos| *nanos != NonZeroI64::MIN);
        let time = nanos.map(|nanos| Self::from_nanosecond(nanos.get().into()));
        time.and_then(Result::ok).unwrap_or(Self::UNIX_EPOCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_to_the_nanosecond_and_within_the_years_that_there_are() {
        for text in [
            "1970-01-01T00:00:00Z",
            "2026-01-02T03:04:05Z",
            "1969-12-31T23:59:59.999999999Z",
        ] {
            let time: Timestamp = text.parse().unwrap();
            assert_eq!(Timestamp::from(CompactTime::from(time)), time);
        }
        let years = [Timestamp::MIN, Timestamp::MAX];
        let years = years.map(|time| Timestamp::from(CompactTime::from(time)).to_string());
        let found = years.each_ref().map(|year| &year[..4]);
        assert_eq!(found, ["1677", "2262"]);
        assert_eq!(size_of::<Option<CompactTime>>(), 8);
    }
}
