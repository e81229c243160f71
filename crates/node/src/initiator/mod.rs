//! The initiator: a remote LUN as a medium, and discovery.
//!
//! `session.rs` is one connection (connect, log in, commands); `setup.rs` queries a disk; `endpoint.rs` turns block
//! requests into commands and survives lost connections; `trust.rs` decides which key each portal must prove;
//! `discover.rs` lists targets and LUNs; `remote_copy.rs` has a target copy between its LUNs.

mod ahead;
mod cache;
mod command;
mod discover;
mod distance;
mod endpoint;
mod enquire;
mod facts;
mod handshake;

mod medium;
mod options;
pub mod probe;
mod race;
mod refusal;
mod remote_copy;
mod route;
mod same;
mod session;
mod setup;
mod trust;
mod url;

pub use discover::{LunInfo, SessionFacts, Target, discover, list_luns};
pub use enquire::enquire;
pub use iscsi::params::DigestPolicy;
pub use medium::IscsiMedium;
pub use options::{Credentials, InitiatorSealing, Options};
pub use remote_copy::{RemoteCopyError, RemoteObserver, RemotePlan, RemoteReport, remote_copy};
pub use trust::{Announced, Login, Portal, Trust};
pub use url::{PORT, Url, UrlError, shown_user};
