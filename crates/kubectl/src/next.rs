//! `kubectl leadsman next`: when a schedule runs, and which of its runs were missed; of an `AdvancedCronJob` also why nothing
//! runs. Without a cluster too.

use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::ValueHint;
use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use leadsman_api::{AdvancedCronJob, AdvancedCronJobSpec};
use leadsman_core::cluster::ObjectName;
use leadsman_core::cron::cron_job::CronJob;
use leadsman_core::cron::find_zone;
use leadsman_core::cron::schedule::{MOST_COUNTED, Schedule};
use leadsman_core::podprobe::explain::{ManagerState, Unread};
use leadsman_process::clock;
use serde::Serialize;
use serde_json::Value;

use crate::VerbError;
use crate::connection::ConnectionFlags;
use crate::install::Install;
use crate::output::{Colors, OutputFormat};
use crate::report::{Report, Text, TextTable, bad, bold, line, print_report, row, waiting};
use crate::resources::ADVANCED_CRON_JOBS;
use crate::trial::documents;

/// The flags of `next`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman next nightly-report\n  kubectl leadsman next -f cronjob.yaml --count 10\n  kubectl leadsman next --schedule '30 2 * * *' --time-zone Europe/Berlin --since 2027-03-27T00:00:00Z"
)]
pub struct NextArgs {
    /// Name of an `AdvancedCronJob`.
    #[arg(help = "Name of an AdvancedCronJob", required_unless_present_any = ["schedule", "file"], conflicts_with_all = ["schedule", "file"])]
    name: Option<String>,
    /// File with `AdvancedCronJob`s.
    #[arg(help = "File with AdvancedCronJobs; - for standard input", short = 'f', long = "filename", value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "schedule")]
    file: Option<PathBuf>,
    /// Schedule, as spec.schedule has it
    #[arg(long, value_name = "SCHEDULE")]
    schedule: Option<String>,
    /// Time zone, as spec.timeZone has it
    #[arg(long, value_name = "ZONE", requires = "schedule")]
    time_zone: Option<String>,
    /// The manager's --default-time-zone, of schedules that name none [default: as the manager's flags say; without a cluster UTC]
    #[arg(long, value_name = "ZONE", value_parser = find_zone)]
    default_time_zone: Option<TimeZone>,
    /// Count from this time, as 2027-03-27T00:00:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Number of times
    #[arg(long, value_name = "NUMBER", default_value_t = 5)]
    count: u16,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The answer: one schedule, or those of a file.
#[derive(Serialize)]
#[serde(transparent)]
struct Schedules(Vec<ScheduleReport>);

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScheduleReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    schedule: String,
    time_zone: String,
    next: Vec<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_schedule_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<MissedReport>,
    /// Why nothing runs, or not at the times of the schedule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
    #[serde(skip)]
    zone: TimeZone,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MissedReport {
    /// Beyond a thousand there are at least as many.
    count: usize,
    latest: Timestamp,
}

pub(crate) async fn run(args: &NextArgs) -> Result<(), VerbError> {
    let mut default = args.default_time_zone.clone();
    let mut now = clock::now();
    let mut hindrances = Vec::new();
    let jobs = match (&args.schedule, &args.file, &args.name) {
        (Some(schedule), ..) => {
            let spec = AdvancedCronJobSpec {
                schedule: schedule.clone(),
                time_zone: args.time_zone.clone(),
                ..AdvancedCronJobSpec::default()
            };
            vec![AdvancedCronJob::new("", spec)]
        }
        (None, Some(file), _) => read_jobs(&documents::read_file(file)?)?,
        (None, None, name) => {
            let name = name
                .as_deref()
                .unwrap_or_default()
                .rsplit('/')
                .next()
                .unwrap_or_default();
            let (reader, namespace) = args.connection.connect_reader().await?;
            now = reader.cluster_time().await;
            let job = reader.require(
                ADVANCED_CRON_JOBS,
                "advancedcronjob",
                name,
                Some(&namespace),
            );
            let (job, install) = futures::join!(job, reader.read_install(now));
            let job: AdvancedCronJob = job?;
            let is_named = job.spec.time_zone.is_some() || job.spec.schedule.contains("TZ=");
            let is_zone_known = default.is_some() || is_named;
            hindrances = find_hindrances(&install, is_zone_known);
            default.get_or_insert(install.default_time_zone);
            vec![job]
        }
    };
    let default = default.unwrap_or(TimeZone::UTC);
    let since = args.since.unwrap_or(now);
    let reports = jobs.into_iter().map(|job| {
        let job = CronJob::read(&Arc::new(job), &default);
        let mut report = ScheduleReport::of(&job, &default, since, usize::from(args.count));
        report.problems.extend(hindrances.iter().cloned());
        report
    });
    let schedules = Schedules(reports.collect());
    print_report(args.output, now, &schedules)?;
    match schedules.0.iter().find(|report| report.next.is_empty()) {
        Some(_) => Err(VerbError::Found("a schedule has no next time".to_owned())),
        None => Ok(()),
    }
}

/// Finds what of the installation keeps a schedule from running at the times that the answer shows.
fn find_hindrances(install: &Install, is_zone_known: bool) -> Vec<String> {
    let is_led = !matches!(
        install.manager,
        Ok(ManagerState::Absent | ManagerState::Expired(..))
    );
    let mut systems = install.gates.systems.iter();
    let is_on = systems.any(|system| system.kind == "AdvancedCronJob");
    let mut found = Vec::new();
    if !is_led {
        let doctor = "no manager leads, so nothing runs: `kubectl leadsman doctor` says why";
        found.push(doctor.to_owned());
    }
    match &install.assumed {
        None if !is_on => found.push("AdvancedCronJobGate is off, so nothing runs".to_owned()),
        Some(Unread(why)) if !is_zone_known => found.push(format!(
            "spec.timeZone is absent and the manager's --default-time-zone unknown, so UTC is assumed: {why}"
        )),
        _ => {}
    }
    found
}

fn read_jobs(text: &str) -> Result<Vec<AdvancedCronJob>, VerbError> {
    let objects = documents::parse_objects(text)?.into_iter();
    let jobs: Vec<_> = objects
        .filter(|object| object["kind"] == "AdvancedCronJob")
        .map(parse_job)
        .collect::<Result<_, _>>()?;
    if jobs.is_empty() {
        return Err(VerbError::Usage(
            "the file has no AdvancedCronJob".to_owned(),
        ));
    }
    Ok(jobs)
}

fn parse_job(object: Value) -> Result<AdvancedCronJob, VerbError> {
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    serde_json::from_value(object)
        .map_err(|error| VerbError::Usage(format!("AdvancedCronJob {name} is not valid: {error}")))
}

impl ScheduleReport {
    fn of(job: &CronJob, default: &TimeZone, since: Timestamp, count: usize) -> Self {
        let spec = &job.wire.spec;
        let name = ObjectName::of(&job.wire.metadata);
        let mut report = Self {
            name: Some(name.to_string()).filter(|name| !name.is_empty()),
            schedule: spec.schedule.clone(),
            time_zone: String::new(),
            next: Vec::new(),
            last_schedule_time: job.last_schedule_time(),
            missed: None,
            problems: Vec::new(),
            zone: default.clone(),
        };
        match &job.schedule {
            Ok(schedule) => report.add_times(job, schedule, since, count),
            Err(error) => report.problems.push(error.to_string()),
        }
        report.time_zone = report.zone.iana_name().unwrap_or_default().to_owned();
        if report.name.is_some() {
            report.add_problems(job);
        }
        report
    }

