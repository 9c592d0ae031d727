//! What a test may do with a bed: clients and identities, counted requests, outages, programs
//! inside, probe targets.

mod support;

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use leadsman_testkit::{ControlPlane, Node, NodeBed, Options, clock, progress};
use libtest_mimic::Arguments;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::AsyncReadExt as _;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = vec![
        support::trial("control_plane", None, || block_on(control_plane())),
        support::trial("node", NodeBed::why_not(), || block_on(node())),
        support::trial("two_nodes", NodeBed::why_not(), || block_on(two_nodes())),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn block_on(test: impl Future<Output = Result<()>>) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(test)
}

async fn control_plane() -> Result<()> {
    let options = Options::default().argument("kube-apiserver", "--max-requests-inflight=123");
    let bed = ControlPlane::start(options, progress::silent()).await?;
    identities(&bed).await.context("identities")?;
    counted_requests(&bed).await.context("counted requests")?;
    outage(&bed).await.context("an outage")?;
    let folder = bed.folder().to_owned();
    bed.end().await?;
    ensure!(!folder.exists(), "{} is still there", folder.display());
    Ok(())
}

async fn identities(bed: &ControlPlane) -> Result<()> {
    let client = bed
        .client_for(
            "system:serviceaccount:a:b",
            &["system:serviceaccounts", "system:serviceaccounts:a"],
        )
        .await?;
    let review = who_am_i(client.clone()).await?;
    ensure!(
        review.username.as_deref() == Some("system:serviceaccount:a:b"),
        "{review:?}"
    );
    let groups = review.groups.unwrap_or_default();
    for group in [
        "system:serviceaccounts",
        "system:serviceaccounts:a",
        "system:authenticated",
    ] {
        ensure!(
            groups.iter().any(|have| have == group),
            "{group} is not in {groups:?}"
        );
    }
    match Api::<ConfigMap>::default_namespaced(client)
        .list(&kube::api::ListParams::default())
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        other => bail!("RBAC let a stranger list: {other:?}"),
    }
}

async fn who_am_i(client: Client) -> Result<k8s_openapi::api::authentication::v1::UserInfo> {
    let reviews = Api::<SelfSubjectReview>::all(client);
    let review = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await?;
    review
        .status
        .and_then(|status| status.user_info)
        .context("no user in the review")
}

async fn counted_requests(bed: &ControlPlane) -> Result<()> {
    let mark = bed.audit_mark()?;
    let maps =
        Api::<ConfigMap>::default_namespaced(bed.client_for("counted", &["system:masters"]).await?);
    let map = serde_json::from_value(json!({ "metadata": { "name": "one" } }))?;
    maps.create(&PostParams::default(), &map).await?;
    maps.delete("one", &DeleteParams::default()).await?;
    let mut seen = Vec::new();
    wait_until("two requests in the audit log", async || {
        let ours = bed
            .audit(mark)?
            .into_iter()
            .filter(|request| request.user == "counted");
        seen = ours
            .map(|request| (request.verb, request.resource, request.name, request.code))
            .collect();
        Ok(seen.len() == 2)
    })
    .await?;
    let expected = [("create", 201), ("delete", 200)]
        .map(|(verb, code)| (verb.into(), "configmaps".into(), "one".into(), code));
    ensure!(seen == expected, "{seen:?}");
    Ok(())
}

async fn outage(bed: &ControlPlane) -> Result<()> {
    let client = bed.client().await?;
    bed.stop_apiserver().await?;
    ensure!(
        client.apiserver_version().await.is_err(),
        "a stopped API server answered"
    );
    ensure!(bed.stop_apiserver().await.is_err(), "it was stopped twice");
    bed.start_apiserver().await?;
    client.apiserver_version().await?;
    Ok(())
}

async fn node() -> Result<()> {
    let bed = NodeBed::start(Options::default(), progress::silent()).await?;
    let pod = target_pod(&bed, "target", bed.node_name()).await?;
    let address = address_of(&pod)?;
    targets(&bed, &address).await.context("targets")?;
    service(&bed).await.context("a service's address")?;
    bound_token(&bed).await.context("a bound token")?;
    programs_inside(&bed).await.context("programs inside")?;
    stopped_container(&bed, &pod)
        .await
        .context("a stopped container")?;
    restarts(&bed).await.context("restarts")?;
    let folder = bed.folder().to_owned();
    bed.end().await?;
    ensure!(!folder.exists(), "{} is still there", folder.display());
    Ok(())
}

async fn target_pod(bed: &NodeBed, name: &str, node: &str) -> Result<Pod> {
    let pods = Api::<Pod>::default_namespaced(bed.client().await?);
    let pod = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "target",
                "image": "docker.io/local/target:1",
                "readinessProbe": { "grpc": { "port": 50051 }, "periodSeconds": 1 },
            }],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    ready_pod(bed, name, 0).await
}

