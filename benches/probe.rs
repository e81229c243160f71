//! `cargo xtask bench probe`.

fn main() -> std::process::ExitCode {
    benches::main("probe")
}
