//! First contact: replayed and garbled handshakes, floods from many addresses, idle connections.

use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value, json};

use super::super::sealed::estate::{Estate, LIMIT, ours, refused};
use super::super::sealed::flood::{
    AUTHENTICATION_FAILURE, SERVICE_UNAVAILABLE, SUCCESS, Tally, enquiry, exchange, garbage, handshake_of,
    plain_request,
};
use super::super::sealed::outer::{Forger, damage_message};
use crate::files::empty_file;
use crate::pdu::{Pdu, connect, connect_from, keys, login_pdu};
use crate::process::raise_descriptor_limit;
use crate::procfs::{descriptors, resident_bytes, thread_cpu_seconds};
use crate::tap::{Middle, Passive, Tap, Way};
use crate::{Cases, Context, Credentials, Disk, Scene, Server, Target, Tier, Url, scratch, wait_until};

const BYTES: u64 = 4 << 20;
const INITIATOR: [(&str, &str); 2] =
    [("InitiatorName", "iqn.2026-11.org.example:visitor"), ("SessionType", "Normal")];
const ANSWER: Duration = Duration::from_secs(10);
const ADDRESSES: usize = 200;
/// Threads of a flood: more than the target has cores.
const THREADS: usize = 4;
/// CPU time of a refusal that needs no DH, in units of a plain login's refusal. The full tier records the measured
/// ratio (the bar there is 1.5); a case that runs beside others can only distinguish a hash from a DH.
const RATIO_MAX: f64 = 3.0;
/// The same for the debug build of a sample, in which the frame around the hash is slow and the DH, a dependency's, is
/// not: it only distinguishes a hash from four DH and an ML-KEM encapsulation.
const DEBUG_RATIO_MAX: f64 = 5.0;
/// Rounds of a flood whose cheapest counts: other work on the machine makes the same code dearer.
const ROUNDS: usize = 8;
/// Number of idle connections, and the permitted growth of `serve`.
const IDLE: usize = 5000;
const IDLE_BYTES_MAX: u64 = 48 << 20;
const RETURNED_BYTES_MAX: u64 = 8 << 20;

fn address(number: usize) -> Ipv4Addr {
    let [_, _, high, low] = u32::try_from(number % ADDRESSES).expect("few").to_be_bytes();
    Ipv4Addr::new(127, 77, high, low + 1)
}

fn request_status(source: Ipv4Addr, url: &Url, requests: &[Vec<u8>]) -> Result<[u8; 2]> {
    let mut stream = connect_from(source, url, ANSWER)?;
    let mut last = SUCCESS;
    for request in requests {
        ensure!(last == SUCCESS, "refused with {last:02x?} before the last request");
        last = exchange(&mut stream, request).context("no answer")?;
    }
    Ok(last)
}

/// The answers to a flood, and the cost of a connection to the target.
struct Flood {
    /// Counts of answers: refused for their content, refused as too many.
    refused: u64,
    busy: u64,
    other: u64,
    /// CPU time of the target for each connection, seconds.
    cpu_each: f64,
    per_second: f64,
}

