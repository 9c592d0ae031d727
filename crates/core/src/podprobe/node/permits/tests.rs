//! Who gets permits, step by step and in any order.

use proptest::prelude::*;

use super::*;

fn pod(namespace: usize, pod: usize) -> PodIdentity {
    PodIdentity {
        namespace: format!("ns{namespace}").into(),
        name: format!("p{pod}").into(),
        uid: format!("{namespace}/{pod}").into(),
    }
}

/// So many namespaces, each with so many pods that have commands.
fn planned(namespaces: usize, pods: usize) -> HashMap<Arc<str>, usize> {
    let names = (0..namespaces).map(|number| pod(number, 0).namespace);
    names.map(|name| (name, pods)).collect()
}

// PRB-14
#[test]
fn pods_that_share_a_uid_share_no_permits() {
    let (a, mut b) = (pod(0, 0), pod(1, 0));
    b.uid = a.uid.clone();
    let mut permits = RunPermits::new(1, 3);
    assert!(permits.acquire_or_wait(&a, 1));
    assert!(permits.acquire_or_wait(&b, 2));
}

// PRB-14
#[test]
fn both_limits_hold_and_the_order_of_a_pod_is_kept() {
    let (a, b) = (pod(0, 0), pod(0, 1));
    let mut permits = RunPermits::new(2, 3);
    permits.set_pods(planned(1, 2));
    let entered: Vec<bool> = [(&a, 1), (&a, 2), (&a, 3), (&b, 4), (&b, 5), (&a, 6)]
        .map(|(pod, who)| permits.acquire_or_wait(pod, who))
        .into();
    assert_eq!(entered, [true, true, false, true, false, false]);
    assert_eq!(permits.grant_next(), None);
    permits.release_permit(&b);
    assert_eq!(
        permits.grant_next(),
        Some(5),
        "pod a is full, so 3 is passed over"
    );
    permits.cancel_waiting(&a, &3);
    permits.release_permit(&a);
    assert_eq!(permits.grant_next(), Some(6));
    assert_eq!((permits.queued_runs(), permits.taken_permits()), (0, 3));
}

// PRB-14
#[test]
fn who_waits_is_served_by_namespace_then_by_pod() {
    let mut permits = RunPermits::new(1, 1);
    permits.set_pods(planned(2, 2));
    let busy = pod(0, 0);
    assert!(permits.acquire_or_wait(&busy, "runs"));
    for (namespace, number, who) in [
        (0, 0, "a0 first"),
        (0, 0, "a0 second"),
        (0, 0, "a0 third"),
        (0, 1, "a1"),
        (1, 0, "b0"),
    ] {
        assert!(!permits.acquire_or_wait(&pod(namespace, number), who));
    }
    let mut served = Vec::new();
    let mut running = busy;
    while permits.taken_permits() > 0 {
        permits.release_permit(&running);
        let Some(who) = permits.grant_next() else {
            break;
        };
        let number = usize::from(who == "a1");
        running = pod(usize::from(who.starts_with('b')), number);
        served.push(who);
    }
    assert_eq!(served, ["a0 first", "b0", "a1", "a0 second", "a0 third"]);
}

// PRB-14
#[test]
fn what_hangs_in_one_namespace_leaves_room_for_those_that_come() {
    let mut permits = RunPermits::new(4, 16);
    permits.set_pods(planned(1, 100));
    for number in 0..100 {
        permits.acquire_or_wait(&pod(0, number), number);
    }
    assert_eq!(permits.taken_permits(), 12);
    for namespace in 1..=4 {
        permits.set_pods(planned(namespace + 1, 100));
        assert!(permits.acquire_or_wait(&pod(namespace, 0), 1_000 + namespace));
    }
}

#[derive(Clone, Debug)]
enum HangStep {
    /// The next namespace whose runs hang has come into the plan.
    Come,
    /// So many runs of a pod of one of these are due.
    Due(usize, usize, usize),
    /// The run of these that has hung the longest reaches its timeout.
    TimeOut,
}

fn hang_steps() -> impl Strategy<Value = Vec<HangStep>> {
    let step = prop_oneof![
        1 => Just(HangStep::Come),
        8 => (0..8_usize, 0..8_usize, 1..64_usize)
            .prop_map(|(namespace, pod, runs)| HangStep::Due(namespace, pod, runs)),
        1 => Just(HangStep::TimeOut),
    ];
    prop::collection::vec(step, 1..200)
}

/// Each takes what it can before the next one comes; the first, which is alone, three quarters of all.
fn all_hang_in_turn() -> Vec<HangStep> {
    let of_one = |namespace| {
        let due = (0..8).map(move |pod| HangStep::Due(namespace, pod, 64));
        std::iter::once(HangStep::Come).chain(due)
    };
    (0..8).flat_map(of_one).collect()
}

/// 256 permits, an ordinary namespace with 64 probes each second, and eight to come whose runs hang.
struct BusyNode {
    permits: RunPermits<PodIdentity>,
    others: usize,
    hung: VecDeque<PodIdentity>,
    ordinary: Vec<PodIdentity>,
}

impl BusyNode {
    const ORDINARY: usize = 8;

    fn plan(&mut self, is_ordinary_there: bool) {
        let mut pods = planned(self.others, 8);
        pods.extend(is_ordinary_there.then(|| (pod(Self::ORDINARY, 0).namespace, 8)));
        self.permits.set_pods(pods);
        self.grant_waiting();
    }

