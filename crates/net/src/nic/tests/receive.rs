//! Frames on their way in.

use super::frames::{V4, V6, echo_frame, tcp_frame};
use super::*;
use crate::slot::input;

fn vnet(flags: u8, kind: u8, segment_bytes: u16) -> [u8; 10] {
    let mut header = [0; 10];
    (header[0], header[1]) = (flags, kind);
    header[4..6].copy_from_slice(&segment_bytes.to_ne_bytes());
    header
}

#[test]
fn attach_says_what_the_device_is_and_comes_first() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 5);
    put(&cable, [0; 10], &tcp_frame(&V4, &[]));
    rig.fill(5, &[0], &[0]);
    settle(&mut driver);
    let attach = rig.input().unwrap();
    let Input { code, mac, mtu, segments, epoch, .. } = attach;
    assert_eq!((code, mac, mtu, segments, epoch), (input::ATTACH, LINK.mac, LINK.mtu, 1, 5));
    assert_eq!(rig.input().map(|input| input.code), Some(input::FRAME));
}

#[test]
fn frames_lie_in_a_head_and_only_long_ones_in_a_tail() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[1023, 3, 2, 1, 0], &[127, 1, 0]);
    settle(&mut driver);
    rig.input();
    let lengths = [14, 60, HEAD_ROOM - 1, HEAD_ROOM, HEAD_ROOM + 1, 65_549, 14];
    let mut found = Vec::new();
    for length in lengths {
        let frame = noise(length, length as u64);
        put(&cable, vnet(1, 0, 0), &frame);
        settle(&mut driver);
        let Some(input) = rig.input() else { continue };
        assert!(rig.bytes(&input) == frame, "{length}");
        found.push((input.head, input.tail));
    }
    // In the order in which `inet` named them; the sixth frame waits for memory.
    assert_eq!(found, [(1023, NO_TAIL), (3, NO_TAIL), (2, NO_TAIL), (1, NO_TAIL), (0, 127)]);
    rig.fill(1, &[3, 2], &[]);
    settle(&mut driver);
    let input = rig.input().unwrap();
    assert_eq!((input.head, input.tail, input.length), (3, 1, 65_549));
    assert!(rig.bytes(&input) == noise(65_549, 65_549));
    assert_eq!(rig.input().map(|input| (input.head, input.tail)), Some((2, NO_TAIL)));
}

#[test]
fn memory_that_came_last_is_used_first() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[0, 1, 2, 3], &[0]);
    settle(&mut driver);
    rig.input();
    let mut heads = Vec::new();
    for _ in 0..3 {
        put(&cable, [0; 10], &noise(60, 0));
        settle(&mut driver);
        let head = rig.input().unwrap().head;
        heads.push(head);
        rig.fill(1, &[head], &[]);
    }
    assert_eq!(heads, [0, 0, 0]);
}

#[test]
fn a_lone_frame_ends_the_turn_and_many_come_in_growing_batches() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    for first in (0..28 * 4).step_by(28) {
        rig.fill(1, &(first..first + 28).collect::<Vec<_>>(), &[]);
    }
    rig.fill(1, &[], &[0]);
    settle(&mut driver);
    rig.input();
    let turn = |rig: &mut Rig, driver: &mut Driver| {
        let worked = driver.turn().unwrap();
        let frames = std::iter::from_fn(|| rig.input()).count();
        assert_eq!(worked, frames > 0);
        frames
    };
    for _ in 0..60 {
        put(&cable, [0; 10], &noise(60, 0));
    }
    let batches: Vec<_> = (0..8).map(|_| turn(&mut rig, &mut driver)).collect();
    assert_eq!(batches, [1, 2, 4, 8, 16, 16, 13, 0]);
    put(&cable, [0; 10], &noise(60, 0));
    put(&cable, [0; 10], &noise(60, 0));
    assert_eq!([(); 3].map(|()| turn(&mut rig, &mut driver)), [1, 1, 0]);
}

