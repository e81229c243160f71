//! What a capture beside the initiator shows of the writes: packets, acknowledgements, PDUs, bursts.

use std::ops::Range;
use std::time::Duration;

use iscsi::wire::{Bhs, Opcode};
use monitor::event::{Event, Kind, Side};

/// Shortest pause between two bursts: a sender that shares its processor stops as long without a reason of the network.
const PAUSE_NS_MIN: u64 = 1_000_000;

/// A packet of the initiator with payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Packet {
    pub(super) at_ns: u64,
    /// Stream offset behind all that was sent until then.
    pub(super) end: u64,
    /// Packets of the maximum segment size until its end, from the start of the trace.
    pub(super) number: u64,
}

/// An acknowledgement by the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Acked {
    pub(super) at_ns: u64,
    pub(super) offset: u64,
    /// Without payload.
    pub(super) is_bare: bool,
    pub(super) window_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pdu {
    Write,
    DataOut,
    Response,
    R2t,
}

/// Packets without a pause longer than half a round trip between them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Burst {
    /// Indexes of its packets.
    pub(super) packets: Range<usize>,
    /// Packets on the wire.
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// From its first packet to the first of the next one.
    pub(super) interval_ns: Option<u64>,
    /// What arrived from the target since the burst before.
    pub(super) before: Before,
    pub(super) begins_with_write: bool,
    /// Bytes not acknowledged when it began.
    pub(super) in_flight_before: u64,
}

/// What arrived between two bursts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) bare_acks: u32,
    /// Packets with payload: responses, R2Ts.
    pub(super) others: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    pub(super) packets: Vec<Packet>,
    pub(super) acks: Vec<Acked>,
    pub(super) pdus: Vec<(u64, Pdu)>,
    /// Packets with payload of the target.
    answers: Vec<u64>,
    pub(super) repeated_bytes: u64,
}

impl Trace {
    pub(super) fn add(&mut self, event: &Event) {
        match (&event.kind, event.from) {
            (Kind::Segment(segment), Side::Initiator) => {
                self.repeated_bytes += u64::from(segment.repeated_bytes);
                let (before, sent) = self.packets.last().map_or((0, 0), |last| (last.number, last.end));
                let packets = u64::from(segment.bytes.div_ceil(u32::from(segment.mss.max(1))));
                let end = sent.max(segment.offset + u64::from(segment.bytes));
                self.packets.push(Packet { at_ns: event.at_ns, end, number: before + packets });
            }
            (Kind::Segment(_), Side::Target) => self.answers.push(event.at_ns),
            (Kind::Ack(ack), Side::Target) => self.acks.push(Acked {
                at_ns: event.at_ns,
                offset: ack.acknowledged,
                is_bare: ack.is_bare,
                window_bytes: ack.window_bytes,
            }),
            (Kind::PduStart(pdu), _) => {
                let kind = match Bhs(&pdu.header).opcode() {
                    Ok(Opcode::ScsiCommand) => Pdu::Write,
                    Ok(Opcode::DataOut) => Pdu::DataOut,
                    Ok(Opcode::ScsiResponse) => Pdu::Response,
                    Ok(Opcode::R2t) => Pdu::R2t,
                    _ => return,
                };
                self.pdus.push((event.at_ns, kind));
            }
            _ => {}
        }
    }

    /// The part within a period.
    pub(super) fn within(&self, period: Range<u64>) -> Self {
        Self {
            packets: self.packets.iter().filter(|packet| period.contains(&packet.at_ns)).copied().collect(),
            acks: self.acks.iter().filter(|ack| period.contains(&ack.at_ns)).copied().collect(),
            pdus: self.pdus.iter().filter(|(at_ns, _)| period.contains(at_ns)).copied().collect(),
            answers: self.answers.iter().filter(|at_ns| period.contains(at_ns)).copied().collect(),
            repeated_bytes: 0,
        }
    }

    pub(super) fn writes(&self) -> Vec<u64> {
        self.pdus.iter().filter(|(_, pdu)| *pdu == Pdu::Write).map(|(at_ns, _)| *at_ns).collect()
    }

