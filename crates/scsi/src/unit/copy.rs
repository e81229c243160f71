//! Third-party copy (SPC-4 6.4, 6.24): the commands of the copy manager, its capabilities, and the records of copies.
//! The caller copies, because only the caller has access to the other units.

use super::inquiry::{NAA, T10, naa, t10};
use super::{Call, LogicalUnit, NexusId, Stop};
use crate::cdb::opcode as op;
use crate::copy::{CopyFailure, CopyFault, CopyList, Cscd, DESCRIPTORS};
use crate::limits::{
    COPIES_MAX, COPY_CSCDS_MAX, COPY_LIST_BYTES_MAX, COPY_RECORDS_MAX, COPY_SEGMENT_BYTES_MAX,
    COPY_SEGMENTS_MAX, PARAMETER_LIST_MAX_BYTES,
};
use crate::{MediaError, Outcome, Rights, Sense, SenseKey, Step};

pub(super) const STATUS: u8 = 0x00;
pub(super) const PARAMETERS: u8 = 0x03;
pub(super) const FAILURE: u8 = 0x04;

/// The record of a copy (SPC-4 5.17.4.3), by I_T nexus and LIST IDENTIFIER.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) nexus: NexusId,
    list_id: u8,
    state: State,
    /// Completed segments; `bytes` counts their bytes.
    segments: u16,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Done,
    Failed(Sense),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    Source,
    Destination,
}

/// EXTENDED COPY (LID1): SPC-4 6.4. A list longer than any supported one is collected in part: its header decides the
/// sense data.
pub(super) fn extended_copy(_: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    match allocation(call.cdb) {
        0 => Ok(Step::Done(Outcome::good())),
        bytes => Ok(Step::Collect { list_bytes: bytes, bytes: bytes.min(PARAMETER_LIST_MAX_BYTES) }),
    }
}

pub(super) fn extended_copy_list(unit: &mut LogicalUnit, call: Call<'_>, list: &[u8]) -> Result<Step, Stop> {
    let list = CopyList::parse(list)?;
    let known = list.list_id.and_then(|id| unit.record(call.nexus, id));
    if known.is_some_and(|index| unit.copies[index].state == State::Running) {
        return Err(Sense::new(SenseKey::IllegalRequest, 0x00, 0x16).into());
    }
    if let Some(index) = known {
        unit.copies.remove(index);
    }
    if let Some(list_id) = list.list_id {
        unit.remember(Record { nexus: call.nexus, list_id, state: State::Running, segments: 0, bytes: 0 });
    }
    Ok(Step::Copy(list))
}

/// RECEIVE COPY STATUS (LID1): SPC-4 6.24.
pub(super) fn status(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let record = unit.record_of(call)?;
    let status = match record.state {
        State::Running => 0x00,
        State::Done => 0x01,
        State::Failed(_) => 0x02,
    };
    let mut data = vec![0, 0, 0, 8, status];
    data.extend(record.segments.to_be_bytes());
    // TRANSFER COUNT UNITS: the first of bytes, KiB, MiB, .. in which the count fits in 32 bits.
    let units = (0u8..).find(|units| record.bytes >> (10 * units) <= u64::from(u32::MAX)).unwrap_or(0);
    data.push(units);
    data.extend(((record.bytes >> (10 * units)) as u32).to_be_bytes());
    Ok(cut(data, call))
}

/// RECEIVE COPY FAILURE DETAILS (LID1): SPC-4 6.23. Empty for a copy that did not fail.
pub(super) fn failure(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let State::Failed(sense) = unit.record_of(call)?.state else { return Ok(cut(vec![0; 4], call)) };
    let sense = sense.to_bytes();
    let mut data = vec![0; 60];
    data[56] = crate::Status::CheckCondition as u8;
    data[58..60].copy_from_slice(&(sense.len() as u16).to_be_bytes());
    data.extend(sense);
    let available = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&available.to_be_bytes());
    Ok(cut(data, call))
}

/// RECEIVE COPY OPERATING PARAMETERS: SPC-4 6.22. Inline data and held data are not supported.
pub(super) fn parameters(_: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let mut data = vec![0; 44];
    data[3] = (40 + DESCRIPTORS.len()) as u8;
    // SNLID: LIST ID USAGE 11b is supported.
    data[4] = 0x01;
    data[8..10].copy_from_slice(&(COPY_CSCDS_MAX as u16).to_be_bytes());
    data[10..12].copy_from_slice(&(COPY_SEGMENTS_MAX as u16).to_be_bytes());
    data[12..16].copy_from_slice(&(COPY_LIST_BYTES_MAX as u32).to_be_bytes());
    data[16..20].copy_from_slice(&COPY_SEGMENT_BYTES_MAX.to_be_bytes());
    data[34..36].copy_from_slice(&(COPIES_MAX as u16).to_be_bytes());
    data[36] = COPIES_MAX as u8;
    // DATA SEGMENT GRANULARITY, as a power of two.
    data[37] = 9;
    data[43] = DESCRIPTORS.len() as u8;
    data.extend(DESCRIPTORS);
    Ok(cut(data, call))
}

