//! What applications and operators see.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use steps::build::{cargo, must, target_directory};

use super::Net;
use super::place::{LIMIT, STACK, of, transfers_work};
use crate::files::{random_file, same_file};
use crate::schema::Schema;
use crate::{Cases, Context, Running, Tier, program, run, scratch, wait_until};

const FILE_BYTES: u64 = 8 << 20;
/// Share of sends that the driver returns to the application.
const DIRECT_SHARE: f64 = 0.9;

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("curl-gets-a-file-while-the-driver-dies", || curl_gets_a_file(context));
    cases.check("transfers-each-way", || transfers_each_way(context));
    cases.check("second-application", || second_application(context));
    cases.check("status", || status(context));
    cases.check("status-without-servers", || status_without_servers(context));
    cases.check("idle", || idle(context));
    cases.check("idle-connections", || idle_connections(context));
    cases.check("sigterm-and-sighup", || ends(context));
    cases.check("supervisor-dies", || supervisor_dies(context));
    cases.check("socket-in-use", || socket_in_use(context));
    cases.check("wire-without-root", || wire_without_root(context));
}

fn curl_gets_a_file(context: &Context) -> Result<()> {
    let net = Net::up(context, "curl", &[])?;
    let file = random_file(net.path("file"), FILE_BYTES, context.seed_for("net/curl"))?;
    let mut command = std::process::Command::new(example(context, "http")?);
    command.arg("--socket").arg(net.socket()).args(["--listen", &format!("{STACK}:80")]).arg(&file);
    let mut http = Running::start(&mut command)?;
    http.wait_stdout("URL", LIMIT, |text| text.starts_with("http://").then_some(()))?;
    let got = net.path("got");
    for _ in 0..3 {
        let before = net.pid_of(context, "nic")?;
        let mut curl = program("curl")?;
        // Slow enough that the driver dies in the middle.
        curl.args(["--silent", "--fail", "--limit-rate", "16M", "--output"]).arg(&got);
        curl.arg(format!("http://{STACK}/"));
        std::thread::scope(|scope| {
            let fetch = scope.spawn(|| net.run(&mut curl));
            std::thread::sleep(Duration::from_millis(150));
            super::place::signal(before, libc::SIGKILL)?;
            fetch.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??.success()
        })?;
        same_file(&file, &got)?;
        ensure!(net.pid_of(context, "nic")? != before, "it is still there");
    }
    http.alive()
}

fn transfers_each_way(context: &Context) -> Result<()> {
    let net = Net::up(context, "ways", &[])?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    let status = net.status(context)?;
    let share = status["returned_directly_share"].as_f64().context("no share")?;
    ensure!(share >= DIRECT_SHARE, "{share} of the sends were returned directly");
    ensure!(status["copied_bytes"] == 0, "bytes were copied for the only application: {status}");
    ensure!(
        status["drops"].as_object().is_some_and(|drops| drops.values().all(|drops| drops == 0)),
        "{status}"
    );
    drop(stack);
    let several = Net::up(context, "several", &["--clients", "2"])?;
    let (one, other) = (several.join()?, several.join()?);
    transfers_work(context, &several, &one)?;
    drop(one);
    transfers_work(context, &several, &other)?;
    let status = several.status(context)?;
    demand!(
        status["copied_bytes"].as_u64() > Some(8 << 20),
        "an application of several reads frames: {status}"
    )
}

fn second_application(context: &Context) -> Result<()> {
    let net = Net::up(context, "second", &[])?;
    let first = net.join()?;
    let error = net.join().err().context("a second one was let in")?;
    ensure!(format!("{error:#}").contains("--clients"), "{error:#}");
    transfers_work(context, &net, &first)?;
    drop(first);
    wait_until(LIMIT, || Ok(net.join().is_ok()))
}

