//! The grammar of schedules: that of `robfig/cron` v3.0.1, which `CronJob` and `OpenKruise` use, without what never fires or
//! is written by mistake.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use leadsman_reconcile::whole_seconds;

use super::calendar::Calendar;
use super::schedule_error::ScheduleError;
use super::zone::find_zone;

/// Missed runs are counted up to this number.
pub const MOST_COUNTED: usize = 1_000;

/// The times at which something runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// The times of a calendar, as the clocks of a zone show them.
    Calendar(Calendar, TimeZone),
    /// A constant distance, in whole seconds.
    Every(SignedDuration),
}

/// The runs that were missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The last one.
    pub latest: Timestamp,
    /// The number of missed runs; beyond [`MOST_COUNTED`] there are at least as many.
    pub count: usize,
}

const DESCRIPTORS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

impl Schedule {
    /// Reads a schedule with the `timeZone` beside it. One that names no zone is in `default`.
    pub fn parse(
        schedule: &str,
        time_zone: Option<&str>,
        default: &TimeZone,
    ) -> Result<Self, ScheduleError> {
        let mut zone = default.clone();
        if let Some(name) = time_zone {
            if schedule.contains("TZ") {
                return Err(ScheduleError::TwoZones(schedule.to_owned()));
            }
            zone = find_zone(name)?;
        }
        let mut times = schedule;
        let prefixes = ["TZ=", "CRON_TZ="];
        if let Some(rest) = prefixes
            .iter()
            .find_map(|prefix| schedule.strip_prefix(prefix))
        {
            let alone = || ScheduleError::ZoneAlone(schedule.to_owned());
            let (name, rest) = rest.split_once(' ').ok_or_else(alone)?;
            // Go reads an empty name as UTC, and this one as the zone of the process (`time.LoadLocation`).
            zone = match name {
                "" => TimeZone::UTC,
                "Local" => default.clone(),
                name => find_zone(name)?,
            };
            times = rest.trim();
        }
        if let Some(duration) = times.strip_prefix("@every ") {
            let problem = || ScheduleError::Duration(duration.to_owned());
            let duration = parse_go_duration(duration).ok_or_else(problem)?;
            let seconds = duration.as_secs().max(1);
            return Ok(Self::Every(SignedDuration::from_secs(seconds)));
        }
        if times.starts_with('@') {
            let known = DESCRIPTORS
                .iter()
                .find(|(name, _)| *name == times)
                .ok_or_else(|| ScheduleError::Descriptor(times.to_owned()))?;
            times = known.1;
        }
        Ok(Self::Calendar(Calendar::parse(times)?, zone))
    }

    /// The first time after an instant, unless it never comes: not within five years, or beyond the year 9999.
    ///
    /// That of a calendar is the first whole second whose local time matches. So a time that is left out when clocks go
    /// forward does not run on that day, and one that comes twice runs twice.
    pub fn next_after(&self, instant: Timestamp) -> Option<Timestamp> {
        let second = whole_seconds(instant);
        match self {
            Self::Every(distance) => second.checked_add(*distance).ok(),
            Self::Calendar(calendar, zone) => {
                let from = second.checked_add(SignedDuration::from_secs(1)).ok()?;
                calendar.first_from(from, zone)
            }
        }
    }

    /// The times after an instant and up to another one.
    pub fn missed(&self, after: Timestamp, until: Timestamp) -> Option<Missed> {
        if let Self::Every(distance) = self {
            let after = whole_seconds(after);
            let passed = until.duration_since(after).as_secs() / distance.as_secs();
            let count = usize::try_from(passed).ok().filter(|count| *count > 0)?;
            let since = SignedDuration::from_secs(passed * distance.as_secs());
            let latest = after.checked_add(since).ok()?;
            return Some(Missed { latest, count });
        }
        let next = |after| self.next_after(after).filter(|next| *next <= until);
        let mut missed = Missed {
            latest: next(after)?,
            count: 1,
        };
        while let Some(later) = next(missed.latest) {
            missed.latest = later;
            missed.count += 1;
            if missed.count > MOST_COUNTED {
                missed.latest = self.last_until(later, until);
                break;
            }
        }
        Some(missed)
    }

    /// The last time that is not after `until`, where there is `one` already. The next time of an instant is the later the
    /// later the instant is, so halving finds it, however long ago the first one was.
    fn last_until(&self, one: Timestamp, until: Timestamp) -> Timestamp {
        let mut last = one;
        let mut end = whole_seconds(until).as_second();
        while last.as_second() < end {
            let seconds = last.as_second().midpoint(end);
            let middle = Timestamp::from_second(seconds).unwrap_or(last);
            match self.next_after(middle).filter(|next| *next <= until) {
                Some(next) => last = next,
                None => end = middle.as_second(),
            }
        }
        last
    }
}

/// Reads a duration as Go does (`time.ParseDuration`). None if it is none, negative or too long.
fn parse_go_duration(text: &str) -> Option<SignedDuration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut nanoseconds = 0_u64;
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let is_unit = |c: char| c != '.' && !c.is_ascii_digit();
        let (number, tail) = rest.split_at(rest.find(is_unit)?);
        let end = tail.find(|c| !is_unit(c)).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = unit_nanoseconds(unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let whole = if whole.is_empty() {
            0
        } else {
            whole.parse::<u64>().ok()?
        };
        nanoseconds = nanoseconds.checked_add(whole.checked_mul(unit)?)?;
        nanoseconds = nanoseconds.checked_add(fraction_of(fraction, unit))?;
        rest = tail;
    }
    i64::try_from(nanoseconds)
        .ok()
        .map(SignedDuration::from_nanos)
}

fn unit_nanoseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// The digits after the point, as a part of a unit. Those beyond the precision are left out.
fn fraction_of(digits: &str, unit: u64) -> u64 {
    let mut part = 0;
    let mut scale = 1;
    for digit in digits.bytes().take(17) {
        part = part * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    u64::try_from(part * u128::from(unit) / scale).unwrap_or(u64::MAX)
}
