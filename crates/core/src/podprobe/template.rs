//! A probe as a marker specifies it: its ports may be names, which are resolved in the container of each pod.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use k8s_openapi::api::core::v1;

use super::compatibility::Compatibility;
use super::probe::{Handler, HttpGet, Probe, Scheme, VolumeFile};
use super::url;
use crate::cluster::{FieldErrors, names};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leadsman_api::limits;
use leadsman_api::marker::FileProbe;

/// A probe with unresolved ports, its defaults filled in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeTemplate {
    /// The action of the probe.
    pub handler: HandlerTemplate,
    /// Delay of the first run after the container's start.
    pub initial_delay_seconds: u32,
    /// Time between two runs.
    pub period_seconds: NonZeroU32,
    /// Time limit of one run.
    pub timeout_seconds: NonZeroU32,
    /// Consecutive successes that turn the verdict to Succeeded.
    pub success_threshold: NonZeroU32,
    /// Consecutive failures that turn the verdict to Failed.
    pub failure_threshold: NonZeroU32,
}

/// The action of a probe (`v1.ProbeHandler`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HandlerTemplate {
    /// Runs a command in the container, without a shell.
    Exec {
        /// Program and arguments, never empty.
        command: Vec<String>,
    },
    /// Sends an HTTP GET request to the pod.
    HttpGet {
        /// Plain, plain HTTP/2 or TLS.
        scheme: Scheme,
        /// The port.
        port: Port,
        /// Path and, after a `?`, query.
        path: String,
        /// Name and value, repeated names kept, in order.
        headers: Vec<(String, String)>,
    },
    /// Opens a TCP connection to the pod.
    TcpSocket {
        /// The port.
        port: Port,
    },
    /// Calls `grpc.health.v1.Health/Check` of the pod.
    Grpc {
        /// The port, always a number (`v1.GRPCAction`).
        port: NonZeroU16,
        /// The service asked about; empty is the server as a whole.
        service: String,
        /// Whether over TLS.
        over_tls: bool,
    },
    /// Reads a file in a volume of the pod.
    File(VolumeFile),
}

/// A port of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// The port's number.
    Number(NonZeroU16),
    /// The name that the container's `ports` give the port.
    Name(Arc<str>),
}

/// A port's name that the container does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the container has no port named {0:?}")]
pub struct UnresolvedPort(pub Arc<str>);

impl Port {
    fn resolve_number(
        &self,
        port: impl Fn(&str) -> Option<NonZeroU16>,
    ) -> Result<NonZeroU16, UnresolvedPort> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Name(name) => port(name).ok_or_else(|| UnresolvedPort(Arc::clone(name))),
        }
    }
}

impl ProbeTemplate {
    /// The probe of one container; `port` finds the number of the container's port of this name.
    pub fn resolve_ports(
        &self,
        port: impl Fn(&str) -> Option<NonZeroU16>,
    ) -> Result<Probe, UnresolvedPort> {
        let handler = match &self.handler {
            HandlerTemplate::Exec { command } => Handler::Exec {
                command: command.clone(),
            },
            HandlerTemplate::HttpGet {
                scheme,
                port: template,
                path,
                headers,
            } => Handler::HttpGet(HttpGet {
                scheme: *scheme,
                port: template.resolve_number(port)?,
                path: path.clone(),
                headers: headers.clone(),
            }),
            HandlerTemplate::TcpSocket { port: template } => Handler::TcpSocket {
                port: template.resolve_number(port)?,
            },
            HandlerTemplate::Grpc {
                port,
                service,
                over_tls,
            } => Handler::Grpc {
                port: *port,
                service: service.clone(),
                over_tls: *over_tls,
            },
            HandlerTemplate::File(file) => Handler::File(file.clone()),
        };
        Ok(Probe {
            handler,
            initial_delay_seconds: self.initial_delay_seconds,
            period_seconds: self.period_seconds,
            timeout_seconds: self.timeout_seconds,
            success_threshold: self.success_threshold,
            failure_threshold: self.failure_threshold,
        })
    }

