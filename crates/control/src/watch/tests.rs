use std::sync::Mutex;
use std::time::Duration;

use futures::stream;
use leadsman_api::slim::Pod;
use leadsman_process::reply::RetryCause;
use leadsman_process::watcher::WatchPhase;
use leadsman_process::{Metrics as Registry, Readiness};

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

fn failed(phase: WatchPhase, cause: RetryCause) -> Item {
    let reason = "the reply".to_owned();
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

/// What a subscriber was given, a line each.
type Lines = Arc<Mutex<Vec<String>>>;

/// A subscriber that takes down each observation in one line, as fast as it may.
struct Recorder {
    lines: Lines,
    rest: Duration,
    /// Ends after so many.
    most: usize,
}

impl<K: Watchable> Subscribe<K> for Recorder {
    fn deliver(&mut self, observation: Observation<K>, _at: Instant) -> BoxFuture<'_, bool> {
        let line = match observation {
            Observation::Object(object, source) => {
                format!("{source:?} {}", ObjectName::of(object.meta()))
            }
            Observation::Undecodable(metadata, _) => {
                format!("Undecodable {}", ObjectName::of(&metadata))
            }
            Observation::Deleted(name, _) => format!("Deleted {name}"),
            Observation::Listed(names, _) => {
                let names: Vec<_> = names.iter().map(ToString::to_string).collect();
                format!("Listed {}", names.join(" "))
            }
            Observation::Relisted(..) => unreachable!("no watch says so"),
            Observation::FieldsKept(kept) => format!("{kept}"),
        };
        async move {
            tokio::time::sleep(self.rest).await;
            let mut lines = self.lines.lock().unwrap();
            lines.push(line);
            lines.len() < self.most
        }
        .boxed()
    }

    fn warn_undecodable(&self, _resource: &str, name: &ObjectName, _error: &str) {
        self.lines.lock().unwrap().push(format!("Warning {name}"));
    }
}

/// A watch with these subscribers: how long each takes for an observation, and after how many it ends.
fn follower<K: Watchable>(subscribers: &[(u64, usize)]) -> (Follower<K>, Vec<Lines>) {
    let lines: Vec<_> = subscribers.iter().map(|_| Arc::default()).collect();
    let recorders = subscribers.iter().zip(&lines).map(|(subscriber, lines)| {
        Box::new(Recorder {
            lines: Arc::clone(lines),
            rest: Duration::from_secs(subscriber.0),
            most: subscriber.1,
        }) as Box<dyn Subscribe<K>>
    });
    let fan_out = FanOut(recorders.collect());
    let follower = Follower::new("pods", fan_out, &ControlMetrics::new(&Registry::default()));
    (follower, lines)
}

fn reception_in(readiness: &Readiness) -> Reception {
    let check = readiness.add_check("pods", "waiting for the first list");
    Reception::new("pods", check)
}

fn reception() -> Reception {
    reception_in(&Readiness::default())
}

/// Runs a watch over these items, each after so many seconds; returns the observations and, after each item and 1 s,
/// what readiness says.
async fn follow_items(items: Vec<(u64, Item)>) -> (Vec<String>, Vec<String>) {
    follow_items_of(false, items).await
}

/// The same, of a kind that may not be served.
async fn follow_items_of(is_optional: bool, items: Vec<(u64, Item)>) -> (Vec<String>, Vec<String>) {
    let readiness = Readiness::default();
    let mut reception = reception_in(&readiness);
    reception.is_optional = is_optional;
    let (follower, lines) = follower(&[(0, usize::MAX)]);
    let texts = Lines::default();
    let script = stream::iter(items).then(|(seconds, item)| {
        let (readiness, texts) = (readiness.clone(), Arc::clone(&texts));
        async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            let text = readiness.to_text().trim_end().to_owned();
            texts.lock().unwrap().push(text);
            item
        }
    });
    follow_watch(script, reception, follower).await;
    let (lines, texts) = (lines[0].lock().unwrap(), texts.lock().unwrap());
    (lines.clone(), texts.clone())
}

