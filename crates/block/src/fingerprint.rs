//! What tells, later, whether storage is still the same and still holds the same.

use crate::Identity;

/// What storage was like at one moment. Words to be compared and shown, not to be understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Which storage it is, its size included. Whoever writes to it does not change this.
    pub storage: String,
    /// Changes with every write to it, by anyone; empty where nothing tells.
    pub contents: String,
}

impl Fingerprint {
    /// All that can be said of storage that shows nothing but who it is and how large.
    pub fn of_identity(identity: &Identity, size_bytes: u64) -> Self {
        let storage = match identity {
            Identity::File { device, inode } => format!("file {device}:{inode}, {size_bytes} bytes"),
            Identity::Device { device } => format!("device {device}, {size_bytes} bytes"),
            Identity::Remote(name) => format!("{name}, {size_bytes} bytes"),
            Identity::Unique => format!("{size_bytes} bytes"),
        };
        Self { storage, contents: String::new() }
    }
}
