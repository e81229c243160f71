//! Handshakes in masses, by people who have no key: the target's processor time and memory stay bounded, too many at once are
//! told so (0301), and who has a key gets in.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::estate::{Estate, LIMIT};
use crate::harness::pdu::{self, Pdu, connect, connect_from, keys};
use crate::harness::procfs::{cpu_seconds, descriptors, resident_bytes};
use crate::harness::records::{Part, Records};
use crate::harness::tap::{Tap, Way};
use crate::harness::{Cases, Context, Target, Url};

const BYTES: u64 = 4 << 20;
/// Connections that attack at once.
const ATTACKERS: usize = 8;
/// Where they come from: another address than who has a key.
const ATTACKERS_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const ANSWER: Duration = Duration::from_secs(10);
/// How soon somebody with a key must be served meanwhile, on a machine that the flood keeps busy.
const LATE: f64 = 10.0;
/// Processor time of one handshake that comes to nothing, two cores of any age, debug logs aside.
const HANDSHAKE_CPU_S_MAX: f64 = 0.005;
const RESIDENT_GROWTH_MAX: u64 = 64 << 20;
const DESCRIPTOR_GROWTH_MAX: usize = 16;
/// Lines about connections that came to nothing: four in full, and one that counts the others.
const LINES_PER_SECOND_MAX: usize = 5;

/// What came back.
#[derive(Debug, Default)]
struct Tally {
    handshakes: AtomicU64,
    answered: AtomicU64,
    /// 0201.
    refused: AtomicU64,
    /// 0301.
    busy: AtomicU64,
    /// 0200.
    wrong: AtomicU64,
    closed: AtomicU64,
}

