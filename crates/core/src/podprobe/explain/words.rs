//! Selectors, probes and durations as text.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::cluster::{Invalid, Selector};
use crate::podprobe::marker::MarkerProbe;
use crate::podprobe::probe::Scheme;
use crate::podprobe::template::{HandlerTemplate, Port};

/// A selector of a workload, as the API takes it in a query.
pub fn format_selector(selector: &LabelSelector) -> Result<String, Invalid> {
    let parsed = Selector::parse(selector).map_err(|errors| {
        let mut errors = errors.into_iter();
        errors
            .next()
            .expect("a selector that is refused has an error")
    })?;
    Ok(parsed.to_string())
}

/// Describes what a probe does, and how often.
pub(super) fn describe_probe(probe: &MarkerProbe) -> String {
    let template = &probe.template;
    let handler = match &template.handler {
        HandlerTemplate::Exec { command } => format!("exec {}", command.join(" ")),
        HandlerTemplate::HttpGet {
            scheme, port, path, ..
        } => {
            let scheme = match scheme {
                Scheme::Http => "http",
                Scheme::H2c => "http2",
                Scheme::Https => "https",
            };
            format!("httpGet {scheme} port {}, path {path}", describe_port(port))
        }
        HandlerTemplate::TcpSocket { port } => format!("tcpSocket port {}", describe_port(port)),
        HandlerTemplate::Grpc {
            port,
            service,
            over_tls,
        } => {
            let tls = if *over_tls { " over TLS" } else { "" };
            match service.as_str() {
                "" => format!("grpc{tls} port {port}"),
                service => format!("grpc{tls} port {port}, service {service}"),
            }
        }
        HandlerTemplate::File(file) => {
            let seconds = file.not_older_than_seconds;
            let age = seconds.map_or(String::new(), |age| format!(", not older than {age} s"));
            format!("file {} in volume {}{age}", file.path, file.volume)
        }
    };
    let handler = shorten_text(&handler);
    format!("{handler}, every {} s", template.period_seconds)
}

/// A command may have thousands of characters.
fn shorten_text(text: &str) -> String {
    const LONGEST: usize = 120;
    let mut chars = text.chars();
    let beginning: String = chars.by_ref().take(LONGEST).collect();
    // The text is shown within a line.
    let short = beginning.replace(char::is_control, " ");
    if chars.next().is_some() {
        format!("{short}…")
    } else {
        short
    }
}

fn describe_port(port: &Port) -> String {
    match port {
        Port::Number(number) => number.to_string(),
        Port::Name(name) => name.to_string(),
    }
}

/// How long ago something was, as kubectl writes ages.
pub fn format_age(then: Timestamp, now: Timestamp) -> String {
    format_duration(now.duration_since(then))
}

/// A duration in one or two units, as kubectl writes ages (`HumanDuration`,
/// `k8s.io/apimachinery/pkg/util/duration/duration.go`).
pub(super) fn format_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: &str, small: i64, next: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{next}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if hours < 3 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(-3, "0s")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(191, "3m11s")]
    #[case(601, "10m")]
    #[case(10_799, "179m")]
    #[case(10_800, "3h")]
    #[case(11_700, "3h15m")]
    #[case(86_400, "24h")]
    #[case(176_400, "2d1h")]
    #[case(864_000, "10d")]
    fn ages_are_written_as_kubectl_does(#[case] seconds: i64, #[case] expected: &str) {
        assert_eq!(
            format_duration(SignedDuration::from_secs(seconds)),
            expected
        );
    }
}
