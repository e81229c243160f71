//! What the driver of a remote end has found out about the path to it.

use io::{Path, SocketBuffer};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathReport {
    /// Sessions that carry requests.
    pub sessions: u32,
    /// The kernel's account; while data moved at most a round trip old.
    pub connection: Path,
    /// Congestion control of what this end sends.
    pub congestion_control: Option<String>,
    /// The rate by which the bytes in flight are chosen, in bytes per second; `None` until one round trip was measured.
    pub bytes_per_s: Option<f64>,
    /// Most bytes of requests that were in flight together.
    pub in_flight_max_bytes: u64,
    /// Most commands that the other end has accepted at once.
    pub window_max_commands: u32,
    /// Most times that the other end had to ask for data of one write. 0: it was sent unasked, or nothing was written.
    pub rounds_max: u32,
    /// The send buffer was grown beyond what the system grows it to.
    pub is_send_buffer_forced: bool,
    /// Bytes that the system's limit would have to permit, where it keeps a buffer too small for the path.
    pub send_buffer_wanted: Option<u64>,
    pub receive_buffer_wanted: Option<u64>,
}

impl PathReport {
    /// A sentence for each buffer that is too small, with the command that permits a larger one.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        let wanted = [
            (SocketBuffer::Send, self.send_buffer_wanted),
            (SocketBuffer::Receive, self.receive_buffer_wanted),
        ];
        wanted.into_iter().filter_map(|(buffer, bytes)| Some(buffer.is_too_small(bytes?)))
    }
}
