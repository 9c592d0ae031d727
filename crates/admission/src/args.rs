//! The flags.

use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;
use leadsman_process::serve::BindAddress;

/// The default Service by which the API server calls the webhooks.
pub const SERVICE: &str = "leadsman-webhook";
/// The port that webhooks are served on by default.
pub const WEBHOOK_PORT: u16 = 9443;

/// Flags of the admission webhooks.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Admission webhooks")]
pub struct AdmissionArgs {
    /// Address of the admission webhooks, which are served when a feature needs them: `IP:PORT`, `:PORT` for every
    /// address, or 0 for none
    #[arg(
        long,
        env = "LEADSMAN_WEBHOOK_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value_t = BindAddress::Every { port: WEBHOOK_PORT }
    )]
    pub webhook_bind_address: BindAddress,
    /// Directory with tls.crt, tls.key and ca.crt, as cert-manager and the kubelet write them; followed while the
    /// manager runs [default: certificates of leadsman's own, in the Secret leadsman-webhook]
    #[arg(long, env = "LEADSMAN_WEBHOOK_CERT_DIR", value_name = "DIR")]
    pub webhook_cert_dir: Option<PathBuf>,
    /// Service by which the API server reaches the webhooks, as NAMESPACE/NAME or NAMESPACE/NAME:PORT [default:
    /// leadsman-webhook in the manager's namespace, port 443]
    #[arg(long, env = "LEADSMAN_WEBHOOK_SERVICE", value_name = "SERVICE")]
    pub webhook_service: Option<ServiceReference>,
    /// URL by which the API server reaches the webhooks, instead of a Service: for a manager outside of the cluster
    #[arg(
        long,
        env = "LEADSMAN_WEBHOOK_URL",
        value_name = "URL",
        conflicts_with = "webhook_service"
    )]
    pub webhook_url: Option<WebhookUrl>,
}

/// A Service and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: NonZeroU16,
}

/// Not a Service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither NAMESPACE/NAME nor NAMESPACE/NAME:PORT")]
pub struct MalformedService(String);

impl ServiceReference {
    /// The port that the API server takes if none is given (`k8s.io/apiserver/pkg/util/webhook/client.go`).
    const PORT: NonZeroU16 = NonZeroU16::new(443).expect("not 0");

    /// The Service that is used if no other one is given.
    pub(crate) fn default_in_namespace(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: SERVICE.to_owned(),
            port: Self::PORT,
        }
    }
}

impl FromStr for ServiceReference {
    type Err = MalformedService;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let malformed = || MalformedService(s.to_owned());
        let (namespace, rest) = s.split_once('/').ok_or_else(malformed)?;
        let (name, port) = match rest.split_once(':') {
            Some((name, port)) => (name, port.parse().map_err(|_| malformed())?),
            None => (rest, Self::PORT),
        };
        if !is_dns_label(namespace) || !is_dns_label(name) {
            return Err(malformed());
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port,
        })
    }
}

/// A label of a DNS name as Kubernetes names namespaces and Services by (RFC 1123; `IsDNS1123Label` in
/// `k8s.io/apimachinery/pkg/util/validation`).
fn is_dns_label(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The beginning of the webhooks' URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl {
    prefix: String,
    host: String,
}

/// Not a URL that the API server calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not https://HOST[:PORT][/PATH] without user, query and fragment")]
pub struct MalformedUrl(String);

impl WebhookUrl {
    /// The host, which the certificate has to name.
    pub(crate) fn host_name(&self) -> &str {
        &self.host
    }
}

/// The rules are the API server's (`ValidateWebhookURL` in `k8s.io/apiserver/pkg/util/webhook/validation.go`).
impl FromStr for WebhookUrl {
    type Err = MalformedUrl;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let malformed = || MalformedUrl(s.to_owned());
        let uri: Uri = s.parse().map_err(|_| malformed())?;
        let host = uri.host().unwrap_or_default();
        if uri.scheme_str() != Some("https") || host.is_empty() || s.contains(['@', '?', '#']) {
            return Err(malformed());
        }
        Ok(Self {
            prefix: s.trim_end_matches('/').to_owned(),
            host: host.trim_matches(['[', ']']).to_owned(),
        })
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_parse_with_and_without_a_port() {
        let table = [
            (
                "leadsman-system/hook",
                Some(("leadsman-system", "hook", 443)),
            ),
            ("a/b:9443", Some(("a", "b", 9443))),
            ("a/b:0", None),
            ("a/b:", None),
            ("hook", None),
            ("/hook", None),
            ("a/", None),
            ("a/b/c", None),
            ("A/b", None),
            ("a/-b", None),
        ];
        for (text, expected) in table {
            let parsed = text.parse::<ServiceReference>().ok();
            let parsed = parsed
                .as_ref()
                .map(|s| (&*s.namespace, &*s.name, s.port.get()));
            assert_eq!(parsed, expected, "{text:?}");
        }
    }

    #[test]
    fn urls_are_those_that_the_api_server_calls() {
        let table = [
            (
                "https://127.0.0.1:9443",
                Some(("https://127.0.0.1:9443", "127.0.0.1")),
            ),
            ("https://[::1]:9443/", Some(("https://[::1]:9443", "::1"))),
            (
                "https://hooks.example.com/a/",
                Some(("https://hooks.example.com/a", "hooks.example.com")),
            ),
            ("http://127.0.0.1:9443", None),
            ("https://user@host", None),
            ("https://host/?a=b", None),
            ("host:9443", None),
            ("", None),
        ];
        for (text, expected) in table {
            let parsed = text.parse::<WebhookUrl>().ok();
            let parsed = parsed.as_ref().map(|url| (&*url.prefix, &*url.host));
            assert_eq!(parsed, expected, "{text:?}");
        }
    }
}
