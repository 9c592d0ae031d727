//! Commands that the agent runs by entering containers are the same as those that the runtime runs: verdict, output, and what
//! a command can learn about itself. The program `leadsman-differ` runs each both ways, where the agent would.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leadsman_testkit::cluster::AGENT_METRICS;
use leadsman_testkit::{Cluster, leadsman};
use leadsman_tests::differ::{Answer, Order};
use leadsman_tests::room::{probe, target};
use leadsman_tests::{sum_of_counters, wait_for_answer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Room;

/// A command of the table: a script for `sh -c`, or its words.
enum Words {
    Script(&'static str),
    Program(&'static [&'static str]),
    /// One that cannot be executed, whatever the container: the runtime is asked then.
    NoProgram(&'static [&'static str]),
}

use Words::{NoProgram, Program, Script};

impl Words {
    fn command(&self) -> Vec<String> {
        match self {
            Script(script) => ["sh", "-c", script].map(ToOwned::to_owned).to_vec(),
            Program(words) | NoProgram(words) => {
                words.iter().map(|word| (*word).to_owned()).collect()
            }
        }
    }
}

/// What is run in each container. Later ones may use the files of earlier ones. No signal among them is one that a shell ignores for
/// what it starts in the background, as it may have started this suite: a command inherits that from its starter.
const COMMANDS: &[Words] = &[
    // Exit codes and signals.
    Program(&["true"]),
    Program(&["false"]),
    Script("exit 2"),
    Script("exit 125"),
    Script("exit 126"),
    Script("exit 127"),
    Script("exit 128"),
    Script("exit 137"),
    Script("exit 255"),
    Script("exit 256"),
    Script("kill -USR2 $$"),
    Script("kill -TERM $$"),
    Script("kill -KILL $$"),
    Script("kill -SEGV $$"),
    Script("kill -ABRT $$"),
    Script("kill -PIPE $$"),
    Script("kill -USR1 $$"),
    Script("trap 'echo caught; exit 7' TERM; kill -TERM $$"),
    Script("yes | head -n 1; echo ${PIPESTATUS:-none}"),
    // Output.
    Script("echo out; echo err >&2; exit 3"),
    Script("printf 'no newline'"),
    Script(r"printf 'a\000b\377c'"),
    Script("head -c 10239 /dev/zero | tr '\\0' x"),
    Script("head -c 10241 /dev/zero | tr '\\0' x; exit 4"),
    Script(
        "head -c 1000000 /dev/zero | tr '\\0' o; head -c 200000 /dev/zero | tr '\\0' e >&2; exit 5",
    ),
    Script("echo named > /dev/stdout; echo error > /dev/stderr"),
    Script("echo again > /proc/self/fd/1"),
    Script("exec >&-; echo nowhere; echo $? >&2"),
    Script("exec 2>&-; nosuch; echo $?"),
    Script("exec <&-; cat; echo $?"),
    // Input and descriptors.
    Program(&["cat"]),
    Program(&["readlink", "/proc/self/fd/0"]),
    Script("ls /proc/$$/fd"),
    Script("test -t 0 || test -t 1 || echo no terminal"),
    // Children.
    Script("(sleep 0.3; echo late) & echo soon"),
    Script("sleep 0.1 & wait; echo done"),
    Script("setsid sleep 0.1 >/dev/null 2>&1 & echo left"),
    Script("(echo $$; exit 9) >/dev/null; echo $?"),
    // Programs that are missing or cannot be executed.
    NoProgram(&["/no/such"]),
    NoProgram(&["nosuch"]),
    NoProgram(&["./nosuch"]),
    NoProgram(&["/tmp"]),
    NoProgram(&[""]),
    Script(
        "for f in plain text noexec nointerp interp empty; do printf 'echo script\\n' > /tmp/$f; done",
    ),
    Script(
        "chmod 755 /tmp/plain /tmp/nointerp /tmp/interp /tmp/empty; chmod 644 /tmp/noexec; : > /tmp/empty",
    ),
    Script(
        "printf '#!/no/such\\n' > /tmp/nointerp; printf '#!/bin/sh\\necho interpreted $0 $1\\n' > /tmp/interp",
    ),
    NoProgram(&["/tmp/plain"]),
    NoProgram(&["/tmp/noexec"]),
    NoProgram(&["/tmp/nointerp"]),
    Program(&["/tmp/interp", "an argument"]),
    NoProgram(&["/tmp/empty"]),
    Program(&["/proc/1/root/bin/true"]),
    Program(&["echo", "a b", "$HOME", "*", "\u{fc}", "'\"", "\n", ""]),
    Program(&["sh", "-c", "echo $0 $1", "zero", "one"]),
    // Whom it is.
    Program(&["id"]),
    Program(&["id", "-G"]),
    Program(&[
        "grep",
        "-E",
        "^(Umask|PPid|TracerPid|Uid|Gid|Groups|Threads|Sig(Blk|Cgt|Pnd)|ShdPnd|Cap|NoNew|Seccomp|Spec|Cpus|Mems)",
        "/proc/self/status",
    ]),
    Program(&["env"]),
    Script("echo $HOME; pwd; umask; echo $PATH"),
    Program(&["cat", "/proc/self/limits"]),
    Script("ulimit -a"),
    Program(&["cat", "/proc/self/cgroup"]),
    Script(
        "for n in mnt pid pid_for_children net ipc uts cgroup user time; do readlink /proc/self/ns/$n; done",
    ),
    Program(&["cut", "-d", " ", "-f", "18,19,41", "/proc/self/stat"]),
    Program(&["cat", "/proc/self/timerslack_ns"]),
    Program(&["cat", "/proc/self/personality"]),
    Program(&["cat", "/proc/self/coredump_filter"]),
    Program(&["cat", "/proc/self/loginuid"]),
    Program(&["cat", "/proc/self/attr/current"]),
    Program(&["cat", "/proc/self/mountinfo"]),
    Program(&["tr", "\\0", " ", "/proc/self/cmdline"]),
    Program(&["hostname"]),
    Script("ls -ld /proc/self/root/ | cut -c 1-10; ls -di /"),
    // What it may do.
    Script("touch /made && rm /made"),
    Script("echo x > /tmp/file; cat /tmp/file; ls -ln /tmp/file | cut -c 1-40"),
    Script("chown 1:1 /tmp/file; chmod 4755 /tmp/file; ls -ln /tmp/file | cut -c 1-40"),
    Script("mkdir -p /tmp/m; mount -t tmpfs none /tmp/m"),
    Script("mknod /tmp/null c 1 3; ls /tmp/null; rm -f /tmp/null"),
    Script("kill -0 1; echo $?"),
    Script("ls /proc/1/fd > /dev/null; echo $?"),
    Script("cat /proc/1/environ > /dev/null; echo $?"),
    Script("hostname other; echo $?"),
    Script("nice; nice -n -5 true; echo $?"),
    Script("ulimit -n 100; ulimit -n; ulimit -Hn 1000000; echo $?"),
    Script("chroot / true; echo $?"),
    Script("echo 1 > /proc/sys/kernel/hostname; echo $?"),
    Script("ping -c 1 -w 1 127.0.0.1 > /dev/null; echo $?"),
];

