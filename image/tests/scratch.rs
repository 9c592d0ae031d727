//! What leadsman finds in an image from scratch. Its programs run as in a container of it: its root has nothing but the
//! programs and what the kubelet mounts, is read-only, and the user is nobody on the machine. A network namespace has a small
//! name server and a server that says which host it was asked for.
//!
//! glibc that is linked statically loads its resolvers from shared libraries before version 2.34, and then no name resolves
//! here. Names matter: `KUBERNETES_SERVICE_HOST` may be one, and a kubeconfig's server mostly is.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use leadsman_image::StaticProgram;
use libtest_mimic::{Arguments, Completion, Trial};

/// Set in the process that is in the namespaces.
const INSIDE: &str = "LEADSMAN_SCRATCH_INSIDE";
/// Where the root of the image is, in a mount namespace of its own.
const ROOT: &str = "/mnt";
/// The programs of the image, which are in one folder where they are built.
const PROGRAMS: [&str; 2] = ["leadsman", "leadsman-agent"];
const NAME_SERVER: &str = "127.0.0.53:53";
const ADDRESS: [u8; 4] = [127, 0, 0, 7];
const PORT: u16 = 8001;
/// How long a request may take to come.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the kubelet mounts into a container.
const FILES: &[(&str, &str)] = &[
    (
        "etc/resolv.conf",
        "nameserver 127.0.0.53\nsearch svc.cluster.test\noptions ndots:5\n",
    ),
    ("etc/hosts", "127.0.0.7 only-in-hosts\n"),
];

/// Names that the name server knows.
const ZONE: &[&str] = &["api.example.test", "kubernetes.svc.cluster.test"];

const HOSTS: &[&str] = &[
    "api.example.test",
    "kubernetes",
    "only-in-hosts",
    "127.0.0.7",
];

/// The certificate of a CA whose key nobody has.
const CA: &str = "\
-----BEGIN CERTIFICATE-----
MIIBgzCCASmgAwIBAgIUQA0ETEpNh2+O+miXC399k8D8gIwwCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLbm9ib2R5J3MgQ0EwIBcNMjYxMTIyMTA0ODEzWhgPMjEyNjEw
MjkxMDQ4MTNaMBYxFDASBgNVBAMMC25vYm9keSdzIENBMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEtvVPrBVQQZbyXMHfRcUcWZEoKjYnX0s6qpQcmw9JSBsoNMym
iyg3uKRiWzphoVrZPyuvpjreWKPfq7UpeNlA86NTMFEwHQYDVR0OBBYEFEga9kZj
nTc/EfEtZ+9l++nfaa18MB8GA1UdIwQYMBaAFEga9kZjnTc/EfEtZ+9l++nfaa18
MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIhAMH1lEDEru1igemH
4xXfkhqDzDHIUqf/ISSKRH2bFzZyAiBEyixu5tBHPZ4h3d5SJjBW2loJL+9/Ydm0
Vhz2qnUBtA==
-----END CERTIFICATE-----
";

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    // One server hears the requests of all.
    arguments.test_threads = Some(1);
    let why_not = why_not();
    if why_not.is_none() && !arguments.list && std::env::var_os(INSIDE).is_none() {
        let error = Command::new("unshare")
            .args(["--net", "--mount", "--"])
            .args(std::env::args_os())
            .env(INSIDE, "")
            .exec();
        return Err(error).context("running unshare");
    }
    let trial = |name: &str, test: fn() -> Result<()>| {
        Trial::ignorable_test(name, move || match why_not {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => test()
                .map(|()| Completion::Completed)
                .map_err(|error| format!("{error:#}").into()),
        })
    };
    let trials = vec![
        trial("scratch::a_name_is_asked_of_the_name_server", || {
            reaches("api.example.test")
        }),
        trial(
            "scratch::a_short_name_is_completed_by_the_search_domain",
            || reaches("kubernetes"),
        ),
        trial("scratch::a_name_is_found_in_the_hosts_file", || {
            reaches("only-in-hosts")
        }),
        trial("scratch::an_address_needs_no_name_server", || {
            reaches("127.0.0.7")
        }),
        trial("scratch::a_kubeconfig_without_ca_is_refused", no_ca),
        trial("scratch::a_missing_home_is_no_crash", no_home),
        trial(
            "scratch::an_agent_runs_and_reaches_the_api_server_by_name",
            agent_reaches,
        ),
        trial("scratch::the_history_of_no_agent_is_an_error", no_agent),
    ];
    if why_not.is_none() && !arguments.list {
        container().context("making the root of the image")?;
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn why_not() -> Option<&'static str> {
    let uid = fs::metadata("/proc/self")
        .map(|of_process| std::os::unix::fs::MetadataExt::uid(&of_process));
    match uid {
        Ok(0) => None,
        Ok(_) => Some("namespaces and chroot need root"),
        Err(_) => Some("this is not Linux"),
    }
}

