//! The kept inputs, and random ones, in any build.

use std::path::Path;

use iscsi_test::Random;

type Target = (&'static str, fn(&[u8]));

/// All targets.
const TARGETS: &[Target] = &[
    ("answers", crate::answers),
    ("spec", crate::spec),
    ("wire", crate::wire),
    ("text", crate::text),
    ("login", crate::login),
    ("mapfile", crate::mapfile),
    ("nbd", crate::nbd),
    ("outer", crate::outer),
    ("target", crate::target),
    ("initiator", crate::initiator),
    ("pair", crate::pair),
    ("record", crate::record),
    ("sealed", crate::sealed),
    ("stream", crate::stream),
    ("unit", crate::unit),
];

fn kept(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
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

/// Short ones of every kind; long ones where a session gets anywhere with random steps.
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
