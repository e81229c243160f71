//! What to type against a limit.
//!
//! A line is a command for a shell; what follows `#` in it says what is to be replaced in it and what comes after it. A
//! line that begins with `#` is done by hand.

use super::peers::Peers;
use super::words::mb;
use super::{Advice, Cause, Evidence, Verdict};
use crate::event::Side;
use crate::event::Side::{Initiator, Target};

/// Buffers are set to this many bandwidth-delay products.
const MARGIN: f64 = 1.5;

/// Sizes that the advice needs, in bytes and commands.
struct Sizes {
    /// For windows and buffers.
    buffer: u64,
    /// Outstanding commands that fill the path.
    depth: u64,
    block: u64,
    /// Seconds that a command takes by itself, in the present rounds of R2Ts.
    command_s: f64,
    /// Rate that the verdict expects without the limit.
    expected: Option<f64>,
}

impl Sizes {
    /// What `depth` commands at once carry at most, if that is less than the verdict expects without the limit.
    fn bound(&self, depth: u64) -> String {
        let rate = depth as f64 * self.block as f64 / self.command_s;
        match self.expected {
            Some(expected) if rate < expected => {
                format!(" ({depth} at once carry at most {})", mb(rate))
            }
            _ => String::new(),
        }
    }
}

fn sizes(evidence: &Evidence, verdict: &Verdict) -> Sizes {
    let rtt = evidence.path.rtt_s.unwrap_or(0.0);
    let rate = evidence.path.line_bytes_per_s.or(verdict.expected_bytes_per_s).unwrap_or(verdict.bytes_per_s);
    let product = (rate * rtt * MARGIN).max(262_144.0);
    let block = evidence.protocol.map_or(0, |protocol| protocol.block_bytes).max(4096);
    // Whole MiB: a figure to type.
    let buffer = (product as u64).div_ceil(1 << 20) << 20;
    // Never fewer than there are.
    let present = evidence.protocol.map_or(0, |protocol| u64::from(protocol.depth_max));
    let depth = (product as u64).div_ceil(block).max(2 * present).clamp(2, 1024);
    let rounds = evidence.protocol.map_or(0, |protocol| protocol.r2t_rounds);
    let moving = evidence.path.line_bytes_per_s.map_or(0.0, |line| block as f64 / line);
    let command_s = f64::from(rounds.saturating_add(1)) * rtt + moving;
    Sizes { buffer, depth, block, command_s, expected: verdict.expected_bytes_per_s }
}

/// Words that a user replaces in a command, and where their values are found.
const REPLACED: [(&str, &str); 6] = [
    ("TARGET", "TARGET (iscsiadm -m session, or targetcli ls)"),
    ("PORTAL", "PORTAL (address of the target)"),
    ("DEVICE", "DEVICE (the name after dev in: ip route get ADDRESS OF THE PEER)"),
    ("TID", "TID (the number before the target's name in: tgtadm --lld iscsi --op show --mode target)"),
    ("VMHBA", "VMHBA (esxcli iscsi adapter list)"),
    ("PID", "PID (of the program that sends)"),
];

struct Lines<'a> {
    peers: &'a Peers,
    cause: Cause,
    /// Each with the end that it is for, and whether that end is known to be the system.
    all: Vec<(Advice, bool)>,
}

impl Lines<'_> {
    fn add(&mut self, is_tried: bool, system: &'static str, at: Side, command: &str, remark: &str) {
        if !self.peers.fits(system, at) {
            return;
        }
        let line = self.line(command, remark);
        let advice = Advice { system, cause: self.cause, line, is_tried };
        self.all.push((advice, self.peers.is(system, at)));
    }

    /// A command that this project has tried; empty: something to do by hand.
    fn tried(&mut self, system: &'static str, at: Side, command: &str, remark: &str) {
        self.add(true, system, at, command, remark);
    }

    fn untried(&mut self, system: &'static str, at: Side, command: &str, remark: &str) {
        self.add(false, system, at, command, remark);
    }

    /// The command with what is known, and a comment with what is not.
    fn line(&self, command: &str, remark: &str) -> String {
        let portal = self.peers.portal.as_ref();
        // Brackets of IPv6 would be a pattern.
        let portal =
            portal.map(|portal| if portal.contains('[') { format!("'{portal}'") } else { portal.clone() });
        let known = [("PORTAL", portal), ("TARGET", self.peers.target_name.clone())];
        let is_filled = |word: &str| known.iter().any(|(known, value)| *known == word && value.is_some());
        let open = REPLACED.iter().filter(|(word, _)| holds(command, word) && !is_filled(word));
        let open: Vec<_> = open.map(|(_, what)| *what).collect();
        let mut command = command.to_owned();
        for (word, value) in &known {
            if let Some(value) = value {
                command = replaced(&command, word, value);
            }
        }
        let open = if open.is_empty() { String::new() } else { format!("replace {}", open.join(", ")) };
        let remarks: Vec<_> = [open.as_str(), remark].into_iter().filter(|text| !text.is_empty()).collect();
        match (command.is_empty(), remarks.is_empty()) {
            (true, _) => format!("# {}", remarks.join("; ")),
            (false, true) => command,
            (false, false) => format!("{command}  # {}", remarks.join("; ")),
        }
    }
}

