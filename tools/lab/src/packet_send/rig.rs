//! The servers of crate `net` as values: all in one process, or each in a process of its own made by fork, without the
//! supervisor's confinement. Only an experiment runs them so; `hikyaku net up` is what it is compared with.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use area::{Doorbell, Region, Ringer};
use inet::{Link, Settings, Time};
use net::control::Device as Kind;
use net::layout::{self, Channel, FRAMES_BYTES};
use net::nic::{Device, Driver, Maps, Opened, random_mac};
use net::server::{COUNTERS_BYTES, Page, Server, capacity};
use net::socket::{Parts, Servers, Stack};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// The application, the only client.
const CLIENT: u32 = 0;
const INTERFACE: u8 = 0;
/// The same each time: for a second the peer's kernel refuses to learn another one for an address.
const MAC: [u8; 6] = [2, 0, 10, 98, 1, 2];

/// Memory and bells of one stack; each role maps what is its own.
pub(super) struct Rig {
    client: Pair,
    direct: Pair,
    driver: Pair,
    frames: OwnedFd,
    counters: OwnedFd,
    /// Of the application, `inet` and the driver.
    bells: [(Doorbell, Ringer); 3],
    device: Opened,
    secret: [u8; 16],
    address: Ipv4Addr,
    start: Instant,
}

/// Two memfds: the first written by whoever the layout names first.
struct Pair([OwnedFd; 2], [usize; 2]);

pub(super) fn memory(bytes: usize) -> io::Result<OwnedFd> {
    let memory = memfd_create("hikyaku-lab", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, bytes as u64)?;
    Ok(memory)
}

fn secret() -> io::Result<[u8; 16]> {
    let mut secret = [0; 16];
    let [one, two, three] = [random_mac()?, random_mac()?, random_mac()?];
    for (place, byte) in secret.iter_mut().zip(one.into_iter().chain(two).chain(three)) {
        *place = byte;
    }
    Ok(secret)
}

impl Pair {
    fn new(bytes: [usize; 2]) -> io::Result<Self> {
        Ok(Self([memory(bytes[0])?, memory(bytes[1])?], bytes))
    }

    /// As side 0 or 1 maps it.
    fn map(&self, side: usize) -> io::Result<Channel> {
        let Self(memories, bytes) = self;
        let other = 1 - side;
        Channel::map(memories[side].as_fd(), bytes[side], memories[other].as_fd(), bytes[other])
    }
}

impl Rig {
    /// Over a TAP interface that was opened in the peer's namespace.
    pub(super) fn new(device: Opened, address: Ipv4Addr) -> io::Result<Self> {
        use layout::{client, direct, driver};
        Ok(Self {
            client: Pair::new([client::CLIENT_BYTES, client::INET_BYTES])?,
            direct: Pair::new([direct::CLIENT_BYTES, direct::NIC_BYTES])?,
            driver: Pair::new([driver::INET_BYTES, driver::NIC_BYTES])?,
            frames: memory(FRAMES_BYTES)?,
            counters: memory(COUNTERS_BYTES)?,
            bells: [Doorbell::new()?, Doorbell::new()?, Doorbell::new()?],
            device,
            secret: secret()?,
            address,
            start: Instant::now(),
        })
    }

    pub(super) fn now(&self) -> Time {
        Time(self.start.elapsed().as_micros() as u64)
    }

