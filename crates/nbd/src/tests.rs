//! The two machines against byte sequences, clause by clause of `doc/proto.md`. Most servers here are hostile.

use crate::negotiation::{BlockSizes, Config, Export, MetaContext, Negotiation, NegotiationError, Progress};
use crate::transmission::{Command, Data, Ended, ServerError, Status, Step, TaskId, Transmission, Violation};
use crate::wire::{self, chunk, emit_option, flag, info, option, option_reply, u64_at};

fn bytes<const N: usize>(parts: [&[u8]; N]) -> Vec<u8> {
    parts.concat()
}

fn greeting(second: u64, flags: u16) -> Vec<u8> {
    bytes([&wire::GREETING_MAGIC.to_be_bytes(), &second.to_be_bytes(), &flags.to_be_bytes()])
}

fn reply(option: u32, kind: u32, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    bytes([
        &wire::OPTION_REPLY_MAGIC.to_be_bytes(),
        &option.to_be_bytes(),
        &kind.to_be_bytes(),
        &length.to_be_bytes(),
        payload,
    ])
}

fn export_info(size: u64, flags: u16) -> Vec<u8> {
    bytes([&info::EXPORT.to_be_bytes(), &size.to_be_bytes(), &flags.to_be_bytes()])
}

fn block_info(sizes: [u32; 3]) -> Vec<u8> {
    let [a, b, c] = sizes.map(u32::to_be_bytes);
    bytes([&info::BLOCK_SIZE.to_be_bytes(), &a, &b, &c])
}

fn context(id: u32, name: &str) -> Vec<u8> {
    bytes([&id.to_be_bytes(), name.as_bytes()])
}

fn config() -> Config {
    Config { export: "disk".into(), contexts: vec!["base:allocation".into()] }
}

/// Feeds the bytes one at a time; returns the result and the bytes sent.
fn negotiate(config: Config, server: &[u8]) -> (Result<Option<Export>, NegotiationError>, Vec<u8>) {
    let (mut machine, mut sent) = (Negotiation::new(config), Vec::new());
    let (mut start, mut end) = (0, 0);
    loop {
        let progress = machine.advance(&server[start..end]);
        sent.extend(machine.take_transmit());
        match progress {
            Err(error) => return (Err(error), sent),
            Ok(Progress::Ready(count, export)) => {
                assert_eq!(start + count, server.len(), "nothing of the transmission phase was taken");
                return (Ok(Some(export)), sent);
            }
            Ok(Progress::Took(count)) => start += count,
            Ok(Progress::Starved) if end == server.len() => return (Ok(None), sent),
            Ok(Progress::Starved) => end += 1,
        }
    }
}

fn refused(server: &[u8]) -> NegotiationError {
    negotiate(config(), server).0.expect_err("it should be refused")
}

const FIXED: u16 = 1;

fn accepted() -> Vec<Vec<u8>> {
    vec![
        greeting(wire::OPTION_MAGIC, FIXED | 2),
        reply(option::STRUCTURED_REPLY, option_reply::ACK, &[]),
        reply(option::SET_META_CONTEXT, option_reply::META_CONTEXT, &context(7, "base:allocation")),
        reply(option::SET_META_CONTEXT, option_reply::ACK, &[]),
        reply(option::GO, option_reply::INFO, &export_info(1 << 20, flag::FLUSH)),
        reply(option::GO, option_reply::INFO, &block_info([512, 4096, 1 << 25])),
        reply(option::GO, option_reply::ACK, &[]),
    ]
}

/// The first `count` replies of [`accepted`], followed by `last`.
fn after(count: usize, last: &[u8]) -> Vec<u8> {
    bytes([&accepted()[..count].concat(), last])
}

#[test]
fn fixed_newstyle_negotiation() {
    let (export, sent) = negotiate(config(), &accepted().concat());
    let expected = Export {
        size: 1 << 20,
        flags: flag::FLUSH,
        blocks: Some(BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 }),
        structured: true,
        contexts: vec![MetaContext { id: 7, name: "base:allocation".into() }],
    };
    assert_eq!(export, Ok(Some(expected)));
    let contexts = bytes([b"\0\0\0\x04disk", b"\0\0\0\x01", b"\0\0\0\x0fbase:allocation"]);
    let go = bytes([b"\0\0\0\x04disk", b"\0\x01", b"\0\x03"]);
    let expected = bytes([
        &3u32.to_be_bytes(),
        &emit_option(option::STRUCTURED_REPLY, &[]),
        &emit_option(option::SET_META_CONTEXT, &contexts),
        &emit_option(option::GO, &go),
    ]);
    assert_eq!(sent, expected);
}

