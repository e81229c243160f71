//! The set-up of a disk: commands that query its properties, as many at a time as possible.

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
pub(super) enum Query {
    /// A TEST UNIT READY that takes the unit attention of a new session, so that no other command has to be repeated.
    Attention,
    Ready,
    Standard,
    Pages,
    Capacity16,
    Mode6,
    Serial,
    Designators,
    Limits,
    Characteristics,
    Provisioning,
    Capacity10,
}

const QUERIES: [Query; 12] = [
    Query::Attention,
    Query::Ready,
    Query::Standard,
    Query::Pages,
    Query::Capacity16,
    Query::Mode6,
    Query::Serial,
    Query::Designators,
    Query::Limits,
    Query::Characteristics,
    Query::Provisioning,
    Query::Capacity10,
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Open,
    Asked,
    Done,
}

/// The set-up as a machine: `next` gives a command to be sent, `answer` takes its result.
///
/// All commands go out together, so that the set-up takes one round trip. The list of the pages of vital product data
/// decides which of the pages count: a target may answer those that it lacks as it likes. One that is busy gets the
/// commands one by one, and is asked only for pages that it has.
#[derive(Debug, Default)]
pub(super) struct Setup {
    steps: [Step; QUERIES.len()],
    retries: [u32; QUERIES.len()],
    one_by_one: bool,
    /// What unit attentions implied for the target's cache.
    kept: bool,
    lost: bool,
    /// READ CAPACITY (16) reported as last block the largest number of 64 bits.
    is_endless: bool,
    pages: Vec<u8>,
    /// What was answered last instead of becoming ready.
    pub(super) not_ready: Option<String>,
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
    /// Send what `next` gives.
    Query,
    /// Ask again after a pause.
    Pause,
    Complete,
}

impl Setup {
    /// The next command; `None` until an answer arrives, and when the set-up is complete.
    pub(super) fn next(&mut self) -> Option<(Query, Cdb)> {
        if self.one_by_one && self.steps.contains(&Step::Asked) {
            return None;
        }
        let query =
            *QUERIES.iter().find(|query| self.step(**query) == Step::Open && self.may_ask(**query))?;
        self.steps[query as usize] = Step::Asked;
        Some((query, query.cdb()))
    }

    /// A command of `next` was not sent, or ended without an answer: it is open again.
    pub(super) fn unasked(&mut self, query: Query) {
        self.steps[query as usize] = Step::Open;
    }

    fn step(&self, query: Query) -> Step {
        self.steps[query as usize]
    }

    fn is_done(&self, query: Query) -> bool {
        self.step(query) == Step::Done
    }

    fn is_complete(&self) -> bool {
        let is_over = |query: &Query| {
            self.is_done(*query) || (!self.is_needed(*query) && self.step(*query) == Step::Open)
        };
        [Query::Pages, Query::Capacity16].map(|query| self.is_done(query)) == [true; 2]
            && QUERIES.iter().all(is_over)
    }

    fn may_ask(&self, query: Query) -> bool {
        match query {
            Query::Attention | Query::Ready => true,
            // What was refused while the unit was not ready is asked again when it is.
            Query::Standard | Query::Pages | Query::Capacity16 | Query::Mode6 => {
                self.retries[query as usize] == 0 || self.is_done(Query::Ready)
            }
            Query::Capacity10 => {
                let is_known = self.is_done(Query::Ready) && self.is_done(Query::Capacity16);
                is_known && self.is_needed(query)
            }
            _ if !self.one_by_one && self.retries[query as usize] == 0 => true,
            _ => self.is_done(Query::Pages) && self.is_needed(query),
        }
    }

    /// Whether data acknowledged on an earlier session is still in the cache; `None` until the disk has reported all
    /// pending unit attentions: [`Query::Ready`] has ended with GOOD. INQUIRY reports none (SPC-4 5.14), and
    /// the others follow it; a target that carries them out first also answers them first. They are no ordered tasks: those
    /// of tgt wait until the unit is idle, which it never is under another session's load.
    pub(super) fn cache_survived(&self) -> Option<bool> {
        (self.lost || self.is_done(Query::Ready)).then_some(self.kept && !self.lost)
    }

    pub(super) fn answer(&mut self, query: Query, answer: &Answer<'_>) -> Result<Progress, OpenError> {
        let good = answer.status == Status::Good as u8;
        let busy = [Status::Busy as u8, Status::TaskSetFull as u8].contains(&answer.status);
        let key = answer.sense.as_ref().map(|sense| sense.key);
        let fate = answer.sense.as_ref().map_or(Fate::Unsaid, cache::fate);
        self.kept |= fate == Fate::Kept;
        self.lost |= fate == Fate::Lost;
        if query == Query::Attention {
            self.one_by_one |= busy;
            return Ok(self.done(query));
        }
        if busy || key == Some(SenseKey::UnitAttention) || is_becoming_ready(answer.sense.as_ref()) {
            self.unasked(query);
            self.one_by_one |= busy;
            self.not_ready = Some(status_text(answer));
            let retries = &mut self.retries[query as usize];
            *retries += 1;
            if *retries > RETRIES_MAX {
                return Err(OpenError::Unreachable(format!(
                    "the LUN does not become ready: {}",
                    status_text(answer)
                )));
            }
            return Ok(if key == Some(SenseKey::UnitAttention) { Progress::Query } else { Progress::Pause });
        }
        if good {
            self.take(query, answer.data);
        }
        self.judge(query, answer)?;
        Ok(self.done(query))
    }

