//! A container runtime to test against, on a socket of its own or in memory ([`InMemoryRuntime`]): it answers what the test
//! puts in, keeps a record of the calls, and can hang, vanish and come back.
#![allow(
    clippy::unwrap_used,
    reason = "it is for tests, of this crate and of others"
)]

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

mod in_memory;

pub use in_memory::InMemoryRuntime;
pub(crate) use in_memory::{EitherChannel, over_socket};
use prost::{Message, bytes::Bytes};
use tonic::{Request, Response, Status};

use crate::wire::{
    self, ContainerState,
    runtime_service_server::{RuntimeService, RuntimeServiceServer},
};

/// Waits for an event that must come, and soon.
pub async fn within_deadline<T>(event: impl Future<Output = T>) -> T {
    let deadline = Duration::from_secs(20);
    tokio::time::timeout(deadline, event)
        .await
        .expect("in time")
}

/// The runtime's answer about one object or command.
#[derive(Clone)]
pub enum ScriptedAnswer<T> {
    /// The answer, at once.
    Ok(T),
    /// An error, at once.
    Err(Status),
    /// Nothing: the call hangs.
    Never,
    /// The answer, after a time.
    After(Duration, T),
}

impl<T> ScriptedAnswer<T> {
    async fn into_response(self) -> Result<Response<T>, Status> {
        match self {
            Self::Ok(answer) => Ok(Response::new(answer)),
            Self::Err(status) => Err(status),
            Self::Never => std::future::pending().await,
            Self::After(delay, answer) => {
                tokio::time::sleep(delay).await;
                Ok(Response::new(answer))
            }
        }
    }
}

/// Answers commands, each with its container. [`exec_response`] makes an answer.
pub type ExecScript =
    Box<dyn FnMut(&wire::ExecSyncRequest) -> ScriptedAnswer<wire::ExecSyncResponse> + Send>;

/// The answer to a command that has ended.
pub fn exec_response(exit_code: i32, stdout: impl Into<Vec<u8>>) -> wire::ExecSyncResponse {
    wire::ExecSyncResponse {
        exit_code,
        stdout: stdout.into().into(),
        ..wire::ExecSyncResponse::default()
    }
}

/// A pod of containers, as the kubelet labels them.
#[derive(Clone, Copy)]
pub struct FakePod<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The pod's name.
    pub name: &'a str,
    /// The pod's uid.
    pub uid: &'a str,
}

/// The runtime's world.
#[derive(Default)]
pub struct FakeWorld {
    /// The containers that are listed.
    pub containers: Vec<wire::Container>,
    /// The statuses, by container id.
    pub statuses: HashMap<String, ScriptedAnswer<wire::ContainerStatusResponse>>,
    /// The sandboxes' statuses, by sandbox id.
    pub sandboxes: HashMap<String, ScriptedAnswer<wire::PodSandboxStatusResponse>>,
    /// The answer to every command. `None` means that no container exists.
    pub exec: Option<ScriptedAnswer<wire::ExecSyncResponse>>,
    /// The answer to a command, instead of `exec`.
    pub answer_exec: Option<ExecScript>,
    /// The calls by name and object, oldest first.
    pub calls: Vec<String>,
    /// The commands that were run, oldest first.
    pub execs: Vec<wire::ExecSyncRequest>,
}

impl FakeWorld {
    /// Adds a container of pod `default/web`, or changes it; `pod` is the pod's uid, the container's id is `pod-name-attempt`, its sandbox `pod-sandbox`.
    pub fn set_container(
        &mut self,
        pod: &str,
        name: &str,
        attempt: u32,
        state: ContainerState,
    ) -> String {
        let pod = FakePod {
            namespace: "default",
            name: "web",
            uid: pod,
        };
        self.set_container_of(pod, name, attempt, (state, 1_000_000_000, 2_000_000_000))
    }

    /// Adds a container of a pod, or changes it; its id is `uid-name-attempt`, its sandbox `uid-sandbox`. The times are those of
    /// its creation and start in nanoseconds.
    pub fn set_container_of(
        &mut self,
        pod: FakePod<'_>,
        name: &str,
        attempt: u32,
        (state, created_at, started_at): (ContainerState, i64, i64),
    ) -> String {
        let uid = pod.uid;
        let id = format!("{uid}-{name}-{attempt}");
        let labels = [
            ("pod.uid", uid),
            ("pod.namespace", pod.namespace),
            ("pod.name", pod.name),
            ("container.name", name),
        ];
        self.remove_container(&id);
        self.containers.push(wire::Container {
            id: id.clone().into(),
            pod_sandbox_id: format!("{uid}-sandbox").into(),
            metadata: Some(wire::ContainerMetadata { attempt }),
            state: state.into(),
            created_at,
            labels: labels.map(|(key, value)| encode_label(key, value)).into(),
        });
        let status = wire::ContainerStatus {
            id: id.clone(),
            state: state.into(),
            started_at,
            exit_code: 3,
        };
        self.statuses.insert(
            id.clone(),
            ScriptedAnswer::Ok(wire::ContainerStatusResponse {
                status: Some(status),
            }),
        );
        id
    }

    /// Takes a container away.
    pub fn remove_container(&mut self, id: &str) {
        self.containers.retain(|container| container.id != id);
        self.statuses.remove(id);
    }

