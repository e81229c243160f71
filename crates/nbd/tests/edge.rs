//! The endpoint against servers in threads, correct and defective ones.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use area::{PoolLimits, Span};
use block::{
    Completion, Endpoint, Extent, IoErrorKind, Kind, Medium, OpenError, Request, State, close_all, wait_ready,
};
use io::Io;
use nbd::wire::{self, chunk, command, flag, info, option, option_reply, u16_at, u32_at, u64_at};
use nbd::{NbdMedium, Uri};

const SIZE: usize = 4 << 20;
/// Longer than any test takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The reaction of a server to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Serve,
    Cut,
    /// Closes the connection in the middle of the reply to a read.
    CutMid,
    Garbage,
    /// Replies to a write before it has received the data.
    Early,
    Silent,
    /// Replies to reads in descending order, in chunks and holes.
    Chunks,
    Error(u32),
    /// Describes only the first 512 bytes of a block status request.
    Scraps,
}

/// The reaction to the n-th request of the n-th connection.
type Script = dyn FnMut(usize, usize) -> Act + Send;

struct Server {
    uri: Uri,
    disk: Arc<Mutex<Vec<u8>>>,
    size: Arc<Mutex<usize>>,
}

impl Server {
    fn start(script: impl FnMut(usize, usize) -> Act + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let uri = Uri::parse(&format!("nbd://{}/disk", listener.local_addr().unwrap())).unwrap();
        let (disk, size) = (Arc::new(Mutex::new(vec![0; SIZE])), Arc::new(Mutex::new(SIZE)));
        let (memory, announced) = (Arc::clone(&disk), Arc::clone(&size));
        std::thread::spawn(move || {
            let mut script = script;
            for (number, stream) in listener.incoming().enumerate() {
                let size = *announced.lock().unwrap();
                let _ = serve(stream.unwrap(), &memory, size, number, &mut script);
            }
        });
        Self { uri, disk, size }
    }

    fn medium(&self, timeout: Duration) -> NbdMedium {
        NbdMedium::new(self.uri.clone(), timeout, false)
    }
}

fn option_answer(stream: &mut TcpStream, option: u32, kind: u32, payload: &[u8]) -> std::io::Result<()> {
    let mut bytes = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    stream.write_all(&bytes)
}

