//! Annotations that a set gives to its pods, and what becomes of those that are there.

mod merge_patch;
mod whitelist;

use std::collections::{BTreeMap, BTreeSet};

use leadsman_api::limits;
use leadsman_api::sidecar_set::PatchPodMetadata;

pub use self::merge_patch::{MergeError, merge};
pub use self::whitelist::{AllowedKeys, CONFIGURATION, WHITELIST, Whitelist};
use crate::cluster::{FieldErrors, names};

/// Annotations of one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataPatch {
    /// The policy for an annotation that is there already.
    pub policy: PatchPolicy,
    /// Keys and values.
    pub annotations: BTreeMap<String, String>,
}

/// The policy for an annotation that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchPolicy {
    /// The annotation stays.
    Retain,
    /// The annotation is replaced.
    Overwrite,
    /// The annotation is merged with the value as a patch (RFC 7396).
    MergePatchJson,
}

/// An annotation that was left as it is, because it could not be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("leaves annotation {key:?} of the pod as it is: {reason}")]
pub struct NotMerged {
    /// The annotation's key.
    pub key: String,
    /// Why.
    pub reason: MergeError,
}

impl MetadataPatch {
    /// Reads the patches of a set; a key stands in one of them only.
    pub fn read_all(wire: &[PatchPodMetadata], report: &mut FieldErrors<'_>) -> Vec<Self> {
        let mut unique = BTreeSet::new();
        let mut patches = Vec::new();
        report.at_most(wire.len(), limits::PATCHES, "entries");
        for (index, wire) in wire.iter().enumerate() {
            let mut at = report.index(index);
            patches.push(Self::read(wire, &mut unique, &mut at));
        }
        patches
    }

    fn read<'a>(
        wire: &'a PatchPodMetadata,
        unique: &mut BTreeSet<&'a str>,
        report: &mut FieldErrors<'_>,
    ) -> Self {
        let policy = match wire.patch_policy.as_deref().unwrap_or_default() {
            "" | "Retain" => PatchPolicy::Retain,
            "Overwrite" => PatchPolicy::Overwrite,
            "MergePatchJson" => PatchPolicy::MergePatchJson,
            other => {
                report.field("patchPolicy").add(format!(
                    "{other:?} is not one of Retain, Overwrite, MergePatchJson"
                ));
                PatchPolicy::Retain
            }
        };
        let mut at = report.field("annotations");
        if wire.annotations.is_empty() {
            at.add("must not be empty");
        }
        at.at_most(wire.annotations.len(), limits::PATCH_KEYS, "annotations");
        for (key, value) in &wire.annotations {
            // Upper case is allowed in the domain of an annotation (`ValidateAnnotations` in
            // k8s.io/apimachinery/pkg/api/validation/objectmeta.go).
            at.check(names::qualified_name(&key.to_ascii_lowercase()));
            at.check(names::unreserved_key(key));
            if !unique.insert(key) {
                at.add(format!("{key:?} stands in another entry too"));
            }
            if policy == PatchPolicy::MergePatchJson {
                let checked = merge_patch::check_patch(value);
                at.key(key)
                    .check(checked.map_err(|error| error.to_string()));
            }
        }
        Self {
            policy,
            annotations: wire.annotations.clone(),
        }
    }

    /// Applies the patch to annotations. Those that cannot be merged stay and are returned, as do those by which all keys and
    /// values would have more bytes together.
    pub fn apply(
        &self,
        annotations: &mut BTreeMap<String, String>,
        most_bytes: usize,
    ) -> Vec<NotMerged> {
        let mut failures = Vec::new();
        let mut bytes = bytes_of(annotations);
        for (key, value) in &self.annotations {
            let present = annotations.get(key).map(String::as_str);
            let wanted = match present {
                Some(_) if self.policy == PatchPolicy::Retain => continue,
                Some(present)
                    if self.policy == PatchPolicy::MergePatchJson && !present.is_empty() =>
                {
                    merge(present, value)
                }
                _ => Ok(value.clone()),
            };
            let former = present.map_or(0, |present| key.len() + present.len());
            let fits = wanted.and_then(|wanted| {
                let bytes = bytes - former + key.len() + wanted.len();
                let fits = bytes <= most_bytes;
                fits.then_some((wanted, bytes)).ok_or(MergeError::TooLarge)
            });
            match fits {
                Ok((wanted, with_it)) => {
                    bytes = with_it;
                    annotations.insert(key.clone(), wanted);
                }
                Err(reason) => failures.push(NotMerged {
                    key: key.clone(),
                    reason,
                }),
            }
        }
        failures
    }

    /// The keys that it sets.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.annotations.keys().map(String::as_str)
    }
}

/// The bytes of annotations as Kubernetes counts them (`TotalAnnotationSizeLimitB` of
/// k8s.io/apimachinery/pkg/api/validation/objectmeta.go).
pub fn bytes_of(annotations: &BTreeMap<String, String>) -> usize {
    let lengths = annotations.iter();
    lengths.map(|(key, value)| key.len() + value.len()).sum()
}

#[cfg(test)]
mod tests;
