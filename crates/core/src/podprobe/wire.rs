//! The form of a probe in `NodePodProbe`: the manager writes it with all fields, the node's agent parses it.
//!
//! The agent does not trust the object: it validates each probe again, and refuses another host and a named port.

use std::num::{NonZeroU16, NonZeroU32};

use k8s_openapi::api::core::v1;

use super::compatibility::Compatibility;
use super::probe::{Handler, HttpGet, Probe, Scheme, VolumeFile};
use super::template::ProbeTemplate;
use crate::cluster::{FieldErrors, Invalid};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leadsman_api::marker::FileProbe;

/// Writes a probe with every field, and the file that is read in place of a handler.
pub fn to_wire(probe: &Probe) -> (v1::Probe, Option<FileProbe>) {
    let mut file = None;
    // All fields are written, so that no agent has a choice of defaults.
    let mut wire = v1::Probe {
        initial_delay_seconds: Some(saturating_i32(probe.initial_delay_seconds)),
        period_seconds: Some(saturating_positive_i32(probe.period_seconds)),
        timeout_seconds: Some(saturating_positive_i32(probe.timeout_seconds)),
        success_threshold: Some(saturating_positive_i32(probe.success_threshold)),
        failure_threshold: Some(saturating_positive_i32(probe.failure_threshold)),
        ..v1::Probe::default()
    };
    match &probe.handler {
        Handler::Exec { command } => {
            wire.exec = Some(v1::ExecAction {
                command: Some(command.clone()),
            });
        }
        Handler::HttpGet(get) => wire.http_get = Some(http_get(get)),
        Handler::TcpSocket { port } => {
            wire.tcp_socket = Some(v1::TCPSocketAction {
                host: None,
                port: int_or_string(*port),
            });
        }
        Handler::Grpc {
            port,
            service,
            over_tls,
        } => {
            wire.grpc = Some(v1::GRPCAction {
                mode: over_tls.then(|| "TLS".to_owned()),
                port: i32::from(port.get()),
                service: Some(service.clone()),
            });
        }
        Handler::File(read) => file = Some(file_probe(read)),
    }
    (wire, file)
}

/// Parses the probe of an entry. Fields left out have the defaults of Kubernetes.
///
/// # Errors
///
/// All invalid fields; their paths begin with `probe` or `file`.
pub fn from_wire(probe: &v1::Probe, file: Option<&FileProbe>) -> Result<Probe, Vec<Invalid>> {
    let mut errors = Vec::new();
    let mut report = FieldErrors::new(&mut errors, "");
    let kubernetes = Compatibility::Kubernetes;
    let template = ProbeTemplate::parse_template(probe, file, kubernetes, &mut report);
    let resolved =
        template.and_then(|template| {
            // The agent does not know the ports of a container, so no name resolves here.
            let resolved = template.resolve_ports(|_| None);
            report.field("probe").check(resolved.map_err(|unresolved| {
                format!("port {:?} was not resolved to a number", unresolved.0)
            }))
        });
    match resolved {
        Some(probe) if errors.is_empty() => Ok(probe),
        _ => Err(errors),
    }
}

fn file_probe(file: &VolumeFile) -> FileProbe {
    FileProbe {
        volume: file.volume.clone(),
        path: file.path.clone(),
        not_older_than_seconds: file.not_older_than_seconds.map(saturating_positive_i32),
    }
}

fn http_get(get: &HttpGet) -> v1::HTTPGetAction {
    let headers = get.headers.iter().map(|(name, value)| v1::HTTPHeader {
        name: name.clone(),
        value: value.clone(),
    });
    let scheme = match get.scheme {
        Scheme::Http | Scheme::H2c => "HTTP",
        Scheme::Https => "HTTPS",
    };
    v1::HTTPGetAction {
        host: None,
        http_headers: (!get.headers.is_empty()).then(|| headers.collect()),
        path: Some(get.path.clone()),
        port: int_or_string(get.port),
        protocol: (get.scheme == Scheme::H2c).then(|| "HTTP2".to_owned()),
        scheme: Some(scheme.to_owned()),
    }
}

fn int_or_string(port: NonZeroU16) -> IntOrString {
    IntOrString::Int(i32::from(port.get()))
}