    /// Parses a probe, and the file beside it; `report` is of both. None after an error has been reported that leaves no probe.
    pub(super) fn parse_template(
        probe: &v1::Probe,
        file: Option<&FileProbe>,
        compatibility: Compatibility,
        report: &mut FieldErrors<'_>,
    ) -> Option<Self> {
        let handler = HandlerTemplate::parse_handler(probe, file, report);
        let report = &mut report.field("probe");
        if probe.termination_grace_period_seconds.is_some() {
            report
                .field("terminationGracePeriodSeconds")
                .add("must not be set: this probe never terminates a pod");
        }
        let defaults = compatibility.timing_defaults();
        let initial_delay = parse_seconds(
            probe.initial_delay_seconds,
            i32::MAX,
            report.field("initialDelaySeconds"),
        );
        let mut at_least_one = |field, value, default| {
            let most = if field == "timeoutSeconds" {
                limits::TIMEOUT_SECONDS
            } else {
                i32::MAX
            };
            let given = parse_seconds(value, most, report.field(field))?;
            Some(NonZeroU32::new(given).unwrap_or(default))
        };
        let period = at_least_one("periodSeconds", probe.period_seconds, defaults.period);
        let timeout = at_least_one("timeoutSeconds", probe.timeout_seconds, defaults.timeout);
        let success = at_least_one(
            "successThreshold",
            probe.success_threshold,
            defaults.success_threshold,
        );
        let failure = at_least_one(
            "failureThreshold",
            probe.failure_threshold,
            defaults.failure_threshold,
        );
        Some(Self {
            // A handler with errors ends the parsing only here, so that an author sees all errors of a probe at once.
            handler: handler?,
            initial_delay_seconds: match initial_delay? {
                0 => defaults.initial_delay,
                given => given,
            },
            period_seconds: period?,
            timeout_seconds: timeout?,
            success_threshold: success?,
            failure_threshold: failure?,
        })
    }
}

/// Zero means that the field is left out, as for Kubernetes, whose types are plain integers (`SetDefaults_Probe`,
/// `pkg/apis/core/v1/defaults.go`).
fn parse_seconds(given: Option<i32>, most: i32, mut report: FieldErrors<'_>) -> Option<u32> {
    let given = given.unwrap_or(0);
    let within = u32::try_from(given).ok().filter(|_| given <= most);
    report.check(within.ok_or_else(|| format!("{given} is not between 0 and {most}")))
}

impl HandlerTemplate {
    fn parse_handler(
        probe: &v1::Probe,
        file: Option<&FileProbe>,
        report: &mut FieldErrors<'_>,
    ) -> Option<Self> {
        let mut handlers = Vec::new();
        if let Some(file) = file {
            handlers.push(Self::read_file(file, &mut report.field("file")));
        }
        let report = &mut report.field("probe");
        if let Some(exec) = &probe.exec {
            handlers.push(Self::read_exec(exec, &mut report.field("exec")));
        }
        if let Some(get) = &probe.http_get {
            handlers.push(Self::read_http_get(get, &mut report.field("httpGet")));
        }
        if let Some(socket) = &probe.tcp_socket {
            let mut at = report.field("tcpSocket");
            refuse_host(socket.host.as_deref(), &mut at);
            let port = Port::parse_port(&socket.port, &mut at);
            handlers.push(port.map(|port| Self::TcpSocket { port }));
        }
        if let Some(grpc) = &probe.grpc {
            let mut at = report.field("grpc");
            let service = grpc.service.as_deref().unwrap_or_default();
            at.field("service")
                .at_most_chars(service, limits::GRPC_SERVICE);
            let over_tls = match grpc.mode.as_deref() {
                None | Some("" | "Plaintext") => Some(false),
                Some("TLS") => Some(true),
                Some(other) => {
                    let message = format!("{other:?} is not one of Plaintext, TLS");
                    at.field("mode").add(message);
                    None
                }
            };
            let port = parse_port_number(grpc.port, &mut at.field("port"));
            let read = port.zip(over_tls);
            handlers.push(read.map(|(port, over_tls)| Self::Grpc {
                port,
                service: service.to_owned(),
                over_tls,
            }));
        }
        // The handlers are counted after each was read, so that the errors of all of them are reported.
        if handlers.len() != 1 {
            report.add("needs exactly one of exec, httpGet, tcpSocket, grpc, or file beside it");
            return None;
        }
        handlers.pop().flatten()
    }

    fn read_exec(exec: &v1::ExecAction, report: &mut FieldErrors<'_>) -> Option<Self> {
        let command = exec.command.clone().unwrap_or_default();
        if command.is_empty() {
            report.field("command").add("must name a program");
            return None;
        }
        let mut at = report.field("command");
        at.at_most(command.len(), limits::COMMAND_WORDS, "words");
        // Characters are counted, as the CRD's rule does: CEL would copy a word to count its bytes, and
        // the estimated cost of all rules is limited.
        let sizes = command.iter().map(|word| word.chars().count());
        at.at_most(
            sizes.sum(),
            limits::COMMAND_CHARS,
            "characters of all words",
        );
        for (index, word) in command.iter().enumerate() {
            at.index(index).at_most_chars(word, limits::COMMAND_CHARS);
        }
        Some(Self::Exec { command })
    }

