//! The kubelets of the world: containers that start, crash and are replaced.

use serde_json::json;

use super::{BAD, Key, UNREADY, World, show_readiness};

impl World {
    /// A kubelet makes of a pod what its spec says: whatever has another image is started anew. The pod is ready with its
    /// containers, unless a readiness gate keeps it from that (`gate`).
    pub(in super::super) fn start_containers(&mut self, key: &Key) {
        let Some(pod) = self.objects.get(key) else {
            return;
        };
        let before = pod["status"]["containerStatuses"].clone();
        let now = self.now();
        let mut statuses = Vec::new();
        for container in pod["spec"]["containers"].as_array().unwrap() {
            let name = &container["name"];
            let image = container["image"].as_str().unwrap().to_owned();
            let mut own = before.as_array().unwrap().iter();
            let own = own.find(|status| status["name"] == *name);
            let own = own.filter(|status| status["spec"] == image.as_str());
            let status = own.cloned().unwrap_or_else(|| {
                self.containers += 1;
                let does_start = image != BAD;
                let is_good = does_start && image != UNREADY;
                let running = json!({"running": {"startedAt": now.wall.to_string()}});
                let state = if does_start { running } else { json!({"waiting": {}}) };
                json!({
                    "name": name, "ready": is_good, "restartCount": 0, "image": image, "spec": image,
                    "imageID": "i@sha256:0", "containerID": format!("runtime://{}", self.containers), "state": state,
                })
            });
            statuses.push(status);
        }
        let is_ready =
            pod["status"]["gate"] != false && statuses.iter().all(|status| status["ready"] == true);
        if is_ready {
            self.taken_down.retain(|(_, pod)| *pod != key.1);
        }
        self.change(key, |pod| {
            pod["status"]["containerStatuses"] = statuses.into();
            show_readiness(pod, is_ready, now);
        });
    }

    /// The containers of a pod end by themselves, and its kubelet starts them with the images that they had.
    pub(in super::super) fn crash(&mut self, key: &Key) {
        let containers = &mut self.containers;
        let Some(pod) = self.objects.get(key) else {
            return;
        };
        let mut statuses = pod["status"]["containerStatuses"].clone();
        for status in statuses.as_array_mut().unwrap() {
            *containers += 1;
            status["containerID"] = format!("runtime://{containers}").into();
            status["restartCount"] = (status["restartCount"].as_i64().unwrap() + 1).into();
        }
        self.change(key, |pod| pod["status"]["containerStatuses"] = statuses);
    }

    /// The kubelet notices that an image differs: the container is not ready until it is started.
    pub(super) fn stop_containers(&mut self, key: &Key) {
        let now = self.now();
        self.change(key, |pod| {
            let containers = pod["spec"]["containers"].as_array().unwrap().clone();
            let mut is_stopped = false;
            for status in pod["status"]["containerStatuses"].as_array_mut().unwrap() {
                let differs = containers.iter().any(|container| {
                    container["name"] == status["name"] && container["image"] != status["spec"]
                });
                if differs && status["ready"] == true {
                    status["ready"] = false.into();
                    is_stopped = true;
                }
            }
            if is_stopped {
                show_readiness(pod, false, now);
            }
        });
    }
}
