//! The device server of one logical unit: state, order of checks, events from outside.
//!
//! The order, from SAM-5 5.3.3 and practice: unit attention, operation code, control byte, reservation, medium, rights,
//! write protection, fields of the CDB, limits and capacity. `opcodes::TABLE` says which of them apply to a
//! command; the arms live in the files named after their subject.

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

/// An I_T nexus: an initiator port and the target port it came in by. The caller hands out the numbers, none twice.
pub type NexusId = u64;

/// What an I_T nexus may do with a logical unit that it sees. The caller knows it by nexus and unit and says it with each
/// command, so that a change holds from the next command on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Read it. The unit is write-protected for this nexus, and its state is not this nexus's to change.
    ReadOnly,
    /// Read and write it, and change its state.
    ReadWrite,
}

/// What a logical unit is. Does not change while it lives, except its size ([`LogicalUnit::resized`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitConfig {
    /// Capacity in logical blocks.
    pub blocks: u64,
    /// Logical block size: 512 or 4096 bytes.
    pub block_size: u32,
    /// Physical block size in bytes: a power of two, at least `block_size`, at most 2^15 times that.
    pub physical_block_size: u32,
    /// Every write is refused with DATA PROTECT 27h/00h.
    pub read_only: bool,
    /// RMB: the medium can be ejected and loaded by START STOP UNIT.
    pub removable: bool,
    /// Medium rotation rate: 7200/min if so, else "non-rotating".
    pub rotational: bool,
    /// LBPME: UNMAP and WRITE SAME with UNMAP work, unmapped blocks read as zeros.
    pub thin: bool,
    /// WCE: a write may end in a volatile cache. If not, WCE can not be switched on by an initiator either.
    pub write_cache: bool,
    /// T10 VENDOR IDENTIFICATION, at most 8 characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION, at most 16 characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL, at most 4 characters.
    pub revision: String,
    /// Unit serial number, at most 64 characters are used.
    pub serial: String,
    /// 60 random bits for the NAA designator. Its format is NAA 3h, locally assigned, because we own no OUI:
    /// the top four bits are replaced by 3h. Stable for the life of the volume, never two alike.
    pub naa: u64,
    /// MAXIMUM TRANSFER LENGTH in bytes, rounded down to blocks; 0: no limit.
    pub max_transfer_bytes: u32,
    /// OPTIMAL TRANSFER LENGTH in bytes, rounded down to physical blocks; 0: nothing to recommend.
    pub optimal_transfer_bytes: u32,
    /// iSCSI name of the target, for the SCSI name string designators.
    pub target_name: String,
    /// Target port group tag by which the initiator came in.
    pub target_port_group: u16,
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub relative_port: u16,
}

/// The device server of one logical unit, shared by all its I_T nexuses.
#[derive(Debug)]
pub struct LogicalUnit {
    config: UnitConfig,
    nexuses: Vec<Nexus>,
    /// Holder of a RESERVE, SPC-2 5.5.1.
    reservation: Option<NexusId>,
    pages: Pages,
    /// The medium is in; always so unless removable.
    loaded: bool,
    /// A flush failed: accepted data is lost.
    lost_data: bool,
    /// Copies that run, and some that have ended, oldest first.
    copies: Vec<copy::Record>,
    /// Nexuses that are gone and had heard all about the power of this unit, oldest first.
    heard: VecDeque<NexusId>,
}

/// What is kept for one I_T nexus.
#[derive(Debug)]
struct Nexus {
    id: NexusId,
    attentions: Attentions,
    /// It has not been told yet that what it knows of this unit does not count any more.
    untold: bool,
    /// The storage's cache was lost, and this nexus's next flush has to say so.
    cache_lost: bool,
    /// PREVENT of PREVENT ALLOW MEDIUM REMOVAL.
    prevent: bool,
}

impl Nexus {
    /// The attention to be told now.
    fn tell(&mut self) -> Option<(u8, u8)> {
        let code = self.attentions.pop()?;
        self.untold &= ![attention::POWER_ON, attention::MEDIUM_CHANGED].contains(&code);
        Some(code)
    }
}

/// A command on its way through the checks.
#[derive(Clone, Copy)]
struct Call<'a> {
    nexus: NexusId,
    rights: Rights,
    cdb: &'a [u8],
    inventory: &'a [u64],
}

