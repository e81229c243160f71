//! The limits that a verdict can name.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// What holds the data sender, or the initiator's next command, back at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The initiator has write data but no R2T for it, and the wait is no longer than a round trip.
    R2t,
    /// All commands that the initiator keeps outstanding are on their way; a deeper queue would fill the wait.
    QueueDepth,
    /// The sender's socket buffer is full of unacknowledged bytes, below the windows.
    SendBuffer,
    /// The receiver's advertised window is full.
    ReceiveWindow,
    /// The congestion window is full, without a loss that explains it: growing, clamped or after idleness.
    Congestion,
    /// The congestion window is small because of losses, or a loss is being repaired.
    Loss,
    /// A short last segment waits for the acknowledgement of the one before, which the receiver delays.
    NagleDelayedAck,
    /// The sender's own queueing discipline or network card drops packets.
    LocalDevice,
    /// The target takes longer than a round trip to answer or to send data or R2Ts.
    Target,
    /// Sealing or opening bytes.
    Cipher,
    /// The sending or receiving process does not get or does not have the processor time.
    Cpu,
    /// The initiator has no command outstanding, or fewer than it keeps at other times.
    ThinkTime,
    /// Bytes leave at the rate of the narrowest link; nothing is to be gained but by a faster one.
    LineRate,
    /// Time that no rule explains.
    Unknown,
}

impl Cause {
    pub const ALL: [Self; 14] = [
        Self::R2t,
        Self::QueueDepth,
        Self::SendBuffer,
        Self::ReceiveWindow,
        Self::Congestion,
        Self::Loss,
        Self::NagleDelayedAck,
        Self::LocalDevice,
        Self::Target,
        Self::Cipher,
        Self::Cpu,
        Self::ThinkTime,
        Self::LineRate,
        Self::Unknown,
    ];

    /// As in JSON: `send_buffer`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::R2t => "r2t",
            Self::QueueDepth => "queue_depth",
            Self::SendBuffer => "send_buffer",
            Self::ReceiveWindow => "receive_window",
            Self::Congestion => "congestion",
            Self::Loss => "loss",
            Self::NagleDelayedAck => "nagle_delayed_ack",
            Self::LocalDevice => "local_device",
            Self::Target => "target",
            Self::Cipher => "cipher",
            Self::Cpu => "cpu",
            Self::ThinkTime => "think_time",
            Self::LineRate => "line_rate",
            Self::Unknown => "unknown",
        }
    }
}

/// Seconds by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds([f64; Cause::ALL.len()]);

impl Seconds {
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Causes with time, the longest first.
    pub fn ranked(&self) -> Vec<(Cause, f64)> {
        let mut found: Vec<_> = Cause::ALL
            .into_iter()
            .map(|cause| (cause, self[cause]))
            .filter(|(_, time)| *time > 0.0)
            .collect();
        found.sort_by(|a, b| b.1.total_cmp(&a.1));
        found
    }
}

impl Index<Cause> for Seconds {
    type Output = f64;

    fn index(&self, cause: Cause) -> &f64 {
        &self.0[cause as usize]
    }
}

impl IndexMut<Cause> for Seconds {
    fn index_mut(&mut self, cause: Cause) -> &mut f64 {
        &mut self.0[cause as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_its_place_and_the_name_that_serde_gives_it() {
        for (index, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.name());
        }
    }
}
