//! The torture test on correct storage, on storage that loses writes, and on storage whose power fails.

mod common;

use std::fs;

use common::{Place, text};
use serde_json::Value;

const MIB: usize = 1 << 20;

fn verdict(object: &Value) -> (bool, u64, u64) {
    let number = |name: &str| object[name].as_u64().unwrap();
    (object["kept"].as_bool().unwrap(), number("sectors"), number("violations"))
}

#[test]
fn a_file_keeps_its_word_and_the_journal_knows_it() {
    let place = Place::new();
    let file = place.file("a.img", &vec![7; MIB]);
    let words = ["torture", "a.img", "--operations", "300", "--clients", "3", "--seed", "5"];
    let object =
        place.run(&[&words[..], &["--destroy", "--json", "--journal", "j"]].concat()).expect(0).json();
    assert_eq!(verdict(&object), (true, 2048, 0));
    let sum: u64 = ["read", "write", "discard", "flush"]
        .iter()
        .map(|name| object["operations"][name].as_u64().unwrap())
        .sum();
    assert!(sum >= 900, "{object}");
    place.run(&["torture", "a.img", "--check", "j"]).expect(0);
    // Another program changes the data. (Where two requests overlapped last, a sector may be torn.)
    let bytes: Vec<u8> = fs::read(&file).unwrap().iter().map(|byte| byte ^ 1).collect();
    fs::write(&file, bytes).unwrap();
    let ran = place.run(&["torture", "a.img", "--check", "j", "--json"]).expect(3);
    let (kept, sectors, violations) = verdict(&ran.json());
    assert!(!kept && sectors == 2048 && violations > 1500, "{violations}");
    assert_eq!(ran.json()["first"].as_array().unwrap().len(), 16);
    let ran = place.run(&["torture", "a.img", "--check", "j"]).expect(3);
    for words in ["lost: ", "of 2048 sectors", "offset ", "found ", "expected ", "seed 5"] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
}

#[test]
fn nothing_is_destroyed_by_accident() {
    let place = Place::new();
    place.file("a.img", &vec![0; MIB]);
    let mut ext4 = vec![0; MIB];
    ext4[1080..1082].copy_from_slice(&[0x53, 0xEF]);
    ext4[1024 + 4..1024 + 8].copy_from_slice(&1024u32.to_le_bytes());
    let before = place.file("ext4.img", &ext4);
    assert!(place.run(&["torture", "a.img"]).expect(6).stderr.contains("--destroy"));
    place.run(&["torture", "ext4.img", "--destroy"]).expect(6);
    assert!(fs::read(before).unwrap() == ext4);
    place.run(&["torture", "a.img,ro", "--destroy"]).expect(6);
    place.run(&["torture", "a.img", "--destroy", "--size", "2M"]).expect(2);
    place.file("j", b"no journal");
    place.run(&["torture", "a.img", "--check", "j"]).expect(2);
    place.run(&["torture", "a.img", "--destroy", "--journal", "j"]).expect(1).on_stderr("journal");
}

#[test]
fn corruption_on_the_way_is_found() {
    let place = Place::new();
    place.file("lun.img", &vec![0; MIB]);
    // To the end: later writes may cover the effect of the few corrupted ones before a read.
    let serving = place.serve(&["lun.img,fault=corrupt-write:after=100"]);
    let words = ["torture", &serving.urls[0], "--destroy", "--operations", "300", "--json"];
    let object = place.run(&words).expect(3).json();
    assert!(!verdict(&object).0, "{object}");
}

#[test]
fn power_cuts_lose_what_was_not_flushed_and_nothing_else() {
    for (seed, cuts) in [(1, true), (3, false)] {
        let place = Place::new();
        let file = place.file("disk.img", &vec![0; 2 * MIB]);
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listen = format!("127.0.0.1:{port}");
        let serve = |spec: &str| {
            place
                .serve_at(&listen, &[&format!("{}{spec}", text(&file)), "--iqn", "iqn.2026-11.org.example:t"])
        };
        let mut serving = serve(&format!(",crash=after=400:seed={seed}"));
        let mut torture = place.command();
        torture.args(["torture", &serving.urls[0], "--destroy", "--operations", "1000", "--json"]);
        torture.args(["--clients", "2", "--seed", &seed.to_string()]);
        torture.args(cuts.then_some("--cuts")).stdout(std::process::Stdio::piped());
        let torture = torture.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut ends = 0;
        // Without faults from here on, so that the run ends.
        for round in 0..4 {
            assert_eq!(serving.wait(), 137, "seed {seed}");
            ends += 1;
            let spec = if round < 3 { format!(",crash=after=300:seed={round}{seed}") } else { String::new() };
            serving = serve(&spec);
        }
        let ran = common::Ran::from(torture.wait_with_output().unwrap());
        let object = ran.expect(if cuts { 0 } else { 3 }).json();
        assert!(object["connections_lost"].as_u64().unwrap() >= ends, "{object}");
        assert_eq!(verdict(&object).0, cuts, "{object}");
    }
}