    fn read_file(file: &FileProbe, report: &mut FieldErrors<'_>) -> Option<Self> {
        let volume = report.field("volume").check(names::dns_label(&file.volume));
        let mut at = report.field("path");
        let fits = at.at_most_chars(&file.path, limits::FILE_PATH);
        let path = at.check(check_file_path(&file.path)).filter(|()| fits);
        let checked = file.not_older_than_seconds.map(|given| {
            let positive = u32::try_from(given).ok().and_then(NonZeroU32::new);
            let message = || format!("{given} is not between 1 and {}", i32::MAX);
            let mut at = report.field("notOlderThanSeconds");
            at.check(positive.ok_or_else(message))
        });
        // An inner None is an error that was reported.
        let age = match checked {
            Some(None) => return None,
            Some(Some(age)) => Some(age),
            None => None,
        };
        volume.and(path)?;
        Some(Self::File(VolumeFile {
            volume: file.volume.clone(),
            path: file.path.clone(),
            not_older_than_seconds: age,
        }))
    }

    fn read_http_get(get: &v1::HTTPGetAction, report: &mut FieldErrors<'_>) -> Option<Self> {
        refuse_host(get.host.as_deref(), report);
        let scheme = read_scheme(get, report);
        let headers = get.http_headers.as_deref().unwrap_or_default();
        check_headers(headers, &mut report.field("httpHeaders"));
        let path = get.path.as_deref().filter(|path| !path.is_empty());
        let mut at = report.field("path");
        at.at_most_chars(path.unwrap_or_default(), limits::PATH);
        at.check(url::check_path(path.unwrap_or_default()));
        Some(Self::HttpGet {
            port: Port::parse_port(&get.port, report)?,
            scheme: scheme?,
            path: path.unwrap_or("/").to_owned(),
            headers: headers
                .iter()
                .map(|header| (header.name.clone(), header.value.clone()))
                .collect(),
        })
    }
}

/// Checks that a path stays in its volume, and that it can be shown.
fn check_file_path(path: &str) -> Result<(), String> {
    let is_name = |name: &str| {
        !matches!(name, "" | "." | "..") && !name.chars().any(|c| c.is_ascii_control())
    };
    if path.split('/').all(is_name) {
        return Ok(());
    }
    Err(format!(
        "{path:?} is not a path in the volume: names with one '/' between them, none of them '.' or '..'"
    ))
}

fn read_scheme(get: &v1::HTTPGetAction, report: &mut FieldErrors<'_>) -> Option<Scheme> {
    let is_http2 = match get.protocol.as_deref() {
        None | Some("" | "HTTP1") => Some(false),
        Some("HTTP2") => Some(true),
        Some(other) => {
            let message = format!("{other:?} is not one of HTTP1, HTTP2");
            report.field("protocol").add(message);
            None
        }
    };
    match get.scheme.as_deref() {
        // Empty means the default, for scheme and path alike (`SetDefaults_HTTPGetAction`,
        // `pkg/apis/core/v1/defaults.go`).
        None | Some("" | "HTTP") if is_http2? => Some(Scheme::H2c),
        None | Some("" | "HTTP") => Some(Scheme::Http),
        // Refused by Kubernetes as well (`validateHTTPGetAction`, `pkg/apis/core/validation/validation.go`).
        Some("HTTPS") if is_http2 == Some(true) => {
            let message = "HTTP2 is without TLS: leave it out, the server chooses the version";
            report.field("protocol").add(message);
            None
        }
        Some("HTTPS") => Some(Scheme::Https),
        Some(other) => {
            let message = format!("{other:?} is not one of HTTP, HTTPS");
            report.field("scheme").add(message);
            None
        }
    }
}

fn check_headers(headers: &[v1::HTTPHeader], report: &mut FieldErrors<'_>) {
    report.at_most(headers.len(), limits::HEADERS, "headers");
    let sizes = headers.iter().map(|one| one.name.len() + one.value.len());
    report.at_most(sizes.sum(), limits::HEADERS_BYTES, "bytes of all headers");
    for (index, header) in headers.iter().enumerate() {
        let mut at = report.index(index);
        at.field("name").check(names::header_name(&header.name));
        let mut at = at.field("value");
        at.at_most_chars(&header.value, limits::HEADER_VALUE);
        // A line break would end the value, and what follows would be a header of its own (RFC 9110, section 5.5).
        if header.value.contains(['\r', '\n']) {
            at.add(format!("{:?} has a line break", header.value));
        }
    }
}

