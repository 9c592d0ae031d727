//! Pods with a label are spread evenly over a roll-out, so that it does not take all of them one after another.
//!
//! The places are those of `OpenKruise` (`pkg/util/updatesort/scatter_sort.go`), so that a roll-out that one of the two has
//! begun goes on in the same order with the other.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Pods that are spread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScatterLabel {
    /// Key of their label.
    pub key: Arc<str>,
    /// Its value; None for each value that pods have.
    pub value: Option<Arc<str>>,
}

/// How many pods of a term, and of the others, follow one another.
struct ScatterGroups {
    count: usize,
    matched: usize,
    others: usize,
    /// Others that come first of all.
    others_ahead: usize,
}

/// Spreads the pods of each term, the term with most pods first. `pods` are all of the workload, `order` are places in it.
pub fn scatter<T>(
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

impl ScatterGroups {
    /// Groups for a number of matched pods and of others, both above 0.
    fn new(matched: usize, others: usize) -> Self {
        let count = matched.min(others);
        Self {
            count,
            matched: matched / count,
            // To the nearest: too few in a group would pile up at the end.
            others: (2 * others + count) / (2 * count),
            others_ahead: 0,
        }
    }

    /// Groups as dense as the pods of the whole workload, if those that are upgraded are less so.
    fn by_density(total: (usize, usize), upgraded: (usize, usize)) -> Self {
        let groups = Self::new(upgraded.0, upgraded.1);
        // Products in place of quotients, which whole numbers would round.
        if total.1 * upgraded.0 >= upgraded.1 * total.0 {
            return groups;
        }
        let Self {
            matched, others, ..
        } = Self::new(total.0, total.1);
        let count = (upgraded.0 / matched).min(upgraded.1 / others);
        Self {
            count,
            matched,
            others,
            others_ahead: upgraded.1 - count * others,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn term(key: &str, value: &str) -> ScatterLabel {
        ScatterLabel {
            key: key.into(),
            value: (value != "*").then(|| value.into()),
        }
    }

    /// Pods are words of the labels that they have; `a` stands for `a=yes`, and every pod has its word as label `word`.
    fn places(terms: &[ScatterLabel], pods: &[&str]) -> Vec<usize> {
        scatter(terms, pods, (0..pods.len()).collect(), |pod, key| {
            if key == "word" {
                return Some(*pod);
            }
            pod.contains(key).then_some("yes")
        })
    }

    // SCS-48
    #[rstest]
    #[case("", "")]
    #[case("a", "a")]
    #[case("ab", "ab")]
    #[case("bbbbaa", "abbbba")]
    #[case("bbbaaa", "abbaba")]
    #[case("bbbabba", "abbbbba")]
    #[case("bbbbbbaaa", "abbbabbba")]
    #[case("bbaaaa", "ababaa")]
    #[case("bbabaaaaa", "abababaaa")]
    fn the_pods_of_a_term_are_spread_as_openkruise_spreads_them(
        #[case] pods: &str,
        #[case] begins: &str,
    ) {
        let pods: Vec<_> = pods.split("").filter(|pod| !pod.is_empty()).collect();
        let spread = places(&[term("a", "yes")], &pods);
        let spread: String = spread.into_iter().map(|place| pods[place]).collect();
        assert!(spread.starts_with(begins), "{spread}");
    }

    // SCS-48
    #[rstest]
    #[case(&["b", "b", "-", "-", "a", "a"], &[0, 4, 2, 3, 5, 1])]
    #[case(&["-", "-", "-", "b", "ab", "a"], &[4, 0, 1, 2, 5, 3])]
    #[case(&["-", "-", "-", "a", "-", "-", "ab", "-", "-", "-"], &[3, 0, 1, 2, 4, 5, 7, 8, 9, 6])]
    fn each_term_is_spread_in_turn(#[case] pods: &[&str], #[case] expected: &[usize]) {
        let terms = [term("a", "yes"), term("b", "yes")];
        assert_eq!(places(&terms, pods), expected);
    }

    // SCS-48
    #[test]
    fn a_term_without_a_value_is_one_for_each_that_pods_have() {
        let pods = ["x", "x", "y", "y", "z", "z"];
        let values: Vec<_> = ["x", "y", "z"].map(|value| term("word", value)).into();
        assert_eq!(places(&[term("word", "*")], &pods), places(&values, &pods));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        // SCS-48
        #[test]
        fn every_pod_keeps_a_place(pods in proptest::collection::vec("[ab-]{1,2}", 0..24)) {
            let pods: Vec<_> = pods.iter().map(String::as_str).collect();
            for terms in [vec![term("a", "yes")], vec![term("word", "*")], vec![term("a", "yes"), term("word", "*")]] {
                let mut places = places(&terms, &pods);
                places.sort_unstable();
                prop_assert_eq!(places, (0..pods.len()).collect::<Vec<_>>());
            }
        }
    }
}
