//! The mover copies a local disk into the LUN with a journal, and resumes by it after power cuts, kills and lost
//! connections of either end, until the copy is complete. Then the LUN holds the source; before that, it holds the
//! source in all claimed extents.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mover::{Journal, Map, Plan, Status};

use super::copies::{SECTORS, compare, contents, plan, run, volume};
use super::faults;
use super::target::{Target, medium, options};
use crate::disk::{Disk, SECTOR};
use crate::random::Random;
use crate::world::{Context, Over};

/// Number of disturbed copies of a run, and of all copies: one of the undisturbed ones must succeed.
const DISTURBED_MAX: u64 = 6;
const ATTEMPTS_MAX: u64 = DISTURBED_MAX + 6;
/// Bound of the claims that may be missing from the file when the process ends: one is being written, one waits.
const LATE: u64 = 3;

/// A model of the journal's file and of the thread that writes it: the list of claims.
#[derive(Debug, Default)]
struct ClaimFile {
    claims: Vec<Map>,
    /// The process is dead; its further claims are refused.
    dead: bool,
}

#[derive(Clone, Debug)]
struct Claims {
    file: Arc<Mutex<ClaimFile>>,
    every: Duration,
}

impl Claims {
    fn file(&self) -> MutexGuard<'_, ClaimFile> {
        self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Journal for Claims {
    fn claim(&mut self, map: &Map) -> Result<(), String> {
        let mut file = self.file();
        if file.dead {
            return Err("the process has ended".into());
        }
        file.claims.push(map.clone());
        Ok(())
    }

    fn every(&self) -> Duration {
        self.every
    }
}

pub(super) fn play(context: &Context, strict: bool) -> Result<(), Over> {
    let mut random = context.fork();
    context.net(|net| net.weather = faults::weather(&mut random));
    let volume = volume(context, strict);
    let mut target = Target::new(context, volume, SECTORS, !random.one_in(4), &mut random);
    target.boot();
    let source = Disk::new("sim:source", SECTORS, context.fork(), 500);
    source.fill(&contents(&mut random));
    let initiator = context.add_machine();
    let every = Duration::from_micros(random.magnitude(100..200_000));
    let claims = Claims { file: Arc::default(), every };
    let mut map = Map::new(SECTORS * SECTOR as u64);
    for attempt in 0..=ATTEMPTS_MAX {
        let disturbed = attempt < DISTURBED_MAX;
        // Slow enough that faults can occur during the copy.
        let rate = Some(random.pick(&[50 << 10, 200 << 10, 1 << 20]));
        let plan = Plan { map: Some(map.clone()), rate: rate.into(), ..plan(&mut random) };
        let medium = context.on(initiator, || medium(&options("mover", &mut random)));
        let over = Arc::new(AtomicBool::new(false));
        source.start();
        let thread = {
            let (source, mut claims, over) = (source.clone(), claims.clone(), Arc::clone(&over));
            let body = move || {
                let report = run(&source, &medium, &plan, Some(&mut claims));
                over.store(true, Ordering::Relaxed);
                report
            };
            context.on(initiator, || io::spawn("mover", body)).expect("a thread")
        };
        let (mut faults, mut died) = (if disturbed { random.within(0..5) } else { 0 }, false);
        while !over.load(Ordering::Relaxed) && !died {
            context.sleep(Duration::from_micros(random.magnitude(100..3_000_000)))?;
            if faults == 0 || over.load(Ordering::Relaxed) {
                continue;
            }
            faults -= 1;
            match random.within(0..6) {
                kind @ (0 | 1) => {
                    let power = kind == 0 && strict;
                    target.kill(power);
                    if power || target.has_memory() {
                        is_true(context, &source, &target, &claims);
                    }
                    context.sleep(Duration::from_micros(random.magnitude(1000..8_000_000)))?;
                    target.boot();
                }
                2 | 3 => {
                    died = true;
                    claims.file().dead = true;
                    let power = random.one_in(2);
                    context.count(|counters| counters.initiator_cuts += 1);
                    context.kill(initiator, power);
                    source.stop(power);
                }
                _ => faults::inject(context, &mut random),
            }
        }
        let result = thread.join();
        if !died && let Ok(Ok(report)) = result {
            context.count(|counters| {
                counters.copies += 1;
                counters.copies_resumed += u64::from(report.resumed_bytes > 0);
            });
            break;
        }
        match result {
            Ok(Err(error)) if !died => {
                context.note(&error, &[]);
                context.count(|counters| counters.copies_failed += 1);
                if attempt == ATTEMPTS_MAX {
                    context.fail(format!("the copy fails although no fault is left: {error}"));
                }
            }
            Err(_) => context.fail("the mover panicked"),
            _ => {}
        }
        map = left(&claims, died, &mut random).unwrap_or(map);
        if random.one_in(3) && disturbed {
            target.kill(strict);
            is_true(context, &source, &target, &claims);
            target.boot();
        }
        // No network refuses connections for longer than 3 s.
        context.sleep(Duration::from_millis(if disturbed { random.magnitude(1..3000) } else { 3000 }))?;
    }
    target.kill(true);
    compare(context, &source, &target, true);
    Ok(())
}

/// The last claim in the journal after the end of its process, if there is one; the next process resumes from it.
fn left(claims: &Claims, died: bool, random: &mut Random) -> Option<Map> {
    let mut file = claims.file();
    file.dead = false;
    let late = if died { random.within(0..LATE) as usize } else { 0 };
    let count = file.claims.len();
    let map = file.claims.get(count.checked_sub(late + 1)?).cloned();
    file.claims.truncate(count - late);
    map
}

/// Fails the run unless all claimed data is durable.
fn is_true(context: &Context, source: &Disk, destination: &Target, claims: &Claims) {
    let Some(map) = claims.file().claims.last().cloned() else { return };
    let (expected, Some(found)) = (source.contents(), destination.contents()) else { return };
    for entry in map.entries().filter(|entry| entry.status == Status::Finished) {
        let range = entry.start as usize..entry.end as usize;
        let differs = expected[range.clone()].iter().zip(&found[range]).position(|(one, two)| one != two);
        if let Some(at) = differs {
            let sector = (entry.start as usize + at) / SECTOR;
            return context.fail(format!("a journal claims sector {sector}, which is not the source's"));
        }
    }
    context.count(|counters| counters.claims_checked += 1);
}
