//! The API server's requirements on a container across its fields (`validateContainers` and what it calls,
//! `pkg/apis/core/validation/validation.go`), as far as they follow from the container alone and hold in every version of
//! Kubernetes that is supported.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{REFUSED, add, has_backsteps, is_given};
use crate::cluster::{FieldErrors, names};
use crate::workload::JsonObject;
use crate::workload::object::{inner, items, text};
use crate::workload::quantity::Quantity;

/// Fields of a pod that a variable may have the value of, labels and annotations apart (`validEnvDownwardAPIFieldPathExpressions`).
const FIELD_PATHS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// The name that old manifests have for `spec.nodeName` (`ConvertDownwardAPIFieldLabel`,
/// `pkg/apis/core/pods/helpers.go`).
const FORMER_NODE_NAME: &str = "spec.host";
/// Resources of a container that need no domain (`IsStandardContainerResourceName`, `pkg/apis/core/helper/helpers.go`).
const RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const HUGE_PAGES: &str = "hugepages-";
const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// Checks a container; `is_plain_init` if it ends before the containers of its pod start.
pub fn check_container(container: &JsonObject, is_plain_init: bool, report: &mut FieldErrors<'_>) {
    for name in PROBES {
        if let Some(probe) = inner(container, name) {
            check_probe(probe, name, &mut report.field(name));
        }
    }
    check_lifecycle(container, report);
    for field in PROBES.iter().chain(&["lifecycle"]) {
        // `validateInitContainers`: such a container has ended before a probe or a hook could act.
        if is_plain_init && is_given(container, field) {
            let message = "is for init containers with restartPolicy: Always alone";
            add(&mut report.field(field), message);
        }
    }
    check_ports(container, &mut report.field("ports"));
    for (index, variable) in items(container, "env").enumerate() {
        check_variable(variable, &mut report.field("env").index(index));
    }
    for (index, source) in items(container, "envFrom").enumerate() {
        check_variables(source, &mut report.field("envFrom").index(index));
    }
    let security = inner(container, "securityContext");
    let is_privileged = security.is_some_and(|security| is_true(security, "privileged"));
    for (index, mount) in items(container, "volumeMounts").enumerate() {
        let mut at = report.field("volumeMounts");
        check_mount(mount, is_privileged, &mut at.index(index));
    }
    check_devices(container, &mut report.field("volumeDevices"));
    if let Some(resources) = inner(container, "resources") {
        check_resources(resources, &mut report.field("resources"));
    }
    check_resize(container, is_plain_init, &mut report.field("resizePolicy"));
    if let Some(security) = security {
        check_security(security, &mut report.field("securityContext"));
    }
}

fn is_true(object: &JsonObject, field: &str) -> bool {
    object.get(field).and_then(Value::as_bool) == Some(true)
}

fn number(object: &JsonObject, field: &str) -> Option<i64> {
    object.get(field).and_then(Value::as_i64)
}

/// Adds an error unless a field is absent, empty or one of a few words.
fn check_word(object: &JsonObject, field: &str, words: &[&str], report: &mut FieldErrors<'_>) {
    if let Some(word) = text(object, field).filter(|word| !words.contains(word)) {
        let message = format!("{word:?} is not one of {}", words.join(", "));
        add(&mut report.field(field), &message);
    }
}

