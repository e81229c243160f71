//! Many handshakes by attackers without a key: the target's CPU time and memory stay bounded, too many concurrent
//! handshakes are refused as busy (0301), and initiators with a key get in.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;
use rand::rngs::StdRng;

use super::estate::{Estate, LIMIT};
use crate::pdu::{Pdu, connect, connect_from, keys, login_pdu};
use crate::procfs::{cpu_seconds, descriptors, resident_bytes};
use crate::records::outer;
use crate::seal::Keys;
use crate::tap::{Tap, Way};
use crate::{Cases, Context, Scene, Target, Url, random, wait_until};

const BYTES: u64 = 4 << 20;
const DISCOVERY: [(&str, &str); 2] =
    [("InitiatorName", "iqn.2026-11.org.example:visitor"), ("SessionType", "Discovery")];
const ATTACKERS: usize = 8;
/// Source address of the attackers; initiators with a key use another one.
const ATTACKERS_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const ANSWER: Duration = Duration::from_secs(10);
/// Time limit in seconds for a session with a key during a flood, on a machine that the flood saturates.
const LATE: f64 = 10.0;
/// CPU time in seconds of one failed handshake, for two cores of any age, without debug logs.
const HANDSHAKE_CPU_S_MAX: f64 = 0.005;
const RESIDENT_GROWTH_MAX: u64 = 64 << 20;
const DESCRIPTOR_GROWTH_MAX: usize = 16;
/// Log lines about failed connections: four in full, and one that counts the others.
const LINES_PER_SECOND_MAX: usize = 5;

/// The two requests of an outer login.
type Requests = [Vec<u8>; 2];

/// Statuses of a Login Response: class and detail.
pub(crate) const SUCCESS: [u8; 2] = [0, 0];
pub(crate) const AUTHENTICATION_FAILURE: [u8; 2] = [2, 1];
pub(crate) const SERVICE_UNAVAILABLE: [u8; 2] = [3, 1];

/// Numbers of connections by the status of the last answer; `None` if the target closed instead.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<BTreeMap<Option<[u8; 2]>, u64>>);

impl Tally {
    pub(crate) fn add(&self, status: Option<[u8; 2]>) {
        *self.0.lock().expect("no panic under this lock").entry(status).or_default() += 1;
    }

    pub(crate) fn of(&self, status: [u8; 2]) -> u64 {
        self.0.lock().expect("no panic under this lock").get(&Some(status)).copied().unwrap_or(0)
    }

    fn all(&self) -> u64 {
        self.0.lock().expect("no panic under this lock").values().sum()
    }
}

/// Sends a PDU of the outer login; returns the status of the response.
pub(crate) fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Option<[u8; 2]> {
    stream.write_all(bytes).ok()?;
    Some(Pdu::receive(stream).ok()?.status())
}

/// The two requests of a real handshake. The response to the first contains a nonce, so that the second is refused on
/// every other connection.
pub(crate) fn handshake_of(
    context: &Context,
    estate: &Estate,
    target: &Target,
    who: &Keys,
) -> Result<Requests> {
    let tap = Tap::passive(target.url(0).port()?)?;
    context.ours(&["info", &estate.endpoint(target, &tap.portal(), who, "")], LIMIT)?;
    let all = tap.conversations();
    let sent = all.first().context("it did not connect")?.sent(Way::ToTarget);
    let requests = outer(sent);
    ensure!(requests.iter().all(|request| request.len() > 48), "no whole handshake was seen");
    Ok(requests)
}

/// A request for discovery without authentication.
pub(crate) fn plain_request() -> Vec<u8> {
    login_pdu(0x81, [0; 6], keys(&[&DISCOVERY[..], &[("AuthMethod", "None")]].concat())).encode()
}

/// A handshake's requests with a random message of the right length.
pub(crate) fn garbage([first, second]: &[Vec<u8>; 2], rng: &mut StdRng) -> [Vec<u8>; 2] {
    let mut second = second.clone();
    // Offset behind the header, the key and 0b.
    let from = 48 + "X-example.hikyaku.message=0b".len();
    let to = second.len() - 8;
    for byte in &mut second[from..to] {
        *byte = b'A' + rng.random_range(0..26);
    }
    [first.clone(), second]
}

/// The two requests of an enquiry for the target's key (XX), which needs no key.
pub(crate) fn enquiry() -> [Vec<u8>; 2] {
    let sealing = [
        ("AuthMethod", "Z-example.hikyaku.seal1"),
        ("X-example.hikyaku.suite", "AES-256-GCM"),
        ("X-example.hikyaku.unit", "65536"),
        ("X-example.hikyaku.pattern", "XX"),
    ];
    let message = keys(&[("X-example.hikyaku.message", &format!("0b{}=", "A".repeat(43)))]);
    [(keys(&[&DISCOVERY[..], &sealing].concat()), 0), (message, 1)]
        .map(|(text, exp_stat_sn)| login_pdu(0, [0; 6], text).set(28, exp_stat_sn).encode())
}

