//! What the server stores: runs that are created, end and go, the status of the cron job; and what must hold at every write.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leadsman_api::AdvancedCronJob;
use leadsman_reconcile::Write;
use serde_json::{Value, json};

use super::{Event, NAME, Outcome, Play, RunName, ServerRun, object_name, time_of};
use crate::cron::cron_job::RunKind;
use crate::cron::world::Cron;

impl Play {
    /// A user changes the cron job.
    pub(in super::super) fn change(&mut self, change: impl FnOnce(&mut AdvancedCronJob)) {
        let before = self.cron_job.spec.clone();
        change(&mut self.cron_job);
        if self.cron_job.spec != before {
            let generation = &mut self.cron_job.metadata.generation;
            *generation = generation.map(|generation| generation + 1);
        }
        self.show_cron_job();
    }

    fn show_cron_job(&mut self) {
        self.version += 1;
        self.cron_job.metadata.resource_version = Some(self.version.to_string());
        for process in &mut self.processes {
            process
                .cron_job
                .push_back(Event::CronJob(Box::new(self.cron_job.clone())));
        }
    }

    /// The latest time in the status.
    pub(in super::super) fn last(&self) -> Option<i64> {
        let status = self.cron_job.status.as_ref()?;
        status
            .last_schedule_time
            .as_ref()
            .map(|time| time.0.as_second())
    }

    pub(in super::super) fn status_active(&self) -> Vec<Value> {
        let status = json!(self.cron_job.status);
        status["active"].as_array().cloned().unwrap_or_default()
    }

    fn put(&mut self, name: RunName, mut run: ServerRun) {
        self.version += 1;
        run.version = self.version;
        run.body["metadata"]["resourceVersion"] = json!(self.version.to_string());
        for process in &mut self.processes {
            process.runs.push_back(Event::Run(name.0, run.body.clone()));
        }
        self.runs.insert(name, run);
    }

    pub(super) fn remove(&mut self, name: &RunName) {
        if self.runs.remove(name).is_some() {
            self.version += 1;
            for process in &mut self.processes {
                process
                    .runs
                    .push_back(Event::RunGone(name.0, name.1.clone(), self.version));
            }
        }
    }

    /// A user deletes a run. If no status shows it yet, only a process that has seen it remembers it; and a request that repeats
    /// its creation may be under way.
    pub(super) fn forget(&mut self, (kind, name): &RunName) {
        let time = time_of(name);
        let is_announced = self
            .status_active()
            .iter()
            .any(|run| run["name"] == *name && run["uid"].is_null());
        if self.last() < Some(time) || is_announced {
            let mut creations = self
                .under_way
                .keys()
                .filter(|id| id.kind < RunKind::ALL.len());
            let is_repeated = creations.any(|id| *id.name == object_name(name));
            let runs = self.leader().reconciler.world().runs(*kind);
            let is_seen = runs.observed(&object_name(name)).is_some();
            if is_seen && !is_repeated {
                self.remembered.insert(time);
            } else {
                self.forgotten.insert(time);
            }
        }
    }

    pub(super) fn end_run(&mut self, run: usize, fails: bool) {
        let unfinished = self.runs.iter().filter(|(_, run)| run.ended.is_none());
        let name = unfinished.map(|(name, _)| name.clone()).nth(run);
        if let Some((name, mut run)) =
            name.and_then(|name| Some((name.clone(), self.runs.get(&name)?.clone())))
        {
            run.ended = Some(self.time);
            let condition = if fails { "Failed" } else { "Complete" };
            run.body["status"] = json!({"conditions": [{"type": condition, "status": "True"}]});
            self.put(name, run);
        }
    }

