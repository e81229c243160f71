//! Captures TCP packets of a port on the loopback interface, with the kernel's timestamps.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::sys::{Captured, packet_socket, receive_packet};
use crate::{Attempted, LabError};

const PACKETS_MAX: usize = 1 << 16;

/// A packet with payload, or a call that moved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Transfer {
    /// Nanoseconds from an arbitrary origin.
    pub(crate) at_ns: u64,
    /// Whether the direction is from the target to the initiator.
    pub(crate) is_data: bool,
    pub(crate) bytes: u32,
}

/// A running capture; [`Capture::finish`] ends it.
pub(crate) struct Capture {
    /// Time of the end by the system's clock, nanoseconds.
    stopped: Arc<OnceLock<u64>>,
    thread: JoinHandle<Result<Vec<Transfer>, LabError>>,
}

impl Capture {
    /// Starts to capture packets from and to `port`, the target's. Requires CAP_NET_RAW.
    pub(crate) fn start(port: u16) -> Result<Self, LabError> {
        let doing = "capture packets of the loopback";
        let socket = packet_socket().attempted(doing)?;
        let ended = Arc::new(OnceLock::new());
        let stopped = Arc::clone(&ended);
        let collect = move || {
            let next = || receive_packet(&socket).attempted(doing);
            collect(port, &stopped, next)
        };
        let thread = std::thread::Builder::new().name("capture".to_owned()).spawn(collect);
        Ok(Self { stopped: ended, thread: thread.attempted(doing)? })
    }

    /// Ends the capture; returns the packets until now, in order.
    pub(crate) fn finish(self) -> Result<Vec<Transfer>, LabError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        self.stopped.set(now).expect("ended once");
        self.thread.join().expect("the capture does not panic")
    }
}

/// Collects the packets sent until `stopped`, even if this thread reads them late. `next` waits 5 ms for a packet.
fn collect(
    port: u16,
    stopped: &OnceLock<u64>,
    mut next: impl FnMut() -> Result<Option<Captured>, LabError>,
) -> Result<Vec<Transfer>, LabError> {
    let mut transfers = Vec::new();
    while transfers.len() < PACKETS_MAX {
        // Read before `next`: if `next` then returns no packet, none sent before that time is left.
        let stopped = stopped.get().copied();
        match next()? {
            Some(packet) if stopped.is_some_and(|stopped| packet.at_ns > stopped) => break,
            Some(packet) => transfers.extend(payload(&packet, port)),
            None if stopped.is_some() => break,
            None => {}
        }
    }
    Ok(transfers)
}

/// TCP payload of a packet from or to `port`; `None` for bare acknowledgements. RFC 9293 section 3.1.
fn payload(packet: &Captured, port: u16) -> Option<Transfer> {
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
    is_ours.then_some(Transfer { at_ns: packet.at_ns, is_data: from == port, bytes: bytes as u32 })
}

/// Time between packets at depth 1, medians in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Gaps {
    /// Between successive packets of a block.
    pub(crate) packet_us: Option<f64>,
    /// Between the last packet of a block and the next request, while the initiator opens the block.
    pub(crate) opening_us: Option<f64>,
    pub(crate) packets: Option<f64>,
}

impl Gaps {
    /// Of captured requests and data in order, at depth 1.
    pub(crate) fn of(transfers: &[Transfer]) -> Self {
        let (mut packet, mut opening, mut packets) = (Vec::new(), Vec::new(), Vec::new());
        let mut count = 0;
        for pair in transfers.windows(2) {
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
        let seen = |is_data| Some(Transfer { at_ns: 7, is_data, bytes: 48 });
        assert_eq!(payload(&packet(3260, 9, 48), 3260), seen(true));
        assert_eq!(payload(&packet(9, 3260, 48), 3260), seen(false));
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
            // Further packets follow, so that `next` always returns one.
            ([at(1), at(5), at(6)], vec![1, 5]),
            ([at(1), at(2), None], vec![1, 2]),
            ([None, at(1), at(2)], vec![]),
        ] {
            let mut packets = packets.into_iter();
            let next = || Ok(packets.next().expect("it ends before"));
            let transfers = collect(3260, &OnceLock::from(5), next).unwrap();
            assert_eq!(transfers.iter().map(|one| one.at_ns).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn gaps_are_those_within_a_block_and_before_a_request() {
        let transfer = |at_us: u64, is_data| Transfer { at_ns: at_us * 1000, is_data, bytes: 1 };
        let cycle = |at: u64| {
            [transfer(at, false), transfer(at + 10, true), transfer(at + 13, true), transfer(at + 16, true)]
        };
        let all = [cycle(0), cycle(36), cycle(72)].concat();
        let gaps = Gaps::of(&all);
        assert_eq!(gaps, Gaps { packet_us: Some(3.0), opening_us: Some(20.0), packets: Some(3.0) });
        assert_eq!(Gaps::of(&[]), Gaps::default());
    }
}
