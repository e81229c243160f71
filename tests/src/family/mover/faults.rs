//! Storage that fails: sectors that cannot be read or written, destinations that are full. The expected results are
//! data.

use std::fs::File;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;
use serde_json::json;

use super::scene::{Guard, Kind, LIMIT, Scene};
use super::{Case, case, image};
use crate::files::{Loop, can_loop, data_of, empty_file};
use crate::nbd::{At, Nbd};
use crate::{Context, Disk, Target, Tier, run};

struct Expected {
    code: i32,
    says: &'static [&'static str],
    /// If true, the failing places stay unchanged, are listed, and are marked unreadable in the map; otherwise they are
    /// only not copied.
    lists: bool,
}

const UNREADABLE: Expected = Expected { code: 7, says: &["cannot be read", "--resume"], lists: true };
const UNWRITABLE: Expected = Expected { code: 1, says: &["write ", "--resume"], lists: false };
const FULL: Expected = Expected { code: 1, says: &["free space", "--resume"], lists: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// The program's `fault` layer at one end.
    Layer,
    Target,
    Kit,
}

struct Fault {
    name: &'static str,
    at: Where,
    /// Reading the source fails; otherwise writing the destination.
    reading: bool,
    expected: &'static Expected,
}

const FAULTS: &[Fault] = &[
    Fault { name: "read-errors-file", at: Where::Layer, reading: true, expected: &UNREADABLE },
    Fault { name: "read-errors-lun", at: Where::Target, reading: true, expected: &UNREADABLE },
    Fault { name: "read-errors-nbd", at: Where::Kit, reading: true, expected: &UNREADABLE },
    Fault { name: "write-errors-file", at: Where::Layer, reading: false, expected: &UNWRITABLE },
    Fault { name: "write-errors-lun", at: Where::Target, reading: false, expected: &UNWRITABLE },
    Fault { name: "write-errors-nbd", at: Where::Kit, reading: false, expected: &UNWRITABLE },
];

impl Fault {
    /// Draws some sectors among the source's data, none next to another: first byte and length. The first sector of
    /// each is not entirely zero, because zeroes within data may become holes, which would not be written.
    fn draw(scene: &mut Scene) -> Result<Vec<(u64, u64)>> {
        let data = data_of(&scene.source.file)?;
        let source = File::open(&scene.source.file)?;
        let is_zero = |at: u64| -> Result<bool> {
            let mut sector = [0; 512];
            std::os::unix::fs::FileExt::read_exact_at(&source, &mut sector, at)?;
            Ok(sector == [0; 512])
        };
        let mut bad = Vec::new();
        for (start, end) in data {
            if bad.is_empty() || scene.rng.random_range(0..4) == 0 {
                let sectors = (end - start) / 512;
                let first = scene.rng.random_range(0..sectors);
                if is_zero(start + first * 512)? {
                    continue;
                }
                let count = scene.rng.random_range(1..=(sectors - first).min(9));
                bad.push((start + first * 512, count * 512));
            }
        }
        ensure!(!bad.is_empty(), "no place of the source fails: nothing would be tested");
        Ok(bad)
    }

    /// Options of the `fault` layer.
    fn options(&self, bad: &[(u64, u64)]) -> Vec<String> {
        let verb = if self.reading { "read" } else { "write" };
        bad.iter().map(|(start, length)| format!("fault={verb}-error@{start}+{length}")).collect()
    }

    fn serve(&self, context: &Context, scene: &Scene, bad: &[(u64, u64)]) -> Result<(String, Guard)> {
        let file = if self.reading { &scene.source.file } else { &scene.destination.file };
        if self.at == Where::Target {
            let disk = Disk { options: self.options(bad), ..Disk::file(file) };
            let target = Target::serve(context, &[disk], None, &[])?;
            return Ok((target.url(0).to_string(), Guard::Lun(Box::new(target))));
        }
        let path = format!("file={}", file.display());
        let server = if self.reading {
            // ddrescue's map of a disk with bad sectors.
            let map = scene.dir.path().join("bad.map");
            let mut text = "0x0 ? 1\n".to_owned();
            let mut at = 0;
            for (start, length) in bad {
                text += &format!("{at:#x} {:#x} +\n{start:#x} {length:#x} -\n", start - at);
                at = start + length;
            }
            text += &format!("{at:#x} {:#x} +\n", image::BYTES - at);
            std::fs::write(&map, text.replace("0x0 0x0 +\n", ""))?;
            let map = format!("ddrescue-mapfile={}", map.display());
            Nbd::kit(At::port()?, &["--filter=ddrescue", "file", &path, &map])?
        } else {
            let error = ["error-pwrite=EIO", "error-pwrite-rate=50%"];
            Nbd::kit(At::port()?, &[&["--filter=error", "file", &path][..], &error].concat())?
        };
        Ok((server.url(""), Guard::Nbd { _server: server }))
    }

