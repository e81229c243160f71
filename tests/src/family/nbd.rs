//! The NBD client against qemu-nbd and nbdkit: copies in both directions, holes, dirty bitmaps, servers that fail,
//! refuse, change their replies, die and return.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

use super::qemu_img::{qemu_img, qemu_io};
use crate::cutter::Cutter;
use crate::files::{damage, data_of, empty_file, patchy_file, random_file, same_file, size_of};
use crate::nbd::{At, Nbd};
use crate::{Cases, Context, Disk, Output, Running, Scene, Target, free_port, scratch, wait_until};

const LIMIT: Duration = Duration::from_secs(120);
const BYTES: u64 = 16 << 20;
/// Low enough for an event in the middle of a copy of [`BYTES`].
const RATE: &str = "4MB/s";

fn ours(context: &Context, arguments: &[&str]) -> Result<Output> {
    context.ours(arguments, LIMIT)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Copies `source` to the export, compares, and copies the export to a new file, which must have its bytes.
fn there_and_back(context: &Context, source: &Path, url: &str, more: &[&str]) -> Result<PathBuf> {
    let (from, size) = (text(source), size_of(source)?);
    let back = source.with_extension("back");
    let _ = std::fs::remove_file(&back);
    let with = |arguments: &[&str]| ours(context, &[arguments, more].concat())?.success();
    with(&["copy", "--verify", "--force", &from, url])?;
    ours(context, &["compare", &from, url])?.success()?;
    with(&["copy", "--verify", url, &format!("{},create,size={size}", text(&back))])?;
    same_file(source, &back)?;
    Ok(back)
}

/// The shortest hole that a copy preserves: shorter ones are read and written with the data around them.
const HOLE_BYTES: u64 = 64 << 10;

/// Demands that the holes of `from`, except short ones, are holes of `to`.
fn keeps_holes(from: &Path, to: &Path) -> Result<()> {
    let (there, here) = (data_of(from)?, data_of(to)?);
    let begins = std::iter::once(0).chain(there.iter().map(|(_, end)| *end));
    let ends = there.iter().map(|(start, _)| *start).chain([size_of(from)?]);
    for (begin, end) in begins.zip(ends).filter(|(begin, end)| end - begin >= HOLE_BYTES) {
        if let Some((start, _)) = here.iter().find(|(start, stop)| *start < end && *stop > begin) {
            bail!("{}: data at {start}, in the hole from {begin} to {end}", to.display());
        }
    }
    Ok(())
}

struct Images {
    dir: TempDir,
    source: PathBuf,
    stored: PathBuf,
}

impl Images {
    fn new(fill: impl FnOnce(PathBuf) -> Result<PathBuf>) -> Result<Self> {
        let dir = scratch()?;
        let (source, stored) = (fill(dir.path().join("source.img"))?, dir.path().join("stored.img"));
        Ok(Self { dir, source, stored })
    }
}

/// Parameters of nbdkit's filter `blocksize-policy`.
const POLICY: &str = "blocksize-error-policy=error";
const BLOCKS_4096: [&str; 4] =
    ["blocksize-minimum=4096", "blocksize-preferred=65536", "blocksize-maximum=1M", POLICY];
const BLOCKS_512: [&str; 4] =
    ["blocksize-minimum=512", "blocksize-preferred=512", "blocksize-maximum=64K", POLICY];

fn servers(context: &Context, cases: &mut Cases) {
    let images = Scene::new(|| Images::new(|path| patchy_file(path, BYTES, context.seed_for("nbd/source"))));
    cases.check("qemu-raw-tcp-keeps-holes", || {
        let Images { source, stored, .. } = images.get()?;
        empty_file(stored, BYTES)?;
        let server = Nbd::qemu(At::port()?, stored, "raw", &["--discard=unmap"])?;
        let back = there_and_back(context, source, &server.url("disk"), &[])?;
        keeps_holes(source, stored)?;
        keeps_holes(source, &back)
    });
    cases.check("qemu-qcow2-unix", || {
        let Images { dir, source, .. } = images.get()?;
        let image = dir.path().join("image.qcow2");
        qemu_img(&["create", "-q", "-f", "qcow2", &text(&image), &BYTES.to_string()])?;
        let at = At::Socket(dir.path().join("qemu.sock"));
        let server = Nbd::qemu(at, &image, "qcow2", &[])?;
        there_and_back(context, source, &server.url("disk"), &[])?;
        drop(server);
        qemu_img(&["compare", "-f", "raw", "-F", "qcow2", &text(source), &text(&image)]).map(drop)
    });
    let size = BYTES.to_string();
    // nbdkit's server variants, each a case.
    let kits: [(&str, &[&str], &[&str]); 9] = [
        ("memory", &[], &[]),
        ("no-zeroes", &["--filter=nozero"], &["zeromode=none"]),
        ("no-extents", &["--filter=noextents"], &[]),
        ("no-fua", &["--filter=fua"], &[]),
        ("delay", &["--filter=delay"], &["delay-read=2ms", "delay-write=2ms"]),
        ("unordered", &["--filter=delay", "--filter=noextents"], &["rdelay=1ms"]),
        ("blocks-of-4096", &["--filter=blocksize-policy"], &BLOCKS_4096),
        ("blocks-of-512", &["--filter=blocksize-policy"], &BLOCKS_512),
        ("small-inside", &["--filter=blocksize"], &["maxdata=64K", "maxlen=1M"]),
    ];
    for (name, filters, parameters) in kits {
        cases.check_some(("nbdkit", 4), &format!("nbdkit-{name}"), || {
            let arguments = [filters, &["memory", &size], parameters].concat();
            let server = Nbd::kit(At::port()?, &arguments)?;
            let allow = ["--allow", "sector-size"];
            there_and_back(context, &images.get()?.source, &server.url(""), &allow).map(drop)
        });
    }
    cases.check("served-again-as-a-lun", || {
        let Images { source, stored, .. } = images.get()?;
        empty_file(stored, BYTES)?;
        let server = Nbd::qemu(At::port()?, stored, "raw", &["--shared=1"])?;
        let lun = Target::serve(context, &[Disk::endpoint(server.url("disk"))], None, &[])?;
        there_and_back(context, source, &lun.url(0).to_string(), &[])?;
        same_file(source, stored)
    });
    cases.check("info", || {
        let server = Nbd::kit(At::port()?, &["memory", &size])?;
        let info = ours(context, &["info", "--json", &server.url("")])?.success()?.json()?;
        ensure!(info["size_bytes"] == BYTES && info["facts"]["kind"] == "NBD export", "{info}");
        demand!(info["facts"]["metadata contexts"] == "base:allocation", "{info}")
    });
}

fn dirty_bitmap(cases: &mut Cases) {
    cases.check("dirty-bitmap", || {
        let dir = scratch()?;
        let image = dir.path().join("image.qcow2");
        let path = text(&image);
        qemu_img(&["create", "-q", "-f", "qcow2", &path, "64M"])?;
        qemu_img(&["bitmap", "--add", "-g", "64K", "-f", "qcow2", &path, "since"])?;
        let writes = [(0u64, 1u64), (5 << 20, 200 << 10), (63 << 20, 1 << 20)];
        let commands = writes.map(|(offset, length)| format!("write -P 7 {offset} {length}"));
        qemu_io(&["-f", "qcow2", &path], &commands)?;
        let server = Nbd::qemu(At::port()?, &image, "qcow2", &["--read-only", "--bitmap=since"])?;
        let uri = nbd::Uri::parse(&server.url("disk"))?;
        let medium = nbd::NbdMedium::new(uri, Duration::from_secs(10), true);
        let mut io = io::Io::new(area::PoolLimits::default())?;
        let dirty = nbd::dirty(&mut io, &medium, "since", 0..u64::MAX)?;
        let grains: BTreeSet<u64> =
            writes.iter().flat_map(|(offset, length)| offset >> 16..=(offset + length - 1) >> 16).collect();
        let report: BTreeSet<u64> =
            dirty.iter().flat_map(|range| range.start >> 16..range.end.div_ceil(1 << 16)).collect();
        ensure!(grains == report, "written {grains:?}, dirty {dirty:?}");
        let part = nbd::dirty(&mut io, &medium, "since", (5 << 20) + 4096..(63 << 20) + 512)?;
        ensure!(part == [(5 << 20) + 4096..(5 << 20) + (256 << 10), 63 << 20..(63 << 20) + 512], "{part:?}");
        match nbd::dirty(&mut io, &medium, "another", 0..u64::MAX) {
            Err(block::OpenError::Missing(_)) => Ok(()),
            other => bail!("a bitmap that is not there: {other:?}"),
        }
    });
}

/// A copy by a dirty bitmap, one by a bitmap that is wrong, and the option that corrects the result.
fn since_bitmap(context: &Context, cases: &mut Cases) {
    cases.check("since-bitmap", || {
        let dir = scratch()?;
        let [raw, image, copied] = ["raw", "image.qcow2", "copied"].map(|name| dir.path().join(name));
        patchy_file(&raw, BYTES, context.seed_for("nbd/since"))?;
        qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &text(&raw), &text(&image)])?;
        qemu_img(&["bitmap", "--add", "-g", "64K", "-f", "qcow2", &text(&image), "b0"])?;
        std::fs::copy(&raw, &copied)?;
        let writes = ["write -P 7 300000 5000", "write -z 4M 1M", "write -P 9 8M 200k", "discard 12M 64k"];
        qemu_io(&["-f", "qcow2", &text(&image)], &writes.map(str::to_owned))?;
        let server = Nbd::qemu(At::port()?, &image, "qcow2", &["--read-only", "--bitmap=b0", "--shared=4"])?;
        let (from, to) = (server.url("disk"), text(&copied));
        let copy = |more: &[&str], code: i32| -> Result<serde_json::Value> {
            ours(context, &[&["copy", &from, &to, "--force", "--json"], more].concat())?.expect(code)?.json()
        };
        let report = copy(&["--since", "bitmap:b0", "--dry-run"], 0)?;
        let changed = report["changed_bytes"].as_u64().context("changed_bytes")?;
        ensure!((1 << 20..2 << 20).contains(&changed), "{changed} bytes are said to have changed");
        let report = copy(&["--since", "bitmap:b0", "--verify"], 0)?;
        ensure!(report["unchanged_bytes"] == BYTES - changed, "{report}");
        ensure!(report["read"]["bytes"].as_u64().is_some_and(|read| read <= changed), "{report}");
        ensure!(report["blake3"].as_str().is_some_and(|digits| digits.len() == 64), "{report}");
        ours(context, &["compare", &from, &to])?.success()?;
        // Another program wrote to the destination where the bitmap marks nothing.
        damage(&copied, 14 << 20)?;
        copy(&["--since", "bitmap:b0"], 0)?;
        copy(&["--since", "bitmap:b0", "--verify"], 3)?;
        let report = copy(&["--since", "hash"], 0)?;
        // A stretch of zeroes, at most a chunk of 1 MiB, is zeroed as a whole.
        let unchanged = report["unchanged_bytes"].as_u64().context("unchanged_bytes")?;
        ensure!((BYTES - (1 << 20)..BYTES).contains(&unchanged) && report["compared_bytes"] != 0, "{report}");
        ensure!(report["write"]["bytes"] == 4096 || report["write"]["bytes"] == 0, "{report}");
        ours(context, &["compare", &from, &to])?.success()?;
        ours(context, &["copy", &from, &to, "--force", "--since", "bitmap:none"])?.expect(1).map(drop)
    });
}

