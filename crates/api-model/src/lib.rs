//! A model of kube-apiserver as a [`tower::Service`], for simulations: no socket, no thread and no clock of its own.
//!
//! [`ApiServer`] keeps objects with versions and answers a [`kube::Client`] as a real API server would, as far as the list
//! below says. Everything follows from the requests, the clock and the seed that it is given, so that a run can be repeated.
//! A [`Link`] between a client and the server loses, delays and refuses requests, breaks watches, and says how far the API
//! server that the client reads from is behind. `tests/api/model.rs` plays generated requests to the model and to the real
//! kube-apiserver at once, and compares the answers.
//!
//! # What is modelled
//!
//! - get, list (selectors, pages of one version, `resourceVersion`, `resourceVersionMatch`), watch (selectors, bookmarks,
//!   `sendInitialEvents`, 410), create (`generateName`), update, delete (preconditions, grace of pods, finalizers,
//!   propagation) and all four patches, on objects and on `status`; `dryRun`.
//! - `metadata.managedFields` for updates and for server-side apply, with conflicts, force and removal.
//! - CRDs: whoever stores one has it served; defaults are filled in, and fields that the schema lacks are dropped.
//! - Mutating and validating webhooks, by their stored configurations; the harness answers their calls, and evaluates
//!   `matchConditions`.
//! - Garbage collection and the end of namespaces, when the harness calls [`ApiServer::collect_garbage`].
//! - A restore of etcd, compaction, and API servers that are behind.
//!
//! # What is not
//!
//! - Authentication, RBAC, quotas, priorities, `ValidatingAdmissionPolicy`, and admission plugins but for `NamespaceLifecycle`
//!   and what a new pod gets.
//! - Validation: of a built-in kind only that a pod's spec does not change, of a custom resource nothing (neither types nor
//!   CEL), unless [`Resource::validate`] says it. Unknown fields of a built-in kind are kept.
//! - Several versions of a kind; `Table`, YAML and protobuf; the subresources `scale`, `eviction` and `binding`;
//!   `deletecollection`; the limit of ten managers that update (`capmanagers.go`); warnings.
//! - The order of a strategic merge patch (`$setElementOrder`).

mod admission;
mod builtin;
mod change;
mod checks;
mod collect;
mod delete;
mod fields;
mod link;
mod managers;
mod patch;
mod read;
mod request;
mod resource;
mod review;
mod schema;
mod selector;
mod server;
mod status;
mod store;
mod watch;
mod write;

pub use admission::{Admission, Variables, WebhookCall};
pub use builtin::kubernetes;
pub use link::{Answered, EventFate, FaultlessLink, Link, RequestFacts, RequestFate};
pub use resource::{Generation, Resource, Validate};
pub use schema::ValueSchema;
pub use server::ApiServer;
pub use status::StatusCause;
pub use store::StoredChange;

#[cfg(test)]
mod tests;
