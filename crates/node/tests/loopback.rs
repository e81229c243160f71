//! The initiator against the target, over real sockets: data, logins, lost connections, failing storage.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use block::{IoErrorKind, Kind, OpenError};
use iscsi::chap::Secret;
use mover::Plan;
use node::initiator::{Credentials, DigestPolicy, IscsiMedium, Options, Url, discover, list_luns};
use node::target::{Access, AclEntry, ChapAccount, LunConfig, ServeError, ServerConfig};
use support::host::{Host, new_io, options};
use support::{Guard, IQN, config, eventually, lun, medium};

fn open(server: &Guard, lun: u16, options: Options) -> Result<Host, OpenError> {
    Host::open(server.address(), lun, options)
}

fn portal(server: &Guard) -> Url {
    Url::parse(&format!("iscsi://{}", server.address())).unwrap()
}

fn copy_and_compare(host: &mut Host, seed: u64) -> mover::Report {
    let (io, remote) = (&mut host.io, &mut *host.endpoint);
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
        let wanted = |digest| if digest { DigestPolicy::Require } else { DigestPolicy::Off };
        let (header, data) = (wanted(header_digest), wanted(data_digest));
        let options = Options { header_digest: header, data_digest: data, ..options() };
        let mut remote = open(&server, 0, options).unwrap();
        let facts = remote.endpoint.inspect().facts();
        let fact = |name| facts.iter().find(|(known, _)| *known == name).unwrap().1.as_str();
        assert_eq!(fact("DataDigest") == "CRC32C", data_digest);
        assert_eq!(fact("HeaderDigest") == "CRC32C", header_digest);
        copy_and_compare(&mut remote, seed);
        remote.close();
    }
}

#[test]
fn ipv6_serves_too() {
    let listen = vec!["[::1]:0".parse().unwrap()];
    let config = config(vec![lun(0, medium("mem:1M"))], Access::default());
    let server = Guard::start_with(ServerConfig { listen, ..config });
    let mut remote = open(&server, 0, options()).unwrap();
    copy_and_compare(&mut remote, 6);
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeroes() {
    let server = Guard::of("mem:4M");
    let mut remote = open(&server, 0, options()).unwrap();
    assert!(remote.endpoint.capability().discard && remote.endpoint.capability().write_zeroes);
    let ones = remote.take(4 << 20);
    ones.fill(0, &vec![1; 4 << 20]);
    for kind in [
        Kind::Discard { offset: 8192, length: 1 << 20 },
        Kind::WriteZeroes { offset: 512, length: 2 << 20, may_unmap: true },
        Kind::WriteZeroes { offset: 4096, length: (3 << 20) + 512, may_unmap: false },
    ] {
        let (offset, length) = kind.range().unwrap();
        let write = Kind::Write { offset: 0, from: ones.clone(), durable: true };
        remote.perform(write).unwrap();
        remote.perform(kind.clone()).unwrap();
        let into = remote.take(4 << 20);
        remote.perform(Kind::Read { offset: 0, into: into.clone() }).unwrap();
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
        let mut remote = open(&server, 0, options).unwrap();
        copy_and_compare(&mut remote, 4);
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
        let error = open(&server, 0, bad.clone()).err().unwrap();
        let is_expected = |error: &OpenError| match case {
            "none" => matches!(error, OpenError::Authentication(_)),
            _ => matches!(error, OpenError::Chap(_)),
        };
        assert!(is_expected(&error), "{case}: {error:?}");
        if case != "target does not know" {
            let error = discover(&mut io, &portal(&server), &bad).err().unwrap();
            assert!(is_expected(&error), "discovery, {case}: {error:?}");
        }
    }
    assert_eq!(discover(&mut io, &portal(&server), &good).unwrap()[0].name, IQN);
}

#[test]
fn discovery_names_targets_and_luns() {
    let luns = vec![lun(0, medium("mem:1M")), lun(300, medium("mem:2M,ro"))];
    let server = Guard::start(luns, Access::default());
    let mut io = new_io();
    let targets = discover(&mut io, &portal(&server), &options()).unwrap();
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
    let server = Guard::of("mem:1M");
    let error = open(&server, 1, options()).err().unwrap();
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    let other = Url::parse(&format!("iscsi://{}/iqn.2026-11.example:none/0", server.address())).unwrap();
    let error = Host::attach(&IscsiMedium::new(other, options(), false).unwrap()).err().unwrap();
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Host::open(closed, 0, options()).err().unwrap();
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
    assert!(matches!(open(&server, 0, options()), Err(OpenError::Missing(_))));
    let mut remote = open(&server, 1, options()).unwrap();
    let from = remote.take(4096);
    let write = Kind::Write { offset: 0, from, durable: false };
    assert_eq!(remote.perform(write).unwrap_err().kind, IoErrorKind::ReadOnly);
    let stranger = Options { initiator_name: "iqn.2026-11.example:stranger".into(), ..options() };
    let error = open(&server, 1, stranger).err().unwrap();
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
        let server = Guard::of(words);
        let mut remote = open(&server, 0, options()).unwrap();
        let span = remote.take(8192);
        let kind = |write| match write {
            true => Kind::Write { offset: 4096, from: span.clone(), durable: false },
            false => Kind::Read { offset: 4096, into: span.clone() },
        };
        let error = remote.perform(kind(write)).unwrap_err();
        assert_eq!(error.kind, expected, "{words}: {error}");
        remote.perform(kind(false)).unwrap();
    }
}

