use jiff::Timestamp;
use tonic::Status;

use super::*;
use crate::{
    fake::{Fake, ScriptedAnswer, within_deadline},
    wire::{ContainerState as Wire, NamespaceMode},
};

const STARTED: RuntimeState = RuntimeState::Running {
    started_at: Timestamp::constant(2, 0),
};
const ENDED: RuntimeState = RuntimeState::Exited { exit_code: 3 };

fn view(fake: &Fake) -> View {
    View::new(fake.new_client())
}

impl View {
    /// The newest container of this name in the pod of this uid; all are called `web`.
    fn container(&self, pod_uid: &str, name: &str) -> Option<&CurrentContainer> {
        let pod = PodLabels {
            namespace: "default",
            name: "web",
            uid: pod_uid,
        };
        self.containers.get(pod, name)
    }
}

fn addresses(view: &View, pod: &str, name: &str) -> Vec<String> {
    match &view.container(pod, name).unwrap().addresses {
        Addresses::Unknown => Vec::new(),
        Addresses::Node => vec!["the node's".to_owned()],
        Addresses::Pod(addresses) => addresses.iter().map(ToString::to_string).collect(),
    }
}

// PRB-24
#[tokio::test]
async fn a_container_is_found_by_all_names_of_its_pod_alone() {
    let fake = Fake::start();
    fake.lock_world()
        .set_network("a", &["10.0.0.1"], NamespaceMode::Pod);
    fake.lock_world()
        .set_container("a", "main", 0, Wire::ContainerRunning);
    let mut view = view(&fake);
    view.refresh_wanted(|_| true).await.unwrap();
    let containers = view.current_containers();
    let get = |namespace, name, uid| {
        let pod = PodLabels {
            namespace,
            name,
            uid,
        };
        containers.get(pod, "main").is_some()
    };
    assert!(get("default", "web", "a"));
    assert!(!get("other", "web", "a"));
    assert!(!get("default", "other", "a"));
    assert!(!get("default", "web", "b"));
}

fn state(view: &View, pod: &str, name: &str) -> Option<RuntimeState> {
    view.container(pod, name).map(|container| container.state)
}

// DEF-25
#[tokio::test]
async fn asks_once_about_what_is_new_and_wanted() {
    let fake = Fake::start();
    for pod in ["a", "b", "other"] {
        fake.lock_world()
            .set_network(pod, &["10.0.0.1"], NamespaceMode::Pod);
        fake.lock_world()
            .set_container(pod, "main", 0, Wire::ContainerRunning);
    }
    fake.lock_world()
        .set_container("a", "side", 0, Wire::ContainerRunning);
    fake.lock_world()
        .set_container("a", "init", 0, Wire::ContainerExited);
    fake.lock_world()
        .set_container("a", "next", 0, Wire::ContainerCreated);
    let mut view = view(&fake);
    let wanted = |uid: &str| uid != "other";

    view.refresh_wanted(wanted).await.unwrap();
    assert_eq!(
        fake.lock_world().take_calls(),
        [
            "ContainerStatus a-init-0",
            "ContainerStatus a-main-0",
            "ContainerStatus a-side-0",
            "ContainerStatus b-main-0",
            "ListContainers",
            "PodSandboxStatus a-sandbox",
            "PodSandboxStatus b-sandbox",
        ]
    );
    assert_eq!(state(&view, "a", "main"), Some(STARTED));
    assert_eq!(state(&view, "a", "init"), Some(ENDED));
    assert_eq!(state(&view, "a", "next"), Some(RuntimeState::Created));
    assert_eq!(state(&view, "other", "main"), None);
    assert_eq!(state(&view, "a", "nosuch"), None);

    let before = view.current_containers();
    view.refresh_wanted(wanted).await.unwrap();
    assert_eq!(fake.lock_world().take_calls(), ["ListContainers"]);
    assert!(
        Arc::ptr_eq(&before, &view.current_containers()),
        "nothing changed"
    );

    fake.lock_world()
        .set_container("a", "main", 0, Wire::ContainerExited);
    view.refresh_wanted(wanted).await.unwrap();
    assert_eq!(
        fake.lock_world().take_calls(),
        ["ContainerStatus a-main-0", "ListContainers"]
    );
    assert_eq!(state(&view, "a", "main"), Some(ENDED));
    assert!(!Arc::ptr_eq(&before, &view.current_containers()));

    fake.lock_world()
        .set_container("a", "main", 1, Wire::ContainerRunning);
    view.refresh_wanted(wanted).await.unwrap();
    assert_eq!(
        fake.lock_world().take_calls(),
        ["ContainerStatus a-main-1", "ListContainers"]
    );
    assert_eq!(&*view.container("a", "main").unwrap().id, "a-main-1");
    assert_eq!(addresses(&view, "a", "main"), ["10.0.0.1"]);
}

