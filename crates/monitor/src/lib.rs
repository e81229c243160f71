//! Observes iSCSI connections and names what limits them: from a capture, from samples of the kernel's state of a
//! socket, or from both. Read docs/internals/monitor.md first.
//!
//! ```text
//! capture::Reader -> Packet -> flow::Table -> Event -> command::Tracker  -> Command, Standing
//!                                                   -> model::Attribution -> Evidence -> model::judge -> Verdict
//! probe::Prober   -> Sample -> model::sampled                             -> Evidence
//! ```
//!
//! Everything except `probe` is a pure machine: bytes and timestamps come in, events and values come out. Nothing here
//! changes a connection, except `probe::tune`, which is called for `watch --tune` alone.

#![deny(unsafe_code)]

pub mod analysis;
pub mod capture;
pub mod command;
pub mod event;
pub mod flow;
pub mod followed;
pub mod limits;
pub mod model;
pub mod packet;
#[cfg(test)]
mod pdus;
pub mod probe;
pub mod record;
pub mod sample;
pub mod series;
mod spread;
pub mod view;

pub use event::{Event, Kind, Side};
pub use model::{Cause, Evidence, Verdict};
pub use sample::Sample;

/// Files that the variable CAPTURES names, separated by spaces, for the tests that compare captures of one's own. Without
/// the variable there are none.
#[cfg(test)]
fn named_captures() -> String {
    std::env::var("CAPTURES").unwrap_or_else(|_| {
        println!("CAPTURES names no file: nothing is compared");
        String::new()
    })
}
