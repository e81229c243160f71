//! Protection that was asked for and negotiated away by one flipped bit; commands of odd lengths.

use anyhow::Result;

use crate::harness::{Cases, Context};

pub(super) fn examine(_context: &Context, _cases: &mut Cases) -> Result<()> {
    Ok(())
}
