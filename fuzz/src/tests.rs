//! The kept inputs, and short ones of every kind, in any build.

use std::path::Path;

type Target = (&'static str, fn(&[u8]));

/// All targets.
const TARGETS: &[Target] = &[
    ("answers", crate::answers),
    ("spec", crate::spec),
    ("wire", crate::wire),
    ("text", crate::text),
    ("login", crate::login),
    ("target", crate::target),
    ("initiator", crate::initiator),
    ("pair", crate::pair),
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

#[test]
fn random_inputs_pass() {
    // splitmix64.
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    for (_, target) in TARGETS {
        target(&[]);
        for _ in 0..200 {
            let length = (next() % 300) as usize;
            let bytes: Vec<u8> = (0..length).map(|_| next() as u8).collect();
            target(&bytes);
        }
    }
}
