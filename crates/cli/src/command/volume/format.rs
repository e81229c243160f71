//! `volume format`.

use block::{Blocking, OpenOptions};
use clap::ValueEnum;
use job::refusals;
use serde_json::json;
use volume::luks2::{self, Format, FormatError, HEADER_AREA_BYTES, SegmentKind};

use super::{OfVolume, Passphrase, named, pbkdf, random};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::{output, units};

/// Make a volume; what the storage holds is lost
///
/// Writes a LUKS2 header of 16 MiB with one key slot. The data itself is not overwritten: what lay there stays there, encrypted by
/// nobody, until it is written. Refused where something is known to be, unless --force.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku volume format /dev/sdx --type luks2
  hikyaku volume format sealed.img,create --data-size 10G --type luks2 --password-file pw
  hikyaku volume format iscsi://host/iqn.2026-11.example:disks/0 --type luks2 --key-file key")]
pub(super) struct Args {
    #[command(flatten)]
    of: OfVolume,

    /// luks2: as cryptsetup's, which opens it
    #[arg(long, value_name = "TYPE", value_enum)]
    r#type: Kind,

    #[command(flatten)]
    passphrase: Passphrase,

    /// Size of the encrypted sectors: 512, 1024, 2048 or 4096 [default: the storage's block size]
    #[arg(long, value_name = "BYTES", value_parser = parse_sector_size)]
    sector_size: Option<u32>,

    /// Bits of the key, two keys of AES for XTS
    #[arg(long, value_name = "BITS", default_value = "512", value_parser = ["256", "512"])]
    key_size: String,

    /// A name for people, at most 47 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    label: String,

    /// With create: make a file with room for so much data behind the header
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    data_size: Option<u64>,

    #[command(flatten)]
    pbkdf: pbkdf::Args,

    /// Overwrite what the storage is known to hold
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Luks2,
}

fn parse_sector_size(text: &str) -> Result<u32, String> {
    match units::parse_size(text)? {
        size @ (512 | 1024 | 2048 | 4096) => Ok(size as u32),
        _ => Err("512, 1024, 2048 or 4096".to_owned()),
    }
}

const ATTEMPTED: &str = "format";

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let mut named = named(context, &args.of.endpoint)?;
    let text = named.text.clone();
    let creates = named.spec.flag("create") == Ok(true);
    match (args.data_size, named.spec.get("size")) {
        (Some(_), _) if !creates => {
            return Err(Failure::usage(ATTEMPTED, text, "--data-size is of a file that is made")
                .hint("put ,create behind its name"));
        }
        (Some(_), Some(_)) => {
            return Err(Failure::usage(ATTEMPTED, text, "--data-size and size= exclude one another"));
        }
        (Some(bytes), None) => {
            let header = if args.of.header.is_some() { 0 } else { HEADER_AREA_BYTES };
            named.set("size", &(bytes.saturating_add(header)).to_string());
        }
        (None, None) if creates => {
            return Err(Failure::usage(ATTEMPTED, text, "the size of the new file is not known")
                .hint("--data-size SIZE, the size of what the volume is to hold"));
        }
        _ => {}
    }
    if !args.force {
        refusals::spoil_path(&text, &named.spec)?;
    }
    let secret = args.passphrase.source().read(&text, true)?;
    if secret.is_empty() {
        return Err(Failure::usage(ATTEMPTED, text, "the passphrase is empty"));
    }
    let pbkdf = args.pbkdf.costs()?;
    let options = OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
    let medium = named.open_to(ATTEMPTED, context, &options)?;
    let mut io = job::event_loop()?;
    let attached = job::attach(&mut io, &medium);
    let mut endpoint = attached.map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?;
    let capability = endpoint.capability().clone();
    if capability.read_only {
        return Err(Failure::refused(ATTEMPTED, text, "it is read-only"));
    }
    if !args.force {
        refusals::spoil(&mut io, &text, &mut *endpoint)
            .map_err(|failure| failure.hint("--force, if that may be overwritten"))?;
    }
    job::close(&mut io, [endpoint]);
    let sector_bytes = args.sector_size.unwrap_or(capability.block_size);
    if sector_bytes < capability.granularity {
        let cause =
            format!("its blocks have {} bytes, and a sector is no part of one", capability.granularity);
        return Err(Failure::refused(ATTEMPTED, text, cause).hint("a larger --sector-size"));
    }
    let place = args.of.place();
    let mut format = Format::new(place, SegmentKind::Crypt { sector_bytes });
    format.label = &args.label;
    format.key_bytes = if args.key_size == "256" { 32 } else { 64 };
    let data_bytes = capability.size_bytes.saturating_sub(format.data_offset_bytes);
    if data_bytes < u64::from(sector_bytes) {
        let cause = format!(
            "it has {}, and the header takes {}",
            units::bytes(capability.size_bytes),
            units::bytes(format.data_offset_bytes)
        );
        return Err(Failure::refused(ATTEMPTED, text, cause));
    }
    let mut storage = match &args.of.header {
        Some(path) => detached(context, path)?,
        None => Blocking::attach(&*medium).map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?,
    };
    let made = luks2::format(&mut storage, &format, &secret, &pbkdf, &mut random);
    let (header, _key) = made.map_err(|error| failure(&text, &error))?;
    let facts = header.facts();
    if args.json {
        output::json(&json!({
            "schema": output::SCHEMA,
            "endpoint": text,
            "type": "luks2",
            "uuid": facts.uuid,
            "sector_bytes": sector_bytes,
            "data_bytes": data_bytes - data_bytes % u64::from(sector_bytes),
            "data_offset_bytes": facts.segment.offset_bytes,
        }));
    } else {
        let uuid = &facts.uuid;
        output::line(&format!("made a volume for {} of data, UUID {uuid}", units::bytes(data_bytes)));
        let header = args.of.header.as_ref().map(|path| format!(",header={}", path.display()));
        let header = header.unwrap_or_default();
        let place = named.without(&["create", "size"]);
        context.remark(&format!(
            "it opens as {place},volume=luks2{header}; without its header nothing opens it: see hikyaku volume header backup"
        ));
    }
    Ok(Exit::Done)
}

fn failure(text: &str, error: &FormatError<block::IoError>) -> Failure {
    match error {
        FormatError::Storage(cause) => Failure::io(ATTEMPTED, text, cause),
        FormatError::TooSmall { .. } => Failure::refused(ATTEMPTED, text, error),
        FormatError::Derive(_) => Failure::failed(ATTEMPTED, text, error).hint("a smaller --pbkdf-memory"),
        _ => Failure::usage(ATTEMPTED, text, error.to_string()),
    }
}

/// A new file for a header, or one that was made for it.
fn detached(context: &Context, path: &std::path::Path) -> Result<Blocking, Failure> {
    let text = path.display().to_string();
    let words = if path.exists() { text.clone() } else { format!("{text},create,size={HEADER_AREA_BYTES}") };
    let named = named(context, &words)?;
    let options = OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
    let medium = named.open_to("make the header in", context, &options)?;
    Blocking::attach(&*medium).map_err(|error| Failure::open("make the header in", text, &error))
}
