//! Roll-outs: a set never takes down more pods than it may, and a new pod is injected with what a set asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leadsman_api_model::{ApiServer, StoredChange};
use serde_json::Value;

use crate::kubelet::text;
use crate::process::is_manager;
use crate::resources::TENANT;
use crate::story::Story;
use crate::tenants::{SELECTED_BY_SETS, SIDECARS, is_active, max_unavailable, set_name};

/// The longest call of a webhook, and the tick after which it is judged.
const CALL: Duration = Duration::from_secs(31);

/// The known state of both sets.
#[derive(Default)]
pub(super) struct RollOuts {
    /// Pods that a set has taken down, by uid.
    down: [BTreeSet<String>; 2],
    /// All that each set has ever asked for: image and variable.
    contents: [Vec<Value>; 2],
    /// The sets as they are stored.
    stored: [Option<Arc<Value>>; 2],
}

impl RollOuts {
    pub(super) fn note_set(&mut self, change: &StoredChange) {
        for set in 0..SIDECARS.len() {
            if change.name != set_name(set) {
                continue;
            }
            // Pods that an earlier set of the name took down, and left so, are not its own.
            if change.after.is_none() {
                self.down[set].clear();
            }
            self.stored[set].clone_from(&change.after);
            let content = change
                .after
                .as_ref()
                .map(|stored| content_of(&stored["spec"]["containers"][0]));
            let contents = &mut self.contents[set];
            if let Some(content) = content
                && !contents.contains(&content)
            {
                contents.push(content);
            }
        }
    }

    /// etcd was restored: the sets are what they were, and who was taken down is not known any more.
    pub(super) fn note_restore(&mut self, server: &ApiServer) {
        let stored = |set| server.object("sidecarsets", "", &set_name(set));
        self.stored = [stored(0), stored(1)];
        self.down = Default::default();
    }

    pub(super) fn observe_pod(&mut self, change: &StoredChange, story: &Story) {
        for set in 0..SIDECARS.len() {
            match (&change.before, &change.after) {
                (None, Some(pod)) => self.check_injection(set, pod, story),
                (Some(before), Some(after)) => self.check_down(set, before, after, change, story),
                (Some(before), None) => {
                    self.down[set].remove(text(before, "uid"));
                }
                (None, None) => {}
            }
        }
    }

    fn check_injection(&self, set: usize, pod: &Value, story: &Story) {
        let own = container(pod, SIDECARS[set]);
        let list = pod["metadata"]["annotations"]["kruise.io/sidecarset-injected-list"].as_str();
        let is_listed = list.is_some_and(|list| list.split(',').any(|name| name == set_name(set)));
        let name = text(pod, "name");
        if is_listed != own.is_some() {
            story.violate(
                "an injection is whole",
                format_args!("{name}: {} is half injected", SIDECARS[set]),
            );
        }
        let content = own.map(content_of);
        let missed = self
            .in_force(set, pod)
            .filter(|declared| content.as_ref() != Some(declared));
        // A call that fails lets the pod through, as the configuration asks for.
        if let Some(declared) = missed
            && story.since_failed_call().is_none_or(|since| since > CALL)
        {
            let what = format_args!(
                "{name}: {} is {content:?}, and {declared} is in force",
                SIDECARS[set]
            );
            story.violate("a set in force is injected", what);
        }
        if content.is_some_and(|content| !self.contents[set].contains(&content)) {
            story.violate(
                "an injection is of the set",
                format_args!("{name}: {own:?}"),
            );
        }
    }

    /// The content that is injected into a pod, if the set selects it and its status says that it is in force as it is
    /// stored.
    fn in_force(&self, set: usize, pod: &Value) -> Option<Value> {
        let stored = self.stored[set].as_ref()?;
        let app = pod["metadata"]["labels"]["app"].as_str()?;
        let generation = &stored["metadata"]["generation"];
        let is_in_force = stored["status"]["inForce"]["generation"] == *generation;
        let is_selected = SELECTED_BY_SETS[set].contains(&app) && text(pod, "namespace") == TENANT;
        let content = content_of(&stored["spec"]["containers"][0]);
        (is_in_force && is_selected).then_some(content)
    }

    /// Pods that were ready when the set gave them another image, and were not ready with it since. A pod that leaves the set
    /// frees its place.
    fn check_down(
        &mut self,
        set: usize,
        before: &Value,
        after: &Value,
        change: &StoredChange,
        story: &Story,
    ) {
        let own = SIDECARS[set];
        let (Some(former), Some(container)) = (container(before, own), container(after, own))
        else {
            return;
        };
        let uid = text(after, "uid");
        let app = after["metadata"]["labels"]["app"]
            .as_str()
            .unwrap_or_default();
        let is_member = is_active(after) && SELECTED_BY_SETS[set].contains(&app);
        let is_upgrade = is_manager(&change.user) && former["image"] != container["image"];
        let down = &mut self.down[set];
        if is_upgrade && is_ready(before) {
            down.insert(uid.to_owned());
        } else if !is_member
            || (is_ready(after) && running_image(after, own) == Some(&container["image"]))
        {
            down.remove(uid);
        }
        let most = max_unavailable(set);
        if is_upgrade && down.len() > most {
            let name = text(after, "name");
            story.violate(
                "a roll-out takes down no more than it may",
                format_args!(
                    "{own}: {name} is one of {} pods that are down, {most} may be",
                    down.len()
                ),
            );
        }
    }
}

fn container<'a>(pod: &'a Value, name: &str) -> Option<&'a Value> {
    let containers = pod["spec"]["containers"].as_array()?;
    containers
        .iter()
        .find(|container| container["name"] == name)
}

/// Image and variable.
fn content_of(container: &Value) -> Value {
    let variables = container["env"].as_array().cloned().unwrap_or_default();
    let level = variables
        .iter()
        .find(|variable| variable["name"] == "LEVEL");
    let content: BTreeMap<_, _> = [
        ("image", container["image"].clone()),
        (
            "level",
            level.map_or(Value::Null, |level| level["value"].clone()),
        ),
    ]
    .into();
    serde_json::json!(content)
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The image that a kubelet says that it runs.
fn running_image<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    let statuses = pod["status"]["containerStatuses"].as_array()?;
    let status = statuses.iter().find(|status| status["name"] == container)?;
    Some(&status["image"])
}
