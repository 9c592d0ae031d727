//! Processes that the bench starts of itself, so that what they cost can be told from what the bench does: bare loops,
//! the engine, and its targets.
//!
//! Such a process is told what to do by its arguments, says `ready`, answers each line that it reads with a line, and
//! ends when its input does.
//!
//! | module | what lives there |
//! |---|---|
//! | `bare` | the same exchanges with the same libraries, and no logic |
//! | `exchange` | one of them |
//! | `talk` | the bench's end of the conversation |

pub(crate) mod bare;
mod exchange;
mod talk;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;

use crate::cluster::floor;
use crate::{engine, index};

pub(crate) use talk::Talk;

/// The first argument of such a process.
const SIGN: &str = "--part";
/// Characters of one of the others: Linux takes no argument beyond 128 KiB, and thousands of targets are longer.
const PIECE: usize = 10_000;

/// What such a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    /// The agent's exchanges, bare.
    Bare(bare::Order),
    /// The manager's exchanges with the API server, bare.
    Manager(floor::Order),
    /// The rules and the executors, without a cluster.
    Engine(engine::Order),
    /// What the engine probes: so many addresses that listen, 127.0.1.1 and those that follow.
    Targets(u8),
    /// The index among so many pods.
    Index(index::Order),
}

/// A question, to be answered by another task.
pub(crate) type Question<T> = oneshot::Sender<T>;

impl Part {
    /// Its arguments, for the bench's own program.
    pub(crate) fn arguments(&self) -> Result<Vec<String>> {
        let order: Vec<char> = serde_json::to_string(self)?.chars().collect();
        let pieces = order.chunks(PIECE).map(|piece| piece.iter().collect());
        Ok(std::iter::once(SIGN.to_owned()).chain(pieces).collect())
    }

    fn run(self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let ended = runtime.block_on(async {
            match self {
                Self::Bare(order) => bare::run(order).await,
                Self::Manager(order) => floor::run(order).await,
                Self::Engine(order) => engine::run(order).await,
                Self::Targets(addresses) => engine::serve(addresses).await,
                Self::Index(order) => index::run(&order),
            }
        });
        // The one blocking thread sits in a read of the standard input.
        runtime.shutdown_background();
        ended
    }
}

/// Does what such a process is to do, if this is one.
pub(crate) fn run_if_asked() -> Option<Result<()>> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != SIGN {
        return None;
    }
    let order: String = arguments.collect();
    let part = serde_json::from_str::<Part>(&order).context("a part needs an order");
    Some(part.and_then(Part::run))
}

/// Says that it is ready, then passes questions on until nobody asks any more.
pub(crate) async fn converse<T: Serialize>(ask: Sender<Question<T>>) -> Result<()> {
    let mut out = tokio::io::stdout();
    let mut questions = BufReader::new(tokio::io::stdin()).lines();
    out.write_all(b"ready\n").await?;
    out.flush().await?;
    while questions.next_line().await?.is_some() {
        let (send, answer) = oneshot::channel();
        ask.send(send)
            .await
            .ok()
            .context("nobody is there to answer")?;
        let line = serde_json::to_string(&answer.await?)? + "\n";
        out.write_all(line.as_bytes()).await?;
        out.flush().await?;
    }
    Ok(())
}
