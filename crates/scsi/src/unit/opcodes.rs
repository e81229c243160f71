//! The commands of the device server. One table drives dispatch and REPORT SUPPORTED OPERATION CODES; a new command is
//! one entry here and one function in the file of its subject.
//!
//! COMPARE AND WRITE (89h), ORWRITE (8Bh) and PERSISTENT RESERVE IN/OUT (5Eh/5Fh) are not implemented and end with 05h
//! 20h/00h.

use super::{Call, LogicalUnit, Stop, copy, lba_status, maintenance, media, mode, reservation, status};
use crate::cdb::opcode as op;
use crate::{Rights, Sense, Step};

/// First half of a command: up to data-out.
pub(super) type Run = fn(&mut LogicalUnit, Call<'_>) -> Result<Step, Stop>;
/// Second half of a command, with the parameter list.
pub(super) type Parameters = fn(&mut LogicalUnit, Call<'_>, &[u8]) -> Result<Step, Stop>;

/// Behaviour under a RESERVE of another I_T nexus (SPC-2 table 10, SBC-2 table 10).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserved {
    Conflict,
    Allowed,
    AllowedWithoutPrevent,
}

/// The right that a command requires of its I_T nexus ([`Rights`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// To identify the unit: the command reports about it, or changes only state of its own nexus.
    Sight,
    /// To read the medium. A flush belongs here: it makes writes of others durable and changes no block.
    Read,
    Write,
    /// To change state shared by all nexuses: mode pages, reservation, load and eject.
    State,
}

impl Need {
    /// Rejects a nexus with insufficient rights. Commands that change state end with ILLEGAL REQUEST, which initiators
    /// do not retry; writes end as on a write-protected medium.
    pub(super) const fn check(self, rights: Rights) -> Result<(), Sense> {
        match (self, rights) {
            (Self::Sight | Self::Read, Rights::ReadOnly) | (_, Rights::ReadWrite) => Ok(()),
            (Self::Write, Rights::ReadOnly) => Err(Sense::WRITE_PROTECTED),
            (Self::State, Rights::ReadOnly) => Err(Sense::ACCESS_DENIED),
        }
    }
}

pub(super) struct Opcode {
    pub(super) service_action: Option<u8>,
    /// CDB USAGE DATA (SPC-4 6.32.3): the operation code, then a one for every bit that is evaluated.
    pub(super) usage: &'static [u8],
    /// Executed despite a pending unit attention.
    pub(super) past_attention: bool,
    pub(super) reserved: Reserved,
    pub(super) medium: bool,
    /// Right required of the nexus; [`Need::Write`] also fails under write protection.
    pub(super) need: Need,
    pub(super) thin: bool,
    pub(super) run: Run,
    pub(super) parameters: Option<Parameters>,
}

impl Opcode {
    pub(super) const fn code(&self) -> u8 {
        self.usage[0]
    }

    pub(super) const fn length(&self) -> usize {
        self.usage.len()
    }

    const fn new(usage: &'static [u8], run: Run) -> Self {
        Self {
            service_action: None,
            usage,
            past_attention: false,
            reserved: Reserved::Conflict,
            medium: false,
            need: Need::Sight,
            thin: false,
            run,
            parameters: None,
        }
    }

    const fn on_medium(usage: &'static [u8], run: Run) -> Self {
        Self { medium: true, ..Self::new(usage, run) }
    }

    const fn read(usage: &'static [u8], run: Run) -> Self {
        Self { need: Need::Read, ..Self::on_medium(usage, run) }
    }

    const fn write(usage: &'static [u8], run: Run) -> Self {
        Self { need: Need::Write, ..Self::on_medium(usage, run) }
    }

    const fn state(usage: &'static [u8], run: Run) -> Self {
        Self { need: Need::State, ..Self::new(usage, run) }
    }

    const fn past_attention(self) -> Self {
        Self { past_attention: true, ..self }
    }

    const fn allowed(self) -> Self {
        Self { reserved: Reserved::Allowed, ..self }
    }

    const fn allowed_without_prevent(self) -> Self {
        Self { reserved: Reserved::AllowedWithoutPrevent, ..self }
    }

    const fn thin(self) -> Self {
        Self { thin: true, ..self }
    }

    const fn action(self, action: u8) -> Self {
        Self { service_action: Some(action), ..self }
    }

    const fn with(self, parameters: Parameters) -> Self {
        Self { parameters: Some(parameters), ..self }
    }
}

/// The evaluated bit of every CONTROL byte: NACA.
const CTL: u8 = 0x04;
const A: u8 = 0xff;

