//! The sending side of a connection: which memory of the client is to be sent or sent again, how much of it fits into the
//! next segment, and when the client gets it back.

use zerocopy::FromZeros;

use super::receive::BLOCKS;
use super::{Connection, Final, State};
use crate::packet::{Flags, TcpHeader};
use crate::pools::Pools;
use crate::{
    Ended, GATHER_MAX, InterfaceId, List, NONE, PayloadRef, Record, Refusal, SEGMENT_BYTES_MAX, SeqNumber,
    Source, Time,
};

/// Most bytes that wait to be sent or acknowledged: far from half of the space of sequence numbers.
pub(crate) const SEND_BYTES_MAX: u32 = 1 << 30;
/// Window probes are this far apart at most (RFC 9293 §3.8.6.1: exponentially increasing).
const PERSIST_US_MAX: u64 = 60_000_000;
/// The first one waits at least this long (RFC 9293 §3.8.6.2.1: 0.1 to 1 s).
const PERSIST_US_MIN: u64 = 200_000;

/// A range of memory of a client that was given to `send`.
#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Piece {
    payload: PayloadRef,
    ticket: u64,
    /// Position of the last frame that refers to the piece, 0 if none did.
    position: u64,
    /// Sequence number of its first byte.
    seq: SeqNumber,
    interface: InterfaceId,
    /// The last one of its ticket.
    is_last: bool,
}

impl Record for crate::Node<Piece> {}

impl Piece {
    fn end(&self) -> SeqNumber {
        self.seq + self.payload.length
    }
}

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Send {
    /// SND.UNA, SND.NXT
    pub(crate) una: SeqNumber,
    pub(crate) nxt: SeqNumber,
    /// Behind the last byte that the client gave; FIN's place.
    pub(crate) end: SeqNumber,
    /// SND.WND, already scaled, SND.WL1, SND.WL2, MAX.SND.WND
    pub(crate) wnd: u32,
    wl1: SeqNumber,
    wl2: SeqNumber,
    pub(crate) wnd_max: u32,
    /// Sequence numbers acknowledged behind our SYN, at most `u32::MAX`.
    acknowledged: u32,
    /// Snd.Wind.Shift
    pub(crate) shift: u8,
    /// FIN follows `end`.
    pub(crate) has_fin: bool,
    /// End of the last segment that was shorter than it could have been, if `has_small`.
    has_small: bool,
    small: SeqNumber,
    /// Payload bytes of a full segment (Eff.snd.MSS).
    pub(crate) mss: u32,
    pub(crate) pieces: List,
    /// The piece that holds `nxt`, and one from which the search for older bytes may begin.
    cursor: u32,
    resend: u32,
    /// Of the last `send`, and of the last piece that was released.
    pub(crate) ticket: u64,
    pub(crate) released: u64,
    pub(crate) has_ticket: bool,
    /// `released` has not been reported.
    pub(crate) has_released: bool,
    /// What the window allows may be sent although it is little: the persist timer ran out.
    overrides: bool,
    /// A segment without payload that the peer must answer is due.
    pub(crate) probe_due: bool,
    /// The window is closed: when to probe it next, and how many probes went unanswered.
    pub(crate) persist_at: Time,
    pub(crate) persist_count: u32,
    unanswered: u8,
    /// Pieces were freed since the engine settled.
    pub(crate) has_freed: bool,
}

/// The next segment of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seq: SeqNumber,
    /// Payload bytes, at most; the number of pieces may make it shorter.
    pub(crate) length: u32,
    pub(crate) fin: bool,
    pub(crate) kind: Kind,
    /// Payload bytes of a full segment of this frame.
    pub(crate) step: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    New,
    Again,
    /// No bytes and nothing to repeat: an ACK, or a probe.
    Bare,
}

/// The payload of a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) sources: [Option<Source>; GATHER_MAX],
    pub(crate) length: u32,
    /// Of the last `send` whose last byte lies in it.
    pub(crate) ticket: Option<u64>,
    last: u32,
}

