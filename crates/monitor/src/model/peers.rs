//! Which programs the two ends are, as far as a login tells: advice is for those.

use crate::event::Side;

/// A program that is an end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    OpenIscsi,
    Qemu,
    Esxi,
    Windows,
    Hikyaku,
    Lio,
    Tgt,
    /// A known program without lines of advice.
    Other,
}

impl System {
    /// By the name of the process that holds a socket, which the kernel cuts after 15 bytes; `None`: not known.
    #[must_use]
    pub fn of_process(name: &str) -> Option<Self> {
        match name {
            "hikyaku" => Some(Self::Hikyaku),
            "tgtd" => Some(Self::Tgt),
            "iscsid" => Some(Self::OpenIscsi),
            name if name.starts_with("qemu-") => Some(Self::Qemu),
            _ => None,
        }
    }

    /// As advice names it; `None` for [`System::Other`].
    const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::OpenIscsi => "open-iscsi",
            Self::Qemu => "QEMU",
            Self::Esxi => "ESXi",
            Self::Windows => "Windows",
            Self::Hikyaku => "hikyaku",
            Self::Lio => "LIO",
            Self::Tgt => "tgt",
            Self::Other => return None,
        })
    }

    /// Whether sysctl and tc are where this runs.
    const fn is_linux(self) -> bool {
        !matches!(self, Self::Esxi | Self::Windows | Self::Other)
    }
}

/// Beginnings of the names that programs use by default.
const INITIATORS: [(&str, System); 12] = [
    ("iqn.2008-11.org.linux-kvm", System::Qemu),
    ("iqn.1993-08.org.debian", System::OpenIscsi),
    ("iqn.1994-05.com.redhat", System::OpenIscsi),
    ("iqn.1996-04.de.suse", System::OpenIscsi),
    ("iqn.2004-10.com.ubuntu", System::OpenIscsi),
    ("iqn.2005-03.org.open-iscsi", System::OpenIscsi),
    ("iqn.2016-04.com.open-iscsi", System::OpenIscsi),
    ("iqn.1988-12.com.oracle", System::OpenIscsi),
    ("iqn.1998-01.com.vmware", System::Esxi),
    ("iqn.1991-05.com.microsoft", System::Windows),
    ("iqn.2026-11.example.hikyaku", System::Hikyaku),
    ("iqn.2007-10.com.github:sahlberg:libiscsi", System::Other),
];
const TARGETS: [(&str, System); 10] = [
    ("iqn.2003-01.org.linux-iscsi", System::Lio),
    ("iqn.2026-11.example.hikyaku", System::Hikyaku),
    ("iqn.1991-05.com.microsoft", System::Other),
    ("iqn.2005-10.org.freenas", System::Other),
    ("iqn.1992-08.com.netapp", System::Other),
    ("iqn.1992-04.com.emc", System::Other),
    ("iqn.2000-01.com.synology", System::Other),
    ("iqn.2004-04.com.qnap", System::Other),
    ("iqn.2001-05.com.equallogic", System::Other),
    ("iqn.2010-06.com.purestorage", System::Other),
];
/// TargetAlias of LIO.
const LIO_ALIAS: &str = "LIO Target";
/// Longest name of a target (RFC 7143 section 4.2.7.1).
const NAME_BYTES_MAX: usize = 223;

/// The two ends of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    pub initiator: Option<System>,
    pub target: Option<System>,
    /// Name of the target, if a shell takes it as it is, and its address.
    pub target_name: Option<String>,
    pub portal: Option<String>,
}

fn named(table: &[(&str, System)], name: Option<&str>) -> Option<System> {
    let name = name?;
    let found = table.iter().find(|(prefix, _)| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-'))
    });
    found.map(|(_, system)| *system)
}

impl Peers {
    /// From the names of a login, whatever they hold. `portal` is the target's address.
    #[must_use]
    pub fn of_login(
        initiator_name: Option<&str>,
        target_name: Option<&str>,
        target_alias: Option<&str>,
        portal: &str,
    ) -> Self {
        let is_plain = |name: &str| {
            let is_known = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
            is_known
                && name.len() <= NAME_BYTES_MAX
                && name.chars().all(|c| c.is_ascii_alphanumeric() || ".:-_".contains(c))
        };
        let is_lio = target_alias == Some(LIO_ALIAS);
        Self {
            initiator: named(&INITIATORS, initiator_name),
            target: if is_lio { Some(System::Lio) } else { named(&TARGETS, target_name) },
            target_name: target_name.filter(|name| is_plain(name)).map(str::to_owned),
            portal: Some(portal.to_owned()).filter(|portal| !portal.is_empty()),
        }
    }

