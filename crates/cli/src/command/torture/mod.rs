//! `torture`: tests whether storage keeps the writes that it acknowledged.

mod engine;
mod journal;
mod verdict;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use block::remote::Links;
use block::{Endpoint, Medium, OpenOptions};
use io::Io;
use job::refusals;
use torture::SECTOR_BYTES;
use torture::journal::Header;
use torture::plan::Ability;

use crate::command::copy::parse_links;
use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::{protection, secret, units};
use engine::{Engine, Until};
use journal::Journal;

/// Maximum bytes watched: the state of a sector takes about 150 bytes of memory.
const BYTES_MAX: u64 = 4 << 30;
/// Bytes watched of a larger endpoint, by default.
const BYTES_DEFAULT: u64 = 1 << 30;
/// Sectors of the longest request.
const REQUEST_SECTORS_MAX: u64 = 2048;
const CLIENTS_MAX: u32 = 32;
const SECONDS_DEFAULT: Duration = Duration::from_secs(60);

/// Test that storage keeps what it acknowledged; overwrites it
///
/// Stamps every sector of 512 bytes with its address, a sequence number and a CRC, then reads, writes, discards and
/// flushes in requests that overlap, of several sessions at once. Every read must return what some order of the requests
/// allows. Lost connections are waited out: restart the storage, cut the network. At the end every sector is
/// read back and judged. Exit 0: no acknowledged byte was lost; 3: some were.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without --cuts, what was acknowledged must survive whatever happens, as it does
when a process is killed. With --cuts, any lost connection may have been a power
cut: what was neither flushed nor written with FUA may be gone.

Examples:
  hikyaku torture iscsi://host/iqn.2026-11.example:disks/0 --destroy
  hikyaku torture /dev/sdx --destroy --journal /var/tmp/sdx.journal
  hikyaku torture /dev/sdx --check /var/tmp/sdx.journal --cuts
  hikyaku serve disk.img,crash=after=500:seed=7 --listen 127.0.0.1:3260")]
pub(crate) struct Args {
    /// What is tortured
    #[arg(value_name = "ENDPOINT")]
    endpoint: String,

    /// Everything on it may be overwritten
    #[arg(long, conflicts_with = "check")]
    destroy: bool,

    /// How long the clients work [default: 60]
    #[arg(long, value_name = "N", conflicts_with_all = ["operations", "check"])]
    seconds: Option<u64>,

    /// How many requests each client makes
    #[arg(long, value_name = "N", conflicts_with = "check")]
    operations: Option<u64>,

    /// Of the workload [default: random]; it is printed
    #[arg(long, value_name = "N", conflicts_with = "check")]
    seed: Option<u64>,

    /// Bytes from the start [default: all, at most 1G]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, conflicts_with = "check")]
    size: Option<u64>,

    /// Sessions at once, each under an initiator name of its own
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(CLIENTS_MAX)))]
    clients: u32,

    /// iSCSI sessions of each client at once: `auto` or a number
    #[arg(long, value_name = "auto|N", default_value = "1", value_parser = parse_links)]
    connections: Links,

    /// The power may fail with a connection: what was not flushed may be lost
    #[arg(long)]
    cuts: bool,

    /// Keep a record there, not on the endpoint, from which --check judges after a crash of this program or machine
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    journal: Option<PathBuf>,

    /// Only read everything back and judge it by this record
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) struct Client {
    pub(super) named: Named,
    pub(super) medium: Arc<dyn Medium>,
    pub(super) endpoint: Box<dyn Endpoint>,
}

