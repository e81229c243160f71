//! Sealed sessions over real sockets (docs/SEAL.md): data, wrong keys, bits that flip in transit.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use block::{Kind, OpenError};
use io::Item;
use node::initiator::{InitiatorSealing, Options, Url, discover, list_luns};
use node::target::{Access, LunConfig, Peer, Sealing, ServerConfig};
use node::{Psk, SealPolicy};
use seal::{Identity, PublicKey, Suite};
use support::host::{self, Host, new_io};
use support::relay::Acceptor;
use support::{Guard, IQN, TIME_LIMIT, config, eventually, lun, medium};

const TARGET: u8 = 1;
const INITIATOR: u8 = 2;
const STRANGER: u8 = 3;

fn identity(of: u8) -> Arc<Identity> {
    Arc::new(Identity::generate([of; 32]))
}

fn key(of: u8) -> PublicKey {
    identity(of).public()
}

fn psk(byte: u8) -> Psk {
    Psk::new([byte; 32].into())
}

/// A sealing server with one configured initiator.
fn server(policy: SealPolicy, suites: &[Suite], luns: Vec<LunConfig>) -> ServerConfig {
    let peer = Peer {
        name: "tester".into(),
        public_key: key(INITIATOR),
        initiator: None,
        luns: None,
        psk: Some(psk(9)),
    };
    let sealing = Sealing {
        policy,
        identity: identity(TARGET),
        peers: vec![peer],
        suites: suites.to_vec(),
        next: None,
    };
    ServerConfig { sealing: Some(sealing), ..config(luns, Access::default()) }
}

fn sealing(policy: SealPolicy) -> InitiatorSealing {
    let sealing = InitiatorSealing::new(policy, identity(INITIATOR), key(TARGET));
    InitiatorSealing { psk: Some(psk(9)), ..sealing }
}

fn options(sealing: Option<InitiatorSealing>) -> Options {
    Options { timeout: TIME_LIMIT, sealing, ..host::options() }
}

fn open(address: SocketAddr, sealing: Option<InitiatorSealing>) -> Result<Host, OpenError> {
    Host::open(address, 0, options(sealing))
}

/// A session that must be sealed.
fn sealed(address: SocketAddr) -> Host {
    open(address, Some(sealing(SealPolicy::Require))).unwrap()
}

/// A server that requires sealing with one of `suites`.
fn sealing_server(suites: &[Suite], words: &str) -> Guard {
    Guard::start_with(server(SealPolicy::Require, suites, vec![lun(0, medium(words))]))
}

fn fact(host: &Host, name: &str) -> Option<String> {
    host.endpoint.inspect().facts().into_iter().find(|(known, _)| *known == name).map(|(_, fact)| fact)
}

fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| byte()).collect()
}

/// Transfers from one block to more than the target accepts in one command, without overlap: (offset, length).
fn transfers() -> Vec<(u64, usize)> {
    let mut at = 0;
    [512, 1024, 4096, 65_024, 65_536, 66_048, 131_072, 262_144, 262_656, 1 << 20, (1 << 20) + 512, 4 << 20]
        .into_iter()
        .map(|length| {
            let offset = at;
            at += length as u64 + 512;
            (offset, length)
        })
        .collect()
}

/// Writes all transfers at once, then reads them at once and compares.
fn write_and_read(host: &mut Host, seed: u64) {
    let writes = transfers().into_iter().map(|(offset, length)| {
        let from = host.take(length);
        from.fill(0, &content(seed + offset, length));
        Kind::Write { offset, from, durable: false }
    });
    let writes: Vec<_> = writes.collect();
    let results = host.perform_all(writes.clone());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    for ((offset, length), write) in transfers().into_iter().zip(writes) {
        let Kind::Write { from, .. } = write else { unreachable!() };
        assert_eq!(from.as_slice(), content(seed + offset, length), "what is written stays as it is");
    }
    let reads =
        transfers().into_iter().map(|(offset, length)| Kind::Read { offset, into: host.take(length) });
    let reads: Vec<_> = reads.collect();
    let results = host.perform_all(reads.clone());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    for ((offset, length), read) in transfers().into_iter().zip(reads) {
        let Kind::Read { into, .. } = read else { unreachable!() };
        assert!(into.as_slice() == content(seed + offset, length), "{length} bytes at {offset}");
    }
}

