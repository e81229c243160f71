//! `cargo xtask bench copy`.

fn main() -> std::process::ExitCode {
    benches::main("copy")
}
