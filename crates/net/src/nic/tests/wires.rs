//! Two drivers on a wire.

use super::frames::{V4, V6, tcp_frame};
use super::*;
use crate::nic::wire;

fn ends(settings: control::Wire) -> [Device; 2] {
    wire::pair().unwrap().map(|end| Device::new(end.descriptor, &control::Device::Wire(settings), end.mtu))
}

/// A rig whose driver has memory to receive into.
fn station(device: Device) -> (Rig, Driver) {
    let mut rig = Rig::new();
    let mut driver = rig.driver(device, 1);
    for first in (0..28 * 20).step_by(28) {
        rig.fill(1, &(first..first + 28).collect::<Vec<_>>(), &[]);
    }
    settle(&mut driver);
    rig.input();
    (rig, driver)
}

/// Headers with a partial checksum, the payload in memory of the application.
fn segments(flow: &frames::Flow, rig: &mut Rig, payload: &[u8], segment_bytes: u16) {
    rig.write_region(0, payload);
    let mut header = tcp_frame(flow, payload);
    header.truncate(header.len() - payload.len());
    let tcp = flow.header_bytes();
    let partial = flow.pseudo_header(6, header.len() - tcp + payload.len()).fold();
    header[tcp + 16..tcp + 18].copy_from_slice(&partial.to_ne_bytes());
    let transmit = Transmit {
        segment_bytes,
        checksum_start: tcp as u16,
        checksum_offset: 16,
        ..plain(&[(0, payload.len() as u32)])
    };
    rig.submit(&header, transmit);
}

#[test]
fn long_frames_are_divided_and_checksums_completed_and_verified() {
    for flow in [V4, V6] {
        let [one, other] = ends(control::Wire::default());
        let ((mut near, mut sender), (mut far, mut receiver)) = (station(one), station(other));
        let payload = noise(65_001, 5);
        segments(&flow, &mut near, &payload, 1428);
        segments(&flow, &mut near, &payload[..999], 0);
        settle(&mut sender);
        settle(&mut receiver);
        let header = flow.header_bytes() + 24;
        let mut stream: Vec<u8> = Vec::new();
        while let Some(input) = far.input() {
            let frame = far.bytes(&input);
            assert_eq!((input.is_checked, input.segment_bytes, input.tail), (1, 0, NO_TAIL));
            assert!(frame.len() <= 1514);
            stream.extend(&frame[header..]);
        }
        assert!(stream == [&payload[..], &payload[..999]].concat());
        assert_eq!(receiver.counts().bad_checksums, 0);
    }
}

#[test]
fn what_does_not_fit_a_wire_is_refused() {
    let [one, _other] = ends(control::Wire::default());
    let (mut rig, mut driver) = station(one);
    rig.submit(&tcp_frame(&V4, &[]), plain(&[(0, 1456)]));
    rig.submit(&tcp_frame(&V4, &[]), plain(&[(0, 1457)]));
    // Not TCP, though its slot says so.
    rig.submit(
        &tcp_frame(&V4, &[])[..40],
        Transmit { segment_bytes: 9, checksum_start: 34, ..plain(&[(0, 100)]) },
    );
    settle(&mut driver);
    let counts = driver.counts();
    assert_eq!((counts.sent_frames, counts.refused), (1, 2));
}

#[test]
fn a_receiver_that_does_not_read_holds_the_sender_up_and_loses_nothing() {
    let [one, other] = ends(control::Wire::default());
    let ((mut near, mut sender), (mut far, mut receiver)) = (station(one), station(other));
    let payload = noise(65_000, 5);
    let (mut sent, mut received) = (0u32, 0usize);
    while near.transmits.room().unwrap() > 0 {
        segments(&V4, &mut near, &payload, 1448);
        sender.turn().unwrap();
        sent += 1;
        assert!(sent < 2000, "the line is bounded");
    }
    let waiting = u64::from(sent) - near.transmits.consumed().unwrap();
    assert_eq!(waiting, layout::TRANSMITS as u64);
    assert!(sender.interest().contains(rustix::event::PollFlags::OUT));
    assert_eq!(sender.deadline(), None);
    let (mut heads, mut idle) = (Vec::new(), 0);
    while received < sent as usize * payload.len() {
        while let Some(input) = far.input() {
            received += input.length as usize - 58;
            heads.push(input.head);
        }
        while far.fills.room().unwrap() > 0 && !heads.is_empty() {
            let some = heads.split_off(heads.len().saturating_sub(28));
            far.fill(1, &some, &[]);
        }
        let worked = receiver.turn().unwrap() | sender.turn().unwrap();
        idle = if worked || far.inputs.ready() != Ok(0) { 0 } else { idle + 1 };
        assert!(idle < 3, "stalled at {received}");
    }
    assert_eq!(sender.counts().lost, 0);
    assert_eq!(sender.counts().sent_frames, u64::from(sent));
}

#[test]
fn a_wire_delays_and_its_driver_says_when_it_is_due() {
    let [one, other] = ends(control::Wire { delay_us: 20_000, ..control::Wire::default() });
    let ((mut near, mut sender), (mut far, mut receiver)) = (station(one), station(other));
    let begin = std::time::Instant::now();
    rig_frame(&mut near);
    settle(&mut sender);
    settle(&mut receiver);
    assert!(far.input().is_none());
    let due = sender.deadline().unwrap();
    assert!(due >= begin + Duration::from_micros(19_999));
    assert!(sender.arm().unwrap());
    std::thread::sleep(due.saturating_duration_since(std::time::Instant::now()) + Duration::from_micros(1));
    sender.disarm();
    assert!(sender.turn().unwrap());
    settle(&mut receiver);
    assert!(far.input().is_some());
    assert_eq!(sender.deadline(), None);
}

fn rig_frame(rig: &mut Rig) {
    rig.submit(&tcp_frame(&V4, &[]), plain(&[(0, 64)]));
}

#[test]
fn a_wire_loses_as_its_seed_says() {
    let seed = 5;
    let settings = control::Wire { loss: 0.3, seed, ..control::Wire::default() };
    let run = || {
        let [one, other] = ends(settings);
        let ((mut near, mut sender), (mut far, mut receiver)) = (station(one), station(other));
        let mut arrived = Vec::new();
        for _ in 0..100 {
            rig_frame(&mut near);
            settle(&mut sender);
            settle(&mut receiver);
            arrived.push(far.input().is_some());
        }
        let lost = arrived.iter().filter(|arrived| !**arrived).count() as u64;
        assert_eq!(sender.counts().lost, lost);
        assert_eq!(sender.counts().sent_frames, 100);
        arrived
    };
    let once = run();
    assert!((15..45).contains(&once.iter().filter(|arrived| !**arrived).count()), "seed {seed}");
    assert_eq!(run(), once, "seed {seed}");
}

#[test]
fn a_wire_whose_other_end_is_gone_is_a_link_that_is_down() {
    let [one, other] = ends(control::Wire::default());
    let (mut rig, mut driver) = station(one);
    drop(other);
    for _ in 0..10 {
        rig_frame(&mut rig);
        settle(&mut driver);
    }
    assert_eq!(rig.transmits.consumed(), Ok(10), "frames are lost and do not wait");
    assert!(driver.interest().is_empty(), "a dead socket is always ready");
    assert_eq!(driver.deadline(), None);
}
