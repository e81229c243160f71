//! Round trips, and many texts that are not valid manifests.

use super::{MANIFEST_VERSION, Manifest, ManifestError};
use crate::mapfile::Label;
use crate::scripted::Random;
use crate::sums::{Content, EXTENT_BYTES_MIN, Sum, Sums};
use crate::textfile;

const E: u64 = EXTENT_BYTES_MIN;

fn manifest(seed: u64) -> Manifest {
    let mut random = Random::new(seed);
    let total = random.below(40 * E);
    let kinds = if random.one_in(2) { 1 } else { 4 };
    let (mut sums, mut at) = (Vec::new(), 0);
    while at < total {
        let mut value = [0; 32];
        random.fill(&mut value);
        let (mut bytes, content) = match random.below(kinds) {
            0 => (E, Content::Data(value)),
            1 => (E << random.below(3), Content::Unknown),
            2 => (E << random.below(3), Content::Zero(None)),
            _ => (E << random.below(3), Content::Zero(Some(value))),
        };
        if at % bytes != 0 || at + bytes > total || bytes == total {
            bytes = E.min(total - at);
        }
        sums.push(Sum { offset: at, bytes, content });
        at += bytes;
    }
    let label = Label {
        source: "disk 100%\n\t/ü.img".to_owned(),
        destination: "iscsi://host/iqn.x/0,timeout=2s".to_owned(),
        src_offset: random.below(1 << 30),
        dst_offset: random.below(1 << 30),
        bytes: total,
        chunk: 1 << 20,
        ..Label::default()
    };
    Manifest { label, sums: Sums::new(total, E, sums).unwrap() }
}

#[test]
fn what_is_written_is_read() {
    let mut whole = 0;
    for seed in 1..=300 {
        let manifest = manifest(seed);
        whole += u32::from(manifest.sums.blake3().is_some());
        let text = manifest.emit();
        assert_eq!(Manifest::parse(text.as_bytes()).as_ref(), Ok(&manifest), "seed {seed}: {text}");
    }
    assert!((20..280).contains(&whole), "{whole} have a hash of the whole");
}

#[test]
fn a_flipped_or_missing_byte_is_never_believed() {
    let text = three().emit().into_bytes();
    for place in 0..text.len() {
        for bit in 0..8 {
            let mut flipped = text.clone();
            flipped[place] ^= 1 << bit;
            assert!(Manifest::parse(&flipped).is_err(), "bit {bit} of byte {place}");
        }
        assert!(Manifest::parse(&text[..place]).is_err(), "the first {place} bytes");
    }
    assert!(Manifest::parse(&[&text[..], b"\n"].concat()).is_err());
}

fn three() -> Manifest {
    let value = |byte| blake3::hash(&[byte]).into();
    let sums = vec![
        Sum { offset: 0, bytes: E, content: Content::Data(value(1)) },
        Sum { offset: E, bytes: E, content: Content::Zero(Some(value(2))) },
        Sum { offset: 2 * E, bytes: 4096, content: Content::Data(value(3)) },
    ];
    let total = 2 * E + 4096;
    Manifest { label: Label { bytes: total, ..Label::default() }, sums: Sums::new(total, E, sums).unwrap() }
}

/// Parses the text with `from` replaced and a matching checksum, like a file edited by hand.
fn forged(text: &str, from: &str, to: &str) -> Result<Manifest, ManifestError> {
    let body = &text[..text.rfind("# blake3: ").unwrap()];
    assert!(body.contains(from), "{from}");
    Manifest::parse(textfile::finish(body.replacen(from, to, 1)).as_bytes())
}

