//! `volume reencrypt`: another key for all data, in place.

use std::time::{Duration, Instant};

use block::layer::volume as layer;
use block::{Blocking, IoError};
use job::{Ending, Sample};
use serde_json::json;
use volume::auth::{self, BATCH_BLOCKS_MAX, BLOCK_BYTES, ReencryptError, Reencryption, ReencryptionProgress};
use volume::luks2::{SegmentKind, UnlockError, VolumeKey};

use super::keys::NewPassphrase;
use super::{OfVolume, Opened, Passphrase, Use, done, named, pbkdf, random};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::passphrase::Secret;
use crate::progress::Progress;
use crate::{output, units};

/// Give a volume another key, in place
///
/// All data of a volume of type auth is encrypted anew, with the costs of its keyslot unless an option says otherwise. The old key,
/// and an older copy of the header, open nothing of what the storage holds afterwards. They still open what was copied from the
/// storage before, and what its owner makes of such a copy: where the owner returns all of it, a passphrase of then opens the
/// volume, and what you write then is under the old key. With --new-password-file or --new-key-file, a passphrase that the volume
/// never had, such a volume does not open for you. Meanwhile the volume does not open: close it on all hosts first. A power cut or
/// an interruption loses nothing, and the same command goes on; it takes the passphrases that it began with. Other passphrases are
/// removed, and a freshness file of the volume does not fit it afterwards.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("pbkdf", |arg| arg.help("How the passphrase becomes a key [default: as now]")),
    mut_arg("iter_time", |arg| arg.help("How long a derivation takes on this machine, in milliseconds [default: as now, or 2000]")),
    mut_arg("pbkdf_memory", |arg| arg.help("Memory of each derivation [default: as now, or at most 1G, half of this machine's]")),
    after_help = "Examples:\n  hikyaku volume reencrypt /dev/sdx\n  hikyaku volume reencrypt auth.img --password-file pw --new-password-file new"
)]
pub(super) struct Args {
    #[command(flatten)]
    of: OfVolume,

    #[command(flatten)]
    passphrase: Passphrase,

    #[command(flatten)]
    new: NewPassphrase,

    #[command(flatten)]
    pbkdf: pbkdf::Args,

    /// Remove the other passphrases, which cannot open the new key
    #[arg(long)]
    remove_keyslots: bool,

    /// Give up blocks that do not verify: they are errors until they are written again, whatever the storage returns later
    #[arg(long)]
    force: bool,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

const ATTEMPTED: &str = "re-encrypt";

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let mut opened = args.of.open_in_reencryption(context, Use::Replace, ATTEMPTED)?;
    let segment = opened.header.segment().clone();
    let SegmentKind::Auth { cipher, unit_bytes } = segment.kind else {
        let cause = "a volume of type luks2 is re-encrypted by cryptsetup";
        return Err(Failure::refused(ATTEMPTED, opened.text, cause)
            .hint("`cryptsetup reencrypt` where the storage is local, or `hikyaku copy` into a new volume"));
    };
    let text = named(context, &args.of.endpoint)?.text;
    let (cipher, unit) = layer::of_header(cipher, unit_bytes)
        .map_err(|error| Failure::open(ATTEMPTED, text.clone(), &error))?;
    let mut data = args.data(context)?;
    let source = args.passphrase.source();
    let secret = super::secret(&source, &opened.text)?;
    let (slot, key) = opened.unlock_by(&secret, &source, ATTEMPTED)?;
    let removed: Vec<u8> = others(&opened, slot);
    let secret = args.new_secret(context, &opened, secret)?;
    let next = args.next(&mut opened, &secret, key.bytes().len(), &removed)?;
    let uuid = opened.header.facts().uuid;
    let keys_of = |key: &VolumeKey| auth::Keys::new(key.bytes(), &uuid, cipher, unit, segment.offset_bytes);
    let (old_keys, new_keys) = (keys_of(&key), keys_of(&next));
    // The volume is read before the header is changed: one that cannot be moved stays as it is.
    let reencryption = Reencryption::read(
        data.as_mut().unwrap_or(&mut opened.storage),
        [&old_keys, &new_keys],
        (cipher, unit, segment.offset_bytes),
        BATCH_BLOCKS_MAX as u64,
    );
    let mut reencryption = reencryption.map_err(|error| failure(&text, &error))?;
    if !opened.header.is_in_reencryption() {
        if !args.force {
            let tried = reencryption.try_first(data.as_mut().unwrap_or(&mut opened.storage), &mut random);
            tried.map_err(|error| unchanged(&text, &error))?;
        }
        let slots = opened.header.facts().slots;
        let present = slots.iter().find(|facts| facts.slot == slot).expect("the slot that opened");
        let pbkdf = args.pbkdf.costs_like(&present.pbkdf)?;
        let _lock = args.of.lock(context, ATTEMPTED)?;
        let keys = [&key, &next];
        let begun = opened.header.begin_reencryption(&mut opened.storage, keys, &secret, &pbkdf, &mut random);
        opened.changed(ATTEMPTED, begun)?;
    }
    let begin = Instant::now();
    let storage = data.as_mut().unwrap_or(&mut opened.storage);
    move_all(context, &text, &mut reencryption, storage, args.force)?;
    {
        let _lock = args.of.lock(context, ATTEMPTED)?;
        let finished = opened.header.finish_reencryption(&mut opened.storage, slot, &mut random);
        opened.changed(ATTEMPTED, finished)?;
    }
    say(context, args, &text, (slot, &removed), &reencryption, begin.elapsed());
    Ok(if reencryption.progress().lost_blocks > 0 { Exit::Unreadable } else { Exit::Done })
}

