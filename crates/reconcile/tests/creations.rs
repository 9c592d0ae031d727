//! A creation has one place among what there is, whatever becomes of its request and of its object; and of the writes of an
//! object that change it, one is under way.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use leadsman_reconcile::{
    Assumption, Change, Class, Feature, Key, Now, ObjectName, Plan, Purpose, Reconciler,
    ResourceVersion, RightScope, Source, Store, Stored, Watch, WriteId, WriteKind, WriteVerb,
};
use proptest::prelude::*;
use serde_json::json;

const ENROL: WriteKind = WriteKind {
    label: "enrol",
    group: "",
    version: "v1",
    resource: "configmaps",
    verb: WriteVerb::Create,
    scope: RightScope::Cluster,
    class: 0,
};
const SWEAR: WriteKind = WriteKind {
    label: "swear",
    verb: WriteVerb::MergePatch,
    ..ENROL
};
const DISMISS: WriteKind = WriteKind {
    label: "dismiss",
    verb: WriteVerb::Delete,
    ..ENROL
};
const KINDS: [WriteKind; 3] = [ENROL, SWEAR, DISMISS];
const SHIP: &str = "ship";

/// Keeps a ship's crew at its number. The first of those that have not sworn goes, where there are too many.
struct Crew;

/// A `ConfigMap`.
#[derive(Clone, Debug, PartialEq)]
struct Hand {
    name: ObjectName,
    uid: String,
    version: ResourceVersion,
    has_sworn: bool,
    is_hurt: bool,
}

impl Hand {
    fn new(number: usize) -> Self {
        Self {
            name: ObjectName {
                namespace: SHIP.to_owned(),
                name: format!("h{number}"),
            },
            uid: String::new(),
            version: ResourceVersion::UNKNOWN,
            has_sworn: false,
            is_hurt: false,
        }
    }
}

impl Stored for Hand {
    fn name(&self) -> ObjectName {
        self.name.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        found(SHIP);
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.has_sworn, self.is_hurt) == (other.has_sworn, other.is_hurt)
    }
}

#[derive(Default)]
struct Ship {
    hands: Store<Hand>,
    number: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ships;

impl Key for Ships {
    fn namespace(&self) -> &'static str {
        SHIP
    }
}

impl Feature for Crew {
    const NAME: &'static str = "crew";
    const WRITES: &'static [WriteKind] = &KINDS;
    const CLASSES: &'static [Class] = &[Class::new("crew")];
    type Key = Ships;
    type World = Ship;
    /// The hands that may have been enrolled by a request whose answer was lost.
    type Memory = Vec<String>;

    fn keys(&self, _: &Ship) -> Vec<Ships> {
        vec![Ships]
    }

    fn reconcile(
        &self,
        _: &Ships,
        world: &Ship,
        unsure: &mut Vec<String>,
        plan: &mut Plan<'_, Self>,
    ) {
        unsure.clear();
        let hands = &world.hands;
        let fit = |hand: &&Arc<Hand>| !hand.is_hurt;
        let there: Vec<_> = hands.find_in(SHIP, SHIP).filter(fit).collect();
        let is_there = |name: &ObjectName| there.iter().any(|hand| hand.name == *name);
        let coming = hands.find_coming_in(SHIP, SHIP);
        let coming: Vec<_> = coming.filter(|hand| !is_there(&hand.name)).collect();
        let is_staying = |hand: &&&Arc<Hand>| hands.assumed(&hand.name).is_some();
        let mut staying: Vec<_> = there.iter().filter(is_staying).collect();
        for hand in &there {
            if !hand.has_sworn {
                let body = json!({"metadata": {"uid": hand.uid, "labels": {"sworn": "yes"}}});
                plan.patch(&SWEAR, hand.name.clone(), &body)
                    .assuming_changed::<ConfigMap>(|hand| Hand {
                        has_sworn: true,
                        ..hand.clone()
                    });
            }
            if hands.assumed(&hand.name).is_none() {
                plan.delete::<ConfigMap>(&DISMISS, hand.name.clone(), &hand.uid);
            }
        }
        staying.sort_by_key(|hand| (hand.has_sworn, hand.name.clone()));
        let surplus = (staying.len() + coming.len()).saturating_sub(world.number);
        for hand in staying.iter().take(surplus) {
            plan.delete::<ConfigMap>(&DISMISS, hand.name.clone(), &hand.uid);
        }
        let again = coming.iter().map(|hand| (***hand).clone());
        let again = again.filter(|hand| hands.observed(&hand.name).is_none() && surplus == 0);
        let missing = world.number.saturating_sub(there.len() + coming.len());
        let free = (0..).map(Hand::new);
        let free = free.filter(|hand| hands.observed(&hand.name).is_none());
        let free = free.filter(|hand| !hands.is_coming(&hand.name));
        for hand in again.chain(free.take(missing)) {
            let name = hand.name.clone();
            if plan.is_fate_unknown(&ENROL, &name) {
                unsure.push(name.name.clone());
            }
            plan.create(&ENROL, name, Purpose::of(()), || json!({}))
                .assuming::<ConfigMap>(move || Assumption::Created(Arc::new(hand.clone())));
        }
    }
}

