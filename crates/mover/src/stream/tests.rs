use std::io::{Cursor, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};

use area::PoolLimits;
use block::layer::{FaultMedium, FaultRule};
use block::{Completion, Endpoint, Inspect, Medium, MemoryMedium, Request};
use io::{Event, Io, Owner};

use super::*;
use crate::Control;
use crate::progress::Progress;
use crate::rate::RateLimit;

fn bytes(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    block::fill_pattern(11, 0, &mut bytes);
    bytes
}

/// Returns a few bytes at a time.
struct Drip(Cursor<Vec<u8>>, usize);

impl Read for Drip {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.1 = self.1 * 7 % 65_521 + 1;
        match self.1 % 5 {
            0 => Err(std::io::ErrorKind::Interrupted.into()),
            _ => {
                let most = self.1.min(into.len());
                self.0.read(&mut into[..most])
            }
        }
    }
}

fn drip(bytes: Vec<u8>) -> Box<dyn Read + Send> {
    Box::new(Drip(Cursor::new(bytes), 3))
}

/// Accepts a few bytes at a time, fails after `0`, and forwards the accepted bytes.
struct Sip(usize, Sender<Vec<u8>>);

impl Write for Sip {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(8191).min(self.0);
        self.0 -= count;
        self.1.send(bytes[..count].to_vec()).unwrap();
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn sip(most: usize) -> (Box<dyn Write + Send>, Receiver<Vec<u8>>) {
    let (taken, all) = channel();
    (Box::new(Sip(most, taken)), all)
}

/// Storage that accepts whole blocks only.
struct Blocks(Box<dyn Endpoint>, Capability);

impl Blocks {
    fn new(inner: Box<dyn Endpoint>) -> Self {
        let capability =
            Capability { granularity: 512, max_transfer_bytes: 64 << 10, ..inner.capability().clone() };
        Self(inner, capability)
    }
}

impl Endpoint for Blocks {
    fn capability(&self) -> &Capability {
        &self.1
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        if let Some((offset, length)) = request.kind.range() {
            let whole = offset % 512 == 0 && length % 512 == 0 && (1..=64 << 10).contains(&length);
            assert!(whole, "{offset} {length}");
        }
        self.0.submit(io, request, done);
    }

    fn on_event(&mut self, io: &mut Io, event: Event, done: &mut Vec<Completion>) {
        self.0.on_event(io, event, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        self.0.owners(owners);
    }

    fn inspect(&self) -> &dyn Inspect {
        self.0.inspect()
    }
}

fn go_on(_: &Progress) -> Control {
    Control::Continue
}

struct Bench {
    io: Io,
    endpoint: Box<dyn Endpoint>,
}

impl Bench {
    /// Memory in blocks of 512 bytes, filled with 0xee.
    fn new(size: usize, fault: Option<&str>) -> Self {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(size as u64, false).unwrap());
        let medium = match fault {
            Some(rule) => Arc::new(FaultMedium::new(medium, FaultRule::parse(rule).unwrap())),
            None => medium,
        };
        let endpoint = Box::new(Blocks::new(medium.attach(&mut io).unwrap()));
        let mut bench = Self { io, endpoint };
        bench.put(&vec![0xee; size], &Plan::default()).unwrap();
        bench
    }

    fn put(&mut self, content: &[u8], plan: &Plan) -> Result<Report, CopyError> {
        copy_from_stream(&mut self.io, drip(content.to_vec()), &mut *self.endpoint, plan, &mut go_on)
    }

    fn get(&mut self, plan: &Plan, most: usize) -> (Result<Report, CopyError>, Vec<u8>) {
        let (writer, all) = sip(most);
        let result = copy_to_stream(&mut self.io, &mut *self.endpoint, writer, plan, &mut go_on);
        let taken: Vec<_> = if most == usize::MAX { all.iter().collect() } else { all.try_iter().collect() };
        (result, taken.concat())
    }