#[tokio::test]
async fn the_newest_attempt_is_the_current_one_whatever_the_order_and_the_clock() {
    let fake = Fake::start();
    fake.lock_world()
        .set_network("a", &["10.0.0.1"], NamespaceMode::Pod);
    for attempt in [1, 10, 2, 0] {
        fake.lock_world()
            .set_container("a", "main", attempt, Wire::ContainerExited);
    }
    fake.lock_world().containers[1].created_at = 1;
    let mut view = view(&fake);
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(view.container("a", "main").unwrap().attempt, 10);
}

// PRB-24
#[tokio::test]
async fn addresses_come_from_the_sandbox_and_never_lead_back_to_the_node() {
    let fake = Fake::start();
    let pods: [(&str, &[&str], NamespaceMode, &[&str]); 6] = [
        (
            "dual",
            &["10.1.2.3", "2001:db8::7"],
            NamespaceMode::Pod,
            &["10.1.2.3", "2001:db8::7"],
        ),
        ("host", &[], NamespaceMode::Node, &["the node's"]),
        (
            "host with an address",
            &["10.0.0.5"],
            NamespaceMode::Node,
            &["the node's"],
        ),
        ("none", &[""], NamespaceMode::Pod, &[]),
        (
            "bad",
            &[
                "127.0.0.1",
                "169.254.169.254",
                "fe80::1",
                "::",
                "::ffff:127.0.0.1",
                "::1",
                "0.0.0.0",
                "no",
            ],
            NamespaceMode::Pod,
            &[],
        ),
        (
            "mixed",
            &["::1", "10.0.0.6"],
            NamespaceMode::Pod,
            &["10.0.0.6"],
        ),
    ];
    for (pod, ips, mode, _) in pods {
        fake.lock_world()
            .set_container(pod, "main", 0, Wire::ContainerRunning);
        fake.lock_world().set_network(pod, ips, mode);
    }
    let mut view = view(&fake);
    view.refresh_wanted(|_| true).await.unwrap();
    for (pod, _, _, expected) in pods {
        assert_eq!(addresses(&view, pod, "main"), expected, "{pod}");
    }
    fake.lock_world()
        .set_network("none", &["10.0.0.7"], NamespaceMode::Pod);
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(
        addresses(&view, "none", "main"),
        ["10.0.0.7"],
        "asked again until there is one"
    );
}