    /// The protocol server; its state lies on the heap and stays until the process ends.
    pub(super) fn server(&self) -> io::Result<Server<'static>> {
        let capacity = capacity(1, 1);
        let memory = Box::leak(Box::new(inet::Owned::new(&capacity)));
        let settings = Settings {
            addresses: vec![(IpAddr::V4(self.address), 24)],
            gateways: Vec::new(),
            // Another one each time, as for `net up`: a sequence that the peer's TIME-WAIT knows costs a second.
            secret: self.secret,
        };
        let mut server = Server::new(memory.memory(), &capacity, &settings, self.counters()?, self.now());
        let frames = Arc::new(Region::shared(self.frames.as_fd(), FRAMES_BYTES, false)?);
        server.add_interface(INTERFACE, self.driver.map(0)?, frames, self.bells[Self::NIC].1.another()?);
        server.add_client(CLIENT, &self.client.map(1)?, self.bells[0].1.another()?, None);
        Ok(server)
    }

    pub(super) fn counters(&self) -> io::Result<Page> {
        Ok(Page::new(Arc::new(Region::shared(self.counters.as_fd(), COUNTERS_BYTES, true)?)))
    }

    pub(super) fn driver(&self) -> io::Result<Driver> {
        let mut maps =
            Maps::new(self.driver.map(1)?, self.frames.as_fd(), self.bells[Self::INET].1.another()?)?;
        maps.add_client(CLIENT, self.direct.map(1)?, self.bells[0].1.another()?)?;
        let device = Device::new(self.device.descriptor.try_clone()?, &Kind::Tap, self.device.mtu);
        let link = Link { mac: MAC, mtu: self.device.mtu, segments: true };
        Ok(Driver::new(maps, device, link, 1))
    }

    /// The application's library.
    pub(super) fn stack(&self, servers: Box<dyn Servers>) -> io::Result<Stack> {
        Stack::from_parts(Parts {
            addresses: vec![(IpAddr::V4(self.address), 24)],
            channel: self.client.map(0)?,
            direct: self.direct.map(0)?,
            received: Arc::new(Region::shared(self.frames.as_fd(), FRAMES_BYTES, false)?),
            bell: Doorbell::from_descriptor(self.bells[0].0.as_fd().try_clone_to_owned()?),
            inet_bell: self.bells[Self::INET].1.another()?,
            control: None,
            servers,
        })
    }

    pub(super) const INET: usize = 1;
    pub(super) const NIC: usize = 2;

    /// Of the application (0), [`Self::INET`] or [`Self::NIC`].
    pub(super) fn bell(&self, of: usize) -> &Doorbell {
        &self.bells[of].0
    }

    pub(super) fn ring(&self, of: usize) {
        self.bells[of].1.ring();
    }

    pub(super) fn add_region_to_server(
        &self,
        server: &mut Server<'_>,
        region: u32,
        generation: u32,
        bytes: u32,
    ) -> io::Result<()> {
        let is_added = server.add_region(CLIENT, region, generation, bytes);
        is_added.then_some(()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    pub(super) fn add_region_to_driver(
        &self,
        driver: &mut Driver,
        region: u32,
        generation: u32,
        memory: BorrowedFd<'_>,
        bytes: u32,
    ) -> io::Result<()> {
        driver.maps().add_region(CLIENT, region, generation, memory, bytes)
    }

    /// All three roles in this process: whenever the application waits, `inet` and the driver do a turn.
    pub(super) fn one_process(self) -> io::Result<Stack> {
        let (server, driver) = (self.server()?, self.driver()?);
        let rig = Arc::new(self);
        let together = Together { rig: Arc::clone(&rig), server, driver, regions: 0 };
        rig.stack(Box::new(together))
    }
}

/// Servers that run in the application's process.
struct Together {
    rig: Arc<Rig>,
    server: Server<'static>,
    driver: Driver,
    regions: u32,
}

impl Servers for Together {
    fn register(&mut self, memory: BorrowedFd<'_>, bytes: u32) -> io::Result<(u32, u32)> {
        let region = self.regions;
        self.regions += 1;
        self.driver.maps().add_region(CLIENT, region, 1, memory, bytes)?;
        if !self.server.add_region(CLIENT, region, 1, bytes) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok((region, 1))
    }

    fn are_here(&self) -> bool {
        true
    }

    fn turn(&mut self) {
        let now = self.rig.now();
        self.server.turn(now);
        // A driver whose device is gone ends the experiment by its timeout.
        if self.driver.turn().is_ok_and(|has_worked| has_worked) {
            self.server.turn(now);
        }
    }
}
