//! The reasons why a schedule cannot be read, for whoever wrote it.

use super::zone::UnknownTimeZone;

/// A reason why a schedule cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Not the five fields.
    #[error(
        "the schedule {schedule:?} has {found} fields instead of 5: minute, hour, day of month, month, day of week"
    )]
    Fields {
        /// The schedule.
        schedule: String,
        /// The number of its fields.
        found: usize,
    },
    /// A field says nothing that its unit can be.
    #[error("the {unit} {text:?} of the schedule {problem}")]
    Field {
        /// The unit of the field.
        unit: &'static str,
        /// The item of the field.
        text: String,
        /// The item's problem.
        problem: String,
    },
    /// A word with `@` that is none of those that are known.
    #[error(
        "the schedule {0:?} is none of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly and \"@every \" with a \
         duration, without blanks around it"
    )]
    Descriptor(String),
    /// The duration of `@every` is none of Go.
    #[error(
        "the duration {0:?} is not a positive one such as 90s, 1h30m or 1.5h; there are h, m, s, ms, us and ns"
    )]
    Duration(String),
    /// A zone that nothing follows.
    #[error("the schedule {0:?} ends after its time zone: a blank and the times are missing")]
    ZoneAlone(String),
    /// No day has this date.
    #[error("the schedule {0:?} never fires: no day of the calendar matches it")]
    NeverFires(String),
    /// Two zones.
    #[error("the schedule {0:?} has \"TZ\" in it beside the field timeZone: remove one of them")]
    TwoZones(String),
    /// A zone that is not known.
    #[error(transparent)]
    Zone(#[from] UnknownTimeZone),
}
