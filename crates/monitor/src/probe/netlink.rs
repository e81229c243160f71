//! Netlink messages: headers, attributes, errors (include/uapi/linux/netlink.h).

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{Protocol, RecvFlags, SendFlags};

use super::sys;
use crate::limits::DUMP_BYTES_MAX;

/// Protocols: sockets; routes and queues, which have the number 0.
pub(super) const DIAG: Option<Protocol> = Some(SOCK_DIAG);
pub(super) const ROUTES: Option<Protocol> = None;
/// Bytes of one part of a dump.
const PART_BYTES: usize = 64 << 10;

pub(super) const HEADER_BYTES: usize = 16;
pub(super) const REQUEST: u16 = 1;
/// `NLM_F_ROOT | NLM_F_MATCH`.
pub(super) const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// `NLA_F_NESTED | NLA_F_NET_BYTEORDER`: bits of an attribute's type that are no part of its number.
const TYPE_FLAGS: u16 = 0xc000;

/// A socket for questions to the kernel. Each has its number, so that answers to earlier ones are passed over.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) socket: OwnedFd,
    /// Of the last question.
    pub(super) sequence: u32,
    part: Vec<u8>,
}

impl Port {
    pub(super) fn new(protocol: Option<Protocol>) -> io::Result<Self> {
        Ok(Self { socket: sys::netlink(protocol)?, sequence: 0, part: Vec::new() })
    }

    /// Asks, and passes on each message of the answer: all of a dump, else the first. An error is also one of the kernel.
    pub(super) fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        payload: &[u8],
        mut on: impl FnMut(Message<'_>),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::new();
        push(&mut request, kind, flags, self.sequence, payload);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        self.part.resize(PART_BYTES, 0);
        let mut read = 0;
        while read < DUMP_BYTES_MAX {
            let (length, _) = rustix::net::recv(&self.socket, &mut self.part[..], RecvFlags::empty())?;
            read += length.max(1);
            for message in messages(&self.part[..length]) {
                if message.sequence != self.sequence {
                    continue;
                }
                if message.is_done() {
                    return Ok(());
                }
                if let Some(error) = message.error() {
                    return Err(io::Error::from_raw_os_error(error));
                }
                on(message);
                if flags & DUMP == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The text of an attribute, up to its first zero.
pub(super) fn named(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// One message of a datagram from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message<'a> {
    pub(super) kind: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

impl Message<'_> {
    /// The end of a dump.
    pub(super) fn is_done(&self) -> bool {
        self.kind == DONE
    }

    /// The error number of `NLMSG_ERROR`, positive; 0 is an acknowledgement.
    pub(super) fn error(&self) -> Option<i32> {
        if self.kind != ERROR {
            return None;
        }
        let code = self.payload.get(..4)?;
        Some(i32::from_ne_bytes(code.try_into().ok()?).saturating_neg())
    }
}

/// The messages of one datagram; ends at the first that its length does not hold.
pub(super) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = u32_at(rest, 0)? as usize;
        let payload = rest.get(HEADER_BYTES..length)?;
        let message = Message { kind: u16_at(rest, 4)?, sequence: u32_at(rest, 8)?, payload };
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes of a message after its fixed part: number and value.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    const ATTRIBUTE_BYTES: usize = 4;
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let value = rest.get(ATTRIBUTE_BYTES..length)?;
        let number = u16_at(rest, 2)? & !TYPE_FLAGS;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some((number, value))
    })
}

/// Appends a message.
pub(super) fn push(into: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, payload: &[u8]) {
    let length = HEADER_BYTES + payload.len();
    into.extend_from_slice(&(length as u32).to_ne_bytes());
    into.extend_from_slice(&kind.to_ne_bytes());
    into.extend_from_slice(&flags.to_ne_bytes());
    into.extend_from_slice(&sequence.to_ne_bytes());
    // Port 0: the kernel knows the socket.
    into.extend_from_slice(&[0; 4]);
    into.extend_from_slice(payload);
    into.resize(into.len() + aligned(length) - length, 0);
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_attributes_are_found_again() {
        let mut bytes = Vec::new();
        push(&mut bytes, 20, REQUEST, 7, &[1, 2, 3, 4, 5]);
        push(&mut bytes, 2, 0, 8, &(-2_i32).to_ne_bytes());
        push(&mut bytes, 3, 0, 9, &[]);
        let found: Vec<_> = messages(&bytes).collect();
        assert_eq!(found[0], Message { kind: 20, sequence: 7, payload: &[1, 2, 3, 4, 5] });
        assert_eq!((found[0].error(), found[1].error(), found[1].sequence), (None, Some(2), 8));
        assert!(found[2].is_done() && found.len() == 3);

        let attribute = |number: u16, value: &[u8]| {
            let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
            bytes.extend(number.to_ne_bytes());
            bytes.extend(value);
            bytes.resize(aligned(bytes.len()), 0);
            bytes
        };
        let bytes = [attribute(4, b"bbr\0\0"), attribute(0x8002, &[]), attribute(7, &[9; 36])].concat();
        let found: Vec<_> = attributes(&bytes).collect();
        assert_eq!(found, [(4, &b"bbr\0\0"[..]), (2, &[]), (7, &[9; 36])]);
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for length in [0_u32, 1, 15, 17, 1000, u32::MAX] {
            let mut bytes = vec![0; HEADER_BYTES];
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{length}");
        }
        for length in [0_u16, 1, 3, 9, u16::MAX] {
            let mut bytes = vec![0; 8];
            bytes[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes(&bytes).count(), 0, "{length}");
        }
    }
}
