//! Keys of a live session: renewal by a fresh exchange, and what the keys of one generation can decrypt.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use seal::Suite;

use super::super::FULL_ONLY;
use super::super::sealed::estate::Estate;
use super::super::sealed::insider::{closed_silently, renew};
use crate::pdu::Session;
use crate::seal::Who;
use crate::{Cases, Context, Disk, Scene, Target, Url, run};

const NAME: &str = "iqn.2026-11.org.example:fresh";
const BYTES: u64 = 1 << 20;

fn login(url: &Url, who: &Who, number: u8) -> Result<Session> {
    let mut session = Session::login_sealed(url, NAME, [0x80, 0, 0, 0, 1, number], who)?;
    session.blocks(0)?;
    Ok(session)
}

/// The target answers an offer at any time with its own fresh keys, and both directions continue in the next
/// generation. That generation does not follow from the last one alone: the harness obtains its keys only by the
/// exchange.
fn answered(url: &Url, who: &Who) -> Result<()> {
    let mut session = login(url, who, 1)?;
    let data = vec![0x5a; 32 * 512];
    for generation in 1..=5_u16 {
        renew(&mut session)?;
        session.write(0, 64, &data).with_context(|| format!("generation {generation}"))?;
        ensure!(session.read(0, 64, 32)? == data, "generation {generation}");
        let channel = &session.seal.as_ref().context("sealed")?.channel;
        let generations = (channel.sealer.generation(), channel.opener.generation());
        ensure!(generations == (generation, generation), "{generations:?} after exchange {generation}");
    }
    session.logout()
}

/// An offer altered in transit ends its connection, and no other.
fn altered(url: &Url, who: &Who) -> Result<()> {
    let mut other = login(url, who, 2)?;
    renew(&mut other)?;
    for (number, at) in [2, 3, 4, 40, 1219, 1235].into_iter().enumerate() {
        let mut session = login(url, who, 3)?;
        let mut offer = session.seal.as_mut().context("sealed")?.offer()?;
        offer[at] ^= 1;
        // An altered prefix may announce more bytes, so 4096 bytes follow it.
        offer.resize(4096, 0);
        // The target may have closed before it received everything.
        let _ = session.stream.write_all(&offer);
        closed_silently(session).with_context(|| format!("byte {at}"))?;
        other.read(0, number as u32, 1).with_context(|| format!("the other session, byte {at}"))?;
    }
    other.logout()
}

/// Bytes of units after which the initiator offers an exchange (docs/SEAL.md section 6), and the number of bytes
/// compared.
const UNIT_BYTES_DUE: u64 = 1 << 36;
const COMPARED: u64 = UNIT_BYTES_DUE + (1 << 30);

/// A real session that transfers more than 2^36 bytes exchanges keys once, and the data before and after the exchange
/// is correct.
fn after_64_gib(context: &Context, estate: &Estate) -> Result<()> {
    let pattern = format!("pattern:{COMPARED}");
    let (identity, peers) = (estate.target.path(), estate.peers.display().to_string());
    let arguments = ["--seal", "require", "--identity", &identity, "--peers", &peers];
    let target = Target::serve(context, &[Disk::endpoint(&pattern)], None, &arguments)?;
    let endpoint = estate.friend_at(&target);
    let mut command = context.command();
    command.args(["compare", &pattern, &endpoint]).env("HIKYAKU_LOG", "debug");
    let output = run(&mut command, Duration::from_secs(600))?.success()?;
    let exchanges = output.stderr.matches("an exchange of fresh keys goes on").count();
    demand!(exchanges == 1, "{exchanges} exchanges in {COMPARED} bytes")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let scene = Scene::new(|| {
        let estate = Estate::new(context, BYTES)?;
        let target = estate.serve(context, "require")?;
        Ok((estate, target))
    });
    let friend = |suite| {
        let (estate, target) = scene.get()?;
        anyhow::Ok((target.url(0), estate.friend.who(&estate.target, suite)?))
    };
    for suite in [Suite::Aes256Gcm, Suite::Aegis128X2] {
        cases.check(&format!("fresh-offer-is-answered-{}", suite.name().to_lowercase()), || {
            let (url, friend) = friend(suite)?;
            answered(url, &friend)
        });
    }
    cases.check("fresh-altered-offer-ends-its-connection-alone", || {
        let (url, friend) = friend(Suite::Aes256Gcm)?;
        altered(url, &friend)
    });
    cases.check_some(FULL_ONLY, "fresh-exchange-after-64-gib", || after_64_gib(context, &scene.get()?.0));
}
