//! What users get wrong, and what is said of it.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use anyhow::{Result, ensure};
use lab::wan::Namespace;

use super::place::{LIMIT, enter};
use crate::{Cases, Context, Output, Running, run, scratch};

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("usage", || usage(context));
    cases.check("paths-that-are-no-sockets", || paths(context));
    cases.check("socket-fails-before-the-wire-waits", || fails_at_once(context));
    cases.check("too-few-open-files", || too_few_files(context));
    cases.check("no-such-interface", || no_such_interface(context));
    cases.check("interface-deleted", || interface_deleted(context));
}

fn up(context: &Context, arguments: &[&str]) -> Result<Output> {
    context.ours(&[&["net", "up"], arguments].concat(), LIMIT)
}

fn usage(context: &Context) -> Result<()> {
    for (nic, address, more, words) in [
        ("tap:t", "10.0.0.2/24", ["--gateway", "10.0.1.1"], "is in no network of --address 10.0.0.2/24"),
        ("tap:t", "10.0.0.2/24", ["--gateway", "10.0.0.2"], "an address of the stack itself"),
        ("tap:t", "10.0.0.2/24", ["--gateway", "fd00::1"], "no IPv6 address"),
        ("tap:t", "10.0.0.2/24", ["--address", "10.0.0.2/16"], "10.0.0.2 is given twice"),
        ("tap:t", "10.0.0.0/24", ["--clients", "1"], "the address of the network"),
        ("tap:t", "10.0.0.255/24", ["--clients", "1"], "the broadcast address"),
        ("tap:t", "10.0.0.2/24", ["--mac", "01:00:5e:00:00:01"], "is a multicast address"),
        ("tap:my tap", "10.0.0.2/24", ["--clients", "1"], "without spaces"),
        ("packet:lo", "10.0.0.2/24", ["--clients", "1"], "loopback"),
        ("wire:w,loss=0.5", "10.0.0.2/24", ["--clients", "1"], "loss=0.5: write 0.5% (or 50%)"),
    ] {
        let arguments = ["--socket", "/no/such", "--nic", nic, "--address", address];
        up(context, &[&arguments, &more[..]].concat())?.expect(2)?.says(words)?;
    }
    Ok(())
}

/// It is refused at the start, and not when the last application or the next driver comes.
fn too_few_files(context: &Context) -> Result<()> {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 512 && exec \"$@\"", "sh"]).arg(context.command().get_program());
    command.args(["net", "up", "--socket", "/no/such", "--nic", "tap:t", "--address", "10.0.0.2/24"]);
    command.args(["--clients", "64"]);
    let words = ["64 application(s) need up to ", "open files, and this process may have 512"];
    run(&mut command, LIMIT)?.expect(1)?.says_all(&words).map(drop)
}

/// Files that may be data stay as they are.
fn paths(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(path("file"), "data")?;
    std::fs::create_dir(path("directory"))?;
    symlink("file", path("link"))?;
    let look = |name: &str| Path::new(&path(name)).symlink_metadata().map(|file| (file.ino(), file.mtime()));
    for (name, words) in [
        ("file", "is a file, not a socket"),
        ("directory", "is a directory, not a socket"),
        ("link", "is a symbolic link, not a socket"),
    ] {
        let before = look(name)?;
        let (nic, socket) = (format!("wire:{}", path(name)), path(name));
        for [nic, socket] in [[nic.as_str(), &path("unused")], ["tap:t", &socket]] {
            let arguments = ["--socket", socket, "--nic", nic, "--address", "10.0.0.2/24"];
            up(context, &arguments)?.expect(6)?.says_all(&[&path(name), words])?;
        }
        ensure!(look(name)? == before, "{name} is another one");
    }
    ensure!(std::fs::read(path("file"))? == b"data" && !Path::new(&path("unused")).exists(), "files changed");
    let long = path(&"x".repeat(108));
    for (socket, code, words) in
        [(&long, 2, "at most 107"), (&path("none/socket"), 1, &*format!("mkdir -p {}", path("none")))]
    {
        let arguments = ["--socket", socket, "--nic", "tap:t", "--address", "10.0.0.2/24"];
        up(context, &arguments)?.expect(code)?.says(words)?;
    }
    let arguments = ["net", "status", "--socket", &path("file")];
    context.ours(&arguments, LIMIT)?.expect(1)?.says("it is not a socket").map(drop)
}

fn fails_at_once(context: &Context) -> Result<()> {
    let dir = scratch()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let (wire, socket) = (format!("wire:/tmp/net-{}", std::process::id()), dir.path().join("socket"));
    let mut command = context.command();
    command.args(["net", "up", "--nic", &wire, "--address", "10.0.0.2/24", "--socket"]).arg(socket);
    let output = run(command.uid(65_534).gid(65_534), LIMIT)?.expect(1)?;
    ensure!(!output.stderr.contains("waiting"), "{output}");
    output.says("this user may write").map(drop)
}

fn no_such_interface(context: &Context) -> Result<()> {
    let dir = scratch()?;
    let socket = dir.path().join("socket").display().to_string();
    let arguments = ["--socket", &socket, "--nic", "packet:nosuch0", "--address", "10.0.0.2/24"];
    let output = up(context, &arguments)?.expect(1)?;
    ensure!(output.stderr.matches("nosuch0").count() == 1, "{output}");
    output.says("nosuch0: no such interface").map(drop)
}

/// Without its interface `net up` ends at once, with the one reason. A packet socket does not report it.
fn interface_deleted(context: &Context) -> Result<()> {
    let namespace = Namespace::new("deleted")?;
    namespace.ip("link add veth0 type veth peer name veth1")?;
    for (nic, interface) in [("tap:tap0", "tap0"), ("packet:veth0", "veth0")] {
        let dir = scratch()?;
        let socket = dir.path().join("socket");
        let mut command = context.command();
        command.args(["net", "up", "--nic", nic, "--address", "10.0.0.2/24", "--socket"]).arg(&socket);
        let mut supervisor = Running::start(enter(&namespace, &mut command))?;
        supervisor.wait_stdout("line of an address", LIMIT, |text| text.contains(interface).then_some(()))?;
        namespace.ip(&format!("link set {interface} down"))?;
        let status = |more: &[&str]| {
            let socket = socket.display().to_string();
            context.ours(&[&["net", "status", "--socket", &socket], more].concat(), LIMIT)?.success()
        };
        let json = status(&["--json"])?.json()?;
        ensure!(json["state"] == "interface_down" && json["is_up"] == false, "{json}");
        let shown = status(&[])?;
        ensure!(shown.stdout.contains("down: the interface is set down"), "{shown}");
        namespace.ip(&format!("link del {interface}"))?;
        let output = supervisor.finish(LIMIT)?.expect(1)?;
        let log = &output.stderr;
        ensure!(
            log.contains(&format!("{interface}: the interface is gone")) && !log.contains("driver"),
            "{output}"
        );
        ensure!(!socket.exists(), "the socket is still there");
    }
    Ok(())
}
