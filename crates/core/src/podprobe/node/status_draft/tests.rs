//! What of the messages of several namespaces a status has room for.

use super::*;

use crate::podprobe::probe::{ProbeId, State};

const SECOND: Duration = Duration::from_secs(1);

/// A node whose status is drafted and, if that is due, written.
struct Node {
    rows: Vec<(Arc<ProbeKey>, Verdict)>,
    shown: NodePodProbeStatus,
    sent_at: HashMap<Arc<ProbeKey>, Duration>,
    limits: MessageLimits,
    now: Duration,
}

impl Node {
    /// Each namespace with a pod of so many probes.
    fn new(namespaces: &[(&str, usize)]) -> Self {
        let mut rows = Vec::new();
        for (namespace, probes) in namespaces {
            let pod = PodIdentity {
                namespace: (*namespace).into(),
                name: "p".into(),
                uid: "u".into(),
            };
            for probe in 0..*probes {
                let key = ProbeKey {
                    pod: pod.clone(),
                    container: "main".into(),
                    id: ProbeId {
                        marker: "m".into(),
                        probe: format!("p{probe}").into(),
                    },
                };
                let mut verdict = Verdict::new(State::Succeeded, "");
                verdict.since = Some(wall(Duration::ZERO));
                rows.push((Arc::new(key), verdict));
            }
        }
        Self {
            rows,
            shown: NodePodProbeStatus::default(),
            sent_at: HashMap::new(),
            limits: MessageLimits::default(),
            now: Duration::ZERO,
        }
    }

    /// All probes of a namespace say this from now on.
    fn print(&mut self, namespace: &str, message: &str) {
        let message: Arc<str> = message.into();
        for (key, verdict) in &mut self.rows {
            if *key.pod.namespace == *namespace {
                verdict.message = message.clone();
            }
        }
    }

    /// Writes what is due after some time. Returns the namespaces of the entries that changed, if a write was due.
    fn write_after(&mut self, time: Duration) -> Option<BTreeSet<String>> {
        self.now += time;
        let rows = self.rows.iter().map(|(key, verdict)| StatusRow {
            key,
            verdict: Verdict {
                probed: Some(wall(self.now)),
                ..verdict.clone()
            },
        });
        let rows: Vec<_> = rows.collect();
        let mut draft = StatusDraft::new(DraftInput {
            rows: &rows,
            unprobed: &[],
            observed: &self.shown,
            keeps_unprobed: true,
            sent_at: &self.sent_at,
            limits: &self.limits,
            message_room: None,
            is_refused: false,
            now: Now {
                monotonic: self.now,
                wall: wall(self.now),
            },
        });
        self.limits = std::mem::take(&mut draft.limits);
        if !draft.is_due {
            return None;
        }
        let changed = draft
            .changed
            .iter()
            .map(|key| key.pod.namespace.to_string());
        let changed = changed.collect();
        for key in draft.changed {
            self.sent_at.insert(key, self.now);
        }
        self.shown = draft.status;
        Some(changed)
    }

    /// The lengths of the messages that are shown of a namespace.
    fn shown_lengths(&self, namespace: &str) -> BTreeSet<usize> {
        let pods = self.shown.pod_probe_statuses.iter();
        pods.filter(|pod| pod.namespace == namespace)
            .flat_map(|pod| &pod.probe_states)
            .map(|state| state.message.as_ref().map_or(0, String::len))
            .collect()
    }
}

fn wall(since_start: Duration) -> jiff::Timestamp {
    jiff::Timestamp::from_second(1_000_000).unwrap() + since_start
}

fn namespaces<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

/// The API server stores `<` as `\u003c`.
// PRB-17, DEF-23
#[test]
fn a_status_is_as_small_as_it_must_be_when_it_is_stored() {
    for (character, stored) in [('<', "\\u003c"), ('&', "\\u0026"), ('\u{2028}', "\\u2028")] {
        let mut node = Node::new(&[("a", 300), ("b", 10)]);
        node.print(
            "a",
            &character.to_string().repeat(1024 / character.len_utf8()),
        );
        node.print("b", &"x".repeat(1024));
        node.write_after(SECOND);
        let bytes = serde_json::to_string(&node.shown).unwrap();
        let bytes = bytes.replace(character, stored).len();
        assert!(bytes <= 256 * 1024, "{bytes} bytes of {character:?}");
        assert_eq!(node.shown_lengths("b"), [1024].into());
    }
}

// PRB-17, DEF-23
#[test]
fn who_takes_no_more_than_an_equal_part_keeps_messages_whole_whatever_others_print() {
    let mut node = Node::new(&[("flood", 1_300), ("shop", 30)]);
    node.print("flood", "ok");
    node.print("shop", &"x".repeat(1024));
    node.write_after(SECOND);
    let before: Vec<_> = node.shown.pod_probe_statuses[1].probe_states.clone();
    for length in [1024, 3, 700, 1024, 64, 1000] {
        node.print("flood", &"<".repeat(length));
        node.write_after(11 * SECOND);
        assert_eq!(node.shown_lengths("shop"), [1024].into());
        assert_eq!(node.shown.pod_probe_statuses[1].probe_states, before);
    }
}

// PPM-6, PPM-11
#[test]
fn messages_pause_also_where_they_are_cut() {
    let mut node = Node::new(&[("flood", 350), ("shop", 1)]);
    node.print("flood", &"a".repeat(1024));
    node.print("shop", "one");
    assert_eq!(
        node.write_after(SECOND),
        Some(namespaces(["flood", "shop"]))
    );
    assert_eq!(node.shown_lengths("flood"), [256].into());
    for letter in ["b", "c", "d"] {
        node.print("flood", &letter.repeat(1024));
        node.print("shop", letter);
        assert_eq!(node.write_after(SECOND), None);
    }
    assert_eq!(
        node.write_after(10 * SECOND),
        Some(namespaces(["flood", "shop"]))
    );
}

// PPM-6, PPM-11
#[test]
fn what_is_longer_than_it_may_be_is_cut_at_once_and_nothing_else_is_written() {
    let mut node = Node::new(&[("flood", 130), ("late", 1), ("shop", 1)]);
    node.print("flood", &"a".repeat(1024));
    node.print("shop", "one");
    node.print("late", "one");
    node.write_after(SECOND);
    assert_eq!(node.shown_lengths("flood"), [1024].into());
    // One verdict of another namespace, and the status would be too large with what the others print now.
    node.print("flood", &"<".repeat(1024));
    node.print("shop", "two");
    node.rows[130].1.state = State::Failed;
    let shown = node.shown.clone();
    assert_eq!(node.write_after(SECOND), Some(namespaces(["late"])));
    assert_eq!(
        node.shown.pod_probe_statuses[0].probe_states[0].message,
        shown.pod_probe_statuses[0].probe_states[0].message
    );
    node.write_after(10 * SECOND);
    assert_eq!(node.shown_lengths("flood"), [256].into());
}

// PPM-11
#[test]
fn printing_a_little_more_and_less_in_turn_writes_no_more_than_messages_do() {
    let mut node = Node::new(&[("flood", 230), ("shop", 5)]);
    node.print("shop", "one");
    let mut lengths = BTreeSet::new();
    for (turn, length) in [700, 1024, 900, 1024, 850, 1024].into_iter().enumerate() {
        node.print("flood", &"x".repeat(length));
        let written = node.write_after(11 * SECOND);
        if turn > 1 {
            assert_eq!(written, None, "{length}");
        }
        lengths.extend(node.shown_lengths("flood"));
    }
    assert_eq!(lengths, [256, 700].into());
}
