//! Requests: one object, a list in pages, or a patch. A refused one names the right that is missing.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{GetParams, ListParams};
use kube::core::Request;
use leadsman_core::podprobe::explain::Unread;
use leadsman_process::reply::{Disposition, RetryCause, Verb};
use leadsman_process::server::Reply;
use leadsman_process::{ApiServer, clock};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster_clock::ClusterClock;
use crate::output;
use crate::resources::{ApiResource, CLONE_SETS};

/// The deadline of a request. A person waits for it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// How often a list begins anew whose continue token has expired.
const ATTEMPTS: usize = 3;

/// Reads objects of a cluster, and patches those that somebody asks it to.
pub(crate) struct Reader {
    pub(crate) server: ApiServer,
    clock: ClusterClock,
}

/// A selection of the objects of a resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListSelection<'a> {
    /// The namespace; all, if none.
    pub(crate) namespace: Option<&'a str>,
    /// A label selector, as the API takes it.
    pub(crate) labels: Option<String>,
    /// A field selector.
    pub(crate) fields: Option<String>,
    /// How many objects a page has; the API server's reply and our copy of it are in memory at once.
    pub(crate) page: u32,
    /// Whether their metadata is enough, which an API server sends alone (`PartialObjectMetadata`).
    pub(crate) names_only: bool,
}

impl<'a> ListSelection<'a> {
    /// All in a namespace, or in all namespaces.
    pub(crate) fn of(namespace: Option<&'a str>, page: u32) -> Self {
        Self {
            namespace,
            page,
            ..Self::default()
        }
    }

    fn names(namespace: Option<&'a str>) -> Self {
        Self {
            names_only: true,
            ..Self::of(namespace, 500)
        }
    }
}

/// An object of which only the name matters.
#[derive(Deserialize)]
struct NamedObject {
    metadata: Name,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default)]
    metadata: ListMeta,
    /// Null where a list of metadata is empty (`asPartialObjectMetadataList` in `k8s.io/apiserver`'s `response.go`).
    items: Option<Vec<T>>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    token: Option<String>,
}

impl Reader {
    /// Nothing was read yet.
    pub(crate) fn new(server: ApiServer) -> Self {
        Self {
            server,
            clock: ClusterClock::default(),
        }
    }

    /// The time of day by the API server's clock: ages of objects are by clocks of the cluster, and the one of this machine
    /// may be off. Says so if it is by much.
    pub(crate) async fn cluster_time(&self) -> Timestamp {
        if !self.clock.is_known() {
            // Any answer has a date.
            let version = http::Request::get("/version")
                .body(Vec::new())
                .expect("a path is a request");
            self.send_request(Verb::Get, version).await;
        }
        if let Some(difference_remark) = self.clock.difference_remark() {
            output::print_remark(&difference_remark);
        }
        self.clock.now()
    }

    /// Sends a request.
    async fn send_request(&self, verb: Verb, request: http::Request<Vec<u8>>) -> Reply {
        let began = clock::now();
        let reply = self.server.send_request(verb, request, DEADLINE).await;
        self.clock
            .observe_date(reply.date.as_ref(), began, clock::now());
        reply
    }

