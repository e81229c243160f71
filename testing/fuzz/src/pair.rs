//! Both machines, connected by byte streams, under a schedule of the fuzzer: all data must arrive correctly.
//!
//! After the input a fair schedule follows, under which the session must end: a hang is a failure.

use iscsi::initiator::{self, Direction};
use iscsi::target;
use iscsi::wire::{CmdSn, TmFunction};
use iscsi_test::{FAIL, NONE, Pair, READ, WRITE};

use crate::words;
use crate::{Source, heap};

const HEAP_MAX: usize = 32 << 20;
const STEPS_MAX: usize = 2000;
const COMMANDS_MAX: u32 = 40;
const LENGTH_MAX: u32 = 70_000;

pub fn pair(bytes: &[u8]) {
    heap::within(HEAP_MAX, || {
        let mut source = Source::new(bytes);
        let mut pair = new(&mut source);
        for _ in 0..STEPS_MAX {
            if source.is_empty() {
                break;
            }
            if !step(&mut pair, &mut source) {
                return;
            }
        }
        pair.run_to_end();
    });
}

fn new(source: &mut Source<'_>) -> Pair {
    let mut login = iscsi_test::login();
    login.cmd_sn = CmdSn(source.pick(&[1, u32::MAX - 20, 0x7fff_fff0]));
    login.params = words::params(source);
    let config = initiator::Config { tasks_max: source.pick(&[30, 1, 3]), ..initiator::Config::new(login) };
    let target_config = target::Config {
        tasks_max: source.pick(&[32, 1, 2, 5]),
        solicited_bytes_max: source.pick(&[1 << 20, 1, 4096]),
        ..target::Config::default()
    };
    Pair::new(config, target_config, words::params(source))
}

/// One step of the fuzzer's schedule; false after a failed login.
fn step(pair: &mut Pair, source: &mut Source<'_>) -> bool {
    match source.byte() % 16 {
        0..=2 => pair.send_to_target(source.below(6)),
        3..=5 => pair.send_to_initiator(source.below(6)),
        6 | 7 => pair.carry_to_target(source.number() as usize),
        8 | 9 => return pair.carry_to_initiator(source.number() as usize).is_ok(),
        10 | 11 => {
            let choice = source.byte();
            pair.finish_job(choice.into());
            if choice.is_multiple_of(2) {
                pair.finish_management();
            }
        }
        12..=14 => submit(pair, source),
        _ => {
            let functions = [TmFunction::AbortTask, TmFunction::AbortTaskSet, TmFunction::LogicalUnitReset];
            let function = source.pick(&functions);
            pair.manage(function, source.byte().into());
        }
    }
    true
}

fn submit(pair: &mut Pair, source: &mut Source<'_>) {
    if !pair.can_submit() || pair.load().submitted() == COMMANDS_MAX {
        return;
    }
    let op = source.pick(&[READ, WRITE, NONE, FAIL]);
    let direction = match op {
        READ => Direction::In,
        WRITE => Direction::Out,
        _ => source.pick(&[Direction::None, Direction::In, Direction::Out]),
    };
    let expected = if direction == Direction::None { 0 } else { source.number() % LENGTH_MAX };
    // Sometimes the SCSI length differs from the expected one, to cause residuals.
    let length = if source.rarely(4) { source.number() % LENGTH_MAX } else { expected };
    let lun = u64::from(source.byte() % 2) << 48;
    pair.submit(op, lun, direction, expected, length);
}