impl Watch<ConfigMap> for Crew {
    type Stored = Hand;

    fn store(world: &mut Ship) -> &mut Store<Hand> {
        &mut world.hands
    }

    fn read(&self, map: &Arc<ConfigMap>) -> Arc<Hand> {
        let metadata = &map.metadata;
        let label = |key| {
            let labels = metadata.labels.as_ref();
            labels.is_some_and(|labels| labels.contains_key(key))
        };
        Arc::new(Hand {
            name: ObjectName::of(metadata),
            uid: metadata.uid.clone().unwrap_or_default(),
            version: ResourceVersion::parse(metadata.resource_version.as_deref()),
            has_sworn: label("sworn"),
            is_hurt: label("hurt"),
        })
    }

    fn find_affected(&self, _: &Change<Hand>, _: &Ship, affected: &mut dyn FnMut(Ships)) {
        affected(Ships);
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Done,
    DoneAndLost,
    Lost,
    /// Its answer is lost, and it is carried out later.
    Late,
    NotDone,
}

#[derive(Clone, Debug)]
enum Step {
    Answer(usize, Answer),
    Arrive(usize),
    Watch(usize),
    WatchAndSend(usize),
    Hurt(usize),
    Remove(usize),
    NewTerm,
    Wait(u64),
}

/// How long a request may be on its way.
const LATEST: Duration = Duration::from_mins(1);
/// How late a watch may be.
const LAG: Duration = Duration::from_mins(4);

/// A request that is under way or late, and when it was sent.
type Sent = (WriteId, Option<String>, Duration);

struct Sea {
    crew: Reconciler<Crew>,
    now: Duration,
    version: u64,
    hands: BTreeMap<String, Hand>,
    /// What the watch has not shown, whether it is gone, and since when.
    events: VecDeque<(Hand, bool, Duration)>,
    dirty: BTreeSet<WriteId>,
    under_way: Vec<Sent>,
    late: Vec<Sent>,
    most: usize,
    /// How many requests may be under way.
    places: usize,
}

thread_local! {
    static CPU_TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Whether runs cost so much that a key rests after each.
#[derive(Clone, Copy, Debug)]
enum Runs {
    Cheap,
    Costly,
}

impl Runs {
    fn clock(self) -> fn() -> Duration {
        match self {
            Self::Cheap => || Duration::ZERO,
            Self::Costly => || {
                CPU_TIME.set(CPU_TIME.get() + Duration::from_millis(1));
                CPU_TIME.get()
            },
        }
    }
}

impl Sea {
    fn new(number: usize) -> Self {
        Self::with(number, Runs::Cheap, usize::MAX)
    }

    fn with(number: usize, runs: Runs, places: usize) -> Self {
        let mut sea = Self {
            crew: Reconciler::new(Crew, runs.clock()),
            places,
            now: Duration::ZERO,
            version: 1,
            hands: BTreeMap::new(),
            events: VecDeque::new(),
            dirty: BTreeSet::new(),
            under_way: Vec::new(),
            late: Vec::new(),
            most: number,
        };
        sea.list(false);
        sea.resize(number);
        sea.crew.begin_term();
        sea.turn();
        sea
    }

    /// With all hands sworn in.
    fn sailing(number: usize) -> Self {
        let mut sea = Self::new(number);
        sea.settle();
        sea
    }

    fn resize(&mut self, number: usize) {
        self.most = number;
        self.crew.update_world(|world, marked| {
            world.number = number;
            marked(Ships);
        });
    }

    fn time(&self) -> Now {
        Now {
            monotonic: self.now,
            ..Now::default()
        }
    }

    fn put(&mut self, mut hand: Hand) {
        self.version += 1;
        hand.version = self.version.into();
        self.events.push_back((hand.clone(), false, self.now));
        self.hands.insert(hand.name.name.clone(), hand);
        let fit = self.hands.values().filter(|hand| !hand.is_hurt).count();
        assert!(fit <= self.most, "{fit} hands of {}", self.most);
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Hand)) {
        if let Some(mut hand) = self.hands.get(name).cloned() {
            change(&mut hand);
            self.put(hand);
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(mut hand) = self.hands.remove(name) {
            self.version += 1;
            hand.version = self.version.into();
            self.events.push_back((hand, true, self.now));
        }
    }

    fn carry_out(&mut self, id: &WriteId, uid: Option<&str>) -> bool {
        let name = &*id.name.name;
        let there = self.hands.get(name);
        if id.kind == 0 {
            if there.is_some() {
                return false;
            }
            let number = name[1..].parse().expect("a number");
            let uid = format!("u{}", self.version);
            self.put(Hand {
                uid,
                ..Hand::new(number)
            });
            return true;
        }
        if there.is_none_or(|hand| Some(&*hand.uid) != uid) {
            return false;
        }
        match id.kind {
            1 => self.change(name, |hand| hand.has_sworn = true),
            _ => self.remove(name),
        }
        true
    }

    fn show(&mut self, hand: &Hand, source: Source) {
        let mut map = ConfigMap::default();
        let labels = [("sworn", hand.has_sworn), ("hurt", hand.is_hurt)];
        let labels = labels.into_iter().filter(|(_, is_so)| *is_so);
        map.metadata.labels = Some(labels.map(|(key, _)| (key.into(), "yes".into())).collect());
        map.metadata.name = Some(hand.name.name.clone());
        map.metadata.namespace = Some(hand.name.namespace.clone());
        map.metadata.uid = Some(hand.uid.clone());
        map.metadata.resource_version = hand.version.number().map(|number| number.to_string());
        self.crew.observe_object(Arc::new(map), source);
    }

    fn list(&mut self, is_beside: bool) {
        let version = ResourceVersion::from(self.version);
        let source = if is_beside {
            Source::Reply
        } else {
            Source::List(version)
        };
        let hands: Vec<_> = self.hands.values().cloned().collect();
        for hand in &hands {
            self.show(hand, source);
        }
        let names = hands.into_iter().map(|hand| hand.name).collect();
        let now = self.time();
        self.crew
            .observe_list::<ConfigMap>(&names, version, is_beside, now);
    }

    fn watch(&mut self, events: usize) {
        for _ in 0..events {
            let Some((hand, is_gone, _)) = self.events.pop_front() else {
                return;
            };
            if is_gone {
                let now = self.time();
                self.crew
                    .observe_deletion::<ConfigMap>(&hand.name, hand.version, now);
            } else {
                self.show(&hand, Source::Watch);
            }
        }
    }

    fn answer(&mut self, place: usize, answer: Answer) {
        if self.under_way.is_empty() {
            return;
        }
        let sent = self.under_way.remove(place % self.under_way.len());
        let (id, uid, _) = &sent;
        let is_done = matches!(answer, Answer::Done | Answer::DoneAndLost)
            && self.carry_out(id, uid.as_deref());
        let (id, now) = (id.clone(), self.time());
        match answer {
            Answer::Late if id.kind == 0 => {
                self.crew.note_failed(&id, false);
                self.late.push(sent);
            }
            Answer::DoneAndLost | Answer::Lost | Answer::Late => self.crew.note_failed(&id, false),
            Answer::NotDone => self.crew.note_failed(&id, true),
            Answer::Done => {
                let hand = self.hands.get(&id.name.name).filter(|_| id.kind < 2);
                // A creation reads what is in its way.
                let hand = hand.filter(|_| is_done || id.kind == 0).cloned();
                if let Some(hand) = &hand {
                    self.show(hand, Source::Reply);
                }
                match (is_done, id.kind) {
                    (true, _) => self.crew.note_done(&id, hand.is_some(), now),
                    (false, 0) => self.crew.note_failed(&id, true),
                    (false, _) => self.crew.note_gone(&id, now),
                }
            }
        }
        self.dirty.insert(id);
    }

    fn step(&mut self, step: &Step) {
        let names: Vec<_> = self.hands.keys().cloned().collect();
        let name = |place: &usize| names.get(place % names.len().max(1));
        match step {
            Step::Answer(place, answer) => self.answer(*place, *answer),
            Step::Arrive(place) if !self.late.is_empty() => {
                let (id, uid, _) = self.late.remove(place % self.late.len());
                self.carry_out(&id, uid.as_deref());
            }
            Step::Arrive(_) => {}
            Step::Watch(events) => self.watch(*events),
            Step::WatchAndSend(events) => {
                self.watch(*events);
                self.send();
            }
            Step::Hurt(place) => name(place)
                .into_iter()
                .for_each(|name| self.change(name, |hand| hand.is_hurt = true)),
            Step::Remove(place) => name(place).into_iter().for_each(|name| self.remove(name)),
            Step::NewTerm => {
                // The requests of the last term are given up with it, and their answers say nothing any more.
                self.late.append(&mut self.under_way);
                self.late.retain(|(id, _, _)| id.kind == 0);
                self.list(true);
                self.dirty.clear();
                self.crew.begin_term();
            }
            Step::Wait(seconds) => {
                self.now += Duration::from_secs(*seconds);
                let is_late = |(_, _, at): &&(Hand, bool, Duration)| *at + LAG <= self.now;
                self.watch(self.events.iter().take_while(is_late).count());
            }
        }
        self.turn();
    }

    fn turn(&mut self) {
        let now = self.time();
        self.late.retain(|(_, _, sent)| *sent + LATEST > self.now);
        loop {
            self.crew.run_keys(now);
            let effects = self.crew.take_effects(now);
            self.dirty.extend(effects.dirty);
            self.send();
            if effects.deadline.is_none_or(|deadline| deadline > self.now) {
                break;
            }
        }
    }

    fn send(&mut self) {
        let now = self.time();
        while self.under_way.len() < self.places
            && let Some(id) = self.dirty.pop_first()
        {
            if let Some(write) = self.crew.take_due(&id, now) {
                let body = write.body();
                let uid = body
                    .pointer("/metadata/uid")
                    .or(body.pointer("/preconditions/uid"));
                let uid = uid.and_then(|uid| uid.as_str()).map(str::to_owned);
                self.under_way.push((id, uid, self.now));
            }
        }
    }

    /// Answers everything and shows everything.
    fn settle(&mut self) {
        for _ in 0..10 {
            while !self.under_way.is_empty() {
                self.step(&Step::Answer(0, Answer::Done));
            }
            self.step(&Step::Watch(usize::MAX));
            self.step(&Step::Wait(1));
        }
    }

    fn labels(&self) -> Vec<(&'static str, &str)> {
        let under_way = self.under_way.iter();
        under_way
            .map(|(id, _, _)| (KINDS[id.kind].label, &*id.name.name))
            .collect()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop_oneof![
        4 => Just(Answer::Done),
        2 => Just(Answer::DoneAndLost),
        1 => Just(Answer::Lost),
        2 => Just(Answer::Late),
        1 => Just(Answer::NotDone),
    ];
    let place = 0..4_usize;
    prop_oneof![
        8 => (place.clone(), answer).prop_map(|(place, answer)| Step::Answer(place, answer)),
        3 => place.clone().prop_map(Step::Arrive),
        6 => (1..3_usize).prop_map(Step::Watch),
        2 => (1..3_usize).prop_map(Step::WatchAndSend),
        2 => place.clone().prop_map(Step::Hurt),
        3 => place.prop_map(Step::Remove),
        1 => Just(Step::NewTerm),
        2 => (0..50_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn there_are_never_more_than_are_wanted(
        steps in prop::collection::vec(step(), 1..80),
        runs in prop_oneof![Just(Runs::Cheap), Just(Runs::Costly)],
        places in 1..4_usize,
    ) {
        let mut sea = Sea::with(2, runs, places);
        for step in &steps {
            sea.step(step);
        }
        sea.late.clear();
        for _ in 0..3 {
            sea.settle();
            sea.step(&Step::Wait(301));
        }
        sea.settle();
        prop_assert_eq!(sea.hands.values().filter(|hand| !hand.is_hurt).count(), 2);
    }
}

#[test]
fn a_creation_that_is_sent_again_has_one_place_also_when_what_it_made_is_gone() {
    let mut sea = Sea::new(1);
    sea.step(&Step::Answer(0, Answer::DoneAndLost));
    assert_eq!(sea.labels(), [("enrol", "h0")]);
    sea.step(&Step::Hurt(0));
    sea.step(&Step::Watch(2));
    // Another one would be there beside it, were it gone before the second request comes.
    sea.step(&Step::Remove(0));
    assert_eq!(sea.labels(), [("enrol", "h0")]);
    sea.settle();
    assert_eq!(sea.hands.keys().collect::<Vec<_>>(), ["h0"]);
}

#[test]
fn a_creation_whose_answer_was_lost_has_its_place_until_it_can_no_longer_come() {
    let mut sea = Sea::new(1);
    sea.step(&Step::Answer(0, Answer::Late));
    // The second request has made what is seen, and is answered. The first one is on its way.
    sea.step(&Step::Answer(0, Answer::Done));
    sea.step(&Step::Hurt(0));
    sea.step(&Step::Watch(2));
    sea.step(&Step::Wait(299));
    assert_eq!(sea.labels(), [("swear", "h0")]);
    sea.step(&Step::Wait(1));
    assert_eq!(sea.labels(), [("swear", "h0"), ("enrol", "h1")]);
}

#[test]
fn a_run_is_told_that_an_answer_was_lost_until_the_next_one_comes() {
    let mut sea = Sea::new(1);
    assert!(sea.crew.memory().is_empty());
    sea.answer(0, Answer::Lost);
    sea.crew.run_keys(sea.time());
    assert_eq!(sea.crew.memory(), &["h0"]);
    sea.turn();
    sea.answer(0, Answer::NotDone);
    sea.crew.run_keys(sea.time());
    assert!(sea.crew.memory().is_empty());
}

#[test]
fn a_creation_whose_answer_was_lost_is_over_once_what_it_has_made_is_seen() {
    // Nothing is sent again before that, or what is sent again meets it, or is refused for now.
    for again in [None, Some(Answer::Done), Some(Answer::NotDone)] {
        let mut sea = Sea::new(1);
        sea.answer(0, Answer::DoneAndLost);
        if again.is_some() {
            sea.turn();
        }
        sea.step(&Step::Watch(1));
        if let Some(again) = again {
            assert_eq!(sea.labels(), [("enrol", "h0")], "{again:?}");
            sea.step(&Step::Answer(0, again));
        }
        sea.step(&Step::Hurt(0));
        sea.step(&Step::Watch(1));
        assert_eq!(
            sea.labels(),
            [("swear", "h0"), ("enrol", "h1")],
            "{again:?}"
        );
    }
}

#[test]
fn of_two_creations_without_an_answer_one_may_come_after_the_other() {
    let mut sea = Sea::new(1);
    sea.step(&Step::Answer(0, Answer::Late));
    sea.answer(0, Answer::DoneAndLost);
    sea.step(&Step::Watch(1));
    sea.step(&Step::Hurt(0));
    sea.step(&Step::Remove(0));
    sea.step(&Step::Watch(2));
    assert_eq!(sea.labels(), [("swear", "h0")], "no other one comes");
    sea.step(&Step::Arrive(0));
    sea.settle();
    assert_eq!(sea.hands.keys().collect::<Vec<_>>(), ["h0"]);
}

#[test]
fn what_is_assumed_of_a_change_without_an_answer_ends_when_the_watch_shows_it() {
    let mut sea = Sea::new(1);
    sea.answer(0, Answer::Done);
    sea.step(&Step::Watch(usize::MAX));
    assert_eq!(sea.labels(), [("swear", "h0")]);
    let name = Hand::new(0).name;
    assert!(sea.crew.world().hands.is_under_way(&name));
    sea.answer(0, Answer::DoneAndLost);
    assert!(!sea.crew.world().hands.is_under_way(&name));
    sea.step(&Step::Watch(usize::MAX));
    assert_eq!(sea.labels(), []);
    sea.change("h0", |hand| hand.has_sworn = false);
    sea.watch(usize::MAX);
    let assumed = sea.crew.world().hands.assumed(&name);
    assert!(!assumed.expect("it is there").has_sworn);
    sea.turn();
    assert_eq!(sea.labels(), [("swear", "h0")]);
}

#[test]
fn one_write_of_an_object_that_changes_it_is_under_way() {
    let mut sea = Sea::sailing(2);
    sea.resize(3);
    sea.turn();
    sea.step(&Step::Answer(0, Answer::Done));
    assert_eq!(sea.labels(), [("swear", "h2")]);
    sea.resize(2);
    sea.turn();
    // Who is dismissed is decided when it is known what became of the oath.
    assert_eq!(sea.labels(), [("swear", "h2")]);
    sea.most = 3;
    sea.settle();
    assert_eq!(sea.hands.keys().collect::<Vec<_>>(), ["h1", "h2"]);
}

#[test]
fn a_rest_holds_up_no_writes_but_deletions() {
    let mut sea = Sea::with(3, Runs::Costly, 1);
    assert_eq!(sea.labels(), [("enrol", "h0")]);
    // What was answered is not sent again, though the key has not run since.
    sea.step(&Step::Answer(0, Answer::Done));
    assert_eq!(sea.labels(), [("enrol", "h1")]);
    sea.settle();
    assert_eq!(sea.hands.len(), 3);
    sea.resize(1);
    sea.step(&Step::Wait(1));
    assert_eq!(sea.labels(), [("dismiss", "h0")]);
    sea.step(&Step::Answer(0, Answer::Done));
    assert_eq!(sea.labels(), []);
    sea.step(&Step::Wait(1));
    assert_eq!(sea.labels(), [("dismiss", "h1")]);
}

#[test]
fn in_a_rest_no_write_is_sent_to_an_object_that_has_changed_since_its_plan() {
    let mut sea = Sea::with(2, Runs::Costly, 1);
    sea.step(&Step::Answer(0, Answer::Done));
    sea.step(&Step::Answer(0, Answer::Done));
    sea.step(&Step::Wait(1));
    assert_eq!(sea.labels(), [("swear", "h0")]);
    sea.change("h1", |hand| hand.has_sworn = true);
    sea.watch(usize::MAX);
    sea.step(&Step::Answer(0, Answer::Done));
    assert_eq!(sea.labels(), []);
}
