//! The calls: one channel over a unix socket, shared by all clones, connected on first use and again
//! whenever the runtime comes back. Every call has a deadline of its own, so a runtime that hangs holds up
//! nobody for longer.

use std::{fmt, future::Future, net::IpAddr, path::Path, sync::Arc, time::Duration};

use http::Uri;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use prost::Message;
use tonic::{
    Code, Response, Status,
    body::Body,
    transport::{Channel, Endpoint},
};
use tower::{ServiceExt, service_fn, util::MapResponse};

use crate::{
    abridge::Abridged,
    socket::RuntimeSocket,
    wire::{self, runtime_service_client::RuntimeServiceClient},
};

/// The largest answer taken: what runtimes allow themselves.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// How long a call about the whole node may take.
const NODE_LIMIT: Duration = Duration::from_secs(10);
/// How long a call about one container or sandbox may take; the runtime answers from memory.
const OBJECT_LIMIT: Duration = Duration::from_secs(2);
/// How many bytes the runtime may send ahead of us, per call and in all.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Why the runtime gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint given is not one that can be dialled.
    #[error(
        "{endpoint:?} is no endpoint of a container runtime: give unix:///path or an absolute path"
    )]
    Endpoint {
        /// As it was given.
        endpoint: String,
    },
    /// Nobody answers at the socket, or the connection broke. It is made anew at the next call.
    #[error("the container runtime at {endpoint} cannot be reached: {reason}")]
    Unreachable {
        /// The socket.
        endpoint: Arc<str>,
        /// The transport's words.
        reason: String,
    },
    /// The runtime took the call and did not answer in time.
    #[error("the container runtime at {endpoint} did not answer {call} within {} s", limit.as_secs())]
    Late {
        /// The socket.
        endpoint: Arc<str>,
        /// The call, by its CRI name, and what it was about.
        call: String,
        /// How long was waited.
        limit: Duration,
    },
    /// The runtime does not know the object (any more).
    #[error("the container runtime answered {call}: not found: {message}")]
    NotFound {
        /// The call, by its CRI name, and what it was about.
        call: String,
        /// The runtime's words.
        message: String,
    },
    /// The runtime answered with an error.
    #[error("the container runtime answered {call}: {code:?}: {message}")]
    Refused {
        /// The call, by its CRI name, and what it was about.
        call: String,
        /// The gRPC code.
        code: Code,
        /// The runtime's words.
        message: String,
    },
}

/// Which runtime answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Its name, as `containerd`.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// The version of the interface it speaks, as `v1`.
    pub api: String,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (CRI {})", self.name, self.version, self.api)
    }
}

/// One container of the node, as the list of all shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The runtime's id, without a scheme.
    pub id: Arc<str>,
    /// The id of its sandbox.
    pub sandbox: Arc<str>,
    /// The pod's uid as the kubelet knows it. For a static pod that is not the uid of its mirror in the API.
    pub pod_uid: Arc<str>,
    /// The pod's namespace.
    pub pod_namespace: Arc<str>,
    /// The pod's name.
    pub pod_name: Arc<str>,
    /// The container's name in the pod's spec.
    pub name: Arc<str>,
    /// 0 for the first container of this name, one more at each restart.
    pub attempt: u32,
    /// When the runtime made it.
    pub created_at: Timestamp,
    /// What it does.
    pub state: ListedState,
}

/// What a container does, without the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedState {
    /// Made, not started.
    Created,
    /// Started.
    Running,
    /// Ended.
    Exited,
    /// The runtime does not know.
    Unknown,
}

/// What only the status of a container tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Details {
    pub(crate) state: ListedState,
    pub(crate) started_at: Timestamp,
    pub(crate) exit_code: i32,
}

/// Where a sandbox can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Network {
    /// It lives in the node's network namespace: its addresses are the node's.
    Node,
    /// It has addresses of its own; none while the network is not set up.
    Own(Vec<IpAddr>),
}

/// The container runtime. Clones share one connection.
#[derive(Debug, Clone)]
pub struct Runtime {
    endpoint: Arc<str>,
    channel: Channel,
}

/// A channel whose answers are cut on the way.
type AbridgedChannel = MapResponse<Channel, fn(http::Response<Body>) -> http::Response<Body>>;

