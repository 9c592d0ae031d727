//! The common parts of `SidecarSet`, `CloneSet` and `DaemonSet` of `OpenKruise`: texts that are hashed as Go writes them,
//! defaults of containers and volumes, hashes and revisions, the order of an upgrade, and an upgrade in place.
//!
//! Objects of `core/v1` stay the JSON that they are ([`JsonObject`]). A type with fields would drop those that it does
//! not know, and a pod that is written without them is refused or changed. What is known of a type is a table
//! (`core_types`), by which a value is read, completed and written; whatever the table lacks passes through.
//!
//! | module | holds |
//! |---|---|
//! | `core_types` | the fields of containers and volumes, in the order in which Go writes them |
//! | `go_json` | JSON as Go's `encoding/json` writes a value of such a type |
//! | `quantity` | amounts such as `1.5Gi`, as Kubernetes parses and writes them |
//! | `defaults` | what the API server fills in where a container or a volume leaves it out |
//! | `validity` | what Kubernetes requires of containers and volumes |
//! | `object` | fields of an object of JSON |
//! | `image` | names of images |
//! | `hash` | hashes as names, labels and annotations contain them |
//! | `pod` | a pod that may be upgraded in place, and its place in the order of an upgrade |
//! | `node_fit` | the nodes that a pod fits |
//! | `amount` | a number of pods, or a share of them |
//! | `priority`, `scatter` | which pods come first in a roll-out, and which are spread over it |
//! | `revision` | `ControllerRevision`s: data, names, numbers, and which of them are kept |

pub mod amount;
pub mod core_types;
pub mod defaults;
pub mod go_json;
pub mod hash;
pub mod image;
pub mod node_fit;
pub mod object;
pub mod pod;
pub mod priority;
pub mod quantity;
pub mod revision;
pub mod scatter;
pub mod validity;

/// An object of JSON, with all fields that it came with. The order of its fields means nothing.
pub type JsonObject = serde_json::Map<String, serde_json::Value>;
