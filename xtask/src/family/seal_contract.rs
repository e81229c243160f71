//! Part of `cli-contract`: keys, policies and trust as the contract promises them, and that no secret is seen.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Cases, Context, Output, Running, run, scratch};

const LIMIT: Duration = Duration::from_secs(60);

/// A home with the initiator's key at the usual place, and beside it the target's key and its list of peers.
struct Scene {
    home: TempDir,
    target_key: String,
}

/// A sealed target.
struct Sealed {
    running: Running,
    url: String,
}

impl Sealed {
    fn portal(&self) -> String {
        self.url.split('/').take(3).collect::<Vec<_>>().join("/")
    }
}

impl Scene {
    fn new(context: &Context) -> Result<Self> {
        let mut scene = Self { home: scratch()?, target_key: String::new() };
        let initiator = scene.new_key(context, &[])?;
        scene.target_key = scene.new_key(context, &[&scene.path("target.key")])?;
        let peers = format!("[[peer]]\nname = \"laptop\"\npublic-key = \"{initiator}\"\n");
        fs::write(scene.path("peers.toml"), peers)?;
        Ok(scene)
    }

    fn new_key(&self, context: &Context, file: &[&str]) -> Result<String> {
        let output = self.ours(context, &[&["key", "new"], file].concat())?.success()?;
        Ok(output.stdout.trim().to_owned())
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    fn ours(&self, context: &Context, arguments: &[&str]) -> Result<Output> {
        let output = run(context.command_in(self.home.path()).args(arguments), LIMIT)?;
        ensure!(!output.timed_out, "{}: still running after {LIMIT:?}\n{}", output.line, output.text());
        ensure!(!output.text().contains("panicked"), "{}: {}", output.line, output.text());
        Ok(output)
    }

    fn serve(&self, context: &Context, policy: &[&str]) -> Result<Sealed> {
        let mut command = context.command_in(self.home.path());
        command.env("HIKYAKU_LOG", "trace").args(["serve", "mem:4M", "--listen", "127.0.0.1:0"]);
        command.args(["--identity", &self.path("target.key"), "--peers", &self.path("peers.toml")]);
        let mut running = Running::start(command.args(policy))?;
        let url = running.wait_stdout("URL", LIMIT, |text| {
            text.lines().find(|line| line.starts_with("iscsi://")).map(str::to_owned)
        })?;
        Ok(Sealed { running, url })
    }
}

fn secret(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(text.lines().last().context("a key file has a line")?.to_owned())
}

fn error(output: &Output) -> Result<Value> {
    let line = output.stderr.lines().last().context("nothing on stderr")?;
    Ok(serde_json::from_str::<Value>(line)?["error"].clone())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("key-new-keeps-it-from-others-and-never-overwrites", || {
        use std::os::unix::fs::PermissionsExt;
        let scene = Scene::new(context)?;
        let mode = fs::metadata(scene.path("target.key"))?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "mode {mode:03o}");
        let before = fs::read(scene.path("target.key"))?;
        scene.ours(context, &["key", "new", &scene.path("target.key")])?.expect(6)?;
        ensure!(fs::read(scene.path("target.key"))? == before, "overwritten");
        fs::set_permissions(scene.path("target.key"), fs::Permissions::from_mode(0o640))?;
        let output = scene.ours(context, &["key", "public", &scene.path("target.key")])?.expect(4)?;
        ensure!(output.text().contains("chmod 600"), "{}", output.text());
        Ok(())
    });
    cases.check("a-peers-key-requires-sealing-on-both-sides", || {
        let scene = Scene::new(context)?;
        let sealed = scene.serve(context, &[])?;
        let refused = scene.ours(context, &["info", &sealed.url, "--json"])?.expect(4)?;
        let hint = error(&refused)?["hint"].to_string();
        ensure!(hint.contains(&format!("hikyaku key trust {}", sealed.portal())), "{hint}");
        scene.ours(context, &["key", "trust", &sealed.portal()])?.expect(4)?;
        scene.ours(context, &["key", "trust", &sealed.portal(), "--key", &scene.target_key])?.success()?;
        let output = scene.ours(context, &["info", &sealed.url, "--json"])?.success()?;
        let protection = serde_json::from_str::<Value>(&output.stdout)?["protection"].clone();
        ensure!(protection["kind"] == "seal" && protection["peer"] == *scene.target_key, "{protection}");
        scene.ours(context, &["copy", "pattern:4M", &sealed.url, "--verify"])?.success()?;
        scene.ours(context, &["info", &format!("{},seal=off", sealed.url)])?.expect(4)?;
        Ok(())
    });
    cases.check("a-target-that-stops-sealing-is-refused", || {
        let scene = Scene::new(context)?;
        let plain = scene.serve(context, &["--seal", "off"])?;
        scene.ours(context, &["info", &plain.url])?.success()?;
        let keyed = format!("{},peer-key={}", plain.url, scene.target_key);
        scene.ours(context, &["info", &keyed])?.expect(4)?;
        scene.ours(context, &["info", &format!("{keyed},seal=offer")])?.success()?;
        Ok(())
    });
    cases.check("no-key-in-logs-json-or-command-lines", || {
        let scene = Scene::new(context)?;
        let secrets = [
            secret(Path::new(&scene.path("target.key")))?,
            secret(&scene.home.path().join("config/hikyaku/identity"))?,
        ];
        let sealed = scene.serve(context, &[])?;
        let keyed = format!("{},peer-key={}", sealed.url, scene.target_key);
        let mut said = String::new();
        for arguments in [
            vec!["info", &keyed, "--json"],
            vec!["ls", &keyed],
            vec!["key", "public", "--json"],
            vec!["info", &sealed.url, "--json"],
        ] {
            let mut command = context.command_in(scene.home.path());
            said += &run(command.env("HIKYAKU_LOG", "trace").args(arguments), LIMIT)?.text();
        }
        said += &fs::read_to_string(format!("/proc/{}/cmdline", sealed.running.pid()))?;
        let limits = fs::read_to_string(format!("/proc/{}/limits", sealed.running.pid()))?;
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("no limit")?;
        ensure!(core.split_whitespace().filter(|word| *word == "0").count() == 2, "{core}");
        said += &sealed.running.stderr();
        ensure!(said.contains("sealing: require"), "the target's log is missing:\n{said}");
        for secret in &secrets {
            ensure!(!said.contains(secret.as_str()), "a private key was shown");
        }
        Ok(())
    });
    cases.check("sealing-that-is-only-offered-is-exposure", || {
        let scene = Scene::new(context)?;
        let own = ["--identity", &scene.path("target.key"), "--peers", &scene.path("peers.toml")];
        let serve = ["serve", "mem:1M", "--listen", "0.0.0.0:0", "--seal", "offer"];
        scene.ours(context, &[&serve[..], &own].concat())?.expect(6)?;
        let mut command = context.command_in(scene.home.path());
        command.args(["serve", "mem:1M", "--listen", "0.0.0.0:0"]).args(own);
        Running::start(&mut command)?
            .wait_stdout("URL", LIMIT, |text| text.contains("iscsi://").then_some(()))
    });
}
