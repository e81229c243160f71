//! What may be opened: Landlock.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags,
};

use crate::Needs;

/// Rights up to this version of Landlock are taken away; those that the kernel does not know yet it does not take.
const ABI_KNOWN: ABI = ABI::V6;

/// What the program and the C library read whatever is served: who users are, which time it is, what the kernel tells.
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

/// What it reads besides to resolve names. Its files in `/etc` are replaced by renaming, and a right belongs to the file that was
/// there, so it is the directory that is readable.
const RESOLVE: [&str; 5] =
    ["/etc", "/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd"];

/// What may be done beneath a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Files may be read, directories listed.
    Read,
    /// Files may be read and written, devices take their commands; nothing is made or removed.
    Storage,
    /// Files may be made, replaced and removed too.
    State,
}

/// A path, a file or a directory with all beneath it, and what may be done there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The path; what is not there when the grants are applied is not granted.
    pub path: PathBuf,
    /// What may be done.
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

/// Everything that may be opened.
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

/// The directory that a file lies in.
fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    }
}

/// Binds the calling thread to the grants. Nothing may be executed, no port listened on, and no abstract socket or process
/// outside reached.
pub(crate) fn restrict(grants: &[Grant]) -> Result<(), String> {
    let status = enforce(grants).map_err(|error| error.to_string())?;
    match status {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced => {
            Err("this kernel knows a part of it only (all of it since Linux 6.12)".to_owned())
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
