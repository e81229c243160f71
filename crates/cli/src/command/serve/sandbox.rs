//! What the server is confined to, from what it serves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::Location;
use clap::ValueEnum;
use confine::{Needs, Policy};
use node::target::Confine;
use passthrough::PassthroughMedium;

use super::Args;
use crate::config::{Account, Config, DEFAULT_FILE, Lun};
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

/// Options of an endpoint that name files which are read at each login.
const FILE_OPTIONS: [&str; 5] =
    ["tls", "identity", "psk-file", "chap-secret-file", "mutual-chap-secret-file"];

/// What confines a thread of the server; `None` with `--sandbox off`.
pub(super) fn confine(args: &Args, config: &Config) -> Result<Option<Confine>, Failure> {
    if args.sandbox == Sandbox::Off {
        tracing::warn!("not confined: --sandbox off");
        return Ok(None);
    }
    let policy = Policy::of(&needs(args, config)?);
    Ok(Some(Arc::new(move || tell(&policy.apply().missing))))
}

/// Says once what this kernel lacks.
fn tell(missing: &[String]) {
    static TOLD: std::sync::Once = std::sync::Once::new();
    if !missing.is_empty() {
        TOLD.call_once(|| tracing::warn!("confined only in part: {}", missing.join("; ")));
    }
}

/// What is served, as the policy wants it.
fn needs(args: &Args, config: &Config) -> Result<Needs, Failure> {
    let is_name = |user: &String| user != "any" && user.parse::<u32>().is_err();
    let mut needs = Needs {
        storage_directories: config.storage.clone(),
        // `/etc/passwd` is replaced when a user is added.
        resolves: config.allow_users.iter().any(is_name),
        state: vec![StateDir::locate()?.path().to_owned()],
        ..Needs::default()
    };
    let named = [&args.config, &config.peers, &config.identity].into_iter().flatten().cloned();
    needs.configuration.extend(named);
    if args.config.is_none() && args.endpoints.is_empty() {
        needs.configuration.push(DEFAULT_FILE.into());
    }
    needs.configuration.extend(config.peers.as_deref().map(peers::psk_files).unwrap_or_default());
    needs.configuration.extend(trust::config_file("hikyaku.toml"));
    needs.configuration.push(Path::new(trust::HOST_DIRECTORY).join("hikyaku.toml"));
    if let Some((certificate, key)) = &args.tls {
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
                // A reload may add an image that lies beside it; of devices, each is for itself.
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
            let files = FILE_OPTIONS.iter().filter_map(|option| spec.get(option)).map(PathBuf::from);
            needs.configuration.extend(files);
        }
        Location::Stdio | Location::Memory { .. } | Location::Null { .. } | Location::Pattern { .. } => {}
    }
}

fn directory_of(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Whether a node that takes commands takes those of NVMe; links followed, `/dev/ng0n1`.
fn is_nvme(path: &Path) -> bool {
    let node = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    node.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ng"))
}
