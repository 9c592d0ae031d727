//! Admission webhooks: a TLS server that answers the API server, its certificates, and the configurations by which the
//! API server calls it. This crate knows no feature: a feature provides a [`Reviewer`] and the objects that it reviews.
//!
//! # Guarantees
//!
//! - Only a feature's [`Validation`] refuses an object; one that answers with a [`Mutation`] refuses it only in a call with
//!   [`WebhookFailurePolicy::Fail`]. A review that is late, panics or cannot be decoded is answered with "allowed, no change" and counted. Without a uid (the body
//!   came too late, was too long, or is no review) there is no such answer: it is an HTTP error, for which the API server
//!   takes the configuration's `failurePolicy`. That is `Ignore`, so no failure of ours blocks a write, unless a feature
//!   asks for `Fail`: then each of these reviews is an error.
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
//! | `body_room` | the room that bodies share, and which of them gives way |
//! | `server` | TLS and HTTP, and a shutdown that fails no request |
//! | `certificate` | certificates: issued and renewed in a Secret, or read from a directory |
//! | `configuration` | the webhook configurations: their desired contents, and the loop that maintains them |
//! | `owner` | the owners by which configurations and Secret go with an uninstall |
//! | `pace` | growing delays between writes of one object |
//! | `metrics` | the metrics |
//! | `admission` | all of them together |
#![doc(html_no_source)]

mod admission;
mod args;
mod barrier;
mod body_room;
mod certificate;
mod configuration;
mod endpoint;
#[cfg(feature = "sim")]
mod in_process;
mod metrics;
mod owner;
mod pace;
mod review;
mod server;
mod webhook;

pub use admission::{Admission, AdmissionError, WebhookServing};
pub use args::{AdmissionArgs, SERVICE, ServiceReference, WEBHOOK_PORT, WebhookUrl};
pub use barrier::StateVersion;
pub use certificate::secret::SECRET;
pub use certificate::{BundleError, bundle_validity};
pub use configuration::CONFIGURATION;
#[cfg(feature = "sim")]
pub use in_process::{CallError, InProcessCaller, InProcessServer, serve_in_process};
pub use owner::{OWNER, VALIDATING_OWNER};
pub use review::{
    AdmissionRequest, Mutation, ObjectKind, PatchOperation, RefusalCause, ReviewOperation,
    ReviewResponse, Reviewer, Validation,
};
pub use webhook::{Webhook, WebhookCalls, WebhookFailurePolicy, WebhookFeed, WebhookSpec};

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

/// The rights on the one configuration of either kind, all by name: an apply of what does not exist asks for `create` with its name
/// (`createAuthorizerAttributes` in `k8s.io/apiserver/pkg/endpoints/handlers/patch.go`).
pub const CONFIGURATION_RIGHTS: [&str; 5] = ["list", "watch", "create", "patch", "delete"];

/// The rights to delete the configuration of webhooks that change objects, which a process with a feature left behind, for
/// one without. That of webhooks that judge objects goes with its owner.
pub const LEFTOVER_RIGHTS: [&str; 2] = ["get", "delete"];

/// The rights on the `ClusterRole`s that are named as the owners of the configurations, and on the `Role` that is named as
/// that of the Secret.
pub const OWNER_RIGHTS: [&str; 1] = ["get"];
