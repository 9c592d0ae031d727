//! The log: to stderr, as text for people or JSON for collectors.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// What is logged by default. The client's own lines about a failed request repeat what its sender reports with the
/// object in it.
const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off";

/// How to log.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Log")]
pub struct Args {
    /// What is logged, as `LEVEL` or `TARGET=LEVEL`, separated by commas
    #[arg(long, env = "LEADSMAN_LOG", value_name = "FILTER", default_value = DEFAULT_FILTER, hide_default_value = true)]
    pub log: String,
    /// How it is written
    #[arg(
        long,
        env = "LEADSMAN_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub log_format: Format,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One line of text
    Text,
    /// One JSON object a line
    Json,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error("--log {filter:?}: {source}")]
    Filter {
        /// As given.
        filter: String,
        /// What is wrong with it.
        source: ParseError,
    },
    /// Something else logs already in this process.
    #[error("the log is set up already: {0}")]
    Twice(#[from] TryInitError),
}

impl Args {
    /// Sets up the log of this process. Call it once.
    pub fn init(&self) -> Result<(), LogError> {
        // Not `EnvFilter`: its filters by field values bring an engine for regular expressions.
        let filter: Targets = self.log.parse().map_err(|source| LogError::Filter {
            filter: self.log.clone(),
            source,
        })?;
        let lines = fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let lines = match self.log_format {
            Format::Text => lines.boxed(),
            Format::Json => lines.json().flatten_event(true).boxed(),
        };
        let log = tracing_subscriber::registry().with(lines.with_filter(filter));
        log.try_init()?;
        Ok(())
    }
}
