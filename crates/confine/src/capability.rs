//! Capabilities that are kept; see capabilities(7).

use std::io::{Error, Result};

use crate::calls;

/// A set of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Opening files whatever their mode says.
    pub const DAC_OVERRIDE: Self = Self(1 << 1);
    /// SCSI commands of any kind.
    pub const SYS_RAWIO: Self = Self(1 << 17);
    /// NVMe commands of any kind.
    pub const SYS_ADMIN: Self = Self(1 << 21);

    /// Changing the bounding set.
    const SETPCAP: Self = Self(1 << 8);

    /// Both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` is in it.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Takes all others from every set of the calling thread. The bounding set can be changed only by who may
    /// ([`Self::SETPCAP`]); who may not has nothing in it that another program could get, because of no_new_privs.
    pub(crate) fn keep_only(self) -> Result<()> {
        let permitted = calls::permitted()?;
        if Self(permitted).has(Self::SETPCAP) {
            for number in 0..u64::BITS {
                if !self.has(Self(1 << number)) && !calls::drop_from_bounding_set(number)? {
                    break;
                }
            }
        }
        calls::clear_ambient_set()?;
        let kept = permitted & self.0;
        calls::set_capabilities(kept)?;
        if calls::permitted()? != kept {
            return Err(Error::other("they are still there"));
        }
        Ok(())
    }
}
