//! Sealing ahead: a thread fills a bounded ring with the units that will be asked for next, while the connection is busy
//! with those before, or waits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use seal::Descriptor;

use crate::secure_read::cipher::Units;
use crate::secure_read::shape::Reading;

/// What is sealed ahead, bytes: no more than a second-level cache holds.
pub(in crate::secure_read) const RING_BYTES: usize = 1 << 20;
/// What is sent at once, bytes: its buffers come back when it is sent, and a ring that is on its way whole cannot be filled.
pub(super) const RECORD_BYTES: usize = RING_BYTES / 4;
/// And units.
const RING_UNITS: std::ops::RangeInclusive<usize> = 2..=256;

/// A unit that is sealed.
pub(super) struct Sealed {
    pub(super) descriptor: Descriptor,
    pub(super) bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Sealed>,
    /// Buffers to seal into.
    free: Vec<Vec<u8>>,
    is_over: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Units became ready.
    filled: Condvar,
    /// A quarter of the ring became free.
    drained: Condvar,
    /// Buffers in all.
    units: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ring and the thread that fills it. Dropping it ends the thread.
pub(super) struct Ahead {
    shared: Arc<Shared>,
}

impl Ahead {
    /// Begins to seal `stored`, unit by unit, over and over.
    pub(super) fn start(
        reading: Reading,
        unit: usize,
        stored: Vec<u8>,
        units: Units,
    ) -> std::io::Result<Self> {
        let unit = unit.min(reading.block as usize);
        let count = (RING_BYTES / unit).clamp(*RING_UNITS.start(), *RING_UNITS.end());
        let state =
            State { free: (0..count).map(|_| Vec::with_capacity(unit)).collect(), ..State::default() };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            filled: Condvar::new(),
            drained: Condvar::new(),
            units: count,
        });
        let ring = Arc::clone(&shared);
        let block = reading.block as usize;
        std::thread::Builder::new()
            .name("seal".to_owned())
            .spawn(move || fill(&ring, &stored, block, unit, units))?;
        Ok(Self { shared })
    }

    /// The next units of the block in hand that are ready, at least one, at most `most`.
    pub(super) fn take(&self, most: usize, into: &mut Vec<Sealed>) {
        let mut state = self.shared.lock();
        while state.ready.is_empty() {
            state = self.shared.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let count = most.min(state.ready.len());
        into.extend(state.ready.drain(..count));
    }

    /// Gives buffers back.
    pub(super) fn give(&self, sent: &mut Vec<Sealed>) {
        let mut state = self.shared.lock();
        state.free.extend(sent.drain(..).map(|sealed| sealed.bytes));
        // One wake-up for many units: at small blocks it costs more than sealing.
        if state.free.len() * 4 >= self.shared.units {
            self.shared.drained.notify_one();
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.drained.notify_one();
    }
}

fn fill(ring: &Shared, stored: &[u8], block: usize, unit: usize, mut units: Units) {
    let pieces = stored.chunks(block).flat_map(|block| block.chunks(unit));
    for piece in pieces.cycle() {
        let mut bytes = {
            let mut state = ring.lock();
            loop {
                if state.is_over {
                    return;
                }
                match state.free.pop() {
                    Some(bytes) => break bytes,
                    None => state = ring.drained.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        bytes.resize(piece.len(), 0);
        let descriptor = units.seal_into(piece, &mut bytes);
        let mut state = ring.lock();
        state.ready.push_back(Sealed { descriptor, bytes });
        if state.ready.len() == 1 {
            ring.filled.notify_one();
        }
    }
}
