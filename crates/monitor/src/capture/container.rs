//! pcap and pcapng files: frames with their time, interface and link type.
//!
//! Read first: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng. The crate `pcap-parser` is as fast (23 million frames
//! of 96 bytes a second, measured), but ends at the first malformed block without its length, so that nothing after it
//! can be read; collects all options of each packet, up to ten times the block; hides the error of the reader; takes
//! no short first read from a pipe; and reads `if_tsoffset` as little-endian always. The two containers are small.

use super::error::{CaptureError, Note};
use super::input::Input;
use crate::limits::{CAPTURE_INTERFACES_MAX, CAPTURE_RECORD_BYTES_MAX};

/// A frame as captured; borrows from the buffer until the next one is read.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// From 1, over all inputs.
    pub number: u64,
    /// Nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// Index of the interface in its section; 0 in pcap.
    pub interface: u32,
    /// As in the registry of link types: 1 is Ethernet.
    pub link_type: u16,
    /// Snap length of the interface, bytes; 0 is none.
    pub snap_bytes: u32,
    /// Length on the wire, bytes; may exceed `bytes`.
    pub original_bytes: u32,
    /// What was captured.
    pub bytes: &'a [u8],
}

/// Where the current frame lies within the input's bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Current {
    at_ns: u64,
    interface: u32,
    original_bytes: u32,
    /// Within the record.
    data: (usize, usize),
    /// Whole record, consumed before the next one.
    record: usize,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link_type: u16,
    snap_bytes: u32,
    clock: Clock,
    /// As its last statistics say.
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
enum Format {
    Pcap { big: bool, head: usize },
    Pcapng { big: bool },
}

pub(super) struct Container {
    input: Input,
    format: Format,
    interfaces: Vec<Interface>,
    current: Current,
    number: u64,
    /// Number of the last frame before this file.
    number_before: u64,
    is_over: bool,
    dropped_before: u64,
    skipped: u64,
    untimed: u64,
    pub(super) notes: Vec<Note>,
}

impl Container {
    /// Reads the header; `number` is that of the last frame before.
    pub(super) fn new(mut input: Input, number: u64) -> Result<Self, CaptureError> {
        let (format, interface) = open(&mut input)?;
        Ok(Self {
            input,
            format,
            interfaces: interface.into_iter().collect(),
            current: Current::default(),
            number,
            number_before: number,
            is_over: false,
            dropped_before: 0,
            skipped: 0,
            untimed: 0,
            notes: Vec::new(),
        })
    }

    /// Goes to the next frame; false at the end.
    #[inline]
    pub(super) fn advance(&mut self) -> bool {
        if self.is_over {
            return false;
        }
        self.input.consume(self.current.record);
        self.current.record = 0;
        let found = match self.format {
            Format::Pcap { big, head } => self.pcap(big, head),
            Format::Pcapng { .. } => self.pcapng(),
        };
        if found {
            self.number += 1;
        } else {
            self.finish();
        }
        found
    }

