//! `volume format`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{Blocking, Endpoint, IoError, Location, Medium};
use clap::ValueEnum;
use job::refusals;
use serde_json::json;
use volume::auth::{self, BLOCK_BYTES, Layout, LayoutError, Unit, format_ledger, ledger_bytes};
use volume::luks2::{self, AuthCipher, Facts, Format, FormatError, HEADER_AREA_BYTES, Pbkdf, SegmentKind};

use super::{OfVolume, Passphrase, by_options, done, named, pbkdf, random};
use crate::context::Context;
use crate::endpoint::Named;
use crate::error::{Exit, Failure};
use crate::{output, units};

/// Make a volume; what the storage holds is lost
///
/// Writes a LUKS2 header of 16 MiB with one keyslot. The data itself is not overwritten: what lay there stays there,
/// unencrypted, until it is written. Refused where something is known to be, unless --force.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku volume format /dev/sdx --type luks2
  hikyaku volume format a.img,create --data-size 10G --type luks2
  hikyaku volume format iscsi://host/iqn.../0 --type auth --key-file key")]
pub(super) struct Args {
    #[command(flatten)]
    of: OfVolume,

    /// What the volume is to be
    #[arg(long, value_name = "TYPE", value_enum)]
    r#type: Kind,

    /// With --type auth: how blocks are authenticated and encrypted [default: aes256-gcm-siv]
    #[arg(long, value_name = "NAME", value_enum)]
    cipher: Option<Cipher>,

    #[command(flatten)]
    passphrase: Passphrase,

    /// With --type luks2: size of the encrypted sectors, 512, 1024, 2048 or 4096 [default: the storage's block size]
    #[arg(long, value_name = "BYTES", value_parser = parse_sector_size)]
    sector_size: Option<u32>,

    /// With --type luks2: bits of the key, two keys of AES for XTS [default: 512]
    #[arg(long, value_name = "BITS", value_parser = ["256", "512"])]
    key_size: Option<String>,

    /// With --type auth: the size that the volume can grow to; takes 1.6 % of it (AEGIS 2.5 %) [default: what fits]
    #[arg(long, value_name = "SIZE", value_parser = parse_data_size)]
    capacity: Option<u64>,

    /// With --type auth: make the file that the option freshness= opens the volume with
    #[arg(long, value_name = "FILE")]
    freshness: Option<PathBuf>,

    /// A name for people, at most 47 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    label: String,

