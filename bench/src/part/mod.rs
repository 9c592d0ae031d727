//! Processes that the bench starts of itself, so that what they cost can be told from what the bench does: bare loops,
//! the engine, and the index among so many pods.
//!
//! Such a process reads what to do, says `ready`, answers each further line that it reads with a line, and ends when its
//! input does.
//!
//! | module | what lives there |
//! |---|---|
//! | `bare` | the agent's exchanges with the same libraries, and no logic |
//! | `talk` | the bench's end of the conversation |

pub(crate) mod bare;
mod talk;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, Stdin};

use crate::cluster::floor;
use crate::{engine, index};

pub(crate) use talk::Talk;

/// The argument that makes the bench's program such a process.
const SIGN: &str = "--part";

/// What such a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Part {
    /// The agent's exchanges, bare.
    Bare(bare::Order),
    /// The manager's exchanges with the API server, bare.
    Manager(floor::Order),
    /// The rules and the executors, without a cluster.
    Engine(engine::Order),
    /// The index among so many pods.
    Index(index::Order),
}

impl Part {
    async fn run(self, questions: Questions) -> Result<()> {
        match self {
            Self::Bare(order) => bare::run(order, questions).await,
            Self::Manager(order) => floor::run(order, questions).await,
            Self::Engine(order) => engine::run(order, questions).await,
            Self::Index(order) => index::run(&order, questions).await,
        }
    }
}

/// What the bench asks of such a process, a line for each question.
pub(crate) struct Questions(Lines<BufReader<Stdin>>);

impl Questions {
    /// Says that all is ready, then answers until nobody asks any more.
    pub(crate) async fn answer<T: Serialize>(
        mut self,
        mut answer: impl AsyncFnMut() -> Result<T>,
    ) -> Result<()> {
        say("ready").await?;
        while self.0.next_line().await?.is_some() {
            say(&serde_json::to_string(&answer().await?)?).await?;
        }
        Ok(())
    }
}

async fn say(line: &str) -> Result<()> {
    let mut out = tokio::io::stdout();
    out.write_all(format!("{line}\n").as_bytes()).await?;
    Ok(out.flush().await?)
}

/// Does what such a process is to do, if this is one.
pub(crate) fn run_if_asked() -> Option<Result<()>> {
    (std::env::args().nth(1)? == SIGN).then(run)
}

fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let order = lines.next_line().await?.context("a part needs an order")?;
        let part: Part = serde_json::from_str(&order).context("what a part is to do")?;
        drop(order);
        part.run(Questions(lines)).await
    });
    // The one blocking thread sits in a read of the standard input.
    runtime.shutdown_background();
    ended
}
