//! Installation: the service's unit, manual and completions; in full runs the package, made by `cargo xtask package`, in a
//! Debian root of its own (debootstrap), and the static program in an empty one.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use steps::packages::{self, Purpose};
use steps::{cargo, is_root, target_directory};
use tempfile::TempDir;

use super::FULL_ONLY;
use super::journeys::journeys;
use crate::{Cases, Context, Output, Scene, program, run, scratch};

const LIMIT: Duration = Duration::from_secs(60);
/// Two builds for release with an empty cache, on two cores.
const PACKAGE_LIMIT: Duration = Duration::from_secs(3600);
const DEBOOTSTRAP_LIMIT: Duration = Duration::from_secs(900);
/// Largest stripped program, bytes.
const PROGRAM_BYTES_MAX: u64 = 15 << 20;
/// Environment variable with the directory of an earlier `cargo xtask package`.
const MADE: &str = "HIKYAKU_PACKAGE";
/// What `systemd-analyze security` may give: the service alone, and with devices.
const EXPOSURE_MAX: f64 = 2.0;
const EXPOSURE_WITH_DEVICES_MAX: f64 = 3.0;

/// The unit in a directory of its own, with the program under test and with drop-ins.
fn unit(context: &Context, drop_ins: &[&str]) -> Result<(TempDir, PathBuf)> {
    let dir = scratch()?;
    let source = context.repository.join("packaging/systemd");
    let unit = dir.path().join("hikyaku.service");
    let text = fs::read_to_string(source.join("hikyaku.service"))?;
    let ours = text.replace("/usr/bin/hikyaku", &context.hikyaku.display().to_string());
    ensure!(ours != text, "the unit does not start /usr/bin/hikyaku");
    // Their absence on the machine of the tests is no defect of the unit.
    let lines =
        ours.lines().filter(|line| !line.starts_with("Documentation=") && !line.starts_with("ExecReload="));
    fs::write(&unit, lines.collect::<Vec<_>>().join("\n") + "\n")?;
    let folder = dir.path().join("hikyaku.service.d");
    for drop_in in drop_ins {
        fs::create_dir_all(&folder)?;
        fs::copy(source.join(drop_in), folder.join(drop_in))?;
    }
    Ok((dir, unit))
}

fn analyze(arguments: &[&str], unit: &Path) -> Result<Output> {
    run(program("systemd-analyze")?.args(arguments).arg(unit), LIMIT)
}

/// The number of `→ Overall exposure level for hikyaku.service: 1.5 OK`.
fn exposure(unit: &Path) -> Result<f64> {
    let output = analyze(&["security", "--offline=true", "--no-pager"], unit)?.success()?;
    let line =
        output.stdout.lines().find(|line| line.contains("Overall exposure level")).context("no level")?;
    let (_, level) = line.rsplit_once(": ").context("no number")?;
    Ok(level.split(' ').next().unwrap_or_default().parse()?)
}

fn light_cases(context: &Context, cases: &mut Cases) {
    cases.check("the-unit-is-valid", || {
        for drop_ins in [&[][..], &["devices.conf"]] {
            let (_dir, unit) = unit(context, drop_ins)?;
            let output = analyze(&["verify", "--man=no"], &unit)?.success()?;
            ensure!(!output.text().contains("hikyaku"), "{}", output.text());
        }
        Ok(())
    });
    cases.check("the-unit-is-confined", || {
        for (drop_ins, most) in [(&[][..], EXPOSURE_MAX), (&["devices.conf"], EXPOSURE_WITH_DEVICES_MAX)] {
            let (_dir, unit) = unit(context, drop_ins)?;
            let found = exposure(&unit)?;
            ensure!(found < most, "exposure {found} with {drop_ins:?}, at most {most}");
        }
        Ok(())
    });
    cases.check("every-command-has-a-page-and-so-has-the-configuration", || {
        let dir = scratch()?;
        context.ours(&["man", &dir.path().display().to_string()], LIMIT)?.success()?;
        let help = context.ours(&["--help"], LIMIT)?.success()?.stdout;
        let listed = help.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = listed.filter_map(|line| line.split_whitespace().next());
        let names: Vec<&str> = names.take_while(|name| !name.starts_with('-')).collect();
        ensure!(names.contains(&"serve") && names.contains(&"lab"), "{names:?}");
        for name in names {
            ensure!(dir.path().join(format!("hikyaku-{name}.1")).is_file(), "no page of {name}");
        }
        let page = fs::read_to_string(dir.path().join("hikyaku.toml.5"))?;
        ensure!(page.contains("secret\\-file") && page.contains(".SH FILES"), "{page}");
        Ok(())
    });
    cases.check("a-purge-follows-no-link", || purged(context));
    cases.check("bash-reads-the-completions", || {
        let dir = scratch()?;
        let file = dir.path().join("hikyaku");
        fs::write(&file, context.ours(&["completions", "bash"], LIMIT)?.success()?.stdout)?;
        run(program("bash")?.arg("-n").arg(file), LIMIT)?.success().map(drop)
    });
}

