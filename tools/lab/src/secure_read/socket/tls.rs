//! TLS 1.3 by rustls over the same connection, in the process of each side: requests and blocks are its records.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, Stream};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::initiator::{Receiver, Watched};
use super::target::Sender;
use crate::secure_read::credentials;
use crate::secure_read::shape::Reading;

/// Only AES-256-GCM, for the comparison with the default suite of sealed sessions.
fn provider() -> Arc<CryptoProvider> {
    let suites = vec![aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384];
    Arc::new(CryptoProvider { cipher_suites: suites, ..aws_lc_rs::default_provider() })
}

pub(super) struct TlsSender {
    reading: Reading,
    stored: Vec<u8>,
    connection: ServerConnection,
}

impl TlsSender {
    pub(super) fn new(reading: Reading, folder: &Path) -> io::Result<Self> {
        let certificate =
            CertificateDer::from_pem_file(credentials::certificate(folder)).map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_file(credentials::key(folder)).map_err(io::Error::other)?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(io::Error::other)?;
        let connection = ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
        Ok(Self { reading, stored: reading.contents(), connection })
    }
}

impl Sender for TlsSender {
    fn request(&mut self, socket: &mut TcpStream, request: &mut [u8]) -> io::Result<()> {
        Stream::new(&mut self.connection, socket).read_exact(request)
    }

    fn send(&mut self, socket: &mut TcpStream, index: u64) -> io::Result<()> {
        Stream::new(&mut self.connection, socket).write_all(&self.stored[self.reading.range(index)])
    }
}

pub(super) struct TlsReceiver {
    watched: Watched,
    connection: ClientConnection,
}

impl TlsReceiver {
    pub(super) fn new(watched: Watched, folder: &Path) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        let certificate =
            CertificateDer::from_pem_file(credentials::certificate(folder)).map_err(io::Error::other)?;
        roots.add(certificate).map_err(io::Error::other)?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(credentials::NAME).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        Ok(Self { watched, connection })
    }
}

impl Receiver for TlsReceiver {
    fn send_request(&mut self, request: &[u8]) -> io::Result<()> {
        Stream::new(&mut self.connection, &mut self.watched).write_all(request)
    }

    fn receive(&mut self, block: &mut [u8]) -> io::Result<Duration> {
        // Opening takes place inside this call and cannot be measured separately.
        Stream::new(&mut self.connection, &mut self.watched).read_exact(block)?;
        Ok(Duration::ZERO)
    }

    fn watched(&mut self) -> &mut Watched {
        &mut self.watched
    }
}