/// What crun leaves as its caller has it, and runc sets: direct is as runc.
const OF_RUNC: &[Words] = &[
    Program(&["cat", "/proc/self/oom_score_adj"]),
    Script(
        "read p c s pp g se t rest < /proc/self/stat; test $p = $g && echo leads its group; test $p = $se && echo leads its session; echo $t",
    ),
];

/// Containers in which all of them run directly, by what is merged over the manifest of their pod.
fn containers() -> [(&'static str, Value); 5] {
    let main = |over: Value| {
        let mut main = target("main");
        leadsman_tests::scene::merge(&mut main, over);
        json!({"spec": {"containers": [main]}})
    };
    let mut user = main(json!({"workingDir": "/tmp", "env": [{"name": "B", "value": "x=y z"}]}));
    user["spec"]["securityContext"] = json!({"runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000, 5]});
    let restricted = json!({"securityContext": {"runAsUser": 1001, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}});
    let mut node = main(json!({"env": [{"name": "HOME", "value": "/home"}]}));
    node["spec"]["hostNetwork"] = json!(true);
    node["spec"]["containers"][0]["args"] = json!(["pause"]);
    [
        ("plain", main(json!({}))),
        ("user", user),
        ("restricted", main(restricted)),
        ("node-network", node),
        (
            "limited",
            main(json!({
            "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}},
            "resources": {"limits": {"memory": "64Mi", "cpu": "500m"}}})),
        ),
    ]
}

/// Runs each both ways.
async fn differ(cluster: &Cluster, orders: &[Order]) -> Result<Vec<Answer>> {
    let mut command = cluster
        .bed
        .command_inside(env!("CARGO_BIN_EXE_leadsman-differ"))?;
    command
        .arg(cluster.bed.runtime_endpoint())
        .arg(leadsman::exec_program()?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut differ = cluster.bed.spawn_inside(command).await?;
    let mut input = differ.stdin.take().context("its input is a pipe")?;
    input.write_all(&serde_json::to_vec(orders)?).await?;
    drop(input);
    let mut told = Vec::new();
    let mut output = differ.stdout.take().context("its output is a pipe")?;
    output.read_to_end(&mut told).await?;
    ensure!(
        differ.wait().await?.success(),
        "leadsman-differ failed, its reason is above"
    );
    Ok(serde_json::from_slice(&told)?)
}

fn order(container: &str, command: Vec<String>, seconds: u64) -> Order {
    Order {
        container: container.split("://").last().unwrap_or_default().to_owned(),
        command,
        timeout: Duration::from_secs(seconds),
    }
}

// PRB-29
pub(crate) async fn commands_are_the_same_by_the_runtime_and_directly(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "direct").await?;
    let runtime = cluster.bed.run_inside("runc", &["--version"]).await?;
    let of_runc: &[Words] = if runtime.starts_with("crun") {
        &[]
    } else {
        OF_RUNC
    };
    let mut compared = 0;
    let mut different = Vec::new();
    for (name, over) in containers() {
        room.pod(name, over).await?;
        let id = room.container_id(name, "main").await?;
        let table = COMMANDS.iter().chain(of_runc);
        let orders: Vec<Order> = table
            .clone()
            .map(|words| order(&id, words.command(), 20))
            .collect();
        let answers = differ(&cluster, &orders).await?;
        ensure!(answers.len() == orders.len(), "{} answers", answers.len());
        for ((words, order), answer) in table.zip(&orders).zip(answers) {
            let Answer {
                runtime,
                direct,
                way,
            } = answer;
            compared += 1;
            let starts = runtime.end.starts_with("exited") && !matches!(words, NoProgram(_));
            let expected = if starts { "direct" } else { "start" };
            if runtime != direct || way != expected {
                different.push(format!(
                    "{name}: {:?}: {way}\n  runtime {runtime:?}\n  direct  {direct:?}",
                    order.command
                ));
            }
        }
    }
    eprintln!("{compared} commands were run both ways");
    ensure!(
        different.is_empty(),
        "{} differ:\n{}",
        different.len(),
        different.join("\n")
    );
    Ok(())
}

// PRB-29
pub(crate) async fn a_command_that_takes_too_long_ends_with_its_children(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "direct-timeout").await?;
    room.pod("one", json!({})).await?;
    let id = room.container_id("one", "main").await?;
    let script = |script: &str| ["sh", "-c", script].map(ToOwned::to_owned).to_vec();
    let orders = [
        order(&id, vec!["sleep".to_owned(), "30".to_owned()], 1),
        order(
            &id,
            script("trap '' TERM; exec >/dev/null 2>&1; sleep 31; sleep 31"),
            1,
        ),
        // None holds the output open, for which a runtime would wait. The runtime leaves the children of this one; those of the run after it are gone.
        order(
            &id,
            script(
                "exec >/dev/null 2>&1; sleep 7001 & setsid sleep 7002 & (sleep 7003 &); sleep 7004",
            ),
            1,
        ),
    ];
    let answers = differ(&cluster, &orders).await?;
    for (order, answer) in orders.iter().zip(&answers) {
        ensure!(answer.way == "direct", "{:?}: {answer:?}", order.command);
        ensure!(
            answer.direct.end == "timed out",
            "{:?}: {answer:?}",
            order.command
        );
    }
    let count = async |seconds: &str| {
        let script = format!("pgrep -f '^sleep {seconds}$' | wc -l");
        let found = room.exec("one", "main", &["sh", "-c", &script]).await?;
        anyhow::Ok(found.trim().parse::<u32>()?)
    };
    // Each ran twice: by the runtime, which may leave one behind, and directly.
    for seconds in ["7001", "7002", "7003", "7004"] {
        let left = count(seconds).await?;
        ensure!(left <= 1, "{left} processes sleep {seconds}");
    }
    Ok(())
}

// PRB-29
pub(crate) async fn what_only_the_runtime_can_do_goes_through_it(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "direct-not").await?;
    let container = |security: Value| {
        let mut main = target("main");
        main["securityContext"] = security;
        json!({"spec": {"containers": [main]}})
    };
    let mut homeless = target("main");
    homeless["env"] = json!([{"name": "HOME", "value": ""}]);
    let pods = [
        (
            "namespaces",
            "host-processes",
            json!({"spec": {"hostPID": true}}),
        ),
        (
            "namespaces",
            "shared-processes",
            json!({"spec": {"shareProcessNamespace": true}}),
        ),
        (
            "capabilities",
            "privileged",
            container(json!({"privileged": true})),
        ),
        (
            "capabilities",
            "tracer",
            container(json!({"capabilities": {"add": ["SYS_PTRACE"]}})),
        ),
        (
            "specification",
            "homeless",
            json!({"spec": {"containers": [homeless]}}),
        ),
        (
            "seccomp",
            "filtered",
            container(json!({"seccompProfile": {"type": "RuntimeDefault"}})),
        ),
    ];
    for (reason, name, over) in pods {
        room.pod(name, over).await?;
        let id = room.container_id(name, "main").await?;
        let status = ["grep", "-E", "^(Cap|Seccomp)", "/proc/self/status"];
        let orders = [order(&id, status.map(ToOwned::to_owned).to_vec(), 20)];
        for answer in differ(&cluster, &orders).await? {
            ensure!(answer.way == reason, "{name}: {answer:?}");
            ensure!(answer.runtime == answer.direct, "{name}: {answer:?}");
        }
    }
    Ok(())
}

// PRB-29
pub(crate) async fn an_agent_marks_by_commands_that_it_runs_directly(
    cluster: Arc<Cluster>,
) -> Result<()> {
    let room = Room::new(&cluster, "direct-agent").await?;
    room.pod("one", json!({})).await?;
    cluster.stop_agent().await?;
    let endpoint = cluster.bed.runtime_endpoint();
    cluster
        .start_agent_with(&endpoint, &["--direct-exec"])
        .await?;
    let marked = async {
        let ready = json!({"exec": {"command": ["test", "-e", "/tmp/ready"]}});
        let missing = json!({"exec": {"command": ["/no/such"]}});
        let probes = json!([probe("ready", ready), probe("missing", missing)]);
        room.scene.marker("m", probes).await?;
        let marks =
            |ready: &str| json!({"conditions": {"t.io/ready": ready, "t.io/missing": "False"}});
        room.scene.wait_for_marks("one", marks("False")).await?;
        room.exec("one", "main", &["touch", "/tmp/ready"]).await?;
        room.scene.wait_for_marks("one", marks("True")).await?;
        wait_for_answer("commands of both ways", || async {
            let url = format!("http://{AGENT_METRICS}/metrics");
            let metrics = cluster.bed.get_from_inside(&url).await?;
            let count =
                |way: &str| sum_of_counters(&metrics, &["leadsman_direct_execs_total{", way]);
            let both = count("way=\"direct\"")? > 1 && count("way=\"start\"")? > 0;
            Ok(both.then_some(()))
        })
        .await
    };
    let marked = marked.await;
    cluster.stop_agent().await?;
    cluster.start_agent().await?;
    marked
}
