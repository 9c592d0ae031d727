use super::*;

#[derive(Debug, PartialEq)]
struct Card {
    name: &'static str,
    uid: &'static str,
    version: u64,
}

impl Stored for Card {
    fn name(&self) -> ObjectName {
        name(self.name)
    }

    fn uid(&self) -> &str {
        self.uid
    }

    fn version(&self) -> ResourceVersion {
        self.version.into()
    }

    fn words(&self, found: &mut dyn FnMut(&str)) {
        found("owner");
    }

    fn is_same(&self, _: &Self) -> bool {
        true
    }
}

fn name(name: &str) -> ObjectName {
    ObjectName {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    }
}

fn card(name: &'static str) -> Arc<Card> {
    Arc::new(Card {
        name,
        uid: "first",
        version: 1,
    })
}

/// The store once a list of these names is complete.
fn list(store: &mut Store<Card>, names: &[&str], version: u64) -> usize {
    let names = names.iter().copied().map(name).collect();
    let gone = store.observe_list(&names, version.into(), false, Duration::ZERO);
    gone.len()
}

fn create(store: &mut Store<Card>, name: &'static str) {
    let created = Assumption::Created(card(name));
    store.ask(&card(name).name(), created, Duration::ZERO);
}

fn found<'a>(cards: impl Iterator<Item = &'a Arc<Card>>) -> Vec<&'static str> {
    cards.map(|card| card.name).collect()
}

#[test]
fn a_list_of_nothing_says_whether_the_kind_is_served() {
    let mut store = Store::<Card>::default();
    assert!(!store.is_listed() && store.is_served());
    list(&mut store, &[], 5);
    assert!(store.is_listed() && store.is_served());
    let names = BTreeSet::new();
    store.observe_list(&names, ResourceVersion::UNKNOWN, false, Duration::ZERO);
    assert!(store.is_listed() && !store.is_served());
}

#[test]
fn what_does_not_decode_is_news_once_and_leaves_what_was_known() {
    let mut store = Store::default();
    store.observe(card("known"), Source::Watch);
    assert!(store.observe_undecodable(&name("known")).is_none());
    assert!(store.undecodable().is_empty());
    let news = store.observe_undecodable(&name("new")).unwrap();
    assert_eq!(*news.name, name("new"));
    assert!(news.before.is_none() && news.now.is_none() && !news.is_listed);
    assert!(store.observe_undecodable(&name("new")).is_none());
    assert_eq!(store.undecodable().len(), 1);
    // A list that does not have it, and one that does.
    assert_eq!(list(&mut store, &["known", "new"], 5), 0);
    assert_eq!(list(&mut store, &["known"], 6), 1);
    assert!(store.undecodable().is_empty());
}

#[test]
fn what_may_still_be_created_is_coming() {
    let mut store = Store::default();
    create(&mut store, "asked");
    create(&mut store, "late");
    store.note_lost(&name("late"));
    create(&mut store, "both");
    store.note_lost(&name("both"));
    create(&mut store, "both");
    store.end_asked(&name("late"));
    let change = Assumption::Changed(Box::new(|_: &Card| Card {
        name: "changed",
        uid: "first",
        version: 1,
    }));
    store.ask(&name("changed"), change, Duration::ZERO);
    for (name_of, is_coming) in [
        ("asked", true),
        ("late", true),
        ("both", true),
        ("changed", false),
        ("absent", false),
    ] {
        assert_eq!(store.is_coming(&name(name_of)), is_coming, "{name_of}");
    }
    let coming = found(store.find_coming_in("shop", "owner"));
    assert_eq!(coming, ["asked", "both", "late"]);
    assert_eq!(store.find_coming_in("shop", "other").count(), 0);
    assert_eq!(store.find_coming_in("zoo", "owner").count(), 0);
}

#[test]
fn what_is_created_is_found_until_an_event_shows_it() {
    let mut store = Store::default();
    create(&mut store, "asked");
    create(&mut store, "shown");
    // The answer is awaited, so what was asked is not over.
    store.observe(card("shown"), Source::Watch);
    assert!(store.is_asked(&name("shown")));
    assert_eq!(found(store.find_created_in("shop", "owner")), ["asked"]);
    assert_eq!(store.find_created_in("shop", "other").count(), 0);
}

#[test]
fn a_restored_api_server_knows_nothing_of_what_was_asked() {
    for (version, is_restored) in [(4, true), (5, false)] {
        let mut store = Store::default();
        list(&mut store, &[], 5);
        create(&mut store, "asked");
        create(&mut store, "late");
        store.note_lost(&name("late"));
        store.end_asked(&name("late"));
        list(&mut store, &[], version);
        assert_eq!(store.is_asked(&name("asked")), !is_restored, "{version}");
        assert_eq!(store.is_coming(&name("late")), !is_restored, "{version}");
    }
}
