//! Start and end of connections, threads and whole servers, with misbehaving peers and storage.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use block::{Endpoint, Medium, OpenError};
use io::Io;
use iscsi::initiator::{Direction, Event};
use iscsi::wire::{TmFunction, TmResult};
use node::target::{Access, ServeError, Server, ServerConfig};
use scsi::cdb;
use support::{Client, Guard, TIME_LIMIT, config, eventually, lun, medium};

const BLOCKS_8M: u32 = (8 << 20) / 512;

fn one_thread(words: &str) -> ServerConfig {
    ServerConfig { threads: Some(1), ..config(vec![lun(0, medium(words))], Access::default()) }
}

fn reads_well(address: SocketAddr, name: &str) {
    let mut client = Client::login(address, name, 200).unwrap();
    let (status, data) = client.command(0, cdb::read_10(0, 8, false), Direction::In, &[1; 4096]).unwrap();
    assert_eq!((status, data.len()), (0, 4096));
    client.logout().unwrap();
}

/// A login request in the full feature phase: a protocol error that ends the connection.
fn protocol_error(client: &mut Client) {
    let mut header = [0; 48];
    (header[0], header[1]) = (0x43, 0x87);
    client.stream.write_all(&header).unwrap();
}

/// Submits reads of 8 MiB whose data is not received.
fn ask_for_much(client: &mut Client, count: usize) {
    client.command(0, cdb::test_unit_ready(), Direction::None, &[]).unwrap();
    for _ in 0..count {
        client.submit(0, cdb::read_16(0, BLOCKS_8M, false), Direction::In, vec![0; 8 << 20]);
    }
    client.flush().unwrap();
}

#[test]
fn a_protocol_error_while_data_goes_out_ends_one_connection_only() {
    let server = Guard::start_with(one_thread("mem:8M"));
    for _ in 0..8 {
        let mut client = Client::login(server.address(), "wild", 1).unwrap();
        ask_for_much(&mut client, 4);
        std::thread::sleep(Duration::from_millis(10));
        protocol_error(&mut client);
        // The connection ends after the data already in flight, without the rest.
        let mut taken = 0;
        let mut buffer = vec![0; 1 << 20];
        while let Ok(count @ 1..) = client.stream.read(&mut buffer) {
            taken += count;
        }
        assert!(taken < 32 << 20, "{taken} bytes");
        reads_well(server.address(), "tame");
    }
    eventually("all sessions have ended", || server.handle().sessions().is_empty());
}

#[test]
fn a_peer_that_does_not_read_its_last_words_is_cut() {
    let server = Guard::start_with(one_thread("mem:8M"));
    let mut client = Client::login(server.address(), "deaf", 1).unwrap();
    ask_for_much(&mut client, 16);
    // Until the socket buffers of both sides are full.
    std::thread::sleep(Duration::from_millis(500));
    protocol_error(&mut client);
    let start = Instant::now();
    eventually("the session ends", || server.handle().sessions().is_empty());
    let elapsed = start.elapsed();
    assert!(elapsed > Duration::from_secs(1), "{elapsed:?}: its last words were not stuck");
    drop(client);
}

#[test]
fn one_session_does_not_take_all_memory() {
    let server = Guard::start_with(one_thread("mem:8M"));
    let mut greedy = Client::login(server.address(), "greedy", 1).unwrap();
    // Together all the memory of a thread.
    ask_for_much(&mut greedy, 128);
    std::thread::sleep(Duration::from_millis(300));
    let mut modest = Client::login(server.address(), "modest", 1).unwrap();
    let (status, _) = modest.command(0, cdb::read_10(0, 4096, false), Direction::In, &[1; 2 << 20]).unwrap();
    assert_eq!(status, 0, "there is memory for others");
    drop(modest);
    drop(greedy);
    eventually("the session ends", || server.handle().sessions().is_empty());
}

#[test]
fn one_byte_at_a_time_is_understood() {
    let server = Guard::start_with(one_thread("mem:8M"));
    let mut client = Client::login(server.address(), "slow", 1).unwrap();
    client.command(0, cdb::test_unit_ready(), Direction::None, &[]).unwrap();
    let data: Vec<u8> = (0..1024u32).map(|at| at as u8).collect();
    client.submit(0, cdb::write_10(3, 2, false), Direction::Out, data.clone());
    let transmit = iscsi::machine::Machine::poll_transmit(&mut client.machine).unwrap();
    for byte in transmit.header.iter().chain(&data) {
        client.stream.write_all(&[*byte]).unwrap();
        std::thread::yield_now();
    }
    assert_eq!(client.complete().unwrap().0.status, 0);
    let (_, back) = client.command(0, cdb::read_10(3, 2, false), Direction::In, &[0; 1024]).unwrap();
    assert_eq!(back, data);
}

