//! Both machines against each other in memory, under a random schedule from a printed seed.
//!
//! Every run draws its own parameters, sizes, directions, residuals and interleaving; the content of each transfer
//! depends on task and position, so a misplaced byte is detected.

use iscsi::initiator::{self, Direction};
use iscsi::params::{DigestPolicy, Params};
use iscsi::target;
use iscsi::wire::{CmdSn, TmFunction};
use iscsi_test::{FAIL, NONE, Pair, READ, Random, WRITE};

const COMMANDS: u32 = 120;
/// Enough steps for all commands, even with bursts of 512 bytes, one at a time.
const STEPS_MAX: usize = 2_000_000;

fn params(random: &mut Random) -> Params {
    let sizes = [512, 513, 1024, 4096, 8192, 16383, 65536, 262_144];
    let digest = [DigestPolicy::Off, DigestPolicy::Allow, DigestPolicy::Prefer];
    let max_burst_length = random.pick(&sizes);
    Params {
        header_digest: random.pick(&digest),
        data_digest: random.pick(&digest),
        initial_r2t: random.chance(2),
        immediate_data: !random.chance(3),
        max_recv_data_segment_length: random.pick(&sizes),
        max_burst_length,
        first_burst_length: random.pick(&sizes).min(max_burst_length),
        max_outstanding_r2t: random.pick(&[1, 2, 3, 16, 1000]),
        ..Params::default()
    }
}

fn pair(random: &mut Random) -> Pair {
    let target = target::Config {
        tasks_max: random.pick(&[1, 2, 5, 32]),
        solicited_bytes_max: random.pick(&[1, 4096, 1 << 20]),
        ..target::Config::default()
    };
    let mut login = iscsi_test::login();
    login.cmd_sn = random.pick(&[CmdSn(1), CmdSn(u32::MAX - 20), CmdSn(0x7fff_fff0)]);
    login.params = params(random);
    let initiator =
        initiator::Config { tasks_max: random.pick(&[1, 3, 64]), ..initiator::Config::new(login) };
    Pair::new(initiator, target, params(random))
}

fn submit(pair: &mut Pair, random: &mut Random) {
    let op = random.pick(&[READ, READ, READ, WRITE, WRITE, WRITE, NONE, FAIL]);
    let expected = match random.below(6) {
        0 => random.below(5),
        1 => random.below(600),
        2 => random.below(9000),
        3 => random.pick(&[512, 1024, 4096, 8192, 16384, 65536]),
        4 => random.below(70_000),
        _ => random.below(600_000),
    } as u32;
    // In three of eight cases the SCSI length differs from the expected one: residuals.
    let length = match random.below(8) {
        0 => random.below(u64::from(expected) * 2 + 2) as u32,
        1 => expected + 512,
        2 => expected.saturating_sub(512),
        _ => expected,
    };
    let direction = match op {
        READ => Direction::In,
        WRITE => Direction::Out,
        _ => random.pick(&[Direction::None, Direction::In, Direction::Out]),
    };
    pair.submit(op, random.below(3), direction, expected, length);
}

fn run(seed: u64, management: bool) {
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut pair = pair(&mut random);
    for step in 0.. {
        assert!(step < STEPS_MAX, "only {} commands found a place", pair.load().submitted());
        let count = random.below(6) as usize;
        let bytes = if random.chance(2) { random.below(40) } else { random.below(20_000) } as usize;
        match random.below(6) {
            0 | 1 => pair.send_to_target(count),
            2 | 3 => pair.send_to_initiator(count),
            4 => pair.carry_to_target(bytes),
            _ => pair.carry_to_initiator(bytes).expect("wishes that permit each other"),
        }
        if !random.chance(3) {
            pair.finish_job(random.next() as usize);
        }
        if random.chance(3) {
            pair.finish_management();
        }
        if management && random.chance(60) {
            let functions = [TmFunction::AbortTask, TmFunction::AbortTaskSet, TmFunction::LogicalUnitReset];
            pair.manage(random.pick(&functions), random.next() as usize);
        }
        if pair.can_submit() && random.chance(2) {
            if pair.load().submitted() == COMMANDS {
                break;
            }
            submit(&mut pair, &mut random);
        }
    }
    pair.run_to_end();
}

/// The seeds of a test: 40, or as many as `PAIR_SEEDS` says.
fn seeds(first: u64) -> std::ops::Range<u64> {
    let count = std::env::var("PAIR_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(40);
    first..first + count
}

#[test]
fn random_sessions() {
    for seed in seeds(0) {
        run(seed, false);
    }
}

#[test]
fn random_sessions_with_task_management() {
    for seed in seeds(1000) {
        run(seed, true);
    }
}
