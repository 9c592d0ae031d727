//! A page of a list, with a deadline.

use std::fmt::Display;
use std::time::Duration;

use kube::Resource;
use kube::api::ListParams;
use kube::core::{ObjectList, Request};
use serde::de::DeserializeOwned;

use crate::clock;
use crate::reply::{Cause, Disposition, Verb};
use crate::server::ApiServer;

/// For a page, after no, one, two … replies in a row that came too late. API servers give up a request after a minute
/// themselves (`--request-timeout`).
const DEADLINES: [Duration; 4] = [
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_mins(1),
];

/// What is listed or watched.
#[derive(Clone, Debug)]
pub struct Target {
    pub(crate) path: String,
    pub(crate) fields: Option<String>,
    page: u32,
}

/// Some of the objects, in their order.
#[derive(Debug)]
pub struct Page<K> {
    /// The objects.
    pub objects: Vec<K>,
    /// Where it goes on; none after the last page.
    pub token: Option<String>,
    /// The version of the whole list.
    pub version: String,
}

impl Target {
    /// All objects of a kind, in all namespaces.
    pub fn all<K: Resource<DynamicType = ()>>() -> Self {
        Self {
            path: K::url_path(&(), None),
            fields: None,
            page: 500,
        }
    }

    /// Those of one namespace.
    pub fn in_namespace<K: Resource<DynamicType = ()>>(namespace: &str) -> Self {
        Self {
            path: K::url_path(&(), Some(namespace)),
            ..Self::all::<K>()
        }
    }

    /// Only those that this field selector selects.
    #[must_use]
    pub fn fields(self, fields: String) -> Self {
        let fields = Some(fields);
        Self { fields, ..self }
    }

    /// With so many objects in a page.
    #[must_use]
    pub fn page(self, page: u32) -> Self {
        Self { page, ..self }
    }

    /// Reads the first page, or the one behind a token. `late` counts the replies in a row that came too late; a
    /// connection that is refused is none, and says nothing of how long a list takes.
    pub async fn read<K: DeserializeOwned + Clone>(
        &self,
        server: &ApiServer,
        token: Option<String>,
        late: &mut usize,
    ) -> Result<Page<K>, Disposition> {
        let params = ListParams {
            field_selector: self.fields.clone(),
            limit: Some(self.page),
            continue_token: token,
            ..ListParams::default()
        };
        let request = Request::new(&self.path).list(&params);
        let request = request.map_err(|error| unreadable(&error))?;
        let (began, deadline) = (
            clock::monotonic(),
            DEADLINES[(*late).min(DEADLINES.len() - 1)],
        );
        let reply = server.ask(Verb::ListOrWatch, request, deadline).await;
        if reply.disposition != Disposition::Done {
            let no_answer = matches!(
                &reply.disposition,
                Disposition::Retry {
                    cause: Cause::NoAnswer,
                    ..
                }
            );
            if no_answer && clock::monotonic() >= began + deadline {
                *late += 1;
            }
            return Err(reply.disposition);
        }
        *late = 0;
        let list: ObjectList<K> =
            serde_json::from_slice(&reply.body).map_err(|error| unreadable(&error))?;
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let version = filled(list.metadata.resource_version);
        Ok(Page {
            objects: list.items,
            token: filled(list.metadata.continue_),
            version: version.ok_or_else(|| unreadable(&"a list without a resourceVersion"))?,
        })
    }
}

/// A reply that is none.
pub(crate) fn unreadable(error: &dyn Display) -> Disposition {
    Disposition::Refused {
        reason: format!("cannot be read: {error}"),
    }
}