/// Words of a command, with what is between them.
fn words(command: &str) -> impl Iterator<Item = &str> {
    command.split_inclusive(|c: char| !c.is_ascii_alphanumeric())
}

fn is_word(part: &str, word: &str) -> bool {
    part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()) == word
}

fn holds(command: &str, word: &str) -> bool {
    words(command).any(|part| is_word(part, word))
}

fn replaced(command: &str, word: &str, by: &str) -> String {
    let part = |part: &str| if is_word(part, word) { part.replace(word, by) } else { part.to_owned() };
    words(command).map(part).collect()
}

/// Settings of open-iscsi's record of the target.
fn iscsiadm(settings: &[(&str, String)]) -> String {
    let line = |(name, value): &(&str, String)| {
        let name = if name.contains('[') { format!("'{name}'") } else { (*name).to_owned() };
        format!("iscsiadm -m node -T TARGET -p PORTAL -o update -n {name} -v {value}")
    };
    settings.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// What makes the settings of a session count.
const AGAIN: &str = "then log out and in: iscsiadm -m node -u, and -l; its disks must be idle";

/// Lines for the limits of the verdict and for programs that the ends can be: first those of programs that are known.
pub(super) fn lines(evidence: &Evidence, verdict: &Verdict, peers: &Peers) -> Vec<Advice> {
    let sizes = sizes(evidence, verdict);
    let mut all = Vec::new();
    for cause in [Some(verdict.limit), verdict.also].into_iter().flatten() {
        let mut lines = Lines { peers, cause, all: Vec::new() };
        let sender = evidence.sender;
        match cause {
            Cause::R2t => r2t(&mut lines, &sizes),
            Cause::QueueDepth => queue_depth(&mut lines, &sizes),
            Cause::SendBuffer => send_buffer(&mut lines, &sizes, sender),
            Cause::ReceiveWindow => receive_window(&mut lines, &sizes, sender),
            Cause::Congestion => congestion(&mut lines, sender),
            Cause::Loss => loss(&mut lines, sender),
            Cause::NagleDelayedAck => nagle(&mut lines, sender),
            Cause::LocalDevice => local_device(&mut lines, sender),
            Cause::Target => target(&mut lines),
            Cause::Cipher => cipher(&mut lines),
            Cause::Cpu => cpu(&mut lines, sender),
            Cause::ThinkTime => think_time(&mut lines, &sizes),
            Cause::LineRate | Cause::Unknown => {}
        }
        lines.all.sort_by_key(|(_, is_known)| !is_known);
        all.extend(lines.all.into_iter().map(|(advice, _)| advice));
    }
    all
}

/// Most requests that `qemu-img convert -m` keeps outstanding.
const QEMU_IMG_MAX: u64 = 16;
/// Most that FirstBurstLength and MaxBurstLength can be (RFC 7143 sections 13.13, 13.14: 2^24 - 1), in 512s.
const BURST_MAX: u64 = 16_776_192;

fn r2t(lines: &mut Lines<'_>, sizes: &Sizes) {
    let burst = (sizes.block.max(262_144)).next_multiple_of(512).min(BURST_MAX);
    let settings = [
        ("node.session.iscsi.InitialR2T", "No".to_owned()),
        ("node.session.iscsi.ImmediateData", "Yes".to_owned()),
        ("node.session.iscsi.FirstBurstLength", burst.to_string()),
        ("node.session.iscsi.MaxBurstLength", BURST_MAX.to_string()),
    ];
    lines.tried(
        "QEMU",
        Initiator,
        "",
        &format!(
            "add -m {} -W to qemu-img convert: its libiscsi takes bursts of 256 KiB and one R2T at most, and more requests \
             outstanding hide the waits{}",
            sizes.depth.min(QEMU_IMG_MAX),
            sizes.bound(sizes.depth.min(QEMU_IMG_MAX))
        ),
    );
    lines.tried("open-iscsi", Initiator, &iscsiadm(&settings), AGAIN);
    // QEMU takes no more, whatever the target offers.
    if !lines.peers.is("QEMU", Initiator) {
        r2t_at_target(lines, burst);
    }
    lines.tried(
        "hikyaku",
        Initiator,
        "",
        "copy with hikyaku copy: it offers the largest bursts, and the target's keys bound them",
    );
    lines.untried(
        "ESXi",
        Initiator,
        &format!("esxcli iscsi adapter param set -A VMHBA -k FirstBurstLength -v {burst}"),
        "",
    );
    lines.untried(
        "Windows",
        Initiator,
        "",
        "in the registry, HKLM\\SYSTEM\\CurrentControlSet\\Control\\Class\\{4d36e97b-e325-11ce-bfc1-08002be10318}\\NNNN\\Parameters: \
         InitialR2T 0, ImmediateData 1, larger FirstBurstLength and MaxBurstLength",
    );
}

/// What the target offers.
fn r2t_at_target(lines: &mut Lines<'_>, burst: u64) {
    lines.tried(
        "LIO",
        Target,
        &format!(
            "targetcli /iscsi/TARGET/tpg1 set parameter InitialR2T=No ImmediateData=Yes FirstBurstLength={burst} \
             MaxBurstLength={BURST_MAX} MaxOutstandingR2T=16"
        ),
        "then the initiator logs in again; targetcli saveconfig keeps it",
    );
    let tgt = [
        ("FirstBurstLength", burst.to_string()),
        ("MaxBurstLength", BURST_MAX.to_string()),
        ("InitialR2T", "No".to_owned()),
        ("ImmediateData", "Yes".to_owned()),
        ("MaxOutstandingR2T", "16".to_owned()),
    ]
    .map(|(name, value)| {
        format!("tgtadm --lld iscsi --op update --mode target --tid TID --name {name} --value {value}")
    });
    lines.tried("tgt", Target, &tgt.join("; "), "then the initiator logs in again; lost when tgtd ends");
}

fn queue_depth(lines: &mut Lines<'_>, sizes: &Sizes) {
    let depth = sizes.depth;
    let settings = [
        ("node.session.queue_depth", depth.to_string()),
        ("node.session.cmds_max", (2 * depth).next_power_of_two().clamp(128, 2048).to_string()),
    ];
    lines.tried(
        "QEMU",
        Initiator,
        "",
        &format!(
            "add -m {} -W to qemu-img convert{}; for a guest's disk, iodepth {depth} in the guest",
            depth.min(QEMU_IMG_MAX),
            sizes.bound(depth.min(QEMU_IMG_MAX))
        ),
    );
    lines.tried(
        "Linux",
        Initiator,
        "",
        &format!(
            "let the program keep {depth} requests outstanding{} (fio --iodepth={depth}; dd has one: a tool with more, or \
             larger blocks)",
            sizes.bound(depth)
        ),
    );
    lines.tried("open-iscsi", Initiator, &iscsiadm(&settings), AGAIN);
    lines.tried("hikyaku", Initiator, "", &format!("add --depth {depth} to hikyaku copy"));
    lines.untried(
        "ESXi",
        Initiator,
        &format!("esxcli system module parameters set -m iscsi_vmk -p iscsivmk_LunQDepth={depth}"),
        "then restart the host",
    );
    lines.untried(
        "Windows",
        Initiator,
        "",
        &format!("let the program keep {depth} requests outstanding (diskspd -o{depth})"),
    );
}

fn at(side: Side) -> &'static str {
    match side {
        Initiator => "at the initiator",
        Target => "at the target",
    }
}

