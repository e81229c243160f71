//! The options of a copy.

use std::path::PathBuf;

use mover::Plan;

use crate::hooks::Hooks;
use crate::impact::Impact;
use crate::since::Since;

/// The options of a copy, beside its addresses, named as those of `hikyaku copy`: hints and commands contain the names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The engine's plan: range, chunks, rate, sparse, verify, block sizes. The stages set `sums`, `map`, `only`,
    /// `differing`, `skip_bad` and `impact`.
    pub plan: Plan,
    /// Path of the manifest: hashes of the verified extents. Requires `plan.verify`.
    pub manifest: Option<PathBuf>,
    /// Whether a copy of any size keeps a journal; a copy of more than 1 GiB always does.
    pub journal: bool,
    pub resume: Resume,
    /// Which part of the source may differ from what the destination holds.
    pub since: Option<Since>,
    pub remote_copy: Choice,
    pub offload: Choice,
    /// How far the copy gives way to other programs that read its disks.
    pub impact: Impact,
    /// Whether the source is copied from a snapshot created for this copy.
    pub snapshot: bool,
    pub hooks: Hooks,
    /// Whether a destination with known content is overwritten, and the journal of other storage accepted.
    pub force: bool,
    /// Whether a destination may be mounted, held or locked, and the source written during the copy.
    pub allow_in_use: bool,
    /// Whether a destination file may need more space than its file system has free.
    pub allow_space: bool,
    /// Further words of the caller for command lines that repeat or resume the copy.
    pub more: Vec<String>,
}

/// Whether an interrupted copy is resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// The interrupted copy of the same range between the same storage, if there is one and nothing has changed since.
    #[default]
    Found,
    /// The only interrupted copy between these two addresses.
    Only,
    /// The copy with the journal of this name or path.
    Named(String),
    /// None: the copy begins anew.
    Off,
}

/// Whether a path that avoids this host's memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    #[default]
    Auto,
    Off,
    /// Always; the copy fails if that is impossible.
    Require,
}

impl Choice {
    /// The option's value; `None` for the default.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Self::Auto => None,
            Self::Off => Some("off"),
            Self::Require => Some("require"),
        }
    }
}

impl Request {
    /// The plan with the fields that follow from the request; other stages set the rest.
    pub(crate) fn plan(&self) -> Plan {
        let differing = self.since == Some(Since::Hash);
        Plan { sums: self.manifest.is_some(), differing, ..self.plan.clone() }
    }
}

/// Alignment of a plan's requests in bytes, at most 4096: the value that matters for O_DIRECT.
pub fn request_alignment(offset: u64, chunk: Option<u32>) -> u32 {
    const ENOUGH: u32 = 4096;
    let bits = offset | u64::from(chunk.unwrap_or(ENOUGH)) | u64::from(ENOUGH);
    1 << bits.trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_aligned_as_the_offset_and_the_chunk() {
        assert_eq!(request_alignment(0, None), 4096);
        assert_eq!(request_alignment(1 << 20, Some(64 << 10)), 4096);
        assert_eq!(request_alignment(512, None), 512);
        assert_eq!(request_alignment(0, Some(1536)), 512);
        assert_eq!(request_alignment(7, None), 1);
    }
}
