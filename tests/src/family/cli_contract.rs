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
    Cases, Context, Credentials, Disk, Output, Running, Scene, Served, Server, Target, Url, program, run,
    scratch,
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
        let source = dir.path().join("source.img");
        let source = random_file(source, BYTES, context.seed_for("cli-contract/source"))?;
        let destination = empty_file(dir.path().join("destination.img"), BYTES)?;
        Ok(Self { dir, source, destination })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The paths of source and destination as text.
    fn ends(&self) -> [String; 2] {
        [&self.source, &self.destination].map(|path| text(path))
    }

    fn copy(&self, context: &Context, more: &[&str]) -> Result<Output> {
        let [from, to] = self.ends();
        ours(context, &[&["copy", &from, &to], more].concat())
    }
}

/// Fails unless `act` leaves the file as it was.
fn unchanged<T>(file: &Path, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let before = fs::read(file)?;
    let result = act()?;
    ensure!(fs::read(file)? == before, "{} changed", file.display());
    Ok(result)
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
    demand!(missing.is_empty(), "{}: the output lacks {missing:?}:\n{text}", output.line)
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
        cases.check(&format!("usage-{name}-exits-2"), || ours(context, arguments)?.expect(2).map(drop));
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
        demand!(names.iter().any(|name| name.starts_with("hikyaku") && name.ends_with(".1")), "{names:?}")
    });
}

fn signature_cases(context: &Context, cases: &mut Cases) {
    type Make = fn(&Path) -> Result<()>;
    let signatures: [(&str, Make); 4] = [
        ("ext4", |path| run(program("mkfs.ext4")?.args(["-q", "-F"]).arg(path), LIMIT)?.success().map(drop)),
        ("luks", |path| overwrite(path, 0, b"LUKS\xba\xbe\x00\x02")),
        ("gpt", |path| overwrite(path, 512, b"EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")),
        ("xfs", |path| overwrite(path, 0, b"XFSB")),
    ];
    for (name, make) in signatures {
        cases.check(&format!("refuses-signature-{name}"), || {
            let files = Files::new(context)?;
            make(&files.destination)?;
            let output = unchanged(&files.destination, || files.copy(context, &[])?.expect(6))?;
            contains(&output, &[name, "--force"])?;
            files.copy(context, &["--force"])?.success()?;
            same_file(&files.source, &files.destination)
        });
        cases.check(&format!("refuses-signature-{name}-behind-iscsi"), || {
            let files = Files::new(context)?;
            make(&files.destination)?;
            let mut served = context.serve(&[Disk::file(&files.destination)], None)?;
            let copy = ["copy", &text(&files.source), &served.url(0).to_string()];
            let result = unchanged(&files.destination, || ours(context, &copy)?.expect(6));
            served.blame(result).map(drop)
        });
    }
}

