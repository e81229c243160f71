//! Options of `copy`, and their translation into a [`Request`].

use std::path::PathBuf;

use block::remote::{LINKS_MAX, Links};
use clap::{Parser, ValueEnum};
use job::{Choice, Impact, Request, Resume, Since, units};
use mover::Plan;

use crate::error::Failure;

/// The arguments of `copy` as a parser of their own.
#[derive(Debug, Parser)]
struct Copy {
    #[command(flatten)]
    args: Args,
}

/// Copy all of one endpoint to another, or a part of it
///
/// A file that does not exist is made, with the size of the source. Refuses a destination that is smaller, or the same as
/// the source, and a device that is missing; one that holds a known file system, partition table or volume, unless
/// --force; one that is mounted, held or locked, unless --allow in-use; one with another logical block size, unless
/// --allow sector-size; a file whose file system has less space than the source has data, unless --allow space. Ends
/// with one flush: what is reported as copied is durable, but in a pipe.
///
/// A copy of more than 1 GiB keeps a journal. If it is interrupted, the same command resumes it, where neither end was
/// written since; --list shows interrupted copies. Where the source cannot be read such a copy goes on, and lists those
/// areas at the end (exit code 7); a smaller copy ends with an error there (1). Journals that are not continued for 30
/// days are removed.
///
/// SIGINT, SIGTERM and SIGHUP (unless nohup) interrupt a copy in good order. SIGUSR1 prints a line of progress at once.
#[derive(Debug, PartialEq, Eq, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku copy disk.img backup.img
  hikyaku copy disk.img /dev/sdx --verify
  hikyaku copy disk.img iscsi://host/iqn.2026-11.example:disks/0 --json
  hikyaku copy disk.img /dev/sdx --verify --manifest disk.manifest
  hikyaku copy disk.img /dev/sdx --since hash --force
  hikyaku copy iscsi://host/iqn.2026-11.example:disks/0 new.img,create,size=64G
  hikyaku copy --list
  hikyaku copy --resume
  hikyaku copy disk.img /dev/sdx --dry-run
  zstdcat disk.img.zst | hikyaku copy - /dev/sdx --verify
  hikyaku copy /dev/vg/data backup.img --pre 'fsfreeze -f /data' \\
      --post 'fsfreeze -u /data'
  hikyaku copy /srv/vm.img backup.img --snapshot auto")]
pub(crate) struct Args {
    /// Where from; `-` is standard input, until it ends or for --size bytes
    #[arg(value_name = "SRC", required_unless_present_any = ["list", "resume"], requires = "destination")]
    pub(super) source: Option<String>,

    /// Where to; a missing file is made; `-` is standard output
    ///
    /// A file is made with the size of the source or `,size=SIZE`; one that is too small becomes larger with `,grow`. With `,create`
    /// nothing may be there. A directory is wrong usage (exit code 2), one that is missing a refusal (6): name
    /// a file.
    #[arg(value_name = "DST", required_unless_present_any = ["list", "resume"])]
    pub(super) destination: Option<String>,

    #[command(flatten)]
    pub(super) range: Range,

    /// Read the destination back and compare it with the source
    ///
    /// After the flush, with the hash of what was read from the source.
    #[arg(long)]
    verify: bool,

    /// With --verify: write down what was verified, a hash for each extent, for `compare DISK --manifest FILE` at a later time
    ///
    /// That reads the one disk and names the extents that are not what they were. An extent is 1 MiB, and longer beyond 1 TiB;
    /// stretches of zeroes are one line. FILE is written at the end, as a whole; only an earlier manifest is overwritten.
    #[arg(long, value_name = "FILE", requires = "verify", conflicts_with = "dry_run")]
    manifest: Option<PathBuf>,

    /// Go on with an interrupted copy, by its journal [default: the only one]; `off` begins anew
    ///
    /// Without SRC and DST the options are those of the interrupted copy. The same command line without --resume goes on, too, if
    /// neither end was written since. A destination is compared at a few places for that.
    #[arg(long, value_name = "ID|FILE|off", num_args = 0..=1, default_missing_value = "")]
    resume: Option<String>,

    /// List interrupted copies, and the commands that resume them
    #[arg(long, conflicts_with_all = ["source", "destination", "resume", "dry_run"])]
    pub(super) list: bool,

    /// Copy only what has changed: hash compares with the destination, bitmap:NAME is a dirty bitmap of an NBD source,
    /// SNAP an earlier clone or snapshot of the file or thin volume
    ///
    /// hash reads both ends and writes what differs: it needs no record of changes and is always right. The other two read and
    /// write only what has changed, on your assurance that the destination holds what the source held when the bitmap or the
    /// snapshot was made, and nothing else since; --verify checks. What is unknown counts as changed. SNAP is a file on
    /// the same xfs or btrfs, or a thin volume (LVM) of the source's pool.
    #[arg(long, value_name = "WHAT", value_parser = str::parse::<Since>)]
    pub(super) since: Option<Since>,

