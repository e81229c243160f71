//! The outer login, which travels unencrypted, altered by an attacker; and initiators and targets that cannot, or must
//! not, seal.

use std::io::Read;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;

use super::estate::{Estate, LIMIT, ours, refused};
use crate::pdu::{self, Pdu, Session, connect, keys};
use crate::records::{Part, Records};
use crate::tap::{Middle, Tap, Way};
use crate::{Cases, Context, Disk, Scene, Target, Tgt, find_program, program, run};

const BYTES: u64 = 4 << 20;
const NAME: &str = "iqn.2026-11.org.example:plain";
const ANSWER: Duration = Duration::from_secs(5);
/// Offset of a header byte that is reserved; the handshake binds it nevertheless.
const RESERVED: usize = 15;

/// Alters PDUs of the outer login: the closure is called with direction, number and PDU.
pub(crate) struct Forger<F> {
    forge: F,
    streams: [Records; 2],
    /// Bytes of the present PDU received so far, by direction.
    pdus: [Vec<u8>; 2],
}

impl<F: FnMut(Way, u64, &mut Pdu) + Send> Forger<F> {
    pub(crate) fn new(forge: F) -> Self {
        Self { forge, streams: Default::default(), pdus: Default::default() }
    }
}

impl<F: FnMut(Way, u64, &mut Pdu) + Send> Middle for Forger<F> {
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let records = &mut self.streams[way as usize];
        let mut pieces = if bytes.is_empty() { Vec::new() } else { records.split(bytes) };
        if bytes.is_empty() {
            pieces.extend(records.flush());
        }
        for piece in pieces {
            if piece.place.part != Part::Outer {
                out.extend(piece.bytes);
                continue;
            }
            let held = &mut self.pdus[way as usize];
            held.extend(piece.bytes);
            let data = u32::from_be_bytes([0, held[5], held[6], held[7]]) as usize;
            if held.len() < 48 + data.next_multiple_of(4) {
                continue;
            }
            let held = std::mem::take(held);
            let (bhs, data) = (held[..48].try_into().expect("48 bytes"), held[48..48 + data].to_vec());
            let mut pdu = Pdu { bhs, data };
            (self.forge)(way, piece.place.number, &mut pdu);
            let Pdu { bhs, data } = pdu;
            out.extend(Pdu { bhs, data: Vec::new() }.with_data(data).encode());
        }
        true
    }
}

/// Replaces a key's value; `None` removes the key. Returns whether the key was present.
fn set(pdu: &mut Pdu, key: &str, value: Option<&str>) -> bool {
    let mut found = false;
    let mut data = Vec::new();
    for pair in pdu.data.split(|&byte| byte == 0).filter(|pair| !pair.is_empty()) {
        if pair.starts_with(key.as_bytes()) && pair.get(key.len()) == Some(&b'=') {
            found = true;
            if let Some(value) = value {
                data.extend(keys(&[(key, value)]));
            }
        } else {
            data.extend([pair, &[0]].concat());
        }
    }
    pdu.data = data;
    found
}

const METHOD: &str = "Z-example.hikyaku.seal1";
const SUITE: &str = "X-example.hikyaku.suite";
const UNIT: &str = "X-example.hikyaku.unit";
const PATTERN: &str = "X-example.hikyaku.pattern";
const MESSAGE: &str = "X-example.hikyaku.message";

pub(crate) fn damage_message(pdu: &mut Pdu) -> bool {
    let middle = pdu.data.len() / 2;
    let Some(byte) = pdu.data.get_mut(middle) else { return false };
    *byte = if *byte == b'A' { b'B' } else { b'A' };
    true
}

type Forge = fn(Way, u64, &mut Pdu) -> bool;
use Way::{ToInitiator as Back, ToTarget as There};

