//! A made-up connection: the paper's, with 4 MB writes at an RTT of 20 ms which leave in bursts of 1 MB, because the
//! send buffer holds no more.

use iscsi::wire::BHS_LENGTH;
use monitor::command::{Burst, Command, Standing, Transfer, Trigger};
use monitor::event::{Ack, Distances, PduStart, Segment, Vantage};
use monitor::model::{Advice, Caps, Path, Protocol, Seconds, Source};
use monitor::sample::Sample;
use monitor::series::{Collector, Series};
use monitor::view::{Flow, Subject};
use monitor::{Cause, Event, Evidence, Kind, Side, Verdict};

const MSS: u64 = 1448;
const RTT_NS: u64 = 20_000_000;
/// Time of one packet at 1 Gbit/s.
const PACKET_NS: u64 = 12_300;
const BLOCK: u64 = 4 << 20;
const DATA_OUT: u64 = 256 << 10;
const HEADER: u64 = BHS_LENGTH as u64;
const TARGET_NS: u64 = 2_000_000;
const THINK_NS: u64 = 500_000;

/// How the connection behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub writes: u32,
    /// Most bytes in flight.
    pub cap: u64,
    /// One packet of this number is sent twice; 0: none.
    pub loss_every: u64,
    /// Whether the sender's socket was sampled, every millisecond.
    pub is_sampled: bool,
    pub points_max: usize,
}

impl Default for Plan {
    fn default() -> Self {
        Self { writes: 6, cap: 1 << 20, loss_every: 0, is_sampled: true, points_max: 1_000_000 }
    }
}

/// The parts of a [`Subject`].
#[derive(Debug)]
pub(crate) struct Case {
    pub verdict: Verdict,
    pub evidence: Evidence,
    pub series: Series,
    pub commands: Vec<Command>,
    pub flow: Flow,
    pub notes: Vec<String>,
}

impl Case {
    pub(crate) fn new(plan: Plan) -> Self {
        let mut run = Run::new(plan);
        for write in 0..plan.writes {
            run.write(write);
        }
        let seconds = run.now as f64 / 1e9;
        let data_bytes = u64::from(plan.writes) * BLOCK;
        let commands = run.commands;
        Self {
            verdict: verdict(seconds, data_bytes),
            evidence: evidence(seconds, data_bytes, plan),
            series: run.collector.finish(),
            flow: flow(&commands),
            notes: Vec::new(),
            commands,
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            flow: self.flow.clone(),
            verdict: &self.verdict,
            evidence: &self.evidence,
            series: &self.series,
            commands: &self.commands,
            notes: &self.notes,
        }
    }
}

struct Run {
    plan: Plan,
    collector: Collector,
    commands: Vec<Command>,
    /// Time, the next byte, and the packets in flight: time of the acknowledgement and end.
    now: u64,
    sent: u64,
    acked: u64,
    replies: u64,
    packets: u64,
    in_flight: std::collections::VecDeque<(u64, u64)>,
    sampled: u64,
}

