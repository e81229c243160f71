//! Copies that an NFS server makes by itself, in an emulated machine that is server and client: `copy --offload` on files of a mount. One
//! boot does all of `nfs.sh`; each line it prints is a case.

use std::time::Duration;

use anyhow::Result;

use super::guest::{bring_program, judge};
use super::kernel::{build_guest, guest, script};
use crate::harness::{Cases, Context, run, scratch};

/// A boot and some hundred MiB through an emulated processor.
const GUEST_LIMIT: Duration = Duration::from_secs(400);

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    build_guest(context)?;
    let dir = scratch()?;
    let mut command = guest(context);
    command.arg("run");
    bring_program(&mut command, context, dir.path())?;
    let output = run(command.arg(script(context, "nfs.sh")), GUEST_LIMIT)?;
    judge(cases, &output, GUEST_LIMIT);
    Ok(())
}
