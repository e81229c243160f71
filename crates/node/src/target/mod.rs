//! The target daemon: portals, sessions, logical units.
//!
//! One loop thread per core. A connection lives on one thread; a logical unit is attached on each. Shared between
//! threads are small structures, locked briefly: a unit's SCSI state, the list of sessions. Threads communicate by
//! mail.
//!
//! A module imports only modules of earlier lines:
//!
//! ```text
//! configuration   config allowance local_user media slots sync portals
//! units           usage, then lun, then login units
//! a session       handshake session state
//! between threads mail refusals, then copier sessions, then shared, then reload
//! a connection    context, then admission ahead copying, then tasks, then management, then connection
//! the whole       worker, then server
//! ```

mod admission;
mod ahead;
mod allowance;
mod config;
mod connection;
mod context;
mod copier;
mod copying;
mod handshake;
mod local_user;
mod login;
mod lun;
mod mail;
mod management;
mod media;
mod portals;
mod refusals;
mod reload;
mod server;
mod session;
mod sessions;
mod shared;
mod slots;
mod state;
mod sync;
mod tasks;
#[cfg(test)]
pub(crate) mod tests;
mod units;
mod usage;
mod worker;

pub use config::{
    Access, AclEntry, ChapAccount, Confine, Held, LocalUsers, LunConfig, NextIdentity, Peer, Sealing,
    ServeError, ServerConfig, TargetConfig,
};
pub use lun::{FormerUnit, LunState, LunStatus};
pub use reload::{Reloaded, Reloader};
pub use server::{Inherited, Server, ServerHandle, ServerStatus};
pub use sessions::{About, FormerPort, SessionStatus};
pub use usage::{Class, UsageStatus};