    fn all(&mut self) -> Vec<u8> {
        let (result, all) = self.get(&Plan::default(), usize::MAX);
        assert_eq!(result.unwrap().bytes, all.len() as u64);
        all
    }
}

const SIZE: usize = 768 << 10;

#[test]
fn exactly_the_bytes_that_came_are_written() {
    for count in [0, 1, 511, 512, 513, 1 << 16, (1 << 16) + 1000, SIZE - 1, SIZE] {
        let mut bench = Bench::new(SIZE, None);
        let content = bytes(count);
        let report = bench.put(&content, &Plan { verify: true, ..Plan::default() }).unwrap();
        assert!(report.bytes == count as u64 && report.verified, "{count}: {report:?}");
        assert_eq!(report.blake3, Some(blake3::hash(&content).to_hex().to_string()), "{count}");
        let all = bench.all();
        assert!(all[..count] == content && all[count..].iter().all(|byte| *byte == 0xee), "{count}");
    }
}

#[test]
fn offsets_and_sizes_are_of_the_bytes() {
    let mut bench = Bench::new(SIZE, None);
    let content = bytes(SIZE);
    let plan = Plan { src_offset: 777, dst_offset: 4096, size: Some(100_001), ..Plan::default() };
    assert_eq!(bench.put(&content, &plan).unwrap().bytes, 100_001);
    let all = bench.all();
    assert!(all[4096..104_097] == content[777..100_778]);
    assert!(all[..4096].iter().chain(&all[104_097..]).all(|byte| *byte == 0xee));
    let (report, some) =
        bench.get(&Plan { src_offset: 4096, size: Some(100_001), ..Plan::default() }, usize::MAX);
    assert!(report.unwrap().bytes == 100_001 && some == content[777..100_778]);
}

#[test]
fn too_much_and_too_little_are_errors() {
    let mut bench = Bench::new(SIZE, None);
    let long = bench.put(&bytes(SIZE + 1), &Plan::default()).unwrap_err();
    assert!(matches!(long, CopyError::Long { room } if room == SIZE as u64), "{long}");
    let short = bench.put(&bytes(1000), &Plan { size: Some(1001), ..Plan::default() }).unwrap_err();
    assert!(matches!(short, CopyError::Short { bytes: 1000, expected: 1001 }), "{short}");
    assert!(bench.all()[..1000] == bytes(1000), "what came is there");
    let skipped = bench.put(&bytes(1000), &Plan { src_offset: 1001, ..Plan::default() }).unwrap_err();
    assert!(skipped.to_string().contains("ends after 1000 bytes"), "{skipped}");
    let plan = Plan { size: Some(SIZE as u64 + 1), ..Plan::default() };
    assert!(matches!(bench.put(&[], &plan), Err(CopyError::Refused(Refusal::DestinationTooSmall { .. }))));
    let plan = Plan { dst_offset: 100, ..Plan::default() };
    assert!(matches!(bench.put(&[], &plan), Err(CopyError::Refused(Refusal::OffsetMisaligned { .. }))));
}

#[test]
fn zeroes_are_made_not_moved() {
    let mut bench = Bench::new(SIZE, None);
    let mut content = bytes(SIZE);
    content[128 << 10..384 << 10].fill(0);
    let report =
        bench.put(&content, &Plan { verify: true, chunk: Some(32 << 10), ..Plan::default() }).unwrap();
    assert_eq!(report.zero_bytes_skipped, 256 << 10);
    assert!(bench.all() == content);
    let report = bench.put(&content, &Plan { sparse: false, ..Plan::default() }).unwrap();
    assert_eq!(report.zero_bytes_skipped, 0);
}

#[test]
fn errors_end_it_and_a_changed_destination_is_found() {
    let mut bench = Bench::new(SIZE, Some("write-error@262144+512:after=1"));
    let failed = bench.put(&bytes(SIZE), &Plan::default()).unwrap_err();
    assert!(matches!(failed, CopyError::Write { .. }), "{failed}");
    let mut bench = Bench::new(SIZE, Some("corrupt-write@524288+512:after=1"));
    let failed = bench.put(&bytes(SIZE), &Plan { verify: true, ..Plan::default() }).unwrap_err();
    assert!(matches!(failed, CopyError::Verify { .. }), "{failed}");
    let mut bench = Bench::new(SIZE, Some("flush-error:after=1"));
    assert!(matches!(bench.put(&bytes(SIZE), &Plan::default()), Err(CopyError::Flush(_))));
    let mut bench = Bench::new(SIZE, Some("read-error@524288+512"));
    let (result, some) = bench.get(&Plan::default(), usize::MAX);
    assert!(matches!(result, Err(CopyError::Read { .. })) && some.len() <= 512 << 10, "{result:?}");
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let mut bench = Bench::new(SIZE, None);
    let (result, some) = bench.get(&Plan::default(), 100_000);
    let error = result.unwrap_err();
    let broken = matches!(&error, CopyError::Write { error, .. } if error.text.contains("broken pipe"));
    assert!(broken, "{error}");
    assert_eq!(some.len(), 100_000);
}

#[test]
fn a_stop_ends_a_stream_that_gives_nothing() {
    struct Silent;
    impl Read for Silent {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            loop {
                std::thread::park();
            }
        }
    }
    let mut bench = Bench::new(SIZE, None);
    let stop = &mut |_: &Progress| Control::Stop;
    let result =
        copy_from_stream(&mut bench.io, Box::new(Silent), &mut *bench.endpoint, &Plan::default(), stop);
    assert!(matches!(result, Err(CopyError::Interrupted { bytes_safe: 0, .. })), "{result:?}");
}

#[test]
fn a_rate_raised_by_the_observer_applies_to_streams() {
    let mut bench = Bench::new(SIZE, None);
    let limit = RateLimit::from(Some(1));
    let plan = Plan { rate: limit.clone(), chunk: Some(64 << 10), ..Plan::default() };
    let raise = &mut |_: &Progress| {
        limit.set(None).unwrap();
        Control::Continue
    };
    let given = Cursor::new(bytes(SIZE));
    let report = copy_from_stream(&mut bench.io, Box::new(given), &mut *bench.endpoint, &plan, raise);
    assert_eq!(report.unwrap().bytes, SIZE as u64);
}

#[test]
fn memory_comes_back_and_the_rate_is_kept() {
    let mut bench = Bench::new(SIZE, None);
    let borrowed = bench.io.pool().borrowed();
    let plan = Plan { rate: Some(64 << 20).into(), chunk: Some(64 << 10), depth: Some(2), ..Plan::default() };
    let report = bench.put(&bytes(SIZE), &plan).unwrap();
    assert!(report.depth_max <= 2 && report.seconds >= 0.010, "{report:?}");
    // The waker of each stream keeps eight bytes.
    assert!(bench.io.pool().borrowed() <= borrowed + 1);
}
