//! `lab`: the experiments run, and what they say has the shape that was promised.

mod common;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use common::{Place, text};
use serde_json::Value;

/// Experiments want the machine for themselves.
static MACHINE: Mutex<()> = Mutex::new(());

#[test]
fn experiments_are_listed_and_unknown_ones_refused() {
    let place = Place::new();
    assert!(place.run(&["lab", "list"]).expect(0).stdout.contains("secure-read\t"));
    let ran = place.run(&["lab", "secure-reed"]).expect(2);
    assert!(ran.stderr.contains("there is: secure-read"), "{}", ran.stderr);
    let ran = place.run(&["lab", "secure-read", "--quick", "--block", "513"]).expect(2);
    assert!(ran.stderr.contains("multiples of 512"), "{}", ran.stderr);
    place.run(&["lab", "secure-read", "--quick", "--row", "no such row"]).expect(2);
    // A part that nobody speaks to ends by itself.
    place.run(&["lab", "part"]).expect(1);
}

#[test]
fn secure_read_tells_of_every_row() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let ran =
        place.run(&["--quiet", "lab", "secure-read", "--quick", "--json", "--svg", "figures"]).expect(0);
    let object = ran.json();
    assert_eq!(object["schema"], 1);
    let rows = object["rows"].as_array().unwrap();
    for over in ["sockets", "iscsi"] {
        let is_it = |row: &&Value| row["over"] == over && row["depth"] == 1 && row["row"] == "plain";
        assert_eq!(rows.iter().filter(is_it).count(), 1, "{over}");
    }
    for figure in ["ahead_of_ideal", "ahead_of_no_overlap", "ahead_of_per_packet", "cipher_hidden_share"] {
        assert!(object[figure]["AES-256-GCM"].as_f64().is_some(), "{figure} of {object}");
    }
    assert!(object["overlap"][0]["cores_at_ideal"].as_f64().is_some(), "{object}");
    for row in rows {
        assert!(row["obtained"].as_str().is_some_and(|text| !text.is_empty()), "{row}");
        if row["runs"] == 0 {
            continue;
        }
        for figure in ["mb_per_s", "cycle_us"] {
            assert!(row[figure]["median"].as_f64().unwrap() > 0.0, "{figure} of {row}");
        }
        for side in ["target", "initiator"] {
            let used = |mode: &str| row[side]["cpu_s_per_gb"][mode].as_f64().unwrap();
            assert!(used("user") + used("system") > 0.0, "{side} of {row}");
        }
        // On a machine with much else to do it may not come to a single piece.
        assert!(row["bystander"]["rate_share"].as_f64().is_some(), "{row}");
        if row["row"] == "plain" {
            assert!(row["opening_gap_us"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn device_copy_tells_of_every_row() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let ran =
        place.run(&["--quiet", "lab", "device-copy", "--quick", "--json", "--svg", "figures"]).expect(0);
    let object = ran.json();
    assert_eq!(object["schema"], 1);
    let rows = object["rows"].as_array().unwrap();
    for row in ["user level, as dd", "user level, direct", "mover, 1 buffer", "mover, 4 buffers", "mover"] {
        for device in ["as it is", "+ 2 ms"] {
            let found: Vec<_> =
                rows.iter().filter(|found| found["row"] == row && found["device"] == device).collect();
            let [found] = &found[..] else { panic!("{row}, {device}: {found:?}") };
            assert!(found["mb_per_s"]["median"].as_f64().unwrap() > 0.0, "{found}");
            assert!(found["obtained"].as_str().is_some_and(|text| !text.is_empty()), "{found}");
        }
    }
    for count in ["1", "2", "4"] {
        assert!(object["bandwidth_by_buffers_of_one"][count].as_f64().unwrap() > 0.0, "{object}");
    }
    assert_eq!(object["model"][1]["device"], "+ 2 ms");
    assert!(object["knee"][1]["predicted"].as_f64().unwrap() > 0.0, "{object}");
    let beside = object["beside"].as_array().unwrap();
    let names: Vec<_> = beside.iter().map(|row| row["beside"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["nobody copies", "mover", "mover, --rate 100MB/s"]);
    for row in beside {
        for whose in ["reads_of_source", "writes_of_destination"] {
            assert!(row[whose]["p99_us"]["median"].as_f64().is_some(), "{row}");
        }
    }
    if object["storage"] == "loop devices over memory" {
        // A chunk is one request of each device, and leaves nothing in the page cache. Neighbours that are joined count once.
        for count in ["device_reads_per_gib", "device_writes_per_gib"] {
            let count = object[count].as_f64().unwrap();
            assert!((800.0..2400.0).contains(&count), "{object}");
        }
        assert_eq!(object["page_cache_growth_bytes"], 0.0);
    }
    for figure in ["bytes", "blocks", "buffers", "buffers-2000us", "cpu"] {
        let text = std::fs::read_to_string(place.path(&format!("figures/device-copy-{figure}.svg"))).unwrap();
        assert!(text.starts_with("<svg"), "{figure}");
    }
}

#[test]
fn device_copy_refuses_as_copy_does() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let (source, destination) = (place.sample("source", 16 << 20), place.sample("destination", 16 << 20));
    let lab = |source: &Path, destination: &Path, more: &[&str]| {
        let ends = ["--source", text(source), "--destination", text(destination)];
        place.run(&[&["--quiet", "lab", "device-copy", "--quick"], &ends[..], more].concat())
    };
    lab(&source, &source, &[]).expect(6);
    lab(&source, &place.path("missing"), &[]).expect(6);
    lab(&source, Path::new("iscsi://localhost/iqn.2026-11.example:a/0"), &[]).expect(2);
    let small = place.sample("small", 1 << 20);
    assert!(lab(&source, &small, &[]).expect(2).stderr.contains("8388608 bytes"));
    let mut image = vec![0u8; 16 << 20];
    image[..6].copy_from_slice(b"LUKS\xBA\xBE");
    lab(&source, &place.file("volume", &image), &[]).expect(6);
    let before = std::fs::read(&source).unwrap();
    let ran = lab(&source, &destination, &["--row", "mover, 2 buffers"]).expect(0);
    assert!(ran.stdout.contains("Storage: as given"), "{}", ran.stdout);
    assert!(std::fs::read(&source).unwrap() == before, "the source is only read");
    // What is copied is the first half; what comes after it is the neighbours', whom nobody asked for.
    let after = std::fs::read(&destination).unwrap();
    assert!(after[..8 << 20] == before[..8 << 20] && after[8 << 20..] == before[8 << 20..]);
    place.run(&["lab", "secure-read", "--quick", "--source", "a", "--destination", "b"]).expect(2);
}
