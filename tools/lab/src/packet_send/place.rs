//! Where a measurement happens: two namespaces joined by a veth pair, and in the far one the kernel side of a TAP
//! interface. The peer in the far namespace answers on both; so both stacks have the same other end.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use net::nic::{Opened, tap};

use super::peer::{PORT, Peer};
use crate::part::{Part, Role};
use crate::wan::Namespace;
use crate::{Attempted, LabError};

pub(super) const TAP: &str = "hktap";
/// Of the peer at the TAP, and of our stack.
const TAP_PEER: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
pub(super) const OURS: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);
/// Of the peer at the veth pair, and of the kernel's near end.
const VETH_PEER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const VETH_NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

pub(super) struct Place {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
    _peer: Part,
    has_peer_cpu: Option<usize>,
}

impl Place {
    /// The peer runs on core `peer_cpu`.
    pub(super) fn new(peer_cpu: Option<usize>) -> Result<Self, LabError> {
        let (near, far) = (Namespace::new("packet-near")?, Namespace::new("packet-far")?);
        for side in [&near, &far] {
            side.ip("link set lo up")?;
        }
        near.ip(&format!("link add hkveth type veth peer name hkveth netns {}", far.name()))?;
        for (side, address) in [(&near, VETH_NEAR), (&far, VETH_PEER)] {
            side.ip(&format!("addr add {address}/24 dev hkveth"))?;
            side.ip("link set hkveth up")?;
        }
        // Persistent: the address outlives the descriptor of each run.
        far.ip(&format!("tuntap add dev {TAP} mode tap vnet_hdr"))?;
        far.ip(&format!("addr add {TAP_PEER}/24 dev {TAP}"))?;
        far.ip(&format!("link set {TAP} up"))?;
        let role = Role::PacketPeer(Peer { namespace: far.path(), cpu: peer_cpu });
        let (peer, ()) = Part::start("the peer", &role)?;
        Ok(Self { near, far, _peer: peer, has_peer_cpu: peer_cpu })
    }

    pub(super) fn tap(&self) -> Result<Opened, LabError> {
        self.far.within(|| tap::open(TAP))?.attempted("open the TAP interface")
    }

    pub(super) fn tap_peer() -> SocketAddr {
        SocketAddrV4::new(TAP_PEER, PORT).into()
    }

    pub(super) fn veth_peer() -> SocketAddr {
        SocketAddrV4::new(VETH_PEER, PORT).into()
    }

    pub(super) fn peer_cpu(&self) -> Option<usize> {
        self.has_peer_cpu
    }
}

/// The running program's descriptor of a namespace keeps it; by path it is entered.
pub(super) fn open(namespace: &Namespace) -> Result<File, LabError> {
    File::open(namespace.path()).attempted("open a network namespace")
}
