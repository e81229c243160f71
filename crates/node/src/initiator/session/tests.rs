//! An initiator session and a target connection over a transport that is not a socket: they depend only on
//! [`Transport`].

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use area::PoolLimits;
use iscsi::machine::TaskId;
use iscsi::name::IscsiName;
use iscsi::wire::{Attribute, Isid};
use scsi::cdb;
use seal::Identity;

use super::*;
use crate::sealing::SealPolicy;
use crate::stream::memory;
use crate::target::tests::TargetEnd;
use crate::target::{Access, LocalUsers, Peer, Sealing, ServerConfig, TargetConfig};
use crate::{TlsIdentity, TlsTrust};

const INITIATOR: &str = "iqn.2026-11.example:initiator";
const TARGET: &str = "iqn.2026-11.example:target";
const BLOCK: usize = 512;
const BLOCKS: usize = 4096;
const TURNS_MAX: usize = 200_000;

#[derive(Default)]
struct Agreed {
    addresses: Option<(SocketAddr, SocketAddr)>,
    sealing: Option<(Sealing, InitiatorSealing)>,
    tls: Option<(TlsIdentity, tls::End)>,
}

fn login() -> login::Config {
    let name = |text| IscsiName::parse(text).unwrap();
    login::Config::normal(name(INITIATOR), Isid([0; 6]), name(TARGET))
}

/// Content of block `lba` after write `version`.
fn content(lba: usize, version: usize) -> [u8; BLOCK] {
    std::array::from_fn(|at| (lba * 31 + version * 101 + at * 7 + (at >> 8)) as u8)
}

/// Both ends, the transport between them, and the loop.
struct Pair {
    io: Io,
    owner: Owner,
    wire: memory::Wire,
    target: TargetEnd,
    session: Session,
    outcomes: Vec<Outcome>,
}

impl Pair {
    fn new(seed: u64, agreed: Agreed) -> Self {
        println!("seed {seed}");
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let owner = io.owner();
        let ([ours, theirs], wire) = memory::pair(seed);
        let (theirs_sealing, ours_sealing) = agreed.sealing.unzip();
        let (theirs_tls, ours_tls) = agreed.tls.unzip();
        let access = Access::default();
        let config = ServerConfig {
            listen: Vec::new(),
            advertise: None,
            sealing: theirs_sealing,
            targets: vec![TargetConfig { iqn: TARGET.into(), luns: Vec::new(), access }],
            local_users: LocalUsers::Any,
            tls: theirs_tls,
            drain_timeout: Duration::ZERO,
            threads: Some(1),
        };
        let (bytes, their_owner) = ((BLOCKS * BLOCK) as u64, io.owner());
        let local = "127.0.0.1:3260".parse().unwrap();
        let addresses = agreed.addresses.unwrap_or(("127.0.0.1:50000".parse().unwrap(), local));
        let target = TargetEnd::new(&mut io, config, bytes, Box::new(theirs), their_owner, addresses);
        let session = Session::over(&io, owner, 7, Box::new(ours), login(), ours_sealing.as_ref(), ours_tls);
        let mut pair = Self { io, owner, wire, target, session: session.unwrap(), outcomes: Vec::new() };
        pair.session.pump(&mut pair.io, &mut pair.outcomes);
        pair
    }

    /// Runs the loop until the session has an outcome, and returns it.
    fn next(&mut self) -> Outcome {
        for _ in 0..TURNS_MAX {
            if !self.outcomes.is_empty() {
                return self.outcomes.remove(0);
            }
            self.turn();
        }
        panic!("nothing in {TURNS_MAX} turns; refused: {:?}", self.target.refusal());
    }

    fn turn(&mut self) {
        let mut events = self.wire.turn();
        self.io.turn_until(Some(Duration::ZERO), &mut events).unwrap();
        for event in events {
            if event.token.owner == self.owner {
                self.session.on_event(&mut self.io, event, &mut self.outcomes);
            } else {
                self.target.on_event(&mut self.io, event);
            }
        }
        if self.session.wants_idle() {
            self.session.on_idle(&mut self.io);
        }
    }

    fn submit(&mut self, cdb: &cdb::Cdb, direction: Direction, buffer: Option<Span>) -> TaskId {
        let (length, attribute) = (buffer.as_ref().map_or(0, Span::len) as u32, Attribute::Simple);
        let command = Command { lun: 0, cdb: cdb.padded(), direction, length, attribute };
        let task = self.session.submit(command, buffer).unwrap();
        self.session.pump(&mut self.io, &mut self.outcomes);
        task
    }

    /// Expects one of `expected` to complete with GOOD and `bytes` bytes.
    fn expect(&mut self, expected: &[TaskId], bytes: usize) {
        let found = self.next();
        let Outcome::Completed { task, status: GOOD, moved, .. } = found else { panic!("{found:?}") };
        assert!(expected.contains(&task));
        assert_eq!(moved as usize, bytes);
    }

