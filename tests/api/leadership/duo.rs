//! A control plane, a crowd of pods and two managers, the first of which leads.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::PostParams;
use kube::{Api, Client};
use leadsman_testkit::ControlPlane;
use leadsman_testkit::audit::{Mark, Request};
use leadsman_testkit::leadsman;
use leadsman_tests::process::Signal;
use leadsman_tests::scene::differs;
use leadsman_tests::{Crowd, History, Link, Process, wait_for_answer, wait_for_object};
use serde_json::json;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::marks::{idle, marked};

/// Where the Lease is.
const NAMESPACE: &str = "kube-system";
const LEASE: &str = "leadsman-manager";
const NODES: usize = 4;
const PODS: usize = 24;
/// How many cases have a control plane at once; each takes half a gigabyte.
static ROOMS: Semaphore = Semaphore::const_new(2);

/// Two managers and what they work on.
pub(crate) struct Duo {
    pub(crate) plane: ControlPlane,
    /// The first manager's way to the API server.
    pub(crate) link: Link,
    pub(crate) client: Client,
    crowd: Crowd,
    managers: Vec<Manager>,
    _room: SemaphorePermit<'static>,
}

struct Manager {
    user: String,
    /// None once it has ended.
    process: Option<Process>,
}

impl Duo {
    /// All pods marked by a first manager that leads, with Leases of so many seconds, beside a standby.
    pub(crate) async fn raise(seconds: u16) -> Result<Self> {
        let room = ROOMS.acquire().await?;
        let plane = leadsman::control_plane().await?;
        let client = plane.client().await?;
        let mut duo = Self {
            link: Link::to(plane.server()).await?,
            crowd: Crowd::new(&client, "duo", NODES, PODS).await?,
            plane,
            client,
            managers: Vec::new(),
            _room: room,
        };
        duo.crowd.scene(0).marker("m", idle()).await?;
        let through = duo.link.url();
        duo.start("first", Some(&through), seconds).await?;
        duo.wait_until_led_by(0).await?;
        duo.report_verdicts(&duo.pods(), "Succeeded").await?;
        duo.wait_for_marks("Succeeded").await?;
        duo.start("second", None, seconds).await?;
        duo.wait_until_standing_by(1).await?;
        Ok(duo)
    }

    /// Starts a manager with a user of its own, who has the rights that the manifests give to a manager.
    pub(crate) async fn start(
        &mut self,
        name: &str,
        server: Option<&str>,
        seconds: u16,
    ) -> Result<()> {
        let user = format!("{name}-manager");
        let subjects =
            json!([{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]);
        let binding = |kind, role: &str| {
            json!({"metadata": {"name": format!("{role}-{user}")}, "subjects": subjects,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}})
        };
        let params = PostParams::default();
        for role in [LEASE, "leadsman-manager-podprobe"] {
            let all: ClusterRoleBinding = serde_json::from_value(binding("ClusterRole", role))?;
            Api::all(self.client.clone()).create(&params, &all).await?;
        }
        let own: RoleBinding = serde_json::from_value(binding("Role", LEASE))?;
        let bindings = Api::namespaced(self.client.clone(), NAMESPACE);
        bindings.create(&params, &own).await?;

        let kubeconfig = self.kubeconfig(&user, server)?;
        let mut command = leadsman::manager(&kubeconfig, "127.0.0.1:0")?;
        command
            .args(["--lease-duration", &seconds.to_string()])
            .env("LEADSMAN_LOG", "info,leadsman=debug");
        let log = self.plane.folder().join(format!("logs/{user}.log"));
        let process = Some(Process::start(command, &log)?);
        self.managers.push(Manager { user, process });
        Ok(())
    }

    fn kubeconfig(&self, user: &str, server: Option<&str>) -> Result<PathBuf> {
        let kubeconfig = self.plane.kubeconfig_for(user, &[])?;
        match server {
            Some(server) => self.plane.kubeconfig_through(&kubeconfig, server),
            None => Ok(kubeconfig),
        }
    }

