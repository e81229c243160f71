//! The receiving side of a connection: which frames wait for the client, which wait for bytes before them, how large the
//! window is, and when an ACK is due.

use zerocopy::FromZeros;

use crate::pools::{Frame, Holder, Owner, Pinned, Pools, Text};
use crate::{FrameId, HEAD_BYTES, List, NONE, SEGMENT_BYTES_MAX, SeqNumber, Time};

/// Longest delay of an ACK (RFC 9293 §3.8.6.3 allows 500 ms).
const ACK_DELAY_US: u64 = 40_000;
/// Segments that are acknowledged at once when a connection begins, or after a pause of `QUICK_AFTER_US`: the peer's
/// window grows with ACKs.
const QUICK_ACKS: u8 = 16;
const QUICK_AFTER_US: u64 = 1_000_000;
/// Window at the start, bytes; it grows to what the client takes in a round trip.
const BUFFER_BYTES: u32 = 256 << 10;
/// The buffer is this many times what the client took in the last round trip: while the peer doubles its window, the
/// next one brings twice as much, and as much may wait for a lost segment.
const BUFFER_ROUNDS: u32 = 4;
const ROUND_US_MIN: u64 = 1000;
/// Blocks of SACK that are remembered (RFC 2018 §3): with timestamps three of them have room.
pub(crate) const BLOCKS: usize = 4;

/// A range of sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) start: SeqNumber,
    pub(crate) end: SeqNumber,
}

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Receive {
    /// RCV.NXT
    pub(crate) nxt: SeqNumber,
    /// Right edge of the window that was advertised: it never moves to the left (RFC 9293 §3.8.6).
    pub(crate) edge: SeqNumber,
    /// Last.ACK.sent (RFC 7323 §4.3)
    pub(crate) acknowledged: SeqNumber,
    /// Sequence number of FIN, if `has_fin`.
    pub(crate) fin: SeqNumber,
    pub(crate) has_fin: bool,
    /// Rcv.Wind.Shift
    pub(crate) shift: u8,
    /// Send an ACK now.
    pub(crate) ack_now: bool,
    quick_acks: u8,
    block_count: u8,
    has_duplicate: bool,
    /// Frames in order, not yet delivered.
    pub(crate) ready: List,
    /// Frames with bytes missing before them, by sequence number, without overlaps.
    pub(crate) late: List,
    /// Start of the last block of `late`.
    late_block: SeqNumber,
    /// Blocks of `late`, the latest first.
    blocks: [Block; BLOCKS],
    /// What was received twice, not yet reported (RFC 2883).
    duplicate: Block,
    pub(crate) pinned: Pinned,
    /// Bytes in order that the client has not released.
    held: u32,
    /// Most bytes that `held` may reach, and what the client allows it to grow to.
    buffer: u32,
    buffer_max: u32,
    /// Largest segment the peer was seen to send, and mean payload of frames with a tail; bytes.
    segment: u32,
    tail_bytes: u32,
    /// Bytes in order that no ACK was sent for.
    unacknowledged: u32,
    round_bytes: u32,
    /// Stream offset of the next byte that is delivered.
    pub(crate) offset: u64,
    pub(crate) ack_at: Time,
    round_start: Time,
    pub(crate) arrived_at: Time,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Kept,
    /// The caller frees it.
    Unused,
}

impl Receive {
    pub(crate) fn new(bytes_max: u32, now: Time) -> Self {
        Self {
            ready: List::default(),
            late: List::default(),
            ack_at: Time::NEVER,
            quick_acks: QUICK_ACKS,
            buffer: bytes_max.min(BUFFER_BYTES),
            buffer_max: bytes_max,
            shift: shift_for(bytes_max),
            round_start: now,
            arrived_at: now,
            ..Self::new_zeroed()
        }
    }

    /// The peer's SYN has arrived.
    pub(crate) fn on_syn(&mut self, irs: SeqNumber, segment: u32) {
        // The window of our SYN, if that was before.
        let open = self.open();
        self.nxt = irs + 1;
        self.acknowledged = self.nxt;
        self.edge = self.nxt + open;
        self.segment = segment;
    }

