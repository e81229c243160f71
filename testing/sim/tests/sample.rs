//! A sample of runs. An error that a run has found gets a test in the code that was wrong: the meaning of seeds
//! changes.

use sim::{Counters, Run, Scenario, run};

fn plan(seed: u64) -> Run {
    Run { seed, scenario: None, strict: true, trace: false }
}

fn good(seed: u64) -> (Counters, u64) {
    let outcome = run(&plan(seed));
    if let Some(failure) = outcome.failure {
        panic!("seed {seed}: {failure}\nreplay: cargo run -p hikyaku-sim -- --runs 1 --seed {seed} --trace");
    }
    (outcome.counters, outcome.hash)
}

#[test]
#[ignore = "takes more than ten seconds"]
fn a_sample_passes_and_meets_the_interesting_cases() {
    // Does not occur in every sample of this size.
    let rare = ["late_segments_heard"];
    let mut total = Counters::default();
    for seed in 0..250 {
        total.add(&good(seed).0);
    }
    let never = |(name, count): &(&str, u64)| *count == 0 && !rare.contains(name);
    let missing: Vec<_> = total.list().into_iter().filter(never).collect();
    assert!(missing.is_empty(), "never happened: {missing:?}");
}

#[test]
fn a_seed_is_the_same_run_again() {
    for seed in 0..30 {
        let again = Run { scenario: Some(Scenario::of(seed)), ..plan(seed) };
        assert_eq!(run(&plan(seed)).hash, run(&again).hash, "seed {seed}");
    }
}
