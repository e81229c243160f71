//! Keys of both sides, created for one run and removed with its directory, or fixed: no data of the experiment is
//! secret.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use seal::Identity;

use crate::{Attempted, LabError};

/// Name in the certificate.
pub(super) const NAME: &str = "localhost";

pub(super) fn certificate(folder: &Path) -> PathBuf {
    folder.join("certificate.pem")
}

pub(super) fn key(folder: &Path) -> PathBuf {
    folder.join("key.pem")
}

/// Creates a certificate for TLS on the loopback interface.
pub(super) fn make(folder: &Path) -> Result<(), LabError> {
    let doing = "make a certificate for the TLS rows";
    let names = vec![NAME.to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).attempted(doing)?;
    std::fs::write(certificate(folder), made.cert.pem()).attempted(doing)?;
    std::fs::write(key(folder), made.signing_key.serialize_pem()).attempted(doing)
}

pub(super) fn target() -> Arc<Identity> {
    Arc::new(Identity::generate([7; 32]))
}

pub(super) fn initiator() -> Arc<Identity> {
    Arc::new(Identity::generate([8; 32]))
}
