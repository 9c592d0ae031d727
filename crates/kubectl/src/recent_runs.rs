//! The recent runs that a node's agent keeps. They are asked for in the agent's pod, by `leadsman-agent history`, so
//! whoever asks needs the right to run commands there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leadsman_api::slim::Pod;
use leadsman_core::podprobe::explain::{Explanation, MarkerFit, Unread};
use leadsman_core::podprobe::history::{HistoryHead, HistoryQuery, ProbeHistory};

use crate::exec::{ExecCommand, ExecEnd, ExecOutput};
use crate::reader::Reader;

/// A person waits, also for a node that is down.
const DEADLINE: Duration = Duration::from_secs(8);
/// An agent keeps 4 MiB, of which JSON may make several times as much.
const ANSWER_BYTES: usize = 32 << 20;
/// The agent's container, and its program.
const CONTAINER: &str = "agent";
const PROGRAM: &str = "/leadsman-agent";
/// The words of container runtimes, after a program's name, if the program is not in the image: runc
/// `stat …: no such file or directory`, crun `executable file … not found in $PATH: No such file or directory`
/// (`src/libcrun/container.c`).
const NO_PROGRAM: &str = "no such file or directory";

/// The kubelet's annotation with the uid by which a static pod's containers are known (`kubetypes.ConfigHashAnnotationKey`).
const STATIC_UID: &str = "kubernetes.io/config.hash";

/// The running pods of the agents, by their nodes.
#[derive(Clone, Debug)]
pub(crate) struct Agents {
    namespace: String,
    pods: Result<BTreeMap<String, String>, Unread>,
}

/// The answer of an agent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeHistory {
    pub(crate) head: HistoryHead,
    pub(crate) probes: Vec<ProbeHistory>,
}

impl Agents {
    pub(crate) fn new(namespace: &str, pods: &Result<Vec<Pod>, Unread>) -> Self {
        let running = |pod: &&Pod| {
            // A node may have two in a roll-out; the one that ends does not answer.
            pod.identity.deletion_timestamp.is_none()
                && pod.status.phase.as_deref() == Some("Running")
        };
        let by_node = |pod: &Pod| Some((pod.spec.node_name.clone()?, pod.identity.name.clone()?));
        let pods = pods.as_ref().map_err(Clone::clone);
        Self {
            namespace: namespace.to_owned(),
            pods: pods.map(|pods| pods.iter().filter(running).filter_map(by_node).collect()),
        }
    }

    /// The nodes that have one.
    pub(crate) fn nodes_with_agent(&self) -> Result<Vec<String>, Unread> {
        let pods = self.pods.as_ref().map_err(Clone::clone)?;
        Ok(pods.keys().cloned().collect())
    }

    fn agent_of_node(&self, node: &str) -> Result<&str, Unread> {
        let pods = self.pods.as_ref().map_err(Clone::clone)?;
        let no_agent = || Unread(format!("no agent runs on node {node}"));
        pods.get(node).map(String::as_str).ok_or_else(no_agent)
    }
}

/// The uids by which agents, and their events, know these pods: an agent may know an earlier pod of the same name.
pub(crate) fn known_uids(pods: &[Pod]) -> BTreeSet<String> {
    let of_static = |pod: &Pod| {
        let mut annotations = pod.annotations.iter();
        let uid = annotations.find(|(key, _)| key == STATIC_UID);
        uid.map(|(_, uid)| uid.clone())
    };
    let own = pods.iter().filter_map(|pod| pod.identity.uid.clone());
    own.chain(pods.iter().filter_map(of_static)).collect()
}

