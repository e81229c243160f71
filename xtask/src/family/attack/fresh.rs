//! Keys of a live session: renewal by a fresh exchange, and what a thief of one generation can read.

use anyhow::Result;

use crate::harness::{Cases, Context};

pub(super) fn examine(_context: &Context, _cases: &mut Cases) -> Result<()> {
    Ok(())
}