    /// The frame to which `advance` went last.
    #[inline]
    pub(super) fn frame(&self) -> Frame<'_> {
        let (from, to) = self.current.data;
        let interface = self.interfaces.get(self.current.interface as usize);
        Frame {
            number: self.number,
            at_ns: self.current.at_ns,
            interface: self.current.interface,
            link_type: interface.map_or(u16::MAX, |interface| interface.link_type),
            snap_bytes: interface.map_or(0, |interface| interface.snap_bytes),
            original_bytes: self.current.original_bytes,
            bytes: self.input.bytes().get(from..to).unwrap_or(&[]),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// What kept the reader from even one frame; the note is no longer among `notes`.
    pub(super) fn take_failure(&mut self) -> Option<Note> {
        if self.number > self.number_before {
            return None;
        }
        let is_end = |note: &mut Note| {
            matches!(note, Note::Cut { .. } | Note::ReadFailed { .. } | Note::Damaged { .. })
        };
        self.notes.extract_if(.., is_end).next()
    }

    fn finish(&mut self) {
        self.is_over = true;
        let dropped = self.dropped();
        let counted = [
            (self.skipped, Note::Skipped(self.skipped)),
            (self.untimed, Note::Untimed(self.untimed)),
            (dropped, Note::Dropped(dropped)),
        ];
        self.notes.extend(counted.into_iter().filter(|(count, _)| *count > 0).map(|(_, note)| note));
    }

    fn dropped(&self) -> u64 {
        self.interfaces
            .iter()
            .fold(self.dropped_before, |sum, interface| sum.saturating_add(interface.dropped))
    }

    /// Notes why no whole record of `wanted` bytes is there.
    fn ended(&mut self) {
        let frames = self.number;
        if let Some(error) = self.input.take_error() {
            self.notes.push(Note::ReadFailed { frames, cause: error.to_string() });
        } else if !self.input.bytes().is_empty() || self.input.is_cut() {
            self.notes.push(Note::Cut { frames });
        }
    }

    fn damaged(&mut self, what: &'static str) {
        let (frames, offset) = (self.number, self.input.position());
        self.notes.push(Note::Damaged { frames, offset, what });
    }

    fn pcap(&mut self, big: bool, head: usize) -> bool {
        if !self.input.has(head) {
            self.ended();
            return false;
        }
        let word = |at| u32_at(self.input.bytes(), at, big);
        let (seconds, part, captured, original) = (word(0), word(4), word(8) as usize, word(12));
        if captured > CAPTURE_RECORD_BYTES_MAX - head {
            self.damaged("the length of a frame is impossible");
            return false;
        }
        if !self.input.has(head + captured) {
            self.ended();
            return false;
        }
        let Clock { unit, .. } = self.interfaces[0].clock;
        self.current = Current {
            at_ns: u64::from(seconds) * 1_000_000_000 + u64::from(part) * if unit == NANO { 1 } else { 1000 },
            interface: 0,
            original_bytes: original.max(u32::try_from(captured).unwrap_or(u32::MAX)),
            data: (head, head + captured),
            record: head + captured,
        };
        true
    }

    /// Reads blocks until one is a frame.
    fn pcapng(&mut self) -> bool {
        loop {
            if !self.input.has(12) {
                self.ended();
                return false;
            }
            if self.input.bytes()[..4] == SECTION.to_be_bytes() && !self.section() {
                self.damaged("a section has no byte order");
                return false;
            }
            let Format::Pcapng { big } = self.format else { return false };
            let (kind, length) = (u32_at(self.input.bytes(), 0, big), u32_at(self.input.bytes(), 4, big));
            if length < 12 || length % 4 != 0 {
                self.damaged("the length of a block is impossible");
                return false;
            }
            let length = length as usize;
            if length > CAPTURE_RECORD_BYTES_MAX {
                // No frame is that large: a list of names or of secrets, which nothing here needs.
                self.skipped += u64::from(matches!(kind, ENHANCED | PACKET | SIMPLE));
                if !self.input.skip(length as u64) {
                    self.notes.push(Note::Cut { frames: self.number });
                    return false;
                }
                continue;
            }
            if !self.input.has(length) {
                self.ended();
                return false;
            }
            if u32_at(self.input.bytes(), length - 4, big) as usize != length {
                self.damaged("the two lengths of a block differ");
                return false;
            }
            match kind {
                ENHANCED | PACKET if self.packet(kind, length, big) => return true,
                ENHANCED | PACKET => {
                    self.number += 1;
                    self.skipped += 1;
                }
                INTERFACE => self.interface(length, big),
                STATISTICS => self.statistics(length, big),
                SIMPLE => {
                    self.number += 1;
                    self.untimed += 1;
                }
                _ => {}
            }
            self.input.consume(length);
        }
    }

    /// Takes the byte order of a section, whose interfaces are counted from 0 again; false if it has none.
    fn section(&mut self) -> bool {
        let Some(big) = byte_order(self.input.bytes()) else { return false };
        self.format = Format::Pcapng { big };
        self.dropped_before = self.dropped();
        self.interfaces.clear();
        true
    }

    fn interface(&mut self, length: usize, big: bool) {
        if length < 20 || self.interfaces.len() >= CAPTURE_INTERFACES_MAX {
            self.skipped += 1;
            return;
        }
        let block = &self.input.bytes()[..length];
        let mut clock = Clock { unit: MICRO, offset_s: 0 };
        for (code, value) in options(&block[16..length - 4], big) {
            match (code, value.len()) {
                (9, 1..) => clock.unit = value[0],
                (14, 8) => {
                    let bytes = value.try_into().expect("its length is 8");
                    clock.offset_s = if big { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) };
                }
                _ => {}
            }
        }
        let interface = Interface {
            link_type: u16_at(block, 8, big),
            snap_bytes: u32_at(block, 12, big),
            clock,
            dropped: 0,
        };
        self.interfaces.push(interface);
    }

