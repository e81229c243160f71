//! `volume grow`: a volume takes the room that its storage got.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use block::layer::volume as layer;
use block::{Blocking, IoError};
use serde_json::json;
use volume::auth::{self, GrowError, LedgerError, Room, RoomLedgerError};
use volume::luks2::SegmentKind;

use super::{OfVolume, Passphrase, Use, done, named, random};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::{output, units};

/// Make a volume as large as its storage has become
///
/// A volume of type auth grows within the room that its contexts were made for (volume format --capacity), up to the end of its
/// storage, which is to be made larger first. A power cut leaves the old size or the new one. One of luks2 ends with its storage and
/// needs nothing. The volume is not to be open elsewhere meanwhile.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  hikyaku volume grow iscsi://host/iqn.../0 --key-file key\n  hikyaku volume grow auth.img --size 20G --password-file pw --freshness fresh"
)]
pub(super) struct Args {
    #[command(flatten)]
    of: OfVolume,

    #[command(flatten)]
    passphrase: Passphrase,

    /// The new size of what the volume holds [default: as much as fits]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    size: Option<u64>,

    /// The freshness file of the volume, if it has one
    #[arg(long, value_name = "FILE")]
    freshness: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

const ATTEMPTED: &str = "grow";

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let used = if args.of.header.is_some() { Use::Read } else { Use::Replace };
    let mut opened = args.of.open(context, used, ATTEMPTED)?;
    let segment = opened.header.segment().clone();
    let named = named(context, &args.of.endpoint)?;
    let text = named.text.clone();
    let mut data = match &args.of.header {
        Some(_) => {
            let options = block::OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
            let medium = named.open_to(ATTEMPTED, context, &options)?;
            let storage = Blocking::attach(&*medium);
            Some(storage.map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?)
        }
        None => None,
    };
    let (cipher, unit) = match segment.kind {
        SegmentKind::Auth { cipher, unit_bytes } => layer::of_header(cipher, unit_bytes)
            .map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?,
        SegmentKind::Crypt { sector_bytes } => {
            if segment.size_bytes.is_some() {
                let cause = "its header has a size of its own";
                return Err(Failure::refused(ATTEMPTED, text, cause)
                    .hint("copy into a new volume, or change the header with cryptsetup"));
            }
            let storage = data.as_ref().unwrap_or(&opened.storage).endpoint().capability().size_bytes;
            let bytes = storage.saturating_sub(segment.offset_bytes);
            let bytes = bytes - bytes % u64::from(sector_bytes);
            if args.size.is_some_and(|size| size != bytes) {
                let cause = "a volume of type luks2 ends with its storage";
                return Err(Failure::usage(ATTEMPTED, text, cause).hint("leave out --size"));
            }
            say(context, args, ("luks2", &text), [bytes, bytes], None);
            context.remark("a volume of type luks2 ends with its storage: there is nothing to do");
            return Ok(Exit::Done);
        }
    };
    let (_, key) = opened.unlock(&args.passphrase.source(), ATTEMPTED)?;
    let uuid = opened.header.facts().uuid;
    let keys = auth::Keys::new(key.bytes(), &uuid, cipher, unit, segment.offset_bytes);
    let storage = data.as_mut().unwrap_or(&mut opened.storage);
    let failed = |error: GrowError<IoError>| match &error {
        GrowError::Storage(cause) => Failure::io(ATTEMPTED, text.clone(), cause),
        GrowError::Damaged => Failure::refused(ATTEMPTED, text.clone(), &error).hint(job::OTHER_KEY),
        GrowError::Smaller { now } => {
            let cause = format!("it has {}, and does not become smaller", units::bytes(*now));
            Failure::usage(ATTEMPTED, text.clone(), cause).hint("copy into a new volume")
        }
        GrowError::Capacity { most } => {
            let cause = format!("it was made to grow to {} at most", units::bytes(*most));
            Failure::refused(ATTEMPTED, text.clone(), cause)
                .hint("copy into a new volume, made with a larger --capacity")
        }
        GrowError::StorageFull { most } => {
            let cause = format!("the storage has room for {} of the volume", units::bytes(*most));
            Failure::refused(ATTEMPTED, text.clone(), cause).hint("make the storage larger first")
        }
    };
    let mut room = Room::read(storage, &keys, (cipher, unit, segment.offset_bytes)).map_err(failed)?;
    let before = room.size_bytes();
    let ledger = args.freshness.as_deref().map(Ledger::open).transpose()?;
    if let Some(ledger) = &ledger {
        ledger.note(&room, &keys)?;
    }
    let size = args.size.unwrap_or_else(|| room.most_bytes().max(before));
    let mut writer = [0; 16];
    random(&mut writer);
    room.grow(storage, &keys, size, writer).map_err(failed)?;
    if let Some(ledger) = &ledger {
        let (offset, bytes) = ledger.note(&room, &keys)?;
        ledger.write(offset, &bytes)?;
    }
    let end = Growth::of(&room);
    say(context, args, ("auth", &text), [before, room.size_bytes()], Some(&end));
    Ok(Exit::Done)
}

