//! Firmware as initiator: a machine with only a network card boots from a LUN of the target, by iPXE (its BIOS build in
//! QEMU's option ROMs) and by OVMF's own driver. QEMU's user network needs no root; inside it the host's loopback is
//! 10.0.2.2.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::files::empty_file;
use crate::process::tail;
use crate::{Cases, Context, Credentials, Disk, Running, Target, Url, program, run, scratch};

const BYTES: u64 = 16 << 20;
/// Firmware in software emulation takes 8 s on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
const SECTOR: usize = 512;
/// Address to which the boot sector reads the second sector.
const BUFFER: u16 = 0x8000;
const INITIATOR: &str = "iqn.2026-11.org.example:ipxe";

/// A boot sector that reads sector 1 through the BIOS, writes it to sector 2, and prints it on the serial port.
fn boot_sector() -> Vec<u8> {
    const ORIGIN: u16 = 0x7c00;
    const READ: u16 = ORIGIN + 54;
    const WRITE: u16 = READ + 16;
    const SORRY: u16 = WRITE + 16;
    let [read, write, sorry, buffer] = [READ, WRITE, SORRY, BUFFER].map(u16::to_le_bytes);
    let mut code = vec![0xfa, 0x31, 0xc0]; // cli; xor ax, ax
    code.extend([0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0]); // ds = es = ss = ax
    code.extend([0xbc, 0x00, 0x7c, 0xfb]); // mov sp, ORIGIN; sti
    code.extend([0xbe, read[0], read[1], 0xb4, 0x42, 0xcd, 0x13]); // extended read of drive dl
    code.extend([0x72, 27]); // jc sorry
    code.extend([0xbe, write[0], write[1], 0xb8, 0x00, 0x43, 0xcd, 0x13]); // extended write
    code.extend([0x72, 17]); // jc sorry
    code.extend([0xbe, buffer[0], buffer[1]]); // mov si, BUFFER
    code.extend([0xac, 0x84, 0xc0, 0x74, 6]); // print: lodsb; test al, al; jz done
    code.extend([0xba, 0xf8, 0x03, 0xee, 0xeb, 0xf5]); // out to COM1; jmp print
    code.extend([0xf4, 0xeb, 0xfd]); // done: hlt; jmp done
    code.extend([0xbe, sorry[0], sorry[1], 0xeb, 0xed]); // sorry: mov si, SORRY; jmp print
    assert_eq!(code.len(), usize::from(READ - ORIGIN));
    for lba in [1, 2] {
        code.extend([16, 0, 1, 0, buffer[0], buffer[1], 0, 0, lba, 0, 0, 0, 0, 0, 0, 0]);
    }
    code.extend(b"INT13-FAILED\r\n\0");
    code.resize(SECTOR - 2, 0);
    code.extend([0x55, 0xaa]);
    code
}

pub(super) fn bootable(path: &Path, text: &str) -> Result<()> {
    let disk = OpenOptions::new().write(true).open(empty_file(path, BYTES)?)?;
    disk.write_all_at(&boot_sector(), 0)?;
    Ok(disk.write_all_at(format!("{text}\r\n\0").as_bytes(), SECTOR as u64)?)
}

