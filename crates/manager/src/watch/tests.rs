use std::time::Duration;

use futures::stream;
use leadsman_api::slim::Pod;
use leadsman_process::Readiness;
use tokio::sync::mpsc::{Receiver, channel};

use super::*;

type Item = WatchEvent<Guarded<Pod>>;

fn object(name: &str) -> Guarded<Pod> {
    let text = format!(r#"{{"metadata": {{"name": "{name}", "namespace": "shop"}}}}"#);
    serde_json::from_str(&text).unwrap()
}

fn undecodable(name: &str) -> Guarded<Pod> {
    let text = format!(r#"{{"metadata": {{"name": "{name}", "namespace": "shop"}}, "spec": 7}}"#);
    serde_json::from_str(&text).unwrap()
}

fn failed(phase: WatchPhase, cause: Cause) -> Item {
    let reason = "the words".to_owned();
    let after = None;
    Item::Failed(WatchFailure {
        phase,
        disposition: Disposition::Retry {
            cause,
            after,
            reason,
        },
        retry_in: Duration::from_secs(5),
    })
}

/// The events in one word each.
fn words(mut events: Receiver<Arrival>) -> Vec<String> {
    let mut words = Vec::new();
    while let Ok((_, event)) = events.try_recv() {
        words.push(match event {
            Event::Pod(pod, source) => format!("{source:?} {}", name_of(&*pod)),
            Event::Undecodable(_, name) => format!("Undecodable {name}"),
            Event::Gone(_, name, _) => format!("Gone {name}"),
            Event::Listed(_, names, _) => {
                let names: Vec<_> = names.iter().map(ToString::to_string).collect();
                format!("Listed {}", names.join(" "))
            }
            other => format!("{other:?}"),
        });
    }
    words
}

/// Runs a watch over these items, each after so many seconds; shows the events and, after each item and 1 s, what
/// readiness says.
async fn follow_items(items: Vec<(u64, Item)>) -> (Vec<String>, Vec<String>) {
    let readiness = Readiness::default();
    let condition = readiness.condition("pods", "waiting for the first list");
    let (send, receive) = channel(64);
    let metrics = Metrics::new(&leadsman_process::Metrics::default());
    let (shown, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let script = stream::iter(items).then(move |(seconds, item)| {
        let (readiness, shown) = (readiness.clone(), shown.clone());
        async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let _closed = shown.send(readiness.text());
            item
        }
    });
    follow_stream::<Pod>(script, send, condition, metrics).await;
    let mut texts = Vec::new();
    while let Ok(text) = seen.try_recv() {
        texts.push(text.trim_end().to_owned());
    }
    (words(receive), texts)
}

#[tokio::test(start_paused = true)]
async fn a_watch_becomes_these_events() {
    use WatchEvent::{Changed, Deleted, Following, ListComplete, ListItem, ListStarted};
    let items = [
        ListStarted,
        ListItem(object("x")),
        // The list broke off and begins again.
        failed(WatchPhase::Listing, Cause::NoAnswer),
        ListStarted,
        ListItem(object("a")),
        ListItem(undecodable("b")),
        ListComplete("7".to_owned()),
        Following,
        Changed(object("c")),
        Changed(undecodable("a")),
        Deleted(undecodable("c")),
        ListStarted,
        ListComplete("7".to_owned()),
    ];
    let items = items.into_iter().map(|item| (0, item)).collect();
    let (events, _) = follow_items(items).await;
    let expected = [
        "List shop/x",
        "List shop/a",
        "Undecodable shop/b",
        // What does not decode exists all the same.
        "Listed shop/a shop/b",
        "Watch shop/c",
        "Undecodable shop/a",
        "Gone shop/c",
        "Listed ",
    ];
    assert_eq!(events, expected);
}

#[tokio::test(start_paused = true)]
async fn readiness_holds_while_changes_are_received_and_at_no_other_time() {
    use WatchEvent::{Changed, Following, ListComplete, ListStarted};
    let items = vec![
        (1, ListStarted),
        (1, failed(WatchPhase::Listing, Cause::NoSuchKind)),
        (1, failed(WatchPhase::Listing, Cause::NoRight)),
        (1, ListComplete("7".to_owned())),
        (1, Following),
        (1, failed(WatchPhase::Watching, Cause::NoAnswer)),
        // However long it takes, and a list that fails and waits included.
        (600, failed(WatchPhase::Listing, Cause::Unavailable)),
        (600, ListComplete("7".to_owned())),
        (1, Following),
        (600, Changed(object("a"))),
    ];
    let (_, texts) = follow_items(items).await;
    let unknown = "[-] pods: the API server does not serve pods: apply the output of `leadsman manifests` (the words)";
    let no_right = "[-] pods: the API server does not accept the credentials of this process (the words): check the \
                    kubeconfig, or the token of the pod's service account";
    let expected = [
        "[-] pods: waiting for the first list",
        "[-] pods: waiting for the first list",
        unknown,
        no_right,
        no_right,
        "[+] pods",
        "[-] pods: cannot watch pods: the words",
        "[-] pods: cannot list pods: the words",
        "[-] pods: cannot list pods: the words",
        "[+] pods",
    ];
    assert_eq!(texts, expected);
}