impl Run {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
            collector: Collector::new(plan.points_max),
            commands: Vec::new(),
            now: 0,
            sent: 0,
            acked: 0,
            replies: 0,
            packets: 0,
            in_flight: std::collections::VecDeque::new(),
            sampled: 0,
        }
    }

    fn event(&mut self, from: Side, kind: Kind) {
        self.collector.handle_event(&Event { at_ns: START_NS + self.now, frame: 1, from, kind });
    }

    fn pdu(&mut self, from: Side, opcode: u8, itt: u32, offset: u64, bytes: u64) {
        let mut header = [0; BHS_LENGTH];
        header[0] = opcode;
        header[16..20].copy_from_slice(&itt.to_be_bytes());
        self.event(from, Kind::PduStart(PduStart { offset, bytes, header }));
    }

    fn sample(&mut self, unsent: u64) {
        let waiting = self.sent - self.acked;
        while self.plan.is_sampled && self.sampled <= self.now {
            let sample = Sample {
                at_ns: START_NS + self.sampled,
                mss_bytes: Some(MSS as u32),
                cwnd_segments: Some(1200),
                ssthresh_segments: Some(900),
                unacked_segments: Some((waiting / MSS) as u32),
                notsent_bytes: Some(unsent.min(self.plan.cap - waiting.min(self.plan.cap)) as u32),
                send_queue_bytes: Some((waiting + waiting / 5) as u32),
                send_buffer_bytes: Some((self.plan.cap * 6 / 5) as u32),
                rtt_us: Some(20_100),
                ..Sample::default()
            };
            self.collector.handle_sample(Side::Initiator, &sample);
            self.sampled += 1_000_000;
        }
    }

    /// Acknowledgements that arrive until `now`, one for two packets.
    fn acknowledge(&mut self, until: u64, unsent: u64) {
        while let Some((at, end)) = self.in_flight.pop_front_if(|(at, _)| *at <= until) {
            self.now = self.now.max(at);
            self.acked = end;
            if !(end / MSS).is_multiple_of(2) && !self.in_flight.is_empty() {
                continue;
            }
            let ack = Ack {
                acknowledged: end,
                window_bytes: Some(4 << 20),
                is_bare: true,
                round_trip_ns: Some(RTT_NS),
                ..Ack::default()
            };
            self.event(Side::Target, Kind::Ack(ack));
            self.sample(unsent);
        }
    }

    fn segment(&mut self, bytes: u64, repeated: bool) {
        let offset = if repeated { self.sent - bytes } else { self.sent };
        let bytes32 = bytes as u32;
        let repeated_bytes = if repeated { bytes32 } else { 0 };
        let segment =
            Segment { offset, bytes: bytes32, repeated_bytes, mss: MSS as u16, ..Segment::default() };
        self.event(Side::Initiator, Kind::Segment(segment));
    }

    fn write(&mut self, number: u32) {
        let (began, start, itt) = (self.now, self.sent, number + 1);
        let end = start + BLOCK + HEADER * (1 + BLOCK / DATA_OUT);
        self.collector.handle_standing(START_NS + began, &Standing { outstanding: 1, ..Standing::default() });
        let mut next_pdu = start;
        let mut first = None;
        while self.sent < end {
            let bytes = MSS.min(end - self.sent);
            while self.sent - self.acked + bytes > self.plan.cap {
                let Some((at, _)) = self.in_flight.front().copied() else { break };
                self.acknowledge(at, end - self.sent);
            }
            if self.sent >= next_pdu {
                let (opcode, length) = if next_pdu == start { (1, HEADER) } else { (5, DATA_OUT + HEADER) };
                self.pdu(Side::Initiator, opcode, itt, next_pdu, length);
                next_pdu += length;
            }
            self.segment(bytes, false);
            self.sent += bytes;
            self.packets += 1;
            first.get_or_insert(self.now);
            if self.plan.loss_every > 0 && self.packets.is_multiple_of(self.plan.loss_every) {
                self.segment(bytes, true);
            }
            self.in_flight.push_back((self.now + RTT_NS, self.sent));
            self.now += PACKET_NS;
            self.acknowledge(self.now, end - self.sent);
            self.sample(end - self.sent);
        }
        let last = self.now - PACKET_NS;
        self.acknowledge(u64::MAX, 0);
        self.now += TARGET_NS;
        self.pdu(Side::Target, 0x21, itt, self.replies, HEADER);
        self.collector.handle_standing(START_NS + self.now, &Standing::default());
        self.replies += HEADER;
        let command = command(number, START_NS + began, last - began, self.now - last);
        self.collector.handle_command(&command);
        self.commands.push(command);
        self.now += THINK_NS;
        self.sample(0);
    }
}

const START_NS: u64 = 1_700_000_000_000_000_000;

fn command(number: u32, at_ns: u64, ta_ns: u64, tb_ns: u64) -> Command {
    let burst = |trigger, gap_ns| Burst { packets: 724, bytes: 1 << 20, gap_ns, trigger };
    Command {
        frame: u64::from(number) * 4000 + 1,
        at_ns,
        itt: number + 1,
        lun: 0,
        operation: 0x2a,
        transfer: Transfer::Write,
        bytes: BLOCK,
        ta_ns,
        tb_ns,
        tc_ns: Some(THINK_NS),
        latency_ns: ta_ns + tb_ns,
        target_ns: TARGET_NS,
        r2t_rounds: 0,
        r2t_bytes: 0,
        unsolicited_bytes: BLOCK as u32,
        depth: 1,
        bursts: vec![
            burst(Trigger::Command, 0),
            burst(Trigger::Ack, 11_000_000),
            burst(Trigger::Ack, 11_000_000),
            burst(Trigger::Ack, 11_000_000),
        ],
        status: Some(0),
        is_inferred: false,
    }
}

