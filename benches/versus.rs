//! `cargo xtask bench versus`.

fn main() -> std::process::ExitCode {
    benches::main("versus")
}