    pub(crate) fn set_buffer_max(&mut self, bytes_max: u32) {
        self.buffer_max = bytes_max;
        self.buffer = self.buffer.min(bytes_max);
    }

    /// RFC 9293 §3.10.7.4, first: any part of the segment lies in the window.
    pub(crate) fn is_acceptable(&self, seq: SeqNumber, length: u32) -> bool {
        let is_in = |seq: SeqNumber| !seq.is_before(self.nxt) && seq.is_before(self.edge);
        match (length, self.edge == self.nxt) {
            (0, true) => seq == self.nxt,
            // At the right edge too, as Linux: a peer that has filled the window acknowledges with this number, and if the
            // window's first segment was lost, both sides would ignore each other's ACKs.
            (0, false) => is_in(seq) || seq == self.edge,
            (_, true) => false,
            (_, false) => {
                is_in(seq) || is_in(seq + (length - 1)) || {
                    // Both ends outside, the window inside: a segment of 64 KiB may be longer than the window.
                    seq.is_before(self.nxt) && (seq + length).is_after(self.edge)
                }
            }
        }
    }

    /// Takes the bytes of an acceptable segment.
    pub(crate) fn on_text(&mut self, pools: &mut Pools<'_>, owner: Owner, text: &Text, now: Time) -> Fate {
        let mut text = *text;
        if text.frame_bytes > HEAD_BYTES {
            self.tail_bytes = match self.tail_bytes {
                0 => SEGMENT_BYTES_MAX,
                mean => mean - mean / 8 + text.length / 8,
            };
        }
        if now.since(self.arrived_at) > QUICK_AFTER_US {
            self.quick_acks = QUICK_ACKS;
        }
        self.arrived_at = now;
        if text.seq.is_before(self.nxt) {
            let old = self.nxt.distance(text.seq).cast_unsigned();
            self.on_duplicate(text.seq, text.seq + old.min(text.length));
            if old >= text.length {
                return Fate::Unused;
            }
            text.cut_front(old);
        }
        let room = self.edge.distance(text.seq).max(0).cast_unsigned();
        if text.length > room {
            text.length = room;
            self.ack_now = true;
        }
        if text.length == 0 {
            return Fate::Unused;
        }
        if text.seq == self.nxt {
            self.on_next(pools, owner, &text, now)
        } else {
            // RFC 5681 §4.2: an ACK at once for a segment out of order.
            self.ack_now = true;
            self.on_late(pools, owner, &mut text)
        }
    }

    /// A segment that lies before the window.
    pub(crate) fn note_duplicate(&mut self, text: &Text) {
        self.on_duplicate(text.seq, text.seq + text.length);
    }

    fn on_duplicate(&mut self, start: SeqNumber, end: SeqNumber) {
        self.ack_now = true;
        self.has_duplicate = true;
        self.duplicate = Block { start, end };
    }

    /// More of the segment that is being taken is a duplicate; if it does not follow, only the first part is reported.
    fn extend_duplicate(&mut self, start: SeqNumber, end: SeqNumber) {
        if !self.has_duplicate {
            self.on_duplicate(start, end);
        } else if self.duplicate.end == start {
            self.duplicate.end = end;
        }
    }

    fn has_room(&self, pools: &Pools<'_>, owner: Owner, frame_bytes: u32) -> bool {
        let left = pools.frames_left(self.pinned, owner.client);
        left.heads > 0 && (left.tails > 0 || frame_bytes <= HEAD_BYTES)
    }

