//! TLS configuration: a target's certificate and key, an initiator's trusted ones. Records: `stream/tls.rs`.
//!
//! TLS 1.3 only, by rustls with aws-lc: AES-256-GCM before ChaCha20-Poly1305 before AES-128-GCM. TLS authenticates the
//! target to the initiator; the initiator authenticates by CHAP inside. No tickets are issued, because sessions are not
//! resumed.

use std::fmt::Display;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::UnbufferedServerConnection;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::stream::tls::End;

const CERTIFICATES_MAX: usize = 1024;
/// Bound of the bytes read from one file: more than `CERTIFICATES_MAX` certificates take.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Error)]
#[error("{}: {cause}", path.display())]
pub struct TlsFileError {
    pub path: PathBuf,
    pub cause: String,
}

fn failed(path: &Path, cause: &dyn Display) -> TlsFileError {
    TlsFileError { path: path.to_owned(), cause: cause.to_string() }
}

fn provider() -> Arc<CryptoProvider> {
    use aws_lc_rs::cipher_suite as suite;
    let suites = vec![
        suite::TLS13_AES_256_GCM_SHA384,
        suite::TLS13_CHACHA20_POLY1305_SHA256,
        suite::TLS13_AES_128_GCM_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites: suites, ..aws_lc_rs::default_provider() })
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsFileError> {
    let mut bytes = Zeroizing::new(Vec::new());
    let read = block::open_input(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| failed(path, &error))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFileError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .take(CERTIFICATES_MAX)
        .collect::<Result<_, _>>()
        .map_err(|error| failed(path, &error))?;
    if found.is_empty() {
        return Err(failed(path, &"it holds no certificate in PEM form"));
    }
    Ok(found)
}

#[derive(Clone, Debug)]
pub struct TlsIdentity {
    config: Arc<ServerConfig>,
    /// The first of the chain: the target's own certificate.
    certificate: CertificateDer<'static>,
}

impl TlsIdentity {
    /// Loads PEM files: the certificate followed by the intermediate ones up to its authority, and its private key.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsFileError> {
        Self::with_key(certificate, key, &read(key)?)
    }

    /// As [`Self::load`], with the content of the key file, which the caller has read and must wipe.
    pub fn with_key(certificate: &Path, key: &Path, pem: &[u8]) -> Result<Self, TlsFileError> {
        let chain = certificates(certificate, &read(certificate)?)?;
        let own = chain[0].clone();
        let private = PrivateKeyDer::from_pem_slice(pem).map_err(|error| failed(key, &error))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed(certificate, &error))?
            .with_no_client_auth()
            .with_single_cert(chain, private);
        let mut config = config.map_err(|error| failed(certificate, &error))?;
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), certificate: own })
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.certificate == other.certificate
    }

    pub(crate) fn end(&self) -> Result<End, Error> {
        UnbufferedServerConnection::new(Arc::clone(&self.config)).map(|server| End::Server(Box::new(server)))
    }
}

#[derive(Clone, Debug)]
pub struct TlsTrust {
    config: Arc<ClientConfig>,
}

impl TlsTrust {
    /// Loads a PEM file: certificates of authorities, or of the target itself.
    ///
    /// A target that presents a certificate of the file itself is trusted whatever names the certificate contains: the
    /// user has assigned it to this target. Any other certificate must chain to one of the file and name the host of
    /// the URL. None may have expired.
    pub fn load(path: &Path) -> Result<Self, TlsFileError> {
        Self::with_certificates(path, &read(path)?)
    }

    /// As [`Self::load`], with the content of the file, which the caller has read.
    pub fn with_certificates(path: &Path, pem: &[u8]) -> Result<Self, TlsFileError> {
        let trusted = certificates(path, pem)?;
        let mut roots = RootCertStore::empty();
        for certificate in &trusted {
            roots.add(certificate.clone()).map_err(|error| failed(path, &error))?;
        }
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider());
        let chains = chains.build().map_err(|error| failed(path, &error))?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed(path, &error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { chains, trusted }))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config) })
    }

    /// The client side of TLS, which expects a certificate for `host`, a name or an address.
    pub(crate) fn end(&self, host: &str) -> Result<End, String> {
        // Strips the zone of an IPv6 address.
        let host = host.split('%').next().unwrap_or(host);
        let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("{host}: {error}"))?;
        let client = UnbufferedClientConnection::new(Arc::clone(&self.config), name);
        client.map(|client| End::Client(Box::new(client))).map_err(|error| error.to_string())
    }
}

/// Verifies chains to the trusted certificates, and accepts the trusted certificates themselves.
#[derive(Debug)]
struct Verifier {
    chains: Arc<WebPkiServerVerifier>,
    trusted: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verdict =
            self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verdict {
            // rustls checks the validity period before the name and before the permitted uses.
            Err(Error::InvalidCertificate(cause))
                if self.trusted.contains(end_entity) && !is_about_time(&cause) =>
            {
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

fn is_about_time(cause: &CertificateError) -> bool {
    use CertificateError::{BadEncoding, Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(cause, BadEncoding | Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
}