/// Refuses any host but the pod. Otherwise the author of a marker could make the agent connect to hosts that only the
/// node can reach.
fn refuse_host(host: Option<&str>, report: &mut FieldErrors<'_>) {
    if let Some(host) = host.filter(|host| !host.is_empty()) {
        report.field("host").add(format!(
            "{host:?} is another host: a probe goes to its own pod, leave it out, or set the header Host"
        ));
    }
}

impl Port {
    fn parse_port(port: &IntOrString, report: &mut FieldErrors<'_>) -> Option<Self> {
        let mut at = report.field("port");
        match port {
            IntOrString::Int(value) => parse_port_number(*value, &mut at).map(Self::Number),
            IntOrString::String(name) => at
                .check(names::port_name(name))
                .map(|()| Self::Name(name.as_str().into())),
        }
    }
}

fn parse_port_number(port: i32, report: &mut FieldErrors<'_>) -> Option<NonZeroU16> {
    let number = u16::try_from(port).ok().and_then(NonZeroU16::new);
    report.check(number.ok_or_else(|| format!("{port} is not between 1 and 65535")))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn template(wire: Value, compatibility: Compatibility) -> ProbeTemplate {
        let mut errors = Vec::new();
        let probe = serde_json::from_value(wire).unwrap();
        let read = ProbeTemplate::parse_template(
            &probe,
            None,
            compatibility,
            &mut FieldErrors::new(&mut errors, ""),
        );
        assert_eq!(errors, []);
        read.unwrap()
    }

    /// Initial delay, period, timeout, success threshold, failure threshold.
    fn timings(probe: &ProbeTemplate) -> [u32; 5] {
        [
            probe.initial_delay_seconds,
            probe.period_seconds.get(),
            probe.timeout_seconds.get(),
            probe.success_threshold.get(),
            probe.failure_threshold.get(),
        ]
    }

    // PRB-1
    #[rstest]
    #[case::kubernetes(Compatibility::Kubernetes, [0, 10, 1, 1, 3])]
    #[case::openkruise(Compatibility::OpenKruise, [1, 1, 1, 1, 1])]
    fn fields_left_out_and_zeros_have_defaults(
        #[case] compatibility: Compatibility,
        #[case] expected: [u32; 5],
    ) {
        let lean = json!({"tcpSocket": {"port": 1}});
        assert_eq!(timings(&template(lean, compatibility)), expected);
        let zeros = json!({
            "tcpSocket": {"port": 1}, "initialDelaySeconds": 0, "periodSeconds": 0, "timeoutSeconds": 0,
            "successThreshold": 0, "failureThreshold": 0,
        });
        assert_eq!(timings(&template(zeros, compatibility)), expected);
        let given = json!({
            "tcpSocket": {"port": 1}, "initialDelaySeconds": 2, "periodSeconds": 4, "timeoutSeconds": 5,
            "successThreshold": 6, "failureThreshold": 7,
        });
        assert_eq!(timings(&template(given, compatibility)), [2, 4, 5, 6, 7]);
    }

    // PRB-1, DEF-20
    #[test]
    fn path_scheme_and_service_have_defaults() {
        let get = template(
            json!({"httpGet": {"port": 80, "path": ""}}),
            Compatibility::Kubernetes,
        );
        let HandlerTemplate::HttpGet {
            scheme,
            path,
            headers,
            ..
        } = get.handler
        else {
            panic!("{:?}", get.handler);
        };
        assert_eq!(
            (scheme, path.as_str(), headers.len()),
            (Scheme::Http, "/", 0)
        );
        let grpc = template(json!({"grpc": {"port": 80}}), Compatibility::Kubernetes);
        let port = NonZeroU16::new(80).unwrap();
        let service = String::new();
        let expected = HandlerTemplate::Grpc {
            port,
            service,
            over_tls: false,
        };
        assert_eq!(grpc.handler, expected);
    }

    // PRB-4, DEF-16
    #[rstest]
    #[case("httpGet")]
    #[case("tcpSocket")]
    fn a_named_port_is_resolved_in_the_container(#[case] handler: &str) {
        let named = template(
            json!({handler: {"port": "game"}}),
            Compatibility::Kubernetes,
        );
        let port = NonZeroU16::new(7777);
        let resolved = named
            .resolve_ports(|name| port.filter(|_| name == "game"))
            .unwrap();
        let found = match resolved.handler {
            Handler::HttpGet(get) => get.port,
            Handler::TcpSocket { port } => port,
            other => panic!("{other:?}"),
        };
        assert_eq!(Some(found), port);
        assert_eq!(
            named.resolve_ports(|_| None),
            Err(UnresolvedPort("game".into()))
        );
    }
}
