//! The initiator against the target, over real sockets: data, logins, lost connections, failing storage.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use area::PoolLimits;
use block::{Endpoint, IoErrorKind, Kind, Medium, OpenError, Request, close_all, wait_ready};
use io::Io;
use iscsi::chap::Secret;
use mover::Plan;
use node::initiator::{Credentials, DigestPolicy, IscsiMedium, Options, Url, discover, list_luns};
use node::target::{Access, AclEntry, ChapAccount, LunConfig, ServeError, ServerConfig};
use support::{Guard, IQN, config, eventually, lun, medium};

fn options() -> Options {
    Options { timeout: Duration::from_secs(10), ..Options::new("iqn.2026-11.example:tester") }
}

fn url(address: SocketAddr, lun: u16) -> Url {
    Url::parse(&format!("iscsi://{address}/{IQN}/{lun}")).unwrap()
}

fn open(
    io: &mut Io,
    address: SocketAddr,
    lun: u16,
    options: Options,
) -> Result<Box<dyn Endpoint>, OpenError> {
    let mut endpoint = IscsiMedium::new(url(address, lun), options, false)?.attach(io)?;
    wait_ready(io, &mut [&mut *endpoint])?;
    Ok(endpoint)
}

fn new_io() -> Io {
    Io::new(PoolLimits::default()).unwrap()
}

fn perform(io: &mut Io, endpoint: &mut dyn Endpoint, kind: Kind) -> Result<(), block::IoError> {
    let (mut done, mut events) = (Vec::new(), Vec::new());
    endpoint.submit(io, Request { id: 7, kind }, &mut done);
    while done.is_empty() {
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            endpoint.on_event(io, event, &mut done);
        }
    }
    done.pop().unwrap().result
}

fn copy_and_compare(io: &mut Io, remote: &mut dyn Endpoint, seed: u64) -> mover::Report {
    let size = remote.capability().size_bytes;
    let mut source = medium(&format!("pattern:{size}:{seed}")).attach(io).unwrap();
    let plan = Plan { verify: true, ..Plan::default() };
    let report = mover::copy(io, &mut *source, remote, &plan, &mut |_| mover::Control::Continue).unwrap();
    assert!(report.verified);
    let plan = Plan::default();
    let same = mover::compare(io, &mut *source, remote, &plan, &mut |_| mover::Control::Continue).unwrap();
    assert_eq!((same.bytes, same.first_difference), (size, None));
    report
}

#[test]
fn data_goes_there_and_back_with_and_without_digests() {
    let server = Guard::start(vec![lun(0, medium("mem:40M")), lun(5, medium("mem:1M"))], Access::default());
    for (seed, header_digest, data_digest) in [(1, false, false), (2, true, false), (3, true, true)] {
        let mut io = new_io();
        let wanted = |digest| if digest { DigestPolicy::Require } else { DigestPolicy::Off };
        let (header, data) = (wanted(header_digest), wanted(data_digest));
        let options = Options { header_digest: header, data_digest: data, ..options() };
        let mut remote = open(&mut io, server.address(), 0, options).unwrap();
        let facts = remote.inspect().facts();
        let fact = |name| facts.iter().find(|(known, _)| *known == name).unwrap().1.as_str();
        assert_eq!(fact("DataDigest") == "CRC32C", data_digest);
        assert_eq!(fact("HeaderDigest") == "CRC32C", header_digest);
        copy_and_compare(&mut io, &mut *remote, seed);
        close_all(&mut io, &mut [&mut *remote]);
        assert!(remote.is_closed());
    }
}

