//! The fields of a container and of what is in it (`k8s.io/api/core/v1`, 0.32).

use crate::workload::go_json::{Field, Form, always, optional, pointer};

/// `Container`.
pub const CONTAINER: &[Field] = &[
    always("name", "\"\""),
    optional("image"),
    optional("command"),
    optional("args"),
    optional("workingDir"),
    optional("ports").of(Form::List(&Form::Struct(CONTAINER_PORT))),
    optional("envFrom").of(Form::List(&Form::Struct(ENV_FROM_SOURCE))),
    optional("env").of(Form::List(&Form::Struct(ENV_VAR))),
    always("resources", "{}").of(Form::Struct(RESOURCE_REQUIREMENTS)),
    optional("resizePolicy").of(Form::List(&Form::Struct(CONTAINER_RESIZE_POLICY))),
    pointer("restartPolicy"),
    optional("volumeMounts").of(Form::List(&Form::Struct(VOLUME_MOUNT))),
    optional("volumeDevices").of(Form::List(&Form::Struct(VOLUME_DEVICE))),
    pointer("livenessProbe").of(Form::Struct(PROBE)),
    pointer("readinessProbe").of(Form::Struct(PROBE)),
    pointer("startupProbe").of(Form::Struct(PROBE)),
    pointer("lifecycle").of(Form::Struct(LIFECYCLE)),
    optional("terminationMessagePath"),
    optional("terminationMessagePolicy"),
    optional("imagePullPolicy"),
    pointer("securityContext").of(Form::Struct(SECURITY_CONTEXT)),
    optional("stdin"),
    optional("stdinOnce"),
    optional("tty"),
];

const CONTAINER_PORT: &[Field] = &[
    optional("name"),
    optional("hostPort"),
    always("containerPort", "0"),
    optional("protocol"),
    optional("hostIP"),
];

const ENV_FROM_SOURCE: &[Field] = &[
    optional("prefix"),
    pointer("configMapRef").of(Form::Struct(CONFIG_MAP_ENV_SOURCE)),
    pointer("secretRef").of(Form::Struct(SECRET_ENV_SOURCE)),
];

const CONFIG_MAP_ENV_SOURCE: &[Field] = &[optional("name"), pointer("optional")];

const SECRET_ENV_SOURCE: &[Field] = &[optional("name"), pointer("optional")];

const ENV_VAR: &[Field] = &[
    always("name", "\"\""),
    optional("value"),
    pointer("valueFrom").of(Form::Struct(ENV_VAR_SOURCE)),
];

const ENV_VAR_SOURCE: &[Field] = &[
    pointer("fieldRef").of(Form::Struct(OBJECT_FIELD_SELECTOR)),
    pointer("resourceFieldRef").of(Form::Struct(RESOURCE_FIELD_SELECTOR)),
    pointer("configMapKeyRef").of(Form::Struct(CONFIG_MAP_KEY_SELECTOR)),
    pointer("secretKeyRef").of(Form::Struct(SECRET_KEY_SELECTOR)),
];

/// `ObjectFieldSelector`.
pub const OBJECT_FIELD_SELECTOR: &[Field] = &[optional("apiVersion"), always("fieldPath", "\"\"")];

/// `ResourceFieldSelector`.
pub(super) const RESOURCE_FIELD_SELECTOR: &[Field] = &[
    optional("containerName"),
    always("resource", "\"\""),
    always("divisor", "\"0\"").of(Form::Quantity),
];

const CONFIG_MAP_KEY_SELECTOR: &[Field] =
    &[optional("name"), always("key", "\"\""), pointer("optional")];

const SECRET_KEY_SELECTOR: &[Field] =
    &[optional("name"), always("key", "\"\""), pointer("optional")];

const RESOURCE_REQUIREMENTS: &[Field] = &[
    optional("limits").of(Form::Map(&Form::Quantity)),
    optional("requests").of(Form::Map(&Form::Quantity)),
    optional("claims").of(Form::List(&Form::Struct(RESOURCE_CLAIM))),
];

const RESOURCE_CLAIM: &[Field] = &[always("name", "\"\""), optional("request")];

