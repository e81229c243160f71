//! File systems and databases of others on our LUN, under the stock Linux initiator, while connections are cut, the
//! target is killed, or both machines lose power (`tests/kernel-lab/survive.sh`, docs/internals/foreign.md).
//!
//! What counts is the guest's console: a number is printed when fsync or COMMIT has returned, and from then on what
//! it stands for must be there.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rand::RngExt;

use super::kernel::{build_guest, build_postgres, guest, script};
use crate::harness::cutter::Cutter;
use crate::harness::files::empty_file;
use crate::harness::process::tail;
use crate::harness::{Cases, Context, Disk, Running, Target, Tier, program, run, scratch};

/// mkfs.xfs wants 300 MB.
const BYTES: u64 = 400 << 20;
/// Boot, login and the making of PostgreSQL's database: ten times what an idle machine takes, as one that works besides may take
/// half of that.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
/// Work under faults and the check behind it, on top of the time that was asked for.
const WORK_LIMIT: Duration = Duration::from_secs(240);
/// How long connections are still cut when the work is done.
const CHECK_CUTS: Duration = Duration::from_secs(10);
const TOOL_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at the guest and the target.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What happens meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Connections end at random bytes.
    Cuts,
    /// The target gets SIGKILL and is started again.
    Kills,
    /// The target's machine loses its volatile cache, the initiator's everything.
    Power,
}

const FAULTS: &[(&str, Fault)] = &[("cuts", Fault::Cuts), ("kills", Fault::Kills), ("power", Fault::Power)];

/// What works on which file system.
#[derive(Debug)]
struct Work {
    name: &'static str,
    file_system: &'static str,
    /// What of the crash layer: recovery of xfs takes a block of metadata for new when its first sector is.
    tears: &'static str,
    postgres: bool,
}

const WORKS: &[Work] = &[
    Work { name: "ext4", file_system: "ext4", tears: "", postgres: false },
    Work { name: "xfs", file_system: "xfs", tears: ":unit=4096", postgres: false },
    Work { name: "postgres", file_system: "ext4", tears: "", postgres: true },
];
const PREFIXES: &[&str] = &[
    "ext4-cuts",
    "ext4-kills",
    "ext4-power",
    "xfs-cuts",
    "xfs-kills",
    "xfs-power",
    "postgres-cuts",
    "postgres-kills",
    "postgres-power",
];

/// The kinds of numbers on the console.
const TAGS: &[&str] = &["FILES", "CURRENT", "WAL", "ROLLBACK", "POSTGRES"];

/// The last number of each kind that the guest reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reported([u64; TAGS.len()]);

impl Reported {
    fn add(&mut self, console: &str) {
        // A line that a dying guest has not finished counts for nothing.
        let whole = &console[..console.rfind('\n').map_or(0, |end| end + 1)];
        for (tag, last) in TAGS.iter().zip(&mut self.0) {
            let numbers = whole.lines().filter_map(|line| line.trim().strip_prefix(tag)?.trim().parse().ok());
            *last = numbers.fold(*last, u64::max);
        }
    }
}

/// How much was done and survived.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    faults: usize,
    boots: usize,
    logins: usize,
    /// Commands that the guest's kernel sent again, as it says at a clean end.
    repeated: u64,
    reported: Reported,
}

/// One work, one kind of fault.
struct Scene<'a> {
    context: &'a Context,
    name: String,
    work: &'static Work,
    image: &'a Path,
    target: Target,
    cutter: Cutter,
    outcome: Outcome,
}