impl Runtime {
    /// A client for the socket at `endpoint`: `unix:///path` or an absolute path. Nothing is dialled yet,
    /// so the runtime need not be there. Must be called within a Tokio runtime.
    pub fn connect(endpoint: &str) -> Result<Self, Error> {
        let refused = || Error::Endpoint {
            endpoint: endpoint.to_owned(),
        };
        let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
        if !Path::new(path).is_absolute() || path.ends_with('/') {
            return Err(refused());
        }
        let endpoint: Arc<str> = path.into();
        let socket = endpoint.clone();
        let channel = Endpoint::from_shared(format!("unix://{path}"))
            .map_err(|_| refused())?
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // Late answers to calls given up count as the peer's errors; this peer is trusted, and patience is our part.
            .http2_max_local_error_reset_streams(None)
            .connect_with_connector_lazy(service_fn(move |_: Uri| {
                let socket = socket.clone();
                async move { RuntimeSocket::connect(&socket).await.map(TokioIo::new) }
            }));
        Ok(Self { endpoint, channel })
    }

    /// Which runtime answers.
    pub async fn version(&self) -> Result<Version, Error> {
        let mut client = self.client();
        // The kubelet's own words for "any version of CRI v1".
        let request = wire::VersionRequest {
            version: "0.1.0".to_owned(),
        };
        let answer = self
            .answer("Version", NODE_LIMIT, client.version(request))
            .await?;
        Ok(Version {
            name: answer.runtime_name,
            version: answer.runtime_version,
            api: answer.runtime_api_version,
        })
    }

    /// All containers of all pods on this node, in every state. Containers that no kubelet made (they lack its labels) are left out.
    pub async fn list_containers(&self) -> Result<Vec<Listed>, Error> {
        let containers = self.list().await?;
        Ok(containers.iter().filter_map(listed).collect())
    }

    /// Likewise, as the runtime says it.
    pub(crate) async fn list(&self) -> Result<Vec<wire::Container>, Error> {
        let mut client = self.client();
        let request = wire::ListContainersRequest {};
        let answer = self
            .answer(
                "ListContainers",
                NODE_LIMIT,
                client.list_containers(request),
            )
            .await?;
        Ok(answer.containers)
    }

    pub(crate) async fn container_status(&self, id: &str) -> Result<Details, Error> {
        let mut client = self.client();
        let request = wire::ContainerStatusRequest {
            container_id: id.to_owned(),
        };
        let call = format!("ContainerStatus of {id}");
        let answer = self
            .answer(&call, OBJECT_LIMIT, client.container_status(request))
            .await?;
        let status = answer.status.unwrap_or_default();
        Ok(Details {
            state: state(status.state()),
            started_at: timestamp(status.started_at),
            exit_code: status.exit_code,
        })
    }

    pub(crate) async fn sandbox_network(&self, id: &str) -> Result<Network, Error> {
        let mut client = self.client();
        let request = wire::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let call = format!("PodSandboxStatus of {id}");
        let answer = self
            .answer(&call, OBJECT_LIMIT, client.pod_sandbox_status(request))
            .await?;
        Ok(network(answer.status.unwrap_or_default()))
    }

    fn client(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// For `ExecSync` alone.
    pub(crate) fn abridged(&self) -> RuntimeServiceClient<AbridgedChannel> {
        RuntimeServiceClient::new(self.channel.clone().map_response(abridge))
    }

    async fn answer<T>(
        &self,
        call: &str,
        limit: Duration,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.refusal(call, &status)),
            Err(_) => Err(Error::Late {
                endpoint: self.endpoint.clone(),
                call: call.to_owned(),
                limit,
            }),
        }
    }

    fn refusal(&self, call: &str, status: &Status) -> Error {
        let (call, message) = (call.to_owned(), status.message().to_owned());
        match status.code() {
            _ if is_transport(status) => Error::Unreachable {
                endpoint: self.endpoint.clone(),
                reason: message,
            },
            Code::NotFound => Error::NotFound { call, message },
            code => Error::Refused {
                call,
                code,
                message,
            },
        }
    }
}

fn abridge(response: http::Response<Body>) -> http::Response<Body> {
    let mut abridged = Abridged::default();
    response.map(|body| {
        Body::new(body.map_frame(move |frame| frame.map_data(|piece| abridged.push(&piece))))
    })
}

/// Whether the transport rather than the runtime made this status: only its statuses have a source.
pub(crate) fn is_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
        || matches!(status.code(), Code::Unavailable | Code::Cancelled)
}

