//! Scripts of TCP: frames that a peer sends, frames that a stack must answer, calls of its application. Each script is
//! named by the clause and the condition that it tests, and is played at our engine (`crates/inet/tests/scripts.rs`) and
//! at the Linux kernel ([`kernel`]), so that the kernel shows that a script means what its clause says. What either does
//! not pass is listed with its reason in `differences.toml`; a line there that passes after all is an error.
//!
//! # Scripts
//! `scripts/TOPIC.tcp` has any number of scripts; `#` begins a comment.
//! ```text
//! script rst-in-window            # named TOPIC/rst-in-window
//! clause RFC 5961 3.2 point 3: RST in the window, not at RCV.NXT, is answered by a challenge ACK
//! over v4 v6                      # IP versions; v4 alone if not said
//! mtu 1500                        # also: segments (TSO), connections N, frames N (sizes of tables), engine-only WHY, stranger
//!                                 # (the stack does not know the peer's MAC address), deaf (and cannot learn it)
//! as-server mss 1000 sack
//! < R 2
//! > . 1 ack 1
//! ```
//! A step is `[+TIME] [[FLOW]] VERB ...`. Sequence numbers are relative to the initial one of their side, time stamps to
//! the first one; a range `A:B` ends before `B` and contains SYN and FIN. Payload is a pattern that the player checks.
//!
//! | step | meaning |
//! |---|---|
//! | `< FLAGS A:B [ack N] [win N] [<options>]` | the peer sends a segment; letters `SFRPU.`, `.` is ACK. The window is in bytes and stays until changed. Time stamps come by themselves once negotiated; `<>` is none. `each N` divides; `ack A..B/N` is a series, `ack all/N` one up to all that was sent. `source IP`, `target IP`, `port N`: other ends; `coalesced N`: as a driver that puts segments together delivers it. `!checksum`, `!offset N`, `!cut N` and others damage it |
//! | `< icmp KIND seq N` | an ICMP error that quotes the stack's segment at N |
//! | `> FLAGS A:B ...` | the next segment of the stack, at once. PSH counts if written; `R?` is RST with or without ACK; options are compared if written, `...` among them allows others |
//! | `+T >`, `+T..T >`, `+..T >` | so long after the step before |
//! | `> flight A:B [frames N]` | data in order, in any number of segments |
//! | `> more N..M` | so many segments of data in order, and no other |
//! | `> acks N [frames N..M]` | pure ACKs that end with this number |
//! | `> probe N` | a segment that probes a window or a peer at N: before it, or one byte of it |
//! | `maybe ...` | a segment that may be there |
//! | `+T <`, `+T CALL` | so long after the step before, in which no segment may come |
//! | `quiet T`, `ignore T` | none, any for so long |
//! | `as-server`, `as-client` | a handshake: `mss N sack ts wscale N win N rtt T nodelay reno rcvbuf N keepalive S` |
//! | `listen`, `connect`, `accept`, `connected`, `send N`, `recv N`, `recv nothing`, `recv eof`, `error WHY`, `shutdown`, `close`, `abort`, `option ...` | calls, and what they must return |
//! | `released N`, `submitted N`, `driver hold`, `driver consume [N]`, `driver emitted N`, `driver restart`, `client-gone`, `drained yes` | of our engine only |
//! | `sysctl KEY=VALUE` | of the kernel only |
//! | `ports LOCAL PEER`, `isn above FLOW`, `isn differs FLOW`, `clock-rate MIN MAX` | addresses of a flow; what of its numbers must hold |
//!
//! A segment that no step expects ends the script. Beside what scripts say, each segment is checked for checksums, lengths
//! and what `flow` lists: the right edge of the window never moves back, no data beyond the peer's window, options only
//! where negotiated.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub mod differences;
mod flow;
pub mod kernel;
mod parse;
mod play;
pub mod script;
pub mod stack;
pub mod wire;

pub use play::{Failed, play};
pub use script::{Script, Version};
use wire::Mac;

pub const STACK_MAC: Mac = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: Mac = [2, 0, 0, 0, 0, 2];
/// Of the subnets in which both sides are.
pub const PREFIX_V4: u8 = 24;
pub const PREFIX_V6: u8 = 64;

pub fn stack_ip(version: Version) -> IpAddr {
    ip(version, 1)
}

pub fn peer_ip(version: Version) -> IpAddr {
    ip(version, 2)
}

fn ip(version: Version, host: u8) -> IpAddr {
    match version {
        Version::V4 => Ipv4Addr::new(192, 0, 2, host).into(),
        Version::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, host.into()).into(),
    }
}

/// What changes between two plays of a script and must not matter.
#[derive(Clone, Copy, Debug)]
pub struct Variation {
    pub version: Version,
    /// The peer's initial sequence number, and the base of its time stamps.
    pub iss: u32,
    pub ts_base: u32,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../scripts/", $name, ".tcp")))),*]
    };
}

/// All scripts.
///
/// # Errors
/// What is wrong in a file, with its line.
pub fn scripts() -> Result<Vec<Script>, String> {
    let files = files![
        "ack",
        "arrives",
        "close",
        "closed",
        "cwnd",
        "icmp",
        "isn",
        "keep-alive",
        "malformed",
        "neighbour",
        "open",
        "promises",
        "rack",
        "recovery",
        "rfc5961",
        "rfc7323",
        "rto",
        "sack-receiver",
        "time-wait",
        "window",
    ];
    let mut all = Vec::new();
    for (group, text) in files {
        all.extend(parse::scripts(group, text)?);
    }
    let mut names: Vec<_> = all.iter().map(|script| &script.name).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two scripts are named {}", pair[0]));
    }
    Ok(all)
}
