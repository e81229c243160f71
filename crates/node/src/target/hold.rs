//! Whether answers that are ready wait for more of them, to be sent together.
//!
//! An initiator that keeps many commands outstanding, and sends and takes them one by one, spends more on each trip
//! through its event loop than on the command; answers that come several at a time spare it most trips. Waiting costs
//! nothing as long as the initiator has something else outstanding. How much that is shows in what it does: if commands
//! keep coming while answers are held, more may be held; if nothing comes for some microseconds it is waiting for us,
//! and as many are never held again. With one command at a time, one in a few hundred is held for those microseconds.

use std::time::Duration;

/// Answers held at most,
const HELD_MAX: u32 = 16;
/// with at most so much data: what is large is worth a system call of its own,
const HELD_BYTES_MAX: usize = 64 << 10;
/// for so long.
const HELD_TIME_MAX: Duration = Duration::from_micros(60);
/// Answers that go at once after many that were held in vain.
const REST_MAX: u32 = 255;

#[derive(Debug)]
pub(super) struct Hold {
    /// Answers and their data that wait, since when, and whether the loop will tell of a lull.
    held: u32,
    bytes: usize,
    since: Duration,
    is_armed: bool,
    /// A lull came: what is held goes.
    is_over: bool,
    /// Answers to wait for.
    limit: u32,
    /// Answers that go at once until the next try, and how many it will be after the next in vain.
    rest: u32,
    penalty: u32,
}

impl Hold {
    pub(super) fn new() -> Self {
        Self {
            held: 0,
            bytes: 0,
            since: Duration::ZERO,
            is_armed: false,
            is_over: false,
            limit: 2,
            rest: 0,
            penalty: 0,
        }
    }

    /// An answer with so much data is ready.
    pub(super) fn add(&mut self, bytes: usize, now: Duration) {
        if self.held == 0 {
            self.since = now;
        }
        self.held += 1;
        self.bytes += bytes;
        self.rest = self.rest.saturating_sub(1);
    }

    /// Whether what is ready is to wait.
    pub(super) fn waits(&self, now: Duration) -> bool {
        self.held > 0
            && self.held < self.limit
            && self.rest == 0
            && !self.is_over
            && self.bytes <= HELD_BYTES_MAX
            && now < self.since + HELD_TIME_MAX
    }

    /// It does wait: whether the loop is still to be asked to tell of a lull.
    pub(super) fn arm(&mut self) -> bool {
        !std::mem::replace(&mut self.is_armed, true)
    }

    /// Nothing has happened for a while.
    pub(super) fn on_lull(&mut self) {
        self.is_armed = false;
        if self.held == 0 {
            return;
        }
        self.is_over = true;
        self.limit = self.held.div_ceil(2).max(2);
        if self.held == 1 {
            self.penalty = (2 * self.penalty + 1).min(REST_MAX);
            self.rest = self.penalty;
        }
    }

    /// Everything was handed to the stream.
    pub(super) fn on_sent(&mut self) {
        if self.held >= self.limit {
            // So many were there, together or one after the other, and the initiator had more to do.
            self.limit = (self.limit + 1).min(HELD_MAX);
            self.penalty /= 2;
        }
        (self.held, self.bytes, self.is_over) = (0, 0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A closed loop with `depth` commands outstanding, `commands` in all, each arriving alone: how many answers went
    /// together, and lulls.
    fn drive(hold: &mut Hold, depth: u32, commands: u32, bytes: usize) -> (Vec<u32>, u32) {
        let (mut batches, mut lulls, mut free, mut held) = (Vec::new(), 0, depth, 0);
        for _ in 0..commands {
            if free == 0 {
                hold.on_lull();
                lulls += 1;
                assert!(!hold.waits(Duration::ZERO), "a lull releases");
                hold.on_sent();
                batches.push(held);
                (free, held) = (held, 0);
            }
            free -= 1;
            held += 1;
            hold.add(bytes, Duration::ZERO);
            if !hold.waits(Duration::ZERO) {
                hold.on_sent();
                batches.push(held);
                (free, held) = (free + held, 0);
            } else {
                hold.arm();
            }
        }
        (batches, lulls)
    }

    #[test]
    fn one_at_a_time_is_answered_at_once() {
        let (batches, lulls) = drive(&mut Hold::new(), 1, 10_000, 4096);
        assert!(batches.iter().all(|batch| *batch == 1));
        assert!(lulls < 60, "{lulls} answers were held in vain");
    }

    #[test]
    fn a_deep_queue_is_answered_by_the_dozen() {
        let (batches, lulls) = drive(&mut Hold::new(), 32, 10_000, 4096);
        assert_eq!(lulls, 0, "the initiator never waits");
        assert_eq!(batches[100..].iter().min(), Some(&HELD_MAX));
    }

    #[test]
    fn no_more_is_held_than_the_initiator_can_spare() {
        for depth in 2..16 {
            let (batches, lulls) = drive(&mut Hold::new(), depth, 10_000, 512);
            let answers = batches.iter().sum::<u32>();
            assert!(batches.iter().all(|batch| *batch <= depth));
            assert!(lulls * depth <= 2 * answers, "depth {depth}: {lulls} lulls for {answers} answers");
        }
    }

    #[test]
    fn much_data_and_old_answers_do_not_wait() {
        let mut hold = Hold { limit: HELD_MAX, ..Hold::new() };
        hold.add(HELD_BYTES_MAX + 1, Duration::ZERO);
        assert!(!hold.waits(Duration::ZERO));
        hold.on_sent();
        hold.add(0, Duration::ZERO);
        assert!(hold.waits(HELD_TIME_MAX / 2));
        assert!(!hold.waits(HELD_TIME_MAX));
    }
}