/// Sorted by operation code, then by service action.
pub(super) static TABLE: [Opcode; 45] = [
    Opcode::on_medium(&[op::TEST_UNIT_READY, 0, 0, 0, 0, CTL], status::test_unit_ready),
    Opcode::new(&[op::REQUEST_SENSE, 0x01, 0, 0, A, CTL], status::run_request_sense)
        .past_attention()
        .allowed(),
    Opcode::read(&[op::READ_6, 0x1f, A, A, A, CTL], media::read),
    Opcode::write(&[op::WRITE_6, 0x1f, A, A, A, CTL], media::write),
    Opcode::new(&[op::INQUIRY, 0x01, A, A, A, CTL], super::inquiry::run).past_attention().allowed(),
    Opcode::state(&[op::MODE_SELECT_6, 0x13, 0, 0, A, CTL], mode::select).with(mode::select_list),
    Opcode::state(&[op::RESERVE_6, 0x11, 0, 0, 0, CTL], reservation::reserve),
    Opcode::new(&[op::RELEASE_6, 0x11, 0, 0, 0, CTL], reservation::release).allowed(),
    Opcode::new(&[op::MODE_SENSE_6, 0x08, A, A, A, CTL], mode::sense),
    Opcode::state(&[op::START_STOP_UNIT, 0x01, 0, 0x0f, 0xf7, CTL], status::start_stop_unit),
    Opcode::new(&[op::SEND_DIAGNOSTIC, 0xf7, 0, A, A, CTL], status::send_diagnostic),
    Opcode::state(&[op::PREVENT_ALLOW, 0, 0, 0, 0x03, CTL], status::prevent_allow).allowed_without_prevent(),
    Opcode::on_medium(&[op::READ_CAPACITY_10, 0, A, A, A, A, 0, 0, 0x01, CTL], status::read_capacity_10)
        .allowed(),
    Opcode::read(&[op::READ_10, 0xf8, A, A, A, A, 0, A, A, CTL], media::read),
    Opcode::write(&[op::WRITE_10, 0xf8, A, A, A, A, 0, A, A, CTL], media::write),
    Opcode::write(&[op::WRITE_VERIFY_10, 0xf6, A, A, A, A, 0, A, A, CTL], media::write_verify),
    Opcode::read(&[op::VERIFY_10, 0xf6, A, A, A, A, 0, A, A, CTL], media::verify),
    Opcode::read(&[op::PRE_FETCH_10, 0x02, A, A, A, A, 0, A, A, CTL], media::pre_fetch),
    Opcode::read(&[op::SYNCHRONIZE_CACHE_10, 0x02, A, A, A, A, 0, A, A, CTL], media::synchronize_cache),
    Opcode::write(&[op::WRITE_SAME_10, 0xf8, A, A, A, A, 0, A, A, CTL], media::write_same),
    Opcode::write(&[op::UNMAP, 0x01, 0, 0, 0, 0, 0, A, A, CTL], media::unmap).thin().with(media::unmap_list),
    Opcode::state(&[op::MODE_SELECT_10, 0x13, 0, 0, 0, 0, 0, A, A, CTL], mode::select)
        .with(mode::select_list),
    Opcode::state(&[op::RESERVE_10, 0x13, 0, 0, 0, 0, 0, A, A, CTL], reservation::reserve),
    Opcode::new(&[op::RELEASE_10, 0x13, 0, 0, 0, 0, 0, A, A, CTL], reservation::release).allowed(),
    Opcode::new(&[op::MODE_SENSE_10, 0x18, A, A, 0, 0, 0, A, A, CTL], mode::sense),
    Opcode::new(&[op::EXTENDED_COPY, 0, 0, 0, 0, 0, 0, 0, 0, 0, A, A, A, A, 0, CTL], copy::extended_copy)
        .action(0x00)
        .with(copy::extended_copy_list),
    Opcode::new(&[op::RECEIVE_COPY_RESULTS, 0, A, 0, 0, 0, 0, 0, 0, 0, A, A, A, A, 0, CTL], copy::status)
        .action(copy::STATUS),
    Opcode::new(&[op::RECEIVE_COPY_RESULTS, 3, 0, 0, 0, 0, 0, 0, 0, 0, A, A, A, A, 0, CTL], copy::parameters)
        .action(copy::PARAMETERS),
    Opcode::new(&[op::RECEIVE_COPY_RESULTS, 4, A, 0, 0, 0, 0, 0, 0, 0, A, A, A, A, 0, CTL], copy::failure)
        .action(copy::FAILURE),
    Opcode::read(&[op::READ_16, 0xf8, A, A, A, A, A, A, A, A, A, A, A, A, 0, CTL], media::read),
    Opcode::write(&[op::WRITE_16, 0xf8, A, A, A, A, A, A, A, A, A, A, A, A, 0, CTL], media::write),
    Opcode::write(
        &[op::WRITE_VERIFY_16, 0xf6, A, A, A, A, A, A, A, A, A, A, A, A, 0, CTL],
        media::write_verify,
    ),
    Opcode::read(&[op::VERIFY_16, 0xf6, A, A, A, A, A, A, A, A, A, A, A, A, 0, CTL], media::verify),
    Opcode::read(&[op::PRE_FETCH_16, 0x02, A, A, A, A, A, A, A, A, A, A, A, A, 0, CTL], media::pre_fetch),
    Opcode::read(
        &[op::SYNCHRONIZE_CACHE_16, 0x02, A, A, A, A, A, A, A, A, A, A, A, A, 0, CTL],
        media::synchronize_cache,
    ),
    Opcode::write(&[op::WRITE_SAME_16, 0xf9, A, A, A, A, A, A, A, A, A, A, A, A, 0, CTL], media::write_same),
    Opcode::on_medium(
        &[op::SERVICE_ACTION_IN_16, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, A, A, A, A, 0, CTL],
        status::read_capacity_16,
    )
    .action(0x10)
    .allowed(),
    Opcode::read(
        &[op::SERVICE_ACTION_IN_16, 0x12, A, A, A, A, A, A, A, A, A, A, A, A, 0, CTL],
        lba_status::run,
    )
    .action(0x12),
    Opcode::new(&[op::REPORT_LUNS, 0, A, 0, 0, 0, A, A, A, A, 0, CTL], super::inquiry::run_report_luns)
        .past_attention()
        .allowed(),
    Opcode::new(&[op::MAINTENANCE_IN, 0x0c, 0x87, A, A, A, A, A, A, A, 0, CTL], maintenance::opcodes)
        .action(0x0c)
        .allowed(),
    Opcode::new(&[op::MAINTENANCE_IN, 0x0d, 0x80, 0, 0, 0, A, A, A, A, 0, CTL], maintenance::task_management)
        .action(0x0d)
        .allowed(),
    Opcode::read(&[op::READ_12, 0xf8, A, A, A, A, A, A, A, A, 0, CTL], media::read),
    Opcode::write(&[op::WRITE_12, 0xf8, A, A, A, A, A, A, A, A, 0, CTL], media::write),
    Opcode::write(&[op::WRITE_VERIFY_12, 0xf6, A, A, A, A, A, A, A, A, 0, CTL], media::write_verify),
    Opcode::read(&[op::VERIFY_12, 0xf6, A, A, A, A, A, A, A, A, 0, CTL], media::verify),
];