fn check_probe(probe: &JsonObject, name: &str, report: &mut FieldErrors<'_>) {
    let handlers = ["exec", "httpGet", "tcpSocket", "grpc"];
    // `validateHandler` allows one; a probe has no `sleep`, which hooks have (`handlerFromProbe`).
    let given = handlers
        .iter()
        .filter(|handler| inner(probe, handler).is_some());
    if given.count() != 1 {
        report.add("needs exactly one of exec, httpGet, tcpSocket, grpc");
    }
    check_handler(probe, report);
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        if number(probe, field).is_some_and(|number| number < 0) {
            add(&mut report.field(field), "must not be negative");
        }
    }
    let is_readiness = name == "readinessProbe";
    // `validateLivenessProbe` and `validateStartupProbe`. 0 is one that is left out, for which the
    // API server fills in 1.
    if !is_readiness && number(probe, "successThreshold").is_some_and(|number| number > 1) {
        let message = "must be 1 but for a readinessProbe";
        add(&mut report.field("successThreshold"), message);
    }
    let grace = number(probe, "terminationGracePeriodSeconds");
    // `validateReadinessProbe`: a container that is not ready is not ended, so no period counts.
    if is_readiness && grace.is_some() || grace.is_some_and(|grace| grace < 1) {
        let message = "must be above 0, and absent from a readinessProbe";
        add(&mut report.field("terminationGracePeriodSeconds"), message);
    }
}

/// Checks what a probe and a hook have in common.
fn check_handler(handler: &JsonObject, report: &mut FieldErrors<'_>) {
    let exec = inner(handler, "exec");
    let command = exec.map(|exec| exec.get("command").and_then(Value::as_array));
    if command.is_some_and(|command| command.is_none_or(Vec::is_empty)) {
        add(
            &mut report.field("exec").field("command"),
            "must not be empty",
        );
    }
    let Some(get) = inner(handler, "httpGet") else {
        return;
    };
    for (index, header) in items(get, "httpHeaders").enumerate() {
        // `IsHTTPHeaderName`, which `validateHTTPGetAction` asks.
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        let name = text(header, "name").unwrap_or_default();
        if !name.bytes().all(is_allowed) {
            let mut outer = report.field("httpGet");
            let mut at = outer.field("httpHeaders");
            let message = format!("{name:?} has characters besides letters, digits and '-'");
            add(&mut at.index(index).field("name"), &message);
        }
    }
}

fn check_lifecycle(container: &JsonObject, report: &mut FieldErrors<'_>) {
    let Some(lifecycle) = inner(container, "lifecycle") else {
        return;
    };
    let mut report = report.field("lifecycle");
    for name in ["postStart", "preStop"] {
        let Some(handler) = inner(lifecycle, name) else {
            continue;
        };
        let mut at = report.field(name);
        // A handler of a later version counts as one.
        if handler.values().filter(|value| !value.is_null()).count() != 1 {
            add(
                &mut at,
                "needs exactly one of exec, httpGet, tcpSocket, sleep",
            );
        }
        check_handler(handler, &mut at);
        let sleep = inner(handler, "sleep").and_then(|sleep| number(sleep, "seconds"));
        if sleep.is_some_and(|seconds| seconds < 0) {
            add(
                &mut at.field("sleep").field("seconds"),
                "must not be negative",
            );
        }
    }
}

fn check_ports(container: &JsonObject, report: &mut FieldErrors<'_>) {
    let mut unique = BTreeSet::new();
    for (index, port) in items(container, "ports").enumerate() {
        let mut at = report.index(index);
        if number(port, "hostPort").is_some_and(|port| !(0..=65535).contains(&port)) {
            add(&mut at.field("hostPort"), "is not a number from 1 to 65535");
        }
        if let Some(name) = text(port, "name").filter(|name| !unique.insert(*name)) {
            let message = format!("{name:?} is the name of two ports");
            add(&mut at.field("name"), &message);
        }
    }
}

/// The printable characters of ASCII but for '=' (`IsRelaxedEnvVarName`, `k8s.io/apimachinery/pkg/util/validation`).
fn check_variable_name(name: &str, report: &mut FieldErrors<'_>) {
    if !name
        .bytes()
        .all(|b| (b' '..=b'~').contains(&b) && b != b'=')
    {
        let message = format!("{name:?} has characters that the name of a variable cannot have");
        add(report, &message);
    }
}