    /// Bursts in order. A pause ends a burst if it is longer than half the round trip and 1 ms.
    pub(super) fn bursts(&self, rtt: Duration) -> Vec<Burst> {
        let pause_ns = (rtt.as_nanos() as u64 / 2).max(PAUSE_NS_MIN);
        let (mut bursts, mut start): (Vec<Burst>, usize) = (Vec::new(), 0);
        let writes = self.writes();
        for run in self.packets.chunk_by(|a, b| b.at_ns - a.at_ns <= pause_ns) {
            let packets = start..start + run.len();
            let (first, last) = (run[0], run[run.len() - 1]);
            let previous = start.checked_sub(1).map(|index| self.packets[index]);
            let from_ns = previous.map_or(0, |packet| packet.at_ns);
            let arrived = from_ns..first.at_ns + 1;
            let acks = self.acks.iter().filter(|ack| arrived.contains(&ack.at_ns));
            let (number, end) = previous.map_or((0, 0), |packet| (packet.number, packet.end));
            let acknowledged = self
                .acks
                .iter()
                .take_while(|ack| ack.at_ns <= first.at_ns)
                .last()
                .map_or(0, |ack| ack.offset);
            if let Some(last) = bursts.last_mut() {
                last.interval_ns = Some(first.at_ns - self.packets[last.packets.start].at_ns);
            }
            bursts.push(Burst {
                packets,
                count: last.number - number,
                bytes: last.end - end,
                interval_ns: None,
                before: Before {
                    bare_acks: acks.filter(|ack| ack.is_bare).count() as u32,
                    others: self.answers.iter().filter(|at_ns| arrived.contains(at_ns)).count() as u32,
                },
                begins_with_write: writes.binary_search(&first.at_ns).is_ok(),
                in_flight_before: end.saturating_sub(acknowledged),
            });
            start += run.len();
        }
        bursts
    }

    /// Most bytes sent and not acknowledged.
    pub(super) fn in_flight_max(&self) -> u64 {
        let (mut acks, mut acknowledged, mut most) = (self.acks.iter().peekable(), None, 0);
        for packet in &self.packets {
            while let Some(ack) = acks.next_if(|ack| ack.at_ns <= packet.at_ns) {
                acknowledged = acknowledged.max(Some(ack.offset));
            }
            most = most.max(acknowledged.map_or(0, |offset| packet.end.saturating_sub(offset)));
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use monitor::event::{Ack, PduStart, Segment};

    use super::*;

    const MS: u64 = 1_000_000;

    fn event(at_ms: u64, from: Side, kind: Kind) -> Event {
        Event { at_ns: at_ms * MS, frame: 1, from, kind }
    }

    fn segment(offset: u64) -> Kind {
        Kind::Segment(Segment { offset, bytes: 2000, mss: 1000, ..Segment::default() })
    }

    fn ack(acknowledged: u64, is_bare: bool) -> Kind {
        Kind::Ack(Ack { acknowledged, window_bytes: Some(1 << 20), is_bare, ..Ack::default() })
    }

    fn pdu(opcode: u8) -> Kind {
        let mut header = [0; 48];
        header[0] = opcode;
        Kind::PduStart(PduStart { offset: 0, bytes: 48, header })
    }

    #[test]
    fn bursts_are_separated_by_pauses_and_know_what_came_before() {
        let mut trace = Trace::default();
        for event in [
            event(0, Side::Initiator, segment(0)),
            event(0, Side::Initiator, pdu(0x01)),
            event(1, Side::Initiator, segment(2000)),
            event(20, Side::Target, ack(2000, true)),
            event(21, Side::Initiator, segment(4000)),
            event(21, Side::Initiator, pdu(0x05)),
            event(40, Side::Target, ack(4000, true)),
            event(41, Side::Target, ack(6000, false)),
            event(41, Side::Target, segment(0)),
            event(42, Side::Initiator, segment(6000)),
            event(42, Side::Initiator, pdu(0x01)),
            // Sent again after a pause: a burst without new bytes.
            event(80, Side::Initiator, segment(6000)),
        ] {
            trace.add(&event);
        }
        let bursts = trace.bursts(Duration::from_millis(20));
        let seen: Vec<_> = bursts
            .iter()
            .map(|burst| (burst.count, burst.bytes, burst.interval_ns, burst.before, burst.begins_with_write))
            .collect();
        let before = |bare_acks, others| Before { bare_acks, others };
        assert_eq!(
            seen,
            [
                (4, 4000, Some(21 * MS), before(0, 0), true),
                (2, 2000, Some(21 * MS), before(1, 0), false),
                (2, 2000, Some(38 * MS), before(1, 1), true),
                (2, 0, None, before(0, 0), false),
            ]
        );
        let in_flight: Vec<_> = bursts.iter().map(|burst| burst.in_flight_before).collect();
        assert_eq!(in_flight, [0, 2000, 0, 2000]);
        assert_eq!(trace.in_flight_max(), 4000);
        assert_eq!(trace.within(0..21 * MS).packets.len(), 2);
    }
}