/// SBC-3 4.18.1: from the storage by the target's sense data to the initiator's error.
#[test]
fn a_medium_error_keeps_its_lba() {
    let server = Guard::of("mem:16M,fault=read-error@8M+512,fault=write-error@1052672+512");
    let mut remote = open(&server, 0, options()).unwrap();
    let span = remote.take(2 << 20);
    let read = Kind::Read { offset: 7 << 20, into: span.clone() };
    let write = Kind::Write { offset: 0, from: span, durable: false };
    for (kind, lba) in [(read, 16384), (write, 2056)] {
        let error = remote.perform(kind).unwrap_err();
        assert_eq!((error.kind, error.offset), (IoErrorKind::Medium, Some(lba * 512)), "{error}");
        assert!(error.text.ends_with(&format!("at LBA {lba}")), "{error}");
    }
}

#[test]
fn a_failed_flush_is_not_retried_into_success() {
    let server = Guard::of("mem:1M,fault=flush-error:count=1");
    let mut remote = open(&server, 0, options()).unwrap();
    assert!(remote.perform(Kind::Flush).is_err());
    assert!(remote.perform(Kind::Flush).is_err(), "the storage would say yes now");
}

#[test]
fn storage_that_never_answers_times_out() {
    let luns = vec![lun(0, medium("mem:1M,fault=hang@65536+1:count=1"))];
    let drain_timeout = Duration::from_millis(300);
    let mut server = Guard::start_with(ServerConfig { drain_timeout, ..config(luns, Access::default()) });
    let patient = Options { timeout: Duration::from_secs(1), ..options() };
    let mut remote = open(&server, 0, patient).unwrap();
    let into = remote.take(4096);
    let read = Kind::Read { offset: 65536, into: into.clone() };
    let error = remote.perform(read).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Unreachable, "{error}");
    let Host { io, endpoint, .. } = remote;
    drop(endpoint);
    assert_eq!(io.pool().borrowed(), 1, "only the caller holds the buffer of a failed request");
    drop(into);
    let server = server.0.take().unwrap();
    server.handle().stop();
    assert!(matches!(server.wait(), Err(ServeError::Unfinished(_))), "the read never ended");
}

