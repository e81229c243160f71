//! Copies made by an NFS server itself, in an emulated machine that is server and client: `copy --offload` on files of
//! a mount. One boot runs all of `nfs.sh`; each name that it judges is a case.

use std::time::Duration;

use anyhow::Result;

use super::guest::{Said, judge, with_program};
use super::kernel::script;
use crate::{Cases, Context, Scene, run, scratch};

/// A boot and some hundred MiB through an emulated processor.
const GUEST_LIMIT: Duration = Duration::from_secs(400);

const NAMES: &str = "mounted copied copied-same copied-by-two-requests copied-without-data verified part part-same holes \
    holes-same mounted-4.1 old old-same";

fn boot(context: &Context) -> Result<Said> {
    let dir = scratch()?;
    let mut command = with_program(context, dir.path())?;
    Ok(Said::read(&run(command.arg(script(context, "nfs.sh")), GUEST_LIMIT)?))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let said = Scene::new(|| boot(context));
    judge(cases, NAMES, "", || said.get());
    Ok(())
}
