//! Reconnection of an initiator whose loop also serves other endpoints.

mod support;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use block::{IoError, IoErrorKind, Kind, Medium, wait_ready};
use io::Io;
use node::initiator::Options;
use node::target::{Access, ServerConfig};
use support::host::{Host, options, remote};
use support::{Guard, TIME_LIMIT, config, lun, medium};

fn with_timeout(timeout: Duration) -> Options {
    Options { timeout, ..options() }
}

/// Waits one second for a LUN that never answers: more than ten ticks of other endpoints.
fn wait_in_vain(io: &mut Io) {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = with_timeout(Duration::from_secs(1));
    let medium = remote(silent.local_addr().unwrap(), 0, options).unwrap();
    let mut endpoint = medium.attach(io).unwrap();
    wait_ready(io, &mut [&mut *endpoint]).unwrap_err();
}

fn read(host: &mut Host) -> Result<(), IoError> {
    let into = host.take(4096);
    host.perform(Kind::Read { offset: 0, into })
}

#[test]
fn a_lun_that_idled_while_another_was_opened_comes_back_after_its_target_did() {
    let settings = || ServerConfig {
        drain_timeout: Duration::from_millis(100),
        ..config(vec![lun(0, medium("mem:8M"))], Access::default())
    };
    let target = Guard::start_with(settings());
    let address = target.address();
    let mut host = Host::open(address, 0, with_timeout(Duration::from_secs(30))).unwrap();
    wait_in_vain(&mut host.io);
    drop(target);
    let _target = Guard::start_with(ServerConfig { listen: vec![address], ..settings() });
    read(&mut host).unwrap();
    assert_eq!(host.endpoint.inspect().losses(), 1);
}

#[test]
fn a_lun_that_idled_while_another_was_opened_still_gives_up_in_time() {
    let target = Guard::of("mem:8M");
    let mut host = Host::open(target.address(), 0, with_timeout(Duration::from_secs(1))).unwrap();
    wait_in_vain(&mut host.io);
    read(&mut host).unwrap();
    target.handle().stop();
    drop(target);
    assert_eq!(read(&mut host).unwrap_err().kind, IoErrorKind::Unreachable);
}

#[test]
fn a_request_under_way_when_the_endpoint_is_closed_is_told_of() {
    let target = Guard::of("mem:8M");
    let mut host = Host::open(target.address(), 0, with_timeout(TIME_LIMIT)).unwrap();
    let into = host.take(4096);
    host.submit(7, Kind::Read { offset: 0, into });
    host.endpoint.close(&mut host.io);
    host.turn_until("it ends", |host| host.endpoint.is_closed());
    assert_eq!((host.done.len(), host.done[0].id), (1, 7));
    assert_eq!(host.done[0].result.as_ref().unwrap_err().kind, IoErrorKind::Aborted);
}

/// A target that answers but lacks its target name or LUN is retried until the requests time out; their error names what
/// is missing. Once the target has it again, requests continue.
fn comes_back_after(other: impl Fn(ServerConfig) -> ServerConfig) {
    let settings = || config(vec![lun(0, medium("mem:8M"))], Access::default());
    let target = Guard::start_with(settings());
    let address = target.address();
    let mut host = Host::open(address, 0, with_timeout(Duration::from_millis(500))).unwrap();
    target.handle().stop();
    drop(target);
    let at = |settings: ServerConfig| ServerConfig { listen: vec![address], ..settings };
    let target = Guard::start_with(other(at(settings())));
    let error = read(&mut host).unwrap_err();
    assert_eq!(error.kind, IoErrorKind::Unreachable);
    assert!(error.text.contains("nothing completed for"), "{}", error.text);
    assert!(error.text.contains("with: hikyaku ls iscsi://"), "{}", error.text);
    drop(target);
    let _target = Guard::start_with(at(settings()));
    let start = Instant::now();
    while read(&mut host).is_err() {
        assert!(start.elapsed() < TIME_LIMIT, "it does not come back");
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
