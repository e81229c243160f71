//! `check`: validates a configuration for `serve --config` without starting a server.

use std::path::PathBuf;

use serde_json::json;

use crate::command::serve::{accesses, check_exposure, local_users};
use crate::config::Config;
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::{output, trust, units};

/// Check a configuration file without serving
///
/// Reports an unknown key, a wrong value, a missing file or an unreadable secret with its line, in the peers file that it
/// names too. Opens no storage.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  hikyaku check /etc/hikyaku/hikyaku.toml")]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let config = Config::load(context, &args.file)?;
    check_exposure(context, &config)?;
    let sealing = trust::sealing(context, &config)?;
    accesses(context, &config)?;
    local_users(&config)?;
    for target in &config.targets {
        for lun in &target.luns {
            let (Some(path), Ok(creates)) = (lun.endpoint.path(), lun.endpoint.spec.flag("create")) else {
                continue;
            };
            if !creates && let Err(error) = std::fs::metadata(path) {
                return Err(Failure::usage(
                    "find the storage of LUN",
                    lun.lun.to_string(),
                    format!("{}: {error}", path.display()),
                ));
            }
        }
    }
    let luns: usize = config.targets.iter().map(|target| target.luns.len()).sum();
    if args.json {
        let targets: Vec<_> = config
            .targets
            .iter()
            .map(|target| {
                let luns: Vec<_> = target
                    .luns
                    .iter()
                    .map(|lun| json!({ "lun": lun.lun, "endpoint": lun.endpoint.text, "serial": lun.serial }))
                    .collect();
                json!({ "iqn": target.iqn, "luns": luns, "acls": target.acls.len() })
            })
            .collect();
        let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
        let peers = sealing.as_ref().map_or(0, |sealing| sealing.peers.len());
        output::json(&json!({
            "schema": output::SCHEMA,
            "ok": true,
            "listen": listen,
            "seal": config.seal_policy().name(),
            "peers": peers,
            "targets": targets,
        }));
    } else {
        output::line(&format!(
            "{}: good: {}, {}",
            args.file.display(),
            units::counted(config.targets.len() as u64, "target"),
            units::counted(luns as u64, "LUN")
        ));
    }
    Ok(Exit::Done)
}
