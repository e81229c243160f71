//! The server's confinement policy, derived from its configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::Location;
use clap::ValueEnum;
use confine::{Needs, Policy};
use node::target::Confine;
use passthrough::PassthroughMedium;

use super::Args;
use crate::config::{Account, Config, Lun};
use crate::endpoint::FILE_OPTIONS;
use crate::error::Failure;
use crate::state::StateDir;
use crate::trust::{self, peers};

/// `--sandbox`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Sandbox {
    /// What this kernel has of it.
    #[default]
    Auto,
    /// Nothing.
    Off,
}

/// The function that confines a server thread; `None` with `--sandbox off`.
///
/// `runtime`: the directory of the control socket, which the server removes at its end.
pub(super) fn confine(
    args: &Args,
    config: &Config,
    runtime: Option<&Path>,
) -> Result<Option<Confine>, Failure> {
    if args.sandbox == Sandbox::Off {
        tracing::warn!("not confined: --sandbox off");
        return Ok(None);
    }
    let mut needs = needs(args, config)?;
    needs.state.extend(runtime.map(Path::to_owned));
    let policy = Policy::of(&needs);
    Ok(Some(Arc::new(move || report(&policy.apply().missing))))
}

fn report(missing: &[String]) {
    static REPORTED: std::sync::Once = std::sync::Once::new();
    if !missing.is_empty() {
        REPORTED.call_once(|| tracing::warn!("confined only in part: {}", missing.join("; ")));
    }
}

fn needs(args: &Args, config: &Config) -> Result<Needs, Failure> {
    let is_name = |user: &String| user != "any" && user.parse::<u32>().is_err();
    let mut needs = Needs {
        storage_directories: config.storage.clone(),
        // Names are resolved at run time: `/etc/passwd` is replaced when a user is added.
        resolves: config.allow_users.iter().any(is_name),
        state: vec![StateDir::locate()?.path().to_owned()],
        ..Needs::default()
    };
    let named = [&args.config, &config.peers, &config.identity].into_iter().flatten().cloned();
    needs.configuration.extend(named);
    needs.configuration.extend(config.identity.as_deref().map(trust::identity::next_file));
    if args.config.is_none() && args.endpoints.is_empty() {
        needs.configuration.extend(config.file.clone());
    }
    needs.configuration.extend(config.peers.as_deref().map(peers::psk_files).unwrap_or_default());
    needs.configuration.extend(trust::config_file("hikyaku.toml"));
    needs.configuration.push(Path::new(trust::HOST_DIRECTORY).join("hikyaku.toml"));
    if let Some((certificate, key)) = &config.tls {
        needs.configuration.extend([certificate.clone(), key.clone()]);
    }
    for target in &config.targets {
        let accounts = target.acls.iter().flat_map(|acl| acl.chap.iter().chain(&acl.mutual));
        needs.configuration.extend(accounts.map(|Account { secret_file, .. }| secret_file.clone()));
        for lun in &target.luns {
            add(&mut needs, lun);
        }
    }
    Ok(needs)
}

fn add(needs: &mut Needs, lun: &Lun) {
    let spec = &lun.endpoint.spec;
    match &spec.location {
        Location::File(path) => {
            needs.storage.push(path.clone());
            if path.is_file() {
                // A reload may add an image in the same directory. Devices are listed individually.
                needs.storage.push(directory_of(path));
            }
            if PassthroughMedium::takes(path) {
                match is_nvme(path) {
                    true => needs.nvme = true,
                    false => needs.scsi = true,
                }
            }
        }
        Location::Url(_) => {
            needs.resolves = true;
            // They are read at each login.
            let files = FILE_OPTIONS.iter().filter_map(|option| spec.get(option)).map(PathBuf::from);
            needs.configuration.extend(files);
        }
        Location::Stdio | Location::Memory { .. } | Location::Null { .. } | Location::Pattern { .. } => {}
    }
}

fn directory_of(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Whether a generic node is NVMe (`/dev/ng0n1`) instead of SCSI; follows links.
fn is_nvme(path: &Path) -> bool {
    let node = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    node.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ng"))
}
