//! Records of what was sent and not acknowledged (the scoreboard of RFC 6675 §3).
//!
//! The records of a connection cover SND.UNA..SND.NXT without gap or overlap, in order. They stay few: what was sent
//! at nearly one time is one record, and so are adjacent bytes that were SACKed or that wait to be sent again. A record
//! is divided when an ACK or a retransmission concerns a part of it.

use zerocopy::FromZeros;

use crate::{List, Node, Record, SEGMENT_BYTES_MAX, SeqNumber, Slab, Time};

/// Records of one connection at most: a receiver that SACKs every other byte gets no more.
pub(super) const RECORDS_MAX: u32 = 2048;
/// Of them, records for new data: the others are left for divisions.
const RECORDS_NEW_MAX: u32 = RECORDS_MAX / 2;
/// Part of all records that only connections without any record may take.
const RESERVE_DIVISOR: u32 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromZeros)]
#[repr(u8)]
pub(super) enum State {
    #[default]
    InFlight,
    /// Counts as lost, and was not sent again since.
    Lost,
    Sacked,
}

/// Bytes that were sent at nearly one time and share one state. A FIN counts as a byte.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Segment {
    pub(super) seq: SeqNumber,
    pub(super) length: u32,
    /// Last transmission of the last of these bytes; that of the first of them was at most `burst_us` earlier.
    pub(super) sent_at: Time,
    burst_us: u32,
    /// How often these bytes, or some of them, were sent again.
    pub(super) retransmissions: u8,
    pub(super) state: State,
}

impl Record for Node<Segment> {}

impl Segment {
    pub(super) fn end(&self) -> SeqNumber {
        self.seq + self.length
    }

    /// Last transmission of the first of these bytes.
    pub(super) fn first_sent_at(&self) -> Time {
        Time(self.sent_at.0.saturating_sub(u64::from(self.burst_us)))
    }

    /// Takes in `length` bytes behind these, which were sent at `time`.
    fn extend(&mut self, length: u32, time: Time) {
        let (first, last) = (self.first_sent_at().min(time), self.sent_at.max(time));
        self.burst_us = last.since(first).min(u64::from(u32::MAX)) as u32;
        self.sent_at = last;
        self.length += length;
    }
}

/// Bytes that an ACK reports for the first time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) end: SeqNumber,
    pub(super) bytes: u32,
    /// Last transmission of its record: of the last byte and of the first one.
    pub(super) sent_at: Time,
    pub(super) first_sent_at: Time,
    pub(super) was_retransmitted: bool,
}

#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(super) struct Scoreboard {
    list: List,
    /// SND.UNA
    pub(super) una: SeqNumber,
    /// SND.NXT
    pub(super) nxt: SeqNumber,
    /// Bytes in state `Sacked`.
    pub(super) sacked: u32,
    /// Bytes in state `Lost`.
    pub(super) lost: u32,
    /// Bytes in flight that were sent again.
    pub(super) retransmitted: u32,
}

impl Scoreboard {
    pub(super) fn new(next: SeqNumber) -> Self {
        Self { una: next, nxt: next, ..Self::default() }
    }

    /// SND.NXT - SND.UNA
    pub(super) fn outstanding(&self) -> u32 {
        self.nxt.distance(self.una).cast_unsigned()
    }

    #[cfg(test)]
    pub(super) fn records(&self) -> u32 {
        self.list.length
    }

    /// The number of bytes in the state of `segment`, if it is counted.
    fn count(&mut self, segment: &Segment) -> Option<&mut u32> {
        match segment.state {
            State::Sacked => Some(&mut self.sacked),
            State::Lost => Some(&mut self.lost),
            State::InFlight if segment.retransmissions > 0 => Some(&mut self.retransmitted),
            State::InFlight => None,
        }
    }

    fn add(&mut self, segment: &Segment, bytes: u32) {
        if let Some(count) = self.count(segment) {
            *count += bytes;
        }
    }

    fn subtract(&mut self, segment: &Segment, bytes: u32) {
        if let Some(count) = self.count(segment) {
            *count -= bytes;
        }
    }

    /// A record may be taken for other purposes than the first one of a connection.
    fn has_room(&self, segments: &Slab<'_, Segment>, most: u32) -> bool {
        self.list.length < most && segments.room() > segments.capacity() / RESERVE_DIVISOR
    }

    fn may_extend(segment: &Segment) -> bool {
        segment.state == State::InFlight && segment.retransmissions == 0
    }

    /// `push` finds a record.
    pub(super) fn can_push(&self, segments: &Slab<'_, Segment>) -> bool {
        if self.list.is_empty() {
            return segments.room() > 0;
        }
        self.has_room(segments, RECORDS_NEW_MAX) || Self::may_extend(segments.get(self.list.last))
    }

