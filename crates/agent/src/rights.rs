//! The rights of an agent.

use leadsman_api::GROUP;

/// API group, resource and verb: to read the plan, to write its status, and to send events. There is none on pods.
pub const RIGHTS: [(&str, &str, &str); 5] = [
    (GROUP, "nodepodprobes", "list"),
    (GROUP, "nodepodprobes", "watch"),
    (GROUP, "nodepodprobes/status", "patch"),
    ("", "events", "create"),
    ("", "events", "patch"),
];
