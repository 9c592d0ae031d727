//! The watch of one object by its name, for which a right on this one object is enough
//! (Kubernetes RBAC, "Referring to resources": `list` and `watch` with a `fieldSelector` on `metadata.name`).

use std::future::ready;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::Resource;
use serde::de::DeserializeOwned;

use super::{WatchEvent, list_and_watch};
use crate::list::ListTarget;
use crate::reply::Disposition;
use crate::server::ApiServer;

/// An event that the watch of one object delivers.
#[derive(Debug)]
pub enum ObjectEvent<K> {
    /// The object as it is now.
    Observed(ObjectState<K>),
    /// A watch is established: changes are delivered from now on.
    Following,
    /// A list or a watch failed for this reason; it is tried again.
    Failed(Disposition),
}

/// An object as the API server shows it.
#[derive(Clone, Debug)]
pub enum ObjectState<K> {
    /// The object exists.
    Present(Box<K>),
    /// The object was deleted; this is the last state that it had.
    Deleted(Box<K>),
    /// A complete list does not contain it.
    Absent,
}

/// Watches one object of the target, which metrics name (see [`ListTarget::only_named`]), through every outage. The stream never
/// ends.
pub fn watch_object<K>(
    server: ApiServer,
    target: ListTarget,
    name: &str,
    random: fastrand::Rng,
) -> BoxStream<'static, ObjectEvent<K>>
where
    K: Resource + DeserializeOwned + Clone + Send + 'static,
{
    let target = target.only_named(name);
    // The end alone of a list shows that it lacks the object.
    let mut listed = false;
    let events = list_and_watch::<K>(server, target, |text| serde_json::from_str(text), random)
        .filter_map(move |event| {
            let present = |object| {
                Some(ObjectEvent::Observed(ObjectState::Present(Box::new(
                    object,
                ))))
            };
            ready(match event {
                WatchEvent::ListStarted => {
                    listed = false;
                    None
                }
                // One object is one page, whose end follows at once.
                WatchEvent::ListPage(_) => None,
                WatchEvent::ListItem(object) => {
                    listed = true;
                    present(object)
                }
                WatchEvent::ListComplete(_) => {
                    (!listed).then_some(ObjectEvent::Observed(ObjectState::Absent))
                }
                WatchEvent::Changed(object) => present(object),
                WatchEvent::Deleted(object) => {
                    let deleted = ObjectState::Deleted(Box::new(object));
                    Some(ObjectEvent::Observed(deleted))
                }
                WatchEvent::Following => Some(ObjectEvent::Following),
                WatchEvent::Failed(failure) => Some(ObjectEvent::Failed(failure.disposition)),
            })
        });
    events.boxed()
}
