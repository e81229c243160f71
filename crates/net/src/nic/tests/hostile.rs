//! An `inet` that lies: no panic, no byte of other memory, and the next right frame goes out.

use area::ring::{CONSUMER_BYTES, Mapped, SLOT_BYTES, Words as _, producer_bytes};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::frames::{V4, tcp_frame};
use super::*;
use crate::slot::{REGION_FRAMES, SPANS, input};

const HEADER: usize = 58;

fn good() -> Transmit {
    Transmit {
        header_bytes: HEADER as u16,
        segment_bytes: 500,
        checksum_start: 34,
        checksum_offset: 16,
        ..plain(&[(0, 1000)])
    }
}

fn span(span: Span) -> Transmit {
    let mut transmit = good();
    transmit.spans[3] = span;
    transmit
}

#[test]
fn each_wrong_field_of_a_frame_drops_it() {
    let right = Span { region: REGION, generation: GENERATION, offset: 0, length: 64 };
    let received = Span { region: REGION_FRAMES, generation: 9, offset: 0, length: 64 };
    let end = REGION_BYTES as u32;
    let room = HEAD_ROOM as u32;
    let cases: &[(&str, Transmit)] = &[
        ("header_of_nothing", Transmit { header_bytes: 0, ..good() }),
        (
            "header_below_ethernet",
            Transmit { header_bytes: 13, segment_bytes: 0, checksum_start: 0, ..good() },
        ),
        ("header_longer_than_its_slot", Transmit { header_bytes: 245, ..good() }),
        ("header_longest", Transmit { header_bytes: u16::MAX, ..good() }),
        ("checksum_in_the_ethernet_header", Transmit { checksum_start: 13, ..good() }),
        ("checksum_behind_the_header", Transmit { checksum_start: 34, checksum_offset: 23, ..good() }),
        ("checksum_far_behind", Transmit { checksum_start: u16::MAX, checksum_offset: u16::MAX, ..good() }),
        ("segments_without_checksum", Transmit { checksum_start: 0, ..good() }),
        ("region_unknown", span(Span { region: REGION + 1, ..right })),
        ("region_behind_the_table", span(Span { region: REGIONS_MAX as u32, ..right })),
        ("region_largest", span(Span { region: REGION_FRAMES - 1, ..right })),
        ("generation_before", span(Span { generation: GENERATION - 1, ..right })),
        ("generation_after", span(Span { generation: GENERATION + 1, ..right })),
        ("span_behind_the_region", span(Span { offset: end, ..right })),
        ("span_across_the_end", span(Span { offset: end - 63, ..right })),
        ("span_overflows", span(Span { offset: u32::MAX - 3, ..right })),
        ("span_longest", span(Span { length: u32::MAX, ..right })),
        ("frame_longer_than_any", span(Span { length: 64_492, ..right })),
        ("head_behind_the_last", span(Span { generation: layout::HEADS as u32, ..received })),
        ("head_largest", span(Span { generation: u32::MAX, ..received })),
        ("frame_without_tail", span(Span { offset: room - 63, ..received })),
        ("frame_of_head_unknown_to_have_a_tail", span(Span { generation: 8, offset: room, ..received })),
        (
            "frame_behind_its_tail",
            span(Span { offset: room + TAIL_BYTES as u32 - 63, generation: 4, ..received }),
        ),
        ("frame_overflows", span(Span { offset: u32::MAX, ..received })),
    ];
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    // Head 4 has a tail.
    rig.fill(1, &[4], &[2]);
    settle(&mut driver);
    put(&cable, [0; 10], &noise(5000, 9));
    settle(&mut driver);
    let header = tcp_frame(&V4, &[]);
    assert_eq!(header.len(), HEADER);
    for (done, (name, transmit)) in (1..).zip(cases) {
        rig.submit_as(&header, Transmit { client: CLIENT, ..*transmit });
        settle(&mut driver);
        assert_eq!(take(&cable), None, "{name}");
        assert_eq!((driver.counts().bad_frames, driver.counts().sent_frames), (done, done - 1), "{name}");
        assert!(rig.returned().is_none(), "{name}");
        rig.submit_as(&header, good());
        settle(&mut driver);
        assert_eq!(take(&cable).map(|(_, frame)| frame.len()), Some(HEADER + 1000), "after {name}");
        assert_eq!(rig.transmits.consumed(), Ok(2 * done), "{name}");
    }
    // What is still right at the borders.
    let cases = [
        ("last bytes of the region", span(Span { offset: end - 64, ..right })),
        ("longest frame", span(Span { length: 65_549 - 1058, ..right })),
        ("last bytes of a head", span(Span { offset: room - 64, ..received })),
        (
            "last bytes of a tail",
            span(Span { offset: room + TAIL_BYTES as u32 - 64, generation: 4, ..received }),
        ),
        ("across head and tail", span(Span { offset: room - 32, generation: 4, ..received })),
        ("an empty span of nowhere", span(Span { region: 5, length: 0, ..received })),
    ];
    for (name, transmit) in cases {
        rig.submit_as(&header, transmit);
        settle(&mut driver);
        let length = HEADER + 1000 + transmit.spans[3].length as usize;
        assert_eq!(take(&cable).map(|(_, frame)| frame.len()), Some(length), "{name}");
    }
}