    /// One object. None if there is none of this name.
    pub(crate) async fn get_object<T: DeserializeOwned>(
        &self,
        resource: ApiResource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<T>, Unread> {
        let unread = |why: &dyn std::fmt::Display| {
            Unread(format!(
                "cannot read {} {name}: {why}",
                resource.full_name()
            ))
        };
        let request =
            Request::new(resource.objects_path(namespace)).get(name, &GetParams::default());
        let request = request.map_err(|error| unread(&error))?;
        let reply = self.send_request(Verb::Get, request).await;
        match &reply.disposition {
            Disposition::Done => {
                let object = serde_json::from_slice(&reply.body);
                object.map(Some).map_err(|error| unread(&error))
            }
            Disposition::Gone { .. } => Ok(None),
            failure => Err(explain_failure("get", resource, namespace, failure)),
        }
    }

    /// Patches an object: by a JSON merge patch (RFC 7396), or by a JSON patch (RFC 6902) where it is a list. One that is dry is
    /// judged, and not stored.
    pub(crate) async fn patch_object(
        &self,
        resource: ApiResource,
        (namespace, name): (&str, &str),
        patch: &Value,
        is_dry: bool,
    ) -> Result<(), Unread> {
        let form = if patch.is_array() {
            "json-patch"
        } else {
            "merge-patch"
        };
        let dry_run = if is_dry { "&dryRun=All" } else { "" };
        let objects = resource.objects_path(Some(namespace));
        let request = http::Request::patch(format!(
            "{objects}/{name}?fieldManager=kubectl-leadsman{dry_run}"
        ))
        .header(
            http::header::CONTENT_TYPE,
            format!("application/{form}+json"),
        )
        .body(patch.to_string().into_bytes());
        let full_name = resource.full_name();
        let request =
            request.map_err(|error| Unread(format!("cannot patch {full_name} {name}: {error}")))?;
        match self.send_request(Verb::Update, request).await.disposition {
            Disposition::Done => Ok(()),
            failure => Err(explain_failure(
                "patch",
                resource,
                Some(namespace),
                &failure,
            )),
        }
    }

    /// The objects of a selection, page by page.
    pub(crate) async fn list_objects<T: DeserializeOwned>(
        &self,
        resource: ApiResource,
        selection: &ListSelection<'_>,
    ) -> Result<Vec<T>, Unread> {
        self.map_objects(resource, selection, Some).await
    }

    /// Maps the objects of a selection while their page is there: the objects are not kept.
    pub(crate) async fn map_objects<T: DeserializeOwned, U>(
        &self,
        resource: ApiResource,
        selection: &ListSelection<'_>,
        map: impl Fn(T) -> Option<U>,
    ) -> Result<Vec<U>, Unread> {
        let listed = self.list_until_whole(resource, selection, &map).await;
        listed.map_err(|failure| explain_failure("list", resource, selection.namespace, &failure))
    }

    /// The same of a resource that the API server need not serve; None if it does not.
    pub(crate) async fn list_if_served<T: DeserializeOwned>(
        &self,
        resource: ApiResource,
        selection: &ListSelection<'_>,
    ) -> Result<Option<Vec<T>>, Unread> {
        match self.list_until_whole(resource, selection, &Some).await {
            Ok(objects) => Ok(Some(objects)),
            Err(Disposition::Retry {
                cause: RetryCause::NoSuchKind,
                ..
            }) => Ok(None),
            Err(failure) => Err(explain_failure(
                "list",
                resource,
                selection.namespace,
                &failure,
            )),
        }
    }

    /// The names of all objects of a resource, in a namespace or in all.
    pub(crate) async fn list_names(
        &self,
        resource: ApiResource,
        namespace: Option<&str>,
    ) -> Result<Vec<String>, Unread> {
        let name = |object: NamedObject| Some(object.metadata.name);
        let selection = ListSelection::names(namespace);
        self.map_objects(resource, &selection, name).await
    }

    /// The same of the first page, for whoever does not wait for more.
    pub(crate) async fn list_first_names(
        &self,
        resource: ApiResource,
        namespace: Option<&str>,
    ) -> Option<Vec<String>> {
        let selection = ListSelection::names(namespace);
        let page = self.read_page::<NamedObject>(resource, &selection, None);
        let names = page.await.ok()?.items.into_iter().flatten();
        Some(names.map(|object| object.metadata.name).collect())
    }

    /// A list, which begins anew where its continue token has expired (`metadata.continue` of `ListMeta`,
    /// `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`).
    async fn list_until_whole<T: DeserializeOwned, U>(
        &self,
        resource: ApiResource,
        selection: &ListSelection<'_>,
        map: &impl Fn(T) -> Option<U>,
    ) -> Result<Vec<U>, Disposition> {
        let mut listed = self.list_once(resource, selection, map).await;
        for _ in 1..ATTEMPTS {
            if !matches!(listed, Err(Disposition::Expired { .. })) {
                break;
            }
            // The pages read so far are dropped: pages of two lists may lack an object, or have it twice.
            listed = self.list_once(resource, selection, map).await;
        }
        listed
    }

    async fn list_once<T: DeserializeOwned, U>(
        &self,
        resource: ApiResource,
        selection: &ListSelection<'_>,
        map: &impl Fn(T) -> Option<U>,
    ) -> Result<Vec<U>, Disposition> {
        let mut objects = Vec::new();
        let mut token = None;
        loop {
            let page: List<T> = self.read_page(resource, selection, token).await?;
            objects.extend(page.items.into_iter().flatten().filter_map(map));
            token = page.metadata.token.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(objects);
            }
        }
    }

