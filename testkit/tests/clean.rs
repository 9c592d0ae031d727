//! After a bed nothing of it is left, however it ended: by its owner's will, by a part's failure,
//! by Ctrl-C, by SIGKILL of any of the processes behind it, up or half raised.
//!
//! Each test raises a bed by the program `leadsman-bed` with a temporary folder of its own, so the
//! bed's traces can be told from those of others on the machine.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use leadsman_testkit::{NodeBed, clock};
use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::Machine;

fn main() {
    let mut arguments = Arguments::from_args();
    // A cluster each; side by side they would only wait for each other.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    for end in ENDS {
        trials.push(trial(end, Kind::ControlPlane));
        trials.push(trial(end, Kind::Node));
        if end.of_two_nodes {
            trials.push(trial(end, Kind::TwoNodes));
        }
    }
    trials.push(support::trial(
        "node::two_live_side_by_side",
        NodeBed::why_not(),
        two_live_side_by_side,
    ));
    libtest_mimic::run(&arguments, trials).exit();
}

/// The beds that end.
#[derive(Clone, Copy)]
enum Kind {
    ControlPlane,
    Node,
    TwoNodes,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::ControlPlane => "control_plane",
            Self::Node => "node",
            Self::TwoNodes => "two_nodes",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::ControlPlane => &["--control-plane"],
            Self::Node => &[],
            Self::TwoNodes => &["--nodes", "2"],
        }
    }

    fn why_not(self) -> Option<&'static str> {
        match self {
            Self::ControlPlane => None,
            Self::Node | Self::TwoNodes => NodeBed::why_not(),
        }
    }
}

/// One way a bed ends.
struct End {
    name: &'static str,
    /// Whether it is tried with two nodes too: where each has a part in it.
    of_two_nodes: bool,
    /// More arguments of `leadsman-bed up`.
    arguments: &'static [&'static str],
    /// Brings the end about.
    act: fn(&mut Raising) -> Result<()>,
}

