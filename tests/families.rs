//! The families of tests that drive the built program and its peers: `cargo test --test families -- --list`.

use std::process::ExitCode;

fn main() -> ExitCode {
    harness::run::main(harness::family::FAMILIES)
}
