//! Capabilities to keep; see capabilities(7).

use std::io::{Error, Result};

use crate::calls;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    pub const NONE: Self = Self(0);
    /// Opens files regardless of their mode.
    pub const DAC_OVERRIDE: Self = Self(1 << 1);
    /// Permits all SCSI commands.
    pub const SYS_RAWIO: Self = Self(1 << 17);
    /// Permits all NVMe commands.
    pub const SYS_ADMIN: Self = Self(1 << 21);

    /// Permits changes of the bounding set.
    const SETPCAP: Self = Self(1 << 8);

    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `other` is a subset.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Removes all other capabilities from every set of the calling thread.
    pub(crate) fn keep_only(self) -> Result<()> {
        self.bound()?;
        let permitted = calls::permitted()?;
        calls::clear_ambient_set()?;
        let kept = permitted & self.0;
        calls::set_capabilities(kept)?;
        if calls::permitted()? != kept {
            return Err(Error::other("they are still there"));
        }
        Ok(())
    }

    /// Removes all other capabilities from the bounding set. Only a thread with [`Self::SETPCAP`] can change it; without
    /// it no_new_privs prevents that a program gains capabilities from that set.
    pub(crate) fn bound(self) -> Result<()> {
        if Self(calls::permitted()?).has(Self::SETPCAP) {
            for number in 0..u64::BITS {
                if !self.has(Self(1 << number)) && !calls::drop_from_bounding_set(number)? {
                    break;
                }
            }
        }
        Ok(())
    }
}