const ENDS: &[End] = &[
    End {
        name: "asked_to_end",
        of_two_nodes: true,
        arguments: &[],
        act: |bed| {
            bed.wait_until_up()?;
            send(bed.owner(), Signal::SIGTERM)?;
            ensure!(
                bed.owner.wait()?.success(),
                "an end that was asked for is no failure"
            );
            Ok(())
        },
    },
    End {
        name: "ctrl_c_on_the_terminal",
        of_two_nodes: false,
        arguments: &[],
        act: |bed| {
            bed.wait_until_up()?;
            // A terminal signals the whole foreground group.
            send(-bed.owner(), Signal::SIGINT)?;
            ensure!(bed.owner.wait()?.success(), "Ctrl-C is no failure");
            Ok(())
        },
    },
    End {
        name: "owner_killed",
        of_two_nodes: false,
        arguments: &[],
        act: |bed| {
            bed.wait_until_up()?;
            send(bed.owner(), Signal::SIGKILL)
        },
    },
    End {
        name: "owner_killed_while_raising",
        of_two_nodes: false,
        arguments: &[],
        act: |bed| {
            bed.wait_for("the API server's start", |bed| {
                bed.file("logs/kube-apiserver.log").exists()
            })?;
            send(bed.owner(), Signal::SIGKILL)
        },
    },
    End {
        name: "ctrl_c_while_raising",
        of_two_nodes: false,
        arguments: &[],
        act: |bed| {
            bed.wait_for("the API server's start", |bed| {
                bed.file("logs/kube-apiserver.log").exists()
            })?;
            send(-bed.owner(), Signal::SIGINT)
        },
    },
    End {
        name: "supervisor_killed",
        of_two_nodes: true,
        arguments: &[],
        act: |bed| {
            bed.wait_until_up()?;
            let supervisor = bed.process("supervise")?;
            send(supervisor, Signal::SIGKILL)?;
            // The keeper takes everything away at once; the owner learns of it when it ends the bed.
            bed.wait_for("the keeper's end", |bed| bed.process("keep").is_err())?;
            send(bed.owner(), Signal::SIGTERM)
        },
    },
    End {
        name: "keeper_killed",
        of_two_nodes: false,
        arguments: &[],
        act: |bed| {
            bed.wait_until_up()?;
            let keeper = bed.process("keep")?;
            send(keeper, Signal::SIGKILL)?;
            send(bed.owner(), Signal::SIGTERM)
        },
    },
    End {
        name: "owner_and_keeper_killed",
        of_two_nodes: true,
        arguments: &[],
        act: |bed| {
            bed.wait_until_up()?;
            let (keeper, supervisor) = (bed.process("keep")?, bed.process("supervise")?);
            // Stopped first, so that it cannot act on its owner's death.
            send(keeper, Signal::SIGSTOP)?;
            send(bed.owner(), Signal::SIGKILL)?;
            send(keeper, Signal::SIGKILL)?;
            bed.wait_for("the supervisor's end", |_| {
                !support::processes().iter().any(|it| it.pid == supervisor)
            })?;
            ensure!(bed.file("logs").exists(), "nothing is left to be swept");
            let next = Command::new(env!("CARGO_BIN_EXE_leadsman-bed"))
                .args(["up", "--control-plane", "--argument", "etcd=--no-such-flag"])
                .env("TMPDIR", &bed.temporary)
                .output()?;
            let words = String::from_utf8_lossy(&next.stderr).into_owned();
            ensure!(
                words.contains(&format!(
                    "took away what {}",
                    bed.name.as_deref().unwrap_or("?")
                )),
                "the next bed took nothing away: {words}"
            );
            Ok(())
        },
    },
    End {
        name: "a_part_fails",
        of_two_nodes: false,
        arguments: &["--argument", "kube-apiserver=--no-such-flag"],
        act: |bed| {
            ensure!(
                !bed.owner.wait()?.success(),
                "a bed that did not come up is a failure"
            );
            let words = fs::read_to_string(bed.output("err"))?;
            let part = "kube-apiserver ended with exit status: 1 before it was ready";
            for wanted in [
                part,
                "unknown flag: --no-such-flag",
                "last-failure/kube-apiserver.log",
            ] {
                ensure!(
                    words.contains(wanted),
                    "the error lacks {wanted:?}: {words}"
                );
            }
            Ok(())
        },
    },
    End {
        name: "detached",
        of_two_nodes: false,
        arguments: &["--detach"],
        act: |bed| {
            ensure!(
                bed.owner.wait()?.success(),
                "the owner has nothing more to do"
            );
            let kubeconfig = fs::read_to_string(bed.output("out"))?;
            let kubeconfig = kubeconfig
                .trim()
                .strip_prefix("KUBECONFIG=")
                .context("no kubeconfig was printed")?;
            ensure!(fs::exists(kubeconfig)?, "the bed did not outlive its owner");
            let name = bed.name.clone().unwrap_or_default();
            let down = Command::new(env!("CARGO_BIN_EXE_leadsman-bed"))
                .args(["down", &name])
                .status()?;
            ensure!(
                down.success() && !fs::exists(kubeconfig)?,
                "`down` returns when the bed has ended"
            );
            Ok(())
        },
    },
];

fn trial(end: &'static End, kind: Kind) -> Trial {
    let name = format!("{}::{}", kind.name(), end.name);
    support::trial(&name, kind.why_not(), move || {
        let before = Machine::look(&[])?;
        let mut bed = Raising::begin(kind, end.arguments)?;
        bed.wait_for("the bed's folder", |bed| {
            bed.name.is_some() || bed.find_name()
        })?;
        (end.act)(&mut bed)?;
        bed.is_gone(&before)
    })
}

fn two_live_side_by_side() -> Result<()> {
    let before = Machine::look(&[])?;
    let mut beds = [
        Raising::begin(Kind::Node, &[])?,
        Raising::begin(Kind::TwoNodes, &[])?,
    ];
    for bed in &mut beds {
        bed.wait_for("the bed's folder", Raising::find_name)?;
        bed.wait_until_up()?;
    }
    for bed in &beds {
        send(bed.owner(), Signal::SIGTERM)?;
    }
    let names = beds
        .each_ref()
        .map(|bed| bed.name.clone().unwrap_or_default());
    let [first, second] = &mut beds;
    first.is_gone_beside(&before, &names)?;
    second.is_gone_beside(&before, &names)
}

