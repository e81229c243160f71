//! A logical unit as the server's threads share it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// Where every thread keeps its way to it. The slot is free again when this unit is dropped.
    pub(super) slot: usize,
    /// Its number as the wire carries it.
    pub(super) wire: u64,
    pub(super) block_size: u32,
    unit: Mutex<LogicalUnit>,
    /// A panic has left its state, or requests to its storage, unknown.
    failed: AtomicBool,
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
        slot: usize,
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
            slot,
            wire,
            block_size,
            unit: Mutex::new(unit),
            failed: AtomicBool::new(false),
            writers: Mutex::default(),
            changes: AtomicU64::new(0),
            clearings: AtomicU32::new(0),
        })
    }

    /// The device server. Held for one command's decision, never across I/O. If a panic came while it was held, the unit has
    /// failed; what is under way ends with the state that is left, which no new command sees.
    pub(super) fn unit(&self) -> MutexGuard<'_, LogicalUnit> {
        self.unit.lock().unwrap_or_else(|poisoned| {
            self.fail();
            poisoned.into_inner()
        })
    }

    /// The device server for a new command; `None` if the unit has failed. It answers [`scsi::Sense::INTERNAL`] then, until
    /// the server opens it again.
    pub(super) fn working_unit(&self) -> Option<MutexGuard<'_, LogicalUnit>> {
        let unit = self.unit();
        (!self.failed.load(Ordering::Relaxed)).then_some(unit)
    }

    /// A panic has left the unit's state, or requests to its storage, unknown.
    pub(super) fn fail(&self) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                lun = self.config.lun,
                storage = self.config.medium.name(),
                "a panic left this unit in doubt: it answers HARDWARE ERROR, INTERNAL TARGET FAILURE until it is opened again"
            );
        }
    }

    /// Fails the unit if a panic came while its device server was held.
    pub(super) fn fail_if_poisoned(&self) {
        if self.unit.is_poisoned() {
            self.fail();
        }
    }

    /// Who has written. A list of names for a warning: whatever a panic left of it serves.
    fn writers(&self) -> MutexGuard<'_, Writers> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut writers = self.writers();
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
        self.writers().by_nexus.remove(&nexus);
    }
}