/// Makes a tree in which the state directory is $1: a directory, or a link as user `hikyaku` can put there. Then runs the
/// script $0 as a purge does.
const PURGE: &str = "set -e; for dir in /etc /run /var/lib; do mount -t tmpfs none $dir; done; \
    mkdir -p /etc/copies /etc/hikyaku/secrets /var/lib/hikyaku /var/lib/hikyaku-service/elsewhere; \
    touch /etc/identities.json /etc/copies/a /var/lib/hikyaku/identities.json; cd /var/lib/hikyaku-service; \
    case $1 in directory) mkdir -p hikyaku/copies; ln -s /etc/identities.json hikyaku/identities.json; \
        ln -s /etc/copies hikyaku/copies/b;; \
    child) mkdir hikyaku; ln -s /etc/copies hikyaku/copies;; \
    *) ln -s $1 hikyaku;; esac; \
    cd /; PATH=/usr/bin:/bin sh \"$0\" purge; find /etc /var/lib -mindepth 1 | sort | tr '\\n' ' '";

/// `postrm purge` removes the state, and nothing behind links below the directory of user `hikyaku`.
fn purged(context: &Context) -> Result<()> {
    const FOREIGN: &str = "/etc/copies /etc/copies/a /etc/identities.json ";
    let linked = format!("{FOREIGN}/var/lib/hikyaku-service /var/lib/hikyaku-service/elsewhere ");
    let left = format!("{linked}/var/lib/hikyaku-service/hikyaku ");
    for (state, expected) in [
        ("directory", &linked),
        ("child", &linked),
        ("/etc", &left),
        ("../../../etc", &left),
        ("elsewhere", &left),
        ("/missing", &left),
    ] {
        let mut namespace = program("unshare")?;
        if !is_root() {
            namespace.arg("--map-root-user");
        }
        namespace.args(["--mount", "sh", "-c", PURGE]);
        namespace.arg(context.repository.join("packaging/debian/postrm")).arg(state);
        let output = run(&mut namespace, LIMIT)?.success()?;
        ensure!(output.stdout == *expected, "state {state}, left: {output}");
    }
    Ok(())
}

/// What `cargo xtask package` made.
pub(super) struct Packaged {
    dir: PathBuf,
    pub(super) deb: PathBuf,
    _scratch: TempDir,
}

/// Both programs are built as for a release, unless [`MADE`] names a directory with them.
fn packaged() -> Result<Packaged> {
    packages::ensure(Purpose::Package)?;
    // On disk: a root takes more than a temporary directory in memory should hold.
    let holder = tempfile::Builder::new().prefix("install-").tempdir_in(target_directory()?)?;
    let dir = holder.path().join("package");
    match std::env::var_os(MADE) {
        Some(made) => {
            fs::create_dir(&dir)?;
            for entry in fs::read_dir(made)? {
                let file = entry?.path();
                fs::copy(&file, dir.join(file.file_name().context("a name")?))?;
            }
        }
        None => {
            run(cargo(&["xtask", "package", "--output"]).arg(&dir), PACKAGE_LIMIT)?.success()?;
        }
    }
    let deb = named(&dir, ".deb")?;
    Ok(Packaged { dir, deb, _scratch: holder })
}

