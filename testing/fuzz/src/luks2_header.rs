//! Headers of sealed volumes with any content, and with a correct checksum, so that the checks behind it are reached.

use std::convert::Infallible;
use std::sync::OnceLock;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use volume::Storage;
use volume::luks2::{
    Backup, ChangeError, Format, Hash, Header, Limits, Pbkdf, Place, ReadError, SegmentKind, UnlockError,
    format, read,
};

use crate::{Source, heap};

const HEAP_MAX: usize = 8 << 20;
const COPY_BYTES: usize = 16 << 10;
const BINARY_BYTES: usize = 4096;
const CSUM: std::ops::Range<usize> = 448..512;
const EDITS_MAX: usize = 4;
/// Costs up to which keyslots are opened.
const CHEAP: Pbkdf = Pbkdf::Pbkdf2 { hash: Hash::Sha256, iterations: 1 };
const CHEAP_ITERATIONS_MAX: u32 = 16;
const LIMITS: Limits = Limits { memory_bytes_max: 64 << 10 };

struct Memory(Vec<u8>);

impl Storage for Memory {
    type Error = Infallible;

    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Infallible> {
        into.copy_from_slice(&self.0[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Infallible> {
        self.0[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A volume with two keyslots and a token, and its JSON.
fn made() -> &'static (Vec<u8>, Value) {
    static MADE: OnceLock<(Vec<u8>, Value)> = OnceLock::new();
    MADE.get_or_init(|| {
        let keyslots_bytes = 3 * 131_072;
        let parameters = Format {
            key_bytes: 32,
            keyslots_bytes,
            data_offset_bytes: 2 * COPY_BYTES as u64 + keyslots_bytes,
            digest_iterations: 1,
            ..Format::new(Place::Attached, SegmentKind::Crypt { sector_bytes: 512 })
        };
        let mut memory = Memory(vec![0; parameters.data_offset_bytes as usize]);
        let mut random = numbered();
        let (mut header, key) = format(&mut memory, &parameters, b"one", &CHEAP, &mut random)
            .expect("parameters that are allowed");
        header.add_key(&mut memory, &key, b"two", &CHEAP, &mut random).expect("room for a keyslot");
        let text = &memory.0[BINARY_BYTES..COPY_BYTES];
        let end = text.iter().position(|byte| *byte == 0).expect("text that ends");
        let mut json: Value = serde_json::from_slice(&text[..end]).expect("JSON");
        json["tokens"]["0"] = json!({ "type": "luks2-keyring", "keyslots": ["1"], "key_description": "x" });
        (memory.0, json)
    })
}

/// Bytes for keys and salts, all different.
fn numbered() -> impl FnMut(&mut [u8]) {
    let mut number = 1_u32;
    move |into| {
        for byte in into {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (number >> 24) as u8;
        }
    }
}

/// Reads an altered header; unlocks and changes it if it is accepted.
pub fn luks2_header(bytes: &[u8]) {
    let (image, json) = made();
    heap::within(HEAP_MAX, || {
        let mut source = Source::new(bytes);
        let mut memory = Memory(image.clone());
        for offset in [0, COPY_BYTES] {
            copy(&mut memory.0[offset..][..COPY_BYTES], json, &mut source);
        }
        let place = if source.byte() % 4 == 3 { Place::Detached } else { Place::Attached };
        if source.byte() % 8 == 7 {
            let size = source.below(memory.0.len());
            memory.0.truncate(size);
        }
        match read(&mut memory, place) {
            Ok(header) => use_it(&header, &mut memory, place, &mut source),
            Err(ReadError::Refused(refusal)) => assert!(!refusal.to_string().is_empty()),
            Err(ReadError::Storage(error)) => match error {},
        }
    });
}

/// Alters one copy, by its JSON, its text or its binary header.
fn copy(copy: &mut [u8], json: &Value, source: &mut Source<'_>) {
    let choice = source.byte();
    let text = match choice % 4 {
        0 => return,
        1 => source.some(400).to_vec(),
        _ => {
            let mut json = json.clone();
            for _ in 0..=source.below(EDITS_MAX) {
                edit(&mut json, source);
            }
            let mut text = json.to_string().into_bytes();
            for _ in 0..choice / 4 % 3 {
                let at = source.below(text.len());
                text[at] = source.byte();
            }
            text
        }
    };
    let text = &text[..text.len().min(COPY_BYTES - BINARY_BYTES)];
    copy[BINARY_BYTES..].fill(0);
    copy[BINARY_BYTES..][..text.len()].copy_from_slice(text);
    if choice / 16 % 4 == 3 {
        let at = source.below(264);
        copy[at] = source.byte();
    }
    copy[CSUM].fill(0);
    let sum = Sha256::digest(&*copy);
    copy[CSUM][..sum.len()].copy_from_slice(&sum);
}

/// Replaces, removes or adds one value somewhere in `json`.
fn edit(json: &mut Value, source: &mut Source<'_>) {
    match json {
        Value::Object(map) if !map.is_empty() => {
            let at = source.below(map.len());
            let name = map.keys().nth(at).expect("an index below the length").clone();
            match source.byte() % 16 {
                0 => drop(map.remove(&name)),
                1 => drop(map.insert(source.below(40).to_string(), value(source))),
                _ => edit(&mut map[&name], source),
            }
        }
        Value::Array(values) if !values.is_empty() && !source.byte().is_multiple_of(4) => {
            let at = source.below(values.len());
            edit(&mut values[at], source);
        }
        other => *other = value(source),
    }
}

fn value(source: &mut Source<'_>) -> Value {
    const NUMBERS: [u64; 14] =
        [0, 1, 2, 16, 32, 48, 64, 512, 4000, 4096, 32_768, 1 << 32, u64::MAX - 4095, u64::MAX];
    const TEXTS: [&str; 16] = [
        "dynamic",
        "crypt",
        "hikyaku-auth",
        "aes-xts-plain64",
        "cipher_null-ecb",
        "aes256-gcm-siv",
        "aegis-256x4",
        "luks2",
        "reencrypt",
        "argon2id",
        "argon2i",
        "pbkdf2",
        "sha512",
        "blake2s-256",
        "raw",
        "in-reencryption",
    ];
    match source.byte() % 8 {
        0 => Value::Null,
        1 => json!(source.pick(&NUMBERS)),
        2 => json!(source.pick(&NUMBERS).to_string()),
        3 => json!((u64::from(source.u16()) << 12).to_string()),
        4 => json!(source.u16()),
        5 => json!(source.pick(&TEXTS)),
        6 => json!([source.below(40).to_string()]),
        _ => json!({ "mandatory": ["hikyaku-auth-v1"] }),
    }
}

fn use_it(header: &Header, memory: &mut Memory, place: Place, source: &mut Source<'_>) {
    let facts = header.facts();
    let mut areas = 0;
    for slot in &facts.slots {
        areas += (slot.key_bits as u64 / 8 * 4000).next_multiple_of(4096);
    }
    assert!(areas <= facts.keyslots_bytes, "keyslots lie in their area and do not overlap");
    assert!(place == Place::Detached || facts.segment.offset_bytes >= header.size_bytes());
    if let Ok(backup) = header.backup(memory) {
        let backup = Backup::parse(backup, place).expect("a backup of what was accepted");
        assert_eq!(backup.header().facts(), facts);
        let restored = backup.restore(memory, &mut numbered()).expect("storage of the size of the header");
        assert_eq!(restored.facts().slots, facts.slots);
    }
    let Ok(mut header) = read(memory, place) else { panic!("what was accepted is read again") };
    let is_cheap = |pbkdf: &Pbkdf| match pbkdf {
        Pbkdf::Pbkdf2 { iterations, .. } => *iterations <= CHEAP_ITERATIONS_MAX,
        Pbkdf::Argon2i(costs) | Pbkdf::Argon2id(costs) => costs.passes <= CHEAP_ITERATIONS_MAX,
    };
    let all_cheap = is_cheap(&facts.digest) && facts.slots.iter().all(|slot| is_cheap(&slot.pbkdf));
    if all_cheap {
        match header.unlock(memory, b"two", None, &LIMITS) {
            Ok(unlocked) => assert_eq!(unlocked.key.bytes().len() * 8, facts.key_bits.expect("a keyslot")),
            Err(UnlockError::Storage(error)) => match error {},
            Err(_) => {}
        }
    }
    let Some(slot) = facts.slots.get(source.below(facts.slots.len().max(1))) else { return };
    match header.remove_key(memory, slot.slot, true, &mut numbered()) {
        Ok(()) => {
            let left = header.facts();
            assert_eq!(left.slots.len() + 1, facts.slots.len());
            assert!(left.tokens.iter().all(|token| !token.slots.contains(&slot.slot)));
            assert_eq!(read(memory, place).expect("what was written is accepted").facts(), left);
        }
        Err(ChangeError::NoRoomInJson | ChangeError::Changed) => {}
        Err(error) => panic!("{error}"),
    }
}