/// Saturates: a longer time than the wire can hold makes no difference.
fn saturating_i32(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn saturating_positive_i32(value: NonZeroU32) -> i32 {
    saturating_i32(value.get())
}

#[cfg(test)]
mod tests {
    use leadsman_api::limits;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn positive_i32() -> impl Strategy<Value = NonZeroU32> {
        (1..=i32::MAX.unsigned_abs()).prop_map(|value| NonZeroU32::new(value).unwrap())
    }

    fn handler() -> impl Strategy<Value = Handler> {
        let port = || any::<NonZeroU16>();
        let get = (
            prop::sample::select(vec![Scheme::Http, Scheme::H2c, Scheme::Https]),
            port(),
            "/[a-z?=&]{0,9}",
            prop::collection::vec(("[A-Z-]{1,5}", "[^\\r\\n]{0,5}"), 0..3),
        );
        prop_oneof![
            prop::collection::vec(".{0,5}", 1..4).prop_map(|command| Handler::Exec { command }),
            get.prop_map(|(scheme, port, path, headers)| Handler::HttpGet(HttpGet {
                scheme,
                port,
                path,
                headers,
            })),
            port().prop_map(|port| Handler::TcpSocket { port }),
            (port(), ".{0,5}", any::<bool>()).prop_map(|(port, service, over_tls)| {
                Handler::Grpc {
                    port,
                    service,
                    over_tls,
                }
            }),
            (
                "[a-z]{1,5}",
                "[a-z]{1,5}(/[a-z]{1,5})?",
                prop::option::of(positive_i32())
            )
                .prop_map(|(volume, path, not_older_than_seconds)| Handler::File(
                    VolumeFile {
                        volume,
                        path,
                        not_older_than_seconds,
                    }
                )),
        ]
    }

    prop_compose! {
        fn probe()(
            handler in handler(),
            initial_delay_seconds in 0..=i32::MAX.unsigned_abs(),
            period_seconds in positive_i32(),
            timeout_seconds in (1..=limits::TIMEOUT_SECONDS.unsigned_abs()).prop_map(|value| NonZeroU32::new(value).unwrap()),
            success_threshold in positive_i32(),
            failure_threshold in positive_i32(),
        ) -> Probe {
            Probe {
                handler, initial_delay_seconds, period_seconds, timeout_seconds, success_threshold, failure_threshold,
            }
        }
    }

    proptest! {
        #[test]
        fn a_probe_that_is_written_is_parsed_to_the_same(probe in probe()) {
            let (sent, file) = to_wire(&probe);
            let received = serde_json::from_value(serde_json::to_value(sent).unwrap()).unwrap();
            prop_assert_eq!(from_wire(&received, file.as_ref()), Ok(probe));
        }
    }

    #[test]
    fn every_field_is_written() {
        let wire = serde_json::from_value(json!({"httpGet": {"port": 80}})).unwrap();
        let (wire, file) = to_wire(&from_wire(&wire, None).unwrap());
        assert_eq!(file, None);
        let wire = serde_json::to_value(wire).unwrap();
        let expected = json!({
            "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
            "initialDelaySeconds": 0,
            "periodSeconds": 10,
            "timeoutSeconds": 1,
            "successThreshold": 1,
            "failureThreshold": 3,
        });
        assert_eq!(wire, expected);
    }

    // PRB-3, DEF-21
    #[test]
    fn the_agent_refuses_probes_that_it_must_not_run() {
        let refused: [(Value, &str); 8] = [
            (json!({}), "probe"),
            (json!({"exec": {}}), "probe.exec.command"),
            (
                json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}),
                "probe",
            ),
            (json!({"tcpSocket": {"port": 0}}), "probe.tcpSocket.port"),
            (json!({"tcpSocket": {"port": "game"}}), "probe"),
            (json!({"httpGet": {"port": "game"}}), "probe"),
            (
                json!({"httpGet": {"port": 1, "host": "10.0.0.1"}}),
                "probe.httpGet.host",
            ),
            (
                json!({"tcpSocket": {"port": 1, "host": "10.0.0.1"}}),
                "probe.tcpSocket.host",
            ),
        ];
        for (wire, path) in refused {
            let probe = serde_json::from_value(wire.clone()).unwrap();
            let errors = from_wire(&probe, None).unwrap_err();
            let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
            assert_eq!(paths, [path], "{wire}");
        }
    }

    // PRB-30
    #[test]
    fn the_agent_refuses_files_outside_of_a_volume() {
        let timing = serde_json::from_value(json!({"periodSeconds": 1})).unwrap();
        let exec = serde_json::from_value(json!({"exec": {"command": ["a"]}})).unwrap();
        let file = |volume: &str, path: &str| FileProbe {
            volume: volume.to_owned(),
            path: path.to_owned(),
            not_older_than_seconds: Some(1),
        };
        assert!(from_wire(&timing, Some(&file("work", "a/b"))).is_ok());
        for (probe, file, path) in [
            (&exec, file("work", "a"), "probe"),
            (&timing, file("../work", "a"), "file.volume"),
            (&timing, file("work", "../a"), "file.path"),
            (&timing, file("work", "/a"), "file.path"),
        ] {
            let errors = from_wire(probe, Some(&file)).unwrap_err();
            let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
            assert!(paths.contains(&path), "{file:?}: {paths:?}");
        }
    }
}
