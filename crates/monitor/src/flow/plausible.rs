//! Whether 48 bytes are a basic header segment: for streams whose framing is not known. Reserved fields must be zero,
//! which all senders do, and sequence numbers must continue those of the PDUs before (RFC 7143 section 11).

use iscsi::wire::{BHS_LENGTH, Bhs, Opcode, RESERVED_TAG};

use crate::event::Side;

/// Distance of sequence numbers between two PDUs of a direction.
const SN_DISTANCE_MAX: i32 = 1 << 16;
/// Commands that a target permits at once.
const WINDOW_MAX: i32 = 1 << 17;
/// Data segment of a login, text or sense.
const TEXT_BYTES_MAX: u32 = 1 << 16;

/// What the PDUs of one direction said last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Context {
    /// ExpStatSN of the initiator, ExpCmdSN of the target: bytes 28 to 31 of every PDU.
    expected_sn: Option<u32>,
}

impl Context {
    pub(super) fn learn(&mut self, header: &[u8; BHS_LENGTH]) {
        // ExpStatSN of a login is meaningful only at a restored connection.
        self.expected_sn = (header[0] & 0x3f != Opcode::LoginRequest as u8).then(|| number(header, 28));
    }

    fn continues(self, header: &[u8; BHS_LENGTH]) -> bool {
        self.expected_sn.is_none_or(|last| {
            let distance = number(header, 28).wrapping_sub(last).cast_signed();
            (-SN_DISTANCE_MAX..=SN_DISTANCE_MAX).contains(&distance)
        })
    }
}

fn number(header: &[u8; BHS_LENGTH], at: usize) -> u32 {
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

/// The end that sends PDUs with this first byte.
pub(super) fn sender(byte: u8) -> Option<Side> {
    let opcode = Opcode::parse(byte).ok()?;
    let is_clean = byte & 0x80 == 0 && (byte & 0x40 == 0 || !opcode.is_from_target());
    let side = if opcode.is_from_target() { Side::Target } else { Side::Initiator };
    is_clean.then_some(side)
}

/// Whether `header` can be a PDU of `side`.
pub(super) fn is_plausible(side: Side, header: &[u8; BHS_LENGTH], context: Context) -> bool {
    if sender(header[0]) != Some(side) {
        return false;
    }
    let Ok(opcode) = Opcode::parse(header[0]) else { return false };
    let bhs = Bhs(header);
    if bhs.total_ahs_length() > 0 && opcode != Opcode::ScsiCommand {
        return false;
    }
    let fits = match side {
        Side::Initiator => initiator(opcode, header, bhs.data_segment_length()),
        Side::Target => target(opcode, header, bhs.data_segment_length()),
    };
    fits && (opcode == Opcode::LoginRequest || context.continues(header))
}

fn initiator(opcode: Opcode, header: &[u8; BHS_LENGTH], data_bytes: u32) -> bool {
    let [_, flags, second, third, ..] = *header;
    let is_reserved_zero = second == 0 && third == 0;
    let has_tag = number(header, 16) != RESERVED_TAG;
    match opcode {
        Opcode::NopOut => is_reserved_zero && flags == 0x80,
        Opcode::ScsiCommand => is_reserved_zero && flags & 0x18 == 0 && flags & 7 <= 4 && has_tag,
        Opcode::TmRequest => {
            is_reserved_zero && flags & 0x80 != 0 && (1..=13).contains(&(flags & 0x7f)) && data_bytes == 0
        }
        Opcode::LoginRequest => login(header, data_bytes) && header[0] & 0x40 != 0,
        Opcode::TextRequest => is_reserved_zero && flags & 0x3f == 0 && data_bytes <= TEXT_BYTES_MAX,
        Opcode::DataOut => is_reserved_zero && flags & 0x7f == 0 && has_tag && number(header, 32) == 0,
        Opcode::LogoutRequest => {
            is_reserved_zero && flags & 0x80 != 0 && flags & 0x7f <= 2 && data_bytes == 0
        }
        Opcode::Snack => is_reserved_zero && flags & 0x80 != 0 && flags & 0x7f <= 3 && data_bytes == 0,
        _ => false,
    }
}

fn target(opcode: Opcode, header: &[u8; BHS_LENGTH], data_bytes: u32) -> bool {
    let [_, flags, second, third, ..] = *header;
    let is_reserved_zero = second == 0 && third == 0;
    let tag = number(header, 16);
    let window = number(header, 32).wrapping_sub(number(header, 28)).cast_signed();
    let fits = match opcode {
        Opcode::NopIn => is_reserved_zero && flags == 0x80,
        Opcode::ScsiResponse => {
            flags & 0xe1 == 0x80
                && (second <= 1 || second >= 0x80)
                && third & 1 == 0
                && third <= 0x40
                && data_bytes <= TEXT_BYTES_MAX
                && tag != RESERVED_TAG
        }
        Opcode::TmResponse => {
            flags == 0x80 && (second <= 6 || second == 255) && third == 0 && data_bytes == 0
        }
        Opcode::LoginResponse => login(header, data_bytes),
        Opcode::TextResponse => is_reserved_zero && flags & 0x3f == 0 && data_bytes <= TEXT_BYTES_MAX,
        Opcode::DataIn => {
            let has_status = flags & 1 != 0;
            flags & 0x38 == 0 && second == 0 && (has_status || third == 0) && tag != RESERVED_TAG
        }
        Opcode::LogoutResponse => flags == 0x80 && second <= 3 && third == 0 && data_bytes == 0,
        Opcode::R2t => is_reserved_zero && flags == 0x80 && data_bytes == 0 && number(header, 44) > 0,
        Opcode::AsyncMessage => is_reserved_zero && flags == 0x80 && tag == RESERVED_TAG,
        Opcode::Reject => flags == 0x80 && third == 0 && tag == RESERVED_TAG,
        _ => false,
    };
    fits && (-1..=WINDOW_MAX).contains(&window)
}

fn login(header: &[u8; BHS_LENGTH], data_bytes: u32) -> bool {
    let flags = header[1];
    // One version is defined; CSG and NSG of 2 are reserved.
    header[2] <= 1
        && header[3] <= 1
        && flags & 0x30 == 0
        && flags & 0x0c != 0x08
        && data_bytes <= TEXT_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_no_header() {
        let mut state = 1_u64;
        let mut found = 0;
        for _ in 0..300_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = (state >> 24).to_be_bytes();
            let header: [u8; BHS_LENGTH] = std::array::from_fn(|at| word[at % 8].wrapping_add(at as u8 / 8));
            for side in [Side::Initiator, Side::Target] {
                found += u32::from(is_plausible(side, &header, Context::default()));
            }
        }
        assert!(found <= 1, "{found}");
        for side in [Side::Initiator, Side::Target] {
            for byte in 0..=255 {
                let is_found = is_plausible(side, &[byte; BHS_LENGTH], Context::default());
                assert!(!is_found, "{side:?} {byte:#x}");
            }
        }
    }
}
