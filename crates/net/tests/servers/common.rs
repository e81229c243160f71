//! Two stacks in one process, each with its server and its driver on a thread of its own, joined by a wire.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use area::ring::{Consumer, Producer, SLOT_BYTES, Slot, producer_bytes};
use area::{Doorbell, Region, Ringer};
use inet::{Link, Owned, Settings, Time};
use net::control::{self, Wire};
use net::layout::{self, Channel, FRAMES_BYTES};
use net::nic::{Device, Driver, Maps, Opened, wire};
use net::server::{COUNTERS_BYTES, Page, Server, capacity};
use net::socket::{Parts, Servers, Stack};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub(crate) fn memory(bytes: usize) -> OwnedFd {
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, bytes as u64).unwrap();
    memfd
}

/// Memory that two sides share, each of which writes its own.
pub(crate) struct Shared {
    pub(crate) memory: [OwnedFd; 2],
    bytes: [usize; 2],
}

impl Shared {
    pub(crate) fn new(bytes: [usize; 2]) -> Self {
        Self { memory: bytes.map(memory), bytes }
    }

    pub(crate) fn side(&self, own: usize) -> Channel {
        let peer = 1 - own;
        let [mine, others] = [own, peer].map(|side| self.memory[side].as_fd());
        Channel::map(mine, self.bytes[own], others, self.bytes[peer]).unwrap()
    }
}

/// For a test in which no bell counts.
pub(crate) fn ringer() -> Ringer {
    Doorbell::new().unwrap().1
}

/// Number, what the library needs, and the memory that the application writes.
pub(crate) type NewClient = (u32, Parts, OwnedFd);

enum Command {
    Client(Sender<NewClient>),
    Region {
        client: u32,
        memory: OwnedFd,
        bytes: u32,
        answer: Sender<(u32, u32)>,
    },
    /// Other memory in place of what had the number.
    Replace {
        region: u32,
        memory: OwnedFd,
        bytes: u32,
        answer: Sender<(u32, u32)>,
    },
    Gone {
        client: u32,
        drained: Sender<()>,
    },
    RestartDriver(Sender<()>),
    Stop,
}

pub(crate) struct Machine {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    pub(crate) counters: Page,
    pub(crate) address: IpAddr,
}

/// What a stack of one machine is made of, in the machine's thread.
struct Rig {
    driver: Shared,
    frames: OwnedFd,
    inet_bell: Ringer,
    nic_bell: Ringer,
    device: OwnedFd,
    settings: Wire,
    mac: [u8; 6],
    epoch: u32,
    clients: Vec<ClientRig>,
    /// By number.
    regions: Vec<RegionRig>,
}

struct RegionRig {
    client: u32,
    generation: u32,
    memory: OwnedFd,
    bytes: u32,
}

struct ClientRig {
    direct: Shared,
    bell: Ringer,
    is_gone: bool,
}

impl Rig {
    fn start_driver(&mut self) -> Driver {
        self.epoch += 1;
        let channel = self.driver.side(1);
        let mut maps = Maps::new(channel, self.frames.as_fd(), self.inet_bell.another().unwrap()).unwrap();
        for (client, rig) in (0..).zip(&self.clients) {
            if !rig.is_gone {
                maps.add_client(client, rig.direct.side(0), rig.bell.another().unwrap()).unwrap();
            }
        }
        for (region, rig) in (0..).zip(&self.regions) {
            maps.add_region(rig.client, region, rig.generation, rig.memory.as_fd(), rig.bytes).unwrap();
        }
        let kind = control::Device::Wire(self.settings);
        let device = Device::new(self.device.try_clone().unwrap(), &kind, wire::MTU);
        let link = Link { mac: self.mac, mtu: wire::MTU, segments: true };
        Driver::new(maps, device, link, self.epoch)
    }
}

/// Two machines, 10.0.0.1 and 10.0.0.2 (fd00::1 and ::2), each for `clients` applications.
pub(crate) fn pair(settings: Wire, clients: u32) -> [Machine; 2] {
    let [one, two] = wire::pair().unwrap();
    [machine(1, one, settings, clients), machine(2, two, Wire { seed: !settings.seed, ..settings }, clients)]
}

pub(crate) fn new_counters() -> Page {
    Page::new(Arc::new(Region::new(COUNTERS_BYTES, true).unwrap()))
}