    /// One page, after this token.
    async fn read_page<T: DeserializeOwned>(
        &self,
        resource: ApiResource,
        selection: &ListSelection<'_>,
        token: Option<String>,
    ) -> Result<List<T>, Disposition> {
        let refused = |error: &dyn std::fmt::Display| Disposition::Refused {
            reason: error.to_string(),
        };
        let mut params = ListParams {
            label_selector: selection.labels.clone(),
            field_selector: selection.fields.clone(),
            limit: Some(selection.page),
            continue_token: token,
            ..ListParams::default()
        };
        loop {
            let builder = Request::new(resource.objects_path(selection.namespace));
            let built = if selection.names_only {
                builder.list_metadata(&params)
            } else {
                builder.list(&params)
            };
            let request = built.map_err(|error| refused(&error))?;
            let reply = self.send_request(Verb::ListOrWatch, request).await;
            if reply.disposition != Disposition::Done {
                return Err(reply.disposition);
            }
            // One object always fits (`LONGEST_BODY`).
            match params.limit {
                Some(limit @ 2..) if reply.is_too_long => params.limit = Some(limit / 2),
                _ => return serde_json::from_slice(&reply.body).map_err(|error| refused(&error)),
            }
        }
    }
}

/// Why a request failed: the right that is missing, or what the API server says.
fn explain_failure(
    verb: &str,
    resource: ApiResource,
    namespace: Option<&str>,
    failure: &Disposition,
) -> Unread {
    let place = match namespace {
        Some(namespace) => format!("in namespace {namespace}"),
        None => "at the cluster scope".to_owned(),
    };
    let name = resource.full_name();
    let reason = failure.reason().unwrap_or_default();
    Unread(match failure {
        Disposition::Retry {
            cause: RetryCause::NoRight,
            ..
        // The refusal for a missing right names the user; that of credentials that are not accepted (401) does not.
        } if reason.contains("User \"") => {
            format!("missing right: {verb} {name} {place}")
        }
        Disposition::Retry {
            cause: RetryCause::NoSuchKind,
            ..
        } if resource == CLONE_SETS => {
            format!(
                "the API server does not serve {name}: neither leadsman with its gate CloneSetGate nor OpenKruise is installed in this cluster"
            )
        }
        Disposition::Retry {
            cause: RetryCause::NoSuchKind,
            ..
        } => format!(
            "the API server does not serve {name}: leadsman is not installed in this cluster, or --context names another one"
        ),
        Disposition::Retry {
            cause: RetryCause::NotApiServer,
            ..
        } => format!(
            "cannot {verb} {name} {place}: {}",
            failure.explain_reason()
        ),
        _ => format!("cannot {verb} {name} {place}: {reason}"),
    })
}