/// Names of forgeries, and functions that return whether they altered anything.
const FORGERIES: &[(&str, Forge)] = &[
    ("method-stripped", |way, n, pdu| (way, n) == (There, 0) && set(pdu, "AuthMethod", Some("None"))),
    ("method-replaced-by-chap", |way, n, pdu| {
        (way, n) == (There, 0) && set(pdu, "AuthMethod", Some("CHAP,None"))
    }),
    ("method-not-first", |way, n, pdu| {
        (way, n) == (There, 0) && set(pdu, "AuthMethod", Some(&format!("None,{METHOD}")))
    }),
    ("method-and-all-keys-stripped", |way, n, pdu| {
        (way, n) == (There, 0)
            && set(pdu, "AuthMethod", Some("None"))
            && [SUITE, UNIT, PATTERN].iter().all(|key| set(pdu, key, None))
    }),
    ("answer-says-none", |way, n, pdu| (way, n) == (Back, 0) && set(pdu, "AuthMethod", Some("None"))),
    ("answer-says-reject", |way, n, pdu| (way, n) == (Back, 0) && set(pdu, "AuthMethod", Some("Reject"))),
    ("suite-list-shortened", |way, n, pdu| {
        (way, n) == (There, 0) && set(pdu, SUITE, Some("ChaCha20-Poly1305"))
    }),
    ("suite-chosen-by-the-relay", |way, n, pdu| {
        (way, n) == (Back, 0) && set(pdu, SUITE, Some("AEGIS-128X2"))
    }),
    ("suite-unknown", |way, n, pdu| (way, n) == (There, 0) && set(pdu, SUITE, Some("NULL"))),
    ("suite-missing", |way, n, pdu| (way, n) == (There, 0) && set(pdu, SUITE, None)),
    ("unit-smaller", |_, n, pdu| n == 0 && set(pdu, UNIT, Some("512"))),
    ("unit-smaller-in-the-answer", |way, n, pdu| (way, n) == (Back, 0) && set(pdu, UNIT, Some("4096"))),
    ("unit-odd", |way, n, pdu| (way, n) == (There, 0) && set(pdu, UNIT, Some("65535"))),
    ("pattern-is-enrolment", |way, n, pdu| (way, n) == (There, 0) && set(pdu, PATTERN, Some("XX"))),
    ("pattern-is-enrolment-both-ways", |_, n, pdu| n == 0 && set(pdu, PATTERN, Some("XX"))),
    ("initiator-name-changed", |way, n, pdu| (way, n) == (There, 0) && set(pdu, "InitiatorName", Some(NAME))),
    ("target-name-missing", |way, n, pdu| (way, n) == (There, 0) && set(pdu, "TargetName", None)),
    ("session-is-discovery", |way, n, pdu| {
        (way, n) == (There, 0) && set(pdu, "SessionType", Some("Discovery")) && set(pdu, "TargetName", None)
    }),
    ("message-damaged", |way, n, pdu| (way, n) == (There, 1) && damage_message(pdu)),
    ("answer-damaged", |way, n, pdu| (way, n) == (Back, 1) && damage_message(pdu)),
    ("message-missing", |way, n, pdu| (way, n) == (There, 1) && set(pdu, MESSAGE, None)),
    ("message-empty", |way, n, pdu| (way, n) == (There, 1) && set(pdu, MESSAGE, Some("0b"))),
    ("message-not-base64", |way, n, pdu| (way, n) == (There, 1) && set(pdu, MESSAGE, Some("0x00"))),
    ("answer-empty", |way, n, pdu| (way, n) == (Back, 1) && set(pdu, MESSAGE, Some("0bAAAA"))),
    ("key-added", |way, n, pdu| {
        (way, n) == (There, 0) && {
            pdu.data.extend(keys(&[("X-example.other", "1")]));
            true
        }
    }),
    ("key-added-to-the-answer", |way, n, pdu| {
        (way, n) == (Back, 0) && {
            pdu.data.extend(keys(&[("TargetPortalGroupTag", "1")]));
            true
        }
    }),
    ("isid-changed", |way, n, pdu| (way, n) == (There, 0) && alter(pdu, 13)),
    ("cmdsn-changed", |way, n, pdu| (way, n) == (There, 0) && alter(pdu, 27)),
    ("cid-changed", |way, n, pdu| (way, n) == (There, 0) && alter(pdu, 21)),
    ("reserved-byte-changed", |way, n, pdu| (way, n) == (There, 0) && alter(pdu, 47)),
    ("reserved-byte-of-the-answer-changed", |way, n, pdu| (way, n) == (Back, 0) && alter(pdu, 47)),
    ("statsn-of-the-answer-changed", |way, n, pdu| (way, n) == (Back, 0) && alter(pdu, 27)),
    ("refusal-forged", |way, n, pdu| {
        (way, n) == (Back, 0) && {
            (pdu.bhs[36], pdu.bhs[37]) = (2, 1);
            pdu.data.clear();
            true
        }
    }),
    ("transit-forged", |way, n, pdu| {
        (way, n) == (Back, 1) && {
            // Directly into the full feature phase, unsealed.
            pdu.bhs[1] = 0x80 | 3;
            true
        }
    }),
];

fn alter(pdu: &mut Pdu, offset: usize) -> bool {
    pdu.bhs[offset] ^= 1;
    true
}

