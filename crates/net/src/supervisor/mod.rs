//! Starts `inet` and its drivers, gives them and the applications what they share, and starts again what dies. It does
//! nothing on the data path.
//!
//! One thread and one loop without anything that blocks: messages of applications, which are not trusted, are bounded, and
//! an application that does not read its answers is disconnected. Between two looks for servers that hang the loop
//! sleeps.
//!
//! - [`config`]: what it is asked for; `succession`, `clients`, `watch`: its state, without processes.
//! - `journal`: what applications can make it log;
//! - `child`: one process; `world`: all processes and memory of one life of `inet`; `link`: what is behind the drivers;
//!   `status`, `cost`: what `net status` shows.

mod child;
mod clients;
pub mod config;
mod connections;
mod cost;
mod journal;
mod link;
mod memory;
mod status;
mod succession;
mod watch;
mod world;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

use inet::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

use self::child::{Child, ending};
use self::clients::Refusal;
use self::config::Config;
use self::connections::{Connection, Connections, Received};
use self::journal::{Journal, Kind, plain};
use self::link::{Change, Link};
use self::succession::Backoff;
use self::watch::LOOK_US;
use self::world::{Notice, World};
use crate::control::{FromClient, ToClient};
use crate::nic::wire;
use crate::socket_file::{self, Listener};
use crate::wait::now;

/// Time for resets of connections to leave when the supervisor ends.
const END_US_MAX: u64 = 500_000;
const END_US: u64 = 20_000;

/// Why a supervisor cannot start, or cannot go on.
#[derive(Debug, Error)]
pub enum Fault {
    #[error("{0}")]
    Socket(socket_file::Fault),
    #[error("{0}")]
    Nic(io::Error),
    #[error(transparent)]
    Wire(#[from] wire::Fault),
    #[error("the interface is gone: it was deleted, or moved to another network namespace")]
    Gone,
    #[error("a server cannot be started: {0}")]
    Start(io::Error),
    #[error("the driver ends as soon as it is started: {0}")]
    Driver(String),
    #[error("inet ends as soon as it is started: {0}")]
    Inet(String),
    #[error("waiting: {0}")]
    Wait(io::Error),
    #[error(
        "{clients} application(s) need up to {needed} open files, and this process may have {most}: raise the hard limit \
         (`ulimit -Hn {needed}` as root, `LimitNOFILE={needed}` in a systemd unit), or use a smaller --clients"
    )]
    Limit { clients: u32, needed: u64, most: u64 },
}

/// What happens once in the life of a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It has the socket, and waits for the other end of its wire.
    WaitingForWire,
    /// Applications can join.
    Up,
}

/// Serves until a signal (SIGTERM, SIGINT) ends it.
///
/// The calling thread must be the only one: signals are blocked, and servers die with the thread that started them.
pub fn run(config: &Config, on_event: &mut dyn FnMut(Event)) -> Result<(), Fault> {
    // First: what follows makes files, which are removed at an orderly end.
    let signals = Signals::catch().map_err(Fault::Wait)?;
    raise_limit(config.clients_max)?;
    let door = Listener::new(&config.socket).map_err(Fault::Socket)?;
    let link = Link::open(&config.nic, config.mac)?;
    if !link.is_joined() {
        on_event(Event::WaitingForWire);
    }
    let mut supervisor = Supervisor {
        config,
        link,
        door,
        signals,
        world: None,
        connections: Connections::new(config.clients_max),
        backoff: Backoff::default(),
        start_at: now(),
        inet_restarts: 0,
        served_since: None,
        looked_at: now(),
        ends_at: None,
        journal: Journal::new(now()),
    };
    supervisor.serve(&mut || on_event(Event::Up))
}

/// Raises the limit of open files to the highest one allowed. If that is too low, an application, or the next driver, would
/// fail in the middle of the work of others.
fn raise_limit(clients: u32) -> Result<(), Fault> {
    let limit = getrlimit(Resource::Nofile);
    let needed = clients::descriptors(clients);
    if let Some(most) = limit.maximum.filter(|&most| most < needed) {
        return Err(Fault::Limit { clients, needed, most });
    }
    if limit.current.is_some_and(|current| current < needed) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(needed), ..limit })
            .map_err(|error| Fault::Wait(error.into()))?;
    }
    Ok(())
}

/// Signals as a descriptor.
#[derive(Debug)]
struct Signals(OwnedFd);

