//! Endpoint pairs with random copy options, sampled by seed, byte-compared. Destinations are filled with other bytes
//! first: zeroes must have been written, and everything outside the range must be unchanged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::files::{Loop, can_loop, damage, empty_file, patchy_file, random_file, same_range, size_of};
use crate::{Cases, Context, Disk, Served, Target, Tgt, Tier, program, run, scratch};

const COPY_LIMIT: Duration = Duration::from_secs(90);
const PER_PAIR: usize = 8;
/// Cases of a sample, equally many of each kind of source.
const SAMPLE: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    /// A file whose size is no multiple of any block size.
    FileOdd,
    Loop512,
    Loop4096,
    /// `mem:` served by `hikyaku serve`.
    MemServed,
    Ours512,
    Ours4096,
    /// A file served by `hikyaku serve` with WCE=0.
    OursWritethrough,
    Tgt512,
    Tgt4096,
}

const KINDS: [(Kind, &str); 10] = [
    (Kind::File, "file"),
    (Kind::FileOdd, "file-odd"),
    (Kind::Loop512, "loop-512"),
    (Kind::Loop4096, "loop-4096"),
    (Kind::MemServed, "iscsi-mem"),
    (Kind::Ours512, "iscsi-512"),
    (Kind::Ours4096, "iscsi-4096"),
    (Kind::OursWritethrough, "iscsi-writethrough"),
    (Kind::Tgt512, "tgt-512"),
    (Kind::Tgt4096, "tgt-4096"),
];

impl Kind {
    fn name(self) -> &'static str {
        KINDS[self as usize].1
    }

    /// Offsets and lengths at this end must be multiples of this, bytes.
    fn granule(self) -> u64 {
        match self {
            Self::File | Self::FileOdd => 1,
            Self::Loop4096 | Self::Ours4096 | Self::Tgt4096 => 4096,
            _ => 512,
        }
    }

    fn needs_root(self) -> bool {
        matches!(self, Self::Loop512 | Self::Loop4096)
    }
}

struct Side {
    kind: Kind,
    backing: PathBuf,
    endpoint: String,
    /// Kept for its destructor.
    _loop_device: Option<Loop>,
    served: Option<Served>,
}

impl Side {
    /// `backing` already contains the bytes.
    fn open(context: &Context, kind: Kind, backing: PathBuf) -> Result<Self> {
        let path = backing.display().to_string();
        let file = Disk::file(&backing);
        let ours = |disk: Disk| anyhow::Ok(Some(Served::Ours(Target::serve(context, &[disk], None, &[])?)));
        let tgt = |disk: Disk| anyhow::Ok(Some(Served::Tgt(Tgt::serve(&[disk], None)?)));
        let served = match kind {
            Kind::File | Kind::FileOdd | Kind::Loop512 | Kind::Loop4096 => None,
            Kind::MemServed => ours(Disk::endpoint(format!("mem:{}", size_of(&backing)?)))?,
            Kind::Ours512 => ours(file)?,
            Kind::Ours4096 => ours(Disk { block_size: Some(4096), ..file })?,
            Kind::OursWritethrough => ours(file.option("cache=writethrough"))?,
            Kind::Tgt512 => tgt(file)?,
            Kind::Tgt4096 => tgt(Disk { block_size: Some(4096), ..file })?,
        };
        let loop_device =
            kind.needs_root().then(|| Loop::attach(&backing, kind.granule() as u32, false)).transpose()?;
        let endpoint = match (&served, &loop_device) {
            (Some(served), _) => served.url(0).to_string(),
            (_, Some(device)) => device.text(),
            _ => path.clone(),
        };
        if kind == Kind::MemServed {
            qemu_convert(&path, &endpoint, true)?;
        }
        Ok(Self { kind, backing, endpoint, _loop_device: loop_device, served })
    }

    fn close(mut self) -> Result<PathBuf> {
        if self.kind == Kind::MemServed {
            qemu_convert(&self.endpoint, &self.backing.display().to_string(), false)?;
        }
        if let Some(served) = &mut self.served {
            served.alive()?;
        }
        Ok(self.backing)
    }
}

