//! Foreign file systems and databases on a LUN of the target, under the stock Linux initiator, while connections are
//! cut, the target is killed, or both machines lose power (`tests/kernel-lab/survive.sh`, docs/internals/foreign.md).
//!
//! The guest's console is the reference: it prints a number when fsync or COMMIT has returned, and from then on the
//! work with that number must be durable.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;
use tempfile::TempDir;

use super::kernel::{build_guest, build_postgres, guest, script};
use crate::cutter::Cutter;
use crate::files::empty_file;
use crate::process::tail;
use crate::{Cases, Context, Disk, Running, Scene, Target, program, run, scratch, wait_until};

/// mkfs.xfs needs 300 MB.
const BYTES: u64 = 400 << 20;
/// Boot, login and creation of PostgreSQL's database: ten times the duration on an idle machine, because a loaded one
/// may take half of that.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Time limit of the work under faults and the check after it, in addition to the requested time.
const WORK_LIMIT: Duration = Duration::from_secs(240);
/// Time for which connections are still cut after the work.
const CHECK_CUTS: Duration = Duration::from_secs(10);
const TOOL_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Cuts,
    /// The target is killed by SIGKILL and restarted.
    Kills,
    /// The target's machine loses its volatile cache, the initiator's machine everything.
    Power,
}

const FAULTS: &[(&str, Fault)] = &[("cuts", Fault::Cuts), ("kills", Fault::Kills), ("power", Fault::Power)];

