//! Which back end a loop gets: io_uring where it works, the portable one elsewhere, or the one that the
//! environment names.

use std::io;
use std::sync::Once;

use crate::portable::Portable;
use crate::uring::Uring;
use crate::{Backend, SUBMISSIONS_MAX};

/// The environment variable that forces a back end: `portable` or `uring`.
pub(crate) const VARIABLE: &str = "HIKYAKU_IO";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Uring,
    Portable,
}

/// What [`VARIABLE`] says. `None`: whatever works.
pub(crate) fn forced() -> io::Result<Option<Kind>> {
    match std::env::var_os(VARIABLE) {
        None => Ok(None),
        Some(text) => parse(&text.to_string_lossy()),
    }
}

pub(crate) fn parse(text: &str) -> io::Result<Option<Kind>> {
    match text {
        "" => Ok(None),
        "uring" => Ok(Some(Kind::Uring)),
        "portable" => Ok(Some(Kind::Portable)),
        _ => {
            let text = format!("{VARIABLE}={text} is not a back end; choose portable or uring");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

pub(crate) fn open(forced: Option<Kind>) -> io::Result<Box<dyn Backend>> {
    let uring = match forced {
        Some(Kind::Portable) => Err("forced".to_owned()),
        _ => match Uring::new(SUBMISSIONS_MAX) {
            Ok(uring) => Ok(uring),
            Err(cause) if forced == Some(Kind::Uring) => {
                let text = format!(
                    "io_uring is not available here ({cause}) and {VARIABLE} forces it; allow it (sysctl \
                     kernel.io_uring_disabled=0, or a container profile that permits io_uring_setup)"
                );
                return Err(io::Error::new(cause.kind(), text));
            }
            Err(cause) => Err(format!("io_uring is not available: {cause}")),
        },
    };
    match uring {
        Ok(uring) => Ok(Box::new(uring)),
        Err(why) => {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| tracing::info!("I/O by epoll and threads ({why})"));
            Ok(Box::new(Portable::new()?))
        }
    }
}
