//! Records altered, dropped, repeated, exchanged and truncated in transit, while a copy with `--verify` runs through
//! the attacker.
//!
//! After each deed the connection must end, the copy may report success only with the right bytes, every block of the
//! LUN holds its earlier or its new content, and the target continues to serve. Two controls prove that this can fail:
//! a flipped bit in a plain session, and a deed that alters nothing.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rand::RngExt;
use rand::rngs::StdRng;

use super::attack::{Aim, Attack, Deed, Done};
use super::estate::{Estate, LIMIT, TIMEOUT_S};
use super::flood::exchange;
use crate::pdu::connect;
use crate::records::{Part, Records, outer};
use crate::tap::{Conversation, Middle, Passive, Tap, Way};
use crate::{Cases, Context, Output, Scene, Target, random};

const BYTES: usize = 2 << 20;
const BLOCK_BYTES: usize = 512;
/// A record with a body of at least this length carries data of a transfer.
const DATA_BYTES_MIN: usize = 4096;
/// Time limit for a receiver to detect a deed, on a busy machine.
const NOTICED: Duration = Duration::from_secs(3);
/// `timeout=` of the sessions, in seconds: a receiver waits for the rest of a head whose length was altered.
const REPLY_LIMIT_S: u64 = 3;
/// Delay until all earlier sessions are in the target's log.
const LOGGED: Duration = Duration::from_millis(300);
/// Maximum number of copies until a deed finds its place.
const ATTEMPTS: u32 = 5;
/// Flips of a sample, besides those of data.
const SAMPLE: usize = 16;
/// Rounds of a full run through all places and deeds.
const ROUNDS: usize = 6;

#[derive(Clone, Copy, Debug)]
struct Seen {
    number: u64,
    units: usize,
    body: usize,
}

/// Kinds of records that are distinguishable without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// The first record of a direction.
    Login,
    /// A short segment: text, sense, inquiry data.
    Small,
    /// Immediate data, Data-Out, Data-In.
    Data,
    /// No data.
    Bare,
    /// The last record of a direction.
    Last,
}

const CLASSES: [Class; 5] = [Class::Login, Class::Small, Class::Data, Class::Bare, Class::Last];

impl Class {
    fn of(seen: &Seen, last: u64) -> Self {
        match seen {
            Seen { number: 0, .. } => Self::Login,
            Seen { number, .. } if *number == last => Self::Last,
            Seen { body: 0, .. } => Self::Bare,
            Seen { body, .. } if *body >= DATA_BYTES_MIN => Self::Data,
            _ => Self::Small,
        }
    }
}

fn survey(bytes: &[u8]) -> Vec<Seen> {
    let (mut records, mut seen) = (Records::default(), BTreeMap::new());
    let mut pieces = records.split(bytes);
    pieces.extend(records.flush());
    for piece in pieces.iter().filter(|piece| piece.place.part != Part::Outer) {
        let place = piece.place;
        let entry =
            seen.entry(place.number).or_insert(Seen { number: place.number, units: place.units, body: 0 });
        entry.units = place.units;
        entry.body += if place.part == Part::Body { piece.bytes.len() } else { 0 };
    }
    seen.into_values().collect()
}

fn record(bytes: &[u8], number: u64) -> Vec<u8> {
    let pieces = Records::default().split(bytes).into_iter();
    let wanted = |place: crate::records::Place| place.part != Part::Outer && place.number == number;
    pieces.filter(|piece| wanted(piece.place)).flat_map(|piece| piece.bytes).collect()
}

struct Run {
    output: Output,
    conversations: Vec<Conversation>,
    /// Content of the LUN before, data to be written, content of the LUN now.
    before: Vec<u8>,
    source: Vec<u8>,
    after: Vec<u8>,
}

impl Run {
    fn honest(&self) -> Result<()> {
        match self.output.code {
            Some(0) => ensure!(self.after == self.source, "the copy reports success with wrong bytes"),
            // Failed, refused, unreachable; never a mismatch.
            Some(1 | 4 | 5) => {}
            _ => bail!("the copy: {}", self.output),
        }
        let blocks = self.before.chunks(BLOCK_BYTES).zip(self.source.chunks(BLOCK_BYTES));
        for (index, ((old, new), now)) in blocks.zip(self.after.chunks(BLOCK_BYTES)).enumerate() {
            ensure!(now == old || now == new, "block {index} holds what nobody wrote");
        }
        Ok(())
    }

    fn undisturbed(&self) -> Result<()> {
        ensure!(self.output.code == Some(0), "undisturbed, the copy: {}", self.output);
        self.honest()
    }

    /// Demands that the first connection was ended: otherwise the deed was not detected.
    fn noticed(&self) -> Result<()> {
        let is_noticed = self.output.code != Some(0) || self.conversations.len() > 1;
        demand!(is_noticed, "no end detected the tampering: the copy succeeded over the first connection")
    }
}

