//! `cargo xtask bench target`.

fn main() -> std::process::ExitCode {
    benches::main("target")
}