#[cfg(test)]
pub(crate) use tests::FakeServer;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use kube::Client;
    use kube::client::Body;
    use rstest::rstest;

    use super::*;
    use crate::resources::{MARKERS, NODES};

    fn retry(cause: RetryCause, reason: &str) -> Disposition {
        Disposition::Retry {
            cause,
            after: None,
            reason: reason.to_owned(),
        }
    }

    /// An API server that has these objects and lists, by their paths, and nothing else.
    #[derive(Clone)]
    pub(crate) struct FakeServer {
        objects: BTreeMap<&'static str, serde_json::Value>,
        requests: Arc<Mutex<Vec<(String, String)>>>,
        patches: Arc<Mutex<Vec<(String, Value)>>>,
    }

    impl FakeServer {
        pub(crate) fn new<const N: usize>(objects: [(&'static str, serde_json::Value); N]) -> Self {
            Self {
                objects: objects.into(),
                requests: Arc::default(),
                patches: Arc::default(),
            }
        }

        pub(crate) fn reader(&self) -> Reader {
            let server = self.clone();
            let service = tower::service_fn(move |request: http::Request<Body>| {
                let path = request.uri().path().to_owned();
                let header = |name| {
                    let value = request.headers().get(name);
                    value.map_or("", |value: &http::HeaderValue| value.to_str().unwrap())
                };
                let none = serde_json::json!({"kind": "Status", "reason": "NotFound", "code": 404,
                    "message": "not found", "details": {"name": "x"}});
                let object = server.objects.get(path.as_str());
                let status = if object.is_some() { 200 } else { 404 };
                let body = object.unwrap_or(&none).to_string().into_bytes();
                let accept = header(http::header::ACCEPT).to_owned();
                server.requests.lock().unwrap().push((path, accept));
                let form = header(http::header::CONTENT_TYPE);
                let how = format!("{form} {}", request.uri());
                let is_patch = request.method() == http::Method::PATCH;
                let (sent, patches) = (request.into_body(), server.patches.clone());
                async move {
                    if is_patch {
                        let sent = sent.collect_bytes().await.unwrap();
                        let sent = serde_json::from_slice(&sent).unwrap();
                        patches.lock().unwrap().push((how, sent));
                    }
                    let response = http::Response::builder().status(status);
                    response.body(Body::from(body))
                }
            });
            Reader::new(ApiServer::new(Client::new(service, "default")))
        }

        /// The patches so far: their form and address, and their bodies.
        pub(crate) fn patches(&self) -> Vec<(String, Value)> {
            self.patches.lock().unwrap().clone()
        }

        /// The requests so far: their paths, and what they accept.
        pub(crate) fn requests(&self) -> Vec<(String, String)> {
            self.requests.lock().unwrap().clone()
        }
    }

    /// An API server of which each list has two pages, and the token of the first is expired so often.
    fn server_with_expired_tokens(mut expired: usize) -> Reader {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let (status, body) = if !query.contains("continue=second") {
                (200, r#"{"metadata":{"continue":"second"},"items":["a"]}"#)
            } else if expired > 0 {
                expired -= 1;
                (
                    410,
                    r#"{"kind":"Status","reason":"Expired","message":"The provided continue parameter is too old"}"#,
                )
            } else {
                (200, r#"{"metadata":{},"items":["b"]}"#)
            };
            let response = http::Response::builder().status(status);
            let response = response.body(Body::from(body.as_bytes().to_vec()));
            std::future::ready(response)
        });
        Reader::new(ApiServer::new(Client::new(service, "default")))
    }

    #[tokio::test]
    async fn a_list_whose_continue_token_expires_begins_anew() {
        let page = ListSelection::of(None, 1);
        for (expired, is_read) in [(0, true), (2, true), (3, false)] {
            let objects = vec!["a".to_owned(), "b".to_owned()];
            let listed: Result<Vec<String>, _> = server_with_expired_tokens(expired)
                .list_objects(NODES, &page)
                .await;
            assert_eq!(listed.ok(), is_read.then_some(objects.clone()), "{expired}");
            let listed = server_with_expired_tokens(expired)
                .list_if_served(NODES, &page)
                .await;
            let expected = is_read.then_some(Some(objects));
            assert_eq!(
                listed.ok(),
                expected,
                "{expired}, of what need not be served"
            );
        }
    }

    #[rstest]
    #[case(
        NODES,
        None,
        retry(
            RetryCause::NoRight,
            "nodes is forbidden: User \"u\" cannot list resource \"nodes\""
        ),
        "missing right: list nodes at the cluster scope"
    )]
    #[case(
        MARKERS,
        Some("ns"),
        retry(RetryCause::NoRight, "User \"u\" cannot list"),
        "missing right: list podprobemarkers.apps.kruise.io in namespace ns"
    )]
    #[case(
        NODES,
        None,
        retry(RetryCause::NoRight, "Unauthorized"),
        "cannot list nodes at the cluster scope: Unauthorized"
    )]
    #[case(
        MARKERS,
        None,
        retry(RetryCause::NotApiServer, "404 Not Found <html>"),
        "cannot list podprobemarkers.apps.kruise.io at the cluster scope: the reply is not the API server's: check the proxy or \
         load balancer before it, and the address of the API server in the kubeconfig (404 Not Found <html>)"
    )]
    #[case(
        NODES,
        None,
        retry(RetryCause::NoAnswer, "no answer within 20.0 s"),
        "cannot list nodes at the cluster scope: no answer within 20.0 s"
    )]
    fn a_failure_names_the_right_or_the_reason(
        #[case] resource: ApiResource,
        #[case] namespace: Option<&str>,
        #[case] failure: Disposition,
        #[case] expected: &str,
    ) {
        assert_eq!(
            explain_failure("list", resource, namespace, &failure).0,
            expected
        );
    }
}
