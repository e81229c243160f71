//! First contact: replayed and garbled handshakes, floods from many addresses, idle connections.

use anyhow::Result;

use crate::harness::{Cases, Context};

pub(super) fn examine(_context: &Context, _cases: &mut Cases) -> Result<()> {
    Ok(())
}
