//! A logical unit as the server's threads share it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use block::Capability;
use scsi::{LogicalUnit, NexusId, UnitConfig};

use super::config::{LunConfig, ServeError, TargetConfig};

/// MAXIMUM TRANSFER LENGTH of our units, in bytes.
const TRANSFER_BYTES_MAX: u32 = 8 << 20;
/// Portal group of every portal: one group, all portals equal.
pub(super) const PORTAL_GROUP_TAG: u16 = 1;

const _: () = assert!(TRANSFER_BYTES_MAX as usize <= area::Pool::AREA_BYTES_MAX);

/// One logical unit of one target.
#[derive(Debug)]
pub(super) struct Lun {
    pub(super) config: LunConfig,
    /// Its number as the wire carries it.
    pub(super) wire: u64,
    pub(super) block_size: u32,
    unit: Mutex<LogicalUnit>,
    writers: Mutex<Writers>,
    /// Times that what it holds has changed, or may have.
    changes: AtomicU64,
    /// Task management under way that ends the tasks of all.
    clearings: AtomicU32,
}

/// Who has written, to warn of initiators that do not know of each other.
#[derive(Debug, Default)]
struct Writers {
    by_nexus: HashMap<NexusId, String>,
    warned: bool,
}

impl Lun {
    pub(super) fn new(
        target: &TargetConfig,
        config: &LunConfig,
        capability: &Capability,
    ) -> Result<Self, ServeError> {
        let wire = scsi::lun::to_wire(config.lun).ok_or_else(|| {
            ServeError::Config(format!("LUN {} of {}: numbers go from 0 to 16383", config.lun, target.iqn))
        })?;
        let block_size = config.block_size.unwrap_or(capability.block_size);
        if block_size < capability.granularity {
            return Err(ServeError::Config(format!(
                "LUN {} of {}: blocks of {block_size} bytes on storage with blocks of {}",
                config.lun, target.iqn, capability.granularity
            )));
        }
        let blocks = capability.size_bytes / u64::from(block_size);
        if blocks == 0 {
            return Err(ServeError::Config(format!(
                "LUN {} of {}: {} has {} bytes, less than one block",
                config.lun,
                target.iqn,
                config.medium.name(),
                capability.size_bytes
            )));
        }
        let unit = LogicalUnit::new(UnitConfig {
            blocks,
            block_size,
            physical_block_size: config.physical_block_size.unwrap_or(capability.physical_block_size),
            read_only: config.read_only || capability.read_only,
            removable: config.removable,
            rotational: config.rotational.unwrap_or(capability.rotational),
            thin: capability.discard,
            write_cache: config.write_cache && capability.volatile_cache,
            vendor: config.vendor.clone().unwrap_or_else(|| "hikyaku".into()),
            product: config.product.clone().unwrap_or_else(|| "disk".into()),
            revision: env!("CARGO_PKG_VERSION").chars().take(4).collect(),
            serial: config.serial.clone(),
            naa: config.naa,
            max_transfer_bytes: TRANSFER_BYTES_MAX,
            optimal_transfer_bytes: capability.optimal_transfer_bytes.min(TRANSFER_BYTES_MAX),
            target_name: target.iqn.clone(),
            target_port_group: PORTAL_GROUP_TAG,
            relative_port: 1,
        });
        let config = config.clone();
        Ok(Self {
            config,
            wire,
            block_size,
            unit: Mutex::new(unit),
            writers: Mutex::default(),
            changes: AtomicU64::new(0),
            clearings: AtomicU32::new(0),
        })
    }

    /// The device server. Held for one command's decision, never across I/O.
    pub(super) fn unit(&self) -> MutexGuard<'_, LogicalUnit> {
        self.unit.lock().expect("no panic while locked")
    }

    /// What it holds has changed, or may have, or it was reset; said before anyone is told. What was read before this and not
    /// given away is out of date.
    pub(super) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The changes so far; the same number later: what was read in between is what is there.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The tasks of all are to end. From here to [`Self::cleared`] a command is answered BUSY: begun now, it would neither be
    /// among those that end nor behind the unit attention that tells of their end, and its initiator would take it for one of them.
    pub(super) fn clear(&self) {
        self.clearings.fetch_add(1, Ordering::SeqCst);
    }

    /// They have ended, and unit attentions say so.
    pub(super) fn cleared(&self) {
        self.clearings.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether tasks are being ended.
    pub(super) fn is_clearing(&self) -> bool {
        self.clearings.load(Ordering::SeqCst) > 0
    }

    /// Notes that `initiator` writes, and warns once if another does too without having said `shared`.
    pub(super) fn note_writer(&self, nexus: NexusId, initiator: &str) {
        let mut writers = self.writers.lock().expect("no panic while locked");
        if writers.by_nexus.contains_key(&nexus) {
            return;
        }
        writers.by_nexus.insert(nexus, initiator.to_owned());
        let others: Vec<_> = writers.by_nexus.values().filter(|name| *name != initiator).cloned().collect();
        if !others.is_empty() && !self.config.shared && !writers.warned {
            writers.warned = true;
            tracing::warn!(
                lun = self.config.lun,
                storage = self.config.medium.name(),
                initiator,
                also = others.join(", "),
                "two initiators write to one LUN without reservations: ordinary file systems will be \
                 destroyed; say 'shared' if they know of each other"
            );
        }
    }

    /// A nexus is gone.
    pub(super) fn detach(&self, nexus: NexusId) {
        self.unit().detach(nexus);
        self.writers.lock().expect("no panic while locked").by_nexus.remove(&nexus);
    }
}