/// A session with a write in flight on [`SLOW`] storage, and an instant before it was sent.
fn with_a_slow_write(address: SocketAddr, name: &str) -> (Client, Instant) {
    let mut client = Client::login(address, name, 1).unwrap();
    client.command(0, cdb::test_unit_ready(), Direction::None, &[]).unwrap();
    let before = Instant::now();
    client.submit(0, cdb::write_10(0, 8, false), Direction::Out, vec![7; 4096]);
    client.flush().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    (client, before)
}

const SLOW: &str = "mem:8M,delay=400ms";
/// The delay of every request on [`SLOW`] storage.
const DELAY: Duration = Duration::from_millis(400);

#[test]
fn a_new_login_waits_for_the_last_task_of_the_session_it_replaces() {
    // Two threads: the new connection is placed on the thread that does not hold the old session.
    let server = Guard::start(vec![lun(0, medium(SLOW))], Access::default());
    let (old, before) = with_a_slow_write(server.address(), "same");
    let new = Client::login(server.address(), "same", 1).unwrap();
    assert!(before.elapsed() > DELAY, "{:?}", before.elapsed());
    assert_eq!(server.handle().sessions().len(), 1);
    drop(old);
    new.logout().unwrap();
    eventually("the session ends", || server.handle().sessions().is_empty());
}

#[test]
fn every_reset_waits_for_the_tasks_it_ends() {
    let server = Guard::start(vec![lun(0, medium(SLOW))], Access::default());
    let (mut victim, before) = with_a_slow_write(server.address(), "victim");
    let address = server.address();
    let resets: Vec<_> = ["one", "two", "three"]
        .map(|name| {
            std::thread::spawn(move || {
                let mut client = Client::login(address, name, 1).unwrap();
                let result = client.manage(TmFunction::LogicalUnitReset, 0).unwrap();
                (result, before.elapsed())
            })
        })
        .into();
    for reset in resets {
        let (result, elapsed) = reset.join().unwrap();
        assert_eq!(result, TmResult::Complete);
        assert!(elapsed > DELAY, "answered after {elapsed:?}, while the write was with the storage");
    }
    // The write was ended without a response; the next command gets the unit attention.
    victim.submit(0, cdb::test_unit_ready(), Direction::None, Vec::new());
    let (outcome, _) = victim.complete().unwrap();
    assert_eq!((outcome.status, outcome.sense[2] & 0xF, outcome.sense[12]), (2, 6, 0x29));
}

/// A write that started at that time would be neither ended by the reset nor follow the unit attention, after which its
/// initiator considers it ended.
#[test]
fn what_comes_while_a_reset_ends_tasks_is_busy() {
    let server = Guard::start(vec![lun(0, medium(SLOW))], Access::default());
    let (victim, before) = with_a_slow_write(server.address(), "victim");
    let mut asker = Client::login(server.address(), "asker", 1).unwrap();
    asker.command(0, cdb::test_unit_ready(), Direction::None, &[]).unwrap();
    let wire = scsi::lun::to_wire(0).unwrap();
    asker.machine.task_management(TmFunction::LogicalUnitReset, wire, None).unwrap();
    asker.submit(0, cdb::write_10(0, 8, false), Direction::Out, vec![7; 4096]);
    let (outcome, _) = asker.complete().unwrap();
    assert_eq!(outcome.status, scsi::Status::Busy as u8);
    assert!(matches!(asker.next_event().unwrap(), Event::ManagementDone { result: TmResult::Complete, .. }));
    assert!(before.elapsed() > DELAY, "it has waited for the victim's write");
    asker.submit(0, cdb::test_unit_ready(), Direction::None, Vec::new());
    let (outcome, _) = asker.complete().unwrap();
    assert_eq!((outcome.status, outcome.sense[2] & 0xF, outcome.sense[12]), (2, 6, 0x29));
    let (status, _) = asker.command(0, cdb::write_10(0, 8, false), Direction::Out, &[7; 4096]).unwrap();
    assert_eq!(status, 0);
    drop(victim);
}

