//! Sealing ahead: a thread fills a bounded ring with the units of the next requests, while the connection sends earlier
//! units or waits.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use seal::Descriptor;

use crate::secure_read::cipher::Units;
use crate::secure_read::shape::Reading;

/// Bytes sealed ahead: at most the size of a second-level cache.
pub(in crate::secure_read) const RING_BYTES: usize = 1 << 20;
/// Bytes sent at once: their buffers return after the send, and a ring entirely in transit could not be refilled.
pub(super) const RECORD_BYTES: usize = RING_BYTES / 4;
const RING_UNITS: std::ops::RangeInclusive<usize> = 2..=256;

pub(super) struct Sealed {
    pub(super) descriptor: Descriptor,
    pub(super) bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Sealed>,
    free: Vec<Vec<u8>>,
    is_over: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Signalled when units become ready.
    filled: Condvar,
    /// Signalled when a quarter of the ring is free.
    drained: Condvar,
    units: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ring and the thread that fills it. A drop ends the thread.
pub(super) struct Ahead {
    shared: Arc<Shared>,
}

impl Ahead {
    /// Starts to seal `stored`, unit by unit, in an endless loop.
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

    /// Takes the next ready units of the current block: at least one, at most `most`.
    pub(super) fn take(&self, most: usize, into: &mut Vec<Sealed>) {
        let mut state = self.shared.lock();
        while state.ready.is_empty() {
            state = self.shared.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let count = most.min(state.ready.len());
        into.extend(state.ready.drain(..count));
    }

    pub(super) fn give(&self, sent: &mut Vec<Sealed>) {
        let mut state = self.shared.lock();
        state.free.extend(sent.drain(..).map(|sealed| sealed.bytes));
        // One wake-up for many units: with small blocks a wake-up costs more than the sealing.
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
    let plain_units = stored.chunks(block).flat_map(|block| block.chunks(unit));
    for plain in plain_units.cycle() {
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
        bytes.resize(plain.len(), 0);
        let descriptor = units.seal_into(plain, &mut bytes);
        let mut state = ring.lock();
        state.ready.push_back(Sealed { descriptor, bytes });
        if state.ready.len() == 1 {
            ring.filled.notify_one();
        }
    }
}
