//! `serve`: an iSCSI target over endpoints; a signal drains and ends it.

pub(crate) mod access;
pub(crate) mod heritage;
pub(crate) mod luns;
mod manager;
pub(crate) mod metrics;
mod operate;
mod sandbox;
mod status;
mod urls;
mod widened;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::time::{Duration, Instant};

use node::target::{
    Confine, Inherited, LunConfig, ServeError, Server, ServerConfig, ServerHandle, TargetConfig,
};
use node::{SealPolicy, TlsIdentity};

use crate::config::{Account, Acl, Config, Lun, Target, default_file};
use crate::context::Context;
use crate::control::listen::ControlSocket;
use crate::endpoint::{LUN_OPTIONS, Named};
use crate::error::{Exit, Failure};
use crate::trust::file::{self, Keeping, LIST_BYTES_MAX};
use access::{accesses, check_exposure, local_users};
use metrics::Metrics;
use operate::{Operator, Order};

use crate::{logging, names, output, sys, trust, units};

/// Time for which an ended server waits for an unfinished reload.
const RELOAD_WAIT_MAX: Duration = Duration::from_secs(1);
const RELOAD_WAIT_PAUSE: Duration = Duration::from_millis(5);

pub(crate) const LISTEN_DEFAULT: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), names::ISCSI_PORT);
pub(crate) const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Offer endpoints as LUNs of an iSCSI target
///
/// Prints one URL per LUN on stdout when ready; logs go to stderr. SIGHUP reloads the configuration file, or the files that flags
/// name; a file with a mistake changes nothing. SIGTERM and SIGINT drain: no new logins,
/// tasks in flight finished and flushed, a request to log out to each session; a second one flushes and ends at once.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Options of a LUN, after its endpoint: lun=N, ro, cache=writeback|writethrough,
serial=, naa=, vendor=, product=, rotational=yes|no, removable, shared,
exclusive.

SIGTERM drains, a second one ends at once; SIGHUP reads the configuration again,
to be replaced by rename(2), not in place. The packaged unit lets systemd keep
the sockets for a restart, which looks as a stop does: sessions are cut 300 ms
after the request to log out. Log out initiators before (hikyaku status).

Examples:
  # LUN 0 at 127.0.0.1:3260
  hikyaku serve disk.img
  # two LUNs on a free port
  hikyaku serve /dev/vg/a b.img,ro --listen 0
  # sealed, for the keys listed
  hikyaku serve disk.img --peers peers.toml \\
      --listen 0.0.0.0
  hikyaku serve disk.img --listen 0.0.0.0 \\
      --chap-user u --chap-secret-file u.secret
  hikyaku serve --config /etc/hikyaku/hikyaku.toml")]
pub(crate) struct Args {
    /// What to offer, as LUN 0, 1, ... (or lun=N); with neither this nor --config, the file that `hikyaku paths` names
    #[arg(value_name = "ENDPOINT", conflicts_with = "config")]
    endpoints: Vec<String>,

    /// Address to listen on; a port alone is one of 127.0.0.1; may be repeated; port 0 takes any free one [default:
    /// 127.0.0.1:3260]
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

    /// User of this host who may log in over loopback where neither CHAP nor a key is required, by name or number, or `any`;
    /// may be repeated [default: the server's own user and root]
    #[arg(long, value_name = "NAME|any")]
    allow_user: Vec<String>,

    /// Whether the server gives up what it does not need once everything is open (capabilities, files, system calls): auto, as
    /// far as this kernel can, or off
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    sandbox: sandbox::Sandbox,

    /// Address of metrics for Prometheus (/metrics) and of a health check (/health)
    #[arg(long, value_name = "ADDR:PORT", value_parser = names::parse_metrics)]
    metrics: Option<SocketAddr>,

    /// File with the bearer token that a request for metrics must carry; required beyond loopback
    #[arg(long, value_name = "FILE", requires = "metrics")]
    metrics_token_file: Option<PathBuf>,

