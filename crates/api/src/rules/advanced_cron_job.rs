//! The CEL rules of `AdvancedCronJob`. Whether a schedule can be read and a time zone is known is said by the parser alone.

use super::{CelRule, rule, string_rule};

/// The templates, of which a cron job has one.
pub(crate) const RUN_TEMPLATES: [&str; 3] = [
    "jobTemplate",
    "broadcastJobTemplate",
    "imageListPullJobTemplate",
];

/// All rules of `AdvancedCronJob`.
pub(crate) fn advanced_cron_job() -> Vec<CelRule> {
    let given = RUN_TEMPLATES.map(|template| format!("has(self.{template})"));
    vec![
        rule(
            "spec.template",
            format!("[{}].exists_one(given, given)", given.join(", ")),
            "must have exactly one template: jobTemplate, broadcastJobTemplate or imageListPullJobTemplate",
        ),
        rule(
            "spec",
            "!has(self.timeZone) || !self.schedule.contains('TZ')",
            "cannot have TZ in it beside the field timeZone: remove one of them",
        )
        .at_field(".schedule"),
        string_rule(
            "spec.timeZone",
            "!self.matches('^[lL][oO][cC][aA][lL]$')",
            "is a different zone on each machine: name one of the IANA database, such as Asia/Shanghai",
        ),
    ]
}