/// The pod once it is ready after so many restarts.
async fn ready_pod(bed: &NodeBed, name: &str, restarts: i32) -> Result<Pod> {
    let pods = Api::<Pod>::default_namespaced(bed.client().await?);
    let mut found = None;
    wait_until(&format!("readiness of pod {name}"), async || {
        let pod = pods.get(name).await?;
        let ready =
            container(&pod).is_some_and(|status| status.ready && status.restart_count == restarts);
        found = Some(pod);
        Ok(ready)
    })
    .await?;
    found.context("the pod was seen")
}

fn address_of(pod: &Pod) -> Result<String> {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.pod_ip.clone())
        .context("the pod has no address")
}

fn container(pod: &Pod) -> Option<&k8s_openapi::api::core::v1::ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

async fn targets(bed: &NodeBed, address: &str) -> Result<()> {
    let url = |path: &str| format!("http://{address}:8080{path}");
    ensure!(bed.get_from_inside(&url("/healthz")).await? == "ok");
    ensure!(
        bed.get_from_inside(&url("/role")).await.is_err(),
        "a secondary answers 503"
    );
    bed.post_from_inside(&url("/set?role=main&body=a%20body&tcp=closed"))
        .await?;
    ensure!(bed.get_from_inside(&url("/role")).await? == "main");
    ensure!(bed.get_from_inside(&url("/healthz")).await? == "a body");
    ensure!(
        tokio::net::TcpStream::connect(format!("{address}:9090"))
            .await
            .is_err(),
        "the TCP port is closed"
    );
    bed.post_from_inside(&url("/set?tcp=open")).await?;
    // From the host as well.
    wait_until("the TCP port's opening", async || {
        Ok(tokio::net::TcpStream::connect(format!("{address}:9090"))
            .await
            .is_ok())
    })
    .await
}

async fn service(bed: &NodeBed) -> Result<()> {
    let address = service_of(bed, "target").await?;
    wait_until("the service's answer", async || {
        Ok(name_at(bed, &address).await.is_some())
    })
    .await
}

