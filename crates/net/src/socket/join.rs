//! How an application joins the servers: the messages of [`crate::control`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use area::{Doorbell, Region, Ringer};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::stack::{Parts, Servers};
use crate::control::{FromClient, ToClient, VERSION};
use crate::control_socket::{receive, send};
use crate::layout::{self, Channel};

/// Descriptors of `Welcome`.
const WELCOME: usize = 7;

/// The supervisor, behind its socket.
struct Supervisor(OwnedFd);

pub(super) fn join(path: &Path) -> io::Result<Parts> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    send(&socket, &FromClient::Hello { version: VERSION }, &[])?;
    let (answer, descriptors) = answer(&socket)?;
    let ToClient::Welcome { addresses, received_bytes, .. } = answer else { return Err(unexpected()) };
    let descriptors: [OwnedFd; WELCOME] = descriptors.try_into().map_err(|_| unexpected())?;
    let [own, inet, direct_own, nic, received, bell, inet_bell] = descriptors;
    let received_bytes = usize::try_from(received_bytes).map_err(|_| unexpected())?;
    Ok(Parts {
        addresses,
        channel: Channel::map(
            own.as_fd(),
            layout::client::CLIENT_BYTES,
            inet.as_fd(),
            layout::client::INET_BYTES,
        )?,
        direct: Channel::map(
            direct_own.as_fd(),
            layout::direct::CLIENT_BYTES,
            nic.as_fd(),
            layout::direct::NIC_BYTES,
        )?,
        received: Arc::new(Region::shared(received.as_fd(), received_bytes, false)?),
        bell: Doorbell::from_descriptor(bell),
        inet_bell: Ringer::from_descriptor(inet_bell),
        control: Some(socket.try_clone()?),
        servers: Box::new(Supervisor(socket)),
    })
}

fn answer(socket: &OwnedFd) -> io::Result<(ToClient, Vec<OwnedFd>)> {
    match receive(socket)? {
        Some((ToClient::Refused { why }, _)) => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the servers refused: {why}")))
        }
        Some(answer) => Ok(answer),
        None => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "an answer of the servers that was not expected")
}

impl Servers for Supervisor {
    fn register(&mut self, memory: BorrowedFd<'_>, bytes: u32) -> io::Result<(u32, u32)> {
        send(&self.0, &FromClient::Region { bytes }, &[memory])?;
        match answer(&self.0)? {
            (ToClient::Region { region, generation }, _) => Ok((region, generation)),
            _ => Err(unexpected()),
        }
    }
}
