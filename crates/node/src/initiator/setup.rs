//! The set-up of a disk: one command at a time queries its properties.

use block::OpenError;
use scsi::capacity::Capacity;
use scsi::cdb::{self, Cdb};
use scsi::inquiry::{self, BlockLimits, DesignatorId, Provisioning, Standard};
use scsi::mode::ModeData;
use scsi::{Sense, SenseKey, Status};

use super::cache::{self, Fate};

/// Allocation length of a set-up command, in bytes.
pub(super) const ANSWER_BYTES: u32 = 4096;
/// Bound of the unit attentions and NOT READY, BECOMING READY responses; beyond it the set-up fails.
const RETRIES_MAX: u32 = 30;

#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) standard: Option<Standard>,
    pub(super) serial: Option<String>,
    /// The best designator of the unit (NAA, then EUI-64, then others), printed.
    pub(super) designator: Option<String>,
    pub(super) limits: Option<BlockLimits>,
    pub(super) provisioning: Option<Provisioning>,
    pub(super) rotational: bool,
    pub(super) capacity: Option<Capacity>,
    pub(super) write_protected: bool,
    pub(super) fua: bool,
    pub(super) write_cache: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Query {
    Ready,
    Standard,
    Pages,
    Serial,
    Designators,
    Limits,
    Characteristics,
    Provisioning,
    Capacity16,
    Capacity10,
    Mode6,
}

const ORDER: [Query; 11] = [
    Query::Ready,
    Query::Standard,
    Query::Pages,
    Query::Serial,
    Query::Designators,
    Query::Limits,
    Query::Characteristics,
    Query::Provisioning,
    Query::Capacity16,
    Query::Capacity10,
    Query::Mode6,
];

/// The set-up as a machine: `query` gives the next command, `answer` takes its result.
#[derive(Debug, Default)]
pub(super) struct Setup {
    at: usize,
    retries: u32,
    /// What unit attentions implied for the target's cache.
    kept: bool,
    lost: bool,
    /// READ CAPACITY (16) reported as last block the largest number of 64 bits.
    is_endless: bool,
    pages: Vec<u8>,
    pub(super) disk: Disk,
}

#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) status: u8,
    pub(super) sense: Option<Sense>,
    pub(super) data: &'a [u8],
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Query,
    /// Repeat the command after a pause.
    Pause,
}

impl Setup {
    /// The next set-up command; `None` when the set-up is complete.
    pub(super) fn query(&self) -> Option<Cdb> {
        let allocation = ANSWER_BYTES as u16;
        Some(match ORDER.get(self.at)? {
            Query::Ready => cdb::test_unit_ready(),
            Query::Standard => cdb::inquiry(None, 255),
            Query::Pages => cdb::inquiry(Some(0x00), 255),
            Query::Serial => cdb::inquiry(Some(0x80), 255),
            Query::Designators => cdb::inquiry(Some(0x83), allocation),
            Query::Limits => cdb::inquiry(Some(0xB0), 64),
            Query::Characteristics => cdb::inquiry(Some(0xB1), 64),
            Query::Provisioning => cdb::inquiry(Some(0xB2), 255),
            Query::Capacity16 => cdb::read_capacity_16(32),
            Query::Capacity10 => cdb::read_capacity_10(),
            Query::Mode6 => cdb::mode_sense_6(0x3F, 255),
        })
    }

    /// Whether data acknowledged on an earlier session is still in the cache; `None` until the disk has reported all
    /// pending unit attentions.
    pub(super) fn cache_survived(&self) -> Option<bool> {
        (self.lost || self.at > 0).then_some(self.kept && !self.lost)
    }