    fn play(&self, context: &Context, seed: u64) -> Result<()> {
        let mut scene = Scene::new(context, seed, Kind::File, Kind::File)?;
        let bad = Self::draw(&mut scene)?;
        let mut layer = String::new();
        if self.at == Where::Layer {
            layer = format!(",{}", self.options(&bad).join(","));
        } else {
            let (text, guard) = self.serve(context, &scene, &bad)?;
            let end = scene.end(self.reading);
            (end.text, end.guard) = (text, guard);
        }
        let options = if self.reading { [&layer, ""] } else { ["", layer.as_str()] };
        self.judge(context, &scene, options, &bad)?;
        // The rest is copied without the fault: under another name if another server has to replace the first.
        if self.at != Where::Layer {
            let end = scene.end(self.reading);
            (end.text, end.guard) = (end.file.display().to_string(), Guard::File);
            let journal = scene.journal_text()?;
            scene.run(context, ["", ""], &["--resume", &journal])?.expect(6)?;
            scene.run(context, ["", ""], &["--resume", &journal, "--force"])?.success()?;
            return scene.is_done();
        }
        scene.finish(context)
    }

    fn judge(&self, context: &Context, scene: &Scene, options: [&str; 2], bad: &[(u64, u64)]) -> Result<()> {
        let Expected { code, says, lists } = self.expected;
        let verify = if context.tier == Tier::Full { &["--verify"][..] } else { &[] };
        let more = [&["--force", "--json"][..], verify].concat();
        let output = scene.run(context, options, &more)?.expect(*code)?.says_all(says)?;
        if !lists {
            let journal = scene.is_true()?.context("a journal")?;
            let never = |at: u64| !journal.finished().iter().any(|(start, end)| (*start..*end).contains(&at));
            let is_right = self.at == Where::Kit || bad.iter().all(|(start, _)| never(*start));
            ensure!(is_right, "{journal:?} of {bad:?}");
            return Ok(());
        }
        let told = output.json()?;
        let list: Vec<_> = bad.iter().map(|(start, length)| json!([start, length])).collect();
        ensure!(told["unreadable"] == json!(list), "{bad:?} are unreadable: {told}");
        image::same_but(&scene.source.file, &scene.before, &scene.destination.file, bad)?;
        let journal = scene.journal()?.context("a journal")?;
        let bytes: u64 = bad.iter().map(|(_, length)| length).sum();
        demand!(journal.bytes('-') == bytes && journal.bytes('+') == image::BYTES - bytes, "{journal:?}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    File,
    Loop,
    Lun,
}

/// A destination on a file system with too little space, which ends within a chunk: writes are short before they fail.
/// With more space the copy can be resumed.
fn full(context: &Context, seed: u64, what: Full) -> Result<()> {
    let mut scene = Scene::new(context, seed, Kind::File, Kind::File)?;
    let taken = image::pieces(&scene.source.file, 4096)? * 4096;
    let room = scene.rng.random_range(taken / 8..taken * 3 / 4) & !4095;
    let small = Small::new(room)?;
    let file = empty_file(small.0.path().join("destination"), image::BYTES)?;
    empty_file(&scene.before, image::BYTES)?;
    scene.destination.file.clone_from(&file);
    (scene.destination.text, scene.destination.guard) = match what {
        Full::File => (file.display().to_string(), Guard::File),
        Full::Loop => {
            let device = Loop::attach(&file, 512, false)?;
            (device.text(), Guard::Loop { _device: device })
        }
        Full::Lun => {
            let target = Target::serve(context, &[Disk::file(&file)], None, &[])?;
            (target.url(0).to_string(), Guard::Lun(Box::new(target)))
        }
    };
    let mut more = vec!["--force"];
    if what == Full::Loop {
        // Linux (6.18) reports a partial write of a loop device as complete; a single page cannot be written partially.
        scene.chunk = "4K";
        more.extend(["--depth", "1"]);
    }
    scene.run(context, ["", ""], &more)?.expect(FULL.code)?.says_all(FULL.says)?;
    scene.is_true()?;
    small.grow()?;
    scene.finish(context)?;
    // Dropped before the file system that it lies in.
    scene.destination.guard = Guard::File;
    Ok(())
}

struct Small(tempfile::TempDir);

impl Small {
    fn new(bytes: u64) -> Result<Self> {
        let small = Self(crate::scratch()?);
        small.mount(&format!("size={bytes}"))?;
        Ok(small)
    }

    fn mount(&self, options: &str) -> Result<()> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(self.0.path());
        run(&mut mount, LIMIT)?.success().map(drop)
    }

    fn grow(&self) -> Result<()> {
        self.mount("remount,size=256M")
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(self.0.path()), LIMIT);
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for again in 0..8 {
        cases.extend(
            FAULTS.iter().map(|fault| {
                case(format!("{}-{again}", fault.name), |context, seed| fault.play(context, seed))
            }),
        );
        for what in [Full::File, Full::Loop, Full::Lun].into_iter().filter(|_| can_loop()) {
            let name = format!("full-{what:?}-{again}").to_lowercase();
            cases.push(case(name, move |context, seed| full(context, seed, what)));
        }
    }
    cases
}
