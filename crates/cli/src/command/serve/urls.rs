//! Addresses and command lines that a server prints for its users.

use std::net::{IpAddr, SocketAddr};

use node::SealPolicy;

use crate::config::Target;
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

/// How an initiator reaches a target. The kernel's initiator and QEMU can neither seal nor use TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    Chap,
    Sealed,
    Tls,
}

impl Way {
    pub(super) fn of(target: &Target, seals: SealPolicy, has_tls: bool) -> Self {
        let only_peers = || !target.acls.is_empty() && target.acls.iter().all(|acl| acl.peer.is_some());
        match seals {
            _ if has_tls => Self::Tls,
            SealPolicy::Require => Self::Sealed,
            SealPolicy::Offer if only_peers() => Self::Sealed,
            _ if target.has_chap() => Self::Chap,
            _ => Self::Plain,
        }
    }
}

/// A LUN that the server offers.
pub(super) struct Offered {
    pub(super) iqn: String,
    pub(super) lun: u16,
    pub(super) way: Way,
}

impl Offered {
    pub(super) fn url(&self, portal: &str) -> String {
        format!("iscsi://{portal}/{}/{}", self.iqn, self.lun)
    }
}

/// Comes before the logins: a login without these settings is refused.
const CHAP_ORDER: &str = "kernel:  first, for targets with CHAP: iscsiadm -m node -T TARGET -o update -n node.session.auth.NAME -v VALUE, with \
     authmethod CHAP, username and password, for mutual CHAP username_in and password_in too";

/// Command lines for each target: of the kernel's initiator and QEMU where these can log in, otherwise of this program.
pub(super) fn ready_made(portal: &str, luns: &[Offered]) -> Vec<String> {
    let is_for_all = |lun: &&Offered| matches!(lun.way, Way::Plain | Way::Chap);
    let mut targets: Vec<&str> = luns.iter().filter(is_for_all).map(|lun| lun.iqn.as_str()).collect();
    targets.dedup();
    let mut lines = Vec::new();
    if !targets.is_empty() {
        lines.push(format!("kernel:  iscsiadm -m discovery -t sendtargets -p {portal}"));
    }
    if luns.iter().any(|lun| lun.way == Way::Chap) {
        lines.push(CHAP_ORDER.to_owned());
    }
    for iqn in targets {
        lines.push(format!("kernel:  iscsiadm -m node -T {iqn} -p {portal} --login"));
    }
    for lun in luns {
        let url = lun.url(portal);
        lines.push(match lun.way {
            Way::Plain => format!("QEMU:    qemu-img info {url}"),
            Way::Chap => {
                format!(
                    "QEMU:    LIBISCSI_CHAP_USERNAME=... LIBISCSI_CHAP_PASSWORD=... qemu-img info {url} (mutual CHAP: \
                     LIBISCSI_CHAP_TARGET_USERNAME and LIBISCSI_CHAP_TARGET_PASSWORD too)"
                )
            }
            Way::Sealed => format!("sealed:  hikyaku info {url}"),
            Way::Tls => format!("TLS:     hikyaku info {url},tls=CERTIFICATE"),
        });
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
    fn lines_to_paste_are_those_that_work() {
        let lun = |iqn: &str, lun, way| Offered { iqn: iqn.to_owned(), lun, way };
        let portal = "127.0.0.1:3260";
        let luns = [
            lun("iqn.x:a", 0, Way::Plain),
            lun("iqn.x:a", 1, Way::Plain),
            lun("iqn.x:b", 0, Way::Sealed),
            lun("iqn.x:c", 0, Way::Chap),
        ];
        let expected = [
            "kernel:  iscsiadm -m discovery -t sendtargets -p 127.0.0.1:3260",
            CHAP_ORDER,
            "kernel:  iscsiadm -m node -T iqn.x:a -p 127.0.0.1:3260 --login",
            "kernel:  iscsiadm -m node -T iqn.x:c -p 127.0.0.1:3260 --login",
            "QEMU:    qemu-img info iscsi://127.0.0.1:3260/iqn.x:a/0",
            "QEMU:    qemu-img info iscsi://127.0.0.1:3260/iqn.x:a/1",
            "sealed:  hikyaku info iscsi://127.0.0.1:3260/iqn.x:b/0",
            "QEMU:    LIBISCSI_CHAP_USERNAME=... LIBISCSI_CHAP_PASSWORD=... qemu-img info iscsi://127.0.0.1:3260/iqn.x:c/0 (mutual CHAP: \
             LIBISCSI_CHAP_TARGET_USERNAME and LIBISCSI_CHAP_TARGET_PASSWORD too)",
        ];
        assert_eq!(ready_made(portal, &luns), expected);
        assert_eq!(ready_made(portal, &luns[2..3]), expected[6..7]);
        let tls = ready_made(portal, &[lun("iqn.x:a", 0, Way::Tls)]);
        assert_eq!(tls, ["TLS:     hikyaku info iscsi://127.0.0.1:3260/iqn.x:a/0,tls=CERTIFICATE"]);
    }
}
