//! The initiator: a remote LUN as a medium, and discovery.
//!
//! `session.rs` is one connection's life (connect, log in, commands); `setup.rs` asks a disk what it is;
//! `endpoint.rs` turns block requests into commands and survives lost connections; `trust.rs` is
//! how the owner of an endpoint decides, for each connection, whose key must answer; `discover.rs` asks a portal
//! for its targets and a target for its LUNs; `remote_copy.rs` lets a target copy.

mod ahead;
mod cache;
mod command;
mod discover;
mod endpoint;
mod enquire;
mod facts;
mod handshake;
#[doc(hidden)]
pub mod interview;
mod medium;
mod options;
mod refusal;
mod remote_copy;
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
pub use trust::{Login, Portal, Trust};
pub use url::{PORT, Url, UrlError, shown_user};
