//! `lab`: the experiments run, and what they say has the shape that was promised.

mod common;

use common::Place;
use serde_json::Value;

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
