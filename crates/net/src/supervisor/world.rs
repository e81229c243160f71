//! `inet`, its drivers and its applications, from the start of `inet` to its end. A driver that dies is replaced within a
//! world; with `inet` the world ends, and another one starts with new memory.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use area::ring::Mapped;
use area::{PAGE_BYTES, Ringer, memfd};
use inet::Time;

use super::child::{Child, ending, is_readable};
use super::clients::{Clients, Refusal, Server};
use super::config::Config;
use super::link;
use super::memory::{Application, Interface, SendRegion, Shared};
use super::succession::{Action, Succession};
use crate::control::{FromInet, FromNic, ToClient, ToInet, ToNic};
use crate::control_socket;
use crate::layout::FRAMES_BYTES;
use crate::nic::{Counts, Opened};
use crate::process::{INET_COUNTERS_BYTES, NIC_COUNTERS_BYTES, read_nic, state_bytes, sum_nic};
use crate::{layout, server};

/// Time in which a server must have started, microseconds.
const START_US_MAX: u64 = 10_000_000;

/// What the world tells its owner.
#[derive(Debug)]
pub(super) enum Notice {
    /// Memory of an application is known to the servers.
    Region { client: u32, number: u32, generation: u32 },
    /// An application broke its rings.
    Faulty { client: u32 },
    /// `inet` and a driver serve, for the first time in this world.
    Up,
    /// Drivers die as soon as they are started.
    NoDriver,
}

#[derive(Debug)]
pub(super) struct World {
    clients_max: u32,
    interface: Interface,
    pub(super) inet: Child,
    pub(super) driver: Option<Child>,
    pub(super) spare: Option<Child>,
    pub(super) succession: Succession,
    pub(super) clients: Clients,
    applications: BTreeMap<u32, Application>,
    /// Of drivers that have ended.
    former: Counts,
    notices: Vec<Notice>,
    /// The driver has another device than its successor will have.
    is_driver_obsolete: bool,
    /// A driver has attached to `inet`.
    has_link: bool,
    has_been_up: bool,
    /// How the last driver ended.
    last_end: String,
}

impl World {
    pub(super) fn start(config: &Config, now: Time) -> io::Result<Self> {
        let interface = Interface::new()?;
        let state = memfd::create("net-state", state_bytes(config.clients_max))?;
        let mut inet = Child::start("inet", INET_COUNTERS_BYTES, now)?;
        inet.wake_by(Arc::clone(&interface.inet_bell));
        let mut secret = [0; 16];
        getrandom(&mut secret)?;
        let start = ToInet::Start {
            addresses: config.addresses.clone(),
            gateways: config.gateways.clone(),
            clients_max: config.clients_max,
            secret,
        };
        let (news, counters) = inet.pages()?;
        let counters = counters.try_clone_to_owned()?;
        inet.send(
            &start,
            &[state.as_fd(), counters.as_fd(), interface.inet_bell.owners.as_fd(), news.as_fd()],
        );
        let to_nic = interface.nic_bell.ringer.another()?;
        inet.send(
            &ToInet::Interface { interface: 0 },
            &[interface.inet.writer(), interface.nic.reader(), interface.frames.reader(), to_nic.as_fd()],
        );
        inet.send(&ToInet::Go, &[]);
        Ok(Self {
            clients_max: config.clients_max,
            interface,
            inet,
            driver: None,
            spare: None,
            succession: Succession::new(now),
            clients: Clients::new(config.clients_max),
            applications: BTreeMap::new(),
            former: Counts::default(),
            notices: Vec::new(),
            is_driver_obsolete: false,
            has_link: false,
            has_been_up: false,
            last_end: String::new(),
        })
    }

    /// Starts and promotes drivers as far as that is due.
    pub(super) fn settle(&mut self, config: &Config, opened: &Opened, now: Time) {
        while let Some(action) = self.succession.select(now) {
            match action {
                Action::Start => match self.start_spare(config, opened, now) {
                    Ok(spare) => self.spare = Some(spare),
                    Err(error) => {
                        tracing::error!("a driver cannot be started: {error}");
                        self.last_end = error.to_string();
                        self.succession.on_spare_ended(now);
                    }
                },
                Action::Promote(epoch) => {
                    if let Some(mut driver) = self.spare.take() {
                        driver.wake_by(Arc::clone(&self.interface.nic_bell));
                        driver.send(&ToNic::Go { epoch, mtu: link::mtu(&config.nic, opened) }, &[]);
                        self.driver = Some(driver);
                    }
                }
                Action::GiveUp => {
                    self.notices.push(Notice::NoDriver);
                    break;
                }
            }
        }
    }

