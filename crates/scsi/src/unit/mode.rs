//! MODE SENSE and MODE SELECT (SPC-4 6.9 to 6.12) and the mode pages (SPC-4 7.5, SBC-3 6.4).

use super::attention::MODE_CHANGED;
use super::{Call, LogicalUnit, Stop, UnitConfig};
use crate::cdb::opcode;
use crate::{Media, MediaOp, Outcome, Sense, Step};

/// Read-Write Error Recovery, Caching, Control, Informational Exceptions Control: page code and length in bytes.
const LAYOUT: [(u8, usize); 4] = [(0x01, 12), (CACHING, 20), (CONTROL, 12), (0x1c, 12)];
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
/// Offsets of the Caching and the Control page in [`Pages::current`].
const CACHING_AT: usize = 12;
const CONTROL_AT: usize = 32;
const PAGES_BYTES: usize = 56;

/// Caching byte 2.
const WCE: u8 = 0x04;
/// Control byte 2.
const D_SENSE: u8 = 0x04;
/// Control byte 4.
const SWP: u8 = 0x08;

/// The mode pages of a unit: current, default and changeable values. Saved values are not supported.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pages {
    current: [u8; PAGES_BYTES],
    default: [u8; PAGES_BYTES],
    changeable: [u8; PAGES_BYTES],
}

impl Pages {
    pub(super) fn new(config: &UnitConfig) -> Self {
        let mut default = [0; PAGES_BYTES];
        let mut at = 0;
        for (code, length) in LAYOUT {
            default[at] = code;
            default[at + 1] = (length - 2) as u8;
            at += length;
        }
        assert_eq!(at, PAGES_BYTES);
        let mut changeable = default;
        // A write-through unit does not allow WCE to be set.
        if config.write_cache {
            default[CACHING_AT + 2] |= WCE;
            changeable[CACHING_AT + 2] |= WCE;
        }
        // GLTSD; QUEUE ALGORITHM MODIFIER 1h, unrestricted reordering; BUSY TIMEOUT PERIOD unlimited.
        default[CONTROL_AT + 2] |= 0x02;
        default[CONTROL_AT + 3] = 0x10;
        default[CONTROL_AT + 8..CONTROL_AT + 10].copy_from_slice(&[0xff, 0xff]);
        changeable[CONTROL_AT + 2] |= D_SENSE;
        changeable[CONTROL_AT + 4] |= SWP;
        // DEXCPT: no informational exceptions.
        default[CONTROL_AT + 12 + 2] = 0x08;
        Self { current: default, default, changeable }
    }

    pub(super) fn write_cache(&self) -> bool {
        self.current[CACHING_AT + 2] & WCE != 0
    }

    pub(super) fn descriptor_sense(&self) -> bool {
        self.current[CONTROL_AT + 2] & D_SENSE != 0
    }

    pub(super) fn software_write_protect(&self) -> bool {
        self.current[CONTROL_AT + 4] & SWP != 0
    }

    fn place(code: u8) -> Option<(usize, usize)> {
        let mut at = 0;
        for (known, length) in LAYOUT {
            if known == code {
                return Some((at, length));
            }
            at += length;
        }
        None
    }
}

fn is_short(cdb: &[u8]) -> bool {
    matches!(cdb[0], opcode::MODE_SENSE_6 | opcode::MODE_SELECT_6)
}

pub(super) fn sense(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let cdb = call.cdb;
    let short = is_short(cdb);
    let (control, code, subpage) = (cdb[2] >> 6, cdb[2] & 0x3f, cdb[3]);
    let values = match control {
        0b00 => &unit.pages.current,
        0b01 => &unit.pages.changeable,
        0b10 => &unit.pages.default,
        _ => return Err(Sense::NO_SAVING.into()),
    };
    // No page has subpages: 00h selects the page, FFh the page and its (zero) subpages.
    if !matches!(subpage, 0x00 | 0xff) {
        return Err(Sense::field_in_cdb(3, None).into());
    }
    let pages = match code {
        0x3f => &values[..],
        _ => {
            let (at, length) = Pages::place(code).ok_or(Sense::field_in_cdb(2, Some(5)))?;
            &values[at..at + length]
        }
    };
    let long_lba = !short && cdb[1] & 0x10 != 0;
    let descriptor = if cdb[1] & 0x08 != 0 { Vec::new() } else { block_descriptor(&unit.config, long_lba) };
    // DEVICE-SPECIFIC PARAMETER (SBC-3 6.4.1): WP for this nexus, and DPOFUA.
    let specific = (u8::from(unit.write_protected(call.rights)) << 7) | 0x10;
    let header = if short { 4 } else { 8 };
    let total = header + descriptor.len() + pages.len();
    let mut data = Vec::with_capacity(total);
    if short {
        data.extend([(total - 1) as u8, 0, specific, descriptor.len() as u8]);
    } else {
        data.extend(((total - 2) as u16).to_be_bytes());
        data.extend([0, specific, u8::from(long_lba), 0, 0, descriptor.len() as u8]);
    }
    data.extend(descriptor);
    data.extend(pages);
    data.truncate(if short { cdb[4].into() } else { u16::from_be_bytes([cdb[7], cdb[8]]).into() });
    Ok(Step::Done(Outcome::data(data)))
}