    /// Make holes and blocks of zeroes zero instead of moving their zeroes
    #[arg(long, default_value = "auto")]
    sparse: Sparse,

    /// Let the target copy where both ends are LUNs of one target: no data passes through this host
    #[arg(long, default_value = "auto")]
    remote_copy: RemoteCopy,

    /// Let storage copy by itself, as far as it can: a file system between two of its files, by sharing blocks (reflink) or on its
    /// server; a controller between its NVMe namespaces or their partitions (NVMe Copy)
    ///
    /// Where blocks are shared the copy takes no time and no space, and one bad block is bad in both files: it is no backup against a
    /// failing disk. With --rate, --since or --sparse off nothing is offloaded.
    #[arg(long, default_value = "auto")]
    offload: Offloading,

    /// Read no faster than this
    #[arg(long, value_name = "SIZE/s", value_parser = units::parse_rate)]
    rate: Option<u64>,

    /// How far to give way to other programs that read a disk of this machine that SRC or DST lies on
    ///
    /// A file lies on the disk of its file system. Between two LUNs, exports or pipes, where storage copies by itself, and on an
    /// array of disks it has no effect.
    #[arg(long, default_value = "auto")]
    impact: Impacting,

    #[command(flatten)]
    pub(super) shape: Shape,

    /// Copy the source as it was at one moment: make a snapshot, copy that, remove it whatever happens
    ///
    /// A file on a file system that shares blocks is cloned, an LVM volume and what ZFS keeps get a snapshot of theirs. --pre runs
    /// before it is made and --post right after, not after the copy.
    #[arg(long, default_value = "none")]
    snapshot: Snapshotting,

    #[command(flatten)]
    hooks: Hooks,

    /// Print what would be done or refused; write nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Print JSON: progress on stderr, the outcome as one object on stdout
    #[arg(long)]
    pub(crate) json: bool,

    /// Write what happened into one file of HTML: figures, the rate over time, what limited it
    #[arg(long, value_name = "F.html", conflicts_with = "dry_run")]
    pub(super) report: Option<PathBuf>,

    /// Overwrite what the destination holds
    ///
    /// A known file system, partition table or volume; with --resume, go on although the journal is of other storage.
    #[arg(long)]
    force: bool,

    /// Copy in spite of these
    #[arg(long, value_delimiter = ',', value_name = "WHAT")]
    allow: Vec<Allow>,
}

/// Which bytes.
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
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
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Shape {
    /// Chunks in flight: `auto` or a number
    #[arg(long, default_value = "auto", value_name = "auto|N", value_parser = parse_depth)]
    depth: Depth,

    /// Bytes of one chunk [default: as the devices like it]
    #[arg(long, value_name = "SIZE", value_parser = parse_chunk)]
    chunk: Option<u32>,

    /// Sessions with an iSCSI target: `auto`, or a number from 1 to 8
    ///
    /// Further sessions help on a long path where a socket buffer, or what the target takes of one session, ends before the path
    /// does. `auto` adds them where requests wait and the path does not, and keeps those that raise the rate. N opens as many
    /// at once; with 1 there is never another. A target that refuses further ones is no error.
    #[arg(long, default_value = "auto", value_name = "auto|N", value_parser = parse_connections)]
    connections: Connections,
}

impl Shape {
    pub(crate) fn sessions(&self) -> Links {
        self.connections.0
    }
}

/// `--connections`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connections(Links);

impl Default for Connections {
    fn default() -> Self {
        Self(Links::Auto)
    }
}

/// `auto`, or a number of sessions.
pub(crate) fn parse_links(text: &str) -> Result<Links, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(Links::Auto),
        _ if text.starts_with('+') => Err(format!("say `auto` or a number from 1 to {LINKS_MAX}")),
        (_, Ok(1)) => Ok(Links::One),
        (_, Ok(count)) if (1..=LINKS_MAX).contains(&count) => Ok(Links::Fixed(count)),
        _ => Err(format!("say `auto` or a number from 1 to {LINKS_MAX}")),
    }
}

fn parse_connections(text: &str) -> Result<Connections, String> {
    parse_links(text).map(Connections)
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
enum Sparse {
    /// Where the destination can
    Auto,
    /// Move every zero
    Off,
}

/// `--allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Allow {
    /// A destination that is mounted, held or locked; a source that is locked against reading, or that a server on this
    /// machine may write to as the destination
    InUse,
    /// Different logical block sizes
    SectorSize,
    /// Less free space than the source has data: the file system compresses, or much of the data is zeroes
    Space,
}

/// `--remote-copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RemoteCopy {
    /// Where both ends are LUNs of one target that can
    Auto,
    /// Never
    Off,
    /// Fail where impossible
    Require,
}

/// `--offload`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Offloading {
    /// Where possible; silently not where impossible
    Auto,
    /// Never: all is read and written, and a file gets blocks of its own
    Off,
    /// Fail where impossible
    Require,
}

