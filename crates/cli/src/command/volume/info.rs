//! `volume info`: what a header says. No key is needed, so none of it is proved.

use block::layer::volume as layer;
use serde_json::{Value, json};
use volume::auth::{BLOCK_BYTES, Cipher, Reencryption, Superblock};
use volume::luks2::{Copies, Pbkdf, Priority, SegmentKind, SlotFacts};

use super::{OfVolume, Opened, Use};
use crate::context::Context;
use crate::error::{Exit, Failure};
use crate::{output, units};

/// Show the header of a volume: cipher, keyslots, costs
///
/// No passphrase is needed. The storage's owner could have written all of it; what is refused before a key is derived is refused
/// here too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  hikyaku volume info /dev/sdx\n  hikyaku volume info sealed.img --json")]
pub(super) struct Args {
    #[command(flatten)]
    of: OfVolume,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    const ATTEMPTED: &str = "read the volume's header of";
    let mut opened = args.of.open_in_reencryption(context, Use::Read, ATTEMPTED)?;
    let state = state(args, &mut opened, ATTEMPTED)?;
    let is_in_reencryption = opened.header.is_in_reencryption();
    let moved = state
        .as_ref()
        .filter(|_| is_in_reencryption)
        .and_then(|(cipher, state)| Reencryption::unverified(*cipher, state));
    let superblock = state.as_ref().and_then(|(_, state)| Superblock::unverified(state));
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let facts = opened.header.facts();
    let (kind, sector) = match facts.segment.kind {
        SegmentKind::Crypt { sector_bytes } => ("luks2", sector_bytes),
        SegmentKind::Auth { .. } => ("auth", 4096),
    };
    let (copies, copies_text) = match facts.copies {
        Copies::Both => ("both", "both"),
        Copies::PrimaryOlder => ("primary_older", "both; the primary one is older"),
        Copies::SecondaryOlder => ("secondary_older", "both; the secondary one is older"),
        Copies::PrimaryOnly => ("primary_only", "the primary one only"),
        Copies::SecondaryOnly => ("secondary_only", "the secondary one only"),
    };
    if args.json {
        output::json(&json!({
            "schema": output::SCHEMA,
            "endpoint": opened.text,
            "type": kind,
            "uuid": facts.uuid,
            "label": facts.label,
            "cipher": facts.cipher,
            "key_bits": facts.key_bits,
            "sector_bytes": sector,
            "data_offset_bytes": facts.segment.offset_bytes,
            "data_bytes": facts.segment.size_bytes,
            "sequence_number": facts.sequence_number,
            "copies": copies,
            "size_bytes": superblock.as_ref().map(|superblock| bytes(superblock.blocks)),
            "capacity_bytes": superblock.as_ref().map(|superblock| bytes(superblock.capacity)),
            "slots": facts.slots.iter().map(|slot| slot_object(slot, is_in_reencryption)).collect::<Vec<_>>(),
            "tokens": facts.tokens.iter().map(|token| json!({ "token": token.token, "type": token.kind })).collect::<Vec<_>>(),
            "requirements": facts.requirements,
            "in_reencryption": is_in_reencryption,
            "groups_moved": moved.map(|(moved, _)| moved),
            "groups": moved.map(|(_, groups)| groups),
        }));
        return Ok(Exit::Done);
    }
    let bits = facts.key_bits.map_or_else(String::new, |bits| format!(", key of {bits} bits"));
    let mut rows = vec![
        ("type".to_owned(), kind.to_owned()),
        ("UUID".to_owned(), facts.uuid.clone()),
        ("label".to_owned(), if facts.label.is_empty() { "none".to_owned() } else { facts.label.clone() }),
        ("cipher".to_owned(), format!("{}{bits}, sectors of {sector} bytes", facts.cipher)),
        ("data".to_owned(), {
            let size = facts.segment.size_bytes.map_or("the end".to_owned(), units::bytes);
            format!("from byte {} to {size}", facts.segment.offset_bytes)
        }),
        ("copies".to_owned(), copies_text.to_owned()),
    ];
    if let Some(superblock) = superblock {
        let [size, capacity] =
            [superblock.blocks, superblock.capacity].map(|blocks| units::bytes(bytes(blocks)));
        let growth =
            if size == capacity { "it cannot grow".to_owned() } else { format!("it can grow to {capacity}") };
        rows.insert(5, ("size".to_owned(), format!("{size}; {growth}")));
    }
    rows.extend(
        facts
            .slots
            .iter()
            .map(|slot| (format!("keyslot {}", slot.slot), slot_text(slot, is_in_reencryption))),
    );
    rows.extend(facts.tokens.iter().map(|token| (format!("token {}", token.token), token.kind.clone())));
    if !facts.requirements.is_empty() {
        rows.push(("requirements".to_owned(), facts.requirements.join(", ")));
    }
    if is_in_reencryption {
        let moved =
            moved.map(|(moved, groups)| format!("{} % done; ", u128::from(moved) * 100 / u128::from(groups)));
        let header = if args.of.header.is_some() { " --header FILE" } else { "" };
        let text =
            format!("`hikyaku volume reencrypt{header}` completes it, and the volume does not open before");
        rows.push(("re-encryption".to_owned(), moved.unwrap_or_default() + &text));
    }
    output::line(&output::pairs(&rows, output::columns()));
    Ok(Exit::Done)
}