fn ipxe(context: &Context, credentials: Option<&Credentials>) -> Result<()> {
    let dir = scratch()?;
    let image = dir.path().join("disk.img");
    let text = format!("BOOTED-FROM-LUN-{:x}", context.seed_for("boot/ipxe"));
    bootable(&image, &text)?;
    let mut target = Target::serve(context, &[Disk::file(&image)], credentials, &[])?;
    let url = target.url(0).clone();
    let mut commands = format!("#!ipxe\nset initiator-iqn {INITIATOR}\n");
    if let Some(Credentials { user, secret }) = credentials {
        commands += &format!("set username {user}\nset password {secret}\n");
    }
    commands += &format!("sanboot iscsi:10.0.2.2::{}:{:x}:{}\n", url.port()?, url.lun, url.iqn);
    let tftp = dir.path().join("tftp");
    std::fs::create_dir(&tftp)?;
    std::fs::write(tftp.join("boot.ipxe"), commands)?;
    let mut command = program("qemu-system-x86_64")?;
    command.args(["-accel", "tcg", "-m", "128", "-nographic", "-vga", "none", "-no-reboot", "-boot", "n"]);
    command.arg("-netdev").arg(format!("user,id=net,tftp={},bootfile=boot.ipxe", tftp.display()));
    command.args(["-device", "e1000,netdev=net"]);
    let mut machine = Running::start(&mut command)?;
    let console = machine.wait_stdout("text from the LUN", BOOT_LIMIT, |console| {
        let ends = [text.as_str(), "INT13-FAILED", "No more network devices", "Could not"];
        ends.iter().any(|word| console.contains(word)).then(|| console.to_owned())
    });
    let console = console.with_context(|| format!("the target's log\n{}", target.log()))?;
    ensure!(console.contains(&text), "{}\n--- target\n{}", tail(&console, 1500), target.log());
    ensure!(target.log().contains(INITIATOR), "no session of {INITIATOR}:\n{}", target.log());
    target.running.alive()?;
    let mut sectors = [0; 2 * SECTOR];
    std::fs::File::open(&image)?.read_exact_at(&mut sectors, SECTOR as u64)?;
    demand!(sectors[..SECTOR] == sectors[SECTOR..], "what the boot sector wrote is not on the disk")
}

/// The variable of OVMF's iSCSI driver for "Attempt 1", in the format found in its own variables: everything not named
/// here is zero.
fn attempt(url: &Url, credentials: Option<&Credentials>) -> Result<Vec<u8>> {
    let mut data = vec![0; 0x419];
    let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
    put(0x010, &[1, 1]); // card and attempt
    put(0x01a, b"Attempt 1");
    put(0x026, b"52:54:00:12:34:56"); // QEMU's first card
    put(0x0b6, &url.port()?.to_le_bytes());
    put(0x0b8, &[1, 0]); // enabled, IPv4
    put(0x0ba, &[10, 0, 2, 15]);
    put(0x0ca, &[255, 255, 255, 0]);
    put(0x0ce, &[10, 0, 2, 2]); // gateway
    put(0x0e0, url.iqn.as_bytes());
    put(0x1c0, &[10, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 24]);
    put(0x1d2, &[u8::try_from(url.lun)?]);
    put(0x1d9, &5000u16.to_le_bytes()); // ms to connect
    put(0x1db, &[2, 0x80, 1, 2, 3, 4, 5]); // retries, ISID
    if let Some(Credentials { user, secret }) = credentials {
        put(0x2f5, &[1, 0]); // CHAP, one way
        put(0x2f7, user.as_bytes());
        put(0x376, secret.as_bytes());
    }
    put(0x418, &[1]); // active
    Ok(data)
}

/// A variable in the format that the EFI shell's `dmpstore -l` loads.
fn variable(name: &str, guid: [u8; 16], data: &[u8]) -> Vec<u8> {
    const NON_VOLATILE_BOOT_SERVICE: u32 = 3;
    let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let mut entry = Vec::new();
    for length in [name.len(), data.len()] {
        entry.extend((length as u32).to_le_bytes());
    }
    entry.extend(name);
    entry.extend(guid);
    entry.extend(NON_VOLATILE_BOOT_SERVICE.to_le_bytes());
    entry.extend(data);
    entry.extend(crc_fast::crc32_iso_hdlc(&entry).to_le_bytes());
    entry
}

/// GUID of the initiator's name and its attempts: 59324945-ec44-4c0d-b1cd-9db139df070c.
const INITIATOR_GUID: [u8; 16] =
    [0x45, 0x49, 0x32, 0x59, 0x44, 0xec, 0x0d, 0x4c, 0xb1, 0xcd, 0x9d, 0xb1, 0x39, 0xdf, 0x07, 0x0c];
/// GUID of the driver's configuration: 4b47d616-a8d6-4552-9d44-ccad2e0f4cf9.
const CONFIG_GUID: [u8; 16] =
    [0x16, 0xd6, 0x47, 0x4b, 0xd6, 0xa8, 0x52, 0x45, 0x9d, 0x44, 0xcc, 0xad, 0x2e, 0x0f, 0x4c, 0xf9];

