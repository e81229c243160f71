//! Neighbour discovery (RFC 4861): solicitations and advertisements. Those of routers and redirects are ignored.

use smoltcp::wire::{
    EthernetAddress, Icmpv6Message, Icmpv6Packet, NdiscNeighborFlags, NdiscOption, NdiscOptionType,
};

use super::Iface;
use super::neighbour::{Claim, multicast_mac, solicited_node};
use super::records::{Kind, Reply};
use super::reply::HOP_LIMIT_ON_LINK;
use super::route::is_unicast;
use super::{Ethernet, Outcome, Verdict};
use crate::packet::{DropReason, IpHeader, Mac, is_multicast};
use crate::{Address, InterfaceId, Time};

/// RFC 4291 §2.7.1, ff02::1.
pub(super) const ALL_NODES: Address = Address([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
/// Of a solicitation and an advertisement without options.
const FIXED_BYTES: usize = 24;

impl Iface<'_> {
    pub(super) fn on_neighbour_discovery(
        &mut self,
        interface: InterfaceId,
        ethernet: Ethernet,
        ip: &IpHeader,
        message: &[u8],
        now: Time,
    ) -> Outcome {
        self.state.counters.neighbour_discovery_received += 1;
        // RFC 4861 §7.1.1 and §7.1.2.
        if ip.hop_limit != HOP_LIMIT_ON_LINK || message.len() < FIXED_BYTES {
            return Err(DropReason::Neighbour);
        }
        let packet = Icmpv6Packet::new_checked(message).map_err(|_| DropReason::Neighbour)?;
        let target = Address(packet.target_addr().octets());
        if packet.msg_code() != 0 || !is_unicast(target) || target.is_v4() {
            return Err(DropReason::Neighbour);
        }
        let options = &message[FIXED_BYTES..];
        if packet.msg_type() == Icmpv6Message::NeighborSolicit {
            let mac = link_layer_address(options, NdiscOptionType::SourceLinkLayerAddr)?;
            self.on_solicitation(interface, ethernet, ip, target, mac, now)
        } else {
            let mac = link_layer_address(options, NdiscOptionType::TargetLinkLayerAddr)?;
            self.on_advertisement(interface, ip, target, packet.neighbor_flags(), mac, now)
        }
    }

    /// RFC 4861 §7.2.3 and §7.2.4.
    fn on_solicitation(
        &mut self,
        interface: InterfaceId,
        ethernet: Ethernet,
        ip: &IpHeader,
        target: Address,
        mac: Option<Mac>,
        now: Time,
    ) -> Outcome {
        let is_probe = ip.source.is_unspecified();
        // §7.1.1: of duplicate address detection.
        if is_probe && (mac.is_some() || ip.destination != solicited_node(target)) {
            return Err(DropReason::Neighbour);
        }
        if !self.state.is_local_at(interface, target) {
            return Err(DropReason::NotForUs);
        }
        if let Some(mac) = mac {
            self.on_asked_by(interface, ip.source, mac, now);
        }
        let (destination, mac) = if is_probe {
            (ALL_NODES, multicast_mac(ALL_NODES))
        } else {
            (ip.source, mac.unwrap_or(ethernet.source))
        };
        self.reply(Reply {
            source: target,
            destination,
            target,
            mac,
            interface,
            kind: Kind::Advertisement,
            is_solicited: !is_probe,
            ..Reply::default()
        });
        Ok(Verdict::Done)
    }

    /// RFC 4861 §7.2.5.
    fn on_advertisement(
        &mut self,
        interface: InterfaceId,
        ip: &IpHeader,
        target: Address,
        flags: NdiscNeighborFlags,
        mac: Option<Mac>,
        now: Time,
    ) -> Outcome {
        let is_solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
        // §7.1.2.
        if ip.source.is_unspecified() || (is_solicited && is_multicast(ip.destination)) {
            return Err(DropReason::Neighbour);
        }
        if self.state.is_local_at(interface, target) {
            self.state.counters.address_conflicts += 1;
            return Err(DropReason::Neighbour);
        }
        let is_override = flags.contains(NdiscNeighborFlags::OVERRIDE);
        self.on_claim(&Claim { interface, address: target, mac, is_solicited, is_override }, now);
        Ok(Verdict::Done)
    }
}

/// The last option of that type. Options of length 0 make the packet invalid (RFC 4861 §7.1.1); unknown ones are skipped.
fn link_layer_address(mut options: &[u8], wanted: NdiscOptionType) -> Result<Option<Mac>, DropReason> {
    let mut found = None;
    while !options.is_empty() {
        let option = NdiscOption::new_checked(options).map_err(|_| DropReason::Neighbour)?;
        let length = usize::from(option.data_len()) * 8;
        if length == 0 || length > options.len() {
            return Err(DropReason::Neighbour);
        }
        if option.option_type() == wanted {
            let mac = options.get(2..8).and_then(<[u8]>::first_chunk::<6>).ok_or(DropReason::Neighbour)?;
            if !EthernetAddress(*mac).is_unicast() {
                return Err(DropReason::Neighbour);
            }
            found = Some(*mac);
        }
        options = &options[length..];
    }
    Ok(found)
}
