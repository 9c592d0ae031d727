//! The lists that a new leader reads before it writes.
//!
//! A standby's watches may lag behind those of the last leader, each by a different time. Acting on an observation from
//! before the last leader's write would undo that write. So the kinds that decisions depend on ([`Kind::relisted`]) are
//! read once more, as the API server's store has them.
//!
//! [`Kind::relisted`]: crate::Kind::relisted

use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream, unfold};
use leadsman_api::Guarded;
use leadsman_core::cluster::Source;
use leadsman_process::list::{ListPage, ListTarget};
use leadsman_process::reply::Disposition;
use leadsman_process::{ApiServer, Backoff};
use tokio::time::sleep;

use crate::resource::{Resource, Watchable};
use crate::rules::{Observation, Observe, Rules};

/// Objects in a page.
const PAGE: u32 = 100;
/// Between two attempts; there are no more once the Lease is lost.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// All kinds that are re-listed, one after another, page by page, as events. Ends when all are read.
pub(crate) fn relist<R: Rules>(server: &ApiServer) -> BoxStream<'static, Vec<R::Event>> {
    let relisted = R::KINDS.iter().filter_map(|kind| kind.relist);
    let pages: Vec<_> = relisted.map(|pages| pages(server.clone())).collect();
    stream::iter(pages).flatten().boxed()
}

/// The pages of a kind. A page that does not come in time is requested again.
pub(crate) fn pages<K: Watchable, R: Observe<K>>(
    server: ApiServer,
) -> BoxStream<'static, Vec<R::Event>> {
    let pages = unfold(Some(None), move |next: Option<Option<String>>| {
        let server = server.clone();
        async move {
            let page = page::<K>(&server, next?).await;
            let next = page.token.map(Some);
            Some((page.objects, next))
        }
    });
    pages.map(events::<K, R>).boxed()
}

fn events<K: Watchable, R: Observe<K>>(objects: Vec<Guarded<K>>) -> Vec<R::Event> {
    let objects = objects.into_iter().filter_map(|object| match object {
        Guarded::Decoded(object) => Some(Observation::Object(object.into(), Source::Reply)),
        // The watch has reported it.
        Guarded::Undecodable { .. } => None,
    });
    objects.map(R::event).collect()
}

/// The page of a token, or the first one; retried until it comes.
async fn page<K: Watchable>(server: &ApiServer, mut token: Option<String>) -> ListPage<Guarded<K>> {
    let target = ListTarget::all::<K>().page(PAGE);
    let (mut failures, mut late) = (0, 0);
    loop {
        let page = target.read(server, token.clone(), &mut late).await;
        let failed = match page {
            Ok(page) => return page,
            Err(failed) => failed,
        };
        failures += 1;
        let mut retry_in = BACKOFF.delay(failures, fastrand::f64());
        match &failed {
            // A continue token is good for minutes only.
            Disposition::Expired { .. } => token = None,
            Disposition::Retry { after, .. } => retry_in = retry_in.max(after.unwrap_or_default()),
            _ => {}
        }
        let resource = Resource::of::<K>().full_name();
        tracing::warn!(
            resource,
            reason = failed.reason(),
            ?retry_in,
            "re-listing after taking over leadership failed, retrying"
        );
        sleep(retry_in).await;
    }
}
