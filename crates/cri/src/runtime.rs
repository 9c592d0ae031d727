//! The calls, over one channel to the runtime's unix socket. Clones share it; it connects on first use and again whenever the
//! runtime comes back. Each call has a deadline, so that a runtime that hangs holds up nobody for longer.

use std::{fmt, future::Future, net::IpAddr, path::Path, sync::Arc, time::Duration};

use http::Uri;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use prost::Message;
#[cfg(not(any(test, feature = "fake")))]
use tonic::transport::Channel;
use tonic::{Code, Response, Status, body::Body, transport::Endpoint};
use tower::{ServiceExt, service_fn, util::MapResponse};

use crate::{
    exec_output::OutputLimiter,
    socket::RuntimeSocket,
    wire::{self, runtime_service_client::RuntimeServiceClient},
};

/// The largest reply accepted: what runtimes allow (`maxMsgSize` in `k8s.io/cri-client`).
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// The deadline of a call about the whole node.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
/// The deadline of a call about one container or sandbox, which the runtime answers from memory.
const OBJECT_DEADLINE: Duration = Duration::from_secs(2);
/// Flow control windows (RFC 9113, section 5.2): bytes that the runtime may send before they are read, per call and in all.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Why a call to the runtime failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint is not a unix socket.
    #[error(
        "{endpoint:?} is not an endpoint of a container runtime: give unix:///path or an absolute path"
    )]
    Endpoint {
        /// The endpoint as it was given.
        endpoint: String,
    },
    /// Nobody listens at the socket, or the connection failed. The next call connects again.
    #[error("the container runtime at {endpoint} cannot be reached: {reason}")]
    Unreachable {
        /// The socket.
        endpoint: Arc<str>,
        /// The message of the transport.
        reason: String,
    },
    /// The runtime did not reply in time.
    #[error("the container runtime at {endpoint} did not reply to {call} within {} s", deadline.as_secs())]
    TimedOut {
        /// The socket.
        endpoint: Arc<str>,
        /// The call, by its CRI name, and what it was about.
        call: String,
        /// The deadline.
        deadline: Duration,
    },
    /// The object does not exist, or not any more.
    #[error("the container runtime replied to {call}: not found: {message}")]
    NotFound {
        /// The call, by its CRI name, and what it was about.
        call: String,
        /// The runtime's message.
        message: String,
    },
    /// The runtime replied with another error.
    #[error("the container runtime replied to {call}: {code:?}: {message}")]
    Refused {
        /// The call, by its CRI name, and what it was about.
        call: String,
        /// The gRPC code.
        code: Code,
        /// The runtime's message.
        message: String,
    },
}

/// Name and version of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// The runtime's name, such as `containerd`.
    pub name: String,
    /// The runtime's own version.
    pub version: String,
    /// The version of the interface it speaks, as `v1`.
    pub api: String,
}

impl fmt::Display for RuntimeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (CRI {})", self.name, self.version, self.api)
    }
}

/// A container as `ListContainers` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedContainer {
    /// The runtime's id, without a scheme.
    pub(crate) id: Arc<str>,
    /// The id of its sandbox.
    pub(crate) sandbox: Arc<str>,
    /// The pod's uid as the kubelet labels it. For a static pod that is not the uid of its mirror in the API.
    pub(crate) pod_uid: Arc<str>,
    /// The pod's namespace.
    pub(crate) pod_namespace: Arc<str>,
    /// The pod's name.
    pub(crate) pod_name: Arc<str>,
    /// The container's name in the pod's spec.
    pub(crate) name: Arc<str>,
    /// 0 for the first container of this name, one more at each restart.
    pub(crate) attempt: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) state: ListedState,
}

/// The state of a container, without details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListedState {
    /// Created, not started.
    Created,
    /// Running.
    Running,
    /// Exited.
    Exited,
    /// Unknown to the runtime.
    Unknown,
}

/// The part of a container's state that only `ContainerStatus` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContainerDetails {
    pub(crate) state: ListedState,
    pub(crate) started_at: Timestamp,
    pub(crate) exit_code: i32,
}

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Network {
    /// The node's network namespace: its addresses are the node's.
    Node,
    /// A network namespace with these addresses; none while it is not set up.
    Own(Vec<IpAddr>),
}

