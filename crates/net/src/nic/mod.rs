//! The driver of one network interface: frames from `inet`'s transmit ring to the device, frames from the device into
//! memory that `inet` lent, and *direct return*: what has been written is reported to the application without `inet`.
//!
//! [`Driver`] is a plain value without threads, clocks or global state: a process runs it, or `lab` runs it beside
//! `inet` and an application. Devices are opened by [`tap`], [`packet`] and [`wire`], in a process that has the rights;
//! the driver is given a descriptor.

mod checksum;
mod device;
mod driver;
mod maps;
pub mod packet;
mod segment;
pub mod tap;
#[cfg(test)]
mod tests;
pub mod wire;

pub use device::Device;
pub use driver::{Counts, Driver, Fault};
pub use maps::{CLIENTS_MAX, Maps, REGIONS_MAX};

use std::io;
use std::os::fd::OwnedFd;

/// Of an Ethernet header.
const ETHERNET_BYTES: usize = 14;
/// Most bytes of the headers of a frame that `inet` sends.
const HEADERS_MAX: usize = inet::HEADER_BYTES - inet::VNET_BYTES;

/// A device that was opened for a driver, and what a stack must know of it.
#[derive(Debug)]
pub struct Opened {
    pub descriptor: OwnedFd,
    /// Largest IP packet, bytes.
    pub mtu: u16,
}

/// A unicast, locally administered MAC address.
///
/// It is random, not derived from the name of the interface or the machine: cloned machines on one bridge would derive
/// the same address. Drivers that are started again are given the one that the first was given; where it must outlive
/// the stack (DHCP reservations, port security), `--mac` sets it.
pub fn random_mac() -> io::Result<[u8; 6]> {
    let mut mac = [0; 6];
    // SAFETY: the kernel writes at most `mac.len()` bytes to `mac`.
    let count = unsafe { libc::getrandom(mac.as_mut_ptr().cast(), mac.len(), 0) };
    if count != mac.len() as isize {
        return Err(io::Error::last_os_error());
    }
    mac[0] = mac[0] & !0x01 | 0x02;
    Ok(mac)
}

#[cfg(test)]
#[test]
fn random_addresses_are_unicast_and_local_and_differ() {
    let addresses: Vec<_> = (0..64).map(|_| random_mac().unwrap()).collect();
    assert!(addresses.iter().all(|mac| mac[0] & 3 == 2));
    assert!(addresses.windows(2).all(|pair| pair[0] != pair[1]));
}