    fn start_spare(&mut self, config: &Config, opened: &Opened, now: Time) -> io::Result<Child> {
        let mut nic = Child::start("nic", NIC_COUNTERS_BYTES, now)?;
        let (news, counters) = nic.pages()?;
        let counters = counters.try_clone_to_owned()?;
        let to_inet = self.interface.inet_bell.ringer.another()?;
        let start = ToNic::Start { device: config.nic.device(), mac: config.mac };
        nic.send(
            &start,
            &[
                opened.descriptor.as_fd(),
                self.interface.nic.writer(),
                self.interface.inet.reader(),
                self.interface.frames.writer(),
                self.interface.nic_bell.owners.as_fd(),
                to_inet.as_fd(),
                news.as_fd(),
                counters.as_fd(),
            ],
        );
        for (&client, application) in &self.applications {
            application.join_nic(client, &mut nic)?;
            for region in &application.regions {
                nic.send(&region.message(client), &[region.reader.as_fd()]);
            }
        }
        Ok(nic)
    }

    // What servers say.

    pub(super) fn on_inet_readable(&mut self) {
        let Some(message) = self.inet.receive() else { return };
        match message {
            FromInet::Ready { missing } => {
                report_missing("inet", &missing);
                self.inet.is_ready = true;
            }
            FromInet::Attached => {
                self.has_link = true;
                self.on_progress();
            }
            FromInet::Known { region, generation } => {
                if let Some(client) = self.clients.on_known(Server::Inet, region, generation) {
                    self.notices.push(Notice::Region { client, number: region, generation });
                }
            }
            FromInet::Drained { client } => {
                if self.clients.on_drained(client) {
                    self.applications.remove(&client);
                    for nic in self.driver.iter_mut().chain(&mut self.spare) {
                        nic.send(&ToNic::ClientGone { client }, &[]);
                    }
                }
            }
            FromInet::Faulty { client } => self.notices.push(Notice::Faulty { client }),
            FromInet::DriverFaulty { epoch } => {
                if let Some(driver) = &mut self.driver
                    && self.succession.is_meant(epoch, crate::wait::now())
                {
                    tracing::error!("driver {} has broken its rings: it is killed", driver.pid());
                    driver.kill();
                }
            }
        }
    }

    pub(super) fn on_driver_readable(&mut self) {
        match self.driver.as_mut().and_then(Child::receive) {
            Some(FromNic::Mapped { region, generation }) => {
                if let Some(client) = self.clients.on_known(Server::Driver, region, generation) {
                    self.notices.push(Notice::Region { client, number: region, generation });
                }
            }
            Some(FromNic::Ready { .. }) | None => {}
        }
    }

    pub(super) fn on_spare_readable(&mut self) {
        let Some(spare) = &mut self.spare else { return };
        match spare.receive() {
            Some(FromNic::Ready { missing }) => {
                spare.is_ready = true;
                self.succession.on_ready();
                // Of the first driver: all are started alike.
                if !self.has_been_up && self.driver.is_none() {
                    report_missing("nic", &missing);
                }
                if self.is_driver_obsolete
                    && let Some(driver) = &mut self.driver
                {
                    driver.kill();
                }
            }
            // What a spare maps is mapped before it works: messages come in order.
            Some(FromNic::Mapped { .. }) | None => {}
        }
    }

    fn on_progress(&mut self) {
        if self.is_up() && !self.has_been_up {
            self.has_been_up = true;
            self.notices.push(Notice::Up);
        }
    }

    /// Applications can join. Not before `inet` knows the interface: until then none of our addresses can be bound, and
    /// nothing can be reached.
    pub(super) fn is_up(&self) -> bool {
        self.inet.is_ready && self.has_link
    }

    // What becomes of processes.

