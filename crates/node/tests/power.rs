//! A target loses power with acknowledged writes in its cache: the errors that the initiator reports, and those of a
//! target that serves as its gateway.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use block::{Capability, Completion, Endpoint, Inspect, IoErrorKind, Kind, Medium, OpenError, Request};
use io::{Event, Io, Owner};
use iscsi::initiator::Direction;
use iscsi::wire::TmFunction;
use mover::Plan;
use node::initiator::IscsiMedium;
use node::target::{Access, Inherited, LunConfig, Server, ServerConfig};
use scsi::cdb;
use support::host::{Host, options, remote};
use support::relay::Relay;
use support::{Client, Guard, config, eventually, lun, medium};

const SIZE: usize = 1 << 20;

/// Memory behind a volatile cache.
#[derive(Debug)]
struct Disk {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// The power is off: requests have no effect.
    off: bool,
}

#[derive(Clone, Debug)]
struct Forgetful(Arc<Mutex<Disk>>);

impl Forgetful {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Disk { cached: vec![0; SIZE], durable: vec![0; SIZE], off: false })))
    }

    fn durable(&self, at: usize) -> u8 {
        self.0.lock().unwrap().durable[at]
    }
}

impl Medium for Forgetful {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        let memory = medium("mem:1M").attach(io)?;
        Ok(Box::new(ForgetfulEndpoint { disk: self.clone(), memory }))
    }

    fn name(&self) -> String {
        "forgetful".into()
    }
}

struct ForgetfulEndpoint {
    disk: Forgetful,
    /// Its facts are those of the disk; its cache is volatile.
    memory: Box<dyn Endpoint>,
}

impl Endpoint for ForgetfulEndpoint {
    fn capability(&self) -> &Capability {
        self.memory.capability()
    }

    fn submit(&mut self, _: &mut Io, request: Request, done: &mut Vec<Completion>) {
        let Disk { cached, durable, off } = &mut *self.disk.0.lock().unwrap();
        match request.kind {
            _ if *off => {}
            Kind::Read { offset, into } => into.fill(0, &cached[offset as usize..][..into.len()]),
            Kind::Write { offset, from, durable: through } => {
                cached[offset as usize..][..from.len()].copy_from_slice(from.as_slice());
                if through {
                    durable[offset as usize..][..from.len()].copy_from_slice(from.as_slice());
                }
            }
            Kind::Flush => durable.clone_from(cached),
            Kind::Discard { offset, length } | Kind::WriteZeroes { offset, length, .. } => {
                cached[offset as usize..][..length as usize].fill(0);
            }
        }
        done.push(Completion { id: request.id, result: Ok(()) });
    }

    fn on_event(&mut self, _: &mut Io, _: Event, _: &mut Vec<Completion>) {}

    fn owners(&self, _: &mut Vec<Owner>) {}

    fn inspect(&self) -> &dyn Inspect {
        self.memory.inspect()
    }
}

/// A target host: its disk, and the server while power is on.
struct Machine {
    disk: Forgetful,
    address: SocketAddr,
    server: Option<Guard>,
}

impl Machine {
    fn new() -> Self {
        let disk = Forgetful::new();
        let server = Self::boot(&disk, "127.0.0.1:0".parse().unwrap());
        Self { disk, address: server.address(), server: Some(server) }
    }

    fn boot(disk: &Forgetful, address: SocketAddr) -> Guard {
        Guard::start_with(ServerConfig { listen: vec![address], ..Self::config(disk) })
    }

    fn config(disk: &Forgetful) -> ServerConfig {
        config(vec![lun(0, Arc::new(disk.clone()))], Access::default())
    }

    /// The power fails and returns.
    fn cycle(&mut self) {
        self.disk.0.lock().unwrap().off = true;
        drop(self.server.take());
        let mut disk = self.disk.0.lock().unwrap();
        (disk.cached, disk.off) = (disk.durable.clone(), false);
        drop(disk);
        self.server = Some(Self::boot(&self.disk, self.address));
    }

