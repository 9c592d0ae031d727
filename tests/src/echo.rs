//! A webhook that answers at once and always the same: the floor of what the API server's call of one costs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use k8s_openapi::ByteString;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio_rustls::TlsAcceptor;

/// A webhook that allows whatever it is asked about, on a thread of its own as leadsman's, and patches it if it was given a
/// patch.
pub struct Echo {
    address: SocketAddr,
    /// The certificate that it serves, in PEM.
    authority: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    calls: AtomicUsize,
    last_review: Mutex<Bytes>,
    /// In Base64, as it is sent.
    patch: Mutex<Option<String>>,
}

impl Echo {
    /// Begins to serve on a free port.
    ///
    /// # Errors
    /// When nothing can listen.
    pub fn start() -> Result<Self> {
        let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        let authority = certified.cert.pem();
        let certificate = certified.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into())?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        // It ends with the process.
        thread::spawn(move || {
            runtime.block_on(async {
                if let Err(error) = serve(listener, &acceptor, &shared).await {
                    eprintln!("the echo broke off: {error:#}");
                }
            });
        });
        Ok(Self {
            address,
            authority,
            state,
        })
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        self.state.calls.load(Ordering::Relaxed)
    }

    /// The `AdmissionReview` that it was last asked; empty before.
    pub fn last_review(&self) -> Bytes {
        let review = self.state.last_review.lock();
        review.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on it answers with this JSON patch, in Base64 as it stands in an `AdmissionReview`.
    pub fn answer_with(&self, patch: String) {
        let known = self.state.patch.lock();
        *known.unwrap_or_else(PoisonError::into_inner) = Some(patch);
    }

    /// A webhook like this one of a configuration, which is called with the same conditions for the second of these
    /// namespaces as that for the first.
    #[must_use]
    pub fn webhook_like(&self, mut webhook: Value, [of, beside]: [&str; 2]) -> Value {
        webhook["name"] = json!("echo.leadsman.test");
        webhook["clientConfig"] = json!({
            "url": format!("https://{}/echo", self.address),
            "caBundle": ByteString(self.authority.clone().into_bytes()),
        });
        webhook["namespaceSelector"] =
            json!({"matchLabels": {"kubernetes.io/metadata.name": beside}});
        let conditions = webhook["matchConditions"].as_array_mut();
        for condition in conditions.into_iter().flatten() {
            let expression = condition["expression"].as_str().unwrap_or_default();
            let expression = expression.replace(&format!("'{of}'"), &format!("'{beside}'"));
            condition["expression"] = json!(expression);
        }
        webhook
    }
}

async fn serve(
    listener: std::net::TcpListener,
    acceptor: &TlsAcceptor,
    state: &Arc<State>,
) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let stream = acceptor.accept(stream).await?;
        let state = Arc::clone(state);
        tokio::spawn(async move {
            let service = service_fn(|request| {
                state.calls.fetch_add(1, Ordering::Relaxed);
                answer(request, Arc::clone(&state))
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            let served = builder.serve_connection(TokioIo::new(stream), service);
            // However the API server leaves.
            let _ended = served.await;
        });
    }
}

async fn answer(request: Request<Incoming>, state: Arc<State>) -> Result<Response<Full<Bytes>>> {
    let body = request.into_body().collect().await?.to_bytes();
    let review: Review = serde_json::from_slice(&body)?;
    let mut response = json!({"uid": review.request.uid, "allowed": true});
    let patch = state.patch.lock();
    if let Some(patch) = &*patch.unwrap_or_else(PoisonError::into_inner) {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(patch);
    }
    *state
        .last_review
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = body;
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response,
    });
    let response = Response::builder().header(CONTENT_TYPE, "application/json");
    Ok(response.body(Full::from(serde_json::to_vec(&answer)?))?)
}

/// No more of a review than an answer needs.
#[derive(Deserialize)]
struct Review {
    request: Reviewed,
}

#[derive(Deserialize)]
struct Reviewed {
    uid: String,
}