    /// The device is another one. The driver ends when a successor with the new one is ready.
    pub(super) fn replace_drivers(&mut self, now: Time) {
        self.spare = None;
        self.succession.on_spare_removed(now);
        self.is_driver_obsolete = self.driver.is_some();
    }

    /// Logs no more of what drivers say.
    pub(super) fn silence_drivers(&mut self) {
        self.driver.iter_mut().chain(&mut self.spare).for_each(Child::silence);
    }

    /// The driver's process has ended. To be called first of all: connections wait.
    pub(super) fn on_driver_ended(&mut self, now: Time) -> Option<Child> {
        self.succession.on_driver_ended(now);
        let driver = self.driver.take()?;
        self.former = sum_nic(&self.former, &counts(&driver));
        for (client, number, generation) in self.clients.on_driver_ended() {
            self.notices.push(Notice::Region { client, number, generation });
        }
        Some(driver)
    }

    /// After the successor has been promoted.
    pub(super) fn report_driver(&mut self, mut driver: Child, now: Time) {
        let status = driver.ended();
        self.last_end = status.map_or("it was killed".to_owned(), ending);
        let (ended, end) = (driver.pid(), &self.last_end);
        let is_replaced = std::mem::take(&mut self.is_driver_obsolete);
        match &self.driver {
            Some(next) if is_replaced => {
                tracing::info!("driver {} replaces driver {ended} on the new wire", next.pid());
            }
            Some(next) => {
                let gap_ms = crate::wait::now().since(now) as f64 / 1e3;
                tracing::warn!(
                    "driver {} took over {gap_ms:.1} ms after driver {ended} ended ({end})",
                    next.pid()
                );
            }
            None => {
                tracing::warn!(
                    "driver {ended} ended ({end}); no spare is ready, another one is being started"
                );
            }
        }
    }

    pub(super) fn on_spare_ended(&mut self, now: Time) {
        if let Some(mut spare) = self.spare.take() {
            let status = spare.ended();
            self.last_end = status.map_or("it was killed".to_owned(), ending);
            tracing::warn!("spare driver {} ended ({})", spare.pid(), self.last_end);
            self.succession.on_spare_ended(now);
        }
    }

    pub(super) fn last_end(&self) -> &str {
        &self.last_end
    }

    /// Kills servers that hang, or do not start.
    pub(super) fn look_for_hangs(&mut self, device: BorrowedFd<'_>, now: Time) {
        let is_late = |child: &Child| !child.is_ready && now.since(child.started_at) > START_US_MAX;
        let kill = |child: &mut Child, name: &str, why: &str| {
            tracing::error!("{name} {} {why}: it is killed", child.pid());
            child.kill();
        };
        if is_late(&self.inet) {
            kill(&mut self.inet, "inet", "does not start");
        } else if self.inet.is_ready && self.inet.hangs(false, now) {
            kill(&mut self.inet, "inet", "hangs");
        }
        if let Some(driver) = &mut self.driver
            && driver.hangs(is_readable(device), now)
        {
            kill(driver, "driver", "hangs");
        }
        if let Some(spare) = &mut self.spare
            && is_late(spare)
        {
            kill(spare, "spare driver", "does not start");
        }
    }

    pub(super) fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    // Applications.

    /// A new application, which is sent all that it needs through `socket`.
    pub(super) fn join(&mut self, config: &Config, socket: BorrowedFd<'_>) -> Result<u32, String> {
        let is_only = self.clients_max == 1;
        let memory = Application::new(is_only).map_err(|error| format!("memory for it: {error}"))?;
        let ringers = || Ok([memory.bell.ringer.another()?, self.interface.inet_bell.ringer.another()?]);
        let ringers: io::Result<[Ringer; 2]> = ringers();
        let [from_inet, to_inet] = ringers.map_err(|error| format!("its doorbells: {error}"))?;
        let client = self.clients.join().map_err(|refusal| refusal.to_string())?;
        self.inet.send(&ToInet::Client { client }, &memory.for_inet(&from_inet));
        for nic in self.driver.iter_mut().chain(&mut self.spare) {
            if let Err(error) = memory.join_nic(client, nic) {
                // Its successor learns of the application when it starts.
                tracing::warn!("driver {} cannot be given a doorbell ({error}): it is killed", nic.pid());
                nic.kill();
            }
        }
        let welcome = ToClient::Welcome {
            client,
            addresses: config.addresses.clone(),
            received_bytes: if is_only { FRAMES_BYTES } else { layout::received::BYTES } as u64,
        };
        let received = memory.copies.as_ref().unwrap_or(&self.interface.frames);
        let sent = control_socket::send(
            socket,
            &welcome,
            &[
                memory.requests.writer(),
                memory.completions.reader(),
                memory.direct.writer(),
                memory.returns.reader(),
                received.reader(),
                memory.bell.owners.as_fd(),
                to_inet.as_fd(),
            ],
        );
        self.applications.insert(client, memory);
        if let Err(error) = sent {
            self.leave(client);
            return Err(format!("it takes no answer: {error}"));
        }
        Ok(client)
    }

