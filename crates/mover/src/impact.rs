//! `--impact`: what a copy leaves of a disk to the other programs that read it.

use std::fmt;
use std::sync::Arc;

/// How far a copy gives way to other programs that read its disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Impact {
    /// Not at all: depth and chunk follow the copy's own rate.
    #[default]
    Full,
    /// While other programs read one of these disks, no more is in flight than keeps a small read within twice the
    /// latency that it has without the copy.
    Auto(Vec<Disk>),
    /// One small request at a time, and a pause as long as it took after each, whether the disks are in use or not.
    Least,
}

/// A disk of this machine that one end, or both, lie on.
#[derive(Clone)]
pub struct Disk {
    /// Whether the source and the destination lie on it.
    pub ends: [bool; 2],
    pub counter: Arc<dyn ReadCounter>,
}

/// The reads that a disk has completed for all programs.
pub trait ReadCounter: Send + Sync {
    /// The disk's path, for people.
    fn name(&self) -> &str;
    /// Reads completed since the disk appeared. Those that the kernel merged into others count as well. `None`: the
    /// disk has gone.
    fn reads(&self) -> Option<u64>;
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("ends", &self.ends).field("name", &self.counter.name()).finish()
    }
}

impl PartialEq for Disk {
    fn eq(&self, other: &Self) -> bool {
        self.ends == other.ends && self.counter.name() == other.counter.name()
    }
}

impl Eq for Disk {}

/// How a copy gave way to other programs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Yielded {
    /// Path of the disk that they read; with several, of the one with most of their reads. Empty with
    /// [`Impact::Least`].
    pub disk: String,
    /// Time during which the copy was bounded or measured the disk.
    pub seconds: f64,
    /// Reads of other programs in that time.
    pub reads: u64,
    /// Latency of a small read on the disk without requests of the copy, and with them, in microseconds: means without
    /// the slowest tenth, as last measured. 0: not measured.
    pub idle_us: f64,
    pub beside_us: f64,
}
