//! `cargo xtask bench verdict`.

fn main() -> std::process::ExitCode {
    benches::main("verdict")
}
