//! Copies through a relay that flips random bits, login included: a copy that exits 0 has copied the right bytes.
//!
//! Half of the copies are sealed, half are plain with both digests; half write to the target, half read from it. The
//! harness compares the destination itself: the file that the target serves, or the file that was written. Any other
//! exit code is allowed if it is documented and comes with a message in bounded time. Each copy has its own target, so
//! that commands of an earlier session cannot affect it. The directed cases negotiate the digests away by one bit in
//! the login.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rand::RngExt;
use rand::rngs::StdRng;
use tempfile::TempDir;

use super::super::Ahead;
use crate::seal::Keys;
use crate::tap::{Middle, Passive, Tap, Way};
use crate::{Cases, Context, Disk, Output, Running, Scene, Target, random, scratch};

const BYTES: usize = 8 << 20;
/// Copies of a full run, a multiple of the number of kinds; and copies of each kind in a sample.
const COPIES: usize = 1000;
const SAMPLE_OF_A_KIND: usize = 4;
/// `timeout=` of the URL: time limit of a silent connection, and of requests that wait for the next connection.
const TIMEOUT_S: u64 = 2;
/// Time limit of a copy: several connections may each use up their own limit.
const LIMIT: Duration = Duration::from_secs(60);
/// Connections of one copy with flipped bits; later ones pass unchanged, so that some copies succeed.
const FLIPPED_CONNECTIONS_MAX: usize = 4;
/// Length of the range at the beginning of either direction that contains the login.
const PLAIN_LOGIN_BYTES: usize = 1 << 10;
const SEALED_LOGIN_BYTES: usize = 4 << 10;
/// Approximate number of bytes in the direction without the data.
const LIGHT_BYTES: usize = 16 << 10;
const SUITES: [&str; 4] = ["AES-256-GCM", "AEGIS-256X4", "AEGIS-128X2", "ChaCha20-Poly1305"];
/// Exit codes that a disturbed copy may have: failed, authentication refused, unreachable.
const ALLOWED: [i32; 3] = [1, 4, 5];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    is_sealed: bool,
    is_upload: bool,
}

impl Kind {
    const ALL: [Self; 4] = [
        Self { is_sealed: false, is_upload: true },
        Self { is_sealed: true, is_upload: true },
        Self { is_sealed: false, is_upload: false },
        Self { is_sealed: true, is_upload: false },
    ];

    fn name(self) -> &'static str {
        match (self.is_sealed, self.is_upload) {
            (false, true) => "plain-write",
            (true, true) => "sealed-write",
            (false, false) => "plain-read",
            (true, false) => "sealed-read",
        }
    }

    fn data_way(self) -> Way {
        if self.is_upload { Way::ToTarget } else { Way::ToInitiator }
    }
}

/// Flips single bits at given offsets of a connection's two directions.
#[derive(Debug)]
struct Flips {
    places: Vec<(Way, usize, u8)>,
    passed: [usize; 2],
    done: Arc<AtomicUsize>,
}

impl Flips {
    /// Draws one or two bits: one in the login, one anywhere.
    fn draw(rng: &mut StdRng, kind: Kind, done: &Arc<AtomicUsize>) -> Self {
        let login = if kind.is_sealed { SEALED_LOGIN_BYTES } else { PLAIN_LOGIN_BYTES };
        let mut places = Vec::new();
        let has_login = rng.random_bool(0.5);
        if has_login {
            let way = Way::BOTH[rng.random_range(0..2)];
            places.push((way, rng.random_range(0..login), 1 << rng.random_range(0..8)));
        }
        if !has_login || rng.random_bool(0.5) {
            let other = Way::BOTH[1 - kind.data_way() as usize];
            let (way, bytes) =
                if rng.random_bool(0.75) { (kind.data_way(), BYTES) } else { (other, LIGHT_BYTES) };
            places.push((way, rng.random_range(0..bytes), 1 << rng.random_range(0..8)));
        }
        Self { places, passed: [0; 2], done: Arc::clone(done) }
    }
}

