//! The calls of webhooks: the API server sends them to a replica that is ready, as a Service does, and evaluates the few forms of
//! CEL that leadsman's `matchConditions` have.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use leadsman_admission::InProcessCaller;
use leadsman_api_model::{Admission, Variables, WebhookCall};
use serde_json::Value;
use tokio::time::Instant;

use crate::story::Story;

/// A replica answers at once, or waits for what is newer: a third of the time that the API server has, or more.
const OUTDATED: Duration = Duration::from_millis(500);

type Answer = Result<(StatusCode, Vec<u8>), String>;

/// The replicas that answer calls.
pub(crate) struct Webhooks {
    story: Story,
    state: Mutex<WebhookCallers>,
}

#[derive(Default)]
struct WebhookCallers {
    callers: Vec<InProcessCaller>,
    calls: usize,
}

impl Webhooks {
    /// Nobody yet.
    pub(crate) fn new(story: Story) -> Self {
        Self {
            story,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, WebhookCallers> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The replicas that calls go to from now on.
    pub(crate) fn set_callers(&self, callers: Vec<InProcessCaller>) {
        self.lock().callers = callers;
    }
}

impl Admission for Webhooks {
    fn call(&self, call: WebhookCall) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        let caller = {
            let mut state = self.lock();
            state.calls += 1;
            let count = state.callers.len();
            (count > 0).then(|| state.callers[state.calls % count].clone())
        };
        let story = self.story.clone();
        let path = format!("{}?timeout={}s", call.path, call.timeout.as_secs());
        Box::pin(async move {
            let began = Instant::now();
            let answer = match caller {
                Some(caller) => caller
                    .call(&path, call.body)
                    .await
                    .map_err(|error| error.to_string()),
                None => Err("no endpoints available".to_owned()),
            };
            // A replica that waits in vain for what it was told to know answers without it, and counts that as outdated.
            let is_late = began.elapsed() >= OUTDATED;
            if is_late || !matches!(answer, Ok((StatusCode::OK, _))) {
                story.note_failed_call();
            }
            let told = answer.as_ref().map(|(code, _)| code);
            story.tell("webhook", format_args!("{} {told:?}", call.webhook));
            answer
        })
    }

    fn evaluate(&self, expression: &str, variables: &Variables) -> Result<bool, String> {
        let mut cel = Cel {
            rest: expression,
            variables,
        };
        let is_true = cel.any()?;
        if cel.rest.is_empty() {
            Ok(is_true)
        } else {
            Err(format!(
                "the simulation does not know this CEL: {:?}",
                cel.rest
            ))
        }
    }
}

/// The unread rest of an expression.
struct Cel<'a> {
    rest: &'a str,
    variables: &'a Variables,
}

impl<'a> Cel<'a> {
    fn eat(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start();
        let eaten = rest.strip_prefix(token);
        self.rest = eaten.unwrap_or(rest);
        eaten.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        let is_there = self.eat(token);
        is_there
            .then_some(())
            .ok_or_else(|| format!("{token:?} is missing before {:?}", self.rest))
    }

    fn any(&mut self) -> Result<bool, String> {
        let mut is_true = self.all()?;
        while self.eat("||") {
            is_true |= self.all()?;
        }
        Ok(is_true)
    }

    fn all(&mut self) -> Result<bool, String> {
        let mut is_true = self.one()?;
        while self.eat("&&") {
            is_true &= self.one()?;
        }
        Ok(is_true)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.eat("!") {
            return Ok(!self.one()?);
        }
        if self.eat("(") {
            let is_true = self.any()?;
            self.expect(")")?;
            return Ok(is_true);
        }
        let value = if self.eat("request.namespace") {
            self.variables.request["namespace"]
                .as_str()
                .map(str::to_owned)
        } else if self.eat("object.metadata.?labels[?") {
            self.entry("labels")?
        } else if self.eat("object.metadata.?annotations[?") {
            self.entry("annotations")?
        } else {
            return Err(format!(
                "the simulation does not know this CEL: {:?}",
                self.rest
            ));
        };
        if self.eat(".hasValue()") {
            return Ok(value.is_some());
        }
        let value = if self.eat(".orValue(") {
            let other = self.text()?;
            self.expect(")")?;
            value.unwrap_or_else(|| other.to_owned())
        } else {
            value.unwrap_or_default()
        };
        if self.eat("==") {
            return Ok(value == self.text()?);
        }
        self.expect("in")?;
        self.expect("[")?;
        let mut is_in = false;
        loop {
            is_in |= value == self.text()?;
            if !self.eat(",") {
                break;
            }
        }
        self.expect("]")?;
        Ok(is_in)
    }

    fn entry(&mut self, map: &str) -> Result<Option<String>, String> {
        let key = self.text()?;
        self.expect("]")?;
        let entry: &Value = &self.variables.object["metadata"][map][key];
        Ok(entry.as_str().map(str::to_owned))
    }

    fn text(&mut self) -> Result<&'a str, String> {
        self.expect("'")?;
        let (text, rest) = self.rest.split_once('\'').ok_or("a text without an end")?;
        self.rest = rest;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_conditions_of_our_webhooks_are_evaluated() {
        let labels = json!({"app": "a"});
        let variables = Variables {
            object: json!({"metadata": {"labels": labels}}),
            old_object: Value::Null,
            request: json!({"namespace": "x"}),
        };
        let webhooks = Webhooks::new(Story::begin());
        let app = "object.metadata.?labels[?'app'].orValue('#')";
        for (expression, expected) in [
            (format!("{app} in ['b', 'a']"), true),
            (format!("{app} in ['b']"), false),
            (
                format!("request.namespace in ['x'] && ({app} in ['b'] || {app} in ['a'])"),
                true,
            ),
            (
                "!object.metadata.?annotations[?'k'].hasValue()".to_owned(),
                true,
            ),
            (
                format!("{app} in ['b'] || object.metadata.?annotations[?'k'].hasValue()"),
                false,
            ),
        ] {
            assert_eq!(
                webhooks.evaluate(&expression, &variables),
                Ok(expected),
                "{expression}"
            );
        }
        assert!(webhooks.evaluate("size(object) > 1", &variables).is_err());
    }
}