#[tokio::test]
async fn keeps_what_it_knows_while_the_runtime_is_away() {
    let mut fake = Fake::start();
    fake.lock_world()
        .set_network("a", &["10.0.0.1"], NamespaceMode::Pod);
    fake.lock_world()
        .set_container("a", "main", 0, Wire::ContainerRunning);
    let mut view = view(&fake);
    view.refresh_wanted(|_| true).await.unwrap();

    fake.vanish();
    for _ in 0..3 {
        let error = view.refresh_wanted(|_| true).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert_eq!(state(&view, "a", "main"), Some(STARTED));
    }
    fake.lock_world()
        .set_container("a", "main", 1, Wire::ContainerRunning);
    fake.come_back();
    within_deadline(async {
        while view.refresh_wanted(|_| true).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(view.container("a", "main").unwrap().attempt, 1);
}

#[tokio::test]
async fn a_runtime_that_dies_within_a_refresh_leaves_the_view_as_it_was() {
    let mut fake = Fake::start();
    fake.lock_world()
        .set_network("a", &["10.0.0.1"], NamespaceMode::Pod);
    fake.lock_world()
        .set_container("a", "main", 0, Wire::ContainerRunning);
    let mut view = view(&fake);
    view.refresh_wanted(|_| true).await.unwrap();
    let before = view.current_containers();

    let next = fake
        .lock_world()
        .set_container("a", "main", 1, Wire::ContainerRunning);
    fake.lock_world()
        .statuses
        .insert(next, ScriptedAnswer::Never);
    fake.lock_world().take_calls();
    let death = async {
        while fake.lock_world().calls.len() < 2 {
            tokio::task::yield_now().await;
        }
        fake.vanish();
    };
    let (refreshed, ()) = tokio::join!(view.refresh_wanted(|_| true), within_deadline(death));
    let error = refreshed.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(Arc::ptr_eq(&before, &view.current_containers()));
}

#[tokio::test]
async fn forgets_what_is_gone_or_no_longer_wanted() {
    let fake = Fake::start();
    for pod in ["a", "b"] {
        fake.lock_world()
            .set_network(pod, &["10.0.0.1"], NamespaceMode::Pod);
        fake.lock_world()
            .set_container(pod, "main", 0, Wire::ContainerRunning);
    }
    let mut view = view(&fake);
    view.refresh_wanted(|_| true).await.unwrap();
    fake.lock_world().remove_container("a-main-0");
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(
        (state(&view, "a", "main"), state(&view, "b", "main")),
        (None, Some(STARTED))
    );
    view.refresh_wanted(|_| false).await.unwrap();
    assert_eq!(state(&view, "b", "main"), None);
    let ContainerCache {
        states,
        sandboxes,
        failing,
        ..
    } = &view.cache;
    assert_eq!((states.len(), sandboxes.len(), failing.len()), (0, 0, 0));
}

// DEF-22
#[tokio::test]
async fn one_container_in_trouble_does_not_hide_the_others() {
    let fake = Fake::start();
    fake.lock_world()
        .set_network("a", &["10.0.0.1"], NamespaceMode::Pod);
    for name in ["one", "two", "three"] {
        fake.lock_world()
            .set_container("a", name, 0, Wire::ContainerRunning);
    }
    let fine = fake.lock_world().statuses.get("a-one-0").cloned().unwrap();
    let mut view = view(&fake);
    for (trouble, seen) in [
        (
            ScriptedAnswer::Err(Status::internal("bolt: page corrupt")),
            Some(RuntimeState::Unknown),
        ),
        (
            ScriptedAnswer::Err(Status::not_found("removed in between")),
            None,
        ),
        (ScriptedAnswer::Never, Some(RuntimeState::Unknown)),
    ] {
        fake.lock_world()
            .statuses
            .insert("a-one-0".to_owned(), trouble);
        view.cache.states.clear();
        view.refresh_wanted(|_| true).await.unwrap();
        view.refresh_wanted(|_| true).await.unwrap();
        assert_eq!(state(&view, "a", "one"), seen);
        assert_eq!(
            (state(&view, "a", "two"), state(&view, "a", "three")),
            (Some(STARTED), Some(STARTED))
        );
    }
    fake.lock_world()
        .statuses
        .insert("a-one-0".to_owned(), fine);
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(state(&view, "a", "one"), Some(STARTED));
    assert!(view.cache.failing.is_empty());
}

#[tokio::test]
async fn the_same_list_again_is_looked_through_as_long_as_something_is_missing() {
    let fake = Fake::start();
    fake.lock_world()
        .set_network("a", &["10.0.0.1"], NamespaceMode::Pod);
    let id = fake
        .lock_world()
        .set_container("a", "main", 0, Wire::ContainerRunning);
    let fine = fake.lock_world().statuses.get(&id).cloned().unwrap();
    let gone = ScriptedAnswer::Err(Status::not_found("not there yet"));
    fake.lock_world().statuses.insert(id.clone(), gone);
    let mut view = view(&fake);
    for _ in 0..2 {
        view.refresh_wanted(|_| true).await.unwrap();
        assert_eq!(state(&view, "a", "main"), None);
    }
    fake.lock_world().statuses.insert(id, fine);
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(state(&view, "a", "main"), Some(STARTED));
    // Nothing is missing any more, and other pods are wanted.
    view.refresh_wanted(|_| false).await.unwrap();
    assert_eq!(state(&view, "a", "main"), None);
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(state(&view, "a", "main"), Some(STARTED));
    // Another container in the place of one that is gone.
    fake.lock_world().remove_container("a-main-0");
    fake.lock_world()
        .set_container("a", "side", 0, Wire::ContainerRunning);
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(state(&view, "a", "main"), None);
    assert_eq!(state(&view, "a", "side"), Some(STARTED));
}

#[tokio::test]
async fn the_status_counts_where_it_is_newer_than_the_list() {
    let fake = Fake::start();
    fake.lock_world()
        .set_network("a", &["10.0.0.1"], NamespaceMode::Pod);
    let id = fake
        .lock_world()
        .set_container("a", "main", 0, Wire::ContainerExited);
    fake.lock_world().containers[0].state = Wire::ContainerRunning.into();
    let mut view = view(&fake);
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(state(&view, "a", "main"), Some(ENDED));
    // The list has it ended now, and the status is not to be had: the code known before may not be the last word.
    fake.lock_world().containers[0].state = Wire::ContainerExited.into();
    fake.lock_world()
        .statuses
        .insert(id, ScriptedAnswer::Err(Status::internal("no")));
    view.refresh_wanted(|_| true).await.unwrap();
    assert_eq!(state(&view, "a", "main"), Some(RuntimeState::Unknown));
}
