//! TCP/IP in two confined processes: `inet`, the protocol server, and `nic`, the driver of one network interface; with
//! the supervisor that starts them again, and the library by which an application uses them.
//!
//! Read `docs/internals/net.md` first: who may touch which memory, and in which order things happen.
//!
//! - [`slot`], [`layout`]: what the processes write into shared memory, and where it lies. Any content is valid memory;
//!   its reader checks it.
//! - [`nic`]: the driver.
//! - [`server`]: `inet` without its process; [`socket`]: the library of applications.
//! - [`process`]: both as processes.
//! - [`supervisor`]: starts them, and starts them again.
//! - [`wait`]: how their loops wait.
//! - [`control`], [`control_socket`]: messages with descriptors, off the data path; [`socket_file`]: where they are listened for.

pub mod control;
pub mod control_socket;
pub mod layout;
pub mod nic;
pub mod process;
pub mod server;
pub mod slot;
pub mod socket;
pub mod socket_file;
pub mod supervisor;
pub mod wait;
