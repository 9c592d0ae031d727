//! The order in which pods are spread, and that its beginning is found without the rest of it.

pub(crate) mod naive;

use proptest::prelude::*;
use rstest::rstest;

use self::naive::scatter;
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

    // SCS-48
    #[test]
    fn the_first_pods_are_those_of_the_whole_order(
        pods in proptest::collection::vec(("[abc-]", "[ab-]", any::<bool>()), 0..40),
        terms in proptest::collection::vec(("[xy]", "[abc*]"), 0..4),
        first in 0..40_usize,
    ) {
        let terms: Vec<_> = terms.iter().map(|(key, value)| term(key, value)).collect();
        let pods: Vec<_> = pods.iter().map(|(x, y, is_candidate)| LabelledPod {
            labels: [x.as_str().into(), y.as_str().into()],
            is_candidate: *is_candidate,
        }).collect();
        let named: Vec<_> = pods.iter().map(|pod| scattered_labels(&terms, |key| pod.label(key))).collect();
        let mut counts = LabelCounts::default();
        for (pod, labels) in pods.iter().zip(&named) {
            counts.add(labels, pod.is_candidate);
        }
        let order: Vec<_> = (0..pods.len()).filter(|place| pods[*place].is_candidate).collect();
        let whole = scatter(&terms, &pods, order.clone(), |pod, key| pod.label(key).map(|value| &**value));
        let spreads = counts.spreads(&terms, pods.len(), order.len());
        for first in [first, order.len()] {
            let known = order.iter().take(first).map(|place| &*named[*place]);
            let found: Vec<_> = spreads.apply(known).into_iter().map(|place| order[place]).collect();
            prop_assert_eq!(&found[..], &whole[..found.len()]);
            prop_assert!(first < order.len() || found.len() == order.len());
        }
    }
}

/// A pod with labels `x` and `y`; `-` is none.
struct LabelledPod {
    labels: [Arc<str>; 2],
    is_candidate: bool,
}

impl LabelledPod {
    fn label(&self, key: &str) -> Option<&Arc<str>> {
        let value = &self.labels[usize::from(key == "y")];
        (**value != *"-").then_some(value)
    }
}
