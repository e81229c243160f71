//! Another user of the same machine at a listener on the loopback address.

use anyhow::Result;

use crate::harness::{Cases, Context};

pub(super) fn examine(_context: &Context, _cases: &mut Cases) -> Result<()> {
    Ok(())
}
