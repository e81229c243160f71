//! `volume info`: what a header says. No key is needed, so none of it is proved.

use serde_json::{Value, json};
use volume::auth::Reencryption;
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
    let moved = moved(args, &mut opened, ATTEMPTED)?;
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
            "slots": facts.slots.iter().map(slot_object).collect::<Vec<_>>(),
            "tokens": facts.tokens.iter().map(|token| json!({ "token": token.token, "type": token.kind })).collect::<Vec<_>>(),
            "requirements": facts.requirements,
            "in_reencryption": opened.header.is_in_reencryption(),
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
    rows.extend(facts.slots.iter().map(|slot| (format!("keyslot {}", slot.slot), slot_text(slot))));
    rows.extend(facts.tokens.iter().map(|token| (format!("token {}", token.token), token.kind.clone())));
    if !facts.requirements.is_empty() {
        rows.push(("requirements".to_owned(), facts.requirements.join(", ")));
    }
    if opened.header.is_in_reencryption() {
        let moved = moved.map(|(moved, groups)| format!("{moved} of {groups} groups of blocks are done; "));
        let text = "`hikyaku volume reencrypt` completes it";
        rows.push(("re-encryption".to_owned(), moved.unwrap_or_default() + text));
    }
    output::line(&output::pairs(&rows, output::columns()));
    Ok(Exit::Done)
}

/// Of a volume in re-encryption, the groups of blocks that have the new key, and all of them. `None`: it has not begun, or
/// the data is elsewhere than the header.
fn moved(args: &Args, opened: &mut Opened, attempted: &str) -> Result<Option<(u64, u64)>, Failure> {
    let segment = opened.header.segment().clone();
    let SegmentKind::Auth { cipher, .. } = segment.kind else { return Ok(None) };
    let place = Reencryption::state_bytes(segment.offset_bytes);
    let size = opened.storage.endpoint().capability().size_bytes;
    if args.of.header.is_some() || !opened.header.is_in_reencryption() || place.end > size {
        return Ok(None);
    }
    let mut state = vec![0; (place.end - place.start) as usize];
    let read = opened.storage.read(place.start, &mut state);
    read.map_err(|error| Failure::io(attempted, opened.text.clone(), &error))?;
    Ok(Reencryption::unverified(cipher, &state))
}

fn slot_object(slot: &SlotFacts) -> Value {
    let mut object = json!({
        "slot": slot.slot,
        "opens_the_data": slot.is_bound,
        "is_ignored": slot.priority == Priority::Ignored,
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

fn slot_text(slot: &SlotFacts) -> String {
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
        (_, Priority::Ignored) => "; only if it is named",
        _ => "",
    };
    format!("{name}, {costs}{note}")
}
