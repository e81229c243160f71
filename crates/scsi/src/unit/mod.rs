//! The device server of one logical unit: state, order of checks, external events.
//!
//! The order, from SAM-5 5.3.3 and practice: unit attention, operation code, control byte, reservation, medium, rights,
//! write protection, fields of the CDB, limits and capacity. `opcodes::TABLE` selects the checks of each command; the
//! commands are implemented in the files named after their subject.

mod attention;
mod copy;
mod inquiry;
mod lba_status;
mod maintenance;
mod media;
mod mode;
mod opcodes;
mod reservation;
mod status;
#[cfg(test)]
mod tests;

pub use copy::CopyEnd;
pub(crate) use inquiry::{inquiry_without_unit, report_luns};
pub(crate) use status::request_sense;

use std::collections::VecDeque;

use crate::limits::FORMER_NEXUSES_MAX;
use crate::media::Then;
use crate::{Media, MediaError, MediaOp, Outcome, Sense, SenseKey, Step};
use attention::Attentions;
use mode::Pages;
use opcodes::{Need, Opcode, Reserved};

/// An I_T nexus: an initiator port and its target port. The caller assigns the numbers and never reuses one.
pub type NexusId = u64;

/// Access rights of an I_T nexus to a logical unit visible to it. The caller passes them with each command, so that a
/// change applies from the next command on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Read only. The unit is write-protected for this nexus, which also may not change state that other nexuses share.
    ReadOnly,
    /// Read and write, and change the state of the unit.
    ReadWrite,
}

/// Properties of a logical unit. They are fixed for its lifetime, except the size ([`LogicalUnit::resized`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitConfig {
    pub blocks: u64,
    /// Logical block size: 512 or 4096 bytes.
    pub block_size: u32,
    /// Physical block size in bytes: a power of two, at least `block_size`, at most 2^15 times that.
    pub physical_block_size: u32,
    /// Every write is rejected with DATA PROTECT 27h/00h.
    pub read_only: bool,
    /// No initiator but one can write to the unit, and nothing else does: standard INQUIRY data say so to an initiator of
    /// this project ([`crate::inquiry::Standard::sole_writer`]).
    pub sole_writer: bool,
    /// RMB: START STOP UNIT can eject and load the medium.
    pub removable: bool,
    /// Medium rotation rate: 7200/min if set, otherwise "non-rotating".
    pub rotational: bool,
    /// LBPME: UNMAP and WRITE SAME with UNMAP are supported, unmapped blocks read as zeros.
    pub thin: bool,
    /// WCE: a write may complete in a volatile cache. If false, initiators cannot enable WCE.
    pub write_cache: bool,
    /// T10 VENDOR IDENTIFICATION, at most 8 characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION, at most 16 characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL, at most 4 characters.
    pub revision: String,
    /// Unit serial number; only the first 64 characters are used.
    pub serial: String,
    /// 60 random bits for the NAA designator. Its format is NAA 3h, locally assigned, because the project owns no OUI:
    /// the top four bits are replaced by 3h. Stable for the lifetime of the volume and unique.
    pub naa: u64,
    /// MAXIMUM TRANSFER LENGTH in bytes, rounded down to blocks; 0 means no limit.
    pub max_transfer_bytes: u32,
    /// OPTIMAL TRANSFER LENGTH in bytes, rounded down to physical blocks; 0 means no recommendation.
    pub optimal_transfer_bytes: u32,
    /// iSCSI name of the target, for the SCSI name string designators.
    pub target_name: String,
    /// Group tag of the target port that the initiator is connected to.
    pub target_port_group: u16,
    pub relative_port: u16,
}

