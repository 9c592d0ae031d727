//! What a new leader reads before it writes.
//!
//! A standby's watches may lag, each by another time, behind what the last leader saw. With a verdict from before the
//! last leader's mark it would put the old mark back. So what decisions hang on, markers and `NodePodProbe`s, is read
//! once more, as the API server's store has it; a pod that is seen late costs a write that changes nothing.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use kube::api::ListParams;
use kube::{Api, Client};
use leadsman_api::{Guarded, NodePodProbe, PodProbeMarker};
use leadsman_core::podprobe::event::{Event, Source};
use tokio::time::sleep;

use crate::kinds::{Watched, resource};

/// Objects in a page; a full node's object has half a megabyte.
const PAGE: u32 = 100;
/// Between two attempts; there are no more once the Lease is lost.
const PAUSE: Duration = Duration::from_millis(500);

/// All of them, page by page, as events. Ends when all are read.
pub(super) fn read(client: Client) -> BoxStream<'static, Vec<Event>> {
    let markers = pages::<PodProbeMarker>(client.clone());
    markers.chain(pages::<NodePodProbe>(client)).boxed()
}

fn pages<K: Watched>(client: Client) -> BoxStream<'static, Vec<Event>> {
    let objects = Api::<Guarded<K>>::all(client);
    let first = Some(ListParams::default().limit(PAGE));
    unfold(first, move |next| page(objects.clone(), next)).boxed()
}

async fn page<K: Watched>(
    objects: Api<Guarded<K>>,
    next: Option<ListParams>,
) -> Option<(Vec<Event>, Option<ListParams>)> {
    let mut params = next?;
    let list = loop {
        match objects.list(&params).await {
            Ok(list) => break list,
            Err(error) => {
                let resource = resource(K::KIND);
                tracing::warn!(resource, %error, "cannot read anew what is to be written by, trying again");
                // The rest of a list is kept for minutes only.
                params.continue_token = None;
                sleep(PAUSE).await;
            }
        }
    };
    let token = list.metadata.continue_.filter(|token| !token.is_empty());
    let next = token.map(|token| ListParams::default().limit(PAGE).continue_token(&token));
    let events = list.items.into_iter().filter_map(|object| match object {
        Guarded::Decoded(object) => Some(object.seen(Source::Live)),
        // The watch has reported it.
        Guarded::Undecodable { .. } => None,
    });
    Some((events.collect(), next))
}