#[test]
fn an_echo_comes_from_both_parts_of_the_frame() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[4], &[2]);
    settle(&mut driver);
    let frame = noise(5000, 9);
    put(&cable, [0; 10], &frame);
    settle(&mut driver);
    let mut transmit = Transmit { client: NO_CLIENT, ..Transmit::default() };
    for (to, (offset, length)) in transmit.spans.iter_mut().zip([(42, 4958), (2000, 100), (0, 36), (2036, 4)])
    {
        *to = Span { region: REGION_FRAMES, generation: 4, offset, length };
    }
    let header = noise(42, 1);
    rig.submit(&header, transmit);
    settle(&mut driver);
    let expected = [&header[..], &frame[42..], &frame[2000..2100], &frame[..36], &frame[2036..2040]].concat();
    assert!(take(&cable).unwrap().1 == expected);

    // The head's next frame has no tail.
    rig.fill(1, &[4], &[2]);
    settle(&mut driver);
    put(&cable, [0; 10], &frame[..60]);
    settle(&mut driver);
    rig.submit(&header, transmit);
    settle(&mut driver);
    assert_eq!((take(&cable), driver.counts().bad_frames), (None, 1));
}

#[test]
fn memory_of_a_client_that_is_gone_is_not_sent() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    let header = tcp_frame(&V4, &[]);
    let is_sent = |rig: &mut Rig, driver: &mut Driver| {
        rig.submit_as(&header, Transmit { client: CLIENT, ..good() });
        settle(driver);
        (take(&cable).is_some(), rig.returned().is_some())
    };
    assert_eq!(is_sent(&mut rig, &mut driver), (true, true));
    let memory = rig.descriptors[3].try_clone().unwrap();
    let memory = memory.as_fd();
    driver.maps().add_region(CLIENT + 1, REGION, GENERATION + 1, memory, REGION_BYTES as u32).unwrap();
    assert_eq!(is_sent(&mut rig, &mut driver), (false, false), "the number was used again");
    driver.maps().add_region(CLIENT, REGION, GENERATION, memory, REGION_BYTES as u32).unwrap();
    driver.maps().remove_client(CLIENT + 1);
    assert_eq!(is_sent(&mut rig, &mut driver), (true, true));
    driver.maps().remove_client(CLIENT);
    driver.maps().remove_client(u32::MAX);
    assert_eq!(is_sent(&mut rig, &mut driver), (false, false));
}

#[test]
fn numbers_outside_of_the_tables_are_refused() {
    let rig = Rig::new();
    let mut maps = rig.maps();
    let memory = rig.descriptors[3].as_fd();
    assert!(maps.add_region(CLIENT, REGIONS_MAX as u32, 0, memory, 4096).is_err());
    assert!(maps.add_region(CLIENT, REGIONS_MAX as u32 - 1, 0, memory, 4096).is_ok());
    let [.., nic, client] = &rig.descriptors;
    let channel =
        |bytes| Channel::map(nic.as_fd(), bytes, client.as_fd(), layout::direct::CLIENT_BYTES).unwrap();
    let bell = || Doorbell::new().unwrap().1;
    let bytes = layout::direct::NIC_BYTES;
    assert!(maps.add_client(CLIENTS_MAX as u32, channel(bytes), bell()).is_err());
    assert!(maps.add_client(CLIENTS_MAX as u32 - 1, channel(bytes), bell()).is_ok());
}