/// An undisturbed run: the conversation, and its records in both directions.
struct Survey {
    recorded: Conversation,
    seen: [Vec<Seen>; 2],
}

struct Bench<'a> {
    context: &'a Context,
    estate: Estate,
    target: Target,
    source: PathBuf,
    runs: u64,
    codes: BTreeMap<i32, u64>,
}

impl<'a> Bench<'a> {
    fn new(context: &'a Context, policy: &str) -> Result<Self> {
        let estate = Estate::new(context, BYTES as u64)?;
        let target = estate.serve(context, policy)?;
        let source = estate.dir.path().join("source.img");
        Ok(Self { context, estate, target, source, runs: 0, codes: BTreeMap::new() })
    }

    fn tap(&self, mut attack: Option<Attack>) -> Result<Tap> {
        let chooser = move |_| -> Box<dyn Middle> {
            match attack.take() {
                Some(attack) => Box::new(attack),
                None => Box::new(Passive),
            }
        };
        Tap::start(self.target.url(0).port()?, Box::new(chooser))
    }

    fn run(&mut self, tap: &Tap, is_sealed: bool) -> Result<Run> {
        self.runs += 1;
        let rng = &mut self.context.rng(&format!("sealed/tamper/source/{}", self.runs));
        let source = random::bytes(rng, BYTES);
        std::fs::write(&self.source, &source)?;
        let before = std::fs::read(&self.estate.file)?;
        let endpoint = match is_sealed {
            true => self.estate.endpoint(&self.target, &tap.portal(), &self.estate.friend, ""),
            false => Estate::plain(&self.target, &tap.portal()),
        };
        let endpoint =
            endpoint.replace(&format!("timeout={TIMEOUT_S}s"), &format!("timeout={REPLY_LIMIT_S}s"));
        let path = self.source.display().to_string();
        let output = self.context.ours(&["copy", "--verify", "--force", &path, &endpoint], LIMIT)?;
        *self.codes.entry(output.code.unwrap_or(-1)).or_default() += 1;
        let after = std::fs::read(&self.estate.file)?;
        Ok(Run { output, conversations: tap.conversations(), before, source, after })
    }

    /// An undisturbed run, which must succeed and shows the places of the records.
    fn survey(&mut self) -> Result<Survey> {
        let tap = self.tap(None)?;
        let run = self.run(&tap, true)?;
        run.undisturbed()?;
        ensure!(run.conversations.len() == 1, "undisturbed, it took {} connections", run.conversations.len());
        let conversation = run.conversations.into_iter().next().context("no connection")?;
        let seen = Way::BOTH.map(|way| survey(conversation.sent(way)));
        for (way, seen) in Way::BOTH.iter().zip(&seen) {
            ensure!(seen.len() > 4, "{way:?}: {} records", seen.len());
            let data: usize =
                seen.iter().filter(|seen| seen.body >= DATA_BYTES_MIN).map(|seen| seen.body).sum();
            ensure!(data >= BYTES, "{way:?}: {data} bytes of data in records");
        }
        Ok(Survey { recorded: conversation, seen })
    }

    /// A copy in whose first connection the deed was done. Retries, because a copy may have one record more or less
    /// than the survey, so that the last one is not always found.
    fn met(&mut self, way: Way, aim: Aim, deed: &Deed) -> Result<(Tap, Run, Instant)> {
        let mut told = String::new();
        for _ in 0..ATTEMPTS {
            let done = Done::default();
            let tap = self.tap(Some(Attack::new(way, aim, deed.clone(), done.clone())))?;
            let run = self.run(&tap, true)?;
            if let Some(at) = done.at() {
                return Ok((tap, run, at));
            }
            match deed {
                // The record awaited its answer, so no successor came: it was withheld until the connection ended.
                Deed::Swap => run.honest()?,
                _ => run.undisturbed()?,
            }
            told = run.output.text();
        }
        bail!("the place was not met in {ATTEMPTS} copies: {way:?} {aim:?}\n{told}")
    }

    fn attack(&mut self, way: Way, aim: Aim, deed: &Deed, must_notice: bool) -> Result<()> {
        let (tap, run, at) = self.met(way, aim, deed)?;
        let result = (|| {
            run.honest()?;
            let ended = tap.wait_ended(0, NOTICED)?.ended.context("it has ended")?;
            // A connection that stalls is ended by the initiator's timeout.
            let stalls = matches!(deed, Deed::Drop | Deed::Replace(_))
                || matches!(aim, Aim::Place { part: Part::Prefix, offset: 2.., .. });
            let limit = if stalls { NOTICED + Duration::from_secs(REPLY_LIMIT_S) } else { NOTICED };
            let took = ended.saturating_duration_since(at);
            ensure!(took <= limit, "the connection stood for {took:?} after it");
            if must_notice { run.noticed() } else { Ok(()) }
        })();
        result
            .map_err(|error: anyhow::Error| anyhow!("{way:?} {aim:?} {deed:?}: {error:#}\n{}", run.output))?;
        self.estate.serves_on(self.context, &mut self.target)
    }
}

