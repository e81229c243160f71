//! Which address, next hop and interface packets take: prefixes of our addresses are on the link, the rest lies behind
//! gateways. Addresses belong to interfaces (RFC 1122 §3.3.4.2, the strong model).

use super::records::{Interface, LocalAddress, State};
use super::{Iface, Route};
use crate::{Address, InterfaceId, Refusal};

impl Iface<'_> {
    /// `address` is one of ours.
    pub fn is_local(&self, address: Address) -> bool {
        self.state.local_addresses().any(|local| local.address == address)
    }

    /// How packets from `local`, or from the best address of ours, leave for `remote`.
    pub fn route(&self, remote: Address, local: Option<Address>) -> Result<Route, Refusal> {
        let local = local.filter(|local| !local.is_unspecified());
        if let Some(local) = local
            && !self.is_local(local)
        {
            return Err(Refusal::NotOurs);
        }
        if !is_unicast(remote) || self.state.is_broadcast(remote) || self.is_local(remote) {
            return Err(Refusal::NoRoute);
        }
        if let Some(source) = self.state.source_on_link(remote, local) {
            return self.state.route(source, remote);
        }
        // RFC 4007 §9: a link-local address leaves no link.
        if is_link_local(remote) {
            return Err(Refusal::NoRoute);
        }
        let gateways = &self.state.gateways[..self.state.gateway_count as usize];
        gateways
            .iter()
            .filter(|gateway| gateway.is_v4() == remote.is_v4())
            .find_map(|&gateway| {
                let link = self.state.source_on_link(gateway, None)?.interface;
                let source = self.state.source_from(link, remote, local)?;
                self.state.route(source, gateway).ok()
            })
            .ok_or(Refusal::NoRoute)
    }
}

impl State {
    pub(super) fn attached(&self, interface: InterfaceId) -> Option<&Interface> {
        self.interfaces.get(usize::from(interface)).filter(|interface| interface.is_attached)
    }

    pub(super) fn configured(&self) -> &[LocalAddress] {
        &self.addresses[..self.address_count as usize]
    }

    /// Of attached interfaces, link-local ones behind the others.
    pub(super) fn local_addresses(&self) -> impl Iterator<Item = LocalAddress> {
        let link_local =
            (0..).zip(&self.interfaces).filter_map(|(interface, Interface { link_local, .. })| {
                let local = LocalAddress::new(interface, *link_local, 64);
                (!link_local.is_unspecified()).then_some(local)
            });
        self.configured()
            .iter()
            .copied()
            .chain(link_local)
            .filter(|local| self.attached(local.interface).is_some())
    }

    /// What `address` is to packets that came from an interface: one of its addresses.
    pub(super) fn is_local_at(&self, interface: InterfaceId, address: Address) -> bool {
        self.local_addresses().any(|local| local.interface == interface && local.address == address)
    }

    /// `address` lies in a prefix of the interface.
    pub(super) fn is_on_link(&self, interface: InterfaceId, address: Address) -> bool {
        self.local_addresses().any(|local| local.interface == interface && local.covers(address))
    }

    /// The broadcast or network address of an IPv4 prefix (RFC 1122 §3.2.1.3, §3.3.6).
    pub(super) fn is_broadcast(&self, address: Address) -> bool {
        self.configured().iter().any(|local| local.reserved.contains(&address))
    }

    /// The address of ours whose prefix, the longest, has `remote` on its link.
    fn source_on_link(&self, remote: Address, local: Option<Address>) -> Option<LocalAddress> {
        let covering = self
            .local_addresses()
            .filter(|ours| ours.covers(remote))
            // Of equal ones the first is taken: `max_by_key` would take the last.
            .reduce(|best, ours| if ours.prefix_bits > best.prefix_bits { ours } else { best })?;
        self.source_from(covering.interface, remote, local)
    }

    /// The address of an interface to send to `remote` from (RFC 6724 §5): of its scope (rule 2) and with the longest
    /// common prefix (rule 8); or `local`, if the interface has it.
    fn source_from(
        &self,
        interface: InterfaceId,
        remote: Address,
        local: Option<Address>,
    ) -> Option<LocalAddress> {
        let candidates = || {
            self.local_addresses()
                .filter(|ours| ours.interface == interface && ours.address.is_v4() == remote.is_v4())
        };
        if let Some(local) = local {
            return candidates().find(|ours| ours.address == local);
        }
        let rank = |ours: &LocalAddress| {
            let common = (bits(ours.address) ^ bits(remote)).leading_zeros();
            (is_link_local(ours.address) == is_link_local(remote), common)
        };
        candidates().reduce(|best, ours| if rank(&ours) > rank(&best) { ours } else { best })
    }

    /// The best source for an answer to `remote` from the interface.
    pub(super) fn source_for(&self, interface: InterfaceId, remote: Address) -> Option<Address> {
        self.source_from(interface, remote, None).map(|ours| ours.address)
    }

    fn route(&self, source: LocalAddress, next_hop: Address) -> Result<Route, Refusal> {
        let LocalAddress { address: local, interface, .. } = source;
        let link = self.attached(interface).ok_or(Refusal::NoRoute)?.link;
        Ok(Route { local, next_hop, mtu: link.mtu, interface, segments: link.segments })
    }
}

impl LocalAddress {
    fn covers(&self, address: Address) -> bool {
        self.address.is_v4() == address.is_v4()
            && self.prefix_bits <= 128
            && (bits(self.address) ^ bits(address)) & self.mask() == 0
    }

    pub(super) fn new(interface: InterfaceId, address: Address, prefix_bits: u8) -> Self {
        let mut local = Self { address, reserved: [Address::UNSPECIFIED; 2], prefix_bits, interface };
        // RFC 3021: prefixes of 31 bits have no broadcast address.
        if address.is_v4() && prefix_bits <= 126 {
            let first = bits(address) & local.mask();
            local.reserved = [first, first | !local.mask()].map(|bits| Address(bits.to_be_bytes()));
        }
        local
    }

    fn mask(&self) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(self.prefix_bits)).unwrap_or(0)
    }
}

fn bits(address: Address) -> u128 {
    u128::from_be_bytes(address.0)
}

/// fe80::/10.
pub(super) fn is_link_local(address: Address) -> bool {
    address.0[0] == 0xfe && address.0[1] & 0xc0 == 0x80
}

/// May be the address of one host (RFC 1122 §3.2.1.3, RFC 4291 §2.4).
pub(super) fn is_unicast(address: Address) -> bool {
    match address.v4() {
        Some(v4) => !matches!(v4.octets()[0], 0 | 127 | 224..),
        None => address.0[0] != 0xff && address.0[..8] != [0; 8],
    }
}