/// Of a volume of type auth, its cipher and both copies of its superblock. `None` if the data is elsewhere than the header.
fn state(args: &Args, opened: &mut Opened, attempted: &str) -> Result<Option<(Cipher, Vec<u8>)>, Failure> {
    let segment = opened.header.segment().clone();
    let SegmentKind::Auth { cipher, unit_bytes } = segment.kind else { return Ok(None) };
    let place = Reencryption::state_bytes(segment.offset_bytes);
    let size = opened.storage.endpoint().capability().size_bytes;
    if args.of.header.is_some() || place.end > size {
        return Ok(None);
    }
    let mut state = vec![0; (place.end - place.start) as usize];
    let read = opened.storage.read(place.start, &mut state);
    read.map_err(|error| Failure::io(attempted, opened.text.clone(), &error))?;
    let (cipher, _) = layer::of_header(cipher, unit_bytes)
        .map_err(|error| Failure::open(attempted, opened.text.clone(), &error))?;
    Ok(Some((cipher, state)))
}

fn slot_object(slot: &SlotFacts, is_in_reencryption: bool) -> Value {
    let mut object = json!({
        "slot": slot.slot,
        "opens_the_data": slot.is_bound,
        "is_ignored": slot.priority == Priority::Ignored,
        "has_next_key": slot.is_next,
        "will_be_removed": slot.is_bound && is_in_reencryption,
        "kdf": slot.pbkdf.name(),
    });
    match slot.pbkdf {
        Pbkdf::Pbkdf2 { hash, iterations } => {
            object["hash"] = json!(hash.name());
            object["iterations"] = json!(iterations);
        }
        Pbkdf::Argon2i(costs) | Pbkdf::Argon2id(costs) => {
            object["passes"] = json!(costs.passes);
            object["memory_bytes"] = json!(slot.pbkdf.memory_bytes());
            object["lanes"] = json!(costs.lanes);
        }
    }
    object
}

fn slot_text(slot: &SlotFacts, is_in_reencryption: bool) -> String {
    let costs = match slot.pbkdf {
        Pbkdf::Pbkdf2 { hash, iterations } => format!("{} {iterations} iterations", hash.name()),
        Pbkdf::Argon2i(costs) | Pbkdf::Argon2id(costs) => {
            let memory = units::bytes(slot.pbkdf.memory_bytes());
            format!("{memory}, {} passes, {} threads", costs.passes, costs.lanes)
        }
    };
    let name = slot.pbkdf.name();
    let note = match (slot.is_bound, slot.priority) {
        (false, _) if slot.is_next => "; has the new key",
        (false, _) => "; does not open the data",
        (true, _) if is_in_reencryption => "; has the old key, and will be removed",
        (_, Priority::Ignored) => "; only if it is named",
        _ => "",
    };
    format!("{name}, {costs}{note}")
}
