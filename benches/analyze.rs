//! `cargo xtask bench analyze`.

fn main() -> std::process::ExitCode {
    benches::main("analyze")
}
