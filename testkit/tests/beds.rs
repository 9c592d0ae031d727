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
use leadsman_testkit::{ControlPlane, NodeBed, Options, clock, progress};
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
    let pod = target_pod(&bed).await.context("a target's pod")?;
    let address = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .context("the pod has no address")?;
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

async fn target_pod(bed: &NodeBed) -> Result<Pod> {
    let pods = Api::<Pod>::default_namespaced(bed.client().await?);
    let pod = serde_json::from_value(json!({
        "metadata": { "name": "target", "labels": { "app": "target" } },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "target",
                "image": "docker.io/local/target:1",
                "readinessProbe": { "grpc": { "port": 50051 }, "periodSeconds": 1 },
            }],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    let mut found = None;
    wait_until("the pod's readiness", async || {
        let pod = pods.get("target").await?;
        let ready = container(&pod).is_some_and(|status| status.ready);
        found = Some(pod);
        Ok(ready)
    })
    .await?;
    found.context("the pod was seen")
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
    let services = Api::<Service>::default_namespaced(bed.client().await?);
    let service = serde_json::from_value(json!({
        "metadata": { "name": "target" },
        "spec": { "selector": { "app": "target" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    }))?;
    let made = services.create(&PostParams::default(), &service).await?;
    let address = made
        .spec
        .and_then(|spec| spec.cluster_ip)
        .context("the service has no address")?;
    wait_until("the service's answer", async || {
        Ok(bed
            .get_from_inside(&format!("http://{address}/name"))
            .await
            .is_ok())
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
    let mut command = bed.command_inside("sh");
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
    let mut command = bed.command_inside("sleep");
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
    let pods = Api::<Pod>::default_namespaced(bed.client().await?);
    wait_until("the container's restart", async || {
        let pod = pods.get("target").await?;
        Ok(container(&pod).is_some_and(|status| status.restart_count == 1 && status.ready))
    })
    .await
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
