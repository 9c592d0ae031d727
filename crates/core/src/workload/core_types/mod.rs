//! The fields of `core/v1` types in the order in which Go writes them: those of `k8s.io/api` 0.32, with which `OpenKruise`
//! computes the hashes on its objects. Newer fields are not added, since they would stand in another place than they do
//! in a later `OpenKruise`; `go_json` writes them behind the others.

mod containers;
mod pods;
mod volumes;

pub use containers::{CONTAINER, OBJECT_FIELD_SELECTOR};
pub use pods::POD_TEMPLATE;
pub use volumes::{LOCAL_OBJECT_REFERENCE, VOLUME};
