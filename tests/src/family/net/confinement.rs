//! What the servers may do, as the kernel says.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::Net;
use super::place::{LIMIT, transfers_work};
use crate::{Cases, Context, wait_until};

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("no-rights", || no_rights(context));
    cases.check("maps", || maps(context));
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

/// Inodes of memfds that a process has mapped, with how.
fn mapped(pid: u32) -> Result<Vec<(String, u64, String)>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let memfds = maps.lines().filter(|line| line.contains("/memfd:"));
    memfds
        .map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, rights, _, _, inode, name, ..] = fields[..] else { anyhow::bail!("{line}") };
            Ok((rights.to_owned(), inode.parse()?, name.to_owned()))
        })
        .collect()
}

/// Memory to send from is mapped by the application and, for reading, by drivers; never by `inet`.
fn maps(context: &Context) -> Result<()> {
    let net = Net::up(context, "maps", &[])?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    let inodes = |maps: &[(String, u64, String)], writable: Option<bool>| -> BTreeSet<u64> {
        let chosen =
            maps.iter().filter(|(rights, _, _)| writable.is_none_or(|is| rights.contains('w') == is));
        chosen.map(|(_, inode, _)| *inode).collect()
    };
    let shared = |maps: &[(String, u64, String)]| {
        maps.iter().all(|(rights, _, _)| rights.ends_with('s') && !rights.contains('x'))
    };
    let ours = mapped(std::process::id())?;
    let inet = mapped(net.pid_of(context, "inet")?)?;
    // Made by the library: all that this process maps for writing and the supervisor does not name.
    let sends: BTreeSet<u64> = ours
        .iter()
        .filter(|(rights, _, name)| rights.contains('w') && !name.contains("memfd:net-"))
        .map(|(_, inode, _)| *inode)
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