/// The device server of one logical unit, shared by all its I_T nexuses.
///
/// The caller attaches each nexus, passes its commands to [`LogicalUnit::command`], and acts on the returned [`Step`]
/// until it is [`Step::Done`]; commands of several nexuses may be in progress at once. Between calls the unit holds the
/// mode pages, the reservation, the unit attentions of each nexus and the records of copies, but no commands. Resets,
/// new sizes and failures of the storage are separate calls.
#[derive(Debug)]
pub struct LogicalUnit {
    config: UnitConfig,
    nexuses: Vec<Nexus>,
    /// Holder of a RESERVE (SPC-2 5.5.1).
    reservation: Option<NexusId>,
    pages: Pages,
    /// The medium is loaded; always true for a unit that is not removable.
    loaded: bool,
    lost_data: bool,
    /// Records of running copies and of the latest ended ones, oldest first.
    copies: Vec<copy::Record>,
    /// Ended nexuses that had received every report of a power-on or data loss of this unit, oldest first.
    fully_reported: VecDeque<NexusId>,
}

#[derive(Debug)]
struct Nexus {
    id: NexusId,
    attentions: Attentions,
    /// A power-on or change of the medium has not been reported to this nexus.
    unreported: bool,
    /// The storage lost its cache; the next flush of this nexus must fail.
    cache_lost: bool,
    /// PREVENT of PREVENT ALLOW MEDIUM REMOVAL.
    prevent: bool,
}

impl Nexus {
    fn take_attention(&mut self) -> Option<(u8, u8)> {
        let code = self.attentions.pop()?;
        self.unreported &= ![attention::POWER_ON, attention::MEDIUM_CHANGED].contains(&code);
        Some(code)
    }
}

#[derive(Clone, Copy)]
struct Call<'a> {
    nexus: NexusId,
    rights: Rights,
    cdb: &'a [u8],
    inventory: &'a [u64],
}

impl LogicalUnit {
    /// A unit without nexuses. Invalid sizes in the configuration are corrected: a logical block size that is no power
    /// of two or below 512 becomes 512, an invalid physical block size becomes the logical one.
    pub fn new(mut config: UnitConfig) -> Self {
        if !config.block_size.is_power_of_two() || config.block_size < 512 {
            config.block_size = 512;
        }
        let physical = config.physical_block_size;
        if !physical.is_power_of_two()
            || physical < config.block_size
            || physical / config.block_size > 1 << 15
        {
            config.physical_block_size = config.block_size;
        }
        let pages = Pages::new(&config);
        Self {
            config,
            nexuses: Vec::new(),
            reservation: None,
            pages,
            loaded: true,
            lost_data: false,
            copies: Vec::new(),
            fully_reported: VecDeque::new(),
        }
    }

    pub fn config(&self) -> &UnitConfig {
        &self.config
    }

    /// The current WCE: MODE SELECT can disable and enable the volatile cache.
    pub fn write_cache(&self) -> bool {
        self.pages.write_cache()
    }

    pub fn reserved_by(&self) -> Option<NexusId> {
        self.reservation
    }

    /// Whether accepted data was lost ([`MediaError::FlushFailed`]), so that the unit answers MEDIUM ERROR.
    pub fn lost_data(&self) -> bool {
        self.lost_data
    }

    /// The storage was reopened after [`LogicalUnit::lost_data`]: commands reach it again, and every nexus gets
    /// 28h/00h, since the contents of the medium may have changed.
    pub fn reopened(&mut self) {
        self.lost_data = false;
        self.fully_reported.clear();
        for nexus in &mut self.nexuses {
            nexus.unreported = true;
        }
        self.establish(None, attention::MEDIUM_CHANGED);
    }

    /// Adds an I_T nexus; an existing one of this number is detached first.
    ///
    /// A new nexus gets 29h/00h POWER ON, RESET, OR BUS DEVICE RESET OCCURRED (SAM-5 6.3.1): no earlier state of this
    /// unit is valid for it. A nexus that replaces one of the same ports, whose number was `former`, gets 29h/07h I_T
    /// NEXUS LOSS OCCURRED (SAM-5 6.3.4): its tasks and reservations are gone, but writes accepted from it remain
    /// accepted. Initiators infer from this code whether their unflushed writes survived; therefore it is not sent if
    /// data was lost since, nor if `former` ended before its own POWER ON was reported.
    pub fn attach(&mut self, nexus: NexusId, former: Option<NexusId>) {
        self.detach(nexus);
        let kept = former.is_some_and(|former| self.fully_reported.contains(&former));
        let mut attentions = Attentions::default();
        attentions.push(if kept { attention::NEXUS_LOSS } else { attention::POWER_ON });
        self.nexuses.push(Nexus {
            id: nexus,
            attentions,
            unreported: !kept,
            cache_lost: false,
            prevent: false,
        });
    }