    pub(crate) fn pods(&self) -> Vec<String> {
        self.crowd.pods.clone()
    }

    /// The pods, in two halves.
    pub(crate) fn halves(&self) -> (Vec<String>, Vec<String>) {
        let mut first = self.pods();
        let rest = first.split_off(PODS / 2);
        (first, rest)
    }

    pub(crate) async fn report_verdicts(&self, pods: &[String], state: &str) -> Result<()> {
        self.crowd.report_verdicts(pods, &["m#Idle"], state).await
    }

    /// Waits until all pods are marked so.
    pub(crate) async fn wait_for_marks(&self, state: &str) -> Result<()> {
        self.crowd
            .wait_for_marks(&self.pods(), &marked(state))
            .await
    }

    /// This moment, and a record of the pods from it on.
    pub(crate) async fn record_from_now(&self) -> Result<(Mark, History)> {
        let history = History::of(&self.client, "duo").await?;
        Ok((self.mark()?, history))
    }

    pub(crate) fn mark(&self) -> Result<Mark> {
        self.plane.audit_mark()
    }

    fn process(&self, which: usize) -> Result<&Process> {
        let process = self.managers[which].process.as_ref();
        process.context("it has ended")
    }

    pub(crate) fn signal(&self, which: usize, signal: Signal) -> Result<()> {
        self.process(which)?.signal(signal)
    }

    pub(crate) async fn kill(&mut self, which: usize) -> Result<()> {
        let process = self.managers[which].process.take();
        process.context("it has ended")?.kill().await
    }

    pub(crate) async fn terminate(&mut self, which: usize) -> Result<()> {
        let process = self.managers[which].process.take();
        process.context("it has ended")?.terminate().await
    }

    /// Waits until a manager has logged this.
    pub(crate) async fn wait_for_log(&self, which: usize, words: &str) -> Result<()> {
        let process = self.process(which)?;
        wait_for_answer(words, || async {
            Ok(process.log()?.contains(words).then_some(()))
        })
        .await
    }

    /// Waits until a manager has its stores full and knows that it does not lead.
    pub(crate) async fn wait_until_standing_by(&self, which: usize) -> Result<()> {
        self.wait_for_log(which, "initial lists complete").await?;
        self.wait_for_log(which, "the Lease is held by another")
            .await
    }