#[derive(Debug)]
struct Work {
    name: &'static str,
    file_system: &'static str,
    /// Programs that make and that check the file system.
    make: (&'static str, &'static [&'static str]),
    check: (&'static str, &'static [&'static str]),
    /// Suffix of the crash layer's option, with the unit of torn writes: recovery of xfs considers a block of metadata
    /// new if its first sector is.
    tears: &'static str,
    postgres: bool,
}

const EXT4: Work = Work {
    name: "ext4",
    file_system: "ext4",
    make: ("mkfs.ext4", &["-q", "-F"]),
    check: ("e2fsck", &["-f", "-n"]),
    tears: "",
    postgres: false,
};
const WORKS: &[Work] = &[
    EXT4,
    Work {
        name: "xfs",
        file_system: "xfs",
        make: ("mkfs.xfs", &["-q", "-f"]),
        check: ("xfs_repair", &["-n", "-f"]),
        tears: ":unit=4096",
        ..EXT4
    },
    Work { name: "postgres", postgres: true, ..EXT4 },
];

impl Work {
    fn reports(&self, tag: &str) -> bool {
        (tag == "POSTGRES") == self.postgres
    }
}

const TAGS: &[&str] = &["FILES", "CURRENT", "WAL", "ROLLBACK", "POSTGRES"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reported([u64; TAGS.len()]);

impl Reported {
    fn add(&mut self, console: &str) {
        // An unfinished line of a guest that dies is ignored.
        let whole = &console[..console.rfind('\n').map_or(0, |end| end + 1)];
        for (tag, last) in TAGS.iter().zip(&mut self.0) {
            let numbers = whole.lines().filter_map(|line| line.trim().strip_prefix(tag)?.trim().parse().ok());
            *last = numbers.fold(*last, u64::max);
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    faults: usize,
    boots: usize,
    logins: usize,
    /// Commands that the guest's kernel repeated, as printed at a clean end.
    repeated: u64,
    reported: Reported,
}

struct Trial<'a> {
    context: &'a Context,
    name: String,
    work: &'static Work,
    image: &'a Path,
    target: Target,
    cutter: Cutter,
    outcome: Outcome,
}

impl Trial<'_> {
    fn boot(&mut self, duration: Duration) -> Result<Running> {
        let mut command = guest(self.context);
        command.arg("run").args(self.work.postgres.then_some("--postgres"));
        command.arg(script(self.context, "survive.sh"));
        command.arg(format!("PORT={}", self.cutter.port())).arg(format!("IQN={}", self.target.url(0).iqn));
        command.arg(format!("FS={}", self.work.file_system)).arg(format!("DURATION={}", duration.as_secs()));
        command.arg(if self.work.postgres { "WITH=postgres" } else { "WITH=" });
        for (tag, last) in TAGS.iter().zip(self.outcome.reported.0) {
            command.arg(format!("{tag}={last}"));
        }
        self.outcome.boots += 1;
        Running::start(&mut command)
    }

    fn wait(
        &mut self,
        guest: &mut Running,
        line: &str,
        limit: Duration,
        mut meanwhile: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let until = Instant::now() + limit;
        loop {
            let text = guest.stdout_text().replace('\r', "");
            let ended = guest.ended();
            if text.contains("FAILED") || ended {
                // The reason may not have been printed yet.
                std::thread::sleep(Duration::from_millis(500));
            }
            let text = if ended { guest.stdout_text() } else { text };
            if text.lines().any(|found| found.trim() == line) {
                return Ok(());
            }
            let state = match (text.contains("FAILED"), ended, Instant::now() > until) {
                (true, ..) => "the guest failed",
                (_, true, _) => "the guest has ended",
                (_, _, true) => "the guest is late",
                _ => {
                    meanwhile(self)?;
                    std::thread::sleep(POLL_INTERVAL);
                    continue;
                }
            };
            let (text, log) = (tail(&text, 3000), self.target.log());
            bail!("{state}, no {line} within {limit:?}\n{text}\n--- target\n{log}");
        }
    }

    fn restart(&mut self, disk: Disk) -> Result<()> {
        self.outcome.logins += self.target.logins();
        self.target.kill_and_restart(self.context, &[disk])
    }

    fn alive(&mut self) -> Result<()> {
        self.target.running.alive()
    }

    /// Waits for the clean end: everything checked after a remount, then unmounted.
    fn finish(&mut self, mut guest: Running, limit: Duration) -> Result<String> {
        self.wait(&mut guest, "UNMOUNTED", limit, Self::alive)?;
        self.cutter.disarm();
        let output = guest.finish(WORK_LIMIT)?;
        self.outcome.reported.add(&output.stdout);
        self.outcome.logins += self.target.logins();
        ensure!(output.stdout.contains("GUEST-RC 0"), "{}", tail(&output.stdout, 2000));
        let text = output.stdout.replace('\r', "");
        let repeated = text.lines().find_map(|line| line.strip_prefix("REPEATED ")).context("no REPEATED")?;
        self.outcome.repeated = repeated.trim().parse()?;
        Ok(text)
    }

    fn cuts(&mut self, work: Duration) -> Result<String> {
        let mut guest = self.boot(work)?;
        self.wait(&mut guest, "WORKING", BOOT_LIMIT, Self::alive)?;
        self.cutter.arm(self.context.rng(&format!("foreign/{}/cuts", self.name)));
        self.wait(&mut guest, "WORK-DONE", work + WORK_LIMIT, Self::alive)?;
        // The remount and the check begin over cut connections too. Cuts then stop, because each costs the initiator
        // seconds and the whole would take too long.
        let until = Instant::now() + CHECK_CUTS;
        self.wait(&mut guest, "UNMOUNTED", WORK_LIMIT, |trial| {
            if Instant::now() > until {
                trial.cutter.disarm();
            }
            trial.alive()
        })?;
        let text = self.finish(guest, WORK_LIMIT)?;
        self.outcome.faults = self.cutter.cuts();
        Ok(text)
    }

    fn kills(&mut self, work: Duration) -> Result<String> {
        let mut rng = self.context.rng(&format!("foreign/{}/kills", self.name));
        let mut guest = self.boot(work)?;
        self.wait(&mut guest, "WORKING", BOOT_LIMIT, Self::alive)?;
        let mut early = false;
        let mut due = Some(Instant::now());
        self.wait(&mut guest, "WORK-DONE", work + WORK_LIMIT, |trial| {
            trial.alive()?;
            let at = match due {
                Some(at) => at,
                None if trial.target.logins() == 0 => return Ok(()),
                None => *due.insert(Instant::now() + Duration::from_millis(rng.random_range(500..4000))),
            };
            if Instant::now() < at {
                return Ok(());
            }
            trial.outcome.faults += 1;
            trial.restart(Disk::file(trial.image))?;
            // The initiator needs two seconds and more to reconnect. Every second kill may come before that, or during
            // login; the others wait for the login and leave some seconds for work.
            early = !early;
            due = early.then(|| Instant::now() + Duration::from_millis(rng.random_range(0..3500)));
            Ok(())
        })?;
        self.finish(guest, WORK_LIMIT)
    }

    /// Each round ends during work, or during the recovery from the round before.
    fn power(&mut self, rounds: usize) -> Result<String> {
        let mut rng = self.context.rng(&format!("foreign/{}/power", self.name));
        for _ in 0..rounds {
            let magnitude = rng.random_range(4..=11u32);
            let writes = rng.random_range(1..=1u64 << magnitude);
            let seed = rng.random_range(0..1u64 << 32);
            let crash = format!("crash=after={writes}:seed={seed}{}", self.work.tears);
            self.restart(Disk::file(self.image).option(crash))?;
            let mut guest = self.boot(BOOT_LIMIT)?;
            let cut = wait_until(BOOT_LIMIT + WORK_LIMIT, || {
                let text = guest.stdout_text();
                ensure!(!text.contains("FAILED") && !guest.ended(), "{}", tail(&text, 3000));
                Ok(self.target.running.ended())
            });
            cut.with_context(|| {
                format!("no power cut behind {writes} writes\n{}", tail(&guest.stdout_text(), 1000))
            })?;
            guest.kill();
            self.outcome.reported.add(&guest.finish(TOOL_LIMIT)?.stdout);
            self.outcome.faults += 1;
        }
        self.restart(Disk::file(self.image))?;
        let guest = self.boot(Duration::from_secs(3))?;
        self.finish(guest, BOOT_LIMIT + WORK_LIMIT)
    }
}

/// Runs a tool of a file system on the image.
fn tool(name: &str, arguments: &[&str], image: &Path) -> Result<()> {
    run(program(name)?.args(arguments).arg(image), TOOL_LIMIT)?.success().map(drop)
}

struct Survived {
    outcome: Outcome,
    text: String,
    image: PathBuf,
    _dir: TempDir,
}

impl Survived {
    fn new(context: &Context, name: &str, work: &'static Work, fault: Fault) -> Result<Self> {
        build_guest(context)?;
        if work.postgres {
            build_postgres(context)?;
        }
        let dir = scratch()?;
        let image = empty_file(dir.path().join("disk.img"), BYTES)?;
        let (make, arguments) = work.make;
        tool(make, arguments, &image)?;
        let target = Target::serve(context, &[Disk::file(&image)], None, &[])?;
        let cutter = Cutter::start(target.url(0).port()?)?;
        let outcome = Outcome::default();
        let mut trial =
            Trial { context, name: name.to_owned(), work, image: &image, target, cutter, outcome };
        let duration = Duration::from_secs(context.amount(30, 90) as u64);
        let text = match fault {
            Fault::Cuts => trial.cuts(duration),
            Fault::Kills => trial.kills(duration),
            Fault::Power => trial.power(context.amount(2, 8)),
        }?;
        let outcome = trial.outcome;
        drop(trial);
        let numbers = TAGS.iter().zip(outcome.reported.0).filter(|(tag, _)| work.reports(tag));
        let numbers: Vec<_> = numbers.map(|(tag, n)| format!("{tag} {n}")).collect();
        let Outcome { faults, boots, logins, repeated, .. } = outcome;
        println!(
            "  {name}: {faults} faults, {boots} boots, {logins} logins, {repeated} commands repeated, {}",
            numbers.join(", ")
        );
        Ok(Self { outcome, text, image, _dir: dir })
    }

    fn enough(&self, context: &Context, word: &str, fault: Fault) -> Result<()> {
        let Outcome { faults, repeated, .. } = self.outcome;
        let least = match fault {
            Fault::Power => context.amount(2, 8),
            _ => context.amount(3, 15),
        };
        ensure!(faults >= least, "only {faults} {word}, wanted {least}");
        demand!(fault == Fault::Power || repeated > 0, "no command was in flight")
    }

    fn is_there(&self, kind: usize) -> Result<()> {
        let lines = self.text.lines().filter_map(|line| line.trim().strip_prefix("CHECKED "));
        let mut checked = Reported::default();
        checked.add(&format!("{}\n", lines.collect::<Vec<_>>().join("\n")));
        let (found, last) = (checked.0[kind], self.outcome.reported.0[kind]);
        ensure!(last > 0, "nothing was done");
        demand!(found >= last, "checked up to {found}, reported {last}")
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    const TRIALS: (&str, usize) = ("trials", 1);
    let mut totals = [0; 3];
    let (mut logins, mut repeated, mut sums) = (0, 0, Reported::default());
    for work in WORKS {
        for (word, fault) in FAULTS.iter().copied() {
            let name = format!("{}-{word}", work.name);
            let survived = Scene::new(|| Survived::new(context, &name, work, fault));
            cases.check_some(TRIALS, &format!("{name}/run"), || survived.get().map(drop));
            cases.check_some(TRIALS, &format!("{name}/{word}-enough"), || {
                survived.get()?.enough(context, word, fault)
            });
            for (kind, tag) in TAGS.iter().enumerate().filter(|(_, tag)| work.reports(tag)) {
                cases.check_some(TRIALS, &format!("{name}/{}", tag.to_lowercase()), || {
                    survived.get()?.is_there(kind)
                });
            }
            cases.check_some(TRIALS, &format!("{name}/fsck"), || {
                tool(work.check.0, work.check.1, &survived.get()?.image)
            });
            if let Some(Survived { outcome, .. }) = survived.into_made() {
                totals[fault as usize] += outcome.faults;
                logins += outcome.logins;
                repeated += outcome.repeated;
                for (sum, last) in sums.0.iter_mut().zip(outcome.reported.0) {
                    *sum += last;
                }
            }
        }
    }
    for ((word, _), count) in FAULTS.iter().zip(totals) {
        cases.fact(word, count);
    }
    cases.fact("logins", logins);
    cases.fact("commands_repeated", repeated);
    cases.fact("files_fsynced", sums.0[0]);
    cases.fact("sqlite_commits", sums.0[2] + sums.0[3]);
    cases.fact("postgres_commits", sums.0[4]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_whole_line_of_each_kind_counts() {
        let mut reported = Reported::default();
        reported.add("FILES 3\r\nnoise\nWAL 12\nFILES 4\nCHECKED FILES 99\nROLLBACK 7");
        assert_eq!(reported, Reported([4, 0, 12, 0, 0]));
        reported.add("FILES 2\n");
        assert_eq!(reported.0[0], 4, "never less than before");
    }
}
