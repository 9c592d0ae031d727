//! The webhook of `SidecarSet`: pods in, pods with sidecars out, by a real API server. What a roll-out does with them
//! afterwards is tested elsewhere.

mod failure_policy;
mod recorded;
mod rotation;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leadsman_admission::CONFIGURATION;
use leadsman_api::SidecarSet;
use leadsman_testkit::leadsman;
use leadsman_testkit::ports::free_addresses;
use leadsman_tests::scene::merge;
use leadsman_tests::{
    Process, sum_of_counters, wait_for_answer, wait_for_deletion, wait_for_object,
};
use serde_json::{Value, json};
use tokio::sync::SemaphorePermit;

use crate::SIDECAR_SET_GATE;
use crate::stage::PLACES;
use crate::{Installation, get};

pub(crate) use failure_policy::{
    an_invalid_set_that_asks_to_fail_refuses_its_pods,
    with_a_standing_rule_a_set_is_injected_once_the_manager_has_seen_it,
};
pub(crate) use recorded::a_new_pod_is_what_openkruise_made_of_it;
pub(crate) use rotation::certificates_rotate_while_pods_of_sets_are_created;

/// How often what may go wrong by a matter of milliseconds is tried.
const TIMES: usize = 40;
/// Of these, where the machine stood still for longer than a call may take.
const FEW: usize = TIMES / 8;

/// A control plane, and a manager that injects.
pub(crate) struct Injecting {
    pub(crate) installation: Installation,
    flags: Vec<String>,
    _place: SemaphorePermit<'static>,
}

/// The flags of a manager that listens on one address, and has the API server call another.
fn flags(listens: SocketAddr, called: SocketAddr) -> [String; 5] {
    [
        SIDECAR_SET_GATE.to_owned(),
        "--webhook-bind-address".to_owned(),
        listens.to_string(),
        "--webhook-url".to_owned(),
        format!("https://{called}"),
    ]
}

impl Injecting {
    pub(crate) async fn raise() -> Result<Self> {
        Self::raise_with(&[]).await
    }

    async fn raise_with(further: &[&str]) -> Result<Self> {
        let [address] = free_addresses()?;
        let mut flags = flags(address, address).to_vec();
        flags.extend(further.iter().map(ToString::to_string));
        let raised = Self::raise_idle(flags).await?;
        raised.start().await?;
        Ok(raised)
    }

    async fn raise_idle(flags: Vec<String>) -> Result<Self> {
        let place = PLACES.acquire().await?;
        let installation = Installation::raise_idle().await?;
        installation.grant_webhooks().await?;
        installation.allow_sidecar_sets().await?;
        Ok(Self {
            installation,
            flags,
            _place: place,
        })
    }

    pub(crate) async fn start(&self) -> Result<()> {
        let flags: Vec<_> = self.flags.iter().map(String::as_str).collect();
        self.installation.start_manager_with(&flags).await
    }

    pub(crate) fn client(&self) -> Client {
        self.installation.client.clone()
    }

    pub(crate) fn sets(&self) -> Api<SidecarSet> {
        Api::all(self.client())
    }

    /// Makes a set with one container of its name, and waits until it is in force.
    pub(crate) async fn set(&self, name: &str, over: Value) -> Result<()> {
        let set = set(name, over)?;
        self.sets().create(&PostParams::default(), &set).await?;
        self.is_in_force(name).await
    }

    pub(crate) async fn is_in_force(&self, name: &str) -> Result<()> {
        wait_for_object(&self.sets(), name, "it is in force", |set| {
            let status = set.status.clone().unwrap_or_default();
            let generation = status.in_force.as_ref().map(|in_force| in_force.generation);
            ensure!(generation == set.metadata.generation, "{status:?}");
            Ok(())
        })
        .await
    }

    /// How often the API server has called for pods.
    pub(crate) async fn calls(&self) -> Result<u64> {
        let metrics = self.installation.get("/metrics").await?;
        let of_pods = "webhook=\"sidecarset.leadsman.io\"";
        sum_of_counters(&metrics, &["leadsman_webhook_requests_total{", of_pods])
    }