/// The Third-party Copy VPD page, 8Fh (SPC-4 7.8.17): the mandatory descriptors.
pub(super) fn third_party_page() -> Vec<u8> {
    let mut page = Vec::new();
    let mut descriptor = |kind: u16, body: &[u8]| {
        let length = body.len().next_multiple_of(4);
        page.extend(kind.to_be_bytes());
        page.extend((length as u16).to_be_bytes());
        page.extend(body);
        page.resize(page.len() + length - body.len(), 0);
    };
    // Supported Commands: operation code, number of service actions, service actions.
    descriptor(
        0x0001,
        &[8, op::EXTENDED_COPY, 1, 0x00, op::RECEIVE_COPY_RESULTS, 3, STATUS, PARAMETERS, FAILURE],
    );
    let mut parameters = [0; 28];
    parameters[4..6].copy_from_slice(&(COPY_CSCDS_MAX as u16).to_be_bytes());
    parameters[6..8].copy_from_slice(&(COPY_SEGMENTS_MAX as u16).to_be_bytes());
    parameters[8..12].copy_from_slice(&(COPY_LIST_BYTES_MAX as u32).to_be_bytes());
    descriptor(0x0004, &parameters);
    descriptor(0x0008, &[DESCRIPTORS.len() as u8, DESCRIPTORS[0], DESCRIPTORS[1]]);
    // Supported CSCD Descriptor IDs: only indices into the list.
    descriptor(0x000c, &[0, 0]);
    let mut general = [0; 32];
    general[..4].copy_from_slice(&(COPIES_MAX as u32).to_be_bytes());
    general[4..8].copy_from_slice(&(COPIES_MAX as u32).to_be_bytes());
    general[8..12].copy_from_slice(&COPY_SEGMENT_BYTES_MAX.to_be_bytes());
    general[12] = 9;
    descriptor(0x8001, &general);
    page
}

impl LogicalUnit {
    /// Whether a CSCD descriptor equals a designator of VPD page 83h for the logical unit.
    pub fn is_named(&self, cscd: &Cscd) -> bool {
        match (cscd.code_set, cscd.kind) {
            NAA => cscd.designator == naa(&self.config).to_be_bytes(),
            T10 => cscd.designator == t10(&self.config),
            _ => false,
        }
    }

    /// Whether this unit can be `end` of a copy that `nexus`, with these rights to this unit, requests: the checks of a
    /// READ or WRITE of these blocks by that nexus. `Err` is the fault of the segment.
    pub fn copies(
        &self,
        (nexus, rights): (NexusId, Rights),
        end: CopyEnd,
        cscd: &Cscd,
        lba: u64,
        blocks: u64,
    ) -> Result<(), CopyFault> {
        if cscd.device_type != 0 {
            return Err(CopyFault::DeviceType);
        }
        if cscd.block_bytes != self.config.block_size {
            return Err(CopyFault::BlockLength);
        }
        let reserved = self.reservation.is_some_and(|holder| holder != nexus);
        let protected = end == CopyEnd::Destination && self.write_protected(rights);
        if reserved || protected || !self.loaded || self.lost_data || self.check_range(lba, blocks).is_err() {
            return Err(CopyFault::Device);
        }
        Ok(())
    }

    pub fn copying(&mut self, nexus: NexusId, list: &CopyList, bytes: u64) {
        if let Some(index) = list.list_id.and_then(|id| self.record(nexus, id)) {
            self.copies[index].bytes = bytes;
        }
    }

    /// Ends EXTENDED COPY: `Ok` holds the bytes copied, over all segments.
    pub fn copied(&mut self, nexus: NexusId, list: &CopyList, result: Result<u64, CopyFailure>) -> Outcome {
        let outcome = match result {
            Ok(_) => Outcome::good(),
            Err(failure) => Outcome::check(failure.sense()),
        };
        let outcome = self.with_format(outcome);
        if let Some(index) = list.list_id.and_then(|id| self.record(nexus, id)) {
            let record = &mut self.copies[index];
            record.state = outcome.sense.map_or(State::Done, State::Failed);
            if let Ok(bytes) = result {
                (record.segments, record.bytes) = (list.segments.len() as u16, bytes);
            }
        }
        outcome
    }

