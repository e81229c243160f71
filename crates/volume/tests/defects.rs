//! Headers with one defect each, and the error that names it. The headers are written here, from the specification: a
//! copy with any JSON and the checksum that belongs to it.

mod support;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use support::{CHEAP, Disk, LIMITS, UNIT, made, random, small};
use volume::luks2::{
    Argon2Costs, AuthCipher, Copies, CostError, Header, Limits, Pbkdf, Place, ReadError, Refusal,
    SegmentKind, UnlockError, format, read,
};

const COPY_BYTES: usize = 16 << 10;

/// A small volume with two keyslots, whose JSON is changed.
struct Sample {
    disk: Disk,
    json: Value,
}

impl Sample {
    fn new() -> Self {
        let (mut disk, mut header, key) = made(&small(3), "old", 1);
        header.add_key(&mut disk, &key, b"other", &CHEAP, &mut random(2)).unwrap();
        let text = &disk.bytes[UNIT..COPY_BYTES];
        let end = text.iter().position(|byte| *byte == 0).unwrap();
        let json = serde_json::from_slice(&text[..end]).unwrap();
        Self { disk, json }
    }

    /// Writes both copies with this JSON.
    fn written(mut self) -> Disk {
        let text = self.json.to_string();
        for offset in [0, COPY_BYTES] {
            self.put(offset, text.as_bytes(), 7);
        }
        self.disk
    }

    fn put(&mut self, offset: usize, json: &[u8], seqid: u64) {
        let copy = &mut self.disk.bytes[offset..][..COPY_BYTES];
        copy[UNIT..].fill(0);
        copy[UNIT..][..json.len()].copy_from_slice(json);
        copy[16..24].copy_from_slice(&seqid.to_be_bytes());
        seal(copy);
    }
}

/// Writes the checksum: SHA-256 of the copy with zeros in its place.
fn seal(copy: &mut [u8]) {
    copy[448..512].fill(0);
    let sum = Sha256::digest(&*copy);
    copy[448..480].copy_from_slice(&sum);
}

fn refusal(disk: &mut Disk) -> Refusal {
    match read(disk, Place::Attached) {
        Err(ReadError::Refused(refusal)) => refusal,
        Err(ReadError::Storage(error)) => match error {},
        Ok(header) => panic!("accepted: {header:?}"),
    }
}

fn accepted(disk: &mut Disk) -> Header {
    read(disk, Place::Attached).unwrap_or_else(|error| panic!("{error}"))
}

/// Sets the value at a path such as `/keyslots/0/area/offset`; null removes it.
fn set(json: &mut Value, path: &str, value: Value) {
    let (parent, name) = path.rsplit_once('/').unwrap();
    let parent = json.pointer_mut(parent).and_then(Value::as_object_mut).unwrap_or_else(|| panic!("{path}"));
    if value.is_null() {
        parent.remove(name).unwrap_or_else(|| panic!("{path}"));
    } else {
        parent.insert(name.to_owned(), value);
    }
}

/// What must be said: the start of the message.
type Message = &'static str;
/// Values at paths.
type Changes = Vec<(&'static str, Value)>;
/// JSON and sequence number of a copy.
type CopyOf<'a> = (&'a [u8], u64);

#[test]
fn samples_without_a_defect_are_accepted() {
    let header = accepted(&mut Sample::new().written());
    assert_eq!((header.facts().slots.len(), header.facts().sequence_number), (2, 7));
}