    /// With create: make a file with room for so much data behind the header
    #[arg(long, value_name = "SIZE", value_parser = parse_data_size)]
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// As cryptsetup's, which opens it; a change of the stored bytes is not noticed
    Luks2,
    /// Every block is authenticated; only hikyaku opens it
    Auth,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Cipher {
    #[value(name = "aes256-gcm-siv")]
    Aes256GcmSiv,
    #[value(name = "aegis-256x4")]
    Aegis256X4,
}

fn parse_sector_size(text: &str) -> Result<u32, String> {
    match units::parse_size(text)? {
        size @ (512 | 1024 | 2048 | 4096) => Ok(size as u32),
        _ => Err("512, 1024, 2048 or 4096".to_owned()),
    }
}

fn parse_data_size(text: &str) -> Result<u64, String> {
    match units::parse_size(text)? {
        0..512 => Err("at least one sector, 512 bytes".to_owned()),
        size => Ok(size),
    }
}

const ATTEMPTED: &str = "format";

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let mut named = named(context, &args.of.endpoint)?;
    let text = named.text.clone();
    let creates = named.spec.flag("create") == Ok(true);
    args.check_type(&text)?;
    match (args.data_size, named.spec.get("size")) {
        (Some(_), _) if !creates => {
            return Err(Failure::usage(ATTEMPTED, text, "--data-size is of a file that is made")
                .hint("put ,create behind its name"));
        }
        (Some(_), Some(_)) => {
            return Err(Failure::usage(ATTEMPTED, text, "--data-size and size= exclude one another"));
        }
        (Some(bytes), None) => {
            let unit = if named.spec.get("physical-block") == Some("512") {
                Unit::Bytes512
            } else {
                Unit::Bytes4096
            };
            let is_small = match args.sector_size {
                Some(bytes) => bytes == 512,
                None => named.spec.get("block-size") != Some("4096"),
            };
            named.set("size", &size_for(args, bytes, unit, is_small)?.to_string());
        }
        (None, None) if creates => {
            return Err(Failure::usage(ATTEMPTED, text, "the size of the new file is not known")
                .hint("--data-size SIZE, the size of what the volume is to hold"));
        }
        _ => {}
    }
    if let Some(path) = named.path().filter(|path| !creates && !path.exists()) {
        let hint = format!("{},create --data-size SIZE makes a new file", path.display());
        return Err(Failure::failed(ATTEMPTED, text, "it does not exist").hint(hint));
    }
    if let Some((data, capacity)) = args.data_size.zip(args.capacity).filter(|(data, most)| most < data) {
        let cause =
            format!("--capacity {} is less than the data, {}", units::bytes(capacity), units::bytes(data));
        return Err(Failure::usage(ATTEMPTED, text, cause)
            .hint("a larger --capacity, or none: then the volume does not grow"));
    }
    if let Some(path) = args.of.header.as_ref().filter(|path| path.display().to_string().contains(',')) {
        let cause = "--header takes the name of a file, without options and without a comma";
        return Err(Failure::usage(ATTEMPTED, path.display().to_string(), cause)
            .hint("leave out create: the file is made if it does not exist"));
    }
    refusals::spoil_path(&text, &named.spec)?;
    let secret = args.passphrase.source().read_new(context, &text).map_err(by_options)?;
    let pbkdf = args.pbkdf.costs()?;
    let options = block::OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
    let new = NewFile::of(named.path());
    let medium = named.open_to(ATTEMPTED, context, &options)?;
    let made = new.opened();
    let mut io = job::event_loop()?;
    let attached = job::attach(&mut io, &medium);
    let mut endpoint = attached.map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?;
    let capability = endpoint.capability().clone();
    if capability.read_only {
        let failure = Failure::refused(ATTEMPTED, text, "it is read-only");
        return Err(match named.spec.flag("ro") {
            Ok(true) => failure.hint("leave out ro"),
            _ => failure,
        });
    }
    if !args.force {
        spoil(&mut io, &text, &mut *endpoint)?;
    }
    job::close(&mut io, [endpoint]);
    if args.r#type == Kind::Auth {
        auth(context, args, &named, &medium, &secret, &pbkdf)?;
        made.keep();
        return Ok(Exit::Done);
    }
    let sector_bytes = args.sector_size.unwrap_or(capability.block_size);
    if sector_bytes < capability.granularity {
        let cause =
            format!("its blocks have {} bytes, and a sector is no part of one", capability.granularity);
        return Err(Failure::refused(ATTEMPTED, text, cause).hint("a larger --sector-size"));
    }
    let place = args.of.place();
    let mut format = Format::new(place, SegmentKind::Crypt { sector_bytes });
    format.label = &args.label;
    format.key_bytes = if args.key_size.as_deref() == Some("256") { 32 } else { 64 };
    let data_bytes = capability.size_bytes.saturating_sub(format.data_offset_bytes);
    if data_bytes < u64::from(sector_bytes) {
        let cause = format!(
            "it has {}, and the header takes {}",
            units::bytes(capability.size_bytes),
            units::bytes(format.data_offset_bytes)
        );
        return Err(Failure::refused(ATTEMPTED, text, cause)
            .hint("use larger storage, or put the header in a file of its own: --header FILE"));
    }
    let (mut storage, made_header) = match &args.of.header {
        Some(path) => detached(context, path, args.force)?,
        None => {
            let storage = Blocking::attach(&*medium);
            (storage.map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?, MadeFile(None))
        }
    };
    let _lock = args.of.lock(context, ATTEMPTED)?;
    let written = luks2::format(&mut storage, &format, &secret, &pbkdf, &mut random);
    let object = args.of.header.as_ref().map_or(text.clone(), |path| path.display().to_string());
    let (header, _key) = written.map_err(|error| failure(&object, &error))?;
    made.keep();
    made_header.keep();
    let facts = header.facts();
    let data_bytes = data_bytes - data_bytes % u64::from(sector_bytes);
    say(context, args, &named, "luks2", &facts, [u64::from(sector_bytes), data_bytes]);
    Ok(Exit::Done)
}