#[test]
fn wrong_numbers_of_free_memory_are_ignored() {
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    rig.fill(1, &[1, 1, layout::HEADS as u32, u32::MAX], &[2, 2, layout::TAILS as u32]);
    rig.fill(1, &[1], &[2]);
    rig.fills.push(&Fill { epoch: 1, heads: u16::MAX, tails: u16::MAX, ..Fill::default() }.into());
    rig.fills.push(&Fill { epoch: 1, heads: 28, tails: 1, ..Fill::default() }.into());
    let _ = rig.fills.publish();
    rig.fill(2, &[3], &[3]);
    rig.fill(0, &[4], &[4]);
    settle(&mut driver);
    assert_eq!(driver.counts().bad_fills, 9);
    for _ in 0..2 {
        put(&cable, [0; 10], &noise(60, 0));
    }
    settle(&mut driver);
    rig.input();
    assert_eq!(
        (rig.input().map(|input| input.head), rig.input().is_none()),
        (Some(1), true),
        "one head was right"
    );
}

#[test]
fn impossible_counters_end_the_driver_and_not_by_a_panic() {
    // Of the memory of `inet`: counters of frames to send, of free memory, of inputs consumed.
    let parts = [0, producer_bytes(layout::TRANSMITS)];
    let parts = [parts[0], parts[1], parts[1] + producer_bytes(layout::FILLS)];
    for (part, value) in [(0, 257), (0, u64::MAX), (1, 67), (1, u64::MAX), (2, 300), (2, u64::MAX)] {
        let mut rig = Rig::new();
        let (device, cable) = cable();
        let mut driver = rig.driver(device, 1);
        rig.fill(1, &(0..28).collect::<Vec<_>>(), &[]);
        rig.fill(1, &[], &[0]);
        settle(&mut driver);
        let memory =
            Arc::new(Region::shared(rig.descriptors[0].as_fd(), layout::driver::INET_BYTES, true).unwrap());
        let words = Mapped::new(memory, parts[part], CONSUMER_BYTES);
        words.store(0, value, Ordering::Release);
        let mut result = driver.turn();
        // The counter of inputs is looked at when the ring seems full.
        for head in (0..400).filter(|_| part == 2) {
            if result.is_err() {
                break;
            }
            put(&cable, [0; 10], &noise(60, 0));
            rig.fill(1, &[head], &[]);
            result = driver.turn();
        }
        assert!(matches!(result, Err(Fault::Corrupt(_))), "part {part}, {value}: {result:?}");
    }
}

