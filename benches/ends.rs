//! `cargo xtask bench ends`.

fn main() -> std::process::ExitCode {
    benches::main("ends")
}
