//! What every run of the simulator relies on. `cargo xtask test --family sim` draws the samples of runs.

use sim::{Run, Scenario, run};

fn plan(seed: u64) -> Run {
    Run { seed, scenario: None, strict: true, trace: false }
}

#[test]
fn a_seed_is_the_same_run_again() {
    for seed in 0..30 {
        let again = Run { scenario: Some(Scenario::of(seed)), ..plan(seed) };
        assert_eq!(run(&plan(seed)).hash, run(&again).hash, "seed {seed}");
    }
}
