//! Negotiation, from the greeting to the transmission phase (proto, "Fixed newstyle negotiation"): one option at a
//! time; the next is sent after the reply to the last.

use thiserror::Error;

use crate::limits::{BLOCK_BYTES_MAX, OPTION_REPLIES_MAX, OPTION_REPLY_BYTES_MAX};
use crate::wire::{
    self, emit_option, flag, handshake, info, option, option_reply, shown, u16_at, u32_at, u64_at,
};

/// The export and the metadata contexts to request from a server.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub export: String,
    /// Metadata contexts to request if supported, such as `base:allocation`.
    pub contexts: Vec<String>,
}

/// Block size constraints, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths must be multiples of it, in bytes; a power of two.
    pub minimum: u32,
    /// Preferred block size in bytes; a power of two, at least `minimum`.
    pub preferred: u32,
    /// Longest data of a request in bytes; a multiple of `minimum`, or `u32::MAX` for no limit.
    pub maximum: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaContext {
    pub id: u32,
    /// Name of the context, one of those requested.
    pub name: String,
}

/// A negotiated export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes, at most `i64::MAX`.
    pub size: u64,
    /// Transmission flags, see [`wire::flag`].
    pub flags: u16,
    pub blocks: Option<BlockSizes>,
    pub structured: bool,
    pub contexts: Vec<MetaContext>,
}

impl Export {
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub fn context(&self, name: &str) -> Option<u32> {
        self.contexts.iter().find(|context| context.name == name).map(|context| context.id)
    }

    /// Whether writes are volatile until a flush.
    pub fn has_cache(&self) -> bool {
        self.has(flag::FLUSH) && !self.has(flag::READ_ONLY)
    }
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NegotiationError {
    /// Wrong magic at the start of the stream.
    #[error("the peer does not speak NBD")]
    NotNbd,
    /// Oldstyle, or newstyle that is not fixed, or without NBD_OPT_GO.
    #[error("the server is too old: {0}")]
    TooOld(&'static str),
    #[error("the server has no such export")]
    UnknownExport,
    #[error(
        "the server demands TLS, which is not offered for NBD; reach it through a tunnel, or on its own host by a socket"
    )]
    TlsRequired,
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("the server refuses the export: error {code}{}{message}", if message.is_empty() { "" } else { ": " })]
    Refused {
        /// NBD_REP_ERR_* without its highest bit.
        code: u32,
        message: String,
    },
    #[error("the server breaks the NBD protocol: {0}")]
    Violation(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    Starved,
    /// Number of bytes consumed; call again.
    Took(usize),
    /// Number of bytes consumed; the transmission phase follows.
    Ready(usize, Export),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    StructuredReply,
    SetMetaContext,
    Go,
}

/// The machine: the edge passes received bytes to [`Self::advance`], sends what [`Self::take_transmit`] returns, and
/// ends with [`Progress::Ready`].
#[derive(Debug)]
pub struct Negotiation {
    config: Config,
    state: State,
    transmit: Vec<u8>,
    replies: u32,
    structured: bool,
    contexts: Vec<MetaContext>,
    export: Option<(u64, u16)>,
    blocks: Option<BlockSizes>,
}

type Result<T> = std::result::Result<T, NegotiationError>;

fn violation<T>(what: &'static str) -> Result<T> {
    Err(NegotiationError::Violation(what))
}

