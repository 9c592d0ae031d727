//! Completion in real shells: what docs/kubectl.md has people type is typed on a terminal, then words that are begun and Tab.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use leadsman_api::SidecarSet;
use leadsman_testkit::{leadsman, packages, progress};
use leadsman_tests::document;
use leadsman_tests::{Scene, Skipped};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use crate::Installation;

const PAGE: &str = "docs/kubectl.md";
/// For a shell to start, and to complete all lines.
const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) async fn bash_completes_what_the_page_says(world: Arc<Installation>) -> Result<()> {
    shell_completes(&world, "bash", &["bash", "--noprofile", "--norc", "-i"]).await
}

pub(crate) async fn zsh_completes_what_the_page_says(world: Arc<Installation>) -> Result<()> {
    shell_completes(&world, "zsh", &["zsh", "-f", "-i"]).await
}

pub(crate) async fn fish_completes_what_the_page_says(world: Arc<Installation>) -> Result<()> {
    shell_completes(&world, "fish", &["fish", "--no-config", "-i"]).await
}

/// Words as far as somebody types them, and what Tab makes of them.
type Begun = (String, Vec<String>);

fn begun(typed: &str, completed: &str) -> Begun {
    let words = completed.split(' ').map(str::to_owned).collect();
    (typed.to_owned(), words)
}

async fn shell_completes(world: &Installation, shell: &str, program: &[&str]) -> Result<()> {
    let missing = packages::ensure_shells(&mut progress::to_stderr())?;
    if !missing.is_empty() {
        let packages = missing.join(" ");
        return Err(Skipped(format!("needs the Debian packages {packages}")).into());
    }
    let scene = Scene::new(&world.client, &format!("typed-in-{shell}")).await?;
    scene.pod("lobby-0").await?;
    scene.pod("arena-0").await?;
    let probe = json!({"name": "idle", "containerName": "main", "podConditionType": "example.com/idle",
        "probe": {"exec": {"command": ["true"]}}});
    scene.marker("quiet-lobby", json!([probe])).await?;
    let set = format!("agent-of-{shell}");
    let sets: Api<SidecarSet> = Api::all(world.client.clone());
    world.install_sidecar_set_crd().await?;
    sets.create(&PostParams::default(), &set_that_selects_nothing(&set)?)
        .await?;
    let [by_kubectl, by_itself] = setups(shell)?;
    let ns = &scene.ns;
    let of_both = |program: &str| {
        [
            ("expl", "explain"),
            ("explain -n typed-in-SHEL", "explain -n NS"),
            ("explain -n NS pod/lo", "explain -n NS pod/lobby-0"),
            ("explain -n NS pod ar", "explain -n NS pod arena-0"),
            ("explain -n NS lob", "explain -n NS lobby-0"),
            ("explain dep", "explain deployment/"),
            ("status -n NS qu", "status -n NS quiet-lobby"),
            ("history -nNS ar", "history -nNS arena-0"),
            ("drift agent-of-SHEL", "drift agent-of-SHELL"),
            ("status -o js", "status -o json"),
            ("top --all-n", "top --all-namespaces"),
        ]
        .map(|(typed, completed)| {
            let fill = |text: &str| {
                let part = &shell[..shell.len() - 1];
                let text = text.replace("SHELL", shell).replace("SHEL", part);
                format!("{program} {}", text.replace("NS", ns))
            };
            begun(&fill(typed), &fill(completed))
        })
    };
    let mut with_kubectl = of_both("kubectl leadsman").to_vec();
    let joined = "kubectl leadsman status --namespace=typed-in-";
    let part = &shell[..shell.len() - 1];
    with_kubectl.push(begun(
        &format!("{joined}{part}"),
        &format!("{joined}{shell}"),
    ));
    let bash_completion = match shell {
        "bash" => format!("source {}\n", packages::BASH_COMPLETION),
        _ => String::new(),
    };
    let terminal = Terminal::new(world, shell, program)?;
    let setup = format!("{bash_completion}{by_kubectl}");
    terminal.expect(&setup, &with_kubectl).await?;
    terminal
        .expect(&by_itself, &of_both("kubectl-leadsman"))
        .await?;
    sets.delete(&set, &DeleteParams::default()).await?;
    Ok(())
}