/// Copies the content of a memory LUN with an independent initiator.
fn qemu_convert(from: &str, to: &str, there: bool) -> Result<()> {
    let mut command = program("qemu-img")?;
    command.args(["convert", "-f", "raw", "-O", "raw", "-S", "0"]);
    if there {
        command.arg("-n");
    }
    run(command.args([from, to]), COPY_LIMIT)?.success().map(|_| ())
}

/// One copy, entirely drawn from a seed.
#[derive(Debug)]
struct Plan {
    source: Kind,
    destination: Kind,
    source_bytes: u64,
    destination_bytes: u64,
    source_offset: u64,
    destination_offset: u64,
    length: u64,
    /// No length is given: the program copies the whole source.
    whole: bool,
    options: Vec<String>,
    patchy: bool,
    seed: u64,
}

impl Plan {
    fn draw(rng: &mut StdRng, source: Kind, destination: Kind, large: bool) -> Self {
        let granule = source.granule().max(destination.granule());
        let max = if large { 48 << 20 } else { 12 << 20 };
        let round = |bytes: u64| bytes / granule * granule;
        // Ends with blocks have sizes in multiples of 4 KiB, so that loop devices show the whole file.
        let size = |rng: &mut StdRng, kind: Kind, least: u64| {
            let bytes = (least + rng.random_range(0..4 << 20)).next_multiple_of(4096);
            if kind == Kind::FileOdd { bytes + rng.random_range(1..512) } else { bytes }
        };
        let whole = rng.random_range(0..3) == 0;
        let wanted = match rng.random_range(0..6) {
            0 => granule,
            1 => granule.max(rng.random_range(1..=70_000)),
            _ => rng.random_range(1..=max),
        };
        let length = round(wanted).max(granule);
        let offset = |rng: &mut StdRng| {
            if rng.random_range(0..3) == 0 { 0 } else { round(rng.random_range(0..6 << 20)) }
        };
        let (source_offset, destination_offset) =
            if whole { (0, if rng.random() { 0 } else { offset(rng) }) } else { (offset(rng), offset(rng)) };
        let source_bytes = size(rng, source, source_offset + length);
        let length = if whole { source_bytes } else { length };
        let destination_bytes = size(rng, destination, destination_offset + length);
        Self {
            source,
            destination,
            source_bytes,
            destination_bytes,
            source_offset,
            destination_offset,
            length,
            whole,
            options: draw_options(rng),
            patchy: rng.random(),
            seed: rng.random(),
        }
    }

    /// Whether the copy is possible: a destination with blocks cannot hold a tail shorter than one.
    fn possible(&self) -> bool {
        self.length.is_multiple_of(self.destination.granule())
            && self.length.is_multiple_of(self.source.granule())
    }

    fn arguments(&self, from: &str, to: &str) -> Vec<String> {
        let mut arguments = vec!["copy".to_owned(), from.to_owned(), to.to_owned(), "--force".to_owned()];
        arguments.extend(["--allow", "sector-size"].map(str::to_owned));
        let mut add = |name: &str, value: u64| arguments.extend([name.to_owned(), value.to_string()]);
        if self.source_offset > 0 {
            add("--src-offset", self.source_offset);
        }
        if self.destination_offset > 0 {
            add("--dst-offset", self.destination_offset);
        }
        if !self.whole {
            add("--size", self.length);
        }
        arguments.extend(self.options.iter().cloned());
        arguments
    }
}

/// Options of `copy` that must never change a byte, and their values.
const CHOICES: &[(&str, &[&str])] = &[
    ("--chunk", &["64K", "256K", "1M", "4M"]),
    ("--depth", &["1", "3", "32", "auto"]),
    ("--connections", &["1", "2", "8", "auto"]),
    ("--sparse", &["auto", "off"]),
    ("--since", &["hash"]),
];

fn draw_options(rng: &mut StdRng) -> Vec<String> {
    let mut options = Vec::new();
    for (name, values) in CHOICES {
        if rng.random_range(0..2) == 0 {
            options.extend([*name, values.choose(rng).expect("not empty")].map(str::to_owned));
        }
    }
    if rng.random() {
        options.push("--verify".to_owned());
    }
    options
}

