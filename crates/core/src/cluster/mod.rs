//! The vocabulary of a cluster: what any rule needs to speak of objects, whichever system the rule belongs to.
//!
//! No feature is known here, and no wire type of one. Names, versions, times and the like are those of the kernel.
//!
//! | module | holds |
//! |---|---|
//! | `selector`, `selector_terms` | label selectors, parsed; their requirements one by one, for people |
//! | `cel` | selectors as the API server evaluates them for a webhook |
//! | `names` | the forms of names: qualified names, values of labels, names of ports |
//! | `invalid` | what is wrong with an object, and in which field |
//! | `text` | texts that must fit somewhere |
//! | `go_json` | JSON as the API server stores it, and its length |
//! | `closed_list` | enums of words that people see, and that a page explains |
//! | `sorted_map`, `interner`, `compact_time` | maps, strings and times of which a manager keeps hundreds of thousands |

pub mod cel;
mod closed_list;
mod compact_time;
pub mod go_json;
mod interner;
mod invalid;
pub mod names;
mod selector;
mod selector_terms;
mod sorted_map;
mod text;

pub use leadsman_reconcile::{
    Effects, Now, ObjectName, Refusal, ResourceVersion, RoundRobin, Source, TurnQueue,
    whole_seconds,
};

/// The name of a pod, of which an index keeps hundreds of thousands, each in many places.
pub(crate) type PodName = std::sync::Arc<ObjectName>;

pub(crate) use closed_list::closed_list;
#[cfg(test)]
pub(crate) use closed_list::words_of_tables;
pub use compact_time::CompactTime;
pub use interner::{Interner, Interners};
pub use invalid::{FieldErrors, Invalid};
pub use selector::{Operator, Selector};
pub use selector_terms::SelectorTerm;
pub use sorted_map::SortedMap;
pub(crate) use text::edit_distance;
pub use text::{nearest, truncate};