    fn add_times(&mut self, job: &CronJob, schedule: &Schedule, since: Timestamp, count: usize) {
        if let Schedule::Calendar(_, zone) = schedule {
            self.zone = zone.clone();
        }
        let begun = job.last_schedule_time().or_else(|| {
            let created = job.wire.metadata.creation_timestamp.as_ref();
            created.map(|_| job.created())
        });
        let missed = begun.and_then(|begun| schedule.missed(begun, since));
        self.missed = missed.map(|missed| MissedReport {
            count: missed.count,
            latest: missed.latest,
        });
        let first = match (schedule, begun) {
            // The times of an interval are counted from the one before, however late that one begins.
            (Schedule::Every(_), Some(begun)) => missed.map_or(begun, |missed| missed.latest),
            _ => since,
        };
        let times = std::iter::successors(schedule.next_after(first), |time| {
            schedule.next_after(*time)
        });
        self.next = times.take(count).collect();
    }

    fn add_problems(&mut self, job: &CronJob) {
        let spec = &job.wire.spec;
        if let Err(error) = &job.template {
            self.problems.push(error.to_string());
        }
        if spec.paused {
            self.problems
                .push("paused: nothing runs before spec.paused is false".to_owned());
        }
        match spec.starting_deadline_seconds {
            Some(0) => {
                let never = "startingDeadlineSeconds is 0: nothing ever runs in time";
                self.problems.push(never.to_owned());
            }
            Some(_) if self.missed.is_some() => {
                let missed = "a missed run begins only within startingDeadlineSeconds of its time";
                self.problems.push(missed.to_owned());
            }
            _ => {}
        }
        let active: Vec<_> = job.status.active.iter().map(|run| &*run.name).collect();
        if spec.concurrency_policy.as_deref() == Some("Forbid") && !active.is_empty() {
            let waits = format!(
                "concurrencyPolicy is Forbid: waits for {} to end",
                active.join(", ")
            );
            self.problems.push(waits);
        }
        let conditions = job.status.conditions.iter();
        for condition in conditions.filter(|condition| condition.status == "False") {
            if !self.problems.contains(&condition.message) {
                self.problems.push(condition.message.clone());
            }
        }
    }
}

impl Report for Schedules {
    fn add_text(&self, text: &mut Text) {
        for report in &self.0 {
            text.add_gap();
            let name = report.name.as_deref().unwrap_or("schedule");
            let (schedule, zone) = (&report.schedule, &report.time_zone);
            line!(text, 0 => "{}: {schedule} ({zone})", bold(name));
            if let Some(last) = report.last_schedule_time {
                line!(text, 2 => "last run of {last}");
            }
            if let Some(MissedReport { count, latest }) = &report.missed {
                let at_least = if *count > MOST_COUNTED {
                    "at least "
                } else {
                    ""
                };
                line!(text, 2 => "{}", waiting(format_args!("missed {at_least}{count}, the latest of {latest}")));
            }
            for problem in &report.problems {
                line!(text, 2 => "{}", bad(problem));
            }
            let mut table = TextTable::new(&["NEXT", "LOCAL TIME"]);
            for time in &report.next {
                let local = time.to_zoned(report.zone.clone());
                row!(table => time, strtime::format("%a %F %T %Z", &local).unwrap_or_default());
            }
            if !report.next.is_empty() {
                text.add_table(2, &table);
            }
        }
    }

