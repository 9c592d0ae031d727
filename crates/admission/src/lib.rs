//! Admission webhooks: a TLS server that answers the API server, its certificates, and the configurations by which the
//! API server calls it. This crate knows no feature: a feature provides a [`Reviewer`] and the objects that it reviews.
//!
//! # Guarantees
//!
//! - Every answer allows. A review that is late, panics or cannot be decoded is answered with "no change" and counted, so
//!   no failure of ours blocks the creation of a pod, but where a feature asks for `failurePolicy: Fail`: then such a
//!   review is an error.
//! - A replica that is behind what the API server was told to call by waits before it answers (`barrier`).
//! - Every replica serves, leader or not, on a thread of its own: a busy control loop delays no answer.
//! - An object is decoded into what its reviewer reads of it and never serialised again; the answer is a patch, so that
//!   fields that are newer than this program pass through.
//!
//! The protocol: `k8s.io/api/admission/v1`, `k8s.io/apiserver/pkg/admission/plugin/webhook`, and KEP-2161 (the label
//! `kubernetes.io/metadata.name` on namespaces) and KEP-3716 (match conditions), by which the API server does not call
//! at all for pods that nobody wants.
//!
//! | module | holds |
//! |---|---|
//! | `args` | the flags |
//! | `review` | the trait that a feature implements, with its request and response |
//! | `webhook` | a feature's webhook: its reviewer, and the objects for which the API server calls it |
//! | `barrier` | how a replica knows that it is behind |
//! | `endpoint` | the handling of a request |
//! | `server` | TLS and HTTP, and a shutdown that fails no request |
//! | `certificate` | certificates: issued and renewed in a Secret, or read from a directory |
//! | `configuration` | the webhook configuration: its desired contents, and the loop that maintains them |
//! | `owner` | the owner by which configuration and Secret go with an uninstall |
//! | `pace` | growing delays between writes of one object |
//! | `metrics` | the metrics |
//! | `admission` | all of them together |
#![doc(html_no_source)]

mod admission;
mod args;
mod barrier;
mod certificate;
mod configuration;
mod endpoint;
mod metrics;
mod owner;
mod pace;
mod review;
mod server;
mod webhook;

pub use admission::{Admission, AdmissionError};
pub use args::{Args, SERVICE, ServiceReference, WEBHOOK_PORT, WebhookUrl};
pub use barrier::StateVersion;
pub use certificate::secret::SECRET;
pub use certificate::{BundleError, bundle_validity};
pub use configuration::CONFIGURATION;
pub use owner::OWNER;
pub use review::{AdmissionRequest, AdmissionResponse, Operation, PatchOperation, Reviewer};
pub use webhook::{FailurePolicy, Webhook, WebhookCalls, WebhookFeed, WebhookSpec};

/// The field manager of this crate's writes.
const FIELD_MANAGER: &str = "leadsman-admission";

/// The rights on the one Secret, in the manager's namespace: the verb, and whether it can be granted by name. RBAC
/// cannot restrict `create` by name.
pub const SECRET_RIGHTS: [(&str, bool); 4] = [
    ("create", false),
    ("list", true),
    ("watch", true),
    ("update", true),
];

/// The rights on the one configuration, all by name: an apply of what does not exist asks for `create` with its name
/// (`createAuthorizerAttributes` in `k8s.io/apiserver/pkg/endpoints/handlers/patch.go`).
pub const CONFIGURATION_RIGHTS: [&str; 5] = ["list", "watch", "create", "patch", "delete"];

/// The rights to delete the configuration that a process with a feature left behind, for one without.
pub const LEFTOVER_RIGHTS: [&str; 2] = ["get", "delete"];

/// The rights on the `ClusterRole` that is named as the owner of the configuration, and on the `Role` that is named as that
/// of the Secret.
pub const OWNER_RIGHTS: [&str; 1] = ["get"];
