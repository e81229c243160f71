//! `serve`: an iSCSI target over endpoints, until a signal drains it.

mod luns;
mod urls;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use node::target::{Access, AclEntry, ChapAccount, Server, ServerConfig, ServerHandle, TargetConfig};
use node::{SealPolicy, TlsIdentity};

use crate::config::{Account, Acl, Config, DEFAULT_FILE, Target};
use crate::context::Context;
use crate::endpoint::{LUN_OPTIONS, Named};
use crate::error::{Exit, Failure};
use crate::state::Claim;
use crate::trust::file::{self, Keeping, LIST_BYTES_MAX};
use crate::{logging, names, output, secret, sys, trust, units};

/// Longest time a drain takes unless asked otherwise.
const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Offer endpoints as LUNs of an iSCSI target
///
/// Prints one URL per LUN on stdout when ready; logs go to stderr. SIGTERM and SIGINT drain: no new logins,
/// tasks in flight finished and flushed, sessions asked to log out; a second one flushes and ends at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Options of a LUN, after its endpoint: lun=N, ro, cache=writeback|writethrough, serial=, naa=, vendor=, product=,
rotational=yes|no, removable, shared, exclusive.

Examples:
  hikyaku serve disk.img                                 LUN 0 at 127.0.0.1:3260
  hikyaku serve /dev/vg/a b.img,ro --listen 127.0.0.1:0  two LUNs on a free port
  hikyaku serve disk.img --listen 0.0.0.0 --peers peers.toml   sealed, for those whose keys are listed
  hikyaku serve disk.img --listen 0.0.0.0 --chap-user u --chap-secret-file u.secret
  hikyaku serve --config /etc/hikyaku/hikyaku.toml")]
pub(crate) struct Args {
    /// What to offer, as LUN 0, 1, ... (or lun=N); with neither this nor --config, /etc/hikyaku/hikyaku.toml
    #[arg(value_name = "ENDPOINT", conflicts_with = "config")]
    endpoints: Vec<String>,

    /// Address to listen on; may be repeated; port 0 takes any free one [default: 127.0.0.1:3260]
    #[arg(long, value_name = "ADDR:PORT", value_parser = names::parse_listen)]
    listen: Vec<SocketAddr>,

    /// Address that discovery answers instead of the one the client used (behind NAT)
    #[arg(long, value_name = "ADDR[:PORT]")]
    advertise: Option<String>,

    /// Name of the target [default: made up at first use, then stable on this host]
    #[arg(long, conflicts_with = "config", value_parser = names::parse_iscsi_name)]
    iqn: Option<String>,

    /// CHAP name that initiators must give
    #[arg(long, value_name = "USER", requires = "chap_secret_file", conflicts_with = "config")]
    chap_user: Option<String>,

    /// File with the CHAP secret, one line
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    chap_secret_file: Option<PathBuf>,

    /// CHAP name with which the target proves itself in turn
    #[arg(long, value_name = "USER", requires_all = ["mutual_chap_secret_file", "chap_user"])]
    mutual_chap_user: Option<String>,

    /// File with the secret of the target's own CHAP name
    #[arg(long, value_name = "FILE", requires = "mutual_chap_user")]
    mutual_chap_secret_file: Option<PathBuf>,

    /// Whether sessions are sealed (encrypted and authenticated): off, offer or require; `off` also allows storage beyond
    /// loopback that nothing protects [default: require with --peers, otherwise off]
    #[arg(long, value_name = "POLICY", value_parser = parse_seal)]
    seal: Option<SealPolicy>,

    /// File with this target's key, made by `key new` [default: hikyaku/identity in $XDG_CONFIG_HOME]
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,

    /// TOML file with the public keys of those who may log in sealed: for each a table `peer` with name, public-key, and if
    /// need be initiator, luns, psk-file
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,

    /// Standard TLS 1.3 around iSCSI: certificate and private key, PEM files. Initiators say tls=FILE
    #[arg(long, value_name = "CERT,KEY", value_parser = parse_tls)]
    tls: Option<(PathBuf, PathBuf)>,

