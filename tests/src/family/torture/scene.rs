//! A target on a file, its clients, and the disturbances: a case of its own, and a run of `mutants` on defective
//! programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::RngExt;
use rand::rngs::StdRng;
use tempfile::TempDir;

use crate::files::empty_file;
use crate::process::Surroundings;
use crate::relay::Relay;
use crate::seal::Keys;
use crate::target::private_file;
use crate::{Context, Output, Running, free_port, scratch};

pub(super) const BYTES: u64 = 8 << 20;
const IQN: &str = "iqn.2026-11.org.example:torture";
pub(super) const TIMEOUT: &str = "timeout=20s";
/// A start flushes the state file, which takes many seconds on a disk that is busy with other writes.
pub(crate) const READY_LIMIT: Duration = Duration::from_secs(60);
/// Time limit beyond the clients' work, for filling, checking and reconnecting.
pub(super) const SLACK: Duration = Duration::from_secs(120);
/// Time until a target is disturbed, in milliseconds.
pub(super) const LIFE_MS: std::ops::Range<u64> = 100..400;
/// Delay until the sessions exist; immediately failing logins are another test.
pub(super) const LOGIN: Duration = Duration::from_secs(1);

/// Delay of a second signal after the first.
const SECOND_SIGNAL_DELAY: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disturbance {
    None,
    /// SIGKILL, then a new target on the same port.
    Kill,
    /// SIGTERM, sometimes followed by a second one, then a new target on the same port.
    Stop,
    Cut,
    /// The crash layer ends the target like a machine without power.
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opener {
    Target,
    Initiator,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) disturbance: Disturbance,
    pub(crate) options: &'static str,
    pub(crate) arguments: &'static [&'static str],
    pub(crate) portable: bool,
    /// The suite of sealed sessions; `None` if plain.
    pub(crate) seal: Option<&'static str>,
    /// Who opens the sealed volume on the file; `None` if it holds none.
    pub(crate) volume: Option<Opener>,
    pub(crate) weight: u64,
    pub(crate) expect: i32,
}

pub(crate) const KILL: Scene = Scene {
    name: "kill",
    disturbance: Disturbance::Kill,
    options: "",
    arguments: &[],
    portable: false,
    seal: None,
    volume: None,
    weight: 1,
    expect: 0,
};
pub(crate) const POWER: Scene = Scene {
    name: "power",
    disturbance: Disturbance::Power,
    arguments: &["--clients", "2", "--cuts"],
    ..KILL
};
pub(crate) const TWO_CLIENTS: &[&str] = &["--clients", "2"];
pub(crate) const CUT: Scene = Scene { name: "cut", disturbance: Disturbance::Cut, ..KILL };
/// Over the crash layer: everything that an orderly end does not flush is lost.
pub(crate) const STOP: Scene =
    Scene { name: "stop", disturbance: Disturbance::Stop, options: ",crash=never", ..KILL };

/// A directory with a file, and a target on it that can be restarted.
pub(crate) struct Stand {
    pub(crate) dir: TempDir,
    pub(crate) file: PathBuf,
    port: u16,
    surroundings: Surroundings,
    seal: Option<Seal>,
    volume: Option<Volume>,
}

/// A volume on the file of a stand.
struct Volume {
    opener: Opener,
    /// Options of the endpoint that open it.
    options: String,
}

/// Keys and suite of sealed sessions.
struct Seal {
    /// Options of `serve`.
    arguments: Vec<String>,
    /// Options of the LUN's URL.
    options: String,
}

impl Seal {
    /// Makes keys for both sides in `dir`.
    fn new(context: &Context, dir: &Path, suite: &str) -> Result<Self> {
        let [target, initiator] = ["target", "initiator"].map(|name| Keys::new(context, dir, name));
        let (target, initiator) = (target?, initiator?);
        let peers = dir.join("peers.toml");
        std::fs::write(&peers, initiator.peer("torture", ""))?;
        let peers = peers.display().to_string();
        let arguments = ["--seal", "require", "--identity", &target.path(), "--peers", &peers];
        let options =
            format!(",seal=require,identity={},peer-key={},suite={suite}", initiator.path(), target.public);
        Ok(Self { arguments: arguments.map(str::to_owned).to_vec(), options })
    }
}

impl Stand {
    pub(crate) fn new(surroundings: &Surroundings) -> Result<Self> {
        let dir = scratch()?;
        let file = empty_file(dir.path().join("disk.img"), BYTES)?;
        Ok(Self {
            dir,
            file,
            port: free_port()?,
            surroundings: surroundings.clone(),
            seal: None,
            volume: None,
        })
    }

    /// Makes a volume for `BYTES` of data on the file.
    fn format(&mut self, context: &Context, opener: Opener) -> Result<()> {
        const HEADER_BYTES: u64 = 16 << 20;
        empty_file(&self.file, HEADER_BYTES + BYTES)?;
        let secret = private_file(self.dir.path().join("pw"), "torture")?;
        let mut command = self.command(context);
        command.args(["volume", "format", "--type", "luks2", "--pbkdf", "pbkdf2", "--iter-time", "1"]);
        command.arg("--password-file").args([&secret, &self.file]);
        crate::run(&mut command, READY_LIMIT)?.success()?;
        self.volume =
            Some(Volume { opener, options: format!(",volume=luks2,password-file={}", secret.display()) });
        Ok(())
    }

