//! `copy`: the main job.

mod estimate;
mod hooks;
mod journal;
mod manifest;
mod offload;
pub(crate) mod outcome;
pub(crate) mod refusals;
mod remote;
mod report;
mod since;
mod snapshot;
mod stream;
mod thin;

use std::path::PathBuf;
use std::sync::Arc;

use block::{Endpoint, Fingerprint, Medium};
use clap::ValueEnum;
use io::Io;
use mover::{Checked, Control, CopyError, Phase, Plan};

use self::snapshot::{Snapshot, Snapshotting};
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::progress::{Progress, Sample};
use crate::sys::CpuTime;
use crate::{output, protection, units};

/// Copy all of one endpoint to another, or a part of it
///
/// Refuses a destination that is missing, smaller, or the same as the source; one that holds a known file
/// system, partition table or volume, unless --force; one that is mounted, held or locked, unless --allow
/// in-use; one with another logical block size, unless --allow sector-size. Ends with one flush: what is
/// reported as copied is durable.
///
/// A copy of more than 1 GiB keeps a journal. If it is interrupted it prints the command that resumes it; where the source
/// cannot be read it goes on, and lists those areas at the end (exit code 7).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku copy disk.img /dev/sdx --verify
  hikyaku copy disk.img iscsi://host/iqn.2026-11.example:disks/0 --json
  hikyaku copy disk.img /dev/sdx --verify --manifest disk.manifest
  hikyaku copy disk.img /dev/sdx --since hash --force
  hikyaku copy iscsi://host/iqn.2026-11.example:disks/0 new.img,create,size=64G
  hikyaku copy disk.img /dev/sdx --dry-run
  zstdcat disk.img.zst | hikyaku copy - /dev/sdx --verify
  hikyaku copy /dev/vg/data backup.img --pre 'fsfreeze -f /data' --post 'fsfreeze -u /data'
  hikyaku copy /srv/vm.img backup.img --snapshot auto")]
pub(crate) struct Args {
    /// Where from; `-` is standard input, until it ends or for --size bytes
    #[arg(value_name = "SRC")]
    source: String,

    /// Where to; a file that is not there is made only by `,create,size=SIZE`; `-` is standard output
    #[arg(value_name = "DST")]
    destination: String,

    #[command(flatten)]
    range: Range,

    /// Read the destination back after the flush and compare it with what was read from the source
    #[arg(long)]
    verify: bool,

    /// With --verify: write down what was verified, a hash for each extent, for `compare DISK --manifest FILE` at a later time
    ///
    /// That reads the one disk and names the extents that are not what they were. An extent is 1 MiB, and longer beyond 1 TiB;
    /// stretches of zeroes are one line. FILE is written at the end, as a whole; only an earlier manifest is overwritten.
    #[arg(long, value_name = "FILE", requires = "verify", conflicts_with = "dry_run")]
    manifest: Option<PathBuf>,

    /// Go on with an earlier copy: the name or the file of its journal
    #[arg(long, value_name = "ID|FILE")]
    resume: Option<String>,

    /// Copy only what has changed: compared with the destination (hash), marked by a dirty bitmap of an NBD source, or
    /// not shared with an earlier clone or snapshot of the file or thin volume
    ///
    /// hash reads both ends and writes what differs: it needs to know nothing and is always right. The other two read and
    /// write only what has changed, on your word that the destination holds what the source held when the bitmap or the
    /// snapshot was made, and nothing else since; --verify looks. What cannot be told counts as changed. SNAP is a file on
    /// the same xfs or btrfs, or a thin volume (LVM) of the source's pool.
    #[arg(long, value_name = "SNAP|bitmap:NAME|hash", value_parser = since::parse)]
    since: Option<since::Since>,

    /// Make holes and blocks of zeroes zero instead of moving their zeroes
    #[arg(long, default_value = "auto")]
    sparse: Sparse,

    /// Let the target copy where both ends are LUNs of one target: no data passes through this host
    #[arg(long, default_value = "auto")]
    remote_copy: remote::RemoteCopy,