    /// Notes which program an end is, as its machine shows it; a program that a login names stays if that is not known.
    #[must_use]
    pub fn with(mut self, side: Side, system: Option<System>) -> Self {
        let end = match side {
            Side::Initiator => &mut self.initiator,
            Side::Target => &mut self.target,
        };
        *end = system.or(*end);
        self
    }

    fn of(&self, side: Side) -> Option<System> {
        match side {
            Side::Initiator => self.initiator,
            Side::Target => self.target,
        }
    }

    /// Whether a line for `system` at this end can be of use. An end that is not known can be anything.
    pub(super) fn fits(&self, system: &str, at: Side) -> bool {
        let Some(known) = self.of(at) else { return true };
        match system {
            "Linux" => known.is_linux(),
            // It can do the copy that another program does now.
            "hikyaku" if at == Side::Initiator => matches!(known, System::Hikyaku | System::Qemu),
            system => known.name() == Some(system),
        }
    }

    /// Whether this is the program at that end.
    pub(super) fn is(&self, system: &str, at: Side) -> bool {
        self.of(at).is_some_and(|known| known.name() == Some(system))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_names() {
        for (name, expected) in [
            ("iqn.2008-11.org.linux-kvm", Some(System::Qemu)),
            ("iqn.2008-11.org.linux-kvm:guest", Some(System::Qemu)),
            ("iqn.1993-08.org.debian:01:abc", Some(System::OpenIscsi)),
            ("iqn.1993-08.org.debianism:01", None),
            ("iqn.1998-01.com.vmware:esx-4f", Some(System::Esxi)),
            ("iqn.2026-11.example:x", None),
            ("", None),
        ] {
            assert_eq!(Peers::of_login(Some(name), None, None, "").initiator, expected, "{name}");
        }
        let lio = Peers::of_login(None, Some("iqn.2026-11.a:b"), Some("LIO Target"), "10.0.0.1:3260");
        assert_eq!(lio.target, Some(System::Lio));
        let names = (lio.target_name.as_deref(), lio.portal.as_deref());
        assert_eq!(names, (Some("iqn.2026-11.a:b"), Some("10.0.0.1:3260")));
        for hostile in ["iqn.a;reboot", "iqn.a b", "xxxx", "iqn.$(id)", "iqn.a\n"] {
            assert_eq!(Peers::of_login(None, Some(hostile), None, "p").target_name, None, "{hostile}");
        }
    }

    #[test]
    fn a_process_tells_its_end_and_leaves_the_other() {
        for (process, initiator) in [
            ("qemu-system-x86", Some(System::Qemu)),
            ("qemu-img", Some(System::Qemu)),
            ("iscsid", Some(System::OpenIscsi)),
            ("hikyaku", Some(System::Hikyaku)),
            ("dd", None),
        ] {
            let peers = Peers::default().with(Side::Initiator, System::of_process(process));
            assert_eq!((peers.initiator, peers.target), (initiator, None), "{process}");
            assert_eq!(peers.fits("ESXi", Side::Initiator), initiator.is_none(), "{process}");
        }
        let tgt = Peers::default().with(Side::Target, System::of_process("tgtd"));
        assert!(!tgt.fits("LIO", Side::Target) && tgt.fits("tgt", Side::Target));
        // A program that the login named is not forgotten.
        assert_eq!(tgt.with(Side::Target, None).target, Some(System::Tgt));
    }

    #[test]
    fn lines_for_other_programs_do_not_fit() {
        let peers = Peers { initiator: Some(System::Qemu), ..Peers::default() };
        for (system, at, fits) in [
            ("QEMU", Side::Initiator, true),
            ("open-iscsi", Side::Initiator, false),
            ("Linux", Side::Initiator, true),
            ("hikyaku", Side::Initiator, true),
            ("LIO", Side::Target, true),
        ] {
            assert_eq!(peers.fits(system, at), fits, "{system}");
        }
        let (initiator, target) = (Some(System::Windows), Some(System::Other));
        let peers = Peers { initiator, target, ..Peers::default() };
        assert!(!peers.fits("Linux", Side::Initiator) && !peers.fits("tgt", Side::Target));
    }
}
