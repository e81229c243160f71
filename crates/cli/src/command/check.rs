//! `check`: validates a configuration for `serve --config` without starting a server.

use std::path::PathBuf;

use node::target::ServeError;
use serde_json::json;

use crate::command::serve::{self, LISTEN_DEFAULT, accesses, check_exposure, local_users, luns};
use crate::config::{Config, Lun, Target, default_file};
use crate::context::Context;
use crate::endpoint;
use crate::error::{Exit, Failure};
use crate::{output, trust, units};
use node::target::Sealing;

/// Check a configuration file without serving
///
/// Reports every unknown key, wrong value, missing file and unreadable secret with its line, target and LUN, in the peers
/// file that it names too. Opens no storage; --deep does. The exit status is that of the first mistake.
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

    /// Also open the storage of each LUN, contact remote storage, load TLS certificates, and bind each address and port; a
    /// server that runs with this configuration holds them and makes this fail
    #[arg(long)]
    deep: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let file = args.file.clone().unwrap_or_else(default_file);
    let mut config = Config::load(context, &file)?;
    if config.listen.is_empty() {
        config.listen.push(LISTEN_DEFAULT);
    }
    let mut failures = Vec::new();
    let mut note = |result: Result<(), Failure>| failures.extend(result.err());
    note(check_exposure(context, &config));
    let sealing = trust::sealing(context, &config);
    let peers = sealing.as_ref().ok().and_then(Option::as_ref).map_or(0, |Sealing { peers, .. }| peers.len());
    note(sealing.map(drop));
    note(accesses(context, &config).map(drop));
    note(local_users(&config).map(drop));
    note(serve::tls(&config).map(drop));
    for target in &config.targets {
        for lun in &target.luns {
            let checked = find(lun).and_then(|()| if args.deep { open(context, lun) } else { Ok(()) });
            note(checked.map_err(|failure| at(&config, target, lun, failure)));
        }
    }
    if args.deep {
        for address in &config.listen {
            let bound = io::listen(*address, 1).map(drop);
            note(bound.map_err(|cause| serve::failure(&ServeError::Listen { address: *address, cause })));
        }
    }
    if let Some(first) = failures.first() {
        failures.iter().for_each(|failure| crate::report(failure, args.json));
        return Ok(first.ending);
    }
    if args.json {
        output::json(&object(&config, peers, args.deep));
    } else {
        print(&file, &config);
    }
    Ok(Exit::Done)
}

/// The failure with the place of the LUN.
fn at(config: &Config, target: &Target, lun: &Lun, failure: Failure) -> Failure {
    let iqn = target.iqn.as_deref().unwrap_or_default();
    config.at_line(lun.line, &format!("target {iqn}, LUN {}", lun.lun), failure)
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

/// Opens the storage as a server does, then closes it. Storage that a server would create is left alone.
fn open(context: &Context, lun: &Lun) -> Result<(), Failure> {
    if creates(lun) {
        return Ok(());
    }
    let media = luns::open(context, &[lun])?;
    let mut io = job::event_loop()?;
    let named = media.iter().map(|medium| (&lun.endpoint, medium)).collect::<Vec<_>>();
    let mut endpoints = endpoint::attach(&mut io, &named)?;
    if let Some(endpoint) = endpoints.pop() {
        job::close(&mut io, [endpoint]);
    }
    Ok(())
}

fn object(config: &Config, peers: usize, is_deep: bool) -> serde_json::Value {
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
    })
}

fn print(file: &std::path::Path, config: &Config) {
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
