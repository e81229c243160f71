//! NVMe generic, `/dev/ng0n1`: one namespace (`include/uapi/linux/nvme_ioctl.h`). A command is an entry of an io_uring,
//! its result a completion of the same ring. The ring is separate from the loop's, because its entries are larger.
//!
//! `command.rs`, `copy.rs`, `identify.rs` and `status.rs` are pure, `probe.rs` reads the properties of the
//! namespace, `channel.rs` carries the commands of one thread, `offload.rs` makes a controller copy by itself. Clauses
//! are of the NVM Express Base and NVM Command Set Specifications, 1.4 and 2.0.

mod channel;
mod command;
mod copy;
mod identify;
mod offload;
mod probe;
mod status;

pub(crate) use channel::{NvmeChannel, QUEUE_MAX};
pub use offload::NvmeCopy;
pub(crate) use probe::{head, probe};
