//! Two engines over a wire that does everything wrong: byte-exact, never stalled, and the same if the records move.

mod neighbour;
mod support;

use std::ops::Range;

use support::simulation::{Scenario, Simulation};

/// Runs a scenario, and returns what the hosts saw of their engines.
fn run(scenario: &Scenario, moves: bool) -> [u64; 2] {
    println!("{scenario:?}");
    let mut simulation = Simulation::new(scenario, moves, false);
    simulation.run();
    [simulation.hosts[0].hash(), simulation.hosts[1].hash()]
}

fn bytes_arrive(seeds: Range<u64>) {
    for seed in seeds {
        run(&Scenario::from_seed(seed), false);
    }
}

/// Of a sample `usual`; `HIKYAKU_INET_SEEDS=3000 cargo test --release -p hikyaku-inet --test wire` takes minutes.
fn seeds(usual: u64) -> u64 {
    std::env::var("HIKYAKU_INET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The records are copied to another address between any two events, and another engine goes on.
fn records_move(seeds: Range<u64>) {
    for seed in seeds {
        let scenario = Scenario { bytes: 30_000, connections: 2, ..Scenario::from_seed(seed) };
        assert_eq!(run(&scenario, true), run(&scenario, false), "seed {seed}");
    }
}

#[test]
fn bytes_arrive_in_order_whatever_the_wire_does() {
    bytes_arrive(0..seeds(40));
}

#[test]
fn records_that_move_between_any_two_events_change_nothing() {
    records_move(0..seeds(8));
}
