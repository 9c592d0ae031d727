//! Reads: one object, and lists in pages.

use std::ops::Bound;
use std::sync::Arc;

use hyper::body::Bytes;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Value, json};

use crate::request::Call;
use crate::resource::Resource;
use crate::selector::ObjectSelection;
use crate::server::{Answer, Connection};
use crate::status::{Failure, Named};
use crate::store::{Object, ObjectKey, ObjectStore, Objects};

impl Connection {
    pub(crate) fn get(&self, kind: usize, call: &Call) -> Result<Answer, Failure> {
        let store = self.server.store();
        let resource = &store.resources[kind];
        let asked = call.number("resourceVersion")?;
        let version = match asked {
            Some(_) => self.cached_version(&store, &call.plural),
            None => self.read_version(&store, &call.plural),
        };
        if let Some(asked) = asked.filter(|asked| *asked > store.version) {
            return Err(Failure::too_large_version(asked, store.version));
        }
        let key = ObjectKey {
            kind,
            namespace: call.namespace.clone(),
            name: call.name.clone(),
        };
        let named = Named {
            resource,
            name: &call.name,
        };
        let object = store
            .object_at(&key, version)
            .ok_or_else(|| named.not_found())?;
        Ok(Answer::of_read(object.text()))
    }

    pub(crate) fn list(&self, kind: usize, call: &Call) -> Result<Answer, Failure> {
        let selection = ObjectSelection::of_call(call)?;
        let store = self.server.store();
        let page = self.read_page_terms(&store, call)?;
        let objects = store.objects_at(kind, page.version);
        let after = page
            .after
            .as_ref()
            .map_or(Bound::Unbounded, |(namespace, name)| {
                Bound::Excluded(ObjectKey {
                    kind,
                    namespace: namespace.clone(),
                    name: name.clone(),
                })
            });
        let selected = |(key, object): &(&ObjectKey, &Arc<Object>)| {
            let is_here = call.namespace.is_empty() || key.namespace == call.namespace;
            is_here && selection.matches(&object.value)
        };
        let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
        let mut rest = objects.range((after, Bound::Unbounded)).filter(selected);
        let items: Vec<_> = rest.by_ref().take(limit).collect();
        let mut metadata = json!({"resourceVersion": page.version.to_string()});
        let left = rest.count();
        let last = items.last().filter(|_| left > 0);
        if let Some((key, _)) = last {
            metadata["continue"] =
                json!(format!("{}|{}|{}", page.version, key.namespace, key.name));
            if selection.is_everything() {
                metadata["remainingItemCount"] = json!(left);
            }
        } else if store.resources[kind].is_custom {
            metadata["continue"] = json!("");
        }
        Ok(Answer::of_read(write_list(
            &store.resources[kind],
            &metadata,
            &items,
        )))
    }

    /// Reads which state a list shows, and which part of it (`resourceVersionMatch`, Kubernetes API
    /// concepts).
    fn read_page_terms(&self, store: &ObjectStore, call: &Call) -> Result<PageTerms, Failure> {
        let limit = call.number("limit")?.filter(|limit| *limit > 0);
        let asked = call.number("resourceVersion")?;
        let token = call.parameter("continue");
        let longest = self.link.longest_page();
        let all = limit.map_or(u64::MAX, |limit| limit.min(longest));
        if !token.is_empty() {
            if asked.is_some_and(|asked| asked > 0) {
                let message = "specifying resource version is not allowed when using continue";
                return Err(Failure::bad_request(message));
            }
            let (version, after) = read_token(token)?;
            check_not_compacted(store, version, || {
                "The provided continue parameter is too old to display a consistent list result. You can start a new list \
                 without the continue parameter."
                    .to_owned()
            })?;
            let after = Some(after);
            return Ok(PageTerms {
                version,
                limit: all,
                after,
            });
        }
        let is_exact = call.parameter("resourceVersionMatch") == "Exact";
        let version = match asked {
            None => self.read_version(store, &call.plural),
            Some(asked) if asked > store.version => {
                return Err(Failure::too_large_version(asked, store.version));
            }
            // A list of any version is the cache's.
            Some(0) => self.cached_version(store, &call.plural),
            Some(asked)
                if is_exact
                    || limit.is_some() && call.parameter("resourceVersionMatch").is_empty() =>
            {
                check_not_compacted(store, asked, || {
                    "The resourceVersion for the provided list is too old.".to_owned()
                })?;
                asked
            }
            Some(asked) => self.cached_version(store, &call.plural).max(asked),
        };
        // The cache gives no pages of it.
        let limit = if asked == Some(0) { u64::MAX } else { all };
        Ok(PageTerms {
            version,
            limit,
            after: None,
        })
    }
}

struct PageTerms {
    version: u64,
    limit: u64,
    after: Option<(String, String)>,
}

fn check_not_compacted(
    store: &ObjectStore,
    version: u64,
    message: impl Fn() -> String,
) -> Result<(), Failure> {
    // A token of a version that is still to come is of the time before a restore.
    if version < store.compacted || version > store.version {
        return Err(Failure::expired(message()));
    }
    Ok(())
}

fn read_token(token: &str) -> Result<(u64, (String, String)), Failure> {
    let mut parts = token.splitn(3, '|');
    let mut read = || {
        let version = parts.next()?.parse().ok()?;
        Some((
            version,
            (parts.next()?.to_owned(), parts.next()?.to_owned()),
        ))
    };
    read().ok_or_else(|| Failure::bad_request("continue key is not valid"))
}

fn write_list(
    resource: &Resource,
    metadata: &Value,
    items: &[(&ObjectKey, &Arc<Object>)],
) -> Bytes {
    let head = json!({
        "kind": format!("{}List", resource.kind), "apiVersion": resource.api_version(), "metadata": metadata,
    });
    let mut text = head.to_string();
    text.pop();
    let mut text = text.into_bytes();
    text.extend_from_slice(b",\"items\":[");
    for (place, (_, object)) in items.iter().enumerate() {
        if place > 0 {
            text.push(b',');
        }
        if resource.is_custom {
            text.extend_from_slice(&object.text());
        } else {
            // The items of a typed list do not name their type.
            let untyped = Untyped(&object.value);
            serde_json::to_writer(&mut text, &untyped).expect("JSON can be written to memory");
        }
    }
    text.extend_from_slice(b"]}");
    text.into()
}

/// An object without its type.
struct Untyped<'a>(&'a Value);

impl Serialize for Untyped<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = self.0.as_object().into_iter().flatten();
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in fields.filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind"))
        {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// The objects of a selection.
pub(crate) fn select<'a>(
    objects: &'a Objects,
    namespace: &'a str,
    selection: &'a ObjectSelection,
) -> impl Iterator<Item = &'a Arc<Object>> {
    let here = objects
        .iter()
        .filter(move |(key, _)| namespace.is_empty() || key.namespace == namespace);
    here.map(|(_, object)| object)
        .filter(|object| selection.matches(&object.value))
}