impl Send {
    pub(crate) fn new(iss: SeqNumber) -> Self {
        Self {
            una: iss,
            nxt: iss,
            end: iss + 1,
            pieces: List::default(),
            cursor: NONE,
            resend: NONE,
            persist_at: Time::NEVER,
            ..Self::new_zeroed()
        }
    }

    /// Queues pieces of one `send`. Only what fits entirely is taken.
    pub(crate) fn push(
        &mut self,
        pools: &mut Pools<'_>,
        client: u32,
        ticket: u64,
        payloads: &[PayloadRef],
    ) -> Result<(), Refusal> {
        let bytes = payloads.iter().map(|payload| u64::from(payload.length)).sum::<u64>();
        let count = payloads.iter().filter(|payload| payload.length > 0).count() as u32;
        let goes_on = !self.has_ticket || ticket > self.ticket;
        if bytes == 0 || bytes > u64::from(SEND_BYTES_MAX) || !goes_on {
            return Err(Refusal::Invalid);
        }
        let queued = self.end.distance(self.una).cast_unsigned();
        if queued > SEND_BYTES_MAX - bytes as u32 || !pools.may_queue(client, self.pieces.length, count) {
            return Err(Refusal::Full);
        }
        let mut left = count;
        for &payload in payloads.iter().filter(|payload| payload.length > 0) {
            left -= 1;
            let piece = Piece { payload, ticket, seq: self.end, is_last: left == 0, ..Piece::new_zeroed() };
            let index = pools.pieces.push_back(&mut self.pieces, piece).expect("there is room: may_queue");
            if self.cursor == NONE {
                self.cursor = index;
            }
            self.end = self.end + payload.length;
        }
        pools.clients[client as usize].pieces += count;
        (self.ticket, self.has_ticket) = (ticket, true);
        Ok(())
    }

    /// Bytes and FIN that were never sent.
    pub(crate) fn unsent(&self) -> u32 {
        self.last().distance(self.nxt).cast_unsigned()
    }

    /// Behind all there is to send, FIN included.
    pub(crate) fn last(&self) -> SeqNumber {
        self.end + u32::from(self.has_fin)
    }

    pub(crate) fn is_fin_acknowledged(&self) -> bool {
        self.has_fin && self.una == self.end + 1
    }

    /// What the window has room for.
    pub(crate) fn usable(&self) -> u32 {
        (self.una + self.wnd).distance(self.nxt).max(0).cast_unsigned()
    }

    /// RFC 9293 §3.10.7.4, fifth: the window of a segment that is not older than the one it was last taken from.
    pub(crate) fn update_window(&mut self, seq: SeqNumber, ack: SeqNumber, wnd: u32) -> bool {
        if self.wl1.is_after(seq) || (self.wl1 == seq && self.wl2.is_after(ack)) {
            return false;
        }
        let has_changed = wnd != self.wnd;
        self.set_window(seq, ack, wnd);
        has_changed
    }

    pub(crate) fn set_window(&mut self, seq: SeqNumber, ack: SeqNumber, wnd: u32) {
        (self.wnd, self.wl1, self.wl2) = (wnd, seq, ack);
        self.wnd_max = self.wnd_max.max(wnd);
    }

    /// The least SEG.ACK that is acceptable: RFC 5961 §5.2 allows SND.UNA - MAX.SND.WND, here not beyond what was
    /// acknowledged, as with Linux. Numbers before ISS + 1 were never sent, so that an ACK of one is a guess.
    pub(crate) fn ack_min(&self) -> SeqNumber {
        self.una - self.wnd_max.min(self.acknowledged)
    }