/// The file of the directory whose name ends so.
fn named(dir: &Path, end: &str) -> Result<PathBuf> {
    let mut paths = fs::read_dir(dir)?.filter_map(Result::ok).map(|entry| entry.path());
    let found = paths.find(|path| path.to_string_lossy().ends_with(end));
    found.with_context(|| format!("no *{end} in {}", dir.display()))
}

/// A minimal Debian 12; `/proc` is mounted while it lives.
pub(super) struct Root {
    dir: TempDir,
}

impl Root {
    pub(super) fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("install-root-").tempdir_in(target_directory()?)?;
        let mut command = program("debootstrap")?;
        command.args([
            "--variant=minbase",
            "--include=adduser,init-system-helpers,procps,sudo,systemd",
            "bookworm",
        ]);
        run(command.arg(dir.path()), DEBOOTSTRAP_LIMIT)?.success()?;
        let root = Self { dir };
        run(Command::new("mount").args(["-t", "proc", "proc"]).arg(root.path("proc")), LIMIT)?.success()?;
        Ok(root)
    }

    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.dir.path().join(inside)
    }

    pub(super) fn sh(&self, script: &str) -> Result<Output> {
        let mut command = Command::new("chroot");
        command.arg(self.dir.path()).args(["/bin/sh", "-ec", script]);
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut command, LIMIT)
    }

    fn install(&self, deb: &Path) -> Result<()> {
        fs::copy(deb, self.path("tmp/hikyaku.deb"))?;
        self.sh("dpkg -i /tmp/hikyaku.deb")?.success().map(drop)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(self.path("proc")), LIMIT);
    }
}

const CONFIGURATION: &str = "[server]\nlisten = [\"127.0.0.1:0\"]\n[[target]]\niqn = \"iqn.2026-11.example:installed\"\n\
    [[target.lun]]\nlun = 0\nendpoint = \"mem:1M\"\n[[target.acl]]\nchap-user = \"u\"\nsecret-file = \"secrets/u\"\n";

/// A server as the unit starts it, until it listens; it leaves its state.
const SERVE: &str = "rm -f /tmp/out; XDG_CONFIG_HOME=/etc XDG_STATE_HOME=/var/lib/hikyaku-service XDG_RUNTIME_DIR=/run \
    chroot --userspec=hikyaku:hikyaku / hikyaku serve --config /etc/hikyaku/hikyaku.toml > /tmp/out 2> /tmp/err & \
    for i in $(seq 100); do if grep -q iscsi: /tmp/out; then break; fi; sleep 0.1; done; kill $!; wait $!; cat /tmp/out";