fn check_variable(variable: &JsonObject, report: &mut FieldErrors<'_>) {
    let name = text(variable, "name").unwrap_or_default();
    check_variable_name(name, &mut report.field("name"));
    let Some(source) = inner(variable, "valueFrom") else {
        return;
    };
    let mut report = report.field("valueFrom");
    // `validateEnvVarValueFrom`, as is what follows.
    if text(variable, "value").is_some() {
        add(&mut report, "cannot be set beside value");
    }
    if source.values().filter(|value| !value.is_null()).count() != 1 {
        let message =
            "needs exactly one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef";
        add(&mut report, message);
    }
    if let Some(field) = inner(source, "fieldRef") {
        check_field(field, &mut report.field("fieldRef"));
    }
    if let Some(resource) = inner(source, "resourceFieldRef") {
        check_resource_field(resource, &mut report.field("resourceFieldRef"));
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = inner(source, name) {
            check_key(reference, &mut report.field(name));
        }
    }
}

fn check_field(field: &JsonObject, report: &mut FieldErrors<'_>) {
    check_word(field, "apiVersion", &["v1"], report);
    let path = text(field, "fieldPath").unwrap_or_default();
    let key = |prefix: &str| {
        let key = path.strip_prefix(prefix)?.strip_prefix("['")?;
        key.strip_suffix("']")
    };
    let is_known = match (key("metadata.labels"), key("metadata.annotations")) {
        (Some(key), _) => names::qualified_name(key).is_ok(),
        // Upper case is allowed in the domain of an annotation (`validateObjectFieldSelector`).
        (_, Some(key)) => names::qualified_name(&key.to_ascii_lowercase()).is_ok(),
        (None, None) => path.is_empty() || path == FORMER_NODE_NAME || FIELD_PATHS.contains(&path),
    };
    if !is_known {
        let fields = FIELD_PATHS.join(", ");
        let message = format!(
            "{path:?} is not one of metadata.labels['KEY'], metadata.annotations['KEY'], {fields}"
        );
        add(&mut report.field("fieldPath"), &message);
    }
}

/// Checks the name of a resource of a container (`validContainerResourceFieldPathExpressions` and the prefixes beside them).
pub(super) fn check_resource_field(reference: &JsonObject, report: &mut FieldErrors<'_>) {
    let name = text(reference, "resource").unwrap_or_default();
    let resource = name
        .strip_prefix("limits.")
        .or(name.strip_prefix("requests."));
    let is_known = |name: &str| RESOURCES.contains(&name) || name.starts_with(HUGE_PAGES);
    if !name.is_empty() && !resource.is_some_and(is_known) {
        let message = format!(
            "{name:?} is not a limit or a request of cpu, memory, ephemeral-storage or hugepages, such as limits.cpu"
        );
        add(&mut report.field("resource"), &message);
    }
}

fn check_key(reference: &JsonObject, report: &mut FieldErrors<'_>) {
    if text(reference, "name").is_none() {
        add(&mut report.field("name"), "must not be empty");
    }
    let key = text(reference, "key").unwrap_or_default();
    // `IsConfigMapKey`, for keys of secrets too.
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if !key.bytes().all(is_allowed) {
        let message = format!("{key:?} has characters besides letters, digits, '-', '_' and '.'");
        add(&mut report.field("key"), &message);
    }
}

fn check_variables(source: &JsonObject, report: &mut FieldErrors<'_>) {
    let prefix = text(source, "prefix").unwrap_or_default();
    check_variable_name(prefix, &mut report.field("prefix"));
    let given = source
        .iter()
        .filter(|(name, value)| *name != "prefix" && !value.is_null());
    if given.count() != 1 {
        add(report, "needs exactly one of configMapRef, secretRef");
    }
    for name in ["configMapRef", "secretRef"] {
        let reference = inner(source, name);
        if reference.is_some_and(|reference| text(reference, "name").is_none()) {
            add(&mut report.field(name).field("name"), "must not be empty");
        }
    }
}

