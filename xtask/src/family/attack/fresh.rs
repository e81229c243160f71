//! Keys of a live session: renewal by a fresh exchange, and what a thief of one generation can read.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use seal::Suite;

use super::super::sealed::estate::Estate;
use super::super::sealed::insider::who;
use crate::harness::pdu::Session;
use crate::harness::process::{Surroundings, run};
use crate::harness::seal::Who;
use crate::harness::{Cases, Context, Disk, Target, Tier, Url};

const NAME: &str = "iqn.2026-11.org.example:fresh";
const BYTES: u64 = 1 << 20;
/// Time in which a target closes a connection.
const CLOSED: Duration = Duration::from_secs(5);

/// A sealed session whose number tells it apart from the others.
fn login(url: &Url, who: &Who, number: u8) -> Result<Session> {
    let mut session = Session::login_sealed(url, NAME, [0x80, 0, 0, 0, 1, number], who)?;
    session.blocks(0)?;
    session.stream.set_read_timeout(Some(CLOSED))?;
    Ok(session)
}

fn exchange(session: &mut Session) -> Result<()> {
    let seal = session.seal.as_mut().context("a sealed session")?;
    let offer = seal.offer()?;
    session.stream.write_all(&offer)?;
    seal.receive_answer(&mut session.stream).context("the answer to an offer of fresh keys")
}

/// The target answers an offer at any time with fresh keys of its own, and both directions go on in the next generation, which
/// does not follow from the last one alone: the harness's half has no other way to its keys than the exchange.
fn answered(url: &Url, who: &Who) -> Result<()> {
    let mut session = login(url, who, 1)?;
    let data = vec![0x5a; 32 * 512];
    for generation in 1..=5_u16 {
        exchange(&mut session)?;
        session.write(0, 64, &data).with_context(|| format!("generation {generation}"))?;
        ensure!(session.read(0, 64, 32)? == data, "generation {generation}");
        let channel = &session.seal.as_ref().context("sealed")?.channel;
        let generations = (channel.sealer.generation(), channel.opener.generation());
        ensure!(generations == (generation, generation), "{generations:?} after exchange {generation}");
    }
    session.logout()
}

/// An offer that was altered on its way ends its connection, and no other.
fn altered(url: &Url, who: &Who) -> Result<()> {
    let mut other = login(url, who, 2)?;
    exchange(&mut other)?;
    for (number, at) in [2, 3, 4, 40, 1219, 1235].into_iter().enumerate() {
        let mut session = login(url, who, 3)?;
        let mut offer = session.seal.as_mut().context("sealed")?.offer()?;
        offer[at] ^= 1;
        // A prefix that calls for more is followed by as much.
        offer.resize(4096, 0);
        // The target may have closed before it took the whole.
        let _ = session.stream.write_all(&offer);
        let mut rest = Vec::new();
        match session.stream.read_to_end(&mut rest) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                bail!("byte {at}: the connection stands")
            }
            // A reset is an end, too.
            _ => ensure!(rest.is_empty(), "byte {at}: it says {} bytes first", rest.len()),
        }
        other.read(0, number as u32, 1).with_context(|| format!("the other session, byte {at}"))?;
    }
    other.logout()
}

/// Bytes of units after which the initiator offers an exchange (docs/SEAL.md section 6), and how many of them are compared.
const UNIT_BYTES_DUE: u64 = 1 << 36;
const COMPARED: u64 = UNIT_BYTES_DUE + (1 << 30);

/// A real session that passes 2^36 bytes exchanges keys once, and the data on both sides of the exchange is right.
fn after_64_gib(context: &Context, estate: &Estate) -> Result<()> {
    let identity = estate.target.file.display().to_string();
    let peers = estate.peers.display().to_string();
    let pattern = format!("pattern:{COMPARED}");
    let arguments = ["--seal", "require", "--identity", &identity, "--peers", &peers];
    let disks = [Disk::endpoint(&pattern)];
    let target = Target::serve_with(context, &disks, None, &arguments, &Surroundings::default())?;
    let endpoint = estate.endpoint(&target, &target.url(0).portal, &estate.friend, "");
    let mut command = context.command();
    command.args(["compare", &pattern, &endpoint]).env("HIKYAKU_LOG", "debug");
    let output = run(&mut command, Duration::from_secs(600))?.success()?;
    let exchanges = output.stderr.matches("an exchange of fresh keys goes on").count();
    ensure!(exchanges == 1, "{exchanges} exchanges in {COMPARED} bytes");
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let estate = Estate::new(context, BYTES)?;
    estate.let_in(&[("friend", &estate.friend)])?;
    let target = estate.serve(context, "require")?;
    let url = target.url(0).clone();
    for suite in [Suite::Aes256Gcm, Suite::Aegis128X2] {
        let friend = who(&estate.friend, &estate.target, suite)?;
        cases.check(&format!("fresh-offer-is-answered-{}", suite.name().to_lowercase()), || {
            answered(&url, &friend)
        });
    }
    let friend = who(&estate.friend, &estate.target, Suite::Aes256Gcm)?;
    cases.check("fresh-altered-offer-ends-its-connection-alone", || altered(&url, &friend));
    if context.tier == Tier::Full {
        cases.check("fresh-exchange-after-64-gib", || after_64_gib(context, &estate));
    }
    Ok(())
}
