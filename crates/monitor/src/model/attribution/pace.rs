//! Whose clock the next command follows: the answer to an earlier one, or the work of the command before.
//!
//! A program that thinks after an answer sends its next command a constant time after it: if the answer is late by some
//! time, so is the command. A program that is busy with sending does not notice when the answer came. The slope of the
//! one over the other tells: near 1 for thinking, near 0 for computing.

/// Pairs before the slope is used.
const PAIRS_MIN: u32 = 24;
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
    /// Deviation from the mean before; `None` for an outlier.
    fn add(&mut self, x: f64) -> Option<f64> {
        self.count = self.count.saturating_add(1);
        let weight = NEW.max(1.0 / f64::from(self.count));
        let off = x - self.value;
        let is_outlier = self.count > 8 && off.abs() > OUTLIER * self.deviation;
        let limited = if is_outlier { off.signum() * OUTLIER * self.deviation } else { off };
        self.value += weight * limited;
        self.deviation += weight * (limited.abs() - self.deviation);
        (!is_outlier && self.count > 8).then_some(off)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    command_ns: Option<u64>,
    answer_ns: Option<u64>,
    answers: Mean,
    commands: Mean,
    products: f64,
    squares: f64,
    pairs: u32,
}

impl Pace {
    /// An answer made room for another command.
    pub(super) fn on_answer(&mut self, at_ns: u64) {
        self.answer_ns = Some(at_ns);
    }

    /// A command was sent (reads: arrived) after `idle_ns` in which the initiator could have sent it.
    pub(super) fn on_command(&mut self, at_ns: u64, idle_ns: u64) {
        if let (Some(command), Some(answer)) = (self.command_ns, self.answer_ns)
            && idle_ns > 0
            && answer >= command
            && at_ns >= answer
        {
            let x = self.answers.add((answer - command) as f64);
            let y = self.commands.add((at_ns - command) as f64);
            if let (Some(x), Some(y)) = (x, y) {
                self.products += x * y;
                self.squares += x * x;
                self.pairs += 1;
            }
        }
        self.command_ns = Some(at_ns);
    }

    /// `None` with too few pairs, or when answers never varied.
    pub(super) fn slope(&self) -> Option<f64> {
        (self.pairs >= PAIRS_MIN && self.squares > 0.0).then(|| self.products / self.squares)
    }
}
