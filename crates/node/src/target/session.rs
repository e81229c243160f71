//! The state that a login establishes for the life of its session.

use std::sync::Arc;

use scsi::{NexusId, Rights};

use super::login::Grant;
use super::lun::Seen;
use super::usage::Usage;

pub(super) struct Session {
    pub(super) nexus: NexusId,
    /// Index of the target; `None`: discovery.
    pub(super) target: Option<usize>,
    pub(super) initiator: String,
    pub(super) user: Option<String>,
    pub(super) grant: Grant,
    pub(super) luns: Vec<Seen>,
    /// The LUN fields of `luns`, for REPORT LUNS.
    pub(super) inventory: Vec<u64>,
    /// Shared with the list of sessions; its commands add to it.
    pub(super) usage: Arc<Usage>,
}

impl Session {
    pub(super) fn seen(&self, wire: u64) -> Option<Seen> {
        self.luns.iter().find(|seen| seen.wire == wire).copied()
    }

    pub(super) fn rights(&self, lun: usize) -> Option<Rights> {
        self.luns.iter().find(|seen| seen.lun == lun).map(|seen| seen.rights)
    }
}
