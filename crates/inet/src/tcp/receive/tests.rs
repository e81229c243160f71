use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::memory::Capacity;
use crate::pools::{Client, Header};
use crate::{ConnectionId, Node, Slab, SlabHead};

const IRS: SeqNumber = SeqNumber(u32::MAX - 20_000);
const OWNER: Owner = Owner { connection: ConnectionId { index: 0, generation: 0 }, client: 0 };

/// Pools of frames only.
fn with_pools<R>(frames: u32, tails: u32, test: impl FnOnce(&mut Pools<'_>) -> R) -> R {
    let capacity = Capacity { frames, tails, connections: 1, ..Capacity::default() };
    let mut header = Header::new(capacity, [0; 16], 1);
    let mut heads = [SlabHead::default(); 2];
    let [pieces, segments] = &mut heads;
    let mut records = vec![Frame::new_zeroed(); frames as usize];
    let mut clients = [Client::default()];
    let (mut none, mut no_segments): (
        [Node<crate::tcp::Piece>; 0],
        [Node<crate::tcp::recovery::Segment>; 0],
    ) = ([], []);
    test(&mut Pools {
        header: &mut header,
        pieces: Slab::format(pieces, &mut none),
        segments: Slab::format(segments, &mut no_segments),
        frames: &mut records,
        clients: &mut clients,
    })
}

fn receiver(pools: &Pools<'_>, bytes_max: u32, segment: u32) -> Receive {
    let mut receive = Receive::new(bytes_max, Time::ZERO);
    receive.on_syn(IRS, segment);
    receive.advertise(pools, 0, receive.shift);
    receive
}

/// Bytes `start..start + length` of the stream, in a frame of their own.
fn arrive(receive: &mut Receive, pools: &mut Pools<'_>, start: u32, length: u32, now: Time) -> Fate {
    let free = pools.frames.iter().position(|frame| frame.holder == Holder::Driver).expect("a frame");
    let text = Text { frame: free as u32, frame_bytes: length + 54, seq: IRS + 1 + start, start: 54, length };
    if !receive.is_acceptable(text.seq, length) {
        return Fate::Unused;
    }
    receive.on_text(pools, OWNER, &text, now)
}

fn blocks(receive: &Receive, max: usize) -> Vec<(i32, i32)> {
    let (blocks, count) = receive.sack(max);
    let at = |seq: SeqNumber| seq.distance(IRS + 1);
    blocks[..count].iter().map(|block| (at(block.start), at(block.end))).collect()
}

#[test]
fn rfc2018_the_latest_block_comes_first_and_grows() {
    with_pools(32, 4, |pools| {
        let mut receive = receiver(pools, 60_000, 100);
        let steps = [
            (100, 100, vec![(100, 200)]),
            (300, 100, vec![(300, 400), (100, 200)]),
            (500, 100, vec![(500, 600), (300, 400), (100, 200)]),
            (700, 100, vec![(700, 800), (500, 600), (300, 400), (100, 200)]),
            (900, 100, vec![(900, 1000), (700, 800), (500, 600), (300, 400)]),
            (400, 100, vec![(300, 600), (900, 1000), (700, 800)]),
            (200, 100, vec![(100, 600), (900, 1000), (700, 800)]),
            // All up to 600 is in order; only what is behind is reported.
            (0, 100, vec![(900, 1000), (700, 800)]),
        ];
        for (start, length, expected) in steps {
            receive.ack_now = false;
            assert_eq!(arrive(&mut receive, pools, start, length, Time::ZERO), Fate::Kept);
            assert_eq!(blocks(&receive, 4), expected, "after {start}");
            assert!(receive.ack_now, "out of order, or filling a gap: RFC 5681 4.2");
        }
    });
}

#[test]
fn rfc2883_a_duplicate_is_reported_once_and_first() {
    with_pools(32, 4, |pools| {
        let mut receive = receiver(pools, 60_000, 100);
        arrive(&mut receive, pools, 0, 100, Time::ZERO);
        arrive(&mut receive, pools, 200, 100, Time::ZERO);
        receive.note_duplicate(&Text { frame: 9, frame_bytes: 154, seq: IRS + 1, start: 54, length: 100 });
        assert_eq!(blocks(&receive, 3), [(0, 100), (200, 300)]);
        receive.on_ack_sent(false);
        assert_eq!(blocks(&receive, 3), [(200, 300)]);
        assert_eq!(arrive(&mut receive, pools, 250, 50, Time::ZERO), Fate::Unused);
        assert_eq!(blocks(&receive, 3), [(250, 300), (200, 300)]);
    });
}

#[test]
fn rfc9293_3_8_6_3_an_ack_for_every_second_full_segment_and_after_40_ms() {
    with_pools(64, 4, |pools| {
        let mut receive = receiver(pools, 60_000, 1000);
        let mut start = 0;
        let mut next = |receive: &mut Receive, length| {
            receive.ack_now = false;
            arrive(receive, pools, start, length, Time(500));
            start += length;
            receive.ack_now
        };
        for _ in 0..QUICK_ACKS {
            assert!(next(&mut receive, 100), "at the start every segment");
            receive.on_ack_sent(false);
        }
        assert!(!next(&mut receive, 1000));
        assert_eq!(receive.ack_at, Time(40_500));
        assert!(next(&mut receive, 1000));
        receive.on_ack_sent(false);
        assert_eq!(receive.ack_at, Time::NEVER);
        assert!(!next(&mut receive, 1999));
        receive.on_ack_sent(true);
        assert!(next(&mut receive, 2000), "two segments in one frame");
    });
}

#[test]
fn rfc9293_3_8_6_the_right_edge_stays_while_a_peer_pins_frames_with_single_bytes() {
    with_pools(24, 4, |pools| {
        let mut receive = receiver(pools, 60_000, 1000);
        let edge = receive.edge;
        let mut kept = 0;
        while arrive(&mut receive, pools, kept, 1, Time::ZERO) == Fate::Kept {
            kept += 1;
            receive.advertise(pools, 0, receive.shift);
            assert!(!receive.edge.is_before(edge));
        }
        // A connection holds at most two thirds of all frames.
        assert!((10..=16).contains(&kept), "{kept}");
        assert_eq!(receive.window(pools, 0), 0);
        // The frames come back, and so does the window.
        while let Some((frame, ..)) = receive.deliver(pools) {
            pools.free_kept(frame, Some(&mut receive.pinned));
            receive.on_released(pools, 0, 1, 0, Time::ZERO);
        }
        assert!(receive.window(pools, 0) >= 8000);
        assert_eq!(receive.pinned, Pinned::default());
    });
}

#[test]
fn the_next_bytes_displace_late_ones_when_frames_are_short() {
    with_pools(24, 4, |pools| {
        let mut receive = receiver(pools, 60_000, 1000);
        let mut start = 10;
        while arrive(&mut receive, pools, start, 10, Time::ZERO) == Fate::Kept {
            start += 20;
        }
        let late = receive.late.length;
        assert_eq!(arrive(&mut receive, pools, 0, 10, Time::ZERO), Fate::Kept);
        assert_eq!((receive.late.length, receive.ready.length), (late - 2, 2), "one dropped, one ready");
        let last = blocks(&receive, 4).iter().map(|&(_, end)| end).max();
        assert!(last.is_some_and(|last| last < start.cast_signed() - 20), "its block is gone");
    });
}

#[test]
fn the_buffer_grows_with_what_the_client_takes_in_a_round_trip() {
    with_pools(1000, 100, |pools| {
        let mut receive = receiver(pools, 4 << 20, 1400);
        assert_eq!(receive.buffer, 256 << 10);
        let (mut start, mut now) = (0, Time(1000));
        for _ in 0..400 {
            arrive(&mut receive, pools, start, 1400, now);
            start += 1400;
            let (frame, ..) = receive.deliver(pools).expect("in order");
            pools.free_kept(frame, Some(&mut receive.pinned));
            now = now.after(50);
            receive.on_released(pools, 0, 1400, 10_000, now);
            receive.advertise(pools, 0, receive.shift);
        }
        // 200 segments in a round trip of 10 ms, four times.
        assert!((1 << 20..1_300_000).contains(&receive.buffer), "{}", receive.buffer);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Segments in any order and overlap: what is delivered is the stream, SACK says what is there, frames add up.
    #[test]
    fn what_arrives_in_any_order_is_the_stream(
        segments in prop::collection::vec((0..3000_u32, 1..400_u32), 1..80),
        frames in 8..80_u32,
    ) {
        with_pools(frames, frames, |pools| {
            let mut receive = receiver(pools, 2500, 300);
            let mut have = BTreeSet::new();
            let mut offset = 0;
            for (start, length) in segments {
                let edge = receive.edge.distance(IRS + 1).cast_unsigned();
                let before = receive.late.length + receive.ready.length;
                let fate = arrive(&mut receive, pools, start, length, Time::ZERO);
                let after = receive.late.length + receive.ready.length;
                if fate == Fate::Kept {
                    have.extend(start..(start + length).min(edge));
                } else {
                    prop_assert!(after <= before, "nothing was kept");
                }
                let next = receive.nxt.distance(IRS + 1).cast_unsigned();
                prop_assert!((0..next).all(|byte| have.contains(&byte)), "acknowledged, and never came");
                // Blocks are whole: they hold only bytes that came, and no byte beside them is late.
                let late: BTreeSet<u32> = pools_late(&receive, pools);
                receive.has_duplicate = false;
                for (start, end) in blocks(&receive, 4) {
                    let (start, end) = (start.cast_unsigned(), end.cast_unsigned());
                    prop_assert!(start > next && (start..end).all(|byte| late.contains(&byte)));
                    prop_assert!(!late.contains(&(start - 1)) && !late.contains(&end));
                }
                if fate == Fate::Kept && !late.is_empty() && start > next {
                    prop_assert!(!blocks(&receive, 4).is_empty());
                }
                prop_assert_eq!(receive.pinned.heads, after);
                while let Some((frame, first, length, at)) = receive.deliver(pools) {
                    prop_assert_eq!(at, offset);
                    let record = &pools.frames[frame as usize];
                    prop_assert_eq!(record.seq.distance(IRS + 1), offset as i32);
                    prop_assert!(first >= 54);
                    offset += u64::from(length);
                    pools.free_kept(frame, Some(&mut receive.pinned));
                    receive.on_released(pools, 0, length, 0, Time::ZERO);
                }
                while pools.pop_free().is_some() {}
                receive.advertise(pools, 0, receive.shift);
                prop_assert_eq!(offset as u32, next);
            }
            receive.clear(pools, true);
            prop_assert_eq!(receive.pinned, Pinned::default());
            Ok(())
        })?;
    }
}

/// The bytes that wait for others.
fn pools_late(receive: &Receive, pools: &Pools<'_>) -> BTreeSet<u32> {
    let (mut late, mut before) = (BTreeSet::new(), None);
    while let Some(frame) = pools.after(&receive.late, before) {
        let Frame { seq, length, .. } = pools.frames[frame as usize];
        let start = seq.distance(IRS + 1).cast_unsigned();
        for byte in start..start + length {
            assert!(late.insert(byte), "a byte twice");
        }
        before = Some(frame);
    }
    late
}
