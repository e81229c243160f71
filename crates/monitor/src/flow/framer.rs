//! Where the PDUs of one direction begin and end.
//!
//! Each header says where the next one is. A header that has passed without being captured, beyond the snap length or
//! lost by the capture, breaks the chain: it is found again where captured bytes look like a header.

use std::collections::VecDeque;
use std::ops::Range;

use iscsi::wire::{BHS_LENGTH, Bhs, Opcode};

use super::half::Half;
use super::negotiated::Negotiated;
use super::plausible::{Context, is_plausible, sender};
use super::scraps::{Scraps, copy};
use crate::event::{Kind, Opaque, PduEnd, PduStart, Side};
use crate::limits::{FLOW_PDUS_OPEN_MAX, FRAMING_SEARCH_BYTES_MAX, NEGOTIATED_TEXT_BYTES_MAX};

const WHOLE: u64 = (1 << BHS_LENGTH) - 1;
/// The part of a header that tells the length of the PDU.
const LENGTHS: u64 = 0xff;
/// Bytes of a digest (RFC 7143 section 13.1).
const DIGEST_BYTES: u64 = 4;
/// NSG of a login that ends it.
const FULL_FEATURE: u8 = 3;

/// Captured bytes, which may be fewer than passed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Captured<'a> {
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
}

impl Captured<'_> {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// Which PDUs carry digests, after the login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digests {
    Unknown,
    /// A PDU with data carries one of both.
    One,
    Known {
        header: bool,
        data: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The next header is looked for, from this offset on.
    Searching(u64),
    /// The next header is at `at`.
    Framed,
    Closed,
}

/// Text of a login or text PDU that is being captured.
#[derive(Debug)]
struct Text {
    span: Range<u64>,
    bytes: Vec<u8>,
    continues: bool,
}

#[derive(Debug)]
pub(super) struct Framer {
    side: Side,
    state: State,
    at: u64,
    scraps: Scraps,
    /// Started, not ended: ascending.
    open: VecDeque<Range<u64>>,
    /// The offset from which headers are unknown, while `state` is `Searching` after framing was lost.
    lost_at: Option<u64>,
    searched_bytes: u64,
    context: Context,
    digests: Digests,
    are_digests_inferred: bool,
    /// Whether the last PDU carried data and began after the login: the offset of the next PDU then shows which digests
    /// are in use.
    last: Option<bool>,
    /// Within the login: the next PDU must be one of it.
    is_in_login: bool,
    text: Option<Text>,
    pub(super) pdus: u64,
    pub(super) unseen_bytes: u64,
    pub(super) opaque: Option<Opaque>,
}

/// What a place in the stream holds.
enum Found {
    Header([u8; BHS_LENGTH]),
    /// Only the lengths: the rest was not captured.
    Lengths([u8; BHS_LENGTH]),
    /// It has not passed, or not as a whole.
    Pending,
    /// It has passed and was not captured.
    Unseen,
}

impl Framer {
    /// `is_from_start` is false for a connection whose start was not captured.
    pub(super) fn new(side: Side, is_from_start: bool) -> Self {
        Self {
            side,
            state: if is_from_start { State::Framed } else { State::Searching(0) },
            at: 0,
            scraps: Scraps::default(),
            open: VecDeque::new(),
            lost_at: None,
            searched_bytes: 0,
            context: Context::default(),
            digests: Digests::Unknown,
            are_digests_inferred: false,
            last: None,
            is_in_login: is_from_start,
            text: None,
            pdus: 0,
            unseen_bytes: 0,
            opaque: None,
        }
    }

    pub(super) fn is_framed(&self) -> bool {
        self.state == State::Framed
    }

    /// Whether PDUs carry header and data digests; `None` if that is not known.
    pub(super) fn digests(&self) -> Option<(bool, bool)> {
        match self.digests {
            Digests::Known { header, data } => Some((header, data)),
            Digests::Unknown | Digests::One => None,
        }
    }

    /// Gives up reading PDUs.
    pub(super) fn close(&mut self, why: Opaque) {
        self.leave();
        self.opaque.get_or_insert(why);
    }

    /// PDUs are not read any more, for no reason that the stream shows.
    pub(super) fn leave(&mut self) {
        self.state = State::Closed;
        self.scraps = Scraps::default();
        self.open = VecDeque::new();
        self.text = None;
    }

    /// Memory that the queues take, about.
    pub(super) fn held_bytes(&self) -> usize {
        let text = self.text.as_ref().map_or(0, |text| text.bytes.capacity());
        self.scraps.held_bytes() + self.open.capacity() * size_of::<Range<u64>>() + text
    }

