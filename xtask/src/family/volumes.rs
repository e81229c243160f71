//! LVM's volumes in an emulated machine: `copy --since` between thin volumes and what `--snapshot auto` leaves. One boot does all of
//! `volumes.sh`; each line it prints is a case.

use std::time::Duration;

use anyhow::Result;

use super::guest::{bring_program, judge};
use super::kernel::{build_guest, guest, script};
use crate::harness::files::empty_file;
use crate::harness::{Cases, Context, Tier, run, scratch};

/// A boot, some GiB through an emulated processor, and deliberate waits.
const GUEST_LIMIT: Duration = Duration::from_secs(590);
/// The volume group.
const BYTES: u64 = 1 << 30;

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    build_guest(context)?;
    let dir = scratch()?;
    let image = dir.path().join("group");
    empty_file(&image, BYTES)?;
    let mut command = guest(context);
    command.arg("run");
    bring_program(&mut command, context, dir.path())?;
    let drive = format!("if=none,id=group,format=raw,file={}", image.display());
    for argument in
        ["-device", "virtio-scsi-pci,id=scsi", "-drive", &drive, "-device", "scsi-hd,bus=scsi.0,drive=group"]
    {
        command.args(["--qemu", argument]);
    }
    let rounds = if context.tier == Tier::Full { 8 } else { 3 };
    command.arg(script(context, "volumes.sh")).arg(format!("ROUNDS={rounds}"));
    command.arg(format!("SEED={}", context.seed_for("volumes") & 0x7fff_ffff));
    let output = run(&mut command, GUEST_LIMIT)?;
    judge(cases, &output, GUEST_LIMIT);
    Ok(())
}
