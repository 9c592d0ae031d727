//! Commands in a node that is a virtual machine, where `nsenter` does not lead: a server in the guest, and a client on the
//! host that stands for the program. The client passes on environment, output, exit status and the signals that ask for an
//! end; its own end is the program's, so that killing the one kills the other. A program has no stdin.
//!
//! The guest's address is reached by everybody on the machine, so a client proves that it may read the bed's keys.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines,
};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::request::Node;
use crate::{cache, processes, raise};

/// Of the server, in the guest.
const PORT: u16 = 1022;

/// From the client, a line each; the first is `Run`.
#[derive(Serialize, Deserialize)]
enum Ask {
    Run {
        key: String,
        program: String,
        arguments: Vec<String>,
        environment: BTreeMap<String, String>,
    },
    Terminate,
}

/// From the server, a line each.
#[derive(Serialize, Deserialize)]
enum Answer {
    /// What is no UTF-8 is replaced.
    Stdout(String),
    Stderr(String),
    /// The exit code; 128 and the number of a signal that killed it.
    Ended(u8),
}

/// The command line of the server of this node.
pub(super) fn server(bed: &Path, node: &Node) -> Result<Vec<String>> {
    let words = [std::env::current_exe()?, "commands".into(), bed.into()];
    let words = words.map(|word| word.display().to_string()).into_iter();
    Ok(words.chain([address(node).to_string()]).collect())
}

/// A command that runs a program in this node. Arguments can be added.
pub(super) fn client(bed: &Path, node: &Node, program: &OsStr) -> Result<Command> {
    let mut client = Command::new(raise::program(&mut crate::progress::silent())?);
    client
        .arg("inside")
        .arg(bed)
        .arg(address(node).to_string())
        .arg("--")
        .arg(program)
        .env("PATH", processes::search_path())
        .process_group(0);
    Ok(client)
}

fn address(node: &Node) -> SocketAddr {
    (node.address, PORT).into()
}

/// Known to whoever may read the keys in the bed's folder.
fn key(bed: &Path) -> Result<String> {
    let secret = fs::read(bed.join("pki/ca.key")).context("reading the key of the bed")?;
    Ok(cache::key([&b"commands"[..], &secret]))
}

/// Runs the programs that clients ask for, until the process ends.
pub async fn serve(bed: &Path, address: SocketAddr) -> Result<()> {
    let key = key(bed)?;
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, from) = listener.accept().await?;
        let key = key.clone();
        tokio::spawn(async move {
            if let Err(error) = run(stream, &key).await {
                eprintln!("{from}: {error:#}");
            }
        });
    }
}

async fn run(stream: TcpStream, key: &str) -> Result<()> {
    let (mut asks, mut answers) = lines(stream);
    let Some(Ask::Run {
        key: given,
        program,
        arguments,
        environment,
    }) = next(&mut asks).await?
    else {
        bail!("no program is asked for");
    };
    ensure!(given == key, "the key is another bed's");
    let started = Command::new(&program)
        .args(arguments)
        .env_clear()
        .envs(environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let message = format!("cannot run {program}: {error}\n");
            send(&mut answers, &Answer::Stderr(message)).await?;
            return send(&mut answers, &Answer::Ended(127)).await;
        }
    };
    let process = child.id().context("it has just been started")?;
    let mut stdout = child.stdout.take();
    let mut stderr = child.stderr.take();
    while stdout.is_some() || stderr.is_some() {
        tokio::select! {
            ask = next(&mut asks) => match ask? {
                Some(Ask::Terminate) => kill(Pid::from_raw(process.cast_signed()), Signal::SIGTERM)?,
                // The client is gone, and the program goes with this.
                _ => return Ok(()),
            },
            text = read(&mut stdout) => if let Some(text) = text? {
                send(&mut answers, &Answer::Stdout(text)).await?;
            },
            text = read(&mut stderr) => if let Some(text) = text? {
                send(&mut answers, &Answer::Stderr(text)).await?;
            },
        }
    }
    let status = child.wait().await?;
    let by_signal = std::os::unix::process::ExitStatusExt::signal(&status).map(|it| 128 + it);
    let code = status.code().or(by_signal).unwrap_or(255);
    send(&mut answers, &Answer::Ended(u8::try_from(code)?)).await
}

/// What a pipe has; the pipe is dropped at its end. Waits for ever if it was.
async fn read(pipe: &mut Option<impl AsyncRead + Unpin>) -> Result<Option<String>> {
    let Some(open) = pipe else {
        return std::future::pending().await;
    };
    let mut buffer = [0; 4096];
    let count = open.read(&mut buffer).await?;
    if count == 0 {
        *pipe = None;
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&buffer[..count]).into_owned()))
}

/// Has a program run by the server at this address, and ends as it does.
pub async fn ask(
    bed: &Path,
    address: SocketAddr,
    program: String,
    arguments: Vec<String>,
) -> Result<ExitCode> {
    // Before the program is started, so that no signal is missed.
    let mut terminate = signal(SignalKind::terminate())?;
    let stream = TcpStream::connect(address).await;
    let stream = stream.with_context(|| format!("connecting to the node at {address}"))?;
    let (mut answers, mut asks) = lines(stream);
    let environment = std::env::vars().collect();
    let run = Ask::Run {
        key: key(bed)?,
        program,
        arguments,
        environment,
    };
    send(&mut asks, &run).await?;
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    loop {
        let answer = tokio::select! {
            answer = next(&mut answers) => answer?,
            _ = terminate.recv() => {
                send(&mut asks, &Ask::Terminate).await?;
                continue;
            }
        };
        match answer.context("the node has ended")? {
            Answer::Stdout(text) => {
                stdout.write_all(text.as_bytes()).await?;
                stdout.flush().await?;
            }
            Answer::Stderr(text) => {
                stderr.write_all(text.as_bytes()).await?;
                stderr.flush().await?;
            }
            Answer::Ended(code) => return Ok(ExitCode::from(code)),
        }
    }
}

fn lines(stream: TcpStream) -> (Lines<BufReader<OwnedReadHalf>>, OwnedWriteHalf) {
    let (read, write) = stream.into_split();
    (BufReader::new(read).lines(), write)
}

async fn next<T: DeserializeOwned>(
    lines: &mut Lines<BufReader<OwnedReadHalf>>,
) -> Result<Option<T>> {
    let line = lines.next_line().await?;
    line.map(|line| Ok(serde_json::from_str(&line)?))
        .transpose()
}

async fn send(to: &mut OwnedWriteHalf, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    to.write_all(&line).await.context("the other end is gone")
}
