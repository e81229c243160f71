//! Where a measurement happens: two namespaces joined by a veth pair, and in the far one the kernel side of a TAP
//! interface. The peer in the far namespace answers on both; so both stacks have the same other end.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use super::peer::{PORT, Peer};
use crate::LabError;
use crate::part::{Part, Role};
use crate::wan::Namespace;

/// A TAP interface in the far namespace, with the addresses of both its ends. Only one process can have it open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cable {
    pub(super) name: &'static str,
    peer: Ipv4Addr,
    pub(super) ours: Ipv4Addr,
}

/// For servers as values.
pub(super) const HERE: Cable =
    Cable { name: "hktap1", peer: Ipv4Addr::new(10, 98, 1, 1), ours: Ipv4Addr::new(10, 98, 1, 2) };
/// For `hikyaku net up`.
pub(super) const UP: Cable =
    Cable { name: "hktap3", peer: Ipv4Addr::new(10, 98, 3, 1), ours: Ipv4Addr::new(10, 98, 3, 2) };

impl Cable {
    pub(super) fn peer(self) -> SocketAddr {
        SocketAddrV4::new(self.peer, PORT).into()
    }
}

/// Of the peer at the veth pair, and of the kernel's near end.
const VETH_PEER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const VETH_NEAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);

pub(super) struct Place {
    pub(super) near: Namespace,
    pub(super) far: Namespace,
    _peer: Part,
}

impl Place {
    /// The peer runs on core `peer_cpu`.
    pub(super) fn new(peer_cpu: Option<usize>) -> Result<Self, LabError> {
        let (near, far) = (Namespace::new("packet-near")?, Namespace::new("packet-far")?);
        for side in [&near, &far] {
            side.ip("link set lo up")?;
            // By measured rates (BBR) a peer that waits for its core sends by a timer; and no connection begins with the
            // slow-start threshold of one before it.
            side.sysctl("net/ipv4/tcp_congestion_control", "cubic")?;
            side.sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
        }
        near.ip(&format!("link add hkveth type veth peer name hkveth netns {}", far.name()))?;
        for (side, address) in [(&near, VETH_NEAR), (&far, VETH_PEER)] {
            side.ip(&format!("addr add {address}/24 dev hkveth"))?;
            side.ip("link set hkveth up")?;
        }
        for Cable { name, peer, .. } in [HERE, UP] {
            // Persistent: the address outlives the descriptor of each run.
            far.ip(&format!("tuntap add dev {name} mode tap vnet_hdr"))?;
            far.ip(&format!("addr add {peer}/24 dev {name}"))?;
            far.ip(&format!("link set {name} up"))?;
        }
        let role = Role::PacketPeer(Peer { namespace: far.path(), cpu: peer_cpu });
        let (peer, ()) = Part::start("the peer", &role)?;
        Ok(Self { near, far, _peer: peer })
    }

    pub(super) fn veth_peer() -> SocketAddr {
        SocketAddrV4::new(VETH_PEER, PORT).into()
    }
}
