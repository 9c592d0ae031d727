//! Leadership by a `Lease`: of all processes that name the same one, at most one leads at an instant.
//!
//! Usable by itself: it knows no object but the Lease.
//!
//! ```no_run
//! # async fn lead(server: leadsman_process::ApiServer, check: leadsman_process::ReadinessCheck, random: fastrand::Rng) {
//! use leadsman_lease::{LeaseCandidate, LeaseConfig, Shutdown};
//! use leadsman_process::clock;
//!
//! let candidate = LeaseCandidate::new(
//!     server,
//!     LeaseConfig {
//!         namespace: "kube-system".to_owned(),
//!         name: "my-controller".to_owned(),
//!         identity: "my-pod-7c9f_1d0e6f5a".to_owned(),
//!         duration_seconds: 15,
//!         field_manager: "my-controller".to_owned(),
//!     },
//!     check,
//!     (),
//!     random,
//! );
//! let leadership = candidate.subscribe_to_leadership();
//! let shutdown = Shutdown::default();
//! tokio::spawn(candidate.take_part(shutdown.clone()));
//! // Before each write, and as the longest time that it may take:
//! if let Some(left) = leadership.borrow().time_left(clock::monotonic()) {
//!     // … send, give up after `left` …
//! }
//! # }
//! ```
//!
//! # Guarantees
//!
//! **Never two leaders.** Two candidates never lead at the same instant, whatever their clocks say, however requests
//! are lost, late or answered to nobody, and however long one of them is stopped, as long as nobody else writes the
//! Lease and the monotonic clocks of two machines run at nearly the same rate. The argument:
//!
//! 1. A leader counts its term from the *sending* of the request that took or renewed the Lease, for one duration.
//! 2. Everybody else sees that write later than it was sent, and waits one duration from when it last saw the record
//!    change. So the others' wait ends after the leader's term. No time of day is compared with another machine's.
//! 3. Each write carries the resourceVersion that it was made from, so that of two candidates that waited long enough
//!    the API server refuses one (409 Conflict).
//!
//! A simulation of candidates with clocks of their own and an API server that loses, delays and reorders checks this,
//! and that a Lease is taken within two durations after the faults have ended (`elector/proof.rs`).
//!
//! **Never two writers, as far as Kubernetes allows.** An API server does not compare a write with a Lease, so a write
//! that was sent in time may be carried out late. What a user of this crate has to do: ask [`Leadership::time_left`]
//! before each write, and give the write up after that time. A process that was stopped by the kernel finds no time
//! left when it wakes. What remains is a write that the API server itself holds up for longer than the rest of the
//! Lease: let it carry a resourceVersion or a uid where an old write would do harm.
//!
//! **A clean shutdown hands over at once.** [`Shutdown`] first keeps the Lease without taking it again, until the
//! writes under way have ended, and then releases it with an empty holder, so that the others need not wait.
//!
//! The record is client-go's (`k8s.io/client-go/tools/leaderelection`), so that `kubectl` and other tools read it. A
//! candidate needs the verbs `get`, `list`, `watch` and `update` on the Lease by its name, and `create` on Leases of
//! the namespace, since RBAC cannot restrict `create` by name.
//!
//! | module | holds |
//! |---|---|
//! | `record` | the record of a Lease about its holder |
//! | `elector` | the decisions when to take, renew and release the Lease; pure |
//! | `leadership` | leadership, as the rest of the process sees it |
//! | `candidate` | the loop that watches and writes the Lease |
//! | `watch` | the watch of one Lease |
//! | `report` | readiness, log lines and the observer |
#![doc(html_no_source)]

mod candidate;
mod elector;
mod leadership;
pub mod record;
mod report;
mod watch;

pub use candidate::{LeaseCandidate, LeaseConfig, Shutdown};
pub use leadership::Leadership;
pub use report::LeadershipObserver;
pub use watch::{LeaseEvent, LeaseState, describe_lease_failure, watch_lease};
