//! The slots of the rings: the paper's control area, a frame for each stage of a request. The application's frame
//! travels with the request (client, socket, ticket); the stage of `inet` is added in memory that only `inet` writes.
//!
//! All fields are plain numbers. A reader copies a slot out of the ring, converts it and then checks every field.

use area::ring::{SLOT_BYTES, Slot};
use inet::PayloadRef;
use zerocopy::{FromBytes, Immutable, IntoBytes, transmute};

/// Codes of [`Request`]: the paper's Table 1, and what std::net has beside it.
pub mod request {
    pub const SOCKET: u32 = 1;
    pub const BIND: u32 = 2;
    pub const LISTEN: u32 = 3;
    pub const CONNECT: u32 = 4;
    pub const ACCEPT: u32 = 5;
    /// `value` as of `SHUTDOWN`. RST instead of FIN if the application has not read all that was delivered to it
    /// ([`super::Request::read`]; RFC 2525 §2.17), and then what was not sent is dropped.
    pub const CLOSE: u32 = 6;
    pub const SEND: u32 = 7;
    /// Gives received frames of any socket back ([`super::Request::frames`]) and so opens their windows.
    pub const RECEIVE: u32 = 8;
    /// No more bytes follow: FIN behind those already sent. `value` is the low half of the last `SEND`'s ticket; EAGAIN if
    /// that was refused, so that its repetition goes first.
    pub const SHUTDOWN: u32 = 9;
    /// `value` is an option (module `option`), `ticket`'s low half its value.
    pub const OPTION: u32 = 10;
    /// RST, and all that was to be sent is dropped.
    pub const ABORT: u32 = 11;
}

pub mod option {
    pub const NO_DELAY: u32 = 1;
    /// Seconds of silence before the first probe; 0 for none.
    pub const KEEP_ALIVE: u32 = 2;
    /// 0 NewReno, 1 CUBIC.
    pub const CONGESTION: u32 = 3;
}

/// Codes of [`Completion`].
pub mod completion {
    /// The answer to a request other than `SEND` and `RECEIVE`: `status` is 0 or an errno. Of `SOCKET` and `ACCEPT` the
    /// new socket's number; of `BIND`, `LISTEN`, `CONNECT` and `ACCEPT` addresses. `CONNECT` and `ACCEPT` are answered
    /// when there is a connection; one `ACCEPT` of a socket may wait. A `RECEIVE` is answered only if it was wrong.
    pub const DONE: u32 = 1;
    pub const RECEIVED: u32 = 2;
    pub const PEER_CLOSED: u32 = 3;
    /// Memory of all sends up to `ticket` is the application's again.
    pub const RELEASED: u32 = 4;
    /// A `SEND` refused with EAGAIN may be repeated, as after any `RELEASED`. All sends behind it were refused too.
    pub const ROOM: u32 = 5;
    /// The connection ended; `status` is an errno, or 0.
    pub const ENDED: u32 = 6;
    /// A `SEND` was refused: `status`, `ticket`.
    pub const REFUSED: u32 = 7;
}

/// Bytes in shared memory, as `inet::PayloadRef`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Span {
    pub region: u32,
    pub generation: u32,
    pub offset: u32,
    pub length: u32,
}

impl From<PayloadRef> for Span {
    fn from(payload: PayloadRef) -> Self {
        let PayloadRef { region, generation, offset, length } = payload;
        Self { region, generation, offset, length }
    }
}

/// Spans of one `SEND`; unused ones have length 0.
pub const SPANS: usize = 4;
/// Frames of one `RECEIVE`.
pub const FRAMES: usize = 16;

/// From an application to `inet`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Request {
    pub code: u32,
    /// Number and generation of the socket, as `SOCKET` or `ACCEPT` returned them.
    pub socket: u32,
    pub generation: u32,
    /// Backlog of `LISTEN`, number of frames of `RECEIVE`, option of `OPTION`, last ticket of `SHUTDOWN` and `CLOSE`.
    pub value: u32,
    /// Names the request; of `SEND` it increases by one with each, from 1 on. A repetition of a `SEND` that was taken is
    /// refused with EALREADY.
    pub ticket: u64,
    /// IPv4 as ::ffff:a.b.c.d.
    pub address: [u8; 16],
    pub port: u16,
    pub unused: [u8; 2],
    /// Of `CLOSE`: how many `RECEIVED` of the socket the application has read to the end, modulo 2^32.
    pub read: u32,
    /// Memory of `SEND`; of `RECEIVE` the numbers of frames, four to a span.
    pub spans: [Span; SPANS],
    pub unused_too: [u64; 2],
}