    /// Handles a storage failure of this unit in a copy that another unit's command requested, as
    /// [`LogicalUnit::finish`] does for commands of this unit.
    pub fn copy_failed(&mut self, nexus: NexusId, error: MediaError) {
        if error == MediaError::CacheLost {
            self.cache_lost(nexus);
        }
        self.lost_data |= error == MediaError::FlushFailed;
    }

    fn record(&self, nexus: NexusId, list_id: u8) -> Option<usize> {
        self.copies.iter().position(|record| (record.nexus, record.list_id) == (nexus, list_id))
    }

    fn record_of(&self, call: Call<'_>) -> Result<&Record, Stop> {
        let index = self.record(call.nexus, call.cdb[2]);
        index.map(|index| &self.copies[index]).ok_or_else(|| Sense::field_in_cdb(2, None).into())
    }

    /// Adds a record; replaces the oldest one of a finished copy if the table is full.
    fn remember(&mut self, record: Record) {
        if self.copies.len() >= COPY_RECORDS_MAX
            && let Some(oldest) = self.copies.iter().position(|record| record.state != State::Running)
        {
            self.copies.remove(oldest);
        }
        self.copies.push(record);
    }
}

fn allocation(cdb: &[u8]) -> u32 {
    u32::from_be_bytes([cdb[10], cdb[11], cdb[12], cdb[13]])
}

fn cut(mut data: Vec<u8>, call: Call<'_>) -> Step {
    data.truncate(allocation(call.cdb) as usize);
    Step::Done(Outcome::data(data))
}

#[cfg(test)]
mod tests {
    use super::super::UnitConfig;
    use super::super::tests::{A, B, BLOCKS, RW, codes, config, data, unit, unit_of};
    use super::*;
    use crate::cdb;
    use crate::copy::{CopyParameters, Segment};
    use crate::inquiry::Standard;

    fn cscd() -> Cscd {
        // The device server replaces the top four bits of the configured NAA.
        Cscd::naa(&0x3234_5678_9abc_def0_u64.to_be_bytes(), 512).expect("8 bytes")
    }

    fn list(list_id: Option<u8>) -> CopyList {
        let segment = Segment {
            source: 0,
            destination: 0,
            destination_count: false,
            blocks: 8,
            source_lba: 0,
            destination_lba: 100,
        };
        CopyList { list_id, cscds: vec![cscd()], segments: vec![segment] }
    }

    /// Sends the list; returns the resulting copy, or key, code and qualifier.
    fn begin(unit: &mut LogicalUnit, nexus: NexusId, list: &CopyList) -> Result<CopyList, (u8, u8, u8)> {
        let (cdb, bytes) = cdb::extended_copy(list);
        let length = bytes.len() as u32;
        let collect = Step::Collect { list_bytes: length, bytes: length };
        assert_eq!(codes(unit.command(nexus, RW, cdb.as_bytes(), &[]))?, collect);
        match codes(unit.parameters(nexus, RW, cdb.as_bytes(), &bytes))? {
            Step::Copy(list) => Ok(list),
            other => panic!("{other:?}"),
        }
    }

    fn receive(action: u8, list_id: u8) -> [u8; 16] {
        [op::RECEIVE_COPY_RESULTS, action, list_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]
    }

    #[test]
    fn list_length_spc4_6_4_2() {
        let mut unit = unit();
        let cdb = |bytes: u32| {
            let mut cdb = [0; 16];
            cdb[0] = op::EXTENDED_COPY;
            cdb[10..14].copy_from_slice(&bytes.to_be_bytes());
            cdb
        };
        assert_eq!(unit.command(A, RW, &cdb(0), &[]), Step::Done(Outcome::good()), "no list is no error");
        assert_eq!(unit.command(A, RW, &cdb(15), &[]), Step::Collect { list_bytes: 15, bytes: 15 });
        assert_eq!(codes(unit.parameters(A, RW, &cdb(15), &[0; 15])), Err((5, 0x1a, 0)));
        let most = Step::Collect { list_bytes: u32::MAX, bytes: PARAMETER_LIST_MAX_BYTES };
        assert_eq!(unit.command(A, RW, &cdb(u32::MAX), &[]), most);
        let (cdb, bytes) = cdb::extended_copy(&list(Some(1)));
        let ended = codes(unit.parameters(A, RW, cdb.as_bytes(), &bytes[..bytes.len() - 1]));
        assert_eq!(ended, Err((5, 0x1a, 0)));
    }

