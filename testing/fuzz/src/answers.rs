//! Answers of a hostile target: INQUIRY, VPD and mode pages, capacities, LUNs, sense; and the initiator's view of a
//! disk with such answers.

use area::{Pool, PoolLimits, Span};
use block::{Capability, Kind};
use iscsi::initiator::Direction;
use node::initiator::probe::{Probed, judge, probe};
use scsi::capacity::{Capacity, LunList};
use scsi::cdb;
use scsi::inquiry::{self, BlockLimits, Characteristics, Provisioning, Standard};
use scsi::limits::LUNS_MAX;
use scsi::mode::ModeData;
use scsi::{LogicalUnit, NexusId, Sense, Step};

use crate::unit::config;
use crate::{Source, heap};

const HEAP_MAX: usize = 1 << 20;
/// Maximum number of commands of one probe: each of the eleven, and its permitted repetitions.
const QUESTIONS_MAX: usize = 64;
/// Bytes of the zeroes written to a disk without a command for zeroes.
const ZEROES_BYTES: usize = 128 << 10;
const NEXUS: NexusId = 1;

/// The first byte selects the parsers or a disk.
pub fn answers(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    heap::within(HEAP_MAX, || match source.byte() % 2 {
        0 => parsers(source.rest()),
        _ => disk(source),
    });
}

/// Every parser accepts any bytes without a panic.
fn parsers(bytes: &[u8]) {
    if let Some(standard) = Standard::parse(bytes) {
        let texts = [standard.vendor(), standard.product(), standard.revision()];
        assert!(texts.iter().all(|text| !text.contains(char::is_control)), "{texts:?}");
    }
    for page in [0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2] {
        let _ = inquiry::vpd(page, bytes);
    }
    let _ = inquiry::supported_pages(bytes);
    assert!(inquiry::serial(bytes).is_none_or(|serial| !serial.contains(char::is_control)));
    if let Some(designators) = inquiry::designators(bytes) {
        assert!(designators.len() <= bytes.len() / 4);
    }
    let _ = (BlockLimits::parse(bytes), Characteristics::parse(bytes), Provisioning::parse(bytes));
    for mode in [ModeData::parse_6(bytes), ModeData::parse_10(bytes)].into_iter().flatten() {
        let _ = mode.caching();
        for page in 0..64 {
            let _ = (mode.page(page, 0), mode.page(page, 1));
        }
    }
    for capacity in [Capacity::parse_10(bytes), Capacity::parse_16(bytes)].into_iter().flatten() {
        let _ = capacity.physical_block_size();
    }
    if let Some(list) = LunList::parse(bytes) {
        assert!(list.luns.len() <= LUNS_MAX.min(bytes.len() / 8));
        for lun in list.luns {
            if let Some(number) = scsi::lun::from_wire(lun) {
                assert!(scsi::lun::to_wire(number).is_some());
            }
        }
    }
    if let Some(sense) = Sense::parse(bytes) {
        let _ = (sense.meaning(), sense.key.name(), judge(&sense));
        // Parsed sense survives emission and parsing, except INFORMATION that does not fit the fixed format.
        let again = Sense::parse(&sense.to_bytes());
        let again = again.map(|again| (again.key, again.asc, again.ascq));
        assert_eq!(again, Some((sense.key, sense.asc, sense.ascq)));
    }
    if let Some(access) = cdb::Access::parse(bytes) {
        assert!(access.blocks <= u32::MAX.into());
    }
    let _ = (cdb::fact_of(bytes), cdb::data_bytes(bytes, 4096));
}

thread_local! {
    static MEMORY: Span = {
        let pool = Pool::new(PoolLimits::default());
        pool.take(ZEROES_BYTES).expect("memory for one span")
    };
}

