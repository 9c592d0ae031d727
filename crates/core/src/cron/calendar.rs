//! The five fields of a schedule, and the search for a time that matches them.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::schedule_error::ScheduleError;

/// A schedule that has no time within so many years has none.
const YEARS: i16 = 5;

/// The minutes, hours and days that match. Bit n stands for the number n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    /// Bit 0 is Sunday.
    weekdays: u64,
    /// Whether a day has to match both `days` and `weekdays`. Otherwise one of them is enough.
    needs_both: bool,
}

/// The unit of a field.
struct Unit {
    name: &'static str,
    least: u32,
    most: u32,
    /// The names of its numbers, from the least one on.
    names: &'static [&'static str],
}

const fn unit(name: &'static str, least: u32, most: u32) -> Unit {
    Unit {
        name,
        least,
        most,
        names: &[],
    }
}

const MINUTE: Unit = unit("minute", 0, 59);
const HOUR: Unit = unit("hour", 0, 23);
const DAY: Unit = unit("day of month", 1, 31);
const MONTH: Unit = Unit {
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
    ..unit("month", 1, 12)
};
const WEEKDAY: Unit = Unit {
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    ..unit("day of week", 0, 6)
};

/// The numbers of a field, and whether one of its items is a star.
type Field = (u64, bool);

impl Calendar {
    /// Reads the five fields.
    pub(super) fn parse(text: &str) -> Result<Self, ScheduleError> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(ScheduleError::Fields {
                schedule: text.to_owned(),
                found: fields.len(),
            });
        };
        let (days, any_day) = DAY.parse(day)?;
        let (weekdays, any_weekday) = WEEKDAY.parse(weekday)?;
        let calendar = Self {
            minutes: MINUTE.parse(minute)?.0,
            hours: HOUR.parse(hour)?.0,
            days,
            months: MONTH.parse(month)?.0,
            weekdays,
            needs_both: any_day || any_weekday,
        };
        if calendar.fires() {
            Ok(calendar)
        } else {
            Err(ScheduleError::NeverFires(text.to_owned()))
        }
    }

    fn fires(&self) -> bool {
        // The year 2000 is a leap year.
        let longest = |month| Date::constant(2000, month, 1).days_in_month();
        let months = (1..=12_i8).filter(|month| self.months & (1 << month) != 0);
        let has_date = months
            .clone()
            .any(|month| self.days & up_to(longest(month)) != 0);
        let has_weekday = self.weekdays != 0 && months.count() > 0;
        let has_day = if self.needs_both {
            has_date && has_weekday
        } else {
            has_date || has_weekday
        };
        self.minutes != 0 && self.hours != 0 && has_day
    }

    /// The first instant from a whole second on whose local time matches.
    pub(super) fn first_from(&self, from: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let (mut from, mut offset) = (from, zone.to_offset(from));
        let last_year = offset.to_datetime(from).year().checked_add(YEARS)?;
        let mut transitions = zone.following(from);
        // The offset stays the same up to the next transition, and so local time runs as time does.
        loop {
            let end = transitions.next();
            let local = offset.to_datetime(from);
            let found = self
                .first_local(local, last_year)
                .and_then(|local| offset.to_timestamp(local).ok());
            match (found, end) {
                (found, None) => return found,
                (Some(found), Some(end)) if found < end.timestamp() => return Some(found),
                (_, Some(_)) if local.year() > last_year => return None,
                (_, Some(end)) => (from, offset) = (end.timestamp(), end.offset()),
            }
        }
    }

    /// The first local time from another one on that matches.
    fn first_local(&self, from: DateTime, last_year: i16) -> Option<DateTime> {
        let to_minute = (60 - i64::from(from.second())) % 60;
        let from = from
            .checked_add(SignedDuration::from_secs(to_minute))
            .ok()?;
        if self.days_from(from.date()) & 1 != 0 {
            let minute = first_bit(self.minutes & !0 << from.minute());
            let is_this_hour = self.hours >> from.hour() & 1 != 0;
            if let Some(minute) = minute.filter(|_| is_this_hour) {
                return Some(from.date().at(from.hour(), minute, 0, 0));
            }
            if let Some(hour) = first_bit(self.hours & !1 << from.hour()) {
                return Some(from.date().at(hour, first_bit(self.minutes)?, 0, 0));
            }
        }
        let day = self.first_day(from.date().tomorrow().ok()?, last_year)?;
        Some(day.at(first_bit(self.hours)?, first_bit(self.minutes)?, 0, 0))
    }

    fn first_day(&self, from: Date, last_year: i16) -> Option<Date> {
        let mut from = from;
        while from.year() <= last_year {
            if let Some(days) = first_bit(self.days_from(from)) {
                return Date::new(from.year(), from.month(), from.day() + days).ok();
            }
            let (year, month) = match first_bit(self.months & !1 << from.month()) {
                Some(month) => (from.year(), month),
                None => (from.year().checked_add(1)?, first_bit(self.months)?),
            };
            from = Date::new(year, month, 1).ok()?;
        }
        None
    }

    /// The days of a month that match, from one on, which is bit 0.
    fn days_from(&self, from: Date) -> u64 {
        if self.months >> from.month() & 1 == 0 {
            return 0;
        }
        // Bit 0 is the weekday of `from`: five weeks, turned.
        let weeks = (0..6).fold(0, |weeks, week| weeks | self.weekdays << (7 * week));
        let weekdays = weeks >> from.weekday().to_sunday_zero_offset();
        let days = self.days >> from.day();
        let both = if self.needs_both {
            days & weekdays
        } else {
            days | weekdays
        };
        both & up_to(from.days_in_month() - from.day())
    }
}

