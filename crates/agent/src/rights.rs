//! What an agent may do.

use leadsman_api::GROUP;

/// Reading what is to be probed, telling verdicts, and events on pods: API group, resource, verb. No right on pods.
pub const RIGHTS: [(&str, &str, &str); 8] = [
    (GROUP, "nodepodprobes", "get"),
    (GROUP, "nodepodprobes", "list"),
    (GROUP, "nodepodprobes", "watch"),
    (GROUP, "nodepodprobes/status", "patch"),
    ("", "events", "create"),
    ("", "events", "patch"),
    ("events.k8s.io", "events", "create"),
    ("events.k8s.io", "events", "patch"),
];
