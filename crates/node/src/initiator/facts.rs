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
        let digest = |on: bool| if on { "CRC32C" } else { "None" }.to_owned();
        let yes = |on: bool| if on { "Yes" } else { "No" }.to_owned();
        let mut facts = vec![
            ("HeaderDigest", digest(keys.header_digest)),
            ("DataDigest", digest(keys.data_digest)),
            ("InitialR2T", yes(keys.initial_r2t)),
            ("ImmediateData", yes(keys.immediate_data)),
            ("MaxRecvDataSegmentLength", keys.max_recv_data_segment_length.to_string()),
            ("target's MaxRecvDataSegmentLength", keys.max_send_data_segment_length.to_string()),
            ("MaxBurstLength", keys.max_burst_length.to_string()),
            ("FirstBurstLength", keys.first_burst_length.to_string()),
            ("MaxOutstandingR2T", keys.max_outstanding_r2t.to_string()),
            ("ErrorRecoveryLevel", keys.error_recovery_level.to_string()),
        ];
        facts.extend(self.protection.facts());
        facts.push(("address", self.address.to_string()));
        facts
    }
}