/// The freshness file.
struct Ledger {
    text: String,
    file: File,
}

impl Ledger {
    fn open(path: &Path) -> Result<Self, Failure> {
        let text = path.display().to_string();
        let file = layer::open_freshness(path, true);
        let file = file.map_err(|error| Self::failure(&text, &error))?;
        Ok(Self { text, file })
    }

    fn failure(text: &str, error: &std::io::Error) -> Failure {
        let failure = Failure::failed("use the freshness file", text, error.to_string());
        if error.kind() == std::io::ErrorKind::NotFound { failure.hint("check the name") } else { failure }
    }

    /// What is to be written for this state of the volume. Fails if the file is not of it.
    fn note(&self, room: &Room, keys: &auth::Keys) -> Result<(u64, Vec<u8>), Failure> {
        let mut bytes = [0; Room::LEDGER_BYTES];
        match self.file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
                return Err(Self::failure(&self.text, &error));
            }
            _ => {}
        }
        let noted = room.note(keys, &bytes);
        noted.map_err(|error: RoomLedgerError| {
            let failure = Failure::refused(ATTEMPTED, self.text.clone(), error);
            match error {
                RoomLedgerError::OldVolume | RoomLedgerError::Ledger(LedgerError::Behind) => {
                    failure.hint(job::OLDER_STATE)
                }
                RoomLedgerError::Ledger(LedgerError::OtherVolume) => failure.hint(job::OTHER_FRESHNESS),
                RoomLedgerError::Ledger(_) => failure,
            }
        })
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.file.write_all_at(bytes, offset).and_then(|()| self.file.sync_data());
        written.map_err(|error| Self::failure(&self.text, &error))
    }
}

/// What a volume of type auth can become.
struct Growth {
    capacity_bytes: u64,
    /// Its storage has room for more than it can have.
    is_at_capacity: bool,
}

impl Growth {
    fn of(room: &Room) -> Self {
        let capacity_bytes = room.capacity_bytes();
        let is_at_capacity = room.size_bytes() == capacity_bytes && room.storage_bytes() > capacity_bytes;
        Self { capacity_bytes, is_at_capacity }
    }
}

fn say(
    context: &Context,
    args: &Args,
    (kind, text): (&str, &str),
    [before, bytes]: [u64; 2],
    growth: Option<&Growth>,
) {
    let is_at_capacity = growth.is_some_and(|growth| growth.is_at_capacity);
    if args.json {
        output::json(&json!({
            "schema": output::SCHEMA,
            "endpoint": text,
            "type": kind,
            "data_bytes": bytes,
            "data_bytes_before": before,
            "capacity_bytes": growth.map(|growth| growth.capacity_bytes),
            "is_at_capacity": is_at_capacity,
        }));
    } else if before == bytes {
        done(context, &format!("the volume has {}, as before", units::bytes(bytes)));
    } else {
        done(context, &format!("the volume has {}; it had {}", units::bytes(bytes), units::bytes(before)));
    }
    if is_at_capacity {
        context.remark(
            "that is all it was made for (volume format --capacity), and the storage has room for more: to use it, copy into a new \
             volume",
        );
    }
}
