//! `cargo xtask bench service`.

fn main() -> std::process::ExitCode {
    benches::main("service")
}
