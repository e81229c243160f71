//! Sealed sessions of the program under attack: in transit, during login, by floods, and by holders of a key.
//! docs/SEAL.md states the guarantees.

pub(super) mod attack;
mod canary;
pub(super) mod estate;
pub(super) mod flood;
pub(super) mod insider;
pub(super) mod outer;
mod secrets;
mod tamper;

use anyhow::Result;

use crate::{Cases, Context};

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    tamper::examine(context, cases);
    outer::examine(context, cases);
    insider::examine(context, cases);
    canary::examine(context, cases);
    secrets::examine(context, cases);
    flood::examine(context, cases);
    Ok(())
}
