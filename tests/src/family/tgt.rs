//! The initiator against tgt: `copy --verify` in both directions, plain and with CHAP.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rand::RngExt;
use tempfile::TempDir;

use crate::files::{empty_file, patchy_file, random_file, same_file, same_range, size_of};
use crate::{Cases, Context, Credentials, Disk, Running, Scene, Served, Tgt, scratch};

const LIMIT: Duration = Duration::from_secs(120);
/// Long enough for a load to begin.
const UNDER_LOAD: Duration = Duration::from_secs(1);
/// Less than the 30 s after which a session that is not set up ends.
const SET_UP_LIMIT: Duration = Duration::from_secs(20);

fn copy(context: &Context, source: &str, destination: &str, more: &[&str]) -> Result<()> {
    let arguments = [&["copy", "--verify", source, destination], more].concat();
    context.ours(&arguments, LIMIT)?.success().map(drop)
}

/// A copy to the first LUN and back.
fn round_trip(
    context: &Context,
    source: &Path,
    options: &str,
    more: &[&str],
    served: &mut Served,
) -> Result<()> {
    let dir = scratch()?;
    let back = empty_file(dir.path().join("back.img"), size_of(source)?)?;
    let url = format!("{}{options}", served.url(0));
    let result = copy(context, &source.display().to_string(), &url, more)
        .and_then(|()| copy(context, &url, &back.display().to_string(), more))
        .and_then(|()| same_file(source, &back));
    served.blame(result)
}

/// A round trip over a LUN of tgt, whose kind follows from `index`.
fn there_and_back(context: &Context, index: usize, bytes: u64, seed: u64) -> Result<()> {
    let dir = scratch()?;
    let thin = index % 3 == 2;
    let make = if thin { patchy_file::<PathBuf> } else { random_file::<PathBuf> };
    let source = make(dir.path().join("source.img"), bytes, seed)?;
    let stored = empty_file(dir.path().join("stored.img"), bytes)?;
    let block_size = (index % 2 == 1).then_some(4096);
    let mut served = Served::Tgt(Tgt::serve(&[Disk { thin, block_size, ..Disk::file(&stored) }], None)?);
    round_trip(context, &source, "", &["--allow", "sector-size"], &mut served)?;
    drop(served);
    same_file(&source, &stored)
}

/// A second session is set up while the first one always has commands outstanding.
fn busy_unit(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let source = random_file(dir.path().join("source.img"), 16 << 20, context.seed_for("tgt/busy"))?;
    let served = Served::Tgt(Tgt::serve(&[Disk::file(&source)], None)?);
    let url = served.url(0).to_string();
    let mut load = context.command();
    load.args(["bench", "path", &url, "--block-size", "1M", "--depth", "32", "--seconds", "60"]);
    let load = Running::start(&mut load)?;
    std::thread::sleep(UNDER_LOAD);
    let info = context.ours(&["info", &url], SET_UP_LIMIT);
    drop(load);
    info?.success().map(drop)
}

struct Chap {
    dir: TempDir,
    source: PathBuf,
    served: Served,
    options: String,
}

impl Chap {
    fn new(context: &Context, credentials: &Credentials) -> Result<Self> {
        let dir = scratch()?;
        let source = random_file(dir.path().join("source.img"), 16 << 20, context.seed_for("tgt/chap"))?;
        let stored = empty_file(dir.path().join("stored.img"), 16 << 20)?;
        let served = Served::Tgt(Tgt::serve(&[Disk::file(&stored)], Some(credentials))?);
        let options = credentials.options(dir.path())?;
        Ok(Self { dir, source, served, options })
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let mut rng = context.rng("tgt");
    for index in 0..16 {
        let mib = rng.random_range(1..=if index == 0 { 64 } else { 24u64 });
        let seed = rng.random();
        cases.check_some(("round-trips", 3), &format!("round-trip-{index}"), || {
            there_and_back(context, index, mib << 20, seed)
        });
    }

    cases.check("a-busy-unit-is-set-up", || busy_unit(context));
    let credentials = Credentials::example();
    let mut chap = Scene::new(|| Chap::new(context, &credentials));
    cases.check("chap-round-trip", || {
        let Chap { source, served, options, .. } = chap.get_mut()?;
        round_trip(context, source, options, &[], served)
    });
    cases.check("chap-from-environment", || {
        let Chap { source, served, options, .. } = chap.get()?;
        let url = format!("{}{options}", served.url(0));
        copy(context, &source.display().to_string(), &url, &[])?;
        let mut command = context.command();
        command.args(["compare", &source.display().to_string(), &served.url(0).to_string()]);
        command.env("LIBISCSI_CHAP_USERNAME", &credentials.user);
        command.env("LIBISCSI_CHAP_PASSWORD", &credentials.secret);
        crate::run(&mut command, LIMIT)?.success().map(drop)
    });
    let wrong = Credentials { user: credentials.user.clone(), secret: "not-the-secret-1".into() };
    for (name, is_missing) in [("chap-wrong-secret-exits-4", false), ("chap-missing-exits-4", true)] {
        cases.check(name, || {
            let Chap { source, served, .. } = chap.get()?;
            let dir = scratch()?;
            let options = if is_missing { String::new() } else { wrong.options(dir.path())? };
            let url = format!("{}{options}", served.url(0));
            let output = context.ours(&["copy", &source.display().to_string(), &url], LIMIT)?.expect(4)?;
            let shown = |secret: &String| output.text().contains(secret.as_str());
            demand!(!shown(&credentials.secret) && !shown(&wrong.secret), "a secret is shown: {output}")
        });
    }
    cases.check("larger-destination-keeps-its-rest", || {
        let Chap { dir, source, .. } = chap.get()?;
        let big = random_file(dir.path().join("big.img"), 20 << 20, context.seed_for("tgt/big"))?;
        let before = dir.path().join("before.img");
        std::fs::copy(&big, &before)?;
        let mut served = Served::Tgt(Tgt::serve(&[Disk::file(&big)], None)?);
        let result = copy(context, &source.display().to_string(), &served.url(0).to_string(), &[]);
        served.blame(result)?;
        drop(served);
        same_range(source, 0, &big, 0, 16 << 20)?;
        same_range(&before, 16 << 20, &big, 16 << 20, 4 << 20)
    });
    Ok(())
}