impl Request {
    /// The numbers of frames of `RECEIVE`.
    pub fn frames(&self) -> [u32; FRAMES] {
        transmute!(self.spans)
    }

    pub fn set_frames(&mut self, numbers: [u32; FRAMES]) {
        self.spans = transmute!(numbers);
    }
}

/// From `inet` to an application.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Completion {
    pub code: u32,
    pub socket: u32,
    pub generation: u32,
    /// An errno, or 0.
    pub status: u32,
    pub ticket: u64,
    /// Of the first byte of `RECEIVED` in the connection's stream.
    pub offset: u64,
    pub frame: u32,
    pub unused: u32,
    /// Two ranges of bytes of `RECEIVED` in the application's view of received frames, offset and length.
    pub ranges: [[u32; 2]; 2],
    /// Of `ACCEPT`: number and generation of the new socket.
    pub new_socket: [u32; 2],
    pub local: [u8; 16],
    pub peer: [u8; 16],
    pub local_port: u16,
    pub peer_port: u16,
    pub unused_too: [u8; 28],
}

/// From the driver to an application: all sends of a connection up to `ticket` have been submitted (direct return).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Returned {
    pub socket: u32,
    pub generation: u32,
    pub ticket: u64,
    pub unused: [u64; 14],
}

/// `region` of a span that lies in a received frame: `generation` is the frame, `offset` counts from its Ethernet header.
pub const REGION_FRAMES: u32 = u32::MAX;
/// `client` of a frame that no application waits for.
pub const NO_CLIENT: u32 = u32::MAX;

/// From `inet` to the driver. The header lies in slot `position % TRANSMITS` of the headers.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Transmit {
    /// The application's stage: to whom the driver returns directly, or [`NO_CLIENT`].
    pub client: u32,
    pub socket: u32,
    pub generation: u32,
    /// Of the header from the Ethernet header on, bytes.
    pub header_bytes: u16,
    /// TCP payload bytes of each segment if the frame must be divided; 0 otherwise.
    pub segment_bytes: u16,
    pub ticket: u64,
    /// As in `inet::Transmit`.
    pub checksum_start: u16,
    pub checksum_offset: u16,
    pub unused: u32,
    pub spans: [Span; SPANS],
    pub unused_too: [u64; 4],
}

/// Codes of [`Input`].
pub mod input {
    /// `ethinput`: a frame was received.
    pub const FRAME: u32 = 1;
    /// `ifattach`: a driver has started; it holds no frame.
    pub const ATTACH: u32 = 2;
}

/// No tail.
pub const NO_TAIL: u32 = u32::MAX;

/// From the driver to `inet`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Input {
    pub code: u32,
    /// Number of the head, and of the tail that holds what the head has no room for, or [`NO_TAIL`].
    pub head: u32,
    pub tail: u32,
    /// Of the frame from the Ethernet header on, bytes.
    pub length: u32,
    /// Nonzero if checksums of TCP and ICMP are right or cannot be wrong.
    pub is_checked: u32,
    pub segment_bytes: u32,
    /// Of `ATTACH`.
    pub mac: [u8; 6],
    pub mtu: u16,
    pub segments: u32,
    /// Of `ATTACH`: counts the starts; a `Fill` for the driver carries the same.
    pub epoch: u32,
    pub unused: [u64; 11],
}

/// Numbers in one [`Fill`].
pub const FILL_NUMBERS: usize = 28;

/// From `inet` to the driver: memory to receive into. `numbers` holds `heads` heads, then `tails` tails.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Fill {
    /// Of the driver for which it is; others ignore it.
    pub epoch: u32,
    pub heads: u16,
    pub tails: u16,
    pub unused: u64,
    pub numbers: [u32; FILL_NUMBERS],
}

macro_rules! slots {
    ($($kind:ty),*) => {
        $(
            const _: () = assert!(size_of::<$kind>() == SLOT_BYTES);

            impl From<Slot> for $kind {
                fn from(slot: Slot) -> Self {
                    transmute!(slot)
                }
            }

            impl From<$kind> for Slot {
                fn from(value: $kind) -> Self {
                    transmute!(value)
                }
            }
        )*
    };
}

slots!(Request, Completion, Returned, Transmit, Input, Fill);