fn waits(seconds: f64) -> Seconds {
    let mut waits = Seconds::default();
    for (cause, share) in [
        (Cause::SendBuffer, 0.36),
        (Cause::LineRate, 0.37),
        (Cause::QueueDepth, 0.22),
        (Cause::Target, 0.02),
        (Cause::ThinkTime, 0.006),
        (Cause::Unknown, 0.024),
    ] {
        waits[cause] = share * seconds;
    }
    waits
}

fn verdict(seconds: f64, data_bytes: u64) -> Verdict {
    let bytes_per_s = data_bytes as f64 / seconds;
    Verdict {
        limit: Cause::SendBuffer,
        also: None,
        candidates: Vec::new(),
        confidence: 0.93,
        share: 0.36,
        waits: waits(seconds),
        bytes_per_s,
        expected_bytes_per_s: Some(bytes_per_s * 1.31),
        next_limit: Some(Cause::Congestion),
        sentence: "The initiator's send buffer limits: it holds 1.0 MiB, an RTT of 20.0 ms at the line's rate needs \
                   4.0 MiB. Without it 4 MiB writes run at 1.3 times the rate; then the congestion window limits."
            .to_owned(),
        advice: vec![
            Advice {
                system: "open-iscsi",
                cause: Cause::SendBuffer,
                line: "iscsiadm -m node -T iqn.2024-01.example:disk -o update -n node.conn[0].tcp.window_size -v 4194304"
                    .to_owned(),
                is_tried: true,
            },
            Advice {
                system: "Linux",
                cause: Cause::SendBuffer,
                line: "sysctl -w net.core.wmem_max=8388608 net.ipv4.tcp_wmem=\"4096 87380 8388608\"".to_owned(),
                is_tried: true,
            },
            Advice {
                system: "Windows",
                cause: Cause::SendBuffer,
                line: "Set-NetTCPSetting -AutoTuningLevelLocal Normal".to_owned(),
                is_tried: false,
            },
        ],
        notes: vec![
            "The congestion window was sampled every millisecond; between samples it is not known.".to_owned(),
        ],
    }
}

fn evidence(seconds: f64, data_bytes: u64, plan: Plan) -> Evidence {
    Evidence {
        source: Source::Capture(Vantage::At(Side::Initiator)),
        sender: Side::Initiator,
        seconds,
        data_bytes,
        waits: waits(seconds),
        alternatives: Seconds::default(),
        path: Path {
            rtt_s: Some(0.02),
            rtt_loaded_s: Some(0.0201),
            mss_bytes: Some(MSS as u32),
            line_bytes_per_s: Some(117.7e6),
            data_packets: data_bytes / MSS,
            retransmitted_packets: (data_bytes / MSS).checked_div(plan.loss_every).unwrap_or(0),
            ..Path::default()
        },
        caps: Caps {
            in_flight_max_bytes: Some(plan.cap),
            in_flight_stopped_bytes: Some(plan.cap),
            window_bytes: Some(4 << 20),
            congestion_window_bytes: plan.is_sampled.then_some(1200 * MSS),
            ssthresh_bytes: None,
            send_buffer_bytes: plan.is_sampled.then_some(plan.cap * 6 / 5),
        },
        protocol: Some(Protocol {
            commands: u64::from(plan.writes),
            block_bytes: BLOCK,
            depth: 1,
            depth_max: 1,
            command_window: 128,
            unsolicited_bytes: BLOCK,
            ta_s: 0.0665,
            tb_s: 0.022,
            tc_s: 0.0005,
            target_s: 0.002,
            ..Protocol::default()
        }),
        cpu: None,
    }
}

fn flow(commands: &[Command]) -> Flow {
    let keys = [
        ("MaxRecvDataSegmentLength", "262144"),
        ("FirstBurstLength", "4194304"),
        ("MaxBurstLength", "4194304"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxOutstandingR2T", "1"),
        ("HeaderDigest", "None"),
        ("DataDigest", "None"),
    ];
    Flow {
        id: "1".to_owned(),
        source: "paper-4M-20ms.pcapng".to_owned(),
        initiator: "192.0.2.10:40112".to_owned(),
        target: "192.0.2.20:3260".to_owned(),
        initiator_name: Some("iqn.2024-01.example:host".to_owned()),
        target_name: Some("iqn.2024-01.example:disk".to_owned()),
        vantage: Vantage::At(Side::Initiator),
        distances: Distances { initiator_ns: Some(10_000), target_ns: Some(RTT_NS) },
        negotiated: keys.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
        commands: commands.len() as u64,
        frames: commands.len() as u64 * 4400,
    }
}
