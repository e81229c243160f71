//! What the servers may do, as the kernel says.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};

use super::Net;
use super::place::{KERNEL, LIMIT, pattern, transfers_work};
use crate::{Cases, Context, wait_until};

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("no-rights", || no_rights(context));
    cases.check("maps", || maps(context));
    cases.check("sent-and-sent-again-from-one-page", || one_page(context));
}

fn no_rights(context: &Context) -> Result<()> {
    let net = Net::up(context, "rights", &[])?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    let log = net.supervisor.stderr();
    // Landlock has no other trace outside of the process.
    ensure!(!log.contains("confined only in part"), "{log}");
    let mut networks = BTreeSet::from([network(std::process::id())?, network(net.supervisor.pid())?]);
    let mut users = BTreeSet::from([0]);
    for (server, devices) in [("inet", 0), ("nic", 1), ("nic (spare)", 1)] {
        let pid = net.pid_of(context, server)?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let is = |key: &str, expected: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(&format!("{key}:")));
            let found =
                line.with_context(|| format!("no {key}"))?.split_whitespace().collect::<Vec<_>>().join(" ");
            demand!(found == expected, "{server}: {key} is {found}, not {expected}")
        };
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            is(set, "0000000000000000")?;
        }
        for (key, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("Threads", "1"), ("Groups", "")] {
            is(key, expected)?;
        }
        let user = status.lines().find_map(|line| line.strip_prefix("Uid:\t")).context("no Uid")?;
        let numbers: BTreeSet<u32> = user.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        ensure!(numbers.len() == 1, "{server}: users {user}");
        users.extend(&numbers);
        is("Gid", &user.replace('\t', " "))?;
        ensure!(networks.insert(network(pid)?), "{server}: a network of others");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
        for limit in ["Max core file size", "Max processes"] {
            let line = limits.lines().find_map(|line| line.strip_prefix(limit)).context("no such limit")?;
            let is_zero = line.split_whitespace().take(2).eq(["0", "0"]);
            ensure!(is_zero, "{server}: {limit} {line}");
        }
        let accounts = fs::read_to_string("/etc/passwd")?;
        ensure!(
            !accounts.contains(&format!(":{}:", numbers.first().context("no user")?)),
            "it has an account"
        );
        let files = descriptors(pid)?;
        let known = ["socket:", "pipe:", "anon_inode:[eventfd]", "anon_inode:[timerfd]", "/dev/null"];
        let others: Vec<_> =
            files.iter().filter(|file| !known.iter().any(|known| file.starts_with(known))).collect();
        ensure!(
            others.len() == devices && others.iter().all(|file| *file == "/dev/net/tun"),
            "{server} has open {files:?}"
        );
    }
    demand!(users.len() == 3, "inet and nic are the same user: {users:?}")
}

fn network(pid: u32) -> Result<String> {
    Ok(fs::read_link(format!("/proc/{pid}/ns/net"))?.display().to_string())
}

/// What a server has open. Memory is mapped, and its descriptors are closed.
fn descriptors(pid: u32) -> Result<Vec<String>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?;
    entries.map(|entry| Ok(fs::read_link(entry?.path())?.display().to_string())).collect()
}

/// A memfd that a process has mapped.
#[derive(Debug)]
struct Mapped {
    addresses: std::ops::Range<u64>,
    rights: String,
    /// Of the first byte in the memfd.
    offset: u64,
    inode: u64,
    name: String,
}

fn mapped(pid: u32) -> Result<Vec<Mapped>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memfds = maps.lines().filter(|line| line.contains("/memfd:"));
    memfds
        .map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [addresses, rights, offset, _, inode, name, ..] = fields[..] else { anyhow::bail!("{line}") };
            let (start, end) = addresses.split_once('-').context("no range")?;
            let hex = |text| u64::from_str_radix(text, 16);
            Ok(Mapped {
                addresses: hex(start)?..hex(end)?,
                rights: rights.to_owned(),
                offset: hex(offset)?,
                inode: inode.parse()?,
                name: name.to_owned(),
            })
        })
        .collect()
}

