//! TCP/IP in two confined processes: `inet`, the protocol server, and `nic`, the driver of one network interface; with
//! the supervisor that starts them again, and the library by which an application uses them.
//!
//! Read `docs/internals/net.md` first: who may touch which memory, and in which order things happen.
//!
//! - [`slot`], [`layout`]: what the processes write into shared memory, and where it lies. Any content is valid memory;
//!   its reader checks it.
//! - [`control`]: messages with descriptors, off the data path.

pub mod control;
pub mod layout;
pub mod slot;