#[test]
fn data_goes_there_and_back_with_every_suite_and_unit() {
    let storage = tempfile();
    let file = format!("file:{}", storage.display());
    for (suite, words) in Suite::ALL.into_iter().zip(["mem:16M", &file, "mem:16M", &file]) {
        let server = sealing_server(&[suite], words);
        for (seed, unit) in [(1, seal::UNIT_BYTES), (2, 4096), (3, seal::UNIT_BYTES_MAX)] {
            let sealing = InitiatorSealing { unit, ..sealing(SealPolicy::Require) };
            let mut remote = open(server.address(), Some(sealing)).unwrap();
            assert_eq!(fact(&remote, "suite").as_deref(), Some(suite.name()));
            assert_eq!(fact(&remote, "peer key"), Some(key(TARGET).to_string()));
            assert_eq!(fact(&remote, "DataDigest").as_deref(), Some("None"));
            write_and_read(&mut remote, seed);
            remote.close();
        }
    }
    std::fs::remove_file(storage).unwrap();
}

/// A file on tmpfs, from which the target seals in place.
fn tempfile() -> std::path::PathBuf {
    let path = std::path::PathBuf::from(format!("/dev/shm/hikyaku-test-sealed-{}", std::process::id()));
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    path
}

/// CONTRACT "Order": data that was read and sealed ahead is not sent once a write of another session was acknowledged.
#[test]
fn a_write_on_session_2_is_seen_by_the_next_read_on_session_1_though_it_was_sealed_ahead() {
    const BYTES: usize = 8192;
    let server = sealing_server(&Suite::ALL, "mem:8M");
    let (mut session_1, mut session_2) = (sealed(server.address()), sealed(server.address()));
    let mut read = |at: usize| {
        let into = session_1.take(BYTES);
        session_1.perform(Kind::Read { offset: (at * BYTES) as u64, into: into.clone() }).unwrap();
        into.as_slice()[0]
    };
    for round in 0..50 {
        let first = round * 16;
        for at in first..first + 4 {
            assert_eq!(read(at), 0);
        }
        // Long enough to read and seal the next blocks ahead.
        std::thread::sleep(Duration::from_millis(3));
        let from = session_2.take(BYTES);
        from.fill(0, &[round as u8 + 1; BYTES]);
        let offset = ((first + 4) * BYTES) as u64;
        session_2.perform(Kind::Write { offset, from, durable: false }).unwrap();
        assert_eq!(read(first + 4), round as u8 + 1, "round {round}");
    }
    session_1.close();
    session_2.close();
}

#[test]
fn a_portal_is_asked_for_its_targets_within_the_seal() {
    let server = sealing_server(&Suite::ALL, "mem:1M");
    let mut io = new_io();
    let url = Url::parse(&format!("iscsi://{}", server.address())).unwrap();
    let found = discover(&mut io, &url, &options(Some(sealing(SealPolicy::Require)))).unwrap();
    assert_eq!(found.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), [IQN]);
    let url = Url::parse(&format!("iscsi://{}/{IQN}", server.address())).unwrap();
    let (found, _) = list_luns(&mut io, &url, &options(Some(sealing(SealPolicy::Require)))).unwrap();
    assert_eq!(found.len(), 1);
    let refused = list_luns(&mut io, &url, &options(None)).unwrap_err();
    assert!(matches!(refused, OpenError::Authentication(_)), "{refused:?}");
    let sessions = server.handle().sessions();
    assert!(sessions.iter().all(|session| session.peer_key == Some(key(INITIATOR))));
}

#[test]
fn each_row_of_the_policy_seal1_7() {
    let luns = || vec![lun(0, medium("mem:1M"))];
    let open_at = |target: Option<SealPolicy>, initiator: Option<SealPolicy>| {
        let config = match target {
            Some(policy) => server(policy, &Suite::ALL, luns()),
            None => config(luns(), Access::default()),
        };
        let server = Guard::start_with(config);
        let remote = open(server.address(), initiator.map(sealing));
        match remote {
            Ok(remote) => Some(fact(&remote, "protection").as_deref() == Some("seal")),
            Err(OpenError::Authentication(_)) => None,
            Err(error) => panic!("{target:?} {initiator:?}: {error}"),
        }
    };
    use SealPolicy::{Off, Offer, Require};
    for (target, initiator, sealed) in [
        (None, None, Some(false)),
        (None, Some(Off), Some(false)),
        (None, Some(Offer), Some(false)),
        (None, Some(Require), None),
        (Some(Off), Some(Offer), Some(false)),
        (Some(Off), Some(Require), None),
        (Some(Offer), None, Some(false)),
        (Some(Offer), Some(Offer), Some(true)),
        (Some(Offer), Some(Require), Some(true)),
        (Some(Require), None, None),
        (Some(Require), Some(Off), None),
        (Some(Require), Some(Offer), Some(true)),
        (Some(Require), Some(Require), Some(true)),
    ] {
        assert_eq!(open_at(target, initiator), sealed, "target {target:?}, initiator {initiator:?}");
    }
}

