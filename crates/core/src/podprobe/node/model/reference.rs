//! The reference for one probe: what the rules say of it.

use std::time::Duration;

use jiff::Timestamp;

use super::steps::ModelState;

/// How a probe is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskedProbe {
    pub(super) version: u16,
    pub(super) timing: (u32, u32, u32),
    pub(super) gate: Option<u32>,
}

/// A container as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelContainer {
    pub(super) id: u32,
    pub(super) seen: ModelState,
    pub(super) started_at: Timestamp,
}

/// The state that users see, the container it is about if that is known, and since when, in whole seconds.
#[derive(Clone, Debug)]
pub(super) struct ModelVerdict {
    pub(super) state: &'static str,
    pub(super) about: Option<u32>,
    pub(super) since: Timestamp,
}

impl ModelVerdict {
    /// The state that users know by it; None if it is Unknown.
    pub(super) fn known_state(&self) -> Option<&'static str> {
        (self.state != "Unknown").then_some(self.state)
    }
}

#[derive(Clone, Debug)]
pub(super) struct ReferenceProbe {
    asked: AskedProbe,
    /// The time when it came into the plan.
    pub(super) added: Duration,
    /// Whether a list has shown it; what the last one showed, and as what that is taken.
    observed: bool,
    shown: Option<ModelContainer>,
    container: Option<ModelContainer>,
    pub(super) verdict: Option<ModelVerdict>,
    /// Moves whenever probing begins again.
    pub(super) era: u64,
    /// Results of this era.
    results: Vec<bool>,
}

impl ReferenceProbe {
    pub(super) fn new(asked: AskedProbe, added: Duration) -> Self {
        Self {
            asked,
            added,
            observed: false,
            shown: None,
            container: None,
            verdict: None,
            // No two of one probe: those that came later have a higher one.
            era: u64::try_from(added.as_micros()).unwrap() << 16,
            results: Vec::new(),
        }
    }

    pub(super) fn take_over(&mut self, verdict: ModelVerdict, fits: bool, now: Timestamp) {
        let about = verdict.about;
        self.verdict = Some(verdict);
        if !fits {
            self.invalidate_verdict(about, now);
        }
    }

    pub(super) fn probed_container(&self) -> Option<u32> {
        let container = self.container?;
        (self.is_open(container) && container.seen == ModelState::Running).then_some(container.id)
    }

    fn is_open(&self, container: ModelContainer) -> bool {
        self.asked.gate.is_none_or(|gate| gate == container.id)
    }

    fn begin_era(&mut self) {
        self.era += 1;
        self.results.clear();
    }

    fn conclude_verdict(&mut self, state: &'static str, about: Option<u32>, now: Timestamp) {
        let kept = self
            .verdict
            .as_ref()
            .filter(|verdict| verdict.state == state);
        let since = kept.map_or(floor_to_seconds(now), |verdict| verdict.since);
        self.verdict = Some(ModelVerdict {
            state,
            about,
            since,
        });
    }

    fn invalidate_verdict(&mut self, about: Option<u32>, now: Timestamp) {
        if self.verdict.is_some() {
            self.conclude_verdict("Unknown", about, now);
        }
    }

    pub(super) fn observe_container(&mut self, shown: Option<ModelContainer>, now: Timestamp) {
        self.observed = true;
        self.shown = shown;
        let before = self.probed_container();
        let old = std::mem::replace(&mut self.container, shown);
        let Some(container) = shown else {
            return self.begin_era();
        };
        // A state that the runtime does not know for a moment changes nothing about a container that is probed.
        if container.seen == ModelState::Unknown
            && before == Some(container.id)
            && self.is_open(container)
        {
            self.container = old;
            return;
        }
        if !self.is_open(container) {
            self.invalidate_verdict(Some(container.id), now);
        } else if let ModelState::Exited(_) = container.seen {
            self.conclude_verdict("Failed", Some(container.id), now);
        } else {
            self.compare_verdict_with(container, now);
        }
        if before.is_none() || self.probed_container() != before {
            self.begin_era();
        }
    }

    /// A verdict about another container holds no more. Of which it is about is not known behind an API server that does
    /// not keep it: then one that started after it is another.
    fn compare_verdict_with(&mut self, container: ModelContainer, now: Timestamp) {
        let Some(verdict) = &mut self.verdict else {
            return;
        };
        let fits = match (verdict.about, container.seen) {
            (Some(about), _) => about == container.id,
            (None, ModelState::Running) => floor_to_seconds(container.started_at) <= verdict.since,
            (None, ModelState::Unknown) => return,
            (None, _) => false,
        };
        if fits && container.seen == ModelState::Running {
            verdict.about = Some(container.id);
        } else if !fits {
            self.invalidate_verdict(Some(container.id), now);
        }
    }

    /// The entry as it is asked for now.
    pub(super) fn follow_entry(&mut self, asked: AskedProbe, now: Timestamp) {
        let old = std::mem::replace(&mut self.asked, asked);
        if old == asked {
            return;
        }
        if old.version != asked.version {
            let about = self.verdict.as_ref().and_then(|verdict| verdict.about);
            self.invalidate_verdict(about, now);
            self.container = None;
            self.begin_era();
        }
        if self.observed {
            // Taken as it was when it was listed, by the entry of now.
            if old.gate != asked.gate && old.version == asked.version {
                self.follow_opened_gate(old, now);
            } else {
                self.observe_container(self.shown, now);
            }
        }
    }

    fn follow_opened_gate(&mut self, old: AskedProbe, now: Timestamp) {
        let closed = self
            .container
            .is_some_and(|container| old.gate.is_some_and(|gate| gate != container.id));
        if closed {
            self.container = None;
        }
        self.observe_container(self.shown, now);
    }

    pub(super) fn count_result(&mut self, succeeded: bool, now: Timestamp) {
        let Some(id) = self.probed_container() else {
            return;
        };
        self.results.push(succeeded);
        let row = self.results.iter().rev().take_while(|r| **r == succeeded);
        let (_, success, failure) = self.asked.timing;
        let (name, threshold) = if succeeded {
            ("Succeeded", success)
        } else {
            ("Failed", failure)
        };
        if row.count() >= threshold as usize {
            self.conclude_verdict(name, Some(id), now);
        }
    }
}

fn floor_to_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap()
}
