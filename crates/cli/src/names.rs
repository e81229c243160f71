//! iSCSI names and addresses in user input.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use iscsi::name::IscsiName;
pub(crate) use iscsi::name::PORT as ISCSI_PORT;

/// Checks an iSCSI name and converts it to lower case.
pub(crate) fn parse_iscsi_name(name: &str) -> Result<String, String> {
    IscsiName::parse(name)
        .map(|name| name.as_str().to_owned())
        .map_err(|error| format!("'{name}': {error}; write for example iqn.2026-11.com.example:disks"))
}

/// Parses `ADDR`, `ADDR:PORT`, `[V6]:PORT`, `NAME:PORT` or `PORT`; the port defaults to 3260, the address to 127.0.0.1,
/// as for `ssh -D`.
pub(crate) fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Some((address, port)) = address_and_perhaps_port(text) {
        return Err(format!(
            "the end of '{text}' can be a port or a part of the address; write [{address}]:{port}, or [{text}]:{ISCSI_PORT}"
        ));
    }
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, ISCSI_PORT));
    }
    // The resolver would accept a bare number as an IPv4 address.
    if text.parse::<u64>().is_ok() {
        return Err(format!("'{text}' is not a port, a number up to 65535"));
    }
    if let Some(port) = text.strip_prefix(':').or_else(|| text.strip_prefix("*:")) {
        return Err(format!(
            "'{text}' has no address; write 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} or [::]:{port} for all its \
             addresses"
        ));
    }
    if let Some((_, rest)) = text.split_once("://") {
        let portal = rest.split('/').next().unwrap_or_default();
        return Err(format!("'{text}' is a URL; write the address alone: {portal}"));
    }
    let resolved = if text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) {
        text.to_socket_addrs()
    } else {
        (text, ISCSI_PORT).to_socket_addrs()
    };
    let wrong = |cause: String| {
        format!("'{text}' is not an address to listen on ({cause}); write 127.0.0.1:3260 or [::1]:3260")
    };
    resolved
        .map_err(|error| wrong(error.to_string()))?
        .next()
        .ok_or_else(|| wrong("it has no address".to_owned()))
}

/// An IPv6 address without brackets whose last group may be a port: `::1:3260` is `::1` and a port, or one address.
fn address_and_perhaps_port(text: &str) -> Option<(Ipv6Addr, u16)> {
    text.parse::<Ipv6Addr>().ok()?;
    let (address, port) = text.rsplit_once(':')?;
    Some((address.parse().ok()?, port.parse().ok()?))
}

/// Parses the address of metrics: a number, not a name, with a port.
pub(crate) fn parse_metrics(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not an address with a port; write for example 127.0.0.1:9260"))
}

/// The address of a listener as seen by other hosts: for a wildcard, the source address of the default route.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    // A connected UDP socket gets its source address from the routing table; nothing is sent.
    let (any, far) = match address {
        SocketAddr::V4(_) => ("0.0.0.0:0", "192.0.2.1:9"),
        SocketAddr::V6(_) => ("[::]:0", "[2001:db8::1]:9"),
    };
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(far)?;
        socket.local_addr()
    });
    let ip = local.map_or_else(
        |_| {
            if address.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) }
        },
        |local| local.ip(),
    );
    SocketAddr::new(ip, address.port())
}

/// `host:port` as in URLs and portals: IPv6 addresses in brackets.
pub(crate) fn portal(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iscsi_names_are_checked() {
        assert_eq!(parse_iscsi_name("IQN.2026-11.example:A").as_deref(), Ok("iqn.2026-11.example:a"));
        assert!(parse_iscsi_name("disks").unwrap_err().starts_with("'disks': iSCSI name begins with"));
    }

    #[test]
    fn listen_addresses_default_to_the_iscsi_port() {
        let all = [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1", "127.0.0.1:3260"),
            ("[::1]:3261", "[::1]:3261"),
            ("[::1]", "[::1]:3260"),
            ("::1", "[::1]:3260"),
            ("::", "[::]:3260"),
            ("2001:db8::1", "[2001:db8::1]:3260"),
            ("2001:db8:0:0:0:0:0:3260", "[2001:db8::3260]:3260"),
            ("[::1:3273]:1", "[::1:3273]:1"),
            ("0.0.0.0", "0.0.0.0:3260"),
            ("3261", "127.0.0.1:3261"),
            ("0", "127.0.0.1:0"),
        ];
        for (text, address) in all {
            assert_eq!(parse_listen(text).unwrap().to_string(), address, "{text}");
        }
        for (wrong, hint) in [
            ("", "write 127.0.0.1:3260"),
            ("65536", "a number up to 65535"),
            ("99999999999999999999", "write 127.0.0.1:3260"),
            (":3261", "0.0.0.0:3261"),
            ("*:3261", "0.0.0.0:3261"),
            ("::1:3273", "write [::1]:3273, or [::1:3273]:3260"),
            ("fe80::1:2", "write [fe80::1]:2"),
            ("iscsi://127.0.0.1:3261/", "the address alone: 127.0.0.1:3261"),
            ("127.0.0.1:99999", "write 127.0.0.1:3260"),
            ("256.0.0.1:1", "write 127.0.0.1:3260"),
            ("no.such.host.invalid:1", "write 127.0.0.1:3260"),
        ] {
            let error = parse_listen(wrong).unwrap_err();
            assert!(error.contains(hint), "{wrong}: {error}");
        }
    }

    #[test]
    fn portals_bracket_ipv6() {
        assert_eq!(portal("::1", 3260), "[::1]:3260");
        assert_eq!(portal("[fe80::1%eth0]", 1), "[fe80::1%eth0]:1");
        assert_eq!(portal("h", 1), "h:1");
        assert!(!reachable("0.0.0.0:1".parse().unwrap()).ip().is_unspecified());
    }
}
