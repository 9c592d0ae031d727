//! Processes that the bench starts of itself, so that what they cost can be told from what the bench does: bare loops,
//! the engine, and its targets.
//!
//! Such a process is told what to do by its arguments, says `ready`, answers each line that it reads with a line, and
//! ends when its input does.
//!
//! | room | what lives there |
//! |---|---|
//! | `bare` | the same exchanges with the same libraries, and no logic |
//! | `exchange` | one of them |
//! | `talk` | the bench's end of the conversation |

pub(crate) mod bare;
mod exchange;
mod talk;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use crate::cluster::floor;
use crate::engine;
use crate::index;

pub(crate) use talk::Talk;

/// The first argument of such a process.
const SIGN: &str = "--part";
/// Characters of one of the others: Linux takes no argument beyond 128 KiB, and thousands of targets are longer.
const PIECE: usize = 10_000;

/// What such a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    /// The same exchanges, bare.
    Bare(bare::Order),
    /// The manager's exchanges with the API server, bare.
    Manager(floor::Order),
    /// The rules and the executors, without a cluster.
    Engine(engine::Order),
    /// What the engine probes.
    Targets(engine::Targets),
    /// The index among so many pods.
    Index(index::Order),
}

impl Part {
    /// Its arguments, for the bench's own program.
    pub(crate) fn arguments(&self) -> Result<Vec<String>> {
        let order: Vec<char> = serde_json::to_string(self)?.chars().collect();
        let pieces = order.chunks(PIECE).map(|piece| piece.iter().collect());
        Ok(std::iter::once(SIGN.to_owned()).chain(pieces).collect())
    }

    fn run(self) -> Result<()> {
        if let Self::Index(order) = &self {
            return index::run(order);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let ended = runtime.block_on(async {
            match self {
                Self::Bare(order) => bare::run(order).await,
                Self::Manager(order) => floor::run(order).await,
                Self::Engine(order) => engine::run(order).await,
                Self::Targets(targets) => engine::serve(targets).await,
                Self::Index(_) => Ok(()),
            }
        });
        // The one blocking thread sits in a read of the standard input.
        runtime.shutdown_background();
        ended
    }
}

/// Does what such a process is to do, if this is one.
pub(crate) fn asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != SIGN {
        return None;
    }
    let order: String = arguments.collect();
    let part = serde_json::from_str::<Part>(&order).context("a part needs an order");
    Some(match part.and_then(Part::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    })
}

/// Says that it is ready, then answers until nobody asks any more.
pub(crate) async fn answer<T: Serialize>(answer: impl FnMut() -> Result<T>) -> Result<()> {
    let mut answer = answer;
    converse(async || answer()).await
}

/// The same, with answers that another task gives.
pub(crate) async fn answer_later<T: Serialize>(ask: Sender<oneshot::Sender<T>>) -> Result<()> {
    converse(async || {
        let (send, answer) = oneshot::channel();
        ask.send(send)
            .await
            .ok()
            .context("nobody is there to answer")?;
        Ok(answer.await?)
    })
    .await
}

async fn converse<T: Serialize>(mut answer: impl AsyncFnMut() -> Result<T>) -> Result<()> {
    let mut out = tokio::io::stdout();
    let mut questions = BufReader::new(tokio::io::stdin()).lines();
    out.write_all(b"ready\n").await?;
    out.flush().await?;
    while questions.next_line().await?.is_some() {
        let line = serde_json::to_string(&answer().await?)? + "\n";
        out.write_all(line.as_bytes()).await?;
        out.flush().await?;
    }
    Ok(())
}