#[test]
fn ipv6_serves_too() {
    let listen = vec!["[::1]:0".parse().unwrap()];
    let config = config(vec![lun(0, medium("mem:1M"))], Access::default());
    let server = Guard::start_with(ServerConfig { listen, ..config });
    let mut io = new_io();
    let mut remote = open(&mut io, server.address(), 0, options()).unwrap();
    copy_and_compare(&mut io, &mut *remote, 6);
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    let server = Guard::start(vec![lun(0, medium("mem:4M"))], Access::default());
    let mut io = new_io();
    let mut remote = open(&mut io, server.address(), 0, options()).unwrap();
    assert!(remote.capability().discard && remote.capability().write_zeroes);
    let ones = io.pool().take(4 << 20).unwrap();
    ones.fill(0, &vec![1; 4 << 20]);
    for kind in [
        Kind::Discard { offset: 8192, length: 1 << 20 },
        Kind::WriteZeroes { offset: 512, length: 2 << 20, may_unmap: true },
        Kind::WriteZeroes { offset: 4096, length: (3 << 20) + 512, may_unmap: false },
    ] {
        let (offset, length) = kind.range().unwrap();
        let write = Kind::Write { offset: 0, from: ones.clone(), durable: true };
        perform(&mut io, &mut *remote, write).unwrap();
        perform(&mut io, &mut *remote, kind.clone()).unwrap();
        let into = io.pool().take(4 << 20).unwrap();
        perform(&mut io, &mut *remote, Kind::Read { offset: 0, into: into.clone() }).unwrap();
        for (at, byte) in into.as_slice().iter().enumerate() {
            let inside = (offset..offset + length).contains(&(at as u64));
            assert_eq!(*byte, u8::from(!inside), "{kind:?} at {at}");
        }
    }
}

#[test]
fn chap_one_way_and_mutual() {
    let secret = |text: &str| Secret::new(text.as_bytes()).unwrap();
    let account = ChapAccount {
        user: "me".into(),
        secret: secret("a secret of mine"),
        mutual: Some(("target".into(), secret("another secret"))),
    };
    let access = Access { chap: vec![account], initiators: Vec::new() };
    let server = Guard::start(vec![lun(0, medium("mem:1M"))], access);
    let credentials = |user: &str, text: &str| Some(Credentials { user: user.into(), secret: secret(text) });
    let good = Options { chap: credentials("me", "a secret of mine"), ..options() };
    let mut io = new_io();
    let mutual = Options { mutual: credentials("target", "another secret"), ..good.clone() };
    for options in [good.clone(), mutual] {
        let mut remote = open(&mut io, server.address(), 0, options).unwrap();
        copy_and_compare(&mut io, &mut *remote, 4);
    }
    for (case, bad) in [
        ("none", options()),
        ("wrong secret", Options { chap: credentials("me", "not the right one"), ..options() }),
        ("wrong user", Options { chap: credentials("you", "a secret of mine"), ..options() }),
        (
            "target does not know",
            Options { mutual: credentials("target", "quite wrong one"), ..good.clone() },
        ),
    ] {
        let error = open(&mut io, server.address(), 0, bad.clone()).err().unwrap();
        assert!(matches!(error, OpenError::Authentication(_)), "{case}: {error:?}");
        let portal = Url::parse(&format!("iscsi://{}", server.address())).unwrap();
        if case != "target does not know" {
            let error = discover(&mut io, &portal, &bad).err().unwrap();
            assert!(matches!(error, OpenError::Authentication(_)), "discovery, {case}: {error:?}");
        }
    }
    let portal = Url::parse(&format!("iscsi://{}", server.address())).unwrap();
    assert_eq!(discover(&mut io, &portal, &good).unwrap()[0].name, IQN);
}

#[test]
fn discovery_names_targets_and_luns() {
    let luns = vec![lun(0, medium("mem:1M")), lun(300, medium("mem:2M,ro"))];
    let server = Guard::start(luns, Access::default());
    let mut io = new_io();
    let portal = Url::parse(&format!("iscsi://{}", server.address())).unwrap();
    let targets = discover(&mut io, &portal, &options()).unwrap();
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].addresses, [format!("{},1", server.address())]);
    let target = Url::parse(&format!("iscsi://{}/{IQN}", server.address())).unwrap();
    let (luns, _) = list_luns(&mut io, &target, &options()).unwrap();
    let facts: Vec<_> = luns.iter().map(|lun| (lun.lun, lun.size_bytes, lun.read_only)).collect();
    assert_eq!(facts, [(0, Some(1 << 20), false), (300, Some(2 << 20), true)]);
    assert_eq!(luns[1].serial.as_deref(), Some("serial-300"));
}