    pub(super) fn answer(&mut self, answer: &Answer<'_>) -> Result<Progress, OpenError> {
        let good = answer.status == Status::Good as u8;
        let busy = [Status::Busy as u8, Status::TaskSetFull as u8].contains(&answer.status);
        let key = answer.sense.as_ref().map(|sense| sense.key);
        let fate = answer.sense.as_ref().map_or(Fate::Unsaid, cache::fate);
        self.kept |= fate == Fate::Kept;
        self.lost |= fate == Fate::Lost;
        if busy || key == Some(SenseKey::UnitAttention) || is_becoming_ready(answer.sense.as_ref()) {
            self.retries += 1;
            if self.retries > RETRIES_MAX {
                return Err(OpenError::Unreachable(format!(
                    "the LUN does not become ready: {}",
                    status_text(answer)
                )));
            }
            return Ok(if key == Some(SenseKey::UnitAttention) { Progress::Query } else { Progress::Pause });
        }
        let query = ORDER[self.at];
        if good {
            self.take(query, answer.data);
        }
        match query {
            // A removable disk without medium, or a stopped disk.
            Query::Ready if !good && key == Some(SenseKey::NotReady) => {
                return Err(OpenError::Missing(format!("the LUN is not ready: {}", status_text(answer))));
            }
            Query::Ready if answer.status == Status::ReservationConflict as u8 => {
                return Err(OpenError::Refused("another initiator has reserved the LUN".into()));
            }
            Query::Ready if !good && answer.sense.as_ref().is_some_and(is_no_unit) => {
                return Err(OpenError::Missing("the target has no such LUN".into()));
            }
            Query::Standard => match &self.disk.standard {
                Some(standard) if standard.qualifier != 0 => {
                    let text = "the target has no such LUN";
                    return Err(OpenError::Missing(text.into()));
                }
                Some(standard) if standard.is_disk() => {}
                Some(standard) => {
                    let text = format!("the LUN is no disk (SCSI device type {:02X}h)", standard.device_type);
                    return Err(OpenError::Usage(text));
                }
                None => return Err(OpenError::Failed(format!("INQUIRY: {}", status_text(answer)))),
            },
            Query::Capacity10 if self.disk.capacity.is_none() => {
                let why = match good {
                    _ if self.is_endless => "the LUN reports 2^64 blocks, which cannot be".to_owned(),
                    true => format!("GOOD, but without a size in its {} bytes", answer.data.len()),
                    false => status_text(answer),
                };
                return Err(OpenError::Failed(format!("READ CAPACITY: {why}")));
            }
            _ => {}
        }
        self.at += 1;
        while ORDER.get(self.at).is_some_and(|query| self.is_needless(*query)) {
            self.at += 1;
        }
        Ok(Progress::Query)
    }

    fn is_needless(&self, query: Query) -> bool {
        let page = match query {
            Query::Serial => 0x80,
            Query::Designators => 0x83,
            Query::Limits => 0xB0,
            Query::Characteristics => 0xB1,
            Query::Provisioning => 0xB2,
            Query::Capacity10 => return self.disk.capacity.is_some(),
            _ => return false,
        };
        !self.pages.contains(&page)
    }

    fn take(&mut self, query: Query, data: &[u8]) {
        let disk = &mut self.disk;
        match query {
            Query::Ready => {}
            Query::Standard => disk.standard = Standard::parse(data),
            Query::Pages => {
                self.pages = inquiry::supported_pages(data).map(<[u8]>::to_vec).unwrap_or_default();
            }
            Query::Serial => disk.serial = inquiry::serial(data),
            Query::Designators => disk.designator = unit_designator(data),
            Query::Limits => disk.limits = BlockLimits::parse(data),
            Query::Characteristics => {
                let rate = inquiry::Characteristics::parse(data).map(|page| page.rotation_rate);
                disk.rotational = rate.is_some_and(|rate| rate > 1);
            }
            Query::Provisioning => disk.provisioning = Provisioning::parse(data),
            Query::Capacity16 => {
                disk.capacity = Capacity::parse_16(data);
                self.is_endless = data.starts_with(&u64::MAX.to_be_bytes());
            }
            Query::Capacity10 => disk.capacity = Capacity::parse_10(data),
            Query::Mode6 => {
                if let Some(mode) = ModeData::parse_6(data) {
                    disk.write_protected = mode.write_protected;
                    disk.fua = mode.dpo_fua;
                    // Without the caching mode page a volatile cache must be assumed, so writes are flushed.
                    disk.write_cache = mode.caching().is_none_or(|caching| caching.write_cache);
                }
            }
        }
    }
}

