//! Reads the properties of a disk before anything is copied: one command after the other, each to its completion.

use std::io::Result;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use block::OpenError;
use scsi::capacity::Capacity;
use scsi::cdb::{self, Cdb};
use scsi::inquiry::{self, BlockLimits, Characteristics, DesignatorId, Provisioning, Standard};
use scsi::mode::ModeData;

use super::answer::{Answer, judge};
use super::header::{Direction, Header, SENSE_BYTES, is_sg};
use crate::disk::{Disk, Zeroing};
use crate::endpoint::Verdict;

const TIMEOUT_MS: u32 = 30_000;
/// Time limit for a disk to become ready (a spindle), and the pause between attempts.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);
/// Most unit attentions pending at a disk.
const ATTEMPTS_MAX: u32 = 8;
/// Most bytes of a response that are read.
const ANSWER_BYTES: u8 = 252;

pub(crate) fn probe(device: &OwnedFd) -> std::result::Result<(Disk, bool), OpenError> {
    let failed = |text: String| OpenError::Failed(text);
    if !is_sg(device) {
        return Err(failed("it does not speak version 3 of sg's interface".into()));
    }
    query(device, cdb::test_unit_ready(), 0)?;
    let standard = query(device, cdb::inquiry(None, 96), 96)?;
    let standard =
        Standard::parse(&standard).ok_or_else(|| failed("its INQUIRY data is cut short".into()))?;
    if !standard.is_disk() {
        let kind = standard.device_type;
        return Err(OpenError::Usage(format!(
            "it is not a disk: SCSI device type {kind:02X}h (lsscsi -g lists them)"
        )));
    }
    let (capacity, long) = match query(device, cdb::read_capacity_16(32), 32) {
        Ok(data) => (Capacity::parse_16(&data), true),
        Err(_) => (Capacity::parse_10(&query(device, cdb::read_capacity_10(), 8)?), false),
    };
    let capacity = capacity.ok_or_else(|| failed("it does not report its size".into()))?;
    let supported = page(device, 0x00);
    let supported = supported.as_deref().and_then(inquiry::supported_pages).unwrap_or_default();
    let has = |code: u8| supported.contains(&code).then(|| page(device, code)).flatten();
    let limits = has(0xb0).as_deref().and_then(BlockLimits::parse);
    let provisioning = has(0xb2).as_deref().and_then(Provisioning::parse);
    let designator = has(0x83).as_deref().and_then(designator).unwrap_or_default();
    let serial = has(0x80).as_deref().and_then(inquiry::serial);
    let rate = has(0xb1).as_deref().and_then(Characteristics::parse).map(|page| page.rotation_rate);
    let mode = query(device, cdb::mode_sense_6(0x08, ANSWER_BYTES), ANSWER_BYTES.into()).ok();
    let mode = mode.as_deref().and_then(ModeData::parse_6);
    // WRITE SAME with UNMAP deallocates, and deallocated blocks read as zeroes; without UNMAP its duration is unknown.
    let zeroing = provisioning.filter(|page| long && page.write_same_16 && page.reads_zero).map(|_| {
        Zeroing { blocks_max: limits.map_or(0, |limits| limits.write_same_max_blocks), keeps: false }
    });
    // Without the Caching page a volatile cache is assumed, so flushes are sent.
    let write_cache = mode.as_ref().and_then(ModeData::caching).is_none_or(|caching| caching.write_cache);
    let fua = mode.as_ref().is_some_and(|mode| mode.dpo_fua);
    let mut facts = vec![
        ("kind", "SCSI disk, by its own commands".to_owned()),
        ("vendor", standard.vendor().trim().to_owned()),
        ("product", standard.product().trim().to_owned()),
        ("revision", standard.revision().trim().to_owned()),
    ];
    facts.extend(serial.map(|serial| ("serial", serial.trim().to_owned())));
    facts.extend((!designator.is_empty()).then(|| ("designator", designator.clone())));
    facts.push(("commands", if long { "READ(16), WRITE(16)" } else { "READ(10), WRITE(10)" }.to_owned()));
    facts.push(("FUA", fua.to_string()));
    facts.push(("WCE", write_cache.to_string()));
    let disk = Disk {
        blocks: capacity.blocks,
        block_size: capacity.block_size,
        physical_block_size: capacity.physical_block_size().unwrap_or(capacity.block_size),
        transfer_blocks_max: limits
            .map(|limits| u64::from(limits.transfer_max_blocks))
            .filter(|blocks| *blocks > 0),
        zeroing,
        fua,
        write_cache,
        write_protected: mode.is_some_and(|mode| mode.write_protected),
        rotational: rate.is_some_and(|rate| rate > 1),
        designator,
        facts,
    };
    Ok((disk, long))
}

