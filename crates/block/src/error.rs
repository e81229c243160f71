//! What can go wrong with storage, in few words that a target turns into sense and a person understands.

use std::io;

use thiserror::Error;

/// Classes of failure that someone acts on differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoErrorKind {
    /// The medium could not read or write (EIO, short transfer).
    Medium,
    /// No space left.
    NoSpace,
    /// Write to something read-only.
    ReadOnly,
    /// Beyond the end: the storage has shrunk.
    OutOfRange,
    /// The storage has no such ability.
    Unsupported,
    /// An earlier flush failed; what was acknowledged may be lost, and nothing more is accepted.
    FlushFailed,
    /// The storage may have lost power since the last flush, and with it writes that it had acknowledged. Told once,
    /// by a flush: what is written again from here on and then flushed is safe.
    CacheLost,
    /// The storage is not what was opened any more: the device has gone, or another disk took over its name.
    Gone,
    /// The peer is gone and did not come back in time.
    Unreachable,
    /// The peer refused us.
    Refused,
    /// Withdrawn before it was done.
    Aborted,
    /// Anything else.
    Other,
}

/// Why a request failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{text}")]
pub struct IoError {
    /// What to do about it.
    pub kind: IoErrorKind,
    /// The cause in words.
    pub text: String,
}

impl IoError {
    /// An error of `kind` with its cause in words.
    pub fn new(kind: IoErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
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
        Self { kind, text: error.to_string() }
    }
}

/// Why an endpoint could not be opened.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// The words of the endpoint are wrong.
    #[error("{0}")]
    Usage(String),
    /// It is not there.
    #[error("{0}")]
    Missing(String),
    /// Another one answers in its place than before.
    #[error("{0}")]
    Exchanged(String),
    /// It is there and may not be used: held, locked, interpreted format, same as another.
    #[error("{0}")]
    Refused(String),
    /// Login refused.
    #[error("{0}")]
    Authentication(String),
    /// What was exchanged before the login was altered on its way, again at the second attempt.
    #[error("{0}")]
    Damaged(String),
    /// Protection that was asked for was not agreed on: digests, or a key of the login that the peer must understand.
    #[error("{0}")]
    Unprotected(String),
    /// The peer's certificate does not lead to what we trust.
    #[error("{0}")]
    Certificate(String),
    /// Nothing answers.
    #[error("{0}")]
    Unreachable(String),
    /// The operating system says no.
    #[error("{0}")]
    Failed(String),
}