fn is_becoming_ready(sense: Option<&Sense>) -> bool {
    sense.is_some_and(|sense| sense.key == SenseKey::NotReady && (sense.asc, sense.ascq) == (0x04, 0x01))
}

fn is_no_unit(sense: &Sense) -> bool {
    sense.key == SenseKey::IllegalRequest && sense.asc == 0x25
}

/// Status and sense data, named as in the standards.
pub(super) fn status_text(answer: &Answer<'_>) -> String {
    match (&answer.sense, Status::from_code(answer.status)) {
        (Some(sense), _) => describe(sense),
        (None, Some(status)) => status.name().into(),
        (None, None) => format!("SCSI status {:02X}h", answer.status),
    }
}

/// `sense 05/24/00 (ILLEGAL REQUEST, INVALID FIELD IN CDB)`.
pub(super) fn describe(sense: &Sense) -> String {
    let (key, asc, ascq) = (sense.key as u8, sense.asc, sense.ascq);
    format!("sense {key:02X}/{asc:02X}/{ascq:02X} ({}, {})", sense.key.name(), sense.meaning())
}

fn unit_designator(data: &[u8]) -> Option<String> {
    let designators = inquiry::designators(data)?;
    let rank = |id: &DesignatorId| match id {
        DesignatorId::Naa(_) => 0,
        DesignatorId::Eui64(_) => 1,
        _ => 2,
    };
    let of_unit = designators.iter().filter(|one| one.association == inquiry::Association::Unit);
    of_unit.min_by_key(|one| rank(&one.id)).map(|one| print(&one.id))
}

fn print(id: &DesignatorId) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match id {
        DesignatorId::Naa(bytes) => format!("naa.{}", hex(bytes)),
        DesignatorId::Eui64(bytes) => format!("eui.{}", hex(bytes)),
        DesignatorId::T10 { vendor, id } => format!("t10.{} {}", vendor.trim(), id.trim()),
        DesignatorId::Name(name) => name.clone(),
        DesignatorId::RelativePort(number) | DesignatorId::PortGroup(number) => number.to_string(),
        DesignatorId::Other { kind, bytes } => format!("type {kind} {}", hex(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_that_cannot_be_is_named() {
        let endless = [&u64::MAX.to_be_bytes()[..], &512u32.to_be_bytes()].concat();
        let good = |data: &[u8], setup: &mut Setup| {
            setup.answer(&Answer { status: Status::Good as u8, sense: None, data }).map(drop)
        };
        let capacity_16 = ORDER.iter().position(|query| *query == Query::Capacity16).unwrap();
        for (long, short, words) in [
            (&endless[..], &[0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0][..], "reports 2^64 blocks"),
            (&[], &[0xff; 7], "without a size in its 7 bytes"),
        ] {
            let mut setup = Setup { at: capacity_16, ..Setup::default() };
            good(long, &mut setup).unwrap();
            let error = good(short, &mut setup).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn only_a_nexus_loss_says_that_the_cache_survived() {
        for (attentions, survived) in [
            (&[][..], false),
            (&[(0x29, 0x00)], false),
            (&[(0x29, 0x01)], false),
            (&[(0x2a, 0x09)], false),
            (&[(0x29, 0x07)], true),
            (&[(0x2a, 0x09), (0x29, 0x07)], true),
            (&[(0x29, 0x07), (0x29, 0x03)], true),
            (&[(0x29, 0x07), (0x29, 0x01)], false),
            (&[(0x28, 0x00), (0x29, 0x07)], false),
        ] {
            let mut setup = Setup::default();
            for (asc, ascq) in attentions {
                assert_ne!(setup.cache_survived(), Some(true), "more may come");
                let sense = Some(Sense::new(SenseKey::UnitAttention, *asc, *ascq));
                setup.answer(&Answer { status: Status::CheckCondition as u8, sense, data: &[] }).unwrap();
            }
            setup.answer(&Answer { status: Status::Good as u8, sense: None, data: &[] }).unwrap();
            assert_eq!(setup.cache_survived(), Some(survived), "{attentions:?}");
        }
    }
}