#[test]
fn handshake_flags_that_the_server_has_not_set_are_not_answered() {
    let (_, sent) = negotiate(config(), &greeting(wire::OPTION_MAGIC, FIXED));
    assert_eq!(sent[..4], 1u32.to_be_bytes());
}

#[test]
fn greeting_of_somebody_else() {
    assert_eq!(refused(b"HTTP/1.1 400"), NegotiationError::NotNbd);
    assert_eq!(refused(b"SSH-2.0-x\r\n"), NegotiationError::NotNbd);
    assert_eq!(refused(&greeting(1, FIXED)), NegotiationError::NotNbd);
    assert!(matches!(refused(&greeting(wire::OLDSTYLE_MAGIC, 0)), NegotiationError::TooOld(_)));
    assert!(matches!(refused(&greeting(wire::OPTION_MAGIC, 0)), NegotiationError::TooOld(_)));
}

#[test]
fn opt_structured_reply_refused_means_simple_replies_and_no_contexts() {
    for error in [option_reply::ERR_UNSUP, option_reply::IS_ERROR + 2] {
        let server = bytes([
            &accepted()[0],
            &reply(option::STRUCTURED_REPLY, error, b"no"),
            &accepted()[4],
            &accepted()[6],
        ]);
        let export = negotiate(config(), &server).0.unwrap().unwrap();
        assert!(!export.structured && export.contexts.is_empty() && export.blocks.is_none());
    }
}

#[test]
fn opt_set_meta_context_refused_or_empty_means_no_contexts() {
    for answer in [option_reply::ERR_UNSUP, option_reply::ERR_UNKNOWN, option_reply::ACK] {
        let server =
            bytes([&after(2, &reply(option::SET_META_CONTEXT, answer, &[])), &accepted()[4..].concat()]);
        let export = negotiate(config(), &server).0.unwrap().unwrap();
        assert!(export.structured && export.contexts.is_empty());
    }
}

#[test]
fn opt_go_errors_are_told_for_what_they_are() {
    let go = |error: u32, text: &[u8]| refused(&after(4, &reply(option::GO, error, text)));
    assert_eq!(go(option_reply::ERR_UNKNOWN, b""), NegotiationError::UnknownExport);
    assert_eq!(go(option_reply::ERR_TLS_REQD, b""), NegotiationError::TlsRequired);
    assert_eq!(go(option_reply::ERR_SHUTDOWN, b""), NegotiationError::ShuttingDown);
    assert!(matches!(go(option_reply::ERR_UNSUP, b""), NegotiationError::TooOld(_)));
    let error = go(option_reply::IS_ERROR + 2, b"not\x1b[31m you\n");
    assert_eq!(error.to_string(), "the server refuses the export: error 2: not [31m you");
    let tls = refused(&after(1, &reply(option::STRUCTURED_REPLY, option_reply::ERR_TLS_REQD, &[])));
    assert_eq!(tls, NegotiationError::TlsRequired);
}