fn machine(number: u8, device: Opened, settings: Wire, clients: u32) -> Machine {
    let counters = new_counters();
    let (commands, receiver) = channel();
    let page = counters.clone();
    let thread = std::thread::Builder::new()
        .name(format!("machine {number}"))
        .spawn(move || run(number, device.descriptor, settings, clients, page, &receiver))
        .unwrap();
    Machine { commands, thread: Some(thread), counters, address: IpAddr::from([10, 0, 0, number]) }
}

/// Server and driver of one machine.
pub(crate) struct Host<'m> {
    server: Server<'m>,
    driver: Driver,
    rig: Rig,
    frames: Arc<Region>,
    addresses: Vec<(IpAddr, u8)>,
    clients_max: u32,
    start: Instant,
    inet_bell: Doorbell,
    nic_bell: Doorbell,
    leaving: Vec<(u32, Sender<()>)>,
    /// Hangs up when the host is gone.
    alive: (OwnedFd, OwnedFd),
}

impl<'m> Host<'m> {
    pub(crate) fn new(
        owned: &'m mut Owned,
        number: u8,
        device: OwnedFd,
        settings: Wire,
        clients_max: u32,
        counters: Page,
    ) -> Self {
        let start = Instant::now();
        let addresses =
            vec![([10, 0, 0, number].into(), 24), ([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)].into(), 64)];
        let stack = Settings { addresses: addresses.clone(), gateways: Vec::new(), secret: [number; 16] };
        let capacity = capacity(clients_max, 1);
        let mut server = Server::new(owned.memory(), &capacity, &stack, counters, Time(1));
        let ((inet_bell, inet_other), (nic_bell, nic_other)) =
            (Doorbell::new().unwrap(), Doorbell::new().unwrap());
        let mut rig = Rig {
            driver: Shared::new([layout::driver::INET_BYTES, layout::driver::NIC_BYTES]),
            frames: memory(FRAMES_BYTES),
            inet_bell: inet_other,
            nic_bell: nic_other,
            device,
            settings,
            mac: [2, 0, 0, 0, 0, number],
            epoch: 0,
            clients: Vec::new(),
            regions: Vec::new(),
        };
        let frames = Arc::new(Region::shared(rig.frames.as_fd(), FRAMES_BYTES, false).unwrap());
        server.add_interface(0, rig.driver.side(0), Arc::clone(&frames), rig.nic_bell.another().unwrap());
        let driver = rig.start_driver();
        let leaving = Vec::new();
        let flags = SocketFlags::CLOEXEC;
        let alive = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        Self {
            server,
            driver,
            rig,
            frames,
            addresses,
            clients_max,
            start,
            inet_bell,
            nic_bell,
            leaving,
            alive,
        }
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_micros() as u64 + 1)
    }

    /// A new application; its servers are still to be set.
    pub(crate) fn add_client(&mut self) -> NewClient {
        let client = self.rig.clients.len() as u32;
        let channel = Shared::new([layout::client::CLIENT_BYTES, layout::client::INET_BYTES]);
        let direct = Shared::new([layout::direct::NIC_BYTES, layout::direct::CLIENT_BYTES]);
        let (bell, other) = Doorbell::new().unwrap();
        let copies =
            (self.clients_max > 1).then(|| Arc::new(Region::new(layout::received::BYTES, false).unwrap()));
        self.server.add_client(client, &channel.side(1), other.another().unwrap(), copies.clone());
        self.driver.maps().add_client(client, direct.side(0), other.another().unwrap()).unwrap();
        let parts = Parts {
            addresses: self.addresses.clone(),
            channel: channel.side(0),
            direct: direct.side(1),
            received: copies.unwrap_or_else(|| Arc::clone(&self.frames)),
            bell,
            inet_bell: self.rig.inet_bell.another().unwrap(),
            control: Some(self.alive.1.try_clone().unwrap()),
            servers: Box::new(Nobody),
        };
        self.rig.clients.push(ClientRig { direct, bell: other, is_gone: false });
        (client, parts, channel.memory[0].try_clone().unwrap())
    }

    pub(crate) fn add_region(&mut self, client: u32, memory: OwnedFd, bytes: u32) -> (u32, u32) {
        let region = self.rig.regions.len() as u32;
        self.rig.regions.push(RegionRig {
            client,
            generation: 0,
            memory: memory.try_clone().unwrap(),
            bytes,
        });
        self.replace_region(region, memory, bytes)
    }

    /// As the supervisor does with the number of memory that is gone.
    fn replace_region(&mut self, region: u32, memory: OwnedFd, bytes: u32) -> (u32, u32) {
        let rig = &mut self.rig.regions[region as usize];
        *rig = RegionRig { client: rig.client, generation: rig.generation + 1, memory, bytes };
        self.driver.maps().add_region(rig.client, region, rig.generation, rig.memory.as_fd(), bytes).unwrap();
        assert!(self.server.add_region(rig.client, region, rig.generation, bytes));
        (region, rig.generation)
    }

    /// `false`: stop.
    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Client(answer) => answer.send(self.add_client()).unwrap(),
            Command::Region { client, memory, bytes, answer } => {
                answer.send(self.add_region(client, memory, bytes)).unwrap();
            }
            Command::Replace { region, memory, bytes, answer } => {
                answer.send(self.replace_region(region, memory, bytes)).unwrap();
            }
            Command::Gone { client, drained } => {
                self.server.client_gone(client, self.now());
                self.rig.clients[client as usize].is_gone = true;
                self.leaving.push((client, drained));
            }
            Command::RestartDriver(done) => {
                self.driver = self.rig.start_driver();
                let _ = done.send(());
            }
            Command::Stop => return false,
        }
        true
    }

    /// Whether there was work.
    pub(crate) fn turn(&mut self) -> bool {
        let now = self.now();
        let Self { server, driver, .. } = self;
        while let Some(client) = server.faulty() {
            server.client_gone(client, now);
        }
        self.leaving.retain(|(client, drained)| {
            let is_drained = server.is_drained(*client);
            if is_drained {
                driver.maps().remove_client(*client);
                let _ = drained.send(());
            }
            !is_drained
        });
        let has_worked = server.turn(now) > 0;
        driver.turn().unwrap() || has_worked
    }

    fn sleep(&mut self) {
        let now = self.now();
        let Self { server, driver, rig, .. } = self;
        if server.arm() && driver.arm().unwrap() {
            let deadlines = [
                server.deadline(now).map(|deadline| Duration::from_micros(deadline.since(now))),
                driver.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now())),
                // Commands ring no bell.
                Some(Duration::from_millis(2)),
            ];
            let time = Timespec::try_from(deadlines.into_iter().flatten().min().unwrap()).unwrap();
            let mut ready = [
                PollFd::new(&self.inet_bell, PollFlags::IN),
                PollFd::new(&self.nic_bell, PollFlags::IN),
                PollFd::new(&rig.device, driver.interest()),
            ];
            let _ = poll(&mut ready, Some(&time));
            self.inet_bell.silence();
            self.nic_bell.silence();
        }
        driver.disarm();
    }
}