    /// isb_ifdrop and isb_osdrop of an interface statistics block: counts since the capture began.
    fn statistics(&mut self, length: usize, big: bool) {
        if length < 24 {
            return;
        }
        let block = &self.input.bytes()[..length];
        let index = u32_at(block, 8, big) as usize;
        let dropped = options(&block[20..length - 4], big)
            .filter(|(code, value)| matches!(code, 5 | 7) && value.len() == 8)
            .map(|(_, value)| value.try_into().expect("its length is 8"))
            .map(|value| if big { u64::from_be_bytes(value) } else { u64::from_le_bytes(value) })
            .fold(0, u64::saturating_add);
        if let Some(interface) = self.interfaces.get_mut(index) {
            interface.dropped = dropped;
        }
    }

    /// An enhanced packet block, or its obsolete precursor; false if it is malformed.
    #[inline]
    fn packet(&mut self, kind: u32, length: usize, big: bool) -> bool {
        const HEAD: usize = 28;
        if length < HEAD + 4 {
            return false;
        }
        let block = &self.input.bytes()[..length];
        let interface = if kind == PACKET { u32::from(u16_at(block, 8, big)) } else { u32_at(block, 8, big) };
        let (high, low) = (u32_at(block, 12, big), u32_at(block, 16, big));
        let (captured, original) = (u32_at(block, 20, big), u32_at(block, 24, big));
        if captured as usize > length - HEAD - 4 {
            return false;
        }
        let Some(known) = self.interfaces.get(interface as usize) else { return false };
        self.current = Current {
            at_ns: known.clock.ns(u64::from(high) << 32 | u64::from(low)),
            interface,
            original_bytes: original.max(captured),
            data: (HEAD, HEAD + captured as usize),
            record: length,
        };
        true
    }
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE: u32 = 3;
const STATISTICS: u32 = 5;
const ENHANCED: u32 = 6;

/// `if_tsresol`: a negative power of ten, or of two with the highest bit.
/// Latest time of a packet, in the year 2262: a time and a round trip can be added.
const TIME_NS_MAX: u64 = i64::MAX as u64;
const MICRO: u8 = 6;
const NANO: u8 = 9;

#[derive(Clone, Copy, Debug)]
struct Clock {
    unit: u8,
    offset_s: i64,
}

impl Clock {
    #[inline]
    fn ns(self, ticks: u64) -> u64 {
        let ns = match (self.unit, self.offset_s) {
            (NANO, 0) => ticks,
            (MICRO, 0) => ticks.saturating_mul(1000),
            _ => self.ns_of_any(ticks),
        };
        ns.min(TIME_NS_MAX)
    }