#[test]
fn option_replies_that_cannot_be() {
    let huge = {
        let mut reply = reply(option::GO, option_reply::INFO, &[]);
        reply[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
        reply
    };
    let many: Vec<u8> = reply(option::GO, option_reply::INFO, &[0, 9]).repeat(1000);
    let go = |kind, payload: &[u8]| after(4, &reply(option::GO, kind, payload));
    let blocks = |sizes| go(option_reply::INFO, &block_info(sizes));
    let meta =
        |payload: &[u8]| after(2, &reply(option::SET_META_CONTEXT, option_reply::META_CONTEXT, payload));
    let twice = after(
        3,
        &reply(option::SET_META_CONTEXT, option_reply::META_CONTEXT, &context(8, "base:allocation")),
    );
    for (what, server) in [
        ("magic", after(1, &[9; 20])),
        ("another option", after(1, &reply(option::GO, option_reply::ACK, &[]))),
        ("length", after(4, &huge)),
        ("without end", after(4, &many)),
        ("type", go(99, &[])),
        ("acknowledgement with data", go(option_reply::ACK, &[1])),
        ("no export info", go(option_reply::ACK, &[])),
        ("info without type", go(option_reply::INFO, &[1])),
        ("short export info", go(option_reply::INFO, &[0, 0, 1])),
        ("size beyond off_t", go(option_reply::INFO, &export_info(1 << 63, 0))),
        ("minimum 0", blocks([0, 4096, 1 << 20])),
        ("minimum 3", blocks([3, 4096, 1 << 20])),
        ("minimum 128 KiB", blocks([1 << 17, 1 << 17, 1 << 20])),
        ("preferred below minimum", blocks([4096, 512, 1 << 20])),
        ("maximum below minimum", blocks([4096, 4096, 512])),
        ("maximum not of blocks", blocks([4096, 4096, 5000])),
        ("context without a number", meta(&[1])),
        ("context not requested", meta(&context(1, "x:y"))),
        ("context twice", twice),
    ] {
        assert!(matches!(refused(&server), NegotiationError::Violation(_)), "{what}");
    }
}

#[test]
fn truncated_negotiation_waits() {
    let whole = accepted().concat();
    for end in 0..whole.len() {
        assert_eq!(negotiate(config(), &whole[..end]).0, Ok(None), "{end}");
    }
}

const CONTEXT: u32 = 7;

/// A machine with its requests and the effects of the server's bytes.
struct Session {
    machine: Transmission,
    cookies: Vec<u64>,
    buffers: Vec<Vec<u8>>,
    ended: Vec<Ended>,
}

impl Session {
    fn new(structured: bool) -> Self {
        let contexts = if structured {
            vec![MetaContext { id: CONTEXT, name: "base:allocation".into() }]
        } else {
            vec![]
        };
        let export = Export { size: 1 << 40, flags: 0, blocks: None, structured, contexts };
        Self { machine: Transmission::new(&export), cookies: vec![], buffers: vec![], ended: vec![] }
    }

    fn submit(&mut self, command: Command) -> TaskId {
        let task = self.machine.submit(command);
        let transmit = self.machine.poll_transmit().unwrap();
        self.cookies.push(u64_at(&transmit.header, 8));
        self.buffers.resize(self.buffers.len().max(task.index() + 1), vec![0xee; 4096]);
        task
    }

    fn read(&mut self, offset: u64, length: u32) -> TaskId {
        self.submit(Command::Read { offset, length })
    }

    /// Feeds all bytes in chunks of at most `chunk_bytes` bytes.
    fn feed(&mut self, server: &[u8], chunk_bytes: usize) -> Result<(), Violation> {
        let (mut start, mut end) = (0, 0);
        loop {
            match self.machine.advance(&server[start..end])? {
                Step::Took(count) => start += count,
                Step::Hole { took, hole } => {
                    start += took;
                    self.fill(hole, &vec![0; hole.length as usize]);
                }
                Step::Data(data) if start < end => {
                    let count = (end - start).min(data.length as usize);
                    self.fill(data, &server[start..start + count]);
                    start += count;
                    self.machine.on_data(count)?;
                }
                Step::Starved | Step::Data(_) if end == server.len() => return Ok(()),
                Step::Starved | Step::Data(_) => end = (end + chunk_bytes).min(server.len()),
            }
            while let Some(ended) = self.machine.poll_ended() {
                self.ended.push(ended);
            }
        }
    }

    fn fill(&mut self, data: Data, bytes: &[u8]) {
        let at = data.offset as usize;
        self.buffers[data.task.index()][at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn violation(&mut self, server: &[u8]) -> Violation {
        self.feed(server, usize::MAX >> 1).expect_err("it breaks the protocol")
    }
}

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    bytes([&wire::SIMPLE_REPLY_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()])
}

fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    bytes([
        &wire::STRUCTURED_REPLY_MAGIC.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &(payload.len() as u32).to_be_bytes(),
        payload,
    ])
}

fn data(flags: u16, cookie: u64, offset: u64, content: &[u8]) -> Vec<u8> {
    chunk(flags, chunk::OFFSET_DATA, cookie, &bytes([&offset.to_be_bytes(), content]))
}

fn hole(flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    chunk(flags, chunk::OFFSET_HOLE, cookie, &bytes([&offset.to_be_bytes(), &length.to_be_bytes()]))
}

fn status(cookie: u64, context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let mut payload = context.to_be_bytes().to_vec();
    for (length, flags) in extents {
        payload.extend(length.to_be_bytes());
        payload.extend(flags.to_be_bytes());
    }
    chunk(chunk::DONE, chunk::BLOCK_STATUS, cookie, &payload)
}

fn error(flags: u16, cookie: u64, code: u32, message: &str, declared: u16) -> Vec<u8> {
    let payload = bytes([&code.to_be_bytes(), &declared.to_be_bytes(), message.as_bytes()]);
    chunk(flags, chunk::IS_ERROR + 1, cookie, &payload)
}

#[test]
fn request_message() {
    let mut session = Session::new(true);
    let write = session.machine.submit(Command::Write { offset: 0x0102, length: 0x30, fua: true });
    let transmit = session.machine.poll_transmit().unwrap();
    assert_eq!(transmit.task, Some((write, 0x30)));
    assert_eq!(transmit.header[..8], [0x25, 0x60, 0x95, 0x13, 0, 1, 0, 1]);
    assert_eq!(transmit.header[16..], [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0x30]);
    for (command, flags, number) in [
        (Command::Flush, 0, 3),
        (Command::Trim { offset: 0, length: 1 }, 0, 4),
        (Command::WriteZeroes { offset: 0, length: 1, no_hole: true }, 2, 6),
        (Command::WriteZeroes { offset: 0, length: 1, no_hole: false }, 0, 6),
        (Command::BlockStatus { offset: 0, length: 1 }, 0, 7),
    ] {
        session.machine.submit(command);
        let transmit = session.machine.poll_transmit().unwrap();
        assert_eq!(transmit.header[4..8], [0, flags, 0, number], "{command:?}");
        assert_eq!(transmit.task.map(|(_, bytes)| bytes), Some(0));
    }
    session.machine.disconnect();
    assert_eq!(session.machine.poll_transmit().unwrap().header[4..8], [0, 0, 0, 2]);
}

#[test]
fn simple_reply_message_in_pieces_and_out_of_order() {
    for chunk_bytes in [1, 7, 1000] {
        let mut session = Session::new(false);
        let (first, second) = (session.read(0, 4), session.read(8, 2));
        let flush = session.submit(Command::Flush);
        let cookies = session.cookies.clone();
        let server =
            bytes([&simple(0, cookies[1]), b"ab", &simple(5, cookies[2]), &simple(0, cookies[0]), b"cdef"]);
        session.feed(&server, chunk_bytes).unwrap();
        let ended: Vec<_> = session.ended.iter().map(|ended| (ended.task, ended.result.is_ok())).collect();
        assert_eq!(ended, [(second, true), (flush, false), (first, true)]);
        assert_eq!((&session.buffers[0][..5], &session.buffers[1][..3]), (&b"cdef\xee"[..], &b"ab\xee"[..]));
    }
}

#[test]
fn structured_reply_chunks_in_any_order_of_two_reads_interleaved() {
    for chunk_bytes in [1, 9, 1000] {
        let mut session = Session::new(true);
        let (one, two) = (session.read(100, 10), session.read(0, 4));
        let [a, b] = [session.cookies[0], session.cookies[1]];
        let server = bytes([
            &data(0, a, 107, b"xyz"),
            &hole(0, b, 0, 3),
            &hole(0, a, 102, 5),
            &data(chunk::DONE, b, 3, b"!"),
            &data(0, a, 100, b"uv"),
            &chunk(chunk::DONE, chunk::NONE, a, &[]),
        ]);
        session.feed(&server, chunk_bytes).unwrap();
        let ended: Vec<_> = session.ended.iter().map(|ended| (ended.task, ended.result.clone())).collect();
        assert_eq!(ended, [(two, Ok(vec![])), (one, Ok(vec![]))]);
        assert_eq!(session.buffers[0][..11], *b"uv\0\0\0\0\0xyz\xee");
        assert_eq!(session.buffers[1][..5], *b"\0\0\0!\xee");
    }
}

#[test]
fn error_chunk_fails_the_read_and_keeps_its_first_message() {
    let mut session = Session::new(true);
    session.read(0, 8);
    let cookie = session.cookies[0];
    let server = bytes([
        &data(0, cookie, 0, b"abcd"),
        &error(0, cookie, 5, "bad \x07sector", 11),
        &error(chunk::DONE, cookie, 28, "later", 5),
    ]);
    session.feed(&server, 1).unwrap();
    let expected = ServerError { code: 5, message: "bad  sector".into() };
    assert_eq!(session.ended[0].result, Err(expected.clone()));
    assert_eq!(expected.to_string(), "the server answers EIO: bad  sector");
}

#[test]
fn error_offset_chunk_and_unknown_errors_are_errors() {
    for kind in [2, 77] {
        let mut session = Session::new(true);
        session.read(0, 8);
        let payload = bytes([&5u32.to_be_bytes(), &[0, 0], &4u64.to_be_bytes()]);
        let server = chunk(chunk::DONE, chunk::IS_ERROR + kind, session.cookies[0], &payload);
        session.feed(&server, 1000).unwrap();
        assert_eq!(session.ended[0].result, Err(ServerError { code: 5, message: String::new() }));
    }
}

#[test]
fn block_status_the_last_extent_may_reach_beyond() {
    for chunk_bytes in [1, 1000] {
        let mut session = Session::new(true);
        session.submit(Command::BlockStatus { offset: 0, length: 100 });
        let server = status(session.cookies[0], CONTEXT, &[(40, 0), (10, 3), (1000, 2)]);
        session.feed(&server, chunk_bytes).unwrap();
        let extents = vec![(40, 0), (10, 3), (1000, 2)];
        assert_eq!(session.ended[0].result, Ok(vec![Status { context: CONTEXT, extents }]));
    }
}

#[test]
fn a_slot_is_free_when_it_is_released_and_its_old_cookie_is_worth_nothing() {
    let mut session = Session::new(false);
    let task = session.submit(Command::Flush);
    let old = session.cookies[0];
    let window = session.machine.window();
    session.feed(&simple(0, old), 1000).unwrap();
    assert_eq!(session.machine.window(), window);
    session.machine.release(task);
    assert_eq!(session.machine.window(), window + 1);
    assert_eq!(session.submit(Command::Flush), task);
    assert_ne!(session.cookies[1], old);
    session.violation(&simple(0, old));
}

#[test]
fn the_window_closes() {
    let mut session = Session::new(false);
    for _ in 0..crate::limits::TASKS_MAX {
        assert!(session.machine.window() > 0);
        session.submit(Command::Flush);
    }
    assert_eq!(session.machine.window(), 0);
}

#[test]
fn truncated_replies_wait() {
    let mut session = Session::new(true);
    session.read(0, 8);
    let server = data(chunk::DONE, session.cookies[0], 0, b"abcdefgh");
    session.feed(&server[..server.len() - 1], 1).unwrap();
    assert!(session.ended.is_empty());
}

#[test]
fn replies_that_break_the_protocol() {
    const READ: Command = Command::Read { offset: 100, length: 8 };
    const STATUS: Command = Command::BlockStatus { offset: 0, length: 100 };
    type Bad = fn(u64) -> Vec<u8>;
    let cases: [(&str, bool, Command, Bad); 30] = [
        ("magic", true, READ, |_| vec![0; 20]),
        ("unknown cookie", true, READ, |c| data(1, c ^ 1 << 40, 100, b"abcdefgh")),
        ("unknown slot", true, READ, |c| data(1, c | 0xfff, 100, b"abcdefgh")),
        ("unknown cookie, simple", false, READ, |c| simple(0, !c)),
        ("structured, not negotiated", false, READ, |c| data(1, c, 100, b"abcdefgh")),
        ("simple to a read", true, READ, |c| simple(0, c)),
        ("simple error to a read", true, READ, |c| simple(5, c)),
        ("simple to a status", true, STATUS, |c| simple(0, c)),
        ("simple amid structured", true, Command::Flush, |c| bytes([&error(0, c, 5, "", 0), &simple(0, c)])),
        ("none that is not done", true, READ, |c| chunk(0, chunk::NONE, c, &[])),
        ("none with data", true, READ, |c| chunk(1, chunk::NONE, c, &[1])),
        ("data for a flush", true, Command::Flush, |c| data(1, c, 0, b"a")),
        ("hole for a status", true, STATUS, |c| hole(1, c, 0, 1)),
        ("status for a read", true, READ, |c| status(c, CONTEXT, &[(8, 0)])),
        ("unknown type", true, READ, |c| chunk(1, 99, c, &[0; 16])),
        ("data without data", true, READ, |c| data(1, c, 100, b"")),
        ("data longer than requested", true, READ, |c| data(1, c, 100, b"abcdefghi")),
        ("data of 4 GiB", true, READ, |c| {
            let mut head = data(1, c, 100, b"abcdefgh");
            head[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
            head
        }),
        ("data before the read", true, READ, |c| data(1, c, 99, b"abcdefgh")),
        ("data behind the read", true, READ, |c| data(1, c, 101, b"abcdefgh")),
        ("offset that wraps", true, READ, |c| data(1, c, u64::MAX, b"ab")),
        ("hole of nothing", true, READ, |c| hole(1, c, 100, 0)),
        ("hole that reaches beyond", true, READ, |c| hole(1, c, 104, u32::MAX)),
        ("overlap", true, READ, |c| bytes([&data(0, c, 100, b"abcd"), &hole(1, c, 103, 5)])),
        ("done without all", true, READ, |c| data(1, c, 100, b"abcdefg")),
        ("error without an error", true, READ, |c| error(1, c, 0, "", 0)),
        ("message longer than its chunk", true, READ, |c| error(1, c, 5, "abc", 4)),
        ("message of 64 KiB", true, READ, |c| error(1, c, 5, &"a".repeat(65_535), 65_535)),
        ("status of another context", true, STATUS, |c| status(c, CONTEXT + 1, &[(100, 0)])),
        ("extent of no length", true, STATUS, |c| status(c, CONTEXT, &[(0, 0)])),
    ];
    for (what, structured, command, bad) in cases {
        let mut session = Session::new(structured);
        session.submit(command);
        let server = bad(session.cookies[0]);
        assert!(session.feed(&server, 1).is_err(), "{what}");
        assert!(session.ended.is_empty(), "{what}");
    }
}

#[test]
fn more_block_status_that_breaks_the_protocol() {
    let command = Command::BlockStatus { offset: 0, length: 100 };
    for (what, extents) in [("beyond", vec![(60, 0), (40, 0), (1, 0)]), ("odd length", vec![])] {
        let mut session = Session::new(true);
        session.submit(command);
        let server = status(session.cookies[0], CONTEXT, &extents);
        assert!(session.feed(&server, 1000).is_err(), "{what}");
    }
    let mut session = Session::new(true);
    session.submit(command);
    let mut first = status(session.cookies[0], CONTEXT, &[(10, 0)]);
    first[5] = 0;
    let second = status(session.cookies[0], CONTEXT, &[(10, 0)]);
    session.violation(&bytes([&first, &second]));
    let mut session = Session::new(true);
    session.submit(command);
    let server = chunk(chunk::DONE, chunk::NONE, session.cookies[0], &[]);
    assert_eq!(session.violation(&server), Violation("a block status ends well without all of its contexts"));
}

/// Random bytes: no panic, no write outside a buffer, no completion of a task that was not submitted.
#[test]
fn noise() {
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for round in 0..20_000 {
        let mut session = Session::new(round % 3 > 0);
        session.read(0, 64);
        session.submit(Command::BlockStatus { offset: 0, length: 4096 });
        session.submit(Command::Flush);
        let mut server = Vec::new();
        for _ in 0..random() % 6 + 1 {
            let cookie = session.cookies[random() as usize % 3];
            let mut part = match random() % 5 {
                0 => data((random() & 1) as u16, cookie, random() % 64, &vec![7; random() as usize % 64]),
                1 => hole((random() & 1) as u16, cookie, random() % 64, random() as u32 % 64),
                2 => status(cookie, CONTEXT, &[(random() as u32 % 8192, 3)]),
                3 => error((random() & 1) as u16, cookie, random() as u32 % 2, "abc", random() as u16 % 5),
                _ => simple(random() as u32 % 2, cookie),
            };
            if random() % 3 == 0 {
                let at = random() as usize % part.len();
                part[at] ^= 1 << (random() % 8);
            }
            server.extend(part);
        }
        let _ = session.feed(&server, random() as usize % 40 + 1);
        assert!(session.ended.len() <= 3, "round {round}");
    }
}