impl Reader {
    /// Adds the recent runs of a pod's probes to what is known of it, or why there are none.
    pub(crate) async fn add_recent_runs(
        &self,
        explained: &mut Explanation,
        agents: &Agents,
        uids: &BTreeSet<String>,
    ) {
        let probed = explained.markers.iter().any(|marker| match &marker.fit {
            MarkerFit::Matches { probes } => !probes.is_empty(),
            _ => false,
        });
        let Some(node) = explained.node.clone().filter(|_| probed) else {
            return;
        };
        let query = HistoryQuery {
            namespace: Some(explained.namespace.clone()),
            pod: Some(explained.name.clone()),
            without_output: false,
        };
        match self.read_recent_runs(agents, &node, &query).await {
            Ok(mut history) => {
                // An agent may still know the earlier pod of this name, as of a StatefulSet.
                history.probes.retain(|probe| uids.contains(&*probe.uid));
                explained.add_recent_runs(&history.probes);
            }
            Err(why) => explained.unread.push(format!("recent runs: {}", why.0)),
        }
    }

    /// Asks the agent of a node.
    pub(crate) async fn read_recent_runs(
        &self,
        agents: &Agents,
        node: &str,
        query: &HistoryQuery,
    ) -> Result<NodeHistory, Unread> {
        let pod = agents.agent_of_node(node)?;
        let words = query_flags(query);
        let flags = words.iter().map(String::as_str);
        let command: Vec<_> = [PROGRAM, "history"].into_iter().chain(flags).collect();
        let output = self
            .exec_command(&ExecCommand {
                namespace: &agents.namespace,
                pod,
                container: CONTAINER,
                command: &command,
                deadline: DEADLINE,
                stdout_bytes: ANSWER_BYTES,
            })
            .await?;
        parse_answer(&output).map_err(|why| {
            let namespace = &agents.namespace;
            Unread(format!("agent {namespace}/{pod} on node {node}: {why}"))
        })
    }
}

fn query_flags(query: &HistoryQuery) -> Vec<String> {
    let flag = |name: &str, value: &Option<String>| {
        let value = value.as_ref();
        value.map(|value| format!("--{name}={value}"))
    };
    let without_output = query.without_output.then(|| "--without-output".to_owned());
    let flags = [
        flag("namespace", &query.namespace),
        flag("pod", &query.pod),
        without_output,
    ];
    flags.into_iter().flatten().collect()
}