/// `--impact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Impacting {
    /// While there are such reads: no more in flight than keeps their slow ones (p99) within about twice what they
    /// take without the copy
    Auto,
    /// Give way all the time: one small request in flight, and a pause as long as it took after it
    None,
    /// No regard
    Full,
}

/// `--snapshot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Snapshotting {
    /// Copy the source as it is, including what is written to it during the copy
    None,
    /// By what lies beneath the source: reflink, LVM or ZFS; nothing is copied if there is none of them
    Auto,
}

/// `--pre` and `--post`.
#[derive(Debug, Default, PartialEq, Eq, clap::Args)]
struct Hooks {
    /// Run this by `sh -c` before the copy: to freeze a file system, to bring a database to rest
    ///
    /// What would refuse the copy is checked before it, and again after it; it may make a device or start a server. If it fails nothing is
    /// copied. HIKYAKU_SOURCE and HIKYAKU_DESTINATION name the two ends. What it prints goes to stderr.
    /// It may take as long as it likes.
    #[arg(long, value_name = "CMD")]
    pre: Option<String>,

    /// Run this by `sh -c` when the copy is over, well or not: to thaw what --pre froze
    ///
    /// It runs whatever happens once --pre was begun, or without --pre in any case: after a refusal, an error, a signal, even if the copy is killed. HIKYAKU_EXIT is
    /// the copy's exit code, 137 if it was killed.
    #[arg(long, value_name = "CMD")]
    post: Option<String>,
}

impl Range {
    /// The plan for this range with the chunk size and depth of `shape`.
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
    /// Source and destination, as typed.
    pub(super) fn ends(&self) -> [&str; 2] {
        [&self.source, &self.destination].map(|end| end.as_deref().unwrap_or_default())
    }

    /// Completes the arguments of an interrupted copy by those of `copy --resume`, which has only options that do not change
    /// what is copied.
    pub(super) fn take_over(&mut self, typed: &Self, id: &str) -> Result<(), Failure> {
        let bare = ["copy", "--resume", typed.resume.as_deref().unwrap_or_default()];
        let mut bare = Copy::try_parse_from(bare).expect("it is a command line").args;
        for args in [&mut bare, &mut *self] {
            args.verify |= typed.verify;
            args.json |= typed.json;
            args.force |= typed.force;
            args.dry_run |= typed.dry_run;
            args.rate = typed.rate.or(args.rate);
            if typed.impact != Impacting::Auto {
                args.impact = typed.impact;
            }
            args.report = typed.report.clone().or(args.report.take());
        }
        if bare != *typed {
            return Err(Failure::usage(
                "resume",
                id,
                "only --verify, --rate, --impact, --force, --dry-run, --json and --report can be added",
            )
            .hint("give SRC and DST, and all options"));
        }
        self.resume = Some(id.to_owned());
        Ok(())
    }

    fn resume(&self) -> Resume {
        match self.resume.as_deref() {
            None => Resume::Found,
            Some("") => Resume::Only,
            Some("off") => Resume::Off,
            Some(name) => Resume::Named(name.to_owned()),
        }
    }

    /// Words of this command line that a request does not contain, for the command that resumes it.
    fn more(&self) -> Vec<String> {
        let report = self.report.iter();
        report.flat_map(|path| ["--report".to_owned(), path.display().to_string()]).collect()
    }

    pub(super) fn request(&self) -> Request {
        Request {
            plan: Plan {
                verify: self.verify,
                rate: self.rate.into(),
                sparse: self.sparse == Sparse::Auto,
                allow_block_size: self.allow.contains(&Allow::SectorSize),
                ..self.range.plan(&self.shape)
            },
            manifest: self.manifest.clone(),
            journal: false,
            resume: self.resume(),
            since: self.since.clone(),
            remote_copy: match self.remote_copy {
                RemoteCopy::Auto => Choice::Auto,
                RemoteCopy::Off => Choice::Off,
                RemoteCopy::Require => Choice::Require,
            },
            offload: match self.offload {
                Offloading::Auto => Choice::Auto,
                Offloading::Off => Choice::Off,
                Offloading::Require => Choice::Require,
            },
            impact: match self.impact {
                Impacting::Auto => Impact::Auto,
                Impacting::None => Impact::None,
                Impacting::Full => Impact::Full,
            },
            snapshot: self.snapshot == Snapshotting::Auto,
            hooks: job::Hooks { pre: self.hooks.pre.clone(), post: self.hooks.post.clone() },
            force: self.force,
            allow_in_use: self.allow.contains(&Allow::InUse),
            allow_space: self.allow.contains(&Allow::Space),
            more: self.more(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_a_number_or_auto() {
        assert_eq!(parse_links("auto"), Ok(Links::Auto));
        assert_eq!(parse_links("1"), Ok(Links::One));
        assert_eq!(parse_links("8"), Ok(Links::Fixed(8)));
        for wrong in ["+4", "", "0", "9", "-1", "all"] {
            assert!(parse_links(wrong).is_err(), "{wrong}");
        }
    }

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
}
