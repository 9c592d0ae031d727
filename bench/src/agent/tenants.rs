//! Attacks on an agent: probes of a hostile namespace on a real node, beside a neighbour's real pods.

use anyhow::Result;
use kube::api::{DeleteParams, ListParams};
use leadsman_testkit::cluster::{AGENT_METRICS, Cluster, MANAGER_METRICS};
use leadsman_tests::Room;
use leadsman_tests::room::{is_main, probe, role};
use leadsman_tests::scene::merge;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::probed_node::{HTTP, ProbedNode};
use crate::meter::Meter;
use crate::report::Report;
use crate::share_of;
use crate::tenants::kubelet::{AGENT_MEMORY, ANSWER, Kept, MANAGER_MEMORY, Tended};
use crate::tenants::neighbour::{Neighbour, Source};
use crate::tenants::{self, Attack, Played, Scene};

/// Pods of the neighbour, one half of which are probed over HTTP, the others by a command.
const NEIGHBOURS: usize = 12;
/// Probes of a marker, as many as there may be.
const OF_A_MARKER: usize = 32;
/// At full size: probes that find much, probes of a server that never answers, commands that hang.
const MESSAGES: usize = 256;
const HEADS: usize = 1_300;
const COMMANDS: usize = 100;
/// As many pods have the commands: fewer would not fill an agent's permits.
const COMMANDED: usize = 5;
/// The longest timeout that a marker may have, in seconds.
const LONGEST: u32 = 3_600;

/// Plays these attacks one after the other. Must not be called within a Tokio runtime.
pub(crate) fn measure(attacks: &[Attack], scale: f64, report: &mut Report) -> Result<()> {
    let raised = ProbedNode::raise(NEIGHBOURS);
    let play_all = async |node: &mut ProbedNode| {
        mark_neighbours(node).await?;
        for attack in attacks {
            let played = Box::pin(play(node, *attack, scale)).await;
            tenants::add(*attack, played, report);
            // The next one meets processes that have done nothing yet, and the bed's end none at all.
            for process in OnNode::both(node) {
                process.stop().await;
            }
        }
        Ok(())
    };
    crate::play(raised, play_all, ProbedNode::end)
}

/// Marks every pod by its role, half of them by an HTTP probe, the others by a command that asks the same.
async fn mark_neighbours(node: &ProbedNode) -> Result<()> {
    let groups: Vec<_> = (0..10).map(|group| format!("g{group}")).collect();
    let (by_http, by_command) = groups.split_at(groups.len() / 2);
    let url = format!("http://127.0.0.1:{HTTP}/role");
    let mut command = role();
    // A command has more to do than a request, on a machine that does other things too.
    let asks =
        json!({"httpGet": null, "timeoutSeconds": 3, "exec": {"command": ["/target", "get", url]}});
    merge(&mut command["probe"], asks);
    for (name, groups, probe) in [("http", by_http, role()), ("command", by_command, command)] {
        let among = json!([{"key": "group", "operator": "In", "values": groups}]);
        let selector = json!({"matchExpressions": among});
        node.room
            .scene
            .marker_of(name, selector, json!([probe]))
            .await?;
    }
    Ok(())
}

async fn play(node: &ProbedNode, attack: Attack, scale: f64) -> Result<Played> {
    let [manager, agent] = OnNode::both(node).map(Tended::new);
    manager.process.stop().await;
    manager.process.start().await?;
    node.start_ready_agent(&node.bed.runtime_endpoint()).await?;
    let pods: Vec<_> = node
        .targets
        .iter()
        .map(|target| target.name.clone())
        .collect();
    for pod in &pods {
        node.room.set(pod, "role=secondary").await?;
        node.room.scene.wait_for_marks(pod, is_main(false)).await?;
    }
    let mut neighbour = Neighbour::begin(&node.client, &node.room.scene.ns, pods).await?;
    let hostile = Room::new(&node.room.cluster, &attack.to_string()).await?;
    let scene = Scene {
        neighbour: &mut neighbour,
        source: node,
        manager: &manager,
        agent: Some(&agent),
    };
    let (begin, keep_up) = (begin(&hostile, attack, scale), std::future::pending());
    let played = Box::pin(scene.play((attack, scale), begin, keep_up)).await;
    end(&hostile).await?;
    played
}