fn send_buffer(lines: &mut Lines<'_>, sizes: &Sizes, sender: Side) {
    let buffer = sizes.buffer;
    if sender == Initiator {
        let settings = [("node.conn[0].tcp.window_size", buffer.to_string())];
        lines.tried(
            "open-iscsi",
            Initiator,
            &format!("{}; sysctl -w net.core.wmem_max={buffer}", iscsiadm(&settings)),
            &format!(
                "{AGAIN}; the default of 524288 sets SO_SNDBUF and ends autotuning, 0 leaves it to the kernel"
            ),
        );
    }
    lines.tried(
        "Linux",
        sender,
        &format!("sysctl -w net.ipv4.tcp_wmem='4096 65536 {}'", 2 * buffer),
        &format!("{}; connections that begin later have it", at(sender)),
    );
    lines.tried(
        "Linux",
        sender,
        "hikyaku watch --tune",
        &format!("{}: enlarges the buffer of the live connection", at(sender)),
    );
    if sender == Initiator {
        lines.untried("ESXi", Initiator, "", "no setting of the software initiator's send buffer is known");
        lines.untried("Windows", Initiator, "netsh int tcp set global autotuninglevel=normal", "");
    }
}

fn receive_window(lines: &mut Lines<'_>, sizes: &Sizes, sender: Side) {
    let (buffer, receiver) = (sizes.buffer, sender.peer());
    if receiver == Initiator {
        let settings = [("node.conn[0].tcp.window_size", buffer.to_string())];
        lines.tried(
            "open-iscsi",
            Initiator,
            &format!("{}; sysctl -w net.core.rmem_max={buffer}", iscsiadm(&settings)),
            AGAIN,
        );
    }
    lines.tried(
        "Linux",
        receiver,
        &format!("sysctl -w net.ipv4.tcp_rmem='4096 131072 {}'", 2 * buffer),
        &format!("{}; connections that begin later have it", at(receiver)),
    );
    if receiver == Initiator {
        lines.untried("Windows", Initiator, "netsh int tcp set global autotuninglevel=normal", "");
    }
}

