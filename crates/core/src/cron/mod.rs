//! `AdvancedCronJob`: jobs at the times of a schedule.
//!
//! | module | holds |
//! |---|---|
//! | `schedule` | the grammar of schedules, the next time and the missed ones |
//! | `schedule_error` | the reasons why a schedule cannot be read |
//! | `calendar` | the five fields of a schedule |
//! | `zone` | the database of time zones |
//! | `cron_job` | a cron job and its runs, as they are read from the wire |
//! | `world` | the objects that are known, and the writes |
//! | `feature` | what makes a cron job run anew |
//! | `reconcile` | what a cron job wants: a run, fewer old runs, another status |
//! | `notices` | the events |
//!
//! # What always holds
//!
//! A time is run at most once, and the latest time for which a run was begun never goes back. Kubernetes has no write of two
//! objects at once, so one of them comes first: the run, whose name is that of its time, or the status, which remembers it. The
//! run comes first where only leadsman deletes it, which it does only after the status shows it. A run that cleans itself up
//! (`ttlSecondsAfterFinished`) could be gone before the status shows it; there the status comes first, with a reference that has
//! no uid.

mod calendar;
pub mod cron_job;
pub mod feature;
mod notices;
mod reconcile;
pub mod schedule;
pub mod schedule_error;
pub mod world;
mod zone;

pub use self::zone::{UnknownTimeZone, find_zone, version_with_zones, zone_database_version};

#[cfg(test)]
mod tests;
