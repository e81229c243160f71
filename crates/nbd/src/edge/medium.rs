//! An export as a medium that threads share. Each thread attaches through a connection of its own.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use block::remote::WriteCache;
use block::{Endpoint, Medium, OpenError};
use io::Io;

use super::connection::Address;
use super::endpoint;
use super::status::Subject;
use crate::uri::{Place, Uri};

/// An export of an NBD server. Without NBD_FLAG_CAN_MULTI_CONN a server gives no guarantee about several connections,
/// and many servers accept only one: attach such an export on one thread only.
#[derive(Clone, Debug)]
pub struct NbdMedium {
    pub(super) uri: Uri,
    pub(super) timeout: Duration,
    pub(super) read_only: bool,
    pub(super) cache: Arc<WriteCache>,
}

impl NbdMedium {
    /// The export that `uri` names. A request fails if no request completes for `timeout`, lost connections included.
    pub fn new(uri: Uri, timeout: Duration, read_only: bool) -> Self {
        Self { uri, timeout, read_only, cache: Arc::default() }
    }

    /// The addresses of the server; never empty.
    pub(super) fn addresses(&self) -> Result<Vec<Address>, OpenError> {
        let (host, port) = match &self.uri.place {
            Place::Unix(path) => return Ok(vec![Address::Unix(path.clone())]),
            Place::Tcp(host, port) => (host.as_str(), *port),
        };
        let unreachable = |text: String| OpenError::Unreachable(format!("{}: {text}", self.uri));
        let found = (host, port).to_socket_addrs();
        let found = found.map_err(|error| unreachable(format!("looking up {host}: {error}")))?;
        let found: Vec<_> = found.map(Address::Tcp).collect();
        if found.is_empty() { Err(unreachable(format!("{host} has no address"))) } else { Ok(found) }
    }
}

impl Medium for NbdMedium {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        Ok(Box::new(endpoint::open(io, self, Subject::Allocation, 0..u64::MAX)?))
    }

    fn name(&self) -> String {
        self.uri.to_string()
    }
}
