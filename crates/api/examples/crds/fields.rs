//! The fields of the CRDs as a page: each with its type, its bounds, what it is for, and what else the API server refuses.

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};

/// The maximum of every `int32`, which needs no saying.
const LARGEST: f64 = 2_147_483_647.0;

const BEGINNING: &str = "\
# Fields of the API

This page lists every field of leadsman's CRDs. `cargo xtask docs` writes it from the CRDs, and `kubectl explain
podprobemarkers.spec.probes` shows the same. [Markers](../markers.md), [sidecars](../sidecarset.md), [BroadcastJobs](../broadcastjob.md) and
[AdvancedCronJobs](../advancedcronjob.md) explain what the fields are for, and what they mean when they are left out.

Fields marked `*` are required. \"Refusals say\" is what the API server answers to a value that is refused. Containers and volumes of a
`SidecarSet` have all fields that they have in a pod (`kubectl explain pod.spec.containers`); this page only lists those to which leadsman
adds something.
";

pub(crate) fn page(crds: &[CustomResourceDefinition]) -> String {
    let mut page = BEGINNING.to_owned();
    for crd in crds {
        // All versions of a kind have one schema.
        let schema = crd.spec.versions.first();
        let schema = schema.and_then(|version| version.schema.as_ref());
        let Some(schema) = schema.and_then(|it| it.open_api_v3_schema.as_ref()) else {
            continue;
        };
        let (kind, group) = (&crd.spec.names.kind, &crd.spec.group);
        let versions = crd.spec.versions.iter();
        let versions: Vec<_> = versions
            .map(|version| format!("`{group}/{}`", version.name))
            .collect();
        // Infallible: a String takes all that is written.
        let _ = write!(page, "\n## {kind}\n\n{}, ", versions.join(" and "));
        let _ = writeln!(page, "scope {}.", crd.spec.scope);
        page += "\n| field | type | meaning |\n|---|---|---|\n";
        rows(&mut page, "", schema);
    }
    page
}

/// A row for each field below `path`, depth first, as a manifest has them. Of an object of Kubernetes, only what leadsman says
/// about it.
fn rows(page: &mut String, path: &str, schema: &JSONSchemaProps) {
    let required = schema.required.as_deref().unwrap_or_default();
    let is_of_kubernetes = schema.x_kubernetes_preserve_unknown_fields == Some(true);
    for (name, field) in schema.properties.iter().flatten() {
        // Metadata is described by Kubernetes, whatever a schema requires of it.
        if (is_of_kubernetes || name == "metadata") && !is_described(field) {
            continue;
        }
        let item = item(field);
        let list = if item.is_some() { "[]" } else { "" };
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let star = if required.contains(name) { " *" } else { "" };
        let (kind, is) = (kind(field), is(field, item));
        let _ = writeln!(page, "| `{path}`{star} | {kind} | {is} |");
        rows(page, &format!("{path}{list}"), item.unwrap_or(field));
    }
}

fn is_described(field: &JSONSchemaProps) -> bool {
    field.description.is_some() || field.x_kubernetes_validations.is_some()
}

fn item(field: &JSONSchemaProps) -> Option<&JSONSchemaProps> {
    match field.items.as_ref()? {
        JSONSchemaPropsOrArray::Schema(item) => Some(item),
        JSONSchemaPropsOrArray::Schemas(_) => None,
    }
}

fn kind(field: &JSONSchemaProps) -> String {
    if field.x_kubernetes_int_or_string == Some(true) {
        return "number or string".to_owned();
    }
    let name = field.type_.clone().unwrap_or_default();
    match (&*name, item(field), field.additional_properties.is_some()) {
        ("array", Some(item), _) => format!("list of {}", kind(item)),
        ("object", _, true) => "map".to_owned(),
        _ => match &field.format {
            Some(format) if name == "string" => format!("{name} ({format})"),
            _ => name,
        },
    }
}

/// The type of a field, its bounds, and the messages of its rules. Those of a list's items are the list's own where the items are
/// no objects.
fn is(field: &JSONSchemaProps, item: Option<&JSONSchemaProps>) -> String {
    let description = field.description.as_deref().unwrap_or_default();
    let mut description = description.replace('\n', " ");
    if !description.is_empty() && !description.ends_with('.') {
        description.push('.');
    }
    let mut parts = vec![description];
    parts.extend(bounds(field));
    let default = field.default.as_ref().map(|default| &default.0);
    let default = default.filter(|default| !default.is_object());
    parts.extend(default.map(|default| format!("If absent: {default}.")));
    let rules = field.x_kubernetes_validations.iter().flatten();
    let own = item.filter(|item| item.properties.is_none());
    let of_items = own
        .into_iter()
        .flat_map(|item| item.x_kubernetes_validations.iter().flatten());
    let mut messages: Vec<String> = Vec::new();
    for message in rules
        .chain(of_items)
        .filter_map(|rule| rule.message.clone())
    {
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    if !messages.is_empty() {
        parts.push(format!("Refusals say: {}.", messages.join("; ")));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" ").replace('|', "\\|").replace('<', "&lt;")
}

fn bounds(field: &JSONSchemaProps) -> Option<String> {
    let values = field
        .enum_
        .iter()
        .flatten()
        .map(|value| value.0.to_string());
    let values: Vec<_> = values.collect();
    let bounds = [
        (!values.is_empty()).then(|| format!("one of {}", values.join(", "))),
        field
            .minimum
            .filter(|least| *least > -LARGEST)
            .map(|least| format!("at least {least}")),
        field
            .maximum
            .filter(|most| *most < LARGEST)
            .map(|most| format!("at most {most}")),
        field
            .min_length
            .map(|least| format!("at least {least} characters")),
        field
            .max_length
            .map(|most| format!("at most {most} characters")),
        field
            .min_items
            .map(|least| format!("at least {least} items")),
        field.max_items.map(|most| format!("at most {most} items")),
        field
            .max_properties
            .map(|most| format!("at most {most} keys")),
    ];
    let bounds: Vec<_> = bounds.into_iter().flatten().collect();
    let text = bounds.join(", ");
    let mut letters = text.chars();
    let first = letters.next()?;
    Some(format!("{}{}.", first.to_uppercase(), letters.as_str()))
}
