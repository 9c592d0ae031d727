//! Schedules: the grammar, and the times against those of the library and against a search minute by minute.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use crate::cron::schedule::{MOST_COUNTED, Missed, Schedule};
use crate::cron::{find_zone, zone_database_version};

fn parse(schedule: &str) -> Schedule {
    Schedule::parse(schedule, None, &TimeZone::UTC).unwrap()
}

fn refusal(schedule: &str, zone: Option<&str>) -> String {
    let parsed = Schedule::parse(schedule, zone, &TimeZone::UTC);
    let error = parsed.expect_err(schedule);
    error.to_string()
}

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

// ACJ-4, ACJ-5, ACJ-7, ACJ-9
#[test]
fn what_the_library_takes_is_taken() {
    for schedule in [
        "* * * * *",
        "*/1 * * * * ",
        "  */5 *\t* * *",
        "* * * * 0",
        "* * * JAN-mar SUN",
        "* * * * mon/2",
        "* * * * mon-fri/2",
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
        "@every 5s",
        "@every 1h30m",
        "@every 1.5h",
        "@every 500ms",
        "@every 0s",
        "@every +1us",
        "@every .5h",
        "@every 0",
        "@every 1µs",
        "05 +5 * * *",
        "*/100 * * * *",
        "5/15 * * * *",
        "1,,2 * * * *",
        "0-59/61 * * * *",
        "0 0 * * *\n",
        "TZ=Asia/Shanghai 0 10 * * *",
        "CRON_TZ=Asia/Shanghai 0 10 * * *",
        "TZ=UTC  * * * * *",
        "TZ= * * * * *",
        "TZ=Local * * * * *",
        "TZ=UTC @daily",
        "TZ=UTC @daily ",
        "TZ=UTC @every 5s",
        "0 0 29 2 *",
        "0 0 30 2 1",
    ] {
        assert!(
            Schedule::parse(schedule, None, &TimeZone::UTC).is_ok(),
            "{schedule}"
        );
    }
}

