//! Two engines, their drivers and the wire between them, in virtual time: everything follows from a seed.

pub(crate) mod device;
pub(crate) mod host;
pub(crate) mod simulation;
