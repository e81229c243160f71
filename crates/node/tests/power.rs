//! A target loses power with acknowledged writes in its cache: the errors that the initiator reports, and those of a
//! target that serves as its gateway.

mod support;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use area::PoolLimits;
use block::{
    Capability, Completion, Endpoint, Fingerprint, Identity, Inspect, IoError, IoErrorKind, Kind, Medium,
    OpenError, Request, wait_ready,
};
use io::{Event, Io, Owner};
use iscsi::initiator::Direction;
use iscsi::wire::TmFunction;
use mover::Plan;
use node::initiator::{IscsiMedium, Options, Url};
use node::target::{Access, LunConfig, ServerConfig};
use scsi::cdb;
use support::relay::Relay;
use support::{Client, Guard, IQN, config, eventually, lun};

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
        let capability =
            Capability { volatile_cache: true, ..support::medium("mem:1M").attach(io)?.capability().clone() };
        Ok(Box::new(ForgetfulEndpoint { disk: self.clone(), capability }))
    }

    fn name(&self) -> String {
        "forgetful".into()
    }
}

struct ForgetfulEndpoint {
    disk: Forgetful,
    capability: Capability,
}

impl Endpoint for ForgetfulEndpoint {
    fn capability(&self) -> &Capability {
        &self.capability
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
        self
    }
}

impl Inspect for ForgetfulEndpoint {
    fn identity(&self) -> Identity {
        Identity::Unique
    }

    fn fingerprint(&self) -> Fingerprint {
        self.identity().fingerprint(self.capability().size_bytes)
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
        let config = config(vec![lun(0, Arc::new(disk.clone()))], Access::default());
        Guard::start_with(ServerConfig { listen: vec![address], ..config })
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

    /// Cuts every session; the server keeps running.
    fn cut(&self) {
        let mut client = Client::login(self.address, "cutter", 1).unwrap();
        client.manage(TmFunction::TargetColdReset, 0).unwrap();
        client.logout().unwrap();
        let handle = self.server.as_ref().unwrap().handle();
        eventually("the sessions end", || handle.sessions().is_empty());
    }

    fn medium(&self) -> IscsiMedium {
        Self::medium_at(self.address)
    }

    fn medium_at(address: SocketAddr) -> IscsiMedium {
        let url = Url::parse(&format!("iscsi://{address}/{IQN}/0")).unwrap();
        let options =
            Options { timeout: Duration::from_secs(10), ..Options::new("iqn.2026-11.example:tester") };
        IscsiMedium::new(url, options, false).unwrap()
    }
}

/// A loop with one endpoint.
struct Host {
    io: Io,
    endpoint: Box<dyn Endpoint>,
}

impl Host {
    fn new(medium: &IscsiMedium) -> Self {
        let mut io = Io::new(PoolLimits::default()).unwrap();
        let mut endpoint = medium.attach(&mut io).unwrap();
        wait_ready(&mut io, &mut [&mut *endpoint]).unwrap();
        assert!(endpoint.capability().volatile_cache);
        Self { io, endpoint }
    }

    fn perform(&mut self, kinds: Vec<Kind>) -> Vec<Result<(), IoErrorKind>> {
        let (mut done, mut events, count) = (Vec::new(), Vec::new(), kinds.len());
        for (id, kind) in kinds.into_iter().enumerate() {
            self.endpoint.submit(&mut self.io, Request { id: id as u64, kind }, &mut done);
        }
        while done.len() < count {
            self.io.turn(&mut events).unwrap();
            for event in events.drain(..) {
                self.endpoint.on_event(&mut self.io, event, &mut done);
            }
        }
        done.sort_by_key(|completion| completion.id);
        done.into_iter().map(|completion| completion.result.map_err(|error: IoError| error.kind)).collect()
    }

    fn write(&mut self, byte: u8, durable: bool) {
        let from = self.io.pool().take(4096).unwrap();
        from.fill(0, &[byte; 4096]);
        assert_eq!(self.perform(vec![Kind::Write { offset: 0, from, durable }]), [Ok(())]);
    }

