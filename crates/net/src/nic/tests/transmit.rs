//! Frames on their way out, direct return, and drivers that follow one another.

use rustix::event::PollFlags;

use super::frames::{V4, V6, tcp_frame};
use super::*;
use crate::slot::input;

fn partial(checksum_start: u16, segment_bytes: u16, spans: &[(u32, u32)]) -> Transmit {
    Transmit { checksum_start, checksum_offset: 16, segment_bytes, ..plain(spans) }
}

#[test]
fn a_frame_is_its_header_and_spans_behind_the_header_of_virtio() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    let payload = noise(REGION_BYTES, 1);
    rig.write_region(0, &payload);
    let ne = |a: u16, b: u16| [a.to_ne_bytes(), b.to_ne_bytes()].concat();
    let v4 = tcp_frame(&V4, &[]);
    let v6 = tcp_frame(&V6, &[]);
    type Case<'a> = (&'a str, &'a [u8], Transmit, [Vec<u8>; 3]);
    let cases: &[Case<'_>] = &[
        ("complete", &v4, plain(&[(5, 100), (9000, 1), (4096, 1200)]), [vec![0, 0], ne(0, 0), ne(0, 0)]),
        (
            "partial checksum",
            &v4,
            partial(34, 0, &[(5, 100), (9000, 1), (4096, 1200)]),
            [vec![1, 0], ne(0, 0), ne(34, 16)],
        ),
        (
            "TCP segments over IPv4",
            &v4,
            partial(34, 1448, &[(1, 60_000), (77, 3)]),
            [vec![1, 1], ne(58, 1448), ne(34, 16)],
        ),
        (
            "TCP segments over IPv6",
            &v6,
            partial(54, 1428, &[(1, 60_000), (77, 3)]),
            [vec![1, 4], ne(78, 1428), ne(54, 16)],
        ),
    ];
    for (name, header, transmit, vnet) in cases {
        rig.submit(header, *transmit);
        settle(&mut driver);
        let mut expected = header.to_vec();
        for span in &transmit.spans {
            expected.extend(&payload[span.offset as usize..][..span.length as usize]);
        }
        let (found, frame) = take(&cable).unwrap();
        assert_eq!(found.to_vec(), vnet.concat(), "{name}");
        assert!(frame == expected, "{name}");
    }
    let counts = driver.counts();
    assert_eq!((counts.sent_frames, counts.bad_frames), (4, 0));
}

#[test]
fn a_direct_return_follows_the_write_and_names_the_ticket() {
    let mut rig = Rig::new();
    let (device, _cable) = cable();
    let mut driver = rig.driver(device, 1);
    let header = tcp_frame(&V4, &[]);
    rig.submit(
        &header,
        Transmit { client: CLIENT, socket: 4, generation: 5, ticket: 6, ..plain(&[(0, 64)]) },
    );
    rig.submit(&header, plain(&[(0, 64)]));
    rig.submit(&header, Transmit { client: CLIENT + 1, ..plain(&[(0, 64)]) });
    rig.submit(&header, Transmit { client: u32::MAX - 1, ..plain(&[(0, 64)]) });
    assert!(rig.returned().is_none(), "nothing has been sent");
    settle(&mut driver);
    let returned = rig.returned().unwrap();
    assert_eq!((returned.socket, returned.generation, returned.ticket), (4, 5, 6));
    assert!(rig.returned().is_none());
    let counts = driver.counts();
    assert_eq!((counts.sent_frames, counts.returned, counts.returns_skipped), (4, 1, 2));
    assert_eq!(rig.rings(), 0, "the ring was not armed");

    assert_eq!(rig.returns.arm(), Ok(true));
    rig.submit(&header, Transmit { client: CLIENT, ticket: 7, ..plain(&[(0, 64)]) });
    settle(&mut driver);
    assert_eq!(rig.rings(), 1, "the application sleeps until its bytes are submitted");
    assert_eq!(rig.returned().unwrap().ticket, 7);
}

#[test]
fn returns_for_which_there_is_no_room_are_skipped_and_frames_go_on() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    let header = tcp_frame(&V4, &[]);
    let more = layout::RETURNS as u64 + 10;
    for ticket in 0..more {
        rig.submit(&header, Transmit { client: CLIENT, ticket, ..plain(&[(0, 1)]) });
        settle(&mut driver);
        assert!(take(&cable).is_some());
    }
    let counts = driver.counts();
    assert_eq!((counts.returned, counts.returns_skipped), (layout::RETURNS as u64, 10));
    assert_eq!(std::iter::from_fn(|| rig.returned()).count(), layout::RETURNS);
    rig.submit(&header, Transmit { client: CLIENT, ticket: more, ..plain(&[(0, 1)]) });
    settle(&mut driver);
    assert_eq!(rig.returned().unwrap().ticket, more);
}