#[test]
fn those_whose_tasks_a_reset_ended_hear_of_it_though_the_asker_is_gone() {
    let server = Guard::start(vec![lun(0, medium(SLOW))], Access::default());
    let (mut victim, _) = with_a_slow_write(server.address(), "victim");
    let mut asker = Client::login(server.address(), "asker", 1).unwrap();
    let wire = scsi::lun::to_wire(0).unwrap();
    asker.machine.task_management(TmFunction::LogicalUnitReset, wire, None).unwrap();
    asker.flush().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    drop(asker);
    std::thread::sleep(Duration::from_millis(600));
    victim.submit(0, cdb::test_unit_ready(), Direction::None, Vec::new());
    let found = victim.next_event().unwrap();
    let Event::Complete(outcome) = found else { panic!("{found:?}") };
    assert_eq!((outcome.status, outcome.sense[2] & 0xF, outcome.sense[12]), (2, 6, 0x29));
}

#[test]
fn stop_ends_although_storage_never_answers() {
    let luns = vec![lun(0, medium("mem:1M,fault=hang@65536+1:count=1")), lun(1, medium("mem:1M"))];
    let hasty = ServerConfig { drain_timeout: Duration::from_millis(300), ..config(luns, Access::default()) };
    let server = Server::start(hasty).unwrap();
    let address = server.addresses()[0];
    let mut stuck = Client::login(address, "stuck", 1).unwrap();
    stuck.command(0, cdb::test_unit_ready(), Direction::None, &[]).unwrap();
    stuck.submit(0, cdb::read_10(128, 1, false), Direction::In, vec![0; 512]);
    stuck.flush().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let mut other = Client::login(address, "other", 1).unwrap();
    for number in [0, 1] {
        let read = other.command(number, cdb::read_10(0, 1, false), Direction::In, &[0; 512]);
        assert_eq!(read.unwrap().0, 0, "others are not affected");
    }
    drop(stuck);
    let start = Instant::now();
    server.handle().drain();
    let ended = server.wait();
    assert!(start.elapsed() < TIME_LIMIT);
    let Err(ServeError::Unfinished(text)) = ended else { panic!("{ended:?}") };
    assert!(text.contains("LUN 0") && !text.contains("LUN 1"), "{text}");
}

#[test]
fn a_last_flush_that_fails_is_told() {
    let mut server = Guard::start(vec![lun(3, medium("mem:1M,fault=flush-error"))], Access::default());
    let server = server.0.take().unwrap();
    server.handle().stop();
    let ended = server.wait();
    let Err(ServeError::Unfinished(text)) = ended else { panic!("{ended:?}") };
    assert!(text.contains("LUN 3"), "{text}");
}

/// Storage that can be attached a limited number of times.
#[derive(Debug)]
struct Scarce {
    inner: Arc<dyn Medium>,
    left: AtomicUsize,
}

impl Medium for Scarce {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| OpenError::Failed("no more".into()))?;
        self.inner.attach(io)
    }

    fn name(&self) -> String {
        "scarce".into()
    }
}

#[test]
fn a_thread_that_cannot_open_its_storage_fails_the_start() {
    // One attach for the server's inspection, one for the first thread.
    let scarce = Scarce { inner: medium("mem:1M"), left: AtomicUsize::new(2) };
    let error = Server::start(config(vec![lun(0, Arc::new(scarce))], Access::default())).unwrap_err();
    assert!(matches!(error, ServeError::Lun { .. }), "{error:?}");
}

fn raise_descriptor_limit(wanted: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls with a live structure.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max.min(wanted.max(limit.rlim_cur));
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    limit.rlim_cur >= wanted
}

#[test]
fn connections_that_never_log_in_do_not_keep_others_out() {
    if !raise_descriptor_limit(4096) {
        return;
    }
    let server = Guard::start_with(one_thread("mem:8M"));
    let established = Client::login(server.address(), "established", 9).unwrap();
    let idle: Vec<_> = (0..1200).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    reads_well(server.address(), "newcomer");
    eventually("the newcomer has gone", || server.handle().sessions().len() == 1);
    established.logout().unwrap();
    drop(idle);
}
