//! Loads over memory, and over memory with injected faults.

use std::time::Duration;

use area::PoolLimits;
use block::{
    Capability, Completion, Endpoint, Inspect, IoErrorKind, Kind, Medium, MemoryMedium, PatternMedium,
    Request,
};
use io::{Event, Io, Owner};

use super::{Load, LoadError, LoadPlan, Until};

const SIZE: u64 = 1 << 20;
const PLAN: LoadPlan =
    LoadPlan { block_bytes: 8192, depth: 4, range_bytes: SIZE, write: true, random: None, verify: Some(7) };

fn never() -> impl FnMut() -> bool {
    || false
}

/// Memory that mishandles the request with this number.
struct Wrong {
    inner: Box<dyn Endpoint>,
    count: u64,
    wrong: u64,
    how: How,
    kept: Option<Request>,
}

enum How {
    Drop,
    Misplace,
    Tear,
    Fail,
    Later,
}

impl Endpoint for Wrong {
    fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        self.count += 1;
        let Request { id, kind } = request;
        let is_it = self.count == self.wrong && !matches!(kind, Kind::Flush);
        let kind = match (&self.how, kind) {
            (_, kind) if !is_it => kind,
            (How::Drop, _) => return done.push(Completion { id, result: Ok(()) }),
            (How::Misplace, Kind::Write { offset, from, durable }) => {
                Kind::Write { offset: offset + 8192, from, durable }
            }
            (How::Tear, Kind::Write { offset, from, durable }) => {
                Kind::Write { offset, from: from.slice(0, 4096), durable }
            }
            (How::Fail, _) => {
                let error = block::IoError::new(IoErrorKind::Medium, "scripted");
                return done.push(Completion { id, result: Err(error) });
            }
            (How::Later, kind) => {
                self.kept = Some(Request { id, kind });
                return;
            }
            (_, kind) => kind,
        };
        self.inner.submit(io, Request { id, kind }, done);
        if self.count > self.wrong.saturating_add(40)
            && let Some(kept) = self.kept.take()
        {
            self.inner.submit(io, kept, done);
        }
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        self.inner.on_event(io, event, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        self.inner.owners(owners);
    }

    fn inspect(&self) -> &dyn Inspect {
        self.inner.inspect()
    }
}

fn wrong(how: How, number: u64, plan: LoadPlan, operations: u64) -> Result<u64, LoadError> {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let inner = MemoryMedium::new(SIZE, false).unwrap().attach(&mut io).unwrap();
    let mut endpoint = Wrong { inner, count: 0, wrong: number, how, kept: None };
    let mut load = Load::new(&mut io, &mut endpoint, plan)?;
    load.run(Until::Operations(operations), &mut never())?;
    load.verify(&mut never())
}

#[test]
fn what_was_written_is_found_again() {
    for random in [None, Some(3), Some(0)] {
        for block_bytes in [512, 8192, 65536] {
            let plan = LoadPlan { random, block_bytes, ..PLAN };
            let compared = wrong(How::Drop, u64::MAX, plan, 5000).unwrap();
            let touched = if random.is_none() { (5000 * u64::from(block_bytes)).min(SIZE) } else { 1 };
            assert!((touched..=SIZE).contains(&compared), "{compared}");
        }
    }
}

#[test]
fn a_write_lost_misplaced_or_torn_is_found() {
    // 128 blocks; in the last round, request 133 writes the fifth block.
    for (how, offset) in [(How::Drop, 4 * 8192 + 8), (How::Tear, 4 * 8192 + 4096 + 8)] {
        assert_eq!(difference(&wrong(how, 133, PLAN, 200)), offset);
    }
    let misplaced = difference(&wrong(How::Misplace, 200, PLAN, 200));
    assert_eq!(misplaced / 8192, 71, "request 200 is block 71");
}

#[track_caller]
fn difference(result: &Result<u64, LoadError>) -> u64 {
    let Err(LoadError::Difference { offset }) = *result else { panic!("{result:?}") };
    offset
}

#[test]
fn a_write_in_flight_is_not_overtaken() {
    // The write stays in flight while the load wraps around; a second write would trigger the assertion in
    // `begin_write`.
    let plan = LoadPlan { range_bytes: 8 * 8192, ..PLAN };
    wrong(How::Later, 3, plan, 300).unwrap();
    wrong(How::Later, 3, LoadPlan { random: Some(9), ..plan }, 300).unwrap();
}

#[test]
fn a_failed_request_ends_it() {
    let result = wrong(How::Fail, 10, PLAN, 200);
    let Err(LoadError::Request { verb: "write", offset, .. }) = result else { panic!("{result:?}") };
    assert_eq!(offset, 9 * 8192);
}

fn run(medium: &dyn Medium, plan: LoadPlan, until: Until) -> Result<(u64, u64), LoadError> {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut endpoint = medium.attach(&mut io).unwrap();
    let mut load = Load::new(&mut io, &mut *endpoint, plan)?;
    let figures = load.run(until, &mut never())?;
    Ok((figures.operations, load.verify(&mut never())?))
}

#[test]
fn reads_are_held_against_the_pattern() {
    let medium = PatternMedium::new(SIZE, 7);
    const READ: LoadPlan = LoadPlan { write: false, ..PLAN };
    assert_eq!(run(&medium, READ, Until::Operations(100)).unwrap(), (100, 100 * 8192));
    let (operations, compared) = run(&medium, READ, Until::Time(Duration::from_millis(20))).unwrap();
    assert!(operations > 0 && compared > 0);
    let other = LoadPlan { verify: Some(8), ..READ };
    assert!(matches!(run(&medium, other, Until::Operations(1)), Err(LoadError::Difference { offset: 0 })));
}

#[test]
fn wrong_data_shows_while_the_clock_runs() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut endpoint = PatternMedium::new(SIZE, 8).attach(&mut io).unwrap();
    let plan = LoadPlan { write: false, ..PLAN };
    let mut load = Load::new(&mut io, &mut *endpoint, plan).unwrap();
    let result = load.run(Until::Operations(1), &mut never());
    assert!(matches!(result, Err(LoadError::Difference { offset: 0 })), "{result:?}");
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let medium = MemoryMedium::new(SIZE, false).unwrap();
    for plan in [
        LoadPlan { depth: 0, ..PLAN },
        LoadPlan { depth: 100_000, ..PLAN },
        LoadPlan { block_bytes: 0, ..PLAN },
        LoadPlan { block_bytes: 1000, ..PLAN },
        LoadPlan { block_bytes: 32 << 20, ..PLAN },
        LoadPlan { range_bytes: 3 * 8192, ..PLAN },
        LoadPlan { range_bytes: 8191, write: false, ..PLAN },
    ] {
        let result = run(&medium, plan, Until::Operations(1));
        assert!(matches!(result, Err(LoadError::Refused(_))), "{plan:?}: {result:?}");
    }
}

#[test]
fn asked_to_stop_it_stops() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut endpoint = MemoryMedium::new(SIZE, false).unwrap().attach(&mut io).unwrap();
    let mut load = Load::new(&mut io, &mut *endpoint, PLAN).unwrap();
    let result = load.run(Until::Time(Duration::from_secs(3600)), &mut || true);
    assert!(matches!(result, Err(LoadError::Interrupted)), "{result:?}");
}