    /// New data at SND.NXT. `is_same_burst` of two times: they may be taken for one.
    pub(super) fn push(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        length: u32,
        now: Time,
        is_same_burst: impl Fn(Time, Time) -> bool,
    ) {
        let seq = self.nxt;
        self.nxt = seq + length;
        if !self.list.is_empty() {
            let has_room = self.has_room(segments, RECORDS_NEW_MAX);
            let last = segments.get_mut(self.list.last);
            if Self::may_extend(last) && (!has_room || is_same_burst(last.sent_at, now)) {
                last.extend(length, now);
                return;
            }
        }
        let segment = Segment { seq, length, sent_at: now, ..Segment::default() };
        segments.push_back(&mut self.list, segment).expect("can_push was asked before");
    }

    /// Bytes below `una` are acknowledged.
    pub(super) fn acknowledge(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        una: SeqNumber,
        mut on_arrival: impl FnMut(Arrival),
    ) {
        while !self.list.is_empty() {
            let first = segments.get_mut(self.list.first);
            let covered = una.distance(first.seq);
            if covered <= 0 {
                break;
            }
            let bytes = covered.cast_unsigned().min(first.length);
            let segment = *first;
            if bytes < first.length {
                first.seq = una;
                first.length -= bytes;
            } else {
                segments.pop_front(&mut self.list);
            }
            self.subtract(&segment, bytes);
            if segment.state != State::Sacked {
                on_arrival(Arrival { end: segment.seq + bytes, ..arrival(&segment, bytes) });
            }
        }
        self.una = una;
    }

    /// Bytes of `blocks`, which are in order and within SND.UNA..=SND.NXT, have arrived (RFC 2018 §5).
    pub(super) fn sack(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        blocks: &[(SeqNumber, SeqNumber)],
        mut on_arrival: impl FnMut(Arrival),
    ) {
        let mut walk = Walk::new(&self.list);
        for &(left, right) in blocks {
            while let Some(index) = walk.at {
                let segment = *segments.get(index);
                if !segment.end().is_after(left) {
                    walk.step(segments);
                    continue;
                }
                if !segment.seq.is_before(right) {
                    break;
                }
                if segment.state != State::Sacked {
                    let skipped = left.distance(segment.seq);
                    if skipped > 0 {
                        // What cannot be divided for want of records counts as not SACKed.
                        self.divide(segments, index, skipped.cast_unsigned());
                        walk.step(segments);
                        continue;
                    }
                    let covered = right.distance(segment.seq).cast_unsigned();
                    if covered < segment.length && !self.divide(segments, index, covered) {
                        walk.step(segments);
                        continue;
                    }
                    let segment = *segments.get(index);
                    on_arrival(arrival(&segment, segment.length));
                    self.set(segments, index, State::Sacked);
                }
                self.join(segments, &mut walk);
            }
        }
    }

    fn set(&mut self, segments: &mut Slab<'_, Segment>, index: u32, state: State) {
        let segment = segments.get_mut(index);
        let before = *segment;
        segment.state = state;
        let after = *segment;
        self.subtract(&before, before.length);
        self.add(&after, after.length);
    }

    /// The first `length` bytes of a record become one of their own, with the same index; `false` for want of records.
    fn divide(&mut self, segments: &mut Slab<'_, Segment>, index: u32, length: u32) -> bool {
        if !self.has_room(segments, RECORDS_MAX) {
            return false;
        }
        let segment = segments.get_mut(index);
        let rest = Segment { seq: segment.seq + length, length: segment.length - length, ..*segment };
        segment.length = length;
        segments.insert_after(&mut self.list, Some(index), rest).is_some()
    }

    /// Unites the record at the walk's place, which is lost or SACKed, with its neighbours in the same state, and steps
    /// behind it.
    fn join(&mut self, segments: &mut Slab<'_, Segment>, walk: &mut Walk) {
        let Some(index) = walk.at else { return };
        let segment = *segments.get(index);
        if let Some(before) = walk.before
            && segments.get(before).state == segment.state
        {
            let first = segments.get_mut(before);
            first.extend(segment.length, segment.first_sent_at());
            first.extend(0, segment.sent_at);
            first.retransmissions = first.retransmissions.max(segment.retransmissions);
            segments.remove_after(&mut self.list, walk.before);
            walk.at = segments.next(before);
        } else {
            walk.step(segments);
        }
        // The one behind, where the walk may end.
        if let (Some(before), Some(index)) = (walk.before, walk.at)
            && segments.get(before).state == State::Sacked
            && segments.get(index).state == State::Sacked
        {
            let length = segments.get(index).length;
            segments.get_mut(before).length += length;
            segments.remove_after(&mut self.list, walk.before);
            walk.at = segments.next(before);
        }
    }

    /// Marks those records in flight as lost of which `is_lost` says so. Returns their bytes.
    pub(super) fn mark_lost(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        mut is_lost: impl FnMut(&Segment) -> bool,
    ) -> u32 {
        let before = self.lost;
        let mut walk = Walk::new(&self.list);
        while let Some(index) = walk.at {
            let segment = segments.get(index);
            if segment.state == State::InFlight && is_lost(segment) {
                self.set(segments, index, State::Lost);
                self.join(segments, &mut walk);
            } else {
                walk.step(segments);
            }
        }
        self.lost - before
    }

