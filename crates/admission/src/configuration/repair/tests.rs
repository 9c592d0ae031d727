use std::convert::Infallible;
use std::sync::Mutex;

use http::Method;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::client::Body;
use leadsman_process::Readiness;
use serde_json::json;
use tokio::time::advance;

use super::*;
use crate::admission::source;
use crate::owner::OWNER;
use crate::webhook::Webhook;
use crate::webhook::WebhookSpec;
use crate::webhook::tests::{Versioned, echo};

/// The loop of a leader in this term, before its first step, and what its webhook is to be called for.
fn leader(
    client: kube::Client,
    term: u64,
    calls: WebhookCalls,
    observed: Observed<MutatingWebhookConfiguration>,
) -> (
    ConfigurationLoop<MutatingWebhookConfiguration>,
    watch::Sender<WebhookCalls>,
) {
    let calls = watch::Sender::new(calls);
    let repair = leader_with(client, term, &echo(calls.subscribe()), observed);
    (repair, calls)
}

fn leader_with(
    client: kube::Client,
    term: u64,
    webhook: &Webhook,
    observed: Observed<MutatingWebhookConfiguration>,
) -> ConfigurationLoop<MutatingWebhookConfiguration> {
    let leadership = watch::Sender::new(Leadership::Leads {
        term,
        after_others: term > 1,
        until: clock::monotonic() + Duration::from_hours(100),
    });
    ConfigurationLoop {
        server: ApiServer::new(client),
        address: Address::Service("leadsman-system/hook:8443".parse().unwrap()),
        random: fastrand::Rng::with_seed(7),
        webhooks: vec![source(webhook)],
        bundle: watch::Sender::new(CaBundle::Pem(b"CA".to_vec())).subscribe(),
        mounted: false,
        leadership: leadership.subscribe(),
        writes: Arc::default(),
        in_force: watch::Sender::new(None),
        absent_since: watch::Sender::new(None),
        check: Some(Readiness::default().add_check("webhook configuration", "not read")),
        state: ConfigurationLoopState {
            observed,
            ..ConfigurationLoopState::default()
        },
    }
}

/// A leader that needs the configuration for the first time, after hours without one. Returns its requests, and whether
/// the configuration was said to be absent while each was under way.
async fn first_requests(owner_code: u16) -> Vec<(Method, bool)> {
    let (requests, absent_since) = (Arc::new(Mutex::new(Vec::new())), watch::Sender::new(None));
    let (asked, absent) = (Arc::clone(&requests), absent_since.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let is_absent = absent.borrow().is_some();
        asked
            .lock()
            .unwrap()
            .push((request.method().clone(), is_absent));
        let body = json!({"metadata": {"name": CONFIGURATION, "uid": "u"}});
        let code = match *request.method() {
            Method::GET => owner_code,
            _ => 200,
        };
        let response = http::Response::builder().status(code);
        let response = response.body(Body::from(body.to_string().into_bytes()));
        std::future::ready(Ok::<_, Infallible>(response.unwrap()))
    });
    let client = kube::Client::new(service, "default");
    let (mut repair, calls) = leader(client, 1, WebhookCalls::default(), Observed::Absent);
    repair.absent_since = absent_since.clone();
    repair.take_step().await;
    advance(Duration::from_hours(1)).await;
    assert!(absent_since.borrow().is_some(), "nobody needs it yet");
    calls.send_replace(Some(WebhookSpec::default()).into());
    repair.take_step().await;
    repair.take_step().await;
    requests.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn the_configuration_is_not_called_absent_while_an_apply_may_make_it() {
    let expected = [(Method::GET, false), (Method::PATCH, false)];
    assert_eq!(first_requests(200).await, expected);
}

#[tokio::test(start_paused = true)]
async fn the_configuration_is_applied_whether_its_owner_can_be_read_or_not() {
    for code in [200, 400, 403, 404, 429, 500, 503] {
        let methods = first_requests(code).await.into_iter();
        let methods: Vec<_> = methods.map(|(method, _)| method).collect();
        assert_eq!(methods, [Method::GET, Method::PATCH], "{code}");
    }
}

/// The set of fields of an object that is applied (`FieldsV1`).
fn fields_of(object: &Value) -> Value {
    match object {
        Value::Object(object) => {
            let fields = object.iter();
            let fields = fields.map(|(key, value)| (format!("f:{key}"), fields_of(value)));
            fields.collect()
        }
        Value::Array(items) if items.iter().all(|item| item["name"].is_string()) => {
            let key = |item: &Value| format!("k:{}", json!({"name": item["name"]}));
            let items = items.iter().map(|item| (key(item), fields_of(item)));
            items.collect()
        }
        _ => json!({}),
    }
}