// ACJ-4, ACJ-5, ACJ-7, ACJ-9, ACD-10, ACD-11
#[test]
fn what_the_library_refuses_or_should_is_refused_with_what_is_wrong() {
    for (schedule, problem) in [
        ("", "has 0 fields instead of 5"),
        (" ", "has 0 fields instead of 5"),
        ("* * * *", "has 4 fields"),
        ("0 0 0 1 1 ? 2030", "has 7 fields"),
        (
            "60 * * * *",
            "the minute \"60\" of the schedule is not within 0 to 59",
        ),
        ("* 24 * * *", "the hour \"24\""),
        (
            "* * 0 * *",
            "day of month \"0\" of the schedule is not within 1 to 31",
        ),
        ("* * 32 * *", "not within 1 to 31"),
        ("* * * 13 *", "not within 1 to 12"),
        ("* * * * 7", "not within 0 to 6"),
        (
            "* * * january *",
            "has \"january\" in the place of a number",
        ),
        ("0 0 L * *", "has \"L\""),
        ("* * * * 1#2", "has \"1#2\""),
        ("5-1 * * * *", "begins after its end"),
        ("*/0 * * * *", "has a step of zero"),
        ("*/-1 * * * *", "has \"-1\""),
        ("1-5-7 * * * *", "has \"5-7\""),
        ("*/2/3 * * * *", "has \"2/3\""),
        ("-1 * * * *", "has \"\""),
        ("1.5 * * * *", "has \"1.5\""),
        ("0x5 * * * *", "has \"0x5\""),
        ("٣ * * * *", "in the place of a number"),
        ("18446744073709551616 * * * *", "in the place of a number"),
        ("* * * * */mon", "has \"mon\""),
        ("@Hourly", "is none of @yearly"),
        ("@reboot", "is none of @yearly"),
        ("@every", "is none of @yearly"),
        ("@daily ", "without blanks"),
        (" @daily", "has 1 fields"),
        ("@every  5s", "the duration \" 5s\""),
        ("@every 5", "the duration \"5\""),
        ("@every 1d", "the duration \"1d\""),
        ("@every 1h.", "the duration \"1h.\""),
        ("@every .s", "the duration"),
        ("@every 9999999999h", "the duration"),
        (" TZ=UTC * * * * *", "has 6 fields"),
        ("tz=UTC * * * * *", "has 6 fields"),
        (
            "TZ=Asia/Nowhere * * * * *",
            "unknown time zone \"Asia/Nowhere\"",
        ),
        ("TZ=local * * * * *", "unknown time zone \"local\""),
        ("TZ=asia/shanghai * * * * *", "unknown time zone"),
        ("TZ=../etc/localtime * * * * *", "unknown time zone"),
        ("TZ=UTC\t* * * * *", "unknown time zone"),
        // ACD-11: the library's parser panics.
        ("TZ=0", "ends after its time zone"),
        ("TZ=", "ends after its time zone"),
        // ACD-10: it takes these.
        ("*-9 * * * *", "has a range from a star"),
        ("?-3 * * * *", "has a range from a star"),
        (",, * * * *", "never fires"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 ?", "never fires"),
        ("@every -5m", "the duration \"-5m\" is not a positive one"),
    ] {
        let refusal = refusal(schedule, None);
        assert!(refusal.contains(problem), "{schedule:?}: {refusal}");
    }
}

// ACJ-9, ACJ-10
#[test]
fn a_time_zone_is_one_of_the_database_and_stands_in_one_place() {
    for zone in [
        "Asia/Shanghai",
        "UTC",
        "Etc/UTC",
        "GMT",
        "EST",
        "Etc/GMT+8",
        "US/Pacific",
    ] {
        assert!(
            Schedule::parse("@daily", Some(zone), &TimeZone::UTC).is_ok(),
            "{zone}"
        );
    }
    for zone in [
        "",
        "Local",
        "local",
        "utc",
        "broken",
        "asia/shanghai",
        "../x",
        "/etc/localtime",
        "Asia/Shanghai ",
        "GMT+8",
        "America",
        "zone.tab",
        "Asia\\Shanghai",
        "Etc/Unknown",
    ] {
        let text = refusal("@daily", Some(zone));
        assert!(
            text.starts_with(&format!("unknown time zone {zone:?}")),
            "{text}"
        );
        assert!(text.contains(zone_database_version()), "{text}");
    }
    assert!(refusal("TZ=UTC @daily", Some("UTC")).contains("beside the field timeZone"));
    assert!(
        zone_database_version().starts_with("20"),
        "{}",
        zone_database_version()
    );
}

// ACJ-6, ACJ-8, ACJ-12, ACD-9, ACD-10, ACD-22
#[test]
fn the_next_times_are_those_of_the_library() {
    let rows = include_str!("next.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for row in rows {
        let [_, schedule, zone, after, next] = row.splitn(5, '|').collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let schedule = &schedule[1..schedule.len() - 1];
        let zone = Some(zone.trim()).filter(|zone| !zone.is_empty());
        let mut time = at(after.trim());
        match Schedule::parse(schedule, zone, &TimeZone::UTC) {
            Ok(schedule) => {
                for next in next.split_whitespace() {
                    let found = schedule.next_after(time);
                    assert_eq!(found, (next != "never").then(|| at(next)), "{row}");
                    time = found.unwrap_or(time);
                }
            }
            // Those that we refuse, and the original takes.
            Err(_) => assert!(
                ["*-9", "?-3", "@every -5m", ",,", " 30 2 ", " 31 4,"]
                    .iter()
                    .any(|taken| row.contains(taken)),
                "{row}"
            ),
        }
        count += 1;
    }
    assert_eq!(count, 97);
}

// ACD-22
#[test]
fn a_date_that_a_zone_left_out_is_passed_over() {
    let zone = Some("Pacific/Apia");
    let schedule = Schedule::parse("0 12 30 12 *", zone, &TimeZone::UTC).unwrap();
    let next = schedule.next_after(at("2011-12-01T00:00:00Z"));
    assert_eq!(next, Some(at("2012-12-29T22:00:00Z")));
}

// ACJ-16, ACD-2
#[test]
fn the_latest_missed_time_is_found_however_long_ago_the_first_one_was() {
    let missed = |schedule: &str, after, until| parse(schedule).missed(at(after), at(until));
    let latest = |latest, count| {
        Some(Missed {
            latest: at(latest),
            count,
        })
    };
    let (day, next) = ("2026-11-24T00:00:00Z", "2026-11-24T00:02:30.9Z");
    assert_eq!(
        missed("* * * * *", day, next),
        latest("2026-11-24T00:02:00Z", 2)
    );
    assert_eq!(
        missed("@every 50s", day, next),
        latest("2026-11-24T00:02:30Z", 3)
    );
    assert_eq!(missed("@hourly", day, next), None);
    // A clock that was put back.
    assert_eq!(missed("* * * * *", next, day), None);
    assert_eq!(missed("@every 50s", next, day), None);
    let many = MOST_COUNTED + 1;
    assert_eq!(
        missed("* * * * *", "2006-11-24T00:00:00Z", next),
        latest("2026-11-24T00:02:00Z", many)
    );
    // A minute each of one day a year.
    assert_eq!(
        missed("* * 1 1 *", "2006-11-24T00:00:00Z", next),
        latest("2026-01-01T23:59:00Z", many)
    );
    let seconds = at(next).as_second() - at(day).as_second() + 86_400 * 365;
    let missed = missed("@every 1s", "2025-11-24T00:00:00Z", next);
    assert_eq!(
        missed,
        latest("2026-11-24T00:02:30Z", usize::try_from(seconds).unwrap())
    );
}

/// A field as it is written, and what it matches.
#[derive(Clone, Debug)]
enum Field {
    Star,
    Step(i8),
    These(Vec<i8>),
}

impl Field {
    fn text(&self) -> String {
        match self {
            Self::Star => "*".to_owned(),
            Self::Step(step) => format!("*/{step}"),
            Self::These(numbers) => numbers
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(","),
        }
    }

    fn matches(&self, number: i8, least: i8) -> bool {
        match self {
            Self::Star => true,
            Self::Step(step) => (number - least) % step == 0,
            Self::These(numbers) => numbers.contains(&number),
        }
    }

    fn is_star(&self) -> bool {
        matches!(self, Self::Star | Self::Step(1))
    }
}

fn field(least: i8, most: i8) -> impl Strategy<Value = Field> {
    prop_oneof![
        Just(Field::Star),
        (1..=most).prop_map(Field::Step),
        prop::collection::vec(least..=most, 1..4).prop_map(Field::These),
    ]
}

/// The instants, and whether the local time in the zone matches.
fn matches(fields: &[Field; 5], zone: &TimeZone, instant: Timestamp) -> bool {
    let [minute, hour, day, month, weekday] = fields;
    let local = zone.to_datetime(instant);
    let is_day = day.matches(local.day(), 1);
    let is_weekday = weekday.matches(local.weekday().to_sunday_zero_offset(), 0);
    local.second() == 0
        && minute.matches(local.minute(), 0)
        && hour.matches(local.hour(), 0)
        && month.matches(local.month(), 1)
        && if day.is_star() || weekday.is_star() {
            is_day && is_weekday
        } else {
            is_day || is_weekday
        }
}

const ZONES: [&str; 12] = [
    "UTC",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Antarctica/Troll",
    "Europe/Dublin",
    "America/St_Johns",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    // ACJ-6, ACJ-8, ACJ-12, ACD-9
    #[test]
    fn the_next_time_is_the_first_minute_that_matches(
        fields in (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6)),
        zone in prop::sample::select(&ZONES[..]),
        // Of twenty years, near a change of the clocks if there is one in a year.
        from in 1_167_609_600..1_798_761_600_i64,
    ) {
        let fields = [fields.0, fields.1, fields.2, fields.3, fields.4];
        let text = fields.iter().map(Field::text).collect::<Vec<_>>().join(" ");
        let zone = find_zone(zone).unwrap();
        let schedule = Schedule::parse(&text, None, &zone);
        prop_assume!(schedule.is_ok());
        let (schedule, mut from) = (schedule.unwrap(), Timestamp::from_second(from).unwrap());
        if let Some(change) = zone.following(from).next() {
            let before = change.timestamp() - SignedDuration::from_hours(30);
            from = if before.duration_since(from).as_hours() < 24 * 366 { before } else { from };
        }
        let until = from + SignedDuration::from_hours(60);
        let first_minute = 60 - from.as_second().rem_euclid(60);
        let minutes = (0..60 * 60).map(|minute| from + SignedDuration::from_secs(first_minute + 60 * minute));
        let expected = minutes.filter(|minute| *minute <= until && matches(&fields, &zone, *minute));
        let found = std::iter::successors(schedule.next_after(from), |time| schedule.next_after(*time));
        let found: Vec<_> = found.take_while(|time| *time <= until).collect();
        prop_assert_eq!(&found, &expected.collect::<Vec<_>>(), "{} from {}", text, from);
        if let Some(missed) = schedule.missed(from, until) {
            prop_assert_eq!(Some(&missed.latest), found.last());
            prop_assert_eq!(missed.count, found.len().min(MOST_COUNTED + 1));
        } else {
            prop_assert!(found.is_empty());
        }
    }
}
