//! INQUIRY (SPC-4 6.6), vital product data (SPC-4 7.8, SBC-3 6.5) and REPORT LUNS (SPC-4 6.34).

use super::attention::LUNS_CHANGED;
use super::copy::third_party_page;
use super::{Call, LogicalUnit, Stop, UnitConfig};
use crate::inquiry::SOLE_WRITER;
use crate::limits::{UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BLOCKS_MAX};
use crate::{Outcome, Sense, Step, text};

/// Supported VPD pages, ascending.
const PAGES: [u8; 8] = [0x00, 0x80, 0x83, 0x86, 0x8f, 0xb0, 0xb1, 0xb2];

/// Most characters of the unit serial number.
const SERIAL_MAX: usize = 64;

/// Bytes of the standard INQUIRY data: up to the end of the reserved bytes after the version descriptors.
const STANDARD_BYTES: usize = 96;

/// Version descriptors of SAM-5, iSCSI, SPC-4 and SBC-3, without a particular edition (SPC-4 annex E).
const VERSIONS: [u16; 4] = [0x00a0, 0x0960, 0x0460, 0x04c0];

pub(super) fn run(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let config = &unit.config;
    let data = match (call.cdb[1] & 0x01 != 0, call.cdb[2]) {
        (false, 0) => standard(config),
        (false, _) => return Err(Sense::field_in_cdb(2, None).into()),
        (true, page) => {
            let body = match page {
                0x00 => PAGES.to_vec(),
                0x80 => serial(config).into_bytes(),
                0x83 => identification(config),
                0x86 => extended(unit),
                0x8f => third_party_page(),
                0xb0 => block_limits(unit),
                0xb1 => characteristics(config),
                0xb2 => provisioning(config),
                _ => return Err(Sense::field_in_cdb(2, None).into()),
            };
            let mut data = vec![0x00, page];
            data.extend((body.len() as u16).to_be_bytes());
            data.extend(body);
            data
        }
    };
    Ok(Step::Done(cut(data, allocation(call.cdb))))
}

/// INQUIRY for a LUN without logical unit: peripheral qualifier 011b, device type 1Fh (SPC-4 6.6.2).
pub(crate) fn inquiry_without_unit(cdb: &[u8]) -> Outcome {
    if cdb.len() < 6 || cdb[1] & 0x01 != 0 {
        return Outcome::check(Sense::field_in_cdb(1, Some(0)));
    }
    if cdb[2] != 0 {
        return Outcome::check(Sense::field_in_cdb(2, None));
    }
    let mut data = vec![0; 36];
    data[0] = 0x7f;
    data[2] = 0x06;
    data[3] = 0x12;
    data[4] = 31;
    data[8..].fill(b' ');
    cut(data, allocation(cdb))
}

/// REPORT LUNS. It also clears 3Fh/0Eh REPORTED LUNS DATA HAS CHANGED.
pub(super) fn run_report_luns(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    unit.nexus(call.nexus).attentions.remove(LUNS_CHANGED);
    Ok(Step::Done(report_luns(call.cdb, call.inventory)))
}

/// REPORT LUNS for any LUN of the target. The target has no well-known logical units, so SELECT REPORT 01h is empty.
pub(crate) fn report_luns(cdb: &[u8], inventory: &[u64]) -> Outcome {
    if cdb.len() < 12 {
        return Outcome::check(Sense::field_in_cdb(0, None));
    }
    let luns = match cdb[2] {
        0x00 | 0x02 => inventory,
        0x01 => &[],
        _ => return Outcome::check(Sense::field_in_cdb(2, None)),
    };
    let mut data = Vec::with_capacity(8 + 8 * luns.len());
    data.extend((8 * luns.len() as u32).to_be_bytes());
    data.extend([0; 4]);
    data.extend(luns.iter().flat_map(|lun| lun.to_be_bytes()));
    cut(data, u32::from_be_bytes([cdb[6], cdb[7], cdb[8], cdb[9]]) as usize)
}

fn allocation(cdb: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([cdb[3], cdb[4]]))
}

fn cut(mut data: Vec<u8>, allocation: usize) -> Outcome {
    data.truncate(allocation);
    Outcome::data(data)
}

/// Standard INQUIRY data: SPC-4 table 175.
fn standard(config: &UnitConfig) -> Vec<u8> {
    let mut data = vec![0; STANDARD_BYTES];
    data[1] = if config.removable { 0x80 } else { 0x00 };
    // SPC-4.
    data[2] = 0x06;
    // HISUP, response data format 2.
    data[3] = 0x12;
    data[4] = (STANDARD_BYTES - 5) as u8;
    // 3PC. TPGS in this byte is zero.
    data[5] = 0x08;
    data[7] = 0x02;
    text::emit(&mut data[8..16], &config.vendor);
    text::emit(&mut data[16..32], &config.product);
    text::emit(&mut data[32..36], &config.revision);
    if config.sole_writer {
        data[36..56].copy_from_slice(&SOLE_WRITER);
    }
    for (slot, version) in data[58..74].chunks_exact_mut(2).zip(VERSIONS) {
        slot.copy_from_slice(&version.to_be_bytes());
    }
    data
}

/// Unit serial number, printable: SPC-4 7.8.15.
fn serial(config: &UnitConfig) -> String {
    let mut serial = vec![0; config.serial.len().min(SERIAL_MAX)];
    text::emit(&mut serial, &config.serial);
    serial.into_iter().map(char::from).collect()
}