/// Index in [`TABLE`] of the first entry of each operation code; 0xff: none.
static FIRST: [u8; 256] = {
    let mut first = [0xff; 256];
    let mut index = TABLE.len();
    while index > 0 {
        index -= 1;
        first[TABLE[index].code() as usize] = index as u8;
    }
    first
};

/// The entry for a CDB: by operation code and, if it has any, service action.
pub(super) fn find(cdb: &[u8]) -> Option<&'static Opcode> {
    let code = *cdb.first()?;
    let action = cdb.get(1).map(|byte| byte & 0x1f);
    let mut index = usize::from(FIRST[usize::from(code)]);
    while let Some(opcode) = TABLE.get(index)
        && opcode.code() == code
    {
        if opcode.service_action.is_none() || opcode.service_action == action {
            return Some(opcode);
        }
        index += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_and_lengths_fit_the_group() {
        for pair in TABLE.windows(2) {
            let key = |opcode: &Opcode| (opcode.code(), opcode.service_action);
            assert!(key(&pair[0]) < key(&pair[1]), "{:02x}", pair[1].code());
        }
        for opcode in &TABLE {
            assert_eq!(Some(opcode.length()), crate::cdb::length(opcode.code()), "{:02x}", opcode.code());
            assert!(opcode.medium || !matches!(opcode.need, Need::Read | Need::Write));
            let expected = if opcode.service_action.is_some() { opcode.usage[1] & 0x1f } else { 0 };
            assert_eq!(opcode.service_action.unwrap_or(0), expected);
        }
    }

    #[test]
    fn every_line_is_found() {
        for opcode in &TABLE {
            let cdb = [opcode.code(), opcode.service_action.unwrap_or(0)];
            assert!(find(&cdb).is_some_and(|found| std::ptr::eq(found, opcode)), "{:02x}", opcode.code());
        }
        assert!(find(&[]).is_none());
        assert!(find(&[0xff, 0]).is_none());
        assert!(find(&[op::SERVICE_ACTION_IN_16, 0x13]).is_none());
        assert!(find(&[op::SERVICE_ACTION_IN_16]).is_none());
    }
}