/// The container runtime. Clones share one connection.
#[derive(Debug, Clone)]
pub struct Runtime {
    endpoint: Arc<str>,
    channel: RuntimeChannel,
}

/// A channel whose replies to `ExecSync` are truncated while they arrive.
type LimitedChannel = MapResponse<RuntimeChannel, fn(http::Response<Body>) -> http::Response<Body>>;

#[cfg(not(any(test, feature = "fake")))]
type RuntimeChannel = Channel;
#[cfg(any(test, feature = "fake"))]
type RuntimeChannel = crate::fake::EitherChannel;

impl Runtime {
    /// A client for the socket at `endpoint`: `unix:///path` or an absolute path. It connects with the first
    /// call, so the runtime need not run yet. Must be called within a Tokio runtime.
    pub fn connect_lazily(endpoint: &str) -> Result<Self, Error> {
        let refused = || Error::Endpoint {
            endpoint: endpoint.to_owned(),
        };
        // Both forms are accepted: that of the kubelet's `--container-runtime-endpoint`, and a path
        // as people type it.
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
            // Replies to calls that were given up count as errors of the peer, and h2 closes the connection after 1,024 of
            // them (RUSTSEC-2024-0003); this peer is trusted.
            .http2_max_local_error_reset_streams(None)
            .connect_with_connector_lazy(service_fn(move |_: Uri| {
                let socket = socket.clone();
                async move { RuntimeSocket::connect(&socket).await.map(TokioIo::new) }
            }));
        #[cfg(any(test, feature = "fake"))]
        let channel = crate::fake::over_socket(channel);
        Ok(Self { endpoint, channel })
    }

    /// A client that calls a stand-in without a socket.
    #[cfg(any(test, feature = "fake"))]
    pub(crate) fn in_memory(channel: RuntimeChannel) -> Self {
        Self {
            endpoint: "in memory".into(),
            channel,
        }
    }

    /// Asks for name and version.
    pub async fn read_version(&self) -> Result<RuntimeVersion, Error> {
        let mut client = self.client();
        // The kubelet sends the same (`kubeRuntimeAPIVersion`,
        // `pkg/kubelet/kuberuntime/kuberuntime_manager.go`).
        let request = wire::VersionRequest {
            version: "0.1.0".to_owned(),
        };
        let reply = self
            .await_reply("Version", NODE_DEADLINE, client.version(request))
            .await?;
        Ok(RuntimeVersion {
            name: reply.runtime_name,
            version: reply.runtime_version,
            api: reply.runtime_api_version,
        })
    }

    /// All containers on this node, in every state, as the runtime sends them.
    pub(crate) async fn list_containers(&self) -> Result<Vec<wire::Container>, Error> {
        let mut client = self.client();
        let request = wire::ListContainersRequest {};
        let reply = self
            .await_reply(
                "ListContainers",
                NODE_DEADLINE,
                client.list_containers(request),
            )
            .await?;
        Ok(reply.containers)
    }

    pub(crate) async fn container_status(&self, id: &str) -> Result<ContainerDetails, Error> {
        let mut client = self.client();
        let request = wire::ContainerStatusRequest {
            container_id: id.to_owned(),
        };
        let call = format!("ContainerStatus of {id}");
        let reply = self
            .await_reply(&call, OBJECT_DEADLINE, client.container_status(request))
            .await?;
        let status = reply.status.unwrap_or_default();
        Ok(ContainerDetails {
            state: to_listed_state(status.state()),
            started_at: to_timestamp(status.started_at),
            exit_code: status.exit_code,
        })
    }