#[test]
fn what_is_not_there_is_said() {
    let server = Guard::start(vec![lun(0, medium("mem:1M"))], Access::default());
    let mut io = new_io();
    let error = open(&mut io, server.address(), 1, options()).err().unwrap();
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    let other = Url::parse(&format!("iscsi://{}/iqn.2026-11.example:none/0", server.address())).unwrap();
    let mut endpoint = IscsiMedium::new(other, options(), false).unwrap().attach(&mut io).unwrap();
    let error = wait_ready(&mut io, &mut [&mut *endpoint]).err().unwrap();
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = open(&mut io, closed, 0, options()).err().unwrap();
    assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
}

#[test]
fn an_acl_hides_luns_and_write_protects() {
    let entry = |initiator: &str, luns, read_only| AclEntry {
        initiator: Some(initiator.into()),
        peer: None,
        luns,
        read_only,
        chap: None,
    };
    let access = Access {
        chap: Vec::new(),
        initiators: vec![
            entry("iqn.2026-11.example:tester", Some(vec![1]), true),
            entry("iqn.2026-11.example:other", None, false),
        ],
    };
    let server = Guard::start(vec![lun(0, medium("mem:1M")), lun(1, medium("mem:1M"))], access);
    let mut io = new_io();
    assert!(matches!(open(&mut io, server.address(), 0, options()), Err(OpenError::Missing(_))));
    let mut remote = open(&mut io, server.address(), 1, options()).unwrap();
    let from = io.pool().take(4096).unwrap();
    let write = Kind::Write { offset: 0, from, durable: false };
    assert_eq!(perform(&mut io, &mut *remote, write).unwrap_err().kind, IoErrorKind::ReadOnly);
    let stranger = Options { initiator_name: "iqn.2026-11.example:stranger".into(), ..options() };
    let error = open(&mut io, server.address(), 1, stranger).err().unwrap();
    assert!(matches!(error, OpenError::Authentication(_)), "{error:?}");
}

#[test]
fn failing_storage_gives_the_right_error_and_the_session_lives() {
    for (words, write, expected) in [
        ("mem:1M,fault=read-error:count=1", false, IoErrorKind::Medium),
        ("mem:1M,fault=write-error:count=1", true, IoErrorKind::Medium),
        ("mem:1M,fault=no-space:count=1", true, IoErrorKind::NoSpace),
        ("mem:1M,ro", true, IoErrorKind::ReadOnly),
    ] {
        let server = Guard::start(vec![lun(0, medium(words))], Access::default());
        let mut io = new_io();
        let mut remote = open(&mut io, server.address(), 0, options()).unwrap();
        let span = io.pool().take(8192).unwrap();
        let kind = |write| match write {
            true => Kind::Write { offset: 4096, from: span.clone(), durable: false },
            false => Kind::Read { offset: 4096, into: span.clone() },
        };
        let error = perform(&mut io, &mut *remote, kind(write)).unwrap_err();
        assert_eq!(error.kind, expected, "{words}: {error}");
        perform(&mut io, &mut *remote, kind(false)).unwrap();
    }
}

#[test]
fn a_failed_flush_is_not_retried_into_success() {
    let server = Guard::start(vec![lun(0, medium("mem:1M,fault=flush-error:count=1"))], Access::default());
    let mut io = new_io();
    let mut remote = open(&mut io, server.address(), 0, options()).unwrap();
    assert!(perform(&mut io, &mut *remote, Kind::Flush).is_err());
    assert!(perform(&mut io, &mut *remote, Kind::Flush).is_err(), "the storage would say yes now");
}