impl Signals {
    fn catch() -> io::Result<Self> {
        // SAFETY: the set is plain data that lives through the calls; the new descriptor is owned here.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(OwnedFd::from_raw_fd(descriptor)))
        }
    }

    fn take(&self) -> Option<i32> {
        let mut information = [0u8; size_of::<libc::signalfd_siginfo>()];
        let count = rustix::io::read(&self.0, &mut information).ok()?;
        // The first field is the number (signalfd(2)).
        let number = information.first_chunk().filter(|_| count == information.len())?;
        Some(u32::from_ne_bytes(*number).cast_signed())
    }
}

/// What has become readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    DriverEnded,
    InetEnded,
    SpareEnded,
    Driver,
    Inet,
    Spare,
    Log(Server),
    Signal,
    Door,
    /// A stack comes to the wire; the other end of the wire has ended.
    WireDoor,
    WireEnded,
    Connection(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Inet,
    Driver,
    Spare,
}

struct Supervisor<'a> {
    config: &'a Config,
    link: Link<'a>,
    /// Where applications join.
    door: Listener,
    signals: Signals,
    /// `None` until the next start of `inet` is due.
    world: Option<World>,
    connections: Connections,
    /// Of `inet`.
    backoff: Backoff,
    start_at: Time,
    inet_restarts: u32,
    /// When this world came up.
    served_since: Option<Time>,
    looked_at: Time,
    ends_at: Option<Time>,
    journal: Journal,
}

