//! `examples/copy.rs`, run as a program.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The path of examples: beside the directory of the test binary.
fn example() -> Command {
    let test = std::env::current_exe().unwrap();
    let path: PathBuf = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples/copy");
    assert!(path.exists(), "build it first: cargo build -p hikyaku-mover --example copy");
    Command::new(path)
}

fn text(output: &Output) -> String {
    format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn the_example_copies_and_compares() {
    let place = tempfile::tempdir().unwrap();
    let (source, destination) = (place.path().join("source"), place.path().join("destination"));
    let bytes: Vec<u8> = (0..5_000_000u32).map(|at| (at / 7) as u8).collect();
    fs::write(&source, &bytes).unwrap();
    let made = format!("{},create,size=5000000", destination.display());
    let output = example().arg(&source).arg(&made).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("5000000 bytes in"), "{}", text(&output));
    assert!(text(&output).contains("Verify: 100 %"), "{}", text(&output));
    assert!(fs::read(&destination).unwrap() == bytes);
    // The destination exists now, and `create` fails for an existing file.
    let output = example().arg(&source).arg(&made).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert_eq!(example().arg(&source).output().unwrap().status.code(), Some(2));
}

#[test]
fn ctrl_c_stops_the_example_in_good_order() {
    const BYTES: usize = 64 << 20;
    let place = tempfile::tempdir().unwrap();
    let destination = place.path().join("destination");
    let mut child = example()
        .arg(format!("pattern:{BYTES}:5,limit=40MB/s"))
        .arg(format!("{},create,size={BYTES}", destination.display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    assert!(first.starts_with("Copy: "), "{first}");
    assert!(Command::new("kill").arg("-INT").arg(child.id().to_string()).status().unwrap().success());
    let last = lines.last().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{last}");
    let safe = last.strip_prefix("interrupted; the first ").and_then(|rest| rest.split(' ').next());
    let safe: usize = safe.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{last}"));
    assert!(safe > 0 && safe < BYTES, "{last}");
    let mut expected = vec![0; safe];
    block::fill_pattern(5, 0, &mut expected);
    assert!(fs::read(&destination).unwrap()[..safe] == expected, "what is said to be done is");
}
