//! Facts of a LUN and its session, named as in the standards.

use std::net::SocketAddr;

use iscsi::params::Negotiated;

use super::setup::Disk;
use crate::sealing::Protection;

#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) negotiated: Negotiated,
    pub(super) protection: Protection,
    pub(super) address: SocketAddr,
}

pub(super) fn facts(disk: &Disk, session: Option<&Known>) -> Vec<(&'static str, String)> {
    let mut facts = vec![("kind", "iSCSI LUN".to_owned())];
    if let Some(standard) = &disk.standard {
        facts.push(("vendor", standard.vendor().trim().to_owned()));
        facts.push(("product", standard.product().trim().to_owned()));
        facts.push(("revision", standard.revision().trim().to_owned()));
    }
    facts.extend(disk.serial.clone().map(|serial| ("serial", serial)));
    facts.extend(disk.designator.clone().map(|designator| ("designator", designator)));
    if let Some(page) = &disk.provisioning {
        let kind = match page.kind {
            2 => "thin",
            1 => "resource",
            _ => "full",
        };
        facts.push(("provisioning", kind.into()));
        facts.push(("LBPRZ", page.reads_zero.to_string()));
    }
    if let Some(limits) = &disk.limits {
        facts.push(("maximum transfer length", format!("{} blocks", limits.transfer_max_blocks)));
        facts.push(("maximum unmap LBA count", format!("{} blocks", limits.unmap_max_blocks)));
    }
    facts.push(("access", if disk.write_protected { "ro" } else { "rw" }.into()));
    facts.push(("FUA", disk.fua.to_string()));
    facts.push(("WCE", disk.write_cache.to_string()));
    // From WP of MODE SENSE, which a target may set for one initiator and clear for another.
    facts.push(("mode", if disk.write_protected { "ro" } else { "rw" }.to_owned()));
    facts.extend(session.iter().flat_map(|session| session.facts()));
    facts
}

impl Known {
    pub(super) fn facts(&self) -> Vec<(&'static str, String)> {
        let keys = &self.negotiated;
        let mut facts = keys.pairs();
        facts.push(("target's MaxRecvDataSegmentLength", keys.max_send_data_segment_length.to_string()));
        facts.extend(self.protection.facts());
        facts.push(("address", self.address.to_string()));
        facts
    }
}