impl Middle for Flips {
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(bytes);
        let begin = self.passed[way as usize];
        for (_, place, bit) in self.places.iter().filter(|(place_way, ..)| *place_way == way) {
            if let Some(byte) = place.checked_sub(begin).and_then(|at| out.get_mut(at)) {
                *byte ^= bit;
                self.done.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.passed[way as usize] += bytes.len();
        true
    }
}

/// Flips one bit in the name of a login key, which thereby becomes unknown, and one bit of the data after it.
#[derive(Debug)]
struct Renamed {
    key: &'static str,
    way: Way,
    /// Place of the flipped bit of the data, used after the key was altered.
    data: (Way, usize),
    passed: [usize; 2],
    done: Arc<AtomicUsize>,
}

impl Middle for Renamed {
    fn pass(&mut self, way: Way, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(bytes);
        let is_renamed = self.done.load(Ordering::Relaxed) > 0;
        if way == self.way && !is_renamed {
            let wanted = [self.key.as_bytes(), b"="].concat();
            if let Some(at) = out.windows(wanted.len()).position(|window| window == wanted) {
                out[at + self.key.len() - 1] ^= 1;
                self.done.store(1, Ordering::Relaxed);
            }
        }
        let (data_way, place) = self.data;
        if way == data_way
            && is_renamed
            && let Some(byte) = place.checked_sub(self.passed[way as usize]).and_then(|at| out.get_mut(at))
        {
            *byte ^= 1;
            self.done.store(2, Ordering::Relaxed);
        }
        self.passed[way as usize] += bytes.len();
        true
    }
}

/// A target's keys, those of its peer, and the list of peers.
struct Estate {
    dir: TempDir,
    target: Keys,
    friend: Keys,
}

impl Estate {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let [target, friend] = ["target", "friend"].map(|name| Keys::new(context, dir.path(), name));
        let (target, friend) = (target?, friend?);
        std::fs::write(dir.path().join("peers.toml"), friend.peer("friend", ""))?;
        Ok(Self { dir, target, friend })
    }
}

struct Copying {
    kind: Kind,
    running: Running,
    target: Target,
    tap: Tap,
    done: Arc<AtomicUsize>,
    data: Vec<u8>,
    destination: PathBuf,
    _dir: TempDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Exit 0 over the first connection.
    Untouched,
    /// Exit 0 over a later connection.
    Absorbed,
    Refused(i32),
}

impl Outcome {
    fn name(self) -> String {
        match self {
            Self::Untouched => "exit 0, one connection".into(),
            Self::Absorbed => "exit 0, connected again".into(),
            Self::Refused(code) => format!("exit {code}"),
        }
    }
}

/// Starts a copy of seeded data; `middle` returns the attacker for the connection with a given number.
fn start(
    context: &Context,
    estate: &Estate,
    kind: Kind,
    seed: u64,
    middle: impl Fn(usize, &Arc<AtomicUsize>) -> Box<dyn Middle> + Send + 'static,
) -> Result<Copying> {
    let dir = scratch()?;
    let (served, local) = (dir.path().join("served.img"), dir.path().join("local.img"));
    let data = random::bytes(&mut random::seeded(seed), BYTES);
    let (source, destination) = if kind.is_upload { (&local, &served) } else { (&served, &local) };
    std::fs::write(source, &data)?;
    std::fs::write(destination, vec![0; BYTES])?;
    let Estate { dir: keys, target: own, friend } = estate;
    let (identity, peers) = (own.path(), keys.path().join("peers.toml").display().to_string());
    let arguments: &[&str] = match kind.is_sealed {
        true => &["--seal", "require", "--identity", &identity, "--peers", &peers],
        false => &["--seal", "off"],
    };
    let target = Target::serve(context, &[Disk::file(&served)], None, arguments)?;
    let done = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&done);
    let tap = Tap::start(target.url(0).port()?, Box::new(move |index| middle(index, &counted)))?;
    let url = target.url(0).at(&tap.portal());
    let url = match kind.is_sealed {
        true => {
            let (suite, identity, key) = (SUITES[(seed % 4) as usize], friend.path(), &own.public);
            format!(
                "{url},timeout={TIMEOUT_S}s,seal=require,suite={suite},identity={identity},peer-key={key}"
            )
        }
        false => format!("{url}?header_digest=crc32c&data_digest=crc32c,timeout={TIMEOUT_S}s,seal=off"),
    };
    let local = local.display().to_string();
    let (from, to) = if kind.is_upload { (&local, &url) } else { (&url, &local) };
    let running = Running::start(context.command().args(["copy", "--force", from, to]))?;
    let destination = destination.clone();
    Ok(Copying { kind, running, target, tap, done, data, destination, _dir: dir })
}

