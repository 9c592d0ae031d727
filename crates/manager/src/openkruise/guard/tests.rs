use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use leadsman_process::Readiness;
use serde_json::{Value, json};

use super::*;

/// What an API server shows of `OpenKruise`.
#[derive(Debug, Default)]
struct Shown {
    is_installed: bool,
    is_forbidden: bool,
    /// The namespace that its chart was told, if not the usual one.
    namespace: Option<&'static str>,
    /// The holder of the Lease, if it exists.
    holder: Option<&'static str>,
    /// Whether the holder renews it.
    is_renewed: bool,
    gates: &'static str,
    requests: usize,
}

/// A guard beside an `OpenKruise`.
struct Stage {
    shown: Arc<Mutex<Shown>>,
    leadership: watch::Sender<Leadership>,
    markers: watch::Receiver<Leadership>,
    sets: watch::Receiver<Leadership>,
    readiness: Readiness,
    conflict: Gauge,
    running: tokio::task::JoinHandle<()>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Stage {
    fn new(gates: &str, is_ignored: bool, shown: Shown) -> Self {
        let shown = Arc::new(Mutex::new(shown));
        let service = Arc::clone(&shown);
        let service = tower::service_fn(move |request: Request<Body>| {
            let reply = service.lock().unwrap().reply(request.uri().path());
            async move { Ok::<_, Infallible>(reply) }
        });
        let leadership = watch::Sender::new(Leadership::Standby);
        let readiness = Readiness::default();
        let guard = OpenKruiseGuard::new(
            ApiServer::new(Client::new(service, "default")),
            leadership.subscribe(),
            (gates.parse().unwrap(), is_ignored),
            readiness.add_check("OpenKruise", "not looked yet"),
            &Metrics::default(),
        );
        Self {
            shown,
            leadership,
            markers: guard.leadership_over_markers(),
            sets: guard.leadership_over_sets(),
            readiness,
            conflict: guard.conflict.clone(),
            running: tokio::spawn(guard.run()),
        }
    }

    fn shown(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.shown.lock().unwrap()
    }

    fn lead(&self, term: u64) -> Leadership {
        let leads = Leadership::Leads {
            term,
            after_others: false,
            until: clock::monotonic() + Duration::from_hours(9),
        };
        self.leadership.send_replace(leads);
        leads
    }

    /// What is passed on after so long: over markers and over sets.
    async fn passed_on_after(&self, time: Duration) -> [Leadership; 2] {
        tokio::time::sleep(time).await;
        [*self.markers.borrow(), *self.sets.borrow()]
    }
}

impl Shown {
    fn reply(&mut self, path: &str) -> Response<Body> {
        self.requests += 1;
        let metadata = json!({"name": "a", "resourceVersion": "1"});
        let found = if self.is_forbidden {
            None
        } else if path.ends_with("/clusterroles/kruise-manager-role") {
            let role = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata});
            self.is_installed.then_some(role)
        } else if path.ends_with("/clusterrolebindings/kruise-manager-rolebinding") {
            self.namespace.map(|namespace| {
                let account = json!({"kind": "ServiceAccount", "name": "kruise-manager", "namespace": namespace});
                json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata,
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kruise-manager-role"},
                    "subjects": [account]})
            })
        } else if path.ends_with("/leases/kruise-manager") {
            let namespace = self.namespace.unwrap_or("kruise-system");
            let holder = self
                .holder
                .filter(|_| path.contains(&format!("/namespaces/{namespace}/")));
            holder.map(|holder| self.lease(holder))
        } else {
            let container =
                json!({"name": "manager", "args": [format!("--feature-gates={}", self.gates)]});
            let pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
            Some(
                json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [pod]}),
            )
        };
        let (code, reason) = match (&found, self.is_forbidden) {
            (_, true) => (StatusCode::FORBIDDEN, "Forbidden"),
            (None, _) => (StatusCode::NOT_FOUND, "NotFound"),
            (Some(_), _) => (StatusCode::OK, ""),
        };
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": reason, "message": "as the test wants", "code": code.as_u16()});
        let body = found.unwrap_or(status).to_string().into_bytes();
        Response::builder()
            .status(code)
            .body(Body::from(body))
            .unwrap()
    }

    fn lease(&self, holder: &str) -> Value {
        // As long as it is renewed, no two looks see the same record.
        let transitions = if self.is_renewed { self.requests } else { 0 };
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kruise-manager"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions,
                "renewTime": clock::now().to_string()}})
    }
}

fn acts() -> Shown {
    Shown {
        is_installed: true,
        holder: Some("one"),
        is_renewed: true,
        ..Shown::default()
    }
}

const SOON: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_hours(1);