    /// SEG.ACK is acceptable: SND.UNA follows it if it is newer.
    pub(crate) fn acknowledge(&mut self, ack: SeqNumber) {
        let bytes = ack.distance(self.una).max(0).cast_unsigned();
        self.acknowledged = self.acknowledged.saturating_add(bytes);
        self.una = self.una + bytes;
    }

    /// An acceptable ACK arrived: the peer is there.
    pub(crate) fn on_answer(&mut self) {
        self.unanswered = 0;
        if self.usable() >= self.unsent().min(self.mss) {
            (self.persist_at, self.persist_count) = (Time::NEVER, 0);
        }
    }

    pub(crate) fn start_persist(&mut self, rto_us: u64, now: Time) {
        self.persist_at =
            now.after((rto_us.max(PERSIST_US_MIN) << self.persist_count.min(16)).min(PERSIST_US_MAX));
    }

    /// The persist timer ran out. Returns how many times it did without any answer of the peer: an open connection whose
    /// window is closed may be probed for ever (RFC 9293 §3.8.6.1).
    pub(crate) fn on_persist(&mut self, rto_us: u64, now: Time) -> u8 {
        if self.usable() > 0 {
            self.overrides = true;
        } else {
            self.probe_due = true;
        }
        self.persist_count += 1;
        self.unanswered = self.unanswered.saturating_add(1);
        self.start_persist(rto_us, now);
        self.unanswered
    }

    /// New bytes that may go now, and FIN. `allowance` is what congestion control allows, `step` a full segment, `most` the
    /// longest frame.
    fn plan_new(&mut self, no_delay: bool, allowance: u32, step: u32, most: u32) -> Option<Plan> {
        let usable = self.usable();
        // What is queued; FIN, which takes a number of the window, may follow in the same segment.
        let queued = self.end.distance(self.nxt).max(0).cast_unsigned();
        let room = usable.min(allowance).min(most);
        let mut length = queued.min(room);
        if length < queued {
            if length >= step {
                length -= length % step;
            } else if allowance < usable && !self.overrides {
                // Congestion control: wait until a full segment may go.
                length = 0;
            } else if !self.overrides && length < self.wnd_max / 2 {
                // RFC 9293 §3.8.6.2.1: no small part of a window.
                length = 0;
            }
        } else if !length.is_multiple_of(step) && !no_delay && !self.has_fin && self.is_small_in_flight() {
            // RFC 9293 §3.7.4 (Nagle) in the variant of Linux and others: the last bytes wait only for a segment that was
            // short, so that a long send does not wait for a delayed ACK.
            length -= length % step;
        }
        let fin = self.has_fin && length == queued && usable > length;
        if length == 0 && !fin {
            return None;
        }
        self.overrides = false;
        Some(Plan { seq: self.nxt, length, fin, kind: Kind::New, step })
    }

    fn is_small_in_flight(&self) -> bool {
        self.has_small && self.small.is_after(self.una)
    }

    /// New bytes and FIN up to `end` were sent.
    pub(crate) fn on_sent(&mut self, gathered: &Gathered, fin: bool, step: u32) {
        self.nxt = self.nxt + gathered.length + u32::from(fin);
        if gathered.length > 0 {
            self.cursor = gathered.last;
        }
        if !gathered.length.is_multiple_of(step) {
            (self.small, self.has_small) = (self.nxt, true);
        }
        self.persist_at = Time::NEVER;
    }