/// QEMU with OVMF and a network card; `variables` is the firmware's flash.
fn uefi(variables: &Path) -> Result<Command> {
    let mut command = program("qemu-system-x86_64")?;
    command.args(["-accel", "tcg", "-machine", "q35", "-m", "256", "-nographic", "-vga", "none"]);
    command.args(["-drive", "if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd"]);
    command.arg("-drive").arg(format!("if=pflash,format=raw,file={}", variables.display()));
    // Without the card's option ROM, which is iPXE.
    command.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
    Ok(command)
}

/// The firmware's own driver logs in, and its shell runs a script on the LUN, which writes to the LUN.
fn ovmf(context: &Context, credentials: Option<&Credentials>) -> Result<()> {
    let dir = scratch()?;
    let [image, variables, esp, setup] =
        ["disk.img", "variables.fd", "esp", "setup"].map(|name| dir.path().join(name));
    for folder in [&esp, &setup] {
        std::fs::create_dir(folder)?;
    }
    let seed = context.seed_for("boot/ovmf");
    let (text, proof) = (format!("BOOTED-FROM-LUN-{seed:x}"), format!("WRITTEN-{seed:x}"));
    // %1 is empty: the script does not contain the finished text.
    let script = text.replace("LUN", "%1LUN");
    let lines = format!("echo -off\r\necho {script}\r\necho {proof} > fs0:\\proof.txt\r\nreset -s\r\n");
    std::fs::write(esp.join("startup.nsh"), lines)?;
    let mut convert = program("qemu-img")?;
    convert.args(["convert", "-f", "raw", "-O", "raw", &format!("fat:{}", esp.display())]).arg(&image);
    run(&mut convert, BOOT_LIMIT)?.success()?;
    let mut target = Target::serve(context, &[Disk::file(&image)], credentials, &[])?;

    let name = format!("{INITIATOR}-ovmf\0");
    let stored = [
        variable("Attempt 1", INITIATOR_GUID, &attempt(target.url(0), credentials)?),
        variable("AttemptOrder", CONFIG_GUID, &[1]),
        variable("I_NAME", INITIATOR_GUID, name.as_bytes()),
    ];
    std::fs::write(setup.join("vars.bin"), stored.concat())?;
    let lines = "echo -off\r\nfs0:\r\ndmpstore -all -l vars.bin\r\nreset -s\r\n";
    std::fs::write(setup.join("startup.nsh"), lines)?;
    std::fs::copy("/usr/share/OVMF/OVMF_VARS_4M.fd", &variables)?;
    let mut command = uefi(&variables)?;
    let drive = format!("file=fat:{},format=raw,if=none,id=setup,readonly=on", setup.display());
    command.args(["-drive", &drive]);
    command.args(["-device", "virtio-blk-pci,drive=setup,bootindex=1"]);
    let output = run(&mut command, BOOT_LIMIT)?.success()?;
    ensure!(output.stdout.contains("I_NAME"), "variables were not loaded:\n{}", tail(&output.stdout, 1500));

    let output = run(&mut uefi(&variables)?, BOOT_LIMIT)?;
    ensure!(output.stdout.contains(&text), "{}\n--- target\n{}", tail(&output.stdout, 1500), target.log());
    ensure!(target.log().contains(name.trim_end_matches('\0')), "no session of it:\n{}", target.log());
    target.running.alive()?;
    // The shell writes UTF-16, so that the script itself does not match; the first file lies near the disk's start.
    let proof: Vec<u8> = proof.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut start = vec![0; 8 << 20];
    std::fs::File::open(&image)?.read_exact_at(&mut start, 0)?;
    let is_there = start.windows(proof.len()).any(|found| found == proof);
    demand!(is_there, "what the shell wrote is not on the disk")
}

type Boot = fn(&Context, Option<&Credentials>) -> Result<()>;
const BOOTS: &[(&str, Boot, bool)] = &[
    ("ipxe-plain", ipxe, false),
    ("ipxe-chap", ipxe, true),
    ("ovmf-plain", ovmf, false),
    ("ovmf-chap", ovmf, true),
];

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    for (name, boot, chap) in BOOTS {
        cases.check_some(("boots", 1), name, || boot(context, chap.then(Credentials::example).as_ref()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_sector_is_one_sector_with_its_mark() {
        let sector = boot_sector();
        assert_eq!((sector.len(), &sector[SECTOR - 2..]), (SECTOR, &[0x55, 0xaa][..]));
    }
}