/// Code sets (SPC-4 table 460).
const BINARY: u8 = 0x01;
const ASCII: u8 = 0x02;
const UTF8: u8 = 0x03;
/// Code set, and association with designator type, of the designators for the logical unit.
pub(super) const NAA: (u8, u8) = (BINARY, 0x03);
pub(super) const T10: (u8, u8) = (ASCII, 0x01);

/// The NAA designator: format 3h, locally assigned.
pub(super) fn naa(config: &UnitConfig) -> u64 {
    (config.naa & (u64::MAX >> 4)) | (0x3 << 60)
}

pub(super) fn t10(config: &UnitConfig) -> Vec<u8> {
    let mut vendor = vec![0; 8];
    text::emit(&mut vendor, &config.vendor);
    vendor.extend(serial(config).into_bytes());
    vendor
}

/// Device identification: SPC-4 7.8.6. NAA and T10 vendor ID for the logical unit; relative identifier, group and name
/// for the port; name for the device.
fn identification(config: &UnitConfig) -> Vec<u8> {
    // PROTOCOL IDENTIFIER iSCSI (valid with PIV), and associations.
    const ISCSI: u8 = 0x50;
    const PORT: u8 = 0x90;
    const DEVICE: u8 = 0xa0;

    let mut page = Vec::with_capacity(256);
    let mut designator = |code_set: u8, kind: u8, value: &[u8]| {
        page.extend([code_set, kind, 0, value.len() as u8]);
        page.extend(value);
    };
    designator(NAA.0, NAA.1, &naa(config).to_be_bytes());
    designator(T10.0, T10.1, &t10(config));
    let [high, low] = config.relative_port.to_be_bytes();
    designator(ISCSI | BINARY, PORT | 0x04, &[0, 0, high, low]);
    let [high, low] = config.target_port_group.to_be_bytes();
    designator(ISCSI | BINARY, PORT | 0x05, &[0, 0, high, low]);
    // RFC 7143 4.2.7.1 and SPC-4 7.6.4.3: the port name is the target name, ",t,0x" and the group tag.
    designator(
        ISCSI | UTF8,
        PORT | 0x08,
        &name(&config.target_name, &format!(",t,0x{:04x}", config.target_port_group)),
    );
    designator(ISCSI | UTF8, DEVICE | 0x08, &name(&config.target_name, ""));
    page
}

/// A SCSI name string: UTF-8, terminated and padded with zeros to a multiple of four. An iSCSI name has at most 223
/// bytes (RFC 7143 4.2.7.1), so the length fits in its byte.
fn name(target: &str, suffix: &str) -> Vec<u8> {
    let mut end = target.len().min(223);
    while !target.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = target.as_bytes()[..end].to_vec();
    name.extend(suffix.as_bytes());
    name.push(0);
    name.resize(name.len().next_multiple_of(4), 0);
    name
}

/// Extended INQUIRY data: SPC-4 7.8.7.
fn extended(unit: &LogicalUnit) -> Vec<u8> {
    let mut page = vec![0; 0x3c];
    // SIMPSUP only: ORDERED and HEAD OF QUEUE would guarantee an order that this target does not keep.
    page[5 - 4] = 0x01;
    // V_SUP: the cache is volatile.
    page[6 - 4] = u8::from(unit.config.write_cache);
    page
}

/// Block limits: SBC-3 6.5.3. Every limit reported is enforced.
fn block_limits(unit: &LogicalUnit) -> Vec<u8> {
    let config = &unit.config;
    let granularity = config.physical_block_size / config.block_size;
    let optimal = config.optimal_transfer_bytes / config.physical_block_size * granularity;
    let mut page = vec![0; 0x3c];
    // Offsets count from the start of the page; the header of four bytes is not in `page`.
    let mut put = |offset: usize, value: u32| page[offset - 4..offset].copy_from_slice(&value.to_be_bytes());
    put(8, unit.transfer_max_blocks() as u32);
    put(12, optimal);
    if config.thin {
        put(20, UNMAP_BLOCKS_MAX);
        put(24, UNMAP_DESCRIPTORS_MAX);
        put(28, granularity);
        // UGAVALID, alignment 0.
        put(32, 0x8000_0000);
    }
    // WSNZ.
    page[0] = 0x01;
    page[2..4].copy_from_slice(&u16::try_from(granularity).unwrap_or(u16::MAX).to_be_bytes());
    page[36 - 4..44 - 4].copy_from_slice(&u64::from(WRITE_SAME_BLOCKS_MAX).to_be_bytes());
    page
}

/// Block device characteristics: SBC-3 6.5.2.
fn characteristics(config: &UnitConfig) -> Vec<u8> {
    let mut page = vec![0; 0x3c];
    let rotation: u16 = if config.rotational { 7200 } else { 1 };
    page[..2].copy_from_slice(&rotation.to_be_bytes());
    page
}

/// Logical block provisioning: SBC-3 6.5.4.
fn provisioning(config: &UnitConfig) -> Vec<u8> {
    if config.thin {
        // LBPU, LBPWS, LBPWS10, LBPRZ 001b; provisioning type 010b thin.
        vec![0, 0xe4, 0x02, 0]
    } else {
        vec![0; 4]
    }
}
