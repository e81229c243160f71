//! First steps of a user in a fresh Debian root under systemd, typed from README and INSTALL as they are printed: from the
//! package to a verified copy, to a service with three targets, and a LUN more while a copy runs. The seconds are those
//! of the machine, without reading and thinking.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value};

use super::install::{Packaged, Root};
use crate::{Context, program, run};

const LIMIT: Duration = Duration::from_secs(120);
/// Package file name that INSTALL prints.
const PACKAGE: &str = "hikyaku_0.1.0-1_amd64.deb";
/// The journeys in their order, and the longest time of each, seconds.
const BARS: [(&str, f64); 3] = [
    ("package-to-verified-copy", 180.0),
    ("service-with-three-targets", 300.0),
    ("lun-added-under-load", 30.0),
];

const UNIT: &str = "[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\nEnvironment=HOME=/root\nStandardOutput=append:/out\n\
    StandardError=append:/out\nExecStart=/bin/bash /journeys.sh\nExecStopPost=/bin/systemctl poweroff\n";

/// `@DOC:BEGINNING@` stands for the line of README or INSTALL that begins so. Both hosts of README are this one: the
/// initiator's side has a directory of its own, and `/etc/hosts` has the name `host`.
const SCRIPT: &str = r#"
set -euo pipefail
trap 'echo "line $LINENO: $BASH_COMMAND"' ERR
begin() { began=$(date +%s%N); }
until_true() { for _ in $(seq 200); do if $*; then return; fi; sleep 0.05; done; echo "in vain: $*"; return 1; }
disks() { hikyaku status --interval 0s | grep disks > /dev/null; }
# A session with an account: the columns of a pipe are separated by tabs.
logged_in() { hikyaku status --interval 0s | grep $'\tbackup\tchap\t' > /dev/null; }
ended() { echo "JOURNEY $1 $(( ($(date +%s%N) - began) / 1000000 )) ms"; }
echo '127.0.0.1 host' >> /etc/hosts
cd /root
mkdir target initiator
head -c 64M /dev/urandom > initiator/disk.img
truncate -s 64M target/disk.img

begin
@INSTALL:apt install ./hikyaku_0@
(cd target; @README:hikyaku key new@)
export XDG_CONFIG_HOME=/root/initiator
KEY=$(cd initiator; @README:hikyaku key new@)
unset XDG_CONFIG_HOME
cd target
@README:printf '[[peer]]@
@README:hikyaku serve disk.img --iqn@ &
server=$!
until_true disks
cd ../initiator
# A terminal: the key is confirmed by its reader.
echo yes | XDG_CONFIG_HOME=/root/initiator script -qec '@README:hikyaku key trust@' /dev/null
XDG_CONFIG_HOME=/root/initiator @README:hikyaku copy disk.img iscsi://host/iqn.2026-11.example:disks/0 --verify@
ended package-to-verified-copy
cmp disk.img ../target/disk.img
kill $server
wait $server
cd /root
rm -r target initiator

begin
@INSTALL:hikyaku config example | sudo tee@
@INSTALL:sudo install -d -o hikyaku@
for IMAGE in vm-system.img vm-data.img archive.img; do
    SIZE=64M
    @INSTALL:sudo -u hikyaku truncate@
done
@INSTALL:sudo -u hikyaku hikyaku key new@
@INSTALL:sudo cp /usr/share/doc/hikyaku/examples/peers.toml@
for NAME in kvm1 storage backup; do
    SECRET=/root/$NAME
    (umask 077; head -c 12 /dev/urandom | base64 > $SECRET)
    @INSTALL:sudo install -o hikyaku -g hikyaku -m 600 SECRET@
done
@INSTALL:sudo -u hikyaku hikyaku check --deep@
@INSTALL:sudo systemctl start hikyaku@
scratch=iscsi://host/iqn.2026-11.example.com:scratch
account=chap-user=backup,chap-secret-file=/root/backup
hikyaku copy pattern:400M $scratch/0,$account --verify --force --rate 80MB/s &
load=$!
until_true logged_in
hikyaku status | tee /status
ended service-with-three-targets
for target in vm archive scratch; do grep -q "iqn.2026-11.example.com:$target" /status; done

