//! An initiator that holds a key and violates the protocol: records that verify but are not allowed, garbage within the
//! seal, and the session of another initiator.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;
use seal::{Descriptor, Suite};

use super::estate::Estate;
use crate::family::bad_input::template;
use crate::pdu::{self, IMMEDIATE, NOP_OUT, Pdu, Session, cdb10, connect};
use crate::seal::{Sealed, UNIT_BYTES, Who};
use crate::{Cases, Context, Scene, Target, Url, random};

const BYTES: u64 = 4 << 20;
const NAME: &str = "iqn.2026-11.org.example:insider";
const CLOSED: Duration = Duration::from_secs(5);
const BLOCK_BYTES: usize = 512;
/// Rekeys of one session: more than the byte that identifies generations can count.
const RENEWALS: usize = 300;

struct Insider {
    target: Target,
    url: Url,
    friend: Who,
    stranger: Who,
}

impl Insider {
    fn new(context: &Context, estate: &Estate) -> Result<Self> {
        let target = estate.serve(context, "require")?;
        Ok(Self {
            url: target.url(0).clone(),
            friend: estate.friend.who(&estate.target, Suite::Aes256Gcm)?,
            stranger: estate.stranger.who(&estate.target, Suite::Aes256Gcm)?,
            target,
        })
    }

    fn login(&self, isid: u8) -> Result<Session> {
        let mut session = Session::login_sealed(&self.url, NAME, [0x80, 0, 0, 0, 0, isid], &self.friend)?;
        session.blocks(0)?;
        Ok(session)
    }
}

pub(crate) fn closed_silently(mut session: Session) -> Result<()> {
    session.stream.set_read_timeout(Some(CLOSED))?;
    let mut rest = Vec::new();
    match session.stream.read_to_end(&mut rest) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => bail!("the connection stands"),
        // A reset also counts as the end.
        _ => ensure!(rest.is_empty(), "it says {} bytes first", rest.len()),
    }
    Ok(())
}

/// A WRITE(10) of `blocks` from block 0 on, with `immediate` bytes of immediate data.
fn write_command(session: &mut Session, blocks: u16, immediate: usize) -> Pdu {
    let data = vec![0xee; usize::from(blocks) * BLOCK_BYTES];
    session.command(0, &cdb10(0x2a, 0, blocks), 0, &data).with_data(data[..immediate].to_vec())
}

fn spoiled(
    session: &mut Session,
    pdu: &Pdu,
    spoil: impl FnOnce(&mut Vec<u8>, &mut Vec<Descriptor>, &mut Vec<u8>),
) -> Result<()> {
    let seal = session.seal.as_mut().context("a sealed session")?;
    let (mut descriptors, mut body) = seal.units(pdu);
    let mut header = pdu.bhs.to_vec();
    spoil(&mut header, &mut descriptors, &mut body);
    let record = seal.record(&header, &descriptors, &body);
    Ok(session.stream.write_all(&record)?)
}

type Spoil = fn(&mut Vec<u8>, &mut Vec<Descriptor>, &mut Vec<u8>);

/// Records of a write of 16 blocks (one unit) that violate section 5 of docs/SEAL.md.
const SPOILS: &[(&str, Spoil)] = &[
    ("descriptor-missing", |_, descriptors, _| descriptors.clear()),
    ("descriptor-twice", |_, descriptors, _| descriptors.push(descriptors[0])),
    ("descriptors-33-less-one", |_, descriptors, _| *descriptors = vec![descriptors[0]; 32]),
    ("unit-shorter-than-its-body", |_, descriptors, _| descriptors[0].length -= 1),
    ("unit-longer-than-its-body", |_, descriptors, _| descriptors[0].length += 1),
    ("unit-of-no-bytes", |_, descriptors, _| descriptors[0].length = 0),
    ("unit-of-4-gib", |_, descriptors, _| descriptors[0].length = u32::MAX),
    ("tag-wrong", |_, descriptors, _| descriptors[0].tag[15] ^= 1),
    ("seal-id-of-another-unit", |_, descriptors, _| descriptors[0].seal_id += 1),
    ("body-altered", |_, _, body| body[100] ^= 1),
    ("descriptor-without-data", |header, _, body| {
        header[5..8].fill(0);
        body.clear();
    }),
    ("units-cut-at-half", |_, descriptors, _| {
        descriptors[0].length /= 2;
        descriptors.push(descriptors[0]);
    }),
    ("data-segment-longer-than-declared", |header, _, body| {
        header[5..8].copy_from_slice(&[0xff, 0xff, 0xff]);
        body.resize(1 << 20, 0);
    }),
];

