//! `check`: validates a configuration for `serve --config` without starting a server.

mod running;

use std::fs::Metadata;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use block::SpecError;
use job::shell::quoted;
use node::target::ServeError;
use serde_json::json;

use crate::command::serve::access::{accesses, check_exposure, local_users};
use crate::command::serve::{self, LISTEN_DEFAULT, luns, metrics};
use crate::config::{Config, Lun, Target, default_file};
use crate::context::Context;
use crate::endpoint;
use crate::error::{Exit, Failure};
use crate::explain::PROBLEMS_MAX;
use crate::state::{StateDir, new_host_name};
use crate::{output, secret, trust, units};
use node::target::Sealing;

use self::running::Running;

/// Check a configuration file without serving
///
/// Reports every unknown key, wrong value, missing file and unreadable secret with its line, target and LUN, in the peers
/// file that it names too, in the order of the lines. Opens no storage; --deep does. Changes nothing. The exit status is that of
/// the first mistake. A target that is added, removed or renamed needs a restart of the server; reload refuses such a file.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku check                      the file that serve would read
  hikyaku check new.toml && mv new.toml hikyaku.toml && systemctl reload hikyaku
  sudo -u hikyaku hikyaku check --deep /etc/hikyaku/hikyaku.toml
      with the rights of the service, before its start")]
pub(crate) struct Args {
    /// The configuration [default: hikyaku.toml in the configuration directory, or /etc/hikyaku/hikyaku.toml]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Also open the storage of each LUN, contact remote storage, load TLS certificates, and bind each address and port,
    /// except for what the running server of this configuration holds
    #[arg(long)]
    deep: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let file = args.file.clone().unwrap_or_else(default_file);
    let (config, problems) = Config::load_with_problems(context, &file);
    let mut found = Found { failures: problems };
    let Some(mut config) = config else { return Ok(found.report(args.json)) };
    if config.listen.is_empty() {
        config.listen.push(LISTEN_DEFAULT);
    }
    // Without a row or a key that is wrong, other rows may seem to be wrong too.
    let is_whole = found.failures.is_empty();
    let peers = if is_whole { check_access(context, &config, &mut found) } else { 0 };
    if !is_whole {
        found.extend(unusable_secrets(context, &config));
    }
    let token = config.metrics.map(|at| metrics::token(at, config.metrics_token_file.as_deref()));
    found.note(0, token.transpose());
    for directory in &config.storage {
        found.note(0, find_directory(directory));
    }
    let mut held = Vec::new();
    let deep = (args.deep && is_whole).then(|| Deep::new(context, &file));
    for target in &config.targets {
        for lun in &target.luns {
            let opened = |()| deep.as_ref().map_or(Ok(None), |deep| deep.open(target, lun));
            let opened = find(lun).and_then(opened).map_err(|failure| at(&config, target, lun, failure));
            held.extend(found.note(lun.line, opened).flatten());
        }
    }
    for address in &config.listen {
        let bound = deep.as_ref().map_or(Ok(None), |deep| deep.listen(*address));
        held.extend(found.note(0, bound).flatten());
    }
    if !found.failures.is_empty() {
        return Ok(found.report(args.json));
    }
    if args.json {
        output::json(&object(&config, peers, args.deep, &held));
    } else {
        print(&file, &config);
        held.iter().for_each(|remark| output::line(&format!("  {remark}")));
    }
    Ok(Exit::Done)
}

/// Checks who may log in. Returns the number of peers.
fn check_access(context: &Context, config: &Config, found: &mut Found) -> usize {
    found.note(0, check_exposure(context, config));
    let sealing = found.note(0, trust::sealing(context, config)).flatten();
    if let Err(failure) = accesses(context, config) {
        let all = unusable_secrets(context, config);
        found.extend(if all.is_empty() { vec![(0, failure)] } else { all });
    }
    found.note(0, local_users(config));
    found.note(0, serve::tls(config));
    sealing.map_or(0, |Sealing { peers, .. }| peers.len())
}

/// Failures with the lines of the file that they belong to; line 0 for those of several lines and of other files.
struct Found {
    failures: Vec<(usize, Failure)>,
}

