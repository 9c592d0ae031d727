//! A runtime whose clients call it without a socket, in tasks of their own: a simulation has neither sockets nor threads.
//! The messages are those of the wire, without HTTP/2 around them.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::transport::{self, Channel};
use tower::util::{Either, MapErr};
use tower::{Service, ServiceExt};

use super::{FakeWorld, SharedWorld};
use crate::wire::runtime_service_server::RuntimeServiceServer;

/// Why a call reaches no runtime.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error(transparent)]
    Socket(#[from] transport::Error),
    #[error("the runtime is away")]
    Away,
}

/// A channel of either kind.
pub(crate) type EitherChannel =
    Either<MapErr<Channel, fn(transport::Error) -> ChannelError>, InMemory>;

/// A channel over a socket.
pub(crate) fn over_socket(channel: Channel) -> EitherChannel {
    let to_error: fn(transport::Error) -> ChannelError = Into::into;
    Either::Left(channel.map_err(to_error))
}

/// A runtime in memory. Clones are the same one.
#[derive(Clone, Default)]
pub struct InMemoryRuntime(InMemory);

#[derive(Clone, Default)]
pub(crate) struct InMemory {
    world: SharedWorld,
    is_away: Arc<watch::Sender<bool>>,
}

impl InMemoryRuntime {
    /// A client of it.
    pub fn new_client(&self) -> crate::Runtime {
        crate::Runtime::in_memory(Either::Right(self.0.clone()))
    }

    /// Locks the world that the runtime answers from.
    pub fn lock_world(&self) -> MutexGuard<'_, FakeWorld> {
        self.0.world.lock_world()
    }

    /// Ends as a killed process does: calls that wait for an answer break, and no other reaches it.
    pub fn vanish(&self) {
        self.0.is_away.send_replace(true);
    }

    /// Begins to answer.
    pub fn come_back(&self) {
        self.0.is_away.send_replace(false);
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory").finish_non_exhaustive()
    }
}

impl Service<http::Request<Body>> for InMemory {
    type Response = http::Response<Body>;
    type Error = ChannelError;
    type Future = BoxFuture<'static, Result<http::Response<Body>, ChannelError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ChannelError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = RuntimeServiceServer::new(self.world.clone());
        let mut service = service.max_encoding_message_size(usize::MAX);
        let mut is_away = self.is_away.subscribe();
        async move {
            tokio::select! {
                // First: what is away answers nothing. It is never ready before that.
                biased;
                _ = is_away.wait_for(|is_away| *is_away) => Err(ChannelError::Away),
                Ok::<_, Infallible>(answer) = service.call(request) => Ok(answer),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leadsman_probe::{Exec, ExecError};

    use super::*;
    use crate::fake::{FakePod, ScriptedAnswer, exec_response};
    use crate::wire::{self, ContainerState};
    use crate::{Error, PodLabels, View};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_lists_runs_commands_and_vanishes_as_one_on_a_socket_does() {
        let runtime = InMemoryRuntime::default();
        let pod = FakePod {
            namespace: "shop",
            name: "cart",
            uid: "u",
        };
        let times = (ContainerState::ContainerRunning, 1, 2);
        let id = runtime.lock_world().set_container_of(pod, "main", 0, times);
        let network = wire::NamespaceMode::Pod;
        runtime
            .lock_world()
            .set_network("u", &["192.0.2.7"], network);
        runtime.lock_world().answer_exec = Some(Box::new(|request| match &*request.cmd[0] {
            "hang" => ScriptedAnswer::Never,
            "slow" => ScriptedAnswer::After(SECOND / 2, exec_response(0, "late")),
            command => ScriptedAnswer::Ok(exec_response(3, command.to_owned())),
        }));
        let client = runtime.new_client();
        let mut view = View::new(client.clone());
        view.refresh_wanted(|uid| uid == "u").await.unwrap();
        let labels = PodLabels {
            namespace: "shop",
            name: "cart",
            uid: "u",
        };
        let containers = view.current_containers();
        assert_eq!(*containers.get(labels, "main").unwrap().id, id);

        let exec = async |command: &str| client.exec(&id, &[command.to_owned()], SECOND).await;
        let ran = exec("here").await.unwrap();
        assert_eq!((ran.exit_code, &*ran.stdout), (3, &b"here"[..]));
        assert_eq!(&*exec("slow").await.unwrap().stdout, b"late");
        let hung = tokio::time::timeout(2 * SECOND, exec("hang")).await;
        assert!(hung.is_err(), "{hung:?}");

        runtime.vanish();
        let away = view.refresh_wanted(|_| true).await;
        assert!(matches!(away, Err(Error::Unreachable { .. })), "{away:?}");
        assert!(matches!(exec("here").await, Err(ExecError::Runtime(_))));
        runtime.come_back();
        exec("here").await.unwrap();
    }
}