fn congestion(lines: &mut Lines<'_>, sender: Side) {
    let here = at(sender);
    lines.tried("Linux", sender, "sysctl -w net.ipv4.tcp_slow_start_after_idle=0", here);
    lines.tried(
        "Linux",
        sender,
        "ip route show | grep cwnd",
        &format!("{here}: a route to the peer with `cwnd` or `cwnd lock` bounds the window"),
    );
    lines.tried(
        "Linux",
        sender,
        "sysctl -w net.core.default_qdisc=fq net.ipv4.tcp_congestion_control=bbr",
        &format!("{here}; then the initiator logs in again"),
    );
}

fn loss(lines: &mut Lines<'_>, sender: Side) {
    lines.tried(
        "Linux",
        sender,
        "ethtool -S DEVICE | grep -E 'drop|err|disc'",
        "at both ends, and the counters of the switches: where packets are dropped",
    );
    lines.tried(
        "Linux",
        sender,
        "sysctl -w net.ipv4.tcp_congestion_control=bbr",
        &format!("{}; then the initiator logs in again: 0.1 % of loss costs it little", at(sender)),
    );
}

fn nagle(lines: &mut Lines<'_>, sender: Side) {
    lines.tried(
        "Linux",
        sender,
        "",
        "the sending program must set TCP_NODELAY: open-iscsi, LIO, tgt, QEMU and hikyaku do, so look for a proxy or tunnel",
    );
    lines.untried(
        "Windows",
        Initiator,
        "",
        "in the registry, below Tcpip\\Parameters\\Interfaces: TcpAckFrequency 1 and TCPNoDelay 1",
    );
    lines.untried(
        "ESXi",
        Initiator,
        "esxcli iscsi adapter param set -A VMHBA -k DelayedAck -v false",
        "then restart the host",
    );
}

fn local_device(lines: &mut Lines<'_>, sender: Side) {
    let here = at(sender);
    lines.tried(
        "Linux",
        sender,
        "tc -s qdisc show dev DEVICE",
        &format!("{here}: shows what its queueing discipline drops; a longer limit, or fq, drops less"),
    );
    lines.tried("Linux", sender, "ip link set DEVICE txqueuelen 10000", here);
}

fn target(lines: &mut Lines<'_>) {
    lines.tried("tgt", Target, "", "start it with more threads for each disk: tgtd --nr_iothreads 32");
    lines.tried(
        "LIO",
        Target,
        "targetcli /backstores ls",
        "a fileio store without write-back waits for the disk at each write",
    );
    lines.tried("hikyaku", Target, "hikyaku status", "at the target: the time of each layer");
    lines.tried("Linux", Target, "iostat -x 1", "at the target: whether its disks are busy");
}

