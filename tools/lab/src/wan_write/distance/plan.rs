//! The copies that are measured, their round trips and sizes.

use std::time::Duration;

use super::super::peers::Tuning;
use super::super::plan::{Buffers, RATE};
use crate::Options;

const RTTS_MS: [u64; 9] = [0, 2, 5, 10, 20, 32, 50, 100, 200];
const RTTS_QUICK_MS: [u64; 3] = [0, 50, 200];
const BYTES: u64 = 1 << 30;
const BYTES_QUICK: u64 = 256 << 20;
const SMALL_BYTES: u64 = 64 << 10;
const REPS: usize = 3;
/// Time that a copy by a peer may take: peers that are slow copy less.
const PEER_TIME: Duration = Duration::from_secs(10);
const PEER_TIME_QUICK: Duration = Duration::from_millis(2500);
/// Bytes of a request of `qemu-img convert`, and of an R2T of libiscsi.
const REQUEST_BYTES: u64 = 2 << 20;
const R2T_BYTES: u64 = 256 << 10;
/// Bytes in flight of a connection whose send buffer has its usual limit of 4 MiB.
const SENT_BYTES: f64 = 2.8e6;
/// Requests of `qemu-img convert` in flight without `-m`.
const REQUESTS: u64 = 8;
pub(super) const REQUESTS_TUNED: u64 = 16;
/// Congestion control of rows that name none.
pub(super) const CUBIC: &str = "cubic";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Write,
    Read,
}

impl Way {
    const BOTH: [Self; 2] = [Self::Write, Self::Read];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }

    /// The side of the path from which the data comes; side 0 has the initiator.
    pub(super) fn data_side(self) -> usize {
        match self {
            Self::Write => 0,
            Self::Read => 1,
        }
    }
}

/// How `hikyaku copy` and `hikyaku serve` are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    Plain,
    Sealed,
    /// A source of zeroes.
    Zeroes,
    /// Both ends without root's rights.
    Unprivileged,
    /// Both ends without io_uring.
    Portable,
    /// 64 KiB.
    Small,
}

impl Ours {
    fn remark(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Sealed => ", sealed",
            Self::Zeroes => ", zeroes",
            Self::Unprivileged => ", uid 65534",
            Self::Portable => ", without io_uring",
            Self::Small => ", 64 KiB",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// From file to file, without a network.
    Local,
    /// A plain socket.
    Socket,
    Ours(Ours),
    /// `qemu-img convert` from or to tgt.
    Peers(Tuning),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) who: Who,
    pub(super) way: Way,
    pub(super) buffers: Buffers,
    pub(super) congestion: String,
}

impl Row {
    fn new(who: Who, way: Way) -> Self {
        let buffers = if who == Who::Socket { Buffers::Ample } else { Buffers::Stock };
        Self { who, way, buffers, congestion: CUBIC.to_owned() }
    }

    /// The row that all others of one direction are compared with.
    pub(super) fn reference(way: Way) -> Self {
        Self::new(Who::Socket, way)
    }

    pub(super) fn all(is_quick: bool) -> Vec<Self> {
        let both = |who: Who| Way::BOTH.map(|way| Self::new(who, way));
        let ours = |how: Ours| both(Who::Ours(how));
        let peers = [Tuning::Default, Tuning::Tuned].map(|tuning| both(Who::Peers(tuning)));
        if is_quick {
            let reference = [Self::reference(Way::Write)];
            return [&reference[..], &ours(Ours::Plain), &peers.concat()].concat();
        }
        let mut rows = vec![Self::new(Who::Local, Way::Write)];
        rows.extend(both(Who::Socket));
        rows.push(Self { buffers: Buffers::Stock, ..Self::reference(Way::Write) });
        for how in [Ours::Plain, Ours::Sealed, Ours::Zeroes, Ours::Unprivileged, Ours::Portable] {
            rows.extend(ours(how));
        }
        rows.push(Self::new(Who::Ours(Ours::Small), Way::Write));
        rows.extend(peers.concat());
        for congestion in congestion_controls() {
            for who in [Who::Socket, Who::Ours(Ours::Plain)] {
                rows.push(Self { congestion: congestion.clone(), ..Self::new(who, Way::Write) });
            }
        }
        rows
    }

    pub(super) fn name(&self) -> String {
        let way = self.way.name();
        let name = match self.who {
            Who::Local => return "local file in memory".to_owned(),
            Who::Socket => format!("raw socket, {way}"),
            Who::Ours(how) => format!("hikyaku{}, {way}", how.remark()),
            Who::Peers(Tuning::Default) => format!("tgt + libiscsi, {way}"),
            Who::Peers(_) => format!("tgt + libiscsi, tuned, {way}"),
        };
        let buffers = if *self == (Self { buffers: Buffers::Stock, ..Self::reference(self.way) }) {
            ", stock buffers"
        } else {
            ""
        };
        let congestion =
            if self.congestion == CUBIC { String::new() } else { format!(", {}", self.congestion) };
        format!("{name}{buffers}{congestion}")
    }

