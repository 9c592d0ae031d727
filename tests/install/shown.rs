//! What `kubectl` shows of leadsman's pods: their row, their events, their logs, and `/readyz` through the API server.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use hyper::Request;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, LogParams};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use leadsman_testkit::Release;
use leadsman_testkit::leadsman::NAMESPACE;
use leadsman_testkit::release::Component;
use leadsman_tests::wait_for_answer;
use serde_json::Value;

/// Every message that a case waits for is in here, word for word.
const DOCUMENT: &str = include_str!("../../docs/install.md");
/// As `kubectl get` asks.
const AS_TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";

/// A pod of leadsman's, as a user sees it.
pub(crate) struct ShownPod<'a> {
    release: &'a Release,
    client: Client,
    component: Component,
    pub(crate) name: String,
    /// None before it is scheduled.
    pub(crate) node: Option<String>,
}

/// All pods of a component, once it has as many as there are nodes: that many managers there are too.
pub(crate) async fn shown_pods(
    release: &Release,
    component: Component,
) -> Result<Vec<ShownPod<'_>>> {
    let client = client_without_retries(release).await?;
    wait_for_answer("a pod for each node", || async {
        let pods = release.pods(component).await?;
        let shown = pods
            .iter()
            .map(|pod| shown_pod(release, &client, component, pod));
        let shown: Vec<_> = shown.collect();
        Ok((shown.len() == release.bed.nodes().count()).then_some(shown))
    })
    .await
}

/// A pod whose container waits or has ended, once there is one: that of a roll-out that does not go on.
pub(crate) async fn stuck_pod(release: &Release, component: Component) -> Result<ShownPod<'_>> {
    let is_stuck = |pod: &Pod| {
        let containers = pod.status.clone().unwrap_or_default().container_statuses;
        let mut states = containers.into_iter().flatten().filter_map(|it| it.state);
        states.any(|state| state.running.is_none())
    };
    let client = client_without_retries(release).await?;
    wait_for_answer("a pod that does not start", || async {
        let pods = release.pods(component).await?;
        let stuck = pods.iter().find(|pod| is_stuck(pod));
        Ok(stuck.map(|pod| shown_pod(release, &client, component, pod)))
    })
    .await
}

/// Uid and restarts of each of leadsman's pods.
pub(crate) async fn identities(release: &Release) -> Result<BTreeMap<String, (String, i32)>> {
    let pods = [
        release.pods(Component::Manager).await?,
        release.pods(Component::Agent).await?,
    ];
    let identity = |pod: Pod| {
        let status = pod.status.unwrap_or_default().container_statuses;
        let restarts = status.into_iter().flatten().map(|it| it.restart_count);
        let meta = pod.metadata;
        let name = meta.name.unwrap_or_default();
        (name, (meta.uid.unwrap_or_default(), restarts.sum()))
    };
    Ok(pods.into_iter().flatten().map(identity).collect())
}

/// kube repeats a request that is answered by 503, which `/readyz` is as long as there is something to see.
async fn client_without_retries(release: &Release) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(release.bed.admin_kubeconfig())?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}

fn shown_pod<'a>(
    release: &'a Release,
    client: &Client,
    component: Component,
    pod: &Pod,
) -> ShownPod<'a> {
    let spec = pod.spec.as_ref();
    ShownPod {
        release,
        client: client.clone(),
        component,
        name: pod.metadata.name.clone().unwrap_or_default(),
        node: spec.and_then(|spec| spec.node_name.clone()),
    }
}

impl ShownPod<'_> {
    /// Waits until `kubectl get pods` prints this after the name: `0/1 Running 0`.
    pub(crate) async fn wait_for_row(&self, row: &str) -> Result<()> {
        let what = format!("row {row:?}");
        self.wait_for(&what, &[row], || self.row()).await
    }

    /// Waits for an event of this reason with this documented message, which also says what it is about.
    pub(crate) async fn wait_for_event(&self, reason: &str, said: &str, about: &str) -> Result<()> {
        is_documented(said)?;
        let what = format!("event {reason}");
        self.wait_for(&what, &[reason, said, about], || self.events())
            .await
    }

    /// Waits for this documented message in the log, which also says what it is about.
    pub(crate) async fn wait_for_log(&self, said: &str, about: &str) -> Result<()> {
        is_documented(said)?;
        self.wait_for("log", &[said, about], || self.log()).await
    }

    /// Waits for a check of this name that fails with this documented message, which also says what it is about.
    pub(crate) async fn wait_for_readyz(&self, check: &str, said: &str, about: &str) -> Result<()> {
        is_documented(said)?;
        let check = format!("[-] {check}: ");
        self.wait_for("/readyz", &[&check, said, about], || self.readyz())
            .await
    }

    /// Waits until a line of what is shown has all of these words. The error has what was shown last.
    async fn wait_for<F>(&self, what: &str, words: &[&str], show: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Result<String>>,
    {
        let last = Mutex::new(String::new());
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        let seen = wait_for_answer(what, || async {
            let shown = show().await?;
            let is_there = shown.lines().any(&has_all);
            *last.lock().unwrap_or_else(PoisonError::into_inner) = shown;
            Ok(is_there.then_some(()))
        });
        seen.await.with_context(|| {
            let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
            format!("{}: {words:?}; last shown: {last}", self.name)
        })
    }

    async fn row(&self) -> Result<String> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{}", self.name);
        let table: Value = serde_json::from_str(&self.get(&path, AS_TABLE).await?)?;
        let cells = table["rows"][0]["cells"].as_array();
        let cells = cells.with_context(|| format!("no row: {table}"))?;
        // NAME, READY, STATUS, RESTARTS, AGE, …
        let cells = cells.iter().skip(1).take(3);
        let cells = cells.map(|cell| cell.as_str().map_or(cell.to_string(), ToOwned::to_owned));
        Ok(cells.collect::<Vec<_>>().join(" "))
    }

    async fn events(&self) -> Result<String> {
        let events: Api<Event> = Api::namespaced(self.release.client.clone(), NAMESPACE);
        let of_pod = format!("involvedObject.name={}", self.name);
        let events = events.list(&ListParams::default().fields(&of_pod)).await?;
        let lines = events.into_iter().map(|event| {
            let message = event.message.unwrap_or_default().replace('\n', " ");
            format!("{} {message}\n", event.reason.unwrap_or_default())
        });
        Ok(lines.collect())
    }

    /// Empty while there is none.
    async fn log(&self) -> Result<String> {
        let pods = self.release.pods_api();
        let log = pods.logs(&self.name, &LogParams::default()).await;
        // Quotes within a quoted field are escaped.
        Ok(log.unwrap_or_default().replace("\\\"", "\""))
    }

    /// The body, whatever the status.
    async fn readyz(&self) -> Result<String> {
        let (name, port) = (&self.name, self.port());
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}:{port}/proxy/readyz");
        self.get(&path, "*/*").await
    }

    /// Of the chart's values.
    fn port(&self) -> u16 {
        match self.component {
            Component::Manager => 8080,
            Component::Agent => 10271,
        }
    }

    async fn get(&self, path: &str, accept: &str) -> Result<String> {
        let request = Request::get(path).header("Accept", accept);
        let request = request.body(Body::from(Vec::new()))?;
        let body = self
            .client
            .send(request)
            .await?
            .into_body()
            .collect_bytes()
            .await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

/// Fails unless `docs/install.md` says this.
pub(crate) fn is_documented(said: &str) -> Result<()> {
    ensure!(
        DOCUMENT.contains(said),
        "docs/install.md does not say {said:?}"
    );
    Ok(())
}
