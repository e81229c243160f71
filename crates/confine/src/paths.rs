//! Landlock: the files that may be opened.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags,
};

use crate::Needs;

/// The ruleset handles the rights up to this Landlock ABI; those that the kernel does not support stay unrestricted.
const ABI_KNOWN: ABI = ABI::V6;

/// Paths that the program and the C library read for any needs: users, time zone, libraries, information of the kernel.
const READ: [&str; 12] = [
    "/proc",
    "/sys",
    "/dev/urandom",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
    "/lib",
    "/lib64",
    "/usr/lib",
];

/// Paths read in addition to resolve names. Files in `/etc` are replaced by renaming, and a rule belongs to the old
/// file, so the directory is made readable.
const RESOLVE: [&str; 5] =
    ["/etc", "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    Read,
    /// Read and write files, send commands to devices; no creation or removal.
    Storage,
    /// In addition create, replace and remove files.
    State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The path; ignored if it does not exist when the grants are applied.
    pub path: PathBuf,
    pub access: Access,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
        let storage = read | make_bitflags!(AccessFs::{WriteFile | Truncate | IoctlDev});
        match self {
            Self::Read => read,
            Self::Storage => storage,
            Self::State => storage | make_bitflags!(AccessFs::{MakeReg | MakeDir | RemoveFile}),
        }
    }
}

pub(crate) fn grants(needs: &Needs) -> Vec<Grant> {
    let grant = |access: Access| move |path: &PathBuf| Grant { path: path.clone(), access };
    let read = READ.iter().chain(RESOLVE.iter().filter(|_| needs.resolves));
    let mut grants: Vec<Grant> = read.map(|path| Grant { path: path.into(), access: Access::Read }).collect();
    grants.push(Grant { path: "/dev/null".into(), access: Access::Storage });
    grants.extend(
        needs.configuration.iter().map(|path| Grant { path: directory_of(path), access: Access::Read }),
    );
    grants.extend(needs.storage.iter().chain(&needs.storage_directories).map(grant(Access::Storage)));
    grants.extend(needs.state.iter().map(grant(Access::State)));
    grants
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    }
}

/// Binds the calling thread to the grants. It can execute no file, bind no TCP port, and reach no abstract socket or
/// process outside.
pub(crate) fn restrict(grants: &[Grant]) -> Result<(), String> {
    let status = enforce(grants).map_err(|error| error.to_string())?;
    match status {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced => {
            Err("this kernel supports only a part of it (all of it since Linux 6.12)".to_owned())
        }
        RulesetStatus::NotEnforced => Err("this kernel has it not, or not in its list of lsm=".to_owned()),
    }
}

fn enforce(grants: &[Grant]) -> Result<RulesetStatus, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI_KNOWN))?
        .handle_access(AccessNet::BindTcp)?
        .scope(Scope::from_all(ABI_KNOWN))?
        .create()?;
    for Grant { path, access } in grants {
        let Ok(opened) = PathFd::new(path) else { continue };
        let rights = match path.is_dir() {
            true => access.rights(),
            false => access.rights() & AccessFs::from_file(ABI_KNOWN),
        };
        ruleset = ruleset.add_rule(PathBeneath::new(opened, rights))?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}