#[test]
fn storage_that_never_answers_times_out() {
    let luns = vec![lun(0, medium("mem:1M,fault=hang@65536+1:count=1"))];
    let drain_timeout = Duration::from_millis(300);
    let mut server = Guard::start_with(ServerConfig { drain_timeout, ..config(luns, Access::default()) });
    let mut io = new_io();
    let patient = Options { timeout: Duration::from_secs(1), ..options() };
    let mut remote = open(&mut io, server.address(), 0, patient).unwrap();
    let into = io.pool().take(4096).unwrap();
    let read = Kind::Read { offset: 65536, into: into.clone() };
    let error = perform(&mut io, &mut *remote, read).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Unreachable, "{error}");
    drop(remote);
    assert_eq!(io.pool().borrowed(), 1, "only the caller holds the buffer of a failed request");
    drop(into);
    let server = server.0.take().unwrap();
    server.handle().stop();
    assert!(matches!(server.wait(), Err(ServeError::Unfinished(_))), "the read never ended");
}

#[test]
fn a_dropped_endpoint_ends_its_session_and_returns_its_memory() {
    let server = Guard::start(vec![lun(0, medium("mem:1M"))], Access::default());
    let mut io = new_io();
    for _ in 0..3 {
        let remote = open(&mut io, server.address(), 0, options()).unwrap();
        assert_eq!(server.handle().sessions().len(), 1);
        drop(remote);
        // The loop continues, with the receive that was in flight.
        let mut events = Vec::new();
        eventually("the session ends, and so does the receive", || {
            let until = io.now() + Duration::from_millis(1);
            io.turn_until(Some(until), &mut events).unwrap();
            events.clear();
            server.handle().sessions().is_empty() && io.pool().borrowed() == 0
        });
    }
}

