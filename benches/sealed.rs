//! `cargo xtask bench sealed`.

fn main() -> std::process::ExitCode {
    benches::main("sealed")
}