fn installed(packaged: &Packaged) -> Result<()> {
    let root = Root::new()?;
    root.install(&packaged.deb)?;
    root.sh("hikyaku --version; test -f /usr/share/man/man5/hikyaku.toml.5.gz; test -L /etc/systemd/system/multi-user.target.wants/hikyaku.service")?
        .success()?;
    ensure!(!root.path("etc/hikyaku/hikyaku.toml").exists(), "a package that brings a target");
    let secrets = fs::metadata(root.path("etc/hikyaku/secrets"))?;
    ensure!(secrets.permissions().mode() & 0o777 == 0o700 && secrets.uid() != 0, "others can reach secrets");
    // The administrator's files, and what a server keeps.
    fs::write(root.path("etc/hikyaku/hikyaku.toml"), CONFIGURATION)?;
    root.sh(
        "echo 'one long secret' > /tmp/u; install -o hikyaku -g hikyaku -m 600 /tmp/u /etc/hikyaku/secrets/u",
    )?
    .success()?;
    root.sh("chroot --userspec=hikyaku:hikyaku / hikyaku check --deep /etc/hikyaku/hikyaku.toml")?
        .success()?;
    let served = root.sh(SERVE)?.success()?;
    ensure!(served.stdout.contains("/iqn.2026-11.example:installed/0"), "{}", served.text());
    let state = fs::read(root.path("var/lib/hikyaku-service/hikyaku/identities.json"))?;

    let later = later(&root)?;
    root.install(&later)?;
    let version = root.sh("dpkg-query -f '${Version}' -W hikyaku")?.success()?.stdout;
    ensure!(version.ends_with("+later"), "{version}");
    ensure!(
        fs::read(root.path("var/lib/hikyaku-service/hikyaku/identities.json"))? == state,
        "an upgrade changed the state"
    );
    ensure!(
        fs::read_to_string(root.path("etc/hikyaku/hikyaku.toml"))? == CONFIGURATION,
        "and the configuration"
    );

    root.sh("dpkg -r hikyaku; ! test -e /usr/bin/hikyaku; test -f /var/lib/hikyaku-service/hikyaku/identities.json; test -f /etc/hikyaku/hikyaku.toml")?
        .success()?;
    root.sh("dpkg -P hikyaku; ! test -e /var/lib/hikyaku-service; test -f /etc/hikyaku/hikyaku.toml; test -f /etc/hikyaku/secrets/u")?
        .success()?;
    root.install(&packaged.deb)?;
    root.sh("ln -s /etc /var/lib/hikyaku-service/hikyaku; touch /etc/identities.json")?.success()?;
    root.sh("rm -r /etc/hikyaku/*; dpkg -P hikyaku; rm /etc/identities.json; rm -r /var/lib/hikyaku-service; ! test -e /etc/hikyaku; getent passwd hikyaku")?
        .success()?;
    let left = root.sh("find / -xdev -path /proc -prune -o -name '*hikyaku*' -print")?.success()?.stdout;
    let left: Vec<&str> = left.lines().filter(|path| !path.starts_with("/tmp/")).collect();
    ensure!(left.is_empty(), "purged, and left are {left:?}");
    Ok(())
}

/// Runs once the service is there, and powers the machine off.
const PROBE: &str = "[Unit]\nAfter=hikyaku.service\n[Service]\nType=oneshot\nStandardOutput=append:/out\nStandardError=append:/out\n\
    Environment=XDG_STATE_HOME=/tmp\nExecStart=/bin/sh /probe.sh\nExecStopPost=/bin/systemctl poweroff\n";

const PROBE_SCRIPT: &str = "set -e\nsystemctl show hikyaku -p Type,ActiveState\nsystemctl reload hikyaku\n\
    hikyaku copy pattern:1M iscsi://127.0.0.1/iqn.2026-11.example:service/0 --verify --force\nsystemctl restart hikyaku\n\
    hikyaku compare pattern:1M iscsi://127.0.0.1/iqn.2026-11.example:service/0\nhikyaku status\njournalctl -b -u hikyaku -o cat\n\
    echo PROBED\n";

/// systemd starts, watches, reloads and restarts the unit as installed, with all its restrictions, in a container.
fn under_systemd(packaged: &Packaged) -> Result<()> {
    const CALLS: &str = "landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp io_uring_setup io_uring_enter \
        io_uring_register";
    let root = Root::new()?;
    root.install(&packaged.deb)?;
    let config = "[[target]]\niqn = \"iqn.2026-11.example:service\"\n[[target.lun]]\nlun = 0\nendpoint = \"/srv/hikyaku/a.img\"\n";
    fs::write(root.path("etc/hikyaku/hikyaku.toml"), config)?;
    fs::write(root.path("etc/systemd/system/probe.service"), PROBE)?;
    fs::write(root.path("probe.sh"), PROBE_SCRIPT)?;
    root.sh(
        "install -d -o hikyaku /srv/hikyaku; truncate -s 1M /srv/hikyaku/a.img; chown hikyaku /srv/hikyaku/a.img; \
         ln -s /etc/systemd/system/probe.service /etc/systemd/system/multi-user.target.wants/",
    )?
    .success()?;
    let mut container = program("systemd-nspawn")?;
    container.args(["--quiet", "--register=no", "--keep-unit", "--private-network", "--boot"]);
    container.arg(format!("--system-call-filter={CALLS}")).arg("-D").arg(root.path(""));
    run(&mut container, LIMIT)?;
    let said = fs::read_to_string(root.path("out")).unwrap_or_default();
    for words in ["Type=notify", "ActiveState=active", "equal: 1 MiB", "Reloaded hikyaku.service", "PROBED"] {
        ensure!(said.contains(words), "no '{words}' in:\n{said}");
    }
    ensure!(!said.contains("confined only in part"), "{said}");
    Ok(())
}

