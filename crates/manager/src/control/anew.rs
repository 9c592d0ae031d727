//! What a new leader reads before it writes.
//!
//! A standby's watches may lag, each by another time, behind what the last leader saw. With a verdict from before the
//! last leader's mark it would put the old mark back. So what decisions hang on, markers and `NodePodProbe`s, is read
//! once more, as the API server's store has it; a pod that is seen late costs a write that changes nothing.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use leadsman_api::{Guarded, NodePodProbe, PodProbeMarker};
use leadsman_core::cluster::Source;
use leadsman_core::podprobe::event::Event;
use leadsman_process::list::ListTarget;
use leadsman_process::reply::Disposition;
use leadsman_process::{ApiServer, Backoff};
use tokio::time::sleep;

use crate::kinds::{Watched, resource};

/// Objects in a page; a full node's object has half a megabyte.
const PAGE: u32 = 100;
/// Between two attempts; there are no more once the Lease is lost.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// All of them, page by page, as events. Ends when all are read. A page that does not come in time is asked for again.
pub(super) fn read(server: ApiServer) -> BoxStream<'static, Vec<Event>> {
    let markers = pages::<PodProbeMarker>(server.clone());
    markers.chain(pages::<NodePodProbe>(server)).boxed()
}

fn pages<K: Watched>(server: ApiServer) -> BoxStream<'static, Vec<Event>> {
    let first = Next::Page { token: None };
    unfold(first, move |next| page::<K>(server.clone(), next)).boxed()
}

/// What is to be read next.
enum Next {
    /// The page behind a token; the first without one.
    Page { token: Option<String> },
    /// Nothing any more.
    End,
}

/// The next page, and what comes behind it.
async fn page<K: Watched>(server: ApiServer, next: Next) -> Option<(Vec<Event>, Next)> {
    let Next::Page { mut token } = next else {
        return None;
    };
    let target = ListTarget::all::<K>().page(PAGE);
    let (mut failures, mut late) = (0, 0);
    let page = loop {
        let page = target
            .read::<Guarded<K>>(&server, token.clone(), &mut late)
            .await;
        let failed = match page {
            Ok(page) => break page,
            Err(failed) => failed,
        };
        failures += 1;
        let mut wait = BACKOFF.delay(failures, fastrand::f64());
        match &failed {
            // The rest of a list is kept for minutes only.
            Disposition::Expired { .. } => token = None,
            Disposition::Retry { after, .. } => wait = wait.max(after.unwrap_or_default()),
            _ => {}
        }
        let (resource, reason) = (resource(K::KIND), failed.reason());
        tracing::warn!(
            resource,
            reason,
            ?wait,
            "re-listing after taking over leadership failed, retrying"
        );
        sleep(wait).await;
    };
    let next = page
        .token
        .map_or(Next::End, |token| Next::Page { token: Some(token) });
    let events = page.objects.into_iter().filter_map(|object| match object {
        Guarded::Decoded(object) => Some(object.seen(Source::Reply)),
        // The watch has reported it.
        Guarded::Undecodable { .. } => None,
    });
    Some((events.collect(), next))
}
