//! A page of a list, with a deadline and a limit in bytes.
//!
//! A page is asked for by a number of objects, whose sizes nobody knows before: what one namespace puts into its objects would
//! decide how much memory and time all others' list takes. So a page that is longer than a body may be, or comes too late, is
//! asked for again with fewer objects, from the same place, down to one, which always fits ([`LONGEST_BODY`]).

use std::fmt::Display;
use std::time::Duration;

use kube::Resource;
use kube::api::ListParams;
use kube::core::{ObjectList, Request};
use serde::de::DeserializeOwned;

use crate::clock;
use crate::reply::{Disposition, RetryCause, Verb};
use crate::server::{ApiServer, LONGEST_BODY};

/// The deadlines for a page, after no, one, two … pages in a row whose deadline passed. The last one is the API
/// server's own (`--request-timeout`, one minute by default: `RequestTimeout` in
/// `k8s.io/apiserver/pkg/server/config.go`).
const DEADLINES: [Duration; 4] = [
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_mins(1),
];

/// Pages grow up to one in so many of the objects that are left of the list, where that is more than a page has by rights. For
/// each page, the API server looks at all that is left (`ListPrefix` in `apiserver/pkg/storage/cacher/store_btree.go`), which is
/// most of its work where a long list comes in short pages.
const SHARE_OF_REST: i64 = 128;

/// The objects that are listed or watched.
#[derive(Clone, Debug)]
pub struct ListTarget {
    pub(crate) path: String,
    /// How metrics name the objects: by their plural, and one object also by its name.
    pub(crate) resource: String,
    pub(crate) fields: Option<String>,
    pub(crate) labels: Option<String>,
    page: u32,
}

/// The lesson of the pages so far for the next one: how long it may take, and how many objects it
/// may have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Paging {
    /// Pages in a row whose deadline passed. A refused connection does not count: it says nothing about how long a list takes.
    pub timeouts: usize,
    /// How often the number of objects of a page is doubled; below zero, how often it is halved.
    doublings: i32,
    /// How many objects the list has after the last page, where the API server says it: it does not with a selector.
    left: i64,
}

impl Paging {
    fn deadline(self) -> Duration {
        DEADLINES[self.timeouts.min(DEADLINES.len() - 1)]
    }

    /// How many objects are asked for where a page has `page` by rights.
    fn limit(self, page: u32) -> u32 {
        let times = self.doublings.unsigned_abs();
        if self.doublings < 0 {
            return page.checked_shr(times).unwrap_or(0).max(1);
        }
        let grown = page.saturating_mul(2_u32.saturating_pow(times));
        grown.min(self.longest(page)).max(1)
    }

    /// How many objects a page may grow to.
    fn longest(self, page: u32) -> u32 {
        let share = u32::try_from(self.left / SHARE_OF_REST).unwrap_or_default();
        page.max(share)
    }

    /// Asks for fewer objects: a page that has grown has its own number again.
    fn shorten(&mut self, page: u32) {
        let limit = self.limit(page);
        if limit > page {
            self.doublings = 0;
        } else if limit > 1 {
            self.doublings = self.doublings.min(0) - 1;
        }
    }

    /// Notes a page that came. Where one of twice the size would still have had room and time to spare, the next has it.
    fn note_page(&mut self, page: u32, bytes: usize, took: Duration) {
        self.timeouts = 0;
        let may_grow = self.doublings < 0 || self.limit(page) < self.longest(page);
        if may_grow && 4 * bytes <= LONGEST_BODY && 4 * took <= DEADLINES[0] {
            self.doublings += 1;
        }
    }
}

/// One page of a list.
#[derive(Debug)]
pub struct ListPage<K> {
    /// The objects.
    pub objects: Vec<K>,
    /// The continue token; `None` on the last page.
    pub token: Option<String>,
    /// The resourceVersion of the whole list.
    pub version: String,
}

impl ListTarget {
    /// All objects of a kind, in all namespaces.
    pub fn all_of<K: Resource<DynamicType = ()>>() -> Self {
        Self {
            path: K::url_path(&(), None),
            resource: K::plural(&()).into_owned(),
            fields: None,
            labels: None,
            page: 500,
        }
    }

    /// All objects of a kind in one namespace.
    pub fn in_namespace<K: Resource<DynamicType = ()>>(namespace: &str) -> Self {
        Self {
            path: K::url_path(&(), Some(namespace)),
            ..Self::all_of::<K>()
        }
    }

    /// Restricts the list by a field selector.
    #[must_use]
    pub fn with_field_selector(self, fields: String) -> Self {
        let fields = Some(fields);
        Self { fields, ..self }
    }