/// A bed that is being raised by a process of its own.
struct Raising {
    owner: Child,
    temporary: PathBuf,
    name: Option<String>,
}

impl Raising {
    fn begin(kind: Kind, arguments: &[&str]) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let temporary = support::new_folder("clean")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_leadsman-bed"));
        command
            .arg("up")
            .env("TMPDIR", &temporary)
            .process_group(0)
            .stdin(Stdio::null());
        command.args(kind.arguments()).args(arguments);
        let output = |name: &str| fs::File::create(temporary.join(name));
        let owner = command
            .stdout(output("out")?)
            .stderr(output("err")?)
            .spawn()?;
        Ok(Self {
            owner,
            temporary,
            name: None,
        })
    }

    fn owner(&self) -> i32 {
        self.owner.id().cast_signed()
    }

    fn output(&self, name: &str) -> PathBuf {
        self.temporary.join(name)
    }

    /// Looks for the bed's folder, which carries its name.
    fn find_name(&mut self) -> bool {
        let mut entries = fs::read_dir(&self.temporary)
            .into_iter()
            .flatten()
            .flatten();
        self.name = entries.find_map(|entry| {
            Some(
                entry
                    .file_name()
                    .to_str()?
                    .strip_prefix("leadsman-")?
                    .to_owned(),
            )
        });
        self.name.is_some()
    }

    fn file(&self, path: &str) -> PathBuf {
        self.temporary
            .join(format!(
                "leadsman-{}",
                self.name.as_deref().unwrap_or_default()
            ))
            .join(path)
    }

    fn wait_until_up(&mut self) -> Result<()> {
        self.wait_for("the bed", |bed| {
            fs::read_to_string(bed.output("out")).is_ok_and(|text| text.contains("KUBECONFIG="))
        })
    }

    fn wait_for(&mut self, what: &str, mut there: impl FnMut(&mut Self) -> bool) -> Result<()> {
        let deadline = clock::now() + Duration::from_mins(4);
        while !there(self) {
            if clock::now() > deadline {
                bail!(
                    "{what} did not come: {}",
                    fs::read_to_string(self.output("err"))?
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The process of this bed that runs the program's verb `verb`.
    fn process(&self, verb: &str) -> Result<i32> {
        let found = support::processes().into_iter().find(|process| {
            let ours = support::environment(process.pid, "TMPDIR")
                .is_some_and(|tmp| *tmp == *self.temporary);
            ours && process.words.get(1).is_some_and(|word| word == verb)
                && process.words[0].ends_with("leadsman-bed")
        });
        Ok(found
            .with_context(|| format!("no process `leadsman-bed {verb}`"))?
            .pid)
    }

    fn is_gone(&mut self, before: &Machine) -> Result<()> {
        let name = self.name.clone().context("the bed had a name")?;
        self.is_gone_beside(before, &[name])
    }

    /// Waits until the machine looks as before. The owner's end is not the bed's where the owner
    /// was killed, hence the deadline.
    fn is_gone_beside(&mut self, before: &Machine, names: &[String]) -> Result<()> {
        let deadline = clock::now() + Duration::from_secs(30);
        while self.owner.try_wait()?.is_none() {
            ensure!(clock::now() < deadline, "the owner has not ended");
            std::thread::sleep(Duration::from_millis(20));
        }
        loop {
            let after = Machine::look(names)?;
            let left = after.differences(before);
            let folders: Vec<_> = fs::read_dir(&self.temporary)?
                .flatten()
                .map(|entry| entry.path())
                .collect();
            let clean = left.is_empty() && folders.iter().all(|path| path.is_file());
            let alive: Vec<_> = support::processes()
                .into_iter()
                .filter(|process| {
                    support::environment(process.pid, "TMPDIR")
                        .is_some_and(|tmp| *tmp == *self.temporary)
                })
                .collect();
            if clean && alive.is_empty() {
                fs::remove_dir_all(&self.temporary)?;
                return Ok(());
            }
            if clock::now() > deadline {
                bail!("left behind: {left:#?} {folders:?} {alive:?}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Raising {
    fn drop(&mut self) {
        // After a failed test; the keeper does the rest.
        let _ = self.owner.kill();
        let _ = self.owner.wait();
    }
}

fn send(process: i32, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(process), signal)?)
}
