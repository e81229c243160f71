//! Multicast listener discovery (RFC 3810): bridges that look at it (RFC 4541 §3) pass solicitations for our addresses on
//! only if the groups of these were reported. A report follows each start of a driver, and each query within the time
//! that it allows.
//!
//! Left out: the repetition of a report that was not asked for (RFC 3810 §6.1; the next query mends its loss), answers
//! about one group alone (all are reported), and reports of the first version to a querier that knows no other (§8.2.1).

use super::neighbour::{multicast_mac, solicited_node};
use super::records::{ADDRESSES_MAX, Kind, Reply, State};
use super::route::is_link_local;
use super::{Iface, Outcome, Verdict};
use crate::packet::{
    DropReason, ETHERNET_BYTES, IpHeader, Mac, V6_BYTES, be16, emit_ip, fold, protocol, pseudo_header_sum,
    sum,
};
use crate::{Address, Arrived, HEADER_BYTES, InterfaceId, Time, VNET_BYTES};

/// MODE_IS_EXCLUDE and CHANGE_TO_EXCLUDE_MODE (RFC 3810 §5.2.12): all sources of a group are wanted; now too, or anew.
const IS_EXCLUDE: u8 = 2;
pub(super) const TO_EXCLUDE: u8 = 4;
/// ff02::16, all routers that know RFC 3810 (§5.2.14).
const ROUTERS: Address = Address([0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x16]);
/// RFC 3810 §5: a message comes from the link and stays on it.
const HOP_LIMIT: u8 = 1;
/// Hop-by-hop header with Router Alert for MLD (RFC 2711 §2.1) and PadN, before ICMPv6.
const ROUTER_ALERT: [u8; 8] = [protocol::ICMP_V6, 0, 5, 2, 0, 0, 1, 0];
/// Of the option in it.
const ALERT: std::ops::Range<usize> = 2..6;
const REPORT: u8 = 143;
/// A report of one group: the header and a record without sources (RFC 3810 §5.2).
const REPORT_BYTES: usize = 8 + 20;
/// Of a query of the first version; those of the second are longer (RFC 3810 §8.1).
const QUERY_BYTES: usize = 24;
/// Answers are collected for so long at least: queries cannot make us send more often.
const DELAY_MS_MIN: u64 = 10;

impl Iface<'_> {
    /// Reports the solicited-node groups of an interface, each once.
    pub(super) fn report_groups(&mut self, interface: InterfaceId, record: u8) {
        let mut groups = [None; ADDRESSES_MAX + 1];
        let state = &*self.state;
        let ours = state.local_addresses().filter(|it| it.interface == interface && !it.address.is_v4());
        for group in ours.map(|local| solicited_node(local.address)) {
            if !groups.contains(&Some(group))
                && let Some(place) = groups.iter_mut().find(|place| place.is_none())
            {
                *place = Some(group);
            }
        }
        let source = state.interfaces[usize::from(interface)].link_local;
        for target in groups.into_iter().flatten() {
            self.reply(Reply {
                source,
                destination: ROUTERS,
                target,
                mac: multicast_mac(ROUTERS),
                interface,
                kind: Kind::Report,
                record,
                ..Reply::default()
            });
        }
    }

    /// RFC 3810 §6.2: an answer follows after a time that no other host chooses alike, at most that of the query.
    pub(super) fn on_listener_query(
        &mut self,
        arrived: &Arrived<'_>,
        ip: &IpHeader,
        message: &[u8],
        now: Time,
    ) -> Outcome {
        // RFC 3810 §5.1.14, §6.2; RFC 2710 §3.
        let options = arrived.header.get(ETHERNET_BYTES + V6_BYTES..ip.payload_start as usize);
        let has_alert = options
            .is_some_and(|options| options.windows(ALERT.len()).any(|option| *option == ROUTER_ALERT[ALERT]));
        if ip.hop_limit != HOP_LIMIT || !is_link_local(ip.source) || !has_alert || message.len() < QUERY_BYTES
        {
            return Err(DropReason::Neighbour);
        }
        let code = u64::from(be16(message, 4));
        // RFC 3810 §5.1.3: from 32768 on an exponent and a mantissa.
        let most_ms = match code {
            ..0x8000 => code,
            _ => (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3),
        };
        let mix = (now.0 ^ self.state.key[0]).wrapping_mul(self.state.key[1] | 1);
        let delay_ms = DELAY_MS_MIN.max((mix >> 32) % (most_ms + 1));
        let record = &mut self.state.interfaces[usize::from(arrived.interface)];
        record.report_at = record.report_at.min(now.after(delay_ms * 1000));
        self.state.deadline = self.state.deadline.min(record.report_at);
        Ok(Verdict::Done)
    }

    pub(super) fn report_if_due(&mut self, now: Time) {
        for interface in 0..self.state.interfaces.len() {
            let record = &mut self.state.interfaces[interface];
            if record.is_attached && record.report_at <= now {
                record.report_at = Time::NEVER;
                self.report_groups(interface as InterfaceId, IS_EXCLUDE);
            }
        }
    }
}

impl State {
    /// When the next answer to a query is due.
    pub(super) fn report_at(&self) -> Time {
        let attached = self.interfaces.iter().filter(|interface| interface.is_attached);
        attached.map(|interface| interface.report_at).min().unwrap_or(Time::NEVER)
    }
}

pub(super) fn emit_report(header: &mut [u8; HEADER_BYTES], own: Mac, reply: &Reply) -> u16 {
    let &Reply { source, destination, .. } = reply;
    let ip = IpHeader {
        source,
        destination,
        hop_limit: HOP_LIMIT,
        protocol: protocol::HOP_BY_HOP,
        payload_start: 0,
        payload_bytes: (ROUTER_ALERT.len() + REPORT_BYTES) as u32,
    };
    let start = emit_ip(header, own, reply.mac, &ip);
    let mut message = [0; REPORT_BYTES];
    // One record, without sources and auxiliary data.
    (message[0], message[7], message[8]) = (REPORT, 1, reply.record);
    message[12..].copy_from_slice(&reply.target.0);
    let pseudo = pseudo_header_sum(source, destination, protocol::ICMP_V6, REPORT_BYTES as u32);
    let checksum = !fold(sum(&message) + pseudo);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let payload = &mut header[VNET_BYTES + start..];
    payload[..ROUTER_ALERT.len()].copy_from_slice(&ROUTER_ALERT);
    payload[ROUTER_ALERT.len()..][..REPORT_BYTES].copy_from_slice(&message);
    (start + ROUTER_ALERT.len() + REPORT_BYTES) as u16
}