#[test]
fn keys_that_do_not_fit_are_refused_before_a_login() {
    let server = sealing_server(&Suite::ALL, "mem:1M");
    let good = || sealing(SealPolicy::Require);
    for (case, sealing) in [
        ("a target with another key", InitiatorSealing { peer_key: key(STRANGER), ..good() }),
        ("an initiator that is not on the list", InitiatorSealing { identity: identity(STRANGER), ..good() }),
        ("another pre-shared key", InitiatorSealing { psk: Some(psk(8)), ..good() }),
        ("no pre-shared key", InitiatorSealing { psk: None, ..good() }),
    ] {
        let refused = open(server.address(), Some(sealing)).map(|_| ()).unwrap_err();
        // The target answers a peer with a different pre-shared key: that answer is indistinguishable from a damaged
        // one.
        let refused_by_psk = case.contains("pre-shared") && matches!(refused, OpenError::Unverified(_));
        assert!(refused_by_psk || matches!(refused, OpenError::Authentication(_)), "{case}: {refused:?}");
    }
    open(server.address(), Some(good())).unwrap();
}

#[test]
fn an_announced_key_is_tried_after_a_refusal_seal1_9() {
    let server = sealing_server(&Suite::ALL, "mem:1M");
    let keys = |peer, next| InitiatorSealing {
        peer_key: key(peer),
        next_key: Some(key(next)),
        ..sealing(SealPolicy::Require)
    };
    for (present, next, opens) in
        [(TARGET, STRANGER, true), (STRANGER, TARGET, true), (STRANGER, INITIATOR, false)]
    {
        let opened = open(server.address(), Some(keys(present, next))).map(|_| ());
        assert_eq!(opened.is_ok(), opens, "present {present}, next {next}: {opened:?}");
        if let Err(error) = opened {
            assert!(matches!(error, OpenError::Authentication(_)), "{error:?}");
        }
    }
}

#[derive(Default)]
struct Way {
    /// Bytes forwarded on the current connection.
    passed: AtomicU64,
    /// Position of the byte in which a bit is flipped; 0 for none, since the first byte is never flipped.
    flip: AtomicU64,
    /// Position of the first byte that is held back; 0 for none.
    hold: AtomicU64,
}

impl Way {
    fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }

    /// Holds everything back after the next `bytes` bytes.
    fn hold_behind(&self, bytes: u64) {
        self.hold.store(self.passed() + bytes, Ordering::SeqCst);
    }

    fn release(&self) {
        self.hold.store(0, Ordering::SeqCst);
    }

    /// Forwards the bytes received at position `at`, as far and as soon as permitted.
    fn pass(&self, at: u64, bytes: &[u8], mut to: &TcpStream) -> std::io::Result<()> {
        let (mut sent, start) = (0, Instant::now());
        while sent < bytes.len() && start.elapsed() < TIME_LIMIT {
            let hold = self.hold.load(Ordering::SeqCst);
            let may = if hold == 0 { bytes.len() } else { bytes.len().min(hold.saturating_sub(at) as usize) };
            let now = sent..may.max(sent);
            sent = now.end;
            // Counted before the write: when the answer to these bytes arrives, they are counted.
            self.passed.store(at + sent as u64, Ordering::SeqCst);
            to.write_all(&bytes[now])?;
            std::thread::sleep(Duration::from_millis(u64::from(sent < bytes.len())));
        }
        Ok(())
    }
}

/// Relays connections and flips bits.
struct Flipper {
    address: SocketAddr,
    to_target: Arc<Way>,
    from_target: Arc<Way>,
    _acceptor: Acceptor,
}