fn chunk_of(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn greet(stream: &mut TcpStream, size: usize) -> std::io::Result<()> {
    stream.write_all(&wire::GREETING_MAGIC.to_be_bytes())?;
    stream.write_all(&wire::OPTION_MAGIC.to_be_bytes())?;
    stream.write_all(&3u16.to_be_bytes())?;
    stream.read_exact(&mut [0; 4])?;
    loop {
        let mut head = [0; 16];
        stream.read_exact(&mut head)?;
        let mut data = vec![0; u32_at(&head, 12) as usize];
        stream.read_exact(&mut data)?;
        let number = u32_at(&head, 8);
        match number {
            option::SET_META_CONTEXT => {
                // The payload: length and text of the export's name, one, length and text of the context.
                let name = &data[4 + u32_at(&data, 0) as usize + 8..];
                let context = [&1u32.to_be_bytes()[..], name].concat();
                option_answer(stream, number, option_reply::META_CONTEXT, &context)?;
            }
            option::GO => {
                let flags = 1 | flag::FLUSH | flag::FUA;
                let export =
                    [&info::EXPORT.to_be_bytes()[..], &(size as u64).to_be_bytes(), &flags.to_be_bytes()]
                        .concat();
                option_answer(stream, number, option_reply::INFO, &export)?;
            }
            _ => {}
        }
        option_answer(stream, number, option_reply::ACK, &[])?;
        if number == option::GO {
            return Ok(());
        }
    }
}

fn serve(
    mut stream: TcpStream,
    disk: &Mutex<Vec<u8>>,
    size: usize,
    connection: usize,
    script: &mut Script,
) -> std::io::Result<()> {
    greet(&mut stream, size)?;
    for number in 0.. {
        let mut head = [0; wire::REQUEST_BYTES];
        stream.read_exact(&mut head)?;
        let (kind, cookie) = (u16_at(&head, 6), u64_at(&head, 8));
        let (offset, length) = (u64_at(&head, 16) as usize, u32_at(&head, 24) as usize);
        let act = script(connection, number);
        let mut data = vec![0; if kind == command::WRITE { length } else { 0 }];
        if act == Act::Early {
            stream.write_all(&chunk_of(chunk::DONE, chunk::NONE, cookie, &[]))?;
            std::thread::sleep(Duration::from_millis(100));
        }
        stream.read_exact(&mut data)?;
        match (act, kind) {
            (_, command::DISC) | (Act::Cut, _) => return Ok(()),
            (Act::Early, _) => disk.lock().unwrap()[offset..offset + length].copy_from_slice(&data),
            (Act::Silent, _) => {}
            (Act::Garbage, _) => stream.write_all(&[0x55; 64])?,
            (Act::Error(code), _) => {
                let payload = [&code.to_be_bytes()[..], &[0, 0]].concat();
                stream.write_all(&chunk_of(chunk::DONE, chunk::IS_ERROR + 1, cookie, &payload))?;
            }
            (_, command::READ) => {
                let bytes = disk.lock().unwrap()[offset..offset + length].to_vec();
                for answer in read_answers(act, cookie, offset, &bytes) {
                    if act == Act::CutMid {
                        return stream.write_all(&answer[..answer.len() / 2]);
                    }
                    stream.write_all(&answer)?;
                }
            }
            (_, command::BLOCK_STATUS) => {
                // The second MiB is a hole.
                let mut payload = 1u32.to_be_bytes().to_vec();
                let length = if act == Act::Scraps { 512 } else { length };
                for (start, end, flags) in [(0, 1 << 20, 0u32), (1 << 20, 2 << 20, 3), (2 << 20, size, 0)] {
                    let (start, end) = (offset.max(start), (offset + length).min(end));
                    if start < end {
                        payload.extend(((end - start) as u32).to_be_bytes());
                        payload.extend(flags.to_be_bytes());
                    }
                }
                stream.write_all(&chunk_of(chunk::DONE, chunk::BLOCK_STATUS, cookie, &payload))?;
            }
            (_, kind) => {
                if kind == command::WRITE {
                    disk.lock().unwrap()[offset..offset + length].copy_from_slice(&data);
                }
                let reply =
                    [&wire::SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes()].concat();
                stream.write_all(&reply)?;
            }
        }
    }
    Ok(())
}

fn read_answers(act: Act, cookie: u64, offset: usize, bytes: &[u8]) -> Vec<Vec<u8>> {
    let data = |flags, at: usize, part: &[u8]| {
        let payload = [&((offset + at) as u64).to_be_bytes()[..], part].concat();
        chunk_of(flags, chunk::OFFSET_DATA, cookie, &payload)
    };
    if act != Act::Chunks {
        return vec![data(chunk::DONE, 0, bytes)];
    }
    let mut answers: Vec<_> = bytes
        .chunks(30_000)
        .enumerate()
        .map(|(index, part)| {
            if part.iter().any(|byte| *byte != 0) {
                return data(0, index * 30_000, part);
            }
            let at = (offset + index * 30_000) as u64;
            let payload = [&at.to_be_bytes()[..], &(part.len() as u32).to_be_bytes()].concat();
            chunk_of(0, chunk::OFFSET_HOLE, cookie, &payload)
        })
        .rev()
        .collect();
    answers.push(chunk_of(chunk::DONE, chunk::NONE, cookie, &[]));
    answers
}

struct Client {
    io: Io,
    endpoint: Box<dyn Endpoint>,
}

impl Client {
    fn new(medium: &NbdMedium) -> Self {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let mut endpoint = medium.attach(&mut io).unwrap();
        wait_ready(&mut io, &mut [&mut *endpoint]).unwrap();
        Self { io, endpoint }
    }

    /// Submits all requests at once; returns their results in the order of submission.
    fn run(&mut self, kinds: Vec<Kind>) -> Vec<Result<(), IoErrorKind>> {
        let (mut done, mut events): (Vec<Completion>, _) = (Vec::new(), Vec::new());
        let count = kinds.len();
        for (id, kind) in kinds.into_iter().enumerate() {
            self.endpoint.submit(&mut self.io, Request { id: id as u64, kind }, &mut done);
        }
        let start = Instant::now();
        while done.len() < count {
            assert!(start.elapsed() < TIMEOUT, "{} of {count} requests have ended", done.len());
            let until = self.io.now() + Duration::from_millis(100);
            self.io.turn_until(Some(until), &mut events).unwrap();
            for event in events.drain(..) {
                self.endpoint.on_event(&mut self.io, event, &mut done);
            }
        }
        done.sort_by_key(|completion| completion.id);
        done.into_iter().map(|completion| completion.result.map_err(|error| error.kind)).collect()
    }

    fn span(&self, length: usize, fill: impl Fn(usize) -> u8) -> Span {
        let span = self.io.pool().take(length).unwrap();
        span.fill(0, &(0..length).map(fill).collect::<Vec<_>>());
        span
    }

    /// Writes the whole disk in requests of many sizes, some with zeroes; returns the expected content.
    fn write_all(&mut self, durable: bool) -> Vec<u8> {
        let (mut expected, mut kinds, mut offset, mut part) = (Vec::new(), Vec::new(), 0, 0);
        while offset < SIZE {
            part += 1;
            let length = [512, 300 << 10, 4096, 70 << 10, 1536][part % 5].min(SIZE - offset);
            let from = self.span(length, |at| if part % 3 == 0 { 0 } else { (at * 7 + part) as u8 | 1 });
            expected.extend(from.as_slice());
            kinds.push(Kind::Write { offset: offset as u64, from, durable });
            offset += length;
        }
        assert!(self.run(kinds).iter().all(Result::is_ok));
        expected
    }

    fn read_all(&mut self) -> Vec<u8> {
        let length = 128 << 10;
        let spans: Vec<Span> = (0..SIZE / length).map(|_| self.span(length, |_| 0xee)).collect();
        let offsets = (0..).step_by(length);
        let reads = offsets.zip(&spans).map(|(offset, into)| Kind::Read { offset, into: into.clone() });
        assert!(self.run(reads.collect()).iter().all(Result::is_ok));
        spans.iter().flat_map(|span| span.as_slice().to_vec()).collect()
    }
}

fn serving(script: impl FnMut(usize, usize) -> Act + Send + 'static) -> (Server, Client) {
    let server = Server::start(script);
    let client = Client::new(&server.medium(TIMEOUT));
    (server, client)
}

#[test]
fn what_is_written_is_read_however_it_is_answered() {
    for act in [Act::Serve, Act::Chunks] {
        let (server, mut client) = serving(move |_, _| act);
        let expected = client.write_all(false);
        assert!(*server.disk.lock().unwrap() == expected);
        assert!(client.read_all() == expected);
        assert_eq!(client.run(vec![Kind::Flush]), [Ok(())]);
        let Client { mut io, mut endpoint } = client;
        close_all(&mut io, &mut [&mut *endpoint]);
        assert!(endpoint.is_closed());
    }
}

/// The first connections end at the tenth request. Answers that the client has not read end with them, and each further
/// connection waits longer: if all ended so, the writes would take 15 to 70 s.
fn cut_thrice(connection: usize, request: usize) -> Act {
    if connection < 3 && request == 9 { Act::Cut } else { Act::Serve }
}

#[test]
fn lost_connections_are_made_again_and_the_next_flush_says_so_once() {
    let (server, mut client) = serving(cut_thrice);
    // Answered, and in the server's cache, when the first connection ends.
    let from = client.span(512, |_| 1);
    assert_eq!(client.run(vec![Kind::Write { offset: 0, from, durable: false }]), [Ok(())]);
    let expected = client.write_all(false);
    assert!(*server.disk.lock().unwrap() == expected);
    assert!(client.endpoint.inspect().losses() > 0 && client.endpoint.inspect().retries() > 0);
    assert_eq!(client.run(vec![Kind::Flush]), [Err(IoErrorKind::CacheLost)]);
    assert_eq!(client.run(vec![Kind::Flush]), [Ok(())]);
}

#[test]
fn what_was_written_durably_is_not_lost() {
    let (server, mut client) = serving(cut_thrice);
    let expected = client.write_all(true);
    assert!(*server.disk.lock().unwrap() == expected && client.endpoint.inspect().losses() > 0);
    assert_eq!(client.run(vec![Kind::Flush]), [Ok(())]);
}

#[test]
fn answers_that_end_in_the_middle_or_are_none_are_asked_again() {
    for act in [Act::CutMid, Act::Garbage] {
        let server = Server::start(move |connection, request| match (connection, request) {
            (0..3, 5) => act,
            _ => Act::Chunks,
        });
        server.disk.lock().unwrap().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 1000) as u8);
        let mut client = Client::new(&server.medium(TIMEOUT));
        assert!(client.read_all() == *server.disk.lock().unwrap());
        assert_eq!(client.endpoint.inspect().losses(), 3);
    }
}

