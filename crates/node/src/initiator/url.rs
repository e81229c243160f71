//! `iscsi://[user[%password]@]host[:port]/iqn/lun[?arg]`, libiscsi's syntax.

use std::fmt;
use std::net::Ipv6Addr;

use thiserror::Error;

use iscsi::chap::Secret;
use iscsi::name::IscsiName;

pub const PORT: u16 = 3260;

/// The address of a LUN, of a target (no LUN), or of a portal (neither).
#[derive(Clone, Debug)]
pub struct Url {
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// Host name or address, without brackets.
    pub host: String,
    pub port: u16,
    pub target: Option<String>,
    pub lun: Option<u16>,
    pub arguments: Vec<(String, String)>,
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("'{url}': {reason}; the form is iscsi://[user@]host[:port]/iqn.2026-11.example:name/0")]
pub struct UrlError {
    /// The URL without its password.
    pub url: String,
    pub reason: String,
}

impl Url {
    /// Parses a URL. Percent escapes are decoded in the user and the host; a `%` before the `@` that begins no escape
    /// separates user and password.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let wrong = |reason: &str| UrlError { url: scrub(text), reason: reason.into() };
        let rest = text.strip_prefix("iscsi://").ok_or_else(|| wrong("it does not begin with iscsi://"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = rest.splitn(3, '/');
        let authority = parts.next().unwrap_or_default();
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, authority),
        };
        let (user, password) = match login {
            None => (None, None),
            Some(login) => {
                let (user, password) = login.split_once('%').unwrap_or((login, ""));
                let password = Secret::new_weak(password.as_bytes()).ok();
                (Some(user.to_owned()), password)
            }
        };
        let (host, port) = split_port(address).ok_or_else(|| match address.parse::<Ipv6Addr>() {
            Ok(_) => wrong(&format!("an IPv6 address stands in brackets: [{address}]")),
            Err(_) => wrong("the host or port cannot be read"),
        })?;
        let target = parts.next().filter(|name| !name.is_empty());
        if let Some(name) = target {
            IscsiName::parse(name).map_err(|error| wrong(&error.to_string()))?;
        }
        if target.is_none() && parts.clone().any(|rest| !rest.is_empty()) {
            return Err(wrong("a LUN belongs to a target, whose name is missing"));
        }
        let lun = match parts.next().filter(|lun| !lun.is_empty()) {
            None => None,
            Some(lun) => {
                let number = lun.parse().ok().filter(|number| scsi::lun::to_wire(*number).is_some());
                Some(number.ok_or_else(|| match lun.strip_suffix('/') {
                    Some(_) => wrong("nothing follows the LUN, no / either"),
                    None => wrong("the LUN is not a number from 0 to 16383"),
                })?)
            }
        };
        let arguments = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        });
        let arguments = arguments.collect();
        let target = target.map(str::to_ascii_lowercase);
        Ok(Self { user, password, host, port, target, lun, arguments })
    }

    /// `host:port`, with brackets around an IPv6 address.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Url {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some(user) = &self.user {
            write!(f, "{}@", shown_user(user))?;
        }
        f.write_str(&self.address())?;
        if let Some(target) = &self.target {
            write!(f, "/{target}")?;
        }
        if let Some(lun) = self.lun {
            write!(f, "/{lun}")?;
        }
        Ok(())
    }
}

fn scrub(text: &str) -> String {
    let (login, rest) = text.rsplit_once('@').map_or((None, text), |(login, rest)| (Some(login), rest));
    // The text after the `?` may contain a misplaced password.
    let rest = rest.split('?').next().unwrap_or_default();
    let Some(login) = login else { return rest.to_owned() };
    let (head, user) = login.split_at(login.find("://").map_or(0, |at| at + "://".len()));
    let user = user.split('%').next().unwrap_or_default();
    format!("{head}{}@{rest}", shown_user(user))
}

/// A CHAP name of a URL in a form that may be displayed: text after the first `:` may be a password, as in other URLs,
/// unless the name is an iSCSI name.
#[must_use]
pub fn shown_user(user: &str) -> String {
    let lower = user.to_ascii_lowercase();
    match user.split_once(':') {
        Some((name, _)) if !["iqn.", "eui.", "naa."].iter().any(|kind| lower.starts_with(kind)) => {
            format!("{name}:***")
        }
        _ => user.to_owned(),
    }
}

fn split_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = if let Some(rest) = address.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else {
        match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        }
    };
    let port = match port {
        None => PORT,
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
    };
    let host = host.replace("%25", "%");
    let plain = host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:%".contains(c));
    (!host.is_empty() && plain).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_url() {
        let url = Url::parse("iscsi://me%secret@host:3261/iqn.2026-11.example:disk/7?header_digest=crc32c")
            .unwrap();
        assert_eq!(url.user.as_deref(), Some("me"));
        assert!(url.password.as_ref().unwrap().same_as(&Secret::new_weak(b"secret").unwrap()));
        assert_eq!((url.host.as_str(), url.port, url.lun), ("host", 3261, Some(7)));
        assert_eq!(url.target.as_deref(), Some("iqn.2026-11.example:disk"));
        assert_eq!(url.arguments, [("header_digest".to_owned(), "crc32c".to_owned())]);
        assert_eq!(url.to_string(), "iscsi://me@host:3261/iqn.2026-11.example:disk/7");
        let url = Url::parse("iscsi://[fe80::1%25eth0]").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.target), ("fe80::1%eth0", 3260, None));
        assert_eq!(Url::parse("iscsi://[::1]:99/").unwrap().address(), "[::1]:99");
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for text in [
            "http://x",
            "iscsi://",
            "iscsi://u%hunter2@h:0/iqn.2026-11.example:a/0",
            "iscsi://h:x",
            "iscsi://h/notaname/0",
            "iscsi://h//5",
            "iscsi://h/iqn.2026-11.example:a/16384",
            "iscsi://h/iqn.2026-11.example:a/x",
            "iscsi://a b/",
            "iscsi://[::1/",
            "iscsi://u:hunter2@h/notaname/0",
            "ISCSI://u:hunter2@h/iqn.2026-11.example:a/0",
            "iscsi://h/notaname/0?foo=hunter2",
        ] {
            let error = Url::parse(text).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let error = Url::parse("iscsi://fe80::1/iqn.2026-11.example:a/0").unwrap_err();
        assert!(error.reason.ends_with("in brackets: [fe80::1]"), "{error}");
        let url = Url::parse("iscsi://u:hunter2@h/iqn.2026-11.example:a/0").unwrap();
        assert_eq!(url.to_string(), "iscsi://u:***@h:3260/iqn.2026-11.example:a/0");
        assert_eq!(url.user.as_deref(), Some("u:hunter2"));
    }
}
