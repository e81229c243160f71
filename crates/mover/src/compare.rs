//! Comparison of two endpoints up to the first difference.

use std::time::Duration;

use area::Span;
use block::Endpoint;
use io::Io;

use crate::checkpoint::Checkpoints;
use crate::copy::both_ready;
use crate::cutter::{Cutter, Run};
use crate::engine::Engine;
use crate::error::CopyError;
use crate::limit::Limit;
use crate::map::Map;
use crate::operation::{Extents, Operation, Step};
use crate::plan::{Plan, compare_check};
use crate::progress::{Control, Phase, Progress};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Bytes compared, from the start: the whole range, or up to the first difference.
    pub bytes: u64,
    /// First byte that differs, counted from the start of the range (`src_offset` and `dst_offset`). Without a size,
    /// endpoints of different length differ at the end of the shorter one at the latest.
    pub first_difference: Option<u64>,
    pub duration: Duration,
    pub limited_by: Limit,
}

/// Compares the range of `plan`: `a` from `src_offset`, `b` from `dst_offset`, up to the first difference and what was
/// in flight then. Writes nothing; ignores `verify`. The loop and the memory are used as by [`copy()`](crate::copy()).
pub fn compare(
    io: &mut Io,
    a: &mut dyn Endpoint,
    b: &mut dyn Endpoint,
    plan: &Plan,
    observer: &mut dyn FnMut(&Progress) -> Control,
) -> Result<Comparison, CopyError> {
    both_ready(a, b)?;
    let checked = compare_check(a.capability(), b.capability(), plan)?;
    let room_a = a.capability().size_bytes - plan.src_offset;
    let room_b = b.capability().size_bytes - plan.dst_offset;
    let mut engine = Engine::new(io, a, b, plan, &checked, observer, Checkpoints::none(checked.bytes))?;
    let mut operation =
        Compare { cutter: Cutter::new(checked.bytes, checked.unit), sparse: plan.sparse, difference: None };
    let figures = engine.run(&mut operation, Map::new(checked.bytes))?;
    if operation.difference.is_none() && !figures.complete {
        assert!(engine.stopped(), "only an interruption leaves a comparison without an answer");
        return Err(CopyError::Interrupted { phase: Phase::Compare, bytes_safe: engine.map.safe() });
    }
    let size_differs = plan.size.is_none() && room_a != room_b;
    let first_difference = operation.difference.or(size_differs.then_some(checked.bytes));
    Ok(Comparison {
        bytes: first_difference.unwrap_or(checked.bytes),
        first_difference,
        duration: figures.duration,
        limited_by: figures.limit,
    })
}

struct Compare {
    cutter: Cutter,
    sparse: bool,
    difference: Option<u64>,
}

impl Operation for Compare {
    const PHASE: Phase = Phase::Compare;
    const SHRINKS: bool = true;

    fn spans(&self) -> usize {
        2
    }

    fn is_exhausted(&self, _map: &Map) -> bool {
        self.cutter.is_done()
    }

    fn next(&mut self, chunk: u32, _map: &Map, extents: &mut Extents<'_, '_>) -> Option<Run> {
        if !self.sparse {
            return self.cutter.next(chunk, |_| Cutter::ALL_DATA);
        }
        // Only a range that is a hole at both ends need not be read.
        self.cutter.next(chunk, |at| extents.of_both(at))
    }

    fn on_begin(&mut self, run: &Run) -> Step {
        if run.zero { Step::Done } else { Step::Read([true, true]) }
    }

    fn on_read(&mut self, run: &Run, spans: &[Span]) -> Step {
        let length = run.length as usize;
        let (a, b) = (&spans[0].as_slice()[..length], &spans[1].as_slice()[..length]);
        if a == b {
            return Step::Done;
        }
        let place = a.iter().zip(b).position(|(a, b)| a != b).expect("they differ");
        let here = run.offset + place as u64;
        self.difference = Some(self.difference.map_or(here, |earlier| earlier.min(here)));
        Step::Halt
    }
}
