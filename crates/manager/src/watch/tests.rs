use futures::stream;
use kube::core::Status;
use leadsman_api::slim::Pod;
use leadsman_process::Readiness;
use tokio::sync::mpsc::{Receiver, channel};

use super::*;

type Item = watcher::Result<watcher::Event<Guarded<Pod>>>;

fn object(name: &str) -> Guarded<Pod> {
    let text = format!(r#"{{"metadata": {{"name": "{name}", "namespace": "shop"}}}}"#);
    serde_json::from_str(&text).unwrap()
}

fn undecodable(name: &str) -> Guarded<Pod> {
    let text = format!(r#"{{"metadata": {{"name": "{name}", "namespace": "shop"}}, "spec": 7}}"#);
    serde_json::from_str(&text).unwrap()
}

fn refused(code: u16) -> kube::Error {
    kube::Error::Api(Status::failure("the words", "").with_code(code).boxed())
}

/// The events in one word each.
fn words(mut events: Receiver<Arrival>) -> Vec<String> {
    let mut words = Vec::new();
    while let Ok((_, event)) = events.try_recv() {
        words.push(match event {
            Event::Pod(pod, source) => format!("{source:?} {}", name_of(&*pod)),
            Event::Gone(_, name) => format!("Gone {name}"),
            Event::Listed(_, names) => {
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
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    let items = [
        Init,
        InitApply(object("x")),
        // The list broke off and begins again.
        Init,
        InitApply(object("a")),
        InitApply(undecodable("b")),
        InitDone,
        Apply(object("c")),
        Apply(undecodable("a")),
        Delete(undecodable("c")),
        Init,
        InitDone,
    ];
    let items = items.into_iter().map(|item| (0, Ok(item))).collect();
    let (events, _) = follow_items(items).await;
    let expected = [
        "List shop/x",
        "List shop/a",
        // What does not decode exists all the same.
        "Listed shop/a shop/b",
        "Live shop/c",
        "Gone shop/c",
        "Listed ",
    ];
    assert_eq!(events, expected);
}

#[tokio::test(start_paused = true)]
async fn readiness_says_what_is_missing_and_recovers() {
    use watcher::Error::{InitialListFailed, WatchFailed};
    use watcher::Event::{Apply, Init, InitDone};
    let items = vec![
        (1, Ok(Init)),
        (1, Err(InitialListFailed(refused(404)))),
        (1, Err(InitialListFailed(refused(403)))),
        (1, Ok(InitDone)),
        (1, Err(WatchFailed(refused(500)))),
        (1, Err(InitialListFailed(refused(503)))),
        (1, Ok(Apply(object("a")))),
        (1, Err(InitialListFailed(refused(503)))),
        // Nothing new is heard for longer than an attempt can take.
        (100, Ok(Apply(object("a")))),
        (1, Ok(Apply(object("a")))),
    ];
    let (_, texts) = follow_items(items).await;
    let unknown = "[-] pods: the API server does not know pods: apply the output of `leadsman manifests` (the words)";
    let expected = [
        "[-] pods: waiting for the first list",
        "[-] pods: waiting for the first list",
        unknown,
        "[-] pods: no right to list and watch pods in all namespaces: the words",
        "[+] pods",
        "[+] pods",
        "[-] pods: cannot list or watch pods: the words (503)",
        "[+] pods",
        "[+] pods",
        "[+] pods",
    ];
    assert_eq!(texts, expected);
}
