//! Frames to send: those of interfaces first, then answers that belong to no connection, then connections in turn.

use zerocopy::FromZeros;

use super::Engine;
use crate::iface::{Lookup, Route};
use crate::packet::{Flags, Mac, TcpHeader};
use crate::tcp::{ChainKind, Gathered, TimeWait, Tuple, timestamp};
use crate::{HEADER_BYTES, Record, SeqNumber, Submitted, Time, Transmit};

/// A segment without payload that belongs to no connection.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Reply {
    tuple: Tuple,
    seq: SeqNumber,
    ack: SeqNumber,
    flags: u8,
    window: u16,
    has_timestamps: bool,
    timestamps: [u32; 2],
}

impl Record for Reply {}

impl Reply {
    /// RFC 9293 §3.10.7.1: `<SEQ=SEG.ACK><CTL=RST>`, or without ACK `<SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>`.
    pub(super) fn refuse(tuple: &Tuple, tcp: &TcpHeader) -> Self {
        let base = Self { tuple: *tuple, ..Self::new_zeroed() };
        if tcp.flags.has(Flags::ACK) {
            Self { seq: tcp.ack, flags: Flags::RST.0, ..base }
        } else {
            let ack = tcp.seq + tcp.sequence_length();
            Self { ack, flags: (Flags::RST | Flags::ACK).0, ..base }
        }
    }

    /// The answer of TIME-WAIT.
    pub(super) fn acknowledge(it: &TimeWait, now: Time) -> Self {
        Self {
            tuple: it.tuple,
            seq: it.snd_nxt,
            ack: it.rcv_nxt,
            flags: Flags::ACK.0,
            window: it.window,
            has_timestamps: it.timestamps,
            timestamps: [timestamp(now).wrapping_add(it.timestamp_offset), it.recent],
        }
    }

    fn header(&self) -> TcpHeader {
        TcpHeader {
            source: self.tuple.local,
            destination: self.tuple.remote,
            seq: self.seq,
            ack: self.ack,
            flags: Flags(self.flags),
            window: self.window,
            timestamps: self.has_timestamps.then_some(self.timestamps.into()),
            ..TcpHeader::default()
        }
    }
}

impl Engine<'_> {
    /// The next frame to send, whose header is written into `header` behind `VNET_BYTES`. The caller has room for it at
    /// the driver of every interface.
    pub fn poll_transmit(&mut self, header: &mut [u8; HEADER_BYTES], now: Time) -> Option<Transmit> {
        loop {
            // First, and again after each that has found its neighbour unknown: a question has then been queued.
            let positions = self.pools.header.ports.map(|port| port.sent);
            if let Some(transmit) = self.iface.poll_transmit(header, &positions) {
                self.pools.header.ports[usize::from(transmit.interface)].sent += 1;
                return Some(transmit);
            }
            if let Some(reply) = self.next_reply() {
                match self.transmit_reply(&reply, header, now) {
                    None => continue,
                    transmit => return transmit,
                }
            }
            // One frame of each in turn: all connections that can send share the driver.
            let index = self.pools.header.sending.pop_front(self.connections, ChainKind::Sending)?;
            let transmit = self.transmit_connection(index, header, now);
            self.connections[index as usize].may_send |= transmit.is_some();
            self.settle(index);
            if transmit.is_some() {
                return transmit;
            }
        }
    }

    /// Queues an answer; it is lost if too many wait.
    pub(super) fn reply(&mut self, reply: Reply) {
        let header = &mut *self.pools.header;
        let room = self.replies.len() as u32;
        if header.replies < room {
            self.replies[((header.first_reply + header.replies) % room) as usize] = reply;
            header.replies += 1;
        }
    }

    fn next_reply(&mut self) -> Option<Reply> {
        let header = &mut *self.pools.header;
        header.replies = header.replies.checked_sub(1)?;
        let reply = self.replies[header.first_reply as usize];
        header.first_reply = (header.first_reply + 1) % self.replies.len() as u32;
        Some(reply)
    }

    /// An answer whose next hop is not known is not worth waiting for it.
    fn transmit_reply(
        &mut self,
        reply: &Reply,
        header: &mut [u8; HEADER_BYTES],
        now: Time,
    ) -> Option<Transmit> {
        let Tuple { local, remote } = reply.tuple;
        let route = self.iface.route(remote.address, Some(local.address)).ok()?;
        let Lookup::Known(mac) = self.iface.neighbour(&route, now) else { return None };
        Some(self.emit(header, &route, mac, &reply.header(), &Gathered::default()))
    }

    fn transmit_connection(
        &mut self,
        index: u32,
        header: &mut [u8; HEADER_BYTES],
        now: Time,
    ) -> Option<Transmit> {
        let connection = &mut self.connections[index as usize];
        connection.waits_for_neighbour = false;
        let next = connection.next_segment(&self.pools, now)?;
        let route = connection.route;
        let mac = match self.iface.neighbour(&route, now) {
            Lookup::Known(mac) => mac,
            Lookup::Asked => {
                connection.waits_for_neighbour = true;
                return None;
            }
            Lookup::Failed => {
                connection.on_neighbour_failed(&mut self.pools, now);
                return None;
            }
        };
        let position = self.pools.header.ports[usize::from(route.interface)].sent + 1;
        let (tcp, gathered, step) = connection.take_segment(&mut self.pools, &next, position, now);
        let mut transmit = self.emit(header, &route, mac, &tcp, &gathered);
        if gathered.length > step {
            transmit.segment_bytes = step as u16;
        }
        let connection = &self.connections[index as usize];
        let client = connection.client;
        if gathered.length > 0 {
            self.pools.clients[client as usize].sent[usize::from(route.interface)] = position;
        }
        transmit.submitted =
            gathered.ticket.map(|ticket| Submitted { client, connection: connection.id(index), ticket });
        Some(transmit)
    }

    fn emit(
        &mut self,
        header: &mut [u8; HEADER_BYTES],
        route: &Route,
        mac: Mac,
        tcp: &TcpHeader,
        gathered: &Gathered,
    ) -> Transmit {
        self.pools.header.ports[usize::from(route.interface)].sent += 1;
        let emitted = self.iface.emit_tcp(header, route, mac, tcp);
        Transmit {
            interface: route.interface,
            header_bytes: emitted.header_bytes,
            sources: gathered.sources,
            checksum_start: emitted.checksum_start,
            checksum_offset: emitted.checksum_offset,
            segment_bytes: 0,
            submitted: None,
        }
    }
}