fn status(context: &Context) -> Result<()> {
    let net = Net::up(context, "status", &[])?;
    let schema = Schema::load("net-status")?;
    schema.check(&net.status(context)?)?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    let status = net.status(context)?;
    schema.check(&status)?;
    for (server, restarts) in [("inet", Some(0)), ("nic", Some(0)), ("nic (spare)", None)] {
        ensure!(of(&status, server)["restarts"].as_u64() == restarts, "{server} in {status}");
    }
    let rings = status["rings"].as_array().map_or(0, Vec::len);
    ensure!(rings == 6 && status["applications"][0]["pid"] == std::process::id(), "{status}");
    let socket = net.socket().display().to_string();
    for server in ["inet", "nic"] {
        let (cpu_s, private) = (of(&status, server)["cpu_s"].as_f64(), &of(&status, server)["private_bytes"]);
        // In ticks of 10 ms: a short transfer may take none.
        ensure!(cpu_s >= Some(0.0) && private.as_u64() > Some(1 << 16), "{server} in {status}");
    }
    let shown = context.ours(&["net", "status", "--socket", &socket], LIMIT)?.success()?;
    ensure!(shown.stdout.find("CLIENT") < shown.stdout.find("RING"), "{shown}");
    for words in ["PRIVATE", "nic (spare)", "frames out", "direct returns", "DIRECT"] {
        ensure!(shown.stdout.contains(words), "no '{words}' in {shown}");
    }
    Ok(())
}

fn status_without_servers(context: &Context) -> Result<()> {
    let arguments = ["net", "status", "--socket", "/no/such/socket"];
    context.ours(&arguments, LIMIT)?.expect(5)?.says_all(&["/no/such/socket", "hikyaku net up"]).map(drop)
}

/// Voluntary switches of a process: each wake-up ends in one.
fn sleeps(pid: u32) -> Result<u64> {
    number(&std::fs::read_to_string(format!("/proc/{pid}/status"))?, "voluntary_ctxt_switches:")
}

fn number(text: &str, key: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)).with_context(|| format!("no {key}"))?;
    Ok(line.split_whitespace().next().context("no number")?.parse()?)
}

/// Servers with an open connection on which nothing happens.
fn idle(context: &Context) -> Result<()> {
    const PRIVATE_KB_MAX: u64 = 8 << 10;
    let net = Net::up(context, "idle", &[])?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    let connection = net.connection(&stack, 4100, true)?;
    let pids = ["inet", "nic", "nic (spare)"].map(|server| net.pid_of(context, server));
    let mut is_idle = false;
    // The kernel asks for neighbours and routers now and then, and what was closed ends after a while.
    for _ in 0..5 {
        std::thread::sleep(Duration::from_secs(2));
        let look = || -> Result<Vec<u64>> {
            pids.iter()
                .map(|pid| sleeps(*pid.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?))
                .collect()
        };
        let before = look()?;
        std::thread::sleep(Duration::from_secs(2));
        if look()? == before {
            is_idle = true;
            break;
        }
    }
    ensure!(is_idle, "servers wake up though nothing happens");
    for pid in pids {
        let private = private_kb(pid?)?;
        ensure!(private <= PRIVATE_KB_MAX, "{private} KiB of private memory");
    }
    drop(connection);
    Ok(())
}

fn private_kb(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(number(&text, "Private_Clean:")? + number(&text, "Private_Dirty:")?)
}

/// What a connection on which nothing happens costs `inet`.
fn idle_connections(context: &Context) -> Result<()> {
    const CONNECTIONS: u64 = 256;
    const KB_MAX: u64 = 4;
    let net = Net::up(context, "many", &[])?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    let inet = net.pid_of(context, "inet")?;
    let before = private_kb(inet)?;
    let ports = 5000..5000 + CONNECTIONS as u16;
    let held = ports.map(|port| net.connection(&stack, port, true)).collect::<Result<Vec<_>>>()?;
    let growth = private_kb(inet)?.saturating_sub(before);
    drop(held);
    demand!(growth <= CONNECTIONS * KB_MAX, "{growth} KiB for {CONNECTIONS} idle connections")
}

