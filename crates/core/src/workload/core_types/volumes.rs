//! The fields of a volume and of what is in it (`k8s.io/api/core/v1`, 0.32).

use super::containers::{OBJECT_FIELD_SELECTOR, RESOURCE_FIELD_SELECTOR};
use crate::workload::go_json::{Field, Form, always, optional, pointer};

const HOST_PATH_VOLUME_SOURCE: &[Field] = &[always("path", "\"\""), pointer("type")];

const EMPTY_DIR_VOLUME_SOURCE: &[Field] =
    &[optional("medium"), pointer("sizeLimit").of(Form::Quantity)];

const GCE_PERSISTENT_DISK_VOLUME_SOURCE: &[Field] = &[
    always("pdName", "\"\""),
    optional("fsType"),
    optional("partition"),
    optional("readOnly"),
];

const AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE: &[Field] = &[
    always("volumeID", "\"\""),
    optional("fsType"),
    optional("partition"),
    optional("readOnly"),
];

const GIT_REPO_VOLUME_SOURCE: &[Field] = &[
    always("repository", "\"\""),
    optional("revision"),
    optional("directory"),
];

const KEY_TO_PATH: &[Field] = &[
    always("key", "\"\""),
    always("path", "\"\""),
    pointer("mode"),
];

const SECRET_VOLUME_SOURCE: &[Field] = &[
    optional("secretName"),
    optional("items").of(Form::List(&Form::Struct(KEY_TO_PATH))),
    pointer("defaultMode"),
    pointer("optional"),
];

const NFS_VOLUME_SOURCE: &[Field] = &[
    always("server", "\"\""),
    always("path", "\"\""),
    optional("readOnly"),
];

/// `LocalObjectReference`.
pub const LOCAL_OBJECT_REFERENCE: &[Field] = &[optional("name")];

const ISCSI_VOLUME_SOURCE: &[Field] = &[
    always("targetPortal", "\"\""),
    always("iqn", "\"\""),
    always("lun", "0"),
    optional("iscsiInterface"),
    optional("fsType"),
    optional("readOnly"),
    optional("portals"),
    optional("chapAuthDiscovery"),
    optional("chapAuthSession"),
    pointer("secretRef").of(Form::Struct(LOCAL_OBJECT_REFERENCE)),
    pointer("initiatorName"),
];

const GLUSTERFS_VOLUME_SOURCE: &[Field] = &[
    always("endpoints", "\"\""),
    always("path", "\"\""),
    optional("readOnly"),
];

const PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE: &[Field] =
    &[always("claimName", "\"\""), optional("readOnly")];

const RBD_VOLUME_SOURCE: &[Field] = &[
    always("monitors", "null"),
    always("image", "\"\""),
    optional("fsType"),
    optional("pool"),
    optional("user"),
    optional("keyring"),
    pointer("secretRef").of(Form::Struct(LOCAL_OBJECT_REFERENCE)),
    optional("readOnly"),
];

const FLEX_VOLUME_SOURCE: &[Field] = &[
    always("driver", "\"\""),
    optional("fsType"),
    pointer("secretRef").of(Form::Struct(LOCAL_OBJECT_REFERENCE)),
    optional("readOnly"),
    optional("options"),
];

const CINDER_VOLUME_SOURCE: &[Field] = &[
    always("volumeID", "\"\""),
    optional("fsType"),
    optional("readOnly"),
    pointer("secretRef").of(Form::Struct(LOCAL_OBJECT_REFERENCE)),
];

const CEPH_FS_VOLUME_SOURCE: &[Field] = &[
    always("monitors", "null"),
    optional("path"),
    optional("user"),
    optional("secretFile"),
    pointer("secretRef").of(Form::Struct(LOCAL_OBJECT_REFERENCE)),
    optional("readOnly"),
];

const FLOCKER_VOLUME_SOURCE: &[Field] = &[optional("datasetName"), optional("datasetUUID")];

const DOWNWARD_API_VOLUME_FILE: &[Field] = &[
    always("path", "\"\""),
    pointer("fieldRef").of(Form::Struct(OBJECT_FIELD_SELECTOR)),
    pointer("resourceFieldRef").of(Form::Struct(RESOURCE_FIELD_SELECTOR)),
    pointer("mode"),
];

const DOWNWARD_API_VOLUME_SOURCE: &[Field] = &[
    optional("items").of(Form::List(&Form::Struct(DOWNWARD_API_VOLUME_FILE))),
    pointer("defaultMode"),
];

const FC_VOLUME_SOURCE: &[Field] = &[
    optional("targetWWNs"),
    pointer("lun"),
    optional("fsType"),
    optional("readOnly"),
    optional("wwids"),
];

const AZURE_FILE_VOLUME_SOURCE: &[Field] = &[
    always("secretName", "\"\""),
    always("shareName", "\"\""),
    optional("readOnly"),
];