    /// Collects `plan.length` bytes from `plan.seq` on and marks their pieces with the frame's position.
    pub(crate) fn gather(
        &mut self,
        pools: &mut Pools<'_>,
        plan: &Plan,
        interface: InterfaceId,
        position: u64,
    ) -> Gathered {
        if plan.length == 0 {
            return Gathered { last: self.cursor, ..Gathered::default() };
        }
        let mut at = match plan.kind {
            Kind::New => self.cursor,
            _ => self.piece_at(pools, plan.seq),
        };
        let mut offset = plan.seq.distance(pools.pieces.get(at).seq).cast_unsigned();
        let first = (at, offset);
        let mut gathered = Gathered::default();
        let mut count = 0_usize;
        while gathered.length < plan.length {
            let piece = pools.pieces.get_mut(at);
            let take = (piece.payload.length - offset).min(plan.length - gathered.length);
            let more = piece.payload.slice(offset, take);
            match count.checked_sub(1).and_then(|last| joined(gathered.sources[last], more)) {
                Some(longer) => gathered.sources[count - 1] = Some(longer),
                None if count == GATHER_MAX => break,
                None => {
                    gathered.sources[count] = Some(Source::Client(more));
                    count += 1;
                }
            }
            (piece.position, piece.interface) = (position, interface);
            gathered.length += take;
            let is_end = offset + take == piece.payload.length;
            if is_end && piece.is_last {
                gathered.ticket = Some(piece.ticket);
            }
            gathered.last = at;
            if is_end {
                offset = 0;
                // Behind the last piece there is none until the next `send`.
                at = pools.pieces.next(at).unwrap_or(NONE);
                gathered.last = at;
            }
        }
        // Too many pieces: cut at a segment's end, so that the segments of a long frame are full.
        let excess = gathered.length % plan.step;
        if gathered.length < plan.length && gathered.length > plan.step && excess > 0 {
            if plan.kind != Kind::New {
                self.resend = first.0;
            }
            let shorter = Plan { length: gathered.length - excess, ..*plan };
            return self.gather(pools, &shorter, interface, position);
        }
        gathered
    }

    /// The piece that holds a byte which was sent before.
    fn piece_at(&mut self, pools: &Pools<'_>, seq: SeqNumber) -> u32 {
        let mut at = self.pieces.first;
        if self.resend != NONE && !pools.pieces.get(self.resend).seq.is_after(seq) {
            at = self.resend;
        }
        while !pools.pieces.get(at).end().is_after(seq) {
            at = pools.pieces.next(at).expect("bytes that were sent lie in pieces");
        }
        self.resend = at;
        at
    }

    /// Whether one piece more would be taken now.
    pub(crate) fn has_room(&self, pools: &Pools<'_>, client: u32) -> bool {
        let queued = self.end.distance(self.una).cast_unsigned();
        queued <= SEND_BYTES_MAX / 2
            && pools.may_queue(client, self.pieces.length, crate::SEND_PIECES_MAX as u32)
    }

    /// Frees all pieces: their owner is gone, and its memory is kept until the drivers have consumed all frames.
    pub(crate) fn forget(&mut self, pools: &mut Pools<'_>, client: u32) {
        pools.clients[client as usize].pieces -= self.pieces.length;
        self.has_freed |= !self.pieces.is_empty();
        pools.pieces.clear(&mut self.pieces);
        (self.cursor, self.resend) = (NONE, NONE);
    }

    /// Releases pieces that are acknowledged and to which no frame at a driver refers; of a connection that is over,
    /// whether acknowledged or not. Returns whether a piece that could go waits for a driver.
    pub(crate) fn reclaim(&mut self, pools: &mut Pools<'_>, client: u32, is_over: bool) -> bool {
        while self.pieces.first != NONE {
            let piece = *pools.pieces.get(self.pieces.first);
            if piece.end().is_after(self.una) && !is_over {
                return false;
            }
            if !pools.header.is_consumed(piece.interface, piece.position) {
                return true;
            }
            for cursor in [&mut self.cursor, &mut self.resend] {
                if *cursor == self.pieces.first {
                    *cursor = NONE;
                }
            }
            pools.pieces.pop_front(&mut self.pieces);
            pools.clients[client as usize].pieces -= 1;
            self.has_freed = true;
            if piece.is_last {
                (self.released, self.has_released) = (piece.ticket, true);
            }
        }
        false
    }
}

