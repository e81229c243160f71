//! The address of the next session: one of the URL's host, or that of the last redirection.

use std::net::SocketAddr;

use block::remote::Addresses;

use super::options::resolve_redirect;

const REDIRECTS_MAX: u32 = 4;

pub(super) struct Route {
    addresses: Addresses<SocketAddr>,
    /// Addresses of the URL's host, used again after a redirection fails.
    home: Vec<SocketAddr>,
    redirects: u32,
    /// Target of the last redirection, as received.
    redirected: Option<String>,
}

impl Route {
    /// Routes to `home`, which must not be empty.
    pub(super) fn new(home: Vec<SocketAddr>) -> Self {
        Self { addresses: Addresses::new(home.clone()), home, redirects: 0, redirected: None }
    }

    pub(super) fn address(&self) -> SocketAddr {
        *self.addresses.current()
    }

    pub(super) fn all(&self) -> Vec<SocketAddr> {
        [&self.home[..], self.addresses.all()].concat()
    }

    /// `host:port` of the redirection being followed, if any.
    pub(super) fn redirected(&self) -> Option<&str> {
        self.redirected.as_deref()
    }

    pub(super) fn next_address(&mut self) -> bool {
        self.addresses.next_address()
    }

    /// Follows a redirection to `host:port,tag`. False: the name does not resolve, or there were too many.
    pub(super) fn redirect(&mut self, to: &str) -> bool {
        self.redirects += 1;
        let found = resolve_redirect(to);
        self.redirected = to.split(',').next().map(str::to_owned);
        if self.redirects > REDIRECTS_MAX || found.is_empty() {
            return false;
        }
        self.addresses = Addresses::new(found);
        true
    }

    /// After a lost session: back to the URL's host if a redirection was followed.
    pub(super) fn on_lost(&mut self) {
        if self.redirects > 0 {
            *self = Self::new(std::mem::take(&mut self.home));
        }
    }
}
