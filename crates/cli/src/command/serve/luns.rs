//! Opens the storage of configured LUNs and claims their identities.

use std::collections::HashMap;
use std::sync::Arc;

use block::layer::ReadaheadMedium;
use block::{Location, Medium, OpenOptions};
use job::lock::Hold;
use node::target::{Held, LunConfig, TargetConfig};

use crate::config::{Lun, rotational, write_cache};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::state::{Claim, Given, Identity, StateDir, already_live};

/// Number of default target names that are tried if other servers use the host's name.
const DEFAULT_NAMES_MAX: u32 = 64;
/// Granularity of initiators' requests in bytes.
const REQUEST_ALIGNMENT: u32 = 512;

/// A target's name with the identities that this process has claimed for its LUNs.
pub(super) struct Claimed {
    pub(super) iqn: String,
    /// Identity of each LUN, in the order of the target's LUNs.
    pub(super) identities: Vec<Identity>,
    /// Claims of the identities, in the same order; each is held as long as its LUN is served.
    pub(super) claims: Vec<Claim>,
}

/// Determines the target's name and claims the identities of its LUNs.
///
/// An explicit name is refused if another process serves it. The default name gets a numeric suffix instead: two
/// servers without explicit names are different targets.
pub(super) fn claim(
    context: &Context,
    iqn: Option<&str>,
    luns: &[&Lun],
    media: &[Arc<dyn Medium>],
) -> Result<Claimed, Failure> {
    let state = StateDir::locate()?;
    if let Some(iqn) = iqn {
        return claim_as(context, &state, iqn, false, luns, media)?
            .map_err(|(lun, naa)| already_live(iqn, lun, naa));
    }
    let host = state.host_name()?;
    for number in 1..=DEFAULT_NAMES_MAX {
        let iqn = if number == 1 { host.clone() } else { format!("{host}.{number}") };
        if let Ok(claimed) = claim_as(context, &state, &iqn, true, luns, media)? {
            if number > 1 {
                context.warn(&format!(
                    "{host} is live in another process; this target is {iqn} (choose with --iqn)"
                ));
            }
            return Ok(claimed);
        }
    }
    Err(Failure::new(
        Exit::Refused,
        "find a free name for",
        host,
        "too many servers without --iqn are running",
    ))
}

/// Claims identities under one name. `Err((lun, naa))`: another process has claimed that identity.
fn claim_as(
    context: &Context,
    state: &StateDir,
    iqn: &str,
    is_default: bool,
    luns: &[&Lun],
    media: &[Arc<dyn Medium>],
) -> Result<Result<Claimed, (u16, u64)>, Failure> {
    let mut claimed = Claimed { iqn: iqn.to_owned(), identities: Vec::new(), claims: Vec::new() };
    for (lun, medium) in luns.iter().zip(media) {
        let Given { mut identity, before } = state.identity(iqn, lun.lun, &storage(lun, &**medium))?;
        identity.naa = lun.naa.unwrap_or(identity.naa);
        let hold = if lun.endpoint.spec.flag("shared") == Ok(true) { Hold::Shared } else { Hold::Exclusive };
        match state.claim(identity.naa, hold)? {
            Some(claim) => claimed.claims.push(claim),
            None => return Ok(Err((lun.lun, identity.naa))),
        }
        if let Some(Identity { naa, serial }) = before.filter(|_| lun.naa.is_none()) {
            let text = format!(
                "LUN {} of {iqn} has other storage than before and is another disk to initiators; if it is the same \
                 disk, moved or restored, say naa={naa:016x},serial={serial}",
                lun.lun
            );
            // Under the default name one image after the other is served: no initiator relies on it.
            if is_default { tracing::info!("{text}") } else { context.warn(&text) }
        }
        if let Some(serial) = &lun.serial {
            identity.serial.clone_from(serial);
        }
        claimed.identities.push(identity);
    }
    Ok(Ok(claimed))
}

/// The storage of an identity: persistent name of the file or device, else the location's text. All memory is one.
fn storage(lun: &Lun, medium: &dyn Medium) -> String {
    match &lun.endpoint.spec.location {
        Location::File(path) => medium.lasting_name().unwrap_or_else(|| format!("device {}", path.display())),
        Location::Url(url) => url.clone(),
        Location::Stdio | Location::Memory { .. } | Location::Null { .. } | Location::Pattern { .. } => {
            "memory".into()
        }
    }
}

pub(crate) fn open(context: &Context, luns: &[&Lun]) -> Result<Vec<Arc<dyn Medium>>, Failure> {
    let open = |lun: &&Lun| {
        let medium = open_unmeasured(context, lun).map_err(|failure| {
            let is_same = |other: &&&Lun| !std::ptr::eq(**other, *lun) && other.endpoint.path() == lun.endpoint.path();
            match luns.iter().find(is_same).filter(|_| failure.ending == Exit::Refused) {
                Some(other) => failure.hint(format!(
                    "name it once: it is LUN {} and LUN {}, and two LUNs of one file would be two disks to initiators",
                    other.lun, lun.lun
                )),
                None => failure,
            }
        })?;
        check_size(context, lun, &*medium)?;
        Ok(medium)
    };
    luns.iter().map(open).collect()
}

