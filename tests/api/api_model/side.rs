//! One of the two servers that are compared, and what was seen of it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::bodies::Kind;
use super::step::{Named, Step};

/// The name of its writes in managedFields, but for applies.
const MANAGER: &str = "flow";
const DEADLINE: Duration = Duration::from_secs(20);

pub(super) struct Side {
    what: &'static str,
    client: Client,
    namespace: String,
    /// The first and the last version and uid of each name.
    seen: BTreeMap<(Kind, &'static str), [(String, String); 2]>,
    /// The version before the first step.
    began: String,
}

impl Side {
    pub(super) fn new(what: &'static str, client: Client, namespace: &str) -> Self {
        Self {
            what,
            client,
            namespace: namespace.to_owned(),
            seen: BTreeMap::new(),
            began: String::new(),
        }
    }

    /// Makes the namespace.
    pub(super) async fn begin(&mut self, namespace: &str) -> Result<()> {
        let body =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let (code, made) = self
            .send(
                Method::POST,
                "/api/v1/namespaces",
                "application/json",
                body.to_string(),
            )
            .await?;
        anyhow::ensure!(code == 201, "{}: {made}", self.what);
        made["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
            .clone_into(&mut self.began);
        Ok(())
    }

    /// Sends what the step says. Returns the answers, each with its code.
    pub(super) async fn play(&mut self, step: &Step) -> Result<Vec<Value>> {
        let sent = match *step {
            Step::List { kind, query } => return self.list(kind, query).await,
            Step::Pages { kind, limit } => return self.read_pages(kind, limit).await,
            _ => self.request_of(step)?,
        };
        let text = if sent.method == Method::GET {
            String::new()
        } else {
            sent.body.to_string()
        };
        let answered = self.send(sent.method, &sent.path, &sent.form, text);
        let (code, answer) = answered.await?;
        self.note(sent.kind, sent.name, &answer);
        Ok(vec![summarize(code, &answer)])
    }

    /// The request of a step that is about one object.
    fn request_of(&self, step: &Step) -> Result<Sent> {
        let of_object = |kind: Kind, name: &'static str, method, body| Sent {
            kind,
            name,
            method,
            path: format!(
                "{}/{name}?fieldManager={MANAGER}",
                kind.path(&self.namespace)
            ),
            form: "application/json".to_owned(),
            body,
        };
        let of_status = |mut sent: Sent, status: bool| {
            if status {
                sent.path = sent.path.replacen('?', "/status?", 1);
            }
            sent
        };
        Ok(match *step {
            Step::Create { kind, name, body } => Sent {
                path: format!("{}?fieldManager={MANAGER}", kind.path(&self.namespace)),
                ..of_object(kind, name, Method::POST, kind.object(body, name))
            },
            Step::Get { kind, name } => of_object(kind, name, Method::GET, Value::Null),
            Step::Put {
                kind,
                name,
                body,
                status,
                version,
                uid,
            } => {
                let mut body = kind.object(body, name);
                self.name_seen(kind, name, &mut body["metadata"], version, uid);
                of_status(of_object(kind, name, Method::PUT, body), status)
            }
            Step::Patch {
                kind,
                name,
                patch,
                version,
                uid,
            } => {
                let mut body: Value = serde_json::from_str(patch.text)?;
                if body.is_object() {
                    self.name_seen(kind, name, &mut body["metadata"], version, uid);
                }
                if let Some(object) = body.as_object_mut()
                    && object["metadata"].is_null()
                {
                    object.remove("metadata");
                }
                let sent = Sent {
                    form: format!("application/{}", patch.form),
                    ..of_object(kind, name, Method::PATCH, body)
                };
                of_status(sent, patch.status)
            }
            Step::Apply {
                kind,
                name,
                body,
                by,
                force,
                uid,
            } => {
                let (status, mut body) = kind.apply_body(body, name);
                self.name_seen(kind, name, &mut body["metadata"], Named::Nothing, uid);
                let sent = of_status(of_object(kind, name, Method::PATCH, body), status);
                Sent {
                    path: format!("{}&force={force}", sent.path.replace(MANAGER, by)),
                    form: "application/apply-patch+yaml".to_owned(),
                    ..sent
                }
            }
            Step::Delete {
                kind,
                name,
                version,
                uid,
                grace,
                propagation,
            } => {
                let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
                self.name_seen(kind, name, &mut options["preconditions"], version, uid);
                options["gracePeriodSeconds"] = json!(grace);
                options["propagationPolicy"] = json!(propagation);
                of_object(kind, name, Method::DELETE, options)
            }
            Step::List { .. } | Step::Pages { .. } => anyhow::bail!("{step:?} is of no object"),
        })
    }

