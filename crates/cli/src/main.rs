//! The program. What it does is in the library beside it, so that the fuzzer can reach its parsers.

use std::process::ExitCode;

fn main() -> ExitCode {
    hikyaku::main()
}