fn refusals(context: &Context, cases: &mut Cases) {
    let images = Scene::new(|| Images::new(|path| random_file(path, 1 << 20, 1)));
    let source = || anyhow::Ok(text(&images.get()?.source));
    let says = |arguments: &[&str], code: i32, word: &str| -> Result<()> {
        ours(context, arguments)?.expect(code)?.says(word).map(drop)
    };
    cases.check("read-only-export-refused", || {
        let server = Nbd::kit(At::port()?, &["--readonly", "memory", "1M"])?;
        says(&["copy", "--force", &source()?, &server.url("")], 6, "read-only")
    });
    cases.check("no-such-export", || {
        let server = Nbd::qemu(At::port()?, &images.get()?.source, "raw", &["--read-only"])?;
        says(&["info", &server.url("other")], 1, "no export")
    });
    cases.check("nobody-there", || says(&["info", &At::port()?.url("x")], 5, "refused"));
    cases.check("tls-refused", || says(&["info", "nbds://127.0.0.1/x"], 2, "TLS"));
    cases.check("tls-demanded", || {
        let server = Nbd::kit(At::port()?, &["--tls=require", "--tls-psk=/dev/null", "memory", "1M"])?;
        says(&["info", &server.url("")], 1, "TLS")
    });
    cases.check("another-protocol", || {
        let target = Target::serve(context, &[Disk::endpoint("mem:1M")], None, &[])?;
        let url = At::Port(target.url(0).port()?).url("");
        // An iSCSI target sends nothing before its initiator does.
        says(&["info", &format!("{url},timeout=1")], 5, "answer")
    });
    cases.check("read-error", || {
        let filter = ["--filter=error", "memory", "1M", "error-pread=EIO", "error-pread-rate=100%"];
        let server = Nbd::kit(At::port()?, &filter)?;
        let back = format!("{},create,size=1M", text(&images.get()?.dir.path().join("back.img")));
        says(&["copy", "--sparse=off", &server.url(""), &back], 1, "EIO")
    });
    cases.check("no-space", || {
        let filter = ["--filter=error", "memory", "1M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%"];
        let server = Nbd::kit(At::port()?, &filter)?;
        says(&["copy", "--force", &source()?, &server.url("")], 1, "ENOSPC")
    });
}

