//! What people see of leadership: a readiness condition, log lines and metrics. A standby is ready.

use leadsman_process::Condition;

use super::elector::Elector;
use super::leadership::Leadership;
use crate::metrics::Metrics;

/// What has been shown so far.
pub(super) struct Shown {
    /// Holds while the Lease can be followed, and written if it has to be.
    condition: Condition,
    watch: Option<String>,
    request: Option<String>,
    /// Another install leads.
    install: Option<String>,
    /// Ours.
    namespace: String,
    metrics: Metrics,
    leader: Option<String>,
    leads: bool,
}

impl Shown {
    pub(super) fn new(namespace: &str, condition: Condition, metrics: Metrics) -> Self {
        Self {
            condition,
            watch: Some("the Lease has not been looked for yet".to_owned()),
            request: None,
            install: None,
            namespace: namespace.to_owned(),
            metrics,
            leader: None,
            leads: false,
        }
    }

    /// The Lease cannot be followed, for this reason; or it is.
    pub(super) fn watch_failed(&mut self, reason: Option<String>) {
        self.watch = reason;
        self.show_condition();
    }

    /// The Lease cannot be written, for this reason; or it can.
    pub(super) fn request_failed(&mut self, reason: Option<String>) {
        self.request = reason;
        self.show_condition();
    }

    fn show_condition(&self) {
        let reasons = [&self.request, &self.watch, &self.install];
        match reasons.into_iter().flatten().next() {
            Some(reason) => self.condition.not_ready(reason),
            None => self.condition.ready(),
        }
    }

    /// Shows what has changed.
    pub(super) fn show(&mut self, now: Leadership, elector: &Elector) {
        let other = elector
            .holder()
            .filter(|holder| *holder != elector.identity());
        match (self.leads, now.term().is_some()) {
            (false, true) => self.began(),
            (true, false) => self.ceased(other),
            (false, false) | (true, true) => {}
        }
        if self.leader.as_deref() != elector.holder() {
            self.leader = elector.holder().map(str::to_owned);
            if let Some(leader) = other {
                tracing::info!(leader, "another manager leads, standing by");
            }
            self.install = other.and_then(|leader| other_install(leader, &self.namespace));
            if let Some(reason) = &self.install {
                tracing::warn!("{reason}");
            }
            self.show_condition();
        }
    }

    /// It gives the Lease back: what follows is no loss.
    pub(super) fn gives_back(&mut self) {
        if self.leads {
            self.changed(false);
            tracing::info!("releasing the Lease");
        }
    }

    fn began(&mut self) {
        self.changed(true);
        let before = self.leader.as_deref().unwrap_or("nobody");
        tracing::info!(before, "became leader");
    }

    fn ceased(&mut self, other: Option<&str>) {
        self.changed(false);
        if let Some(leader) = other {
            tracing::warn!(leader, "lost leadership: another took the Lease");
        } else {
            tracing::warn!("lost leadership: the Lease was not renewed in time");
        }
    }

    fn changed(&mut self, leads: bool) {
        self.leads = leads;
        self.metrics.leads(leads);
    }
}

/// What to say of a leader that is not of this install. An identity is `NAMESPACE/HOST_RANDOM`.
fn other_install(leader: &str, namespace: &str) -> Option<String> {
    let (other, _) = leader.split_once('/')?;
    (other != namespace).then(|| {
        format!(
            "another install of leadsman leads: {leader}, in namespace {other}; this one, in namespace {namespace}, writes \
             nothing, since they would undo each other's marks. Remove one of the two"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_of_another_install_is_named_with_both_namespaces() {
        let said = other_install("games/host_1", "leadsman-system").unwrap();
        assert!(
            said.contains("games/host_1") && said.contains("namespace leadsman-system"),
            "{said}"
        );
        assert_eq!(other_install("games/host_1", "games"), None, "a replica");
        assert_eq!(other_install("by hand", "games"), None);
    }
}