impl Args {
    /// The storage of the data, if the header is elsewhere.
    fn data(&self, context: &Context) -> Result<Option<Blocking>, Failure> {
        if self.of.header.is_none() {
            return Ok(None);
        }
        let named = named(context, &self.of.endpoint)?;
        let options = block::OpenOptions { writable: true, request_alignment: 4096, allow_in_use: false };
        let medium = named.open_to(ATTEMPTED, context, &options)?;
        let storage = Blocking::attach(&*medium);
        storage.map(Some).map_err(|error| Failure::open(ATTEMPTED, named.text, &error))
    }

    /// The passphrase of the new key: the volume's, unless an option names another one.
    fn new_secret(&self, context: &Context, opened: &Opened, present: Secret) -> Result<Secret, Failure> {
        match self.new.source() {
            None => Ok(present),
            // It was made when the re-encryption began.
            Some(source) if opened.header.is_in_reencryption() => super::secret(&source, &opened.text),
            Some(_) => self.new.read(context, &opened.text),
        }
    }

    /// The key to move to: a new one, or that of the re-encryption under way.
    fn next(
        &self,
        opened: &mut Opened,
        secret: &Secret,
        bytes: usize,
        others: &[u8],
    ) -> Result<VolumeKey, Failure> {
        if opened.header.is_in_reencryption() {
            let next = opened.header.unlock_next(&mut opened.storage, secret, &layer::limits());
            return next.map_err(|error| match error {
                UnlockError::WrongPassphrase => {
                    let cause = match self.new.source() {
                        None => "the passphrase opens the old key only: the re-encryption began with another one",
                        Some(_) => "the new passphrase does not open the new key: the re-encryption began with another one",
                    };
                    Failure::new(Ending::Authentication, ATTEMPTED, opened.text.clone(), cause).hint(
                        "give the one that the re-encryption began with, by --new-password-file or --new-key-file if it was given so then",
                    )
                }
                error => opened.locked(error, ATTEMPTED, String::new),
            });
        }
        if !others.is_empty() && !self.remove_keyslots {
            let have = match others {
                [slot] => format!("keyslot {slot} has another passphrase"),
                _ => format!("keyslots {} have other passphrases", numbers(others)),
            };
            let cause = format!("{have}, which cannot open the new key");
            let hint = "--remove-keyslots removes them at the end; `hikyaku volume key add` adds passphrases afterwards";
            return Err(Failure::refused(ATTEMPTED, opened.text.clone(), cause).hint(hint));
        }
        Ok(VolumeKey::random(bytes, &mut random))
    }
}

/// Keyslots of the volume's key that the passphrase did not open.
fn others(opened: &Opened, slot: u8) -> Vec<u8> {
    let slots = opened.header.facts().slots.into_iter();
    slots.filter(|facts| facts.is_bound && facts.slot != slot).map(|facts| facts.slot).collect()
}

fn numbers(slots: &[u8]) -> String {
    slots.iter().map(u8::to_string).collect::<Vec<_>>().join(", ")
}

