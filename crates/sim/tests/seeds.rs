//! The seeds of the gate.

use leadsman_sim::{FaultClass, Plan, run, run_seeds};

#[test]
fn a_hundred_seeds_end_right() {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let (count, failures) = run_seeds(0..100, jobs, &FaultClass::GATE, || false);
    assert_eq!(count, 100);
    let seeds: Vec<_> = failures.iter().map(|failure| failure.seed).collect();
    if let Some(first) = failures.first() {
        let shrunk = first.shrunk(80);
        let plan = serde_json::to_string(&shrunk.plan).unwrap();
        panic!(
            "{}\nthe plan: {plan}\nthese seeds fail: {seeds:?}",
            shrunk.render()
        );
    }
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    std::thread::scope(|scope| {
        for seeds in [0..8, 8..16] {
            scope.spawn(|| seeds.for_each(compare_two_runs));
        }
    });
}

fn compare_two_runs(seed: u64) {
    let plan = Plan::of_seed(seed, &FaultClass::GATE);
    let (first, second) = (run(&plan), run(&plan));
    for (line, (first, second)) in first.story.iter().zip(&second.story).enumerate() {
        assert_eq!(first, second, "seed {seed}, line {line}");
    }
    assert_eq!(first, second, "seed {seed}");
}
