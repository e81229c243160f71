//! RESERVE and RELEASE of SPC-2 5.5.1, 7.21, 7.22: one holder for the whole unit. Persistent reservations are not
//! implemented.

use super::{Call, LogicalUnit, Stop};
use crate::{Outcome, Sense, Step};

/// RESERVE (6) and (10). `admit` has rejected nexuses other than the holder with RESERVATION CONFLICT; the holder may
/// reserve again.
pub(super) fn reserve(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    check(call.cdb)?;
    unit.reservation = Some(call.nexus);
    Ok(Step::Done(Outcome::good()))
}

/// RELEASE (6) and (10). From a nexus other than the holder it succeeds without effect (SPC-2 7.16.1).
pub(super) fn release(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    check(call.cdb)?;
    if unit.reservation == Some(call.nexus) {
        unit.reservation = None;
    }
    Ok(Step::Done(Outcome::good()))
}

/// Rejects third-party reservations, extents and parameter lists.
fn check(cdb: &[u8]) -> Result<(), Stop> {
    for bit in [4, 1, 0] {
        if cdb[1] & (1 << bit) != 0 {
            return Err(Sense::field_in_cdb(1, Some(bit)).into());
        }
    }
    if cdb.first().is_some_and(|code| code >> 5 == 2) && cdb[7..9] != [0, 0] {
        return Err(Sense::field_in_cdb(7, None).into());
    }
    Ok(())
}
