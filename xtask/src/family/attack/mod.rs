//! What a hostile network, peer, local user or file tries against the built program, one module for each promise of
//! docs/internals/trust.md. Every case failed before the promise was kept.

mod asked;
mod claims;
mod contact;
mod flips;
mod fresh;
mod host;
mod names;
mod reload;
mod rights;
mod uid;

use anyhow::Result;

use crate::harness::{Cases, Context};

/// A module's prefix of case names, and the module.
type Part = (&'static str, fn(&Context, &mut Cases) -> Result<()>);

const PARTS: &[Part] = &[
    ("names", names::examine),
    ("rights", rights::examine),
    ("claims", claims::examine),
    ("asked", asked::examine),
    ("uid", uid::examine),
    ("reload", reload::examine),
    ("fresh", fresh::examine),
    ("contact", contact::examine),
    ("host", host::examine),
    ("flips", flips::examine),
];

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let prefixes: Vec<&str> = PARTS.iter().map(|(prefix, _)| *prefix).collect();
    for (prefix, part) in PARTS {
        if !cases.wants(prefix, &prefixes) {
            continue;
        }
        // A part that cannot be prepared fails alone: the other parts still run.
        if let Err(error) = part(context, cases) {
            cases.record(&format!("{prefix}-prepared"), Err(error), 0.0);
        }
    }
    Ok(())
}