/// A disk answers with altered answers of a logical unit of this project; then requests become commands.
fn disk(mut source: Source<'_>) {
    let mut unit = LogicalUnit::new(config(&mut source));
    let mut questions = 0;
    let disk = probe(|cdb| {
        questions += 1;
        assert!(questions <= QUESTIONS_MAX, "the probe never ends");
        let (mut status, mut sense, mut data) = answer(&mut unit, cdb.as_bytes());
        match source.byte() {
            0..=159 => {}
            160..=223 => {
                for _ in 0..=source.byte() % 8 {
                    let at = source.below(data.len().clamp(1, 256));
                    let byte = source.byte();
                    if let Some(place) = data.get_mut(at) {
                        *place = byte;
                    }
                }
                data.truncate(if source.flag() { usize::MAX } else { source.byte().into() });
            }
            224..=239 => {
                status = source.byte();
                sense = source.some(40).to_vec();
            }
            240.. => {
                data = source.some(64).to_vec();
            }
        }
        (status, sense, data)
    });
    let Ok(disk) = disk else { return };
    plausible(&disk.capability);
    assert!(disk.facts().iter().all(|(_, text)| !text.contains(char::is_control)));
    for _ in 0..8 {
        request(&disk, &mut source);
    }
}

fn answer(unit: &mut LogicalUnit, cdb: &[u8]) -> (u8, Vec<u8>, Vec<u8>) {
    let outcome = match unit.command(NEXUS, scsi::Rights::ReadWrite, cdb, &[0]) {
        Step::Done(outcome) => outcome,
        Step::Media(media) => unit.finish(NEXUS, &media, Ok(())),
        Step::Collect { .. } | Step::Copy(_) => panic!("a question has no parameters"),
    };
    let sense = outcome.sense.map(|sense| sense.to_bytes()).unwrap_or_default();
    (outcome.status as u8, sense, outcome.data)
}

fn plausible(capability: &Capability) {
    let block = capability.block_size;
    assert!([512, 4096].contains(&block), "{capability:?}");
    assert!(capability.size_bytes.is_multiple_of(block.into()), "{capability:?}");
    assert!(capability.max_transfer_bytes >= block && capability.max_transfer_bytes.is_multiple_of(block));
    assert!(capability.physical_block_size >= block, "{capability:?}");
    assert!(capability.granularity == block && capability.alignment <= 4096);
    assert!(capability.optimal_transfer_bytes > 0, "{capability:?}");
}

/// A permitted request becomes a finite number of commands, all inside the disk.
fn request(disk: &Probed, source: &mut Source<'_>) {
    let capability = &disk.capability;
    let block = u64::from(capability.block_size);
    let blocks = capability.size_bytes / block;
    if blocks == 0 {
        return;
    }
    let first = source.u64() % blocks;
    let offset = first * block;
    let wished = u64::from(source.number().max(1));
    let length = wished.min(blocks - first) * block;
    let moved = length.min(capability.max_transfer_bytes.into()).min(ZEROES_BYTES as u64 / block * block);
    let span = MEMORY.with(|memory| memory.slice(0, moved as usize));
    let zeroes = MEMORY.with(|memory| memory.slice(0, ZEROES_BYTES));
    let (kind, total) = match source.byte() % 6 {
        0 => (Kind::Read { offset, into: span }, moved),
        1 | 2 => (Kind::Write { offset, from: span, durable: source.flag() }, moved),
        3 => (Kind::Flush, 0),
        4 if capability.discard => (Kind::Discard { offset, length }, length),
        _ => (Kind::WriteZeroes { offset, length, may_unmap: source.flag() }, length),
    };
    let mut done = 0;
    // The first steps suffice: later ones are like them.
    for _ in 0..32 {
        let (cdb, direction, bytes, progress) = disk.command(&kind, done, &zeroes);
        if let Some((cdb_direction, cdb_bytes)) = cdb::data_bytes(cdb.as_bytes(), capability.block_size) {
            assert_eq!(cdb_bytes, bytes as u64, "{cdb:02x?} for {kind:?}");
            let same = matches!(
                (cdb_direction, direction),
                (cdb::Direction::None, Direction::None)
                    | (cdb::Direction::In, Direction::In)
                    | (cdb::Direction::Out, Direction::Out)
            );
            assert!(same, "{cdb:02x?} goes {direction:?}");
        }
        if let Some(access) = cdb::Access::parse(cdb.as_bytes()) {
            assert!(access.lba <= blocks && access.blocks <= blocks - access.lba, "{cdb:02x?} for {kind:?}");
        }
        done += progress;
        assert!(done <= total && (progress > 0 || total == 0), "{kind:?} goes on without end");
        if done == total {
            return;
        }
    }
}
