//! Why a pod was not injected by a set, or not upgraded.

use jiff::Timestamp;
use serde::Serialize;

use super::injection::report;
use super::{FieldDifference, KnownSet, KnownSets, NotSelected, PodObject, SetOutcome};
use crate::cluster::{SelectorTerm, closed_list};
use crate::sidecarset::container::{ContainerKind, SetContainer};
use crate::sidecarset::pod::{PodVersion, Progress, fresh_until};
use crate::sidecarset::reconcile::{
    Hold, InspectedMembership, Inspection, Lack, READY, SetByName, Turn,
};
use crate::sidecarset::set::MIN_READY_SECONDS_ANNOTATION;
use crate::sidecarset::strategy::UpdateMode;

/// An explanation of what a set does to a pod, and why not more.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetExplanation {
    /// The set.
    pub set: String,
    /// Whether the pod was injected by it.
    pub injected: bool,
    /// The revision that the pod says it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Why the pod is not what it would be if it were created now. Empty if it is.
    pub causes: Vec<SetCause>,
    /// The fields in which the pod differs from one that is created now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<FieldDifference>,
    /// Settings of the set that this pod does not have, such as a variable of a container that is not there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// The problem that the set's own status reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reported: Option<String>,
}

/// Something because of which a pod was not injected or is not upgraded, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SetCause {
    /// The cause in one word.
    pub reason: SetReason,
    /// The cause in full, and what to do.
    pub message: String,
    /// The requirements of the selector that does not match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<SelectorTerm>,
}

closed_list! {
    /// Why a pod was not injected by a set, or not upgraded. `docs/kubectl.md` says when each is seen, which a test holds
    /// equal to this list.
    pub enum SetReason {
        /// The set's selector does not match the pod's labels.
        Labels,
        /// The pod's namespace is another.
        Namespace,
        /// The labels of its namespace are not known.
        NamespaceUnknown,
        /// The pod is static.
        MirrorPod,
        /// The injection is paused.
        InjectionPaused,
        /// The set breaks rules.
        InvalidSpec,
        /// The pod is older than the set.
        CreatedBefore,
        /// The pod was created before the webhooks knew the set.
        NotInForce,
        /// The pod should have been injected, and no webhook answered.
        Missed,
        /// The pod has its own container of a name that the set uses.
        OwnContainer,
        /// The pod has another volume of the name that the set uses as a device.
        OwnVolume,
        /// A port of the host is taken in it, or cannot be another than the container's.
        HostPort,
        /// The set would give the pod what a pod of its kind cannot have.
        WouldBeInvalid,
        /// An older set claims the same.
        Conflict,
        /// The set does not exist any more.
        SetDeleted,
        /// An earlier set of the same name injected the pod.
        FormerSet,
        /// The pod's labels or its namespace were selected once, and are not any more.
        NoLongerSelected,
        /// The pod has the pinned revision.
        Pinned,
        /// The pod differs in more than images.
        NotUpgradable,
        /// The pod differs in what no hash shows.
        OutsideOfHash,
        /// The set upgrades no pods.
        NotUpdate,
        /// The roll-out is paused.
        Paused,
        /// The update strategy selects other pods.
        UpdateSelector,
        /// The partition keeps it.
        Partition,
        /// Others are unavailable.
        MaxUnavailable,
        /// The pod's turn is not known.
        TurnUnknown,
        /// The pod is upgraded now.
        Due,
        /// The pod's upgrade has been written.
        InProgress,
        /// The write was refused.
        Refused,
    }
}

impl SetReason {
    /// Whether it resolves by itself, or is as somebody wanted it.
    pub fn resolves(self) -> bool {
        matches!(
            self,
            Self::Due | Self::InProgress | Self::MaxUnavailable | Self::Pinned
        )
    }
}

fn cause(reason: SetReason, message: impl Into<String>) -> SetCause {
    SetCause {
        reason,
        message: message.into(),
        terms: Vec::new(),
    }
}

