//! Tests of layers over memory.

use area::PoolLimits;
use io::Io;

use super::*;
use crate::{Endpoint, IoErrorKind, Kind, OpenOptions, Request, open};

const OPTIONS: OpenOptions = OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };

fn attach(io: &mut Io, words: &str) -> Box<dyn Endpoint> {
    open(&Spec::parse(words).unwrap(), &OPTIONS).unwrap().attach(io).unwrap()
}

/// Submits all at once and returns (id, loop time of completion, error kind) in order of completion.
fn run(
    io: &mut Io,
    endpoint: &mut dyn Endpoint,
    kinds: Vec<Kind>,
) -> Vec<(u64, Duration, Option<IoErrorKind>)> {
    let (mut done, mut events, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let count = kinds.len();
    for (id, kind) in kinds.into_iter().enumerate() {
        endpoint.submit(io, Request { id: id as u64, kind }, &mut done);
    }
    loop {
        out.extend(done.drain(..).map(|c| (c.id, io.now(), c.result.err().map(|error| error.kind))));
        if out.len() == count {
            return out;
        }
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            endpoint.on_event(io, event, &mut done);
        }
    }
}

fn reads(io: &Io, count: u64, bytes: usize) -> Vec<Kind> {
    (0..count)
        .map(|i| Kind::Read { offset: i * bytes as u64, into: io.pool().take(bytes).unwrap() })
        .collect()
}

#[test]
fn delayed_requests_wait_beside_each_other_and_layers_stack() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut endpoint = attach(&mut io, "mem:1M,delay=20ms,log,delay=10ms");
    let start = io.now();
    let kinds = reads(&io, 100, 4096);
    let out = run(&mut io, &mut *endpoint, kinds);
    assert_eq!(out.iter().map(|(id, ..)| *id).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    assert!(out[0].1 - start >= Duration::from_millis(30));
    assert!(out[99].1 - start < Duration::from_millis(100 * 30), "not one after the other");
}

#[test]
fn a_rate_is_kept() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    for words in ["mem:1M,limit=4MB/s", "mem:1M,iops=100"] {
        let mut endpoint = attach(&mut io, words);
        let start = io.now();
        let kinds = reads(&io, 10, 40_000);
        let out = run(&mut io, &mut *endpoint, kinds);
        assert!(out[9].1 - start >= Duration::from_millis(80), "{words}: {:?}", out[9].1 - start);
    }
}

#[test]
fn faults_strike_where_and_when_they_are_told() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let medium = Some(IoErrorKind::Medium);
    for (words, expected) in [
        ("mem:1M,fault=read-error", [medium; 6]),
        ("mem:1M,fault=read-error:after=2:count=3", [None, None, medium, medium, medium, None]),
        ("mem:1M,fault=read-error:every=2", [medium, None, medium, None, medium, None]),
        ("mem:1M,fault=read-error@4096+1:count=1", [None, medium, None, None, None, None]),
        ("mem:1M,fault=write-error", [None; 6]),
    ] {
        let mut endpoint = attach(&mut io, words);
        let kinds = reads(&io, 6, 4096);
        let out = run(&mut io, &mut *endpoint, kinds);
        assert_eq!(out.iter().map(|(_, _, error)| *error).collect::<Vec<_>>(), expected, "{words}");
    }
    for words in ["", "explode", "read-error@5", "read-error:often=1", "read-error:after=x"] {
        assert!(FaultRule::parse(words).is_err(), "{words}");
    }
}

#[test]
fn a_corrupted_write_differs_by_one_bit_and_the_source_stays_whole() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut endpoint = attach(&mut io, "mem:64K,fault=corrupt-write:count=1");
    let from = io.pool().take(4096).unwrap();
    from.zero(0, 4096);
    let into = io.pool().take(4096).unwrap();
    let write = Kind::Write { offset: 0, from: from.clone(), durable: false };
    run(&mut io, &mut *endpoint, vec![write]);
    run(&mut io, &mut *endpoint, vec![Kind::Read { offset: 0, into: into.clone() }]);
    assert_eq!(into.as_slice().iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    assert!(from.as_slice().iter().all(|byte| *byte == 0));
}

#[test]
fn memory_discard_zeroes_exactly_its_range() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let mut endpoint = attach(&mut io, "mem:64K");
    let from = io.pool().take(65536).unwrap();
    from.fill(0, &[5; 65536]);
    let into = io.pool().take(65536).unwrap();
    for (offset, length) in [(100, 10), (4096, 4096), (5000, 9000), (0, 65536), (65535, 1)] {
        let write = Kind::Write { offset: 0, from: from.clone(), durable: false };
        let read = Kind::Read { offset: 0, into: into.clone() };
        run(&mut io, &mut *endpoint, vec![write, Kind::Discard { offset, length }, read]);
        for (at, byte) in into.as_slice().iter().enumerate() {
            let inside = (offset..offset + length).contains(&(at as u64));
            assert_eq!(*byte, if inside { 0 } else { 5 }, "{offset}+{length} at {at}");
        }
    }
}

#[test]
fn durations() {
    for (text, micros) in [("500us", 500), ("2ms", 2000), ("1.5s", 1_500_000), ("2m", 120_000_000)] {
        assert_eq!(parse_duration(text), Ok(Duration::from_micros(micros)));
    }
    for text in ["", "5", "ms", "5 parsec", "-1s", "1e400s"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}