    /// Let storage copy by itself, as far as it can: a file system between two of its files, by sharing blocks (reflink) or on its
    /// server; a controller between its NVMe namespaces or their partitions (NVMe Copy)
    ///
    /// Where blocks are shared the copy takes no time and no space, and one bad block is bad in both files: it is no backup against a
    /// failing disk. With --rate, --since or --sparse off nothing is offloaded.
    #[arg(long, default_value = "auto")]
    offload: offload::Offloading,

    /// Read no faster than this
    #[arg(long, value_name = "SIZE/s", value_parser = units::parse_rate)]
    rate: Option<u64>,

    #[command(flatten)]
    shape: Shape,

    /// Copy the source as it was at one moment: make a snapshot, copy that, remove it whatever happens
    ///
    /// A file on a file system that shares blocks is cloned, an LVM volume and what ZFS keeps get a snapshot of theirs. --pre runs
    /// before it is made and --post right after, not after the copy.
    #[arg(long, default_value = "none")]
    snapshot: Snapshotting,

    #[command(flatten)]
    hooks: hooks::Hooks,

    /// Print what would be done and what would be refused; write nothing
    #[arg(long)]
    dry_run: bool,

    /// Print JSON: progress on stderr, the outcome as one object on stdout
    #[arg(long)]
    pub(crate) json: bool,

    /// Write what happened into one file of HTML: figures, the rate over time, what limited it
    #[arg(long, value_name = "F.html", conflicts_with = "dry_run")]
    report: Option<PathBuf>,

    /// Overwrite a destination that holds a known file system, partition table or volume; resume although the journal
    /// speaks of other storage
    #[arg(long)]
    force: bool,

    /// Copy in spite of these
    #[arg(long, value_delimiter = ',', value_name = "WHAT")]
    allow: Vec<Allow>,
}

/// Which bytes.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Range {
    /// First byte of the source
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::parse_size)]
    pub(crate) src_offset: u64,

    /// First byte of the destination
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::parse_size)]
    pub(crate) dst_offset: u64,

    /// Bytes [default: all of the source from its offset]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub(crate) size: Option<u64>,
}

/// How the work is cut.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Shape {
    /// Chunks in flight: `auto` or a number
    #[arg(long, default_value = "auto", value_name = "auto|N", value_parser = parse_depth)]
    depth: Depth,

    /// Bytes of one chunk [default: as the devices like it]
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk)]
    chunk: Option<u32>,
}

/// `--depth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Depth(Option<u32>);

fn parse_depth(text: &str) -> Result<Depth, String> {
    match text {
        "auto" => Ok(Depth(None)),
        number => match number.parse() {
            Ok(depth) if (1..=mover::DEPTH_MAX).contains(&depth) => Ok(Depth(Some(depth))),
            _ => Err(format!("say `auto` or a number from 1 to {}", mover::DEPTH_MAX)),
        },
    }
}

fn parse_chunk(text: &str) -> Result<u32, String> {
    let bytes = units::parse_size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| (1..=mover::CHUNK_BYTES_MAX).contains(bytes))
        .ok_or_else(|| format!("a chunk has at most {}", units::bytes(mover::CHUNK_BYTES_MAX.into())))
}

/// `--sparse`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sparse {
    /// Where the destination can
    Auto,
    /// Move every zero
    Off,
}

/// `--allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Allow {
    /// A destination that is mounted, held or locked, or a source that another program writes to
    InUse,
    /// Different logical block sizes
    SectorSize,
}

impl Range {
    /// The plan for this range, cut as `shape` says.
    pub(crate) fn plan(&self, shape: &Shape) -> Plan {
        Plan {
            src_offset: self.src_offset,
            dst_offset: self.dst_offset,
            size: self.size,
            chunk: shape.chunk,
            depth: shape.depth.0,
            ..Plan::default()
        }
    }
}

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            verify: self.verify,
            sums: self.manifest.is_some(),
            rate: self.rate,
            sparse: self.sparse == Sparse::Auto,
            allow_block_size: self.allow.contains(&Allow::SectorSize),
            differing: self.since == Some(since::Since::Hash),
            ..self.range.plan(&self.shape)
        }
    }
}

/// What requests of a plan are multiples of, as far as O_DIRECT cares.
pub(crate) fn request_alignment(offset: u64, chunk: Option<u32>) -> u32 {
    const ENOUGH: u32 = 4096;
    let bits = offset | u64::from(chunk.unwrap_or(ENOUGH)) | u64::from(ENOUGH);
    1 << bits.trailing_zeros()
}

