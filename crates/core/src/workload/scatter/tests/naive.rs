//! The order in which pods are spread, worked out from all of them: what [`Spread`](super::super::Spread) finds is compared with it.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::super::{ScatterGroups, ScatterLabel};

/// Spreads the pods of each term, the term with most pods first. `pods` are all of the workload, `order` are places in it.
pub(crate) fn scatter<T>(
    terms: &[ScatterLabel],
    pods: &[T],
    order: Vec<usize>,
    label: impl for<'a> Fn(&'a T, &str) -> Option<&'a str>,
) -> Vec<usize> {
    if order.len() <= 1 {
        return order;
    }
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for term in terms {
        let values: BTreeSet<_> = if let Some(value) = &term.value {
            BTreeSet::from([&**value])
        } else {
            let values = pods.iter().filter_map(|pod| label(pod, &term.key));
            values.collect()
        };
        for value in values {
            if !pairs.contains(&(&*term.key, value)) {
                pairs.push((&term.key, value));
            }
        }
    }
    let has = |place: usize, (key, value): (&str, &str)| label(&pods[place], key) == Some(value);
    if pairs.len() > 1 {
        let count = |pair| order.iter().filter(|place| has(**place, pair)).count();
        pairs.retain(|pair| count(*pair) > 0);
        pairs.sort_by_key(|pair| Reverse(count(*pair)));
    }
    pairs.into_iter().fold(order, |order, pair| {
        let total = (0..pods.len()).filter(|place| has(*place, pair)).count();
        let (matched, others): (Vec<_>, Vec<_>) =
            order.iter().partition(|place| has(**place, pair));
        if matched.len() <= 1 || others.len() <= 1 {
            return order;
        }
        spread(matched, others, total, pods.len() - total)
    })
}

/// Spreads matched pods among others; `total` and `total_others` count those that are not upgraded too.
fn spread(
    mut matched: Vec<usize>,
    others: Vec<usize>,
    total: usize,
    total_others: usize,
) -> Vec<usize> {
    // One comes last of all.
    let last = matched.pop();
    let groups =
        ScatterGroups::by_density((total - 1, total_others), (matched.len(), others.len()));
    let mut matched = matched.into_iter();
    let mut others = others.into_iter();
    let mut spread: Vec<usize> = others.by_ref().take(groups.others_ahead).collect();
    for _ in 0..groups.count {
        spread.extend(matched.by_ref().take(groups.matched));
        spread.extend(others.by_ref().take(groups.others));
    }
    spread.extend(matched.chain(others).chain(last));
    spread
}
