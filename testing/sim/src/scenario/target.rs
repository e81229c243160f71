//! The target: a machine, its disks, and the server that runs on it. LUN 0 lies on its disk, or on a sealed volume there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use block::remote::Links;
use node::initiator::{DigestPolicy, IscsiMedium, Options, Url};
use node::target::{Access, LocalUsers, LunConfig, Server, ServerConfig, TargetConfig};

use super::volume::{Left, Volume};
use crate::disk::Disk;
use crate::random::Random;
use crate::state::MachineId;
use crate::world::Context;

pub(super) const IQN: &str = "iqn.2026-11.example:sim";
pub(super) const ADDRESS: &str = "10.0.0.1:3260";

/// See the module. [`Target::boot`], then [`Target::kill`] or [`Target::end`], and again.
pub(crate) struct Target {
    context: Context,
    machine: MachineId,
    pub(crate) disk: Disk,
    /// What LUN 0 lies on; `None`: the disk as it is.
    volume: Option<Volume>,
    /// Disks of LUNs 1 and above.
    more: Vec<Disk>,
    config: ServerConfig,
    server: Option<Server>,
    /// How the volume was left before the server started.
    left: Option<Left>,
    /// The last server ended in order.
    has_ended: bool,
}

impl Target {
    /// A target with power, without a running server.
    pub(crate) fn new(
        context: &Context,
        volume: Option<Volume>,
        sectors: u64,
        write_cache: bool,
        random: &mut Random,
    ) -> Self {
        let (name, contents, latency_max) = ("sim:lun", context.fork(), random.pick(&[50, 500, 20_000]));
        let disk = match volume {
            Some(volume) => volume.disk(name, sectors, contents, latency_max),
            None => Disk::new(name, sectors, contents, latency_max),
        };
        context.count(|counters| counters.volumes += u64::from(volume.is_some()));
        Self { volume, ..Self::of(context, disk, write_cache, random) }
    }

    /// The same, with this disk as LUN 0.
    pub(crate) fn of(context: &Context, disk: Disk, write_cache: bool, random: &mut Random) -> Self {
        let lun = lun(0, &disk, write_cache);
        let address: SocketAddr = ADDRESS.parse().expect("an address");
        let config = ServerConfig {
            listen: vec![address],
            advertise: None,
            sealing: None,
            targets: vec![TargetConfig { iqn: IQN.into(), luns: vec![lun], access: Access::default() }],
            local_users: LocalUsers::Any,
            tls: None,
            drain_timeout: Duration::from_secs(5),
            threads: Some(random.within(1..3) as usize),
        };
        let machine = context.add_machine();
        Self {
            context: context.clone(),
            machine,
            disk,
            volume: None,
            more: Vec::new(),
            config,
            server: None,
            left: None,
            has_ended: false,
        }
    }

    /// Adds a LUN; to be called before the server starts.
    pub(crate) fn add(&mut self, disk: &Disk, write_cache: bool) {
        self.more.push(disk.clone());
        self.config.targets[0].luns.push(lun(self.more.len() as u16, disk, write_cache));
    }

    fn disks(&self) -> impl Iterator<Item = &Disk> {
        [&self.disk].into_iter().chain(&self.more)
    }

    pub(crate) fn boot(&mut self) {
        self.left = self.look();
        match self.start() {
            Ok(server) => self.server = Some(server),
            Err(error) => self.context.fail(format!("the target does not start: {error}")),
        }
    }

    /// Boots into a power cut while the volume is opened, as after a failure of the mains. To be followed by [`Self::boot`].
    pub(crate) fn boot_in_vain(&mut self, random: &mut Random) {
        self.disk.fail_after(Some(random.magnitude(1..40)));
        self.server = self.start().ok();
        self.disk.fail_after(None);
        self.kill(true);
    }

    fn start(&self) -> Result<Server, String> {
        let mut config = self.config.clone();
        self.disks().for_each(Disk::start);
        let start = || {
            if let Some(volume) = self.volume {
                config.targets[0].luns[0].medium =
                    volume.medium(&self.disk).map_err(|error| error.to_string())?;
            }
            Server::start(config).map_err(|error| error.to_string())
        };
        self.context.on(self.machine, start)
    }

