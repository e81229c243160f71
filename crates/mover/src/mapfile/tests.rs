//! Round trips, damage, and GNU ddrescuelog as second reader.

use std::process::Command;

use block::{Fingerprint, Identity};

use super::{Label, MAPFILE_VERSION, Mapfile, MapfileError, Mismatch, Origin};
use crate::map::{Map, Status};
use crate::scripted::Random;

fn mapfile(seed: u64) -> Mapfile {
    let mut random = Random::new(seed);
    let bytes = 1 + random.below(1 << 40);
    let mut map = Map::new(bytes);
    for _ in 0..random.below(30) {
        let (one, two) = (random.below(bytes + 1), random.below(bytes + 1));
        map.set(one.min(two), one.max(two), Status::ALL[random.below(5) as usize]);
    }
    let identity = Identity::File { device: random.below(1 << 20), inode: random.below(1 << 40), offset: 0 };
    let label = Label {
        source: "disk 100%\n\t/ü.img".to_owned(),
        destination: "iscsi://host/iqn.x/0,timeout=2s".to_owned(),
        src_offset: random.below(1 << 30),
        dst_offset: random.below(1 << 30),
        bytes,
        chunk: 1 << 20,
        source_was: Fingerprint { contents: "mtime 1.5".into(), ..identity.fingerprint(bytes) },
        destination_was: Fingerprint {
            // Version 1, without an origin, has no line for it.
            contents: if seed.is_multiple_of(4) { "modified 1.5, changed 1.5".into() } else { String::new() },
            ..Identity::Remote("naa.3".into()).fingerprint(bytes)
        },
    };
    let origin = Origin {
        directory: "/srv/a b".to_owned(),
        command: "hikyaku copy 'disk 100%.img' b --pre 'x\ny'".to_owned(),
        part: "all".to_owned(),
    };
    Mapfile { label, origin: Some(origin).filter(|_| seed.is_multiple_of(2)), map }
}

#[test]
fn what_is_written_is_read() {
    for seed in 1..=300 {
        let mapfile = mapfile(seed);
        let text = mapfile.emit();
        assert_eq!(Mapfile::parse(text.as_bytes()).as_ref(), Ok(&mapfile), "seed {seed}: {text}");
    }
}

#[test]
fn a_flipped_or_missing_byte_is_never_believed() {
    let mut mapfile = mapfile(3);
    mapfile.map.set(0, mapfile.label.bytes, Status::Finished);
    mapfile.map.set(4096, 8192, Status::BadSector);
    let text = mapfile.emit().into_bytes();
    for place in 0..text.len() {
        for bit in 0..8 {
            let mut flipped = text.clone();
            flipped[place] ^= 1 << bit;
            assert!(Mapfile::parse(&flipped).is_err(), "bit {bit} of byte {place}");
        }
        assert!(Mapfile::parse(&text[..place]).is_err(), "the first {place} bytes");
    }
    assert!(Mapfile::parse(&[&text[..], b"\n"].concat()).is_err());
}

/// Parses the text with `from` replaced and a matching checksum, like a file edited by hand.
fn forged(text: &str, from: &str, to: &str) -> Result<Mapfile, MapfileError> {
    let body = &text[..text.rfind("# blake3: ").unwrap()];
    assert!(body.contains(from), "{from}");
    let body = body.replacen(from, to, 1);
    Mapfile::parse(crate::textfile::finish(body).as_bytes())
}

#[test]
fn a_forged_map_is_checked_all_the_same() {
    let mut mapfile = mapfile(2);
    (mapfile.label.src_offset, mapfile.label.bytes) = (0x1000, 0x3000);
    mapfile.map = Map::new(0x3000);
    mapfile.map.set(0x1000, 0x2000, Status::Finished);
    let text = mapfile.emit();
    let whole = "0x00001000  0x00001000  ?\n0x00002000  0x00001000  +\n0x00003000  0x00001000  ?\n";
    assert!(text.contains(whole), "{text}");
    assert_eq!(forged(&text, "chunk", "chunk"), Ok(mapfile.clone()));
    let same = "0x00001000 0x800 ?\n0x00001800\t0x800 ?\n0x2000 0x1000 +\n0x3000 0x1000 ?\n";
    assert_eq!(forged(&text, whole, same), Ok(mapfile));
    for (from, to) in [
        (whole, ""),
        (whole, "0x00001000  0x00001000  ?\n0x00002000  0x00001000  +\n"),
        ("0x00002000  0x00001000  +", "0x00002001  0x00001000  +"),
        ("0x00002000  0x00001000  +", "0x00001000  0x00001000  +"),
        ("0x00002000  0x00001000  +", "0x00002000  0x00000000  +"),
        ("0x00002000  0x00001000  +", "0x00002000  0xFFFFFFFFFFFFFFFF  +"),
        ("0x00002000  0x00001000  +", "0x00002000  0x00001000  F"),
        ("0x00002000  0x00001000  +", "0x00002000  0x00001000  + +"),
        ("0x00002000  0x00001000  +", "0x00002000  0x00003000  +"),
        ("0x00002000  0x00001000  +", "# 0x00002000"),
        ("# source-offset: 4096", "# source-offset: 18446744073709551615"),
        ("# source-offset: 4096", "# source-offset: 4095"),
        ("# bytes: 12288", "# bytes: 18446744073709551615"),
        ("# bytes: 12288", "# bytes: -1"),
        ("# bytes: 12288", "# bytes: +12288"),
        ("# bytes: 12288", "# bytes: "),
        ("# chunk: 1048576", "# chunk: 4294967296"),
        ("# source: ", "# source-: "),
        ("%0A", "%0"),
        ("%0A", "%FF"),
        ("%0A", "%+1"),
        ("# current_pos  current_status  current_pass\n", ""),
        ("version 2\n", "version 1\n"),
        ("# destination-left: ", "# destination: "),
    ] {
        assert!(matches!(forged(&text, from, to), Err(MapfileError::Damaged(_))), "{from} -> {to}");
    }
}