    /// Targets from a TOML file instead of the command line
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Longest time a drain takes [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    drain_timeout: Option<Duration>,
}

fn parse_seal(text: &str) -> Result<SealPolicy, String> {
    SealPolicy::from_name(text).ok_or_else(|| "say off, offer or require".to_owned())
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    logging::log_panics();
    let config = gather(context, args)?;
    check_exposure(context, &config)?;
    let (mut server_config, claims) = build(context, &config)?;
    server_config.tls = args.tls.as_ref().map(|(certificate, key)| load_tls(certificate, key)).transpose()?;
    serve(server_config, claims, config.targets.iter().any(Target::has_chap))
}

/// `CERT,KEY`.
fn parse_tls(text: &str) -> Result<(PathBuf, PathBuf), String> {
    match text.split_once(',') {
        Some((certificate, key)) if !certificate.is_empty() && !key.is_empty() => {
            Ok((certificate.into(), key.into()))
        }
        _ => Err("two files are needed, the certificate and its key: CERT,KEY".to_owned()),
    }
}

fn load_tls(certificate: &Path, key: &Path) -> Result<TlsIdentity, Failure> {
    let failed = |path: &Path, cause: &dyn std::fmt::Display| {
        Failure::usage("use the certificate", path.display().to_string(), cause)
            .hint("--tls CERT,KEY, both in PEM form, the key without a passphrase")
    };
    let pem = file::read(key, "the certificate's key", Keeping::Secret, LIST_BYTES_MAX)?;
    let pem = pem.map_err(|error| failed(key, &error))?;
    TlsIdentity::with_key(certificate, key, &pem).map_err(|error| failed(&error.path, &error.cause))
}

/// What is to be served, from the flags or the file; flags win.
fn gather(context: &Context, args: &Args) -> Result<Config, Failure> {
    let mut config = match &args.config {
        Some(path) => Config::load(context, path)?,
        None if args.endpoints.is_empty() && Path::new(DEFAULT_FILE).exists() => {
            Config::load(context, Path::new(DEFAULT_FILE))?
        }
        None => Config { targets: vec![from_flags(context, args)?], ..Config::default() },
    };
    if !args.listen.is_empty() {
        config.listen.clone_from(&args.listen);
    }
    if config.listen.is_empty() {
        config.listen.push(SocketAddr::from(([127, 0, 0, 1], names::ISCSI_PORT)));
    }
    config.advertise = args.advertise.clone().or(config.advertise);
    if let Some(advertise) = &config.advertise {
        config.advertise = Some(urls::with_port(advertise, config.listen[0].port()).map_err(|cause| {
            Failure::usage("advertise", advertise.clone(), cause).hint("--advertise ADDR:PORT")
        })?);
    }
    config.seal = args.seal.or(config.seal);
    config.identity = args.identity.clone().or(config.identity);
    config.peers = args.peers.clone().or(config.peers);
    if config.identity.is_some() && config.peers.is_none() && config.seal.is_none() {
        let cause = "a key alone seals nothing: who may log in?";
        return Err(Failure::usage("serve", "", cause).hint("--peers FILE"));
    }
    config.drain_timeout = args.drain_timeout.or(config.drain_timeout).or(Some(DRAIN_TIMEOUT_DEFAULT));
    Ok(config)
}

fn from_flags(context: &Context, args: &Args) -> Result<Target, Failure> {
    if args.endpoints.is_empty() {
        let cause = format!("no endpoint was given, and {DEFAULT_FILE} does not exist");
        return Err(Failure::usage("serve", "", cause).hint("hikyaku serve disk.img"));
    }
    let mut target = Target { iqn: args.iqn.clone(), ..Target::default() };
    let mut next = 0;
    for words in &args.endpoints {
        let endpoint = Named::parse(context, words, LUN_OPTIONS)?;
        let text = endpoint.text.clone();
        let usage = |cause: String| Failure::usage("serve", text.clone(), cause);
        let lun = match endpoint.spec.get("lun") {
            Some(number) => {
                number.parse().map_err(|_| usage(format!("lun={number}: a LUN is a number from 0")))?
            }
            None => next,
        };
        target.add(lun, endpoint, None).map_err(usage)?;
        next = lun + 1;
    }
    let account = |user: &Option<String>, file: &Option<PathBuf>| {
        user.clone().zip(file.clone()).map(|(user, secret_file)| Account { user, secret_file })
    };
    let chap = account(&args.chap_user, &args.chap_secret_file);
    let mutual = account(&args.mutual_chap_user, &args.mutual_chap_secret_file);
    if chap.is_some() {
        target.acls.push(Acl { initiator: None, peer: None, chap, mutual, luns: None, read_only: false });
    }
    Ok(target)
}

/// A listener beyond loopback that nothing protects is refused, unless the user says that they know.
pub(crate) fn check_exposure(context: &Context, config: &Config) -> Result<(), Failure> {
    let Some(exposed) = config.listen.iter().find(|address| !address.ip().to_canonical().is_loopback())
    else {
        return Ok(());
    };
    if config.seal_policy() == SealPolicy::Require {
        return Ok(());
    }
    let Some(open) = config.targets.iter().find(|target| target.acls.is_empty()) else { return Ok(()) };
    let target = open.iqn.as_deref().unwrap_or("the target");
    if config.seal == Some(SealPolicy::Off) {
        context.warn(&format!(
            "{target} is open to everyone who can reach {exposed}: neither CHAP nor an ACL protects it, as --seal off allowed"
        ));
        return Ok(());
    }
    let cause = format!(
        "everyone who can reach {exposed} could read and write {target}: it has neither CHAP nor an ACL, nor is sealing required"
    );
    Err(Failure::refused("listen on", exposed.to_string(), cause)
        .hint("--peers with the keys of those who may, --chap-user and --chap-secret-file, an [[target.acl]], or --seal off if that is meant"))
}

impl Target {
    fn has_chap(&self) -> bool {
        self.acls.iter().any(|acl| acl.chap.is_some())
    }

