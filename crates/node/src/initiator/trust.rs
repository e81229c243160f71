//! Whose key a portal must prove. The decision is made for each connection anew, by the address that it goes to and before
//! a byte is sent: a name may resolve to other addresses than before, and a redirection leads anywhere.

use std::fmt;
use std::net::SocketAddr;

use block::OpenError;

use super::options::InitiatorSealing;
use crate::sealing::Protection;

/// Where a connection is about to be made.
#[derive(Clone, Copy, Debug)]
pub struct Portal<'a> {
    /// The address.
    pub address: SocketAddr,
    /// Every address that the URL's host has, and that the last redirection named.
    pub addresses: &'a [SocketAddr],
    /// `host:port` as a target named it that redirected the login.
    pub redirected: Option<&'a str>,
}

/// A login that has succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Login {
    /// Where.
    pub address: SocketAddr,
    /// What protects the session.
    pub protection: Protection,
}

/// Decides whether and under which key the sessions of one URL are sealed.
pub trait Trust: fmt::Debug + Send + Sync {
    /// How a session there is sealed; `None` for not at all. An error ends the attempt, and nothing is sent.
    fn sealing(&self, portal: &Portal<'_>) -> Result<Option<InitiatorSealing>, OpenError>;

    /// A session has begun. Called from the event loop, so it must not wait.
    fn on_login(&self, login: &Login);
}