impl Tally {
    fn add(&self, status: Option<[u8; 2]>) {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        let counter = match status {
            Some([0, 0]) => &self.answered,
            Some([2, 1]) => &self.refused,
            Some([3, 1]) => &self.busy,
            Some([2, 0]) => &self.wrong,
            _ => &self.closed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends a PDU of the outer login; the status of the answer.
pub(in crate::family) fn exchange(stream: &mut TcpStream, bytes: &[u8]) -> Option<[u8; 2]> {
    stream.write_all(bytes).ok()?;
    let mut header = [0; 48];
    stream.read_exact(&mut header).ok()?;
    let data = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    stream.read_exact(&mut vec![0; data.next_multiple_of(4)]).ok()?;
    Some([header[36], header[37]])
}

/// The two requests of a real handshake. The answer to the first has a nonce, so that the second is refused on every other connection.
pub(in crate::family) fn handshake_of(
    context: &Context,
    estate: &Estate,
    target: &Target,
    who: &super::estate::Keys,
) -> Result<[Vec<u8>; 2]> {
    let tap = Tap::passive(target.url(0).port()?)?;
    context.ours(&["info", &estate.endpoint(target, &tap.portal(), who, "")], LIMIT)?;
    let all = tap.conversations();
    let sent = all.first().context("it did not connect")?.sent(Way::ToTarget);
    let pieces = Records::default().split(sent);
    let of = |number| -> Vec<u8> {
        let own =
            pieces.iter().filter(|piece| piece.place.part == Part::Outer && piece.place.number == number);
        own.flat_map(|piece| piece.bytes.clone()).collect()
    };
    let requests = [of(0), of(1)];
    ensure!(requests.iter().all(|request| request.len() > 48), "no whole handshake was seen");
    Ok(requests)
}

/// The two requests of an enquiry for the target's key (XX), which needs no key.
pub(in crate::family) fn enquiry() -> [Vec<u8>; 2] {
    let offer = keys(&[
        ("InitiatorName", "iqn.2026-11.org.example:visitor"),
        ("SessionType", "Discovery"),
        ("AuthMethod", "Z-example.hikyaku.seal1"),
        ("X-example.hikyaku.suite", "AES-256-GCM"),
        ("X-example.hikyaku.unit", "65536"),
        ("X-example.hikyaku.pattern", "XX"),
    ]);
    let message = keys(&[("X-example.hikyaku.message", &format!("0b{}=", "A".repeat(43)))]);
    [(offer, 0), (message, 1)].map(|(text, exp_stat_sn)| {
        let mut request = Pdu::new(pdu::LOGIN | pdu::IMMEDIATE, 0).with_data(text);
        request.set(24, 1).set(28, exp_stat_sn);
        request.encode()
    })
}

/// What a handshake of the flood consists of.
enum Flood {
    /// These requests, as they stand.
    Again([Vec<u8>; 2]),
    /// A right offer, and a message of the right length that nobody ever made.
    Garbage([Vec<u8>; 2]),
    /// Keys and headers altered at random.
    Mutated([Vec<u8>; 2]),
    /// Offers only, and away.
    Offers(Vec<u8>),
}

impl Flood {
    fn once(&self, url: &Url, rng: &mut StdRng, tally: &Tally) -> Result<()> {
        let mut stream = connect_from(ATTACKERS_ADDRESS, url, ANSWER)?;
        match self {
            Self::Offers(offer) => tally.add(exchange(&mut stream, offer)),
            Self::Again([first, second]) => match exchange(&mut stream, first) {
                Some([0, 0]) => tally.add(exchange(&mut stream, second)),
                status => tally.add(status),
            },
            Self::Garbage([first, second]) => {
                let mut second = second.clone();
                // Behind the header, the key and 0b.
                let from = 48 + "X-example.hikyaku.message=0b".len();
                let to = second.len() - 8;
                for byte in &mut second[from..to] {
                    *byte = b'A' + rng.random_range(0..26);
                }
                match exchange(&mut stream, first) {
                    Some([0, 0]) => tally.add(exchange(&mut stream, &second)),
                    status => tally.add(status),
                }
            }
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

/// How a flood went.
#[derive(Debug)]
struct Measured {
    tally: Tally,
    seconds: f64,
    /// Processor time of the target for one handshake.
    cpu_each: f64,
    /// The longest wait of somebody with a key for a whole session.
    longest: f64,
    sessions: u64,
}

/// Floods for a while; meanwhile somebody with a key comes again and again.
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
    let endpoint = estate.endpoint(target, &target.url(0).portal, &estate.friend, "");
    let url = target.url(0).clone();
    let told_before = target.refusals();
    let started = Instant::now();
    let cpu = cpu_seconds(pid)?;
    let (mut longest, mut sessions) = (0.0f64, 0u64);
    let mut peak = resident;
    let result = std::thread::scope(|scope| {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|number| {
                let mut rng = StdRng::seed_from_u64(context.seed_for("sealed/flood") ^ number as u64);
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
    let handshakes = tally.handshakes.load(Ordering::Relaxed);
    let cpu_each = (used.0 + used.1 - cpu.0 - cpu.1) / handshakes.max(1) as f64;
    let told = target.refusals() - told_before;
    let is_told = told > 0 || tally.refused.load(Ordering::Relaxed) == 0;
    let measured = Measured { tally, seconds: passed, cpu_each, longest, sessions };
    ensure!(handshakes > 100, "a flood of {handshakes} handshakes is none");
    ensure!(cpu_each < HANDSHAKE_CPU_S_MAX, "{cpu_each:.4} s of processor time each: {measured:?}");
    ensure!(longest < LATE, "somebody with a key waited {longest:.1} s: {measured:?}");
    ensure!(peak <= resident + RESIDENT_GROWTH_MAX, "resident {peak} bytes, {resident} at first");
    let told_max = LINES_PER_SECOND_MAX * (passed.ceil() as usize + 1);
    ensure!(is_told && told <= told_max, "{told} lines of refusals in {passed:.1} s");
    let until = Instant::now() + ANSWER;
    while descriptors(pid)? > open + DESCRIPTOR_GROWTH_MAX {
        ensure!(Instant::now() < until, "{} descriptors stay open, {open} before", descriptors(pid)?);
        std::thread::sleep(Duration::from_millis(50));
    }
    estate.serves_on(context, target)?;
    Ok(measured)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let estate = Estate::new(context, BYTES)?;
    let mut target = estate.serve(context, "require")?;
    let seconds = context.amount(2, 15) as f64;
    let friend = handshake_of(context, &estate, &target, &estate.friend)?;
    let stranger = handshake_of(context, &estate, &target, &estate.stranger)?;
    let enquiry = enquiry();
    let (mut facts, mut busy) = (serde_json::Map::new(), 0);
    let floods = [
        ("unknown-key", Flood::Again(stranger.clone())),
        ("known-key-again", Flood::Again(friend.clone())),
        ("garbage", Flood::Garbage(stranger.clone())),
        ("enquiries", Flood::Again(enquiry)),
        ("mutated", Flood::Mutated(friend)),
        ("offers", Flood::Offers(stranger[0].clone())),
    ];
    for (name, what) in floods {
        cases.check(&format!("flood-{name}"), || {
            let measured = flood(context, &estate, &mut target, &what, seconds)?;
            let Measured { tally, seconds, cpu_each, longest, sessions } = &measured;
            let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            println!("  {name}: {measured:?}");
            busy += count(&tally.busy);
            facts.insert(
                name.to_owned(),
                serde_json::json!({
                    "handshakes": count(&tally.handshakes),
                    "per_second": (count(&tally.handshakes) as f64 / seconds).round(),
                    "cpu_us_each": (cpu_each * 1e6).round(),
                    "status_0301": count(&tally.busy),
                    "longest_wait_of_a_friend_s": (longest * 1000.0).round() / 1000.0,
                    "sessions_of_a_friend": sessions,
                }),
            );
            // Each kind of answer shows that the flood was what it is called.
            match name {
                // None of these is charged to an allowance: their mac is wrong.
                "unknown-key" | "known-key-again" | "garbage" => {
                    let others = count(&tally.answered) + count(&tally.busy);
                    ensure!(count(&tally.refused) > 0 && others == 0, "{measured:?}");
                }
                "enquiries" => ensure!(count(&tally.answered) > 0, "{measured:?}"),
                _ => {}
            }
            Ok(())
        });
        // The next flood finds the allowance refilled.
        std::thread::sleep(Duration::from_secs(2));
    }
    cases.fact("floods", facts);
    cases.check("flood-is-told-0301", || {
        ensure!(busy > 0, "nobody was told that there are too many handshakes");
        Ok(())
    });
    // A first request that is no offer of sealing costs nothing of all this.
    cases.check("flood-plain-logins-are-refused-cheaply", || {
        let before = cpu_seconds(target.pid())?;
        let text = keys(&[
            ("InitiatorName", "iqn.2026-11.org.example:x"),
            ("SessionType", "Discovery"),
            ("AuthMethod", "None"),
        ]);
        let request = Pdu::new(pdu::LOGIN | pdu::IMMEDIATE, 0x81).with_data(text).encode();
        for _ in 0..500 {
            let mut stream = connect(target.url(0), ANSWER)?;
            ensure!(exchange(&mut stream, &request) == Some([2, 1]), "not refused with 0201");
        }
        let after = cpu_seconds(target.pid())?;
        let each = (after.0 + after.1 - before.0 - before.1) / 500.0;
        ensure!(each < HANDSHAKE_CPU_S_MAX / 2.0, "{each:.5} s of processor time each");
        Ok(())
    });
    Ok(())
}