impl Unit {
    fn parse(&self, field: &str) -> Result<Field, ScheduleError> {
        let items = field.split(',').filter(|item| !item.is_empty());
        let mut all = (0, false);
        for item in items {
            let problem = |problem| ScheduleError::Field {
                unit: self.name,
                text: item.to_owned(),
                problem,
            };
            let (numbers, is_star) = self.parse_item(item).map_err(problem)?;
            all = (all.0 | numbers, all.1 || is_star);
        }
        Ok(all)
    }

    fn parse_item(&self, item: &str) -> Result<Field, String> {
        let (base, step) = match item.split_once('/') {
            Some((base, step)) => (base, Some(parse_number(step)?)),
            None => (item, None),
        };
        let is_star = matches!(base, "*" | "?");
        let (first, last) = match base.split_once('-') {
            _ if is_star => (self.least, self.most),
            // The library takes it for a star.
            Some(("*" | "?", _)) => return Err("has a range from a star".to_owned()),
            Some((first, last)) => (self.parse_end(first)?, self.parse_end(last)?),
            None => {
                let one = self.parse_end(base)?;
                (one, step.map_or(one, |_| self.most))
            }
        };
        let step = step.unwrap_or(1);
        if first < self.least || last > self.most {
            return Err(format!("is not within {} to {}", self.least, self.most));
        }
        if first > last {
            return Err("begins after its end".to_owned());
        }
        if step == 0 {
            return Err("has a step of zero".to_owned());
        }
        let step_by = usize::try_from(step).unwrap_or(usize::MAX);
        let numbers = (first..=last).step_by(step_by);
        let bits = numbers.fold(0, |bits, number| bits | 1 << number);
        Ok((bits, is_star && step == 1))
    }

    fn parse_end(&self, text: &str) -> Result<u32, String> {
        let mut numbered = (self.least..).zip(self.names);
        let named = numbered.find(|(_, name)| name.eq_ignore_ascii_case(text));
        named.map_or_else(|| parse_number(text), |(number, _)| Ok(number))
    }
}

fn parse_number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("has {text:?} in the place of a number"))
}

/// The bits from 0 to this one.
fn up_to(bit: i8) -> u64 {
    !(!1 << bit)
}

fn first_bit(bits: u64) -> Option<i8> {
    i8::try_from(bits.trailing_zeros())
        .ok()
        .filter(|bit| *bit < 64)
}
