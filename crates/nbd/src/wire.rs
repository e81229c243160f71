//! Constants and layouts of the protocol. All integers are big-endian.

pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of a newstyle server, and magic of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Second eight bytes of an oldstyle server.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the server's greeting: two magic numbers and the handshake flags.
pub const GREETING_BYTES: usize = 18;
/// Bytes before the payload of an option reply.
pub const OPTION_REPLY_BYTES: usize = 20;
pub const REQUEST_BYTES: usize = 28;
pub const SIMPLE_REPLY_BYTES: usize = 16;
pub const CHUNK_BYTES: usize = 20;

/// Handshake flags; the client flags have the same bits.
pub mod handshake {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options (NBD_OPT).
pub mod option {
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options (NBD_REP).
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const IS_ERROR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = IS_ERROR + 1;
    pub const ERR_TLS_REQD: u32 = IS_ERROR + 5;
    pub const ERR_UNKNOWN: u32 = IS_ERROR + 6;
    pub const ERR_SHUTDOWN: u32 = IS_ERROR + 7;
}

/// Information types of NBD_REP_INFO (NBD_INFO).
pub mod info {
    /// NBD_INFO_EXPORT: size and transmission flags.
    pub const EXPORT: u16 = 0;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags (NBD_FLAG).
pub mod flag {
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// Commands and command flags (NBD_CMD).
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
    pub const FLAG_FUA: u16 = 1 << 0;
    pub const FLAG_NO_HOLE: u16 = 1 << 1;
}

/// Chunk flags and types of structured replies (NBD_REPLY).
pub mod chunk {
    pub const DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in the type of every error chunk.
    pub const IS_ERROR: u16 = 1 << 15;
}

/// NBD_STATE_ZERO of `base:allocation`: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;
/// NBD_STATE_DIRTY of `qemu:dirty-bitmap:NAME`.
pub const STATE_DIRTY: u32 = 1 << 0;

/// Error NBD_ESHUTDOWN: the server is about to shut down; the connection ends.
pub const ESHUTDOWN: u32 = 108;

/// Two bytes of `bytes` at `at`; panics if out of range.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Four bytes of `bytes` at `at`; panics if out of range.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Eight bytes of `bytes` at `at`; panics if out of range.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub fn emit_option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    /// Returned in the reply.
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Request {
    pub fn emit(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// A string of the server in printable form, at most 200 characters long.
pub fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(400)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect::<String>().trim().to_owned()
}