impl Scene<'_> {
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

    /// Waits for a line of the guest, doing something in between.
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
                // The reason may still be on its way.
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
                    std::thread::sleep(LOOK_INTERVAL);
                    continue;
                }
            };
            bail!(
                "{state}, no {line} within {limit:?}\n{}\n--- target\n{}",
                tail(&text, 3000),
                self.target.log()
            );
        }
    }

    /// Another target in place of the last one, on the same file.
    fn restart(&mut self, disk: Disk) -> Result<()> {
        self.outcome.logins += self.target.logins();
        self.target.kill();
        self.target.restart(self.context, &[disk])
    }

    fn alive(&mut self) -> Result<()> {
        ensure!(!self.target.ended(), "the target has ended by itself\n{}", self.target.log());
        Ok(())
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
        // The remount and the check begin over cut connections too; all of it would take too long that way, since a cut
        // costs the initiator seconds.
        let until = Instant::now() + CHECK_CUTS;
        self.wait(&mut guest, "UNMOUNTED", WORK_LIMIT, |scene| {
            if Instant::now() > until {
                scene.cutter.disarm();
            }
            scene.alive()
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
        self.wait(&mut guest, "WORK-DONE", work + WORK_LIMIT, |scene| {
            scene.alive()?;
            let at = match due {
                Some(at) => at,
                None if scene.target.logins() == 0 => return Ok(()),
                None => *due.insert(Instant::now() + Duration::from_millis(rng.random_range(500..4000))),
            };
            if Instant::now() < at {
                return Ok(());
            }
            scene.outcome.faults += 1;
            scene.restart(Disk::file(scene.image))?;
            // The initiator needs two seconds and more to come back: every second kill may meet it in between, or
            // half logged in; the others wait for it and leave it some seconds of work.
            early = !early;
            due = early.then(|| Instant::now() + Duration::from_millis(rng.random_range(0..3500)));
            Ok(())
        })?;
        self.finish(guest, WORK_LIMIT)
    }

    /// Each round ends in the middle of work, or of the recovery from the round before.
    fn power(&mut self, rounds: usize) -> Result<String> {
        let mut rng = self.context.rng(&format!("foreign/{}/power", self.name));
        for _ in 0..rounds {
            let magnitude = rng.random_range(4..=11u32);
            let writes = rng.random_range(1..=1u64 << magnitude);
            let seed = rng.random_range(0..1u64 << 32);
            let crash = format!("crash=after={writes}:seed={seed}{}", self.work.tears);
            self.restart(Disk::file(self.image).option(crash))?;
            let mut guest = self.boot(BOOT_LIMIT)?;
            let until = Instant::now() + BOOT_LIMIT + WORK_LIMIT;
            while !self.target.ended() {
                let text = guest.stdout_text();
                ensure!(!text.contains("FAILED") && !guest.ended(), "{}", tail(&text, 3000));
                ensure!(Instant::now() < until, "no power cut behind {writes} writes\n{}", tail(&text, 1000));
                std::thread::sleep(LOOK_INTERVAL);
            }
            guest.kill();
            self.outcome.reported.add(&guest.finish(TOOL_LIMIT)?.stdout);
            self.outcome.faults += 1;
        }
        self.restart(Disk::file(self.image))?;
        let guest = self.boot(Duration::from_secs(3))?;
        self.finish(guest, BOOT_LIMIT + WORK_LIMIT)
    }
}

fn make_file_system(file_system: &str, image: &Path) -> Result<()> {
    let mut command = program(&format!("mkfs.{file_system}"))?;
    command.args(if file_system == "xfs" { ["-q", "-f"] } else { ["-q", "-F"] }).arg(image);
    run(&mut command, TOOL_LIMIT)?.success().map(|_| ())
}

/// Finds nothing to repair.
fn clean(file_system: &str, image: &Path) -> Result<()> {
    let mut command = match file_system {
        "xfs" => program("xfs_repair")?,
        _ => program("e2fsck")?,
    };
    command.args(if file_system == "xfs" { ["-n", "-f"] } else { ["-f", "-n"] }).arg(image);
    run(&mut command, TOOL_LIMIT)?.success().map(|_| ())
}

fn scene(
    context: &Context,
    cases: &mut Cases,
    work: &'static Work,
    (word, fault): (&str, Fault),
) -> Result<Outcome> {
    let name = format!("{}-{word}", work.name);
    if work.postgres {
        build_postgres(context)?;
    }
    let dir = scratch()?;
    let image = dir.path().join("disk.img");
    empty_file(&image, BYTES)?;
    make_file_system(work.file_system, &image)?;
    let target = Target::serve(context, &[Disk::file(&image)], None, &[])?;
    let cutter = Cutter::start(target.url(0).port()?)?;
    let outcome = Outcome::default();
    let mut scene = Scene { context, name: name.clone(), work, image: &image, target, cutter, outcome };
    let duration = Duration::from_secs(context.amount(30, 90) as u64);
    let started = Instant::now();
    let text = match fault {
        Fault::Cuts => scene.cuts(duration),
        Fault::Kills => scene.kills(duration),
        Fault::Power => scene.power(context.amount(2, 8)),
    };
    let (text, seconds) = match text {
        Ok(text) => (text, started.elapsed().as_secs_f64()),
        Err(error) => {
            cases.record(&format!("{name}/run"), Err(error), started.elapsed().as_secs_f64());
            return Ok(scene.outcome);
        }
    };
    let outcome = scene.outcome;
    let reported =
        TAGS.iter().zip(outcome.reported.0).filter(|(tag, _)| (**tag == "POSTGRES") == work.postgres);
    let numbers: Vec<_> = reported.clone().map(|(tag, n)| format!("{tag} {n}")).collect();
    let Outcome { faults, boots, logins, repeated, .. } = outcome;
    println!(
        "  {name}: {faults} faults, {boots} boots, {logins} logins, {repeated} commands repeated, {}",
        numbers.join(", ")
    );
    drop(scene);
    cases.record(&format!("{name}/run"), Ok(()), seconds);
    cases.check(&format!("{name}/{word}-enough"), || {
        let least = match fault {
            Fault::Power => context.amount(2, 8),
            _ => context.amount(3, 15),
        };
        ensure!(faults >= least, "only {faults} {word}, wanted {least}");
        ensure!(fault == Fault::Power || repeated > 0, "no command was in flight");
        Ok(())
    });
    for (tag, last) in reported {
        cases.check(&format!("{name}/{}", tag.to_lowercase()), || {
            let mut checked = Reported::default();
            let lines: Vec<_> =
                text.lines().filter_map(|line| line.trim().strip_prefix("CHECKED ")).collect();
            checked.add(&format!("{}\n", lines.join("\n")));
            let found = checked.0[TAGS.iter().position(|known| known == tag).unwrap_or_default()];
            ensure!(last > 0, "nothing was done");
            ensure!(found >= last, "checked up to {found}, reported {last}");
            Ok(())
        });
    }
    cases.check(&format!("{name}/fsck"), || clean(work.file_system, &image));
    Ok(outcome)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    build_guest(context)?;
    let chosen = PREFIXES[context.rng("foreign").random_range(0..PREFIXES.len())];
    let mut totals = [0; 3];
    let (mut logins, mut repeated, mut survived) = (0, 0, Reported::default());
    for work in WORKS {
        for fault in FAULTS.iter().copied() {
            let prefix = format!("{}-{}", work.name, fault.0);
            if !cases.wants(&prefix, PREFIXES)
                || !(context.tier == Tier::Full || prefix == chosen || cases.names(&prefix))
            {
                continue;
            }
            let outcome = scene(context, cases, work, fault)?;
            totals[fault.1 as usize] += outcome.faults;
            logins += outcome.logins;
            repeated += outcome.repeated;
            for (sum, last) in survived.0.iter_mut().zip(outcome.reported.0) {
                *sum += last;
            }
        }
    }
    for ((word, _), count) in FAULTS.iter().zip(totals) {
        cases.fact(word, count);
    }
    cases.fact("logins", logins);
    cases.fact("commands_repeated", repeated);
    cases.fact("files_fsynced", survived.0[0]);
    cases.fact("sqlite_commits", survived.0[2] + survived.0[3]);
    cases.fact("postgres_commits", survived.0[4]);
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
