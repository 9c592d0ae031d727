//! Running out of file descriptors is our trouble, not the probe's failure. Alone in its process, since the limit is the
//! process's.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::fd::AsRawFd;
use std::time::Duration;

use leadsman_core::podprobe::{CannotProbe, Handler, HttpGet, Scheme};
use leadsman_probe::{Exec, ExecError, Execution, ProbeTarget};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

struct NoRuntime;

impl Exec for NoRuntime {
    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Execution, ExecError> {
        Err(ExecError::Runtime("not asked".to_owned()))
    }
}

// PRB-13
#[tokio::test]
async fn without_descriptors_nothing_can_be_probed() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    // The lowest free descriptor is the first that is refused.
    let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    setrlimit(Resource::RLIMIT_NOFILE, free.try_into().unwrap(), most).unwrap();

    // Of a documentation range, and never reached.
    let address: SocketAddr = "192.0.2.1:80".parse().unwrap();
    let target = ProbeTarget::new(&[address.ip()], "container");
    let port = NonZeroU16::new(address.port()).unwrap();
    let handlers = [
        Handler::TcpSocket { port },
        Handler::HttpGet(HttpGet {
            scheme: Scheme::Http,
            port,
            path: "/".to_owned(),
            headers: Vec::new(),
        }),
        Handler::Grpc {
            port,
            service: String::new(),
            over_tls: true,
        },
    ];
    for handler in handlers {
        let result =
            leadsman_probe::run_probe(&handler, &target, Duration::from_secs(9), &NoRuntime);
        let Err(CannotProbe::Local(message)) = result.await else {
            panic!("{handler:?} was run");
        };
        assert_eq!(message, "Too many open files");
    }
}