/// Memory to send from is mapped by the application and, for reading, by drivers; never by `inet`.
fn maps(context: &Context) -> Result<()> {
    let net = Net::up(context, "maps", &[])?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    let inodes = |maps: &[Mapped], writable: Option<bool>| -> BTreeSet<u64> {
        let chosen = maps.iter().filter(|it| writable.is_none_or(|is| it.rights.contains('w') == is));
        chosen.map(|it| it.inode).collect()
    };
    let shared = |maps: &[Mapped]| maps.iter().all(|it| it.rights.ends_with('s') && !it.rights.contains('x'));
    let ours = mapped(std::process::id())?;
    let inet = mapped(net.pid_of(context, "inet")?)?;
    // Made by the library: all that this process maps for writing and the supervisor does not name.
    let sends: BTreeSet<u64> = ours
        .iter()
        .filter(|it| it.rights.contains('w') && !it.name.contains("memfd:net-"))
        .map(|it| it.inode)
        .collect();
    ensure!(!sends.is_empty(), "the application has no memory to send from: {ours:?}");
    ensure!(inodes(&inet, None).is_disjoint(&sends), "inet maps memory to send from: {inet:?}");
    for server in ["nic", "nic (spare)"] {
        let pid = net.pid_of(context, server)?;
        wait_until(LIMIT, || Ok(inodes(&mapped(pid)?, Some(false)).is_superset(&sends)))?;
        let nic = mapped(pid)?;
        ensure!(shared(&nic), "{nic:?}");
        // Each memory has one writer.
        ensure!(inodes(&nic, Some(true)).is_disjoint(&inodes(&inet, Some(true))), "{nic:?}\n{inet:?}");
        ensure!(inodes(&nic, Some(true)).is_disjoint(&inodes(&ours, Some(true))), "{nic:?}\n{ours:?}");
    }
    ensure!(shared(&inet), "{inet:?}");
    demand!(inodes(&inet, Some(true)).is_disjoint(&inodes(&ours, Some(true))), "{inet:?}\n{ours:?}")
}

/// Page frames of a process from an address on (proc_pid_pagemap(5)).
fn frames(pid: u32, address: u64, pages: u64) -> Result<Vec<u64>> {
    const PRESENT: u64 = 1 << 63;
    const NUMBER: u64 = (1 << 55) - 1;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    (0..pages)
        .map(|page| {
            let mut entry = [0; 8];
            pagemap.read_exact_at(&mut entry, (address / PAGE_BYTES + page) * 8)?;
            let entry = u64::from_ne_bytes(entry);
            ensure!(
                entry & PRESENT != 0 && entry & NUMBER != 0,
                "page {page} of {pid} is not there: {entry:#x}"
            );
            Ok(entry & NUMBER)
        })
        .collect()
}

const PAGE_BYTES: u64 = 4096;

/// Bytes leave from the pages in which the application wrote them, at the first transmission and at each repetition:
/// `inet` does not map them, the driver has the same page frames, and what is written over bytes that were sent and did not
/// arrive is what arrives.
fn one_page(context: &Context) -> Result<()> {
    /// Less than the first congestion window: all of it is sent before anything is acknowledged.
    const PAGES: u64 = 3;
    let net = Net::up(context, "page", &[])?;
    let stack = net.join()?;
    let (mut kernel, ours) = net.connection(&stack, 4800, true)?;
    kernel.set_read_timeout(Some(LIMIT))?;
    let mut area = stack.alloc((PAGES * PAGE_BYTES) as usize)?;
    let (old, new) = (vec![0x11; area.len()], pattern(context, "net/page")[..area.len()].to_vec());
    area.copy_from_slice(&old);
    let (bytes, address) = (area.as_mut_ptr(), area.as_ptr() as u64);
    // Without its address the kernel takes frames from the device and drops them.
    let kernels = format!("{KERNEL}/24");
    net.ip(&["address", "del", &kernels, "dev", "tap0"])?;
    let ticket = ours.send(area, 0..old.len())?;
    ticket.submitted()?;
    let (inet, nic) = (net.pid_of(context, "inet")?, net.pid_of(context, "nic")?);
    let here = mapped(std::process::id())?;
    let here = here.iter().find(|it| it.addresses.contains(&address)).context("not in a memfd")?;
    ensure!(mapped(inet)?.iter().all(|it| it.inode != here.inode), "inet maps memory to send from");
    let there = mapped(nic)?;
    let there = there.iter().find(|it| it.inode == here.inode).context("the driver does not map it")?;
    let place = here.offset + (address - here.addresses.start);
    let drivers = there.addresses.start + place - there.offset;
    let ours_frames = frames(std::process::id(), address, PAGES)?;
    let drivers_frames = frames(nic, drivers, PAGES)?;
    ensure!(ours_frames == drivers_frames, "{ours_frames:x?} here, {drivers_frames:x?} in the driver");
    // SAFETY: the area's memory, which its ticket keeps; no reference to it exists meanwhile. Other processes only read it.
    unsafe { std::ptr::copy_nonoverlapping(new.as_ptr(), bytes, new.len()) };
    net.ip(&["address", "add", &kernels, "dev", "tap0"])?;
    let mut received = vec![0; new.len()];
    kernel.read_exact(&mut received)?;
    ensure!(received == new, "a repetition has other bytes than the application's memory");
    ensure!(ticket.released()?[..] == new, "the area that came back is another one");
    let status = net.status(context)?;
    demand!(status["copied_bytes"] == 0, "bytes were copied: {status}")
}
