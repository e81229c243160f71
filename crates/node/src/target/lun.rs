//! A logical unit, shared by the server's threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use block::{Capability, wait_ready};
use io::Io;
use scsi::{LogicalUnit, NexusId, Rights, UnitConfig};

use super::config::{LunConfig, ServeError, TargetConfig};
use super::usage::{Usage, UsageStatus};

/// MAXIMUM TRANSFER LENGTH of the units, in bytes.
const TRANSFER_BYTES_MAX: u32 = 8 << 20;
/// Portal group tag of every portal: all portals are equal and form one group.
pub(super) const PORTAL_GROUP_TAG: u16 = 1;

const _: () = assert!(TRANSFER_BYTES_MAX as usize <= area::Pool::AREA_BYTES_MAX);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) wire: u64,
    pub(super) lun: usize,
    pub(super) rights: Rights,
}

/// The identity of a unit, and what a nexus may rely on without a report of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerUnit {
    pub naa: u64,
    pub serial: String,
    pub blocks: u64,
    pub block_size: u32,
    pub read_only: bool,
    pub write_cache: bool,
}

/// A logical unit at one moment.
#[derive(Clone, Debug)]
pub struct LunStatus {
    pub target: String,
    pub lun: u16,
    /// The storage's name, without secrets.
    pub storage: String,
    pub size_bytes: u64,
    pub block_size: u32,
    pub read_only: bool,
    pub state: LunState,
    pub usage: UsageStatus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LunState {
    Ready,
    /// A flush failed: writes end with MEDIUM ERROR until the storage is opened again.
    FlushFailed,
    /// A panic left the unit in doubt: commands end with HARDWARE ERROR.
    InDoubt,
}

impl LunState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::FlushFailed => "flush-failed",
            Self::InDoubt => "in-doubt",
        }
    }
}

#[derive(Debug)]
pub(super) struct Lun {
    pub(super) config: LunConfig,
    /// Index of the unit in every thread's tables. The slot is free again when this unit is dropped.
    pub(super) slot: usize,
    pub(super) wire: u64,
    pub(super) block_size: u32,
    unit: Mutex<LogicalUnit>,
    /// Set after a panic: the state of the unit, or of requests to its storage, is unknown.
    failed: AtomicBool,
    writers: Mutex<Writers>,
    /// Counts the changes, and possible changes, of its content.
    changes: AtomicU64,
    /// Number of task management functions in progress that end the tasks of all sessions.
    clearings: AtomicU32,
    /// By thread.
    usage: Box<[Usage]>,
}

/// The initiators that have written, to warn of initiators that are not coordinated.
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
        workers: usize,
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
            sole_writer: config.exclusive && capability.sole_writer,
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
            usage: std::iter::repeat_with(Usage::default).take(workers).collect(),
        })
    }

    /// The counters that `worker` adds to.
    pub(super) fn usage(&self, worker: usize) -> &Usage {
        &self.usage[worker]
    }

    pub(super) fn former_unit(&self) -> FormerUnit {
        let unit = self.unit();
        let UnitConfig { naa, ref serial, blocks, block_size, read_only, write_cache, .. } = *unit.config();
        FormerUnit { naa, serial: serial.clone(), blocks, block_size, read_only, write_cache }
    }

    pub(super) fn status(&self, target: &str) -> LunStatus {
        let mut usage = UsageStatus::default();
        self.usage.iter().for_each(|one| one.add_to(&mut usage));
        let unit = self.unit();
        let UnitConfig { blocks, block_size, read_only, .. } = *unit.config();
        LunStatus {
            target: target.to_owned(),
            lun: self.config.lun,
            storage: self.config.medium.name(),
            size_bytes: blocks * u64::from(block_size),
            block_size,
            read_only,
            state: match self.failed.load(Ordering::Relaxed) {
                true => LunState::InDoubt,
                false if self.config.medium.has_failed() => LunState::FlushFailed,
                false => LunState::Ready,
            },
            usage,
        }
    }

    /// The device server. Locked for the decision on one command, never across I/O. If a panic occurred while it was
    /// locked, the unit has failed; commands in flight end with the remaining state, which no new command uses.
    pub(super) fn unit(&self) -> MutexGuard<'_, LogicalUnit> {
        self.unit.lock().unwrap_or_else(|poisoned| {
            self.fail();
            poisoned.into_inner()
        })
    }

    /// The device server for a new command; `None`: failed, [`scsi::Sense::INTERNAL`] until a restart.
    pub(super) fn working_unit(&self) -> Option<MutexGuard<'_, LogicalUnit>> {
        let unit = self.unit();
        (!self.failed.load(Ordering::Relaxed)).then_some(unit)
    }

    /// A panic has left the state of the unit, or of requests to its storage, unknown.
    pub(super) fn fail(&self) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                lun = self.config.lun,
                storage = self.config.medium.name(),
                "a panic left this unit in doubt: it answers HARDWARE ERROR, INTERNAL TARGET FAILURE until it is opened again"
            );
        }
    }

    pub(super) fn fail_if_poisoned(&self) {
        if self.unit.is_poisoned() {
            self.fail();
        }
    }

    /// The list is used only for a warning, so its state after a panic is good enough.
    fn writers(&self) -> MutexGuard<'_, Writers> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content has changed, may have changed, or the unit was reset; called before any response. Data read before
    /// this call and not sent is stale.
    pub(super) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// The number of changes. If it is equal at a later time, data read in between is current.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The tasks of all sessions are to end. Until [`Self::cleared`] new commands end with BUSY: a command started now
    /// would neither be aborted nor follow the unit attention that reports the abort, and its initiator would consider
    /// it aborted.
    pub(super) fn clear(&self) {
        self.clearings.fetch_add(1, Ordering::SeqCst);
    }

    /// The tasks have ended, and unit attentions report that.
    pub(super) fn cleared(&self) {
        self.clearings.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn is_clearing(&self) -> bool {
        self.clearings.load(Ordering::SeqCst) > 0
    }

    /// Records that `initiator` writes; warns once if another one also does and the unit is not configured as `shared`.
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
                 destroyed; say 'shared' if they coordinate their writes"
            );
        }
    }

    pub(super) fn detach(&self, nexus: NexusId) {
        self.unit().detach(nexus);
        self.writers().by_nexus.remove(&nexus);
    }
}

/// Opens the storage briefly to determine its capability.
pub(super) fn capability_of(io: &mut Io, medium: &dyn block::Medium) -> Result<Capability, block::OpenError> {
    let mut endpoint = medium.attach(io)?;
    wait_ready(io, &mut [&mut *endpoint])?;
    let capability = endpoint.capability().clone();
    block::close_all(io, &mut [&mut *endpoint]);
    Ok(capability)
}