    /// How a row was obtained.
    pub(super) fn obtained(&self) -> &'static str {
        match self.who {
            Who::Local => "hikyaku copy from file to file in memory; no network",
            Who::Socket => {
                "a process that connects, sends or receives all bytes by blocking calls of 256 KiB, and ends when they have arrived"
            }
            Who::Ours(Ours::Plain | Ours::Small) => {
                "hikyaku copy between a file in memory and hikyaku serve over one"
            }
            Who::Ours(Ours::Sealed) => "the same, both ends with --seal require",
            Who::Ours(Ours::Zeroes) => "the same, from a file of written zeroes",
            Who::Ours(Ours::Unprivileged) => "the same, both ends as uid 65534 without capabilities",
            Who::Ours(Ours::Portable) => "the same, both ends with HIKYAKU_IO=portable",
            Who::Peers(Tuning::Default) => {
                "qemu-img convert -n (libiscsi) between a file in memory and tgt over one, as installed"
            }
            Who::Peers(_) => {
                "qemu-img convert -n -m 16 -W (libiscsi) and tgt with bursts of 16 MiB, segments of 256 KiB, 16 R2Ts, InitialR2T=No"
            }
        }
    }
}

/// Those of the kernel besides the one that all rows use.
fn congestion_controls() -> Vec<String> {
    let names = std::fs::read_to_string(AVAILABLE).unwrap_or_default();
    names.split_whitespace().filter(|name| *name != CUBIC).map(str::to_owned).collect()
}

#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) rtts: Vec<Duration>,
    /// Bytes of a whole copy.
    pub(super) bytes: u64,
    pub(super) reps: usize,
    peer_time: Duration,
}

impl Sizes {
    pub(super) fn new(options: &Options) -> Self {
        let (rtts, bytes, reps, peer_time) = match options.quick {
            true => (&RTTS_QUICK_MS[..], BYTES_QUICK, 1, PEER_TIME_QUICK),
            false => (&RTTS_MS[..], BYTES, REPS, PEER_TIME),
        };
        let rtts = rtts.iter().map(|ms| Duration::from_millis(*ms)).collect();
        Self { rtts, bytes, reps: options.reps.unwrap_or(reps), peer_time }
    }

    /// Bytes that a row copies at a round trip: fewer than the whole where a peer would take too long, a multiple of its
    /// requests.
    pub(super) fn bytes(&self, row: &Row, rtt: Duration) -> u64 {
        let requests = match row.who {
            Who::Ours(Ours::Small) => return SMALL_BYTES,
            Who::Peers(Tuning::Default) => REQUESTS,
            Who::Peers(_) => REQUESTS_TUNED,
            _ => return self.bytes,
        };
        // Each R2T of a write comes a round trip after the one before; without -W one write follows the other.
        let (in_flight, rounds) = match row.way {
            Way::Read => (requests, 1),
            Way::Write => (if requests == REQUESTS { 1 } else { requests }, REQUEST_BYTES / R2T_BYTES + 1),
        };
        let in_flight = in_flight * REQUEST_BYTES;
        let rtt = rtt.as_secs_f64();
        let waits = rtt * rounds as f64 + in_flight as f64 * 8.0 / RATE;
        let seconds = waits.max(rtt * in_flight as f64 / SENT_BYTES);
        let bytes = (self.peer_time.as_secs_f64() / seconds * in_flight as f64) as u64;
        bytes.next_multiple_of(REQUEST_BYTES).clamp(4 * REQUEST_BYTES, self.bytes)
    }
}

/// The name that `--row` selects: row and round trip.
pub(super) fn cell_name(row: &Row, rtt: Duration) -> String {
    let by = if row.who == Who::Socket { "a " } else { "" };
    format!("copy by {by}{}, RTT {} ms", row.name(), rtt.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::distinct;

    #[test]
    fn names_differ_and_slow_peers_copy_less() {
        for is_quick in [true, false] {
            let names: Vec<_> = Row::all(is_quick).iter().map(Row::name).collect();
            assert_eq!(distinct(names.clone()), names);
        }
        let sizes = Sizes::new(&Options { quick: true, ..Options::default() });
        let bytes = |who, way, ms| sizes.bytes(&Row::new(who, way), Duration::from_millis(ms)) >> 20;
        let (default, tuned) = (Who::Peers(Tuning::Default), Who::Peers(Tuning::Tuned));
        for (who, way, ms, mib) in [
            (Who::Socket, Way::Write, 200, 256),
            (Who::Ours(Ours::Sealed), Way::Read, 0, 256),
            (default, Way::Write, 0, 256),
            (default, Way::Write, 50, 12),
            (default, Way::Write, 200, 8),
            (default, Way::Read, 200, 34),
            (tuned, Way::Write, 200, 34),
        ] {
            assert_eq!(bytes(who, way, ms), mib, "{who:?} {way:?} {ms} ms");
        }
    }
}