    /// The server hands its initiator ports over to another one.
    fn hand_over(&mut self) {
        let server = self.server.take().unwrap().0.take().unwrap();
        let handle = server.handle();
        handle.hand_over();
        handle.drain();
        server.wait().unwrap();
        let ports = handle.former_ports();
        let config = ServerConfig { listen: vec![self.address], ..Self::config(&self.disk) };
        let inherited = Inherited { ports, ..Inherited::default() };
        self.server = Some(Guard(Some(Server::start_with(config, None, inherited).unwrap())));
    }

    /// Cuts every session; the server keeps running.
    fn cut(&self) {
        let mut client = Client::login(self.address, "cutter", 1).unwrap();
        client.manage(TmFunction::TargetColdReset, 0).unwrap();
        client.logout().unwrap();
        let handle = self.server.as_ref().unwrap().handle();
        eventually("the sessions end", || handle.sessions().is_empty());
    }

    fn medium(&self) -> IscsiMedium {
        remote(self.address, 0, options()).unwrap()
    }

    fn host(&self) -> Host {
        open(&self.medium())
    }
}

fn open(medium: &IscsiMedium) -> Host {
    let host = Host::attach(medium).unwrap();
    assert!(host.endpoint.capability().volatile_cache);
    host
}

type Ended = Result<(), IoErrorKind>;

fn perform(host: &mut Host, kinds: Vec<Kind>) -> Vec<Ended> {
    host.perform_all(kinds).into_iter().map(|result| result.map_err(|error| error.kind)).collect()
}

fn write(host: &mut Host, byte: u8, durable: bool) {
    let from = host.take(4096);
    from.fill(0, &[byte; 4096]);
    host.perform(Kind::Write { offset: 0, from, durable }).unwrap();
}

fn flush(host: &mut Host) -> Ended {
    perform(host, vec![Kind::Flush])[0]
}

#[test]
fn a_flush_tells_of_lost_power_once() {
    let mut machine = Machine::new();
    let mut host = machine.host();
    write(&mut host, 1, false);
    assert_eq!(flush(&mut host), Ok(()));
    write(&mut host, 2, false);
    machine.cycle();
    assert_eq!(flush(&mut host), Err(IoErrorKind::CacheLost));
    assert_eq!(machine.disk.durable(0), 1, "it is gone indeed");
    write(&mut host, 2, false);
    assert_eq!(flush(&mut host), Ok(()));
    assert_eq!(machine.disk.durable(0), 2);
}

#[test]
fn all_flushes_that_wait_tell_of_lost_power() {
    let mut machine = Machine::new();
    let mut host = machine.host();
    write(&mut host, 1, false);
    machine.cycle();
    let lost = Err(IoErrorKind::CacheLost);
    assert_eq!(perform(&mut host, vec![Kind::Flush, Kind::Flush]), [lost, lost]);
    assert_eq!(flush(&mut host), Ok(()));
}

#[test]
fn a_second_loss_is_told_again() {
    let mut machine = Machine::new();
    let mut host = machine.host();
    for _ in 0..3 {
        write(&mut host, 1, false);
        machine.cycle();
        assert_eq!(flush(&mut host), Err(IoErrorKind::CacheLost));
    }
    assert_eq!(flush(&mut host), Ok(()));
}

#[test]
fn what_was_durable_is_not_lost() {
    let mut machine = Machine::new();
    let mut host = machine.host();
    write(&mut host, 1, true);
    machine.cycle();
    assert_eq!(flush(&mut host), Ok(()), "FUA");
    write(&mut host, 2, false);
    assert_eq!(flush(&mut host), Ok(()));
    machine.cycle();
    assert_eq!(flush(&mut host), Ok(()), "flushed");
}

#[test]
fn zeroes_are_lost_like_data() {
    let mut machine = Machine::new();
    let mut host = machine.host();
    write(&mut host, 1, true);
    for kind in [
        Kind::WriteZeroes { offset: 0, length: 4096, may_unmap: false },
        Kind::WriteZeroes { offset: 0, length: 4096, may_unmap: true },
        Kind::Discard { offset: 0, length: 4096 },
    ] {
        assert_eq!(perform(&mut host, vec![kind]), [Ok(())]);
        machine.cycle();
        assert_eq!(flush(&mut host), Err(IoErrorKind::CacheLost));
        assert_eq!(machine.disk.durable(0), 1);
    }
}