const CONFIG_MAP_VOLUME_SOURCE: &[Field] = &[
    optional("name"),
    optional("items").of(Form::List(&Form::Struct(KEY_TO_PATH))),
    pointer("defaultMode"),
    pointer("optional"),
];

const VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE: &[Field] = &[
    always("volumePath", "\"\""),
    optional("fsType"),
    optional("storagePolicyName"),
    optional("storagePolicyID"),
];

const QUOBYTE_VOLUME_SOURCE: &[Field] = &[
    always("registry", "\"\""),
    always("volume", "\"\""),
    optional("readOnly"),
    optional("user"),
    optional("group"),
    optional("tenant"),
];

const AZURE_DISK_VOLUME_SOURCE: &[Field] = &[
    always("diskName", "\"\""),
    always("diskURI", "\"\""),
    pointer("cachingMode"),
    pointer("fsType"),
    pointer("readOnly"),
    pointer("kind"),
];

const PHOTON_PERSISTENT_DISK_VOLUME_SOURCE: &[Field] =
    &[always("pdID", "\"\""), optional("fsType")];

const SECRET_PROJECTION: &[Field] = &[
    optional("name"),
    optional("items").of(Form::List(&Form::Struct(KEY_TO_PATH))),
    pointer("optional"),
];

const DOWNWARD_API_PROJECTION: &[Field] =
    &[optional("items").of(Form::List(&Form::Struct(DOWNWARD_API_VOLUME_FILE)))];

const CONFIG_MAP_PROJECTION: &[Field] = &[
    optional("name"),
    optional("items").of(Form::List(&Form::Struct(KEY_TO_PATH))),
    pointer("optional"),
];

const SERVICE_ACCOUNT_TOKEN_PROJECTION: &[Field] = &[
    optional("audience"),
    pointer("expirationSeconds"),
    always("path", "\"\""),
];

const CLUSTER_TRUST_BUNDLE_PROJECTION: &[Field] = &[
    pointer("name"),
    pointer("signerName"),
    pointer("labelSelector"),
    pointer("optional"),
    always("path", "\"\""),
];

const VOLUME_PROJECTION: &[Field] = &[
    pointer("secret").of(Form::Struct(SECRET_PROJECTION)),
    pointer("downwardAPI").of(Form::Struct(DOWNWARD_API_PROJECTION)),
    pointer("configMap").of(Form::Struct(CONFIG_MAP_PROJECTION)),
    pointer("serviceAccountToken").of(Form::Struct(SERVICE_ACCOUNT_TOKEN_PROJECTION)),
    pointer("clusterTrustBundle").of(Form::Struct(CLUSTER_TRUST_BUNDLE_PROJECTION)),
];

const PROJECTED_VOLUME_SOURCE: &[Field] = &[
    always("sources", "null").of(Form::List(&Form::Struct(VOLUME_PROJECTION))),
    pointer("defaultMode"),
];

const PORTWORX_VOLUME_SOURCE: &[Field] = &[
    always("volumeID", "\"\""),
    optional("fsType"),
    optional("readOnly"),
];

const SCALE_IO_VOLUME_SOURCE: &[Field] = &[
    always("gateway", "\"\""),
    always("system", "\"\""),
    always("secretRef", "null").of(Form::Struct(LOCAL_OBJECT_REFERENCE)),
    optional("sslEnabled"),
    optional("protectionDomain"),
    optional("storagePool"),
    optional("storageMode"),
    optional("volumeName"),
    optional("fsType"),
    optional("readOnly"),
];

const STORAGE_OS_VOLUME_SOURCE: &[Field] = &[
    optional("volumeName"),
    optional("volumeNamespace"),
    optional("fsType"),
    optional("readOnly"),
    pointer("secretRef").of(Form::Struct(LOCAL_OBJECT_REFERENCE)),
];

const CSI_VOLUME_SOURCE: &[Field] = &[
    always("driver", "\"\""),
    pointer("readOnly"),
    pointer("fsType"),
    optional("volumeAttributes"),
    pointer("nodePublishSecretRef").of(Form::Struct(LOCAL_OBJECT_REFERENCE)),
];

const VOLUME_RESOURCE_REQUIREMENTS: &[Field] = &[
    optional("limits").of(Form::Map(&Form::Quantity)),
    optional("requests").of(Form::Map(&Form::Quantity)),
];

const TYPED_LOCAL_OBJECT_REFERENCE: &[Field] = &[
    always("apiGroup", "null"),
    always("kind", "\"\""),
    always("name", "\"\""),
];

const TYPED_OBJECT_REFERENCE: &[Field] = &[
    always("apiGroup", "null"),
    always("kind", "\"\""),
    always("name", "\"\""),
    pointer("namespace"),
];