#[test]
fn what_virtio_says_of_checksums_and_segments_is_passed_on() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &(0..28).collect::<Vec<_>>(), &[]);
    rig.fill(1, &[], &[0]);
    settle(&mut driver);
    rig.input();
    let right = tcp_frame(&V4, b"payload");
    let mut wrong = right.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let arp = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 9, 8, 6], &[0; 46]].concat();
    type Case<'a> = (&'a str, [u8; 10], &'a [u8], u32, u32);
    let cases: &[Case<'_>] = &[
        ("partial: it never was on a wire", vnet(1, 0, 0), &wrong, 1, 0),
        ("verified by the device", vnet(2, 0, 0), &wrong, 1, 0),
        ("verified here", vnet(0, 0, 0), &right, 1, 0),
        ("wrong", vnet(0, 0, 0), &wrong, 0, 0),
        ("IPv6", vnet(0, 0, 0), &tcp_frame(&V6, b"odd"), 1, 0),
        ("ICMP", vnet(0, 0, 0), &echo_frame(&V4, b"odd"), 1, 0),
        ("ICMPv6", vnet(0, 0, 0), &echo_frame(&V6, b"odd"), 1, 0),
        ("nothing to verify", vnet(0, 0, 0), &arp, 0, 0),
        ("segments of IPv4", vnet(1, 1, 1448), &wrong, 1, 1448),
        ("segments of IPv6, CWR in the first", vnet(1, 0x84, 1428), &wrong, 1, 1428),
        ("segments without a checksum to complete", vnet(0, 1, 1448), &right, 0, 1448),
        ("segments of UDP", vnet(1, 5, 1448), &right, 1, 0),
    ];
    for (name, vnet, frame, is_checked, segment_bytes) in cases {
        put(&cable, *vnet, frame);
        settle(&mut driver);
        let input = rig.input().unwrap();
        assert_eq!((input.is_checked, input.segment_bytes), (*is_checked, *segment_bytes), "{name}");
    }
    assert_eq!(driver.counts().bad_checksums, 1);
}

#[test]
fn checksums_are_verified_across_head_and_tail() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[0, 1], &[0, 1]);
    settle(&mut driver);
    rig.input();
    let mut frame = tcp_frame(&V6, &noise(9001, 3));
    put(&cable, [0; 10], &frame);
    *frame.last_mut().unwrap() ^= 0x80;
    put(&cable, [0; 10], &frame);
    settle(&mut driver);
    assert_eq!([rig.input(), rig.input()].map(|input| input.unwrap().is_checked), [1, 0]);
}

#[test]
fn frames_that_are_no_frames_are_dropped_and_their_memory_is_used_again() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[0], &[0]);
    settle(&mut driver);
    rig.input();
    for length in [0, 13, 65_550, 70_000] {
        put(&cable, [0; 10], &noise(length, 0));
    }
    assert_eq!(rustix::io::write(&cable, &[1; 9]), Ok(9), "half a struct virtio_net_hdr");
    let frame = noise(60, 1);
    put(&cable, [0; 10], &frame);
    settle(&mut driver);
    assert_eq!((driver.counts().unreceived, driver.counts().received_frames), (5, 1));
    let input = rig.input().unwrap();
    assert_eq!(rig.bytes(&input), frame);
}

#[test]
fn a_full_ring_of_inputs_leaves_frames_at_the_device() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    for first in (0..28 * 12).step_by(28) {
        rig.fill(1, &(first..first + 28).collect::<Vec<_>>(), &[]);
    }
    rig.fill(1, &[], &[0]);
    let frame = noise(60, 0);
    for _ in 0..20 {
        for _ in 0..15 {
            put(&cable, [0; 10], &frame);
        }
        settle(&mut driver);
    }
    assert_eq!(driver.counts().received_frames, layout::INPUTS as u64 - 1, "one place has ATTACH");
    assert!(driver.interest().is_empty(), "the device would be ready all the time");
    assert!(driver.deadline().is_some(), "`inet` rings no bell when it has consumed");
    let read = std::iter::from_fn(|| rig.input()).count();
    settle(&mut driver);
    assert_eq!((read, rig.inputs.ready()), (layout::INPUTS, Ok(45)));
    assert_eq!(driver.deadline(), None);
}