#[tokio::test(start_paused = true)]
async fn a_slow_subscriber_delays_the_others_and_nobody_misses_an_event() {
    let names: Vec<_> = (0..50).map(|n| n.to_string()).collect();
    let expected: Vec<_> = names.iter().map(|n| format!("Watch shop/{n}")).collect();
    let (follower, lines) = follower(&[(0, 99), (3, 99), (0, 20), (0, 99)]);
    let items = names.iter().map(|name| Item::Changed(object(name)));
    let began = clock::monotonic();
    follow_watch(
        stream::iter(items.collect::<Vec<_>>()),
        reception(),
        follower,
    )
    .await;
    assert_eq!(began.elapsed(), 50 * Duration::from_secs(3));
    for index in [0, 1, 3] {
        assert_eq!(*lines[index].lock().unwrap(), expected, "{index}");
    }
    assert_eq!(*lines[2].lock().unwrap(), expected[..20], "it has ended");
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_its_last_subscriber_has() {
    let (follower, lines) = follower(&[(0, 2), (0, 4)]);
    let endless = stream::repeat_with(|| Item::Changed(object("a")));
    follow_watch(endless, reception(), follower).await;
    let count = |index: usize| lines[index].lock().unwrap().len();
    assert_eq!([count(0), count(1)], [2, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_becomes_these_observations() {
    use WatchEvent::{Changed, Deleted, Following, ListComplete, ListItem, ListPage, ListStarted};
    let items = [
        ListStarted,
        ListPage("5".to_owned()),
        ListItem(object("x")),
        // The list broke off and begins again.
        failed(WatchPhase::Listing, RetryCause::NoAnswer),
        ListStarted,
        ListPage("7".to_owned()),
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
        "List(ResourceVersion(Some(5))) shop/x",
        "List(ResourceVersion(Some(7))) shop/a",
        "Warning shop/b",
        "Undecodable shop/b",
        // What does not decode exists all the same.
        "Listed shop/a shop/b",
        "Watch shop/c",
        "Warning shop/a",
        "Undecodable shop/a",
        "Deleted shop/c",
        "Listed ",
    ];
    assert_eq!(events, expected);
}

#[tokio::test(start_paused = true)]
async fn readiness_holds_while_changes_are_received_and_at_no_other_time() {
    use WatchEvent::{Changed, Following, ListComplete, ListStarted};
    let items = vec![
        (1, ListStarted),
        (1, failed(WatchPhase::Listing, RetryCause::NoSuchKind)),
        (1, failed(WatchPhase::Listing, RetryCause::NotApiServer)),
        (1, failed(WatchPhase::Listing, RetryCause::NoRight)),
        (1, ListComplete("7".to_owned())),
        (1, Following),
        (1, failed(WatchPhase::Watching, RetryCause::NoAnswer)),
        // However long it takes, and a list that fails and waits included.
        (600, failed(WatchPhase::Listing, RetryCause::Unavailable)),
        (600, ListComplete("7".to_owned())),
        (1, Following),
        (600, Changed(object("a"))),
    ];
    let (_, texts) = follow_items(items).await;
    let unknown = "[-] pods: the API server does not serve pods: install leadsman's CRDs, by its Helm chart or `leadsman manifests` (the reply)";
    let of_proxy = "[-] pods: cannot list pods: the reply is not the API server's: check the proxy or load balancer before it, \
                    and the address of the API server in the kubeconfig (the reply)";
    let no_right = "[-] pods: the API server does not accept the credentials of this process (the reply): check the \
                    kubeconfig, or the token of the pod's service account";
    let expected = [
        "[-] pods: waiting for the first list",
        "[-] pods: waiting for the first list",
        unknown,
        of_proxy,
        no_right,
        no_right,
        "[+] pods",
        "[-] pods: cannot watch pods: the reply",
        "[-] pods: cannot list pods: the reply",
        "[-] pods: cannot list pods: the reply",
        "[+] pods",
    ];
    assert_eq!(texts, expected);
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_need_not_be_served_has_no_objects_until_it_is() {
    use WatchEvent::{Following, ListComplete, ListItem, ListPage, ListStarted};
    let unserved = || failed(WatchPhase::Listing, RetryCause::NoSuchKind);
    let items = vec![
        (1, ListStarted),
        (1, unserved()),
        (1, ListStarted),
        (1, ListPage("7".to_owned())),
        (1, ListItem(object("a"))),
        (1, ListComplete("7".to_owned())),
        (1, Following),
        // A watch that is not answered as it should be says nothing of what there is.
        (1, failed(WatchPhase::Watching, RetryCause::NoSuchKind)),
        // Its CRD is deleted.
        (1, unserved()),
        (1, failed(WatchPhase::Listing, RetryCause::NoAnswer)),
        (1, ListStarted),
    ];
    let (events, texts) = follow_items_of(true, items).await;
    let listed = "List(ResourceVersion(Some(7))) shop/a";
    assert_eq!(events, ["Listed ", listed, "Listed shop/a", "Listed "]);
    assert_eq!(texts[2], "[+] pods");
    assert_eq!(texts[9], "[+] pods");
    assert!(
        texts[10].starts_with("[-] pods: cannot list"),
        "{}",
        texts[10]
    );
}