#[test]
fn a_lost_connection_alone_loses_nothing() {
    let machine = Machine::new();
    let mut host = machine.host();
    for byte in 1..4 {
        write(&mut host, byte, false);
        machine.cut();
        assert_eq!(flush(&mut host), Ok(()), "29h/07h: it kept running");
        assert_eq!(machine.disk.durable(0), byte);
    }
}

/// The target's first session after the restart ends before the login response reaches the initiator. The unit
/// attention of the next session must not be I_T NEXUS LOSS, which would mean that the cache is intact.
#[test]
fn a_login_whose_answer_is_lost_hides_no_lost_power() {
    let mut machine = Machine::new();
    let relay = Relay::start(machine.address);
    let mut host = open(&remote(relay.address, 0, options()).unwrap());
    for lost in 1..3 {
        write(&mut host, lost as u8, false);
        relay.faults.sessions.store(lost, Ordering::SeqCst);
        machine.cycle();
        assert_eq!(flush(&mut host), Err(IoErrorKind::CacheLost), "{lost} answers lost");
        assert_eq!(relay.faults.sessions.load(Ordering::SeqCst), 0, "they were");
        assert_eq!(flush(&mut host), Ok(()), "once");
    }
}

/// The first session after a loss of the connection ends at each step of its set-up, after the target lost power, and
/// while it kept running. Only where an answer is missing that may have been a unit attention is the cache given up
/// although nothing was lost.
#[test]
fn a_session_that_ends_within_its_set_up_hides_lost_power_and_invents_none() {
    let mut machine = Machine::new();
    let relay = Relay::start(machine.address);
    let mut host = open(&remote(relay.address, 0, options()).unwrap());
    let lost = Err(IoErrorKind::CacheLost);
    for (at, missing, kept_running) in [
        (0, "login response", Ok(())),
        (1, "first unit attention", lost),
        (2, "GOOD of TEST UNIT READY", lost),
        (3, "standard INQUIRY data", Ok(())),
        (4, "supported VPD pages", Ok(())),
    ] {
        for (cycles, expected) in [(false, kept_running), (true, lost)] {
            write(&mut host, at as u8, false);
            relay.faults.at.store(at, Ordering::SeqCst);
            relay.faults.sessions.store(1, Ordering::SeqCst);
            if cycles {
                machine.cycle();
            } else {
                machine.cut();
            }
            assert_eq!(flush(&mut host), expected, "{missing}, power cut: {cycles}");
            assert_eq!(relay.faults.sessions.load(Ordering::SeqCst), 0, "{missing}: it did not end");
            assert_eq!(flush(&mut host), Ok(()), "once");
        }
    }
}

/// A target that restarts while its first session is set up is opened on the next one.
#[test]
fn an_endpoint_opens_although_its_first_session_ends_within_the_set_up() {
    let machine = Machine::new();
    let relay = Relay::start(machine.address);
    for at in 1..5 {
        relay.faults.at.store(at, Ordering::SeqCst);
        relay.faults.sessions.store(1, Ordering::SeqCst);
        let mut host = open(&remote(relay.address, 0, options()).unwrap());
        assert_eq!(relay.faults.sessions.load(Ordering::SeqCst), 0, "answer {at}: it did not end");
        write(&mut host, at as u8, false);
        assert_eq!(flush(&mut host), Ok(()), "answer {at}");
    }
}

/// A server hands over while a session is set up: the request to log out arrives with the answer to the login or to a
/// command of the set-up.
#[test]
fn a_hand_over_within_a_set_up_loses_nothing() {
    let mut machine = Machine::new();
    let relay = Relay::start(machine.address);
    let mut host = open(&remote(relay.address, 0, options()).unwrap());
    for at in 0..5 {
        write(&mut host, at as u8, false);
        relay.faults.at.store(at, Ordering::SeqCst);
        relay.faults.is_holding.store(false, Ordering::SeqCst);
        relay.faults.holds.store(true, Ordering::SeqCst);
        relay.faults.sessions.store(1, Ordering::SeqCst);
        machine.cut();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                eventually("an answer is held back", || relay.faults.is_holding.load(Ordering::SeqCst));
                machine.hand_over();
            });
            assert_eq!(flush(&mut host), Ok(()), "answer {at}");
        });
        assert_eq!(machine.disk.durable(0), at as u8);
    }
}

