//! `info`: what an endpoint is.

use block::{Capability, OpenOptions};
use serde_json::{Map, Value, json};

use crate::command::copy;
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::{output, units};

/// Show what an endpoint is: size, blocks, abilities; of a LUN also what was negotiated and its identity
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku info disk.img
  hikyaku info iscsi://host/iqn.2026-11.example:disks/0 --json")]
pub(crate) struct Args {
    /// What to look at; it is opened for reading only
    #[arg(value_name = "ENDPOINT")]
    endpoint: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let named = Named::parse(context, &args.endpoint, &[])?;
    let mut io = endpoint::event_loop()?;
    let options = OpenOptions { writable: false, request_alignment: 512, allow_in_use: true };
    let medium = named.open(context, &options)?;
    let endpoint = endpoint::attach(&mut io, &[(&named, &medium)])?.remove(0);
    let (capability, facts) = (endpoint.capability().clone(), endpoint.facts());
    copy::end(&mut io, [endpoint]);
    if args.json {
        output::json(&object(&named.text, &capability, &facts));
    } else {
        let rows = rows(&named.text, &capability, &facts);
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let lines: Vec<String> =
            rows.iter().map(|(name, value)| format!("{name:<width$}  {value}")).collect();
        output::line(&lines.join("\n"));
    }
    Ok(Exit::Done)
}

fn object(name: &str, capability: &Capability, facts: &[(&'static str, String)]) -> Value {
    let named: Map<String, Value> =
        facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    json!({
        "schema": output::SCHEMA,
        "endpoint": name,
        "size_bytes": capability.size_bytes,
        "block_size": capability.block_size,
        "physical_block_size": capability.physical_block_size,
        "granularity": capability.granularity,
        "max_transfer_bytes": capability.max_transfer_bytes,
        "optimal_transfer_bytes": capability.optimal_transfer_bytes,
        "queue_depth": capability.queue_depth,
        "discard": capability.discard,
        "write_zeroes": capability.write_zeroes,
        "volatile_cache": capability.volatile_cache,
        "rotational": capability.rotational,
        "protection": protection(facts),
        "facts": named,
    })
}

/// What protects a session, of its facts; null where there is none.
pub(crate) fn protection(facts: &[(&'static str, String)]) -> Value {
    let find = |name: &str| facts.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    match find("protection") {
        Some(kind) => json!({ "kind": kind, "suite": find("suite"), "peer_key": find("peer key") }),
        None => Value::Null,
    }
}

fn rows(name: &str, capability: &Capability, facts: &[(&'static str, String)]) -> Vec<(String, String)> {
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let size = format!("{} ({} bytes)", units::bytes(capability.size_bytes), capability.size_bytes);
    let own = [
        ("endpoint", name.to_owned()),
        ("size", size),
        ("logical block", format!("{} bytes", capability.block_size)),
        ("physical block", format!("{} bytes", capability.physical_block_size)),
        ("optimal transfer", units::bytes(capability.optimal_transfer_bytes.into())),
        ("longest transfer", units::bytes(capability.max_transfer_bytes.into())),
        ("queue depth", capability.queue_depth.to_string()),
        ("discard", yes(capability.discard)),
        ("write zeroes", yes(capability.write_zeroes)),
        ("volatile cache", yes(capability.volatile_cache)),
        ("rotational", yes(capability.rotational)),
    ];
    own.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .chain(facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())))
        .collect()
}
