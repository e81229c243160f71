//! Keys of both sides, made for one run and gone with its folder, or fixed: nothing that is read here is secret.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use seal::Identity;

use crate::{Attempted, LabError};

/// In the certificate.
pub(super) const NAME: &str = "localhost";

pub(super) fn certificate(folder: &Path) -> PathBuf {
    folder.join("certificate.pem")
}

pub(super) fn key(folder: &Path) -> PathBuf {
    folder.join("key.pem")
}

/// Makes a certificate for TLS on the loopback.
pub(super) fn make(folder: &Path) -> Result<(), LabError> {
    let doing = "make a certificate for the TLS rows";
    let names = vec![NAME.to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).attempted(doing)?;
    std::fs::write(certificate(folder), made.cert.pem()).attempted(doing)?;
    std::fs::write(key(folder), made.signing_key.serialize_pem()).attempted(doing)
}

/// The target's key pair in sealed sessions.
pub(super) fn target() -> Arc<Identity> {
    Arc::new(Identity::generate([7; 32]))
}

/// The initiator's.
pub(super) fn initiator() -> Arc<Identity> {
    Arc::new(Identity::generate([8; 32]))
}