impl Found {
    fn note<T>(&mut self, line: usize, result: Result<T, Failure>) -> Option<T> {
        result.map_err(|failure| self.failures.push((line, failure))).ok()
    }

    fn extend(&mut self, failures: Vec<(usize, Failure)>) {
        self.failures.extend(failures);
    }

    /// Prints at most [`PROBLEMS_MAX`] failures in the order of their lines. Returns the exit code of the first.
    fn report(mut self, json: bool) -> Exit {
        self.failures.sort_by_key(|(line, _)| *line);
        let failures = || self.failures.iter().map(|(_, failure)| failure);
        failures().take(PROBLEMS_MAX).for_each(|failure| crate::report(failure, json));
        if self.failures.len() > PROBLEMS_MAX && !json {
            output::note(&format!("and {} more", self.failures.len() - PROBLEMS_MAX));
        }
        failures().next().map_or(Exit::Done, |first| first.ending)
    }
}

/// A failure for each secret file of the access rules that cannot be used; one for a file that several rules name.
fn unusable_secrets(context: &Context, config: &Config) -> Vec<(usize, Failure)> {
    let (mut seen, mut failures) = (Vec::new(), Vec::new());
    for target in &config.targets {
        let whose = format!("acl of {}", target.iqn.as_deref().unwrap_or_default());
        for acl in &target.acls {
            for account in acl.chap.iter().chain(&acl.mutual) {
                if !seen.contains(&&account.secret_file) {
                    seen.push(&account.secret_file);
                    let read = secret::from_file(context, &account.secret_file);
                    let failure =
                        read.err().map(|failure| (acl.line, config.at_line(acl.line, &whose, failure)));
                    failures.extend(failure);
                }
            }
        }
    }
    failures
}

/// A directory of `storage` must exist when the server starts: the sandbox admits what is there then.
fn find_directory(directory: &Path) -> Result<(), Failure> {
    if directory.is_dir() {
        return Ok(());
    }
    let object = directory.display().to_string();
    let (cause, hint) = match directory.exists() {
        true => ("it is not a directory", "name the directory that holds it".to_owned()),
        false => ("there is no such directory", format!("mkdir -p {}", quoted(&object))),
    };
    Err(Failure::usage("use the directory of [server] storage", object, cause).hint(hint))
}

/// The checks of `--deep`: each opens what a server opens. What the running server of the same configuration holds is no
/// failure, but a remark.
struct Deep<'a> {
    context: &'a Context,
    running: Running,
    file: &'a Path,
}

impl<'a> Deep<'a> {
    fn new(context: &'a Context, file: &'a Path) -> Self {
        Self { context, running: Running::find(), file }
    }

    fn open(&self, target: &Target, lun: &Lun) -> Result<Option<String>, Failure> {
        let Err(failure) = open(self.context, lun) else { return Ok(None) };
        let iqn = target.iqn.as_deref().unwrap_or_default();
        match self.running.of(self.file).filter(|server| running::serves(server, iqn, lun.lun)) {
            Some(server) if failure.ending == Exit::Refused => {
                let holder = running::process(server);
                Ok(Some(format!(
                    "line {}: LUN {} is not opened: its server is running, {holder}",
                    lun.line, lun.lun
                )))
            }
            _ => Err(failure),
        }
    }

    fn listen(&self, address: SocketAddr) -> Result<Option<String>, Failure> {
        let Err(cause) = io::listen(address, 1) else { return Ok(None) };
        let is_used = cause.kind() == std::io::ErrorKind::AddrInUse;
        let failure = serve::failure(&ServeError::Listen { address, cause });
        match self.running.of(self.file).filter(|server| is_used && running::listens(server, address)) {
            Some(server) => Ok(Some(format!(
                "{address} is not bound: the server listens there, {}",
                running::process(server)
            ))),
            None if is_used => Err(self.running.who_listens(address, failure)),
            None => Err(failure),
        }
    }
}

/// The failure with the place of the LUN.
fn at(config: &Config, target: &Target, lun: &Lun, failure: Failure) -> Failure {
    let of = target.iqn.as_ref().map(|iqn| format!("target {iqn}, ")).unwrap_or_default();
    config.at_line(lun.line, &format!("{of}LUN {}", lun.lun), failure)
}

fn creates(lun: &Lun) -> bool {
    lun.endpoint.spec.flag("create") == Ok(true)
}

