//! ARP (RFC 826), with the rules of RFC 5227 for probes and for hosts that claim an address of ours.

use std::net::IpAddr;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr};

use super::neighbour::Claim;
use super::records::{Kind, Reply};
use super::route::is_unicast;
use super::{Ethernet, Iface, Outcome, Verdict};
use crate::packet::{DropReason, ETHERNET_BYTES};
use crate::{Address, Arrived, Time};

impl Iface<'_> {
    pub(super) fn on_arp(&mut self, arrived: &Arrived<'_>, ethernet: Ethernet, now: Time) -> Outcome {
        self.state.counters.arp_received += 1;
        let copied = arrived.header.len().min(arrived.length as usize);
        let packet = ArpPacket::new_checked(&arrived.header[ETHERNET_BYTES..copied])
            .map_err(|_| DropReason::Malformed)?;
        // "Do I have the hardware type, do I speak the protocol?"
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) = ArpRepr::parse(&packet)
        else {
            return Err(DropReason::Unsupported);
        };
        let interface = arrived.interface;
        let (sender, mac) = (Address::from(IpAddr::V4(source_protocol_addr)), source_hardware_addr.0);
        let target = Address::from(IpAddr::V4(target_protocol_addr));
        // RFC 5227 §2.1.1: a probe has no sender; it is answered, and nothing is learnt from it.
        let is_probe = source_protocol_addr.is_unspecified();
        if !source_hardware_addr.is_unicast()
            || (!is_probe && (!is_unicast(sender) || self.state.is_broadcast(sender)))
        {
            return Err(DropReason::Neighbour);
        }
        if self.state.is_local_at(interface, sender) {
            if mac != self.state.interfaces[usize::from(interface)].link.mac {
                // RFC 5227 §2.4: addresses are not given up: they are those of the configuration.
                self.state.counters.address_conflicts += 1;
            }
            return Err(DropReason::Neighbour);
        }
        let is_for_us = self.state.is_local_at(interface, target);
        match operation {
            ArpOperation::Request if is_for_us => {
                if !is_probe {
                    self.on_asked_by(interface, sender, mac, now);
                }
                self.reply(Reply {
                    source: target,
                    destination: sender,
                    target: sender,
                    mac,
                    interface,
                    kind: Kind::ArpReply,
                    ..Reply::default()
                });
            }
            ArpOperation::Request | ArpOperation::Reply => {
                let is_solicited =
                    operation == ArpOperation::Reply && is_for_us && ethernet.destination[0] & 1 == 0;
                self.on_claim(
                    &Claim { interface, address: sender, mac: Some(mac), is_solicited, is_override: true },
                    now,
                );
            }
            ArpOperation::Unknown(_) => return Err(DropReason::Unsupported),
        }
        Ok(Verdict::Done)
    }
}