/// Short or long LBA mode parameter block descriptor: SBC-3 6.4.2.
fn block_descriptor(config: &UnitConfig, long: bool) -> Vec<u8> {
    let mut data = Vec::with_capacity(16);
    if long {
        data.extend(config.blocks.to_be_bytes());
        data.extend([0; 4]);
    } else {
        data.extend(u32::try_from(config.blocks).unwrap_or(u32::MAX).to_be_bytes());
    }
    data.extend(config.block_size.to_be_bytes());
    data
}

/// MODE SELECT (6) and (10), before the parameter list.
pub(super) fn select(_: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let flags = call.cdb[1];
    // SP (no saved pages), and RTD, which is optional in SPC-4.
    for bit in [0, 1] {
        if flags & (1 << bit) != 0 {
            return Err(Sense::field_in_cdb(1, Some(bit)).into());
        }
    }
    let bytes = list_bytes(call.cdb);
    if bytes == 0 {
        return Ok(Step::Done(Outcome::good()));
    }
    // PF: without it the pages are vendor-specific.
    if flags & 0x10 == 0 {
        return Err(Sense::field_in_cdb(1, Some(4)).into());
    }
    // A longer list is invalid, and its first bytes reveal that.
    Ok(Step::Collect { list_bytes: bytes, bytes: bytes.min(LIST_MAX_BYTES) })
}

/// Most bytes of a list that are collected: far more than all pages with a long block descriptor.
const LIST_MAX_BYTES: u32 = 1024;

fn list_bytes(cdb: &[u8]) -> u32 {
    if is_short(cdb) { cdb[4].into() } else { u16::from_be_bytes([cdb[7], cdb[8]]).into() }
}

/// The mode parameter list: all of it is checked before any of it takes effect (SPC-4 6.9.1).
pub(super) fn select_list(unit: &mut LogicalUnit, call: Call<'_>, list: &[u8]) -> Result<Step, Stop> {
    let requested = list_bytes(call.cdb).min(LIST_MAX_BYTES) as usize;
    let list = list.get(..requested).ok_or(Sense::LIST_LENGTH)?;
    let mut at = check_block_descriptor(&unit.config, is_short(call.cdb), list)?;
    let mut staged = unit.pages.current;
    while at < list.len() {
        let rest = &list[at..];
        let &[first, length, ..] = rest else { return Err(Sense::LIST_LENGTH.into()) };
        // SPF: no subpages are supported. PS is reserved here and ignored.
        if first & 0x40 != 0 {
            return Err(Sense::field_in_list(at as u16, Some(6)).into());
        }
        let (place, known) = Pages::place(first & 0x3f).ok_or(Sense::field_in_list(at as u16, Some(5)))?;
        if usize::from(length) + 2 != known {
            return Err(Sense::field_in_list(at as u16 + 1, None).into());
        }
        let page = rest.get(..known).ok_or(Sense::LIST_LENGTH)?;
        let current = &unit.pages.current[place..place + known];
        let changeable = &unit.pages.changeable[place..place + known];
        for (offset, ((requested, is), mask)) in page.iter().zip(current).zip(changeable).enumerate().skip(2)
        {
            let fixed = (requested ^ is) & !mask;
            if fixed != 0 {
                let bit = 7 - fixed.leading_zeros() as u8;
                return Err(Sense::field_in_list((at + offset) as u16, Some(bit)).into());
            }
        }
        staged[place + 2..place + known].copy_from_slice(&page[2..]);
        at += known;
    }
    if staged == unit.pages.current {
        return Ok(Step::Done(Outcome::good()));
    }
    let cached = unit.pages.write_cache();
    unit.pages.current = staged;
    // SPC-4 6.9.1: a unit attention for every other nexus.
    unit.establish(Some(call.nexus), MODE_CHANGED);
    if cached && !unit.pages.write_cache() {
        // SBC-3 6.4.5: clearing WCE writes the cache first. Later writes are durable, so one flush suffices.
        let blocks = unit.config.blocks;
        return unit.media(Media::new(MediaOp::Flush, 0, blocks));
    }
    Ok(Step::Done(Outcome::good()))
}

/// Checks header and block descriptor, which must not change any value. Returns the offset of the pages.
fn check_block_descriptor(config: &UnitConfig, short: bool, list: &[u8]) -> Result<usize, Stop> {
    let header = if short { 4 } else { 8 };
    if list.len() < header {
        return Err(Sense::LIST_LENGTH.into());
    }
    let (length, length_at, long) = if short {
        (usize::from(list[3]), 3, false)
    } else {
        (usize::from(u16::from_be_bytes([list[6], list[7]])), 6, list[4] & 0x01 != 0)
    };
    if length == 0 {
        return Ok(header);
    }
    if length != if long { 16 } else { 8 } {
        return Err(Sense::field_in_list(length_at, None).into());
    }
    let descriptor = list.get(header..header + length).ok_or(Sense::LIST_LENGTH)?;
    let mut same = block_descriptor(config, long);
    // NUMBER OF LOGICAL BLOCKS: zero means unchanged (SBC-3 6.4.2.2). Density code, byte 4, is reserved.
    let number = if long { 8 } else { 4 };
    if descriptor[..number].iter().all(|byte| *byte == 0) {
        same[..number].fill(0);
    }
    match descriptor.iter().zip(&same).position(|(got, known)| got != known) {
        Some(offset) => Err(Sense::field_in_list((header + offset) as u16, None).into()),
        None => Ok(header + length),
    }
}
