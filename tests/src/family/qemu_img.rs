//! QEMU's block layer (libiscsi) against the target: a real file system is copied there and back, patterns are written
//! and read, digests and CHAP are negotiated.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt;
use tempfile::TempDir;

use crate::files::{damage, empty_file, same_file, size_of};
use crate::{Against, Cases, Context, Credentials, Disk, Scene, Served, Url, program, random, run, scratch};

const LIMIT: Duration = Duration::from_secs(120);
const PATTERN_BYTES: u64 = 64 << 20;

pub(super) fn qemu_img(arguments: &[&str]) -> Result<String> {
    Ok(run(program("qemu-img")?.args(arguments), LIMIT)?.success()?.stdout)
}

pub(super) fn qemu_io(image: &[&str], commands: &[String]) -> Result<String> {
    let mut command = program("qemu-io")?;
    for text in commands {
        command.args(["-c", text]);
    }
    command.args(image);
    let output = run(&mut command, LIMIT)?.success()?;
    let text = output.text();
    ensure!(!text.contains("verification failed") && !text.contains("failed:"), "{}\n{text}", output.line);
    Ok(text)
}

fn make_tree(context: &Context, root: &Path) -> Result<()> {
    let mut rng = context.rng("qemu-img/tree");
    fs::create_dir_all(root.join("deep/er"))?;
    let sizes = [0usize, 1, 511, 512, 4095, 4096, 4097, 65_536, (1 << 20) + 3];
    for (index, size) in sizes.iter().enumerate() {
        let data = random::bytes(&mut rng, *size);
        fs::write(root.join(format!("deep/{index}-{size}")), data)?;
    }
    for index in 0..rng.random_range(20..60) {
        let data = random::bytes_of(&mut rng, 0..200_000);
        fs::write(root.join(format!("deep/er/f{index}")), data)?;
    }
    std::os::unix::fs::symlink("deep/er/f0", root.join("link"))?;
    Ok(())
}

fn fsck(image: &Path) -> Result<()> {
    run(program("e2fsck")?.arg("-fn").arg(image), LIMIT)?.success().map(drop)
}

fn image_options(url: &Url, digest: &str) -> String {
    format!(
        "driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={},file.target={},file.lun={},\
         file.header-digest={digest}",
        url.portal, url.iqn, url.lun
    )
}

fn file_system_case(context: &Context, source: &Path, convert: &[&str], block: Option<u32>) -> Result<()> {
    let dir = scratch()?;
    let back = dir.path().join("back.img");
    let stored = empty_file(dir.path().join("stored.img"), size_of(source)?)?;
    let mut served = context.serve(&[Disk { block_size: block, ..Disk::file(&stored) }], None)?;
    let url = served.url(0).to_string();
    let (source_text, back_text) = (source.display().to_string(), back.display().to_string());
    let result = (|| {
        let there = ["convert", "-n", "-f", "raw", "-O", "raw"];
        qemu_img(&[&there, convert, &[&source_text, &url]].concat())?;
        qemu_img(&["convert", "-f", "raw", "-O", "raw", &url, &back_text])?;
        let compared = qemu_img(&["compare", "-f", "raw", "-F", "raw", &source_text, &url])?;
        ensure!(compared.contains("identical"), "{compared}");
        same_file(source, &back)?;
        fsck(&back)
    })();
    served.blame(result)?;
    drop(served);
    same_file(source, &stored)
}

fn random_pattern_commands(context: &Context, index: usize, bytes: u64) -> Vec<String> {
    let mut rng = context.rng(&format!("qemu-img/pattern/{index}"));
    let mut commands = Vec::new();
    // Ranges that do not overlap, so that the pattern of every read is known.
    let slot = 2 << 20;
    for number in 0..bytes / slot {
        let pattern: u8 = rng.random_range(1..=255);
        let length = 512 * rng.random_range(1..=slot / 512);
        let offset = number * slot + 512 * rng.random_range(0..=(slot - length) / 512);
        let write = match rng.random_range(0..4) {
            0 => "write -f",
            1 => "aio_write",
            _ => "write",
        };
        commands.push(format!("{write} -P {pattern} {offset} {length}"));
        if write == "aio_write" {
            commands.push("aio_flush".into());
        }
        if rng.random_range(0..3) == 0 {
            let half = length / 1024 * 512;
            if half > 0 {
                let zero = if rng.random() { "write -z" } else { "write -z -u" };
                commands.push(format!("{zero} {offset} {half}"));
                commands.push(format!("read -P 0 {offset} {half}"));
                commands.push(format!("read -P {pattern} {} {}", offset + half, length - half));
                continue;
            }
        }
        commands.push(format!("read -P {pattern} {offset} {length}"));
    }
    commands.push("flush".into());
    commands
}

struct Patterns {
    stored: PathBuf,
    served: Served,
    url: Url,
    text: String,
    _dir: TempDir,
}

impl Patterns {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let stored = empty_file(dir.path().join("patterns.img"), PATTERN_BYTES)?;
        let served = context.serve(&[Disk::file(&stored)], None)?;
        let url = served.url(0).clone();
        Ok(Self { stored, served, text: url.to_string(), url, _dir: dir })
    }
}