/// The installed package with a later version.
fn later(root: &Root) -> Result<PathBuf> {
    root.sh(
        "rm -rf /tmp/later; dpkg-deb -R /tmp/hikyaku.deb /tmp/later; sed -i 's/^Version: .*/&+later/' /tmp/later/DEBIAN/control; \
         dpkg-deb --root-owner-group -Znone -b /tmp/later /tmp/later.deb",
    )?
    .success()?;
    Ok(root.path("tmp/later.deb"))
}

/// The same program gives the same package in another directory at another time.
fn repeated(packaged: &Packaged) -> Result<()> {
    let again = packaged.dir.with_file_name("again");
    let installed = packaged.dir.with_file_name("installed");
    run(program("dpkg-deb")?.arg("-x").arg(&packaged.deb).arg(&installed), LIMIT)?.success()?;
    let mut command = cargo(&["xtask", "package", "--hikyaku"]);
    command.arg(installed.join("usr/bin/hikyaku")).arg("--output").arg(&again);
    run(&mut command, PACKAGE_LIMIT)?.success()?;
    let [before, after] = [&packaged.deb, &named(&again, ".deb")?].map(fs::read);
    ensure!(
        before? == after?,
        "{} and another that was made from its program differ",
        packaged.deb.display()
    );
    Ok(())
}

/// Only the program, as in an empty container.
fn alone(packaged: &Packaged) -> Result<()> {
    let root = scratch()?;
    let inside = root.path().join("hikyaku");
    fs::copy(named(&packaged.dir, "-static")?, &inside)?;
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o755))?;
    let ours = |arguments: &[&str]| {
        let mut command = Command::new("chroot");
        run(
            command.arg(root.path()).arg("/hikyaku").args(arguments).env("HOME", "/").env("TMPDIR", "/"),
            LIMIT,
        )
    };
    let version = ours(&["--version"])?.success()?.stdout;
    ensure!(version.contains("static") && version.contains("DNS only"), "{version}");
    ours(&["compare", "mem:1M", "null:1M"])?.success()?;
    // A target, a session over loopback, and random names and keys.
    ours(&["key", "new", "/key"])?.success()?;
    ours(&["demo", "--json"])?.success().map(drop)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    light_cases(context, cases);
    let made = Scene::new(packaged);
    cases.check_some(FULL_ONLY, "lintian-finds-nothing", || {
        let mut command = program("lintian")?;
        command.args(["--allow-root", "--tag-display-limit", "0", "--fail-on", "error,warning"]);
        let output = run(command.arg(&made.get()?.deb), LIMIT)?.success()?;
        ensure!(output.stdout.trim().is_empty(), "{}", output.stdout);
        Ok(())
    });
    cases.check_some(FULL_ONLY, "installed-upgraded-removed-and-purged", || installed(made.get()?));
    cases.check_some(FULL_ONLY, "systemd-starts-reloads-and-restarts-the-service", || {
        under_systemd(made.get()?)
    });
    let mut seconds = None;
    cases.check_some(FULL_ONLY, "journeys", || {
        seconds = Some(journeys(context, made.get()?)?);
        Ok(())
    });
    if let Some(seconds) = seconds {
        cases.fact("journeys", seconds);
    }
    cases.check_some(FULL_ONLY, "the-same-program-gives-the-same-package", || repeated(made.get()?));
    cases.check_some(FULL_ONLY, "the-program-is-small", || {
        let packaged = made.get()?;
        let installed = packaged.dir.with_file_name("measured");
        run(program("dpkg-deb")?.arg("-x").arg(&packaged.deb).arg(&installed), LIMIT)?.success()?;
        let bytes = fs::metadata(installed.join("usr/bin/hikyaku"))?.len();
        ensure!(bytes <= PROGRAM_BYTES_MAX, "{bytes} bytes, at most {PROGRAM_BYTES_MAX}");
        Ok(())
    });
    cases.check_some(FULL_ONLY, "the-static-program-runs-in-an-empty-root", || alone(made.get()?));
    Ok(())
}
