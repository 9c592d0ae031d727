//! The DaemonSet of agents: rolled out anew, and nobody notices.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use leadsman_testkit::release::Component;
use leadsman_testkit::{Node, Release};
use leadsman_tests::budget::{self, agent};
use leadsman_tests::wait_for_answer;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::room::{PODS, flip, roles_were};
use crate::{Room, install, marked_pods};

/// Pods that come and go together, and how often: thirty in all.
const CROWD: usize = 10;
const TIMES: usize = 3;
/// The runtime's socket once more, in the folder in which containers are mounted. By default that is one folder; in a bed
/// there are two.
const SOCKET: &str = "/run/containerd-state/containerd.sock";

/// Probes of each pod, one a second, by which its agent is known to work.
const ROUNDS: u64 = 3;

// PPM-11, PRB-11
pub(crate) async fn a_roll_out_moves_no_mark_and_writes_no_status(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "rollout").await?;
    probed_more(&room).await?;
    let (mark, begun) = (release.bed.audit_mark()?, Instant::now());
    let agents = Component::Agent.workload();
    release.kubectl(&["rollout", "restart", agents]).await?;
    release.wait_for_rollout().await?;
    probed_more(&room).await?;
    // A request that is not listed here is one too many.
    let rows = [
        agent("list nodepodprobes", 2),
        agent("watch nodepodprobes", 2),
        budget::lease(),
    ];
    budget::keep(&release.bed.audit(mark)?, begun.elapsed(), &rows)?;
    flip(&room, "first", false).await?;
    flip(&room, "second", false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

/// Waits until each pod was asked some more times.
pub(crate) async fn probed_more(room: &Room) -> Result<()> {
    for pod in PODS {
        let before = probes_of(room, pod).await?;
        wait_for_answer("more probes", || async {
            let now = probes_of(room, pod).await?;
            Ok((now >= before + ROUNDS).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// How often a pod was asked for its role.
async fn probes_of(room: &Room, pod: &str) -> Result<u64> {
    let counts: Value = serde_json::from_str(&room.get(pod, "/counts").await?)?;
    let count = counts["http"]["/role"].as_u64();
    count.context("the target counts no probes")
}

/// The pods of a crowd, on the first node; their containers.
async fn come(room: &Room, name: &str) -> Result<Vec<String>> {
    let node = room.cluster.bed.node_name();
    let place = json!({"spec": {"nodeName": node, "tolerations": [{"operator": "Exists"}]}});
    try_join_all((0..CROWD).map(|number| {
        let (pod, place) = (format!("{name}-{number}"), place.clone());
        async move {
            room.pod(&pod, place).await?;
            room.container_id(&pod, "main").await
        }
    }))
    .await
}

/// Deletes a crowd, and waits until the node runs none of its containers.
async fn go(room: &Room, name: &str, containers: &[String]) -> Result<()> {
    for number in 0..CROWD {
        room.scene.delete_pod(&format!("{name}-{number}")).await?;
    }
    wait_for_answer("the end of its containers", || async {
        let tasks = tasks(&room.cluster.bed).await?;
        let runs = |id: &String| tasks.iter().any(|(task, _)| id.ends_with(task));
        Ok((!containers.iter().any(runs)).then_some(()))
    })
    .await
}

/// The containers that run on a node, with their processes as the node numbers them.
async fn tasks(node: &Node) -> Result<Vec<(String, String)>> {
    let listed = node.ctr(&["tasks", "list"]).await?;
    let rows = listed.lines().skip(1).map(|line| {
        let mut words = line.split_whitespace().map(ToOwned::to_owned);
        Some((words.next()?, words.next()?))
    });
    rows.collect::<Option<_>>().context(listed.clone())
}

/// What is mounted for containers, as the agent of the first node sees it.
async fn mounts_of_agent(release: &Release) -> Result<usize> {
    let node = &release.bed;
    let pods = release.pods(Component::Agent).await?.into_iter();
    let mut pods = pods.filter(|pod| {
        let spec = pod.spec.as_ref();
        spec.and_then(|spec| spec.node_name.as_deref()) == Some(node.node_name())
    });
    let status = pods.next().and_then(|pod| pod.status);
    let containers = status.and_then(|it| it.container_statuses);
    let id = containers.and_then(|it| it.into_iter().find_map(|it| it.container_id));
    let id = id.context("the agent has no container")?;
    let tasks = tasks(node).await?;
    let task = tasks.iter().find(|(name, _)| id.ends_with(name.as_str()));
    let (_, process) = task.context("the agent does not run")?;
    let mounts = format!("/proc/{process}/mountinfo");
    let mounts = node.run_inside("cat", &[&mounts]).await?;
    let of_containers = mounts.lines().filter(|line| line.contains(" /host"));
    Ok(of_containers.count())
}

/// The folder of the runtime's socket, in which containers are mounted too, is in the agent's file system. Mounts of
/// later containers do not spread into it, and its copies of earlier ones end with these: the folder on which something is
/// mounted elsewhere can be removed since Linux 3.18 (`detach_mounts`, `fs/namespace.c`).
pub(crate) async fn mounts_of_other_pods_do_not_pile_up_in_an_agent(
    release: Arc<Release>,
) -> Result<()> {
    for node in release.bed.nodes() {
        node.run_inside("touch", &[SOCKET]).await?;
        let socket = node.runtime_socket().display().to_string();
        node.run_inside("mount", &["--bind", &socket, SOCKET])
            .await?;
    }
    let values = json!({"agent": {"runtime": {"socket": SOCKET}}});
    install(&release, values).await?;
    let room = Room::new(&release, "mounts").await?;
    let earlier = come(&room, "earlier").await?;
    let agents = Component::Agent.workload();
    release.kubectl(&["rollout", "restart", agents]).await?;
    release.wait_for_rollout().await?;
    let copied = mounts_of_agent(&release).await?;
    ensure!(copied > CROWD, "only {copied} mounts: none is copied");
    for time in 0..TIMES {
        let name = format!("later-{time}");
        let containers = come(&room, &name).await?;
        let mounts = mounts_of_agent(&release).await?;
        ensure!(mounts <= copied, "{mounts} mounts, {copied} before");
        go(&room, &name, &containers).await?;
    }
    go(&room, "earlier", &earlier).await?;
    let left = wait_for_answer("the end of the copies", || async {
        let left = mounts_of_agent(&release).await?;
        Ok((left + CROWD <= copied).then_some(left))
    });
    let left = left.await?;
    eprintln!("mounts in the agent: {copied} with {CROWD} earlier pods, {left} without");
    Ok(())
}