fn set_that_selects_nothing(name: &str) -> Result<SidecarSet> {
    let set = json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"typed-in": name}}, "containers": [{"name": "agent", "image": "none"}]},
    });
    Ok(serde_json::from_value(set)?)
}

/// What the page has people type in a shell: for kubectl, and for the program by itself.
fn setups(shell: &str) -> Result<[String; 2]> {
    let text = std::fs::read_to_string(document::root().join(PAGE))?;
    let item = text.lines().find_map(|line| {
        let rest = line.strip_prefix("- ")?.strip_prefix(shell)?;
        rest.starts_with([':', ',']).then_some(rest)
    });
    let item = item.with_context(|| format!("{PAGE} has no item for {shell}"))?;
    match item.split('`').collect::<Vec<_>>()[..] {
        [_, by_kubectl, _, by_itself, _] => Ok([by_kubectl, by_itself].map(str::to_owned)),
        _ => bail!("{PAGE}: not two commands for {shell}: {item}"),
    }
}

/// A shell on a terminal, in a home folder of its own.
struct Terminal {
    /// The shell, as `script` starts it.
    command: String,
    path: String,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Terminal {
    fn new(world: &Installation, shell: &str, program: &[&str]) -> Result<Self> {
        let home = world.plane.folder().join(format!("home-of-{shell}"));
        std::fs::create_dir_all(&home)?;
        let beside = leadsman::plugin()?;
        let beside = beside.parent().context("a program is in a folder")?;
        let tools = world.plane.tools()?;
        let path = std::env::var("PATH").unwrap_or_default();
        Ok(Self {
            command: format!("stty rows 50 cols 200; exec {}", program.join(" ")),
            path: format!("{}:{}:{path}", tools.display(), beside.display()),
            kubeconfig: world.plane.admin_kubeconfig().to_owned(),
            home,
        })
    }

    /// Types `setup`, then each line with Tab. The line is not run: `printf`, put before it, prints its words.
    async fn expect(&self, setup: &str, lines: &[Begun]) -> Result<()> {
        const TO_THE_START: char = '\u{1}';
        const TO_THE_END: char = '\u{5}';
        let typed = lines.iter().flat_map(|(line, _)| {
            let printed = format!("{TO_THE_START}printf '<%s>' {TO_THE_END}; echo\n");
            [line.clone(), "\t".to_owned(), printed]
        });
        let typed: String = typed.collect();
        let typed = format!("{setup}\n{typed}printf '<%s>' all typed; echo\n");
        let shown = self.type_in(&typed, "<all><typed>").await?;
        for (line, words) in lines {
            let words = format!("<{}>", words.join("><"));
            ensure!(
                shown.contains(&format!("{words}\r\n")),
                "`{line}` and Tab is not {words} after `{setup}`:\n{shown}"
            );
        }
        Ok(())
    }

    /// What the terminal shows until `end` is there.
    async fn type_in(&self, typed: &str, end: &str) -> Result<String> {
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command"])
            .args([self.command.as_str(), "/dev/null"])
            .env("PATH", &self.path)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting script")?;
        let mut keyboard = script.stdin.take().context("no standard input")?;
        let mut screen = script.stdout.take().context("no standard output")?;
        keyboard.write_all(typed.as_bytes()).await?;
        let mut shown = Vec::new();
        let reading = async {
            while !String::from_utf8_lossy(&shown).contains(end) {
                if screen.read_buf(&mut shown).await? == 0 {
                    break;
                }
            }
            anyhow::Ok(())
        };
        let read = timeout(PATIENCE, reading).await;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        read.with_context(|| format!("the shell does not get to {end}:\n{shown}"))??;
        Ok(shown)
    }
}