/// Makes the root of the image, with nothing of this machine in it.
fn container() -> Result<()> {
    let program = std::env::var_os("LEADSMAN_BIN").map(PathBuf::from);
    let program = program.context(
        "LEADSMAN_BIN names the static program `leadsman`, beside which is the agent's; `cargo xtask` sets it",
    )?;
    run("ip", &["link", "set", "lo", "up"])?;
    run("mount", &["-t", "tmpfs", "-o", "mode=755", "tmpfs", ROOT])?;
    let root = Path::new(ROOT);
    for folder in ["etc", "kubeconfigs"] {
        fs::create_dir(root.join(folder))?;
    }
    for (path, text) in FILES {
        fs::write(root.join(path), text)?;
    }
    fs::write(root.join("ca.crt"), CA)?;
    let authority = ", certificate-authority: /ca.crt";
    for host in HOSTS {
        let kubeconfig = kubeconfig(host, authority);
        fs::write(root.join("kubeconfigs").join(host), kubeconfig)?;
    }
    let without = kubeconfig(HOSTS[0], "");
    fs::write(root.join("kubeconfigs/no-ca"), without)?;
    for name in PROGRAMS {
        let path = program.with_file_name(name);
        let content = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let content = StaticProgram::new(content).with_context(|| path.display().to_string())?;
        fs::write(root.join(name), content.into_content())?;
        run("chmod", &["755", &format!("{ROOT}/{name}")])?;
    }
    run("mount", &["-o", "remount,ro", ROOT])?;
    thread::spawn(serve_names);
    Ok(())
}

/// Plain HTTP, since a name is what is asked for; with a CA, as a service account has one.
fn kubeconfig(host: &str, authority: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {{server: 'http://{host}:{PORT}'{authority}}}\n\
         users:\n- name: u\n  user: {{}}\ncontexts:\n- name: c\n  context: {{cluster: c, user: u}}\n"
    )
}

/// Whether leadsman sends its requests to the address of this host.
fn reaches(host: &str) -> Result<()> {
    let asked = serve_http()?;
    let output = preflight(&["--kubeconfig", &format!("/kubeconfigs/{host}")])?;
    let heard = asked.recv_timeout(PATIENCE);
    let heard =
        heard.with_context(|| format!("no request came; leadsman said: {}", text(&output)))?;
    ensure!(
        heard == format!("{host}:{PORT}"),
        "asked for {heard:?} instead of {host}"
    );
    Ok(())
}

/// The image has no CAs of the public: who is given none by a service account or a kubeconfig is told so.
fn no_ca() -> Result<()> {
    let output = preflight(&["--kubeconfig", "/kubeconfigs/no-ca"])?;
    let text = text(&output);
    ensure!(
        text.contains("No CA certificates were loaded from the system"),
        "{text}"
    );
    Ok(())
}

/// Without HOME, glibc looks for the user's home in `/etc/passwd`, which is not there.
fn no_home() -> Result<()> {
    let output = preflight(&[])?;
    let text = text(&output);
    ensure!(output.status.code() == Some(1), "{}: {text}", output.status);
    ensure!(
        text.contains("found neither a kubeconfig nor the service account"),
        "{text}"
    );
    Ok(())
}