    /// Whether a nexus of the same ports as `former` would get I_T NEXUS LOSS, and nothing else than its numbers has to be
    /// known to a unit that replaces this one with the same configuration: [`LogicalUnit::recall`].
    pub fn is_recallable(&self, former: NexusId) -> bool {
        let is_as_new = self.loaded && !self.lost_data && self.pages == Pages::new(&self.config);
        is_as_new && self.fully_reported.contains(&former)
    }

    /// A unit of an earlier process over the same storage, of the same configuration and flushed at its end, was
    /// recallable for a nexus that has the number `former` here.
    pub fn recall(&mut self, former: NexusId) {
        if self.fully_reported.len() == FORMER_NEXUSES_MAX {
            self.fully_reported.pop_front();
        }
        self.fully_reported.push_back(former);
    }

    /// I_T nexus loss (SAM-5 6.3.4): discards its reservation, PREVENT, unit attentions and copy records.
    pub fn detach(&mut self, nexus: NexusId) {
        if let Some(index) = self.nexuses.iter().position(|known| known.id == nexus) {
            let gone = self.nexuses.swap_remove(index);
            if !gone.unreported && !gone.cache_lost {
                self.recall(nexus);
            }
        }
        if self.reservation == Some(nexus) {
            self.reservation = None;
        }
        self.copies.retain(|record| record.nexus != nexus);
    }

    /// LOGICAL UNIT RESET, or a target reset (SAM-5 6.3.3): clears reservation and PREVENT and restores the default
    /// mode pages. Every nexus gets a unit attention, the requesting one included, as SAM-5 requires and initiators
    /// expect: 29h/03h if an initiator requested the reset, 29h/04h if the target did. The caller has aborted the
    /// tasks.
    pub fn reset(&mut self, by: Option<NexusId>) {
        self.reservation = None;
        self.pages = Pages::new(&self.config);
        self.copies.clear();
        let code = if by.is_some() { attention::DEVICE_RESET } else { attention::INTERNAL_RESET };
        for nexus in &mut self.nexuses {
            nexus.prevent = false;
            nexus.attentions.reset_to(code);
        }
    }

    /// Establishes a unit attention condition for every nexus except one.
    pub fn establish(&mut self, except: Option<NexusId>, asc_ascq: (u8, u8)) {
        for nexus in &mut self.nexuses {
            if except != Some(nexus.id) {
                nexus.attentions.push(asc_ascq);
            }
        }
    }

    /// The set of LUNs visible to this nexus has changed: 3Fh/0Eh REPORTED LUNS DATA HAS CHANGED at this unit.
    pub fn luns_changed(&mut self, nexus: NexusId) {
        if let Some(nexus) = self.nexuses.iter_mut().find(|known| known.id == nexus) {
            nexus.attentions.push(attention::LUNS_CHANGED);
        }
    }

    /// Sets a new size: 2Ah/09h CAPACITY DATA HAS CHANGED for every nexus.
    pub fn resized(&mut self, blocks: u64) {
        if self.config.blocks != blocks {
            self.config.blocks = blocks;
            self.establish(None, attention::CAPACITY_CHANGED);
        }
    }

    /// CLEAR TASK SET of `by` ended tasks of other nexuses (SAM-5 5.6.3), which get 2Fh/00h. Not called without any.
    pub fn tasks_cleared_by(&mut self, by: NexusId) {
        self.establish(Some(by), attention::TASKS_CLEARED);
    }