fn difference(found: &[u8], wanted: &[u8]) -> Option<usize> {
    if found.len() != wanted.len() {
        return Some(found.len().min(wanted.len()));
    }
    (0..found.len()).find(|&at| found[at] != wanted[at])
}

impl Copying {
    fn finish(mut self) -> Result<(Outcome, Output)> {
        let output = self.running.finish(LIMIT)?;
        self.target.running.alive()?;
        let connections = self.tap.conversations().len();
        match judge(self.kind, &output, connections, &self.destination, &self.data) {
            Ok(outcome) => Ok((outcome, output)),
            Err(error) => bail!("{error:#}\n--- log of the target\n{}", self.target.log()),
        }
    }
}

/// Judges a copy by its exit code and, if that is 0, by the content of the destination.
fn judge(kind: Kind, output: &Output, connections: usize, found: &Path, data: &[u8]) -> Result<Outcome> {
    let name = kind.name();
    match output.code {
        Some(0) => {
            let found = std::fs::read(found)?;
            if let Some(at) = difference(&found, data) {
                bail!("{name}: exit 0 with wrong data, first at byte {at}, over {connections} connections");
            }
            Ok(if connections > 1 { Outcome::Absorbed } else { Outcome::Untouched })
        }
        Some(code) if ALLOWED.contains(&code) => {
            let said = output.stderr.lines().any(|line| line.starts_with("error: "));
            ensure!(said, "{name}: exit {code} without a message: {output}");
            Ok(Outcome::Refused(code))
        }
        _ => bail!("{name}: {output}"),
    }
}

fn start_flipped(context: &Context, estate: &Estate, kind: Kind, name: &str) -> Result<Copying> {
    let seed = context.seed_for(&format!("attack/{name}"));
    start(context, estate, kind, seed, move |index, done| {
        let mut rng = random::seeded(seed ^ (index as u64) << 32 | 1);
        match index {
            0 => Box::new(Flips::draw(&mut rng, kind, done)),
            1..FLIPPED_CONNECTIONS_MAX if rng.random_bool(0.5) => Box::new(Flips::draw(&mut rng, kind, done)),
            _ => Box::new(Passive),
        }
    })
}

fn random(context: &Context, estate: &Scene<'_, Estate>, cases: &mut Cases) {
    let kind = |number: usize| Kind::ALL[number % Kind::ALL.len()];
    let name = |number: usize| format!("flips-{}-{number}", kind(number).name());
    let mut outcomes = BTreeMap::<String, usize>::new();
    let (mut copies, mut flips) = (0, 0);
    let mut ahead = Ahead::new();
    for number in 0..COPIES {
        let kind_of_this = kind(number);
        let sample = (kind_of_this.name(), SAMPLE_OF_A_KIND);
        cases.check_some(sample, &name(number), || {
            copies += 1;
            let copying = ahead.take(context, number, COPIES, |number| {
                start_flipped(context, estate.get()?, kind(number), &name(number))
            })?;
            let done = Arc::clone(&copying.done);
            let result = copying.finish();
            flips += done.load(Ordering::Relaxed);
            let half = if kind_of_this.is_sealed { "sealed" } else { "plain" };
            let end = result.as_ref().map_or_else(|_| "failed".into(), |(outcome, _)| outcome.name());
            *outcomes.entry(format!("{half}, {end}")).or_default() += 1;
            result.map(drop)
        });
    }
    cases.fact("flips_copies", copies);
    cases.fact("flips_bits", flips);
    cases.fact("flips_outcomes", serde_json::to_value(outcomes).unwrap_or_default());
}