/// An agent asks until it is ended.
fn agent_reaches() -> Result<()> {
    let host = "api.example.test";
    let asked = serve_http()?;
    let kubeconfig = format!("--kubeconfig=/kubeconfigs/{host}");
    let words = [
        "/leadsman-agent",
        "--node-name=n",
        "--metrics-bind-address=0",
        &kubeconfig,
    ];
    let mut agent = in_container(&words);
    let agent = agent.stdout(Stdio::null()).stderr(Stdio::null());
    let mut agent = agent.spawn().context("running chroot")?;
    let heard = asked.recv_timeout(PATIENCE);
    agent.kill()?;
    agent.wait()?;
    let heard = heard.context("no request came from the agent")?;
    ensure!(heard == format!("{host}:{PORT}"), "asked for {heard:?}");
    Ok(())
}

/// The pod of the agent has one that listens; this container has not.
fn no_agent() -> Result<()> {
    let words = ["/leadsman-agent", "history"];
    let output = in_container(&words).output().context("running chroot")?;
    let text = text(&output);
    ensure!(output.status.code() == Some(1), "{}: {text}", output.status);
    ensure!(
        text.starts_with("leadsman-agent: no agent answers at /run/leadsman/history.sock"),
        "{text}"
    );
    Ok(())
}

/// `leadsman preflight` as in a container.
fn preflight(arguments: &[&str]) -> Result<Output> {
    let words = [&["/leadsman", "preflight"], arguments].concat();
    in_container(&words).output().context("running chroot")
}

/// A command as in a container.
fn in_container(words: &[&str]) -> Command {
    let mut command = Command::new("chroot");
    command
        .args(["--userspec=65532:65532", ROOT])
        .args(words)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Refuses the first request, and tells which host it was sent to.
fn serve_http() -> Result<Receiver<String>> {
    let listener = TcpListener::bind((std::net::Ipv4Addr::from(ADDRESS), PORT))?;
    let (tell, asked) = channel();
    thread::spawn(move || -> Result<()> {
        let (stream, _) = listener.accept()?;
        drop(listener);
        let mut reader = BufReader::new(&stream);
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            if let Some(host) = line.strip_prefix("host: ") {
                tell.send(host.trim().to_owned())?;
            }
            line.clear();
        }
        (&stream).write_all(
            b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        )?;
        Ok(())
    });
    Ok(asked)
}

/// A name server (RFC 1035) that knows the addresses of [`ZONE`].
fn serve_names() -> Result<()> {
    let socket = UdpSocket::bind(NAME_SERVER)?;
    let mut packet = [0; 512];
    loop {
        let (length, from) = socket.recv_from(&mut packet)?;
        let answer = answer(&packet[..length]).context("a query that is none")?;
        socket.send_to(&answer, from)?;
    }
}

fn answer(query: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    const TYPE_A: [u8; 2] = [0, 1];
    let mut end = HEADER;
    let mut labels = Vec::new();
    while *query.get(end)? != 0 {
        let length = usize::from(query[end]);
        labels.push(std::str::from_utf8(query.get(end + 1..=end + length)?).ok()?);
        end += length + 1;
    }
    let question = query.get(HEADER..end + 5)?;
    let known = ZONE.contains(&labels.join(".").as_str());
    let has_address = known && question.ends_with(&[TYPE_A, [0, 1]].concat());
    let code = if known { 0 } else { 3 };
    let mut answer = query[..2].to_vec();
    answer.extend([
        0x81,
        0x80 | code,
        0,
        1,
        0,
        u8::from(has_address),
        0,
        0,
        0,
        0,
    ]);
    answer.extend(question);
    if has_address {
        // The name of the question, class IN, for five seconds, four bytes.
        answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        answer.extend(ADDRESS);
    }
    Some(answer)
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let status = Command::new(program).args(arguments).status();
    let status = status.with_context(|| format!("running {program}"))?;
    ensure!(
        status.success(),
        "`{program} {}` failed",
        arguments.join(" ")
    );
    Ok(())
}