impl Negotiation {
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::Greeting,
            transmit: Vec::new(),
            replies: 0,
            structured: false,
            contexts: Vec::new(),
            export: None,
            blocks: None,
        }
    }

    pub fn take_transmit(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.transmit)
    }

    /// Processes the greeting or one reply at the start of `bytes`. The buffer must have room for
    /// [`OPTION_REPLY_BYTES_MAX`] and a header.
    pub fn advance(&mut self, bytes: &[u8]) -> Result<Progress> {
        match self.state {
            State::Greeting => self.on_greeting(bytes),
            _ => self.on_reply(bytes),
        }
    }

    fn on_greeting(&mut self, bytes: &[u8]) -> Result<Progress> {
        // Checked on the first bytes: a peer that does not speak NBD may wait for the client to send first.
        let magic = wire::GREETING_MAGIC.to_be_bytes();
        let length = bytes.len().min(magic.len());
        if bytes[..length] != magic[..length] {
            return Err(NegotiationError::NotNbd);
        }
        if bytes.len() < 16 {
            return Ok(Progress::Starved);
        }
        match u64_at(bytes, 8) {
            wire::OPTION_MAGIC => {}
            wire::OLDSTYLE_MAGIC => {
                return Err(NegotiationError::TooOld("it offers oldstyle negotiation only"));
            }
            _ => return Err(NegotiationError::NotNbd),
        }
        if bytes.len() < wire::GREETING_BYTES {
            return Ok(Progress::Starved);
        }
        let flags = u16_at(bytes, 16);
        if flags & handshake::FIXED_NEWSTYLE == 0 {
            return Err(NegotiationError::TooOld("its newstyle negotiation is not the fixed one"));
        }
        // Client flags: only those that the server has set.
        let ours = flags & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        self.transmit.extend(u32::from(ours).to_be_bytes());
        self.request(State::StructuredReply);
        Ok(Progress::Took(wire::GREETING_BYTES))
    }

    fn request(&mut self, state: State) {
        let name = self.config.export.as_bytes();
        let mut data = Vec::new();
        let string = |data: &mut Vec<u8>, bytes: &[u8]| {
            data.extend((bytes.len() as u32).to_be_bytes());
            data.extend(bytes);
        };
        let number = match state {
            State::Greeting | State::StructuredReply => option::STRUCTURED_REPLY,
            State::SetMetaContext => {
                string(&mut data, name);
                data.extend((self.config.contexts.len() as u32).to_be_bytes());
                for context in &self.config.contexts {
                    string(&mut data, context.as_bytes());
                }
                option::SET_META_CONTEXT
            }
            State::Go => {
                string(&mut data, name);
                data.extend(1u16.to_be_bytes());
                data.extend(info::BLOCK_SIZE.to_be_bytes());
                option::GO
            }
        };
        self.transmit.extend(emit_option(number, &data));
        (self.state, self.replies) = (state, 0);
    }

    fn on_reply(&mut self, bytes: &[u8]) -> Result<Progress> {
        if bytes.len() < wire::OPTION_REPLY_BYTES {
            return Ok(Progress::Starved);
        }
        if u64_at(bytes, 0) != wire::OPTION_REPLY_MAGIC {
            return violation("an option reply begins with another magic");
        }
        let requested = match self.state {
            State::Greeting | State::StructuredReply => option::STRUCTURED_REPLY,
            State::SetMetaContext => option::SET_META_CONTEXT,
            State::Go => option::GO,
        };
        if u32_at(bytes, 8) != requested {
            return violation("a reply to an option that was not sent");
        }
        let (kind, length) = (u32_at(bytes, 12), u32_at(bytes, 16) as usize);
        if length > OPTION_REPLY_BYTES_MAX {
            return violation("an option reply is longer than it can be");
        }
        let total = wire::OPTION_REPLY_BYTES + length;
        let Some(payload) = bytes.get(wire::OPTION_REPLY_BYTES..total) else { return Ok(Progress::Starved) };
        self.replies += 1;
        if self.replies > OPTION_REPLIES_MAX {
            return violation("too many replies to one option");
        }
        if kind & option_reply::IS_ERROR != 0 {
            return self.on_error(kind, payload).map(|()| Progress::Took(total));
        }
        match (self.state, kind) {
            (_, option_reply::ACK) if length != 0 => violation("an acknowledgement has data"),
            (State::StructuredReply, option_reply::ACK) => {
                self.structured = true;
                let next = if self.config.contexts.is_empty() { State::Go } else { State::SetMetaContext };
                self.request(next);
                Ok(Progress::Took(total))
            }
            (State::SetMetaContext, option_reply::META_CONTEXT) => {
                self.on_context(payload)?;
                Ok(Progress::Took(total))
            }
            (State::SetMetaContext, option_reply::ACK) => {
                self.request(State::Go);
                Ok(Progress::Took(total))
            }
            (State::Go, option_reply::INFO) => {
                self.on_info(payload)?;
                Ok(Progress::Took(total))
            }
            (State::Go, option_reply::ACK) => Ok(Progress::Ready(total, self.export()?)),
            _ => violation("a reply of a type that does not belong to its option"),
        }
    }

    fn on_error(&mut self, kind: u32, payload: &[u8]) -> Result<()> {
        match (self.state, kind) {
            (_, option_reply::ERR_TLS_REQD) => Err(NegotiationError::TlsRequired),
            (_, option_reply::ERR_SHUTDOWN) => Err(NegotiationError::ShuttingDown),
            // The option is not required.
            (State::StructuredReply, _) => {
                self.request(State::Go);
                Ok(())
            }
            (State::SetMetaContext, _) => {
                self.contexts.clear();
                self.request(State::Go);
                Ok(())
            }
            (_, option_reply::ERR_UNKNOWN) => Err(NegotiationError::UnknownExport),
            (_, option_reply::ERR_UNSUP) => Err(NegotiationError::TooOld("it does not know NBD_OPT_GO")),
            _ => {
                let code = kind & !option_reply::IS_ERROR;
                Err(NegotiationError::Refused { code, message: shown(payload) })
            }
        }
    }

    fn on_context(&mut self, payload: &[u8]) -> Result<()> {
        if payload.len() < 4 {
            return violation("a metadata context without a number");
        }
        let id = u32_at(payload, 0);
        let requested = self.config.contexts.iter().find(|name| name.as_bytes() == &payload[4..]);
        let Some(name) = requested else { return violation("a metadata context that was not requested") };
        if self.contexts.iter().any(|context| context.id == id || context.name == *name) {
            return violation("a metadata context is selected twice");
        }
        self.contexts.push(MetaContext { id, name: name.clone() });
        Ok(())
    }

    fn on_info(&mut self, payload: &[u8]) -> Result<()> {
        if payload.len() < 2 {
            return violation("information without a type");
        }
        match (u16_at(payload, 0), payload.len()) {
            (info::EXPORT, 12) => {
                let size = u64_at(payload, 2);
                if i64::try_from(size).is_err() {
                    return violation("an export of 8 EiB or more");
                }
                self.export = Some((size, u16_at(payload, 10)));
            }
            (info::BLOCK_SIZE, 14) => {
                let [minimum, preferred, maximum] = [2, 6, 10].map(|at| u32_at(payload, at));
                let is_sound = minimum.is_power_of_two()
                    && minimum <= BLOCK_BYTES_MAX
                    && preferred.is_power_of_two()
                    && preferred >= minimum
                    && maximum >= minimum
                    && (maximum == u32::MAX || maximum.is_multiple_of(minimum));
                if !is_sound {
                    return violation("block sizes that cannot be");
                }
                self.blocks = Some(BlockSizes { minimum, preferred, maximum });
            }
            (info::EXPORT | info::BLOCK_SIZE, _) => return violation("information of a wrong length"),
            // Names and descriptions, and future information types: not requested, but permitted.
            _ => {}
        }
        Ok(())
    }

    fn export(&mut self) -> Result<Export> {
        let Some((size, flags)) = self.export else {
            return violation("no size in the answer to NBD_OPT_GO");
        };
        Ok(Export {
            size,
            flags,
            blocks: self.blocks,
            structured: self.structured,
            contexts: std::mem::take(&mut self.contexts),
        })
    }
}