#[test]
fn defects_of_the_json() {
    let malformed = "the header's JSON is malformed: ";
    let auth = json!({"type":"hikyaku-auth","offset":"425984","size":"dynamic","encryption":"aes256-gcm-siv","unit":512,"version":1});
    let with = |name: &str, value: Value| {
        let mut auth = auth.clone();
        auth[name] = value;
        auth
    };
    let mandatory = |name: &str| json!({ "mandatory": [name] });
    let moving = json!({ "mandatory": ["hikyaku-auth-v1", "hikyaku-auth-reencrypt"] });
    let zeros = |bytes: usize| {
        let alphabet = "A".repeat(bytes.div_ceil(3) * 4 - (3 - bytes % 3) % 3);
        json!(alphabet + &"=".repeat((3 - bytes % 3) % 3))
    };
    let cases: Vec<(&str, Changes, Message)> = vec![
        ("keyslots_missing", vec![("/keyslots", Value::Null)], "keyslots is not an object"),
        ("segments_missing", vec![("/segments", Value::Null)], "segments is not an object"),
        ("digests_missing", vec![("/digests", Value::Null)], "digests is not an object"),
        ("tokens_missing", vec![("/tokens", Value::Null)], "tokens is not an object"),
        ("config_missing", vec![("/config", Value::Null)], "config is not an object"),
        ("slot_32", vec![("/keyslots/32", json!({}))], "keyslots has a name that is no number"),
        ("slot_00", vec![("/keyslots/00", json!({}))], "keyslots has a name that is no number"),
        ("slot_not_an_object", vec![("/keyslots/0", json!(1))], "keyslots.0 is not an object"),
        ("slot_key_size_0", vec![("/keyslots/0/key_size", json!(0))], "keyslots.0.key_size"),
        (
            "slot_key_size_text",
            vec![("/keyslots/0/key_size", json!("32"))],
            "keyslots.0.key_size is not an integer",
        ),
        (
            "slot_key_size_2_to_32",
            vec![("/keyslots/0/key_size", json!(1_u64 << 32))],
            "keyslots.0.key_size is not an integer",
        ),
        (
            "slot_key_size_negative",
            vec![("/keyslots/0/key_size", json!(-32))],
            "keyslots.0.key_size is not an integer",
        ),
        (
            "slot_key_sizes_differ",
            vec![("/keyslots/1/area/size", json!("262144")), ("/keyslots/1/key_size", json!(64))],
            "keyslots of one key",
        ),
        ("slot_priority_3", vec![("/keyslots/0/priority", json!(3))], "keyslots.0.priority"),
        (
            "area_number_not_text",
            vec![("/keyslots/0/area/offset", json!(32768))],
            "keyslots.0.area.offset is not a string",
        ),
        (
            "area_hexadecimal",
            vec![("/keyslots/0/area/offset", json!("0x8000"))],
            "keyslots.0.area.offset is not a decimal",
        ),
        (
            "area_plus_sign",
            vec![("/keyslots/0/area/offset", json!("+32768"))],
            "keyslots.0.area.offset is not a decimal",
        ),
        (
            "area_empty_number",
            vec![("/keyslots/0/area/offset", json!(""))],
            "keyslots.0.area.offset is not a decimal",
        ),
        (
            "area_beyond_2_to_64",
            vec![("/keyslots/0/area/offset", json!("18446744073709551616"))],
            "keyslots.0.area.offset is not a decimal",
        ),
        (
            "area_end_overflows",
            vec![("/keyslots/0/area/offset", json!("18446744073709547520"))],
            "an area ends beyond",
        ),
        (
            "area_not_aligned",
            vec![("/keyslots/0/area/offset", json!("33280"))],
            "the area of keyslot 0 is too small or not aligned",
        ),
        (
            "area_too_small",
            vec![("/keyslots/0/area/size", json!("126976"))],
            "the area of keyslot 0 is too small",
        ),
        (
            "area_in_the_header",
            vec![("/keyslots/0/area/offset", json!("28672"))],
            "the area of keyslot 0 leaves",
        ),
        (
            "area_in_the_data",
            vec![("/keyslots/0/area/offset", json!("299008"))],
            "the area of keyslot 0 leaves",
        ),
        ("areas_overlap", vec![("/keyslots/0/area/offset", json!("159744"))], "areas of keyslots overlap"),
        ("area_not_raw", vec![("/keyslots/0/area/type", json!("journal"))], "keyslots.0.area.type"),
        ("stripes_3999", vec![("/keyslots/0/af/stripes", json!(3999))], "keyslots.0.af"),
        ("splitter_unknown", vec![("/keyslots/0/af/type", json!("none"))], "keyslots.0.af"),
        ("salt_too_short", vec![("/keyslots/0/kdf/salt", zeros(31))], "keyslots.0.kdf.salt is not 32 bytes"),
        ("salt_too_long", vec![("/keyslots/0/kdf/salt", zeros(33))], "keyslots.0.kdf.salt is not 32 bytes"),
        ("salt_not_base64", vec![("/keyslots/0/kdf/salt", json!("*"))], "keyslots.0.kdf.salt is not base64"),
        ("segment_none", vec![("/segments", json!({}))], "=0 segments, not one"),
        ("segment_1", vec![("/segments/1", json!({})), ("/segments/0", Value::Null)], "=1 segments, not one"),
        (
            "segment_not_aligned",
            vec![("/segments/0/offset", json!("426496"))],
            "the segment does not consist of whole sectors",
        ),
        (
            "segment_in_the_header",
            vec![("/segments/0/offset", json!("421888"))],
            "the keyslot area overlaps the segment",
        ),
        ("segment_size_0", vec![("/segments/0/size", json!("0"))], "the segment does not consist"),
        (
            "segment_size_not_aligned",
            vec![("/segments/0/size", json!("512"))],
            "the segment does not consist",
        ),
        (
            "segment_size_unknown",
            vec![("/segments/0/size", json!("whole"))],
            "segments.0.size is not a decimal",
        ),
        (
            "segment_end_overflows",
            vec![("/segments/0/size", json!("18446744073709547520"))],
            "the segment ends beyond",
        ),
        ("sector_size_513", vec![("/segments/0/sector_size", json!(513))], "segments.0.sector_size"),
        ("sector_size_8192", vec![("/segments/0/sector_size", json!(8192))], "segments.0.sector_size"),
        (
            "digest_of_no_slot",
            vec![("/digests/0/keyslots", json!(["2"]))],
            "digest 0 refers to what does not exist",
        ),
        (
            "digest_of_no_segment",
            vec![("/digests/0/segments", json!(["1"]))],
            "digest 0 refers to what does not exist",
        ),
        ("digest_of_nothing", vec![("/digests/0/segments", json!([]))], "no digest for the segment"),
        ("digest_too_short", vec![("/digests/0/digest", zeros(16))], "digest 0 has 16 bytes"),
        (
            "digest_slots_not_text",
            vec![("/digests/0/keyslots", json!([0]))],
            "digests.0.keyslots is not an array of strings",
        ),
        (
            "token_of_no_slot",
            vec![("/tokens/0", json!({"type":"x","keyslots":["9"]}))],
            "token 0 refers to a keyslot",
        ),
        ("token_without_type", vec![("/tokens/0", json!({"keyslots":[]}))], "tokens.0.type is not a string"),
        ("json_size_wrong", vec![("/config/json_size", json!("16384"))], "config.json_size"),
        (
            "keyslots_size_not_aligned",
            vec![("/config/keyslots_size", json!("393217"))],
            "config.keyslots_size",
        ),
        (
            "keyslots_size_too_large",
            vec![("/config/keyslots_size", json!("134221824"))],
            "config.keyslots_size",
        ),
        (
            "requirements_not_text",
            vec![("/config/requirements", json!({"mandatory":[1]}))],
            "config.requirements.mandatory",
        ),
        (
            "auth_unit_1024",
            vec![
                ("/segments/0", with("unit", json!(1024))),
                ("/config/requirements", mandatory("hikyaku-auth-v1")),
            ],
            "segments.0.unit",
        ),
        // Refused, though no rule of the format is broken.
        (
            "slot_cipher_null",
            vec![("/keyslots/1/area/encryption", json!("cipher_null-ecb"))],
            r#"=the area of keyslot 1 with cipher "cipher_null-ecb" of 512 bits"#,
        ),
        (
            "slot_cipher_cbc",
            vec![("/keyslots/0/area/encryption", json!("aes-cbc-essiv:sha256"))],
            r#"=the area of keyslot 0 with cipher "aes-cbc-essiv:sha256""#,
        ),
        (
            "slot_cipher_384",
            vec![("/keyslots/0/area/key_size", json!(48))],
            r#"=the area of keyslot 0 with cipher "aes-xts-plain64" of 384 bits"#,
        ),
        (
            "volume_key_384",
            vec![("/keyslots/0/key_size", json!(24)), ("/keyslots/1/key_size", json!(24))],
            r#"=the key of keyslot 0 with cipher "aes-xts-plain64" of 192 bits"#,
        ),
        (
            "segment_cipher_null",
            vec![("/segments/0/encryption", json!("cipher_null-ecb"))],
            r#"=the segment with cipher "cipher_null-ecb""#,
        ),
        (
            "segment_cipher_of_control_characters",
            vec![("/segments/0/encryption", json!("\u{1b}[2J\u{9b}"))],
            r#"=the segment with cipher "\u{1b}[2J\u{9b}""#,
        ),
        (
            "segment_integrity",
            vec![("/segments/0/integrity", json!({"type":"hmac(sha256)"}))],
            "=an integrity profile",
        ),
        ("segment_tweak", vec![("/segments/0/iv_tweak", json!("8"))], "=a segment whose tweaks"),
        ("segment_linear", vec![("/segments/0/type", json!("linear"))], r#"=a segment of type "linear""#),
        (
            "segment_opal",
            vec![("/segments/0/type", json!("hw-opal-crypt"))],
            r#"=a segment of type "hw-opal-crypt""#,
        ),
        ("segments_2", vec![("/segments/1", json!({"type":"crypt"}))], "=2 segments, not one"),
        (
            "segment_in_reencryption",
            vec![("/segments/0/flags", json!(["in-reencryption"]))],
            "=the volume is in re-encryption",
        ),
        (
            "segment_backup",
            vec![("/segments/0/flags", json!(["backup-final"]))],
            "=the volume is in re-encryption",
        ),
        ("segment_at_0", vec![("/segments/0/offset", json!("0"))], "=the data would overwrite its header"),
        (
            "requirement_reencrypt",
            vec![("/config/requirements", mandatory("online-reencrypt-v2"))],
            "=the volume is in re-encryption",
        ),
        (
            "requirement_reencrypt_offline",
            vec![("/config/requirements", mandatory("offline-reencrypt"))],
            "=the volume is in re-encryption",
        ),
        (
            "requirement_auth_reencrypt_of_crypt",
            vec![("/config/requirements", mandatory("hikyaku-auth-reencrypt"))],
            "=the volume is in re-encryption; `cryptsetup",
        ),
        (
            "auth_reencrypt_without_next",
            vec![("/segments/0", auth.clone()), ("/config/requirements", moving.clone())],
            "=the volume is in re-encryption; `hikyaku",
        ),
        (
            "auth_next_without_requirement",
            vec![
                ("/segments/0", with("next", json!("1"))),
                ("/config/requirements", mandatory("hikyaku-auth-v1")),
            ],
            "=the volume is in re-encryption; `hikyaku",
        ),
        (
            "auth_next_without_digest",
            vec![("/segments/0", with("next", json!("1"))), ("/config/requirements", moving.clone())],
            "no digest for the next key",
        ),
        (
            "auth_next_is_the_present_one",
            vec![("/segments/0", with("next", json!("0"))), ("/config/requirements", moving.clone())],
            "digest 0 is of no next key",
        ),
        (
            "auth_next_is_no_number",
            vec![("/segments/0", with("next", json!("01"))), ("/config/requirements", moving.clone())],
            "segments.0.next is not a number",
        ),
        (
            "requirement_opal",
            vec![("/config/requirements", mandatory("opal"))],
            r#"=the header demands "opal""#,
        ),
        (
            "requirement_auth_of_crypt",
            vec![("/config/requirements", mandatory("hikyaku-auth-v1"))],
            r#"=a segment of type "crypt""#,
        ),
        (
            "auth_without_requirement",
            vec![("/segments/0", auth.clone())],
            r#"=a segment of type "hikyaku-auth""#,
        ),
        (
            "auth_version_2",
            vec![
                ("/segments/0", with("version", json!(2))),
                ("/config/requirements", mandatory("hikyaku-auth-v1")),
            ],
            "=a version or cipher of authenticated volumes that is not known: version 2",
        ),
        (
            "auth_cipher",
            vec![
                ("/segments/0", with("encryption", json!("aes256-gcm"))),
                ("/config/requirements", mandatory("hikyaku-auth-v1")),
            ],
            "=a version or cipher",
        ),
        ("slot_reencrypt", vec![("/keyslots/0/type", json!("reencrypt"))], "=the volume is in re-encryption"),
        ("slot_type", vec![("/keyslots/0/type", json!("luks3"))], r#"=keyslot 0 of type "luks3""#),
        (
            "kdf_scrypt",
            vec![("/keyslots/0/kdf/type", json!("scrypt"))],
            r#"=a key derivation of type "scrypt""#,
        ),
        ("kdf_md5", vec![("/keyslots/0/kdf/hash", json!("md5"))], r#"=a hash of type "md5""#),
        ("splitter_md5", vec![("/keyslots/0/af/hash", json!("md5"))], r#"=a hash of type "md5""#),
        ("digest_md5", vec![("/digests/0/hash", json!("md5"))], r#"=a hash of type "md5""#),
        ("digest_type", vec![("/digests/0/type", json!("hmac"))], r#"=a digest of type "hmac""#),
    ];
    for (name, changes, message) in cases {
        let mut sample = Sample::new();
        for (path, value) in changes {
            set(&mut sample.json, path, value);
        }
        let said = refusal(&mut sample.written()).to_string();
        let expected =
            message.strip_prefix('=').map_or_else(|| format!("{malformed}{message}"), str::to_owned);
        assert!(said.starts_with(&expected), "{name}: {said}\nexpected: {expected}");
    }
}

#[test]
fn two_digests_of_the_segment() {
    let mut sample = Sample::new();
    sample.json["digests"]["1"] = sample.json["digests"]["0"].clone();
    let said = refusal(&mut sample.written()).to_string();
    assert!(said.ends_with("two digests of one segment"), "{said}");
}

#[test]
fn defects_of_the_json_text() {
    let text = Sample::new().json.to_string();
    let cases: [(&str, Vec<u8>, Message); 7] = [
        ("empty", Vec::new(), "line 1"),
        ("not_json", b"{".to_vec(), "line 1"),
        ("array", b"[]".to_vec(), "line 1"),
        ("bytes_behind", [text.as_bytes(), b"\0x"].concat(), "bytes follow it"),
        (
            "fills_its_area",
            [text.as_bytes(), &vec![b' '; COPY_BYTES - UNIT - text.len()]].concat(),
            "it fills its area",
        ),
        ("deep", b"[".repeat(2000), "line 1"),
        ("not_utf8", b"{\"\xff\":1}".to_vec(), "line 1"),
    ];
    for (name, json, message) in cases {
        let mut sample = Sample::new();
        sample.put(0, &json, 7);
        sample.put(COPY_BYTES, &json, 7);
        let said = refusal(&mut sample.disk).to_string();
        assert!(said.starts_with(&format!("the header's JSON is malformed: {message}")), "{name}: {said}");
    }
}

#[test]
fn too_many_values() {
    let mut parameters = small(3);
    parameters.header_bytes = 256 << 10;
    parameters.data_offset_bytes += 512 << 10;
    let (mut disk, ..) = made(&parameters, "old", 1);
    for offset in [0, 256 << 10] {
        let copy = &mut disk.bytes[offset..][..256 << 10];
        let json = format!("{{\"x\":[{}0]}}", "0,".repeat(1 << 16));
        copy[UNIT..].fill(0);
        copy[UNIT..][..json.len()].copy_from_slice(json.as_bytes());
        seal(copy);
    }
    let said = refusal(&mut disk).to_string();
    assert!(said.ends_with("it has too many values"), "{said}");
}

#[test]
fn defects_of_both_binary_headers() {
    let cases: [(&str, usize, &[u8], bool, Refusal); 8] = [
        ("magic_wrong", 0, b"LUKS\xba\xbf", true, Refusal::NotLuks),
        ("version_1", 6, &[0, 1], false, Refusal::Luks1),
        ("version_3", 6, &[0, 3], true, Refusal::Version(3)),
        (
            "size_24_kib",
            8,
            &(24_u64 << 10).to_be_bytes(),
            true,
            Refusal::Damaged("a size that the format does not allow"),
        ),
        (
            "size_8_mib",
            8,
            &(8_u64 << 20).to_be_bytes(),
            true,
            Refusal::Damaged("a size that the format does not allow"),
        ),
        (
            "offset_wrong",
            256,
            &4096_u64.to_be_bytes(),
            true,
            Refusal::Damaged("an offset that is not its own"),
        ),
        ("checksum_unknown", 72, b"crc32\0\0", true, Refusal::Damaged("a checksum of an unknown type")),
        ("checksum_wrong", 448, &[0; 32], false, Refusal::Damaged("a wrong checksum")),
    ];
    for (name, at, bytes, is_sealed, expected) in cases {
        let mut disk = Sample::new().written();
        for offset in [0, COPY_BYTES] {
            let copy = &mut disk.bytes[offset..][..COPY_BYTES];
            copy[at..][..bytes.len()].copy_from_slice(bytes);
            if is_sealed {
                seal(copy);
            }
        }
        assert_eq!(refusal(&mut disk), expected, "{name}");
    }
}

/// Every bit of the header's first 512 bytes, and some of the JSON: the other copy is used.
#[test]
fn any_bit_of_one_copy() {
    let disk = Sample::new().written();
    let bits = (0..512 * 8).chain((UNIT * 8..COPY_BYTES * 8).step_by(331));
    for (offset, copies) in [(0, Copies::SecondaryOnly), (COPY_BYTES, Copies::PrimaryOnly)] {
        for bit in bits.clone() {
            let mut bytes = disk.bytes.clone();
            bytes[offset + bit / 8] ^= 1 << (bit % 8);
            let found = read(&mut Disk::new(bytes), Place::Attached);
            let header = found.unwrap_or_else(|error| panic!("bit {bit}: {error}"));
            assert_eq!(header.facts().copies, copies, "bit {bit}");
        }
    }
}

#[test]
fn storage_that_ends_early() {
    let whole = Sample::new().written();
    for (bytes, expected) in [
        (0, Refusal::NotLuks),
        (UNIT - 1, Refusal::NotLuks),
        (UNIT, Refusal::Damaged("an end beyond the storage")),
        (COPY_BYTES - UNIT, Refusal::Damaged("an end beyond the storage")),
        (2 * COPY_BYTES, Refusal::Truncated),
    ] {
        let mut disk = Disk::new(whole.bytes[..bytes].to_vec());
        assert_eq!(refusal(&mut disk), expected, "{bytes} bytes");
    }
}

#[test]
fn choice_of_the_copy() {
    let text = Sample::new().json.to_string();
    let good = text.as_bytes();
    let cases: [(&str, CopyOf<'_>, CopyOf<'_>, Copies, u64); 5] = [
        ("equal", (good, 7), (good, 7), Copies::Both, 7),
        ("primary_newer", (good, 9), (good, 8), Copies::SecondaryOlder, 9),
        ("secondary_newer", (good, 8), (good, 9), Copies::PrimaryOlder, 9),
        ("primary_newer_and_malformed", (b"{}", 9), (good, 8), Copies::SecondaryOnly, 8),
        ("secondary_newer_and_malformed", (good, 8), (b"{}", 9), Copies::PrimaryOnly, 8),
    ];
    for (name, primary, secondary, copies, seqid) in cases {
        let mut sample = Sample::new();
        sample.put(0, primary.0, primary.1);
        sample.put(COPY_BYTES, secondary.0, secondary.1);
        let facts = accepted(&mut sample.disk).facts();
        assert_eq!((facts.copies, facts.sequence_number), (copies, seqid), "{name}");
    }
}

/// A header that is refused is not replaced by its older copy.
#[test]
fn a_newer_copy_that_is_refused_counts() {
    let mut sample = Sample::new();
    let good = sample.json.to_string();
    set(&mut sample.json, "/segments/0/flags", json!(["in-reencryption"]));
    let refused = sample.json.to_string();
    sample.put(0, refused.as_bytes(), 8);
    sample.put(COPY_BYTES, good.as_bytes(), 7);
    assert_eq!(refusal(&mut sample.disk), Refusal::Reencryption);
}

fn argon2(passes: u32, memory_kib: u32, lanes: u32) -> Value {
    let salt = "A".repeat(43) + "=";
    json!({ "type": "argon2id", "time": passes, "memory": memory_kib, "cpus": lanes, "salt": salt })
}

#[test]
fn costs_are_refused_before_they_are_spent() {
    const GIB: u64 = 1 << 30;
    let pbkdf2 = |iterations: u64| {
        let salt = "A".repeat(43) + "=";
        json!({ "type": "pbkdf2", "hash": "sha256", "iterations": iterations, "salt": salt })
    };
    let unlimited = Limits { memory_bytes_max: u64::MAX };
    let gib = Limits { memory_bytes_max: GIB };
    let memory = |bytes, bytes_max| CostError::Memory { bytes, bytes_max };
    let cases = [
        ("memory_8_gib", argon2(4, 8 << 20, 4), unlimited, memory(8 * GIB, 4 * GIB)),
        ("memory_4_tib", argon2(4, u32::MAX, 4), unlimited, memory(u64::from(u32::MAX) << 10, 4 * GIB)),
        ("memory_above_the_callers", argon2(4, 2 << 20, 4), gib, memory(2 * GIB, GIB)),
        ("passes_0", argon2(0, 64, 1), gib, CostError::Passes { passes: 0, memory_kib: 64 }),
        (
            "passes_for_hours",
            argon2(2000, 1 << 20, 4),
            gib,
            CostError::Passes { passes: 2000, memory_kib: 1 << 20 },
        ),
        ("lanes_0", argon2(4, 64, 0), gib, CostError::Lanes(0)),
        ("lanes_65", argon2(4, 4096, 65), gib, CostError::Lanes(65)),
        (
            "memory_below_that_of_the_lanes",
            argon2(4, 31, 4),
            gib,
            CostError::MemoryOfLanes { memory_kib: 31, lanes: 4 },
        ),
        ("iterations_0", pbkdf2(0), gib, CostError::Iterations(0)),
        ("iterations_for_hours", pbkdf2(u32::MAX.into()), gib, CostError::Iterations(u32::MAX)),
    ];
    for (name, kdf, limits, expected) in cases {
        let mut sample = Sample::new();
        set(&mut sample.json, "/keyslots/0/kdf", kdf);
        let mut disk = sample.written();
        let header = accepted(&mut disk);
        let opened = header.unlock(&mut disk, b"other", None, &limits).unwrap();
        assert_eq!(opened.slot, 1, "{name}: another keyslot opens all the same");
        for slot in [None, Some(0)] {
            match header.unlock(&mut disk, b"wrong", slot, &limits) {
                Err(UnlockError::Refused(Refusal::Cost { slot: 0, cost })) => {
                    assert_eq!(cost, expected, "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}

#[test]
fn the_digests_costs_count() {
    for iterations in [0, u64::from(u32::MAX)] {
        let mut sample = Sample::new();
        set(&mut sample.json, "/digests/0/iterations", json!(iterations));
        let mut disk = sample.written();
        let opened = accepted(&mut disk).unlock(&mut disk, b"old", None, &LIMITS);
        assert!(matches!(opened, Err(UnlockError::Refused(Refusal::Cost { .. }))), "{opened:?}");
    }
}

#[test]
fn keyslots_are_tried_by_priority() {
    let mut sample = Sample::new();
    set(&mut sample.json, "/keyslots/0/priority", json!(0));
    let mut disk = sample.written();
    let header = accepted(&mut disk);
    let ignored = header.unlock(&mut disk, b"old", None, &LIMITS);
    assert!(matches!(ignored, Err(UnlockError::WrongPassphrase)), "{ignored:?}");
    assert_eq!(header.unlock(&mut disk, b"old", Some(0), &LIMITS).unwrap().slot, 0);
    let missing = header.unlock(&mut disk, b"old", Some(2), &LIMITS);
    assert!(matches!(missing, Err(UnlockError::NoSuchSlot(2))), "{missing:?}");

    // Both keyslots hold one passphrase: the preferred one opens.
    let (mut disk, mut header, key) = made(&small(3), "old", 1);
    header.add_key(&mut disk, &key, b"old", &CHEAP, &mut random(2)).unwrap();
    assert_eq!(header.unlock(&mut disk, b"old", None, &LIMITS).unwrap().slot, 0);
    let mut sample = Sample { json: Sample::new().json, disk };
    let text = &sample.disk.bytes[UNIT..COPY_BYTES];
    let end = text.iter().position(|byte| *byte == 0).unwrap();
    sample.json = serde_json::from_slice(&text[..end]).unwrap();
    set(&mut sample.json, "/keyslots/1/priority", json!(2));
    let mut disk = sample.written();
    assert_eq!(accepted(&mut disk).unlock(&mut disk, b"old", None, &LIMITS).unwrap().slot, 1);
}

#[test]
fn text_of_the_header_is_escaped() {
    let mut sample = Sample::new();
    sample.disk.bytes[24..30].copy_from_slice(b"\x1b[2J\xff\n");
    set(&mut sample.json, "/tokens/0", json!({"type":"\u{1b}c","keyslots":["1"]}));
    let text = sample.json.to_string();
    sample.put(0, text.as_bytes(), 8);
    let facts = accepted(&mut sample.disk).facts();
    assert_eq!((&facts.label[..], &facts.tokens[0].kind[..]), ("\\u{1b}[2J\u{fffd}\\n", "\\u{1b}c"));
}

#[test]
fn parameters_of_a_format() {
    let size = 4 << 20;
    let good = small(3);
    let cases: [(&str, volume::luks2::Format<'_>, Message); 10] = [
        (
            "label_too_long",
            volume::luks2::Format {
                label: "123456789012345678901234567890123456789012345678",
                ..good.clone()
            },
            "a label of",
        ),
        ("label_with_zero", volume::luks2::Format { label: "a\0b", ..good.clone() }, "a label of"),
        (
            "uuid_of_other_characters",
            volume::luks2::Format { uuid: Some("../../etc"), ..good.clone() },
            "a UUID of",
        ),
        ("uuid_empty", volume::luks2::Format { uuid: Some(""), ..good.clone() }, "a UUID of"),
        ("key_of_48", volume::luks2::Format { key_bytes: 48, ..good.clone() }, "a volume key of 48 bytes"),
        (
            "header_of_24_kib",
            volume::luks2::Format { header_bytes: 24 << 10, ..good.clone() },
            "sizes or offsets",
        ),
        (
            "no_room_for_a_keyslot",
            volume::luks2::Format { keyslots_bytes: 126_976, ..good.clone() },
            "sizes or offsets",
        ),
        (
            "data_in_the_header",
            volume::luks2::Format { data_offset_bytes: 0, ..good.clone() },
            "sizes or offsets",
        ),
        (
            "sector_of_8192",
            volume::luks2::Format { segment: SegmentKind::Crypt { sector_bytes: 8192 }, ..good.clone() },
            "sizes or offsets",
        ),
        (
            "storage_too_small",
            volume::luks2::Format { data_offset_bytes: 8 << 20, ..good.clone() },
            "the storage has",
        ),
    ];
    for (name, parameters, message) in cases {
        let mut disk = Disk::new(vec![0; size]);
        let error = format(&mut disk, &parameters, b"x", &CHEAP, &mut random(1)).expect_err(name);
        assert!(error.to_string().starts_with(message), "{name}: {error}");
        assert!(disk.log.is_empty(), "{name}: nothing was written");
    }
    let costs = Argon2Costs { passes: 0, memory_kib: 64, lanes: 1 };
    let error = format(&mut Disk::new(vec![0; size]), &good, b"x", &Pbkdf::Argon2id(costs), &mut random(1));
    assert!(error.is_err(), "costs are checked");
}

#[test]
fn an_auth_volume_is_read_as_it_was_made() {
    for cipher in AuthCipher::ALL {
        for unit_bytes in [512, 4096] {
            let segment = SegmentKind::Auth { cipher, unit_bytes };
            let parameters = volume::luks2::Format { segment, uuid: Some("AB-12"), ..small(2) };
            let (mut disk, ..) = made(&parameters, "old", 3);
            let header = accepted(&mut disk);
            assert_eq!((header.segment().kind, header.uuid()), (segment, &b"ab-12"[..]));
            assert_eq!(header.facts().requirements, ["hikyaku-auth-v1"]);
        }
    }
}
