//! NVMe generic, `/dev/ng0n1`: one namespace (`include/uapi/linux/nvme_ioctl.h`). A command is an entry of a ring, its answer
//! an entry of the same ring; the ring is one of its own, since its entries are larger than the loop's.
//!
//! `command.rs`, `copy.rs`, `identify.rs` and `status.rs` are pure, `interview.rs` asks what the namespace is, `channel.rs` carries
//! the commands of one thread, `offload.rs` lets a controller copy by itself. Clauses are of the NVM Express Base and NVM Command Set Specifications, 1.4 and 2.0.

mod channel;
mod command;
mod copy;
mod identify;
mod interview;
mod offload;
mod status;

pub(crate) use channel::{NvmeChannel, QUEUE_MAX};
pub(crate) use interview::{head, interview};
pub use offload::NvmeCopy;