    /// A call that came to nothing is to have a cause that is counted: the API server gave it up, or the manager with this
    /// log answered late, or was still behind when there was no more time to wait.
    async fn have_stalled(&self, missed: &[String], log: &Path) -> Result<()> {
        let server = ["get", "--raw", "/metrics"];
        let server = self.installation.plane.kubectl(&server).await?;
        let given_up = "apiserver_admission_webhook_fail_open_count{";
        let mut stalled = sum_of_counters(&server, &[given_up, "sidecarset.leadsman.io"])?;
        let metrics = get(log, "/metrics").await?;
        for outcome in ["late", "not_ready", "outdated"] {
            let outcome = format!("outcome=\"{outcome}\"");
            stalled += sum_of_counters(&metrics, &["leadsman_webhook_requests_total{", &outcome])?;
        }
        let is_explained = u64::try_from(missed.len())? <= stalled && missed.len() <= FEW;
        ensure!(is_explained, "{stalled} calls came to nothing: {missed:?}");
        Ok(())
    }

    async fn sum(&self, counter: &str) -> Result<u64> {
        let metrics = self.installation.get("/metrics").await?;
        sum_of_counters(&metrics, &[counter])
    }
}

/// A set with one container of its name.
pub(crate) fn set(name: &str, over: Value) -> Result<SidecarSet> {
    let mut set = json!({
        "apiVersion": "apps.kruise.io/v1beta1",
        "kind": "SidecarSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "containers": [{"name": name, "image": "image:1"}],
        },
    });
    merge(&mut set, over);
    Ok(serde_json::from_value(set)?)
}

fn pod(over: Value) -> Result<Pod> {
    let mut pod = json!({
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "main", "image": "app:1"}]},
    });
    merge(&mut pod, over);
    Ok(serde_json::from_value(pod)?)
}

/// Creates a pod, or has the API server only try it.
pub(crate) async fn create(
    client: &Client,
    namespace: &str,
    over: Value,
    dry_run: bool,
) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    Ok(pods.create(&params, &pod(over)?).await?)
}

pub(crate) async fn make_namespace(client: &Client, name: &str, labels: Value) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    let namespace = serde_json::from_value(namespace)?;
    namespaces
        .create(&PostParams::default(), &namespace)
        .await?;
    Ok(())
}

/// The images of its containers by name, in order.
fn containers(pod: &Pod) -> Vec<(String, String)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let pairs = containers.map(|one| (one.name.clone(), one.image.clone().unwrap_or_default()));
    pairs.collect()
}

pub(crate) fn names(pod: &Pod) -> Vec<String> {
    containers(pod).into_iter().map(|(name, _)| name).collect()
}

// SCS-8, SCS-17, SDF-2, SDF-3, SDF-4, SDF-53
pub(crate) async fn sets_of_a_pod_stand_in_order_and_other_pods_cost_no_call(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    for name in ["c", "a", "b"] {
        bed.set(name, json!({})).await?;
    }
    let there = |namespace, over| create(&client, namespace, over, true);
    for namespace in ["shop", "kube-system", "kube-public"] {
        for _ in 0..5 {
            let found = there(namespace, json!({})).await?;
            ensure!(
                names(&found) == ["a", "b", "c", "main"],
                "{:?}",
                names(&found)
            );
        }
    }
    let own = json!({"spec": {"containers": [{"name": "b", "image": "own:1"}]}});
    let found = containers(&there("shop", own).await?);
    let expected = [("a", "image:1"), ("c", "image:1"), ("b", "own:1")];
    ensure!(
        found
            .iter()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .eq(expected),
        "{found:?}"
    );
    let remark = "leadsman_sidecarset_injection_remarks_total{reason=\"own_container\"}";
    ensure!(
        bed.sum(remark).await? == 1,
        "the set that is left out is not counted"
    );

    let limits: Api<LimitRange> = Api::namespaced(client.clone(), "shop");
    let limit = json!({
        "metadata": {"name": "l"},
        "spec": {"limits": [{"type": "Container", "default": {"memory": "64Mi"}}]},
    });
    let limit = serde_json::from_value(limit)?;
    limits.create(&PostParams::default(), &limit).await?;
    wait_for_answer("limits of an injected container", || async {
        let found = serde_json::to_value(there("shop", json!({})).await?)?;
        let limited = found["spec"]["containers"][0]["resources"]["limits"]["memory"] == "64Mi";
        Ok(limited.then_some(()))
    })
    .await?;

    let before = bed.calls().await?;
    let mirror = json!({
        "metadata": {"annotations": {"kubernetes.io/config.mirror": "hash"}},
        "spec": {"nodeName": "node"},
    });
    let other = json!({"metadata": {"labels": {"app": "other"}}});
    let unlabelled = json!({"metadata": {"labels": null}});
    for over in [other, unlabelled, mirror] {
        let found = there("shop", over).await?;
        ensure!(names(&found) == ["main"], "{:?}", names(&found));
    }
    ensure!(bed.calls().await? == before, "called for pods of no set");
    bed.installation.end().await;
    Ok(())
}