    /// Bytes have passed, captured or not: `half` holds them already.
    pub(super) fn advance(
        &mut self,
        half: &Half,
        captured: Captured<'_>,
        negotiated: &mut Negotiated,
        emit: &mut impl FnMut(Kind),
    ) {
        if self.state == State::Closed {
            return;
        }
        self.collect(half, captured, negotiated);
        loop {
            let is_on = match self.state {
                State::Searching(from) => self.search(half, captured, from, emit),
                State::Framed => self.step(half, captured, negotiated, emit),
                State::Closed => return,
            };
            self.end(half, emit);
            if !is_on {
                break;
            }
        }
        self.keep(captured);
    }

    /// Reads the header at `at`; returns whether there may be another.
    fn step(
        &mut self,
        half: &Half,
        captured: Captured<'_>,
        negotiated: &mut Negotiated,
        emit: &mut impl FnMut(Kind),
    ) -> bool {
        let header = match self.read(half, captured, self.at) {
            Found::Pending => return false,
            Found::Unseen => {
                self.lose();
                return true;
            }
            Found::Lengths(header) if self.not_iscsi(&header).is_some() => header,
            Found::Lengths(header) if sender(header[0]) == Some(self.side) => {
                let end = self.at.saturating_add(self.length(&header));
                self.unseen(self.at..end, emit);
                self.at = end;
                self.last = None;
                return true;
            }
            Found::Lengths(_) => {
                self.lose();
                return true;
            }
            Found::Header(header) => header,
        };
        if let Some(opaque) = self.not_iscsi(&header) {
            self.close(opaque);
            emit(Kind::Opaque(opaque));
            return false;
        }
        match self.settle_digests(half, captured, &header, negotiated) {
            Some(header) => self.start(half, captured, header, negotiated, emit),
            None => return self.state != State::Framed,
        }
        true
    }

    /// Whether what follows is known not to be PDUs.
    fn not_iscsi(&self, header: &[u8; BHS_LENGTH]) -> Option<Opaque> {
        let [first, second, third, ..] = *header;
        if self.at == 0 && self.pdus == 0 && first == 0x16 && second == 3 && third <= 4 {
            return Some(Opaque::Tls);
        }
        // docs/SEAL.md section 5: version 1, generation 0, kind 0, 48 to 1964 bytes of the head.
        let head_bytes = u16::from_be_bytes([header[2], header[3]]);
        let is_login = matches!(first & 0x3f, 0x03 | 0x23);
        let is_seal = first == 1 && second == 0 && (48..=1964).contains(&head_bytes);
        (self.is_in_login && self.pdus > 0 && !is_login && is_seal).then_some(Opaque::Sealed)
    }

    /// Finds out whether PDUs carry digests, by where the header after one lies. Returns the header, which may begin
    /// some bytes beyond `at`; `None` if it has not passed yet, or framing is lost.
    fn settle_digests(
        &mut self,
        half: &Half,
        captured: Captured<'_>,
        header: &[u8; BHS_LENGTH],
        negotiated: &Negotiated,
    ) -> Option<[u8; BHS_LENGTH]> {
        if self.digests == Digests::Unknown
            && !is_login(header)
            && let Some((header, data)) = negotiated.digests()
        {
            self.digests = Digests::Known { header, data };
        }
        if let (Digests::Unknown | Digests::One, Some(has_data)) = (self.digests, self.last) {
            if is_plausible(self.side, header, self.context) {
                self.infer(0, has_data);
                return Some(*header);
            }
            for digests in 1..=1 + u64::from(has_data) {
                let at = self.at + digests * DIGEST_BYTES;
                match self.read(half, captured, at) {
                    Found::Header(header) if is_plausible(self.side, &header, self.context) => {
                        self.infer(digests, has_data);
                        self.at = at;
                        return Some(header);
                    }
                    Found::Pending => return None,
                    _ => {}
                }
            }
        }
        if sender(header[0]) == Some(self.side) {
            return Some(*header);
        }
        self.lose();
        None
    }

    /// `digests` of them were behind a PDU with or without data.
    fn infer(&mut self, digests: u64, has_data: bool) {
        let known = |header, data| Digests::Known { header, data };
        self.digests = match (self.digests, has_data, digests) {
            (Digests::Unknown, true, 0) => known(false, false),
            (Digests::Unknown, true, 1) => Digests::One,
            (Digests::Unknown, true, _) | (Digests::One, true, 1..) => known(true, true),
            // The length of a PDU without data depends on the header digest alone.
            (Digests::One, false, 0) => known(false, true),
            (Digests::One, false, _) => known(true, false),
            (digests, ..) => digests,
        };
        self.are_digests_inferred = true;
    }

