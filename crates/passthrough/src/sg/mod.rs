//! SCSI generic, `/dev/sg0`: version 3 of its interface (`include/scsi/sg.h`; "Linux SCSI generic HOWTO", sg v3).
//! Writing a header starts a command, reading a header takes a result; poll(2) reports available results.
//!
//! `header.rs` is the interface, `command.rs` and `answer.rs` are pure, `probe.rs` reads the properties of the
//! disk, `channel.rs` carries the commands of one thread.

mod answer;
mod channel;
mod command;
mod header;
mod probe;

pub(crate) use channel::{QUEUE_MAX, SgChannel};
pub(crate) use probe::{head, probe};
