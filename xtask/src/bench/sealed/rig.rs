//! Our target under one protection or another, and our initiator against it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::bench::ends::run::Sample;
use crate::bench::peers::Shape;
use crate::harness::process::Surroundings;
use crate::harness::{Context, Disk, Output, Served, Target, program, run, scratch};

const RUN_LIMIT: Duration = Duration::from_secs(120);
/// Size of each LUN: one to read, one to write.
pub(in crate::bench) const LUN_BYTES: u64 = 256 << 20;
/// Seed of what the LUN for reading holds.
const PATTERN: &str = "3";
/// Where a target listens that is not on the loopback address only.
pub(in crate::bench) const PORT: u16 = 3260;

/// What protects a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Protection {
    Plain,
    /// CRC32C over headers and data.
    Digests,
    /// SEAL/1, by this suite.
    Sealed(&'static str),
    /// The same, nothing sealed ahead at either end.
    Late(&'static str),
    /// TLS 1.3 in our own processes.
    Tls,
}

impl Protection {
    pub(in crate::bench) const GCM: Self = Self::Sealed("AES-256-GCM");
    pub(in crate::bench) const AEGIS_256: Self = Self::Sealed("AEGIS-256X4");
    pub(in crate::bench) const AEGIS_128: Self = Self::Sealed("AEGIS-128X2");
    pub(in crate::bench) const CHACHA: Self = Self::Sealed("ChaCha20-Poly1305");

    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Digests => "crc32c",
            Self::Sealed("AES-256-GCM") => "gcm",
            Self::Sealed("AEGIS-256X4") => "aegis-256x4",
            Self::Sealed("AEGIS-128X2") => "aegis-128x2",
            Self::Sealed(_) => "chacha",
            Self::Late("AES-256-GCM") => "gcm, not ahead",
            Self::Late("AEGIS-256X4") => "aegis-256x4, not ahead",
            Self::Late(_) => "chacha, not ahead",
            Self::Tls => "tls",
        }
    }

    /// This suite with sealing ahead turned off.
    pub(in crate::bench) fn without_ahead(self) -> Self {
        match self {
            Self::Sealed(suite) => Self::Late(suite),
            other => other,
        }
    }

    /// Which of the targets serves it.
    fn server(self) -> Server {
        match self {
            Self::Plain | Self::Digests => Server::Plain,
            Self::Sealed(_) => Server::Sealed,
            Self::Late(_) => Server::Late,
            Self::Tls => Server::Tls,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Plain,
    Sealed,
    Late,
    Tls,
}

impl Server {
    const ALL: [Self; 4] = [Self::Plain, Self::Sealed, Self::Late, Self::Tls];

    /// What this one and its initiator find in their environment.
    fn variables(self) -> Vec<(&'static str, String)> {
        if self == Self::Late { vec![("HIKYAKU_SEAL_AHEAD", "0".to_owned())] } else { Vec::new() }
    }
}

/// Keys and certificates of both ends, in files.
#[derive(Debug)]
struct Papers {
    dir: tempfile::TempDir,
    target_key: String,
}

impl Papers {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let at = |name: &str| dir.path().join(name);
        let mut keys = Vec::new();
        for name in ["initiator", "target"] {
            let path = at(name).display().to_string();
            let output = context.ours(&["key", "new", &path], RUN_LIMIT)?.success()?;
            keys.push(output.stdout.trim().to_owned());
        }
        let peers = format!("[[peer]]\nname = \"bench\"\npublic-key = \"{}\"\n", keys[0]);
        std::fs::write(at("peers.toml"), peers)?;
        let mut openssl = program("openssl")?;
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        openssl.args(["-days", "2", "-subj", "/CN=bench", "-keyout"]).arg(at("tls.key"));
        run(openssl.arg("-out").arg(at("tls.pem")), RUN_LIMIT)?.success()?;
        Ok(Self { target_key: keys.remove(1), dir })
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn serve_arguments(&self, server: Server) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        match server {
            Server::Plain => words(&["--seal", "off"]),
            Server::Sealed | Server::Late => words(&[
                "--seal",
                "require",
                "--identity",
                &self.file("target"),
                "--peers",
                &self.file("peers.toml"),
            ]),
            Server::Tls => words(&[
                "--seal",
                "off",
                "--tls",
                &format!("{},{}", self.file("tls.pem"), self.file("tls.key")),
            ]),
        }
    }

    /// What stands behind the URL of a LUN.
    fn options(&self, protection: Protection) -> String {
        match protection {
            // Between namespaces our target insists on digests where nothing else protects.
            Protection::Plain => "?header_digest=none&data_digest=none".to_owned(),
            Protection::Digests => "?header_digest=crc32c&data_digest=crc32c".to_owned(),
            Protection::Sealed(suite) | Protection::Late(suite) => {
                format!(",identity={},peer-key={},suite={suite}", self.file("initiator"), self.target_key)
            }
            Protection::Tls => format!(",tls={}", self.file("tls.pem")),
        }
    }
}

/// Targets with the same LUNs under every protection, and where the initiator stands.
#[derive(Debug)]
pub(in crate::bench) struct Rig<'a> {
    context: &'a Context,
    papers: Papers,
    targets: Vec<(Server, Served)>,
    initiator: Surroundings,
    _dir: tempfile::TempDir,
}