    fn names(&self) -> Vec<String> {
        self.0
            .iter()
            .filter_map(|report| report.name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::reader::FakeServer;
    use crate::report::plain_text;

    const LEASE: &str =
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leadsman-manager";
    const MANAGERS: &str = "/api/v1/namespaces/leadsman-system/pods";
    const JOB: &str = "
apiVersion: apps.kruise.io/v1beta1
kind: AdvancedCronJob
metadata: {name: report, namespace: shop, creationTimestamp: '2027-03-26T00:00:00Z'}
spec:
  schedule: 30 2 * * *
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  paused: true
  template: {}
status: {lastScheduleTime: '2027-03-26T01:30:00Z', active: [{name: report-1774488600}]}
";

    fn reports(text: &str, since: &str) -> Schedules {
        let jobs = read_jobs(text)
            .unwrap()
            .into_iter()
            .map(|job| CronJob::read(&Arc::new(job), &TimeZone::UTC));
        let since = since.parse().unwrap();
        Schedules(
            jobs.map(|job| ScheduleReport::of(&job, &TimeZone::UTC, since, 2))
                .collect(),
        )
    }

    // ACJ-12
    #[test]
    fn the_answer_has_the_next_times_the_missed_ones_and_why_nothing_runs() {
        let reports = reports(JOB, "2027-03-27T12:00:00Z");
        let expected = "\
shop/report: 30 2 * * * (Europe/Berlin)
  last run of 2027-03-26T01:30:00Z
  missed 1, the latest of 2027-03-27T01:30:00Z
  spec.template has 0 templates instead of one: jobTemplate or broadcastJobTemplate
  paused: nothing runs before spec.paused is false
  concurrencyPolicy is Forbid: waits for report-1774488600 to end
  NEXT                   LOCAL TIME
  2027-03-29T00:30:00Z   Mon 2027-03-29 02:30:00 CEST
  2027-03-30T00:30:00Z   Tue 2027-03-30 02:30:00 CEST
";
        assert_eq!(
            plain_text(&reports, false, "2027-03-27T12:00:00Z"),
            expected
        );
    }

    #[test]
    fn times_at_a_distance_are_counted_from_the_last_one() {
        let every = JOB
            .replace("30 2 * * *", "'@every 7h'")
            .replace("timeZone: Europe/Berlin", "paused: false");
        let every = every.replacen("  paused: true\n", "", 1);
        let reports = reports(&every, "2027-03-26T12:00:00Z");
        let next: Vec<_> = reports.0[0].next.iter().map(ToString::to_string).collect();
        assert_eq!(next, ["2027-03-26T15:30:00Z", "2027-03-26T22:30:00Z"]);
    }

    #[tokio::test]
    async fn the_managers_flags_say_the_zone_and_whether_anything_runs() {
        let now: Timestamp = "2027-03-27T12:00:00Z".parse().unwrap();
        let lease = json!({"metadata": {}, "spec": {"holderIdentity": "leadsman-system/m_1",
            "renewTime": "2027-03-27T11:59:59.000000Z"}});
        let pods = |flags: &[&str]| {
            let args = [&["manager"], flags].concat();
            let pod = json!({"metadata": {"name": "m"}, "spec": {"containers": [{"name": "manager", "args": args}]}});
            json!({"metadata": {}, "items": [pod]})
        };
        let zone = "--default-time-zone=Asia/Tokyo";
        let read = async |lease: &Value, flags: &[&str]| {
            let server = FakeServer::new([(LEASE, lease.clone()), (MANAGERS, pods(flags))]);
            server.reader().read_install(now).await
        };
        let install = read(&lease, &[zone, "--feature-gates=AdvancedCronJobGate=true"]).await;
        assert_eq!(install.default_time_zone.iana_name(), Some("Asia/Tokyo"));
        assert_eq!(find_hindrances(&install, false), [""; 0]);
        let off = find_hindrances(
            &read(&json!({"metadata": {}, "spec": {}}), &[zone]).await,
            false,
        );
        assert!(
            off[0].contains("doctor") && off[1].contains("is off"),
            "{off:?}"
        );
        // A person with `view` reads neither the Lease nor the managers' pods.
        let unread = FakeServer::new([]).reader().read_install(now).await;
        let unread = Install {
            manager: Err(Unread(String::new())),
            ..unread
        };
        assert_eq!(find_hindrances(&unread, true), [""; 0]);
        let assumed = find_hindrances(&unread, false);
        assert!(
            assumed[0].contains("UTC is assumed: the API server does not serve pods"),
            "{assumed:?}"
        );
    }

    #[test]
    fn a_schedule_that_cannot_be_read_is_told() {
        let reports = reports(
            &JOB.replace("30 2 * * *", "60 2 * * *"),
            "2027-03-26T12:00:00Z",
        );
        assert!(reports.0[0].next.is_empty());
        assert!(reports.0[0].problems[0].contains("not within 0 to 59"));
    }
}