    /// How the volume was left. A server that ended in order has closed it, if it wrote.
    fn look(&mut self) -> Option<Left> {
        let has_ended = std::mem::take(&mut self.has_ended);
        let left = self.sound(self.volume?.left(&self.disk))??;
        self.context.count(|counters| {
            counters.volumes_unclean += u64::from(!left.is_closed);
            counters.volumes_closed += u64::from(has_ended && left.is_closed);
        });
        let has_written = self.left.is_none_or(|before| before.session < left.session);
        if has_ended && has_written && !left.is_closed {
            self.context.fail("the target ended in order and did not close the volume");
        }
        Some(left)
    }

    /// What was read, or a failure of the run.
    fn sound<T>(&self, read: Result<T, String>) -> Option<T> {
        read.map_err(|text| self.context.fail(format!("the volume on the disk: {text}"))).ok()
    }

    /// What the disk of LUN 0 holds, read through its volume; to be called while no server runs. `None`: the run has failed.
    pub(crate) fn contents(&self) -> Option<Vec<u8>> {
        let Some(volume) = self.volume else { return Some(self.disk.contents()) };
        let found = self.sound(volume.read(&self.disk, true))?;
        if volume.has_memory() && self.sound(volume.read(&self.disk, false))? != found {
            self.context.fail("who only reads the volume sees what the next writer does not find");
        }
        Some(found)
    }

    /// Whether writes that were acknowledged and not flushed are lost with the server's process.
    pub(crate) fn has_memory(&self) -> bool {
        self.volume.is_some_and(Volume::has_memory)
    }

    /// Kills the server without notice, with the power of the machine or without.
    pub(crate) fn kill(&mut self, power: bool) {
        for disk in self.disks() {
            let cut = disk.stop(power);
            self.context.count(|counters| {
                counters.sectors_lost += cut.lost;
                counters.sectors_between += cut.between;
                counters.requests_torn += cut.torn;
            });
        }
        self.context.count(|counters| {
            *(if power { &mut counters.target_cuts } else { &mut counters.target_kills }) += 1;
        });
        self.context.kill(self.machine, power);
        if let Some(server) = self.server.take() {
            // Its result does not matter: the server was killed.
            let _ = server.wait();
        }
    }

    /// Ends the server in order. True if it reports that everything is durable.
    pub(crate) fn end(&mut self, drain: bool) -> bool {
        let Some(server) = self.server.take() else { return true };
        self.context.count(|counters| counters.drains += 1);
        let handle = server.handle();
        if drain {
            handle.drain();
        } else {
            handle.stop();
        }
        match server.wait() {
            Ok(()) => {
                self.has_ended = true;
                true
            }
            Err(error) => {
                self.context.fail(format!("the target did not end in order: {error}"));
                false
            }
        }
    }
}

pub(super) fn naa(number: u16) -> u64 {
    0x3000_0000_0000_0001 + u64::from(number)
}

fn lun(number: u16, disk: &Disk, write_cache: bool) -> LunConfig {
    let config = LunConfig::new(number, Arc::new(disk.clone()), format!("sim{number}"), naa(number));
    LunConfig { write_cache, shared: true, ..config }
}

fn digest(random: &mut Random) -> DigestPolicy {
    if random.one_in(4) { DigestPolicy::Require } else { DigestPolicy::Allow }
}

pub(crate) fn options(name: &str, random: &mut Random) -> Options {
    Options {
        timeout: Duration::from_secs(random.pick(&[20, 60, 300])),
        header_digest: digest(random),
        data_digest: digest(random),
        sessions: random.pick(&[Links::One, Links::One, Links::Fixed(2), Links::Fixed(4)]),
        ..Options::new(format!("iqn.2026-11.example:{name}"))
    }
}

/// The LUN's medium in one process of an initiator.
pub(crate) fn medium(options: &Options) -> IscsiMedium {
    let url = Url::parse(&format!("iscsi://{ADDRESS}/{IQN}/0")).expect("a URL");
    IscsiMedium::new(url, options.clone(), false).expect("a LUN")
}
