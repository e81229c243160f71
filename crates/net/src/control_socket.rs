//! Messages of [`crate::control`] over a UNIX socket of type SOCK_SEQPACKET, with their descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};

/// Sends one message. Errors are the kernel's; `InvalidInput` if it is too long.
pub fn send(socket: impl AsFd, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a control message that is too long"));
    }
    if descriptors.is_empty() {
        // Servers may call sendto(2) without an address, and not sendmsg(2).
        rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL)?;
        return Ok(());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let has_room = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    assert!(has_room, "room for the most descriptors");
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message; `None` if the peer is gone. `InvalidData` if it is malformed or was cut off. Blocks, unless the
/// socket does not.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let received = loop {
        match recvmsg(&socket, into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a control message that was cut off"));
    }
    let message = serde_json::from_slice(&bytes[..received.bytes])
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, descriptors)))
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::control::{FromClient, ToClient};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (one, two) = pair();
        let hello = FromClient::Hello { version: 1 };
        send(&one, &hello, &[one.as_fd(), two.as_fd()]).unwrap();
        send(&one, &FromClient::Status, &[]).unwrap();
        let (message, descriptors) = receive::<FromClient>(&two).unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (hello, 2));
        drop(descriptors);
        assert!(receive::<ToClient>(&two).is_err(), "not for an application");
        drop(one);
        assert!(receive::<FromClient>(&two).unwrap().is_none());
    }

    #[test]
    fn messages_that_are_too_long_are_refused_on_both_sides() {
        let (one, two) = pair();
        let long = ToClient::Refused { why: "x".repeat(MESSAGE_BYTES_MAX) };
        assert_eq!(send(&one, &long, &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        rustix::net::send(&one, &vec![b' '; MESSAGE_BYTES_MAX + 1], SendFlags::empty()).unwrap();
        assert_eq!(receive::<ToClient>(&two).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