#[test]
fn an_answer_that_overtakes_our_data_does_not_give_the_buffer_back() {
    let (server, mut client) = serving(|_, _| Act::Early);
    // More than the socket accepts at once.
    let from = client.span(4 << 20, |at| (at / 4096) as u8);
    let kind = Kind::Write { offset: 0, from: from.clone(), durable: false };
    assert_eq!(client.run(vec![kind]), [Ok(())]);
    // Debug builds detect a change of bytes being sent, and the server would receive it.
    from.zero(0, from.len());
    assert_eq!(client.run(vec![Kind::Flush]).len(), 1);
    assert!(server.disk.lock().unwrap().iter().enumerate().all(|(at, byte)| *byte == (at / 4096) as u8));
}

#[test]
fn a_server_that_does_not_answer_is_unreachable() {
    let server = Server::start(|_, _| Act::Silent);
    let mut client = Client::new(&server.medium(Duration::from_secs(2)));
    let into = client.span(512, |_| 0);
    let kinds = vec![Kind::Flush, Kind::Read { offset: 0, into }];
    assert_eq!(client.run(kinds), [Err(IoErrorKind::Unreachable); 2]);
}

#[test]
fn a_short_timeout_does_not_put_off_the_next_attempt() {
    let server = Server::start(|connection, _| if connection == 0 { Act::Silent } else { Act::Serve });
    let mut client = Client::new(&server.medium(Duration::from_millis(500)));
    let start = Instant::now();
    while client.run(vec![Kind::Flush]) != [Ok(())] {
        assert!(start.elapsed() < TIMEOUT, "it does not come back");
    }
}

