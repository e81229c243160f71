//! Events of real sockets, and a socket's size set by the iterator: as root on a kernel with BTF; elsewhere the reason is
//! printed and nothing is tested.
#![cfg(feature = "bpf")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use monitor::probe::bpf::{BpfError, Counted, Enlarged, Event, Events, Record, resize};
use monitor::probe::{Ends, Found, Prober, own};

const LIMIT: Duration = Duration::from_secs(10);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn cookie(stream: &TcpStream) -> u64 {
    let ends = Ends { local: stream.local_addr().unwrap(), remote: stream.peer_addr().unwrap() };
    let table: Vec<Found> = Prober::new().unwrap().table(false).unwrap();
    let found = table.iter().find(|found| found.ends == ends).unwrap();
    u64::from(found.cookie[0]) | u64::from(found.cookie[1]) << 32
}

/// `None` where programs cannot be loaded.
fn events() -> Option<Events> {
    match Events::new() {
        Ok(events) => Some(events),
        Err(error @ (BpfError::Rights | BpfError::Types(_))) => {
            println!("not tested: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Reads until `is_enough`.
fn read(events: &mut Events, mut is_enough: impl FnMut(&[Record]) -> bool) -> Vec<Record> {
    let mut all = Vec::new();
    let start = Instant::now();
    while !is_enough(&all) {
        assert!(start.elapsed() < LIMIT, "{all:?}");
        events.read(|record| all.push(record.clone()));
        std::thread::sleep(Duration::from_millis(5));
    }
    all
}

#[test]
fn writes_and_segments_of_watched_sockets_alone() {
    let Some(mut events) = events() else { return };
    let ((mut near, mut far), (mut other, _other_far)) = (pair(), pair());
    let watched = cookie(&near);
    events.watch([watched]).unwrap();
    let sizes = [100, 100, 1, 200_000, 48];
    let mut taken = vec![0; 300_000];
    for size in sizes {
        near.write_all(&vec![1; size]).unwrap();
        other.write_all(&[2; 10]).unwrap();
        far.read_exact(&mut taken[..size]).unwrap();
    }
    let total = sizes.iter().sum::<usize>() as u64;
    let is_last = |record: &Record| matches!(&record.event, Event::Segment(sample) if sample.unacked_segments == Some(0));
    // An answer, so that a segment arrives after all is acknowledged.
    std::thread::sleep(Duration::from_millis(50));
    far.write_all(&[3]).unwrap();
    let all = read(&mut events, |all| {
        all.iter().any(
            |record| matches!(&record.event, Event::Segment(sample) if sample.bytes_acked >= Some(total)),
        )
    });
    assert!(all.iter().all(|record| record.cookie == watched));
    assert!(all.windows(2).all(|two| two[0].at_ns <= two[1].at_ns));
    let written: Vec<(u32, u64)> = all
        .iter()
        .filter_map(|record| match record.event {
            Event::Written { seq, bytes, .. } => Some((seq, bytes)),
            _ => None,
        })
        .collect();
    if events.has_writes {
        assert_eq!(
            written.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(),
            sizes.map(|size| size as u64)
        );
        let places = written.windows(2).all(|two| two[1].0 == two[0].0.wrapping_add(two[0].1 as u32));
        assert!(places, "{written:?}");
    }
    // The socket's own words, after everything.
    let own = own(&near).unwrap();
    let Some(Record { event: Event::Segment(last), .. }) = all.iter().rev().find(|record| is_last(record))
    else {
        panic!("{all:?}")
    };
    assert_eq!([last.cwnd_segments, last.mss_bytes], [own.cwnd_segments, own.mss_bytes]);
    assert_eq!(
        [last.send_buffer_bytes, last.ssthresh_segments],
        [own.send_buffer_bytes, own.ssthresh_segments]
    );
    assert_eq!(last.peer_window_bytes, own.peer_window_bytes);
    let mut counted = Counted::default();
    all.iter().for_each(|record| counted.add(record));
    assert_eq!((counted.retransmissions, events.dropped()), (0, 0));
    // Nothing of a socket that is watched no more.
    events.watch([]).unwrap();
    near.write_all(&[1; 1000]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    events.read(|record| panic!("{record:?}"));
}

#[test]
fn what_finds_no_room_is_counted() {
    let Some(mut events) = events() else { return };
    let (mut near, mut far) = pair();
    let watched = cookie(&near);
    events.watch([watched]).unwrap();
    let reader = std::thread::spawn(move || std::io::copy(&mut far, &mut std::io::sink()).unwrap());
    let start = Instant::now();
    while events.dropped() == 0 {
        assert!(start.elapsed() < LIMIT, "the ring never fills");
        (0..10_000).for_each(|_| near.write_all(&[0; 10]).unwrap());
    }
    let mut count = 0;
    while {
        let before = count;
        events.read(|_| count += 1);
        count > before
    } {}
    assert!(count > 10_000, "{count}");
    let dropped = events.dropped_of(watched);
    events.watch([]).unwrap();
    assert_eq!(events.dropped(), dropped, "counted after the socket is forgotten");
    drop(near);
    assert!(reader.join().unwrap() > 0);
}

#[test]
fn the_iterator_sets_a_size() {
    if events().is_none() {
        return;
    }
    let (near, _far) = pair();
    let size = || own(&near).unwrap().send_buffer_bytes.unwrap();
    let cookie = cookie(&near);
    let before = size();
    let wanted = 300_000;
    let resized = resize(cookie, wanted, true).unwrap().unwrap();
    assert_eq!((resized.before_bytes, resized.after_bytes), (before.into(), wanted.into()));
    assert_eq!(size(), wanted);
    let resized = resize(cookie, 100_000, false).unwrap().unwrap();
    assert_eq!((resized.before_bytes, resized.after_bytes), (wanted.into(), wanted.into()), "never lower");
    let bytes = 400_000;
    let enlarged = Enlarged::enlarge(cookie, bytes).unwrap().unwrap();
    assert_eq!(
        (enlarged.before_bytes, enlarged.after_bytes, u64::from(size())),
        (wanted.into(), bytes, bytes)
    );
    assert!(Enlarged::enlarge(cookie, bytes).unwrap().is_none(), "it has that");
    assert_eq!(enlarged.restore().unwrap(), u64::from(wanted));
    // More than net.core.wmem_max allows.
    let Some(enlarged) = Enlarged::enlarge(cookie, u64::MAX).unwrap() else { panic!("larger") };
    assert!(enlarged.after_bytes < 256 << 20, "{enlarged:?}");
    let refused = Enlarged::enlarge(cookie, u64::MAX).unwrap_err();
    assert!(refused.to_string().contains("net.core.wmem_max"), "{refused}");
    assert_eq!(resize(u64::MAX, wanted, false).unwrap(), None);
}
