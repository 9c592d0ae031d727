//! Reports of leadership: a readiness check, log lines, and an observer for metrics. A standby is ready.

use leadsman_process::ReadinessCheck;

use super::elector::Elector;
use super::leadership::Leadership;

/// An observer of leadership, for metrics and readiness. `()` ignores it.
pub trait LeadershipObserver: Send + 'static {
    /// Notes that this candidate has begun (`true`) or ceased (`false`) to lead.
    fn set_leading(&self, leading: bool);

    /// Why a standby is not ready while this other candidate leads. None for an ordinary standby.
    fn objection_to_holder(&self, holder: &str) -> Option<String>;
}

impl LeadershipObserver for () {
    fn set_leading(&self, _: bool) {}

    fn objection_to_holder(&self, _: &str) -> Option<String> {
        None
    }
}

/// The states that have been reported so far.
pub(crate) struct LeadershipReport<O> {
    /// Passes while the Lease can be watched, and written if it has to be.
    check: ReadinessCheck,
    watch_failure: Option<String>,
    request_failure: Option<String>,
    objection: Option<String>,
    observer: O,
    holder: Option<String>,
    leading: bool,
}

impl<O: LeadershipObserver> LeadershipReport<O> {
    pub(crate) fn new(check: ReadinessCheck, observer: O) -> Self {
        Self {
            check,
            watch_failure: Some("the Lease has not been read yet".to_owned()),
            request_failure: None,
            objection: None,
            observer,
            holder: None,
            leading: false,
        }
    }

    /// Whether the Lease can be watched, or why not.
    pub(crate) fn set_watch_failure(&mut self, reason: Option<String>) {
        self.watch_failure = reason;
        self.update_check();
    }

    /// Whether the Lease can be written, or why not.
    pub(crate) fn set_request_failure(&mut self, reason: Option<String>) {
        self.request_failure = reason;
        self.update_check();
    }

    fn update_check(&self) {
        let reasons = [&self.request_failure, &self.watch_failure, &self.objection];
        match reasons.into_iter().flatten().next() {
            Some(reason) => self.check.set_not_ready(reason),
            None => self.check.set_ready(),
        }
    }

    /// Logs what has changed.
    pub(crate) fn log_changes(&mut self, leadership: Leadership, elector: &Elector) {
        let other = elector
            .last_seen_holder()
            .filter(|holder| *holder != elector.identity());
        match (self.leading, leadership.term_number().is_some()) {
            (false, true) => self.log_gained(),
            (true, false) => self.log_lost(other),
            (false, false) | (true, true) => {}
        }
        // The objection is asked for once for each holder, and logged once.
        if self.holder.as_deref() != elector.last_seen_holder() {
            self.holder = elector.last_seen_holder().map(str::to_owned);
            if let Some(leader) = other {
                tracing::info!(leader, "the Lease is held by another, standing by");
            }
            self.objection = other.and_then(|leader| self.observer.objection_to_holder(leader));
            if let Some(reason) = &self.objection {
                tracing::warn!("{reason}");
            }
            self.update_check();
        }
    }

    /// Logs the release of the Lease, after which the end of leadership is no loss.
    pub(crate) fn log_release(&mut self) {
        if self.leading {
            self.set_leading(false);
            tracing::info!("releasing the Lease");
        }
    }

    fn log_gained(&mut self) {
        self.set_leading(true);
        let before = self.holder.as_deref().unwrap_or("nobody");
        tracing::info!(before, "became leader");
    }

    fn log_lost(&mut self, other: Option<&str>) {
        self.set_leading(false);
        if let Some(leader) = other {
            tracing::warn!(leader, "lost leadership: another took the Lease");
        } else {
            tracing::warn!("lost leadership: the Lease was not renewed in time");
        }
    }

    fn set_leading(&mut self, leading: bool) {
        self.leading = leading;
        self.observer.set_leading(leading);
    }
}
