//! The peer for itself, and with portals that do not log in.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use area::PoolLimits;
use block::State;
use iscsi::params::SessionType;

use super::*;

#[test]
fn a_login_ends_the_blame_on_a_refused_seal() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let owner = io.owner();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/iqn.2026-11.example:a/0", listener.local_addr().unwrap());
    let medium =
        IscsiMedium::new(Url::parse(&url).unwrap(), Options::new("iqn.2026-11.example:b"), false).unwrap();
    let mut peer = IscsiPeer::new(&medium).unwrap();
    let Ok(mut session) = peer.connect(&mut io, owner, 1) else { panic!("no session") };
    let negotiated = Negotiated::defaults(SessionType::Normal);
    peer.opened = true;
    assert_eq!(peer.on_failure(Failure::Seal("refused".into())), Next::AtOnce);
    assert_eq!(peer.on_failure(Failure::Seal("refused".into())), Next::retry("refused"));
    assert_eq!(peer.advice().0, IoErrorKind::Refused);
    peer.on_outcome(&mut io, &mut session, Outcome::LoggedIn(negotiated), &mut Vec::new());
    assert_eq!(peer.advice().0, IoErrorKind::Unreachable);
}

#[test]
fn connections_have_the_congestion_control_that_was_asked_for() {
    let mut io = Io::new(PoolLimits::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/iqn.2026-11.example:a/0", listener.local_addr().unwrap());
    let congestion = |name: &str| {
        let options = Options { congestion: Some(name.to_owned()), ..Options::new("iqn.2026-11.example:b") };
        let medium = IscsiMedium::new(Url::parse(&url).unwrap(), options, false).unwrap();
        let owner = io.owner();
        let mut peer = IscsiPeer::new(&medium).unwrap();
        let session = peer.connect(&mut io, owner, 1).ok()?;
        io::congestion_control(session.connecting()?)
    };
    assert_eq!(["reno", "nosuch"].map(congestion), [Some("reno".to_owned()), None]);
}

#[test]
fn a_write_of_which_the_target_took_less_is_no_success() {
    let io = Io::new(PoolLimits::default()).unwrap();
    let url = Url::parse("iscsi://127.0.0.1/iqn.2026-11.example:a/0").unwrap();
    let medium = IscsiMedium::new(url, Options::new("iqn.2026-11.example:b"), false).unwrap();
    let mut peer = IscsiPeer::new(&medium).unwrap();
    let from = io.pool().take(4096).unwrap();
    let write = Kind::Write { offset: 0, from, durable: false };
    let zeroes = Kind::WriteZeroes { offset: 0, length: 4096, may_unmap: true };
    for (kind, moved, residual, is_good) in [
        (&write, 4096, 0, true),
        (&write, 4096, 512, false),
        (&write, 2048, 0, false),
        (&zeroes, 4096, 0, true),
        (&zeroes, 4096, 1, false),
        (&zeroes, 512, 3584, true), // WRITE SAME: one block for all
    ] {
        let answer = Ended::Status { status: Status::Good as u8, sense: None, moved, residual };
        let verdict = peer.judge(kind, 4096, answer);
        assert_eq!(matches!(verdict, Verdict::Done), is_good, "{kind:?} {moved} {residual}: {verdict:?}");
    }
}

/// How a portal answers the first login request.
#[derive(Clone, Copy, Debug)]
enum Portal {
    Silent,
    /// A PDU that is not permitted in a login.
    Violation,
    /// A redirection to an address that cannot be one.
    Redirection,
}

fn answer(portal: Portal, mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 48];
    stream.read_exact(&mut request)?;
    let text = b"TargetAddress=nowhere:port,1\0\0\0\0";
    let mut response = [0; 48];
    response[8..14].copy_from_slice(&request[8..14]);
    response[16..20].copy_from_slice(&request[16..20]);
    response[28..32].copy_from_slice(&request[24..28]);
    response[32..36].copy_from_slice(&request[24..28]);
    // RFC 7143 11.13: Login Response, status class 1, detail 1 (target moved temporarily).
    (response[0], response[7], response[36], response[37]) = (0x23, 29, 1, 1);
    match portal {
        Portal::Silent => {}
        Portal::Violation => stream.write_all(&[0x3F; 48])?,
        Portal::Redirection => stream.write_all(&[&response[..], &text[..32]].concat())?,
    }
    // Until the initiator closes the connection.
    stream.read_to_end(&mut Vec::new()).map(drop)
}

#[test]
fn a_portal_that_does_not_log_in_leads_to_the_next_one() {
    for portal in [Portal::Silent, Portal::Violation, Portal::Redirection] {
        let [first, second] = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = [&first, &second].map(|listener| listener.local_addr().unwrap());
        std::thread::spawn(move || answer(portal, first.accept().unwrap().0));
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let url = format!("iscsi://{}/iqn.2026-11.example:a/0", addresses[0]);
        let options = Options::new("iqn.2026-11.example:b");
        let medium = IscsiMedium::new(Url::parse(&url).unwrap(), options, false).unwrap();
        let mut peer = IscsiPeer::new(&medium).unwrap();
        peer.route = Route::new(addresses.to_vec());
        // A third of it, rounded up to a tick, passes before a silent portal is left.
        let mut remote = Remote::open(&mut io, peer, Arc::default(), TICK * 9);
        second.set_nonblocking(true).unwrap();
        let mut events = Vec::new();
        while second.accept().is_err() {
            assert!(matches!(remote.state(), State::Opening), "{portal:?}: {:?}", remote.state());
            let until = io.now() + TICK / 4;
            io.turn_until(Some(until), &mut events).unwrap();
            events.drain(..).for_each(|event| remote.on_event(&mut io, event, &mut Vec::new()));
        }
    }
}
