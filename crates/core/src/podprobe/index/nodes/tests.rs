//! The room in an object, without an index around it.

use std::sync::Arc;

use super::capacity::{Allocation, Rank};
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
    let waiting = keys.iter().map(|key| (key, 100));
    let mut allocation = Allocation::new(800);
    assert_eq!(allocation.admit_waiting(waiting).len(), 6);
}

#[test]
fn the_namespace_that_has_least_is_admitted_first() {
    let [full, next, other] = [key("a", "0"), key("a", "1"), key("b", "0")];
    let mut allocation = Allocation::new(800);
    allocation.admit_present(vec![(Rank::Admitted, &full, 300)]);
    let admitted = allocation.admit_waiting([(&next, 300), (&other, 300)]);
    assert!(admitted.contains(&other) && !admitted.contains(&next));
}

#[test]
fn who_was_admitted_stays_before_who_is_merely_observed() {
    let [admitted, observed] = [key("b", "0"), key("a", "0")];
    let mut allocation = Allocation::new(500);
    allocation.admit_present(vec![
        (Rank::Observed, &observed, 300),
        (Rank::Admitted, &admitted, 300),
    ]);
    let stay = allocation.admit_waiting([]);
    assert!(stay.contains(&admitted) && !stay.contains(&observed));
}
