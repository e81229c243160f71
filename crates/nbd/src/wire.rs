//! Numbers and layouts of the protocol. All integers are big-endian.

/// First eight bytes of a server.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of a newstyle server, and the beginning of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Second eight bytes of an oldstyle server.
pub const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
/// Beginning of a reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Beginning of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Beginning of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Beginning of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the server's greeting: two magic numbers and the handshake flags.
pub const GREETING_BYTES: usize = 18;
/// Bytes before the payload of an option reply.
pub const OPTION_REPLY_BYTES: usize = 20;
/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply without its data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk before its payload.
pub const CHUNK_BYTES: usize = 20;

/// Handshake flags, and the client's answer to them, which has the same bits.
pub mod handshake {
    /// NBD_FLAG_FIXED_NEWSTYLE.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// NBD_FLAG_NO_ZEROES.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options.
pub mod option {
    /// NBD_OPT_GO.
    pub const GO: u32 = 7;
    /// NBD_OPT_STRUCTURED_REPLY.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// NBD_OPT_SET_META_CONTEXT.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod option_reply {
    /// NBD_REP_ACK.
    pub const ACK: u32 = 1;
    /// NBD_REP_INFO.
    pub const INFO: u32 = 3;
    /// NBD_REP_META_CONTEXT.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error.
    pub const IS_ERROR: u32 = 1 << 31;
    /// NBD_REP_ERR_UNSUP.
    pub const ERR_UNSUP: u32 = IS_ERROR + 1;
    /// NBD_REP_ERR_TLS_REQD.
    pub const ERR_TLS_REQD: u32 = IS_ERROR + 5;
    /// NBD_REP_ERR_UNKNOWN.
    pub const ERR_UNKNOWN: u32 = IS_ERROR + 6;
    /// NBD_REP_ERR_SHUTDOWN.
    pub const ERR_SHUTDOWN: u32 = IS_ERROR + 7;
}

/// What NBD_REP_INFO is about.
pub mod info {
    /// NBD_INFO_EXPORT: size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// NBD_INFO_BLOCK_SIZE.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub mod flag {
    /// NBD_FLAG_READ_ONLY.
    pub const READ_ONLY: u16 = 1 << 1;
    /// NBD_FLAG_SEND_FLUSH.
    pub const FLUSH: u16 = 1 << 2;
    /// NBD_FLAG_SEND_FUA.
    pub const FUA: u16 = 1 << 3;
    /// NBD_FLAG_ROTATIONAL.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// NBD_FLAG_SEND_TRIM.
    pub const TRIM: u16 = 1 << 5;
    /// NBD_FLAG_SEND_WRITE_ZEROES.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// NBD_FLAG_CAN_MULTI_CONN.
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// Commands.
pub mod command {
    /// NBD_CMD_READ.
    pub const READ: u16 = 0;
    /// NBD_CMD_WRITE.
    pub const WRITE: u16 = 1;
    /// NBD_CMD_DISC.
    pub const DISC: u16 = 2;
    /// NBD_CMD_FLUSH.
    pub const FLUSH: u16 = 3;
    /// NBD_CMD_TRIM.
    pub const TRIM: u16 = 4;
    /// NBD_CMD_WRITE_ZEROES.
    pub const WRITE_ZEROES: u16 = 6;
    /// NBD_CMD_BLOCK_STATUS.
    pub const BLOCK_STATUS: u16 = 7;
    /// NBD_CMD_FLAG_FUA.
    pub const FLAG_FUA: u16 = 1 << 0;
    /// NBD_CMD_FLAG_NO_HOLE.
    pub const FLAG_NO_HOLE: u16 = 1 << 1;
}

/// Chunks of structured replies.
pub mod chunk {
    /// NBD_REPLY_FLAG_DONE.
    pub const DONE: u16 = 1 << 0;
    /// NBD_REPLY_TYPE_NONE.
    pub const NONE: u16 = 0;
    /// NBD_REPLY_TYPE_OFFSET_DATA.
    pub const OFFSET_DATA: u16 = 1;
    /// NBD_REPLY_TYPE_OFFSET_HOLE.
    pub const OFFSET_HOLE: u16 = 2;
    /// NBD_REPLY_TYPE_BLOCK_STATUS.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error's type.
    pub const IS_ERROR: u16 = 1 << 15;
}

/// NBD_STATE_ZERO of `base:allocation`: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;
/// NBD_STATE_DIRTY of `qemu:dirty-bitmap:NAME`.
pub const STATE_DIRTY: u32 = 1 << 0;

/// The error that ends a connection: the server is about to go (NBD_ESHUTDOWN).
pub const ESHUTDOWN: u32 = 108;

/// Two bytes of `bytes` from `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

/// Four bytes of `bytes` from `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Eight bytes of `bytes` from `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// An option with its data, as sent.
pub fn emit_option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 + data.len());
    bytes.extend(OPTION_MAGIC.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// A request without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Command flags.
    pub flags: u16,
    /// One of [`command`].
    pub command: u16,
    /// Comes back in the reply.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl Request {
    /// As sent.
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

/// A string of the server, fit to be shown: printable, and cut where it gets long.
pub fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(400)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect::<String>().trim().to_owned()
}