    /// Marks at most `length` bytes at SND.UNA as lost, for want of SACK. Returns their number.
    pub(super) fn mark_first_lost(&mut self, segments: &mut Slab<'_, Segment>, length: u32) -> u32 {
        let before = self.lost;
        let index = self.list.first;
        if !self.list.is_empty() && segments.get(index).state == State::InFlight {
            if segments.get(index).length > length {
                self.divide(segments, index, length);
            }
            self.set(segments, index, State::Lost);
        }
        self.lost - before
    }

    /// Nothing is lost: what counted as such is in flight.
    pub(super) fn unmark_lost(&mut self, segments: &mut Slab<'_, Segment>) {
        self.replace(segments, State::Lost);
    }

    /// The receiver has thrown away what it had SACKed (RFC 2018 §8).
    pub(super) fn unmark_sacked(&mut self, segments: &mut Slab<'_, Segment>) {
        self.replace(segments, State::Sacked);
    }

    fn replace(&mut self, segments: &mut Slab<'_, Segment>, state: State) {
        let mut walk = Walk::new(&self.list);
        while let Some(index) = walk.at {
            if segments.get(index).state == state {
                self.set(segments, index, State::InFlight);
            }
            walk.step(segments);
        }
    }

    /// The record at SND.UNA.
    pub(super) fn first<'a>(&self, segments: &'a Slab<'_, Segment>) -> Option<&'a Segment> {
        (!self.list.is_empty()).then(|| segments.get(self.list.first))
    }

    /// The record before SND.NXT.
    pub(super) fn last<'a>(&self, segments: &'a Slab<'_, Segment>) -> Option<&'a Segment> {
        (!self.list.is_empty()).then(|| segments.get(self.list.last))
    }

    pub(super) fn first_lost<'a>(&self, segments: &'a Slab<'_, Segment>) -> Option<&'a Segment> {
        if self.lost == 0 {
            return None;
        }
        segments.iter(&self.list).map(|(_, segment)| segment).find(|segment| segment.state == State::Lost)
    }

    /// `length` bytes at `seq`, which lie within one record, were sent again.
    pub(super) fn retransmit(
        &mut self,
        segments: &mut Slab<'_, Segment>,
        seq: SeqNumber,
        length: u32,
        now: Time,
        is_same_burst: impl Fn(Time, Time) -> bool,
    ) {
        let mut walk = Walk::new(&self.list);
        while let Some(index) = walk.at
            && !segments.get(index).end().is_after(seq)
        {
            walk.step(segments);
        }
        let Some(mut index) = walk.at else { return };
        let skipped = seq.distance(segments.get(index).seq);
        if skipped > 0 && self.divide(segments, index, skipped.cast_unsigned()) {
            walk.step(segments);
            let Some(next) = walk.at else { return };
            index = next;
        }
        let segment = *segments.get(index);
        let length = length.min(segment.length);
        let again = segment.retransmissions.saturating_add(1);
        if let Some(before) = walk.before {
            let last = segments.get_mut(before);
            if last.state == State::InFlight
                && last.retransmissions == again
                && is_same_burst(last.sent_at, now)
            {
                last.extend(length, now);
                let last = *last;
                self.subtract(&segment, length);
                self.add(&last, length);
                if length == segment.length {
                    segments.remove_after(&mut self.list, walk.before);
                } else {
                    let rest = segments.get_mut(index);
                    rest.seq = rest.seq + length;
                    rest.length -= length;
                }
                return;
            }
        }
        if length < segment.length {
            // For want of records all of it counts as sent again, and what was not is found to be lost later.
            self.divide(segments, index, length);
        }
        let segment = segments.get_mut(index);
        let before = *segment;
        segment.state = State::InFlight;
        segment.sent_at = now;
        segment.burst_us = 0;
        segment.retransmissions = again;
        let after = *segment;
        self.subtract(&before, before.length);
        self.add(&after, after.length);
    }

    #[cfg(test)]
    pub(super) fn iter<'a>(&self, segments: &'a Slab<'_, Segment>) -> impl Iterator<Item = &'a Segment> {
        segments.iter(&self.list).map(|(_, segment)| segment)
    }

    pub(super) fn clear(&mut self, segments: &mut Slab<'_, Segment>) {
        segments.clear(&mut self.list);
        *self = Self::new(self.nxt);
    }
}

fn arrival(segment: &Segment, bytes: u32) -> Arrival {
    Arrival {
        end: segment.end(),
        bytes,
        sent_at: segment.sent_at,
        first_sent_at: segment.first_sent_at(),
        was_retransmitted: segment.retransmissions > 0,
    }
}

/// A place in the list, and the record before it.
struct Walk {
    before: Option<u32>,
    at: Option<u32>,
}

impl Walk {
    fn new(list: &List) -> Self {
        Self { before: None, at: (!list.is_empty()).then_some(list.first) }
    }

    fn step(&mut self, segments: &Slab<'_, Segment>) {
        self.before = self.at;
        self.at = self.at.and_then(|index| segments.next(index));
    }
}

/// A record's length is a sequence-space distance.
const _: () = assert!(SEGMENT_BYTES_MAX < 1 << 30);
