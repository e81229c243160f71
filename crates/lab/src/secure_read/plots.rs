//! Figures.

use super::{Bench, Measured};
use crate::LabError;

pub(super) fn all(_table: &[Measured], _bench: &Bench) -> Result<Vec<(String, String)>, LabError> {
    Ok(Vec::new())
}
