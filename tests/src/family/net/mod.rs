//! `net up`: two confined servers and applications, beside the kernel's TCP in a network namespace. What they may do is
//! read in /proc; drivers and `inet` are killed and stopped under load; applications lie; users err.

mod confinement;
mod deaths;
mod hostile;
mod mistakes;
mod place;
mod service;
mod wires;

use anyhow::Result;

use self::place::Net;
use crate::{Cases, Context};

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    if !steps::is_root() || crate::find_program("ip").is_none() {
        cases.check("not-root", || place::explains_what_is_missing(context));
        cases.note("all but not-root: they need root and ip");
        return Ok(());
    }
    cases.check("not-root", || place::explains_what_is_missing(context));
    service::examine(context, cases);
    confinement::examine(context, cases);
    deaths::examine(context, cases);
    hostile::examine(context, cases);
    wires::examine(context, cases);
    mistakes::examine(context, cases);
    Ok(())
}
