//! A load: requests without end, and what came of each.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::state::State;
use crate::{Failure, USAGE, client, http1, listen, port};

/// Between two requests of one client.
const PAUSE: Duration = Duration::from_millis(5);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks each URL again and again, each time on another connection, and says at `/counts` how often which answer came, or
/// which failure.
pub(crate) async fn run(arguments: &[&str]) -> Result<(), Failure> {
    let (mut http, mut urls) = (8080, arguments);
    if let ["--http", own, rest @ ..] = arguments {
        (http, urls) = (own.parse()?, rest);
    }
    if urls.is_empty() {
        return Err(USAGE.into());
    }
    let listener = listen(http).await?;
    let state = Arc::new(State::default());
    writeln!(std::io::stdout(), "listening http={}", port(&listener)?)?;
    for url in urls {
        tokio::spawn(ask((*url).to_owned(), Arc::clone(&state)));
    }
    http1::serve(listener, state).await
}

async fn ask(url: String, state: Arc<State>) {
    loop {
        let answer = match tokio::time::timeout(PATIENCE, client::request("GET", &url)).await {
            Ok(Ok((200, body))) => Ok(String::from_utf8_lossy(&body).into_owned()),
            Ok(Ok((status, _))) => Err(format!("status {status}")),
            Ok(Err(failure)) => Err(failure.to_string()),
            Err(_) => Err(format!("no answer in {PATIENCE:?}")),
        };
        state.count_answer(answer);
        tokio::time::sleep(PAUSE).await;
    }
}