#[test]
fn errors_have_their_kinds() {
    for (code, kind) in [
        (1, IoErrorKind::ReadOnly),
        (5, IoErrorKind::Medium),
        (28, IoErrorKind::NoSpace),
        (95, IoErrorKind::Unsupported),
        (22, IoErrorKind::Other),
    ] {
        let (_server, mut client) = serving(move |_, _| Act::Error(code));
        assert_eq!(client.run(vec![Kind::Flush]), [Err(kind)]);
    }
}

#[test]
fn a_server_that_shuts_down_is_asked_again() {
    let (_server, mut client) =
        serving(|connection, _| if connection == 0 { Act::Error(wire::ESHUTDOWN) } else { Act::Serve });
    assert_eq!(client.run(vec![Kind::Flush]), [Ok(())]);
    assert_eq!(client.endpoint.inspect().losses(), 1);
}

#[test]
fn another_export_at_the_same_address_is_not_written() {
    let (server, mut client) = serving(|connection, _| if connection == 0 { Act::Cut } else { Act::Serve });
    *server.size.lock().unwrap() = SIZE / 2;
    let from = client.span(512, |_| 1);
    let kind = Kind::Write { offset: 0, from, durable: true };
    assert_eq!(client.run(vec![kind]), [Err(IoErrorKind::Gone)]);
    assert!(server.disk.lock().unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn a_source_knows_its_holes_when_it_is_ready() {
    let server = Server::start(|_, _| Act::Serve);
    let mut client = Client::new(&NbdMedium::new(server.uri.clone(), TIMEOUT, true));
    assert_eq!(client.endpoint.extent(5000), Extent { end: 1 << 20, data: true });
    assert_eq!(client.endpoint.extent(1 << 20), Extent { end: 2 << 20, data: false });
    assert_eq!(client.endpoint.extent(3 << 20), Extent { end: SIZE as u64, data: true });
    let from = client.span(512, |_| 1);
    let write = Kind::Write { offset: 0, from, durable: false };
    assert_eq!(client.run(vec![write]), [Err(IoErrorKind::ReadOnly)]);
}

#[test]
fn what_is_written_is_no_hole_any_more() {
    let (_server, mut client) = serving(|_, _| Act::Serve);
    assert!(client.endpoint.extent(1 << 20).data, "not known yet");
    let start = Instant::now();
    while client.endpoint.extent(1 << 20).data {
        assert!(start.elapsed() < TIMEOUT, "a read requests no block status");
        assert_eq!(client.run(vec![Kind::Flush]), [Ok(())]);
    }
    let from = client.span(512, |_| 1);
    assert_eq!(client.run(vec![Kind::Write { offset: 1 << 20, from, durable: false }]), [Ok(())]);
    assert!(client.endpoint.extent(1 << 20).data);
}

#[test]
fn a_first_block_status_that_stays_out_ends_after_the_timeout() {
    let server = Server::start(|_, _| Act::Silent);
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let medium = NbdMedium::new(server.uri.clone(), Duration::from_secs(1), true);
    let mut endpoint = medium.attach(&mut io).unwrap();
    let start = Instant::now();
    let error = wait_ready(&mut io, &mut [&mut *endpoint]).unwrap_err();
    assert!(error.to_string().contains("no answer in 1 s"), "{error}");
    assert!(start.elapsed() < TIMEOUT / 4, "{:?}", start.elapsed());
}

/// The dirty ranges by a server of 1 TiB (its second MiB is dirty), and the block status requests that it took.
fn dirty(act: fn(usize) -> Act, range: Range<u64>) -> (Result<Vec<Range<u64>>, OpenError>, usize) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let server = Server::start(move |_, request| {
        counted.fetch_max(request + 1, Ordering::Relaxed);
        act(request)
    });
    *server.size.lock().unwrap() = 1 << 40;
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let medium = NbdMedium::new(server.uri.clone(), Duration::from_secs(1), true);
    (nbd::dirty(&mut io, &medium, "b", range), requests.load(Ordering::Relaxed))
}

#[test]
fn a_bitmap_is_read_only_where_it_is_asked_for() {
    let (ranges, requests) = dirty(|_| Act::Serve, 4096..(1 << 20) + 4096);
    assert_eq!(ranges.unwrap(), vec![1 << 20..(1 << 20) + 4096; 1]);
    assert!(requests <= 2, "the status and the end, not {requests} requests");
}

#[test]
fn a_bitmap_described_in_scraps_ends_at_a_bound() {
    let (ranges, requests) = dirty(|_| Act::Scraps, 0..1 << 40);
    let error = ranges.unwrap_err();
    assert!(matches!(&error, OpenError::Failed(text) if text.contains("after 65536 replies")), "{error}");
    assert!(requests <= 65_536 + 3, "{requests} requests");
}

#[test]
fn a_bitmap_whose_description_stops_ends_after_the_timeout() {
    let start = Instant::now();
    let (ranges, _) = dirty(|request| if request < 3 { Act::Serve } else { Act::Silent }, 0..1 << 40);
    let error = ranges.unwrap_err();
    assert!(matches!(&error, OpenError::Unreachable(text) if text.contains("no answer in 1 s")), "{error}");
    assert!(start.elapsed() < TIMEOUT / 4, "{:?}", start.elapsed());
}

#[test]
fn nobody_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = Uri::parse(&format!("nbd://{}/", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let gone = Uri::parse("nbd+unix:///?socket=/nonexistent/socket").unwrap();
    for uri in [uri, gone] {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let mut endpoint = NbdMedium::new(uri, TIMEOUT, true).attach(&mut io).unwrap();
        wait_ready(&mut io, &mut [&mut *endpoint]).unwrap_err();
        assert!(matches!(endpoint.state(), State::Failed(OpenError::Unreachable(_))));
    }
}