/// Bytes of storage for so many bytes of data. A new file keeps blocks of `unit` whole; `is_small`: sectors have 512 bytes.
fn size_for(args: &Args, bytes: u64, unit: Unit, is_small: bool) -> Result<u64, Failure> {
    let header = if args.of.header.is_some() { 0 } else { HEADER_AREA_BYTES };
    match args.r#type {
        Kind::Luks2 => {
            // Whole blocks of a LUN, which leaves out what fills none.
            let block = if is_small { 512 } else { 4096 };
            Ok(bytes.div_ceil(block).saturating_mul(block).saturating_add(header))
        }
        Kind::Auth => {
            let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
            let capacity =
                args.capacity.map_or(blocks, |bytes| bytes.div_ceil(BLOCK_BYTES as u64).max(blocks));
            let layout = Layout::new(args.cipher(), unit, header, capacity);
            let failed = |error| Failure::usage(ATTEMPTED, args.of.endpoint.clone(), format!("{error}"));
            Ok(layout.map_err(failed)?.data_offset(blocks))
        }
    }
}

impl Args {
    /// Refuses options that the type has no use for.
    fn check_type(&self, text: &str) -> Result<(), Failure> {
        let of_auth = [
            ("--cipher", self.cipher.is_some()),
            ("--freshness", self.freshness.is_some()),
            ("--capacity", self.capacity.is_some()),
        ];
        // Blocks of 4096 bytes and keys of 512 bits are what a volume of type auth has.
        let of_luks2 = [
            ("--sector-size", self.sector_size.is_some_and(|bytes| bytes != BLOCK_BYTES as u32)),
            ("--key-size", self.key_size.as_deref().is_some_and(|bits| bits != "512")),
        ];
        let (unfit, hint) = match self.r#type {
            Kind::Luks2 => (&of_auth[..], "leave it out, or --type auth"),
            Kind::Auth => (&of_luks2[..], "leave it out: blocks have 4096 bytes, and the key 512 bits"),
        };
        match unfit.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => {
                let kind = if self.r#type == Kind::Auth { "auth" } else { "luks2" };
                let cause = format!("{name} does not fit a volume of type {kind}");
                Err(Failure::usage(ATTEMPTED, text, cause).hint(hint))
            }
            None => Ok(()),
        }
    }

    fn cipher(&self) -> auth::Cipher {
        match self.cipher {
            None | Some(Cipher::Aes256GcmSiv) => auth::Cipher::Aes256GcmSiv,
            Some(Cipher::Aegis256X4) => auth::Cipher::Aegis256X4,
        }
    }
}

