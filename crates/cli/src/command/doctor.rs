//! `doctor`: what this machine lacks for full speed and full confinement, what each lack costs, and what corrects it.

use std::fs;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

use crate::error::{Exit, Failure};
use crate::output::{self, Table};
use crate::{sys, units};

/// Locked memory that the loops of a busy server register: 256 MiB of areas for each of four threads.
const MEMLOCK_BYTES: u64 = 1 << 30;
/// One descriptor for each of 4096 sessions, and for LUNs and loops.
const DESCRIPTORS: u64 = 8192;
/// Socket buffer for 1 Gbit/s over a round trip of 128 ms.
const WINDOW_BYTES: u64 = 16 << 20;
/// Landlock's version with everything that the sandbox uses.
const LANDLOCK_ABI: i32 = 6;

/// Show what this machine lacks, what it costs, and what corrects it
///
/// Looks at the kernel, its limits and the processor; changes nothing. A lack is no error: hikyaku works without, slower or
/// less confined, so the exit status is 0. Limits are those of this process: a service has those of its unit.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku doctor
  sudo -u hikyaku hikyaku doctor            as the user of the service
  hikyaku doctor --json | jq '.checks[] | select(.state != \"good\")'")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    /// Works in part, or slower.
    Reduced,
    Missing,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Reduced => "reduced",
            Self::Missing => "missing",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    /// The effect of a lack; empty if nothing is lacking.
    cost: String,
    /// A command or a setting; empty if nothing is lacking or nothing helps.
    remedy: String,
}

impl Check {
    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Good, found: found.into(), cost: String::new(), remedy: String::new() }
    }

    fn lack(name: &'static str, state: State, found: impl Into<String>, cost: &str, remedy: &str) -> Self {
        Self { name, state, found: found.into(), cost: cost.to_owned(), remedy: remedy.to_owned() }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "state": self.state.name(),
            "found": self.found,
            "cost": self.cost,
            "remedy": self.remedy,
        })
    }
}

pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let checks = [
        kernel(&rustix::system::uname().release().to_string_lossy()),
        uring(io::uring_features()),
        memlock(getrlimit(Resource::Memlock).current),
        descriptors(getrlimit(Resource::Nofile).maximum),
        huge_pages(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
        landlock(sys::landlock_abi()),
        seccomp(sys::can_filter_calls()),
        sock_diag(),
        cipher(),
        window("tcp_wmem", "send", &read("/proc/sys/net/ipv4/tcp_wmem")),
        window("tcp_rmem", "receive", &read("/proc/sys/net/ipv4/tcp_rmem")),
        linkage(cfg!(target_feature = "crt-static")),
    ];
    if args.json {
        let checks: Vec<Value> = checks.iter().map(Check::json).collect();
        output::json(&json!({ "schema": output::SCHEMA, "checks": checks }));
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["what", "state", "found"]);
    for check in &checks {
        table.row(vec![check.name.to_owned(), check.state.name().to_owned(), check.found.clone()]);
    }
    table.print();
    for check in checks.iter().filter(|check| check.state != State::Good) {
        output::line(&format!("\n{}: {}", check.name, check.cost));
        if !check.remedy.is_empty() {
            output::line(&format!("  try: {}", check.remedy));
        }
    }
    Ok(Exit::Done)
}

/// The text of a kernel file without its last newline; empty if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn kernel(release: &str) -> Check {
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (0..6, _) | (6, 0) => Check::lack(
            "kernel",
            State::Reduced,
            release,
            "before Linux 6.1 io_uring lacks what the loop needs: epoll and threads replace it, with more CPU per request",
            "a kernel of version 6.12 or later",
        ),
        (6, 1..12) => Check::lack(
            "kernel",
            State::Reduced,
            release,
            "before Linux 6.12 Landlock does not restrict signals, abstract sockets and ioctls in the sandbox of serve",
            "a kernel of version 6.12 or later",
        ),
        _ => Check::good("kernel", release),
    }
}

