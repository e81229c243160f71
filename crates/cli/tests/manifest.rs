//! `copy --manifest` and `compare --manifest`: differences found without the source, and refusals.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use common::Place;
use serde_json::json;

const MIB: u64 = 1 << 20;

/// A verified copy b.img of 12 MiB, of which 4 MiB are a hole, with its manifest b.man; returns its hash.
fn copied() -> (Place, String) {
    let place = Place::new();
    let source = place.sample("a.img", 8 << 20);
    OpenOptions::new().write(true).open(source).unwrap().set_len(12 * MIB).unwrap();
    let copy = ["copy", "a.img", "b.img,create,size=12M", "--verify", "--manifest", "b.man", "--json"];
    let object = place.run(&copy).expect(0).json();
    let told = json!({ "file": "b.man", "extents": 12, "extent_bytes": MIB, "unknown_bytes": 0 });
    assert_eq!(object["manifest"], told);
    let whole = object["blake3"].as_str().unwrap().to_owned();
    (place, whole)
}

fn flip(place: &Place, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(place.path("b.img")).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 4], offset).unwrap();
}

#[test]
fn a_flipped_byte_is_found_without_the_source() {
    let (place, whole) = copied();
    fs::remove_file(place.path("a.img")).unwrap();
    let check = ["compare", "b.img", "--manifest", "b.man"];
    let ran = place.run(&check).expect(0);
    assert!(ran.stdout.starts_with("as it was: 12 MiB in ") && ran.stdout.contains(&whole), "{}", ran.stdout);
    assert!(fs::read_to_string(place.path("b.man")).unwrap().contains(&format!("# range-blake3: {whole}\n")));

    flip(&place, 3 * MIB + 17);
    let ran = place.run(&check).expect(3);
    let words = "1048576 bytes of b.img are not what they were, in 1 area (offset+bytes: 3145728+1048576)\n";
    assert_eq!(ran.stdout, words);
    // In the hole, and beside it.
    flip(&place, 9 * MIB - 1);
    flip(&place, 9 * MIB);
    let object = place.run(&[&check[..], &["--json"]].concat()).expect(3).json();
    assert_eq!(object["equal"], false);
    assert_eq!(object["offset"], 3 * MIB);
    assert_eq!(object["different"], json!([[3 * MIB, MIB], [8 * MIB, 2 * MIB]]));
    assert_eq!((&object["different_bytes"], &object["different_areas"]), (&json!(3 * MIB), &json!(2)));
    assert_eq!((&object["bytes"], &object["unknown_bytes"]), (&json!(12 * MIB), &json!(0)));
    assert_eq!(object["blake3"], whole);
}

#[test]
fn the_range_may_lie_elsewhere() {
    let (place, _) = copied();
    let moved = [&vec![7; 4096][..], &fs::read(place.path("b.img")).unwrap(), &[7; 4096]].concat();
    place.file("c.img", &moved);
    let check = ["compare", "c.img", "--manifest", "b.man"];
    let hint = place.run(&check).expect(2).stderr;
    assert!(hint.contains("12591104 bytes") && hint.contains("--size 12582912"), "{hint}");
    let here = [&check[..], &["--src-offset", "4K"]].concat();
    place.run(&here).expect(2);
    place.run(&[&here[..], &["--size", "12M"]].concat()).expect(0);
    place.run(&[&check[..], &["--size", "12M"]].concat()).expect(3);
    place.run(&[&check[..], &["--size", "1M"]].concat()).expect(2);
    place.run(&[&here[..], &["--size", "12M", "--dst-offset", "4K"]].concat()).expect(2);
    place.file("d.img", &moved[..MIB as usize]);
    let error = place.run(&["compare", "d.img", "--manifest", "b.man", "--json"]).expect(2).error();
    assert!(error["hint"].as_str().unwrap().contains("the right disk"), "{error}");
}

#[test]
fn places_that_cannot_be_read_now_are_named_beside_what_differs() {
    let (place, _) = copied();
    let failing = "b.img,fault=read-error@1049000+512";
    place
        .run(&["compare", failing, "--manifest", "b.man"])
        .expect(7)
        .on_stderr("(offset+bytes: 1048576+1048576)");
    flip(&place, 5 * MIB);
    let object = place.run(&["compare", failing, "--manifest", "b.man", "--json"]).expect(3).json();
    assert_eq!(object["different"], json!([[5 * MIB, MIB]]));
    assert_eq!(object["unreadable"], json!([[MIB, MIB]]));
    assert_eq!(object["bytes"], 11 * MIB);
}

#[test]
fn a_damaged_manifest_says_nothing_of_a_disk() {
    let (place, _) = copied();
    let mut text = fs::read(place.path("b.man")).unwrap();
    let middle = text.len() / 2;
    text[middle] ^= 1;
    place.file("c.man", &text);
    for (file, words) in
        [("c.man", "it is damaged: its checksum"), ("b.img", "not a manifest"), ("x", "os error 2")]
    {
        place.run(&["compare", "b.img", "--manifest", file]).expect(1).on_stderr(words);
    }
}

#[test]
fn what_a_manifest_cannot_be_of_or_lie_in_is_refused() {
    let (place, _) = copied();
    let copy = ["copy", "a.img", "b.img"];
    let refused = |more: &[&str], code: i32, words: &str| {
        place.run(&[&copy[..], more].concat()).expect(code).on_stderr(words);
    };
    refused(&["--manifest", "c.man"], 2, "--verify");
    refused(&["--verify", "--manifest", "c.man", "--dry-run"], 2, "--dry-run");
    refused(&["--verify", "--manifest", "a.img"], 2, "another name");
    refused(&["--verify", "--manifest", "none/c.man"], 1, "cannot write the manifest none/c.man");
    place.file("letter", b"dear");
    refused(&["--verify", "--manifest", "letter"], 6, "only an earlier manifest is overwritten");
    place.run(&["copy", "-", "b.img", "--verify", "--manifest", "c.man"]).expect(2).on_stderr("--manifest");
    place.run(&["compare", "b.img"]).expect(2);
    place.run(&["compare", "b.img", "a.img", "--manifest", "b.man"]).expect(2);
    assert!(!place.path("c.man").exists() && fs::read(place.path("letter")).unwrap() == b"dear");
    // An earlier manifest is replaced.
    place.file("b.man", b"# Manifest of hikyaku copy, version 9\n");
    place.run(&[&copy[..], &["--verify", "--manifest", "b.man"]].concat()).expect(0);
    place.run(&["compare", "a.img", "--manifest", "b.man"]).expect(0);
}
