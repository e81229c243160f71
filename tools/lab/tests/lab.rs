//! `lab`: the experiments run, and their output has the documented form.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        std::fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    fn sample(&self, name: &str, bytes: usize) -> PathBuf {
        let mut content = vec![0; bytes];
        block::fill_pattern(7, 0, &mut content);
        self.file(name, &content)
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hikyaku-lab"));
        let output = command.current_dir(self.0.path()).args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ran {
    #[track_caller]
    fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(self.stdout.lines().last().unwrap_or_default()).unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Serialises the tests: experiments require an otherwise idle machine.
static MACHINE: Mutex<()> = Mutex::new(());

#[test]
fn experiments_are_listed_and_unknown_ones_refused() {
    let place = Place::new();
    assert!(place.run(&["list"]).expect(0).stdout.contains("secure-read\t"));
    let ran = place.run(&["secure-reed"]).expect(2);
    assert!(ran.stderr.contains("there is: secure-read"), "{}", ran.stderr);
    let ran = place.run(&["secure-read", "--quick", "--block", "513"]).expect(2);
    assert!(ran.stderr.contains("multiples of 512"), "{}", ran.stderr);
    place.run(&["secure-read", "--quick", "--row", "no such row"]).expect(2);
    // A part whose stdin is closed ends by itself.
    place.run(&["part"]).expect(1);
}

#[test]
fn secure_read_reports_every_row() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let ran = place.run(&["--quiet", "secure-read", "--quick", "--json", "--svg", "figures"]).expect(0);
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
    for volume in ["stored-luks2", "stored-auth", "stored-auth, AEGIS-256X4", "view"] {
        let is_it = |row: &&Value| row["over"] == "iscsi" && row["row"] == volume;
        assert_eq!(rows.iter().filter(is_it).count(), 1, "{volume}");
        assert!(object["volumes_of_ideal"][volume].as_f64().is_some(), "{volume} of {object}");
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
        // On a busy machine the bystander may complete no piece.
        assert!(row["bystander"]["rate_share"].as_f64().is_some(), "{row}");
        if row["row"] == "plain" {
            assert!(row["opening_gap_us"].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn device_copy_reports_every_row() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let ran = place.run(&["--quiet", "device-copy", "--quick", "--json", "--svg", "figures"]).expect(0);
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
        // A chunk is one request of each device, and leaves nothing in the page cache. A merged request counts once.
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
fn wan_write_shows_where_the_sender_stops() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(obstacle) = lab::wan::obstacle() {
        eprintln!("not tested: {obstacle}");
        return;
    }
    let place = Place::new();
    let rows = ["--row", "RTT 2 ms", "--row", "RTT 20 ms"];
    let arguments = [&["--quiet", "wan-write", "--quick", "--json", "--svg", "figures"], &rows[..]].concat();
    let object = place.run(&arguments).expect(0).json();
    assert_eq!(object["schema"], 1);
    assert!(object["environment"]["Network simulator"].as_str().is_some(), "{object}");
    let rows = object["rows"].as_array().unwrap();
    for rtt in [2, 20] {
        for row in ["local file in memory", "socket", "hikyaku to hikyaku"] {
            let is_it = |found: &&Value| found["row"] == row && found["rtt_ms"] == rtt;
            let found = rows.iter().find(is_it).unwrap_or_else(|| panic!("{row} at {rtt} ms of {object}"));
            assert!(found["mb_per_s"]["median"].as_f64().unwrap() > 0.0, "{found}");
            assert!(found["obtained"].as_str().is_some_and(|text| !text.is_empty()), "{found}");
        }
    }
    let case = |row: &str, rtt: u64| {
        let cases = object["cases"].as_array().unwrap();
        cases.iter().find(|case| case["row"] == row && case["rtt_ms"] == rtt).cloned()
    };
    assert!(case("socket", 20).is_some(), "{object}");
    // Without tgt there is no case of iSCSI.
    let Some(fixed) = case("as open-iscsi, SO_SNDBUF 512 KiB", 20) else { return };
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{fixed}"));
    // 1 MiB at most is in flight, whatever the machine's speed, unless it permits no such buffer.
    let buffer = number(&fixed["sampled"]["send_buffer_bytes"]);
    let in_flight = number(&fixed["in_flight_max_bytes"]);
    assert!(in_flight > 0.5 * buffer && in_flight < 1.2 * buffer, "{fixed}");
    assert!(number(&fixed["bursts"]["per_write"]) >= 3.0, "{fixed}");
    assert!(number(&fixed["bursts"]["all_acknowledged_before_write"]) > 0.9, "{fixed}");
    assert!(number(&fixed["bursts"]["acks_alone_before"]) > 0.9, "{fixed}");
    assert!(number(&fixed["ta_ms"]["median"]) > 3.0 * 20.0 * 0.9, "{fixed}");
    for figure in ["4-rate", "7-parts-4MiB", "8-ta", "9-packets", "12-queue", "16-queue-socket", "17-sleeps"]
    {
        let text = std::fs::read_to_string(place.path(&format!("figures/wan-write-{figure}.svg"))).unwrap();
        assert!(text.starts_with("<svg"), "{figure}");
    }
}

#[test]
fn wan_write_measures_copies() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(obstacle) = lab::wan::obstacle() {
        eprintln!("not tested: {obstacle}");
        return;
    }
    let place = Place::new();
    let row = ["--row", "copy by a raw socket, write, RTT 0 ms", "--reps", "2"];
    let ran = place.run(&[&["--quiet", "wan-write", "--quick", "--json", "rows.json"], &row[..]].concat());
    let ran = ran.expect(0);
    assert!(ran.stdout.contains("| MB/s (whole copy)"), "{}", ran.stdout);
    let object: Value = serde_json::from_slice(&std::fs::read(place.path("rows.json")).unwrap()).unwrap();
    let [row] = &object["rows"].as_array().unwrap()[..] else { panic!("{object}") };
    assert_eq!((&row["rtt_ms"], &row["bytes"], &row["runs"]), (&0.into(), &(256u64 << 20).into(), &2.into()));
    // No more than the path carries; the time holds the transfer.
    let number = |value: &Value| value["median"].as_f64().unwrap_or_else(|| panic!("{row}"));
    let (rate, seconds) = (number(&row["steady_mb_per_s"]), number(&row["seconds"]));
    assert!(rate > 1.0 && rate < 120.0, "{row}");
    assert!(seconds > (256u64 << 20) as f64 / 120e6, "{row}");
}

#[test]
fn device_copy_refuses_as_copy_does() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new();
    let (source, destination) = (place.sample("source", 16 << 20), place.sample("destination", 16 << 20));
    let lab = |source: &Path, destination: &Path, more: &[&str]| {
        let ends = ["--source", text(source), "--destination", text(destination)];
        place.run(&[&["--quiet", "device-copy", "--quick"], &ends[..], more].concat())
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
    // The copy overwrites the first half; the second half belongs to neighbours, which this run does not have.
    let after = std::fs::read(&destination).unwrap();
    assert!(after[..8 << 20] == before[..8 << 20] && after[8 << 20..] == before[8 << 20..]);
    place.run(&["secure-read", "--quick", "--source", "a", "--destination", "b"]).expect(2);
}

#[test]
fn packet_send_reports_every_part() {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(obstacle) = lab::wan::obstacle() {
        eprintln!("not tested: {obstacle}");
        return;
    }
    let place = Place::new();
    // What needs no `hikyaku` beside the program.
    let rows = [
        "round trip, 256 B, kernel",
        "round trip, 256 B, one process",
        "taken apart, 256 B",
        "area handed over",
    ];
    let rows: Vec<&str> = rows.iter().flat_map(|row| ["--row", row]).collect();
    let arguments =
        [&["--quiet", "packet-send", "--quick", "--json", "--svg", "figures"], &rows[..]].concat();
    let object = place.run(&arguments).expect(0).json();
    assert_eq!(object["schema"], 1);
    let rows = object["rows"].as_array().unwrap();
    let row = |name: &str| {
        rows.iter().find(|row| row["row"] == name).unwrap_or_else(|| panic!("{name} of {object}"))
    };
    for stack in ["kernel", "one process"] {
        let found = row(&format!("round trip, 256 B, {stack}, spinning"));
        assert!(found["p50_us"]["median"].as_f64().unwrap() > 0.0, "{found}");
    }
    let send = row("a send taken apart, 256 B, written in place");
    // Every part that an application's send has; a layer may take less than a note.
    for part in ["request from the application to inet", "TCP layer", "I/O to the NIC"] {
        assert!(send["parts_us"][part]["median"].as_f64().unwrap() > 0.0, "{part} of {send}");
    }
    let whole = send["whole_us"]["median"].as_f64().unwrap();
    let hops = send["hops_us"]["median"].as_f64().unwrap();
    assert!(hops > 0.0 && hops < whole, "{send}");
    assert_eq!(object["ipc_us_per_send"].as_f64().unwrap(), hops);
    assert!(object["send_ratio_256"].as_f64().unwrap() > 0.0, "{object}");
    let modes = &row("an area handed over, 256 B")["modes"];
    for mode in ["token", "write-protected", "re-attached", "copying"] {
        assert!(modes[mode]["turn_us"]["median"].as_f64().unwrap() > 0.0, "{mode} of {object}");
    }
    assert!(object["connections_lost"].is_null(), "nothing was killed: {object}");
    assert!(object["rtt_ratio_256"].is_null() && object["rtt_ratio_256_one_process"].is_f64(), "{object}");
    for figure in ["hops", "without-hops", "round-trip", "hand-over", "first-access"] {
        let text = std::fs::read_to_string(place.path(&format!("figures/packet-send-{figure}.svg"))).unwrap();
        assert!(text.starts_with("<svg"), "{figure}");
    }
}