fn spoil(insider: &Insider, name: &str, how: Spoil) -> Result<()> {
    let mut session = insider.login(1)?;
    let command = write_command(&mut session, (UNIT_BYTES / BLOCK_BYTES) as u16, UNIT_BYTES);
    // The target may have closed before it received everything.
    let sent = spoiled(&mut session, &command, how);
    closed_silently(session).with_context(|| format!("{name} (sent: {sent:?})"))
}

/// Forbidden divisions of a write of two units: bytes and number of descriptors of each Data-Out. Bytes without a
/// descriptor are not sealed.
const DIVISIONS: &[(&str, &[(usize, usize)])] = &[
    ("a descriptor in the middle of a unit", &[(UNIT_BYTES / 2, 1), (UNIT_BYTES / 2, 1)]),
    ("a short unit that is not the last", &[(UNIT_BYTES / 2, 1), (UNIT_BYTES, 1)]),
    ("units that begin without a descriptor", &[(UNIT_BYTES, 1), (UNIT_BYTES, 0)]),
    ("no descriptor at all", &[(UNIT_BYTES / 2, 0), (UNIT_BYTES, 0)]),
];

fn pieces(insider: &Insider) -> Result<()> {
    for (name, parts) in DIVISIONS {
        let mut session = insider.login(2)?;
        let command = write_command(&mut session, 2 * (UNIT_BYTES / BLOCK_BYTES) as u16, 0);
        session.send(&command)?;
        let r2t = session.receive()?;
        ensure!(r2t.opcode() == pdu::R2T, "{name}: no R2T, but opcode {:#x}", r2t.opcode());
        let mut offset = 0;
        for (number, &(bytes, descriptors)) in parts.iter().enumerate() {
            let mut data_out = Pdu::new(pdu::DATA_OUT, 0).with_data(vec![0xdd; bytes]);
            data_out.bhs[8..16].copy_from_slice(&r2t.bhs[8..16]);
            data_out.set(16, r2t.get(16)).set(20, r2t.get(20)).set(36, number as u32).set(40, offset as u32);
            offset += bytes;
            // The target may have closed after the first of them.
            let _ = spoiled(&mut session, &data_out, |_, all, _| all.truncate(descriptors));
        }
        closed_silently(session).with_context(|| (*name).to_owned())?;
    }
    Ok(())
}

/// An unsealed PDU in place of a record, and a record before the answer to the handshake.
fn in_the_clear(insider: &Insider) -> Result<()> {
    let mut session = insider.login(3)?;
    let command = session.command(0, &cdb10(0x28, 0, 8), 4096, &[]);
    session.stream.write_all(&command.encode())?;
    closed_silently(session).context("a READ in the clear")?;
    // A complete plain login behind the handshake.
    let mut stream = connect(&insider.url, CLOSED)?;
    let isid = [0x80, 0, 0, 0, 0, 4];
    Sealed::begin(&mut stream, &insider.url, NAME, isid, &insider.friend)?;
    let login = Session::login_over(stream, None, &insider.url, NAME, isid);
    demand!(login.is_err(), "a login in the clear behind a handshake")
}

pub(crate) fn renew(session: &mut Session) -> Result<()> {
    let seal = session.seal.as_mut().context("a sealed session")?;
    let offer = seal.offer()?;
    session.stream.write_all(&offer)?;
    seal.receive_answer(&mut session.stream).context("the answer to an offer of fresh keys")
}

/// More generations than a byte counts, with reads and writes between them.
fn renewals(insider: &Insider) -> Result<()> {
    let mut session = insider.login(5)?;
    let data = vec![0x5a; 16 * BLOCK_BYTES];
    for round in 0..RENEWALS {
        renew(&mut session).with_context(|| format!("exchange {round}"))?;
        if round % 10 == 0 {
            session.write(0, 64, &data).with_context(|| format!("generation {}", round + 1))?;
        }
        if round % 3 == 0 {
            ensure!(session.read(0, 64, 16)? == data, "generation {}", round + 1);
        }
    }
    session.logout()
}