impl<'a> Rig<'a> {
    /// Starts what `protections` need, in the surroundings of `target`.
    pub(in crate::bench) fn start(
        context: &'a Context,
        protections: &[Protection],
        target: &Surroundings,
        initiator: &Surroundings,
    ) -> Result<Self> {
        let (dir, papers) = (scratch()?, Papers::new(context)?);
        let mut rig = Self { context, papers, targets: Vec::new(), initiator: initiator.clone(), _dir: dir };
        for server in Server::ALL {
            if protections.iter().any(|protection| protection.server() == server) {
                let port = PORT + rig.targets.len() as u16;
                let served = rig.serve(server, target, port).with_context(|| format!("{server:?} target"))?;
                rig.targets.push((server, served));
            }
        }
        Ok(rig)
    }

    fn image(&self, name: &str) -> Result<PathBuf> {
        let path = self._dir.path().join(name);
        // Written, not sparse: no run shall pay for the allocation.
        let pattern = format!("pattern:{LUN_BYTES}:{PATTERN}");
        let file = format!("{},create,size={LUN_BYTES}", path.display());
        self.context.ours(&["copy", "--quiet", &pattern, &file], RUN_LIMIT)?.success()?;
        Ok(path)
    }

    fn serve(&self, server: Server, surroundings: &Surroundings, port: u16) -> Result<Served> {
        let mut disks = Vec::new();
        for purpose in ["read", "write"] {
            disks.push(Disk::file(&self.image(&format!("{server:?}-{purpose}.img"))?));
        }
        let mut arguments = self.papers.serve_arguments(server);
        if surroundings.network.is_some() {
            arguments.extend(["--listen".to_owned(), format!("0.0.0.0:{port}")]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut surroundings = surroundings.clone();
        surroundings.variables.extend(server.variables());
        let target = Target::serve_with(self.context, &disks, None, &arguments, &surroundings)?;
        Ok(Served::Ours(target))
    }

    fn target(&mut self, protection: Protection) -> Result<&mut Served> {
        let server = protection.server();
        let found = self.targets.iter_mut().find(|(known, _)| *known == server);
        found.map(|(_, served)| served).with_context(|| format!("no {server:?} target"))
    }

    /// Process that serves `protection`.
    pub(in crate::bench) fn pid(&mut self, protection: Protection) -> Result<u32> {
        Ok(self.target(protection)?.pid())
    }

    /// The port at which it listens beyond the loopback address.
    pub(in crate::bench) fn port(&self, protection: Protection) -> u16 {
        let at = self.targets.iter().position(|(server, _)| *server == protection.server());
        PORT + at.unwrap_or(0) as u16
    }

    /// The endpoint of the LUN for reading or writing, at `portal` if that is not where it listens.
    pub(in crate::bench) fn endpoint(
        &mut self,
        protection: Protection,
        write: bool,
        portal: Option<&str>,
    ) -> Result<String> {
        let options = self.papers.options(protection);
        let mut url = self.target(protection)?.url(usize::from(write)).clone();
        if let Some(portal) = portal {
            portal.clone_into(&mut url.portal);
        }
        Ok(format!("{url}{options}"))
    }

    /// One command of ours where the initiator stands, with what `protection` wants in its environment.
    pub(in crate::bench) fn ours(&self, protection: Protection, arguments: &[&str]) -> Result<Output> {
        let mut command = self.context.command();
        self.initiator.apply(&mut command);
        command.envs(protection.server().variables());
        run(command.args(arguments), RUN_LIMIT)
    }

    /// One timed run; every byte verified.
    pub(in crate::bench) fn measure(
        &mut self,
        protection: Protection,
        shape: Shape,
        seconds: f64,
        portal: Option<&str>,
    ) -> Result<Sample> {
        let endpoint = self.endpoint(protection, shape.write, portal)?;
        let pid = self.pid(protection)?.to_string();
        let (block, depth, seconds) = (shape.block.to_string(), shape.depth.to_string(), seconds.to_string());
        let mut arguments = vec!["bench", "path", &endpoint, "--json", "--verify", "--target-pid", &pid];
        arguments.extend(["--block-size", &block, "--depth", &depth, "--seconds", &seconds]);
        arguments.extend(if shape.write { ["--write", "--destroy"] } else { ["--pattern", PATTERN] });
        let result = self.ours(protection, &arguments).and_then(Output::success);
        let output = self.target(protection)?.blame(result)?;
        let value: Value = serde_json::from_str(&output.stdout).context("output of bench path")?;
        let sample = Sample::of(&value["rows"][0]).with_context(|| output.stdout.clone())?;
        ensure!(sample.verified, "not verified: {}", output.stdout);
        Ok(sample)
    }

    /// The certificate and key of TLS, for others.
    pub(in crate::bench) fn certificate(&self) -> (String, String) {
        (self.papers.file("tls.pem"), self.papers.file("tls.key"))
    }

    /// A folder for others' files.
    pub(in crate::bench) fn folder(&self) -> &Path {
        self._dir.path()
    }

    /// That a row is what its name says: a session under this protection, seen by `info`.
    pub(in crate::bench) fn check(&mut self, protection: Protection, portal: Option<&str>) -> Result<()> {
        let (Protection::Sealed(suite) | Protection::Late(suite)) = protection else { return Ok(()) };
        let endpoint = self.endpoint(protection, false, portal)?;
        let told = self.ours(protection, &["info", &endpoint, "--json"])?.success()?.stdout;
        if !told.contains(suite) {
            bail!("info does not tell of {suite}: {told}");
        }
        Ok(())
    }
}