#[test]
fn a_forged_manifest_is_checked_all_the_same() {
    let manifest = three();
    let text = manifest.emit();
    let whole = manifest.sums.blake3().unwrap();
    let [one, two] = [1, 2].map(|byte| blake3::hash(&[byte]).to_hex().to_string());
    assert_eq!(forged(&text, "chunk", "chunk"), Ok(manifest));
    let extent = format!("# extent: {E}");
    let second = format!("0x{E:08X}  0x{E:08X}  0  {two}\n");
    let bytes = format!("# bytes: {}", 2 * E + 4096);
    for (from, to) in [
        // A changed value, or one marked as unknown, also requires a change of the hash of the whole.
        (&*one, &*two),
        (&format!("0  {two}"), &format!("+  {one}")),
        (&format!("0  {two}"), "0"),
        (&format!("0  {two}"), "?"),
        (&whole, &one),
        (&whole, "none"),
        (&format!("# range-blake3: {whole}\n"), ""),
        // Malformed lines.
        (&format!("+  {one}"), "+"),
        (&format!("0  {two}"), &format!("?  {two}")),
        (&format!("0  {two}"), &format!("0  {two}  {two}")),
        (&format!("0  {two}"), &format!("1  {two}")),
        (&two, &two[1..]),
        (&two, &two.to_uppercase()),
        (&two, &format!("{two}0")),
        (&format!("0x{E:08X}  0x{E:08X}"), &format!("{E:08X}  0x{E:08X}")),
        (&format!("0x{E:08X}  0x{E:08X}"), &format!("0x{E:08X}  0x{:08X}", E - 1)),
        (&format!("0x{E:08X}  0x{E:08X}"), &format!("0x{E:08X}  0x{:08X}", 2 * E)),
        (&format!("0x{E:08X}  0x{E:08X}"), &format!("0x{E:08X}  0xFFFFFFFFFFFFFFFF")),
        (&second, ""),
        (&second, &second.repeat(2)),
        (&second, &"0x0 0x0 ?\n".repeat(5000)),
        // Another division into extents.
        (&extent, "# extent: 0"),
        (&extent, "# extent: 1024"),
        (&extent, &format!("# extent: {}", 3 * E)),
        (&extent, &format!("# extent: {}", 2 * E)),
        (&extent, "# extent: 18446744073709551615"),
        (&bytes, "# bytes: 0"),
        (&bytes, &format!("# bytes: {}", 2 * E + 4097)),
        (&bytes, "# bytes: 18446744073709551615"),
        ("# source-offset: 0", "# source-offset: 18446744073709551615"),
        ("# chunk: 0\n", ""),
    ] {
        assert!(matches!(forged(&text, from, to), Err(ManifestError::Damaged(_))), "{from} -> {to}");
    }
}

#[test]
fn errors_say_what_to_do() {
    let text = three().emit();
    for other in ["", "# Mapfile of hikyaku copy, version 1\n", "# Manifest of hikyaku copy"] {
        assert_eq!(Manifest::parse(other.as_bytes()), Err(ManifestError::Foreign));
    }
    let later = text.replacen("version 1\n", "version 2\n", 1);
    let error = Manifest::parse(later.as_bytes()).unwrap_err();
    assert_eq!(error, ManifestError::Version("2".to_owned()));
    assert!(error.to_string().contains(&format!("reads version {MANIFEST_VERSION}")), "{error}");
    assert!(Manifest::parse(&text.as_bytes()[..300]).unwrap_err().to_string().contains("another copy"));
}

/// The text in docs/internals/mover-verify.md: files of earlier releases must stay readable.
#[test]
fn the_text_of_version_1() {
    let text = three().emit();
    let lines: Vec<_> = text.lines().collect();
    let names: Vec<_> = lines.iter().map(|line| line.split(':').next().unwrap()).take(12).collect();
    let expected = [
        "# Manifest of hikyaku copy, version 1",
        "# source",
        "# destination",
        "# source-storage",
        "# source-contents",
        "# destination-storage",
        "# source-offset",
        "# destination-offset",
        "# bytes",
        "# chunk",
        "# extent",
        "# range-blake3",
    ];
    assert_eq!(names, expected);
    assert_eq!(lines[12], "#      pos        size  content  value");
    assert_eq!(lines[13], format!("0x00000000  0x{E:08X}  +  {}", blake3::hash(&[1])));
    assert_eq!((lines.len(), &lines[16][..10]), (17, "# blake3: "));
}
