//! Our initiator against tgt: `copy --verify` to it and from it, plain and with CHAP.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use rand::RngExt;

use crate::harness::files::{empty_file, patchy_file, random_file, same_file, same_range, size_of};
use crate::harness::{Cases, Context, Credentials, Disk, Served, Tgt, scratch};

const LIMIT: Duration = Duration::from_secs(120);

fn copy(context: &Context, source: &str, destination: &str, more: &[&str]) -> Result<()> {
    let mut arguments = vec!["copy", "--verify", source, destination];
    arguments.extend(more);
    context.ours(&arguments, LIMIT)?.success().map(|_| ())
}

/// There and back again through one LUN of tgt.
fn round_trip(context: &Context, source: &Path, endpoint_options: &str, served: &mut Served) -> Result<()> {
    let dir = scratch()?;
    let back = dir.path().join("back.img");
    empty_file(&back, size_of(source)?)?;
    let url = format!("{}{endpoint_options}", served.url(0));
    let result = copy(context, &source.display().to_string(), &url, &[])
        .and_then(|()| copy(context, &url, &back.display().to_string(), &[]))
        .and_then(|()| same_file(source, &back));
    served.blame(result)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let mut rng = context.rng("tgt");
    for index in 0..context.amount(3, 16) {
        let mib = rng.random_range(1..=if index == 0 { 64 } else { 24u64 });
        let block = if index % 2 == 1 { Some(4096) } else { None };
        let seed = rng.random();
        cases.check(&format!("round-trip-{index}"), || {
            let dir = scratch()?;
            let (source, stored) = (dir.path().join("source.img"), dir.path().join("stored.img"));
            if index % 3 == 2 {
                patchy_file(&source, mib << 20, seed)?;
            } else {
                random_file(&source, mib << 20, seed)?;
            }
            empty_file(&stored, mib << 20)?;
            let mut disk = Disk::file(&stored);
            disk.thin = index % 3 == 2;
            disk.block_size = block;
            let mut served = Served::Tgt(Tgt::serve(&[disk], None)?);
            let allow = ["--allow", "sector-size"];
            let result = copy(context, &source.display().to_string(), &served.url(0).to_string(), &allow);
            served.blame(result)?;
            let back = dir.path().join("back.img");
            empty_file(&back, mib << 20)?;
            let result = copy(context, &served.url(0).to_string(), &back.display().to_string(), &allow);
            served.blame(result)?;
            drop(served);
            same_file(&source, &stored)?;
            same_file(&source, &back)
        });
    }

    let credentials = Credentials::example();
    let dir = scratch()?;
    let (source, stored) = (dir.path().join("source.img"), dir.path().join("stored.img"));
    random_file(&source, 16 << 20, context.seed_for("tgt/chap"))?;
    empty_file(&stored, 16 << 20)?;
    let mut served = Served::Tgt(Tgt::serve(&[Disk::file(&stored)], Some(&credentials))?);
    let secret = credentials.secret_file(dir.path())?;
    let chap = format!(",chap-user={},chap-secret-file={}", credentials.user, secret.display());
    cases.check("chap-round-trip", || round_trip(context, &source, &chap, &mut served));
    cases.check("chap-from-environment", || {
        let mut command = context.command();
        command.args(["compare", &source.display().to_string(), &served.url(0).to_string()]);
        command.env("LIBISCSI_CHAP_USERNAME", &credentials.user);
        command.env("LIBISCSI_CHAP_PASSWORD", &credentials.secret);
        crate::harness::run(&mut command, LIMIT)?.success().map(|_| ())
    });
    let wrong = Credentials { user: credentials.user.clone(), secret: "not-the-secret-1".into() };
    let wrong_dir = scratch()?;
    let wrong_file = wrong.secret_file(wrong_dir.path())?;
    for (name, options) in [
        (
            "chap-wrong-secret-exits-4",
            format!(",chap-user={},chap-secret-file={}", wrong.user, wrong_file.display()),
        ),
        ("chap-missing-exits-4", String::new()),
    ] {
        cases.check(name, || {
            let url = format!("{}{options}", served.url(0));
            let output = context.ours(&["copy", &source.display().to_string(), &url], LIMIT)?;
            let output = output.expect(4)?;
            for secret in [&credentials.secret, &wrong.secret] {
                ensure!(!output.text().contains(secret.as_str()), "a secret is shown:\n{}", output.text());
            }
            Ok(())
        });
    }
    cases.check("larger-destination-keeps-its-rest", || {
        let big = dir.path().join("big.img");
        random_file(&big, 20 << 20, context.seed_for("tgt/big"))?;
        let before = dir.path().join("before.img");
        std::fs::copy(&big, &before)?;
        let mut served = Served::Tgt(Tgt::serve(&[Disk::file(&big)], None)?);
        let result = copy(context, &source.display().to_string(), &served.url(0).to_string(), &[]);
        served.blame(result)?;
        drop(served);
        same_range(&source, 0, &big, 0, 16 << 20)?;
        same_range(&before, 16 << 20, &big, 16 << 20, 4 << 20)
    });
    Ok(())
}