    /// Form of the log [default: journal if the systemd journal reads stderr, otherwise text]
    #[arg(long, value_name = "FORM", value_enum)]
    pub(crate) log: Option<logging::Form>,

    /// Addresses of the listening sockets of socket units.
    #[arg(skip)]
    inherited: Vec<SocketAddr>,

    /// Longest time a drain takes [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    drain_timeout: Option<Duration>,
}

fn parse_seal(text: &str) -> Result<SealPolicy, String> {
    SealPolicy::from_name(text).ok_or_else(|| "say off, offer or require".to_owned())
}

/// What connects the server with the machine besides its portals and storage.
struct Outside {
    control: Option<ControlSocket>,
    metrics: Option<Metrics>,
    /// What the service manager has kept.
    inherited: Inherited,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    logging::log_panics();
    let mut passed = manager::passed();
    let args = &Args { inherited: passed.activated(), ..args.clone() };
    let config = gather(context, args)?;
    check_exposure(context, &config)?;
    passed.keep_only(&config.listen);
    let inherited = passed.inherited;
    let live = build(context, config, None)?;
    let token_file = live.config.metrics_token_file.as_deref();
    let metrics = live.config.metrics.map(|at| Metrics::bind(at, token_file)).transpose()?;
    let control = operate::socket();
    let runtime = control.as_ref().map(ControlSocket::directory);
    let confine = sandbox::confine(args, &live.config, runtime)?;
    serve(context, args, live, confine.as_ref(), Outside { control, metrics, inherited })
}

fn parse_tls(text: &str) -> Result<(PathBuf, PathBuf), String> {
    match text.split_once(',') {
        Some((certificate, key)) if !certificate.is_empty() && !key.is_empty() => {
            Ok((certificate.into(), key.into()))
        }
        _ => Err("two files are needed, the certificate and its key: CERT,KEY".to_owned()),
    }
}

/// Loads the certificate and key of TLS; called again for each reload.
pub(crate) fn tls(config: &Config) -> Result<Option<TlsIdentity>, Failure> {
    config.tls.as_ref().map(|(certificate, key)| load_tls(certificate, key)).transpose()
}

fn load_tls(certificate: &Path, key: &Path) -> Result<TlsIdentity, Failure> {
    let failed = |path: &Path, cause: &dyn std::fmt::Display| {
        Failure::usage("use the certificate", path.display().to_string(), cause)
            .hint("--tls CERT,KEY, or tls-certificate and tls-key in [server]: both in PEM form, the key without a passphrase")
    };
    let pem = file::read(key, "the certificate's key", Keeping::Secret, LIST_BYTES_MAX)?;
    let pem = pem.map_err(|error| failed(key, &error))?;
    TlsIdentity::with_key(certificate, key, &pem).map_err(|error| failed(&error.path, &error.cause))
}

/// The configuration from the flags and the file; flags have priority.
fn gather(context: &Context, args: &Args) -> Result<Config, Failure> {
    let mut config = match &args.config {
        Some(path) => Config::load(context, path)?,
        None if args.endpoints.is_empty() && default_file().exists() => {
            Config::load(context, &default_file())?
        }
        None => Config { targets: vec![from_flags(context, args)?], ..Config::default() },
    };
    if config.targets.is_empty() {
        return Err(Failure::usage("serve what is described in", config.object(), "there is no [[target]]"));
    }
    if !args.listen.is_empty() {
        config.listen.clone_from(&args.listen);
    }
    if config.listen.is_empty() {
        config.listen.clone_from(&args.inherited);
    }
    if config.listen.is_empty() {
        config.listen.push(LISTEN_DEFAULT);
    }
    config.advertise = args.advertise.clone().or(config.advertise);
    if let Some(advertise) = &config.advertise {
        config.advertise = Some(urls::with_port(advertise, config.listen[0].port()).map_err(|cause| {
            Failure::usage("advertise", advertise.clone(), cause).hint("--advertise ADDR:PORT")
        })?);
    }
    config.seal = args.seal.or(config.seal);
    config.metrics = args.metrics.or(config.metrics);
    config.metrics_token_file = args.metrics_token_file.clone().or(config.metrics_token_file);
    config.identity = args.identity.clone().or(config.identity);
    config.peers = args.peers.clone().or(config.peers);
    config.tls = args.tls.clone().or(config.tls);
    config.allow_users.extend(args.allow_user.iter().cloned());
    if let (Some(SealPolicy::Off), Some(peers)) = (config.seal, &config.peers) {
        context.warn(&format!(
            "with seal off no session is sealed, and the keys of {} are not used; --seal offer seals with the peers that have one",
            peers.display()
        ));
    }
    if config.identity.is_some() && config.peers.is_none() && config.seal.is_none() {
        let cause = "a key alone seals nothing: no peer is allowed to log in";
        return Err(Failure::usage("serve", "", cause).hint("--peers FILE"));
    }
    config.drain_timeout = args.drain_timeout.or(config.drain_timeout).or(Some(DRAIN_TIMEOUT_DEFAULT));
    Ok(config)
}

