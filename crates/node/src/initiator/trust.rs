//! The decision which key a portal must prove. It is made for each connection, by its address and before a byte is
//! sent: a name may resolve to different addresses over time, and a redirection may lead to any address.

use std::fmt;
use std::net::SocketAddr;

use block::OpenError;
use seal::PublicKey;

use super::options::InitiatorSealing;
use crate::sealing::Protection;

#[derive(Clone, Copy, Debug)]
pub struct Portal<'a> {
    pub address: SocketAddr,
    /// All addresses of the URL's host and of the last redirection.
    pub addresses: &'a [SocketAddr],
    /// `host:port` of the redirection being followed, as the target sent it.
    pub redirected: Option<&'a str>,
}

#[derive(Clone, Copy, Debug)]
pub struct Login {
    pub address: SocketAddr,
    pub protection: Protection,
    pub next_key: Announced,
}

/// What a target that has proven its key has said of its next key (docs/SEAL.md section 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announced {
    #[default]
    Nothing,
    /// It keeps its key.
    Kept,
    /// Its next key, of which it has proven the private half.
    Next(PublicKey),
}

/// Decides whether and under which key the sessions of one URL are sealed.
pub trait Trust: fmt::Debug + Send + Sync {
    /// How a session with `portal` is sealed; `None`: not sealed. An error ends the attempt, and no byte is sent.
    fn sealing(&self, portal: &Portal<'_>) -> Result<Option<InitiatorSealing>, OpenError>;

    /// Reports a login. Called from the event loop; must not block.
    fn on_login(&self, login: &Login);
}
