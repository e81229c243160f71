//! `ls`: lists the targets and LUNs of a portal or target.

use block::{Location, OpenError};
use job::shell::quoted;
use node::initiator::{LunInfo, Options, Url, discover, list_luns};
use serde_json::{Value, json};

use crate::context::Context;
use crate::endpoint::Named;
use crate::error::{Exit, Failure};
use crate::output::{self, Table};
use crate::{advice, protection, units};

/// List targets, portals and LUNs
///
/// `iscsi://host[:port]` fetches the targets of the portal and logs in to each to list its LUNs;
/// `iscsi://host[:port]/iqn` lists the LUNs of one target.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku ls iscsi://host
  hikyaku ls iscsi://host/iqn.2026-11.example:disks --json")]
pub(crate) struct Args {
    /// Portal or target, with the options of a remote LUN
    #[arg(value_name = "URL")]
    url: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

struct Found {
    iqn: String,
    portals: Vec<String>,
    luns: Result<Vec<LunInfo>, Failure>,
    /// Protection of the session that listed the LUNs.
    protection: Value,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let named = Named::parse(context, &args.url, &[])?;
    let Location::Url(text) = &named.spec.location else {
        let is_there = named.path().is_some_and(std::path::Path::exists);
        let hint = match advice::meant_url(&named.text, true).filter(|_| !is_there) {
            Some(url) => format!("hikyaku ls {}", quoted(&url)),
            None => format!("hikyaku info {}, or hikyaku ls iscsi://host", quoted(&named.text)),
        };
        return Err(Failure::usage("list", named.text, "it is not a URL").hint(hint));
    };
    let url = Url::parse(text).map_err(|error| Failure::usage("list", named.text.clone(), error))?;
    let options = named.initiator_options(context, &url)?;
    let failed = |error: OpenError| named.failed("list", &error);
    let targets = match url.target.clone() {
        Some(iqn) => {
            let (luns, facts) = list_luns(&mut job::event_loop()?, &url, &options).map_err(failed)?;
            let protection = protection::of(&facts);
            vec![Found { iqn, portals: vec![url.address()], luns: Ok(luns), protection }]
        }
        None => look(context, &url, &options, &named)?,
    };
    if args.json {
        output::json(
            &json!({ "schema": output::SCHEMA, "targets": targets.iter().map(object).collect::<Vec<_>>() }),
        );
    } else {
        table(&targets).print();
        for target in &targets {
            if let Err(failure) = &target.luns {
                context.warn(&failure.to_string());
            }
        }
    }
    Ok(Exit::Done)
}

/// Runs discovery, then logs in to each target for its LUNs. A target that refuses the login is listed with the
/// failure. Each session has its own loop, so that late events of one cannot reach the next.
fn look(context: &Context, portal: &Url, options: &Options, named: &Named) -> Result<Vec<Found>, Failure> {
    let targets = discover(&mut job::event_loop()?, portal, options)
        .map_err(|error| named.failed("list the targets of", &error))?;
    let found = targets.into_iter().map(|target| {
        let url = Url { target: Some(target.name.clone()), lun: None, ..portal.clone() };
        let (options, client) = named.options_for(context, &url, options)?;
        let luns = list_luns(&mut job::event_loop()?, &url, &options);
        let protection = luns.as_ref().map_or(Value::Null, |(_, facts)| protection::of(facts));
        let luns = luns.map(|(luns, _)| luns).map_err(|error| {
            let failure = Failure::open("list the LUNs of", target.name.clone(), &error);
            client.map_or(failure.clone(), |client| client.explain(failure, &error))
        });
        Ok(Found { iqn: target.name, portals: target.addresses, luns, protection })
    });
    found.collect()
}

fn object(target: &Found) -> Value {
    let (luns, error) = match &target.luns {
        Ok(luns) => (luns.iter().map(lun_object).collect(), Value::Null),
        Err(failure) => (Vec::new(), failure.to_json()["error"].clone()),
    };
    json!({
        "iqn": target.iqn,
        "portals": target.portals,
        "protection": target.protection,
        "luns": luns,
        "error": error,
    })
}

fn lun_object(lun: &LunInfo) -> Value {
    json!({
        "lun": lun.lun,
        "size_bytes": lun.size_bytes,
        "block_size": lun.block_size,
        "vendor": lun.vendor,
        "product": lun.product,
        "serial": lun.serial,
        "read_only": lun.read_only,
    })
}

fn table(targets: &[Found]) -> Table {
    let unknown = || "-".to_owned();
    let mut table =
        Table::new(&["target", "portal", "lun", "size", "block", "mode", "product", "serial", "protection"]);
    for target in targets {
        let portals = target.portals.join(" ");
        let row =
            |cells: [String; 7]| [target.iqn.clone(), portals.clone()].into_iter().chain(cells).collect();
        let protection = target.protection["kind"].as_str().map_or_else(unknown, str::to_owned);
        match &target.luns {
            Ok(luns) if !luns.is_empty() => {
                for lun in luns {
                    table.row(row([
                        lun.lun.to_string(),
                        lun.size_bytes.map_or_else(unknown, units::bytes),
                        lun.block_size.map_or_else(unknown, |size| size.to_string()),
                        if lun.read_only { "ro" } else { "rw" }.to_owned(),
                        format!("{} {}", lun.vendor.trim(), lun.product.trim()),
                        lun.serial.as_ref().map_or_else(unknown, |serial| serial.trim().to_owned()),
                        protection.clone(),
                    ]));
                }
            }
            _ => table.row(row(std::array::from_fn(|_| unknown()))),
        }
    }
    table
}