fn ends(context: &Context) -> Result<()> {
    let mut net = Net::up(context, "ends", &[])?;
    net.supervisor.signal(libc::SIGHUP)?;
    let stack = net.join()?;
    transfers_work(context, &net, &stack)?;
    let (kernel, ours) = net.connection(&stack, 4200, true)?;
    let servers = ["inet", "nic", "nic (spare)"].map(|server| net.pid_of(context, server));
    ensure!(net.supervisor.stderr().contains("SIGHUP"), "nothing is said of SIGHUP");
    net.supervisor.signal(libc::SIGTERM)?;
    wait_until(LIMIT, || Ok(net.supervisor.ended()))?;
    ensure!(!net.socket().exists(), "the socket is still there");
    for pid in servers {
        ensure!(!std::path::Path::new(&format!("/proc/{}", pid?)).exists(), "a server is still there");
    }
    let reset = |result: std::io::Result<usize>| {
        result.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    };
    kernel.set_read_timeout(Some(LIMIT))?;
    ensure!(reset(std::io::Read::read(&mut &kernel, &mut [0])), "the kernel's end was not reset");
    demand!(reset(std::io::Read::read(&mut &ours, &mut [0])), "the application's end was not reset")
}

fn supervisor_dies(context: &Context) -> Result<()> {
    let mut net = Net::up(context, "dies", &[])?;
    let servers = ["inet", "nic", "nic (spare)"].map(|server| net.pid_of(context, server));
    net.supervisor.kill();
    for pid in servers {
        let path = format!("/proc/{}/stat", pid?);
        // A process that ended and was not reaped is a zombie.
        wait_until(LIMIT, || Ok(std::fs::read_to_string(&path).map_or(true, |stat| stat.contains(") Z "))))?;
    }
    Ok(())
}

fn socket_in_use(context: &Context) -> Result<()> {
    let net = Net::up(context, "use", &[])?;
    let socket = net.socket().display().to_string();
    let mut command = context.command();
    command.args(["net", "up", "--nic", "tap:tap1", "--address", "10.79.0.2/24", "--socket", &socket]);
    net.run(&mut command)?.expect(1)?.says_all(&[&socket, "another process listens there"])?;
    command = context.command();
    command.args(["net", "up", "--nic", "tap:tap0", "--address", "10.79.0.2/24", "--socket", "/tmp/unused"]);
    net.run(&mut command)?
        .expect(1)?
        .says_all(&[&format!("process {}", net.supervisor.pid()), "has it open"])?;
    net.status(context).map(drop)
}

/// Two stacks of a user without rights, joined by a wire that loses frames.
fn wire_without_root(context: &Context) -> Result<()> {
    let dir = scratch()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777))?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    let start = |name: &str, address: &str| {
        let mut command = context.command();
        let nic = format!("wire:{},delay=1ms,loss=0.5%,seed={}", path("wire"), context.seed);
        command.args(["net", "up", "--socket", &path(name), "--nic", &nic, "--address", address]);
        Running::start(command.uid(65_534).gid(65_534))
    };
    let mut stacks = [start("one", "10.80.0.1/24")?, start("two", "10.80.0.2/24")?];
    for stack in &mut stacks {
        stack.wait_stdout("line of an address", LIMIT, |text| text.contains(" on wire ").then_some(()))?;
        let log = stack.stderr();
        for server in ["inet", "nic"] {
            let lacks = format!("{server} is confined only in part, it lacks: a user of its own");
            ensure!(log.matches(&lacks).count() == 1, "{log}");
        }
    }
    // Of the same user: the supervisor opens the memory of an application again.
    let program = example(context, "echo")?;
    let echo = |name: &str, more: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(["--socket", &path(name)]).args(more).uid(65_534).gid(65_534);
        command
    };
    let mut server = Running::start(&mut echo("one", &["--listen", "10.80.0.1:7"]))?;
    server.wait_stdout("address", LIMIT, |text| text.contains("10.80.0.1:7").then_some(()))?;
    let client = ["--connect", "10.80.0.1:7", "--bytes", "5000", "--count", "500"];
    run(&mut echo("two", &client), 3 * LIMIT)?.success()?;
    // One of another user, whose memory it cannot open, is told.
    let other = net::socket::Stack::connect(path("two"))?;
    let error = other.alloc(4096).err().context("memory of root was opened")?;
    demand!(error.to_string().contains("as root, or as the application's user"), "{error}")
}

/// An example of the library, built as the program under test is.
fn example(context: &Context, name: &str) -> Result<PathBuf> {
    let (profile, directory) =
        if context.tier == Tier::Full { ("release", "release") } else { ("dev", "debug") };
    must(&mut cargo(&["build", "--profile", profile, "--package", "hikyaku-net", "--example", name]))?;
    Ok(target_directory()?.join(directory).join("examples").join(name))
}