/// An answer, or why it is none.
fn parse_answer(output: &ExecOutput) -> Result<NodeHistory, String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said = stderr.trim().trim_start_matches("leadsman-agent: ");
    match &output.end {
        ExecEnd::Exited(0) => {}
        ExecEnd::Exited(code) if said.is_empty() => {
            return Err(format!("`{PROGRAM} history` exited with code {code}"));
        }
        ExecEnd::Exited(_) => return Err(said.to_owned()),
        ExecEnd::NotStarted(why)
            if why.contains(PROGRAM) && why.to_lowercase().contains(NO_PROGRAM) =>
        {
            return Err(format!(
                "its image has no {PROGRAM}, so it is of another version of leadsman than this plugin"
            ));
        }
        ExecEnd::NotStarted(why) => {
            return Err(format!("`{PROGRAM} history` was not started: {why}"));
        }
        ExecEnd::Unknown => return Err("the connection ended before the answer".to_owned()),
    }
    if output.is_truncated {
        return Err(format!("its answer has more than {ANSWER_BYTES} bytes"));
    }
    let undecodable = |error: &serde_json::Error| format!("its answer cannot be decoded: {error}");
    let mut lines = output.stdout.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let head: HistoryHead = serde_json::from_slice(first).map_err(|error| undecodable(&error))?;
    let probes = lines
        .take(head.probes)
        .filter(|line| !line.is_empty())
        .map(serde_json::from_slice)
        .collect::<Result<Vec<ProbeHistory>, _>>()
        .map_err(|error| undecodable(&error))?;
    if probes.len() < head.probes {
        let (count, expected) = (probes.len(), head.probes);
        return Err(format!(
            "its answer broke off after {count} of {expected} probes"
        ));
    }
    Ok(NodeHistory { head, probes })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const PROBE: &str =
        r#"{"namespace":"ns","pod":"p","uid":"u","container":"c","marker":"m","probe":"a"}"#;

    fn output(stdout: &str, stderr: &str, end: ExecEnd) -> ExecOutput {
        ExecOutput {
            stdout: stdout.into(),
            stderr: stderr.into(),
            is_truncated: false,
            end,
        }
    }

    #[test]
    fn an_answer_has_as_many_probes_as_its_first_line_says() {
        let whole = format!("{{\"runsKept\":10,\"probes\":1}}\n{PROBE}\n");
        let history = parse_answer(&output(&whole, "", ExecEnd::Exited(0))).unwrap();
        assert_eq!((history.head.runs_kept, history.probes.len()), (10, 1));
        let short = format!("{{\"probes\":2}}\n{PROBE}\n");
        let error = parse_answer(&output(&short, "", ExecEnd::Exited(0))).unwrap_err();
        assert_eq!(error, "its answer broke off after 1 of 2 probes");
    }

    #[rstest]
    #[case(
        "leadsman-agent: no agent answers at /x: gone; it keeps recent runs if …",
        ExecEnd::Exited(1),
        "no agent answers at /x: gone; it keeps recent runs if …"
    )]
    #[case(
        "",
        ExecEnd::Exited(137),
        "`/leadsman-agent history` exited with code 137"
    )]
    #[case(
        "",
        ExecEnd::NotStarted("exec: \"/leadsman-agent\": stat /leadsman-agent: no such file or directory: unknown".to_owned()),
        "its image has no /leadsman-agent, so it is of another version of leadsman than this plugin"
    )]
    #[case(
        "",
        ExecEnd::NotStarted("executable file `/leadsman-agent` not found in $PATH: No such file or directory".to_owned()),
        "its image has no /leadsman-agent, so it is of another version of leadsman than this plugin"
    )]
    #[case(
        "",
        ExecEnd::NotStarted("container not running".to_owned()),
        "`/leadsman-agent history` was not started: container not running"
    )]
    #[case("", ExecEnd::Unknown, "the connection ended before the answer")]
    fn why_there_is_no_answer_is_said(
        #[case] stderr: &str,
        #[case] end: ExecEnd,
        #[case] expected: &str,
    ) {
        assert_eq!(
            parse_answer(&output("", stderr, end)).unwrap_err(),
            expected
        );
    }

    #[test]
    fn the_agent_of_a_node_is_its_running_pod() {
        let pod = |name: &str, node: &str, phase: &str| {
            let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node}, "status": {"phase": phase}});
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        let pods = vec![
            pod("old", "n1", "Failed"),
            pod("a", "n1", "Running"),
            pod("b", "n2", "Pending"),
        ];
        let agents = Agents::new("ns", &Ok(pods));
        assert_eq!(agents.nodes_with_agent().unwrap(), ["n1"]);
        assert_eq!(agents.agent_of_node("n1").unwrap(), "a");
        let none = agents.agent_of_node("n2").unwrap_err();
        assert_eq!(none.0, "no agent runs on node n2");
        let missing = Err(Unread("missing right: list pods".to_owned()));
        let missing = Agents::new("ns", &missing).agent_of_node("n1").unwrap_err();
        assert_eq!(missing.0, "missing right: list pods");
    }

    #[test]
    fn a_pod_is_known_by_its_own_uid_and_a_static_one_by_the_kubelets() {
        let pod = |uid: &str, annotations: serde_json::Value| {
            let pod = json!({"metadata": {"name": "p", "uid": uid, "annotations": annotations}});
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        let pods = [
            pod("a", json!({})),
            pod("b", json!({"kubernetes.io/config.hash": "c"})),
        ];
        let known: Vec<_> = known_uids(&pods).into_iter().collect();
        assert_eq!(known, ["a", "b", "c"]);
    }

    #[test]
    fn a_question_becomes_flags() {
        let query = HistoryQuery {
            namespace: Some("ns".to_owned()),
            pod: None,
            without_output: true,
        };
        assert_eq!(query_flags(&query), ["--namespace=ns", "--without-output"]);
    }
}
