//! Errors of storage. The kind decides on the sense data and on retries; the text is for the user.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoErrorKind {
    /// The medium could not read or write (EIO, short transfer).
    Medium,
    NoSpace,
    ReadOnly,
    /// The request is beyond the end: the storage has shrunk.
    OutOfRange,
    Unsupported,
    /// An earlier flush failed: acknowledged writes may be lost, and further writes and flushes are refused.
    FlushFailed,
    /// The storage may have lost power since the last flush, and acknowledged writes with it. One flush reports this,
    /// once: data that is written again after the report and then flushed is durable.
    CacheLost,
    /// The storage is no longer the one that was opened: the device was removed, or another disk has its name now.
    Gone,
    /// The connection was lost and could not be restored in time.
    Unreachable,
    /// The peer refused the request or the new connection.
    Refused,
    Aborted,
    Other,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{text}")]
pub struct IoError {
    pub kind: IoErrorKind,
    pub text: String,
    /// First byte that could not be read or written, in the endpoint that completes the request, where it is known.
    pub offset: Option<u64>,
}

impl IoError {
    pub fn new(kind: IoErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), offset: None }
    }

    #[must_use]
    pub fn at(self, offset: Option<u64>) -> Self {
        Self { offset, ..self }
    }

    /// The error of a request that failed in two parts: that of the lower offset if both are known, otherwise `self`, the
    /// first one.
    #[must_use]
    pub fn or_lower(self, other: Self) -> Self {
        match (self.offset, other.offset) {
            (Some(own), Some(others)) if others < own => other,
            _ => self,
        }
    }
}

impl From<io::Error> for IoError {
    fn from(error: io::Error) -> Self {
        let kind = match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => IoErrorKind::NoSpace,
            Some(libc::EROFS | libc::EBADF | libc::EPERM | libc::EACCES) => IoErrorKind::ReadOnly,
            Some(libc::EOPNOTSUPP | libc::ENODEV) => IoErrorKind::Unsupported,
            Some(libc::EIO | libc::EREMOTEIO | libc::ENODATA | libc::EILSEQ) => IoErrorKind::Medium,
            Some(libc::ECANCELED) => IoErrorKind::Aborted,
            _ => IoErrorKind::Other,
        };
        Self::new(kind, error.to_string())
    }
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// The endpoint's words do not parse, or an option is not valid here.
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Missing(String),
    /// This user has no right to open the storage.
    #[error("{0}")]
    Denied(String),
    /// The file begins like an image of this format (QEMU's name), and formats are not interpreted.
    #[error("{} is a {format} image, whose content is not interpreted", path.display())]
    Format { path: PathBuf, format: &'static str },
    /// The LUN or export at this address is not the one of before.
    #[error("{0}")]
    Exchanged(String),
    /// The storage exists and must not be used: held, locked, the same as another endpoint.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Authentication(String),
    /// A name or secret of CHAP is not what the other side has, in either direction.
    #[error("{0}")]
    Chap(String),
    /// The answer to the sealed handshake does not verify, at the second attempt either: the pre-shared keys differ, or
    /// the answer was altered on the way.
    #[error("{0}")]
    Unverified(String),
    /// The messages of the handshake were altered on the way, at the second attempt too.
    #[error("{0}")]
    Damaged(String),
    /// A required protection was not negotiated: digests, or a login key that the peer must understand.
    #[error("{0}")]
    Unprotected(String),
    /// The storage, or the file with its header, has no header of a sealed volume, or both copies of it are damaged.
    #[error("{0}")]
    NoHeader(String),
    /// A sealed volume and its freshness file are not of one state.
    #[error("{0}")]
    OlderState(String),
    /// The freshness file is of another volume, or of this one before it got another key.
    #[error("{0}")]
    OtherFreshness(String),
    /// What a sealed volume holds does not verify with the key of its header.
    #[error("{0}")]
    OtherKey(String),
    /// No keyslot of the volume opens with what was given, or nothing was given.
    #[error("{0}")]
    Passphrase(String),
    /// The certificate chain of the peer does not end at a trusted certificate.
    #[error("{0}")]
    Certificate(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("{0}")]
    Failed(String),
}
