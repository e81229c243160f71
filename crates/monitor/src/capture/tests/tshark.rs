//! Every segment compared with what tshark says of it.
//!
//! `CAPTURES="a.pcap b.pcapng" cargo test -p hikyaku-monitor --lib -- --ignored --nocapture same_as_tshark`

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::capture::Reader;
use crate::packet::Packet;

const FIELDS: [&str; 18] = [
    "frame.number",
    "frame.time_epoch",
    "ip.src",
    "ip.dst",
    "ipv6.src",
    "ipv6.dst",
    "tcp.srcport",
    "tcp.dstport",
    "tcp.seq_raw",
    "tcp.ack_raw",
    "tcp.flags",
    "tcp.window_size_value",
    "tcp.options.mss_val",
    "tcp.options.wscale.shift",
    "tcp.options.timestamp.tsval",
    "tcp.options.timestamp.tsecr",
    "tcp.options.sack_le",
    "tcp.len",
];

/// The segments of `file` in tshark's words.
fn by_tshark(file: &Path) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(file).args([
        "-Y",
        "tcp && !icmp && !icmpv6",
        "-T",
        "fields",
        "-E",
        "occurrence=a",
    ]);
    for preference in
        ["tcp.relative_sequence_numbers:FALSE", "tcp.desegment_tcp_streams:FALSE", "ip.defragment:FALSE"]
    {
        command.args(["-o", preference]);
    }
    FIELDS.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().expect("tshark runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

fn in_its_words(packet: &Packet<'_>) -> String {
    let (source, destination) = (packet.source.ip().to_string(), packet.destination.ip().to_string());
    let by_version = if packet.source.is_ipv4() {
        format!("{source}\t{destination}\t\t")
    } else {
        format!("\t\t{source}\t{destination}")
    };
    let number = |value: Option<u32>| value.map_or(String::new(), |value| value.to_string());
    let sacks = &packet.options.sacks[..packet.options.sack_count.into()];
    let sacks: Vec<_> = sacks.iter().map(|(left, _)| left.to_string()).collect();
    format!(
        "{}\t{}.{:09}\t{by_version}\t{}\t{}\t{}\t{}\t0x{:04x}\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
        packet.frame,
        packet.at_ns / 1_000_000_000,
        packet.at_ns % 1_000_000_000,
        packet.source.port(),
        packet.destination.port(),
        packet.seq,
        packet.ack,
        packet.flags.0,
        packet.window,
        number(packet.options.mss.map(u32::from)),
        number(packet.options.window_scale.map(u32::from)),
        number(packet.options.timestamps.map(|stamps| stamps.0)),
        number(packet.options.timestamps.map(|stamps| stamps.1)),
        sacks.join(","),
        packet.payload_bytes,
    )
}

#[test]
#[ignore = "needs tshark and captures"]
fn same_as_tshark() {
    let files = crate::named_captures();
    for file in files.split_whitespace().map(Path::new) {
        let expected = by_tshark(file);
        let mut reader = Reader::new(File::open(file).unwrap()).unwrap();
        let mut expected_lines = expected.iter();
        while let Some(packet) = reader.next().unwrap() {
            // The reserved bits are flags for tshark.
            let ours = in_its_words(&packet);
            assert_eq!(Some(&ours), expected_lines.next(), "{}", file.display());
        }
        assert_eq!(expected_lines.next(), None, "{}", file.display());
        println!("{}: {} segments, {:?}", file.display(), expected.len(), reader.notes());
    }
}