/// Moves all data to the new key, or as much as an interruption lets it.
fn move_all(
    context: &Context,
    text: &str,
    reencryption: &mut Reencryption,
    storage: &mut Blocking,
    gives_up: bool,
) -> Result<(), Failure> {
    let _orderly = context.stop.orderly();
    let failed = |error: ReencryptError<IoError>| failure(text, &error);
    let mut writer = [0; 16];
    random(&mut writer);
    reencryption.begin(storage, writer).map_err(failed)?;
    let (begin, first) = (Instant::now(), reencryption.progress().moved_bytes);
    let mut display = Progress::new(context);
    while reencryption.step(storage, gives_up, &mut random).map_err(failed)? {
        let ReencryptionProgress { moved_bytes, total_bytes, .. } = reencryption.progress();
        // Of this run, also where it goes on.
        let rate = ((moved_bytes - first) as f64 / begin.elapsed().as_secs_f64()) as u64;
        let left = (total_bytes - moved_bytes).checked_div(rate).filter(|seconds| *seconds > 0);
        display.update(&Sample {
            phase: "re-encrypt",
            bytes: moved_bytes,
            total: total_bytes,
            data_bytes: moved_bytes,
            rate,
            data_rate: rate,
            eta: left.map(Duration::from_secs),
            ..Sample::default()
        });
        if context.stop.is_requested() {
            display.finish();
            return Err(context
                .stop
                .failure(ATTEMPTED, text)
                .hint(format!("the same command goes on; {CLOSED}")));
        }
    }
    display.finish();
    Ok(())
}

const CLOSED: &str = "until it is complete the volume does not open";

/// Of a part that was examined before the header is changed.
fn unchanged(text: &str, error: &ReencryptError<IoError>) -> Failure {
    match error {
        ReencryptError::Unverified { .. } => Failure::failed(ATTEMPTED, text, error).hint(
            "the volume is as before, and opens; with --force such blocks are given up: they are errors until they are written again",
        ),
        error => failure(text, error),
    }
}

fn failure(text: &str, error: &ReencryptError<IoError>) -> Failure {
    match error {
        ReencryptError::Storage(cause) => {
            let failure = Failure::io(ATTEMPTED, text, cause);
            let hint = "nothing is lost: the same command goes on";
            if failure.hint.is_empty() { failure.hint(hint) } else { failure }
        }
        ReencryptError::Unverified { .. } => Failure::failed(ATTEMPTED, text, error).hint(format!(
            "the same command goes on when the storage returns the right bytes; with --force such blocks are given up: they are errors \
             until they are written again; {CLOSED}"
        )),
        ReencryptError::Damaged | ReencryptError::OtherKey => {
            Failure::refused(ATTEMPTED, text, error).hint(job::OTHER_KEY)
        }
        ReencryptError::Foreign => Failure::failed(ATTEMPTED, text, error)
            .hint("close the volume on all hosts; then the same command goes on"),
        _ => Failure::refused(ATTEMPTED, text, error),
    }
}

fn say(
    context: &Context,
    args: &Args,
    text: &str,
    (slot, removed): (u8, &[u8]),
    reencryption: &Reencryption,
    took: Duration,
) {
    let ReencryptionProgress { moved_bytes, lost_blocks: lost, .. } = reencryption.progress();
    let given_up = reencryption.given_up();
    if lost > 0 {
        let bytes = units::bytes(lost * BLOCK_BYTES as u64);
        context.warn(&format!(
            "{text}: {bytes} did not verify and were given up: they are errors until they are written again"
        ));
        for range in given_up {
            context.remark(&format!("given up: bytes {} to {}", range.start, range.end - 1));
        }
        let listed: u64 = given_up.iter().map(|range| range.end - range.start).sum();
        let rest = lost - (listed / BLOCK_BYTES as u64).min(lost);
        if rest > 0 {
            context.remark(&format!("given up, and not listed: {rest} more blocks of {BLOCK_BYTES} bytes"));
        }
    }
    if args.json {
        output::json(&json!({
            "schema": output::SCHEMA,
            "endpoint": text,
            "slot": slot,
            "slots_removed": removed,
            "moved_bytes": moved_bytes,
            "lost_blocks": lost,
            "lost_ranges": given_up.iter().map(|range| json!({ "offset": range.start, "bytes": range.end - range.start })).collect::<Vec<_>>(),
            "seconds": took.as_secs_f64(),
        }));
        return;
    }
    let slots = match removed {
        [] => String::new(),
        slots => format!("; removed: keyslot{} {}", if slots.len() == 1 { "" } else { "s" }, numbers(slots)),
    };
    let moved = units::bytes(moved_bytes);
    done(
        context,
        &format!(
            "the volume has a new key: {moved} re-encrypted in {}, keyslot {slot}{slots}",
            units::duration(took)
        ),
    );
    context.remark(
        "no block that the storage holds now opens with the old key; a copy of the old header and data, such as the storage's owner \
         can have made, still opens. A freshness file of the volume does not fit it any more. Make a new backup of the header: see hikyaku volume \
         header backup",
    );
}