    /// The next bytes: they are ready, and so is all of `late` that follows.
    fn on_next(&mut self, pools: &mut Pools<'_>, owner: Owner, text: &Text, now: Time) -> Fate {
        while !self.has_room(pools, owner, text.frame_bytes) {
            // What is late gives way (RFC 2018 §8 allows to discard it): without the next bytes nothing goes on.
            pools.header.drops.segments += 1;
            if !self.drop_last_late(pools) {
                self.ack_now = true;
                return Fate::Unused;
            }
        }
        pools.keep(text, owner, &mut self.pinned);
        self.append(pools, text.frame);
        let had_late = !self.late.is_empty();
        let end = self.nxt;
        while let Some(frame) = pools.after(&self.late, None) {
            let Frame { seq, length, .. } = pools.frames[frame as usize];
            let overlap = self.nxt.distance(seq);
            if overlap < 0 {
                break;
            }
            if seq.is_before(end) {
                self.extend_duplicate(seq, end.min(seq + length));
            }
            pools.pop(&mut self.late);
            let overlap = overlap.cast_unsigned();
            if overlap >= length {
                pools.free_kept(frame, Some(&mut self.pinned));
            } else {
                pools.frames[frame as usize].cut_front(overlap);
                self.append(pools, frame);
            }
        }
        if had_late {
            self.forget_blocks();
        }
        // RFC 5681 §4.2: an ACK at once for a segment that fills a gap, and for every second full one; RFC 9293 §3.8.6.3.
        let is_due = had_late || self.quick_acks > 0 || self.unacknowledged >= 2 * self.segment;
        self.quick_acks = self.quick_acks.saturating_sub(1);
        if is_due {
            self.ack_now = true;
        } else if self.ack_at == Time::NEVER {
            self.ack_at = now.after(ACK_DELAY_US);
        }
        Fate::Kept
    }

    fn append(&mut self, pools: &mut Pools<'_>, frame: FrameId) {
        let length = pools.frames[frame as usize].length;
        pools.push(&mut self.ready, frame);
        self.nxt = self.nxt + length;
        self.held += length;
        self.unacknowledged = self.unacknowledged.saturating_add(length);
    }

    /// Puts bytes into their place behind a gap.
    fn on_late(&mut self, pools: &mut Pools<'_>, owner: Owner, text: &mut Text) -> Fate {
        if !self.has_room(pools, owner, text.frame_bytes) {
            pools.header.drops.segments += 1;
            return Fate::Unused;
        }
        let (before, mut block_start) = self.place_of(pools, text.seq);
        if let Some(before) = before {
            let end = pools.frames[before as usize].end();
            let overlap = end.distance(text.seq);
            if overlap >= 0 {
                let overlap = overlap.cast_unsigned();
                if overlap > 0 {
                    self.on_duplicate(text.seq, text.seq + overlap.min(text.length));
                }
                if overlap >= text.length {
                    return Fate::Unused;
                }
                text.cut_front(overlap);
            } else {
                block_start = text.seq;
            }
        } else {
            block_start = text.seq;
        }
        let end = text.seq + text.length;
        let mut block_end = end;
        while let Some(next) = pools.after(&self.late, before) {
            let Frame { seq, .. } = pools.frames[next as usize];
            let next_end = pools.frames[next as usize].end();
            if !seq.is_before(end) {
                break;
            }
            self.on_duplicate(seq, next_end.min(end));
            if next_end.is_after(end) {
                text.length = seq.distance(text.seq).cast_unsigned();
                block_end = seq;
                break;
            }
            pools.remove_after(&mut self.late, before);
            pools.free_kept(next, Some(&mut self.pinned));
        }
        if text.length == 0 {
            return Fate::Unused;
        }
        pools.keep(text, owner, &mut self.pinned);
        pools.insert_after(&mut self.late, before, text.frame);
        let mut last = text.frame;
        while let Some(next) = pools.after(&self.late, Some(last)) {
            let frame = &pools.frames[next as usize];
            if frame.seq != block_end {
                break;
            }
            block_end = frame.end();
            last = next;
        }
        if last == self.late.last {
            self.late_block = block_start;
        }
        self.remember(Block { start: block_start, end: block_end });
        Fate::Kept
    }