    pub(crate) async fn sandbox_network(&self, id: &str) -> Result<Network, Error> {
        let mut client = self.client();
        let request = wire::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
        };
        let call = format!("PodSandboxStatus of {id}");
        let reply = self
            .await_reply(&call, OBJECT_DEADLINE, client.pod_sandbox_status(request))
            .await?;
        Ok(to_network(reply.status.unwrap_or_default()))
    }

    fn client(&self) -> RuntimeServiceClient<RuntimeChannel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The client for `ExecSync`.
    pub(crate) fn exec_client(&self) -> RuntimeServiceClient<LimitedChannel> {
        RuntimeServiceClient::new(self.channel.clone().map_response(limit_output))
    }

    async fn await_reply<T>(
        &self,
        call: &str,
        deadline: Duration,
        reply: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(deadline, reply).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.call_error(call, &status)),
            Err(_) => Err(Error::TimedOut {
                endpoint: self.endpoint.clone(),
                call: call.to_owned(),
                deadline,
            }),
        }
    }

    fn call_error(&self, call: &str, status: &Status) -> Error {
        let (call, message) = (call.to_owned(), status.message().to_owned());
        match status.code() {
            // First: the transport gives its own errors the codes of gRPC as well.
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

fn limit_output(response: http::Response<Body>) -> http::Response<Body> {
    let mut limiter = OutputLimiter::default();
    response.map(|body| {
        Body::new(body.map_frame(move |frame| frame.map_data(|piece| limiter.limit_piece(&piece))))
    })
}

/// Whether this status comes from the transport rather than the runtime: only those of the transport have a source.
pub(crate) fn is_transport(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
        || matches!(status.code(), Code::Unavailable | Code::Cancelled)
}

/// Reads a container; none without the kubelet's labels (`k8s.io/kubelet/pkg/types/labels.go`).
pub(crate) fn to_listed(container: &wire::Container) -> Option<ListedContainer> {
    let [mut uid, mut namespace, mut pod, mut name] = [const { None }; 4];
    for entry in &container.labels {
        let label = wire::Label::decode(entry.clone()).ok()?;
        let field = match &*label.key {
            b"io.kubernetes.pod.uid" => &mut uid,
            b"io.kubernetes.pod.namespace" => &mut namespace,
            b"io.kubernetes.pod.name" => &mut pod,
            b"io.kubernetes.container.name" => &mut name,
            _ => continue,
        };
        *field = to_text(&label.value).filter(|value| !value.is_empty());
    }
    Some(ListedContainer {
        pod_uid: uid?.into(),
        pod_namespace: namespace?.into(),
        pod_name: pod?.into(),
        name: name?.into(),
        id: to_text(&container.id)?.into(),
        sandbox: to_text(&container.pod_sandbox_id)?.into(),
        attempt: container.metadata.map_or(0, |metadata| metadata.attempt),
        created_at: to_timestamp(container.created_at),
        state: to_listed_state(container.state()),
    })
}

/// The id of a container.
pub(crate) fn container_id(container: &wire::Container) -> Option<&str> {
    std::str::from_utf8(&container.id).ok()
}

fn to_text(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

pub(crate) fn to_listed_state(state: wire::ContainerState) -> ListedState {
    match state {
        wire::ContainerState::ContainerCreated => ListedState::Created,
        wire::ContainerState::ContainerRunning => ListedState::Running,
        wire::ContainerState::ContainerExited => ListedState::Exited,
        wire::ContainerState::ContainerUnknown => ListedState::Unknown,
    }
}

fn to_timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into())
        .expect("292 years around the epoch fit into a timestamp")
}

fn to_network(status: wire::PodSandboxStatus) -> Network {
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
    use crate::fake::{Fake, within_deadline};

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
        match Runtime::connect_lazily(endpoint) {
            Ok(runtime) => assert_eq!(Some(&*runtime.endpoint), path),
            Err(error) => {
                assert_eq!(path, None);
                assert!(matches!(error, Error::Endpoint { .. }));
            }
        }
    }

    #[tokio::test]
    async fn the_version_names_the_runtime_and_its_absence_the_socket() {
        let mut fake = Fake::start();
        let runtime = fake.new_client();
        assert_eq!(
            runtime.read_version().await.unwrap().to_string(),
            "fake v1.2.3 (CRI v1)"
        );
        fake.vanish();
        within_deadline(async { while runtime.read_version().await.is_ok() {} }).await;
        let error = runtime.read_version().await.unwrap_err().to_string();
        assert!(
            error.contains(fake.socket_path().to_str().unwrap()) && error.contains("No such file"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn containers_without_the_kubelets_labels_are_left_out() {
        let fake = Fake::start();
        let id =
            fake.lock_world()
                .set_container("a", "main", 2, wire::ContainerState::ContainerRunning);
        fake.lock_world().containers.push(wire::Container {
            id: "stranger".into(),
            ..wire::Container::default()
        });
        let containers = fake.new_client().list_containers().await.unwrap();
        let listed: Vec<_> = containers.iter().filter_map(to_listed).collect();
        let [
            ListedContainer {
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