/// Forwards connections, and cuts each after a number of bytes towards the target.
fn cutting_proxy(target: SocketAddr, bytes_per_connection: Vec<u64>) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let cuts = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&cuts);
    std::thread::spawn(move || {
        let mut limits = bytes_per_connection.into_iter();
        for client in listener.incoming() {
            let (Ok(mut client), limit) = (client, limits.next().unwrap_or(u64::MAX)) else { return };
            let Ok(mut server) = TcpStream::connect(target) else { return };
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back_from, &mut back_to);
                let _ = back_to.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || {
                let (mut buffer, mut passed) = (vec![0; 65536], 0);
                while let Ok(length @ 1..) = client.read(&mut buffer) {
                    passed += length as u64;
                    if passed > limit || server.write_all(&buffer[..length]).is_err() {
                        count.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                }
                let _ = server.shutdown(std::net::Shutdown::Both);
                let _ = client.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (address, cuts)
}

#[test]
fn a_copy_survives_lost_connections() {
    let server = Guard::start(vec![lun(0, medium("mem:32M,delay=1ms"))], Access::default());
    let limits = vec![5_000_000, 3_000_001, 400, 7_777_777, 90, 2_000_000];
    let (proxy, cuts) = cutting_proxy(server.address(), limits);
    let mut io = new_io();
    let mut remote = open(&mut io, proxy, 0, options()).unwrap();
    let report = copy_and_compare(&mut io, &mut *remote, 9);
    assert!(cuts.load(Ordering::Relaxed) >= 4, "{cuts:?}");
    assert!(report.retries > 0);
}

#[test]
fn a_target_that_is_gone_fails_the_copy_in_time() {
    let server = Guard::start(vec![lun(0, medium("mem:8M,delay=5ms"))], Access::default());
    let (proxy, _) =
        cutting_proxy(server.address(), vec![2_000_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut io = new_io();
    let hasty = Options { timeout: Duration::from_secs(2), ..options() };
    let mut remote = open(&mut io, proxy, 0, hasty).unwrap();
    let mut source = medium("pattern:8M").attach(&mut io).unwrap();
    let error =
        mover::copy(&mut io, &mut *source, &mut *remote, &Plan::default(), &mut |_| mover::Control::Continue);
    let mover::CopyError::Write { error, .. } = error.unwrap_err() else { panic!("a write fails") };
    assert_eq!(error.kind, IoErrorKind::Unreachable, "{error}");
}

#[test]
fn an_exclusive_lun_refuses_a_second_initiator() {
    let config = LunConfig { exclusive: true, ..lun(0, medium("mem:1M")) };
    let server = Guard::start(vec![config], Access::default());
    let mut io = new_io();
    let first = open(&mut io, server.address(), 0, options()).unwrap();
    let other = Options { initiator_name: "iqn.2026-11.example:second".into(), ..options() };
    assert!(matches!(open(&mut io, server.address(), 0, other), Err(OpenError::Authentication(_))));
    drop(first);
}

#[test]
fn a_read_of_lent_memory_is_not_overtaken_for_ever() {
    const DEPTH: u64 = 32;
    const READS: u64 = 2000;
    let server = Guard::start(vec![lun(0, medium("mem:16M"))], Access::default());
    let mut io = new_io();
    let mut remote = open(&mut io, server.address(), 0, options()).unwrap();
    let (mut events, mut done, mut ended) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = 0;
    while (ended.len() as u64) < READS {
        while next < READS && next < ended.len() as u64 + DEPTH {
            let into = io.pool().take(1 << 20).unwrap();
            let kind = Kind::Read { offset: (next % 16) << 20, into };
            remote.submit(&mut io, Request { id: next, kind }, &mut done);
            next += 1;
        }
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            remote.on_event(&mut io, event, &mut done);
        }
        for completion in done.drain(..) {
            completion.result.unwrap();
            ended.push(completion.id);
        }
    }
    let overtaken =
        |id: u64| ended.iter().take_while(|other| **other != id).filter(|other| **other > id).count();
    let most = (0..READS).map(overtaken).max().unwrap();
    eprintln!("MOST {most}");
    assert!(most <= DEPTH as usize, "{most} later reads ended before one");
}

#[test]
fn a_drain_lets_initiators_log_out_and_finishes_their_work() {
    let config = vec![lun(0, medium("mem:16M,delay=2ms"))];
    let mut server = Guard::start(config, Access::default());
    let address = server.address();
    let handle = server.0.as_ref().unwrap().handle();
    let mut io = new_io();
    let hasty = Options { timeout: Duration::from_secs(1), ..options() };
    let mut remote = open(&mut io, address, 0, hasty).unwrap();
    assert_eq!(handle.sessions().len(), 1);
    let from = io.pool().take(1 << 20).unwrap();
    perform(&mut io, &mut *remote, Kind::Write { offset: 0, from, durable: false }).unwrap();
    handle.drain();
    let (mut events, mut done) = (Vec::new(), Vec::new());
    eventually("asked to log out, it does", || {
        let until = io.now() + Duration::from_millis(10);
        io.turn_until(Some(until), &mut events).unwrap();
        for event in events.drain(..) {
            remote.on_event(&mut io, event, &mut done);
        }
        handle.sessions().is_empty()
    });
    server.0.take().unwrap().wait().unwrap();
}

#[test]
fn a_second_signal_ends_a_drain_at_once_while_work_is_under_way() {
    let mut server = Guard::start(vec![lun(0, medium("mem:16M,delay=300ms"))], Access::default());
    let address = server.address();
    let mut io = new_io();
    let mut remote = open(&mut io, address, 0, options()).unwrap();
    let into = io.pool().take(4096).unwrap();
    let mut done = Vec::new();
    remote.submit(&mut io, Request { id: 1, kind: Kind::Read { offset: 0, into } }, &mut done);
    let mut events = Vec::new();
    for _ in 0..5 {
        let until = io.now() + Duration::from_millis(10);
        io.turn_until(Some(until), &mut events).unwrap();
        for event in events.drain(..) {
            remote.on_event(&mut io, event, &mut done);
        }
    }
    let handle = server.0.as_ref().unwrap().handle();
    handle.drain();
    eventually("a draining server does not listen", || TcpStream::connect(address).is_err());
    handle.stop();
    server.0.take().unwrap().wait().unwrap();
}