fn pattern_cases(context: &Context, cases: &mut Cases) {
    let mut patterns = Scene::new(|| Patterns::new(context));
    for index in 0..24 {
        cases.check_some(("patterns", 2), &format!("pattern-{index}"), || {
            let Patterns { text, served, .. } = patterns.get_mut()?;
            let commands = random_pattern_commands(context, index, PATTERN_BYTES);
            let result = qemu_io(&["-f", "raw", "-t", "none", text], &commands);
            served.blame(result).map(drop)
        });
    }
    cases.check("pattern-reaches-file", || {
        let Patterns { text, stored, .. } = patterns.get()?;
        qemu_io(&["-f", "raw", text], &["write -P 0x5a 1M 128k".into(), "flush".into()])?;
        let mut bytes = vec![0u8; 128 << 10];
        fs::File::open(stored)?.read_exact_at(&mut bytes, 1 << 20)?;
        demand!(bytes.iter().all(|byte| *byte == 0x5a), "the flushed pattern is not in the file")
    });
    cases.check("pattern-mismatch-is-noticed", || {
        let Patterns { text, stored, .. } = patterns.get()?;
        qemu_io(&["-f", "raw", text], &["write -P 0x33 0 64k".into(), "flush".into()])?;
        damage(stored, 4096)?;
        // The medium was changed without the target's knowledge; a target without its own cache must return the new
        // content.
        let read = qemu_io(&["-f", "raw", "-t", "none", text], &["read -P 0x33 0 64k".into()]);
        demand!(read.is_err(), "a damaged byte was not noticed: {read:?}")
    });
    cases.check("discard-reads-zero", || {
        let Patterns { text, served, .. } = patterns.get_mut()?;
        let commands = ["write -P 0x77 8M 1M", "discard 8M 1M", "read -P 0 8M 1M"].map(String::from);
        let result = qemu_io(&["-f", "raw", "-d", "unmap", text], &commands);
        served.blame(result).map(drop)
    });
    cases.check("info-size", || {
        let info = qemu_img(&["info", "-f", "raw", "--output=json", &patterns.get()?.text])?;
        let info: serde_json::Value = serde_json::from_str(&info).context("qemu-img info")?;
        demand!(info["virtual-size"] == PATTERN_BYTES, "virtual-size {}", info["virtual-size"])
    });
    cases.check("past-the-end-refused", || {
        let commands = [format!("read {PATTERN_BYTES} 512")];
        let text = &patterns.get()?.text;
        demand!(qemu_io(&["-f", "raw", text], &commands).is_err(), "a read past the end succeeded")
    });
    for digest in ["crc32c", "crc32c-none", "none-crc32c", "none"] {
        cases.check(&format!("digest-{digest}"), || {
            let Patterns { url, served, .. } = patterns.get_mut()?;
            let options = image_options(url, digest);
            let commands = ["write -P 0x61 12M 1M", "read -P 0x61 12M 1M", "flush"].map(String::from);
            let result = qemu_io(&["--image-opts", &options], &commands);
            served.blame(result).map(drop)
        });
    }
    cases.check("target-lives", || patterns.get_mut()?.served.alive());
}

fn chap_case(context: &Context, source: &Path) -> Result<()> {
    let dir = scratch()?;
    let back = dir.path().join("back.img");
    let stored = empty_file(dir.path().join("stored.img"), size_of(source)?)?;
    let credentials = Credentials::example();
    let mut served = context.serve(&[Disk::file(&stored)], Some(&credentials))?;
    let url = served.url(0).with(&credentials);
    let result = (|| {
        qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw", &source.display().to_string(), &url])?;
        qemu_img(&["convert", "-f", "raw", "-O", "raw", &url, &back.display().to_string()])?;
        same_file(source, &back)
    })();
    served.blame(result)?;
    let wrong = Credentials { secret: "not-the-secret-1".into(), ..credentials };
    let output = run(Command::new("qemu-img").args(["info", &served.url(0).with(&wrong)]), LIMIT)?;
    ensure!(output.code != Some(0), "a wrong secret was let in: {output}");
    served.alive()
}

struct FileSystem {
    image: PathBuf,
    _dir: TempDir,
}

impl FileSystem {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let tree = dir.path().join("tree");
        make_tree(context, &tree)?;
        let image = empty_file(dir.path().join("ext4.img"), (context.amount(64, 256) as u64) << 20)?;
        let mut command = program("mkfs.ext4")?;
        command.args(["-q", "-F", "-E", "lazy_itable_init=0,root_owner=0:0", "-d"]).arg(&tree).arg(&image);
        run(&mut command, LIMIT)?.success()?;
        fsck(&image).context("the image as made")?;
        Ok(Self { image, _dir: dir })
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let made = Scene::new(|| FileSystem::new(context));
    // (name, options of convert, logical block size)
    type Variant = (&'static str, &'static [&'static str], Option<u32>);
    let variants: [Variant; 4] = [
        ("ext4-in-order", &[], None),
        ("ext4-out-of-order", &["-W", "-m", "8"], None),
        ("ext4-no-sparse-direct", &["-S", "0", "-t", "none", "-m", "16"], None),
        ("ext4-4096", &["-W", "-m", "4"], Some(4096)),
    ];
    for (name, convert, block) in variants {
        cases.check(name, || file_system_case(context, &made.get()?.image, convert, block));
    }
    cases.check("chap", || chap_case(context, &made.get()?.image));
    pattern_cases(context, cases);
    if context.against == Against::Tgt {
        cases.note("examined tgt");
    }
    Ok(())
}
