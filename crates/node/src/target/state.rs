//! The state that a reload replaces: the configuration and its units.

use std::sync::Arc;

use super::config::{AclEntry, Peer, ServerConfig};
use super::login;
use super::lun::{Lun, Seen};

/// Immutable; a reload creates a new one.
#[derive(Debug)]
pub(super) struct State {
    pub(super) config: ServerConfig,
    /// The units, by target.
    pub(super) luns: Vec<Vec<Arc<Lun>>>,
}

impl State {
    pub(super) fn target(&self, name: &str) -> Option<usize> {
        self.config.targets.iter().position(|target| target.iqn == name)
    }

    /// The units of a target visible to an initiator, by the row that decided and by its key.
    pub(super) fn visible_luns(
        &self,
        target: usize,
        row: Option<&AclEntry>,
        peer: Option<&Peer>,
    ) -> Vec<Seen> {
        let seen = self.luns[target].iter().filter_map(|lun| {
            let rights = login::rights(row, peer, lun.config.lun)?;
            Some(Seen { wire: lun.wire, lun: lun.slot, rights })
        });
        seen.collect()
    }
}
