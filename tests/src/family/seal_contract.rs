//! Part of `cli-contract`: the contract for keys, policies and trust, and the secrecy of keys.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::attack::names::Scene;
use crate::{Cases, Context, Server, run};

const LIMIT: Duration = Duration::from_secs(60);

/// Serves with all its log; the initiator has the key of the one peer.
fn serve(scene: &Scene<'_>, policy: &[&str]) -> Result<Server> {
    let mut command = scene.command();
    command.env("HIKYAKU_LOG", "trace").args(["serve", "mem:4M", "--listen", "127.0.0.1:0"]);
    command.args(["--identity", &scene.path("target.key"), "--peers", &scene.path("peers.toml")]);
    Server::start(command.args(policy), 1)
}

fn secret(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path)?;
    Ok(text.lines().last().context("a key file has a line")?.to_owned())
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    cases.check("key-new-keeps-it-from-others-and-never-overwrites", || {
        use std::os::unix::fs::PermissionsExt;
        let scene = Scene::new(context)?;
        let mode = fs::metadata(scene.path("target.key"))?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "mode {mode:03o}");
        let before = fs::read(scene.path("target.key"))?;
        scene.ours(&["key", "new", &scene.path("target.key")])?.expect(6)?;
        ensure!(fs::read(scene.path("target.key"))? == before, "overwritten");
        fs::set_permissions(scene.path("target.key"), fs::Permissions::from_mode(0o640))?;
        scene.ours(&["key", "public", &scene.path("target.key")])?.expect(4)?.says("chmod 600").map(drop)
    });
    cases.check("a-peers-key-requires-sealing-on-both-sides", || {
        let scene = Scene::new(context)?;
        let sealed = serve(&scene, &[])?;
        let (url, portal) = (sealed.url.to_string(), format!("iscsi://{}", sealed.url.portal));
        let info = || scene.ours(&["info", &url, "--json"]);
        let hint = info()?.expect(4)?.json_error()?["hint"].to_string();
        ensure!(hint.contains(&format!("hikyaku key trust {portal}")), "{hint}");
        scene.ours(&["key", "trust", &portal])?.expect(4)?;
        scene.ours(&["key", "trust", &portal, "--key", &scene.target_key])?.success()?;
        let protection = info()?.success()?.json()?["protection"].clone();
        ensure!(protection["kind"] == "seal" && protection["peer"] == *scene.target_key, "{protection}");
        scene.ours(&["copy", "pattern:4M", &url, "--verify"])?.success()?;
        scene.ours(&["info", &format!("{url},seal=off")])?.expect(4).map(drop)
    });
    cases.check("a-target-that-stops-sealing-is-refused", || {
        let scene = Scene::new(context)?;
        let plain = serve(&scene, &["--seal", "off"])?;
        let info = |options: &str| scene.ours(&["info", &format!("{}{options}", plain.url)]);
        let keyed = format!(",peer-key={}", scene.target_key);
        info("")?.success()?;
        info(&keyed)?.expect(4)?;
        info(&format!("{keyed},seal=offer"))?.expect(4)?;
        info(&format!("{keyed},seal=off"))?.success()?;
        // Known, not given: `key trust` would not note the key of a target that does not prove it.
        let known = format!("{} {}\n", plain.url.portal, scene.target_key);
        fs::write(scene.home.path().join("config/hikyaku/known-targets"), known)?;
        info(",seal=offer")?.expect(4).map(drop)
    });
    cases.check("no-key-in-logs-json-or-command-lines", || {
        let scene = Scene::new(context)?;
        let secrets = [
            secret(Path::new(&scene.path("target.key")))?,
            secret(&scene.home.path().join("config/hikyaku/identity"))?,
        ];
        let sealed = serve(&scene, &[])?;
        let url = sealed.url.to_string();
        let keyed = format!("{url},peer-key={}", scene.target_key);
        let mut said = String::new();
        let commands: [&[&str]; 4] = [
            &["info", &keyed, "--json"],
            &["ls", &keyed],
            &["key", "public", "--json"],
            &["info", &url, "--json"],
        ];
        for arguments in commands {
            let mut command = scene.command();
            said += &run(command.env("HIKYAKU_LOG", "trace").args(arguments), LIMIT)?.text();
        }
        said += &fs::read_to_string(format!("/proc/{}/cmdline", sealed.running.pid()))?;
        let limits = fs::read_to_string(format!("/proc/{}/limits", sealed.running.pid()))?;
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).context("no limit")?;
        ensure!(core.split_whitespace().filter(|word| *word == "0").count() == 2, "{core}");
        said += &sealed.running.stderr();
        ensure!(said.contains("sealing: require"), "the target's log is missing:\n{said}");
        let shown = secrets.iter().any(|secret| said.contains(secret.as_str()));
        demand!(!shown, "a private key was shown")
    });
    cases.check("sealing-that-is-only-offered-is-exposure", || {
        let scene = Scene::new(context)?;
        let own = ["--identity", &scene.path("target.key"), "--peers", &scene.path("peers.toml")];
        let serve = ["serve", "mem:1M", "--listen", "0.0.0.0:0", "--seal", "offer"];
        scene.ours(&[&serve[..], &own].concat())?.expect(6)?;
        let mut command = scene.command();
        command.args(["serve", "mem:1M", "--listen", "0.0.0.0:0"]).args(own);
        Server::start(&mut command, 1).map(drop)
    });
}
