//! The outer login, which travels unencrypted, altered by an attacker; and initiators and targets that cannot, or must
//! not, seal.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;

use super::estate::{Estate, LIMIT, PRODUCT, TIMEOUT_S, ours, refused};
use crate::pdu::{Pdu, Session, connect, data_length, keys, login_pdu};
use crate::records::{Part, Records};
use crate::seal::Keys;
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

impl Forger<fn(Way, u64, &mut Pdu)> {
    /// A relay to `target` that alters the PDUs of each connection.
    pub(crate) fn tap(
        target: &Target,
        forge: impl Fn(Way, u64, &mut Pdu) + Clone + Send + 'static,
    ) -> Result<Tap> {
        let forger = move |_| -> Box<dyn Middle> { Box::new(Forger::new(forge.clone())) };
        Tap::start(target.url(0).port()?, Box::new(forger))
    }
}

impl<F: FnMut(Way, u64, &mut Pdu) + Send> Middle for Forger<F> {
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        for piece in self.streams[way as usize].split_or_flush(bytes) {
            if piece.place.part != Part::Outer {
                out.extend(piece.bytes);
                continue;
            }
            let held = &mut self.pdus[way as usize];
            held.extend(piece.bytes);
            if held.len() < 48 + data_length(held).next_multiple_of(4) {
                continue;
            }
            let mut pdu = Pdu::receive(&mut &std::mem::take(held)[..]).expect("a whole PDU");
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

/// Alters a PDU; returns whether it altered anything.
type Forge = fn(&mut Pdu) -> bool;

/// A forgery of the PDU with a number, in one direction or in both.
struct Forgery {
    name: &'static str,
    ways: &'static [Way],
    number: u64,
    forge: Forge,
}

const fn there(name: &'static str, number: u64, forge: Forge) -> Forgery {
    Forgery { name, ways: &[Way::ToTarget], number, forge }
}

const fn back(name: &'static str, number: u64, forge: Forge) -> Forgery {
    Forgery { name, ways: &[Way::ToInitiator], number, forge }
}

const fn both_ways(name: &'static str, forge: Forge) -> Forgery {
    Forgery { name, ways: &Way::BOTH, number: 0, forge }
}

const FORGERIES: &[Forgery] = &[
    there("method-stripped", 0, |pdu| set(pdu, "AuthMethod", Some("None"))),
    there("method-replaced-by-chap", 0, |pdu| set(pdu, "AuthMethod", Some("CHAP,None"))),
    there("method-not-first", 0, |pdu| set(pdu, "AuthMethod", Some(&format!("None,{METHOD}")))),
    there("method-and-all-keys-stripped", 0, |pdu| {
        set(pdu, "AuthMethod", Some("None")) && [SUITE, UNIT, PATTERN].iter().all(|key| set(pdu, key, None))
    }),
    back("answer-says-none", 0, |pdu| set(pdu, "AuthMethod", Some("None"))),
    back("answer-says-reject", 0, |pdu| set(pdu, "AuthMethod", Some("Reject"))),
    there("suite-list-shortened", 0, |pdu| set(pdu, SUITE, Some("ChaCha20-Poly1305"))),
    back("suite-chosen-by-the-relay", 0, |pdu| set(pdu, SUITE, Some("AEGIS-128X2"))),
    there("suite-unknown", 0, |pdu| set(pdu, SUITE, Some("NULL"))),
    there("suite-missing", 0, |pdu| set(pdu, SUITE, None)),
    both_ways("unit-smaller", |pdu| set(pdu, UNIT, Some("512"))),
    back("unit-smaller-in-the-answer", 0, |pdu| set(pdu, UNIT, Some("4096"))),
    there("unit-odd", 0, |pdu| set(pdu, UNIT, Some("65535"))),
    there("pattern-is-enrolment", 0, |pdu| set(pdu, PATTERN, Some("XX"))),
    both_ways("pattern-is-enrolment-both-ways", |pdu| set(pdu, PATTERN, Some("XX"))),
    there("initiator-name-changed", 0, |pdu| set(pdu, "InitiatorName", Some(NAME))),
    there("target-name-missing", 0, |pdu| set(pdu, "TargetName", None)),
    there("session-is-discovery", 0, |pdu| {
        set(pdu, "SessionType", Some("Discovery")) && set(pdu, "TargetName", None)
    }),
    there("message-damaged", 1, damage_message),
    back("answer-damaged", 1, damage_message),
    there("message-missing", 1, |pdu| set(pdu, MESSAGE, None)),
    there("message-empty", 1, |pdu| set(pdu, MESSAGE, Some("0b"))),
    there("message-not-base64", 1, |pdu| set(pdu, MESSAGE, Some("0x00"))),
    back("answer-empty", 1, |pdu| set(pdu, MESSAGE, Some("0bAAAA"))),
    there("key-added", 0, |pdu| add(pdu, "X-example.other")),
    back("key-added-to-the-answer", 0, |pdu| add(pdu, "TargetPortalGroupTag")),
    there("isid-changed", 0, |pdu| alter(pdu, 13)),
    there("cmdsn-changed", 0, |pdu| alter(pdu, 27)),
    there("cid-changed", 0, |pdu| alter(pdu, 21)),
    there("reserved-byte-changed", 0, |pdu| alter(pdu, 47)),
    back("reserved-byte-of-the-answer-changed", 0, |pdu| alter(pdu, 47)),
    back("statsn-of-the-answer-changed", 0, |pdu| alter(pdu, 27)),
    back("refusal-forged", 0, |pdu| {
        (pdu.bhs[36], pdu.bhs[37]) = (2, 1);
        pdu.data.clear();
        true
    }),
    back("transit-forged", 1, |pdu| {
        // Directly into the full feature phase, unsealed.
        pdu.bhs[1] = 0x80 | 3;
        true
    }),
];

fn add(pdu: &mut Pdu, key: &str) -> bool {
    pdu.data.extend(keys(&[(key, "1")]));
    true
}

fn alter(pdu: &mut Pdu, offset: usize) -> bool {
    pdu.bhs[offset] ^= 1;
    true
}

/// No forgery leads to a session, and the LUN's product name never passes unencrypted.
fn forged(context: &Context, estate: &Estate, target: &mut Target, forgery: &'static Forgery) -> Result<()> {
    let done = Arc::<AtomicBool>::default();
    let seen = Arc::clone(&done);
    let tap = Forger::tap(target, move |way, number, pdu| {
        let is_meant = forgery.ways.contains(&way) && forgery.number == number;
        if is_meant && (forgery.forge)(pdu) {
            seen.store(true, Ordering::Relaxed);
        }
    })?;
    let logins = target.logins();
    let endpoint = estate.endpoint(target, &tap.portal(), &estate.friend, "");
    let output = ours(context, &["info", &endpoint])?;
    ensure!(done.load(Ordering::Relaxed), "nothing was forged: {output}");
    ensure!(matches!(output.code, Some(1 | 4 | 5)), "only a failure would be honest: {output}");
    in_the_clear(&tap)?;
    estate.serves_on(context, target)?;
    demand!(target.logins() == logins + 1, "the target let it in\n{}", target.log())
}

fn in_the_clear(tap: &Tap) -> Result<()> {
    for (index, conversation) in tap.conversations().iter().enumerate() {
        for way in Way::BOTH {
            let found =
                conversation.sent(way).windows(PRODUCT.len()).any(|bytes| bytes == PRODUCT.as_bytes());
            ensure!(!found, "{PRODUCT} is in connection {index}, {way:?}");
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
        let tap = Forger::tap(target, move |w, n, pdu| {
            if (w, n) != (way, number) {
                return;
            }
            // The handshake does not bind the header of the second pair; all of its text matters except the last
            // zero byte.
            let text = pdu.data.len().saturating_sub(1);
            let whole = if n == 0 { 48 + text } else { text };
            let at = (whole as f64 * fraction) as usize;
            match if n == 0 { at.checked_sub(48) } else { Some(at) } {
                Some(at) => pdu.data[at] ^= 1 << bit,
                // An altered length is another case: the relay would have to alter the rest, too.
                None if (4..8).contains(&at) => pdu.bhs[RESERVED] ^= 1 << bit,
                None => pdu.bhs[at] ^= 1 << bit,
            }
        })?;
        let endpoint = estate.endpoint(target, &tap.portal(), &estate.friend, "");
        let endpoint = endpoint.replace(&format!("timeout={TIMEOUT_S}s"), "timeout=2s");
        let output = ours(context, &["info", &endpoint])?;
        let place = format!("{way:?}, PDU {number}, at {fraction:.4}, bit {bit}");
        ensure!(matches!(output.code, Some(1 | 4 | 5)), "{place}: {output}");
        in_the_clear(&tap)?;
    }
    estate.serves_on(context, target)
}

/// `require`: 0201 and no information about targets, for known and unknown names and for discovery.
fn require_tells_nothing(target: &Target) -> Result<()> {
    for (method, name) in [
        ("None", Some(target.url(0).iqn.as_str())),
        ("None", Some("iqn.2026-11.org.example:nobody")),
        ("CHAP,None", Some(&target.url(0).iqn)),
        ("None", None),
    ] {
        let kind = if name.is_some() { "Normal" } else { "Discovery" };
        let mut pairs = vec![("InitiatorName", NAME), ("AuthMethod", method), ("SessionType", kind)];
        pairs.extend(name.map(|name| ("TargetName", name)));
        let mut stream = connect(target.url(0), ANSWER)?;
        let request = login_pdu(0x80 | 1, [0x80, 0, 0, 0, 0, 1], keys(&pairs));
        stream.write_all(&request.encode())?;
        let answer = Pdu::receive(&mut stream).context("the answer to a login in the clear")?;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        ensure!(answer.status() == [2, 1], "status {:02x?}", answer.status());
        let said = String::from_utf8_lossy(&answer.data);
        ensure!(said.is_empty() && rest.is_empty(), "the refusal says {said:?}");
    }
    Ok(())
}

/// Initiators of others that are installed, with arguments that make them log in.
fn foreigners(target: &Target) -> Vec<(&'static str, Vec<String>)> {
    let (lun, portal) = (target.url(0).to_string(), format!("iscsi://{}", target.url(0).portal));
    let all = [
        ("iscsi-ls", vec!["-s".into(), portal]),
        ("iscsi-inq", vec![lun.clone()]),
        ("iscsi-readcapacity16", vec![lun.clone()]),
        ("qemu-img", ["info", "-f", "raw", &lun].map(str::to_owned).into()),
    ];
    all.into_iter().filter(|(name, _)| find_program(name).is_some()).collect()
}

fn others(context: &Context, estate: &Estate, policy: &str) -> Result<()> {
    let mut target = estate.serve(context, policy)?;
    let works = policy == "offer";
    let iqn = target.url(0).iqn.clone();
    for (name, arguments) in foreigners(&target) {
        let output = run(program(name)?.args(arguments), LIMIT)?;
        let told = output.text().replace(&output.line, "").contains(PRODUCT);
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
    if works {
        output.success()?;
    } else {
        // Commands that read a volume's header log in in their own way, and give the same reason.
        let of_volume = ours(context, &["volume", "info", &plain])?;
        for output in [output, of_volume] {
            refused(output)?.says("the target seals sessions")?;
        }
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
    let endpoint = estate.friend_at(&target);
    let info = |endpoint: &str, policy: &str| {
        ours(context, &["info", &endpoint.replace("seal=require", &format!("seal={policy}"))])
    };
    refused(info(&endpoint, "require")?)?;
    // The target's key is known: `offer` is no leave to go on in the clear, only `off` is.
    refused(info(&endpoint, "offer")?)?;
    ensure!(target.logins() == 0, "it logged in\n{}", target.log());
    info(&endpoint, "off")?.success()?;
    if find_program("tgtd").is_none() {
        return Ok(());
    }
    let tgt = Tgt::serve(&[Disk::file(&estate.file)], None)?;
    let at_tgt = endpoint.replace(&target.url(0).to_string(), &tgt.url(0).to_string());
    ensure!(at_tgt != endpoint, "{at_tgt}");
    refused(info(&at_tgt, "require")?)?;
    refused(info(&at_tgt, "offer")?)?;
    info(&at_tgt, "off")?.success().map(drop)
}

/// A wrong, revoked or foreign key is refused with exit code 4 and a helpful message.
fn keys_refused(context: &Context, estate: &Estate) -> Result<()> {
    let mut target = estate.serve(context, "require")?;
    let portal = target.url(0).portal.clone();
    let of = |who, more: &str| estate.endpoint(&target, &portal, who, more);
    let unknown = refused(ours(context, &["info", &of(&estate.stranger, "")])?)?;
    unknown.says(&estate.stranger.public).context("it does not name our own key")?;
    refused(ours(context, &["info", &of(&estate.target, "")])?)?;
    let wrong = of(&estate.friend, "").replace(&estate.target.public, &estate.stranger.public);
    let wrong = refused(ours(context, &["info", &wrong])?)?;
    wrong.says(&estate.target.public).context("it does not show the key that answered")?;
    estate.serves_on(context, &mut target)?;
    ensure!(target.logins() == 1, "somebody was let in\n{}", target.log());
    drop(target);
    // Revoked: removed from the list, and the target restarted.
    estate.admit(&[("other", &estate.stranger)])?;
    let target = estate.serve(context, "require")?;
    let portal = target.url(0).portal.clone();
    refused(ours(context, &["info", &estate.friend_at(&target)])?)?;
    ours(context, &["info", &estate.endpoint(&target, &portal, &estate.stranger, "")])?.success()?;
    estate.admit(&[("friend", &estate.friend)])
}

fn psk(context: &Context, estate: &Estate) -> Result<()> {
    let write = |name: &str, of: &Keys| -> Result<String> {
        // Any 44 characters of base64 are valid: here another key's private half.
        let path = estate.dir.path().join(name);
        std::fs::copy(&of.file, &path)?;
        Ok(path.display().to_string())
    };
    let (ours_psk, wrong) = (write("psk", &estate.stranger)?, write("wrong.psk", &estate.target)?);
    estate.admit_friend(&format!("psk-file = \"{ours_psk}\""))?;
    let target = estate.serve(context, "require")?;
    let portal = target.url(0).portal.clone();
    let of = |more: &str| estate.endpoint(&target, &portal, &estate.friend, more);
    refused(ours(context, &["info", &of("")])?).context("without the pre-shared key")?;
    refused(ours(context, &["info", &of(&format!(",psk-file={wrong}"))])?).context("with another one")?;
    let right = of(&format!(",psk-file={ours_psk}"));
    ours(context, &["info", &right])?.success().context("with the right one")?;
    estate.admit(&[("friend", &estate.friend)])
}

fn relay_alone(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "require")?;
    let tap = Forger::tap(&target, |_, _, _| {})?;
    let endpoint = estate.endpoint(&target, &tap.portal(), &estate.friend, "");
    ours(context, &["info", &endpoint])?.success()?;
    demand!(!tap.conversations().is_empty(), "nothing came through the relay")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let estate = Scene::new(|| Estate::new(context, BYTES));
    for policy in ["require", "offer"] {
        let mut target = Scene::new(|| estate.get()?.serve(context, policy));
        for forgery in FORGERIES {
            let name = forgery.name;
            // Both policies of the target are tested where the forgery concerns the method.
            if policy == "offer" && !name.contains("method") && !name.contains("answer-says") {
                continue;
            }
            cases.check(&format!("outer-{name}-{policy}"), || {
                forged(context, estate.get()?, target.get_mut()?, forgery)
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
