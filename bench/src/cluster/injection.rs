//! `bench injection`: what the webhook adds to the creation of a pod, beside a webhook that answers at once and says
//! nothing, one that answers at once with the same patch, and none.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use kube::config::KubeConfigOptions;
use kube::{Client, Config};
use leadsman_api::SidecarSet;
use leadsman_core::sidecarset::annotations::INJECTED_LIST;
use leadsman_process::clock;
use leadsman_tests::{Echo, ObjectWatch, sum_of_counters, wait_for_answer};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::PATIENCE;
use super::api::{ApiRequest, CREATE, MERGE, PAGE, SIDECAR_SETS, TRY, make_all};
use super::roll_out::GATES;
use super::stage::{Contender, Stage, Who, play_with};
use super::world::filled;
use crate::progress::Step;
use crate::report::{Amount as _, Report};
use crate::{at_share, figures, share_of};

/// Sets that there are; a pod is of one of them.
const SETS: [usize; 3] = [1, 10, 100];
/// Creations a second, and in a block.
const RATE: u32 = 100;
/// Blocks of each kind, by turns, so that what else the machine does meets all kinds alike.
const BLOCKS: usize = 20;
/// The namespace of the sets.
pub(super) const INJECTED: &str = "injected";
/// The one where an echo is called instead of the manager.
const ECHOED: &str = "echoed";
/// The one where an echo is called that answers with the manager's patch.
const PATCHED: &str = "patched";
/// The one where nobody is called.
const BARE: &str = "bare";
const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
/// The manager's configuration, and the name of the webhook in it.
const OURS: &str = "leadsman";
const WEBHOOK: &str = "sidecarset.leadsman.io";
/// Those of the echoes, with the namespace for which each is called.
const ECHO: [&str; 2] = ["echo", ECHOED];
const PATCHING_ECHO: [&str; 2] = ["echo-with-patch", PATCHED];

names! {
    /// The label of the pods of a set, and the set's name.
    app(number: usize) = "app-{number:02}";
}

pub(crate) fn measure(scale: f64) -> Result<Report> {
    let mut report = Report::new("injection", scale, include_str!("../../pages/injection.md"));
    let blocks = share_of(BLOCKS, scale).max(1);
    play_with(GATES, async |stage| {
        let scene = Scene::make(stage).await?;
        let manager = stage.start(Who::Manager, None).await?;
        let mut there = 0;
        for sets in SETS {
            let made = scene.measure(there..sets, blocks, &manager).await;
            let found = made.with_context(|| manager.last_lines())?;
            there = sets;
            let of_sets = if sets == 1 { "set" } else { "sets" };
            found.add(report.section(format!("{sets} {of_sets}")));
        }
        manager.end().await
    })?;
    Ok(report)
}

/// What was found beside one number of sets: how long creations took, sorted.
struct Found {
    ours: Vec<Duration>,
    echo: Vec<Duration>,
    patched: Vec<Duration>,
    bare: Vec<Duration>,
    not_injected: usize,
    unwanted_calls: u64,
    cpu_a_call: Duration,
}

struct Scene<'a> {
    client: &'a Client,
    echo: Echo,
    patching_echo: Echo,
}

impl<'a> Scene<'a> {
    async fn make(stage: &'a Stage) -> Result<Self> {
        let client = &stage.client;
        let namespaces = [INJECTED, ECHOED, PATCHED, BARE].map(|name| {
            let body = json!({"metadata": {"name": name}});
            ApiRequest::new(CREATE, "/api/v1/namespaces", "bench", &body)
        });
        make_all(client, "making namespaces", namespaces.into()).await?;
        Ok(Self {
            client,
            echo: Echo::start()?,
            patching_echo: Echo::start()?,
        })
    }

