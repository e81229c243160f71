//! Runs the kept inputs, and random ones, in any build.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use iscsi_test::Random;

use crate::TARGETS;

fn kept(target: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{target}.tar"));
    let mut archive = tar::Archive::new(File::open(path).unwrap());
    let read = |entry: std::io::Result<tar::Entry<'_, File>>| {
        let mut bytes = Vec::new();
        entry.unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    archive.entries().unwrap().map(read).collect()
}

#[test]
fn kept_inputs_pass() {
    for (name, target) in TARGETS {
        let inputs = kept(name);
        assert!(!inputs.is_empty(), "no corpus for {name}");
        println!("{name}: {} inputs", inputs.len());
        inputs.iter().for_each(|input| target(input));
    }
}

/// Short inputs for all targets; long ones for sessions that make progress with random steps.
#[test]
fn random_inputs_pass() {
    let mut random = Random(7);
    for (name, target) in TARGETS {
        target(&[]);
        let (inputs, length_max) =
            if ["target", "initiator"].contains(name) { (600, 4000) } else { (200, 300) };
        for _ in 0..inputs {
            let length = random.below(length_max);
            let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
            target(&bytes);
        }
    }
}