/// The most pods that are named as those that hold up others.
const FEW: usize = 3;
const RECREATE: &str = "create the pod again";

/// Explains what a pod has to do with each set: those that it was injected by, then those that it was not. `inspection` is
/// of the sets and `pods`, all of their pods; None if these could not be read.
pub fn explain(
    pod: &PodObject,
    sets: &KnownSets,
    inspection: &Inspection<'_>,
    pods: Option<&[PodObject]>,
    now: Timestamp,
) -> Vec<SetExplanation> {
    let context = Context {
        pod,
        sets,
        inspection,
        pods,
        now,
    };
    let inspected = inspection.inspect_pod(&pod.observed.name);
    let mut explained = Vec::new();
    // A set that the pod lacks has not injected it, and is among those below.
    for own in inspected.iter().filter(|own| own.lack.is_none()) {
        let (causes, differs) = match &own.set {
            SetByName::Active(_) => context.of_injected(own.name, own.membership.as_ref()),
            SetByName::Invalid(_) => (context.of_invalid(own.name), Vec::new()),
            SetByName::Deleting | SetByName::Gone => (vec![deleted(own.name)], Vec::new()),
        };
        explained.push(context.explanation(own.name, true, causes, differs));
    }
    let is_explained = |name: &str| {
        inspected
            .iter()
            .any(|own| own.lack.is_none() && own.name == name)
    };
    for known in &sets.valid {
        let name = &known.set.name;
        if !is_explained(name) {
            let lack = inspected.iter().find(|own| own.name == &**name);
            let causes = context.of_not_injected(known, lack.and_then(|own| own.lack.as_ref()));
            explained.push(context.explanation(name, false, causes, Vec::new()));
        }
    }
    for invalid in sets.invalid.iter().filter(|one| !is_explained(&one.name)) {
        let causes = context.of_invalid(&invalid.name);
        explained.push(context.explanation(&invalid.name, false, causes, Vec::new()));
    }
    explained
}

struct Context<'a> {
    pod: &'a PodObject,
    sets: &'a KnownSets,
    inspection: &'a Inspection<'a>,
    pods: Option<&'a [PodObject]>,
    now: Timestamp,
}

type SetFindings = (Vec<SetCause>, Vec<FieldDifference>);

