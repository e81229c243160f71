//! `volume info`: what a header says. No key is needed, so none of it is proved.

use serde_json::{Value, json};
use volume::luks2::{Copies, Pbkdf, Priority, SegmentKind, SlotFacts};

use super::{OfVolume, Use};
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
    let opened = args.of.open(context, Use::Read, "read the volume's header of")?;
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
    output::line(&output::pairs(&rows, output::columns()));
    Ok(Exit::Done)
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
        (false, _) => "; does not open the data",
        (_, Priority::Ignored) => "; only if it is named",
        _ => "",
    };
    format!("{name}, {costs}{note}")
}
