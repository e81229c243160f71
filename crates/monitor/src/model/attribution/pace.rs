//! Whose clock the next command follows: the answer to an earlier one, or the work of the command before.
//!
//! A program that thinks after an answer sends its next command a constant time after it. A program that is busy with
//! sending does not notice when the answer came: its next command is a constant time after its last data. Which of the
//! two times varies less tells.

/// Commands before the times are compared.
const COMMANDS_MIN: u32 = 16;
/// Deviations beyond this many times the usual one are left out.
const OUTLIER: f64 = 4.0;
/// Weight of the newest value in the running means.
const NEW: f64 = 1.0 / 16.0;

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    value: f64,
    deviation: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, x: f64) {
        self.count = self.count.saturating_add(1);
        let weight = NEW.max(1.0 / f64::from(self.count));
        let off = x - self.value;
        let is_outlier = self.count > 8 && off.abs() > OUTLIER * self.deviation;
        let limited = if is_outlier { off.signum() * OUTLIER * self.deviation } else { off };
        self.value += weight * limited;
        self.deviation += weight * (limited.abs() - self.deviation);
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    answer_ns: Option<u64>,
    since_data: Mean,
    since_answer: Mean,
    /// Pauses before commands, nanoseconds: in which an answer came, and in which none did.
    answered_ns: u64,
    unanswered_ns: u64,
}

impl Pace {
    /// An answer made room for another command.
    pub(super) fn on_answer(&mut self, at_ns: u64) {
        self.answer_ns = Some(at_ns);
    }

    /// A command was sent; the data before it was sent at `stopped_ns`, and the initiator could have sent the command
    /// `idle_ns` sooner.
    pub(super) fn on_command(&mut self, at_ns: u64, stopped_ns: u64, idle_ns: u64) {
        let Some(answer) = self.answer_ns else { return };
        if idle_ns == 0 || at_ns < answer {
            return;
        }
        if answer < stopped_ns {
            self.unanswered_ns = self.unanswered_ns.saturating_add(idle_ns);
            return;
        }
        self.answered_ns = self.answered_ns.saturating_add(idle_ns);
        self.since_data.add((at_ns - stopped_ns) as f64);
        self.since_answer.add((at_ns - answer) as f64);
    }

    /// Whether most of the pauses end without an answer: the program did not wait for one, so that it was busy.
    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered_ns > self.answered_ns
    }

    /// How much the time since the answer varies, as a part of how much the time since the last data does: small for
    /// a program that thinks, 1 or more for one that is busy. `None` with too few commands.
    pub(super) fn ratio(&self) -> Option<f64> {
        (self.since_data.count >= COMMANDS_MIN && self.since_data.deviation > 0.0)
            .then(|| self.since_answer.deviation / self.since_data.deviation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_waits_for_no_answer_is_busy() {
        // The answer comes before or after the next command, milliseconds after the data.
        for (answer, is_busy) in [(10, false), (30, true)] {
            let mut pace = Pace::default();
            pace.on_answer(1);
            for turn in 1..10u64 {
                let stopped = turn * 20_000_000;
                if !is_busy {
                    pace.on_answer(stopped + answer * 1_000_000);
                }
                pace.on_command(stopped + 19_000_000, stopped, 5_000_000);
            }
            assert_eq!(pace.is_unanswered(), is_busy);
        }
    }

    #[test]
    fn the_time_that_varies_less_tells_thinking_from_computing() {
        const US: u64 = 1_000;
        // (answer after the data, command after the data), both in microseconds, of a varying round trip.
        type Program = fn(u64) -> u64;
        let table: [(Program, f64, f64); 2] =
            [(|answer| answer + 50_000, 0.0, 0.1), (|_| 52_000, 2.0, f64::MAX)];
        for (command, least, most) in table {
            let mut pace = Pace::default();
            assert_eq!(pace.ratio(), None);
            for index in 0..100 {
                let (stopped, answer) = (index * 100_000, 10_000 + index * 7919 % 1000);
                pace.on_answer((stopped + answer) * US);
                let exact = command(answer) + index % 3;
                pace.on_command((stopped + exact) * US, stopped * US, 1);
            }
            let ratio = pace.ratio().unwrap();
            assert!((least..most).contains(&ratio), "{ratio}");
        }
    }
}