impl Context<'_> {
    fn explanation(
        &self,
        set: &str,
        injected: bool,
        causes: Vec<SetCause>,
        differs: Vec<FieldDifference>,
    ) -> SetExplanation {
        SetExplanation {
            set: set.to_owned(),
            injected,
            revision: self.pod.revision(set).filter(|_| injected),
            causes,
            differs,
            remarks: self.remarks(set, injected),
            reported: self.known(set).and_then(reported),
        }
    }

    /// Lists what does not take effect in the pod, of the revision that it was injected by.
    fn remarks(&self, set: &str, injected: bool) -> Vec<String> {
        let known = self.known(set).filter(|_| injected);
        known.map_or_else(Vec::new, |known| {
            known.remarks(self.pod, self.sets, self.now)
        })
    }

    fn known(&self, set: &str) -> Option<&KnownSet> {
        self.sets.valid.iter().find(|known| *known.set.name == *set)
    }

    fn of_invalid(&self, set: &str) -> Vec<SetCause> {
        let mut invalid = self.sets.invalid.iter();
        let found = invalid.find(|invalid| invalid.name == set);
        let errors = found
            .map(|invalid| invalid.errors.join("; "))
            .unwrap_or_default();
        vec![cause(
            SetReason::InvalidSpec,
            format!("the set breaks a rule and is not acted on: {errors}"),
        )]
    }

    /// Why a pod was not injected.
    fn of_not_injected(&self, known: &KnownSet, lack: Option<&Lack>) -> Vec<SetCause> {
        let set = &known.set;
        let labels = self.sets.namespaces.get(&self.pod.observed.name.namespace);
        // The webhook asks in this order; what is left then is a matter of time.
        let unselected = NotSelected::find(set, &self.pod.as_new(), labels);
        if !unselected.is_empty() {
            return unselected.iter().map(of_unselected).collect();
        }
        if let Some(left_out) = self.left_out(known) {
            return vec![left_out];
        }
        let created = self.pod.observed.created;
        if created < Some(set.created) {
            let message = format!(
                "the pod is older than the set, and pods get their sidecars when they are created; {RECREATE}"
            );
            return vec![cause(SetReason::CreatedBefore, message)];
        }
        vec![match (lack, &known.status.in_force) {
            (Some(Lack::OwnContainer(name)), _) => own_container(name),
            (Some(Lack::Missed), _) => cause(
                SetReason::Missed,
                format!(
                    "the set was in force when the pod was created, and no webhook answered; {RECREATE}"
                ),
            ),
            (None, Some(in_force)) if created <= Some(in_force.since.0) => cause(
                SetReason::NotInForce,
                format!(
                    "the pod was created before every replica of the webhook knew the set, which was {}; {RECREATE}",
                    in_force.since.0
                ),
            ),
            (None, Some(_)) => cause(
                SetReason::Missed,
                format!(
                    "the pod was created without it: its labels or the set's selector were different then, the injection was paused, or no webhook answered; {RECREATE}"
                ),
            ),
            (None, None) => cause(
                SetReason::NotInForce,
                "the set is not in force yet: look at its condition Ready, and at the managers, which serve the webhook",
            ),
        }]
    }

    /// Finds what keeps a set out of a pod that it selects.
    fn left_out(&self, known: &KnownSet) -> Option<SetCause> {
        let namespace = &self.pod.observed.name.namespace;
        let report = report(&self.pod.object, namespace, self.sets, self.now);
        let mut reports = report.sets.iter();
        let report = reports.find(|report| *report.set == *known.set.name)?;
        let SetOutcome::LeftOut { reason, .. } = &report.outcome else {
            return None;
        };
        let remark = report.remarks.first()?;
        let action = match reason {
            SetReason::Conflict => "; rename it in one of them, or select other pods",
            SetReason::HostPort => "; change the port in one of them, or select other pods",
            // The remark ends with what to change.
            SetReason::WouldBeInvalid => ", or select other pods",
            _ => "; rename one of the two",
        };
        let message = format!("the set {remark}{action}");
        Some(cause(*reason, message))
    }

    /// Why a pod that was injected is not what it would be now.
    fn of_injected(&self, set: &str, member: Option<&InspectedMembership<'_>>) -> SetFindings {
        let Some(known) = self.known(set) else {
            return (Vec::new(), Vec::new());
        };
        let differs = known.differences(self.pod, self.sets, self.now);
        let Some(member) = member else {
            return (self.of_no_member(known, &differs), differs);
        };
        let fields = || names(&differs);
        let mut causes = Vec::new();
        match member.state.version {
            // Other differences do not matter: a pod that is created again gets the same.
            _ if member.hold == Some(&Hold::Pinned) => causes.push(of_hold(&Hold::Pinned)),
            PodVersion::Updated if !member.state.is_consistent() => causes.push(self.in_progress(known)),
            PodVersion::Updated if differs.is_empty() => {}
            PodVersion::Updated => causes.push(cause(
                SetReason::OutsideOfHash,
                format!("its containers are those of the set, and it differs in {}, which no upgrade changes; {RECREATE}", fields()),
            )),
            PodVersion::NotUpgradable => causes.push(cause(
                SetReason::NotUpgradable,
                format!("it differs in more than images, which cannot be changed in a pod: {}; {RECREATE}", fields()),
            )),
            PodVersion::Upgradable => causes.push(self.of_upgradable(known, member)),
        }
        (causes, differs)
    }

    /// Why a pod does not belong to a set any more that it was injected by.
    fn of_no_member(&self, known: &KnownSet, differs: &[FieldDifference]) -> Vec<SetCause> {
        if !self.pod.observed.is_active() {
            return Vec::new();
        }
        let labels = self.sets.namespaces.get(&self.pod.observed.name.namespace);
        let mut unselected = NotSelected::find(&known.set, &self.pod.as_new(), labels);
        // A pause is about new pods, and this one has been injected.
        unselected.retain(|one| !matches!(one, NotSelected::InjectionPaused));
        if unselected.is_empty() {
            let message = format!(
                "it lacks a container that was added to the set later: {}; {RECREATE}",
                names(differs)
            );
            return vec![cause(SetReason::NotUpgradable, message)];
        }
        let causes = unselected.iter().map(|one| SetCause {
            reason: SetReason::NoLongerSelected,
            message: format!("it keeps its sidecars, and is neither counted nor upgraded: {one}"),
            terms: one.terms().to_vec(),
        });
        causes.collect()
    }

    fn of_upgradable(&self, known: &KnownSet, member: &InspectedMembership<'_>) -> SetCause {
        let set = &known.set;
        if let Some(hold) = member.hold {
            return of_hold(hold);
        }
        match set.update.mode {
            UpdateMode::NotUpdate => {
                return cause(
                    SetReason::NotUpdate,
                    format!(
                        "the set upgrades no pods (updateStrategy.type NotUpdate); {RECREATE}, or set RollingUpdate"
                    ),
                );
            }
            UpdateMode::Paused => {
                return cause(
                    SetReason::Paused,
                    "the roll-out is paused; set updateStrategy.paused to false to go on",
                );
            }
            UpdateMode::Rolling => {}
        }
        if let Some(selector) = set
            .update
            .selector
            .as_ref()
            .filter(|_| !member.state.is_selected)
        {
            return SetCause {
                terms: selector
                    .terms(|| self.pod.as_new().labels().collect::<Vec<_>>().into_iter()),
                ..cause(
                    SetReason::UpdateSelector,
                    "updateStrategy.selector selects other pods",
                )
            };
        }
        match member.turn {
            _ if member.state.progress == Progress::BeforeRestart => self.in_progress(known),
            _ if member.state.awaits_reset() => cause(
                SetReason::InProgress,
                "its last hot upgrade has to end first: the container that worked before gets the empty image, and then it is upgraded again",
            ),
            _ if self.pods.is_none() => cause(
                SetReason::TurnUnknown,
                "it can be upgraded; its turn is unknown, since the other pods of the set could not be read",
            ),
            Turn::Now | Turn::None => cause(SetReason::Due, "it is upgraded next"),
            Turn::Kept => cause(
                SetReason::Partition,
                "updateStrategy.partition keeps it as it is; lower it to go on",
            ),
            Turn::Waiting { would_go_down } => cause(
                SetReason::MaxUnavailable,
                self.holders(known, would_go_down),
            ),
        }
    }

    /// Names the pods that hold the places that a pod waits for, and why.
    fn holders(&self, known: &KnownSet, would_go_down: bool) -> String {
        let holders = self.inspection.holders(&known.set.name, would_go_down);
        let told = holders.iter().take(FEW).map(|holder| {
            let name = holder.pod;
            let mut pods = self.pods.into_iter().flatten();
            let pod = pods.find(|pod| *pod.observed.name == *name);
            let reason = |pod| waiting(known, pod).or_else(|| self.freshness(known, pod));
            let next = holder.is_next.then(|| "is upgraded next".to_owned());
            match next.or_else(|| pod.and_then(reason)) {
                Some(reason) => format!("{name} ({reason})"),
                None => name.to_string(),
            }
        });
        let told: Vec<_> = told.collect();
        let rest = holders.len().saturating_sub(FEW);
        let more = if rest > 0 {
            format!(" and {rest} more")
        } else {
            String::new()
        };
        let told = told.join(", ");
        if would_go_down {
            format!(
                "as many pods are unavailable as updateStrategy.maxUnavailable allows: {told}{more}; it is upgraded when they are available"
            )
        } else {
            format!(
                "it is not ready, and as many pods as updateStrategy.maxUnavailable allows have the new image without having shown that it is good: {told}{more}; it is upgraded when one of them has"
            )
        }
    }

    /// Says until when a pod has to stay ready before it counts as available.
    fn freshness(&self, known: &KnownSet, pod: &PodObject) -> Option<String> {
        let until = fresh_until(&known.set, &pod.observed, self.now)?;
        Some(format!(
            "has to be ready until {until}, as {MIN_READY_SECONDS_ANNOTATION} of the set says"
        ))
    }

    fn in_progress(&self, known: &KnownSet) -> SetCause {
        let message = match waiting(known, self.pod) {
            Some(reason) => format!(
                "its new image has been written, and the kubelet cannot run it: {reason}; correct the image in the set, or go back to the last one"
            ),
            None => "its new image has been written, and the kubelet has not reported the new container yet".to_owned(),
        };
        cause(SetReason::InProgress, message)
    }
}