    fn done(&mut self, query: Query) -> Progress {
        self.steps[query as usize] = Step::Done;
        if !self.is_complete() {
            return Progress::Query;
        }
        self.forget_unlisted();
        Progress::Complete
    }

    /// Whether an answer ends the set-up.
    fn judge(&self, query: Query, answer: &Answer<'_>) -> Result<(), OpenError> {
        let good = answer.status == Status::Good as u8;
        let key = answer.sense.as_ref().map(|sense| sense.key);
        match query {
            // A removable disk without medium, or a stopped disk.
            Query::Ready if !good && key == Some(SenseKey::NotReady) => {
                Err(OpenError::Missing(format!("the LUN is not ready: {}", status_text(answer))))
            }
            Query::Ready if answer.status == Status::ReservationConflict as u8 => {
                Err(OpenError::Refused("another initiator has reserved the LUN".into()))
            }
            Query::Ready if !good && answer.sense.as_ref().is_some_and(is_no_unit) => {
                Err(OpenError::Missing("the target has no such LUN".into()))
            }
            Query::Standard => match &self.disk.standard {
                Some(standard) if standard.qualifier != 0 => {
                    Err(OpenError::Missing("the target has no such LUN".into()))
                }
                Some(standard) if standard.is_disk() => Ok(()),
                Some(standard) => {
                    let text = format!("the LUN is no disk (SCSI device type {:02X}h)", standard.device_type);
                    Err(OpenError::Usage(text))
                }
                None => Err(OpenError::Failed(format!("INQUIRY: {}", status_text(answer)))),
            },
            Query::Capacity10 if self.disk.capacity.is_none() => {
                let why = match good {
                    _ if self.is_endless => "the LUN reports 2^64 blocks, which cannot be".to_owned(),
                    true => format!("GOOD, but without a size in its {} bytes", answer.data.len()),
                    false => status_text(answer),
                };
                Err(OpenError::Failed(format!("READ CAPACITY: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Drops what was said of pages that the unit does not list.
    fn forget_unlisted(&mut self) {
        let unlisted = |query| !self.is_needed(query);
        let without =
            [Query::Serial, Query::Designators, Query::Limits, Query::Characteristics, Query::Provisioning]
                .map(unlisted);
        let disk = &mut self.disk;
        let [serial, designator, limits, rotational, provisioning] = without;
        disk.serial.take_if(|_| serial);
        disk.designator.take_if(|_| designator);
        disk.limits.take_if(|_| limits);
        disk.provisioning.take_if(|_| provisioning);
        disk.rotational &= !rotational;
    }

    fn is_needed(&self, query: Query) -> bool {
        let page = match query {
            Query::Serial => 0x80,
            Query::Designators => 0x83,
            Query::Limits => 0xB0,
            Query::Characteristics => 0xB1,
            Query::Provisioning => 0xB2,
            Query::Capacity10 => return self.disk.capacity.is_none(),
            _ => return true,
        };
        self.pages.contains(&page)
    }

    fn take(&mut self, query: Query, data: &[u8]) {
        let disk = &mut self.disk;
        match query {
            Query::Attention | Query::Ready => {}
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

impl Query {
    fn cdb(self) -> Cdb {
        let allocation = ANSWER_BYTES as u16;
        match self {
            Self::Attention | Self::Ready => cdb::test_unit_ready(),
            Self::Standard => cdb::inquiry(None, 255),
            Self::Pages => cdb::inquiry(Some(0x00), 255),
            Self::Serial => cdb::inquiry(Some(0x80), 255),
            Self::Designators => cdb::inquiry(Some(0x83), allocation),
            Self::Limits => cdb::inquiry(Some(0xB0), 64),
            Self::Characteristics => cdb::inquiry(Some(0xB1), 64),
            Self::Provisioning => cdb::inquiry(Some(0xB2), 255),
            Self::Capacity16 => cdb::read_capacity_16(32),
            Self::Capacity10 => cdb::read_capacity_10(),
            Self::Mode6 => cdb::mode_sense_6(0x3F, 255),
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

    fn good(setup: &mut Setup, query: Query, data: &[u8]) -> Result<Progress, OpenError> {
        setup.answer(query, &Answer { status: Status::Good as u8, sense: None, data })
    }

    fn asked(setup: &mut Setup) -> Vec<Query> {
        std::iter::from_fn(|| setup.next()).map(|(query, _)| query).collect()
    }

    const STANDARD: [u8; 36] = [0; 36];
    const CAPACITY_16: [u8; 32] = {
        let mut data = [0; 32];
        (data[7], data[10]) = (7, 2);
        data
    };

    /// All but READ CAPACITY (10).
    const FIRST: &[Query] = QUERIES.split_at(QUERIES.len() - 1).0;

    #[test]
    fn the_set_up_takes_one_round_trip() {
        let mut setup = Setup::default();
        assert_eq!(asked(&mut setup), FIRST);
        let sense = Some(Sense::new(SenseKey::UnitAttention, 0x29, 0x07));
        let attention = Answer { status: Status::CheckCondition as u8, sense, data: &[] };
        assert_eq!(setup.answer(Query::Attention, &attention).unwrap(), Progress::Query);
        for query in &FIRST[1..] {
            assert_eq!(asked(&mut setup), []);
            let data: &[u8] = match query {
                Query::Standard => &STANDARD,
                Query::Pages => &[0, 0, 0, 2, 0x00, 0x83],
                Query::Capacity16 => &CAPACITY_16,
                // A page that the unit does not list: ten characters.
                Query::Serial => b"\0\x80\0\x0a0123456789",
                _ => &[],
            };
            let is_last = *query == Query::Provisioning;
            let expected = if is_last { Progress::Complete } else { Progress::Query };
            assert_eq!(good(&mut setup, *query, data).unwrap(), expected, "{query:?}");
        }
        assert_eq!((asked(&mut setup), setup.disk.serial.clone()), (vec![], None));
        assert_eq!(setup.cache_survived(), Some(true));
    }

    #[test]
    fn answers_may_come_in_any_order() {
        for last in FIRST {
            let mut setup = Setup::default();
            asked(&mut setup);
            let order = FIRST.iter().rev().filter(|query| *query != last).chain([last]);
            let mut progress = Progress::Query;
            for query in order {
                assert_eq!(progress, Progress::Query, "before {query:?}");
                let data: &[u8] = match query {
                    Query::Capacity16 => &CAPACITY_16,
                    _ => &STANDARD,
                };
                progress = good(&mut setup, *query, data).unwrap();
                assert_eq!(asked(&mut setup), []);
            }
            assert_eq!(progress, Progress::Complete, "{last:?}");
        }
    }

    #[test]
    fn what_a_busy_target_refuses_is_asked_one_by_one() {
        let mut setup = Setup::default();
        let refused = asked(&mut setup);
        for query in &refused[2..] {
            let answer = Answer { status: Status::TaskSetFull as u8, sense: None, data: &[] };
            assert_eq!(setup.answer(*query, &answer).unwrap(), Progress::Pause);
        }
        assert_eq!(setup.not_ready.as_deref(), Some("TASK SET FULL"));
        assert_eq!(asked(&mut setup), [], "until the unit is ready");
        good(&mut setup, Query::Attention, &[]).unwrap();
        good(&mut setup, Query::Ready, &[]).unwrap();
        let again = [Query::Standard, Query::Pages, Query::Capacity16, Query::Mode6, Query::Designators];
        for query in again {
            assert_eq!(asked(&mut setup), [query]);
            let data: &[u8] = match query {
                Query::Capacity16 => &CAPACITY_16,
                Query::Pages => &[0, 0, 0, 2, 0x00, 0x83],
                _ => &STANDARD,
            };
            good(&mut setup, query, data).unwrap();
        }
        assert!(setup.is_complete());
    }

    #[test]
    fn a_capacity_that_cannot_be_is_named() {
        let endless = [&u64::MAX.to_be_bytes()[..], &512u32.to_be_bytes()].concat();
        for (long, short, words) in [
            (&endless[..], &[0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0][..], "reports 2^64 blocks"),
            (&[], &[0xff; 7], "without a size in its 7 bytes"),
        ] {
            let mut setup = Setup::default();
            asked(&mut setup);
            good(&mut setup, Query::Attention, &[]).unwrap();
            good(&mut setup, Query::Ready, &[]).unwrap();
            good(&mut setup, Query::Capacity16, long).unwrap();
            assert_eq!(asked(&mut setup), [Query::Capacity10]);
            let error = good(&mut setup, Query::Capacity10, short).unwrap_err();
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
            // Each attention is reported once, to any command but INQUIRY.
            let mut setup = Setup::default();
            asked(&mut setup);
            let (first, others) = match attentions {
                [] => (None, attentions),
                [first, others @ ..] => (Some(*first), others),
            };
            let attentions_of = |(asc, ascq): (u8, u8)| Some(Sense::new(SenseKey::UnitAttention, asc, ascq));
            let mut report = |query, attention: Option<(u8, u8)>| {
                assert_ne!(setup.cache_survived(), Some(true), "more may come");
                let sense = attention.and_then(attentions_of);
                let status = if sense.is_some() { Status::CheckCondition } else { Status::Good } as u8;
                setup.answer(query, &Answer { status, sense, data: &[] }).unwrap();
            };
            report(Query::Attention, first);
            others.iter().for_each(|attention| report(Query::Ready, Some(*attention)));
            report(Query::Ready, None);
            assert_eq!(setup.cache_survived(), Some(survived), "{attentions:?}");
        }
    }
}
