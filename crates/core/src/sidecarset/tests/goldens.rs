//! Hashes and names of revisions that `OpenKruise` has computed, byte for byte.

use std::collections::{BTreeMap, BTreeSet};

use leadsman_api::SidecarSetSpec;
use serde::Deserialize;
use serde_json::Value;

use crate::cluster::FieldErrors;
use crate::sidecarset::fields::SIDECAR_CONTAINER;
use crate::sidecarset::template::Template;
use crate::workload::JsonObject;
use crate::workload::go_json::{Field, FieldOrder, Form, GoValue, Presence};
use crate::workload::hash::sha256_of;
use crate::workload::revision::{revision_hash, revision_name};

#[derive(Deserialize)]
struct Goldens {
    hashes: Vec<Hashed>,
    revisions: Vec<Recorded>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hashed {
    id: String,
    json: String,
    hash: String,
    json_without_image: String,
    hash_without_image: String,
    applied: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recorded {
    id: String,
    sidecar_set: String,
    data: String,
    collision_count: i32,
    name: String,
}

fn goldens() -> Goldens {
    let text = include_str!("../../../tests/fixtures/sidecarset/goldens.json");
    serde_json::from_str(text).unwrap()
}

fn template(text: &str) -> Template {
    let spec: SidecarSetSpec = serde_json::from_str(text).unwrap();
    // Some of what upstream's own tests hash is no valid set; it is hashed all the same.
    let mut errors = Vec::new();
    Template::read(&spec, &mut FieldErrors::new(&mut errors, "spec"))
}

// SCS-32, SCS-76
#[test]
fn the_recorded_resources_policy_is_valid() {
    let goldens = goldens().hashes;
    let mut goldens = goldens.iter();
    let golden = goldens.find(|golden| golden.id == "recorded-resources-policy");
    let applied = golden.and_then(|golden| golden.applied.as_deref());
    let spec: SidecarSetSpec = serde_json::from_str(applied.unwrap()).unwrap();
    let mut errors = Vec::new();
    let template = Template::read(&spec, &mut FieldErrors::new(&mut errors, "spec"));
    assert_eq!(errors, []);
    assert!(template.all().all(|sidecar| sidecar.resources.is_some()));
}

// SCS-28, SCS-29, SCS-30, SCS-32
#[test]
fn a_text_is_written_and_hashed_as_recorded() {
    for golden in goldens().hashes {
        let id = &golden.id;
        assert_eq!(sha256_of(&golden.json), golden.hash, "{id}");
        assert_eq!(
            sha256_of(&golden.json_without_image),
            golden.hash_without_image,
            "{id}"
        );
        // The text as it is: upstream's own tests hash what was not completed.
        let text: BTreeMap<String, Option<Vec<JsonObject>>> =
            serde_json::from_str(&golden.json).unwrap();
        for (list, containers) in text {
            let Some(containers) = containers else {
                continue;
            };
            let written = GoValue::list(&containers, SIDECAR_CONTAINER);
            let written = format!("\"{list}\":{}", written.to_text(FieldOrder::Declared));
            assert!(golden.json.contains(&written), "{id}: {written}");
        }
    }
}

// SCS-4, SCS-28, SCS-29, SCS-30, SCS-31
#[test]
fn a_set_is_completed_and_hashed_as_recorded() {
    let mut applied = 0;
    for golden in goldens().hashes {
        let id = &golden.id;
        if !id.starts_with("upstream") {
            // What is complete stays as it is.
            let hashes = template(&golden.json).hashes();
            assert_eq!(*hashes.hash, *golden.hash, "{id}");
            assert_eq!(*hashes.without_image, *golden.hash_without_image, "{id}");
        }
        if let Some(text) = golden.applied {
            let hashes = template(&text).hashes();
            assert_eq!(*hashes.hash, *golden.hash, "{id}");
            assert_eq!(*hashes.without_image, *golden.hash_without_image, "{id}");
            applied += 1;
        }
    }
    assert_eq!(applied, 25);
}

// SCS-4, SCS-33
#[test]
fn the_data_of_a_revision_are_written_as_recorded() {
    let goldens = goldens();
    let mut compared = 0;
    for revision in &goldens.revisions {
        let id = &revision.id;
        let applied = goldens.hashes.iter().find(|golden| golden.id == *id);
        if let Some(applied) = applied.and_then(|golden| golden.applied.as_deref()) {
            assert_eq!(template(applied).revision_data(), revision.data, "{id}");
            compared += 1;
        }
        // Revisions of 1.2 have less in them.
        if revision.data.contains("$patch") {
            let data: Value = serde_json::from_str(&revision.data).unwrap();
            let read = template(&data["spec"].to_string());
            assert_eq!(read.revision_data(), revision.data, "{id}");
        }
    }
    assert_eq!(compared, 25);
}

// SCS-34
#[test]
fn revisions_are_named_as_recorded() {
    for revision in goldens().revisions {
        let hash = revision_hash(&revision.data, revision.collision_count);
        let name = revision_name(&revision.sidecar_set, &hash);
        assert_eq!(name, revision.name, "{}", revision.id);
    }
}

#[derive(Deserialize)]
struct Types {
    types: BTreeMap<String, Vec<Declared>>,
}

#[derive(Deserialize)]
struct Declared {
    field: String,
    kind: String,
    #[serde(default)]
    always: bool,
    #[serde(rename = "type")]
    type_: Option<String>,
}

// SCS-29
#[test]
fn fields_stand_in_the_order_in_which_go_declares_them() {
    let text = include_str!("../../../tests/fixtures/sidecarset/field-order.json");
    let declared: Types = serde_json::from_str(text).unwrap();
    let fields: Vec<Field> = SIDECAR_CONTAINER
        .iter()
        .copied()
        .flatten()
        .copied()
        .collect();
    let mut compared = BTreeSet::new();
    compare(&declared, "SidecarContainer", &fields, &mut compared);
    assert_eq!(compared.len(), declared.types.len());
}

fn compare(types: &Types, name: &str, fields: &[Field], compared: &mut BTreeSet<String>) {
    if !compared.insert(name.to_owned()) {
        return;
    }
    let declared = &types.types[name];
    let names: Vec<_> = fields.iter().map(|field| field.name).collect();
    let expected: Vec<_> = declared.iter().map(|field| field.field.as_str()).collect();
    assert_eq!(names, expected, "{name}");
    for (field, declared) in fields.iter().zip(declared) {
        let place = format!("{name}.{}", field.name);
        let is_always = matches!(field.presence, Presence::Always(_));
        assert_eq!(is_always, declared.always, "{place}");
        if declared.kind == "pointer" && !declared.always {
            assert_eq!(field.presence, Presence::Pointer, "{place}");
        }
        let structure = match field.form {
            Form::Struct(fields) => Some(fields),
            Form::List(Form::Struct(fields)) => Some(*fields),
            _ => None,
        };
        assert_eq!(structure.is_some(), declared.type_.is_some(), "{place}");
        if let (Some(fields), Some(type_)) = (structure, &declared.type_) {
            compare(types, type_, fields, compared);
        }
    }
}
