//! Sockets that listen, and which of them a SYN is for.

use zerocopy::FromZeros;

use crate::chain::Chain;
use crate::{Endpoint, Options, Record};

#[derive(Clone, Copy, Debug, FromZeros)]
#[repr(C)]
pub(crate) struct Listener {
    pub(crate) generation: u32,
    pub(crate) client: u32,
    pub(crate) local: Endpoint,
    pub(crate) backlog: u32,
    pub(crate) is_open: bool,
    pub(crate) options: Options,
    /// Established connections that wait for `accept`.
    pub(crate) queue: Chain,
    /// Connections in SYN-RECEIVED.
    pub(crate) half_open: u32,
    /// `Incoming` events that the client has not had yet.
    pub(crate) incoming: u32,
}

impl Record for Listener {}

impl Listener {
    /// How well a connection to `local` fits, if it does: the exact address fits better than any address.
    pub(crate) fn fits(&self, local: Endpoint) -> Option<u8> {
        if !self.is_open || self.local.port != local.port {
            return None;
        }
        if self.local.address == local.address {
            return Some(2);
        }
        let is_same_family = self.local.address.is_v4() == local.address.is_v4();
        (self.local.address.is_unspecified() && is_same_family).then_some(1)
    }

    /// A second listener on `local` would compete with this one.
    pub(crate) fn conflicts(&self, local: Endpoint) -> bool {
        self.is_open && self.local == local
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn an_unspecified_address_takes_its_own_family_and_yields_to_the_exact_one() {
        let at = |text: &str| Endpoint::from(text.parse::<SocketAddr>().unwrap());
        let fits = |listener: &str, local: &str| {
            let listener = Listener { is_open: true, local: at(listener), ..Listener::new_zeroed() };
            listener.fits(at(local))
        };
        assert_eq!(fits("0.0.0.0:80", "10.0.0.1:80"), Some(1));
        assert_eq!(fits("10.0.0.1:80", "10.0.0.1:80"), Some(2));
        assert_eq!(fits("10.0.0.2:80", "10.0.0.1:80"), None);
        assert_eq!(fits("0.0.0.0:81", "10.0.0.1:80"), None);
        assert_eq!(fits("[::]:80", "10.0.0.1:80"), None);
        assert_eq!(fits("0.0.0.0:80", "[fd00::1]:80"), None);
        assert_eq!(fits("[::]:80", "[fd00::1]:80"), Some(1));
    }
}
