//! Bytes written and barriers, per byte and flush of the caller.

use super::Random;
use super::machine::{Machine, formatted};
use volume::auth::{BLOCK_BYTES, Cipher, Request, Unit};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 128 * MIB;

fn machine(cipher: Cipher, unit: Unit) -> Machine {
    let mut machine = Machine::on(cipher, unit, formatted(cipher, unit, SIZE / BLOCK_BYTES as u64));
    // Claims the volume.
    machine.write(0, vec![1; BLOCK_BYTES]).expect("nothing fails");
    machine.flush().expect("nothing fails");
    machine.perform(Request::Discard { offset: 0, length: SIZE }, Vec::new()).expect("nothing fails");
    machine.flush().expect("nothing fails");
    machine
}

/// Writes the ranges, four at a time; bytes beneath per byte, and barriers, including those of a flush at the end.
fn cost(machine: &mut Machine, offsets: &[u64], length: u64) -> (f64, u64) {
    let (written, barriers) = (machine.disk.written, machine.disk.barriers);
    for some in offsets.chunks(4) {
        for offset in some {
            machine.submit(Request::Write { offset: *offset, length }, vec![3; length as usize]);
        }
        machine.run();
    }
    for completed in machine.completed.drain(..) {
        completed.result.expect("nothing fails");
    }
    machine.flush().expect("nothing fails");
    let above = offsets.len() as f64 * length as f64;
    ((machine.disk.written - written) as f64 / above, machine.disk.barriers - barriers)
}

fn sequential(length: u64, bytes: u64) -> Vec<u64> {
    (0..bytes / length).map(|index| index * length).collect()
}

/// Each range once, in any order.
fn shuffled(length: u64, bytes: u64) -> Vec<u64> {
    let (mut offsets, mut random) = (sequential(length, bytes), Random(5));
    for index in (1..offsets.len()).rev() {
        offsets.swap(index, random.below(index as u64 + 1) as usize);
    }
    offsets
}

#[test]
fn first_writes_cost_five_percent_and_two_barriers() {
    for cipher in Cipher::ALL {
        for unit in [Unit::Bytes512, Unit::Bytes4096] {
            let mut machine = machine(cipher, unit);
            let (bytes, barriers) = cost(&mut machine, &sequential(MIB, 64 * MIB), MIB);
            println!("{cipher:?} {unit:?}: {bytes:.3} bytes, {barriers} barriers");
            assert!(
                bytes <= 1.05 && barriers <= 2,
                "{cipher:?} {unit:?}: {bytes:.3} bytes, {barriers} barriers"
            );
        }
    }
}

fn overwrites(cipher: Cipher, unit: Unit, bytes_max: f64) {
    let mut machine = machine(cipher, unit);
    cost(&mut machine, &sequential(MIB, SIZE), MIB);
    for (length, offsets) in [(MIB, sequential(MIB, SIZE)), (64 << 10, shuffled(64 << 10, SIZE))] {
        let (bytes, barriers) = cost(&mut machine, &offsets, length);
        println!("{cipher:?} {unit:?} {length}: {bytes:.3} bytes, {barriers} barriers");
        assert!(bytes <= bytes_max, "{cipher:?} {unit:?} {length}: {bytes:.3} bytes");
        // Two for each 64 MiB, and those of the flush.
        let most = 2 * SIZE / (64 * MIB) + 2;
        assert!(barriers <= most, "{cipher:?} {unit:?} {length}: {barriers} barriers");
    }
}

#[test]
fn overwriting_costs_ten_percent_and_two_barriers_each_64_mib_gcm_siv() {
    overwrites(Cipher::Aes256GcmSiv, Unit::Bytes4096, 1.10);
}

#[test]
fn overwriting_costs_ten_percent_and_two_barriers_each_64_mib_aegis() {
    overwrites(Cipher::Aegis256X4, Unit::Bytes4096, 1.10);
}

/// A request that had to wait for its own pages would wait behind the data of a round.
#[test]
fn contexts_of_a_sequence_are_read_ahead_in_long_runs() {
    for (cipher, blocks_per_page) in [(Cipher::Aes256GcmSiv, 64), (Cipher::Aegis256X4, 40)] {
        let mut first = machine(cipher, Unit::Bytes4096);
        cost(&mut first, &sequential(MIB, SIZE), MIB);
        for is_write in [true, false] {
            let mut machine = Machine::on(cipher, Unit::Bytes4096, first.disk.image([]));
            let before = machine.reads;
            for offset in sequential(MIB, SIZE) {
                let (request, data) = if is_write {
                    (Request::Write { offset, length: MIB }, vec![4; MIB as usize])
                } else {
                    (Request::Read { offset, length: MIB }, Vec::new())
                };
                machine.perform(request, data).expect("nothing fails");
            }
            let pages = SIZE / BLOCK_BYTES as u64 / blocks_per_page;
            let (reads, runs) = (machine.reads - before, pages.div_ceil(32));
            println!("{cipher:?}: {pages} pages by {reads} reads");
            assert!(reads < 2 * runs + 16, "{cipher:?}, writes {is_write}: {pages} pages by {reads} reads");
        }
    }
}

/// The next batch fills while one is being written.
#[test]
fn writes_go_on_while_a_round_is_under_way() {
    for unit in [Unit::Bytes512, Unit::Bytes4096] {
        let mut machine = machine(Cipher::Aegis256X4, unit);
        cost(&mut machine, &sequential(MIB, SIZE), MIB);
        // A read of all of it leaves its contexts in memory.
        for offset in sequential(MIB, SIZE) {
            machine.perform(Request::Read { offset, length: MIB }, Vec::new()).expect("nothing fails");
        }
        machine.is_slow = true;
        let before = machine.completed.len();
        // With a journal a batch has a 64th of the volume.
        let batch = if unit == Unit::Bytes4096 { 32 } else { SIZE / MIB / 64 };
        for offset in sequential(MIB, 4 * batch * MIB) {
            machine.submit(Request::Write { offset, length: MIB }, vec![5; MIB as usize]);
        }
        machine.run();
        assert_eq!(machine.completed.len() - before, 2 * batch as usize, "{unit:?}");
        machine.is_slow = false;
        machine.flush().expect("nothing fails");
    }
}

/// Barriers depend on the size of the journal, a 64th of the volume.
#[test]
fn overwriting_with_a_journal_costs_a_second_write() {
    for cipher in Cipher::ALL {
        let mut machine = machine(cipher, Unit::Bytes512);
        cost(&mut machine, &sequential(MIB, 16 * MIB), MIB);
        let length = 64 << 10;
        let (bytes, barriers) = cost(&mut machine, &shuffled(length, 16 * MIB), length);
        println!("{cipher:?} {length}: {bytes:.3} bytes, {barriers} barriers");
        assert!(bytes <= 2.15, "{cipher:?} {length}: {bytes:.3} bytes");
    }
}

#[test]
fn a_flush_after_a_write_is_two_barriers() {
    for cipher in Cipher::ALL {
        for unit in [Unit::Bytes512, Unit::Bytes4096] {
            let mut machine = machine(cipher, unit);
            for round in 0..3 {
                let (_, barriers) = cost(&mut machine, &[0], BLOCK_BYTES as u64);
                assert_eq!(barriers, 2, "{cipher:?} {unit:?} round {round}");
            }
            let barriers = machine.disk.barriers;
            machine.flush().expect("nothing fails");
            assert_eq!(machine.disk.barriers, barriers, "nothing was written");
        }
    }
}
