//! The templates that a set had, and the way back to one of them.

use leadsman_api::CloneSet;
use leadsman_api::slim::revision::ControllerRevision;
use leadsman_core::cloneset::{PastTemplate, past_templates};
use leadsman_core::workload::JsonObject;
use serde::Serialize;
use serde_json::{Value, json};

use super::{ReadSet, SetChange};
use crate::VerbError;
use crate::output;
use crate::reader::ListSelection;
use crate::report::{Report, Text, TextTable, good, line, row};
use crate::resources::CONTROLLER_REVISIONS;

/// The revisions of a set, the oldest first.
#[derive(Debug, Serialize)]
pub(super) struct RolloutHistory {
    name: String,
    revisions: Vec<RolloutRevision>,
}

#[derive(Clone, Debug, Serialize)]
struct RolloutRevision {
    revision: i64,
    name: String,
    /// Whether the set has this template now.
    present: bool,
    images: Vec<String>,
    /// The template, where one revision was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<JsonObject>,
    #[serde(skip)]
    whole: JsonObject,
}

/// The way back to an earlier template.
#[derive(Debug)]
pub(super) struct Undo {
    pub(super) change: SetChange,
    name: String,
}

impl ReadSet {
    pub(super) async fn read_history(&self) -> Result<RolloutHistory, VerbError> {
        let status = self.set.status.as_ref();
        let selection = ListSelection {
            labels: status.and_then(|status| status.label_selector.clone()),
            ..ListSelection::of(Some(&self.namespace), 100)
        };
        let reader = &self.reader;
        let revisions = reader.list_objects::<ControllerRevision>(CONTROLLER_REVISIONS, &selection);
        Ok(RolloutHistory::new(
            &self.name,
            past_templates(&self.set, &revisions.await?),
        ))
    }
}

impl RolloutHistory {
    fn new(name: &str, templates: Vec<PastTemplate>) -> Self {
        let revisions = templates.into_iter().map(|past| {
            let spec = past.template.get("spec");
            let containers = spec.and_then(|spec| spec["containers"].as_array());
            let images = containers
                .into_iter()
                .flatten()
                .filter_map(|one| one["image"].as_str());
            RolloutRevision {
                revision: past.number,
                name: past.name,
                present: past.is_present,
                images: images.map(str::to_owned).collect(),
                template: None,
                whole: past.template,
            }
        });
        Self {
            name: name.to_owned(),
            revisions: revisions.collect(),
        }
    }

    fn find(&self, number: i64) -> Result<&RolloutRevision, VerbError> {
        let found = self.revisions.iter().find(|one| one.revision == number);
        found.ok_or_else(|| {
            let known: Vec<_> = self
                .revisions
                .iter()
                .map(|one| one.revision.to_string())
                .collect();
            VerbError::Found(format!(
                "unable to find revision {number} of cloneset {:?}: it has {}",
                self.name,
                if known.is_empty() {
                    "none".to_owned()
                } else {
                    known.join(", ")
                }
            ))
        })
    }

    /// One revision with its template, or all without.
    pub(super) fn of_revision(self, number: Option<i64>) -> Result<Self, VerbError> {
        let Some(number) = number else {
            return Ok(self);
        };
        let mut one = self.find(number)?.clone();
        one.template = Some(one.whole.clone());
        Ok(Self {
            revisions: vec![one],
            ..self
        })
    }

    /// Goes back to a revision; 0 is the one before the newest.
    pub(super) fn undo(&self, set: &CloneSet, number: i64) -> Result<Undo, VerbError> {
        let to = match (number, self.revisions.as_slice()) {
            (0, [.., before, _]) => before,
            (0, _) => {
                return Err(VerbError::Found(format!(
                    "no rollout history found for cloneset {:?}: it has had no other template",
                    self.name
                )));
            }
            (number, _) => self.find(number)?,
        };
        if to.present {
            return Err(VerbError::Found(format!(
                "skipped rollback (current template already matches revision {})",
                to.revision
            )));
        }
        let mut template = Value::Object(to.whole.clone());
        if let Some(metadata) = template["metadata"].as_object_mut() {
            metadata.retain(|_, value| !value.is_null());
        }
        // Somebody else's edit since is not overwritten.
        let read =
            json!({"op": "test", "path": "/metadata/generation", "value": set.metadata.generation});
        Ok(Undo {
            change: SetChange {
                patch: json!([read, {"op": "replace", "path": "/spec/template", "value": template}]),
                done: "rolled back",
            },
            name: self.name.clone(),
        })
    }
}

impl Undo {
    /// The text that `--dry-run=client` shows.
    pub(super) fn to_text(&self) -> Result<String, VerbError> {
        let yaml = output::to_harmless_yaml(&self.change.patch[1]["value"])
            .map_err(|error| VerbError::Io(std::io::Error::other(error)))?;
        let name = &self.name;
        Ok(format!(
            "cloneset.apps.kruise.io/{name} Pod Template:\n{yaml}(dry run)\n"
        ))
    }
}

