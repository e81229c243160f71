//! Copies through a relay that flips random bits, login included.

use anyhow::Result;

use crate::harness::{Cases, Context};

pub(super) fn examine(_context: &Context, _cases: &mut Cases) -> Result<()> {
    Ok(())
}
