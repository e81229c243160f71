//! The mover copies a local disk into the LUN with a journal, and goes on by it after power cuts, kills and lost connections of
//! either end, until it is done. Then the LUN holds the source, and it has done so at each moment wherever a claim said so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mover::{Journal, Map, Plan, Status};

use super::copies::{SECTORS, compare, contents, plan, run};
use super::faults;
use super::target::{Target, medium, options};
use crate::disk::{Disk, SECTOR};
use crate::random::Random;
use crate::world::{Context, Over};

/// Copies of a run that are disturbed, and those behind them: one of these must end well.
const DISTURBED_MAX: u64 = 6;
const ATTEMPTS_MAX: u64 = DISTURBED_MAX + 6;
/// Claims that may not be in the file yet when the process ends: one is written, one waits.
const LATE: u64 = 3;

/// The journal's file and the thread that writes it, as far as they matter: which claims there are.
#[derive(Debug, Default)]
struct Paper {
    claims: Vec<Map>,
    /// The process is dead. What it still does is not heard.
    dead: bool,
}

#[derive(Clone, Debug)]
struct Claims {
    paper: Arc<Mutex<Paper>>,
    every: Duration,
}

impl Claims {
    fn paper(&self) -> MutexGuard<'_, Paper> {
        self.paper.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Journal for Claims {
    fn claim(&mut self, map: &Map) -> Result<(), String> {
        let mut paper = self.paper();
        if paper.dead {
            return Err("the process has ended".into());
        }
        paper.claims.push(map.clone());
        Ok(())
    }

    fn every(&self) -> Duration {
        self.every
    }
}

pub(super) fn play(context: &Context, strict: bool) -> Result<(), Over> {
    let mut random = context.fork();
    context.net(|net| net.weather = faults::weather(&mut random));
    let mut target = Target::new(context, SECTORS, !random.one_in(4), &mut random);
    target.boot();
    let source = Disk::new("sim:source", SECTORS, context.fork(), 500);
    source.fill(&contents(&mut random));
    let initiator = context.add_machine();
    let every = Duration::from_micros(random.magnitude(100..200_000));
    let claims = Claims { paper: Arc::default(), every };
    let mut map = Map::new(SECTORS * SECTOR as u64);
    for attempt in 0..=ATTEMPTS_MAX {
        let disturbed = attempt < DISTURBED_MAX;
        // So slow that there is a middle in which something can befall it.
        let rate = Some(random.pick(&[50 << 10, 200 << 10, 1 << 20]));
        let plan = Plan { map: Some(map.clone()), rate, ..plan(&mut random) };
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
                    if power {
                        is_true(context, &source, &target.disk, &claims);
                    }
                    context.sleep(Duration::from_micros(random.magnitude(1000..8_000_000)))?;
                    target.boot();
                }
                2 | 3 => {
                    died = true;
                    claims.paper().dead = true;
                    let power = random.one_in(2);
                    context.count(|counters| counters.initiator_cuts += 1);
                    context.kill(initiator, power);
                    source.stop(power);
                }
                _ => faults::befall(context, &mut random),
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
                    context.fail(format!("nothing befalls it any more, but the copy still fails: {error}"));
                }
            }
            Err(_) => context.fail("the mover panicked"),
            _ => {}
        }
        map = left(&claims, died, &mut random).unwrap_or(map);
        if random.one_in(3) && disturbed {
            target.kill(strict);
            is_true(context, &source, &target.disk, &claims);
            target.boot();
        }
        // No network refuses connections for longer.
        context.sleep(Duration::from_millis(if disturbed { random.magnitude(1..3000) } else { 3000 }))?;
    }
    target.kill(true);
    compare(context, &source, &target.disk, true);
    Ok(())
}

/// What the journal says when its process has ended, if it has said anything. A new process begins with that.
fn left(claims: &Claims, died: bool, random: &mut Random) -> Option<Map> {
    let mut paper = claims.paper();
    paper.dead = false;
    let late = if died { random.within(0..LATE) as usize } else { 0 };
    let count = paper.claims.len();
    let map = paper.claims.get(count.checked_sub(late + 1)?).cloned();
    paper.claims.truncate(count - late);
    map
}

/// All that was claimed is durable.
fn is_true(context: &Context, source: &Disk, destination: &Disk, claims: &Claims) {
    let Some(map) = claims.paper().claims.last().cloned() else { return };
    let (wanted, found) = (source.contents(), destination.contents());
    for stretch in map.stretches().filter(|stretch| stretch.status == Status::Finished) {
        let range = stretch.start as usize..stretch.end as usize;
        let differs = wanted[range.clone()].iter().zip(&found[range]).position(|(one, two)| one != two);
        if let Some(at) = differs {
            let sector = (stretch.start as usize + at) / SECTOR;
            return context.fail(format!("a journal claims sector {sector}, which is not the source's"));
        }
    }
    context.count(|counters| counters.claims_checked += 1);
}