    /// The last late frame that begins at or before `seq`, and the start of its block.
    fn place_of(&self, pools: &Pools<'_>, seq: SeqNumber) -> (Option<FrameId>, SeqNumber) {
        if let Some(last) = (self.late.last != NONE).then_some(self.late.last)
            && !pools.frames[last as usize].seq.is_after(seq)
        {
            return (Some(last), self.late_block);
        }
        let (mut before, mut block) = (None, Block::default());
        while let Some(next) = pools.after(&self.late, before) {
            let frame = &pools.frames[next as usize];
            if frame.seq.is_after(seq) {
                break;
            }
            if before.is_none() || frame.seq != block.end {
                block.start = frame.seq;
            }
            block.end = frame.end();
            before = Some(next);
        }
        (before, block.start)
    }

    fn drop_last_late(&mut self, pools: &mut Pools<'_>) -> bool {
        if self.late.is_empty() {
            return false;
        }
        let last = self.late.last;
        let seq = pools.frames[last as usize].seq;
        // The frame before the last one.
        let (before, block) = self.place_of_before(pools, last);
        pools.remove_after(&mut self.late, before);
        pools.free_kept(last, Some(&mut self.pinned));
        self.late_block = block;
        for block in &mut self.blocks {
            block.end = block.end.min(seq);
        }
        self.forget_blocks();
        true
    }

    /// The late frame before `last`, and the start of its block.
    fn place_of_before(&self, pools: &Pools<'_>, last: FrameId) -> (Option<FrameId>, SeqNumber) {
        let (mut before, mut block) = (None, Block::default());
        while let Some(next) = pools.after(&self.late, before).filter(|&next| next != last) {
            let frame = &pools.frames[next as usize];
            if before.is_none() || frame.seq != block.end {
                block.start = frame.seq;
            }
            block.end = frame.end();
            before = Some(next);
        }
        (before, block.start)
    }

    /// RFC 2018 §4: the block that holds the latest segment comes first.
    fn remember(&mut self, block: Block) {
        let mut blocks = [Block::default(); BLOCKS];
        blocks[0] = block;
        let mut count = 1;
        for other in &self.blocks[..usize::from(self.block_count)] {
            let is_apart = other.end.is_before(block.start) || other.start.is_after(block.end);
            if is_apart && count < BLOCKS {
                blocks[count] = *other;
                count += 1;
            }
        }
        (self.blocks, self.block_count) = (blocks, count as u8);
    }

    /// Forgets blocks that are empty or acknowledged.
    fn forget_blocks(&mut self) {
        let mut count = 0;
        for at in 0..usize::from(self.block_count) {
            let block = self.blocks[at];
            if block.end.is_after(self.nxt) && block.end.is_after(block.start) {
                self.blocks[count] = block;
                count += 1;
            }
        }
        self.block_count = count as u8;
    }

    /// The SACK option of the next segment, at most `max` blocks (RFC 2018 §4; RFC 2883 §4: a duplicate first).
    pub(crate) fn sack(&self, max: usize) -> ([Block; BLOCKS], usize) {
        let mut blocks = [Block::default(); BLOCKS];
        let duplicate = self.has_duplicate.then_some(self.duplicate);
        let late = self.blocks[..usize::from(self.block_count)].iter().copied();
        let mut count = 0;
        for (place, block) in blocks.iter_mut().zip(duplicate.into_iter().chain(late)).take(max) {
            *place = block;
            count += 1;
        }
        (blocks, count)
    }

    pub(crate) fn has_sack(&self) -> bool {
        self.has_duplicate || self.block_count > 0
    }

    /// Takes the next frame for the client.
    pub(crate) fn deliver(&mut self, pools: &mut Pools<'_>) -> Option<(FrameId, u32, u32, u64)> {
        let frame = pools.pop(&mut self.ready)?;
        let record = &mut pools.frames[frame as usize];
        record.holder = Holder::Client;
        let offset = self.offset;
        self.offset += u64::from(record.length);
        Some((frame, record.start, record.length, offset))
    }