/// Why a container of a set does not run in a pod.
fn waiting(known: &KnownSet, pod: &PodObject) -> Option<String> {
    let all = known.set.template.all();
    // No upgrade changes a container that has ended before the others start.
    let sidecars = all.filter(|sidecar| sidecar.kind != ContainerKind::Init);
    let mut names = sidecars.flat_map(SetContainer::names_in_pod);
    names.find_map(|name| Some(format!("{name}: {}", pod.waiting_reason(&name)?)))
}

fn names(differs: &[FieldDifference]) -> String {
    let names = differs.iter().map(|one| one.field.as_str());
    names.collect::<Vec<_>>().join(", ")
}

fn deleted(set: &str) -> SetCause {
    cause(
        SetReason::SetDeleted,
        format!(
            "there is no SidecarSet {set} any more; the containers stay until the pod is created again"
        ),
    )
}

fn own_container(name: &str) -> SetCause {
    cause(
        SetReason::OwnContainer,
        format!("the pod has a container {name:?} of its own; rename one of the two"),
    )
}

fn of_hold(hold: &Hold) -> SetCause {
    match hold {
        Hold::Refused(reason) => cause(
            SetReason::Refused,
            format!("its upgrade was refused, and is tried again later: {reason}"),
        ),
        Hold::Conflict(older) => cause(
            SetReason::Conflict,
            format!(
                "SidecarSet {older:?}, which is older, claims the same; rename it in one of them, or select other pods"
            ),
        ),
        Hold::Former => cause(
            SetReason::FormerSet,
            format!(
                "it was injected by an earlier set of this name; {RECREATE}, or take all of them over by annotation {}: \"true\" of the set",
                crate::sidecarset::set::ADOPT_PODS
            ),
        ),
        Hold::Pinned => cause(
            SetReason::Pinned,
            "it has the revision that new pods are pinned to (injectionStrategy.revision), as intended; change or remove the pin to upgrade it",
        ),
    }
}

fn of_unselected(one: &NotSelected) -> SetCause {
    let reason = match one {
        NotSelected::MirrorPod => SetReason::MirrorPod,
        NotSelected::InjectionPaused => SetReason::InjectionPaused,
        NotSelected::Labels { .. } => SetReason::Labels,
        NotSelected::Namespace { .. } | NotSelected::NamespaceLabels { .. } => SetReason::Namespace,
        NotSelected::NamespaceUnknown { .. } => SetReason::NamespaceUnknown,
    };
    SetCause {
        reason,
        message: one.to_string(),
        terms: one.terms().to_vec(),
    }
}

/// The problem that the status of a set reports.
fn reported(known: &KnownSet) -> Option<String> {
    let mut conditions = known.status.conditions.iter();
    let ready = conditions.find(|condition| condition.type_ == READY)?;
    (ready.status == "False").then(|| format!("{}: {}", ready.reason, ready.message))
}