/// Within the seal, digests are not negotiated and sealing is not offered again.
fn inner_login(insider: &Insider) -> Result<()> {
    let mut stream = connect(&insider.url, CLOSED)?;
    let isid = [0x80, 0, 0, 0, 0, 6];
    let mut seal = Sealed::begin(&mut stream, &insider.url, NAME, isid, &insider.friend)?;
    let request = |operational: bool, from: &str, to: &str| -> Result<Pdu> {
        let request = pdu::login_request(&insider.url, NAME, isid, operational);
        let text = String::from_utf8(request.data.clone())?;
        Ok(request.with_data(text.replace(from, to).into_bytes()))
    };
    let again = request(false, "AuthMethod=None", "AuthMethod=Z-example.hikyaku.seal1")?;
    stream.write_all(&seal.seal(&again))?;
    let refused = seal.receive(&mut stream).map_or(true, |answer| {
        answer.status() != [0, 0] || String::from_utf8_lossy(&answer.data).contains("Reject")
    });
    ensure!(refused, "a seal within the seal is not refused");

    let mut stream = connect(&insider.url, CLOSED)?;
    let mut seal = Sealed::begin(&mut stream, &insider.url, NAME, isid, &insider.friend)?;
    let mut exp_stat_sn = 0;
    for operational in [false, true] {
        let mut request = request(operational, "Digest=None", "Digest=CRC32C,None")?;
        stream.write_all(&seal.seal(request.set(28, exp_stat_sn)))?;
        let answer = seal.receive(&mut stream)?;
        ensure!(answer.status() == [0, 0], "status {:02x?}", answer.status());
        exp_stat_sn = answer.get(24).wrapping_add(1);
        let text = String::from_utf8_lossy(&answer.data).into_owned();
        ensure!(!text.contains("CRC32C"), "a digest within the seal: {text:?}");
        ensure!(!operational || text.contains("HeaderDigest=None"), "{text:?}");
    }
    Ok(())
}

/// RFC 7143 §6.3.5: a login with the same name and ISID replaces a session, but only with the same key.
fn reinstatement(insider: &Insider) -> Result<()> {
    let isid = [0x80, 0, 0, 0, 0, 7];
    let mut first = Session::login_sealed(&insider.url, NAME, isid, &insider.friend)?;
    first.blocks(0)?;
    let other = Session::login_sealed(&insider.url, NAME, isid, &insider.stranger);
    ensure!(other.is_err(), "another key took the session over");
    first.read(0, 0, 8).context("the session, after somebody with another key came in its name")?;
    let mut again =
        Session::login_sealed(&insider.url, NAME, isid, &insider.friend).context("with its own key")?;
    again.blocks(0)?;
    ensure!(first.read(0, 0, 8).is_err(), "the session that was replaced goes on");
    again.logout()
}

/// The same by a plain login, under the policy `offer`.
fn reinstatement_in_the_clear(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "offer")?;
    let url = target.url(0).clone();
    let friend = estate.friend.who(&estate.target, Suite::Aes256Gcm)?;
    let isid = [0x80, 0, 0, 0, 0, 8];
    let mut first = Session::login_sealed(&url, NAME, isid, &friend)?;
    first.blocks(0)?;
    ensure!(Session::login(&url, NAME, isid).is_err(), "somebody in the clear took a sealed session over");
    first.read(0, 0, 8).context("the sealed session, after somebody in the clear came in its name")?;
    first.logout()
}

/// A peer whose key is bound to a name may not use another, whatever the outer login contained.
fn bound_name(context: &Context, estate: &Estate) -> Result<()> {
    estate.admit_friend(&format!("initiator = \"{NAME}\""))?;
    let target = estate.serve(context, "require")?;
    let url = target.url(0).clone();
    let friend = estate.friend.who(&estate.target, Suite::Aes256Gcm)?;
    let isid = [0x80, 0, 0, 0, 0, 9];
    Session::login_sealed(&url, NAME, isid, &friend).context("under its own name")?.logout()?;
    let mut stream = connect(&url, CLOSED)?;
    let seal = Sealed::begin(&mut stream, &url, NAME, isid, &friend)?;
    let other = Session::login_over(stream, Some(seal), &url, "iqn.2026-11.org.example:somebody-else", isid);
    ensure!(other.is_err(), "another name within the seal");
    estate.admit(&[("friend", &estate.friend)])
}