/// Each impossible value of the predecessor's counters is replaced before the next driver uses its rings.
#[test]
fn a_driver_works_whatever_counters_its_predecessor_left() {
    let rings = layout::driver::RINGS;
    let own = [rings[0].consumed, rings[1].consumed, rings[2].published].map(|(memory, offset)| {
        assert_eq!(memory, 1, "the driver's");
        offset
    });
    for left in [0, 1, 4, 257, 1 << 40, u64::MAX] {
        let mut rig = Rig::new();
        let (device, cable) = cable();
        let mut driver = rig.driver(device, 1);
        let header = tcp_frame(&V4, &[]);
        let slot = Transmit { client: CLIENT, ..good() };
        rig.fill(1, &(0..20).collect::<Vec<_>>(), &[0]);
        for _ in 0..2 {
            rig.submit_as(&header, slot);
            settle(&mut driver);
            assert!(take(&cable).is_some() && rig.returned().is_some());
            put(&cable, [0; 10], &noise(60, 0));
        }
        settle(&mut driver);
        while rig.input().is_some() {}
        assert_eq!((rig.transmits.consumed(), rig.fills.consumed()), (Ok(2), Ok(1)));
        drop((driver, cable));
        for (descriptor, offset) in [(1, own[0]), (1, own[1]), (1, own[2]), (4, 0)] {
            rustix::io::pwrite(&rig.descriptors[descriptor], &left.to_ne_bytes(), offset as u64).unwrap();
        }
        let (device, cable) = super::cable();
        rig.submit_as(&header, slot);
        let mut driver = rig.driver(device, 2);
        settle(&mut driver);
        assert!(take(&cable).is_some(), "{left}: the frame that waited");
        assert_eq!(take(&cable), None, "{left}: a frame that was sent before");
        assert!(rig.returned().is_some(), "{left}");
        rig.fill(2, &(0..20).collect::<Vec<_>>(), &[0]);
        put(&cable, [0; 10], &noise(60, 0));
        settle(&mut driver);
        let inputs: Vec<_> = std::iter::from_fn(|| rig.input()).collect();
        assert!(matches!(inputs[..], [.., _, _]), "{left}: {inputs:?}");
        let [attach, frame] = inputs[inputs.len() - 2..] else { unreachable!() };
        assert_eq!((attach.code, attach.epoch, frame.code), (input::ATTACH, 2, input::FRAME), "{left}");
        assert_eq!((rig.transmits.consumed(), rig.fills.consumed()), (Ok(3), Ok(2)), "{left}");
    }
}

/// Slots of any content, with the fields that select something often near to the right ones.
#[test]
fn slots_of_noise_never_panic_and_are_all_consumed() {
    let seed = 41;
    let mut random = Random(seed);
    let mut rig = Rig::new();
    let (device, cable) = cable();
    let mut driver = rig.driver(device, 1);
    let header = tcp_frame(&V4, &[]);
    let near = |random: &mut Random, values: &[u32]| {
        let value = values[random.next() as usize % values.len()];
        match random.next() % 64 {
            0 => random.next() as u32,
            1 => value.wrapping_sub(1),
            2 => value.wrapping_add(1),
            _ => value,
        }
    };
    for round in 0..50_000u64 {
        let mut words = [0; SLOT_BYTES / 8];
        words.fill_with(|| random.next());
        let mut transmit = Transmit::from(words);
        if !random.next().is_multiple_of(16) {
            transmit.header_bytes = near(&mut random, &[14, 58, 244]) as u16;
            transmit.segment_bytes = near(&mut random, &[0, 1, 1448]) as u16;
            transmit.checksum_start = near(&mut random, &[0, 34]) as u16;
            transmit.checksum_offset = near(&mut random, &[16]) as u16;
            transmit.client = near(&mut random, &[CLIENT, NO_CLIENT, CLIENTS_MAX as u32]);
            for span in &mut transmit.spans[..SPANS - 1] {
                span.region = near(&mut random, &[REGION, REGION_FRAMES]);
                span.generation = near(&mut random, &[GENERATION, 4]);
                span.offset = near(&mut random, &[0, 1, HEAD_ROOM as u32]);
                span.length = near(&mut random, &[0, 1, 1448, HEAD_ROOM as u32]);
            }
            transmit.spans[SPANS - 1].length = 0;
        }
        let fill = Fill {
            epoch: near(&mut random, &[1]),
            heads: near(&mut random, &[1, 14, 28]) as u16,
            tails: near(&mut random, &[1, 14]) as u16,
            unused: random.next(),
            numbers: std::array::from_fn(|_| {
                near(&mut random, &[4, layout::HEADS as u32, layout::TAILS as u32])
            }),
        };
        rig.submit_as(&header, transmit);
        rig.post(fill);
        if round % 7 == 0 {
            put(&cable, [0; 10], &noise(5000, round));
        }
        settle(&mut driver);
        while take(&cable).is_some() {}
        while rig.input().is_some() {}
        assert_eq!(rig.transmits.consumed(), Ok(round + 1), "seed {seed}, round {round}");
    }
    let counts = driver.counts();
    println!("seed {seed}: {counts:?}");
    assert!(counts.sent_frames > 1000 && counts.bad_frames > 1000 && counts.bad_fills > 1000);
    assert!(counts.received_frames > 10);
}