/// An earlier release recorded neither the state of the destination at the end nor the birth times of files.
#[test]
fn version_1_is_read_and_its_files_are_no_longer_the_same() {
    let mut mapfile = mapfile(1);
    mapfile.label.destination_was =
        Fingerprint { storage: "file 1:5, 9 bytes".into(), contents: String::new() };
    let text = mapfile.emit();
    assert!(text.contains("version 1\n") && !text.contains("destination-left"), "{text}");
    assert_eq!(Mapfile::parse(text.as_bytes()), Ok(mapfile.clone()));
    let mut now = mapfile.label.clone();
    assert_eq!(mapfile.label.check(&now), Ok(()));
    now.destination_was.storage = "file 1:5, born 1.000000005, 9 bytes".into();
    assert!(matches!(mapfile.label.check(&now), Err(Mismatch::Storage { end: "destination", .. })));
}

#[test]
fn each_version_has_its_own_lines() {
    for seed in [1, 2] {
        let text = mapfile(seed).emit();
        let lines = |version| text.lines().filter(|line| line.ends_with(version)).count();
        assert_eq!([lines(", version 1"), lines(", version 2")], if seed == 1 { [1, 0] } else { [0, 1] });
        for (from, to) in [("version 1", "version 2"), ("version 2", "version 1"), ("# part", "# parts")] {
            assert!(!text.contains(from) || forged(&text, from, to).is_err(), "{seed}: {from} -> {to}");
        }
    }
}

#[test]
fn errors_say_what_to_do() {
    let text = mapfile(5).emit();
    assert_eq!(Mapfile::parse(b""), Err(MapfileError::Foreign));
    let parsed = Mapfile::parse(b"# Mapfile. Created by GNU ddrescue version 1.27\n");
    assert_eq!(parsed, Err(MapfileError::Foreign));
    let later = text.replacen("version 1\n", "version 3\n", 1);
    let error = Mapfile::parse(later.as_bytes()).unwrap_err();
    assert_eq!(error, MapfileError::Version("3".to_owned()));
    assert!(error.to_string().contains(&format!("reads versions 1 to {MAPFILE_VERSION}")), "{error}");
    assert!(Mapfile::parse(&text.as_bytes()[..200]).unwrap_err().to_string().contains("begin anew"));
}

#[test]
fn only_the_same_copy_takes_a_map_up() {
    let label =
        Label { destination_was: Identity::Remote("naa.3".into()).fingerprint(7), ..mapfile(7).label };
    let with = |change: fn(&mut Label)| {
        let mut now = label.clone();
        change(&mut now);
        (label.check(&now), label.id() == now.id())
    };
    let harmless = with(|now| {
        now.chunk = 4096;
        now.destination_was.contents = "later".into();
    });
    assert_eq!(harmless, (Ok(()), true));
    assert!(matches!(with(|now| now.src_offset += 1), (Err(Mismatch::Range { .. }), false)));
    assert!(matches!(with(|now| now.dst_offset += 1), (Err(Mismatch::Range { .. }), false)));
    assert!(matches!(with(|now| now.bytes += 1), (Err(Mismatch::Range { what: "bytes", .. }), false)));
    assert!(matches!(
        with(|now| now.source_was.storage += "0"),
        (Err(Mismatch::Storage { end: "source", .. }), false)
    ));
    assert!(matches!(
        with(|now| now.destination_was.storage += "0"),
        (Err(Mismatch::Storage { end: "destination", .. }), false)
    ));
    assert!(matches!(
        with(|now| now.source_was.contents += "0"),
        (Err(Mismatch::SourceChanged { .. }), true)
    ));
}

fn ddrescuelog(arguments: &[&str], text: &str) -> (bool, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let output = Command::new("ddrescuelog").args(arguments).arg(file.path()).output();
    let output = output.expect("ddrescuelog is there (Debian: gddrescue; `cargo xtask test` installs it)");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status.success(), said)
}

#[test]
#[ignore = "needs ddrescuelog"]
fn ddrescuelog_reads_the_same() {
    for seed in 1..=20 {
        let mapfile = mapfile(seed);
        let text = mapfile.emit();
        for status in Status::ALL {
            // A list of blocks (of one byte) would be too long: lists blocks of 2^28 bytes, for a map aligned to those.
            let mut coarse = Map::new(mapfile.map.size() >> 28 << 28);
            for entry in mapfile.map.entries() {
                coarse.set(entry.start >> 28 << 28, entry.end >> 28 << 28, entry.status);
            }
            let label = Label { src_offset: 5 << 28, bytes: coarse.size(), ..mapfile.label.clone() };
            let text = Mapfile { label, origin: None, map: coarse.clone() }.emit();
            let list = format!("--list-blocks={}", status.sign());
            let (fine, said) = ddrescuelog(&["-b", "268435456", &list], &text);
            let theirs: u64 = said.lines().map(|line| line.parse::<u64>().map_or(u64::MAX, |_| 1)).sum();
            assert_eq!((fine, theirs), (true, coarse.bytes(status) >> 28), "seed {seed}: {status:?}");
        }
        let done = mapfile.map.bytes(Status::Finished) == mapfile.map.size();
        assert_eq!(ddrescuelog(&["-D"], &text).0, done, "seed {seed}");
    }
}
