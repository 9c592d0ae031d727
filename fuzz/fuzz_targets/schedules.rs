//! The schedule of a cron job, at any time that there is: the next run is later, and the same for whoever asks a moment later.
#![no_main]

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use leadsman_core::cron::schedule::{Missed, Schedule};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((moment, text)) = data.split_first_chunk::<8>() else {
        return;
    };
    let Ok(text) = str::from_utf8(text) else {
        return;
    };
    let (least, most) = (
        Timestamp::MIN.as_nanosecond(),
        Timestamp::MAX.as_nanosecond(),
    );
    let step = (most - least) / i128::from(u64::MAX);
    let moment = least + step * i128::from(u64::from_le_bytes(*moment));
    let moment = Timestamp::from_nanosecond(moment).expect("a time between the first and the last");
    let (schedule, zone) = text.split_once('\n').unwrap_or((text, ""));
    let zone = Some(zone).filter(|zone| !zone.is_empty());
    let Ok(schedule) = Schedule::parse(schedule, zone, &TimeZone::UTC) else {
        return;
    };
    let Some(next) = schedule.next_after(moment) else {
        return;
    };
    assert!(next > moment && next.subsec_nanosecond() == 0, "{next}");
    let missed = schedule.missed(moment, next);
    assert_eq!(
        missed,
        Some(Missed {
            latest: next,
            count: 1
        })
    );
    if let (Schedule::Calendar(..), Ok(before)) =
        (&schedule, next.checked_sub(SignedDuration::from_nanos(1)))
    {
        let middle = moment.as_nanosecond().midpoint(before.as_nanosecond());
        let middle = Timestamp::from_nanosecond(middle).expect("a time between two others");
        assert_eq!(schedule.next_after(middle), Some(next));
        assert_eq!(schedule.missed(moment, before), None);
    }
});
