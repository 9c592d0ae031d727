//! The vocabulary of a cluster: what any rule needs to speak of objects, whichever system the rule belongs to.
//!
//! No feature is known here, and no wire type of one.
//!
//! | module | holds |
//! |---|---|
//! | `object` | an object's name and resourceVersion, where a snapshot of it comes from |
//! | `watches` | how far each watch has come, which objects were deleted: whether a snapshot shows anything new |
//! | `effects` | which writes an event may make due, and when to look again |
//! | `refusal` | why a write is refused |
//! | `time`, `timers` | a moment by both clocks, times in whole seconds; what is reconsidered later |
//! | `selector`, `selector_terms` | label selectors, parsed; their requirements one by one, for people |
//! | `cel` | selectors as the API server evaluates them for a webhook |
//! | `names` | the forms of names: qualified names, values of labels, names of ports |
//! | `invalid` | what is wrong with an object, and in which field |
//! | `text` | texts that must fit somewhere |
//! | `go_json` | JSON as the API server stores it, and its length |
//! | `closed_list` | enums of words that people see, and that a page explains |
//! | `round_robin` | queues that are served in turn, such as those of namespaces |
//! | `sorted_map`, `interner` | maps and strings of which a manager keeps hundreds of thousands |

pub mod cel;
mod closed_list;
mod effects;
pub mod go_json;
mod interner;
mod invalid;
pub mod names;
mod object;
mod refusal;
mod round_robin;
mod selector;
mod selector_terms;
mod sorted_map;
mod text;
mod time;
mod timers;
mod watches;

pub(crate) use closed_list::closed_list;
#[cfg(test)]
pub(crate) use closed_list::words_of_tables;
pub use effects::Effects;
pub use interner::{Interner, Interners};
pub use invalid::{FieldErrors, Invalid};
pub(crate) use object::PodName;
pub use object::{ObjectName, ResourceVersion, Source};
pub use refusal::Refusal;
pub use round_robin::{RoundRobin, TurnQueue};
pub use selector::{Operator, Selector};
pub use selector_terms::SelectorTerm;
pub use sorted_map::SortedMap;
pub(crate) use text::edit_distance;
pub use text::{nearest, truncate};
pub use time::{Now, whole_seconds};
pub use timers::Timers;
pub use watches::{CompleteList, Watches};