    /// Gives a pod's sandbox its addresses.
    pub fn set_network(&mut self, pod: &str, addresses: &[&str], mode: wire::NamespaceMode) {
        let mut ips = addresses.iter().map(ToString::to_string);
        let ip = ips.next().unwrap_or_default();
        let options = wire::NamespaceOption {
            network: mode.into(),
        };
        let id = format!("{pod}-sandbox");
        let status = wire::PodSandboxStatus {
            id: id.clone(),
            network: Some(wire::PodSandboxNetworkStatus {
                ip,
                additional_ips: ips.map(|ip| wire::PodIp { ip }).collect(),
            }),
            linux: Some(wire::LinuxPodSandboxStatus {
                namespaces: Some(wire::Namespace {
                    options: Some(options),
                }),
            }),
        };
        self.sandboxes.insert(
            id,
            ScriptedAnswer::Ok(wire::PodSandboxStatusResponse {
                status: Some(status),
            }),
        );
    }

    /// The calls since the last time, sorted.
    pub fn take_calls(&mut self) -> Vec<String> {
        let mut calls = std::mem::take(&mut self.calls);
        calls.sort();
        calls
    }
}

/// The runtime: its socket and, while it runs, its threads.
pub struct Fake {
    world: SharedWorld,
    folder: tempfile::TempDir,
    threads: Option<tokio::runtime::Runtime>,
}

#[derive(Clone, Default)]
struct SharedWorld(Arc<Mutex<FakeWorld>>);

impl SharedWorld {
    fn lock_world(&self) -> MutexGuard<'_, FakeWorld> {
        self.0.lock().unwrap()
    }
}

impl Fake {
    /// A runtime that runs.
    pub fn start() -> Self {
        let mut fake = Self {
            world: SharedWorld::default(),
            folder: tempfile::tempdir().unwrap(),
            threads: None,
        };
        fake.come_back();
        fake
    }

    /// The socket's path.
    pub fn socket_path(&self) -> PathBuf {
        self.folder.path().join("cri.sock")
    }

    /// A client of it.
    pub fn new_client(&self) -> crate::Runtime {
        crate::Runtime::connect_lazily(self.socket_path().to_str().unwrap()).unwrap()
    }

    /// Locks the world that the runtime answers from.
    pub fn lock_world(&self) -> MutexGuard<'_, FakeWorld> {
        self.world.lock_world()
    }

    /// Ends as a killed process does: connections break, the socket's file is gone.
    pub fn vanish(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
        let _ = std::fs::remove_file(self.socket_path());
    }

    /// Begins to answer, as a runtime that has just started does.
    pub fn come_back(&mut self) {
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = listen_on_socket(&threads, &self.socket_path());
        let incoming = futures::stream::try_unfold(listener, |listener| async move {
            let (stream, _) = listener.accept().await?;
            Ok::<_, std::io::Error>(Some((stream, listener)))
        });
        let service =
            RuntimeServiceServer::new(self.world.clone()).max_encoding_message_size(usize::MAX);
        threads.spawn(tonic::transport::Server::builder().serve_with_incoming(service, incoming));
        self.threads = Some(threads);
    }
}

/// A label as it is on the wire.
fn encode_label(key: &str, value: &str) -> Bytes {
    let label = wire::Label {
        key: format!("io.kubernetes.{key}").into(),
        value: value.to_owned().into(),
    };
    label.encode_to_vec().into()
}

fn listen_on_socket(threads: &tokio::runtime::Runtime, socket: &Path) -> tokio::net::UnixListener {
    let _context = threads.enter();
    tokio::net::UnixListener::bind(socket).unwrap()
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.vanish();
    }
}

#[tonic::async_trait]
impl RuntimeService for SharedWorld {
    async fn version(
        &self,
        _: Request<wire::VersionRequest>,
    ) -> Result<Response<wire::VersionResponse>, Status> {
        Ok(Response::new(wire::VersionResponse {
            version: "0.1.0".to_owned(),
            runtime_name: "fake".to_owned(),
            runtime_version: "v1.2.3".to_owned(),
            runtime_api_version: "v1".to_owned(),
        }))
    }

    async fn list_containers(
        &self,
        _: Request<wire::ListContainersRequest>,
    ) -> Result<Response<wire::ListContainersResponse>, Status> {
        let mut world = self.lock_world();
        world.calls.push("ListContainers".to_owned());
        Ok(Response::new(wire::ListContainersResponse {
            containers: world.containers.clone(),
        }))
    }

    async fn container_status(
        &self,
        request: Request<wire::ContainerStatusRequest>,
    ) -> Result<Response<wire::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        let answer = {
            let mut world = self.lock_world();
            world.calls.push(format!("ContainerStatus {id}"));
            world.statuses.get(&id).cloned()
        };
        answer
            .unwrap_or_else(|| ScriptedAnswer::Err(Status::not_found("no such container")))
            .into_response()
            .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<wire::PodSandboxStatusRequest>,
    ) -> Result<Response<wire::PodSandboxStatusResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let answer = {
            let mut world = self.lock_world();
            world.calls.push(format!("PodSandboxStatus {id}"));
            world.sandboxes.get(&id).cloned()
        };
        answer
            .unwrap_or_else(|| ScriptedAnswer::Err(Status::not_found("no such sandbox")))
            .into_response()
            .await
    }

    async fn exec_sync(
        &self,
        request: Request<wire::ExecSyncRequest>,
    ) -> Result<Response<wire::ExecSyncResponse>, Status> {
        let answer = {
            let mut world = self.lock_world();
            let request = request.into_inner();
            let world = &mut *world;
            let scripted = world.answer_exec.as_mut().map(|answer| answer(&request));
            world.execs.push(request);
            scripted.or_else(|| world.exec.clone())
        };
        answer
            .unwrap_or_else(|| ScriptedAnswer::Err(Status::not_found("no such container")))
            .into_response()
            .await
    }
}