    /// Who may log in, secrets read.
    pub(crate) fn access(&self, context: &Context) -> Result<Access, Failure> {
        let secret = |account: &Account| secret::from_file(context, &account.secret_file);
        let mut access = Access::default();
        for acl in &self.acls {
            let chap = match &acl.chap {
                None => None,
                Some(account) => {
                    let mutual = acl.mutual.as_ref();
                    let mutual = mutual.map(|other| Ok((other.user.clone(), secret(other)?))).transpose()?;
                    Some(ChapAccount { user: account.user.clone(), secret: secret(account)?, mutual })
                }
            };
            match (&acl.initiator, &acl.peer) {
                (None, None) => access.chap.extend(chap),
                (initiator, peer) => access.initiators.push(AclEntry {
                    initiator: initiator.clone(),
                    peer: peer.clone(),
                    luns: acl.luns.clone(),
                    read_only: acl.read_only,
                    chap,
                }),
            }
        }
        Ok(access)
    }
}

fn build(context: &Context, config: &Config) -> Result<(ServerConfig, Vec<Claim>), Failure> {
    let sealing = trust::sealing(context, config)?;
    let mut targets = Vec::new();
    let mut claims = Vec::new();
    for target in &config.targets {
        let access = target.access(context)?;
        let media = luns::open(context, target)?;
        let named = luns::claim(context, target, &media)?;
        let luns = target.luns.iter().zip(media).zip(&named.identities);
        let luns = luns.map(|((lun, medium), identity)| luns::describe(lun, medium, identity));
        let luns = luns.collect::<Result<_, _>>()?;
        targets.push(TargetConfig { iqn: named.iqn, luns, access });
        claims.extend(named.claims);
    }
    luns::check_distinct(&targets)?;
    let exports = config.targets.iter().flat_map(|target| &target.luns).any(|lun| lun.endpoint.is_nbd());
    let server = ServerConfig {
        listen: config.listen.clone(),
        advertise: config.advertise.clone(),
        sealing,
        tls: None,
        targets,
        drain_timeout: config.drain_timeout.unwrap_or(DRAIN_TIMEOUT_DEFAULT),
        // Of several connections an NBD server promises nothing, and many take only one.
        threads: exports.then_some(1),
    };
    Ok((server, claims))
}

/// A server that could not be started, told as our failure.
pub(crate) fn failure(error: &node::target::ServeError) -> Failure {
    use node::target::ServeError;
    match error {
        ServeError::Listen { address, cause } => {
            let hint = match cause.kind() {
                std::io::ErrorKind::AddrInUse => "--listen with another port, or port 0 for any free one",
                std::io::ErrorKind::PermissionDenied => "--listen with a port above 1023",
                std::io::ErrorKind::AddrNotAvailable => "--listen with an address of this host",
                _ => "",
            };
            Failure::failed("listen on", address.to_string(), cause).hint(hint)
        }
        ServeError::Lun { target, lun, cause } => {
            Failure::open("serve", format!("LUN {lun} of {target}"), cause)
        }
        ServeError::Config(text) => Failure::usage("serve", "", text),
        ServeError::Loop(cause) => Failure::failed("serve", "", cause),
        ServeError::Panicked | ServeError::Unfinished(_) => Failure::failed("serve", "", error),
    }
}

fn serve(config: ServerConfig, claims: Vec<Claim>, has_chap: bool) -> Result<Exit, Failure> {
    let advertise = config.advertise.clone();
    let luns: Vec<(String, u16)> = config
        .targets
        .iter()
        .flat_map(|target| target.luns.iter().map(|lun| (target.iqn.clone(), lun.lun)))
        .collect();
    let drain_timeout = config.drain_timeout;
    let seals = config.seal_policy();
    let key = config.sealing.as_ref().map(|sealing| sealing.identity.public());
    // Signals are caught before anyone is told that we are ready.
    let signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
        .map_err(|error| Failure::failed("catch signals", "", error))?;
    sys::raise_descriptor_limit();
    let server = Server::start(config).map_err(|error| failure(&error))?;
    let handle = server.handle();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || obey(signals, &handle, drain_timeout))
        .map_err(|error| Failure::failed("catch signals", "", error))?;
    let addresses = server.addresses();
    for address in &addresses {
        tracing::info!("listening on {address}");
    }
    let portal = advertise.unwrap_or_else(|| urls::portal(names::reachable(addresses[0])));
    let all: Vec<String> = luns.iter().map(|(iqn, lun)| format!("iscsi://{portal}/{iqn}/{lun}")).collect();
    if let Some(key) = key {
        tracing::info!(
            "sealing: {}; initiators trust us by: hikyaku key trust iscsi://{portal} --key {key}",
            seals.name()
        );
    }
    // Others cannot seal.
    if seals != SealPolicy::Require {
        for line in urls::ready_made(&portal, &luns, has_chap) {
            tracing::info!("{line}");
        }
    }
    output::announce(&all.join("\n"));
    let ended = server.wait().map_err(|error| failure(&error));
    drop(claims);
    tracing::info!("ended");
    ended.map(|()| Exit::Done)
}

/// The first signal drains, the next one stops.
fn obey(mut signals: signal_hook::iterator::Signals, handle: &ServerHandle, drain_timeout: Duration) {
    let mut draining = false;
    for signal in signals.forever() {
        if signal == libc::SIGHUP {
            tracing::warn!("SIGHUP ignored: this release cannot reload its configuration");
        } else if draining {
            tracing::warn!("second signal: flushing and ending now");
            handle.stop();
        } else {
            draining = true;
            tracing::info!(
                "draining, at most {}; signal again to end at once",
                units::duration(drain_timeout)
            );
            handle.drain();
        }
    }
}
