//! The steps of a flow: requests, whose objects and patches are rows of tables.

use proptest::prelude::*;
use proptest::sample::select;

use super::bodies::{Kind, PatchRow};
use crate::flows::seed::generate_steps;

/// What a precondition names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// Nothing.
    Nothing,
    /// What was last seen of the object.
    Last,
    /// What was first seen of any object of its name.
    First,
}

/// One request. Lists with pages are several.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Create {
        kind: Kind,
        name: &'static str,
        body: usize,
    },
    Get {
        kind: Kind,
        name: &'static str,
    },
    Put {
        kind: Kind,
        name: &'static str,
        body: usize,
        status: bool,
        version: Named,
        uid: Named,
    },
    Patch {
        kind: Kind,
        name: &'static str,
        patch: &'static PatchRow,
        version: Named,
        uid: Named,
    },
    Apply {
        kind: Kind,
        name: &'static str,
        body: usize,
        by: &'static str,
        force: bool,
        uid: Named,
    },
    Delete {
        kind: Kind,
        name: &'static str,
        version: Named,
        uid: Named,
        grace: Option<u32>,
        propagation: Option<&'static str>,
    },
    List {
        kind: Kind,
        query: &'static str,
    },
    Pages {
        kind: Kind,
        limit: u32,
    },
}

pub(super) fn steps(seed: u64) -> Vec<Step> {
    generate_steps(seed, step(), 6..30)
}

fn name() -> impl Strategy<Value = &'static str> {
    select(vec!["a", "a", "a", "b"])
}

fn named() -> impl Strategy<Value = Named> {
    select(vec![
        Named::Nothing,
        Named::Nothing,
        Named::Nothing,
        Named::Last,
        Named::Last,
        Named::First,
    ])
}

fn step() -> impl Strategy<Value = Step> {
    kind().prop_flat_map(step_of_kind)
}

fn kind() -> impl Strategy<Value = Kind> {
    select(vec![
        Kind::ConfigMap,
        Kind::Pod,
        Kind::Pod,
        Kind::Marker,
        Kind::Marker,
        Kind::Lease,
        Kind::Revision,
    ])
}

fn step_of_kind(kind: Kind) -> BoxedStrategy<Step> {
    let bodies = 0..kind.objects().len();
    let applies = 0..kind.applies().len();
    let patches = select(kind.patches().iter().collect::<Vec<_>>());
    let queries = select(vec![
        "",
        "labelSelector=role",
        "labelSelector=role%3Dmain",
        "labelSelector=role!%3Dmain",
        "labelSelector=role+in+(main,other)",
        "fieldSelector=metadata.name%3Da",
        "labelSelector=!role",
    ]);
    let status = if kind.has_status() {
        any::<bool>().boxed()
    } else {
        Just(false).boxed()
    };
    prop_oneof![
        4 => (name(), bodies.clone()).prop_map(move |(name, body)| Step::Create { kind, name, body }),
        1 => name().prop_map(move |name| Step::Get { kind, name }),
        3 => (name(), bodies, status, named(), named())
            .prop_map(move |(name, body, status, version, uid)| Step::Put { kind, name, body, status, version, uid }),
        6 => (name(), patches, named(), named())
            .prop_map(move |(name, patch, version, uid)| Step::Patch { kind, name, patch, version, uid }),
        6 => (name(), applies, select(vec!["one", "two"]), any::<bool>(), named())
            .prop_map(move |(name, body, by, force, uid)| Step::Apply { kind, name, body, by, force, uid }),
        2 => (name(), named(), named(), select(vec![None, None, Some(0), Some(5)]),
                select(vec![None, None, None, Some("Foreground"), Some("Orphan"), Some("Background")]))
            .prop_map(move |(name, version, uid, grace, propagation)| Step::Delete { kind, name, version, uid, grace, propagation }),
        1 => queries.prop_map(move |query| Step::List { kind, query }),
        1 => (1_u32..3).prop_map(move |limit| Step::Pages { kind, limit }),
    ]
    .boxed()
}