/// Two endpoints that are open and look fit.
struct Pair {
    source: Box<dyn Endpoint>,
    destination: Box<dyn Endpoint>,
    checked: Checked,
    source_consistent: bool,
    /// The source before anything was read of it.
    source_was: Fingerprint,
    /// Their media stay open as long as they do.
    media: [Arc<dyn Medium>; 2],
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let mut record = report::Record::new();
    let Some(path) = &args.report else { return perform(context, args, &mut record) };
    let report = report::Report::begin(path)?;
    let result = perform(context, args, &mut record);
    report.end(context, args, &record, result)
}

fn perform(context: &Context, args: &Args, record: &mut report::Record) -> Result<Exit, Failure> {
    let mut source = Named::parse(context, &args.source, &[])?;
    let mut destination = Named::parse(context, &args.destination, &[])?;
    // What the destination holds now is looked at below, with --force as the way out.
    if destination.path().is_some() && destination.spec.get("format").is_none() {
        destination.set("format", "raw");
    }
    since::check(args, &destination)?;
    manifest::check(args, [&source, &destination])?;
    if args.dry_run {
        return refusals::dry_run(context, args, &mut endpoint::event_loop()?, &source, &destination);
    }
    let frozen = args.hooks.freeze(context, &source, &destination)?;
    if args.snapshot == Snapshotting::None {
        let result = copy(context, args, &source, destination, None, record);
        let exit = result.as_ref().map_or_else(|failure| failure.exit, |exit| *exit);
        return frozen.thaw(exit, result);
    }
    since::remark(context, args);
    let snapshot = snapshot::take(context, &mut source, &destination);
    let exit = snapshot.as_ref().map_or_else(|failure| failure.exit, |_| Exit::Done);
    let snapshot = frozen.thaw(exit, snapshot)?;
    let result = copy(context, args, &source, destination, Some(&snapshot), record);
    snapshot.remove(context, result)
}

