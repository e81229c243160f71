//! `key list` and `key forget`: the known targets, and the peers of a peers file.

use std::path::PathBuf;

use block::Location;
use node::initiator::Url;
use node::target::Peer;
use serde_json::{Value, json};

use crate::context::Context;
use crate::endpoint::Named;
use crate::error::Failure;
use crate::output::{self, Table};
use crate::trust::known::{Forgotten, KnownTargets, Listed, Place};
use crate::trust::{fingerprint, peers};
use crate::{advice, names};

/// List the known targets: names, addresses, key, since when, and where that is kept
///
/// First the targets of this user, then those of /etc/hikyaku/known-targets, which all users trust.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// List the peers of this file too, which `serve --peers` admits
    #[arg(long, value_name = "FILE")]
    peers: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Forget the key of a known target
///
/// Removes every line of this user's known targets that has the name: a host, an address or the name (IQN) of a target. After
/// that sessions with it are no longer required to be sealed, and its key has to be compared again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku key forget iscsi://host
  hikyaku key forget host:3261
  hikyaku key forget iqn.2026-11.example:disks")]
pub(super) struct ForgetArgs {
    /// `host[:port]`, `iscsi://host[:port]` or the name of a target, as `key list` prints them
    #[arg(value_name = "NAME|URL")]
    name: String,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn list(context: &Context, args: &ListArgs) -> Result<(), Failure> {
    let listed = KnownTargets::read()?.list()?;
    let admitted = match &args.peers {
        Some(file) => peers::load(context, file)?,
        None => Vec::new(),
    };
    if args.json {
        let targets: Vec<Value> = listed.iter().map(object).collect();
        let admitted: Vec<Value> = admitted.iter().map(|peer| peer_object(peer, args)).collect();
        output::json(&json!({ "schema": output::SCHEMA, "targets": targets, "peers": admitted }));
        return Ok(());
    }
    let mut table = Table::new(&["known", "fingerprint", "since", "addresses", "targets", "file"]);
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    for listed in &listed {
        table.row(vec![
            listed.name.clone(),
            match &listed.next {
                Some(next) => format!("{}, next {}", fingerprint(&listed.key), fingerprint(next)),
                None => fingerprint(&listed.key),
            },
            or_none(listed.since.clone().unwrap_or_default()),
            or_none(listed.addresses.join(" ")),
            or_none(listed.targets.join(" ")),
            format!("{}:{}", listed.path.display(), listed.line),
        ]);
    }
    table.print();
    let mut table = Table::new(&["peer", "fingerprint", "initiator", "luns"]);
    for peer in &admitted {
        let luns =
            peer.luns.as_ref().map(|luns| luns.iter().map(u16::to_string).collect::<Vec<_>>().join(" "));
        table.row(vec![
            peer.name.clone(),
            fingerprint(&peer.public_key),
            or_none(peer.initiator.clone().unwrap_or_default()),
            luns.map_or_else(|| "all".to_owned(), or_none),
        ]);
    }
    table.print();
    if listed.is_empty() {
        context.remark("no target is known; hikyaku key trust iscsi://host makes one known");
    }
    Ok(())
}

pub(super) fn forget(context: &Context, args: &ForgetArgs) -> Result<(), Failure> {
    let what = understand(context, &args.name)?;
    let known = KnownTargets::read()?;
    let removed = known.forget(&what)?;
    if removed.is_empty() {
        let file = known.own()?;
        let elsewhere =
            known.list()?.into_iter().find(|listed| listed.path != file && is_named(&what, listed));
        let failure = |cause: String| Failure::failed("forget", args.name.clone(), cause);
        return Err(match elsewhere {
            Some(listed) => failure(format!(
                "line {} of {} names it, for all users of this host",
                listed.line,
                listed.path.display()
            ))
            .hint("as root, without XDG_CONFIG_HOME: hikyaku key forget NAME"),
            None => failure(format!("no line of {} has this name", file.display()))
                .hint("hikyaku key list prints the names"),
        });
    }
    let still = KnownTargets::read()?.still_known(&removed)?;
    if args.json {
        let objects = |listed: &[Listed]| listed.iter().map(object).collect::<Vec<_>>();
        output::json(&json!({
            "schema": output::SCHEMA,
            "forgotten": objects(&removed),
            "still_known": objects(&still),
        }));
        return Ok(());
    }
    for listed in &removed {
        let name = std::iter::once(&listed.name).chain(&listed.addresses).chain(&listed.targets);
        let names: Vec<&str> = name.map(String::as_str).collect();
        output::line(&format!("forgotten: {} {}", names.join(" "), listed.key));
    }
    for listed in &still {
        context.remark(&format!(
            "still known, by its key or by another of its names: {} (line {} of {})",
            listed.name,
            listed.line,
            listed.path.display()
        ));
    }
    Ok(())
}

fn understand(context: &Context, name: &str) -> Result<Forgotten, Failure> {
    let usage = |cause: String| Failure::usage("forget", name.to_owned(), cause);
    if name.contains("://") {
        let named = Named::parse(context, name, &[])?;
        let Location::Url(text) = &named.spec.location else {
            return Err(usage("it is not a URL".to_owned()));
        };
        let url = Url::parse(text).map_err(|error| usage(error.to_string()))?;
        return Ok(Forgotten::Place(Place::of(&url.host, url.port)));
    }
    if let Ok(target) = names::parse_iscsi_name(name) {
        return Ok(Forgotten::Target(target));
    }
    let url = advice::meant_url(name, true).and_then(|url| Url::parse(&url).ok());
    let url = url.ok_or_else(|| {
        usage("it is neither host[:port] nor the name of a target".to_owned())
            .hint("hikyaku key list prints the names")
    })?;
    Ok(Forgotten::Place(Place::of(&url.host, url.port)))
}

fn is_named(what: &Forgotten, listed: &Listed) -> bool {
    match what {
        Forgotten::Place(place) => {
            let text = place.to_string();
            listed.name == text || listed.addresses.contains(&text)
        }
        Forgotten::Target(target) => listed.targets.contains(target),
    }
}

fn object(listed: &Listed) -> Value {
    let object = json!({
        "name": listed.name,
        "addresses": listed.addresses,
        "targets": listed.targets,
        "since": listed.since,
        "file": listed.path,
        "line": listed.line,
        "next_public_key": listed.next.map(|next| next.to_string()),
        "next_fingerprint": listed.next.as_ref().map(fingerprint),
    });
    super::with_key(object, &listed.key)
}

fn peer_object(peer: &Peer, args: &ListArgs) -> Value {
    let object = json!({
        "name": peer.name,
        "initiator": peer.initiator,
        "luns": peer.luns,
        "file": args.peers,
    });
    super::with_key(object, &peer.public_key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_host_a_url_or_a_target() {
        let context = Context::default();
        let of = |text: &str| match understand(&context, text) {
            Ok(Forgotten::Place(place)) => place.to_string(),
            Ok(Forgotten::Target(target)) => target,
            Err(failure) => failure.cause,
        };
        for (text, expected) in [
            ("host", "host:3260"),
            ("Host:3261", "host:3261"),
            ("10.0.0.1", "10.0.0.1:3260"),
            ("[::1]:3261", "[::1]:3261"),
            ("::1", "[::1]:3260"),
            ("iscsi://host", "host:3260"),
            ("iscsi://host:9/iqn.2026-11.example:x/0", "host:9"),
            ("IQN.2026-11.example:X", "iqn.2026-11.example:x"),
            ("a b", "it is neither host[:port] nor the name of a target"),
            ("/etc/hosts", "it is neither host[:port] nor the name of a target"),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        assert!(of("nbd://host/x").contains("does not begin with iscsi://"), "{}", of("nbd://host/x"));
    }
}