fn refusal_cases(context: &Context, cases: &mut Cases) {
    cases.check("makes-a-missing-file", || {
        let files = Files::new(context)?;
        let (source, missing) = (text(&files.source), files.path("missing.img"));
        ours(context, &["copy", &source, &text(&missing)])?.success()?;
        let [one, other] = [&files.source, &missing].map(fs::read);
        demand!(one? == other?, "it is no copy")
    });
    cases.check("refuses-what-is-missing-otherwise", || {
        let files = Files::new(context)?;
        let missing = files.path("no/missing.img");
        for destination in [text(&missing), "/dev/hikyaku-missing".to_owned()] {
            ours(context, &["copy", &text(&files.source), &destination])?.expect(6)?;
        }
        demand!(!missing.exists(), "it was created")
    });
    for (suffix, more) in [("", &[][..]), ("-even-forced", &["--force"])] {
        cases.check(&format!("refuses-smaller-destination{suffix}"), || {
            let files = Files::new(context)?;
            let small = random_file(files.path("small.img"), BYTES - 512, 1)?;
            let copy = ["copy", &text(&files.source), &text(&small)];
            unchanged(&small, || ours(context, &[&copy, more].concat())?.expect(6)).map(drop)
        });
        cases.check(&format!("refuses-same-file{suffix}"), || {
            let files = Files::new(context)?;
            let (link, hard) = (files.path("link.img"), files.path("hard.img"));
            std::os::unix::fs::symlink(&files.source, &link)?;
            fs::hard_link(&files.source, &hard)?;
            unchanged(&files.source, || {
                [&files.source, &link, &hard].iter().try_for_each(|other| {
                    let copy = ["copy", &text(&files.source), &text(other)];
                    ours(context, &[&copy, more].concat())?.expect(6).with_context(|| text(other)).map(drop)
                })
            })
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
        ours(context, &["copy", &format!("{from},format=raw"), &to])?.success().map(drop)
    });
    cases.check("missing-source-fails", || {
        let files = Files::new(context)?;
        let copy = ["copy", &text(&files.path("none.img")), &text(&files.destination)];
        contains(&ours(context, &copy)?.expect(1)?, &["none.img"])
    });
    cases.check("dry-run-changes-nothing", || {
        let files = Files::new(context)?;
        unchanged(&files.destination, || files.copy(context, &["--dry-run"])?.success()).map(drop)
    });
    cases.check("create-makes-and-refuses-existing", || {
        let files = Files::new(context)?;
        let (from, new) = (text(&files.source), files.path("new.img"));
        let to = format!("{},create,size={BYTES}", text(&new));
        ours(context, &["copy", &from, &to])?.success()?;
        same_file(&files.source, &new)?;
        let output = ours(context, &["copy", &from, &to])?;
        demand!(output.code != Some(0), "`create` took a file that exists")
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

fn chap_cases(context: &Context, cases: &mut Cases) {
    let credentials = Credentials::example();
    let mut lun = Scene::new(|| Lun::new(context, Some(&credentials)));
    let with_chap = |lun: &Lun, url: &Url, user: &str| -> Result<String> {
        let credentials = Credentials { user: user.into(), ..credentials.clone() };
        Ok(format!("{url}{}", credentials.options(lun.files.dir.path())?))
    };
    cases.check("chap-missing-exits-4", || {
        let Lun { from, url, .. } = lun.get()?;
        ours(context, &["copy", from, &url.to_string()])?.expect(4).map(drop)
    });
    cases.check("chap-missing-info-exits-4", || {
        ours(context, &["info", &lun.get()?.url.to_string()])?.expect(4).map(drop)
    });
    cases.check("chap-right-secret", || {
        let lun = lun.get()?;
        let to = with_chap(lun, &lun.url, &credentials.user)?;
        ours(context, &["copy", "--verify", &lun.from, &to])?.success()?;
        same_file(&lun.files.source, &lun.files.destination)
    });
    cases.check("chap-wrong-user-exits-4", || {
        let lun = lun.get()?;
        let to = with_chap(lun, &lun.url, "somebody")?;
        ours(context, &["copy", "--force", &lun.from, &to])?.expect(4).map(drop)
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
            let runs = arguments.contains(from.as_str());
            ensure!(runs, "the secret was in /proc/PID/cmdline until the copy had ended");
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
        // A target with CHAP does not reveal which of its names exist.
        let output = ours(context, &["info", &with_chap(lun, &other, &credentials.user)?])?.expect(4)?;
        contains(&output, &["no-such"])
    });
    cases.check("missing-lun-fails", || {
        let lun = lun.get()?;
        let other = Url { lun: 99, ..lun.url.clone() };
        let output = ours(context, &["info", &with_chap(lun, &other, &credentials.user)?])?;
        demand!(matches!(output.code, Some(1 | 5)), "{output}")
    });
    cases.check("target-lives", || lun.get_mut()?.served.alive());
}

/// A LUN at a port where no target listens.
fn nobody() -> Result<Url> {
    let portal = format!("127.0.0.1:{}", crate::free_port()?);
    Ok(Url { portal, iqn: "iqn.2026-11.org.example:none".into(), lun: 0 })
}

fn unreachable_cases(context: &Context, cases: &mut Cases) {
    cases.check("closed-port-exits-5", || {
        let files = Files::new(context)?;
        let nobody = nobody()?;
        let output = ours(context, &["copy", &text(&files.source), &format!("{nobody},timeout=3s")])?;
        contains(&output.expect(5)?, &[&nobody.portal])
    });
    cases.check("unknown-congestion-control-exits-2", || {
        let endpoint = format!("{},congestion=nosuch", nobody()?);
        let output = ours(context, &["info", &endpoint])?.expect(2)?;
        contains(&output, &["no congestion control 'nosuch'", "reno"])
    });
    cases.check("silent-listener-exits-5-in-time", || {
        let files = Files::new(context)?;
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let to = format!("{},timeout=2s", nobody()?.at(&listener.local_addr()?.to_string()));
        let output = ours(context, &["copy", &text(&files.source), &to])?.expect(5)?;
        demand!(output.seconds < 15.0, "it took {:.1} s with timeout=2s", output.seconds)
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
        ours(context, &["compare", &text(&files.source), &text(&files.destination)])?.success().map(drop)
    });
    let at = 5_000_001;
    let files = Scene::new(|| alike(context, Some(at)));
    let compare = |more: &[&str]| {
        let [one, other] = files.get()?.ends();
        ours(context, &[&["compare", &one, &other], more].concat())?.expect(3)
    };
    cases.check("compare-difference-exits-3-with-offset", || contains(&compare(&[])?, &[&at.to_string()]));
    cases.check("compare-json-difference", || {
        let value = compare(&["--json"])?.json()?;
        demand!(value["schema"] == 1 || value["error"].is_object(), "{value}")
    });
    cases.check("compare-over-iscsi-exits-3", || {
        let files = files.get()?;
        let mut served = context.serve(&[Disk::file(&files.destination)], None)?;
        let compare = ["compare", &text(&files.source), &served.url(0).to_string()];
        let result = ours(context, &compare).and_then(|output| output.expect(3));
        served.blame(result).map(drop)
    });
}

/// Demands the JSON object of an error with all its members.
pub(super) fn is_whole_error(output: &Output) -> Result<()> {
    let error = output.json_error()?;
    let keys = ["code", "attempted", "object", "cause", "hint"];
    keys.iter().try_for_each(|key| demand!(!error[key].is_null(), "no error.{key} in {error}"))
}

fn json_cases(context: &Context, cases: &mut Cases) {
    let mut lun = Scene::new(|| Lun::new(context, None));
    cases.check("copy-json-object", || {
        let Lun { from, url, .. } = lun.get()?;
        let output = ours(context, &["copy", "--verify", "--json", from, &url.to_string()])?.success()?;
        let value = output.json()?;
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
            let value = output.json()?;
            let has_size = output.stdout.contains(&BYTES.to_string());
            demand!(value["schema"] == 1 && has_size, "no schema or size in {value}")
        });
    }
    cases.check("ls-json", || {
        let Lun { url, .. } = lun.get()?;
        let output = ours(context, &["ls", "--json", &format!("iscsi://{}", url.portal)])?.success()?;
        let value = output.json()?;
        demand!(value["schema"] == 1 && output.stdout.contains(&url.iqn), "{value}")
    });
    cases.check("ls-text", || {
        let Lun { url, .. } = lun.get()?;
        contains(&ours(context, &["ls", &format!("iscsi://{}", url.portal)])?.success()?, &[&url.iqn])
    });
    cases.check("error-json", || {
        let Lun { files, from, .. } = lun.get()?;
        let missing = text(&files.path("no/missing.img"));
        let output = ours(context, &["copy", "--json", from, &missing])?.expect(6)?;
        is_whole_error(&output)
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
        let value = bench(&lun.get()?.url.to_string(), &[])?.success()?.json()?;
        ensure!(value["schema"] == 1 && value["write"] == false && value["expect"].is_string(), "{value}");
        ensure!(
            value["path"].is_null() && value["copy"].is_null(),
            "a single row is measured alone: {value}"
        );
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
    cases.check("bench-path-predicts-without-writing", || {
        let Lun { files, url, .. } = lun.get()?;
        let output = unchanged(&files.destination, || bench(&url.to_string(), &["--size", "1G"])?.success())?;
        let value = output.json()?;
        let (path, copy) = (&value["path"], &value["copy"]);
        ensure!(
            path["end"] == "source" && path["r2t_rounds_max"] == 0 && copy["bytes"] == 1 << 30,
            "{value}"
        );
        demand!(copy["seconds"].as_f64() > Some(0.0) && path["rtt_idle_ms"].is_number(), "{value}")
    });
    cases.check("bench-path-write-undeclared-exits-6", || {
        let Lun { files, url, .. } = lun.get()?;
        let write = || bench(&url.to_string(), &["--write"])?.expect(6);
        contains(&unchanged(&files.destination, write)?, &["--destroy"])
    });
    cases.check("bench-path-destroy-without-write-exits-2", || {
        bench(&lun.get()?.url.to_string(), &["--destroy"])?.expect(2).map(drop)
    });
    cases.check("bench-path-writes-are-verified", || {
        let url = lun.get()?.url.to_string();
        let value = bench(&url, &["--write", "--destroy", "--verify", "--random"])?.success()?.json()?;
        let row = &value["rows"][0];
        ensure!(row["verified"] == true && row["bytes_compared"].as_u64() > Some(0), "{row}");
        demand!(row["flush_s"].is_number(), "{row}")
    });
    cases.check("bench-path-reads-are-verified", || {
        let Lun { files, url, .. } = lun.get()?;
        let (pattern, url) = (format!("pattern:{BYTES}:5"), url.to_string());
        ours(context, &["copy", "--force", &pattern, &url])?.success()?;
        bench(&url, &["--verify", "--pattern", "5"])?.success()?;
        damage(&files.destination, 300_000)?;
        contains(&bench(&url, &["--verify", "--pattern", "5"])?.expect(3)?, &["300000"])?;
        bench(&url, &["--verify", "--pattern", "6"])?.expect(3).map(drop)
    });
    cases.check("bench-path-closed-port-exits-5", || {
        bench(&format!("{},timeout=3s", nobody()?), &[])?.expect(5).map(drop)
    });
    cases.check("bench-path-block-beyond-the-limit-exits-2", || {
        ours(context, &["bench", "path", "null:1G", "--block-size", "64M"])?.expect(2)?;
        ours(context, &["bench", "path", "null:1G", "--block-size", "1000"])?.expect(2).map(drop)
    });
    cases.check("target-lives-bench-path", || lun.get_mut()?.served.alive());
}

fn stream_cases(context: &Context, cases: &mut Cases) {
    for (name, script) in [
        ("copy-to-stdout", r#""$0" copy "$1" - > "$2""#),
        ("copy-from-stdin", r#"cat "$1" | "$0" copy - "$2""#),
    ] {
        cases.check(name, || {
            let files = Files::new(context)?;
            let mut shell = Command::new("bash");
            shell.args(["-euo", "pipefail", "-c", script]).arg(&context.hikyaku).args(files.ends());
            run(&mut shell, LIMIT)?.success()?;
            same_file(&files.source, &files.destination)
        });
    }
}

fn serve_cases(context: &Context, cases: &mut Cases) {
    let failing_serve = |disk: &str, listen: &str| -> Result<Output> {
        let serve = ["serve", disk, "--listen", listen];
        let output = context.ours(&serve, Duration::from_secs(15))?;
        ensure!(!output.timed_out, "it serves instead of refusing: {output}");
        ensure!(output.code != Some(0), "exit 0: {output}");
        Ok(output)
    };
    let serves = |more: &[&str]| {
        let serve = ["serve", "mem:1M", "--listen"];
        Server::start(context.command_in(scratch()?.path()).args(serve).args(more), 1).map(drop)
    };
    cases.check("exposure-without-chap-refused", || {
        contains(&failing_serve("mem:1M", "0.0.0.0:0")?, &["chap", "--seal off"])
    });
    cases.check("exposure-typed-is-allowed", || serves(&["0.0.0.0:0", "--seal", "off"]));
    cases.check("missing-file-refused", || failing_serve("/nonexistent/disk.img", "127.0.0.1:0").map(drop));
    cases.check("locked-as-qemu-locks", || {
        let files = Files::new(context)?;
        let path = text(&files.destination);
        let mut served = context.serve(&[Disk::file(&files.destination)], None)?;
        let qemu = run(program("qemu-io")?.args(["-f", "raw", "-c", "write 0 512", &path]), LIMIT)?;
        let result = (qemu.code != Some(0) && qemu.text().contains("lock"))
            .then_some(())
            .with_context(|| format!("qemu-io opened a served file for writing: {qemu}"));
        served.blame(result)?;
        failing_serve(&path, "127.0.0.1:0").context("a second server of the same file").map(drop)
    });
    cases.check("two-listeners", || serves(&["127.0.0.1:0", "--listen", "[::1]:0"]));
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
        let server = Server::start(context.command().args(["serve", "--config", &text(&file)]), 1)?;
        let Url { iqn, lun, .. } = &server.url;
        demand!(iqn == "iqn.2026-11.org.example:conf" && *lun == 0, "{}", server.url)
    });
    cases.check("config-of-an-initiator-alone", || {
        let files = Files::new(context)?;
        let file = files.path("c.toml");
        fs::write(&file, "[client]\nseal = \"require\"\n")?;
        let file = text(&file);
        contains(&ours(context, &["check", &file])?.success()?, &["0 targets"])?;
        contains(&ours(context, &["serve", "--config", &file])?.expect(2)?, &["there is no [[target]]"])
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
            for arguments in [&["check"][..], &["serve", "--config"]] {
                let mut command = context.command();
                let output = run(command.args(arguments).arg(&file), Duration::from_secs(15))?;
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
        let patchy = patchy_file(patchy, BYTES, context.seed_for("cli-contract/patchy"))?;
        ours(context, &["copy", &text(&patchy), &text(&files.destination)])?.success()?;
        same_file(&patchy, &files.destination)?;
        let (stored, size) = (fs::metadata(&files.destination)?.blocks() * 512, size_of(&patchy)?);
        demand!(stored < size, "a sparse source filled the destination: {stored} of {size} bytes allocated")
    });
    cases.check("demo", || {
        let dir = scratch()?;
        let demo = run(context.command().arg("demo").current_dir(dir.path()), Duration::from_secs(120));
        let output = demo?.success()?;
        demand!(!output.stdout.trim().is_empty(), "it says nothing")
    });
    cases.check("sigpipe-is-quiet", || {
        let script = format!("'{}' --help | head -1 >/dev/null", text(&context.hikyaku));
        let output = run(Command::new("bash").args(["-c", &script]), LIMIT)?;
        demand!(!output.stderr.contains("panicked"), "{}", output.stderr)
    });
    Ok(())
}