// PPM-19
#[tokio::test(start_paused = true)]
async fn a_term_is_withheld_until_openkruise_has_stopped() {
    let stage = Stage::new("", false, acts());
    assert_eq!(stage.passed_on_after(LONG).await[0], Leadership::Standby);
    assert_eq!(stage.shown().requests, 0, "a standby does not look");
    let leads = stage.lead(1);
    assert_eq!(stage.passed_on_after(LONG).await[0], Leadership::Standby);
    assert_eq!(stage.conflict.get(), 1);
    assert!(stage.readiness.is_ready(), "{}", stage.readiness.to_text());
    stage.shown().holder = Some("");
    // Its last writes may not have reached our watches.
    let [markers, _] = stage.passed_on_after(WITHHELD + SOON).await;
    assert_eq!(markers, leads.after_others());
    assert_eq!(stage.conflict.get(), 0);
}

// PPM-19
#[tokio::test(start_paused = true)]
async fn an_openkruise_in_another_namespace_is_found_by_its_binding() {
    let elsewhere = Shown {
        namespace: Some("kruise"),
        ..acts()
    };
    let stage = Stage::new("", false, elsewhere);
    stage.lead(1);
    assert_eq!(stage.passed_on_after(LONG).await[0], Leadership::Standby);
    assert_eq!(stage.conflict.get(), 1);
}

// PPM-19
#[tokio::test(start_paused = true)]
async fn one_that_comes_later_is_reported_and_stops_no_writer() {
    let stage = Stage::new("", false, Shown::default());
    let leads = stage.lead(1);
    assert_eq!(stage.passed_on_after(SOON).await[0], leads);
    *stage.shown() = acts();
    let [markers, _] = stage.passed_on_after(REPORTING + SOON).await;
    assert_eq!(markers, leads);
    assert_eq!(stage.conflict.get(), 1);
    // Before the first write of another term it counts again.
    stage.lead(2);
    assert_eq!(stage.passed_on_after(LONG).await[0], Leadership::Standby);
    stage.leadership.send_replace(Leadership::Standby);
    assert_eq!(stage.passed_on_after(SOON).await[0], Leadership::Standby);
    assert_eq!(stage.conflict.get(), 0, "it is the next leader's to say");
}

// PPM-19
#[tokio::test(start_paused = true)]
async fn a_lease_without_openkruise_counts_for_nothing_and_costs_one_request() {
    let by_a_tenant = Shown {
        is_installed: false,
        ..acts()
    };
    let stage = Stage::new("SidecarSetGate=true", false, by_a_tenant);
    let leads = stage.lead(1);
    assert_eq!(stage.passed_on_after(SOON).await, [leads; 2]);
    assert_eq!(stage.shown().requests, 1);
    assert_eq!(stage.passed_on_after(REPORTING).await, [leads; 2]);
    assert_eq!(stage.shown().requests, 2);
    assert_eq!(stage.conflict.get(), 0);
}

// PPM-19, SCS-80
#[tokio::test(start_paused = true)]
async fn an_openkruise_whose_gate_is_off_leads_over_sidecar_sets_all_the_same() {
    let off = Shown {
        gates: "PodProbeMarkerGate=false",
        ..acts()
    };
    let stage = Stage::new("SidecarSetGate=true", false, off);
    let leads = stage.lead(1).after_others();
    let passed_on = stage.passed_on_after(LONG).await;
    assert_eq!(passed_on, [leads, Leadership::Standby]);
    assert_eq!(stage.conflict.get(), 1);
    // Once it is admitted, another holder does not end the term.
    stage.shown().gates = "";
    let passed_on = stage.passed_on_after(LONG).await;
    assert_eq!(passed_on, [leads, Leadership::Standby]);
    stage.shown().holder = None;
    assert_eq!(stage.passed_on_after(LONG).await, [leads; 2]);
}

// PPM-19
#[tokio::test(start_paused = true)]
async fn a_term_is_withheld_while_nobody_may_look() {
    let forbidden = Shown {
        is_forbidden: true,
        ..Shown::default()
    };
    let stage = Stage::new("", false, forbidden);
    assert!(stage.readiness.is_ready());
    let leads = stage.lead(1);
    assert_eq!(stage.passed_on_after(LONG).await[0], Leadership::Standby);
    assert!(!stage.readiness.is_ready());
    stage.shown().is_forbidden = false;
    assert_eq!(stage.passed_on_after(WITHHELD + SOON).await[0], leads);
    assert!(stage.readiness.is_ready());
}

// PPM-19
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_switched_off_looks_at_nothing() {
    let stage = Stage::new("SidecarSetGate=true", true, acts());
    let leads = stage.lead(1);
    assert_eq!(stage.passed_on_after(SOON).await, [leads; 2]);
    assert_eq!(stage.shown().requests, 0);
}