    async fn wait_for_lease(&self, what: &str, right: impl Fn(&str) -> bool) -> Result<Lease> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        wait_for_object(&leases, LEASE, what, |lease| {
            let spec = lease.spec.clone().unwrap_or_default();
            let holder = spec.holder_identity.unwrap_or_default();
            ensure!(right(&holder), "its holder is {holder:?}");
            Ok(lease.clone())
        })
        .await
    }

    /// Waits until this manager holds the Lease.
    pub(crate) async fn wait_until_led_by(&self, which: usize) -> Result<()> {
        self.wait_for_log(which, "starting leader election").await?;
        let log = self.process(which)?.log()?;
        let identity = log
            .split_once("identity=\"")
            .and_then(|(_, rest)| rest.split_once('"'))
            .context("no identity in the log")?
            .0
            .to_owned();
        self.wait_for_lease(&format!("holder {identity}"), |holder| holder == identity)
            .await?;
        Ok(())
    }

    /// How often the Lease was passed on.
    pub(crate) async fn transitions(&self) -> Result<i32> {
        let lease = self
            .wait_for_lease("a holder", |holder| !holder.is_empty())
            .await?;
        let spec = lease.spec.context("a Lease without a spec")?;
        spec.lease_transitions.context("no transitions")
    }

    /// A manager's requests since `mark` that changed something.
    fn writes(&self, which: usize, mark: Mark) -> Result<Vec<Request>> {
        let user = &self.managers[which].user;
        let requests = self.plane.audit(mark)?.into_iter();
        let writes = requests
            .filter(|request| request.user == *user && request.code < 300 && request.is_write());
        Ok(writes.collect())
    }

    /// Fails if a manager has written anything but the Lease.
    pub(crate) fn wrote_nothing(&self, which: usize, mark: Mark) -> Result<()> {
        let mut writes = self.writes(which, mark)?;
        writes.retain(|request| request.resource != "leases");
        ensure!(
            writes.is_empty(),
            "{} wrote {writes:#?}",
            self.managers[which].user
        );
        Ok(())
    }

    /// Fails if a manager has written the Lease.
    pub(crate) fn wrote_no_lease(&self, which: usize, mark: Mark) -> Result<()> {
        let mut writes = self.writes(which, mark)?;
        writes.retain(|request| request.resource == "leases");
        ensure!(
            writes.is_empty(),
            "{} wrote {writes:#?}",
            self.managers[which].user
        );
        Ok(())
    }

    /// Fails unless the last that a manager wrote was the Lease.
    pub(crate) fn released(&self, which: usize, mark: Mark) -> Result<()> {
        let writes = self.writes(which, mark)?;
        let last = writes.last().context("it wrote nothing")?;
        ensure!(
            last.resource == "leases",
            "the last that it wrote is {last:?}"
        );
        Ok(())
    }

    /// How often each manager has written each pod's status since `mark`.
    fn pod_writes(&self, mark: Mark) -> Result<[BTreeMap<String, usize>; 2]> {
        let mut counts = [BTreeMap::new(), BTreeMap::new()];
        for (which, counts) in counts.iter_mut().enumerate() {
            let mut writes = self.writes(which, mark)?;
            writes.retain(|request| request.resource == "pods");
            for request in writes {
                *counts.entry(request.name).or_default() += 1;
            }
        }
        Ok(counts)
    }

    /// Fails unless each pod has been written so often since `mark`, by whomever.
    pub(crate) async fn wrote_each_pod(
        &self,
        mark: Mark,
        times: RangeInclusive<usize>,
    ) -> Result<()> {
        // A request is in the log only after it was answered.
        wait_for_answer("the writes in the audit log", || async {
            let [first, second] = self.pod_writes(mark)?;
            let writes: usize = first.values().chain(second.values()).sum();
            Ok((writes >= times.start() * PODS).then_some(()))
        })
        .await?;
        let [first, second] = self.pod_writes(mark)?;
        for pod in &self.crowd.pods {
            let by = [&first, &second].map(|counts| counts.get(pod).copied().unwrap_or_default());
            ensure!(
                times.contains(&(by[0] + by[1])),
                "{pod} was written {by:?} times"
            );
        }
        Ok(())
    }

    /// Fails if both have written pods since `mark`.
    pub(crate) fn one_wrote_all(&self, mark: Mark) -> Result<()> {
        let writes = self.pod_writes(mark)?;
        ensure!(
            writes.iter().any(BTreeMap::is_empty),
            "both wrote: {writes:?}"
        );
        Ok(())
    }

    /// Fails unless each pod went through these states, once each, in this order.
    pub(crate) async fn never_went_back(&self, history: &History, states: &[&str]) -> Result<()> {
        let all = ["Succeeded", "Failed", "Unknown"].map(|state| (state, marked(state)));
        for (pod, versions) in history.versions().await? {
            let mut seen: Vec<_> = versions
                .iter()
                .map(|version| {
                    let mut all = all.iter();
                    let state = all.find(|(_, marks)| differs(version, marks).is_ok());
                    state.map_or("something else", |(state, _)| *state)
                })
                .collect();
            seen.dedup();
            ensure!(seen == states, "{pod} went through {seen:?}");
        }
        Ok(())
    }

    /// Ends all; the managers that are left must end well.
    pub(crate) async fn end(mut self) -> Result<()> {
        let processes: Vec<_> = self
            .managers
            .drain(..)
            .filter_map(|one| one.process)
            .collect();
        for process in processes {
            process.terminate().await?;
        }
        self.plane.end().await
    }
}
