//! The target's answers, asked as a prober would: over gRPC, over HTTP, over TCP.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use h2::client;
use http::Request;
use tokio::net::TcpStream;

type Outcome = Result<(), Box<dyn Error>>;

const TARGET: &str = env!("CARGO_BIN_EXE_leadsman-target");

struct Target {
    process: Child,
    http: u16,
    tcp: u16,
    grpc: u16,
}

impl Target {
    /// On ports that the target takes itself: one that is looked for before may be somebody else's by then.
    fn start() -> Result<Self, Box<dyn Error>> {
        let mut process = Command::new(TARGET)
            .args(["serve", "--http", "0", "--tcp", "0", "--grpc", "0"])
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take().ok_or("no stdout")?;
        let mut target = Self {
            process,
            http: 0,
            tcp: 0,
            grpc: 0,
        };
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        for word in line.split_whitespace() {
            match word.split_once('=') {
                Some(("http", port)) => target.http = port.parse()?,
                Some(("tcp", port)) => target.tcp = port.parse()?,
                Some(("grpc", port)) => target.grpc = port.parse()?,
                _ => {}
            }
        }
        Ok(target)
    }

    async fn wait_until_open(&self, port: u16) -> Outcome {
        for _ in 0..500 {
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(format!("port {port} did not open").into())
    }

    fn ask(&self, verb: &str, path: &str) -> std::io::Result<Output> {
        Command::new(TARGET)
            .args([verb, &format!("http://127.0.0.1:{}{path}", self.http)])
            .output()
    }

    fn set(&self, settings: &str) -> Outcome {
        let output = self.ask("post", &format!("/set?{settings}"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8(output.stderr)?.into())
        }
    }

    /// The message's last byte, or the gRPC status.
    async fn check(&self, path: &str, service: &str) -> Result<Result<u8, String>, Box<dyn Error>> {
        let stream = TcpStream::connect(("127.0.0.1", self.grpc)).await?;
        let (mut sender, connection) = client::handshake(stream).await?;
        tokio::spawn(connection);
        let request = Request::post(format!("http://target{path}")).body(())?;
        let (response, mut body) = sender.send_request(request, false)?;
        let length = u8::try_from(service.len())?;
        let mut frame = vec![0, 0, 0, 0, length + 2, 0x0a, length];
        frame.extend(service.as_bytes());
        body.send_data(frame.into(), true)?;
        let response = response.await?;
        if let Some(status) = response.headers().get("grpc-status") {
            return Ok(Err(status.to_str()?.to_owned()));
        }
        let data = response.into_body().data().await.ok_or("no message")??;
        Ok(Ok(*data.last().ok_or("an empty message")?))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const CHECK: &str = "/grpc.health.v1.Health/Check";

#[tokio::test]
async fn grpc_health_is_switched_by_service() -> Outcome {
    let target = Target::start()?;
    assert_eq!(target.check(CHECK, "").await?, Ok(1));
    assert_eq!(target.check(CHECK, "role").await?, Ok(2));
    assert_eq!(target.check(CHECK, "stranger").await?, Err("5".into()));
    assert_eq!(
        target.check("/grpc.health.v1.Health/Watch", "").await?,
        Err("12".into())
    );
    target.set("grpc=NOT_SERVING&grpc.role=SERVING&grpc.no=UNIMPLEMENTED")?;
    assert_eq!(target.check(CHECK, "").await?, Ok(2));
    assert_eq!(target.check(CHECK, "role").await?, Ok(1));
    assert_eq!(target.check(CHECK, "no").await?, Err("12".into()));
    target.set("grpc=hang")?;
    let patience = Duration::from_millis(300);
    assert!(
        tokio::time::timeout(patience, target.check(CHECK, ""))
            .await
            .is_err()
    );
    Ok(())
}

#[tokio::test]
async fn http_answers_as_told_and_counts() -> Outcome {
    let target = Target::start()?;
    for (path, fine, body) in [
        ("/healthz", true, "ok"),
        ("/role", false, "secondary"),
        ("/status/204", true, ""),
        ("/status/418", false, "418"),
        ("/redirect?to=/healthz", false, ""),
        ("/slow?ms=1", true, "slow"),
        ("/nowhere", false, "no such path"),
        ("/set?role=main", false, "PUT or POST it"),
    ] {
        let output = target.ask("get", path)?;
        assert_eq!(output.status.success(), fine, "{path}");
        assert_eq!(output.stdout, body.as_bytes(), "{path}");
    }
    assert_eq!(
        target.ask("get", "/large?bytes=100000")?.stdout.len(),
        100_000
    );
    assert!(target.set("healthz=teapot").is_err());
    target.set("healthz=503&body=a%20b+c&role=main")?;
    assert_eq!(target.ask("get", "/role")?.stdout, b"main");
    let unhealthy = target.ask("get", "/healthz")?;
    assert_eq!(
        (unhealthy.status.code(), unhealthy.stdout.as_slice()),
        (Some(1), b"a b c".as_slice())
    );
    let counts: serde_json::Value = serde_json::from_slice(&target.ask("get", "/counts")?.stdout)?;
    assert_eq!(counts["http"]["/healthz"], 2);
    for path in ["hang", "endless-head"] {
        let url = format!("http://127.0.0.1:{}/{path}", target.http);
        let hanging = Command::new(TARGET)
            .args(["get", &url, "--timeout", "0.3"])
            .output()?;
        assert!(String::from_utf8(hanging.stderr)?.contains("no answer"));
    }
    Ok(())
}

#[tokio::test]
async fn the_tcp_port_closes_and_opens_again() -> Outcome {
    let target = Target::start()?;
    target.set("tcp=closed")?;
    let mut refused = false;
    for _ in 0..500 {
        refused = TcpStream::connect(("127.0.0.1", target.tcp)).await.is_err();
        if refused {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(refused);
    target.set("tcp=open")?;
    target.wait_until_open(target.tcp).await
}

#[test]
fn output_for_probes_by_command() -> Outcome {
    assert_eq!(
        Command::new(TARGET)
            .args(["emit", "300000"])
            .output()?
            .stdout
            .len(),
        300_000
    );
    let output = Command::new(TARGET).arg("emit-invalid-utf8").output()?;
    assert!(output.status.success() && String::from_utf8(output.stdout).is_err());
    Ok(())
}

#[test]
fn sigterm_ends_it_well() -> Outcome {
    let mut process = Command::new(TARGET).args(["sleep"]).spawn()?;
    // Its handler is there once the process sleeps in its event loop.
    for _ in 0..500 {
        let mut status = String::new();
        std::fs::File::open(format!("/proc/{}/status", process.id()))?
            .read_to_string(&mut status)?;
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .unwrap_or("0");
        if u64::from_str_radix(caught.trim(), 16)? & (1 << 14) != 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Command::new("kill")
        .arg(process.id().to_string())
        .status()?;
    assert!(process.wait()?.success());
    Ok(())
}

/// A sidecar at this socket; the ports of its standard output.
fn sidecar(
    socket: &std::path::Path,
    port: u16,
    release: &str,
) -> Result<(Child, u16), Box<dyn Error>> {
    let mut process = Command::new(TARGET)
        .args(["handover", "--http", &port.to_string(), "--set"])
        .arg(format!("body={release}"))
        .arg("--socket")
        .arg(socket)
        .env("SIDECARSET_VERSION", release)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    let port = line
        .trim()
        .strip_prefix("listening http=")
        .ok_or(line.clone())?;
    Ok((process, port.parse()?))
}

#[test]
fn a_listening_socket_is_handed_over_and_no_request_fails() -> Outcome {
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket");
    let handed_over = |version: &str| {
        let mut command = Command::new(TARGET);
        command.arg("handed-over").arg("--socket").arg(&socket);
        command.env("SIDECARSET_VERSION", version).status()
    };
    let get = |port: u16, path: &str| {
        let url = format!("http://127.0.0.1:{port}{path}");
        Command::new(TARGET).args(["get", &url]).output()
    };
    assert!(handed_over("0")?.success());
    let (mut first, port) = sidecar(&socket, 0, "1")?;
    assert!(handed_over("1")?.success());
    // Connected before there is a successor; a process of its own might only come to that when the last server is killed.
    let mut in_flight = std::net::TcpStream::connect(("127.0.0.1", port))?;
    in_flight.write_all(b"GET /slow?ms=300 HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")?;
    let stop = AtomicBool::new(false);
    let releases = std::thread::scope(|scope| -> Result<Vec<String>, Box<dyn Error>> {
        let load = scope.spawn(|| -> std::io::Result<Vec<Output>> {
            let mut answers = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                answers.push(get(port, "/healthz")?);
            }
            Ok(answers)
        });
        let (mut second, of_second) = sidecar(&socket, port, "2")?;
        assert_eq!(of_second, port);
        assert!(handed_over("2")?.success());
        first.kill()?;
        first.wait()?;
        let (mut third, _) = sidecar(&socket, port, "3")?;
        assert!(handed_over("3")?.success());
        second.kill()?;
        second.wait()?;
        let last = get(port, "/healthz")?;
        assert_eq!(last.stdout, b"3");
        stop.store(true, Ordering::Relaxed);
        let answers = load.join().map_err(|_| "the load panicked")??;
        let mut slow = String::new();
        in_flight.read_to_string(&mut slow)?;
        assert!(slow.starts_with("HTTP/1.1 200 "), "{slow}");
        third.kill()?;
        third.wait()?;
        let failed = answers.iter().find(|answer| !answer.status.success());
        assert!(failed.is_none(), "{failed:?}");
        let mut releases: Vec<_> = answers
            .into_iter()
            .map(|answer| String::from_utf8_lossy(&answer.stdout).into_owned())
            .collect();
        releases.dedup();
        Ok(releases)
    })?;
    assert!(releases.is_sorted(), "{releases:?}");
    Ok(())
}

#[test]
fn a_load_counts_each_answer_and_each_failure() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (mut server, of_server) = sidecar(&folder.path().join("socket"), 0, "1")?;
    let mut load = Command::new(TARGET)
        .args(["load", "--http", "0"])
        .arg(format!("http://127.0.0.1:{of_server}/healthz"))
        .arg(format!("http://127.0.0.1:{of_server}/status/500"))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(load.stdout.take().ok_or("no stdout")?).read_line(&mut line)?;
    let port = line
        .trim()
        .strip_prefix("listening http=")
        .ok_or("no port")?;
    let wait_for = |what: fn(&serde_json::Value) -> bool| -> Outcome {
        for _ in 0..1000 {
            let url = format!("http://127.0.0.1:{port}/counts");
            let counts = Command::new(TARGET).args(["get", &url]).output()?;
            let counts = serde_json::from_slice(&counts.stdout)?;
            if what(&counts) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err("it was never counted".into())
    };
    wait_for(|counts| counts["answers"]["1"].as_u64() > Some(5))?;
    wait_for(|counts| counts["failures"]["status 500"].as_u64() > Some(5))?;
    server.kill()?;
    server.wait()?;
    wait_for(|counts| {
        let failures = counts["failures"].as_object();
        failures.is_some_and(|failures| failures.keys().any(|one| one.contains("refused")))
    })?;
    load.kill()?;
    load.wait()?;
    Ok(())
}