fn place(rng: &mut StdRng, seen: &[Seen], class: Class, part: Part) -> Option<Aim> {
    let last = seen.last()?.number;
    let fits = |seen: &&Seen| Class::of(seen, last) == class && (part != Part::Body || seen.units > 0);
    let fitting: Vec<&Seen> = seen.iter().filter(fits).collect();
    if fitting.is_empty() {
        return None;
    }
    let chosen = fitting[rng.random_range(0..fitting.len())];
    let bytes = match part {
        Part::Prefix => 4,
        Part::Head => 48 + 28 * chosen.units,
        Part::Tag => 16,
        Part::Body => chosen.body,
        Part::Outer => return None,
    };
    // The same record of the next run may be shorter.
    let offset = rng.random_range(0..if part == Part::Body { bytes.min(300) } else { bytes });
    Some(Aim::Place { part, number: chosen.number, offset })
}

const PARTS: [Part; 4] = [Part::Head, Part::Body, Part::Tag, Part::Prefix];

fn pair_of_data(rng: &mut StdRng, seen: &[Seen]) -> Option<u64> {
    let pairs = seen.windows(2).filter(|pair| pair.iter().all(|seen| seen.body >= DATA_BYTES_MIN));
    let firsts: Vec<u64> = pairs.map(|pair| pair[0].number).collect();
    (!firsts.is_empty()).then(|| firsts[rng.random_range(0..firsts.len())])
}

const DEEDS: [&str; 7] =
    ["drop", "duplicate", "swap", "replay", "other-session", "other-direction", "truncate"];

fn draw_deed(rng: &mut StdRng, survey: &Survey, name: &str, way: Way) -> Result<(Aim, Deed)> {
    let Survey { recorded, seen } = survey;
    // The first record has no predecessor, and the last two may have no successor.
    let numbers = 1..seen[way as usize].len() as u64 - 2;
    let number = match name {
        // Only a record that awaits no response is directly followed by another.
        "swap" => pair_of_data(rng, &seen[way as usize]).context("no two records with data in a row")?,
        _ => rng.random_range(numbers),
    };
    let mut aim = Aim::Place { part: Part::Prefix, number, offset: 0 };
    let deed = match name {
        "drop" => Deed::Drop,
        "duplicate" => Deed::Duplicate,
        "swap" => Deed::Swap,
        "replay" => Deed::Replay(rng.random_range(0..number)),
        "other-session" => Deed::Replace(record(recorded.sent(way), number)),
        "other-direction" => {
            let other = Way::BOTH[1 - way as usize];
            Deed::Replace(record(recorded.sent(other), number.min(seen[other as usize].len() as u64 - 1)))
        }
        _ => {
            let class = CLASSES[rng.random_range(0..4)];
            let part = PARTS[rng.random_range(0..4)];
            aim = place(rng, &seen[way as usize], class, part).unwrap_or(aim);
            Deed::Truncate
        }
    };
    Ok((aim, deed))
}

/// All bytes of a recorded session sent again: the second request has the mac of another nonce and is refused (0201),
/// no record opens, and nothing is stored.
fn session_again(bench: &mut Bench<'_>, recorded: &Conversation) -> Result<()> {
    std::fs::write(&bench.estate.file, vec![0; BYTES])?;
    bench.estate.serves_on(bench.context, &mut bench.target)?;
    std::thread::sleep(LOGGED);
    let logins = bench.target.logins();
    let sent = recorded.sent(Way::ToTarget);
    let outer = outer(sent);
    let mut stream = connect(bench.target.url(0), NOTICED)?;
    for (pdu, status) in outer.iter().zip([[0, 0], [2, 1]]) {
        let found = exchange(&mut stream, pdu).context("the answer to a handshake that was replayed")?;
        ensure!(found == status, "status {found:02x?} for a replayed handshake, and not {status:02x?}");
    }
    let rest = &sent[outer.iter().map(Vec::len).sum()..];
    // The target may close before it has received everything.
    let _ = stream.write_all(rest);
    let _ = stream.shutdown(Shutdown::Write);
    let mut more = Vec::new();
    let _ = stream.read_to_end(&mut more);
    ensure!(more.is_empty(), "the target answers records that were replayed with {} bytes", more.len());
    ensure!(std::fs::read(&bench.estate.file)?.iter().all(|&byte| byte == 0), "replayed data was stored");
    bench.estate.serves_on(bench.context, &mut bench.target)?;
    demand!(bench.target.logins() == logins + 1, "a session that was replayed logged in")
}

