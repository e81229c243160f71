//! `config`: the commented example, and the configuration with all defaults.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Map, Value, json};

use crate::command::serve::{DRAIN_TIMEOUT_DEFAULT, LISTEN_DEFAULT};
use crate::config::{Acl, Config, Lun, Target, default_file};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::{output, trust};

/// The commented example, also part of hikyaku.toml(5).
pub(crate) const EXAMPLE: &str = include_str!("../../../../contrib/hikyaku.toml");

/// Print an example configuration, or the present one
///
/// hikyaku.toml(5) explains every key.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku config example > hikyaku.toml    begin with a commented file
  hikyaku config show                      what serve would use
  hikyaku config show new.toml --json | jq '.target[].iqn'")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print a commented example with three targets, access rules, CHAP, peers and TLS
    #[command(after_help = "Examples:\n  hikyaku config example > hikyaku.toml")]
    Example,
    Show(Show),
}

/// Print the configuration as serve uses it, defaults included
///
/// Paths are absolute. Secrets are named by their files and never read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  hikyaku config show /etc/hikyaku/hikyaku.toml")]
struct Show {
    /// The configuration [default: hikyaku.toml in the configuration directory, or /etc/hikyaku/hikyaku.toml]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn json(&self) -> bool {
        matches!(&self.action, Action::Show(show) if show.json)
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let show = match &args.action {
        Action::Example => {
            output::line(EXAMPLE.trim_end());
            return Ok(Exit::Done);
        }
        Action::Show(show) => show,
    };
    let file = show.file.clone().unwrap_or_else(default_file);
    let failed = |error: &dyn std::fmt::Display| {
        Failure::failed("print the configuration", file.display().to_string(), error)
    };
    let config = Config::load(context, &std::path::absolute(&file).map_err(|error| failed(&error))?)?;
    let mut object = effective(&config)?;
    if show.json {
        object.insert("schema".to_owned(), json!(output::SCHEMA));
        output::json(&Value::Object(object));
    } else {
        output::line(toml::to_string(&object).map_err(|error| failed(&error))?.trim_end());
    }
    Ok(Exit::Done)
}

fn path(path: &Path) -> Value {
    json!(path.display().to_string())
}

/// The tables of a file that means the same and leaves nothing to defaults.
fn effective(config: &Config) -> Result<Map<String, Value>, Failure> {
    let listen: Vec<String> = match &config.listen[..] {
        [] => vec![LISTEN_DEFAULT.to_string()],
        listen => listen.iter().map(ToString::to_string).collect(),
    };
    let timeout = match config.drain_timeout.unwrap_or(DRAIN_TIMEOUT_DEFAULT) {
        whole if whole.subsec_nanos() == 0 => format!("{}s", whole.as_secs()),
        other => format!("{}ms", other.as_millis()),
    };
    let mut server = Map::from_iter([
        ("listen".to_owned(), json!(listen)),
        ("drain-timeout".to_owned(), json!(timeout)),
        ("seal".to_owned(), json!(config.seal_policy().name())),
        ("allow-user".to_owned(), json!(config.allow_users)),
        ("storage".to_owned(), config.storage.iter().map(|directory| path(directory)).collect()),
    ]);
    let mut add = |name: &str, value: Option<Value>| {
        server.extend(value.map(|value| (name.to_owned(), value)));
    };
    add("advertise", config.advertise.as_ref().map(|advertise| json!(advertise)));
    if let Some(peers) = &config.peers {
        let identity = match &config.identity {
            Some(identity) => identity.clone(),
            None => trust::identity::default_file()?,
        };
        add("identity", Some(path(&identity)));
        add("peers", Some(path(peers)));
    }
    if let Some((certificate, key)) = &config.tls {
        add("tls-certificate", Some(path(certificate)));
        add("tls-key", Some(path(key)));
    }
    add("metrics", config.metrics.map(|address| json!(address.to_string())));
    add("metrics-token-file", config.metrics_token_file.as_ref().map(|file| path(file)));
    let mut object = Map::from_iter([("server".to_owned(), Value::Object(server))]);
    if !config.targets.is_empty() {
        object.insert("target".to_owned(), config.targets.iter().map(target).collect());
    }
    Ok(object)
}

fn target(target: &Target) -> Value {
    let luns: Vec<Value> = target.luns.iter().map(lun).collect();
    let acls: Vec<Value> = target.acls.iter().map(|acl| rule(acl, target)).collect();
    let mut object = json!({ "iqn": target.iqn, "lun": luns });
    if !acls.is_empty() {
        object["acl"] = json!(acls);
    }
    object
}

fn lun(lun: &Lun) -> Value {
    let mut object = json!({ "lun": lun.lun, "endpoint": lun.endpoint.placed() });
    if let Some(serial) = &lun.serial {
        object["serial"] = json!(serial);
    }
    object
}

fn rule(acl: &Acl, target: &Target) -> Value {
    let mut object = Map::new();
    let mut add = |name: &str, value: Option<Value>| {
        object.extend(value.map(|value| (name.to_owned(), value)));
    };
    add("initiator", acl.initiator.as_ref().map(|name| json!(name)));
    add("peer", acl.peer.as_ref().map(|name| json!(name)));
    add("chap-user", acl.chap.as_ref().map(|account| json!(account.user)));
    add("secret-file", acl.chap.as_ref().map(|account| path(&account.secret_file)));
    add("mutual-chap-user", acl.mutual.as_ref().map(|account| json!(account.user)));
    add("mutual-secret-file", acl.mutual.as_ref().map(|account| path(&account.secret_file)));
    // A rule with nothing but an account is another kind; a list of LUNs or a mode would change its meaning.
    if !acl.is_account() {
        let all = || target.luns.iter().map(|lun| lun.lun).collect();
        add("luns", Some(json!(acl.luns.clone().unwrap_or_else(all))));
        add("mode", Some(json!(if acl.read_only { "ro" } else { "rw" })));
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let config = Config::parse(&Context::default(), text).unwrap();
        toml::to_string(&effective(&config).unwrap()).unwrap()
    }

    #[test]
    fn what_is_shown_is_a_configuration_that_shows_the_same() {
        let once = shown(EXAMPLE);
        assert_eq!(shown(&once), once);
        for part in [
            "listen = [\"0.0.0.0:3260\", \"[::]:3260\"]",
            "drain-timeout = \"20s\"",
            "mode = \"ro\"",
            "luns = [0, 1]",
            "endpoint = \"/srv/hikyaku/vm-data.img,cache=writethrough\"",
        ] {
            assert!(once.contains(part), "no {part} in:\n{once}");
        }
    }

    #[test]
    fn defaults_are_shown() {
        let text = "[[target]]\niqn = \"iqn.2026-11.example:a\"\n[[target.lun]]\nlun = 0\nendpoint = \"/srv/a,,b.img,ro\"\n";
        let once = shown(text);
        for part in [
            "listen = [\"127.0.0.1:3260\"]",
            "drain-timeout = \"10s\"",
            "seal = \"off\"",
            "allow-user = []",
            "endpoint = \"/srv/a,,b.img,ro\"",
        ] {
            assert!(once.contains(part), "no {part} in:\n{once}");
        }
    }

    #[test]
    fn a_password_in_a_url_is_not_shown() {
        let text = "[[target]]\niqn = \"iqn.2026-11.example:a\"\n[[target.lun]]\nlun = 0\nendpoint = \"iscsi://u%secretsecret@h/iqn.2026-11.example:b/0,ro\"\n";
        let once = shown(text);
        assert!(!once.contains("secretsecret") && once.contains("/iqn.2026-11.example:b/0,ro"), "{once}");
    }
}