    #[test]
    fn a_unit_is_known_by_its_own_designators_spc4_6_4_5_1() {
        let unit = unit();
        let t10 = Cscd { code_set: 0x02, kind: 0x01, designator: b"HIKYAKU c0ffee".to_vec(), ..cscd() };
        let vectors: [(&str, Cscd, bool); 8] = [
            ("naa", cscd(), true),
            ("t10", t10.clone(), true),
            ("block_length_is_not_looked_at", Cscd { block_bytes: 4096, ..cscd() }, true),
            ("naa_other", Cscd::naa(&[0x30; 8], 512).unwrap(), false),
            ("naa_cut", Cscd { designator: cscd().designator[..7].to_vec(), ..cscd() }, false),
            ("code_set", Cscd { code_set: 0x02, ..cscd() }, false),
            ("of_the_port", Cscd { kind: 0x13, ..cscd() }, false),
            ("relative_port", Cscd { kind: 0x14, designator: vec![0, 0, 0, 1], ..cscd() }, false),
        ];
        for (name, cscd, expected) in vectors {
            assert_eq!(unit.is_named(&cscd), expected, "{name}");
        }
    }

    /// The ends are checked as for READ and WRITE: SPC-4 6.4.4.
    #[test]
    fn ends_are_checked_like_reads_and_writes() {
        use CopyEnd::{Destination, Source};
        use CopyFault::{BlockLength, Device, DeviceType};
        type Prepare = fn(&mut LogicalUnit);
        let removable = UnitConfig { removable: true, ..config() };
        let eject = |unit: &mut LogicalUnit| unit.loaded = false;
        type Ends = [Result<(), CopyFault>; 2];
        let vectors: [(&str, UnitConfig, Prepare, Ends); 6] = [
            ("fit", config(), |_| (), [Ok(()); 2]),
            ("read_only", UnitConfig { read_only: true, ..config() }, |_| (), [Ok(()), Err(Device)]),
            ("ejected", removable, eject, [Err(Device); 2]),
            ("reserved_by_another", config(), |unit| unit.reservation = Some(B), [Err(Device); 2]),
            ("reserved_by_itself", config(), |unit| unit.reservation = Some(A), [Ok(()); 2]),
            ("lost_data", config(), |unit| unit.copy_failed(B, MediaError::FlushFailed), [Err(Device); 2]),
        ];
        for (name, config, prepare, expected) in vectors {
            let mut unit = unit_of(config);
            prepare(&mut unit);
            let found = [Source, Destination].map(|end| unit.copies((A, RW), end, &cscd(), 0, 8));
            assert_eq!(found, expected, "{name}");
        }
        let unit = unit();
        let tape = Cscd { device_type: 1, ..cscd() };
        assert_eq!(unit.copies((A, RW), Source, &tape, 0, 8), Err(DeviceType));
        let large = Cscd { block_bytes: 4096, ..cscd() };
        assert_eq!(unit.copies((A, RW), Source, &large, 0, 8), Err(BlockLength));
        for (lba, blocks, expected) in [
            (BLOCKS - 8, 8, Ok(())),
            (BLOCKS - 8, 9, Err(Device)),
            (BLOCKS, 0, Err(Device)),
            (u64::MAX, 1, Err(Device)),
        ] {
            assert_eq!(unit.copies((A, RW), Destination, &cscd(), lba, blocks), expected, "{lba} {blocks}");
        }
    }

    #[test]
    fn how_it_ends_spc4_6_4_4() {
        for (fault, expected) in [
            (CopyFault::NoDescriptor, (0xa, 0x08, 0x04)),
            (CopyFault::NotReachable, (0xa, 0x0d, 0x02)),
            (CopyFault::DeviceType, (0xa, 0x0d, 0x03)),
            (CopyFault::Inexact, (0xa, 0x26, 0x0a)),
            (CopyFault::Device, (0xa, 0x0d, 0x01)),
            (CopyFault::BlockLength, (0x5, 0x26, 0x00)),
            (CopyFault::Aborted, (0xb, 0x00, 0x00)),
        ] {
            let mut unit = unit();
            let list = begin(&mut unit, A, &list(Some(9))).expect("a good list");
            let outcome = unit.copied(A, &list, Err(CopyFailure { segment: 3, fault }));
            let sense = outcome.sense.expect("a failure");
            assert_eq!((sense.key as u8, sense.asc, sense.ascq), expected);
            assert_eq!(sense.to_bytes()[8..12], [0, 0, 0, 3], "the segment");
            let status = data(&mut unit, receive(STATUS, 9));
            assert_eq!(status, [0, 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0]);
            let details = data(&mut unit, receive(FAILURE, 9));
            assert_eq!((details[..4].to_vec(), details[56], details[59]), (vec![0, 0, 0, 74], 2, 18));
            assert_eq!(Sense::parse(&details[60..]), Some(sense));
        }
    }