/// The ports that a server has inherited pass to its successor, whether they came back, were about to log in, or not.
#[test]
fn inherited_ports_pass_through_a_process_that_ends_soon() {
    let mut machine = Machine::new();
    let relay = Relay::start(machine.address);
    let mut host = open(&remote(relay.address, 0, options()).unwrap());
    write(&mut host, 1, false);
    for _ in 0..3 {
        // The loop of the initiator does not turn: it does not come back.
        machine.hand_over();
    }
    // A connection without a login.
    let waiting = std::net::TcpStream::connect(machine.address).unwrap();
    machine.hand_over();
    drop(waiting);
    assert_eq!(flush(&mut host), Ok(()));
}

#[test]
fn the_flush_of_one_endpoint_tells_of_anothers_writes() {
    let mut machine = Machine::new();
    let medium = machine.medium();
    let (mut writer, mut flusher) = (open(&medium), open(&medium));
    write(&mut writer, 1, false);
    machine.cycle();
    assert_eq!(flush(&mut flusher), Err(IoErrorKind::CacheLost));
    drop(writer);
    assert_eq!(flush(&mut flusher), Ok(()));
}

#[test]
fn nobody_vouches_for_the_writes_of_an_endpoint_that_is_gone() {
    let mut machine = Machine::new();
    let medium = machine.medium();
    let mut writer = open(&medium);
    write(&mut writer, 1, false);
    drop(writer);
    machine.cycle();
    let mut flusher = open(&medium);
    assert_eq!(flush(&mut flusher), Err(IoErrorKind::CacheLost));
    assert_eq!(flush(&mut flusher), Ok(()));
}

#[test]
fn a_target_before_it_tells_each_initiator_once() {
    let mut machine = Machine::new();
    let front = LunConfig { shared: true, ..lun(0, Arc::new(machine.medium())) };
    let front = Guard::start(vec![front], Access::default());
    let login = |name| Client::login(front.address(), name, 1).unwrap();
    let (mut one, mut two) = (login("one"), login("two"));
    let flush_at =
        |client: &mut Client| client.command(0, cdb::synchronize_cache_10(), Direction::None, &[]).unwrap().0;
    for client in [&mut one, &mut two] {
        let write = client.command(0, cdb::write_10(0, 8, false), Direction::Out, &[9; 4096]);
        assert_eq!(write.unwrap().0, 0);
    }
    assert_eq!((flush_at(&mut one), flush_at(&mut two)), (0, 0));
    one.command(0, cdb::write_10(0, 8, false), Direction::Out, &[8; 4096]).unwrap();
    machine.cycle();
    assert_eq!(
        (flush_at(&mut two), flush_at(&mut one)),
        (2, 2),
        "the first command of each session after the power cut ends in CHECK CONDITION"
    );
    assert_eq!(machine.disk.durable(0), 9);
    one.command(0, cdb::write_10(0, 8, false), Direction::Out, &[8; 4096]).unwrap();
    assert_eq!((flush_at(&mut two), flush_at(&mut one)), (0, 0), "once");
    assert_eq!(machine.disk.durable(0), 8);
}

#[test]
fn a_copy_survives_lost_power() {
    let mut machine = Machine::new();
    let mut host = machine.host();
    let mut source = medium("pattern:1M:5").attach(&mut host.io).unwrap();
    let mut cycles = 0;
    let plan = Plan { verify: true, rate: Some(4 << 20).into(), chunk: Some(64 << 10), ..Plan::default() };
    let report = mover::copy(&mut host.io, &mut *source, &mut *host.endpoint, &plan, &mut |progress| {
        if cycles < 2 && progress.bytes > SIZE as u64 / 4 {
            cycles += 1;
            machine.cycle();
        }
        mover::Control::Continue
    });
    let report = report.unwrap();
    assert!(cycles == 2 && report.copied_again && report.verified, "{report:?}");
    machine.cycle();
    let mut expected = vec![0; SIZE];
    block::fill_pattern(5, 0, &mut expected);
    assert!(machine.disk.0.lock().unwrap().durable == expected);
}
