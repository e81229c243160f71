use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use block::{LOCAL_OPTIONS, Location, Medium, OpenError, OpenOptions, Spec, SpecError};
use host::Node;
use nbd::{NbdMedium, Place};
use node::initiator::{Options, Url};

use crate::Failure;

/// The address of an endpoint: `block::Spec`, the parsed text, and how to open it (secrets, initiator name, protocol).
pub trait Address {
    /// The text in messages and journals, without secrets.
    fn text(&self) -> &str;

    /// The text as an argument of a command line, without secrets.
    fn words(&self) -> &str {
        self.text()
    }

    fn spec(&self) -> &Spec;

    /// For changes that leave [`Address::text`] as it is: the location becomes the snapshot's path; a resumed copy
    /// removes `create`.
    fn spec_mut(&mut self) -> &mut Spec;

    /// Opens the endpoint. Remote storage is contacted only when the medium is attached.
    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn Medium>, Failure>;

    /// The failure of an attempt to open the endpoint; an implementation may add what it finds out about the cause.
    fn failed(&self, attempted: &str, error: &OpenError) -> Failure {
        Failure::open(attempted, self.text(), error)
    }

    /// What to try if the file of this address, a source, does not exist.
    fn if_missing(&self) -> String {
        "check the name of the source".to_owned()
    }

    /// The NBD export of this address, read-only and without layers; `None`: no NBD URL. It may have dirty bitmaps.
    fn nbd(&self) -> Result<Option<NbdMedium>, Failure> {
        Ok(None)
    }

    /// Login options for the target of `url`, this address. Called when the target is to copy by itself.
    fn login(&self, _url: &Url) -> Result<Options, Failure> {
        Err(Failure::usage("log in to the target of", self.text(), "this program has no way to"))
    }
}

impl dyn Address + '_ {
    pub fn path(&self) -> Option<&Path> {
        match &self.spec().location {
            Location::File(path) => Some(path),
            _ => None,
        }
    }

    pub fn url(&self) -> Option<Url> {
        match &self.spec().location {
            Location::Url(url) => Url::parse(url).ok(),
            _ => None,
        }
    }

    /// Whether the endpoint is served under an address of this machine.
    pub(crate) fn is_served_here(&self) -> bool {
        let Location::Url(text) = &self.spec().location else { return false };
        let (host, port) = match (Url::parse(text), nbd::Uri::parse(text).map(|uri| uri.place)) {
            (Ok(url), _) => (url.host, url.port),
            (_, Ok(Place::Tcp(host, port))) => (host, port),
            (_, Ok(Place::Unix(_))) => return true,
            _ => return false,
        };
        // A socket can be bound to addresses of this machine only.
        let is_own = |address: SocketAddr| UdpSocket::bind((address.ip(), 0)).is_ok();
        (host, port).to_socket_addrs().is_ok_and(|mut addresses| addresses.any(is_own))
    }

    pub fn is_stream(&self) -> bool {
        self.spec().location == Location::Stdio
    }

    pub fn creates(&self) -> bool {
        creates(self.spec())
    }

    /// The path of the device or file of this machine behind the address; for a stream it is `stream`, if that leads to
    /// one.
    pub(crate) fn place<'p>(&'p self, stream: &'p Path) -> Option<&'p Path> {
        if self.is_stream() { Some(stream).filter(|stream| is_storage(stream)) } else { self.path() }
    }

    /// The device or file of this machine behind the address, with `stream` as in `place`.
    pub(crate) fn node(&self, stream: &Path) -> Option<Node> {
        Node::of(self.place(stream)?)
    }
}

fn is_storage(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() || found.file_type().is_block_device())
}

pub(crate) fn creates(spec: &Spec) -> bool {
    spec.flag("create") == Ok(true)
}

#[derive(Debug)]
pub struct Local {
    text: String,
    spec: Spec,
}

impl Local {
    /// Parses text as on the command line: `disk.img`, `new.img,create,size=1G`, `null:1G`. URLs are refused.
    pub fn parse(words: &str) -> Result<Self, SpecError> {
        let spec = Spec::parse(words)?;
        if let Location::Url(_) = &spec.location {
            return Err(SpecError("a URL is no storage of this machine".to_owned()));
        }
        spec.only(LOCAL_OPTIONS)?;
        Ok(Self { text: words.to_owned(), spec })
    }

    /// An address that appears as `text` in messages and opens `spec`.
    pub(crate) fn named(text: &str, spec: Spec) -> Self {
        Self { text: text.to_owned(), spec }
    }
}

impl Address for Local {
    fn text(&self) -> &str {
        &self.text
    }

    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn spec_mut(&mut self) -> &mut Spec {
        &mut self.spec
    }

    fn open(&self, options: &OpenOptions) -> Result<Arc<dyn Medium>, Failure> {
        let attempted = if options.writable { "open for writing" } else { "open" };
        block::open(&self.spec, options).map_err(|error| self.failed(attempted, &error))
    }
}
