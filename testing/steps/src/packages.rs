//! The Debian packages of the interoperability tests and benchmarks: installed as root or by sudo, otherwise listed in
//! an error. A missing peer never skips a test. Also cargo-deny, built from crates.io.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

use crate::{cargo, find_program, is_root, must, target_directory};

struct Need {
    package: &'static str,
    programs: &'static [&'static str],
    /// A plugin: `NAME.so` in QEMU's directory.
    qemu_block: Option<&'static str>,
    file: Option<&'static str>,
}

/// A package without programs that is detected by a file.
const fn file(package: &'static str, path: &'static str) -> Need {
    Need { package, programs: &[], qemu_block: None, file: Some(path) }
}

const fn need(package: &'static str, programs: &'static [&'static str]) -> Need {
    Need { package, programs, qemu_block: None, file: None }
}

const QEMU_ISCSI: Need =
    Need { package: "qemu-block-extra", programs: &[], qemu_block: Some("block-iscsi.so"), file: None };

const TEST: &[Need] = &[
    need("tgt", &["tgtd", "tgtadm"]),
    need(
        "libiscsi-bin",
        &["iscsi-ls", "iscsi-inq", "iscsi-readcapacity16", "iscsi-swp", "iscsi-perf", "iscsi-test-cu"],
    ),
    need("qemu-utils", &["qemu-img", "qemu-io", "qemu-nbd"]),
    need("nbdkit", &["nbdkit"]),
    need("gddrescue", &["ddrescuelog"]),
    need("iproute2", &["ip", "tc"]),
    need("tmux", &["tmux"]),
    need("util-linux", &["unshare", "nsenter"]),
    need("strace", &["strace"]),
    need("cryptsetup-bin", &["cryptsetup"]),
    QEMU_ISCSI,
    need("qemu-system-x86", &["qemu-system-x86_64"]),
    file("ipxe-qemu", "/usr/lib/ipxe/qemu/pxe-e1000.rom"),
    file("ovmf", "/usr/share/OVMF/OVMF_CODE_4M.fd"),
    need("busybox-static", &["busybox"]),
    need("cpio", &["cpio"]),
    need("kmod", &["modprobe", "depmod"]),
    need("xz-utils", &["xz"]),
    need("e2fsprogs", &["mkfs.ext4", "e2fsck", "debugfs"]),
    need("xfsprogs", &["mkfs.xfs", "xfs_repair"]),
    need("btrfs-progs", &["mkfs.btrfs", "btrfs"]),
    need("mount", &["losetup"]),
    need("cryptsetup-bin", &["cryptsetup"]),
    need("fio", &["fio"]),
    need("chromium", &["chromium"]),
    need("tshark", &["tshark"]),
    need("systemd", &["systemd-analyze"]),
    need("g++", &["c++"]),
    file("libiscsi-dev", "/usr/include/iscsi/iscsi.h"),
    need("tcpdump", &["tcpdump"]),
    need("clang", &["clang"]),
    need("llvm", &["llvm-strip"]),
    need("iproute2", &["ip", "tc"]),
    need("prometheus", &["prometheus", "promtool"]),
    Need {
        package: "python3-cryptography",
        programs: &["python3"],
        qemu_block: None,
        file: Some("/usr/lib/python3/dist-packages/cryptography/__init__.py"),
    },
];

const BENCH: &[Need] = &[
    need("tgt", &["tgtd", "tgtadm"]),
    need("qemu-utils", &["qemu-img"]),
    QEMU_ISCSI,
    need("iperf3", &["iperf3"]),
    need("libiscsi-bin", &["iscsi-ls"]),
    file("libiscsi-dev", "/usr/include/iscsi/iscsi.h"),
    need("gcc", &["cc"]),
    need("tshark", &["tshark"]),
    need("tcpdump", &["tcpdump"]),
    need("fio", &["fio"]),
    need("mount", &["losetup"]),
    need("iproute2", &["ip", "tc"]),
    need("openssl", &["openssl"]),
    need("cryptsetup-bin", &["cryptsetup"]),
    need("stunnel4", &["stunnel4"]),
    need("wireguard-go", &["wireguard-go"]),
    need("wireguard-tools", &["wg"]),
    need("strongswan-swanctl", &["swanctl"]),
    file("strongswan-charon", "/usr/lib/ipsec/charon"),
    file("libstrongswan-standard-plugins", "/usr/lib/ipsec/plugins/libstrongswan-openssl.so"),
    file("libcharon-extra-plugins", "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so"),
];

/// For the family that installs the package, in full runs.
const PACKAGE: &[Need] = &[
    need("dpkg-dev", &["dpkg-shlibdeps"]),
    need("lintian", &["lintian"]),
    need("debootstrap", &["debootstrap"]),
    need("systemd-container", &["systemd-nspawn"]),
];

/// For the guide to libvirt, in full runs.
const LIBVIRT: &[Need] = &[
    need("libvirt-daemon", &["libvirtd"]),
    need("libvirt-clients", &["virsh"]),
    file(
        "libvirt-daemon-driver-qemu",
        "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so",
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Test,
    Bench,
    Package,
    Libvirt,
}

fn present(need: &Need) -> bool {
    let plugin = need.qemu_block.is_none_or(|name| {
        ["/usr/lib", "/usr/lib64"].iter().any(|lib| {
            let Ok(entries) = std::fs::read_dir(lib) else { return false };
            Path::new(lib).join("qemu").join(name).exists()
                || entries.filter_map(Result::ok).any(|entry| entry.path().join("qemu").join(name).exists())
        })
    });
    let file = need.file.is_none_or(|path| Path::new(path).exists());
    plugin && file && need.programs.iter().all(|name| find_program(name).is_some())
}

fn missing(purpose: Purpose) -> Vec<&'static str> {
    let needs = match purpose {
        Purpose::Test => TEST,
        Purpose::Bench => BENCH,
        Purpose::Package => PACKAGE,
        Purpose::Libvirt => LIBVIRT,
    };
    needs.iter().filter(|need| !present(need)).map(|need| need.package).collect()
}

/// Installs the missing packages, or fails with the command that installs them.
pub fn ensure(purpose: Purpose) -> Result<()> {
    let packages = missing(purpose);
    if packages.is_empty() {
        println!("all peers are installed");
        return Ok(());
    }
    let line = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    let sudo = !is_root();
    let may = find_program("apt-get").is_some()
        && (!sudo
            || Command::new("sudo")
                .args(["-n", "true"])
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success()));
    ensure!(may, "the tests drive peers that are not installed; as root:\n  {line}");
    println!("installing {}", packages.join(" "));
    apt(sudo, &["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(&packages);
    apt(sudo, &arguments)?;
    let still = missing(purpose);
    ensure!(still.is_empty(), "installed, but still not found: {}; try\n  {line}", still.join(" "));
    Ok(())
}

fn apt(sudo: bool, arguments: &[&str]) -> Result<()> {
    let mut command = if sudo {
        let mut command = Command::new("sudo");
        command.args(["-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        command
    } else {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    must(command.args(arguments))
}

/// Version of cargo-deny that deny.toml is written for.
const CARGO_DENY: &str = "0.20.2";

/// Path of cargo-deny; the first call builds it below `target`.
pub fn cargo_deny() -> Result<PathBuf> {
    let root = target_directory()?.join("tools").join(format!("cargo-deny-{CARGO_DENY}"));
    let program = root.join("bin/cargo-deny");
    if !program.is_file() {
        let version = format!("={CARGO_DENY}");
        let mut command = cargo(&["install", "--quiet", "--locked", "cargo-deny", "--version", &version]);
        // Runs outside the workspace, whose configuration and profiles would apply otherwise.
        must(command.arg("--root").arg(&root).current_dir("/"))?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_missing() {
        assert!(!present(&need("nothing", &["no-such-program-anywhere"])));
        assert!(present(&need("sh", &["sh"])));
        let plugin = Need { package: "x", programs: &[], qemu_block: Some("block-nothing.so"), file: None };
        assert!(!present(&plugin));
    }
}
