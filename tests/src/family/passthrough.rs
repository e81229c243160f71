//! Disks by their own commands: `hikyaku copy` in an emulated machine (`tests/kernel-lab`), against QEMU's SCSI and
//! NVMe disks and the kernel's `scsi_debug`. One boot runs all of `passthrough.sh`; each name that it judges is a case.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::guest::{Said, judge, with_program};
use super::kernel::script;
use crate::files::{empty_file, random_file, same_file, same_range};
use crate::{Cases, Context, Output, Scene, run, scratch};

/// A boot, some GiB through an emulated processor, and deliberate waits.
const GUEST_LIMIT: Duration = Duration::from_secs(590);
const BYTES: u64 = 64 << 20;
/// Unreadable sector of the disks called bad.
const BAD_SECTOR: u64 = 40_000;
/// Pairs of disks that are equal after the script, which copies one to the other.
const PAIRS: &[(&str, &str)] = &[("source", "destination"), ("source", "nvme-destination")];
/// Name of a disk, which is its serial number, and whether it is an NVMe disk.
const DISKS: &[(&str, bool)] = &[
    ("source", false),
    ("destination", false),
    ("bad", false),
    ("nvme-destination", true),
    ("nvme-bad", true),
    ("nvme-metadata", true),
];

/// Namespaces of one controller with the Copy command: name, blocks of a source range and of a command, and more ranges
/// in a command.
const COPIES: &[(&str, u64, &str)] = &[
    ("nvme-copies-1", BYTES, "mssrl=128,mcl=512,msrc=3"),
    ("nvme-copies-2", 2100 << 20, "mssrl=2048,mcl=8192,msrc=7"),
];
/// Copies of the script within them: names, source, destination and length.
const COPIED: &[(&str, u64, u64, u64)] =
    &[("nvme-copies-1", 1 << 20, 33 << 20, 24 << 20), ("nvme-copies-2", 1 << 20, 1041 << 20, 1040 << 20)];
const NAMES: &str = "info disk-to-file disk-to-file-same file-to-disk file-to-disk-same one-command-a-chunk-source \
    one-command-a-chunk-destination same-disk same-disk-other-way signature mounted held-meanwhile \
    dirty-source dirty-source-same cached-destination cached-destination-same bad-sector write-same-full \
    write-same write-same-used write-same-zero gone-code gone-said medium-error medium-error-map \
    medium-error-nothing-else nvme-info scsi-to-nvme scsi-to-nvme-same nvme-to-scsi nvme-zeroes \
    nvme-zeroes-same nvme-one-command-a-chunk nvme-same-disk nvme-mounted nvme-bad-sector nvme-metadata \
    nvme-in-the-end nvme-copy-info nvme-copy nvme-copy-through-nobody nvme-copy-same nvme-copy-verified \
    nvme-copy-cached nvme-copy-cached-same nvme-copy-part nvme-copy-part-same nvme-copy-part-before \
    nvme-copy-part-after nvme-copy-off nvme-copy-off-same nvme-copy-same-disk nvme-copy-other \
    nvme-copy-no-nvme nvme-copy-bad-required nvme-copy-bad nvme-copy-bad-before nvme-copy-between \
    nvme-copy-between-auto nvme-copy-between-same nvme-copy-interrupted nvme-copy-claimed nvme-copy-resumed \
    nvme-copy-resumed-rest in-the-end";
/// Low enough for an interruption of the copy.
const COPIES_BYTES_PER_S: u64 = 400 << 20;

/// Adds an option of QEMU and its value.
fn qemu(command: &mut Command, what: &str, value: &str) {
    command.args(["--qemu", what, "--qemu", value]);
}

fn attach(command: &mut Command, name: &str, is_nvme: bool, image: &Path) {
    let mut qemu = |what: &str, value: String| qemu(command, what, &value);
    let image = image.display();
    let is_bad = name.ends_with("bad");
    if is_bad {
        let inject = format!("event=none,iotype=read,errno=5,sector={BAD_SECTOR},once=off,immediately=off");
        let inject = inject.split(',').map(|field| format!(",inject-error.0.{field}")).collect::<String>();
        let file = format!("image.driver=file,image.filename={image}");
        qemu("-blockdev", format!("driver=blkdebug,node-name={name},{file}{inject}"));
    } else {
        qemu("-drive", format!("if=none,id={name},format=raw,file={image},discard=unmap"));
    }
    match (is_nvme, name) {
        (true, "nvme-metadata") => {
            qemu("-device", format!("nvme,id=metadata,serial={name}"));
            qemu("-device", format!("nvme-ns,bus=metadata,drive={name},ms=8"));
        }
        (true, "nvme-bad") => {
            qemu("-device", format!("nvme,id=bad,serial={name}"));
            qemu("-device", format!("nvme-ns,bus=bad,drive={name},{}", COPIES[0].2));
        }
        (true, _) => qemu("-device", format!("nvme,serial={name},drive={name}")),
        (false, _) => {
            let report = if is_bad { ",rerror=report" } else { "" };
            qemu("-device", format!("scsi-hd,bus=scsi.0,serial={name},drive={name}{report}"));
        }
    }
}

/// The larger one receives only zeroes except for a small part, so it stays sparse.
fn attach_copies(command: &mut Command, context: &Context, dir: &Path) -> Result<()> {
    qemu(command, "-device", "nvme,id=copies,serial=nvme-copies");
    for (name, bytes, limits) in COPIES {
        let image = image(context, dir, name, *bytes, *bytes == BYTES)?;
        let sparse = format!("discard=unmap,detect-zeroes=unmap,throttling.bps-total={COPIES_BYTES_PER_S}");
        let drive = format!("if=none,id={name},format=raw,file={},{sparse}", image.display());
        qemu(command, "-drive", &drive);
        qemu(command, "-device", &format!("nvme-ns,bus=copies,drive={name},{limits}"));
    }
    Ok(())
}

/// Makes the image of a disk, random or empty.
fn image(context: &Context, dir: &Path, name: &str, bytes: u64, is_random: bool) -> Result<PathBuf> {
    match is_random {
        true => random_file(dir.join(name), bytes, context.seed_for(&format!("passthrough/{name}"))),
        false => empty_file(dir.join(name), bytes),
    }
}

fn boot(context: &Context, dir: &Path) -> Result<Output> {
    let mut command = with_program(context, dir)?;
    qemu(&mut command, "-device", "virtio-scsi-pci,id=scsi");
    for (name, is_nvme) in DISKS {
        let image = image(context, dir, name, BYTES, *name == "source" || name.ends_with("bad"))?;
        attach(&mut command, name, *is_nvme, &image);
    }
    attach_copies(&mut command, context, dir)?;
    command.arg(script(context, "passthrough.sh"));
    run(&mut command, GUEST_LIMIT)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    // The output, and the images after the guest's end.
    let booted = Scene::new(|| {
        let dir = scratch()?;
        Ok((Said::read(&boot(context, dir.path())?), dir))
    });
    judge(cases, NAMES, "", || Ok(&booted.get()?.0));
    for (source, destination) in PAIRS {
        cases.check(&format!("image-of-{destination}"), || {
            let dir = booted.get()?.1.path();
            same_file(&dir.join(source), &dir.join(destination)).context("on the host")
        });
    }
    for (name, from, to, bytes) in COPIED {
        cases.check(&format!("image-of-{name}"), || {
            let image = booted.get()?.1.path().join(name);
            same_range(&image, *from, &image, *to, *bytes).context("on the host")
        });
    }
    Ok(())
}
