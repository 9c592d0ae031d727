//! The log: to stderr, as text for people or as JSON for log collectors.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

/// The default filter. The client's own lines about a failed request are off: the sender logs each failure, with the
/// object in it.
const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off";

/// Flags of the log.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Log")]
pub struct LogArgs {
    /// Log filter: `LEVEL` or `TARGET=LEVEL`, separated by commas [default: info]
    #[arg(long, env = "LEADSMAN_LOG", value_name = "FILTER", default_value = DEFAULT_FILTER, hide_default_value = true)]
    pub log: String,
    /// Log format
    #[arg(
        long,
        env = "LEADSMAN_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    pub log_format: LogFormat,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text
    Text,
    /// One JSON object a line
    Json,
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error("invalid log filter {filter:?} (--log): {source}")]
    Filter {
        /// The filter as given.
        filter: String,
        /// The error of the parser.
        source: ParseError,
    },
    /// A logger is set up in this process already.
    #[error("the log is set up already: {0}")]
    AlreadySet(#[from] TryInitError),
}

impl LogArgs {
    /// Sets up the log of this process, once.
    pub fn init_subscriber(&self) -> Result<(), LogError> {
        // Not `EnvFilter`: its filters by field values depend on a regular expression engine.
        let filter: Targets = self.log.parse().map_err(|source| LogError::Filter {
            filter: self.log.clone(),
            source,
        })?;
        let layer = fmt::layer()
            .with_writer(std::io::stderr)
            // Escape sequences are for terminals; a log collector would store them.
            .with_ansi(std::io::stderr().is_terminal());
        let lines = match self.log_format {
            LogFormat::Text => layer.boxed(),
            // Fields beside level and message instead of below `fields`, as in the JSON of Kubernetes' own components
            // (`k8s.io/component-base/logs/json`): one query finds a pod in the logs of both.
            LogFormat::Json => layer.json().flatten_event(true).boxed(),
        };
        let log = tracing_subscriber::registry().with(lines.with_filter(filter));
        log.try_init()?;
        Ok(())
    }
}