/// A volume of authenticated blocks: its header, then its map and superblock. A cut between leaves a header without a
/// volume, which is formatted again.
fn auth(
    context: &Context,
    args: &Args,
    named: &Named,
    medium: &Arc<dyn Medium>,
    secret: &[u8],
    pbkdf: &Pbkdf,
) -> Result<(), Failure> {
    let text = named.text.clone();
    let failed = |error: &IoError| Failure::io(ATTEMPTED, text.clone(), error);
    let refused = |error: String| Failure::refused(ATTEMPTED, text.clone(), error);
    let mut data =
        Blocking::attach(&**medium).map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?;
    let capability = data.endpoint().capability().clone();
    if capability.granularity > BLOCK_BYTES as u32 {
        return Err(refused(format!("its blocks have {} bytes, more than 4096", capability.granularity)));
    }
    // The preferred size of an NBD export is one of speed: its server need not keep such blocks whole.
    let is_nbd = matches!(&named.spec.location, Location::Url(url) if url.starts_with("nbd"));
    let unit_bytes = if capability.physical_block_size >= 4096 && !is_nbd { 4096 } else { 512 };
    let cipher = match args.cipher {
        None | Some(Cipher::Aes256GcmSiv) => AuthCipher::Aes256GcmSiv,
        Some(Cipher::Aegis256X4) => AuthCipher::Aegis256X4,
    };
    let (ours, unit) = block::layer::volume::of_header(cipher, unit_bytes)
        .map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?;
    let mut format = Format::new(args.of.place(), SegmentKind::Auth { cipher, unit_bytes });
    format.label = &args.label;
    let (begins, storage_bytes) = (format.data_offset_bytes, capability.size_bytes);
    let layout = match args.capacity.max(args.data_size.filter(|_| args.capacity.is_some())) {
        Some(bytes) => Layout::new(ours, unit, begins, bytes.div_ceil(BLOCK_BYTES as u64)),
        None => Layout::fitting(ours, unit, begins, storage_bytes),
    };
    let layout = layout.map_err(|error| match error {
        LayoutError::TooSmall(_) => too_small(&text, storage_bytes, ours, unit, begins),
        error => refused(error.to_string()),
    })?;
    let room = storage_bytes.saturating_sub(layout.data_offset(0)) / BLOCK_BYTES as u64;
    let room = room.min(layout.capacity);
    let blocks = args.data_size.map_or(room, |bytes| bytes.div_ceil(BLOCK_BYTES as u64).min(room));
    if blocks == 0 {
        let cause = format!("its {} have no room for data", units::bytes(storage_bytes));
        return Err(refused(cause).hint("use larger storage, or a smaller --capacity"));
    }
    let (mut detached, made_header) = match &args.of.header {
        Some(path) => {
            let (storage, made) = detached(context, path, args.force)?;
            (Some(storage), made)
        }
        None => (None, MadeFile(None)),
    };
    let _lock = args.of.lock(context, ATTEMPTED)?;
    let new = NewFile::of(args.freshness.as_deref());
    let ledger = args.freshness.as_ref().map(|path| ledger(path, ledger_bytes(&layout))).transpose()?;
    let made_ledger = new.opened();
    let written = luks2::format(detached.as_mut().unwrap_or(&mut data), &format, secret, pbkdf, &mut random);
    let object = args.of.header.as_ref().map_or(text.clone(), |path| path.display().to_string());
    let (header, key) = written.map_err(|error| failure(&object, &error))?;
    let facts = header.facts();
    let keys = auth::Keys::new(key.bytes(), &facts.uuid, ours, unit, format.data_offset_bytes);
    for (offset, bytes) in auth::format(&layout, &keys, blocks) {
        data.write(offset, &bytes).map_err(|error| failed(&error))?;
    }
    data.flush().map_err(|error| failed(&error))?;
    if let Some((file, failed)) = ledger.zip(args.freshness.as_deref().map(ledger_failed)) {
        for (offset, bytes) in format_ledger(&layout, &keys, blocks) {
            file.write_all_at(&bytes, offset).map_err(&failed)?;
        }
        file.sync_all().map_err(&failed)?;
    }
    made_ledger.keep();
    made_header.keep();
    say(context, args, named, "auth", &facts, [BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u64]);
    Ok(())
}

/// The refusal of storage that has no room for one block.
fn too_small(text: &str, storage_bytes: u64, cipher: auth::Cipher, unit: Unit, begins: u64) -> Failure {
    let least = Layout::new(cipher, unit, begins, 1).map_or(begins, |layout| layout.data_offset(1));
    let cause = format!(
        "it has {}, and a volume of type auth takes at least {}",
        units::bytes(storage_bytes),
        units::bytes(least.next_multiple_of(1 << 20))
    );
    Failure::refused(ATTEMPTED, text, cause).hint("use larger storage")
}

