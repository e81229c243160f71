//! iSCSI names and target addresses (RFC 7143 §4.2.7, §13.8; RFC 3722 for the characters).
//!
//! Names arrive from peers in both roles and appear in logs, file names and terminals: the parser rejects a name with a
//! control character or a separator (open-iscsi's CVE-2026-44943 is such a name).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest iSCSI name, bytes (§4.2.7.1).
pub const NAME_LENGTH_MAX: usize = 223;
/// Longest host name in a target address, bytes (RFC 1035).
pub const HOST_LENGTH_MAX: usize = 253;
pub const PORT: u16 = 3260;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("iSCSI name longer than {NAME_LENGTH_MAX} bytes")]
    TooLong,
    /// The prefix is not `iqn.`, `eui.` or `naa.`, or `iqn.` has an empty rest.
    #[error("iSCSI name begins with neither iqn. nor eui. nor naa.")]
    UnknownType,
    #[error("character not permitted in an iSCSI name")]
    Character,
    /// `eui.` without 16, or `naa.` without 16 or 32 hexadecimal digits.
    #[error("wrong number of hexadecimal digits in an iSCSI name")]
    Digits,
}

/// A valid iSCSI name in lower case, so that equal names are equal bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IscsiName(String);

impl IscsiName {
    /// Checks and normalises a name. The date of an `iqn.` name is not checked, and the underscore is permitted: such
    /// names are in use and cause no harm.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        if name.len() > NAME_LENGTH_MAX {
            return Err(NameError::TooLong);
        }
        let name = name.to_lowercase();
        // The lower-case form can be longer: İ becomes i and a combining dot.
        if name.len() > NAME_LENGTH_MAX {
            return Err(NameError::TooLong);
        }
        let permitted = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | ':' | '_');
        let hexadecimal = |digits: &str, lengths: &[usize]| {
            lengths.contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        match name.split_at_checked(4) {
            Some(("iqn.", rest)) if !rest.is_empty() => {
                if !rest.chars().all(permitted) {
                    return Err(NameError::Character);
                }
            }
            Some(("eui.", rest)) => {
                if !hexadecimal(rest, &[16]) {
                    return Err(NameError::Digits);
                }
            }
            Some(("naa.", rest)) => {
                if !hexadecimal(rest, &[16, 32]) {
                    return Err(NameError::Digits);
                }
            }
            _ => return Err(NameError::UnknownType),
        }
        Ok(Self(name))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for IscsiName {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::parse(name)
    }
}

impl AsRef<str> for IscsiName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// An IP address; IPv6 is displayed in brackets.
    Ip(IpAddr),
    /// A name to resolve: letters, digits, minus, dot and underscore, at most [`HOST_LENGTH_MAX`] bytes.
    Name(String),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(address)) => address.fmt(f),
            Self::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("malformed host in a target address")]
    Host,
    #[error("malformed port in a target address")]
    Port,
    #[error("malformed portal group tag in a target address")]
    PortalGroupTag,
}

/// A target address, `host[:port][,portal group tag]` (§13.8).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TargetAddress {
    pub host: Host,
    pub port: u16,
    /// Portal group tag: present in SendTargets responses, absent in a redirection.
    pub portal_group_tag: Option<u16>,
}

impl TargetAddress {
    /// Parses an address from an untrusted target. An IPv6 address must be in brackets and has no scope.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let (text, portal_group_tag) = match text.split_once(',') {
            Some((text, tag)) => (text, Some(number(tag).ok_or(AddressError::PortalGroupTag)?)),
            None => (text, None),
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']').ok_or(AddressError::Host)?;
                let address: Ipv6Addr = address.parse().map_err(|_| AddressError::Host)?;
                let port = match rest {
                    "" => None,
                    rest => Some(rest.strip_prefix(':').ok_or(AddressError::Port)?),
                };
                (Host::Ip(address.into()), port)
            }
            None => {
                let (host, port) =
                    text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
                (parse_host(host)?, port)
            }
        };
        let port = match port {
            Some(port) => number(port).filter(|&port| port != 0).ok_or(AddressError::Port)?,
            None => PORT,
        };
        Ok(Self { host, port, portal_group_tag })
    }
}

fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn parse_host(host: &str) -> Result<Host, AddressError> {
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(address.into()));
    }
    let permitted = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    // If the last label is a number, resolvers read the whole name as an IPv4 address.
    let last = host.rsplit('.').next().unwrap_or("");
    let numeric =
        last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
    let legal = (1..=HOST_LENGTH_MAX).contains(&host.len())
        && host.bytes().all(permitted)
        && !host.starts_with(['-', '.'])
        && !host.contains("..")
        && !numeric;
    if legal { Ok(Host::Name(host.to_ascii_lowercase())) } else { Err(AddressError::Host) }
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)?;
        if let Some(tag) = self.portal_group_tag {
            write!(f, ",{tag}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_valid_are_normalised() {
        let longest = format!("iqn.{}", "a".repeat(NAME_LENGTH_MAX - 4));
        for (name, normal) in [
            ("iqn.2001-04.com.example:storage.disk1", "iqn.2001-04.com.example:storage.disk1"),
            ("IQN.1991-05.com.Microsoft:HOST", "iqn.1991-05.com.microsoft:host"),
            ("iqn.1998-01.com.vmware:esx_1-0a", "iqn.1998-01.com.vmware:esx_1-0a"),
            ("eui.02004567A425678D", "eui.02004567a425678d"),
            ("naa.52004567BA64678D", "naa.52004567ba64678d"),
            ("naa.62004567BA64678D0123456789ABCDEF", "naa.62004567ba64678d0123456789abcdef"),
            ("iqn.2001-04.jp.例:ディスク", "iqn.2001-04.jp.例:ディスク"),
            (&longest, &longest),
        ] {
            assert_eq!(IscsiName::parse(name).unwrap().as_str(), normal);
        }
    }

    #[test]
    fn names_invalid() {
        let too_long = format!("iqn.{}", "a".repeat(NAME_LENGTH_MAX - 3));
        for (name, error) in [
            ("", NameError::UnknownType),
            ("iqn", NameError::UnknownType),
            ("iqn.", NameError::UnknownType),
            ("wwn.2001", NameError::UnknownType),
            ("日本", NameError::UnknownType),
            (&too_long, NameError::TooLong),
            ("iqn.2001-04.com.a b", NameError::Character),
            ("iqn.2001-04.com.a\nnode.startup=automatic", NameError::Character),
            ("iqn.2001-04.com.a/../b", NameError::Character),
            ("iqn.2001-04.com.a,b", NameError::Character),
            ("iqn.2001-04.com.a\u{202e}b", NameError::Character),
            ("iqn.2001-04.com.a\u{1b}[2J", NameError::Character),
            ("eui.02004567A425678", NameError::Digits),
            ("eui.02004567A425678G", NameError::Digits),
            ("naa.52004567BA64678D00", NameError::Digits),
        ] {
            assert_eq!(IscsiName::parse(name), Err(error), "{name:?}");
        }
    }

    #[test]
    fn addresses_valid() {
        for (text, shown) in [
            ("10.0.0.1:3260,1", "10.0.0.1:3260,1"),
            ("10.0.0.1", "10.0.0.1:3260"),
            ("10.0.0.1,65535", "10.0.0.1:3260,65535"),
            ("[2001:DB8::1]:3261,2", "[2001:db8::1]:3261,2"),
            ("[::1]", "[::1]:3260"),
            ("Storage-1.example.com:860", "storage-1.example.com:860"),
        ] {
            let address = TargetAddress::parse(text).unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(TargetAddress::parse(shown), Ok(address));
        }
    }

    #[test]
    fn addresses_invalid() {
        let long = "a".repeat(254);
        for (text, error) in [
            ("", AddressError::Host),
            (":3260", AddressError::Host),
            ("[::1", AddressError::Host),
            ("[fe80::1%eth0]:3260,1", AddressError::Host),
            ("[10.0.0.1]:3260", AddressError::Host),
            ("999.1.1.1", AddressError::Host),
            ("0x7f.1", AddressError::Host),
            ("0x7f000001", AddressError::Host),
            ("a.0X7F", AddressError::Host),
            ("a b", AddressError::Host),
            ("host\n:3260", AddressError::Host),
            ("-oProxyCommand=x", AddressError::Host),
            ("a..b", AddressError::Host),
            (&long, AddressError::Host),
            ("fe80::1", AddressError::Port),
            ("h:0", AddressError::Port),
            ("h:65536", AddressError::Port),
            ("h:+1", AddressError::Port),
            ("h:", AddressError::Port),
            ("[::1]3260", AddressError::Port),
            ("h:1,", AddressError::PortalGroupTag),
            ("h:1,65536", AddressError::PortalGroupTag),
            ("h:1,1,1", AddressError::PortalGroupTag),
        ] {
            assert_eq!(TargetAddress::parse(text), Err(error), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_name(name in ".{0,230}") {
            if let Ok(valid) = IscsiName::parse(&name) {
                prop_assert!(valid.as_str().len() <= NAME_LENGTH_MAX);
                prop_assert!(!valid.as_str().chars().any(char::is_control));
            }
        }

        #[test]
        fn any_address(text in r"[\[\]a-f0-9:.,% ]{0,40}") {
            if let Ok(address) = TargetAddress::parse(&text) {
                prop_assert_eq!(TargetAddress::parse(&address.to_string()), Ok(address));
            }
        }
    }
}