/// Waits until the copy has stored something.
fn wait_moving(stored: &Path, copy: &mut Running) -> Result<()> {
    let moves = wait_until(Duration::from_secs(15), || {
        copy.alive().context("the copy, before it moved anything")?;
        Ok(std::fs::metadata(stored)?.blocks() > 0)
    });
    moves.context("the copy does not move")
}

fn deaths(context: &Context, cases: &mut Cases) {
    let images = Scene::new(|| Images::new(|path| random_file(path, BYTES, context.seed_for("nbd/deaths"))));
    let start = |at: &At, timeout: u32| -> Result<Running> {
        let ends = [text(&images.get()?.source), format!("{},timeout={timeout}", at.url("disk"))];
        let options = ["--force", "--verify", "--json", "--chunk=64K", "--rate", RATE];
        Running::start(context.command().arg("copy").args(options).args(ends))
    };
    cases.check("killed-and-back", || {
        let Images { source, stored, .. } = images.get()?;
        empty_file(stored, BYTES)?;
        let at = At::port()?;
        let mut server = Nbd::qemu(at.clone(), stored, "raw", &[])?;
        let mut copy = start(&at, 30)?;
        wait_moving(stored, &mut copy)?;
        server.kill();
        let _server = Nbd::qemu(at, stored, "raw", &[])?;
        copy.finish(LIMIT)?.success()?;
        same_file(source, stored)
    });
    cases.check("killed-for-good-exits-5", || {
        let Images { dir, stored, .. } = images.get()?;
        empty_file(stored, BYTES)?;
        let at = At::Socket(dir.path().join("gone.sock"));
        let mut server = Nbd::qemu(at.clone(), stored, "raw", &[])?;
        let mut copy = start(&at, 2)?;
        wait_moving(stored, &mut copy)?;
        server.kill();
        let output = copy.finish(LIMIT)?.expect(5)?;
        demand!(output.text().contains("nothing completed"), "{output}")
    });
    for index in 0..12 {
        cases.check_some(("cut-connections", 1), &format!("cut-connections-{index}"), || {
            let Images { source, stored, .. } = images.get()?;
            empty_file(stored, BYTES)?;
            let port = free_port()?;
            let _server = Nbd::qemu(At::Port(port), stored, "raw", &[])?;
            let cutter = Cutter::start(port)?;
            let mut copy = start(&At::Port(cutter.port()), 30)?;
            wait_moving(stored, &mut copy)?;
            cutter.arm(context.rng(&format!("nbd/cut/{index}")));
            std::thread::sleep(Duration::from_secs(1));
            cutter.disarm();
            let output = copy.finish(LIMIT)?.success()?;
            ensure!(cutter.cuts() > 0, "nothing was cut: {output}");
            same_file(source, stored)
        });
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    servers(context, cases);
    dirty_bitmap(cases);
    since_bitmap(context, cases);
    refusals(context, cases);
    deaths(context, cases);
    Ok(())
}
