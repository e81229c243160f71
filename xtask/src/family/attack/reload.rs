//! Keys, users and LUNs that are taken away while sessions live; configurations that are broken when SIGHUP comes.

use anyhow::Result;

use crate::harness::{Cases, Context};

pub(super) fn examine(_context: &Context, _cases: &mut Cases) -> Result<()> {
    Ok(())
}