    fn start(&mut self, pod: PodIdentity) {
        if pod.namespace == self::pod(Self::ORDINARY, 0).namespace {
            self.ordinary.push(pod);
        } else {
            self.hung.push_back(pod);
        }
    }

    fn start_or_queue(&mut self, pod: PodIdentity) {
        if self.permits.acquire_or_wait(&pod, pod.clone()) {
            self.start(pod);
        }
    }

    fn grant_waiting(&mut self) {
        while let Some(pod) = self.permits.grant_next() {
            self.start(pod);
        }
    }

    fn end(&mut self, runs: impl IntoIterator<Item = PodIdentity>) {
        for pod in runs {
            self.permits.release_permit(&pod);
            self.grant_waiting();
        }
    }

    fn play_step(&mut self, step: &HangStep, is_ordinary_there: bool) {
        match *step {
            HangStep::Come if self.others < Self::ORDINARY => {
                self.others += 1;
                self.plan(is_ordinary_there);
            }
            HangStep::Due(namespace, number, runs) if namespace < self.others => {
                for _ in 0..runs {
                    self.start_or_queue(pod(namespace, number));
                }
            }
            HangStep::TimeOut => {
                let hung = self.hung.pop_front();
                self.end(hung);
            }
            HangStep::Come | HangStep::Due(..) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    // PRB-27
    #[test]
    fn beside_eight_namespaces_that_hang_an_ordinary_one_misses_no_due_time(
        before in prop_oneof![hang_steps(), Just(all_hang_in_turn())], meanwhile in hang_steps()
    ) {
        let mut node = BusyNode {
            permits: RunPermits::new(32, 256),
            others: 0,
            hung: VecDeque::new(),
            ordinary: Vec::new(),
        };
        for step in &before {
            node.play_step(step, false);
        }
        node.plan(true);
        for number in 0..64 {
            node.start_or_queue(pod(BusyNode::ORDINARY, number % 8));
        }
        // In a second, so many runs of 90 ms follow one another.
        let mut meanwhile = meanwhile.chunks(20);
        let mut done = 0;
        for _ in 0..11 {
            for step in meanwhile.next().into_iter().flatten() {
                node.play_step(step, true);
            }
            let ended = std::mem::take(&mut node.ordinary);
            done += ended.len();
            node.end(ended);
        }
        prop_assert_eq!(done, 64);
    }
}

#[derive(Clone, Debug)]
enum PermitStep {
    /// A command of this pod of this namespace is due.
    Due(usize, usize),
    /// The command that has run for so long that so many began after it ends.
    End(usize),
}

fn steps(namespaces: usize) -> impl Strategy<Value = Vec<PermitStep>> {
    let step = prop_oneof![
        3 => (0..namespaces, 0..4_usize).prop_map(|(namespace, pod)| PermitStep::Due(namespace, pod)),
        1 => (0..8_usize).prop_map(PermitStep::End),
    ];
    prop::collection::vec(step, 1..200)
}

fn histories() -> impl Strategy<Value = (usize, usize, usize, Vec<PermitStep>)> {
    (1..20_usize, 1..6_usize).prop_flat_map(|(per_node, per_pod)| {
        (1..=per_node).prop_flat_map(move |namespaces| {
            (
                Just(per_node),
                Just(per_pod),
                Just(namespaces),
                steps(namespaces),
            )
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    // PRB-14
    #[test]
    fn a_namespace_without_a_command_begins_its_next_at_once_and_nobody_with_room_waits(
        (per_node, per_pod, namespaces, steps) in histories()
    ) {
        let mut permits = RunPermits::new(per_pod, per_node);
        permits.set_pods(planned(namespaces, 4));
        let mut running: Vec<(usize, PodIdentity)> = Vec::new();
        let mut waiting: HashMap<usize, PodIdentity> = HashMap::new();
        for (who, step) in steps.into_iter().enumerate() {
            match step {
                PermitStep::Due(namespace, number) => {
                    let pod = pod(namespace, number);
                    let first = running.iter().all(|(_, of)| of.namespace != pod.namespace);
                    let began = permits.acquire_or_wait(&pod, who);
                    prop_assert!(began || !first, "{pod:?} has no command running and waits");
                    if began {
                        running.push((who, pod));
                    } else {
                        waiting.insert(who, pod);
                    }
                }
                PermitStep::End(ago) if ago < running.len() => {
                    let (_, pod) = running.remove(running.len() - 1 - ago);
                    permits.release_permit(&pod);
                    while let Some(who) = permits.grant_next() {
                        running.push((who, waiting.remove(&who).unwrap()));
                    }
                }
                PermitStep::End(_) => {}
            }
            prop_assert!(waiting.values().all(|pod| !permits.may_take(pod)));
            let without = permits.planned.keys().filter(|planned| !permits.by_namespace.contains_key(*planned));
            prop_assert_eq!(permits.planned_without, without.count());
            prop_assert_eq!((permits.taken_permits(), permits.queued_runs()), (running.len(), waiting.len()));
            let half = per_node.div_ceil(2);
            for (_, pod) in &running {
                let of_pod = running.iter().filter(|(_, of)| of == pod).count();
                let same = running.iter().filter(|(_, of)| of.namespace == pod.namespace);
                prop_assert!(of_pod <= per_pod);
                prop_assert!(namespaces == 1 || same.count() <= half);
            }
        }
    }
}
