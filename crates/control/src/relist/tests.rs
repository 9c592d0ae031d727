//! What a new leader observes of a list that is made in pages.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Mutex;

use http::{Request as HttpRequest, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use leadsman_reconcile::{Effects, Now};
use serde_json::{Value, json};

use super::*;
use crate::request::Request;
use crate::{Kind, Rules};
use leadsman_reconcile::{Class, WriteKind};

/// Rules whose events are observations in words.
struct Words;

impl Observe<ConfigMap> for Words {
    fn event_from_observation(observation: Observation<ConfigMap>) -> String {
        match observation {
            Observation::Object(object, _) => ObjectName::of(&object.metadata).to_string(),
            Observation::Relisted(names, version) => {
                let names: Vec<_> = names.iter().map(ToString::to_string).collect();
                format!("{} at {version:?}", names.join(" "))
            }
            Observation::Undecodable(metadata, _) => {
                format!("undecodable {}", ObjectName::of(&metadata))
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Rules for Words {
    const NAME: &'static str = "words";
    const KINDS: &'static [Kind<Self>] = &[Kind::new::<ConfigMap>(25).relisted_on_takeover()];
    const WRITES: &'static [WriteKind] = &[];
    const CLASSES: &'static [Class] = &[Class::new("things")];

    type Event = String;
    type Target = String;

    fn observe_event(&mut self, _: String, _now: Now) -> Effects<String> {
        Effects::default()
    }

    fn synced(&mut self, _now: Now) -> Effects<String> {
        Effects::default()
    }

    fn deadline_passed(&mut self, _now: Now) -> Effects<String> {
        Effects::default()
    }

    fn due_request(&mut self, _: &String, _now: Now) -> Option<Request<String>> {
        None
    }

    fn class_index(_: &String) -> usize {
        0
    }

    fn namespace(_: &String) -> Option<&str> {
        None
    }
}

fn page(names: &[&str], token: &str, version: &str) -> (u16, Value) {
    let item = |name: &&str| json!({"metadata": {"name": name, "namespace": "shop"}});
    let items: Vec<_> = names.iter().map(item).collect();
    let metadata = json!({"continue": token, "resourceVersion": version});
    (200, json!({"metadata": metadata, "items": items}))
}

/// What is observed of these replies.
async fn relisted(replies: Vec<(u16, Value)>) -> Vec<String> {
    let replies = Arc::new(Mutex::new(VecDeque::from(replies)));
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        let query = request.uri().query().unwrap();
        assert!(query.contains("limit=25"), "the kind's page: {query}");
        let (code, body) = replies.lock().unwrap().pop_front().unwrap();
        let body = Body::from(body.to_string().into_bytes());
        std::future::ready(Ok::<_, Infallible>(
            Response::builder().status(code).body(body).unwrap(),
        ))
    });
    let server = ApiServer::new(kube::Client::new(service, "default"));
    let pages: Vec<_> =
        relist_kinds::<Words>(&server, "leadsman-system", &RandomSource::from_seed(7))
            .collect()
            .await;
    pages.concat()
}

#[tokio::test(start_paused = true)]
async fn the_last_page_says_what_all_of_them_name() {
    let (code, mut last) = page(&["c"], "", "7");
    // It exists, whatever cannot be read of it, and a watch that lags behind has not shown it.
    let undecodable = json!({"metadata": {"name": "d", "namespace": "shop"}, "data": 3});
    last["items"].as_array_mut().unwrap().push(undecodable);
    let observed = relisted(vec![page(&["a", "b"], "more", "7"), (code, last)]).await;
    let complete = "shop/a shop/b shop/c shop/d at ResourceVersion(Some(7))";
    assert_eq!(
        observed,
        ["shop/a", "shop/b", "shop/c", "undecodable shop/d", complete]
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_that_begins_anew_names_nothing_of_the_one_before() {
    let expired = json!({"kind": "Status", "code": 410, "reason": "Expired"});
    let observed = relisted(vec![
        page(&["deleted-meanwhile"], "more", "7"),
        (410, expired),
        page(&["a"], "more", "9"),
        page(&["b"], "", "9"),
    ])
    .await;
    let complete = "shop/a shop/b at ResourceVersion(Some(9))";
    assert_eq!(observed.last().unwrap(), complete);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_refused_is_not_sent_again() {
    let refused = json!({"kind": "Status", "code": 400, "reason": "BadRequest"});
    let observed = relisted(vec![
        page(&["deleted-meanwhile"], "more", "7"),
        (400, refused),
        page(&["a"], "", "9"),
    ])
    .await;
    assert_eq!(
        observed.last().unwrap(),
        "shop/a at ResourceVersion(Some(9))"
    );
}
