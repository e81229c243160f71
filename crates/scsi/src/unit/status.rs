//! Readiness, capacity and power: TEST UNIT READY, REQUEST SENSE, READ CAPACITY, START STOP UNIT and similar commands.

use super::attention::MEDIUM_CHANGED;
use super::{Call, LogicalUnit, Stop};
use crate::media::Then;
use crate::{Media, MediaOp, Outcome, Sense, SenseKey, Step};

/// TEST UNIT READY: SPC-4 6.47. `permit` has checked the medium.
pub(super) fn test_unit_ready(_: &mut LogicalUnit, _: Call<'_>) -> Result<Step, Stop> {
    Ok(Step::Done(Outcome::good()))
}

/// REQUEST SENSE: SPC-4 6.39. Reports and clears a pending unit attention; without one, reports the state of the unit.
pub(super) fn run_request_sense(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let sense = match unit.nexus(call.nexus).take_attention() {
        Some((asc, ascq)) => Sense::new(SenseKey::UnitAttention, asc, ascq),
        None if !unit.loaded => Sense::NO_MEDIUM,
        None => Sense::NONE,
    };
    Ok(Step::Done(request_sense(call.cdb, sense)))
}

/// Sense data as data-in with GOOD. DESC of the CDB selects the format, not D_SENSE.
pub(crate) fn request_sense(cdb: &[u8], mut sense: Sense) -> Outcome {
    sense.descriptor = cdb.get(1).is_some_and(|byte| byte & 0x01 != 0);
    let mut data = sense.to_bytes();
    data.truncate(cdb.get(4).copied().unwrap_or(0).into());
    Outcome::data(data)
}

/// READ CAPACITY (10): SBC-3 5.14.
pub(super) fn read_capacity_10(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    // PMI is obsolete; without it LOGICAL BLOCK ADDRESS has no meaning (SBC-2 5.10.1).
    if call.cdb[8] & 0x01 == 0 && call.cdb[2..6] != [0; 4] {
        return Err(Sense::field_in_cdb(2, None).into());
    }
    let last = u32::try_from(unit.config.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    let mut data = Vec::with_capacity(8);
    data.extend(last.to_be_bytes());
    data.extend(unit.config.block_size.to_be_bytes());
    Ok(Step::Done(Outcome::data(data)))
}

/// READ CAPACITY (16): SBC-3 5.15.
pub(super) fn read_capacity_16(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let config = &unit.config;
    let mut data = vec![0; 32];
    data[..8].copy_from_slice(&config.blocks.saturating_sub(1).to_be_bytes());
    data[8..12].copy_from_slice(&config.block_size.to_be_bytes());
    // LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT; the lowest aligned LBA is 0.
    data[13] = (config.physical_block_size / config.block_size).trailing_zeros() as u8;
    // LBPME and LBPRZ.
    data[14] = if config.thin { 0xc0 } else { 0x00 };
    let allocation = u32::from_be_bytes([call.cdb[10], call.cdb[11], call.cdb[12], call.cdb[13]]);
    data.truncate(allocation as usize);
    Ok(Step::Done(Outcome::data(data)))
}

/// START STOP UNIT: SBC-3 5.20. Stopping only flushes, and power conditions have no effect, since the unit has no
/// motor. Only removable units eject and load.
pub(super) fn start_stop_unit(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let flags = call.cdb[4];
    let (power, no_flush, eject_or_load, start) =
        (flags >> 4, flags & 0x04 != 0, flags & 0x02 != 0, flags & 0x01 != 0);
    // A non-zero POWER CONDITION makes START and LOEJ ignored.
    if power != 0 {
        return Ok(Step::Done(Outcome::good()));
    }
    if eject_or_load && !unit.config.removable {
        return Err(Sense::field_in_cdb(4, Some(1)).into());
    }
    if eject_or_load && start != unit.loaded && unit.nexuses.iter().any(|nexus| nexus.prevent) {
        return Err(Sense::REMOVAL_PREVENTED.into());
    }
    match (eject_or_load, start) {
        (true, true) if !unit.loaded => {
            unit.loaded = true;
            unit.establish(Some(call.nexus), MEDIUM_CHANGED);
        }
        (_, false) if unit.loaded => {
            let blocks = unit.config.blocks;
            let then = if eject_or_load { Then::Eject } else { Then::Nothing };
            // NO_FLUSH requests not to write the cache. An eject must not lose accepted data, so it flushes regardless.
            if eject_or_load || !no_flush {
                return unit.media(Media { then, ..Media::new(MediaOp::Flush, 0, blocks) });
            }
        }
        (false, true) if !unit.loaded => return Err(Sense::NO_MEDIUM.into()),
        _ => {}
    }
    Ok(Step::Done(Outcome::good()))
}

/// PREVENT ALLOW MEDIUM REMOVAL: SBC-3 5.7. Kept per I_T nexus; PREVENT of any nexus prevents removal.
pub(super) fn prevent_allow(unit: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    let prevent = match call.cdb[4] & 0x03 {
        0b00 => false,
        0b01 => true,
        _ => return Err(Sense::field_in_cdb(4, Some(1)).into()),
    };
    unit.nexus(call.nexus).prevent = prevent;
    Ok(Step::Done(Outcome::good()))
}

/// SEND DIAGNOSTIC: SPC-4 6.42. Only the default self-test, which always passes.
pub(super) fn send_diagnostic(_: &mut LogicalUnit, call: Call<'_>) -> Result<Step, Stop> {
    if call.cdb[1] & 0xe0 != 0 {
        return Err(Sense::field_in_cdb(1, Some(7)).into());
    }
    if call.cdb[3..5] != [0, 0] {
        return Err(Sense::field_in_cdb(3, None).into());
    }
    Ok(Step::Done(Outcome::good()))
}