#[test]
fn a_dropped_endpoint_ends_its_session_and_returns_its_memory() {
    let server = Guard::of("mem:1M");
    for _ in 0..3 {
        let Host { mut io, endpoint, .. } = open(&server, 0, options()).unwrap();
        assert_eq!(server.handle().sessions().len(), 1);
        drop(endpoint);
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
    let server = Guard::of("mem:32M,delay=1ms");
    let limits = vec![5_000_000, 3_000_001, 400, 7_777_777, 90, 2_000_000];
    let (proxy, cuts) = cutting_proxy(server.address(), limits);
    let mut remote = Host::open(proxy, 0, options()).unwrap();
    let report = copy_and_compare(&mut remote, 9);
    assert!(cuts.load(Ordering::Relaxed) >= 4, "{cuts:?}");
    assert!(report.retries > 0);
}

#[test]
fn a_target_that_is_gone_fails_the_copy_in_time() {
    let server = Guard::of("mem:8M,delay=5ms");
    let (proxy, _) =
        cutting_proxy(server.address(), vec![2_000_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let hasty = Options { timeout: Duration::from_secs(2), ..options() };
    let mut remote = Host::open(proxy, 0, hasty).unwrap();
    let mut source = medium("pattern:8M").attach(&mut remote.io).unwrap();
    let go_on = &mut |_: &mover::Progress| mover::Control::Continue;
    let error = mover::copy(&mut remote.io, &mut *source, &mut *remote.endpoint, &Plan::default(), go_on);
    let mover::CopyError::Write { error, .. } = error.unwrap_err() else { panic!("a write fails") };
    assert_eq!(error.kind, IoErrorKind::Unreachable, "{error}");
}

#[test]
fn an_exclusive_lun_refuses_a_second_initiator() {
    let config = LunConfig { exclusive: true, ..lun(0, medium("mem:1M")) };
    let server = Guard::start(vec![config], Access::default());
    let first = open(&server, 0, options()).unwrap();
    let other = Options { initiator_name: "iqn.2026-11.example:second".into(), ..options() };
    assert!(matches!(open(&server, 0, other), Err(OpenError::Authentication(_))));
    drop(first);
}

#[test]
fn a_read_of_lent_memory_is_not_overtaken_for_ever() {
    const DEPTH: u64 = 32;
    const READS: u64 = 2000;
    let server = Guard::of("mem:16M");
    let mut remote = open(&server, 0, options()).unwrap();
    let (mut ended, mut next) = (Vec::new(), 0);
    while (ended.len() as u64) < READS {
        while next < READS && next < ended.len() as u64 + DEPTH {
            let into = remote.take(1 << 20);
            remote.submit(next, Kind::Read { offset: (next % 16) << 20, into });
            next += 1;
        }
        remote.turn(|_| {});
        for completion in remote.done.drain(..) {
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
    let hasty = Options { timeout: Duration::from_secs(1), ..options() };
    let mut remote = Host::open(address, 0, hasty).unwrap();
    assert_eq!(handle.sessions().len(), 1);
    let from = remote.take(1 << 20);
    remote.perform(Kind::Write { offset: 0, from, durable: false }).unwrap();
    handle.drain();
    remote.turn_until("asked to log out, it does", |_| handle.sessions().is_empty());
    server.0.take().unwrap().wait().unwrap();
}

#[test]
fn a_second_signal_ends_a_drain_at_once_while_work_is_under_way() {
    let mut server = Guard::of("mem:16M,delay=300ms");
    let address = server.address();
    let mut remote = Host::open(address, 0, options()).unwrap();
    let into = remote.take(4096);
    remote.submit(1, Kind::Read { offset: 0, into });
    (0..5).for_each(|_| remote.turn(|_| {}));
    let handle = server.0.as_ref().unwrap().handle();
    handle.drain();
    eventually("a draining server does not listen", || TcpStream::connect(address).is_err());
    handle.stop();
    server.0.take().unwrap().wait().unwrap();
}