    fn start(
        &mut self,
        half: &Half,
        captured: Captured<'_>,
        header: [u8; BHS_LENGTH],
        negotiated: &mut Negotiated,
        emit: &mut impl FnMut(Kind),
    ) {
        let (offset, bytes) = (self.at, self.length(&header));
        let bhs = Bhs(&header);
        self.pdus += 1;
        self.context.learn(&header);
        let is_login = is_login(&header);
        self.last = (!is_login).then_some(bhs.data_segment_length() > 0);
        self.is_in_login = is_login && !(bhs.is_final() && header[1] & 3 == FULL_FEATURE);
        if self.open.len() == FLOW_PDUS_OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back(offset..offset.saturating_add(bytes));
        self.at = offset.saturating_add(bytes);
        self.scraps.drop_below(offset.saturating_add(BHS_LENGTH as u64));
        emit(Kind::PduStart(PduStart { offset, bytes, header }));
        let has_text = matches!(bhs.opcode(), Ok(Opcode::TextRequest | Opcode::TextResponse)) || is_login;
        if has_text && bhs.data_segment_length() > 0 {
            let digest = if self.has_header_digest(&header) { DIGEST_BYTES } else { 0 };
            let first = offset.saturating_add((BHS_LENGTH + bhs.total_ahs_length()) as u64 + digest);
            let span = first..first.saturating_add(bhs.data_segment_length().into());
            self.text = Some(Text { span, bytes: Vec::new(), continues: header[1] & 0x40 != 0 });
            self.collect(half, captured, negotiated);
        }
    }

    fn has_header_digest(&self, header: &[u8; BHS_LENGTH]) -> bool {
        !is_login(header) && matches!(self.digests, Digests::Known { header: true, .. })
    }

    /// Length of a PDU on the wire.
    fn length(&self, header: &[u8; BHS_LENGTH]) -> u64 {
        let bhs = Bhs(header);
        let data_bytes = u64::from(bhs.data_segment_length_padded());
        let digests = match self.digests {
            Digests::Known { header, data } if data_bytes > 0 => u64::from(header) + u64::from(data),
            Digests::Known { header, .. } => u64::from(header),
            Digests::One => u64::from(data_bytes > 0),
            Digests::Unknown => 0,
        };
        let digests = if is_login(header) { 0 } else { digests };
        (BHS_LENGTH + bhs.total_ahs_length()) as u64 + data_bytes + digests * DIGEST_BYTES
    }

    fn read(&self, half: &Half, captured: Captured<'_>, at: u64) -> Found {
        if let Some(bytes) =
            at.checked_sub(captured.offset).and_then(|skip| captured.bytes.get(skip as usize..))
            && let Some(header) = bytes.first_chunk()
        {
            return Found::Header(*header);
        }
        let span = at..at.saturating_add(BHS_LENGTH as u64);
        if !half.has_passed_any(&span) {
            return Found::Pending;
        }
        let mut header = [0; BHS_LENGTH];
        let found =
            self.scraps.copy(at, &mut header) | copy(captured.offset, captured.bytes, at, &mut header);
        if found == WHOLE {
            return Found::Header(header);
        }
        let is_missed = |index: &u64| {
            let byte = at.saturating_add(*index);
            found & 1 << index == 0 && half.has_passed_any(&(byte..byte.saturating_add(1)))
        };
        match (0..BHS_LENGTH as u64).find(is_missed) {
            None => Found::Pending,
            Some(_) if found & LENGTHS == LENGTHS => Found::Lengths(header),
            Some(_) => Found::Unseen,
        }
    }

    /// The chain of headers is broken at `at`.
    fn lose(&mut self) {
        self.lost_at = Some(self.at);
        self.state = State::Searching(self.at);
        self.searched_bytes = 0;
        self.last = None;
        self.is_in_login = false;
        if self.are_digests_inferred {
            self.digests = Digests::Unknown;
        }
    }

    fn unseen(&mut self, span: Range<u64>, emit: &mut impl FnMut(Kind)) {
        let bytes = span.end.saturating_sub(span.start);
        if bytes > 0 {
            self.unseen_bytes = self.unseen_bytes.saturating_add(bytes);
            emit(Kind::HeadersUnseen { offset: span.start, bytes });
        }
    }

