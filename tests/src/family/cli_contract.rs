//! The contract of the command line: exit codes, refusals, messages, JSON, configuration errors.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::files::{damage, empty_file, patchy_file, random_file, same_file, size_of};
use crate::{
    Cases, Context, Credentials, Disk, Output, Running, Scene, Served, Target, Url, program, run, scratch,
};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: u64 = 8 << 20;

struct Files {
    dir: TempDir,
    source: PathBuf,
    destination: PathBuf,
}

impl Files {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let (source, destination) = (dir.path().join("source.img"), dir.path().join("destination.img"));
        random_file(&source, BYTES, context.seed_for("cli-contract/source"))?;
        empty_file(&destination, BYTES)?;
        Ok(Self { dir, source, destination })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn ours(context: &Context, arguments: &[&str]) -> Result<Output> {
    context.ours(arguments, LIMIT)?.orderly()
}

fn contains(output: &Output, words: &[&str]) -> Result<()> {
    let text = output.text();
    let missing: Vec<_> =
        words.iter().filter(|word| !text.to_lowercase().contains(&word.to_lowercase())).collect();
    ensure!(missing.is_empty(), "{}: the output lacks {missing:?}:\n{text}", output.line);
    Ok(())
}

fn object(output: &Output) -> Result<Value> {
    let lines: Vec<&str> = output.stdout.lines().filter(|line| !line.trim().is_empty()).collect();
    let value: Value = match serde_json::from_str(&output.stdout) {
        Ok(value) => value,
        Err(_) => serde_json::from_str(lines.last().context("nothing on stdout")?)
            .with_context(|| format!("{}: not JSON:\n{}", output.line, output.stdout))?,
    };
    ensure!(value.is_object(), "not an object: {value}");
    Ok(value)
}

fn usage_cases(context: &Context, cases: &mut Cases) {
    let wrong: &[(&str, &[&str])] = &[
        ("unknown-command", &["frobnicate"]),
        ("unknown-option", &["copy", "--frobnicate", "a", "b"]),
        ("missing-operand", &["copy", "a"]),
        ("bad-size", &["copy", "--size", "12Q", "null:1M", "null:1M"]),
        ("bad-listen", &["serve", "mem:1M", "--listen", "nowhere"]),
        ("unknown-endpoint-option", &["copy", "null:1M,frobnicate=1", "null:1M"]),
        ("bad-url", &["info", "iscsi://127.0.0.1/not-a-name/x"]),
        ("no-command", &[]),
    ];
    for (name, arguments) in wrong {
        cases.check(&format!("usage-{name}-exits-2"), || ours(context, arguments)?.expect(2).map(|_| ()));
    }
    cases.check("help-lists-commands", || {
        let output = ours(context, &["--help"])?.success()?;
        contains(&output, &["serve", "copy", "compare", "info", "ls", "check"])
    });
    cases.check("version", || contains(&ours(context, &["--version"])?.success()?, &["hikyaku 0."]));
    for shell in ["bash", "zsh", "fish"] {
        cases.check(&format!("completions-{shell}"), || {
            contains(&ours(context, &["completions", shell])?.success()?, &["hikyaku"])
        });
    }
    cases.check("man-pages", || {
        let dir = scratch()?;
        ours(context, &["man", &text(dir.path())])?.success()?;
        let names: Vec<String> = fs::read_dir(dir.path())?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        ensure!(names.iter().any(|name| name.starts_with("hikyaku") && name.ends_with(".1")), "{names:?}");
        Ok(())
    });
}

fn signature_cases(context: &Context, cases: &mut Cases) {
    type Make = fn(&Path) -> Result<()>;
    let signatures: [(&str, Make); 4] = [
        ("ext4", |path| {
            run(program("mkfs.ext4")?.args(["-q", "-F"]).arg(path), LIMIT)?.success().map(|_| ())
        }),
        ("luks", |path| overwrite(path, 0, b"LUKS\xba\xbe\x00\x02")),
        ("gpt", |path| overwrite(path, 512, b"EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")),
        ("xfs", |path| overwrite(path, 0, b"XFSB")),
    ];
    for (name, make) in signatures {
        cases.check(&format!("refuses-signature-{name}"), || {
            let files = Files::new(context)?;
            make(&files.destination)?;
            let before = fs::read(&files.destination)?;
            let (from, to) = (text(&files.source), text(&files.destination));
            let output = ours(context, &["copy", &from, &to])?.expect(6)?;
            contains(&output, &[name, "--force"])?;
            ensure!(fs::read(&files.destination)? == before, "the destination changed");
            ours(context, &["copy", "--force", &from, &to])?.success()?;
            same_file(&files.source, &files.destination)
        });
        cases.check(&format!("refuses-signature-{name}-behind-iscsi"), || {
            let files = Files::new(context)?;
            make(&files.destination)?;
            let before = fs::read(&files.destination)?;
            let mut served = context.serve(&[Disk::file(&files.destination)], None)?;
            let (from, to) = (text(&files.source), served.url(0).to_string());
            let result = ours(context, &["copy", &from, &to]).and_then(|output| output.expect(6));
            served.blame(result)?;
            ensure!(fs::read(&files.destination)? == before, "the destination changed");
            Ok(())
        });
    }
}

fn refusal_cases(context: &Context, cases: &mut Cases) {
    cases.check("refuses-missing-destination", || {
        let files = Files::new(context)?;
        let missing = files.path("missing.img");
        ours(context, &["copy", &text(&files.source), &text(&missing)])?.expect(6)?;
        ensure!(!missing.exists(), "it was created");
        Ok(())
    });
    for force in [false, true] {
        let suffix = if force { "-even-forced" } else { "" };
        cases.check(&format!("refuses-smaller-destination{suffix}"), || {
            let files = Files::new(context)?;
            let (small, before) = (files.path("small.img"), files.path("before.img"));
            random_file(&small, BYTES - 512, 1)?;
            fs::copy(&small, &before)?;
            let (from, to) = (text(&files.source), text(&small));
            let mut arguments = vec!["copy", &from, &to];
            if force {
                arguments.push("--force");
            }
            ours(context, &arguments)?.expect(6)?;
            same_file(&before, &small)
        });
        cases.check(&format!("refuses-same-file{suffix}"), || {
            let files = Files::new(context)?;
            let (link, hard) = (files.path("link.img"), files.path("hard.img"));
            std::os::unix::fs::symlink(&files.source, &link)?;
            fs::hard_link(&files.source, &hard)?;
            let before = fs::read(&files.source)?;
            for other in [&files.source, &link, &hard] {
                let (from, to) = (text(&files.source), text(other));
                let mut arguments = vec!["copy", &from, &to];
                if force {
                    arguments.push("--force");
                }
                ours(context, &arguments)?.expect(6).with_context(|| text(other))?;
            }
            ensure!(fs::read(&files.source)? == before, "the file changed");
            Ok(())
        });
    }
    cases.check("refuses-qcow2-source", || {
        let files = Files::new(context)?;
        let image = files.path("a.qcow2");
        run(program("qemu-img")?.args(["create", "-f", "qcow2"]).arg(&image).arg("4M"), LIMIT)?.success()?;
        let (from, to) = (text(&image), text(&files.destination));
        let output = ours(context, &["copy", &from, &to])?;
        ensure!(output.code != Some(0), "a qcow2 file was taken as raw");
        contains(&output, &["format=raw", "qemu-nbd"])?;
        ours(context, &["copy", &format!("{from},format=raw"), &to])?.success().map(|_| ())
    });
    cases.check("missing-source-fails", || {
        let files = Files::new(context)?;
        let output = ours(context, &["copy", &text(&files.path("none.img")), &text(&files.destination)])?;
        ensure!(output.code == Some(1), "{output}");
        contains(&output, &["none.img"])
    });
    cases.check("dry-run-changes-nothing", || {
        let files = Files::new(context)?;
        let before = fs::read(&files.destination)?;
        ours(context, &["copy", "--dry-run", &text(&files.source), &text(&files.destination)])?.success()?;
        ensure!(fs::read(&files.destination)? == before, "the destination changed");
        Ok(())
    });
    cases.check("create-makes-and-refuses-existing", || {
        let files = Files::new(context)?;
        let (from, new) = (text(&files.source), files.path("new.img"));
        let to = format!("{},create,size={BYTES}", text(&new));
        ours(context, &["copy", &from, &to])?.success()?;
        same_file(&files.source, &new)?;
        let output = ours(context, &["copy", &from, &to])?;
        ensure!(output.code != Some(0), "`create` took a file that exists");
        Ok(())
    });
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::FileExt;
    Ok(fs::OpenOptions::new().write(true).open(path)?.write_all_at(bytes, offset)?)
}

struct Lun {
    files: Files,
    served: Served,
    from: String,
    url: Url,
}

impl Lun {
    fn new(context: &Context, credentials: Option<&Credentials>) -> Result<Self> {
        let files = Files::new(context)?;
        let served = context.serve(&[Disk::file(&files.destination)], credentials)?;
        Ok(Self { from: text(&files.source), url: served.url(0).clone(), served, files })
    }
}

/// Options of an endpoint with the secret in a file; `user` replaces the user of `credentials`.
fn chap(lun: &Lun, credentials: &Credentials, user: &str) -> Result<String> {
    let file = credentials.secret_file(lun.files.dir.path())?;
    Ok(format!(",chap-user={user},chap-secret-file={}", text(&file)))
}

fn chap_cases(context: &Context, cases: &mut Cases) {
    let credentials = Credentials::example();
    let mut lun = Scene::new(|| Lun::new(context, Some(&credentials)));
    cases.check("chap-missing-exits-4", || {
        let Lun { from, url, .. } = lun.get()?;
        ours(context, &["copy", from, &url.to_string()])?.expect(4).map(|_| ())
    });
    cases.check("chap-missing-info-exits-4", || {
        ours(context, &["info", &lun.get()?.url.to_string()])?.expect(4).map(|_| ())
    });
    cases.check("chap-right-secret", || {
        let lun = lun.get()?;
        let to = format!("{}{}", lun.url, chap(lun, &credentials, &credentials.user)?);
        ours(context, &["copy", "--verify", &lun.from, &to])?.success()?;
        same_file(&lun.files.source, &lun.files.destination)
    });
    cases.check("chap-wrong-user-exits-4", || {
        let lun = lun.get()?;
        let to = format!("{}{}", lun.url, chap(lun, &credentials, "somebody")?);
        ours(context, &["copy", "--force", &lun.from, &to])?.expect(4).map(|_| ())
    });
    cases.check("password-in-url-is-scrubbed", || {
        let Lun { from, url, .. } = lun.get()?;
        let mut command = context.command();
        command.args(["copy", "--force", "--rate", "2MB/s", from, &url.with(&credentials)]);
        let copy = Running::start(&mut command)?;
        loop {
            let arguments = fs::read(format!("/proc/{}/cmdline", copy.pid()))?;
            let arguments = String::from_utf8_lossy(&arguments);
            // The copy takes seconds, and begins after the program has removed the secret from its arguments.
            ensure!(
                arguments.contains(from.as_str()),
                "the secret was in /proc/PID/cmdline until the copy had ended"
            );
            if !arguments.contains(&credentials.secret) {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = copy.finish(LIMIT)?.success()?;
        ensure!(!output.text().contains(&credentials.secret), "the secret is printed: {output}");
        contains(&output, &["password"])
    });
    cases.check("wrong-target-name-fails", || {
        let lun = lun.get()?;
        let other = Url { iqn: "iqn.2026-11.org.example:no-such".into(), ..lun.url.clone() };
        let to = format!("{other}{}", chap(lun, &credentials, &credentials.user)?);
        let output = ours(context, &["info", &to])?;
        // A target with CHAP does not reveal which of its names exist.
        ensure!(output.code == Some(4), "{output}");
        contains(&output, &["no-such"])
    });
    cases.check("missing-lun-fails", || {
        let lun = lun.get()?;
        let other = Url { lun: 99, ..lun.url.clone() };
        let to = format!("{other}{}", chap(lun, &credentials, &credentials.user)?);
        let output = ours(context, &["info", &to])?;
        ensure!(matches!(output.code, Some(1 | 5)), "{output}");
        Ok(())
    });
    cases.check("target-lives", || lun.get_mut()?.served.alive());
}

fn unreachable_cases(context: &Context, cases: &mut Cases) {
    cases.check("closed-port-exits-5", || {
        let files = Files::new(context)?;
        let port = crate::free_port()?;
        let to = format!("iscsi://127.0.0.1:{port}/iqn.2026-11.org.example:none/0,timeout=3s");
        let output = ours(context, &["copy", &text(&files.source), &to])?.expect(5)?;
        contains(&output, &[&format!("127.0.0.1:{port}")])
    });
    cases.check("silent-listener-exits-5-in-time", || {
        let files = Files::new(context)?;
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let to = format!("iscsi://127.0.0.1:{port}/iqn.2026-11.org.example:none/0,timeout=2s");
        let output = ours(context, &["copy", &text(&files.source), &to])?.expect(5)?;
        ensure!(output.seconds < 15.0, "it took {:.1} s with timeout=2s", output.seconds);
        Ok(())
    });
}

fn alike(context: &Context, damaged: Option<u64>) -> Result<Files> {
    let files = Files::new(context)?;
    fs::copy(&files.source, &files.destination)?;
    damaged.map_or(Ok(()), |at| damage(&files.destination, at))?;
    Ok(files)
}

fn compare_cases(context: &Context, cases: &mut Cases) {
    cases.check("compare-equal-exits-0", || {
        let files = alike(context, None)?;
        ours(context, &["compare", &text(&files.source), &text(&files.destination)])?.success().map(|_| ())
    });
    let at = 5_000_001;
    let files = Scene::new(|| alike(context, Some(at)));
    let compare = |more: &[&str]| {
        let Files { source, destination, .. } = files.get()?;
        ours(context, &[&["compare", &text(source), &text(destination)], more].concat())?.expect(3)
    };
    cases.check("compare-difference-exits-3-with-offset", || contains(&compare(&[])?, &[&at.to_string()]));
    cases.check("compare-json-difference", || {
        let value = object(&compare(&["--json"])?)?;
        ensure!(value["schema"] == 1 || value["error"].is_object(), "{value}");
        Ok(())
    });
    cases.check("compare-over-iscsi-exits-3", || {
        let files = files.get()?;
        let mut served = context.serve(&[Disk::file(&files.destination)], None)?;
        let url = served.url(0).to_string();
        let result =
            ours(context, &["compare", &text(&files.source), &url]).and_then(|output| output.expect(3));
        served.blame(result).map(|_| ())
    });
}

fn json_cases(context: &Context, cases: &mut Cases) {
    let mut lun = Scene::new(|| Lun::new(context, None));
    cases.check("copy-json-object", || {
        let Lun { from, url, .. } = lun.get()?;
        let output = ours(context, &["copy", "--verify", "--json", from, &url.to_string()])?.success()?;
        let value = object(&output)?;
        ensure!(value["schema"] == 1 && value["bytes"] == BYTES && value["verified"] == true, "{value}");
        for key in ["seconds", "mb_per_s"] {
            ensure!(value[key].as_f64().is_some_and(|number| number > 0.0), "{key} in {value}");
        }
        for key in ["cpu_s_per_gb", "read", "write"] {
            ensure!(value[key].is_object(), "{key} in {value}");
        }
        ensure!(value["source_consistent"].is_boolean() && value["limited_by"].is_string(), "{value}");
        for line in output.stderr.lines().filter(|line| line.trim_start().starts_with('{')) {
            serde_json::from_str::<Value>(line).with_context(|| format!("progress line {line}"))?;
        }
        Ok(())
    });
    for name in ["iscsi", "file"] {
        cases.check(&format!("info-json-{name}"), || {
            let Lun { from, url, .. } = lun.get()?;
            let endpoint = if name == "file" { from.clone() } else { url.to_string() };
            let output = ours(context, &["info", "--json", &endpoint])?.success()?;
            let value = object(&output)?;
            ensure!(value["schema"] == 1, "{value}");
            ensure!(output.stdout.contains(&BYTES.to_string()), "no size in {value}");
            Ok(())
        });
    }
    cases.check("ls-json", || {
        let Lun { url, .. } = lun.get()?;
        let output = ours(context, &["ls", "--json", &format!("iscsi://{}", url.portal)])?.success()?;
        let value = object(&output)?;
        ensure!(value["schema"] == 1 && output.stdout.contains(&url.iqn), "{value}");
        Ok(())
    });
    cases.check("ls-text", || {
        let Lun { url, .. } = lun.get()?;
        contains(&ours(context, &["ls", &format!("iscsi://{}", url.portal)])?.success()?, &[&url.iqn])
    });
    cases.check("error-json", || {
        let Lun { files, from, .. } = lun.get()?;
        let missing = text(&files.path("missing.img"));
        let output = ours(context, &["copy", "--json", from, &missing])?.expect(6)?;
        let source = if output.stdout.contains("\"error\"") { &output.stdout } else { &output.stderr };
        let line = source.lines().find(|line| line.contains("\"error\"")).context("no JSON error")?;
        let value: Value = serde_json::from_str(line).or_else(|_| serde_json::from_str(source))?;
        for key in ["code", "attempted", "object", "cause", "hint"] {
            ensure!(!value["error"][key].is_null(), "no error.{key} in {value}");
        }
        Ok(())
    });
    cases.check("target-lives-json", || lun.get_mut()?.served.alive());
}

fn bench_path_cases(context: &Context, cases: &mut Cases) {
    let mut lun = Scene::new(|| Lun::new(context, None));
    let shape = ["--block-size", "64K", "--depth", "8", "--operations", "200"];
    let bench = |endpoint: &str, more: &[&str]| {
        ours(context, &[&["bench", "path", endpoint, "--json"], &shape[..], more].concat())
    };
    cases.check("bench-path-json", || {
        let value = object(&bench(&lun.get()?.url.to_string(), &[])?.success()?)?;
        ensure!(value["schema"] == 1 && value["write"] == false && value["expect"].is_string(), "{value}");
        let row = &value["rows"][0];
        ensure!(row["operations"] == 200 && row["bytes"] == 200 << 16 && row["verified"] == false, "{row}");
        for key in ["seconds", "operations_per_s", "mb_per_s"] {
            ensure!(row[key].as_f64().is_some_and(|number| number > 0.0), "{key} in {row}");
        }
        for key in ["mean", "p50", "p99", "max"] {
            ensure!(row["latency_us"][key].is_number(), "latency_us.{key} in {row}");
        }
        for key in ["cpu_s_per_gb", "cpu_us_per_operation", "voluntary_switches_per_operation"] {
            ensure!(row["initiator"][key].is_number(), "initiator.{key} in {row}");
        }
        Ok(())
    });
    cases.check("bench-path-write-undeclared-exits-6", || {
        let Lun { files, url, .. } = lun.get()?;
        let before = fs::read(&files.destination)?;
        contains(&bench(&url.to_string(), &["--write"])?.expect(6)?, &["--destroy"])?;
        ensure!(fs::read(&files.destination)? == before, "the LUN changed");
        Ok(())
    });
    cases.check("bench-path-destroy-without-write-exits-2", || {
        bench(&lun.get()?.url.to_string(), &["--destroy"])?.expect(2).map(|_| ())
    });
    cases.check("bench-path-writes-are-verified", || {
        let url = lun.get()?.url.to_string();
        let value = object(&bench(&url, &["--write", "--destroy", "--verify", "--random"])?.success()?)?;
        let row = &value["rows"][0];
        ensure!(row["verified"] == true && row["bytes_compared"].as_u64() > Some(0), "{row}");
        ensure!(row["flush_s"].is_number(), "{row}");
        Ok(())
    });
    cases.check("bench-path-reads-are-verified", || {
        let Lun { files, url, .. } = lun.get()?;
        let (pattern, url) = (format!("pattern:{BYTES}:5"), url.to_string());
        ours(context, &["copy", "--force", &pattern, &url])?.success()?;
        bench(&url, &["--verify", "--pattern", "5"])?.success()?;
        damage(&files.destination, 300_000)?;
        let output = bench(&url, &["--verify", "--pattern", "5"])?.expect(3)?;
        contains(&output, &["300000"])?;
        bench(&url, &["--verify", "--pattern", "6"])?.expect(3).map(|_| ())
    });
    cases.check("bench-path-closed-port-exits-5", || {
        let port = crate::free_port()?;
        let nobody = format!("iscsi://127.0.0.1:{port}/iqn.2026-11.org.example:none/0,timeout=3s");
        bench(&nobody, &[])?.expect(5).map(|_| ())
    });
    cases.check("bench-path-block-beyond-the-limit-exits-2", || {
        ours(context, &["bench", "path", "null:1G", "--block-size", "64M"])?.expect(2)?;
        ours(context, &["bench", "path", "null:1G", "--block-size", "1000"])?.expect(2).map(|_| ())
    });
    cases.check("target-lives-bench-path", || lun.get_mut()?.served.alive());
}

fn stream_cases(context: &Context, cases: &mut Cases) {
    let shell = |script: String| -> Result<()> {
        run(Command::new("bash").args(["-c", &format!("set -euo pipefail; {script}")]), LIMIT)?
            .success()
            .map(|_| ())
    };
    let tool = text(&context.hikyaku);
    cases.check("copy-to-stdout", || {
        let files = Files::new(context)?;
        shell(format!("'{tool}' copy '{}' - > '{}'", text(&files.source), text(&files.destination)))?;
        same_file(&files.source, &files.destination)
    });
    cases.check("copy-from-stdin", || {
        let files = Files::new(context)?;
        shell(format!("cat '{}' | '{tool}' copy - '{}'", text(&files.source), text(&files.destination)))?;
        same_file(&files.source, &files.destination)
    });
}

fn serve_cases(context: &Context, cases: &mut Cases) {
    let failing_serve = |arguments: &[&str]| -> Result<Output> {
        let mut all = vec!["serve", "--listen", "127.0.0.1:0"];
        all.extend(arguments);
        let output = run(context.command().args(all), Duration::from_secs(15))?;
        ensure!(!output.timed_out, "it serves instead of refusing: {output}");
        ensure!(output.code != Some(0), "exit 0: {output}");
        Ok(output)
    };
    cases.check("exposure-without-chap-refused", || {
        let mut command = context.command();
        command.args(["serve", "mem:1M", "--listen", "0.0.0.0:0"]);
        let output = run(&mut command, Duration::from_secs(15))?;
        ensure!(!output.timed_out, "it serves to everybody");
        ensure!(output.code != Some(0), "{output}");
        contains(&output, &["chap", "--seal off"])
    });
    cases.check("exposure-typed-is-allowed", || {
        let mut command = context.command();
        command.args(["serve", "mem:1M", "--listen", "0.0.0.0:0", "--seal", "off"]);
        Running::start(&mut command)?
            .wait_stdout("URL", LIMIT, |text| text.contains("iscsi://").then_some(()))
    });
    cases.check("missing-file-refused", || failing_serve(&["/nonexistent/disk.img"]).map(|_| ()));
    cases.check("locked-as-qemu-locks", || {
        let files = Files::new(context)?;
        let path = text(&files.destination);
        let mut served = context.serve(&[Disk::file(&files.destination)], None)?;
        let qemu = run(program("qemu-io")?.args(["-f", "raw", "-c", "write 0 512", &path]), LIMIT)?;
        let result = (qemu.code != Some(0) && qemu.text().contains("lock"))
            .then_some(())
            .with_context(|| format!("qemu-io opened a served file for writing: {qemu}"));
        served.blame(result)?;
        failing_serve(&[&path]).context("a second server of the same file").map(|_| ())
    });
    cases.check("two-listeners", || {
        let home = scratch()?;
        let mut command = context.command_in(home.path());
        command.args(["serve", "mem:1M", "--listen", "127.0.0.1:0", "--listen", "[::1]:0"]);
        let mut running = Running::start(&mut command)?;
        running.wait_stdout("URL", LIMIT, |text| text.contains("iscsi://").then_some(()))
    });
    cases.check("mem-keeps-data", || {
        let files = Files::new(context)?;
        let disk = Disk::endpoint(format!("mem:{BYTES}"));
        let mut served = Served::Ours(Target::serve(context, &[disk], None, &[])?);
        let (from, url) = (text(&files.source), served.url(0).to_string());
        let result = (|| {
            ours(context, &["copy", &from, &url])?.success()?;
            ours(context, &["copy", &url, &text(&files.destination)])?.success()?;
            same_file(&files.source, &files.destination)
        })();
        served.blame(result)
    });
}

fn config_cases(context: &Context, cases: &mut Cases) {
    let good = |disk: &Path| {
        format!(
            "[server]\n\n[[target]]\niqn = \"iqn.2026-11.org.example:conf\"\n\n[[target.lun]]\nlun = 0\n\
             endpoint = \"{}\"\n\n[[target.portal]]\naddress = \"127.0.0.1:0\"\n",
            text(disk)
        )
    };
    cases.check("config-good", || {
        let files = Files::new(context)?;
        let file = files.path("c.toml");
        fs::write(&file, good(&files.destination))?;
        ours(context, &["check", &text(&file)])?.success()?;
        let mut command = context.command();
        command.args(["serve", "--config", &text(&file)]);
        let mut running = Running::start(&mut command)?;
        running.wait_stdout("URL", LIMIT, |out| out.contains("iqn.2026-11.org.example:conf/0").then_some(()))
    });
    cases.check("config-of-an-initiator-alone", || {
        let files = Files::new(context)?;
        let file = files.path("c.toml");
        fs::write(&file, "[client]\nseal = \"require\"\n")?;
        let file = text(&file);
        contains(&ours(context, &["check", &file])?.success()?, &["0 targets"])?;
        let output = ours(context, &["serve", "--config", &file])?;
        ensure!(output.code == Some(2), "{}: {output}", output.line);
        contains(&output, &["there is no [[target]]"])
    });
    type Break = fn(String) -> String;
    let broken: [(&str, Break, &str, u32); 4] = [
        ("unknown-key", |text| text.replace("lun = 0", "lun = 0\ncolour = \"red\""), "colour", 8),
        ("unknown-table", |text| format!("{text}\n[colours]\nx = 1\n"), "colours", 13),
        ("bad-type", |text| text.replace("lun = 0", "lun = \"zero\""), "zero", 7),
        ("not-toml", |text| text.replace("[[target.lun]]", "[[target.lun"), "", 6),
    ];
    for (name, break_it, word, line) in broken {
        cases.check(&format!("config-{name}-names-its-line"), || {
            let files = Files::new(context)?;
            let file = files.path("c.toml");
            fs::write(&file, break_it(good(&files.destination)))?;
            for arguments in [vec!["check"], vec!["serve", "--config"]] {
                let mut all = arguments;
                let path = text(&file);
                all.push(&path);
                let output = run(context.command().args(&all), Duration::from_secs(15))?;
                ensure!(matches!(output.code, Some(1 | 2)), "{}: {output}", output.line);
                let said = output.text();
                let named = said.contains(&format!("line {line}")) || said.contains(&format!(":{line}"));
                ensure!(named && said.contains(word), "line {line} or {word:?} is not named:\n{said}");
            }
            Ok(())
        });
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    usage_cases(context, cases);
    refusal_cases(context, cases);
    signature_cases(context, cases);
    chap_cases(context, cases);
    unreachable_cases(context, cases);
    compare_cases(context, cases);
    json_cases(context, cases);
    bench_path_cases(context, cases);
    stream_cases(context, cases);
    serve_cases(context, cases);
    config_cases(context, cases);
    super::seal_contract::examine(context, cases);
    cases.check("sparse-keeps-holes", || {
        use std::os::unix::fs::MetadataExt;
        let files = Files::new(context)?;
        let patchy = files.path("patchy.img");
        patchy_file(&patchy, BYTES, context.seed_for("cli-contract/patchy"))?;
        ours(context, &["copy", &text(&patchy), &text(&files.destination)])?.success()?;
        same_file(&patchy, &files.destination)?;
        let (stored, size) = (fs::metadata(&files.destination)?.blocks() * 512, size_of(&patchy)?);
        ensure!(stored < size, "a sparse source filled the destination: {stored} of {size} bytes allocated");
        Ok(())
    });
    cases.check("demo", || {
        let dir = scratch()?;
        let mut command = context.command();
        command.arg("demo").current_dir(dir.path());
        let output = run(&mut command, Duration::from_secs(120))?.success()?;
        ensure!(!output.stdout.trim().is_empty(), "it says nothing");
        Ok(())
    });
    cases.check("sigpipe-is-quiet", || {
        let script = format!("'{}' --help | head -1 >/dev/null", text(&context.hikyaku));
        let output = run(Command::new("bash").args(["-c", &script]), LIMIT)?;
        ensure!(!output.stderr.contains("panicked"), "{}", output.stderr);
        Ok(())
    });
    Ok(())
}