fn garbage(context: &Context, insider: &Insider, connections: usize) -> Result<()> {
    let mut rng = context.rng("sealed/insider/garbage");
    for index in 0..connections {
        let mut session = insider.login(10)?;
        session.stream.set_read_timeout(Some(Duration::from_millis(30)))?;
        for _ in 0..rng.random_range(1..8) {
            let mut pdu = template(&mut rng, &session);
            for _ in 0..rng.random_range(0..3) {
                // Length fields are left out: with another length it would only be another record.
                let at = [0, 1, 2, 3, 8, 9, 16, 20, 24, 28, 32, 36, 40, 44][rng.random_range(0..14)];
                pdu.bhs[at] = rng.random();
            }
            if session.send(&pdu).is_err() {
                break;
            }
            if pdu.bhs[0] & IMMEDIATE == 0 {
                session.cmd_sn = session.cmd_sn.wrapping_add(1);
            }
        }
        while session.receive().is_ok() {}
        if index % 50 == 0 {
            insider.login(11)?.logout().context("a session between")?;
        }
    }
    Ok(())
}

fn well_behaved(context: &Context, estate: &Estate, target: &Target) -> Result<()> {
    let mut rng = context.rng("sealed/insider/well-behaved");
    for suite in Suite::ALL {
        let friend = estate.friend.who(&estate.target, suite)?;
        let mut session = Session::login_sealed(target.url(0), NAME, [0x80, 0, 0, 0, 0, 12], &friend)?;
        session.blocks(0)?;
        for blocks in [1u16, 15, 16, 17, 128, 511] {
            let data = random::bytes(&mut rng, usize::from(blocks) * BLOCK_BYTES);
            let lba = rng.random_range(0..1000);
            session.write(0, lba, &data).with_context(|| format!("{}: write {blocks}", suite.name()))?;
            let back = session.read(0, lba, blocks);
            let back = back.with_context(|| format!("{}: read {blocks}", suite.name()))?;
            ensure!(back == data, "{}: {blocks} blocks differ", suite.name());
        }
        let mut ping = Pdu::new(NOP_OUT | IMMEDIATE, 0x80).with_data(b"are you there".to_vec());
        ping.set(16, 77).set(20, u32::MAX).set(24, session.cmd_sn).set(28, session.exp_stat_sn);
        session.send(&ping)?;
        ensure!(session.receive()?.data == b"are you there", "{}: ping", suite.name());
        session.logout()?;
    }
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let estate = Scene::new(|| {
        let estate = Estate::new(context, BYTES)?;
        estate.admit(&[("friend", &estate.friend), ("second", &estate.stranger)])?;
        Ok(estate)
    });
    let mut insider = Scene::new(|| Insider::new(context, estate.get()?));
    cases.check("insider-control-well-behaved-in-every-suite", || {
        well_behaved(context, estate.get()?, &insider.get()?.target)
    });
    // The stored data before the first violation.
    let before = Scene::new(|| Ok(std::fs::read(&estate.get()?.file)?));
    for (name, how) in SPOILS {
        cases.check(&format!("insider-{name}"), || {
            before.get()?;
            let insider = insider.get_mut()?;
            spoil(insider, name, *how)?;
            estate.get()?.serves_on(context, &mut insider.target)
        });
    }
    cases.check("insider-pieces-of-no-unit", || {
        before.get()?;
        pieces(insider.get()?)
    });
    cases.check("insider-in-the-clear-behind-the-handshake", || {
        before.get()?;
        in_the_clear(insider.get()?)
    });
    cases.check_sum("insider-stored-nothing", before.is_made(), || {
        demand!(std::fs::read(&estate.get()?.file)? == *before.get()?, "what did not verify was stored")
    });
    cases.check("insider-300-generations", || renewals(insider.get()?));
    cases.check("insider-inner-login-has-no-digests-and-no-seal", || inner_login(insider.get()?));
    cases.check("insider-reinstatement-needs-the-same-key", || reinstatement(insider.get()?));
    cases.check("insider-garbage-within-the-seal", || {
        let insider = insider.get_mut()?;
        garbage(context, insider, context.amount(30, 600))?;
        estate.get()?.serves_on(context, &mut insider.target)
    });
    drop(insider);
    let in_the_clear = || reinstatement_in_the_clear(context, estate.get()?);
    cases.check("insider-reinstatement-from-the-clear", in_the_clear);
    cases.check("insider-name-bound-to-its-key", || bound_name(context, estate.get()?));
}