begin
IMAGE=more.img SIZE=64M
@INSTALL:sudo -u hikyaku truncate@
kill -0 $load
hikyaku ctl lun add /srv/hikyaku/more.img --lun 1 --target iqn.2026-11.example.com:scratch
hikyaku copy pattern:32M $scratch/1,$account --verify --force
kill -0 $load
ended lun-added-under-load
wait $load
hikyaku status
journalctl -b -u hikyaku -o cat
echo ARRIVED
"#;

/// Puts printed lines in place of `@DOC:BEGINNING@`. Words in capitals become variables of the script.
fn written(script: &str, readme: &str, install: &str) -> Result<String> {
    let mut done = String::new();
    for (index, part) in script.split('@').enumerate() {
        if index % 2 == 0 {
            done.push_str(part);
            continue;
        }
        let (document, beginning) = part.split_once(':').context("@DOC:BEGINNING@")?;
        let text = if document == "README" { readme } else { install };
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("    ").filter(|line| line.starts_with(beginning)));
        let line = line.with_context(|| format!("{document} has no line '{beginning}'"))?;
        // A comment would hide what follows in the script.
        let mut line = line.split("   #").next().unwrap_or(line).trim_end().to_owned();
        for name in ["KEY", "SIZE", "IMAGE", "SECRET", "NAME"] {
            let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            if let Some(at) = line.find(name)
                && !is_word(line[..at].chars().last())
                && !is_word(line[at + name.len()..].chars().next())
            {
                line.insert(at, '$');
            }
        }
        done.push_str(&line);
    }
    Ok(done)
}

/// Runs all journeys; returns the seconds of each by name.
pub(super) fn journeys(context: &Context, packaged: &Packaged) -> Result<Map<String, Value>> {
    let read = |name: &str| fs::read_to_string(context.repository.join(name));
    let script = written(SCRIPT, &read("README.md")?, &read("docs/INSTALL.md")?)?;
    let root = Root::new()?;
    fs::copy(&packaged.deb, root.path("root").join(PACKAGE))?;
    fs::write(root.path("journeys.sh"), script)?;
    fs::write(root.path("etc/systemd/system/journeys.service"), UNIT)?;
    root.sh("ln -s /etc/systemd/system/journeys.service /etc/systemd/system/multi-user.target.wants/")?
        .success()?;
    let mut container = program("systemd-nspawn")?;
    container.args(["--quiet", "--register=no", "--keep-unit", "--private-network", "--boot"]);
    container.arg("--system-call-filter=io_uring_setup io_uring_enter io_uring_register");
    run(container.arg("-D").arg(root.path("")), LIMIT)?;
    let log = fs::read_to_string(root.path("out")).unwrap_or_default();
    ensure!(log.contains("\nARRIVED"), "{}", crate::process::tail(&log, 4000));
    let mut found = Map::new();
    for (name, bar) in BARS {
        let took = log
            .lines()
            .find_map(|line| line.strip_prefix("JOURNEY ")?.strip_prefix(name)?.strip_suffix(" ms"));
        let seconds = took.with_context(|| format!("no time of {name}"))?.trim().parse::<f64>()? / 1000.0;
        ensure!(seconds <= bar, "{name} took {seconds} s, at most {bar}");
        found.insert(format!("{name}_seconds"), seconds.into());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_documents_replace_their_beginnings_and_names_become_variables() {
        let install = "text\n\n    sudo install SECRET /etc/NAME      # each SECRET\n";
        let found = written("a\n@INSTALL:sudo install@; b", "", install).unwrap();
        assert_eq!(found, "a\nsudo install $SECRET /etc/$NAME; b");
        let error = written("@README:sudo@", "sudo\n", install).unwrap_err().to_string();
        assert!(error.contains("README has no line 'sudo'"), "{error}");
    }

    /// The full tier types them; this finds a removed line in every run of the unit tests.
    #[test]
    fn readme_and_install_have_every_line_of_the_journeys() {
        let read = |name: &str| fs::read_to_string(steps::repository().join(name)).unwrap();
        let script = written(SCRIPT, &read("README.md"), &read("docs/INSTALL.md")).unwrap();
        for words in [
            "\"%s\"\\n' $KEY >>",
            "truncate -s $SIZE /srv/hikyaku/$IMAGE",
            "600 $SECRET /etc/hikyaku/secrets/$NAME",
        ] {
            assert!(script.contains(words), "no '{words}' in\n{script}");
        }
    }
}
