//! The program. Its code is in the library, so that the fuzzer can call the parsers.

use std::process::ExitCode;

fn main() -> ExitCode {
    hikyaku::main()
}