impl LogicalUnit {
    /// A unit with nobody attached. What in the configuration would make answers nonsense is put right: block
    /// sizes that are no powers of two or too small become 512 and the logical block size.
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
            heard: VecDeque::new(),
        }
    }

    /// What the unit is, with its present size.
    pub fn config(&self) -> &UnitConfig {
        &self.config
    }

    /// WCE as it is now: MODE SELECT can switch the volatile cache off and on again.
    pub fn write_cache(&self) -> bool {
        self.pages.write_cache()
    }

    /// The holder of a RESERVE.
    pub fn reserved_by(&self) -> Option<NexusId> {
        self.reservation
    }

    /// Whether accepted data was lost ([`MediaError::FlushFailed`]) and the unit therefore answers MEDIUM ERROR.
    pub fn lost_data(&self) -> bool {
        self.lost_data
    }

    /// The storage was opened anew after [`LogicalUnit::lost_data`]: commands reach it again, and every nexus
    /// hears 28h/00h, since what the medium holds may not be what was last read.
    pub fn reopened(&mut self) {
        self.lost_data = false;
        self.heard.clear();
        for nexus in &mut self.nexuses {
            nexus.untold = true;
        }
        self.establish(None, attention::MEDIUM_CHANGED);
    }

    /// A new I_T nexus. One that was not here before hears 29h/01h POWER ON OCCURRED (SAM-5 6.3.1): nothing it knows
    /// of this unit counts. One that takes the place of a nexus of the same ports, whose number was `former`, hears
    /// 29h/07h I_T NEXUS LOSS OCCURRED (SAM-5 6.3.4): its tasks and reservations are gone, but what was accepted from
    /// it is still accepted. Initiators tell by this whether writes they have not flushed survived, so it is not said
    /// when data was lost since, nor to one that ended before it had heard of the power. Attaching again starts the
    /// nexus afresh.
    pub fn attach(&mut self, nexus: NexusId, former: Option<NexusId>) {
        self.detach(nexus);
        let kept = former.is_some_and(|former| self.heard.contains(&former));
        let mut attentions = Attentions::default();
        attentions.push(if kept { attention::NEXUS_LOSS } else { attention::POWER_ON });
        self.nexuses.push(Nexus { id: nexus, attentions, untold: !kept, cache_lost: false, prevent: false });
    }

    /// I_T nexus loss (SAM-5 6.3.4): its reservation, PREVENT and unit attentions go.
    pub fn detach(&mut self, nexus: NexusId) {
        if let Some(index) = self.nexuses.iter().position(|known| known.id == nexus) {
            let gone = self.nexuses.swap_remove(index);
            if !gone.untold && !gone.cache_lost {
                if self.heard.len() == FORMER_NEXUSES_MAX {
                    self.heard.pop_front();
                }
                self.heard.push_back(nexus);
            }
        }
        if self.reservation == Some(nexus) {
            self.reservation = None;
        }
        self.copies.retain(|record| record.nexus != nexus);
    }

    /// LOGICAL UNIT RESET, or a target reset (SAM-5 6.3.3): reservation and PREVENT go, mode pages return to
    /// their defaults. Every nexus hears of it, the one that asked included, as SAM-5 wants and initiators
    /// expect: 29h/03h if an initiator asked, 29h/04h if the target did it of its own accord. The caller has
    /// aborted the tasks.
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

    /// A unit attention condition for every nexus but one.
    pub fn establish(&mut self, except: Option<NexusId>, asc_ascq: (u8, u8)) {
        for nexus in &mut self.nexuses {
            if except != Some(nexus.id) {
                nexus.attentions.push(asc_ascq);
            }
        }
    }

    /// The LUNs that this nexus sees have changed: 3Fh/0Eh REPORTED LUNS DATA HAS CHANGED at this unit.
    pub fn luns_changed(&mut self, nexus: NexusId) {
        if let Some(nexus) = self.nexuses.iter_mut().find(|known| known.id == nexus) {
            nexus.attentions.push(attention::LUNS_CHANGED);
        }
    }

    /// The unit has a new size: 2Ah/09h CAPACITY DATA HAS CHANGED for everyone.
    pub fn resized(&mut self, blocks: u64) {
        if self.config.blocks != blocks {
            self.config.blocks = blocks;
            self.establish(None, attention::CAPACITY_CHANGED);
        }
    }

    /// CLEAR TASK SET ended tasks of others (SAM-5 5.6.3): 2Fh/00h for them. Call it when there were any.
    pub fn tasks_cleared_by(&mut self, by: NexusId) {
        self.establish(Some(by), attention::TASKS_CLEARED);
    }

    /// Runs a command as far as it goes without data. `rights` are those of `nexus` to this unit, `cdb` is what the
    /// transport carried (iSCSI pads to 16 bytes), `inventory` the wire values of the LUNs that the nexus sees. READ and
    /// WRITE do not allocate.
    pub fn command(&mut self, nexus: NexusId, rights: Rights, cdb: &[u8], inventory: &[u64]) -> Step {
        let call = Call { nexus, rights, cdb, inventory };
        let result = self.admit(call).and_then(|opcode| (opcode.run)(self, call));
        result.map_or_else(|stop| self.stopped(stop), |step| self.formatted(step))
    }

    /// Goes on after [`Step::Collect`] with what arrived, which is as long as [`Step::Collect`] said.
    pub fn parameters(&mut self, nexus: NexusId, rights: Rights, cdb: &[u8], list: &[u8]) -> Step {
        let call = Call { nexus, rights, cdb, inventory: &[] };
        let result = match opcodes::find(cdb).map(|opcode| (opcode, opcode.parameters)) {
            Some((opcode, Some(parameters))) if cdb.len() >= opcode.length() => {
                // While the list travelled the medium may have gone, or the unit become read-only.
                self.permit(opcode, rights).and_then(|()| parameters(self, call, list))
            }
            _ => Err(Sense::INVALID_OPCODE.into()),
        };
        result.map_or_else(|stop| self.stopped(stop), |step| self.formatted(step))
    }

    /// Ends a command for which the initiator offers data-out of a length that cannot serve ([`Media::accepts_data_out`],
    /// [`Step::Collect`]): ILLEGAL REQUEST 0Eh/03h INVALID FIELD IN COMMAND INFORMATION UNIT (FCP-4 9.4.2.6 b). Nothing has
    /// been transferred.
    pub fn misfit(&self) -> Outcome {
        self.with_format(Outcome::check(Sense::COMMAND_IU))
    }

    /// Ends a command whose storage work is done.
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

    /// The storage's cache was lost, and `told` is hearing of it. The next flush of every other nexus has to fail too:
    /// what it wrote may be gone as well. The storage says it once for each of its flushes under way; the first one
    /// speaks for all.
    fn cache_lost(&mut self, told: NexusId) {
        if std::mem::take(&mut self.nexus(told).cache_lost) {
            return;
        }
        self.heard.clear();
        for nexus in &mut self.nexuses {
            nexus.cache_lost = nexus.id != told;
        }
    }

    /// The checks every command passes before its own arm sees it.
    fn admit(&mut self, call: Call<'_>) -> Result<&'static Opcode, Stop> {
        let opcode = opcodes::find(call.cdb);
        // SAM-5 5.14.5: INQUIRY, REPORT LUNS and REQUEST SENSE go past a unit attention.
        if !opcode.is_some_and(|opcode| opcode.past_attention)
            && let Some((asc, ascq)) = self.nexus(call.nexus).tell()
        {
            return Err(Sense::new(SenseKey::UnitAttention, asc, ascq).into());
        }
        let opcode = opcode.filter(|opcode| self.config.thin || !opcode.thin).ok_or(Sense::INVALID_OPCODE)?;
        if call.cdb.len() < opcode.length() {
            return Err(Sense::field_in_cdb(0, None).into());
        }
        // SAM-5 5.2: NORMACA is zero, so NACA must be.
        let control = opcode.length() - 1;
        if call.cdb[control] & 0x04 != 0 {
            return Err(Sense::field_in_cdb(control as u16, Some(2)).into());
        }
        if let Some(holder) = self.reservation
            && holder != call.nexus
            && match opcode.reserved {
                Reserved::Conflict => true,
                Reserved::Allowed => false,
                // SPC-2 table 10: PREVENT ALLOW MEDIUM REMOVAL is allowed when it allows.
                Reserved::AllowedWithoutPrevent => call.cdb[4] & 0x03 != 0,
            }
        {
            return Err(Stop::Conflict);
        }
        self.permit(opcode, call.rights)?;
        Ok(opcode)
    }

    /// The medium is in where the command needs it, and neither the nexus's rights nor write protection forbid the command.
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

    /// WP as a nexus with these rights meets it.
    fn write_protected(&self, rights: Rights) -> bool {
        rights == Rights::ReadOnly || self.config.read_only || self.pages.software_write_protect()
    }

    /// The state of a nexus. A command from one nobody announced is a nexus that begins with it.
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

    /// D_SENSE of the Control page chooses the sense format (SPC-4 7.5.8).
    fn with_format(&self, mut outcome: Outcome) -> Outcome {
        if let Some(sense) = &mut outcome.sense {
            sense.descriptor = self.pages.descriptor_sense();
        }
        outcome
    }
}

/// Why a command ends early.
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
        MediaError::Medium => match media.op {
            MediaOp::Read { .. } | MediaOp::Verify { .. } | MediaOp::LbaStatus { .. } => Sense::READ_ERROR,
            _ => Sense::WRITE_ERROR,
        },
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