/// No forgery leads to a session, and the LUN's product name never passes unencrypted.
fn forged(context: &Context, estate: &Estate, target: &mut Target, forge: Forge) -> Result<()> {
    let done = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&done);
    let tap = Tap::start(
        target.url(0).port()?,
        Box::new(move |_| {
            let seen = std::sync::Arc::clone(&seen);
            Box::new(Forger::new(move |way, number, pdu: &mut Pdu| {
                if forge(way, number, pdu) {
                    seen.store(true, std::sync::atomic::Ordering::Relaxed);
                }
            }))
        }),
    )?;
    let logins = target.logins();
    let endpoint = estate.endpoint(target, &tap.portal(), &estate.friend, "");
    let output = ours(context, &["info", &endpoint])?;
    ensure!(done.load(std::sync::atomic::Ordering::Relaxed), "nothing was forged: {output}");
    ensure!(matches!(output.code, Some(1 | 4 | 5)), "only a failure would be honest: {output}");
    in_the_clear(&tap, super::estate::PRODUCT.as_bytes())?;
    estate.serves_on(context, target)?;
    ensure!(target.logins() == logins + 1, "the target let it in\n{}", target.log());
    Ok(())
}

fn in_the_clear(tap: &Tap, secret: &[u8]) -> Result<()> {
    for (index, conversation) in tap.conversations().iter().enumerate() {
        for way in Way::BOTH {
            let found = conversation.sent(way).windows(secret.len()).any(|window| window == secret);
            ensure!(!found, "{:?} is in connection {index}, {way:?}", String::from_utf8_lossy(secret));
        }
    }
    Ok(())
}

fn bits(context: &Context, estate: &Estate, target: &mut Target, count: usize) -> Result<()> {
    let mut rng = context.rng("sealed/outer/bits");
    for _ in 0..count {
        let way = Way::BOTH[rng.random_range(0..2)];
        let (number, bit) = (rng.random_range(0..2u64), rng.random_range(0..8));
        let fraction: f64 = rng.random();
        let tap = Tap::start(
            target.url(0).port()?,
            Box::new(move |_| {
                Box::new(Forger::new(move |w, n, pdu: &mut Pdu| {
                    if (w, n) != (way, number) {
                        return;
                    }
                    // The handshake does not bind the header of the second pair; all of its text matters except the
                    // last zero byte.
                    let text = pdu.data.len().saturating_sub(1);
                    let whole = if n == 0 { 48 + text } else { text };
                    let at = (whole as f64 * fraction) as usize;
                    match if n == 0 { at.checked_sub(48) } else { Some(at) } {
                        Some(at) => pdu.data[at] ^= 1 << bit,
                        // An altered length is another case: the relay would have to alter the rest, too.
                        None if (4..8).contains(&at) => pdu.bhs[RESERVED] ^= 1 << bit,
                        None => pdu.bhs[at] ^= 1 << bit,
                    }
                }))
            }),
        )?;
        let endpoint = estate.endpoint(target, &tap.portal(), &estate.friend, "");
        let endpoint = endpoint.replace("timeout=8s", "timeout=2s");
        let output = ours(context, &["info", &endpoint])?;
        let place = format!("{way:?}, PDU {number}, at {fraction:.4}, bit {bit}");
        ensure!(matches!(output.code, Some(1 | 4 | 5)), "{place}: {output}");
        in_the_clear(&tap, super::estate::PRODUCT.as_bytes())?;
    }
    estate.serves_on(context, target)
}

fn plain_answer(target: &Target, pairs: &[(&str, &str)]) -> Result<(Pdu, Vec<u8>)> {
    let mut stream = connect(target.url(0), ANSWER)?;
    let mut request = Pdu::new(pdu::LOGIN | pdu::IMMEDIATE, 0x80 | 1).with_data(keys(pairs));
    request.bhs[8..14].copy_from_slice(&[0x80, 0, 0, 0, 0, 1]);
    request.set(16, 1).set(24, 1);
    stream.write_all(&request.encode())?;
    let mut bhs = [0; 48];
    stream.read_exact(&mut bhs).context("the answer to a login in the clear")?;
    let mut data = vec![0; u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]]) as usize];
    stream.read_exact(&mut data)?;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    Ok((Pdu { bhs, data }, rest))
}