const PERSISTENT_VOLUME_CLAIM_SPEC: &[Field] = &[
    optional("accessModes"),
    pointer("selector"),
    always("resources", "{}").of(Form::Struct(VOLUME_RESOURCE_REQUIREMENTS)),
    optional("volumeName"),
    pointer("storageClassName"),
    pointer("volumeMode"),
    pointer("dataSource").of(Form::Struct(TYPED_LOCAL_OBJECT_REFERENCE)),
    pointer("dataSourceRef").of(Form::Struct(TYPED_OBJECT_REFERENCE)),
    pointer("volumeAttributesClassName"),
];

/// `ObjectMeta` of a `PersistentVolumeClaimTemplate`; it is written sorted only.
const TEMPLATE_METADATA: &[Field] = &[always("creationTimestamp", "null")];

const PERSISTENT_VOLUME_CLAIM_TEMPLATE: &[Field] = &[
    // Go writes a structure although it is empty, and in it a time that is none.
    always("metadata", "{}").of(Form::Struct(TEMPLATE_METADATA)),
    always("spec", "{}").of(Form::Struct(PERSISTENT_VOLUME_CLAIM_SPEC)),
];

const EPHEMERAL_VOLUME_SOURCE: &[Field] =
    &[pointer("volumeClaimTemplate").of(Form::Struct(PERSISTENT_VOLUME_CLAIM_TEMPLATE))];

const IMAGE_VOLUME_SOURCE: &[Field] = &[optional("reference"), optional("pullPolicy")];

/// `Volume`.
pub const VOLUME: &[Field] = &[
    always("name", "\"\""),
    pointer("hostPath").of(Form::Struct(HOST_PATH_VOLUME_SOURCE)),
    pointer("emptyDir").of(Form::Struct(EMPTY_DIR_VOLUME_SOURCE)),
    pointer("gcePersistentDisk").of(Form::Struct(GCE_PERSISTENT_DISK_VOLUME_SOURCE)),
    pointer("awsElasticBlockStore").of(Form::Struct(AWS_ELASTIC_BLOCK_STORE_VOLUME_SOURCE)),
    pointer("gitRepo").of(Form::Struct(GIT_REPO_VOLUME_SOURCE)),
    pointer("secret").of(Form::Struct(SECRET_VOLUME_SOURCE)),
    pointer("nfs").of(Form::Struct(NFS_VOLUME_SOURCE)),
    pointer("iscsi").of(Form::Struct(ISCSI_VOLUME_SOURCE)),
    pointer("glusterfs").of(Form::Struct(GLUSTERFS_VOLUME_SOURCE)),
    pointer("persistentVolumeClaim").of(Form::Struct(PERSISTENT_VOLUME_CLAIM_VOLUME_SOURCE)),
    pointer("rbd").of(Form::Struct(RBD_VOLUME_SOURCE)),
    pointer("flexVolume").of(Form::Struct(FLEX_VOLUME_SOURCE)),
    pointer("cinder").of(Form::Struct(CINDER_VOLUME_SOURCE)),
    pointer("cephfs").of(Form::Struct(CEPH_FS_VOLUME_SOURCE)),
    pointer("flocker").of(Form::Struct(FLOCKER_VOLUME_SOURCE)),
    pointer("downwardAPI").of(Form::Struct(DOWNWARD_API_VOLUME_SOURCE)),
    pointer("fc").of(Form::Struct(FC_VOLUME_SOURCE)),
    pointer("azureFile").of(Form::Struct(AZURE_FILE_VOLUME_SOURCE)),
    pointer("configMap").of(Form::Struct(CONFIG_MAP_VOLUME_SOURCE)),
    pointer("vsphereVolume").of(Form::Struct(VSPHERE_VIRTUAL_DISK_VOLUME_SOURCE)),
    pointer("quobyte").of(Form::Struct(QUOBYTE_VOLUME_SOURCE)),
    pointer("azureDisk").of(Form::Struct(AZURE_DISK_VOLUME_SOURCE)),
    pointer("photonPersistentDisk").of(Form::Struct(PHOTON_PERSISTENT_DISK_VOLUME_SOURCE)),
    pointer("projected").of(Form::Struct(PROJECTED_VOLUME_SOURCE)),
    pointer("portworxVolume").of(Form::Struct(PORTWORX_VOLUME_SOURCE)),
    pointer("scaleIO").of(Form::Struct(SCALE_IO_VOLUME_SOURCE)),
    pointer("storageos").of(Form::Struct(STORAGE_OS_VOLUME_SOURCE)),
    pointer("csi").of(Form::Struct(CSI_VOLUME_SOURCE)),
    pointer("ephemeral").of(Form::Struct(EPHEMERAL_VOLUME_SOURCE)),
    pointer("image").of(Form::Struct(IMAGE_VOLUME_SOURCE)),
];
