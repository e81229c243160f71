//! SCSI generic, `/dev/sg0`: version 3 of its interface (`include/scsi/sg.h`; "Linux SCSI generic HOWTO", sg v3). A command
//! is a header that is written, its answer a header that is read; in between the device works, and poll(2) tells when one
//! is done.
//!
//! `header.rs` is the interface, `command.rs` and `answer.rs` are pure, `interview.rs` asks what the disk is, `channel.rs`
//! carries the commands of one thread.

mod answer;
mod channel;
mod command;
mod header;
mod interview;

pub(crate) use channel::{QUEUE_MAX, SgChannel};
pub(crate) use interview::{head, interview};
