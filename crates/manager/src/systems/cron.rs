//! `AdvancedCronJob` as a system.

use leadsman_api::AdvancedCronJob;
use leadsman_api::slim::run::{BroadcastJobRun, Job};
use leadsman_control::{Kind, OptionalFields, Reconciled, Rules as _, WatchedKinds};
use leadsman_core::cron::world::Cron;

use super::System;

/// The row of `AdvancedCronJob`.
pub(super) const SYSTEM: System = System {
    name: Reconciled::<CronKinds>::NAME,
    gate: "AdvancedCronJobGate",
    about: "act on AdvancedCronJobs",
    crds: || vec![leadsman_api::crd::advanced_cron_job_crd()],
    crd_texts: &[leadsman_api::ADVANCED_CRON_JOB_CRD],
    kind: "AdvancedCronJob",
    resource: "advancedcronjobs",
    children: &[("batch", "jobs"), (leadsman_api::GROUP, "broadcastjobs")],
    patches_pods: false,
    own_deletion: None,
    own_annotations: &[],
    feature_rights: System::rights_of_kinds::<CronKinds>,
    add: |control, args, leadership| {
        let default_zone = args.default_time_zone.clone();
        control.add_feature_led_by(
            Reconciled::<CronKinds>::new(Cron { default_zone }),
            leadership,
        );
    },
};

/// The kinds that it watches.
struct CronKinds;

/// The field of the status that `OpenKruise`'s CRD lacks.
const CONDITIONS: OptionalFields = OptionalFields {
    paths: &["status.conditions[].type"],
    content: "why an AdvancedCronJob does not run (status.conditions)",
    later: &[],
};

impl WatchedKinds for CronKinds {
    type Feature = Cron;

    // A new leader lists all of them once more: a run that the last one has made, or a status that it has written, says
    // which times were run.
    const KINDS: &'static [Kind<Reconciled<Self>>] = &[
        Kind::new::<AdvancedCronJob>(100)
            .relisted_on_takeover()
            .with_optional_fields(CONDITIONS)
            .if_undecodable("the last state of it that could be decoded counts; without one nothing of it runs. Correct the object or delete it"),
        Kind::new::<Job>(250)
            .relisted_on_takeover()
            .if_undecodable("the last state of it that could be decoded counts; without one it is no run. Correct the job or delete it"),
        // The CRD comes with the gate of another system.
        Kind::new::<BroadcastJobRun>(250)
            .if_served()
            .relisted_on_takeover()
            .if_undecodable("the last state of it that could be decoded counts; without one it is no run. Correct the job or delete it"),
    ];
}