impl Client {
    /// Whether the endpoint uses the initiator of this program.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self.named.spec.location, block::Location::Url(_))
    }
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    if !args.destroy && args.check.is_none() {
        let refused = Failure::refused(
            "torture",
            secret::shown(&args.endpoint),
            "everything on it would be overwritten",
        );
        return Err(refused.hint("--destroy, if that is meant"));
    }
    let mut io = job::event_loop()?;
    let mut clients = open(context, args, &mut io)?;
    let capability = clients[0].endpoint.capability().clone();
    // The same for all clients, as they differ only in the initiator's name.
    let protection = protection::of(&clients[0].endpoint.inspect().facts());
    if capability.read_only && args.check.is_none() {
        return Err(Failure::refused("overwrite", secret::shown(&args.endpoint), "it is read-only"));
    }
    let (header, history, until) = if let Some(path) = &args.check {
        let (header, history) = journal::read(path)?;
        (header, Some(history), Until::Check)
    } else {
        let Client { named, endpoint, .. } = &mut clients[0];
        refusals::spoil(&mut io, &named.text, &mut **endpoint)?;
        let until = match args.operations {
            Some(count) => Until::Operations(count),
            None => Until::Time(args.seconds.map_or(SECONDS_DEFAULT, Duration::from_secs)),
        };
        (header(args, &capability)?, None, until)
    };
    let bytes = header.ability.sectors * SECTOR_BYTES as u64;
    if bytes > capability.size_bytes {
        let cause = format!("it has {} bytes; the record is of {bytes}", capability.size_bytes);
        return Err(Failure::usage("check", secret::shown(&args.endpoint), cause));
    }
    let journal = args.journal.as_deref().map(|path| Journal::create(path, &header)).transpose()?;
    context.remark(&format!(
        "{} of {}, seed {}, {}",
        units::bytes(bytes),
        clients[0].named.text,
        header.seed,
        units::counted(clients.len() as u64, "session"),
    ));
    let _orderly = context.stop.orderly();
    let object = clients[0].named.text.clone();
    let mut engine = Engine::new(context, &mut io, clients, header, history, journal, args.cuts);
    let outcome = engine.run(until);
    let (tally, clients) = engine.into_parts();
    match outcome {
        Ok(()) => {
            for client in clients {
                job::close(&mut io, [client.endpoint]);
            }
            Ok(verdict::print(context, &header, &tally, &protection))
        }
        Err(failure) if failure.ending == Exit::Mismatch => {
            Ok(verdict::print(context, &header, &tally, &protection))
        }
        Err(mut failure) => {
            if failure.object.is_empty() {
                failure.object = object;
            }
            if let Some(path) = &args.journal {
                failure.hint = format!("judge it later: hikyaku torture ENDPOINT --check {}", path.display());
            }
            Err(failure)
        }
    }
}

/// Opens a session for each client. Local storage is opened once.
fn open(context: &Context, args: &Args, io: &mut Io) -> Result<Vec<Client>, Failure> {
    let options = OpenOptions {
        writable: args.check.is_none(),
        request_alignment: SECTOR_BYTES as u32,
        allow_in_use: false,
    };
    let mut clients: Vec<Client> = Vec::new();
    for number in 0..args.clients {
        let mut named = Named::parse(context, &args.endpoint, &[])?.with_sessions(args.connections);
        if named.path().is_some() && named.spec.get("format").is_none() {
            // Raw: its content is checked before the first write.
            named.set("format", "raw");
        }
        if number == 0 && args.check.is_none() {
            refusals::spoil_path(&named.text, &named.spec)?;
        }
        let is_remote = matches!(named.spec.location, block::Location::Url(_));
        if is_remote && number > 0 {
            let name = named.initiator_name(context)?;
            named.set("initiator", &format!("{name}-torture-{number}"));
        }
        let medium = match clients.first() {
            Some(first) if !is_remote => Arc::clone(&first.medium),
            _ => named.open(context, &options)?,
        };
        let endpoint = endpoint::attach(io, &[(&named, &medium)])?.remove(0);
        clients.push(Client { named, medium, endpoint });
    }
    Ok(clients)
}

fn header(args: &Args, capability: &block::Capability) -> Result<Header, Failure> {
    let usage = |cause: String| Failure::usage("torture", secret::shown(&args.endpoint), cause);
    let sector = SECTOR_BYTES as u64;
    let block = u64::from(capability.granularity.max(capability.block_size)).div_ceil(sector);
    let bytes = args.size.unwrap_or(capability.size_bytes.min(BYTES_DEFAULT));
    if bytes > capability.size_bytes {
        return Err(usage(format!("it has {} bytes, not {bytes}", capability.size_bytes)));
    }
    if bytes > BYTES_MAX {
        return Err(usage(format!("at most {} can be watched; say --size", units::bytes(BYTES_MAX))));
    }
    let sectors = bytes / sector / block * block;
    if sectors == 0 {
        return Err(usage("it has no whole block".to_owned()));
    }
    let random = |_| {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| Failure::failed("find a seed", "", error))?;
        Ok(u64::from_le_bytes(bytes))
    };
    let longest =
        (u64::from(capability.max_transfer_bytes) / sector).min(REQUEST_SECTORS_MAX) / block * block;
    Ok(Header {
        run: random(())?,
        // Shifted to 32 bits, so that it is short enough to type.
        seed: args.seed.map_or_else(|| random(()).map(|seed| seed >> 32), Ok)?,
        clients: args.clients,
        ability: Ability {
            sectors,
            block,
            longest: longest.max(block),
            discard: capability.discard,
            write_zeroes: capability.write_zeroes,
        },
        volatile: capability.volatile_cache,
    })
}
