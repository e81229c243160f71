//! Selects the back end of a loop: io_uring where it works, otherwise the portable one, or the environment's choice.

use std::io;
use std::sync::Once;

use crate::portable::Portable;
use crate::uring::Uring;
use crate::{Backend, SUBMISSIONS_MAX};

pub(crate) const VARIABLE: &str = "HIKYAKU_IO";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Uring,
    Portable,
}

/// The back end forced by [`VARIABLE`]. `None`: the first that works.
pub(crate) fn forced() -> io::Result<Option<Kind>> {
    std::env::var_os(VARIABLE).map_or(Ok(None), |text| parse(&text.to_string_lossy()))
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

/// What io_uring offers on this kernel, whatever `HIKYAKU_IO` forces: features by name; an error if a loop cannot use it.
pub fn uring_features() -> io::Result<Vec<(&'static str, bool)>> {
    Uring::new(SUBMISSIONS_MAX).map(|uring| uring.features())
}

pub(crate) fn open(forced: Option<Kind>) -> io::Result<Box<dyn Backend>> {
    let reason = match forced {
        Some(Kind::Portable) => "forced".to_owned(),
        _ => match Uring::new(SUBMISSIONS_MAX) {
            Ok(uring) => return Ok(Box::new(uring)),
            Err(cause) if forced == Some(Kind::Uring) => {
                let text = format!(
                    "io_uring is not available here ({cause}) and {VARIABLE} forces it; allow it (sysctl \
                     kernel.io_uring_disabled=0, or a container profile that permits io_uring_setup)"
                );
                return Err(io::Error::new(cause.kind(), text));
            }
            Err(cause) => format!("io_uring is not available: {cause}"),
        },
    };
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| tracing::info!("I/O by epoll and threads ({reason})"));
    Ok(Box::new(Portable::new()?))
}
