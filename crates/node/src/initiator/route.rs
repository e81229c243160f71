//! The address of the next session: one of the URL's host, or that of the last redirection.

use std::net::SocketAddr;

use block::remote::Addresses;

use super::options::resolve_redirect;

const REDIRECTS_MAX: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Addresses of the URL's host, used again after a redirection fails.
    home: Addresses<SocketAddr>,
    /// Addresses of the redirection being followed.
    away: Option<Addresses<SocketAddr>>,
    redirects: u32,
    /// Target of the last redirection, as received.
    redirected: Option<String>,
}

impl Route {
    /// Routes to `home`, which must not be empty.
    pub(super) fn new(home: Vec<SocketAddr>) -> Self {
        Self { home: Addresses::new(home), away: None, redirects: 0, redirected: None }
    }

    pub(super) fn address(&self) -> SocketAddr {
        *self.away.as_ref().unwrap_or(&self.home).current()
    }

    pub(super) fn all(&self) -> Vec<SocketAddr> {
        [self.home.all(), self.away.as_ref().unwrap_or(&self.home).all()].concat()
    }

    pub(super) fn count(&self) -> usize {
        self.home.all().len() + self.away.as_ref().map_or(0, |away| away.all().len())
    }

    /// `host:port` of the redirection being followed, if any.
    pub(super) fn redirected(&self) -> Option<&str> {
        self.redirected.as_deref()
    }

    pub(super) fn has_untried(&self) -> bool {
        self.home.has_untried() || self.away.as_ref().is_some_and(Addresses::has_untried)
    }

    /// The next address of the redirection being followed; after its last one, of the URL's host.
    pub(super) fn next_address(&mut self) -> bool {
        if self.away.as_mut().is_some_and(Addresses::next_address) {
            return true;
        }
        self.return_home();
        self.home.next_address()
    }

    /// Follows a redirection to `host:port,tag`. False: the name does not resolve, or there were too many.
    pub(super) fn redirect(&mut self, to: &str) -> bool {
        self.redirects += 1;
        let found = resolve_redirect(to);
        self.redirected = to.split(',').next().map(str::to_owned);
        if self.redirects > REDIRECTS_MAX || found.is_empty() {
            return false;
        }
        self.away = Some(Addresses::new(found));
        true
    }

    /// After a lost session: back to the URL's host if a redirection was followed.
    pub(super) fn on_lost(&mut self) {
        self.return_home();
    }

    fn return_home(&mut self) {
        (self.away, self.redirects, self.redirected) = (None, 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_redirection_that_fails_leads_to_the_next_address_of_the_host() {
        let mut route = Route::new(vec![at(1), at(2)]);
        assert!(route.redirect("127.0.0.1:9,1"));
        assert_eq!((route.address(), route.redirected(), route.count()), (at(9), Some("127.0.0.1:9"), 3));
        assert!(route.has_untried() && route.next_address());
        assert_eq!((route.address(), route.redirected(), route.count()), (at(2), None, 2));
        assert!(!route.has_untried() && !route.next_address());
        assert_eq!(route.address(), at(1), "in turn");
    }

    #[test]
    fn redirections_are_bounded_for_each_address() {
        let mut route = Route::new(vec![at(1), at(2)]);
        for _ in 0..2 {
            for _ in 0..REDIRECTS_MAX {
                assert!(route.redirect("127.0.0.1:9,1"));
            }
            assert!(!route.redirect("127.0.0.1:9,1"));
            route.next_address();
        }
    }

    #[test]
    fn a_lost_session_leads_back_to_the_address_that_redirected() {
        let mut route = Route::new(vec![at(1)]);
        assert!(route.redirect("127.0.0.1:9,1"));
        route.on_lost();
        assert_eq!((route.address(), route.all(), route.redirected()), (at(1), vec![at(1), at(1)], None));
    }
}
