//! What objects should look like at rest, from other objects alone, by the shortest code that can be read against the rules in
//! `docs/reference`: without an index, events or hashes. What only history tells is not judged.

mod marks;
mod sets;

pub use marks::{Mark, is_active, mark_faults, mark_on, marks_after, node_of, pod_in};
pub use sets::{container, declared_container, is_injected, set_faults};
