//! Every PDU that tshark finds, field by field.
//!
//! `CAPTURES="a.pcap b.pcapng" cargo test -p hikyaku-monitor --lib -- --ignored --nocapture flow::tests::tshark`

use std::fs::File;
use std::ops::Range;
use std::process::Command;

use iscsi::wire::{BHS_LENGTH, field};

use crate::capture::Reader;
use crate::event::{Event, Kind};
use crate::flow::Table;

/// Fields of tshark and where their bytes are in the header.
const FIELDS: [(&str, Range<usize>); 16] = [
    ("iscsi.totalahslength", field::TOTAL_AHS_LENGTH..field::TOTAL_AHS_LENGTH + 1),
    ("iscsi.datasegmentlength", field::DATA_SEGMENT_LENGTH),
    ("iscsi.lun", field::LUN),
    ("iscsi.initiatortasktag", field::ITT),
    ("iscsi.targettransfertag", field::TTT),
    ("iscsi.scsicommand.expecteddatatransferlength", field::EXPECTED_DATA_TRANSFER_LENGTH),
    ("iscsi.cmdsn", field::CMD_SN),
    ("iscsi.statsn", field::STAT_SN),
    ("iscsi.expstatsn", field::EXP_STAT_SN),
    ("iscsi.expcmdsn", field::EXP_CMD_SN),
    ("iscsi.maxcmdsn", field::MAX_CMD_SN),
    ("iscsi.datasn", field::DATA_SN),
    ("iscsi.r2tsn", field::DATA_SN),
    ("iscsi.bufferOffset", field::BUFFER_OFFSET),
    ("iscsi.desireddatalength", field::DESIRED_DATA_TRANSFER_LENGTH),
    ("iscsi.scsiresponse.residualcount", field::RESIDUAL_COUNT),
];

#[derive(Clone, Debug)]
struct Pdu {
    is_from_target: bool,
    fields: Vec<(&'static str, Range<usize>, Vec<u8>)>,
}

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    element.split_once(&format!(" {name}=\""))?.1.split('"').next()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    // A field of less than a byte has one digit.
    let text = if text.len() % 2 == 1 { format!("0{text}") } else { text.to_owned() };
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

/// PDUs in the order in which tshark shows them.
fn by_tshark(file: &str, port: u16) -> Vec<Pdu> {
    let mut command = Command::new("tshark");
    let output = command
        .args(["-n", "-r", file, "-T", "pdml", "-J", "iscsi", "-Y", "iscsi", "-d"])
        .arg(format!("tcp.port=={port},iscsi"))
        .output();
    let output = output.expect("tshark runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let protocols = text.split("<proto ").filter(|part| part.starts_with("name=\"iscsi\""));
    let pdus = protocols.filter_map(|protocol| {
        let elements: Vec<_> = protocol.split("<field ").skip(1).map(|rest| format!(" {rest}")).collect();
        let value = |name: &str| {
            let is_it = |element: &&String| attribute(element, "name") == Some(name);
            hex(attribute(elements.iter().find(is_it)?, "value")?)
        };
        let opcode = *value("iscsi.opcode")?.first()?;
        let found = FIELDS.into_iter().filter_map(|(name, range)| {
            let bytes = value(name).filter(|bytes| bytes.len() == range.len())?;
            Some((name, range, bytes))
        });
        let mut fields: Vec<_> = found.collect();
        fields.push(("iscsi.opcode", 0..1, vec![opcode]));
        Some(Pdu { is_from_target: opcode & 0x20 != 0, fields })
    });
    pdus.collect()
}

/// Headers by sender, and the port of the target.
fn by_flows(file: &str) -> ([Vec<[u8; BHS_LENGTH]>; 2], u16) {
    let mut reader = Reader::new(File::open(file).unwrap()).unwrap();
    let mut table = Table::new(&[]);
    let mut headers: [Vec<[u8; BHS_LENGTH]>; 2] = Default::default();
    while let Some(packet) = reader.next().unwrap() {
        table.push(&packet, &mut |_, event: &Event| {
            if let Kind::PduStart(start) = &event.kind {
                headers[event.from as usize].push(start.header);
            }
        });
    }
    (headers, table.flows().first().map_or(3260, |flow| flow.target.port()))
}

fn fits(pdu: &Pdu, header: &[u8; BHS_LENGTH]) -> bool {
    // tshark shows the opcode without the bits beside it.
    pdu.fields.iter().all(|(name, range, bytes)| {
        if *name == "iscsi.opcode" {
            header[0] & 0x3f == bytes[0] & 0x3f
        } else {
            header[range.clone()] == bytes[..]
        }
    })
}

#[test]
#[ignore = "needs tshark and captures of one connection each, with payload"]
fn same_as_tshark() {
    let files = crate::named_captures();
    for file in files.split_whitespace() {
        let (headers, port) = by_flows(file);
        let expected = by_tshark(file, port);
        let mut at = [0; 2];
        for pdu in &expected {
            let direction = usize::from(pdu.is_from_target);
            let rest = &headers[direction][at[direction]..];
            let found = rest.iter().position(|header| fits(pdu, header));
            at[direction] +=
                1 + found.unwrap_or_else(|| panic!("{file}: {pdu:x?} behind {at:?}, {:x?}", rest.first()));
        }
        let fields: usize = expected.iter().map(|pdu| pdu.fields.len()).sum();
        let ours: usize = headers.iter().map(Vec::len).sum();
        println!("{file}: {} PDUs of tshark, {fields} fields; {ours} PDUs here", expected.len());
        assert!(!expected.is_empty());
    }
}