const CONTAINER_RESIZE_POLICY: &[Field] = &[
    always("resourceName", "\"\""),
    always("restartPolicy", "\"\""),
];

const VOLUME_MOUNT: &[Field] = &[
    always("name", "\"\""),
    optional("readOnly"),
    pointer("recursiveReadOnly"),
    always("mountPath", "\"\""),
    optional("subPath"),
    pointer("mountPropagation"),
    optional("subPathExpr"),
];

const VOLUME_DEVICE: &[Field] = &[always("name", "\"\""), always("devicePath", "\"\"")];

const PROBE: &[Field] = &[
    pointer("exec").of(Form::Struct(EXEC_ACTION)),
    pointer("httpGet").of(Form::Struct(HTTP_GET_ACTION)),
    pointer("tcpSocket").of(Form::Struct(TCP_SOCKET_ACTION)),
    pointer("grpc").of(Form::Struct(GRPC_ACTION)),
    optional("initialDelaySeconds"),
    optional("timeoutSeconds"),
    optional("periodSeconds"),
    optional("successThreshold"),
    optional("failureThreshold"),
    pointer("terminationGracePeriodSeconds"),
];

const EXEC_ACTION: &[Field] = &[optional("command")];

const HTTP_GET_ACTION: &[Field] = &[
    optional("path"),
    always("port", "0"),
    optional("host"),
    optional("scheme"),
    optional("httpHeaders").of(Form::List(&Form::Struct(HTTP_HEADER))),
];

const HTTP_HEADER: &[Field] = &[always("name", "\"\""), always("value", "\"\"")];

const TCP_SOCKET_ACTION: &[Field] = &[always("port", "0"), optional("host")];

const GRPC_ACTION: &[Field] = &[always("port", "0"), always("service", "null")];

const LIFECYCLE: &[Field] = &[
    pointer("postStart").of(Form::Struct(LIFECYCLE_HANDLER)),
    pointer("preStop").of(Form::Struct(LIFECYCLE_HANDLER)),
];

const LIFECYCLE_HANDLER: &[Field] = &[
    pointer("exec").of(Form::Struct(EXEC_ACTION)),
    pointer("httpGet").of(Form::Struct(HTTP_GET_ACTION)),
    pointer("tcpSocket").of(Form::Struct(TCP_SOCKET_ACTION)),
    pointer("sleep").of(Form::Struct(SLEEP_ACTION)),
];

const SLEEP_ACTION: &[Field] = &[always("seconds", "0")];

const SECURITY_CONTEXT: &[Field] = &[
    pointer("capabilities").of(Form::Struct(CAPABILITIES)),
    pointer("privileged"),
    pointer("seLinuxOptions").of(Form::Struct(SE_LINUX_OPTIONS)),
    pointer("windowsOptions").of(Form::Struct(WINDOWS_SECURITY_CONTEXT_OPTIONS)),
    pointer("runAsUser"),
    pointer("runAsGroup"),
    pointer("runAsNonRoot"),
    pointer("readOnlyRootFilesystem"),
    pointer("allowPrivilegeEscalation"),
    pointer("procMount"),
    pointer("seccompProfile").of(Form::Struct(SECCOMP_PROFILE)),
    pointer("appArmorProfile").of(Form::Struct(APP_ARMOR_PROFILE)),
];

const CAPABILITIES: &[Field] = &[optional("add"), optional("drop")];

const SE_LINUX_OPTIONS: &[Field] = &[
    optional("user"),
    optional("role"),
    optional("type"),
    optional("level"),
];

const WINDOWS_SECURITY_CONTEXT_OPTIONS: &[Field] = &[
    pointer("gmsaCredentialSpecName"),
    pointer("gmsaCredentialSpec"),
    pointer("runAsUserName"),
    pointer("hostProcess"),
];

const SECCOMP_PROFILE: &[Field] = &[always("type", "\"\""), pointer("localhostProfile")];

const APP_ARMOR_PROFILE: &[Field] = &[always("type", "\"\""), pointer("localhostProfile")];
