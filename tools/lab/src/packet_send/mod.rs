//! `packet-send`: TCP/IP as separate processes that hand memory over, the experiment of Inoue, Taniguchi and Yamauchi
//! (2010).
//!
//! They built it on a microkernel of their own: an application, a protocol server and a driver pass areas by attaching
//! them to the next process; a send took 4.05 times as long as the kernel's of another system, mostly for three hops
//! between processes, and a round trip 1.25 times. Here the servers of crate `net` take their place, beside kernel
//! sockets with the same peer.
//!
//! `place.rs` joins namespaces, `peer.rs` and `near.rs` are the two ends, over `kernel.rs` or `ours.rs`; `rig.rs` runs the
//! servers as values, `waiting.rs` measures the switch between processes that hops are compared with.

mod kernel;
mod near;
mod ours;
mod peer;
mod place;
mod plan;
mod rig;
mod servers;
mod stages;
mod waiting;

pub(crate) use near::Near;
pub(crate) use peer::Peer;

use crate::{LabError, Observer, Options, Report};

pub(crate) fn run(options: &Options, observer: &mut dyn Observer) -> Result<Report, LabError> {
    let _ = (options, observer);
    todo!()
}