    /// Adds sets, and measures creations beside all that are there then.
    async fn measure(
        &self,
        sets: std::ops::Range<usize>,
        blocks: usize,
        manager: &Contender,
    ) -> Result<Found> {
        let last = sets.end - 1;
        let name = format!("{} sets", sets.end);
        let made = sets.map(set).collect();
        make_all(self.client, &format!("{name}: making them"), made).await?;
        wait_until_in_force(self.client, last + 1).await?;
        let webhook = webhook(self.client).await?;
        self.put_beside(&webhook, &self.echo, ECHO, last).await?;
        self.put_beside(&webhook, &self.patching_echo, PATCHING_ECHO, last)
            .await?;
        let patch = manager_patch(&webhook, &self.patching_echo.last_review()).await?;
        self.patching_echo.answer_with(patch);

        let _step = Step::begin(format!("{name}: creations"));
        let kinds = [INJECTED, ECHOED, PATCHED, BARE];
        for namespace in kinds {
            // Connections and caches.
            self.block(namespace, last).await?;
        }
        let mut times = [const { Vec::new() }; 4];
        let (mut not_injected, mut cpu) = (0, Duration::ZERO);
        for _ in 0..blocks {
            for (namespace, times) in kinds.iter().zip(&mut times) {
                let before = manager.meter.cpu()?;
                let (took, injected) = self.block(namespace, last).await?;
                match *namespace {
                    INJECTED => {
                        cpu += manager.meter.cpu()?.saturating_sub(before);
                        not_injected += took.len() - injected;
                    }
                    PATCHED => {
                        let all = took.len();
                        ensure!(injected == all, "an echo patches {injected} pods of {all}");
                    }
                    _ => ensure!(injected == 0, "{injected} pods are injected in {namespace}"),
                }
                times.extend(took);
            }
        }
        let [mut ours, mut echo, mut patched, mut bare] = times;
        for times in [&mut ours, &mut echo, &mut patched, &mut bare] {
            times.sort_unstable();
        }
        Ok(Found {
            unwanted_calls: self.unwanted_calls().await?,
            cpu_a_call: cpu.div_f64(ours.len().amount()),
            ours,
            echo,
            patched,
            bare,
            not_injected,
        })
    }

    /// How long each of a second's creations took, and how many pods were injected. The API server only tries them: what
    /// etcd takes for a write is not of interest, and webhooks without side effects are called all the same (KEP-576).
    async fn block(&self, namespace: &str, app: usize) -> Result<(Vec<Duration>, usize)> {
        let request = pod(namespace, &self::app(app));
        let mut ticks = interval(Duration::from_secs(1) / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut creations = JoinSet::new();
        for _ in 0..RATE {
            ticks.tick().await;
            let (client, request) = (self.client.clone(), request.clone());
            creations.spawn(async move {
                let began = clock::monotonic();
                let pod = request.send(&client).await?;
                anyhow::Ok((began.elapsed(), is_injected(&pod)))
            });
        }
        let (mut times, mut injected) = (Vec::new(), 0);
        while let Some(creation) = creations.join_next().await {
            let (took, is_injected) = creation??;
            times.push(took);
            injected += usize::from(is_injected);
        }
        Ok((times, injected))
    }

    /// Has the API server call an echo for a namespace as it now calls the manager for another one, with the same
    /// conditions. The last pod that it was asked about is of this application.
    async fn put_beside(
        &self,
        webhook: &Value,
        echo: &Echo,
        [name, namespace]: [&str; 2],
        app: usize,
    ) -> Result<()> {
        let webhook = echo.webhook_like(webhook.clone(), [INJECTED, namespace]);
        let body = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name}, "webhooks": [webhook],
        });
        let path = format!("{CONFIGURATIONS}/{name}");
        let stored = match get(self.client, &path).await {
            Ok(_) => ApiRequest::new(MERGE, &path, "bench", &body),
            Err(_) => ApiRequest::new(CREATE, CONFIGURATIONS, "bench", &body),
        };
        stored.send(self.client).await?;
        let (before, request) = (echo.calls(), pod(namespace, &self::app(app)));
        wait_for_answer("the echo is called", || async {
            request.send(self.client).await?;
            Ok((echo.calls() > before).then_some(()))
        })
        .await
    }

    /// How often the API server calls the manager for a second of pods in the namespace of the sets that none selects, and
    /// one in another namespace.
    async fn unwanted_calls(&self) -> Result<u64> {
        let before = self.calls().await?;
        let elsewhere = [(INJECTED, SETS[SETS.len() - 1]), (BARE, 0)];
        for (namespace, app) in elsewhere {
            let (_, injected) = self.block(namespace, app).await?;
            ensure!(injected == 0, "{injected} pods of no set are injected");
        }
        Ok(self.calls().await? - before)
    }

    /// How often the API server has called the manager, by its own account.
    async fn calls(&self) -> Result<u64> {
        let metrics = get(self.client, "/metrics").await?;
        let words = ["apiserver_admission_webhook_request_total{", WEBHOOK];
        let calls = sum_of_counters(&metrics, &words)?;
        ensure!(calls > 0, "the API server does not count its calls");
        Ok(calls)
    }
}

/// Waits until the statuses of so many sets say that their pods are injected.
pub(super) async fn wait_until_in_force(client: &Client, sets: usize) -> Result<()> {
    let mut watch = ObjectWatch::<SidecarSet>::begin(client, SIDECAR_SETS, PAGE).await?;
    let is_in_force = |set: &SidecarSet| {
        let status = set.status.clone().unwrap_or_default();
        let generation = status.in_force.as_ref().map(|in_force| in_force.generation);
        let is_current = generation.is_some() && generation == set.metadata.generation;
        ensure!(is_current, "its status is {status:?}");
        Ok(())
    };
    watch
        .wait_until("sets in force", sets, PATIENCE, is_in_force)
        .await
}

