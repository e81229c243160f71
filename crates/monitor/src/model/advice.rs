//! What to type against a limit.

use super::{Advice, Cause, Evidence, Verdict};
use crate::event::Side;

/// Buffers are set to this many bandwidth-delay products.
const MARGIN: f64 = 1.5;

/// Sizes that the advice needs, in bytes and commands.
struct Sizes {
    /// For windows and buffers.
    buffer: u64,
    /// Outstanding commands that fill the path.
    depth: u64,
    block: u64,
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
    Sizes { buffer, depth, block }
}

struct Lines(Vec<Advice>);

impl Lines {
    fn tried(&mut self, system: &'static str, line: String) {
        self.0.push(Advice { system, line, is_tried: true });
    }

    fn untried(&mut self, system: &'static str, line: String) {
        self.0.push(Advice { system, line, is_tried: false });
    }
}

pub(super) fn lines(evidence: &Evidence, verdict: &Verdict) -> Vec<Advice> {
    let sizes = sizes(evidence, verdict);
    let mut lines = Lines(Vec::new());
    for cause in [Some(verdict.limit), verdict.also].into_iter().flatten() {
        match cause {
            Cause::R2t => r2t(&mut lines, &sizes),
            Cause::QueueDepth => queue_depth(&mut lines, &sizes),
            Cause::SendBuffer => send_buffer(&mut lines, &sizes, evidence.sender),
            Cause::ReceiveWindow => receive_window(&mut lines, &sizes, evidence.sender),
            Cause::Congestion => congestion(&mut lines),
            Cause::Loss => loss(&mut lines),
            Cause::NagleDelayedAck => nagle(&mut lines),
            Cause::LocalDevice => local_device(&mut lines),
            Cause::Target => target(&mut lines),
            Cause::Cipher => cipher(&mut lines),
            Cause::Cpu => cpu(&mut lines),
            Cause::ThinkTime => think_time(&mut lines, &sizes),
            Cause::LineRate | Cause::Unknown => {}
        }
    }
    lines.0
}

/// Most that FirstBurstLength and MaxBurstLength can be (RFC 7143 sections 13.13, 13.14: 2^24 - 1), in 512s.
const BURST_MAX: u64 = 16_776_192;

fn r2t(lines: &mut Lines, sizes: &Sizes) {
    let burst = (sizes.block.max(262_144)).next_multiple_of(512).min(BURST_MAX);
    lines.tried(
        "open-iscsi",
        format!(
            "iscsiadm -m node -o update -n node.session.iscsi.InitialR2T -v No; \
             iscsiadm -m node -o update -n node.session.iscsi.ImmediateData -v Yes; \
             iscsiadm -m node -o update -n node.session.iscsi.FirstBurstLength -v {burst}; \
             iscsiadm -m node -o update -n node.session.iscsi.MaxBurstLength -v {BURST_MAX}; then log in again"
        ),
    );
    lines.tried(
        "LIO",
        format!(
            "targetcli /iscsi/IQN/tpg1 set parameter InitialR2T=No ImmediateData=Yes FirstBurstLength={burst} \
             MaxBurstLength={BURST_MAX} MaxOutstandingR2T=16"
        ),
    );
    lines.tried(
        "tgt",
        format!(
            "tgtadm --lld iscsi --op update --mode target --tid 1 --name FirstBurstLength --value {burst}; \
             the same with MaxBurstLength {BURST_MAX}, InitialR2T No, ImmediateData Yes, MaxOutstandingR2T 16"
        ),
    );
    lines.tried(
        "QEMU",
        format!(
            "libiscsi takes bursts of 256 KiB and one R2T at most: keep more requests outstanding \
             (qemu-img convert -m {} -W) or let `hikyaku copy` write",
            sizes.depth.min(16)
        ),
    );
    lines.tried("hikyaku", "offers what fills the path; the target's keys bound it".to_owned());
    lines.untried("ESXi", format!("esxcli iscsi adapter param set -A vmhbaN -k FirstBurstLength -v {burst}"));
    lines.untried(
        "Windows",
        "HKLM\\SYSTEM\\CurrentControlSet\\Control\\Class\\{4d36e97b-e325-11ce-bfc1-08002be10318}\\NNNN\\Parameters: \
         InitialR2T 0, ImmediateData 1, FirstBurstLength, MaxBurstLength"
            .to_owned(),
    );
}

fn queue_depth(lines: &mut Lines, sizes: &Sizes) {
    let depth = sizes.depth;
    lines.tried(
        "open-iscsi",
        format!(
            "iscsiadm -m node -o update -n node.session.queue_depth -v {depth}; \
             iscsiadm -m node -o update -n node.session.cmds_max -v {}; then log in again",
            (2 * depth).next_power_of_two().clamp(128, 2048)
        ),
    );
    lines.tried(
        "QEMU",
        format!("qemu-img convert -m {} -W; a guest's disk: iodepth {depth} in the guest", depth.min(16)),
    );
    lines.tried(
        "Linux",
        format!(
            "fio --iodepth={depth}; dd has one command outstanding: use a tool with more, or larger blocks"
        ),
    );
    lines.tried("hikyaku", format!("hikyaku copy --depth {depth}"));
    lines.untried(
        "ESXi",
        format!("esxcli system module parameters set -m iscsi_vmk -p iscsivmk_LunQDepth={depth}"),
    );
    lines.untried("Windows", format!("more outstanding requests in the program: diskspd -o{depth}"));
}