fn run(
    number: u8,
    device: OwnedFd,
    settings: Wire,
    clients_max: u32,
    counters: Page,
    commands: &Receiver<Command>,
) {
    let mut owned = Owned::new(&capacity(clients_max, 1));
    let mut host = Host::new(&mut owned, number, device, settings, clients_max, counters);
    // The driver attaches in the first, and the server sees it in the second: before there are applications.
    host.turn();
    host.turn();
    loop {
        match commands.try_recv() {
            Ok(command) => {
                if !host.obey(command) {
                    return;
                }
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
        if !host.turn() {
            host.sleep();
        }
    }
}

/// Takes the place of the servers until [`Machine::stack`] sets the real ones.
struct Nobody;

impl Servers for Nobody {
    fn register(&mut self, _: BorrowedFd<'_>, _: u32) -> std::io::Result<(u32, u32)> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

struct Commands(Sender<Command>, u32);

impl Servers for Commands {
    fn register(&mut self, memory: BorrowedFd<'_>, bytes: u32) -> std::io::Result<(u32, u32)> {
        let (answer, answered) = channel();
        let memory = memory.try_clone_to_owned()?;
        self.0.send(Command::Region { client: self.1, memory, bytes, answer }).unwrap();
        Ok(answered.recv().unwrap())
    }
}

impl Machine {
    fn client(&self) -> NewClient {
        let (answer, answered) = channel();
        self.commands.send(Command::Client(answer)).unwrap();
        answered.recv().unwrap()
    }

    /// A new application, and its number.
    pub(crate) fn stack(&self) -> (Stack, u32) {
        let (client, parts, _) = self.client();
        let servers = Box::new(Commands(self.commands.clone(), client));
        (Stack::from_parts(Parts { servers, ..parts }).unwrap(), client)
    }

    /// A new application that writes what it likes.
    pub(crate) fn raw(&self) -> Raw {
        let (client, parts, own) = self.client();
        let own = Region::shared(own.as_fd(), layout::client::CLIENT_BYTES, true).unwrap();
        let (requests, completions) = layout::client::application(&parts.channel);
        let mut servers = Commands(self.commands.clone(), client);
        let memory = memory(REGION_BYTES);
        let region = servers.register(memory.as_fd(), REGION_BYTES as u32).unwrap();
        Raw { requests, completions, inet_bell: parts.inet_bell, client, region, memory, own }
    }

    /// The number of memory is used again; returns its next generation.
    pub(crate) fn replace(&self, region: u32, memory: OwnedFd, bytes: u32) -> (u32, u32) {
        let (answer, answered) = channel();
        self.commands.send(Command::Replace { region, memory, bytes, answer }).unwrap();
        answered.recv().unwrap()
    }

    /// An application has died; returns when no frame at the driver refers to its memory.
    pub(crate) fn gone(&self, client: u32) {
        let (drained, waits) = channel();
        self.commands.send(Command::Gone { client, drained }).unwrap();
        waits.recv_timeout(Duration::from_secs(20)).unwrap();
    }

    /// The driver is dropped where it stands, and another one starts; returns then.
    pub(crate) fn restart_driver(&self) {
        let (done, waits) = channel();
        self.commands.send(Command::RestartDriver(done)).unwrap();
        waits.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        let result = self.thread.take().unwrap().join();
        assert!(result.is_ok() || std::thread::panicking(), "a machine has panicked");
    }
}

/// Of the region of a [`Raw`].
pub(crate) const REGION_BYTES: usize = 1 << 20;

pub(crate) struct Raw {
    pub(crate) requests: Producer,
    pub(crate) completions: Consumer,
    pub(crate) inet_bell: Ringer,
    pub(crate) client: u32,
    pub(crate) region: (u32, u32),
    /// Of the region.
    pub(crate) memory: OwnedFd,
    own: Region,
}

impl Raw {
    pub(crate) fn ask(&mut self, request: net::slot::Request) {
        while self.requests.room().unwrap() == 0 {
            std::thread::yield_now();
        }
        self.requests.push(&request.into());
        if self.requests.publish() {
            self.inet_bell.ring();
        }
    }

    /// The next completion; `None` if there is none for a while.
    pub(crate) fn take(&mut self, wait: Duration) -> Option<net::slot::Completion> {
        let until = Instant::now() + wait;
        loop {
            if let Some(slot) = self.completions.take().unwrap() {
                self.completions.consume();
                return Some(slot.into());
            }
            if Instant::now() > until {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// A request and its answer.
    pub(crate) fn answer(&mut self, request: net::slot::Request) -> net::slot::Completion {
        self.ask(request);
        self.take(Duration::from_secs(10)).expect("an answer")
    }
}

impl Raw {
    /// The answer with a ticket, other completions left out.
    pub(crate) fn answer_of(&mut self, request: net::slot::Request, ticket: u64) -> net::slot::Completion {
        self.ask(request);
        loop {
            let completion = self.take(Duration::from_secs(10)).expect("an answer");
            if completion.ticket == ticket {
                return completion;
            }
        }
    }

    /// Says that more slots are published than the ring has.
    pub(crate) fn publish_too_much(&mut self) {
        self.own_word(0).store(1 << 40, Ordering::Relaxed);
        self.inet_bell.ring();
    }

    /// Says that more completions are consumed than were published, and causes so many that the server must look.
    pub(crate) fn consume_too_much(&mut self) {
        self.own_word(producer_bytes(layout::REQUESTS) / 8).store(1 << 40, Ordering::Relaxed);
        for _ in 0..layout::REQUESTS + 40 {
            self.ask(net::slot::Request::default());
        }
    }

    /// Publishes a slot and goes on writing into it, and into others, while it is read.
    pub(crate) fn scribble(&mut self, slot: &Slot, is_ordinary: bool) {
        if self.requests.room().unwrap() == 0 {
            std::thread::yield_now();
            return;
        }
        let at = SLOT_BYTES / 8 * (1 + (self.requests.position() % layout::REQUESTS as u64) as usize);
        self.requests.push(slot);
        let bell = self.requests.publish();
        if !is_ordinary {
            for _ in 0..20 {
                for (word, value) in slot.iter().enumerate() {
                    self.own_word(at + word).store(value.rotate_left(32), Ordering::Relaxed);
                }
            }
        }
        if bell {
            self.inet_bell.ring();
        }
    }

    fn own_word(&self, word: usize) -> &AtomicU64 {
        assert!(word * 8 < layout::client::CLIENT_BYTES);
        // SAFETY: an aligned word inside of the mapping, which lives as long as `self`.
        unsafe { &*self.own.as_ptr().add(word * 8).cast::<AtomicU64>() }
    }
}