fn undisturbed(context: &Context, estate: &Estate, kind: Kind) -> Result<()> {
    let copying = start(context, estate, kind, 1, |_, _| Box::new(Passive))?;
    let (outcome, output) = copying.finish()?;
    demand!(outcome == Outcome::Untouched, "{}: {output}", outcome.name())
}

/// A requested digest is negotiated away by one bit: the copy is refused, and the message names the key.
fn renamed(context: &Context, estate: &Estate, kind: Kind, key: &'static str, way: Way) -> Result<()> {
    let data = (kind.data_way(), BYTES / 2);
    let copying = start(context, estate, kind, 2, move |_, done| {
        Box::new(Renamed { key, way, data, passed: [0; 2], done: Arc::clone(done) })
    })?;
    let done = Arc::clone(&copying.done);
    let (outcome, output) = copying.finish()?;
    ensure!(done.load(Ordering::Relaxed) > 0, "the login has no key {key}");
    let (is_refused, name) = (matches!(outcome, Outcome::Refused(_)), outcome.name());
    ensure!(is_refused, "{key} was negotiated away, and the copy goes on without: {name}");
    demand!(output.stderr.contains(key), "the message does not name {key}:\n{}", output.stderr)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let estate = Scene::new(|| Estate::new(context));
    for kind in Kind::ALL {
        let name = format!("flips-control-{}", kind.name());
        cases.check(&name, || undisturbed(context, estate.get()?, kind));
    }
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.is_sealed) {
        for key in ["HeaderDigest", "DataDigest"] {
            for (way, side) in [(Way::ToTarget, "offer"), (Way::ToInitiator, "answer")] {
                let name = format!("flips-{}-{}-{side}", kind.name(), key.to_lowercase());
                cases.check(&name, || renamed(context, estate.get()?, kind, key, way));
            }
        }
    }
    random(context, &estate, cases);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(code: Option<i32>, stderr: &str) -> Output {
        Output { code, timed_out: code.is_none(), stderr: stderr.into(), ..Output::default() }
    }

    #[test]
    fn wrong_data_counts_only_with_exit_0_and_silence_never_passes() {
        let dir = scratch().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, [1, 2, 3]).unwrap();
        let judged = |code, stderr: &str, connections, data: &[u8]| {
            judge(Kind::ALL[0], &output(code, stderr), connections, &path, data).ok()
        };
        assert_eq!(judged(Some(0), "", 1, &[1, 2, 3]), Some(Outcome::Untouched));
        assert_eq!(judged(Some(0), "", 2, &[1, 2, 3]), Some(Outcome::Absorbed));
        assert_eq!(judged(Some(0), "", 1, &[1, 2, 4]), None);
        assert_eq!(judged(Some(0), "", 1, &[1, 2]), None);
        assert_eq!(judged(Some(5), "error: gone", 1, &[9]), Some(Outcome::Refused(5)));
        assert_eq!(judged(Some(5), "", 1, &[9]), None);
        assert_eq!(judged(Some(3), "error: differs", 1, &[9]), None);
        assert_eq!(judged(None, "error: late", 1, &[9]), None);
    }

    #[test]
    fn a_flip_meets_its_byte_wherever_the_stream_is_cut() {
        let done = Arc::<AtomicUsize>::default();
        let places = vec![(Way::ToTarget, 5, 4), (Way::ToInitiator, 0, 1)];
        let mut flips = Flips { places, passed: [0; 2], done: Arc::clone(&done) };
        let (mut to, mut back) = (Vec::new(), Vec::new());
        for part in [&[0; 3][..], &[], &[0; 3], &[0; 3]] {
            let mut out = Vec::new();
            assert!(flips.pass(Way::ToTarget, part, &mut out));
            to.extend(out);
        }
        flips.pass(Way::ToInitiator, &[0; 2], &mut back);
        assert_eq!((to, back), (vec![0, 0, 0, 0, 0, 4, 0, 0, 0], vec![1, 0]));
        assert_eq!(done.load(Ordering::Relaxed), 2);
    }
}
