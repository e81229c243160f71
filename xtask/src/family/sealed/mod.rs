//! Sealed sessions of the program, attacked from outside: on the way, at the door, in masses, and by those who have a key.
//! docs/SEAL.md says what must hold.

mod attack;
mod canary;
pub(super) mod estate;
pub(super) mod flood;
pub(super) mod insider;
pub(super) mod outer;
mod secrets;
mod tamper;

use anyhow::Result;

use crate::harness::{Cases, Context};

/// A part of the family, and what the names of its cases begin with.
type PartOfFamily = (&'static str, fn(&Context, &mut Cases) -> Result<()>);

const PARTS: &[PartOfFamily] = &[
    ("tamper", tamper::examine),
    ("outer", outer::examine),
    ("insider", insider::examine),
    ("canary", canary::examine),
    ("keys", secrets::examine),
    ("flood", flood::examine),
];

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let prefixes: Vec<&str> = PARTS.iter().map(|(prefix, _)| *prefix).collect();
    for (prefix, part) in PARTS {
        if !cases.wants(prefix, &prefixes) {
            continue;
        }
        // What cannot be prepared fails by itself, and keeps nothing else from being looked at.
        if let Err(error) = part(context, cases) {
            cases.record(&format!("{prefix}-prepared"), Err(error), 0.0);
        }
    }
    Ok(())
}
