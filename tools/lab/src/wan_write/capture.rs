//! Reads the capture of a case: one whole connection from its SYN, beside the initiator, without losses by the capture.
//! The tracker of the crate `monitor` makes commands of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use iscsi::wire::{BHS_LENGTH, Bhs};
use monitor::capture::Reader;
use monitor::command::{Command, Tracker};
use monitor::event::{Ack, Distances, Event, Kind, Order, PduEnd, PduStart, Segment, Side};
use monitor::packet::{Flags, Packet};

use super::trace::Trace;
use crate::{Attempted, LabError};

/// The packets to and from `port`, the target's, and the commands in them. `is_iscsi` tells whether there are PDUs.
pub(super) fn read(
    path: &Path,
    port: u16,
    is_iscsi: bool,
    distances: Distances,
) -> Result<(Trace, Vec<Command>), LabError> {
    let doing = format!("read {}", path.display());
    let mut reader = Reader::new(File::open(path).attempted(&doing)?).attempted(&doing)?;
    let (mut trace, mut tracker, mut commands) = (Trace::default(), Tracker::new(), Vec::new());
    tracker.set_distances(distances);
    let mut ends = [End::default(), End::default()];
    while let Some(packet) = reader.next().attempted(&doing)? {
        let from = match (packet.source.port() == port, packet.destination.port() == port) {
            (false, true) => Side::Initiator,
            (true, false) => Side::Target,
            _ => continue,
        };
        let mut see = |kind| {
            let event = Event { at_ns: packet.at_ns, frame: packet.frame, from, kind };
            trace.add(&event);
            tracker.handle(&event);
            while let Some(command) = tracker.poll_command() {
                commands.push(command);
            }
        };
        let [own, peer] = match from {
            Side::Initiator => [0, 1],
            Side::Target => [1, 0],
        };
        if packet.flags.has(Flags::SYN) {
            ends[own].begin(&packet);
        } else {
            see(ends[own].acknowledgement(ends[peer].first, &packet));
            ends[own].payload(&packet, is_iscsi, &mut see);
        }
    }
    tracker.finish();
    commands.extend(std::iter::from_fn(|| tracker.poll_command()));
    Ok((trace, commands))
}

/// One direction of the stream. Offsets count from the byte behind its SYN; a connection has less than 4 GiB.
#[derive(Default)]
struct End {
    first: u32,
    mss: u16,
    window_scale: u8,
    /// Behind the last byte seen.
    next: u64,
    /// Bytes in which PDUs were found, and payloads beyond a gap.
    framed: u64,
    waiting: BTreeMap<u64, Vec<u8>>,
    /// The PDU that passes: its beginning, its header as far as it was seen, and its end once the header is whole.
    pdu: u64,
    header: Vec<u8>,
    pdu_end: Option<u64>,
}

impl End {
    fn begin(&mut self, packet: &Packet<'_>) {
        let mss = packet.options.mss.unwrap_or(536);
        // The option of timestamps takes 12 bytes of every segment.
        let timestamps = if packet.options.timestamps.is_some() { 12 } else { 0 };
        *self = Self {
            first: packet.seq.wrapping_add(1),
            mss: mss.saturating_sub(timestamps).max(1),
            window_scale: packet.options.window_scale.unwrap_or(0).min(14),
            ..Self::default()
        };
    }

    fn acknowledgement(&self, first_of_peer: u32, packet: &Packet<'_>) -> Kind {
        Kind::Ack(Ack {
            acknowledged: packet.ack.wrapping_sub(first_of_peer).into(),
            window_bytes: Some(u64::from(packet.window) << self.window_scale),
            congestion_echo: packet.flags.has(Flags::ECE),
            is_bare: packet.payload_bytes == 0,
            ..Ack::default()
        })
    }

    fn payload(&mut self, packet: &Packet<'_>, is_iscsi: bool, see: &mut impl FnMut(Kind)) {
        if packet.payload_bytes == 0 {
            return;
        }
        let offset = u64::from(packet.seq.wrapping_sub(self.first));
        let repeated = self.next.saturating_sub(offset).min(packet.payload_bytes.into());
        see(Kind::Segment(Segment {
            offset,
            bytes: packet.payload_bytes,
            repeated_bytes: repeated as u32,
            mss: self.mss,
            push: packet.flags.has(Flags::PSH),
            order: if repeated > 0 { Order::Again } else { Order::Next },
        }));
        self.next = self.next.max(offset + u64::from(packet.payload_bytes));
        if is_iscsi {
            // The bottleneck may drop packets before the tap: what follows them waits until they are sent again.
            self.waiting.insert(offset, packet.payload.to_vec());
        }
        while let Some((offset, bytes)) = self.waiting.first_key_value() {
            if *offset > self.framed {
                break;
            }
            let (offset, bytes) = (*offset, bytes.clone());
            self.waiting.remove(&offset);
            if let Some(new) = bytes.get((self.framed - offset) as usize..) {
                self.frame(self.framed, new, see);
                self.framed += new.len() as u64;
            }
        }
    }

    /// Finds PDUs in the next bytes of the stream. RFC 7143 section 11.2; without digests.
    fn frame(&mut self, mut at: u64, mut bytes: &[u8], see: &mut impl FnMut(Kind)) {
        while !bytes.is_empty() {
            let end = match self.pdu_end {
                Some(end) => end,
                None => {
                    if self.header.is_empty() {
                        self.pdu = at;
                    }
                    let count = bytes.len().min(BHS_LENGTH - self.header.len());
                    self.header.extend_from_slice(&bytes[..count]);
                    (at, bytes) = (at + count as u64, &bytes[count..]);
                    let Ok(header) = <[u8; BHS_LENGTH]>::try_from(&self.header[..]) else { return };
                    let bhs = Bhs(&header);
                    let length =
                        BHS_LENGTH + bhs.total_ahs_length() + bhs.data_segment_length_padded() as usize;
                    see(Kind::PduStart(PduStart { offset: self.pdu, bytes: length as u64, header }));
                    *self.pdu_end.insert(self.pdu + length as u64)
                }
            };
            let count = (end - at).min(bytes.len() as u64);
            (at, bytes) = (at + count, &bytes[count as usize..]);
            if at == end {
                see(Kind::PduEnd(PduEnd { offset: self.pdu }));
                self.header.clear();
                self.pdu_end = None;
            }
        }
    }
}