    /// Looks for a header from `from` on; returns whether it was found.
    fn search(
        &mut self,
        half: &Half,
        captured: Captured<'_>,
        from: u64,
        emit: &mut impl FnMut(Kind),
    ) -> bool {
        let found = self.scraps.find(self.side, self.context, from);
        if let Some(at) = found.or_else(|| self.find(captured, from)) {
            if let Some(lost_at) = self.lost_at.take() {
                self.unseen(lost_at..at, emit);
            }
            self.at = at;
            self.state = State::Framed;
            return true;
        }
        self.searched_bytes = self.searched_bytes.saturating_add(captured.bytes.len() as u64);
        self.scraps = Scraps::default();
        if self.searched_bytes > FRAMING_SEARCH_BYTES_MAX {
            self.close(Opaque::Unframed);
            emit(Kind::Opaque(Opaque::Unframed));
        } else if let Some(lost_at) = self.lost_at
            && half.next > lost_at
        {
            // Said at once: what waits for a header must not take its absence for silence.
            self.unseen(lost_at..half.next, emit);
            self.lost_at = Some(half.next);
            self.state = State::Searching(half.next);
        }
        false
    }

    /// The first place in `captured` that is a plausible header, with a plausible one behind it if that is captured.
    fn find(&self, captured: Captured<'_>, from: u64) -> Option<u64> {
        let start = from.saturating_sub(captured.offset);
        let start = usize::try_from(start).ok().filter(|start| *start < captured.bytes.len())?;
        let is_aligned = self.lost_at.is_some();
        let first = captured.offset + start as u64;
        let pad = if is_aligned { (self.at.wrapping_sub(first) % 4) as usize } else { 0 };
        let places = (start + pad..captured.bytes.len()).step_by(if is_aligned { 4 } else { 1 });
        places.map(|at| (at, &captured.bytes[at..])).find_map(|(at, bytes)| {
            let header = bytes.first_chunk()?;
            let fits = is_plausible(self.side, header, self.context) && self.is_continued(header, bytes);
            fits.then_some(captured.offset + at as u64)
        })
    }

    /// Whether the bytes behind the PDU that begins `bytes` are a header too, or were not captured.
    fn is_continued(&self, header: &[u8; BHS_LENGTH], bytes: &[u8]) -> bool {
        let mut context = self.context;
        context.learn(header);
        let bhs = Bhs(header);
        let plain = BHS_LENGTH + bhs.total_ahs_length() + bhs.data_segment_length_padded() as usize;
        let mut behind = (0..=2).map(|digests| bytes.get(plain + digests * DIGEST_BYTES as usize..));
        let mut is_any_captured = false;
        let is_plausible = behind.any(|bytes| {
            let next = bytes.and_then(<[u8]>::first_chunk);
            is_any_captured |= next.is_some();
            next.is_none_or(|next| is_plausible(self.side, next, context))
        });
        is_plausible || !is_any_captured
    }

    /// Keeps captured bytes that are needed once a gap before them is filled, or the rest of a header has passed.
    fn keep(&mut self, captured: Captured<'_>) {
        match self.state {
            State::Framed if self.at < captured.offset => {
                let Captured { offset, bytes } = captured;
                self.scraps.keep_candidates(self.side, self.context, self.at, offset, bytes);
            }
            State::Framed if self.at < captured.end() => {
                let skip = (self.at - captured.offset) as usize;
                self.scraps.keep(self.at, &captured.bytes[skip..]);
            }
            _ => {}
        }
    }

    /// Ends the PDUs of which all bytes have passed.
    #[inline]
    fn end(&mut self, half: &Half, emit: &mut impl FnMut(Kind)) {
        let contiguous = half.contiguous();
        while let Some(span) = self.open.front()
            && span.end <= contiguous
        {
            emit(Kind::PduEnd(PduEnd { offset: span.start }));
            self.open.pop_front();
        }
    }

    /// Collects the text of a login or text PDU.
    fn collect(&mut self, half: &Half, captured: Captured<'_>, negotiated: &mut Negotiated) {
        let Some(text) = &mut self.text else { return };
        let at = text.span.start + text.bytes.len() as u64;
        if let Some(skip) = at.checked_sub(captured.offset)
            && let Some(bytes) = captured.bytes.get(usize::try_from(skip).unwrap_or(usize::MAX)..)
        {
            let room = NEGOTIATED_TEXT_BYTES_MAX.min((text.span.end - at) as usize);
            text.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        let at = text.span.start + text.bytes.len() as u64;
        let is_whole = at == text.span.end;
        if is_whole || half.has_passed_any(&(at..text.span.end)) {
            negotiated.add(self.side, &text.bytes, text.continues, is_whole);
            self.text = None;
        }
    }
}

fn is_login(header: &[u8; BHS_LENGTH]) -> bool {
    matches!(Opcode::parse(header[0]), Ok(Opcode::LoginRequest | Opcode::LoginResponse))
}
