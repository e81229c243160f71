//! A load of equal requests on one endpoint: measures their rate and latency, and verifies the data.
//!
//! Drives the endpoint like the copy engine: first completions, then new requests up to the depth, then a turn of the
//! loop. Makes no allocation per request: every slot keeps its area.

mod content;
#[cfg(test)]
mod tests;

use std::time::Duration;

use area::{Pool, Span};
use block::{Completion, Endpoint, IoError, Kind, State};
use io::{Io, SpinReport};
use thiserror::Error;

use crate::driver::Driver;
use crate::latency::{Histogram, Latency};
use crate::plan::{DEPTH_MAX, granularity};
use crate::progress::OBSERVE_EVERY;
use content::Content;

/// Bound of the blocks in a range: the state of each takes four bytes.
pub const LOAD_BLOCKS_MAX: u64 = 1 << 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadPlan {
    pub block_bytes: u32,
    pub depth: u32,
    /// Bytes from the start that requests access, in whole blocks.
    pub range_bytes: u64,
    pub write: bool,
    /// Random order of blocks, by this seed; `None`: sequential.
    pub random: Option<u64>,
    /// Verify the data. Reads expect the pattern of this seed; writes are stamped, and the seed is ignored.
    pub verify: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Start no new request after this time.
    Time(Duration),
    Operations(u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadFigures {
    pub operations: u64,
    /// From the first submission to the last completion; for writes, to the end of the flush.
    pub duration: Duration,
    pub flush: Duration,
    pub latency: Latency,
    /// Time that the loop has spent spinning before it slept.
    pub spin: SpinReport,
}

/// Why a load failed. Nothing is in flight afterwards, except after `Loop`.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("{0}")]
    Refused(String),
    #[error("{verb} of {length} bytes at {offset}: {error}")]
    Request {
        /// `read` or `write`.
        verb: &'static str,
        offset: u64,
        length: u32,
        error: IoError,
    },
    #[error("flush: {0}")]
    Flush(IoError),
    #[error("the byte at {offset} is not what should be there")]
    Difference { offset: u64 },
    /// `stop` returned true.
    #[error("interrupted")]
    Interrupted,
    /// The completion loop failed, or the pool has no memory.
    #[error("completion loop: {0}")]
    Loop(#[source] std::io::Error),
}

struct Slot {
    span: Span,
    block: usize,
    since: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Timed,
    /// Reads every accessed block and compares it.
    Verify,
}

/// A load in progress. The loop belongs to it: events of other owners are dropped.
pub struct Load<'a> {
    driver: Driver<'a, 1>,
    plan: LoadPlan,
    content: Content,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The next block of a sequential load.
    cursor: usize,
    random: u64,
    latency: Histogram,
    operations: u64,
    failure: Option<LoadError>,
    /// Loop time of the last turn.
    seen: Duration,
}

impl<'a> Load<'a> {
    pub fn new(io: &'a mut Io, endpoint: &'a mut dyn Endpoint, plan: LoadPlan) -> Result<Self, LoadError> {
        assert!(matches!(endpoint.state(), State::Ready), "the caller waits until it is");
        let blocks = blocks(endpoint, &plan)?;
        let block_bytes = plan.block_bytes as usize;
        let content = match plan.verify {
            Some(seed) if !plan.write => Content::pattern(block_bytes, blocks, seed),
            _ => Content::written(block_bytes, blocks),
        };
        let mut slots = Vec::with_capacity(plan.depth as usize);
        for _ in 0..plan.depth {
            let span = io.pool().take(block_bytes).ok_or_else(|| {
                let text = format!("no memory for {} requests of {block_bytes} bytes", plan.depth);
                LoadError::Loop(std::io::Error::new(std::io::ErrorKind::OutOfMemory, text))
            })?;
            if plan.write {
                content.fill(&span);
            }
            slots.push(Slot { span, block: 0, since: Duration::ZERO });
        }
        Ok(Self {
            driver: Driver::new(io, [endpoint]),
            plan,
            content,
            free: (0..slots.len()).rev().collect(),
            slots,
            cursor: 0,
            // Zero is the only state that xorshift never leaves.
            random: plan.random.unwrap_or(0) | 1 << 63,
            latency: Histogram::new(),
            operations: 0,
            failure: None,
            seen: Duration::ZERO,
        })
    }

    /// Runs the load until its end, and flushes its writes. `stop` is called periodically; if it returns true, the load
    /// ends.
    pub fn run(&mut self, until: Until, stop: &mut dyn FnMut() -> bool) -> Result<LoadFigures, LoadError> {
        // Updates the loop's clock, which may not have advanced since the loop was created.
        self.turn(Duration::ZERO)?;
        (self.latency, self.operations) = (Histogram::new(), 0);
        let (start, spun) = (self.seen, self.driver.io.spin_report());
        let mut begun = 0;
        self.drive(Pass::Timed, stop, &mut |load| {
            let go_on = match until {
                Until::Time(time) => load.seen < start + time,
                Until::Operations(count) => begun < count,
            };
            begun += u64::from(go_on);
            go_on.then(|| load.next_block())
        })?;
        let moved = self.seen;
        if self.plan.write {
            self.flush()?;
        }
        let spin = self.driver.io.spin_report();
        Ok(LoadFigures {
            operations: self.operations,
            duration: self.seen - start,
            flush: self.seen - moved,
            latency: self.latency.summary(),
            spin: SpinReport {
                time: spin.time - spun.time,
                hits: spin.hits - spun.hits,
                misses: spin.misses - spun.misses,
            },
        })
    }

    /// Reads every accessed block and compares every byte; returns the number of bytes compared.
    pub fn verify(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<u64, LoadError> {
        assert!(self.plan.verify.is_some(), "the contents are known");
        self.turn(Duration::ZERO)?;
        let (mut next, mut compared) = (0, 0);
        self.drive(Pass::Verify, stop, &mut |load| {
            while next < load.content.blocks() && !load.content.is_touched(next) {
                next += 1;
            }
            let block = (next < load.content.blocks()).then_some(next);
            next += 1;
            compared += u64::from(block.is_some());
            block
        })?;
        Ok(compared * u64::from(self.plan.block_bytes))
    }

    fn drive(
        &mut self,
        pass: Pass,
        stop: &mut dyn FnMut() -> bool,
        next: &mut dyn FnMut(&mut Self) -> Option<usize>,
    ) -> Result<(), LoadError> {
        let mut observe_at = self.seen + OBSERVE_EVERY;
        let mut closed = false;
        loop {
            // Endpoints that complete inside `submit` would otherwise prevent turns of the loop, and with them the
            // clock, for ever.
            let mut begun = 0;
            while !closed && begun < self.slots.len() {
                let Some(index) = self.free.pop() else { break };
                let block = if self.failure.is_some() { None } else { next(self) };
                let Some(block) = block else {
                    self.free.push(index);
                    closed = true;
                    break;
                };
                self.submit(pass, index, block);
                self.complete(pass);
                begun += 1;
            }
            if self.free.len() == self.slots.len() && closed {
                break;
            }
            let look = !closed && !self.free.is_empty();
            self.turn(if look { Duration::ZERO } else { observe_at })?;
            self.complete(pass);
            if self.seen >= observe_at {
                observe_at = self.seen + OBSERVE_EVERY;
                if stop() {
                    self.failure.get_or_insert(LoadError::Interrupted);
                }
            }
        }
        self.failure.take().map_or(Ok(()), Err)
    }

    fn next_block(&mut self) -> usize {
        let blocks = self.content.blocks();
        let mut block = match self.plan.random {
            None => self.cursor,
            Some(_) => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                ((u128::from(self.random) * blocks as u128) >> 64) as usize
            }
        };
        // The search ends: there are at least as many blocks as requests in flight, and this request is not in flight
        // yet.
        while self.plan.write && self.content.is_busy(block) {
            block = (block + 1) % blocks;
        }
        self.cursor = (block + 1) % blocks;
        block
    }

    fn submit(&mut self, pass: Pass, index: usize, block: usize) {
        let slot = &mut self.slots[index];
        (slot.block, slot.since) = (block, self.seen);
        let offset = block as u64 * u64::from(self.plan.block_bytes);
        let kind = if pass == Pass::Timed && self.plan.write {
            self.content.begin_write(block, &slot.span, self.plan.verify.is_some());
            Kind::Write { offset, from: slot.span.clone(), durable: false }
        } else {
            if pass == Pass::Timed {
                self.content.begin_read(block);
            }
            Kind::Read { offset, into: slot.span.clone() }
        };
        self.driver.submit(0, index as u64, kind);
    }

    fn complete(&mut self, pass: Pass) {
        while let Some((_, Completion { id, result })) = self.driver.completed() {
            let index = id as usize;
            let Slot { ref span, block, since } = self.slots[index];
            let offset = block as u64 * u64::from(self.plan.block_bytes);
            let writes = pass == Pass::Timed && self.plan.write;
            if writes {
                self.content.end_write(block);
            }
            let failure = match (result, pass) {
                (Err(error), _) => {
                    let verb = if writes { "write" } else { "read" };
                    Some(LoadError::Request { verb, offset, length: self.plan.block_bytes, error })
                }
                (Ok(()), Pass::Verify) => {
                    self.content.compare(block, span).map(|offset| LoadError::Difference { offset })
                }
                (Ok(()), Pass::Timed) => {
                    self.latency.add(self.seen.saturating_sub(since));
                    self.operations += 1;
                    if self.plan.verify.is_some() && !writes {
                        self.content.glance(block, span).map(|offset| LoadError::Difference { offset })
                    } else {
                        None
                    }
                }
            };
            if let Some(failure) = failure {
                self.failure.get_or_insert(failure);
            }
            self.free.push(index);
        }
    }

    fn flush(&mut self) -> Result<(), LoadError> {
        self.driver.submit(0, 0, Kind::Flush);
        loop {
            if let Some((_, completion)) = self.driver.completed() {
                return completion.result.map_err(LoadError::Flush);
            }
            self.turn(self.seen + OBSERVE_EVERY)?;
        }
    }

    fn turn(&mut self, until: Duration) -> Result<(), LoadError> {
        let turned = self.driver.turn(|io, events| io.turn_until(Some(until), events), None, |_| ());
        self.seen = self.driver.io.now();
        turned.map_err(LoadError::Loop)
    }
}

/// The number of blocks in the range; refuses what the endpoint does not support.
fn blocks(endpoint: &dyn Endpoint, plan: &LoadPlan) -> Result<usize, LoadError> {
    let capability = endpoint.capability();
    let refuse = |text: String| Err(LoadError::Refused(text));
    let (block, depth) = (plan.block_bytes, plan.depth);
    if !(1..=DEPTH_MAX).contains(&depth) {
        return refuse(format!("a depth of {depth}; it can be 1 to {DEPTH_MAX}"));
    }
    let step = granularity(capability).max(512);
    let most = capability.max_transfer_bytes.min(Pool::AREA_BYTES_MAX as u32);
    if block == 0 || !block.is_multiple_of(step) || block > most {
        return refuse(format!("requests of {block} bytes; it takes multiples of {step} up to {most}"));
    }
    if plan.write && capability.read_only {
        return refuse("it is read-only".to_owned());
    }
    let blocks = plan.range_bytes.min(capability.size_bytes) / u64::from(block);
    // At most one write of a block at a time, so that the result is defined; reads may overlap.
    if blocks < if plan.write { depth.into() } else { 1 } {
        return refuse(format!(
            "its range of {blocks} blocks of {block} bytes is too small for {depth} in flight"
        ));
    }
    if blocks > LOAD_BLOCKS_MAX {
        return refuse(format!("{blocks} blocks are more than {LOAD_BLOCKS_MAX}; choose a smaller range"));
    }
    Ok(blocks as usize)
}
