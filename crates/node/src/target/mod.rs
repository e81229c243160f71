//! The target daemon: portals, sessions, logical units.
//!
//! One loop thread per core. A connection lives on one thread; a logical unit is attached on each. What threads
//! share is small and locked briefly: a unit's SCSI state, the list of sessions. They talk by mail.

mod ahead;
mod allowance;
mod config;
mod connection;
mod copier;
mod copying;
mod defects;
mod handshake;
mod local_user;
mod login;
mod lun;
mod mail;
mod management;
mod media;
mod refusals;
mod reload;
mod server;
mod sessions;
mod slots;
mod sync;
mod worker;

pub use config::{
    Access, AclEntry, ChapAccount, Held, LocalUsers, LunConfig, Peer, Sealing, ServeError, ServerConfig,
    TargetConfig,
};
pub use reload::{Reloaded, Reloader};
pub use server::{Confine, Server, ServerHandle};
pub use sessions::SessionStatus;