    /// Executes a command up to its data transfer. `rights` are those of `nexus` to this unit, `cdb` is the CDB from
    /// the transport (iSCSI pads it to 16 bytes), `inventory` the wire values of the LUNs visible to the nexus. READ and
    /// WRITE do not allocate.
    pub fn command(&mut self, nexus: NexusId, rights: Rights, cdb: &[u8], inventory: &[u64]) -> Step {
        let call = Call { nexus, rights, cdb, inventory };
        let result = self.admit(call).and_then(|opcode| (opcode.run)(self, call));
        result.map_or_else(|stop| self.stopped(stop), |step| self.formatted(step))
    }

    /// Continues after [`Step::Collect`] with the collected list, whose length is the one [`Step::Collect`] requested.
    pub fn parameters(&mut self, nexus: NexusId, rights: Rights, cdb: &[u8], list: &[u8]) -> Step {
        let call = Call { nexus, rights, cdb, inventory: &[] };
        let result = match opcodes::find(cdb).map(|opcode| (opcode, opcode.parameters)) {
            Some((opcode, Some(parameters))) if cdb.len() >= opcode.length() => {
                // The medium may have been ejected, or the unit write-protected, while the list was transferred.
                self.permit(opcode, rights).and_then(|()| parameters(self, call, list))
            }
            _ => Err(Sense::INVALID_OPCODE.into()),
        };
        result.map_or_else(|stop| self.stopped(stop), |step| self.formatted(step))
    }

    /// Ends a command whose data-out length is unusable ([`Media::accepts_data_out`], [`Step::Collect`]): ILLEGAL
    /// REQUEST 0Eh/03h INVALID FIELD IN COMMAND INFORMATION UNIT (FCP-4 9.4.2.6 b). Nothing has been transferred.
    pub fn misfit(&self) -> Outcome {
        self.with_format(Outcome::check(Sense::COMMAND_IU))
    }

    pub fn finish(&mut self, nexus: NexusId, media: &Media, result: Result<(), MediaError>) -> Outcome {
        let result = match result {
            Ok(()) if media.op == MediaOp::Flush && std::mem::take(&mut self.nexus(nexus).cache_lost) => {
                Err(MediaError::CacheLost)
            }
            Err(MediaError::CacheLost) => {
                self.cache_lost(nexus);
                result
            }
            _ => result,
        };
        let outcome = match result {
            Ok(()) => {
                if media.then == Then::Eject {
                    self.loaded = false;
                    self.establish(Some(nexus), attention::MEDIUM_CHANGED);
                }
                lba_status::parameter_data(media, &[], self.config.thin)
                    .map_or_else(Outcome::good, Outcome::data)
            }
            Err(error) => {
                self.lost_data |= error == MediaError::FlushFailed;
                Outcome::check(sense_of(media, error))
            }
        };
        self.with_format(outcome)
    }

    /// The storage lost its cache, and the current command of `reporter` reports it. The next flush of every other nexus
    /// must fail too, because its writes may be lost. The storage reports one loss to each flush in progress; only the
    /// first report marks the other nexuses.
    fn cache_lost(&mut self, reporter: NexusId) {
        if std::mem::take(&mut self.nexus(reporter).cache_lost) {
            return;
        }
        self.fully_reported.clear();
        for nexus in &mut self.nexuses {
            nexus.cache_lost = nexus.id != reporter;
        }
    }

