//! Evidence of a connection, the same for captures, samples of its socket, and both together.

use super::{Cause, Seconds};
use crate::event::{Side, Vantage};

/// Who observed the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Capture(Vantage),
    /// Samples of the socket at this end.
    Probe(Side),
    /// A capture, and samples of the socket at this end.
    Both(Vantage, Side),
    /// This program's own socket, commands and devices.
    Own(Side),
}

/// One connection over one period. Bytes and rates are of SCSI data in the direction that carried most of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Evidence {
    pub source: Source,
    /// The end that sent most data: the initiator of a load of writes.
    pub sender: Side,
    pub seconds: f64,
    pub data_bytes: u64,
    /// The period by what held the data back; sums to `seconds`.
    pub waits: Seconds,
    /// For each cause the seconds that are booked on another one in `waits` and that this one would explain as well.
    pub alternatives: Seconds,
    pub path: Path,
    pub caps: Caps,
    /// `None` if no PDU was visible.
    pub protocol: Option<Protocol>,
    /// Processor use of the observed end's process, where it is on this machine.
    pub cpu: Option<Cpu>,
}

impl Evidence {
    /// Adds the period after this one. Figures that are no sums are those of the longer time, or the latest.
    pub fn extend(&mut self, later: &Self) {
        if later.data_bytes > self.data_bytes {
            self.sender = later.sender;
        }
        self.seconds += later.seconds;
        self.data_bytes = self.data_bytes.saturating_add(later.data_bytes);
        for cause in Cause::ALL {
            self.waits[cause] += later.waits[cause];
            self.alternatives[cause] += later.alternatives[cause];
        }
        let (path, then) = (&mut self.path, later.path);
        path.rtt_s = [path.rtt_s, then.rtt_s].into_iter().flatten().reduce(f64::min);
        path.rtt_loaded_s = then.rtt_loaded_s.or(path.rtt_loaded_s);
        path.mss_bytes = then.mss_bytes.or(path.mss_bytes);
        path.line_bytes_per_s = then.line_bytes_per_s.or(path.line_bytes_per_s);
        path.burst_bytes_per_s = then.burst_bytes_per_s.or(path.burst_bytes_per_s);
        path.data_packets = path.data_packets.saturating_add(then.data_packets);
        path.retransmitted_packets = path.retransmitted_packets.saturating_add(then.retransmitted_packets);
        path.spurious_packets = path.spurious_packets.saturating_add(then.spurious_packets);
        path.timeouts = path.timeouts.saturating_add(then.timeouts);
        path.local_drops = match (path.local_drops, then.local_drops) {
            (Some(before), Some(now)) => Some(before.saturating_add(now)),
            (before, now) => before.or(now),
        };
        path.capture_lost_bytes = path.capture_lost_bytes.saturating_add(then.capture_lost_bytes);
        let (caps, then) = (&mut self.caps, later.caps);
        *caps = Caps {
            in_flight_max_bytes: caps.in_flight_max_bytes.max(then.in_flight_max_bytes),
            in_flight_stopped_bytes: then.in_flight_stopped_bytes.or(caps.in_flight_stopped_bytes),
            window_bytes: then.window_bytes.or(caps.window_bytes),
            congestion_window_bytes: then.congestion_window_bytes.or(caps.congestion_window_bytes),
            ssthresh_bytes: then.ssthresh_bytes.or(caps.ssthresh_bytes),
            send_buffer_bytes: then.send_buffer_bytes.or(caps.send_buffer_bytes),
        };
        (self.protocol, self.cpu) = (later.protocol.or(self.protocol), later.cpu.or(self.cpu));
    }
}

/// The network between the two ends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Path {
    /// Without queueing: the least seen.
    pub rtt_s: Option<f64>,
    /// While data flows: the median.
    pub rtt_loaded_s: Option<f64>,
    pub mss_bytes: Option<u32>,
    /// Payload rate of the narrowest link, from the spacing of acknowledgements within bursts.
    pub line_bytes_per_s: Option<f64>,
    /// Payload rate at which what was sent at once was acknowledged: what the path carries beyond the sender's own device.
    pub burst_bytes_per_s: Option<f64>,
    pub data_packets: u64,
    pub retransmitted_packets: u64,
    /// Retransmissions that the receiver did not need.
    pub spurious_packets: u64,
    pub timeouts: u64,
    /// Congestion reductions without loss or ECN echo: the sender's own queue dropped.
    pub local_drops: Option<u64>,
    /// What the capture lost; not the network's.
    pub capture_lost_bytes: u64,
}

/// Bounds of the bytes in flight, where visible.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Caps {
    /// Most bytes sent and not acknowledged, and the median at the moments in which the sender stopped.
    pub in_flight_max_bytes: Option<u64>,
    pub in_flight_stopped_bytes: Option<u64>,
    /// The receiver's window: the median while data flows.
    pub window_bytes: Option<u64>,
    pub congestion_window_bytes: Option<u64>,
    pub ssthresh_bytes: Option<u64>,
    /// The cap as the kernel counts it (`sk_sndbuf`, with overhead).
    pub send_buffer_bytes: Option<u64>,
}

/// How iSCSI used the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Protocol {
    pub commands: u64,
    /// Of these, the ones of which a part was not captured: when they were sent may be unknown.
    pub inferred: u64,
    /// Medians over commands that carry data.
    pub block_bytes: u64,
    /// Commands outstanding at the initiator: median when one is sent, and most.
    pub depth: u32,
    pub depth_max: u32,
    /// What MaxCmdSN allowed, the least.
    pub command_window: u32,
    /// Data sent with the command and before the first R2T.
    pub unsolicited_bytes: u64,
    /// Bytes that one R2T grants, the median; 0 without R2Ts.
    pub r2t_bytes: u64,
    /// R2Ts of one command outstanding at once, most.
    pub r2ts_outstanding: u32,
    /// Sequential waits for R2Ts in one command, the median.
    pub r2t_rounds: u32,
    /// The paper's three times in seconds, medians: first to last data packet, to the response, to the next command.
    pub ta_s: f64,
    pub tb_s: f64,
    pub tc_s: f64,
    /// What the target takes itself, beyond the round trip, the median in seconds.
    pub target_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cpu {
    /// Cores used by the busiest thread of the process, 0 to 1.
    pub busiest_thread: f64,
    /// Share of the period in which its threads were ready and did not run, or the control group throttled them.
    pub waiting: f64,
    /// Share of the period spent sealing and opening; `None` for other programs.
    pub cipher: Option<f64>,
}
