//! Places where keys must not appear: logs at the most verbose level, JSON, errors, `/proc` entries of a process, core
//! dumps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use base64::engine::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::estate::{Estate, LIMIT};
use crate::files::random_file;
use crate::process::Surroundings;
use crate::seal::Keys;
use crate::{Cases, Context, Server, run};

const BYTES: u64 = 4 << 20;
/// Time limit for a killed target to write its core.
const CORE_LIMIT: Duration = Duration::from_secs(20);

/// One secret in every possible form: base64, raw bytes, hexadecimal.
fn forms(text: &str) -> Vec<Vec<u8>> {
    let raw = STANDARD.decode(text).expect("base64");
    let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    let list = raw.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
    // Without the last characters, which differ between variants of base64.
    vec![
        text.as_bytes()[..42].to_vec(),
        raw,
        hex.to_uppercase().into_bytes(),
        hex.into_bytes(),
        list.into_bytes(),
    ]
}

fn absent(place: &str, bytes: &[u8], secrets: &[String]) -> Result<()> {
    for (number, secret) in secrets.iter().enumerate() {
        for form in forms(secret) {
            let at = bytes.windows(form.len()).position(|window| window == form);
            ensure!(at.is_none(), "{place} has secret {number}, at {at:?}");
        }
    }
    Ok(())
}

/// Runs a target and copies with maximum logging and a pre-shared key, successful and refused.
fn talk(context: &Context) -> Result<()> {
    let estate = Estate::new(context, BYTES)?;
    let psk = Keys::new(context, estate.dir.path(), "psk")?;
    let secrets = [&estate.target, &estate.friend, &estate.stranger, &psk].map(Keys::secret);
    let secrets = secrets.into_iter().collect::<Result<Vec<_>>>()?;
    estate.admit_friend(&format!("psk-file = \"{}\"", psk.path()))?;
    let trace = Surroundings::variable("HIKYAKU_LOG", "trace");
    let target = estate.serve_in(context, "require", &trace)?;
    let portal = target.url(0).portal.clone();
    let with_psk = format!(",log,psk-file={}", psk.path());
    let endpoint = estate.endpoint(&target, &portal, &estate.friend, &with_psk);
    let source = estate.dir.path().join("source.img");
    let source = random_file(source, BYTES, context.seed_for("sealed/secrets"))?.display().to_string();
    let commands: [&[&str]; 5] = [
        &["copy", "--verify", "--force", "--json", &source, &endpoint],
        &["info", "--json", &endpoint],
        &["info", &endpoint],
        &["info", "--json", &estate.endpoint(&target, &portal, &estate.stranger, ",log")],
        &["key", "public", "--json", &estate.friend.path()],
    ];
    for arguments in commands {
        let mut command = context.command();
        trace.apply(command.args(arguments));
        let output = run(&mut command, LIMIT)?;
        ensure!(matches!(output.code, Some(0 | 4)), "{}: {output}", output.line);
        absent(&format!("what `{}` says", arguments[..2].join(" ")), output.text().as_bytes(), &secrets)?;
    }
    let pid = target.pid();
    for file in ["cmdline", "environ"] {
        absent(file, &std::fs::read(format!("/proc/{pid}/{file}"))?, &secrets)?;
    }
    let output = target.terminate(LIMIT)?;
    let is_verbose = output.stderr.contains("TRACE") || output.stderr.contains("DEBUG");
    ensure!(is_verbose, "it hardly logs:\n{}", output.stderr);
    absent("the target's log", output.text().as_bytes(), &secrets)
}

fn cores(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir)?.filter_map(Result::ok).map(|entry| entry.path());
    Ok(entries
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core")))
        .collect())
}

const UNLIMITED: libc::rlimit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };

/// Allows a process to dump cores of any size, and returns the limit that the process had set. Raising a limit takes
/// CAP_SYS_RESOURCE; without it only the limit itself is tested.
fn lift_core_limit(pid: u32) -> Result<libc::rlimit> {
    let mut had = UNLIMITED;
    let pid = pid.cast_signed();
    // SAFETY: `prlimit` fills `had`, which outlives the call, and reads a constant.
    let asked = unsafe { libc::prlimit(pid, libc::RLIMIT_CORE, std::ptr::null(), &raw mut had) };
    ensure!(asked == 0, "prlimit: {}", std::io::Error::last_os_error());
    let all = UNLIMITED;
    // SAFETY: as above; nothing is written.
    unsafe { libc::prlimit(pid, libc::RLIMIT_CORE, &raw const all, std::ptr::null_mut()) };
    Ok(had)
}

/// Crashes `serve` in its own directory with cores allowed. Returns the limit that it had set, and the files that it
/// left although that limit was raised.
fn crash(context: &Context, estate: &Estate, arguments: &[&str]) -> Result<(libc::rlimit, Vec<PathBuf>)> {
    let dir = estate.dir.path().join("crash");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)?;
    let mut command = context.command();
    command.current_dir(&dir).args(["serve", "--listen", "127.0.0.1:0"]).args(arguments).arg(&estate.file);
    // SAFETY: one system call with plain values between fork and exec.
    unsafe {
        use std::os::unix::process::CommandExt;
        command.pre_exec(|| {
            let unlimited = UNLIMITED;
            match libc::setrlimit(libc::RLIMIT_CORE, &raw const unlimited) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let mut running = Server::start(&mut command, 1)?.running;
    let limit = lift_core_limit(running.pid())?;
    running.signal(libc::SIGABRT)?;
    let output = running.finish(CORE_LIMIT)?;
    ensure!(output.signal == Some(libc::SIGABRT), "it ended with {output}");
    Ok((limit, cores(&dir)?))
}

/// A program that has read a key leaves no core. One that has not read a key does, which proves that this machine
/// writes cores.
fn core_dump(context: &Context) -> Result<bool> {
    let estate = Estate::new(context, BYTES)?;
    let (identity, peers) = (estate.target.path(), estate.peers.display().to_string());
    let (limit, with_keys) =
        crash(context, &estate, &["--seal", "require", "--identity", &identity, "--peers", &peers])?;
    ensure!((limit.rlim_cur, limit.rlim_max) == (0, 0), "its limit for cores is {}", limit.rlim_max);
    // With the limit raised, the process still is not dumpable, which also holds for collectors behind a pipe.
    ensure!(with_keys.is_empty(), "a target with keys left {with_keys:?}");
    let (_, without_keys) = crash(context, &estate, &["--seal", "off"])?;
    Ok(!without_keys.is_empty())
}

/// `key new` must make files that others cannot read, and the program must refuse a key file that others can.
fn files(context: &Context) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let estate = Estate::new(context, BYTES)?;
    let mode = std::fs::metadata(&estate.target.file)?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "`key new` makes a file of mode {mode:03o}");
    context.ours(&["key", "new", &estate.target.path()], LIMIT)?.expect(6)?;
    let target = estate.serve(context, "require")?;
    let endpoint = estate.friend_at(&target);
    std::fs::set_permissions(&estate.friend.file, std::fs::Permissions::from_mode(0o644))?;
    context.ours(&["info", &endpoint], LIMIT)?.expect(4)?.says("chmod 600").map(drop)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("keys-absent-from-logs-json-and-proc", || talk(context));
    let mut shown = None;
    cases.check("keys-leave-no-core", || {
        shown = Some(core_dump(context)?);
        Ok(())
    });
    if shown == Some(false) {
        cases.note("this machine keeps no cores in the working directory: that ours would have been one is not shown");
    }
    cases.fact("control_left_a_core", shown);
    cases.check("keys-files-are-their-owners-only", || files(context));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_found() {
        let key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=".to_owned();
        let raw: Vec<u8> = (1..=32).collect();
        assert!(forms(&key).contains(&raw));
        for form in forms(&key) {
            let hidden = [b"before".as_slice(), &form, b"after"].concat();
            assert!(absent("here", &hidden, std::slice::from_ref(&key)).is_err());
        }
        assert!(absent("here", b"nothing of it", &[key]).is_ok());
    }
}