    /// Puts versions and uids that were seen into what is sent.
    fn name_seen(
        &self,
        kind: Kind,
        name: &'static str,
        metadata: &mut Value,
        version: Named,
        uid: Named,
    ) {
        let Some([first, last]) = self.seen.get(&(kind, name)) else {
            return;
        };
        let choose = |named| match named {
            Named::Nothing => None,
            Named::First => Some(first),
            Named::Last => Some(last),
        };
        if let Some((version, _)) = choose(version) {
            metadata["resourceVersion"] = json!(version);
        }
        if let Some((_, uid)) = choose(uid) {
            metadata["uid"] = json!(uid);
        }
    }

    fn note(&mut self, kind: Kind, name: &'static str, answer: &Value) {
        let text = |key: &str| answer["metadata"][key].as_str().map(str::to_owned);
        if let (Some(version), Some(uid)) = (text("resourceVersion"), text("uid")) {
            let now = (version, uid);
            let seen = self
                .seen
                .entry((kind, name))
                .or_insert_with(|| [now.clone(), now.clone()]);
            seen[1] = now;
        }
    }

    async fn list(&self, kind: Kind, query: &str) -> Result<Vec<Value>> {
        let path = format!("{}?{query}", kind.path(&self.namespace));
        let (code, mut answer) = self.send(Method::GET, &path, "", String::new()).await?;
        // Other flows write too.
        answer["metadata"]["resourceVersion"] = json!("");
        Ok(vec![summarize(code, &answer)])
    }

    async fn read_pages(&self, kind: Kind, limit: u32) -> Result<Vec<Value>> {
        let (mut pages, mut token) = (Vec::new(), String::new());
        loop {
            let path = format!(
                "{}?limit={limit}&continue={}",
                kind.path(&self.namespace),
                token.replace('|', "%7C")
            );
            let (code, mut answer) = self.send(Method::GET, &path, "", String::new()).await?;
            answer["metadata"]["continue"]
                .as_str()
                .unwrap_or_default()
                .clone_into(&mut token);
            if !token.is_empty() {
                answer["metadata"]["continue"] = json!("more");
            }
            answer["metadata"]["resourceVersion"] = json!("");
            pages.push(summarize(code, &answer));
            if token.is_empty() {
                return Ok(pages);
            }
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        form: &str,
        body: String,
    ) -> Result<(u16, Value)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", form);
        let request = request.body(Body::from(body.into_bytes()))?;
        let answered = async {
            let response = self.client.send(request).await?;
            let code = response.status().as_u16();
            anyhow::Ok((code, response.into_body().collect().await?.to_bytes()))
        };
        let (code, body) = timeout(DEADLINE, answered)
            .await
            .with_context(|| format!("{} does not answer", self.what))??;
        let text = String::from_utf8_lossy(&body).into_owned();
        Ok((
            code,
            serde_json::from_slice(&body).unwrap_or(Value::String(text)),
        ))
    }

    /// The events since the beginning.
    async fn watch(&self, kind: Kind, selector: &str) -> Result<Vec<Value>> {
        let path = kind.path(&self.namespace);
        let path = format!(
            "{path}?watch=true&timeoutSeconds=1&resourceVersion={}&labelSelector={selector}",
            self.began
        );
        let (_, events) = self.send(Method::GET, &path, "", String::new()).await?;
        let text = match events {
            Value::String(lines) => lines,
            Value::Null => String::new(),
            one => one.to_string(),
        };
        text.lines()
            .map(|line| Ok(serde_json::from_str(line)?))
            .collect()
    }
}

/// All watches that are compared, with their events.
pub(super) async fn watch_all(side: &Side) -> Result<Vec<(String, Vec<Value>)>> {
    let watches = Kind::ALL
        .into_iter()
        .flat_map(|kind| [(kind, ""), (kind, "role%3Dmain")]);
    let watches = watches.map(|(kind, selector)| async move {
        let events = side.watch(kind, selector).await?;
        anyhow::Ok((format!("of {kind:?} with {selector:?}"), events))
    });
    futures::future::try_join_all(watches).await
}

/// A request about one object.
struct Sent {
    kind: Kind,
    name: &'static str,
    method: Method,
    path: String,
    form: String,
    body: Value,
}

/// An answer as it is compared: of a failure, what clients go by.
fn summarize(code: u16, answer: &Value) -> Value {
    if code < 400 {
        return json!({"code": code, "body": answer});
    }
    let causes = answer["details"]["causes"].as_array().into_iter().flatten();
    let mut fields: Vec<_> = causes
        .map(|cause| cause["field"].as_str().unwrap_or_default().to_owned())
        .collect();
    fields.sort();
    json!({"code": code, "reason": answer["reason"], "name": answer["details"]["name"], "fields": fields})
}