    fn ns_of_any(self, ticks: u64) -> u64 {
        let ticks = u128::from(ticks);
        let ns = match self.unit {
            unit if unit & 0x80 != 0 => (ticks * 1_000_000_000) >> (unit & 0x7f),
            unit if unit <= NANO => ticks * 10_u128.pow(u32::from(NANO - unit)),
            unit => 10_u128.checked_pow(u32::from(unit - NANO)).map_or(0, |divisor| ticks / divisor),
        };
        let offset = i128::from(self.offset_s) * 1_000_000_000;
        let ns = i128::try_from(ns).unwrap_or(i128::MAX).saturating_add(offset);
        u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
    }
}

/// Options of a block: code and value.
fn options(mut bytes: &[u8], big: bool) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        if bytes.len() < 4 {
            return None;
        }
        let (code, length) = (u16_at(bytes, 0, big), usize::from(u16_at(bytes, 2, big)));
        let value = bytes.get(4..4 + length).filter(|_| code != 0)?;
        bytes = bytes.get(4 + length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((code, value))
    })
}

fn byte_order(section: &[u8]) -> Option<bool> {
    match section.get(8..12)? {
        [0x1a, 0x2b, 0x3c, 0x4d] => Some(true),
        [0x4d, 0x3c, 0x2b, 0x1a] => Some(false),
        _ => None,
    }
}

/// Finds the format, and reads the header of pcap.
fn open(input: &mut Input) -> Result<(Format, Option<Interface>), CaptureError> {
    let header = input.has(24);
    let bytes = input.bytes();
    let Some(magic) = bytes.first_chunk::<4>() else { return Err(unrecognised(input)) };
    // The byte order is the file's; the number says the unit of the fraction, and longer heads of a variant.
    let (big, unit, head) = match u32::from_be_bytes(*magic) {
        SECTION => {
            let big = match byte_order(bytes) {
                Some(big) => big,
                None if bytes.len() < 12 => return Err(cut(input)),
                None => return Err(unrecognised(input)),
            };
            return Ok((Format::Pcapng { big }, None));
        }
        0xa1b2_c3d4 => (true, MICRO, 16),
        0xd4c3_b2a1 => (false, MICRO, 16),
        0xa1b2_3c4d => (true, NANO, 16),
        0x4d3c_b2a1 => (false, NANO, 16),
        0xa1b2_cd34 => (true, MICRO, 24),
        0x34cd_b2a1 => (false, MICRO, 24),
        _ => return Err(unrecognised(input)),
    };
    if !header {
        return Err(cut(input));
    }
    // The upper half of the last word describes the check sequence of frames.
    let link_type = (u32_at(bytes, 20, big) & 0xffff) as u16;
    let snap_bytes = u32_at(bytes, 16, big);
    input.consume(24);
    let interface = Interface { link_type, snap_bytes, clock: Clock { unit, offset_s: 0 }, dropped: 0 };
    Ok((Format::Pcap { big, head }, Some(interface)))
}

fn cut(input: &mut Input) -> CaptureError {
    match input.take_error() {
        Some(error) => CaptureError::Read(error),
        None => CaptureError::HeaderCut { bytes: input.bytes().len() as u64 },
    }
}

fn unrecognised(input: &mut Input) -> CaptureError {
    const COMPRESSED: [(&[u8], &str); 4] =
        [(b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4")];
    if let Some(error) = input.take_error() {
        return CaptureError::Read(error);
    }
    let bytes = input.bytes();
    if bytes.is_empty() {
        return CaptureError::Empty;
    }
    match COMPRESSED.into_iter().find(|(magic, _)| bytes.starts_with(magic)) {
        Some((_, program)) => CaptureError::Compressed { program },
        None if crate::record::is_recording(bytes) => CaptureError::Recording,
        None => CaptureError::Unrecognised(bytes[..bytes.len().min(8)].escape_ascii().to_string()),
    }
}

#[inline]
fn u32_at(bytes: &[u8], at: usize, big: bool) -> u32 {
    let value =
        bytes.get(at..at + 4).map_or(0, |four| u32::from_be_bytes(four.try_into().expect("four bytes")));
    if big { value } else { value.swap_bytes() }
}

#[inline]
fn u16_at(bytes: &[u8], at: usize, big: bool) -> u16 {
    let value = bytes.get(at..at + 2).map_or(0, |two| u16::from_be_bytes(two.try_into().expect("two bytes")));
    if big { value } else { value.swap_bytes() }
}
