//! Admission webhooks: a TLS server that answers the API server, its certificates, and the configurations by which the
//! API server calls it. No feature is known here; a feature brings a [`Reviewer`] and says when it wants to be called.
//!
//! # Guarantees
//!
//! - A pod is never refused for a trouble of ours. Every webhook has `failurePolicy: Ignore`, every answer allows, and
//!   what cannot be reviewed in time, panics or does not decode is answered with "no change" and counted.
//! - Every replica serves, leader or not, on a thread of its own: a busy control loop delays no answer.
//! - An object is decoded into what its reviewer reads of it and never serialised again; the answer is a patch, so that
//!   fields that are newer than this program pass through.
//!
//! The protocol: `k8s.io/api/admission/v1`, `k8s.io/apiserver/pkg/admission/plugin/webhook`, and KEP-2161 (the label
//! `kubernetes.io/metadata.name` on namespaces) and KEP-3716 (match conditions), by which the API server does not call at
//! all for pods that nobody wants.
//!
//! | module | holds |
//! |---|---|
//! | `args` | the flags |
//! | `review` | what a feature implements, and what it is asked |
//! | `webhook` | what a feature says of its webhook: for which objects the API server is to call |
#![doc(html_no_source)]

mod args;
mod certificate;
mod endpoint;
mod metrics;
mod review;
mod server;
mod webhook;

pub use args::{Args, ServiceReference, WebhookUrl};
pub use review::{AdmissionRequest, AdmissionResponse, Operation, PatchOperation, Reviewer};
pub use webhook::{Webhook, WebhookSpec};