    /// Logs in, writes and reads through short transfers, and logs out. All bytes read equal those written, and all
    /// areas return to the pool.
    fn run(mut self) {
        match self.next() {
            Outcome::LoggedIn(_) => {}
            other => panic!("{other:?}; refused: {:?}", self.target.refusal()),
        }
        // The first command of a new nexus ends with the unit attention POWER ON.
        self.submit(&cdb::test_unit_ready(), Direction::None, None);
        assert!(matches!(self.next(), Outcome::Completed { sense: Some(_), .. }));
        for (version, blocks) in [1, 16, 600, 16, 1].into_iter().enumerate() {
            let bytes = blocks * BLOCK;
            // Two WRITEs in parallel, then READs of both in sequence, which a sealed target reads ahead.
            let starts = [version * 13, version * 13 + blocks];
            let tasks = starts.map(|start| {
                let buffer = self.io.pool().take(bytes).unwrap();
                (0..blocks).for_each(|at| buffer.fill(at * BLOCK, &content(start + at, version)));
                let write = cdb::write_10(start as u32, blocks as u16, false);
                self.submit(&write, Direction::Out, Some(buffer))
            });
            starts.iter().for_each(|_| self.expect(&tasks, bytes));
            for start in starts.into_iter().cycle().take(6) {
                let buffer = self.io.pool().take(bytes).unwrap();
                let read = cdb::read_10(start as u32, blocks as u16, false);
                let task = self.submit(&read, Direction::In, Some(buffer.clone()));
                self.expect(&[task], bytes);
                let wrong = (0..blocks)
                    .find(|at| buffer.slice(at * BLOCK, BLOCK).as_slice() != content(start + at, version));
                assert_eq!(wrong, None, "of {blocks} blocks from {start}");
            }
        }
        self.session.log_out(self.io.now());
        self.session.pump(&mut self.io, &mut self.outcomes);
        assert!(matches!(self.next(), Outcome::LoggedOut));
        assert!(matches!(self.next(), Outcome::Failed(Failure::Lost(_))));
        while !self.target.is_over() {
            self.turn();
        }
        let Self { io, wire, target, session, .. } = self;
        assert!(wire.short > 50 && wire.stalls > 50, "{} short, {} stalls", wire.short, wire.stalls);
        drop((target, session, wire));
        assert_eq!(io.pool().borrowed(), 0, "areas did not come back");
    }
}

#[test]
fn plain_sessions_need_no_socket() {
    (0..4).for_each(|seed| Pair::new(seed, Agreed::default()).run());
}

/// A logout ends active commands without an answer, and with it what a unit attention reports.
#[test]
fn a_requested_logout_waits_for_the_answers_of_active_commands() {
    for seed in 40..44 {
        let mut pair = Pair::new(seed, Agreed::default());
        assert!(matches!(pair.next(), Outcome::LoggedIn(_)));
        pair.submit(&cdb::test_unit_ready(), Direction::None, None);
        assert!(matches!(pair.next(), Outcome::Completed { sense: Some(_), .. }));
        let buffer = pair.io.pool().take(600 * BLOCK).unwrap();
        let (cdb, length) = (cdb::read_10(0, 600, false).padded(), buffer.len() as u32);
        let command = Command { lun: 0, cdb, direction: Direction::In, length, attribute: Attribute::Simple };
        let read = pair.session.submit(command, Some(buffer)).unwrap();
        pair.session.on_notice(AsyncEvent::LogoutRequested, pair.io.now()).unwrap();
        pair.session.pump(&mut pair.io, &mut pair.outcomes);
        assert!(pair.session.logout_due.is_some() && pair.session.window() == 0);
        pair.expect(&[read], 600 * BLOCK);
        assert!(matches!(pair.next(), Outcome::LoggedOut));
    }
}

/// A target that requests logout and answers nothing does not hold the session.
#[test]
fn a_requested_logout_waits_no_longer_than_its_bound() {
    let mut pair = Pair::new(44, Agreed::default());
    assert!(matches!(pair.next(), Outcome::LoggedIn(_)));
    pair.submit(&cdb::test_unit_ready(), Direction::None, None);
    let until = pair.io.now() + LOGOUT_DELAY_MAX;
    pair.session.on_notice(AsyncEvent::LogoutRequested, pair.io.now()).unwrap();
    pair.session.pump(&mut pair.io, &mut pair.outcomes);
    let mut events = Vec::new();
    // The wire does not turn: no answer arrives.
    while pair.session.logout_due.is_some() {
        assert!(pair.io.now() < until + LOGOUT_DELAY_MAX);
        pair.io.turn_until(Some(until), &mut events).unwrap();
        let ours = events.drain(..).filter(|event| event.token.owner == pair.owner);
        ours.for_each(|event| pair.session.on_event(&mut pair.io, event, &mut pair.outcomes));
    }
    assert!(pair.io.now() >= until);
}

/// For an address other than loopback the target accepts the offered digests.
#[test]
fn sessions_with_digests_need_no_socket() {
    let addresses = ("192.0.2.1:50000".parse().unwrap(), "192.0.2.2:3260".parse().unwrap());
    (10..12)
        .for_each(|seed| Pair::new(seed, Agreed { addresses: Some(addresses), ..Agreed::default() }).run());
}

#[test]
fn sealed_sessions_need_no_socket() {
    let ours = Arc::new(Identity::generate([1; 32]));
    let theirs = Arc::new(Identity::generate([2; 32]));
    for seed in 20..24 {
        let public_key = ours.public();
        let peer = Peer { name: "p".into(), public_key, initiator: None, luns: None, psk: None };
        let sealing = Sealing {
            next: None,
            policy: SealPolicy::Require,
            identity: Arc::clone(&theirs),
            peers: vec![peer],
            suites: seal::Suite::ALL.to_vec(),
        };
        let wished = InitiatorSealing::new(SealPolicy::Require, Arc::clone(&ours), theirs.public());
        Pair::new(seed, Agreed { sealing: Some((sealing, wished)), ..Agreed::default() }).run();
    }
}

#[test]
fn sessions_within_tls_need_no_socket() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = file("certificate", made.cert.pem());
    let key = file("key", made.signing_key.serialize_pem());
    let identity = |certificate: &Path, key: &Path| TlsIdentity::load(certificate, key).unwrap();
    let trust = TlsTrust::load(&certificate).unwrap();
    for seed in 30..33 {
        let tls = (identity(&certificate, &key), trust.end("localhost").unwrap());
        Pair::new(seed, Agreed { tls: Some(tls), ..Agreed::default() }).run();
    }
}