impl Supervisor<'_> {
    fn serve(&mut self, on_up: &mut dyn FnMut()) -> Result<(), Fault> {
        let mut has_been_up = false;
        loop {
            self.settle()?;
            for notice in self.world.as_mut().map(World::notices).unwrap_or_default() {
                match notice {
                    Notice::Up => {
                        self.served_since = Some(now());
                        if !std::mem::replace(&mut has_been_up, true) {
                            on_up();
                        }
                    }
                    Notice::Region { client, number, generation } => {
                        self.connections.tell_region(client, number, generation);
                    }
                    Notice::Faulty { client } => {
                        self.connections.refuse(client, "the application has broken its rings");
                        if self.journal.admits(Kind::Faulty, now()) {
                            tracing::warn!("application {client} has broken its rings: it is disconnected");
                        }
                        self.leave(client);
                    }
                    Notice::NoDriver => {
                        let end = self.world.as_ref().map(|world| world.last_end().to_owned());
                        return Err(Fault::Driver(end.unwrap_or_default()));
                    }
                }
            }
            if self.is_over() {
                return Ok(());
            }
            for source in self.wait()? {
                if self.on_readable(source)? {
                    break;
                }
            }
        }
    }

    /// Does what is due: starts, looks for hangs, ends connections that said nothing.
    fn settle(&mut self) -> Result<(), Fault> {
        let now = now();
        let opened = self.link.opened();
        if opened.is_some() && self.world.is_none() && self.start_at <= now && self.ends_at.is_none() {
            self.world = Some(World::start(self.config, now).map_err(Fault::Start)?);
        }
        if let (Some(world), Some(opened)) = (&mut self.world, opened) {
            world.settle(self.config, opened, now);
            if now.since(self.looked_at) >= LOOK_US {
                self.looked_at = now;
                if self.link.is_gone() {
                    return Err(self.gone());
                }
                world.look_for_hangs(opened.descriptor.as_fd(), now);
            }
            if world.is_up() && self.ends_at.is_none() {
                for number in self.connections.waiting() {
                    self.join(number);
                }
            }
        }
        for number in self.connections.stuck() {
            self.drop_connection(number);
        }
        self.connections.drop_silent(now);
        for (what, lines) in self.journal.settle(now) {
            tracing::warn!("{lines} more within a second: {what}");
        }
        Ok(())
    }

    fn deadline(&self) -> Time {
        let (start, look) = match &self.world {
            Some(world) => (world.succession.deadline(), self.looked_at.after(LOOK_US)),
            None if self.link.opened().is_some() => (self.start_at, Time::NEVER),
            None => (Time::NEVER, Time::NEVER),
        };
        let end = self.ends_at.unwrap_or(Time::NEVER);
        [start, look, end, self.connections.deadline(), self.journal.deadline()]
            .into_iter()
            .min()
            .unwrap_or(Time::NEVER)
    }

    fn wait(&self) -> Result<Vec<Source>, Fault> {
        let mut sources: Vec<(Source, BorrowedFd<'_>)> = Vec::new();
        if let Some(world) = &self.world {
            let named = [
                (world.driver.as_ref(), Source::DriverEnded, Source::Driver, Server::Driver),
                (Some(&world.inet), Source::InetEnded, Source::Inet, Server::Inet),
                (world.spare.as_ref(), Source::SpareEnded, Source::Spare, Server::Spare),
            ];
            let here =
                || named.iter().filter_map(|(child, end, control, log)| Some(((*child)?, end, control, log)));
            sources.extend(here().map(|(child, &end, _, _)| (end, child.end())));
            sources.extend(here().map(|(child, _, &control, _)| (control, child.control())));
            sources.extend(
                here().filter_map(|(child, _, _, &server)| Some((Source::Log(server), child.stderr()?))),
            );
        }
        sources.push((Source::Signal, self.signals.0.as_fd()));
        if self.connections.has_room() {
            sources.push((Source::Door, self.door.as_fd()));
        }
        sources.extend(self.link.listener().map(|listener| (Source::WireDoor, listener)));
        sources.extend(self.link.wire().map(|wire| (Source::WireEnded, wire)));
        sources.extend(
            self.connections
                .all()
                .map(|connection| (Source::Connection(connection.number), connection.as_fd())),
        );
        // Of a wire the frames are the driver's: only that it hangs up, which is always reported.
        let flags = |source| if source == Source::WireEnded { PollFlags::empty() } else { PollFlags::IN };
        let mut polled: Vec<PollFd<'_>> = sources
            .iter()
            .map(|&(source, descriptor)| PollFd::from_borrowed_fd(descriptor, flags(source)))
            .collect();
        let wait_us = self.deadline().since(now());
        let timeout = Timespec {
            tv_sec: (wait_us / 1_000_000).cast_signed(),
            tv_nsec: (wait_us % 1_000_000 * 1000).cast_signed(),
        };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(Fault::Wait(error.into())),
        }
        let ready = sources.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(ready.map(|((source, _), _)| *source).collect())
    }

    /// Returns whether the other sources are to be asked for again.
    fn on_readable(&mut self, source: Source) -> Result<bool, Fault> {
        let now = now();
        match source {
            Source::DriverEnded => {
                if self.link.is_gone() {
                    return Err(self.gone());
                }
                if let (Some(world), Some(opened)) = (&mut self.world, self.link.opened())
                    && let Some(ended) = world.on_driver_ended(now)
                {
                    world.settle(self.config, opened, now);
                    world.report_driver(ended, now);
                }
                return Ok(true);
            }
            Source::InetEnded => {
                self.on_inet_ended(now)?;
                return Ok(true);
            }
            Source::SpareEnded => {
                if let Some(world) = &mut self.world {
                    world.on_spare_ended(now);
                }
                return Ok(true);
            }
            Source::Driver => self.with_world(World::on_driver_readable),
            Source::Inet => self.with_world(World::on_inet_readable),
            Source::Spare => self.with_world(World::on_spare_readable),
            // What it says may be that there is no interface.
            Source::Log(Server::Driver) if self.link.is_gone() => return Err(self.gone()),
            Source::Log(server) => self.with_world(|world| {
                let child = match server {
                    Server::Inet => Some(&mut world.inet),
                    Server::Driver => world.driver.as_mut(),
                    Server::Spare => world.spare.as_mut(),
                };
                child.map(Child::log).unwrap_or_default();
            }),
            Source::Signal => self.on_signal(now),
            Source::Door => self.connections.accept(self.door.as_fd(), now),
            Source::WireDoor => {
                let change = self.link.accept();
                self.on_wire(change, now);
                return Ok(true);
            }
            Source::WireEnded => {
                tracing::warn!("the other end of {} has ended; another one can join it", self.config.nic);
                let change = self.link.on_hang_up()?;
                self.on_wire(change, now);
                return Ok(true);
            }
            Source::Connection(number) => self.on_connection(number),
        }
        Ok(false)
    }

    fn on_wire(&mut self, change: Change, now: Time) {
        if change == Change::Joined
            && let Some(world) = &mut self.world
        {
            tracing::info!("{} has another end again", self.config.nic);
            world.replace_drivers(now);
        }
    }

    /// The interface was deleted: of its drivers' last lines this is the cause.
    fn gone(&mut self) -> Fault {
        self.with_world(World::silence_drivers);
        Fault::Gone
    }

    fn with_world(&mut self, act: impl FnOnce(&mut World)) {
        if let Some(world) = &mut self.world {
            act(world);
        }
    }

    fn on_inet_ended(&mut self, now: Time) -> Result<(), Fault> {
        let Some(mut world) = self.world.take() else { return Ok(()) };
        let status = world.inet.ended();
        world.inet.log();
        let end = status.map_or("it was killed".to_owned(), ending);
        let served_us = self.served_since.take().map_or(0, |since| now.since(since));
        let count = self.connections.drop_clients();
        tracing::error!("inet {} ended ({end}): {count} application(s) are disconnected", world.inet.pid());
        self.inet_restarts += 1;
        match self.backoff.on_end(served_us) {
            Some(delay_us) => self.start_at = now.after(delay_us),
            None => return Err(Fault::Inet(end)),
        }
        Ok(())
    }

    fn on_signal(&mut self, now: Time) {
        match self.signals.take() {
            Some(libc::SIGHUP) => tracing::info!("SIGHUP: there is nothing to read again; servers go on"),
            Some(_) if self.ends_at.is_none() => {
                let clients = self.connections.clients();
                for &client in &clients {
                    self.leave(client);
                }
                self.connections.clear();
                self.ends_at = Some(if clients.is_empty() { now } else { now.after(END_US_MAX) });
            }
            // A second one does not wait for resets to leave.
            Some(_) => self.ends_at = Some(now),
            None => {}
        }
    }

    fn is_over(&mut self) -> bool {
        let Some(ends_at) = self.ends_at else { return false };
        let now = now();
        let is_drained = !self.world.as_ref().is_some_and(|world| world.clients.is_draining());
        if is_drained {
            self.ends_at = Some(ends_at.min(now.after(END_US)));
        }
        ends_at <= now
    }

    // Applications.

    fn on_connection(&mut self, number: u64) {
        let Some(connection) = self.connections.get(number) else { return };
        match connection.receive() {
            Received::Nothing => {}
            Received::Message(FromClient::Hello { version }, _) => {
                if connection.is_new_of(version) {
                    connection.set_waiting();
                    if self.world.as_ref().is_some_and(World::is_up) {
                        self.join(number);
                    }
                } else {
                    self.drop_connection(number);
                }
            }
            Received::Message(FromClient::Region { bytes }, descriptors) => {
                self.on_region(number, bytes, &descriptors);
            }
            Received::Message(FromClient::Status, _) => {
                let status = ToClient::Status(self.status());
                let Some(connection) = self.connections.get(number) else { return };
                connection.send(&status, &[]);
                if connection.client().is_none() {
                    self.drop_connection(number);
                }
            }
            Received::Ended => self.drop_connection(number),
            Received::Strange(error) => {
                if self.journal.admits(Kind::Strange, now()) {
                    let why = plain(&error.to_string());
                    tracing::warn!("{} sent no message of ours: {why}", connection.peer);
                }
                self.drop_connection(number);
            }
        }
    }

    fn join(&mut self, number: u64) {
        let (Some(world), Some(connection)) = (&mut self.world, self.connections.get(number)) else { return };
        if world.clients.place() == Err(Refusal::Draining) && connection.waits_for_place(now()) {
            return;
        }
        match world.join(self.config, connection.as_fd()) {
            Ok(client) => {
                if self.journal.admits(Kind::Joined, now()) {
                    tracing::info!("application {client} joined: {}", connection.peer);
                }
                connection.set_client(client);
            }
            Err(why) => {
                if self.journal.admits(Kind::Refused, now()) {
                    tracing::warn!("{} was refused: {why}", connection.peer);
                }
                connection.refuse(&why);
                self.drop_connection(number);
            }
        }
    }

    fn on_region(&mut self, number: u64, bytes: u32, descriptors: &[OwnedFd]) {
        let Some(connection) = self.connections.get(number) else { return };
        let (Some(client), [memory]) = (connection.client(), descriptors) else {
            connection.refuse("a region comes after Hello, with one descriptor");
            self.drop_connection(number);
            return;
        };
        let Some(world) = &mut self.world else { return };
        if let Err(why) = world.add_region(client, memory, bytes) {
            if self.journal.admits(Kind::Memory, now()) {
                tracing::warn!("memory of application {client} was refused: {why}");
            }
            connection.refuse(&why);
        }
    }

    fn drop_connection(&mut self, number: u64) {
        let client = self.connections.get(number).and_then(|connection| connection.client());
        self.connections.remove(number);
        if let Some(client) = client {
            if self.journal.admits(Kind::Left, now()) {
                tracing::info!("application {client} left");
            }
            self.with_world(|world| world.leave(client));
        }
    }

    fn leave(&mut self, client: u32) {
        if self.connections.remove_client(client) {
            self.with_world(|world| world.leave(client));
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
