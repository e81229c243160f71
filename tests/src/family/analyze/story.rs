//! The README's slow copy: QEMU to tgt over 40 ms, the limit named, what its advice gains, and the limit after that.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use lab::wan::obstacle;

use crate::files::random_file;
use crate::verdict::{Answer, Burst, Limit, Load, Peers, Programs, Scene, Setup, Take, analyze};
use crate::{Cases, Context, program, scratch};

const BYTES: u64 = 64 << 20;
const RTT_MS: f64 = 40.0;
const MBIT: f64 = 1000.0;

/// `qemu-img convert` with these options.
const STEPS: [&[&str]; 3] = [&[], &["-m", "4", "-W"], &["-m", "16", "-W"]];

fn setup() -> Setup {
    let load = Load { rtt_ms: RTT_MS, mbit: MBIT, block: 2 << 20, depth: 1, is_write: true };
    Setup { peers: Peers::LibiscsiTgt, load, burst: Burst::Default, injections: Vec::new(), queue: 1.0 }
}

/// Copies once; returns the time and the verdict on the capture.
fn copy(context: &Context, scene: &Scene<'_>, dir: &Path, options: &[&str]) -> Result<(Duration, Answer)> {
    let capture = dir.join("slow.pcap");
    let mut command = program("qemu-img")?;
    command.args(["convert", "-n", "-f", "raw", "-O", "raw"]).args(options);
    let time = scene.capture(command.arg(dir.join("disk.img")).arg(scene.url()), &capture)?;
    Ok((time, analyze(context, &capture)?))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let mut steps = Vec::new();
    if let Some(obstacle) = obstacle() {
        return cases.note(format!("the slow copy of the README: not run, {obstacle}"));
    }
    cases.check_some(("story", 0), "a-slow-copy-named-and-mended", || {
        let (dir, setup, programs) = (scratch()?, setup(), Programs::compile()?);
        random_file(dir.path().join("disk.img"), BYTES, context.seed_for("story"))?;
        let take = Take { seconds: 0.0, warm_seconds: 0.0, captures: None, has_watch: false, seed: 1 };
        let scene = Scene::start(context, &programs, &setup, &take)?;
        for options in STEPS {
            steps.push(copy(context, &scene, dir.path(), options)?);
        }
        let [(slow, named), (better, _), (best, after)] = &steps[..] else { unreachable!("three steps") };
        ensure!(named.limit == Limit::R2t, "at first limited by {}", named.limit.name());
        ensure!(*slow > *better * 2 && *better > *best, "{slow:?}, {better:?}, {best:?}");
        ensure!(after.limit == Limit::SendBuffer, "in the end limited by {}", after.limit.name());
        Ok(())
    });
    for (options, (time, answer)) in STEPS.iter().zip(&steps) {
        let command = [&["qemu-img convert"], *options].concat().join(" ");
        let (seconds, limit) = (time.as_secs_f64(), answer.limit.name());
        cases.note(format!("{command}: {seconds:.1} s, limited by {limit}"));
    }
}