fn cipher(lines: &mut Lines<'_>) {
    lines.tried(
        "hikyaku",
        Initiator,
        "",
        "suite=AES-128-GCM where the processor has AES; several sessions use several cores",
    );
}

fn cpu(lines: &mut Lines<'_>, sender: Side) {
    lines.tried(
        "Linux",
        sender,
        "top -H -p PID",
        &format!("{}: the busiest thread; cpu.stat of its cgroup has the throttled time", at(sender)),
    );
    if sender == Initiator {
        lines.tried("QEMU", Initiator, "", "give the disk an iothread: -object iothread,id=io0");
    }
}

fn think_time(lines: &mut Lines<'_>, sizes: &Sizes) {
    let depth = sizes.depth;
    lines.tried(
        "QEMU",
        Initiator,
        "",
        &format!(
            "add -m {0} -W to qemu-img convert{1}",
            depth.min(QEMU_IMG_MAX),
            sizes.bound(depth.min(QEMU_IMG_MAX))
        ),
    );
    lines.tried(
        "Linux",
        Initiator,
        "",
        &format!("the program pauses between commands: let it keep more of them outstanding (iodepth {depth}), or read ahead"),
    );
    lines.tried("hikyaku", Initiator, "", "copy with hikyaku copy: it keeps the queue full");
}

/// Programs of which one at most is the initiator, and the target.
const ENDS: [&[&str]; 2] = [&["open-iscsi", "QEMU", "ESXi", "Windows"], &["LIO", "tgt"]];

/// Introduces lines that are for several programs.
pub const ENDS_UNKNOWN: &str =
    "Which programs the two ends are is not known: a line for each program that they can be.";

/// Whether the lines are for several programs because it is not known which one an end is.
#[must_use]
pub fn is_for_several(lines: &[Advice]) -> bool {
    let is_advised = |system: &&&str| lines.iter().any(|line| line.system == **system);
    ENDS.iter().any(|systems| systems.iter().filter(is_advised).count() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(peers: &Peers, command: &str, remark: &str) -> String {
        Lines { peers, cause: Cause::R2t, all: Vec::new() }.line(command, remark)
    }

    /// The sentence promises what the removal of the cause gives; a line that gives less says so.
    #[test]
    fn a_line_says_what_its_value_gives_at_most() {
        // 16 commands of 64 KiB on a round trip of 100 ms carry 10.5 MB/s, with one R2T each 5.2 MB/s.
        for (command_s, expected, bound) in [
            (0.1, Some(50e6), " (16 at once carry at most 10.5 MB/s)"),
            (0.2, Some(50e6), " (16 at once carry at most 5.2 MB/s)"),
            (0.1, Some(10e6), ""),
            (0.1, None, ""),
            (0.0, Some(50e6), ""),
        ] {
            let sizes = Sizes { buffer: 1 << 20, depth: 120, block: 64 << 10, command_s, expected };
            assert_eq!(sizes.bound(16), bound, "{command_s} s, {expected:?}");
            let peers = Peers::default();
            let mut lines = Lines { peers: &peers, cause: Cause::QueueDepth, all: Vec::new() };
            queue_depth(&mut lines, &sizes);
            let qemu = lines.all.iter().find(|(advice, _)| advice.system == "QEMU").unwrap();
            assert!(qemu.0.line.contains(&format!("-m 16 -W to qemu-img convert{bound};")), "{:?}", qemu.0);
        }
    }

    #[test]
    fn a_line_can_be_typed_or_says_what_to_replace() {
        let unknown = Peers::default();
        assert_eq!(line(&unknown, "iostat -x 1", ""), "iostat -x 1");
        assert_eq!(line(&unknown, "", "by hand"), "# by hand");
        let device = line(&unknown, "ip link set DEVICE txqueuelen 1", "here");
        assert!(device.starts_with("ip link set DEVICE txqueuelen 1  # replace DEVICE ("), "{device}");
        assert!(device.ends_with("; here"), "{device}");
        let names = [Some("iqn.2026-11.a:TID".to_owned()), Some("[::1]:3260".to_owned())];
        let [target_name, portal] = names;
        let known = Peers { target_name, portal, ..Peers::default() };
        assert_eq!(line(&known, "x -T TARGET -p PORTAL", ""), "x -T iqn.2026-11.a:TID -p '[::1]:3260'");
        assert_eq!(line(&known, "/iscsi/TARGET/tpg1", "then"), "/iscsi/iqn.2026-11.a:TID/tpg1  # then");
    }
}