    pub(super) fn clean(&mut self) {
        let lives = |run: &ServerRun| {
            let paths = [
                "/spec/ttlSecondsAfterFinished",
                "/spec/completionPolicy/ttlSecondsAfterFinished",
            ];
            paths
                .iter()
                .find_map(|path| run.body.pointer(path)?.as_i64())
        };
        let is_over = |run: &ServerRun| Some(run.ended? + lives(run)? <= self.time);
        let over = self
            .runs
            .iter()
            .filter(|(_, run)| is_over(run) == Some(true));
        for name in over.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.remove(&name);
        }
    }

    pub(super) fn carry_out(&mut self, write: &Write<Cron>) -> Outcome {
        let (label, body) = (write.kind().label, write.body());
        let name = write.name().name.clone();
        if body["spec"]["refused"] == true {
            return Outcome::Refused;
        }
        match label {
            "advancedcronjob_judge_job" | "advancedcronjob_judge_broadcastjob" => {}
            "advancedcronjob_status" => {
                if body["metadata"]["resourceVersion"]
                    != json!(self.cron_job.metadata.resource_version)
                {
                    return Outcome::NotDone;
                }
                let last = self.last();
                self.cron_job.status = serde_json::from_value(body["status"].clone()).unwrap();
                assert!(self.last() >= last, "the status goes back");
                self.show_cron_job();
            }
            "advancedcronjob_create_job" | "advancedcronjob_create_broadcastjob" => {
                let kind = if label == "advancedcronjob_create_job" {
                    RunKind::Job
                } else {
                    RunKind::BroadcastJob
                };
                return self.create(kind, name, body);
            }
            _ => {
                let kind = if label == "advancedcronjob_delete_job" {
                    RunKind::Job
                } else {
                    RunKind::BroadcastJob
                };
                let Some(run) = self.runs.get(&(kind, name.clone())) else {
                    return Outcome::Gone;
                };
                if run.body["metadata"]["uid"] != body["preconditions"]["uid"] {
                    return Outcome::Gone;
                }
                assert!(
                    Some(time_of(&name)) <= self.last(),
                    "{name} is deleted before the status shows it"
                );
                self.remove(&(kind, name));
            }
        }
        *self.written.entry(label).or_default() += 1;
        Outcome::Done
    }

    fn create(&mut self, kind: RunKind, name: String, mut body: Value) -> Outcome {
        if self.runs.contains_key(&(kind, name.clone())) {
            return Outcome::NotDone;
        }
        let time = time_of(&name);
        let times = self.started.entry(time).or_default();
        *times += 1;
        assert!(
            *times == 1 || self.forgotten.contains(&time),
            "{name} runs twice"
        );
        if matches!(
            self.cron_job.spec.concurrency_policy.as_deref(),
            Some("Forbid" | "Replace")
        ) {
            let active = self.runs.iter().find(|(_, run)| run.ended.is_none());
            assert!(active.is_none(), "{name} runs beside {active:?}");
        }
        self.version += 1;
        body["metadata"]["uid"] = json!(format!("run-{}", self.version));
        *self.written.entry("create").or_default() += 1;
        let run = ServerRun {
            body,
            version: 0,
            ended: None,
        };
        self.put((kind, name), run);
        Outcome::Done
    }

    /// The cron job is deleted and made again between two runs of its key.
    pub(in super::super) fn replace(&mut self) {
        let created = Timestamp::from_second(self.time).unwrap();
        self.cron_job.metadata.creation_timestamp = Some(Time(created));
        self.cron_job.metadata.uid = Some("another".to_owned());
        self.cron_job.status = None;
        self.change(|_| {});
    }

    /// Puts an object of somebody else in the way of a run.
    pub(in super::super) fn put_other(&mut self, kind: RunKind, name: &str, owner: Option<&str>) {
        self.version += 1;
        let owners = owner.map(|uid| json!([{"apiVersion": "apps.kruise.io/v1alpha1", "kind": "AdvancedCronJob", "name": NAME, "uid": uid, "controller": true}]));
        let body = json!({"metadata": {"name": name, "namespace": "shop", "uid": format!("other-{}", self.version), "ownerReferences": owners}});
        let run = ServerRun {
            body,
            version: 0,
            ended: None,
        };
        self.put((kind, name.to_owned()), run);
        self.turn();
    }
}
