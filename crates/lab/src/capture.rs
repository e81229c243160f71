//! What passes on the loopback between two ports, with the kernel's times.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::sys::{Captured, packet_socket, receive_packet};
use crate::{Attempted, LabError};

/// Packets kept of one capture.
const PACKETS_MAX: usize = 1 << 16;

/// A packet with payload, or a call that moved some.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Nanoseconds from some beginning.
    pub(crate) at_ns: u64,
    /// From the target to the initiator.
    pub(crate) is_data: bool,
    /// Bytes of payload.
    pub(crate) bytes: u32,
}

/// A capture that is going on.
pub(crate) struct Capture {
    /// By the system's clock, nanoseconds.
    stopped: Arc<OnceLock<u64>>,
    thread: JoinHandle<Result<Vec<Seen>, LabError>>,
}

impl Capture {
    /// Begins to look at what passes to and from `port`, the target's. Needs CAP_NET_RAW.
    pub(crate) fn start(port: u16) -> Result<Self, LabError> {
        let socket = packet_socket().attempted("capture packets of the loopback")?;
        let ended = Arc::new(OnceLock::new());
        let stopped = Arc::clone(&ended);
        let look = move || {
            let next = || receive_packet(&socket).attempted("capture packets of the loopback");
            look(port, &stopped, next)
        };
        let thread = std::thread::Builder::new().name("capture".to_owned()).spawn(look);
        Ok(Self { stopped: ended, thread: thread.attempted("capture packets of the loopback")? })
    }

    /// Ends it; what has passed so far, in order.
    pub(crate) fn finish(self) -> Result<Vec<Seen>, LabError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        self.stopped.set(now).expect("ended once");
        self.thread.join().expect("the capture does not panic")
    }
}

/// What has passed until `stopped`, however late this thread comes to it. `next` waits a while for a packet.
fn look(
    port: u16,
    stopped: &OnceLock<u64>,
    mut next: impl FnMut() -> Result<Option<Captured>, LabError>,
) -> Result<Vec<Seen>, LabError> {
    let mut seen = Vec::new();
    while seen.len() < PACKETS_MAX {
        // Before the packet is: none that has passed by then comes after one that is missing.
        let stopped = stopped.get().copied();
        match next()? {
            Some(packet) if stopped.is_some_and(|stopped| packet.at_ns > stopped) => break,
            Some(packet) => seen.extend(payload(&packet, port)),
            None if stopped.is_some() => break,
            None => {}
        }
    }
    Ok(seen)
}

/// TCP payload of a packet to or from `port`; nothing of bare acknowledgements. RFC 9293 section 3.1.
fn payload(packet: &Captured, port: u16) -> Option<Seen> {
    let ip = &packet.start;
    let header_bytes = usize::from(ip[0] & 0xf) * 4;
    if packet.is_outgoing || ip[0] >> 4 != 4 || ip[9] != libc::IPPROTO_TCP as u8 {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let tcp = ip.get(header_bytes..header_bytes + 20)?;
    let [from, to] = [0, 2].map(|at| u16::from_be_bytes([tcp[at], tcp[at + 1]]));
    let bytes = total.checked_sub(header_bytes + usize::from(tcp[12] >> 4) * 4)?;
    let is_ours = (from == port || to == port) && bytes > 0;
    is_ours.then_some(Seen { at_ns: packet.at_ns, is_data: from == port, bytes: bytes as u32 })
}

/// Distances of one-at-a-time reading, medians in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Gaps {
    /// From a packet of a block to its next.
    pub(crate) packet_us: Option<f64>,
    /// From the last packet of a block to the next request: the initiator opens it.
    pub(crate) opening_us: Option<f64>,
    /// Packets of a block.
    pub(crate) packets: Option<f64>,
}

impl Gaps {
    /// Of requests and data in order, one request at a time.
    pub(crate) fn of(seen: &[Seen]) -> Self {
        let (mut packet, mut opening, mut packets) = (Vec::new(), Vec::new(), Vec::new());
        let mut count = 0;
        for pair in seen.windows(2) {
            let gap = pair[1].at_ns.saturating_sub(pair[0].at_ns) as f64 / 1e3;
            match (pair[0].is_data, pair[1].is_data) {
                (false, true) => count = 1,
                (true, true) => {
                    packet.push(gap);
                    count += 1;
                }
                (true, false) => {
                    opening.push(gap);
                    packets.push(f64::from(count));
                }
                (false, false) => {}
            }
        }
        let median = |values: Vec<f64>| crate::stats::Spread::of(values).map(|spread| spread.median);
        Self { packet_us: median(packet), opening_us: median(opening), packets: median(packets) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(from: u16, to: u16, payload: u16) -> Captured {
        let mut start = [0; 96];
        (start[0], start[9]) = (0x45, 6);
        start[2..4].copy_from_slice(&(20 + 32 + payload).to_be_bytes());
        start[20..22].copy_from_slice(&from.to_be_bytes());
        start[22..24].copy_from_slice(&to.to_be_bytes());
        start[32] = 8 << 4;
        Captured { start, at_ns: 7, is_outgoing: false }
    }

    #[test]
    fn payload_of_our_port_is_seen() {
        assert_eq!(payload(&packet(3260, 9, 48), 3260), Some(Seen { at_ns: 7, is_data: true, bytes: 48 }));
        assert_eq!(payload(&packet(9, 3260, 48), 3260), Some(Seen { at_ns: 7, is_data: false, bytes: 48 }));
        assert_eq!(payload(&packet(9, 3260, 0), 3260), None);
        assert_eq!(payload(&packet(9, 10, 48), 3260), None);
        assert_eq!(payload(&Captured { is_outgoing: true, ..packet(9, 3260, 48) }, 3260), None);
        let mut broken = packet(9, 3260, 48);
        broken.start[0] = 0x4f;
        broken.start[60 + 12] = 0xf0;
        broken.start[3] = 1;
        assert_eq!(payload(&broken, 3260), None);
    }

    #[test]
    fn what_has_passed_is_seen_however_late() {
        let at = |at_ns| Some(Captured { at_ns, ..packet(3260, 9, 48) });
        for (packets, expected) in [
            // Others go on, so that there is never nothing.
            ([at(1), at(5), at(6)], vec![1, 5]),
            ([at(1), at(2), None], vec![1, 2]),
            ([None, at(1), at(2)], vec![]),
        ] {
            let mut packets = packets.into_iter();
            let next = || Ok(packets.next().expect("it ends before"));
            let seen = look(3260, &OnceLock::from(5), next).unwrap();
            assert_eq!(seen.iter().map(|seen| seen.at_ns).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn gaps_are_those_within_a_block_and_before_a_request() {
        let seen = |at_us: u64, is_data| Seen { at_ns: at_us * 1000, is_data, bytes: 1 };
        let cycle =
            |at: u64| [seen(at, false), seen(at + 10, true), seen(at + 13, true), seen(at + 16, true)];
        let all = [cycle(0), cycle(36), cycle(72)].concat();
        let gaps = Gaps::of(&all);
        assert_eq!(gaps, Gaps { packet_us: Some(3.0), opening_us: Some(20.0), packets: Some(3.0) });
        assert_eq!(Gaps::of(&[]), Gaps::default());
    }
}
