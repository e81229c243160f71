//! Runs simulations: `cargo run -p hikyaku-sim -- --runs 1000 --seed 1`.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Parser, ValueEnum};
use sim::{Counters, Run, Scenario, run};

/// Initiator, target and mover under one seed, with fake clock, link and disk.
#[derive(Debug, Parser)]
struct Arguments {
    /// Runs to make, with successive seeds.
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// Seed of the first run.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this scenario. Otherwise the seed chooses.
    #[arg(long, value_enum)]
    scenario: Option<Scenario>,
    /// Runs at once.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Print everything that happens; for one run.
    #[arg(long)]
    trace: bool,
    /// Let a flush succeed although a power cut of the target took what it was to make durable.
    #[arg(long)]
    lenient: bool,
    /// Make every run twice and compare the traces.
    #[arg(long)]
    twice: bool,
    /// Print the counts as one JSON object.
    #[arg(long)]
    json: bool,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.trace {
        tracing_subscriber::fmt()
            .without_time()
            .with_max_level(tracing::Level::DEBUG)
            .with_writer(std::io::stderr)
            .init();
    }
    let next = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    let total = Mutex::new(Counters::default());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for job in 0..arguments.jobs.max(1) {
            let (arguments, next, failed, total) = (&arguments, &next, &failed, &total);
            scope.spawn(move || {
                sim::world::keep_to_core(job);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let stop = failed.load(Ordering::Relaxed) > 0 && !arguments.keep_going;
                    if number >= arguments.runs || stop {
                        return;
                    }
                    let seed = arguments.seed + number;
                    match run_seed(arguments, seed) {
                        Ok(counters) => total.lock().expect("no panic while locked").add(&counters),
                        Err(text) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            report_failure(arguments, seed, &text);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner();
    let runs = next.into_inner().min(arguments.runs);
    let mut list = total.into_inner().expect("no panic while locked").list();
    list.extend([("runs", runs), ("runs_failed", failed)]);
    if arguments.json {
        let fields: Vec<_> = list.iter().map(|(name, count)| format!("\"{name}\": {count}")).collect();
        println!("{{{}}}", fields.join(", "));
    } else {
        list.iter().for_each(|(name, count)| println!("{count:>12}  {}", name.replace('_', " ")));
        println!("{:>12.1}  seconds", start.elapsed().as_secs_f64());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_seed(arguments: &Arguments, seed: u64) -> Result<Counters, String> {
    let plan = Run { seed, scenario: arguments.scenario, strict: !arguments.lenient, trace: arguments.trace };
    let outcome = run(&plan);
    if let Some(failure) = outcome.failure {
        return Err(failure);
    }
    if arguments.twice && run(&plan).hash != outcome.hash {
        return Err("the second run of this seed differs from the first".into());
    }
    Ok(outcome.counters)
}

fn report_failure(arguments: &Arguments, seed: u64, text: &str) {
    let name = arguments.scenario.and_then(|scenario| scenario.to_possible_value());
    let scenario = name.map(|name| format!(" --scenario {}", name.get_name())).unwrap_or_default();
    let lenient = if arguments.lenient { " --lenient" } else { "" };
    eprintln!(
        "seed {seed}: {text}\n  replay: cargo run -p hikyaku-sim -- --runs 1 --seed {seed}{scenario}{lenient} --trace"
    );
}
