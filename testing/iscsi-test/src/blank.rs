//! PDUs of zeroes: the base of those that a test sets few fields of.

use iscsi::wire::{
    AsyncMessage, BHS_LENGTH, CmdSn, DataIn, DataOut, LogoutRequest, LogoutResponse, NopIn, NopOut, Opcode,
    R2t, Reject, ScsiCommand, ScsiResponse, Snack, StatSn, TextRequest, TextResponse, TmRequest, TmResponse,
};

pub trait Blank {
    /// The PDU with its opcode in this header.
    fn of(raw: [u8; BHS_LENGTH]) -> Self;
}

macro_rules! blank {
    ($($pdu:ident),*) => {
        $(impl Blank for $pdu {
            fn of(mut raw: [u8; BHS_LENGTH]) -> Self {
                raw[0] |= Opcode::$pdu as u8;
                Self::parse(&raw).expect("zeroes and numbers")
            }
        })*
    };
}

blank!(AsyncMessage, DataIn, DataOut, LogoutRequest, LogoutResponse, NopIn, NopOut, R2t, Reject, ScsiCommand);
blank!(ScsiResponse, Snack, TextRequest, TextResponse, TmRequest, TmResponse);

fn numbered<P: Blank>(first: u8, numbers: [u32; 3]) -> P {
    let mut raw = [0; BHS_LENGTH];
    raw[0] = first;
    raw[24..36].copy_from_slice(numbers.map(u32::to_be_bytes).as_flattened());
    P::of(raw)
}

/// A PDU of an initiator; without CmdSN if it is one that has none.
pub fn request<P: Blank>(is_immediate: bool, cmd_sn: CmdSn, exp_stat_sn: StatSn) -> P {
    numbered(u8::from(is_immediate) << 6, [cmd_sn.0, exp_stat_sn.0, 0])
}

/// A PDU of a target.
pub fn answer<P: Blank>(stat_sn: StatSn, exp_cmd_sn: CmdSn, max_cmd_sn: CmdSn) -> P {
    numbered(0, [stat_sn.0, exp_cmd_sn.0, max_cmd_sn.0])
}
