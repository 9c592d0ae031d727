//! Raises test beds by hand, and is the keeper and the supervisor behind every bed.

use std::iter;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use leadsman_testkit::node::commands;
use leadsman_testkit::{
    ControlPlane, MOST_NODES, NodeBed, Options, cache, detached, keep, programs, progress,
    supervise,
};
use tokio::signal::unix::{SignalKind, signal};

/// The exit status of `down` where beds are left that only root can end; `cargo xtask bed down` reads it.
const LEFT_TO_ROOT: u8 = 4;

#[derive(Parser)]
#[command(about = "A real Kubernetes cluster on this machine, gone without a trace when it ends")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Raise a bed and stay until Ctrl-C
    Up {
        /// Only etcd and kube-apiserver, which needs no root
        #[arg(long)]
        control_plane: bool,
        /// Return once the bed is up; `down` ends it
        #[arg(long)]
        detach: bool,
        /// How many nodes; the first has the control plane
        #[arg(long, default_value_t = 1, conflicts_with = "control_plane",
            value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST_NODES)))]
        nodes: u8,
        /// Its node is a virtual machine
        #[arg(long, conflicts_with_all = ["control_plane", "nodes", "detach"])]
        vm: bool,
        /// An argument more for one of the programs, as PROGRAM=ARGUMENT
        #[arg(long, value_name = "PROGRAM=ARGUMENT")]
        argument: Vec<String>,
    },
    /// End a bed left by `up --detach`, or all of them
    Down {
        /// Its name, as `up` printed it
        name: Option<String>,
    },
    /// Compile and make what beds need, raise none; prints the environment in which root finds it
    Prepare {
        /// Only what a control plane needs
        #[arg(long)]
        control_plane: bool,
    },
    /// Compile the programs of another version and print their folder
    Programs {
        /// A folder of `testbed`, such as kubernetes-1.31
        name: String,
    },
    #[command(hide = true)]
    Keep { request: String },
    #[command(hide = true)]
    Supervise { folder: PathBuf },
    /// Serve commands in a node that is a virtual machine
    #[command(hide = true)]
    Commands {
        folder: PathBuf,
        address: SocketAddr,
    },
    /// Run a program there
    #[command(hide = true)]
    Inside {
        folder: PathBuf,
        address: SocketAddr,
        program: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let verb = Arguments::parse().verb;
    // Keeper and supervisor have already reported to the owner what went wrong.
    let is_reported = matches!(verb, Verb::Keep { .. } | Verb::Supervise { .. });
    match start(verb) {
        Ok(code) => code,
        Err(error) => {
            if !is_reported {
                eprintln!("leadsman-bed: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn start(verb: Verb) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let outcome = runtime.block_on(run(verb));
    // A thread may still be reading stdin; nothing of it is wanted any more.
    runtime.shutdown_background();
    outcome
}

async fn run(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Up {
            control_plane,
            detach: true,
            nodes,
            argument,
            ..
        } => {
            let options = options(&argument)?.nodes(nodes);
            let (name, kubeconfig) = detached::up(control_plane, options, progress::to_stderr())?;
            println!("KUBECONFIG={}", kubeconfig.display());
            eprintln!("bed: {name} is up; `cargo xtask bed down {name}` ends it");
            Ok(ExitCode::SUCCESS)
        }
        Verb::Up {
            control_plane,
            nodes,
            vm,
            argument,
            ..
        } => {
            let options = options(&argument)?.nodes(nodes);
            up(control_plane, if vm { options.in_vm() } else { options }).await?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Down { name } => {
            let beds = detached::down(name.as_deref())?;
            if beds.ended.is_empty() && beds.left_to_root.is_empty() {
                eprintln!("bed: none was left up");
            }
            for name in &beds.ended {
                eprintln!("bed: {name} has ended");
            }
            for name in &beds.left_to_root {
                eprintln!("bed: only root can end {name}");
            }
            if !beds.left_to_root.is_empty() {
                return Ok(ExitCode::from(LEFT_TO_ROOT));
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Prepare { control_plane } => {
            let made = leadsman_testkit::prepare(control_plane, &mut progress::to_stderr())?;
            println!("{}={}", cache::VARIABLE, cache::folder()?.display());
            println!("{}={}", programs::GIVEN, made.display());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Programs { name } => {
            let folder = programs::ensure_other_version(&name, &mut progress::to_stderr())?;
            println!("{}", folder.display());
            Ok(ExitCode::SUCCESS)
        }
        Verb::Keep { request } => {
            keep::keep(&request).await?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Supervise { folder } => {
            supervise::supervise(folder).await?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Commands { folder, address } => {
            commands::serve(&folder, address).await?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Inside {
            folder,
            address,
            program,
            arguments,
        } => commands::ask(&folder, address, program, arguments).await,
    }
}

fn options(arguments: &[String]) -> Result<Options> {
    arguments
        .iter()
        .try_fold(Options::default(), |options, argument| {
            let (program, argument) = argument
                .split_once('=')
                .with_context(|| format!("`{argument}` is not PROGRAM=ARGUMENT"))?;
            Ok(options.argument(program, argument))
        })
}

async fn up(control_plane: bool, options: Options) -> Result<()> {
    // The handler is set at the start: the parent process may have had SIGINT ignored, as shells do for what runs in the background.
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let asked_to_end = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    tokio::pin!(asked_to_end);
    let bed = tokio::select! {
        bed = raise(control_plane, options) => bed?,
        // What is being raised holds a thread; its keeper takes all away once this process is gone.
        () = &mut asked_to_end => bail!("interrupted; everything is being taken away"),
    };
    eprintln!("bed: up; Ctrl-C ends it");
    asked_to_end.await;
    eprintln!("bed: taking everything away");
    drop(bed);
    Ok(())
}

/// A bed of either kind, for as long as this is held.
#[expect(dead_code, reason = "held for its end")]
enum Up {
    ControlPlane(ControlPlane),
    Node(NodeBed),
}

async fn raise(control_plane: bool, options: Options) -> Result<Up> {
    if control_plane {
        let bed = ControlPlane::start(options, progress::to_stderr()).await?;
        println!("KUBECONFIG={}", bed.admin_kubeconfig().display());
        return Ok(Up::ControlPlane(bed));
    }
    let bed = NodeBed::start(options, progress::to_stderr()).await?;
    for node in bed.nodes() {
        let program = node.command_inside("sh")?;
        let program = program.as_std();
        let words: Vec<_> = iter::once(program.get_program())
            .chain(program.get_args())
            .map(|word| word.to_string_lossy())
            .collect();
        eprintln!(
            "bed: node {}, runtime {}; a command there: {}",
            node.name(),
            node.runtime_endpoint(),
            words.join(" ")
        );
    }
    println!("KUBECONFIG={}", bed.admin_kubeconfig().display());
    Ok(Up::Node(bed))
}
