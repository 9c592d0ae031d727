//! What the black-box suites share: a harness that counts skips, waiting by watch, and scenes to play in.
//!
//! The suites know leadsman as its users do: as processes, objects and the API server's audit log. No crate of
//! leadsman's but the wire types is used here.

pub mod budget;
pub mod console;
pub mod crowd;
pub mod document;
pub mod echo;
pub mod harness;
pub mod history;
pub mod kubectl;
pub mod link;
pub mod lossy_link;
pub mod metrics;
pub mod neighbour;
pub mod object_watch;
pub mod openkruise;
pub mod oracle;
pub mod process;
pub mod report;
pub mod room;
pub mod scene;
pub mod stall;
pub mod wait;
pub mod ways;

pub use crowd::Crowd;
pub use echo::Echo;
pub use harness::{Beside, Case, Skipped, run};
pub use history::History;
pub use kubectl::{Printed, kubectl_leadsman};
pub use link::Link;
pub use lossy_link::{Losses, LossyLink};
pub use metrics::sum_of_counters;
pub use neighbour::Neighbour;
pub use object_watch::ObjectWatch;
pub use process::Process;
pub use report::{now, report};
pub use room::Room;
pub use scene::Scene;
pub use stall::stall_body;

pub use wait::{wait_for_answer, wait_for_deletion, wait_for_object, wait_longer_for_answer};
pub use ways::Way;