/// What is read of a container; `None` when no kubelet made it.
pub(crate) fn listed(container: &wire::Container) -> Option<Listed> {
    let [mut uid, mut namespace, mut pod, mut name] = [const { None }; 4];
    for entry in &container.labels {
        let label = wire::Label::decode(entry.clone()).ok()?;
        let place = match &*label.key {
            b"io.kubernetes.pod.uid" => &mut uid,
            b"io.kubernetes.pod.namespace" => &mut namespace,
            b"io.kubernetes.pod.name" => &mut pod,
            b"io.kubernetes.container.name" => &mut name,
            _ => continue,
        };
        *place = text(&label.value).filter(|value| !value.is_empty());
    }
    Some(Listed {
        pod_uid: uid?.into(),
        pod_namespace: namespace?.into(),
        pod_name: pod?.into(),
        name: name?.into(),
        id: text(&container.id)?.into(),
        sandbox: text(&container.pod_sandbox_id)?.into(),
        attempt: container.metadata.map_or(0, |metadata| metadata.attempt),
        created_at: timestamp(container.created_at),
        state: state(container.state()),
    })
}

/// The name of a container, by which it is known.
pub(crate) fn id(container: &wire::Container) -> Option<&str> {
    std::str::from_utf8(&container.id).ok()
}

fn text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

pub(crate) fn state(state: wire::ContainerState) -> ListedState {
    match state {
        wire::ContainerState::ContainerCreated => ListedState::Created,
        wire::ContainerState::ContainerRunning => ListedState::Running,
        wire::ContainerState::ContainerExited => ListedState::Exited,
        wire::ContainerState::ContainerUnknown => ListedState::Unknown,
    }
}

fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into())
        .expect("292 years around the epoch fit into a timestamp")
}

fn network(status: wire::PodSandboxStatus) -> Network {
    let options = status
        .linux
        .and_then(|linux| linux.namespaces)
        .and_then(|namespaces| namespaces.options);
    if options.is_some_and(|options| options.network() == wire::NamespaceMode::Node) {
        return Network::Node;
    }
    let network = status.network.unwrap_or_default();
    let texts =
        std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|more| more.ip));
    Network::Own(texts.filter_map(|text| text.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fake::{Fake, within};

    #[rstest]
    #[case(
        "unix:///run/containerd/containerd.sock",
        Some("/run/containerd/containerd.sock")
    )]
    #[case("/run/crio/crio.sock", Some("/run/crio/crio.sock"))]
    #[case("unix:///run/with a space.sock", Some("/run/with a space.sock"))]
    #[case("", None)]
    #[case("unix://", None)]
    #[case("unix:///", None)]
    #[case("run/containerd.sock", None)]
    #[case("tcp://127.0.0.1:1234", None)]
    #[case("http://127.0.0.1", None)]
    #[tokio::test]
    async fn an_endpoint_is_a_unix_socket(#[case] endpoint: &str, #[case] path: Option<&str>) {
        match Runtime::connect(endpoint) {
            Ok(runtime) => assert_eq!(Some(&*runtime.endpoint), path),
            Err(error) => {
                assert_eq!(path, None);
                assert!(matches!(error, Error::Endpoint { .. }));
            }
        }
    }

    #[tokio::test]
    async fn says_which_runtime_it_is_and_who_is_missing() {
        let mut fake = Fake::start();
        let runtime = fake.client();
        assert_eq!(
            runtime.version().await.unwrap().to_string(),
            "fake v1.2.3 (CRI v1)"
        );
        fake.vanish();
        within(async { while runtime.version().await.is_ok() {} }).await;
        let error = runtime.version().await.unwrap_err().to_string();
        assert!(
            error.contains(fake.socket().to_str().unwrap()) && error.contains("No such file"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn containers_that_no_kubelet_made_are_left_out() {
        let fake = Fake::start();
        let id = fake
            .world()
            .container("a", "main", 2, wire::ContainerState::ContainerRunning);
        fake.world().containers.push(wire::Container {
            id: "stranger".into(),
            ..wire::Container::default()
        });
        let listed = fake.client().list_containers().await.unwrap();
        let [
            Listed {
                id: seen,
                sandbox,
                pod_uid,
                name,
                attempt,
                state,
                ..
            },
        ] = listed.as_slice()
        else {
            panic!("{listed:?}")
        };
        assert_eq!(
            (&**seen, &**sandbox, &**pod_uid, &**name),
            (&*id, "a-sandbox", "a", "main")
        );
        assert_eq!((*attempt, *state), (2, ListedState::Running));
    }
}
