//! The room in an object, without an index around it.

use std::sync::Arc;

use super::capacity::{Allocation, Rank};
use super::pod::Room;
use crate::cluster::ObjectName;
use crate::podprobe::index::context::PodKey;

fn key(namespace: &str, name: &str) -> PodKey {
    let name = ObjectName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    (Arc::new(name), Arc::from("uid"))
}

#[test]
fn one_namespace_alone_is_given_three_quarters_of_the_room() {
    let keys: Vec<_> = (0..10).map(|pod| key("a", &pod.to_string())).collect();
    let mut allocation = Allocation::new(800);
    allocation.admit_waiting(keys.iter().map(|key| (key, 100)));
    assert_eq!(allocation.into_rooms().len(), 6);
}

#[test]
fn the_namespace_that_has_least_is_admitted_first() {
    let [full, next, other] = [key("a", "0"), key("a", "1"), key("b", "0")];
    let mut allocation = Allocation::new(800);
    allocation.admit_present(&[(Rank::Admitted, &full, 300)]);
    allocation.admit_waiting([(&next, 300), (&other, 300)]);
    let rooms = allocation.into_rooms();
    assert!(rooms.contains_key(&other) && !rooms.contains_key(&next));
}

#[test]
fn who_was_admitted_stays_before_who_is_merely_observed() {
    let [admitted, observed] = [key("b", "0"), key("a", "0")];
    let mut allocation = Allocation::new(500);
    allocation.admit_present(&[
        (Rank::Observed, &observed, 300),
        (Rank::Admitted, &admitted, 300),
    ]);
    let rooms = allocation.into_rooms();
    assert!(rooms.contains_key(&admitted) && !rooms.contains_key(&observed));
}

#[test]
fn what_has_grown_beyond_a_share_is_lent_what_nobody_wants() {
    let [large, grown, new] = [key("a", "0"), key("a", "1"), key("z", "0")];
    let rooms = |waiting: &[(&PodKey, usize)]| {
        let mut allocation = Allocation::new(800);
        allocation.admit_present(&[(Rank::Admitted, &large, 550)]);
        allocation.admit_waiting([(&grown, 150)].into_iter().chain(waiting.iter().copied()));
        allocation.lend_room([(&grown, 150)]);
        allocation.into_rooms()
    };
    assert_eq!(rooms(&[]).get(&grown), Some(&Room::Lent));
    let with_another = rooms(&[(&new, 180)]);
    assert_eq!(with_another.get(&new), Some(&Room::Given));
    assert_eq!(with_another.get(&grown), None);
}

#[test]
fn where_not_all_can_stay_the_namespaces_that_use_most_lose_room() {
    let large: Vec<_> = (0..6).map(|pod| key("a", &pod.to_string())).collect();
    let [one, other] = [key("b", "0"), key("c", "0")];
    let mut present: Vec<_> = large.iter().map(|key| (Rank::Admitted, key, 100)).collect();
    present.extend([(Rank::Admitted, &one, 100), (Rank::Admitted, &other, 100)]);
    let mut allocation = Allocation::new(500);
    allocation.admit_present(&present);
    let rooms = allocation.into_rooms();
    assert!(rooms.contains_key(&one) && rooms.contains_key(&other));
    assert_eq!(rooms.len(), 5);
}
