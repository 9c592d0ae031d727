//! What the rules say of one probe.

use std::time::Duration;

use jiff::Timestamp;

use super::asked::Asked;
use super::steps::Seen;

/// A container as it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) id: u32,
    pub(super) seen: Seen,
    pub(super) started_at: Timestamp,
}

/// What users see, the container it is about if that is known, and since when, in whole seconds.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) state: &'static str,
    pub(super) about: Option<u32>,
    pub(super) since: Timestamp,
}

impl Verdict {
    /// What users know by it.
    pub(super) fn told(&self) -> Option<&'static str> {
        (self.state != "Unknown").then_some(self.state)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Reference {
    asked: Asked,
    /// When it came into the plan.
    pub(super) hired: Duration,
    /// Whether a look has judged it; what the last one said, and as what that is taken.
    judged: bool,
    shown: Option<Place>,
    container: Option<Place>,
    pub(super) verdict: Option<Verdict>,
    /// Moves whenever probing begins anew.
    pub(super) era: u64,
    /// Results of this era.
    results: Vec<bool>,
}

impl Reference {
    pub(super) fn new(asked: Asked, hired: Duration) -> Self {
        Self {
            asked,
            hired,
            judged: false,
            shown: None,
            container: None,
            verdict: None,
            // No two of one probe: those that came later have a higher one.
            era: u64::try_from(hired.as_micros()).unwrap() << 16,
            results: Vec::new(),
        }
    }

    pub(super) fn take_over(&mut self, verdict: Verdict, fits: bool, now: Timestamp) {
        let about = verdict.about;
        self.verdict = Some(verdict);
        if !fits {
            self.doubt(about, now);
        }
    }

    pub(super) fn is_probing(&self) -> Option<u32> {
        let place = self.container?;
        (self.is_open(place) && place.seen == Seen::Running).then_some(place.id)
    }

    fn is_open(&self, place: Place) -> bool {
        self.asked.gate.is_none_or(|gate| gate == place.id)
    }

    fn anew(&mut self) {
        self.era += 1;
        self.results.clear();
    }

    fn conclude(&mut self, state: &'static str, about: Option<u32>, now: Timestamp) {
        let kept = self
            .verdict
            .as_ref()
            .filter(|verdict| verdict.state == state);
        let since = kept.map_or(floor(now), |verdict| verdict.since);
        self.verdict = Some(Verdict {
            state,
            about,
            since,
        });
    }

    fn doubt(&mut self, about: Option<u32>, now: Timestamp) {
        if self.verdict.is_some() {
            self.conclude("Unknown", about, now);
        }
    }

    pub(super) fn look(&mut self, shown: Option<Place>, now: Timestamp) {
        self.judged = true;
        self.shown = shown;
        let before = self.is_probing();
        let old = std::mem::replace(&mut self.container, shown);
        let Some(place) = shown else {
            return self.anew();
        };
        // What the runtime does not say for a moment changes nothing about a container that is probed.
        if place.seen == Seen::Unknown && before == Some(place.id) && self.is_open(place) {
            self.container = old;
            return;
        }
        if !self.is_open(place) {
            self.doubt(Some(place.id), now);
        } else if let Seen::Exited(_) = place.seen {
            self.conclude("Failed", Some(place.id), now);
        } else {
            self.compare(place, now);
        }
        if before.is_none() || self.is_probing() != before {
            self.anew();
        }
    }

    /// A verdict about another container holds no more. Of which it is about is not known behind an API server that does
    /// not keep it: then one that started after it is another.
    fn compare(&mut self, place: Place, now: Timestamp) {
        let Some(verdict) = &mut self.verdict else {
            return;
        };
        let fits = match (verdict.about, place.seen) {
            (Some(about), _) => about == place.id,
            (None, Seen::Running) => floor(place.started_at) <= verdict.since,
            (None, Seen::Unknown) => return,
            (None, _) => false,
        };
        if fits && place.seen == Seen::Running {
            verdict.about = Some(place.id);
        } else if !fits {
            self.doubt(Some(place.id), now);
        }
    }

    /// The entry as it is asked for now.
    pub(super) fn follow(&mut self, asked: Asked, now: Timestamp) {
        let old = std::mem::replace(&mut self.asked, asked);
        if old == asked {
            return;
        }
        if old.version != asked.version {
            let about = self.verdict.as_ref().and_then(|verdict| verdict.about);
            self.doubt(about, now);
            self.container = None;
            self.anew();
        }
        if self.judged {
            // Taken as it was when it was looked at, by the entry of now.
            if old.gate != asked.gate && old.version == asked.version {
                self.reopen(old, now);
            } else {
                self.look(self.shown, now);
            }
        }
    }

    fn reopen(&mut self, old: Asked, now: Timestamp) {
        let closed = self
            .container
            .is_some_and(|place| old.gate.is_some_and(|gate| gate != place.id));
        if closed {
            self.container = None;
        }
        self.look(self.shown, now);
    }

    pub(super) fn result(&mut self, succeeded: bool, now: Timestamp) {
        let Some(id) = self.is_probing() else {
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
            self.conclude(name, Some(id), now);
        }
    }
}

fn floor(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap()
}