/// Opens the storage of a LUN, of any size.
pub(crate) fn open_unmeasured(context: &Context, lun: &Lun) -> Result<Arc<dyn Medium>, Failure> {
    let writable = !is_read_only(lun)?;
    let options = OpenOptions { writable, request_alignment: REQUEST_ALIGNMENT, allow_in_use: false };
    let medium = lun.endpoint.open_to("serve", context, &options)?;
    let is_chosen = lun.endpoint.spec.get("readahead").is_some();
    Ok(match lun.endpoint.is_iscsi() && !is_chosen {
        true => Arc::new(ReadaheadMedium::of_sole_writer(medium)),
        false => medium,
    })
}

/// Refuses local storage that is smaller than a block; warns if it ends within one.
pub(crate) fn check_size(context: &Context, lun: &Lun, medium: &dyn Medium) -> Result<(), Failure> {
    let spec = &lun.endpoint.spec;
    let size_bytes = match &spec.location {
        Location::Memory { size } | Location::Null { size } | Location::Pattern { size, .. } => Some(*size),
        _ => spec.size("size").map_err(|error| usage(lun, error.0))?.or_else(|| medium.current_size()),
    };
    let block =
        spec.block_size("block-size").map_err(|error| usage(lun, error.0))?.unwrap_or(REQUEST_ALIGNMENT);
    let Some(size_bytes) = size_bytes else { return Ok(()) };
    if size_bytes < u64::from(block) {
        let failure = usage(lun, format!("it has {size_bytes} bytes, less than one block of {block}"));
        let file = lun.endpoint.path().filter(|path| path.is_file());
        return Err(match file {
            Some(path) => failure.hint(format!("{},grow,size=64G, which makes it larger", path.display())),
            None => failure,
        });
    }
    let rest = size_bytes % u64::from(block);
    if rest > 0 {
        context.warn(&format!(
            "{} has {size_bytes} bytes: the last {rest} do not fill a block of {block}, and initiators do not see them",
            lun.endpoint.text
        ));
    }
    Ok(())
}

fn usage(lun: &Lun, cause: String) -> Failure {
    Failure::usage("serve", lun.endpoint.text.clone(), cause)
}

fn is_read_only(lun: &Lun) -> Result<bool, Failure> {
    let flag = lun.endpoint.spec.flag("ro").map_err(|error| usage(lun, error.0))?;
    Ok(flag || matches!(lun.endpoint.spec.location, Location::Pattern { .. }))
}

pub(super) fn describe(
    lun: &Lun,
    medium: Arc<dyn Medium>,
    identity: &Identity,
    claim: Claim,
) -> Result<LunConfig, Failure> {
    let spec = &lun.endpoint.spec;
    let flag = |name: &str| spec.flag(name).map_err(|error| usage(lun, error.0));
    let block_size = |name: &str| spec.block_size(name).map_err(|error| usage(lun, error.0));
    Ok(LunConfig {
        lun: lun.lun,
        medium,
        serial: identity.serial.clone(),
        naa: identity.naa,
        read_only: is_read_only(lun)?,
        write_cache: write_cache(spec).map_err(|cause| usage(lun, cause))?,
        vendor: spec.get("vendor").map(str::to_owned),
        product: spec.get("product").map(str::to_owned),
        rotational: rotational(spec).map_err(|cause| usage(lun, cause))?,
        removable: flag("removable")?,
        block_size: block_size("block-size")?,
        physical_block_size: block_size("physical-block")?,
        shared: flag("shared")?,
        exclusive: flag("exclusive")?,
        held: Some(Held::new(claim)),
    })
}

/// Refuses two LUNs of a server with one serial number, unless both are declared `shared`.
pub(super) fn check_distinct(targets: &[TargetConfig]) -> Result<(), Failure> {
    let mut seen: HashMap<&str, (&str, &LunConfig)> = HashMap::new();
    for target in targets {
        for lun in &target.luns {
            let Some((other, earlier)) = seen.insert(&lun.serial, (&target.iqn, lun)) else { continue };
            if lun.shared && earlier.shared {
                continue;
            }
            let cause =
                format!("it has the serial number '{}' of LUN {} of {other}", lun.serial, earlier.lun);
            return Err(Failure::refused("serve", format!("LUN {} of {}", lun.lun, target.iqn), cause)
                .hint("give each its own serial, or say `shared` on both if they are the same storage"));
        }
    }
    Ok(())
}