fn from_flags(context: &Context, args: &Args) -> Result<Target, Failure> {
    if args.endpoints.is_empty() {
        let cause = format!("no endpoint was given, and {} does not exist", default_file().display());
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
        target.acls.push(Acl {
            initiator: None,
            peer: None,
            chap,
            mutual,
            luns: None,
            read_only: false,
            line: 0,
        });
    }
    Ok(target)
}

struct Live {
    /// The configuration as read, with the changes since.
    config: Config,
    server: ServerConfig,
    /// LUNs of each target as configured: number, endpoint and serial number.
    requested: Vec<Vec<Requested>>,
}

type Requested = (u16, String, Option<String>);

/// Opens the storage of a configuration. LUNs configured identically in `before` are taken over and not opened again.
fn build(context: &Context, config: Config, before: Option<&Live>) -> Result<Live, Failure> {
    let sealing = trust::sealing(context, &config)?;
    let accesses = accesses(context, &config)?;
    let (mut targets, mut requested) = (Vec::new(), Vec::new());
    for (target, access) in config.targets.iter().zip(accesses) {
        let own: Vec<Requested> =
            target.luns.iter().map(|lun| (lun.lun, lun.endpoint.text.clone(), lun.serial.clone())).collect();
        let former = before.and_then(|live| live.target(target.iqn.as_deref()));
        let kept = |requested: &Requested| -> Option<LunConfig> {
            let (former, words) = former?;
            former.luns.iter().zip(words).find(|(_, words)| *words == requested).map(|(lun, _)| lun.clone())
        };
        let fresh: Vec<&Lun> =
            target.luns.iter().zip(&own).filter(|(_, own)| kept(own).is_none()).map(|(lun, _)| lun).collect();
        let media = luns::open(context, &fresh)?;
        let iqn = former.map(|(former, _)| former.iqn.as_str()).or(target.iqn.as_deref());
        let named = luns::claim(context, iqn, &fresh, &media)?;
        let mut opened = media.into_iter().zip(&named.identities).zip(named.claims);
        let mut all = Vec::new();
        for (lun, own) in target.luns.iter().zip(&own) {
            all.push(match kept(own) {
                Some(lun) => lun,
                None => {
                    let ((medium, identity), claim) = opened.next().expect("one for each that is not kept");
                    luns::describe(lun, medium, identity, claim)?
                }
            });
        }
        targets.push(TargetConfig { iqn: named.iqn.clone(), luns: all, access });
        requested.push(own);
    }
    luns::check_distinct(&targets)?;
    let exports = config.targets.iter().flat_map(|target| &target.luns).any(|lun| lun.endpoint.is_nbd());
    let server = ServerConfig {
        listen: config.listen.clone(),
        advertise: config.advertise.clone(),
        sealing,
        tls: tls(&config)?,
        targets,
        local_users: local_users(&config)?,
        drain_timeout: config.drain_timeout.unwrap_or(DRAIN_TIMEOUT_DEFAULT),
        // One thread uses one connection: NBD servers need not support several, and many do not.
        threads: exports.then_some(1),
    };
    Ok(Live { config, server, requested })
}