fn find(lun: &Lun) -> Result<(), Failure> {
    match lun.endpoint.path() {
        Some(path) if !creates(lun) => std::fs::metadata(path).map(drop).map_err(|error| {
            Failure::usage("find the storage", path.display().to_string(), error)
                .hint("create it, or say create,size=SIZE after it")
        }),
        _ => Ok(()),
    }
}

/// Opens the storage as a server does, then closes it. Storage that a server would create or make larger is left as it is.
fn open(context: &Context, lun: &Lun) -> Result<(), Failure> {
    if creates(lun) {
        return Ok(());
    }
    let unchanging = unchanging(lun)?;
    let medium = luns::open_unmeasured(context, &unchanging)?;
    // The size in the options: the one that the server gives the file.
    luns::check_size(context, lun, &*medium)?;
    let mut io = job::event_loop()?;
    let mut endpoints = endpoint::attach(&mut io, &[(&lun.endpoint, &medium)])?;
    if let Some(endpoint) = endpoints.pop() {
        job::close(&mut io, [endpoint]);
    }
    Ok(())
}

/// The LUN with options under which an open changes nothing: without a `size` that a file would `grow` to, and with a name
/// of the initiator, which otherwise is made up and stored at its first use.
fn unchanging(lun: &Lun) -> Result<Lun, Failure> {
    let mut lun = lun.clone();
    let usage = |error: SpecError| Failure::usage("serve", lun.endpoint.text.clone(), error.0);
    let (grows, is_read_only) =
        (lun.endpoint.spec.flag("grow").map_err(usage)?, lun.endpoint.spec.flag("ro").map_err(usage)?);
    let size = lun.endpoint.spec.size("size").map_err(usage)?;
    let file = lun.endpoint.path().and_then(|path| path.metadata().ok()).filter(Metadata::is_file);
    if grows && file.zip(size).is_some_and(|(file, size)| file.len() < size) {
        if is_read_only {
            let cause = "ro and grow contradict each other: the file is smaller than its size here";
            return Err(Failure::usage("serve", lun.endpoint.text, cause));
        }
        lun.endpoint.spec.options.retain(|(name, _)| name != "size" && name != "grow");
    }
    if lun.endpoint.is_iscsi() && lun.endpoint.spec.get("initiator").is_none() {
        let stored = StateDir::locate().ok().and_then(|state| state.stored_host_name());
        let name = match stored {
            Some(name) => name,
            None => {
                new_host_name().map_err(|error| Failure::failed("make up an initiator name", "", error))?
            }
        };
        lun.endpoint.spec.options.push(("initiator".to_owned(), Some(name)));
    }
    Ok(lun)
}

fn object(config: &Config, peers: usize, is_deep: bool, held: &[String]) -> serde_json::Value {
    let targets: Vec<_> = config
        .targets
        .iter()
        .map(|target| {
            let luns: Vec<_> = target
                .luns
                .iter()
                .map(|lun| {
                    json!({ "lun": lun.lun, "endpoint": lun.endpoint.text, "serial": lun.serial, "line": lun.line })
                })
                .collect();
            json!({ "iqn": target.iqn, "luns": luns, "acls": target.acls.len(), "line": target.line })
        })
        .collect();
    let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
    json!({
        "schema": output::SCHEMA,
        "ok": true,
        "listen": listen,
        "seal": config.seal_policy().name(),
        "peers": peers,
        "targets": targets,
        "deep": is_deep,
        "in_use": held,
    })
}

fn print(file: &Path, config: &Config) {
    let luns: usize = config.targets.iter().map(|target| target.luns.len()).sum();
    output::line(&format!(
        "{}: good: {}, {}",
        file.display(),
        units::counted(config.targets.len() as u64, "target"),
        units::counted(luns as u64, "LUN")
    ));
    for target in &config.targets {
        let iqn = target.iqn.as_deref().unwrap_or_default();
        let rules = units::counted(target.acls.len() as u64, "access rule");
        output::line(&format!("  line {}: {iqn}, {rules}", target.line));
        for lun in &target.luns {
            output::line(&format!("  line {}:   LUN {}  {}", lun.line, lun.lun, lun.endpoint.text));
        }
    }
}