/// Both as one range, if the second one follows the first in memory.
fn joined(source: Option<Source>, more: PayloadRef) -> Option<Source> {
    match source {
        Some(Source::Client(before))
            if (before.region, before.generation) == (more.region, more.generation)
                && before.offset.checked_add(before.length) == Some(more.offset) =>
        {
            Some(Source::Client(PayloadRef { length: before.length + more.length, ..before }))
        }
        _ => None,
    }
}

/// A segment that a connection has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Syn,
    /// The last one of a connection that is over.
    Final,
    Plan(Plan),
}

impl Connection {
    pub(crate) fn next_segment(&mut self, pools: &Pools<'_>, now: Time) -> Option<Next> {
        match self.state {
            State::Free => None,
            State::Over => (self.last != Final::None).then_some(Next::Final),
            State::SynSent | State::SynReceived if self.opening.is_due => Some(Next::Syn),
            State::SynSent => None,
            _ => self.plan(pools, now).map(Next::Plan),
        }
    }

    fn plan(&mut self, pools: &Pools<'_>, now: Time) -> Option<Plan> {
        let step = self.send.mss - self.sack_bytes();
        let most = if self.route.segments { SEGMENT_BYTES_MAX / step * step } else { step };
        if self.state.sends() {
            if let Some((seq, length)) = self.recovery.next_retransmission(&pools.segments) {
                let bytes = self.send.end.distance(seq).max(0).cast_unsigned().min(length);
                // FIN has the number behind the last byte.
                let fin = length > bytes && bytes <= most;
                return Some(Plan { seq, length: bytes.min(most), fin, kind: Kind::Again, step });
            }
            if self.send.unsent() > 0 {
                let can_record = self.recovery.can_record(&pools.segments);
                let allowance = if can_record { self.recovery.allowance(now) } else { 0 };
                let plan = self.send.plan_new(self.options.no_delay, allowance, step, most);
                if plan.is_some() {
                    return plan;
                }
                // The window is closed, or nearly; or all records of segments are used by others: no ACK will change it.
                if self.send.una == self.send.nxt && self.send.persist_at == Time::NEVER {
                    self.send.start_persist(self.recovery.rto_us(), now);
                }
            }
        }
        let bare = |seq| Plan { seq, length: 0, fin: false, kind: Kind::Bare, step };
        if self.send.probe_due {
            // An old number: the peer must answer (RFC 9293 §3.10.7.4, first). A probe of the window carries no octet from
            // behind the window (§3.8.6.1): the octet would have to be repeated, and the answer says the same.
            return Some(bare(self.send.una - 1));
        }
        self.receive.ack_now.then(|| bare(self.send.nxt))
    }

    /// Bytes of the SACK option of the next segment.
    fn sack_bytes(&self) -> u32 {
        if !self.sack || !self.receive.has_sack() {
            return 0;
        }
        let (_, blocks) = self.receive.sack(self.blocks_max());
        4 + 8 * blocks as u32
    }

    /// RFC 2018 §3: blocks for which 40 bytes of options have room.
    fn blocks_max(&self) -> usize {
        if self.timestamps { 3 } else { BLOCKS }
    }

