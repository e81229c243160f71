//! TCP.
#![allow(dead_code, reason = "until the engine calls it")]

mod congestion;
pub(crate) mod recovery;
mod rtt;