    fn flush(&mut self) -> Result<(), IoErrorKind> {
        self.perform(vec![Kind::Flush]).pop().unwrap()
    }
}

#[test]
fn a_flush_tells_of_lost_power_once() {
    let mut machine = Machine::new();
    let mut host = Host::new(&machine.medium());
    host.write(1, false);
    assert_eq!(host.flush(), Ok(()));
    host.write(2, false);
    machine.cycle();
    assert_eq!(host.flush(), Err(IoErrorKind::CacheLost));
    assert_eq!(machine.disk.durable(0), 1, "it is gone indeed");
    host.write(2, false);
    assert_eq!(host.flush(), Ok(()));
    assert_eq!(machine.disk.durable(0), 2);
}

#[test]
fn all_flushes_that_wait_tell_of_lost_power() {
    let mut machine = Machine::new();
    let mut host = Host::new(&machine.medium());
    host.write(1, false);
    machine.cycle();
    let lost = Err(IoErrorKind::CacheLost);
    assert_eq!(host.perform(vec![Kind::Flush, Kind::Flush]), [lost, lost]);
    assert_eq!(host.flush(), Ok(()));
}

#[test]
fn a_second_loss_is_told_again() {
    let mut machine = Machine::new();
    let mut host = Host::new(&machine.medium());
    for _ in 0..3 {
        host.write(1, false);
        machine.cycle();
        assert_eq!(host.flush(), Err(IoErrorKind::CacheLost));
    }
    assert_eq!(host.flush(), Ok(()));
}

#[test]
fn what_was_durable_is_not_lost() {
    let mut machine = Machine::new();
    let mut host = Host::new(&machine.medium());
    host.write(1, true);
    machine.cycle();
    assert_eq!(host.flush(), Ok(()), "FUA");
    host.write(2, false);
    assert_eq!(host.flush(), Ok(()));
    machine.cycle();
    assert_eq!(host.flush(), Ok(()), "flushed");
}

#[test]
fn zeroes_are_lost_like_data() {
    let mut machine = Machine::new();
    let mut host = Host::new(&machine.medium());
    host.write(1, true);
    for kind in [
        Kind::WriteZeroes { offset: 0, length: 4096, may_unmap: false },
        Kind::WriteZeroes { offset: 0, length: 4096, may_unmap: true },
        Kind::Discard { offset: 0, length: 4096 },
    ] {
        assert_eq!(host.perform(vec![kind]), [Ok(())]);
        machine.cycle();
        assert_eq!(host.flush(), Err(IoErrorKind::CacheLost));
        assert_eq!(machine.disk.durable(0), 1);
    }
}

#[test]
fn a_lost_connection_alone_loses_nothing() {
    let machine = Machine::new();
    let mut host = Host::new(&machine.medium());
    for byte in 1..4 {
        host.write(byte, false);
        machine.cut();
        assert_eq!(host.flush(), Ok(()), "29h/07h: it kept running");
        assert_eq!(machine.disk.durable(0), byte);
    }
}

/// The target's first session after the restart ends before the login response reaches the initiator. The unit
/// attention of the next session must not be I_T NEXUS LOSS, which would mean that the cache is intact; the initiator
/// would reject it as well.
#[test]
fn a_login_whose_answer_is_lost_hides_no_lost_power() {
    let mut machine = Machine::new();
    let relay = Relay::start(machine.address);
    let mut host = Host::new(&Machine::medium_at(relay.address));
    for lost in 1..3 {
        host.write(lost as u8, false);
        relay.swallow.store(lost, Ordering::Relaxed);
        machine.cycle();
        assert_eq!(host.flush(), Err(IoErrorKind::CacheLost), "{lost} answers lost");
        assert_eq!(relay.swallow.load(Ordering::Relaxed), 0, "they were");
        assert_eq!(host.flush(), Ok(()), "once");
    }
}

#[test]
fn the_flush_of_one_endpoint_tells_of_anothers_writes() {
    let mut machine = Machine::new();
    let medium = machine.medium();
    let (mut writer, mut flusher) = (Host::new(&medium), Host::new(&medium));
    writer.write(1, false);
    machine.cycle();
    assert_eq!(flusher.flush(), Err(IoErrorKind::CacheLost));
    drop(writer);
    assert_eq!(flusher.flush(), Ok(()));
}

#[test]
fn nobody_vouches_for_the_writes_of_an_endpoint_that_is_gone() {
    let mut machine = Machine::new();
    let medium = machine.medium();
    let mut writer = Host::new(&medium);
    writer.write(1, false);
    drop(writer);
    machine.cycle();
    let mut flusher = Host::new(&medium);
    assert_eq!(flusher.flush(), Err(IoErrorKind::CacheLost));
    assert_eq!(flusher.flush(), Ok(()));
}

#[test]
fn a_target_before_it_tells_each_initiator_once() {
    let mut machine = Machine::new();
    let front = LunConfig { shared: true, ..lun(0, Arc::new(machine.medium())) };
    let front = Guard::start(vec![front], Access::default());
    let login = |name| Client::login(front.address(), name, 1).unwrap();
    let (mut one, mut two) = (login("one"), login("two"));
    let flush =
        |client: &mut Client| client.command(0, cdb::synchronize_cache_10(), Direction::None, &[]).unwrap().0;
    for client in [&mut one, &mut two] {
        let write = client.command(0, cdb::write_10(0, 8, false), Direction::Out, &[9; 4096]);
        assert_eq!(write.unwrap().0, 0);
    }
    assert_eq!((flush(&mut one), flush(&mut two)), (0, 0));
    one.command(0, cdb::write_10(0, 8, false), Direction::Out, &[8; 4096]).unwrap();
    machine.cycle();
    assert_eq!((flush(&mut two), flush(&mut one)), (2, 2), "each is told");
    assert_eq!(machine.disk.durable(0), 9);
    one.command(0, cdb::write_10(0, 8, false), Direction::Out, &[8; 4096]).unwrap();
    assert_eq!((flush(&mut two), flush(&mut one)), (0, 0), "once");
    assert_eq!(machine.disk.durable(0), 8);
}

#[test]
fn a_copy_survives_lost_power() {
    let mut machine = Machine::new();
    let mut host = Host::new(&machine.medium());
    let mut source = support::medium("pattern:1M:5").attach(&mut host.io).unwrap();
    let mut cycles = 0;
    let plan = Plan { verify: true, rate: Some(4 << 20), chunk: Some(64 << 10), ..Plan::default() };
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