    /// The checks before the implementation of a command.
    fn admit(&mut self, call: Call<'_>) -> Result<&'static Opcode, Stop> {
        let opcode = opcodes::find(call.cdb);
        // SAM-5 5.14.5: INQUIRY, REPORT LUNS and REQUEST SENSE bypass a unit attention.
        if !opcode.is_some_and(|opcode| opcode.past_attention)
            && let Some((asc, ascq)) = self.nexus(call.nexus).take_attention()
        {
            return Err(Sense::new(SenseKey::UnitAttention, asc, ascq).into());
        }
        let opcode = opcode.filter(|opcode| self.config.thin || !opcode.thin).ok_or(Sense::INVALID_OPCODE)?;
        if call.cdb.len() < opcode.length() {
            return Err(Sense::field_in_cdb(0, None).into());
        }
        // SAM-5 5.2: NORMACA is zero, so NACA must be zero.
        let control = opcode.length() - 1;
        if call.cdb[control] & 0x04 != 0 {
            return Err(Sense::field_in_cdb(control as u16, Some(2)).into());
        }
        if let Some(holder) = self.reservation
            && holder != call.nexus
            && match opcode.reserved {
                Reserved::Conflict => true,
                Reserved::Allowed => false,
                // SPC-2 table 10: PREVENT ALLOW MEDIUM REMOVAL does not conflict if it allows removal.
                Reserved::AllowedWithoutPrevent => call.cdb[4] & 0x03 != 0,
            }
        {
            return Err(Stop::Conflict);
        }
        self.permit(opcode, call.rights)?;
        Ok(opcode)
    }

    /// Checks that the medium is loaded if needed, and that rights and write protection permit the command.
    fn permit(&self, opcode: &Opcode, rights: Rights) -> Result<(), Stop> {
        if opcode.medium && !self.loaded {
            return Err(Sense::NO_MEDIUM.into());
        }
        opcode.need.check(rights)?;
        if opcode.need == Need::Write && self.write_protected(rights) {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        Ok(())
    }

    /// WP for a nexus with these rights.
    fn write_protected(&self, rights: Rights) -> bool {
        rights == Rights::ReadOnly || self.config.read_only || self.pages.software_write_protect()
    }

    /// The state of a nexus. A nexus that was not attached is attached here.
    fn nexus(&mut self, id: NexusId) -> &mut Nexus {
        let index = match self.nexuses.iter().position(|known| known.id == id) {
            Some(index) => index,
            None => {
                self.attach(id, None);
                self.nexuses.len() - 1
            }
        };
        &mut self.nexuses[index]
    }

    fn stopped(&self, stop: Stop) -> Step {
        Step::Done(match stop {
            Stop::Sense(sense) => self.with_format(Outcome::check(sense)),
            Stop::Conflict => Outcome::conflict(),
        })
    }

    fn formatted(&self, step: Step) -> Step {
        match step {
            Step::Done(outcome) => Step::Done(self.with_format(outcome)),
            other => other,
        }
    }

    /// D_SENSE of the Control page selects the sense format (SPC-4 7.5.8).
    fn with_format(&self, mut outcome: Outcome) -> Outcome {
        if let Some(sense) = &mut outcome.sense {
            sense.descriptor = self.pages.descriptor_sense();
        }
        outcome
    }
}

#[derive(Clone, Copy)]
enum Stop {
    Sense(Sense),
    Conflict,
}

impl From<Sense> for Stop {
    fn from(sense: Sense) -> Self {
        Self::Sense(sense)
    }
}

/// The sense data of a failure (SBC-3 4.18.1, SPC-4 annex F).
fn sense_of(media: &Media, error: MediaError) -> Sense {
    match error {
        MediaError::Medium { lba } => {
            let sense = match media.op {
                MediaOp::Read { .. } | MediaOp::Verify { .. } | MediaOp::LbaStatus { .. } => {
                    Sense::READ_ERROR
                }
                _ => Sense::WRITE_ERROR,
            };
            Sense { information: lba.filter(|lba| media.concerns(*lba)), ..sense }
        }
        MediaError::FlushFailed | MediaError::CacheLost => Sense::WRITE_ERROR,
        MediaError::NoSpace => Sense::NO_SPACE,
        MediaError::ReadOnly => Sense::WRITE_PROTECTED,
        MediaError::OutOfRange => Sense::OUT_OF_RANGE,
        MediaError::Miscompare { offset } => {
            let mut sense = Sense::new(SenseKey::Miscompare, 0x1d, 0x00);
            sense.information = Some(offset);
            sense
        }
        MediaError::Aborted => Sense::new(SenseKey::AbortedCommand, 0x00, 0x00),
        MediaError::NotReady { ascq } => Sense::new(SenseKey::NotReady, 0x04, ascq),
        MediaError::Hardware => Sense::INTERNAL,
    }
}
