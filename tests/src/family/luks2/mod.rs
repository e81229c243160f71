//! Volumes of LUKS2 with cryptsetup as the peer: every byte that one of the two programs encrypted is read by the other.

mod copies;
mod desk;
mod durability;
mod header;
mod keys;
mod locks;
mod pairs;
mod prompt;
mod refusals;

use anyhow::Result;

use crate::{Cases, Context};

/// Cases of seconds, of which a sample has one.
const SLOW: (&str, usize) = ("slow", 1);

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    pairs::examine(context, cases);
    keys::examine(context, cases);
    locks::examine(context, cases);
    copies::examine(context, cases);
    prompt::examine(context, cases);
    refusals::examine(context, cases);
    durability::examine(context, cases);
    Ok(())
}
