//! Drivers and `inet` die, or stop, while connections live.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::Net;
use super::place::{LIMIT, Transfer, of, pattern, signal, transfers_work};
use crate::{Cases, Context, wait_until};

/// Between two kills, in which the pause of the first ends and the next spare is ready.
const BETWEEN: Duration = Duration::from_millis(250);

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let kills = context.amount(5, 50);
    for (name, to_kernel) in [("driver-killed-sending", true), ("driver-killed-receiving", false)] {
        let mut pauses = Vec::new();
        cases.check(name, || {
            pauses = driver_killed(context, name, to_kernel, kills)?;
            let median = pauses[pauses.len() / 2];
            let most = context.amount(200, 10) as f64;
            demand!(median <= most, "the median of the pauses is {median} ms: {pauses:?}")
        });
        if let (Some(median), Some(longest)) = (pauses.get(pauses.len() / 2), pauses.last()) {
            cases.fact(&format!("{name}_pause_ms_median"), *median);
            cases.fact(&format!("{name}_pause_ms_max"), *longest);
        }
    }
    cases.check("driver-leaves-bad-counters", || bad_counters(context, true));
    cases.check("driver-writes-bad-counters", || bad_counters(context, false));
    cases.check("next-driver-takes-the-mtu", || mtu(context));
    cases.check("driver-stopped", || driver_stopped(context));
    cases.check("joins-after-another", || joins_after_another(context));
    cases.check("inet-killed", || inet_killed(context));
    cases.check("inet-stopped", || inet_stopped(context));
    cases.check("bind-at-once", || bind_at_once(context));
}

/// Kills drivers in a transfer. Returns the longest pause after each kill, ascending, in milliseconds.
fn driver_killed(context: &Context, of_name: &str, to_kernel: bool, kills: usize) -> Result<Vec<f64>> {
    let net = Net::up(context, "kills", &[])?;
    let stack = net.join()?;
    let (pattern, transfer) = (pattern(context, of_name), Transfer::default());
    let mut pauses = Vec::new();
    let idle = net.connection(&stack, 4301, true)?;
    transfer.run(net.connection(&stack, 4300, true)?, &pattern, to_kernel, || {
        wait_until(LIMIT, || Ok(transfer.received.load(Ordering::Relaxed) > 1 << 20))?;
        for _ in 0..kills {
            wait_until(LIMIT, || Ok(of(&net.status(context)?, "nic (spare)")["is_ready"] == true))?;
            let (before, pid) = (transfer.received.load(Ordering::Relaxed), net.pid_of(context, "nic")?);
            transfer.pause_us.store(0, Ordering::Relaxed);
            signal(pid, libc::SIGKILL)?;
            std::thread::sleep(BETWEEN);
            wait_until(LIMIT, || Ok(transfer.received.load(Ordering::Relaxed) > before + (1 << 20)))?;
            pauses.push(transfer.pause_us.load(Ordering::Relaxed) as f64 / 1000.0);
        }
        Ok(())
    })?;
    let status = net.status(context)?;
    ensure!(of(&status, "nic")["restarts"] == kills, "{status}");
    drop(idle);
    transfers_work(context, &net, &stack)?;
    pauses.sort_unstable_by(f64::total_cmp);
    Ok(pauses)
}

/// In a transfer each counter of the driver becomes impossible in turn: because a driver has left it so, or because one
/// that works has written it. The next driver takes over, and no byte is lost.
fn bad_counters(context: &Context, is_left: bool) -> Result<()> {
    use net::layout::driver::RINGS;
    let net = Net::up(context, "counters", &[])?;
    let stack = net.join()?;
    let (pattern, transfer) = (pattern(context, "net/counters"), Transfer::default());
    let memory = net.memory("net-nic")?;
    // The counter of free frames is read when that ring seems full, which a stopped driver does not live to see.
    let counters = [Some(RINGS[0].consumed), is_left.then_some(RINGS[1].consumed), Some(RINGS[2].published)];
    let values = [1 << 40, u64::MAX, 0];
    let mut restarts = 0;
    transfer.run(net.connection(&stack, 4310, true)?, &pattern, true, || {
        for (_, offset) in counters.into_iter().flatten() {
            for value in values {
                let before = transfer.received.load(Ordering::Relaxed);
                wait_until(LIMIT, || Ok(transfer.received.load(Ordering::Relaxed) > before + (1 << 20)))?;
                wait_until(LIMIT, || Ok(of(&net.status(context)?, "nic (spare)")["is_ready"] == true))?;
                let pid = net.pid_of(context, "nic")?;
                // One that works writes its counter again with the next frame.
                signal(pid, libc::SIGSTOP)?;
                memory.write_all_at(&u64::to_ne_bytes(value), offset as u64)?;
                if is_left {
                    signal(pid, libc::SIGKILL)?;
                }
                restarts += 1;
                wait_until(LIMIT, || Ok(of(&net.status(context)?, "nic")["restarts"] == restarts))?;
            }
        }
        let before = transfer.received.load(Ordering::Relaxed);
        wait_until(LIMIT, || Ok(transfer.received.load(Ordering::Relaxed) > before + (1 << 20)))
    })?;
    let said = net.supervisor.stderr().matches("has broken its rings: it is killed").count();
    // Of one that is about to be killed it may be said, too.
    ensure!(is_left || said == restarts, "said {said} times: {}", net.supervisor.stderr());
    transfers_work(context, &net, &stack)
}

