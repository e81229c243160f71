//! How a sender goes on after it stopped with data left: what tells a full send buffer from a full congestion window,
//! and both from a program that is slow.

use super::values::Values;

/// Share of the bytes in flight that has to be acknowledged before a program may write again. Linux wakes a writer when
/// a third of the buffer is free; a congestion window lets every acknowledgement out one for one.
pub(super) const BUFFER_STEP: f64 = 0.25;

/// Nanoseconds and acknowledged bytes by the way in which the sender went on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Released {
    pub(super) ns: u64,
    pub(super) bytes: u64,
}

impl Released {
    fn add(&mut self, ns: u64, bytes: u64) {
        self.ns = self.ns.saturating_add(ns);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A stop and what ended it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    /// Time in which the sender was not explained by anything else.
    pub(super) wait_ns: u64,
    pub(super) in_flight: u64,
    pub(super) freed: u64,
    /// Acknowledgements that arrived in it.
    pub(super) acks: u32,
    /// From the last acknowledgement to the next data.
    pub(super) reaction_ns: Option<u64>,
    pub(super) gap_ns: u64,
    /// With so many, the sender has left some of them unused.
    pub(super) acks_min: u32,
    /// The first of several acknowledgements certainly came after the stop, and let nothing out.
    pub(super) is_first_unused: bool,
    /// What was sent then is whole segments.
    pub(super) is_full: bool,
}

#[derive(Debug)]
pub(super) struct Stops {
    /// In steps of a third or so of what is in flight.
    pub(super) in_steps: Released,
    /// One for one.
    pub(super) one_by_one: Released,
    /// A single acknowledgement of much that was in flight.
    pub(super) unclear: Released,
    /// Of the unclear ones, those whose first acknowledgement was left unused.
    pub(super) unused: Released,
    /// Not after an acknowledgement.
    pub(super) own: Released,
    /// Of stops that are longer than the reaction time: how many an acknowledgement ended, and how many would by chance.
    ended_by_ack: f64,
    expected_by_chance: f64,
    count: f64,
    in_flight: Values,
    /// Times from an acknowledgement to what it released, nanoseconds.
    reactions: Values,
}

impl Stops {
    pub(super) fn new() -> Self {
        let none = Released::default();
        Self {
            in_steps: none,
            one_by_one: none,
            unclear: none,
            unused: none,
            own: none,
            ended_by_ack: 0.0,
            expected_by_chance: 0.0,
            count: 0.0,
            in_flight: Values::new(),
            reactions: Values::new(),
        }
    }

    /// `reaction_max_ns`: a sender that an acknowledgement permits to go on does so within it.
    pub(super) fn add(&mut self, stop: Stop, reaction_max_ns: u64) {
        let is_released = stop.reaction_ns.is_some_and(|ns| ns <= reaction_max_ns);
        if stop.gap_ns > 3 * reaction_max_ns {
            self.count += 1.0;
            self.ended_by_ack += f64::from(u8::from(is_released));
            let covered = f64::from(stop.acks) * reaction_max_ns as f64 / stop.gap_ns as f64;
            self.expected_by_chance += covered.min(1.0);
        }
        if !is_released {
            self.own.add(stop.wait_ns, stop.freed);
            return;
        }
        let weight = stop.freed / 1024 + 1;
        self.in_flight.add(stop.in_flight, weight);
        let step = stop.freed as f64 / stop.in_flight.max(1) as f64;
        // A congestion window leaves data behind in the buffer, so that segments are whole; a program that writes little
        // by little into a full buffer does not.
        let is_ignoring = stop.acks >= stop.acks_min;
        let class = match (step >= BUFFER_STEP, is_ignoring, stop.is_full) {
            (true, true, _) | (false, _, false) => &mut self.in_steps,
            (false, _, true) => &mut self.one_by_one,
            (true, false, _) => &mut self.unclear,
        };
        class.add(stop.wait_ns, stop.freed);
        if step >= BUFFER_STEP && !is_ignoring && stop.is_full && stop.is_first_unused {
            self.unused.add(stop.wait_ns, stop.freed);
        }
        self.reactions.add(stop.reaction_ns.unwrap_or(0), 1);
    }

    /// Adds what was seen before.
    pub(super) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.in_steps, other.in_steps),
            (&mut self.one_by_one, other.one_by_one),
            (&mut self.unclear, other.unclear),
            (&mut self.unused, other.unused),
            (&mut self.own, other.own),
        ] {
            mine.add(theirs.ns, theirs.bytes);
        }
        self.ended_by_ack += other.ended_by_ack;
        self.expected_by_chance += other.expected_by_chance;
        self.count += other.count;
        self.in_flight.merge(&other.in_flight);
        self.reactions.merge(&other.reactions);
    }

    pub(super) fn in_flight_median(&self) -> Option<u64> {
        self.in_flight.quantile(0.5)
    }

    /// Bytes in flight at stops: the lower decile.
    pub(super) fn in_flight_least(&self) -> Option<u64> {
        self.in_flight.quantile(0.1)
    }

    /// How far the bytes in flight at stops spread: their upper to their lower decile.
    pub(super) fn in_flight_spread(&self) -> f64 {
        let (low, high) = (self.in_flight.quantile(0.1), self.in_flight.quantile(0.9));
        high.unwrap_or(1) as f64 / low.unwrap_or(1).max(1) as f64
    }

    /// Share of the long stops that acknowledgements ended, without those that chance explains.
    pub(super) fn share_ended_by_ack(&self) -> f64 {
        let possible = self.count - self.expected_by_chance;
        if self.count == 0.0 || possible < 0.25 * self.count {
            return 1.0;
        }
        ((self.ended_by_ack - self.expected_by_chance) / possible).clamp(0.0, 1.0)
    }

    /// Median time from an acknowledgement to what it released, nanoseconds.
    pub(super) fn reaction_ns(&self) -> u64 {
        self.reactions.quantile(0.5).unwrap_or(0)
    }

    pub(super) fn released(&self) -> Released {
        let all = [self.in_steps, self.one_by_one, self.unclear];
        let sum = |of: fn(&Released) -> u64| all.iter().map(of).fold(0, u64::saturating_add);
        Released { ns: sum(|part| part.ns), bytes: sum(|part| part.bytes) }
    }
}
