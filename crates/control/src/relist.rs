//! The lists that a new leader reads before it writes.
//!
//! A standby's watches may lag behind those of the last leader, each by a different time. Acting on an observation from
//! before the last leader's write would undo that write. So the kinds that decisions depend on ([`Kind::relisted_on_takeover`]) are
//! read once more, as the API server's store has them. What a complete list does not contain was deleted.
//!
//! [`Kind::relisted_on_takeover`]: crate::Kind::relisted_on_takeover

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream, unfold};
use kube::Resource as _;
use leadsman_api::Guarded;
use leadsman_process::list::{ListPage, ListTarget, Paging};
use leadsman_process::reply::{Disposition, RetryCause};
use leadsman_process::{ApiServer, Backoff, RandomSource};
use leadsman_reconcile::{ObjectName, ResourceVersion, Source};
use tokio::time::sleep;

use crate::resource::{GroupResource, Watchable};
use crate::rules::{Observation, Observe, Rules};

/// Between two attempts; there are no more once the Lease is lost.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// All kinds that are re-listed, one after another, page by page, as events. Ends when all are read.
pub(crate) fn relist_kinds<R: Rules>(
    server: &ApiServer,
    own_namespace: &str,
    random: &RandomSource,
) -> BoxStream<'static, Vec<R::Event>> {
    let relisted = R::KINDS.iter().filter_map(|kind| {
        let pages = kind.relist?;
        let target = kind.list_target(own_namespace);
        Some(pages(
            server.clone(),
            target,
            kind.is_optional,
            random.fork_rng(),
        ))
    });
    let pages: Vec<_> = relisted.collect();
    // One after another: a page is in memory several times over while it is decoded.
    stream::iter(pages).flatten().boxed()
}

/// The pages of a kind, and with the last one that the list is complete. One that need not be served has none then.
pub(crate) fn relist_pages<K: Watchable, R: Observe<K>>(
    server: ApiServer,
    target: ListTarget,
    is_optional: bool,
    random: fastrand::Rng,
) -> BoxStream<'static, Vec<R::Event>> {
    let pages = unfold(Some(Listing::new(random)), move |listing| {
        let (server, target) = (server.clone(), target.clone());
        async move {
            let mut listing: Listing = listing?;
            let page = listing.next_page::<K>(&server, &target, is_optional).await;
            let mut observations = to_observations(page.objects);
            let next = if page.token.is_some() {
                Some(Listing {
                    token: page.token,
                    ..listing
                })
            } else {
                let version = ResourceVersion::parse(Some(&page.version));
                let names = Arc::new(listing.names);
                observations.push(Observation::Relisted(names, version));
                None
            };
            let events = observations.into_iter().map(R::event_from_observation);
            Some((events.collect(), next))
        }
    });
    pages.boxed()
}

fn to_observations<K: Watchable>(objects: Vec<Guarded<K>>) -> Vec<Observation<K>> {
    let objects = objects.into_iter().map(|object| match object {
        Guarded::Decoded(object) => Observation::Object(object.into(), Source::Reply),
        // A watch that lags behind has not shown that it exists; its error is logged when the watch does.
        Guarded::Undecodable { metadata, .. } => {
            Observation::Undecodable(metadata.into(), Source::Reply)
        }
    });
    objects.collect()
}

/// A list under way.
struct Listing {
    /// The continue token of the next page; the first has none.
    token: Option<String>,
    paging: Paging,
    /// The names of the pages so far, also of what does not decode; no more than there are objects.
    names: BTreeSet<ObjectName>,
    random: fastrand::Rng,
}

impl Listing {
    fn new(random: fastrand::Rng) -> Self {
        Self {
            token: None,
            paging: Paging::default(),
            names: BTreeSet::new(),
            random,
        }
    }

    /// The next page. One that does not come in time is asked for again; however long it takes.
    async fn next_page<K: Watchable>(
        &mut self,
        server: &ApiServer,
        target: &ListTarget,
        is_optional: bool,
    ) -> ListPage<Guarded<K>> {
        let mut failures = 0;
        loop {
            let page = target
                .read_page(server, self.token.clone(), &mut self.paging)
                .await;
            let failed = match page {
                Ok(page) => {
                    let names = page.objects.iter().map(Guarded::meta);
                    self.names.extend(names.map(ObjectName::of));
                    return page;
                }
                Err(Disposition::Retry {
                    cause: RetryCause::NoSuchKind,
                    ..
                }) if is_optional => {
                    self.start_over();
                    return ListPage {
                        objects: Vec::new(),
                        token: None,
                        version: String::new(),
                    };
                }
                Err(failed) => failed,
            };
            failures += 1;
            let mut retry_in = BACKOFF.delay(failures, self.random.f64());
            match &failed {
                Disposition::Retry { cause, after, .. } => {
                    retry_in = retry_in.max(after.unwrap_or_default());
                    // The token may be the cause, and a new list needs none.
                    if matches!(cause, RetryCause::InternalError | RetryCause::Conflict) {
                        self.start_over();
                    }
                }
                // A continue token is good for minutes only, and another API server may refuse it. Another list begins, of
                // a later version.
                _ => self.start_over(),
            }
            let resource = GroupResource::of::<K>().full_name();
            tracing::warn!(
                resource,
                reason = failed.explain_reason(),
                ?retry_in,
                "re-listing after taking over leadership failed, retrying"
            );
            sleep(retry_in).await;
        }
    }

    fn start_over(&mut self) {
        self.token = None;
        self.names.clear();
    }
}

#[cfg(test)]
mod tests;