fn check_mount(mount: &JsonObject, is_privileged: bool, report: &mut FieldErrors<'_>) {
    for field in ["subPath", "subPathExpr"] {
        let path = text(mount, field).unwrap_or_default();
        // `validateLocalDescendingPath`.
        if path.starts_with('/') || has_backsteps(path) {
            let message = format!("{path:?} does not stay within the volume");
            add(&mut report.field(field), &message);
        }
    }
    if text(mount, "subPath").is_some() && text(mount, "subPathExpr").is_some() {
        add(
            &mut report.field("subPathExpr"),
            "cannot be set beside subPath",
        );
    }
    let propagation = text(mount, "mountPropagation").unwrap_or("None");
    if propagation == "Bidirectional" && !is_privileged {
        let message = "Bidirectional is for privileged containers alone";
        add(&mut report.field("mountPropagation"), message);
    }
    // `validateMountRecursiveReadOnly` (KEP-3857).
    let modes = ["Disabled", "IfPossible", "Enabled"];
    check_word(mount, "recursiveReadOnly", &modes, report);
    let mode = text(mount, "recursiveReadOnly").unwrap_or(modes[0]);
    let is_read_only = is_true(mount, "readOnly") && propagation == "None";
    if mode != modes[0] && !is_read_only {
        let message = "needs readOnly: true, and no mountPropagation";
        add(&mut report.field("recursiveReadOnly"), message);
    }
}

fn check_devices(container: &JsonObject, report: &mut FieldErrors<'_>) {
    // `ValidateVolumeDevices`: a volume is a device of a container once, and not mounted beside
    // that.
    let mounts = items(container, "volumeMounts").filter_map(|mount| text(mount, "name"));
    let mut taken: BTreeSet<_> = mounts.collect();
    for (index, device) in items(container, "volumeDevices").enumerate() {
        let mut at = report.index(index);
        if let Some(name) = text(device, "name").filter(|name| !taken.insert(*name)) {
            let message =
                format!("volume {name:?} is mounted or a device of this container already");
            add(&mut at.field("name"), &message);
        }
        if text(device, "devicePath").is_some_and(has_backsteps) {
            add(&mut at.field("devicePath"), "must not contain '..'");
        }
    }
}

/// Checks amounts as `ValidateContainerResourceRequirements` does. What is no amount is reported elsewhere.
fn check_resources(resources: &JsonObject, report: &mut FieldErrors<'_>) {
    let list = |name| inner(resources, name).into_iter().flatten();
    for name in ["limits", "requests"] {
        for (resource, amount) in list(name) {
            let Some(amount) = Quantity::of(amount) else {
                continue;
            };
            let mut amounts = report.field(name);
            let mut at = amounts.key(resource);
            let is_known = RESOURCES.contains(&&**resource) || resource.starts_with(HUGE_PAGES);
            if !is_known && !resource.contains('/') {
                let message = "is neither cpu, memory, ephemeral-storage, hugepages nor a resource with a domain";
                add(&mut at, message);
            } else if amount.nanos() < 0 {
                add(&mut at, "must not be negative");
            } else if !is_known && amount.rounded_up_to_milli().nanos() % 1_000_000_000 != 0 {
                add(&mut at, "must be a whole number");
            }
        }
    }
    let amount = |list: &str, resource: &str| {
        let amount = inner(resources, list)?.get(resource)?;
        Some(Quantity::of(amount)?.rounded_up_to_milli().nanos())
    };
    for (resource, _) in list("requests") {
        let Some(request) = amount("requests", resource) else {
            continue;
        };
        // `IsOvercommitAllowed`, `pkg/apis/core/v1/helper/helpers.go`
        let may_exceed = !resource.contains('/') && !resource.starts_with(HUGE_PAGES)
            || resource.contains("kubernetes.io/");
        let message = match amount("limits", resource) {
            Some(limit) if may_exceed && request > limit => "must not be above the limit",
            Some(limit) if !may_exceed && request != limit => "must be equal to the limit",
            None if !may_exceed => "needs a limit that is equal to it",
            _ => continue,
        };
        add(&mut report.field("requests").key(resource), message);
    }
    let mut names = list("limits").chain(list("requests")).map(|(name, _)| name);
    let has_any = |is_it: &dyn Fn(&str) -> bool| {
        let mut names = list("limits").chain(list("requests"));
        names.any(|(name, _)| is_it(name))
    };
    if names.any(|name| name.starts_with(HUGE_PAGES))
        && !has_any(&|name| ["cpu", "memory"].contains(&name))
    {
        add(
            report,
            "has hugepages, which need cpu or memory beside them",
        );
    }
}