/// The MTU of the link that changes below is that of the next driver.
fn mtu(context: &Context) -> Result<()> {
    const MTU: i32 = 1200;
    let net = Net::up(context, "mtu", &[])?;
    let stack = net.join()?;
    net.ip(&["link", "set", "tap0", "mtu", &MTU.to_string()])?;
    let status = net.status(context)?;
    ensure!(status["mtu_bytes"] == MTU || status["interface"]["mtu_bytes"] == MTU, "{status}");
    wait_until(LIMIT, || Ok(of(&net.status(context)?, "nic (spare)")["is_ready"] == true))?;
    signal(net.pid_of(context, "nic")?, libc::SIGKILL)?;
    wait_until(LIMIT, || Ok(of(&net.status(context)?, "nic")["restarts"] == 1))?;
    // What the kernel sends is bound by what the stack accepts, and no longer by its own interface.
    net.ip(&["link", "set", "tap0", "mtu", "1500"])?;
    let (kernel, _ours) = net.connection(&stack, 4320, true)?;
    let (mut bytes, mut length) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel writes at most `length` bytes to `bytes`.
    let result = unsafe {
        let into = (&raw mut bytes).cast();
        libc::getsockopt(kernel.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MAXSEG, into, &raw mut length)
    };
    demand!(result == 0 && (MTU - 60..MTU).contains(&bytes), "segments of {bytes} bytes")
}

fn driver_stopped(context: &Context) -> Result<()> {
    let net = Net::up(context, "stopped", &[])?;
    let stack = net.join()?;
    let (pattern, transfer) = (pattern(context, "net/stopped"), Transfer::default());
    transfer.run(net.connection(&stack, 4400, true)?, &pattern, true, || {
        wait_until(LIMIT, || Ok(transfer.received.load(Ordering::Relaxed) > 1 << 20))?;
        signal(net.pid_of(context, "nic")?, libc::SIGSTOP)?;
        wait_until(LIMIT, || Ok(of(&net.status(context)?, "nic")["restarts"] == 1))?;
        let before = transfer.received.load(Ordering::Relaxed);
        wait_until(LIMIT, || Ok(transfer.received.load(Ordering::Relaxed) > before + (1 << 20)))
    })?;
    demand!(net.supervisor.stderr().contains("hangs"), "nothing is said of it")
}

/// The only place is not free while frames of an application that has left wait at a driver, here one that is stopped:
/// until it is replaced, and one that joins waits so long.
fn joins_after_another(context: &Context) -> Result<()> {
    let net = Net::up(context, "after", &[])?;
    let stack = net.join()?;
    let (_kernel, mut ours) = net.connection(&stack, 4450, true)?;
    wait_until(LIMIT, || Ok(of(&net.status(context)?, "nic (spare)")["is_ready"] == true))?;
    signal(net.pid_of(context, "nic")?, libc::SIGSTOP)?;
    ours.write_all(&[0; 10_000])?;
    drop((ours, stack));
    let stack = net.join()?;
    ensure!(of(&net.status(context)?, "nic")["restarts"] == 1, "it did not wait");
    transfers_work(context, &net, &stack)
}

fn inet_killed(context: &Context) -> Result<()> {
    let net = Net::up(context, "inet", &[])?;
    for restarts in 1..=2 {
        let stack = net.join()?;
        transfers_work(context, &net, &stack)?;
        let (_kernel, mut ours) = net.connection(&stack, 4500, true)?;
        signal(net.pid_of(context, "inet")?, libc::SIGKILL)?;
        let error = ours.read(&mut [0]).err().context("no error")?;
        ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
        drop((ours, stack));
        // At once: it waits until the servers are there again.
        let stack = net.join()?;
        transfers_work(context, &net, &stack)?;
        let status = net.status(context)?;
        ensure!(of(&status, "inet")["restarts"] == restarts, "{status}");
        drop(stack);
        wait_until(LIMIT, || Ok(net.status(context)?["applications"].as_array().is_some_and(Vec::is_empty)))?;
    }
    Ok(())
}

/// An application that is let in can use the addresses of the interface, however early it is.
fn bind_at_once(context: &Context) -> Result<()> {
    /// Longer than servers live whose death is taken for one at once.
    const SERVED: Duration = Duration::from_millis(120);
    let net = Net::up(context, "once", &[])?;
    for _ in 0..context.amount(10, 30) {
        let stack = net.join()?;
        net::socket::TcpListener::bind(&stack, (super::place::STACK, 4700)).context("the first request")?;
        std::thread::sleep(SERVED);
        signal(net.pid_of(context, "inet")?, libc::SIGKILL)?;
        drop(stack);
        wait_until(LIMIT, || Ok(net.status(context)?["applications"].as_array().is_some_and(Vec::is_empty)))?;
    }
    Ok(())
}

fn inet_stopped(context: &Context) -> Result<()> {
    let net = Net::up(context, "hang", &[])?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    signal(net.pid_of(context, "inet")?, libc::SIGSTOP)?;
    // Something for it to do.
    let socket = net::socket::TcpListener::bind(&stack, (super::place::STACK, 4600));
    ensure!(socket.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "it works");
    wait_until(LIMIT, || Ok(of(&net.status(context)?, "inet")["restarts"] == 1))
}