/// `require`: 0201 and no information about targets, for known and unknown names and for discovery.
fn require_tells_nothing(target: &Target) -> Result<()> {
    let iqn = target.url(0).iqn.clone();
    let normal = |name: &'static str, target: &str| plain_answer_of(name, Some(target.to_owned()));
    let requests = [
        normal("None", &iqn),
        normal("None", "iqn.2026-11.org.example:nobody"),
        normal("CHAP,None", &iqn),
        plain_answer_of("None", None),
    ];
    for request in requests {
        let pairs: Vec<(&str, &str)> = request.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let (answer, rest) = plain_answer(target, &pairs)?;
        ensure!(
            (answer.bhs[36], answer.bhs[37]) == (2, 1),
            "status {:02x}{:02x}",
            answer.bhs[36],
            answer.bhs[37]
        );
        ensure!(
            answer.data.is_empty() && rest.is_empty(),
            "the refusal says {:?}",
            String::from_utf8_lossy(&answer.data)
        );
    }
    Ok(())
}

fn plain_answer_of(method: &'static str, target: Option<String>) -> Vec<(&'static str, String)> {
    let mut pairs = vec![("InitiatorName", NAME.to_owned()), ("AuthMethod", method.to_owned())];
    let kind = if target.is_some() { "Normal" } else { "Discovery" };
    pairs.push(("SessionType", kind.to_owned()));
    pairs.extend(target.map(|target| ("TargetName", target)));
    pairs
}

fn foreigners(target: &Target) -> Vec<(&'static str, Result<Command>)> {
    let url = target.url(0);
    let tool = |name: &str, arguments: &[String]| {
        program(name).map(|mut command| {
            command.args(arguments);
            command
        })
    };
    let lun = url.to_string();
    let mut all = Vec::new();
    if find_program("iscsi-ls").is_some() {
        all.push(("iscsi-ls", tool("iscsi-ls", &["-s".into(), format!("iscsi://{}", url.portal)])));
        all.push(("iscsi-inq", tool("iscsi-inq", std::slice::from_ref(&lun))));
        all.push(("iscsi-readcapacity16", tool("iscsi-readcapacity16", std::slice::from_ref(&lun))));
    }
    if find_program("qemu-img").is_some() {
        all.push(("qemu-img", tool("qemu-img", &["info".into(), "-f".into(), "raw".into(), lun])));
    }
    all
}

fn others(context: &Context, estate: &Estate, policy: &str) -> Result<()> {
    let mut target = estate.serve(context, policy)?;
    let works = policy == "offer";
    let iqn = target.url(0).iqn.clone();
    for (name, command) in foreigners(&target) {
        let output = run(&mut command?, LIMIT)?;
        let told = output.text().replace(&output.line, "").contains(super::estate::PRODUCT);
        // iscsi-ls always exits 0; its argument does not name the target.
        let reached = match name {
            "iscsi-ls" => output.text().contains(&iqn),
            _ => output.code == Some(0),
        };
        ensure!(reached == works, "{name} under {policy}: {output}");
        ensure!(works || !told, "{name} was told the product's name: {output}");
    }
    let plain = Estate::plain(&target, &target.url(0).portal);
    let output = ours(context, &["info", &plain])?;
    match works {
        true => drop(output.success()?),
        false => drop(refused(output)?),
    }
    let raw = Session::login(target.url(0), NAME, [0x80, 0, 0, 0, 0, 2]);
    ensure!(raw.is_ok() == works, "a raw login under {policy}: {raw:?}");
    if !works {
        require_tells_nothing(&target)?;
    }
    estate.serves_on(context, &mut target)
}

/// An initiator that requires sealing, at a target without support for it.
fn at_plain_targets(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "off")?;
    let endpoint = estate.endpoint(&target, &target.url(0).portal, &estate.friend, "");
    refused(ours(context, &["info", &endpoint])?)?;
    // The target's key is known: `offer` is no leave to go on in the clear, only `off` is.
    refused(ours(context, &["info", &endpoint.replace("seal=require", "seal=offer")])?)?;
    ensure!(target.logins() == 0, "it logged in\n{}", target.log());
    ours(context, &["info", &endpoint.replace("seal=require", "seal=off")])?.success().map(drop)?;
    if find_program("tgtd").is_none() {
        return Ok(());
    }
    let tgt = Tgt::serve(&[Disk::file(&estate.file)], None)?;
    let url = tgt.url(0);
    let at_tgt = endpoint.replace(&target.url(0).to_string(), &url.to_string());
    ensure!(at_tgt != endpoint, "{at_tgt}");
    refused(ours(context, &["info", &at_tgt])?)?;
    refused(ours(context, &["info", &at_tgt.replace("seal=require", "seal=offer")])?)?;
    ours(context, &["info", &at_tgt.replace("seal=require", "seal=off")])?.success().map(drop)
}