impl Report for RolloutHistory {
    fn add_text(&self, text: &mut Text) {
        if let [
            RolloutRevision {
                revision,
                template: Some(template),
                ..
            },
        ] = self.revisions.as_slice()
        {
            line!(text, 0 => "cloneset.apps.kruise.io/{} with revision #{revision}", self.name);
            let yaml = output::to_harmless_yaml(template).unwrap_or_default();
            for field in yaml.lines() {
                line!(text, 0 => "{field}");
            }
            return;
        }
        line!(text, 0 => "cloneset.apps.kruise.io/{}", self.name);
        let mut table = TextTable::new(&["REVISION", "NAME", "PRESENT", "IMAGES"]);
        for one in &self.revisions {
            let present = if one.present {
                good("yes")
            } else {
                "-".to_owned()
            };
            row!(table => one.revision, one.name, present, one.images.join(", "));
        }
        text.add_table(0, &table);
    }

    fn names(&self) -> Vec<String> {
        let names = self.revisions.iter();
        names
            .map(|one| format!("controllerrevision.apps/{}", one.name))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::set;
    use super::*;
    use crate::report::plain_text;

    fn template(image: &str) -> Value {
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": image}]}})
    }

    /// A set on this image, and its revisions: number, image and the uid of the owner.
    fn history(present: &str, revisions: &[(i64, &str, &str)]) -> (CloneSet, RolloutHistory) {
        let set = set(&json!({"template": template(present)}), &json!({}));
        let revisions = revisions.iter().map(|(number, image, owner)| {
            let mut data = template(image);
            data["$patch"] = json!("replace");
            data["metadata"]["creationTimestamp"] = Value::Null;
            data["spec"]["containers"][0]["resources"] = json!({});
            let owner = json!({"apiVersion": "v", "kind": "CloneSet", "name": "web", "uid": owner, "controller": true});
            let metadata = json!({"name": format!("web-{number}"), "ownerReferences": [owner]});
            let revision = json!({"metadata": metadata, "revision": number, "data": {"spec": {"template": data}}});
            serde_json::from_value::<ControllerRevision>(revision).unwrap()
        });
        let templates = past_templates(&set, &revisions.collect::<Vec<_>>());
        (set, RolloutHistory::new("web", templates))
    }

    const THREE: [(i64, &str, &str); 4] = [
        (3, "app:3", "u"),
        (1, "app:1", "u"),
        (2, "app:2", "u"),
        (9, "app:9", "other"),
    ];

    #[test]
    fn a_history_has_the_set_s_own_revisions_and_their_images() {
        let (_, all) = history("app:3", &THREE);
        let text = plain_text(&all, false, "2026-01-01T00:00:00Z");
        let expected = "\
cloneset.apps.kruise.io/web
REVISION   NAME    PRESENT   IMAGES
1          web-1   -         app:1
2          web-2   -         app:2
3          web-3   yes       app:3
";
        assert_eq!(text, expected);
        let one = all.of_revision(Some(2)).unwrap();
        let text = plain_text(&one, false, "2026-01-01T00:00:00Z");
        assert!(
            text.starts_with("cloneset.apps.kruise.io/web with revision #2\n"),
            "{text}"
        );
        assert!(text.contains("image: app:2\n"), "{text}");
        let json = serde_json::to_value(&one).unwrap();
        assert_eq!(
            json["revisions"][0]["template"]["spec"]["containers"][0]["image"],
            "app:2"
        );
        let error = one.of_revision(Some(5)).unwrap_err().to_string();
        assert_eq!(
            error,
            "unable to find revision 5 of cloneset \"web\": it has 2"
        );
    }

    #[test]
    fn undo_goes_to_the_revision_before_or_to_the_one_that_is_named() {
        let (set, all) = history("app:3", &THREE);
        for (number, image) in [(0, "app:2"), (1, "app:1"), (2, "app:2")] {
            let undo = all.undo(&set, number).unwrap();
            let mut wanted = template(image);
            wanted["spec"]["containers"][0]["resources"] = json!({});
            assert_eq!(
                undo.change.patch,
                json!([{"op": "test", "path": "/metadata/generation", "value": 4},
                    {"op": "replace", "path": "/spec/template", "value": wanted}])
            );
            assert!(undo.to_text().unwrap().ends_with("(dry run)\n"));
        }
        let error = all.undo(&set, 3).unwrap_err().to_string();
        assert_eq!(
            error,
            "skipped rollback (current template already matches revision 3)"
        );
        let (set, one) = history("app:1", &THREE[1..2]);
        let error = one.undo(&set, 0).unwrap_err().to_string();
        assert!(error.starts_with("no rollout history found"), "{error}");
    }
}
