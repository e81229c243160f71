//! Attacks by a hostile network, peer, local user or file on the built program, one module for each promise of
//! docs/internals/trust.md. Every case failed before the promise was implemented.

mod asked;
mod claims;
mod contact;
mod flips;
mod fresh;
mod host;
pub(super) mod names;
mod reload;
mod rights;
mod rotate;
mod storage;
mod uid;

use anyhow::Result;

use crate::{Cases, Context};

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    names::examine(context, cases);
    rights::examine(context, cases);
    claims::examine(context, cases);
    asked::examine(context, cases);
    uid::examine(context, cases);
    reload::examine(context, cases);
    rotate::examine(context, cases);
    fresh::examine(context, cases);
    contact::examine(context, cases);
    host::examine(context, cases);
    storage::examine(context, cases);
    flips::examine(context, cases);
    Ok(())
}
