//! The mover copies a local disk into the LUN. After a reported success the LUN holds the source, even after a power
//! cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use area::PoolLimits;
use block::{Medium, wait_ready};
use io::Io;
use mover::{Control, Journal, Plan, Report, copy, copy_with_journal};
use node::initiator::IscsiMedium;

use super::faults;
use super::target::{Target, medium, options};
use super::volume::Volume;
use crate::disk::{Disk, SECTOR};
use crate::random::Random;
use crate::world::{Context, Over};

pub(super) const SECTORS: u64 = 1024;

pub(super) fn play(context: &Context, strict: bool) -> Result<(), Over> {
    let mut random = context.fork();
    context.net(|net| net.weather = faults::weather(&mut random));
    let volume = volume(context, strict);
    let mut target = Target::new(context, volume, SECTORS, !random.one_in(4), &mut random);
    target.boot();
    let source = Disk::new("sim:source", SECTORS, context.fork(), 500);
    let initiator = context.add_machine();
    let rounds = random.within(1..4);
    for _ in 0..rounds {
        source.fill(&contents(&mut random));
        let plan = plan(&mut random);
        let medium = context.on(initiator, || medium(&options("mover", &mut random)));
        let over = Arc::new(AtomicBool::new(false));
        let thread = {
            let (source, plan, over) = (source.clone(), plan.clone(), Arc::clone(&over));
            let body = move || {
                let report = run(&source, &medium, &plan, None);
                over.store(true, Ordering::Relaxed);
                report
            };
            context.on(initiator, || io::spawn("mover", body)).expect("a thread")
        };
        let mut faults = random.within(0..8);
        let mut cut = false;
        while !over.load(Ordering::Relaxed) {
            context.sleep(Duration::from_micros(random.magnitude(100..3_000_000)))?;
            if faults == 0 || over.load(Ordering::Relaxed) {
                continue;
            }
            faults -= 1;
            match random.within(0..8) {
                0 if strict => {
                    cut = true;
                    target.kill(true);
                    context.sleep(Duration::from_micros(random.magnitude(1000..8_000_000)))?;
                    target.boot();
                }
                1 | 2 => {
                    target.kill(false);
                    context.sleep(Duration::from_micros(random.magnitude(1000..8_000_000)))?;
                    target.boot();
                }
                _ => faults::inject(context, &mut random),
            }
        }
        match thread.join() {
            Ok(Ok(report)) => {
                context.count(|counters| {
                    counters.copies += 1;
                    counters.retries += report.retries;
                });
                target.kill(true);
                compare(context, &source, &target, cut);
            }
            Ok(Err(error)) => {
                context.note(&error, &[]);
                context.count(|counters| counters.copies_failed += 1);
                target.kill(random.one_in(2));
            }
            Err(_) => context.fail("the mover panicked"),
        }
        context.sleep(Duration::from_millis(random.magnitude(1..3000)))?;
        target.boot();
    }
    Ok(())
}

/// Data with short and long ranges of zeroes.
pub(super) fn contents(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; SECTORS as usize * SECTOR];
    let mut zeroes = 0;
    for chunk in bytes.chunks_exact_mut(8 * SECTOR) {
        if zeroes == 0 && random.one_in(8) {
            zeroes = random.magnitude(1..64);
        }
        if zeroes > 0 {
            zeroes -= 1;
            continue;
        }
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&random.draw().to_le_bytes());
        }
        // Zeroes except for the last byte, for a check that stops early.
        if random.one_in(8) {
            let last = chunk.len() - 1;
            chunk[..last].fill(0);
            chunk[last] |= 1;
        }
    }
    bytes
}

pub(super) fn plan(random: &mut Random) -> Plan {
    Plan {
        chunk: Some(random.pick(&[4096, 16 << 10, 64 << 10, 256 << 10])),
        depth: Some(random.within(1..9) as u32),
        verify: random.one_in(2),
        sparse: random.one_in(2),
        differing: random.one_in(3),
        ..Plan::default()
    }
}

pub(super) fn run(
    source: &Disk,
    destination: &IscsiMedium,
    plan: &Plan,
    journal: Option<&mut dyn Journal>,
) -> Result<Report, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let mut io = Io::new(PoolLimits { bytes_max: 64 << 20 }).map_err(|error| text(&error))?;
    let mut source = source.attach(&mut io).map_err(|error| text(&error))?;
    let mut destination = destination.attach(&mut io).map_err(|error| text(&error))?;
    wait_ready(&mut io, &mut [&mut *source, &mut *destination]).map_err(|error| text(&error))?;
    let go_on = &mut |_: &mover::Progress| Control::Continue;
    let report = match journal {
        Some(journal) => copy_with_journal(&mut io, &mut *source, &mut *destination, plan, go_on, journal),
        None => copy(&mut io, &mut *source, &mut *destination, plan, go_on),
    };
    let report = report.map_err(|error| text(&error))?;
    block::close_all(&mut io, &mut [&mut *destination]);
    Ok(report)
}

/// What the LUN of a copy lies on. A volume loses its memory with the process, which a flush has to report.
pub(super) fn volume(context: &Context, strict: bool) -> Option<Volume> {
    Volume::choose(&mut context.fork_for("volume")).filter(|_| strict)
}

pub(super) fn compare(context: &Context, source: &Disk, destination: &Target, cut: bool) {
    let (expected, Some(found)) = (source.contents(), destination.contents()) else { return };
    let differs = |(at, (one, two)): (usize, (&[u8], &[u8]))| (one != two).then_some(at);
    let sectors = expected.chunks_exact(SECTOR).zip(found.chunks_exact(SECTOR)).enumerate();
    if let Some(sector) = sectors.filter_map(differs).next() {
        let cut = if cut { ", after a power cut under way" } else { "" };
        context.fail(format!("a copy reported success{cut}, and sector {sector} is not the source's"));
    }
}
