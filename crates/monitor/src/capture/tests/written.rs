//! What the writer of pcapng and the comments yield, for our own reader and for tshark.

use std::process::Command;

use iscsi::wire::{Bhs, CmdSn, DataSn, Itt, R2t, StatSn, Ttt};

use super::build::*;
use crate::capture::pcapng::Writer;
use crate::capture::{Comments, Frame};
use crate::event::{Event, Kind, Opaque, PduEnd, PduStart, Side};
use crate::limits::{COMMENTS_PER_FRAME_MAX, WRITTEN_INTERFACES_MAX};

fn frame(interface: u32, link_type: u16, number: u64, bytes: &[u8]) -> Frame<'_> {
    let original_bytes = bytes.len() as u32 + 7;
    Frame {
        number,
        at_ns: 1_700_000_000_000_000_000 + number,
        interface,
        link_type,
        snap_bytes: 0,
        original_bytes,
        bytes,
    }
}

/// What tshark says of `file`, a line a frame; `None` where it is not installed.
fn tshark(file: &[u8], fields: &[&str]) -> Option<Vec<String>> {
    let path = std::env::temp_dir().join(format!("hikyaku-written-{}.pcapng", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(&path).args(["-T", "fields", "-E", "aggregator=|"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output();
    std::fs::remove_file(&path).unwrap();
    let output = output.ok()?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<_> = complaints.lines().filter(|line| !line.contains("Running as user")).collect();
    assert_eq!(complaints, [""; 0]);
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn frames_are_written_with_comments() {
    let ip = ipv4(&[], 6, &tcp(&[], b"abcde"));
    let framed = ethernet(0x0800, &ip);
    let mut writer = Writer::new(Vec::new()).unwrap();
    let hostile = ["R2T offset 0".to_owned(), "name \x1b[31m\u{202e}".to_owned()];
    writer.write(&frame(0, 1, 1, &framed), &[]).unwrap();
    writer.write(&frame(3, 101, 2, &ip), &hostile).unwrap();
    writer.write(&frame(0, 1, 3, &framed[..55]), &hostile[..1]).unwrap();
    let many: Vec<_> = (0..COMMENTS_PER_FRAME_MAX + 2).map(|number| number.to_string()).collect();
    writer.write(&frame(0, 1, 4, &framed), &many).unwrap();
    let file = writer.finish().unwrap();

    let (found, counts, notes) = read(&file).unwrap();
    assert_eq!((counts.tcp, notes), (4, vec![]));
    for (line, end) in found.iter().zip(["5+\"abcde\"", "5+\"abcde\"", "5+\"a\"", "5+\"abcde\""]) {
        assert!(line.contains("at 170000000000000000") && line.ends_with(end), "{line}");
    }
    let Some(lines) = tshark(&file, &["frame.time_epoch", "frame.len", "tcp.seq_raw", "frame.comment"])
    else {
        println!("tshark is not installed: not compared");
        return;
    };
    let many = many[..COMMENTS_PER_FRAME_MAX].join("|");
    assert_eq!(
        lines,
        [
            "1700000000.000000001\t66\t1000\t".to_owned(),
            "1700000000.000000002\t52\t1000\tR2T offset 0|name \\u{1b}[31m\\u{202e}".to_owned(),
            "1700000000.000000003\t62\t1000\tR2T offset 0".to_owned(),
            format!("1700000000.000000004\t66\t1000\t{many}|and 2 more"),
        ]
    );
}

#[test]
fn many_interfaces_begin_a_new_section() {
    let ip = ipv4(&[], 6, &tcp(&[], b"x"));
    let mut writer = Writer::new(Vec::new()).unwrap();
    let interfaces = WRITTEN_INTERFACES_MAX as u32 + 3;
    for number in 0..2 * interfaces {
        writer.write(&frame(number % interfaces, 101, number.into(), &ip), &[]).unwrap();
    }
    let file = writer.finish().unwrap();
    let sections = file.windows(4).filter(|bytes| *bytes == [0x0a, 0x0d, 0x0d, 0x0a]).count();
    let (found, _, notes) = read(&file).unwrap();
    assert_eq!((found.len(), notes, sections), (2 * interfaces as usize, vec![], 3));
}

fn event(frame: u64, from: Side, kind: Kind) -> Event {
    Event { at_ns: 0, frame, from, kind }
}

#[test]
fn comments_say_what_pdus_say() {
    let r2t = R2t {
        lun: 0,
        itt: Itt(0x10),
        ttt: Ttt(0x20),
        stat_sn: StatSn(1),
        exp_cmd_sn: CmdSn(2),
        max_cmd_sn: CmdSn(3),
        r2t_sn: DataSn(0),
        buffer_offset: 65_536,
        desired_data_transfer_length: 256 << 10,
    };
    let mut write = [0; 48];
    (write[0], write[1], write[19], write[21], write[27]) = (1, 0xa1, 9, 0x40, 5);
    write[32..42].copy_from_slice(&[0x2a, 0, 0, 0, 8, 0, 0, 0x20, 0, 0]);
    let mut unknown = [0; 48];
    unknown[0] = 0x3d;
    let start = |offset, header| Kind::PduStart(PduStart { offset, bytes: 48, header });
    assert!(Bhs(&unknown).opcode().is_err());

    let mut comments = Comments::default();
    comments.event(7, &event(1, Side::Initiator, start(0, write)));
    assert_eq!(comments.take(), ["SCSI WRITE(10) 4 MiB lba 2048; itt 0x9, CmdSN 5"]);
    comments.event(7, &event(2, Side::Target, start(0, r2t.emit())));
    comments.event(7, &event(2, Side::Target, Kind::PduEnd(PduEnd { offset: 0 })));
    assert_eq!(comments.take(), ["R2T ttt 0x20 offset 65536 length 256 KiB; itt 0x10"]);
    comments.event(7, &event(3, Side::Target, start(48, unknown)));
    // The same offset of another connection is another PDU.
    comments.event(8, &event(4, Side::Initiator, Kind::PduEnd(PduEnd { offset: 0 })));
    comments.event(7, &event(4, Side::Initiator, Kind::PduEnd(PduEnd { offset: 0 })));
    comments.event(7, &event(5, Side::Initiator, Kind::Opaque(Opaque::Sealed)));
    assert_eq!(
        comments.take(),
        [
            "PDU of an unknown opcode itt 0x0, 48 bytes",
            "end of SCSI Command from frame 1",
            "from here on sealed (SEAL/1)"
        ]
    );
    // Every opcode with every flag has a line without an outcry.
    for opcode in 0..=255 {
        let mut header = [0xff; 48];
        header[0] = opcode;
        comments.event(1, &event(1, Side::Target, start(u64::from(opcode), header)));
    }
    assert_eq!(comments.take().len(), 256);
}