/// OpenKruise refuses all of these pods but the first.
// SCS-17, SCS-19, SDF-1, SDF-10
pub(crate) async fn resources_of_a_sidecar_follow_from_those_of_the_pod(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    let policy = json!({
        "targetContainersMode": "sum",
        "targetContainersNameRegex": "^main",
        "resourcesExpr": {
            "limits": {"cpu": "cpu*50%", "memory": "200Mi"},
            "requests": {"cpu": "max(cpu - 100m, 10m)", "memory": "memory*33%"},
        },
    });
    let container = json!({"name": "side", "image": "image:1", "resourcesPolicy": policy});
    bed.set("side", json!({"spec": {"containers": [container]}}))
        .await?;
    let main = |name: &str, resources: Value| json!({"name": name, "image": "app:1", "resources": resources});
    let sized = json!({
        "limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "200m", "memory": "512Mi"},
    });
    let nothing = json!({"requests": {"cpu": "10m", "memory": "0"}, "limits": {"memory": "200Mi"}});
    for (own, expected) in [
        (
            main("main", sized.clone()),
            json!({"limits": {"cpu": "500m", "memory": "200Mi"}, "requests": {"cpu": "100m", "memory": "177167401"}}),
        ),
        (main("main", json!({})), nothing.clone()),
        (main("other", sized), nothing),
        // The API server fills in its request, of which a third is above the limit of the sidecar.
        (
            main("main", json!({"limits": {"cpu": "10m", "memory": "1Gi"}})),
            json!({"limits": {"cpu": "5m", "memory": "200Mi"}, "requests": {"cpu": "5m", "memory": "200Mi"}}),
        ),
    ] {
        let over = json!({"spec": {"containers": [own.clone()]}});
        let found = create(&client, "default", over, true).await?;
        let found = serde_json::to_value(found)?["spec"]["containers"][0].clone();
        ensure!(found["name"] == "side", "{found}");
        ensure!(found["resources"] == expected, "{own}: {found}");
    }
    for (reason, count) in [
        ("no_target_container", 1),
        ("target_without_limit", 1),
        ("resources_adjusted", 2),
    ] {
        let remark = format!("leadsman_sidecarset_injection_remarks_total{{reason=\"{reason}\"}}");
        let counted = bed.sum(&remark).await?;
        ensure!(counted == count, "{reason}: {counted}");
    }
    bed.installation.end().await;
    Ok(())
}