fn execute(context: &Context, plan: &Plan, dir: &Path) -> Result<()> {
    let path = |name: &str| dir.join(name);
    let make = if plan.patchy { patchy_file::<PathBuf> } else { random_file::<PathBuf> };
    make(path("source"), plan.source_bytes, plan.seed)?;
    random_file(path("destination"), plan.destination_bytes, plan.seed ^ 1)?;
    std::fs::copy(path("source"), path("source-before"))?;
    std::fs::copy(path("destination"), path("before"))?;
    let source = Side::open(context, plan.source, path("source"))?;
    let mut destination = Side::open(context, plan.destination, path("destination"))?;
    let arguments = plan.arguments(&source.endpoint, &destination.endpoint);
    let result = context.ours(&arguments, COPY_LIMIT).and_then(|output| output.success().map(|_| ()));
    match &mut destination.served {
        Some(served) => served.blame(result)?,
        None => result?,
    }
    let (source, destination) = (source.close()?, destination.close()?);
    let (original, before) = (path("source-before"), path("before"));
    let (from, to) = (plan.source_offset, plan.destination_offset);
    same_range(&original, from, &destination, to, plan.length).context("the copy")?;
    same_range(&original, 0, &source, 0, plan.source_bytes).context("the source was changed")?;
    let end = to + plan.length;
    same_range(&before, 0, &destination, 0, to).context("before the range")?;
    same_range(&before, end, &destination, end, plan.destination_bytes - end).context("after the range")
}

/// The plan of a case: the first possible one of those drawn from its name.
fn plan(context: &Context, source: Kind, destination: Kind, round: usize) -> Plan {
    let purpose = format!("copy-matrix/{}/{}/{round}", source.name(), destination.name());
    let mut rng = context.rng(&purpose);
    let mut draw = || Plan::draw(&mut rng, source, destination, context.tier == Tier::Full);
    std::iter::repeat_with(&mut draw).find(Plan::possible).expect("without end")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let loops = can_loop();
    if !loops {
        cases.note("block device cases not run: they need root and /dev/loop-control");
    }
    let kinds: Vec<Kind> =
        KINDS.map(|(kind, _)| kind).into_iter().filter(|kind| loops || !kind.needs_root()).collect();
    let pairs = kinds.iter().flat_map(|source| kinds.iter().map(|destination| (*source, *destination)));
    let mut plans = 0;
    for ((source, destination), round) in pairs.flat_map(|pair| (0..PER_PAIR).map(move |round| (pair, round)))
    {
        plans += 1;
        let name = format!("{}-to-{}-{round}", source.name(), destination.name());
        cases.check_some((source.name(), SAMPLE / kinds.len()), &name, || {
            let dir = scratch()?;
            let plan = plan(context, source, destination, round);
            execute(context, &plan, dir.path()).with_context(|| format!("seed {}: {plan:?}", context.seed))
        });
    }
    cases.fact("plans", plans);
    cases.check("a-damaged-copy-is-noticed", || {
        let dir = scratch()?;
        let a = random_file(dir.path().join("a"), 1 << 20, 5)?;
        let b = empty_file(dir.path().join("b"), 1 << 20)?;
        context.ours(&["copy", &a.display().to_string(), &b.display().to_string()], COPY_LIMIT)?.success()?;
        damage(&b, 777_777)?;
        demand!(same_range(&a, 0, &b, 0, 1 << 20).is_err(), "this comparison cannot fail")
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::random;

    use super::*;

    #[test]
    fn plans_stay_in_bounds_and_alignment() {
        let mut rng = random::seeded(11);
        for _ in 0..500 {
            for (source, _) in KINDS {
                let (destination, _) = *KINDS.choose(&mut rng).unwrap();
                let plan = Plan::draw(&mut rng, source, destination, false);
                assert!(plan.source_offset + plan.length <= plan.source_bytes, "{plan:?}");
                assert!(plan.destination_offset + plan.length <= plan.destination_bytes, "{plan:?}");
                for (offset, kind) in [(plan.source_offset, source), (plan.destination_offset, destination)] {
                    assert_eq!(offset % kind.granule(), 0, "{plan:?}");
                }
            }
        }
    }
}