/// The first bytes of the disk, at most `bytes`; empty if they cannot be read.
pub(crate) fn head(device: &OwnedFd, disk: &Disk, bytes: u32) -> Vec<u8> {
    let blocks = disk.head_blocks(bytes);
    query(device, cdb::read_10(0, blocks as u16, false), blocks * disk.block_size).unwrap_or_default()
}

fn page(device: &OwnedFd, code: u8) -> Option<Vec<u8>> {
    query(device, cdb::inquiry(Some(code), ANSWER_BYTES.into()), ANSWER_BYTES.into()).ok()
}

/// Sends a command until all unit attentions are reported and the disk is ready.
fn query(device: &OwnedFd, cdb: Cdb, answer_bytes: u32) -> std::result::Result<Vec<u8>, OpenError> {
    let name = cdb::name(cdb.as_bytes()[0]);
    let until = Instant::now() + READY_TIMEOUT;
    let mut attempts = 0;
    loop {
        let (verdict, data) =
            send(device, cdb, answer_bytes).map_err(|error| OpenError::Failed(format!("{name}: {error}")))?;
        match verdict {
            Verdict::Again { .. } if attempts < ATTEMPTS_MAX => attempts += 1,
            Verdict::Later(_) if Instant::now() < until => std::thread::sleep(PAUSE),
            verdict => return verdict.answered(name).map(|()| data),
        }
    }
}

fn send(device: &OwnedFd, cdb: Cdb, answer_bytes: u32) -> Result<(Verdict, Vec<u8>)> {
    let (mut data, mut sense) = (vec![0; answer_bytes as usize], [0; SENSE_BYTES]);
    let place = (data.as_mut_ptr(), answer_bytes);
    let mut header = Header::new(cdb.as_bytes(), Direction::FromDevice, place, &raw mut sense, TIMEOUT_MS);
    // SAFETY: data, sense and CDB live in this function, with the lengths in the header.
    unsafe { header.run(device)? };
    let verdict = judge(&Answer {
        status: header.status,
        host: header.host_status,
        driver: header.driver_status,
        sense: &sense[..usize::from(header.sense_length).min(SENSE_BYTES)],
    });
    let missing = usize::try_from(header.residual).unwrap_or(0);
    data.truncate(data.len().saturating_sub(missing));
    Ok((verdict, data))
}

/// The preferred designator of the logical unit: NAA, then EUI-64, then a name, then T10.
fn designator(data: &[u8]) -> Option<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let names = inquiry::designators(data)?.into_iter();
    let of_unit = names.filter(|one| one.association == inquiry::Association::Unit);
    of_unit
        .filter_map(|one| match one.id {
            DesignatorId::Naa(bytes) => Some((0, format!("naa.{}", hex(&bytes)))),
            DesignatorId::Eui64(bytes) => Some((1, format!("eui.{}", hex(&bytes)))),
            DesignatorId::Name(name) => Some((2, name)),
            DesignatorId::T10 { vendor, id } => Some((3, format!("t10.{} {}", vendor.trim(), id.trim()))),
            _ => None,
        })
        .min()
        .map(|(_, name)| name)
}
