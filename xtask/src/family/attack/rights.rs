//! What a read-only and a masked initiator can do to a logical unit, and to the sessions of others.

use anyhow::Result;

use crate::harness::{Cases, Context};

pub(super) fn examine(_context: &Context, _cases: &mut Cases) -> Result<()> {
    Ok(())
}