    /// Options of the volume for an endpoint of `opener`.
    fn volume_of(&self, opener: Opener) -> &str {
        let volume = self.volume.as_ref().filter(|volume| volume.opener == opener);
        volume.map_or("", |volume| &volume.options)
    }

    pub(crate) fn command(&self, context: &Context) -> Command {
        let mut command = context.command_in(self.dir.path());
        self.surroundings.apply(&mut command);
        command
    }

    pub(crate) fn serve(&self, context: &Context, options: &str) -> Result<Running> {
        let mut command = self.command(context);
        command.args(["serve", "--iqn", IQN, "--listen", &self.portal()]);
        command.args(self.seal.iter().flat_map(|seal| &seal.arguments));
        command.arg(format!("{}{options}{}", self.file.display(), self.volume_of(Opener::Target)));
        let mut running = Running::start(&mut command)?;
        match running.wait_stdout("URL", READY_LIMIT, |text| text.contains('\n').then_some(())) {
            // Clients may reconnect and the power fail before the target has printed anything.
            Err(_) if options.contains("crash=every") && running.ended() => {}
            result => result?,
        }
        Ok(running)
    }

    pub(crate) fn torture(
        &self,
        context: &Context,
        url: &str,
        arguments: &[&str],
        seed: u64,
    ) -> Result<Running> {
        let mut command = self.command(context);
        command.args(["torture", url, "--destroy", "--json", "--seed", &seed.to_string()]).args(arguments);
        Running::start(&mut command)
    }

    fn portal(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// URL of the LUN.
    pub(crate) fn url(&self) -> String {
        self.url_at(&self.portal())
    }

    /// URL of the LUN at another portal.
    fn url_at(&self, portal: &str) -> String {
        let options = self.seal.as_ref().map_or("", |seal| &seal.options);
        format!("iscsi://{portal}/{IQN}/0,{TIMEOUT}{options}{}", self.volume_of(Opener::Initiator))
    }
}

/// Runs a scene in these surroundings; returns the output of `torture` and the number of disturbances.
pub(crate) fn play(
    context: &Context,
    scene: &Scene,
    seconds: u64,
    surroundings: &Surroundings,
) -> Result<(Output, u64)> {
    let mut rng = context.rng(&format!("torture/{}", scene.name));
    let mut surroundings = surroundings.clone();
    surroundings.variables.extend(scene.portable.then(|| ("HIKYAKU_IO", "portable".to_owned())));
    let mut stand = Stand::new(&surroundings)?;
    stand.seal = scene.seal.map(|suite| Seal::new(context, stand.dir.path(), suite)).transpose()?;
    if let Some(opener) = scene.volume {
        stand.format(context, opener)?;
    }
    let options = |rng: &mut StdRng| match scene.disturbance {
        Disturbance::Power => {
            format!("{},crash=every=300:seed={}", scene.options, rng.random_range(0..1_000_000u32))
        }
        _ => scene.options.to_owned(),
    };
    let mut target = stand.serve(context, &options(&mut rng))?;
    let relay = Relay::start(stand.port)?;
    let url = match scene.disturbance {
        Disturbance::Cut => stand.url_at(&relay.portal()),
        _ => stand.url(),
    };
    let seed = rng.random_range(0..u64::from(u32::MAX));
    let time = seconds.to_string();
    let arguments = [&["--seconds", &time], scene.arguments].concat();
    let mut torture = stand.torture(context, &url, &arguments, seed)?;
    let mut disturbed = 0;
    // No disturbances near the end, so that the run can complete.
    let calm = Instant::now() + Duration::from_secs(seconds) + SLACK / 4;
    let mut next = Instant::now() + LOGIN;
    while !torture.ended() && Instant::now() < calm {
        std::thread::sleep(Duration::from_millis(2));
        if scene.disturbance == Disturbance::Power {
            if target.ended() {
                target.finish(READY_LIMIT)?.expect(137)?;
                disturbed += 1;
                target = stand.serve(context, &options(&mut rng))?;
            }
            continue;
        }
        if scene.disturbance == Disturbance::None || Instant::now() < next {
            continue;
        }
        match scene.disturbance {
            Disturbance::Cut => disturbed += relay.cut() as u64,
            how => {
                let signal = if how == Disturbance::Stop { libc::SIGTERM } else { libc::SIGKILL };
                target.signal(signal)?;
                if how == Disturbance::Stop && rng.random_bool(0.5) {
                    std::thread::sleep(SECOND_SIGNAL_DELAY);
                    // The target may have ended already.
                    let _ = target.signal(signal);
                }
                let ended = target.finish(READY_LIMIT)?;
                if how == Disturbance::Stop {
                    ended.expect(0)?;
                }
                target = stand.serve(context, scene.options)?;
                disturbed += 1;
            }
        }
        next = Instant::now() + Duration::from_millis(rng.random_range(LIFE_MS));
    }
    if target.ended() {
        let log = target.finish(READY_LIMIT)?;
        target = stand.serve(context, scene.options).with_context(|| log.stderr)?;
    }
    let output = torture.finish(SLACK)?;
    drop(target);
    Ok((output, disturbed))
}