/// The cluster IP of a new Service whose port 80 leads to the pod of this name.
async fn service_of(bed: &NodeBed, pod: &str) -> Result<String> {
    let services = Api::<Service>::default_namespaced(bed.client().await?);
    let service = serde_json::from_value(json!({
        "metadata": { "name": pod },
        "spec": { "selector": { "app": pod }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    }))?;
    let made = services.create(&PostParams::default(), &service).await?;
    let spec = made.spec.context("a Service has a spec")?;
    spec.cluster_ip.context("the service has no address")
}

/// The name of the pod that answers there, asked from this node.
async fn name_at(node: &Node, address: &str) -> Option<String> {
    let url = format!("http://{address}/name");
    let answer = node.get_from_inside(&url);
    let answer = tokio::time::timeout(Duration::from_secs(2), answer).await;
    Some(answer.ok()?.ok()?.trim().to_owned())
}

async fn two_nodes() -> Result<()> {
    let options = Options::default().nodes(2);
    let bed = NodeBed::start(options, progress::silent()).await?;
    let [second] = bed.workers() else {
        bail!("not two nodes but {}", bed.nodes().count())
    };
    ensure!(second.run_inside("hostname", &[]).await?.trim() == second.name());
    let services = routes(&bed, second).await.context("routes")?;
    cut_and_heal(&bed, second, &services)
        .await
        .context("a cut")?;
    power_cut(&bed, second, &services)
        .await
        .context("a power cut")?;
    let folder = bed.folder().to_owned();
    bed.end().await?;
    ensure!(!folder.exists(), "{} is still there", folder.display());
    Ok(())
}

/// From each node, and from the host, to a pod on each, and from both to the API server's Service. Returns the cluster
/// IPs of the pods' Services.
async fn routes(bed: &NodeBed, second: &Node) -> Result<[String; 2]> {
    let mut services = [String::new(), String::new()];
    for (node, service) in bed.nodes().zip(&mut services) {
        let pod = format!("on-{}", node.name());
        let made = target_pod(bed, &pod, node.name()).await?;
        tokio::net::TcpStream::connect(format!("{}:8080", address_of(&made)?))
            .await
            .context("the pod from the host")?;
        *service = service_of(bed, &pod).await?;
    }
    for from in bed.nodes() {
        for (to, service) in bed.nodes().zip(&services) {
            let name = format!("on-{}", to.name());
            let what = format!("{name} through its Service on {}", from.name());
            wait_until(&what, async || {
                Ok(name_at(from, service).await.as_ref() == Some(&name))
            })
            .await?;
        }
    }
    let kubectl = bed.programs()?.join("kubectl").display().to_string();
    let kubeconfig = format!("--kubeconfig={}", bed.admin_kubeconfig().display());
    let server = "--server=https://10.96.0.1";
    let arguments = [&kubeconfig, server, "get", "--raw=/version"];
    let version = second.run_inside(&kubectl, &arguments).await?;
    ensure!(version.contains("gitVersion"), "{version}");
    let exec = ["exec", &format!("on-{}", second.name()), "--", "hostname"];
    let hostname = bed.kubectl(&exec).await?;
    ensure!(hostname.trim() == exec[1], "{hostname}");
    Ok(services)
}

async fn cut_and_heal(bed: &NodeBed, second: &Node, services: &[String; 2]) -> Result<()> {
    second.cut_network().await?;
    ensure!(
        name_at(bed, &services[1]).await.is_none() && name_at(second, &services[0]).await.is_none(),
        "what is cut off was reached"
    );
    ensure!(
        name_at(second, &services[1]).await.is_some(),
        "a node that is cut off does not reach itself"
    );
    second.heal_network().await?;
    for (node, service) in [(&**bed, &services[1]), (second, &services[0])] {
        ensure!(name_at(node, service).await.is_some(), "it did not heal");
    }
    ensure!(bed.cut_network().await.is_err(), "the first node was cut");
    Ok(())
}

async fn power_cut(bed: &NodeBed, second: &Node, services: &[String; 2]) -> Result<()> {
    let first_process = second.first_process()?;
    second.kill().await?;
    ensure!(
        !std::path::Path::new(&format!("/proc/{first_process}")).exists(),
        "the node outlived its kill"
    );
    ensure!(
        name_at(bed, &services[1]).await.is_none(),
        "a pod outlived its node"
    );
    ensure!(second.kill().await.is_err(), "it was killed twice");
    second.start().await?;
    let pod = format!("on-{}", second.name());
    ready_pod(bed, &pod, 1).await?;
    wait_until("the pod through its Service", async || {
        Ok(name_at(bed, &services[1]).await.is_some())
    })
    .await
}

async fn bound_token(bed: &NodeBed) -> Result<()> {
    let kubeconfig = bed
        .service_account_kubeconfig("default", "default", Some("target"))
        .await?;
    let review = who_am_i(leadsman_testkit::client(&kubeconfig).await?).await?;
    let node = review
        .extra
        .unwrap_or_default()
        .remove("authentication.kubernetes.io/node-name")
        .unwrap_or_default();
    ensure!(
        node == [bed.node_name()],
        "the token is bound to the nodes {node:?}"
    );
    Ok(())
}

async fn programs_inside(bed: &NodeBed) -> Result<()> {
    ensure!(bed.run_inside("hostname", &[]).await?.trim() == bed.node_name());
    let mut command = bed.command_inside("sh")?;
    // Ends well on SIGTERM only, and only if that reaches it.
    command
        .args([
            "-c",
            "trap 'exit 7' TERM; echo trapped; while :; do sleep 0.1; done",
        ])
        .stdout(Stdio::piped());
    let mut inside = bed.spawn_inside(command).await?;
    let mut trapped = [0; 8];
    inside
        .stdout
        .as_mut()
        .context("a pipe")?
        .read_exact(&mut trapped)
        .await?;
    inside.signal(Signal::SIGTERM)?;
    ensure!(
        inside.wait().await?.code() == Some(7),
        "SIGTERM did not reach the program"
    );
    let mut command = bed.command_inside("sleep")?;
    command.arg("1000");
    let mut inside = bed.spawn_inside(command).await?;
    let program = inside.pid();
    inside.kill().await?;
    ensure!(
        !std::path::Path::new(&format!("/proc/{program}")).exists(),
        "the program outlived its kill"
    );
    Ok(())
}

async fn stopped_container(bed: &NodeBed, pod: &Pod) -> Result<()> {
    let id = container(pod)
        .and_then(|status| status.container_id.clone())
        .context("the container has an id")?;
    bed.stop_container(&id).await?;
    ready_pod(bed, "target", 1).await.map(drop)
}

async fn restarts(bed: &NodeBed) -> Result<()> {
    bed.restart_kubelet().await?;
    bed.stop_runtime().await?;
    let socket = bed.runtime_socket();
    ensure!(
        tokio::net::UnixStream::connect(socket).await.is_err(),
        "a stopped containerd listens"
    );
    bed.start_runtime().await?;
    bed.ctr(&["containers", "list"]).await?;
    Ok(())
}

async fn wait_until(what: &str, mut there: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let deadline = clock::now() + Duration::from_mins(1);
    while !there().await? {
        ensure!(clock::now() < deadline, "{what} did not come in a minute");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
