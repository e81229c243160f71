//! Addresses and command lines that a server prints for its users.

use std::net::{IpAddr, SocketAddr};

use crate::names;

pub(super) fn portal(address: SocketAddr) -> String {
    names::portal(&address.ip().to_string(), address.port())
}

/// `--advertise` with a port; the default is the port of the first listener.
pub(super) fn with_port(advertise: &str, port: u16) -> Result<String, String> {
    let bare = advertise.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(advertise);
    let is_address = bare.parse::<IpAddr>().is_ok();
    let has_port =
        !is_address && advertise.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port {
        return Ok(advertise.to_owned());
    }
    if bare.is_empty() || (!is_address && bare.contains([':', '/', ' ', '[', ']'])) {
        return Err("it is not an address".to_owned());
    }
    if port == 0 {
        return Err("it needs a port, since --listen leaves the port open".to_owned());
    }
    Ok(names::portal(bare, port))
}

/// Command lines for the kernel's initiator and for QEMU.
pub(super) fn ready_made(portal: &str, luns: &[(String, u16)], has_chap: bool) -> Vec<String> {
    let mut lines = vec![format!("kernel:  iscsiadm -m discovery -t sendtargets -p {portal}")];
    let mut targets: Vec<&str> = luns.iter().map(|(iqn, _)| iqn.as_str()).collect();
    targets.dedup();
    for iqn in targets {
        lines.push(format!("kernel:  iscsiadm -m node -T {iqn} -p {portal} --login"));
    }
    let login = if has_chap { "LIBISCSI_CHAP_USERNAME=... LIBISCSI_CHAP_PASSWORD=... " } else { "" };
    for (iqn, lun) in luns {
        lines.push(format!("QEMU:    {login}qemu-img info iscsi://{portal}/{iqn}/{lun}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advertised_addresses_get_a_port() {
        let all = [
            ("h", Ok("h:3260")),
            ("h:1", Ok("h:1")),
            ("10.0.0.1", Ok("10.0.0.1:3260")),
            ("::1", Ok("[::1]:3260")),
            ("[::1]", Ok("[::1]:3260")),
            ("[::1]:7", Ok("[::1]:7")),
            ("", Err("it is not an address")),
            ("a b", Err("it is not an address")),
            ("h:x", Err("it is not an address")),
        ];
        for (text, result) in all {
            let result = result.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(with_port(text, 3260), result, "{text}");
        }
        assert!(with_port("h", 0).is_err());
        assert_eq!(with_port("h:9", 0).as_deref(), Ok("h:9"));
    }

    #[test]
    fn lines_to_paste() {
        let luns = [("iqn.x:a".to_owned(), 0), ("iqn.x:a".to_owned(), 1)];
        let expected = [
            "kernel:  iscsiadm -m discovery -t sendtargets -p 127.0.0.1:3260",
            "kernel:  iscsiadm -m node -T iqn.x:a -p 127.0.0.1:3260 --login",
            "QEMU:    qemu-img info iscsi://127.0.0.1:3260/iqn.x:a/0",
            "QEMU:    qemu-img info iscsi://127.0.0.1:3260/iqn.x:a/1",
        ];
        assert_eq!(ready_made("127.0.0.1:3260", &luns, false), expected);
    }
}