/// What a leader asks where an earlier one has applied the configuration, owned by a role with the uid `u`.
async fn requests_of_a_later_leader(uid_of_role: &'static str) -> Vec<Method> {
    let requests: Arc<Mutex<Vec<Method>>> = Arc::default();
    let asked = Arc::clone(&requests);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        asked.lock().unwrap().push(request.method().clone());
        let body = json!({"metadata": {"name": OWNER, "uid": uid_of_role}});
        let response = http::Response::new(Body::from(body.to_string().into_bytes()));
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let client = kube::Client::new(service, "default");
    let wanted = WebhookCalls::from(Some(WebhookSpec::default()));
    let (mut repair, _calls) = leader(client, 2, wanted, Observed::Unknown);
    let bundle = repair.bundle.borrow().clone();
    let mut object = desired_configuration::<MutatingWebhookConfiguration>(
        &repair.in_force_webhooks().unwrap(),
        &repair.address,
        &bundle,
    )
    .unwrap();
    let mut fields = fields_of(&object);
    for field in ["f:apiVersion", "f:kind"] {
        fields.as_object_mut().unwrap().remove(field);
    }
    fields["f:metadata"]
        .as_object_mut()
        .unwrap()
        .remove("f:name");
    fields["f:metadata"]["f:ownerReferences"] = json!({"k:{\"uid\":\"u\"}": {}});
    let owner = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": OWNER, "uid": "u"});
    object["metadata"]["ownerReferences"] = json!([owner]);
    object["metadata"]["managedFields"] =
        json!([{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}]);
    repair.state.observed = Observed::Present(serde_json::from_value(object).unwrap());
    for _ in 0..3 {
        repair.take_step().await;
    }
    requests.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_later_leader_reads_the_owner_and_applies_it_only_where_it_is_another() {
    assert_eq!(requests_of_a_later_leader("u").await, [Method::GET]);
    let requests = requests_of_a_later_leader("v").await;
    assert_eq!(requests, [Method::GET, Method::PATCH]);
}

/// The configuration as an API server stores what is applied.
fn stored_configuration(request: &[u8]) -> Value {
    let mut object: Value = serde_json::from_slice(request).unwrap();
    object["metadata"]["resourceVersion"] = "100".into();
    object
}

/// The client of an API server that stores what is applied, while it answers with this code.
fn client_of_a_store(code: Arc<Mutex<u16>>) -> kube::Client {
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let code = *code.lock().unwrap();
        async move {
            let is_read = request.method() == Method::GET;
            let body = request.into_body().collect_bytes().await.unwrap();
            let body = match code {
                200 if is_read => json!({"metadata": {"name": OWNER, "uid": "u"}}),
                200 => stored_configuration(&body),
                _ => json!({"message": "no"}),
            };
            let response = http::Response::builder().status(code);
            let response = response.body(Body::from(body.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    kube::Client::new(service, "default")
}

/// Nobody knows then whether calls of an earlier process are stored, so this one has to say it.
#[tokio::test(start_paused = true)]
async fn a_leader_that_finds_no_configuration_and_may_make_none_says_that_no_calls_are_in_force() {
    let client = client_of_a_store(Arc::new(Mutex::new(403)));
    let calls = WebhookCalls::from(Some(WebhookSpec::default()));
    let (mut repair, _calls) = leader(client, 1, calls, Observed::Unknown);
    let in_force = repair.webhooks[0].in_force.subscribe();
    let is_told = |in_force: &watch::Receiver<_>| in_force.has_changed().unwrap();
    // While the API server cannot be asked, what was in force stays so.
    repair.state.trouble = Some("no answer".to_owned());
    repair.note_in_force(None, &CaBundle::Unknown);
    assert!(!is_told(&in_force));
    repair.state.trouble = None;
    repair.state.observed = Observed::Absent;
    // It is made at once, as far as is known.
    repair.take_step().await;
    assert!(!is_told(&in_force));
    for _ in 0..2 {
        repair.take_step().await;
    }
    assert!(is_told(&in_force) && in_force.borrow().is_none());
}

#[tokio::test(start_paused = true)]
async fn calls_are_in_force_until_others_are_stored_and_while_what_others_stored_can_be_replaced() {
    let code = Arc::new(Mutex::new(200));
    let calls_of = |version: u64, timeout_seconds| WebhookCalls {
        specs: vec![WebhookSpec {
            timeout_seconds,
            ..WebhookSpec::default()
        }],
        barrier: Some(StateVersion::from([version])),
    };
    let no_calls = WebhookCalls {
        specs: Vec::new(),
        ..calls_of(4, 0)
    };
    let client = client_of_a_store(Arc::clone(&code));
    let (mut repair, calls) = leader(client, 1, no_calls, Observed::Absent);
    let in_force = repair.webhooks[0].in_force.subscribe();
    let version = || in_force.borrow().map(|StateVersion(kinds)| kinds[0]);
    // That nobody is called is in force where no configuration says otherwise.
    repair.take_step().await;
    assert_eq!(version(), Some(4));
    calls.send_replace(calls_of(5, 3));
    for in_force in [4, 4, 5] {
        repair.take_step().await;
        assert_eq!(version(), Some(in_force));
    }
    let since = |repair: &ConfigurationLoop<_>| repair.in_force.borrow().clone().unwrap().since;
    let applied_at = since(&repair);
    advance(Duration::from_hours(1)).await;

    // Other calls are wanted, and cannot be stored: those that are stored are still made.
    *code.lock().unwrap() = 500;
    calls.send_replace(calls_of(7, 4));
    for _ in 0..2 {
        repair.take_step().await;
        assert_eq!(version(), Some(5));
        advance(Duration::from_mins(1)).await;
    }
    assert_eq!(since(&repair), applied_at, "of the bundle");
    *code.lock().unwrap() = 200;
    repair.take_step().await;
    repair.take_step().await;
    repair.take_step().await;
    assert_eq!(version(), Some(7));

    // Somebody else changes them, and that cannot be mended.
    advance(Duration::from_hours(1)).await;
    let Observed::Present(stored) = &mut repair.state.observed else {
        panic!("it is stored");
    };
    let webhook = &mut stored.webhooks.as_mut().unwrap()[0];
    webhook.timeout_seconds = Some(1);
    let spoilt = repair.state.observed.clone();
    repair.take_step().await;
    assert_eq!(version(), Some(7), "mended at once");
    advance(Duration::from_hours(1)).await;
    repair.state.observed = spoilt;
    *code.lock().unwrap() = 403;
    repair.take_step().await;
    repair.take_step().await;
    assert_eq!(version(), None);
}

/// The configuration of a versioned webhook as it is stored with this barrier.
fn configuration_with(barrier: &str) -> Observed<MutatingWebhookConfiguration> {
    let annotations = json!({"a.b.c/barrier": barrier});
    let metadata =
        json!({"name": CONFIGURATION, "resourceVersion": "100", "annotations": annotations});
    let object = json!({"metadata": metadata, "webhooks": []});
    Observed::Present(serde_json::from_value(object).unwrap())
}

fn stored_barrier(repair: &ConfigurationLoop<MutatingWebhookConfiguration>) -> Option<String> {
    let Observed::Present(stored) = &repair.state.observed else {
        return None;
    };
    stored
        .metadata
        .annotations
        .as_ref()?
        .get("a.b.c/barrier")
        .cloned()
}

/// Calls of an older state would replace those of a newer one.
#[tokio::test(start_paused = true)]
async fn a_leader_writes_no_calls_before_its_own_state_is_as_new_as_those_that_are_stored() {
    let client = client_of_a_store(Arc::new(Mutex::new(200)));
    let snapshots = watch::Sender::new(Some(Arc::new(39)));
    let calls = watch::Sender::new(WebhookCalls::from(Some(WebhookSpec::default())));
    let webhook = Webhook::new::<Versioned>("a.b.c", snapshots.subscribe(), calls.subscribe());
    let stored = configuration_with("40/5");
    let mut repair = leader_with(client, 2, &webhook, stored.clone());
    let wake = repair.take_step().await;
    assert!(wake.is_some_and(|wake| wake > clock::monotonic()));
    assert_eq!(repair.state.observed, stored);
    let mut caught_up = repair.webhooks[0].wait_for_own_state();
    assert_eq!((&mut caught_up).now_or_never(), None);
    snapshots.send_replace(Some(Arc::new(40)));
    assert_eq!(caught_up.now_or_never(), Some(()));
    for _ in 0..2 {
        repair.take_step().await;
    }
    assert_ne!(repair.state.observed, stored);
    assert_eq!(stored_barrier(&repair).as_deref(), Some("40/5"));
}

/// Its calls may be the same afterwards, so nothing else wakes it.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_state_goes_back_lowers_the_barrier_that_it_raised_by_the_state_of_before() {
    let client = client_of_a_store(Arc::new(Mutex::new(200)));
    let snapshots = watch::Sender::new(Some(Arc::new(90)));
    let calls = watch::Sender::new(WebhookCalls {
        barrier: Some(StateVersion::from([80])),
        ..WebhookCalls::from(Some(WebhookSpec::default()))
    });
    let webhook = Webhook::new::<Versioned>("a.b.c", snapshots.subscribe(), calls.subscribe());
    let mut repair = leader_with(client, 1, &webhook, configuration_with("20/2"));
    for _ in 0..2 {
        repair.take_step().await;
    }
    assert_eq!(stored_barrier(&repair).as_deref(), Some("80/3"));
    repair.take_step().await;
    calls.send_modify(|calls| calls.barrier = Some(StateVersion::from([20])));
    repair.take_step().await;
    assert_eq!(stored_barrier(&repair).as_deref(), Some("80/3"));
    let mut gone_back = repair.webhooks[0].wait_for_own_state();
    assert_eq!((&mut gone_back).now_or_never(), None);
    advance(Duration::from_mins(1)).await;
    snapshots.send_replace(Some(Arc::new(30)));
    assert_eq!(gone_back.now_or_never(), Some(()));
    repair.take_step().await;
    assert_eq!(stored_barrier(&repair).as_deref(), Some("20/4"));
}