fn send_buffer(lines: &mut Lines, sizes: &Sizes, sender: Side) {
    let buffer = sizes.buffer;
    if sender == Side::Initiator {
        lines.tried(
            "open-iscsi",
            format!(
                "iscsiadm -m node -o update -n 'node.conn[0].tcp.window_size' -v {buffer}; \
                 sysctl -w net.core.wmem_max={buffer}; then log in again (the default of 524288 sets SO_SNDBUF and ends autotuning; \
                 0 leaves it to the kernel)"
            ),
        );
    }
    lines.tried("Linux", format!("sysctl -w net.ipv4.tcp_wmem='4096 65536 {}'", 2 * buffer));
    lines.tried("hikyaku", "hikyaku watch --tune sets the buffer of the live socket".to_owned());
    if sender == Side::Initiator {
        lines.untried("ESXi", "no setting of the software initiator's send buffer is known".to_owned());
        lines.untried("Windows", "netsh int tcp set global autotuninglevel=normal".to_owned());
    }
}

fn receive_window(lines: &mut Lines, sizes: &Sizes, sender: Side) {
    let buffer = sizes.buffer;
    let place = if sender == Side::Initiator { "at the target" } else { "at the initiator" };
    lines.tried("Linux", format!("sysctl -w net.ipv4.tcp_rmem='4096 131072 {}' ({place})", 2 * buffer));
    if sender == Side::Target {
        lines.tried(
            "open-iscsi",
            format!(
                "iscsiadm -m node -o update -n 'node.conn[0].tcp.window_size' -v {buffer}; \
                 sysctl -w net.core.rmem_max={buffer}; then log in again"
            ),
        );
        lines.untried("Windows", "netsh int tcp set global autotuninglevel=normal".to_owned());
    }
}

fn congestion(lines: &mut Lines) {
    lines.tried("Linux", "sysctl -w net.ipv4.tcp_slow_start_after_idle=0".to_owned());
    lines.tried("Linux", "ip route show: no `cwnd lock` on the route to the peer".to_owned());
    lines.tried(
        "Linux",
        "sysctl -w net.core.default_qdisc=fq net.ipv4.tcp_congestion_control=bbr; then log in again"
            .to_owned(),
    );
}

fn loss(lines: &mut Lines) {
    lines.tried(
        "Linux",
        "sysctl -w net.ipv4.tcp_congestion_control=bbr; then log in again: 0.1 % of loss costs it little"
            .to_owned(),
    );
    lines.tried(
        "Linux",
        "ethtool -S DEVICE at both ends, and the switches' counters: where packets are dropped".to_owned(),
    );
}

fn nagle(lines: &mut Lines) {
    lines.tried("Linux", "the program has to set TCP_NODELAY; open-iscsi, LIO, tgt and QEMU do".to_owned());
    lines.untried(
        "Windows",
        "TcpAckFrequency 1 and TCPNoDelay 1 below Tcpip\\Parameters\\Interfaces".to_owned(),
    );
    lines.untried("ESXi", "esxcli iscsi adapter param set -A vmhbaN -k DelayedAck -v false".to_owned());
}

fn local_device(lines: &mut Lines) {
    lines.tried(
        "Linux",
        "tc -s qdisc show dev DEVICE: drops of the queueing discipline; a longer limit, or fq".to_owned(),
    );
    lines.tried("Linux", "ip link set DEVICE txqueuelen 10000".to_owned());
}

fn target(lines: &mut Lines) {
    lines.tried("Linux", "iostat -x 1 at the target: whether its disks are busy".to_owned());
    lines.tried("tgt", "a backing store with more threads: tgtd --nr_iothreads 32".to_owned());
    lines.tried("LIO", "targetcli /backstores: write-back of a fileio store".to_owned());
    lines.tried("hikyaku", "hikyaku status: the time of each layer".to_owned());
}

fn cipher(lines: &mut Lines) {
    lines.tried(
        "hikyaku",
        "suite=AES-128-GCM where the processor has AES; several sessions use several cores".to_owned(),
    );
}

fn cpu(lines: &mut Lines) {
    lines.tried(
        "Linux",
        "top -H -p PID: the busiest thread; the cgroup's cpu.stat: throttled time".to_owned(),
    );
    lines.tried("QEMU", "an iothread for the disk: -object iothread,id=io0".to_owned());
}

fn think_time(lines: &mut Lines, sizes: &Sizes) {
    let depth = sizes.depth;
    lines.tried(
        "Linux",
        format!("the program pauses between commands: more of them at once (iodepth {depth}), or read ahead"),
    );
    lines.tried("QEMU", format!("qemu-img convert -m {} -W", depth.min(16)));
    lines.tried("hikyaku", "hikyaku copy keeps the queue full".to_owned());
}