/// A new file for the ledger of an empty volume.
fn ledger(path: &Path, bytes: u64) -> Result<File, Failure> {
    let failed = ledger_failed(path);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(&failed)?;
    file.set_len(bytes).map_err(failed)?;
    Ok(file)
}

fn ledger_failed(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let text = path.display().to_string();
    move |error| {
        let failure = Failure::failed("make the freshness file", text.clone(), error.to_string());
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => failure.hint("name a new file, or remove this one"),
            _ => failure,
        }
    }
}

fn say(
    context: &Context,
    args: &Args,
    named: &Named,
    kind: &str,
    facts: &Facts,
    [unit, data_bytes]: [u64; 2],
) {
    if args.json {
        output::json(&json!({
            "schema": output::SCHEMA,
            "endpoint": named.text,
            "type": kind,
            "uuid": facts.uuid,
            "sector_bytes": unit,
            "data_bytes": data_bytes,
            "data_offset_bytes": facts.segment.offset_bytes,
        }));
    } else {
        let uuid = &facts.uuid;
        done(context, &format!("made a volume for {} of data, UUID {uuid}", units::bytes(data_bytes)));
        let header = args.of.header.as_ref().map(|path| format!(",header={}", path.display()));
        let header = header.unwrap_or_default();
        let freshness = args.freshness.as_ref().map(|path| format!(",freshness={}", path.display()));
        let freshness = freshness.unwrap_or_default();
        let place = named.without(&["create", "size"]);
        context.remark(&format!(
            "it opens as {place},volume={kind}{header}{freshness}; without its header nothing opens it: see hikyaku volume header backup"
        ));
    }
}

/// Refuses storage that is known to hold something.
fn spoil(io: &mut io::Io, text: &str, endpoint: &mut dyn Endpoint) -> Result<(), Failure> {
    refusals::spoil(io, text, endpoint).map_err(|failure| failure.hint("--force, if that may be overwritten"))
}

fn failure(text: &str, error: &FormatError<IoError>) -> Failure {
    match error {
        FormatError::Storage(cause) => Failure::io(ATTEMPTED, text, cause),
        FormatError::TooSmall { .. } => {
            Failure::refused(ATTEMPTED, text, error).hint("name a new file, or one that is large enough")
        }
        FormatError::Derive(_) => Failure::failed(ATTEMPTED, text, error).hint("a smaller --pbkdf-memory"),
        _ => Failure::usage(ATTEMPTED, text, error.to_string()),
    }
}

/// A new file for a header, or one that was made for it.
fn detached(context: &Context, path: &Path, force: bool) -> Result<(Blocking, MadeFile), Failure> {
    let text = path.display().to_string();
    let words = if path.exists() { text.clone() } else { format!("{text},create,size={HEADER_AREA_BYTES}") };
    let named = named(context, &words)?;
    let options = block::OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
    let new = NewFile::of(Some(path));
    let medium = named.open_to("make the header in", context, &options)?;
    let made = new.opened();
    if !force {
        let mut io = job::event_loop()?;
        let attached = job::attach(&mut io, &medium);
        let mut endpoint =
            attached.map_err(|error| Failure::open("make the header in", text.clone(), &error))?;
        spoil(&mut io, &text, &mut *endpoint)?;
        job::close(&mut io, [endpoint]);
    }
    let storage =
        Blocking::attach(&*medium).map_err(|error| Failure::open("make the header in", text, &error))?;
    Ok((storage, made))
}

/// A file that does not exist yet, if it is one.
struct NewFile(Option<PathBuf>);

impl NewFile {
    fn of(path: Option<&Path>) -> Self {
        Self(path.filter(|path| !path.exists()).map(Path::to_owned))
    }

    /// The file was made by opening it.
    fn opened(self) -> MadeFile {
        MadeFile(self.0)
    }
}

/// A file that this command made. It is removed when dropped: a command that fails leaves no new file.
struct MadeFile(Option<PathBuf>);

impl MadeFile {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for MadeFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // The failure that ends the command matters more than one of its cleaning up.
            let _ = std::fs::remove_file(path);
        }
    }
}