async fn begin(hostile: &Room<Cluster>, attack: Attack, scale: f64) -> Result<()> {
    let scaled = |count| share_of(count, scale).max(2);
    let http = |path: &str| json!({"httpGet": {"path": path, "port": HTTP}});
    let (pods, probes, handler, timeout) = match attack {
        Attack::Heads => (1, scaled(HEADS), http("/endless-head"), LONGEST),
        Attack::Commands => {
            let sleep = json!({"exec": {"command": ["/target", "sleep"]}});
            (
                COMMANDED,
                scaled(COMMANDS).div_ceil(COMMANDED),
                sleep,
                LONGEST,
            )
        }
        _ => (1, scaled(MESSAGES), http("/healthz"), 1),
    };
    for number in 0..pods {
        let pod = format!("hostile-{number}");
        hostile.pod(&pod, json!({})).await?;
        if attack == Attack::Messages {
            let body = "%3C".repeat(1_024);
            hostile.set(&pod, &format!("body={body}")).await?;
        }
    }
    let probes: Vec<_> = (0..probes)
        .map(|number| hostile_probe(number, &handler, timeout))
        .collect();
    for (number, probes) in probes.chunks(OF_A_MARKER).enumerate() {
        let name = format!("hostile-{number}");
        hostile.scene.marker(&name, json!(probes)).await?;
    }
    Ok(())
}

fn hostile_probe(number: usize, handler: &Value, timeout: u32) -> Value {
    let mut probe = probe(&format!("p{number}"), handler.clone());
    probe["probe"]["timeoutSeconds"] = json!(timeout);
    probe
}

/// Takes everything of the attack away.
async fn end(hostile: &Room<Cluster>) -> Result<()> {
    let (delete, all) = (
        DeleteParams::default().grace_period(0),
        ListParams::default(),
    );
    hostile
        .scene
        .markers()
        .delete_collection(&delete, &all)
        .await?;
    hostile
        .scene
        .pods()
        .delete_collection(&delete, &all)
        .await?;
    Ok(())
}

impl Source for ProbedNode {
    async fn turn(&self, pod: &str, on: bool) -> Result<()> {
        let role = if on { "main" } else { "secondary" };
        self.room.set(pod, &format!("role={role}")).await
    }
}

/// The manager or the agent of a node.
struct OnNode<'a> {
    node: &'a ProbedNode,
    is_agent: bool,
}

impl<'a> OnNode<'a> {
    fn both(node: &'a ProbedNode) -> [Self; 2] {
        [false, true].map(|is_agent| Self { node, is_agent })
    }
}

impl Kept for OnNode<'_> {
    fn limit(&self) -> u64 {
        if self.is_agent {
            AGENT_MEMORY
        } else {
            MANAGER_MEMORY
        }
    }

    fn meter(&self) -> Result<Meter> {
        let node = self.node;
        let pid = if self.is_agent {
            node.agent_pid()
        } else {
            node.manager_pid()
        };
        pid.map(Meter)
    }

    async fn answers(&self, path: &str) -> bool {
        let address = if self.is_agent {
            AGENT_METRICS
        } else {
            MANAGER_METRICS
        };
        let url = format!("http://{address}{path}");
        matches!(
            timeout(ANSWER, self.node.bed.get_from_inside(&url)).await,
            Ok(Ok(_))
        )
    }

    async fn stop(&self) {
        let stopped = if self.is_agent {
            self.node.stop_agent().await
        } else {
            self.node.stop_manager().await
        };
        if let Err(error) = stopped {
            eprintln!("bench: a process is killed or did not run: {error:#}");
        }
    }

    async fn kill(&self) {
        // An error says that it does not run.
        let _killed = if self.is_agent {
            self.node.kill_agent().await
        } else {
            self.node.kill_manager().await
        };
    }

    async fn start(&self) -> Result<()> {
        if self.is_agent {
            self.node.start_agent().await
        } else {
            self.node.start_manager().await
        }
    }
}