/// Sends the second request if the first is answered; returns the last status.
fn both(stream: &mut TcpStream, [first, second]: &[Vec<u8>; 2]) -> Option<[u8; 2]> {
    match exchange(stream, first) {
        Some([0, 0]) => exchange(stream, second),
        status => status,
    }
}

enum Flood {
    /// These requests, unchanged.
    Again([Vec<u8>; 2]),
    /// A valid offer, and a random message of the right length.
    Garbage([Vec<u8>; 2]),
    /// Keys and headers altered at random.
    Mutated([Vec<u8>; 2]),
    /// Offers only; then the connection is closed.
    Offers(Vec<u8>),
}

impl Flood {
    fn once(&self, url: &Url, rng: &mut StdRng, tally: &Tally) -> Result<()> {
        let mut stream = connect_from(ATTACKERS_ADDRESS, url, ANSWER)?;
        match self {
            Self::Offers(offer) => tally.add(exchange(&mut stream, offer)),
            Self::Again(requests) => tally.add(both(&mut stream, requests)),
            Self::Garbage(requests) => tally.add(both(&mut stream, &garbage(requests, rng))),
            Self::Mutated(requests) => {
                let mut status = None;
                for request in requests {
                    let mut request = request.clone();
                    for _ in 0..rng.random_range(0..4) {
                        let at = rng.random_range(0..request.len());
                        request[at] = rng.random();
                    }
                    if rng.random_range(0..4) == 0 {
                        request.truncate(rng.random_range(0..request.len()));
                        let _ = stream.write_all(&request);
                        break;
                    }
                    stream.set_read_timeout(Some(Duration::from_millis(50)))?;
                    status = exchange(&mut stream, &request);
                    if status != Some([0, 0]) {
                        break;
                    }
                }
                tally.add(status);
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Measured {
    tally: Tally,
    seconds: f64,
    cpu_each: f64,
    longest: f64,
    sessions: u64,
}

/// Floods for a while; meanwhile an initiator with a key repeatedly logs in.
fn flood(
    context: &Context,
    estate: &Estate,
    target: &mut Target,
    what: &Flood,
    seconds: f64,
) -> Result<Measured> {
    let (tally, stop) = (Tally::default(), AtomicBool::new(false));
    let pid = target.pid();
    let (resident, open) = (resident_bytes(pid)?, descriptors(pid)?);
    let endpoint = estate.friend_at(target);
    let url = target.url(0).clone();
    let logged_before = target.refusals();
    let started = Instant::now();
    let cpu = cpu_seconds(pid)?;
    let (mut longest, mut sessions) = (0.0f64, 0u64);
    let mut peak = resident;
    let result = std::thread::scope(|scope| {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|number| {
                let mut rng = random::seeded(context.seed_for("sealed/flood") ^ number as u64);
                let (url, tally, stop) = (&url, &tally, &stop);
                scope.spawn(move || -> Result<()> {
                    while !stop.load(Ordering::Relaxed) {
                        what.once(url, &mut rng, tally)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let visits = (|| -> Result<()> {
            while started.elapsed().as_secs_f64() < seconds {
                let arrived = Instant::now();
                context.ours(&["info", &endpoint], LIMIT)?.success().context("somebody with a key")?;
                longest = longest.max(arrived.elapsed().as_secs_f64());
                sessions += 1;
                peak = peak.max(resident_bytes(pid)?);
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let attacks = attackers.into_iter().map(|thread| thread.join().expect("no panic in an attacker"));
        visits.and(attacks.collect::<Result<()>>())
    });
    let (used, passed) = (cpu_seconds(pid)?, started.elapsed().as_secs_f64());
    result.with_context(|| format!("{tally:?}\n--- log of the target\n{}", target.log()))?;
    let handshakes = tally.all();
    let cpu_each = (used.0 + used.1 - cpu.0 - cpu.1) / handshakes.max(1) as f64;
    let logged = target.refusals() - logged_before;
    let is_logged = logged > 0 || tally.of(AUTHENTICATION_FAILURE) == 0;
    let measured = Measured { tally, seconds: passed, cpu_each, longest, sessions };
    ensure!(handshakes > 100, "a flood of {handshakes} handshakes is none");
    ensure!(cpu_each < HANDSHAKE_CPU_S_MAX, "{cpu_each:.4} s of processor time each: {measured:?}");
    ensure!(longest < LATE, "somebody with a key waited {longest:.1} s: {measured:?}");
    ensure!(peak <= resident + RESIDENT_GROWTH_MAX, "resident {peak} bytes, {resident} at first");
    let logged_max = LINES_PER_SECOND_MAX * (passed.ceil() as usize + 1);
    ensure!(is_logged && logged <= logged_max, "{logged} lines of refusals in {passed:.1} s");
    wait_until(ANSWER, || Ok(descriptors(pid)? <= open + DESCRIPTOR_GROWTH_MAX))
        .with_context(|| format!("{:?} descriptors stay open, {open} before", descriptors(pid)))?;
    estate.serves_on(context, target)?;
    Ok(measured)
}

struct Ground {
    estate: Estate,
    target: Target,
    /// Requests of a handshake with a listed key, and of one with an unlisted key.
    friend: [Vec<u8>; 2],
    stranger: [Vec<u8>; 2],
}

impl Ground {
    fn new(context: &Context) -> Result<Self> {
        let estate = Estate::new(context, BYTES)?;
        let target = estate.serve(context, "require")?;
        let friend = handshake_of(context, &estate, &target, &estate.friend)?;
        let stranger = handshake_of(context, &estate, &target, &estate.stranger)?;
        Ok(Self { estate, target, friend, stranger })
    }
}

type Make = fn(&Ground) -> Flood;
const FLOODS: [(&str, Make); 6] = [
    ("unknown-key", |ground| Flood::Again(ground.stranger.clone())),
    ("known-key-again", |ground| Flood::Again(ground.friend.clone())),
    ("garbage", |ground| Flood::Garbage(ground.stranger.clone())),
    ("enquiries", |_| Flood::Again(enquiry())),
    ("mutated", |ground| Flood::Mutated(ground.friend.clone())),
    ("offers", |ground| Flood::Offers(ground.stranger[0].clone())),
];

fn named(context: &Context, ground: &mut Ground, name: &str, make: Make) -> Result<Measured> {
    // Time for the target's allowance to be refilled after the flood before.
    std::thread::sleep(Duration::from_secs(2));
    let what = make(ground);
    let seconds = context.amount(2, 15) as f64;
    let measured = flood(context, &ground.estate, &mut ground.target, &what, seconds)?;
    println!("  {name}: {measured:?}");
    let [answered, refused, busy] =
        [SUCCESS, AUTHENTICATION_FAILURE, SERVICE_UNAVAILABLE].map(|status| measured.tally.of(status));
    match name {
        // None of these is charged to an allowance, because their mac is wrong.
        "unknown-key" | "known-key-again" | "garbage" => {
            ensure!(refused > 0 && answered + busy == 0, "{measured:?}");
        }
        "enquiries" => ensure!(answered > 0, "{measured:?}"),
        _ => {}
    }
    Ok(measured)
}

impl Measured {
    fn facts(&self) -> serde_json::Value {
        let handshakes = self.tally.all();
        serde_json::json!({
            "handshakes": handshakes,
            "per_second": (handshakes as f64 / self.seconds).round(),
            "cpu_us_each": (self.cpu_each * 1e6).round(),
            "status_0301": self.tally.of(SERVICE_UNAVAILABLE),
            "longest_wait_of_a_friend_s": (self.longest * 1000.0).round() / 1000.0,
            "sessions_of_a_friend": self.sessions,
        })
    }
}

/// A first request without an offer of sealing costs next to nothing.
fn plain_logins(target: &Target) -> Result<()> {
    let before = cpu_seconds(target.pid())?;
    let request = plain_request();
    for _ in 0..500 {
        let mut stream = connect(target.url(0), ANSWER)?;
        ensure!(exchange(&mut stream, &request) == Some([2, 1]), "not refused with 0201");
    }
    let after = cpu_seconds(target.pid())?;
    let each = (after.0 + after.1 - before.0 - before.1) / 500.0;
    demand!(each < HANDSHAKE_CPU_S_MAX / 2.0, "{each:.5} s of processor time each")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let mut ground = Scene::new(|| Ground::new(context));
    let (mut facts, mut busy) = (serde_json::Map::new(), 0);
    for (name, make) in FLOODS {
        cases.check(&format!("flood-{name}"), || {
            let measured = named(context, ground.get_mut()?, name, make)?;
            busy += measured.tally.of(SERVICE_UNAVAILABLE);
            facts.insert(name.to_owned(), measured.facts());
            Ok(())
        });
    }
    cases.check_sum("flood-is-told-0301", facts.len() == FLOODS.len(), || {
        demand!(busy > 0, "no handshake is refused as one too many (0301)")
    });
    cases.fact("floods", facts);
    cases.check("flood-plain-logins-are-refused-cheaply", || plain_logins(&ground.get()?.target));
}
