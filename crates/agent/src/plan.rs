//! The watch of the one object, and which sight of it is newer.

use futures::{Stream, StreamExt};
use leadsman_api::{Guarded, NodePodProbe};
use leadsman_process::ApiServer;
use leadsman_process::list::ListTarget;
use leadsman_process::watch::{WatchEvent, watch};

/// What the watch says.
#[derive(Debug)]
pub(crate) enum Sight {
    /// The object as a list has it: taken as it is, also when the API server was restored to an older state.
    Listed(Box<NodePodProbe>),
    /// The object as it has become.
    Live(Box<NodePodProbe>),
    /// The object as the answer to a write has it. It may come after the news that the object is gone.
    Answered(Box<NodePodProbe>),
    /// There is one, and it cannot be decoded.
    Undecodable(String),
    /// There is none.
    Gone,
    /// The list that was begun is complete, and the object was in it.
    Complete,
    /// Changes are being received.
    Follows,
    /// They are not, for this reason.
    Failed(String),
}

/// What a list that was begun has shown so far.
#[derive(Clone, Copy, Debug)]
enum Listed {
    Nothing,
    Object,
    Undecodable,
}

/// Follows the object of this name, for ever.
pub(crate) fn follow(server: ApiServer, name: &str) -> impl Stream<Item = Sight> + use<> {
    let only = ListTarget::all::<NodePodProbe>().fields(format!("metadata.name={name}"));
    let mut listed = Listed::Nothing;
    // Guarded: what does not decode is told, and ends no watch.
    watch::<Guarded<NodePodProbe>>(server, only, fastrand::Rng::new())
        .filter_map(move |event| std::future::ready(sight(event, &mut listed)))
}

fn sight(event: WatchEvent<Guarded<NodePodProbe>>, listed: &mut Listed) -> Option<Sight> {
    match event {
        WatchEvent::ListStarted => {
            *listed = Listed::Nothing;
            None
        }
        WatchEvent::ListItem(object) => {
            *listed = match &object {
                Guarded::Decoded(_) => Listed::Object,
                Guarded::Undecodable { .. } => Listed::Undecodable,
            };
            Some(decoded(object, Sight::Listed))
        }
        WatchEvent::Changed(object) => Some(decoded(object, Sight::Live)),
        WatchEvent::Deleted(_) => Some(Sight::Gone),
        WatchEvent::ListComplete(_) => match listed {
            Listed::Nothing => Some(Sight::Gone),
            Listed::Object => Some(Sight::Complete),
            Listed::Undecodable => None,
        },
        WatchEvent::Following => Some(Sight::Follows),
        WatchEvent::Failed(failure) => Some(Sight::Failed(
            failure.disposition.reason().unwrap_or_default().to_owned(),
        )),
    }
}

fn decoded(object: Guarded<NodePodProbe>, sight: fn(Box<NodePodProbe>) -> Sight) -> Sight {
    match object {
        Guarded::Decoded(object) => sight(object),
        Guarded::Undecodable { error, .. } => Sight::Undecodable(error),
    }
}

/// Keeps the newest sight: the answer to a write overtakes the watch.
#[derive(Debug, Default)]
pub(crate) struct Newest {
    version: Option<u64>,
}

impl Newest {
    /// Whether this sight says something new.
    pub(crate) fn is_news(&mut self, sight: &Sight) -> bool {
        let version = match sight {
            Sight::Complete | Sight::Undecodable(_) | Sight::Follows | Sight::Failed(_) => {
                return false;
            }
            Sight::Gone => None,
            Sight::Listed(object) => version(object),
            Sight::Live(object) => match (self.version, version(object)) {
                (Some(known), Some(version)) if version <= known => return false,
                (_, version) => version,
            },
            Sight::Answered(object) => match (self.version, version(object)) {
                (Some(known), Some(version)) if version > known => Some(version),
                _ => return false,
            },
        };
        self.version = version;
        true
    }
}

/// Resource versions of one kind are ordered numbers.
fn version(object: &NodePodProbe) -> Option<u64> {
    object.metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(version: &str) -> NodePodProbe {
        let mut object = NodePodProbe::new("node", leadsman_api::NodePodProbeSpec::default());
        object.metadata.resource_version = Some(version.to_owned());
        object
    }

    #[test]
    fn a_list_without_the_object_says_that_it_is_gone() {
        let mut listed = Listed::Nothing;
        let mut said = |event| sight(event, &mut listed);
        assert!(said(WatchEvent::ListStarted).is_none());
        assert!(matches!(
            said(WatchEvent::ListComplete("7".to_owned())),
            Some(Sight::Gone)
        ));
        assert!(said(WatchEvent::ListStarted).is_none());
        assert!(matches!(
            said(WatchEvent::ListItem(Guarded::Decoded(Box::new(object(
                "1"
            ))))),
            Some(Sight::Listed(_))
        ));
        let complete = said(WatchEvent::ListComplete("7".to_owned()));
        assert!(matches!(complete, Some(Sight::Complete)));
    }

    #[test]
    fn an_object_that_cannot_be_decoded_is_neither_gone_nor_fine() {
        let read = |spec| {
            let object = json!({"metadata": {"name": "node"}, "spec": spec});
            serde_json::from_str::<Guarded<NodePodProbe>>(&object.to_string()).unwrap()
        };
        let (good, bad) = (json!({}), json!({"podProbes": 7}));
        let mut listed = Listed::Nothing;
        let mut said = |event| sight(event, &mut listed);
        let undecodable =
            |said| matches!(said, Some(Sight::Undecodable(why)) if why.contains("integer"));
        assert!(undecodable(said(WatchEvent::ListItem(read(bad.clone())))));
        assert!(said(WatchEvent::ListComplete("7".to_owned())).is_none());
        let mended = said(WatchEvent::Changed(read(good)));
        assert!(matches!(mended, Some(Sight::Live(_))));
        assert!(undecodable(said(WatchEvent::Changed(read(bad.clone())))));
        let gone = said(WatchEvent::Deleted(read(bad)));
        assert!(matches!(gone, Some(Sight::Gone)));
    }

    #[test]
    fn older_sights_are_dropped_unless_listed() {
        let live = |version| Sight::Live(Box::new(object(version)));
        let answered = |version| Sight::Answered(Box::new(object(version)));
        let mut newest = Newest::default();
        let table = [
            (live("9"), true),
            (live("10"), true),
            (live("10"), false),
            (live("9"), false),
            (Sight::Listed(Box::new(object("5"))), true),
            (live("6"), true),
            (answered("6"), false),
            (answered("7"), true),
            (Sight::Gone, true),
            (answered("8"), false),
            (live("2"), true),
            (Sight::Complete, false),
            (live("odd"), true),
        ];
        for (sight, expected) in table {
            assert_eq!(newest.is_news(&sight), expected, "{sight:?}");
        }
    }
}
