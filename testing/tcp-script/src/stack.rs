//! What a player needs of a TCP/IP stack.

use crate::script::{Call, Special, Version};

/// How far from a script's times a stack may act and still be right, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Slack {
    pub early: u64,
    pub late: u64,
    /// More lateness, as a share of the time: 1/`late_share`.
    pub late_share: u64,
}

/// A stack under test: frames in and out, calls of one application, and a clock that may be a pretence.
pub trait Stack {
    fn slack(&self) -> Slack;

    /// Microseconds of the stack's clock.
    fn now(&self) -> u64;

    /// Puts a frame on the stack's wire; a driver has put it together from segments of so many bytes, if not 0.
    fn inject(&mut self, frame: &[u8], segment_bytes: u16);

    /// The next frame that the stack has sent, with its time; waits for one until `until`, and if there is none, time
    /// has reached `until` afterwards.
    fn frame(&mut self, until: u64) -> Option<(u64, Vec<u8>)>;

    /// A call of the application on the socket of a flow; an error says what came instead of what the call expects.
    fn call(&mut self, flow: char, call: &Call, ports: Ports) -> Result<(), String>;

    fn special(&mut self, flow: char, special: &Special) -> Result<(), String>;

    /// What the stack has done that no stack may do, whatever a script says.
    fn violation(&mut self) -> Option<String> {
        None
    }

    /// A setting of the kernel.
    fn sysctl(&mut self, key: &str, value: &str) -> Result<(), String>;
}

/// Where a flow's ends are, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub version: Version,
    pub local: Option<u16>,
    pub peer: u16,
}

/// The byte at an offset of the stream that the stack's application sends.
pub fn stack_byte(offset: u64) -> u8 {
    (offset ^ (offset >> 8) ^ (offset >> 16)) as u8
}

/// The byte at an offset of the stream that the peer sends.
pub fn peer_byte(offset: u64) -> u8 {
    !stack_byte(offset)
}