/// A wrong, revoked or foreign key is refused with exit code 4 and a helpful message.
fn keys_refused(context: &Context, estate: &Estate) -> Result<()> {
    let mut target = estate.serve(context, "require")?;
    let portal = target.url(0).portal.clone();
    let of = |who, more: &str| estate.endpoint(&target, &portal, who, more);
    let unknown = refused(ours(context, &["info", &of(&estate.stranger, "")])?)?;
    ensure!(
        unknown.stderr.contains(&estate.stranger.public),
        "it does not name our own key:\n{}",
        unknown.stderr
    );
    refused(ours(context, &["info", &of(&estate.target, "")])?)?;
    let wrong = of(&estate.friend, "").replace(&estate.target.public, &estate.stranger.public);
    let wrong = refused(ours(context, &["info", &wrong])?)?;
    ensure!(
        wrong.stderr.contains(&estate.target.public),
        "it does not show the key that answered:\n{}",
        wrong.stderr
    );
    estate.serves_on(context, &mut target)?;
    ensure!(target.logins() == 1, "somebody was let in\n{}", target.log());
    drop(target);
    // Revoked: removed from the list, and the target restarted.
    estate.admit(&[("other", &estate.stranger)])?;
    let target = estate.serve(context, "require")?;
    let portal = target.url(0).portal.clone();
    let revoked = ours(context, &["info", &estate.endpoint(&target, &portal, &estate.friend, "")])?;
    refused(revoked)?;
    ours(context, &["info", &estate.endpoint(&target, &portal, &estate.stranger, "")])?.success()?;
    estate.admit(&[("friend", &estate.friend)])
}

fn psk(context: &Context, estate: &Estate) -> Result<()> {
    let write = |name: &str, of: &super::estate::Keys| -> Result<String> {
        // Any 44 characters of base64 are valid: here another key's private half.
        let path = estate.dir.path().join(name);
        std::fs::copy(&of.file, &path)?;
        Ok(path.display().to_string())
    };
    let (ours_psk, wrong) = (write("psk", &estate.stranger)?, write("wrong.psk", &estate.target)?);
    let entry = format!(
        "[[peer]]\nname = \"friend\"\npublic-key = \"{}\"\npsk-file = \"{ours_psk}\"\n",
        estate.friend.public
    );
    std::fs::write(&estate.peers, entry)?;
    let target = estate.serve(context, "require")?;
    let portal = target.url(0).portal.clone();
    let of = |more: &str| estate.endpoint(&target, &portal, &estate.friend, more);
    refused(ours(context, &["info", &of("")])?).context("without the pre-shared key")?;
    refused(ours(context, &["info", &of(&format!(",psk-file={wrong}"))])?).context("with another one")?;
    ours(context, &["info", &of(&format!(",psk-file={ours_psk}"))])?
        .success()
        .context("with the right one")?;
    estate.admit(&[("friend", &estate.friend)])
}

fn relay_alone(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "require")?;
    let tap = Tap::start(target.url(0).port()?, Box::new(|_| Box::new(Forger::new(|_, _, _: &mut Pdu| {}))))?;
    let endpoint = estate.endpoint(&target, &tap.portal(), &estate.friend, "");
    ours(context, &["info", &endpoint])?.success()?;
    let all = tap.conversations();
    if all.is_empty() {
        bail!("nothing came through the relay");
    }
    Ok(())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let estate = Scene::new(|| Estate::new(context, BYTES));
    for policy in ["require", "offer"] {
        let mut target = Scene::new(|| estate.get()?.serve(context, policy));
        for (name, forge) in FORGERIES {
            // Both policies of the target are tested where the forgery concerns the method.
            if policy == "offer" && !name.contains("method") && !name.contains("answer-says") {
                continue;
            }
            cases.check(&format!("outer-{name}-{policy}"), || {
                forged(context, estate.get()?, target.get_mut()?, *forge)
            });
        }
        if policy == "require" {
            cases.check("outer-single-bits", || {
                bits(context, estate.get()?, target.get_mut()?, context.amount(10, 200))
            });
        }
    }
    cases.check("outer-control-relay-alone-is-harmless", || relay_alone(context, estate.get()?));
    cases.check("outer-others-at-offer-work-in-the-clear", || others(context, estate.get()?, "offer"));
    cases.check("outer-others-at-require-are-refused", || others(context, estate.get()?, "require"));
    cases.check("outer-require-at-plain-targets-is-refused", || at_plain_targets(context, estate.get()?));
    cases.check("outer-keys-wrong-revoked-borrowed-exit-4", || keys_refused(context, estate.get()?));
    cases.check("outer-pre-shared-key-missing-or-wrong-exits-4", || psk(context, estate.get()?));
}
