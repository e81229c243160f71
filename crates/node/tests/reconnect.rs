//! Reconnection of an initiator whose loop also serves other endpoints.

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use block::{Completion, Endpoint, IoErrorKind, Kind, Medium, Request, wait_ready};
use io::Io;
use node::initiator::{IscsiMedium, Options, Url};
use node::target::{Access, ServerConfig};
use support::{Guard, IQN, PATIENCE, config, lun, medium};

fn remote(address: impl std::fmt::Display, timeout: Duration) -> IscsiMedium {
    let url = Url::parse(&format!("iscsi://{address}/{IQN}/0")).unwrap();
    let options = Options { timeout, ..Options::new("iqn.2026-11.example:tester") };
    IscsiMedium::new(url, options, false).unwrap()
}

/// Waits one second for a LUN that never answers: more than ten ticks of other endpoints.
fn wait_in_vain(io: &mut Io) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let medium = remote(silent.local_addr().unwrap(), Duration::from_secs(1));
    let mut endpoint = medium.attach(io).unwrap();
    wait_ready(io, &mut [&mut *endpoint]).unwrap_err();
}

fn read(io: &mut Io, endpoint: &mut dyn Endpoint) -> Completion {
    let (mut events, mut done) = (Vec::new(), Vec::new());
    let kind = Kind::Read { offset: 0, into: io.pool().take(4096).unwrap() };
    endpoint.submit(io, Request { id: 0, kind }, &mut done);
    let start = Instant::now();
    while done.is_empty() {
        assert!(start.elapsed() < PATIENCE, "neither an answer nor an end");
        io.turn_until(Some(io.now() + Duration::from_millis(100)), &mut events).unwrap();
        for event in events.drain(..) {
            endpoint.on_event(io, event, &mut done);
        }
    }
    done.remove(0)
}

#[test]
fn a_lun_that_idled_while_another_was_opened_comes_back_after_its_target_did() {
    let settings = || ServerConfig {
        drain_timeout: Duration::from_millis(100),
        ..config(vec![lun(0, medium("mem:8M"))], Access::default())
    };
    let target = Guard::start_with(settings());
    let address = target.address();
    let mut io = Io::new(area::PoolLimits::default()).unwrap();
    let mut endpoint = remote(address, Duration::from_secs(30)).attach(&mut io).unwrap();
    wait_ready(&mut io, &mut [&mut *endpoint]).unwrap();
    wait_in_vain(&mut io);
    drop(target);
    let _target = Guard::start_with(ServerConfig { listen: vec![address], ..settings() });
    read(&mut io, &mut *endpoint).result.unwrap();
    assert_eq!(endpoint.inspect().losses(), 1);
}

#[test]
fn a_lun_that_idled_while_another_was_opened_still_gives_up_in_time() {
    let target = Guard::start(vec![lun(0, medium("mem:8M"))], Access::default());
    let mut io = Io::new(area::PoolLimits::default()).unwrap();
    let mut endpoint = remote(target.address(), Duration::from_secs(1)).attach(&mut io).unwrap();
    wait_ready(&mut io, &mut [&mut *endpoint]).unwrap();
    wait_in_vain(&mut io);
    read(&mut io, &mut *endpoint).result.unwrap();
    target.handle().stop();
    drop(target);
    assert_eq!(read(&mut io, &mut *endpoint).result.unwrap_err().kind, IoErrorKind::Unreachable);
}

#[test]
fn a_request_under_way_when_the_endpoint_is_closed_is_told_of() {
    let target = Guard::start(vec![lun(0, medium("mem:8M"))], Access::default());
    let mut io = Io::new(area::PoolLimits::default()).unwrap();
    let mut endpoint = remote(target.address(), PATIENCE).attach(&mut io).unwrap();
    wait_ready(&mut io, &mut [&mut *endpoint]).unwrap();
    let (mut events, mut done) = (Vec::new(), Vec::new());
    let kind = Kind::Read { offset: 0, into: io.pool().take(4096).unwrap() };
    endpoint.submit(&mut io, Request { id: 7, kind }, &mut done);
    endpoint.close(&mut io);
    let start = Instant::now();
    while !endpoint.is_closed() {
        assert!(start.elapsed() < PATIENCE, "it does not end");
        io.turn(&mut events).unwrap();
        for event in events.drain(..) {
            endpoint.on_event(&mut io, event, &mut done);
        }
    }
    assert_eq!((done.len(), done[0].id), (1, 7));
    assert_eq!(done[0].result.as_ref().unwrap_err().kind, IoErrorKind::Aborted);
}

/// A target that answers but lacks its target name or LUN is retried until the requests time out; their error names the
/// remedy. Once the target has it again, requests continue.
fn comes_back_after(other: impl Fn(ServerConfig) -> ServerConfig) {
    let settings = || config(vec![lun(0, medium("mem:8M"))], Access::default());
    let target = Guard::start_with(settings());
    let address = target.address();
    let mut io = Io::new(area::PoolLimits::default()).unwrap();
    let mut endpoint = remote(address, Duration::from_millis(500)).attach(&mut io).unwrap();
    wait_ready(&mut io, &mut [&mut *endpoint]).unwrap();
    target.handle().stop();
    drop(target);
    let at = |settings: ServerConfig| ServerConfig { listen: vec![address], ..settings };
    let target = Guard::start_with(other(at(settings())));
    let error = read(&mut io, &mut *endpoint).result.unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Unreachable);
    assert!(error.text.contains("nothing completed for"), "{}", error.text);
    assert!(error.text.contains("hikyaku ls"), "{}", error.text);
    drop(target);
    let _target = Guard::start_with(at(settings()));
    let start = Instant::now();
    while read(&mut io, &mut *endpoint).result.is_err() {
        assert!(start.elapsed() < PATIENCE, "it does not come back");
    }
}

#[test]
fn a_target_that_is_not_there_yet_is_waited_for() {
    comes_back_after(|mut settings| {
        settings.targets[0].iqn += "-another";
        settings
    });
}

#[test]
fn a_lun_that_is_not_there_yet_is_waited_for() {
    comes_back_after(|mut settings| {
        settings.targets[0].luns[0].lun = 5;
        settings
    });
}