fn uring(features: std::io::Result<Vec<(&'static str, bool)>>) -> Check {
    let names = |features: &[(&'static str, bool)], wanted: bool| {
        let chosen = features.iter().filter(|(_, is_there)| *is_there == wanted).map(|(name, _)| *name);
        chosen.collect::<Vec<_>>().join(", ")
    };
    match features {
        Err(error) => Check::lack(
            "io_uring",
            State::Missing,
            error.to_string(),
            "epoll and threads replace it: more CPU per request, fewer small requests per second",
            "sysctl -w kernel.io_uring_disabled=0; in a container a seccomp profile that permits io_uring_setup",
        ),
        Ok(features) if features.contains(&("registered-buffers", false)) => Check::lack(
            "io_uring",
            State::Reduced,
            format!("works, without {}", names(&features, false)),
            "the kernel pins the pages of each transfer instead of once",
            "see memlock below",
        ),
        Ok(features) => Check::good("io_uring", format!("works, with {}", names(&features, true))),
    }
}

fn memlock(limit: Option<u64>) -> Check {
    match limit {
        Some(bytes) if bytes < MEMLOCK_BYTES && !sys::is_root() => Check::lack(
            "memlock",
            State::Reduced,
            units::bytes(bytes),
            "memory beyond this limit is not registered with io_uring: the kernel pins the pages of each transfer instead of once",
            "LimitMEMLOCK=infinity in the unit, or in /etc/security/limits.d: USER - memlock unlimited",
        ),
        Some(bytes) => Check::good("memlock", units::bytes(bytes)),
        None => Check::good("memlock", "unlimited"),
    }
}

fn descriptors(limit: Option<u64>) -> Check {
    match limit {
        Some(count) if count < DESCRIPTORS => Check::lack(
            "descriptors",
            State::Reduced,
            count.to_string(),
            "a server has a descriptor for each session and LUN: beyond the limit it admits no further session",
            "LimitNOFILE=8192 in the unit, or ulimit -Hn 8192",
        ),
        Some(count) => Check::good("descriptors", count.to_string()),
        None => Check::good("descriptors", "unlimited"),
    }
}

fn huge_pages(modes: &str) -> Check {
    if modes.contains("[always]") || modes.contains("[madvise]") {
        return Check::good("huge-pages", modes);
    }
    let found = if modes.is_empty() { "none in /sys" } else { modes };
    Check::lack(
        "huge-pages",
        State::Missing,
        found,
        "payload lies in pages of 4 KiB: more entries for each transfer of 128 KiB and more",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )
}

fn landlock(abi: std::io::Result<i32>) -> Check {
    const REMEDY: &str = "a kernel of version 6.12 or later with landlock in its boot option lsm=";
    match abi {
        Ok(abi) if abi >= LANDLOCK_ABI => Check::good("landlock", format!("ABI {abi}")),
        Ok(abi) => Check::lack(
            "landlock",
            State::Reduced,
            format!("ABI {abi}"),
            "the sandbox of serve restricts files, but not all of ioctls, ports, signals and abstract sockets",
            REMEDY,
        ),
        Err(error) => Check::lack(
            "landlock",
            State::Missing,
            error.to_string(),
            "the sandbox of serve does not restrict files; the permissions of its user are the only limit",
            REMEDY,
        ),
    }
}

fn seccomp(filters: bool) -> Check {
    if filters {
        return Check::good("seccomp", "filters");
    }
    Check::lack(
        "seccomp",
        State::Missing,
        "no filters",
        "the sandbox of serve does not restrict system calls",
        "a kernel with CONFIG_SECCOMP_FILTER",
    )
}

fn sock_diag() -> Check {
    let opened = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    );
    match opened {
        Ok(_) => Check::good("sock_diag", "works"),
        Err(error) => Check::lack(
            "sock_diag",
            State::Missing,
            error.to_string(),
            "a server cannot find the user of a connection over loopback, and refuses it unless CHAP or a key proves it",
            "modprobe tcp_diag; in a container, RestrictAddressFamilies= or a profile that permits AF_NETLINK",
        ),
    }
}

#[cfg(target_arch = "x86_64")]
fn cipher() -> Check {
    use std::arch::is_x86_feature_detected as has;
    let all =
        [("aes", has!("aes")), ("vaes", has!("vaes")), ("avx2", has!("avx2")), ("avx512f", has!("avx512f"))];
    let found: Vec<&str> = all.iter().filter(|(_, is_there)| *is_there).map(|(name, _)| *name).collect();
    cipher_of(&found)
}

#[cfg(target_arch = "aarch64")]
fn cipher() -> Check {
    use std::arch::is_aarch64_feature_detected as has;
    let found = if has!("aes") { &["aes", "avx2"][..] } else { &[] };
    cipher_of(found)
}

fn cipher_of(found: &[&str]) -> Check {
    let text = if found.is_empty() { "no AES instructions".to_owned() } else { found.join(" ") };
    if !found.contains(&"aes") {
        let cost = "AES-256-GCM and AEGIS are computed without instructions for them: sealed sessions take several times the CPU";
        return Check::lack(
            "cipher",
            State::Missing,
            text,
            cost,
            "suite=ChaCha20-Poly1305; for a virtual machine the CPU type host",
        );
    }
    if !found.contains(&"avx2") {
        let cost = "BLAKE3 of --verify and the wide ciphers run at half speed";
        return Check::lack("cipher", State::Reduced, text, cost, "for a virtual machine the CPU type host");
    }
    Check::good("cipher", text)
}

/// The largest buffer of a TCP socket, the third number of `tcp_wmem` and `tcp_rmem`.
fn window(name: &'static str, direction: &str, numbers: &str) -> Check {
    let Some(bytes) = numbers.split_whitespace().nth(2).and_then(|number| number.parse::<u64>().ok()) else {
        return Check::good(name, "not reported by this kernel");
    };
    if bytes >= WINDOW_BYTES {
        return Check::good(name, units::bytes(bytes));
    }
    let rate = bytes as f64 / 0.1 / 1e6;
    let cost = format!(
        "a connection can {direction} {} in a round trip: over 100 ms at most {rate:.0} MB/s. No effect in a LAN",
        units::bytes(bytes)
    );
    let remedy = format!("sysctl -w net.ipv4.{name}='4096 131072 {}'", WINDOW_BYTES * 4);
    Check::lack(name, State::Reduced, units::bytes(bytes), &cost, &remedy)
}

fn linkage(is_static: bool) -> Check {
    if !is_static {
        return Check::good("linkage", "dynamic");
    }
    Check::lack(
        "linkage",
        State::Reduced,
        "static",
        "names of hosts resolve by /etc/hosts and DNS only, names of users by /etc/passwd only: no mDNS, LDAP or systemd-resolved \
         modules of the C library",
        "the dynamic program, of the Debian package or cargo build",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lack_has_a_cost_and_a_remedy() {
        let refused = || std::io::Error::from_raw_os_error(libc::EPERM);
        let all = [
            (kernel("5.15.0-91-generic"), State::Reduced),
            (kernel("6.1.0-44-amd64"), State::Reduced),
            (kernel("6.12.0"), State::Good),
            (kernel("7.0.1"), State::Good),
            (kernel(""), State::Reduced),
            (uring(Err(refused())), State::Missing),
            (uring(Ok(vec![("registered-buffers", false)])), State::Reduced),
            (uring(Ok(vec![("registered-buffers", true)])), State::Good),
            (memlock(None), State::Good),
            (descriptors(Some(1024)), State::Reduced),
            (descriptors(Some(1 << 20)), State::Good),
            (huge_pages("always madvise [never]"), State::Missing),
            (huge_pages(""), State::Missing),
            (huge_pages("always [madvise] never"), State::Good),
            (landlock(Err(refused())), State::Missing),
            (landlock(Ok(5)), State::Reduced),
            (landlock(Ok(6)), State::Good),
            (seccomp(false), State::Missing),
            (seccomp(true), State::Good),
            (cipher_of(&[]), State::Missing),
            (cipher_of(&["aes"]), State::Reduced),
            (cipher_of(&["aes", "avx2"]), State::Good),
            (window("tcp_wmem", "send", "4096 16384 4194304"), State::Reduced),
            (window("tcp_wmem", "send", "4096 16384 67108864"), State::Good),
            (window("tcp_wmem", "send", ""), State::Good),
            (linkage(true), State::Reduced),
            (linkage(false), State::Good),
        ];
        for (check, state) in all {
            assert_eq!(check.state, state, "{check:?}");
            let is_good = state == State::Good;
            assert!(check.cost.is_empty() == is_good && check.remedy.is_empty() == is_good, "{check:?}");
        }
    }

    #[test]
    fn the_cost_of_a_window_is_its_bytes_by_the_round_trip() {
        let check = window("tcp_rmem", "receive", "4096 131072 6291456");
        assert!(
            check.cost.contains("can receive 6 MiB in a round trip: over 100 ms at most 63 MB/s"),
            "{check:?}"
        );
    }
}
