//! LVM's volumes in an emulated machine: `copy --since` between thin volumes, and leftovers of `--snapshot auto`. One
//! boot runs all of `volumes.sh`; each name that it judges is a case.

use std::time::Duration;

use anyhow::Result;

use super::guest::{Said, judge, with_program};
use super::kernel::script;
use crate::files::empty_file;
use crate::{Cases, Context, Scene, run, scratch};

/// A boot, some GiB through an emulated processor, and deliberate waits.
const GUEST_LIMIT: Duration = Duration::from_secs(590);
/// Size of the volume group.
const BYTES: u64 = 1 << 30;

/// The names that the script judges, in its order except for the rounds.
const NAMES: &str = "whole since since-exact since-same since-released round-1 round-2 round-3 snapshot-since \
    snapshot-since-clean thin-ends thin-ends-clean thin-ends-nothing thin-TERM-made thin-TERM-code \
    thin-TERM-nothing thin-KILL-made thin-KILL-nothing thick-ends thick-ends-clean thick-ends-nothing \
    thick-TERM-made thick-TERM-code thick-TERM-nothing thick-KILL-made thick-KILL-nothing thick disk pools \
    inactive itself origin reserved reserved-stays no-tool asked-TERM-reserved asked-TERM-released \
    asked-TERM-code asked-KILL-reserved asked-KILL-released asked-KILL-code";
/// Rounds of the full tier only.
const MORE_ROUNDS: &str = "round-4 round-5 round-6 round-7 round-8";

fn boot(context: &Context) -> Result<Said> {
    let dir = scratch()?;
    let image = empty_file(dir.path().join("group"), BYTES)?;
    let mut command = with_program(context, dir.path())?;
    let drive = format!("if=none,id=group,format=raw,file={}", image.display());
    for argument in
        ["-device", "virtio-scsi-pci,id=scsi", "-drive", &drive, "-device", "scsi-hd,bus=scsi.0,drive=group"]
    {
        command.args(["--qemu", argument]);
    }
    let rounds = context.amount(3, 8);
    command.arg(script(context, "volumes.sh")).arg(format!("ROUNDS={rounds}"));
    command.arg(format!("SEED={}", context.seed_for("volumes") & 0x7fff_ffff));
    Ok(Said::read(&run(&mut command, GUEST_LIMIT)?))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let said = Scene::new(|| boot(context));
    judge(cases, NAMES, MORE_ROUNDS, || said.get());
    Ok(())
}