/// Specs by the name of their sets: host ports, a block device and a native sidecar.
fn sets_by_which_pods_may_be_invalid() -> [(&'static str, Value); 5] {
    let side = |over: Value| {
        let mut side = json!({"name": "side", "image": "image:1"});
        merge(&mut side, over);
        json!([side])
    };
    let device = side(json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/data"}]}));
    let hot = json!({"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": "empty:1"});
    let native = side(json!({"restartPolicy": "Always"}));
    [
        (
            "port",
            json!({"containers": side(json!({"ports": port(80, 8080)}))}),
        ),
        (
            "own-port",
            json!({"containers": side(json!({"ports": port(80, 0)}))}),
        ),
        (
            "hot",
            json!({"containers": side(json!({"ports": port(80, 0), "upgradeStrategy": hot}))}),
        ),
        (
            "device",
            json!({"containers": device, "volumes": [claim()]}),
        ),
        (
            "native",
            json!({"containers": null, "initContainers": native}),
        ),
    ]
}

/// A container's ports: one, and that of the host.
fn port(own: u16, host: u16) -> Value {
    json!([{"containerPort": own, "hostPort": host}])
}

/// A volume that can be mounted as a block device.
fn claim() -> Value {
    json!({"name": "data", "persistentVolumeClaim": {"claimName": "raw"}})
}

// SDF-1, SDF-4
pub(crate) async fn a_set_with_which_a_pod_would_be_invalid_is_left_out(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    for (app, spec) in sets_by_which_pods_may_be_invalid() {
        let mut spec = spec;
        spec["selector"] = json!({"matchLabels": {"app": app}});
        bed.set(app, json!({"spec": spec})).await?;
    }
    // The API server says what is valid: it accepts each of these pods, with the set or without it.
    let main = |over: Value| {
        let mut main = json!({"name": "main", "image": "app:1"});
        merge(&mut main, over);
        json!([main])
    };
    let copied = json!({"name": "side", "image": "old:1", "env": [{"name": "IS_INJECTED", "value": "true"}]});
    let mut former = copied.clone();
    former["ports"] = port(80, 8080);
    let claim = claim();
    let empty = json!([{"name": "data", "emptyDir": {}}]);
    for (app, spec, is_injected) in [
        (
            "port",
            json!({"containers": main(json!({"ports": port(80, 8081)}))}),
            true,
        ),
        (
            "port",
            json!({"containers": main(json!({"ports": port(81, 8080)}))}),
            false,
        ),
        (
            "port",
            json!({"containers": main(json!({"ports": [{"containerPort": 81, "hostPort": 8080, "protocol": "UDP"}]}))}),
            true,
        ),
        (
            "port",
            json!({"containers": main(json!({"ports": [{"containerPort": 81, "hostPort": 8080, "hostIP": "10.0.0.1"}]}))}),
            true,
        ),
        // It is replaced, and its port with it.
        (
            "port",
            json!({"containers": [main(json!({}))[0], former]}),
            true,
        ),
        ("port", json!({"hostNetwork": true}), false),
        (
            "own-port",
            json!({"containers": main(json!({"ports": port(80, 0)}))}),
            true,
        ),
        ("own-port", json!({"hostNetwork": true}), true),
        (
            "own-port",
            json!({"hostNetwork": true, "containers": main(json!({"ports": port(80, 0)}))}),
            false,
        ),
        ("hot", json!({}), true),
        ("hot", json!({"hostNetwork": true}), false),
        ("device", json!({"volumes": [claim]}), true),
        ("device", json!({"volumes": empty}), false),
        ("native", json!({"initContainers": [copied]}), true),
        ("native", json!({"containers": [copied]}), false),
    ] {
        let over = json!({"metadata": {"labels": {"app": app}}, "spec": spec});
        let found = create(&client, "shop", over, true).await;
        let found = found.with_context(|| format!("{app}: {spec}"))?;
        let annotations = found.metadata.annotations.unwrap_or_default();
        let list = annotations.get("kruise.io/sidecarset-injected-list");
        ensure!(list.is_some() == is_injected, "{app}, {spec}: {list:?}");
    }
    bed.installation.end().await;
    Ok(())
}

/// Where all is beside each other, the watch is as fast as the pod: this passes without the wait too, which the tests of
/// `admission` and of the snapshot provoke.
// SDF-5
pub(crate) async fn a_pod_right_after_its_namespace_gets_its_sidecars(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    let of_tier =
        |tier: &str| json!({"spec": {"namespaceSelector": {"matchLabels": {"tier": tier}}}});
    bed.set("gold", of_tier("gold")).await?;
    bed.set("tin", of_tier("tin")).await?;
    let mut missed = Vec::new();
    for number in 0..TIMES {
        let tier = if number % 2 == 0 { "gold" } else { "tin" };
        let name = format!("new-{number}");
        make_namespace(&client, &name, json!({ "tier": tier })).await?;
        let found = create(&client, &name, json!({}), true).await?;
        let found = names(&found);
        if found != [tier, "main"] {
            missed.push(format!("{name}: {found:?}"));
        }
    }
    let log = bed.installation.log_file();
    bed.have_stalled(&missed, &log).await?;
    bed.installation.end().await;
    Ok(())
}

/// As above: that a replica waits for the barrier is provoked in the tests of `admission`.
// SDF-6
pub(crate) async fn once_in_force_a_set_is_injected_by_a_replica_that_does_not_lead(
    _: Arc<Installation>,
) -> Result<()> {
    let [leader, standby] = free_addresses()?;
    let bed = Injecting::raise_idle(flags(leader, standby).to_vec()).await?;
    bed.start().await?;
    bed.installation
        .wait_for_log(0, "initial lists complete")
        .await?;
    let mut command = leadsman::manager(&bed.installation.kubeconfig, "127.0.0.1:0")?;
    command.args(flags(standby, standby));
    let log = bed.installation.plane.folder().join("logs/standby.log");
    let other = Process::start(command, &log)?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    bed.set("a", json!({})).await?;
    let image = async || {
        let found = create(&client, "shop", json!({}), true).await?;
        Ok::<_, anyhow::Error>(containers(&found).swap_remove(0).1)
    };
    wait_for_answer("the standby answers", || async {
        Ok((image().await? == "image:1").then_some(()))
    })
    .await?;
    let mut missed = Vec::new();
    for number in 0..TIMES {
        let wanted = format!("image:{}", number + 2);
        let patch = json!({"spec": {"containers": [{"name": "a", "image": wanted}]}});
        let params = PatchParams::default();
        bed.sets().patch("a", &params, &Patch::Merge(patch)).await?;
        bed.is_in_force("a").await?;
        let found = image().await?;
        if found != wanted {
            missed.push(format!("{found} instead of {wanted}"));
        }
    }
    bed.have_stalled(&missed, &log).await?;
    ensure!(bed.calls().await? == 0, "the leader was called");
    other.terminate().await?;
    bed.installation.end().await;
    Ok(())
}

// SCS-81, SCS-83, SDF-1, SDF-2
pub(crate) async fn without_a_manager_pods_are_refused_by_sets_that_ask_and_else_found_later(
    _: Arc<Installation>,
) -> Result<()> {
    let bed = Injecting::raise().await?;
    let client = bed.client();
    make_namespace(&client, "shop", json!({})).await?;
    let selects = |app: &str| json!({"selector": {"matchLabels": {"app": app}}});
    let annotations = json!({"sidecarset.leadsman.io/failure-policy": "Fail"});
    let strict = json!({"metadata": {"annotations": annotations}, "spec": selects("strict")});
    bed.set("strict", strict).await?;
    bed.set("lenient", json!({"spec": selects("lenient")}))
        .await?;
    let app = |app: &str| json!({"metadata": {"name": app, "labels": {"app": app}}});
    let found = create(&client, "shop", app("strict"), true).await?;
    ensure!(names(&found) == ["strict", "main"], "{:?}", names(&found));
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let version = async || {
        let configuration = configurations.get(CONFIGURATION).await?;
        Ok::<_, anyhow::Error>(configuration.metadata.resource_version)
    };
    let before = version().await?;

    bed.installation.stop_manager().await?;
    let refused = create(&client, "shop", app("strict"), false).await;
    let refused = refused.err().context("not refused")?.to_string();
    ensure!(refused.contains("sidecarset-fail.leadsman.io"), "{refused}");
    for (namespace, over) in [
        ("shop", app("lenient")),
        ("shop", app("other")),
        ("kube-system", app("strict")),
    ] {
        let found = create(&client, namespace, over, false).await?;
        ensure!(names(&found) == ["main"], "{:?}", names(&found));
    }

    bed.start().await?;
    for (set, named) in [
        ("lenient", "shop/lenient"),
        ("strict", "kube-system/strict"),
    ] {
        wait_for_object(
            &bed.sets(),
            set,
            "the pod that was missed is named",
            |set| {
                let conditions = set.status.iter().flat_map(|status| &status.conditions);
                let texts = conditions
                    .map(|condition| format!("{}: {}", condition.reason, condition.message));
                let texts = texts.collect::<Vec<_>>().join("; ");
                ensure!(
                    texts.contains("NotInjected: 1 pod") && texts.contains(named),
                    "{texts}"
                );
                Ok(())
            },
        )
        .await?;
    }
    let found = create(&client, "shop", app("strict"), false).await?;
    ensure!(names(&found) == ["strict", "main"], "{:?}", names(&found));
    ensure!(
        version().await? == before,
        "a restart has changed the configuration"
    );

    for set in ["strict", "lenient"] {
        bed.sets().delete(set, &DeleteParams::default()).await?;
    }
    wait_for_deletion(&configurations, CONFIGURATION).await?;
    bed.installation.end().await;
    Ok(())
}