    /// The header and the payload of the next segment, which now counts as sent by the frame at `position`; and the
    /// payload of a full segment.
    pub(crate) fn take_segment(
        &mut self,
        pools: &mut Pools<'_>,
        next: &Next,
        position: u64,
        now: Time,
    ) -> (TcpHeader, Gathered, u32) {
        match next {
            Next::Syn => (self.take_syn(pools, now), Gathered::default(), 0),
            Next::Final => {
                let flags = if self.last == Final::Reset { Flags::RST | Flags::ACK } else { Flags::ACK };
                self.last = Final::None;
                (self.header(pools, self.send.nxt, flags, now), Gathered::default(), 0)
            }
            Next::Plan(plan) => {
                let interface = self.route.interface;
                let mut gathered = self.send.gather(pools, plan, interface, position);
                let fin = plan.fin && gathered.length == plan.length;
                let mut flags = Flags::ACK;
                if fin {
                    flags = flags | Flags::FIN;
                }
                if gathered.length > 0 && plan.seq + gathered.length == self.send.end {
                    // RFC 9293 §3.9.1.2: PSH in the segment that empties the queue.
                    flags = flags | Flags::PSH;
                }
                let mut tcp = self.header(pools, plan.seq, flags, now);
                tcp.payload_bytes = gathered.length;
                let length = gathered.length + u32::from(fin);
                match plan.kind {
                    Kind::New => {
                        self.recovery.on_sent(&mut pools.segments, plan.seq, length, now);
                        self.send.on_sent(&gathered, fin, plan.step);
                    }
                    Kind::Again => {
                        self.recovery.on_retransmitted(&mut pools.segments, plan.seq, length, now);
                        gathered.ticket = None;
                    }
                    Kind::Bare => self.send.probe_due = false,
                }
                self.receive.on_ack_sent(gathered.length > 0);
                (tcp, gathered, plan.step)
            }
        }
    }

    /// The header of a segment without SYN, which acknowledges all that was received.
    fn header(&mut self, pools: &Pools<'_>, seq: SeqNumber, flags: Flags, now: Time) -> TcpHeader {
        let mut tcp = TcpHeader {
            source: self.tuple.local,
            destination: self.tuple.remote,
            seq,
            ack: self.receive.nxt,
            flags,
            window: self.receive.advertise(pools, self.client, self.receive.shift),
            timestamps: self.timestamps.then(|| (self.timestamp(now), self.recent)),
            ..TcpHeader::default()
        };
        if self.sack && self.receive.has_sack() {
            let (blocks, count) = self.receive.sack(self.blocks_max());
            tcp.sack = blocks.map(|block| (block.start, block.end));
            tcp.sack_count = count as u8;
        }
        tcp
    }

    /// Which is the next hop's MAC address, did not become known.
    pub(crate) fn on_neighbour_failed(&mut self, pools: &mut Pools<'_>, now: Time) {
        match self.state {
            State::SynSent => self.finish(pools, Ended::Unreachable, Final::None),
            State::SynReceived => self.on_syn_sent(now),
            State::Over => self.last = Final::None,
            _ => {
                // As if the segment had been lost. If no timer repeats it, this one does.
                self.receive.ack_now = false;
                self.send.probe_due = false;
                if self.send.unsent() > 0 && self.recovery.deadline() == Time::NEVER {
                    self.send.start_persist(self.recovery.rto_us(), now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc5961_an_old_ack_reaches_back_to_the_least_of_the_window_and_what_was_acknowledged() {
        let first = SeqNumber(u32::MAX - 100) + 1;
        for (wnd, acknowledged, back) in [
            (0, 0, 0),
            (0, 500, 0),
            (65_535, 0, 0),
            (65_535, 500, 500),
            (65_535, 65_536, 65_535),
            (1 << 30, 3 << 29, 1 << 30),
        ] {
            let mut send = Send::new(first - 1);
            // The handshake is done.
            send.una = first;
            send.set_window(SeqNumber(0), first, wnd);
            // In two steps, then an ACK that says nothing new.
            send.acknowledge(first + acknowledged / 2);
            send.acknowledge(first + acknowledged);
            send.acknowledge(first);
            assert_eq!(send.una, first + acknowledged);
            assert_eq!(send.una.distance(send.ack_min()), back, "window {wnd}, acknowledged {acknowledged}");
        }
    }

    #[test]
    fn bytes_acknowledged_do_not_wrap() {
        let mut send = Send::new(SeqNumber(0));
        send.set_window(SeqNumber(0), SeqNumber(0), 1 << 30);
        for _ in 0..5 {
            send.acknowledge(send.una + (1 << 30));
        }
        assert_eq!(send.una.distance(send.ack_min()), 1 << 30);
    }
}