    /// Restricts the list to the object of this name. Metrics name it `resource/name`, so that watches of two objects of a
    /// resource are told apart: the names must be few.
    #[must_use]
    pub fn only_named(self, name: &str) -> Self {
        let resource = format!("{}/{name}", self.resource);
        Self {
            resource,
            ..self.with_field_selector(format!("metadata.name={name}"))
        }
    }

    /// Restricts the list by a label selector.
    #[must_use]
    pub fn with_label_selector(self, labels: String) -> Self {
        let labels = Some(labels);
        Self { labels, ..self }
    }

    /// Sets the number of objects in a page, which is larger where the list is very long (`SHARE_OF_REST`); 500 by default
    /// (`defaultPageSize` in `k8s.io/client-go/tools/pager/pager.go`).
    #[must_use]
    pub fn with_page_size(self, page: u32) -> Self {
        Self { page, ..self }
    }

    /// Reads the first page, or the one of a continue token.
    pub async fn read_page<K: DeserializeOwned + Clone>(
        &self,
        server: &ApiServer,
        token: Option<String>,
        paging: &mut Paging,
    ) -> Result<ListPage<K>, Disposition> {
        if token.is_none() {
            paging.left = 0;
        }
        let body = loop {
            if let Some(body) = self.read_page_body(server, token.clone(), paging).await? {
                break body;
            }
        };
        let list: ObjectList<K> =
            serde_json::from_slice(&body).map_err(|error| unreadable_body(&error))?;
        // The list of a custom resource has `continue: ""` on its last page (`UnstructuredList.SetContinue`,
        // `k8s.io/apimachinery/pkg/apis/meta/v1/unstructured/unstructured_list.go`).
        paging.left = list.metadata.remaining_item_count.unwrap_or_default();
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let version = filled(list.metadata.resource_version);
        Ok(ListPage {
            objects: list.items,
            token: filled(list.metadata.continue_),
            // A watch without a version starts with an event for every object that exists (Kubernetes API concepts,
            // "Semantics for watch"), and no event says which of the listed ones were deleted meanwhile.
            version: version.ok_or_else(|| unreadable_body(&"a list without a resourceVersion"))?,
        })
    }

    /// The text of a page; None if it is too long, and is to be asked for again with fewer objects.
    async fn read_page_body(
        &self,
        server: &ApiServer,
        token: Option<String>,
        paging: &mut Paging,
    ) -> Result<Option<Vec<u8>>, Disposition> {
        let limit = paging.limit(self.page);
        // A list without a resourceVersion is at least as new as every write that was answered
        // before it began; a new leader depends on that. With 0 it may come from a cache that is
        // behind, and the limit would be ignored (`tools/cache/reflector.go` in client-go).
        let params = ListParams {
            field_selector: self.fields.clone(),
            label_selector: self.labels.clone(),
            limit: Some(limit),
            continue_token: token,
            ..ListParams::default()
        };
        let request = Request::new(&self.path)
            .list(&params)
            .map_err(|error| unreadable_body(&error))?;
        let (began, deadline) = (clock::monotonic(), paging.deadline());
        let reply = server
            .send_request(Verb::ListOrWatch, request, deadline)
            .await;
        let took = clock::monotonic() - began;
        if reply.disposition != Disposition::Done {
            let no_answer = matches!(
                &reply.disposition,
                Disposition::Retry {
                    cause: RetryCause::NoAnswer,
                    ..
                }
            );
            if no_answer && took >= deadline {
                paging.timeouts += 1;
                paging.shorten(self.page);
            }
            return Err(reply.disposition);
        }
        if !reply.is_too_long {
            paging.note_page(self.page, reply.body.len(), took);
            return Ok(Some(reply.body));
        }
        let resource = &self.resource;
        if limit == 1 {
            // The object is not left out: what a complete list lacks counts as deleted.
            return Err(unreadable_body(&format!(
                "one of the {resource} has more than {} MiB: delete or shorten it (none is that long while etcd runs with its default \
                 --max-request-bytes)",
                LONGEST_BODY >> 20
            )));
        }
        tracing::info!(
            resource,
            objects = limit,
            bytes = LONGEST_BODY,
            "a page of a list is too long, asking for fewer objects"
        );
        paging.shorten(self.page);
        Ok(None)
    }
}

/// The disposition of a success whose body cannot be decoded.
pub(crate) fn unreadable_body(error: &dyn Display) -> Disposition {
    Disposition::Refused {
        reason: format!("the reply cannot be decoded: {error}"),
    }
}

#[cfg(test)]
mod tests;