    #[test]
    fn receive_copy_status_spc4_6_24() {
        let mut unit = unit();
        let unknown = Err((5, 0x24, 0x00));
        assert_eq!(codes(unit.command(A, RW, &receive(STATUS, 1), &[])), unknown);
        let list_1 = begin(&mut unit, A, &list(Some(1))).expect("a good list");
        assert_eq!(data(&mut unit, receive(STATUS, 1)), [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0], "runs");
        assert_eq!(begin(&mut unit, A, &list(Some(1))), Err((5, 0x00, 0x16)), "one at a time");
        assert!(begin(&mut unit, B, &list(Some(1))).is_ok(), "another nexus's is another");
        unit.copying(A, &list_1, 4096);
        assert_eq!(data(&mut unit, receive(STATUS, 1))[4..], [0, 0, 0, 0, 0, 0, 0x10, 0], "on its way");
        assert_eq!(unit.copied(A, &list_1, Ok(6 << 30)), Outcome::good());
        assert_eq!(data(&mut unit, receive(STATUS, 1))[4..], [1, 0, 1, 1, 0, 0x60, 0, 0], "6 GiB in KiB");
        assert_eq!(data(&mut unit, receive(FAILURE, 1)), [0; 4], "nothing failed");
        assert!(begin(&mut unit, A, &list(Some(1))).is_ok(), "again");
        let nameless = begin(&mut unit, A, &list(None)).expect("usage 11b");
        assert_eq!(unit.copied(A, &nameless, Ok(1)), Outcome::good());
        unit.detach(A);
        unit.attach(A, None);
        let _ = unit.command(A, RW, &[0; 6], &[]);
        assert_eq!(codes(unit.command(A, RW, &receive(STATUS, 1), &[])), unknown, "it goes with its nexus");
    }

    #[test]
    fn records_are_bounded_and_running_ones_stay() {
        let mut unit = unit();
        let running = begin(&mut unit, A, &list(Some(0))).expect("a good list");
        for id in 1..=200 {
            let list = begin(&mut unit, A, &list(Some(id))).expect("a good list");
            let _ = unit.copied(A, &list, Ok(0));
        }
        assert_eq!(unit.copies.len(), COPY_RECORDS_MAX);
        assert_eq!(data(&mut unit, receive(STATUS, 0))[4], 0);
        assert_eq!(unit.copied(A, &running, Ok(0)), Outcome::good());
    }

    #[test]
    fn what_the_copy_manager_says_of_itself() {
        let mut unit = unit();
        let standard = Standard::parse(&data(&mut unit, cdb::inquiry(None, 96))).expect("36 bytes");
        assert!(standard.third_party_copy, "3PC");
        let reported = data(&mut unit, cdb::copy_parameters(1024));
        assert_eq!(reported.len(), 4 + usize::from(reported[3]));
        let parameters = CopyParameters::parse(&reported).expect("whole");
        assert!(parameters.copies_blocks());
        assert_eq!(parameters.segments_of_list(COPY_CSCDS_MAX), COPY_SEGMENTS_MAX);
        // SPC-4 7.8.17: values reported twice are equal, and the length of every descriptor is a multiple of four.
        let page = data(&mut unit, cdb::inquiry(Some(0x8f), 1024));
        let (mut rest, mut kinds) = (&page[4..], Vec::new());
        while let &[kind_high, kind, high, low, ref body @ ..] = rest {
            let (body, behind) = body.split_at(usize::from(u16::from_be_bytes([high, low])));
            assert_eq!(body.len() % 4, 0);
            match u16::from_be_bytes([kind_high, kind]) {
                0x0001 => assert_eq!(body[..9], [8, 0x83, 1, 0, 0x84, 3, 0, 3, 4]),
                0x0004 => assert_eq!(body[4..12], reported[8..16]),
                0x0008 => assert_eq!(body[..3], [2, 0x02, 0xe4]),
                _ => {}
            }
            kinds.push(u16::from_be_bytes([kind_high, kind]));
            rest = behind;
        }
        assert_eq!(kinds, [0x0001, 0x0004, 0x0008, 0x000c, 0x8001]);
    }
}