/// Makes the connections of these numbers from [`ADDRESSES`] addresses, one after the other in each of [`THREADS`]
/// threads.
fn flood(target: &Target, requests: &[Vec<u8>], numbers: Range<usize>) -> Result<Flood> {
    let (count, start) = (numbers.len(), numbers.start);
    let (tally, url) = (&Tally::default(), target.url(0));
    let (cpu, started) = (thread_cpu_seconds(target.pid())?, Instant::now());
    std::thread::scope(|scope| {
        let attack = |thread: usize| {
            move || -> Result<()> {
                for number in (start + thread..numbers.end).step_by(THREADS) {
                    tally.add(Some(request_status(address(number), url, requests)?));
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(attack(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic in a flood"))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let [refused, busy] = [AUTHENTICATION_FAILURE, SERVICE_UNAVAILABLE].map(|status| tally.of(status));
    let cpu_each = (thread_cpu_seconds(target.pid())? - cpu) / count as f64;
    Ok(Flood {
        refused,
        busy,
        other: count as u64 - refused - busy,
        cpu_each,
        per_second: count as f64 / seconds,
    })
}

/// A recorded first flight of a listed key, and garbage of its length, are refused before any DH. The log reports it,
/// and a refusal costs the target at most [`RATIO_MAX`] times that of a plain login, [`DEBUG_RATIO_MAX`] in a sample.
fn replays(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "require")?;
    let recorded = handshake_of(context, estate, &target, &estate.friend)?;
    let garbage = garbage(&recorded, &mut context.rng("contact/garbage"));
    let kinds = [("plain", &[plain_request()][..]), ("replayed", &recorded), ("garbage", &garbage)];
    let count = context.amount(400, 4000) / ROUNDS;
    let mut least = kinds.map(|_| f64::INFINITY);
    for round in 0..ROUNDS {
        for ((what, requests), least) in kinds.iter().zip(&mut least) {
            let flood = flood(&target, requests, round * count..(round + 1) * count)?;
            let Flood { refused, busy, other, cpu_each, .. } = flood;
            let of = format!("{what}: of {count} first flights");
            ensure!(refused == count as u64, "{of} {refused} refused, {busy} busy, {other} answered");
            *least = least.min(cpu_each);
        }
    }
    let max = if context.tier == Tier::Full { RATIO_MAX } else { DEBUG_RATIO_MAX };
    for ((what, _), each) in kinds.iter().zip(least) {
        let (us, ratio) = (each * 1e6, each / least[0]);
        ensure!(ratio < max, "{what}: {us:.0} us each, {ratio:.1} times a plain login's refusal");
    }
    // At most one refusal in a second is logged in full.
    wait_until(LIMIT, || {
        request_status(address(0), target.url(0), &recorded)?;
        Ok(target.log().contains("its handshake was not made for this connection"))
    })
    .with_context(|| format!("the log:\n{}", target.log()))
}

fn floods(context: &Context, estate: &Estate) -> Result<Map<String, Value>> {
    let target = estate.serve(context, "require")?;
    let recorded = handshake_of(context, estate, &target, &estate.friend)?;
    let count = context.amount(500, 20_000);
    let kinds = [
        ("plain", vec![plain_request()]),
        ("replayed", recorded.to_vec()),
        ("garbage", garbage(&recorded, &mut context.rng("contact/garbage")).to_vec()),
        ("enquiries", enquiry().to_vec()),
    ];
    let mut facts = Map::new();
    let mut plain = f64::NAN;
    for (name, requests) in &kinds {
        let Flood { refused, busy, other, cpu_each, per_second } = flood(&target, requests, 0..count)?;
        if *name == "plain" {
            plain = cpu_each;
        }
        println!(
            "  {name}: {:.1} us each, {:.2} of a plain login's; 0201 {refused}, 0301 {busy}, other {other}, {per_second:.0}/s",
            cpu_each * 1e6,
            cpu_each / plain
        );
        let figures = json!({
            "connections": count, "status_0201": refused, "status_0301": busy, "answered": other,
            "per_second": per_second.round(), "cpu_us_each": (cpu_each * 1e7).round() / 10.0,
            "of_a_plain_login": (cpu_each / plain * 100.0).round() / 100.0,
        });
        facts.insert((*name).to_owned(), figures);
    }
    Ok(facts)
}

fn flooding<T>(
    target: &Target,
    requests: &[Vec<u8>],
    source: impl Fn(usize) -> Ipv4Addr + Sync,
    body: impl FnOnce(&AtomicU64) -> Result<T>,
) -> Result<T> {
    let (stop, busy) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (stop, busy, source) = (&stop, &busy, &source);
                scope.spawn(move || -> Result<()> {
                    for number in (thread..).step_by(THREADS) {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        if request_status(source(number), target.url(0), requests)? == SERVICE_UNAVAILABLE {
                            busy.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let result = body(&busy);
        stop.store(true, Ordering::Relaxed);
        let attacks = threads.into_iter().map(|thread| thread.join().expect("no panic in a flood"));
        result.and_then(|result| attacks.collect::<Result<()>>().map(|()| result))
    })
}

fn until_busy(busy: &AtomicU64) -> Result<()> {
    wait_until(LIMIT, || Ok(busy.load(Ordering::Relaxed) > 0)).context("the flood is never refused with 0301")
}

/// A host with a listed key at the flooding address: each login succeeds on its first connection.
fn behind_a_flood(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "require")?;
    let tap = Tap::passive(target.url(0).port()?)?;
    let endpoint = estate.endpoint(&target, &tap.portal(), &estate.friend, "");
    let logins = context.amount(3, 30);
    let enquiry = enquiry();
    flooding(
        &target,
        &enquiry,
        |_| Ipv4Addr::LOCALHOST,
        |busy| {
            until_busy(busy)?;
            (0..logins).try_for_each(|_| {
                let info = ours(context, &["info", &endpoint])?.success();
                info.context("a listed key behind a flooding address").map(drop)
            })
        },
    )?;
    let connections = tap.conversations().len();
    demand!(connections == logins, "{connections} connections for {logins} logins")
}

/// 100 logins with a listed key from a separate address, during floods from 200 others.
fn right_logins(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "require")?;
    let recorded = handshake_of(context, estate, &target, &estate.friend)?;
    let endpoint = estate.friend_at(&target);
    let logins = context.amount(6, 100);
    for requests in [&recorded, &garbage(&recorded, &mut context.rng("contact/garbage")), &enquiry()] {
        flooding(&target, requests, address, |_| {
            for _ in 0..logins {
                ours(context, &["info", &endpoint])?.success().context("a listed key beside a flood")?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// If true, changes the status of the target's first response on a connection to 0301 and ends the connection.
struct Busy(bool);

impl Middle for Busy {
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        if !self.0 || way == Way::ToTarget || bytes.is_empty() {
            out.extend_from_slice(bytes);
            return true;
        }
        let mut header = bytes[..48].to_vec();
        header[5..8].fill(0);
        [header[36], header[37]] = SERVICE_UNAVAILABLE;
        out.extend(header);
        false
    }
}

/// Every command that logs in, or requests a key, retries for some seconds when the target is busy.
fn busy_is_retried(context: &Context, estate: &Estate) -> Result<()> {
    let sealed = estate.serve(context, "require")?;
    let open = Target::serve(context, &[Disk::endpoint("mem:4M")], None, &[])?;
    let image = empty_file(estate.dir.path().join("image"), BYTES)?.display().to_string();
    let (portal, key) = ("iscsi://PORTAL".to_owned(), &estate.target.public);
    let lun = open.url(0).at("PORTAL").to_string();
    let endpoint = estate.endpoint(&sealed, "PORTAL", &estate.friend, "");
    let commands: [(&Target, &[&str]); 5] = [
        (&open, &["ls", &portal]),
        (&open, &["info", &lun]),
        (&open, &["compare", &image, &lun]),
        (&sealed, &["ls", &endpoint]),
        (&sealed, &["key", "trust", &portal, "--key", key]),
    ];
    for (target, command) in commands {
        let tap = Tap::start(target.url(0).port()?, Box::new(|number| Box::new(Busy(number < 2))))?;
        let arguments: Vec<_> = command.iter().map(|word| word.replace("PORTAL", &tap.portal())).collect();
        let output = context.ours(&arguments, LIMIT)?.success().context("after two answers of 0301")?;
        ensure!(tap.conversations().len() > 2, "{}: it did not meet 0301", output.line);
    }
    Ok(())
}

/// Alters one PDU of a handshake; returns whether it did.
type Damage = fn(Way, u64, &mut Pdu) -> bool;
const DAMAGES: &[(&str, Damage)] = &[
    ("request-1", |way, n, pdu| (way, n) == (Way::ToTarget, 0) && flip(pdu, 20)),
    ("response-1", |way, n, pdu| (way, n) == (Way::ToInitiator, 0) && flip(pdu, 20)),
    ("request-2", |way, n, pdu| (way, n) == (Way::ToTarget, 1) && damage_message(pdu)),
    ("response-2", |way, n, pdu| (way, n) == (Way::ToInitiator, 1) && damage_message(pdu)),
];

fn flip(pdu: &mut Pdu, at: usize) -> bool {
    pdu.data[at] ^= 1;
    true
}

/// Ends the connection at the target's second PDU.
struct Cut(u64);

impl Middle for Cut {
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        if way == Way::ToInitiator && !bytes.is_empty() {
            self.0 += 1;
            if self.0 > 1 {
                return false;
            }
        }
        out.extend_from_slice(bytes);
        true
    }
}

/// A handshake that was damaged once succeeds at the second attempt.
fn damaged_once(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "require")?;
    type First = Box<dyn Fn() -> Box<dyn Middle> + Send>;
    let mut kinds: Vec<(&str, First)> = vec![("an end before response 2", Box::new(|| Box::new(Cut(0))))];
    for (what, damage) in DAMAGES {
        let forger = || Box::new(Forger::new(|way, n, pdu: &mut Pdu| _ = damage(way, n, pdu)));
        kinds.push((what, Box::new(move || forger())));
    }
    for (what, first) in kinds {
        let chooser = move |number| if number == 0 { first() } else { Box::new(Passive) };
        let tap = Tap::start(target.url(0).port()?, Box::new(chooser))?;
        for command in ["info", "ls"] {
            let endpoint = estate.endpoint(&target, &tap.portal(), &estate.friend, "");
            ours(context, &[command, &endpoint])?.success().with_context(|| format!("{what}, once"))?;
        }
        let connections = tap.conversations().len();
        ensure!(connections == 3, "{what}: {connections} connections");
    }
    Ok(())
}

/// A handshake that is damaged at every attempt ends with a specific message, and without advice about keys.
fn damaged_always(context: &Context, estate: &Estate) -> Result<()> {
    let target = estate.serve(context, "require")?;
    // Enquiries pass, so the target's key is known and correct.
    let tap = Forger::tap(&target, |way, n, pdu| {
        if (way, n) == (Way::ToInitiator, 1) && pdu.data.len() > 1000 {
            damage_message(pdu);
        }
    })?;
    for command in ["info", "ls"] {
        let endpoint = estate.endpoint(&target, &tap.portal(), &estate.friend, "");
        let output = refused(ours(context, &[command, &endpoint])?)?;
        let text = output.stderr.to_lowercase();
        let is_said = text.contains("damaged on the way");
        ensure!(is_said, "it does not say that the handshake was damaged:\n{text}");
        for advice in ["key trust", "peers", "not the one we know", "not what the other side expects"] {
            ensure!(!text.contains(advice), "it advises about keys ({advice}):\n{text}");
        }
    }
    Ok(())
}

/// One step of a login: the response without its random parts.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    flags: u8,
    status: [u8; 2],
    text: Vec<String>,
}

/// Logs in to `target` with methods, with a wrong password where one is required, and returns each step.
fn steps(url: &Url, target: &str, methods: &str) -> Result<Vec<Step>> {
    let mut stream = connect(url, ANSWER)?;
    let response = format!("0x{}", "5a".repeat(32));
    let texts = [
        keys(&[&INITIATOR[..], &[("TargetName", target), ("AuthMethod", methods)]].concat()),
        keys(&[("CHAP_A", "7,5")]),
        keys(&[("CHAP_N", "tester"), ("CHAP_R", &response)]),
    ];
    let (mut steps, mut exp_stat_sn) = (Vec::new(), 0);
    for (number, text) in texts.into_iter().enumerate() {
        let transit = if number == 1 { 0 } else { 0x81 };
        let mut request = login_pdu(transit, [0x80, 0, 0, 0, 0, 9], text);
        stream.write_all(&request.set(28, exp_stat_sn).encode())?;
        let answer = Pdu::receive(&mut stream).context("an answer of the login")?;
        exp_stat_sn = answer.get(24).wrapping_add(1);
        let pairs = answer.data.split(|&byte| byte == 0).filter(|pair| !pair.is_empty());
        let text = pairs.map(|pair| {
            let pair = String::from_utf8_lossy(pair).into_owned();
            let random = pair.starts_with("CHAP_I=") || pair.starts_with("CHAP_C=");
            if random { pair[..7].to_owned() } else { pair }
        });
        let status = answer.status();
        steps.push(Step { flags: answer.bhs[1], status, text: text.collect() });
        if status != SUCCESS || answer.bhs[1] & 0x80 != 0 {
            break;
        }
    }
    Ok(steps)
}

/// The steps of a login to each name are the same, and end with this status.
fn alike(url: &Url, names: &[&str], status: [u8; 2]) -> Result<()> {
    for methods in ["None", "CHAP", "CHAP,None"] {
        let known = steps(url, names[0], methods)?;
        for name in &names[1..] {
            let other = steps(url, name, methods)?;
            ensure!(known == other, "AuthMethod={methods}: {} {known:02x?}, {name} {other:02x?}", names[0]);
        }
        let last = known.last().map(|step| step.status);
        ensure!(last == Some(status), "AuthMethod={methods}: it ends with {last:02x?}");
    }
    Ok(())
}

const UNKNOWN: &str = "iqn.2026-11.org.example:nothing-here";

/// To an initiator that has not authenticated, existing and unknown names look alike.
fn unknown_with_chap(context: &Context) -> Result<()> {
    let target = Target::serve(context, &[Disk::endpoint("mem:4M")], Some(&Credentials::example()), &[])?;
    alike(target.url(0), &[&target.url(0).iqn, UNKNOWN], AUTHENTICATION_FAILURE)
}

/// The same with an access list of initiators.
fn unknown_with_acl(context: &Context, chap: bool) -> Result<()> {
    let dir = scratch()?;
    let (listed, beside) = ("iqn.2026-11.org.example:listed", "iqn.2026-11.org.example:beside");
    let secret = Credentials::example().secret_file(dir.path())?;
    let account = format!("chap-user = \"tester\"\nsecret-file = \"{}\"\n", secret.display());
    let target = |iqn: &str, initiator: &str| {
        format!(
            "[[target]]\niqn = \"{iqn}\"\n[[target.portal]]\naddress = \"127.0.0.1:0\"\n\
             [[target.lun]]\nlun = 0\nendpoint = \"mem:4M\"\n\
             [[target.acl]]\ninitiator = \"iqn.2026-11.org.example:{initiator}\"\n"
        )
    };
    let targets = target(listed, "somebody-else") + &target(beside, "yet-another");
    let path = dir.path().join("hikyaku.toml");
    std::fs::write(&path, format!("[server]\n{targets}{}", if chap { account.as_str() } else { "" }))?;
    let mut command = context.command_in(dir.path());
    let server = Server::start(command.args(["serve", "--config"]).arg(&path), 1)?;
    let status = if chap { AUTHENTICATION_FAILURE } else { [2, 2] };
    alike(&server.url, &[listed, beside, UNKNOWN], status)
}

/// Idle connections cost little memory, release it, and keep no login out.
fn idle(context: &Context, estate: &Estate) -> Result<()> {
    raise_descriptor_limit(2 * IDLE as u64)?;
    let target = estate.serve(context, "require")?;
    let endpoint = estate.friend_at(&target);
    ours(context, &["info", &endpoint])?.success()?;
    let (before, open) = (resident_bytes(target.pid())?, descriptors(target.pid())?);
    let offer = enquiry()[0].clone();
    let mut peak = before;
    for part in [&[][..], &offer[..24], &offer[..]] {
        let mut connections = Vec::with_capacity(IDLE);
        for number in 0..IDLE {
            let mut stream = connect_from(address(number), target.url(0), ANSWER)?;
            stream.write_all(part)?;
            connections.push(stream);
        }
        for _ in 0..3 {
            ours(context, &["info", &endpoint])?.success().context("a login beside idle connections")?;
        }
        peak = peak.max(resident_bytes(target.pid())?);
        drop(connections);
        wait_until(LIMIT, || Ok(descriptors(target.pid())? <= open))
            .with_context(|| format!("descriptors stay open: {:?}", descriptors(target.pid())))?;
    }
    let after = resident_bytes(target.pid())?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("  idle: {:.1} MiB before, {:.1} at most, {:.1} after", mib(before), mib(peak), mib(after));
    let more = mib(peak) - mib(before);
    ensure!(peak <= before + IDLE_BYTES_MAX, "{IDLE} idle connections: {more:.1} MiB more");
    demand!(after <= before + RETURNED_BYTES_MAX, "{:.1} MiB are kept", mib(after) - mib(before))
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let estate = Scene::new(|| Estate::new(context, BYTES));
    type Body = fn(&Context, &Estate) -> Result<()>;
    let bodies: [(&str, Body); 6] = [
        ("contact-replays-and-garbage-are-refused-before-any-dh", replays),
        ("contact-a-key-behind-a-flooding-address-is-served", behind_a_flood),
        ("contact-right-logins-succeed-beside-floods", right_logins),
        ("contact-busy-is-retried-by-every-command", busy_is_retried),
        ("contact-a-handshake-damaged-once-is-tried-again", damaged_once),
        ("contact-a-damaged-handshake-is-no-advice-about-keys", damaged_always),
    ];
    for (name, body) in bodies {
        cases.check(name, || body(context, estate.get()?));
    }
    cases.check("contact-unknown-targets-look-like-known-ones-chap", || unknown_with_chap(context));
    cases.check("contact-unknown-targets-look-like-known-ones-acl", || unknown_with_acl(context, false));
    cases.check("contact-unknown-targets-look-like-known-ones-acl-chap", || unknown_with_acl(context, true));
    cases.check("contact-idle-connections-cost-little-and-give-it-back", || idle(context, estate.get()?));
    let mut facts = None;
    cases.check("contact-what-a-refusal-costs", || {
        facts = Some(floods(context, estate.get()?)?);
        Ok(())
    });
    if let Some(facts) = facts {
        cases.fact("first_contact_floods", facts);
    }
}
