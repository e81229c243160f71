//! Round trips in a capture beside the initiator, counted by causes instead of by a clock: a packet of the target belongs to
//! the round trip of the latest packet that it acknowledges, and a packet of the initiator to the one after the latest that
//! it has heard of.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use monitor::capture::Reader;
use monitor::packet::{Flags, Packet};

/// Bytes that the initiator sent for the first time, by the number of round trips since its SYN.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rounds(pub(super) Vec<u64>);

/// Of the first connection to `port`.
pub(super) fn read(path: &Path, port: u16) -> Result<Rounds> {
    let mut reader = Reader::new(File::open(path)?).context("read the capture")?;
    let mut connection = None;
    while let Some(packet) = reader.next().context("read the capture")? {
        if connection.is_none() && packet.flags.has(Flags::SYN) && packet.destination.port() == port {
            connection = Some(Connection::new(&packet));
        }
        if let Some(connection) = &mut connection {
            connection.handle(&packet);
        }
    }
    Ok(Rounds(connection.context("no connection in the capture")?.sent))
}

/// Connections to `port` that were begun.
pub(super) fn connections(path: &Path, port: u16) -> Result<usize> {
    let mut reader = Reader::new(File::open(path)?).context("read the capture")?;
    let mut sources = BTreeSet::new();
    while let Some(packet) = reader.next().context("read the capture")? {
        if packet.flags.has(Flags::SYN) && packet.destination.port() == port {
            sources.insert(packet.source);
        }
    }
    Ok(sources.len())
}

struct Connection {
    initiator: SocketAddr,
    target: SocketAddr,
    /// Sequence number of the SYN.
    first: u32,
    /// End of what each round trip sent, as offsets from the SYN, in order.
    ends: Vec<u32>,
    /// Bytes of payload by round trip.
    sent: Vec<u64>,
    /// The latest round trip of which an answer arrived.
    heard: Option<usize>,
}

impl Connection {
    fn new(syn: &Packet<'_>) -> Self {
        let (initiator, target) = (syn.source, syn.destination);
        Self { initiator, target, first: syn.seq, ends: Vec::new(), sent: Vec::new(), heard: None }
    }

    fn handle(&mut self, packet: &Packet<'_>) {
        if (packet.source, packet.destination) == (self.initiator, self.target) {
            let flags = u32::from(packet.flags.has(Flags::SYN)) + u32::from(packet.flags.has(Flags::FIN));
            let end = packet.seq.wrapping_add(packet.payload_bytes + flags).wrapping_sub(self.first);
            let before = self.ends.last().copied().unwrap_or(0);
            if end > before {
                let round = self.heard.map_or(0, |heard| heard + 1);
                self.ends.resize(round + 1, end);
                self.ends[round] = end;
                self.sent.resize(round + 1, 0);
                self.sent[round] += u64::from(packet.payload_bytes.min(end - before));
            }
        } else if (packet.source, packet.destination) == (self.target, self.initiator)
            && packet.flags.has(Flags::ACK)
        {
            let acknowledged = packet.ack.wrapping_sub(self.first);
            let answered = self.ends.iter().rposition(|end| *end <= acknowledged);
            // Part of a round trip's packets prove that it has begun to arrive.
            let begun = self.ends.iter().position(|end| *end > acknowledged);
            let reached =
                begun.filter(|round| acknowledged > round.checked_sub(1).map_or(0, |at| self.ends[at]));
            self.heard = self.heard.max(reached.or(answered));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether it is the initiator's, sequence number, payload, acknowledgement, and flags.
    type Sent = (bool, u32, u32, u32, u8);

    fn rounds(packets: &[Sent]) -> Vec<u64> {
        let ends: [SocketAddr; 2] = ["10.0.0.1:5".parse().unwrap(), "10.0.0.2:3260".parse().unwrap()];
        let mut connection: Option<Connection> = None;
        for (is_own, seq, payload_bytes, ack, flags) in packets.iter().copied() {
            let packet = Packet {
                at_ns: 0,
                frame: 0,
                interface: 0,
                source: ends[usize::from(!is_own)],
                destination: ends[usize::from(is_own)],
                seq,
                ack,
                flags: Flags(flags),
                window: 0,
                options: monitor::packet::Options::default(),
                ip_id: None,
                hops: 64,
                ecn: 0,
                payload_bytes,
                payload: &[],
            };
            connection.get_or_insert_with(|| Connection::new(&packet)).handle(&packet);
        }
        connection.unwrap().sent
    }

    #[test]
    fn packets_are_counted_by_what_they_answer() {
        const SYN: u8 = Flags::SYN;
        const ACK: u8 = Flags::ACK;
        // Sequence numbers wrap around.
        let start = u32::MAX - 20;
        let at = |offset: u32| start.wrapping_add(offset);
        let handshake = [(true, start, 0, 0, SYN), (false, 7, 0, at(1), SYN | ACK), (true, at(1), 0, 8, ACK)];
        let login = [(true, at(1), 100, 8, ACK), (false, 8, 0, at(101), ACK), (false, 8, 90, at(101), ACK)];
        // Two packets of one flight, one of them repeated; an answer to the first of them allows the next.
        let flight = [
            (true, at(101), 48, 98, ACK),
            (true, at(149), 48, 98, ACK),
            (true, at(101), 48, 98, ACK),
            (false, 98, 48, at(149), ACK),
            (true, at(197), 20_000, 98, ACK),
        ];
        let all = [&handshake[..], &login, &flight].concat();
        assert_eq!(rounds(&all), [0, 100, 96, 20_000]);
        // A late acknowledgement of an earlier round trip is no news.
        let late = [&all[..], &[(false, 98, 0, at(101), ACK), (true, at(20_197), 5, 98, ACK)]].concat();
        assert_eq!(rounds(&late), [0, 100, 96, 20_005]);
    }
}