    pub(super) fn leave(&mut self, client: u32) {
        self.clients.leave(client);
        self.inet.send(&ToInet::ClientGone { client }, &[]);
    }

    /// Memory of an application; it is told the number when the servers know it ([`Notice::Region`]).
    pub(super) fn add_region(&mut self, client: u32, memory: &OwnedFd, bytes: u32) -> Result<(), String> {
        memfd::check(memory.as_fd(), u64::from(bytes)).map_err(|unfit| unfit.to_string())?;
        let reader = memfd::read_only(memory.as_fd()).map_err(|error| {
            format!(
                "the memfd cannot be opened for reading ({error}): run `net up` as root, or as the application's user"
            )
        })?;
        let has_driver = self.driver.is_some();
        let (number, generation) = self
            .clients
            .add_region(client, bytes, has_driver)
            .map_err(|refusal: Refusal| refusal.to_string())?;
        let region = SendRegion { number, generation, bytes, reader };
        let known = ToInet::Region { client, region: number, generation, bytes };
        self.inet.send(&known, &[]);
        for nic in self.driver.iter_mut().chain(&mut self.spare) {
            nic.send(&region.message(client), &[region.reader.as_fd()]);
        }
        if let Some(application) = self.applications.get_mut(&client) {
            application.regions.push(region);
        }
        Ok(())
    }

    // For `status`.

    /// Of all drivers of this world.
    pub(super) fn nic_counts(&self) -> Counts {
        self.driver.as_ref().map_or(self.former, |driver| sum_nic(&self.former, &counts(driver)))
    }

    pub(super) fn inet_counters(&self) -> server::Page {
        server::Page::new(Arc::clone(self.inet.counters()))
    }

    pub(super) fn interface_memories(&self) -> [&Shared; 2] {
        [&self.interface.inet, &self.interface.nic]
    }

    pub(super) fn applications(&self) -> impl Iterator<Item = (u32, &Application)> {
        self.applications.iter().map(|(&client, application)| (client, application))
    }
}

impl Application {
    /// Descriptors of `ToInet::Client`.
    fn for_inet<'a>(&'a self, bell: &'a Ringer) -> Vec<BorrowedFd<'a>> {
        let always = [self.completions.writer(), self.requests.reader(), bell.as_fd()];
        always.into_iter().chain(self.copies.as_ref().map(Shared::writer)).collect()
    }

    fn join_nic(&self, client: u32, nic: &mut Child) -> io::Result<()> {
        let bell = self.bell.ringer.another()?;
        let descriptors = [self.returns.writer(), self.direct.reader(), bell.as_fd()];
        nic.send(&ToNic::Client { client }, &descriptors);
        Ok(())
    }
}

impl SendRegion {
    fn message(&self, client: u32) -> ToNic {
        ToNic::Region { client, region: self.number, generation: self.generation, bytes: self.bytes }
    }
}

fn report_missing(name: &str, missing: &[String]) {
    if !missing.is_empty() {
        tracing::warn!("{name} is confined only in part, it lacks: {}", missing.join("; "));
    }
}

fn counts(driver: &Child) -> Counts {
    read_nic(&Mapped::new(Arc::clone(driver.counters()), 0, PAGE_BYTES))
}

fn getrandom(into: &mut [u8]) -> io::Result<()> {
    // SAFETY: the kernel writes at most `into.len()` bytes to `into`.
    let count = unsafe { libc::getrandom(into.as_mut_ptr().cast(), into.len(), 0) };
    if count == into.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}