impl Live {
    /// The target with this configured name; for `None`, the only target.
    fn target(&self, iqn: Option<&str>) -> Option<(&TargetConfig, &Vec<Requested>)> {
        let mut all = self.server.targets.iter().zip(&self.requested);
        all.find(|(target, _)| iqn.is_none_or(|iqn| target.iqn == iqn))
    }
}

pub(crate) fn failure(error: &ServeError) -> Failure {
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
        ServeError::Restart(_) => Failure::usage("reload", "", error),
        ServeError::Loop(cause) => Failure::failed("serve", "", cause),
        ServeError::Panicked | ServeError::Unfinished(_) => Failure::failed("serve", "", error),
    }
}

fn serve(
    context: &Context,
    args: &Args,
    live: Live,
    confine: Option<&Confine>,
    outside: Outside,
) -> Result<Exit, Failure> {
    let Outside { control, metrics, inherited } = outside;
    let control = control.as_ref();
    let config = live.server.clone();
    let announce = Announcement::of(&live);
    let file = live.config.file.clone();
    let drain_timeout = config.drain_timeout;
    // Signals are caught before readiness is announced.
    let mut signals = signal_hook::iterator::Signals::new([libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
        .map_err(|error| Failure::failed("catch signals", "", error))?;
    sys::raise_descriptor_limit();
    // Created before the sandbox forbids it.
    let ports = manager::is_there().then(heritage::create).transpose();
    let ports = ports.map_err(|error| Failure::failed("create a memory file", "", error))?;
    let server = Server::start_with(config, confine.map(Arc::clone), inherited);
    let server = server.map_err(|error| failure(&error))?;
    let handle = server.handle();
    let hands_over = manager::store(server.sockets());
    if hands_over {
        handle.hand_over();
    }
    let ended = std::thread::scope(|scope| {
        let caught = signals.handle();
        // Capacity 1: a waiting reload reads the files when it starts, so further signals add nothing.
        let (send, orders) = mpsc::sync_channel(1);
        let (ready, readiness) = mpsc::channel();
        let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let failed = |error: std::io::Error| Failure::failed("catch signals", "", error);
        let started = spawn("reload").spawn_scoped(scope, {
            let handle = handle.clone();
            move || operate::obey(context, args, live, &handle, confine, &ready, &orders)
        });
        let started = started.map_err(failed).and_then(|reload| {
            readiness.recv().unwrap_or(Ok(())).map_err(|error| failure(&error))?;
            if let Some(confine) = confine {
                // Confines this thread and those that it starts later.
                confine();
            }
            observe(&handle, metrics).map_err(failed)?;
            let (signals, handle) = (&mut signals, &handle);
            if let Some(control) = control {
                let operator = Operator::new(handle, send.clone(), file);
                spawn("control")
                    .spawn_scoped(scope, move || control.serve(|request| operator.answer(request)))
                    .map_err(failed)?;
            }
            let caught =
                spawn("signals").spawn_scoped(scope, move || obey(signals, handle, &send, drain_timeout));
            caught.map(|_| reload).map_err(failed)
        });
        let reload = match started {
            Ok(reload) => reload,
            Err(error) => {
                handle.stop();
                let _ = server.wait();
                caught.close();
                control.iter().for_each(|control| control.close());
                return Err(error);
            }
        };
        announce.now(&server.addresses());
        let ended = server.wait().map_err(|error| failure(&error));
        if let (Ok(()), Some(file), true) = (&ended, ports, hands_over) {
            manager::store_ports(file, &handle.former_ports());
        }
        caught.close();
        control.iter().for_each(|control| control.close());
        let until = Instant::now() + RELOAD_WAIT_MAX;
        while !reload.is_finished() && Instant::now() < until {
            std::thread::sleep(RELOAD_WAIT_PAUSE);
        }
        if reload.is_finished() { ended } else { abandon(ended) }
    });
    tracing::info!("ended");
    ended.map(|()| Exit::Done)
}

/// Starts the threads of the watchdog and the metrics, which end with the process.
fn observe(handle: &ServerHandle, metrics: Option<Metrics>) -> std::io::Result<()> {
    let spawn = |name: &str| std::thread::Builder::new().name(name.to_owned());
    if manager::is_there() {
        let handle = handle.clone();
        spawn("watchdog").spawn(move || manager::watch(&handle))?;
    }
    if let Some(metrics) = metrics {
        let handle = handle.clone();
        tracing::info!("metrics: http://{}/metrics", metrics.address()?);
        spawn("metrics").spawn(move || metrics.serve(&handle))?;
    }
    Ok(())
}

/// What a server prints when it is ready.
struct Announcement {
    advertise: Option<String>,
    luns: Vec<urls::Offered>,
    seals: SealPolicy,
    key: Option<seal::PublicKey>,
}

impl Announcement {
    fn of(live: &Live) -> Self {
        let config = &live.server;
        let seals = config.seal_policy();
        let of_target = |(target, given): (&TargetConfig, &Target)| -> Vec<_> {
            let way = urls::Way::of(given, seals, config.tls.is_some());
            let offered = |lun: u16| urls::Offered { iqn: target.iqn.clone(), lun, way };
            target.luns.iter().map(|lun| offered(lun.lun)).collect()
        };
        Self {
            advertise: config.advertise.clone(),
            luns: config.targets.iter().zip(&live.config.targets).flat_map(of_target).collect(),
            seals,
            key: config.sealing.as_ref().map(|sealing| sealing.identity.public()),
        }
    }

    /// Prints the URLs on standard output, and everything else in the log.
    fn now(self, addresses: &[SocketAddr]) {
        for address in addresses {
            tracing::info!("listening on {address}");
        }
        let portal = self.advertise.unwrap_or_else(|| urls::portal(names::reachable(addresses[0])));
        let all: Vec<String> = self.luns.iter().map(|lun| lun.url(&portal)).collect();
        if let Some(key) = self.key {
            tracing::info!(
                "sealing: {}; initiators trust us by: hikyaku key trust iscsi://{portal} --key {key}",
                self.seals.name()
            );
        }
        for line in urls::ready_made(&portal, &self.luns) {
            tracing::info!("{line}");
        }
        output::announce(&all.join("\n"));
        manager::ready(&format!("{} LUNs, {portal}", all.len()));
    }
}

/// Ends the process while a reload waits for a peer, a name server or a file system: a return would join that thread.
fn abandon(ended: Result<(), Failure>) -> ! {
    tracing::warn!("SIGHUP: nothing is changed: the server has ended");
    tracing::info!("ended");
    let exit = match ended {
        Ok(()) => Exit::Done,
        Err(failure) => {
            crate::report(&failure, false);
            failure.ending
        }
    };
    crate::terminal::exit(exit.code().into())
}

/// SIGTERM and SIGINT: the first drains, the second stops. SIGHUP passes a reload request to the reload thread.
fn obey(
    signals: &mut signal_hook::iterator::Signals,
    handle: &ServerHandle,
    reload: &SyncSender<Order>,
    drain_timeout: Duration,
) {
    let mut draining = false;
    for signal in signals.forever() {
        if signal == libc::SIGHUP {
            if draining {
                tracing::warn!("SIGHUP: the server is draining; nothing is changed");
            } else {
                let _ = reload.try_send(Order::Reload(None));
            }
        } else if draining {
            tracing::warn!("second signal: flushing and ending now");
            handle.stop();
        } else {
            draining = true;
            tracing::info!(
                "draining, at most {}; signal again to end at once",
                units::duration(drain_timeout)
            );
            manager::stopping();
            handle.drain();
        }
    }
}
