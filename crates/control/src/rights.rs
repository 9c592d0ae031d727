//! The rights that a feature needs: they follow from the kinds that it observes and the requests that it sends.

use std::borrow::Cow;

use crate::rules::Rules;

/// What observing a kind takes, and following the schema of a CRD. Single objects are not read by `get`.
const OBSERVE: [&str; 2] = ["list", "watch"];

/// A right on a resource in all namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Right {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// `pods` or `pods/status`.
    pub resource: Cow<'static, str>,
    /// On the object of this name alone; on all, if empty.
    pub name: Cow<'static, str>,
    /// `get`, `list`, …
    pub verb: &'static str,
}

/// All rights that a feature needs.
pub fn rights<R: Rules>() -> Vec<Right> {
    let kinds = R::KINDS.iter().flat_map(|kind| {
        let resource = kind.resource();
        let objects = OBSERVE.map(|verb| Right {
            group: resource.group.clone(),
            resource: resource.plural.clone(),
            name: Cow::default(),
            verb,
        });
        let crd = kind.crd().into_iter().flat_map(|crd| {
            OBSERVE.map(|verb| Right {
                group: "apiextensions.k8s.io".into(),
                resource: "customresourcedefinitions".into(),
                name: crd.clone().into(),
                verb,
            })
        });
        objects.into_iter().chain(crd)
    });
    let requests = R::REQUESTS.iter().map(|request| Right {
        group: request.group.into(),
        resource: request.resource.into(),
        name: Cow::default(),
        verb: request.verb,
    });
    kinds.chain(requests).collect()
}