/// In a plain session a flipped bit of written data is not detected in transit: `honest` must find it.
fn plain_flip_is_found(context: &Context) -> Result<()> {
    let mut bench = Bench::new(context, "off")?;
    let done = Done::default();
    let aim = Aim::Byte(BYTES / 2);
    let tap = bench.tap(Some(Attack::new(Way::ToTarget, aim, Deed::Flip(1), done.clone())))?;
    let run = bench.run(&tap, false)?;
    ensure!(done.at().is_some(), "the place was not met");
    demand!(run.honest().is_err(), "a bit was altered in the clear, and nothing is found wrong")
}

/// The places whose bits are flipped: those that occur in a copy. The initiator's records have either data or none.
fn flipped_places() -> impl Iterator<Item = (Class, Part, Way)> {
    let all = CLASSES.into_iter().flat_map(|class| PARTS.map(|part| (class, part)));
    let all = all.flat_map(|(class, part)| Way::BOTH.map(|way| (class, part, way)));
    all.filter(|(class, part, way)| match class {
        Class::Login | Class::Data => true,
        Class::Small => *way == Way::ToInitiator,
        Class::Bare | Class::Last => *part != Part::Body,
    })
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("tamper-control-plain-flip-is-found", || plain_flip_is_found(context));
    let mut bench = Scene::new(|| {
        let mut bench = Bench::new(context, "require")?;
        let survey = bench.survey()?;
        Ok((bench, survey))
    });
    cases.check("tamper-control-no-flip-is-not-noticed", || {
        let aim = Aim::Place { part: Part::Body, number: 0, offset: 0 };
        let result = bench.get_mut()?.0.attack(Way::ToTarget, aim, &Deed::Flip(0), true);
        let error = result.err().context("nothing was altered, and it was noticed")?;
        demand!(format!("{error:#}").contains("no end detected"), "{error:#}")
    });
    let mut classes = BTreeMap::<String, u64>::new();
    for (class, part, way) in flipped_places() {
        let kind = format!("tamper-flip-{class:?}-{part:?}-{way:?}").to_lowercase();
        // The data of both directions always; a sample of the rest.
        let is_data = class == Class::Data && matches!(part, Part::Head | Part::Body);
        let sample = if is_data { (kind.as_str(), 1) } else { ("flips", SAMPLE) };
        for round in 0..ROUNDS {
            let name = format!("{kind}-{round}");
            cases.check_some(sample, &name, || {
                let (bench, survey) = bench.get_mut()?;
                let mut rng = context.rng(&format!("sealed/{name}"));
                let aim = place(&mut rng, &survey.seen[way as usize], class, part);
                let deed = Deed::Flip(1 << rng.random_range(0..8));
                *classes.entry(kind.clone()).or_default() += 1;
                bench.attack(way, aim.context("no record has this place")?, &deed, class != Class::Last)
            });
        }
    }
    for deed in DEEDS {
        for way in Way::BOTH {
            let kind = format!("tamper-{deed}-{way:?}").to_lowercase();
            for round in 0..ROUNDS {
                let name = format!("{kind}-{round}");
                cases.check_some((&kind, 1), &name, || {
                    let (bench, survey) = bench.get_mut()?;
                    let mut rng = context.rng(&format!("sealed/{name}"));
                    let (aim, deed) = draw_deed(&mut rng, survey, deed, way)?;
                    bench.attack(way, aim, &deed, true)
                });
            }
        }
    }
    cases.check("tamper-session-sent-again", || {
        let (bench, survey) = bench.get_mut()?;
        session_again(bench, &survey.recorded)
    });
    cases.fact("flips", classes.values().sum::<u64>());
    cases.fact("flips_by_class", serde_json::to_value(classes).unwrap_or_default());
    if let Some((bench, _)) = bench.into_made() {
        let codes: BTreeMap<String, u64> =
            bench.codes.iter().map(|(code, count)| (code.to_string(), *count)).collect();
        cases.fact("exit_codes_of_disturbed_copies", serde_json::to_value(codes).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn false_blocks_and_false_success_are_found() {
        let run = |code, fill: u8| Run {
            output: Output { code: Some(code), ..Output::default() },
            conversations: Vec::new(),
            before: vec![0; 2 * BLOCK_BYTES],
            source: vec![1; 2 * BLOCK_BYTES],
            after: [vec![fill; BLOCK_BYTES], vec![1; BLOCK_BYTES]].concat(),
        };
        assert!(run(0, 1).honest().is_ok() && run(5, 1).honest().is_ok() && run(5, 0).honest().is_ok());
        assert!(run(0, 0).honest().is_err() && run(5, 2).honest().is_err() && run(3, 1).honest().is_err());
        assert!(run(0, 1).noticed().is_err() && run(5, 1).noticed().is_ok());
    }
}