/// Other rules for init containers hold only where somebody has switched on `InPlacePodVerticalScaling` before it was on by
/// default; where it is off, the API server drops the field (`dropDisabledFields`, `pkg/api/pod/util.go`).
fn check_resize(container: &JsonObject, is_plain_init: bool, report: &mut FieldErrors<'_>) {
    let mut unique = BTreeSet::new();
    for (index, policy) in items(container, "resizePolicy").enumerate() {
        let mut at = report.index(index);
        // `validateResizePolicy` (KEP-1287).
        check_word(policy, "resourceName", &["cpu", "memory"], &mut at);
        let words = ["NotRequired", "RestartContainer"];
        check_word(policy, "restartPolicy", &words, &mut at);
        // `validateInitContainers` of Kubernetes 1.36. Earlier versions accept it, and it means nothing: the container ends.
        if is_plain_init && text(policy, "restartPolicy") == Some("RestartContainer") {
            let message = format!(
                "is for init containers with restartPolicy: Always alone, and means nothing in another; take it out, since from \
                 Kubernetes 1.36 on {REFUSED}"
            );
            at.field("restartPolicy").add(message);
        }
        if let Some(name) = text(policy, "resourceName").filter(|name| !unique.insert(*name)) {
            let message = format!("{name:?} is listed twice");
            add(&mut at.field("resourceName"), &message);
        }
    }
}

/// Checks a security context as `ValidateSecurityContext` does.
fn check_security(security: &JsonObject, report: &mut FieldErrors<'_>) {
    for field in ["runAsUser", "runAsGroup"] {
        let most = i64::from(i32::MAX);
        if number(security, field).is_some_and(|id| !(0..=most).contains(&id)) {
            let message = format!("is not a number from 0 to {most}");
            add(&mut report.field(field), &message);
        }
    }
    check_word(security, "procMount", &["Default", "Unmasked"], report);
    let mut added = inner(security, "capabilities")
        .and_then(|capabilities| capabilities.get("add"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let is_privileged =
        is_true(security, "privileged") || added.any(|capability| capability == "CAP_SYS_ADMIN");
    let escalates = security.get("allowPrivilegeEscalation");
    if is_privileged && escalates.and_then(Value::as_bool) == Some(false) {
        let message = "must not be false beside privileged: true or capability CAP_SYS_ADMIN";
        add(&mut report.field("allowPrivilegeEscalation"), message);
    }
    for field in ["seccompProfile", "appArmorProfile"] {
        let Some(profile) = inner(security, field) else {
            continue;
        };
        let mut at = report.field(field);
        let words = ["Localhost", "RuntimeDefault", "Unconfined"];
        check_word(profile, "type", &words, &mut at);
        let is_local = text(profile, "type") == Some(words[0]);
        let path = text(profile, "localhostProfile");
        let leads_out = |path: &str| path.starts_with('/') || has_backsteps(path);
        let is_path = field == "seccompProfile";
        if path.is_some() != is_local || is_path && path.is_some_and(leads_out) {
            let message = "must be set with type Localhost and no other, as a relative path";
            add(&mut at.field("localhostProfile"), message);
        }
    }
}