/// Of `source`, which is a snapshot's place where there is one.
fn copy(
    context: &Context,
    args: &Args,
    source: &Named,
    mut destination: Named,
    snapshot: Option<&Snapshot>,
    record: &mut report::Record,
) -> Result<Exit, Failure> {
    if let Some(exit) = stream::copy(context, args, [source, &destination], record)? {
        return Ok(exit);
    }
    let mut io = endpoint::event_loop()?;
    let earlier = journal::earlier(args)?;
    if earlier.is_some() {
        // The copy that is resumed made it.
        destination.spec.options.retain(|(name, _)| name != "create");
    }
    let mut pair = refusals::prepare(context, args, &mut io, source, &destination)?;
    if let Some(snapshot) = snapshot {
        // What a later copy can be told to go on with is the source; the snapshot will be gone.
        pair.source_was = snapshot.source_was.clone();
    }
    let changes = since::changes(context, args, &mut io, source, &*pair.source, &pair.checked)?;
    let mut kept = journal::keep(context, args, &pair, [source, &destination], earlier)?;
    match remote::copy(context, args, &mut io, &mut pair, [source, &destination], &mut kept, record) {
        Ok(Some(copied)) => {
            kept.finish(true)?;
            let protection = protection::of_both(&*pair.source, &*pair.destination);
            let exit = copied.tell(context, args, pair.source_consistent, protection, record);
            end(&mut io, [pair.source, pair.destination]);
            return Ok(exit);
        }
        Ok(None) => {}
        Err(failure) => return Err(kept.failed(args, failure)?),
    }
    let before = CpuTime::now();
    let mut offloaded = match offload::offload(context, args, &pair, &mut kept.map, &destination) {
        Ok(offloaded) => offloaded,
        Err(failure) => {
            if args.resume.is_none() {
                kept.finish(true)?;
            }
            return Err(failure);
        }
    };
    let only = changes.as_ref().map(|changes| changes.only.clone());
    let plan = Plan { map: kept.map.take(), only, skip_bad: kept.journal.is_some(), ..args.plan() };
    let result = {
        let _orderly = context.stop.orderly();
        let mut progress = Progress::new(context);
        let stop = context.stop.clone();
        let mut observer = |now: &mover::Progress| observe(now, &mut progress, &stop);
        let (from, to) = (&mut *pair.source, &mut *pair.destination);
        let result = match &mut kept.journal {
            Some(journal) => mover::copy_with_journal(&mut io, from, to, &plan, &mut observer, journal),
            None => mover::copy(&mut io, from, to, &plan, &mut observer),
        };
        record.series.extend(progress.finish());
        result
    };
    let cpu = CpuTime::now().since(before);
    let mut report = match result {
        Ok(mut report) => {
            offloaded.amend(&mut report, &pair.source.fingerprint());
            report
        }
        Err(error) => {
            if let (CopyError::Verify { offset, length }, true) = (&error, args.json) {
                output::json(&outcome::mismatch(
                    pair.checked.bytes,
                    *offset,
                    *length,
                    pair.source_consistent,
                ));
            }
            let failure = outcome::failure(context, args, &error, source, &destination);
            return Err(kept.failed(args, failure)?);
        }
    };
    report.source_changed |= changes.is_some_and(|changes| changes.are_stale(&*pair.source));
    let source_consistent = pair.source_consistent && !report.source_changed;
    if report.source_changed {
        context.warn(&format!(
            "{} was written while it was copied: the copy may mix several moments of it",
            source.text
        ));
    }
    let command = kept.command(args);
    kept.finish(report.unreadable_bytes == 0)?;
    let manifest = manifest::write(args, &pair, [source, &destination], report.sums.take())?;
    let object = record.outcome.insert(outcome::object(&report, cpu, source_consistent));
    offloaded.tell(object);
    object["protection"] = protection::of_both(&*pair.source, &*pair.destination);
    object["snapshot"] = snapshot.map_or("none", Snapshot::name).into();
    object["manifest"] = manifest.as_ref().map(manifest::Written::object).into();
    if args.json {
        output::json(object);
    } else if !context.quiet {
        output::line(&(outcome::sentence(&report, cpu) + offloaded.words()));
        manifest.iter().for_each(|manifest| output::line(&manifest.sentence()));
    }
    end(&mut io, [pair.source, pair.destination]);
    if report.unreadable_bytes > 0 {
        context.warn(&outcome::unreadable(&report, &source.text, &command));
        return Ok(Exit::Unreadable);
    }
    Ok(Exit::Done)
}

/// Shows how far it is, and answers whether to go on.
pub(crate) fn observe(
    now: &mover::Progress,
    progress: &mut Progress,
    stop: &crate::context::Stop,
) -> Control {
    let phase = match now.phase {
        Phase::Copy => "copy",
        Phase::Rescue => "rescue",
        Phase::Flush => "flush",
        Phase::Verify => "verify",
        Phase::Compare => "compare",
    };
    progress.update(&Sample {
        phase,
        bytes: now.bytes,
        total: now.total,
        rate: now.rate_now,
        eta: now.eta,
        retries: now.retries,
        limited_by: now.limited_by.name(),
        depth: now.depth,
    });
    if stop.is_asked() { Control::Stop } else { Control::Continue }
}

/// Ends sessions in good order, as far as the peers answer, and lets go of the endpoints.
pub(crate) fn end<const N: usize>(io: &mut Io, mut endpoints: [Box<dyn Endpoint>; N]) {
    let mut borrowed = endpoints.each_mut().map(|endpoint| &mut **endpoint as &mut dyn Endpoint);
    block::close_all(io, &mut borrowed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_chunk_are_bounded() {
        assert_eq!(parse_depth("auto"), Ok(Depth(None)));
        assert_eq!(parse_depth("16"), Ok(Depth(Some(16))));
        for wrong in ["0", "-1", "many", "100000"] {
            assert!(parse_depth(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_chunk("1M"), Ok(1 << 20));
        for wrong in ["0", "1G", "x"] {
            assert!(parse_chunk(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn requests_are_as_aligned_as_the_offset_and_the_chunk() {
        assert_eq!(request_alignment(0, None), 4096);
        assert_eq!(request_alignment(1 << 20, Some(64 << 10)), 4096);
        assert_eq!(request_alignment(512, None), 512);
        assert_eq!(request_alignment(0, Some(1536)), 512);
        assert_eq!(request_alignment(7, None), 1);
    }
}
