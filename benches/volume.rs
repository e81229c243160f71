//! `cargo xtask bench volume`.

fn main() -> std::process::ExitCode {
    benches::main("volume")
}
