//! `nbd://host[:port]/name` and `nbd+unix:///name?socket=PATH` (`doc/uri.md` of the NetworkBlockDevice project).

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::limits::STRING_BYTES_MAX;

/// The TCP port that IANA assigned to NBD.
pub const PORT: u16 = 10809;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Host name or address without brackets, and TCP port.
    Tcp(String, u16),
    Unix(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    pub place: Place,
    pub export: String,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("'{uri}': {reason}; the forms are nbd://host[:port]/name and nbd+unix:///name?socket=PATH")]
pub struct UriError {
    pub uri: String,
    pub reason: &'static str,
}

impl Uri {
    /// Whether a URL has a scheme of the NBD URI document, including the schemes that [`Self::parse`] refuses.
    pub fn is_nbd(url: &str) -> bool {
        let scheme = url.split("://").next().unwrap_or_default();
        ["nbd", "nbds", "nbd+unix", "nbds+unix", "nbd+vsock", "nbds+vsock"].contains(&scheme)
    }

    /// Parses a URI; see [`UriError`] for the supported forms.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        Self::parts(text).map_err(|reason| UriError { uri: text.to_owned(), reason })
    }

    fn parts(text: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = text.split_once("://").ok_or("it has no scheme")?;
        match scheme {
            "nbd" | "nbd+unix" => {}
            "nbds" | "nbds+unix" | "nbds+vsock" => {
                return Err(
                    "TLS for NBD is not offered: reach the server through a tunnel (ssh -L, stunnel), or on its own host through nbd+unix",
                );
            }
            _ => return Err("this scheme is not known"),
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decoded(name).ok_or("the export's name is not text in percent encoding")?;
        if export.len() > STRING_BYTES_MAX || export.contains('\0') {
            return Err("the export's name is longer than 4096 bytes, or has a zero byte");
        }
        let mut socket = None;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("socket", path) => {
                    socket = Some(decoded(path).ok_or("the socket's path is not text in percent encoding")?);
                }
                _ => return Err("only the argument socket=PATH is known"),
            }
        }
        let place = match (scheme, socket) {
            ("nbd", None) => {
                let (host, port) = host_and_port(authority).ok_or("the host or port cannot be read")?;
                Place::Tcp(host, port)
            }
            ("nbd", Some(_)) => return Err("a socket belongs to nbd+unix"),
            (_, Some(_)) if !authority.is_empty() => return Err("nbd+unix has no host: three slashes"),
            (_, Some(path)) if !path.is_empty() && !path.contains('\0') => Place::Unix(path.into()),
            _ => return Err("nbd+unix needs ?socket=PATH"),
        };
        Ok(Self { place, export })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let export = encoded(&self.export);
        match &self.place {
            place @ Place::Tcp(..) if export.is_empty() => write!(f, "nbd://{place}"),
            place @ Place::Tcp(..) => write!(f, "nbd://{place}/{export}"),
            Place::Unix(path) => {
                write!(f, "nbd+unix:///{export}?socket={}", encoded(&path.to_string_lossy()))
            }
        }
    }
}

/// Decodes percent escapes (RFC 3986 section 2.1).
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return None;
            }
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:@".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn host_and_port(authority: &str) -> Option<(String, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        None | Some("") => PORT,
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
    };
    let host = host.replace("%25", "%");
    let plain = host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:%".contains(c));
    (!host.is_empty() && plain).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> Uri {
        Uri { place: Place::Tcp(host.into(), port), export: export.into() }
    }

    #[test]
    fn the_examples_of_the_uri_document() {
        for (text, uri) in [
            ("nbd://example.com/disk", tcp("example.com", PORT, "disk")),
            ("nbd://example.com:10810/disk", tcp("example.com", 10810, "disk")),
            ("nbd://example.com", tcp("example.com", PORT, "")),
            ("nbd://example.com/", tcp("example.com", PORT, "")),
            ("nbd://example.com//disk", tcp("example.com", PORT, "/disk")),
            ("nbd://example.com/hello%20world", tcp("example.com", PORT, "hello world")),
            ("nbd://[::1]:99/a", tcp("::1", 99, "a")),
            ("nbd://[fe80::1%25eth0]/", tcp("fe80::1%eth0", PORT, "")),
            (
                "nbd+unix:///disk?socket=sock",
                Uri { place: Place::Unix("sock".into()), export: "disk".into() },
            ),
            (
                "nbd+unix://?socket=/run/a%26b",
                Uri { place: Place::Unix("/run/a&b".into()), export: String::new() },
            ),
        ] {
            assert_eq!(Uri::parse(text).as_ref(), Ok(&uri), "{text}");
            assert!(Uri::is_nbd(text));
            assert_eq!(Uri::parse(&uri.to_string()), Ok(uri), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, reason) in [
            ("nbds://h/x", "TLS"),
            ("nbds+unix:///x?socket=s", "TLS"),
            ("nbd+vsock://1/x", "scheme"),
            ("nbd:///x", "host"),
            ("nbd://h:0/x", "port"),
            ("nbd://h:x/x", "port"),
            ("nbd://user@h/x", "host"),
            ("nbd://h/%zz", "percent"),
            ("nbd://h/%+1", "percent"),
            ("nbd://h/%ff", "percent"),
            ("nbd://h/%00", "zero byte"),
            ("nbd://h/x?socket=s", "nbd+unix"),
            ("nbd://h/x?tls-type=psk", "argument"),
            ("nbd+unix:///x", "socket=PATH"),
            ("nbd+unix://h/x?socket=s", "three slashes"),
        ] {
            let error = Uri::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