impl Flipper {
    fn start(target: SocketAddr) -> Self {
        let (to_target, from_target) = (Arc::new(Way::default()), Arc::new(Way::default()));
        let (to, from) = (Arc::clone(&to_target), Arc::clone(&from_target));
        let acceptor = Acceptor::start(target, move |client, server| {
            std::thread::scope(|scope| {
                scope.spawn(|| pass(client, server, &to));
                pass(server, client, &from);
            });
        });
        Self { address: acceptor.address, to_target, from_target, _acceptor: acceptor }
    }
}

fn pass(mut from: &TcpStream, to: &TcpStream, way: &Way) {
    let (mut at, mut buffer) = (0, vec![0; 64 << 10]);
    way.passed.store(0, Ordering::SeqCst);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let flip = way.flip.load(Ordering::SeqCst);
        if flip > 0 && (at..at + count as u64).contains(&flip) {
            buffer[(flip - at) as usize] ^= 1 << (flip % 8);
            way.flip.store(0, Ordering::SeqCst);
        }
        if way.pass(at, &buffer[..count], to).is_err() {
            break;
        }
        at += count as u64;
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[test]
fn a_flipped_bit_ends_the_connection_and_no_byte_of_it_reaches_a_disk_or_its_reader() {
    // Most of the time is the pause before each reconnection.
    std::thread::scope(|scope| {
        for suite in Suite::ALL {
            scope.spawn(move || flip_bits(suite));
        }
    });
}

fn flip_bits(suite: Suite) {
    const LENGTH: usize = 200_000 / 512 * 512;
    let server = sealing_server(&[suite], "mem:1M");
    let relay = Flipper::start(server.address());
    let mut remote = sealed(relay.address);
    let into = remote.take(LENGTH);
    // Positions in the prefix, the head, its descriptors and tag, the first unit and the last, and later records.
    let ahead =
        [0, 1, 2, 3, 4, 30, 51, 52, 60, 70, 90, 140, 147, 148, 160, 165, 300, 70_000, 150_000, 199_000];
    for (round, ahead) in (1..).zip(ahead) {
        for reads in [false, true] {
            let data = content(round, LENGTH);
            let lost = remote.endpoint.inspect().losses();
            let from = remote.take(LENGTH);
            from.fill(0, &data);
            let write = Kind::Write { offset: 512, from, durable: false };
            let read = Kind::Read { offset: 512, into: into.clone() };
            let (way, kinds) = match reads {
                false => (&relay.to_target, [write, read]),
                true => (&relay.from_target, [write, read]),
            };
            for (which, kind) in kinds.into_iter().enumerate() {
                if which == usize::from(reads) {
                    way.flip.store(way.passed() + ahead, Ordering::SeqCst);
                }
                let result = remote.perform(kind);
                assert!(result.is_ok(), "{suite:?} {ahead}: {result:?}");
            }
            assert!(into.as_slice() == data, "{suite:?}, flipped at {ahead}, reads: {reads}");
            let detected = remote.endpoint.inspect().losses() > lost;
            assert!(detected, "{suite:?}, flipped at {ahead}, reads: {reads}: the flip was not detected");
        }
    }
    let (retries, losses) = (remote.endpoint.inspect().retries(), remote.endpoint.inspect().losses());
    assert_eq!(retries, losses, "each time the one command was sent again");
}

/// Turns the loop until `condition` holds; what completes meanwhile succeeds.
fn turn_until(host: &mut Host, what: &str, condition: impl FnMut(&Host) -> bool) {
    host.turn_until(what, condition);
    assert!(host.done.drain(..).all(|completion| completion.result.is_ok()), "{what}");
}

#[test]
fn a_write_is_sealed_ahead_of_the_targets_leave_up_to_a_bound_and_for_one_session() {
    const LENGTH: usize = 2 << 20;
    // 512 KiB in units of 64 KiB; none on one core.
    let areas = if std::thread::available_parallelism().unwrap().get() > 1 { 8 } else { 0 };
    let server = sealing_server(&[Suite::Aes256Gcm], "mem:8M");
    let relay = Flipper::start(server.address());
    let mut remote = sealed(relay.address);
    for (round, is_lost) in [(1, false), (2, true), (3, false)] {
        let data = content(round, LENGTH);
        let from = remote.take(LENGTH);
        from.fill(0, &data);
        let short = Kind::Write { offset: 0, from: from.slice(0, 512), durable: false };
        remote.perform(short).unwrap();
        let (before, losses) = (remote.io.pool().borrowed(), remote.endpoint.inspect().losses());
        relay.from_target.hold_behind(0);
        if is_lost {
            relay.from_target.flip.store(relay.from_target.passed() + 2, Ordering::SeqCst);
        }
        let kind = Kind::Write { offset: 512, from: from.clone(), durable: false };
        remote.submit(0, kind);
        turn_until(&mut remote, "sealed ahead", |host| host.io.pool().borrowed() == before + areas);
        let mut turns = 0;
        turn_until(&mut remote, "twenty more turns", |host| {
            assert_eq!(host.io.pool().borrowed(), before + areas, "no more than may wait");
            turns += 1;
            turns > 20
        });
        relay.from_target.release();
        turn_until(&mut remote, "written", |host| host.done.len() == 1);
        assert_eq!(remote.endpoint.inspect().losses() > losses, is_lost);
        assert!(remote.io.pool().borrowed() <= before, "what was sealed for a session goes with it");
        let into = remote.take(LENGTH);
        let read = remote.perform(Kind::Read { offset: 512, into: into.clone() });
        assert!(read.is_ok() && into.as_slice() == data, "round {round}: {read:?}");
    }
}

#[test]
fn the_next_read_leaves_before_the_data_of_the_last_is_looked_at() {
    const LENGTH: usize = 64 << 10;
    let server = sealing_server(&Suite::ALL, "mem:8M");
    let relay = Flipper::start(server.address());
    let mut remote = sealed(relay.address);
    let spans = [remote.take(LENGTH), remote.take(LENGTH)];
    let read = |id: usize| Kind::Read { offset: 0, into: spans[id].clone() };
    for round in 0..20 {
        relay.from_target.hold_behind(0);
        let asked = relay.to_target.passed();
        remote.submit(0, read(0));
        remote.turn_until("asked", |_| relay.to_target.passed() > asked);
        // All data of the first command is with the socket before the second command arrives.
        let (asked, came) = (relay.to_target.passed(), relay.from_target.passed());
        relay.from_target.release();
        eventually("came", || relay.from_target.passed() > came + LENGTH as u64);
        remote.submit(1, read(1));
        while remote.done.len() < 2 {
            remote.turn(|event| {
                if matches!(event.item, Item::Incoming(_)) {
                    eventually("the second leaves first", || relay.to_target.passed() > asked);
                }
            });
        }
        assert!(remote.done.drain(..).all(|completion| completion.result.is_ok()), "round {round}");
    }
}

#[test]
fn a_unit_is_opened_while_the_next_is_on_its_way() {
    const LENGTH: usize = 256 << 10;
    let server = sealing_server(&Suite::ALL, "mem:8M");
    let relay = Flipper::start(server.address());
    let mut remote = sealed(relay.address);
    let into = remote.take(LENGTH);
    // The first unit is damaged. Part of the second has arrived; the rest has not.
    relay.from_target.flip.store(relay.from_target.passed() + 5000, Ordering::SeqCst);
    relay.from_target.hold_behind(80_000);
    remote.submit(0, Kind::Read { offset: 0, into });
    turn_until(&mut remote, "opened at once", |host| host.endpoint.inspect().losses() > 0);
    relay.from_target.release();
    turn_until(&mut remote, "read again", |host| host.done.len() == 1);
}

#[test]
fn a_bit_flipped_in_the_outer_login_makes_the_handshake_fail_and_it_is_made_again_seal1_3() {
    let server = Guard::start_with(server(SealPolicy::Offer, &Suite::ALL, vec![lun(0, medium("mem:1M"))]));
    let relay = Flipper::start(server.address());
    for (to_target, range) in [(true, 1..200), (false, 1..175)] {
        for at in range.step_by(7) {
            let way = if to_target { &relay.to_target } else { &relay.from_target };
            way.flip.store(at, Ordering::SeqCst);
            let sealing = sealing(SealPolicy::Require);
            // A flip that looks like a permanent refusal fails the login; an endpoint that opens got there by a second,
            // undisturbed handshake.
            if let Ok(remote) = open(relay.address, Some(sealing)) {
                let place = format!("flipped at {at}, to the target: {to_target}");
                assert_eq!(fact(&remote, "protection").as_deref(), Some("seal"), "{place}");
            }
            assert_eq!(way.flip.load(Ordering::SeqCst), 0, "it was flipped");
        }
    }
    sealed(relay.address);
}
