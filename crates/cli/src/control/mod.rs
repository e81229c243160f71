//! The control socket of a process: one request and one response, each a line of JSON.
//!
//! `serve` listens on `DIRECTORY/serve-PID.sock` ([`listen`]); `status` and `ctl` find the sockets and ask
//! ([`client`]). A socket has mode 0600, and its process checks that the peer's user is its own or root.

pub(crate) mod client;
pub(crate) mod listen;

use std::io::{self, Read};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::sys;

/// Bound of a request, in bytes with its newline.
pub(crate) const REQUEST_BYTES_MAX: usize = 64 << 10;
/// The directory of root, and of services with `RuntimeDirectory=hikyaku`.
const SYSTEM_DIRECTORY: &str = "/run/hikyaku";
const SUFFIX: &str = ".sock";

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Request {
    // Braces, because unit variants would accept unknown fields.
    Status {},
    Reload {},
    Drain {},
    /// Offers storage as a further LUN until the next reload of the configuration.
    AddLun {
        /// `None`: the only target.
        target: Option<String>,
        lun: u16,
        endpoint: String,
    },
    RemoveLun {
        target: Option<String>,
        lun: u16,
    },
    /// Takes over the present sizes of the storage of all LUNs.
    ResizeLuns {},
    EndSession {
        tsih: u16,
    },
    /// Changes the rate limit of a copy.
    SetRate {
        /// `None`: no limit.
        bytes_per_s: Option<NonZeroU64>,
    },
}

impl Request {
    /// Parses a line. `Err`: the reason, for the peer.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        if line.len() > REQUEST_BYTES_MAX {
            return Err(format!("a request has at most {REQUEST_BYTES_MAX} bytes"));
        }
        serde_json::from_slice(line).map_err(|error| error.to_string())
    }
}

/// Directory of this process's socket: that of the service manager, that of the login session, or root's. `None`: this
/// user has none.
pub(crate) fn directory() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The service manager separates several directories by colons.
    let of_service = std::env::var("RUNTIME_DIRECTORY").ok();
    let of_service = of_service.and_then(|list| list.split(':').next().map(PathBuf::from));
    of_service
        .filter(|path| path.is_absolute())
        .or_else(|| absolute("XDG_RUNTIME_DIR").map(|base| base.join("hikyaku")))
        .or_else(|| sys::is_root().then(|| SYSTEM_DIRECTORY.into()))
}

/// Directories in which `status` and `ctl` look: this user's, the system's, and for root those of all users.
fn directories() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = directory().into_iter().collect();
    all.push(SYSTEM_DIRECTORY.into());
    if sys::is_root() {
        let users = std::fs::read_dir("/run/user").into_iter().flatten().flatten();
        all.extend(users.map(|user| user.path().join("hikyaku")));
    }
    all.sort();
    all.dedup();
    all
}

/// The command and PID in the name of a socket.
fn parse_name(path: &Path) -> Option<(&str, u32)> {
    let (command, pid) = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.rsplit_once('-')?;
    Some((command, pid.parse().ok()?))
}

/// A stream that can be read until a moment.
struct Timed<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed_strictly() {
        let all = [
            (r#"{"request":"status"}"#, Request::Status {}),
            (r#"{"request":"end-session","tsih":7}"#, Request::EndSession { tsih: 7 }),
            (
                r#"{"request":"add-lun","target":null,"lun":3,"endpoint":"/a,ro"}"#,
                Request::AddLun { target: None, lun: 3, endpoint: "/a,ro".into() },
            ),
            (r#"{"request":"set-rate","bytes_per_s":null}"#, Request::SetRate { bytes_per_s: None }),
            (
                r#"{"request":"set-rate","bytes_per_s":1000}"#,
                Request::SetRate { bytes_per_s: NonZeroU64::new(1000) },
            ),
            (r#"{"request":"remove-lun","lun":0}"#, Request::RemoveLun { target: None, lun: 0 }),
        ];
        for (text, request) in all {
            assert_eq!(Request::parse(text.as_bytes()).as_ref(), Ok(&request), "{text}");
            let again = serde_json::to_string(&request).unwrap();
            assert_eq!(Request::parse(again.as_bytes()), Ok(request));
        }
        let long = format!(r#"{{"request":"status"{}}}"#, " ".repeat(REQUEST_BYTES_MAX));
        for text in [
            "",
            "{",
            "[]",
            r#"{"request":"stop"}"#,
            r#"{"request":"status","more":1}"#,
            r#"{"request":"end-session","tsih":70000}"#,
            r#"{"request":"end-session","tsih":7,"all":true}"#,
            r#"{"request":"remove-lun"}"#,
            r#"{"request":"set-rate","bytes_per_s":0}"#,
            r#"{"request":"set-rate","bytes_per_s":-1}"#,
            &long,
        ] {
            assert!(Request::parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(Request::parse(b"{\"request\":\"status\xff\"}").is_err());
    }

    #[test]
    fn names_of_sockets() {
        let name = |text| parse_name(Path::new(text));
        assert_eq!(name("/run/hikyaku/serve-17.sock"), Some(("serve", 17)));
        for other in ["/run/hikyaku", "serve.sock", "serve-x.sock", "serve-17", "serve-99999999999.sock"] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