/// The manager's webhook for pods, as API servers are told of it now.
pub(super) async fn webhook(client: &Client) -> Result<Value> {
    let configuration = get(client, &format!("{CONFIGURATIONS}/{OURS}")).await?;
    let configuration: Value = serde_json::from_str(&configuration)?;
    let webhooks = configuration["webhooks"].as_array();
    let of_sets = |webhook: &&Value| webhook["name"].as_str() == Some(WEBHOOK);
    let webhook = webhooks.into_iter().flatten().find(of_sets);
    let webhook = webhook.with_context(|| format!("no {WEBHOOK} in {configuration}"))?;
    Ok(webhook.clone())
}

async fn get(client: &Client, path: &str) -> Result<String> {
    let request = Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?)
}

/// The patch, in Base64, by which the manager answers a review of a pod like this one in its own namespace.
async fn manager_patch(webhook: &Value, review: &[u8]) -> Result<String> {
    let call = &webhook["clientConfig"];
    let url: http::Uri = call["url"].as_str().context("no url")?.parse()?;
    let server = format!("https://{}", url.authority().context("no address")?);
    let kubeconfig = serde_json::from_value(json!({
        "clusters": [{"name": "a", "cluster": {"server": server, "certificate-authority-data": call["caBundle"]}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": ""}}], "current-context": "a",
    }))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let review = std::str::from_utf8(review)?;
    let review = review.replace(&format!("\"{PATCHED}\""), &format!("\"{INJECTED}\""));
    let request = Request::post(url.path())
        .header("content-type", "application/json")
        .body(review.into_bytes())?;
    let answer = client.request_text(request).await?;
    let answer: Value = serde_json::from_str(&answer)?;
    let patch = answer["response"]["patch"].as_str();
    let patch = patch.with_context(|| format!("the manager patches nothing: {answer}"))?;
    Ok(patch.to_owned())
}

/// The creation of a set.
pub(super) fn set(number: usize) -> ApiRequest {
    let name = app(number);
    let mut set = filled(
        include_str!("objects/sidecar_set.json"),
        &[("$image", "registry.example.com/mesh/proxy:1.0.0")],
    );
    set["metadata"]["name"] = json!(name);
    set["spec"]["namespace"] = json!(INJECTED);
    set["spec"]["selector"] =
        json!({"matchLabels": {"app": name, "app.kubernetes.io/part-of": "shop"}});
    ApiRequest::new(CREATE, SIDECAR_SETS, "kubectl", &set)
}

/// Whether a pod, as the API server answers it, has a sidecar.
pub(super) fn is_injected(pod: &str) -> bool {
    pod.contains(INJECTED_LIST)
}

/// The creation of a pod, tried.
pub(super) fn pod(namespace: &str, app: &str) -> ApiRequest {
    let values = [
        ("$pod", "trial"),
        ("$app", app),
        ("$namespace", namespace),
        ("$node", "none"),
    ];
    let body = filled(include_str!("objects/pod.json"), &values);
    let collection = format!("/api/v1/namespaces/{namespace}/pods");
    ApiRequest::new(TRY, &collection, "kube-controller-manager", &body)
}

impl Found {
    fn add(&self, add: &mut Report) {
        let kinds = [
            (
                0.5,
                [
                    &figures::ADDED_MEDIAN,
                    &figures::ADDED_TO_PATCH_MEDIAN,
                    &figures::CREATION_MEDIAN,
                    &figures::PATCHED_MEDIAN,
                    &figures::WITHOUT_MEDIAN,
                ],
            ),
            (
                0.99,
                [
                    &figures::ADDED_MOST,
                    &figures::ADDED_TO_PATCH_MOST,
                    &figures::CREATION_MOST,
                    &figures::PATCHED_MOST,
                    &figures::WITHOUT_MOST,
                ],
            ),
        ];
        for (share, [added, added_to_patch, creation, with_patch, without]) in kinds {
            let all = [&self.ours, &self.echo, &self.patched, &self.bare];
            let [ours, echo, patched, bare] = all.map(|times| at_share(times, share));
            add.add(added, ours.as_secs_f64() - echo.as_secs_f64());
            add.add(added_to_patch, ours.as_secs_f64() - patched.as_secs_f64());
            add.compare(creation, ours, echo);
            add.add(with_patch, patched);
            add.add(without, bare);
        }
        add.add(&figures::NOT_INJECTED, self.not_injected)
            .note(format!("of {}", self.ours.len()));
        add.add(&figures::UNWANTED_CALLS, self.unwanted_calls)
            .note(format!("of {} pods, by the API server's metrics", 2 * RATE));
        add.add(&figures::CPU_A_CALL, self.cpu_a_call);
    }
}