#[test]
fn a_full_device_keeps_the_frame_and_its_memory_and_order() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    let header = tcp_frame(&V4, &[]);
    let count = 200u32;
    for number in 0..count {
        rig.write_region(number as usize * 4, &number.to_be_bytes());
        // 60,000 bytes each: the socket holds about a dozen.
        rig.submit(
            &header,
            Transmit {
                client: CLIENT,
                ticket: number.into(),
                ..plain(&[(number * 4, 4), (100_000, 60_000)])
            },
        );
    }
    let mut arrived = 0;
    while driver.turn().unwrap() {}
    let written = rig.transmits.consumed().unwrap();
    assert!((1..u64::from(count)).contains(&written), "{written} went into the socket");
    assert!(driver.counts().busy > 0);
    assert_eq!(driver.interest() & PollFlags::OUT, PollFlags::OUT);
    assert_eq!(driver.deadline(), None, "the socket wakes the driver");
    assert_eq!(std::iter::from_fn(|| rig.returned()).count() as u64, written, "returned are those written");
    while arrived < count {
        let (_, frame) = take(&cable).unwrap();
        assert_eq!(frame[header.len()..][..4], arrived.to_be_bytes(), "in order, each once");
        arrived += 1;
        driver.turn().unwrap();
    }
    assert!(take(&cable).is_none());
    assert_eq!(rig.transmits.consumed(), Ok(u64::from(count)));
    assert_eq!(driver.interest() & PollFlags::OUT, PollFlags::empty());
}

#[test]
fn the_next_driver_continues_where_the_last_one_stopped() {
    let mut rig = Rig::new();
    let (device, other) = cable();
    let kept = device.as_fd().try_clone_to_owned().unwrap();
    let header = tcp_frame(&V4, &[]);
    let mut number = 0u32;
    let mut submit = |rig: &mut Rig, count| {
        for _ in 0..count {
            rig.write_region(number as usize * 4, &number.to_be_bytes());
            rig.submit(
                &header,
                Transmit { client: CLIENT, ticket: number.into(), ..plain(&[(number * 4, 4)]) },
            );
            number += 1;
        }
    };
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[10, 11], &[5]);
    submit(&mut rig, 3);
    settle(&mut driver);
    put(&other, [0; 10], &header);
    settle(&mut driver);
    submit(&mut rig, 4);
    settle(&mut driver);
    rig.fill(1, &[20], &[]);
    submit(&mut rig, 5);
    drop(driver);
    let mut next = rig.driver(Device::new(kept, &control::Device::Tap, LINK.mtu), 2);
    settle(&mut next);
    let sent: Vec<u32> = std::iter::from_fn(|| take(&other))
        .map(|(_, frame)| u32::from_be_bytes(*frame[header.len()..].first_chunk().unwrap()))
        .collect();
    assert_eq!(sent, (0..12).collect::<Vec<_>>());
    assert_eq!(std::iter::from_fn(|| rig.returned()).count(), 12);
    let inputs: Vec<_> =
        std::iter::from_fn(|| rig.input()).map(|input| (input.code, input.epoch, input.head)).collect();
    assert_eq!(inputs, [(input::ATTACH, 1, 0), (input::FRAME, 0, 10), (input::ATTACH, 2, 0)]);
    // Memory that was meant for the first driver is not used.
    put(&other, [0; 10], &header);
    settle(&mut next);
    assert_eq!((rig.input().map(|input| input.head), next.interest()), (None, PollFlags::empty()));
    rig.fill(2, &[30], &[6]);
    settle(&mut next);
    assert_eq!(rig.input().map(|input| input.head), Some(30));
}

#[test]
fn a_spare_driver_looks_at_rings_only_when_it_attaches() {
    let mut rig = Rig::new();
    let (device, other) = cable();
    let header = tcp_frame(&V4, &[]);
    let kept = device.as_fd().try_clone_to_owned().unwrap();
    let spare = rig.maps();
    let mut driver = rig.driver(device, 1);
    rig.submit(&header, Transmit { client: CLIENT, ticket: 1, ..plain(&[(0, 4)]) });
    settle(&mut driver);
    drop(driver);
    let mut driver = Driver::new(spare, Device::new(kept, &control::Device::Tap, 1500), LINK, 2);
    rig.submit(&header, Transmit { client: CLIENT, ticket: 2, ..plain(&[(0, 4)]) });
    settle(&mut driver);
    assert_eq!(std::iter::from_fn(|| take(&other)).count(), 2, "each once");
    assert_eq!(rig.returned().map(|returned| returned.ticket), Some(1));
    assert_eq!(rig.returned().map(|returned| returned.ticket), Some(2));
}

#[test]
fn arming_looks_once_more() {
    let mut rig = Rig::new();
    let (device, _cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[1], &[1]);
    settle(&mut driver);
    assert_eq!((driver.arm().unwrap(), driver.interest()), (true, PollFlags::IN));
    rig.fills.push(&Fill::default().into());
    assert!(!rig.fills.publish(), "a driver with memory does not wait for more");
    rig.transmits.push(&Transmit::default().into());
    assert!(rig.transmits.publish(), "the driver sleeps");
    driver.disarm();
    assert!(!driver.arm().unwrap(), "a frame waits");
    assert!(driver.turn().unwrap());
    rig.transmits.push(&Transmit::default().into());
    assert!(!rig.transmits.publish(), "the driver is awake");
}

#[test]
fn a_driver_without_memory_waits_for_it_and_not_for_the_device() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[1, 2], &[]);
    settle(&mut driver);
    put(&cable, [0; 10], &tcp_frame(&V4, &[]));
    assert!(!driver.turn().unwrap(), "the frame might need a tail");
    assert_eq!((driver.arm().unwrap(), driver.interest()), (true, PollFlags::empty()));
    rig.fills.push(&Fill { epoch: 1, tails: 1, ..Fill::default() }.into());
    assert!(rig.fills.publish(), "the driver sleeps");
    driver.disarm();
    assert!(driver.turn().unwrap());
    assert_eq!(rig.inputs.ready(), Ok(2));
}
