//! `hikyaku serve` under each protection, and `hikyaku` as its initiator.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::RUN_LIMIT;
use crate::ends::run::{LUN_BYTES, PATTERN, Sample};
use crate::peers::Shape;
use harness::files::side_by_side;
use harness::process::Surroundings;
use harness::seal::Keys;
use harness::{Context, Disk, Output, Served, Target, program, run, scratch};

/// Port of a target that listens beyond the loopback address.
pub(crate) const PORT: u16 = 3260;

/// The LUNs of a target, for reads and for writes.
const IMAGES: [&str; 2] = ["read", "write"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    Plain,
    /// CRC32C over headers and data.
    Digests,
    /// SEAL/1 with this suite.
    Sealed(&'static str),
    /// SEAL/1 with this suite, without sealing ahead at either end.
    Late(&'static str),
    /// TLS 1.3 inside the `hikyaku` processes.
    Tls,
}

impl Protection {
    pub(crate) const GCM: Self = Self::Sealed("AES-256-GCM");
    pub(crate) const AEGIS_256: Self = Self::Sealed("AEGIS-256X4");
    pub(crate) const AEGIS_128: Self = Self::Sealed("AEGIS-128X2");
    pub(crate) const CHACHA: Self = Self::Sealed("ChaCha20-Poly1305");

    pub(crate) fn name(self) -> &'static str {
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

    pub(crate) fn without_ahead(self) -> Self {
        match self {
            Self::Sealed(suite) => Self::Late(suite),
            other => other,
        }
    }

    /// The protection whose target also serves this one: the initiator chooses digests and the suite.
    fn server(self) -> Self {
        match self {
            Self::Plain | Self::Digests => Self::Plain,
            Self::Sealed(_) => Self::GCM,
            Self::Late(_) => Self::GCM.without_ahead(),
            Self::Tls => Self::Tls,
        }
    }

    fn variables(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Late(_) => vec![("HIKYAKU_SEAL_AHEAD", "0".to_owned())],
            _ => Vec::new(),
        }
    }
}

#[derive(Debug)]
struct Credentials {
    dir: tempfile::TempDir,
    initiator: Keys,
    target: Keys,
}

impl Credentials {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let at = |name: &str| dir.path().join(name);
        let [initiator, target] = ["initiator", "target"].map(|name| Keys::new(context, dir.path(), name));
        let (initiator, target) = (initiator?, target?);
        std::fs::write(at("peers.toml"), initiator.peer("bench", ""))?;
        let mut openssl = program("openssl")?;
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        openssl.args(["-days", "2", "-subj", "/CN=bench", "-keyout"]).arg(at("tls.key"));
        run(openssl.arg("-out").arg(at("tls.pem")), RUN_LIMIT)?.success()?;
        Ok(Self { dir, initiator, target })
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn serve_arguments(&self, server: Protection) -> Vec<String> {
        let (identity, peers) = (self.target.path(), self.file("peers.toml"));
        let tls = format!("{},{}", self.file("tls.pem"), self.file("tls.key"));
        let words: &[&str] = match server {
            Protection::Plain | Protection::Digests => &["--seal", "off"],
            Protection::Sealed(_) | Protection::Late(_) => {
                &["--seal", "require", "--identity", &identity, "--peers", &peers]
            }
            Protection::Tls => &["--seal", "off", "--tls", &tls],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// The suffix of a LUN's URL that selects the protection.
    fn options(&self, protection: Protection) -> String {
        match protection {
            // Between namespaces `hikyaku serve` requires digests where nothing else protects.
            Protection::Plain => "?header_digest=none&data_digest=none".to_owned(),
            Protection::Digests => "?header_digest=crc32c&data_digest=crc32c".to_owned(),
            Protection::Sealed(suite) | Protection::Late(suite) => {
                format!(",identity={},peer-key={},suite={suite}", self.initiator.path(), self.target.public)
            }
            Protection::Tls => format!(",tls={}", self.file("tls.pem")),
        }
    }
}

/// Targets with the same LUNs under every protection, and the environment of the initiator.
#[derive(Debug)]
pub(crate) struct Rig<'a> {
    context: &'a Context,
    credentials: Credentials,
    targets: Vec<(Protection, Served)>,
    initiator: Surroundings,
    _dir: tempfile::TempDir,
}

impl<'a> Rig<'a> {
    pub(crate) fn start(
        context: &'a Context,
        protections: &[Protection],
        target: &Surroundings,
        initiator: &Surroundings,
    ) -> Result<Self> {
        let (dir, credentials) = (scratch()?, Credentials::new(context)?);
        let mut rig =
            Self { context, credentials, targets: Vec::new(), initiator: initiator.clone(), _dir: dir };
        let mut servers: Vec<Protection> = Vec::new();
        for server in protections.iter().map(|protection| protection.server()) {
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
        for name in IMAGES {
            let images: Vec<PathBuf> = servers.iter().map(|server| rig.image(*server, name)).collect();
            // Written, not sparse, so that no run includes the allocation.
            side_by_side(&images, LUN_BYTES)?;
            let pattern = format!("pattern:{LUN_BYTES}:{PATTERN}");
            for image in images {
                let image = image.display().to_string();
                context.ours(&["copy", "--force", "--quiet", &pattern, &image], RUN_LIMIT)?.success()?;
            }
        }
        for (server, port) in servers.into_iter().zip(PORT..) {
            let served = rig.serve(server, target, port).with_context(|| format!("{server:?} target"))?;
            rig.targets.push((server, served));
        }
        Ok(rig)
    }

    fn image(&self, server: Protection, name: &str) -> PathBuf {
        self._dir.path().join(format!("{}-{name}.img", server.name()))
    }

    fn serve(&self, server: Protection, surroundings: &Surroundings, port: u16) -> Result<Served> {
        let disks = IMAGES.map(|name| Disk::file(&self.image(server, name)));
        let mut arguments = self.credentials.serve_arguments(server);
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

    pub(crate) fn pid(&mut self, protection: Protection) -> Result<u32> {
        Ok(self.target(protection)?.pid())
    }

    /// Port of the target of `protection` beyond the loopback address.
    pub(crate) fn port(&self, protection: Protection) -> u16 {
        let at = self.targets.iter().position(|(server, _)| *server == protection.server());
        PORT + at.unwrap_or(0) as u16
    }

    pub(crate) fn endpoint(
        &mut self,
        protection: Protection,
        write: bool,
        portal: Option<&str>,
    ) -> Result<String> {
        let options = self.credentials.options(protection);
        let url = self.target(protection)?.url(usize::from(write));
        Ok(format!("{}{options}", url.at(portal.unwrap_or(&url.portal))))
    }

    /// Runs `hikyaku` in the initiator's environment, with the variables of `protection`.
    pub(crate) fn ours(&self, protection: Protection, arguments: &[&str]) -> Result<Output> {
        let mut command = self.context.command();
        self.initiator.apply(&mut command);
        command.envs(protection.variables());
        run(command.args(arguments), RUN_LIMIT)
    }

    /// One timed run; every byte is verified.
    pub(crate) fn measure(
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
        let sample = Sample::read(&output)?;
        ensure!(sample.verified, "not verified: {}", output.stdout);
        Ok(sample)
    }

    pub(crate) fn certificate(&self) -> (String, String) {
        (self.credentials.file("tls.pem"), self.credentials.file("tls.key"))
    }

    pub(crate) fn folder(&self) -> &Path {
        self._dir.path()
    }

    /// Checks with `info` that a session has this protection.
    pub(crate) fn check(&mut self, protection: Protection, portal: Option<&str>) -> Result<()> {
        let (Protection::Sealed(suite) | Protection::Late(suite)) = protection else { return Ok(()) };
        let endpoint = self.endpoint(protection, false, portal)?;
        let info = self.ours(protection, &["info", &endpoint, "--json"])?.success()?.stdout;
        ensure!(info.contains(suite), "info does not name {suite}: {info}");
        Ok(())
    }
}
