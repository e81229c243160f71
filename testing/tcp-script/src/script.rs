//! What a script says, once it has been read.

use std::net::IpAddr;

use crate::wire::Damage;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    V4,
    V6,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::V4 { "v4" } else { "v6" })
    }
}

#[derive(Clone, Debug)]
pub struct Script {
    /// The file's name and the script's: `rfc5961/rst-in-window`.
    pub name: String,
    /// The clause, and the condition in words.
    pub clause: String,
    pub versions: Vec<Version>,
    /// Why the script has no meaning at the kernel.
    pub engine_only: Option<String>,
    pub settings: Settings,
    pub steps: Vec<Step>,
}

/// Of the interface and of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mtu: u16,
    /// The interface takes segments larger than the MTU.
    pub segments: bool,
    /// The stack does not know the peer's link-layer address at first.
    pub is_stranger: bool,
    /// The peer does not answer questions for it.
    pub is_deaf: bool,
    /// Connections that fit into the stack's table; 0 is its own choice.
    pub connections: u32,
    /// Frames that fit into the stack's memory; 0 is its own choice.
    pub frames: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mtu: 1500, segments: false, is_stranger: false, is_deaf: false, connections: 0, frames: 0 }
    }
}

#[derive(Clone, Debug)]
pub struct Step {
    /// Line of the file, from 1.
    pub line: usize,
    pub text: String,
    pub flow: char,
    /// Microseconds after the step before: at which the stack is addressed, or between which it must act.
    pub when: Option<(u64, u64)>,
    pub act: Act,
}

#[derive(Clone, Debug)]
pub enum Act {
    Inject(Pattern),
    /// ACKs of all that the stack has sent, one for so many bytes each.
    AckAll(Pattern, i64),
    Icmp(IcmpText),
    Expect(Pattern),
    /// A segment that may be there at once.
    Maybe(Pattern),
    /// Segments that carry this range of the stream in order, all at once.
    Flight {
        from: i64,
        to: i64,
        frames: Count,
    },
    /// Segments without data whose acknowledgement numbers rise to this one.
    /// So many segments of data that follow one another, and no more.
    More(Count),
    Acks {
        ack: i64,
        frames: Count,
    },
    /// A probe of a closed window or of a silent peer: no byte or one of garbage before this number, or one byte at it.
    Probe(i64),
    /// No segment for so long.
    Quiet(u64),
    /// Any segments for so long.
    Ignore(u64),
    Ports {
        local: u16,
        peer: u16,
    },
    /// What the peer announces from now on; nothing is sent.
    Window(u32),
    Call(Call),
    Special(Special),
    /// A setting of the kernel, relative to /proc/sys/net/ipv4.
    Sysctl(String, String),
    /// The initial sequence number of the stack for this flow, compared with that of another one.
    Isn {
        other: char,
        is_above: bool,
    },
    /// Smallest and largest time stamp clock rate seen, in ticks for each second.
    ClockRate(u64, u64),
}

/// How many frames there must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub usize, pub usize);

impl Count {
    pub const ANY: Self = Self(0, usize::MAX);
}

/// Calls of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Listen {
        backlog: u16,
        options: SocketOptions,
    },
    CloseListener,
    Connect {
        from: Option<u16>,
        options: SocketOptions,
    },
    Accept,
    /// There is nothing to accept.
    AcceptNothing,
    /// The connection that was requested is open.
    Connected,
    Send(usize),
    /// The stack takes a part, or nothing, and says so.
    SendRefused(usize),
    /// So many bytes are there and are taken.
    Receive(usize),
    ReceiveNothing,
    EndOfStream,
    Failed(Failure),
    Shutdown,
    Close,
    Abort,
    Options(SocketOptions),
    /// The stack says that nothing of the connection is left.
    Ended(Failure),
}

/// Why a connection failed, in the words of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Closed,
    Reset,
    Refused,
    TimedOut,
    Unreachable,
    Aborted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    pub no_delay: bool,
    pub is_reno: bool,
    pub keep_alive_s: u32,
    /// 0 is the default.
    pub receive_bytes: u32,
}

/// What only our engine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Special {
    /// Frames wait at the driver from now on.
    DriverHold,
    /// The driver consumes so many of the frames that wait, or all, and then each at once.
    DriverConsume(Option<u64>),
    DriverRestart,
    /// So many bytes of the stream have been released.
    Released(u64),
    /// Frames said that so many bytes of the stream had been sent once.
    Submitted(u64),
    ClientGone,
    Drained(bool),
    /// Frames that the driver was given since the last time that this was asked.
    Emitted(Count),
}

/// A segment, as far as a script says what it is.
#[derive(Clone, Debug, Default)]
pub struct Pattern {
    pub flags: u8,
    /// ACK may be set or not: RFC 9293 leaves that open for RST where no segment is answered.
    pub is_ack_free: bool,
    pub from: i64,
    /// End of the payload and of SYN and FIN.
    pub to: i64,
    pub ack: Option<i64>,
    /// Bytes, scaled.
    pub window: Option<Bound>,
    pub urgent: Option<u16>,
    pub options: Option<Vec<OptText>>,
    /// `...` among the options: others may be there.
    pub is_open: bool,
    pub damages: Vec<Damage>,
    /// The frame was put together from segments of so many bytes; 0 if not.
    pub coalesced: u16,
    /// Addresses that are not those of the two hosts.
    pub source: Option<IpAddr>,
    pub target: Option<IpAddr>,
    /// The flow's addresses, the other way round or otherwise: destination port for what is injected.
    pub port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Is(u32),
    AtLeast(u32),
    AtMost(u32),
}

impl Bound {
    pub fn holds(self, value: u32) -> bool {
        match self {
            Self::Is(bound) => value == bound,
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptText {
    /// `None` is any.
    Mss(Option<u16>),
    Scale(Option<u8>),
    SackPermitted,
    Sack(Vec<(i64, i64)>),
    Timestamps(Value, Value),
    Nop,
    Raw(Vec<u8>),
}

/// A time stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Any,
    /// Relative to the first one of its side.
    Number(i64),
    /// The one that the stack sent last.
    Last,
    /// Remembered at its first use.
    Name(String),
    /// Zero on the wire.
    Zero,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IcmpText {
    pub kind: IcmpKind,
    /// Of the stack's segment that the error quotes.
    pub seq: i64,
    /// Bytes of the TCP header that are quoted.
    pub quoted: usize,
    /// Source port of the quoted segment if it is not the flow's.
    pub port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    Network,
    Host,
    Protocol,
    Port,
    Prohibited,
    TooBig(u32),
    TimeExceeded,
    Quench,
}

impl IcmpKind {
    /// Type and code.
    pub fn codes(self, version: Version) -> (u8, u8) {
        if version == Version::V4 {
            match self {
                Self::Network => (3, 0),
                Self::Host => (3, 1),
                Self::Protocol => (3, 2),
                Self::Port => (3, 3),
                Self::TooBig(_) => (3, 4),
                Self::Prohibited => (3, 13),
                Self::Quench => (4, 0),
                Self::TimeExceeded => (11, 0),
            }
        } else {
            match self {
                Self::Network => (1, 0),
                Self::Prohibited => (1, 1),
                Self::Host => (1, 3),
                Self::Port => (1, 4),
                Self::TooBig(_) => (2, 0),
                Self::TimeExceeded => (3, 0),
                // Parameter problem, unrecognised next header.
                Self::Protocol | Self::Quench => (4, 1),
            }
        }
    }
}