    /// The client has released `bytes`: perhaps the window grows, and the peer must know it.
    pub(crate) fn on_released(&mut self, pools: &Pools<'_>, client: u32, bytes: u32, rtt_us: u64, now: Time) {
        self.held -= bytes;
        self.round_bytes = self.round_bytes.saturating_add(bytes);
        if now.since(self.round_start) >= rtt_us.max(ROUND_US_MIN) {
            let wanted = self.round_bytes.saturating_mul(BUFFER_ROUNDS);
            self.buffer = self.buffer.max(wanted.min(self.buffer_max));
            (self.round_start, self.round_bytes) = (now, 0);
        }
        // A window beyond what SEG.WND can say is no news.
        let most = u32::from(u16::MAX) << self.shift;
        let (open, window, buffer) =
            (self.open(), self.window(pools, client).min(most), self.buffer.min(most));
        let growth = window.saturating_sub(open);
        // RFC 9293 §3.8.6.2.2; a peer that has much of the window left learns of it with the next ACK.
        self.ack_now |= growth >= buffer / 2 || (open < buffer / 4 && growth >= 2 * self.segment.max(1));
    }

    /// Bytes of the window that the peer has not used.
    fn open(&self) -> u32 {
        self.edge.distance(self.nxt).max(0).cast_unsigned()
    }

    /// The window that memory allows: bytes, and frames in which they come.
    fn window(&self, pools: &Pools<'_>, client: u32) -> u32 {
        let bytes = self.buffer.saturating_sub(self.held);
        let left = pools.frames_left(self.pinned, client);
        let frames = match self.tail_bytes {
            0 => left.heads.saturating_mul(self.segment.max(1)),
            mean => left.tails.saturating_mul(mean.max(self.segment)),
        };
        bytes.min(frames)
    }

    /// SEG.WND of a segment that is sent now. `shift` is 0 in a SYN (RFC 7323 §2.2).
    pub(crate) fn advertise(&mut self, pools: &Pools<'_>, client: u32, shift: u8) -> u16 {
        let open = self.open();
        let window = self.window(pools, client);
        // RFC 9293 §3.8.6.2.2: the edge moves by a segment or half of the buffer at least.
        let is_worth_it = window >= open.saturating_add(self.segment.min(self.buffer / 2).max(1));
        // The window that was advertised is rounded up, so that its edge does not move to the left.
        let kept = open.div_ceil(1 << shift);
        let units = if is_worth_it { kept.max(window >> shift) } else { kept };
        let units = units.min(u32::from(u16::MAX));
        self.edge = self.edge.max(self.nxt + (units << shift));
        units as u16
    }

    /// A segment with ACK was sent.
    pub(crate) fn on_ack_sent(&mut self, with_data: bool) {
        self.acknowledged = self.nxt;
        self.unacknowledged = 0;
        self.ack_now = false;
        self.has_duplicate = false;
        self.ack_at = Time::NEVER;
        if with_data {
            // The client answers what it receives: ACKs ride on its answers.
            self.quick_acks = 0;
        }
    }

    /// Frees what was not delivered; what is in order only if no client will receive it.
    pub(crate) fn clear(&mut self, pools: &mut Pools<'_>, with_ready: bool) {
        let Self { late, ready, pinned, .. } = self;
        while let Some(frame) = pools.pop(late) {
            pools.free_kept(frame, Some(pinned));
        }
        while with_ready && let Some(frame) = pools.pop(ready) {
            pools.free_kept(frame, Some(pinned));
        }
        self.block_count = 0;
        self.has_duplicate = false;
        self.ack_at = Time::NEVER;
        self.ack_now = false;
    }
}

impl Text {
    fn cut_front(&mut self, bytes: u32) {
        self.seq = self.seq + bytes;
        self.start += bytes;
        self.length -= bytes;
    }
}

impl Frame {
    fn cut_front(&mut self, bytes: u32) {
        self.seq = self.seq + bytes;
        self.start += bytes;
        self.length -= bytes;
    }
}

/// The smallest shift with which a window of `bytes` can be advertised (RFC 7323 §2.3: at most 14).
fn shift_for(bytes: u32) -> u8 {
    (0..14).find(|&shift| bytes >> shift <= u32::from(u16::MAX)).unwrap_or(14)
}

#[cfg(test)]
mod tests;
